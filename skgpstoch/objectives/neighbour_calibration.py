"""Let rows left out say how wide predictions from neighbours are, and how many of these suffice.

The errors of rows left out, each given the others, are those of single observations, whatever the
rows' weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..likelihoods.shared_precision import SharedStudentT
from ..maths.gaussian import Marginals
from ..models.calibration.held_out import Predicted
from ..models.calibration.spread import best_spread
from ..models.calibration.tails import ErrorTails, TailChoice, best_tails, log_density
from ..models.mixture import Spread
from ..models.posteriors.nearby import (
    KNOWN,
    ErrorScale,
    ErrorsNearby,
    Given,
    deviation,
    factor2,
    known,
)
from ..models.posteriors.neighbours import NeighbourPosterior
from .closing import LEAST_JUDGES

FEWER = (64, 32)  # neighbours of predictions
MOST_LOSS = 0.005  # nats per row that fewer may lose
MOST_GAINED = 0.01, 0.15  # shares by which squared errors of y, and the variance of f, may grow
"""*Measured* (NLPD and RMSE of other rows by 128, 64 and 32; chosen: *): protein .583 .569, .578
.570*, .574 .575; bike −8.72*, −8.11, −7.31; networks on protein .858, .849, .846*. Predictions take
a quarter and a tenth of the time. Where y is mostly noise, it hides what f loses: a field with an
error of f of .119 by 128 has .134 by 64, which costs y .003 nats."""
TINIEST = torch.finfo(torch.float64).tiny


class JudgedNeighbours(NamedTuple):
    """What rows left out say of predictions from so many neighbours."""

    n_neighbors: int
    likelihood: AdditiveNoise  # p(y | f) of new rows
    spread: ErrorScale | None
    rows: Rows
    held_out: Predicted  # of these rows

    @classmethod
    def of(
        cls, posterior: NeighbourPosterior, given: Given, rows: Rows, choice: TailChoice | None
    ) -> Self:
        """Judge f, `given` for these rows; they choose tails and widths unless noises are known."""
        rows, var = rows.to(torch.float64), given.var
        noise, spread = cast(AdditiveNoise, posterior.likelihood), None
        likelihood = cast(AdditiveNoise, noise.of(rows))
        if rows.noise is None and choice is not None:
            noise, spread = calibrated(posterior.variance, given, rows, choice)
            wider = spread(given, posterior.variance)
            var = wider.of_f.square() * var
            likelihood = cast(AdditiveNoise, noise.of(rows)).scaled(wider.of_noise)
        q = Marginals(given.mean[None], var[None])
        held_out = Predicted.of(rows.y, q, likelihood)
        return cls(posterior.n_neighbors, noise, spread, rows, held_out)

    def told(self, posterior: NeighbourPosterior) -> NeighbourPosterior:
        """Tell a posterior, in place."""
        posterior.n_neighbors = self.n_neighbors
        posterior.likelihood, posterior.spread = self.likelihood, self.spread
        return posterior

    def is_as_good_as(self, other: JudgedNeighbours) -> bool:
        """Tell whether predictions of y, by more than chance, and of f are about as good."""
        rows, mine, its = self.rows, self.held_out, other.held_out
        loss = (its.log_density - mine.log_density)[:, None]
        mean = rows.mean(loss)
        chance = (rows.mean(rows.weighted((loss - mean).square())) / rows.n_effective).sqrt()
        of_y, its_of_y = (rows.mean((rows.y - each.mean).square()) for each in (mine, its))
        of_f, its_of_f = (rows.mean(each.latent_std.square()) for each in (mine, its))
        pairs = zip((of_y, of_f), (its_of_y, its_of_f), MOST_GAINED, strict=True)
        is_near = [bool((value <= (1.0 + most) * its).all()) for value, its, most in pairs]
        return all(is_near) and bool((mean + chance <= MOST_LOSS).all())


def fewest(most: JudgedNeighbours, judged: Callable[[int], JudgedNeighbours]) -> JudgedNeighbours:
    """Return what as few neighbours say as predict as well as the most, by enough rows left out."""
    found = most
    for n_neighbors in FEWER if len(most.rows) >= LEAST_JUDGES else ():
        fewer = judged(n_neighbors)
        if not fewer.is_as_good_as(most):
            break
        found = fewer
    return found


def calibrated(
    noise: Tensor, given: Given, rows: Rows, choice: TailChoice
) -> tuple[AdditiveNoise, ErrorScale]:
    """Return the likelihood and how wide predictions are, by rows left out, of which f is given."""
    s = (given.var + noise).clamp_min(TINIEST).sqrt()
    u = (rows.y - given.mean) / s
    weight = rows.weighted(torch.ones_like(rows.y))[:, :1]
    nearby, r = ErrorsNearby.best(u, weight[:, 0], given)
    most_odds = given.odds.quantile(KNOWN, dim=0)
    share, limited = known(given, most_odds), deviation(given, noise, most_odds)
    reach = (rows.y - given.mean).abs().amax(0)
    columns = u, limited, weight, r, share, reach / s
    # A copy from a device has another layout, and with it another order of sums.
    arrays = (each.cpu().contiguous().numpy() for each in columns)
    tails, (factor, exponent) = best_tails_and_spread(choice, *arrays)
    likelihood: AdditiveNoise = Gaussian(noise)
    if not math.isinf(tails.df):
        heavy = SharedStudentT(noise.sqrt(), torch.full_like(noise, tails.df))
        heavy.outliers, heavy.reach = tails.outliers, tuple(reach.tolist())
        likelihood = heavy
    c = torch.from_numpy(factor).to(noise)
    V = factor2(share, c * limited ** (exponent - 1.0) * r) * s.square()
    wider = likelihood.moments(Marginals(given.mean, V - noise)).var / V
    return likelihood, ErrorScale(c, exponent, most_odds, nearby, float(wider.mean()))


def best_tails_and_spread(
    choice: TailChoice,
    u: np.ndarray,
    s: np.ndarray,
    weight: np.ndarray,
    ratio: np.ndarray,
    share: np.ndarray,
    reach: np.ndarray,
) -> tuple[ErrorTails, Spread]:
    """Return the tails of errors u (N, P), and the factor c·s^(γ − 1) of their deviations s (N, P).

    Rows have weights (N, 1). Errors nearby say r (N, P), of which a share π (N, P) is taken. The
    deviations of outliers are within the reach (N, P), the largest error in units of s. The
    search for γ begins with Laplace's distribution, as r was chosen: heavy tails, if found first,
    would stand in for deviations that vary.
    """

    def scales(c: float) -> np.ndarray:
        return np.sqrt(factor2(share, c * spread.ratio(s) * ratio))

    def laplace(u: np.ndarray) -> np.ndarray:
        b = np.maximum(np.average(np.abs(u), 0, weight[:, 0]), TINIEST)
        return -(np.log(b) + np.abs(u) / b).sum(1)

    def by_tails(u: np.ndarray) -> np.ndarray:
        return log_density(u, tails, lambda c: np.full_like(u, c), reach).sum(1)

    spread, z = Spread(np.ones(u.shape[1]), 1.0), u / np.sqrt(factor2(share, ratio))
    if choice.scales:
        spread = best_spread(laplace, z, np.zeros_like(u), s, weight[:, 0])
        tails = best_tails(u, choice, weight, scales, reach)
        spread = best_spread(by_tails, z, np.zeros_like(u), s, weight[:, 0])
    tails = best_tails(u, choice, weight, scales, reach)
    return tails, spread._replace(factor=tails.scale * spread.factor)
