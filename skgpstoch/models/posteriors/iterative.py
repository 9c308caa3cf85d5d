"""Exact Gaussian-process regression by conjugate gradients, for too many rows to factorise.

Let C = k(X, X) + σ²I; products with it are computed in blocks of rows, in O(n) memory. The
preconditioner M = LLᵀ + σ²I comes from a pivoted Cholesky decomposition (Gardner et al., "GPyTorch:
blackbox matrix-matrix Gaussian process inference with GPU acceleration", NeurIPS 2018). Then

    E f* = K*α,  α = C⁻¹y        cov f* = K** − K*C⁻¹K*ᵀ

where each column of K*ᵀ gives a linear system. A residual r of a system makes an error of rᵀC⁻¹r in
the variance. It is at most rᵀM⁻¹r, because C − M = K − LLᵀ is positive semi-definite, and conjugate
gradients compute rᵀM⁻¹r anyway.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...data.rows import Rows
from ...kernels import Kernel, scaled
from ...kernels.products import KernelRows, low_rank
from ...likelihoods.real import Gaussian
from ...maths.conjugate_gradients import COLUMNS, Product, conjugate_gradients
from ...maths.gaussian import Marginals
from ...maths.linalg import NotPositiveDefiniteError, cholesky
from ...maths.pivoted_cholesky import LowRankInverse
from .base import Posterior
from .functions import Functions, posterior_functions

POSTERIOR_RANK = 500  # rank of the preconditioner
TOL_MEAN, TOL_VARIANCE = 1e-8, 1e-6  # relative tolerances of residuals
MOST_ITERATIONS = 5_000
VARIANCE_ERROR = 1e-3  # largest error of a variance, relative to the noise variance


class IterativePosterior(Posterior):
    """p(f | y) for y = f(x) + ε, f ~ GP(0, k), ε ~ N(0, σ²), with one σ² for all outputs.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    likelihood : Gaussian
        The noise variance σ², the same for all outputs.
    X, rows : Tensor of shape (N, d) and Rows
        The data, in float64; the dtype of X determines that of covariances.
    network : nn.Module or None, default=None
        The network g: (N, d) → (N, D) below the kernel, k(g(x), g(x')); None is the identity.
    """

    likelihood: Gaussian
    has_cheap_mean = True
    X: Tensor
    noise: Tensor
    alpha: Tensor

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Gaussian,
        X: Tensor,
        rows: Rows,
        network: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.likelihood = likelihood
        self.network = nn.Sequential() if network is None else network
        with torch.no_grad():
            X = self.network(X)  # keep the training rows as the kernel sees them
            variance = likelihood.noise_variance.double().reshape(-1)[:1]
            weight = (
                torch.ones(len(X), 1, device=X.device).to(variance)
                if rows.weight is None
                else rows.weight
            )
        self.register_buffer("X", X)
        self.register_buffer("noise", variance / weight.double().reshape(-1, 1))  # (N, 1)
        self.register_buffer("alpha", self.solve(rows.y.double(), TOL_MEAN))  # (N, P)
        self._n_rows = rows.n_effective

    def log_evidence(self) -> Tensor:
        """Return NaN: the determinant needs a factor of C, which would not fit into memory."""
        return torch.full_like(self.alpha[0], torch.nan)

    @torch.no_grad()
    def product(self, V: Tensor) -> Tensor:
        """Return C @ V, (N, R)."""
        return KernelRows(self.kernel, self.X, self.X, keeps=False).product(V) + self.noise * V

    @torch.no_grad()
    def preconditioner(self) -> Product:
        """Return V ↦ M⁻¹V, made anew: that takes less time than a solution, and L is large."""
        factor = low_rank(self.kernel, self.X.double(), self.noise, POSTERIOR_RANK)
        return LowRankInverse(factor, self.noise)

    @torch.no_grad()
    def solve(
        self,
        B: Tensor,
        tol: float,
        precondition: Product | None = None,
        most_energy: float = math.inf,
    ) -> Tensor:
        """Return C⁻¹B, (N, R); to solve many blocks, pass the same preconditioner each time.

        Raises
        ------
        NotPositiveDefiniteError
            If conjugate gradients do not converge.
        """
        found = conjugate_gradients(
            self.product,
            B,
            precondition=precondition or self.preconditioner(),
            tol=tol,
            max_iter=MOST_ITERATIONS,
            most_energy=most_energy,
        )
        if not found.converged:
            raise NotPositiveDefiniteError(
                f"The covariance of {len(self.X)} rows is too nearly singular: conjugate "
                f"gradients did not converge in {MOST_ITERATIONS} iterations. The noise "
                "variance is probably too small; raise the lower bound of a WhiteKernel."
            )
        return found.solution

    def explaining(self, K_star: Tensor, inverse: Product) -> Tensor:
        """Return C⁻¹K*ᵀ, (N, b), with the accuracy that variances need."""
        most = VARIANCE_ERROR * float(self.likelihood.noise_variance.min())
        return self.solve(K_star.mT, TOL_VARIANCE, inverse, most)

    @torch.no_grad()
    def scale_(self, factor: float) -> IterativePosterior:
        """Scale the kernel and the noise, in place; means do not change."""
        self.kernel = scaled(self.kernel, factor)
        self.likelihood = Gaussian(self.likelihood.noise_variance * factor)
        self.noise *= factor
        self.alpha /= factor
        return self

    def cross(self, X: Tensor) -> Tensor:
        """Return k(X*, X), (N*, N), float64."""
        return self.kernel(self.network(X.to(self.X)), self.X).double()

    def mean(self, X: Tensor) -> Tensor:
        mean = X.new_empty(len(X), self.alpha.shape[1])
        for block in torch.arange(len(X), device=X.device).split(COLUMNS):
            mean[block] = self.cross(X[block]) @ self.alpha
        return mean

    def marginals(self, X: Tensor) -> Marginals:
        mean, var = X.new_empty(len(X), self.alpha.shape[1]), X.new_empty(len(X), 1)
        inverse = self.preconditioner()
        for block in torch.arange(len(X), device=X.device).split(COLUMNS):
            K_star = self.cross(X[block])  # (b, N)
            mean[block] = K_star @ self.alpha
            half = (K_star.mT * self.explaining(K_star, inverse)).sum(0)
            # The solution has no graph, so this gives only half of the gradient of k*C⁻¹k*ᵀ.
            explained = 2.0 * half - half.detach()
            var[block, 0] = (self.kernel.diag(self.network(X[block])) - explained).clamp_min(0.0)
        return Marginals(mean[None], var.expand_as(mean)[None])

    def covariance(self, X: Tensor) -> Tensor:
        K_star = self.cross(X)
        inverse = self.preconditioner()
        parts = K_star.split(COLUMNS)
        # S has no graph, but the expression below is stationary in S, so S adds no gradient.
        S = torch.cat([self.explaining(part, inverse) for part in parts], 1)
        KS = K_star @ S
        # With SᵀCS the error of the whole matrix is positive semi-definite, not only its diagonal.
        K = self.kernel(self.network(X)) - KS - KS.mT + S.mT @ self.product(S)
        return (0.5 * (K + K.mT)).expand(self.alpha.shape[1], -1, -1).clone()

    @torch.no_grad()
    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        def solve(error: Tensor) -> Tensor:
            V = self.solve(error.transpose(0, 1).flatten(1), TOL_MEAN)
            return V.unflatten(1, error.shape[::2]).transpose(0, 1)

        given = self.X.double(), self.product(self.alpha), self.noise, solve
        return posterior_functions(self.kernel, self.network, *given, n_samples, generator)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        mean = self.cross(X) @ self.alpha  # (N, P)
        L = cholesky(self.covariance(X)[0], "posterior covariance")
        shape = (n_samples, len(X), mean.shape[1])
        return mean + L @ torch.randn(shape, generator=generator, dtype=L.dtype, device=L.device)
