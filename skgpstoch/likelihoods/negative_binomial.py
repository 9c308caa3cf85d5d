"""Likelihood for counts that vary more than Poisson counts do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.nn import functional as F

from ..maths.gaussian import Marginals, quadrature_nodes
from .base import Gradients, in_type_of, largest, named
from .by_row import ScaledByRow
from .counts import COUNT_GAMMA_NODES, Poisson, by_narrower
from .logistic import expected_log, log_expectations
from .real import log_parameter, numbers

START_DISPERSION = 1.0
MOST_SHAPE = 1e15
"""Largest 1/α: counts up to 10¹³ then vary at most 1 % more than Poisson counts."""
STIRLING = 100.0  # 1/α from which Stirling's series is exact to rounding


@named("negative_binomial")
class NegativeBinomial(ScaledByRow, Poisson):
    """Negative binomial likelihood [1]_ for counts y with the mean exposure·exp(f).

    The variance given f is the mean plus α times its square: the rate is multiplied by a gamma
    variable of mean 1 and variance α, or α times the square of a row's ratio. Poisson counts with
    an uncertain log-rate can vary as much, but their mean grows like exp(v/2) with its variance,
    and counts near 0 do not tell how long the tail is that makes the mean.

    Parameters
    ----------
    dispersion : float or Tensor of shape (P,), default=1.0
        Initial α; learned. Counts are Poisson counts at 0, and nearly so at 10⁻¹⁵, which is taken
        for anything less.
    exposure : float or Tensor of shape (N, 1), default=None
        Time, area or population in which y was counted; None is 1. Estimators pass the exposures of
        their rows to :meth:`given`.

    References
    ----------
    .. [1] A. C. Cameron, P. K. Trivedi, "Regression Analysis of Count Data", 2nd edition, Cambridge
       University Press, 2013: the model NB2, with the variance μ + αμ².

    Examples
    --------
    >>> from skgpstoch.likelihoods import NegativeBinomial
    >>> NegativeBinomial(0.5)
    NegativeBinomial(dispersion=0.5)
    """

    learns_dispersion: ClassVar[bool] = True
    row_attributes: ClassVar[tuple[str, ...]] = ("ratio", "exposure")

    def __init__(
        self, dispersion: Tensor | float = START_DISPERSION, exposure: float | Tensor | None = None
    ) -> None:
        super().__init__("exp", exposure)
        self.log_dispersion = log_parameter("dispersion", dispersion)  # (P,)

    def extra_repr(self) -> str:
        _link, *exposure = super().extra_repr().split(", ")
        return ", ".join([f"dispersion={numbers(self.dispersion)}", *exposure])

    @property
    def dispersion(self) -> Tensor:
        """α, of shape (P,)."""
        return self.log_dispersion.exp()

    @property
    def shape(self) -> Tensor:
        """1/α, of shape (P,), in float64; once rows are set, (N, P) or (S, N, P)."""
        return self.times_ratio((-self.log_dispersion.double()).exp(), -2).clamp_max(MOST_SHAPE)

    def dispersed(self, log_factor: float) -> NegativeBinomial:
        """Return a copy whose α is larger by a factor."""
        other = copy.deepcopy(self)
        other.log_dispersion.data.add_(log_factor)
        return other

    def _log_odds(self, f: Tensor) -> Tensor:
        """Return log(rate·α)."""
        return self.log_rate(f.double()) - self.shape.log()

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log Γ(y + 1/α) − log Γ(1/α) − log y! + y·x − (y + 1/α)·log(1 + exp(x)).

        x is log(rate·α).
        """
        x = self._log_odds(f)
        return self._of_log_odds(y.double(), x, -_softplus(x)).to(f.dtype)

    def _of_log_odds(self, y: Tensor, x: Tensor, log_g: Tensor) -> Tensor:
        """Return log p(y | f), or its expectation, from x and log g(−x) or theirs."""
        k = self.shape
        constant = log_rising(y, k) - torch.lgamma(y + 1.0)
        return constant + y * (x + k.log()) + (y + k) * log_g

    def derivatives(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        k, x = self.shape, self._log_odds(f)
        p = torch.sigmoid(x)
        return y * torch.sigmoid(-x) - k * p, -(y + k) * p * torch.sigmoid(-x)

    def by_log_dispersion(self, y: Tensor, f: Tensor) -> Tensor:
        """Return the derivative of log p(y | f) by log α."""
        k, x = self.shape, self._log_odds(f)
        return k * (_softplus(x) - rising_slope(y, k)) - (y + k) * torch.sigmoid(x)

    def mode(self, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
        """Search between μ and the mode of Poisson counts, whose slope is larger by 1 + rate·α."""
        far, _ = super().mode(y, q)
        low, high = torch.minimum(far, q.mean), torch.maximum(far, q.mean)
        return self._mode_within(low, high, y, q)

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean λ = E[rate] and the variance λ + Var(rate) + α E[rate²] of the counts."""
        mean, var = super().moments(q)
        log_square = 2.0 * self.log_rate(q.mean + q.var) - self.shape.log().to(q.mean)
        most = largest(q.mean.dtype)
        return Marginals(mean, (var + log_square.exp()).clamp_max(most))

    def variance_and_kurtosis(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        k = self.shape
        variance = rate + rate.square() / k
        return variance, 6.0 / k + 1.0 / variance

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a Poisson count whose rate is multiplied by a gamma variable."""
        k = self.shape.detach().expand(f.shape).contiguous()
        gamma = torch._standard_gamma(k, generator=generator) / k
        return super().sample(f + gamma.log().to(f), generator)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Use log(1 + exp(x)) = −log g(−x), whose expectation is exact (:mod:`.logistic`)."""
        x = self._log_odds(q.mean)
        value = self._of_log_odds(y.double(), x, expected_log(Marginals(-x, q.var.double())))
        return value.mean(0).sum(-1).to(q.mean.dtype)

    @torch.no_grad()
    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives.

        They are y − (y + 1/α) E[g(x)] and −½(y + 1/α) E[g(x)g(−x)].
        """
        x, y = self._log_odds(q.mean), y.double()
        log_g, of_g, d_var = log_expectations(Marginals(-x, q.var.double()))
        value, n = self._of_log_odds(y, x, log_g), y + self.shape
        return in_type_of(q, value[0].sum(-1), (y - n * of_g)[0], (n * d_var)[0])

    def own_slopes(self, y: Tensor, f: Tensor, log_weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        if not (torch.is_grad_enabled() and self.shape.requires_grad):
            return []
        with torch.no_grad():
            by_alpha = (log_weights.softmax(0) * self.by_log_dispersion(y, f)).sum(0)
        slopes: list[tuple[Tensor, Tensor]] = [(self.log_dispersion, by_alpha)]
        if self.ratio is not None:
            slopes += [(self.ratio, 2.0 * by_alpha / self.ratio.detach())]
        return slopes

    def high_rate(self, q: Marginals, probability: float) -> Tensor:
        k = self.shape.detach().cpu().numpy()
        gamma = special.gammainccinv(k, 0.5 * probability) / k
        rate = super().high_rate(q, 0.5 * probability)
        return rate * torch.as_tensor(gamma, dtype=rate.dtype, device=rate.device)

    def distribution(self, q: Marginals) -> Callable[[np.ndarray], np.ndarray]:
        """Return P(Y ≤ y) as a function of y (N, P) that is smooth between counts.

        The probability is E_f[P(Y ≤ y | f)], and also P(log(rate(f)·α) ≤ T), where T is minus the
        logit of a variable of Beta(1/α, y + 1). As for Poisson counts, the integral is over the
        narrower of the two.
        """
        mean, var = (a.detach().cpu().numpy() for a in q.double().resolved())
        std, k = np.sqrt(var), self.shape.detach().expand(q.mean.shape).cpu().numpy()
        f, log_weights = quadrature_nodes(q.double(), 64)
        x = self._log_odds(f.detach()).detach().cpu().numpy()
        p, is_large = special.expit(-np.abs(x)), x > 0.0
        width_of_k = special.polygamma(1, k)
        weights = log_weights.exp().cpu().numpy()
        shift = self._log_odds(torch.zeros_like(q.mean.double())).detach().cpu().numpy()

        def cdf(y: np.ndarray) -> np.ndarray:
            n = np.broadcast_to(y + 1.0, k.shape)

            def over_f(some: np.ndarray) -> np.ndarray:
                a, b, is_above = k[some], n[some], is_large[:, some]
                shapes = np.where(is_above, a, b), np.where(is_above, b, a)
                at_f = special.betainc(*shapes, p[:, some])  # p ≤ ½ has all digits
                return (weights[:, 0, 0] * np.where(is_above, at_f, 1.0 - at_f)).sum(0)

            def over_t(some: np.ndarray) -> np.ndarray:
                t, of_t = logit_beta_nodes(k[some], n[some])  # (K, ·)
                return (of_t * special.ndtr((t - (shift + mean)[some]) / std[some])).sum(0)

            width = np.sqrt(width_of_k + special.polygamma(1, y + 1.0))
            return by_narrower(std < width, over_f, over_t)

        return cdf


def logit_beta_nodes(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of −logit(B) with B ~ Beta(a, b): trapezoids."""
    a, b = np.broadcast_arrays(a, b)
    # It is the difference of two Gamma variables' logarithms, which reach farther down than up.
    of_a, of_b = (30.0 / shape + np.sqrt(60.0 / shape) for shape in (a, b))
    low, high = -of_b - np.log1p(of_a), of_a + np.log1p(of_b)
    unit = np.linspace(0.0, 1.0, COUNT_GAMMA_NODES).reshape(-1, *[1] * a.ndim)
    u, start = low + (high - low) * unit, np.log(b / a)  # u is from the mode of t
    log_weights, is_near = np.empty_like(u), np.minimum(a, b) > 1.0
    near, few_a, few_b = u[:, is_near], a[is_near], b[is_near]
    up, down = (c / (few_a + few_b) * np.expm1(x) for c, x in ((few_b, near), (few_a, -near)))
    log_weights[:, is_near] = -few_a * np.log1p(up) - few_b * np.log1p(down)  # keeps all digits
    t, few_a, few_b = (start + u)[:, ~is_near], a[~is_near], b[~is_near]
    far = -few_a * np.logaddexp(0.0, t) - few_b * np.logaddexp(0.0, -t)
    log_weights[:, ~is_near] = far - far.max(0) if far.size else far
    weights = np.exp(log_weights)
    return start + u, weights / weights.sum(0)


def log_rising(y: Tensor, k: Tensor) -> Tensor:
    """Return log Γ(y + k) − log Γ(k) − y·log k, which is 0 for k = ∞."""
    small, great = k.clamp_max(STIRLING), k.clamp_min(STIRLING)
    exact = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
    series = (y + great - 0.5) * torch.log1p(y / great) - y + _stirling(y + great)
    return torch.where(k < STIRLING, exact, series - _stirling(great))


def rising_slope(y: Tensor, k: Tensor) -> Tensor:
    """Return the derivative of :func:`log_rising` by k."""
    small, great = k.clamp_max(STIRLING), k.clamp_min(STIRLING)
    exact = torch.digamma(y + small) - torch.digamma(small) - y / small
    n, u = y + great, y / great
    series = torch.log1p(u) - u + 0.5 * u / n + _stirling_slope(n) - _stirling_slope(great)
    return torch.where(k < STIRLING, exact, series)


def _stirling(z: Tensor) -> Tensor:
    """Return log Γ(z) − (z − ½)·log z + z − ½ log 2π."""
    return (1.0 / 12.0 - (1.0 / 360.0 - z**-2 / 1260.0) * z**-2) / z


def _stirling_slope(z: Tensor) -> Tensor:
    return -(1.0 / 12.0 - (1.0 / 120.0 - z**-2 / 252.0) * z**-2) * z**-2


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40.0)
