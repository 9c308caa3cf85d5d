"""Solve linear systems with a matrix that is only available through its products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 256  # systems that are solved together, if there are many
LEAST_RESIDUAL = 8.0  # least relative residual that is asked for, in units of rounding errors

Product = Callable[[Tensor], Tensor]
"""(N, R) → (N, R)."""


class Solved(NamedTuple):
    """An approximate solution A⁻¹B."""

    solution: Tensor  # (N, R)
    n_iter: int
    converged: bool


@torch.no_grad()
def conjugate_gradients(
    product: Product,
    B: Tensor,
    start: Tensor | None = None,
    precondition: Product | None = None,
    tol: float = 1e-6,
    max_iter: int = 1000,
    most_energy: float = math.inf,
) -> Solved:
    """Return A⁻¹B for a symmetric positive definite A (Nocedal & Wright, algorithm 5.3).

    Each column of B is a separate system with its own end of iterations, so that a column's
    solution does not depend on the other columns.

    Parameters
    ----------
    product : callable
        V ↦ AV.
    B : Tensor of shape (N, R)
        Right-hand sides.
    start : Tensor of shape (N, R) or None, default=None
        Start of the iterations; None is 0.
    precondition : callable or None, default=None
        V ↦ M⁻¹V for an M that approximates A.
    tol : float, default=1e-6
        A column ends when its residual's norm, relative to that of B, is smaller, or as small as
        rounding allows.
    max_iter : int, default=1000
        Largest number of products.
    most_energy : float, default=inf
        A column does not end before rᵀM⁻¹r of its residual r is at most this. If X starts at 0,
        BᵀX is smaller than BᵀA⁻¹B by rᵀA⁻¹r, which is at most rᵀM⁻¹r if A − M is positive
        semi-definite.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.maths.conjugate_gradients import conjugate_gradients
    >>> A = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda V: A @ V, torch.tensor([[1.0], [2.0]])).solution
    tensor([[0.0909],
            [0.6364]])
    """
    precondition = precondition or torch.clone
    X = torch.zeros_like(B) if start is None else start.clone()
    R = B - product(X) if start is not None else B.clone()
    limit = max(tol, LEAST_RESIDUAL * torch.finfo(B.dtype).eps) * B.norm(dim=0)
    Z = precondition(R)
    D, ZR = Z.clone(), (Z * R).sum(0)

    def is_far() -> Tensor:
        return (R.norm(dim=0) > limit) | ZR.gt(most_energy)

    open_, n_iter = is_far(), 0
    while bool(open_.any()) and n_iter < max_iter:
        AD = product(D)
        curvature = (D * AD).sum(0)
        open_ = open_ & (curvature > 0.0)  # otherwise only rounding is left
        length = torch.where(open_, ZR / curvature, 0.0)
        X += length * D
        R -= length * AD
        Z = precondition(R)
        last, ZR = ZR, (Z * R).sum(0)
        D = Z + torch.where(open_, ZR / last, 0.0) * D
        open_ = open_ & is_far()
        n_iter += 1
    return Solved(X, n_iter, not bool(is_far().any()))
