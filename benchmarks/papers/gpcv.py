"""Xu, Yin, Zhang, Luo and Cui, "A general O(n²) hyper-parameter optimization for Gaussian process
regression with cross-validation and non-linearly constrained ADMM", table 1.

Draws from SE, LP and SE+LP processes on [0, 10], from 1,000 rows on [0, 20]; noise variance 0.1,
which is known, and 20 test rows. The paper does not say where searches start: here all methods of a
trial start from the same kernel, off the truth.

A cell is a kernel, n and a method: the published GPCV-ADMM (two folds, each by itself, θ averaged)
stands beside algorithm 1 by two folds and by hold-out, and the joint solver; GPML beside ours by
the marginal likelihood.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, Kernel, WhiteKernel

from skgpstoch import ADMMGaussianProcessRegressor, GaussianProcessRegressor
from skgpstoch.kernels import TiedKernel

from .tables import Cell, Figures, Table

NOISE = 0.1
N_TEST = 20
TRIALS = 20
NAMES = ("l", "p", "l2")  # of estimates, in the order of the columns
ADMM: dict[str, dict[str, Any]] = {
    "ADMM two folds": {"solver": "coordinate", "scheme": "naive"},
    "ADMM hold-out": {"solver": "coordinate", "scheme": "holdout"},
    "joint two folds": {"solver": "joint", "scheme": "naive"},
}


def locally_periodic(length_scale: float, period: float) -> TiedKernel:
    """The kernel (20), which has one length-scale."""
    product = ExpSineSquared(length_scale, period) * RBF(length_scale)
    return TiedKernel(product, [("k1__length_scale", "k2__length_scale")])


# Truth, where searches start, and which of (l, p, l2) each of θ is.
PROCESSES: dict[str, tuple[Kernel, Kernel, tuple[str, ...]]] = {
    "SE": (RBF(0.5), RBF(1.0), ("l",)),
    "LP": (locally_periodic(0.5, 1.0), locally_periodic(0.8, 1.1), ("l", "p")),
    "SE+LP": (
        RBF(3.0) + locally_periodic(1.0, 2.0),
        RBF(2.0) + locally_periodic(1.5, 2.2),
        ("l", "l2", "p"),
    ),
}


def drawn(kernel: Kernel, n: int, seed: int) -> tuple[np.ndarray, ...]:
    """Rows of a process with noise, to train on and to test."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10 if n <= 500 else 20, (n + N_TEST, 1))
    L = np.linalg.cholesky(kernel(X) + 1e-8 * np.eye(len(X)))
    y = L @ rng.standard_normal(len(X)) + np.sqrt(NOISE) * rng.standard_normal(len(X))
    return X[:n], y[:n], X[n:], y[n:]


def model_of(method: str, start: Kernel, seed: int) -> Any:
    """The estimator of a method, its noise as it is."""
    if method == "likelihood":
        return GaussianProcessRegressor(start, alpha=NOISE)
    kernel = start + WhiteKernel(NOISE, "fixed")
    given = {"normalize_y": False, "learn_noise": False, "cv": 2, "random_state": seed}
    return ADMMGaussianProcessRegressor(kernel, **given, **ADMM[method])


def run(cell: Cell, data: Path, seed: int) -> Figures:
    """Means over trials: the error of the test rows, estimates, and what a fit takes."""
    truth, start, names = PROCESSES[cell["kernel"]]
    trials = [trial(cell, truth, start, 1000 * seed + number) for number in range(TRIALS)]
    theta = np.array([found for _, found, _, _ in trials])  # (trials, D)
    errors = np.array([error for error, _, _, _ in trials])
    figures: Figures = {"test_mse": errors.mean(), "test_mse_sem": errors.std() / TRIALS**0.5}
    found = dict(zip(names, theta.T, strict=True))
    for name in NAMES:  # columns that all cells have
        figures |= {name: "", f"{name}_std": "", f"{name}_median": ""}
        if (values := found.get(name)) is not None:
            figures |= {name: values.mean(), f"{name}_std": values.std()}
            figures |= {f"{name}_median": np.median(values)}
    figures["fit_cpu_s"] = np.median([seconds for *_, seconds in trials])
    figures["n_iter"] = np.median([n_iter for _, _, n_iter, _ in trials])
    return figures | {"trials": TRIALS}


def trial(
    cell: Cell, truth: Kernel, start: Kernel, seed: int
) -> tuple[float, np.ndarray, float, float]:
    """Mean squared error of test rows, estimates, iterations, and seconds of a fit."""
    X, y, X_test, y_test = drawn(truth, int(cell["n"]), seed)
    model, begun = model_of(cell["method"], start, seed), process_time()
    model.fit(X, y)
    seconds = process_time() - begun
    kernel = model.kernel_ if cell["method"] == "likelihood" else model.kernel_.k1
    mse = float(np.mean((model.predict(X_test) - y_test) ** 2))
    return mse, np.exp(kernel.theta), float(getattr(model, "n_iter_", np.nan)), seconds


TABLES = {
    "1": Table(
        "gpcv",
        "1",
        "table 1",
        {"test_mse": "low"} | dict.fromkeys(NAMES, "near"),
        run,
        settings=f"Means of {TRIALS} trials. The noise is known; starts differ from the truth.",
        stands_for=dict.fromkeys(ADMM, "GPCV-ADMM"),
        needs_data=False,
    )
}
