"""Exact Gaussian-process regression: all rows, any kernel, one Cholesky factor.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, MIT Press, 2006, Algorithm 2.1 and
section 5.4.1. With targets y = f(x) + ε, f ~ GP(0, k), ε_i ~ N(0, noise_i), and k(X, X) including
the WhiteKernels of the expression,

    θ̂ = argmax log N(y | 0, C),   C = k(X, X) + diag(noise) = LLᵀ,   α = C⁻¹y
    f* ~ N(k(X*, X)α,  k(X*, X*) − VᵀV),   V = L⁻¹k(X, X*)

The evidence, its gradient and the search are in :mod:`skgpstoch.training.exact_search`; covariance
matrices are in :mod:`skgpstoch.kernels.matrices`. The estimator with this method, among others, is
:class:`~skgpstoch.GaussianProcessRegressor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ..data.arrays import borrowed
from ..data.devices import map_blocks
from ..data.messages import warn
from ..kernels import Kernel, from_sklearn, split_noise
from ..kernels.matrices import covariance_of
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import NotPositiveDefiniteError, cholesky_, extended_cholesky, log_det
from ..posteriors.exact import ExactPosterior, conditional_variance
from ..posteriors.functions import Functions, prior_functions
from ..posteriors.gradients import MomentGradients, gradients_by_blocks
from ..training.exact_search import TrainingSet, factorise, search_evidence

NEGATIVE_SHARE = 1e-8  # of the prior variance, by which a variance is negative without a warning


class ExactFit(NamedTuple):
    """Result of a fit: the kernel at θ̂, L (N, N), α (N, P), and the evidence in nats."""

    kernel: sk.Kernel
    L: np.ndarray
    alpha: np.ndarray
    value: float


def fit(
    kernel: sk.Kernel,
    rows: TrainingSet,
    optimizer: str | Callable | None,
    n_restarts: int,
    random_state: np.random.RandomState,
) -> ExactFit:
    """Maximise the evidence from the kernel's θ and from random ones, and condition on the rows.

    Raises
    ------
    NotPositiveDefiniteError
        If the covariance is not positive definite at the best θ.
    """
    kernel, value = search_evidence(kernel, rows, optimizer, n_restarts, random_state)
    factors = factorise(rows.covariance(kernel), *rows.tensors())
    if factors is None:
        raise not_positive_definite(kernel)
    L, alpha = (factor.cpu().numpy() for factor in factors)
    if not math.isfinite(value) or not np.isfinite(alpha).all():
        raise ValueError(
            f"The marginal likelihood is not finite with the kernel {kernel}. y is probably "
            "on an extreme scale; set normalize_y=True."
        )
    return ExactFit(kernel, L, alpha, value)


def not_positive_definite(kernel: sk.Kernel) -> NotPositiveDefiniteError:
    """Return the error for a covariance matrix of rows that has no factor."""
    return NotPositiveDefiniteError(
        f"The kernel, {kernel}, is not returning a positive definite matrix. Try gradually "
        "increasing the 'alpha' parameter of your GaussianProcessRegressor estimator."
    )


def extended(fitted: ExactFit, rows: TrainingSet, more: TrainingSet) -> ExactFit:
    """Return the fit to these rows and k more, with the same kernel, in O(n²k) time.

    Raises
    ------
    NotPositiveDefiniteError
        If the covariance of all rows is not positive definite.
    """
    k = rows.covariance(fitted.kernel)
    Y, noise = more.tensors()
    C = k.among(more.X)
    C.diagonal().add_(noise)

    def factor(corner: Tensor) -> Tensor:  # without jitter, as in a fit
        if not cholesky_(corner):
            raise not_positive_definite(fitted.kernel)
        return corner

    L = extended_cholesky(borrowed(fitted.L).to(k.device), k.cross(more.X), C, factor)
    Y = torch.cat([rows.tensors()[0], Y])
    alpha = torch.cholesky_solve(Y, L)
    normaliser = Y.shape[1] * 0.5 * (log_det(L) + len(Y) * LOG_2PI)
    value = float(-0.5 * (Y * alpha).sum() - normaliser)
    return ExactFit(fitted.kernel, L.cpu().numpy(), alpha.cpu().numpy(), value)


# ---- predictions ---------------------------------------------------------------------------------


class PriorModel(NamedTuple):
    """The model before a fit: f ~ GP(0, k) for every target."""

    kernel: sk.Kernel
    n_targets: int
    device: torch.device

    def moments(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance, each (N*, P)."""
        var = covariance_of(self.kernel, X[:1], self.device).diag(X).cpu().numpy()
        return np.zeros((len(X), self.n_targets)), np.repeat(var[:, None], self.n_targets, 1)

    def joint(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (N*, P) and covariance (N*, N*, P)."""
        cov = covariance_of(self.kernel, X[:1], self.device).among(X).cpu().numpy()
        return np.zeros((len(X), self.n_targets)), np.repeat(cov[..., None], self.n_targets, 2)

    def gradients(self, X: np.ndarray) -> MomentGradients:
        """Return mean and standard deviation, and their gradients with respect to the inputs."""
        kernel = in_torch(self.kernel, self.device)

        def moments(block: Tensor) -> tuple[Tensor, Tensor]:
            var = kernel.diag(block)[:, None].expand(-1, self.n_targets)
            return torch.zeros_like(var), var

        return gradients_by_blocks(moments, torch.tensor(X, dtype=torch.float64), self.device)

    def functions(self, n_inputs: int, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f, without white noise."""
        kernel = in_torch(split_noise(self.kernel)[0], self.device)
        return prior_functions(kernel, n_inputs, n_samples, self.n_targets, generator)


class ExactModel(NamedTuple):
    """f* with white noise, given the rows of a fit."""

    fitted: ExactFit
    rows: TrainingSet

    def moments(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance (0 unless `with_variance`), each (N*, P), by blocks of rows."""
        k = self.rows.covariance(self.fitted.kernel)
        L, alpha = (borrowed(a).to(k.device) for a in (self.fitted.L, self.fitted.alpha))
        mean, var = np.empty((len(X), alpha.shape[1])), np.zeros(len(X))
        least = [0.0]

        def compute(block: slice) -> None:
            K_star = k.cross(X[block])  # (b, N)
            mean[block] = (K_star @ alpha).cpu().numpy()
            if with_variance:
                prior = k.diag(X[block])
                of_block = conditional_variance(prior, L, K_star)
                least.append(float((of_block / prior.clamp_min(np.finfo(np.float64).tiny)).min()))
                var[block] = of_block.clamp_min_(0.0).cpu().numpy()

        map_blocks(compute, len(X), k.block_rows)
        if min(least) < -NEGATIVE_SHARE:
            warn(
                "Predicted variances smaller than 0. Setting those variances to 0. The "
                "covariance of the training rows is nearly singular; raise alpha."
            )
        return mean, np.repeat(var[:, None], mean.shape[1], 1)

    def joint(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (N*, P) and covariance (N*, N*, P): O(N*²) memory."""
        mean, _ = self.moments(X, with_variance=False)
        k = self.rows.covariance(self.fitted.kernel)
        L = borrowed(self.fitted.L).to(k.device)
        V = torch.linalg.solve_triangular(L, k.cross(X).mT, upper=False)  # (N, N*)
        cov = k.among(X).addmm_(V.mT, V, alpha=-1).cpu().numpy()
        return mean, np.repeat(cov[..., None], mean.shape[1], 2)

    def gradients(self, X: np.ndarray) -> MomentGradients:
        """Return mean and standard deviation, and their gradients with respect to the inputs."""
        posterior, device = self.posterior(), self.rows.device

        def moments(block: Tensor) -> tuple[Tensor, Tensor]:
            return posterior.marginals(block).mixture_moments()

        return gradients_by_blocks(moments, torch.tensor(X, dtype=torch.float64), device)

    def functions(self, n_inputs: int, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f, without white noise."""
        return self.posterior(latent=True).functions(n_samples, generator)

    def posterior(self, latent: bool = False) -> ExactPosterior:
        """Return this model as a posterior in torch, on the device.

        Its f includes the white noise unless it is `latent`.
        """
        X, Y, L, alpha = (
            torch.tensor(a, dtype=torch.float64, device=self.rows.device)
            for a in (self.rows.X, self.rows.Y, self.fitted.L, self.fitted.alpha)
        )
        kernel = self.fitted.kernel
        kernel = in_torch(split_noise(kernel)[0] if latent else kernel, self.rows.device)
        return ExactPosterior.from_factor(kernel, X, Y, L, alpha)


def in_torch(kernel: sk.Kernel, device: torch.device) -> Kernel:
    """Return a kernel with fixed hyper-parameters, differentiable with respect to the inputs.

    Raises
    ------
    TypeError
        If the kernel does not run in torch.
    """
    return from_sklearn(kernel).to(device).requires_grad_(False)
