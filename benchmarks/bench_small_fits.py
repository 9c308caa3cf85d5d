"""Claim: sparse and stochastic methods fit a few hundred rows in a blink, as well as ever.

Two parts:

    time       CPU seconds of a fit with defaults, of rows made by scikit-learn, one thread; the
               best of `--repeats` after a first fit of few rows, which imports what it needs.
               Beside them scikit-learn's own two classes, and our drop-in for them.
    quality    mean held-out nats per row (and accuracy) on ten small sets, five splits each, of
               all methods that suit the set.

The bars, in CPU seconds of a machine of 45 GFLOP/s (`scaled_s`): SVGPClassifier .3, 1 and 5 at
n = 20, 200 and 1,000; SVGPRegressor .3, 1 and 10 at 20, 300 and 2,000; SolveGPRegressor at most
twice SVGPRegressor; SCGD .6 and 4 at 20 and 500, with an RBF and no network 1 at 20; SVGP(M = n) at
most twice the drop-in. Quality within .01 nats of an earlier run (`--against`) on average.

    python benchmarks/bench_small_fits.py --data DIR
    python benchmarks/bench_small_fits.py --data DIR --parts quality --against before.csv
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _common import (
    Array,
    Clock,
    Row,
    add_data,
    gflops,
    parser,
    read_table,
    set_threads,
    write_csv,
)
from bench_counts_robust import read_abalone
from sklearn import datasets
from sklearn import gaussian_process as sklearn_gp
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import skgpstoch as ours

REFERENCE_GFLOPS = 45.0
N_TRAIN = 150  # rows of a set that quality is judged with
N_TEST = 1_000
Make = Callable[[int, int], Any]  # (seed, inputs) → estimator


class Timed(NamedTuple):
    """A fit that has a bar, in seconds of the reference machine; NaN where there is none."""

    model: str
    n: int
    bar: float = float("nan")


TIMED = (
    *(Timed("SVGPClassifier", n, bar) for n, bar in ((20, 0.3), (200, 1.0), (1000, 5.0))),
    *(Timed("SVGPRegressor", n, bar) for n, bar in ((20, 0.3), (300, 1.0), (2000, 10.0))),
    Timed("SolveGPRegressor", 300, 2.0),
    Timed("SolveGPRegressor", 2000, 20.0),
    Timed("SCGD", 20, 0.6),
    Timed("SCGD", 500, 4.0),
    Timed("SCGD-RBF", 20, 1.0),
    Timed("SVGPRegressor-all", 300),
    *(Timed(name, n) for name in ("poisson", "student_t") for n in (20, 300, 1000)),
    *(Timed(name, n) for name in ("DLMRegressor", "DLMClassifier") for n in (20, 300)),
    *(Timed(name, n) for name in ("drop-in GPR", "sklearn GPR") for n in (20, 300)),
    *(Timed(name, n) for name in ("drop-in GPC", "sklearn GPC") for n in (20, 200)),
)


def ard(d: int) -> Any:
    """A kernel for scikit-learn's classes, with a length-scale for each input."""
    return ConstantKernel() * RBF(np.ones(d), (1e-3, 1e4))


MODELS: dict[str, Make] = {
    "SVGPClassifier": lambda seed, d: ours.SVGPClassifier(random_state=seed),
    "SolveGPClassifier": lambda seed, d: ours.SolveGPClassifier(random_state=seed),
    "DLMClassifier": lambda seed, d: ours.DLMClassifier(random_state=seed),
    "drop-in GPC": lambda seed, d: ours.GaussianProcessClassifier(ard(d), random_state=seed),
    "sklearn GPC": lambda seed, d: sklearn_gp.GaussianProcessClassifier(ard(d), random_state=seed),
    "SVGPRegressor": lambda seed, d: ours.SVGPRegressor(random_state=seed),
    "SVGPRegressor-few": lambda seed, d: ours.SVGPRegressor(n_inducing=20, random_state=seed),
    "SVGPRegressor-all": lambda seed, d: ours.SVGPRegressor(n_inducing=300, random_state=seed),
    "SolveGPRegressor": lambda seed, d: ours.SolveGPRegressor(random_state=seed),
    "FITCRegressor": lambda seed, d: ours.FITCRegressor(random_state=seed),
    "student_t": lambda seed, d: ours.SVGPRegressor(likelihood="student_t", random_state=seed),
    "poisson": lambda seed, d: ours.SVGPRegressor(likelihood="poisson", random_state=seed),
    "DLMRegressor": lambda seed, d: ours.DLMRegressor(random_state=seed),
    "SCGD": lambda seed, d: ours.SCGDGaussianProcessRegressor(random_state=seed),
    "SCGD-RBF": lambda seed, d: ours.SCGDGaussianProcessRegressor(
        RBF(np.sqrt(d)), hidden_layer_sizes=(), random_state=seed
    ),
    "drop-in GPR": lambda seed, d: ours.GaussianProcessRegressor(
        ard(d) + WhiteKernel(), normalize_y=True, random_state=seed
    ),
    "sklearn GPR": lambda seed, d: sklearn_gp.GaussianProcessRegressor(
        ard(d) + WhiteKernel(), normalize_y=True, random_state=seed
    ),
}
CLASSIFIERS = tuple(name for name in MODELS if "Classifier" in name or "GPC" in name)
COUNTERS = ("poisson",)
REGRESSORS = tuple(
    name for name in MODELS if name not in (*CLASSIFIERS, *COUNTERS, "SVGPRegressor-all")
)


# --- rows -----------------------------------------------------------------------------------------
def made_rows(model: str, n: int) -> tuple[Array, Array]:
    """Rows that scikit-learn makes, for a model to be timed with."""
    if model in CLASSIFIERS:
        options = {"n_features": 8, "n_informative": 5, "n_redundant": 0, "flip_y": 0.05}
        return datasets.make_classification(n, random_state=0, **options)
    X, y = datasets.make_friedman1(n, n_features=8, noise=1.0, random_state=0)
    if model in COUNTERS:
        y = np.random.default_rng(0).poisson(np.exp(0.15 * y))
    return X, y


def regression_set(data: Path, name: str) -> tuple[Array, Array]:
    if name == "diabetes":
        return datasets.load_diabetes(return_X_y=True)
    table = read_table(data, name)
    return table[:, :-1], table[:, -1]


SETS: dict[str, tuple[tuple[str, ...], Callable[[Path], tuple[Array, Array]]]] = {
    **{
        name: (REGRESSORS, functools.partial(regression_set, name=name))
        for name in ("diabetes", "yacht", "housing", "energy", "concrete")
    },
    "abalone": (COUNTERS, read_abalone),
    "iris": (CLASSIFIERS, lambda data: datasets.load_iris(return_X_y=True)),
    "breast_cancer": (CLASSIFIERS, lambda data: datasets.load_breast_cancer(return_X_y=True)),
    "moons": (
        CLASSIFIERS,
        lambda data: datasets.make_moons(1000, noise=0.3, random_state=0),
    ),
    "wine": (CLASSIFIERS, lambda data: datasets.load_wine(return_X_y=True)),
}


def split(X: Array, y: Array, seed: int, is_class: bool) -> list[Array]:
    """At most N_TRAIN rows, two thirds of them all, and others; inputs in units of the first."""
    n_train = min(N_TRAIN, 2 * len(y) // 3)
    n_test = min(N_TEST, len(y) - n_train)
    labels = y if is_class else None
    parts = train_test_split(
        X, y, train_size=n_train, test_size=n_test, random_state=seed, stratify=labels
    )
    mean, std = parts[0].mean(0), parts[0].std(0)
    scale = np.where(std > 0.0, std, 1.0)
    return [(parts[0] - mean) / scale, (parts[1] - mean) / scale, *parts[2:]]


# --- scores ---------------------------------------------------------------------------------------
def scores(model: Any, name: str, X: Array, y: Array, unit: float) -> Row:
    """Nats per row, for a target in units of its deviation, and accuracy or RMSE."""
    if name in CLASSIFIERS:
        nats = log_loss(y, model.predict_proba(X), labels=model.classes_)
        return {"nats": nats, "accuracy": model.score(X, y)}
    if "sklearn" in name or "drop-in" in name:
        mean, std = model.predict(X, return_std=True)
        log_density = -0.5 * (np.log(2 * np.pi * std**2) + ((y - mean) / std) ** 2)
    else:
        log_density = model.log_predictive_density(X, y)
    nats = -np.mean(log_density) - (0.0 if name in COUNTERS else np.log(unit))
    return {"nats": nats, "rmse": float(np.sqrt(np.mean((y - model.predict(X)) ** 2))) / unit}


def fitted(model: Any, X: Array, y: Array) -> float:
    """CPU seconds of a fit."""
    with Clock() as clock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return clock.cpu


# --- parts ----------------------------------------------------------------------------------------
def times(args: argparse.Namespace) -> Iterator[Row]:
    for name, n, bar in TIMED:
        if name not in args.models:
            continue
        X, y = made_rows(name, n)
        make = MODELS[name]
        if "-all" not in name:
            fitted(make(args.seed, X.shape[1]), *made_rows(name, 20))
        seconds = min(fitted(make(args.seed, X.shape[1]), X, y) for _ in range(args.repeats))
        scaled = seconds * gflops() / REFERENCE_GFLOPS
        yield {
            "part": "time",
            "set": "made",
            "model": name,
            "n": n,
            "seed": args.seed,
            "cpu_s": seconds,
            "scaled_s": scaled,
            "bar": bar,
        }


def qualities(args: argparse.Namespace) -> Iterator[Row]:
    for set_name, (suitable, read) in SETS.items():
        X, y = read(args.data)
        names = [name for name in suitable if name in args.models]
        for seed in args.seeds if names else ():
            X_train, X_test, y_train, y_test = split(X, y, seed, suitable is CLASSIFIERS)
            unit = float(np.std(y_train))
            for name in names:
                model = MODELS[name](seed, X.shape[1])
                seconds = fitted(model, X_train, y_train)
                yield {
                    "part": "quality",
                    "set": set_name,
                    "model": name,
                    "n": len(y_train),
                    "seed": seed,
                    "cpu_s": seconds,
                    "scaled_s": seconds * gflops() / REFERENCE_GFLOPS,
                    **scores(model, name, X_test, y_test, unit),
                }


def compare(rows: pd.DataFrame, before: pd.DataFrame) -> None:
    """Print means over splits now and before, and whether any average is worse by .01 nats."""
    keys = ["set", "model", "seed"]
    both = rows.merge(before[before.part == "quality"], on=keys, suffixes=("", "_before"))
    for by in (["model"], ["set", "model"]):
        means = both.groupby(by)[["nats_before", "nats", "cpu_s_before", "cpu_s"]].mean()
        means["worse"] = means.nats - means.nats_before
        print(means.round(4).to_string())


def main() -> None:
    arguments = parser(__doc__, "bench_small_fits.csv")
    add_data(arguments)
    arguments.add_argument("--parts", nargs="+", default=["time", "quality"])
    arguments.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments.add_argument("--repeats", type=int, default=2)
    arguments.add_argument("--against", type=Path, help="the CSV of an earlier run")
    args = arguments.parse_args()
    set_threads(args.threads)
    rows: list[Row] = []
    for part, measure in (("time", times), ("quality", qualities)):
        for row in measure(args) if part in args.parts else ():
            print({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()})
            rows.append(row)
    write_csv(args.output, rows)
    quality = pd.DataFrame([row for row in rows if row["part"] == "quality"])
    if args.against is not None and len(quality):
        compare(quality, pd.read_csv(args.against))


if __name__ == "__main__":
    main()
