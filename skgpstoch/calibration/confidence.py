"""Calibrate how confident class probabilities are, on rows that were left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .spread import argmin

CONFIDENCE_PRIOR = 0.5  # prior standard deviation of both logarithms around 0
CONFIDENCE_LIMITS = ((-3.0, 3.0), (-3.0, 3.0))


class Confidence(NamedTuple):
    """Factors of the latent functions' means and variances; 1 changes nothing."""

    slope: float
    spread: float


AS_FOUND = Confidence(1.0, 1.0)


def best_confidence(loss: Callable[[Confidence], float]) -> Confidence:
    """Return the factors with the least loss, which is summed over rows left out, in nats."""

    def total(x: np.ndarray) -> float:
        return loss(Confidence(*np.exp(x).tolist())) + 0.5 * float(np.square(x / CONFIDENCE_PRIOR).sum())

    return Confidence(*np.exp(argmin(total, np.zeros(2), CONFIDENCE_LIMITS)).tolist())
