"""Export a fitted estimator as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ..data.arguments import check_coverage
from ..data.whole_file import checked_path, whole_file
from ..estimators.importances import N_ROWS, InputSpread, representative_rows, spread_of
from ..persistence.failures import check_known, file_of, with_failures_told
from .distributions import quantile
from .estimators import class_probabilities, distribution, moments
from .graph import CannotExport, Graph, Value, model_of
from .tables import Columns, table_inputs, takes_numbers

OF_NUMBERS = ("mean", "std", "quantiles")
OF_CLASSES = ("label", "probabilities")
LEVELS = (0.025, 0.5, 0.975)
ADVICE_FOR_PIPELINES = (
    "Call skgpstoch.onnx.register_converters() and convert the pipeline with skl2onnx, or "
    "export the fitted estimator at its end."
)
N_CHECKED = 8  # rows for which predictions of a graph must be finite
INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
Found = dict[str, tuple[Value, int, Sequence[Any]]]


def export(
    model: Any,
    path: str | os.PathLike,
    outputs: Sequence[str] | None = None,
    quantiles: Sequence[float] = LEVELS,
) -> None:
    """Write a fitted model's predictions as an ONNX graph in float64.

    Parameters
    ----------
    model : estimator
        A fitted estimator of this package: exact, sparse, with finite features or networks, or the
        recommended default, including its encoding of tables and its calibration. Deep and
        convolutional models, and others with a part that has no ONNX graph, raise CannotExport.
    path : str or os.PathLike
        The file to write.
    outputs : sequence of str or None, default=None
        For a regressor, some of "mean", "std" and "quantiles"; None: "mean" and "std". For a
        classifier, some of "label" and "probabilities"; None: both.
    quantiles : sequence of float, default=(0.025, 0.5, 0.975)
        Probabilities of the quantiles, each between 0 and 1.

    Raises
    ------
    CannotExport
        A NotImplementedError that names the part without a graph.
    ValueError
        If the model is not fitted, or `outputs` or `quantiles` are not as described.

    See Also
    --------
    to_onnx : The model in memory.

    Notes
    -----
    The input is "X", float64 of shape (n_samples, n_features), with any number of rows. If a
    recommended default was fitted to categories or dates, each column is an input with its name
    ("x0", "x1", ... without names), of shape (n_samples, 1): strings with "" for a missing one, and
    float64 with NaN for a missing one for numbers, categories that are numbers, and dates, which
    are days since 1970 on the clock of the column's time zone. If "" is a level, none is missing.
    "mean" and "std" have the shape (n_samples, n_outputs), "quantiles" (n_samples, n_outputs,
    n_quantiles), "label" (n_samples,) and "probabilities" (n_samples, n_classes). ONNX Runtime's
    CPU provider runs the graph, and predictions agree with the model's to about 1e-10. A graph
    processes all its rows in one block, so pass it a few thousand rows at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> X = np.linspace(-3, 3, 60)[:, None]
    >>> model = SVGPRegressor(max_iter=5, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> import skgpstoch.onnx  # doctest: +SKIP
    >>> skgpstoch.onnx.export(model, "model.onnx")  # doctest: +SKIP
    """
    graph = to_onnx(model, outputs, quantiles).SerializeToString()
    with whole_file(checked_path(path)) as partial:
        partial.write_bytes(graph)


@with_failures_told
def to_onnx(
    model: Any, outputs: Sequence[str] | None = None, quantiles: Sequence[float] = LEVELS
) -> onnx.ModelProto:
    """Return a fitted model's predictions as an ONNX graph in float64.

    Parameters
    ----------
    model, outputs, quantiles : object
        See :func:`export`.

    Returns
    -------
    model : onnx.ModelProto
        A checked model.

    Raises
    ------
    CannotExport
        A NotImplementedError that names the part without a graph.
    ValueError
        If the model is not fitted, or `outputs` or `quantiles` are not as described.
    """
    check_is_fitted(model)
    if isinstance(model, Pipeline | BaseSearchCV):
        raise CannotExport(type(model).__name__, ADVICE_FOR_PIPELINES)
    graph, width = Graph(), n_columns(model)
    X, inputs = table_inputs(model, graph, width)
    if is_classifier(model):
        found = of_classes(model, X, checked(outputs, OF_CLASSES, OF_CLASSES))
    else:
        named, levels = checked(outputs, OF_NUMBERS, OF_NUMBERS[:2]), checked_levels(quantiles)
        if "quantiles" not in named and tuple(quantiles) != LEVELS:
            raise ValueError(
                f"quantiles={quantiles!r} needs 'quantiles' among the outputs, got {named!r}. Set "
                'outputs=("mean", "std", "quantiles").'
            )
        found = of_numbers(model, X, named, levels)
    if both := [name for name in found if name in inputs]:
        raise CannotExport(
            f"a column called {both[0]!r}, as an output is",
            "Rename the column and fit again, or choose other outputs.",
        )
    about = f"Predictions of a {type(model).__name__} of skgpstoch"
    try:
        made = model_of(graph, inputs, found, about)
    except INVALID as error:
        raise ValueError(
            f"{type(model).__name__}{file_of(model)} has no valid graph, because its parts do not "
            f"belong together: fit it again. ONNX says: {error!s:.300}"
        ) from error
    check_predicts(model, made)
    return made


def n_columns(model: Any) -> int:
    """Return the number of inputs.

    Raises
    ------
    NotFittedError
        If the model was fitted to objects instead of columns of numbers.
    """
    if hasattr(model, "n_features_in_"):
        return int(model.n_features_in_)
    X = np.asarray(getattr(model, "X_train_", None))
    if X.ndim != 2 or X.dtype.kind not in "fiub":
        raise NotFittedError(
            f"This {type(model).__name__} must be fitted to numeric columns to be "
            "exported. Call fit with them first."
        )
    return X.shape[1]


def check_predicts(model: Any, made: onnx.ModelProto) -> None:
    """Raise a ValueError if predictions of a graph for rows like those of the fit are not finite.

    A graph cannot refuse them when it runs. Tables, whose columns need not be numbers, have no
    such rows.
    """
    if not takes_numbers(model):
        return
    inner = getattr(model, "estimators_", ())  # which see the same rows
    parts = (model, *(inner.values() if isinstance(inner, dict) else inner))
    if spreads := [spread for spread in map(spread_for, parts) if spread is not None]:
        rows = representative_rows(spreads[0])[:: N_ROWS // N_CHECKED]
        with np.errstate(all="ignore"):
            for row in rows[:, None]:  # each with all that is between it and its predictions
                found = tuple(ReferenceEvaluator(made).run(None, {"X": row}))
                check_known(model, found, len(found))


def spread_for(model: Any) -> InputSpread | None:
    """Return means and deviations of the columns that a model was fitted to; None if unknown."""
    if encoder := getattr(model, "_encoder", None):
        low, high = encoder.ranges.T
        width = np.where(low <= high, 0.5 * high - 0.5 * low, 0.0)
        return InputSpread(np.array([each.fill for each in encoder.encoders]), 0.5 * width)
    for name in ("_x_spread", "_x_scaling"):
        if hasattr(model, name):
            return InputSpread(*getattr(model, name))
    return spread_of(np.asarray(model.X_train_, float)) if hasattr(model, "X_train_") else None


def checked(given: Any, known: Sequence[str], usual: Sequence[str]) -> Sequence[str]:
    """Return the names of the outputs, or raise a ValueError if one is unknown."""
    if given is None:
        return usual
    names = [given] if isinstance(given, str) else list(given)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(
            f"outputs must be one or more distinct names from {list(known)}, got {given!r}."
        )
    return names


def checked_levels(given: Any) -> list[float]:
    """Return the quantiles' probabilities, or raise a ValueError unless they are inside (0, 1)."""
    try:
        levels = [check_coverage(p) for p in given]
    except (TypeError, ValueError):
        levels = []
    if not levels:
        raise ValueError(
            f"quantiles must be one or more probabilities between 0 and 1, got {given!r}."
        )
    return levels


def of_numbers(
    model: Any, X: Value | Columns, names: Sequence[str], levels: Sequence[float]
) -> Found:
    """Return the requested outputs of a regressor."""
    given, shape = distribution(model, X), ["n_samples", None]
    found: Found = {}
    for name in names:
        if name == "quantiles":
            each = [quantile(given, p).unsqueeze(2) for p in levels]
            value = X.graph.concat(each, 2)
            found[name] = value, TensorProto.DOUBLE, [*shape, len(levels)]
        else:
            mean, var = moments(model, given)
            found[name] = (mean if name == "mean" else var.sqrt()), TensorProto.DOUBLE, shape
    return found


def of_classes(model: Any, X: Value | Columns, names: Sequence[str]) -> Found:
    """Return the requested outputs of a classifier."""
    p, classes = class_probabilities(model, X), np.asarray(model.classes_)
    found: Found = {}
    for name in names:
        if name == "probabilities":
            found[name] = p, TensorProto.DOUBLE, ["n_samples", len(classes)]
        else:
            best = X.graph.call("ArgMax", p, axis=1, keepdims=0)
            kind, labels = as_labels(classes)
            found[name] = X.graph.call("Gather", labels, best), kind, ["n_samples"]
    return found


def as_labels(classes: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the classes' type in ONNX, and the classes in that type: whole numbers or strings."""
    if classes.dtype.kind == "u" and classes.max() > np.iinfo(np.int64).max:
        raise CannotExport(
            f"the class {classes.max()}, which is more than an integer of 64 bits with a sign",
            "Fit to strings, for example y.astype(str).",
        )
    if classes.dtype.kind in "iub":
        return TensorProto.INT64, classes.astype(np.int64)
    return TensorProto.STRING, classes.astype(str).astype(object)
