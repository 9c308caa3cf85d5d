"""Gradients of predictions with respect to the inputs of their rows.

The moments of a row do not depend on other rows. So the gradient of their sum over rows holds each
row's own gradient in the row's line, and one backward pass per output finds all gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data.devices import BLOCK_ROWS, map_blocks

Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
"""X (N, d) → mean and variance, each (N, P)."""


class MomentGradients(NamedTuple):
    """Mean and standard deviation (N, P), and their gradients by the inputs (N, P, d)."""

    mean: np.ndarray
    std: np.ndarray
    mean_gradient: np.ndarray
    std_gradient: np.ndarray

    def scaled(self, offset: np.ndarray, scale: np.ndarray) -> MomentGradients:
        """Return the gradients for targets times `scale` plus `offset`, each (P,)."""
        slope = scale[:, None]
        return MomentGradients(
            self.mean * scale + offset,
            self.std * scale,
            self.mean_gradient * slope,
            self.std_gradient * slope,
        )


@torch.inference_mode(False)
@torch.enable_grad()
def moment_gradients(moments: Moments, X: Tensor) -> tuple[Tensor, ...]:
    """Return mean, std (N, P), ∂mean/∂x and ∂std/∂x (N, P, d); 0 where the std is 0."""
    X = X.clone().requires_grad_()
    mean, var = moments(X)
    of_mean, of_var = row_gradients(mean, X), row_gradients(var, X)
    std = var.detach().sqrt()
    # d√v = dv/(2√v)
    of_std = torch.where(std > 0.0, 0.5 / std, 0.0)[..., None] * of_var
    return mean.detach(), std, of_mean, of_std


def row_gradients(values: Tensor, X: Tensor) -> Tensor:
    """Return ∂values[i, p]/∂X[i], (N, P, d); 0 for values that do not depend on X."""
    if not values.requires_grad:
        return X.new_zeros(*values.shape, X.shape[1])
    columns = [
        torch.autograd.grad(column.sum(), X, retain_graph=True, materialize_grads=True)[0]
        for column in values.unbind(1)
    ]
    return torch.stack(columns, 1)


def gradients_by_blocks(
    moments: Moments, X: Tensor, device: torch.device, size: int = BLOCK_ROWS
) -> MomentGradients:
    """Return :func:`moment_gradients` of many rows as arrays, computed in blocks on the device."""
    whole: list[np.ndarray] = []

    def compute(block: slice) -> None:
        parts = [part.cpu().numpy() for part in moment_gradients(moments, X[block].to(device))]
        if not whole:
            whole.extend(np.empty((len(X), *part.shape[1:])) for part in parts)
        for array, part in zip(whole, parts, strict=True):
            array[block] = part

    map_blocks(compute, len(X), size)
    return MomentGradients(*whole)
