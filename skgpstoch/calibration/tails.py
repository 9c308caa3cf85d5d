"""Calibrate the scale and the tails of predictions on rows that were left out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from .spread import argmin

SCALE_PRIOR = 0.5  # prior standard deviation of log c around 0
LIMITS = ((-3.0, 3.0), (-2.0, 5.0))  # of log c and log(ν − 2)
START_TAILS = 1.5  # log(ν − 2), where the search starts
WORTH = 2.0  # nats, summed over rows, that heavy tails must gain


class TailChoice(NamedTuple):
    """What rows left out may choose."""

    scales: bool = True  # whether c may differ from 1
    may_be_normal: bool = True  # whether ν may be infinite
    may_be_heavy: bool = True  # whether ν may be finite


class Tails(NamedTuple):
    """Standard deviations are c times as large, and errors have ν degrees of freedom."""

    scale: float
    df: float  # ν; infinite for a normal distribution


def best_tails(u: np.ndarray, choice: TailChoice) -> Tails:
    """Return c and ν with the best log score of standardised errors u = (y − μ)/s, (N, P)."""

    def loss(x: np.ndarray) -> float:
        log_c = x[0] if choice.scales else 0.0
        z = u * math.exp(-log_c)
        log_p = stats.norm.logpdf(z) if len(x) == 1 else log_density_of_t(z, 2.0 + math.exp(x[1]))
        return float(0.5 * (log_c / SCALE_PRIOR) ** 2 - (log_p - log_c).sum())

    normal = argmin(loss, np.zeros(1), LIMITS[:1])
    found = normal
    if choice.may_be_heavy:
        heavy = argmin(loss, np.array([normal[0] - 0.2, START_TAILS]), LIMITS)
        if not choice.may_be_normal or loss(normal) - loss(heavy) > WORTH:
            found = heavy
    scale = math.exp(found[0]) if choice.scales else 1.0
    return Tails(scale, math.inf if len(found) == 1 else 2.0 + math.exp(found[1]))


def log_density_of_t(z: np.ndarray, df: float) -> np.ndarray:
    """Return the log density of t_ν."""
    constant = math.lgamma(0.5 * (df + 1.0)) - math.lgamma(0.5 * df) - 0.5 * math.log(math.pi * df)
    return constant - 0.5 * (df + 1.0) * np.log1p(z**2 / df)
