"""Find from held-out rows whether predicted means are far off on average, or explain nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...data.findings import Finding
from ...data.held_out import HeldOutPredictions
from ...data.rows import Data
from ...data.target_transforms import inverse_of
from ...estimators.distributions.transformed import transformed
from ...training.recipes.error_findings import judged_rows, nearest_rows
from ...training.recipes.held_out import FEWEST_TESTED
from ...training.recipes.mean_findings import OF_TRANSFORMER, clear_z, of_mean_error
from .race import Judged
from .student_mixture import StudentMixture

EXPLAINED = "explained variance"
LEAST_VARIANCE_EXPLAINED = 0.02  # of the variance of y
TAILS_TRIED = (2.5, 400.0)  # degrees of freedom
LARGEST_MEAN = 1e100  # in ranges of y: squares of larger ones overflow
LARGEST_RANGE = 1e200
OF_SIZES = "sizes of errors"
LEAST_LIKE, SURELY_LIKE = 0.25, 3.0  # correlation; and standard errors of it
LITTLE_LEFT = 0.1  # of the deviation of y, which hardly needs intervals
MAY_BE = 2 / 3  # of the limit, from which networks are tried
SMALLEST_ERROR = 0.05  # of predicted deviations; smaller ones are as small


def of_held_out_errors(
    held_out: HeldOutPredictions,
    weight: np.ndarray,
    transformer: Any = None,
    fitted: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Iterator[Finding]:
    """Yield the mean error of held-out rows and the share of variance explained, by output.

    Networks that have not seen a row were trained, but not closed, without it. So where a mean
    error is a problem, that of the whole fit at these rows is told. *Measured* on targets of two
    kinds, of which networks follow one: held-out means were off by up to .2 standard deviations,
    those of the fit at new rows by .03.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Predictions of m rows, in the units of y, or of z if there is a transformer.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
    transformer : transformer or None, default=None
        Fitted transformer of y to z.
    fitted : callable or None, default=None
        Returns means of y (k, P) by the whole fit at k of the held-out rows, given their numbers.
    """
    if transformer is not None:
        some = judged_rows(weight[:, None])
        weight, held_out = weight[some], of_targets(held_out, some, transformer)
    n_outputs = held_out.error.shape[1]
    most = clear_z(n_outputs)
    for output, (error, mean) in enumerate(zip(held_out.error.T, held_out.mean.T, strict=True)):
        y, where = mean + error, f"y[:, {output}]" if n_outputs > 1 else "y"
        if np.ptp(y) > 0.0:  # else there is nothing to explain
            remedy = OF_TRANSFORMER
            if transformer is None:
                remedy = "Set target_transform='log', and compare." if y.min() > 0.0 else ""
            found = of_mean_error(y, mean, weight, most, "held-out", remedy)
            if found.severity == "problem" and fitted is not None:
                some = judged_rows(y[:, None])
                largest = LARGEST_MEAN * min(np.ptp(y), LARGEST_RANGE)
                of_fit = fitted(held_out.rows[some])[:, output].clip(-largest, largest)
                of_some = y[some], of_fit, weight[some], most
                found = of_mean_error(*of_some, "training", remedy)
            yield found._replace(where=where)
            yield of_explained_variance(y, mean, weight)._replace(where=where)


def of_sizes(held_out: HeldOutPredictions, X: np.ndarray, weight: np.ndarray) -> Finding:
    """Return the largest correlation, by output, of the sizes of errors at near rows, if clear.

    Sizes are logarithms of errors over predicted deviations. *Measured* on 70 and 180 rows by a
    process, which has one noise for all: correlations are up to .2 (2.5 standard errors) where
    noise is even, heavy-tailed or y rounded, and .3 to .7 where noise is ten times as large in one
    half, or y the exponential of a noisy function.
    """
    rows, tiny = np.flatnonzero(weight > 0.0), np.finfo(float).tiny
    if len(rows) < FEWEST_TESTED:
        return Finding(OF_SIZES, "y", 0.0, 1.0)
    first, second = nearest_rows(X[rows])
    error, std = held_out.error[rows], np.maximum(held_out.std[rows], tiny)
    size = np.log(np.maximum(np.abs(error), SMALLEST_ERROR * std)) - np.log(std)
    alike, signed = (
        correlations(each[first], each[second])
        for each in (size - size.mean(0), np.sign(error) * np.exp(size))
    )
    sure = max(SURELY_LIKE, clear_z(error.shape[1]))
    limit = max(LEAST_LIKE, sure / math.sqrt(max(len(first), 1)))
    found = Finding(OF_SIZES, "y", float(alike.max()), limit)
    if found.value > limit:
        is_misfit = np.abs(signed).max() > limit  # f is missed, and not its noise
        y = held_out.mean[rows] + error
        unit = np.maximum(np.ptp(y, axis=0), np.abs(error).max(0))  # squares do not overflow
        unit = np.maximum(unit, tiny)
        left = np.std(error / unit, axis=0) / np.maximum(np.std((y - y[0]) / unit, axis=0), tiny)
        found = found._replace(
            severity="problem" if left.max() > LITTLE_LEFT and not is_misfit else "note",
            text="Errors are larger in some regions of X than predicted, and smaller in others: "
            "sizes of held-out errors at neighbouring rows have a correlation of "
            f"{found.value:.2f}. So intervals are too narrow there, and too wide elsewhere.",
            advice="Add inputs that tell where y is uncertain, or more rows; or compare with "
            "DeepKernelEnsembleRegressor or a target_transform.",
        )
    return found


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the correlation of each column of a and b (m, P) about 0, (P,)."""
    unit = np.sqrt(np.square(a).sum(0) * np.square(b).sum(0))
    return np.asarray((a * b).sum(0) / np.maximum(unit, np.finfo(float).tiny))


def may_vary_in_size(found: list[Judged], data: Data, _: Any) -> bool:
    """Tell whether sizes of the first model's errors may depend on X: then networks are tried."""
    held_out = found[0].model.held_out_
    if held_out is None:
        return False
    rows = held_out.rows
    sizes = of_sizes(held_out, data.X[rows], data.row_counts[rows])
    return sizes.value > MAY_BE * sizes.limit


def of_targets(
    held_out: HeldOutPredictions, rows: np.ndarray, transformer: Any
) -> HeldOutPredictions:
    """Return errors and means of y at some rows, from predictions of z with Student-t tails.

    The degrees of freedom are the most likely ones, because models differ in their tails.
    """
    mean, std, error = (a[rows] for a in (held_out.mean, held_out.std, held_out.error))
    n = mean.shape[1]

    def of_tails(df: float) -> StudentMixture:
        scale = np.maximum(std, np.finfo(float).tiny) * np.sqrt((df - 2.0) / df)
        return StudentMixture(
            np.ones(1), mean[None, None], scale[None, None], np.full((1, 1, 1, n), df)
        )

    each = map(of_tails, np.geomspace(*TAILS_TRIED, 12))
    law = max(each, key=lambda law: law.log_density(mean + error).sum())
    y = inverse_of(transformer, mean + error)
    most = LARGEST_MEAN * np.minimum(np.ptp(y, axis=0), LARGEST_RANGE)
    y_mean = np.clip(transformed(law, transformer).extent()[0], -most, most)
    return held_out._replace(rows=held_out.rows[rows], error=y - y_mean, mean=y_mean)


def of_explained_variance(y: np.ndarray, mean: np.ndarray, weight: np.ndarray) -> Finding:
    """Return the share of the variance of y that predictions explain; too little is a note."""
    around = np.array([y - np.average(y, weights=weight), y - mean]) / np.ptp(y)
    total, left = np.average(np.square(around), axis=1, weights=weight)
    share = float(1.0 - left / total)
    found = Finding(EXPLAINED, "y", share, LEAST_VARIANCE_EXPLAINED)
    if share >= LEAST_VARIANCE_EXPLAINED:
        return found
    return found._replace(
        severity="note",
        text=f"Predictions explain {max(share, 0.0):.1%} of the variance of y at {weight.sum():.0f}"
        " held-out rows, so they hardly differ from its mean.",
        advice="Check that the rows of X and y belong together. If they do, y is mostly noise to "
        "these inputs; look for others.",
    )
