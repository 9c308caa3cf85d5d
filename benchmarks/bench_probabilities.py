"""Claim: the default's classes are ahead of boosting, networks and logistic regression.

Log-loss (nats per row), accuracy, Brier score and expected calibration error (15 bins of the
largest probability), with what that would be, on average, of as many labels that are drawn with the
predicted probabilities; and seconds of the fit. Ten sets: four of scikit-learn's and one of five
classes that is made (20 % for tests, stratified), abalone, flights (late or not), and elevators,
protein and kin40k in thirds of the target.

RealMLP is stopped by log-loss and trained without label smoothing, as its authors advise where
probabilities matter.

The bars: log-loss ahead of CatBoost, HistGradientBoosting, RealMLP and logistic regression on nine
of ten; calibration error within chance + .01.

    python benchmarks/bench_probabilities.py --data DIR
    python benchmarks/bench_probabilities.py --data DIR --models auto --csv a.csv --against b.csv
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from _common import Array, Row, add_data
from _contest import (
    Data,
    Task,
    check_models,
    contest_parser,
    matched,
    print_summary,
    read_rows,
    run,
)
from _rivals import CLASSIFIERS, OUR_CLASSIFIERS
from _tables import CLASSIFICATION, SEED, Choice, classification
from bench_classification import class_scores
from sklearn.metrics import log_loss

RIVALS = ("LogisticRegression", "HistGradientBoosting", "CatBoost", "RealMLP")
MODELS = ("auto", *RIVALS)
CHANCE = 0.01  # that the calibration error may be above what chance alone makes


def read(name: str, choice: Choice) -> Data:
    """Training and test rows of a set."""
    return Data(*classification(name, choice))


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """All sets, split by split."""
    for split in args.splits:
        choice = Choice(args.data, split, args.rows, args.flights)
        for name in args.sets:
            task = {"set": name, "split": split, "rows": args.rows}
            yield Task(task, args.seed, functools.partial(read, name, choice))


def score(model: Any, data: Data) -> Row:
    """Scores of a classifier's probabilities."""
    proba = np.asarray(model.predict_proba(data.X_test), np.float64)
    proba /= proba.sum(1, keepdims=True)
    scores = class_scores(data.y_test, proba)
    scores["log_loss"] = log_loss(data.y_test, proba)  # forests say 0: at most 36 a row
    scores["ece_if_calibrated"] = chance_ece(proba)
    return scores


def chance_ece(proba: Array, n_draws: int = 200) -> float:
    """The calibration error, on average, of labels that are drawn with these probabilities."""
    rng, below = np.random.default_rng(0), proba.cumsum(1)
    draws = (
        (rng.uniform(size=(len(proba), 1)) > below).sum(1).clip(max=proba.shape[1] - 1)
        for _ in range(n_draws)
    )
    return float(np.mean([class_scores(y, proba)["ece"] for y in draws]))


def verdict(rows: pd.DataFrame, ours: str) -> None:
    """Print which bars hold."""
    scores = rows.pivot_table(index="set", columns="model", values="log_loss")
    rivals = [name for name in RIVALS if name in scores]
    if rivals:
        behind = scores.index[scores[ours] > scores[rivals].min(axis=1)]
        passed = "pass" if len(behind) <= 1 else "FAIL"
        print(f"log-loss: behind on {len(behind)} of {len(scores)} ({', '.join(behind)}): {passed}")
    table = rows.pivot_table(index="set", columns="model", values=["ece", "ece_if_calibrated"])
    excess = (table["ece"] - table["ece_if_calibrated"])[ours]
    above = [f"{name} +{excess[name]:.3f}" for name in excess.index[excess > CHANCE]]
    passed = "FAIL" if above else "pass"
    print(f"calibration error above chance + {CHANCE}: {', '.join(above) or 'none'}: {passed}")


def main() -> None:
    arguments = contest_parser(__doc__, "bench_probabilities.csv", CLASSIFICATION)
    add_data(arguments)
    add = arguments.add_argument
    add("--splits", nargs="+", type=int, default=[0, 1, 2])
    add("--rows", type=int, default=2_500, help="training rows of the large UCI sets; 0: all")
    add("--flights", type=int, default=2_500, help="training rows of flights; 0: all 294,611")
    add("--seed", type=int, default=SEED, help="random_state of every method")
    args = arguments.parse_args()
    args.models = args.models or list(MODELS)
    registry = OUR_CLASSIFIERS | CLASSIFIERS
    check_models(arguments, args, registry)
    if not args.summary:
        run(args, tasks(args), registry, score)
    rows = matched(read_rows(args), args.ours)
    print_summary(rows, args.ours, ("log_loss", "brier", "ece"))
    verdict(rows, args.ours)


if __name__ == "__main__":
    main()
