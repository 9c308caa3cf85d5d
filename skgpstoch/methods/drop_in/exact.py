"""Exact Gaussian-process regression: all rows, any kernel, one Cholesky factor.

With targets y = f(x) + ε, f ~ GP(0, k), ε_i ~ N(0, noise_i), and k(X, X) including the WhiteKernels
of the expression, hyper-parameters are θ̂ = argmax log N(y | 0, k(X, X) + diag(noise)).

The mathematics is in :mod:`skgpstoch.maths.exact_solver`, the search in
:mod:`skgpstoch.training.exact_search`, covariance matrices in :mod:`skgpstoch.kernels.matrices`.
The estimator with this method, among others, is :class:`~skgpstoch.GaussianProcessRegressor`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...data.arrays import borrowed
from ...data.devices import map_blocks
from ...data.messages import warn
from ...kernels import Kernel, from_sklearn, split_noise
from ...kernels.matrices import Covariance, covariance_of
from ...maths.exact_solver import ExactSolver
from ...maths.linalg import NotPositiveDefiniteError, cholesky_
from ...models.posteriors.exact import ExactPosterior
from ...models.posteriors.functions import Functions, prior_functions
from ...models.posteriors.gradients import MomentGradients, gradients_by_blocks
from ...training.exact_search import TrainingSet

MOST_NEGATIVE = 0.01  # of the prior variance, by which rounding makes a variance negative
NEGATIVE_SHARE = 1e-8  # of the prior variance, by which a variance is negative without a warning


class ExactModel(NamedTuple):
    """f* with white noise, given rows: the kernel at θ̂, the factor L (N, N) of C, and α (N, P)."""

    kernel: sk.Kernel
    rows: TrainingSet
    L: np.ndarray
    alpha: np.ndarray

    @classmethod
    def fitted(cls, kernel: sk.Kernel, rows: TrainingSet, search: tuple) -> ExactModel:
        """Maximise the evidence, and condition on the rows.

        `search` is the optimiser, the number of restarts and the random state.

        Raises
        ------
        NotPositiveDefiniteError
            If the covariance is not positive definite at the best θ.
        """
        kernel = rows.best(kernel, search)
        solver, _ = rows.evidence(kernel).solved(kernel.theta, False)
        if solver is None:
            raise not_positive_definite(kernel)
        model = cls(kernel, rows, *arrays_of(solver))
        if not (math.isfinite(model.log_evidence()) and np.isfinite(model.alpha).all()):
            raise ValueError(
                f"The marginal likelihood is not finite with the kernel {kernel}. y is probably "
                "on an extreme scale; set normalize_y=True."
            )
        return model

    def extended(self, more: TrainingSet) -> ExactModel:
        """Return the model given k more rows, with the same kernel, in O(n²k) time.

        Raises
        ------
        NotPositiveDefiniteError
            If the covariance of all rows is not positive definite.
        """
        k, (Y, noise) = self.covariance, more.tensors()
        C = k.among(more.X)
        C.diagonal().add_(noise)

        def factor(corner: Tensor) -> Tensor:  # without jitter, as in a fit
            if not cholesky_(corner):
                raise not_positive_definite(self.kernel)
            return corner

        Y = torch.cat([self.rows.tensors()[0], Y])
        solver = self.solver.extended(k.cross(more.X), C, Y, factor)
        X = np.concatenate([self.rows.X, more.X])
        rows = self.rows._replace(X=X, Y=Y.cpu().numpy())
        return ExactModel(self.kernel, rows, *arrays_of(solver))

    @property
    def covariance(self) -> Covariance:
        """The kernel's covariance of the rows."""
        return self.rows.covariance(self.kernel)

    @property
    def solver(self) -> ExactSolver:
        """What solves for C."""
        return ExactSolver(*(borrowed(a).to(self.rows.device) for a in (self.L, self.alpha)))

    def log_evidence(self) -> float:
        """Return log p(Y | X), in nats."""
        return float(self.solver.log_density(self.rows.tensors()[0]))

    def moments(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance (0 unless `with_variance`), each (N*, P), by blocks of rows."""
        k, solver = self.covariance, self.solver
        mean, var = np.empty((len(X), solver.A.shape[1])), np.zeros(len(X))
        least = [0.0]

        def compute(block: slice) -> None:
            K_star = k.cross(X[block])  # (b, N)
            mean[block] = solver.mean(K_star).cpu().numpy()
            if with_variance:
                prior = k.diag(X[block])
                of_block = solver.variance(prior, K_star)
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
        k, solver = self.covariance, self.solver
        K_star = k.cross(X)
        mean, prior = solver.mean(K_star), k.among(X)
        cov = solver.covariance(prior, K_star)
        if (cov.diagonal() < -MOST_NEGATIVE * prior.diagonal()).any():
            raise NotPositiveDefiniteError(
                f"The covariance has a variance of {float(cov.diagonal().min()):.3g}, because that "
                "of the training rows is nearly singular, or that of other rows. Raise alpha."
            )
        return mean.cpu().numpy(), np.repeat(cov.cpu().numpy()[..., None], mean.shape[1], 2)

    def gradients(self, X: np.ndarray) -> MomentGradients:
        """Return mean and standard deviation, and their gradients with respect to the inputs."""
        posterior = self.posterior()

        def moments(block: Tensor) -> tuple[Tensor, Tensor]:
            return posterior.marginals(block).mixture_moments()

        return gradients_by_blocks(moments, torch.tensor(X, dtype=torch.float64), self.rows.device)

    def functions(self, n_inputs: int, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f, without white noise."""
        return self.posterior(latent=True).functions(n_samples, generator)

    def posterior(self, latent: bool = False) -> ExactPosterior:
        """Return this model as a posterior in torch, on the device.

        Its f includes the white noise unless it is `latent`.
        """
        device = self.rows.device
        X, Y = (torch.tensor(a, dtype=torch.float64, device=device) for a in self.rows[:2])
        kernel = in_torch(split_noise(self.kernel)[0] if latent else self.kernel, device)
        return ExactPosterior.from_solver(kernel, X, Y, self.solver)


def arrays_of(solver: ExactSolver) -> tuple[np.ndarray, np.ndarray]:
    """Return L and α as arrays."""
    return solver.L.cpu().numpy(), solver.A.cpu().numpy()


def not_positive_definite(kernel: sk.Kernel) -> NotPositiveDefiniteError:
    """Return the error for a covariance matrix of rows that has no factor."""
    return NotPositiveDefiniteError(
        f"The kernel, {kernel}, is not returning a positive definite matrix. Try gradually "
        "increasing the 'alpha' parameter of your GaussianProcessRegressor estimator."
    )


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


def in_torch(kernel: sk.Kernel, device: torch.device) -> Kernel:
    """Return a kernel with fixed hyper-parameters, differentiable with respect to the inputs.

    Raises
    ------
    TypeError
        If the kernel does not run in torch.
    """
    return from_sklearn(kernel).to(device).requires_grad_(False)
