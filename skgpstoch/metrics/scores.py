"""Scores of predictive distributions N(μ, σ²): the functions of :mod:`skgpstoch.metrics`.

One row with z = (y − μ)/σ, φ and Φ the standard normal density and distribution function:

    NLPD      −log p(y) = ½ log 2π + log σ + ½ z²                  [1], Eq. (2.34)
    CRPS      ∫ (F(t) − 1[t ≥ y])² dt = σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π]     [2], Section 4.2
    coverage  1[lower ≤ y ≤ upper]

NLPD and CRPS are strictly proper: in expectation only the true distribution minimises them. NLPD
punishes a confident miss quadratically in z, CRPS linearly and in the units of y. Coverage alone is
not proper (wide intervals cover); it tells whether the intervals keep their promise.

References
----------
.. [1] C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
   2006.
.. [2] T. Gneiting and A. E. Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation",
   Journal of the American Statistical Association 102 (477), 2007.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, ndtri
from sklearn import config_context
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array

from ..data.arguments import check_coverage
from ..data.array_inputs import as_floats
from ..data.docstrings import documented

# Sections that `documented` adds to docstrings.
METRIC = """
Parameters
----------
y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
    True targets.
y_mean : array-like of the shape of `y_true`
    Predictive means, in the units of `y_true`.
y_std : array-like of the shape of `y_true`
    Predictive standard deviations of y, noise included; positive, in the units of `y_true`.
sample_weight : array-like of shape (n_samples,), default=None
    Weights of the rows; None weighs them equally.
multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_outputs,), \
            default="uniform_average"
    How the values of several outputs are averaged: equally, not at all ("raw_values", an array),
    or with these weights.

Raises
------
ValueError
    If the shapes differ, a value is not finite, a standard deviation is not positive, or
    `sample_weight` or `multioutput` is not as described.
"""
PREDICTOR = """
Parameters
----------
estimator : object
    Fitted regressor with `predict(X, return_std=True)`, a pipeline that ends in one, or a
    hyperparameter search over either.
X : array-like of shape (n_samples, n_features)
    Inputs.
y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    True targets.
sample_weight : array-like of shape (n_samples,), default=None
    Weights of the rows.
coverage : float, default=0.95
    Nominal coverage of the central Gaussian intervals, in (0, 1).

Raises
------
TypeError
    If the estimator does not predict a standard deviation.
"""


# ---------------------------------------------------------------------------------------- metrics
@documented(METRIC)
def negative_log_predictive_density(
    y_true: ArrayLike,
    y_mean: ArrayLike,
    y_std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | NDArray:
    """Mean negative log predictive density of Gaussian predictions, in nats per row.

    The best value depends on the noise in the data and may be negative; smaller is better.
    Measuring y in units `c` times as large subtracts log `c`.

    Returns
    -------
    score : float or ndarray of shape (n_outputs,)
        In nats per row; an array for `multioutput="raw_values"`. The density of all outputs
        jointly, when they are independent, has `n_outputs` times the uniform average.

    See Also
    --------
    continuous_ranked_probability_score : Grows linearly, not quadratically, in the tails.
    neg_log_predictive_density_scorer : The scorer for model selection.

    References
    ----------
    C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
    2006, Eq. (2.34).

    Examples
    --------
    >>> from skgpstoch.metrics import negative_log_predictive_density
    >>> y_true, y_mean, y_std = [3.0, -0.5, 2.0], [2.5, 0.0, 2.0], [0.5, 0.5, 1.0]
    >>> round(negative_log_predictive_density(y_true, y_mean, y_std), 4)
    0.7902
    """
    y, mean, std = check_predictions(y_true, y_mean, y_std)  # (N, P) each
    z = (y - mean) / std
    loss = 0.5 * math.log(2 * math.pi) + np.log(std) + 0.5 * z**2  # (N, P)
    return _average(loss, sample_weight, multioutput)


@documented(METRIC)
def continuous_ranked_probability_score(
    y_true: ArrayLike,
    y_mean: ArrayLike,
    y_std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | NDArray:
    """Mean continuous ranked probability score of Gaussian predictions, in the units of y.

    The integrated squared distance between the predictive distribution function and the step at
    the true value, in closed form. It tends to the absolute error as the standard deviation goes
    to zero. Zero is best; smaller is better.

    Returns
    -------
    score : float or ndarray of shape (n_outputs,)
        In the units of y; an array for `multioutput="raw_values"`.

    See Also
    --------
    negative_log_predictive_density : The logarithmic score.
    neg_crps_scorer : The scorer for model selection.

    References
    ----------
    T. Gneiting and A. E. Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation",
    Journal of the American Statistical Association 102 (477), 2007, Section 4.2.

    Examples
    --------
    >>> from skgpstoch.metrics import continuous_ranked_probability_score
    >>> y_true, y_mean, y_std = [3.0, -0.5, 2.0], [2.5, 0.0, 2.0], [0.5, 0.5, 1.0]
    >>> round(continuous_ranked_probability_score(y_true, y_mean, y_std), 4)
    0.2787
    """
    y, mean, std = check_predictions(y_true, y_mean, y_std)  # (N, P) each
    error = np.abs(y - mean)
    with np.errstate(over="ignore"):  # z² = ∞ is harmless: exp(−∞) = 0
        z = error / std
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)  # φ(z)
    # σ z (2Φ(z) − 1) = |y − μ| erf(|z|/√2): no difference of numbers near 1 in the tails.
    loss = error * erf(z / math.sqrt(2)) + std * (2 * density - 1 / math.sqrt(math.pi))
    return _average(loss, sample_weight, multioutput)


@documented(METRIC)
def interval_coverage(
    y_true: ArrayLike,
    y_interval: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | NDArray:
    """Fraction of the rows whose target lies in its interval, ends included.

    Calibrated 95 % intervals cover about 95 % of the rows; closer to the nominal coverage is
    better.

    Parameters
    ----------
    y_interval : array-like of shape (n_samples, 2) or (n_samples, 2, n_outputs)
        Lower and upper ends, in the units of `y_true`, as `predict_interval` returns them.

    Returns
    -------
    coverage : float or ndarray of shape (n_outputs,)
        Between 0 and 1; an array for `multioutput="raw_values"`.

    Raises
    ------
    ValueError
        If the shapes do not fit, a value is not finite, a lower end lies above its upper end, or
        `sample_weight` or `multioutput` is not as described.

    See Also
    --------
    neg_coverage_error_scorer : The scorer for model selection.
    skgpstoch.display.RegressionCalibrationDisplay : Coverage at every level.

    Examples
    --------
    >>> from skgpstoch.metrics import interval_coverage
    >>> interval_coverage([1.0, 2.0, 3.0, 9.0], [[0, 2], [1, 3], [2, 4], [3, 5]])
    0.75
    """
    y = _as_columns(y_true, "y_true")  # (N, P)
    interval = _as_numbers(y_interval, "y_interval")
    if interval.ndim == 2:
        interval = interval[:, :, np.newaxis]
    if interval.shape != (len(y), 2, y.shape[1]):
        raise ValueError(
            "y_interval must have shape (n_samples, 2) or (n_samples, 2, n_outputs) for the "
            f"{len(y)} rows and {y.shape[1]} output(s) of y_true; got {np.shape(y_interval)}."
        )
    lower, upper = interval[:, 0], interval[:, 1]  # (N, P) each
    if np.any(lower > upper):
        raise ValueError("y_interval must hold (lower, upper) pairs; got a lower > upper.")
    return _average((lower <= y) & (y <= upper), sample_weight, multioutput)


# ------------------------------------------------------------------ predictions and their checks
def unwrapped(estimator: Any, X: ArrayLike) -> tuple[Any, ArrayLike]:
    """Return the last step of a pipeline or of a search's best pipeline, and the inputs it sees."""
    check_is_regressor(estimator)
    predictor = getattr(estimator, "best_estimator_", estimator)
    if isinstance(predictor, Pipeline):
        X = predictor[:-1].transform(X) if len(predictor) > 1 else X
        return unwrapped(predictor[-1], X)
    return predictor, X


def check_is_regressor(estimator: Any) -> None:
    """Raise a TypeError for what has no `predict`, or for a class."""
    if isinstance(estimator, type) or not hasattr(estimator, "predict"):
        raise TypeError(f"estimator must be a fitted regressor, got {estimator!r:.80}.")


def predict_mean_std(estimator: Any, X: ArrayLike, **of_rows: ArrayLike) -> tuple[NDArray, NDArray]:
    """Predict the mean and the standard deviation of y at X, each of shape (N,) or (N, P).

    `of_rows` (exposures, known errors) are passed to the regressor. A TypeError is raised if the
    estimator does not predict a standard deviation.
    """
    check_is_regressor(estimator)
    predictor = getattr(estimator, "best_estimator_", estimator)  # a search's predict has only X
    message = (
        "estimator must support predict(X, return_std=True) and return (mean, std), itself "
        f"or as the last step of a Pipeline; got {estimator!r}."
    )
    try:
        # Without routing a Pipeline hands on every keyword; with it, only those requested.
        with config_context(enable_metadata_routing=False):
            prediction = predictor.predict(X, return_std=True, **of_rows)
    except (TypeError, AttributeError) as error:
        # The keyword is unknown, or a wrapper (TransformedTargetRegressor) chokes on the pair.
        if "return_std" in str(error) or "'tuple'" in str(error):
            raise TypeError(message) from error
        raise
    if not (isinstance(prediction, tuple) and len(prediction) == 2):
        raise TypeError(message)
    return prediction


def central_interval(mean: NDArray, std: NDArray, coverage: float) -> NDArray:
    """Return the intervals (N, 2) or (N, 2, P) with probability `coverage` under N(mean, std²)."""
    check_coverage(coverage)
    half_width = ndtri((1 + coverage) / 2) * std
    return np.stack([mean - half_width, mean + half_width], axis=1)


def _as_numbers(values: ArrayLike, name: str) -> NDArray:
    """Return a finite float64 array of any shape, with at least one row."""
    array = as_floats(values, name)
    if array.ndim == 0 or not array.size:
        raise ValueError(
            f"{name} must have a number for each row, got {values!r:.80}, of shape {array.shape}."
        )
    with np.errstate(invalid="ignore"):  # of a sum of infinite numbers
        return check_array(array, allow_nd=True, ensure_2d=False, input_name=name)


def _as_columns(values: ArrayLike, name: str) -> NDArray:
    """Return a finite float64 array of shape (N, P); 1-d input becomes one column."""
    array = _as_numbers(values, name)
    if array.ndim > 2:
        raise ValueError(
            f"{name} must have shape (n_samples,) or (n_samples, n_outputs), got {array.shape}."
        )
    return array[:, np.newaxis] if array.ndim == 1 else array


def check_predictions(
    y_true: ArrayLike, y_mean: ArrayLike, y_std: ArrayLike
) -> tuple[NDArray, NDArray, NDArray]:
    """Return checked targets, means and positive standard deviations, each of shape (N, P)."""
    y, mean, std = (
        _as_columns(values, name)
        for values, name in ((y_true, "y_true"), (y_mean, "y_mean"), (y_std, "y_std"))
    )
    for name, array in (("y_mean", mean), ("y_std", std)):
        if array.shape != y.shape:
            raise ValueError(
                f"{name} must have the shape of y_true, {y.shape} as (n_samples, n_outputs); "
                f"got {array.shape}."
            )
    if np.any(std <= 0):
        raise ValueError(f"y_std must be positive; its minimum is {std.min()}.")
    return y, mean, std


def _average(
    loss: NDArray, sample_weight: ArrayLike | None, multioutput: str | ArrayLike
) -> float | NDArray:
    """Average `loss` (N, P) over rows, weighted by `sample_weight`, then over outputs."""
    row_weights = None
    if sample_weight is not None:
        row_weights = check_weights(sample_weight, "sample_weight", len(loss))  # (N,)
    per_output = np.average(loss, axis=0, weights=row_weights)  # (P,)
    if isinstance(multioutput, str):
        if multioutput == "raw_values":
            return per_output
        if multioutput == "uniform_average":
            return float(np.mean(per_output))
        raise ValueError(
            "multioutput must be 'uniform_average', 'raw_values' or an array of weights; "
            f"got {multioutput!r}."
        )
    output_weights = check_weights(multioutput, "multioutput", loss.shape[1])  # (P,)
    return float(np.average(per_output, weights=output_weights))


def check_weights(weights: ArrayLike, name: str, size: int) -> NDArray:
    array = _as_numbers(weights, name)
    if array.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},); got {array.shape}.")
    if np.any(array < 0) or not np.any(array > 0):
        raise ValueError(f"{name} must hold non-negative weights, not all of them zero.")
    return array
