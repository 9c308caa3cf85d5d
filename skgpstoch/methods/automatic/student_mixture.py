"""Mixtures of Student-t distributions, and their scale from leave-one-out errors.

A process predicts N(μ, v) for draws s of its hyper-parameters. With a precision τ ~ Gamma(ν/2, ν/2)
of a row that noise and uncertainty share, as in :class:`~skgpstoch.likelihoods.SharedStudentT`, and
a factor e^κ of all deviations,

    p(y) = (1/S) Σ_s t_ν(y | μ_s, e^2κ v_s)

κ and ν maximise the density of left-out rows, given a prior that a few hundred rows overrule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, stdtr, stdtrit
from torch import Tensor

from ...data.held_out import HeldOutPredictions
from ...estimators.distributions.law import Law
from ...maths.ranked_probability import crps_of_student_t
from ...maths.student_t import log_student_t
from ...training.exact_search import LBFGS, Limits, Search

LOG_FACTOR_PRIOR = (0.0, 0.2)  # prior mean and deviation of κ
TAIL_PRIOR = (0.05, 0.1)  # of 1/ν
TAIL_BOUNDS = (1.0 / 400.0, 1.0 / 3.0)  # from nearly normal to a variance that is still finite
HALLEY_STEPS = 6  # two or three are usual
HALLEY_NEAR = 1e-4  # of the probability; from there a step, whose error is cubic, is exact
SHARE_ROUNDING = 1e-9  # of logarithms of shares
TAIL_LIMITS = Limits(max_iter=50, tol=1e-10, gtol=1e-7)


class Tails(NamedTuple):
    """Factor e^κ of deviations, and ν degrees of freedom of the tails."""

    log_factor: float
    df: float


@dataclass(frozen=True)
class StudentMixture(Law):
    """Distributions of y at N rows: Σ_k π_k Π_p (1/S) Σ_s t_ν(y_p | μ, scale).

    Parameters
    ----------
    weight : ndarray of shape (K,)
        π.
    centre, scale : ndarray of shape (K, S, N, P)
        μ and scales.
    df : ndarray of shape (K, 1, 1, P)
        ν > 2.
    """

    weight: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    df: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.centre.shape[2], self.centre.shape[3]

    @property
    def has_light_tails(self) -> bool:
        return False

    def of(self, rows: Any) -> StudentMixture:
        return replace(self, centre=self.centre[:, :, rows], scale=self.scale[:, :, rows])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self._averaged(self.centre)
        unit = self.scale.max((0, 1))  # squares of very large or small numbers over- or underflow
        of_each = np.square(self.scale / unit) * self.df / (self.df - 2.0)
        square = self._averaged(of_each + np.square((self.centre - mean) / unit))
        return mean, unit * np.sqrt(square)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        of_kernels = self._of_kernels(y)  # (K, N, P)
        return np.asarray(logsumexp(of_kernels, axis=0, b=self.weight[:, None, None]))

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        of_kernels = self._of_kernels(y).sum(-1)  # (K, N)
        return np.asarray(logsumexp(of_kernels, axis=0, b=self.weight[:, None]))

    def _of_kernels(self, y: np.ndarray) -> np.ndarray:
        """Return log densities by kernel, (K, N, P)."""
        each = log_student_t(y - self.centre, self.scale, self.df)  # (K, S, N, P)
        return np.asarray(logsumexp(each, axis=1) - math.log(each.shape[1]))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged(stdtr(self.df, (y - self.centre) / self.scale))

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self._averaged(stdtr(self.df, (self.centre - y) / self.scale))

    def quantile(self, probability: float) -> np.ndarray:
        middle = self._averaged(self.centre)
        unit = self.scale.max((0, 1))  # densities of very small numbers overflow
        scaled = replace(self, centre=(self.centre - middle) / unit, scale=self.scale / unit)
        return middle + unit * scaled.quantile_in_units(probability)

    def quantile_in_units(self, probability: float) -> np.ndarray:
        """Return quantiles of distributions whose scale is about 1.

        Halley's steps start at the mean of the components' quantiles, and stay between the least
        and the largest of these; rows for which they do not converge are searched.
        """
        ends = self.centre + self.scale * stdtrit(self.df, probability)
        y, low, high = self._averaged(ends), ends.min((0, 1)), ends.max((0, 1))
        tail, rows = min(probability, 1.0 - probability), np.arange(len(y))
        for _ in range(HALLEY_STEPS):
            some, at = self.of(rows), y[rows]
            error, density, slope = some.cdf(at) - probability, *some.density(at)
            low[rows] = np.where(error <= 0.0, at, low[rows])
            high[rows] = np.where(error >= 0.0, at, high[rows])
            with np.errstate(all="ignore"):  # where densities vanish, the step is no number
                step = error / (density - 0.5 * error * slope / density)
            is_inside = (at - step >= low[rows]) & (at - step <= high[rows])
            y[rows] = np.where(is_inside, at - step, 0.5 * (low[rows] + high[rows]))
            is_near = is_inside & (np.abs(error) <= HALLEY_NEAR * tail)
            if not len(rows := rows[~is_near.all(1)]):
                return y
        y[rows] = self.of(rows).searched(probability, low[rows], high[rows])
        return y

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        """Return quantiles, searched between those of the components."""
        ends = self.centre + self.scale * stdtrit(self.df, probability)
        return self.searched(probability, ends.min((0, 1)), ends.max((0, 1)))

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        (K, S, N, P), rows = self.centre.shape, np.arange(self.shape[0])
        k = rng.choice(K, (n_samples, N), p=self.weight)[..., None]
        s, p = rng.randint(S, size=(n_samples, N, P)), np.arange(P)
        at = k, s, rows[:, None], p
        return self.centre[at] + self.scale[at] * rng.standard_t(self.df[k, 0, 0, p])

    def crps(self, y: np.ndarray) -> np.ndarray:
        if self.centre.shape[:2] != (1, 1):
            return super().crps(y)
        scale = self.scale[0, 0]
        return scale * crps_of_student_t((y - self.centre[0, 0]) / scale, self.df[0, 0])

    def density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return p(y) for y (N, P), of each output alone, and its derivative, each (N, P)."""
        z = (y - self.centre) / self.scale
        each = np.exp(log_student_t(y - self.centre, self.scale, self.df))
        with np.errstate(over="ignore"):  # the slope is 0 there
            slope = -each * (self.df + 1.0) * z / ((self.df + np.square(z)) * self.scale)
        return self._averaged(each), self._averaged(slope)

    def _averaged(self, values: np.ndarray) -> np.ndarray:
        """Return :func:`averaged` by the weights."""
        return averaged(self.weight, values)


def averaged(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Average over draws, and over kernels by their weights (K,): (K, S, N, P) → (N, P).

    Rounding of 1e200 is 1e184: values that are all the same have exactly this average.
    """
    mean = np.tensordot(weight, values.mean(1), 1)
    return np.asarray(np.clip(mean, values.min((0, 1)), values.max((0, 1))))


# ---- rows that were left out ---------------------------------------------------------------------


class LeftOut(NamedTuple):
    """Predictions of N rows, each from all others, by S draws of θ: y minus its mean, and variance.

    Draws that a row itself made likely count for less without it: p(θ | y₋) ∝ p(θ | y)/p(y | y₋, θ)
    (Gelfand, Dey & Chang, "Model determination using predictive distributions", 1992). No draw's
    share is more than √S times the mean share; of all such shares, these diverge least from the
    former. (Ionides, "Truncated importance sampling", 2008, cuts weights there, but then normalises
    them, so one of few draws may still have it all.)

    Parameters
    ----------
    residual, var : ndarray of shape (S, N)
        Residual and variance of a new y, of precision 1.
    log_p : ndarray of shape (S, N)
        log p(y | y₋, θ), up to constants, of the left-out copies, with the precision that the row
        has in p(θ | y).
    """

    residual: np.ndarray
    var: np.ndarray
    log_p: np.ndarray

    def log_share(self) -> np.ndarray:
        """Return logarithms of the weights of draws, which sum to 1 in each row, (S, N)."""
        share = -self.log_p - logsumexp(-self.log_p, axis=0)
        most = 1.0 / math.sqrt(len(share))
        is_cut = np.zeros(share.shape, bool)
        while (above := ~is_cut & (share > math.log(most) + SHARE_ROUNDING)).any():
            is_cut |= above
            left = np.maximum(1.0 - most * is_cut.sum(0), 0.0)  # what the others share
            others = np.where(is_cut, -np.inf, share)
            with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left
                others += np.log(left) - logsumexp(others, axis=0)
            share = np.where(is_cut, math.log(most), others)
        return np.asarray(share)

    def log_density(self, tails: Tails) -> np.ndarray:
        """Return log p(yᵢ | the others), (N,)."""
        scale = math.exp(tails.log_factor) * np.sqrt(self.var)
        each = log_student_t(self.residual, scale, tails.df)
        return np.asarray(logsumexp(self.log_share() + each, axis=0))

    def predictions(self, tails: Tails, y: np.ndarray, noise: np.ndarray) -> HeldOutPredictions:
        """Return predictions of y (N,), where the noise has the variance (S, N)."""
        share, factor = np.exp(self.log_share()), math.exp(tails.log_factor)
        error = (share * self.residual).sum(0)
        apart = np.square(self.residual - error)
        widened = factor**2 * tails.df / (tails.df - 2.0)

        def std(var: np.ndarray) -> np.ndarray:
            return np.sqrt((share * (widened * var + apart)).sum(0))

        latent_var = np.maximum(self.var - noise, 0.0)
        cdf = (share * stdtr(tails.df, self.residual / (factor * np.sqrt(self.var)))).sum(0)
        columns = (error, std(self.var), std(latent_var), y - error, cdf)
        rows, log_density = np.arange(len(y)), self.log_density(tails)
        return HeldOutPredictions(rows, log_density, *(column[:, None] for column in columns))


class TailPosterior:
    """log p(left-out rows | κ, 1/ν) + log p(κ, 1/ν) as a function of (κ, 1/ν)."""

    def __init__(self, left_out: LeftOut, weight: np.ndarray) -> None:
        self.square = torch.from_numpy(np.square(left_out.residual) / left_out.var)  # (S, N)
        log_scale = 0.5 * np.log(left_out.var)
        self.log_share = torch.from_numpy(left_out.log_share() - log_scale)
        self.weight = torch.from_numpy(weight)  # (N,)

    def __call__(self, values: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats, up to a constant, and the gradient."""
        at = torch.tensor(values, dtype=torch.float64, device="cpu", requires_grad=True)
        value = self.weight @ self.densities(*at) - deviation(at[0], LOG_FACTOR_PRIOR)
        value = value - deviation(at[1], TAIL_PRIOR)
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    def densities(self, log_factor: Tensor, tail: Tensor) -> Tensor:
        """Return log densities of rows, (N,)."""
        half = 0.5 * (1.0 / tail + 1.0)
        normaliser = torch.lgamma(half) - torch.lgamma(half - 0.5) + 0.5 * (tail / math.pi).log()
        kernel = half * torch.log1p(self.square * (tail * (-2.0 * log_factor).exp()))
        return (self.log_share - kernel).logsumexp(0) + normaliser - log_factor


def deviation(value: Tensor, prior: tuple[Any, Any]) -> Tensor:
    """Return minus the log density of a normal prior (mean, deviation), up to a constant."""
    mean, std = prior
    return 0.5 * ((value - mean) / std).square()


def calibrated(left_out: LeftOut, weight: np.ndarray) -> Tails:
    """Return κ and ν of largest posterior density, for rows that count `weight` (N,) times."""
    start = np.array([LOG_FACTOR_PRIOR[0], TAIL_PRIOR[0]])
    bounds = np.array([(-math.inf, math.inf), TAIL_BOUNDS])
    with torch.enable_grad():
        found = Search(TailPosterior(left_out, weight), TAIL_LIMITS).run(LBFGS, start, bounds)
    log_factor, tail = found.theta
    return Tails(float(log_factor), float(1.0 / tail))
