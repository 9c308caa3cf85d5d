"""Dense linear algebra: float64 factorisations with a jitter ladder and an error that explains.

Every M×M or D×D matrix of the package is factorised here, in float64 whatever the data's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import row_blocks

LEAF = 64
"""Size up to which :func:`inverse_cholesky` and :func:`inverse_` call LAPACK."""

SYMMETRIC_BLOCKS = 4
"""Number of blocks of rows of a symmetric or triangular product; each ends at the diagonal."""

MIRROR_ROWS = 256
"""Rows that are mirrored at a time."""

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Multiples of the mean diagonal that :func:`cholesky` adds, in the order it tries them."""

NO_COVARIANCE = (
    "a kernel that is no covariance of these inputs, as ExpSineSquared of several columns is not, "
    "nor of a network's features (hidden_layer_sizes=() leaves the network out)"
)
"""A cause, for messages."""

NO_PRECISION = (
    "The posterior precision is not positive definite. Likely causes: inputs on an extreme scale "
    f"(use StandardScaler), or {NO_COVARIANCE}."
)


class NotPositiveDefiniteError(np.linalg.LinAlgError):  # which is a ValueError
    """A covariance matrix could not be factorised; the message names the likely causes."""


def cholesky(A: Tensor, name: str = "covariance matrix", scale: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor of A in float64, with as little jitter as it takes.

    Parameters
    ----------
    A : Tensor of shape (..., N, N)
        Symmetric matrices.
    name : str, default="covariance matrix"
        What A is, for the error message.
    scale : Tensor of the batch's shape or None, default=None
        Variance to which the jitter is relative; None: the mean diagonal. For a residual covariance
        it is the prior variance, because the residual may be nothing but that variance's rounding.

    Returns
    -------
    L : Tensor of shape (..., N, N)
        float64, A + jitter·scale·I = L Lᵀ.

    Raises
    ------
    NotPositiveDefiniteError
        If A is not finite, or stays indefinite with the largest jitter.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.maths.linalg import cholesky
    >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))
    tensor([[2., 0.],
            [1., 1.]], dtype=torch.float64)
    """
    A = A.double()
    L, info = torch.linalg.cholesky_ex(A)
    is_finite = torch.isfinite(A).all()
    if bool(is_finite > info.any()):  # and no failure: one question
        return L
    if not bool(is_finite):
        raise NotPositiveDefiniteError(
            f"The {name} has NaN or infinite entries: the inputs or the target are probably on an "
            "extreme scale, or the learning rate is too large."
        )
    scale = A.diagonal(dim1=-2, dim2=-1).mean(-1) if scale is None else scale
    for jitter in JITTERS[1:]:
        L, info = torch.linalg.cholesky_ex(add_diagonal(A, jitter * scale))
        if not bool(info.any()):
            return L
    raise NotPositiveDefiniteError(
        f"The {name} of shape {tuple(A.shape)} is not positive definite, even with a jitter of "
        f"{JITTERS[-1]:g} times its mean diagonal. Likely causes: duplicated rows or points, "
        "inputs on very different scales (use StandardScaler), a length-scale far larger than the "
        f"data's range, a noise variance that is too small, or {NO_COVARIANCE}."
    )


def extended_cholesky(
    L: Tensor, B: Tensor, D: Tensor, factor: Callable[[Tensor], Tensor]
) -> Tensor:
    """Lower factor of [[LLᵀ, Bᵀ], [B, D]], (..., N + K, N + K), in O(N²K).

    Parameters
    ----------
    L : Tensor of shape (..., N, N)
        The factor that is known.
    B, D : Tensor of shape (K, N) and (..., K, K)
        The rows below it.
    factor : callable
        Finds the factor of D − BL⁻ᵀL⁻¹Bᵀ, or raises an error.
    """
    W = tri_solve(L, B.mT.expand(*L.shape[:-2], -1, -1)).mT  # BL⁻ᵀ
    corner = factor(D - W @ W.mT)
    above = L.new_zeros(*L.shape[:-1], D.shape[-1])
    return torch.cat([torch.cat([L, above], -1), torch.cat([W, corner], -1)], -2)


def inverse_cholesky(A: Tensor) -> tuple[Tensor, Tensor]:
    """L⁻¹ for A = LLᵀ, without waiting to see whether A is positive definite.

    By halves, [[L₁, 0], [L₂₁, L₂]]⁻¹ = [[L₁⁻¹, 0], [−L₂⁻¹ L₂₁ L₁⁻¹, L₂⁻¹]], mostly products of
    matrices: three fifths of the time of a decomposition and an inversion at N = 512.

    For symmetric A (..., N, N), return the lower triangular L⁻¹ (..., N, N), and whether this has
    failed, (...), because A is not positive definite. Then L⁻¹ is of no use.
    """
    R = torch.zeros_like(A)
    return R, _inverse_cholesky(A, R)


def _inverse_cholesky(A: Tensor, R: Tensor) -> Tensor:
    n = A.shape[-1]
    if n <= LEAF:
        L, info = torch.linalg.cholesky_ex(A)
        identity = torch.eye(n, dtype=A.dtype, device=A.device).expand_as(L)
        R.copy_(tri_solve(L, identity))
        return info != 0
    h = n // 2
    R_1, R_2 = R[..., :h, :h], R[..., h:, h:]
    failed = _inverse_cholesky(A[..., :h, :h], R_1)
    L_21 = A[..., h:, :h] @ R_1.mT
    failed = failed | _inverse_cholesky(A[..., h:, h:] - L_21 @ L_21.mT, R_2)
    R[..., h:, :h] = -R_2 @ (L_21 @ R_1)
    return failed


def cholesky_(A: Tensor) -> bool:
    """Overwrite the lower triangle of A (N, N) with its factor L; return whether there is one.

    No jitter, and no second matrix: for the covariance of all rows. The upper triangle is not read,
    and becomes zero.
    """
    upper = A.mT  # LAPACK's order of elements, so nothing is copied
    info = torch.empty((), dtype=torch.int32, device=A.device)
    torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
    return not bool(info)


def inverse_(L: Tensor) -> None:
    """Overwrite the lower triangle of L (N, N), a factor, with that of (LLᵀ)⁻¹.

    By halves: with T = L₂₁L₁₁⁻¹ and S = L₂₂L₂₂ᵀ, the inverse of [[L₁₁, 0], [L₂₁, L₂₂]] [·]ᵀ is
    [[(L₁₁L₁₁ᵀ)⁻¹ + TᵀS⁻¹T, ·], [−S⁻¹T, S⁻¹]], mostly products of matrices: three quarters of the
    time of LAPACK's at N = 2000, and a quarter of a matrix of memory instead of a whole one. The
    upper triangle is scratch.
    """
    n = len(L)
    if n <= LEAF:
        L.copy_(torch.cholesky_inverse(L))
        return
    h = n // 2 if n <= 4 * LEAF else n // (2 * LEAF) * LEAF
    L_11, L_21, L_22 = L[:h, :h], L[h:, :h], L[h:, h:]
    T = torch.linalg.solve_triangular(L_11, L_21, upper=False, left=False)
    inverse_(L_22)
    inverse_(L_11)
    mirror_(L_22)
    torch.mm(L_22, T, out=L_21).neg_()
    for rows in row_blocks(h, -(-h // SYMMETRIC_BLOCKS)):  # of a symmetric product, half
        L_11[rows, : rows.stop].addmm_(T[:, rows].mT, L_21[:, : rows.stop], alpha=-1)


def mirror_(A: Tensor) -> Tensor:
    """Overwrite the upper triangle of A (..., N, N) with the lower one; return A."""
    for rows in row_blocks(A.shape[-1], MIRROR_ROWS):
        on = A[..., rows, rows]
        on.copy_(on.tril() + on.tril(-1).mT)
        A[..., : rows.start, rows] = A[..., rows, : rows.start].mT
    return A


def blocks_to_diagonal(n: int) -> Iterator[slice]:
    """Blocks of rows; a symmetric matrix needs only the part of each up to the diagonal."""
    return row_blocks(n, max(2 * LEAF, -(-n // SYMMETRIC_BLOCKS)))


def to_diagonal(A: Tensor) -> list[Tensor]:
    """Views of A (..., N, N) that cover its lower triangle, in five eighths of its elements."""
    return [A[..., rows, : rows.stop] for rows in blocks_to_diagonal(A.shape[-1])]


def symmetric_product(A: Tensor, B: Tensor) -> Tensor:
    """The lower triangle of AᵀB, and its mirror image: from (..., N, M), (..., M, M)."""
    M = A.shape[-1]
    out = A.new_empty(*A.shape[:-2], M, M)
    for rows in blocks_to_diagonal(M):
        out[..., rows, : rows.stop] = A[..., rows].mT @ B[..., : rows.stop]
    return mirror_(out)


def symmetric_product_of_lower(L: Tensor, B: Tensor) -> Tensor:
    """The same for LᵀB, with a lower triangular L (..., M, M): a third of a product."""
    out = torch.empty_like(L)
    for rows in blocks_to_diagonal(L.shape[-1]):
        L_rows = L[..., rows.start :, rows]  # but for zeros
        out[..., rows, : rows.stop] = L_rows.mT @ B[..., rows.start :, : rows.stop]
    return mirror_(out)


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., N), ascending, and eigenvectors (..., N, N) of symmetric A (..., N, N).

    LAPACK's divide-and-conquer fails to converge on rare, nearly diagonal matrices; a relative
    perturbation of the order of rounding lets it pass, and moves no eigenvalue by more.

    Raises
    ------
    NotPositiveDefiniteError
        If it still does not converge.
    """
    scale = A.diagonal(dim1=-2, dim2=-1).abs().mean(-1)
    for jitter in JITTERS[:3]:
        try:
            return torch.linalg.eigh(add_diagonal(A, jitter * scale) if jitter else A)
        except torch.linalg.LinAlgError:
            continue
    raise NotPositiveDefiniteError(
        f"The eigendecomposition of a matrix of shape {tuple(A.shape)} did not converge. Likely "
        "causes: inputs on very different scales (use StandardScaler), or duplicated columns."
    )


def add_diagonal(A: Tensor, values: Tensor | float) -> Tensor:
    """A + diag(values): A of shape (..., N, N), values a scalar or of the batch's shape."""
    A = A.clone()
    values = values.to(A)[..., None] if isinstance(values, Tensor) else values
    A.diagonal(dim1=-2, dim2=-1).add_(values)
    return A


def tri_solve(L: Tensor, B: Tensor, transpose: bool = False) -> Tensor:
    """L⁻¹B, or L⁻ᵀB: L (..., N, N) lower triangular, B (..., N, K)."""
    if transpose:
        return torch.linalg.solve_triangular(L.mT, B, upper=True)
    return torch.linalg.solve_triangular(L, B, upper=False)


def update_inverse_(inverse: Tensor, Z: Tensor, share: Tensor, kept: float) -> Tensor:
    """Replace F⁻¹ by the inverse of F₊ = kept F + share ZᵀZ, in place, and return ZF₊⁻¹.

    By Woodbury's identity, with A = ZF⁻¹ and S = AZᵀ + kept/share I,

        ZF₊⁻¹ = S⁻¹A / share,   F₊⁻¹ = (F⁻¹ − AᵀS⁻¹A) / kept.

    F⁻¹ is (K, P, D, D) and contiguous, Z (K, 1, b, D), and share (K, 1, 1, 1) is positive.
    """
    A = Z @ inverse
    L = torch.linalg.cholesky_ex(add_diagonal(A @ Z.mT, (kept / share)[..., 0, 0]))[0]
    half = tri_solve(L, A)  # its square is AᵀS⁻¹A
    flat = half.flatten(0, 1)
    inverse.flatten(0, 1).baddbmm_(flat.mT, flat, alpha=-1.0).div_(kept)
    return tri_solve(L, half, transpose=True) / share


def log_det(L: Tensor) -> Tensor:
    """log|LLᵀ| of Cholesky factors L (..., N, N), of the batch's shape."""
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def times_lower(A: Tensor, L: Tensor) -> Tensor:
    """A L, for A (N, M) and lower triangular L (M, M), by halves: one needs only half of A."""
    h = len(L) // 2
    out = A.new_empty(A.shape)
    torch.mm(A, L[:, :h], out=out[:, :h])
    torch.mm(A[:, h:], L[h:, h:], out=out[:, h:])
    return out


def times_lower_transposed(A: Tensor, L: Tensor) -> Tensor:
    """A Lᵀ, the same by smaller blocks: five eighths of a product."""
    out = A.new_empty(A.shape)
    for rows in blocks_to_diagonal(len(L)):
        torch.mm(A[:, : rows.stop], L[rows, : rows.stop].mT, out=out[:, rows])
    return out
