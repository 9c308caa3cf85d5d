"""Monotone maps of targets, from a transformer of y such as PowerTransformer.

A model is fitted to z, the transformer's `transform` of y. The user sees y = g(z), where g is the
transformer's `inverse_transform`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.target_transforms import BISECTIONS, GIVEN_BACK, brief, inverse_of, quietly

PROBED = 257  # numbers at which a map is evaluated
NEAR_REACH = 4.0  # standard deviations on both sides within which a map must be monotone
FAR_REACH = 40.0  # standard deviations on both sides within which its ends are searched for
FAR_PROBES = np.geomspace(FAR_REACH, 1e6, 49)  # the same, so that ends do not depend on other rows
STEP, LEAST_STEP = 1e-3, 3e-5  # of differences: share of z's width, and of z (exp to e^700)
SHORTEST_STEP = 1e-9  # of differences, if z is a point at 0
NEAR_END = 0.002  # share of the distance to an end of the map
AFFINE = 1e-10  # share of a map's rise by which an affine map may differ from a line
LARGEST = 1e300  # largest value of a map
UNBOUNDED = 1e100  # a map that reaches this value has no end
LEAST_SLOPE = 1e-300
MODERATE = 700.0  # |z| below which y = 0 is a value like others: exp(−700) is not
UNDERFLOW = 1e-300  # a map whose values get smaller than that before they are all 0 has no end
KINKED = 1e-3  # share of a slope by which differences over two steps may disagree on a smooth map
KINK_STEP = 1e-3  # share of a step over which a map with kinks is nearly everywhere a line
LEAST_GAP = 1e-3  # share of the probes' distance; closer numbers may have equal y by rounding


class TargetMap:
    """A monotone map y = g(z) for each of P outputs, made from a fitted transformer.

    Parameters
    ----------
    transformer : object
        Has `transform` and `inverse_transform` for arrays (n, P).
    place, unit : ndarray of shape (n, P)
        Centres and widths of the predictions of z; the map must be monotone there.

    Attributes
    ----------
    sign : ndarray of shape (P,)
        1 for an increasing map, −1 for a decreasing one.
    low, high : ndarray of shape (P,)
        Ends of the interval on which g is defined and strictly monotone; infinite if there is no
        end. Beyond an end, g is undefined, turns, or is flat because the transformer clips.
    reach : ndarray of shape (2, P)
        The same, or where y exceeds the numbers of float64.
    is_clipped : ndarray of bool, shape (2, P)
        Whether g is flat, or clips targets, beyond its low end and beyond its high end.
    is_affine : bool
        Whether g is a straight line for every output.

    Raises
    ------
    ValueError
        If the map is not monotone, does not invert `transform`, or mixes outputs.
    """

    def __init__(self, transformer: Any, place: np.ndarray, unit: np.ndarray) -> None:
        self.transformer = transformer
        place, unit = self._usual(place, unit)
        self._middle = np.median(place, axis=0)
        P = place.shape[1]
        self.sign, self.low, self.high = np.ones(P), np.full(P, -np.inf), np.full(P, np.inf)
        self.reach = np.stack([self.low, self.high])
        self.is_clipped, self._rise = np.zeros((2, P), bool), np.zeros(P)
        reach = (
            np.array([[[-FAR_REACH]], [[-NEAR_REACH]], [[NEAR_REACH]], [[FAR_REACH]]]) * unit
            + place
        )
        ends = np.stack([*reach[:2].min(1), *reach[2:].max(1)])  # (4, P)
        widths = np.median(unit, axis=0)
        self.is_affine = all([self._probe(p, widths[p], *ends[:, p]) for p in range(P)])

    def _usual(self, place: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at which y is in the numbers of float64; if there are none, one at 0.

        Among others, a row whose z is 10⁹ would leave no probes where exp(z) is such a number.
        """
        size = np.abs(self.inverse(place))
        is_usual = (size < LARGEST) & ((size >= UNDERFLOW) | (np.abs(place) < MODERATE))
        if is_usual.all():
            return place, unit
        some = is_usual.all(1)
        if some.any():
            return place[some], unit[some]
        return np.zeros((1, place.shape[1])), np.ones((1, place.shape[1]))

    def _probe(
        self, p: int, width: float, far_low: float, low: float, high: float, far_high: float
    ) -> bool:
        """Find output p's direction, its ends, and whether it is a line."""
        near, far = np.linspace(low, high, PROBED), np.linspace(far_low, far_high, PROBED)
        beyond = self._middle[p] + width * np.concatenate([-FAR_PROBES, FAR_PROBES])
        z = np.unique([*near, *far, *beyond, self._middle[p]])
        gap = LEAST_GAP * (high - low) / PROBED
        z = z[np.diff(z, prepend=-np.inf) > gap]  # nearly equal numbers show only rounding
        rows = np.tile(self._middle, (len(z), 1))
        rows[:, p] = z
        y = self._along(rows, p)
        is_known, is_near = np.isfinite(y) & (np.abs(y) < LARGEST), (z >= low) & (z <= high)
        rise = np.diff(np.where(is_known, y, np.nan))
        is_flat = (rise == 0.0) & (np.diff(z) > gap)
        of_near = is_near[1:] & is_near[:-1]
        self.sign[p] = self._direction(rise[of_near], is_flat[of_near])
        self._rise[p] = np.ptp(y[is_near & is_known])
        before = self.forward(self.inverse(rows))
        is_lost = is_known & ~self.is_reached(self.inverse(rows), before)[:, p]
        goes_on = (self.sign[p] * rise >= 0.0) & ~is_flat & ~(is_lost[1:] | is_lost[:-1])
        first, last = self._run(z, before[:, p], goes_on, of_near, is_lost, p)
        ends = (first, first - 1), (last, last + 1)
        for side, (inner, outer) in enumerate(ends):
            if not 0 <= outer < len(z):
                continue
            is_level = bool(is_flat[min(inner, outer)])
            self.is_clipped[side, p] = is_level or is_lost[outer]
            pair = (inner, outer) if not is_level else (2 * inner - outer, inner)
            end = self._end(p, z[pair[0]], z[pair[1]], is_level, bool(is_lost[outer]))
            self.reach[side, p] = end
            if self._goes_beyond_floats(end, z[outer], p):
                self.is_clipped[side, p] = False
            else:
                (self.low, self.high)[side][p] = end
        some = is_known & (z >= far_low) & (z <= far_high)
        line = np.polynomial.Polynomial.fit(z[some], y[some], 1)
        off, whole = np.abs(line(z[some]) - y[some]).max(), np.ptp(y[some])
        is_clipped = self.is_clipped[:, p].any()
        return bool(is_known.all() and not is_clipped and off <= AFFINE * whole)

    def _along(self, rows: np.ndarray, p: int) -> np.ndarray:
        """Return output p of the inverse at rows that differ only in output p, (n,)."""
        try:
            y = self.inverse(rows)
        except (IndexError, TypeError) as error:
            raise ValueError(
                "The target's transformer must be monotone and continuous, because "
                f"predictions are transformed back, but {brief(self.transformer)} has "
                "no inverse between its values."
            ) from error
        others = np.delete(y, p, axis=1)
        if not np.array_equal(others, np.broadcast_to(others[:1], others.shape), equal_nan=True):
            raise ValueError(
                "The target's transformer must transform each output separately, but "
                f"{brief(self.transformer)} does not."
            )
        return y[:, p]

    def _direction(self, rise: np.ndarray, is_flat: np.ndarray) -> float:
        """Return the sign of a map from its rises; only its ends may be flat."""
        rises = np.flatnonzero(~is_flat & (np.abs(rise) > 0.0))
        steps = rise[~np.isnan(rise)]
        inner = is_flat[rises[0] : rises[-1]] if len(rises) else np.ones(1, bool)
        if inner.any() or not ((steps >= 0.0).all() or (steps <= 0.0).all()):
            raise ValueError(
                "The target's transformer must be monotone, continuous and without "
                "steps, because predictions are transformed back, but "
                f"{brief(self.transformer)} is not, over the range of predicted "
                "targets. Use PowerTransformer() or target_transform='yeo-johnson'."
            )
        return float(np.sign(steps.sum()))

    def _run(
        self,
        z: np.ndarray,
        before: np.ndarray,
        goes_on: np.ndarray,
        of_near: np.ndarray,
        is_lost: np.ndarray,
        p: int,
    ) -> tuple[int, int]:
        """Return the range of numbers (n,) in which the map rises and `transform` inverts it.

        `before` are the transformed targets. If all targets on one side are transformed to the same
        number, they are clipped there.
        """
        found = run_about(int(np.searchsorted(z, self._middle[p])), goes_on, of_near)
        if found is not None:
            below, above = slice(0, found[0]), slice(found[1] + 1, None)
            clipped = [before[side][is_lost[side]] for side in (below, above)]
            if all(len(np.unique(side)) <= 1 for side in clipped):
                return found
        raise ValueError(
            "The target's transformer must be invertible at the predicted targets, "
            "inverse_transform(transform(y)) == y, because their density is unknown "
            f"otherwise, but {brief(self.transformer)} is not. Check that inverse_func "
            "is the inverse of func."
        )

    def _end(self, p: int, inside: float, outside: float, is_level: bool, is_lost: bool) -> float:
        """Return the last z at which g is defined, strictly monotone and invertible."""
        step = SHORTEST_STEP * abs(outside - inside)
        level = self.column(np.array([outside]), p)[0]
        for _ in range(BISECTIONS):
            middle = 0.5 * (inside + outside)
            y, after = self.column(np.array([middle, middle + step]), p)
            goes_on = np.isfinite(y) and abs(y) < LARGEST
            if is_level:
                goes_on = goes_on and y != level
            elif is_lost:
                goes_on = goes_on and self._returns(middle, p)
            else:
                goes_on = goes_on and not self.sign[p] * (after - y) < 0.0
            if goes_on:
                inside = middle
            else:
                outside = middle
        return outside if is_level else inside

    def _goes_beyond_floats(self, end: float, outside: float, p: int) -> bool:
        """Tell whether output p ends only because larger, or smaller, y are not in float64."""
        size, beyond = np.abs(self.column(np.array([end, outside]), p))
        return bool((size > UNBOUNDED <= beyond) or (beyond <= size < UNDERFLOW))

    def _returns(self, z: float, p: int) -> bool:
        """Tell whether `transform` maps output p's value at z back to z."""
        row = self._middle[None].copy()
        row[0, p] = z
        y = self.inverse(row)
        return bool(self.is_reached(y, self.forward(y))[0, p])

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Return z for y (n, P); NaN or infinite where y is outside the range of g."""
        given = np.array(y, dtype=np.float64)
        if getattr(self.transformer, "method", None) == "box-cox":  # which raises
            given[given <= 0.0] = np.nan
        with quietly():
            z = self._transformed(given)
        return np.asarray(z, dtype=np.float64).reshape(y.shape)

    def _transformed(self, y: np.ndarray) -> Any:
        """Return `transform` of y (n, P), with NaN for targets that it refuses."""
        try:
            return self.transformer.transform(y)
        except ValueError:
            if y.size == 1:
                return np.full(y.shape, np.nan)
        if len(y) > 1:
            halves = np.array_split(y, 2)
            return np.concatenate([np.reshape(self._transformed(h), h.shape) for h in halves])
        return np.array([[self._refused_or(value, p) for p, value in enumerate(y[0])]])

    def _refused_or(self, y: float, p: int) -> float:
        """Return z of output p, with the other outputs in the middle of the predictions."""
        row = self.inverse(self._middle[None])
        row[0, p] = y
        try:
            return float(np.reshape(self.transformer.transform(row), -1)[p])
        except ValueError:
            return np.nan

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Return y for z (n, P)."""
        return inverse_of(self.transformer, z)

    def is_reached(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Tell which y (n, P) are in the range of g: those with g(z) = y at z = `forward(y)`."""
        is_known = np.isfinite(z)
        back = self.inverse(np.where(is_known, z, self._middle))
        allowed = GIVEN_BACK * (np.abs(y) + self._rise)
        return is_known & ((np.abs(back - y) <= allowed) | ~np.isfinite(back))

    def support(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest possible target, both (P,): the limits of g."""
        z = np.array([self.low, self.high])
        try:
            ends = self.inverse(z)
        except ValueError:  # of infinite numbers
            ends = self.inverse(np.clip(z, -LARGEST, LARGEST))
        ends = np.where(np.abs(ends) > UNBOUNDED, np.copysign(np.inf, ends), ends)
        low, high = np.where(self.sign > 0.0, ends, ends[::-1])
        return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)

    def column(self, z: np.ndarray, p: int) -> np.ndarray:
        """Return y of output p at z (n,)."""
        rows = np.tile(self._middle, (len(z), 1))
        rows[:, p] = np.clip(z, self.low[p], self.high[p])
        return self.inverse(rows)[:, p]

    def slope(self, z: np.ndarray, unit: np.ndarray, p: int) -> np.ndarray:
        """Return g′ of output p at z (n,), from fourth-order differences inside its ends.

        Near kinks, as those of QuantileTransformer, and where targets are clipped, short
        second-order differences are used.
        """
        h = np.maximum(np.maximum(STEP * unit, LEAST_STEP * np.abs(z)), SHORTEST_STEP)
        to_ends = np.stack([z - self.low[p], self.high[p] - z])
        to_end = np.where(self.is_clipped[:, p, None], np.inf, to_ends).min(0)
        h = np.minimum(h, np.maximum(NEAR_END * to_end, SHORTEST_STEP))
        y = [self.column(z + k * h, p) for k in (-2, -1, 0, 1, 2)]
        slope = (y[0] - 8.0 * y[1] + 8.0 * y[3] - y[4]) / (12.0 * h)
        near, far = (y[3] - y[1]) / (2.0 * h), (y[4] - y[0]) / (4.0 * h)
        turn, far_turn = (y[3] - 2.0 * y[2] + y[1]) / h, (y[4] - 2.0 * y[2] + y[0]) / (4.0 * h)
        error = np.maximum(np.abs(near - far), np.abs(turn - far_turn))
        kinked = np.flatnonzero(error > KINKED * np.abs(slope))
        if len(kinked):
            h = KINK_STEP * h[kinked]
            z = np.clip(z[kinked], self.low[p] + 2.0 * h, self.high[p] - 2.0 * h)  # ends jump
            slope[kinked] = (self.column(z + h, p) - self.column(z - h, p)) / (2.0 * h)
        return slope

    def log_slope(self, z: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Return log |g′| at z (n, P)."""
        each = [self.slope(z[:, p], unit[:, p], p) for p in range(z.shape[1])]
        return np.log(np.maximum(np.abs(np.stack(each, 1)), LEAST_SLOPE))


def run_about(middle: int, goes_on: np.ndarray, of_near: np.ndarray) -> tuple[int, int] | None:
    """Return the first and the last number of the range around `middle` in which a map rises."""
    some = np.flatnonzero(goes_on & of_near)
    if not len(some):
        return None
    start = some[np.abs(some - middle).argmin()]
    before, after = np.flatnonzero(~goes_on[:start]), np.flatnonzero(~goes_on[start:])
    first = before[-1] + 1 if len(before) else 0
    return int(first), int(start + after[0] if len(after) else len(goes_on))
