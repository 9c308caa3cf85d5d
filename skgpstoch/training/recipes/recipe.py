"""Base class of recipes, and their input (:class:`Problem`).

An estimator makes a :class:`Recipe` from its parameters, once per fit. A recipe knows nothing of
estimators. It decides what "auto" means with a pure function of sizes (:meth:`Recipe.plan`), makes
the objective that is trained (:meth:`Recipe.objective`), and afterwards says what the estimator's
fitted attributes are (:meth:`Recipe.attributes`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...data.arrays import Scaling
from ...data.deadline import Deadline
from ...data.equal_rows import Merging
from ...data.findings import Finding
from ...data.known_errors import scaling_of_known, warn_of_units
from ...data.rows import Data, Rows
from ...likelihoods.base import Likelihood, check_rows
from ...likelihoods.counts import Poisson
from ...likelihoods.heavy_tailed import Laplace, StudentT
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...models.posteriors.base import Posterior
from ...objectives.base import Objective
from ..tables import Table
from .findings import NEAREST, of_bounds, of_inputs, of_noise, of_scales, of_sight, of_training
from .fitted import Fitted
from .fitted_errors import of_copies, unit_of
from .kernel_choice import KernelChoice, n_varying
from .plan import OfParameters, Plan, Sizes, Start
from .row_findings import of_events, of_far_count, of_far_rows, of_features, of_rows, of_weights


class Problem(NamedTuple):
    """Scaled rows, and the plan to fit them."""

    X: Tensor  # (N, d); all rows or, as `rows`, a sample of them
    rows: Rows
    table: Table  # all rows
    x_scaling: Scaling
    plan: Plan
    generator: torch.Generator
    start: Start | None = None

    @classmethod
    def of(cls, table: Table, *what: Any) -> Problem:
        """Return the problem of a table; the other arguments are scaling, plan and so on."""
        return cls(table.X, table.rows, table, *what)

    def trained(self) -> Problem:
        """Return the problem without held-out rows, which come first."""
        if self.rows.fold is None:
            return self
        n = self.rows.n_held_out
        return self._replace(X=self.X[n:], rows=self.rows.after(n))


def started(
    likelihood: Likelihood, rows: Rows, noise: float | None = None
) -> tuple[Likelihood, Tensor]:
    """Return a likelihood for all outputs of y, and the constant means of f, (P,).

    Both start from the rows. A Gaussian likelihood starts with this noise variance, if it is given.
    """
    likelihood, of_rows = likelihood.for_outputs(rows.y.shape[1]), rows.to(torch.float64)
    if isinstance(likelihood, Gaussian) and noise is not None:
        likelihood.log_noise.data.fill_(math.log(noise))
    likelihood = likelihood.to(rows.y.device)
    likelihood.initialise(of_rows)
    return likelihood, likelihood.initial_mean(of_rows).to(rows.y)


def check_shared_noise(posterior: Posterior, rows: Rows) -> None:
    """Raise a ValueError if rows have exposures or known noise, which the model would ignore."""
    posterior.likelihood.given(rows.exposure)  # raises if there is one
    if rows.noise is not None:
        raise ValueError(
            "y_std must be None here, because all rows of this model have the same noise. "
            "SVGPRegressor and NNGPRegressor take known errors."
        )


@dataclass(frozen=True, kw_only=True)
class Recipe(OfParameters, ABC):
    """Base class of recipes. Each fit makes one recipe and checks it.

    Parameters
    ----------
    likelihood : Likelihood
        p(y | f) for one output, before it has seen data.
    normalize_y : bool, default=False
        Whether to standardise the target, if the noise is additive.
    equal_rows : Merging, default="merge"
        What becomes of equal rows.
    deadline : Deadline or None, default=None
        When the fit must end; None if its time is not limited.
    """

    likelihood: Likelihood
    normalize_y: bool = False
    equal_rows: Merging = "merge"
    deadline: Deadline | None = None

    @property
    def numbers_rows(self) -> bool:
        """Whether parameters refer to rows by number."""
        return self.equal_rows == "as given"

    @property
    def weighs_relatively(self) -> bool:
        """Whether weights count relative to the usual one.

        Copies of all rows then tell as much as the rows, and the likelihood of equal observations
        cannot take the noise for 0.
        """
        return False

    @abstractmethod
    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        """Decide what "auto" means; a pure function."""

    def plan_of(self, sizes: Sizes, n_members: int) -> Plan:
        """Decide the same if the time allows only so many ensemble members."""
        return self.plan(sizes)

    def keeps_apart(self, plan: Plan) -> bool:
        """Tell whether equal rows must stay rows of their own, unless they are copies.

        They must where rows are left out to judge the model, or where each row has a function.
        """
        return plan.folds.size > 0

    @property
    def holds_out_places(self) -> bool:
        """Whether rows with equal inputs are held out together."""
        return False

    def start(self, problem: Problem) -> Start | None:
        """Return where training starts: at the last fit, if it goes on from one."""
        return problem.start

    def sums_rows(self, plan: Plan) -> bool:
        """Tell whether training needs only sums over minibatches, so rows may stay on disk."""
        return False

    @abstractmethod
    def objective(self, problem: Problem) -> Objective:
        """Make what training minimises; its parameters start from `problem.start`, if any."""

    @abstractmethod
    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Return the fitted attributes that are specific to the method, in the user's units."""

    @property
    def scales_target(self) -> bool:
        """Whether targets are scaled to variance 1."""
        return self.normalize_y

    def check(self, data: Data) -> None:
        """Raise a ValueError if parameters do not agree with each other, or with the data."""
        self.check_rows(data)

    def check_rows(self, data: Data) -> None:
        """Raise a ValueError if the likelihood cannot use the targets, exposures or y_std."""
        check_rows(self.likelihood, data)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling between the user's X and what the objective sees."""
        return Scaling.identity(X.shape[1])

    def target_scaling(self, data: Data) -> Scaling:
        """Return the scaling of y (n, P): a robust one if the noise has heavy tails."""
        y, weight = data.y, data.weight
        if not self.scales_target:
            return Scaling.identity(y.shape[1])
        if data.y_std is not None:
            warn_of_units(y, data.y_std)
            return scaling_of_known(y, data.y_std, weight)
        find = (
            Scaling.robust if isinstance(self.likelihood, StudentT | Laplace) else Scaling.standard
        )
        return find(y, weight)

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        """Return log p(y | X) of other rows, or the bound on it, for the scaled y."""
        raise NotImplementedError

    # ---- findings ----------------------------------------------------------------------------

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield the findings that `diagnose` tabulates; `fit` warns of those that are problems."""
        if (data := fitted.whole) is not None:
            yield from of_rows(data.size, self.learns)
            yield from (found for found in of_weights(data) if found.severity == "problem")
            if isinstance(self.likelihood, Poisson):
                yield from of_far_count(data.y, data.exposure)
                yield of_events(data.y, data.exposure)
            if self.chooses_inputs:
                yield from of_features(data.size, data.X.shape[1])
                yield from of_far_rows(data.X, data.weight, fitted.names)
            yield from self.training_findings(fitted)
            if fitted.budget is not None:
                yield fitted.budget.finding

    def is_trained(self, fitted: Fitted) -> bool:
        """Tell whether training ran to its natural end."""
        return fitted.history.status == "converged"

    @property
    def learns(self) -> bool:
        """Whether there are hyper-parameters to learn."""
        return True

    @property
    def has_prior(self) -> bool:
        """Whether hyper-parameters have a prior."""
        return False

    @property
    def chooses_inputs(self) -> bool:
        """Whether the fit must learn which columns of X matter; False for pixels."""
        return True

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield how training ended."""
        yield from of_training(fitted.history, fitted.plan.max_iter)

    def kernel_findings(
        self, fitted: Fitted, kernel: sk.Kernel, given: KernelChoice, sees_inputs: bool
    ) -> Iterator[Finding]:
        """Yield findings about a fitted kernel; those about X only if it sees the inputs."""
        is_given = given.expression is not None
        yield from of_bounds(kernel, is_given)
        likelihood, data, sight = fitted.posterior.likelihood, fitted.whole, list[Finding]()
        if sees_inputs and data is not None:
            sight += of_sight(kernel, given.expression, data.X, unit_of(self, data))
            sight += of_inputs(kernel, data.X, fitted.names) if is_given else []
            is_sure = self.has_prior or not isinstance(likelihood, AdditiveNoise)
            found = of_scales(kernel, data.size, n_varying(data.X), is_sure)
            yield from found if self.learns else ()
        if isinstance(likelihood, Gaussian) and given.white is None:
            variance, bounds = likelihood.noise_variance.detach(), given.noise_bounds
            nearest = next((each.value for each in sight if each.name == NEAREST), math.inf)
            yield from of_noise(variance, bounds, is_given, nearest)
        yield from sight
        counts = given.learns_noise and not self.weighs_relatively
        if type(likelihood) is Gaussian and counts and data is not None and data.y_std is None:
            yield from of_copies(fitted, cast(Data, fitted.judged))

    # ---- streams -----------------------------------------------------------------------------

    def check_streams(self) -> None:
        """Raise a ValueError where `partial_fit` is impossible."""

    def stream(self, problem: Problem, posterior: Any) -> Objective:
        """Make the objective of a stream, from a fitted posterior or None."""
        raise NotImplementedError
