"""Validate parameters, X, y and other values of rows, as scikit-learn does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import config_context
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils._param_validation import Interval, InvalidParameterError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..data.arguments import ROUTE_EXPOSURE
from ..data.array_inputs import (
    NOT_A_NUMBER,
    as_floats,
    checked_kinds,
    dtypes_of,
    one_output,
    refuse_large,
)
from ..data.arrays import MOST_INTEGER, is_missing, readable
from ..data.groups import ALONE, Group, current, of_first
from ..data.known_errors import MOST_ERROR
from ..data.messages import internal_frames, warn
from ..data.row_source import is_source
from ..data.rows import Data
from ..data.target_transforms import fitted_transform
from ..likelihoods.base import largest, regression_likelihood
from ..training.recipes.row_findings import of_missing_targets

MOST_NUMBER = 1e30  # and 1/MOST_NUMBER: limits of numbers that training multiplies in float32
SEQUENCE = "setting an array element with a sequence"  # NumPy's words
NO_FLOAT = "could not convert string to float", "Cannot cast"
WITH_INFINITY = "X contains infinity"  # scikit-learn's words
NO_MISSING = "does not accept missing values encoded as NaN natively"  # scikit-learn's words
FEWEST_GROUPS = 3  # some to train on, and others to judge networks and their mixture by


def with_groups(data: Data, groups: Any) -> Data:
    """Return the data with the codes of groups, if any are given: labels of any kind, one a row.

    Codes depend on the labels, and not on the order of rows.

    Raises
    ------
    ValueError
        If labels are missing, are not one for each row, or if there are too few groups.
    """
    if groups is None:
        return data
    labels = np.asarray(readable(groups, "groups"), dtype=object)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (len(data),):
        raise ValueError(
            f"groups must have one label for each of the {len(data)} rows of X, got an array of "
            f"shape {labels.shape}."
        )
    found = labels.tolist()
    try:
        different = set(found)
    except TypeError as error:
        raise ValueError(
            f"groups must have labels that are numbers or texts, or other hashable ones: {error}."
        ) from error
    if any(is_missing(label) for label in found):
        raise ValueError(
            "groups must not have missing values, because it is unknown which rows belong "
            "together. Give such rows labels, each its own if they are apart."
        )
    order = sorted(different, key=lambda label: (type(label).__name__, str(label)))
    code = {label: k for k, label in enumerate(order)}
    cluster = np.array([code[label] for label in found], dtype=np.int64)
    counts = slice(None) if data.weight is None else data.weight > 0.0
    if (n_groups := len(np.unique(cluster[counts]))) < FEWEST_GROUPS:
        raise ValueError(
            f"groups must have at least {FEWEST_GROUPS} different labels among the rows that "
            f"count, to hold some groups out, got {n_groups}."
        )
    return replace(data, cluster=cluster)


def refuse_groups_apart(X: Any, groups: Any) -> None:
    """Raise a ValueError if rows with groups are in chunks, or in several processes."""
    if groups is None:
        return
    if is_source(X) or current() is not ALONE:
        raise ValueError(
            "groups must be None where rows are read in chunks or are in several processes, "
            "because whole groups are held out only of rows in memory. Pass arrays or a frame "
            "in one process."
        )


def fewest_rows(reset: bool) -> int:
    """Return how many rows are needed: two to fit, which a group may have together, else one."""
    return 2 if reset and current().size == 1 else 1


def check_labels(y: np.ndarray) -> None:
    """Raise a ValueError if y holds no labels, or labels that cannot be put in order."""
    kinds = {type(label).__name__ for label in y.flat} if y.dtype == object else set()
    if len(kinds) > 1:
        raise ValueError(
            f"y must hold labels of one type, got {' and '.join(sorted(kinds))}. Convert "
            "them, for example with y.astype(str), and drop rows without a label."
        )
    # Three times, as a rank with few rows of many classes says nothing of all: these are judged.
    judged = y if current().size == 1 else np.tile(y, 3)
    try:
        check_classification_targets(judged)
    except ValueError as error:
        if kinds and kinds != {"str"}:
            kind = kinds.pop()
            into = kind if kind in ("bool", "int", "float") else "str"
            raise ValueError(
                f"Unknown label type: y must hold strings where its dtype is object, got {kind}. "
                f"Convert the labels, for example with y.astype({into})."
            ) from None
        if "continuous" not in str(error):
            raise
        raise ValueError(
            f"{error} For continuous values use a regressor, such as AutoGaussianProcessRegressor."
        ) from None


def check_column(values: Any, n_rows: int, name: str) -> np.ndarray:
    """Return positive numbers of n_rows rows, (n, 1), such as exposures.

    Raises
    ------
    ValueError
        If they are not positive numbers, one for each row.
    """
    a = as_floats(values, name)
    if a.ndim == 0:
        a = np.full(n_rows, a)
    if a.shape not in ((n_rows,), (n_rows, 1)):
        raise ValueError(
            f"{name} must have shape ({n_rows},), one value for each row, got {a.shape}."
        )
    if not (np.isfinite(a) & (a > 0.0)).all():
        raise ValueError(
            f"{name} must be positive and finite, got {a[~(np.isfinite(a) & (a > 0.0))].flat[0]}. "
            "Leave out the rows without one."
        )
    check_range(a, f"{name} must be")
    return a.reshape(-1, 1)


def check_y_std(y_std: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return standard errors of y in this shape, (n, P).

    Raises
    ------
    ValueError
        If they are not finite numbers of the shape of y, or any is negative.
    """
    a = as_floats(y_std, "y_std")
    if a.ndim == 1 and len(a) == shape[0]:
        a = a[:, None]
    if a.ndim and a.shape not in (shape, (shape[0], 1)):
        expected = shape[:1] if shape[1] == 1 else shape
        raise ValueError(f"y_std must have the shape of y, {expected}, got {a.shape}.")
    if not (np.isfinite(a) & (a >= 0.0)).all():
        raise ValueError(
            "y_std must be finite and not negative, got "
            f"{a[~(np.isfinite(a) & (a >= 0.0))].flat[0]}."
        )
    return np.broadcast_to(a, shape).copy()


def known_columns(shape: tuple[int, int], exposure: Any, y_std: Any) -> dict[str, Any]:
    """Return valid exposures (n, 1) and errors (n, P) of targets of this shape, if there are any.

    Raises
    ------
    ValueError
        If exposures are not positive, or errors not finite numbers of at least 0, one for each.
    """
    known = {}
    if exposure is not None:
        known["exposure"] = check_column(exposure, shape[0], "exposure")
    if y_std is not None:
        known["y_std"] = check_y_std(y_std, shape)
    return known


def check_range(values: np.ndarray, words: str) -> None:
    """Raise a ValueError that begins with these words if training cannot represent the values."""
    low, high = values.min(), values.max()
    if low < 1.0 / MOST_NUMBER or high > MOST_NUMBER:
        raise ValueError(
            f"{words} between {1.0 / MOST_NUMBER:g} and {MOST_NUMBER:g}, got {low:g} to "
            f"{high:g}. Rescale them, for example with another unit."
        )


def warn_of_overflow(std: np.ndarray) -> None:
    """Warn of rows whose moments, here std (n, P), overflow float64."""
    most = np.sqrt(largest(torch.float64))
    if n := int(((std > 0.1 * most) & np.isfinite(std)).any(1).sum()):
        warn(
            f"The variance of y, and possibly its mean, overflows float64 at {n} rows, "
            "because exp(f) overflows where f is large or uncertain. The largest "
            "finite number is returned instead. Use predict_interval for quantiles, or "
            "likelihood=Poisson('softplus'), which grows no faster than f.",
            RuntimeWarning,
        )


def check_numbers(estimator: BaseEstimator) -> None:
    """Raise an error if a numeric parameter is True or False, or an integer too long for C.

    Raises
    ------
    InvalidParameterError
        A ValueError and a TypeError, as scikit-learn's own checks raise.
    """
    constraints: dict[str, list] = estimator._parameter_constraints
    for name, value in estimator.get_params(deep=False).items():
        allowed = constraints.get(name, [])
        is_number = any(isinstance(kind, Interval) for kind in allowed)
        if isinstance(value, bool | np.bool_) and is_number and "boolean" not in allowed:
            raise InvalidParameterError(
                f"The {name!r} parameter of {type(estimator).__name__} must be a number, got "
                f"{value!r}."
            )
        if isinstance(value, Integral) and is_number and abs(int(value)) > MOST_INTEGER:
            raise InvalidParameterError(
                f"The {name!r} parameter of {type(estimator).__name__} must be at most "
                f"{MOST_INTEGER}, got {value!r}."
            )


def validate_inputs(
    estimator: Any, X: Any, *y: Any, keeps_column: bool = False, **options: Any
) -> Any:
    """Check X, or X and y, with scikit-learn; the result does not depend on the memory layout.

    A column of targets becomes one output unless `keeps_column`; a fit warns of it. Fits look for
    NaN also with scikit-learn's assume_finite=True, as they take much longer than the look.
    """
    is_numeric, of_fit = options.get("y_numeric", False), options.get("reset", True)
    given = checked_kinds(X, *y, y_numeric=is_numeric, of_fit=of_fit)
    floats = {"dtype": (np.float64, np.float32), "order": "C"}
    assumed = {"assume_finite": False} if of_fit else {}
    try:  # sums of both infinities are refused
        with np.errstate(invalid="ignore"), config_context(**assumed):
            checked = validate_data(estimator, *given, **floats, **options)
    except OverflowError as error:
        refuse_large("X", error)
    except TypeError as error:
        if not any(words in str(error) for words in NOT_A_NUMBER):
            raise
        if "NAType" in str(error):  # pandas.NA among objects
            where = columns_with(given[0], is_no_number)
            raise ValueError(without_missing(estimator, "Input X contains NaN.", where)) from None
        raise TypeError(
            f"X must be numeric: {error}{columns_with(given[0], is_no_number)}. Convert dates to "
            "numbers, for example with (column - column.min()) / numpy.timedelta64(1, 'D'), "
            "periods with column.dt.to_timestamp() first, and other objects to strings. Then "
            "encode strings with OneHotEncoder. Or use AutoGaussianProcessRegressor or "
            "AutoGaussianProcessClassifier, which accept dates and strings in data frames."
        ) from error
    except ValueError as error:
        if NO_MISSING in str(error):
            where = columns_with(given[0], is_not_finite)
            raise ValueError(without_missing(estimator, str(error), where)) from None
        if WITH_INFINITY in str(error) and (where := columns_with(given[0], is_not_finite)):
            raise ValueError(f"{str(error).rstrip('.')}{where}.") from None
        if SEQUENCE in str(error) and (where := columns_with(given[0], is_no_number)):
            raise ValueError(
                f"X must be numeric, but cells hold sequences{where}. Split them into columns of "
                "their own, one for each position."
            ) from error
        if not any(words in str(error) for words in NO_FLOAT):
            raise
        raise ValueError(
            f"X must be numeric: {error}{columns_with(given[0], is_no_number)}. Encode strings "
            "and categories first, for example with a ColumnTransformer and OneHotEncoder, or use "
            "AutoGaussianProcessRegressor or AutoGaussianProcessClassifier, which "
            "accept them as categories."
        ) from error
    if keeps_column or not y:
        return checked
    return checked[0], one_output(checked[1], warns=options.get("reset", True))


def without_missing(estimator: BaseEstimator, message: str, where: str) -> str:
    """Return scikit-learn's message on missing values, naming our estimators that accept them."""
    kind = "Classifier" if is_classifier(estimator) else "Regressor"
    return (
        f"{message.partition(chr(10))[0].rstrip('.')}{where}. {type(estimator).__name__} does not "
        f"accept missing values. Use AutoGaussianProcess{kind}, which does, or put an imputer "
        "before the estimator, for example make_pipeline(SimpleImputer(), estimator)."
    )


def columns_with(X: Any, fault: Callable[[np.ndarray], bool]) -> str:
    """Say which columns of a frame have a fault; nothing for an array."""
    names = [name for name, _ in dtypes_of(X) if name is not None]
    found = [str(name) for name in names if fault(np.asarray(X[name]))]
    return f", in {', '.join(found)}" if found else ""


def is_no_number(column: np.ndarray) -> bool:
    """Tell whether a column cannot be read as numbers, or holds no number of any kind."""
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        return True
    is_empty = column.dtype == object and bool(np.isnan(numbers).all())
    return numbers.ndim != 1 or column.dtype.kind in "mM" or is_empty


def is_not_finite(column: np.ndarray) -> bool:
    """Tell whether a column has missing or infinite numbers."""
    return is_no_number(column) or not np.isfinite(column.astype(np.float64)).all()


def known_noise(y_std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the variance of a known error, (n, P), for targets in units of `scale` (P,)."""
    with np.errstate(over="ignore"):
        relative = y_std / scale
    if relative.max(initial=0.0) > MOST_ERROR:
        raise ValueError(
            f"y_std must be at most {MOST_ERROR:g} times the standard deviation of y (taken "
            f"as 1 if y is not scaled), got {relative.max():.1g} times. Drop such rows."
        )
    return np.square(relative)


# ---- targets of a regressor ----------------------------------------------------------------------


KNOWN_AND_TRANSFORMED = (
    "y_std must be None with target_transform, because known errors are errors of y, not "
    "of the transformed target."
)


def transformer_of(model: Any) -> Any:
    """Return the fitted transformer of the targets, or None."""
    return getattr(model, "target_transformer_", None)


def with_transformed_targets(model: Any, data: Data, reset: bool) -> Data:
    """Return rows with transformed targets, if any; fit the transformer first if `reset`.

    Raises
    ------
    ValueError
        If targets are counts or have known errors, or cannot be transformed.
    """
    if reset:
        learn_targets(model, data, ALONE)
    if (transformer := transformer_of(model)) is None:
        return data
    if data.y_std is not None:
        raise ValueError(KNOWN_AND_TRANSFORMED)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.asarray(transformer.transform(data.y), dtype=np.float64).reshape(data.y.shape)
    if not np.isfinite(z).all():
        raise ValueError(
            f"y must be in the domain where target_transform={model.target_transform!r} is "
            f"finite, got {data.y[~np.isfinite(z)][0]:g}."
        )
    return replace(data, y=z)


def learn_targets(model: Any, data: Data, group: Group) -> None:
    """Fit the transformer of targets, if there is one, to rows that all ranks have.

    Raises
    ------
    ValueError
        If targets are counts, or outside the transformer's domain.
    """
    if not hasattr(model, "target_transform"):
        return
    model.target_transformer_ = None
    if model.target_transform is None:
        return
    if regression_likelihood(getattr(model, "likelihood", "auto")).is_discrete:
        raise ValueError(
            f"target_transform must be None if y holds counts, got {model.target_transform!r}."
        )
    given = model.target_transform, data.y, data.weight
    model.target_transformer_ = fitted_alike(group, *given)
    for finding in of_missing_targets(data.y):  # of which the transformed y says nothing
        warn(finding.message)


def fitted_alike(group: Group, transform: Any, y: np.ndarray, weight: np.ndarray | None) -> Any:
    """Return rank 0's transformer, fitted to targets that all ranks have; fits may be random."""
    return of_first(group, partial(fitted_transform, transform, y, weight), "target_transform")


JUDGES = ("metrics/_scorer.py", "model_selection/_validation.py", "_plot/regression.py")
"""Files of scikit-learn that compare predictions with y, and call `predict` with X alone."""


def check_not_judged(model: Any, exposure: Any) -> None:
    """Raise a ValueError if scikit-learn is about to compare predictions for exposure 1 with y."""
    if exposure is not None or not getattr(model, "_fitted_with_exposure", False):
        return
    files = (frame.f_code.co_filename for frame in internal_frames(sys._getframe(1)))
    if any(Path(file).as_posix().endswith(JUDGES) for file in files):
        raise ValueError(
            "exposure must be given, because the model was fitted with one, but this function of "
            "scikit-learn calls predict(X) alone. Call predict(X, exposure=...) yourself, or leave "
            "scoring=None, or use a scorer of skgpstoch.metrics, such as "
            f"neg_log_predictive_density_scorer. {ROUTE_EXPOSURE}"
        )


def check_shape(model: Any, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless a row of targets has the shape that it had in the fit."""
    if shape != model._y_shape:
        raise ValueError(
            f"y must have shape {('n_samples', *model._y_shape)}, as at the first call, "
            f"got {('n_samples', *shape)}."
        )
