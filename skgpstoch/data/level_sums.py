"""Means of the target at each level of a category, from sums over rows on several ranks or chunks.

If a table is split over ranks or read in chunks, a sample determines the kinds of columns. There
may be more levels than the sample can tell about. But the means are ratios of sums over rows, so
each part of the rows computes its own sums, and these are added.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Self

import numpy as np

from .arrays import Scaling
from .categories import (
    N_FOLDS,
    SHUFFLE_SEED,
    TargetMeans,
    codes_of,
    prior_rows,
    shrunk,
    sums,
    sums_by_fold,
    without_folds,
)
from .counter_rng import row_hashes
from .numeric import Numbers

MOST_CLASS_MEANS = 20  # most classes, the most frequent ones, whose shares encode a level


def folds_of(numbers: np.ndarray) -> np.ndarray:
    """Return the fold of each row, (n,), which depends on its number in the whole table.

    A row of weight 2 is therefore in one fold, while two equal rows are mostly in two folds, and
    see each other. If folds depended on contents, as in memory, all rows with the same inputs and
    target would be in one fold, and leaving them out would reveal their target. In memory, counting
    the copies prevents that (`copies_not_told`), but chunks would have to be sorted first.
    """
    return row_hashes(SHUFFLE_SEED, numbers) % N_FOLDS


class LevelTargets(NamedTuple):
    """The values whose means encode a level: the scaled y, or an indicator for each class."""

    tame: tuple[Numbers, ...]  # one for each target that is a number
    unit: Scaling | None
    labels: np.ndarray | None

    @classmethod
    def of(cls, y: np.ndarray, weight: np.ndarray | None, classes: np.ndarray | None) -> Self:
        """Learn the scaling from targets, (n,) or (n, P), or the classes from labels, (n,)."""
        if classes is not None:
            counts = np.bincount(np.searchsorted(classes, y), weight, len(classes))
            found = np.flatnonzero(counts)
            often = found[np.argsort(-counts[found], kind="stable")[:MOST_CLASS_MEANS]]
            is_spare = 1 < len(often) == len(found)  # one share follows from the others
            told = often[1:] if is_spare else often
            return cls((), None, classes[np.sort(told)])
        columns = columns_of(y)
        tame = tuple(Numbers.fit("y", column, weight) for column in columns)
        Z = np.stack([each.scaled(c) for each, c in zip(tame, columns, strict=True)], axis=1)
        offset, scale = Scaling.quantile(Z, weight)  # the same bits in any order of rows
        return cls(tame, Scaling(offset, np.where(scale > 0.0, scale, 1.0)), None)

    @property
    def n_targets(self) -> int:
        """Number P of values."""
        return len(self.tame) if self.labels is None else len(self.labels)

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """Return the values for these targets, (n, P)."""
        if self.labels is not None:
            return (y[:, None] == self.labels).astype(np.float64)
        assert self.unit is not None
        pairs = zip(self.tame, columns_of(y), strict=True)
        Z = np.stack([each.scaled(column) for each, column in pairs], axis=1)
        return (Z - self.unit.offset) / self.unit.scale


def columns_of(y: np.ndarray) -> np.ndarray:
    """Return targets (n,) or (n, P) as float columns, (P, n)."""
    return (y[:, None] if y.ndim == 1 else y).astype(np.float64).T


class FoldMeans(NamedTuple):
    """Encoder of training rows: the target means at levels, from the rows of other folds."""

    levels: dict[Hashable, int]
    means: np.ndarray  # (N_FOLDS, L + 1, P), the last one for other levels

    def __call__(self, labels: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Encode the labels (n,) of rows with these numbers (n,): (n, P)."""
        return self.means[folds_of(numbers), codes_of(labels, self.levels)]


class LevelSums:
    """Σ w and Σ w y of the rows at each level of a column, fold by fold, and Σ w y².

    Parameters
    ----------
    levels : dict
        Codes of the levels; rows with other levels are not counted.
    n_targets : int
        Number P of values.

    Attributes
    ----------
    n, total, squares : ndarray of shape (N_FOLDS, L), (N_FOLDS, L, P) and (L, P)
        The sums.
    """

    def __init__(self, levels: dict[Hashable, int], n_targets: int) -> None:
        self.levels = levels
        self.n = np.zeros((N_FOLDS, len(levels)))
        self.total = np.zeros((N_FOLDS, len(levels), n_targets))
        self.squares = np.zeros((len(levels), n_targets))

    def add(
        self, labels: np.ndarray, numbers: np.ndarray, y: np.ndarray, weight: np.ndarray | None
    ) -> None:
        """Add rows: their labels and numbers (n,), values y (n, P), and weights (n,)."""
        codes, fold = codes_of(labels, self.levels), folds_of(numbers)
        is_known = codes >= 0
        codes, fold, y = codes[is_known], fold[is_known], y[is_known]
        w = np.ones(len(codes)) if weight is None else weight[is_known]
        n, total = sums_by_fold(codes, fold, len(self.levels), y, w)
        self.n += n
        self.total += total
        self.squares += sums(codes, len(self.levels), y**2, w)[1]

    @property
    def n_rows(self) -> float:
        """Total weight of the rows that were counted."""
        return float(self.n.sum())

    def means(self) -> tuple[TargetMeans, FoldMeans]:
        """Return the encoders for new rows and for training rows."""
        n, total = self.n.sum(0)[:, None], self.total.sum(0)
        prior = prior_rows(n, total, self.squares)
        without = without_folds(n, total, prior, self.n, self.total)
        return TargetMeans(self.levels, shrunk(n, total, prior)), FoldMeans(self.levels, without)
