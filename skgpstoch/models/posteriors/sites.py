"""Compute the q(w) that the sites of rows imply, from sums over rows and small matrices.

G (D, D) and c (D, P) are the likelihood's contributions to the natural parameters of q(w). Then

    S_b = (I + G_bb)⁻¹,   m = (I + G)⁻¹c,

where S_b are the covariances of blocks of features. :mod:`skgpstoch.objectives.elbo` defines G
and c.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...maths.linalg import (
    add_diagonal,
    cholesky,
    inverse_cholesky,
    symmetric_product_of_lower,
    tri_solve,
)
from .blocks import WeightMoments


class Sites(NamedTuple):
    """The data's contributions to the natural parameters of q(w)."""

    precision: Tensor  # G, (P, D, D)
    cross: Tensor  # c, (D, P)

    def lerp(self, other: Sites, weight: float) -> Sites:
        """Interpolate towards other sites."""
        return Sites(*(torch.lerp(a, b, weight) for a, b in zip(self, other, strict=True)))

    def __add__(self, other: tuple) -> Sites:
        return Sites(*(a + b for a, b in zip(self, other, strict=True)))


class RowSites(NamedTuple):
    """Contributions of each row: κ/β, and λ/β with λ = κμ + α."""

    precision: Tensor  # (N, P)
    cross: Tensor  # (N, P)

    def lerp(self, other: RowSites, weight: float) -> RowSites:
        """Interpolate towards other sites."""
        return RowSites(*(torch.lerp(a, b, weight) for a, b in zip(self, other, strict=True)))

    def of_weights(self, phi: Tensor, offset: Tensor) -> Sites:
        """Return G = Pᵀ diag(κ) P/β and c = Pᵀ(λ − κ·mean)/β, for features phi (N, D).

        `offset` is the mean of f at w = 0.
        """
        G = phi.mT @ (self.precision.mT[..., None] * phi)
        return Sites(G, phi.mT @ (self.cross - self.precision * offset))


def diagonal_blocks(A: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """Return the diagonal block A_bb of every block b."""
    ends = itertools.accumulate(sizes)
    return [A[..., e - s : e, e - s : e] for s, e in zip(sizes, ends, strict=True)]


InverseFactor = Callable[[Tensor], Tensor]
"""A = LLᵀ ↦ L⁻¹."""


def careful_inverse_factor(A: Tensor) -> Tensor:
    """Return L⁻¹ for a posterior precision A = LLᵀ; add jitter if necessary, or raise an error."""
    R, failed = inverse_cholesky(A)
    if not bool(failed.any()):
        return R
    L = cholesky(A, "posterior precision of the inducing variables")
    return tri_solve(L, torch.eye(A.shape[-1], dtype=L.dtype, device=L.device).expand_as(L))


def optimal_moments(
    sites: Sites,
    sizes: tuple[int, ...],
    prior_blocks: tuple[bool, ...],
    inverse_factor: InverseFactor = careful_inverse_factor,
    dtype: torch.dtype = torch.float64,
) -> WeightMoments:
    """Return the q(w) that sites imply: m = (I + G)⁻¹c and S_b = (I + G_bb)⁻¹ = R_bᵀR_b.

    `sizes` are the D_b of the blocks. In `prior_blocks`, S_b stays I. The result has the type
    `dtype`; everything but S is computed in float64.
    """
    mean, inverses = optimal_mean(sites, sizes, inverse_factor)
    kl = 0.5 * mean.square().sum()
    covariances: list[Tensor | None] = []
    for b, (size, is_prior) in enumerate(zip(sizes, prior_blocks, strict=True)):
        if is_prior:
            covariances.append(None)
            continue
        if b == len(inverses):
            precision = diagonal_blocks(sites.precision, sizes)[b]
            inverses.append(inverse_factor(add_diagonal(precision, 1.0)))
        R = inverses[b]
        log_det = -2.0 * R.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # log|I + G_bb|
        kl = kl + 0.5 * (R.square().sum((-2, -1)) - size + log_det).sum()
        R = R.to(dtype)
        covariances.append(symmetric_product_of_lower(R, R))
    return WeightMoments(mean.to(dtype), tuple(covariances), sizes, kl)


def optimal_mean(
    sites: Sites, sizes: tuple[int, ...], inverse_factor: InverseFactor = careful_inverse_factor
) -> tuple[Tensor, list[Tensor]]:
    """Return m = (I + G)⁻¹c, (D, P), and [R_0] with R_0ᵀR_0 = (I + G_00)⁻¹."""
    rhs = sites.cross.mT[..., None]  # (P, D, 1)
    R = inverse_factor(add_diagonal(diagonal_blocks(sites.precision, sizes)[0], 1.0))
    mean = eliminate(R, sites.precision, sizes, rhs, inverse_factor)
    return mean[..., 0].mT, [R]


def eliminate(
    R: Tensor, G: Tensor, sizes: tuple[int, ...], rhs: Tensor, inverse_factor: InverseFactor
) -> Tensor:
    """Return (I + G)⁻¹ rhs by Schur complements, block after block, given RᵀR = (I + G_00)⁻¹.

    Conjugate gradients with the blocks as preconditioner would need 20 to 40 steps, because the
    blocks are strongly correlated. That would cost more.
    """
    if len(sizes) == 1:
        return R.mT @ (R @ rhs)
    M, M2 = sizes[:2]
    W = R @ G[..., :M, M:]
    upper, lower = rhs.split([M, rhs.shape[-2] - M], -2)
    z = R @ upper
    S = G[..., M:, M:] - W.mT @ W
    R_v = inverse_factor(add_diagonal(S[..., :M2, :M2], 1.0))
    x_v = eliminate(R_v, S, sizes[1:], lower - W.mT @ z, inverse_factor)
    return torch.cat([R.mT @ (z - W @ x_v), x_v], -2)


def conjugate_sites(gram: Tensor, cross: Tensor, noise: Tensor) -> Sites:
    """Return G and c from PᵀP (D, D), Pᵀy (D, P) and the noise variances, (P,)."""
    return Sites(gram / noise[:, None, None], cross / noise)
