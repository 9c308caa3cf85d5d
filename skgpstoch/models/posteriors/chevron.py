"""q(w) of very many basis functions: a mean, and a covariance with a chevron-shaped factor.

q(w) = N(μ, CCᵀ), where the first c columns of C are dense and lower triangular, and the others are
diagonal:

    var f(x) = Σ_{r<c} (φ(x)ᵀc_r)² + Σ_{i≥c} c_ii² φ_i(x)²

This takes O(m(c + 1)) numbers. Everything is computed as sums over blocks of basis functions, so
the features of all functions are never in memory together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...data.devices import BLOCK_ROWS, all_hold, is_host, map_blocks
from ...data.rows import Rows
from ...likelihoods.base import Likelihood
from ...maths.gaussian import Marginals, standard_normal
from ...maths.linalg import add_diagonal, cholesky, log_det, tri_solve
from ...maths.modules import Module
from ..features.basis_functions import BasisFunctions
from .base import Posterior

BLOCK_COLUMNS = 512
"""Number of basis functions that are summed over at a time."""

MAX_LOG_DET = 10_000
"""Largest number of functions for which the determinant of a dense prior precision is computed."""

MOST_PRODUCTS = 5 * 10**10
"""Largest number of products for the prior covariance of training rows, which judges the fit."""


class ChevronModel(Module):
    """f(x) = mean + φ(x)ᵀw with q(w) = N(μ, CCᵀ), and p(y | f).

    Parameters
    ----------
    basis : BasisFunctions
        Basis functions φ, and the prior precision S of their weights.
    likelihood : Likelihood
        p(y | f).
    shift : Tensor of shape (P,)
        The prior mean of f.
    n_dense : int
        Number c of dense columns.
    dtype : torch.dtype
        Dtype of μ and C.
    augments : bool, default=False
        Whether to compute the variance at x with a further function k(·, x) (Proposition 4).
    learns_precision : bool, default=False
        Whether S = diag(s) is learned, with an s for each function and output.

    Attributes
    ----------
    flat : Parameter of shape (m, P(1 + c))
        μ, and the dense columns of C; `columns` is the same, (m, P, 1 + c).
    std : Parameter of shape (m, P)
        c_ii of the diagonal columns; 0 for i < c.
    s : Parameter of shape (m, P)
        Learned precisions; (0, P) if they are not learned.
    row_precision : Tensor of shape (m, P)
        λ_l of the rows that each point of the basis stands for; (0, P) if it does not augment.
    """

    row_precision: Tensor

    def __init__(
        self,
        basis: BasisFunctions,
        likelihood: Likelihood,
        shift: Tensor,
        n_dense: int,
        dtype: torch.dtype,
        augments: bool = False,
        learns_precision: bool = False,
    ) -> None:
        super().__init__()
        self.basis = basis
        self.likelihood = likelihood
        self.augments = augments
        m, P = basis.n_components, len(shift)
        flat = torch.zeros(m, P * (1 + n_dense), dtype=dtype, device=shift.device)
        std = torch.empty(m, P, dtype=dtype, device=shift.device)
        self.shift = nn.Parameter(shift, requires_grad=False)
        self.flat = nn.Parameter(flat, requires_grad=False)  # columns, as sparse gradients are
        self.std = nn.Parameter(std, requires_grad=False)
        self.register_buffer("row_precision", shift.new_zeros(m if augments else 0, P))
        s = torch.ones(m if learns_precision else 0, P, dtype=dtype, device=shift.device)
        self.s = nn.Parameter(s, requires_grad=False)
        self.start_from_prior_()

    @property
    def columns(self) -> Tensor:
        """μ and the dense columns of C as a view of `flat`, (m, P, 1 + c)."""
        return self.flat.detach().view(len(self.flat), len(self.shift), -1)

    @property
    def n_dense(self) -> int:
        """Number c of dense columns."""
        return self.columns.shape[2] - 1

    @torch.no_grad()
    def start_from_prior_(self) -> None:
        """Set μ = 0 and c_ii = s_ii^(−1/2), which is the prior if S is diagonal."""
        for groups, members in self.blocks(2**16):
            s = self.s[members] if len(self.s) else self.basis.diagonal(groups, members)[:, None]
            self.std[members] = s.rsqrt().to(self.std)
        self.start_from_(self.std.clone())

    def start_from_(self, scales: Tensor) -> None:
        """Set μ = 0 and c_ii to scales (m, P)."""
        self.std.copy_(scales)
        c = torch.arange(self.n_dense, device=self.columns.device)
        self.columns.zero_()
        self.columns[c, :, 1 + c] = self.std[c]
        self.std[c] = 0.0

    def precision(self, groups: Tensor, members: Tensor) -> Tensor:
        """Return S_II in float64: (P, |I|, |I|), or (1, |I|, |I|) if all outputs share it."""
        if len(self.s):
            return torch.diag_embed(self.s[members].double().mT)
        S = self.basis.precision(groups, members)
        return (torch.diag(S) if self.basis.is_diagonal else S)[None]

    def blocks(self, n_columns: int = BLOCK_COLUMNS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all groups of basis functions, and the functions in them, block by block."""
        device, size = self.columns.device, max(1, n_columns // self.basis.group_size)
        for start in range(0, self.basis.n_groups, size):
            stop = min(start + size, self.basis.n_groups)
            yield self.basis.span(start, stop, device)

    def project(self, X: Tensor, is_prior: bool = False) -> tuple[Tensor, Tensor]:
        """Return Φμ and Φc_r, (P, N, 1 + c), and Σ_{i≥c} c_ii² φ_i², (P, N), in float64.

        If `is_prior`, the result of :meth:`is_prior`, holds, return it without a pass over the
        basis functions.
        """
        P, C = self.columns.shape[1:]
        h = torch.zeros(P, len(X), C, dtype=torch.float64, device=X.device)
        v = torch.zeros(P, len(X), dtype=torch.float64, device=X.device)
        if is_prior:
            return h, v + self.basis.kernel.diag(X).double()
        for groups, members in self.blocks():
            phi = self.basis.columns(X, groups, members)
            h += (phi @ self.columns[members].to(X).permute(1, 0, 2)).double()
            v += (phi.square() @ self.std[members].to(X).square()).mT.double()
        return h, v

    def is_prior(self) -> bool:
        """Whether q(w) is the prior with S = I and no dense columns, so that f has covariance k."""
        if self.n_dense or not self.basis.sums_to_kernel:
            return False
        return all_hold([~self.flat.any(), (self.std == 1.0).all()])

    def marginals(self, X: Tensor) -> Marginals:
        """Return q(f) at each row: mean and var (1, N, P)."""
        # On an accelerator the check would need a synchronisation per block, and hardly ever holds.
        is_prior = is_host(X.device) and self.is_prior()
        q = self.moments(*self.project(X, is_prior))
        return q._replace(var=q.var + self.missing_variance(X)) if self.augments else q

    def mean(self, X: Tensor) -> Tensor:
        """Return E f at each row, (N, P), without the columns that only variances need."""
        found = self.shift.double().expand(len(X), -1)
        for groups, members in self.blocks():
            phi = self.basis.columns(X, groups, members)
            found = found + (phi @ self.columns[members, :, 0].to(X)).double()
        return found

    def moments(self, h: Tensor, v: Tensor) -> Marginals:
        """Return q(f) from the results of :meth:`project`, not augmented: mean, var (1, N, P)."""
        mean = h[..., 0].mT + self.shift.to(h)
        return Marginals(mean[None], (v + h[..., 1:].square().sum(-1)).mT[None])

    def missing_variance(self, X: Tensor) -> Tensor:
        """Return the variance that a further function k(·, x) adds at x, (N, P) (Proposition 4).

        It is k(x, x)² / (Σ_l λ_l k(x_l, x)² + k(x, x)), with a sum over all rows, for which the
        points stand.
        """
        prior, squares = self.basis.missing_variance(X, self.row_precision)
        return prior.square() / (squares + prior)

    def prior_covariance(self, X: Tensor) -> Tensor | None:
        """Return ΦS⁻¹Φᵀ in float64, (1 or P, N, N); None if S is dense and large."""
        if not self.basis.is_diagonal and self.basis.n_components > MAX_LOG_DET:
            return None
        size = BLOCK_COLUMNS if self.basis.is_diagonal else self.basis.n_components
        K = torch.zeros(1, len(X), len(X), dtype=torch.float64, device=X.device)
        for groups, members in self.blocks(size):
            phi, S = (
                self.basis.columns(X, groups, members).double(),
                self.precision(groups, members),
            )
            half = tri_solve(cholesky(S, "precision of the weights"), phi.mT.expand(len(S), -1, -1))
            K = K + half.mT @ half
        return K

    def kl(self) -> Tensor:
        """Return KL[q(w) ‖ p(w)], () nats.

        Raises
        ------
        ValueError
            If S is dense, and too large to compute its determinant.
        """
        if not self.basis.is_diagonal:
            return self._dense_kl()
        total = torch.zeros((), dtype=torch.float64, device=self.columns.device)
        for groups, members in self.blocks(2**16):
            W, std = self.columns[members].double(), self.std[members].double()
            s = self.s[members] if len(self.s) else self.basis.precision(groups, members)[:, None]
            total += block_kl(W, std, s.double(), members)
        return total

    def _dense_kl(self) -> Tensor:
        m = self.basis.n_components
        if m > MAX_LOG_DET:
            raise ValueError(
                "The bound needs the determinant of k(Z, Z), which is computed for at most "
                f"{MAX_LOG_DET} points, got n_components={m}."
            )
        members = torch.arange(m, device=self.columns.device)
        S = self.basis.precision(members)
        W, std = self.columns.double().permute(1, 0, 2), self.std.double()
        quadratic = (W * (S @ W)).sum() + (S.diagonal()[:, None] * std.square()).sum()
        constant = std.shape[1] * (m + log_det(cholesky(S, "covariance of the points")))
        of_scales = scales(self.columns, std, members).double().log().sum()
        return 0.5 * (quadratic - constant) - of_scales


def scales(W: Tensor, std: Tensor, members: Tensor) -> Tensor:
    """Return c_ii of some functions, (|I|, P), from W (|I|, P, 1 + c) and std (|I|, P)."""
    c = W.shape[2] - 1
    own = (1 + members).clamp_max(c)[:, None, None].expand(-1, W.shape[1], 1)
    return torch.where(members[:, None] < c, W.gather(2, own)[..., 0], std.to(W))


def block_kl(W: Tensor, std: Tensor, s: Tensor, members: Tensor) -> Tensor:
    """Return the share of some functions in KL[q(w) ‖ p(w)], () nats.

    It is ½ Σᵢ (sᵢ(μᵢ² + [CCᵀ]ᵢᵢ) − log sᵢ − 1) − Σᵢ log c_ii, from W (|I|, P, 1 + c), std (|I|, P)
    and s (|I|, P or 1).
    """
    second = W.square().sum(2) + std.square()
    return (0.5 * (s * second - s.log() - 1.0) - scales(W, std, members).log()).sum()


class ChevronPosterior(Posterior):
    """p(f | data) of a :class:`ChevronModel` that was fitted to data of `n_rows` rows."""

    def __init__(self, model: ChevronModel, n_rows: float) -> None:
        super().__init__()
        self.model = model
        self.likelihood = model.likelihood
        self._n_rows = n_rows

    def marginals(self, X: Tensor) -> Marginals:
        return self.model.marginals(X)

    def mean(self, X: Tensor) -> Tensor:
        return self.model.mean(X)

    def told(self, X: Tensor, curvature: Tensor | None) -> Tensor | None:
        """Return diag K − K(K + Λ⁻¹)⁻¹K with f's prior covariance K, if few rows are all rows.

        Variances of q(f) are no guide, as most columns of C have only a diagonal element.
        """
        is_known = curvature is not None and len(X) ** 2 * len(self.model.std) <= MOST_PRODUCTS
        K = self.model.prior_covariance(X) if is_known else None
        if curvature is None or K is None:
            return None
        root = curvature.sqrt().mT[..., None]
        L = cholesky(add_diagonal(root * K * root.mT, 1.0), "covariance of the targets")
        V = tri_solve(L, root * K)
        return (K.diagonal(dim1=1, dim2=2) - V.square().sum(1)).mT

    def covariance(self, X: Tensor) -> Tensor:
        model = self.model
        h, _ = model.project(X)
        K = h[..., 1:] @ h[..., 1:].mT
        for groups, members in model.blocks():
            phi = model.basis.columns(X, groups, members)
            half = phi * model.std[members].to(X).mT[:, None]
            K += half @ half.mT
        if model.augments:
            K.diagonal(dim1=1, dim2=2).add_(model.missing_variance(X).mT)
        return K

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw f jointly, with weights in blocks, and rows in blocks that fit into memory."""
        model = self.model
        P, C = model.columns.shape[1:]
        f = model.shift.to(X).expand(n_samples, len(X), P).clone()
        dense = standard_normal((P, C - 1, n_samples), X, generator)
        first = torch.ones(P, 1, n_samples, dtype=X.dtype, device=X.device)
        for_columns = torch.cat([first, dense], 1)  # of μ and of C's dense columns
        for groups, members in model.blocks():
            W = model.columns[members].to(X).permute(1, 0, 2) @ for_columns  # (P, |I|, n_samples)
            draws = standard_normal((P, len(members), n_samples), X, generator)
            W += model.std[members].to(X).mT[..., None] * draws

            of_block = partial(model.basis.columns, groups=groups, members=members)

            def add(rows: slice, of_block: Any = of_block, W: Tensor = W) -> None:
                f[:, rows] += (of_block(X[rows]) @ W).permute(2, 1, 0)

            map_blocks(add, len(X), BLOCK_ROWS)
        if model.augments:
            f += model.missing_variance(X).sqrt() * standard_normal(f.shape, X, generator)
        return f

    def bound_of(self, X: Tensor, rows: Rows) -> Tensor:
        """Return Σ E log p(y | f) − KL[q(w) ‖ p(w)] for these rows, ()."""
        total, is_prior = -self.model.kl(), self.model.is_prior()

        def add(block: slice) -> None:
            nonlocal total
            some = rows[block]
            q = self.model.moments(*self.model.project(X[block], is_prior))  # as it was trained
            of_rows = self.likelihood.of(some).expected_log_prob(some.y, q)
            total = total + some.weighted(of_rows).sum()

        map_blocks(add, len(X))
        return total
