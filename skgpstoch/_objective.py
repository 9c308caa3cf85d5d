"""What :func:`skgpstoch._training.train` minimises, and what a finished fit leaves behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .features import FeatureMap
from .gaussian import Marginals
from .likelihoods import Likelihood
from .weights import Weights


class Posterior(nn.Module):
    """p(f | data): the latent function's marginals, joint covariance and draws, at any rows."""

    likelihood: Likelihood

    def marginals(self, X: Tensor) -> Marginals:
        """q(f) at each row of X: X (N, d), mean and var (1, N, P)."""
        raise NotImplementedError

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of f at the rows of X, one for each output: (P, N, N)."""
        raise NotImplementedError

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws of f at the rows of X: (n_samples, N, P)."""
        raise NotImplementedError


class Objective(nn.Module):
    """A loss per row whose state (parameters and buffers) is all that training changes.

    A new method overrides :meth:`forward` and :meth:`solution`; the other hooks have defaults that
    do nothing. Whatever must survive a checkpoint, a rollback, or the choice of the best iterate has
    to be a parameter or a buffer.
    """

    def forward(self, X: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of a minibatch, in nats per row: X (b, d), y (b, P)."""
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for the optimiser; a dual variable's group says ``"maximize": True``."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def step_end(self) -> None:
        """Called after every optimiser step: projections, profiles, natural or dual steps."""

    def epoch_end(self) -> None:
        """Called after every epoch: penalties, schedules of the objective's own."""

    def is_finite(self) -> bool:
        """Whether every parameter and buffer is finite; a step after which it is not is undone."""
        return all(bool(torch.isfinite(t).all()) for t in (*self.parameters(), *self.buffers()))

    def evaluate(self, X: Tensor, y: Tensor) -> float:
        """What the best iterate is the best of, lower is better: nats per row, of all rows."""
        raise NotImplementedError

    def solution(self, X: Tensor, y: Tensor) -> Posterior:
        """The closing exact pass over all rows."""
        raise NotImplementedError


def surrogate(value: Tensor, *gradients: tuple[Tensor, Tensor]) -> Tensor:
    """A scalar equal to `value` whose gradient by each tensor is the one given with it.

    For losses whose gradient is known in closed form, or is not that of any loss.
    """
    s = sum((x * dx).sum() for x, dx in gradients)
    return value + (s - s.detach())


class FeaturePosterior(Posterior):
    """f(x) = φ(x)ᵀw + r(x): a feature map, a q(w) and a likelihood."""

    def __init__(self, features: FeatureMap, weights: Weights, likelihood: Likelihood) -> None:
        super().__init__()
        self.features = features
        self.weights = weights
        self.likelihood = likelihood

    def marginals(self, X: Tensor) -> Marginals:
        phi = self.features(X)  # (N, D)
        return self.weights.marginals(phi, self.features.residual(X, phi))

    def covariance(self, X: Tensor) -> Tensor:
        return self.weights.covariance(self.features(X))

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        return self.features(X) @ self.weights.sample(n_samples, generator)
