"""Draw images, patches, and the patches' places in an image, on given axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import matplotlib.axes

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
