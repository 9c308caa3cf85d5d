"""What is chosen for an ensemble's predictions by rows that no member has seen.

Networks fit the rows that they are trained on too well: errors of others are larger, have heavier
tails, and classes are less certain. A few numbers put that right, by the log score of held-out rows
and, as there may be few of these, priors that nothing need be changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import minimize
from torch import Tensor, nn

from ..likelihoods.real import AdditiveNoise
from ..maths.gaussian import Marginals
from ..posteriors.mixture import drawn_together

LOG_SCALES = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0)  # where the search may start
CONFIDENCES = np.linspace(-3.0, 1.0, 33).tolist()  # log scales of f that members are judged with
TAILS = (-4.0, 7.0)  # of log(ν − 2)
MOST_VARIED = 4.0  # times what the noise varies in training


class Calibration(NamedTuple):
    """Changes of an ensemble's predictions."""

    log_scale: float = 0.0  # of all deviations, or of f itself for classes
    spread: float = 1.0  # of the members' means: their mean has a smaller error than each
    tails: float = 0.0  # added to log(ν − 2)
    varied: float = 1.0  # times what the noise varies with the inputs

    @property
    def is_allowed(self) -> bool:
        return 0.0 <= self.spread <= 1.0 and 0.0 <= self.varied <= MOST_VARIED

    def penalty(self, usual: Calibration) -> float:
        """Nats, by normal priors around what is usual."""
        changes = (np.array(self) - np.array(usual)) / np.array(PRIOR)
        return float(0.5 * np.square(changes).sum())


UNCHANGED = Calibration()
PRIOR = Calibration(0.3, 0.3, 1.5, 0.5)
"""Standard deviations of the priors."""


def calibrate(
    loss: Callable[[Calibration], float],
    free: Sequence[bool],
    usual: Calibration = UNCHANGED,
) -> Calibration:
    """Where the loss, in nats of all held-out rows, and the penalty are least."""
    is_free, start = np.array(free), np.array(usual)

    def full(choice: np.ndarray) -> Calibration:
        chosen = start.copy()
        chosen[is_free] = choice
        return Calibration(*chosen)

    def total(choice: np.ndarray) -> float:
        chosen = full(choice)
        value = loss(chosen) + chosen.penalty(usual) if chosen.is_allowed else math.inf
        return math.inf if math.isnan(value) else value

    starts = [np.array([scale, *start[is_free][1:]]) for scale in LOG_SCALES]
    best = min(starts, key=total)
    if total(best) == math.inf:
        return usual
    simplex = np.vstack([best, best - 0.3 * np.eye(len(best))])
    options = {"xatol": 1e-3, "fatol": 1e-3, "maxiter": 250, "initial_simplex": simplex}
    return full(minimize(total, best, method="Nelder-Mead", options=options).x)


def most_suitable(losses: np.ndarray) -> Calibration:
    """The log scale, of `CONFIDENCES`, whose loss in nats is least, with the prior's penalty."""
    choices = [Calibration(log_scale) for log_scale in CONFIDENCES]
    totals = losses + [choice.penalty(UNCHANGED) for choice in choices]
    totals = np.where(np.isnan(totals), math.inf, totals)
    return choices[int(totals.argmin())] if totals.min() < math.inf else UNCHANGED


def scaled(q: Marginals, choice: Calibration, centre: Tensor | None) -> Marginals:
    """q(f) of members (K, N, P) with other deviations; if there is a centre, all f around it."""
    mean, factor = drawn_together(q.mean, choice.spread), math.exp(choice.log_scale)
    if centre is not None:
        mean = centre.to(mean) + factor * (mean - centre.to(mean))
    return Marginals(mean, factor**2 * q.var)


def stretched(likelihood: Any, like: Tensor, choice: Calibration, is_learned: bool) -> Any:
    """Additive noise with other tails and, if it is learned, scale; a copy. Others as they are."""
    if not isinstance(likelihood, AdditiveNoise):
        return likelihood
    factor = math.exp(choice.log_scale) if is_learned else 1.0
    other = likelihood.in_units(like.new_full(like.shape, factor))
    if choice.tails:
        heavier_(other, choice.tails)
    return other


def heavier_(likelihood: Any, tails: float) -> None:
    """Add to log(ν − 2)."""
    cast(nn.Parameter, likelihood.log_df_minus_2).data.add_(tails).clamp_(*TAILS)
