"""The marginal likelihood of a finite-dimensional kernel as a training objective.

SCGD, MINIMAX and BSGD share this: ensembles and their folds, the noise, the choice of the best
iterate, and the closing exact pass.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..maths.averages import RunningStatistics
from ..maths.linalg import eigh
from ..maths.linear_regression import (
    Statistics,
    batch_statistics,
    choose_noise,
    exact_statistics,
    held_out_score,
    most_likely,
    negative_log_evidence,
    predict_held_out,
    spectrum,
    sums_over_blocks,
)
from ..models.features.base import FeatureMap
from ..models.features.network import NetworkFeatures
from ..models.posteriors.conjugate import ConjugatePosterior, ConjugateWeights
from .base import Objective, evaluating

RIDGE_JITTER = 1e-10  # share of G's mean diagonal that is added to λ
STATISTICS_WINDOW = 20  # rows averaged by the running statistics, in units of D
EVALUATION_ROWS = 100  # training rows to predict held-out rows from, in units of D
MIN_EVALUATION_ROWS = 10_000
NETWORK_SCALES = (1.0, 0.3, 0.1, 0.03, 0.0)
MAX_MATCHED_ROWS = 1_000  # what more rows would cost is much, what they would gain is little
MATCHED = 0.15  # of log h; to mend a smaller excess, λ would cost the mean more than it gains
MATCHED_DECADES, MATCHED_STEPS = 6, 120  # of candidates for λ

AsMean = Callable[[Tensor], Tensor]


class FiniteObjective(Objective):
    """Negative log marginal likelihood per row (A1) of y = φ(x)ᵀw + ε, for K members of φ.

    Member k is trained on the rows outside fold k, and scored on the rows of fold k. A row of
    weight w counts as w rows: its features and targets are multiplied by √w.

    Parameters
    ----------
    features : FeatureMap
        The map φ, with K members of D features.
    rows : Rows
        Targets, weights and folds of all rows.
    X : Tensor of shape (N, d) or None, default=None
        Inputs of all rows, for methods that draw minibatches of their own.
    noise : {"learned", "profiled", "validation", "fixed"}
        How σ² is set, given the features. With "profiled" and "validation" the ridge λ is set
        likewise; otherwise λ = σ².
    noise_variance : float
        Initial σ².
    noise_bounds : tuple of float
        Interval in which σ² is kept.
    weight_decay : float
        Decoupled weight decay of the network's parameters.
    averaging : float, "auto" or "theory", default="auto"
        Averaging of the running statistics, see :class:`RunningStatistics`.
    window_rows : float, default=0
        Least number of rows that these average over, if it is more than 20 D. They never average
        over more rows than there are.
    """

    sums_rows: bool = True
    """Whether steps need only sums over the rows of a minibatch, which may be on several ranks."""

    w: nn.Parameter | None
    log_noise: Tensor
    log_ridge: Tensor
    closing_noise: Tensor
    closing_ridge: Tensor
    n_rows: Tensor
    folds: Tensor
    failed: Tensor
    share: Tensor

    def __init__(
        self,
        features: FeatureMap,
        rows: Rows,
        *,
        X: Tensor | None = None,
        noise: str,
        noise_variance: float,
        noise_bounds: tuple[float, float],
        weight_decay: float,
        averaging: float | str = "auto",
        window_rows: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.noise = noise
        self.noise_bounds = noise_bounds
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        self.weight_decay = weight_decay
        self.dtype = rows.y.dtype
        K, N, P, device = features.n_members, rows.n_all, rows.y.shape[1], rows.y.device
        start = math.log(noise_variance)
        log_noise = torch.full((P,), start, dtype=torch.float64, device=device)
        self.log_noise = nn.Parameter(log_noise, requires_grad=noise == "learned")
        for name in ("log_ridge", "closing_noise", "closing_ridge"):
            self.register_buffer(name, log_noise.clone())
        self.register_buffer("folds", torch.arange(K, device=device)[:, None])
        n_rows = self.trained(rows).double().sum(1) + rows.beyond
        self.register_buffer("n_rows", n_rows)  # (K,)
        n_untrained = rows.n_held_out if K == 1 else 0  # if K > 1, other members see each fold
        self.mean_weight = rows.after(n_untrained).mean_weight
        share = self.n_rows / N if K > 1 else torch.full_like(self.n_rows, self.mean_weight)
        self.register_buffer("share", share)  # mean weight of a minibatch row to a member, (K,)
        self.register_parameter("w", None)  # (K, D, P), of methods that learn it
        self.register_buffer("failed", torch.zeros((), dtype=torch.bool, device=device))
        window = min(max(STATISTICS_WINDOW * features.n_features, window_rows), N)
        self.running = RunningStatistics(K, features.n_features, P, averaging, window)

    @property
    def noise_variance(self) -> Tensor:
        """σ², (P,)."""
        return self.log_noise.detach().exp()

    @property
    def ridge(self) -> Tensor:
        """λ, (P,); σ² itself if that is learned by gradients, as in the paper, or fixed."""
        return self.noise_variance if self.noise in ("learned", "fixed") else self.log_ridge.exp()

    def trained(self, rows: Rows) -> Tensor:
        """Return the weight that each row has in the training of each member, (K, N)."""
        seen = rows.y.new_ones(len(self.folds), len(rows.y))
        if rows.fold is not None:
            seen = (rows.fold != self.folds).to(seen)
        return seen if rows.weight is None else seen * rows.weight

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        Z = self.features.members(X)
        Y = rows.y.expand(len(Z), -1, -1)
        b, unseen = self.share * rows.n_all, self.n_rows.new_zeros(len(Z), 1)
        if len(Z) > 1 or rows.weight is not None:
            weight = self.trained(rows)
            root = weight.sqrt()[..., None]
            Z, Y = Z * root, Y * root
            (counted,) = rows.total(weight.double().sum(1, keepdim=True))
            unseen = rows.n_all - counted
        with torch.no_grad():
            seen = Z if not self.predicts_otherwise else self.as_predicted(X, rows)
            self.running.update(seen, Y, b, rows.n_all, self.mean_weight, rows.group)
        return self.loss(Z, Y, b[:, None], rows.as_mean, unseen)

    def as_predicted(self, X: Tensor, rows: Rows) -> Tensor:
        """Return the features of rows as in predictions, with layers in evaluation mode."""
        with evaluating(self.features):
            Z = self.features.members(X)
        return Z if rows.weight is None else Z * self.trained(rows).sqrt()[..., None]

    def attach(self, X: Tensor, rows: Rows) -> None:
        """Continue with the next rows of a stream."""
        self.n_rows += rows.n_effective
        self.mean_weight = rows.mean_weight
        self.share.fill_(rows.mean_weight)

    def stream_rate(self, batch_size: int) -> float:
        return self.running.rate(batch_size, self.mean_weight)

    def loss(self, Z: Tensor, Y: Tensor, b: Tensor, as_mean: AsMean, unseen: Tensor) -> Tensor:
        """Return the loss per row of features Z (K, ·, D) and targets Y (K, ·, P).

        Rows that a member does not see are zero in Z and Y; `unseen` (K, 1) is the number of rows
        minus their total weight to the member. To be unbiased, treat sums over rows as sums over b
        (K, 1) rows, the mean number that a member sees. `as_mean` is the method
        :meth:`Rows.as_mean` of the minibatch. The gradient by the features is that of the sum over
        members.
        """
        raise NotImplementedError

    def factor(self, F: Tensor) -> Tensor:
        """Return Cholesky factors of positive definite F (..., D, D).

        Only record failures; the loop checks them after the epoch. A check after each step would
        have to wait for the GPU.
        """
        L, info = torch.linalg.cholesky_ex(F)
        self.failed |= info.any()
        return L

    def failures(self) -> list[Tensor]:
        return [self.failed]

    def step_end(self) -> None:
        if self.noise == "learned":
            self.log_noise.data.clamp_(*self.log_noise_bounds)
        self.features.clamp_()

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the held-out NLPD if there are validation rows, else the exact NLML; nats per row.

        With noise="validation" or "profiled", first set σ² and λ to their best values for the rows.
        """
        n_held_out, members = rows.n_held_out, self.features.members
        if n_held_out:  # these rows come first
            most = max(EVALUATION_ROWS * self.features.n_features, MIN_EVALUATION_ROWS)
            X, rows = X[: n_held_out + most], rows[: n_held_out + most]
        statistics = exact_statistics(members, X, rows.y, self.trained(rows))
        s = spectrum(statistics, self.n_rows)
        if self.noise == "profiled":
            self.set_noise(*most_likely(s, self.noise_bounds))
        if not n_held_out:
            nlml = negative_log_evidence(s, self.noise_variance, self.ridge)  # (K, P)
            return float((nlml.sum(1) / s.n_rows).mean())
        X, rows = X[:n_held_out], rows[:n_held_out]
        predict = functools.partial(
            predict_held_out, s, members, X, rows.y, held_out_weight(rows, self.folds)
        )
        if self.noise == "validation":
            best, cautious = choose_noise(s, predict, rows.n_effective, self.noise_bounds)
            self.closing_noise.copy_(cautious[0].log())
            self.closing_ridge.copy_(cautious[1].log())
            self.set_noise(*best)  # train with the best values; with cautious ones λ would creep up
        return held_out_score(predict, self.noise_variance, self.ridge)

    @torch.no_grad()
    def calibrate(self, X: Tensor, rows: Rows) -> None:
        """Choose how much the network counts beside the linear features; possibly not at all.

        Early stopping alone cannot make an overfitted network as good as no network.
        """
        features = self.features
        if self.noise != "validation":
            return
        if isinstance(features, NetworkFeatures) and features.skip:
            scores = {}
            for scale in NETWORK_SCALES:
                features.scale.fill_(scale)
                scores[scale] = self.evaluate(X, rows)
            features.scale.fill_(min(scores, key=scores.__getitem__))
            self.evaluate(X, rows)
        if len(self.folds) > 1 and rows.n_all < min(features.width, MAX_MATCHED_ROWS):
            self.match_joined(X, rows)

    def match_joined(self, X: Tensor, rows: Rows) -> None:
        """Raise λ until the joined features leave unseen rows about as uncertain as the members do.

        Fewer rows than features leave most weights free. Joined members leave more of them free
        than each member does, so that the λ and σ² of members would make variances too large.
        *Measured* on friedman1, 150 rows, MINIMAX: standard deviations were 4 times the errors, and
        are .9 times after this.
        """
        ridge, K = self.closing_ridge.exp(), len(self.folds)
        highest = ridge.max() * 10.0**MATCHED_DECADES
        share = torch.linspace(0.0, 1.0, MATCHED_STEPS, dtype=ridge.dtype, device=ridge.device)
        ridges = torch.lerp(ridge.min().log(), highest.log(), share).exp()  # (C,)
        with evaluating(self.features):
            members = self.unseen_variance(self.features.members, X, rows, ridge)  # (P,)
            Z = self.features(X).double()
        values, U = eigh(Z @ Z.mT)
        Z = U * values.clamp_min(0.0).sqrt()  # turned, it has only as many features as rows
        every = torch.arange(len(Z), device=Z.device)
        joined = self.unseen_variance(lambda i: Z[i].expand(K, -1, -1), every, rows, ridges)
        index = (joined[:, None] > members + MATCHED).sum(0).clamp_max(MATCHED_STEPS - 1)
        self.closing_ridge.copy_(torch.maximum(ridge, ridges[index]).log())

    def unseen_variance(
        self, members: Callable[[Tensor], Tensor], X: Tensor, rows: Rows, ridges: Tensor
    ) -> Tensor:
        """Return the mean log h, see :func:`predict_held_out`, for ridges (C,): (C,)."""
        s = spectrum(exact_statistics(members, X, rows.y, self.trained(rows)))
        X, rows = X[: rows.n_held_out], rows[: rows.n_held_out]
        unseen = held_out_weight(rows, self.folds)
        return predict_held_out(s, members, X, rows.y, unseen, ridges).log_variance[:, 0]

    @torch.no_grad()
    def start_from(self, fitted: ConjugateWeights, X: Tensor, rows: Rows) -> None:
        """Continue with the noise of a fit, and with what is best for its features, if learned."""
        self.set_noise(fitted.noise_variance.to(X.device), fitted.ridge.to(X.device))
        if self.w is None:
            return
        with evaluating(self.features):
            S = exact_statistics(self.features.members, X, rows.y, self.trained(rows))
        self.start_weights(S.scaled_to(self.n_rows))

    def start_weights(self, S: Statistics) -> None:
        """Set w = F⁻¹c."""
        L = self.factor(ridged(S.gram, self.ridge))
        cast(Tensor, self.w).copy_(torch.cholesky_solve(S.cross.mT[..., None], L)[..., 0].mT)

    @torch.no_grad()
    def set_noise(self, noise: Tensor, ridge: Tensor, damping: float = 1.0) -> None:
        """Move log σ² and log λ by a share `damping` of the way to these σ² and λ, (P,)."""
        self.log_noise.lerp_(noise.log(), damping).clamp_(*self.log_noise_bounds)
        self.log_ridge.lerp_(ridge.log(), damping)

    def solution(self, X: Tensor, rows: Rows) -> ConjugatePosterior:
        """Return the posterior from an exact pass over all rows, folds included, in float64."""
        features = copy.deepcopy(self.features).double().eval()

        def part(block: slice) -> Statistics:
            Z, some = features(X[block].double())[None], rows[block]
            weight = None if some.weight is None else some.weight[None]
            return batch_statistics(Z, some.y, weight)

        sums = rows.total(*sums_over_blocks(part, len(X)))
        return self._posterior(features, Statistics(*sums))

    def _posterior(self, features: FeatureMap, statistics: Statistics) -> ConjugatePosterior:
        s = spectrum(statistics)
        noise, ridge = self.noise_variance, self.ridge
        if self.noise == "profiled":
            noise, ridge = most_likely(s, self.noise_bounds)
        if self.noise == "validation":
            noise, ridge = self.closing_noise.exp(), self.closing_ridge.exp()
        return ConjugatePosterior(features, ConjugateWeights(s, noise, ridge))

    def running_solution(self) -> ConjugatePosterior:
        """Return the posterior that the running statistics imply, for streams."""
        features = copy.deepcopy(self.features).double().eval()
        n_rows = self.n_rows.clamp_max(1.0 / self.running.inverse_rows)
        return self._posterior(features, self.running.total(n_rows))


def held_out_weight(rows: Rows, folds: Tensor) -> Tensor:
    """Return the weight that each row has in the validation of each member, (K, N)."""
    unseen = (cast(Tensor, rows.fold) == folds).to(rows.y)
    return unseen if rows.weight is None else unseen * rows.weight


def ridged(gram: Tensor, ridge: Tensor) -> Tensor:
    """Return G + λI with a little jitter, (K, P, D, D), for G (K, D, D) and λ (K, P) or (P,)."""
    jitter = RIDGE_JITTER * gram.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)  # (K, 1)
    P = ridge.shape[-1]
    F = gram[:, None].clone() if P == 1 else gram[:, None].repeat(1, P, 1, 1)
    F.diagonal(dim1=-2, dim2=-1).add_((jitter + ridge)[..., None])
    return F
