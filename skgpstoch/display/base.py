"""Base of Displays: axes to draw on, the estimator inside a pipeline or search, images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ..persistence.failures import with_drawing_told

if TYPE_CHECKING:
    import matplotlib.axes

MOST_LETTERS, LETTERS_READ = 60, 1000  # of a name in a picture

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

    def __init_subclass__(cls) -> None:
        if "from_estimator" in vars(cls):
            make = vars(cls)["from_estimator"].__func__
            cls.from_estimator = classmethod(with_drawing_told(make))  # type: ignore[attr-defined]

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


def drawn(name: Any) -> str:
    """Return a name as one short line without formulas, as a long one takes minutes to draw."""
    text = " ".join(str(name)[:LETTERS_READ].split()).replace("$", r"\$")
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


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


# ---- images --------------------------------------------------------------------------------------

OUTLINE: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": "0.6",
    "linewidth": 0.6,
    "clip_on": False,
}


def show(ax: matplotlib.axes.Axes, image: NDArray, low: float, high: float, **kwargs: Any) -> Any:
    """Draw numbers (height, width, channels) between `low` and `high`."""
    from matplotlib.patches import Rectangle

    height, n_channels = image.shape[0], image.shape[2]
    if n_channels == 3:
        shown = (image - low) / ((high - low) or 1.0)
    else:  # side by side, with a gap
        gap = np.full((height, 1), np.nan)
        parts = [part for c in range(n_channels) for part in (gap, image[..., c])][1:]
        shown = np.hstack(parts)
    extent = (0.0, shown.shape[1], height, 0.0)
    style = {"cmap": "gray_r", "vmin": low, "vmax": high, "extent": extent, **kwargs}
    drawn = ax.imshow(shown, **style)
    ax.add_patch(Rectangle((0, 0), shown.shape[1], height, **OUTLINE))
    ax.set_axis_off()
    return drawn


def draw_place(
    ax: matplotlib.axes.Axes, place: NDArray, image_shape: tuple[int, int], patch_shape: Any
) -> None:
    """Draw a frame for the image to the right of a patch, and mark the patch's place in it."""
    from matplotlib.patches import Rectangle

    sides = np.array(patch_shape)
    unit = 0.5 * sides.max() / max(image_shape)  # half a pixel of the image, on the map
    height, width = (unit * n for n in image_shape)
    left = ax.get_xlim()[1] + 0.1 * sides[1]
    row, column = unit * (place - (sides - 1) / 2)
    frame = Rectangle((left, 0.0), width, height, **OUTLINE)
    mark = Rectangle((left + column, row), *(unit * sides[::-1]), color="tab:orange")
    ax.add_patch(mark)
    ax.add_patch(frame)
    mark.set_clip_path(frame)  # a place may have been learned outside
    ax.set_xlim(ax.get_xlim()[0], left + width)


def draw_outline(ax: matplotlib.axes.Axes, image: NDArray) -> None:
    """Draw the contour between dark and light, and set the limits of the image."""
    grey = image.mean(2)
    height, width = grey.shape
    if min(height, width) > 1 and grey.min() < grey.max():
        middle = (grey.min() + grey.max()) / 2
        centres = np.arange(width) + 0.5, np.arange(height) + 0.5
        ax.contour(*centres, grey, levels=[middle], colors="0.3", linewidths=0.6)
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
