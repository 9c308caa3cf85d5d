"""Distributions within bounds, where a map of the target ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .law import BREAKS, Law, moments_by_tails

LEAST_INSIDE = 1e-300  # probability inside the bounds
LEAST_OUTSIDE = 1e-14  # probability outside, which is worth the rounding of a difference
FAR_OUTSIDE = 1e-30  # probability outside, below which bounds do not matter to integrals


@dataclass(frozen=True)
class TruncatedLaw(Law):
    """Distributions of Z given low ≤ Z ≤ high, both (P,)."""

    law: Law
    low: np.ndarray
    high: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.law.shape

    @property
    def has_light_tails(self) -> Any:
        """Not where something is near a bound, towards which a map may rise without one."""
        below, above = self._outside()
        return np.logical_and(self.law.has_light_tails, below + above <= FAR_OUTSIDE)

    def of(self, rows: Any) -> TruncatedLaw:
        return replace(self, law=self.law.of(rows))

    def place(self) -> tuple[np.ndarray, np.ndarray]:
        middle = self.quantile(0.5)
        return middle, np.minimum(self.law.place()[1], self.quantile(0.84) - self.quantile(0.16))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        (middle, unit), mean, std = self.place(), np.empty(self.shape), np.empty(self.shape)
        ends = (np.broadcast_to(end, self.shape) for end in (self.low, self.high))
        low, high = (np.clip(end, *self._reach()) for end in ends)
        for p in range(self.shape[1]):
            c, u = middle[:, p], unit[:, p]
            breaks = np.clip(c + np.array(BREAKS)[:, None] * u, low[:, p], high[:, p])
            breaks = np.vstack([low[:, p], breaks, high[:, p]])

            def weight(
                row: np.ndarray, z: np.ndarray, c: np.ndarray = c
            ) -> tuple[np.ndarray, np.ndarray]:
                return z - c[row, None], np.ones_like(z)

            first, second = moments_by_tails(self, p, c, breaks, u, weight)
            mean[:, p], std[:, p] = c + first, np.sqrt(np.maximum(second - first**2, 0.0))
        return mean, std

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return np.where(self._is_inside(y), self.law.log_density(y) - self._log_inside(), -np.inf)

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        """As if outputs were independent in what is inside."""
        log_p = self.law.joint_log_density(y) - self._log_inside().sum(1)
        return np.where(self._is_inside(y).all(1), log_p, -np.inf)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        below, _, inside = self._shares()
        share = (self.law.cdf(np.clip(y, self.low, self.high)) - below) / inside
        return np.clip(share, 0.0, 1.0)

    def sf(self, y: np.ndarray) -> np.ndarray:
        _, above, inside = self._shares()
        share = (self.law.sf(np.clip(y, self.low, self.high)) - above) / inside
        return np.clip(share, 0.0, 1.0)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        below, _, inside = self._shares()
        outside = np.clip(below + probability * inside, LEAST_INSIDE, 1.0 - 1e-16)
        return np.clip(self.law.quantiles(outside), self.low, self.high)

    def _is_inside(self, y: np.ndarray) -> np.ndarray:
        return (y >= self.low) & (y <= self.high)

    def _log_inside(self) -> np.ndarray:
        return np.log(self._shares()[2])

    def _shares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities below, above and inside, (N, P); tails keep all digits where all is in."""
        below, above = (np.where(a > LEAST_OUTSIDE, a, 0.0) for a in self._outside())
        return below, above, np.maximum(1.0 - below - above, LEAST_INSIDE)

    def _outside(self) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of Z below and above, (N, P)."""
        low, high = (np.broadcast_to(end, self.shape) for end in (self.low, self.high))
        below = self.law.cdf(np.where(np.isfinite(low), low, 0.0))
        above = self.law.sf(np.where(np.isfinite(high), high, 0.0))
        return np.where(np.isfinite(low), below, 0.0), np.where(np.isfinite(high), above, 0.0)

    def _reach(self) -> tuple[np.ndarray, np.ndarray]:
        """How far integrals reach at most."""
        mean, std = self.law.moments()
        return mean + BREAKS[0] * std, mean + BREAKS[-1] * std
