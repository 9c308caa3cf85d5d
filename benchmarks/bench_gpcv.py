"""Claim: cross-validation by multipliers finds what the paper's ADMM finds, in O(n²).

Parts, each job in a process of its own:

    synthetic  draws from SE, LP and SE+LP processes (the paper's Table 1; noise variance 0.1, which
               is known, and 20 test rows): estimates and test MSE, beside the marginal likelihood's
    scaling    seconds to find the best weights and the gradient by θ, n = 2,000 to 8,000, half of
               the rows held out, five times
    crossing   seconds to a fit, and its test MSE, beside our exact class and scikit-learn's
    co2        monthly carbon dioxide, RBF + locally periodic; the last seven years held out by the
               test, the seven before by the fit
    large      n = 50,000 rows like kin40k's, hold-out, nothing kept: seconds of a product and of a
               gradient, and peak memory (Linux); a fit would take days

    python benchmarks/bench_gpcv.py --data ../shared/data --threads 2
"""

from __future__ import annotations

import argparse
import csv
import time
from typing import Any

import numpy as np
import torch
from _common import Row, add_data, add_parts, parser, peak, run_parts
from sklearn.gaussian_process import GaussianProcessRegressor as SklearnGP
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, Kernel, WhiteKernel

from skgpstoch import ADMMGaussianProcessRegressor, GaussianProcessRegressor
from skgpstoch.kernels import from_sklearn
from skgpstoch.kernels.products import KernelRows
from skgpstoch.methods.gpcv.fold_loss import Fold
from skgpstoch.methods.gpcv.multipliers import Asked, Local, Options, visit

NOISE = 0.1
SETS = {  # the truth, and where searches start
    "SE": (RBF(0.5), RBF(1.0)),
    "LP": (ExpSineSquared(0.5, 1.0) * RBF(0.5), ExpSineSquared(1.0, 1.1) * RBF(1.0)),
    "SE+LP": (
        RBF(3.0) + ExpSineSquared(1.0, 2.0) * RBF(1.0),
        RBF(2.0) + ExpSineSquared(1.5, 2.2) * RBF(1.5),
    ),
}
JOBS: dict[str, list[Any]] = {
    "synthetic": [[name, n] for name in SETS for n in (500, 1000, 2000)],
    "scaling": [2000, 4000, 8000],
    "crossing": [500, 1000, 2000, 4000],
    "co2": ["co2"],
    "large": [50_000],
}


def drawn(kernel: Kernel, n: int, seed: int, n_test: int = 20) -> tuple[np.ndarray, ...]:
    """Rows of a process with noise, to train on and to test."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10 if n <= 500 else 20, (n + n_test, 1))
    L = np.linalg.cholesky(kernel(X) + 1e-8 * np.eye(len(X)))
    y = L @ rng.standard_normal(len(X)) + np.sqrt(NOISE) * rng.standard_normal(len(X))
    return X[:n], y[:n], X[n:], y[n:]


def fitted(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Seconds of a fit."""
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start


def synthetic(args: argparse.Namespace, name: str, n: int) -> list[Row]:
    truth, begin = SETS[name]
    models = {
        "ADMM": ADMMGaussianProcessRegressor(
            begin + WhiteKernel(NOISE, "fixed"), scheme="naive", normalize_y=False, random_state=0
        ),
        "likelihood": GaussianProcessRegressor(begin, alpha=NOISE),
    }
    rows = []
    for label, model in models.items():
        found, errors, seconds = [], [], []
        for trial in range(args.trials):
            X, y, X_test, y_test = drawn(truth, n, args.seed + trial)
            seconds.append(fitted(model, X, y))
            kernel = model.kernel_.k1 if label == "ADMM" else model.kernel_
            found.append(np.exp(kernel.theta))
            errors.append(np.mean((model.predict(X_test) - y_test) ** 2))
        row: Row = {"set": name, "n": n, "model": label, "fit_s": np.median(seconds)}
        row |= {"test_mse": np.mean(errors), "test_mse_sem": np.std(errors) / len(errors) ** 0.5}
        for j, values in enumerate(np.transpose(found)):
            row |= {f"theta_{j}": values.mean(), f"theta_{j}_std": values.std()}
            row[f"true_{j}"] = np.exp(truth.theta[j])
        rows.append(row)
    return rows


def scaling(args: argparse.Namespace, n: int) -> list[Row]:
    X, y, _, _ = (torch.from_numpy(a) for a in drawn(RBF(0.5), n, args.seed))
    one = torch.ones(n, 1, dtype=torch.float64)
    nothing = torch.empty(0, 1, dtype=torch.float64)
    local = Local(Fold(X, y[:, None], one, n // 2), *[nothing] * 3)
    options = Options(
        kernel=RBF(0.5),
        noise_variance=NOISE,
        learns_noise=False,
        keeps=True,
        solver="joint",
        tol=0.01,
        n_jobs=1,
    )
    theta, rho = torch.tensor([np.log(0.5)]), 100.0
    begun = visit(local, theta, rho, Asked(consistent=True), options)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        visit(begun.local, theta + 0.1, rho, Asked(weights=True, slope=True), options)
        seconds.append(time.perf_counter() - start)
    return [{"n": n, "evaluation_s": np.median(seconds)}]


def crossing(args: argparse.Namespace, n: int) -> list[Row]:
    truth, begin = SETS["SE+LP"]
    X, y, X_test, y_test = drawn(truth, n, args.seed, n_test=500)
    models = {
        "ADMM": ADMMGaussianProcessRegressor(
            begin + WhiteKernel(NOISE, "fixed"), cv=0.5, scheme="holdout", normalize_y=False
        ).set_params(random_state=0),
        "exact, here": GaussianProcessRegressor(begin, alpha=NOISE),
        "exact, scikit-learn": SklearnGP(begin, alpha=NOISE),
    }
    rows = []
    for label, model in models.items():
        seconds = fitted(model, X, y)
        mse = np.mean((model.predict(X_test) - y_test) ** 2)
        rows.append({"n": n, "model": label, "fit_s": seconds, "test_mse": mse})
    return rows


def co2(args: argparse.Namespace, name: str) -> list[Row]:
    with (args.data / "co2.csv").open(encoding="utf-8-sig") as file:
        table = [[float(x) for x in row[:13]] for row in list(csv.reader(file))[1:]]
    months = [(r[0] + (m + 0.5) / 12, x) for r in table for m, x in enumerate(r[1:]) if x > 0.0]
    t, y = np.transpose(months)
    X, first = t[:, None], np.floor(t[-1]) - 6.0
    train, test = t < first, t >= first
    kernel = (
        1.0 * RBF(50.0, (1.0, 1e4))
        + 1.0 * ExpSineSquared(1.0, 1.0, periodicity_bounds=(0.5, 2.0)) * RBF(50.0, (1.0, 1e4))
        + WhiteKernel(1e-3, (1e-8, 1.0))
    )
    earlier = t[train] < first - 7.0
    pair = np.flatnonzero(earlier), np.flatnonzero(~earlier)
    models = {
        "ADMM, last years": ADMMGaussianProcessRegressor(kernel, cv=[pair], scheme="holdout"),
        "ADMM, two folds": ADMMGaussianProcessRegressor(kernel, random_state=0),
        "likelihood": GaussianProcessRegressor(kernel, normalize_y=True),
    }
    rows = []
    for label, model in models.items():
        seconds = fitted(model, X[train], y[train])
        mean, std = model.predict(X[test], return_std=True)
        mse = np.mean((mean - y[test]) ** 2)
        row = {"model": label, "fit_s": seconds, "first_test_year": first, "test_mse": mse}
        row |= {"mse_by_train_variance": mse / y[train].var()}
        row |= {"mse_by_test_variance": mse / y[test].var()}
        rows.append(row | {"coverage_%": 100 * np.mean(np.abs(mean - y[test]) < 1.96 * std)})
    return rows


def large(args: argparse.Namespace, n: int) -> list[Row]:
    X = torch.from_numpy(np.random.default_rng(args.seed).standard_normal((n, 8))).float()
    kernel = from_sklearn(1.0 * RBF(np.full(8, 2.0)))
    products = KernelRows(kernel, X, X[: 9 * n // 10], keeps=False)
    v, u = torch.ones(9 * n // 10, 1).double(), torch.ones(n, 1).double()
    start = time.perf_counter()
    products.product(v)
    middle = time.perf_counter()
    products.gradients(v, u, list(kernel.parameters()))
    end = time.perf_counter()
    row = {"n": n, "product_s": middle - start, "gradient_s": end - middle}
    return [row | {"megabytes": peak()}]


def main() -> None:
    arguments = parser(__doc__, "bench_gpcv.csv")
    add_data(arguments)
    add_parts(arguments, JOBS)
    arguments.add_argument("--trials", type=int, default=20, help="of the part synthetic")
    run_parts(arguments, JOBS, synthetic, scaling, crossing, co2, large)


if __name__ == "__main__":
    main()
