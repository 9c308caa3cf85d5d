"""Refuse kernels whose parameters are not what scikit-learn computes with: numbers, or kernels.

NumPy would take texts for numbers, as long as they are for each pair of rows.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel
from torch import nn

from .arrays import are_numbers, told
from .forms_of_values import LETTERS_SHOWN
from .registry import PACKAGE, package_of, parameters_of
from .shapes import PACKAGES

MOST_PARTS = 64  # of a kernel
NO_NUMBERS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kernel", "k1", "k2"), (Kernel,)),
    **dict.fromkeys(("kernels", "ties"), (list, tuple)),
    "metric": (str, types.FunctionType),
    "pairwise_kernels_kwargs": (dict, types.NoneType),
}
"""Types of parameters that are neither numbers nor bounds."""
AT_LEAST_0 = {"alpha", "constant_value", "length_scale", "noise_level", "nu", "periodicity"}


def check_kernel(value: Kernel) -> None:
    """Raise a ValueError if a kernel lacks a parameter, or has one of another kind."""
    cls: Any = type(value)
    for name in parameters_of(cls):
        if not hasattr(value, name):
            raise ValueError(f"{cls.__name__} lacks its parameter {name!r}")
        if package_of(cls) not in PACKAGES:  # the user's own may have anything
            continue
        given = getattr(value, name)
        is_known, expected = judged(name, given)
        if not is_known:
            raise ValueError(f"{cls.__name__}.{name} must be {expected}, got {told(given)}")
        if name in AT_LEAST_0 and (np.less(given, 0.0) & np.isfinite(given)).any():
            raise ValueError(f"{cls.__name__}.{name} must be at least 0")
        if isinstance(given, dict) and isinstance(value.metric, str):
            check_arguments(given)


def check_size(value: Any, n_parts: int) -> None:
    """Raise a ValueError if a kernel has too many parts, of which it may know the number.

    Gradients keep the covariances of each.
    """
    if type(value).__module__.startswith(f"{PACKAGE}.kernels") and isinstance(value, nn.Module):
        parts = value.named_modules(remove_duplicate=False)
        n_parts = len(list(itertools.islice(parts, MOST_PARTS + 1)))
    elif not isinstance(value, Kernel):
        return
    if n_parts > MOST_PARTS:
        raise ValueError(f"a kernel has more than {MOST_PARTS} parts")


def judged(name: str, given: Any) -> tuple[bool, str]:
    """Tell whether a parameter of a name may be this, and what it should be.

    More axes of numbers would repeat matrices along them.
    """
    if name in NO_NUMBERS:
        names = " or ".join(cls.__name__ for cls in NO_NUMBERS[name])
        return isinstance(given, NO_NUMBERS[name]), names
    if name.endswith("_bounds"):
        is_fixed = isinstance(given, str) and given == "fixed"
        return is_fixed or are_numbers(given, 2), "'fixed', or pairs of numbers"
    is_some = are_numbers(given, 1) and np.size(given) > 0
    return is_some, "a number, or numbers along one axis"


def check_arguments(given: dict[str, Any]) -> None:
    """Raise a ValueError unless arguments of one of scikit-learn's metrics are numbers, or None."""
    for name, argument in given.items():
        if argument is not None and not are_numbers(argument, 0):
            raise ValueError(
                f"PairwiseKernel.pairwise_kernels_kwargs has {str(name)[:LETTERS_SHOWN]!r}, "
                f"{told(argument)}, not a number"
            )
