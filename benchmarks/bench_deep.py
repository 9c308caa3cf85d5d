"""Claim: a second layer pays where functions are rough and rows are many, and seldom harms.

Parts, each job in a process of its own:

    large    two layers and one, with the same number of points, on the large tables; one layer
             again with the wall-clock time of two
    small    the same on the small tables, by default ten splits
    bounds   inducing points in both layers: SVGP with M, SOLVE-GP with M + M, SVGP with 2M
    digits   hidden images, or none, on the split of bench_classification.py

    python benchmarks/bench_deep.py --data DIR --threads 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from _common import Row, Split, add_data, add_parts, load_split, parser, run_parts
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from skgpstoch import ConvolutionalGPClassifier, DeepGPRegressor, SVGPRegressor

M = 100
LARGE = ("protein", "kin40k", "elevators", "pol", "bike")
SMALL = ("energy", "yacht", "concrete", "housing")
JOBS: dict[str, list[Any]] = {
    "large": list(LARGE),
    "small": [[name, split] for name in SMALL for split in range(10)],
    "bounds": [["svgp", 64, 0], ["solve", 64, 64], ["svgp", 128, 0]],
    "digits": [[(), 1.0], [(), 0.1], [(4,), 1.0], [(4,), 0.1]],
}


def scores(model: Any, data: Split) -> Row:
    """Of a fit, in nats per row and units of the standardised target."""
    start = time.perf_counter()
    model.fit(data.X_train, data.y_train)
    row: Row = {"model": type(model).__name__, "fit_s": time.perf_counter() - start}
    row["n_iter"] = model.n_iter_
    start = time.perf_counter()
    row["rmse"] = np.sqrt(np.mean(np.square(model.predict(data.X_test) - data.y_test)))
    row["predict_s"] = time.perf_counter() - start
    row["nlpd"] = -np.mean(model.log_predictive_density(data.X_test, data.y_test))
    n = len(data.y_train)
    return row | {"bound_per_row": model.log_marginal_likelihood_value_ / n}


def large(args: argparse.Namespace, name: str) -> list[Row]:
    data, options = load_split(args.data, name), {"n_inducing": M, "random_state": args.seed}
    deep = scores(DeepGPRegressor(**options), data)
    shallow = scores(SVGPRegressor(**options), data)
    epochs = max(1, int(shallow["n_iter"] * deep["fit_s"] / shallow["fit_s"]))
    longer = scores(SVGPRegressor(**options, max_iter=epochs), data)
    return [{"data": name, **row} for row in (deep, shallow, longer)]


def small(args: argparse.Namespace, name: str, split: int) -> list[Row]:
    data, options = load_split(args.data, name, split), {"n_inducing": M, "random_state": args.seed}
    models = DeepGPRegressor(**options), SVGPRegressor(**options)
    return [{"data": name, "split": split, **scores(model, data)} for model in models]


def bounds(
    args: argparse.Namespace, posterior: str, n_inducing: int, n_orthogonal: int
) -> list[Row]:
    model = DeepGPRegressor(
        posterior=posterior, n_inducing=n_inducing, max_iter=60, random_state=args.seed
    )
    if n_orthogonal:
        model.set_params(n_orthogonal=n_orthogonal)
    row = {"posterior": posterior, "M": n_inducing, "M2": n_orthogonal}
    row |= scores(model, load_split(args.data, "kin40k"))
    return [row | {"bound_error_per_row": model.elbo_std_ / 36_000}]


def digits(args: argparse.Namespace, hidden_channels: tuple[int, ...], beta: float) -> list[Row]:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.25, random_state=args.seed, stratify=y
    )
    model = ConvolutionalGPClassifier(
        hidden_channels=hidden_channels, n_inducing=64, beta=beta, random_state=args.seed
    )
    start = time.perf_counter()
    model.fit(X, y)
    row: Row = {"hidden_channels": str(hidden_channels), "beta": beta}
    row["fit_s"] = time.perf_counter() - start
    p = model.predict_proba(X_test)
    row["accuracy"] = np.mean(model.classes_[p.argmax(1)] == y_test)
    row["log_loss"] = log_loss(y_test, p, labels=model.classes_)
    return [row | {"bound_per_row": model.log_marginal_likelihood_value_ / len(y)}]


def main() -> None:
    arguments = parser(__doc__, "bench_deep.csv")
    add_data(arguments)
    add_parts(arguments, JOBS)
    run_parts(arguments, JOBS, large, small, bounds, digits)


if __name__ == "__main__":
    main()
