"""Detect sorted rows, because rows that are read together are then alike."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from .messages import warn
from .row_source import RowSource

MOST_EXPLAINED = 0.05
"""Share of y's variance that the content of a shuffle buffer may explain. Its mean is then .2 σ
from that of all rows, five times as far as that of a minibatch of 512 random rows."""


@dataclass(frozen=True)
class NumberBlocks:
    """Moments of y in each chunk; concatenated when merged.

    Parameters
    ----------
    weight : ndarray of shape (B,)
        Σw of each chunk.
    mean, second, third, fourth : ndarray of shape (B, P)
        The mean and the central moments of each chunk.
    """

    weight: np.ndarray
    mean: np.ndarray
    second: np.ndarray
    third: np.ndarray
    fourth: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, w: np.ndarray) -> NumberBlocks:
        """Return the moments of one chunk, from y (m, P) and weights (m,)."""
        weight = w.sum()
        mean = w @ y / weight
        away = y - mean
        with np.errstate(over="ignore"):  # `explained` ignores infinite moments
            central = [w @ away**k / weight for k in (2, 3, 4)]
        return cls(weight[None], mean[None], *(moment[None] for moment in central))

    def merge(self, other: NumberBlocks) -> NumberBlocks:
        """Return the moments of the chunks of both."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return NumberBlocks(*map(np.concatenate, pairs))

    def explained(self) -> float:
        """Return the share of the variance of y, or of its squared deviations, that chunks explain.

        The share is in [0, 1]. Chunks of random rows explain neither. If rows are sorted by y,
        chunks differ in their means; if they are sorted by |y|, in their squared deviations.
        """
        share = self.weight / self.weight.sum()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            off = self.mean - share @ self.mean
            of_mean = share @ off**2 / (share @ (self.second + off**2))
            square = self.second + off**2  # mean of (y − ȳ)², and of its square
            fourth = self.fourth + 4 * off * self.third + 6 * off**2 * self.second + off**4
            centre = share @ square
            of_square = share @ (square - centre) ** 2 / (share @ fourth - centre**2)
        found = np.concatenate([of_mean, of_square])
        return float(np.max(found, initial=0.0, where=np.isfinite(found)))


class Counted(NamedTuple):
    """Labels of a chunk, and the weight of the rows with each label."""

    labels: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class LabelBlocks:
    """Labels of each chunk; listed when merged."""

    chunks: tuple[Counted, ...]

    @classmethod
    def of(cls, labels: np.ndarray, counts: np.ndarray) -> LabelBlocks:
        """Return the labels of one chunk."""
        return cls((Counted(labels, counts),))

    def merge(self, other: LabelBlocks) -> LabelBlocks:
        """Return the labels of the chunks of both."""
        return LabelBlocks(self.chunks + other.chunks)

    @property
    def weight(self) -> np.ndarray:
        """Σw of each chunk, (B,)."""
        return np.array([chunk.counts.sum() for chunk in self.chunks])

    def explained(self) -> float:
        """Return the share of the labels' variance that chunks explain, Goodman and Kruskal's τ."""
        classes = np.unique(np.concatenate([chunk.labels for chunk in self.chunks]))
        total, within = np.zeros(len(classes)), 0.0
        for labels, counts in self.chunks:
            total[np.searchsorted(classes, labels)] += counts
            within += np.square(counts).sum() / counts.sum()
        n = total.sum()
        chance = np.square(total).sum() / n
        return float((within - chance) / (n - chance)) if n > chance else 0.0


Blocks = NumberBlocks | LabelBlocks


def merged_blocks(first: Blocks | None, second: Blocks | None) -> Blocks | None:
    """Return the chunks of both; None if neither has y.

    Raises
    ------
    TypeError
        If one has numbers, the other labels.
    """
    if first is None or second is None:
        return first or second
    if isinstance(first, NumberBlocks) and isinstance(second, NumberBlocks):
        return first.merge(second)
    if isinstance(first, LabelBlocks) and isinstance(second, LabelBlocks):
        return first.merge(second)
    raise TypeError("Scans of numbers and of labels cannot be merged.")


def warn_if_sorted(source: RowSource, blocks: Blocks) -> None:
    """Warn if the shuffle buffer does not mix the rows of a source.

    Parameters
    ----------
    source : RowSource
        Source whose rows were read.
    blocks : Blocks
        Moments or labels of y in its chunks.
    """
    n_rows, n_chunks = source.n_rows, len(blocks.weight)
    if n_rows is None or n_rows <= max(source.buffer_rows, n_chunks):
        return
    chance = (n_chunks - 1) / (n_rows - 1)  # what chunks of random rows explain
    explained = (blocks.explained() - chance) / (1.0 - chance)
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
