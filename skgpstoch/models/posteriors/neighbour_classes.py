"""Classes by nearest neighbours: the mean of f, and pseudo-targets for the class of each row.

The mean c is such that far from all rows the classes have their shares.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...likelihoods.probabilities import ClassLikelihood
from ...maths.gaussian import Marginals
from .pseudo_targets import PseudoTargetPosterior

MOST_SHARE_STEPS, SHARE_TOL = 500, 1e-9  # of c


@torch.no_grad()
def mean_of_shares(likelihood: ClassLikelihood, level: Tensor, var: Tensor) -> Tensor:
    """Return the mean c (P,) with which f ~ N(c, var) has the classes' shares.

    `level` (P,) is the mean that has them if the variance is 0.
    """

    def level_of(c: Tensor) -> Tensor:
        log_p = likelihood.log_means(Marginals(c[None, None], var.expand_as(c)[None, None]))[0, 0]
        if len(c) > 1:
            return log_p - log_p.mean()
        return log_p - torch.log(-torch.expm1(log_p))

    c, step, before = level, torch.sqrt(1.0 + math.pi / 8.0 * var), math.inf
    for _ in range(MOST_SHARE_STEPS):
        short = level - level_of(c)
        size = float(short.abs().max())
        if size < SHARE_TOL:
            break
        if size > before:
            step = (0.5 * step).clamp_min(1.0)
        c, before = c + step * short, size
    return c


class NeighbourClassPosterior(PseudoTargetPosterior):
    """p(f | ỹ_N) at each row, where `level` is the c of the classes' shares if f does not vary."""

    limits = (1e-2, 1e6)

    @classmethod
    def mean_of(cls, likelihood: Any, level: Tensor, var: Tensor) -> Tensor:
        """Return the mean c with which the classes have their shares far from all rows."""
        return mean_of_shares(likelihood, level, var)
