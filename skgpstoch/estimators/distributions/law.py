"""Base class of distributions of N rows and P outputs, with fallbacks by quadrature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...data.arrays import row_blocks
from ...maths.gaussian import inverse
from ...maths.quadrature import integrate_between

BREAKS = (-200.0, -40.0, -10.0, -4.0, -1.5, 0.0, 1.5, 4.0, 10.0, 40.0, 200.0)
"""Standard deviations from the mean at which integrals are split. Beyond the outermost, the squared
probability integrates to 10⁻⁷ of a deviation at most, by Cantelli's inequality."""

TOLERANCE = 1e-8  # error of integrals over an interval, in standard deviations

LEAST_PROBABILITY = 1e-16  # smallest probability of draws by quantiles
COUNTS_AT_A_TIME = 256  # for which a mixture's nodes stay in the processor's cache
TAILS_AT_A_TIME = 2**14  # likewise, of all parts of a mixture
FEW_COUNTS = 256  # counts that are summed one by one
LEAST_TAIL = 1e-9  # probability on either side that is neglected
PANELS = 4.0 ** np.arange(-12, 1)  # interval ends where integration of the rest starts
PRECISION = 1e-8  # error of integrals over an interval, in interquartile ranges


class Law(ABC):
    """Base class of distributions of y at N rows with P outputs.

    Arrays have shape (N, P) and are in the units of y, unless a docstring says otherwise.
    """

    has_atoms: bool = False
    """Whether some values have a positive probability, besides the density."""

    @property
    def n_parts(self) -> int:
        """How many parts a mixture has, each of which is asked for every y."""
        return 1

    @property
    def is_discrete(self) -> bool:
        """Whether y are counts: `log_density` is then a log probability."""
        return False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and outputs, (N, P)."""

    @abstractmethod
    def of(self, rows: Any) -> Law:
        """Return the distributions of selected rows, given a slice or positions."""

    @abstractmethod
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation."""

    @abstractmethod
    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return log p(y) for each output separately, in nats."""

    @abstractmethod
    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return P(Y ≤ y)."""

    @property
    def has_light_tails(self) -> Any:
        """Whether the moments of exp(Y) are finite: one bool, or one for each row and output."""
        return True

    def support(self) -> tuple[Any, Any]:
        """Return the smallest and the largest possible y of all rows."""
        return (0.0 if self.is_discrete else -np.inf), np.inf

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the joint log p(y) of all outputs of each row, (N,) nats."""
        return self.log_density(y).sum(1)

    def log_probability(self, y: np.ndarray) -> np.ndarray:
        """Return the log probability of each value; only for laws with atoms."""
        raise NotImplementedError(f"{type(self).__name__} has no atoms")

    def sf(self, y: np.ndarray) -> np.ndarray:
        """Return P(Y > y)."""
        return np.asarray(1.0 - self.cdf(y))

    def mean(self) -> np.ndarray:
        """Return the mean, which may be cheaper than both moments."""
        return self.moments()[0]

    def density_mean(self) -> np.ndarray:
        """Return the mean of the density, (N, P), if what is predicted for y is not that mean."""
        return self.mean()

    def offset(self) -> np.ndarray:
        """Return the mean of the density minus the prediction of y, which `moments` are about."""
        return np.zeros(self.shape)

    def place(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a centre and a width of each distribution, from which integrals start."""
        return self.moments()

    def extent(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the moments, without warnings where they do not exist."""
        return self.moments()

    @property
    def continuous(self) -> Law:
        """Return the distributions without their atoms."""
        return self

    def with_atoms(self, of_y: Law, inverse: Callable[[np.ndarray], np.ndarray]) -> Law:
        """Return distributions of y = g(z), from those of its density; this law is that of z."""
        return of_y

    def quantile(self, probability: float) -> np.ndarray:
        """Return the quantile for one probability."""
        return self.quantiles(np.full(self.shape, probability))

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        """Return the quantiles for probabilities (N, P) inside (0, 1).

        The search is between Cantelli's bounds, which hold for every distribution with a variance,
        about its mean.
        """
        (point, size), offset = self.moments(), self.offset()
        share = offset / np.where(size > 0.0, size, 1.0)
        mean, std = point + offset, size * np.sqrt(np.maximum(1.0 - np.square(share), 0.0))
        odds = np.sqrt(probability / (1.0 - probability))
        return self.searched(probability, mean - std / odds, mean + std * odds)

    def searched(self, probability: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Search for quantiles between `low` and `high` (N, P)."""

        def cdf(y: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.cdf(y.numpy()))

        given = low, high, np.broadcast_to(probability, low.shape)
        return inverse(cdf, *(torch.from_numpy(np.array(a, np.float64)) for a in given)).numpy()

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        """Draw y independently for each row, (n_samples, N, P)."""
        probabilities = rng.uniform(LEAST_PROBABILITY, 1.0, (n_samples, *self.shape))
        return np.stack([self.quantiles(probability) for probability in probabilities])

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the CRPS of each output, by adaptive quadrature, or by sums for counts."""
        if self.is_discrete:
            return self._crps_of_counts(y)
        mean, std = self.moments()
        breaks = mean + np.array(BREAKS)[:, None, None] * std
        each = zip(y.T, np.moveaxis(breaks, 2, 0), std.T, strict=True)
        return np.stack([self._crps_of(p, *of_output) for p, of_output in enumerate(each)], 1)

    def _crps_of(self, p: int, y: np.ndarray, breaks: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return the CRPS of output p, (N,)."""

        def error(row: np.ndarray, t: np.ndarray) -> np.ndarray:
            return np.square(self.tail(row, t, t >= y[row, None], p))

        return integrate_between(error, np.vstack([breaks, y]), TOLERANCE * std)

    def between_counts(self, k: np.ndarray) -> np.ndarray:
        """Return P(Y ≤ k) of counts, as a function that is smooth between counts."""
        raise NotImplementedError(f"{type(self).__name__} has no counts")

    def _crps_of_counts(self, y: np.ndarray) -> np.ndarray:
        probabilities = LEAST_TAIL, 0.25, 0.75, 1.0 - LEAST_TAIL
        low, first, third, high = (self.quantile(p) for p in probabilities)
        ends = np.stack([y, low, high, third - first + 1.0])
        return np.stack([self._counts_of(p, *ends[..., p]) for p in range(self.shape[1])], 1)

    def _counts_of(
        self, p: int, y: np.ndarray, low: np.ndarray, high: np.ndarray, unit: np.ndarray
    ) -> np.ndarray:
        """Return the CRPS of counts of output p, (N,), by :func:`crps_of_counts`."""

        def below(row: np.ndarray, k: np.ndarray) -> np.ndarray:
            numbers = np.repeat(k.reshape(-1, 1), self.shape[1], 1)
            rows = np.repeat(row, k.shape[1])
            found = np.empty(k.size)
            for some in row_blocks(k.size, COUNTS_AT_A_TIME):
                found[some] = self.of(rows[some]).between_counts(numbers[some])[:, p]
            return found.reshape(k.shape)

        return crps_of_counts(y, low, high, unit, below)

    def tail(self, row: np.ndarray, t: np.ndarray, is_above: np.ndarray, p: int) -> np.ndarray:
        """Return P(Y > t) of output p if `is_above`, else P(Y ≤ t), at t (I, m) of rows (I,)."""
        rows, at = np.repeat(row, t.shape[1]), np.repeat(t.reshape(-1, 1), self.shape[1], 1)
        found, size = np.empty(t.size), max(TAILS_AT_A_TIME // self.n_parts, 1)
        for side in (True, False):
            places = np.flatnonzero(is_above.ravel() == side)
            for some in row_blocks(len(places), size):
                here = places[some]
                law = self.of(rows[here])
                found[here] = (law.sf if side else law.cdf)(at[here])[:, p]
        return found.reshape(t.shape)


Weight = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps rows (I,) and z (I, m) to g(z) − c and g′(z)."""


def moments_by_tails(
    law: Law, p: int, centre: np.ndarray, breaks: np.ndarray, unit: np.ndarray, weight: Weight
) -> tuple[np.ndarray, np.ndarray]:
    """Return E(Y − c) and E(Y − c)², (N,) each, of Y = g(Z), where Z is output p of a law.

    They are integrals over the tail probabilities of Z, from the first to the last break.

    Parameters
    ----------
    centre : ndarray of shape (N,)
        The z at which g(z) = c.
    breaks : ndarray of shape (K, N)
        Values of z at which integrals are split.
    unit : ndarray of shape (N,)
        Width of Y.
    weight : callable
        Maps rows and z to g(z) − c and g′(z).
    """

    def change(row: np.ndarray, z: np.ndarray) -> np.ndarray:
        shift, slope = weight(row, z)
        first = signed_tail(law, row, z, centre, p) * slope
        return np.stack([first, 2.0 * shift * first])

    tolerance = TOLERANCE * np.stack([unit, np.square(unit)])
    first, second = integrate_between(change, np.vstack([breaks, centre]), tolerance)
    return first, second


def signed_tail(law: Law, row: np.ndarray, z: np.ndarray, centre: np.ndarray, p: int) -> np.ndarray:
    """Return P(Z > z) above each row's centre, −P(Z ≤ z) below; its integral is E Z − centre."""
    is_above = z >= centre[row, None]
    tail = law.tail(row, z, is_above, p)
    return np.where(is_above, tail, -tail)


Below = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps rows (I,) and numbers k (I, m) to P(Y ≤ k), smooth between counts."""


def crps_of_counts(
    y: np.ndarray, low: np.ndarray, high: np.ndarray, unit: np.ndarray, below: Below
) -> np.ndarray:
    """Return the CRPS of counts y (N,), from sums of squared probabilities.

        CRPS = Σ_{k<y} F(k)² + Σ_{k≥y} (1 − F(k))²

    If there are many counts, a sum of g(k) from k = a is replaced by the integral from a − ½, where
    F is interpolated smoothly between counts. The Euler-Maclaurin corrections are
    (g(a) − g(a − 1))/24 at the start and −(F(y) − F(y − 1))/12 at the kink.

    Nearly all probability is between `low` and `high` (N,). `unit` (N,) is the width of the
    distributions, to which the error of integrals is relative.
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
