"""Predictive distributions of a symmetric likelihood, made skewed with the same mean and variance.

With the mean m and the standard deviation s of the mixture at a row, and U = (Y − m)/s,

    Y' = m + s·T(U),   T(u) = (sinh(arcsinh u + ε) − c)/b,

the sinh-arcsinh map of Jones & Pewsey, "Sinh-arcsinh distributions", Biometrika 2009; c and b are
such that T(U) has the mean 0 and the variance 1, too. As sinh(arcsinh u + ε) = Cu + S√(1 + u²)
with C = cosh ε and S = sinh ε,

    c = S·h,   b² = C² + S²(2 − h²) + 2CSk,   h = E√(1 + U²),   k = E U√(1 + U²).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..maths.gaussian import Marginals
from .real import AdditiveNoise
from .shared_precision import SharedStudentT


class SkewMap(NamedTuple):
    """y → m + s·T((y − m)/s) of each row, an increasing function; all (N, P), and C and S (P,)."""

    mean: Tensor  # m
    std: Tensor  # s
    C: Tensor
    S: Tensor
    shift: Tensor  # c
    scale: Tensor  # b

    def __call__(self, y: Tensor) -> Tensor:
        u = (y - self.mean) / self.std
        w = self.C * u + self.S * (1.0 + u.square()).sqrt()
        return self.mean + self.std * (w - self.shift) / self.scale

    def deviation(self, y: Tensor) -> Tensor:
        """u = T⁻¹((y − m)/s), with −ε for ε."""
        w = self.shift + self.scale * (y - self.mean) / self.std
        return self.C * w - self.S * (1.0 + w.square()).sqrt()

    def inverse(self, y: Tensor) -> Tensor:
        """m + s·T⁻¹((y − m)/s)."""
        return self.mean + self.std * self.deviation(y)

    def log_slope(self, y: Tensor) -> Tensor:
        """log T'((y − m)/s)."""
        u = (y - self.mean) / self.std
        return (self.C + self.S * u / (1.0 + u.square()).sqrt()).log() - self.scale.log()


class Skewed(AdditiveNoise):
    """A likelihood whose predictions of y, not those of f, are skewed.

    Joint covariances stay those of Y, and are exact on their diagonal only.

    Parameters
    ----------
    symmetric : SharedStudentT
        The likelihood of Y.
    skew : Tensor of shape (P,)
        ε of each output; the greater it is, the longer is the tail above the mean.
    """

    has_bound = False
    tail_scale = math.inf

    def __init__(self, symmetric: SharedStudentT, skew: Tensor) -> None:
        super().__init__()
        self.symmetric = symmetric
        self.skew = skew
        self.known: SkewMap | None = None  # of the q that `around` was given

    def around(self, q: Marginals) -> Skewed:
        """Return a likelihood that has computed the map for q already."""
        found = Skewed(self.symmetric, self.skew)
        found.known = self.map(q)
        return found

    def map(self, q: Marginals) -> SkewMap:
        """Return the map from Y to Y' at each row."""
        if self.known is not None:
            return self.known
        mean, var = self.symmetric.moments(q).mixture_moments()
        std, C, S = var.sqrt(), self.skew.to(var).cosh(), self.skew.to(var).sinh()

        def roots(y: Tensor) -> Tensor:
            """√(1 + U²) and U√(1 + U²)."""
            u = (y - mean) / std
            root = (1.0 + u.square()).sqrt()
            return torch.stack([root, u * root])

        h, k = self.symmetric.expectation(roots, q)
        b = (C.square() + S.square() * (2.0 - h.square()) + 2.0 * C * S * k).sqrt()
        return SkewMap(mean, std, C, S, S * h, b)

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean and variance of Y, which Y' shares."""
        return self.symmetric.moments(q)

    def joint_root(self, q: Marginals) -> Tensor:
        """Return those of Y."""
        return self.symmetric.joint_root(q)

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """log p(T⁻¹(y)) − log T'(T⁻¹(y))."""
        skewed = self.map(q)
        before = skewed.inverse(y)
        return self.symmetric.log_components(before, q) - skewed.log_slope(before)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """That of Y at T⁻¹(y)."""
        return self.symmetric.cdf(self.map(q).inverse(y), q)

    def sf(self, y: Tensor, q: Marginals) -> Tensor:
        """That of Y at T⁻¹(y)."""
        return self.symmetric.sf(self.map(q).inverse(y), q)

    def at_rows(self, rows: Any) -> Skewed:
        return Skewed(cast(SharedStudentT, self.symmetric.at_rows(rows)), self.skew)

    def joined(self, others: Sequence[Any]) -> Skewed:
        joined = self.symmetric.joined([other.symmetric for other in others])
        return Skewed(cast(SharedStudentT, joined), self.skew)

    def sample_predictive(self, q: Marginals, n_samples: int, generator: torch.Generator) -> Tensor:
        """Map draws of Y to Y'."""
        return self.map(q)(self.symmetric.sample_predictive(q, n_samples, generator))

    @torch.no_grad()
    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Map the quantile of Y to that of Y'."""
        return self.map(q)(self.symmetric.quantile(q, probability)).to(q.mean.dtype)
