"""Plot the report of a recommended default: its models and their calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.docstrings import documented
from .bars import StackingWeightsDisplay
from .base import FITTED, Display, fitted_with

if TYPE_CHECKING:
    import numpy.typing

NOMINAL = 0.95
LOWEST = 0.8  # coverage at which the axis begins, unless a group's is lower
KEYS = {
    "std": ("o", "predicted std"),
    "mean": ("s", "predicted mean"),
}  # markers, and their labels in the legend


@dataclass(kw_only=True, eq=False, repr=False)
class ReportDisplay(Display):
    """Weights of the models, and their calibration in groups of held-out rows.

    Regression: rows are grouped by the predicted standard deviation and by the predicted mean, and
    the plot shows the coverage of 95 % intervals in each group. Calibrated predictions cover about
    95 % of every group; small groups vary more. Classification: rows are grouped by the probability
    of the predicted class, and the plot shows how often that class was right against the mean
    probability, with bars of two standard deviations of chance. Calibrated probabilities lie on the
    line.

    Parameters
    ----------
    leaderboard : DataFrame or dict of sequences
        Columns "model", "weight" and "score", a row for each model.
    calibration : DataFrame or dict of sequences
        A row for each group. Regression: columns "by" ("std" or "mean"), "group" and "coverage_95"
        or, for counts, "rmse" and "mean_std".
        Classification: columns "by" ("confidence"), "mean_prediction", "share" and "chance".

    Attributes
    ----------
    weights_ : StackingWeightsDisplay
        Plot of the weights.
    lines_ : list of matplotlib Line2D
        Regression: coverage, or for counts the root mean squared error over the mean predicted
        std, by predicted std, then by predicted mean. Classification: shares of rows whose
        predicted class was right.
    axes_ : ndarray of matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    skgpstoch.AutoGaussianProcessRegressor.report : The numbers.

    Examples
    --------
    >>> from skgpstoch.display import ReportDisplay
    >>> display = ReportDisplay(
    ...     leaderboard={"model": ["process"], "weight": [1.0], "score": [-1.3]},
    ...     calibration={"by": ["std", "mean"], "group": [1, 1], "coverage_95": [0.94, 0.94]},
    ... )
    >>> len(display.plot().lines_)
    2
    """

    leaderboard: Any
    calibration: Any

    def plot(self, axes: Any = None) -> ReportDisplay:
        """Draw the two plots.

        Parameters
        ----------
        axes : sequence of matplotlib Axes, default=None
            Two axes to draw on; None opens a new figure.

        Returns
        -------
        display : Self
            Itself.
        """
        left, right = self._open_grid(axes, 2, (1, 2), (5.0, 3.2))
        board = self.leaderboard
        self.weights_ = StackingWeightsDisplay(
            names=list(board["model"]), weights=board["weight"], scores=board["score"]
        ).plot(left)
        of_classes = "share" in self.calibration
        self.lines_ = (self._reliability if of_classes else self._by_group)(right)
        return self

    def _by_group(self, ax: Any) -> list[Any]:
        """Draw the coverage of intervals by group or, for counts, errors over deviations."""
        table, expected, low = self.calibration, NOMINAL, LOWEST
        by, group = np.asarray(table["by"]), numbers(table, "group")
        if "coverage_95" in table:
            share, label, high = numbers(table, "coverage_95"), "Coverage of 95 % intervals", 1.01
        else:
            share = numbers(table, "rmse") / numbers(table, "mean_std")
            label, expected, low, high = "Root mean squared error / mean std", 1.0, 0.0, None
        ax.axhline(expected, color="0.35", linestyle="--", linewidth=1.0)
        lines = [
            ax.plot(group[by == key], share[by == key], marker, ls="none", label=label)[0]
            for key, (marker, label) in KEYS.items()
        ]
        ax.set(
            xlabel="Group of held-out rows, lowest first",
            ylabel=label,
            ylim=(min(low, float(share.min()) - 0.02), high),
        )
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(title="Grouped by", loc="lower left")
        return lines

    def _reliability(self, ax: Any) -> list[Any]:
        """Draw how often the predicted class was right, by its probability."""
        columns = ("mean_prediction", "share", "chance")
        predicted, share, chance = (numbers(self.calibration, name) for name in columns)
        rows = np.asarray(self.calibration["by"]) == "confidence"
        low = min(float(predicted[rows].min()), float(share[rows].min())) - 0.05
        ax.plot([low, 1.0], [low, 1.0], color="0.35", linestyle="--", linewidth=1.0)
        bars = ax.errorbar(predicted[rows], share[rows], 2.0 * chance[rows], fmt="o", capsize=2.0)
        ax.set(xlabel="Probability of the predicted class", ylabel="Observed share of this class")
        return [bars.lines[0]]

    @classmethod
    @documented(FITTED)
    def from_estimator(cls, estimator: Any, *, axes: Any = None) -> ReportDisplay:
        """Draw the report of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.AutoGaussianProcessRegressor` or
            :class:`~skgpstoch.AutoGaussianProcessClassifier`; a pipeline that ends in one, or a
            hyperparameter search over either.
        axes : sequence of matplotlib Axes, default=None
            Two axes to draw on; None opens a new figure.

        Raises
        ------
        TypeError
            If the estimator has no `report`.
        """
        report = fitted_with("report", estimator, cls).report()
        return cls(leaderboard=report.leaderboard, calibration=report.calibration).plot(axes)


def numbers(table: Any, name: str) -> np.ndarray:
    """Return a column of a table; raise a ValueError for words, each of which would be drawn."""
    try:
        return np.asarray(table[name], dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"Column {name!r} of calibration must be numbers.") from None
