"""Finite features with a variational posterior, trained for a loss: an ensemble, side by side.

The members k = 1 … K have features of their own, q_k(w) = N(m_k, S_k) and, for noise that depends
on the inputs, a_k. Each minimises (C1) or (C2) over the rows that are not of its own fold,

    Σᵢ loss(yᵢ, N(φ_kᵢᵀm_k, φ_kᵢᵀS_kφ_kᵢ)) + β KL[N(m_k, S_k) ‖ N(0, I)],

by Adam, features included. Predictions are the mixture of all members, whose variances are scaled
by rows that no member has seen; then these rejoin the others for the m_k that are best for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..maths.gaussian import Marginals
from ..posteriors.blocks import VariationalWeights, WeightMoments, moments_of
from ..posteriors.mixture import MixturePosterior, drawn_together
from ..posteriors.sparse import RowScale, Solution, SparseModel, SparsePosterior
from .base import Objective, groups_of
from .best_q import best, evidence_bound
from .data_term import traced
from .variational import CLOSING, NETWORK_RATE

START_ROOT = 0.03  # of S at the start, with features of order 1
MOST_FULL = 512  # features up to which S has correlations
MANY_ROWS = 100_000  # with which S is diagonal, and m stays what training has made of it
LOG_SCALES = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0)  # of deviations, tried on rows not seen
TAILS = (-4.0, 7.0)  # of log(ν − 2)
CHANGE = np.array([0.15, 0.3, 0.5, 0.3])
"""Prior deviations of what is chosen by rows not seen, of which there may be few."""
MOST_VARIED = 2.0  # times what the noise varies in training


class MembersObjective(Objective):
    """Σ loss + β KL of every member, per row, each blind to the rows of its own fold.

    Parameters
    ----------
    model : SparseModel
        Features of K members, likelihood, mean and loss, which they share.
    rows : Rows
        All rows: those of fold −2, which no member sees, come first, then the folds.
    input_noise : bool, default=False
        Whether the scale of the noise is a function of the features, too.
    weight_decay : float, default=0.0
        Decoupled decay of the network's parameters.
    noise_bounds : tuple of float, default=(1e-8, 1e2)
        The interval that σ² of a Gaussian likelihood is kept in.
    """

    folds: Tensor
    log_scale: Tensor
    spread: Tensor
    scale: RowScale | None

    def __init__(
        self,
        model: SparseModel,
        rows: Rows,
        *,
        input_noise: bool = False,
        weight_decay: float = 0.0,
        noise_bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        super().__init__()
        self.model = model.eval()
        features = model.features
        K, D, P = features.n_members, features.n_features, len(model.mean.value)
        like = model.mean.value.detach()
        self.means = nn.Parameter(like.new_zeros(K, D, P))
        self.is_full = D <= MOST_FULL and len(rows) < MANY_ROWS
        root = like.new_full((D,), START_ROOT)
        root = root.diag() if self.is_full else root
        self.roots = nn.Parameter(root.repeat(K, P, *[1] * root.ndim), model.covariance != "prior")
        self.scale = RowScale(like.new_zeros(K, D, rows.y.shape[1])) if input_noise else None
        self.weight_decay = weight_decay
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        device = rows.y.device
        self.register_buffer("folds", torch.arange(K, device=device)[:, None])
        self.register_buffer("log_scale", torch.zeros((), dtype=torch.float64, device=device))
        self.register_buffer("spread", torch.ones((), dtype=torch.float64, device=device))
        self.n_rows = self.seen(rows).double().sum(1)  # (K,)
        self.row_share = self.n_rows / max(len(rows) - rows.n_unseen, 1)

    def seen(self, rows: Rows) -> Tensor:
        """How often each member is trained on a row: (K, N)."""
        weight = rows.y.new_ones(len(self.folds), len(rows))
        if rows.fold is not None:
            weight = ((rows.fold != self.folds) & (rows.fold > -2)).to(weight)
        return weight if rows.weight is None else weight * rows.weight

    def param_groups(self) -> list[dict[str, Any]]:
        network = self.model.features.network_parameters()
        decay = {"weight_decay": self.weight_decay, "rate": NETWORK_RATE}
        return groups_of(self, network, decay, {"rate": NETWORK_RATE})

    # ---- q(w) and q(f) of every member ---------------------------------------------------------

    def present_roots(self) -> Tensor:
        """R_k, triangular (K, P, D, D) or diagonal (K, P, D)."""
        return self.roots.tril() if self.is_full else self.roots

    def marginals(self, phi: Tensor, roots: Tensor) -> Marginals:
        """q(f) of features (K, N, D): (K, N, P) each."""
        mean = phi @ self.means + self.model.mean.value.to(phi)
        half = phi[:, None] @ roots if self.is_full else phi[:, None] * roots[:, :, None]
        if self.model.covariance == "prior":
            half = phi[:, None]
        var = half.square().sum(-1).mT  # (K, N, P)
        return Marginals(mean, var.expand_as(mean))

    def kl(self, roots: Tensor) -> Tensor:
        """KL[q_k(w) ‖ N(0, I)] of every member, (K,), and what the noise of rows costs."""
        kl = 0.5 * self.means.square().sum((1, 2))
        if self.model.covariance != "prior":
            diagonal = roots.diagonal(dim1=-2, dim2=-1) if self.is_full else roots
            log_det = 2.0 * diagonal.abs().log().sum((1, 2))
            kl = kl + 0.5 * (roots.square().flatten(1).sum(1) - diagonal[0].numel() - log_det)
        if self.scale is not None:
            kl = kl + 0.5 * self.scale.weights.square().sum((1, 2))
        return kl

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        phi, roots, weight = self.model.features.members(X), self.present_roots(), self.seen(rows)
        K, beta = len(phi), self.model.beta
        all_rows = rows.repeated(K)  # members are rows of their own
        all_rows = Rows(all_rows.y, weight.flatten(), all_rows.exposure, all_rows.noise)
        q = self.marginals(phi, roots)
        q = Marginals(*(part.flatten(0, 1)[None] for part in q))
        likelihood = self.model.likelihood.of(all_rows)
        if self.scale is not None:
            ratio = self.scale(phi).flatten(0, 1)
            likelihood = cast(AdditiveNoise, likelihood).scaled(ratio)
        seen = Marginals(q.mean.detach(), q.var.detach())
        none = q.mean.new_zeros(q.mean.shape[1])
        term = self.model.loss.data_term(all_rows.y, likelihood, seen, none, generator)
        weight = weight.flatten() / self.row_share.to(weight).repeat_interleave(len(X))
        term = term.weighted(Rows(all_rows.y, weight))
        total = traced(term, q, none)
        return beta * (self.kl(roots) / self.n_rows.to(phi)).sum() - total / len(X)

    def step_end(self) -> None:
        self.model.features.clamp_()
        likelihood, (low, high) = self.model.likelihood, self.log_noise_bounds
        if isinstance(likelihood, Gaussian):
            likelihood.log_noise.data.clamp_(low, high)
        elif isinstance(likelihood, AdditiveNoise):
            scale = cast(nn.Parameter, likelihood.log_scale)
            if scale.requires_grad:
                scale.data.clamp_(0.5 * low, 0.5 * high)

    # ---- rows that are held out ----------------------------------------------------------------

    @torch.no_grad()
    def predictions(self, X: Tensor, rows: Rows) -> tuple[Marginals, Any]:
        """q(f) of every member (K, N, P), and p(y | f)."""
        phi = self.model.features.members(X)
        likelihood = self.model.likelihood.of(rows)
        if self.scale is not None:
            likelihood = cast(AdditiveNoise, likelihood).scaled(self.scale(phi))
        return self.marginals(phi, self.present_roots()), likelihood

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Loss of predictions for the rows of each member's fold; per row, the mean of members."""
        n, total, count = rows.n_unseen + rows.n_held_out, 0.0, 0.0
        held_out = rows[:n]
        q, likelihood = self.predictions(X[:n], held_out)
        for k in range(len(self.folds)):
            mine = cast(Tensor, held_out.fold) == k
            block, part = held_out[mine], Marginals(*(a[k : k + 1, mine] for a in q))
            of_member = at_member(likelihood, k).at_rows(mine.nonzero()[:, 0])
            losses = self.model.loss.of_predictions(block.y, of_member, part)
            total += float(block.weighted(losses).sum())
            count += block.n_effective
        return total / count

    @torch.no_grad()
    def refine(self, X: Tensor, rows: Rows) -> None:
        """Calibrate predictions by rows that no member has seen, or the only one has not.

        Chosen are the scale of variances; how far the members' means are apart, as their mean has
        a smaller error than each; tails, where these are learned, as errors of rows that were
        trained on have lighter ones; and how much the noise varies, which is overfitted, too.
        """
        n = rows.n_unseen or (rows.n_held_out if len(self.folds) == 1 else 0)
        if not n or not self.is_calibrated:
            return
        held_out, likelihood = rows[:n].to(torch.float64), self.model.likelihood
        q, at_rows = self.predictions(X[:n], rows[:n])
        tails = getattr(likelihood, "log_df_minus_2", None)
        learned = any(p.requires_grad for p in likelihood.parameters())
        has_tails = tails is not None and tails.requires_grad
        free = np.array([True, len(self.folds) > 1, has_tails, self.scale is not None])
        start = np.array([0.0, 1.0, 0.0, 1.0])
        latent = None
        if self.scale is not None:
            latent = self.model.features.members(X[:n]) @ self.scale.weights

        def full(choice: np.ndarray) -> np.ndarray:
            chosen = start.copy()
            chosen[free] = choice
            return chosen

        def loss(choice: np.ndarray) -> float:
            log_scale, spread, heavier, varied = full(choice)
            if not (0.0 <= spread <= 1.0 and 0.0 <= varied <= MOST_VARIED):
                return math.inf
            scaled = stretched(at_rows, held_out.y[0], log_scale if learned else 0.0, heavier)
            if latent is not None:
                scaled = scaled.scaled(RowScale.of(varied * latent))
            mean = drawn_together(q.mean.double(), spread)
            wide = Marginals(mean, math.exp(2.0 * log_scale) * q.var.double())
            losses = -scaled.log_predictive(held_out.y, wide)
            prior = 0.5 * np.square((full(choice) - start) / CHANGE).sum()
            return float(held_out.weighted(losses).sum()) + float(prior)

        log_scale, spread, heavier, varied = full(least(loss, start[free]))
        self.log_scale.fill_(log_scale)
        self.spread.fill_(spread)
        if self.scale is not None:
            self.scale.weights.mul_(varied)
        if has_tails:
            cast(nn.Parameter, tails).data.add_(heavier).clamp_(*TAILS)

    @property
    def is_calibrated(self) -> bool:
        """Whether variances are to be scaled: those of the bound, with β = 1, are a posterior's."""
        return not self.model.is_bound and self.model.covariance == "gradient"

    # ---- the closing pass ----------------------------------------------------------------------

    def solution(self, X: Tensor, rows: Rows) -> MixturePosterior:
        """The best m_k for all rows, in float64; of very many rows, as training leaves them."""
        members = [self.closed(k, X, rows) for k in range(len(self.folds))]
        return MixturePosterior(members, float(self.spread))

    @torch.no_grad()
    def closed(self, k: int, X: Tensor, rows: Rows) -> SparsePosterior:
        """The posterior of one member."""
        model, q = self.member(k), self.q(k)
        if len(rows) >= MANY_ROWS and model.covariance == "gradient":
            unknown = torch.full_like(q.kl, torch.nan)
            found = Solution(q, model.zero_sites()._replace(cross=q.mean), unknown)
            return model.posterior(found, unknown, rows.n_effective)
        start = None
        if model.covariance != "sites":
            start = model.zero_sites()._replace(cross=q.mean)
        kept = q if model.covariance == "gradient" else None
        found = best(model, X, rows, start, kept, **CLOSING)
        bound = found.value if model.is_bound else evidence_bound(model, X, rows, found.q)
        return model.posterior(found, bound, rows.n_effective)

    def member(self, k: int) -> SparseModel:
        """The model of one member, for predictions: calibrated, if it has been."""
        shared = self.model.for_predictions()
        likelihood = shared.likelihood
        if any(p.requires_grad for p in likelihood.parameters()):
            likelihood = stretched(likelihood, shared.mean.value, float(self.log_scale))
        scale = None
        if self.scale is not None:
            scale = RowScale(self.scale.weights[k].detach().double())
        return SparseModel(
            shared.features.member(k),
            likelihood,
            shared.mean,
            None,
            shared.loss,
            shared.beta,
            scale,
        ).eval()

    def q(self, k: int) -> WeightMoments:
        """The present q_k(w), in float64: calibrated, if it has been."""
        root = self.log_scale.exp() * self.present_roots()[k].detach().double()
        root = root if self.is_full else torch.diag_embed(root)
        mean = self.means[k].detach().double()
        fixed = self.model.covariance == "prior"
        return moments_of(VariationalWeights(mean, [None if fixed else root], (len(mean),)))


def least(function: Callable[[np.ndarray], float], start: np.ndarray) -> np.ndarray:
    """Where a function of the scale, and of what else there is to choose, is least."""
    starts = [np.array([scale, *start[1:]]) for scale in LOG_SCALES]
    start = min(starts, key=function)
    simplex = np.vstack([start, start - 0.3 * np.eye(len(start))])
    options = {"xatol": 1e-3, "fatol": 1e-3, "maxiter": 250, "initial_simplex": simplex}
    return np.asarray(minimize(function, start, method="Nelder-Mead", options=options).x)


def stretched(likelihood: Any, like: Tensor, log_scale: float, tails: float = 0.0) -> Any:
    """Additive noise whose scale, and log(ν − 2), are others; a copy. Others as they are."""
    if not isinstance(likelihood, AdditiveNoise):
        return likelihood
    other = likelihood.in_units(torch.full_like(like, math.exp(log_scale)))
    if tails:
        cast(nn.Parameter, other.log_df_minus_2).data.add_(tails).clamp_(*TAILS)
    return other


def at_member(likelihood: Any, k: int) -> Any:
    """That of one member's rows."""
    ratio = getattr(likelihood, "ratio", None)
    return likelihood if ratio is None else likelihood.scaled(ratio[k])
