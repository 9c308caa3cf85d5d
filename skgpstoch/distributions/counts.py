"""The ranked probability score of counts: sums of squares of probabilities.

    CRPS = Σ_{k<y} F(k)² + Σ_{k≥y} (1 − F(k))²

Where counts are many, the sum of g(k) from a on is the integral from a − ½ on over what F is
between counts, plus what Euler and Maclaurin add, (g(a) − g(a − 1))/24 at its start and
−(F(y) − F(y − 1))/12 at its kink.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..maths.quadrature import integrate_between

FEW_COUNTS = 256  # that are summed one by one
LEAST_TAIL = 1e-9  # probability of counts on either side that are taken to be none
PANELS = 2.0 ** np.arange(-24, 1)  # ends of intervals on which the rest is begun
PRECISION = 1e-8  # of integrals over an interval, in differences of quartiles

Below = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""P(Y ≤ k) at numbers k (I, m) of rows (I,), smooth between counts."""


def crps_of_counts(
    y: np.ndarray, low: np.ndarray, high: np.ndarray, unit: np.ndarray, below: Below
) -> np.ndarray:
    """Return the score of counts y (N,), where nearly all counts are from low to high (N,).

    `unit` (N,) is how wide distributions are, of which integrals are to be a part.
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
