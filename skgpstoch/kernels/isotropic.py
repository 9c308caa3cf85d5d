"""Compute very many values of a kernel κ(r²), with distances from a matrix product.

With a = [x, ‖x‖², 1] and b = [−2z, 1, ‖z‖²]/ℓ², aᵀb = ‖x − z‖²/ℓ², in the dtype of the data. This
takes a tenth of the time of distances that are accurate to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.arrays import row_blocks
from ..maths.first_order import first_order
from . import expressions as kernels
from .distances import Profile, rbf
from .expressions import Kernel

BLOCK_VALUES = 1 << 18
"""Kernel values at a time in sums: they fit into a cache, and backward passes recompute them."""


class Isotropic(NamedTuple):
    """c κ(r²/ℓ²)."""

    variance: Tensor | float  # c, ()
    length_scale: Tensor  # ℓ, () or one per column
    profile: Profile  # r² ↦ (κ, dκ/dr²)


def as_isotropic(kernel: Kernel) -> Isotropic | None:
    """Return a kernel as a constant times a function of distances; None if it is not one."""
    constant, shape = 1.0, kernel
    if isinstance(kernel, kernels.Product):
        first, second = kernel.k1, kernel.k2
        if isinstance(second, kernels.Constant):
            first, second = second, first
        if not isinstance(first, kernels.Constant):
            return None
        constant, shape = first.constant_value, second
    if not isinstance(shape, kernels.Radial):
        return None
    return Isotropic(constant, shape.length_scale, shape.profile)


def left(X: Tensor) -> Tensor:
    """[x, ‖x‖², 1], (..., N, L + 2)."""
    return torch.cat([X, X.square().sum(-1, keepdim=True), torch.ones_like(X[..., :1])], -1)


def right(Z: Tensor, length_scale: Tensor | float = 1.0) -> Tensor:
    """[−2z, 1, ‖z‖²]/ℓ², (..., M, L + 2)."""
    whole = torch.cat([-2.0 * Z, torch.ones_like(Z[..., :1]), Z.square().sum(-1, keepdim=True)], -1)
    return whole / length_scale**2


def weighted_sums(A: Tensor, B: Tensor, W: Tensor, profile: Profile) -> Tensor:
    """Return Σ_p W_pm κ(A_np ᵀB_m), (N, M), with weights W (J, M).

    A (N, J, L + 2) is :func:`left` of the rows, and B (M, L + 2) :func:`right` of the points.
    """
    return _WeightedSums.apply(A, B, W, profile)


def weighted_pairs(X: Tensor, W: Tensor, length_scale: Tensor, profile: Profile) -> Tensor:
    """Return Σ_pq W_pq κ(‖x_np − x_nq‖²/ℓ²), (N,), for X (N, J, L), symmetric W and scalar ℓ."""
    return _WeightedPairs.apply(X, W, length_scale.to(X), profile)


def pair_distances(X: Tensor, length_scale: Tensor) -> Tensor:
    """Return r² of all pairs within each row of X (N, J, L): (N, J, J), with a diagonal of 0."""
    X = X - X.mean(1, keepdim=True)  # products of numbers far from 0 lose digits
    r2 = left(X) @ right(X, length_scale).mT
    r2.diagonal(dim1=-2, dim2=-1).zero_()
    return r2


def value(r2: Tensor, profile: Profile) -> Tensor:
    """Return κ and overwrite r²."""
    r2 = r2.clamp_(min=0.0)
    return r2.mul_(-0.5).exp_() if profile is rbf else profile(r2)[0]


def with_gradient(r2: Tensor, profile: Profile) -> Tensor:
    """Return κ; the backward pass keeps only its slope."""
    return _Profile.apply(r2.clamp_min(0.0), r2, profile)


class _Profile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r2: Tensor, kept: Tensor, profile: Profile) -> Tensor:
        K, slope = profile(r2)
        ctx.save_for_backward(slope, kept)  # which the graph of r2 has in memory anyway
        return K

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        slope, _ = ctx.saved_tensors
        return grads[0] * slope, None, None


def blocks_of(A: Tensor, n_points: int) -> Iterator[slice]:
    """Return blocks of rows (N, J, L)."""
    return row_blocks(len(A), max(1, BLOCK_VALUES // max(1, A.shape[1] * n_points)))


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, W: Tensor, profile: Profile) -> Tensor:
        ctx.save_for_backward(A, B, W)
        ctx.profile = profile
        out = A.new_empty(len(A), len(B))
        for rows in blocks_of(A, len(B)):
            K = value(A[rows] @ B.mT, profile)
            out[rows] = K.mul_(W).sum(1)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        A, B, W = ctx.saved_tensors
        A_bar = torch.empty_like(A) if ctx.needs_input_grad[0] else None
        B_bar, W_bar = torch.zeros_like(B), torch.zeros_like(W)
        for rows in blocks_of(A, len(B)):
            K, slope = ctx.profile((A[rows] @ B.mT).clamp_(min=0.0))
            out_bar = grads[0][rows, None]
            W_bar += K.mul_(out_bar).sum(0)
            r2_bar = slope.mul_(out_bar).mul_(W)
            B_bar += r2_bar.flatten(0, 1).mT @ A[rows].flatten(0, 1)
            if A_bar is not None:
                A_bar[rows] = r2_bar @ B
        return A_bar, B_bar, W_bar, None


class _WeightedPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, W: Tensor, length_scale: Tensor, profile: Profile) -> Tensor:
        ctx.save_for_backward(X, W, length_scale)
        ctx.profile = profile
        out = X.new_empty(len(X))
        for rows in blocks_of(X, len(W)):
            K = value(pair_distances(X[rows], length_scale), profile)
            out[rows] = K.flatten(1) @ W.flatten()
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        X, W, length_scale = ctx.saved_tensors
        X_bar = torch.empty_like(X) if ctx.needs_input_grad[0] else None
        W_bar, length_bar = torch.zeros_like(W), X.new_zeros(())
        for rows in blocks_of(X, len(W)):
            out_bar, x = grads[0][rows], X[rows]
            r2 = pair_distances(x, length_scale).clamp_(min=0.0)
            K, slope = ctx.profile(r2)
            W_bar += (out_bar @ K.flatten(1)).view_as(W)
            of_r2 = slope.mul_(W)  # (b, J, J)
            length_bar -= 2.0 / length_scale * (out_bar @ (of_r2 * r2).flatten(1).sum(1))
            if X_bar is not None:  # dr²_pq = 2(x_p − x_q)ᵀ(dx_p − dx_q)/ℓ², each pair twice
                pull = of_r2.sum(2, keepdim=True) * x - of_r2 @ x
                X_bar[rows] = 4.0 / length_scale**2 * out_bar[:, None, None] * pull
        return X_bar, W_bar, length_bar, None
