"""Exact Gaussian-process regression, O(n³) time and O(n²) memory, for kernels without features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import Kernel
from ..likelihoods.real import Gaussian
from ..maths.gaussian import LOG_2PI, Marginals
from ..maths.linalg import add_diagonal, cholesky, log_det, tri_solve
from .base import Posterior


class ExactPosterior(Posterior):
    """p(f | y) of y = f(g(x)) + ε, f ~ GP(0, k) (Rasmussen & Williams, Algorithm 2.1).

    Parameters
    ----------
    kernel : Kernel
        k, on the outputs of the network.
    network : nn.Module
        g: (N, d) → (N, D).
    likelihood : Gaussian
        σ², one for each output.
    X, y : Tensors of shape (N, d) and (N, P)
        The data, in float64.
    """

    likelihood: Gaussian
    X: Tensor
    y: Tensor
    factor: Tensor
    alpha: Tensor

    def __init__(
        self, kernel: Kernel, network: nn.Module, likelihood: Gaussian, X: Tensor, y: Tensor
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.network = network
        self.likelihood = likelihood
        with torch.no_grad():
            K = kernel(network(X)).double()
            K = K.expand(y.shape[1], -1, -1)
            L = cholesky(add_diagonal(K, likelihood.noise_variance), "kernel matrix of all rows")
            alpha = torch.cholesky_solve(y.mT[..., None], L)[..., 0].mT
        for name, value in {"X": X, "y": y, "factor": L, "alpha": alpha}.items():
            self.register_buffer(name, value)  # alpha = (K + σ²I)⁻¹y, (N, P)

    @property
    def n_rows(self) -> int:
        return len(self.X)

    def refit(self, X: Tensor, y: Tensor) -> ExactPosterior:
        return ExactPosterior(self.kernel, self.network, self.likelihood, X, y)

    def log_evidence(self) -> Tensor:
        fit = (self.y * self.alpha).sum(0)
        return -0.5 * (fit + log_det(self.factor) + len(self.X) * LOG_2PI)

    def marginals(self, X: Tensor) -> Marginals:
        G = self.network(X)
        K_star = self.kernel(G, self.network(self.X))  # (N*, N)
        V = tri_solve(self.factor, K_star.mT.expand(len(self.factor), -1, -1))  # (P, N, N*)
        # Rounding can leave −1e-16 at a noiseless training row.
        var = (self.kernel.diag(G) - V.square().sum(1)).clamp_min(0.0)
        return Marginals((K_star @ self.alpha)[None], var.mT[None])

    def covariance(self, X: Tensor) -> Tensor:
        G = self.network(X)
        V = tri_solve(
            self.factor, self.kernel(self.network(self.X), G).expand(len(self.factor), -1, -1)
        )
        return self.kernel(G) - V.mT @ V

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        mean = self.marginals(X).mean[0]  # (N, P)
        L = cholesky(self.covariance(X), "posterior covariance")
        z = torch.randn(
            (len(L), len(X), n_samples), generator=generator, dtype=L.dtype, device=L.device
        )
        return mean + (L @ z).permute(2, 1, 0)
