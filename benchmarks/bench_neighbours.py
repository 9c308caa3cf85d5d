"""Claim: the exact process on nearest neighbours is as good as the exact one, at any size.

Parts, each job in a fresh process:

    houses   sales by longitude and latitude, beside the published predictions of the exact
             process: distance of the means within .02, log score of at most .2567
    outside  the easternmost 15 % of the same sales, from the others; beside the exact process with
             a kernel that exact likelihood fitted to 2,000 rows. (The published test set outside
             the sampled area is not at hand.)
    tables   UCI tables: kin40k −1.1 in 20 s, protein .32 in 15 s, bike RMSE .004; 95 % intervals
             hold 93 to 97 % of each fifth of the rows by predicted std
    field    a Matérn field in the plane with known hyper-parameters, 8,000 rows: within .002 nats
             of the exact process, in 3 s
    large    the same field with 100,000 rows in 15 s and 10⁶ in 60 s, under 3 GB. The scores to
             compare with are those of the true kernel on 256 neighbours
    peers    GPBoost's Vecchia and GPyTorch's VNNGP on the field, where they are installed
    classes  NNGPClassifier beside SVGPClassifier, HistGradientBoosting and CatBoost (where it is
             installed) on sets of bench_probabilities.py: a lower log-loss on rough boundaries

"gaussian" is the score of N(mean, std²), "nlpd" that of the predicted distribution. "seconds" are
those of fit and predictions: of the CPU if they say so, because other programs may run. Memory is
VmHWM after the data were there (Linux). One thread: set OMP_NUM_THREADS=1.

    python benchmarks/bench_neighbours.py --data ../shared/data
    python benchmarks/bench_neighbours.py --data ../shared/data --parts tables --only kin40k bike
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import (
    Array,
    Clock,
    Row,
    Split,
    add_data,
    add_parts,
    gaussian_scores,
    load_split,
    parser,
    peak,
    run_parts,
)
from _tables import Choice, classification
from bench_classification import class_scores
from scipy import fft
from scipy.linalg import cho_solve, cholesky, solve_triangular
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel

from skgpstoch import GaussianProcessRegressor, NNGPClassifier, NNGPRegressor, SVGPClassifier

TABLES = ["kin40k", "protein", "bike", "elevators", "pol"]
CLASSES = ["wine", "five", "abalone", "elevators", "protein"]
CLASS_ROWS = 2_500  # for training, of the large sets
CLASSIFIERS = ["NNGPClassifier", "SVGPClassifier", "HistGradientBoosting", "CatBoost"]
SCALE, NOISE = 0.05, 0.05  # of the field: length-scale on the unit square, and noise variance
LOSSES = ("vecchia", "leave_one_out")
KERNELS: dict[str, Kernel | None] = {
    "default": None,
    "Matern-3/2 ARD": ConstantKernel() * Matern([3e3, 3e3], (1e2, 1e6), nu=1.5) + WhiteKernel(0.1),
    "Matern-3/2": ConstantKernel() * Matern(3e3, (1e2, 1e6), nu=1.5) + WhiteKernel(0.1),
}
JOBS: dict[str, list[Any]] = {
    "houses": [[kernel, loss] for kernel in KERNELS for loss in LOSSES],
    "outside": ["exact", *([kernel, loss] for kernel in KERNELS for loss in LOSSES)],
    "tables": TABLES,
    "field": [8_000],
    "large": [100_000, 1_000_000],
    "classes": [[name, model] for name in CLASSES for model in CLASSIFIERS],
    "peers": [
        ["NNGPRegressor", 32],
        ["NNGPRegressor, Matern-3/2", 32],
        ["NNGPRegressor, Matern-3/2", 16],
        ["GPBoost", 20],
        ["GPBoost", 32],
        ["VNNGP", 32],
    ],
}


# --- fits and their scores ------------------------------------------------------------------------
def fitted(model: Any, data: Split) -> tuple[Row, Array]:
    """Fit and predict; return the scores with seconds, and the means."""
    with Clock() as fit:
        model.fit(data.X_train, data.y_train)
    with Clock() as prediction:
        mean, std = model.predict(data.X_test, return_std=True)
    row = scored(data.y_test, mean, std, fit, prediction)
    row["nlpd"] = -model.log_predictive_density(data.X_test, data.y_test).mean()
    low, high = model.predict_interval(data.X_test, coverage=0.95).T
    is_inside = (low <= data.y_test) & (data.y_test <= high)
    row["coverage"] = is_inside.mean()
    for number, fifth in enumerate(np.array_split(np.argsort(std, kind="stable"), 5), start=1):
        row[f"coverage_{number}"] = is_inside[fifth].mean()
    row["n_train"], row["n_test"] = len(data.y_train), len(data.y_test)
    row["kernel"], row["likelihood"] = str(model.kernel_), str(model.likelihood_)
    return row, mean


def scored(y: Array, mean: Array, std: Array, fit: Clock, prediction: Clock) -> Row:
    """Return the scores of normal predictions, and seconds."""
    found = gaussian_scores(y, mean, std)
    return {
        "rmse": found.rmse,
        "gaussian": found.nlpd,
        "fit_seconds": fit.wall,
        "fit_cpu_seconds": fit.cpu,
        "predict_seconds": prediction.wall,
        "predict_cpu_seconds": prediction.cpu,
    }


# --- houses ---------------------------------------------------------------------------------------
def read_houses(data: Path, name: str) -> Array:
    return np.loadtxt(data / "houses" / f"{name}.csv.gz", delimiter=",", skiprows=1)


def houses(args: argparse.Namespace, kernel: str, loss: str) -> list[Row]:
    """Test rows inside the sampled area."""
    train, test = (read_houses(args.data, f"house_{name}") for name in ("train", "interpolation"))
    exact = read_houses(args.data, "exact_interpolation")
    data = Split(train[:, :2], train[:, 2], test[:, :2], test[:, 2])
    exact_mean = exact[:, 0] + data.y_train.mean()
    model = NNGPRegressor(KERNELS[kernel], loss=loss, random_state=args.seed)
    row, mean = fitted(model, data)
    of_exact = gaussian_scores(data.y_test, exact_mean, np.sqrt(exact[:, 1]))
    row["from_exact"] = math.sqrt(np.mean((mean - exact_mean) ** 2))
    row |= {"exact_rmse": of_exact.rmse, "exact_gaussian": of_exact.nlpd}
    return [{"model": kernel, "loss": loss, **row}]


def outside(args: argparse.Namespace, kernel: str, loss: str = "") -> list[Row]:
    """Test rows east of all training rows."""
    table = read_houses(args.data, "house_train")
    is_east = table[:, 0] > np.quantile(table[:, 0], 0.85)
    (X_test, y_test), (X, y) = ((t[:, :2], t[:, 2]) for t in (table[is_east], table[~is_east]))
    data = Split(X, y, X_test, y_test)
    if kernel == "exact":
        return [{"model": kernel, "loss": "–", **exact_outside(data, args.seed)}]
    model = NNGPRegressor(KERNELS[kernel], loss=loss, random_state=args.seed)
    return [{"model": kernel, "loss": loss, **fitted(model, data)[0]}]


def exact_outside(data: Split, seed: int) -> Row:
    """Predict by the exact process with an isotropic Matérn-3/2 kernel."""
    some = np.random.default_rng(seed).permutation(len(data.y_train))[:2_000]
    kernel = KERNELS["Matern-3/2"]
    gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    with Clock() as fit:
        gp.fit(data.X_train[some], data.y_train[some])
    with Clock() as prediction:
        center, scale = data.y_train[some].mean(), data.y_train[some].std()
        r = (data.y_train - center) / scale
        L = cholesky(gp.kernel_(data.X_train), lower=True, overwrite_a=True, check_finite=False)
        k = gp.kernel_(data.X_test, data.X_train)
        mean = center + scale * (k @ cho_solve((L, True), r))
        half = solve_triangular(L, k.T, lower=True, check_finite=False)
        var = gp.kernel_.diag(data.X_test) - (half**2).sum(0)
    row = scored(data.y_test, mean, scale * np.sqrt(var), fit, prediction)
    return row | {"kernel": str(gp.kernel_), "n_train": len(data.y_train), "n_test": len(mean)}


# --- tables ---------------------------------------------------------------------------------------
def tables(args: argparse.Namespace, name: str) -> list[Row]:
    """The first split of a UCI table."""
    if name not in args.only:
        return []
    data = load_split(args.data, name)
    row, _ = fitted(NNGPRegressor(random_state=args.seed), data)
    return [{"model": "default", "loss": "auto", "table": name, **row}]


# --- a known field --------------------------------------------------------------------------------
class Field(NamedTuple):
    """Training and test rows of a draw whose kernel is known."""

    data: Split
    kernel: Kernel = ConstantKernel(1.0) * Matern(SCALE, nu=1.5) + WhiteKernel(NOISE)


def drawn_field(n_rows: int, seed: int, n_test: int = 2_000) -> Field:
    """Draw a Matérn-3/2 field at random points of a grid, by circulant embedding."""
    rng = np.random.default_rng(seed)
    size = 1 << (9 if n_rows <= 50_000 else 11)  # points along a unit; a period is two units
    steps = np.minimum(np.arange(2 * size), 2 * size - np.arange(2 * size)) / size
    r = math.sqrt(3.0) / SCALE * np.hypot(steps[:, None], steps[None])
    eigenvalues = fft.rfft2((1.0 + r) * np.exp(-r)).real.clip(0.0)
    white = fft.rfft2(rng.standard_normal(r.shape))
    f = fft.irfft2(np.sqrt(eigenvalues) * white, s=r.shape)
    place = rng.permutation(size * size)[: n_rows + n_test]
    i, j = np.divmod(place, size)
    y = f[i, j] + math.sqrt(NOISE) * rng.standard_normal(len(place))
    X = np.column_stack([i, j]) / size
    return Field(Split(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]))


def field_of(n_rows: int, seed: int) -> Field:
    """Draw it in a process of its own, whose memory is then free."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        drawn = pool.submit(drawn_field, n_rows, seed).result()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    return drawn


def exact_scores(drawn: Field) -> Row:
    """Return the scores of the exact process with the true kernel."""
    X, y, X_test, y_test = drawn.data
    L = cholesky(drawn.kernel(X), lower=True, overwrite_a=True)
    k = drawn.kernel(X_test, X)
    half = solve_triangular(L, k.T, lower=True)
    std = np.sqrt(drawn.kernel.diag(X_test) - (half**2).sum(0))
    found = gaussian_scores(y_test, k @ cho_solve((L, True), y), std)
    return {"exact_rmse": found.rmse, "exact_gaussian": found.nlpd}


def true_kernel_scores(drawn: Field, seed: int) -> Row:
    """Return the scores of the true kernel on 256 neighbours."""
    true = ConstantKernel(1.0, "fixed") * Matern(SCALE, "fixed", nu=1.5)
    model = NNGPRegressor(
        true + WhiteKernel(NOISE, "fixed"), n_neighbors_predict=256, likelihood="gaussian"
    ).set_params(random_state=seed, normalize_y=False)
    row, _ = fitted(model, drawn.data)
    return {"exact_rmse": row["rmse"], "exact_gaussian": row["gaussian"]}


def field(args: argparse.Namespace, n_rows: int) -> list[Row]:
    """The default, with both losses, beside the exact process with the true kernel."""
    drawn = field_of(n_rows, args.seed)
    exact, rows = exact_scores(drawn), []
    for loss in LOSSES:
        row, _ = fitted(NNGPRegressor(loss=loss, random_state=args.seed), drawn.data)
        rows.append({"model": "default", "loss": loss, **row, **exact})
    return rows


def large(args: argparse.Namespace, n_rows: int) -> list[Row]:
    """The default, and the peak of memory."""
    drawn, before = field_of(n_rows, args.seed), peak()
    row, _ = fitted(NNGPRegressor(random_state=args.seed), drawn.data)
    row |= {"before_mb": before, "peak_mb": peak()}
    return [{"model": "default", "loss": "auto", **row, **true_kernel_scores(drawn, args.seed)}]


# --- classes --------------------------------------------------------------------------------------
def classifier(name: str, seed: int) -> Any:
    """A classifier with default settings; None if its package is not installed."""
    if name == "SVGPClassifier":
        return SVGPClassifier(random_state=seed)
    if name == "HistGradientBoosting":
        return HistGradientBoostingClassifier(random_state=seed)
    if name == "NNGPClassifier":
        return NNGPClassifier(random_state=seed)
    if importlib.util.find_spec("catboost") is None:
        return None
    from catboost import CatBoostClassifier

    settings = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}
    return CatBoostClassifier(random_seed=seed, **settings)


def classes(args: argparse.Namespace, table: str, name: str) -> list[Row]:
    """Probabilities of the first split of a set, as in bench_probabilities.py."""
    model = classifier(name, args.seed)
    if model is None:
        return []
    data = classification(table, Choice(args.data, 0, CLASS_ROWS, CLASS_ROWS))
    with Clock() as fit:
        model.fit(data.X_train, data.y_train)
    with Clock() as prediction:
        proba = np.asarray(model.predict_proba(data.X_test), np.float64)
    row = {"model": name, "loss": "–", "table": table, **class_scores(data.y_test, proba)}
    row |= {"fit_seconds": fit.wall, "fit_cpu_seconds": fit.cpu}
    row |= {"predict_seconds": prediction.wall, "predict_cpu_seconds": prediction.cpu}
    return [row | {"n_train": len(data.y_train), "n_test": len(data.y_test)}]


# --- peers ----------------------------------------------------------------------------------------
Peer = Callable[[Split, int, int], Row]


def ours(data: Split, n_neighbors: int, seed: int) -> Row:
    return fitted(NNGPRegressor(n_neighbors=n_neighbors, random_state=seed), data)[0]


def ours_with_kernel(data: Split, n_neighbors: int, seed: int) -> Row:
    """The kernel that the peers have, from an ignorant start."""
    kernel = ConstantKernel() * Matern(1.0, (1e-5, 1e5), nu=1.5) + WhiteKernel(0.1)
    return fitted(NNGPRegressor(kernel, n_neighbors=n_neighbors, random_state=seed), data)[0]


def gpboost(data: Split, n_neighbors: int, seed: int) -> Row:
    """Vecchia with a Matérn-3/2 kernel of one length-scale, as the truth is."""
    import gpboost

    with Clock() as fit:
        model = gpboost.GPModel(
            gp_coords=data.X_train,
            cov_function="matern",
            cov_fct_shape=1.5,
            gp_approx="vecchia",
            num_neighbors=n_neighbors,
            num_parallel_threads=1,
            seed=seed,
        )
        model.fit(y=data.y_train)
    with Clock() as prediction:
        found = model.predict(gp_coords_pred=data.X_test, predict_var=True)
    return scored(data.y_test, found["mu"], np.sqrt(found["var"]), fit, prediction)


def vnngp(data: Split, n_neighbors: int, seed: int) -> Row:
    """GPyTorch's variational process with inducing points at all rows: 60 epochs of Adam."""
    from _vnngp import predicted, trained

    with Clock() as fit:
        model = trained(data.X_train, data.y_train, n_neighbors, seed)
    with Clock() as prediction:
        mean, std = predicted(model, data.X_test)
    return scored(data.y_test, mean, std, fit, prediction)


PEERS: dict[str, tuple[str, Peer]] = {
    "NNGPRegressor": ("skgpstoch", ours),
    "NNGPRegressor, Matern-3/2": ("skgpstoch", ours_with_kernel),
    "GPBoost": ("gpboost", gpboost),
    "VNNGP": ("gpytorch", vnngp),
}


def peers(args: argparse.Namespace, name: str, n_neighbors: int) -> list[Row]:
    """A model on the field of 8,000 rows, if it is installed."""
    package, peer = PEERS[name]
    if importlib.util.find_spec(package) is None:
        return []
    drawn = field_of(8_000, args.seed)
    row = peer(drawn.data, n_neighbors, args.seed)
    exact = exact_scores(drawn)
    return [{"model": name, "n_neighbors": n_neighbors, **row, **exact, "n_train": 8_000}]


if __name__ == "__main__":
    arguments = parser(__doc__, "benchmarks/results/bench_neighbours.csv")
    add_data(arguments)
    add_parts(arguments, JOBS)
    arguments.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    run_parts(arguments, JOBS, houses, outside, tables, field, large, classes, peers)
