"""Titsias' bound of few rows, that of SOLVE-GP, and their gradients without a second look at rows.

With a Gaussian likelihood of noise σ_p² the best q(w) is that of G = Pᵀ diag(w) P and
c_p = Pᵀ diag(w)(y_p − mean), for weights w of the rows: m_p = (I + G/σ_p²)⁻¹c_p/σ_p² and, of every
block of features, S_p = (I + G_bb/σ_p²)⁻¹. With ε_p = (y_p − μ_p)/σ_p² and T = Σ_p (I − S_p)/σ_p²
the gradient at a fixed q is

    ∂/∂P = diag(w)(Σ_p ε_p m_pᵀ + PT),   ∂/∂k(x, x) = −½ w Σ_p 1/σ_p².

Of one kind of points P = B L⁻ᵀ (:mod:`skgpstoch.features.inducing`), so that the gradient by
B = k(X, Z) is ∂/∂P L⁻¹, where T L⁻¹ is a small matrix, and that by K_uu needs

    Pᵀ ∂/∂P = Σ_p (Pᵀ diag(w) ε_p) m_pᵀ + GT,   GT = Σ_p (G/σ_p² − I + S_p),

which is small too. Three products of all rows with all points, then, are the whole cost.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..features.inducing import InducingFeatures, symmetric_from_lower
from ..likelihoods.real import Gaussian
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import NotPositiveDefiniteError, times_lower, times_lower_transposed
from ..models.sparse import Solution, SparseModel
from ..posteriors.sites import conjugate_sites, diagonal_blocks
from .base import surrogate
from .lbfgs import FullBatchObjective, rejected


class CollapsedObjective(FullBatchObjective):
    """The bound at the best q(w) of all rows at once, of points of one kind or two."""

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


class Gradients(NamedTuple):
    """Of the bound: by features, as ∂/∂P = error·meanᵀ + wPT, and by all that is not in them."""

    error: Tensor  # diag(w) ε, (N, P)
    weighted: Tensor  # diag(w) P, (N, D)
    mix: list[Tensor]  # T of every block, (D_b, D_b)
    prior: Tensor  # by prior variances, (N,)
    mean: Tensor  # (P,)
    log_noise: Tensor  # (P,)


def bound_of_points(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the bound, () nats with a graph, and the best q(w), of one kind of points."""
    features = cast(InducingFeatures, model.features)
    G, Z = features.embedded(X)
    K, R = features.condition(Z)  # R = L⁻¹
    B, prior = features.covariances.cross(G, Z), features.covariances.prior(G)
    with torch.no_grad():
        P = times_lower_transposed(B, R)
        found, d = best(model, P, prior, rows)
        (T,), m = d.mix, found.q.mean
        dB = torch.addmm(d.error @ (m.mT @ R), d.weighted, times_lower(T, R))
        dK = by_points(found, P.mT @ d.error, R)
    return with_gradients(model, found, d, (B, dB), (K, dK), (prior, d.prior)), found


def bound_of_features(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the same of any features, which autograd differentiates."""
    basis = model.features.basis(X)
    with torch.no_grad():
        found, d = best(model, basis.phi, basis.prior, rows)
        blocks = zip(d.weighted.split(found.q.sizes, 1), d.mix, strict=True)
        dP = torch.cat([part @ T for part, T in blocks], 1).addmm_(d.error, found.q.mean.mT)
    return with_gradients(model, found, d, (basis.phi, dP), (basis.prior, d.prior)), found


def with_gradients(
    model: SparseModel, found: Solution, d: Gradients, *pairs: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the bound with its gradients, those by the mean and the noise too."""
    noise = cast(Gaussian, model.likelihood).log_noise
    known = (*pairs, (model.mean.value, d.mean), (noise, d.log_noise))
    return surrogate(found.value, *((x, dx) for x, dx in known if x.requires_grad))


def by_points(found: Solution, weighted_error: Tensor, R: Tensor) -> Tensor:
    """∂/∂K_uu = −½ L⁻ᵀ(Φ(H) + Φ(H)ᵀ)L⁻¹ for H = Pᵀ ∂/∂P, from Pᵀ diag(w) ε: (M, M)."""
    (S,) = found.q.covariances
    GT = (found.sites.precision + cast(Tensor, S)).sum(0)
    GT.diagonal().sub_(len(cast(Tensor, S)))
    H = symmetric_from_lower(torch.addmm(GT, found.q.mean, weighted_error.mT))
    return -0.5 * times_lower(times_lower(H, R).mT, R)


def best(model: SparseModel, P: Tensor, prior: Tensor, rows: Rows) -> tuple[Solution, Gradients]:
    """Return the best q(w) and gradients of the bound, from features (N, D) without a graph."""
    noise, n = cast(Gaussian, model.likelihood).noise_variance, rows.n_effective  # (P,)
    weight = torch.ones_like(prior) if rows.weight is None else rows.weight.to(prior)
    y = rows.y - model.mean.value
    wP = P if rows.weight is None else weight[:, None] * P
    G, c = P.mT @ wP, wP.mT @ y
    sites = conjugate_sites(G, c, noise)
    q = model.moments(sites)

    r = y - P @ q.mean  # (N, P)
    residual = (prior - P.square().sum(1)).clamp_min(0.0)
    blocks = list(zip(diagonal_blocks(G, q.sizes), cast(list[Tensor], q.covariances), strict=True))
    explained = torch.stack([(G_b * S).sum((-2, -1)) for G_b, S in blocks]).sum(0)  # tr(G S), (P,)
    misfit = weight @ r.square() + explained + weight @ residual  # (P,)
    value = -0.5 * (n * (LOG_2PI + noise.log()) + misfit / noise).sum() - q.kl

    error = weight[:, None] * r / noise
    gradients = Gradients(
        error=error,
        weighted=wP,
        mix=[less_than_prior(S, noise) for _, S in blocks],
        prior=-0.5 * weight * noise.reciprocal().sum(),
        mean=error.sum(0),
        log_noise=0.5 * (misfit / noise - n),
    )
    return Solution(q, sites, value), gradients


def less_than_prior(S: Tensor, noise: Tensor) -> Tensor:
    """Σ_p (I − S_p)/σ_p², (D, D)."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return ((eye - S) / noise[:, None, None]).sum(0)
