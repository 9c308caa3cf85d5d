"""Student-t predictions in closed form: the noise and the uncertainty of f share a precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from scipy.special import ndtr, stdtr, stdtrit
from torch import Tensor

from ..data.devices import constants, is_host
from ..maths.first_order import with_slopes
from ..maths.gaussian import Marginals, inverse
from ..maths.ranked_probability import crps_of_student_t
from .base import (
    Gradients,
    check_probability,
    in_type_of,
    named,
)
from .heavy_tailed import StudentT
from .real import AdditiveNoise
from .rejection import Draws

N_NODES = 24  # of expectations; means and variances of t₃ are right to 1e-7


@named("shared_student_t")
class SharedStudentT(StudentT):
    """Student-t noise that shares its random precision with the uncertainty of f.

    Each row has a random precision τ ~ Gamma(ν/2, ν/2). Given τ and f's marginal N(μ, v), y has the
    distribution N(μ, (v + s²)/τ). Predictions are therefore Student-t distributions in closed form,
    whose tails have ν degrees of freedom however uncertain f is. With :class:`StudentT`, only the
    noise has heavy tails; the uncertainty of f has light ones.

    Ensembles may also calibrate their predictions by `outliers`: a share of the rows, and the
    factor by which the deviations of these rows are larger, up to the `reach`. Without a reach, a
    factor that suits certain predictions makes uncertain ones far too wide: where y is in two
    groups, and where it is by chance in some rows, deviations were 1.3 to 12 times too large.

    Parameters
    ----------
    scale : float or Tensor of shape (P,), default=1.0
        Initial scale s of the noise, in the units of y; learned.
    df : float or Tensor of shape (P,), default=4.0
        Initial degrees of freedom ν > 2; learned.

    Examples
    --------
    >>> from skgpstoch.likelihoods import SharedStudentT
    >>> SharedStudentT(scale=0.5)
    SharedStudentT(scale=0.5, df=4)
    """

    has_bound = False

    outliers: tuple[float, float] = (0.0, 1.0)
    """Share ε of outlying rows, and the factor c of their deviations; they are within `reach`."""

    reach: tuple[float, ...] | None = None
    """Largest scales of outliers, W (P,), in the likelihood's unit of y; None: no limit."""

    def check_parts(self) -> None:
        """Raise a ValueError if outliers are none, as in edited files."""
        (share, width), reach = self.outliers, self.reach
        limits = (0.0,) * self.log_scale.numel() if reach is None else reach
        is_limit = isinstance(limits, tuple) and len(limits) == self.log_scale.numel()
        are_scales = is_limit and all(type(w) is float and w >= 0.0 for w in (share, *limits))
        if not are_scales or share >= 1.0 or type(width) is not float or not width >= 1.0:
            raise ValueError(
                f"{type(self).__name__} has no such outliers, or no such reach of them"
            )

    def extra_repr(self) -> str:
        share, width = self.outliers
        more = f", outliers=({share:.4g}, {width:.4g})" if share else ""
        return super().extra_repr() + more

    @property
    def noise_variance(self) -> Tensor:
        """The variance ((1 − ε)s² + ε·max(s², min(c²s², W²)))·ν/(ν − 2) of y where f is certain."""
        return self._variance(self.scale.square())

    @torch.no_grad()
    def in_units(self, scale: Tensor) -> AdditiveNoise:
        other = cast(SharedStudentT, super().in_units(scale))
        if self.reach is not None:
            other.reach = tuple((scale.double() * scale.new_tensor(self.reach).double()).tolist())
        return other

    def _far(self, V: Tensor) -> Tensor:
        """Return the squared scale of outliers, c²V and at most W², but at least V."""
        far = self.outliers[1] ** 2 * V
        if self.reach is None:
            return far
        return torch.maximum(V, torch.minimum(far, self._most(V)))

    def _most(self, like: Tensor) -> Tensor:
        """Return W², (P,)."""
        (reach,) = constants(np.array, self.reach, like=like)
        return reach.square()

    def _has_slope(self, V: Tensor) -> Tensor:
        """Return 1 where V (J, …) grows with that of usual rows, and 0 where it is at its limit."""
        if self.reach is None or len(V) == 1:
            return V.new_ones(())
        return (self._most(V) != V).to(V)

    def _variance(self, V: Tensor) -> Tensor:
        """Return ((1 − ε)V + ε·max(V, min(c²V, W²)))·ν/(ν − 2)."""
        share, mean = self.outliers[0], V
        if share:
            mean = V + share * (self._far(V) - V)
        return mean * (1.0 + 2.0 * (-self.log_df_minus_2).exp())

    def joint_root(self, q: Marginals) -> Tensor:
        """Return E τ^−½ of rows, (1 − ε + εc)·√(ν/2)·Γ((ν − 1)/2)/Γ(ν/2), (N, P).

        Precisions are independent. Where outliers end at their reach, c is less: the least of the
        mixture's components, by which no noise is negative.
        """
        share, half = self.outliers[0], 0.5 * self.df.double()
        V = (q.var + self.scale.square()).double()
        c = (self._far(V) / V).sqrt().amin(0)
        gammas = (torch.lgamma(half - 0.5) - torch.lgamma(half)).exp()
        return (1.0 - share + share * c) * half.sqrt() * gammas

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log p(y | f), elementwise."""
        return self._log_each(y, Marginals(f, torch.zeros_like(f)))[0].logsumexp(0)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw y given f."""
        return self.sample_around(f, Marginals(f, torch.zeros_like(f)), generator)

    def noise_quantile(self, probability: float) -> Tensor:
        """Return the quantile of y − f given f."""
        zero = torch.zeros_like(self.scale)[None, None]
        return self.quantile(Marginals(zero, zero), probability)[0]

    def _kinds(self, q: Marginals) -> tuple[Tensor, Tensor]:
        """Return log(1 − ε) and log ε, (J, 1, …), and V = v + s² and `_far` of it, (J, …)."""
        share, V = self.outliers[0], q.var + self.scale.square()
        if share == 0.0:
            return V.new_zeros(()), V[None]
        (log_p,) = constants(log_shares, share, like=V)
        return log_p.view(2, *[1] * V.ndim), torch.stack([V, self._far(V)])

    def _log_each(self, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
        """Return log p(y) of usual rows and of outliers, weighted by their shares, and their V."""
        log_share, V = self._kinds(q)
        tail = 0.5 * (self.df + 1.0) * torch.log1p((y - q.mean).square() / (self.df * V))
        return log_share + self._log_normaliser() - 0.5 * V.log() - tail, V

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean μ, and the variance of a mixture of usual rows and outliers."""
        return Marginals(q.mean, self._variance(q.var + self.scale.square()))

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the log density of μ + √(v + s²)·t_ν at y, in closed form."""
        return self._log_each(y, q)[0].logsumexp(0)

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        return AdditiveNoise.log_predictive(self, y, q)

    def crps(self, y: Tensor, q: Marginals) -> Tensor | None:
        """Return the CRPS of one Student-t distribution; None for mixtures of several."""
        if len(q.mean) > 1 or self.outliers[0]:
            return None
        std = (q.var[0] + self.scale.square()).sqrt()
        z, df = ((y - q.mean[0]) / std).detach().cpu().numpy(), self.df.detach().cpu().numpy()
        return std * torch.as_tensor(crps_of_student_t(z, df), dtype=std.dtype, device=std.device)

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives.

        With r = y − μ and V = v + s², the derivative by μ is (ν + 1)r/(νV + r²) and that by v is
        ½((ν + 1)r²/(νV + r²) − 1)/V. The derivative by s² equals that by v, and the derivative by ν
        is half of ψ((ν + 1)/2) − ψ(ν/2) − 1/ν − log(1 + r²/(νV)) + (ν + 1)r²/(νV + r²)/ν. If there
        are outliers, these are averaged over the two kinds of rows, given y.
        """
        noise, df = self.scale.square(), self.df
        with torch.no_grad():
            each, V = (a[:, 0] for a in self._log_each(y, q))  # (J, N, P)
            log_p = each.logsumexp(0)
            p, error = (each - log_p).exp(), y - q.mean[0]
            total = df * V + error.square()
            by_mean = (df + 1.0) * error / total
            by_var = 0.5 * (by_mean * error - 1.0) / V[0] * self._has_slope(V)
            by_df = 0.5 * (by_mean * error / df - (total / (df * V)).log())
            d_mean, d_var, d_df = ((p * d).sum(0) for d in (by_mean, by_var, by_df))
            half = 0.5 * df.double()
            slope = (half + 0.5).digamma() - half.digamma() - 0.5 / half
            d_df += 0.5 * slope.to(d_df)
        value = with_slopes(log_p.sum(-1), (noise, d_var), (df, d_df))
        return in_type_of(q, value, d_mean, d_var)

    def expectation(self, function: Callable[[Tensor], Tensor], q: Marginals) -> Tensor:
        """Return E g(Y), (G, N, P), by quadrature, for smooth g: (…, N, P) → (G, …, N, P)."""
        log_share, V = self._kinds(q)
        share, size = log_share.exp(), V.sqrt()  # (J, 1, 1, 1), (J, S, N, P)
        nodes, weights = constants(t_nodes, tuple(self.df.tolist()), like=V)
        parts = [
            weight * (share * function(q.mean + t * size)).sum(1).mean(1)
            for t, weight in zip(nodes, weights, strict=True)
        ]
        return torch.stack(parts).sum(0)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the distribution function of t_ν at (y − μ)/√(v + s²)."""
        log_share, V = self._kinds(q)
        z = (y - q.mean) / V.sqrt()
        df = self.df.detach().cpu().double().numpy()
        each = torch.as_tensor(stdtr(df, z.detach().cpu().numpy()), dtype=z.dtype, device=z.device)
        return (log_share.exp() * each).sum(0)

    @torch.no_grad()
    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Return μ + √(v + s²)·t_ν⁻¹(probability), or search between those of mixture parts."""
        if not is_host(q.mean.device):  # SciPy's functions are the host's: go there once
            ratio = None if self.ratio is None else self.ratio.cpu()
            of_host = copy.deepcopy(self.scaled(None)).cpu().scaled(ratio)
            found = of_host.quantile(Marginals(q.mean.cpu(), q.var.cpu()), probability)
            return found.to(q.mean.device)
        df = self.df.cpu().double().numpy()
        t = torch.as_tensor(stdtrit(df, check_probability(probability)), device=q.mean.device)
        each = (q.mean + self._kinds(q)[1].sqrt() * t).flatten(0, 1)
        if len(each) == 1:
            return each[0].to(q.mean.dtype)
        low, high = each.amin(0), each.amax(0)
        return inverse(lambda y: self.cdf(y, q).mean(0), low, high, probability).to(q.mean.dtype)

    def sample_around(self, f: Tensor, q: Marginals, generator: torch.Generator) -> Tensor:
        """Draw y = μ + (f − μ + s·z)/√τ, for draws f ~ q."""
        df, share = self.df.detach().expand(f.shape).to(f), self.outliers[0]
        tau = torch._standard_gamma(0.5 * df, generator=generator) / (0.5 * df)
        z = torch.empty_like(f).normal_(generator=generator)
        if share:
            is_outlier = torch.empty_like(f).uniform_(generator=generator) < share
            V = q.var + self.scale.square()
            tau = torch.where(is_outlier, tau * V / self._far(V), tau)
        return q.mean + (f - q.mean + self.scale * z) / tau.sqrt()

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        raise ValueError(
            f"gradient='product' is not available with {self!r}. Use gradient='exact'."
        )


def t_nodes(df: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of t_ν for several ν, (Q, P), and weights (Q,), from Gauss-Hermite nodes."""
    z, weight = np.polynomial.hermite_e.hermegauss(N_NODES)
    t = -np.sign(z)[:, None] * stdtrit(df, ndtr(-np.abs(z))[:, None])
    return t, weight / weight.sum()


def log_shares(share: float) -> np.ndarray:
    """Return the logarithms of 1 − ε and ε."""
    return np.array([math.log1p(-share), math.log(share)])
