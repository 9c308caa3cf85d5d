"""Find whether predicted means are far off on average.

Heavy-tailed predictions follow the bulk of the rows. If y is skewed, few large values hardly move
them, and their sum can be far from that of y although intervals are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import norm, t

from ...data.findings import Finding
from ...likelihoods.real import Gaussian
from .error_findings import judged_rows
from .fitted import Fitted
from .fitted_errors import errors_at

MEAN_ERROR = "mean error"
CLEARLY_OFF = 3.0  # standard deviations of chance, for one group or output
LEAST_MEAN_ERROR = 0.05  # standard deviations of y, that it must exceed, too
"""*Measured*: see the test of skewed targets; of 16 UCI tables of 1,000 rows none exceeds both."""

BY_LIKELIHOOD = "Set likelihood='gaussian' if means matter more than intervals."
OF_TRANSFORMER = "Set target_transform=None, or another transformation, and compare."
OF_MEDIANS = "Intervals and medians, predict_distribution(X).median(), may be right all the same."


def clear_z(n_groups: int) -> float:
    """Return the |z| that the worst of n groups exceeds as rarely as one exceeds `CLEARLY_OFF`."""
    return float(norm.isf(norm.sf(CLEARLY_OFF) / max(n_groups, 1)))


def of_fitted_means(fitted: Fitted) -> Iterator[Finding]:
    """Yield the mean error of some training rows, by output, if errors may have heavy tails.

    Rows held out of single networks tell less: *measured* on targets of two kinds, their networks
    were off by .2 standard deviations, and the mixture, whose last layers see all rows, by .05.
    Means of y are not found if it is transformed: 1,000 rows would take ten seconds.
    """
    data = fitted.judged
    is_right = isinstance(fitted.posterior.likelihood, Gaussian)
    if data is None or fitted.transformer is not None or is_right:
        return
    rows = judged_rows(data.X)
    error, weight = errors_at(fitted, data, rows), data.row_counts[rows]
    yield from of_mean_errors(fitted, data.y[rows], error, weight, "training", BY_LIKELIHOOD)


def of_mean_errors(
    fitted: Fitted, Y: np.ndarray, error: np.ndarray, weight: np.ndarray, rows: str, remedy: str
) -> Iterator[Finding]:
    """Yield the mean error of each output that varies, from errors (n, P) of the scaled Y."""
    Y, n_outputs = Y.reshape(error.shape), error.shape[1]
    mean = Y - error * fitted.y_scaling.scale
    weight = weight * (len(weight) / weight.sum())
    most = clear_z(n_outputs) * math.sqrt(np.mean(np.square(weight)))  # of Kish's number of rows
    for p in range(n_outputs):
        if np.ptp(Y[:, p]) > 0.0:
            found = of_mean_error(Y[:, p], mean[:, p], weight, most, rows, remedy)
            yield found._replace(where=f"y[:, {p}]" if n_outputs > 1 else "y")


def of_mean_error(
    y: np.ndarray, mean: np.ndarray, weight: np.ndarray, most: float, rows: str, remedy: str
) -> Finding:
    """Return the mean error in standard deviations of y; `most` is that of a normal number."""
    n, unit = float(weight.sum()), np.ptp(y)  # squares of very small or large numbers are lost
    y_mean, bias = (np.average(a, weights=weight) for a in (y, (y - mean) / unit))
    y_std, error_std = (
        float(np.sqrt(np.average(np.square(a), weights=weight)))
        for a in ((y - y_mean) / unit, (y - mean) / unit - bias)
    )
    most_errors = t.isf(norm.sf(most), max(n - 1.0, 1.0))  # standard errors
    limit = max(LEAST_MEAN_ERROR * y_std, most_errors * error_std / np.sqrt(n))
    found = Finding(MEAN_ERROR, "y", float(abs(bias) / y_std), float(limit / y_std))
    if abs(bias) <= limit:
        return found
    or_weights = ", or if weights depend on it" if np.ptp(weight) > 0.0 else ""
    return found._replace(
        severity="problem",
        text=f"Predictions are too {'low' if bias > 0.0 else 'high'} on average: over {n:.0f} "
        f"{rows} rows y averages {y_mean:.3g}, but its predictions average "
        f"{np.average(mean, weights=weight):.3g}. That happens if y is skewed{or_weights}.",
        advice=f"{remedy} {OF_MEDIANS}".strip(),
    )
