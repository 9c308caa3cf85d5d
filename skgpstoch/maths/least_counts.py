"""Quantiles of counts, by bisection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STEPS_OF_COUNTS = 1100  # of any interval of numbers


def least_counts(
    cdf: Callable[[np.ndarray], np.ndarray], probability: Any, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the least counts from `low` to `high` (N, P) with P(Y ≤ k) ≥ probability.

    Counts between which there is no other floating-point number are not told apart.
    """
    below, high = np.ceil(low) - 1.0, np.floor(high)
    for _ in range(STEPS_OF_COUNTS):
        middle = np.floor(below + 0.5 * (high - below))
        is_open = (below < middle) & (middle < high)
        if not is_open.any():
            break
        is_enough = cdf(middle) >= probability
        high = np.where(is_open & is_enough, middle, high)
        below = np.where(is_open & ~is_enough, middle, below)
    return high
