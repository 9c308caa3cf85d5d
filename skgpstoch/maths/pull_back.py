"""Gradients of weighted sums, without what torch imports for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pulled_back(
    outputs: Sequence[Tensor], weights: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients by parameters of Σ weights·outputs; zeros where there is no graph.

    With weights as an argument of its own, :func:`torch.autograd.grad` imports sympy, which takes
    half a second of the first fit and adds a filter of warnings to the process.
    """
    pairs = zip(outputs, weights, strict=True)
    total = torch.stack([torch.dot(a.reshape(-1), w.reshape(-1)) for a, w in pairs]).sum()
    return torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
