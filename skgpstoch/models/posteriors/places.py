"""Rows at one place are one observation: the mean of their y, with less noise.

Of y_i = f(x) + ε_i, ε_i ~ N(0, D_i), at one place x, the rows tell of f what their mean does,

    ȳ = D Σ_i y_i/D_i,   D = 1/Σ_i 1/D_i,

exactly. So neighbours are places, and many measurements at one of them do not hide the others.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data.rows import Rows

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


def totals(of_row: Tensor, n_places: int, values: Tensor) -> Tensor:
    """Return the sums (q, ·) of rows' values (n, ·) at each place."""
    return values.new_zeros(n_places, *values.shape[1:]).index_add_(0, of_row, values)


def observed(X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
    """Return the first row of each place, (q,), and the rows that stand for all at each.

    Observations y_j of weights w_j at a place, of one noise variance σ²/w_j, have the density of
    their mean ȳ, with variance σ²/w, w = Σ_j w_j, and of S = Σ_j w_j (y_j − ȳ)² about it. Rows
    whose known errors differ stay apart.
    """
    every = torch.arange(len(X), device=X.device)
    if len(X[:, 0].unique()) == len(X):
        return every, rows
    keys = X if rows.noise is None else torch.cat([X, rows.noise.float().to(X)], 1)  # but rounding
    first, of_row = (torch.from_numpy(part) for part in distinct(keys.cpu().numpy()))
    if len(first) == len(X):
        return every, rows
    y = rows.y.cpu()
    w = y.new_ones(len(y)) if rows.weight is None else rows.weight.cpu().to(y)
    total = functools.partial(totals, of_row, len(first))
    weight = total(w)
    mean = total(w[:, None] * y) / weight[:, None]
    within = total(w[:, None] * (y - mean[of_row]).square())
    first, noise = first.to(X.device), rows.noise
    y, w, S = (each.to(X.device) for each in (mean, weight, within))
    return first, Rows(y, weight=w, noise=None if noise is None else noise[first], within=S)


def distinct(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each place, in order, and the place of each row."""
    rows = np.ascontiguousarray(X + 0.0)  # −0 is 0
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    _, first, of_row = np.unique(keys, return_index=True, return_inverse=True)
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[of_row.ravel()]
