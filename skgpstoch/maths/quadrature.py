"""Adaptive quadrature of many integrals at once: Gauss and Kronrod's rules of 7 and 15 nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..data.arrays import row_blocks
from ..data.messages import warn

_HALF = [
    0.991455371120812639206854697526329,
    0.949107912342758524526189684047851,
    0.864864423359769072789712788640926,
    0.741531185599394439863864773280788,
    0.586087235467691130294144691693013,
    0.405845151377397166906606412076961,
    0.207784955007898467600689403773245,
]
_KRONROD = [
    0.022935322010529224963732008058970,
    0.063092092629978553290700663189204,
    0.104790010322250183839876322541518,
    0.140653259715525918745189590510238,
    0.169004726639267902826583426598550,
    0.190350578064785409913256402421014,
    0.204432940075298892414161999234649,
]
_GAUSS = [
    0.129484966168869693270611432679082,
    0.279705391489276667901467771423780,
    0.381830050505118944950369775488975,
]
KRONROD_NODES = np.array([*(-x for x in _HALF), 0.0, *reversed(_HALF)])  # of [−1, 1], (15,)
KRONROD = np.array([*_KRONROD, 0.209482141084727828012999174891714, *reversed(_KRONROD)])
GAUSS = np.zeros(15)
GAUSS[1::2] = [*_GAUSS, 0.417959183673469387755102040816327, *reversed(_GAUSS)]

MOST_HALVINGS = 60
NOISE_OF_SLOPES = (
    1e-11  # of ∫ |f| over an interval: functions that are differences have no more digits
)
MOST_OPEN = 64  # intervals a row that do not agree yet: steps and kinks leave one or two
INTERVALS_AT_A_TIME = 1024
FIRST_INTERVALS = 131_072  # of a block of rows


Integrand = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Values (..., I, m) at numbers (I, m) of rows (I,)."""


def integrate_between(f: Integrand, breaks: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """Return integrals of each row from its least to its largest break (K, N), as `integrate`."""
    ends, total = np.sort(breaks, axis=0), np.zeros(tolerance.shape)
    K, N = ends.shape
    for rows in row_blocks(N, max(FIRST_INTERVALS // K, 1)):
        row, (low, high) = np.tile(np.arange(N)[rows], K - 1), (ends[:-1, rows], ends[1:, rows])
        total += integrate(f, row, low.ravel(), high.ravel(), tolerance)
    return total


def integrate(
    f: Integrand, row: np.ndarray, low: np.ndarray, high: np.ndarray, tolerance: np.ndarray
) -> np.ndarray:
    """Return ∫ f over intervals, each of which belongs to a row, summed by row: (..., n_rows).

    An interval is halved until both rules agree on it. If the integrand is monotone there,
    they do not both miss a step.

    Parameters
    ----------
    f : callable
        Values (..., I, m) of one or several functions, at numbers (I, m) of rows (I,).
    row : ndarray of shape (I,)
        Row to which each interval belongs.
    low, high : ndarray of shape (I,)
        Ends.
    tolerance : ndarray of shape (..., n_rows)
        How far the rules may differ on an interval, unless rounding alone makes them differ more.
    """
    total, n_rows = np.zeros(tolerance.shape), np.atleast_2d(tolerance).shape[1]
    for _ in range(MOST_HALVINGS):
        some = high > low
        row, low, high = row[some], low[some], high[some]
        if not len(row):
            break
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        kronrod, gauss, size = _rules(f, row, middle, half)
        enough = np.maximum(tolerance[..., row], NOISE_OF_SLOPES * size)
        is_open = np.abs(kronrod - gauss) > enough  # not where there are no numbers
        is_open = is_open.reshape(-1, len(row)).any(0) & (middle > low) & (middle < high)
        if is_open.sum() > MOST_OPEN * n_rows:
            warn(
                f"Integrals of {n_rows} distributions did not converge: their tails, or the "
                "target's transformation, exceed the precision of float64. Use quantiles "
                "instead."
            )
            is_open[:] = False
        done = kronrod[..., ~is_open]
        for each, values in zip(np.atleast_2d(total), np.atleast_2d(done), strict=True):
            each += np.bincount(row[~is_open], values, len(each))
        row, low, middle, high = (a[is_open] for a in (row, low, middle, high))
        row = np.concatenate([row, row])
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return total


def _rules(
    f: Integrand, row: np.ndarray, middle: np.ndarray, half: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both rules on each interval, and ∫ |f|, (..., I)."""
    found = []
    for start in range(0, len(row), INTERVALS_AT_A_TIME):
        some = slice(start, start + INTERVALS_AT_A_TIME)
        values = f(row[some], middle[some, None] + half[some, None] * KRONROD_NODES)
        rules = values @ KRONROD, values @ GAUSS, np.abs(values) @ KRONROD
        found.append(np.stack(rules) * half[some])
    kronrod, gauss, size = np.concatenate(found, -1)
    return kronrod, gauss, size
