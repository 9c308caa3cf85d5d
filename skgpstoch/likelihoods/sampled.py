"""Estimates of ∇ log E_q[p(y | f)] from draws: bMC, smooth-bMC and uPS of direct loss minimisation.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..maths.gaussian import Marginals, standard_normal
from .base import Gradients, Likelihood, differentiate, in_type_of
from .normal_proposals import normal_product_samples


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
