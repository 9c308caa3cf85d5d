"""Distributions of y = g(z) for a monotone g, given the distributions of z.

    F(y) = F_z(z),   p(y) = p_z(z)/|g′(z)|,   quantiles are g of quantiles,
    E y = g(c) + ∫_c g′(z)·(1 − F_z(z)) dz − ∫^c g′(z)·F_z(z) dz,
    CRPS = ∫ (F_z(t) − 1[t ≥ z])²·|g′(t)| dt

where z = g⁻¹(y). A decreasing g exchanges F and 1 − F. The mean of exp(z) exists if z is normal. It
is infinite if z has a wide Laplace distribution, or a Student-t distribution, even if hardly any
probability is in the tail; `moment_ends` tells whether that matters. Where it does, the mean is the
median, and the standard deviation is that of y limited to the range between its quantiles 0.001
and 0.999, as is the CRPS of all such z. Moments that need y above 10³⁰⁰ are infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...data.messages import warn
from ...maths.quadrature import Integrand, integrate_between
from .law import BREAKS, TOLERANCE, Law, moments_by_tails
from .moment_ends import moment_ends
from .target_map import UNBOUNDED, TargetMap
from .truncated import TruncatedLaw

TRIMMED = 1e-3  # probability cut off on either side if moments may not exist
TRIMMED_RANGE = "that between the quantiles 0.001 and 0.999"
NEGLIGIBLE = 1e-6  # share of the largest part of a moment
LOOKED_AT = 65  # numbers at which the parts of a moment are evaluated
TO_END = 0.95  # share of the way to an end of the map, where it may rise without bound
LIGHT_REACH = 40.0  # standard deviations beyond which light tails are negligible
CELLS = 4096  # cells in the first search
JUMP = 1e-4  # relative change of the slope within a short cell that tells a kink
KINK_PRECISION = 1e-8  # error of kinks, in standard deviations; moments are then right to 1e-6
LEAST_SIZE = 1e-11  # shortest cell relative to the numbers; in shorter ones differences lose digits
MOST_KINKED = 65_536  # cells with kinks; if there are more, they come from rounding
KINK_REACH = 10.0  # standard deviations beyond which integrals are not split at kinks


@dataclass(frozen=True)
class TransformedLaw(Law):
    """Distributions of g(Z), given the law of Z at N rows with P outputs, and g."""

    law: Law
    map: TargetMap

    @property
    def shape(self) -> tuple[int, int]:
        return self.law.shape

    @property
    def has_light_tails(self) -> Any:
        return self.map.is_affine and self.law.has_light_tails

    def of(self, rows: Any) -> TransformedLaw:
        return replace(self, law=self.law.of(rows))

    def support(self) -> tuple[Any, Any]:
        return self.map.support()

    # ---- of quantiles and probabilities ----------------------------------------------------------

    def log_density(self, y: np.ndarray) -> np.ndarray:
        z, where = self._before(y)
        log_slope = self.map.log_slope(z, self._unit())
        return np.where(where == 0.0, self.law.log_density(z) - log_slope, -np.inf)

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        z, where = self._before(y)
        log_slope = self.map.log_slope(z, self._unit()).sum(1)
        return np.where((where == 0.0).all(1), self.law.joint_log_density(z) - log_slope, -np.inf)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        z, where = self._before(y)
        below = np.where(self.map.sign > 0.0, self.law.cdf(z), self.law.sf(z))
        return np.where(where == 0.0, below, where > 0.0)

    def sf(self, y: np.ndarray) -> np.ndarray:
        z, where = self._before(y)
        above = np.where(self.map.sign > 0.0, self.law.sf(z), self.law.cdf(z))
        return np.where(where == 0.0, above, where < 0.0)

    def quantile(self, probability: float) -> np.ndarray:
        sides = (self.map.sign > 0.0, probability), (self.map.sign < 0.0, 1.0 - probability)
        z = np.empty(self.shape)
        for outputs, p in sides:
            if outputs.any():
                z[:, outputs] = self.law.quantile(p)[:, outputs]
        return self.map.inverse(z)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        up = np.where(self.map.sign > 0.0, probability, 1.0 - probability)
        return self.map.inverse(self.law.quantiles(up))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        draws = self.law.sample(n_samples, rng)
        return self.map.inverse(draws.reshape(-1, self.shape[1])).reshape(draws.shape)

    # ---- of integrals ----------------------------------------------------------------------------

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std, exists = self._moments
        warn_of_lost("mean", ~exists[0], self.map.transformer, "the median")
        warn_of_lost("standard deviation", ~exists[1], self.map.transformer, TRIMMED_RANGE)
        return mean, std

    def mean(self) -> np.ndarray:
        mean, _, exists = self._moments
        warn_of_lost("mean", ~exists[0], self.map.transformer, "the median")
        return mean

    def extent(self) -> tuple[np.ndarray, np.ndarray]:
        return self._moments[:2]

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation, (N, P) each, and whether these exist, (2, N, P)."""
        if self.map.is_affine:
            mean, std = self.law.moments()
            slope = np.exp(self.map.log_slope(mean, std))
            return self.map.inverse(mean), std * slope, np.ones((2, *self.shape), bool)
        centres = self.law.place()[0].T
        each = [self._moments_of(p, centre) for p, centre in enumerate(centres)]
        mean, std, exists = (np.stack(part, -1) for part in zip(*each, strict=True))
        if not exists[0].all():
            mean = np.where(exists[0], mean, self.quantile(0.5))
        return mean, std, exists

    def _moments_of(self, p: int, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean and standard deviation of output p, (N,) each, and whether they exist."""
        ends, exists = self._ends(p), np.ones((2, len(centre)), bool)
        heavy = np.flatnonzero(~self._is_light(p))
        if not len(heavy):
            return *self._between(p, centre, ends), exists
        law, width = self.law.of(heavy), self.law.place()[1][heavy, p]
        limits = self.map.low[p], self.map.high[p]
        found, exists[:, heavy] = moment_ends(
            law, p, centre[heavy], width, limits, lambda z: self._column(z, p)
        )
        of_mean = ends.copy()
        of_mean[:, heavy] = np.where(exists[0, heavy], found[0], ends[:, heavy])
        ends[:, heavy] = np.where(exists[1, heavy], found[1], ends[:, heavy])
        mean, std = self._between(p, centre, ends)
        if len(wider := np.flatnonzero(exists[0] > exists[1])):  # a mean, but no variance
            some = self.of(wider)
            mean[wider], _ = some._between(p, centre[wider], of_mean[:, wider])
        return mean, std, exists | np.isinf([mean, std])

    def _between(
        self, p: int, centre: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of output p, integrated between ends (2, N) of z."""
        breaks, unit, width = self._breaks(p, ends)
        c, slope = self._column(centre, p), self._slope_of(p, width)
        unit = np.where(np.isfinite(unit) & (unit > 0.0), unit, 1.0)  # its square may be 0 or ∞

        def weight(row: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            u = unit[row, None]
            return (self._column(z, p) - c[row, None]) / u, slope(row, z) / u

        with np.errstate(over="ignore", invalid="ignore"):
            rest, rest_of_square = self._beyond_numbers(p, centre, breaks)
            breaks = np.where(rest == 0.0, breaks, centre)
            one = np.ones_like(unit)
            first, second = moments_by_tails(self.law, p, centre, breaks, one, weight)
            mean = np.where(np.isinf(c), c, c + unit * first + rest)
            var = second - np.square(first)
        is_finite = np.isfinite(second) & (rest == 0.0) & (rest_of_square == 0.0)
        return mean, unit * np.sqrt(np.maximum(np.where(is_finite, var, np.inf), 0.0))

    def _beyond_numbers(
        self, p: int, centre: np.ndarray, breaks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ±∞ for moments (N,) that depend on y beyond the largest numbers, else 0."""
        rest = np.zeros((2, breaks.shape[1]))
        for end, is_above in ((breaks[0], False), (breaks[-1], True)):
            y = self._column(end, p)
            row = np.flatnonzero(np.abs(y) > UNBOUNDED)
            if not len(row):
                continue
            z = np.linspace(centre[row], end[row], LOOKED_AT, axis=1)  # (I, K)
            tail = self.law.tail(row, z, np.full(z.shape, is_above), p)
            first = tail * np.abs(self._column(z, p))
            each = first, first * np.abs(self._column(z, p))
            for moment, integrand in zip(rest, each, strict=True):
                is_lost = ~(integrand[:, -1] <= NEGLIGIBLE * integrand.max(1))
                moment[row] += np.where(is_lost, np.copysign(np.inf, y[row]), 0.0)
        return rest[0], rest[1]

    def crps(self, y: np.ndarray) -> np.ndarray:
        z, where = self._before(y)
        if self.map.is_affine:
            return self.law.crps(z) * np.exp(self.map.log_slope(z, self._unit()))
        each = enumerate(zip(y.T, z.T, where.T != 0.0, strict=True))
        return np.stack([self._crps_of_output(p, *of_output) for p, of_output in each], 1)

    def _crps_of_output(
        self, p: int, y: np.ndarray, z: np.ndarray, is_out: np.ndarray
    ) -> np.ndarray:
        """Return the CRPS of output p, (N,), of which some y are out of the range of g."""
        breaks, unit, width = self._breaks(p, self._ends(p))
        ends, slope = self._column(breaks[[0, -1]], p), self._slope_of(p, width)  # y at both
        is_low = np.abs(ends[0] - y) < np.abs(ends[1] - y)
        at = np.where(is_out, np.where(is_low, breaks[0], breaks[-1]), z)

        def error(row: np.ndarray, t: np.ndarray) -> np.ndarray:
            tail = self.law.tail(row, t, t >= at[row, None], p)
            return np.square(tail) * np.abs(slope(row, t))

        integral = integrate_between(error, np.vstack([breaks, at]), TOLERANCE * unit)
        beyond = np.abs(y - np.where(is_low, ends[0], ends[1]))
        return integral + np.where(is_out, beyond, 0.0)

    def _is_light(self, p: int) -> np.ndarray:
        """Tell of which rows, (N,), all moments of output p exist."""
        is_light = np.broadcast_to(self.law.has_light_tails, self.shape)[:, p]
        return is_light | bool(self.map.is_clipped[:, p].all())

    def _ends(self, p: int) -> np.ndarray:
        """Return the ends of integrals, (2, N): of heavy tails they are the quantiles `TRIMMED`."""
        mean, std = (part[:, p] for part in self.law.place())
        to_end = 1.0 if self.map.is_clipped[:, p].all() else TO_END
        last = mean + to_end * (self.map.reach[:, p, None] - mean)  # (2, N)
        low = np.maximum(mean - LIGHT_REACH * std, last[0])
        high = np.minimum(mean + LIGHT_REACH * std, last[1])
        is_light = self._is_light(p)
        if not is_light.all():
            ends = (self.law.quantile(q)[:, p] for q in (TRIMMED, 1.0 - TRIMMED))
            low, high = (np.where(is_light, a, b) for a, b in zip((low, high), ends, strict=True))
        return np.stack([low, high])

    def _breaks(self, p: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where integrals of output p are split, (K, N), and the widths of y and z, (N,)."""
        mean, std = (part[:, p] for part in self.law.place())
        breaks, (low, high) = mean + np.array(BREAKS)[:, None] * std, ends
        near = np.clip(np.stack([mean - std, mean + std]), low, high)
        with np.errstate(invalid="ignore"):  # where y is beyond the numbers
            unit = 0.5 * np.abs(np.diff(self._column(near, p), axis=0)[0])
        kinks = np.empty(0)
        if len(std):
            first = np.maximum(low, mean - LIGHT_REACH * std).min()
            last = np.minimum(high, mean + LIGHT_REACH * std).max()
            kinks = kinks_between(lambda z: self._column(z, p), first, last, std.min())
        kinks = np.clip(kinks[:, None], mean - KINK_REACH * std, mean + KINK_REACH * std)
        return np.clip(np.vstack([low, breaks, kinks, high]), low, high), unit, std

    def _before(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return z, and a code for y: 0 inside the range of g, −1 below, 1 above."""
        z = self.map.forward(y)
        is_out = ~self.map.is_reached(y, z)
        z = np.clip(z, self.map.low, self.map.high)  # rounding may put an end outside
        if not is_out.any():
            return z, np.zeros(z.shape)
        middle = self.law.place()[0]
        where = np.where(is_out, np.sign(y - self.map.inverse(middle)), 0.0)
        return np.where(is_out, middle, z), where

    def _unit(self) -> np.ndarray:
        """Return the width of z, (N, P), on which g is smooth."""
        return self.law.place()[1]

    def _column(self, z: np.ndarray, p: int) -> np.ndarray:
        """Return g of output p at an array of any shape."""
        return self.map.column(z.ravel(), p).reshape(z.shape)

    def _slope_of(self, p: int, width: np.ndarray) -> Integrand:
        """Return g′ of output p as a function, for rows with these widths of z, (N,)."""

        def slope(row: np.ndarray, z: np.ndarray) -> np.ndarray:
            of_each = np.repeat(width[row], z.shape[1])
            return self.map.slope(z.ravel(), of_each, p).reshape(z.shape)

        return slope


TOLD_OF: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()
"""Transformers of fitted models that users were told of, by their identity and a moment's name."""


def warn_of_lost(moment: str, is_lost: np.ndarray, transformer: Any, instead: str) -> None:
    """Warn of rows (N, P) at which a moment does not exist, once for each fitted transformer."""
    key = id(transformer), moment
    if not is_lost.any() or key in TOLD_OF:
        return
    warn(
        f"The {moment} of y does not exist at some rows, because the transformed target has heavy "
        f"tails there: {instead} is given instead. Use medians and intervals, or a likelihood with "
        "lighter tails.",
        about=f"lost {moment}",
    )
    TOLD_OF[key] = transformer


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
        Unit of `KINK_PRECISION`, to which kinks are located.
    """
    size = (high - low) / CELLS
    least = max(KINK_PRECISION * unit, LEAST_SIZE * max(abs(low), abs(high)))
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


def transformed(law: Law, transformer: Any) -> TransformedLaw:
    """Return the distributions of a transformer's `inverse_transform` of Z.

    Raises
    ------
    ValueError
        If Z are counts, or the transformer is not monotone.
    """
    if law.is_discrete:
        raise ValueError(
            "Counts cannot be transformed, because their distribution is over whole numbers."
        )
    law = law.continuous
    target = TargetMap(transformer, *law.place())
    if np.isfinite([target.low, target.high]).any():
        law = TruncatedLaw.between(law, target.low, target.high)
    return TransformedLaw(law, target)


def transformed_with_atoms(law: Law, transformer: Any) -> Law:
    """Return the same, on the atoms that Z has, if it has some."""
    of_y = transformed(law, transformer)
    return law.with_atoms(of_y, of_y.map.inverse)


def transformed_draws(
    draws: np.ndarray, law: TransformedLaw, rng: np.random.RandomState
) -> np.ndarray:
    """Return g of joint draws of Z, (n, [P,] n_samples); those off its branch are drawn again.

    Only they are then independent between rows.
    """
    columns = np.moveaxis(draws[:, None] if draws.ndim == 2 else draws, 2, 0)
    S, n, P = columns.shape
    if isinstance(law.law, TruncatedLaw):
        columns = law.law.within(columns.copy(), rng)
    rows = law.map.transformer.inverse_transform(columns.reshape(S * n, P))
    return np.moveaxis(np.reshape(rows, (S, n, P)), 0, 2).reshape(draws.shape)
