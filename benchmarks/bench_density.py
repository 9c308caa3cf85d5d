"""Measures densities on tables: ours beside boosted trees, networks, forests and support vectors.

Regression: NLPD (nats per row), CRPS and RMSE of the standardised target (of flights in minutes),
coverage of the central 95 % and 80 % intervals in per cent, seconds of the fit. The rivals are
Gaussian: NGBoost and CatBoost learn a variance for each row; HistGradientBoosting and MLP have one,
the mean square of the errors on 10 % held-out training rows, and are then fitted to all. CRPS is
in closed form for them, and for ours, of any shape, an average over quantiles.

Classification (``--classification``): log-loss, accuracy, Brier score and expected calibration
error (15 bins of the largest probability), with what it would be on average of as many labels that
are drawn with the predicted probabilities, and seconds of the fit.

Inputs are standardised for all; flights are encoded as in the quick start. The large UCI sets are
cut to ``--rows`` training rows, flights to 60,000, or 20,000 for classes. Every row is added to
the CSV when it is there.

CatBoost is among the extras "benchmarks"; NGBoost, which needs an older pandas, is "rivals".

    python benchmarks/bench_density.py --data DIR
    python benchmarks/bench_density.py --data DIR --sets flights --all-flights --models SCGD MLP
    python benchmarks/bench_density.py --data DIR --classification
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    Array,
    Clock,
    Row,
    Split,
    add_data,
    append_csv,
    environment,
    set_threads,
)
from _peers import CatBoostDensity, ConstantVariance, NaturalGradientBoosting, catboost_settings
from _tables import CLASSIFICATION, REGRESSION, SEED, Choice, classification, regression
from bench_classification import class_scores
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import skgpstoch
from skgpstoch.metrics import (
    central_interval,
    continuous_ranked_probability_score,
    interval_coverage,
    negative_log_predictive_density,
)

Registry = dict[str, Callable[[], Any]]
COVERAGES = (0.95, 0.8)
N_LEVELS = 100  # of quantiles; even, as an interval has two


# --- estimators -----------------------------------------------------------------------------------
def catboost_classifier() -> Any:
    from catboost import CatBoostClassifier  # an extra

    return CatBoostClassifier(**catboost_settings(SEED))


def network() -> Any:
    layers = (128, 128)
    perceptron = MLPRegressor(hidden_layer_sizes=layers, early_stopping=True, random_state=SEED)
    return make_pipeline(StandardScaler(), perceptron)


OUR_REGRESSORS: Registry = {
    "SCGD": lambda: skgpstoch.SCGDGaussianProcessRegressor(random_state=SEED),
    "DLM": lambda: skgpstoch.DLMRegressor(n_inducing=256, beta=[0.01, 0.1, 1], random_state=SEED),
    "auto": lambda: skgpstoch.AutoGaussianProcessRegressor(random_state=SEED),
}
REGRESSORS: Registry = {
    "NGBoost": lambda: NaturalGradientBoosting(SEED),
    "CatBoost": lambda: CatBoostDensity(SEED),
    "HistGradientBoosting": lambda: ConstantVariance(
        HistGradientBoostingRegressor(random_state=SEED), SEED, refit=True
    ),
    "MLP": lambda: ConstantVariance(network(), SEED, refit=True),
}
OUR_CLASSIFIERS: Registry = {
    "SVGP": lambda: skgpstoch.SVGPClassifier(random_state=SEED),
    "auto": lambda: skgpstoch.AutoGaussianProcessClassifier(random_state=SEED),
}
CLASSIFIERS: Registry = {
    "HistGradientBoosting": lambda: HistGradientBoostingClassifier(random_state=SEED),
    "CatBoost": catboost_classifier,
    "calibrated SVC": lambda: make_pipeline(StandardScaler(), CalibratedClassifierCV(SVC())),
    "RandomForest": lambda: RandomForestClassifier(random_state=SEED),
}


# --- scores ---------------------------------------------------------------------------------------
def gaussian_densities(model: Any, X: Array, y: Array) -> Row:
    """Scores of a rival."""
    mean, std = model.predict(X, return_std=True)
    std = np.broadcast_to(std, mean.shape)
    return {
        "nlpd": negative_log_predictive_density(y, mean, std),
        "crps": continuous_ranked_probability_score(y, mean, std),
        "rmse": root_mean_squared_error(y, mean),
        **coverages(y, lambda coverage: central_interval(mean, std, coverage)),
    }


def our_densities(model: Any, X: Array, y: Array) -> Row:
    """Scores of densities of any shape, from what our estimators say of them."""
    return {
        "nlpd": -float(np.mean(model.log_predictive_density(X, y))),
        "crps": crps_of_quantiles(model, X, y),
        "rmse": root_mean_squared_error(y, model.predict(X)),
        **coverages(y, lambda coverage: model.predict_interval(X, coverage)),
    }


def coverages(y: Array, interval: Callable[[float], Array]) -> Row:
    """Per cent of the rows inside the central intervals."""
    return {
        f"coverage_{100 * coverage:.0f}": 100 * interval_coverage(y, interval(coverage))
        for coverage in COVERAGES
    }


def crps_of_quantiles(model: Any, X: Array, y: Array) -> float:
    """CRPS = 2 ∫ pinball loss of the α-quantile dα, by the midpoint rule."""
    total = 0.0
    for tail in (np.arange(N_LEVELS // 2) + 0.5) / N_LEVELS:  # α = tail, and 1 − tail
        for level, quantile in zip(
            (tail, 1 - tail), model.predict_interval(X, 1 - 2 * tail).T, strict=True
        ):
            error = y.astype(np.float64) - quantile
            total += 2 / N_LEVELS * float(np.mean(np.maximum(level * error, (level - 1) * error)))
    return total


def in_units(scores: Row, unit: float) -> Row:
    """Scores of a target that was divided by ``unit``, as of the target itself."""
    return {
        **scores,
        "nlpd": scores["nlpd"] + np.log(unit),
        "crps": scores["crps"] * unit,
        "rmse": scores["rmse"] * unit,
    }


# --- the two parts --------------------------------------------------------------------------------
def fitted(make: Callable[[], Any], data: Split) -> tuple[Any, Row]:
    """The estimator, and what its fit took."""
    model = make()
    with Clock() as clock:
        model.fit(data.X_train, data.y_train)
    return model, {"cpu_s": clock.cpu, "wall_s": clock.wall}


def sizes(data: Split) -> Row:
    n, d = data.X_train.shape
    return {"n_train": n, "n_features": d, "n_test": len(data.y_test)}


def regressions(args: argparse.Namespace, choice: Choice) -> Iterator[Row]:
    """A row for each set and model."""
    registry = OUR_REGRESSORS | REGRESSORS
    for name in args.sets:
        data, unit = regression(name, choice)
        for method in args.models:
            model, times = fitted(registry[method], data)
            score = our_densities if method in OUR_REGRESSORS else gaussian_densities
            scores = in_units(score(model, data.X_test, data.y_test), unit)
            yield {"set": name, "model": method, **sizes(data), **scores, **times}


def chance_ece(proba: Array, n_draws: int = 200) -> float:
    """The calibration error, on average, of labels that are drawn with these probabilities."""
    rng, below = np.random.default_rng(0), proba.cumsum(1)
    draws = (
        (rng.uniform(size=(len(proba), 1)) > below).sum(1).clip(max=proba.shape[1] - 1)
        for _ in range(n_draws)
    )
    return float(np.mean([class_scores(y, proba)["ece"] for y in draws]))


def classifications(args: argparse.Namespace, choice: Choice) -> Iterator[Row]:
    """A row for each set and model."""
    registry = OUR_CLASSIFIERS | CLASSIFIERS
    for name in args.sets:
        data = classification(name, choice)
        for method in args.models:
            model, times = fitted(registry[method], data)
            proba = np.asarray(model.predict_proba(data.X_test), np.float64)
            scores = class_scores(data.y_test, proba)
            scores["log_loss"] = log_loss(data.y_test, proba)  # forests say 0: at most 36 a row
            scores["ece_if_calibrated"] = chance_ece(proba)
            yield {"set": name, "model": method, **sizes(data), **scores, **times}


# --- command line ---------------------------------------------------------------------------------
def show(row: Row) -> None:
    """Print one line of the table."""
    numbers = {k: v for k, v in row.items() if isinstance(v, float)}
    print(
        f"{row['set']:13} {row['model']:21} {row['n_train']:>7}  "
        + "  ".join(f"{name} {value:.4g}" for name, value in numbers.items()),
        flush=True,
    )


def parse() -> argparse.Namespace:
    """The arguments; sets and models depend on the part, so that they are checked after it."""
    formatter = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add_data(arguments)
    add = arguments.add_argument
    add("--classification", action="store_true", help="classes instead of numbers")
    add("--sets", nargs="+", help="default: all of the part")
    add("--models", nargs="+", help="default: all of the part, ours first")
    add("--split", type=int, default=0, help="of the UCI sets")
    add("--rows", type=int, default=12_000, help="training rows of the large UCI sets; 0: all")
    add("--all-flights", action="store_true", help="all 294,611 training rows of flights")
    add("--csv", type=Path, help="rows are added; default: bench_density[_classification].csv")
    add("--threads", type=int, default=1, help="threads of torch, BLAS, OpenMP, CatBoost")
    args = arguments.parse_args()
    part = (CLASSIFICATION, OUR_CLASSIFIERS | CLASSIFIERS, "bench_density_classification.csv")
    if not args.classification:
        part = (REGRESSION, OUR_REGRESSORS | REGRESSORS, "bench_density.csv")
    for option, known in zip(("sets", "models"), part, strict=False):
        given = getattr(args, option) or list(known)
        setattr(args, option, given)
        if not set(given) <= set(known):
            arguments.error(f"--{option}: choose from {', '.join(known)}")
    args.csv = args.csv or Path(part[-1])
    return args


def main() -> None:
    args = parse()
    set_threads(args.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)  # the perceptron's, after 200 epochs
    choice = Choice(args.data, args.split, args.rows, args.all_flights)
    part = classifications if args.classification else regressions
    for row in part(args, choice):
        show(row)
        where = {"split": args.split, "seed": SEED, **environment("catboost", "ngboost")}
        append_csv(args.csv, {**row, **where})


if __name__ == "__main__":
    main()
