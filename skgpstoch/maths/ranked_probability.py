"""The continuous ranked probability score in closed form.

CRPS(F, y) = ∫ (F(t) − 1[t ≥ y])² dt = E|Y − y| − ½E|Y − Y′|

Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 102, 2007;
Jordan, Krüger & Lerch, "Evaluating probabilistic forecasts with scoringRules", Journal of
Statistical Software 90, 2019.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import betaln, stdtr
from torch import Tensor

from .gaussian import LOG_2PI
from .student_t import log_student_t


def mean_distance(shift: Tensor, var: Tensor) -> Tensor:
    """E|Z| of Z ~ N(shift, var), whose variance may be 0."""
    std = var.sqrt()
    z = shift / torch.where(std > 0.0, std, 1.0)
    folded = 2.0 * std * torch.exp(-0.5 * (z.square() + LOG_2PI)) + shift * torch.erf(
        z / math.sqrt(2.0)
    )
    return torch.where(std > 0.0, folded, shift.abs())


def crps_of_normals(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """CRPS of an equally weighted mixture of normal distributions: mean, var (S, ...) → (...)."""
    apart = torch.zeros_like(y)
    for m, v in zip(mean, var, strict=True):  # memory of S components, not of S² pairs
        apart = apart + mean_distance(mean - m, var + v).mean(0) / len(mean)
    return mean_distance(y - mean, var).mean(0) - 0.5 * apart


def crps_of_student_t(z: np.ndarray, df: np.ndarray) -> np.ndarray:
    """CRPS of the standard Student-t distribution with more than one degree of freedom."""
    density = np.exp(log_student_t(z, 1.0, df))
    own = 2.0 * np.sqrt(df) * np.exp(betaln(0.5, df - 0.5) - 2.0 * betaln(0.5, 0.5 * df))
    absolute = z * (2.0 * stdtr(df, z) - 1.0) + 2.0 * density * (df + np.square(z)) / (df - 1.0)
    return np.asarray(absolute - own / (df - 1.0))
