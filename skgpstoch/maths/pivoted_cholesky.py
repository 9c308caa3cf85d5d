"""Low-rank approximations of covariances, from rows that are chosen one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .linalg import cholesky

PIVOT_ROUNDING = 1e-15  # of the largest variance


@torch.no_grad()
def pivoted_cholesky(
    diagonal: Tensor, row: Callable[[Tensor], Tensor], rank: int, tol: float = -1.0
) -> tuple[Tensor, Tensor]:
    """An incomplete factor of a covariance; each pivot is the row of largest conditional variance.

    Harbrecht, Peters & Schneider, "On the low-rank approximation by the pivoted Cholesky
    decomposition", 2012: K − LLᵀ is positive semi-definite.

    Parameters
    ----------
    diagonal : Tensor of shape (N,)
        Diagonal of K.
    row : callable
        Maps a row's number, (), to that row of K, (N,).
    rank : int
        Largest number of pivots, at most N.
    tol : float, default=-1.0
        There are fewer pivots if no row has a conditional variance above this.

    Returns
    -------
    L : Tensor of shape (N, r)
        Factor.
    pivots : Tensor of shape (r,)
        Row numbers, no two the same.
    """
    variance, least = diagonal.clone(), PIVOT_ROUNDING * diagonal.max()
    factor = variance.new_zeros(rank, len(variance))
    pivots = torch.zeros(rank, dtype=torch.long, device=variance.device)
    for j in range(rank):
        pivot = variance.argmax()
        if tol >= 0.0 and bool(variance[pivot] <= tol):
            return factor[:j].mT, pivots[:j]
        pivots[j] = pivot
        column = row(pivot) - factor[:j, pivot] @ factor[:j]
        if bool(variance[pivot] > least):  # else there is nothing left but rounding
            factor[j] = column / variance[pivot].sqrt()
        variance = (variance - factor[j].square()).clamp_min(0.0)
        variance[pivots[: j + 1]] = -1.0  # no row twice, even where none explains anything more
    return factor.mT, pivots


class LowRankInverse:
    """V ↦ (LLᵀ + diag(noise))⁻¹V, O(NrR), for L (N, r) and a positive noise (N, 1) (Woodbury)."""

    def __init__(self, L: Tensor, noise: Tensor) -> None:
        self.scaled = L / noise  # diag(noise)⁻¹L
        self.noise = noise
        inner = L.mT @ self.scaled
        inner.diagonal().add_(1.0)
        self.factor = cholesky(inner, "preconditioner")

    def __call__(self, V: Tensor) -> Tensor:
        inner = torch.cholesky_solve(self.scaled.mT @ V, self.factor)
        return V / self.noise - self.scaled @ inner
