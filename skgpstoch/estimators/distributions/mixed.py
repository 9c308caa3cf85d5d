"""Mixtures of distributions, and distributions of different kinds joined row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy.special import logsumexp

from ...maths.least_counts import least_counts
from .law import Law


class LawOfMixture(Law):
    """The mixture Σ_k π_k p_k(y) of K laws of the same rows; a subclass says how to ask them."""

    @property
    @abstractmethod
    def _shares(self) -> np.ndarray:
        """π (K,) or, if they depend on the row, (K, N); they sum to 1."""

    @property
    def _columns(self) -> np.ndarray:
        """The same as (K, 1, 1) or (K, N, 1)."""
        shares = self._shares
        return shares.reshape(len(shares), -1, 1)

    @property
    @abstractmethod
    def _first(self) -> Law:
        """A law that says of what kind all are."""

    @property
    def is_discrete(self) -> bool:
        return self._first.is_discrete

    @abstractmethod
    def _each(self, method: str, *values: Any) -> np.ndarray:
        """Return what a method of each component returns, K first; `values` are of rows or one."""

    def mean(self) -> np.ndarray:
        return self._point(self._each("mean"))

    def density_mean(self) -> np.ndarray:
        return self._averaged(self._each("density_mean"))

    def offset(self) -> np.ndarray:
        return self.density_mean() - self.mean()

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the prediction of y and the deviation about it.

        With m the prediction of a component, μ the mean of its density and σ² = E(Y − m)²,
        E(Y − M)² = σ² + (m − M)² + 2(m − M)(μ − m).
        """
        means, stds = np.moveaxis(self._each("moments"), 1, 0)
        mean, offsets = self._point(means), self._each("offset")
        unit = np.hypot(stds, means - mean).max(0)  # squares of large or small numbers are none
        apart, stds, offsets = (
            a / np.where(unit > 0.0, unit, 1.0) for a in (means - mean, stds, offsets)
        )
        square = self._averaged(stds**2 + apart**2 + 2.0 * apart * offsets)
        return mean, unit * np.sqrt(np.maximum(square, 0.0))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        each = self._each("log_density", y)
        return np.asarray(logsumexp(each, axis=0, b=self._columns))

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        each = self._each("joint_log_density", y)
        return np.asarray(logsumexp(each, axis=0, b=self._columns[..., 0]))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged(self._each("cdf", y))

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged(self._each("sf", y))

    def quantile(self, probability: float) -> np.ndarray:
        return self._between(self._each("quantile", probability), probability)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self._between(self._each("quantiles", probability), probability)

    def _between(self, ends: np.ndarray, probability: Any) -> np.ndarray:
        """Return quantiles; they lie between the components' quantiles."""
        low, high = ends.min(0), ends.max(0)
        if self.is_discrete:
            return least_counts(self.cdf, probability, low, high)
        return self.searched(probability, low, high)

    def between_counts(self, k: np.ndarray) -> np.ndarray:
        return self._averaged(self._each("between_counts", k))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        which = chosen(self._columns[..., 0], rng.uniform(size=(n_samples, self.shape[0])))
        draws = self._draws(n_samples, rng)
        return np.take_along_axis(draws, which[None, :, :, None], 0)[0]

    @abstractmethod
    def _draws(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        """Draw from each component, (K, n_samples, N, P)."""

    def _averaged(self, values: np.ndarray) -> np.ndarray:
        shares = (
            self._shares if self._shares.ndim == 1 else np.broadcast_to(self._columns, values.shape)
        )
        return np.average(values, axis=0, weights=shares)

    def _point(self, means: np.ndarray) -> np.ndarray:
        """Return what is predicted for y, given the means of all components, (K, N, P)."""
        return self._averaged(means)


def common_support(laws: Sequence[Law]) -> tuple[Any, Any]:
    """Return the smallest and the largest possible y of several laws."""
    lows, highs = zip(*(law.support() for law in laws), strict=True)
    return reduce(np.minimum, lows), reduce(np.maximum, highs)  # of one shape or of several


def chosen(shares: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return which of K is drawn, (n_samples, N), by shares (K, N) or (K, 1)."""
    ends = np.cumsum(shares, axis=0)[:-1]  # (K − 1, N)
    return np.asarray((uniform >= ends[:, None]).sum(0))


@dataclass(frozen=True)
class MixedLaw(LawOfMixture):
    """The mixture of laws of different kinds, with weights (K,) or, by row, (K, N).

    If the prediction of y has weights of its own, deviations are those from this prediction.
    """

    weights: np.ndarray
    parts: Sequence[Law]
    mean_weights: np.ndarray | None = None

    @property
    def _shares(self) -> np.ndarray:
        return self.weights

    @property
    def _first(self) -> Law:
        return self.parts[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.parts[0].shape

    @property
    def has_light_tails(self) -> Any:
        each = (np.broadcast_to(part.has_light_tails, self.shape) for part in self.parts)
        return np.logical_and.reduce(list(each))

    def support(self) -> tuple[Any, Any]:
        return common_support(self.parts)

    def of(self, rows: Any) -> MixedLaw:
        weights = self.weights if self.weights.ndim == 1 else self.weights[:, rows]
        return MixedLaw(weights, [part.of(rows) for part in self.parts], self.mean_weights)

    def _point(self, means: np.ndarray) -> np.ndarray:
        shares = self.weights if self.mean_weights is None else self.mean_weights
        return np.average(means, axis=0, weights=shares)

    def _each(self, method: str, *values: Any) -> np.ndarray:
        return np.stack([np.asarray(getattr(part, method)(*values)) for part in self.parts])

    def _draws(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return np.stack([part.sample(n_samples, rng) for part in self.parts])


@dataclass(frozen=True)
class MixedBlocks(LawOfMixture):
    """The mixture in equal shares of the K blocks of N rows that a law has, one below another.

    Asking one law of K·N rows costs far less than asking K laws.
    """

    law: Law
    n_blocks: int

    @property
    def _shares(self) -> np.ndarray:
        return np.full(self.n_blocks, 1.0 / self.n_blocks)

    @property
    def _first(self) -> Law:
        return self.law

    @property
    def shape(self) -> tuple[int, int]:
        n_rows, n_outputs = self.law.shape
        return n_rows // self.n_blocks, n_outputs

    @property
    def has_light_tails(self) -> Any:
        each = np.broadcast_to(self.law.has_light_tails, self.law.shape)
        return each.reshape(self.n_blocks, *self.shape).all(0)

    def support(self) -> tuple[Any, Any]:
        return self.law.support()

    def quantile(self, probability: float) -> np.ndarray:
        if not self._is_bounded:
            return super().quantile(probability)
        return Law.quantile(self, probability)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        if not self._is_bounded:
            return super().quantiles(probability)
        return Law.quantiles(self, probability)

    @property
    def _is_bounded(self) -> bool:
        """Whether Cantelli's bounds hold: the quantiles of all blocks take longer than a search."""
        return not self.is_discrete and bool(np.isfinite(self.extent()).all())

    def of(self, rows: Any) -> MixedBlocks:
        n_rows = self.shape[0]
        numbers = np.arange(n_rows)[rows] + n_rows * np.arange(self.n_blocks)[:, None]
        return MixedBlocks(self.law.of(numbers.ravel()), self.n_blocks)

    def _each(self, method: str, *values: Any) -> np.ndarray:
        K = self.n_blocks
        each = (v if np.ndim(v) == 0 else np.concatenate([v] * K) for v in values)
        found = np.asarray(getattr(self.law, method)(*each))
        if method == "moments":
            return np.moveaxis(found.reshape(2, K, *self.shape), 0, 1)
        return found.reshape(K, self.shape[0], *found.shape[1:])

    def _draws(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        draws = self.law.sample(n_samples, rng).reshape(n_samples, self.n_blocks, *self.shape)
        return np.moveaxis(draws, 1, 0)


@dataclass(frozen=True)
class JoinedLaw(Law):
    """Laws of parts of the rows, and the positions of these parts among all N rows."""

    parts: Sequence[Law]
    places: Sequence[np.ndarray]

    @classmethod
    def of_parts(cls, parts: Sequence[Law], places: Sequence[np.ndarray]) -> Law:
        """Return the law of all rows; a single part must have all rows in their order."""
        return parts[0] if len(parts) == 1 else cls(parts, places)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(place) for place in self.places), self.parts[0].shape[1]

    @property
    def is_discrete(self) -> bool:
        return self.parts[0].is_discrete

    def support(self) -> tuple[Any, Any]:
        return common_support(self.parts)

    def between_counts(self, k: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.between_counts(k[place]))

    @property
    def has_light_tails(self) -> Any:
        """Whether the moments of exp(Y) are finite for each row and output: (N, P)."""
        return self._gathered(lambda part, _: np.broadcast_to(part.has_light_tails, part.shape))

    def of(self, rows: Any) -> Law:
        n_rows = self.shape[0]
        asked, at = np.arange(n_rows)[rows], np.full(n_rows, -1)
        parts, places = [], []
        for part, place in zip(self.parts, self.places, strict=True):
            at[:] = -1
            at[place] = np.arange(len(place))
            is_here = at[asked] >= 0
            if is_here.any():
                parts.append(part.of(at[asked[is_here]]))
                places.append(np.flatnonzero(is_here))
        return JoinedLaw.of_parts(parts, places) if parts else self.parts[0].of(slice(0, 0))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        both = self._gathered(lambda part, _: np.stack(part.moments()), axis=1)
        return both[0], both[1]

    def mean(self) -> np.ndarray:
        return self._gathered(lambda part, _: part.mean())

    def density_mean(self) -> np.ndarray:
        return self._gathered(lambda part, _: part.density_mean())

    def offset(self) -> np.ndarray:
        return self._gathered(lambda part, _: part.offset())

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.log_density(y[place]))

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.joint_log_density(y[place]))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.cdf(y[place]))

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.sf(y[place]))

    def quantile(self, probability: float) -> np.ndarray:
        return self._gathered(lambda part, _: part.quantile(probability))

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.quantiles(probability[place]))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return self._gathered(lambda part, _: part.sample(n_samples, rng), axis=1)

    def crps(self, y: np.ndarray) -> np.ndarray:
        return self._gathered(lambda part, place: part.crps(y[place]))

    def _gathered(
        self, compute: Callable[[Law, np.ndarray], np.ndarray], axis: int = 0
    ) -> np.ndarray:
        """Compute each part's array, whose rows are along `axis`, and join them in row order."""
        found = [compute(*pair) for pair in zip(self.parts, self.places, strict=True)]
        return in_place(found, self.places, axis)


def in_place(
    parts: Sequence[np.ndarray], places: Sequence[np.ndarray], axis: int = 0
) -> np.ndarray:
    """Join the parts' arrays, whose rows are along `axis`, into one array of all rows."""
    order = np.argsort(np.concatenate(places))
    return np.take(np.concatenate(parts, axis), order, axis)
