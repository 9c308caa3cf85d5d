"""First pass over the rows: their number, classes, a sample, and whether they are sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .array_inputs import refuse_huge, warn_if_rounded
from .chunk import Chunk, as_dtype
from .messages import warn
from .row_sample import SmallestHashes
from .row_source import RowSource

MOST_LABELS = 10_000
"""Most labels for y to be taken for classes."""

MOST_WEIGHT = 1e100  # whose square is a number; larger ones are refused later

FEWEST_IN_CHUNK = 2  # rows of one weight, for chunks to tell whether rows are sorted

MOST_EXPLAINED = 0.05
"""Share of y's variance that the content of a shuffle buffer may explain. Its mean is then .2 σ
from that of all rows, five times as far as that of a minibatch of 512 random rows."""


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


def scan(
    source: RowSource,
    n_sample: int,
    seed: int,
    classes: bool = False,
    check: Callable[[Chunk], object] | None = None,
) -> Scan:
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
    check : callable or None, default=None
        Raises an error if rows of a chunk are invalid.

    Raises
    ------
    ValueError
        If chunks are invalid, see :meth:`RowSource.chunks`, or if there are more than 10,000
        labels.
    """
    known: Scan | None = source.known(n_sample)
    return known or scanned(source, source.chunks(), n_sample, seed, classes, check)


def scanned(
    source: RowSource,
    chunks: Iterable[Chunk],
    n_sample: int,
    seed: int,
    classes: bool,
    check: Callable[[Chunk], object] | None = None,
) -> Scan:
    """Return facts about chunks, which are those of a source; warn if its rows are sorted."""
    tally, integers = Tally(n_sample, seed, classes), Integers()
    for chunk in chunks:
        if check is not None:
            check(chunk)
        tally.add(chunk)
        integers.add(chunk.X, source)
    integers.warn(source)
    if tally.blocks:
        square = max(tally.sum_of_squares, np.finfo(float).tiny)
        n_alike = tally.n_effective * (tally.n_effective / square)
        warn_if_sorted(source, tally.blocks, n_alike)
    sample = tally.smallest.sample()
    return Scan(tally.n_rows, tally.n_effective, tally.classes, sample, tally.extremes)


class Tally:
    """Facts about the chunks that were added so far."""

    def __init__(self, n_sample: int, seed: int, classes: bool) -> None:
        self.smallest = SmallestHashes(n_sample, seed)
        self.has_labels = classes
        self.n_rows, self.n_effective, self.sum_of_squares = 0, 0.0, 0.0
        self.classes: np.ndarray | None = None
        self.blocks: list[Any] = []
        self.unit = np.ones(1)  # of each column of y, so that its powers are numbers
        self.extremes: np.ndarray | None = None

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        chunk = chunk.counted()
        if len(chunk) == 0:
            return
        self.n_rows += len(chunk)
        weight = chunk.row_counts
        self.n_effective += float(weight.sum())
        self.sum_of_squares += float(np.square(np.minimum(weight, MOST_WEIGHT)).sum())
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
        self.blocks.append(LabelCounts(labels, counts))

    def add_numbers(self, chunk: Chunk) -> None:
        """Add targets that are numbers."""
        y = as_dtype(chunk.y, np.dtype(np.float64), f"{chunk.where}: y")
        weight = chunk.row_counts
        known = y if self.extremes is None else np.concatenate([self.extremes, y])
        self.extremes = np.stack([known.min(0), known.max(0)])
        refuse_huge(self.extremes)
        columns = y.reshape(len(y), -1)
        size = np.abs(self.extremes).max(0).reshape(-1)
        unit = np.where(size > 0.0, size, 1.0)
        if self.blocks and (unit != self.unit).any():
            with np.errstate(over="ignore"):  # moments are then 0 beside those of later rows
                factor = np.maximum(unit / self.unit, 1.0)  # smaller where there was no size
                self.blocks = [block.in_unit(factor) for block in self.blocks]
        self.unit = unit
        self.blocks.append(Moments.of(columns / self.unit, weight))


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


def merged_classes(known: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """Return the sorted union of labels."""
    try:
        merged = labels if known is None else np.unique(np.concatenate([known, labels]))
    except TypeError as error:
        raise ValueError(f"y must hold labels of one type: {error}.") from error
    if len(merged) > MOST_LABELS:
        raise ValueError(
            f"y must hold at most {MOST_LABELS:,} different labels, got more. It looks like "
            "numbers; use a regressor."
        )
    return merged


class Integers:
    """The range of columns of X that were stored as 64-bit integers, and are floats now."""

    def __init__(self) -> None:
        self.range: np.ndarray | None = None  # (2, d)

    def add(self, X: Any, source: RowSource) -> None:
        """Add rows of a source; those of a frame are judged where they are converted."""
        if not isinstance(X, np.ndarray) or X.dtype.kind != "f" or not source.are_integers.any():
            return
        known = X if self.range is None else np.concatenate([self.range, X])
        self.range = np.stack([np.fmin.reduce(known), np.fmax.reduce(known)])

    def warn(self, source: RowSource) -> None:
        """Warn of columns whose integers were rounded."""
        if self.range is None:
            return
        names = source.feature_names
        are_known = source.are_integers & np.isfinite(self.range).all(0)
        for j in np.flatnonzero(are_known).tolist():
            least, most = map(int, self.range[:, j])
            where = f"column {j if names is None else names[j]!r} of X"
            warn_if_rounded(least, most, where, j)


# ---- sorted rows, which are alike if they are read together --------------------------------------


class Moments(NamedTuple):
    """Moments of y in a chunk: Σw, the mean and the central moments, (P,) each."""

    weight: float
    mean: np.ndarray
    second: np.ndarray
    third: np.ndarray
    fourth: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, w: np.ndarray) -> Moments:
        """Return the moments of one chunk, from y (m, P) and weights (m,)."""
        weight = w.sum()
        mean = (w / weight) @ y
        away = y - mean
        return cls(weight, mean, *(w @ away**k / weight for k in (2, 3, 4)))

    def in_unit(self, factor: np.ndarray) -> Moments:
        """Return the moments of y measured in a larger unit, by these factors (P,)."""
        mean, *central = (m / factor**k for k, m in enumerate(self[1:], 1))
        return Moments(self.weight, mean, *central)

    @staticmethod
    def explained(chunks: Sequence[Moments]) -> float:
        """Return the share of the variance of y, or of its squared deviations, that chunks explain.

        The share is in [0, 1]. Chunks of random rows explain neither. If rows are sorted by y,
        chunks differ in their means; if they are sorted by |y|, in their squared deviations.
        """
        weight, mean, second, third, fourth = map(np.stack, zip(*chunks, strict=True))
        share = weight / weight.sum()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            off = mean - share @ mean
            of_mean = share @ off**2 / (share @ (second + off**2))
            square = second + off**2  # mean of (y − ȳ)², and of its square
            fourth = fourth + 4 * off * third + 6 * off**2 * second + off**4
            centre = share @ square
            of_square = share @ (square - centre) ** 2 / (share @ fourth - centre**2)
        found = np.concatenate([of_mean, of_square])
        return float(np.max(found, initial=0.0, where=np.isfinite(found)))


class LabelCounts(NamedTuple):
    """Labels of a chunk, and the weight of the rows with each label."""

    labels: np.ndarray
    counts: np.ndarray

    @staticmethod
    def explained(chunks: Sequence[LabelCounts]) -> float:
        """Return the share of the labels' variance that chunks explain, Goodman and Kruskal's τ."""
        classes = np.unique(np.concatenate([chunk.labels for chunk in chunks]))
        total, within = np.zeros(len(classes)), 0.0
        for labels, counts in chunks:
            total[np.searchsorted(classes, labels)] += counts
            within += np.square(counts).sum() / counts.sum()
        n = total.sum()
        chance = np.square(total).sum() / n
        return float((within - chance) / (n - chance)) if n > chance else 0.0


def warn_if_sorted(source: RowSource, chunks: Sequence[Any], n_alike: float) -> None:
    """Warn if the shuffle buffer does not mix the rows of a source.

    Parameters
    ----------
    source : RowSource
        Source whose rows were read.
    chunks : sequence of Moments or of LabelCounts
        What y was in each chunk.
    n_alike : float
        Number of rows of one weight that a mean varies as much with, (Σw)²/Σw² (Kish).
    """
    n_rows, n_chunks = source.n_rows, len(chunks)
    if n_rows is None or n_rows <= source.buffer_rows or n_alike <= FEWEST_IN_CHUNK * n_chunks:
        return  # few rows decide, and explain themselves
    chance = (n_chunks - 1) / (n_alike - 1)  # what chunks of random rows explain
    explained = (type(chunks[0]).explained(chunks) - chance) / (1.0 - chance)
    held = source.buffer_rows / n_rows  # share of the rows
    in_buffer = 1.0 if source.n_units is None else held * source.n_units
    # If rows are sorted, the mean of those in the buffer moves through 1 − held of y's range.
    if explained * (1.0 - held) ** 2 <= MOST_EXPLAINED * max(in_buffer, 1.0):
        return
    warn(
        f"The rows seem to be sorted: the chunk that a row is in ({n_chunks} chunks) "
        f"explains {explained:.0%} of the variance of y (or of its square). The shuffle "
        f"buffer holds only {source.buffer_rows:,} of {n_rows:,} rows, so minibatches are "
        "not random samples, and predictions, above all intervals, can be useless. Write "
        "the rows in random order once with rows.shuffle_to(path) and fit to that file, or "
        "raise buffer_rows.",
        about="sorted rows",
    )
