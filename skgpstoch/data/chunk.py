"""Chunks of rows in memory: checks of their contents, and how stored rows become X."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from .array_inputs import refuse_large, refuse_ragged, refuse_times
from .frames import (
    has_text_names,
    join,
    names_of,
    refuse_unstored,
    stored,
    stored_column,
    take,
)

BESIDES_X = ("y", "weight", "exposure", "y_std")
"""Names of the arrays that a chunk may hold besides X."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of a source.

    ``chunk[index]``, with a slice, a mask or positions, selects rows; ``len(chunk)`` is m.

    Parameters
    ----------
    X : ndarray of shape (m, d)
        Inputs, in the source's dtype; a frame or array as stored if they are not transformed yet.
    rows : ndarray of shape (m,)
        The number of each row in the whole source, counted from 0.
    where : str
        Origin of the rows: the file and the row group, or the number of the chunk.
    y : ndarray of shape (m,) or (m, P), or None, default=None
        Targets: floats in float64, integers or booleans; string labels as objects.
    weight, exposure : ndarray of shape (m,) or None, default=None
        Row weights (`sample_weight`), and the exposures that multiply the rates of counts.
    y_std : ndarray of the shape of y or None, default=None
        Known measurement errors of y, as standard deviations.
    cluster : ndarray of shape (m,) or None, default=None
        Codes of groups that are held out together.
    """

    X: Any
    rows: np.ndarray
    where: str
    y: np.ndarray | None = None
    weight: np.ndarray | None = None
    exposure: np.ndarray | None = None
    y_std: np.ndarray | None = None
    cluster: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Chunk:
        arrays = {name: take(array, index) for name, array in self.arrays().items()}
        return Chunk(where=self.where, **arrays)

    @property
    def row_counts(self) -> np.ndarray:
        """How many rows each row counts for, (m,): its weight, or 1."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def first(self) -> int:
        """Number of the first row; the chunk must have at least one row."""
        return int(self.rows[0])

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that are not None, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "where"}
        return {name: array for name, array in found.items() if array is not None}

    def counted(self) -> Chunk:
        """Return the rows whose weight is positive."""
        if self.weight is None or (self.weight > 0.0).all():
            return self
        return self[self.weight > 0.0]


def stored_arrays(parts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the parts of a chunk, X and others, as they can be indexed.

    Raises
    ------
    ValueError
        If rows of a list have different lengths, or one value stands for all rows.
    """
    arrays = {}
    for name, values in parts.items():
        said = f"{where}: {SAID.get(name, name)}"
        refuse_ragged(values, said)
        arrays[name] = stored(values) if name == "X" else stored_column(values, said)
        if not np.shape(arrays[name]):
            raise ValueError(f"{said} must have one value for each row of X, got {values!r:.60}.")
    return arrays


@contextlib.contextmanager
def named_by(where: str, errors: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Raise these errors of the block as a ValueError that names a chunk."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{where}: {error}") from error


def out_of_memory(rows: str, error: MemoryError) -> str:
    """Say which rows did not fit into memory."""
    return f"Reading {rows} ran out of memory{f': {error}' if str(error) else ''}."


def concatenated(chunks: Sequence[Chunk]) -> Chunk:
    """Join one or more chunks into one chunk, in this order."""
    if len(chunks) == 1:
        return chunks[0]
    names = chunks[0].arrays()
    arrays = {name: join([getattr(c, name) for c in chunks]) for name in names}
    return Chunk(where=chunks[0].where, **arrays)


def checked(chunk: Chunk, names: Sequence[str], dtype: np.dtype) -> Chunk:
    """Check that X has these columns; return the chunk with X converted to this dtype.

    Raises
    ------
    ValueError
        If a value is invalid; the message names the file and row group, or the chunk, and the
        column.
    """
    X = chunk.X
    refuse_dimensions(X, chunk.where)
    refuse_width(X, names, chunk.where)
    arrays: dict[str, Any] = {
        "X": as_dtype(X, dtype, f"{chunk.where}: X"),
        "rows": chunk.rows,
        "y": None if chunk.y is None else as_target(chunk.y, chunk.where),
    }
    for name in BESIDES_X[1:]:
        column = getattr(chunk, name)
        arrays[name] = column if column is None else as_floats(column, name, chunk.where)
    done = Chunk(where=chunk.where, **arrays)
    refuse_lengths(done)
    refuse_missing(done, names)
    return done


def refuse_dimensions(X: Any, where: str) -> None:
    """Raise a ValueError unless X has rows and columns."""
    if len(np.shape(X)) != 2:
        raise ValueError(f"{where}: X must have two dimensions, got shape {np.shape(X)}.")


def refuse_width(X: Any, names: Sequence[str], where: str) -> None:
    """Raise a ValueError unless X (m, d) has as many columns as there are names."""
    if (n := np.shape(X)[1]) != len(names):
        raise ValueError(f"{where}: X has {n} columns, but the first rows have {len(names)}.")


def as_dtype(values: Any, dtype: np.dtype, name: str) -> np.ndarray:
    """Convert to this floating type; raise a ValueError if the values are not numbers.

    Numbers that are too large become infinite, and are refused as such.
    """
    a = np.asarray(values)
    if a.dtype.kind in "cMmV":  # NumPy would convert these, in its own units
        raise ValueError(f"{name} must be numeric, got dtype {a.dtype}: convert it to numbers.")
    try:
        with np.errstate(over="ignore"):
            return a.astype(dtype, copy=False)
    except OverflowError as error:
        refuse_large(name, error)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be numeric, got dtype {a.dtype} ({error}). Encode it, for example "
            "with a ColumnTransformer passed as `transform`."
        ) from error


SAID = {"weight": "sample_weight"}  # the user's names


def as_floats(values: Any, name: str, where: str) -> np.ndarray:
    """Return weights, exposures or errors in float64, with (m, 1) as (m,)."""
    a = as_dtype(values, np.dtype(np.float64), f"{where}: {SAID.get(name, name)}")
    return a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a


def as_target(values: np.ndarray, where: str) -> np.ndarray:
    """Return targets: floats in float64, strings as objects, with (m, 1) as (m,).

    Raises
    ------
    ValueError
        If the targets are dates, durations or complex numbers.
    """
    kind = values.dtype.kind
    if kind in "cMmV":
        raise ValueError(f"{where}: y must be numbers or labels, got dtype {values.dtype}.")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    wanted: dict[str, type] = {"f": np.float64, "i": np.int64, "U": object, "S": object}
    return values.astype(wanted.get(kind, values.dtype), copy=False)


def refuse_lengths(chunk: Chunk) -> None:
    """Raise a ValueError if X, y and the others differ in length, or have too many axes."""
    n = len(chunk.rows)
    for name, array in chunk.arrays().items():
        most = {"X": 2, "y": 2, "y_std": 2}.get(name, 1)
        if len(array) != n or array.ndim > most:
            raise ValueError(
                f"{chunk.where}: {SAID.get(name, name)} has shape {array.shape}, but X has {n} "
                "rows."
            )


def refuse_missing(chunk: Chunk, names: Sequence[str]) -> None:
    """Raise a ValueError that names the first column with a non-finite or out-of-range value."""
    known = {"X": list(names)}
    for name, array in chunk.arrays().items():
        if name == "rows":
            continue
        said = known.get(name, [SAID.get(name, name)] * array[..., None].shape[1])
        table = array[:, None] if array.ndim == 1 else array
        for bad, words in wrong(name, table):
            if bad.any():
                row, column = np.argwhere(bad)[0]
                label = f"column {said[column]!r} of X" if name == "X" else said[column]
                raise ValueError(
                    f"{chunk.where}: {label} {words} in {bad[:, column].sum()} of {len(bad)} rows, "
                    f"first in row {chunk.rows[row]} of all{AGAINST_MISSING.get(name, '')}."
                )


AGAINST_MISSING = {"X": ". Drop or fill them, for example with an imputer passed as `transform`"}


def wrong(name: str, table: np.ndarray) -> list[tuple[np.ndarray, str]]:
    """Return masks (m, k) of the invalid entries of an array (m, k), and words for them."""
    if table.dtype.kind == "O":
        missing = np.array([[v is None or v != v for v in row] for row in table.tolist()])
        return [(missing.reshape(table.shape), "has missing values")]
    if table.dtype.kind != "f":
        return []
    if name == "X" and np.isfinite(table).all():  # nearly always so
        return []
    found = [(np.isnan(table), "has missing values (NaN)"), (np.isinf(table), "is infinite")]
    if name in ("weight", "y_std"):
        found.append((table < 0.0, "is negative"))
    if name == "exposure":
        found.append((table <= 0.0, "is not positive"))
    return found


# ---- X of models ---------------------------------------------------------------------------------


EXAMPLE_ROWS = 100
"""Rows that are transformed to find out the columns and dtype of the result."""


@dataclass(frozen=True)
class Inputs:
    """Make the X of chunks.

    Parameters
    ----------
    transform : fitted transformer or None
        Transformer that is applied to stored rows.
    names : list of str
        Names of the columns of X.
    named : bool
        Whether the names are the user's, and texts, which alone scikit-learn compares.
    dtype : dtype
        Dtype of X, float32 or float64.
    returned : list of str or None
        Names of the columns of the frames that the transformer returns.
    """

    transform: Any
    names: list[str]
    named: bool
    dtype: np.dtype
    returned: list[str] | None

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return a chunk with X as an array; whether its columns agree is checked elsewhere."""
        if len(chunk) == 0:
            return replace(chunk, X=np.empty((0, len(self.names)), self.dtype))
        return replace(chunk, X=np.asarray(self.given(chunk)))

    def given(self, chunk: Chunk) -> Any:
        """Return X of a chunk, an array or a frame, as the transformer leaves it.

        Raises
        ------
        ValueError
            If the transformer fails, or returns other columns than for the first rows; if there is
            none, and X holds dates.
        """
        if self.transform is None:
            return without_times(chunk.X, chunk.where)
        X = transformed(self.transform, chunk.X, chunk.where)
        refuse_width(X, self.names, chunk.where)
        names = names_of(X)
        if None not in (names, self.returned) and names != self.returned:
            raise ValueError(
                f"{chunk.where}: `transform` returned the columns {names}, but for the first rows "
                f"{self.returned}. It must return the same columns for all rows; an encoder that "
                "is fitted once, such as OneHotEncoder, does."
            )
        return X


def transformed(transform: Any, X: Any, where: str) -> Any:
    """Return rows after a transformation.

    Raises
    ------
    ValueError
        If the transformer raises an error, or returns no rows and columns, or other rows.
    """
    try:
        made = transform.transform(X)
    except Exception as error:
        raise ValueError(
            f"{where}: `transform` failed on X: {error}. An unfitted `transform` is "
            "fitted to a random sample, which may lack values that other rows have. "
            "Pass a fitted transformer, or one that accepts unknown values "
            "(handle_unknown='ignore')."
        ) from error
    result = f"{where}: the result of `transform`"
    refuse_unstored(made, result)
    refuse_ragged(made, result)
    shape = np.shape(made)
    if len(shape) != 2 or shape[1] == 0 or shape[0] != len(X):
        raise ValueError(
            f"{result} must have columns, and one row for each of the {len(X)} rows that it is "
            f"given, got shape {shape}."
        )
    return made


def without_times(X: Any, where: str) -> Any:
    """Return stored rows; raise a ValueError if they hold dates, which need a transformer."""
    with named_by(where):
        refuse_times(X, "X")
    return X


def inputs_of(transform: Any, X: Any, stored_names: list[str] | None, where: str) -> Inputs:
    """Return how to make X, as the first stored rows show."""
    some = X[:EXAMPLE_ROWS]
    first = without_times(some, where) if transform is None else transformed(transform, some, where)
    made = np.asarray(first)
    refuse_dimensions(made, where)
    names = stored_names if transform is None else names_out(transform)
    if names is None and transform is None:
        names = names_of(X)
    has_names = names is not None and len(names) == made.shape[1]
    used = names if has_names and names is not None else [f"x{j}" for j in range(made.shape[1])]
    named = has_names and (transform is not None or has_text_names(X))
    dtype = np.dtype(np.float32 if made.dtype == np.float32 else np.float64)
    return Inputs(transform, used, named, dtype, None if transform is None else names_of(first))


def names_out(transform: Any) -> list[str] | None:
    """Return a transformer's names of its columns; None if it has none."""
    try:
        return [str(name) for name in transform.get_feature_names_out()]
    except (AttributeError, TypeError, ValueError):  # transformers without names raise these
        return None


def fitted_transform(transform: Any, sample: Callable[[], tuple[Any, np.ndarray | None]]) -> Any:
    """Return a fitted transformer: the given one, or a clone fitted on a sample."""
    if transform is not None and not hasattr(transform, "transform"):
        raise TypeError(f"transform must have a method `transform`, got {transform!r}.")
    return transform if is_fitted(transform) else clone(transform).fit(*sample())


def is_fitted(transform: Any) -> bool:
    """Tell whether a transformer, or none, is fitted; a pipeline of which each step is."""
    steps = getattr(transform, "steps", None) or getattr(transform, "transformer_list", [])
    parts = [part for _, part in steps if part not in (None, "passthrough", "drop")]
    if not all(map(is_fitted, parts)):  # which scikit-learn asks of a pipeline's last step alone
        return False
    try:
        check_is_fitted(transform)
    except NotFittedError:
        return False
    except TypeError:  # not a scikit-learn estimator: it needs no fit
        return True
    return True
