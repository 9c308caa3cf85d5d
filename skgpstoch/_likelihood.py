"""What every likelihood p(y | f) can do, and how: the base class.

A likelihood must say :meth:`Likelihood.log_prob` and :meth:`Likelihood.moments`; expectations under
q(f) are Gauss-Hermite quadratures, always in log space, unless a closed form overrides them.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .gaussian import Marginals, quadrature_nodes

Gradients = tuple[Tensor, Tensor, Tensor]
"""E_q[log p(y | f)] of each row, and its derivatives by mean and variance."""


class Likelihood(nn.Module):
    """The distribution p(y | f), independent over rows and over the P outputs."""

    log_concave: bool = True
    """Whether log p(y | f) is concave in f: its expectation never grows with the variance then."""

    def __init__(self) -> None:
        super().__init__()

    def n_latents(self, n_outputs: int) -> int:
        """How many latent functions P outputs need."""
        return n_outputs

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), elementwise: y (N, P), f (..., N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob")

    def moments(self, q: Marginals) -> Marginals:
        """Mean and variance of y when f ~ q, as Marginals of shape (S, N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define moments")

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """A draw of y for each f."""
        raise NotImplementedError(f"{type(self).__name__} must define sample")

    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Least y with P(Y ≤ y) ≥ probability, Y drawn from the mixture over f ~ q: (N, P)."""
        raise NotImplementedError(f"{type(self).__name__} has no quantiles")

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """E_q[log p(y | f)] for each row, averaged over mixture components: (N,) nats."""
        f, log_weights = quadrature_nodes(q)
        return (log_weights.exp() * self.log_prob(y, f)).sum(0).mean(0).sum(-1)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """E_q[log p(y | f)] of each row, and its derivatives by q's mean and variance.

        Nothing returned carries a gradient. The differentiation is in float64: the derivative by a
        small variance is a difference of nearly equal numbers.

        Parameters
        ----------
        y : Tensor of shape (N, P)
            Targets.
        q : Marginals of shape (1, N, P)
            One mixture component.

        Returns
        -------
        value : Tensor of shape (N,)
            Nats.
        d_mean, d_var : Tensors of shape (N, P)
            d_var ≤ 0 for a log-concave likelihood.
        """
        with torch.enable_grad():
            mean, var = (a.detach().double().requires_grad_() for a in q)
            value = self.expected_log_prob(y.double(), Marginals(mean, var))
            gradients = torch.autograd.grad(value.sum(), (mean, var), materialize_grads=True)
        d_mean, d_var = (g[0].to(q.mean.dtype) for g in gradients)
        if self.log_concave:
            d_var = d_var.clamp_max(0.0)  # rounding
        return value.detach().to(q.mean.dtype), d_mean, d_var

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """log E_q[p(y | f)] for each row: (N,) nats."""
        f, log_weights = quadrature_nodes(q)
        component = torch.logsumexp(log_weights + self.log_prob(y, f), 0).sum(-1)  # (S, N)
        return mixture_log_mean(component)

    def given(self, exposure: Tensor | None) -> Likelihood:
        """The likelihood of rows with these exposures, (N, 1); parameters stay shared."""
        if exposure is not None:
            raise ValueError(f"exposure must be None with {self!r}; only Poisson counts have one")
        return self

    def for_outputs(self, n_outputs: int) -> Likelihood:
        """A deep copy, each parameter of which has shape (n_outputs,)."""
        other = copy.deepcopy(self)
        for name, parameter in other.named_parameters(recurse=False):
            if parameter.ndim > 1 or parameter.numel() not in (1, n_outputs):
                raise ValueError(
                    f"{name} of {self!r} must be one number or one for each of the {n_outputs} "
                    f"outputs of y, got shape {tuple(parameter.shape)}"
                )
            parameter.data = parameter.data.expand(n_outputs).clone()
        return other

    def initial_mean(self, y: Tensor, exposure: Tensor | None = None) -> Tensor:
        """Constant latent mean that fits y (N, P) as a whole: (n_latents,)."""
        return y.mean(0)

    def initialise(self, y: Tensor) -> None:
        """Set the parameters, in place, from the targets y (N, P); by default nothing."""

    def check_targets(self, y: np.ndarray) -> None:
        """Raise ValueError if targets y (n, P) are impossible; by default nothing is."""


def mixture_log_mean(log_p: Tensor) -> Tensor:
    """Log of the mean over the leading axis: (S, N) → (N,)."""
    return torch.logsumexp(log_p, 0) - math.log(len(log_p))


def check_link(link: Any, links: tuple[str, ...]) -> str:
    """The link, or a ValueError that lists those there are."""
    if link not in links:
        raise ValueError(f"link must be one of {links}, got {link!r}")
    return link


def check_probability(probability: float) -> float:
    """The probability, or a ValueError unless it is inside (0, 1)."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must be inside (0, 1), got {probability!r}")
    return float(probability)
