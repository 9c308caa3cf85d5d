"""Solve linear systems with a matrix that is only known by its products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 256  # systems that are solved together, where there are many

Product = Callable[[Tensor], Tensor]
"""(N, R) → (N, R)."""


class Solved(NamedTuple):
    """A⁻¹B as far as it is known."""

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
    """A⁻¹B for a symmetric positive definite A (Nocedal & Wright, algorithm 5.3).

    The columns of B are systems of their own, each of which ends by itself: what a column comes to
    does not depend on the others.

    Parameters
    ----------
    product : callable
        V ↦ AV.
    B : Tensor of shape (N, R)
        Right-hand sides.
    start : Tensor of shape (N, R) or None, default=None
        Where iterations start; None is 0.
    precondition : callable or None, default=None
        V ↦ M⁻¹V for an M that is like A.
    tol : float, default=1e-6
        A column ends where its residual is smaller, relative to B's.
    max_iter : int, default=1000
        Products at most.
    most_energy : float, default=inf
        A column does not end before rᵀM⁻¹r of its residual r is at most this. From X = 0 on, BᵀX is
        less than BᵀA⁻¹B by rᵀA⁻¹r, which is no more than that where A − M is no less than 0.

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
    limit = tol * B.norm(dim=0)
    Z = precondition(R)
    D, ZR = Z.clone(), (Z * R).sum(0)

    def is_far() -> Tensor:
        return (R.norm(dim=0) > limit) | ZR.gt(most_energy)

    open_, n_iter = is_far(), 0
    while bool(open_.any()) and n_iter < max_iter:
        AD = product(D)
        curvature = (D * AD).sum(0)
        open_ = open_ & (curvature > 0.0)  # else rounding is all that is left
        length = torch.where(open_, ZR / curvature, 0.0)
        X += length * D
        R -= length * AD
        Z = precondition(R)
        last, ZR = ZR, (Z * R).sum(0)
        D = Z + torch.where(open_, ZR / last, 0.0) * D
        open_ = open_ & is_far()
        n_iter += 1
    return Solved(X, n_iter, not bool(is_far().any()))
