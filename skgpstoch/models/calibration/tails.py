"""Calibrate the scale and the tails of predictions on rows that were left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from ...maths.student_t import log_student_t
from .spread import argmin

TAIL_SCALE_PRIOR = 0.5  # prior standard deviation of log c around 0
BOUNDS_OF_TAILS = ((-8.0, 8.0), (-1.0, 5.0), (-7.0, 2.0), (0.0, 6.0))
"""Of log c, log(ν − 2), log ε/(1 − ε) and log of the outliers' width."""
BOUNDS_OF_SCALE = (-2.0, 2.0)  # of log c alone
SCALE_OPTIONS = {"xatol": 0.01}
STARTS = ((-0.2, 1.5, -3.0, 1.0), (-1.5, 0.0, -1.0, 3.0))
WORTH = 2.0  # nats, summed over rows, that each further parameter must gain


class TailChoice(NamedTuple):
    """What rows left out may choose."""

    scales: bool = True  # whether c may differ from 1
    may_be_normal: bool = True  # whether ν may be infinite
    may_be_heavy: bool = True  # whether ν may be finite


class ErrorTails(NamedTuple):
    """Standard deviations are c times as large, and errors have ν degrees of freedom.

    A share of the rows, the outliers, has deviations that are larger by a factor, the width.
    """

    scale: float
    df: float = math.inf  # ν; infinite for a normal distribution
    outliers: tuple[float, float] = (0.0, 1.0)


Scales = Callable[[float], np.ndarray]
"""Maps c to the factor of each standard deviation, (N, P)."""


def best_tails(
    u: np.ndarray,
    choice: TailChoice,
    weight: np.ndarray | float = 1.0,
    scales: Scales | None = None,
    reach: np.ndarray | float = math.inf,
) -> ErrorTails:
    """Return c, ν and outliers with the best penalised log score of errors u = (y − μ)/s, (N, P).

    The penalty is a prior on log c, and `WORTH` for each parameter. Rows have weights (N, 1). The
    factor of s is c itself unless `scales` says otherwise; that of outliers is at most the `reach`
    (N, P), or that of other rows.
    """

    def loss(x: np.ndarray) -> float:
        found = tails_of(x, choice.scales)
        prior = 0.5 * (math.log(found.scale) / TAIL_SCALE_PRIOR) ** 2 if choice.scales else 0.0
        return float(prior + WORTH * len(x) - (weight * log_density(u, found, scales, reach)).sum())

    sizes = [1] * choice.may_be_normal + [2, 4] * choice.may_be_heavy
    found = [
        argmin(loss, np.array(start[:size]), BOUNDS_OF_TAILS[:size])
        for size in sizes
        for start in (STARTS if size == 4 else STARTS[:1])
    ]
    return tails_of(min(found, key=loss), choice.scales)


def best_scale(log_score: Callable[[float], float]) -> float:
    """Return the factor c with the best log score in nats, with the same prior on log c."""

    def loss(log_c: float) -> float:
        return 0.5 * (log_c / TAIL_SCALE_PRIOR) ** 2 - log_score(math.exp(log_c))

    found = minimize_scalar(loss, bounds=BOUNDS_OF_SCALE, method="bounded", options=SCALE_OPTIONS)
    return math.exp(found.x) if found.fun + WORTH < loss(0.0) else 1.0


def tails_of(x: np.ndarray, scales: bool) -> ErrorTails:
    """Return what log c, log(ν − 2), the log odds of outliers and the log width mean."""
    scale = math.exp(x[0]) if scales else 1.0
    if len(x) == 1:
        return ErrorTails(scale)
    outliers = (0.0, 1.0) if len(x) == 2 else (float(expit(x[2])), math.exp(x[3]))
    return ErrorTails(scale, 2.0 + math.exp(x[1]), outliers)


def log_density(
    u: np.ndarray,
    tails: ErrorTails,
    scales: Scales | None = None,
    reach: np.ndarray | float = math.inf,
) -> np.ndarray:
    """Return the log density of standardised errors."""
    share, width = tails.outliers
    factor = tails.scale if scales is None else scales(tails.scale)

    usual = log_student_t(u, factor, tails.df)
    if share == 0.0:
        return usual
    far = log_student_t(u, np.maximum(factor, np.minimum(factor * width, reach)), tails.df)
    return np.logaddexp(math.log1p(-share) + usual, math.log(share) + far)
