"""Exact Gaussian-process regression, O(n³) time and O(n²) memory, for kernels without features.

The mathematics is in :mod:`skgpstoch.maths.exact_solver`, and
:mod:`skgpstoch.training.exact_search` searches for hyper-parameters.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ...data.rows import Rows
from ...kernels import Kernel, scaled
from ...likelihoods.real import Gaussian
from ...maths.exact_solver import ExactSolver
from ...maths.gaussian import LOG_2PI, Marginals, standard_normal
from ...maths.linalg import add_diagonal, cholesky
from .base import Posterior
from .functions import Functions, posterior_functions


def noisy(K: Tensor, noise: Tensor, rows: Rows) -> Tensor:
    """Return K + σ²I of every output, (P, N, N), for K (N, N) and σ² (P,).

    A row of weight w has σ²/w.
    """
    K = K.expand(len(noise), -1, -1)
    if rows.weight is None:
        return add_diagonal(K, noise)
    return K + torch.diag_embed(noise[:, None] / rows.weight.to(K))


def repetition(noise: Tensor, rows: Rows) -> Tensor:
    """Return what the weights w of rows add to −2 log N(y | 0, K + diag(σ²/w)), (P,).

    w equal observations count as their mean, which has the noise variance σ²/w, and as w − 1
    further observations at that mean. σ² is (P,) or (N, P).
    """
    if rows.weight is None:
        return noise.new_zeros(noise.shape[-1])
    w = rows.weight.to(noise)[:, None]
    return ((w - 1.0) * (noise.log() + LOG_2PI) + w.log()).sum(0)


class ExactPosterior(Posterior):
    """p(f | y) for y = f(g(x)) + ε, f ~ GP(0, k) (Rasmussen & Williams, Algorithm 2.1).

    Parameters
    ----------
    kernel : Kernel
        The kernel k, on the outputs of the network.
    network : nn.Module
        The network g: (N, d) → (N, D).
    likelihood : Gaussian
        The noise variance σ², one for each output.
    X, rows : Tensor of shape (N, d) and Rows
        The data, in float64.
    """

    likelihood: Gaussian
    X: Tensor
    y: Tensor
    constant: Tensor
    factor: Tensor
    alpha: Tensor

    def __init__(
        self, kernel: Kernel, network: nn.Module, likelihood: Gaussian, X: Tensor, rows: Rows
    ) -> None:
        super().__init__()
        with torch.no_grad():
            noise, y = likelihood.noise_variance, rows.y
            C = noisy(kernel(network(X)).double(), noise, rows)
            solver = ExactSolver.of(C, y.mT[..., None], "kernel matrix of all rows")
            constant = repetition(noise, rows)
        self.likelihood = likelihood
        self._keep(kernel, network, rows.n_effective, X, y, solver, constant)

    @classmethod
    def from_solver(
        cls, kernel: Kernel, X: Tensor, y: Tensor, solver: ExactSolver
    ) -> ExactPosterior:
        """Return p(f | y) from a known factor L (N, N), which all outputs share.

        The result has no likelihood; the noise in L is the caller's.
        """
        posterior = cls.__new__(cls)
        nn.Module.__init__(posterior)
        of_outputs = ExactSolver(solver.L.expand(y.shape[1], -1, -1), solver.A.mT[..., None])
        posterior._keep(
            kernel, nn.Identity(), float(len(X)), X, y, of_outputs, torch.zeros_like(y[0])
        )
        return posterior

    def _keep(
        self,
        kernel: Kernel,
        network: nn.Module,
        n_rows: float,
        X: Tensor,
        y: Tensor,
        solver: ExactSolver,
        constant: Tensor,
    ) -> None:
        """Store the parts; the solver is that of every output, (P, N, N) and (P, N, 1)."""
        self.kernel = kernel
        self.network = network
        self._n_rows = n_rows
        buffers = {"X": X, "y": y, "factor": solver.L, "alpha": solver.A[..., 0].mT}
        for name, value in {**buffers, "constant": constant}.items():
            self.register_buffer(name, value)

    @property
    def solver(self) -> ExactSolver:
        """What solves for every output, with L (P, N, N) and A (P, N, 1)."""
        return ExactSolver(self.factor, self.alpha.mT[..., None])

    @torch.no_grad()
    def scale_(self, factor: float) -> ExactPosterior:
        """Scale the kernel and the noise, in place; means do not change."""
        self.kernel = scaled(self.kernel, factor)
        self.likelihood = Gaussian(self.likelihood.noise_variance * factor)
        self.factor *= math.sqrt(factor)
        self.alpha /= factor
        self.constant += (self.n_rows - len(self.X)) * math.log(factor)
        return self

    def refit(self, X: Tensor, rows: Rows) -> ExactPosterior:
        """Return the posterior given other data, with the same hyper-parameters."""
        return ExactPosterior(self.kernel, self.network, self.likelihood, X, rows)

    def extended(self, X: Tensor, rows: Rows) -> ExactPosterior:
        """Return the posterior given k more rows, with the same hyper-parameters, in O(n²k)."""
        G, noise = self.network(X), self.likelihood.noise_variance
        C = noisy(self.kernel(G).double(), noise, rows)
        K = self.kernel(G, self.network(self.X)).double()  # (k, N)
        prior = C.diagonal(dim1=-2, dim2=-1).mean(-1)
        X, y = torch.cat([self.X, X]), torch.cat([self.y, rows.y])
        solver = self.solver.extended(
            K, C, y.mT[..., None], lambda S: cholesky(S, "kernel matrix of all rows", prior)
        )
        n_rows, constant = self.n_rows + rows.n_effective, self.constant + repetition(noise, rows)
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        other._keep(self.kernel, self.network, n_rows, X, y, solver, constant)
        return other

    def log_evidence(self) -> Tensor:
        return self.solver.log_density(self.y.mT[..., None]) - 0.5 * self.constant

    def marginals(self, X: Tensor) -> Marginals:
        G = self.network(X)
        K_star = self.kernel(G, self.network(self.X))  # (N*, N)
        of_outputs = K_star.expand(len(self.factor), -1, -1)
        # Rounding can leave −1e-16 at a noiseless training row.
        var = self.solver.variance(self.kernel.diag(G), of_outputs).clamp_min(0.0)  # (P, N*)
        return Marginals((K_star @ self.alpha)[None], var.mT[None])

    def covariance(self, X: Tensor) -> Tensor:
        G = self.network(X)
        K_star = self.kernel(G, self.network(self.X))  # (N*, N)
        return self.solver.covariance(self.kernel(G), K_star.expand(len(self.factor), -1, -1))

    @torch.no_grad()
    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        G = self.network(self.X)
        noise = self.factor.square().sum(-1) - self.kernel.diag(G)  # diag(LLᵀ − K), (P, N)

        def solve(error: Tensor) -> Tensor:
            return ExactSolver.given(self.factor, error.permute(2, 1, 0)).A.permute(2, 1, 0)

        given = G, self.y, noise.clamp_min(0.0).mT, solve
        return posterior_functions(self.kernel, self.network, *given, n_samples, generator)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        mean = self.marginals(X).mean[0]  # (N, P)
        L = cholesky(self.covariance(X), "posterior covariance")
        z = standard_normal((len(L), len(X), n_samples), L, generator)
        return mean + (L @ z).permute(2, 1, 0)
