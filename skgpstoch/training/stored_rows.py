"""Train on rows that are read in chunks: minibatches from a shuffle buffer, and full passes.

A full pass reads every row once, in order, for results that need all rows and not just a sample.
Memory is bounded by the source's buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from ..data.chunk import Chunk
from ..data.row_source import RowSource
from ..data.rows import Data, Rows, Whole
from .tables import UNKNOWN, Pair, Sampled, Scaled

EPOCH_ROWS = 1_000_000
"""Most rows in an epoch; the next epoch has other rows."""

Tensors = Callable[[Chunk], Pair]
"""Turns a chunk into its scaled X and rows, on the device of training."""


# ---- rows in turn --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folded:
    """The numbers of the rows that are held out of training.

    Parameters
    ----------
    untrained : ndarray
        Numbers of the rows that no member is trained on.
    numbers, fold : ndarray and Tensor or None
        Numbers of the sample's rows, in increasing order, and the fold of each, or None.
    """

    untrained: np.ndarray
    numbers: np.ndarray
    fold: Tensor | None

    @classmethod
    def of_sample(cls, sampled: np.ndarray, fold: Tensor | None, n_untrained: int) -> Folded:
        """Make one from the numbers of a sample, whose first `n_untrained` rows are held out."""
        order = np.argsort(sampled)
        fold = None if fold is None else fold.cpu()[torch.from_numpy(order)]
        return cls(np.sort(sampled[:n_untrained]), sampled[order], fold)

    def of(self, rows: Rows, numbers: np.ndarray) -> Rows:
        """Return the rows, with the fold of each."""
        if self.fold is None:
            return rows
        at = np.searchsorted(self.numbers, numbers).clip(max=len(self.numbers) - 1)
        known = torch.from_numpy(self.numbers[at] == numbers)
        fold = torch.where(known, self.fold[torch.from_numpy(at)], -1)
        return replace(rows, fold=fold.to(rows.y.device, self.fold.dtype))


class Flow:
    """Take rows from chunks, any number at a time.

    Parameters
    ----------
    chunks : iterator of Chunk
        Where the rows come from.
    n_rows : int
        Number of rows that the first pass found, without those that are left out.
    tensors : callable
        Turns a chunk into tensors.
    folds : Folded or None, default=None
        Held-out rows. Rows that no member is trained on are left out, as are rows of weight 0.
    """

    def __init__(
        self, chunks: Iterator[Chunk], n_rows: int, tensors: Tensors, folds: Folded | None = None
    ) -> None:
        self.chunks, self.n_rows, self.tensors, self.folds = chunks, n_rows, tensors, folds
        self.n_given = 0
        self.held: tuple[Tensor, Rows] | None = None

    def take(self, n_rows: int) -> list[tuple[Tensor, Rows]]:
        """Return the next rows, in one piece or more.

        Raises
        ------
        ValueError
            If there are fewer than in the first pass.
        """
        pieces = []
        while n_rows:
            X, rows = self.more() if self.held is None else self.held
            pieces.append((X[:n_rows], rows[:n_rows]))
            self.held = (X[n_rows:], rows[n_rows:]) if len(X) > n_rows else None
            n_rows -= min(len(X), n_rows)
        return pieces

    def more(self) -> tuple[Tensor, Rows]:
        """Return the rows of the next chunk."""
        chunk = next(self.chunks, None)
        if chunk is None:
            raise ValueError(too_few(self.n_given, self.n_rows))
        chunk = chunk.counted()
        if self.folds is not None:
            chunk = chunk[~np.isin(chunk.rows, self.folds.untrained)]
        self.n_given += len(chunk)
        X, rows = self.tensors(chunk)
        return X, rows if self.folds is None else self.folds.of(rows, chunk.rows)

    def close(self) -> None:
        """Stop reading ahead."""
        cast(Any, self.chunks).close()


def endless(source: RowSource, n_rows: int, seed: int, first: int) -> Iterator[Chunk]:
    """Yield the chunks of one shuffled pass after another, from pass `first` on."""
    for number in itertools.count(first):
        n_given = 0
        for chunk in source.shuffled(seed, number):
            n_given += len(chunk)
            yield chunk
        if n_given < n_rows:
            raise ValueError(too_few(n_given, n_rows))


def too_few(n_given: int, n_rows: int) -> str:
    """Return the message for a pass that ends too soon."""
    return (
        f"X gave {n_given:,} rows in one pass (without held-out rows), but {n_rows:,} in "
        "the first pass. Every pass must give the same rows with the same weights."
    )


def joined(pieces: list[tuple[Tensor, Rows]]) -> tuple[Tensor, Rows]:
    """Join pieces of rows into one."""
    if len(pieces) == 1:
        return pieces[0]
    X, rows = zip(*pieces, strict=True)
    names = rows[0].columns
    columns: dict[str, Any] = {k: torch.cat([r.columns[k] for r in rows]) for k in names}
    return torch.cat(X), Rows(**columns)


# ---- passes in order -----------------------------------------------------------------------------


class Reader:
    """Read all rows of a source in order, in successive slices, as many times as needed.

    Parameters
    ----------
    source : RowSource
        The rows.
    n_rows : int
        Number of rows with a positive weight; others are left out.
    tensors : callable
        Turns a chunk into tensors.
    none : tuple of Tensor and Rows
        The tensors of a chunk without rows.
    """

    def __init__(
        self, source: RowSource, n_rows: int, tensors: Tensors, none: tuple[Tensor, Rows]
    ) -> None:
        self.source, self.n_rows, self.tensors = source, n_rows, tensors
        self.none = none
        self.flow: Flow | None = None
        self.rewind()

    def rewind(self) -> None:
        """Begin a pass."""
        self.close()
        self.flow = Flow(self.source.chunks(), self.n_rows, self.tensors)
        self.start = self.stop = 0  # numbers of the rows in `held`
        self.held = self.none

    def close(self) -> None:
        """Close the current pass, even if it is not complete."""
        if self.flow is not None:
            self.flow.close()

    def block(self, block: slice) -> tuple[Tensor, Rows]:
        """Return the rows of a slice that starts at 0, in the held rows or just after them."""
        start, stop, _ = block.indices(self.n_rows)
        if not self.start <= start <= self.stop:
            if start > 0:
                raise IndexError(f"Rows are read in order, got {block} after row {self.stop}.")
            self.rewind()
        X, rows = self.held
        if stop > self.stop:
            kept = X[start - self.start :], rows[start - self.start :]
            assert self.flow is not None
            more = self.flow.take(stop - self.stop)
            X, rows = self.held = joined([kept, *more] if len(kept[0]) else more)
            self.start, self.stop = start, stop
        inside = slice(start - self.start, stop - self.start)
        return X[inside], rows[inside]


class Stored:
    """X or another column of all rows, of which slices can be taken in order.

    Parameters
    ----------
    reader : Reader
        Reads the rows.
    name : str
        "X", or the name of a column of :class:`Rows`.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        self.reader, self.name = reader, name
        X, rows = reader.held
        like = X if name == "X" else getattr(rows, name)
        self.shape = (reader.n_rows, *like.shape[1:])
        self.ndim, self.dtype, self.device = like.ndim, like.dtype, like.device

    def __len__(self) -> int:
        return self.reader.n_rows

    def __getitem__(self, block: slice) -> Tensor:
        X, rows = self.reader.block(block)
        return X if self.name == "X" else getattr(rows, self.name)


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InChunks(Sampled):
    """Rows that are read in chunks: minibatches come from the shuffle buffer of a source.

    In a group, each rank has a part of every minibatch, as large as its share of the rows, from the
    units that it reads.

    Parameters
    ----------
    source : RowSource
        The rows of this process.
    n_own : int
        Number of these with a positive weight.
    checked : callable
        Validates a chunk.
    is_own : ndarray of shape (m,)
        Whether each row of the sample belongs to this process.
    tensors : callable
        Turns a chunk into tensors.
    counts : list of int
        Number of rows that each rank trains on, of a table that :meth:`trained` returns.
    """

    numbers: np.ndarray
    source: RowSource
    n_own: int
    checked: Callable[[Chunk], Data]
    is_own: np.ndarray
    tensors: Tensors = UNKNOWN
    counts: Sequence[int] = ()
    kept: dict[str, Any] = field(default_factory=dict)  # where the next epoch goes on reading

    @property
    def n_epoch(self) -> int:
        return min(self.whole.n_rows, EPOCH_ROWS)

    @property
    def n_rows(self) -> int:
        return min(self.whole.n_rows - self.n_untrained, EPOCH_ROWS)

    def scaled(self, tensors: Scaled, plan: Any, generator: torch.Generator) -> Self:
        table = super().scaled(tensors, plan, generator)

        def of_chunk(chunk: Chunk) -> Pair:
            if not len(chunk):
                return table.none
            return tensors(self.checked(chunk), plan.dtype, generator.device)

        return replace(table, tensors=of_chunk)

    def trained(self, n_untrained: int, source: Callable[[Tensor, Rows], Pair]) -> InChunks:
        n_own = self.n_own - int(self.is_own[:n_untrained].sum())
        counts = self.group.gather(np.array([n_own])).tolist()
        return replace(self, n_untrained=n_untrained, counts=counts, kept={})

    @cached_property
    def none(self) -> Pair:
        """The tensors of a chunk without rows."""
        return self.X[:0], replace(self.rows[:0], fold=None)

    @cached_property
    def reader(self) -> Reader:
        """The reader for full passes over all rows."""
        return Reader(self.source, self.n_own, self.tensors, self.none)

    def every_row(self) -> tuple[Any, Rows]:
        """Return all rows, without folds, which no full pass needs."""
        columns: dict[str, Any] = {name: Stored(self.reader, name) for name in self.none[1].columns}
        sample = replace(self.rows, fold=None, whole=None)
        return Stored(self.reader, "X"), Rows(**columns, whole=replace(self.whole, sample=sample))

    def close(self) -> None:
        if "reader" in vars(self):
            self.reader.close()

    # ---- minibatches -------------------------------------------------------------------------

    @cached_property
    def folds(self) -> Folded:
        """Rows that are held out of training."""
        return Folded.of_sample(self.numbers, self.rows.fold, self.n_untrained)

    def part_of(self, n_rows: int) -> Whole:
        """Describe a minibatch of so many rows in the whole group."""
        return Whole(n_rows, n_rows * (self.whole.weight / self.whole.n_rows), self.group)

    def quota(self, rank: int) -> int:
        """Return how many rows of an epoch a rank has."""
        counts = self.counts
        below = [sum(counts[:k]) * self.n_rows // sum(counts) for k in (rank, rank + 1)]
        return below[1] - below[0]

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches, in the order of the buffer."""
        edges = np.arange(n_batches + 1)
        cuts = [edges * self.quota(rank) // n_batches for rank in range(self.group.size)]
        sizes = np.sum([np.diff(cut) for cut in cuts], axis=0).tolist()
        own = np.diff(cuts[self.group.rank]).tolist()
        none = self.X[:0], self.rows[:0]
        with self.opened(number) as flow:
            for n, m in zip(sizes, own, strict=True):
                X, rows = joined(flow.take(m)) if m else none
                yield X, replace(rows, whole=self.part_of(n))

    @contextmanager
    def opened(self, number: int) -> Iterator[Flow]:
        """Yield the flow of an epoch's rows: all rows, or those that follow the previous epoch's.

        Units are read from their first row. If each epoch started a new pass, the last rows of
        units would hardly be trained on. Rows before the start of an epoch must be read again,
        unless the previous epoch has just ended there.
        """
        quota, n_own = self.quota(self.group.rank), self.counts[self.group.rank]
        what = n_own, self.tensors, self.folds
        if self.source.n_units is not None and quota == n_own:
            with closing(Flow(self.source.shuffled(self.seed, number), *what)) as flow:
                yield flow
            return
        first, before = divmod(number * quota, max(n_own, 1))
        flow, at = self.kept.pop("flow", (None, -1))
        if flow is None or at != number:
            flow = Flow(endless(self.source, n_own, self.seed, first), *what)
        else:
            before = 0
        try:
            while before:  # in pieces, to bound the memory; these rows are discarded
                flow.take(piece := min(before, self.source.buffer_rows))
                before -= piece
            yield flow
        except BaseException:
            flow.close()  # now: whoever keeps the error keeps the flow
            raise
        self.kept["flow"] = flow, number + 1

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows of the sample, equally many on each rank."""
        n = max(1, n_rows // self.group.size)
        some = torch.arange(n, device=self.device) % len(self.X)
        whole = self.part_of(n * self.group.size)
        return self.X[some], replace(self.rows[some], whole=whole)
