"""The data term Σᵢ −loss(yᵢ, q(fᵢ)) of a variational model, its gradient, and the sites it implies.

The bound is that of Shi, Titsias & Mnih (eq. 8),

    ELBO = Σᵢ E_N(fᵢ|μᵢ,vᵢ)[log p(yᵢ|fᵢ)] − KL[N(m, S) ‖ N(0, I)],                              (B2)

and any other loss of :mod:`skgpstoch.losses` may replace −E log p. At a fixed q, the bound depends
on the kernel, the points and the network only through P and k(x, x). With α = ∂/∂μ and δ = ∂/∂v,

    ∂/∂P = α mᵀ + 2 diag(δ)(PS − P),      ∂/∂k(x, x) = δ,

By the envelope theorem this is the whole gradient if q is optimal. The natural parameters of the
optimal q are sums over rows of the curvature κ = −2δ and of α + κ(μ − mean):

    S_b = (I + G_bb)⁻¹,   m = (I + G)⁻¹c,   G = Pᵀ diag(κ) P,   c = Pᵀ(α + κ(μ − mean)),

For a Gaussian likelihood, G = PᵀP/σ² and c = Pᵀ(y − mean)/σ², whatever q is. With β KL in place of
KL, all of this holds with G/β and c/β in place of G and c. A row of weight w counts as w rows: its
α, δ and κ are multiplied by w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.rows import Rows
from ..losses import ExpectedScore
from ..maths.gaussian import Marginals
from ..models.features.base import Basis
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import Sites
from ..models.sparse import SparseModel, likelihood_of
from .base import surrogate

MOST_VARIANCE = 1.0  # of f at the start; with more, a log link allows almost any rate

FARTHEST_TARGET = 3.0
"""Farthest target of a row's site, in prior standard deviations of f."""


@torch.no_grad()
def evidence_lower_bound(model: SparseModel, X: Tensor, rows: Rows, q: WeightMoments) -> Tensor:
    """Return Σᵢ E_N(fᵢ|μᵢ,vᵢ)[log p(yᵢ|fᵢ)] − KL[N(m, S) ‖ N(0, I)] (B2), () nats.

    With another loss it is minus the loss of the rows, minus β KL. Penalties of the model are
    subtracted as well: the KL of inner layers (F3), and −log p(a) if the noise depends on the
    inputs.
    """
    data_term = torch.zeros_like(q.kl)
    for basis, block in model.bases(X, rows):
        PS = q.products(basis.phi)  # (B, N, D)
        f = model.marginals(basis, q, PS)  # μ, v (B1), (1, N, P)
        log_p = weighted_score(model, basis, block, f, basis.residual()).value  # (N,)
        data_term += log_p.sum()
    rows.total(data_term)
    bound = data_term - model.beta * q.kl
    return bound.nan_to_num(nan=-torch.inf, neginf=-torch.inf) - model.penalty()


def weighted_score(
    model: SparseModel,
    basis: Basis,
    rows: Rows,
    q: Marginals,
    residual: Tensor,
    generator: torch.Generator | None = None,
) -> ExpectedScore:
    """Return minus the weighted loss of rows at q(f), and its derivatives."""
    likelihood = likelihood_of(model, basis, rows)
    term = model.loss.expected_score(rows.y, likelihood, q, residual, generator)
    return model.loss.of_samples(term, basis.n_samples).weighted(rows)


def expected_score(
    model: SparseModel,
    basis: Basis,
    rows: Rows,
    q: WeightMoments,
    generator: torch.Generator | None = None,
    products: Tensor | None = None,
) -> tuple[Tensor, ExpectedScore, Marginals]:
    """Return −Σᵢ loss at a fixed q, with its gradient in closed form; its parts; and q(f).

    `products` are PS, (B, N, D), if they are known.
    """
    phi = basis.phi.detach()
    with torch.no_grad():
        products = q.products(phi) if products is None else products
        seen = basis.detach()
        marginals, residual = model.marginals(seen, q, products), seen.residual()
    term = weighted_score(model, basis, rows, marginals, residual, generator)
    mean, explained, unexplained = (part.to(phi) for part in term[1:4])
    phi_bar = mean @ q.mean.mT - 2.0 * unexplained.sum(1, keepdim=True) * phi
    delta = explained.mT if len(products) > 1 else explained.sum(1)[None]  # (B, N)
    phi_bar += 2.0 * (delta[..., None] * products).sum(0)
    given = [(basis.phi, phi_bar), (basis.prior, unexplained.sum(1))]
    if basis.shift is not None:
        given.append((basis.shift, mean))
    given.append((model.mean.value, mean.sum(0)))
    value = term.value.sum()
    total = surrogate(value.detach(), *((x, dx) for x, dx in given if x.requires_grad))
    return total + (value - value.detach()), term, marginals


@torch.no_grad()
def score_at(
    model: SparseModel,
    basis: Basis,
    rows: Rows,
    level: Tensor,
    generator: torch.Generator | None = None,
) -> tuple[ExpectedScore, Marginals]:
    """Return −loss of rows for f with means `level` (P,) and about the prior variance; and q(f)."""
    f = level.to(basis.phi).expand(1, len(rows), -1)
    known = Marginals(f, basis.prior.clamp_max(MOST_VARIANCE)[:, None].expand_as(f))
    return weighted_score(model, basis, rows, known, basis.residual(), generator), known


def expected_score_at(
    model: SparseModel,
    basis: Basis,
    rows: Rows,
    q: Marginals,
    residual: Tensor,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, ExpectedScore]:
    """Return −Σᵢ loss, whose gradient goes through the graph of q(f), and its parts."""
    seen = Marginals(q.mean.detach(), q.var.detach())
    term = weighted_score(model, basis, rows, seen, residual.detach(), generator)
    return traced(term, q, residual), term


def traced(term: ExpectedScore, q: Marginals, residual: Tensor) -> Tensor:
    """Return a term's sum over rows, with its gradient by q(f) (1, N, P) and residual (N,)."""
    mean, explained, unexplained = (part.to(q.mean) for part in term[1:4])
    value, beyond = term.value.sum(), (unexplained - explained).sum(1)
    given = ((q.mean, mean[None]), (q.var, explained[None]), (residual, beyond))
    given_graph = [(x, dx) for x, dx in given if x.requires_grad]
    return surrogate(value.detach(), *given_graph) + (value - value.detach())


@torch.no_grad()
def sites_of(
    model: SparseModel, basis: Basis, term: ExpectedScore, q: Marginals, exact: bool = False
) -> Sites:
    """Return the sites G and c of these rows, at q(f).

    If the loss is not convex, κ may be negative. If it rises steeply, the step α/κ may go far
    beyond the range where the quadratic model holds. Such sites help only near the optimal q(w);
    elsewhere (exact=False) κ is raised to keep α/κ within a few prior deviations of f.
    """
    phi = basis.phi.detach()
    kappa = term.curvature.to(phi)  # (N, P)
    if not (exact or model.is_conjugate):
        kappa = safe_curvature(term, basis.prior.detach()).to(phi)
    shifted = kappa * (q.mean[0] - model.offset(basis)) + term.mean
    weighted = (kappa / model.beta).mT[..., None] * phi  # (P, N, D)
    return Sites(phi.mT @ weighted, phi.mT @ (shifted / model.beta).to(phi))


def safe_curvature(term: ExpectedScore, prior: Tensor) -> Tensor:
    """Return κ (N, P), raised where α/κ would be too large for the prior variances (N,) of f.

    Each row's own prior variance counts, so the result does not depend on the other rows.
    """
    far = FARTHEST_TARGET * prior.clamp_min(torch.finfo(prior.dtype).tiny).sqrt()[:, None]
    return torch.maximum(term.curvature.to(prior).clamp_min(0.0), term.mean.to(prior).abs() / far)
