"""Draw random starts for hyper-parameter searches, at the scale of the data.

Bounds are wide, ten decades by default, so most θ between them lie on plateaus, where the model
sees only noise or no noise at all. If the kernel tells a parameter's unit, the parameter is drawn
from a narrower range inside the bounds:

    length-scale    span·√d·min(n^(−1/d), 1/10) to span·√d; per column if each has its own
    period          twice the shortest to the longest length-scale
    variance        1/10 to 10 times the function's variance
    noise           1/1000 to 1 times the function's variance
    mixture α       1/10 to 100
    σ₀              1/10 to 10 times the root-mean-square norm of the rows
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

SHORTEST = 0.1
"""The shortest length-scale over the longest, at most."""

CANDIDATES = (1, 20)
"""Numbers of random θ, in turn; each search begins at the best of them. A single θ also explores
regions with low values, and twenty find narrow optima. On scikit-learn's gallery, both together
found more optima than either alone."""

LATENT_VARIANCE = 10.0
"""Likely variance of f if a likelihood has no noise: probabilities from .04 to .96."""

NOISE_SHARES = (1e-3, 1.0)
"""Likely range of the noise variance, over the function's variance."""


def log_bounds(kernel: sk.Kernel) -> np.ndarray:
    """Return the bounds of θ, (n_dims, 2): scikit-learn's take 2ⁿ steps for a sum of n kernels."""
    if not isinstance(kernel, sk.KernelOperator):
        return np.asarray(kernel.bounds).reshape(-1, 2)
    return np.vstack([log_bounds(kernel.k1), log_bounds(kernel.k2)])


def likely_bounds(kernel: sk.Kernel, X: Any, variance: float) -> np.ndarray:
    """Return the interval from which starts of each parameter in θ are drawn, (n_dims, 2).

    Parameters
    ----------
    kernel : sklearn kernel
        The kernel that θ belongs to.
    X : ndarray of shape (n, d) or list of object
        Rows. For a list of objects the intervals are the bounds.
    variance : float
        Approximate variance of the function.
    """
    bounds = log_bounds(kernel)
    has_ranges = kernel.requires_vector_input and np.ndim(X) == 2 and variance > 0.0
    if not (has_ranges and len(bounds)):
        return bounds
    parameters = kernel.get_params()
    likely = []
    for hyperparameter in kernel.hyperparameters:
        if not hyperparameter.fixed:
            path, _, name = hyperparameter.name.rpartition("__")
            owner = parameters[path] if path else kernel
            ranges = likely_range(owner, name, X, variance, hyperparameter.n_elements)
            likely.append(np.broadcast_to(ranges, (hyperparameter.n_elements, 2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.clip(np.log(np.concatenate(likely)), bounds[:, :1], bounds[:, 1:])
    is_known = inside[:, :1] < inside[:, 1:]  # False for NaN
    return np.where(is_known, inside, bounds)


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


def likely_range(
    owner: sk.Kernel, name: str, X: np.ndarray, variance: float, n_elements: int
) -> np.ndarray:
    """Return the lowest and highest likely value, (2,) or (n_elements, 2); NaN if unknown."""
    n, d = X.shape
    span = np.ptp(X, axis=0) * np.sqrt(d)  # (d,)
    longest = span if n_elements == d else span.max(keepdims=True)
    shortest = longest * min(n ** (-1.0 / d), SHORTEST)
    scales = np.stack([shortest, longest], 1)
    if isinstance(owner, sk.ExpSineSquared) and name == "length_scale":
        return np.array([0.1, 10.0])
    ranges: dict[str, Any] = {
        "length_scale": scales,
        "periodicity": scales * [2.0, 1.0],
        "constant_value": np.array([0.1, 10.0]) * variance,
        "noise_level": np.array(NOISE_SHARES) * variance,
        "alpha": np.array([0.1, 100.0]),
        "sigma_0": np.array([0.1, 10.0]) * np.sqrt(np.square(X).sum(1).mean()),
    }
    return np.asarray(ranges.get(name, np.full(2, np.nan)))


def draw_starts(
    likely: np.ndarray, n_restarts: int, random_state: np.random.RandomState
) -> list[np.ndarray]:
    """Return the candidate starts of each restart, (S, n_dims) each."""
    low, high = likely.T
    sizes = (CANDIDATES[r % len(CANDIDATES)] for r in range(n_restarts))
    return [random_state.uniform(low, high, (size, len(low))) for size in sizes]


@contextlib.contextmanager
def threads_as(n_threads: int) -> Iterator[None]:
    """Let torch use `n_threads` threads in the block, as in the process that started the job.

    With another number of threads, sums are rounded differently, and a search may find another
    optimum. Only joblib's worker processes have another number; it is restored afterwards.
    """
    before = torch.get_num_threads()
    if before == n_threads:
        yield
        return
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
