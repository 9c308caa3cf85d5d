"""Likelihoods for real-valued y = f + ε."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..maths.gaussian import LOG_2PI, Marginals, inverse, log_density, ndtr, standard_normal
from ..maths.ranked_probability import crps_of_normals
from .base import Gradients, Likelihood, check_probability, component_draws, in_type_of, named
from .by_row import ScaledByRow
from .rejection import Draws


class AdditiveNoise(ScaledByRow):
    """Base class of additive noise, y = f + ε, with symmetric ε and parameters for each output."""

    scale_powers: ClassVar[dict[str, float]] = {"log_scale": 1.0, "log_noise": 2.0}
    """Names of log-parameters → the power of y's unit in which the parameter is measured."""

    @property
    def scales_by_row(self) -> bool:
        """Whether the noise scale can differ between rows (it then uses `times_ratio`)."""
        level = self.noise_variance
        doubled = self.scaled(level.new_full((1, 1), 2.0)).noise_variance
        return not torch.equal(level, doubled.reshape(level.shape))

    def sample_predictive(self, q: Marginals, n_samples: int, generator: torch.Generator) -> Tensor:
        f, each, which = component_draws(q, n_samples, generator)
        return self.of_components(which).sample_around(f, each, generator)

    @property
    def noise_variance(self) -> Tensor:
        """Variance of ε, of shape (P,), in squared units of y."""
        raise NotImplementedError(f"{type(self).__name__} must define noise_variance")

    def noise_quantile(self, probability: float) -> Tensor:
        """Return the quantile of ε, of shape (P,), in the units of y."""
        raise NotImplementedError(f"{type(self).__name__} must define noise_quantile")

    @property
    def scale_names(self) -> list[str]:
        """Names of the parameters that change with the unit of y."""
        return [name for name in self.scale_powers if hasattr(self, name)]

    @torch.no_grad()
    def in_units(self, scale: Tensor) -> AdditiveNoise:
        """Return a copy for a y whose numbers are `scale` (P,) times as large."""
        other = copy.deepcopy(self)
        if not self.scale_names:
            raise NotImplementedError(
                f"{type(self).__name__} has none of the parameters {sorted(self.scale_powers)}: "
                "name those that change with the unit of y in `scale_powers`."
            )
        for name in self.scale_names:
            getattr(other, name).add_(self.scale_powers[name] * scale.log())
        return other

    @torch.no_grad()
    def set_noise_(self, variance: Tensor | float) -> None:
        """Set the variance of ε of every output, in place."""
        factor = variance / self.noise_variance
        self.load_state_dict(self.in_units(factor.sqrt()).state_dict())

    def maximise_(self, rows: Rows, q: Marginals, bounds: tuple[float, float]) -> None:
        """Set the parameters, in place, to maximise E_q[log p(y | f)], with σ² within `bounds`."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form for its noise")

    def sf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return P(Y > y) as P(f + ε ≤ 2μ − y), because components are symmetric."""
        return self.cdf(2.0 * q.mean - y, q)

    def joint_root(self, q: Marginals) -> Tensor:
        """Return the factors a of rows, () or (N, P): a_i·a_j·cov(f_i, f_j) is that of y."""
        return torch.ones((), dtype=torch.float64, device="cpu")

    def joint_covariance(self, q: Marginals, cov: Tensor, between: Tensor | float) -> Tensor:
        """Return the covariance of y, (P, N, N), given that of f.

        `cov` is the covariance within the components of a mixture, `between` that of their means.
        """
        root = self.joint_root(q).to(cov)
        if root.ndim:
            cov = between + root.mT[:, :, None] * (cov - between) * root.mT[:, None]
        noise = self.moments(q).var - root.square() * q.var  # (S, N, P)
        cov.diagonal(dim1=-2, dim2=-1).add_(noise.mean(0).mT)
        return cov

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean μ and the variance v + Var ε."""
        return Marginals(q.mean, q.var + self.noise_variance)

    @torch.no_grad()
    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Return the quantile of the predictive distribution of y, (N, P)."""
        # P(f + ε ≤ a + b) ≤ P(f ≤ a) + P(ε ≤ b): with half of the probability each, a bound.
        half = 0.5 * check_probability(probability), 0.5 * (1.0 - probability)
        z = torch.special.ndtri(torch.tensor(half, dtype=torch.float64, device="cpu")).tolist()
        low = (q.mean + q.var.sqrt() * z[0] + self.noise_quantile(half[0])).amin(0)
        high = (q.mean - q.var.sqrt() * z[1] - self.noise_quantile(half[1])).amax(0)
        found = inverse(lambda y: self.cdf(y, q).mean(0), low, high, probability)
        return found.to(q.mean.dtype)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the median of each output."""
        return rows.median(rows.y)


@named("gaussian")
class Gaussian(AdditiveNoise):
    """Gaussian noise: y = f + ε, ε ~ N(0, σ²), one variance for each of the P outputs.

    Parameters
    ----------
    noise_variance : float or Tensor of shape (P,), default=0.1
        Initial σ², in squared units of y; learned.

    Examples
    --------
    >>> from skgpstoch.likelihoods import Gaussian
    >>> Gaussian(0.5)
    Gaussian(noise_variance=0.5)
    """

    row_attributes: ClassVar[tuple[str, ...]] = ("ratio", "known")

    def __init__(self, noise_variance: Tensor | float = 0.1) -> None:
        super().__init__()
        self.log_noise = log_parameter("noise_variance", noise_variance)  # (P,)
        self.known: Tensor | None = None  # s², (N, P), where the rows are known

    def extra_repr(self) -> str:
        return f"noise_variance={numbers(self.log_noise.exp())}"

    @property
    def noise_variance(self) -> Tensor:
        """σ², of shape (P,); once rows are set, σ²(x) + s², of shape (N, P) or (S, N, P)."""
        noise = self.times_ratio(self.log_noise.exp(), 2)
        return noise if self.known is None else noise + self.known

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log N(y | f, σ²), elementwise."""
        return log_density(y, f, self.noise_variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw f + σz with z ~ N(0, 1)."""
        return f + self.noise_variance.sqrt() * standard_normal(f.shape, f, generator)

    def noise_quantile(self, probability: float) -> Tensor:
        """Return σ·Φ⁻¹(probability)."""
        p = torch.full_like(self.log_noise, probability, dtype=torch.float64)
        return self.noise_variance.sqrt() * torch.special.ndtri(p)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return Φ((y − μ)/√(v + σ²))."""
        return ndtr((y - q.mean) / (q.var + self.noise_variance).sqrt())

    @torch.no_grad()
    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Return μ + √(v + σ²)·Φ⁻¹(probability), or search for the quantile of a mixture."""
        if len(q.mean) > 1:
            return super().quantile(q, probability)
        return self.moments(q).quantile(check_probability(probability))

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log N(y | μ, σ²) − v/(2σ²), the closed form."""
        noise = self.noise_variance
        square = ((y - q.mean).square() + q.var) / noise
        return -0.5 * (LOG_2PI + noise.log() + square).mean(0).sum(-1)

    @torch.no_grad()
    def maximise_(self, rows: Rows, q: Marginals, bounds: tuple[float, float]) -> None:
        """Set σ² to E[(y − f)²], averaged over the rows."""
        noise = rows.mean((rows.y - q.mean[0]).square() + q.var[0])
        self.log_noise.copy_(noise.clamp(*bounds).log())

    @torch.no_grad()
    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives, (y − μ)/σ² and −1/(2σ²)."""
        d_mean = (y - q.mean[0]) / self.noise_variance
        d_var = (-0.5 / self.noise_variance).expand_as(d_mean)
        return in_type_of(q, self.expected_log_prob(y, q), d_mean, d_var)

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log N(y | μ, v + σ²), the closed form."""
        return log_density(y, *self.moments(q))

    def crps(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the CRPS of a mixture of normal distributions, the closed form."""
        return crps_of_normals(y, *self.moments(q))

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives.

        They are (y − μ)/(v + σ²) and ½((y − μ)²/(v + σ²) − 1)/(v + σ²).
        """
        value = self.log_predictive(y, Marginals(q.mean.detach(), q.var.detach()))
        with torch.no_grad():
            mean, var = (a[0] for a in self.moments(q))
            d_mean = (y - mean) / var
            d_var = 0.5 * (d_mean.square() - var.reciprocal())
        return in_type_of(q, value, d_mean, d_var)

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        """Draw from the Gaussian q(f) p(y | f) directly; no draw is rejected."""
        return gaussian_draws(y, self.noise_variance, q, n_samples, generator)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the mean of each output."""
        return rows.mean_told(rows.y)

    def given(self, exposure: Tensor | None = None, noise: Tensor | None = None) -> Gaussian:
        """Return the likelihood with σ² + s² in place of σ², where s² is `noise`."""
        super().given(exposure)
        return self if noise is None else self._knowing(known=noise)


class Noiseless(Likelihood):
    """No noise, y = f: predictions are those of f."""

    def moments(self, q: Marginals) -> Marginals:
        return q

    def quantile(self, q: Marginals, probability: float) -> Tensor:
        return q.quantile(probability)

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        return log_density(y, *q.resolved())

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        mean, var = q.resolved()
        return ndtr((y - mean) / var.sqrt())

    def sf(self, y: Tensor, q: Marginals) -> Tensor:
        return self.cdf(2.0 * q.mean - y, q)

    def crps(self, y: Tensor, q: Marginals) -> Tensor:
        return crps_of_normals(y, *q.resolved())

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        return f


def log_parameter(name: str, value: Any, least: float = 0.0) -> nn.Parameter:
    """Make the parameter log(value − least); numbers become float64, tensors keep their dtype."""
    is_tensor = isinstance(value, Tensor)
    tensor = value if is_tensor else torch.as_tensor(value, dtype=torch.float64, device="cpu")
    tensor = tensor.detach()
    if not bool(((tensor > least) & tensor.isfinite()).all()):
        raise ValueError(f"{name} must be finite and greater than {least:g}, got {value!r}")
    return nn.Parameter((tensor - least).log())


def numbers(value: Tensor) -> str:
    """Return a parameter's numbers as text, for a repr."""
    numbers = [f"{number:.4g}" for number in value.detach().flatten().tolist()]
    return f"[{', '.join(numbers)}]" if value.ndim else numbers[0]


def gaussian_draws(
    y: Tensor, noise: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
) -> Draws:
    """Draw from the normalised q(f) N(y | f, noise); none is rejected."""
    gain = q.var / (q.var + noise)
    mean = torch.lerp(q.mean, y.to(q.mean).expand_as(q.mean), gain)
    z = standard_normal((n_samples, *q.mean.shape[1:]), q.mean, generator)
    f = mean + (gain * noise).sqrt() * z
    return Draws(f, f.numel())
