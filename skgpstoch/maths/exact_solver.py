"""Solve for an exact Gaussian process: everything follows from one Cholesky factor.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, MIT Press, 2006, chapters 2 and 5:
with C = K + noise = LLᵀ and A = C⁻¹Y, for the P columns of Y, which share C,

    log N(Y | 0, C) = −½ tr(YᵀA) − P·(Σᵢ log Lᵢᵢ + n/2·log 2π)                    (Algorithm 2.1)
    ∂/∂C = ½(AAᵀ − P·C⁻¹)                                                         (eq. 5.9)
    E f* = K*A,   cov f* = K** − VᵀV,   V = L⁻¹K*ᵀ                                (Algorithm 2.1)
    y − μ₋ = A/q,   v₋ = 1/q,   q = diag C⁻¹,   for a row given the others        (eq. 5.12)

Leading dimensions are a batch: outputs with noise of their own, or rows with their neighbours.
Functions whose names end in "_" take one matrix, and overwrite it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .gaussian import LOG_2PI
from .linalg import cholesky, cholesky_, extended_cholesky, inverse_, log_det, tri_solve


class ExactSolver(NamedTuple):
    """The factor L of C, (..., N, N), and A = C⁻¹Y, (..., N, P)."""

    L: Tensor
    A: Tensor

    @classmethod
    def given(cls, L: Tensor, Y: Tensor) -> ExactSolver:
        """Solve for Y (..., N, P) with a known factor."""
        return cls(L, tri_solve(L, tri_solve(L, Y), transpose=True))  # which copies no matrix

    @classmethod
    def of(cls, C: Tensor, Y: Tensor, name: str) -> ExactSolver:
        """Factorise C, with jitter if need be; the error for a C without a factor names it."""
        return cls.given(cholesky(C, name), Y)

    @classmethod
    def of_(cls, C: Tensor, Y: Tensor) -> ExactSolver | None:
        """Overwrite the lower triangle of C (N, N) with L; return None if it has no factor."""
        return cls.given(C, Y) if cholesky_(C) else None

    def extended(
        self, B: Tensor, D: Tensor, Y: Tensor, factor: Callable[[Tensor], Tensor]
    ) -> ExactSolver:
        """Solve for K more rows: [[C, Bᵀ], [B, D]] and all Y (..., N + K, P), in O(N²K).

        `factor` finds the factor of D's part that the first rows do not explain, or raises an
        error.
        """
        return self.given(extended_cholesky(self.L, B, D, factor), Y)

    # ---- the evidence ------------------------------------------------------------------------

    def square(self, Y: Tensor) -> Tensor:
        """Return tr(YᵀC⁻¹Y), of the batch's shape."""
        return (Y * self.A).sum((-2, -1))

    def log_density(self, Y: Tensor) -> Tensor:
        """Return log N(Y | 0, C), of the batch's shape."""
        n, n_columns = Y.shape[-2:]
        return -0.5 * (self.square(Y) + n_columns * (log_det(self.L) + n * LOG_2PI))

    def slope(self) -> Tensor:
        """Return ∂ log N(Y | 0, C)/∂C, (..., N, N)."""
        n_columns = self.A.shape[-1]
        return 0.5 * (self.A @ self.A.mT - n_columns * torch.cholesky_inverse(self.L))

    def slope_(self, variance: float = 1.0) -> Tensor:
        """Return the lower triangle of the same for N(Y | 0, variance·C), in the memory of L."""
        inverse_(self.L)
        n_columns = self.A.shape[-1]
        return self.L.mul_(-0.5 * n_columns).addmm_(self.A, self.A.mT, alpha=0.5 / variance)

    # ---- predictions -------------------------------------------------------------------------

    def mean(self, K_star: Tensor) -> Tensor:
        """Return the mean of f*, (..., N*, P), from K* (..., N*, N)."""
        return K_star @ self.A

    def variance(self, prior: Tensor, K_star: Tensor) -> Tensor:
        """Return the variance of f*, (..., N*), from prior variances; rounding may be negative."""
        V = tri_solve(self.L, K_star.mT)  # (..., N, N*)
        return prior - torch.linalg.vecdot(V, V, dim=-2)

    def covariance(self, K: Tensor, K_star: Tensor) -> Tensor:
        """Return the covariance of f*, (..., N*, N*), from their prior covariance."""
        V = tri_solve(self.L, K_star.mT)
        return K - V.mT @ V

    def left_out(self) -> tuple[Tensor, Tensor]:
        """Predict each row from the others: y − μ₋, (..., N, P), and v₋ of y, (..., N)."""
        variance = 1.0 / torch.cholesky_inverse(self.L).diagonal(dim1=-2, dim2=-1)
        return variance[..., None] * self.A, variance

    def groups_left_out(self, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """Predict each row from those of other groups, given codes (N,): the same, (N, P) and (N,).

        For the rows I of a group, y_I − μ₋ = V(C⁻¹y)_I and var(y_I) = V, where V = ([C⁻¹]_II)⁻¹.
        """
        precision = torch.cholesky_inverse(self.L)
        residual, variance = torch.empty_like(self.A), torch.empty_like(self.A[:, 0])
        sizes = torch.bincount(cluster)
        order = cluster.argsort(stable=True)
        of_size = sizes[cluster[order]]
        for size in of_size.unique().tolist():
            rows = order[of_size == size].view(-1, size)  # (G, size)
            block = precision[rows[:, :, None], rows[:, None, :]]
            V = torch.cholesky_inverse(cholesky(block, "precision of a group"))
            residual[rows], variance[rows] = V @ self.A[rows], V.diagonal(dim1=-2, dim2=-1)
        return residual, variance
