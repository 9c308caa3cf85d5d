"""The sparse model, its evidence lower bound, and the q(w) that is best given everything else.

With the whitened features P (n, D) of :mod:`skgpstoch.inducing` or :mod:`skgpstoch.solvegp`, in
blocks D = Σ_b D_b, and q(w) = N(m, S), S = blockdiag(S_b),

    μ = Pm + mean,   v = diag(P S Pᵀ) + diag(K − PPᵀ)                                           (B1)
    ELBO = Σᵢ E_N(fᵢ|μᵢ,vᵢ)[log p(yᵢ|fᵢ)] − KL[N(m, S) ‖ N(0, I)]                               (B2)

At a fixed q the bound reaches the kernel, the points and the network through P and k(x, x) alone.
With α = ∂E/∂μ and δ = ∂E/∂v,

    ∂ELBO/∂P = α mᵀ + 2 diag(δ)(PS − P),      ∂ELBO/∂k(x, x) = δ,

which by the envelope theorem is all of the gradient where q is the best one. That has natural
parameters which are sums over rows, of β = −2δ and α + β(μ − mean):

    S_b = (I + G_bb)⁻¹,   m = (I + G)⁻¹c,   G = Pᵀ diag(β) P,   c = Pᵀ(α + β(μ − mean)),

for a Gaussian likelihood G = PᵀP/σ² and c = Pᵀ(y − mean)/σ², whatever q is: then (B2) is Titsias'
bound (B3) of one block, and that of SOLVE-GP (B5) of two.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ._data import row_blocks
from ._objective import Posterior, surrogate
from .gaussian import LOG_2PI, Marginals
from .inducing import JITTERS, Basis, InducingFeatures
from .likelihoods import Gaussian, Likelihood
from .linalg import BLOCK_ROWS, NotPositiveDefiniteError, cholesky
from .sites import Moments, Sites, best_moments, conjugate_sites, diagonal_blocks
from .weights import VariationalWeights

FAR = 3.0  # prior deviations of f that a site's target may be away
MIN_STEP = 1e-3


class Solution(NamedTuple):
    """What a pass over all rows finds."""

    q: Moments
    sites: Sites
    elbo: Tensor  # nats, summed over rows and outputs, ()


class Rows(NamedTuple):
    """Targets of some rows, and the likelihood of those rows."""

    y: Tensor  # (N, P)
    likelihood: Likelihood


class DataTerm(NamedTuple):
    """E[log p(y|f)] of some rows, and its derivatives."""

    value: Tensor  # (N,), with a graph to the likelihood's parameters
    mean: Tensor  # α = ∂/∂μ, (N, P)
    explained: Tensor  # δ = ∂/∂ diag(PSPᵀ), (N, P)
    residual: Tensor  # ∂/∂ diag(K − PPᵀ), (N, P)


def expected_log_prob(rows: Rows, q: Marginals, residual: Tensor, bound: str) -> Tensor:
    """E_q[log p(yᵢ|fᵢ)], (N,), of marginals whose variance `residual` (N,) is a part of.

    With bound="log1p" the residual's −r/(2σ²) becomes −½ log(1 + r/σ²), for a Gaussian likelihood:
    it is tighter, and a bound still.
    """
    if bound != "log1p":
        return rows.likelihood.expected_log_prob(rows.y, q)
    noise, r = cast(Gaussian, rows.likelihood).noise_variance, residual[:, None]
    value = rows.likelihood.expected_log_prob(rows.y, Marginals(q.mean, q.var - r))
    return value - 0.5 * torch.log1p(r / noise).sum(1)


def data_term(rows: Rows, q: Marginals, residual: Tensor, bound: str) -> DataTerm:
    """E_q[log p(yᵢ|fᵢ)] and its derivatives."""
    value = expected_log_prob(rows, q, residual, bound)
    with torch.no_grad():
        _, mean, var = rows.likelihood.expected_gradients(rows.y, q)
        if bound != "log1p":
            return DataTerm(value, mean, var, var)
        noise = cast(Gaussian, rows.likelihood).noise_variance
        return DataTerm(value, mean, var, -0.5 / (noise + residual[:, None]))


class ConstantMean(nn.Module):
    """The prior mean of each output.

    Parameters
    ----------
    value : Tensor of shape (P,)
        Where it starts.
    """

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


class SparseModel(nn.Module):
    """Features, likelihood and prior mean, and the bound that they have.

    Targets carry y, the exposure where the likelihood has one, and the row's fold.

    Parameters
    ----------
    features : InducingFeatures
        P.
    likelihood : Likelihood
        p(y | f).
    mean : ConstantMean
        Prior mean of f.
    n_targets : int
        Columns of y.
    prior_blocks : tuple of bool
        Whether S_b stays the prior's.
    bound : {"titsias", "log1p"}, default="titsias"
        See :func:`data_term`.
    """

    def __init__(
        self,
        features: InducingFeatures,
        likelihood: Likelihood,
        mean: ConstantMean,
        n_targets: int,
        prior_blocks: tuple[bool, ...],
        bound: str = "titsias",
    ) -> None:
        super().__init__()
        self.features = features
        self.likelihood = likelihood
        self.mean = mean
        self.n_targets = n_targets
        self.prior_blocks = prior_blocks
        self.bound = bound

    @property
    def is_conjugate(self) -> bool:
        """Whether the sites do not depend on q."""
        return isinstance(self.likelihood, Gaussian)

    @property
    def noise_variance(self) -> Tensor:
        """σ², (P,), of a Gaussian likelihood."""
        return cast(Gaussian, self.likelihood).noise_variance.detach()

    def zero_sites(self, device: torch.device) -> Sites:
        """Those of no data, with which q(w) is the prior."""
        D, P = self.features.n_features, len(self.mean.value)
        zeros = torch.zeros(P, D, D, dtype=torch.float64, device=device)
        return Sites(zeros, zeros[0, :, :1].repeat(1, P))

    def copy_for_training(self, like: Tensor) -> SparseModel:
        """A model that goes on from here."""
        model = copy.deepcopy(self).to(like)
        model.features.thaw()
        model.features.jitter = JITTERS[like.dtype]
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model

    def moments(self, sites: Sites, **options: Any) -> Moments:
        """The best q(w), given sites."""
        return best_moments(sites, self.features.blocks, self.prior_blocks, **options)

    def rows(self, targets: Tensor) -> Rows:
        """Targets, taken apart."""
        exposure = targets[:, self.n_targets : -1]
        likelihood = self.likelihood.given(exposure) if exposure.shape[1] else self.likelihood
        return Rows(targets[:, : self.n_targets], likelihood)

    def offset(self, basis: Basis) -> Tensor:
        """The part of the mean of f that is not Pm: (P,) or (N, P)."""
        value = self.mean.value.to(basis.phi)
        return value if basis.shift is None else value + basis.shift

    def marginals(self, basis: Basis, q: Moments, products: Tensor) -> tuple[Marginals, Tensor]:
        """q(f) (B1), given PS (B, N, D); and diag(K − PPᵀ), (N,)."""
        phi = basis.phi
        residual = basis.residual()
        mean = phi @ q.mean + self.offset(basis)
        var = (products * phi).sum(-1).clamp_min(0.0) + residual  # (B, N)
        return Marginals(mean[None], var.mT.expand_as(mean)[None]), residual

    def data_term(self, basis: Basis, rows: Rows, q: Moments) -> tuple[Tensor, DataTerm, Marginals]:
        """Σᵢ E[log p(yᵢ|fᵢ)] at a fixed q, its gradient in closed form; its parts; and q(f)."""
        phi = basis.phi.detach()
        shift = None if basis.shift is None else basis.shift.detach()
        seen = Basis(phi, basis.prior.detach(), shift)
        with torch.no_grad():
            products = q.products(phi)
            marginals, residual = self.marginals(seen, q, products)
        term = data_term(rows, marginals, residual, self.bound)
        mean, explained, unexplained = (part.to(phi) for part in term[1:])
        phi_bar = mean @ q.mean.mT - 2.0 * unexplained.sum(1, keepdim=True) * phi
        delta = explained.mT if len(products) > 1 else explained.sum(1)[None]  # (B, N)
        phi_bar += 2.0 * (delta[..., None] * products).sum(0)
        given = [(basis.phi, phi_bar), (basis.prior, unexplained.sum(1))]
        if basis.shift is not None:
            given.append((basis.shift, mean))
        given.append((self.mean.value, mean.sum(0)))
        value = term.value.sum()
        total = surrogate(value.detach(), *((x, dx) for x, dx in given if x.requires_grad))
        return total + (value - value.detach()), term, marginals

    def sites(self, basis: Basis, term: DataTerm, q: Marginals, exact: bool = False) -> Sites:
        """G and c of these rows, at q(f).

        Where log p(y | f) is not concave β may be negative, and where it falls steeply α/β may
        point far beyond what it is a model of. Such sites are of use only near the best q(w);
        elsewhere (exact=False) β is at least what keeps α/β within some prior deviations of f.
        """
        with torch.no_grad():
            phi = basis.phi.detach()
            beta = (-2.0 * term.explained).to(phi)  # (N, P)
            if not (exact or self.is_conjugate):
                far = FAR * basis.prior.detach().mean().sqrt()
                beta = torch.maximum(beta.clamp_min(0.0), term.mean.to(phi).abs() / far)
            shifted = beta * (q.mean[0] - self.offset(basis)) + term.mean
            weighted = beta.mT[..., None] * phi  # (P, N, D)
            return Sites(phi.mT @ weighted, phi.mT @ shifted.to(phi))

    # ---- the best q, given all rows ----------------------------------------------------------

    def best(
        self, X: Tensor, targets: Tensor, start: Sites | None = None, **options: Any
    ) -> Solution:
        """The q(w) of the largest bound over all rows; without gradient.

        Parameters
        ----------
        X, targets : Tensors of shape (N, d) and (N, ·)
            All rows.
        start : Sites or None, default=None
            Where iterations start, for a likelihood that is not Gaussian.
        **options
            `tol` and `max_iter` of :meth:`iterate`.
        """
        with torch.no_grad():
            if self.is_conjugate:
                found = self._conjugate(X, targets)
            else:
                start = self.zero_sites(X.device) if start is None else start
                found = self.iterate(X, targets, start, **options)
            penalty = self.features.penalty()
        return found if penalty is None else found._replace(elbo=found.elbo - penalty)

    def bases(
        self, X: Tensor, targets: Tensor, dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[Basis, Rows]]:
        """All rows, by blocks."""
        for block in row_blocks(len(X), BLOCK_ROWS):
            rows = self.rows(targets[block].to(dtype))
            yield self.features.basis(X[block].to(dtype)), rows

    def _conjugate(self, X: Tensor, targets: Tensor) -> Solution:
        noise = self.noise_variance
        sums: list[Tensor] = []
        for basis, rows in self.bases(X, targets):
            phi, y = basis.phi, rows.y - self.offset(basis)
            r = basis.residual()[:, None] / noise
            r = r.log1p() if self.bound == "log1p" else r
            part = [phi.mT @ phi, phi.mT @ y, y.square().sum(0), r.sum()]
            # In place, and with the block gone before the next is made: memory stays in one piece.
            sums = [a.add_(b) for a, b in zip(sums, part, strict=True)] if sums else part
            del basis, rows, phi, y, r, part
        gram, cross, square, unexplained = sums
        sites = conjugate_sites(gram, cross, noise)
        q = self.moments(sites)
        Gm = gram @ q.mean
        misfit = square - 2.0 * (q.mean * cross).sum(0) + (q.mean * Gm).sum(0)  # (P,)
        parts = zip(diagonal_blocks(gram, q.sizes), q.covariances, strict=True)
        spread = sum(  # tr(G S), (B,)
            part.trace()[None] if S is None else (part * S).sum((-2, -1)) for part, S in parts
        )
        log_noise = len(X) * (LOG_2PI + noise.log())
        fit = -0.5 * (log_noise + (misfit + spread) / noise).sum() - 0.5 * unexplained
        return Solution(q, sites, fit - q.kl)

    def iterate(
        self, X: Tensor, targets: Tensor, start: Sites, tol: float = 1e-6, max_iter: int = 50
    ) -> Solution:
        """Natural-gradient steps of all rows, each of which improves the bound.

        They end where a step gains less than `tol` nats per row.
        """
        try:
            found, converged = self._climb(X, targets, start, tol, max_iter)
        except NotPositiveDefiniteError:
            found, converged = None, False
        if converged and found is not None:
            return found
        # From an unlucky start, or one that is none at all.
        other, _ = self._climb(X, targets, self.zero_sites(X.device), tol, max_iter)
        return other if found is None or other.elbo > found.elbo else found

    def _climb(
        self, X: Tensor, targets: Tensor, current: Sites, tol: float, max_iter: int
    ) -> tuple[Solution, bool]:
        """Where steps from here lead, and whether they came to an end."""
        exact, step, q = False, 1.0, self.moments(current)
        elbo, goal = self.survey(X, targets, q, exact)
        for _ in range(max_iter):
            candidate = current.lerp(goal, step)
            try:
                found = self.moments(candidate)
                reached, next_goal = self.survey(X, targets, found, exact)
            except NotPositiveDefiniteError:
                reached = elbo.new_tensor(-torch.inf)
            gain = float(reached - elbo) / len(X)
            if gain >= -1e-12:
                q, elbo, current, goal = found, reached, candidate, next_goal
            ends = -1e-12 <= gain < tol * step
            step = min(1.0, 2.0 * step) if gain >= -1e-12 else 0.5 * step
            if not (ends or step < MIN_STEP):
                continue
            if exact:
                return Solution(q, current, elbo), ends
            exact, step = True, 1.0
            elbo, goal = self.survey(X, targets, q, exact)
        return Solution(q, current, elbo), False

    def survey(self, X: Tensor, targets: Tensor, q: Moments, exact: bool) -> tuple[Tensor, Sites]:
        """The bound at q, and the sites there, of all rows."""
        elbo, total = -q.kl, None
        for basis, rows in self.bases(X, targets):
            value, term, marginals = self.data_term(basis, rows, q)
            sites = self.sites(basis, term, marginals, exact)
            elbo, total = elbo + value, sites if total is None else total + sites
            del basis, rows, value, term, marginals, sites
        return elbo.nan_to_num(nan=-torch.inf, neginf=-torch.inf), cast(Sites, total)


class SparsePosterior(Posterior):
    """q(f) of a sparse model.

    Parameters
    ----------
    model : SparseModel
        In float64; its features are frozen here.
    solution : Solution
        q(w), the sites that it comes from, and the bound.
    n_rows : int
        Rows of data.
    """

    model: SparseModel
    weights: VariationalWeights
    precision: Tensor
    elbo: Tensor

    def __init__(self, model: SparseModel, solution: Solution, n_rows: int) -> None:
        super().__init__()
        self.model = model
        self.weights = solution.q.weights()
        self.likelihood = model.likelihood
        self.register_buffer("precision", solution.sites.precision)
        self.register_buffer("elbo", solution.elbo)
        self._n_rows = n_rows
        model.features.freeze()

    @property
    def sites(self) -> Sites:
        """G and c, which streams go on from."""
        m = self.weights.mean  # (I + G)m = c
        return Sites(self.precision, m + torch.einsum("bij,jb->ib", self.precision, m))

    @property
    def n_rows(self) -> int:
        return self._n_rows

    def log_evidence(self) -> Tensor:
        """The bound on it, in one piece: (1,) nats."""
        return self.elbo[None]

    def marginals(self, X: Tensor) -> Marginals:
        basis = self.model.features.basis(X)
        q = self.weights.marginals(basis.phi, basis.residual())
        return Marginals(q.mean + self.model.offset(basis), q.var)

    def covariance(self, X: Tensor) -> Tensor:
        phi = self.model.features.basis(X).phi
        return self.weights.covariance(phi) + self.model.features.residual_covariance(X, phi)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws: the residual process takes O(N²) memory and O(N³) time."""
        basis = self.model.features.basis(X)
        f = basis.phi @ self.weights.sample(n_samples, generator) + self.model.offset(basis)
        R = self.model.features.residual_covariance(X, basis.phi)
        z = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + cholesky(R, "covariance of the residual process", basis.prior.mean()) @ z

    def refit(self, X: Tensor, targets: Tensor) -> SparsePosterior:
        return SparsePosterior(self.model, self.model.best(X, targets), len(X))
