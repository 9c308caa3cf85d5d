"""Distributions truncated to bounds, for maps of the target that have ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from .law import BREAKS, LEAST_PROBABILITY, Law, moments_by_tails

LEAST_INSIDE = 1e-300  # probability inside the bounds
LEAST_LEFT = 1e-16  # smallest tail probability of quantiles
FAR_TAIL = 1e-3  # if less probability is on the inner side of an end, all inside is a tail
LIGHT_REACH = 40.0  # standard deviations beyond which light tails are negligible
FAR_OUTSIDE = 1e-30  # probability outside below which bounds do not matter to integrals


@dataclass(frozen=True)
class TruncatedLaw(Law):
    """Distributions of Z given low ≤ Z ≤ high, both (P,)."""

    law: Law
    low: np.ndarray
    high: np.ndarray
    of_low: np.ndarray
    of_high: np.ndarray
    """P(Z ≤ end) and P(Z > end), (2, N, P)."""

    @classmethod
    def between(cls, law: Law, low: np.ndarray, high: np.ndarray) -> TruncatedLaw:
        """Return the distributions of Z given low ≤ Z ≤ high, both (P,)."""
        ends = (np.broadcast_to(end, law.shape) for end in (low, high))
        return cls(law, low, high, *(tails(law, end) for end in ends))

    @property
    def shape(self) -> tuple[int, int]:
        return self.law.shape

    @property
    def has_light_tails(self) -> Any:
        """Whether moments of exp(Y) are finite; False near a bound, where a map may rise to ∞."""
        outside = self.of_low[0] + self.of_high[1]
        return np.logical_and(self.law.has_light_tails, outside <= FAR_OUTSIDE)

    def of(self, rows: Any) -> TruncatedLaw:
        at = self.of_low[:, rows], self.of_high[:, rows]
        return TruncatedLaw(self.law.of(rows), self.low, self.high, *at)

    def support(self) -> tuple[Any, Any]:
        return self.low, self.high

    def place(self) -> tuple[np.ndarray, np.ndarray]:
        middle = self.quantile(0.5)
        return middle, np.minimum(self.law.place()[1], self.quantile(0.84) - self.quantile(0.16))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        ends = (np.broadcast_to(end, self.shape) for end in (self.low, self.high))
        low, high = (np.clip(end, *self._reach()) for end in ends)
        columns = enumerate(zip(*(a.T for a in (*self.place(), low, high)), strict=True))
        each = [self._moments_of(p, *of_output) for p, of_output in columns]
        mean, std = (np.stack(moment, 1) for moment in zip(*each, strict=True))
        return mean, std

    def _moments_of(
        self, p: int, middle: np.ndarray, unit: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of output p, (N,) each, by integrals up to ends."""
        breaks = np.clip(middle + np.array(BREAKS)[:, None] * unit, low, high)

        def weight(row: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return z - middle[row, None], np.ones_like(z)

        breaks = np.vstack([low, breaks, high])
        first, second = moments_by_tails(self, p, middle, breaks, unit, weight)
        return middle + first, np.sqrt(np.maximum(second - first**2, 0.0))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return np.where(self._is_inside(y), self.law.log_density(y) - self._log_inside(), -np.inf)

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the joint log density, as if outputs were independent in the normalisation."""
        log_p = self.law.joint_log_density(y) - self._log_inside().sum(1)
        return np.where(self._is_inside(y).all(1), log_p, -np.inf)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        share = between(self.of_low, self._tails(y)) / self._inside()
        return np.where(self._is_point(), y >= self._nearest(), share.clip(0.0, 1.0))

    def sf(self, y: np.ndarray) -> np.ndarray:
        share = between(self._tails(y), self.of_high) / self._inside()
        return np.where(self._is_point(), y < self._nearest(), share.clip(0.0, 1.0))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return self.within(self.law.sample(n_samples, rng), rng)

    def within(self, draws: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Replace draws (n_samples, N, P) outside the bounds by random quantiles."""
        probability = rng.uniform(LEAST_PROBABILITY, 1.0, draws.shape)
        outside = np.argwhere(~self._is_inside(draws).all(2))
        for some in row_blocks(len(outside), BLOCK_ROWS):
            draw, row = outside[some].T
            draws[draw, row] = self.of(row).quantiles(probability[draw, row])
        return draws

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        below, above = self.of_low[0], self.of_high[1]
        outside = below + probability * np.maximum(1.0 - below - above, LEAST_INSIDE)
        found = self.law.quantiles(np.clip(outside, LEAST_INSIDE, 1.0 - LEAST_LEFT))
        is_far = np.maximum(below, above) > 1.0 - FAR_TAIL
        found = np.where(is_far, self._far(probability), found) if is_far.any() else found
        return np.where(self._is_point(), self._nearest(), np.clip(found, self.low, self.high))

    def _far(self, probability: np.ndarray) -> np.ndarray:
        """Search for quantiles between the ends, if all probability inside is in a tail."""
        least, most = self.law.quantile(LEAST_LEFT), self.law.quantile(1.0 - LEAST_LEFT)
        reach = LIGHT_REACH * self.law.place()[1]
        low = np.maximum(self.low, np.minimum(least, self.high - reach))
        high = np.minimum(self.high, np.maximum(most, self.low + reach))
        return self.searched(probability, low, high)

    def _tails(self, y: np.ndarray) -> np.ndarray:
        return tails(self.law, np.clip(y, self.low, self.high))

    def _is_inside(self, y: np.ndarray) -> np.ndarray:
        return (y >= self.low) & (y <= self.high)

    def _inside(self) -> np.ndarray:
        return np.maximum(between(self.of_low, self.of_high), LEAST_INSIDE)

    def _log_inside(self) -> np.ndarray:
        return np.log(self._inside())

    def _is_point(self) -> np.ndarray:
        """Whether the inside is so improbable that its probability is put at the nearest end."""
        return between(self.of_low, self.of_high) <= LEAST_INSIDE

    def _nearest(self) -> np.ndarray:
        return np.where(self.of_low[0] > 0.5, self.low, self.high)

    def _reach(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far integrals reach at most."""
        mean, std = self.law.moments()
        return mean + BREAKS[0] * std, mean + BREAKS[-1] * std


def tails(law: Law, y: np.ndarray) -> np.ndarray:
    """Return P(Z ≤ y) and P(Z > y), (2, N, P), at values (N, P), which may be infinite."""
    is_finite = np.isfinite(y)
    finite = np.where(is_finite, y, 0.0)
    below = np.where(is_finite, law.cdf(finite), y > 0.0)
    return np.stack([below, np.where(is_finite, law.sf(finite), y < 0.0)])


def between(of_a: np.ndarray, of_b: np.ndarray) -> np.ndarray:
    """Return P(a < Z ≤ b) from the smaller tails of a and b, which keeps it accurate."""
    (below_a, above_a), (below_b, above_b) = of_a, of_b
    is_above, is_below = below_a > 0.5, above_b > 0.5
    one_side = np.where(is_above, above_a - above_b, below_b - below_a)
    return np.where(is_above | is_below, one_side, 1.0 - below_a - above_b)
