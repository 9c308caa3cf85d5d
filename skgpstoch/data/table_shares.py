"""Tables that are split over ranks: agree on the columns, and gather rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .columns import EMPTY, LEVEL, Column, ReadTable
from .reduce import Group


def read_alike(group: Group, table: ReadTable | None, beside: Any) -> ReadTable | None:
    """Return this rank's rows, with columns of the kinds that all ranks agree on.

    A column whose values are all missing here gets the kind that it has on other ranks.

    Parameters
    ----------
    group : Group
        All ranks.
    table : ReadTable or None
        This rank's rows; None if it has none.
    beside : object
        Another object, which must be the same on all ranks with rows, and fit into JSON.

    Returns
    -------
    table : ReadTable or None
        The rows, whose columns know the levels and missing values on other ranks.

    Raises
    ------
    ValueError
        On every rank, if ranks have different columns, or different kinds of values in them.
    """
    names = None if table is None else [column.name for column in table.columns]
    check_same_said(group, "Columns of X and y", None if table is None else [names, beside])
    own = None if table is None else [kind_of(column) for column in table.columns]
    told = [kinds for kinds in group.every(own) if kinds is not None]
    by_column = zip(*told, strict=True)
    kinds = [next((kind for kind in ranks if kind), None) for ranks in by_column]
    said = None if own is None else [k or agreed for k, agreed in zip(own, kinds, strict=True)]
    check_same_said(group, "Kinds of columns of X", said)
    if table is not None:
        columns = zip(table.columns, kinds, strict=True)
        table = ReadTable([of_kind(column, kind) for column, kind in columns], table.array)
    found = None if table is None else [held(column) for column in table.columns]
    held_by = [each for each in group.every(found) if each is not None]
    if table is None:
        return None
    return with_elsewhere(table, [frozenset().union(*sets) for sets in zip(*held_by, strict=True)])


def check_same_said(group: Group, name: str, own: Any) -> None:
    """Check that `own` is the same on all ranks where it is not None."""
    texts = [t for t in group.every(own and json.dumps(own, default=str)) if t]
    group.check_same(name, json.dumps(own, default=str) if own else texts[0])


def kind_of(column: Column) -> list[Any] | None:
    """Return the name, kind, time zone and order of a column; None if all values are missing."""
    if column.missing.all():
        return None
    return [column.name, column.kind, column.time_zone, list(map(str, column.order))]


def of_kind(column: Column, kind: list[Any] | None) -> Column:
    """Return a column as one of this kind; if its kind differs, all its values are missing."""
    found = EMPTY if kind is None else kind[1]
    if column.kind == found:
        return column
    n = len(column.values)
    missing = np.full(n, None, dtype=object) if found == LEVEL else np.full(n, np.nan)
    return Column(column.name, found, missing)


def held(column: Column) -> frozenset:
    """Return the levels of a category, and None if a value is missing."""
    if column.kind == LEVEL:
        return frozenset(column.values.tolist())
    return frozenset([None] if column.missing.any() else [])


def with_elsewhere(table: ReadTable, elsewhere: Sequence[frozenset]) -> ReadTable:
    """Return a table whose columns know the levels in other rows."""
    pairs = zip(table.columns, elsewhere, strict=True)
    return ReadTable([column._replace(elsewhere=found) for column, found in pairs], table.array)


def joined_tables(parts: Sequence[ReadTable]) -> ReadTable:
    """Join the rows of tables with the same columns."""
    every = zip(*(part.columns for part in parts), strict=True)
    arrays = [part.array for part in parts if part.array is not None]
    return ReadTable(
        [joined(columns) for columns in every], np.concatenate(arrays) if arrays else None
    )


def joined(columns: Sequence[Column]) -> Column:
    """Join the rows of several columns; take order and time zone from any that has them."""
    values = np.concatenate([column.values for column in columns])
    order = max((column.order for column in columns), key=len)
    zones = [column.time_zone for column in columns if column.time_zone is not None]
    return columns[0]._replace(values=values, order=order, time_zone=zones[0] if zones else None)
