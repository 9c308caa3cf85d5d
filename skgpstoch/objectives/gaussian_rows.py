"""Compute Σᵢ E_q[log N(yᵢ | fᵢ, σ²)] and its gradient from sums over rows, in a single pass.

Let σ_p² be the noise variances, w the weights of rows, ε_p = (y_p − μ_p)/σ_p²,
T = Σ_p (I − S_p)/σ_p² for every block of features, and G = Pᵀ diag(w) P. At a fixed
q(w) = N(m_p, S_p), the gradient is

    ∂/∂P = diag(w)(Σ_p ε_p m_pᵀ + PT),   ∂/∂k(x, x) = −½ w Σ_p 1/σ_p²,

and the sum over variances is Σᵢ wᵢ pᵢᵀ S_p pᵢ = tr(G S_p). Without orthogonal points, P = B L⁻ᵀ
(:mod:`skgpstoch.models.features.inducing`). So the gradient by B = k(X, Z) is ∂/∂P L⁻¹, where T L⁻¹
is a small matrix, and the gradient by K_uu needs

    (∂/∂P)ᵀ P = Σ_p m_p (Pᵀ diag(w) ε_p)ᵀ + TG,

which is small too. So the cost is that of three products of all rows with all points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import symmetric_product, times_lower, times_lower_transposed
from ..models.features.inducing import InducingFeatures, by_gram
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import diagonal_blocks
from ..models.sparse import SparseModel
from .base import surrogate


class RowSums(NamedTuple):
    """The sums that the optimal q(w) depends on, and the rows that they are made of."""

    gram: Tensor  # G = Pᵀ diag(w) P, (D, D)
    cross: Tensor  # Pᵀ diag(w)(y − mean), (D, P)
    phi: Tensor  # P, (N, D)
    weighted: Tensor  # diag(w) P, (N, D)
    target: Tensor  # y − mean, (N, P)


class Gradients(NamedTuple):
    """Gradients of the data term: parts of ∂/∂P = error·meanᵀ + wPT, and other gradients."""

    error: Tensor  # diag(w) ε, (N, P)
    mix: list[Tensor]  # T of every block, (D_b, D_b)
    prior: Tensor  # gradient by prior variances, (N,)
    log_noise: Tensor  # gradient by the log noise variance, (P,)


def has_row_sums(model: SparseModel) -> bool:
    """Whether the data term of a model is this one; rows must not have known noise either."""
    is_usual = type(model.loss) is ExpectedLogLikelihood and type(model.likelihood) is Gaussian
    is_plain = model.scale is None and not model.has_draws
    return is_usual and is_plain and not any(model.has_prior_covariance)


def row_sums(phi: Tensor, rows: Rows, offset: Tensor) -> RowSums:
    """Return the sums over rows with features (N, D) and mean `offset` of f at w = 0."""
    weighted, target = rows.weighted(phi), (rows.y - offset).to(phi)
    return RowSums(symmetric_product(phi, weighted), weighted.mT @ target, phi, weighted, target)


def term_at(
    model: SparseModel, prior: Tensor, rows: Rows, sums: RowSums, q: WeightMoments
) -> tuple[Tensor, Gradients]:
    """Return the data term at a q(w), () nats, and its gradients, from prior variances (N,)."""
    noise = cast(Gaussian, model.likelihood).noise_variance.detach()  # (P,)
    weight = rows.weighted(torch.ones_like(prior))
    n = weight.sum(dtype=noise.dtype)
    r = sums.target - sums.phi @ q.mean  # (N, P)
    residual = (prior - sums.phi.square().sum(1)).clamp_min(0.0)
    G = diagonal_blocks(sums.gram, q.sizes)
    S = cast(list[Tensor], q.covariances)
    explained = torch.stack([(a * b).sum((-2, -1)) for a, b in zip(G, S, strict=True)]).sum(0)
    misfit = weight @ r.square() + explained + weight @ residual  # (P,)
    value = -0.5 * (n * (LOG_2PI + noise.log()) + misfit / noise).sum()
    return value, Gradients(
        error=(weight[:, None] * r / noise).to(r),
        mix=[less_than_prior(S_b, noise.to(S_b)) for S_b in S],
        prior=-0.5 * weight * noise.reciprocal().sum(),
        log_noise=0.5 * (misfit / noise - n),
    )


def less_than_prior(S: Tensor, noise: Tensor) -> Tensor:
    """Return T = Σ_p (I − S_p)/σ_p², (D, D)."""
    T = -(S / noise[:, None, None]).sum(0)
    T.diagonal().add_(noise.reciprocal().sum())
    return T


def with_gradients(
    model: SparseModel, value: Tensor, d: Gradients, *pairs: tuple[Tensor, Tensor]
) -> Tensor:
    """Return a value with its gradients, including those by the mean and the noise."""
    noise = cast(Gaussian, model.likelihood).log_noise
    known = (*pairs, (model.mean.value, d.error.sum(0)), (noise, d.log_noise))
    return surrogate(value, *((x, dx) for x, dx in known if x.requires_grad))


def by_features(sums: RowSums, q: WeightMoments, d: Gradients) -> Tensor:
    """Return ∂/∂P, (N, D)."""
    blocks = zip(sums.weighted.split(q.sizes, 1), d.mix, strict=True)
    products = [part @ T for part, T in blocks]
    joined = products[0] if len(products) == 1 else torch.cat(products, 1)
    return joined.addmm_(d.error, q.mean.mT)


class OfPoints(NamedTuple):
    """Covariances of rows with inducing points (without orthogonal ones), to make features from."""

    B: Tensor  # (N, M)
    K: Tensor  # (M, M)
    prior: Tensor  # (N,)
    R: Tensor  # L⁻¹ for K = LLᵀ, (M, M), in the type of B, without a graph

    @classmethod
    def of(cls, features: InducingFeatures, X: Tensor) -> OfPoints:
        """Compute the covariances at rows X."""
        G, Z = features.embedded(X)
        K, R = features.condition(Z)
        covariances = features.covariances
        B, prior = covariances.cross(G, Z), covariances.prior(G)
        return cls(B, K, prior, R.to(B.dtype))

    def features(self) -> Tensor:
        """Return P, (N, M)."""
        return times_lower_transposed(self.B, self.R)

    def by_cross(self, sums: RowSums, q: WeightMoments, d: Gradients) -> Tensor:
        """Return ∂/∂B, (N, M)."""
        (T,), m = d.mix, q.mean
        return torch.addmm(d.error @ (m.mT @ self.R), sums.weighted, times_lower(T, self.R))


# ---- of rows that q(w) follows from -------------------------------------------------------------

FindQ = Callable[[Tensor, Tensor], tuple[RowSums, WeightMoments]]
"""Features (N, D) and the mean of f at w = 0 → sums over rows, and the q(w) updated by them."""


def term_of_points(model: SparseModel, X: Tensor, rows: Rows, find_q: FindQ) -> Tensor:
    """Return the data term, () nats with a graph, without orthogonal points."""
    points = OfPoints.of(cast(InducingFeatures, model.drawless_features), X)
    with torch.no_grad():
        sums, q = find_q(points.features(), model.mean.value)
        value, d = term_at(model, points.prior, rows, sums, q)
        dB = points.by_cross(sums, q, d)
        left = torch.cat([*d.mix, q.mean.mT])
        right = torch.cat([sums.gram, d.error.mT @ sums.phi])
        dK = by_gram(symmetric_product(left, right), points.R)
    pairs = (points.B, dB), (points.K, dK.to(points.K)), (points.prior, d.prior)
    return with_gradients(model, value, d, *pairs)


def term_of_features(model: SparseModel, X: Tensor, rows: Rows, find_q: FindQ) -> Tensor:
    """Return the same for any features, which autograd differentiates."""
    basis = model.drawless_features.basis(X)
    with torch.no_grad():
        sums, q = find_q(basis.phi, model.offset(basis))
        value, d = term_at(model, basis.prior, rows, sums, q)
        dP = by_features(sums, q, d)
    shift = () if basis.shift is None else ((basis.shift, d.error),)
    return with_gradients(model, value, d, (basis.phi, dP), (basis.prior, d.prior), *shift)
