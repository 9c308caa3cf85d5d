"""condition_on: add rows to a fitted model, with its hyper-parameters and features unchanged.

Nothing is forgotten: the result is the posterior given all rows, those of the fit and the new ones.

- Exact: the Cholesky factor gets k more rows, which takes O(n²k) instead of O(n³).
- Nearest neighbours: rows are appended.
- Finite features: the sums of squares get k more terms.
- Sparse: q(w) depends on the rows through the sums G and c
  (:mod:`skgpstoch.models.posteriors.sites`). For a Gaussian likelihood, the new rows' terms are
  added, in O(kM² + M³). For other likelihoods the terms of the new rows depend on q(w), and Newton
  steps find them. The terms of earlier rows stay fixed, because these rows are no longer stored. So
  the result is exact only for a Gaussian likelihood.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.rows import Rows
from ..maths.linear_regression import Statistics, exact_statistics, spectrum
from ..models.deep import DeepPosterior
from ..models.posteriors.base import Posterior
from ..models.posteriors.blocks import WeightMoments, moments_of
from ..models.posteriors.conjugate import ConjugatePosterior, ConjugateWeights
from ..models.posteriors.exact import ExactPosterior
from ..models.posteriors.neighbours import NeighbourPosterior
from ..models.posteriors.sites import Sites, diagonal_blocks
from ..models.sparse import Solution, SparseModel, SparsePosterior
from ..objectives.optimal_q import ROUNDING, damped_newton, survey, weighted_sums
from ..training.recipes.recipe import check_shared_noise
from .base import BaseGP
from .context import fitting
from .first_rank import refuse_group

MOST_APPENDED = 1e100  # in standard deviations


@fitting
def condition(estimator: Any, X: Any, y: Any, *of_rows: Any) -> Any:
    """Condition a fitted regressor on more rows, in place."""
    refuse_group("condition_on")
    X, rows, posterior = estimator._labelled(estimator._checked(X, y, *of_rows))
    check_near(rows.y, estimator._y_scaling.scale)
    # Parts may be shared with the posterior before, which is restored after a failure.
    found = conditioned(copy.deepcopy(posterior), X, rows)
    estimator._set_posterior(found)
    if "log_marginal_likelihood_value_" in vars(estimator):  # not computed when asked for
        estimator.log_marginal_likelihood_value_ = evidence_in_units(estimator)
    return estimator


def check_near(Y: Any, scale: Any) -> None:
    """Raise a ValueError if scaled targets are so large that sums of their squares overflow."""
    if not bool((abs(Y) < MOST_APPENDED).all()):
        raise ValueError(
            f"y is too far from the targets of fit, whose deviation is {scale}. Fit again with all "
            "rows."
        )


def evidence_in_units(estimator: BaseGP) -> float:
    """Return the posterior's log marginal likelihood, or the bound, for y in its own units."""
    posterior, scale = estimator.posterior_, estimator._y_scaling.scale
    value = float(posterior.log_evidence().sum())
    return value - posterior.n_rows * float(np.log(scale).sum())


# ---- posteriors ----------------------------------------------------------------------------------


ADDED_TOL = 1e-6  # stop if a Newton step gains less, in nats per new row
MOST_ADDED_STEPS = 50


@functools.singledispatch
@torch.no_grad()
def conditioned(posterior: Posterior, X: Tensor, rows: Rows) -> Posterior:
    """Return the posterior given its own rows and these, with the same hyper-parameters.

    Parameters
    ----------
    posterior : Posterior
        The fitted posterior; it is not changed.
    X, rows : Tensor of shape (K, d) and Rows
        New rows, in float64 and scaled as those of the fit.

    Raises
    ------
    ValueError
        If this kind of posterior cannot be conditioned on more rows.
    """
    raise ValueError(
        "condition_on cannot add rows to a model of this kind. Call fit with all rows, or use "
        "NNGPRegressor, GaussianProcessRegressor, SVGPRegressor or SCGDGaussianProcessRegressor."
    )


@conditioned.register(ExactPosterior)
@conditioned.register(NeighbourPosterior)
@torch.no_grad()
def _(
    posterior: ExactPosterior | NeighbourPosterior, X: Tensor, rows: Rows
) -> ExactPosterior | NeighbourPosterior:
    if isinstance(posterior, ExactPosterior):
        check_shared_noise(posterior, rows)
    return posterior.extended(X, rows)


@conditioned.register
@torch.no_grad()
def _(posterior: ConjugatePosterior, X: Tensor, rows: Rows) -> Posterior:
    check_shared_noise(posterior, rows)
    features, weights = posterior.features, posterior.weights
    weight = None if rows.weight is None else rows.weight[None]
    new = exact_statistics(lambda X: features.basis(X).phi[None], X, rows.y, weight)
    pairs = zip(weights.spectrum.statistics(), new, strict=True)
    total = spectrum(Statistics(*(a + b for a, b in pairs)))
    return ConjugatePosterior(
        features, ConjugateWeights(total, weights.noise_variance, weights.ridge)
    )


@conditioned.register
def _(posterior: DeepPosterior, X: Tensor, rows: Rows) -> Posterior:
    return conditioned.dispatch(Posterior)(posterior, X, rows)


@conditioned.register
@torch.no_grad()
def _(posterior: SparsePosterior, X: Tensor, rows: Rows) -> Posterior:
    model = posterior.model
    if model.covariance != "sites":
        raise ValueError(
            f"condition_on cannot add rows to a model trained with the loss {model.loss!r}, as "
            "the covariance of q(w) is not a sum over rows. Call fit with all rows."
        )
    old, q = posterior.sites, moments_of(posterior.weights)
    found = added(model, X, rows, old)
    elbo = torch.full_like(posterior.elbo, torch.nan)
    if model.is_conjugate and model.is_bound:
        gained = found.value - (model.beta * expected_sites(old, q) - model.beta * q.kl)
        elbo = posterior.elbo + gained
    return model.posterior(found, elbo, posterior.n_rows + rows.n_effective)


def added(model: SparseModel, X: Tensor, rows: Rows, old: Sites) -> Solution:
    """Return the optimal q(w) given the old rows' sites and the new rows.

    The value is E_q of the old rows' sites, a quadratic function of w, minus the loss of the new
    rows, minus β KL.
    """

    def look(q: WeightMoments, exact: bool) -> tuple[Tensor, Sites]:
        value, new = survey(model, X, rows, q, exact)
        return value + model.beta * expected_sites(old, q), old + new

    if not model.is_conjugate:
        limits = (ADDED_TOL * rows.n_effective, ROUNDING * rows.n_effective, MOST_ADDED_STEPS)
        return damped_newton(look, model.moments, old, *limits)[0]
    gram, cross, *_ = weighted_sums(model, X, rows)
    sites = old + Sites(gram / model.beta, cross / model.beta)
    q = model.moments(sites)
    return Solution(q, sites, look(q, True)[0])


def expected_sites(sites: Sites, q: WeightMoments) -> Tensor:
    """Return E_q[cᵀw − ½ wᵀGw], summed over outputs, ()."""
    m = q.mean
    value = (sites.cross * m).sum() - 0.5 * torch.einsum("ib,bij,jb->", m, sites.precision, m)
    for G, S in zip(diagonal_blocks(sites.precision, q.sizes), q.covariances, strict=True):
        value = value - 0.5 * (G.diagonal(dim1=-2, dim2=-1) if S is None else G * S).sum()
    return value
