"""Mixtures of distributions of different kinds, and the law of a model that returns none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.utils import _safe_indexing

from .law import Law


@dataclass(frozen=True)
class MixedLaw(Law):
    """The mixture Σ_k π_k p_k(y) of K laws of the same rows, with weights π (K,) that sum to 1."""

    weights: np.ndarray
    parts: Sequence[Law]

    @property
    def shape(self) -> tuple[int, int]:
        return self.parts[0].shape

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self.parts[0].is_discrete

    @property
    def has_light_tails(self) -> Any:
        each = (np.broadcast_to(part.has_light_tails, self.shape) for part in self.parts)
        return np.logical_and.reduce(list(each))

    def support(self) -> tuple[Any, Any]:
        lows, highs = zip(*(part.support() for part in self.parts), strict=True)
        return np.minimum.reduce(lows), np.maximum.reduce(highs)

    def of(self, rows: Any) -> MixedLaw:
        return MixedLaw(self.weights, [part.of(rows) for part in self.parts])

    def mean(self) -> np.ndarray:
        return self._averaged([part.mean() for part in self.parts])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        means, stds = zip(*(part.moments() for part in self.parts), strict=True)
        mean = self._averaged(means)
        sizes = np.stack([np.hypot(std, own - mean) for own, std in zip(means, stds, strict=True)])
        unit = sizes.max(0)  # squares of very large or small numbers overflow or vanish
        square = self._averaged((sizes / np.where(unit > 0.0, unit, 1.0)) ** 2)
        return mean, unit * np.sqrt(square)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        each = np.stack([part.log_density(y) for part in self.parts])
        return np.asarray(logsumexp(each, axis=0, b=self.weights[:, None, None]))

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        each = np.stack([part.joint_log_density(y) for part in self.parts])
        return np.asarray(logsumexp(each, axis=0, b=self.weights[:, None]))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged([part.cdf(y) for part in self.parts])

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged([part.sf(y) for part in self.parts])

    def quantile(self, probability: float) -> np.ndarray:
        return self._between([part.quantile(probability) for part in self.parts], probability)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self._between([part.quantiles(probability) for part in self.parts], probability)

    def _between(self, ends: Sequence[np.ndarray], probability: Any) -> np.ndarray:
        """Return quantiles; they lie between the components' quantiles."""
        low, high = np.min(ends, axis=0), np.max(ends, axis=0)
        found = self.searched(probability, low, high)
        return np.rint(found) if self.is_discrete else found  # where the steps are

    def between_counts(self, k: np.ndarray) -> np.ndarray:
        return self._averaged([part.between_counts(k) for part in self.parts])

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        which = rng.choice(len(self.parts), (n_samples, self.shape[0]), p=self.weights)
        draws = np.stack([part.sample(n_samples, rng) for part in self.parts])
        return np.take_along_axis(draws, which[None, :, :, None], 0)[0]

    def _averaged(self, values: Any) -> np.ndarray:
        return np.average(values, axis=0, weights=self.weights)


@dataclass(frozen=True)
class AskedLaw(Law):
    """Law of y at X from a model's `predict`, `predictive_cdf` and `log_predictive_density`."""

    model: Any
    X: Any
    n_outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.n_outputs

    def of(self, rows: Any) -> AskedLaw:
        numbers = np.arange(len(self.X))[rows]
        return AskedLaw(self.model, _safe_indexing(self.X, numbers), self.n_outputs)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.model.predict(self.X, return_std=True)
        return np.reshape(mean, self.shape), np.reshape(std, self.shape)

    def mean(self) -> np.ndarray:
        return np.reshape(self.model.predict(self.X), self.shape)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return np.reshape(self.model.predictive_cdf(self.X, self._given(y)), self.shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return np.reshape(self.joint_log_density(y), self.shape)  # of one output

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.log_predictive_density(self.X, self._given(y)))

    def _given(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0] if self.n_outputs == 1 else y
