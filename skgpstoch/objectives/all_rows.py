"""The exact evidence and the bound if the inducing points are the rows.

With the Gaussian likelihood the bound of Z = X equals the exact evidence of
:mod:`skgpstoch.maths.exact_solver`, and an evaluation of it takes a third of the time of (B3). If
there are fewer points, training starts at the evidence's optimum for some of the rows.

With other likelihoods, sites κ, λ of the rows determine the optimal q(f) (Opper & Archambeau, "The
variational Gaussian approximation revisited", Neural Computation 21, 2009). With W = κ^½ A⁻¹ κ^½,
A = I + κ^½ K κ^½, and the prior N(m, K) of every output,

    a = λ − κm − WK(λ − κm),   μ = Ka + m,   Σ = K − KWK,
    KL = ½(aᵀKa − tr WK + log|A|).

With fixed sites (see :class:`skgpstoch.objectives.lbfgs.DualObjective`), with α = ∂/∂μ and
δ = ∂/∂v of the data term, and with E = I − WK, the bound has the gradient

    ∂/∂K = Eα aᵀ + E diag(δ) Eᵀ − β(½WKW + ½aaᵀ − WKa aᵀ),   ∂/∂m = Σᵢ (Eα + βWKa)ᵢ.

An evaluation takes a quarter of the time that it takes with whitened features.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..losses import ExpectedScore
from ..maths.exact_solver import ExactSolver
from ..maths.gaussian import Marginals
from ..maths.linalg import (
    NO_COVARIANCE,
    NO_PRECISION,
    NotPositiveDefiniteError,
    cholesky_,
    inverse_,
    log_det,
    mirror_,
)
from ..models.features.inducing import InducingFeatures
from ..models.posteriors.exact import repetition
from ..models.posteriors.sites import RowSites, Sites
from ..models.sparse import SparseModel
from .base import surrogate
from .elbo import MOST_VARIANCE, safe_curvature
from .lbfgs import rejected
from .optimal_q import ROUNDING, from_either
from .variational import VariationalObjective

TOL, MAX_ITER = 1e-6, 50  # least gain of a step for the sites, nats per row; most steps


# ---- the exact evidence --------------------------------------------------------------------------


class ExactObjective(VariationalObjective):
    """−log p(y | X) per row, with the kernel, the mean and the noise of a sparse model.

    A row of weight w and noise variance s counts as w rows with the same y. Their likelihood is
    that of their mean, with noise variance s/w, times a constant for the other w − 1 rows.
    """

    is_still = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found = False  # whether any covariance so far was positive definite

    def param_groups(self) -> list[dict[str, Any]]:
        return groups_without_points(self.model)

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator | None = None) -> Tensor:
        try:
            loss = -log_posterior(self.model, X, rows) / rows.n_effective
        except NotPositiveDefiniteError:
            if not self.found:
                raise
            return rejected(self.param_groups()[0]["params"])
        self.found = True
        return loss

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss of all rows."""
        return -float(log_posterior(self.model, X, rows)) / rows.n_effective


def groups_without_points(model: SparseModel) -> list[dict[str, Any]]:
    """Return the parameters of kernel, mean and likelihood, where the points are the rows."""
    features = cast(InducingFeatures, model.features)
    parts = features.covariances, model.mean, model.likelihood
    return [{"params": [p for part in parts for p in part.parameters() if p.requires_grad]}]


def log_posterior(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return log p(y | X, θ) + log p(θ), (); without log p(θ) if there is no prior."""
    value, of_prior = log_evidence(model, X, rows), model.neg_log_prior()
    return value if of_prior is None else value - of_prior


def log_evidence(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return log p(y | X), () nats, of rows (N, d) in float64, with a graph unless disabled.

    Raises
    ------
    NotPositiveDefiniteError
        If the covariance of y is not positive definite.
    """
    K = gram_of(model, X)
    likelihood = cast(Gaussian, model.likelihood.of(rows))
    s = likelihood.noise_variance.expand_as(rows.y)  # of one observation, (N, P)
    D = s if rows.weight is None else s / rows.weight[:, None]
    r = rows.y - model.mean.value  # (N, P)
    value, (dK, dD, dr) = gaussian_evidence(K.detach(), D.detach(), r.detach())
    pairs = [(x, dx) for x, dx in ((K, dK), (D, dD), (r, dr)) if x.requires_grad]
    total = surrogate(value, *pairs)
    return total - 0.5 * repetition(s, rows).sum()


def gram_of(model: SparseModel, X: Tensor) -> Tensor:
    """Return K of all rows, (N, N)."""
    features = cast(InducingFeatures, model.features)
    return features.covariances.gram(*features.embed(X))


@torch.no_grad()
def gaussian_evidence(K: Tensor, D: Tensor, r: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return Σ_p log N(r_p | 0, K + diag(D_p)), () and its derivatives by K, D and r.

    K and its derivative are (N, N); D, r and their derivatives are (N, P).
    """
    value, dK, dD, dr = r.new_zeros(()), torch.zeros_like(K), D.clone(), r.clone()
    for p in range(r.shape[1]):
        C = K.clone()
        C.diagonal().add_(D[:, p])
        solver = ExactSolver.of_(C, r[:, [p]])
        if solver is None:
            raise NotPositiveDefiniteError(
                "The covariance of all rows is not positive definite. Likely causes: a noise "
                f"variance that is too small, or {NO_COVARIANCE}."
            )
        value = value + solver.log_density(r[:, [p]])
        G = mirror_(solver.slope_())
        dK += G
        dD[:, p], dr[:, p] = G.diagonal(), -solver.A[:, 0]
    return value, (dK, dD, dr)


# ---- the bound -----------------------------------------------------------------------------------


class Latent(NamedTuple):
    """q(f) at the rows, with independent outputs."""

    mean: Tensor  # μ, (N, P)
    var: Tensor  # diag Σ, (N, P)
    kl: Tensor  # summed over outputs, ()
    a: Tensor  # (N, P)
    W: Tensor  # (P, N, N)
    WK: Tensor  # (P, N, N)


class AllRowsObjective(VariationalObjective):
    """The bound of a log-concave likelihood, in float64, with sites fixed during an epoch."""

    precision: Tensor
    cross: Tensor
    value: Tensor

    def __init__(self, *args: Any, X: Tensor, rows: Rows, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data: tuple[Tensor, Rows] | None = (X, rows)
        none = torch.zeros(len(X), len(self.model.mean.value), dtype=X.dtype, device=X.device)
        self.register_buffer("precision", none)
        self.register_buffer("cross", none.clone())
        self.register_buffer("value", none.new_tensor(-torch.inf)[()])

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return row numbers for X: sites are in the order of the rows, minibatches are not."""
        return torch.arange(len(X), dtype=X.dtype, device=X.device)[:, None], rows

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        X, rows = cast(tuple[Tensor, Rows], self.data)
        if not bool(self.value.isfinite()):
            self.find(X, rows)
        try:
            total, kl = bound_at(self.model, X, rows, self.sites)
        except NotPositiveDefiniteError:
            return rejected(self.param_groups()[0]["params"])
        return self.neg_elbo(total, kl, rows, generator)

    def param_groups(self) -> list[dict[str, Any]]:
        return groups_without_points(self.model)

    @property
    def sites(self) -> RowSites:
        """The sites of this epoch."""
        return RowSites(self.precision, self.cross)

    @torch.no_grad()
    def find(self, X: Tensor, rows: Rows) -> None:
        """Find the optimal sites at the present hyper-parameters, starting from the last ones."""
        K, n = gram_of(self.model, X), rows.n_effective
        m, beta = self.model.mean.value, self.model.beta

        def survey(q: Latent, exact: bool) -> tuple[Tensor, RowSites]:
            term = score(self.model, rows, q)
            return term.value.sum() - beta * q.kl, sites_at(q, term, exact)

        def sites_at(q: Marginals | Latent, term: ExpectedScore, exact: bool) -> RowSites:
            kappa = term.curvature if exact else safe_curvature(term, K.diagonal())
            return RowSites(kappa / beta, (kappa * q.mean + term.mean) / beta)

        def moments(sites: RowSites) -> Latent:
            return latent(K, m, sites)

        def level() -> RowSites:
            f = self.model.likelihood.initial_mean(rows).expand(len(X), -1)
            var = K.diagonal().clamp_max(MOST_VARIANCE)[:, None].expand_as(f)
            known = Marginals(f, var)
            return sites_at(known, score(self.model, rows, known), False)

        limits = (TOL * n, ROUNDING * n, MAX_ITER)
        found = from_either(survey, moments, self.sites, level, *limits)
        self.register_buffer("precision", found.sites.precision)
        self.register_buffer("cross", found.sites.cross)
        self.register_buffer("value", found.value)

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return minus the bound per row, at the optimal sites."""
        self.find(X, rows)
        return -float(self.value) / rows.n_effective

    @torch.no_grad()
    def present_sites(self) -> Sites:
        X, _ = cast(tuple[Tensor, Rows], self.data)
        basis = self.model.features.basis(X)
        return self.sites.of_weights(basis.phi, self.model.offset(basis))

    def detach_rows(self) -> None:
        self.data = None


# ---- q(f), and the bound -------------------------------------------------------------------------


def score(model: SparseModel, rows: Rows, q: Latent | Marginals) -> ExpectedScore:
    """Return minus the weighted loss of all rows, and its derivatives."""
    f, none = Marginals(q.mean[None], q.var[None]), torch.zeros_like(q.mean[:, 0])
    return model.loss.expected_score(rows.y, model.likelihood.of(rows), f, none).weighted(rows)


@torch.no_grad()
def latent(K: Tensor, m: Tensor, sites: RowSites) -> Latent:
    """Return the q(f) of sites, given K (N, N) and m (P,).

    Raises
    ------
    NotPositiveDefiniteError
        If A has no factor.
    """
    kappa = sites.precision.mT  # (P, N)
    root = kappa.clamp_min(0.0).sqrt()
    found, log_dets = [], []
    for s in root:
        A = K * s * s[:, None]
        A.diagonal().add_(1.0)
        if not cholesky_(A):
            raise NotPositiveDefiniteError(NO_PRECISION)
        log_dets.append(log_det(A))
        inverse_(A)
        mirror_(A)
        found.append(A.mul_(s).mul_(s[:, None]))
    W = torch.stack(found)
    WK = W @ K
    target = sites.cross - sites.precision * m  # λ − κm, (N, P)
    a = target - (WK @ target.mT[..., None])[..., 0].mT
    Ka = K @ a
    var = K.diagonal() - (K * WK.mT).sum(-1)  # (P, N)
    trace = WK.diagonal(dim1=-2, dim2=-1).sum()
    kl = 0.5 * ((a * Ka).sum() - trace + torch.stack(log_dets).sum())
    return Latent(Ka + m, var.clamp_min(0.0).mT, kl, a, W, WK)


def bound_at(model: SparseModel, X: Tensor, rows: Rows, sites: RowSites) -> tuple[Tensor, Tensor]:
    """Return −Σ loss and KL, each (), at the sites' q(f); the first has the bound's gradient."""
    K, m = gram_of(model, X), model.mean.value
    q = latent(K.detach(), m.detach(), sites)
    term = score(model, rows, q)
    dK, dm = gradients(q, term.mean, term.explained, model.beta)
    value = term.value.sum()
    pairs = [(x, dx) for x, dx in ((K, dK), (m, dm)) if x.requires_grad]
    return surrogate(value.detach(), *pairs) + (value - value.detach()), q.kl


@torch.no_grad()
def gradients(q: Latent, alpha: Tensor, delta: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return ∂/∂K (N, N) and ∂/∂m (P,) of −Σ loss − β KL with fixed sites, from α and δ (N, P)."""
    dK, dm = torch.zeros_like(q.W[0]), torch.zeros_like(q.a[0])
    for p, (W, WK) in enumerate(zip(q.W, q.WK, strict=True)):
        a, WKa = q.a[:, p], WK @ q.a[:, p]
        E_alpha = alpha[:, p] - WK @ alpha[:, p]
        E = -WK
        E.diagonal().add_(1.0)
        dK += (E * delta[:, p]) @ E.mT - 0.5 * beta * (WK @ W)
        left = E_alpha + beta * (WKa - 0.5 * a)
        dK += 0.5 * (torch.outer(left, a) + torch.outer(a, left))
        dm[p] = (E_alpha + beta * WKa).sum()
    return dK, dm
