"""Pictures of predictive uncertainty and of training, as scikit-learn Displays.

A Display holds the numbers of a picture; `plot` draws them and keeps the artists; `from_estimator`
and `from_predictions` do both at once. matplotlib is optional: only `plot` imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted

from skgpstoch.metrics import (
    central_interval,
    check_coverage,
    check_predictions,
    interval_coverage,
    predict_mean_std,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.lines
    import numpy.random

__all__ = [
    "ADMMConvergenceDisplay",
    "LearningCurveDisplay",
    "PredictionIntervalDisplay",
    "RegressionCalibrationDisplay",
]

COVERED, MISSED, IDEAL = "tab:blue", "tab:orange", "0.35"  # a pair that colour-blind readers part


class _Display:
    """What every Display has after `plot`."""

    def _open(self, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
        """Axes to draw on: the user's, or those of a new figure."""
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.plot requires matplotlib. You can install it with "
                "`pip install matplotlib`."
            ) from error
        self.ax_ = plt.subplots(layout="constrained")[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        return self.ax_


@dataclass(kw_only=True, eq=False, repr=False)
class PredictionIntervalDisplay(_Display):
    """Predicted against actual values, with the interval of each prediction.

    An interval that covers the actual value crosses the diagonal; the others are drawn in another
    colour. The legend tells the observed coverage over all rows, drawn or not.

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
        return float(interval_coverage(self.y_true, self.y_interval))

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
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        subsample : int, float or None, default=200
            Number of rows drawn, or their fraction if a float in (0, 1); None draws all.
        random_state : int, RandomState instance or None, default=0
            Seed of the choice of rows.
        scatter_kwargs, interval_kwargs, line_kwargs : dict, default=None
            Keywords for matplotlib's `scatter` (the means), `vlines` (the intervals) and `plot`
            (the diagonal).

        Returns
        -------
        display : PredictionIntervalDisplay
            Itself.
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
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        coverage: float = 0.95,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> PredictionIntervalDisplay:
        """Predict and draw the picture.

        Parameters
        ----------
        estimator : object
            Fitted regressor with `predict(X, return_std=True)`, a pipeline that ends in one, or a
            hyperparameter search over either.
        X : array-like of shape (n_samples, n_features)
            Inputs, preferably not those of the fit.
        y : array-like of shape (n_samples,)
            Actual values.
        coverage : float, default=0.95
            Nominal coverage of the central Gaussian intervals, in (0, 1).
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : PredictionIntervalDisplay
            The numbers and the artists.

        Raises
        ------
        TypeError
            If the estimator does not predict a standard deviation.
        ValueError
            If there are several outputs, or `coverage` is not in (0, 1).
        """
        mean, std = predict_mean_std(estimator, X)
        return cls.from_predictions(y, mean, std, coverage=coverage, ax=ax, **kwargs)

    @classmethod
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
        coverage : float, default=0.95
            Nominal coverage of the central Gaussian intervals, in (0, 1).
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : PredictionIntervalDisplay
            The numbers and the artists.

        Raises
        ------
        ValueError
            If the input is not as described.
        """
        y, mean, std = check_predictions(y_true, y_mean, y_std)  # (N, P) each
        if y.shape[1] != 1:
            raise ValueError(
                f"{cls.__name__} shows one output, got {y.shape[1]}: call from_predictions with "
                "one column of y_true, y_mean and y_std."
            )
        interval = central_interval(mean[:, 0], std[:, 0], coverage)
        display = cls(y_true=y[:, 0], y_mean=mean[:, 0], y_interval=interval, coverage=coverage)
        return display.plot(ax, **kwargs)


@dataclass(kw_only=True, eq=False, repr=False)
class RegressionCalibrationDisplay(_Display):
    """Reliability of predictive distributions: observed against nominal coverage.

    For each level p, the fraction of the rows inside their central Gaussian interval of
    probability p. Below the diagonal the model is overconfident (its intervals are too narrow),
    above it underconfident. Several estimators may be drawn on one `ax`.

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
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        name : str, default=None
            Name in the legend; None takes `estimator_name`.
        ref_line : bool, default=True
            Whether to draw the diagonal and, around it, where 95% of the points of a calibrated
            model with `n_samples` independent rows lie.
        **kwargs : dict
            Keywords for matplotlib's `plot` (the curve).

        Returns
        -------
        display : RegressionCalibrationDisplay
            Itself.
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
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        levels: ArrayLike | None = None,
        name: str | None = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> RegressionCalibrationDisplay:
        """Predict and draw the calibration curve.

        Parameters
        ----------
        estimator : object
            Fitted regressor with `predict(X, return_std=True)`, a pipeline that ends in one, or a
            hyperparameter search over either.
        X : array-like of shape (n_samples, n_features)
            Inputs, preferably not those of the fit.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Actual values; several outputs are pooled.
        levels : array-like of shape (n_levels,), default=None
            Nominal coverages, in (0, 1); None takes 0.05, 0.1, ..., 0.95.
        name : str, default=None
            Name in the legend; None takes that of the estimator's class (in a pipeline, the last
            step's).
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : RegressionCalibrationDisplay
            The numbers and the artists.

        Raises
        ------
        TypeError
            If the estimator does not predict a standard deviation.
        ValueError
            If a level is not in (0, 1).
        """
        mean, std = predict_mean_std(estimator, X)
        name = type(_final_estimator(estimator)).__name__ if name is None else name
        return cls.from_predictions(y, mean, std, levels=levels, name=name, ax=ax, **kwargs)

    @classmethod
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
        levels : array-like of shape (n_levels,), default=None
            Nominal coverages, in (0, 1); None takes 0.05, 0.1, ..., 0.95.
        name : str, default=None
            Name in the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : RegressionCalibrationDisplay
            The numbers and the artists.

        Raises
        ------
        ValueError
            If the input is not as described.
        """
        y, mean, std = check_predictions(y_true, y_mean, y_std)  # (N, P) each
        nominal = np.arange(1, 20) / 20 if levels is None else np.asarray(levels, dtype=float)
        for level in nominal:
            check_coverage(level, "levels")
        # The probability of the smallest central interval that covers y: 2Φ(|z|) − 1.
        needed = erf(np.abs(y - mean) / std / math.sqrt(2))  # (N, P)
        covered = np.searchsorted(np.sort(needed, axis=None), nominal, side="right")  # (n_levels,)
        observed = covered / needed.size
        display = cls(nominal=nominal, observed=observed, n_samples=len(y), estimator_name=name)
        return display.plot(ax, **kwargs)


@dataclass(kw_only=True, eq=False, repr=False)
class LearningCurveDisplay(_Display):
    """Training loss and validation score of a fitted estimator, epoch by epoch.

    Not to be confused with :class:`sklearn.model_selection.LearningCurveDisplay`, whose abscissa
    is the size of the training set. Several estimators may be drawn on one `ax`.

    Parameters
    ----------
    loss_curve : sequence of float of length n_epochs
        Training loss of each epoch, in nats per row.
    validation_scores : sequence of float, default=None
        Validation negative log predictive densities, in nats per row, at evenly spaced epochs, the
        last of them after the last epoch.
    best_iter : int, default=None
        Epoch whose parameters were kept, counted from 1.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    loss_line_ : matplotlib Line2D
        Training loss.
    validation_line_ : matplotlib Line2D or None
        Validation score; None without validation scores.
    best_point_ : matplotlib Line2D or None
        Mark of the best epoch; None without `best_iter`.
    ax_ : matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    Examples
    --------
    >>> from skgpstoch.display import LearningCurveDisplay
    >>> display = LearningCurveDisplay(
    ...     loss_curve=[2.1, 1.2, 0.8, 0.7], validation_scores=[1.8, 1.1, 0.9, 1.0], best_iter=3
    ... ).plot()
    >>> float(display.best_point_.get_ydata()[0])
    0.9
    """

    loss_curve: Sequence[float] | NDArray
    validation_scores: Sequence[float] | NDArray | None = None
    best_iter: int | None = None
    estimator_name: str | None = None

    def plot(
        self, ax: matplotlib.axes.Axes | None = None, *, name: str | None = None, **kwargs: Any
    ) -> LearningCurveDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        name : str, default=None
            Name in the legend; None takes `estimator_name`.
        **kwargs : dict
            Keywords for matplotlib's `plot` (both curves).

        Returns
        -------
        display : LearningCurveDisplay
            Itself.
        """
        ax = self._open(ax)
        name = self.estimator_name if name is None else name
        prefix = "" if name is None else f"{name}: "
        n_epochs = len(self.loss_curve)
        epochs: NDArray = np.arange(1, n_epochs + 1)
        curve = np.asarray(self.loss_curve)
        style = {"label": f"{prefix}training loss", "linewidth": 1.2, "alpha": 0.6, **kwargs}
        (self.loss_line_,) = ax.plot(epochs, curve, **style)
        color = self.loss_line_.get_color()

        self.validation_line_: matplotlib.lines.Line2D | None = None
        self.best_point_: matplotlib.lines.Line2D | None = None
        if self.validation_scores is not None:
            curve = np.asarray(self.validation_scores)
            epochs = np.arange(1, len(curve) + 1) * (n_epochs / len(curve))
            style = {"label": f"{prefix}validation NLPD", "linewidth": 2, "color": color, **kwargs}
            (self.validation_line_,) = ax.plot(epochs, curve, **style)
        if self.best_iter is not None:
            (self.best_point_,) = ax.plot(
                [self.best_iter],
                [np.interp(self.best_iter, epochs, curve)],
                marker="o",
                markersize=9,
                markeredgecolor="white",
                color=color,
                linestyle="none",
                label=f"{prefix}best epoch ({self.best_iter})",
            )
        ax.set(xlabel="Epoch", ylabel="Nats per row")
        ax.legend(loc="upper right")
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        name: str | None = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> LearningCurveDisplay:
        """Draw the curves of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted estimator with `loss_curve_` and, optionally, `validation_scores_` and
            `best_iter_`; a pipeline that ends in one, or a hyperparameter search over either.
        name : str, default=None
            Name in the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : LearningCurveDisplay
            The numbers and the artists.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        TypeError
            If the estimator has no `loss_curve_`.
        """
        fitted = _fitted_with("loss_curve_", estimator, cls)
        display = cls(
            loss_curve=fitted.loss_curve_,
            validation_scores=getattr(fitted, "validation_scores_", None),
            best_iter=getattr(fitted, "best_iter_", None),
            estimator_name=name,
        )
        return display.plot(ax, **kwargs)


@dataclass(kw_only=True, eq=False, repr=False)
class ADMMConvergenceDisplay(_Display):
    """The four convergence curves of cross-validation by ADMM: θ, weights, gap and objective.

    Parameters
    ----------
    theta : ndarray of shape (n_iter, n_searches)
        Logarithm of one hyper-parameter after every iteration, of every search.
    z_norm : ndarray of shape (n_iter, n_searches)
        ‖z‖, the weights.
    gap : ndarray of shape (n_iter, n_searches)
        ‖Cz − y‖/‖y‖.
    objective : ndarray of shape (n_iter, n_searches)
        Augmented Lagrangian, a number held out.
    parameter_name : str, default="hyper-parameter"
        What θ is.

    Attributes
    ----------
    lines_ : ndarray of shape (4, n_searches)
        matplotlib Line2D of the curves.
    axes_ : ndarray of shape (4,)
        matplotlib Axes drawn on, in the order of the parameters.
    figure_ : matplotlib Figure
        Figure of the axes.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import ADMMGaussianProcessRegressor
    >>> from skgpstoch.display import ADMMConvergenceDisplay
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> model = ADMMGaussianProcessRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> display = ADMMConvergenceDisplay.from_estimator(model)
    >>> display.axes_.shape
    (4,)
    """

    theta: NDArray
    z_norm: NDArray
    gap: NDArray
    objective: NDArray
    parameter_name: str = "hyper-parameter"

    def plot(
        self, axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None, **kwargs: Any
    ) -> ADMMConvergenceDisplay:
        """Draw the curves.

        Parameters
        ----------
        axes : sequence of four matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Keywords for matplotlib's `plot`.

        Returns
        -------
        display : ADMMConvergenceDisplay
            Itself.
        """
        if axes is None:
            figure = self._open(None).figure
            figure.clear()
            axes = figure.subplots(2, 2)
        self.axes_ = np.ravel(np.asarray(axes, dtype=object))
        if len(self.axes_) != 4:
            raise ValueError(f"axes must be four, got {len(self.axes_)}.")
        self.figure_ = self.axes_[0].figure
        style = {"marker": "o", "markersize": 3, **kwargs}
        iterations = np.arange(1, len(self.theta) + 1)
        curves = {
            self.parameter_name: np.exp(self.theta),
            "‖z‖": self.z_norm,
            "‖Cz − y‖ / ‖y‖": self.gap,
            "augmented Lagrangian": self.objective,
        }
        lines = []
        for ax, (name, values) in zip(self.axes_, curves.items(), strict=True):
            lines.append(ax.plot(iterations, values, **style))
            ax.set(xlabel="Iteration", title=name)
        for ax in self.axes_[[0, 2]]:
            ax.set_yscale("log")
        self.lines_ = np.array(lines, dtype=object)
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        parameter: int = 0,
        axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None,
        **kwargs: Any,
    ) -> ADMMConvergenceDisplay:
        """Draw the curves of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.ADMMGaussianProcessRegressor`; a pipeline that ends in one, or
            a hyperparameter search over either.
        parameter : int, default=0
            Which of the hyper-parameters, in the order of `history_["theta"]`.
        axes : sequence of four matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : ADMMConvergenceDisplay
            The numbers and the artists.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        TypeError
            If the estimator has no `history_`.
        ValueError
            If there is no such hyper-parameter.
        """
        fitted = _fitted_with("history_", estimator, cls)
        history = fitted.history_
        n_dims = history["theta"].shape[2]
        if parameter not in range(n_dims):
            raise ValueError(
                f"parameter must be one of the {n_dims} hyper-parameters that were learned, "
                f"counted from 0, got {parameter!r}."
            )
        display = cls(
            theta=history["theta"][..., parameter],
            **{name: history[name] for name in ("z_norm", "gap", "objective")},
            parameter_name=f"hyper-parameter {parameter}",
        )
        return display.plot(axes, **kwargs)


def _final_estimator(estimator: Any) -> Any:
    """The regressor inside a fitted search or pipeline."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _fitted_with(attribute: str, estimator: Any, display: type) -> Any:
    """The regressor inside a fitted search or pipeline, if it has what a Display draws."""
    check_is_fitted(estimator)
    fitted = _final_estimator(estimator)
    if not hasattr(fitted, attribute):
        raise TypeError(
            f"{display.__name__} needs an estimator with a {attribute}; got {fitted!r}."
        )
    return fitted


def _draw_rows(
    n_samples: int,
    subsample: int | float | None,
    random_state: int | numpy.random.RandomState | None,
) -> NDArray:
    """Rows to draw, without replacement."""
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
