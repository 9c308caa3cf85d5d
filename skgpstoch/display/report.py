"""The report of a recommended default as a picture: its models and their calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..docstrings import documented
from .base import FITTED, Display, fitted_with
from .stacking import StackingWeightsDisplay

if TYPE_CHECKING:
    import numpy.typing

NOMINAL = 0.95
LOWEST = 0.8  # coverage that the axis begins with, if none is lower
KEYS = {
    "std": ("o", "predicted std"),
    "mean": ("s", "predicted mean"),
}  # markers, and what they are


@dataclass(kw_only=True, eq=False, repr=False)
class ReportDisplay(Display):
    """Weights of the models, and the coverage of 95 % intervals in groups of rows held out.

    Rows are grouped by the predicted standard deviation and by the predicted mean. If predictions
    are calibrated, 95 % of every group are inside their intervals; groups of few rows vary.

    Parameters
    ----------
    leaderboard : DataFrame or dict of sequences
        "model", "weight" and "score" of the models.
    calibration : DataFrame or dict of sequences
        "by" ("std" or "mean"), "group" and "coverage_95" of the groups.

    Attributes
    ----------
    weights_ : StackingWeightsDisplay
        The picture of the weights.
    lines_ : list of matplotlib Line2D
        Coverage by group: by predicted std, then by predicted mean.
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
        """Draw the two pictures.

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
        by, group, share = (
            np.asarray(self.calibration[name]) for name in ("by", "group", "coverage_95")
        )
        right.axhline(NOMINAL, color="0.35", linestyle="--", linewidth=1.0)
        self.lines_ = [
            right.plot(group[by == key], share[by == key], marker, ls="none", label=label)[0]
            for key, (marker, label) in KEYS.items()
        ]
        right.set(
            xlabel="Group of rows held out, the lowest first",
            ylabel="Coverage of 95 % intervals",
            xticks=np.unique(group),
            ylim=(min(LOWEST, float(share.min()) - 0.02), 1.01),
        )
        right.legend(title="Grouped by", loc="lower left")
        return self

    @classmethod
    @documented(FITTED)
    def from_estimator(cls, estimator: Any, *, axes: Any = None) -> ReportDisplay:
        """Draw the report of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.AutoGaussianProcessRegressor`; a pipeline that ends in one, or
            a hyperparameter search over either.
        axes : sequence of matplotlib Axes, default=None
            Two axes to draw on; None opens a new figure.

        Raises
        ------
        TypeError
            If the estimator has no `report`.
        """
        report = fitted_with("report", estimator, cls).report()
        return cls(leaderboard=report.leaderboard, calibration=report.calibration).plot(axes)
