"""Find the rows nearest to others: exactly, by a tree in few dimensions, else by products.

Where products would take long, most of them can be found by an index. Rows keep their numbers, and
a row that is not there has number −1. Which of the rows at equal distances are taken does not
depend on other queries: by products, those with the smallest numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ..data.arrays import row_blocks
from ..data.devices import is_host
from .indexed import FEWEST_INDEXED, Index

MOST_TREE_DIMENSIONS = 8.0
"""Dimensions in which a tree still beats products. *Measured* on 40,000 rows, 33 neighbours: with
8 independent inputs a query takes 86 µs by a tree and 200 by products; with 24, 1,300 and 200."""

PRODUCTS = 1 << 22  # distances that are computed at a time
COMPARED = 1 << 18  # the same in float64, within the cache
GROUP = 16  # rows of which only the nearest is compared with others first
SPARE = 8  # first candidates beyond those wanted, because products round distances
FARTHEST, FARTHEST_OF_PRODUCTS = 1e150, 1e15
"""Largest coordinates, whose squares float64 can add up; and those of queries in products, in units
of the rows' greatest, which float32 can. What is farther is far from all rows in any case."""
LEAST_PREFIX = 256  # rows of the smallest tree among earlier rows
ASKED_FOR_EACH = 8  # rows for each one wanted that are looked at before all are compared


class Nearest:
    """Finds neighbours among rows, (n, e).

    Each may be farther from all others than its place is, by a lag (n,) in squared distance: by a
    coordinate that only queries have in common. If it `is_approximate`, an index may miss some.
    """

    def __init__(
        self, rows: Tensor, lag: Tensor | None = None, is_approximate: bool = False
    ) -> None:
        self.places = limited(rows)
        self.has_lag = lag is not None
        self.rows = (
            self.places if lag is None else limited(torch.cat([rows, lag[:, None].sqrt()], 1))
        )
        self.uses_trees = is_host(rows.device) and dimensions(self.rows) <= MOST_TREE_DIMENSIONS
        self.trees: dict[int, cKDTree] = {}  # of the first so many rows
        self.products: dict[tuple[int, torch.dtype], Products] = {}  # the same
        self.uses_indices = is_approximate and is_host(rows.device) and not self.uses_trees
        self.indices: dict[int, Index] = {}  # the same

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of the k rows nearest to each row of Q (q, e), nearest first."""
        return self._among(len(self), self._asked(limited(Q)), min(k, len(self)))

    def _asked(self, Q: Tensor) -> Tensor:
        """Return queries without a lag."""
        return torch.nn.functional.pad(Q, (0, 1)) if self.has_lag else Q

    def at_most(self, k: int) -> int:
        """Return k, or the number of other rows if there are fewer; at least 1."""
        return max(1, min(k, len(self) - 1))

    def others(self, i: Tensor, k: int) -> Tensor:
        """Return those nearest to the rows numbered i, without the rows themselves: (q, k).

        There are n − 1 columns if k is more.
        """
        k = self.at_most(k)
        found = self.of(self.places[i], k + 1)
        return first_where(found, found != i[:, None], k)

    def earlier(self, i: Tensor, k: int) -> Tensor:
        """Return those nearest to the rows numbered i among the rows before them: (q, k).

        There are n − 1 columns if k is more.
        """
        k = self.at_most(k)
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
            if n_asked > ASKED_FOR_EACH * k:
                found[left] = self._of_all(size, self._asked(self.places[i[left]]), k, i[left])
                break
            near = self._among(size, self._asked(self.places[i[left]]), n_asked)
            is_earlier = near < i[left, None]
            found[left] = first_where(near, is_earlier, k)
            is_complete = (is_earlier.sum(1) >= i[left].clamp_max(k)) | (n_asked == size)
            left, n_asked = left[~is_complete], min(size, 2 * n_asked)
        return found

    def _of_all(self, size: int, Q: Tensor, k: int, ends: Tensor) -> Tensor:
        """Return the k nearest of the first rows, before these ends (q,), by all distances."""
        found = torch.full((len(Q), k), -1, dtype=torch.long, device=Q.device)
        numbers, columns = torch.arange(size, device=Q.device), self.rows[:size].unbind(1)
        for b in row_blocks(len(Q), max(1, COMPARED // size)):
            r2 = sum((x - q).square() for x, q in zip(columns, Q[b].T[..., None], strict=True))
            r2.masked_fill_(numbers >= ends[b, None], math.inf)
            r2 = torch.nn.functional.pad(r2, (0, -size % GROUP), value=math.inf)
            near = first_nearest(r2, min(k, size))
            r2, order = r2.gather(1, near).sort(dim=1, stable=True)
            found[b, : near.shape[1]] = torch.where(r2.isfinite(), near.gather(1, order), -1)
        return found

    def _among(self, size: int, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of the k nearest of the first `size` rows, (q, k)."""
        if self.uses_trees:
            if size not in self.trees:
                self.trees[size] = cKDTree(self.rows[:size].numpy())
            found = self.trees[size].query(Q.numpy(), k=range(1, k + 1))[1]
            return torch.from_numpy(np.asarray(found, dtype=np.int64))
        if self.uses_indices and size >= FEWEST_INDEXED:
            return self._by_index(size, Q, k)
        return self._exactly(size, Q, k)

    def _by_index(self, size: int, Q: Tensor, k: int) -> Tensor:
        """Do the same among what an index finds, or all rows if that is too few."""
        if size not in self.indices:
            self.indices[size] = Index.of(self.rows[:size])
        found = torch.empty(len(Q), k, dtype=torch.long)
        for b in row_blocks(len(Q), max(1, PRODUCTS // ((k + SPARE) * Q.shape[1]))):
            candidates = self.indices[size].nearest(Q[b], k + SPARE)
            is_open = (candidates < 0).any(1)
            found[b] = self._ranked(Q[b], candidates.clamp_min(0), k)[0]
            if is_open.any():
                found[b][is_open] = self._exactly(size, Q[b][is_open], k)
        return found

    def _ranked(self, Q: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k nearest of candidates, and the squared distance of the last one."""
        candidates = candidates.sort(1).values
        exact = (self.rows[candidates] - Q[:, None]).square().sum(-1)
        r2, order = (part[:, :k] for part in exact.sort(dim=1, stable=True))
        return candidates.gather(1, order), r2[:, -1]

    def _exactly(self, size: int, Q: Tensor, k: int) -> Tensor:
        """Do the same among all of them."""
        key = size, product_type()
        if key not in self.products:
            self.products[key] = Products.of(self.rows[:size], key[1])
        return self._by_products(self.products[key], Q, k, min(size, k + SPARE))

    def _by_products(self, products: Products, Q: Tensor, k: int, n_candidates: int) -> Tensor:
        """Do the same by rounded distances to all rows, and exact ones to some candidates.

        Queries for which a row that is no candidate may be as near are asked again with more, and
        where many rows are at equal distances, by exact distances to all.
        """
        found, of_query = [], len(products.rows) + n_candidates * Q.shape[1]
        for block in Q.split(max(1, PRODUCTS // of_query)):
            candidates, beyond = products.nearest(block, n_candidates)
            near, last = self._ranked(block, candidates, k)
            is_open = last >= beyond
            if is_open.any():
                again, n_more = block[is_open], min(products.n, 2 * n_candidates)
                if n_more > ASKED_FOR_EACH * (k + SPARE):
                    ends = torch.full_like(again[:, 0], products.n)
                    near[is_open] = self._of_all(products.n, again, k, ends)
                else:
                    near[is_open] = self._by_products(products, again, k, n_more)
            found.append(near)
        return torch.cat(found)


def product_type() -> torch.dtype:
    """Return the type of products whose factors are not rounded: float32, unless torch may.

    With "high" or "medium" precision, factors have 11 (TF32) or 8 bits (bfloat16) on some devices.
    """
    return torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float64


class Products(NamedTuple):
    """Rows less their centre, in float32 and units of the greatest, for distances by products."""

    centre: Tensor  # (e,)
    unit: float  # a power of 2, so that division by it is exact
    rows: Tensor  # (n + pad, e)
    norms: Tensor  # (n + pad,); infinite for the padding

    @classmethod
    def of(cls, rows: Tensor, dtype: torch.dtype = torch.float32) -> Products:
        """Prepare rows (n, e); pad them to whole groups."""
        centre, n_pad = rows.mean(0), -len(rows) % GROUP
        rows = rows - centre
        unit = 2.0 ** math.frexp(float(rows.abs().max()))[1]
        rows = torch.nn.functional.pad((rows / unit).to(dtype), (0, 0, 0, n_pad))
        norms = rows.square().sum(1)
        norms[len(norms) - n_pad :] = math.inf
        return cls(centre, unit, rows, norms)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.norms.isfinite().sum())

    def nearest(self, Q: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return k rows that are nearest if distances are rounded, (q, k), and what all others are.

        These have squared distances of at least the second value, (q,). A product of vectors with e
        numbers is rounded by at most e eps times their lengths, or by the smallest number; what is
        nearer than a row at distance r is at most |q| + r from the centre.
        """
        Q = limited((Q - self.centre) / self.unit, FARTHEST_OF_PRODUCTS)
        r2 = torch.addmm(self.norms, Q.to(self.rows), self.rows.T, alpha=-2.0)
        values, numbers = smallest(r2, k)
        if k == self.n:
            return numbers, torch.full_like(Q[:, 0], math.inf)
        q2 = Q.square().sum(1)
        last = values.amax(1) + q2
        length2 = (q2.sqrt() + last.clamp_min(0.0).sqrt()).square()
        of_type, n_terms = torch.finfo(self.rows.dtype), 4.0 * (Q.shape[1] + 4)
        beyond = last - n_terms * (of_type.eps * length2 + of_type.tiny)
        return numbers, beyond * self.unit**2


def smallest(r2: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest values of each row (q, n), and their places, unordered.

    They are in the k groups of columns whose smallest values are the smallest.
    """
    groups = r2.view(len(r2), -1, GROUP)  # (q, n/GROUP, GROUP)
    if groups.shape[1] <= k:
        values, numbers = r2.topk(k, largest=False, sorted=False)
        return values, numbers
    best = groups.amin(2).topk(k, largest=False, sorted=False).indices  # (q, k)
    found = groups.gather(1, best[..., None].expand(-1, -1, GROUP)).flatten(1)
    values, at = found.topk(k, largest=False, sorted=False)
    return values, best.gather(1, at // GROUP) * GROUP + at % GROUP


def first_nearest(r2: Tensor, k: int) -> Tensor:
    """Return the places of the k smallest values of each row, (q, k), in order of their numbers.

    Of equal values, those with the smallest numbers are taken.
    """
    last = smallest(r2, k)[0].amax(1, keepdim=True)
    is_nearer, is_last = r2 < last, r2 == last
    is_taken = is_nearer | (is_last & (is_last.cumsum(1) <= k - is_nearer.sum(1, keepdim=True)))
    return first_where(torch.arange(r2.shape[1], device=r2.device).expand_as(r2), is_taken, k)


def limited(rows: Tensor, most: float = FARTHEST) -> Tensor:
    """Return rows in float64, with coordinates whose squares do not overflow."""
    return rows.detach().double().clamp(-most, most).contiguous()


def dimensions(rows: Tensor) -> float:
    """Return the effective number of dimensions, (Σ var)²/Σ var², between 1 and that of columns."""
    var = (rows / rows.abs().max().clamp_min(1.0)).var(0, correction=0)
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
