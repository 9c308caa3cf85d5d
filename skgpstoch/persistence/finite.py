"""Tell whether numbers are finite, which ones need not be, and which ones are positive."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .registry import is_parameter

WITH_NUMBERS = (np.ndarray, np.floating, float)

MAY_BE_UNKNOWN = re.compile(
    r"bound|curve|densit|elbo|evidence|likelihood|loss|patience|score|\W(error|moved)\b"
)
"""Fields for people to read or for fits, which may be NaN or infinite and change no prediction."""

IN_RECORDS = re.compile(r"\W(cdf|gain|gap|latent_std|limit|log_p|value)\b")
"""The same, but not of modules, whose parameters may have these names."""

MAY_BE_INFINITE = re.compile(
    r"\.(high|low|noise_variance_|nu)\b|\._buffers\['log_(constant_value|noise_level|sigma_0)'\]"
)
"""Fields of laws and kernels that are infinite where nothing bounds them, and a square to read.

And logarithms of what kernels may have fixed at 0.
"""

ABOVE_ZERO = {"GaussianProcessRegressor": "_y_train_std", "Scaling": "scale"}
"""Of each class, a field that is positive: deviations would be negative, and intervals turned."""


class Unknown(NamedTuple):
    """Where in an object a number is not finite, and whether one is NaN."""

    where: str
    is_nan: bool


def unknown_in(value: Any) -> Unknown | None:
    """Return whether an array or a number itself is not finite; a tensor's array tells it first."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return unknown_halves(value.view(torch.int16).numpy())
    if not isinstance(value, WITH_NUMBERS) or np.asarray(value).dtype.kind != "f":
        return None
    return None if np.isfinite(value).all() else Unknown("", bool(np.isnan(value).any()))


def unknown_halves(bits: np.ndarray) -> Unknown | None:
    """Return the same of bfloat16 numbers, by their bits: all ones in the exponent."""
    blocks = np.array_split(bits.ravel(), 64)
    largest = max((int((b.astype(np.int32) & 0x7FFF).max()) for b in blocks if b.size), default=0)
    return None if largest < 0x7F80 else Unknown("", largest > 0x7F80)


def may_be_unknown(value: Any, where: str, is_nan: bool) -> bool:
    """Tell whether a field need not be finite; parameters of estimators may be infinite."""
    name = re.split(r"\W", where)[1]
    if is_nan or not (is_parameter(value, name) or MAY_BE_INFINITE.match(where)):
        is_told = MAY_BE_UNKNOWN.search(where) or (
            not isinstance(value, nn.Module) and IN_RECORDS.search(where)
        )
        return name != "_parameters" and bool(is_told)
    return True


def check_signs(value: Any) -> None:
    """Raise a ValueError if a field of an object is not positive, but those of models are."""
    kind = type(value).__name__
    name = ABOVE_ZERO.get(kind, "")
    if hasattr(value, name) and not np.greater(getattr(value, name), 0.0).all():
        raise ValueError(f"{kind}.{name} must be positive")
