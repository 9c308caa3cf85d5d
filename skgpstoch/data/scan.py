"""First pass over the rows: their number, classes, a sample, and whether they are sorted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chunk import Chunk, as_dtype
from .row_sample import SmallestHashes
from .row_source import RowSource
from .sorted_rows import Blocks, LabelBlocks, NumberBlocks, merged_blocks, warn_if_sorted

MOST_LABELS = 10_000
"""Most labels for y to be taken for classes."""


@dataclass(frozen=True)
class Scan:
    """Facts about the rows of a source, or of a rank's share of it.

    Rows of weight 0 do not count.

    Parameters
    ----------
    n_rows : int
        Number of rows with positive weight.
    n_effective : float
        Total weight of the rows, Σw.
    classes : ndarray or None
        The labels of y, sorted, if they were asked for.
    sample : Chunk or None
        The rows with the smallest hashes of their numbers, in the order of hashes; None if there
        are none.
    extremes : ndarray of shape (2,) or (2, P), or None
        The least and the largest y, if it holds numbers.
    """

    n_rows: int
    n_effective: float
    classes: np.ndarray | None
    sample: Chunk | None
    extremes: np.ndarray | None = None


def scan(source: RowSource, n_sample: int, seed: int, classes: bool = False) -> Scan:
    """Read all rows once, in order, and return facts about them.

    The memory is bounded by the sample and one chunk. Sums differ from those of the whole array
    only by rounding; the sample does not depend on which ranks read which rows.

    Parameters
    ----------
    source : RowSource
        The rows.
    n_sample : int
        Number of rows to sample.
    seed : int
        Seed of the sample.
    classes : bool, default=False
        Whether y holds labels. Otherwise it must hold numbers, if there is y.

    Raises
    ------
    ValueError
        If chunks are invalid, see :meth:`RowSource.chunks`, or if there are more than 10,000
        labels.
    """
    if (known := source.known(n_sample)) is not None:
        return known
    tally = Tally(n_sample, seed, classes)
    for chunk in source.chunks():
        tally.add(chunk)
    if tally.blocks is not None:
        warn_if_sorted(source, tally.blocks)
    return tally.scan()


class Tally:
    """Facts about the chunks that were added so far."""

    def __init__(self, n_sample: int, seed: int, classes: bool) -> None:
        self.smallest = SmallestHashes(n_sample, seed)
        self.has_labels = classes
        self.n_rows, self.n_effective = 0, 0.0
        self.classes: np.ndarray | None = None
        self.blocks: Blocks | None = None
        self.extremes: np.ndarray | None = None

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        chunk = chunk.counted()
        if len(chunk) == 0:
            return
        self.n_rows += len(chunk)
        self.n_effective += len(chunk) if chunk.weight is None else float(chunk.weight.sum())
        self.smallest.add(chunk)
        if chunk.y is not None and self.has_labels:
            self.add_labels(chunk)
        elif chunk.y is not None:
            self.add_numbers(chunk)

    def add_labels(self, chunk: Chunk) -> None:
        """Add labels."""
        labels, codes = unique_labels(chunk)
        counts = np.bincount(codes, chunk.weight, len(labels))
        self.classes = merged_classes(self.classes, labels)
        self.add_block(LabelBlocks.of(labels, counts))

    def add_numbers(self, chunk: Chunk) -> None:
        """Add targets that are numbers."""
        y = as_dtype(chunk.y, np.dtype(np.float64), f"{chunk.where}: y")
        weight = np.ones(len(y)) if chunk.weight is None else chunk.weight
        self.add_block(NumberBlocks.of(y.reshape(len(y), -1), weight))
        known = y if self.extremes is None else np.concatenate([self.extremes, y])
        self.extremes = np.stack([known.min(0), known.max(0)])

    def add_block(self, block: Blocks) -> None:
        """Add the moments, or label counts, of a chunk's y."""
        self.blocks = merged_blocks(self.blocks, block)

    def scan(self) -> Scan:
        """Return the facts about all chunks so far."""
        sample = self.smallest.sample()
        return Scan(self.n_rows, self.n_effective, self.classes, sample, self.extremes)


def unique_labels(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted labels of a chunk, and the position of each row's label among them.

    Raises
    ------
    ValueError
        If labels cannot be sorted, or if rows do not have one label each.
    """
    y = chunk.y
    if y is None or y.ndim != 1:
        raise ValueError(
            f"{chunk.where}: y must have one label for each row, got "
            f"{'no y' if y is None else f'shape {y.shape}'}."
        )
    try:
        return np.unique(y, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"{chunk.where}: y must hold labels of one type: {error}.") from error


def merged_classes(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Return the sorted union of labels."""
    known = [labels for labels in (first, second) if labels is not None]
    if not known:
        return None
    try:
        merged = np.unique(np.concatenate(known))
    except TypeError as error:
        raise ValueError(f"y must hold labels of one type: {error}.") from error
    if len(merged) > MOST_LABELS:
        raise ValueError(
            f"y must hold at most {MOST_LABELS:,} different labels, got more. It looks like "
            "numbers; use a regressor."
        )
    return merged
