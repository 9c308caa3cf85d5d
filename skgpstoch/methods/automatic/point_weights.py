"""Weights of a mixture's means, where squared errors of rows left out clearly ask for others.

The weights of a mixture are those of its density, which may belong to a model that is sure of most
rows and far off at some. The point prediction Σ_k v_k μ_k(x) then has weights of its own, those of
least squares with errors e_k = y − μ_k of rows left out,

    v = argmin vᵀ(S + D)v   subject to   v_k ≥ 0, Σ_k v_k = 1,   S = E[eeᵀ].                   (1)

Not all models have left out the same rows: neighbours leave out each, networks most, and neighbours
in the outputs of a network a tenth. S is that of normal errors of mean 0 with values missing at
random, by EM (Little & Rubin, "Statistical Analysis with Missing Data", section 11.2): given the
errors e_o that a row has, its others have the mean S_mo S_oo⁻¹ e_o and the covariance
S_mm − S_mo S_oo⁻¹ S_om. So S uses every row, and is positive semi-definite.

A model may fail at rows that are too rare to be among its n_k rows. D is diagonal, and counts its
largest error once more, and, for rows that only others have left out, an error of `FAILURE`
deviations of y:

    D_kk = (max e_k² + (`FAILURE`·s_y)²·(1 − n_k/max_j n_j))/n_k.

It matters only where errors are very small. *Measured* on bike at 2,500 rows, where deep neighbours
have an error of .0012 s_y at 250 rows, and of .0215 at 3,000 new ones. With (`FAILURE`·s_y)²/n_k,
weights were nearly equal on functions without noise, where one model errs by a twentieth of the
other.

The deviation of y is then that from the point prediction, which the mixture's density gives:
std² = Σ_k π_k (σ_k² + (μ_k − Σ_j v_j μ_j)²).
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from scipy.optimize import nnls

from .stacking import kept_weights

FAILURE = 0.5  # deviations of y
JUDGING_FOLDS = 10
CERTAIN_GAIN = 2.0  # standard errors of the gain in squared error, and
LEAST_SQUARE_GAIN = 0.1  # of the squared error, that other weights must gain: see `point_weights`
SUM_PENALTY = 1e3  # of a sum of weights other than 1
EM_STEPS = 30
LEAST_EIGENVALUE = 1e-10  # of S, relative to its trace


class Seen(NamedTuple):
    """Σ w eeᵀ (K, K) of the rows whose errors `models` (K,) have, 0 for others, and Σ w."""

    models: np.ndarray
    total: np.ndarray
    weight: float

    def completed(self, S: np.ndarray) -> np.ndarray:
        """Return the expected Σ w eeᵀ of all models, given S."""
        o = self.models
        B = np.linalg.solve(S[np.ix_(o, o)], S[o]).T  # (K, |o|)
        return np.asarray(B @ self.total[np.ix_(o, o)] @ B.T + self.weight * (S - B @ S[o]))


class Errors(NamedTuple):
    """Errors of rows, added up for each set of models that has them."""

    parts: list[Seen]

    @classmethod
    def of(cls, E: np.ndarray, sample_weight: np.ndarray) -> Self:
        """Add up errors (n, K) of rows, NaN for those that a model has not left out."""
        known = ~np.isnan(E)
        sets, which = np.unique(known, axis=0, return_inverse=True)
        parts = []
        for j, models in enumerate(sets):
            rows = which.ravel() == j
            e, w = np.where(models, E[rows], 0.0), sample_weight[rows]
            if models.any() and w.sum() > 0.0:
                parts.append(Seen(models, (w[:, None] * e).T @ e, float(w.sum())))
        return cls(parts)

    @property
    def weight(self) -> float:
        """Σ w of all rows."""
        return sum(part.weight for part in self.parts)

    @property
    def weights(self) -> np.ndarray:
        """Σ w of the rows of each model, (K,)."""
        return np.asarray(sum(part.weight * part.models for part in self.parts))

    def completed(self, S: np.ndarray) -> np.ndarray:
        """Return the mean of eeᵀ, where missing errors are as S expects."""
        return np.asarray(sum(part.completed(S) for part in self.parts)) / self.weight

    def moments(self) -> np.ndarray:
        """Return S, (K, K).

        EM starts from the rows that all models have, if there are any: where sets are nested, one
        step from there is the solution.
        """
        common = [part for part in self.parts if part.models.all()]
        own = sum(part.total.diagonal() for part in self.parts) / self.weights
        S = common[0].total / common[0].weight if common else np.diag(own)
        for _ in range(EM_STEPS if len(self.parts) > 1 else 0):
            S = self.completed(raised(S))
        return S


def raised(S: np.ndarray) -> np.ndarray:
    """Return S with a least eigenvalue, so that it has an inverse."""
    least = LEAST_EIGENVALUE * max(float(S.trace()), np.finfo(float).tiny)
    return S + least * np.eye(len(S))


def point_weights(
    errors: np.ndarray,
    weights: np.ndarray,
    sample_weight: np.ndarray,
    unit: np.ndarray,
    least: float,
) -> np.ndarray:
    """Return the weights v of means; those of the density, `weights`, unless others are better.

    They are judged on folds of the rows, by weights that come from the other folds. The gain has to
    be large, because errors of networks at rows of folds are somewhat too large for those of the
    final ones: *measured* on txhousing, where others seemed to gain .06, and lost .02.

    Parameters
    ----------
    errors : ndarray of shape (n_samples, n_models, n_outputs)
        y minus the mean that each model predicts; NaN for rows that it has not left out.
    weights : ndarray of shape (n_models,)
        Weights of the density.
    sample_weight : ndarray of shape (n_samples,)
        How many rows each row counts for.
    unit : ndarray of shape (n_outputs,)
        Deviation of each output.
    least : float
        Least weight of a model.
    """
    n, K, P = errors.shape
    E = np.moveaxis(errors / unit, 2, 1).reshape(n * P, K)
    w = np.repeat(sample_weight, P)
    fold = np.repeat(np.arange(n) % JUDGING_FOLDS, P)
    every = Errors.of(E, w)
    if K == 1 or not len(every.parts) or every.weights.min() < 4 * K * P:
        return weights
    n_k, largest = every.weights / P, np.nanmax(np.abs(E[w > 0.0]), axis=0)
    D = np.diag((largest**2 + FAILURE**2 * (1.0 - n_k / n_k.max())) / n_k)
    gain, before = np.empty((2, JUDGING_FOLDS))
    for k in range(JUDGING_FOLDS):
        own, others = (Errors.of(E[rows], w[rows]) for rows in (fold == k, fold != k))
        if not own.parts or not others.weights.all():
            return weights
        S = others.moments()
        v, T = least_squares(S + D, least), own.completed(raised(S)) + D
        before[k] = weights @ T @ weights
        gain[k] = before[k] - v @ T @ v
    error = gain.std(ddof=1) / np.sqrt(JUDGING_FOLDS)
    mean = gain.mean()
    is_clear = mean > CERTAIN_GAIN * error and mean > LEAST_SQUARE_GAIN * before.mean()
    return least_squares(every.moments() + D, least) if is_clear else weights


def least_squares(S: np.ndarray, least: float) -> np.ndarray:
    """Return the weights (1) for S + D, (K, K), none below `least` but 0."""
    values, V = np.linalg.eigh(S / (S.trace() or 1.0))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * V.T
    rows = np.vstack([root, np.full(len(S), SUM_PENALTY)])
    found, _ = nnls(rows, np.append(np.zeros(len(S)), SUM_PENALTY))
    return kept_weights(found / found.sum(), least)
