"""Student-t predictions in closed form: noise and the uncertainty of f share their precision."""

from __future__ import annotations

import torch
from scipy.special import stdtr, stdtrit
from torch import Tensor

from ..maths.gaussian import Marginals, inverse
from .base import Gradients, check_probability, mixture_log_mean
from .heavy_tailed import StudentT
from .real import in_type_of
from .rejection import Draws


class SharedStudentT(StudentT):
    """Student-t noise whose precision is that of f's uncertainty, too.

    Given τ ~ Gamma(ν/2, ν/2) of a row, y ~ N(μ, (v + s²)/τ) for f ~ N(μ, v): predictions are
    Student-t distributions in closed form, with the tails of ν however uncertain f is. With
    :class:`StudentT` only the noise has heavy tails, and what is known of f has light ones.

    Parameters
    ----------
    scale : float or Tensor of shape (P,), default=1.0
        Initial s, in the units of y; learned.
    df : float or Tensor of shape (P,), default=4.0
        Initial degrees of freedom ν > 2; learned.

    Examples
    --------
    >>> from skgpstoch.likelihoods import SharedStudentT
    >>> SharedStudentT(scale=0.5)
    SharedStudentT(scale=0.5, df=4)
    """

    def _variance(self, q: Marginals) -> Tensor:
        """v + s², (S, N, P)."""
        return q.var + self.scale.square()

    def moments(self, q: Marginals) -> Marginals:
        """μ and (v + s²)·ν/(ν − 2)."""
        return Marginals(q.mean, self._variance(q) * (1.0 + 2.0 * (-self.log_df_minus_2).exp()))

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """log t_ν of (y − μ)/√(v + s²), in closed form."""
        V = self._variance(q)
        tail = 0.5 * (self.df + 1.0) * torch.log1p((y - q.mean).square() / (self.df * V))
        log_p = self._log_normaliser() - 0.5 * V.log() - tail
        return mixture_log_mean(log_p.sum(-1))

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """(ν + 1)r/(νV + r²) and ½((ν + 1)r²/(νV + r²) − 1)/V, r = y − μ and V = v + s²."""
        value = self.log_predictive(y, Marginals(q.mean.detach(), q.var.detach()))
        with torch.no_grad():
            V, error = self._variance(q)[0], y - q.mean[0]
            d_mean = (self.df + 1.0) * error / (self.df * V + error.square())
            d_var = 0.5 * (d_mean * error - 1.0) / V
        return in_type_of(q, value, d_mean, d_var)

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Of t_ν at (y − μ)/√(v + s²)."""
        z = (y - q.mean) / self._variance(q).sqrt()
        df = self.df.detach().cpu().double().numpy()
        return torch.as_tensor(stdtr(df, z.detach().cpu().numpy()), dtype=z.dtype, device=z.device)

    @torch.no_grad()
    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """μ + √(v + s²)·t_ν⁻¹(probability), or between those of the parts of a mixture."""
        df = self.df.cpu().double().numpy()
        t = torch.as_tensor(stdtrit(df, check_probability(probability)), device=q.mean.device)
        each = q.mean + self._variance(q).sqrt() * t
        if len(each) == 1:
            return each[0].to(q.mean.dtype)
        low, high = each.amin(0), each.amax(0)
        return inverse(lambda y: self.cdf(y, q).mean(0), low, high, probability).to(q.mean.dtype)

    def sample_around(self, f: Tensor, mean: Tensor, generator: torch.Generator) -> Tensor:
        """μ + (f − μ + s·z)/√τ, for draws f with the mean μ (N, P)."""
        df = self.df.detach().expand(f.shape).to(f)
        tau = torch._standard_gamma(0.5 * df, generator=generator) / (0.5 * df)
        z = torch.empty_like(f).normal_(generator=generator)
        return mean + (f - mean + self.scale * z) / tau.sqrt()

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        raise ValueError(f"gradient='product' is not for {self!r}; use gradient='exact'.")
