"""Assign the columns of Parquet files to X, y and the rest, and convert them to arrays."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from .chunk import SAID, Chunk

ROLE = {"y": "target", **SAID}
"""The parameters of ParquetRows that name columns, by our names."""

ENUM = b"_PL_ENUM"  # polars' own metadata of columns
INDEX = re.compile(r"__index_level_\d+__")  # index columns of pandas that have no name


@dataclass(frozen=True)
class Roles:
    """What the columns of files are used for.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the columns that are used, with types that all files can be converted to.
    features : list of str
        Columns of X.
    others : dict of str to (str or list of str)
        Columns of y, weight, exposure, y_std.
    dtype : dtype or None
        Dtype of X; None if X is a pandas frame that `transform` must turn into numbers.
    """

    schema: Any
    features: list[str]
    others: dict[str, Any]
    dtype: np.dtype | None

    @property
    def used(self) -> list[str]:
        """Names of all columns that are read."""
        return list(self.schema.names)

    def chunk(self, where: str, rows: np.ndarray, table: Any) -> Chunk:
        """Return stored rows, a pyarrow table, as a chunk."""
        times = [n for n in self.features if types.is_temporal(self.schema.field(n).type)]
        table = self.as_common(table, [*times, *self.named], where)
        if self.dtype is None:
            X = frame(unordered(table.select(self.features)), where)
        else:
            X = np.empty((len(table), len(self.features)), self.dtype)
            for column, name in zip(X.T, self.features, strict=True):
                column[:] = numbers(table[name])
        others = {name: self.other(table, name) for name in self.others}
        return Chunk(X, rows, where, **others)

    def other(self, table: Any, name: str) -> np.ndarray:
        """Return y, weights, exposures or errors of y; (m, P) if there are several columns."""
        names = self.others[name]
        if isinstance(names, str):
            return values(table[names])
        return np.column_stack([values(table[each]) for each in names])

    @property
    def named(self) -> list[str]:
        """Names of the columns of y, weights, exposures and errors of y."""
        return [name for name in self.used if name not in self.features]

    def as_common(self, table: Any, names: Sequence[str], where: str) -> Any:
        """Return a table of which some columns have the types that suit all files.

        Raises
        ------
        ValueError
            If values do not have that type, for example integers beyond the digits of a float.
        """
        changed: dict[int, tuple[Any, Any]] = {}
        number = {name: j for j, name in enumerate(table.schema.names)}
        for name in names:
            column, kind = table[name], self.schema.field(name).type
            try:
                changed[number[name]] = pa.field(name, kind), column.cast(kind)
            except pa.ArrowException as error:
                raise ValueError(
                    f"{where}: column {name!r} of type {column.type} cannot be converted to "
                    f"{kind}, the type that suits all files: {str(error).rstrip('.')}. Write all "
                    "files with the same type."
                ) from error
        return with_columns(table, changed)


def checked(table: Any, where: str) -> Any:
    """Return a pyarrow table that was read from a file, if its values are valid for their types.

    pyarrow reads a level that a column does not have from elsewhere in memory, or crashes.

    Raises
    ------
    ValueError
        If strings are not UTF-8, or a column does not have one of its levels.
    """
    with readable(table, where):
        table.validate(full=True)
    return table


def frame(table: Any, where: str) -> Any:
    """Return a pyarrow table as a frame of pandas.

    Raises
    ------
    ValueError
        If dates are beyond the years that pandas knows.
    """
    with readable(table, where):
        return table.replace_schema_metadata(None).to_pandas()


@contextlib.contextmanager
def readable(table: Any, where: str) -> Iterator[None]:
    """Raise a ValueError that names the columns, if those of a table cannot be read."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = ", ".join(f"{field.name!r:.40} ({field.type})" for field in unread(table))
        raise ValueError(
            f"The columns of {where} cannot be read: {str(error).rstrip('.')}. They are "
            f"{kinds:.400}. If the file is not damaged, write it again, with strings in UTF-8, "
            "time zones that exist, and dates in the years 1 to 9999."
        ) from error


def unread(table: Any) -> list[Any]:
    """Return the fields of the columns that cannot be converted; all if none fails by itself."""
    failed = []
    for j, field in enumerate(table.schema):
        try:
            column = table.select([j])
            column.validate(full=True)
            column.replace_schema_metadata(None).to_pandas()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            failed.append(field)
    return failed or list(table.schema)


def unordered(table: Any) -> Any:
    """Return a pyarrow table whose Enums of polars have no order, as in a frame of polars."""
    changed = {}
    for j, field in enumerate(table.schema):
        is_enum = any(key.startswith(ENUM) for key in field.metadata or ())
        if is_enum and types.is_dictionary(field.type):
            kind = pa.dictionary(field.type.index_type, field.type.value_type)
            parts = [
                pa.DictionaryArray.from_arrays(part.indices, part.dictionary)
                for part in table.column(j).chunks
            ]
            changed[j] = pa.field(field.name, kind), pa.chunked_array(parts, kind)
    return with_columns(table, changed)


def with_columns(table: Any, changed: Mapping[int, tuple[Any, Any]]) -> Any:
    """Return a pyarrow table with other fields and columns at some places.

    To set them one by one takes the square of their number: minutes for 20,000 dates.
    """
    if not changed:
        return table
    fields, columns = list(table.schema), table.columns
    for j, (field, column) in changed.items():
        fields[j], columns[j] = field, column
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))


def numbers(column: Any) -> np.ndarray:
    """Return a pyarrow column of numbers or booleans, NaN where it is null."""
    if types.is_boolean(column.type) or types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy()


def values(column: Any) -> np.ndarray:
    """Return a pyarrow column of numbers or labels."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy()


def roles_of(
    schemas: Mapping[str, Any],
    features: Sequence[str] | None,
    others: dict[str, Any],
    transforms: bool,
) -> Roles:
    """Return what the columns of files are used for.

    Parameters
    ----------
    schemas : dict of str to pyarrow.Schema
        Schema of each file.
    features : list of str or None
        Columns of X; None: columns of the first file that have no other role.
    others : dict of str to (str or list of str)
        Columns of y, weight, exposure, y_std.
    transforms : bool
        Whether a transformer turns X, as a frame, into numbers.

    Raises
    ------
    ValueError
        If a file lacks a column, or has one of a type that cannot be read.
    """
    listed = {k: listed_names(v, ROLE.get(k, k)) for k, v in others.items()}
    others = {k: v if isinstance(v, str) else listed[k] for k, v in others.items()}
    taken = [column for columns in listed.values() for column in columns]
    names = feature_names(schemas, features, taken)
    refuse_absent(schemas, [*names, *taken])
    refuse_twice({"features": names, **{ROLE.get(k, k): each for k, each in listed.items()}})
    kinds = {name: common_type(schemas, name) for name in [*names, *taken]}
    for name in taken:
        refuse_type(name, kinds[name], label=True)
    if transforms or not all(map(is_number, (kinds[name] for name in names))):
        dtype = None
    else:
        short = all(is_short(kinds[name]) for name in names)
        dtype = np.dtype(np.float32 if short else np.float64)
    return Roles(pa.schema(list(kinds.items())), names, others, dtype)


def listed_names(names: Any, role: str) -> list[str]:
    """Return names of columns as a list; raise a TypeError or ValueError if they are none."""
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    given = list(names) if is_list else [names]
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{role} must be the name of a column, or a list of names, got {names!r}.")
    if not given:
        raise ValueError(f"{role} must name at least one column, got none.")
    return given


def feature_names(
    schemas: Mapping[str, Any], features: Sequence[str] | None, taken: list[str]
) -> list[str]:
    """Return the columns of X: those that are asked for, or all that have no other role."""
    if isinstance(features, str):
        raise TypeError(f"features must be a list of columns, got the string {features!r}.")
    path, first = next(iter(schemas.items()))
    if features is None:
        used, given = set(taken), dict.fromkeys(first.names)  # which pyarrow lists at each call
        index = index_names(first)
        names = [name for name in given if name not in used | index]
        for other, schema in schemas.items():
            index = index_names(schema)
            if new := [name for name in schema.names if name not in index | given.keys()]:
                raise ValueError(
                    f"{other} has columns that {path} does not have: {', '.join(new)}. Name "
                    "the columns of X with `features`."
                )
    else:
        names = listed_names(features, "features")
    if not names:
        raise ValueError(f"{path} must have columns for X, got {', '.join(first.names) or 'none'}.")
    return names


def index_names(schema: Any) -> set[str]:
    """Return the columns of pandas' index, which are not features, as far as the file tells."""
    try:
        told = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        listed = told if isinstance(told, list) else []
        named = {name for name in listed if isinstance(name, str)}  # a range has no column
    except (KeyError, TypeError, ValueError, RecursionError):  # any bytes may stand there
        named = set()
    return {name for name in schema.names if name in named or INDEX.fullmatch(name)}


def refuse_absent(schemas: Mapping[str, Any], columns: list[str]) -> None:
    """Raise a ValueError that names a file which lacks a column, or has it twice."""
    for path, schema in schemas.items():
        count = Counter(schema.names)
        for name in columns:
            if (n := count[name]) != 1:
                raise ValueError(
                    f"{path} must have one column {name!r}, got {n}; its columns are "
                    f"{', '.join(schema.names)}."
                )


def refuse_twice(roles: Mapping[str, list[str]]) -> None:
    """Raise a ValueError if a column is named twice."""
    seen: dict[str, str] = {}
    for role, columns in roles.items():
        for name in columns:
            if name in seen:
                both = f"{seen[name]} and {role}"
                raise ValueError(f"Column {name!r} must be used only once, got it as {both}.")
            seen[name] = role


def common_type(schemas: Mapping[str, Any], name: str) -> Any:
    """Return the type that a column of all files can be converted to."""
    path, first = next(iter(schemas.items()))
    kind = as_copied(first.field(name).type)
    for other, schema in schemas.items():
        parts = [pa.schema([(name, as_copied(each))]) for each in (kind, schema.field(name).type)]
        try:
            kind = pa.unify_schemas(parts, promote_options="permissive").field(name).type
        except pa.ArrowException as error:
            raise ValueError(
                f"Column {name!r} has type {schema.field(name).type} in {other}, but {kind} "
                f"in {path}. Write all files with the same type."
            ) from error
    return kind


def as_copied(kind: Any) -> Any:
    """Return the type without views of strings or bytes, which pyarrow cannot put in order."""
    plain = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    return plain.get(str(kind), kind)  # an older pyarrow has no views


def is_number(kind: Any) -> bool:
    """Tell whether a type is numeric or boolean."""
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(numeric or types.is_boolean(kind))


def refuse_type(name: str, kind: Any, label: bool = False) -> None:
    """Raise a ValueError for a column that is not numbers.

    Parameters
    ----------
    name : str
        Name of the column.
    kind : pyarrow.DataType
        Type of the column.
    label : bool, default=False
        Whether it may hold labels.
    """
    if is_number(kind):
        return
    held = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_temporal(held) and not label:
        raise ValueError(
            f"Column {name!r} holds dates, times or durations ({kind}), which are not "
            "numbers until you choose a unit. Convert the column when you write the "
            "file, or with `transform`."
        )
    strings = types.is_string(held) or types.is_large_string(held) or types.is_string_view(held)
    if label and (strings or types.is_integer(held)):
        return
    if label:
        raise ValueError(
            f"Column {name!r} must be numbers, booleans or labels that are strings, got {kind}. "
            "Convert the column when you write the file."
        )
    raise ValueError(
        f"Column {name!r} must be numbers or booleans, got {kind}. Pass a `transform` that "
        "encodes it, such as a ColumnTransformer, or choose other columns with `features`."
    )


def is_short(kind: Any) -> bool:
    """Tell whether float32 can represent all numbers of a type."""
    if types.is_decimal(kind):
        return False
    return np.result_type(np.float32, kind.to_pandas_dtype()) == np.float32
