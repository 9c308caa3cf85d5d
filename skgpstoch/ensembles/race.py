"""Fit several models and weigh them by their predictions for held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from ..data.deadline import Deadline, seconds_left
from ..data.messages import warn
from ..data.rows import Data
from ..estimators.callbacks import Fit, Fits
from ..training.interrupts import AGAIN, keeps_best, was_interrupted
from .stacking import kept_weights, stacking_weights

PRIOR_ROWS = 1.0  # rows in favour of each model, whatever the data
LEAST_WEIGHT = 0.1  # below which a model is not worth the time of its predictions
LEAST_SHARE = 0.2  # of the time, with less of which left no further model is tried
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
    adapt : callable or None, default=None
        Changes the model by what its scout, once judged, tells of the data.
    least_gain : float, default=-inf
        Nats per row that a scout has to add to the score, if that is more than `LEAST_GAIN`.
    """

    name: str
    make: Callable[[float | None], Any]
    scout: Callable[[float | None], Any] | None = None
    adapt: Callable[[Any, Judged, Data], Any] | None = None
    least_gain: float = -math.inf

    def is_scouted(self, found: list[Judged]) -> bool:
        """Tell whether a scout is of use: to spare the model, if there are others, or adapt it."""
        return self.scout is not None and (bool(found) or self.adapt is not None)


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
    of_rows = {} if data.weight is None else {"sample_weight": data.weight}
    return Judged(name, fit(model, data.X, data.y, **of_rows), time.perf_counter() - began)


def race(
    entrants: list[Entrant], fits: Fits, data: Data, deadline: Deadline | None
) -> tuple[list[Judged], list[Judged]]:
    """Fit models in turn; return those to be mixed, and scouts without a model after them."""
    found: list[Judged] = []
    given_up: list[Judged] = []
    seconds = math.inf if deadline is None else deadline.left()
    for entrant in entrants:
        name, make, scout, adapt, least_gain = entrant
        if was_interrupted():  # the interrupted model has warned
            break
        if found and deadline is not None and deadline.left() < LEAST_SHARE * seconds:
            warn(
                f"max_time was too short to try {name}: {found[-1].name} took "
                f"{found[-1].seconds:.2g} s. Raise max_time, or give fewer columns.",
                ConvergenceWarning,
            )
            break
        try:
            tried = None
            if scout is not None and entrant.is_scouted(found):
                few = scout(seconds_left(deadline))
                tried = fitted(fits.next(f"{name}, a few"), name, few, data)
                if found and gain_of(tried, found, data) < max(least_gain, LEAST_GAIN):
                    given_up.append(tried)
                    continue
                if was_interrupted():  # its best so far is what there is
                    found.append(tried)
                    break
            model = make(seconds_left(deadline))
            if tried is not None and adapt is not None:
                model = adapt(model, tried, data)
            found.append(better_of(tried, fitted(fits.next(name), name, model, data), data))
        except KeyboardInterrupt:
            if not (found and keeps_best()):
                raise
            warn_without(name)
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


def warn_without(name: str) -> None:
    """Warn that Ctrl-C came before a model was fitted."""
    warn(f"The fit was interrupted; the model does without {name}. {AGAIN}", ConvergenceWarning)


def held_out_densities(found: list[Judged], data: Data) -> tuple[np.ndarray, np.ndarray | None]:
    """Return log densities (m, J) of rows that the last model has not seen, and their weights."""
    densities = np.stack([model.held_out(len(data)) for model in found], 1)
    rows = ~np.isnan(densities[:, -1])
    return densities[rows], None if data.weight is None else data.weight[rows]


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
    if len(found) == 1:
        return np.ones(1)
    return kept_weights(
        stacking_weights(*held_out_densities(found, data), PRIOR_ROWS), LEAST_WEIGHT
    )
