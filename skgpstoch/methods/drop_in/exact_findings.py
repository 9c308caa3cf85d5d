"""What an exact fit says of itself: whether rows predict each other, and whether noise is missing.

Without a WhiteKernel and with a negligible alpha, all of y is a part of f. If y is noisy, the
search makes length-scales short and f rough. Then some noise beside a smoother f explains the rows
far better: with C = (1 − r)K/k̄ + rI, k̄ the mean of K's diagonal, and the best scale s² = yᵀC⁻¹y/n,

    max over s² of log N(y | 0, s²C) = −½n log s² − ½ log|C| + const.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ...data.findings import Finding
from ...kernels import split_noise
from ...kernels.matrices import why_object
from ...training.exact_search import TrainingSet
from ...training.recipes.error_findings import (
    BESIDE_NOISE,
    JudgedRows,
    judged_rows,
    of_local,
    of_tails,
)
from ...training.recipes.findings import (
    LEAST_CORRELATION,
    LEFT_OUT_ROWS,
    MISSING_NOISE,
    distinct_rows,
    neighbour_and_variation,
)
from ...training.recipes.local_range import evidence, unit_covariance
from ...training.recipes.row_findings import FEW_TO_LEARN
from ...training.starts import smoother
from .exact import ExactModel
from .noise import NEGLIGIBLE_ALPHA, exceeds_jitter

LEAST_EXPLAINED = 0.1  # of the variance of f at a row, by all other rows
COMPARED_ROWS = 500
SMOOTHER = (1.0, 3.0, 10.0)  # times the length-scales
SHARES = (0.03, 0.3)  # r
MOST_MISSED = 10.0  # nats of all compared rows, for one more parameter


# ---- rows that are left out ----------------------------------------------------------------------


def of_left_out(model: ExactModel, given: sk.Kernel) -> Iterator[Finding]:
    """Yield findings on whether rows of numbers predict each other, and whether some are far off.

    `given` is the kernel where the search began.
    """
    X = model.rows.X
    if len(X) < FEW_TO_LEARN:
        return
    rows = judged_rows(X)
    error, variance = (a.cpu().numpy()[rows] for a in model.solver.left_out())
    f, noise_level = split_noise(model.kernel)
    own = np.broadcast_to(model.rows.noise, len(X))[rows] + noise_level
    before, _ = neighbour_and_variation(split_noise(given)[0], X[distinct_rows(X)])
    yield of_explained(f, f.diag(X[rows]), variance - own, own, before)
    are_noise = bool(own.mean() > BESIDE_NOISE * variance.mean())
    yield from of_local(rows, error, X, model.rows.Y, model.kernel)
    judged = JudgedRows.of(rows, error, X, model.rows.Y)
    yield from of_tails(error / np.sqrt(variance)[:, None], judged, are_noise)


def of_explained(
    kernel: sk.Kernel, prior: np.ndarray, left: np.ndarray, noise: np.ndarray, before: float
) -> Finding:
    """Return the share of f's variance at a row that other rows explain; `left` is the rest.

    It is only a note if rows predicted each other before the search, and the kernel has noise:
    then y is mostly noise.
    """
    explained = 1.0 - left.mean() / prior.mean() if prior.any() else 1.0
    found = Finding(LEFT_OUT_ROWS, "kernel", float(explained), LEAST_EXPLAINED)
    if noise.mean() > prior.mean():  # then it is to be expected
        return found._replace(limit=-np.inf)
    if explained >= LEAST_EXPLAINED:
        return found
    has_noise = noise.mean() > NEGLIGIBLE_ALPHA * prior.mean()
    return found._replace(
        severity="note" if has_noise and before >= LEAST_CORRELATION else "problem",
        text=f"With the kernel {kernel}, all other rows explain only {max(explained, 0.0):.1%} of "
        "the variance of f at a row, so predictions for new rows are almost the mean.",
        advice="If y is noisy and the kernel has no WhiteKernel, add one. Otherwise standardise X "
        "(StandardScaler), or give the kernel a length_scale for each column.",
    )


# ---- noise ---------------------------------------------------------------------------------------


def of_missing_noise(kernel: sk.Kernel, given: TrainingSet) -> Iterator[Finding]:
    """Yield by how many nats noise would make some rows more probable; nothing if there is some.

    `kernel` is the fitted one, and the noise of the rows is alpha.
    """
    X, Y, noise, _ = given
    Y = Y[:, np.ptp(Y, axis=0).astype(bool) & ~exceeds_jitter(float(np.mean(noise)), Y)]
    if split_noise(kernel)[1] or len(X) < FEW_TO_LEARN or why_object(kernel) or not Y.size:
        return
    rows = judged_rows(X)
    rows = rows[:: -(-len(rows) // COMPARED_ROWS)]
    X, Y, jitter = X[rows], Y[rows], np.broadcast_to(noise, len(X))[rows]
    without = evidence(kernel(X) + np.diag(jitter), Y)
    if np.isneginf(without):  # rounding
        return
    gain = max(
        evidence((1.0 - share) * K + share * np.eye(len(X)), Y)
        for K in (unit_covariance(smoother(kernel, factor), X) for factor in SMOOTHER)
        for share in SHARES
    )
    found = Finding(MISSING_NOISE, "kernel", gain - without, MOST_MISSED)
    if found.value > MOST_MISSED:
        found = found._replace(
            severity="problem",
            text=f"y looks noisy, but the kernel has no noise: with some, {len(X)} rows would be "
            f"exp({found.value:.0f}) times as probable. The fit takes noise for a part of the "
            "function, so predictions are poor and intervals too narrow.",
            advice="Add a WhiteKernel, for example kernel=1.0 * RBF() + WhiteKernel(). If y has no "
            "noise, use a rougher kernel, such as Matern.",
        )
    yield found
