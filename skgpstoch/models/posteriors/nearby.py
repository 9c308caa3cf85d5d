"""Let errors of rows nearby say how uncertain a prediction is.

A stationary kernel has one noise and one roughness for all rows. Where rows are predicted worse
than they should be, with errors u_j in standard deviations, so will be others nearby:

    r(x) = (a + Σ_{j∈N(x)} w_j |u_j|/ū) / (a + Σ_{j∈N(x)} w_j),   ū = mean |u|,

with N(x) the k nearest rows and a prior of a errors of the usual size. u_j is the error of y_j
given the other neighbours of x. So it knows nothing of y at x: where x is a training row that is
left out, r(x) is what it would be for a new row. (Errors given all rows do know: those of x and of
its neighbours go together even if the process is right.) Sizes |u| serve better than squares, of
which few are nearly the whole sum if tails are heavy. k and a have the best log score of Laplace's
distribution, log r + |u|/(r b), on rows left out.

Such a kernel also varies its uncertainty between rows too little: deviations s² = v + σ² of y, with
v(x) the variance of f given y, are multiplied by c s^(γ − 1), which rows left out choose as well.

Errors of rows left out are those of predictions near rows. They tell nothing of the prior, to which
predictions return far away, nor of what is farther than 99 of 100 of these rows are from others.
The factor of the variance of y is

    F(x)² = 1 − π(x) + π(x) (c s(x)^(γ − 1) r(x))²,

    π(x) = min(1, o/ω(x)),   ω(x) = v(x)/(k(x, x) − v(x)),

with o the 0.99-quantile of ω at rows left out (ω leaves out the error of a learned mean, which v
has). Where ω is more than o, s takes v for what it is
where ω = o, since it would grow faster than π falls.

Errors are those of y: they do not say whether f is rougher nearby, or the noise larger. Of
v = v₀ + n, n = Σβ_j²D_j is due to the noise of neighbours. With factors λ of v₀ and ρ of all noise,
and tails with which the variance of y is T F²(v + σ²),

    f : ε = λ v₀ + ρ n : ρ σ²/T,   λ/ρ = (T F²)^(2s − 1),   s = v₀/(v + σ²)

is how f and noise share F²(v + σ²). The noise changes alone where nearly all of the variance is
noise, and f where nearly none is; and tails are the noise's. They are the same everywhere, so far
from rows, where F = 1, f has the variance of its prior, but y one that is T times as large.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...maths.modules import Module

N_NEARBY = (16, 32, 64, 128)  # k
PRIOR_ERRORS = (1.0, 2.0, 4.0, 8.0, 16.0)  # a
ROWS_PER_ERROR = 4  # at least, of rows left out for each of k
CLEAR_GAIN = 2.0  # standard errors by which r(x) must be better than 1
WORTH_OF_BOTH = 4.0  # nats, summed over rows, that k and a must gain
KNOWN = 0.99  # share of rows left out, beyond whose ω errors are unknown
LEAST_KNOWN = 1e-15  # share of the prior's variance, below which what y tells of f is rounding
TINIEST = torch.finfo(torch.float64).tiny


class Given(NamedTuple):
    """f at rows given neighbours, and the errors of these, each given the other neighbours."""

    mean: Tensor  # (N, P)
    var: Tensor  # v, (N, P)
    by_noise: Tensor  # n, (N, P)
    odds: Tensor  # ω, (N, P)
    sizes: Tensor  # |u_j| of the nearest ones, (N, k, P)
    weight: Tensor  # w_j, (N, k)


class Widths(NamedTuple):
    """Factors of the standard deviations of f and of the noise, each (N, P)."""

    of_f: Tensor
    of_noise: Tensor

    @classmethod
    def of(cls, F2: Tensor, given: Given, noise: Tensor, tails: Tensor | float = 1.0) -> Widths:
        """Share out F² (N, P) between f and the noise, of variance σ² (P,); `tails` is T."""
        v, F2 = given.var.clamp_min(TINIEST), F2.clamp_min(TINIEST)
        n = torch.minimum(given.by_noise, v)
        s = (v - n) / (v + noise)
        f = (tails * F2) ** (2.0 * s - 1.0) * (v - n) + n
        unit = F2 * (v + noise) / (f + noise / tails)
        return cls((unit * f / v).sqrt(), (unit / tails).sqrt())


class ErrorScale(Module):
    """F(x)², the factor of variances.

    Parameters
    ----------
    factor : Tensor of shape (P,)
        c.
    exponent : float
        γ.
    most_odds : Tensor of shape (P,)
        o.
    nearby : ErrorsNearby or None
        r; None is 1.
    tails : float
        T near rows, on average; it is 1 far away.
    """

    factor: Tensor
    most_odds: Tensor

    def __init__(
        self,
        factor: Tensor,
        exponent: float,
        most_odds: Tensor,
        nearby: ErrorsNearby | None,
        tails: float,
    ) -> None:
        super().__init__()
        self.register_buffer("factor", factor.detach().clone())
        self.exponent = exponent
        self.tails = tails
        self.register_buffer("most_odds", most_odds.detach().clone())
        self.nearby = nearby

    @property
    def n_errors(self) -> int:
        """How many neighbours' errors count, k."""
        return 0 if self.nearby is None else self.nearby.k

    def forward(self, given: Given, noise: Tensor) -> Widths:
        """Return what neighbours say, for a noise variance σ² (P,)."""
        if len(self.most_odds) != len(noise):  # in an edited file
            raise ValueError(f"{len(noise)} outputs have odds of {len(self.most_odds)}.")
        r = torch.ones_like(given.var) if self.nearby is None else self.nearby(given)
        share = known(given, self.most_odds)
        s = deviation(given, noise, self.most_odds)
        F2 = factor2(share, self.factor * s ** (self.exponent - 1.0) * r)
        T = 1.0 + share * (self.tails - 1.0)
        return Widths.of(F2, given, noise, T)


def known(given: Given, most_odds: Tensor) -> Tensor:
    """Return π, (N, P)."""
    return (most_odds.clamp_min(TINIEST) / given.odds.clamp_min(TINIEST)).clamp_max(1.0)


def deviation(given: Given, noise: Tensor, most_odds: Tensor) -> Tensor:
    """Return s, (N, P), of v as it is where ω is at most o."""
    odds, o = given.odds.clamp_min(TINIEST), most_odds
    within = (o / (1.0 + o) * (1.0 + 1.0 / odds)).clamp_max(1.0)  # of v, which is k ω/(1 + ω)
    return (within * given.var + noise).clamp_min(TINIEST).sqrt()


def factor2(share: Any, of_errors: Any) -> Any:
    """Return F² from π and c·s^(γ − 1)·r, arrays or tensors (N, P), without cancellation."""
    return (1.0 - share) + share * of_errors**2


class Choice(NamedTuple):
    """k and a, the ratios of rows left out (J, P), and their log scores (J,)."""

    k: int
    prior: float
    ratio: Tensor
    score: Tensor


class ErrorsNearby(Module):
    """r(x), from the sizes of neighbours' errors.

    Parameters
    ----------
    usual : Tensor of shape (P,)
        ū.
    k : int
        How many neighbours count.
    prior : float
        The weight of errors of usual size that are added, a.
    """

    usual: Tensor

    def __init__(self, usual: Tensor, k: int, prior: float) -> None:
        super().__init__()
        self.register_buffer("usual", usual.detach().clone())
        self.k = k
        self.prior = prior

    def forward(self, given: Given) -> Tensor:
        """Return r at rows, (N, P)."""
        return ratio(given.sizes[:, : self.k] / self.usual, given.weight[:, : self.k], self.prior)

    @classmethod
    def best(cls, u: Tensor, weight: Tensor, given: Given) -> tuple[Self | None, Tensor]:
        """Return r(x), or None unless it is clearly better than 1, and r of the rows, (J, P).

        Parameters
        ----------
        u : Tensor of shape (J, P)
            Errors of rows left out in standard deviations.
        weight : Tensor of shape (J,)
            Their positive weights.
        given : Given
            What their neighbours say.
        """
        same, w, near = torch.ones_like(u), weight / weight.mean(), given.weight
        usual = (near[..., None] * given.sizes).sum((0, 1)) / near.sum()
        n_most = min(given.sizes.shape[1], len(u) // ROWS_PER_ERROR)
        ks = [k for k in N_NEARBY if k <= n_most]
        is_usual = usual.isfinite() & (usual > 0.0) & (u.abs().mean(0) > 0.0)
        if not ks or not bool(is_usual.all() and u.isfinite().all()):
            return None, same
        sizes, unit = given.sizes / usual, float(near.mean())
        choices = [
            choice(u.abs(), w, sizes[:, :k], near[:, :k], a * unit)
            for k in ks
            for a in PRIOR_ERRORS
        ]
        found = max(choices, key=lambda c: float((w * c.score).sum()))
        gain = w * (found.score - scores(u.abs(), same, w))
        total, error = float(gain.sum()), float(gain.std()) * math.sqrt(len(gain))
        if total <= max(CLEAR_GAIN * error, WORTH_OF_BOTH):
            return None, same
        return cls(usual, found.k, found.prior), found.ratio


def choice(size: Tensor, w: Tensor, sizes: Tensor, weight: Tensor, prior: float) -> Choice:
    """Return what neighbours' errors (J, k, P) and a prior say of rows' |u|, (J, P)."""
    r = ratio(sizes, weight, prior)
    return Choice(sizes.shape[1], prior, r, scores(size, r, w))


def ratio(sizes: Tensor, weight: Tensor, prior: float) -> Tensor:
    """Return r, (N, P), from the sizes (N, k, P) and weights (N, k) of rows nearby."""
    return (prior + (weight[..., None] * sizes).sum(1)) / (prior + weight.sum(1))[:, None]


def scores(sizes: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    """Return −log r − |u|/(r b) − log b, (J,), with b the mean of |u|/r."""
    b = (weight[:, None] * sizes / r).mean(0)
    return -(r.log() + b.log() + sizes / (r * b)).sum(1)
