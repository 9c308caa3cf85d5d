"""Parameters of a fitted module, for one that starts from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..kernels import Kernel
from .checkpoint_key import changed_shape, representations
from .plan import given_number


def fitted_number(estimator: Any, name: str, n_fitted: int) -> int:
    """Of points that were fitted before, unless a parameter asks for others since."""
    before = getattr(estimator, "_fitted_parameters", {}).get(name)
    if representations(estimator)[name] == before:  # there may have been fewer to choose from
        return n_fitted
    return given_number(getattr(estimator, name), name, n_fitted)


def check_unchanged(estimator: Any, names: tuple[str, ...]) -> None:
    """Raise a ValueError where a warm start is asked for what it cannot do."""
    changed = changed_shape(estimator)
    if any(f"{name}=" in changed for name in names):
        raise ValueError(
            f"warm_start=True needs layers, patches and kernels as they were fitted before, but "
            f"{changed} asks for others. Set it back, or fit with warm_start=False."
        )


def load_fitted(module: nn.Module, fitted: nn.Module, changed: str) -> None:
    """Start from the parameters of a fitted module, and from its buffers but those of kernels.

    `changed` says, for the error, which parameters of the estimator have changed since.

    Raises
    ------
    ValueError
        If it has other parameters.
    """
    given, wanted = dict(fitted.named_parameters()), dict(module.named_parameters())
    same = given.keys() == wanted.keys()
    if not same or any(given[name].shape != wanted[name].shape for name in wanted):
        raise ValueError(
            "warm_start=True needs a model of the shape that was fitted before, but "
            f"{changed or 'the shape of y'} asks for another one. Set it back, or fit with "
            "warm_start=False."
        )
    buffers = dict(module.named_buffers())
    of_kernels = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, Kernel))
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
        for name, buffer in fitted.named_buffers():
            fits = name in buffers and buffers[name].shape == buffer.shape
            if fits and not name.startswith(of_kernels):
                buffers[name].copy_(buffer)
