"""solver="lbfgs": find the optimal q(w) of all rows at every evaluation of the bound.

Two bounds for solver="auto" and few rows have it in one pass over the rows: with a Gaussian
likelihood the optimal q(w) has a closed form, with others it follows from sites.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..maths.gaussian import Marginals
from ..maths.linalg import (
    NO_COVARIANCE,
    NO_PRECISION,
    NotPositiveDefiniteError,
    add_diagonal,
    log_det,
    mirror_,
    tri_solve,
)
from ..models.features.base import Basis
from ..models.features.inducing import InducingFeatures, by_gram
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import RowSites, Sites, conjugate_sites, diagonal_blocks
from ..models.sparse import Solution, SparseModel
from .base import surrogate
from .elbo import expected_score, expected_score_at, weighted_score
from .gaussian_rows import (
    Gradients,
    OfPoints,
    RowSums,
    by_features,
    row_sums,
    term_at,
    with_gradients,
)
from .optimal_q import optimal_q
from .variational import VariationalObjective


class Inner(NamedTuple):
    """When the search for the optimal q(w) ends, in every evaluation."""

    tol: float = 1e-10  # nats per row; L-BFGS needs this precision
    max_iter: int = 100


INNER = Inner()
REJECTED = 1e10  # a loss that a line search steps back from


class FullBatchObjective(VariationalObjective):
    """The bound at the optimal q(w) of all rows, for L-BFGS, in float64 and by blocks of rows."""

    is_still = True
    inner = INNER
    precision: Tensor
    cross: Tensor
    value: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zero = self.model.zero_sites()
        self.keep(zero, zero.cross.new_tensor(-math.inf))

    def keep(self, sites: Sites, value: Tensor) -> None:
        """Keep sites, from which the next search starts, and the value of the bound there."""
        self.register_buffer("precision", sites.precision)
        self.register_buffer("cross", sites.cross)
        self.register_buffer("value", value)

    def q(self) -> WeightMoments:
        return self.model.moments(self.present_sites())

    def present_sites(self) -> Sites:
        """Return the sites of the best q(w) so far, not those of a rejected step."""
        return Sites(self.precision, self.cross)

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss of held-out rows; without these, minus the bound per row."""
        n_held_out = rows.n_held_out
        found = self.best(X[n_held_out:], rows[n_held_out:])
        self.keep(found.sites, found.value)
        if not n_held_out:
            return -float(found.value) / rows.n_effective
        return super().evaluate(X, rows)

    def best(self, X: Tensor, rows: Rows) -> Solution:
        """Return the optimal q(w); raise an error if K_uu is not positive definite."""
        found = optimal_q(self.model, X, rows, self.present_sites(), None, *self.inner)
        self.check_sound()
        return found

    def check_sound(self) -> None:
        """Raise an error if K_uu is not positive definite."""
        if not self.model.features.is_sound():
            self.model.features.forgive()
            raise NotPositiveDefiniteError(
                "The covariance of the inducing points is not positive definite. Likely causes: "
                f"inputs on an extreme scale (use StandardScaler), or {NO_COVARIANCE}."
            )

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        params = [p for p in self.parameters() if p.requires_grad]
        try:
            found = self.best(X, rows)
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            return rejected(params)
        if found.value >= self.value:
            self.keep(found.sites, found.value)
        gradients = gradients_at(self.model, X, rows, found, params)
        loss = -found.value / rows.n_effective
        return surrogate(loss, *zip(params, gradients, strict=True))


def rejected(params: list[nn.Parameter]) -> Tensor:
    """Return a loss that a line search steps back from."""
    loss = torch.tensor(REJECTED, dtype=torch.float64, device=params[0].device)
    return surrogate(loss, *((p, 0.0 * p) for p in params))


def gradients_at(
    model: SparseModel, X: Tensor, rows: Rows, found: Solution, params: list[nn.Parameter]
) -> list[Tensor]:
    """Return the gradients per row at the optimal q(w).

    By the envelope theorem, they are the gradients at a fixed q.
    """
    gradients, n = [torch.zeros_like(p) for p in params], rows.n_effective
    for basis, block in model.bases(X, rows) if params else ():
        total, _, _ = expected_score(model, basis, block, found.q)
        parts = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
        for sum_, part in zip(gradients, parts, strict=True):
            sum_ -= part / n
    of_prior = model.neg_log_prior()
    if of_prior is not None and of_prior.requires_grad:
        parts = torch.autograd.grad(of_prior / n, params, allow_unused=True, materialize_grads=True)
        gradients = [a + b for a, b in zip(gradients, parts, strict=True)]
    return gradients


# ---- the bounds of Titsias and of SOLVE-GP -------------------------------------------------------


class CollapsedObjective(FullBatchObjective):
    """The bound at the optimal q(w) of all rows, with or without orthogonal points.

    With a Gaussian likelihood, the gradient follows from sums over rows (:mod:`.gaussian_rows`),
    G = Pᵀ diag(w) P and c_p = Pᵀ diag(w)(y_p − mean). These sums also determine the best q(w):
    m_p = (I + G/σ_p²)⁻¹c_p/σ_p² and, for every block of features, S_p = (I + G_bb/σ_p²)⁻¹. For a
    single block this gives

        TG = GT = Σ_p (G/σ_p² − I + S_p).
    """

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        bound_of = bound_of_points if len(self.model.features.blocks) == 1 else bound_of_features
        try:
            bound, found = bound_of(self.model, X, rows)
            if (of_prior := self.model.neg_log_prior()) is not None:
                bound = bound - of_prior
                found = found._replace(value=bound.detach())
            self.check_sound()
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            return rejected([p for p in self.parameters() if p.requires_grad])
        if found.value >= self.value:
            self.keep(found.sites, found.value)
        return -bound / rows.n_effective


def bound_of_points(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the bound, () nats with a graph, and the optimal q(w), without orthogonal points."""
    points = OfPoints.of(cast(InducingFeatures, model.features), X)
    with torch.no_grad():
        sums = row_sums(points.features(), rows, model.mean.value)
        found, d = best(model, points.prior, rows, sums)
        dB = points.by_cross(sums, found.q, d)
        dK = by_gram(mixed(found, sums.phi.mT @ d.error), points.R)
    pairs = (points.B, dB), (points.K, dK), (points.prior, d.prior)
    return with_gradients(model, found.value, d, *pairs), found


def bound_of_features(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Solution]:
    """Return the same for any features, which autograd differentiates."""
    basis = model.features.basis(X)
    with torch.no_grad():
        sums = row_sums(basis.phi, rows, model.mean.value)
        found, d = best(model, basis.prior, rows, sums)
        dP = by_features(sums, found.q, d)
    return with_gradients(model, found.value, d, (basis.phi, dP), (basis.prior, d.prior)), found


def best(
    model: SparseModel, prior: Tensor, rows: Rows, sums: RowSums
) -> tuple[Solution, Gradients]:
    """Return the optimal q(w) and the gradients of the bound, from sums over rows."""
    sites = conjugate_sites(sums.gram, sums.cross, cast(Gaussian, model.likelihood).noise_variance)
    q = model.moments(sites)
    value, d = term_at(model, prior, rows, sums, q)
    return Solution(q, sites, value - q.kl), d


def mixed(found: Solution, weighted_error: Tensor) -> Tensor:
    """Return Φ(H) + Φ(H)ᵀ for H = (∂/∂P)ᵀP at the best q(w), from Pᵀ diag(w) ε: (M, M)."""
    (S,) = cast(tuple[Tensor], found.q.covariances)
    TG = (found.sites.precision + S).sum(0)
    TG.diagonal().sub_(len(S))
    return mirror_(TG.addmm_(found.q.mean, weighted_error.mT))


# ---- sites that are fixed during an epoch --------------------------------------------------------


class Epoch(NamedTuple):
    """Rows in the order of an epoch, and their sites."""

    X: Tensor
    rows: Rows
    sites: RowSites


class DualObjective(FullBatchObjective):
    """The bound of all rows, in float64, with sites fixed while L-BFGS iterates.

    Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes",
    NeurIPS 2021. Sites κ and λ = κμ + α of the rows determine the optimal q(w) (see
    :mod:`skgpstoch.objectives.elbo`). At other hyper-parameters the same sites give the q(w)

        G = Pᵀ diag(κ) P/β,   m = (I + G)⁻¹Pᵀ(λ − κ·mean)/β,   S_b = (I + G_bb)⁻¹,

    whose bound is almost as tight as the optimal one, but takes one pass over the rows instead of
    about ten. At the hyper-parameters where the sites were found, it has the same value and
    gradient as the optimal bound. The sites are found again after every ten iterations.
    """

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
        raise NotPositiveDefiniteError(NO_PRECISION)
    return L
