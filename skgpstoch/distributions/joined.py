"""Join distributions of different kinds, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .law import Law


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
