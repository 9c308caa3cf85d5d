"""Find whether predicted means are too low or too high on average.

Heavy-tailed predictions follow the bulk of the rows. If y is skewed, few large values hardly move
them, and their sum can be far from that of y although intervals are right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import norm, t

from ..data.findings import Finding
from ..data.held_out import HeldOutPredictions
from .report import clear_z

NAME = "mean error"
LEAST_MEAN_ERROR = 0.05  # standard deviations of y, that it must exceed, too
"""*Measured*: see the test of skewed targets; of 16 UCI tables of 1,000 rows none exceeds both."""


def of_mean_error(held_out: HeldOutPredictions, weight: np.ndarray) -> Iterator[Finding]:
    """Yield the mean error of held-out rows, for each output, in standard deviations of y.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Predictions of m rows, in the units of y.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
    """
    n, n_outputs = float(weight.sum()), held_out.error.shape[1]
    most = t.isf(norm.sf(clear_z(n_outputs)), max(n - 1.0, 1.0))  # standard errors
    for output, (error, mean) in enumerate(zip(held_out.error.T, held_out.mean.T, strict=True)):
        y = mean + error
        unit = float(np.ptp(y)) or 1.0  # squares of very small or large numbers under- or overflow
        y_mean, bias = np.average(y, weights=weight), np.average(error, weights=weight) / unit
        y_std, error_std = (
            float(np.sqrt(np.average(np.square(a / unit), weights=weight)))
            for a in (y - y_mean, error - bias * unit)
        )
        limit = max(LEAST_MEAN_ERROR * y_std, most * error_std / np.sqrt(n))
        where = f"y[:, {output}]" if n_outputs > 1 else "y"
        scale = y_std or 1.0
        found = Finding(NAME, where, float(abs(bias) / scale), float(limit / scale))
        if abs(bias) > limit:
            transform = "log" if y.min() > 0.0 else "yeo-johnson"
            found = found._replace(
                severity="problem",
                text=f"Predictions are too {'low' if bias > 0.0 else 'high'} on average: over "
                f"{n:.0f} held-out rows y averages {y_mean:.3g}, but its predictions average "
                f"{np.average(mean, weights=weight):.3g}. That happens if y is skewed.",
                advice=f"Set target_transform={transform!r}, and compare. Intervals and medians "
                "may be right all the same.",
            )
        yield found
