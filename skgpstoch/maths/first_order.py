"""torch functions with first derivatives by formulas; second derivatives raise an error.

torch's `once_differentiable` silently allows some second derivatives: those with respect to inputs
that are named in :func:`torch.autograd.grad`, and those by an incoming gradient that is constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

MESSAGE = (
    "Second derivatives are not available, because this function has a formula for its "
    "first derivatives only. Take finite differences of first derivatives."
)

Backward = Callable[..., tuple[Tensor | None, ...]]


class _Final(torch.autograd.Function):
    """The identity on a first derivative; differentiating it raises an error."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, *others: Tensor) -> Tensor:
        return slope.view_as(slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(MESSAGE)


def first_order(backward: Backward) -> Backward:
    """Decorate the `backward` of a function so that second derivatives raise an error."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            slopes = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return slopes
        graph = *grads, *ctx.saved_tensors
        return tuple(s if s is None else cast(Tensor, _Final.apply(s, *graph)) for s in slopes)

    return once


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return value.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), half = grads, len(ctx.saved_tensors) // 2
        given = [
            (weight.reshape(*weight.shape, *[1] * (dx.ndim - weight.ndim)) * dx)
            .sum_to_size(x.shape)
            .to(x)
            for x, dx in zip(ctx.saved_tensors[:half], ctx.saved_tensors[half:], strict=True)
        ]
        return None, *given, *(None for _ in given)


def with_slopes(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """Return values of rows (N,) with derivatives (N, P) by tensors of shape (N, P), (P,) or ().

    Or values of any shape with derivatives of that shape. The graph of the values is left out.
    """
    tensors, given = zip(*slopes, strict=True)
    return cast(Tensor, _Known.apply(value, *tensors, *given))
