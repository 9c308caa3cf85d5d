"""Find whether errors at training rows are more than the noise that a fit takes them for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from ..data.arrays import Scaling
from ..data.findings import Finding
from .findings import DISPERSION, ERRORS, OUTLIERS, TAILS, UNTRAINED, distinct_rows

OVER_MEDIAN = 1.4826  # standard deviation of normal numbers, over the median of their sizes
FAR_OFF = 5.0  # usual errors, beyond which there is one normal one in two million
MOST_FAR, LEAST_FAR = 0.005, 3  # share and number of rows that may be that far off
JUDGED_ROWS, FAR_ROWS = 1_000, 50  # whose errors, and whose nearest rows' errors, are looked at
MANY_FAR, LEAST_MANY = 0.1, 20  # share and number of rows that are no exceptions
FEW_FAR, RULING = 0.02, 0.5  # share of rows that are outliers, and of the mean square, theirs
LEAST_WEIGHT = 0.1  # of the mean one, of rows whose errors are looked at
SURE_PAIRS = 4.0  # standard errors of a correlation, that one of few rows has to have
BESIDE_NOISE = 0.25  # mean square, of the noise variance
SET_APART = (
    0.5  # of a far row's error, that the nearest row's is below: it is no part of a function
)
ASKED_PAIRS = 200  # rows whose errors are compared with those at the nearest rows
MOST_DISPERSION, SURE_DISPERSION = 1.3, 4.0  # of variances, and in standard errors of Poisson's

ALIKE = 0.4
"""Correlation of the errors at a row and at the nearest other one.

*Measured* on eight UCI tables of 300 to 600 rows: an exact process has −.8 to .07. With 80 inducing
points it is −.05 to .16 where their noise is within a third of the exact one's, and .3 to .6 where
that is three to six times as large; with 5 up to .9. The residual variance does not tell: at the
optimum it is .02 to .25 of the noise, however few points there are.
"""


def of_errors(
    error: np.ndarray, nearest: np.ndarray, noise: np.ndarray, advice: str, is_trained: bool
) -> Iterator[Finding]:
    """Yield whether errors (m, P) are like those at the nearest rows, so that they are no noise.

    Outputs whose errors are small beside the noise (P,) do not count: those say that it is fixed.
    """
    counts = np.square(error).mean(0) >= BESIDE_NOISE * np.where(np.isfinite(noise), noise, 0.0)
    alike = max(map(correlation, error.T * counts[:, None], nearest.T))
    limit = max(ALIKE, SURE_PAIRS / math.sqrt(len(error)))
    found = Finding(ERRORS, "points", alike, limit)
    if alike > limit:
        found = found._replace(
            severity="problem" if is_trained else "note",
            text="Errors at neighbouring rows of the training data are alike (correlation "
            f"{alike:.2g}): the fit treats a part of the function as noise.",
            advice=advice if is_trained else UNTRAINED,
        )
    yield found


def of_tails(error: np.ndarray, Z: np.ndarray, are_noise: bool) -> Iterator[Finding]:
    """Yield how many errors (n, P) of rows Z (n, d), standardised, are far beyond the usual ones.

    A few count only if the nearest rows do not share them: otherwise they are of a function that
    is missed. Many, of the size of the noise, say that y is skewed, or that its spread differs
    between regions.
    """
    unit = np.median(np.abs(error), axis=0) * OVER_MEDIAN  # (P,)
    size = np.max(np.abs(error) / np.where(unit > 0.0, unit, np.inf), axis=1)  # (n,)
    far = np.flatnonzero(size > FAR_OFF)
    rule = len(far) <= FEW_FAR * len(error) and (
        np.square(size[far]).sum() > RULING * np.square(size).sum()
    )
    found = Finding(OUTLIERS if rule else TAILS, "y", len(far) / len(error), MOST_FAR)
    are_many = are_noise and len(far) > max(LEAST_MANY, MANY_FAR * len(error))
    if len(far) < max(LEAST_FAR, MOST_FAR * len(error)):
        yield found
        return
    if not (are_many or stand_alone(far, size, Z)):
        yield found._replace(limit=MANY_FAR)
        return
    text = (
        f"Errors have heavy tails: at {len(far) / len(error):.1%} of the training rows "
        f"they are more than {FAR_OFF:.0f} times the usual size. The Gaussian noise follows "
        "these rows, so that intervals at the other rows are too wide, and f is less exact."
    )
    advice = (
        "If y is positive and skewed, such as a price, model its logarithm: set "
        "target_transform='log', or put the drop-in into sklearn's TransformedTargetRegressor. "
        "If the spread of y depends on X, use AutoGaussianProcessRegressor or DLMRegressor."
        if are_many
        else "Look at these rows. If they are right, use a likelihood with heavy tails, such "
        "as SVGPRegressor(likelihood='student_t'), or AutoGaussianProcessRegressor."
    )
    severity = "problem" if rule or are_many else "note"
    yield found._replace(severity=severity, text=text, advice=advice)


def stand_alone(far: np.ndarray, size: np.ndarray, Z: np.ndarray) -> bool:
    """Tell whether errors of the nearest rows are small, in the median of some far rows."""
    some = far[np.linspace(0, len(far) - 1, min(len(far), FAR_ROWS)).round().astype(int)]
    rows = torch.from_numpy(Z).float()
    distance = torch.cdist(rows[some], rows)
    distance[torch.arange(len(some)), some] = math.inf
    nearest = distance.argmin(1).numpy()
    return bool(np.median(size[nearest] / size[some]) < SET_APART)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return that of errors about 0, of which none counts for more than three usual ones."""
    unit = np.median(np.abs(a)) * OVER_MEDIAN or 1.0
    a, b = (np.clip(e / unit, -3.0, 3.0) for e in (a, b))
    return float(a @ b / (math.sqrt((a @ a) * (b @ b)) or 1.0))


def nearest_rows(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of some rows, and of the nearest other row of each, by standardised X."""
    rows = distinct_rows(X)
    Z = torch.from_numpy(standardised(X[rows])).float()
    asked = np.unique(
        np.linspace(0, len(rows) - 1, min(len(rows), ASKED_PAIRS)).round().astype(int)
    )
    distance = torch.cdist(Z[asked], Z)
    distance[torch.arange(len(asked)), asked] = math.inf
    return rows[asked], rows[distance.argmin(1).numpy()]


def standardised(X: np.ndarray) -> np.ndarray:
    """Return rows (n, d) of which each column has mean 0 and standard deviation 1."""
    offset, scale = Scaling.standard(X)
    return (X - offset) / scale


def judged_rows(X: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose errors are looked at, evenly spaced."""
    return np.unique(np.linspace(0, len(X) - 1, min(len(X), JUDGED_ROWS)).round().astype(int))


def of_dispersion(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray, is_trained: bool
) -> Iterator[Finding]:
    """Yield how far counts y (m, P) are from their mean, in units of the predicted variance.

    (y − μ)²/v is 1 in the mean, with a variance of 2 + 1/μ if counts are Poisson's.
    """
    ratio = np.square(y - mean) / variance
    dispersion = float(ratio.mean())
    error = math.sqrt(np.mean(2.0 + 1.0 / mean) / ratio.size)
    limit = max(MOST_DISPERSION, 1.0 + SURE_DISPERSION * error)
    found = Finding(DISPERSION, "y", dispersion, limit)
    if dispersion > limit:
        found = found._replace(
            severity="problem" if is_trained else "note",
            text=f"Counts vary {dispersion:.2g} times as much as predicted, so intervals are too "
            "narrow: counts are overdispersed, or the fit misses a part of the function.",
            advice="Raise n_inducing. If that does not help, use DLMRegressor or "
            "DeepKernelEnsembleRegressor with likelihood='poisson', which are trained for the "
            "density of counts, or add inputs that explain the variation."
            if is_trained
            else UNTRAINED,
        )
    yield found
