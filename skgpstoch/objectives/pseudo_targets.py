"""Learn a kernel from the densities of pseudo-targets given those of their neighbours.

At a fixed point of expectation propagation and a fixed c, the gradient of the evidence is that of
the pseudo-targets' density, as if these were observations (Seeger, "Expectation propagation for
exponential families", 2005). Between epochs they follow the kernel
(:mod:`skgpstoch.models.posteriors.pseudo_targets`). "leave_one_out" is the predicted probability
of each row's y, given pseudo-targets of others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ..data.deadline import Deadline
from ..data.rows import Rows
from ..kernels import Kernel
from ..likelihoods.base import Likelihood
from ..maths.conditionals import Conditional
from ..maths.gaussian import Marginals
from ..models.calibration.held_out import Predicted
from ..models.calibration.tails import best_scale
from ..models.posteriors.mean_error import with_mean_error
from ..models.posteriors.places import Observed
from ..models.posteriors.pseudo_targets import (
    SETTLING_SWEEPS,
    PseudoTargetPosterior,
    PseudoTargets,
    prior_variance,
)
from .base import surrogate
from .closing import seconds_of
from .neighbours import MOST_CLOSING_SHARE, TIMED_ROWS, TINIEST, NeighbourObjective, Pair

SWEPT_ROWS = 20_000  # whose pseudo-targets follow the kernel after an epoch
SWEEP_EVERY = 0.3  # of the steps of a whole epoch
JUDGED_TARGETS, JUDGED_FOLDS = 1000, 10  # rows left out to judge how certain f is; folds


class PseudoTargetObjective(NeighbourObjective):
    """−log p of the pseudo-targets of a minibatch given those of neighbours, per row.

    Parameters
    ----------
    kernel, network, mean
        Those of :class:`~skgpstoch.models.posteriors.neighbours.NeighbourPosterior`.
    likelihood : Likelihood
        p(y | f).
    X, rows : Tensor of shape (N, d) and Rows
        The rows to train on.
    calibrates : bool
        Whether rows left out choose how certain f is.
    **sizes
        `n_neighbors`, `n_neighbors_predict`, `is_ordered`, `n_epoch` and `is_approximate` of
        :class:`~skgpstoch.objectives.neighbours.NeighbourObjective`.
    """

    target_mean: Tensor
    target_var: Tensor
    n_parts = 4
    n_folds = JUDGED_FOLDS  # of rows that are left out to judge how certain f is
    posterior_type: ClassVar[type[PseudoTargetPosterior]]

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: Likelihood,
        mean: Tensor,
        X: Tensor,
        rows: Rows,
        *,
        calibrates: bool,
        **sizes: Any,
    ) -> None:
        kept: dict[str, Any] = {"noise_bounds": (0.0, 0.0), "tails": None}
        super().__init__(kernel, network, cast(Any, likelihood), mean, **kept, **sizes)
        self.calibrates = calibrates
        targets = self.first_targets(X, rows)
        self.register_buffer("target_mean", targets.mean)
        self.register_buffer("target_var", targets.var)

    @property
    def level(self) -> Tensor:
        """What the mean c depends on, besides the variance of f."""
        return self.mean

    def predicted(self, rows: Rows, q: Marginals, likelihood: Any) -> Predicted:
        """Return what q(f) and a likelihood say of rows."""
        return Predicted.of(rows.y, q, likelihood.of(rows))

    @property
    def noise_variance(self) -> Tensor:
        return torch.zeros_like(self.mean)

    @property
    def targets(self) -> PseudoTargets:
        """Those of the rows to train on."""
        return PseudoTargets(self.target_mean, self.target_var)

    @torch.no_grad()
    def first_targets(self, X: Tensor, rows: Rows) -> PseudoTargets:
        """Return pseudo-targets of rows without neighbours."""
        var, rows = prior_variance(self.kernel, self.features(X)), rows.to(torch.float64)
        return self.posterior_type.first_targets(self.likelihood, rows, self.mean.detach(), var)

    def take_over(self, other: NeighbourObjective) -> None:
        super().take_over(other)
        for name, value in other.named_buffers(recurse=False):
            if name.startswith("target"):
                getattr(self, name).copy_(value)

    # ---- training ----------------------------------------------------------------------------

    def observed(self, X: Tensor, rows: Rows) -> Pair:
        return X, Observed(rows)

    def lag(self, G: Tensor) -> Tensor | None:
        return None  # pseudo-targets move

    def use(self, X: Tensor, seen: Observed) -> None:
        self.rows: Rows | None = seen.rows
        super().use(X, seen)

    @torch.no_grad()
    def find(self, n_rows: int | None = None) -> tuple[Tensor, Tensor]:
        X, (rows, _) = cast(Pair, self.data)
        targets = self.targets.rows(rows.weight)
        self.data = X, Observed(replace(targets, whole=rows.whole))
        return super().find(n_rows)

    def detach_rows(self) -> None:
        super().detach_rows()
        self.rows = None

    def loss_at(self, i: Tensor, N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        find = super().loss_at if self.is_ordered else self.loss_left_out
        return find(i, N, generator)

    def loss_left_out(self, i: Tensor, N: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return −log p(y_i | ỹ_N) of rows i, per row."""
        rows = cast(Rows, self.rows)
        n, rows = len(i) * rows.mean_weight, rows[i].to(torch.float64)
        sets, K = self.sets_at(i, N, generator)
        c = Conditional.of(K.detach(), sets.D, sets.y.detach())
        q = Marginals(c.mean.mT[None] + self.mean.detach(), c.var.clamp_min(TINIEST).mT[None])
        likelihood = self.likelihood.of(rows)
        value, by_mean, by_var = likelihood.predictive_gradients(rows.y, q)
        w = rows.weighted(torch.ones_like(value))
        by_mean, by_var = w * by_mean.mT, w * by_var.mT
        by_K, _ = c.slopes(by_mean, by_var)
        by_y = -by_mean[..., None] * c.e  # c = ỹ_i − r_i
        pairs = [(K, -by_K / n), (sets.y, -by_y / n)]
        return surrogate(-(w * value).sum() / n, *((x, dx) for x, dx in pairs if x.requires_grad))

    @torch.no_grad()
    def gain(self, i: Tensor) -> float:
        if not self.is_ordered:
            return 0.0
        posterior, (_, seen) = self.present(), cast(Pair, self.data)
        gain = posterior.gain(i, posterior.rows_alone.others(i, self.n_neighbors))
        return float(gain.sum()) / seen.mean_weight

    def present(self) -> PseudoTargetPosterior:
        """Return the posterior of the rows to train on."""
        return self.posterior(cast(Pair, self.data)[0], cast(Rows, self.rows))

    def step_end(self) -> None:
        self.kernel.clamp_()

    def epoch_end(self) -> None:
        """Let pseudo-targets follow the kernel, unless it has moved for a few steps only."""
        super().epoch_end()
        X, _ = cast(Pair, self.data)
        share_of_epoch = min(1.0, len(X) / self.n_epoch)
        if not int(self.n_done) % max(1, round(SWEEP_EVERY / share_of_epoch)):
            self.follow()

    def climb_end(self) -> None:
        super().epoch_end()
        self.follow()

    @torch.no_grad()
    def follow(self) -> None:
        """Let pseudo-targets follow the kernel."""
        n = len(cast(Pair, self.data)[0])
        posterior = self.present().settle_(self.spread(min(SWEPT_ROWS, n)), 1)
        targets = posterior.targets_of(posterior.row_numbers)
        self.target_mean.copy_(targets.mean)
        self.target_var.copy_(targets.var)
        self.mean.data.copy_(posterior.constant)

    @torch.no_grad()
    def evaluate(
        self, X: Tensor, rows: Rows, most: int | None = None, n_neighbors: int | None = None
    ) -> float:
        n = rows.n_held_out
        posterior = self.posterior(X[n:], rows[n:])
        judged = slice(n if most is None else min(n, most))
        posterior.n_neighbors = min(n_neighbors or posterior.n_neighbors, posterior.n_neighbors)
        q, rows = posterior.marginals(X[judged].double()), rows[judged].to(torch.float64)
        density = self.likelihood.of(rows).log_predictive(rows.y, q)
        return -float(rows.mean(density[:, None]))

    # ---- the posterior -----------------------------------------------------------------------

    @torch.no_grad()
    def posterior(self, X: Tensor, rows: Rows) -> PseudoTargetPosterior:
        """Return the posterior given these rows; pseudo-targets are known of the last ones."""
        X, rows, n = X.double(), rows.to(torch.float64), len(X) - len(self.target_mean)
        targets = self.targets
        if n:
            new = self.first_targets(X[:n], rows[:n])
            targets = PseudoTargets(*(torch.cat(pair) for pair in zip(new, targets, strict=True)))
        fitted = copy.deepcopy(self).double().eval()
        parts = fitted.kernel, fitted.network, fitted.likelihood, fitted.level
        search = self.n_neighbors_predict, self.n_neighbors, self.is_approximate
        return self.posterior_type(*parts, X, rows, targets, *search)

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> PseudoTargetPosterior:
        """Return the posterior given all rows, as certain as suits rows left out."""
        posterior = self.posterior(X, rows).settle_()
        if len(X) > 1:
            z = standard_left_out(posterior, self.judged(posterior.row_numbers, rows))
            if self.calibrates:
                posterior.stretch_(best_stretch_of(posterior, z))
            q = stretched(posterior, z, float(posterior.stretch))
            judged = posterior.rows_at(posterior.row_numbers[: z.mean.shape[1]])
            self.held_out = self.predicted(judged, q, posterior.likelihood).cpu()
        return with_mean_error(posterior) if self.mean.requires_grad else posterior

    def judged(self, numbers: Tensor, rows: Rows) -> Sequence[Tensor]:
        """Return the rows that are left out to judge how certain f is, some at a time."""
        size = math.ceil(len(numbers) / JUDGED_FOLDS)
        return numbers[:JUDGED_TARGETS].split(size)[: self.n_folds]

    @torch.no_grad()
    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        """Choose how many folds judge f; return the seconds of sweeps over all rows."""
        posterior = self.posterior(X, rows)
        i = posterior.row_numbers[:TIMED_ROWS]
        N = posterior.rows_alone.others(i, posterior.n_joint)
        per_row = seconds_of(lambda: posterior.matched_at(i, N), deadline.clock) / len(i)
        of_all = per_row * len(X) * SETTLING_SWEEPS
        affordable = MOST_CLOSING_SHARE * deadline.left() / of_all - 1.0
        self.n_folds = max(1, min(math.floor(affordable), n_folds(len(X))))
        return of_all * (1 + self.n_folds)


def n_folds(n_rows: int) -> int:
    """Return how many tenths of the rows the judged ones are."""
    return math.ceil(JUDGED_FOLDS * min(1.0, JUDGED_TARGETS / n_rows))


def best_stretch_of(posterior: PseudoTargetPosterior, z: Marginals) -> float:
    """Return the factor of f − c with which rows left out have the best log probability."""
    rows = posterior.rows_at(posterior.row_numbers[: z.mean.shape[1]])
    likelihood = posterior.likelihood.of(rows)

    def log_score(factor: float) -> float:
        log_p = likelihood.log_predictive(rows.y, stretched(posterior, z, factor))
        return float(rows.weighted(log_p).sum())

    return best_scale(log_score)


def stretched(posterior: PseudoTargetPosterior, z: Marginals, factor: float) -> Marginals:
    """Return f = c + factor·z, whose mean c may depend on the factor."""
    var = prior_variance(posterior.kernel, posterior.features) * (factor / posterior.stretch) ** 2
    c = posterior.mean_of(posterior.likelihood, posterior.level, var)
    return Marginals(c + factor * z.mean, factor**2 * z.var)


def standard_left_out(posterior: PseudoTargetPosterior, judged: Sequence[Tensor]) -> Marginals:
    """Predict f − c at rows without these, some at a time: (1, k, P).

    Cavities will not do, because pseudo-targets of neighbours know a row's y. *Measured* (protein,
    log loss of other rows .738): by cavities .848, without the rows .769.
    """
    found = []
    for i in judged:
        G = posterior.features[i]
        without = posterior.without(i)
        near = without.nearest.of(without.located(G), without.n_neighbors)
        found.append(without.given(G, near)[:2])
    mean, var = (torch.cat(part) for part in zip(*found, strict=True))
    return Marginals((mean - posterior.constant)[None], var[None])
