"""Check the user's tables, and read their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import validate_data

from .array_inputs import (
    NOT_A_NUMBER,
    given_labels,
    one_output,
    real_target,
    refuse_large,
    refuse_times,
    warn_of_long_integers,
    with_two_dimensions,
)
from .arrays import all_finite, possibly_ragged, row_blocks
from .columns import (
    LEVEL,
    ReadTable,
    columns_of,
    is_table,
    names_of,
    refuse_infinite,
)


def validate_table(estimator: Any, X: Any, *y: Any, reset: bool, **options: Any) -> Any:
    """Check X, or X and y, with scikit-learn; X may have missing values, categories and dates.

    Return an array of numbers as a float array, and any other X unchanged.
    """
    X = with_two_dimensions(X, takes_missing=True)
    if reset:
        asked = getattr(estimator, "categorical_features", None) if is_table(X) else None
        mask = None if asked is None else category_mask(asked, names_of(X), X.shape[1])
        warn_of_long_integers(X, "X", mask)
    y = tuple(real_target(a) if options.get("y_numeric") else given_labels(a) for a in y)
    if not is_table(X):
        refuse_times(X, "X")
        floats = {"dtype": (np.float64, np.float32), "order": "C"}
        options |= floats | {"ensure_all_finite": False, "reset": reset}
        try:
            with np.errstate(invalid="ignore"):  # sums of both infinities, which are then refused
                checked = validate_data(estimator, X, *y, **options)
        except OverflowError as error:
            refuse_large("X", error)
        except (TypeError, ValueError) as error:
            if not any(words in str(error) for words in ("could not convert", *NOT_A_NUMBER)):
                raise
            raise type(error)(
                f"X must be numeric unless it is a data frame: {error}. Use pandas.DataFrame(X), "
                "with the columns of `fit`."
            ) from None
        refuse_infinity(checked[0] if y else checked)
        return (checked[0], one_output(checked[1], warns=reset)) if y else checked
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    like = np.broadcast_to(0.0, X.shape)  # takes no memory
    if not y:
        check_array(like, estimator=estimator, **options)
        return X
    return X, one_output(check_X_y(like, *y, estimator=estimator, **options)[1], warns=reset)


def refuse_infinity(X: np.ndarray) -> None:
    """Raise a ValueError that names a column of X (n, d) with infinite values."""
    for rows in row_blocks(len(X)):
        if not all_finite(X[rows]):
            for j, column in enumerate(X[rows].T):
                refuse_infinite(str(j), column)


def category_mask(given: Any, names: Sequence[str] | None, n_columns: int) -> np.ndarray | None:
    """Return the mask (d,) of columns that the user declares categories; None for "from_dtype".

    Raises
    ------
    ValueError
        If `given` is not a mask, positions or names of columns.
    """
    if isinstance(given, str) and given == "from_dtype":
        return None
    mask = np.zeros(n_columns, dtype=bool)
    asked = possibly_ragged([] if given is None else given)
    if asked.dtype == bool and asked.shape == (n_columns,):
        return asked
    if asked.ndim == 1 and asked.dtype.kind in "iu" and (abs(asked + 0.5) < n_columns).all():
        mask[asked[asked >= 0]] = True
        if (asked >= 0).all():
            return mask
    if asked.size == 0:
        return mask
    if names is not None and asked.ndim and all(name in names for name in given):
        mask[[list(names).index(name) for name in given]] = True  # which may be pairs
        return mask
    raise ValueError(
        f"categorical_features must be 'from_dtype', None, a mask of {n_columns} columns, or "
        f"positions (0 to {n_columns - 1}) or names of columns of X, got {given!r}."
        + (f" Pass a list of names, [{given!r}]." if isinstance(given, str) else "")
    )


def read_table(X: Any, categorical_features: Any) -> ReadTable:
    """Return the columns of training rows, which `validate_table` has checked.

    Raises
    ------
    ValueError
        If a column holds categories, but `categorical_features` does not include it.
    """
    if isinstance(X, ReadTable):
        return X
    mask = category_mask(categorical_features, names_of(X), X.shape[1])
    columns = columns_of(X, mask)
    for column, asked in zip(columns, mask if mask is not None else (), strict=False):
        if column.kind == LEVEL and not asked:
            raise ValueError(
                f"Column {column.name} of X holds categories, but "
                f"categorical_features={categorical_features!r} does not include it. Add "
                "it, convert it to numbers, or set categorical_features='from_dtype'."
            )
    return ReadTable(columns, array_of(X))


def array_of(X: Any) -> np.ndarray | None:
    """Return X if it is a float array, which may need no encoding; otherwise None."""
    return X if isinstance(X, np.ndarray) and X.dtype.kind == "f" else None
