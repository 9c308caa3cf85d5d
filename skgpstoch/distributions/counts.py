"""Compute the ranked probability score (CRPS) of counts from sums of squared probabilities.

    CRPS = Σ_{k<y} F(k)² + Σ_{k≥y} (1 − F(k))²

If there are many counts, a sum of g(k) from k = a is replaced by the integral from a − ½, where F
is interpolated smoothly between counts. The Euler-Maclaurin corrections are (g(a) − g(a − 1))/24 at
the start and −(F(y) − F(y − 1))/12 at the kink.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..maths.quadrature import integrate_between

FEW_COUNTS = 256  # counts that are summed one by one
LEAST_TAIL = 1e-9  # probability on either side that is neglected
PANELS = 2.0 ** np.arange(-24, 1)  # interval ends where integration of the rest starts
PRECISION = 1e-8  # error of integrals over an interval, in interquartile ranges

Below = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps rows (I,) and numbers k (I, m) to P(Y ≤ k), smooth between counts."""


def crps_of_counts(
    y: np.ndarray, low: np.ndarray, high: np.ndarray, unit: np.ndarray, below: Below
) -> np.ndarray:
    """Return the CRPS of counts y (N,); nearly all probability is between `low` and `high` (N,).

    `unit` (N,) is the width of the distributions, to which the error of integrals is relative.
    """
    row, every = np.arange(len(y)), np.arange(FEW_COUNTS)
    few = np.minimum(high + 1.0, low + FEW_COUNTS)  # the first count that is not summed

    def error(row: np.ndarray, k: np.ndarray, is_above: np.ndarray) -> np.ndarray:
        return np.square(below(row, k) - is_above)

    k = low[:, None] + every[: max(int((few - low).max()), 1)]
    each = error(row, k, k >= y[:, None])
    total = np.where(k < few[:, None], each, 0.0).sum(1)
    total += np.maximum(y - 1.0 - high, 0.0) + np.maximum(low - y, 0.0)
    is_long = high + 1.0 > few
    if not is_long.any():
        return np.asarray(total)
    start, end = few - 0.5, np.where(is_long, high + 0.5, few - 0.5)
    kink = np.clip(y - 0.5, start, end)
    breaks = np.vstack([start, start + (end - start) * PANELS[:, None], kink])
    total += integrate_between(
        lambda row, t: error(row, t, t >= kink[row, None]), breaks, PRECISION * unit
    )
    at_start = np.diff(error(row, np.stack([few - 1.0, few], 1), (y <= few)[:, None]))[:, 0]
    mass = np.diff(below(row, np.maximum(np.stack([y - 1.0, y], 1), 0.0)))[:, 0]
    total += np.where(is_long, at_start, 0.0) / 24.0
    return total - np.where((kink > start) & (kink < end), mass, 0.0) / 12.0
