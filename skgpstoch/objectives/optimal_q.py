"""Find the optimal q(w) for all rows, given everything else: in closed form, or by Newton steps.

For a Gaussian likelihood, the bound at the optimal q is Titsias' bound if there is one block of
features (Shi, Titsias & Mnih, eq. 3), and that of SOLVE-GP if there are two (eq. 9).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any, cast

import torch
from torch import Tensor

from ..data.arrays import blocks_of
from ..data.deadline import Deadline, has_passed
from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood
from ..maths.gaussian import Marginals
from ..maths.linalg import NotPositiveDefiniteError, cholesky
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import Sites, diagonal_blocks
from ..models.sparse import Solution, SparseModel, likelihood_of
from .elbo import evidence_lower_bound, expected_score, score_at, sites_of, weighted_score

SMALLEST_STEP = 1e-3
ROUNDING = 1e-12  # loss of a step, in nats per row, that may be rounding
MOST_VARIANCES = 1 << 24  # most variances of f to keep between passes (128 MiB); else recompute

Survey = Callable[[Any, bool], tuple[Tensor, Any]]
"""(q, exact) → the value at q, and the sites there, of all rows."""


@torch.no_grad()
def optimal_q(
    model: SparseModel,
    X: Tensor,
    rows: Rows,
    start: Sites | None = None,
    like: WeightMoments | None = None,
    tol: float = 1e-6,
    max_iter: int = 50,
    deadline: Deadline | None = None,
    tries_again: bool = True,
) -> Solution:
    """Return the optimal q(w) for all rows, without gradient.

    Parameters
    ----------
    model : SparseModel
        Everything else, which is fixed.
    X, rows : Tensor of shape (N, d) and Rows
        All rows.
    start : Sites or None, default=None
        Where iterations start if there is no closed form; None is the prior.
    like : WeightMoments or None, default=None
        A q(w) whose covariances are kept.
    tol : float, default=1e-6
        Stop when a step gains less, in nats per row.
    max_iter : int, default=50
        Most iterations.
    deadline : Deadline or None, default=None
        When to stop in any case.
    tries_again : bool, default=True
        Whether to try another start if iterations do not converge.
    """
    if model.is_conjugate:
        found = conjugate(model, X, rows)
    else:
        found = iterate(model, X, rows, start, like, tol, max_iter, deadline, tries_again)
    return found._replace(value=found.value - model.penalty())


def evidence_bound(model: SparseModel, X: Tensor, rows: Rows, q: WeightMoments) -> Tensor:
    """Return the evidence lower bound at q, (), whatever the loss is; NaN if there is none."""
    if not model.likelihood.has_bound:
        return q.kl.new_tensor(torch.nan)
    return evidence_lower_bound(model.for_evidence(), X, rows, q)


@torch.no_grad()
def evidence_error(model: SparseModel, X: Tensor, rows: Rows, q: WeightMoments) -> Tensor:
    """Return the standard error of the bound, (), if draws of rows estimate it; otherwise 0."""
    bounded, totals = model.for_evidence(), q.kl.new_zeros(1)
    for basis, block in bounded.bases(X, rows):
        if (S := basis.n_samples) == 1:
            return totals.sum()
        _, term, _ = expected_score(bounded, basis, block, q)
        totals = totals + term.value.unflatten(0, (S, -1)).sum(1)  # (S,), of 1/S each
    rows.total(totals)
    return (len(totals) * totals.var()).sqrt()


def conjugate(model: SparseModel, X: Tensor, rows: Rows) -> Solution:
    """Find the optimal q(w) in closed form, from sums of squares weighted by κ."""
    gram, cross, square, constant = weighted_sums(model, X, rows)
    sites = Sites(gram / model.beta, cross / model.beta)
    q = model.moments(sites)
    Gm = torch.einsum("bij,jb->ib", gram, q.mean)
    misfit = square - 2.0 * (q.mean * cross).sum(0) + (q.mean * Gm).sum(0)  # (P,)
    fit = misfit.sum() + constant
    if model.covariance == "sites":
        for G, S in zip(diagonal_blocks(gram, q.sizes), q.covariances, strict=True):
            fit = fit + (G.diagonal(dim1=-2, dim2=-1) if S is None else G * S).sum()  # tr(G S)
    return Solution(q, sites, -0.5 * fit - model.beta * q.kl)


def weighted_sums(model: SparseModel, X: Tensor, rows: Rows) -> list[Tensor]:
    """Return Pᵀ diag(κ) P (P, D, D), Pᵀκy (D, P), yᵀκy (P,) and the rest of twice the loss, ()."""
    sums: list[Tensor] = []
    shared: Tensor | None = None  # κ, if it is the same for all rows
    for basis, block in model.bases(X, rows):
        phi, y = basis.phi, block.y - model.offset(basis)
        likelihood = likelihood_of(model, basis, block)
        kappa, constant = model.loss.conjugate(likelihood, basis.residual())
        shared = kappa[:, None, None] if kappa.ndim == 1 else None
        kappa = block.weighted(kappa.expand_as(y))  # (N, P)
        weighted = block.weighted(phi) if shared is not None else kappa.mT[..., None] * phi
        cross, square = phi.mT @ (kappa * y), (kappa * y.square()).sum(0)
        part = [phi.mT @ weighted, cross, square, block.weighted(constant).sum()]
        # Add in place, and free the block before the next one is made, to avoid fragmentation.
        sums = [a.add_(b) for a, b in zip(sums, part, strict=True)] if sums else part
        del basis, block, phi, y, kappa, constant, weighted, cross, square, part
    gram, *others = rows.total(*sums)
    return [gram if shared is None else gram * shared, *others]


def iterate(
    model: SparseModel,
    X: Tensor,
    rows: Rows,
    start: Sites | None,
    like: WeightMoments | None,
    tol: float,
    max_iter: int,
    deadline: Deadline | None,
    tries_again: bool,
) -> Solution:
    """Find the optimal q(w) by natural-gradient and Newton steps, each of which improves it."""

    variances = None
    if like is not None and len(X) * rows.y.shape[1] <= MOST_VARIANCES:
        variances = variances_of(model, X, rows, like)

    def look(q: WeightMoments, exact: bool) -> tuple[Tensor, Sites]:
        return survey(model, X, rows, q, exact, variances)

    def moments(sites: Sites) -> WeightMoments:
        return model.moments(sites, like)

    limits = (tol * rows.n_effective, ROUNDING * rows.n_effective, max_iter, deadline)
    start = model.zero_sites() if start is None else start
    level = functools.partial(level_sites, model, X, rows)
    return from_either(look, moments, start, level, *limits, tries_again)


def from_either(
    survey: Survey,
    moments: Callable[[Any], Any],
    start: Any,
    otherwise: Callable[[], Any],
    tol: float,
    rounding: float,
    max_iter: int,
    deadline: Deadline | None = None,
    tries_again: bool = True,
) -> Solution:
    """Make steps from `start`; if they do not converge, try `otherwise()` and return the better.

    `start` may be an unlucky choice, which only counts if `tries_again`, or have no q(w) at all.
    The other parameters are those of :func:`damped_newton`.
    """
    limits = (tol, rounding, max_iter, deadline)
    try:
        found, has_settled = damped_newton(survey, moments, start, *limits)
    except NotPositiveDefiniteError:
        found, has_settled = None, False
    is_over = has_passed(deadline) or not tries_again
    if found is not None and (has_settled or is_over):
        return found
    other, _ = damped_newton(survey, moments, otherwise(), *limits)
    return other if found is None or other.value > found.value else found


def level_sites(model: SparseModel, X: Tensor, rows: Rows) -> Sites:
    """Return the sites of all rows at the constant f that fits their targets best."""
    total, level = model.zero_sites(), model.likelihood.initial_mean(rows.representative)
    for basis, block in model.bases(X, rows):
        total = total + sites_of(model, basis, *score_at(model, basis, block, level))
    return Sites(*rows.total(*total))


def damped_newton(
    survey: Survey,
    moments: Callable[[Any], Any],
    start: Any,
    tol: float,
    rounding: float,
    max_iter: int,
    deadline: Deadline | None = None,
) -> tuple[Solution, bool]:
    """Make damped steps from `start`; return the solution, and whether the steps converged.

    Each step goes a share of the way to the sites at the present q(w). The share starts at 1; it is
    halved if the value does not grow, and doubled, up to 1, if it does. Steps use sites that are
    safe far from the optimum first, and then exact sites.

    Parameters
    ----------
    survey : callable
        Returns the value at q(w), and the sites there.
    moments : callable
        Returns the q(w), or q(f), that sites imply.
    start : Sites or RowSites
        Where steps start.
    tol, rounding : float
        In nats. A step that gains less than `tol` is the last. A step may lose up to `rounding` and
        still count as an improvement.
    max_iter : int
        Most steps.
    deadline : Deadline or None, default=None
        When to stop in any case.
    """
    current, exact, step, q = start, False, 1.0, moments(start)
    value, goal = survey(q, exact)
    for _ in range(max_iter):
        if has_passed(deadline):
            break
        candidate = current.lerp(goal, step)
        try:
            found = moments(candidate)
            reached, next_goal = survey(found, exact)
        except NotPositiveDefiniteError:
            reached = value.new_tensor(-torch.inf)
        gain = float(reached - value)
        improves = gain >= -rounding
        if improves:
            q, value, current, goal = found, reached, candidate, next_goal
        ends = improves and gain < tol * step
        step = min(1.0, 2.0 * step) if improves else 0.5 * step
        if not (ends or step < SMALLEST_STEP):
            continue
        if exact:
            return Solution(q, current, value), ends
        exact, step = True, 1.0
        value, goal = survey(q, exact)
    return Solution(q, current, value), False


def variances_of(model: SparseModel, X: Tensor, rows: Rows, like: WeightMoments) -> list[Tensor]:
    """Return the variances of f, (1, N, P), by blocks; they do not depend on the mean of q(w)."""
    return [
        model.marginals(basis, like, like.products(basis.phi)).var
        for basis, _ in model.bases(X, rows)
    ]


def survey(
    model: SparseModel,
    X: Tensor,
    rows: Rows,
    q: WeightMoments,
    exact: bool,
    variances: list[Tensor] | None = None,
) -> tuple[Tensor, Sites]:
    """Return −Σ loss − β KL of all rows at q, and the sites there; use variances of f if given."""
    data_term, total = torch.zeros_like(q.kl), None
    for i, (basis, block) in enumerate(model.bases(X, rows)):
        if variances is None:
            marginals = model.marginals(basis, q, q.products(basis.phi))
        else:
            mean = (basis.phi @ q.mean + model.offset(basis))[None]
            marginals = Marginals(mean, variances[i])
        term = weighted_score(model, basis, block, marginals, basis.residual())
        sites = sites_of(model, basis, term, marginals, exact)
        data_term, total = data_term + term.value.sum(), sites if total is None else total + sites
        del basis, block, term, marginals, sites
    data_term, *sums = rows.total(data_term, *cast(Sites, total))
    value = data_term - model.beta * q.kl
    return value.nan_to_num(nan=-torch.inf, neginf=-torch.inf), Sites(*sums)


# ---- the bound if q(u) may depend on the rest of f -----------------------------------------------


PAIRED_ROWS = 2048  # rows in a block; two blocks' covariance is in memory at a time


@torch.no_grad()
def dependent_bound(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return the bound on the evidence if q(u) may depend on f⊥, () nats, summed over outputs.

    Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS
    2020, appendix A: with q(u) = p(u | f⊥, y) and q(f⊥) = p(f⊥),

        log N(y | 0, Q + σ²I) − ½ tr[(Q + σ²I)⁻¹(K − Q)],   Q = PPᵀ                             (14)

    which is Titsias' bound (B3) and, with κ = 1/σ² and G = PᵀκP,

        ½ tr[(I + G)⁻¹ PᵀκRκP],   R = K − Q                                                     (15)

    for all features P, as if they were one block. R is a matrix over all pairs of rows. It takes
    O(N²M) time, and is computed by blocks, so no matrix of N² numbers is kept. If y_std is given, κ
    differs between rows. A row of weight w counts as w rows with the same f⊥. A shift of the mean
    makes q(f⊥) = N(shift, R), whose divergence from p(f⊥) is the penalty.

    Raises
    ------
    ValueError
        If the likelihood is not Gaussian, or the model has several layers.
    """
    if not isinstance(model.likelihood, Gaussian) or model.has_draws:
        raise ValueError(
            "The bound with dependent u and f needs likelihood='gaussian' and one layer, "
            f"got {model.likelihood!r}{' and several layers' * model.has_draws}."
        )
    model = copy.copy(model)
    model.loss, model.beta = ExpectedLogLikelihood(), 1.0
    gram, cross, square, constant = weighted_sums(model, X, rows)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    L = cholesky(eye + gram, "I + PᵀP/σ²")  # (P, D, D)
    half = torch.linalg.solve_triangular(L, cross.mT[..., None], upper=False)
    log_det = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum()
    titsias = -0.5 * (square.sum() - half.square().sum() + log_det + constant)
    explained = torch.cholesky_solve(residual_gram(model, X, rows), L)
    return titsias + 0.5 * explained.diagonal(dim1=-2, dim2=-1).sum() - model.penalty()


def residual_gram(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return PᵀκRκP of each output, (P, D, D), over all pairs of rows."""
    features = model.features
    with features.frozen():
        phi, scaled = scaled_features(model, X, rows)
        total = torch.zeros_like(scaled.mT @ scaled)
        for a, b in combinations_with_replacement(list(blocks_of(len(X), PAIRED_ROWS)), 2):
            both = [a] if a == b else [a, b]
            of_both = (torch.cat([part[c] for c in both]) for part in (X, phi))
            R = cast(Tensor, features.residual_covariance(*of_both))
            n = len(X[a])
            part = scaled[:, a].mT @ R[:n, -len(X[b]) :] @ scaled[:, b]
            total += part if a == b else part + part.mT
    return total


def scaled_features(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return P (N, D), and κP of each output, (P, N, D), with κ times the weights of rows."""
    phis, scaled = [], []
    for basis, block in model.bases(X, rows):
        kappa, _ = model.loss.conjugate(likelihood_of(model, basis, block), basis.residual())
        kappa = block.weighted(kappa.expand_as(block.y))  # (n, P)
        phis.append(basis.phi)
        scaled.append(kappa.mT[..., None] * basis.phi)
    return torch.cat(phis), torch.cat(scaled, 1)
