"""Encode categories as one column for each level, and replace levels that training rows lacked."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .columns import LEVEL, Column
from .messages import warn_once
from .numeric import STAND_INS, Encoder, Level, Numbers

UNSEEN_LEVEL = -1  # the code of a level that training rows do not have
MOST_ONE_HOT = 100  # most levels that have a column each; more have means of the target
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
    """One-hot columns, one for each level; a single 0/1 column for two levels, 0.5 if unseen.

    Means (L,) of the target at levels, if there are many, tell which ones stand in for a new one.
    """

    levels: dict[Hashable, int]
    means: np.ndarray | None = None

    @property
    def effects(self) -> np.ndarray | None:
        return self.means

    @property
    def has_many(self) -> bool:
        """Whether not all known levels stand in for a new one."""
        return len(self.levels) > STAND_INS

    @property
    def width(self) -> int:
        return len(self.levels) if len(self.levels) > 2 else len(self.levels) - 1

    @property
    def widths(self) -> list[int]:
        return [self.width] if self.width else []

    @property
    def missing_columns(self) -> list[int]:
        """Position of the last level, if it is a missing value."""
        return [self.width - 1] if None in self.levels and self.width else []

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels (n,): (n, width)."""
        if len(self.levels) > MOST_ONE_HOT:  # in an edited file
            raise ValueError(f"{len(self.levels)} levels are too many for a column each.")
        codes = codes_of(labels, self.levels)[:, None]
        if self.width == 1:
            return np.where(codes == UNSEEN_LEVEL, 0.5, codes)
        return (codes == np.arange(self.width)).astype(np.float64)

    def rows_by_level(self, part: np.ndarray) -> Iterator[Level]:
        for level, code in self.levels.items() if self.width else ():
            yield level, part[:, 0] == code if self.width == 1 else part[:, code] == 1.0


@dataclass(frozen=True)
class Omitted(Encoder):
    """Encoder of a category that models do not see."""

    levels: dict[Hashable, int]

    @property
    def width(self) -> int:
        return 0

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        return np.empty((len(labels), 0))


def within_groups(columns: Sequence[Column], cluster: np.ndarray | None) -> list[int]:
    """Return the positions of categories of which each level belongs to one group (n,)."""
    if cluster is None:
        return []
    found = []
    for j, column in enumerate(columns):
        if column.kind == LEVEL:
            pairs = set(zip(column.values.tolist(), cluster.tolist(), strict=True))
            if len(pairs) == len({level for level, _ in pairs}):
                found.append(j)
    return found


def missing_columns_of(encoders: Sequence[Encoder]) -> list[int]:
    """Return the positions of columns that flag missing values, for encoders side by side."""
    return [start + j for start, encoder in placed(encoders) for j in encoder.missing_columns]


def placed(encoders: Sequence[Encoder]) -> Iterator[tuple[int, Encoder]]:
    """Yield encoders side by side, each with the position of its first column."""
    starts = np.cumsum([0, *(encoder.width for encoder in encoders)]).tolist()
    yield from zip(starts, encoders, strict=False)


# ---- levels that training rows did not have ------------------------------------------------------


DAY_STAND_INS = 6  # of days
FIRST_PLACE = 0.35
"""Level k of K is at the quantile (k + FIRST_PLACE)/(K − 1 + 2·FIRST_PLACE) of the mean targets or
effects at levels: six of a normal distribution have 98 % of its variance. *Measured* on twelve
made-up tables of 15 to 100 levels with normal and lognormal effects: new levels have an NLPD of
1.591 with 8, 1.591 with 12 and 1.542 with 24, in proportion to whose number the time is."""


class NewRows(NamedTuple):
    """Rows with levels that training rows did not have: their numbers (m,) and encodings.

    The encodings (K, m, d) have K known levels in place of the new ones.
    """

    rows: np.ndarray
    stand_ins: np.ndarray


def new_levels(column: Column, known: set, predicted: str, owner: Any) -> np.ndarray:
    """Return the mask (n,) of rows of a column with a level that training rows did not have.

    A missing value is such a level if no training row had one. Warn of new levels; `predicted` says
    what is predicted there.
    """
    is_new = is_unknown(column, known)
    new = set(column.values[is_new].tolist())
    if new - {None}:
        level = min(new - {None}, key=str)
        meant = next((other for other in known if str(other) == str(level)), None)
        cure = "" if meant is None else f" If it is {meant!r}, which they had, convert the column."
        warn_once(
            f"Column {column.name} of X has levels that the training rows did not have, "
            f"such as {level!r}. Predictions for these rows are {predicted}.{cure}",
            owner,
            (column.name, "new"),
        )
    if None in new:
        warn_once(
            f"Column {column.name} of X has missing values, but it had none in the "
            f"training rows. Predictions for these rows are {predicted}. If values will "
            "be missing at prediction time, train with some missing too.",
            owner,
            (column.name, "missing"),
        )
    return is_new


def few_missing(column: Column, encoder: Numbers, predicted: str | None, owner: Any) -> np.ndarray:
    """Return the mask (n,) of rows that lack a number, which few training rows did.

    Warn of these, if `predicted` says what is predicted there.
    """
    missing = np.isnan(column.values)
    if predicted is not None and missing.any():
        warn_once(
            f"Column {column.name} of X has missing values, but it had few in the training rows. "
            f"Predictions for these rows are {predicted}. If values will be missing at prediction "
            "time, train with more missing.",
            owner,
            (column.name, "missing"),
        )
    return missing


def is_unknown(column: Column, known: set) -> np.ndarray:
    """Return the mask (n,) of rows with a level that is not known; nothing if none is known."""
    labels = column.values.tolist()
    if column.kind != LEVEL or not known - {None} or known.issuperset(labels):
        return np.zeros(len(labels), dtype=bool)
    new = set(labels) - known
    return np.array([label in new for label in labels], dtype=bool)


def stand_ins(
    levels: Sequence[set | None], effects: Sequence[np.ndarray | None], numbers: Iterable[int]
) -> list[np.ndarray]:
    """Return, for each column, known levels to replace new ones, as an array (STAND_INS,).

    A column has a number K of its own, after which its levels repeat. They are at quantiles of the
    levels' effects (L,) if these are given. The levels are permuted separately for each column, and
    repeated so that they occur in many combinations.
    """
    rng, found = np.random.RandomState(SHUFFLE_SEED), []
    taken: list[np.ndarray] = []
    for known, effect, K in zip(levels, effects, numbers, strict=True):
        if not known:
            found.append(np.full(STAND_INS, None))
            continue
        of_column = np.array([None, *sorted(known - {None})], dtype=object)[1:]
        order = of_column[rng.permutation(len(of_column))]
        if effect is not None and len(order):
            places = (np.arange(K) + FIRST_PLACE) / (K - 1 + 2.0 * FIRST_PLACE)
            at = np.floor(places * len(order)).astype(np.intp)
            order = of_column[np.argsort(effect[: len(order)], kind="stable")][rng.permutation(at)]
        own = np.resize(order, K) if len(order) else np.full(K, None)
        taken.append(repeated(K, taken[-STAND_INS:]))  # pairs of all would take long
        found.append(own[taken[-1]])
    return found


def with_numbers(found: list[np.ndarray], encoders: Sequence[Encoder]) -> list[np.ndarray]:
    """Return levels in place of new ones, and numbers in place of those that few rows lacked."""
    for j, each in enumerate(encoders):
        if type(each) is Numbers and each.stand_ins is not None:
            found[j] = np.random.RandomState(SHUFFLE_SEED + j).permutation(each.stand_ins)
    return found


def repeated(K: int, others: Sequence[np.ndarray]) -> np.ndarray:
    """Return 0, …, K − 1, repeated (STAND_INS,): moved in some rounds, so that pairs differ."""
    k = np.arange(STAND_INS)
    choices = [(k + (k // K**s if s else 0)) % K for s in range(3)]

    def n_pairs(choice: np.ndarray) -> int:
        return sum(len(np.unique(choice + K * other)) for other in others)

    return max(choices, key=n_pairs)


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
