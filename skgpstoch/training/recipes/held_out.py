"""What a fit predicts of rows that it has left out, in the user's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from ...data.findings import Finding
from ...data.held_out import HeldOutPredictions, of_classes
from ...data.rows import Data
from ...models.calibration.held_out import Predicted
from .findings import DISPERSION
from .fitted import Fitted

FEWEST_TESTED = 30  # rows; a group with fewer is not tested
FEWEST_COUNTED, LEAST_RATIO = 5.0, 0.1  # counts, and least squared error over variance

LARGEST_MOMENT = 1e150
"""Held-out means and deviations of counts may be infinite; the square of this number is not."""


def held_out_predictions(fitted: Fitted) -> HeldOutPredictions | None:
    """Return the predictions of an objective for the first rows, which it has left out, if any."""
    found: Predicted | None = cast(Any, fitted.objective).held_out
    if found is None:
        return None
    data = cast(Data, fitted.data)
    rows, places = fitted.among_first(len(found.log_density))
    log_density, *moments, cdf = (column.numpy()[places] for column in found)
    mean, std, latent_std = (np.clip(m, -LARGEST_MOMENT, LARGEST_MOMENT) for m in moments)
    folds = fitted.plan.folds
    is_whole = places < folds.n_unseen if folds.n_folds > 1 else None
    if fitted.posterior.likelihood.for_classes_only:
        codes = data.y[rows, 0].astype(np.int64)
        return fitted.numbered(of_classes(rows, log_density, mean, codes, is_whole))
    error = errors_of(fitted, rows, mean)
    columns = error, std, latent_std, mean, cdf
    scaled = HeldOutPredictions(rows, log_density, *columns, is_whole)
    return fitted.numbered(scaled.in_units(fitted.y_scaling))


def errors_of(fitted: Fitted, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the errors of predicted means of the scaled y of some given rows, both (m, P)."""
    return fitted.scaled_targets(cast(Data, fitted.data))[rows] - mean.reshape(len(rows), -1)


def of_fitted_counts(fitted: Fitted) -> Iterator[Finding]:
    """Yield what :func:`of_held_out_counts` finds of the rows that a fit has left out, if any."""
    if (held_out := held_out_predictions(fitted)) is not None:
        rows, _ = fitted.among_first(len(cast(Any, fitted.objective).held_out.log_density))
        yield from of_held_out_counts(held_out, cast(Data, fitted.data).row_counts[rows])


def of_held_out_counts(held_out: HeldOutPredictions, weight: np.ndarray) -> Iterator[Finding]:
    """Yield the mean squared error of held-out counts over their predicted variance, if low.

    Networks follow the logarithm of a rate to some per mil, which is far more than the deviation of
    counts of 10⁹. Small counts are left out: few of them are often all 0.
    """
    large = (held_out.mean > FEWEST_COUNTED).all(1)
    if weight[large].sum() < FEWEST_TESTED:
        return
    ratio = np.square(held_out.error[large] / held_out.std[large]).mean(1)
    found = Finding(DISPERSION, "y", float(np.average(ratio, weights=weight[large])), LEAST_RATIO)
    if found.value < LEAST_RATIO:
        found = found._replace(
            severity="problem",
            text=f"Held-out counts vary {found.value:.2g} times as much as predicted, so "
            "intervals are too wide: networks cannot follow rates as well as counts of about "
            f"{np.median(held_out.mean[large]):.2g} tell them.",
            advice="Use SVGPRegressor(likelihood='poisson').",
        )
    yield found
