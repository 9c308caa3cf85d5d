"""Titsias' bound of few rows and its gradient, in three products of all rows with all points.

With a Gaussian likelihood of noise σ_p² the best q(w) is that of G = Pᵀ diag(w) P and
c_p = Pᵀ diag(w)(y_p − mean), for weights w of the rows,

    S_p = (I + G/σ_p²)⁻¹,   m_p = S_p c_p/σ_p²,

and with T = Σ_p (I − S_p)/σ_p², ε_p = (y_p − μ_p)/σ_p² the gradient at a fixed q is

    ∂/∂P = diag(w)(Σ_p ε_p m_pᵀ + PT),   ∂/∂k(x, x) = −½ w Σ_p 1/σ_p².

By P = B L⁻ᵀ (:mod:`skgpstoch.features.inducing`) that of B = k(X, Z) is ∂/∂P L⁻¹, where T L⁻¹ is a
small matrix, and that of K_uu needs Pᵀ ∂/∂P = Σ_p (Pᵀ diag(w) ε_p) m_pᵀ + GT, which is small too.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..features.inducing import InducingFeatures, symmetric_from_lower
from ..likelihoods.real import Gaussian
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import NotPositiveDefiniteError
from ..models.sparse import Solution, SparseModel
from ..posteriors.sites import conjugate_sites
from .base import surrogate
from .lbfgs import FullBatchObjective, rejected


class CollapsedObjective(FullBatchObjective):
    """The bound at the best q(w) of all rows, of one kind of points, at once."""

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        try:
            bound, found = bound_of(self.model, X, rows)
            self.check_sound()
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            return rejected([p for p in self.parameters() if p.requires_grad])
        if found.value >= self.value:
            self.keep(found.sites, found.value)
        return -bound / rows.n_effective


class Gradients(NamedTuple):
    """Of the bound: by B (N, M), K (M, M), the prior variances (N,), mean and log σ² (P,)."""

    B: Tensor
    K: Tensor
    prior: Tensor
    mean: Tensor
    log_noise: Tensor


def bound_of(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the bound at the best q(w), () nats with a graph, and that q(w)."""
    features = cast(InducingFeatures, model.features)
    G, Z = features.embed(X, *features.all_points())
    K, inverse = features.condition(Z)
    B, prior = features.covariances.cross(G, Z), features.covariances.prior(G)
    found, gradients = best(model, B.detach(), prior.detach(), inverse, rows)
    noise = cast(Gaussian, model.likelihood).log_noise
    pairs = zip((B, K, prior, model.mean.value, noise), gradients, strict=True)
    return surrogate(found.value, *((x, dx) for x, dx in pairs if x.requires_grad)), found


@torch.no_grad()
def best(
    model: SparseModel, B: Tensor, prior: Tensor, R: Tensor, rows: Rows
) -> tuple[Solution, Gradients]:
    """Return the best q(w) and the gradients of the bound, given R = L⁻¹ (M, M)."""
    noise, n = cast(Gaussian, model.likelihood).noise_variance, rows.n_effective  # (P,)
    weight = torch.ones_like(prior) if rows.weight is None else rows.weight.to(prior)
    y = rows.y - model.mean.value
    P = B @ R.mT
    wP = P if rows.weight is None else weight[:, None] * P
    G, c = P.mT @ wP, wP.mT @ y
    sites = conjugate_sites(G, c, noise)
    q = model.moments(sites)

    (S,), eye = q.covariances, torch.eye(len(G), dtype=G.dtype, device=G.device)
    r = y - P @ q.mean  # (N, P)
    residual = (prior - P.square().sum(1)).clamp_min(0.0)
    misfit = weight @ r.square() + (G * cast(Tensor, S)).sum((-2, -1)) + weight @ residual  # (P,)
    value = -0.5 * (n * (LOG_2PI + noise.log()) + misfit / noise).sum() - q.kl

    error = weight[:, None] * r / noise  # diag(w) ε, (N, P)
    T = ((eye - cast(Tensor, S)) / noise[:, None, None]).sum(0)
    H = symmetric_from_lower(q.mean @ (P.mT @ error).mT + T @ G)
    gradients = Gradients(
        B=torch.addmm(error @ (q.mean.mT @ R), wP, T @ R),
        K=-0.5 * (R.mT @ H @ R),
        prior=-0.5 * weight * noise.reciprocal().sum(),
        mean=error.sum(0),
        log_noise=0.5 * (misfit / noise - n),
    )
    return Solution(q, sites, value), gradients
