"""Monotone maps of targets: what is transformed, and what predictions are transformed by.

Models see z, users see y = g(z): z is a transformer's `transform` of y, g its `inverse_transform`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

PROBED = 257  # numbers at which a map is looked at
NEAR_REACH = 4.0  # standard deviations on both sides, within which a map must be monotone
FAR_REACH = 40.0  # the same, within which its ends are looked for
STEP, LEAST_STEP = 1e-3, 1e-4  # of differences: of the width of z, and of z
SHORTEST_STEP = 1e-9  # where z is a point at 0
NEAR_END = 0.01  # of the distance to an end of the map
AFFINE = 1e-10  # of the rise of a map, by which it may differ from a line
LARGEST = 1e300  # what a map may come to
BISECTIONS = 60
LEAST_SLOPE = 1e-300


class TargetMap:
    """A monotone map y = g(z) of each of P outputs, from a transformer that is fitted.

    Parameters
    ----------
    transformer : object
        With `transform` and `inverse_transform`, of arrays (n, P).
    place, unit : ndarray of shape (n, P)
        Where z is predicted, and how wide: the map must be monotone there.

    Attributes
    ----------
    sign : ndarray of shape (P,)
        1 of an increasing map, −1 of a decreasing one.
    low, high : ndarray of shape (P,)
        Between which g is known; infinite where it has no end.
    is_affine : bool

    Raises
    ------
    ValueError
        If it is not monotone, or mixes outputs.
    """

    def __init__(self, transformer: Any, place: np.ndarray, unit: np.ndarray) -> None:
        self.transformer = transformer
        self._middle = np.median(place, axis=0)
        P = place.shape[1]
        self.sign, self.low, self.high = np.ones(P), np.full(P, -np.inf), np.full(P, np.inf)
        reach = (
            np.array([[[-FAR_REACH]], [[-NEAR_REACH]], [[NEAR_REACH]], [[FAR_REACH]]]) * unit
            + place
        )
        ends = np.stack([*reach[:2].min(1), *reach[2:].max(1)])  # (4, P)
        self.is_affine = all([self._probe(p, *ends[:, p]) for p in range(P)])

    def _probe(self, p: int, far_low: float, low: float, high: float, far_high: float) -> bool:
        """Look at output p: its direction, its ends, and whether it is a line."""
        near, far = np.linspace(low, high, PROBED), np.linspace(far_low, far_high, PROBED)
        z = np.unique([*near, *far, self._middle[p]])
        rows = np.tile(self._middle, (len(z), 1))
        rows[:, p] = z
        y = self.inverse(rows)
        others = np.delete(y, p, axis=1)
        if not np.array_equal(others, np.broadcast_to(others[:1], others.shape), equal_nan=True):
            raise ValueError(
                f"The target's transformer must transform each output by itself, which "
                f"{self.transformer!r} does not."
            )
        y = y[:, p]
        is_known, is_near = np.isfinite(y) & (np.abs(y) < LARGEST), (z >= low) & (z <= high)
        steps = np.diff(y[is_near & is_known])
        if not steps.any() or not ((steps >= 0.0).all() or (steps <= 0.0).all()):
            raise ValueError(
                "The target's transformer must be monotone, for its predictions to be transformed; "
                f"{self.transformer!r} is not where targets are predicted."
            )
        self.sign[p] = np.sign(steps.sum())
        first, last = run_about(np.searchsorted(z, self._middle[p]), y, is_known, self.sign[p])
        if first > 0:
            self.low[p] = self._end(p, z[first], z[first - 1])
        if last < len(z) - 1:
            self.high[p] = self._end(p, z[last], z[last + 1])
        line = np.polynomial.Polynomial.fit(z[is_known], y[is_known], 1)
        error, rise = np.abs(line(z[is_known]) - y[is_known]).max(), np.ptp(y[is_known])
        return bool(is_known.all() and error <= AFFINE * rise)

    def _end(self, p: int, inside: float, outside: float) -> float:
        """Return the last z at which g is known, and has not turned."""
        step = SHORTEST_STEP * abs(outside - inside)
        for _ in range(BISECTIONS):
            middle = 0.5 * (inside + outside)
            y, after = self.column(np.array([middle, middle + step]), p)
            is_known = np.isfinite(y) and abs(y) < LARGEST
            if is_known and not self.sign[p] * (after - y) < 0.0:
                inside = middle
            else:
                outside = middle
        return inside

    def forward(self, y: np.ndarray) -> np.ndarray:
        """z of y (n, P); NaN or infinite where y is nothing that g comes to."""
        given = np.array(y, dtype=np.float64)
        if getattr(self.transformer, "method", None) == "box-cox":  # which raises
            given[given <= 0.0] = np.nan
        with quietly():
            z = self.transformer.transform(given)
        return np.asarray(z, dtype=np.float64).reshape(y.shape)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Y of z (n, P)."""
        with quietly():
            y = self.transformer.inverse_transform(np.array(z, dtype=np.float64))
        return np.asarray(y, dtype=np.float64).reshape(z.shape)

    def column(self, z: np.ndarray, p: int) -> np.ndarray:
        """Y of output p at z (n,)."""
        rows = np.tile(self._middle, (len(z), 1))
        rows[:, p] = np.clip(z, self.low[p], self.high[p])
        return self.inverse(rows)[:, p]

    def slope(self, z: np.ndarray, unit: np.ndarray, p: int) -> np.ndarray:
        """g′ of output p at z (n,), by differences of the fourth order, within its ends."""
        h = np.maximum(np.maximum(STEP * unit, LEAST_STEP * np.abs(z)), SHORTEST_STEP)
        to_end = np.minimum(z - self.low[p], self.high[p] - z)
        h = np.minimum(h, np.maximum(NEAR_END * to_end, SHORTEST_STEP))
        y = [self.column(z + k * h, p) for k in (-2, -1, 1, 2)]
        return (y[0] - 8.0 * y[1] + 8.0 * y[2] - y[3]) / (12.0 * h)

    def log_slope(self, z: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """log |g′| at z (n, P)."""
        each = [self.slope(z[:, p], unit[:, p], p) for p in range(z.shape[1])]
        return np.log(np.maximum(np.abs(np.stack(each, 1)), LEAST_SLOPE))


def run_about(middle: int, y: np.ndarray, is_known: np.ndarray, sign: float) -> tuple[int, int]:
    """Return the first and the last of the numbers about one, up to where y is known and rises."""
    goes_on = is_known[1:] & is_known[:-1] & (sign * np.diff(y) >= 0.0)
    before, after = np.flatnonzero(~goes_on[:middle]), np.flatnonzero(~goes_on[middle:])
    first = before[-1] + 1 if len(before) else 0
    return int(first), int(middle + after[0] if len(after) else len(y) - 1)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings of numbers that a map has none for: these are asked for, and seen to."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
