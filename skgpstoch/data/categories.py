"""Encode categories as numbers: one column for each level, or the target's mean at the level."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from .columns import LEVEL, Column
from .messages import warn
from .numeric import Encoder, Level

UNSEEN_LEVEL = -1  # the code of a level that training rows do not have
N_FOLDS = 5  # folds of training rows; each is encoded with the target means of the others
SHUFFLE_SEED = 0  # fixed seed of the folds, so that they depend only on the rows' contents


def levels_of(found: set) -> dict[Hashable, int]:
    """Return the codes of levels in sorted order; a missing value comes last."""
    levels = sorted(found - {None}) + [None] * (None in found)
    return {level: code for code, level in enumerate(levels)}


def codes_of(labels: np.ndarray, levels: dict[Hashable, int]) -> np.ndarray:
    """Return the code of the level of each row, (n,)."""
    return np.array([levels.get(label, UNSEEN_LEVEL) for label in labels.tolist()], dtype=np.intp)


@dataclass(frozen=True)
class OneHot(Encoder):
    """One-hot columns, one for each level; a single 0/1 column for two levels, 0.5 if unseen."""

    levels: dict[Hashable, int]

    @property
    def width(self) -> int:
        return len(self.levels) if len(self.levels) > 2 else len(self.levels) - 1

    @property
    def missing_columns(self) -> list[int]:
        """Position of the last level, if it is a missing value."""
        return [self.width - 1] if None in self.levels and self.width else []

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels (n,): (n, width)."""
        codes = codes_of(labels, self.levels)[:, None]
        if self.width == 1:
            return np.where(codes == UNSEEN_LEVEL, 0.5, codes)
        return (codes == np.arange(self.width)).astype(np.float64)

    def rows_by_level(self, part: np.ndarray) -> Iterator[Level]:
        for level, code in self.levels.items() if self.width else ():
            yield level, part[:, 0] == code if self.width == 1 else part[:, code] == 1.0


@dataclass(frozen=True)
class Joined(Encoder):
    """Several encoders of one column, whose encoded columns are stacked side by side."""

    parts: tuple[Any, ...]

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def missing_columns(self) -> list[int]:
        return missing_columns_of(self.parts)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.hstack([part(values) for part in self.parts])

    def rows_by_level(self, part: np.ndarray) -> Iterator[Level]:
        for first, each in placed(self.parts):
            yield from each.rows_by_level(part[:, first : first + each.width])


def missing_columns_of(encoders: Sequence[Encoder]) -> list[int]:
    """Return the positions of columns that flag missing values, for encoders side by side."""
    return [start + j for start, encoder in placed(encoders) for j in encoder.missing_columns]


def placed(encoders: Sequence[Encoder]) -> Iterator[tuple[int, Encoder]]:
    """Yield encoders side by side, each with the position of its first column."""
    starts = np.cumsum([0, *(encoder.width for encoder in encoders)]).tolist()
    yield from zip(starts, encoders, strict=False)


# ---- target statistics ---------------------------------------------------------------------------


class Targets(NamedTuple):
    """Training rows and their targets, with equal rows merged into groups.

    Groups are in the order of their contents. So sums are the same to the last bit, whatever the
    order of rows is, and whether a row occurs twice or has weight 2.
    """

    row: np.ndarray  # (G,), one row of each group
    group: np.ndarray  # (n,), the group of each row
    y: np.ndarray  # (G, P)
    weight: np.ndarray  # (G,)
    fold: np.ndarray  # (G,)
    own: np.ndarray  # (G,), number of rows in each group that its fold must not see

    @classmethod
    def of(cls, columns: list[np.ndarray], y: np.ndarray, weight: np.ndarray | None) -> Targets:
        """Group equal rows, and assign groups to folds that depend only on the rows' contents.

        Parameters
        ----------
        columns : list of ndarray of shape (n,)
            Numbers or codes that tell rows apart.
        y : ndarray of shape (n, P)
            Targets.
        weight : ndarray of shape (n,) or None
            Positive weights.
        """
        keys = np.stack([*columns, *y.T])  # (k, n)
        order = np.lexsort(keys[::-1])
        is_first = np.ones(len(y), dtype=bool)
        is_first[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(0)
        group = np.empty(len(y), dtype=np.intp)
        group[order] = np.cumsum(is_first) - 1
        row = order[is_first]
        fold = np.random.RandomState(SHUFFLE_SEED).permutation(len(row)) % N_FOLDS
        weight = np.bincount(group, weight)
        return cls(
            row, group, y[row], weight, fold, copies_not_told(np.stack(columns)[:, row], weight)
        )


def copies_not_told(inputs: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return how many rows of each group its fold must not see, (G,).

    These are all rows, if no other group has the same inputs. If the same inputs (k, G), in order,
    have several targets, it is only one row: a mean without all rows of one target would reveal
    which target is left out. For the same reason a group of many rows is spread over the folds.
    """
    is_new = np.r_[True, (inputs[:, 1:] != inputs[:, :-1]).any(0)]
    cell = np.cumsum(is_new) - 1
    several = np.bincount(cell)[cell] > 1
    few = np.where(several, np.minimum(weight, 1.0), weight)
    return np.where(weight < N_FOLDS, few, weight / N_FOLDS)


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

    @classmethod
    def fit(
        cls, labels: np.ndarray, levels: dict[Hashable, int], targets: Targets
    ) -> tuple[Self, np.ndarray]:
        """Return the encoder, and training rows encoded without their own folds, (n, P)."""
        codes, y, n_levels = codes_of(labels[targets.row], levels), targets.y, len(levels)
        n, total = sums(codes, n_levels, y, targets.weight)  # (L, 1), (L, P)
        prior = prior_rows(n, total, sums(codes, n_levels, y**2, targets.weight)[1])
        found = cls(levels, shrunk(n, total, prior))
        less, lost = sums_by_fold(codes, targets.fold, n_levels, y, targets.own)
        without = without_folds(n, total, prior, less, lost)
        return found, without[targets.fold, codes][targets.group]

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels (n,) of new rows: (n, P)."""
        return self.means[codes_of(labels, self.levels)]


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


# ---- levels that training rows did not have ------------------------------------------------------


STAND_INS = 24  # number of known levels in place of a new one; repeated if there are fewer


class NewRows(NamedTuple):
    """Rows with levels that training rows did not have: their numbers (m,) and encodings.

    The encodings (K, m, d) have K known levels in place of the new ones.
    """

    rows: np.ndarray
    stand_ins: np.ndarray


def new_levels(column: Column, known: set, predicted: str) -> np.ndarray:
    """Return the mask (n,) of rows of a column with a level that training rows did not have.

    A missing value is such a level if no training row had one. Warn of new levels; `predicted` says
    what is predicted there.
    """
    labels = column.values.tolist()
    if column.kind != LEVEL or not known - {None} or known.issuperset(labels):
        return np.zeros(len(labels), dtype=bool)
    new = set(labels) - known
    if new - {None}:
        warn(
            f"Column {column.name} of X has levels that the training rows did not have, "
            f"such as {min(new - {None}, key=str)!r}. Predictions for these rows are "
            f"{predicted}."
        )
    if None in new:
        warn(
            f"Column {column.name} of X has missing values, but it had none in the "
            f"training rows. Predictions for these rows are {predicted}. If values will "
            "be missing at prediction time, train with some missing too."
        )
    return np.array([label in new for label in labels], dtype=bool)


def stand_ins(levels: Sequence[set | None]) -> list[np.ndarray]:
    """Return, for each column, K known levels to replace new ones, as an array of objects.

    The levels are permuted separately for each column, so that they occur in many combinations.
    """
    rng, found = np.random.RandomState(SHUFFLE_SEED), []
    for known in levels:
        of_column = np.array([None, *sorted((known or set()) - {None})], dtype=object)[1:]
        order = of_column[rng.permutation(len(of_column))]
        found.append(np.resize(order, STAND_INS) if len(order) else np.full(STAND_INS, None))
    return found


def with_levels(columns: list[Column], is_new: np.ndarray, levels: Sequence[Any]) -> list[Column]:
    """Return columns with `levels` in place of new levels, where `is_new` (d, n)."""
    found = []
    for column, at, level in zip(columns, is_new, levels, strict=True):
        if at.any():
            values = column.values.copy()
            values[at] = level
            column = column._replace(values=values)
        found.append(column)
    return found
