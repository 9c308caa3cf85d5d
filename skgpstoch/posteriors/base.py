"""Base classes of posteriors of f and of the weights of features, the results of a fit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.devices import BLOCK_ROWS
from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..maths.gaussian import Marginals
from ..maths.modules import Module
from .functions import Functions


class Posterior(Module):
    """p(f | data): the latent function's marginals, joint covariance and draws, at any rows."""

    likelihood: Likelihood
    _n_rows: float
    has_cheap_mean: bool = False
    """Whether :meth:`mean` takes much less than :meth:`marginals`; for additive noise."""

    @property
    def block_rows(self) -> int:
        """Rows that predictions are made of at a time."""
        return BLOCK_ROWS

    @property
    def n_rows(self) -> float:
        """How many rows the data count for."""
        return self._n_rows

    def log_evidence(self) -> Tensor:
        """log p(y | X) of each output, (P,) nats."""
        raise NotImplementedError

    def marginals(self, X: Tensor) -> Marginals:
        """q(f) at each row of X: X (N, d), mean and var (1, N, P)."""
        raise NotImplementedError

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        """q(f) at each row of X, and p(y | f) there, given what is known of the rows besides."""
        return self.marginals(X), self.likelihood.of(rows)

    def mean(self, X: Tensor) -> Tensor:
        """E f at each row of X, which may be cheaper without variances: (N, P)."""
        return self.marginals(X).mixture_moments()[0]

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of f at the rows of X, one for each output: (P, N, N)."""
        raise NotImplementedError

    def between(self, X: Tensor) -> Tensor | float:
        """The part of that covariance that is of the means of a mixture's parts."""
        return 0.0

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws of f at the rows of X: (n_samples, N, P)."""
        raise NotImplementedError

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        """Draws of f as functions: X (N, d) → (n_samples, N, P), the same at every call."""
        raise ValueError(
            f"{type(self).__name__} cannot draw functions of X. Use sample_y for joint "
            "draws at given rows."
        )

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws of y, as those of f."""
        f = self.sample(X, n_samples, generator)
        return self.likelihood.of(rows).sample(f, generator)


class Weights(Module):
    """q(w): what the features' weights are believed to be, one set for each of P outputs."""

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        """q(f) at each row: phi (N, D), residual (N,) → mean and var (1, N, P)."""
        raise NotImplementedError

    def covariance(self, phi: Tensor) -> Tensor:
        """Joint covariance of φᵀw at the rows of phi: (P, N, N)."""
        raise NotImplementedError

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws of w: (n_samples, D, P)."""
        raise NotImplementedError
