"""Distributions that are widened about a centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .law import Law


@dataclass(frozen=True)
class WidenedLaw(Law):
    """The law of y = m + c (z − m), where z has a law; centre m and factor c > 0 are (N, P)."""

    of_z: Law
    centre: np.ndarray
    factor: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.of_z.shape

    @property
    def n_parts(self) -> int:
        return self.of_z.n_parts

    @property
    def has_light_tails(self) -> Any:
        return self.of_z.has_light_tails

    def of(self, rows: Any) -> WidenedLaw:
        return WidenedLaw(self.of_z.of(rows), self.centre[rows], self.factor[rows])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.of_z.moments()
        return self.y(mean), self.factor * std

    def offset(self) -> np.ndarray:
        return self.factor * self.of_z.offset()

    def density_mean(self) -> np.ndarray:
        return self.y(self.of_z.density_mean())

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return self.of_z.log_density(self.z(y)) - np.log(self.factor)

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        return self.of_z.joint_log_density(self.z(y)) - np.log(self.factor).sum(1)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self.of_z.cdf(self.z(y))

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self.of_z.sf(self.z(y))

    def quantile(self, probability: float) -> np.ndarray:
        return self.y(self.of_z.quantile(probability))

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self.y(self.of_z.quantiles(probability))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return self.y(self.of_z.sample(n_samples, rng))

    def crps(self, y: np.ndarray) -> np.ndarray:
        return self.factor * self.of_z.crps(self.z(y))

    def y(self, z: np.ndarray) -> np.ndarray:
        """Return y at z; the same where c is 1."""
        return np.where(self.factor == 1.0, z, self.centre + self.factor * (z - self.centre))

    def z(self, y: np.ndarray) -> np.ndarray:
        """Return z at y; the same where c is 1."""
        return np.where(self.factor == 1.0, y, self.centre + (y - self.centre) / self.factor)
