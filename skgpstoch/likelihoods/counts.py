"""Likelihood for counts; import it from :mod:`skgpstoch.likelihoods`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.nn import functional as F

from ..data.arrays import row_blocks
from ..data.devices import constants
from ..data.rows import Rows
from ..maths.first_order import with_slopes
from ..maths.gaussian import (
    Marginals,
    log_density,
    log_root,
    quadrature_nodes,
    trapezoid_nodes,
)
from ..maths.least_counts import least_counts
from .base import (
    REACH,
    Gradients,
    Likelihood,
    check_link,
    check_probability,
    in_type_of,
    largest,
    named,
)

COUNT_MODE_STEPS = 20

COUNT_TRAINING_NODES = 48

COUNT_PREDICTIVE_NODES = 96
"""Quadrature nodes for gradients and for predictive densities."""

COUNT_GAMMA_NODES = 128
"""Quadrature nodes over a Gamma distribution; they give count probabilities to 1e-9."""

MOST_COUNT = 1e15
"""Largest quantile: up to here float64 holds counts, and sums of a few, exactly."""


@named("poisson")
class Poisson(Likelihood):
    """Poisson likelihood for counts y with the rate exposure·g(f).

    In float64 the exp link's E[rate] = exposure·exp(μ + v/2) is finite if μ + v/2 < 709, and the
    variance of y is finite if μ + v < 354. Above these limits :meth:`moments` are close to the
    largest float64, and E_q[log p(y | f)] is −inf. The predictive log density is always finite; its
    error is below 10⁻⁶ for v up to 100, and 10⁻³ at v = 1000. Counts and quantiles are at most
    10¹⁵.

    Parameters
    ----------
    link : {"exp", "softplus"}, default="exp"
        The function g: exp(f), or log(1 + exp(f)), which grows no faster than f.
    exposure : float or Tensor of shape (N, 1), default=None
        Time, area or population in which y was counted; None is 1. Estimators pass the exposures of
        their rows to :meth:`given`.

    Examples
    --------
    >>> from skgpstoch.likelihoods import Poisson
    >>> Poisson("softplus")
    Poisson(link='softplus')
    """

    is_discrete = True
    links: ClassVar[tuple[str, ...]] = ("exp", "softplus")
    row_attributes: ClassVar[tuple[str, ...]] = ("exposure",)

    def __init__(self, link: str = "exp", exposure: float | Tensor | None = None) -> None:
        super().__init__()
        self.link = check_link(link, self.links)
        if exposure is not None:
            given = torch.as_tensor(exposure, dtype=torch.float64, device="cpu")
            if not bool((given > 0.0).all()):
                raise ValueError(f"exposure must be positive, got {exposure!r}.")
        self.exposure = exposure
        if link == "exp":
            # ±2 deviations span a factor of e⁴⁰, more than counts do; any variance beyond only
            # multiplies E[rate], by the exponential of half of it.
            self.most_prior_variance = 100.0

    def extra_repr(self) -> str:
        exposure = f", exposure={self.exposure:g}" if isinstance(self.exposure, float | int) else ""
        return f"link={self.link!r}{exposure}"

    def given(self, exposure: Tensor | None = None, noise: Tensor | None = None) -> Poisson:
        super().given(noise=noise)
        return self if exposure is None else self._knowing(exposure=exposure)

    def _log_exposure(self, like: Tensor) -> Tensor:
        if isinstance(self.exposure, Tensor):
            return self.exposure.to(like).log()
        return constants(float, self.exposure or 1.0, like=like)[0].log()

    def log_rate(self, f: Tensor) -> Tensor:
        """Return log(exposure·g(f))."""
        return self._log_exposure(f) + (f if self.link == "exp" else _log_softplus(f))

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return y·log rate − rate − log y!, elementwise."""
        log_rate = self.log_rate(f)
        return y * log_rate - log_rate.exp() - torch.lgamma(y + 1.0)

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean λ = E[rate] and the variance λ + Var(rate) of the counts.

        With the exp link the rate is lognormal; otherwise its moments are computed by quadrature.
        """
        if self.link == "exp":
            log_mean = self.log_rate(q.mean + 0.5 * q.var)
            log_excess = 2.0 * log_mean + (q.var + torch.log(-torch.expm1(-q.var)))  # e^v − 1
            most = math.log(largest(q.mean.dtype))
            mean, excess = log_mean.clamp_max(most).exp(), log_excess.clamp_max(most).exp()
            return Marginals(mean, mean + excess)
        f, log_weights = quadrature_nodes(q, 100)
        rate, weights = self.log_rate(f).exp(), log_weights.exp()
        mean = (weights * rate).sum(0)
        return Marginals(mean, mean + (weights * (rate - mean).square()).sum(0))

    def variance_and_kurtosis(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variance of counts with this rate, and their excess kurtosis."""
        return rate, 1.0 / rate

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a count for each f; return the rate itself above 10¹⁵, where counts hardly vary."""
        rate = self.log_rate(f).exp().clamp_max(largest(f.dtype))
        counts = torch.poisson(rate.clamp_max(MOST_COUNT), generator=generator)
        return torch.where(rate > MOST_COUNT, rate, counts)  # torch draws 64-bit integers

    def _mean_rate(self, q: Marginals) -> Tensor:
        """Return E[rate] with the exp link; training steps back where it overflows to infinity."""
        return self.log_rate(q.mean + 0.5 * q.var).exp()

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Use the closed form E[exp(f)] = exp(μ + v/2) with the exp link, else quadrature."""
        if self.link == "softplus":
            return super().expected_log_prob(y, q)
        rate = self._mean_rate(q)
        return (y * self.log_rate(q.mean) - rate - torch.lgamma(y + 1.0)).mean(0).sum(-1)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives; with the exp link y − E[rate] and −½E[rate]."""
        if self.link == "softplus":
            return super().expected_gradients(y, q)
        with torch.no_grad():
            rate = self._mean_rate(q)[0]
            return self.expected_log_prob(y, q), y - rate, -0.5 * rate

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Use the trapezoid rule around the mode of the log-concave p(y | f)·q(f), in float64.

        The nodes are f = mode + w·sinh(x), where w is the width at the mode. They are dense at the
        mode and reach far if v ≫ w².
        """
        nodes = self.joint_nodes(y.double(), of_nodes(q), COUNT_PREDICTIVE_NODES)
        log_p, d_mean, d_var = self._log_mean(y.double(), *nodes)
        of_q = (q.mean, d_mean), (q.var, d_var)
        return with_slopes(log_p, *of_q, *self.own_slopes(y.double(), *nodes))

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        return super().log_predictive(y, q).to(q.mean.dtype)

    @torch.no_grad()
    def _log_mean(self, y: Tensor, f: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log E_q[p(y | f)], and its derivatives by mean and variance, each (S, N, P).

        By Stein's lemma, the derivatives are E[g′] and ½E[g″ + g′²] under q(f) p(y | f), where
        g = log p(y | f).
        """
        log_sum = torch.logsumexp(log_weights, 0)
        weights = (log_weights - log_sum).exp()
        first, second = self.derivatives(y, f)
        d_mean = (weights * first).sum(0)
        return log_sum, d_mean, 0.5 * (weights * (second + first.square())).sum(0)

    def joint_nodes(self, y: Tensor, q: Marginals, n_nodes: int) -> tuple[Tensor, Tensor]:
        """Return nodes f of ∫ p(y | f) q(f) df, and its terms' logarithms, each (K, S, N, P)."""

        def log_joint(f: Tensor) -> Tensor:
            return self.log_prob(y, f) + log_density(f, *q)

        with torch.no_grad():
            mode, width = self.mode(y, q)
            reach = torch.asinh((60.0 * q.var).sqrt() / width)
            x, log_step = trapezoid_nodes(
                lambda x: log_joint(mode + width * x.sinh()) + x.cosh().log(),
                -reach,
                reach,
                n_nodes,
            )
            f = mode + width * x.sinh()
        return f, log_step + (width * x.cosh()).log() + log_joint(f)

    def mode(self, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
        """Return the mode of p(y | f)·q(f), and (−curvature of its logarithm there)^−½."""
        mean, var = q
        log_exposure = self._log_exposure(mean)
        if self.link == "exp":  # y − rate = (f − μ)/v, that is x + exp(x) = b, x = f + shift
            shift = var.log() + log_exposure
            x = log_root(mean + var * y + shift)
            return x - shift, (var.reciprocal() * (1.0 + x.exp())).rsqrt()
        # The slope of log p is between −exposure and y.
        return self._mode_within(mean - var * log_exposure.exp(), mean + var * y, y, q)

    def _mode_within(
        self, low: Tensor, high: Tensor, y: Tensor, q: Marginals
    ) -> tuple[Tensor, Tensor]:
        """Return the mode, which is between two limits, and the width there."""
        mean, var = q
        f = mean.clone()
        for i in range(COUNT_MODE_STEPS):  # bisection: Newton's steps alone can cycle; those polish
            slope, curvature = self.derivatives(y, f)
            slope, curvature = slope - (f - mean) / var, curvature - var.reciprocal()
            low, high = torch.where(slope > 0.0, f, low), torch.where(slope > 0.0, high, f)
            newton = f - slope / curvature
            inside = (newton > low) & (newton < high)
            f = torch.where(inside, newton, 0.5 * (low + high)) if i >= 12 else 0.5 * (low + high)
        return f, (-curvature).rsqrt()

    def derivatives(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivatives of log p(y | f) by f."""
        if self.link == "exp":
            rate = self.log_rate(f).exp()
            return y - rate, -rate
        exposure, s = self._log_exposure(f).exp(), torch.sigmoid(f)
        ratio = (F.logsigmoid(f) - _log_softplus(f)).exp()  # g′/g
        first = y * ratio - exposure * s
        return first, y * ratio * (1.0 - s - ratio) - exposure * s * (1.0 - s)

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return :meth:`log_predictive`, with fewer nodes, and its derivatives."""
        nodes = self.joint_nodes(y.double(), of_nodes(q), COUNT_TRAINING_NODES)
        value, d_mean, d_var = self._log_mean(y.double(), *nodes)
        if own := self.own_slopes(y.double(), *nodes):
            value = with_slopes(value, *own)
        return in_type_of(q, value.sum(-1)[0], d_mean[0], d_var[0])

    def own_slopes(self, y: Tensor, f: Tensor, log_weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return learned parameters, each with the derivative of log E_q[p(y | f)], (S, N, P)."""
        return []

    def product_interval(self, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
        """Return an interval around the mode, away from which q·p falls at least as fast as q."""
        q = of_nodes(q)
        (mode,), _ = self.mode(y.double(), q)
        reach = REACH * q.var[0].sqrt()
        return mode - reach, mode + reach

    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Return the least count k with P(Y ≤ k) ≥ probability, (N, P)."""
        half = 0.5 * (1.0 - check_probability(probability))
        # P(Y > k) ≤ P(rate > r) + P(Y > k | r): with half of the probability each, a bound.
        rate = self.high_rate(q, half).clamp_max(MOST_COUNT)
        tail = -math.log(half)
        high = (rate + (2.0 * rate * tail).sqrt() + tail).amax(0).cpu().numpy() + 1.0
        count = least_counts(self.distribution(q), probability, np.zeros(high.shape), high)
        return torch.as_tensor(count, dtype=q.mean.dtype, device=q.mean.device)

    def high_rate(self, q: Marginals, probability: float) -> Tensor:
        """Return a rate that is exceeded with at most this probability, (S, N, P)."""
        f = q.mean - q.var.sqrt() * float(special.ndtri(probability))
        return self.log_rate(f.detach().double()).exp()

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return P(Y ≤ y), averaged over the components, (1, N, P)."""
        count = np.minimum(np.floor(y.detach().cpu().numpy()), MOST_COUNT)
        below = np.where(count < 0.0, 0.0, self.distribution(q)(np.maximum(count, 0.0)))
        return torch.as_tensor(below, dtype=q.mean.dtype, device=q.mean.device)[None]

    def distribution(self, q: Marginals) -> Callable[[np.ndarray], np.ndarray]:
        """Return P(Y ≤ k) as a function of k (N, P) that is smooth between counts.

        The probability is E_f[P(Y ≤ k | f)], and also P(rate(f) ≤ G) with G ~ Gamma(k + 1). The
        integral is over the narrower of the distributions of rate(f) and G, because the other
        distribution function is smooth on that scale.
        """
        mean, var = (a.detach().cpu().numpy() for a in q.double().resolved())
        std = np.sqrt(var)
        f, log_weights = quadrature_nodes(q.double(), 64)
        rate = self.log_rate(f.detach()).exp().cpu().numpy()
        weights = log_weights.exp().cpu().numpy()
        exposure = self._log_exposure(q.mean.double()).exp().cpu().numpy()
        inverse_link = np.log if self.link == "exp" else _inverse_softplus

        def cdf(k: np.ndarray) -> np.ndarray:
            def over_f(some: np.ndarray) -> np.ndarray:
                shape = np.broadcast_to(k + 1.0, some.shape)[some]
                return np.asarray(
                    (weights[:, 0, 0] * special.gammaincc(shape, rate[:, some])).sum(0)
                )

            def over_gamma(some: np.ndarray) -> np.ndarray:
                gamma, of_gamma = _gamma_nodes(k + 1.0)  # (K, N, P)
                at, of = (
                    np.broadcast_to(a[:, None], (len(a), *some.shape))
                    for a in (inverse_link(gamma / exposure), of_gamma)
                )
                return np.asarray(
                    (of[:, some] * special.ndtr((at[:, some] - mean[some]) / std[some])).sum(0)
                )

            centre = np.maximum(k + 1.0, 1.0)
            low, high = (inverse_link(y / exposure) for y in (centre, centre + np.sqrt(centre)))
            return by_narrower(std < high - low, over_f, over_gamma)

        return cdf

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return g⁻¹ of the overall rate, with half a count added."""
        exposure = self.given(rows.exposure)._log_exposure(rows.y).exp().expand(len(rows), 1)
        parts = (rows.weighted(values).sum(0) for values in (rows.y, exposure))
        n_counts, exposed = rows.total(*parts)
        rate = (n_counts + 0.5) / exposed
        return rate.log() if self.link == "exp" else rate + torch.log(-torch.expm1(-rate))

    def check_targets(self, y: np.ndarray) -> None:
        """Raise a ValueError unless all counts are finite, non-negative integers up to 10¹⁵."""
        wrong = ~(np.isfinite(y) & (y >= 0) & (y == np.floor(y)))
        if wrong.any():
            raise ValueError(
                "y must hold counts (non-negative whole numbers) for the likelihood "
                f"{type(self).__name__}, got {y[wrong].flat[0]!s}. If y holds rates, pass the "
                "counts as y and the time, area or number that they are of as exposure=."
            )
        if (y > MOST_COUNT).any():
            raise ValueError(
                f"y must hold counts of at most {MOST_COUNT:g}, got "
                f"{y.max():g}; count in a larger unit, or model log(y) as a real number."
            )


def limits_of_f(likelihood: Likelihood, rows: Rows) -> Tensor | None:
    """Return a centre, a largest deviation and a highest mean of f far from rows, (3, P).

    None for anything but log-rates of counts. Centre and deviation are those that a lognormal
    distribution of rates would have. Its mean and variance are those of the counts of all rows, but
    the variance is at least the square of the mean. The highest mean of f is that of the largest
    count, plus this deviation.
    """
    if not isinstance(likelihood, Poisson) or likelihood.link != "exp":
        return None
    P = rows.y.shape[1]
    sums = torch.zeros((5, P), dtype=torch.float64, device=rows.y.device)
    highest = torch.full_like(sums[0], -math.inf)
    for block in row_blocks(len(rows.y)):  # which may be read from a file
        some = rows[block].to(torch.float64)
        y, exposed = some.y, likelihood.given(some.exposure)
        e = exposed._log_exposure(y).exp().expand_as(y)
        sums += some.weighted(torch.stack([y, e, y.square(), y * e, e.square()], 1)).sum(0)
        highest = torch.maximum(highest, ((y + 0.5) / e).amax(0))
    rows.total(sums)
    rows.group.max_(highest)
    n, total, yy, ye, ee = sums
    rate = (n + 0.5) / total
    excess = yy - 2.0 * rate * ye + rate.square() * ee - n
    var = torch.log1p((excess / (rate.square() * ee)).clamp_min(1.0))
    centre, std = rate.log() - 0.5 * var, var.sqrt()
    return torch.stack([centre, std, torch.maximum(highest, rate).log() + std])


def prior_variance_limit(likelihood: Likelihood, rows: Rows) -> float:
    """Return the upper bound on the variance that the default kernel learns from rows.

    Two prior deviations of f are at most four of the log-rates that all counts imply.
    """
    most, limits = likelihood.most_prior_variance, limits_of_f(likelihood, rows)
    return most if limits is None else min(most, 4.0 * float(limits[1].square().max()))


OfSome = Callable[[np.ndarray], np.ndarray]
"""Maps a mask of (S, N, P) to probabilities there."""


def by_narrower(is_narrow: np.ndarray, over_f: OfSome, over_y: OfSome) -> np.ndarray:
    """Return probabilities (S, N, P) averaged over components, over f where that is narrower."""
    found = np.empty(is_narrow.shape)
    for some, function in ((is_narrow, over_f), (~is_narrow, over_y)):
        if some.any():
            found[some] = function(some)
    return np.asarray(found.mean(0))


def of_nodes(q: Marginals) -> Marginals:
    """Return q in float64, wide enough for the nodes of an integral over it to be distinct."""
    return q.double().resolved(4096.0)


def _log_softplus(f: Tensor) -> Tensor:
    """Return log log(1 + exp(f))."""
    left = f - 0.5 * f.clamp_max(-18.0).exp()
    right = F.softplus(f.clamp_min(-18.0), threshold=40.0).log()
    return torch.where(f < -18.0, left, right)


def _inverse_softplus(rate: np.ndarray) -> np.ndarray:
    return rate + np.log(-np.expm1(-rate))


def _gamma_nodes(shape: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the Gamma distribution (rate 1): trapezoids in its logarithm."""
    shape = np.maximum(shape, 1.0)
    width = np.sqrt(60.0 / shape)
    low, high = -30.0 / shape - width, np.log1p(30.0 / shape + width)
    unit = np.linspace(0.0, 1.0, COUNT_GAMMA_NODES).reshape(-1, *[1] * shape.ndim)
    u = low + (high - low) * unit
    weights = np.exp(shape * (u - np.expm1(u)))
    return shape * np.exp(u), weights / weights.sum(0)
