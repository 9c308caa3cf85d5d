"""Estimates of ∇ log E_q[p(y | f)] from draws: bMC, smooth-bMC and uPS of direct loss minimisation.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..maths.gaussian import Marginals, standard_normal
from .base import Gradients, Likelihood, differentiate, in_type_of
from .rejection import Draws, accept_reject


def monte_carlo_gradients(
    y: Tensor,
    likelihood: Likelihood,
    q: Marginals,
    n_samples: int,
    jitter: float,
    generator: torch.Generator,
) -> Gradients:
    """log (jitter + (1/S) Σ_s p(y | f_s)), f_s = μ + √v ε_s, and its derivatives (bMC)."""
    draws = standard_normal((n_samples, *q.mean.shape[1:]), q.mean.double(), generator)

    def log_mean(y: Tensor, q: Marginals) -> Tensor:
        log_p = likelihood.log_prob(y, q.mean + q.var.sqrt() * draws)  # (S, N, ·)
        value = torch.logsumexp(log_p, 0) - math.log(n_samples)
        if jitter:
            value = torch.logaddexp(value, value.new_tensor(math.log(jitter)))
        return value.sum(-1)

    return differentiate(likelihood, log_mean, y, q)


def product_gradients(
    y: Tensor,
    likelihood: Likelihood,
    q: Marginals,
    n_samples: int,
    generator: torch.Generator,
    proposal: str = "envelope",
) -> Gradients:
    """An estimate of the value, E[(f − μ)/v] and ½E[(f − μ)²/v² − 1/v] under q(f) p(y | f) (uPS).

    ∇ log E_q[p(y | f)] = E[∇ log q(f)] + E[∇ log p(y | f)], the second for the likelihood's
    parameters: unbiased however few draws there are. The value is that of bMC. `proposal` is
    "envelope" or the paper's own "normal", N(μ, kv).
    """
    y, exact = y.double(), q.double()
    with torch.no_grad():
        value, _, _ = monte_carlo_gradients(y, likelihood, exact, n_samples, 0.0, generator)
        if proposal == "normal":
            f = normal_product_samples(y, likelihood, exact, n_samples, generator).f
        else:
            f = likelihood.product_samples(y, exact, n_samples, generator).f
        score = (f - exact.mean) / exact.var  # (S, N, P)
        mean, var = score.mean(0), 0.5 * (score.square().mean(0) - exact.var[0].reciprocal())
    log_p = likelihood.log_prob(y, f).mean(0).sum(-1)
    return in_type_of(q, value + (log_p - log_p.detach()), mean, var)


# ---- proposals N(μ, kv) --------------------------------------------------------------------------


WIDEST = 10  # times the variance
N_DOUBLINGS = 20  # of an interval that a maximum is looked for in
N_SECTIONS = 90  # which leave 1e-19 of an interval
TOO_FAR = (
    "proposal='normal' draws from N(mu, kv), and the target of some row is far from what "
    "q(f) expects, because it is an outlier or the noise is small. Use "
    "proposal='envelope', which accepts most proposals for any row, or gradient='exact'."
)
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


def normal_product_samples(
    y: Tensor, likelihood: Likelihood, q: Marginals, n_samples: int, generator: torch.Generator
) -> Draws:
    """Draw as :meth:`Likelihood.product_samples` does, by the sampler of the paper's appendix A.

    With q(f) = N(μ, v), proposals are drawn from N(μ, kv). Between the two points
    a(k), b(k) = μ ± √(v k log k/(k − 1)) its density is below that of q, by a factor of at most √k;
    beyond them it is above. So

        q(f) p(y | f) ≤ max_f p(y | f) · N(f | μ, kv)  if  √k max_[a, b] p(y | f) ≤ max_f p(y | f);

    and k is the largest number up to 10 for which the condition holds. Few proposals are accepted
    where y is far from what q expects; for that are the envelopes of
    :mod:`skgpstoch.likelihoods.rejection`.
    """
    mean, var = (a[0] for a in q.resolved())

    def log_p(f: Tensor) -> Tensor:
        return likelihood.log_prob(y, f)

    with torch.no_grad():
        best = peak(log_p, 1.0 + y.abs()).expand_as(mean)
        width, height = widest(log_p, mean, var, best), log_p(best)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            k, v = width[rows], var[rows]
            z = standard_normal(v.shape, v, generator)
            f = mean[rows] + (k * v).sqrt() * z
            log_ratio = 0.5 * k.log() - 0.5 * (k - 1.0) * z.square()  # q(f)/N(f | μ, kv)
            return f, likelihood.at_rows(rows).log_prob(y[rows], f) - height[rows] + log_ratio

        return accept_reject(propose, n_samples, mean, generator, TOO_FAR)


def widest(log_p: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, best: Tensor) -> Tensor:
    """Return k of every row, (N, P), given where the likelihood is largest."""
    height, width = log_p(best), torch.ones_like(mean)
    for k in range(2, WIDEST + 1):
        reach = (var * (k * math.log(k) / (k - 1.0))).sqrt()
        inside = log_p(torch.minimum(torch.maximum(best, mean - reach), mean + reach))
        width = torch.where(0.5 * math.log(k) + inside <= height, k, width)
    return width


def peak(log_p: Callable[[Tensor], Tensor], reach: Tensor) -> Tensor:
    """Return where a concave function is largest, elementwise, by sections of an interval.

    The interval starts at ±reach and is doubled until it holds the maximum. A function without a
    maximum is level long before the ends of the last interval.
    """
    low, high = -reach, reach
    for _ in range(N_DOUBLINGS):
        low = torch.where(log_p(2.0 * low) > log_p(low), 2.0 * low, low)
        high = torch.where(log_p(2.0 * high) > log_p(high), 2.0 * high, high)
    low, high = 2.0 * low, 2.0 * high
    for _ in range(N_SECTIONS):
        step = GOLDEN * (high - low)
        left, right = high - step, low + step
        rises = log_p(left) < log_p(right)
        low, high = torch.where(rises, left, low), torch.where(rises, high, right)
    return 0.5 * (low + high)
