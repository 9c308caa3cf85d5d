"""Kernels as functions of squared distances, for very many pairs: in the type of the data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernel
from ..maths.distances import MATERN, Profile, rbf, safe_power, safe_sqrt

ISOTROPIC = (kernels.RBF, kernels.Matern, kernels.RationalQuadratic, kernels.ExpSineSquared)
JOINED = (kernels.Sum, kernels.Product, kernels.Exponentiation)


def is_isotropic(kernel: Kernel) -> bool:
    """Whether a kernel is a function of the distance alone."""
    parts = [part for part in kernel.modules() if not isinstance(part, JOINED)]
    return all(
        isinstance(part, kernels.Constant)
        or (isinstance(part, ISOTROPIC) and part.length_scale.numel() == 1)
        for part in parts
    )


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """‖a − b‖² by products, (..., N, M), to the digits that those of ‖a‖² + ‖b‖² have."""
    norms = A.square().sum(-1)[..., :, None] + B.square().sum(-1)[..., None, :]
    return (norms - 2.0 * (A @ B.mT)).clamp_min(0.0)


def of_distances(kernel: Kernel, r2: Tensor) -> Tensor:
    """The covariances of an isotropic kernel, given squared distances of any shape."""
    return _of(kernel, r2).expand_as(r2)


def _of(kernel: Any, r2: Tensor) -> Tensor:
    if isinstance(kernel, kernels.Constant):
        return kernel.constant_value.to(r2)
    if isinstance(kernel, kernels.Sum):
        return _of(kernel.k1, r2) + _of(kernel.k2, r2)
    if isinstance(kernel, kernels.Product):
        return _of(kernel.k1, r2) * _of(kernel.k2, r2)
    if isinstance(kernel, kernels.Exponentiation):
        return safe_power(_of(kernel.kernel, r2), kernel.exponent)
    length_scale = kernel.length_scale.to(r2).reshape(())
    if isinstance(kernel, kernels.ExpSineSquared):
        angle = math.pi * safe_sqrt(r2) / kernel.periodicity.to(r2)
        return torch.exp(-2.0 * (torch.sin(angle) / length_scale).square())
    scaled = r2 / length_scale.square()
    if isinstance(kernel, kernels.RationalQuadratic):
        alpha = kernel.alpha.to(r2)
        return torch.exp(-alpha * torch.log1p(scaled / (2.0 * alpha)))
    return _Profile.apply(scaled, MATERN[kernel.nu] if isinstance(kernel, kernels.Matern) else rbf)


class _Profile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r2: Tensor, profile: Profile) -> Tensor:
        k, slope = profile(r2)
        ctx.save_for_backward(slope)
        return k

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None
