"""Tables in parts, chunks or those of ranks: what the columns of all of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .chunk import named_by
from .columns import (
    EMPTY,
    LEVEL,
    Column,
    ReadTable,
    asked_column,
    columns_of,
    is_frame,
    names_of,
    narwhals,
)
from .groups import Group
from .read_table import category_mask, read_table

MOST_LEVELS = 100_000
"""Most levels of a column that are kept, because memory must not grow with the rows."""


class ColumnFacts(NamedTuple):
    """Facts about a column in the rows that were read.

    Parameters
    ----------
    name : str
        Name for messages.
    kind : str
        Kind of its values; "nothing" as long as all are missing.
    where : str
        The chunk where the kind was found.
    time_zone : str or None
        Time zone of dates.
    order : tuple
        Levels of an ordered category, if all chunks have them in this order.
    levels : frozenset or None
        Levels of a category; None if there are too many.
    is_missing : bool
        Whether any value is missing.
    """

    name: str
    kind: str
    where: str
    time_zone: str | None = None
    order: tuple = ()
    levels: frozenset | None = frozenset()
    is_missing: bool = False

    @classmethod
    def of(cls, column: Column, where: str) -> ColumnFacts:
        """Return the facts about a column of a chunk."""
        missing = column.missing
        if missing.all():
            return cls(column.name, EMPTY, where, is_missing=True)
        levels = column.values[~missing].tolist() if column.kind == LEVEL else []
        known = column.time_zone, column.order, few(frozenset(levels))
        return cls(column.name, column.kind, where, *known, is_missing=bool(missing.any()))

    def merge(self, other: ColumnFacts) -> ColumnFacts:
        """Return the facts about the rows of both.

        Raises
        ------
        ValueError
            If the columns have different names, or hold different kinds of values.
        """
        if self.name != other.name:
            raise ValueError(
                f"{other.where}: X has the column {other.name} where {self.where} has "
                f"{self.name}. All chunks must have the same columns."
            )
        is_missing = self.is_missing or other.is_missing
        if EMPTY in (self.kind, other.kind):
            first = other if self.kind == EMPTY else self
            return first._replace(is_missing=is_missing)
        if self.said != other.said:
            raise ValueError(
                f"{other.where}: column {self.name} of X holds {other.said}, but "
                f"{self.said} in {self.where}. Write it with the same type everywhere."
            )
        levels = union(self.levels, other.levels)
        order = self.order if self.order == other.order else ()
        return self._replace(order=order, levels=levels, is_missing=is_missing)

    @property
    def said(self) -> str:
        """Description of its values for messages."""
        return self.kind if self.time_zone is None else f"{self.kind} in {self.time_zone}"

    @property
    def elsewhere(self) -> frozenset:
        """Levels, with None if a value is missing."""
        return (self.levels or frozenset()) | frozenset([None] if self.is_missing else [])


def few(levels: frozenset) -> frozenset | None:
    """Return levels, or None if they are too many to be kept."""
    return None if len(levels) > MOST_LEVELS else levels


def union(first: frozenset | None, second: frozenset | None) -> frozenset | None:
    """Return the levels of both."""
    return None if first is None or second is None else few(first | second)


def facts_of(
    X: Any, categorical_features: Any, where: str, names: Sequence[str] | None = None
) -> list[ColumnFacts]:
    """Return the facts about the columns of a chunk, which have these names in a file.

    Raises
    ------
    ValueError
        If no model can read a column; the message names the chunk.
    """
    with named_by(where, (TypeError, ValueError)):
        mask = category_mask(categorical_features, names_of(X), X.shape[1])
        return [ColumnFacts.of(column, where) for column in distinct_columns(X, mask, names)]


def distinct_columns(X: Any, is_category: Any, names: Sequence[str] | None) -> list[Column]:
    """Return the columns; if X is a frame, those that are not numeric without duplicates."""
    if not is_frame(X):
        return columns_of(X, is_category, names)
    nw = narwhals()
    frame, columns = nw.from_native(X, eager_only=True), []
    for j, (name, column) in enumerate(zip(frame.columns, frame.iter_columns(), strict=True)):
        kind = column.dtype
        # Lists have few hashes: to compare them takes the square of the number of rows.
        has_copies = not (kind.is_numeric() or kind.is_nested() or kind == nw.Object)
        part = column.unique() if has_copies else column
        columns.append(asked_column(repr(name), part, is_category is not None and is_category[j]))
    return columns


def merged(several: Sequence[list[ColumnFacts]]) -> list[ColumnFacts]:
    """Merge the facts about one or more chunks, or ranks."""
    return reduce(lambda a, b: [x.merge(y) for x, y in zip(a, b, strict=True)], several)


def read_as(X: Any, categorical_features: Any, facts: Sequence[ColumnFacts]) -> ReadTable:
    """Return the columns of some rows, with the facts about all rows."""
    table = read_table(X, categorical_features)
    pairs = zip(table.columns, facts, strict=True)
    return ReadTable([with_facts(column, known) for column, known in pairs], table.array)


def with_facts(column: Column, known: ColumnFacts) -> Column:
    """Return a column of some rows with the kind, order and levels that it has in all rows."""
    if known.kind == EMPTY:
        return column
    column = of_kind(column, known.kind)
    return column._replace(time_zone=known.time_zone, order=known.order, elsewhere=known.elsewhere)


def of_kind(column: Column, kind: str) -> Column:
    """Return a column as one of this kind; if its kind differs, all its values are missing."""
    if column.kind == kind:
        return column
    n = len(column.values)
    missing = np.full(n, None, dtype=object) if kind == LEVEL else np.full(n, np.nan)
    return Column(column.name, kind, missing)


# ---- parts of ranks ------------------------------------------------------------------------------


def read_alike(group: Group, table: ReadTable | None, beside: str) -> ReadTable | None:
    """Return this rank's rows, with columns of the kinds that all ranks agree on.

    A column whose values are all missing here gets the kind that it has on other ranks.

    Parameters
    ----------
    group : Group
        All ranks.
    table : ReadTable or None
        This rank's rows; None if it has none.
    beside : str
        What is beside them in words, which must be the same on all ranks with rows.

    Returns
    -------
    table : ReadTable or None
        The rows, whose columns know the levels and missing values on other ranks.

    Raises
    ------
    ValueError
        On every rank, if ranks have different columns, or different kinds of values in them.
    """
    own = None
    if table is not None:
        facts = [ColumnFacts.of(column, f"rank {group.rank}") for column in table.columns]
        names = ", ".join(column.name for column in table.columns)
        own = f"X of columns {names} and {beside}", facts
    every = [each for each in group.every(own) if each is not None]
    group.check_same("Columns of X and y", every[0][0] if own is None else own[0])
    known = merged([facts for _, facts in every])
    return None if table is None else read_as(table, None, known)
