"""Likelihoods p(y | f): what is observed, given the latent function.

A likelihood must say :meth:`Likelihood.log_prob` and :meth:`Likelihood.moments`; expectations under
q(f) are Gauss-Hermite quadratures, always in log space, unless a closed form overrides them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .gaussian import LOG_2PI, Marginals, log_density, quadrature_nodes


class Likelihood(nn.Module):
    """p(y | f), independent over rows and over the P outputs."""

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), elementwise: y (N, P), f (..., N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob")

    def moments(self, q: Marginals) -> Marginals:
        """Mean and variance of y when f ~ q."""
        raise NotImplementedError(f"{type(self).__name__} must define moments")

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """A draw of y for each f."""
        raise NotImplementedError(f"{type(self).__name__} must define sample")

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """E_q[log p(y | f)] for each row, averaged over mixture components: (N,) nats."""
        f, log_weights = quadrature_nodes(q)
        return (log_weights.exp() * self.log_prob(y, f)).sum(0).mean(0).sum(-1)

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """log E_q[p(y | f)] for each row: (N,) nats."""
        f, log_weights = quadrature_nodes(q)
        component = torch.logsumexp(log_weights + self.log_prob(y, f), 0).sum(-1)  # (S, N)
        return mixture_log_mean(component)


class Gaussian(Likelihood):
    """y = f + ε, ε ~ N(0, σ²): one noise variance for each of the P outputs."""

    def __init__(self, noise_variance: Tensor) -> None:
        super().__init__()
        self.log_noise = nn.Parameter(noise_variance.detach().log())  # (P,)

    @property
    def noise_variance(self) -> Tensor:
        """σ², of shape (P,)."""
        return self.log_noise.exp()

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log N(y | f, σ²), elementwise."""
        return log_density(y, f, self.noise_variance)

    def moments(self, q: Marginals) -> Marginals:
        """N(μ, v + σ²)."""
        return Marginals(q.mean, q.var + self.noise_variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """f + σz, z ~ N(0, 1)."""
        z = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + self.noise_variance.sqrt() * z

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """log N(y | μ, σ²) − v/(2σ²), in closed form."""
        noise = self.noise_variance
        square = ((y - q.mean).square() + q.var) / noise
        return -0.5 * (LOG_2PI + noise.log() + square).mean(0).sum(-1)

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """log N(y | μ, v + σ²), in closed form."""
        return mixture_log_mean(log_density(y, *self.moments(q)).sum(-1))


def mixture_log_mean(log_p: Tensor) -> Tensor:
    """Log of the mean over the leading axis: (S, N) → (N,)."""
    return torch.logsumexp(log_p, 0) - math.log(len(log_p))
