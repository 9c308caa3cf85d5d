"""The sparse model, what it is trained for, and the q(w) that is best given everything else.

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

Any other loss of :mod:`skgpstoch.losses` may stand for −E log p, and β KL for KL: all of this
holds, with G/β and c/β for G and c, and the curvature κ of the loss for −2δ in those of the mean.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.arrays import row_blocks
from ..features.base import Basis
from ..features.inducing import JITTERS, InducingFeatures
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise
from ..losses import DataTerm, ExpectedLogLikelihood, Loss, Rows
from ..maths.gaussian import Marginals
from ..maths.linalg import BLOCK_ROWS, NotPositiveDefiniteError, cholesky
from ..posteriors.base import Posterior
from ..posteriors.blocks import Moments, VariationalWeights
from ..posteriors.sites import Sites, best_mean, best_moments, diagonal_blocks
from .base import surrogate

TINY = 1e-12  # least scale of variances


FAR = 3.0  # prior deviations of f that a site's target may be away


MIN_STEP = 1e-3


class Solution(NamedTuple):
    """What a pass over all rows finds."""

    q: Moments
    sites: Sites
    value: Tensor  # −Σ loss − β KL, summed over rows and outputs, ()


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
    """Features, likelihood and prior mean, and what they are trained for.

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
    loss : Loss or None, default=None
        Of a row; None is that of the evidence lower bound.
    beta : float, default=1.0
        What KL[q(w) ‖ p(w)] is weighted with.
    """

    def __init__(
        self,
        features: InducingFeatures,
        likelihood: Likelihood,
        mean: ConstantMean,
        n_targets: int,
        prior_blocks: tuple[bool, ...],
        loss: Loss | None = None,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.likelihood = likelihood
        self.mean = mean
        self.n_targets = n_targets
        self.prior_blocks = prior_blocks
        self.loss = ExpectedLogLikelihood() if loss is None else loss
        self.beta = beta

    @property
    def is_conjugate(self) -> bool:
        """Whether the sites do not depend on q."""
        return self.loss.is_conjugate(self.likelihood)

    @property
    def has_prior_covariance(self) -> tuple[bool, ...]:
        """Whether S_b is the prior's."""
        if self.loss.covariance(self.likelihood) == "prior":
            return (True,) * len(self.prior_blocks)
        return self.prior_blocks

    @property
    def site_noise(self) -> Tensor:
        """The noise variance of every row that G and c are those of, (P,)."""
        noise = cast(Tensor, self.loss.site_noise(self.likelihood))
        return self.beta * noise.detach()

    def zero_sites(self, device: torch.device) -> Sites:
        """Those of no data, with which q(w) is the prior."""
        D, P = self.features.n_features, len(self.mean.value)
        zeros = torch.zeros(P, D, D, dtype=torch.float64, device=device)
        return Sites(zeros, zeros[0, :, :1].repeat(1, P))

    def copy_for_training(self, like: Tensor) -> SparseModel:
        """A model that goes on from here."""
        model = copy.deepcopy(self).to(like)
        model.features.thaw()
        model.features.unscale()
        model.features.jitter = JITTERS[like.dtype]
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model

    def moments(self, sites: Sites, like: Moments | None = None, **options: Any) -> Moments:
        """The best q(w), given sites; or the best mean, with the covariances of another."""
        if like is None:
            blocks = self.features.blocks
            return best_moments(sites, blocks, self.has_prior_covariance, **options)
        mean, _ = best_mean(sites, self.features.blocks)
        kl = like.kl + 0.5 * (mean.square().sum() - like.mean.square().sum())
        return like._replace(mean=mean, kl=kl)

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

    def data_term(
        self,
        basis: Basis,
        rows: Rows,
        q: Moments,
        generator: torch.Generator | None = None,
        products: Tensor | None = None,
    ) -> tuple[Tensor, DataTerm, Marginals]:
        """−Σᵢ loss at a fixed q, its gradient in closed form; its parts; and q(f).

        `products` are PS, (B, N, D), where they are known.
        """
        phi = basis.phi.detach()
        shift = None if basis.shift is None else basis.shift.detach()
        seen = Basis(phi, basis.prior.detach(), shift)
        with torch.no_grad():
            products = q.products(phi) if products is None else products
            marginals, residual = self.marginals(seen, q, products)
        term = self.loss.data_term(rows, marginals, residual, generator)
        mean, explained, unexplained = (part.to(phi) for part in term[1:4])
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

    def data_term_of(
        self, rows: Rows, q: Marginals, residual: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DataTerm]:
        """The same at a q(f) with a graph, which the gradient goes through; and its parts."""
        seen = Marginals(q.mean.detach(), q.var.detach())
        term = self.loss.data_term(rows, seen, residual.detach(), generator)
        mean, explained, unexplained = (part.to(q.mean) for part in term[1:4])
        value, beyond = term.value.sum(), (unexplained - explained).sum(1)
        given = ((q.mean, mean[None]), (q.var, explained[None]), (residual, beyond))
        return surrogate(value.detach(), *given) + (value - value.detach()), term

    def sites(self, basis: Basis, term: DataTerm, q: Marginals, exact: bool = False) -> Sites:
        """G and c of these rows, at q(f).

        Where the loss is not convex κ may be negative, and where it rises steeply α/κ may point
        far beyond what it is a model of. Such sites are of use only near the best q(w); elsewhere
        (exact=False) κ is at least what keeps α/κ within some prior deviations of f.
        """
        with torch.no_grad():
            phi = basis.phi.detach()
            kappa = term.curvature.to(phi)  # (N, P)
            if not (exact or self.is_conjugate):
                far = FAR * basis.prior.detach().mean().sqrt()
                kappa = torch.maximum(kappa.clamp_min(0.0), term.mean.to(phi).abs() / far)
            shifted = kappa * (q.mean[0] - self.offset(basis)) + term.mean
            weighted = (kappa / self.beta).mT[..., None] * phi  # (P, N, D)
            return Sites(phi.mT @ weighted, phi.mT @ (shifted / self.beta).to(phi))

    # ---- the best q, given all rows ----------------------------------------------------------

    def best(
        self,
        X: Tensor,
        targets: Tensor,
        start: Sites | None = None,
        like: Moments | None = None,
        **options: Any,
    ) -> Solution:
        """The best q(w) for all rows; without gradient.

        Parameters
        ----------
        X, targets : Tensors of shape (N, d) and (N, ·)
            All rows.
        start : Sites or None, default=None
            Where iterations start, where there is no closed form.
        like : Moments or None, default=None
            A q(w) whose covariances are kept.
        **options
            `tol` and `max_iter` of :meth:`iterate`.
        """
        with torch.no_grad():
            if self.is_conjugate:
                found = self._conjugate(X, targets)
            else:
                start = self.zero_sites(X.device) if start is None else start
                found = self.iterate(X, targets, start, like, **options)
            return found._replace(value=found.value - self.penalty())

    def penalty(self) -> float | Tensor:
        """What the shift costs."""
        penalty = self.features.penalty()
        return 0.0 if penalty is None else self.beta * penalty

    def evidence_bound(self, X: Tensor, targets: Tensor, q: Moments) -> Tensor:
        """The evidence lower bound at q, (), whatever the loss is."""
        with torch.no_grad(), self.maximising_bound():
            value, _ = self.survey(X, targets, q, exact=True)
            return value - self.penalty()

    @contextlib.contextmanager
    def maximising_bound(self) -> Iterator[None]:
        """Meanwhile, be trained for the evidence lower bound, or FITC's evidence."""
        loss, beta = self.loss, self.beta
        if not (loss.bounds_evidence and beta == 1.0):
            self.loss, self.beta = ExpectedLogLikelihood(), 1.0
        try:
            yield
        finally:
            self.loss, self.beta = loss, beta

    def bases(
        self, X: Tensor, targets: Tensor, dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[Basis, Rows]]:
        """All rows, by blocks."""
        for block in row_blocks(len(X), BLOCK_ROWS):
            rows = self.rows(targets[block].to(dtype))
            yield self.features.basis(X[block].to(dtype)), rows

    def calibrated(
        self, X: Tensor, targets: Tensor, found: Solution
    ) -> tuple[SparseModel, Solution]:
        """The conjugate Gaussian model with the mean that is found, whatever its scale.

        With K and σ² both multiplied by c its mean is the same. c is such that leave-one-out errors
        e/(1 − h) have the variances that they are predicted to have, σ²/(1 − h) and what is left.
        """
        noise, sizes, total = self.site_noise, self.features.blocks, 0.0
        q = best_moments(found.sites, sizes, self.prior_blocks)
        joint = best_moments(found.sites, (sum(sizes),), (False,))
        with torch.no_grad():
            for basis, rows in self.bases(X, targets):
                marginals, _ = self.marginals(basis, q, q.products(basis.phi))
                explained = (joint.products(basis.phi) * basis.phi).sum(-1).mT  # (N, P)
                rest = 1.0 - explained / noise  # 1 − h
                var = marginals.var[0] - explained + noise / rest
                total += float((((rows.y - marginals.mean[0]) / rest).square() / var).sum())
        scale = max(total / (len(X) * len(noise)), TINY)
        model = copy.deepcopy(self)
        model.features.scale_variance(scale)
        likelihood = cast(AdditiveNoise, model.likelihood)
        model.likelihood = likelihood.in_units((scale * noise / likelihood.noise_variance).sqrt())
        sites = found.sites._replace(cross=found.sites.cross / scale**0.5)
        return model, found._replace(q=best_moments(sites, sizes, self.prior_blocks), sites=sites)

    def _conjugate(self, X: Tensor, targets: Tensor) -> Solution:
        """From sums of squares weighted by κ, which is the same for all rows, or not."""
        sums: list[Tensor] = []
        for basis, rows in self.bases(X, targets):
            phi, y = basis.phi, rows.y - self.offset(basis)
            kappa, constant = self.loss.conjugate(rows.likelihood, basis.residual())
            weighted = phi if len(kappa) == 1 else kappa.mT[..., None] * phi
            part = [phi.mT @ weighted, phi.mT @ (kappa * y), (kappa * y.square()).sum(0), constant]
            # In place, and with the block gone before the next is made: memory stays in one piece.
            sums = [a.add_(b) for a, b in zip(sums, part, strict=True)] if sums else part
            if len(kappa) == 1:
                shared = kappa.mT[..., None]
            del basis, rows, phi, y, weighted, part
        gram, cross, square, constant = sums
        gram = gram if gram.ndim == 3 else gram * shared
        sites = Sites(gram / self.beta, cross / self.beta)
        q = self.moments(sites)
        Gm = torch.einsum("bij,jb->ib", gram, q.mean)
        misfit = square - 2.0 * (q.mean * cross).sum(0) + (q.mean * Gm).sum(0)  # (P,)
        fit = misfit.sum() + constant
        if self.loss.covariance(self.likelihood) == "sites":
            for G, S in zip(diagonal_blocks(gram, q.sizes), q.covariances, strict=True):
                fit = fit + (G.diagonal(dim1=-2, dim2=-1) if S is None else G * S).sum()  # tr(G S)
        return Solution(q, sites, -0.5 * fit - self.beta * q.kl)

    def iterate(
        self,
        X: Tensor,
        targets: Tensor,
        start: Sites,
        like: Moments | None = None,
        tol: float = 1e-6,
        max_iter: int = 50,
    ) -> Solution:
        """Natural-gradient or Newton steps of all rows, each of which is an improvement.

        They end where a step gains less than `tol` nats per row.
        """
        try:
            found, converged = self._climb(X, targets, start, like, tol, max_iter)
        except NotPositiveDefiniteError:
            found, converged = None, False
        if converged and found is not None:
            return found
        # From an unlucky start, or one that is none at all.
        other, _ = self._climb(X, targets, self.zero_sites(X.device), like, tol, max_iter)
        return other if found is None or other.value > found.value else found

    def _climb(
        self,
        X: Tensor,
        targets: Tensor,
        current: Sites,
        like: Moments | None,
        tol: float,
        max_iter: int,
    ) -> tuple[Solution, bool]:
        """Where steps from here lead, and whether they came to an end."""
        exact, step, q = False, 1.0, self.moments(current, like)
        value, goal = self.survey(X, targets, q, exact)
        for _ in range(max_iter):
            candidate = current.lerp(goal, step)
            try:
                found = self.moments(candidate, like)
                reached, next_goal = self.survey(X, targets, found, exact)
            except NotPositiveDefiniteError:
                reached = value.new_tensor(-torch.inf)
            gain = float(reached - value) / len(X)
            if gain >= -1e-12:
                q, value, current, goal = found, reached, candidate, next_goal
            ends = -1e-12 <= gain < tol * step
            step = min(1.0, 2.0 * step) if gain >= -1e-12 else 0.5 * step
            if not (ends or step < MIN_STEP):
                continue
            if exact:
                return Solution(q, current, value), ends
            exact, step = True, 1.0
            value, goal = self.survey(X, targets, q, exact)
        return Solution(q, current, value), False

    def survey(self, X: Tensor, targets: Tensor, q: Moments, exact: bool) -> tuple[Tensor, Sites]:
        """−Σ loss − β KL at q, and the sites there, of all rows."""
        value, total = -self.beta * q.kl, None
        for basis, rows in self.bases(X, targets):
            part, term, marginals = self.data_term(basis, rows, q)
            sites = self.sites(basis, term, marginals, exact)
            value, total = value + part, sites if total is None else total + sites
            del basis, rows, part, term, marginals, sites
        return value.nan_to_num(nan=-torch.inf, neginf=-torch.inf), cast(Sites, total)


class SparsePosterior(Posterior):
    """q(f) of a sparse model.

    Parameters
    ----------
    model : SparseModel
        In float64; its features are frozen here.
    solution : Solution
        q(w), and the sites that it comes from.
    elbo : Tensor of shape ()
        The evidence lower bound.
    n_rows : int
        Rows of data.
    """

    model: SparseModel
    weights: VariationalWeights
    precision: Tensor
    elbo: Tensor

    def __init__(self, model: SparseModel, solution: Solution, elbo: Tensor, n_rows: int) -> None:
        super().__init__()
        self.model = model
        self.weights = solution.q.weights()
        self.likelihood = model.likelihood
        self.register_buffer("precision", solution.sites.precision)
        self.register_buffer("elbo", elbo)
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
        with self.model.maximising_bound():
            found = self.model.best(X, targets)
        return SparsePosterior(self.model, found, found.value, len(X))
