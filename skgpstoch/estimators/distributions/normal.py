"""Normal distributions, some of which may be points (standard deviation 0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from ...maths.gaussian import LOG_2PI
from ...maths.ranked_probability import crps_of_normals
from .law import Law


@dataclass(frozen=True)
class NormalLaw(Law):
    """N(mean, std²) at N rows, both (N, P); with std = 0, all probability is at the mean."""

    mean_: np.ndarray
    std: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.mean_.shape

    def of(self, rows: Any) -> NormalLaw:
        return NormalLaw(self.mean_[rows], self.std[rows])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        return self.mean_, self.std

    def log_density(self, y: np.ndarray) -> np.ndarray:
        error, is_point = y - self.mean_, self.std == 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p = -0.5 * (LOG_2PI + np.square(error / self.std)) - np.log(self.std)
        return np.where(is_point, np.where(error == 0.0, np.inf, -np.inf), log_p)

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the joint log density; −∞ if y misses a point in any output."""
        each = self.log_density(y)
        missed = (each == -np.inf).any(1)
        return np.where(missed, -np.inf, np.where(missed[:, None], 0.0, each).sum(1))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._below(y - self.mean_, 1.0)

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self._below(self.mean_ - y, 0.0)

    def _below(self, error: np.ndarray, at_point: float) -> np.ndarray:
        """Return Φ(error/std), which is a step function where std = 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = error / self.std
        step = np.where(error == 0.0, at_point, error > 0.0)
        return np.where(self.std > 0.0, ndtr(z), step)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self.mean_ + self.std * ndtri(probability)

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return self.mean_ + self.std * rng.standard_normal((n_samples, *self.shape))

    def crps(self, y: np.ndarray) -> np.ndarray:
        unit = np.where(self.std > 0.0, self.std, 1.0)  # squares of very large numbers overflow
        z, var = (torch.from_numpy(a) for a in ((y - self.mean_) / unit, self.std / unit))
        return unit * crps_of_normals(z, torch.zeros_like(z)[None], var[None]).numpy()
