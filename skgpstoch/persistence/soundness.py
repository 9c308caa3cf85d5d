"""Check the objects in a file: numbers must be finite, and modules must have no hooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import nn

from .registry import PACKAGE, SKLEARN_KERNELS


def check_sound(value: Any) -> None:
    """Raise a ValueError if a module has hooks, or a number for predictions is not finite."""
    if isinstance(value, nn.Module):
        hooks = [name for name, field in vars(value).items() if "hook" in name and field]
        if any(isinstance(vars(value)[name], dict) for name in hooks):
            raise ValueError(
                f"{type(value).__name__} has {hooks}, which a file cannot contain. Remove "
                "the hooks before saving"
            )
    for name, numbers in numbers_of(value):
        if not is_finite(numbers):
            raise ValueError(f"{type(value).__name__}.{name} is not finite: {numbers!r:.60}")


def numbers_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that must be finite, with their names.

    Leave out a bound on the evidence, which may be NaN, and bounds of hyper-parameters and
    parameters of estimators, which may be infinite.
    """
    if isinstance(value, nn.Module):
        yield from value._parameters.items()
        yield from ((name, t) for name, t in value._buffers.items() if t is not None and t.ndim)
    elif isinstance(value, tuple):
        fields = zip(getattr(value, "_fields", ()), value, strict=False)
        yield from ((name, t) for name, t in fields if isinstance(t, torch.Tensor))
    elif isinstance(value, SKLEARN_KERNELS):
        yield from ((name, v) for name, v in vars(value).items() if not name.endswith("_bounds"))
    elif isinstance(value, BaseEstimator) and type(value).__module__.startswith(PACKAGE):
        params = value.get_params(deep=False).items()
        yield from ((name, v) for name, v in params if isinstance(v, float) and math.isnan(v))


def is_finite(numbers: Any) -> bool:
    """Tell whether numbers are finite; any other type of parameter counts as finite."""
    if isinstance(numbers, torch.Tensor):
        return not numbers.is_floating_point() or bool(torch.isfinite(numbers).all())
    if isinstance(numbers, np.ndarray):
        return numbers.dtype.kind != "f" or bool(np.isfinite(numbers).all())
    if isinstance(numbers, list | tuple):
        return all(map(is_finite, numbers))
    return not isinstance(numbers, float) or math.isfinite(numbers)
