"""Where the slope of a map jumps, as at the quantiles of QuantileTransformer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CELLS = 4096  # that are looked at first
JUMP = 1e-4  # of a slope, by which it changes within a short cell at a kink, and not elsewhere
PRECISION = 1e-8  # of kinks, in standard deviations: by these come moments to 1e-6 of theirs
LEAST_SIZE = 1e-11  # of the numbers themselves, below which differences have few digits
MOST_KINKED = 65_536  # cells: of more it is rounding that is found


def kinks_between(
    g: Callable[[np.ndarray], np.ndarray], low: float, high: float, unit: float
) -> np.ndarray:
    """Return the numbers at which the slope of g jumps, ascending, (K,).

    Second differences within a cell differ by the jump at a kink, however short the cell is, but
    vanish elsewhere. Cells are halved while there are kinks in them.

    Parameters
    ----------
    g : callable
        Of numbers of any shape.
    low, high : float
        Between which kinks are looked for.
    unit : float
        In which these numbers are known to `PRECISION`.
    """
    size = (high - low) / CELLS
    least = max(PRECISION * unit, LEAST_SIZE * max(abs(low), abs(high)))
    start = low + size * np.arange(CELLS)
    while len(start):
        y = g(start[:, None] + 0.25 * size * np.arange(-1, 6))  # (C, 7), one beyond either end
        with np.errstate(invalid="ignore"):  # beyond the largest numbers there are none
            turn, rise = np.diff(y, 2), np.abs(y[:, -1] - y[:, 0])
            start = start[np.ptp(turn, axis=1) > JUMP * rise]
        if size <= least or len(start) > MOST_KINKED:
            break
        size *= 0.5
        start = np.sort(np.concatenate([start, start + size]))
    if len(start) > MOST_KINKED:
        return np.empty(0)
    is_next = np.diff(start, prepend=-np.inf) > 1.5 * size  # cells side by side have one kink
    return start[is_next] + 0.5 * size
