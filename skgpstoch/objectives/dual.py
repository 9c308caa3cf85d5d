"""solver="auto" for few rows: the bound with sites that are fixed while L-BFGS iterates.

Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes",
NeurIPS 2021. Sites κ and λ = κμ + α of the rows determine the optimal q(w) (see
:mod:`skgpstoch.objectives.elbo`). At other hyper-parameters the same sites give the q(w)

    G = Pᵀ diag(κ) P/β,   m = (I + G)⁻¹Pᵀ(λ − κ·mean)/β,   S_b = (I + G_bb)⁻¹,

whose bound is almost as tight as the optimal one, but takes one pass over the rows instead of about
ten. At the hyper-parameters where the sites were found, it has the same value and gradient as the
optimal bound. The sites are found again after every ten iterations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.rows import Rows
from ..features.base import Basis
from ..maths.gaussian import Marginals
from ..maths.linalg import NotPositiveDefiniteError, add_diagonal, log_det, tri_solve
from ..models.sparse import SparseModel
from ..posteriors.sites import RowSites, diagonal_blocks
from .elbo import expected_score_at, weighted_score
from .lbfgs import INNER, FullBatchObjective, rejected


class Epoch(NamedTuple):
    """Rows in the order of an epoch, and their sites."""

    X: Tensor
    rows: Rows
    sites: RowSites


class DualObjective(FullBatchObjective):
    """The bound of all rows, in float64, with sites fixed during an epoch."""

    is_still = False
    inner = INNER._replace(tol=1e-6)
    epoch: Epoch | None = None

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        if self.epoch is None:
            self.epoch = Epoch(X, rows, self.best_sites(X, rows))
        try:
            total, kl = bound_at(self.model, X, rows, self.epoch.sites)
            self.check_sound()
        except NotPositiveDefiniteError:
            return rejected([p for p in self.parameters() if p.requires_grad])
        return self.neg_elbo(total, kl, rows, generator)

    def best_sites(self, X: Tensor, rows: Rows) -> RowSites:
        """Return the sites of the q(w) that scored the last epoch; at first, of the best q(w)."""
        if not bool(self.value.isfinite()):
            found = self.best(X, rows)
            self.keep(found.sites, found.value)
        return sites_of_rows(self.model, X, rows, self.q())

    @torch.no_grad()
    def epoch_end(self) -> None:
        """Let the search for the next q(w) start from the same sites, with the new features."""
        if self.epoch is not None:
            basis = self.model.features.basis(self.epoch.X)
            offset = self.model.offset(basis)
            self.keep(self.epoch.sites.of_weights(basis.phi, offset), self.value)
        self.epoch = None


@torch.no_grad()
def sites_of_rows(model: SparseModel, X: Tensor, rows: Rows, q: Any) -> RowSites:
    """Return κ/β and λ/β of all rows, times their weights."""
    basis = model.features.basis(X)
    f = model.marginals(basis, q, q.products(basis.phi))
    term = weighted_score(model, basis, rows, f, basis.residual())
    kappa = term.curvature / model.beta
    return RowSites(kappa, kappa * f.mean[0] + term.mean / model.beta)


def bound_at(model: SparseModel, X: Tensor, rows: Rows, sites: RowSites) -> tuple[Tensor, Tensor]:
    """Return −Σ loss and KL, each () and with a graph, at the q(w) of these sites.

    Raises
    ------
    NotPositiveDefiniteError
        If the posterior precision of these sites is not positive definite.
    """
    basis = model.features.basis(X)
    f, kl = marginals_of(model, basis, sites)
    total, _ = expected_score_at(model, basis, rows, f, basis.residual())
    return total, kl


def marginals_of(model: SparseModel, basis: Basis, sites: RowSites) -> tuple[Marginals, Tensor]:
    """Return q(f) of rows, (1, N, P), and KL, (), for the q(w) that their sites imply."""
    phi, sizes = basis.phi, model.features.blocks
    G, c = sites.of_weights(phi, model.offset(basis))
    whole = factor(G)
    m = torch.cholesky_solve(c.mT[..., None], whole)[..., 0].mT  # (D, P)
    kl, var = 0.5 * m.square().sum(), basis.residual()  # (N,)
    blocks = zip(phi.split(sizes, 1), diagonal_blocks(G, sizes), strict=True)
    for (part, block), is_prior in zip(blocks, model.has_prior_covariance, strict=True):
        if is_prior:
            var = var + part.square().sum(1)
            continue
        L = whole if len(sizes) == 1 else factor(block)
        half = tri_solve(L, part.mT.expand(len(L), -1, -1))  # (P, D_b, N)
        var = var + half.square().sum(1)  # (P, N)
        root = tri_solve(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L))
        kl = kl + 0.5 * (root.square().sum() - root[..., 0].numel() + log_det(L).sum())
    mean = phi @ m + model.offset(basis)
    return Marginals(mean[None], var.mT.expand_as(mean)[None]), kl


def factor(G: Tensor) -> Tensor:
    """Return L with LLᵀ = I + G (P, D, D); raise an error if there is none."""
    L, info = torch.linalg.cholesky_ex(add_diagonal(G, 1.0))
    if bool(info.any()):
        raise NotPositiveDefiniteError("The posterior precision is not positive definite.")
    return L
