"""Products with a covariance matrix, which is stored or computed again in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ..data.arrays import row_blocks
from ..data.devices import block_elements
from ..maths.pivoted_cholesky import pivoted_cholesky
from ..maths.pull_back import pulled_back
from .expressions import Kernel
from .isotropic import Isotropic, as_isotropic, left, right, value, with_gradient
from .matrices import LEAST_ROWS

RESIDUE = 0.1  # share of the noise; a conditional variance below it needs no pivot


class KernelRows:
    """The matrix A = k(X, Z), (N, M), at the current hyper-parameters of a kernel.

    Vectors are float64; covariances have the dtype of X.

    Parameters
    ----------
    kernel : Kernel
        k.
    X, Z : Tensor of shape (N, d) and (M, d)
        Rows.
    keeps : bool
        Whether to store A, which takes NM numbers, if there is memory for it. Otherwise A is
        computed again, in blocks, for every product.
    """

    def __init__(self, kernel: Kernel, X: Tensor, Z: Tensor, keeps: bool) -> None:
        self.kernel = kernel
        self.X, self.Z = X, Z
        self.block_rows = max(LEAST_ROWS, block_elements(X.device) // len(Z))
        # In float32 the last digits of distances are rounding anyway, so matrix products suffice.
        self.form = as_isotropic(kernel) if X.dtype == torch.float32 else None
        self.centre = Z.mean(0)
        with torch.no_grad():
            self.sides = None if self.form is None else self._sides(self.form, X)
        self.whole = self._made() if keeps else None

    def _sides(self, form: Isotropic, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two matrices whose product is the squared distances of X and Z."""
        unit = form.length_scale.to(X)
        return left((X - self.centre) / unit), right((self.Z - self.centre) / unit)

    @torch.no_grad()
    def covariances(self, rows: slice) -> Tensor:
        """Return the rows of A."""
        if self.form is None or self.sides is None:
            return self.kernel(self.X[rows], self.Z)
        A, B = self.sides
        return value(A[rows] @ B.mT, self.form.profile).mul_(self.form.variance)

    @torch.no_grad()
    def _made(self) -> Tensor | None:
        """Return A; None if there is not enough memory for it."""
        try:
            whole = self.X.new_empty(len(self.X), len(self.Z))
            for rows in row_blocks(len(self.X), self.block_rows):
                whole[rows] = self.covariances(rows)
        except RuntimeError:  # torch's, of a CPU and of a GPU
            return None
        return whole

    def blocks(self, n_rows: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of rows, and A for them: of all rows, or of the first `n_rows`."""
        n_rows = len(self.X) if n_rows is None else n_rows
        if self.whole is not None:
            yield slice(0, n_rows), self.whole[:n_rows]
            return
        for rows in row_blocks(n_rows, self.block_rows):
            yield rows, self.covariances(rows)

    @torch.no_grad()
    def product(self, V: Tensor, n_rows: int | None = None) -> Tensor:
        """Return AV for all rows, or for the first `n_rows`: (M, R) → (N, R)."""
        # Written into one array: small arrays kept from each block would stop the allocator from
        # reusing the memory between them.
        out = V.new_empty(len(self.X) if n_rows is None else n_rows, V.shape[1])
        for rows, A in self.blocks(n_rows):
            out[rows] = (A @ V.to(A)).double()
        return out

    @torch.no_grad()
    def transposed(self, U: Tensor) -> Tensor:
        """Return AᵀU: (N, R) → (M, R)."""
        total = torch.zeros(len(self.Z), U.shape[1], dtype=torch.float64, device=U.device)
        for rows, A in self.blocks():
            total += (A.mT @ U[rows].to(A)).double()
        return total

    @torch.no_grad()
    def there_and_back(self, V: Tensor, between: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Return Aᵀ f(AV) in one pass; `between` maps a block of rows and its AV to f(AV)."""
        total = torch.zeros(len(self.Z), V.shape[1], dtype=torch.float64, device=V.device)
        for rows, A in self.blocks():
            total += (A.mT @ between(rows, (A @ V.to(A)).double()).to(A)).double()
        return total

    def differentiable(self, rows: slice) -> Tensor:
        """Return these rows of A, differentiable with respect to the hyper-parameters."""
        form = None if self.form is None else as_isotropic(self.kernel)
        if form is None:
            return self.kernel(self.X[rows], self.Z)
        A, B = self._sides(form, self.X[rows])
        return form.variance * with_gradient(A @ B.mT, form.profile)

    def gradients(self, V: Tensor, U: Tensor, params: list[nn.Parameter]) -> list[Tensor]:
        """Return the gradients of Σᵢⱼ Uᵢⱼ (AV)ᵢⱼ by `params`, for U (N, R) and V (M, R)."""
        totals = [torch.zeros_like(p) for p in params]
        for rows in row_blocks(len(self.X), self.block_rows) if params else ():
            with torch.enable_grad():
                product = self.differentiable(rows) @ V.to(self.Z)
            parts = pulled_back([product], [U[rows].to(product)], params)
            for total, part in zip(totals, parts, strict=True):
                total += part
        return totals


@torch.no_grad()
def low_rank(kernel: Kernel, X: Tensor, noise: Tensor, rank: int) -> Tensor:
    """Return L, (N, r) with r ≤ rank, so that LLᵀ + diag(noise) approximates k(X, X) + diag(noise).

    Pivoting ends when no conditional variance exceeds a share of the noise (N, 1).
    """
    return pivoted_cholesky(
        kernel.diag(X),
        lambda i: kernel(X[i][None], X)[0],
        min(rank, len(X)),
        tol=RESIDUE * float(noise.min()),
    )[0]
