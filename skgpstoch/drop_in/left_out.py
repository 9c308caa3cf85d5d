"""Leave-one-out predictions of an exact fit, and what they say of the fit.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, 2006, (5.10) to (5.12): with
C = k(X, X) + diag(noise) = LLᵀ and α = C⁻¹y,

    y_i − E[y_i | y_−i] = α_i / [C⁻¹]_ii,   Var[y_i | y_−i] = 1 / [C⁻¹]_ii,   [C⁻¹]_ii = ‖L⁻¹e_i‖².
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.gaussian_process import kernels as sk

from ..data.findings import Finding
from ..kernels import split_noise
from ..recipes.error_findings import BESIDE_NOISE, judged_rows, of_tails, standardised
from ..recipes.findings import (
    FEW_TO_LEARN,
    LEAST_CORRELATION,
    LEFT_OUT_ROWS,
    distinct_rows,
    neighbour_and_variation,
)
from .noise import NEGLIGIBLE_ALPHA

LEAST_EXPLAINED = 0.1  # of the variance of f at a row, by all other rows


class RowsLeftOut(NamedTuple):
    """Errors (m, P) and variances (m,) of y at rows of these numbers, each given all others."""

    rows: np.ndarray
    error: np.ndarray
    variance: np.ndarray


def left_out(L: np.ndarray, alpha: np.ndarray, rows: np.ndarray) -> RowsLeftOut:
    """Predict each of these rows from all others."""
    one_hot = np.zeros((len(L), len(rows)))
    one_hot[rows, np.arange(len(rows))] = 1.0
    precision = np.square(solve_triangular(L, one_hot, lower=True)).sum(0)
    return RowsLeftOut(rows, alpha.reshape(len(L), -1)[rows] / precision[:, None], 1.0 / precision)


def of_left_out(
    kernel: sk.Kernel,
    given: sk.Kernel,
    X: np.ndarray,
    noise: np.ndarray,
    L: np.ndarray,
    alpha: np.ndarray,
) -> Iterator[Finding]:
    """Yield findings on whether rows predict each other, and whether some are far off.

    Parameters
    ----------
    kernel, given : sklearn kernel
        The fitted kernel, with its WhiteKernel, and the one where the search began.
    X : ndarray of shape (n, d)
        The rows, of numbers.
    noise : ndarray of shape () or (n,)
        Known noise variances besides the WhiteKernel's.
    L, alpha : ndarrays of shapes (n, n) and (n,) or (n, P)
        Those of the fit.
    """
    if len(X) < FEW_TO_LEARN:
        return
    found = left_out(L, alpha, judged_rows(X))
    f, noise_level = split_noise(kernel)
    own = np.broadcast_to(noise, len(X))[found.rows] + noise_level
    before, _ = neighbour_and_variation(split_noise(given)[0], X[distinct_rows(X)])
    yield of_explained(f, f.diag(X[found.rows]), found.variance - own, own, before)
    error = found.error / np.sqrt(found.variance)[:, None]
    are_noise = bool(own.mean() > BESIDE_NOISE * found.variance.mean())
    yield from of_tails(error, standardised(X[found.rows]), are_noise)


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
