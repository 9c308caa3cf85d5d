"""condition_on: add rows to a fitted model and keep its hyper-parameters."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ..objectives.conditioning import conditioned
from .alike import refuse_group
from .base import BaseGP
from .context import fitting


@fitting
def condition(estimator: Any, X: Any, y: Any, *of_rows: Any) -> Any:
    """Condition a fitted regressor on more rows, in place."""
    refuse_group("condition_on")
    X, rows, posterior = estimator._labelled(estimator._checked(X, y, *of_rows))
    # Parts may be shared with the posterior before, which is restored after a failure.
    found = conditioned(copy.deepcopy(posterior), X, rows)
    estimator._set_posterior(found)
    if hasattr(estimator, "log_marginal_likelihood_value_"):
        estimator.log_marginal_likelihood_value_ = evidence_in_units(estimator)
    return estimator


def evidence_in_units(estimator: BaseGP) -> float:
    """Return the posterior's log marginal likelihood, or the bound, for y in its own units."""
    posterior, scale = estimator.posterior_, estimator._y_scaling.scale
    value = float(posterior.log_evidence().sum())
    return value - posterior.n_rows * float(np.log(scale).sum())
