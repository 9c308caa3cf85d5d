"""Plots of predictive uncertainty: intervals, and their calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf
from sklearn.utils import check_random_state, check_scalar

from ..data.arguments import check_coverage, check_exposed, given_of_rows
from ..data.array_inputs import as_floats
from ..data.docstrings import documented
from ..metrics import scores
from .base import MADE, PLOTTED, Display, final_estimator

if TYPE_CHECKING:
    import matplotlib.axes
    import numpy.random

COVERED, MISSED, IDEAL = "tab:blue", "tab:orange", "0.35"  # safe for colour-blind readers

PREDICTED = """
Parameters
----------
X : array-like of shape (n_samples, n_features)
    Inputs, preferably not those of the fit.
coverage : float, default=0.95
    Nominal coverage of the central intervals, in (0, 1). They are Gaussian for counts, estimators
    of other libraries and given predictions, and otherwise those of `predict_interval`.
levels : array-like of shape (n_levels,), default=None
    Nominal coverages, in (0, 1); None takes 0.05, 0.1, ..., 0.95.
exposure : array-like of shape (n_samples,), default=None
    Exposures of counts, for a model that was fitted with exposures.
y_std : array-like of shape (n_samples,), default=None
    Known errors of `y`, for a model that was fitted with known errors.

Raises
------
ValueError
    If the input is not as described.
"""


@dataclass(kw_only=True, eq=False, repr=False)
class PredictionIntervalDisplay(Display):
    """Predicted against actual values, with the interval of each prediction.

    An interval that covers the actual value crosses the diagonal; the others are drawn in another
    colour. The legend shows the observed coverage over all rows, drawn or not.

    Parameters
    ----------
    y_true : ndarray of shape (n_samples,)
        Actual values.
    y_mean : ndarray of shape (n_samples,)
        Predicted means, in the units of y.
    y_interval : ndarray of shape (n_samples, 2)
        Lower and upper ends of the intervals, in the units of y.
    coverage : float, default=None
        Nominal coverage of the intervals, for the legend.

    Attributes
    ----------
    observed_coverage : float
        Fraction of the rows inside their interval.
    indices_ : ndarray of shape (n_drawn,)
        Rows drawn, in increasing order of `y_true`.
    covered_points_, missed_points_ : matplotlib PathCollection
        Means of the rows inside and outside their interval.
    covered_intervals_, missed_intervals_ : matplotlib LineCollection
        Intervals of the same rows.
    line_ : matplotlib Line2D
        The diagonal.
    ax_ : matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    RegressionCalibrationDisplay : Coverage at every level.
    sklearn.metrics.PredictionErrorDisplay : Point predictions.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skgpstoch.display import PredictionIntervalDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> display = PredictionIntervalDisplay.from_estimator(BayesianRidge().fit(X, y), X, y)
    >>> round(display.observed_coverage, 2)
    0.96
    """

    y_true: NDArray
    y_mean: NDArray
    y_interval: NDArray
    coverage: float | None = None

    @property
    def observed_coverage(self) -> float:
        """Fraction of the rows inside their interval."""
        return float(scores.interval_coverage(self.y_true, self.y_interval))

    @documented(PLOTTED)
    def plot(
        self,
        ax: matplotlib.axes.Axes | None = None,
        *,
        subsample: int | float | None = 200,
        random_state: int | numpy.random.RandomState | None = 0,
        scatter_kwargs: dict[str, Any] | None = None,
        interval_kwargs: dict[str, Any] | None = None,
        line_kwargs: dict[str, Any] | None = None,
    ) -> PredictionIntervalDisplay:
        """Draw the picture.

        Parameters
        ----------
        subsample : int, float or None, default=200
            Number of rows drawn, or their fraction if a float in (0, 1); None draws all.
        random_state : int, RandomState instance or None, default=0
            Seed of the choice of rows.
        scatter_kwargs, interval_kwargs, line_kwargs : dict, default=None
            Keywords for matplotlib's `scatter` (the means), `vlines` (the intervals) and `plot`
            (the diagonal).
        """
        ax = self._open(ax)
        rows = _draw_rows(len(self.y_true), subsample, random_state)
        rows = rows[np.argsort(self.y_true[rows], kind="stable")]
        y, mean = self.y_true[rows], self.y_mean[rows]  # (n,)
        lower, upper = self.y_interval[rows].T  # (n,) each
        covered = (lower <= y) & (y <= upper)
        observed = self.observed_coverage

        def draw(rows: NDArray, color: str, label: str) -> tuple[Any, Any]:
            bars = {"color": color, "alpha": 0.4, "linewidth": 1, **(interval_kwargs or {})}
            points = {"color": color, "label": label, "s": 12, "zorder": 3}
            return (
                ax.vlines(y[rows], lower[rows], upper[rows], **bars),
                ax.scatter(y[rows], mean[rows], **{**points, **(scatter_kwargs or {})}),
            )

        ends = [y.min(), y.max()]
        line = {"color": IDEAL, "linestyle": "--", "linewidth": 1, "label": "predicted = actual"}
        (self.line_,) = ax.plot(ends, ends, **{**line, **(line_kwargs or {})})
        self.covered_intervals_, self.covered_points_ = draw(
            covered, COVERED, f"covered ({observed:.1%})"
        )
        self.missed_intervals_, self.missed_points_ = draw(
            ~covered, MISSED, f"missed ({1 - observed:.1%})"
        )
        ax.set(xlabel="Actual value", ylabel="Predicted value")
        title = None if self.coverage is None else f"{100 * self.coverage:g}% intervals"
        ax.legend(title=title, loc="upper left")
        self.indices_ = rows
        return self

    @classmethod
    @documented(MADE, PREDICTED, scores.PREDICTOR)
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        coverage: float = 0.95,
        exposure: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> PredictionIntervalDisplay:
        """Predict and draw the picture.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Actual values.

        Raises
        ------
        ValueError
            If there are several outputs, or `coverage` is not in (0, 1).
        """
        mean, std = predicted(estimator, X, exposure, y_std)
        predictor, inputs = scores.unwrapped(estimator, X)
        if not predicts_distributions(predictor):
            return cls.from_predictions(y, mean, std, coverage=coverage, ax=ax, **kwargs)
        of_rows = given_of_rows(predictor, exposure, y_std)
        interval = predictor.predict_interval(inputs, coverage=coverage, **of_rows)
        return cls._of_intervals(y, mean, std, interval, coverage).plot(ax, **kwargs)

    @classmethod
    @documented(MADE, PREDICTED)
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_mean: ArrayLike,
        y_std: ArrayLike,
        *,
        coverage: float = 0.95,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> PredictionIntervalDisplay:
        """Draw the picture of given predictions.

        Parameters
        ----------
        y_true, y_mean, y_std : array-like of shape (n_samples,)
            Actual values, predictive means and predictive standard deviations (noise included).
        """
        return cls._of_intervals(y_true, y_mean, y_std, None, coverage).plot(ax, **kwargs)

    @classmethod
    def _of_intervals(
        cls, y_true: Any, y_mean: Any, y_std: Any, interval: NDArray | None, coverage: float
    ) -> PredictionIntervalDisplay:
        """Make a Display of intervals (n_samples, 2), which are Gaussian if None."""
        y, mean, std = scores.check_predictions(y_true, y_mean, y_std)  # (N, P) each
        if y.shape[1] != 1:
            raise ValueError(
                f"{cls.__name__} shows one output, got {y.shape[1]}: call from_predictions with "
                "one column of y_true, y_mean and y_std."
            )
        if interval is None:
            interval = scores.central_interval(mean[:, 0], std[:, 0], coverage)
        return cls(y_true=y[:, 0], y_mean=mean[:, 0], y_interval=interval, coverage=coverage)


@dataclass(kw_only=True, eq=False, repr=False)
class RegressionCalibrationDisplay(Display):
    """Reliability of predictive distributions: observed against nominal coverage.

    For each level p, the curve shows the fraction of the rows that lie inside their central
    interval of probability p. Below the diagonal, the model is overconfident (its intervals are too
    narrow); above it, underconfident. Several estimators may be drawn on one `ax`.

    Parameters
    ----------
    nominal : ndarray of shape (n_levels,)
        Nominal coverages.
    observed : ndarray of shape (n_levels,)
        Observed coverages.
    n_samples : int, default=None
        Number of rows behind `observed`, for the sampling band; None draws none.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    calibration_error : float
        Mean of \\|observed − nominal\\| over the levels, in [0, 1].
    line_ : matplotlib Line2D
        The curve.
    ax_ : matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    PredictionIntervalDisplay : The intervals of one level, row by row.
    sklearn.calibration.CalibrationDisplay : The same for classifiers.

    References
    ----------
    V. Kuleshov, N. Fenner and S. Ermon, "Accurate Uncertainties for Deep Learning Using Calibrated
    Regression", ICML 2018 (there with one-sided intervals).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import ARDRegression, BayesianRidge
    >>> from skgpstoch.display import RegressionCalibrationDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> display = RegressionCalibrationDisplay.from_estimator(BayesianRidge().fit(X, y), X, y)
    >>> other = RegressionCalibrationDisplay.from_estimator(
    ...     ARDRegression().fit(X, y), X, y, ax=display.ax_
    ... )
    >>> display.calibration_error < 0.05
    True
    """

    nominal: NDArray
    observed: NDArray
    n_samples: int | None = None
    estimator_name: str | None = None

    @property
    def calibration_error(self) -> float:
        """Mean distance of the observed coverages from the nominal ones."""
        return float(np.mean(np.abs(self.observed - self.nominal)))

    @documented(PLOTTED)
    def plot(
        self,
        ax: matplotlib.axes.Axes | None = None,
        *,
        name: str | None = None,
        ref_line: bool = True,
        **kwargs: Any,
    ) -> RegressionCalibrationDisplay:
        """Draw the curve, and the diagonal unless the axes have it already.

        Parameters
        ----------
        ref_line : bool, default=True
            Whether to draw the diagonal and, around it, where 95% of the points of a calibrated
            model with `n_samples` independent rows lie.
        **kwargs : dict
            Keywords for matplotlib's `plot` (the curve).
        """
        ax = self._open(ax)
        ideal = "ideal"
        if ref_line and ideal not in ax.get_legend_handles_labels()[1]:
            ax.plot([0, 1], [0, 1], color=IDEAL, linestyle="--", linewidth=1, label=ideal)
            if self.n_samples is not None:
                p = np.linspace(0, 1, 101)
                half_width = 1.96 * np.sqrt(p * (1 - p) / self.n_samples)
                ax.fill_between(
                    p,
                    np.maximum(p - half_width, 0),
                    np.minimum(p + half_width, 1),
                    color=IDEAL,
                    alpha=0.15,
                    linewidth=0,
                    label=f"95% sampling band (n = {self.n_samples})",
                )
        name = self.estimator_name if name is None else name
        error = f"calibration error {self.calibration_error:.1%}"
        label = error if name is None else f"{name}\n{error}"
        style = {"label": label, "marker": "o", "markersize": 4}
        (self.line_,) = ax.plot(self.nominal, self.observed, **{**style, **kwargs})
        ax.set(xlabel="Nominal coverage", ylabel="Observed coverage", xlim=(0, 1), ylim=(0, 1))
        ax.set_aspect("equal")
        ax.legend(loc="best", fontsize="small")
        return self

    @classmethod
    @documented(MADE, PREDICTED, scores.PREDICTOR)
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        levels: ArrayLike | None = None,
        name: str | None = None,
        exposure: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> RegressionCalibrationDisplay:
        """Predict and draw the calibration curve.

        Parameters
        ----------
        estimator : object
            Fitted regressor; a pipeline that ends in one, or a hyperparameter search over either.
            The intervals come from `predictive_cdf` if the regressor has it and y is not counts,
            otherwise from `predict(X, return_std=True)`, as if predictions were Gaussian.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Actual values; several outputs are pooled.
        name : str, default=None
            Name in the legend; None takes that of the estimator's class (in a pipeline, the last
            step's).

        Raises
        ------
        ValueError
            If a level is not in (0, 1).
        """
        name = type(final_estimator(estimator)).__name__ if name is None else name
        predictor, inputs = scores.unwrapped(estimator, X)
        if not predicts_distributions(predictor):
            mean, std = predicted(estimator, X, exposure, y_std)
            return cls.from_predictions(y, mean, std, levels=levels, name=name, ax=ax, **kwargs)
        of_rows = given_of_rows(predictor, exposure, y_std)
        needed = np.abs(2.0 * predictor.predictive_cdf(inputs, y, **of_rows) - 1.0)
        return cls._of_levels_needed(needed, levels, name).plot(ax, **kwargs)

    @classmethod
    @documented(MADE, PREDICTED)
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_mean: ArrayLike,
        y_std: ArrayLike,
        *,
        levels: ArrayLike | None = None,
        name: str | None = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> RegressionCalibrationDisplay:
        """Draw the calibration curve of given predictions.

        Parameters
        ----------
        y_true, y_mean, y_std : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Actual values, predictive means and predictive standard deviations (noise included);
            several outputs are pooled.
        """
        y, mean, std = scores.check_predictions(y_true, y_mean, y_std)  # (N, P) each
        # The probability of the smallest central interval that covers y: 2Φ(|z|) − 1.
        needed = erf(np.abs(y - mean) / std / math.sqrt(2))  # (N, P)
        return cls._of_levels_needed(needed, levels, name).plot(ax, **kwargs)

    @classmethod
    def _of_levels_needed(
        cls, needed: NDArray, levels: ArrayLike | None, name: str | None
    ) -> RegressionCalibrationDisplay:
        """Make a Display from the smallest levels whose intervals contain y, (N, …)."""
        nominal = np.arange(1, 20) / 20 if levels is None else as_floats(levels, "levels")
        if nominal.ndim != 1 or not len(nominal):
            raise ValueError(f"levels must be a list of numbers from 0 to 1, got {levels!r:.80}.")
        for level in nominal.tolist():
            check_coverage(level, "levels")
        covered = np.searchsorted(np.sort(needed, axis=None), nominal, side="right")  # (n_levels,)
        observed = covered / needed.size
        return cls(nominal=nominal, observed=observed, n_samples=len(needed), estimator_name=name)


def predicted(estimator: Any, X: ArrayLike, exposure: Any, y_std: Any) -> tuple[NDArray, NDArray]:
    """Return means and standard deviations of y, or raise a ValueError if exposures are missing."""
    model, _ = scores.unwrapped(estimator, X)
    check_exposed(model, exposure)
    return scores.predict_mean_std(estimator, X, **given_of_rows(model, exposure, y_std))


def predicts_distributions(predictor: Any) -> bool:
    """Whether a model has a continuous distribution function of y."""
    is_discrete = getattr(getattr(predictor, "likelihood_", None), "is_discrete", False)
    is_discrete |= getattr(predictor, "target", None) == "count"  # of the recommended default
    return hasattr(predictor, "predictive_cdf") and not is_discrete


def _draw_rows(
    n_samples: int,
    subsample: int | float | None,
    random_state: int | numpy.random.RandomState | None,
) -> NDArray:
    """Choose the rows to draw, without replacement."""
    if subsample is None:
        return np.arange(n_samples)
    if isinstance(subsample, float):
        check_scalar(
            subsample, "subsample", float, min_val=0, max_val=1, include_boundaries="neither"
        )
        size = math.ceil(subsample * n_samples)
    else:
        check_scalar(subsample, "subsample", Integral, min_val=1)
        size = min(subsample, n_samples)
    return check_random_state(random_state).choice(n_samples, size=size, replace=False)
