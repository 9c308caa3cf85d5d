"""The measurements under benchmarks/results, for the figures of this documentation."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
OURS, OTHERS = "C0", "0.6"  # of every figure: ours in colour, others in greys


def read(name: str) -> pd.DataFrame:
    """Return the rows of a CSV."""
    return pd.read_csv(RESULTS / f"{name}.csv")


def subplots(*shape: int, **settings):
    """Return figure and axes without the lines that say nothing."""
    figure, axes = plt.subplots(*shape, layout="constrained", **settings)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
