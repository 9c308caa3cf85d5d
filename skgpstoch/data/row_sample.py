"""Random samples of rows, which do not depend on the order or the split of the rows.

A sample has the rows with the smallest hashes of their numbers. Rows on several ranks are numbered
rank after rank, rows that are read in chunks as they are stored.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .chunk import Chunk, concatenated
from .counter_rng import row_hashes
from .equal_rows import MERGED_ROWS
from .groups import Group

GATHERED_ROWS = MERGED_ROWS  # up to which rank 0 fits for all
SAMPLE_ROWS = 100_000
SAMPLE_NUMBERS = 50_000_000  # of X in a sample, at most
HASHED_ROWS = 1 << 20  # whose hashes are in memory at a time


def most_sampled(n_features: int) -> int:
    """Return how many rows a sample has at most."""
    return min(SAMPLE_ROWS, max(MERGED_ROWS, SAMPLE_NUMBERS // n_features))


def are_few(n_rows: int, most: int = 0) -> bool:
    """Tell whether rank 0 may gather these rows, or so many, and fit for all."""
    return n_rows <= max(GATHERED_ROWS, most)


# ---- rows on several ranks -----------------------------------------------------------------------


def offsets(group: Group, n_local: int) -> tuple[int, int]:
    """Return the number of this rank's first row, and how many rows there are in all.

    Rows are numbered rank after rank, as :meth:`~Group.gather` orders them.
    """
    if group.size == 1:
        return 0, n_local
    counts = torch.zeros(group.size, dtype=torch.int64)
    counts[group.rank] = n_local
    group.sum_(counts)
    return int(counts[: group.rank].sum()), int(counts.sum())


def chosen_rows(group: Group, seed: int, first: int, n_local: int, k: int) -> tuple[Tensor, Tensor]:
    """Choose k random rows; the choice does not depend on how rows are split over ranks.

    They are the rows with the smallest hashes of their numbers.

    Parameters
    ----------
    group : Group
        All ranks.
    seed : int
        Seed of the choice.
    first, n_local : int
        Number of this rank's first row (:func:`offsets`), and how many rows it has.
    k : int
        Number of rows to choose; all rows if there are fewer.

    Returns
    -------
    positions : Tensor of shape (k_local,)
        Positions of this rank's chosen rows, by increasing hashes.
    places : Tensor of shape (k_local,)
        Position of each of them among all chosen rows, in the order of hashes.
    """
    hashes, positions = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    for start in range(0, n_local, HASHED_ROWS):
        n_rows = min(HASHED_ROWS, n_local - start)
        numbers = np.arange(first + start, first + start + n_rows)
        hashes = torch.cat([hashes, torch.from_numpy(row_hashes(seed, numbers))])
        positions = torch.cat([positions, torch.arange(start, start + n_rows)])
        hashes, smallest = hashes.topk(min(k, len(hashes)), largest=False)
        positions = positions[smallest]
    chosen = group.gather_tensor(hashes).sort().values[:k]
    places = torch.searchsorted(chosen, hashes)
    return positions[places < len(chosen)], places[places < len(chosen)]


# ---- rows that are read in chunks ----------------------------------------------------------------


class SmallestHashes:
    """Keep the rows with the smallest hashes of their numbers, among those that are added.

    Parameters
    ----------
    size : int
        Number of rows to keep.
    seed : int
        Seed of the hashes.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.parts: list[Chunk] = []
        self.hashes = np.empty(0, dtype=np.int64)

    def add(self, chunk: Chunk) -> None:
        """Add the rows of a chunk whose hashes are small enough."""
        if self.size == 0:
            return
        hashes = row_hashes(self.seed, chunk.rows)
        if self.size <= len(self.hashes):
            small = hashes < self.limit
            hashes, chunk = hashes[small], chunk[small]
        if len(hashes) == 0:
            return
        self.parts.append(chunk)
        self.hashes = np.concatenate([self.hashes, hashes])
        if len(self.hashes) >= 2 * self.size:
            self.shrink()

    @property
    def limit(self) -> np.int64:
        """The limit below which the hash of a further row must be, once there are enough rows."""
        return np.partition(self.hashes, self.size - 1)[self.size - 1]

    def shrink(self) -> None:
        """Keep only the rows with the smallest hashes, in the order of hashes."""
        order = np.argsort(self.hashes)[: self.size]
        self.parts = [concatenated(self.parts)[order]]
        self.hashes = self.hashes[order]

    def sample(self) -> Chunk | None:
        """Return the rows in the order of hashes; None if there are none."""
        if self.parts:
            self.shrink()
        return self.parts[0] if self.parts else None


def joint_sample(group: Group, own: Chunk | None, size: int, seed: int) -> Chunk | None:
    """Return the sample of all ranks' rows, from the sample of each."""
    if group.size == 1:
        return own
    hashes = row_hashes(seed, np.empty(0) if own is None else own.rows)
    last = np.sort(group.gather(hashes))[:size][-1:]
    if own is not None:
        own = own[hashes <= last]
    smallest = SmallestHashes(size, seed)
    for part in group.every(own):
        if part is not None and len(part):
            smallest.add(part)
    return smallest.sample()
