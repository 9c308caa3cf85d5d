"""What is asked of a distribution: how probable an interval, and how many draws."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def check_coverage(coverage: Any) -> float:
    """The probability of an interval, as a float.

    Raises
    ------
    ValueError
        If it is not between 0 and 1.
    """
    if not isinstance(coverage, Real) or not 0.0 < float(coverage) < 1.0:
        raise ValueError(f"coverage must be a number between 0 and 1, got {coverage!r}.")
    return float(coverage)


def check_n_samples(n_samples: Any) -> int:
    """The number of draws, as an int.

    Raises
    ------
    ValueError
        If it is not an integer of at least 1.
    """
    if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
        raise ValueError(f"n_samples must be an integer of at least 1, got {n_samples!r}.")
    return int(n_samples)
