"""Weights of a mixture's means, where squared errors of rows left out clearly ask for others.

The weights of a mixture are those of its density, which may belong to a model that is sure of most
rows and far off at some. The point prediction Σ_k v_k μ_k(x) then has weights of its own, by
non-negative least squares on the rows that all models have left out,

    v = argmin Σᵢ wᵢ |yᵢ − Σ_k v_k μ_k(xᵢ)|²   subject to   v_k ≥ 0, Σ_k v_k = 1.

The deviation of y is then that from the point prediction, which the mixture's density gives:
std² = Σ_k π_k (σ_k² + (μ_k − Σ_j v_j μ_j)²).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from .stacking import kept_weights

CERTAIN_GAIN = 2.0  # standard errors of the gain in squared error, and
LEAST_SQUARE_GAIN = 0.02  # of the squared error, that other weights must gain
SUM_PENALTY = 1e3  # of a sum of weights other than 1


def point_weights(
    errors: np.ndarray, weights: np.ndarray, sample_weight: np.ndarray, least: float
) -> np.ndarray:
    """Return the weights v of means; those of the density, `weights`, unless others are better.

    They are judged on halves of the rows, by weights that come from the other half.

    Parameters
    ----------
    errors : ndarray of shape (n_samples, n_models, n_outputs)
        y minus the mean that each model predicts, for rows that it has left out.
    weights : ndarray of shape (n_models,)
        Weights of the density.
    sample_weight : ndarray of shape (n_samples,)
        How many rows each row counts for.
    least : float
        Least weight of a model.
    """
    n, K, _ = errors.shape
    unit = np.abs(errors).max((0, 1))  # squares of very small or large numbers are lost
    E = errors / np.where(unit > 0.0, unit, 1.0)
    half = np.arange(n) % 2
    if K == 1 or min(np.bincount(half, sample_weight, 2)) < 2 * K:
        return weights
    gain = square(E, weights)
    for h in (0, 1):
        own, other = half == h, half != h
        gain[own] -= square(E[own], least_squares(E[other], sample_weight[other], least))
    mean = np.average(gain, weights=sample_weight)
    error = np.sqrt(np.average(np.square(gain - mean), weights=sample_weight) / sample_weight.sum())
    before = np.average(square(E, weights), weights=sample_weight)
    is_clear = mean > CERTAIN_GAIN * error and mean > LEAST_SQUARE_GAIN * before
    return least_squares(E, sample_weight, least) if is_clear else weights


def square(E: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the squared error of each row, (n,)."""
    return np.square(np.tensordot(E, v, (1, 0))).sum(1)


def least_squares(E: np.ndarray, sample_weight: np.ndarray, least: float) -> np.ndarray:
    """Return the weights with the least squared error, (K,), none below `least` but 0."""
    A = np.sqrt(sample_weight)[:, None, None] * E
    A = np.moveaxis(A, 1, 2).reshape(-1, E.shape[1])
    R = np.asarray(np.linalg.qr(A, mode="r"))  # has the same products
    scale = np.abs(R).max() or 1.0
    rows = np.vstack([R / scale, np.full(E.shape[1], SUM_PENALTY)])
    found, _ = nnls(rows, np.append(np.zeros(len(R)), SUM_PENALTY))
    return kept_weights(found / found.sum(), least)
