"""Refuse arrays that NumPy would convert but that are not numbers: dates, durations, texts."""

from __future__ import annotations

import reprlib
import sys
from collections import Counter
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
from sklearn import config_context
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from .arrays import is_missing, readable
from .frames import is_arrow, is_frame, refuse_plan, refuse_sparse
from .messages import warn

TIMES = ("date", "time", "duration", "period")
"""Prefixes of the dtype names of times, in lower case, in NumPy, pandas, polars and Arrow."""

LONG_INTEGERS = "int64", "uint64"
MOST_EXACT = 2**53  # beyond which float64 does not have all integers
LARGEST_TARGET = 1e301  # in size, so that sums over a million rows are finite
NOT_A_NUMBER = "float() argument must be", "Cannot cast"  # Python's and pandas' words
NUMBERS = "biufc"  # NumPy's kinds: scikit-learn refuses complex ones itself
HOW = {
    "X": "convert it to numbers, for example with (column - column.min()) / "
    "numpy.timedelta64(1, 'D'). AutoGaussianProcessRegressor and "
    "AutoGaussianProcessClassifier accept data frames with dates",
    "y": "convert it to numbers, for example with (y - y.min()) / numpy.timedelta64(1, 'D'), "
    "and convert predictions back",
}
TO_DATES = " Periods become dates by column.dt.to_timestamp()."
LABELS = (
    "Convert y to numbers, or use a classifier, such as AutoGaussianProcessClassifier, if y holds "
    "labels."
)


COLUMN = (  # begins as scikit-learn's message does
    "A column-vector y was passed when a 1d array was expected. It is taken as one output, so "
    'predictions have shape (n_samples,). Pass y.ravel(), or a column of a frame such as df["y"].'
)


def one_output(y: np.ndarray, warns: bool = False) -> np.ndarray:
    """Return y of shape (n, 1) as (n,), so that predictions have this shape; keep any other y.

    With `warns`, warn of it as scikit-learn's forests, boosting and networks do: y - predict(X) is
    a matrix if y is a column.
    """
    if y.ndim != 2 or y.shape[1] != 1:
        return y
    if warns:
        warn(COLUMN, DataConversionWarning, about=COLUMN)
    return y[:, 0]


def refuse_times(values: Any, name: str) -> None:
    """Raise a ValueError if an array or a data frame holds dates, durations or complex numbers.

    NumPy would convert them to numbers: times in a unit that depends on how they are stored, and
    complex ones, if they are beside some other dtypes, by their real part.
    """
    for column, dtype in dtypes_of(values):
        held, where = str(dtype), "" if column is None else f" in column {column!r}"
        if held.lower().startswith(TIMES):
            raise ValueError(
                f"{name} must be numeric, got dates or durations{where}, of dtype {held}: "
                f"{HOW[name]}.{TO_DATES if held.startswith('period') else ''}"
            )
        if held.startswith("complex"):  # as scikit-learn's message begins
            raise ValueError(
                f"Complex data not supported: {name} holds complex numbers{where}. Replace them by "
                "their real and imaginary parts."
            )


def dtypes_of(values: Any) -> list[tuple]:
    """Return the names and dtypes of a frame's columns; the name None and the dtype of an array."""
    if hasattr(values, "column_names"):  # Arrow
        return list(zip(values.column_names, values.schema.types, strict=True))
    if is_frame(values):
        return list(zip(values.columns, values.dtypes, strict=True))
    return [(None, getattr(values, "dtype", ""))]


def real_target(y: Any, of_fit: bool = True) -> Any:
    """Return y as scikit-learn can check it: objects as floats, None among them as NaN.

    Raises
    ------
    ValueError
        If y holds anything but numbers, or if a fit to them would overflow.
    """
    refuse_plan(y, "y")
    refuse_sparse(y, "y")
    y = readable(y, "y")
    refuse_times(y, "y")
    refuse_same_names(y, "y")
    refuse_ragged(y, "y")
    a = np.asarray(y)
    refuse_number(a)
    refuse_times(a, "y")
    if a.ndim > 1 and not a.shape[1]:
        raise ValueError(f"y has 0 column(s) (shape={a.shape}) while a minimum of 1 is required.")
    if a.dtype == bool:
        return a.astype(np.float64)
    if a.ndim == 0 or a.dtype.kind in NUMBERS:
        if of_fit:
            refuse_huge(a)
            warn_of_long_integers(a, "y")
        return y
    if a.dtype.kind == "U":
        raise ValueError(f"y must be numeric, got strings (dtype {a.dtype}). {LABELS}")
    if a.dtype.kind != "O":
        raise ValueError(f"y must be numeric, got dtype {a.dtype}. Convert y to numbers.")
    return np.array([number(value) for value in a.flat], dtype=np.float64).reshape(a.shape)


def refuse_number(y: np.ndarray) -> None:
    """Raise a ValueError if y is one value, such as a name, which others take for a column."""
    if y.ndim == 0 and y.dtype.kind in "biufc":
        raise ValueError(f"y must have a target for each row of X, got the number {y}.")
    if y.ndim == 0 and y.dtype.kind in "US":
        raise ValueError(
            f"y must have a target for each row of X, got {reprlib.repr(y.item())}. For a column "
            "of a data frame, pass frame.drop(columns=name) and frame[name]."
        )
    if y.ndim == 0 and y.dtype.kind == "O" and y.item() is not None:
        raise ValueError(
            f"y must have a target for each row of X, got one {type(y.item()).__name__}."
        )


def given_labels(y: Any, name: str = "y") -> Any:
    """Return labels as scikit-learn can check them.

    Raises
    ------
    ValueError
        If some are missing. Among strings in a list, NaN would become the label 'nan', and pandas'
        NA cannot be compared. Also if rows have different lengths, columns the same name, or labels
        are complex numbers.
    """
    y = readable(y, name)
    refuse_same_names(y, name)
    refuse_ragged(y, name)
    refuse_number(a := np.asarray(y))
    if a.dtype.kind == "c":
        refuse_times(a, name)
    if a.dtype.kind == "T":  # StringDType, which scikit-learn cannot check
        y = a = a.astype(object)
    if a.ndim and a.dtype.kind in "OU":
        labels = np.asarray(y, dtype=object).ravel().tolist()
        n = sum(is_missing(label) for label in labels)
        if n:
            raise ValueError(
                f"{name} has no label (None, NaN) in {n} of {len(labels)} rows. Drop them."
            )
    return y


def refuse_large(name: str, error: OverflowError) -> NoReturn:
    """Raise a ValueError in place of Python's error about an integer that fits no float."""
    raise ValueError(
        f"{name} has an integer beyond 1.8e308, which no float can hold. Use a larger unit."
    ) from error


def refuse_boolean(value: Any, name: str) -> None:
    """Raise a ValueError for True or False, which Python would take as a number."""
    is_array = isinstance(value, np.ndarray | Tensor)
    number = value.item() if is_array and value.ndim == 0 else value
    if isinstance(number, bool | np.bool_):
        raise ValueError(f"{name} must be a number, or one for each row, got {value!r}.")


def in_float64(values: Any) -> np.ndarray:
    """Return a float64 copy; raise a TypeError for complex numbers and times."""
    a = np.asarray(values)
    if a.dtype.kind in "cmM":  # NumPy would drop imaginary parts and units of time
        raise TypeError("complex numbers or times")
    return np.array(a, dtype=np.float64)


def as_floats(values: Any, name: str) -> np.ndarray:
    """Return a float64 copy, because torch warns of read-only arrays."""
    refuse_boolean(values, name)
    values = readable(values, name)
    try:
        return in_float64(values)
    except OverflowError as error:
        refuse_large(name, error)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numeric, got {reprlib.repr(values)}.") from error


def checked_weight(sample_weight: Any, X: Any) -> np.ndarray:
    """Return weights of the rows of X in float64; one number is the weight of each row.

    Raises
    ------
    ValueError
        If weights are not finite numbers, one for each row, if any is negative or all are 0.
    """
    given = as_floats(sample_weight, "sample_weight")
    each = given if given.ndim else float(given)
    with config_context(assume_finite=False):  # rows of weight NaN would be left out
        weight = _check_sample_weight(each, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():
        raise ValueError(
            "sample_weight must contain at least one non-zero number, but all weights are zero."
        )
    return weight


def warn_of_long_integers(values: Any, name: str, are_levels: np.ndarray | None = None) -> None:
    """Warn if an array or a frame of a fit has integers that float64 rounds, such as long ids.

    Columns of a frame that the mask `are_levels` names stay as they are.
    """
    for j, (column, dtype) in enumerate(dtypes_of(values)):
        stays = column is not None and are_levels is not None and are_levels[j]
        a = values if column is None else values[column]
        if stays or not (limits := limits_of_integers(a, named(dtype))):
            continue
        where = name if column is None else f"column {column!r} of {name}"
        warn_if_rounded(*limits, where, j)


def limits_of_integers(a: Any, dtype: str) -> tuple[int, int] | tuple[()]:
    """Return the least and the largest integer of a column of integers, which may be objects."""
    if dtype.removesuffix("[pyarrow]") in LONG_INTEGERS:
        a = np.asarray(a.drop_null()) if hasattr(a, "drop_null") else a  # of Arrow
        return () if not len(a) or is_missing(a.min()) else (int(a.min()), int(a.max()))
    if not (dtype == "object" or dtype.startswith("decimal") or isinstance(a, list | tuple)):
        return ()
    cells = a.to_pylist() if hasattr(a, "to_pylist") else np.asarray(a, dtype=object).ravel()
    found = []
    for cell in cells:
        if is_missing(cell) or (isinstance(cell, Decimal) and not cell.is_finite()):
            continue
        if not isinstance(cell, int | np.integer | Decimal):
            return ()
        found.append(int(cell))
    if not found or max(max(found), -min(found)) > sys.float_info.max:
        return ()  # what no float holds is refused where columns become floats
    return min(found), max(found)


def warn_if_rounded(least: int, most: int, where: str, j: int) -> None:
    """Warn if float64 rounds integers in this range, which column j has."""
    if max(abs(least), abs(most)) > MOST_EXACT:
        warn(
            f"{where} has integers from {least} to {most}, which float64 rounds to 16 digits, "
            "so that different ones may become equal. Subtract the least one first; or, if "
            "they are names, pass them as strings to AutoGaussianProcessRegressor or "
            "AutoGaussianProcessClassifier.",
            about=f"long integers {j}",
        )


def named(dtype: Any) -> str:
    """Return the name of a dtype, whatever its byte order."""
    return str(getattr(dtype, "name", dtype)).lower()


def of_long_integers(values: Any) -> np.ndarray:
    """Tell which columns of an array or a frame hold 64-bit integers, (d,)."""
    are = [named(dtype) in LONG_INTEGERS for _, dtype in dtypes_of(values)]
    return np.broadcast_to(are, np.shape(values)[1])


def refuse_huge(y: np.ndarray) -> None:
    """Raise a ValueError if targets are finite, but so large that computations overflow."""
    if y.size == 0 or y.dtype.kind != "f":
        return
    size = max(float(y.max()), -float(y.min()))  # 1e301 is no float32
    if LARGEST_TARGET < size < np.inf:
        raise ValueError(
            f"y must be at most {LARGEST_TARGET:g} in size, got {size:g}. Measure y in a larger "
            "unit: divide it by a constant, and multiply predictions by it."
        )


def number(value: Any) -> float:
    """Return an object of y as a float, NaN if it stands for a missing value."""
    if is_missing(value):
        return np.nan
    try:
        return float(value)
    except OverflowError as error:
        refuse_large("y", error)
    except (TypeError, ValueError) as error:
        if isinstance(value, str):
            raise ValueError(
                f"y must be numeric, got the string {value!r:.60}. {LABELS}"
            ) from error
        raise ValueError(
            f"y must be numeric, got {value!r:.60}, of type {type(value).__name__}. Convert y to "
            "numbers."
        ) from error


def with_two_dimensions(X: Any, takes_missing: bool = False) -> Any:
    """Return X as scikit-learn can check it, masked entries as missing ones if these are taken.

    Raises
    ------
    TypeError
        If it is None, a dict, a list of dicts, a structured array, a sparse matrix, or a frame
        that is not computed yet.
    ValueError
        If it has one dimension, masked entries, rows of different lengths, no columns or two of the
        same name. For an array of one dimension, the message is scikit-learn's, without the data.
    """
    refuse_plan(X, "X")
    if X is None:
        raise TypeError("X must be an array or a data frame, got None.")
    if got := _records(X):
        raise TypeError(f"X must be an array or a data frame, got {got}. Use pandas.DataFrame(X).")
    if hasattr(X, "to_frame") and len(getattr(X, "shape", ())) == 1:
        raise ValueError(
            f"Expected 2D array, got a Series of length {len(X)} instead. If it is a single "
            "feature, use a data frame of one column, such as frame[['a']]; if it is a single row, "
            "frame.iloc[[0]]."
        )
    refuse_sparse(X, "X")
    X = with_names(X)
    if is_frame(X) and not len(X.columns):
        raise ValueError(f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    refuse_same_names(X, "X")
    refuse_ragged(X, "X")
    X = readable(with_dense_columns(X), "X", takes_missing)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 1 and shape[0]:
        raise ValueError(
            f"Expected 2D array, got 1D array instead, of shape {tuple(shape)}. Reshape your data: "
            "X.reshape(-1, 1) if it has a single feature, X.reshape(1, -1) if it is a single row "
            "(of a data frame: frame.iloc[[0]])."
        )
    return X


def _records(X: Any) -> str:
    """Return what X is if its columns have names and it is no frame; empty words otherwise."""
    if type(X) is dict:  # some sparse matrices are dicts, too
        return "a dict"
    if isinstance(X, list) and X and type(X[0]) is dict:
        return "a list of dicts"
    return "a structured array" if getattr(getattr(X, "dtype", None), "names", None) else ""


def refuse_same_names(values: Any, name: str) -> None:
    """Raise a ValueError if two columns of a frame have the same name."""
    counts = Counter(column for column, _ in dtypes_of(values))
    column, n = counts.most_common(1)[0] if counts else (None, 0)
    if n > 1:
        raise ValueError(
            f"{name} has {n} columns called {column!r}, so none can be told from the others. Give "
            "each its own name, or drop copies: frame.loc[:, ~frame.columns.duplicated()]."
        )


def refuse_ragged(values: Any, name: str) -> None:
    """Raise a ValueError if rows in a list have different lengths."""
    try:
        if isinstance(values, list | tuple):
            np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{name} must have rows of numbers, all of the same length, but rows or their cells "
            "hold sequences of different lengths."
        ) from error


def with_names(X: Any) -> Any:
    """Return a record batch of pyarrow as a table, whose names scikit-learn reads."""
    if not is_arrow(X) or hasattr(X, "to_batches"):
        return X
    import pyarrow as pa  # installed, as there is a batch

    return pa.Table.from_batches([X])


def with_dense_columns(X: Any) -> Any:
    """Make a pandas frame dense if all its columns are sparse; scikit-learn does if some are."""
    return X.sparse.to_dense() if is_frame(X) and hasattr(X, "sparse") else X


def checked_kinds(X: Any, *y: Any, y_numeric: bool = False, of_fit: bool = True) -> tuple[Any, ...]:
    """Return X, and y if there is one, as scikit-learn can check them.

    Raises
    ------
    ValueError
        If X holds dates or durations, or if y should hold numbers and does not.
    """
    X = with_two_dimensions(X)
    refuse_times(X, "X")
    if of_fit:
        warn_of_long_integers(X, "X")
    return X, *(real_target(values, of_fit) if y_numeric else given_labels(values) for values in y)
