"""Find whether predicted means are far off on average.

Heavy-tailed predictions follow the bulk of the rows. If y is skewed, few large values hardly move
them, and their sum can be far from that of y although intervals are right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import norm, t

from ..data.devices import HOST
from ..data.findings import Finding
from ..data.rows import Data
from ..data.target_transforms import inverse_of
from ..likelihoods.real import Gaussian
from ..training.recipes.error_findings import judged_rows
from ..training.recipes.fitted import Fitted
from .context import predicting
from .distributions.law import Law
from .distributions.transformed import transformed
from .posterior_law import PredictedLaw, known_rows

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


def of_skew(weight: np.ndarray, remedy: str) -> str:
    """Return why means are off, and what to do."""
    or_weights = ", or if weights depend on it" if np.ptp(weight) > 0.0 else ""
    return " ".join(f"That happens if y is skewed{or_weights}. {remedy} {OF_MEDIANS}".split())


def of_fitted_means(fitted: Fitted) -> Iterator[Finding]:
    """Yield the mean error of some training rows, by output.

    Rows held out of single networks tell less: *measured* on targets of two kinds, their networks
    were off by .2 standard deviations, and the mixture, whose last layers see all rows, by .05.
    """
    data, transformer = fitted.judged, fitted.transformer
    is_right = transformer is None and isinstance(fitted.posterior.likelihood, Gaussian)
    if data is None or is_right:
        return
    data = data[judged_rows(data.X)]
    Y = data.y.reshape(len(data), -1)
    mean = law_of_rows(fitted, data).extent()[0]
    remedy, weight = BY_LIKELIHOOD, data.row_counts
    if transformer is not None:
        Y, remedy = inverse_of(transformer, Y), OF_TRANSFORMER
    yield from of_mean_errors(Y, mean, weight, "training", of_skew(weight, remedy))


def of_mean_errors(
    Y: np.ndarray, mean: np.ndarray, weight: np.ndarray, rows: str, advice: str
) -> Iterator[Finding]:
    """Yield the mean error of each output that varies, from Y and means (n, P)."""
    n_outputs = Y.shape[1]
    weight = weight * (weight.sum() / np.square(weight).sum())  # as many rows as tell as much
    for p in range(n_outputs):
        if np.ptp(Y[:, p]) > 0.0:
            most = clear_z(n_outputs)
            found = of_mean_error(Y[:, p], mean[:, p], weight, most, rows, advice)
            yield found._replace(where=f"y[:, {p}]" if n_outputs > 1 else "y")


def law_of_rows(fitted: Fitted, data: Data) -> Law:
    """Return the predictive distributions of y at some training rows."""
    X = fitted.x_scaling.tensor(data.X, torch.float64, HOST)
    rows = known_rows(X, data.exposure, data.y_std, fitted.y_scaling.scale)
    with predicting():
        q, likelihood = fitted.posterior.predictive(X, rows)
    law = PredictedLaw(q, likelihood, fitted.y_scaling)
    return law if fitted.transformer is None else transformed(law, fitted.transformer)


def of_mean_error(
    y: np.ndarray, mean: np.ndarray, weight: np.ndarray, most: float, rows: str, advice: str
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
    return found._replace(
        severity="problem",
        text=f"Predictions are too {'low' if bias > 0.0 else 'high'} on average: over {n:.0f} "
        f"{rows} rows y averages {y_mean:.3g}, but its predictions average "
        f"{np.average(mean, weights=weight):.3g}.",
        advice=advice,
    )
