"""Judge and close an ensemble of networks with variational last layers.

The members (:mod:`skgpstoch.objectives.members`) have rows that they have not seen. At the end,
Newton steps find the best m_k for each member's training rows, and the held-out rows calibrate the
mixture of all members. Finally, Newton steps find the best m_k for all rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..data.deadline import Clock, Deadline
from ..data.rows import Rows
from ..likelihoods import Bernoulli, Categorical
from ..likelihoods.by_row import ScaledByRow
from ..likelihoods.counts import limits_of_f
from ..likelihoods.real import AdditiveNoise
from ..losses import LogLoss
from ..maths.gaussian import Marginals
from ..maths.linalg import add_diagonal, cholesky
from ..models.calibration.held_out import (
    LOG_SCALES,
    N_CONFIDENCES,
    NARROW_PRIOR,
    PRIOR,
    UNCHANGED,
    USUAL,
    Calibration,
    HeldOut,
    Predicted,
    most_suitable,
    scaled,
    stretched,
)
from ..models.features.network import NetworkFeatures
from ..models.mixture import MixturePosterior, Spread
from ..models.posteriors.blocks import VariationalWeights, WeightMoments, moments_of
from ..models.posteriors.sites import Sites, careful_inverse_factor
from ..models.sparse import RowScale, Solution, SparseModel, SparsePosterior, share_within
from .closing import (
    BLOCKS,
    DEAR,
    GRACE,
    LEAST_JUDGES,
    N_LOSSES,
    USUAL_STEPS,
    ClosingCost,
    extrapolated,
    seconds_of,
)
from .members import MANY_ROWS, Members
from .optimal_q import evidence_bound, optimal_q

MANY_LOGITS = 5000  # m stays as trained, if the classes of all rows have so many logits
CLOSING_TOL = 1e-3  # nats per row
MOST_FEW_JUDGES = 500  # rows that no member sees, up to which the folds say what is usual
LEAST_TELLING = 100  # rows of folds that say how large errors of very few other rows are
LEAST_OF_SHAPE = 50  # of these, for the mixture's own tails, noise, deviations and skewness
TINIEST_SQUARE = 1e-300  # of an error
DISPERSION_ROUNDS = 6  # most rounds in which the dispersion of large counts is found
LEAST_CHANGE = 0.3  # of the log scale of deviations or dispersion, for which m_k is found again


class EnsembleObjective(Members):
    """Σ loss + β KL of every member, per row; no member sees the rows of its own fold.

    Parameters
    ----------
    model, rows : SparseModel and Rows
        The members, and all rows: see :class:`Members`, which has the other parameters.
    calibrates : bool, default=True
        Whether to calibrate predictions at the end, on rows that no member has seen.
    """

    calibration: Calibration = UNCHANGED  # of predictions, once it has been chosen
    spread: Spread | None = None  # of the mixture, likewise
    held_out: Predicted | None = None  # predictions for held-out rows by members that have not seen
    deadline: Deadline | None = None  # of the closing pass
    skew: Tensor | None = None  # of the mixture's y, (P,), once it has been chosen
    limits: Tensor | None = None  # of f, as the posterior will keep them

    def __init__(
        self, model: SparseModel, rows: Rows, *, calibrates: bool = True, **options: Any
    ) -> None:
        super().__init__(model, rows, **options)
        self.calibrates = calibrates

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss per row of each member's predictions for its own fold.

        If the confidence of classifiers will be calibrated, use the best confidence for these rows.
        If a mixture for real targets will be calibrated, estimate the loss of that mixture instead.
        """
        if self.expects_mixture(rows):
            return self.mixture_loss(X, rows)
        rows = self.coarse(rows)
        chosen = LOG_SCALES if self.has_confidence and rows.n_unseen else (0.0,)
        some = share_of(self, X, rows, self.closing.scoring)
        losses, count = self.fold_losses(*some, chosen)
        unit = self.training_unit
        return float(losses.min()) / count + (0.0 if unit is None else float(unit.log().sum()))

    def expects_mixture(self, rows: Rows) -> bool:
        """Whether iterates are scored by the expected log density of the calibrated mixture."""
        is_density = isinstance(self.model.loss, LogLoss)
        is_real = isinstance(self.model.likelihood, AdditiveNoise)
        return is_density and is_real and len(self.folds) > 1 and self.n_judges(rows) > 0

    def mixture_loss(self, X: Tensor, rows: Rows) -> float:
        """Estimate −log p per row of the mixture with scaled deviations, during training.

        Use the mean loss of single members on the many rows of their folds, minus the gain of the
        mixture over them on the few rows that no member sees. Single members without scaling are
        best much earlier in training. Later they become overconfident, which calibration mends, and
        differ from each other, which mixing exploits. *Measured* on twelve tables of 500 and of
        2,500 rows: the iterates chosen in this way are better by .024 and .035 nats.
        """
        by_fold = self.judged(*self.blind(X, rows))
        of_all = self.judged(*self.unseen(X[: rows.n_unseen], rows[: rows.n_unseen]))
        (loss, scale), (mixed, _) = by_fold.best_scale(), of_all.best_scale()
        return loss + mixed - float(members_loss(self, of_all, scale))

    @torch.no_grad()
    def fold_losses(
        self, X: Tensor, rows: Rows, log_scales: Sequence[float]
    ) -> tuple[np.ndarray, float]:
        """Return sums of losses for some scales of f, and the number of rows in each sum."""
        block, q, latent = self.blind(X, rows)
        likelihood = self.model.likelihood.of(block)
        if latent is not None:
            likelihood = cast(ScaledByRow, likelihood).scaled(RowScale.of(latent))
        totals = np.zeros(len(log_scales))
        for j, log_scale in enumerate(log_scales):
            other = scaled(q, Calibration(log_scale), self.centre)
            losses = self.model.loss.of_predictions(block.y, likelihood, other)
            totals[j] = float(block.weighted(losses).sum())
        return totals, block.n_effective

    @torch.no_grad()
    def calibrate(self, X: Tensor, rows: Rows) -> None:
        """Calibrate predictions on rows that no member has seen.

        Choose: the scale of variances or, because classifiers are overconfident, of all f; how far
        the members' means are apart, because their mean has a smaller error than each of them, and
        what their disagreement says of that error; tails, if these are learned, because errors at
        training rows have lighter tails; how much the noise varies, because that is overfitted too;
        and the share and size of outliers. If this changes the best m_k, repeat it once. Finally,
        choose how much the mixture's deviations vary between rows, and its skewness.
        """
        self.limits = limits_of_f(self.model.likelihood, rows)
        if n := self.n_judges(rows):
            closes = self.closes(rows)
            usual, prior = USUAL, PRIOR
            if self.has_dispersion_left and closes:
                self.find_dispersion(X, rows)
            if self.has_confidence:  # the mixture's is close to the members', found on their folds
                some = share_of(self, X, rows, self.closing.judging)
                usual = most_suitable(lambda scales: self.fold_losses(*some, scales)[0])
            elif n < MOST_FEW_JUDGES and rows.n_unseen:
                usual = self.usual_of_members(X, rows)
                prior = NARROW_PRIOR if self.folds_tell_more(rows) else PRIOR
            m = n_in_time(self, n)
            for _ in range(self.closing.rounds if closes else 1):
                if closes:
                    self.close_members(X, rows)
                before = self.calibration
                if self.count_unit is not None and rows.n_unseen:
                    usual = self.judged(*self.blind(X, rows)).best(USUAL, self.deadline)
                judged = self.judged(*self.unseen(X[:m], rows[:m]))
                self.calibration = judged.best(usual, self.deadline, prior)
                if self.change_from(before) < LEAST_CHANGE:
                    break
            if n >= LEAST_OF_SHAPE or rows.y.shape[1] > 1:
                self.spread = judged.spread(self.calibration)
                self.skew = judged.skew(self.calibration, self.spread)
        self.held_out = self.held_out_predictions(X, rows)

    def close_members(self, X: Tensor, rows: Rows) -> None:
        """Find each member's best m_k for the rows that it sees, and S_k if training knows less."""
        for k in range(len(self.folds)):
            own = self.seen(rows)[k].nonzero()[:, 0]
            found = self.closed(self.member(k), self.q(k), X[own], rows[own])
            self.means[k] = found.q.mean
            if self.count_unit is not None:
                self.roots[k] = self.narrowed(k, found.sites.precision)

    def narrowed(self, k: int, G: Tensor) -> Tensor:
        """Return the root for large counts: :meth:`root_of`, or the present one where it is less.

        Training ends before deviations are those of the posterior where rows tell little. Those
        made means of counts with much dispersion 10¹³ times too high.
        """
        root, present = self.root_of(G), self.roots[k]
        if not self.model.likelihood.learns_dispersion:
            return root
        if not self.is_full:
            return torch.minimum(root, present.abs())
        told = [(G @ R.double()).mul(R).sum() for R in (root, present)]  # Σ var of f over noise
        return root if told[0] < told[1] else present

    def find_dispersion(self, X: Tensor, rows: Rows) -> None:
        """Find the dispersion of large counts in turn with the best m_k for it.

        That in training has to contain the errors of networks, which follow the logarithm of a rate
        to some per cent. A dispersion far below one over the mean makes no difference.
        """
        likelihood: Any = self.model.likelihood
        log_dispersion, mean = likelihood.log_dispersion, rows.mean(rows.y)
        for _ in range(DISPERSION_ROUNDS):
            self.close_members(X, rows)
            before = torch.log1p(mean * log_dispersion.exp())
            by_fold = self.judged(*self.blind(X, rows))
            log_dispersion.add_(by_fold.dispersion_change(self.deadline))
            if bool((torch.log1p(mean * log_dispersion.exp()) - before).abs().max() < LEAST_CHANGE):
                break

    @property
    def has_dispersion_left(self) -> bool:
        """Whether training ends before the dispersion of counts does."""
        return self.count_unit is not None and self.model.likelihood.learns_dispersion

    def change_from(self, before: Calibration) -> float:
        """Return the change of the log scale of deviations, or of the dispersion of counts."""
        now = self.calibration
        if self.model.likelihood.learns_dispersion:
            return abs(now.tails - before.tails)
        return abs(now.log_scale - before.log_scale)

    def root_of(self, G: Tensor) -> Tensor:
        """Return the root of (I + G)⁻¹ that counts in their own unit imply, as `roots` keeps it.

        Training knows counts in a coarse unit only, in which each tells less.
        """
        if not self.is_full:
            return (1.0 + G.diagonal(dim1=-2, dim2=-1)).rsqrt().to(self.roots)
        R = careful_inverse_factor(add_diagonal(G, 1.0))
        return cholesky(R.mT @ R, "covariance of a member's weights").to(self.roots)

    def folds_tell_more(self, rows: Rows) -> bool:
        """Whether rows of folds are many, and tell more than the few that no member has seen.

        Of 60 rows of counts, six decided on the dispersion, in one fit .21 instead of .3.
        """
        is_few = rows.n_unseen < LEAST_OF_SHAPE
        if self.model.likelihood.learns_dispersion:
            return is_few
        return is_few and self.count_unit is None and rows.n_held_out >= LEAST_TELLING

    def usual_of_members(self, X: Tensor, rows: Rows) -> Calibration:
        """Return tails and noise that suit each member's predictions for its own fold.

        Many rows judge these, and only a few the mixture. *Measured* at 200 and 600 rows of three
        kinds: .005 to .02 nats better, and the worst coverage is nearer to .95 by up to .03. Of
        very few rows the scale and the outliers are those of members, too. *Measured* at 200 rows
        of three kinds, where 20 rows judge: .012 to .042 nats better, the worst coverage of eight
        fits is .88, .90 and .94, not .76, .87 and .91, and these rows' own score is .02 to .08
        nats too good, not .05 to .15.
        """
        found = self.judged(*self.blind(X, rows)).best(USUAL, self.deadline)
        if self.folds_tell_more(rows):
            return found
        return USUAL._replace(
            tails=found.tails, noise_contrast=found.noise_contrast, reach=found.reach
        )

    def thinned(
        self, X: Tensor, rows: Rows, n_rows: int, least: int = LEAST_JUDGES
    ) -> tuple[Tensor, Rows]:
        """Return about n_rows of the rows in folds, equally from each; at least so many."""
        every = max(1, rows.n_held_out // max(n_rows, least))
        held_out = rows.n_unseen + torch.arange(rows.n_held_out, device=X.device)
        few = held_out.unflatten(0, (len(self.folds), -1))[:, ::every].flatten()
        return X[few], rows[few]

    def judged(self, rows: Rows, q: Marginals, latent: Tensor | None) -> HeldOut:
        """Return held-out rows with predictions for them, in float64."""
        likelihood = copy.deepcopy(self.model.likelihood).double()
        exact = None if latent is None else latent.double()
        q = q.double()
        if self.limits is not None:
            r, centre = share_within(self.limits, q), self.limits[0]
            q = Marginals(centre + r * (q.mean - centre), r.square() * q.var)
        held_out = rows.to(torch.float64)
        return HeldOut(held_out, q, likelihood, self.learns_noise, exact, self.centre)

    def held_out_predictions(self, X: Tensor, rows: Rows) -> Predicted | None:
        """Return predictions for the held-out rows, or None if all rows were seen.

        The mixture predicts the rows that no member has seen. Each member alone predicts its own
        fold, and the gain of the mixture is added to the log density. *Measured* on five tables:
        the result has no bias at 1,000 rows, and one of .03 nats at 300, while single members are
        .15 and .08 below. Likewise errors are as much smaller as the mixture's are. If time is
        short, predict only some of the rows that no member has seen.
        """
        if rows.fold is None:
            return None
        n, changes = rows.n_unseen, (self.calibration, self.spread, self.skew)
        if n and self.closing.judging < 1.0:
            m = n_in_time(self, n)
            return self.judged(*self.unseen(X[:m], rows[:m])).predictions(*changes).cpu()
        by_fold = self.judged(*self.blind(X, rows))
        found = [by_fold.predictions(*changes)]
        if n:
            of_all = self.judged(*self.unseen(X[:n], rows[:n]))
            of_mixture = of_all.predictions(*changes)
            alone = members_loss(self, of_all, *changes)
            gain = of_all.rows.mean(of_mixture.log_density[:, None])[0] + alone
            of_folds = found[0]._replace(log_density=found[0].log_density + gain)
            if self.centre is None:
                y, share = by_fold.rows.y, errors_left(self, of_all, of_mixture, *changes)
                of_folds = of_folds._replace(mean=y + share * (of_folds.mean - y))
            found = [of_mixture, of_folds]
        return Predicted(*(torch.cat(columns).cpu() for columns in zip(*found, strict=True)))

    def n_judges(self, rows: Rows) -> int:
        """Return the number of rows to calibrate on, which come first."""
        n = rows.n_unseen or (rows.n_held_out if len(self.folds) == 1 else 0)
        return n if self.calibrates and self.is_calibrated else 0

    @property
    def is_calibrated(self) -> bool:
        """Whether predictions need calibration: not if a bound makes them a proper posterior."""
        if self.has_confidence or self.model.likelihood.learns_dispersion:
            return True
        return not self.model.is_bound and self.model.covariance == "gradient"

    @property
    def has_confidence(self) -> bool:
        """Whether to calibrate the scale of f: for ensembles of classifiers without square loss."""
        judged_by_it = self.model.covariance != "prior"
        return self.centre is not None and len(self.folds) > 1 and judged_by_it

    @property
    def centre(self) -> Tensor | None:
        """For classes, the mean around which f is scaled; otherwise None: deviations are scaled."""
        if not isinstance(self.model.likelihood, Bernoulli | Categorical):
            return None
        return self.model.mean.value.detach().double()

    # ---- the closing pass ----------------------------------------------------------------------

    def solution(self, X: Tensor, rows: Rows) -> MixturePosterior:
        """Return the posterior with the best m_k for all rows; for very many rows, as trained."""
        members = [self.posterior(k, X, rows) for k in range(len(self.folds))]
        limits = limits_of_f(self.model.likelihood, rows)
        for member in members:
            member.limits = limits
        choice = self.calibration
        return MixturePosterior(
            members, choice.mean_shrinkage, choice.disagreement_scale, self.spread, self.skew
        )

    @torch.no_grad()
    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        cost = closing_cost(self, X, rows, deadline)
        self.closing = cost.choose(deadline.left(), wanted)
        seconds, now = cost.of(self.closing), deadline.clock()
        self.deadline = deadline._replace(end=max(deadline.end, now + seconds) + GRACE)
        return seconds

    def closes(self, rows: Rows) -> bool:
        """Whether the closing pass finds the best m_k for all rows."""
        P, n = len(self.model.mean.value), rows.n_all
        few = n < MANY_ROWS and self.has_all_rows and (rows.y.shape[1] == P or n * P < MANY_LOGITS)
        few = few and self.closing.rounds > 0
        return few or not (self.is_calibrated or self.model.covariance == "gradient")

    @torch.no_grad()
    def posterior(self, k: int, X: Tensor, rows: Rows) -> SparsePosterior:
        """Return the posterior of one member."""
        model, q = self.member(k), self.q(k)
        if self.closes(rows):
            found = self.closed(model, q, X, rows)
            bound = found.value if model.is_bound else evidence_bound(model, X, rows, found.q)
        else:
            bound = torch.full_like(q.kl, torch.nan)
            found = Solution(q, started(model, q), bound)
        if self.centre is not None:
            found = found._replace(q=found.q.scaled(math.exp(self.calibration.log_scale)))
        return model.posterior(found, bound, rows.n_effective)

    def closed(
        self,
        model: SparseModel,
        q: WeightMoments,
        X: Tensor,
        rows: Rows,
        max_iter: int | None = None,
    ) -> Solution:
        """Return a member's best q(w) for these rows; a covariance learned in training is kept."""
        is_kept = model.covariance == "gradient" or self.is_calibrated
        start = None if model.covariance == "sites" and not is_kept else started(model, q)
        limits = CLOSING_TOL, max_iter or self.closing.max_iter, self.deadline
        like = q if is_kept else None
        if rows.n_all >= MANY_ROWS:
            return optimal_q(model, X, rows, start, like, *limits)
        phi = torch.cat([basis.phi for basis, _ in model.bases(X, rows)])  # once for all steps
        features, mean = NetworkFeatures(nn.Sequential(), phi.shape[1]), model.mean
        known = SparseModel(
            features, model.likelihood, mean, None, model.loss, model.beta, model.scale
        )
        return optimal_q(known, phi, rows, start, like, *limits)

    def member(self, k: int) -> SparseModel:
        """Return the model of one member for predictions, with the calibration so far."""
        shared = self.model.for_predictions()
        likelihood, scale = shared.likelihood, shared.scale
        choice = self.calibration
        likelihood = stretched(likelihood, shared.mean.value, choice, self.learns_noise)
        if scale is not None:
            scale = RowScale(choice.noise_contrast * scale.weights[k].detach())
        features, loss = shared.features.member(k), shared.loss
        return SparseModel(features, likelihood, shared.mean, None, loss, shared.beta, scale).eval()

    def q(self, k: int) -> WeightMoments:
        """Return the present q_k(w), in float64, with the calibration of deviations so far."""
        scale = math.exp(self.calibration.log_scale) if self.centre is None else 1.0
        root = scale * self.present_roots()[k].detach().double()
        root = root if self.is_full else torch.diag_embed(root)
        mean = self.means[k].detach().double()
        fixed = self.model.covariance == "prior"
        return moments_of(VariationalWeights(mean, [None if fixed else root], (len(mean),)))


def share_of(
    objective: EnsembleObjective, X: Tensor, rows: Rows, share: float
) -> tuple[Tensor, Rows]:
    """Return all rows, or a share of the rows in folds."""
    if share == 1.0:
        return X, rows
    return objective.thinned(X, rows, round(share * rows.n_held_out))


def n_in_time(objective: EnsembleObjective, n: int) -> int:
    """Return how many of n rows there is time to calibrate on."""
    return max(min(n, LEAST_JUDGES), round(objective.closing.judging * n))


def members_loss(objective: EnsembleObjective, of_all: HeldOut, *changes: Any) -> Tensor:
    """Return −log p per row of single members with these changes, averaged over members, ()."""
    each = [of_all.member(k).log_density(*changes) for k in range(len(objective.folds))]
    return -of_all.rows.mean(torch.stack(each).mean(0)[:, None])[0]


def errors_left(
    objective: EnsembleObjective, of_all: HeldOut, mixed: Predicted, *changes: Any
) -> Tensor:
    """Return by how much the mixture's errors are smaller than single members', (P,), at most 1."""
    y, K = of_all.rows.y, len(objective.folds)
    each = [of_all.member(k).predictions(*changes).mean for k in range(K)]
    alone = torch.stack([of_all.rows.mean((mean - y).square()) for mean in each]).mean(0)
    share = of_all.rows.mean((mixed.mean - y).square()) / alone.clamp_min(TINIEST_SQUARE)
    return share.sqrt().clamp_max(1.0)


def closing_cost(
    objective: EnsembleObjective, X: Tensor, rows: Rows, deadline: Deadline
) -> ClosingCost:
    """Measure the parts of the closing pass on a few rows."""
    K, n, of_weights, of_calibration = len(objective.folds), objective.n_judges(rows), 0.0, 0.0
    model, q, clock = objective.member(0), objective.q(0), deadline.clock

    def solve(m: int, n_steps: int = USUAL_STEPS) -> float:
        return seconds_of(lambda: objective.closed(model, q, X[:m], rows[:m], n_steps), clock)

    if objective.closes(rows):
        at_least = solve(min(BLOCKS[0], len(rows)), 1)
        is_dear = at_least > deadline.left()
        of_weights = K * (at_least if is_dear else extrapolated(solve, len(rows)))
    if not n:
        return ClosingCost(of_weights, 0.0)

    def judged(m: int) -> HeldOut:
        return objective.judged(*objective.unseen(X[:m], rows[:m]))

    few = judged(min(n, BLOCKS[0]))
    few.loss(USUAL)  # the first call compiles kernels
    seconds = seconds_of(lambda: few.loss(USUAL), clock)
    is_dear = seconds > DEAR * deadline.left()
    if not is_dear:
        few = judged(min(n, BLOCKS[-1]))
        seconds = seconds_of(lambda: few.loss(USUAL), clock)
    m, n_losses = len(few.rows), N_LOSSES * sum(few.free) ** 2
    of_calibration = n_losses * n / m * seconds
    per_row = seconds_of(lambda: few.predictions(UNCHANGED, None, None), clock) / m
    of_predictions = per_row * (2 * n + rows.n_held_out / K)  # twice, for the gain of mixing
    timed = BLOCKS[0 if is_dear else -1]
    of_confidence, of_scoring = fold_seconds(objective, X, rows, clock, timed)
    return ClosingCost(of_weights, of_calibration + of_confidence, of_predictions, of_scoring)


def fold_seconds(
    objective: EnsembleObjective, X: Tensor, rows: Rows, clock: Clock, n_rows: int
) -> tuple[float, float]:
    """Estimate the seconds to choose the confidence, and to score an iterate, on all folds.

    Measure them on about so many rows; return zeros if no confidence is chosen.
    """
    if not objective.has_confidence:
        return 0.0, 0.0
    few = objective.thinned(X, rows, n_rows, least=1)

    def seconds(scales: Sequence[float]) -> float:
        return seconds_of(lambda: objective.fold_losses(*few, scales), clock)

    seconds((0.0,))
    once, often = seconds((0.0,)), seconds(LOG_SCALES)
    per_scale = max(often - once, 0.0) / (len(LOG_SCALES) - 1)
    share = rows.n_held_out / len(few[0])
    return share * (once + N_CONFIDENCES * per_scale), share * often


def started(model: SparseModel, q: WeightMoments) -> Sites:
    """Return the sites from which Newton steps for m start."""
    return model.zero_sites()._replace(cross=q.mean)
