"""A random sample of rows that does not depend on the order or the split of the rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .chunk import Chunk, concatenated
from .row_hash import row_hashes


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


def smallest_of(samples: Iterable[Chunk], size: int, seed: int) -> Chunk | None:
    """Combine the samples of parts into a sample of all their rows."""
    smallest = SmallestHashes(size, seed)
    for sample in samples:
        smallest.add(sample)
    return smallest.sample()
