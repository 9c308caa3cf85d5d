"""Expectations of the logistic function g(f) = 1/(1 + exp(−f)) under Gaussians, exact to rounding.

In x = exp(−|f|) ≤ 1, g is 1/(1 + x) where f > 0 and x/(1 + x) where f < 0. As Σ (−1)ᵏcₖxᵏ is
1/(1 + x) to 10⁻¹⁵, every expectation is a sum of truncated normal moments E[xᵏ·1(±f > 0)], whatever
the mean and variance.

H. Cohen, F. Rodriguez Villegas and D. Zagier, "Convergence Acceleration of Alternating Series",
Experimental Mathematics 9, 2000: the coefficients cₖ.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..data.devices import constants
from ..maths.first_order import with_slopes
from ..maths.gaussian import LOG_2PI, Marginals, log_half_moment

N_TERMS = 20  # of the series
NARROW_VARIANCE = 1.0  # of f, below which nodes take the place of the series, which cancels
NODES = (-9.0, 11.01, 0.25)  # of the standard normal: from, to and step
"""Of trapezoids, in standard deviations of f: exact to rounding for narrow f."""


def _alternating_coefficients(n_terms: int) -> np.ndarray:
    """(−1)ᵏcₖ of Σ (−1)ᵏcₖxᵏ ≈ 1/(1 + x), to 5.8^−n on [0, 1]: Cohen et al., algorithm 1."""
    d = math.cosh(n_terms * math.acosh(3.0))
    b, c, coefficients = -1.0, -d, []
    for k in range(n_terms):
        c = b - c
        coefficients.append(c / d)
        b *= (k + n_terms) * (k - n_terms) / ((k + 0.5) * (k + 1.0))
    return np.array(coefficients)


def alternating(like: Tensor) -> Tensor:
    """Return the coefficients (−1)ᵏcₖ, k < 20."""
    return constants(_alternating_coefficients, N_TERMS, like=like)[0]


def half_moments(q: Marginals) -> Tensor:
    """Return log E[xᵏ·1(f > 0)] and log E[xᵏ·1(f < 0)], k ≤ 20: (2, 21, S, N, P)."""
    k = torch.arange(N_TERMS + 1, dtype=q.mean.dtype, device=q.mean.device).view(-1, 1, 1, 1)
    mean, var = q.resolved()
    return log_half_moment(torch.stack([mean, -mean])[:, None], var, k)


def combine(coefficients: Tensor, log_terms: Tensor) -> Tensor:
    """Return Σ coefficientₖ·exp(log_termₖ) over the leading axis."""
    return torch.tensordot(coefficients, log_terms.exp(), 1)


def log_sum(coefficients: Tensor, log_terms: Tensor) -> Tensor:
    """Return the logarithm of that, the first term being the greatest and the sum positive."""
    first = log_terms[0]
    return first + combine(coefficients, log_terms - first).log()


def log_mean(q: Marginals) -> Tensor:
    """Return log E[g(f)]: (S, N, P), with derivatives that hold at a variance of 0 too."""
    with torch.no_grad():
        positive, negative = half_moments(q)  # (K, S, N, P), log E[xᵏ] on either side of 0
        c = alternating(q.mean)  # 1/(1 + x) where f > 0, x/(1 + x) where f < 0
        value = torch.logaddexp(log_sum(c, positive[:-1]), log_sum(c, negative[1:]))
    if not (torch.is_grad_enabled() and (q.mean.requires_grad or q.var.requires_grad)):
        return value
    with torch.no_grad():  # x′ is −x where f > 0, x where f < 0
        right, left = positive[:-1] - value, negative[1:] - value
        k = torch.arange(N_TERMS, dtype=c.dtype, device=c.device)
        d_mean = combine((k + 1) * c, left) - combine(k * c, right)
        d_var = 0.5 * (combine((k + 1) ** 2 * c, left) + combine(k**2 * c, right))
    return with_slopes(value, (q.mean, d_mean), (q.var, d_var))


def log_expectations(q: Marginals) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[log g(f)] and its derivatives by mean and variance, each (S, N, P)."""
    x = half_moments(q)
    c, k = alternating(q.mean), torch.arange(x.shape[1] - 1, device=q.mean.device)
    both = torch.logaddexp(*x)
    # log g(f) = min(f, 0) − log(1 + x),  g(f)·g(−f) = x/(1 + x)² = −x·d/dx 1/(1 + x)
    value = _mean_negative_part(q) - combine(c / (k + 1), both[1:])
    d_mean = combine(c, x[0][1:]) + combine(c, x[1][:-1])  # g(−f)
    d_var = 0.5 * combine((k * c)[1:], both[1:-1])
    return value, d_mean, d_var.clamp_max(0.0)


def expected_log(q: Marginals) -> Tensor:
    """Return E[log g(f)], (S, N, P), with these derivatives."""
    with torch.no_grad():
        value, d_mean, d_var = log_expectations(q)
    return with_slopes(value, (q.mean, d_mean), (q.var, d_var))


def _mean_negative_part(q: Marginals) -> Tensor:
    """E[min(f, 0)] = −√v·(φ(z) − z·Φ(−z)), z = μ/√v."""
    mean, var = q.resolved()
    std = var.sqrt()
    z = mean / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return mean * torch.special.ndtr(-z) - std * density


# ---- the variance of g(f) ------------------------------------------------------------------------


def variance(q: Marginals) -> Tensor:
    """Return Var[g(f)], (S, N, P), with all its digits however small it is."""
    low = -q.mean.abs()  # g(−f) = 1 − g(f) has the same variance, and there g has all its digits
    narrow = _variance_at_nodes(Marginals(low, q.var.clamp_max(NARROW_VARIANCE)))
    wide = _variance_by_series(Marginals(low, q.var.clamp_min(NARROW_VARIANCE)))
    return torch.where(q.var < NARROW_VARIANCE, narrow, wide)


def _variance_at_nodes(q: Marginals) -> Tensor:
    """Of deviations from g(μ): g(μ + δ) − g(μ) = −g(μ + δ)·g(−μ)·(exp(−δ) − 1)."""
    (z,) = constants(np.arange, *NODES, like=q.mean)
    weight = torch.exp(-0.5 * (z.square() + LOG_2PI)) * (z[1] - z[0])
    mean = q.mean[..., None]
    shift = q.var.sqrt()[..., None] * z
    deviation = -torch.sigmoid(mean + shift) * torch.sigmoid(-mean) * torch.expm1(-shift)
    deviation = deviation - (weight * deviation).sum(-1, keepdim=True)
    return (weight * deviation.square()).sum(-1)


def _variance_by_series(q: Marginals) -> Tensor:
    """E[g²] − (E g)², where g² is 1/(1 + x)² for f > 0 and x²/(1 + x)² for f < 0."""
    positive, negative = half_moments(q)
    c, k = alternating(q.mean), torch.arange(N_TERMS, device=q.mean.device)
    # 1/(1 + x)² = d/dx x/(1 + x),  x²/(1 + x)² = −x²·d/dx 1/(1 + x)
    square = combine((k + 1) * c, positive[:-1]) - combine(k * c, negative[1:])
    return (square - log_mean(q).exp().square()).clamp_min(0.0)  # rounding of float32
