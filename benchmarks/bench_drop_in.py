"""Claim: the drop-in GaussianProcessRegressor is faster and leaner than scikit-learn's, and scales.

Parts, each with both peers in fresh processes that take turns (one BLAS's threads, spinning, would
slow the other's in one process), so that peaks of memory are those of one job:

    evaluation   the log marginal likelihood and its gradient: median of many; 8 times faster
    fit          the whole fit, to within .1 nat of the same optimum: 5 times faster, in 1/4 of the
                 memory
    small        the same of few rows, where all is overhead
    classifier   evaluations and fits of Laplace's approximation
    predict      mean and std of 50,000 rows from 3,000: under 400 MB beyond the inputs
    large        method="auto" on all rows of kin40k: NLPD of at most −.2 in 90 s

Kernel: a constant times an ARD Matérn-3/2, and a WhiteKernel; rows of kin40k. Memory is VmHWM less
what the process had before (Linux), matrices of the job included.

    python benchmarks/bench_drop_in.py --data ../shared/data --threads 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import Row, Split, add_data, load_split, parser, set_threads, write_csv
from sklearn import gaussian_process as sklearn_gp
from sklearn.gaussian_process.kernels import Kernel, Matern, WhiteKernel

import skgpstoch
from skgpstoch.metrics import negative_log_predictive_density

PEERS = {"sklearn": sklearn_gp, "skgpstoch": skgpstoch}
PARTS = ("evaluation", "fit", "small", "classifier", "predict", "large")
SMALL = (30, 100, 300, 1000)


def kernel_of(d: int) -> Kernel:
    return 1.0 * Matern(np.ones(d), nu=1.5) + WhiteKernel()


def peak() -> int:
    """Bytes of the largest resident set of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) * 1024


def seconds(function: Callable[[], Any], repeats: int) -> list[float]:
    """Wall time of each call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times


def evaluation(peer: Any, data: Split, n: int, args: argparse.Namespace) -> Row:
    X, y = data.X_train[:n].astype(float), data.y_train[:n].astype(float)
    model = peer.GaussianProcessRegressor(kernel_of(X.shape[1]), optimizer=None).fit(X, y)
    theta = model.kernel_.theta
    before = peak()
    times = seconds(
        lambda: model.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False),
        args.repeats,
    )
    return {
        "seconds": float(np.median(times)),
        "mean_s": float(np.mean(times)),
        "bytes": peak() - before,
    }


def fit(peer: Any, data: Split, n: int, args: argparse.Namespace) -> Row:
    X, y = data.X_train[:n].astype(float), data.y_train[:n].astype(float)
    before = peak()
    models: list[Any] = []
    times = seconds(
        lambda: models.append(peer.GaussianProcessRegressor(kernel_of(X.shape[1])).fit(X, y)),
        args.repeats,
    )
    lml = models[-1].log_marginal_likelihood_value_
    return {"seconds": float(np.median(times)), "bytes": peak() - before, "lml": lml}


def classifier(peer: Any, data: Split, n: int, args: argparse.Namespace) -> Row:
    X, y = data.X_train[:n].astype(float), data.y_train[:n] > 0.0
    kernel = 1.0 * Matern(np.ones(X.shape[1]), nu=1.5)
    before = peak()
    models: list[Any] = []
    times = seconds(
        lambda: models.append(peer.GaussianProcessClassifier(kernel).fit(X, y)), args.repeats
    )
    lml = models[-1].log_marginal_likelihood_value_
    return {"seconds": float(np.median(times)), "bytes": peak() - before, "lml": lml}


def predict(peer: Any, data: Split, n: int, args: argparse.Namespace) -> Row:
    X, y = data.X_train[:n].astype(float), data.y_train[:n].astype(float)
    model = peer.GaussianProcessRegressor(kernel_of(X.shape[1]), optimizer=None).fit(X, y)
    rows = np.random.default_rng(0).standard_normal((50_000, X.shape[1]))
    before = peak()
    times = seconds(lambda: model.predict(rows, return_std=True), args.repeats)
    return {"seconds": float(np.median(times)), "bytes": peak() - before}


def large(peer: Any, data: Split, n: int, args: argparse.Namespace) -> Row:
    rows: Row = {}
    for name, kernel in (("default", None), ("matern", kernel_of(data.X_train.shape[1]))):
        model = peer.GaussianProcessRegressor(kernel, random_state=args.seed)
        rows[f"{name}_s"] = seconds(lambda m=model: m.fit(data.X_train, data.y_train), 1)[0]
        mean, std = model.predict(data.X_test, return_std=True)
        rows[f"{name}_nlpd"] = negative_log_predictive_density(data.y_test, mean, std)
        rows[f"{name}_rmse"] = float(np.sqrt(np.mean((mean - data.y_test) ** 2)))
        rows["reason"] = model.method_reason_
    return rows


def child(args: argparse.Namespace) -> None:
    """One job of one peer, whose results are printed."""
    set_threads(args.threads)
    part, peer, n = args.child
    data = load_split(args.data, "kin40k")
    job = {"small": fit}.get(part) or globals()[part]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps(job(PEERS[peer], data, int(n), args), default=float))


def in_child(args: argparse.Namespace, part: str, peer: str, n: int) -> Row:
    command = [sys.executable, __file__, "--data", str(args.data), "--threads", str(args.threads)]
    repeats = args.repeats if part in ("evaluation", "small") else 1
    command += ["--repeats", str(repeats), "--child", part, peer, str(n)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"part": part, "peer": peer, "n": n, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    arguments = parser(__doc__, "bench_drop_in.csv")
    add_data(arguments)
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--turns", type=int, default=3, help="processes of each peer")
    arguments.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.child:
        return child(args)
    rows: list[Row] = []
    sizes = {"small": SMALL, "predict": (3000,), "classifier": (100, 300, 1000), "large": (36_000,)}
    for part in args.parts:
        for n in sizes.get(part, (2000,)):
            peers = ["skgpstoch"] if part == "large" else list(PEERS)
            found = [in_child(args, part, p, n) for _ in range(args.turns) for p in peers]
            rows += found
            for row in found:
                print(
                    {k: v if isinstance(v, str) else round(v, 4) for k, v in row.items()},
                    flush=True,
                )
            if part == "large":
                continue
            a, b = ([r for r in found if r["peer"] == peer] for peer in PEERS)
            faster, leaner = (
                np.median([r[k] for r in a]) / max(np.median([r[k] for r in b]), 1.0e-9)
                for k in ("seconds", "bytes")
            )
            print(f"{part} {n}: {faster:.2f} times faster, {leaner:.2f} times leaner")
    write_csv(args.output, rows, seed=args.seed, threads=args.threads)
    return None


if __name__ == "__main__":
    main()
