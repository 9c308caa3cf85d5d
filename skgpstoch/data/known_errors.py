"""Scale targets whose errors are known: rows with large errors hardly tell where y is.

Row i has the variance v + s_i², so it counts as v/(v + s_i²) of a row without an error. Deviations
from the weighted mean are as large as these variances say at the right v,

    Σ_i (y_i − m)²/(v + s_i²) = n,   m = Σ_i y_i/(v + s_i²) / Σ_i 1/(v + s_i²)

(Paule & Mandel, "Consensus values and weighting factors", J. Res. NBS 87, 1982).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from .arrays import Scaling
from .messages import warn

MOST_ERROR = 1e15  # its square fits into float32, with room for products
MOST_SQUARED = 1e150  # whose square does not overflow
LEAST_OF_VARIANCE = 1e-30  # of the variance of y, for v
TOO_LARGE, FEWEST_JUDGED = 3.0, 10  # times the standard deviation of y, of so many rows
LEAST_OF_ERRORS = 0.1  # of s², which a quarter of the rows falls below, so that few do not rule


def scaling_of_known(y: np.ndarray, y_std: np.ndarray, weight: np.ndarray | None) -> Scaling:
    """Return the mean and scale of targets (n, P), by what each row tells, (P,) each."""
    parts = []
    for column, s in zip(y.T, y_std.T, strict=True):
        w = weight
        if np.ptp(s) > 0.0:
            told = told_by(column, s, weight)
            w = told if weight is None else weight * told
        parts.append(Scaling.standard(column[:, None], w))
    offset, scale = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Scaling(offset, scale)


def warn_of_units(y: np.ndarray, y_std: np.ndarray) -> None:
    """Warn if all known errors (n, P) are larger than targets (n, P) can have."""
    with np.errstate(over="ignore"):
        least, spread = y_std.min(0), y.std(0)
    is_odd = (least > TOO_LARGE * spread) & (least <= MOST_ERROR * spread)  # more are refused
    if len(y) >= FEWEST_JUDGED and (p := np.flatnonzero(is_odd)).size:
        warn(
            f"y_std is at least {least[p[0]]:.3g} at all rows, but the standard deviation of y is "
            f"{spread[p[0]]:.3g}: targets with such errors would vary more, and tell nothing. Give "
            "y_std in the units of y. A TransformedTargetRegressor transforms y, but not y_std."
        )


def told_by(y: np.ndarray, s: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Return v/(v + s_i²) of targets (n,) with known errors s (n,), and weights (n,)."""
    w = np.ones(len(y)) if weight is None else weight
    top = max(float(np.ptp(y)), np.finfo(float).tiny)
    u, s2 = (y - y.min()) / top, np.square(np.minimum(s, MOST_SQUARED * top) / top)
    most = float(np.average(np.square(u - np.average(u, weights=w)), weights=w))
    if most == 0.0:
        return np.ones(len(y))

    def shares(log_v: float) -> np.ndarray:
        v = math.exp(log_v)
        return np.asarray(v / (v + s2))

    def excess(log_v: float) -> float:
        told = w * shares(log_v)
        error = u - told @ u / told.sum()
        return float(told @ np.square(error) / (math.exp(log_v) * w.sum())) - 1.0

    least = max(LEAST_OF_VARIANCE * most, LEAST_OF_ERRORS * float(np.quantile(s2, 0.25)))
    low, high = math.log(least), math.log(max(least, most))
    if excess(low) <= 0.0:
        return shares(low)
    return shares(brentq(excess, low, high) if excess(high) < 0.0 else high)
