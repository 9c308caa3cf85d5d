"""The measurements under benchmarks/results, for the figures of this documentation."""

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks.page import by_table, read

__all__ = ["OTHERS", "OURS", "RIVALS", "by_table", "dots", "read", "subplots"]

OURS, OTHERS = "C0", "0.6"  # of every figure: ours in colour, others in greys


def subplots(*shape: int, **settings):
    """Return figure and axes without the lines that say nothing."""
    figure, axes = plt.subplots(*shape, layout="constrained", **settings)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


RIVALS = {  # as the CSVs name them → as readers know them
    "CatBoostConstant": "CatBoost",
    "HistGradientBoosting": "boosted trees",
    "RealMLP": "RealMLP",
}


def dots(axis, table: pd.DataFrame) -> None:
    """Draw a dot for each rival (column) and table (row)."""
    places = range(len(table))
    for (model, name), marker, grey in zip(
        RIVALS.items(), "os^", ("0.2", "0.5", "0.7"), strict=True
    ):
        axis.plot(table[model], places, marker, color=grey, label=name, markersize=6)
    axis.set_yticks(places, table.index)
    axis.grid(axis="y", color="0.93")
    axis.legend(frameon=False, loc="lower right")
