"""Find the rows nearest to others: exactly, by a tree in few dimensions, else by products.

Rows keep their numbers, and a row that is not there has number −1. Rows at equal distances are
taken in the order of their numbers, so that a query's neighbours do not depend on other queries.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ..data.devices import is_host

MOST_TREE_DIMENSIONS = 8.0
"""Dimensions in which a tree still beats products. *Measured* on 40,000 rows, 33 neighbours: with
8 independent inputs a query takes 86 µs by a tree and 200 by products; with 24, 1,300 and 200."""

PRODUCTS = 1 << 22  # distances that are computed at a time
SPARE = 8  # candidates beyond those wanted, because products round distances
LEAST_PREFIX = 256  # rows of the smallest tree among earlier rows


class Nearest:
    """Finds neighbours among rows, (n, e)."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.detach().double().contiguous()
        self.uses_trees = is_host(rows.device) and dimensions(self.rows) <= MOST_TREE_DIMENSIONS
        self.trees: dict[int, cKDTree] = {}  # of the first so many rows
        self.floats = None if self.uses_trees else self.rows.float()

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of the k rows nearest to each row of Q (q, e), nearest first."""
        return self._among(len(self), Q.detach().double(), min(k, len(self)))

    def others(self, i: Tensor, k: int) -> Tensor:
        """Return those nearest to the rows numbered i, without the rows themselves: (q, k)."""
        found = self.of(self.rows[i], k + 1)
        return first_where(found, found != i[:, None], k)

    def earlier(self, i: Tensor, k: int) -> Tensor:
        """Return those nearest to the rows numbered i among the rows before them: (q, k)."""
        found = torch.full((len(i), k), -1, dtype=torch.long, device=i.device)
        level = prefixes(i, len(self))
        for size in level.unique().tolist():
            at = (level == size).nonzero()[:, 0]
            found[at] = self._earlier_among(size, i[at], k)
        return found

    def _earlier_among(self, size: int, i: Tensor, k: int) -> Tensor:
        """Do the same, given that these rows are among the first `size`."""
        found = torch.full((len(i), k), -1, dtype=torch.long, device=i.device)
        left, n_asked = torch.arange(len(i), device=i.device), min(size, math.ceil(2.3 * k) + 1)
        while len(left):
            near = self._among(size, self.rows[i[left]], n_asked)
            is_earlier = near < i[left, None]
            found[left] = first_where(near, is_earlier, k)
            is_complete = (is_earlier.sum(1) >= i[left].clamp_max(k)) | (n_asked == size)
            left, n_asked = left[~is_complete], min(size, 2 * n_asked)
        return found

    def _among(self, size: int, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of the k nearest of the first `size` rows, (q, k)."""
        if self.uses_trees:
            if size not in self.trees:
                self.trees[size] = cKDTree(self.rows[:size].numpy(), balanced_tree=False)
            found = self.trees[size].query(Q.numpy(), k=range(1, k + 1))[1]
            return torch.from_numpy(np.asarray(found, dtype=np.int64))
        blocks = Q.split(max(1, PRODUCTS // size))
        return torch.cat([self._by_products(size, block, k) for block in blocks])

    def _by_products(self, size: int, Q: Tensor, k: int) -> Tensor:
        rows = self.floats[:size]  # type: ignore[index]
        centre = rows.mean(0)
        A, B = Q.float() - centre, rows - centre
        r2 = torch.addmm(B.square().sum(1), A, B.T, alpha=-2.0)
        near = r2.topk(min(size, k + SPARE), largest=False).indices.sort(1).values
        exact = (self.rows[near] - Q[:, None]).square().sum(-1)
        return near.gather(1, exact.sort(dim=1, stable=True).indices[:, :k])


def dimensions(rows: Tensor) -> float:
    """Return the effective number of dimensions, (Σ var)²/Σ var², between 1 and that of columns."""
    var = rows.var(0, correction=0)
    return float(var.sum().square() / var.square().sum().clamp_min(torch.finfo(var.dtype).tiny))


def prefixes(i: Tensor, n: int) -> Tensor:
    """Return a size for each row number, so that row i is among as many first rows: (q,).

    Sizes are n, n/2, n/4, ..., so at least half of the rows among the first are before row i.
    """
    sizes = [n]
    while sizes[-1] > LEAST_PREFIX:
        sizes.append(math.ceil(sizes[-1] / 2))
    ordered = torch.tensor(sizes[::-1], device=i.device)
    return ordered[torch.searchsorted(ordered, i + 1)]


def first_where(numbers: Tensor, is_wanted: Tensor, k: int) -> Tensor:
    """Return the first k wanted numbers of each row, (q, k); −1 where there are too few."""
    place = is_wanted.cumsum(1) - 1
    row, at = (is_wanted & (place < k)).nonzero(as_tuple=True)
    found = torch.full((len(numbers), k), -1, dtype=numbers.dtype, device=numbers.device)
    found[row, place[row, at]] = numbers[row, at]
    return found
