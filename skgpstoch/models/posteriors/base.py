"""Base classes of the results of a fit: posteriors of f, and of the weights of features."""

from __future__ import annotations

import torch
from torch import Tensor

from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...likelihoods.base import Likelihood
from ...maths.gaussian import Marginals
from ...maths.modules import Module
from .functions import Functions


class Posterior(Module):
    """Base class of p(f | data): marginals, joint covariance and draws of f at any rows."""

    likelihood: Likelihood
    _n_rows: float
    has_cheap_mean: bool = False
    """Whether :meth:`mean` is much cheaper than :meth:`marginals`; for additive noise."""

    @property
    def block_rows(self) -> int:
        """Number of rows that are predicted at a time."""
        return BLOCK_ROWS

    @property
    def gradient_rows(self) -> int:
        """Number of rows whose gradients are computed at a time; a kernel's parts are all kept."""
        kernel = getattr(self, "kernel", None)
        n_parts = len(list(kernel.named_modules(remove_duplicate=False))) if kernel else 0
        return max(1, self.block_rows // (2 * n_parts or 1))

    @property
    def summary(self) -> Posterior:
        """A posterior with nearly the same mean, which takes little time; this one if it does."""
        return self

    @property
    def n_rows(self) -> float:
        """Sum of the weights of the training rows."""
        return self._n_rows

    def log_evidence(self) -> Tensor:
        """Return the log evidence log p(y | X) of each output, (P,) nats."""
        raise NotImplementedError

    def marginals(self, X: Tensor) -> Marginals:
        """Return q(f) at each row of X (N, d): mean and variance (1, N, P)."""
        raise NotImplementedError

    def told(self, X: Tensor, curvature: Tensor | None) -> Tensor | None:
        """Return the part of f's variances (N, P) that rows have told, or None if it is unknown.

        Bayes' rule would change it most if a row were left out, and the mean of f with it. The rest
        of the variance stays, as rows cannot tell it. `curvature` is λ (N, P), if X are all
        training rows, with −λ the curvature of E_q[log p(y | f)] by the mean of f; else None.
        """
        return self.marginals(X).mixture_moments()[1]

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        """Return q(f) and p(y | f) at each row of X, given the rows' exposures or known errors."""
        return self.marginals(X), self.likelihood.of(rows)

    def mean(self, X: Tensor) -> Tensor:
        """Return E f at each row of X, (N, P); this may be cheaper than :meth:`marginals`."""
        return self.marginals(X).mixture_moments()[0]

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of f at the rows of X for each output: (P, N, N)."""
        raise NotImplementedError

    def between(self, X: Tensor) -> Tensor | float:
        """Return the part of that covariance that lies between a mixture's component means."""
        return 0.0

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw f jointly at the rows of X: (n_samples, N, P)."""
        raise NotImplementedError

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f as functions X (N, d) → (n_samples, N, P), which are the same at every call."""
        raise ValueError(
            "The posterior of this model cannot draw functions of X. Use sample_y for joint draws "
            "at given rows."
        )

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw y jointly at the rows of X: (n_samples, N, P)."""
        f = self.sample(X, n_samples, generator)
        return self.likelihood.of(rows).sample(f, generator)


class Weights(Module):
    """Base class of q(w), the distribution of the features' weights for each of P outputs."""

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        """Return q(f) at each row: phi (N, D), residual (N,) → mean and variance (1, N, P)."""
        raise NotImplementedError

    def covariance(self, phi: Tensor) -> Tensor:
        """Return the joint covariance of φᵀw at the rows of phi: (P, N, N)."""
        raise NotImplementedError

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw w: (n_samples, D, P)."""
        raise NotImplementedError
