"""Calibrate an ensemble's predictions on rows that no member was trained on.

Networks fit their training rows too well: on other rows errors are larger and have heavier tails,
and classes are less certain. A few parameters correct for that. They maximise the log score of
held-out rows plus, because there may be few of these, a prior on usual values.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from ...data.deadline import Deadline, has_passed
from ...data.rows import Rows
from ...likelihoods.heavy_tailed import StudentT
from ...likelihoods.real import AdditiveNoise
from ...likelihoods.shared_precision import SharedStudentT
from ...likelihoods.skewed import Skewed
from ...maths.gaussian import Marginals, quadrature_nodes
from ..mixture import Spread, drawn_together, respread
from ..posteriors.blocks import moments_of
from ..sparse import RowScale, Solution, SparsePosterior
from .spread import argmin, best_spread

LOG_SCALES = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0)  # candidates for the start of the search
ITERATES_SCALES = (0.0, 0.2, 0.4, 0.7, 1.0, 1.5)  # scales at which training iterates are scored
CONFIDENCES = np.linspace(-3.0, 1.0, 33)  # log scales of f at which members are scored
COARSE = 4  # of these one in so many is scored first
N_CONFIDENCES = 16  # scored in all, at most
START_DISAGREEMENT = 0.5  # start of the search, because the slope at 0 is 0
TAILS = (-4.0, 7.0)  # limits of log(ν − 2)
SKEW_PRIOR = 0.1  # prior standard deviation of the skewness ε around 0
MOST_SKEW = 1.0


class Calibration(NamedTuple):
    """Parameters that recalibrate an ensemble's predictions; the defaults change nothing."""

    log_scale: float = 0.0  # log factor of all standard deviations, or of f itself for classes
    mean_shrinkage: float = 1.0  # factor of members' distances from their mean
    tails: float = 0.0  # added to log(ν − 2), or to the logarithm of the dispersion of counts
    noise_contrast: float = 1.0  # factor of the noise's variation with the inputs
    disagreement_scale: float = 0.0  # times the members' disagreement is an added deviation of f
    log_odds: float = -math.inf  # log odds of an outlier
    log_width: float = 0.0  # log factor of outliers' deviations
    reach: tuple[float, ...] = ()  # largest scales of outliers, in the units of y; it is given

    @property
    def outliers(self) -> tuple[float, float]:
        """Share of outliers, and the factor of their deviations."""
        return 1.0 / (1.0 + math.exp(-self.log_odds)), math.exp(self.log_width)


class OutOfTimeError(Exception):
    """A search ends with the best so far."""


UNCHANGED = Calibration()
USUAL = Calibration(log_odds=-3.0, log_width=1.0)
"""Means of the normal priors of the parameters, if all of them can be chosen."""
PRIOR = Calibration(0.3, 0.3, 1.5, 0.5, 0.5, 1.5, 0.5)
"""Standard deviations of the normal priors."""
NARROW_PRIOR = Calibration(0.1, 0.1, 0.5, 0.5 / 3.0, 0.5 / 3.0, 0.5, 0.5 / 3.0)
"""The same, if so many more rows tell the means of the priors."""
VAGUE = 100.0  # the same of the dispersion, if nothing is known of it
LIMITS = ((-10.0, 10.0), (0.0, 1.0), (-10.0, 10.0), (0.0, 4.0), (0.0, 4.0), (-9.0, 0.0), (0.0, 6.0))
"""Lower and upper limits of each parameter."""


def calibrate(
    loss: Callable[[Calibration], float],
    free: Sequence[bool],
    usual: Calibration = USUAL,
    deadline: Deadline | None = None,
    prior: Calibration = PRIOR,
) -> Calibration:
    """Return the calibration that minimises the loss plus the negative log prior, in nats.

    Parameters
    ----------
    loss : callable
        Maps a Calibration to the summed loss of all held-out rows, in nats.
    free : sequence of bool
        Which parameters may change.
    usual : Calibration, default=USUAL
        Means of the priors.
    deadline : Deadline or None, default=None
        Time at which the search ends with the best calibration so far, after two losses at least;
        None: no limit.
    prior : Calibration, default=PRIOR
        Standard deviations of the priors.
    """
    is_free = np.array(free)
    expected, deviation = (np.array(each[:-1])[is_free] for each in (usual, prior))
    tried: list[tuple[float, np.ndarray]] = []

    def full(x: np.ndarray) -> Calibration:
        chosen = np.array(UNCHANGED[:-1])
        chosen[is_free] = x
        return Calibration(*chosen.tolist())

    def total(x: np.ndarray) -> float:
        if len(tried) > 1 and has_passed(deadline):
            raise OutOfTimeError
        value = loss(full(x)) + 0.5 * np.square((x - expected) / deviation).sum()
        value = math.inf if math.isnan(value) else value
        tried.append((value, x.copy()))
        return value

    def search() -> np.ndarray:
        start = min((np.array([scale, *first[1:]]) for scale in scales), key=total)
        if (least := total(start)) == math.inf:
            return start
        found = minimize(total, start, method="L-BFGS-B", bounds=limits, options=options)
        return np.asarray(found.x if found.fun < least else start)

    first = np.array(USUAL._replace(disagreement_scale=START_DISAGREEMENT)[:-1])[is_free]
    # The usual ones first: the search may end after two.
    scales = sorted(LOG_SCALES, key=abs) if free[0] else first[:1]
    limits = [limit for limit, is_one in zip(LIMITS, free, strict=True) if is_one]
    options = {"eps": 1e-6}  # of differences: sums of thousands of nats are exact to 1e-11
    try:
        best = search()
    except OutOfTimeError:
        best = min(tried, key=operator.itemgetter(0))[1]
    if min(value for value, _ in tried) == math.inf:
        return UNCHANGED._replace(log_scale=usual.log_scale)
    return full(best)


def std_of_mean(likelihood: Any, q: Marginals) -> Tensor:
    """Return the standard deviation of E(y | f) if f ~ q, in the units of y, (N, P)."""
    f, log_weights = quadrature_nodes(q, 100)
    known = torch.zeros_like(q.var)
    mean_of_y = torch.stack([likelihood.moments(Marginals(at, known)).mean for at in f])
    weights = log_weights.exp()
    mean = (weights * mean_of_y).sum(0)
    var = (weights * (mean_of_y - mean).square()).sum(0)
    return Marginals(mean, var).mixture_moments()[1].sqrt()


class Predicted(NamedTuple):
    """Predictions for N rows: tensors of shape (N,) and (N, P).

    For classes, `mean` has the class probabilities, (N, C), and deviations have shape (N, 0).
    """

    log_density: Tensor
    mean: Tensor
    std: Tensor
    latent_std: Tensor
    cdf: Tensor  # NaN for counts

    @classmethod
    def of(cls, y: Tensor, q: Marginals, noise: Any) -> Predicted:
        """Return what q(f) and the likelihood of these rows say of y, which are no classes."""
        mean, var = noise.moments(q).mixture_moments()
        is_additive = isinstance(noise, AdditiveNoise)
        cdf = noise.cdf(y, q).mean(0) if is_additive else torch.full_like(y, math.nan)
        latent_std = q.mixture_moments()[1].sqrt() if is_additive else std_of_mean(noise, q)
        return cls(noise.log_predictive(y, q), mean, var.sqrt(), latent_std, cdf)

    @classmethod
    def of_classes(cls, y: Tensor, q: Marginals, likelihood: Any) -> Predicted:
        """Return what q(f) and a likelihood say of the codes y."""
        p, none = likelihood.moments(q).mixture_moments()[0], q.mean.new_empty(len(y), 0)
        p = torch.cat([1.0 - p, p], 1) if p.shape[1] == 1 else p / p.sum(1, keepdim=True)
        return cls(likelihood.log_predictive(y, q), p, none, none, none)

    def cpu(self) -> Predicted:
        """Return the same on the CPU."""
        return Predicted(*(column.cpu() for column in self))


class HeldOut(NamedTuple):
    """Held-out rows and an ensemble's predictions for them, in float64."""

    rows: Rows
    q: Marginals  # (K, N, P) of K members
    likelihood: Any
    learns_noise: bool
    latent: Tensor | None = None  # latent f of the noise, if it depends on the inputs
    centre: Tensor | None = None  # centre of f, for classes

    @property
    def free(self) -> tuple[bool, ...]:
        """Which calibration parameters may change."""
        several, is_real = len(self.q.mean) > 1, self.centre is None
        # A wider f makes means of counts larger, as its wider tails count most; the dispersion not.
        has_dispersion = self.likelihood.learns_dispersion
        has_tails = self.learns_noise and (isinstance(self.likelihood, StudentT) or has_dispersion)
        has_outliers = self.learns_noise and isinstance(self.likelihood, SharedStudentT)
        varies = self.latent is not None
        disagrees = several and is_real and not has_dispersion
        return not has_dispersion, several, has_tails, varies, disagrees, has_outliers, has_outliers

    @property
    def reach(self) -> tuple[float, ...]:
        """The largest errors of held-out rows, (P,): no data say that outliers are wider."""
        if not isinstance(self.likelihood, SharedStudentT):
            return ()
        found = (self.rows.y - self.q.mean.mean(0)).abs().amax(0)
        return tuple(found.tolist()) if bool(found.isfinite().all()) else ()

    @property
    def has_spread(self) -> bool:
        """Whether the mixture's deviations can be spread, which needs noise without known parts."""
        is_noise = isinstance(self.likelihood, AdditiveNoise) and self.rows.noise is None
        is_noise = is_noise and self.learns_noise
        return len(self.q.mean) > 1 and is_noise and self.likelihood.scales_by_row

    def member(self, k: int) -> HeldOut:
        """Return the held-out predictions of the k-th member alone."""
        latent = None if self.latent is None else self.latent[[k]]
        return self._replace(q=Marginals(self.q.mean[[k]], self.q.var[[k]]), latent=latent)

    def loss(self, choice: Calibration) -> float:
        """Return −Σ log p(yᵢ) with a calibration, in nats."""
        return -float(self.rows.weighted(self.log_density(choice)).sum())

    def best_scale(self) -> tuple[float, Calibration]:
        """Return the least loss per row if only the scale changes (with prior), and the scale."""
        losses = [
            self.loss(Calibration(x)) + 0.5 * (x / PRIOR.log_scale) ** 2 for x in ITERATES_SCALES
        ]
        best = int(np.argmin(losses))
        return losses[best] / self.rows.n_effective, Calibration(ITERATES_SCALES[best])

    def log_density(
        self, choice: Calibration, spread: Spread | None = None, skew: Tensor | None = None
    ) -> Tensor:
        """Return log p(yᵢ) of each row with a calibration, (N,) nats."""
        q, noise = self.changed(choice, spread, skew)
        return cast(Tensor, noise.log_predictive(self.rows.y, q))

    def changed(
        self, choice: Calibration, spread: Spread | None, skew: Tensor | None
    ) -> tuple[Marginals, Any]:
        """Return q(f) and the likelihood with the calibration, spread and skewness applied."""
        q, noise = self.mixture(choice)
        if spread is not None:
            q, noise = respread(q, noise, spread)
        return q, noise if skew is None else Skewed(noise, skew)

    def predictions(
        self, choice: Calibration, spread: Spread | None, skew: Tensor | None
    ) -> Predicted:
        """Return the predictions with the calibration, spread and skewness applied."""
        (q, noise), y = self.changed(choice, spread, skew), self.rows.y
        predicted = Predicted.of if self.centre is None else Predicted.of_classes
        return predicted(y, q, noise)

    def mixture(self, choice: Calibration) -> tuple[Marginals, Any]:
        """Return q(f) and the likelihood with a calibration applied."""
        rows = self.rows
        noise = stretched(self.likelihood.of(rows), rows.y[0], choice, self.learns_noise)
        if self.latent is not None:
            noise = noise.scaled(RowScale.of(choice.noise_contrast * self.latent))
        return scaled(self.q, choice, self.centre), noise

    def spread(self, choice: Calibration) -> Spread | None:
        """Return the best spread of the mixture's deviations, given a calibration."""
        if not self.has_spread:
            return None
        (q, noise), rows = self.mixture(choice), self.rows
        mean, var = noise.moments(q).mixture_moments()
        y, m, s = (column.detach().cpu().numpy() for column in (rows.y, mean, var.sqrt()))
        weight = None if rows.weight is None else rows.weight.cpu().numpy()

        def log_density(y: np.ndarray) -> np.ndarray:
            log_p = noise.log_predictive(torch.from_numpy(y).to(mean), q)
            return np.asarray(log_p.detach().cpu().numpy())

        found = best_spread(log_density, y, m, s, weight)
        return found._replace(factor=torch.from_numpy(found.factor).to(mean))

    def skew(self, choice: Calibration, spread: Spread | None) -> Tensor | None:
        """Return the best skewness ε of each output, (P,), given a calibration."""
        if not (self.has_spread and isinstance(self.likelihood, SharedStudentT)):
            return None

        def loss(skew: np.ndarray) -> float:
            log_p = self.log_density(choice, spread, torch.from_numpy(skew))
            prior = 0.5 * np.square(skew / SKEW_PRIOR).sum()
            return float(prior) - float(self.rows.weighted(log_p).sum())

        start = np.zeros(self.rows.y.shape[1])
        return torch.from_numpy(argmin(loss, start, [(-MOST_SKEW, MOST_SKEW)] * len(start)))

    def dispersion_change(self, deadline: Deadline | None = None) -> float:
        """Return what to add to the logarithm of the dispersion of counts, within limits."""
        only = [name == "tails" for name in Calibration._fields[:-1]]
        prior = PRIOR._replace(tails=VAGUE)
        return calibrate(self.loss, only, UNCHANGED, deadline, prior).tails

    def best(
        self,
        usual: Calibration = USUAL,
        deadline: Deadline | None = None,
        prior: Calibration = PRIOR,
    ) -> Calibration:
        """Return the calibration with the least loss that is found before the deadline."""
        reach = self.reach
        if usual.reach:
            reach = tuple(map(max, reach, usual.reach))

        def loss(choice: Calibration) -> float:
            return self.loss(choice._replace(reach=reach))

        return calibrate(loss, self.free, usual, deadline, prior)._replace(reach=reach)


def most_suitable(losses: Callable[[list[float]], np.ndarray]) -> Calibration:
    """Return the log scale in `CONFIDENCES` with the least loss and prior penalty, in nats.

    Score some of them, and then those around the best, because losses fall and then rise.
    """

    def best(scales: np.ndarray) -> int:
        totals = losses(scales.tolist()) + 0.5 * np.square(scales / PRIOR.log_scale)
        totals = np.where(np.isnan(totals), math.inf, totals)
        return int(totals.argmin()) if totals.min() < math.inf else -1

    if (k := COARSE * best(CONFIDENCES[::COARSE])) < 0:
        return UNCHANGED
    near = CONFIDENCES[max(k - COARSE + 1, 0) : k + COARSE]
    return Calibration(float(near[best(near)]))


def scaled(q: Marginals, choice: Calibration, centre: Tensor | None) -> Marginals:
    """Return members' q(f) (K, N, P) with other deviations; with a centre, scale f around it."""
    factor = math.exp(choice.log_scale)
    each = Marginals(q.mean, factor**2 * q.var)
    mean, var = drawn_together(each, choice.mean_shrinkage, choice.disagreement_scale)
    if centre is not None:
        mean = centre.to(mean) + factor * (mean - centre.to(mean))
    return Marginals(mean, var)


def stretched(likelihood: Any, like: Tensor, choice: Calibration, is_learned: bool) -> Any:
    """Return a copy of additive noise with other tails and, if learned, another scale.

    Or of a negative binomial likelihood with another dispersion. Any other likelihood is returned
    unchanged.
    """
    if likelihood.learns_dispersion:
        return likelihood.dispersed(choice.tails)
    if not isinstance(likelihood, AdditiveNoise):
        return likelihood
    factor = math.exp(choice.log_scale) if is_learned else 1.0
    other = likelihood.in_units(like.new_full(like.shape, factor))
    if choice.tails:
        cast(nn.Parameter, other.log_df_minus_2).data.add_(choice.tails).clamp_(*TAILS)
    if isinstance(other, SharedStudentT):
        other.outliers = choice.outliers
        other.reach = choice.reach or None
    return other


def recalibrated(
    posterior: SparsePosterior, choice: Calibration, learns_noise: bool
) -> SparsePosterior:
    """Return a posterior with the same mean, a scaled kernel and, unless fixed, scaled noise."""
    model, factor = copy.deepcopy(posterior.model), math.exp(choice.log_scale)
    trained = copy.deepcopy((posterior.model.likelihood, posterior.model.scale))
    model.trained_noise = trained[0].cpu(), trained[1] and trained[1].cpu()  # saved from the CPU
    model.features.reopen(keep_variance=True)
    model.features.close()
    model.features.scale_variance(factor**2)
    model.likelihood = stretched(model.likelihood, model.mean.value, choice, learns_noise)
    if model.scale is not None:  # it is for unscaled features
        model.scale = RowScale(model.scale.weights.detach() / factor)
    q = moments_of(posterior.weights)
    q = q._replace(mean=q.mean / factor)  # the features are larger by the factor
    found = Solution(q, posterior.sites, posterior.elbo)
    return model.posterior(found, posterior.elbo, posterior.n_rows)
