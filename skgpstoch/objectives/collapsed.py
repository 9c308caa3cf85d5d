"""The bounds of Titsias and of SOLVE-GP for few rows, with gradients, in one pass over the rows.

With a Gaussian likelihood, the gradient follows from sums over rows (:mod:`.gaussian_rows`),
G = Pᵀ diag(w) P and c_p = Pᵀ diag(w)(y_p − mean). These sums also determine the best q(w):
m_p = (I + G/σ_p²)⁻¹c_p/σ_p² and, for every block of features, S_p = (I + G_bb/σ_p²)⁻¹. For a single
block this gives

    TG = GT = Σ_p (G/σ_p² − I + S_p).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..features.inducing import InducingFeatures, by_gram
from ..likelihoods.real import Gaussian
from ..maths.linalg import NotPositiveDefiniteError, mirror_
from ..models.sparse import Solution, SparseModel
from ..posteriors.sites import conjugate_sites
from .gaussian_rows import (
    Gradients,
    OfPoints,
    RowSums,
    by_features,
    row_sums,
    term_at,
    with_gradients,
)
from .lbfgs import FullBatchObjective, rejected


class CollapsedObjective(FullBatchObjective):
    """The bound at the optimal q(w) of all rows, with or without orthogonal points."""

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        bound_of = bound_of_points if len(self.model.features.blocks) == 1 else bound_of_features
        try:
            bound, found = bound_of(self.model, X, rows)
            if (of_prior := self.model.neg_log_prior()) is not None:
                bound = bound - of_prior
                found = found._replace(value=bound.detach())
            self.check_sound()
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            return rejected([p for p in self.parameters() if p.requires_grad])
        if found.value >= self.value:
            self.keep(found.sites, found.value)
        return -bound / rows.n_effective


def bound_of_points(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the bound, () nats with a graph, and the optimal q(w), without orthogonal points."""
    points = OfPoints.of(cast(InducingFeatures, model.features), X)
    with torch.no_grad():
        sums = row_sums(points.features(), rows, model.mean.value)
        found, d = best(model, points.prior, rows, sums)
        dB = points.by_cross(sums, found.q, d)
        dK = by_gram(mixed(found, sums.phi.mT @ d.error), points.R)
    pairs = (points.B, dB), (points.K, dK), (points.prior, d.prior)
    return with_gradients(model, found.value, d, *pairs), found


def bound_of_features(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the same for any features, which autograd differentiates."""
    basis = model.features.basis(X)
    with torch.no_grad():
        sums = row_sums(basis.phi, rows, model.mean.value)
        found, d = best(model, basis.prior, rows, sums)
        dP = by_features(sums, found.q, d)
    return with_gradients(model, found.value, d, (basis.phi, dP), (basis.prior, d.prior)), found


def best(
    model: SparseModel, prior: Tensor, rows: Rows, sums: RowSums
) -> tuple[Solution, Gradients]:
    """Return the optimal q(w) and the gradients of the bound, from sums over rows."""
    sites = conjugate_sites(sums.gram, sums.cross, cast(Gaussian, model.likelihood).noise_variance)
    q = model.moments(sites)
    value, d = term_at(model, prior, rows, sums, q)
    return Solution(q, sites, value - q.kl), d


def mixed(found: Solution, weighted_error: Tensor) -> Tensor:
    """Return Φ(H) + Φ(H)ᵀ for H = (∂/∂P)ᵀP at the best q(w), from Pᵀ diag(w) ε: (M, M)."""
    (S,) = cast(tuple[Tensor], found.q.covariances)
    TG = (found.sites.precision + S).sum(0)
    TG.diagonal().sub_(len(S))
    return mirror_(TG.addmm_(found.q.mean, weighted_error.mT))
