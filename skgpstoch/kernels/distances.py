"""Distances between rows, and functions of them, for stationary kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.arrays import row_blocks
from ..data.devices import QUICKER, either, is_host
from ..maths.first_order import first_order

Profile = Callable[[Tensor], tuple[Tensor, Tensor]]

FARTHEST = 1e30
"""Largest scaled input, and largest r²; its squares and products are still finite."""

DIRECT_COLUMNS = 32
"""Up to so many columns, r² is a sum of squared differences: exact, and as fast as a product."""

CANCELLED = 1e-6
"""Share of ‖a‖² + ‖b‖² below which the expanded r² has lost digits and is computed again."""

BLOCK_PAIRS = 1 << 14
"""Pairs of rows that are computed again at a time."""

TOUCHING = 1e-14
"""Distance, in length-scales, below which the slope at a cusp is set to 0, as it is negligible."""

STEEP = 1e6
"""Slope times squared norm above which a gradient by matrix products loses half of its digits."""


def squared_distance(X: Tensor, Y: Tensor | None, length_scale: Tensor | float = 1.0) -> Tensor:
    r"""Squared Euclidean distances of scaled rows, without an (N, M, D) intermediate.

    .. math:: r^2_{ij} = \|a_i - b_j\|^2, \quad
              a_i = (x_i - \bar y) / \ell, \quad b_j = (y_j - \bar y) / \ell

    Parameters
    ----------
    X : Tensor of shape (N, D)
    Y : Tensor of shape (M, D) or None
        None stands for ``X`` and makes the diagonal exactly zero.
    length_scale : Tensor of shape () or (D,), or float, default=1.0

    Returns
    -------
    Tensor of shape (N, M)
        Non-negative, in the dtype of ``X``, computed in float64.

    Raises
    ------
    ValueError
        If the numbers of columns of ``X``, ``Y`` and ``length_scale`` differ.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> squared_distance(X, None, 5.0)
    tensor([[0., 1.],
            [1., 0.]])
    """
    return radial(X, Y, length_scale, identity)


def wrong_scales(n_scales: int, inputs: str, name: str = "kernel") -> str:
    """Say that a kernel has another number of length-scales than its inputs have numbers."""
    return (
        f"{name} has {n_scales} length-scales, but {inputs}. Give one length-scale for each of "
        "them, or one for all."
    )


def scaled_rows(X: Tensor, Y: Tensor | None, length_scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return X and Y in units of the length-scale, less the mean of Y; r² does not change."""
    reference = X if Y is None else Y
    if X.shape[1] != reference.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns, but Y has {reference.shape[1]}.")
    if isinstance(length_scale, Tensor) and length_scale.numel() not in (1, X.shape[1]):
        raise ValueError(wrong_scales(length_scale.numel(), f"X has {X.shape[1]} columns"))
    centre = reference.detach().double().mean(0)  # (D,)

    def scaled(rows: Tensor) -> Tensor:
        return ((rows.double() - centre) / length_scale).clamp(-FARTHEST, FARTHEST)

    A = scaled(X)  # (N, D)
    return A, A if Y is None else scaled(Y)  # (M, D)


def squared(A: Tensor, B: Tensor) -> Tensor:
    """Return ‖a_i − b_j‖², (N, M), accurate to the last digits even for rows that are close."""
    # Counting the close pairs would take an accelerator longer than a small table of differences.
    is_small = not is_host(A.device) and len(A) * len(B) * A.shape[1] <= QUICKER
    if A.shape[1] <= DIRECT_COLUMNS or is_small:
        return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist").square_()
    norms = A.square().sum(1, keepdim=True) + B.square().sum(1)
    r2 = torch.addmm(norms, A, B.T, alpha=-2)
    pairs = (r2 < CANCELLED * norms).nonzero()  # few, unless many rows are equal
    for i, j in (block.unbind(1) for block in pairs.split(BLOCK_PAIRS)):
        r2[i, j] = (A[i] - B[j]).square_().sum(1)
    return r2


class _Radial(torch.autograd.Function):
    """k(r²) of scaled rows for a profile r² ↦ (k, dk/dr²); the backward pass keeps only dk/dr²."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, profile: Profile, dtype: torch.dtype) -> Tensor:
        r2 = squared(A, B).to(dtype).clamp_(max=FARTHEST)
        if A is B:
            r2.fill_diagonal_(0.0)
        k, slope = profile(r2)
        ctx.save_for_backward(A, B, slope)
        return k

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        A, B, slope = ctx.saved_tensors
        W = (grads[0] * slope).to(A.dtype)  # dr²_ij = 2 (a_i − b_j)ᵀ(da_i − db_j)
        wanted = ctx.needs_input_grad[:2]
        if slope.dtype != torch.float64 or not slope.numel() or not A.numel():
            return *_pulled(A, B, W, wanted), None, None
        lost = _cancels(A, B, slope)
        size = W.numel() * A.shape[1]
        found = either(
            lost, lambda: _pulled_directly(A, B, W), lambda: _pulled(A, B, W, wanted), size
        )
        return *found, None, None


def _cancels(A: Tensor, B: Tensor, slope: Tensor) -> Tensor:
    """Whether matrix products would lose the differences of rows: far from 0, or at a cusp."""
    norm = torch.maximum(A.abs().max(), B.abs().max()).square()
    low, high = slope.aminmax()
    return norm * torch.maximum(-low, high) > STEEP


def _pulled(
    A: Tensor, B: Tensor, W: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return Σⱼ 2Wᵢⱼ (aᵢ − bⱼ), (N, D), and Σᵢ 2Wᵢⱼ (bⱼ − aᵢ), (M, D); None if not wanted."""
    A_bar = 2.0 * (W.sum(1, keepdim=True) * A - W @ B) if wanted[0] else None
    B_bar = 2.0 * (W.sum(0)[:, None] * B - W.mT @ A) if wanted[1] else None
    return A_bar, B_bar


def _pulled_directly(A: Tensor, B: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sums column by column; an accelerator computes many columns at a time."""
    A_bar, B_bar = torch.empty_like(A), torch.empty_like(B)
    if not is_host(A.device):
        for block in row_blocks(A.shape[1], max(1, QUICKER // W.numel())):
            pulls = (A[:, None, block] - B[:, block]).mul_(W[..., None])
            A_bar[:, block], B_bar[:, block] = 2.0 * pulls.sum(1), -2.0 * pulls.sum(0)
        return A_bar, B_bar
    for d in range(A.shape[1]):
        pull = (A[:, d, None] - B[:, d]).mul_(W)
        A_bar[:, d], B_bar[:, d] = 2.0 * pull.sum(1), -2.0 * pull.sum(0)
    return A_bar, B_bar


def identity(r2: Tensor) -> tuple[Tensor, Tensor]:
    return r2, r2.new_ones(()).expand_as(r2)


def rbf(r2: Tensor) -> tuple[Tensor, Tensor]:
    k = (-0.5 * r2).exp_()
    return k, -0.5 * k


def matern_1(r2: Tensor) -> tuple[Tensor, Tensor]:
    a = r2.sqrt()
    k = torch.exp(-a)
    return k, torch.where(a > TOUCHING, -0.5 * k / a, 0.0)  # no slope at the cusp


def matern_3(r2: Tensor) -> tuple[Tensor, Tensor]:
    a = (3.0 * r2).sqrt_()
    e = a.neg().exp_()
    return a.add_(1.0).mul_(e), e.mul_(-1.5)


def matern_5(r2: Tensor) -> tuple[Tensor, Tensor]:
    a = (5.0 * r2).sqrt_()
    e = a.neg().exp_()
    once = (1.0 + a).mul_(e)
    return a.square_().mul_(e).div_(3.0).add_(once), once.mul_(-5.0 / 6.0)


MATERN: dict[float, Profile] = {0.5: matern_1, 1.5: matern_3, 2.5: matern_5, math.inf: rbf}


def safe_power(K: Tensor, exponent: float) -> Tensor:
    """Return a power; set the gradient of a root at 0 to 0, where it would be infinite."""
    if not 0.0 < exponent < 1.0:
        return K**exponent
    zero = K == 0.0
    return (K.masked_fill(zero, 1.0) ** exponent).masked_fill(zero, 0.0)


def radial(X: Tensor, Y: Tensor | None, length_scale: Tensor | float, profile: Profile) -> Tensor:
    """Return a function of the squared distances of scaled rows, (N, M), in the type of X."""
    return _Radial.apply(*scaled_rows(X, Y, length_scale), profile, X.dtype)
