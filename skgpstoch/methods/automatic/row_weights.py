"""Weights of a mixture that depend on the row, and a distribution in which its models agree.

Stacking gives each model one weight. But models are sure of different rows, and those that are
sure may be right more often, or less, so at a row where they predict deviations σ_k(x)

    π_k(x) ∝ w_k σ_k(x)^(−τ),                                                                  (1)

with the geometric mean of the deviations of several outputs. A mixture of calibrated densities is
too wide: it adds the models' disagreement to the deviation of each, although their mean has errors
that are no larger on average (Gneiting & Ranjan, "Combining predictive distributions", Electronic
Journal of Statistics 7, 2013). So the mixture has one component more, at the point prediction
m(x) = Σ_k v_k μ_k(x): a Student-t distribution with the variance

    s(x)² = r² Σ_k w_k (σ_k² + λ (μ_k − m)²) / Σ_k w_k   and   ν degrees of freedom,           (2)

which takes part in (1) with a weight w_0 and σ_0 = s. The models that stacking gives a weight take
part, and w, τ, r ≤ 1, ν and λ maximise the density of rows left out, given priors (the search
starts from stacking's weights). *Measured* on new rows, change of NLPD (log density) and of
the share in 95 % intervals: bike at 2,500 rows −.37 (.993 → .957), kin40k at 6,000 −.09 (.980 →
.952), wine and airfoil −.05, housing and pol at 1,000 −.03, protein, elevators and kin40k at few
rows −.004 to −.015; concrete +.001, of 15 tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax, softmax, stdtr, stdtrit
from torch import Tensor

from ...data.held_out import HeldOutPredictions, all_whole, mixture_of
from ...estimators.distributions.law import LEAST_PROBABILITY, Law
from ...estimators.distributions.mixed import MixedLaw
from ...maths.student_t import log_student_t
from ...training.exact_search import LBFGS, Search
from .student_mixture import TAIL_BOUNDS, TAIL_LIMITS, TAIL_PRIOR, StudentMixture, deviation

STD_LIMITS = 1e-300, 1e300  # of points, and of rows far from all others
FEWEST_JUDGES = 30  # rows left out, for weights that depend on the row
START_TOGETHER = -1.5  # log w₀, beside weights that sum to 1
WEIGHT_PRIOR = 0.5  # rows in favour of each component
TRUST_IN_ALL = 20.0  # rows in favour of the weights that all rows choose
NARROWING = 0.5  # of the other priors' deviations, around what all rows choose
CERTAINTY_PRIOR = (0.0, 0.7)  # prior mean and deviation of τ
AGREED_SCALE_PRIOR = (-0.1, 0.3)  # of log r
DISAGREEMENT_PRIOR = (-1.0, 1.0)  # of log λ
LOG_WEIGHTS, CERTAINTIES, LOG_SCALES = (-8.0, 8.0), (0.0, 4.0), (-3.0, 0.0)
LOG_DISAGREEMENTS = (-4.0, 4.0)
"""Limits of the search."""


class RowWeights(NamedTuple):
    """The parameters of (1) and (2).

    Parameters
    ----------
    weight : ndarray of shape (K + 1,)
        w of K models and, at the end, w₀; they sum to 1.
    certainty : float
        τ.
    scale, df, disagreement : float
        r, ν and λ.
    """

    weight: np.ndarray
    certainty: float
    scale: float
    df: float
    disagreement: float

    def at(self, std: np.ndarray) -> np.ndarray:
        """Return π(x), (K + 1, N), for deviations (K + 1, N, P), by (1)."""
        with np.errstate(divide="ignore"):
            log_w = np.log(self.weight)[:, None]
        log_std = np.log(np.clip(std, *STD_LIMITS)).mean(2)
        return np.asarray(softmax(log_w - self.certainty * log_std, axis=0))

    def together(
        self, mean: np.ndarray, std: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return m and s by (2), (N, P) each, for means and deviations (K, N, P)."""
        w, m = self.weight[:-1] / self.weight[:-1].sum(), np.average(mean, axis=0, weights=v)
        std = np.clip(std, *STD_LIMITS)
        unit = std.max(0)  # squares of very large or small numbers over- or underflow
        apart = np.square((mean - m) / unit)
        square = np.average(np.square(std / unit) + self.disagreement * apart, axis=0, weights=w)
        return m, self.scale * unit * np.sqrt(square)

    @property
    def _unit_scale(self) -> float:
        """Scale of t_ν with the standard deviation 1."""
        return math.sqrt((self.df - 2.0) / self.df)

    def law(self, parts: Sequence[Law], v: np.ndarray) -> MixedLaw:
        """Return the mixture of the models' laws at N rows."""
        mean, std = np.moveaxis(np.array([part.moments() for part in parts]), 1, 0)
        m, s = self.together(mean, std, v)
        df = np.full((1, 1, 1, m.shape[1]), self.df)
        agreed = StudentMixture(np.ones(1), m[None, None], self._unit_scale * s[None, None], df)
        shares = self.at(np.concatenate([std, s[None]]))
        return MixedLaw(shares, [*parts, agreed], np.append(v, 0.0))

    def held_out(self, parts: Sequence[HeldOutPredictions], v: np.ndarray) -> HeldOutPredictions:
        """Return the mixture's predictions, given the models' for the same rows."""
        mean, std, latent = (
            np.array([getattr(part, name) for part in parts])
            for name in ("mean", "std", "latent_std")
        )
        (m, s), y = self.together(mean, std, v), parts[0].mean + parts[0].error
        z = (y - m) / (self._unit_scale * s)
        density = log_student_t(z * s, s, self.df).sum(1) - z.shape[1] * math.log(self._unit_scale)
        least = np.minimum(self.together(mean, latent, v)[1], s)
        columns = y - m, s, least, m, stdtr(self.df, z)
        agreed = HeldOutPredictions(parts[0].rows, density, *columns)
        shares = self.at(np.concatenate([std, s[None]]))
        return mixture_of([*parts, agreed], shares, np.append(v, 0.0))

    def moved(self, law: MixedLaw, k: int, draws: np.ndarray) -> np.ndarray:
        """Turn draws from the k-th model, (n_samples, N, P), into draws from the agreed law."""
        agreed: Any = law.parts[-1]
        p = np.array([law.parts[k].cdf(y) for y in draws])
        p = np.clip(p, LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)
        return agreed.centre[0] + agreed.scale[0] * stdtrit(self.df, p)


def row_weights(
    parts: Sequence[HeldOutPredictions], w: np.ndarray, v: np.ndarray, weight: np.ndarray
) -> RowWeights | None:
    """Return the best parameters for K models' predictions of the same m rows.

    None if there are few rows, only one model has a weight, or the fit was interrupted.

    The rows of folds are predicted by single networks, which differ from an ensemble in how sure
    they are. So all rows choose a prior only, and those that whole models predict choose given it,
    unless they are few. *Measured* on new rows, where a tenth to a half of the rows are whole
    models', change of NLPD in 15 fits: pol at 1,000 rows −.24 and at 12,000 −.03, kin40k −.008 to
    −.002, concrete −.003, elevators −.001, protein −.002 and, by fewer rows, +.003, wine −.004 and
    +.02, which whole models' rows alone make +.34. A prior by the rows of folds alone is worse in
    twelve.

    Parameters
    ----------
    parts : sequence of HeldOutPredictions
        Of rows that the models have not seen.
    w, v : ndarray of shape (K,)
        Weights of the density by stacking, and those of the point prediction.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
    """
    if (w > 0.0).sum() < 2 or weight.sum() < FEWEST_JUDGES:
        return None
    posterior = RowPosterior(parts, w, v, weight)
    theta = posterior.best()
    whole = all_whole(parts)
    is_mixed = whole is not None and not whole.all()
    if theta is not None and is_mixed and weight[whole].sum() >= FEWEST_JUDGES:
        some = [part.of(part.rows[whole]) for part in parts]
        posterior = RowPosterior(some, w, v, weight[whole], before=theta)
        theta = posterior.best()
    return None if theta is None else posterior.parameters(theta)


class RowPosterior:
    """log p(rows left out | θ) + log p(θ), for θ = (log w, τ, log r, 1/ν, log λ).

    The prior is around `before`, the best θ of more rows, if it is given.
    """

    def __init__(
        self,
        parts: Sequence[HeldOutPredictions],
        w: np.ndarray,
        v: np.ndarray,
        weight: np.ndarray,
        before: np.ndarray | None = None,
    ) -> None:
        self.used, K = w > 0.0, int((w > 0.0).sum())
        mean, std = (np.array([getattr(part, name) for part in parts]) for name in ("mean", "std"))
        std = np.clip(std, *STD_LIMITS)
        unit = std[self.used].max(0)
        error = (parts[0].mean + parts[0].error - np.average(mean, axis=0, weights=v)) / unit
        apart = (mean[self.used] - np.average(mean, axis=0, weights=v)) / unit
        given = np.array([part.log_density for part in parts])[self.used]
        log_unit = np.log(unit)
        self.log_p = torch.from_numpy(given + log_unit.sum(1))  # (K, m), as those of y/unit
        self.log_std = torch.from_numpy((np.log(std[self.used]) - log_unit).mean(2))
        self.var, self.apart = (
            torch.from_numpy(np.square(a)) for a in (std[self.used] / unit, apart)
        )
        self.square, self.weight = torch.from_numpy(np.square(error)), torch.from_numpy(weight)
        priors = [CERTAINTY_PRIOR, AGREED_SCALE_PRIOR, TAIL_PRIOR, DISAGREEMENT_PRIOR]
        centre, spread = np.array(priors).T
        rows_for_each = np.full(K + 1, WEIGHT_PRIOR)
        self.start = np.concatenate([np.log(w[self.used]), [START_TOGETHER], centre])
        if before is not None:
            self.start, centre, spread = before, before[-4:], NARROWING * spread
            rows_for_each = rows_for_each + TRUST_IN_ALL * softmax(before[:-4])
        self.rows_for_each, self.centre, self.spread = (
            torch.from_numpy(a) for a in (rows_for_each, centre, spread)
        )
        limits = [CERTAINTIES, LOG_SCALES, TAIL_BOUNDS, LOG_DISAGREEMENTS]
        self.bounds = np.array([LOG_WEIGHTS] * (K + 1) + limits)

    def best(self) -> np.ndarray | None:
        """Return the most probable θ; None if the search was interrupted or met no number."""
        with torch.enable_grad():
            found = Search(self, TAIL_LIMITS).run(LBFGS, self.start, self.bounds)
        is_sound = found.status != "interrupted" and math.isfinite(found.value)
        return found.theta if is_sound else None

    def __call__(self, values: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats, up to a constant, and the gradient."""
        at = torch.tensor(values, dtype=torch.float64, device="cpu", requires_grad=True)
        value = self.weight @ self.densities(at) + self.rows_for_each @ at[:-4].log_softmax(0)
        value = value - deviation(at[-4:], (self.centre, self.spread)).sum()
        return value.item(), torch.autograd.grad(value, at)[0].numpy()

    def densities(self, at: Tensor) -> Tensor:
        """Return log densities of rows, (m,)."""
        log_w, (tau, log_r, tail, log_lambda) = at[:-4], at[-4:]
        w = log_w[:-1].softmax(0)
        terms = self.var + log_lambda.exp() * self.apart
        log_s = log_r + 0.5 * torch.einsum("k,kmp->mp", w, terms).log()
        agreed = log_t(self.square * (-2.0 * log_s).exp(), tail).sum(1) - log_s.sum(1)
        log_p = torch.cat([self.log_p, agreed[None]])
        log_std = torch.cat([self.log_std, log_s.mean(1)[None]])
        log_pi = (log_w[:, None] - tau * log_std).log_softmax(0)
        return (log_pi + log_p).logsumexp(0)

    def parameters(self, theta: np.ndarray) -> RowWeights:
        """Return the parameters, with no weight for models that have none by stacking."""
        log_w, (tau, log_r, tail, log_lambda) = theta[:-4], theta[-4:].tolist()
        log_weight = np.full(len(self.used) + 1, -np.inf)
        log_weight[np.append(self.used, True)] = log_softmax(log_w)
        return RowWeights(
            np.exp(log_weight), tau, math.exp(log_r), 1.0 / tail, math.exp(log_lambda)
        )


def log_t(square: Tensor, tail: Tensor) -> Tensor:
    """Return the log density of a Student-t distribution of variance 1, for squared errors."""
    half = 0.5 * (1.0 / tail + 1.0)
    odds = tail / (1.0 - 2.0 * tail)  # over ν − 2
    normaliser = torch.lgamma(half) - torch.lgamma(half - 0.5) + 0.5 * (odds / math.pi).log()
    return normaliser - half * torch.log1p(square * odds)
