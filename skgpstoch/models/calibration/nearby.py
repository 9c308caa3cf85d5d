"""Let errors of rows left out nearby say how uncertain a prediction is.

A stationary kernel has one noise and one roughness for all rows. Where rows nearby were predicted
worse than they should have been, with errors u_j in standard deviations, so will others be:

    s'(x) = r(x)·s(x),   r(x) = (a + Σ_{j∈N(x)} w_j |u_j|/ū) / (a + Σ_{j∈N(x)} w_j),   ū = mean |u|,

with N(x) the k nearest rows that were left out, and a prior of a errors of the usual size. Sizes
|u| serve better than squares, of which few are nearly the whole sum if tails are heavy. k and a
have the best log score of Laplace's distribution, log r + |u|/(r b), when each row is left out of
N(x).

Errors of rows left out are those of predictions near rows. So they tell nothing of the prior, to
which predictions return far away: with c the scale of errors, and the variance v(x) of f given y,
the factor of standard deviations is

    F(x)² = h(x)² + (1 − h(x)²) (c r(x))²,   h(x) = v(x)/k(x, x).

*Measured* on tables of 15,000 to 45,000 rows, 10,000 left out: NLPD .387 → .349 (elevators),
.377 → .29 (protein), −1.08 → −1.15 (kin40k).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...maths.modules import Module
from ...maths.nearest import Nearest
from .tails import WORTH

N_NEARBY = (16, 32, 64, 128)  # k
PRIOR_ERRORS = (1.0, 2.0, 4.0, 8.0, 16.0)  # a
ROWS_PER_ERROR = 4  # at least, of rows left out for each of k
CLEAR_GAIN = 2.0  # standard errors by which r(x) must be better than 1, and
GAIN_BY_CHANCE = 0.015
"""Nats per row and output. Errors of rows nearby depend a little on the row that is left out, so
that they seem to say .006 to .014 nats too much of it (*measured*, where the process is right)."""
_found: WeakKeyDictionary[Module, Nearest] = WeakKeyDictionary()


class ErrorScale(Module):
    """F(x), the factor of standard deviations.

    Parameters
    ----------
    scale : float
        c.
    nearby : ErrorsNearby or None
        r; None is 1.
    """

    scale: Tensor

    def __init__(self, scale: float, nearby: ErrorsNearby | None) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        self.nearby = nearby

    def forward(self, place: Tensor, share: Tensor) -> Tensor:
        """Return F at places (N, e), given h (N, P)."""
        r = torch.ones_like(share) if self.nearby is None else self.nearby(place)
        return factor(share, self.scale * r)


def factor(share: Any, of_errors: Any) -> Any:
    """Return F from h and c·r, arrays or tensors (N, P)."""
    return (share**2 + (1.0 - share**2) * of_errors**2) ** 0.5


class Choice(NamedTuple):
    """k and a, the ratios of rows left out (J, P), and their log scores (J,)."""

    k: int
    prior: float
    ratio: Tensor
    score: Tensor


class ErrorsNearby(Module):
    """r(x), from the sizes of errors at some places.

    Parameters
    ----------
    places : Tensor of shape (J, e)
        Rows left out, in the units in which rows are near.
    sizes : Tensor of shape (J, P)
        Sizes |u|/ū of their errors.
    weight : Tensor of shape (J,)
        Their weights, 1 on average.
    k : int
        How many of them count.
    prior : float
        How many errors of usual size are added.
    """

    places: Tensor
    sizes: Tensor
    weight: Tensor

    def __init__(self, places: Tensor, sizes: Tensor, weight: Tensor, k: int, prior: float) -> None:
        super().__init__()
        for name, value in {"places": places, "sizes": sizes, "weight": weight}.items():
            self.register_buffer(name, value.detach().clone())
        self.k = k
        self.prior = prior

    @property
    def nearest(self) -> Nearest:
        """Finds places; made when it is needed, and neither saved nor copied."""
        found = _found.get(self)
        if found is None or found.rows.device != self.places.device:
            found = _found[self] = Nearest(self.places)
        return found

    def forward(self, place: Tensor) -> Tensor:
        """Return r at places (N, e), (N, P)."""
        N = self.nearest.of(place, self.k)
        return ratio(self.sizes[N], self.weight[N], self.prior)

    @classmethod
    def best(cls, places: Tensor, u: Tensor, weight: Tensor) -> tuple[Self | None, Tensor]:
        """Return r(x), or None unless it is clearly better than 1, and r of the rows, (J, P).

        Parameters
        ----------
        places : Tensor of shape (J, e)
            Rows left out.
        u : Tensor of shape (J, P)
            Their errors in standard deviations.
        weight : Tensor of shape (J,)
            Their positive weights.
        """
        same, w = torch.ones_like(u), weight / weight.mean()
        usual = (w[:, None] * u.abs()).mean(0)  # ū, (P,)
        ks = [k for k in N_NEARBY if k * ROWS_PER_ERROR <= len(u)]
        if not ks or not bool((usual.isfinite() & (usual > 0.0)).all()):
            return None, same
        sizes = u.abs() / usual
        N = Nearest(places).others(torch.arange(len(u), device=u.device), ks[-1])
        choices = [choice(sizes, w, N[:, :k], a) for k in ks for a in PRIOR_ERRORS]
        found = max(choices, key=lambda c: float((w * c.score).sum()))
        gain = w * (found.score - scores(sizes, same, w))
        total, error = float(gain.sum()), float(gain.std()) * math.sqrt(len(gain))
        if total <= max(
            CLEAR_GAIN * error, 2.0 * WORTH, GAIN_BY_CHANCE * float(w.sum()) * u.shape[1]
        ):
            return None, same
        return cls(places, sizes, w, found.k, found.prior), found.ratio


def choice(sizes: Tensor, weight: Tensor, N: Tensor, prior: float) -> Choice:
    """Return what these neighbours (J, k) and this prior give."""
    r = ratio(sizes[N], weight[N], prior)
    return Choice(N.shape[1], prior, r, scores(sizes, r, weight))


def ratio(sizes: Tensor, weight: Tensor, prior: float) -> Tensor:
    """Return r, (N, P), from the sizes (N, k, P) and weights (N, k) of rows nearby."""
    return (prior + (weight[..., None] * sizes).sum(1)) / (prior + weight.sum(1))[:, None]


def scores(sizes: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    """Return −log r − |u|/(r b) − log b, (J,), with b the mean of |u|/r."""
    b = (weight[:, None] * sizes / r).mean(0)
    return -(r.log() + b.log() + sizes / (r * b)).sum(1)
