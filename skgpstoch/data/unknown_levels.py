"""Replace levels of categories that the training rows did not have by known levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .categories import SHUFFLE_SEED
from .columns import LEVEL, Column
from .messages import warn

STAND_INS = 24  # number of known levels in place of a new one; repeated if there are fewer


class NewRows(NamedTuple):
    """Rows with levels that training rows did not have: their numbers (m,) and encodings.

    The encodings (K, m, d) have K known levels in place of the new ones.
    """

    rows: np.ndarray
    stand_ins: np.ndarray


def new_levels(column: Column, known: set) -> np.ndarray:
    """Return the mask (n,) of rows of a column with a level that training rows did not have.

    A missing value is such a level if no training row had one.
    """
    if column.kind != LEVEL or not known - {None}:
        return np.zeros(len(column.values), dtype=bool)
    return np.array([v not in known for v in column.values.tolist()], dtype=bool)


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


def warn_of_new_levels(column: Column, known: set, predicted: str) -> None:
    """Warn of levels that training rows did not have; `predicted` says what is predicted there."""
    if column.kind != LEVEL or not known - {None}:
        return
    new = set(column.values.tolist()) - known
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
