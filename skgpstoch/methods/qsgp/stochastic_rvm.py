"""QSRVM as published: stochastic gradients of the evidence lower bound, also for s.

Evans & Nair, "Quadruply stochastic Gaussian processes", 2020, sec. I.3: QSGP with S = diag(s) and
one function k(·, x_i) for each row (the first of equal rows). In q(w) = N(μ, CCᵀ) the first c
columns of C are dense, the others diagonal (sec. 2.2). Minus twice the bound (2) is
n·log 2πσ² + yᵀy/σ² − m plus the sum of

    L_μ = (‖Φμ‖² − 2yᵀΦμ)/σ² + Σᵢ sᵢμᵢ²                                          (Theorem 1)
    L_C = (Σ_{r<c} ‖Φc_r‖² + Σ_{i≥c} c_ii²‖φ_i‖²)/σ² + Σᵢ sᵢ[CCᵀ]ᵢᵢ − 2Σᵢ log c_ii  (Theorem 2)
    L_s = −Σᵢ log sᵢ                                                             (Proposition 2)
    c_ii² = 1/(‖φ_i‖²/σ² + sᵢ),  i ≥ c                                           (Proposition 1)

Terms with σ² are estimated from rows K and functions I and J as for QSGP
(:mod:`skgpstoch.objectives.quadruply`). The control variate of Proposition 3, for μ and all dense
columns, uses the functions of the start (F.3), which here never change. The other terms are m/|I|
times their sums over I. AdaGrad follows the gradients with respect to μ, C, log s and log σ². An
s_i above a limit counts as infinite; functions with a finite s_i are the relevance vectors.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.rows import Rows
from ...maths.linalg import cholesky
from ...models.features.basis_functions import KernelBasis
from ...models.posteriors.chevron import ChevronModel, ChevronPosterior, block_kl
from ...objectives.quadruply import StochasticObjective

INFINITE = 100.0  # s_i over that at the start, from where it counts as infinite
WEIGHT_RATE = 0.5  # of AdaGrad, of μ and C, relative to s^(−1/2) at the start
PRECISION_RATE = 1.0  # of log s
MOST_LOG = 25.0  # of log s


class StochasticRelevance(StochasticObjective):
    """Estimates of −ELBO per row, differentiable with respect to the weights' precisions too.

    Parameters
    ----------
    start : float
        The s of all functions before training.
    limit : float
        The s from which it counts as infinite.
    most_whole : int
        Largest number of relevance vectors whose weights' full covariance is kept.
    model, X, rows, **options
        Those of :class:`~skgpstoch.objectives.quadruply.StochasticObjective`.
    """

    def __init__(
        self,
        model: ChevronModel,
        X: Tensor,
        rows: Rows,
        *,
        start: float,
        limit: float,
        most_whole: int,
        **options: Any,
    ) -> None:
        model.s.fill_(start)
        model.start_from_prior_()
        super().__init__(model, X, rows, **options)
        self.limit, self.most_whole = limit, most_whole
        self.weight_rate = WEIGHT_RATE * start**-0.5
        self.log_s = nn.Parameter(model.s.detach().log())

    def param_groups(self) -> list[dict[str, Any]]:
        weights, *others = super().param_groups()
        of_precisions = {"params": [self.log_s], "rate": PRECISION_RATE}
        return [weights | {"rate": self.weight_rate}, *others, of_precisions]

    def step_end(self) -> None:
        if self.touched is not None:
            members = self.model.basis.members(self.touched[0])
            with torch.no_grad():
                self.log_s[members] = self.log_s[members].clamp(-MOST_LOG, MOST_LOG)
                self.model.s[members] = self.log_s[members].exp()
        super().step_end()

    def neg_log_prior(
        self,
        groups_i: Tensor,
        groups_j: Tensor,
        W_I: Tensor,
        W_J: Tensor,
        curvature: Tensor,
        data: Tensor,
    ) -> Tensor:
        """Return KL[q(w) ‖ p(w)] by Proposition 2, plus the diagonal columns' data terms: ().

        ½(m/|I|) Σ_{i∈I} {sᵢ(μᵢ² + [CCᵀ]ᵢᵢ) − 2 log c_ii − log sᵢ − 1 + c_ii²‖φ_i‖²/σ²}.
        """
        model, members = self.model, self.model.basis.members(groups_i)
        share, own = model.basis.n_groups / len(groups_i), members >= model.n_dense
        s = F.embedding(members, self.log_s, sparse=True).exp()
        std = model.std[members].to(W_I)
        kl = share * block_kl(W_I.permute(1, 0, 2), std, s, members)
        best = (curvature + s)[own].detach().rsqrt()  # Proposition 1
        model.std[members[own]] = best.to(model.std)
        return kl + 0.5 * share * (std.square() * data).sum()

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ChevronPosterior:
        """Return q(w) of the relevance vectors."""
        return ChevronPosterior(
            relevant_part(self.model, self.limit, self.most_whole), self.rows.n_effective
        )


def relevant_part(model: ChevronModel, limit: float, most_whole: int) -> ChevronModel:
    """Return q(w) of the functions with a finite s (below `limit`), of at least one.

    The covariance of few functions is factored anew. That of many stays a chevron, which keeps the
    functions of its dense columns whether they are relevant or not.
    """
    keep = (model.s < limit).any(1)
    if not bool(keep.any()):
        keep[model.s.amin(1).argmin()] = True
    is_whole = int(keep.sum()) <= most_whole
    if not is_whole:
        keep[: model.n_dense] = True
    kernel, points = copy.deepcopy(model.basis.kernel), model.basis.points[keep].double()
    part = ChevronModel(
        KernelBasis(kernel, points, is_diagonal=True),
        copy.deepcopy(model.likelihood),
        model.shift.detach().double().clone(),
        len(points) if is_whole else model.n_dense,
        torch.float64,
        learns_precision=True,
    ).to(model.s.device)
    W, std = model.columns[keep].double().permute(1, 0, 2), model.std[keep].double()
    if is_whole:
        A = W[..., 1:]
        covariance = A @ A.mT + torch.diag_embed(std.square().mT)
        W = torch.cat([W[..., :1], cholesky(covariance, "covariance of weights")], 2)
        std = torch.zeros_like(std)
    part.s.copy_(model.s[keep])
    part.columns.copy_(W.permute(1, 0, 2))
    part.std.copy_(std)
    return part
