"""Find what may be wrong with a fit to nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from torch import nn

from ...data.findings import Finding
from ...estimators.context import IS_JUDGED
from ...training.recipes.error_findings import (
    BESIDE_NOISE,
    MANY_FAR,
    JudgedRows,
    of_errors,
    of_tails,
    pairs_of,
)
from ...training.recipes.findings import OUTLIERS
from ...training.recipes.fitted import Fitted
from ...training.recipes.held_out import errors_of
from ...training.recipes.mean_findings import of_mean_errors

OF_WEIGHTS = (
    "If weights depend on y, f may follow single rows whatever they weigh: give a smoother kernel, "
    "such as Matern(nu=2.5), or use SVGPRegressor."
)
MISSED = "Start from another length_scale, or use AutoGaussianProcessRegressor."
MISSED_BY_DEFAULT = "Give columns along which y varies smoothly, such as ranks; or raise max_time."
MOST_TRIALS = 150.0
APART_WITHOUT_NOISE = 1e-3  # difference of y, in deviations, that then contradicts
OUTLIERS_OF_DEFAULT = (
    "Look at these rows, and leave out those that are wrong. If y is skewed, compare "
    "target_transform='log' or 'yeo-johnson'."
)


def of_left_out(fitted: Fitted, is_trained: bool) -> Iterator[Finding]:
    """Yield whether errors of rows left out are alike, and outliers among them.

    Tails tell of outliers, but means follow them. Known errors say how far off each row may be.
    """
    predicted, data = cast(Any, fitted.objective).held_out, fitted.data
    if predicted is None or data is None:
        return
    rows, places = fitted.among_first(len(predicted.log_density))
    error = errors_of(fitted, rows, predicted.mean.numpy()[places])
    weight = data.row_counts[rows]
    pairs = pairs_of(data.X[rows], weight, lambda some: error[some])
    noise = fitted.posterior.likelihood.noise_variance.detach().numpy()
    advice = MISSED_BY_DEFAULT if IS_JUDGED.get() else MISSED
    yield from of_errors(*pairs, noise, advice, is_trained)
    if data.weight is not None and fitted.transformer is None and not IS_JUDGED.get():
        of_rows = data.y[rows], error, weight
        yield from of_mean_errors(fitted, *of_rows, "left-out", OF_WEIGHTS)
    judged = JudgedRows.of(rows, error, data.X, fitted.scaled_targets(data))
    std = predicted.std.numpy()[places]
    has_noise = bool(np.any(noise > BESIDE_NOISE * np.square(std).mean(0)))
    unit = 1.0 if data.y_std is None else std
    for each in of_tails(error / unit, judged, True, None if has_noise else error / std):
        if each.name == OUTLIERS and (each.value <= MANY_FAR or judged.has_outliers):
            is_told = each.text and IS_JUDGED.get()
            yield each._replace(advice=OUTLIERS_OF_DEFAULT) if is_told else each


def of_contradictions(fitted: Fitted) -> Iterator[Finding]:
    """Yield whether rows at one place have different y, though the noise is fixed at 0."""
    data = fitted.data
    if data is None or data.y_std is not None or not sees_inputs(fitted.posterior):
        return
    _, place, n_rows = np.unique(data.X, axis=0, return_inverse=True, return_counts=True)
    Y, place = fitted.scaled_targets(data), place.ravel()
    mean = np.stack([np.bincount(place, y) / n_rows for y in Y.T], 1)[place]
    apart = np.abs(Y - mean).max(1, initial=0.0)
    found = Finding("contradictions", "y", float(apart.max(initial=0.0)), APART_WITHOUT_NOISE)
    if found.value > found.limit:
        found = found._replace(
            severity="problem",
            text=f"{(apart > found.limit).sum()} rows have other rows at the same place with "
            "another y, though the kernel says that y has no noise: deviations are far too large "
            "everywhere.",
            advice="Let the noise be learned (leave out the WhiteKernel, or do not fix it), give "
            "y_std, or average rows at one place.",
        )
    yield found


def of_trials(fitted: Fitted) -> Iterator[Finding]:
    """Yield how many trials rows stand for where classes share a place, in the median.

    *Measured* (mean error of probabilities at 120 places, by SVGPClassifier): with 20 trials a
    place .019 (.013), 100: .012 (.006), 250: .015 (.003), 1,750: .053 (.002).
    """
    data = fitted.data
    if data is None or data.weight is None:
        return
    data = data.counted()
    _, place = np.unique(data.X, axis=0, return_inverse=True)
    weight = np.bincount(place.ravel(), data.row_counts)
    with_class = np.unique(np.column_stack([place.ravel(), data.y[:, 0]]), axis=0)
    is_shared = np.bincount(with_class[:, 0].astype(int)) > 1
    if weight[is_shared].sum() < 0.5 * weight.sum():
        return
    found = Finding("trials", "sample_weight", float(np.median(weight[is_shared])), MOST_TRIALS)
    if found.value > MOST_TRIALS:
        found = found._replace(
            severity="problem",
            text=f"Rows of several classes share their places, where they stand for "
            f"{found.value:.3g} trials in the median. Neighbours take each class for a row of its "
            "own, and probabilities can be off by a tenth.",
            advice="Use SVGPClassifier or AutoGaussianProcessClassifier.",
        )
    yield found


def of_neighbours(n_neighbors: int, n_rows: int) -> Finding:
    """Return the share of the rows that a prediction is given."""
    found = Finding("neighbours", "n_neighbors_predict", n_neighbors, n_rows)
    if n_neighbors < n_rows:
        return found
    return found._replace(
        severity="note",
        text=f"There are {n_rows} rows, so every prediction is given all of them: it is that of "
        "the exact process.",
        advice="Nothing has to be done. GaussianProcessRegressor is the same process.",
    )


def sees_inputs(posterior: Any) -> bool:
    """Tell whether the kernel acts on the inputs themselves."""
    return type(posterior.network) is nn.Sequential
