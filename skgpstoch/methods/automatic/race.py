"""Fit several models and weigh them by their predictions for held-out rows; a floor for these."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, PredefinedSplit

from ...data.arrays import Scaling
from ...data.deadline import Deadline, seconds_left
from ...data.findings import Finding
from ...data.held_out import HeldOutPredictions, group_folds, of_classes
from ...data.inner_fits import fitted_inside
from ...data.messages import warn
from ...data.rows import Data
from ...estimators.callbacks import Fit, Fits
from ...estimators.context import judged
from ...maths.gaussian import LOG_2PI
from ...training.interrupts import interruptible, keeps_best, tell, was_interrupted
from .stacking import kept_weights, stacking_weights

PRIOR_ROWS = 1.0  # rows in favour of each model, whatever the data
LEAST_WEIGHT = 0.1  # below which a model is not worth the time of its predictions
LEAST_REMAINING = 0.2  # of the time, with less of which left no further model is tried
FEWEST_PREFERRED = 300  # rows that whole models have predicted, which then choose weights
LEAST_GAIN = 0.003  # nats per row from scouts, for networks to follow: *measured* on 32 tables


class Entrant(NamedTuple):
    """A model to be tried in the race.

    Parameters
    ----------
    name : str
        What it is called.
    make : callable
        Makes it, given the seconds that are left.
    scout : callable or None, default=None
        Makes a cheap one, which tells whether the model itself is worth its time.
    is_doubtful : callable or None, default=None
        Tells from the models before it whether that is in doubt; None: always.
    adapt : callable or None, default=None
        Changes the model by what its scout, once judged, tells of the data.
    least_gain : float, default=-inf
        Nats per row that a scout has to add to the score, if that is more than `LEAST_GAIN`.
    is_promising : callable or None, default=None
        Tells from the models before it, the rows and the deadline whether it is worth its time.
    follow : callable or None, default=None
        Changes the model by what the models before it have learned.
    """

    name: str
    make: Callable[[float | None], Any]
    scout: Callable[[float | None], Any] | None = None
    is_doubtful: Callable[[list[Judged], Data], bool] | None = None
    adapt: Callable[[Any, Judged, Data], Any] | None = None
    least_gain: float = -math.inf
    is_promising: Callable[[list[Judged], Data, Deadline | None], bool] | None = None
    follow: Callable[[Any, list[Judged]], Any] | None = None


class Judged(NamedTuple):
    """A fitted model, and the seconds that its fit took."""

    name: str
    model: Any
    seconds: float

    def held_out(self, n_rows: int) -> np.ndarray:
        """Return log densities of rows that it has not seen, (n,); NaN for others."""
        found = getattr(self.model, "held_out_", None)
        return np.full(n_rows, np.nan) if found is None else found.log_densities(n_rows)

    def score(self, data: Data) -> float:
        """Return the mean of these or, if there are none, the bound on the evidence per row."""
        densities = self.held_out(len(data))
        judged = ~np.isnan(densities)
        if not judged.any():
            return float(self.model.log_marginal_likelihood_value_ / data.n_effective)
        weight = None if data.weight is None else data.weight[judged]
        return float(np.average(densities[judged], weights=weight))


def fitted(fit: Fit, name: str, model: Any, data: Data) -> Judged:
    """Fit a model."""
    began = time.perf_counter()
    known = {
        "sample_weight": data.weight,
        "exposure": data.exposure,
        "y_std": data.y_std,
        "groups": data.cluster,
    }
    of_rows = {name: column for name, column in known.items() if column is not None}
    with judged():
        model = fit(model, data.X, data.y, **of_rows)
    return Judged(name, model, time.perf_counter() - began)


def race(
    entrants: list[Entrant], fits: Fits, data: Data, deadline: Deadline | None
) -> tuple[list[Judged], list[Judged]]:
    """Fit models in turn; return those to be mixed, and scouts without a model after them."""
    found: list[Judged] = []
    given_up: list[Judged] = []
    seconds = math.inf if deadline is None else deadline.left()
    for name, make, scout, is_doubtful, adapt, least_gain, is_promising, follow in entrants:
        if found and was_interrupted():  # the interrupted model has warned
            break  # but a first one is needed, which ends early
        if is_promising is not None and not is_promising(found, data, deadline):
            continue
        if found and deadline is not None and deadline.left() < LEAST_REMAINING * seconds:
            warn(
                f"max_time was too short to try {name}: {found[-1].name} took "
                f"{found[-1].seconds:.2g} s. Raise max_time, or give fewer "
                "columns, outputs or classes.",
                ConvergenceWarning,
            )
            break
        tried = None
        try:
            # A scout may spare the model, if there are others, or adapt it.
            in_doubt = bool(found) and (is_doubtful is None or is_doubtful(found, data))
            if scout is not None and (in_doubt or adapt is not None):
                with interruptible():
                    few = scout(seconds_left(deadline))
                    tried = fitted(fits.next(f"{name}, a few"), name, few, data)
                if found and gain_of(tried, found, data) < max(least_gain, LEAST_GAIN):
                    given_up.append(tried)
                    continue
                if was_interrupted():  # its best so far is what there is
                    found.append(tried)
                    break
            with interruptible():
                model = make(seconds_left(deadline))
                if tried is not None and adapt is not None:
                    model = adapt(model, tried, data)
                if follow is not None:
                    model = follow(model, found)
                found.append(better_of(tried, fitted(fits.next(name), name, model, data), data))
        except KeyboardInterrupt:
            if not ((found or tried) and keeps_best()):
                raise
            if tried is not None:
                found.append(tried)
            without = name if tried is None else f"all but a few of {name}"
            tell(f"The fit was interrupted; the model does without {without}.")
            break
    return found, given_up


def better_of(scout: Judged | None, model: Judged, data: Data) -> Judged:
    """Return a model or, if `max_time` cut it, its scout if that predicts unseen rows better.

    *Measured* with two seconds for 692 rows: the networks that followed had 27 of 650 steps, and a
    score 1.9 nats per row below that of their scouts.
    """
    budget = getattr(model.model, "budget_", None)
    if scout is None or budget is None or budget["is_enough"]:
        return model
    densities, weight = held_out_densities([scout, model], data)
    both = ~np.isnan(densities).any(1)
    if not both.any():  # nothing says that the scout is better
        return model
    gain = np.where(both, densities[:, 1] - densities[:, 0], 0.0)
    return model if np.average(gain, weights=weight) >= 0.0 else with_budget_of(model, scout)


def with_budget_of(model: Judged, scout: Judged) -> Judged:
    """Return a scout that says what max_time has cut of the model that it replaces."""
    wanted = {name: model.model.budget_[name] for name in ("all_steps", "all_estimators")}
    scout.model.budget_ = {**scout.model.budget_, **wanted, "is_enough": False}
    return scout._replace(seconds=scout.seconds + model.seconds)


def held_out_densities(
    found: list[Judged], data: Data, preferred: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return log densities (m, J) of rows that no model has seen, and their weights.

    If enough of these are among the preferred rows (n,), return only them.
    """
    densities = np.stack([model.held_out(len(data)) for model in found], 1)
    rows = ~np.isnan(densities).any(1)
    if preferred is not None and (rows & preferred).sum() >= FEWEST_PREFERRED:
        rows &= preferred
    return densities[rows], None if data.weight is None else data.weight[rows]


def predicted_whole(found: list[Judged], n_rows: int) -> np.ndarray:
    """Tell which rows (n,) whole models have predicted, and not members that had not seen them.

    A member alone gains more from other models than all members do. *Measured* (kin40k in halves,
    8,000 rows, networks and neighbours): by 1,000 rows neighbours had a weight of .15, and the log
    loss was .131; by the 400 of whole models none, and .125.
    """
    masks = np.zeros((len(found), n_rows), dtype=bool)
    for mask, each in zip(masks, found, strict=True):
        held_out = each.model.held_out_
        mask[held_out.rows] = True if held_out.is_whole is None else held_out.is_whole
    return np.asarray(masks.all(0))


def gain_of(tried: Judged, found: list[Judged], data: Data) -> float:
    """Return what a model adds to the score of the mixture of the others, in nats per row."""
    densities, weight = held_out_densities([*found, tried], data)
    scores = [
        logsumexp(log_p, axis=1, b=stacking_weights(log_p, weight, PRIOR_ROWS))
        for log_p in (densities, densities[:, :-1])
    ]
    return float(np.average(scores[0] - scores[1], weights=weight))


def weights_of(found: list[Judged], data: Data) -> np.ndarray:
    """Return the weights of models in the mixture."""
    return kept_weights(raw_weights(found, data), LEAST_WEIGHT)


def raw_weights(found: list[Judged], data: Data) -> np.ndarray:
    """Return the same, with those that are small.

    Without enough rows that all have left out, as after a short time, the best score has it all.
    """
    if len(found) == 1:
        return np.ones(1)
    whole = predicted_whole(found, len(data)) if hasattr(found[0].model, "classes_") else None
    densities, weight = held_out_densities(found, data, whole)
    if len(densities) < FEWEST_ROWS:
        scores = np.array([each.score(data) for each in found])
        return (np.arange(len(found)) == scores.argmax()).astype(np.float64)
    return stacking_weights(densities, weight, PRIOR_ROWS)


def standard_score(judged: Judged, data: Data) -> float:
    """Return a score for targets in standard units, per output."""
    y = data.y.reshape(len(data), -1)
    unit = Scaling.standard(y, data.weight).scale
    return (judged.score(data) + float(np.log(unit).sum())) / y.shape[1]


class Shares(NamedTuple):
    """Weights of models in a mixture's density, and in its mean; each (K,), with the sum 1."""

    density: np.ndarray
    mean: np.ndarray

    @property
    def are_used(self) -> np.ndarray:
        """Which models have a weight, (K,)."""
        return np.asarray((self.density > 0.0) | (self.mean > 0.0))

    def of(self, some: np.ndarray) -> Shares:
        """Return the weights of some models."""
        return Shares(*(weights[some] for weights in self))

    def columns(self, n_others: int) -> dict[str, list[float]]:
        """Return columns of a table, in which other models have no weight.

        That of the mean is only there if it says something.
        """
        found = {"weight": self.density, "mean_weight": self.mean}
        if np.array_equal(self.density, self.mean):
            del found["mean_weight"]
        return {name: weights.tolist() + [0.0] * n_others for name, weights in found.items()}


# ---- the floor -----------------------------------------------------------------------------------


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
    """A linear model's predictions of rows that it has not seen; every fit should be ahead of it.

    Categories are one-hot there, so it is ridge regression with normal errors, or logistic
    regression, as many would try first. Each row is predicted by a model of the other folds. It is
    not part of the mixture, whose processes have linear kernels of their own, but it is in the
    table of scores, and a fit that is clearly behind it says so.
    """

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
    split = KFold(FOLDS_OF_FLOOR, shuffle=True, random_state=seed).split(X)
    if data.cluster is not None:
        split = PredefinedSplit(group_folds(data.cluster, FOLDS_OF_FLOOR, rng)).split()
    folds = [(rng.permutation(others)[:MOST_TRAINED], own) for others, own in split]
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
        fitted_inside(model, X[others], codes[others], weight[others])
        p[own] = model.predict_proba(X[own])
    rows = np.arange(len(X))
    return of_classes(rows, np.log(np.maximum(p[rows, codes], 1e-300)), p, codes)


def of_numbers(X: np.ndarray, y: np.ndarray, weight: np.ndarray, folds: list) -> Any:
    """Predict the distribution of each row's y, by other folds' errors; None if one is constant.

    Its density would decide, by how nearly each model has no deviation.
    """
    Y = y.reshape(len(y), -1).astype(np.float64)
    if (Y[0] == Y).all(0).any():
        return None
    scaling = Scaling.standard(Y, weight)
    Y = scaled(Y, scaling)
    mean = np.empty_like(Y)
    for others, own in folds:
        model = fitted_inside(RidgeCV(PENALTIES), X[others], Y[others], weight[others])
        mean[own] = model.predict(X[own]).reshape(len(own), -1)
    error, std = Y - mean, np.empty_like(Y)
    for _, own in folds:
        rest = np.delete(np.arange(len(X)), own)
        variance = np.average(np.square(error[rest]), axis=0, weights=weight[rest])
        std[own] = np.sqrt(np.maximum(variance, 1e-18))
    z = error / std
    log_density = -(0.5 * (np.square(z) + LOG_2PI) + np.log(std)).sum(1)
    columns = error, std, np.zeros_like(std), mean, ndtr(z)
    found = HeldOutPredictions(np.arange(len(X)), log_density, *columns)
    return found.in_units(scaling)


def of_floor(floor: list[Judged], held_out: HeldOutPredictions) -> Iterator[Finding]:
    """Yield whether a fit's predictions of rows are behind the floor's."""
    for each in floor:
        rows = np.intersect1d(held_out.rows, each.model.held_out_.rows)
        gain = held_out.of(rows).log_density - each.model.held_out_.of(rows).log_density
        mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(rows)))
        limit = -max(BEHIND, CERTAIN * error) if len(rows) >= FEWEST_JUDGED else -math.inf
        found = Finding("linear model", "X", mean, limit, category=ConvergenceWarning)
        if mean < limit:
            found = found._replace(
                severity="problem",
                text=f"A linear model predicts rows that were held out better, by {-mean:.2g} "
                "nats per row.",
                advice="Raise max_time if it is set. Otherwise use the linear model: Ridge or "
                "LogisticRegression on one-hot columns, and on the logarithm (or np.arcsinh) of "
                "columns with heavy tails.",
            )
        yield found
