"""Means of the target at each level of a category, of rows in memory, in chunks or on ranks.

In memory, training rows get means without a fold that depends on contents (:class:`Targets`). If a
table is split over ranks or read in chunks, a sample determines the kinds of columns. There may be
more levels than the sample can tell about. But the means are ratios of sums over rows, so each part
of the rows computes its own sums, and these are added (:class:`LevelSums`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from .arrays import Scaling
from .categories import SHUFFLE_SEED, codes_of
from .counter_rng import row_hashes
from .equal_rows import units
from .held_out import group_folds
from .level_effects import N_FOLDS
from .numeric import Encoder, Numbers
from .rows import Data

MOST_CLASS_MEANS = 20  # most classes, the most frequent ones, whose shares encode a level


class Targets(NamedTuple):
    """Training rows and their targets, in an order of contents, and folds of them.

    Copies of one observation are merged, and stay in one fold. So sums are the same to the last
    bit, whatever the order of rows is. Rows that agree by chance (:mod:`.equal_rows`) are rows of
    their own, with folds that do not depend on y: if all rows of a level and a target were in one
    fold, the mean without them would reveal the target.
    """

    row: np.ndarray  # (m,), one of the rows that were merged
    place: np.ndarray  # (n,), where each row went
    y: np.ndarray  # (m, P)
    weight: np.ndarray  # (m,)
    fold: np.ndarray  # (m,)

    @classmethod
    def of(
        cls,
        columns: list[np.ndarray],
        y: np.ndarray,
        weight: np.ndarray | None,
        cluster: np.ndarray | None = None,
    ) -> Targets:
        """Order rows, and assign them to folds.

        Parameters
        ----------
        columns : list of ndarray of shape (n,)
            Finite numbers or codes that tell rows apart.
        y : ndarray of shape (n, P)
            Targets.
        weight : ndarray of shape (n,) or None
            Positive weights.
        cluster : ndarray of shape (n,) or None, default=None
            Codes of groups, whose rows are in one fold.
        """
        rows, place = units(Data(np.stack(columns, axis=1), y, weight, cluster=cluster))
        row = np.empty(len(rows), dtype=np.intp)
        row[place] = np.arange(len(y))
        rng = np.random.RandomState(SHUFFLE_SEED)
        if rows.cluster is None:
            fold = rng.permutation(len(rows)) % N_FOLDS
        else:
            fold = group_folds(rows.cluster, N_FOLDS, rng)
        weight = rows.row_counts
        return cls(row, place, rows.y, weight, fold)


@dataclass(frozen=True)
class TargetMeans(Encoder):
    """Mean of each target at each level, shrunk towards the mean of all rows.

    ȳ_l = (Σ_{i∈l} w_i y_i + m ȳ) / (Σ_{i∈l} w_i + m),   m = σ²_within / σ²_between,

    which is the best linear prediction of a level's mean if levels are random. The variances are
    those of the analysis of variance. Training rows get means without their own fold.
    """

    levels: dict[Hashable, int]
    means: np.ndarray  # (n_levels + 1, P), the last one for unseen levels

    @property
    def width(self) -> int:
        return self.means.shape[1]

    @property
    def effects(self) -> np.ndarray:
        return self.means[:-1, self.means.any(0).argmax()]

    @classmethod
    def fit(
        cls, labels: np.ndarray, levels: dict[Hashable, int], targets: Targets
    ) -> tuple[Self, np.ndarray]:
        """Return the encoder, and training rows encoded without their own folds, (n, P)."""
        codes, y, n_levels = codes_of(labels[targets.row], levels), targets.y, len(levels)
        n, total = sums(codes, n_levels, y, targets.weight)  # (L, 1), (L, P)
        prior = prior_rows(n, total, sums(codes, n_levels, y**2, targets.weight)[1])
        found = cls(levels, shrunk(n, total, prior))
        less, lost = sums_by_fold(codes, targets.fold, n_levels, y, targets.weight)
        without = without_folds(n, total, prior, less, lost)
        return found, without[targets.fold, codes][targets.place]

    def beside(self, more: np.ndarray) -> TargetMeans:
        """Return the encoder with more columns, (n_levels + 1, k)."""
        return replace(self, means=np.hstack([self.means, more]))

    def only(self, columns: np.ndarray) -> TargetMeans:
        """Return the encoder with zeros in all columns but these, a mask (width,)."""
        return replace(self, means=np.where(columns, self.means, 0.0))

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels (n,) of new rows: (n, width)."""
        return self.means[codes_of(labels, self.levels)]


def means_at(
    labels: np.ndarray, levels: dict[Hashable, int], y: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """Return the shrunk means of y (n,) at levels, (L,)."""
    codes, w, n_levels = codes_of(labels, levels), 1.0 if weight is None else weight, len(levels)
    columns, w = y[:, None], np.broadcast_to(w, len(y))
    n, total = sums(codes, n_levels, columns, w)
    return shrunk(n, total, prior_rows(n, total, sums(codes, n_levels, columns**2, w)[1]))[:-1, 0]


def sums(
    codes: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ w and Σ w y of the rows at each level, (L, 1) and (L, P)."""
    n = np.bincount(codes, weight, n_levels)[:, None]
    total = np.stack([np.bincount(codes, weight * column, n_levels) for column in y.T], axis=1)
    return n, total


def sums_by_fold(
    codes: np.ndarray, fold: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of the rows of each fold, (N_FOLDS, L) and (N_FOLDS, L, P)."""
    n, total = sums(fold * n_levels + codes, N_FOLDS * n_levels, y, weight)
    return n.reshape(N_FOLDS, n_levels), total.reshape(N_FOLDS, n_levels, y.shape[1])


def without_folds(
    n: np.ndarray, total: np.ndarray, prior: np.ndarray, less: np.ndarray, lost: np.ndarray
) -> np.ndarray:
    """Return the means of levels without the rows of each fold, (N_FOLDS, L + 1, P)."""
    pairs = zip(less, lost, strict=True)
    return np.stack([shrunk(n - of_n[:, None], total - of_y, prior) for of_n, of_y in pairs])


def shrunk(n: np.ndarray, total: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return means of levels, shrunk towards the mean of all rows, which comes last: (L + 1, P)."""
    mean = total.sum(0) / (n.sum() or 1.0)  # 0 if there are no rows
    return np.vstack([(total + prior * mean) / (n + prior), mean])


def prior_rows(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return m, the number of rows that the overall mean counts for at each level: (P,).

    m is at most the number of all rows.

    Parameters
    ----------
    n, total, squares : ndarray of shape (L, 1), (L, P) and (L, P)
        Σ w, Σ w y and Σ w y² at each level; some levels may have no rows.
    """
    seen = n[:, 0] > 0.0
    n, total, squares = n[seen], total[seen], squares[seen]
    n_rows, n_levels = n.sum(), len(n)
    if n_levels < 2:  # the level's mean is the overall mean
        return np.full(total.shape[1], n_rows)
    mean = total.sum(0) / n_rows
    within = (squares - total**2 / n).sum(0) / max(n_rows - n_levels, 1.0)
    spread = (n * (total / n - mean) ** 2).sum(0) / (n_levels - 1)
    between = (spread - within) / ((n_rows - (n**2).sum() / n_rows) / (n_levels - 1))
    within = np.maximum(within, np.finfo(np.float64).tiny)
    return np.asarray(within / np.maximum(between, within / n_rows))


# ---- rows in chunks or on ranks ------------------------------------------------------------------


def folds_of(numbers: np.ndarray) -> np.ndarray:
    """Return the fold of each row, (n,), which depends on its number in the whole table.

    A row of weight 2 is therefore in one fold, while two equal rows are mostly in two folds, and
    see each other: to find copies, as in memory, chunks would have to be sorted first.
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

    def only(self, columns: np.ndarray) -> FoldMeans:
        """Return the encoder with zeros in all columns but these, a mask (P,)."""
        return self._replace(means=np.where(columns, self.means, 0.0))


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
