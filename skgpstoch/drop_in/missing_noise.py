"""Tell whether y looks noisy to a model that has no noise.

Without a WhiteKernel and with a negligible alpha, all of y is a part of f. If y is noisy, the
search makes length-scales short and f rough. Then some noise beside a smoother f explains the rows
far better: with C = (1 − r)K/k̄ + rI, k̄ the mean of K's diagonal, and the best scale s² = yᵀC⁻¹y/n,

    max over s² of log N(y | 0, s²C) = −½n log s² − ½ log|C| + const.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from ..data.findings import Finding
from ..kernels import split_noise
from ..kernels.matrices import why_object
from ..recipes.error_findings import judged_rows
from ..recipes.findings import FEW_TO_LEARN, MISSING_NOISE
from .noise import exceeds_jitter

COMPARED_ROWS = 500
SMOOTHER = (1.0, 3.0, 10.0)  # times the length-scales
SHARES = (0.03, 0.3)  # r
MOST_MISSED = 10.0  # nats of all compared rows, for one more parameter


def of_missing_noise(
    kernel: sk.Kernel, X: np.ndarray, Y: np.ndarray, noise: np.ndarray
) -> Iterator[Finding]:
    """Yield by how many nats noise would make some rows more probable; nothing if there is some.

    Parameters
    ----------
    kernel : sklearn kernel
        The fitted one.
    X, Y : ndarrays of shapes (n, d) and (n, P)
        The rows.
    noise : ndarray of shape () or (n,)
        alpha.
    """
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


def smoother(kernel: sk.Kernel, factor: float) -> sk.Kernel:
    """Return the kernel with longer length-scales, those that are fixed excepted."""
    theta = [
        np.full(h.n_elements, np.log(factor) if h.name.endswith("length_scale") else 0.0)
        for h in kernel.hyperparameters
        if not h.fixed
    ]
    found = clone(kernel)
    if theta:
        found.theta = kernel.theta + np.concatenate(theta)
    return found


def unit_covariance(kernel: sk.Kernel, X: np.ndarray) -> np.ndarray:
    """Return K/k̄."""
    K = kernel(X)
    return np.asarray(K / np.diagonal(K).mean())


def evidence(C: np.ndarray, Y: np.ndarray) -> float:
    """Return the largest log N(y | 0, s²C) up to a constant, summed over outputs, in nats."""
    try:
        L = np.linalg.cholesky(C)
    except np.linalg.LinAlgError:
        return -np.inf
    s2 = np.square(solve_triangular(L, Y, lower=True)).mean(0)
    return float(-0.5 * len(Y) * np.log(s2).sum() - Y.shape[1] * np.log(np.diagonal(L)).sum())
