"""Find the length-scales that rows near each other fit, beside those of the model."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk

from ...kernels import split_noise
from ...maths.exact_solver import ExactSolver
from ...maths.linalg import log_det
from .findings import scales_of_inputs

N_PLACES, N_AROUND = 5, 150  # exact fits of five neighbourhoods take .1 s
FACTORS = 2.0 ** np.arange(-6.0, 3.0)  # of the length-scales
LOCAL_NOISE_SHARES = (0.01, 0.1, 0.5)


def of_range(kernel: sk.Kernel | None, X: np.ndarray, Y: np.ndarray) -> str:
    """Return in words how long length-scales are that fit neighbourhoods of rows best.

    The words are empty if the kernel is None or has other parts than functions of distances in
    length-scales, or if its own length-scales fit best.
    """
    scales = None if kernel is None else scales_of_inputs(kernel, X.shape[1])
    if kernel is None or not scales:
        return ""
    f, Z = split_noise(kernel)[0], X / np.min(scales, axis=0)
    Z = Z / max(np.abs(Z).max(), np.finfo(float).tiny)  # squares do not overflow
    places = Z[np.linspace(0, len(Z) - 1, N_PLACES).astype(int)]
    nearest = [np.argsort(np.square(Z - place).sum(1))[:N_AROUND] for place in places]
    found = [
        sum(
            evidence((1.0 - share) * K + share * np.eye(len(K)), Y[rows] - Y[rows].mean(0))
            for K, rows in zip(covariances, nearest, strict=True)
        )
        for covariances in (
            [unit_covariance(f, X[rows] / factor) for rows in nearest] for factor in FACTORS
        )
        for share in LOCAL_NOISE_SHARES
    ]
    factor = FACTORS[int(np.argmax(found)) // len(LOCAL_NOISE_SHARES)]
    if factor == 1.0:
        return ""
    own = np.unique(scales)
    which = f", {factor * own[0]:.2g} for {own[0]:.2g}" if len(own) == 1 else ""
    return (
        f" An exact fit to the {N_AROUND} rows around a row finds length-scales about {factor:.2g} "
        f"times the model's{which}."
    )


def unit_covariance(kernel: sk.Kernel, X: np.ndarray) -> np.ndarray:
    """Return K/k̄, with k̄ the mean of K's diagonal."""
    K = kernel(X)
    return np.asarray(K / np.diagonal(K).mean())


def evidence(C: np.ndarray, Y: np.ndarray) -> float:
    """Return the largest log N(y | 0, s²C) over s², up to a constant, summed over outputs.

    Outputs that are 0 everywhere are left out: they say nothing of C.
    """
    solver = ExactSolver.of_(torch.from_numpy(C), torch.from_numpy(Y))
    if solver is None:
        return -np.inf
    s2 = (Y * solver.A.numpy()).mean(0)  # (P,)
    s2 = s2[s2 > 0.0]
    return -0.5 * float(len(Y) * np.log(s2).sum() + len(s2) * log_det(solver.L))
