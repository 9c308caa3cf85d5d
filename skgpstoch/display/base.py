"""Base of Displays: axes to draw on, and the estimator inside a pipeline or search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    import matplotlib.axes

# Sections that `documented` adds to the docstrings below.
PLOTTED = """
Parameters
----------
ax : matplotlib Axes, default=None
    Axes to draw on; None opens a new figure.
name : str, default=None
    Name in the legend; None takes `estimator_name`.

Returns
-------
display : Self
    Itself.
"""
MADE = """
Parameters
----------
name : str, default=None
    Name in the legend.
ax : matplotlib Axes, default=None
    Axes to draw on; None opens a new figure.
**kwargs : dict
    Passed to :meth:`plot`.

Returns
-------
display : Self
    The numbers and the artists.
"""
FITTED = f"""{MADE}
Raises
------
sklearn.exceptions.NotFittedError
    If the estimator is not fitted.
"""


class Display:
    """Base class of Displays: it keeps the axes and the figure that `plot` drew on."""

    def _open(self, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
        """Return the axes to draw on: the user's, or those of a new figure."""
        plt = self._pyplot()
        self.ax_ = plt.subplots(layout="constrained")[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        return self.ax_

    def _open_grid(
        self, axes: Any, n: int, shape: tuple[int, int], cell: tuple[float, float]
    ) -> NDArray:
        """Return n axes to draw on: the user's, or those of a new figure.

        Surplus axes stay empty. `cell` is the width and height in inches of each axes of a new
        figure.
        """
        plt = self._pyplot()
        if axes is None:
            (rows, columns), (width, height) = shape, cell
            size = (max(columns * width, 2.5), rows * height)
            axes = plt.subplots(rows, columns, figsize=size, layout="compressed")[1]
        given = np.ravel(np.asarray(axes, dtype=object))
        if len(given) < n:
            raise ValueError(f"axes must hold at least {n} axes, got {len(given)}.")
        for ax in given[n:]:
            ax.set_axis_off()
        self.axes_, self.figure_ = given[:n], given[0].figure
        return self.axes_

    def _pyplot(self) -> Any:
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.plot requires matplotlib. You can install it with "
                "`pip install matplotlib`."
            ) from error
        return plt


def final_estimator(estimator: Any) -> Any:
    """Return the estimator inside a fitted search or pipeline."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def fitted_with(attribute: str, estimator: Any, display: type) -> Any:
    """Return the estimator inside a search or pipeline; raise a TypeError without `attribute`."""
    check_is_fitted(estimator)
    fitted = final_estimator(estimator)
    if not hasattr(fitted, attribute):
        raise TypeError(
            f"{display.__name__} needs an estimator with a {attribute}; got {fitted!r}."
        )
    return fitted
