"""The floor of the race: a linear model on the encoded columns, which every fit should be ahead of.

Categories are one-hot there, so it is ridge regression with normal errors, or logistic regression,
as many would try first. Each row is predicted by a model of the other folds. It is not part of the
mixture, whose processes have linear kernels of their own, but it is in the table of scores, and a
fit that is clearly behind it says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold

from ..data.arrays import Scaling
from ..data.deadline import Deadline
from ..data.findings import Finding
from ..data.held_out import HeldOutPredictions, of_classes
from ..data.rows import Data
from ..maths.gaussian import LOG_2PI
from ..training.interrupts import was_interrupted
from .race import Judged

FLOOR = "linear"
FOLDS_OF_FLOOR = 5
MOST_TRAINED = 10_000  # rows that a linear model learns from
MOST_NUMBERS = 3_000_000  # in these rows, beyond which there is no floor
SECONDS_FOR_FLOOR = 1.0  # left of max_time, for a floor
PENALTIES = np.logspace(-2.0, 4.0, 7)
LOGISTIC_STEPS = 10_000  # of logistic regression, which needs some hundred
BEHIND = 0.02  # nats per row by which a fit may be behind
CERTAIN = 2.0  # standard errors by which it must be
FEWEST_ROWS = 10
FEWEST_JUDGED = 100  # held-out rows that may say that a fit is behind


class Floor(NamedTuple):
    """A linear model's predictions of rows that it has not seen."""

    held_out_: HeldOutPredictions


def floor_of(data: Data, is_classifier: bool, seed: int, deadline: Deadline | None) -> list[Judged]:
    """Return the floor for encoded rows; nothing if there are too few, or there is no time."""
    began, n = time.perf_counter(), len(data)
    is_late = deadline is not None and deadline.left() < SECONDS_FOR_FLOOR
    if (
        is_late
        or was_interrupted()
        or n < FEWEST_ROWS
        or min(n, MOST_TRAINED) * data.X.shape[1] > MOST_NUMBERS
    ):
        return []
    weight = np.ones(n) if data.weight is None else data.weight
    X = scaled(data.X, Scaling.standard(data.X, data.weight))
    rng = np.random.default_rng(seed)
    folds = [
        (rng.permutation(others)[:MOST_TRAINED], own)
        for others, own in KFold(FOLDS_OF_FLOOR, shuffle=True, random_state=seed).split(X)
    ]
    found = (of_labels if is_classifier else of_numbers)(X, data.y, weight, folds)
    if found is None:
        return []
    return [Judged(FLOOR, Floor(found), time.perf_counter() - began)]


def scaled(A: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Return (A − offset)/scale."""
    return np.asarray((A - scaling.offset) / scaling.scale)


def of_labels(X: np.ndarray, y: np.ndarray, weight: np.ndarray, folds: list) -> Any:
    """Predict the class of each row; None if a fold lacks a class."""
    classes, codes = np.unique(y, return_inverse=True)
    p = np.empty((len(X), len(classes)))
    for others, own in folds:
        if len(np.unique(codes[others])) < len(classes):
            return None
        model = LogisticRegression(max_iter=LOGISTIC_STEPS)
        p[own] = model.fit(X[others], codes[others], weight[others]).predict_proba(X[own])
    rows = np.arange(len(X))
    return of_classes(rows, np.log(np.maximum(p[rows, codes], 1e-300)), p, codes)


def of_numbers(X: np.ndarray, y: np.ndarray, weight: np.ndarray, folds: list) -> Any:
    """Predict the distribution of each row's y, whose variance other folds' errors tell."""
    Y = y.reshape(len(y), -1).astype(np.float64)
    scaling = Scaling.standard(Y, weight)
    Y = scaled(Y, scaling)
    mean = np.empty_like(Y)
    for others, own in folds:
        model = RidgeCV(PENALTIES).fit(X[others], Y[others], weight[others])
        mean[own] = model.predict(X[own]).reshape(len(own), -1)
    error, std = Y - mean, np.empty_like(Y)
    for _, own in folds:
        rest = np.delete(np.arange(len(X)), own)
        variance = np.average(np.square(error[rest]), axis=0, weights=weight[rest])
        std[own] = np.sqrt(np.maximum(variance, 1e-18))
    z = error / std
    log_density = -(0.5 * (np.square(z) + LOG_2PI) + np.log(std)).sum(1)
    rows = np.arange(len(X))
    found = HeldOutPredictions(rows, log_density, error, std, np.zeros_like(std), mean, ndtr(z))
    return found.in_units(scaling)


def of_floor(floor: list[Judged], held_out: HeldOutPredictions) -> Iterator[Finding]:
    """Yield whether a fit's predictions of rows are behind the floor's."""
    for each in floor:
        rows = np.intersect1d(held_out.rows, each.model.held_out_.rows)
        gain = held_out.of(rows).log_density - each.model.held_out_.of(rows).log_density
        mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(rows)))
        found = Finding("linear model", "X", mean, -BEHIND, category=ConvergenceWarning)
        if len(rows) >= FEWEST_JUDGED and mean < -BEHIND and mean < -CERTAIN * error:
            found = found._replace(
                severity="problem",
                text=f"A linear model predicts rows that were held out better, by {-mean:.2g} "
                "nats per row.",
                advice="Raise max_time if it is set. Otherwise use the linear model: Ridge or "
                "LogisticRegression on one-hot columns.",
            )
        yield found
