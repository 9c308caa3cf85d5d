"""Heavy-tailed noise, for robust regression: Laplace and Student-t."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.special import stdtrit
from torch import Tensor

from ..data.rows import Rows
from ..maths.first_order import with_slopes
from ..maths.gaussian import LOG_2PI, Marginals, log_density, log_half_moment, ndtr, trapezoid_nodes
from .base import Gradients, in_type_of, is_learned, named
from .real import AdditiveNoise, gaussian_draws, log_parameter, numbers
from .rejection import Draws, Envelope, accept_reject


class HeavyTailed(AdditiveNoise):
    """Base class of noise s·ε with a learned scale s and heavy tails."""

    log_scale: Tensor

    @property
    def scale(self) -> Tensor:
        """Scale s of the noise, of shape (P,); once rows are set, (N, P) or (S, N, P)."""
        return self.times_ratio(self.log_scale.exp())

    @property
    def unit_deviation(self) -> Tensor | float:
        """Median absolute deviation of ε."""
        raise NotImplementedError(f"{type(self).__name__} must define unit_deviation")

    @torch.no_grad()
    def initialise(self, rows: Rows) -> None:
        """Match the median absolute deviation of y, or the mean one if most of y is equal."""
        deviation = (rows.y - rows.median(rows.y)).abs()
        mad, mean = rows.median(deviation), rows.mean(deviation)
        scale = torch.where(mad > 0.0, mad, mean) / self.unit_deviation
        scale = torch.where(scale > 0.0, scale.log(), self.log_scale)
        self.log_scale.copy_(scale.view_as(self.log_scale))


@named("laplace")
class Laplace(HeavyTailed):
    """Laplace noise for robust regression: y = f + ε with p(ε) = exp(−|ε|/s)/(2s).

    Outliers count as with an absolute loss, which grows linearly in the error.

    Parameters
    ----------
    scale : float or Tensor of shape (P,), default=1.0
        Initial s, in the units of y; learned. The variance of ε is 2s².

    Examples
    --------
    >>> from skgpstoch.likelihoods import Laplace
    >>> Laplace(scale=0.5)
    Laplace(scale=0.5)
    """

    def __init__(self, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.log_scale = log_parameter("scale", scale)  # (P,)

    def extra_repr(self) -> str:
        return f"scale={numbers(self.scale)}"

    @property
    def tail_scale(self) -> Tensor:
        """The scale s of the exponential tails, in the units of y."""
        return self.scale

    @property
    def noise_variance(self) -> Tensor:
        """The variance 2s² of ε, of the shape of s."""
        return 2.0 * self.scale.square()

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return −|y − f|/s − log 2s, elementwise."""
        return -(y - f).abs() / self.scale - self.scale.log() - math.log(2.0)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw f + s·(e₁ − e₂) with two exponential variables e₁ and e₂."""
        e = torch.empty(2, *f.shape, dtype=f.dtype, device=f.device)
        e.exponential_(generator=generator)
        return f + self.scale * (e[0] - e[1])

    def noise_quantile(self, probability: float) -> Tensor:
        """Return ±s·log(2·min(probability, 1 − probability))."""
        size = math.log(2.0 * min(probability, 1.0 - probability))
        return self.scale * math.copysign(size, probability - 0.5)

    def _halves(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the parts of log E[exp(−|y − f|/s)] from f < y and from f > y: (2, S, N, P)."""
        mean, var = Marginals((y - q.mean) / self.scale, q.var / self.scale.square()).resolved()
        return log_half_moment(torch.stack([mean, -mean]), var)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return Φ((y − μ)/√v), corrected by half of each exponential tail."""
        below, above = self._halves(y, q).exp()
        mean, var = q.resolved()
        return ndtr((y - mean) / var.sqrt()) - 0.5 * (below - above)

    @torch.no_grad()
    def maximise_(self, rows: Rows, q: Marginals, bounds: tuple[float, float]) -> None:
        """Set s to E|y − f|, averaged over the rows."""
        noise = 2.0 * rows.mean(_mean_distance(rows.y, q)[0]).square()
        self.log_scale.copy_(0.5 * (0.5 * noise.clamp(*bounds)).log())

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return −E|y − f|/s − log 2s, from the mean of a folded normal distribution."""
        folded = _mean_distance(y, q)
        return (-folded / self.scale - self.scale.log() - math.log(2.0)).mean(0).sum(-1)

    @torch.no_grad()
    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives, erf((y − μ)/√(2v))/s and −N(y | μ, v)/s."""
        (mean,), (var,) = q.resolved()
        std = var.sqrt()
        z = (y - mean) / std
        d_mean = torch.erf(z / math.sqrt(2.0)) / self.scale
        d_var = -_normal_pdf(z) / (std * self.scale)
        return in_type_of(q, self.expected_log_prob(y, q), d_mean, d_var)

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the sum of both halves of the density, each in closed form for any v/s²."""
        return torch.logsumexp(self._halves(y, q), 0) - self.scale.log() - math.log(2.0)

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives.

        They are (P(f < y) − P(f > y))/s and ½/s² − p(f = y)/s under q(f) p(y | f).
        """
        y_double, exact = y.double(), Marginals(*(a.detach() for a in q.double().resolved()))
        halves = self._halves(y_double, exact)[:, 0]  # (2, N, P)
        log_sum = torch.logsumexp(halves, 0)
        value = (log_sum - self.scale.log() - math.log(2.0)).sum(-1)
        with torch.no_grad():
            below, above = (halves - log_sum).exp()
            at = (log_density(y_double, exact.mean[0], exact.var[0]) - log_sum).exp()
            scale = self.scale.double()
            d_mean = (below - above) / scale
            d_var = (0.5 / scale - at) / scale
        return in_type_of(q, value, d_mean, d_var)

    @property
    def unit_deviation(self) -> float:
        """log 2."""
        return math.log(2.0)


@named("student_t")
class StudentT(HeavyTailed):
    """Student-t noise for robust regression: y = f + s·ε with ε ~ t_ν.

    The farther away an outlier is, the less it influences f.

    Parameters
    ----------
    scale : float or Tensor of shape (P,), default=1.0
        Initial s, in the units of y; learned.
    df : float or Tensor of shape (P,), default=4.0
        Initial degrees of freedom ν; learned. The parameter is log(ν − 2), so ν stays above 2 and
        the variance s²ν/(ν − 2) exists.

    References
    ----------
    P. Jylänki, J. Vanhatalo and A. Vehtari, "Robust Gaussian Process Regression with a Student-t
    Likelihood", JMLR 12, 2011.

    Examples
    --------
    >>> from skgpstoch.likelihoods import StudentT
    >>> StudentT(scale=0.5)
    StudentT(scale=0.5, df=4)
    """

    log_concave = False
    tail_scale = math.inf

    def __init__(self, scale: Tensor | float = 1.0, df: Tensor | float = 4.0) -> None:
        super().__init__()
        self.log_scale = log_parameter("scale", scale)  # (P,)
        self.log_df_minus_2 = log_parameter("df", df, least=2.0)  # (P,)

    def extra_repr(self) -> str:
        return f"scale={numbers(self.scale)}, df={numbers(self.df)}"

    @property
    def df(self) -> Tensor:
        """Degrees of freedom ν > 2, of shape (P,)."""
        return 2.0 + self.log_df_minus_2.exp()

    @property
    def noise_variance(self) -> Tensor:
        """The variance s²ν/(ν − 2) of the noise, of the shape of s."""
        return self.scale.square() * (1.0 + 2.0 * (-self.log_df_minus_2).exp())

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log(t_ν((y − f)/s)/s), elementwise."""
        square = ((y - f) / self.scale).square() / self.df
        return self._log_constant() - 0.5 * (self.df + 1.0) * torch.log1p(square)

    def _log_constant(self) -> Tensor:
        """Return log p(y | f) at y = f."""
        return self._log_normaliser() - self.scale.log()

    def _log_normaliser(self) -> Tensor:
        """Return log p(y | f) at y = f if s = 1."""
        df = self.df.double()  # differences of log-gamma functions
        ratio = torch.lgamma(0.5 * (df + 1.0)) - torch.lgamma(0.5 * df)
        return (ratio - 0.5 * (df * math.pi).log()).to(self.df.dtype)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw f + s·t by Bailey's polar method (Mathematics of Computation 62, 1994)."""
        u, v = torch.rand(2, *f.shape, generator=generator, dtype=f.dtype, device=f.device)
        radius = (self.df * torch.expm1(-2.0 / self.df * torch.log1p(-u))).sqrt()
        return f + self.scale * radius * torch.cos(2.0 * math.pi * v)

    def noise_quantile(self, probability: float) -> Tensor:
        """Return s·t_ν⁻¹(probability)."""
        t = stdtrit(self.df.detach().cpu().double().numpy(), probability)
        return self.scale * torch.as_tensor(t, device=self.scale.device)

    def _precision_nodes(
        self, log_h: Callable[[Tensor], Tensor], low: Tensor, quick: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return nodes u = log τ for E_τ[exp(log_h(u))], and their log weights without log_h.

        t_ν is a normal distribution whose precision τ has the Gamma(ν/2, ν/2) distribution. With
        `quick` there are fewer nodes, which give about three digits, or two if ν is close to 2.
        """
        half = 0.5 * self.df.double()

        def log_gamma(u: Tensor) -> Tensor:  # log p(u), but for the constant
            return half * (u - torch.expm1(u))

        depth, n_nodes, n_zooms = (16.0, 24, 1) if quick else (40.0, 96, 2)
        width = depth / half + (2.0 * depth / half).sqrt()
        u, log_step = trapezoid_nodes(
            lambda u: log_gamma(u) + log_h(u),
            low - width,
            torch.log1p(width).expand_as(low),
            n_nodes,
            n_zooms,
        )
        constant = half * half.log() - half - torch.lgamma(half)
        return u, log_step + constant + log_gamma(u)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return E_τ[Φ((y − μ)/√(v + s²/τ))]."""
        u, log_weights = self._precision_nodes(torch.zeros_like, torch.zeros_like(self.df.double()))
        u, log_weights = (a.reshape(len(a), 1, 1, -1) for a in (u, log_weights))  # (K, 1, 1, P)
        std = (q.var + self.scale.square() * (-u).exp()).sqrt()
        return (log_weights.exp() * ndtr((y - q.mean) / std)).sum(0)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Use E log(1 + x²/c) = ∫ (1 − E exp(−t·x²/c))·exp(−t)/t dt with x = y − f and c = νs².

        This is one smooth integral over log t. It is accurate however wide q is relative to s.
        """
        c = self.df * self.scale.square()
        a, b = (y - q.mean).square() / c, q.var / c
        with torch.no_grad():
            low = -32.0 - (a + b).clamp_min(1.0).log()
            unit = torch.linspace(0.0, 1.0, 128, dtype=a.dtype, device=a.device)
            step = (math.log(40.0) - low) / 127
            t = (low + (math.log(40.0) - low) * unit.view(-1, 1, 1, 1)).exp()
        spread = 1.0 + 2.0 * t * b
        log_mgf = -0.5 * spread.log() - t * a / spread
        expected = -(torch.expm1(log_mgf) * (-t).exp()).sum(0) * step
        return (self._log_constant() - 0.5 * (self.df + 1.0) * expected).mean(0).sum(-1)

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log E_τ[N(y | μ, v + s²/τ)].

        The integrand is smooth in log τ for any v/s², whereas it is not smooth in f.
        """
        (mean, var), y_double = q.double(), y.double()
        s2 = self.scale.double().square()

        def log_h(u: Tensor) -> Tensor:
            return log_density(y_double, mean, var + s2 * (-u).exp())

        u, log_weights = self._precision_nodes(log_h, self._low(y_double - mean, s2))
        return torch.logsumexp(log_weights + log_h(u), 0)

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        return super().log_predictive(y, q).to(q.mean.dtype)

    @torch.no_grad()
    def _low(self, error: Tensor, s2: Tensor) -> Tensor:
        """Return the mode of p(log τ | y, f = μ), or 0 if less; outliers have small precisions."""
        df = self.df.double()
        return torch.log((df + 1.0) / (df + error.square() / s2)).clamp_max(0.0)

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Average, over p(τ | y), the derivatives for Gaussians of variance V = v + s²/τ.

        In float32, which training uses, there are fewer nodes.
        """
        with torch.no_grad():
            s2, error, var = self.scale.double().square(), (y - q.mean[0]).double(), q.var[0]
            u, log_weights = self._precision_nodes(
                lambda u: log_density(error, torch.zeros_like(error), var + s2 * (-u).exp()),
                self._low(error, s2),
                quick=q.mean.dtype == torch.float32,
            )
            inverse = (-u).exp()
            V = var + s2 * inverse  # (J, N, P)
            square = error.square() / V
            log_p = log_weights - 0.5 * (LOG_2PI + V.log() + square)
            value = torch.logsumexp(log_p, 0)
            p = (log_p - value).exp()
            by_mean = error * (p / V).sum(0)
            by_V = 0.5 * p * (square - 1.0) / V
            total = value.sum(-1)
            gradients = total, by_mean, by_V.sum(0)
        if not is_learned(self):
            return in_type_of(q, *gradients)
        # d/dν of the density of u, at nodes that stay.
        half = 0.5 * self.df.detach().double()
        by_half = (p * (half.log() + 1.0 + u - u.exp() - torch.digamma(half))).sum(0)
        given = (self.scale.double().square(), (by_V * inverse).sum(0)), (0.5 * self.df, by_half)
        return in_type_of(q, with_slopes(total, *given), *gradients[1:])

    def product_envelope(self, y: Tensor, q: Marginals) -> Envelope:
        """Return an upper bound of p(u | y), u = log τ: a log-concave and a decreasing factor."""
        half, s2 = 0.5 * self.df.double(), self.scale.double().square()
        mean, var = q.mean[0], q.var[0]

        def log_concave(u: Tensor) -> Tensor:  # log p(u) − ½ log(v + s²/τ)
            return half * (u - torch.expm1(u)) - 0.5 * (var + s2 * (-u).exp()).log()

        def decreasing(u: Tensor) -> Tensor:
            return -0.5 * (y - mean).square() / (var + s2 * (-u).exp())

        # Below the least of the modes, that of f = y, p(u) falls like exp(½ν·u).
        width = 40.0 / half + (80.0 / half).sqrt()
        low = self._low(y - mean, s2) - width
        return Envelope(log_concave, low, torch.log1p(width).expand_as(low), decreasing)

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        """Draw first the precision of the noise of y, then f, which is Gaussian given it."""
        envelope = self.product_envelope(y, q)
        half = 0.5 * self.df.double()
        residual, var = (y - q.mean[0]).double(), q.var[0].double()
        s2 = self.scale.double().square().expand_as(residual)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            u, log_height = envelope.draw(rows, generator)
            total = var[rows] + s2[rows] * (-u).exp()
            log_normal = -0.5 * (total.log() + residual[rows].square() / total)
            return u, half * (u - torch.expm1(u)) + log_normal - log_height

        u, n_proposed = accept_reject(propose, n_samples, residual, generator)
        draws = gaussian_draws(y, s2 * (-u).exp(), q, n_samples, generator)
        return draws._replace(n_proposed=n_proposed)

    @property
    def unit_deviation(self) -> Tensor:
        """t_ν⁻¹(¾)."""
        return self.noise_quantile(0.75) / self.scale


def _mean_distance(y: Tensor, q: Marginals) -> Tensor:
    """Return E|y − f|, the mean of a folded normal distribution: (S, N, P)."""
    mean, var = q.resolved()
    d, std = y - mean, var.sqrt()
    z = d / std
    return 2.0 * std * _normal_pdf(z) + d * torch.erf(z / math.sqrt(2.0))


def _normal_pdf(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (z.square() + LOG_2PI))
