"""Relevance vector machines: block-wise steps for the weights, and for their precisions.

Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001; Evans & Nair,
"Quadruply stochastic Gaussian processes", 2020, sec. I.3. Here f = Φw with a function φ_i = k(·,
x_i) for each training row, w_i ~ N(0, 1/s_i), and every s_i is learned. With H = ΦᵀΛΦ + diag(s) and
γ_i = 1 − s_i[H⁻¹]_ii, the share of w_i that the data determine, log evidence − c Σγ_i is stationary
at

    s_i = (γ_i + 2c s_i[H⁻¹(H − diag(s))H⁻¹]_ii)/μ_i²,   σ² = ‖y − Φμ‖²/(n − Σγ_i).

For real targets c = 0: these are MacKay's updates. For classes a degree of freedom costs c = ½ nat.
The prior exp(−c Σγ_i) of s is that of Schmolck & Everson, "Smooth relevance vector machine", 2007.

Most s_i diverge to infinity. Their functions are removed; the others are the relevance vectors.
Functions are visited one block at a time, as in :mod:`skgpstoch.objectives.blockwise`, with the H
of the block. Once one block can hold all remaining functions, it does, and the method is Tipping's
algorithm. From then on, functions whose deletion raises the evidence (:func:`superfluous`) are
removed too. The posterior of up to 2,000 remaining functions is exact for a Gaussian likelihood.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..data.devices import all_hold
from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..maths.linalg import NotPositiveDefiniteError, cholesky
from ..models.features.basis_functions import KernelBasis
from ..models.posteriors.chevron import ChevronModel, ChevronPosterior, block_kl, scales
from .blockwise import Block, BlockwiseObjective, Sweep, unit_diagonal

PRUNED = 1e-4  # γ_i below which a function goes
FAR = 1e-3  # nats per row that a step gains
SETTLED = 1e-2  # of log s_i, by which none moves any more; twice that where there are classes
SUPERFLUOUS = 50  # functions, of which one may go at a time
RELEVANCE_BLOCK = 1024  # basis functions of a step, of "auto"
START_ROWS = 64  # that the first s_i are found from
MOST_START_VARIANCE = 4.0
"""Most prior variance of a latent f at the start. Of a function that only one row sees, any s_i has
the same evidence, so that it stays large if it starts so. *Measured* (log loss of 200 rows) from
k(x, x), then from 4, where degrees of freedom cost nothing: breast cancer .24, .28, then .21, .25;
hastie_10_2 .76, 2.02, 1.06, then .68, 1.68, .80; three draws of moons .34, .31, .24, then .32, .31,
.24. From 1 these are .16, .15; .67, 1.62, .69; .32, .30, .24, but of iris the steps do not settle
in 500 sweeps."""
DEGREE_COST = 0.5
"""Nats for each degree of freedom of a latent f. A function that overlaps no other then stays if
Q² > 2S (see :func:`superfluous`), which is Akaike's criterion for one weight; by the evidence
alone, which asks Q² > S, a third of functions of nothing but noise stay. *Measured*, log loss of
new rows, mean of 32 samples of 60 rows from 16 tables: .68 at 0, .52 at ½; the worst: hastie_10_2
1.93, 1.14; kin40k 1.24, .87; three classes without noise .16, .18. Of 300 rows, at ½ and at 1:
hastie_10_2 .63, .68; kin40k .59, .61. From 0 to ½, sweeps fall from 130 to 81."""
NEWTON_STEPS = 50  # of the closing posterior at most
MOST_ROUNDS = 10  # of its blocks, where it has several
CLOSED = 1e-7  # nats per row gained by a step after which there is none
MOST_PRECISION = 1e12
MOST_RELEVANT = 2_000  # relevance vectors whose covariance is kept as a whole


class BlockWeights(NamedTuple):
    """What a block of functions has: q(w), and the precisions of its prior."""

    W: Tensor  # (|I|, P, 1)
    std: Tensor  # (|I|, P)
    s: Tensor  # (|I|, P)

    def only(self, keep: Tensor) -> BlockWeights:
        """Give functions that are not kept the prior's weights, at the largest precision."""
        s = torch.where(keep, self.s, MOST_PRECISION)
        W, std = torch.where(keep[..., None], self.W, 0.0), torch.where(keep, self.std, s.rsqrt())
        return BlockWeights(W, std, s)


class RelevanceObjective(BlockwiseObjective):
    """Block-wise steps for q(w), and MacKay's steps for the precisions of the block."""

    active: Tensor  # (m, P): functions that are not pruned
    determined: Tensor  # γ at the last visit, (m, P)

    def __init__(self, model: ChevronModel, X: Tensor, rows: Rows, **options: Any) -> None:
        super().__init__(model, X, rows, **options)
        most = math.inf if isinstance(model.likelihood, Gaussian) else MOST_START_VARIANCE
        self.cost = 0.0 if isinstance(model.likelihood, Gaussian) else DEGREE_COST
        model.s.fill_(start_precision(model, X, most))
        model.start_from_prior_()
        self.register_buffer("active", torch.ones_like(model.std, dtype=torch.bool))
        self.register_buffer("determined", torch.zeros_like(model.std))
        self.last = model.std.new_zeros(())
        self.square = model.std.new_zeros(())  # ‖y − Φμ‖², (P,)
        self.largest = 0  # block
        self.is_whole = False  # whether one has all functions that are left
        self.is_settled = False

    def has_converged(self) -> bool:
        return self.is_whole and self.is_settled

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        self.largest = max(self.largest, len(X))
        alive = self.active.any(1).nonzero()[:, 0]
        self.is_whole = len(alive) <= self.largest
        left = alive if self.is_whole else X[self.active[X].any(1)]
        done = self.is_whole and self.sweep is not None  # by the first step of the sweep
        self.is_settled = self.is_settled or not len(alive)
        if len(left) and not done:
            super().forward(left, rows, generator)
        return self.last

    def move(self, sweep: Sweep, after: Sweep, block: Block, rho: float, std: Tensor) -> None:
        before = self.sites(sweep)[0]
        super().move(sweep, after, block, rho, std)
        self.last, self.is_settled = self.sites(sweep)[0], False
        if rho < self.rate(self.n_sweeps) and float(before - self.last) > FAR:
            return  # the best weights are elsewhere
        # Of the best weights, not of what pruning leaves before the others have made up for it.
        mean = self.model.moments(sweep.h, sweep.v).mean[0]
        errors = (sweep.rows.y.double() - mean).square()
        self.square = sweep.share * sweep.rows.weighted(errors).sum(0)
        self.learn_precisions(sweep, block)

    def learn_precisions(self, sweep: Sweep, block: Block) -> None:
        """Move s to where it would be stationary given the weights; delete functions."""
        members, now, was = block.members, self.weights(block.members), self.active[block.members]
        mu, sigma = now.W[..., 0], covariance(block.H)
        var, shared = determined_variance(sigma, now.s)
        gamma = (1.0 - now.s * var).clamp(0.0, 1.0)
        keep, square = (gamma > PRUNED) & was, mu.square().clamp_min(1.0 / MOST_PRECISION)
        found = (gamma + 2.0 * self.cost * now.s * shared) / square
        found = found.clamp_max(MOST_PRECISION)
        if sweep.share == 1.0 and self.is_whole:  # else what is superfluous is not known
            gone = superfluous(now.s, mu, var, keep, self.cost * shared)
            keep, mu = keep & ~gone, means_without(mu, sigma, gone)
        self.become(sweep, block, BlockWeights(mu[..., None], now.std, found).only(keep))
        limit = SETTLED if isinstance(self.model.likelihood, Gaussian) else 2.0 * SETTLED
        stays = torch.where(keep, (found / now.s).log().abs(), 0.0).amax() < limit
        self.is_settled = all_hold([stays, (keep == was).all()])
        self.active[members] = keep
        self.determined[members] = torch.where(keep, gamma, 0.0).to(self.determined)

    def stay(self, sweep: Sweep, block: Block) -> None:
        """Set weights to 0 of outputs whose f pruning has left so far off that no step gains.

        Where there are none, the weights are the best ones, up to rounding.
        """
        start = value = self.sites(sweep)[0]
        for p in range(sweep.h.shape[0]):
            to = self.weights(block.members)
            to.W[:, p] = 0.0
            found = self.sites(self.changed(sweep, block, to))[0]
            if bool(found < value):
                self.become(sweep, block, to)
                value = found
        self.last, self.is_settled = value, False
        if value is start:
            self.learn_precisions(sweep, block)

    def weights(self, members: Tensor) -> BlockWeights:
        """Return what a block has, in float64."""
        model = self.model
        has = (model.columns[members], model.std[members], model.s[members])
        return BlockWeights(*(a.double() for a in has))

    def changed(self, sweep: Sweep, block: Block, to: BlockWeights) -> Sweep:
        """Return the sums that are kept, where a block has other weights."""
        now, members = self.weights(block.members), block.members
        change, of_squares = to.W - now.W, to.std.square() - now.std.square()
        h = sweep.h + (block.phi @ change.permute(1, 0, 2).to(block.phi)).double()
        v = sweep.v + (block.phi.square() @ of_squares.to(block.phi)).mT.double()
        kl = sweep.kl - block_kl(*now, members) + block_kl(*to, members)
        return replace(sweep, h=h, v=v.clamp_min(0.0), kl=kl)

    def become(self, sweep: Sweep, block: Block, to: BlockWeights) -> None:
        """Give a block other weights."""
        after, model, members = self.changed(sweep, block, to), self.model, block.members
        sweep.h, sweep.v, sweep.kl = after.h, after.v, after.kl
        model.columns[members], model.std[members] = to.W.to(model.columns), to.std.to(model.std)
        model.s[members] = to.s.to(model.s)

    @torch.no_grad()
    def set_noise(self, sweep: Sweep) -> None:
        """σ² = ‖y − Φμ‖²/(n − Σγ)."""
        free = (self.rows.n_effective - self.determined.double().sum(0)).clamp_min(1.0)
        noise = (self.square / free).clamp(*self.noise_bounds)
        cast(Gaussian, self.model.likelihood).log_noise.copy_(noise.log())

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ChevronPosterior:
        """Keep only the relevance vectors; return the posterior given their precisions."""
        model, keep = self.model, self.active.any(1)
        if not bool(keep.any()):
            keep[self.determined.sum(1).argmax()] = True
        R, whole = int(keep.sum()), int(keep.sum()) <= MOST_RELEVANT
        kernel, points = copy.deepcopy(model.basis.kernel), model.basis.points[keep].double()
        closing = ChevronModel(
            KernelBasis(kernel, points, is_diagonal=True),
            copy.deepcopy(model.likelihood),
            model.shift.detach().double().clone(),
            R if whole else 0,
            torch.float64,
            learns_precision=True,
        )
        closing.s.copy_(model.s[keep])
        # As wide as the prior, f would be of any sign, and a step of Newton's far too long.
        closing.start_from_(
            scales(model.columns, model.std, torch.arange(len(keep), device=keep.device))[keep]
        )
        closing.columns[..., 0] = model.columns[keep, :, 0].double()
        rest = BlockwiseObjective(
            closing,
            self.X.double(),
            self.rows.to(torch.float64),
            n_swept=len(self.X) if whole else self.n_swept,
            rate=lambda sweep: 1.0,
            learns_noise=False,
        )
        sweep = rest.begin(torch.Generator(X.device).manual_seed(0))
        blocks = torch.arange(R, device=X.device).split(max(R if whole else RELEVANCE_BLOCK, 1))
        values = [torch.inf]
        while len(values) <= (NEWTON_STEPS if whole else MOST_ROUNDS):
            values.append(float(torch.stack([rest.step(sweep, b, b) for b in blocks])[-1]))
            if values[-2] - values[-1] < CLOSED:
                break
        if not bool(closing.columns.isfinite().all()):
            raise NotPositiveDefiniteError(
                "The covariance of the weights of the relevance vectors is not finite, "
                "because values of the kernel are too large. Scale X (StandardScaler)."
            )
        return ChevronPosterior(closing, self.rows.n_effective)


@torch.no_grad()
def start_precision(model: ChevronModel, X: Tensor, most: float = math.inf) -> float:
    """Return the s of all functions for which the prior variance is about k(x, x), or `most`."""
    one = torch.ones(len(model.std), 1, dtype=X.dtype, device=X.device)
    prior, squares = model.basis.missing_variance(X[:START_ROWS], one)
    return float((squares / prior.clamp_max(most)).mean())


def covariance(H: Tensor) -> Tensor:
    """Return Σ = H⁻¹, (P, |I|, |I|)."""
    scaled, d = unit_diagonal(H)
    L = cholesky(scaled, "posterior precision of a block of weights")
    return d * torch.cholesky_inverse(L) * d.mT


def determined_variance(sigma: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return [Σ]_ii and [Σ − Σ diag(s) Σ]_ii, both (|I|, P)."""
    var = sigma.diagonal(dim1=1, dim2=2).mT
    return var, (var - (sigma.square() @ s.mT[..., None])[..., 0].mT).clamp_min(0.0)


def means_without(mu: Tensor, sigma: Tensor, gone: Tensor) -> Tensor:
    """Return the means of weights, given that those of some functions are 0: all (|I|, P)."""
    mu = mu.clone()
    for p in gone.any(0).nonzero()[:, 0].tolist():
        i = gone[:, p]
        inverse = torch.linalg.pinv(sigma[p][i][:, i], hermitian=True)
        mu[:, p] -= sigma[p][:, i] @ (inverse @ mu[i, p])
    return mu


def superfluous(s: Tensor, mu: Tensor, var: Tensor, among: Tensor, cost: Tensor) -> Tensor:
    """Tell which functions of each output to delete: those that gain most evidence, (|I|, P).

    Let the precision S = 1/Σ_ii − s and Q = μ_i/Σ_ii describe what the rest of the model says about
    a function. With the function, the evidence is greater by ½[log s − log(s + S) + Q²/(s + S)]
    (Faul & Tipping, "Analysis of sparse Bayesian learning", 2002), and so is cΣγ by ca/(s + S),
    with a = [Σ − Σ diag(s) Σ]_ii/Σ_ii², which is S for a function that overlaps no other. The
    difference is greatest at an infinite s if Q² − 2ca ≤ S. Only one function, or 2 %, are deleted
    at once, because of two similar functions only one should go.

    Parameters
    ----------
    s, mu, var : Tensor of shape (|I|, P)
        Precisions, and the posterior's means and variances.
    among : Tensor of shape (|I|, P)
        Which functions may go.
    cost : Tensor of shape (|I|, P)
        c[Σ − Σ diag(s) Σ]_ii.
    """
    S = (1.0 / var - s).clamp_min(0.0)
    Q2 = (mu / var).square() - 2.0 * cost / var.square()
    gain = torch.where(among & (Q2 <= S), (s + S).log() - s.log() - Q2 / (s + S), -torch.inf)
    most = max(1, int(among.sum(0).amax()) // SUPERFLUOUS)
    return (gain >= gain.topk(most, 0).values[-1]) & (gain > 0.0)
