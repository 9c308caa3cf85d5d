"""The log density of Student-t distributions, without SciPy's checks, which cost more than it."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from .gaussian import LOG_2PI


def log_student_t(
    error: np.ndarray, scale: np.ndarray | float, df: np.ndarray | float
) -> np.ndarray:
    """Return log t_ν of errors with a scale, elementwise.

    ν is infinite, for normal errors, only as a number, not as an element of an array.
    """
    with np.errstate(over="ignore"):  # the density is 0 there
        square = np.square(error / scale)
    if isinstance(df, float) and math.isinf(df):
        return np.asarray(-0.5 * (square + LOG_2PI) - np.log(scale))
    half = 0.5 * (np.asarray(df) + 1.0)
    normaliser = gammaln(half) - gammaln(half - 0.5) - 0.5 * np.log(np.pi * np.asarray(df))
    return np.asarray(normaliser - np.log(scale) - half * np.log1p(square / df))
