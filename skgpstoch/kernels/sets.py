"""Covariances within each of many small sets of rows, (b, q, d) → (b, q, q).

Distances come from products of rows that are centred on the set's second one, the nearest neighbour
of the first: neighbours are near each other and lose no digits, however far away the first row is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..maths.first_order import first_order
from . import expressions as kernels
from .distances import FARTHEST, Profile, identity, safe_power
from .expressions import Kernel
from .tied import Tied


def within(kernel: Kernel, S: Tensor) -> Tensor:
    """Return the covariances within each set S (b, q, d): (b, q, q), in the type of S."""
    match kernel:
        case kernels.Sum():
            return within(kernel.k1, S) + within(kernel.k2, S)
        case kernels.Product():
            return within(kernel.k1, S) * within(kernel.k2, S)
        case kernels.Exponentiation():
            return safe_power(within(kernel.kernel, S), kernel.exponent)
        case Tied():
            return within(kernel.kernel, S)
        case kernels.Constant():
            return kernel.constant_value.to(S)[None, None, None]
        case kernels.WhiteNoise():
            return kernel.noise_level.to(S) * torch.eye(S.shape[1], dtype=S.dtype, device=S.device)
        case kernels.DotProduct():
            return S @ S.mT + kernel.sigma_0.to(S).square()
        case kernels.Radial():
            return _RadialWithin.apply(centred(S, kernel.length_scale), kernel.profile)
        case kernels.RationalQuadratic() | kernels.ExpSineSquared():
            return kernel.of_distances(_RadialWithin.apply(centred(S, kernel.unit), identity))
        case _:
            raise TypeError(f"{type(kernel).__name__} has no covariances within sets of rows.")


def centred(S: Tensor, unit: Tensor) -> Tensor:
    """Return rows of sets S (b, q, d) less each set's second row, in units, and limited."""
    most = math.sqrt(FARTHEST)
    return ((S - S[:, 1:2] if S.shape[1] > 1 else S - S) / unit.to(S)).clamp(-most, most)


class _RadialWithin(torch.autograd.Function):
    """κ(‖a_i − a_j‖²) of each set A (b, q, e); the backward pass keeps only the slope of κ."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, profile: Profile) -> Tensor:
        norms = A.square().sum(-1)
        r2 = torch.baddbmm(norms[:, None], A, A.mT, alpha=-2.0).add_(norms[:, :, None])
        r2.clamp_(0.0, FARTHEST).diagonal(dim1=-2, dim2=-1).zero_()
        K, slope = profile(r2)
        ctx.save_for_backward(A, slope)
        return K

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        A, slope = ctx.saved_tensors
        W = grads[0] * slope  # dr²_ij = 2 (a_i − a_j)ᵀ(da_i − da_j)
        W = W + W.mT
        return torch.baddbmm(W.sum(-1, keepdim=True) * A, W, A, alpha=-1.0).mul_(2.0), None


def nearness(kernel: Kernel, n_inputs: int) -> Tensor:
    """Return weights of squared differences, (d,), by which covariance falls near a row.

    For one profile, RBF or rational quadratic, 1 − k(x, x′)/k(x, x) = Σ_d w_d (x_d − x′_d)² to
    second order, up to a common factor. Profiles of sums and products count alike, as 1/ℓ_d²,
    whatever their curvature; terms of a sum count by their variances. All are 0 if nothing falls
    with distance, as in a linear or a periodic kernel.
    """
    return _fall(kernel, torch.zeros(n_inputs, dtype=torch.float64, device="cpu"))[1]


@torch.no_grad()
def _fall(kernel: Kernel, none: Tensor) -> tuple[Tensor, Tensor]:
    """Return a kernel's variance, (), and its weights relative to it."""
    one = none.new_ones(())
    match kernel:
        case kernels.Sum():
            (c1, w1), (c2, w2) = _fall(kernel.k1, none), _fall(kernel.k2, none)
            return c1 + c2, (c1 * w1 + c2 * w2) / (c1 + c2).clamp_min(1e-300)
        case kernels.Product():
            (c1, w1), (c2, w2) = _fall(kernel.k1, none), _fall(kernel.k2, none)
            return c1 * c2, w1 + w2
        case kernels.Exponentiation():
            c, w = _fall(kernel.kernel, none)
            return c**kernel.exponent, kernel.exponent * w
        case Tied():
            return _fall(kernel.kernel, none)
        case kernels.Constant():
            return kernel.constant_value.double().cpu(), none
        case kernels.Radial() | kernels.RationalQuadratic():
            return one, (none + 1.0) / kernel.length_scale.double().cpu().square()
        case _:
            return one, none
