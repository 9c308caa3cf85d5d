"""Take and join rows of arrays and frames as users store them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from .arrays import is_missing, readable

PLANS = ("LazyFrame",)  # polars frames that are not computed yet
ITERATED = ("DataLoader", "DataFrameGroupBy")  # of torch and pandas, which yield parts of a table


def refuse_unstored(X: Any, name: str) -> None:
    """Raise a TypeError for types without readable rows: sparse matrices, lazy queries, strings."""
    refuse_sparse(X, name)
    refuse_plan(X, name)
    if isinstance(X, str | bytes | dict | set):
        raise TypeError(f"{name} must be an array or a frame of rows, got {type(X).__name__}.")


def refuse_sparse(X: Any, name: str) -> None:
    """Raise a TypeError for a sparse matrix."""
    if hasattr(X, "tocsr"):
        dense = f"{name}.toarray()" if name.isidentifier() else "its method toarray"
        raise TypeError(
            f"{name} must be dense, but sparse data was passed, a {type(X).__name__}. Use "
            f"{dense}, or sparse_output=False in an encoder before the estimator."
        )


def refuse_plan(X: Any, name: str) -> None:
    """Raise a TypeError for a frame that is not computed yet, or rows that are read in chunks."""
    if hasattr(X, "refuse_as_array"):  # a row source, which most questions would make read
        X.refuse_as_array()
    if type(X).__name__ in PLANS:
        raise TypeError(
            f"{name} must hold rows, got a polars LazyFrame. Write it with "
            "frame.sink_parquet(path) and read it with ParquetRows(path), or call "
            "collect() if it fits into memory."
        )
    if type(X).__name__ in ITERATED:
        raise TypeError(
            f"{name} must hold rows, got a {type(X).__name__}. Give the array or frame that it was "
            "made of, or ChunkRows, which reads chunks of rows."
        )


def is_frame(X: Any) -> bool:
    """Tell whether X is a pandas or polars data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def is_arrow(X: Any) -> bool:
    """Tell whether X is a pyarrow table, or a record batch."""
    return hasattr(X, "replace_schema_metadata")


def stored(X: Any) -> Any:
    """Return X in a form that can be indexed: a frame or an array, masked entries as missing."""
    if is_arrow(X):
        return X.replace_schema_metadata(None).to_pandas()
    return X if is_frame(X) else np.asarray(readable(X, "X", takes_missing=True))


def stored_column(values: Any, name: str) -> np.ndarray:
    """Return y, weights or the like as an array; missing labels become None, and are refused."""
    a = np.asarray(readable(values, name))
    if isinstance(values, list) and a.dtype.kind == "U":  # which makes 'nan' of NaN
        a = np.asarray(values, dtype=object)
    if a.dtype.kind == "O" and a.ndim:
        a = a.copy()
        a[np.frompyfunc(is_missing, 1, 1)(a).astype(bool)] = None
    return a


def take(X: Any, index: Any) -> Any:
    """Return rows of an array or a frame, by a slice, a mask or positions."""
    if isinstance(X, np.ndarray):
        return X[index]
    if isinstance(index, np.ndarray) and index.dtype == bool:
        index = np.flatnonzero(index)
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def copied(X: Any) -> Any:
    """Return rows that nobody else writes into; frames but pandas' cannot be written into."""
    return X.copy() if isinstance(X, np.ndarray) or hasattr(X, "iloc") else X


def join(parts: Sequence[Any]) -> Any:
    """Stack arrays, frames or tables one below the other.

    Raises
    ------
    ValueError
        If a column of polars frames has types that do not go together.
    """
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if hasattr(parts[0], "joined"):  # columns that have been read
        return parts[0].joined(parts[1:])
    return joined_in_pandas(parts) if hasattr(parts[0], "iloc") else joined_in_polars(parts)


def joined_in_pandas(parts: Sequence[Any]) -> Any:
    """Stack pandas frames; a column of categories in all that have values stays one.

    It has the levels of all of them.
    """
    import pandas as pd  # installed, as there is a frame

    parts = [part.copy(deep=False) for part in parts]
    for j, of_column in enumerate(zip(*(part.dtypes for part in parts), strict=True)):
        if len(set(of_column)) == 1:
            continue
        columns = [part.iloc[:, j] for part in parts]
        known = [c.cat.remove_unused_categories() for c in columns if hasattr(c, "cat")]
        if known and all(hasattr(c, "cat") or c.isna().all() for c in columns):
            found = [column.cat.categories for column in known]
            if len({each.dtype for each in found}) > 1:  # else long integers would be rounded
                found = [each.astype(object) for each in found]
            levels = reduce(partial(pd.Index.union, sort=False), found)
            for part in parts:
                part.isetitem(j, part.iloc[:, j].astype(pd.CategoricalDtype(levels)))
    return pd.concat(parts, ignore_index=True)


def joined_in_polars(parts: Sequence[Any]) -> Any:
    """Stack polars frames; types of a column may differ as far as they are of one kind."""
    import polars as pl

    texts = []
    for name in parts[0].columns:
        of_column = [part.schema[name] for part in parts]
        kinds = {kind_in_polars(dtype) for dtype in of_column if dtype != pl.Null}
        if len(kinds) > 1:
            found = ", ".join(sorted({str(dtype) for dtype in of_column}))
            raise ValueError(
                f"Column {name!r} of X has types that do not go together in different chunks: "
                f"{found}. Convert it to one type in all of them, with cast."
            )
        if kinds == {pl.String} and len(set(of_column)) > 1:
            texts.append(pl.col(name).cast(pl.String))
    try:
        return pl.concat([part.with_columns(texts) for part in parts], how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:  # as of decimals and booleans
        raise ValueError(
            f"Columns of X have types that do not go together in different chunks: {error}. "
            "Convert them to one type in all of them, with cast."
        ) from error


def kind_in_polars(dtype: Any) -> Any:
    """Return what types of polars share if one type can stand for them."""
    import polars as pl

    if dtype.is_numeric() or dtype == pl.Boolean:
        return "numbers"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return pl.String
    if dtype in (pl.Date, pl.Datetime):
        return "times", getattr(dtype, "time_zone", None)
    return dtype.base_type()


def has_text_names(X: Any) -> bool:
    """Tell whether all columns of a frame have texts for names; so do arrays from files."""
    return not is_frame(X) or all(isinstance(name, str) for name in X.columns)


def names_of(X: Any) -> list[str] | None:
    """Return the names of a frame's columns; None for an array."""
    if is_arrow(X):
        return list(X.column_names)
    return [str(name) for name in X.columns] if is_frame(X) else None
