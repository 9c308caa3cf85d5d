"""Plots of training: losses by epoch, and the convergence of cross-validation by ADMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.docstrings import documented
from .base import FITTED, PLOTTED, Display, fitted_with

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.lines

MOST_CURVES = 100  # of searches, in each picture


@dataclass(kw_only=True, eq=False, repr=False)
class LearningCurveDisplay(Display):
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

    @documented(PLOTTED)
    def plot(
        self, ax: matplotlib.axes.Axes | None = None, *, name: str | None = None, **kwargs: Any
    ) -> LearningCurveDisplay:
        """Draw the curves.

        Parameters
        ----------
        **kwargs : dict
            Keywords for matplotlib's `plot` (both curves).
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
        if self.validation_scores is not None and len(self.validation_scores):
            curve = np.asarray(self.validation_scores)
            epochs = np.arange(1, len(curve) + 1) * (n_epochs / len(curve))
            style = {"label": f"{prefix}validation NLPD", "linewidth": 2, "color": color, **kwargs}
            (self.validation_line_,) = ax.plot(epochs, curve, **style)
        if self.best_iter is not None and n_epochs:  # else training ended before the first
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
    @documented(FITTED)
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

        Raises
        ------
        TypeError
            If the estimator has no `loss_curve_`.
        """
        fitted = fitted_with("loss_curve_", estimator, cls)
        display = cls(
            loss_curve=fitted.loss_curve_,
            validation_scores=getattr(fitted, "validation_scores_", None),
            best_iter=getattr(fitted, "best_iter_", None),
            estimator_name=name,
        )
        return display.plot(ax, **kwargs)


@dataclass(kw_only=True, eq=False, repr=False)
class ADMMConvergenceDisplay(Display):
    """The four convergence curves of cross-validation by ADMM: θ, weights, gap and objective.

    Parameters
    ----------
    theta : ndarray of shape (n_iter, n_searches)
        Logarithm θ of one hyper-parameter, after every iteration of every search.
    z_norm : ndarray of shape (n_iter, n_searches)
        Norm ‖z‖ of the weights.
    gap : ndarray of shape (n_iter, n_searches)
        Constraint gap ‖Cz − y‖/‖y‖; 0 if the constraint holds.
    objective : ndarray of shape (n_iter, n_searches)
        Augmented Lagrangian, divided by the number of held-out values.
    parameter_name : str, default="hyper-parameter"
        Name of the hyper-parameter θ, for the label of its axis.

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

    @documented(PLOTTED)
    def plot(
        self, axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None, **kwargs: Any
    ) -> ADMMConvergenceDisplay:
        """Draw the curves, of the first 100 searches if there are more.

        Parameters
        ----------
        axes : sequence of four matplotlib Axes, default=None
            Axes to draw on; None opens a new figure.
        **kwargs : dict
            Keywords for matplotlib's `plot`.
        """
        if axes is None:
            axes = self._pyplot().subplots(2, 2, layout="constrained")[1]
        self.axes_ = np.ravel(np.asarray(axes, dtype=object))
        if len(self.axes_) != 4:
            raise ValueError(f"axes must hold four axes, got {len(self.axes_)}.")
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
            lines.append(ax.plot(iterations, values[:, :MOST_CURVES], **style))
            ax.set(xlabel="Iteration", title=name)
        for ax in self.axes_[[0, 2]]:
            ax.set_yscale("log")
        self.lines_ = np.array(lines, dtype=object)
        return self

    @classmethod
    @documented(FITTED, plot)
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
            Position of the hyper-parameter in `history_["theta"]`.

        Raises
        ------
        TypeError
            If the estimator has no `history_`.
        ValueError
            If there is no such hyper-parameter.
        """
        fitted = fitted_with("history_", estimator, cls)
        history = fitted.history_
        n_dims = history["theta"].shape[2]
        if parameter not in range(n_dims):
            raise ValueError(
                f"parameter must be the index of one of the {n_dims} learned "
                f"hyper-parameters, counted from 0, got {parameter!r}."
            )
        display = cls(
            theta=history["theta"][..., parameter],
            **{name: history[name] for name in ("z_norm", "gap", "objective")},
            parameter_name=f"hyper-parameter {parameter}",
        )
        return display.plot(axes, **kwargs)
