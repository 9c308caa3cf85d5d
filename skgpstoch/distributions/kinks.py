"""Find where the slope of a map jumps, for example at the quantiles of QuantileTransformer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CELLS = 4096  # cells in the first search
JUMP = 1e-4  # relative change of the slope within a short cell that tells a kink
PRECISION = 1e-8  # error of kinks, in standard deviations; moments are then right to 1e-6
LEAST_SIZE = 1e-11  # shortest cell relative to the numbers; in shorter ones differences lose digits
MOST_KINKED = 65_536  # cells with kinks; if there are more, they come from rounding


def kinks_between(
    g: Callable[[np.ndarray], np.ndarray], low: float, high: float, unit: float
) -> np.ndarray:
    """Return the numbers at which the slope of g jumps, ascending, (K,).

    At a kink, second differences within a cell differ by the jump however short the cell is;
    elsewhere they vanish. Cells that contain kinks are halved repeatedly.

    Parameters
    ----------
    g : callable
        The map g, of arrays of any shape.
    low, high : float
        Ends of the interval that is searched.
    unit : float
        Unit of `PRECISION`, to which kinks are located.
    """
    size = (high - low) / CELLS
    least = max(PRECISION * unit, LEAST_SIZE * max(abs(low), abs(high)))
    start = low + size * np.arange(CELLS)
    while len(start):
        y = g(start[:, None] + 0.25 * size * np.arange(-1, 6))  # (C, 7), one beyond either end
        with np.errstate(invalid="ignore"):  # infinite values have no differences
            turn, rise = np.diff(y, 2), np.abs(y[:, -1] - y[:, 0])
            start = start[np.ptp(turn, axis=1) > JUMP * rise]
        if size <= least or len(start) > MOST_KINKED:
            break
        size *= 0.5
        start = np.sort(np.concatenate([start, start + size]))
    if len(start) > MOST_KINKED:
        return np.empty(0)
    is_next = np.diff(start, prepend=-np.inf) > 1.5 * size  # neighbouring cells share one kink
    return start[is_next] + 0.5 * size
