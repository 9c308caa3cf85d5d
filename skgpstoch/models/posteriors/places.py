"""Rows at one place are one observation: the mean of their y, with less noise.

Of y_i = f(x) + ε_i, ε_i ~ N(0, D_i), at one place x, the rows tell of f what their mean does,

    ȳ = D Σ_i y_i/D_i,   D = 1/Σ_i 1/D_i,

exactly. So neighbours are places, and many measurements at one of them do not hide the others.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ...data.rows import Rows
from ...maths.gaussian import LOG_2PI

TINIEST = torch.finfo(torch.float64).tiny


class Places(NamedTuple):
    """Distinct places of training rows, in the order of their first rows."""

    G: Tensor  # features, (q, e)
    D: Tensor  # noise variance of ȳ as the model sees it, (q, P)
    y: Tensor  # ȳ, (q, P)
    variance: Tensor  # of ȳ's noise: D of a single row of weight w is that of w rows, (q, P)
    weight: Tensor  # mean of the rows' weights, (q,)
    n_rows: Tensor  # how many rows, (q,)
    of_row: Tensor  # the place of each row, (n,)

    @classmethod
    def of_rows(cls, G: Tensor, D: Tensor, y: Tensor, w: Tensor) -> Places:
        """Return each row as a place of its own."""
        count = torch.ones(len(G), dtype=torch.long, device=G.device)
        return cls(G, D, y, w[:, None] * D, w, count, count.cumsum(0) - 1)

    @classmethod
    def merged(cls, X: Tensor, G: Tensor, D: Tensor, y: Tensor, w: Tensor) -> Places:
        """Merge rows with equal X; sums are taken on the CPU, where their order is fixed."""
        first, of_row = (torch.from_numpy(part) for part in distinct(X.cpu().numpy()))
        if len(first) == len(X):
            return cls.of_rows(G, D, y, w)

        total = functools.partial(totals, of_row, len(first))
        D_i, y_i, w_i = D.cpu().clamp_min(TINIEST), y.cpu(), w.cpu()
        D_p, count = 1.0 / total(1.0 / D_i), total(torch.ones_like(of_row))
        parts = D_p, D_p * total(y_i / D_i), D_p.square() * total(w_i[:, None] / D_i)
        numbers = total(w_i) / count, count, of_row
        return cls(G[first.to(G.device)], *(part.to(G.device) for part in (*parts, *numbers)))

    def without(self, i: Tensor, D: Tensor, y: Tensor, w: Tensor) -> tuple[Places, Tensor]:
        """Append what is left of row i's places without them; return it with their numbers, (b,).

        D, y (b, P) and w (b,) are those of rows i. The number is −1 where no other row is there.
        """
        p, D = self.of_row[i], D.clamp_min(TINIEST)
        D_p, n = self.D[p], self.n_rows[p]
        rest = 1.0 / (1.0 / D_p - 1.0 / D).clamp_min(TINIEST)
        added = {
            "G": self.G[p],
            "D": rest,
            "y": rest * (self.y[p] / D_p - y / D),
            "variance": rest.square() * (self.variance[p] / D_p.square() - w[:, None] / D),
            "weight": (n * self.weight[p] - w) / (n - 1).clamp_min(1),
            "n_rows": n - 1,
        }
        numbers = len(self.G) + torch.arange(len(i), device=i.device)
        numbers = torch.where(n > 1, numbers, -1)
        grown = {name: torch.cat([getattr(self, name), part]) for name, part in added.items()}
        return self._replace(**grown), numbers


class Observed(NamedTuple):
    """What was observed at places, some of it with noise of another variance.

    Observation j is the mean y_j of w_j measurements, whose noise has variance v_j = σ² + s_j², and
    S_j = Σ w (y − y_j)² is about it. All at one place tell of f what ȳ of variance D does,

        D = 1/Σ_j w_j/v_j,   ȳ = D Σ_j w_j y_j/v_j,

    and have the density of ȳ times

        p(y | ȳ) = √(2πD) Π_j (2πv_j)^(−w_j/2) exp(−(S_j + w_j (y_j − ȳ)²)/(2v_j)).
    """

    rows: Rows  # observations, (k,)
    start: Tensor | None = None  # of each place's, and the end, (q + 1,); None: a place has one

    @property
    def mean_weight(self) -> float:
        """Mean weight of a place."""
        per_place = 1.0 if self.start is None else len(self.rows) / (len(self.start) - 1)
        return per_place * self.rows.mean_weight

    def at(self, p: Tensor) -> tuple[Rows, Tensor]:
        """Return the observations at places p, and at which of these each was made."""
        every = torch.arange(len(p), device=p.device)
        if self.start is None:
            return self.rows[p], every
        first, count = self.start[p], self.start[p + 1] - self.start[p]
        of_p = every.repeat_interleave(count)
        number = torch.arange(len(of_p), device=p.device) + (first - count.cumsum(0) + count)[of_p]
        return self.rows[number], of_p

    def means(self, p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return D and ȳ at places p, (b, P), with σ² (P,)."""
        rows, of_p = self.at(p)
        D_j, y = noise_of_rows(noise, rows).double(), rows.y.double()
        if self.start is None:
            return D_j, y
        D_j, total = D_j.clamp_min(TINIEST), functools.partial(totals, of_p, len(p))
        D = 1.0 / total(1.0 / D_j)
        return D, D * total(y / D_j)

    def total_weight(self, p: Tensor) -> Tensor:
        """Return the sums of the weights at places p, (b,)."""
        rows, of_p = self.at(p)
        w = rows.y.new_ones(len(rows)) if rows.weight is None else rows.weight.to(rows.y)
        return w if self.start is None else totals(of_p, len(p), w[:, None])[:, 0]

    def log_density_about_means(self, p: Tensor, noise: Tensor) -> Tensor | None:
        """Return log p(y | ȳ) at places p, (b, P), with σ² (P,); None: it is 0."""
        if self.start is None and self.rows.weight is None:
            return None
        (rows, of_p), (D, mean) = self.at(p), self.means(p, noise)
        D, w = D.clamp_min(TINIEST), cast(Tensor, rows.weight).double()[:, None]
        v = (noise_of_rows(noise, rows).double() * w).clamp_min(TINIEST)
        misfit = w * (rows.y.double() - mean[of_p]).square()
        if rows.within is not None:
            misfit = misfit + rows.within.double()
        each = w * (v.log() + LOG_2PI) + misfit / v
        of_all = each if self.start is None else totals(of_p, len(p), each)
        return 0.5 * (D.log() + LOG_2PI - of_all)


def noise_of_rows(noise: Tensor, rows: Rows) -> Tensor:
    """Return the noise variance of each row's y, (N, P): (σ² + s²)/w."""
    D = noise.expand_as(rows.y) if rows.noise is None else noise + rows.noise
    return D if rows.weight is None else D / rows.weight.to(D)[:, None]


def totals(of_row: Tensor, n_places: int, values: Tensor) -> Tensor:
    """Return the sums (q, ·) of rows' values (n, ·) at each place, on the CPU in fixed order."""
    sums = torch.zeros(n_places, *values.shape[1:], dtype=values.dtype, device="cpu")
    return sums.index_add(0, of_row.cpu(), values.cpu()).to(values.device)


def observed(X: Tensor, rows: Rows) -> tuple[Tensor, Observed]:
    """Return the first row of each place, (q,), and what was observed there.

    Rows at one place are one observation, unless their known errors differ.
    """
    every = torch.arange(len(X), device=X.device)
    if len(X[:, 0].unique()) == len(X):
        return every, Observed(rows)
    keys = X if rows.noise is None else torch.cat([X, rows.noise.float().to(X)], 1)  # but rounding
    first, of_row = distinct(keys.cpu().numpy())
    _, place = distinct(X.cpu().numpy()[first])
    n_places = int(place.max()) + 1
    if n_places == len(X):
        return every, Observed(rows)
    merged = one_observation(torch.from_numpy(of_row), len(first), rows)
    numbers = first, place.argsort(kind="stable"), np.bincount(place + 1).cumsum()
    i, order, start = (torch.from_numpy(part).to(X.device) for part in numbers)
    if rows.noise is not None:
        merged = replace(merged, noise=rows.noise[i])
    if n_places == len(first):
        return i, Observed(merged)
    return i[order[start[:-1]]], Observed(merged[order], start)


def one_observation(of_row: Tensor, n: int, rows: Rows) -> Rows:
    """Return n observations: the weighted means of rows, and the sums of squares about them."""
    y = rows.y.cpu().double()
    w = y.new_ones(len(y)) if rows.weight is None else rows.weight.cpu().to(y)
    weight = totals(of_row, n, w)
    mean = totals(of_row, n, w[:, None] * y) / weight[:, None]
    within = totals(of_row, n, w[:, None] * (y - mean[of_row]).square())
    mean, weight, within = (each.to(rows.y) for each in (mean, weight, within))
    return Rows(mean, weight=weight, within=within)


def distinct(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each place, in order, and the place of each row."""
    rows = np.ascontiguousarray(X + 0.0)  # −0 is 0
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    _, first, of_row = np.unique(keys, return_index=True, return_inverse=True)
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[of_row.ravel()]
