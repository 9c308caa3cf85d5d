"""Likelihoods of two classes, or of each class against all others; import them from their package.

Expectations of the logistic function g(f) = 1/(1 + exp(−f)) under Gaussians are exact to rounding.

In x = exp(−|f|) ≤ 1, g is 1/(1 + x) where f > 0 and x/(1 + x) where f < 0. As Σ (−1)ᵏcₖxᵏ is
1/(1 + x) to 10⁻¹⁵, every expectation is a sum of truncated normal moments E[xᵏ·1(±f > 0)], whatever
the mean and variance.

H. Cohen, F. Rodriguez Villegas and D. Zagier, "Convergence Acceleration of Alternating Series",
Experimental Mathematics 9, 2000: the coefficients cₖ.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.devices import constants
from ..data.rows import Rows
from ..maths.first_order import with_slopes
from ..maths.gaussian import LOG_2PI, Marginals, log_half_moment, log_ndtr
from .base import Gradients, check_link, mixture_log_mean, named
from .probabilities import ClassLikelihood, in_blocks, probit_variance

N_TERMS = 20  # of the series
NARROW_VARIANCE = 1.0  # of f, below which nodes take the place of the series, which cancels
NODES = (-9.0, 11.01, 0.25)  # of the standard normal: from, to and step
"""Of trapezoids, in standard deviations of f: exact to rounding for narrow f."""


@named("bernoulli", link="logit")
class Bernoulli(ClassLikelihood):
    """Bernoulli likelihood for two classes: P(y = 1) = g(f) with y in {0, 1}.

    With the logit link every expectation is a sum of truncated normal moments, which is exact up to
    rounding for any mean and variance.

    Parameters
    ----------
    link : {"logit", "probit"}, default="logit"
        The inverse of g, which is the logistic function ("logit") or Φ ("probit").

    References
    ----------
    H. Cohen, F. Rodriguez Villegas and D. Zagier, "Convergence Acceleration of Alternating Series",
    Experimental Mathematics 9, 2000: the coefficients cₖ.

    Examples
    --------
    >>> from skgpstoch.likelihoods import Bernoulli
    >>> Bernoulli("probit")
    Bernoulli(link='probit')
    """

    links: ClassVar[tuple[str, ...]] = ("logit", "probit")

    def __init__(self, link: str = "logit") -> None:
        super().__init__()
        self.link = check_link(link, self.links)

    def extra_repr(self) -> str:
        return f"link={self.link!r}"

    def for_classes(self, n_classes: int) -> Bernoulli:
        if n_classes > 2:
            raise ValueError(
                f"likelihood={self!r} is for two classes, but y has {n_classes}; use "
                "'softmax' or 'robustmax'."
            )
        return self

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log g(±f), elementwise, with + if y = 1 and − if y = 0."""
        signed = (2.0 * y - 1.0) * f
        return F.logsigmoid(signed) if self.link == "logit" else log_ndtr(signed)

    def log_means(self, q: Marginals) -> Tensor:
        """Return log E_q[g(f)] of each component, (S, N, P)."""
        if self.link == "probit":
            return log_ndtr(q.mean / (1.0 + q.var).sqrt())
        return log_mean(q)

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean p = P(y = 1) and the variance p(1 − p)."""
        p = self.log_means(q).exp()
        return Marginals(p, p * self.log_means(Marginals(-q.mean, q.var)).exp())

    def class_probabilities(self, q: Marginals) -> Marginals:
        """Return the mean and variance of g(f), each (S, N, P).

        With the logit link they are exact up to rounding.
        """
        function = variance if self.link == "logit" else probit_variance
        floats = q.mean.shape[-1] * len(NODES)
        return Marginals(self.log_means(q).exp(), in_blocks(function, q, floats))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw 1 with probability g(f), else 0."""
        p = torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)
        return torch.bernoulli(p, generator=generator)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Use quadrature with the probit link, and an exact sum with the logit link."""
        if self.link == "probit":
            return super().expected_log_prob(y, q)
        signed = Marginals((2.0 * y - 1.0) * q.mean, q.var)
        return expected_log(signed).mean(0).sum(-1)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value and its derivatives: E[±g(∓f)] and −½E[g(f)g(−f)] for the logit link."""
        if self.link == "probit":
            return super().expected_gradients(y, q)
        sign = 2.0 * y - 1.0
        with torch.no_grad():
            value, slope, d_var = log_expectations(Marginals(sign * q.mean, q.var))
        return value[0].sum(-1), sign * slope[0], d_var[0]

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log E_q[g(±f)], in closed form."""
        signed = Marginals((2.0 * y - 1.0) * q.mean, q.var)
        return mixture_log_mean(self.log_means(signed).sum(-1))

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return g⁻¹ of the share of ones, with half a row added to either class."""
        (n_ones,) = rows.total(rows.weighted(rows.y).sum(0))
        share = (n_ones + 0.5) / (rows.counted_for() + 1.0)
        return torch.logit(share) if self.link == "logit" else torch.special.ndtri(share)


class OneVsRest(ClassLikelihood):
    """Likelihood for C classes with a separate logistic model of each class against all others.

    The targets y hold class codes, in shape (N, 1). The evidence bound is the sum of the bounds of
    C two-class models, so nothing couples the latent functions. The class probabilities are those
    of the two-class models, normalised to sum to 1.

    Parameters
    ----------
    n_classes : int
        Number C of classes.

    Examples
    --------
    >>> from skgpstoch.likelihoods import OneVsRest
    >>> OneVsRest(3)
    OneVsRest(n_classes=3)
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.one = Bernoulli("logit")

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def for_classes(self, n_classes: int) -> OneVsRest:
        raise ValueError(
            f"likelihood={self!r} is only for estimators that choose it themselves, such as "
            "QSGPClassifier. Use 'softmax' or 'robustmax'."
        )

    def n_latents(self, n_outputs: int) -> int:
        return self.n_classes

    def indicators(self, y: Tensor) -> Tensor:
        """Return 1 in the column of each row's class, else 0: (N, C)."""
        return (y == torch.arange(self.n_classes, device=y.device)).to(y)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return the sum over classes of log g(±f), (..., N, 1) nats."""
        return self.one.log_prob(self.indicators(y), f).sum(-1, keepdim=True)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return E_q[log p(y | f)] of each row, exact up to rounding: (N,) nats."""
        return self.one.expected_log_prob(self.indicators(y), q)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value of each row, and the derivatives of each class's own model."""
        return self.one.expected_gradients(self.indicators(y), q)

    def moments(self, q: Marginals) -> Marginals:
        """Return the probabilities p of the classes, and p(1 − p)."""
        p = torch.softmax(self.one.log_means(q), -1)
        return Marginals(p, p * (1.0 - p))

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the log probability of each row's class, (N,) nats."""
        return (self.log_predictives(q, self.n_classes) * self.indicators(y)).sum(-1)

    def log_predictives(self, q: Marginals, n_classes: int) -> Tensor:
        return mixture_log_mean(torch.log_softmax(self.one.log_means(q), -1))

    def log_class_probs(self, f: Tensor) -> Tensor:
        """Return log(g(f_c)/Σ g(f_j)) of every class."""
        return torch.log_softmax(F.logsigmoid(f), -1)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a class code for each row of f (..., N, C): (..., N, 1)."""
        p = torch.softmax(F.logsigmoid(f), -1)
        flat = torch.multinomial(p.reshape(-1, self.n_classes), 1, generator=generator)
        return flat.reshape(*f.shape[:-1], 1).to(f)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the logit of each class's share, with half a row added to either side."""
        (count,) = rows.total(rows.weighted(self.indicators(rows.y)).sum(0))
        return torch.logit((count + 0.5) / (rows.counted_for() + 1.0))


def logistic_likelihood(n_classes: int) -> ClassLikelihood:
    """Return "bernoulli" for two classes, or :class:`OneVsRest` for more."""
    return Bernoulli("logit") if n_classes == 2 else OneVsRest(n_classes)


# ---- expectations of the logistic function -------------------------------------------------------


def _alternating_coefficients(n_terms: int) -> np.ndarray:
    """(−1)ᵏcₖ of Σ (−1)ᵏcₖxᵏ ≈ 1/(1 + x), to 5.8^−n on [0, 1]: Cohen et al., algorithm 1."""
    d = math.cosh(n_terms * math.acosh(3.0))
    b, c, coefficients = -1.0, -d, []
    for k in range(n_terms):
        c = b - c
        coefficients.append(c / d)
        b *= (k + n_terms) * (k - n_terms) / ((k + 0.5) * (k + 1.0))
    return np.array(coefficients)


def alternating(like: Tensor) -> Tensor:
    """Return the coefficients (−1)ᵏcₖ, k < 20."""
    return constants(_alternating_coefficients, N_TERMS, like=like)[0]


def half_moments(q: Marginals) -> Tensor:
    """Return log E[xᵏ·1(f > 0)] and log E[xᵏ·1(f < 0)], k ≤ 20: (2, 21, S, N, P)."""
    k = torch.arange(N_TERMS + 1, dtype=q.mean.dtype, device=q.mean.device).view(-1, 1, 1, 1)
    mean, var = q.resolved()
    return log_half_moment(torch.stack([mean, -mean])[:, None], var, k)


def combine(coefficients: Tensor, log_terms: Tensor) -> Tensor:
    """Return Σ coefficientₖ·exp(log_termₖ) over the leading axis."""
    return torch.tensordot(coefficients, log_terms.exp(), 1)


def log_sum(coefficients: Tensor, log_terms: Tensor) -> Tensor:
    """Return the logarithm of that, the first term being the greatest and the sum positive."""
    first = log_terms[0]
    return first + combine(coefficients, log_terms - first).log()


def log_mean(q: Marginals) -> Tensor:
    """Return log E[g(f)]: (S, N, P), with derivatives that hold at a variance of 0 too."""
    with torch.no_grad():
        positive, negative = half_moments(q)  # (K, S, N, P), log E[xᵏ] on either side of 0
        c = alternating(q.mean)  # 1/(1 + x) where f > 0, x/(1 + x) where f < 0
        value = torch.logaddexp(log_sum(c, positive[:-1]), log_sum(c, negative[1:]))
    if not (torch.is_grad_enabled() and (q.mean.requires_grad or q.var.requires_grad)):
        return value
    with torch.no_grad():  # x′ is −x where f > 0, x where f < 0
        right, left = positive[:-1] - value, negative[1:] - value
        k = torch.arange(N_TERMS, dtype=c.dtype, device=c.device)
        d_mean = combine((k + 1) * c, left) - combine(k * c, right)
        d_var = 0.5 * (combine((k + 1) ** 2 * c, left) + combine(k**2 * c, right))
    return with_slopes(value, (q.mean, d_mean), (q.var, d_var))


def log_expectations(q: Marginals) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[log g(f)] and its derivatives by mean and variance, each (S, N, P)."""
    x = half_moments(q)
    c, k = alternating(q.mean), torch.arange(x.shape[1] - 1, device=q.mean.device)
    both = torch.logaddexp(*x)
    # log g(f) = min(f, 0) − log(1 + x),  g(f)·g(−f) = x/(1 + x)² = −x·d/dx 1/(1 + x)
    value = _mean_negative_part(q) - combine(c / (k + 1), both[1:])
    d_mean = combine(c, x[0][1:]) + combine(c, x[1][:-1])  # g(−f)
    d_var = 0.5 * combine((k * c)[1:], both[1:-1])
    return value, d_mean, d_var.clamp_max(0.0)


def expected_log(q: Marginals) -> Tensor:
    """Return E[log g(f)], (S, N, P), with these derivatives."""
    with torch.no_grad():
        value, d_mean, d_var = log_expectations(q)
    return with_slopes(value, (q.mean, d_mean), (q.var, d_var))


def _mean_negative_part(q: Marginals) -> Tensor:
    """E[min(f, 0)] = −√v·(φ(z) − z·Φ(−z)), z = μ/√v."""
    mean, var = q.resolved()
    std = var.sqrt()
    z = mean / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return mean * torch.special.ndtr(-z) - std * density


# ---- the variance of g(f) ------------------------------------------------------------------------


def variance(q: Marginals) -> Tensor:
    """Return Var[g(f)], (S, N, P), with all its digits however small it is."""
    low = -q.mean.abs()  # g(−f) = 1 − g(f) has the same variance, and there g has all its digits
    narrow = _variance_at_nodes(Marginals(low, q.var.clamp_max(NARROW_VARIANCE)))
    wide = _variance_by_series(Marginals(low, q.var.clamp_min(NARROW_VARIANCE)))
    return torch.where(q.var < NARROW_VARIANCE, narrow, wide)


def _variance_at_nodes(q: Marginals) -> Tensor:
    """Of deviations from g(μ): g(μ + δ) − g(μ) = −g(μ + δ)·g(−μ)·(exp(−δ) − 1)."""
    (z,) = constants(np.arange, *NODES, like=q.mean)
    weight = torch.exp(-0.5 * (z.square() + LOG_2PI)) * (z[1] - z[0])
    mean = q.mean[..., None]
    shift = q.var.sqrt()[..., None] * z
    deviation = -torch.sigmoid(mean + shift) * torch.sigmoid(-mean) * torch.expm1(-shift)
    deviation = deviation - (weight * deviation).sum(-1, keepdim=True)
    return (weight * deviation.square()).sum(-1)


def _variance_by_series(q: Marginals) -> Tensor:
    """E[g²] − (E g)², where g² is 1/(1 + x)² for f > 0 and x²/(1 + x)² for f < 0."""
    positive, negative = half_moments(q)
    c, k = alternating(q.mean), torch.arange(N_TERMS, device=q.mean.device)
    # 1/(1 + x)² = d/dx x/(1 + x),  x²/(1 + x)² = −x²·d/dx 1/(1 + x)
    square = combine((k + 1) * c, positive[:-1]) - combine(k * c, negative[1:])
    return (square - log_mean(q).exp().square()).clamp_min(0.0)  # rounding of float32
