"""Claim: graphs of fitted models agree with `predict` to about 1e-10, and are as quick.

Every kind of model is fitted to Friedman's function (2,000 rows; 500 for those that are exact),
exported, and asked for the mean and the standard deviation, and for quantiles, of 10,000 rows, by
ONNX Runtime and by the model. "Error" is the largest difference over |mean| + std; "rounding" is
how far the model's own predictions move when the inputs move by their last digits. Seconds are
medians of five calls on the same number of threads.

    python benchmarks/bench_onnx.py
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from _common import Row, parser, set_threads, write_csv
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessRegressor,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPRegressor,
)
from skgpstoch.onnx import to_onnx

N_NEW, N_CALLS = 10_000, 5
MODELS: dict[str, tuple[int, Callable[[int], Any]]] = {
    "exact RBF": (500, lambda seed: GaussianProcessRegressor(RBF([1.0] * 10) + WhiteKernel())),
    "exact Matern-1/2": (
        500,
        lambda seed: GaussianProcessRegressor(Matern(nu=0.5) + WhiteKernel()),
    ),
    "SVGP": (2000, lambda seed: SVGPRegressor(random_state=seed)),
    "SOLVE-GP": (2000, lambda seed: SolveGPRegressor(random_state=seed)),
    "SCGD": (2000, lambda seed: SCGDGaussianProcessRegressor(random_state=seed)),
    "QSGP": (2000, lambda seed: QSGPRegressor(random_state=seed)),
    "deep kernels": (2000, lambda seed: DeepKernelEnsembleRegressor(random_state=seed)),
    "default, 200 rows": (200, lambda seed: AutoGaussianProcessRegressor(random_state=seed)),
    "default, 2000 rows": (2000, lambda seed: AutoGaussianProcessRegressor(random_state=seed)),
}


def seconds(call: Callable[[], Any]) -> float:
    """Median time of a call."""
    times = []
    for _ in range(N_CALLS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def compare(name: str, seed: int, n_threads: int) -> Row:
    """One kind of model."""
    n, make = MODELS[name]
    X, y = make_friedman1(n + N_NEW, noise=1.0, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(seed).fit(X[:n], y[:n])
    X = X[n:]
    proto = to_onnx(model, ("mean", "std", "quantiles"), quantiles=(0.025, 0.975))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)

    def ask(*outputs: str) -> list[np.ndarray]:
        return session.run(list(outputs), {"X": X})

    def error(found: list[np.ndarray]) -> float:
        pairs = zip(found, model.predict(X, return_std=True), strict=True)
        return max(float(np.max(np.abs(a.ravel() - b.ravel()) / size)) for a, b in pairs)

    mean, std = model.predict(X, return_std=True)
    size = np.abs(mean) + std
    moved = model.predict(np.nextafter(X, np.inf), return_std=True)
    ends = ask("quantiles")[0][:, 0]
    return {
        "model": name,
        "n_train": n,
        "n_new": N_NEW,
        "megabytes": proto.ByteSize() / 1e6,
        "error": error(ask("mean", "std")),
        "error_quantiles": float(
            np.max(np.abs(ends - model.predict_interval(X, 0.95)) / size[:, None])
        ),
        "rounding": error(list(moved)),
        "onnx_s": seconds(lambda: ask("mean", "std")),
        "predict_s": seconds(lambda: model.predict(X, return_std=True)),
        "onnx_quantiles_s": seconds(lambda: ask("quantiles")),
        "predict_interval_s": seconds(lambda: model.predict_interval(X, 0.95)),
    }


def main() -> None:
    arguments = parser(__doc__, "bench_onnx.csv")
    arguments.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    given = arguments.parse_args()
    set_threads(given.threads)
    rows = []
    for name in given.models:
        rows.append(compare(name, given.seed, given.threads))
        print(rows[-1], flush=True)
    write_csv(given.output, rows, seed=given.seed, threads=given.threads)


if __name__ == "__main__":
    main()
