"""The recommended defaults on tables that are read in chunks.

A first pass draws a sample, which decides how columns become numbers. If categories have many
levels, a second one adds up what the target is at each. The networks are fitted to all rows,
encoded chunk by chunk.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk, as_target
from ..data.deadline import Deadline, seconds_left
from ..data.level_sums import FoldMeans, Told
from ..data.messages import muted
from ..data.reduce import ALONE, current
from ..data.row_sample import SmallestHashes
from ..data.row_source import RowSource
from ..data.tables import TableEncoder
from ..estimators.callbacks import Fits
from ..estimators.group_fit import most_sampled
from ..estimators.stored_fit import refuse_given
from .race import Entrant, Judged


def fit_stored(automatic: Any, source: RowSource, y: Any, sample_weight: Any, began: float) -> None:
    """Fit to the rows of a source, which has all that is known of them."""
    stored = StoredSample.of(automatic, source, y, sample_weight)
    sample = stored.sample
    rows = automatic._checked(sample.X, sample.y, sample.weight, least=2)

    def task(n_parts: int) -> Fits:
        return Fits(automatic, sample.X, sample.y, n_parts)

    if stored.n_rows == len(sample):
        automatic._fit_rows(*rows, began, task).on_end()
        return
    automatic._note_classes(np.unique(rows[1]))
    data, seconds = automatic._learned(*rows), automatic.max_time
    told = Told.of(rows[1], rows[2], getattr(automatic, "classes_", None))
    table = stored.encoded(automatic, told)
    deadline = None if seconds is None else Deadline(began + seconds)
    fits = task(1)
    judged = stored.fitted(automatic, table, automatic._networks(data), deadline)
    automatic._keep([judged], [], data, stored.n_rows)
    fits.on_end()


class StoredSample(NamedTuple):
    """A table that is read in chunks, and random rows of it.

    Parameters
    ----------
    source : RowSource
        The table.
    sample : Chunk
        The rows, with X as the user's transformer leaves it.
    n_rows : int
        How many have a weight.
    seed : int
        Of the networks, whose own sample is of the same rows.
    """

    source: RowSource
    sample: Chunk
    n_rows: int
    seed: int

    @classmethod
    def of(cls, automatic: Any, source: RowSource, y: Any, sample_weight: Any) -> StoredSample:
        """Draw the sample.

        Raises
        ------
        ValueError
            If anything is given beside the rows, or this is a group of processes.
        """
        refuse_given(y, sample_weight)
        name, seed = type(automatic).__name__, resolve_seed(automatic.random_state)
        if current() is not ALONE:
            raise ValueError(
                f"X must be arrays or frames where {name} is fitted by a group of processes, got "
                f"{source!r}."
            )
        smallest = SmallestHashes(most_sampled(source.example.X.shape[1]), resolve_seed(seed))
        n_rows = 0
        for chunk in source.read(None):
            counted = chunk.counted()
            smallest.add(counted)
            n_rows += len(counted)
        sample = smallest.sample()
        if sample is None:
            raise ValueError(f"{source!r} has no rows of positive weight.")
        if sample.y is None:
            raise ValueError(f"{source!r} has no y, which {name} needs.")
        sample = replace(sample, X=prepared(source, sample), y=as_target(sample.y, sample.where))
        return cls(source, sample, n_rows, seed)

    def encoded(self, automatic: Any, told: Told) -> EncodedRows:
        """Return all rows as models see them; they tell what the target is at levels."""
        encoder, source = automatic._encoder, self.source
        every = encoder.level_sums(told.n_targets)
        for chunk in source.read(None) if every else ():
            if len(rows := chunk.counted()):
                assert rows.y is not None
                y = told(as_target(rows.y, rows.where))
                encoder.count_levels(every, prepared(source, rows), rows.rows, y, rows.weight)
        transformer = getattr(automatic, "target_transformer_", None)
        return EncodedRows(source, encoder, encoder.learn_levels(every), transformer)

    def fitted(
        self, automatic: Any, table: EncodedRows, networks: Entrant, deadline: Deadline | None
    ) -> Judged:
        """Fit networks to all rows, which may have classes of their own."""
        began = time.perf_counter()
        model = networks.make(seconds_left(deadline)).set_params(random_state=self.seed).fit(table)
        if hasattr(model, "classes_"):
            automatic._note_classes(model.classes_)
        model.held_out_ = model.held_out_.among(self.sample.rows)
        return Judged(networks.name, model, time.perf_counter() - began)


def prepared(source: RowSource, chunk: Chunk) -> Any:
    """Return X of a chunk, as the user's transformer leaves it."""
    return chunk.X if source.transform is None else source.inputs.transform.transform(chunk.X)


class EncodedRows(RowSource):
    """The rows of a source as models see them.

    Parameters
    ----------
    source : RowSource
        As they are stored.
    encoder : TableEncoder
        Makes numbers of columns.
    by_fold : dict of int to FoldMeans
        What rows are told of levels, see :meth:`TableEncoder.learn_levels`.
    transformer : transformer or None
        Of targets.
    """

    def __init__(
        self,
        source: RowSource,
        encoder: TableEncoder,
        by_fold: Mapping[int, FoldMeans],
        transformer: Any,
    ) -> None:
        super().__init__(None, source.buffer_rows)
        self.source, self.encoder, self.by_fold = source, encoder, by_fold
        self.transformer = transformer

    def __repr__(self) -> str:
        return repr(self.source)

    @property
    def n_rows(self) -> int | None:
        """How many rows there are, if that is known."""
        return self.source.n_rows

    @property
    def n_units(self) -> int | None:
        """How many units there are, if their order can be changed."""
        return self.source.n_units

    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield chunks of numbers, with transformed targets."""
        for chunk in self.source.read(generator):
            if len(chunk):
                yield replace(chunk, X=self.encoded(chunk), y=self.targets(chunk))

    def encoded(self, chunk: Chunk) -> np.ndarray:
        """Return X as numbers; levels that are not known are none of the others."""
        try:
            with muted(True):  # whoever predicts is told of new levels
                X = prepared(self.source, chunk)
                return self.encoder.transform_training(X, chunk.rows, self.by_fold)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{chunk.where}: {error}") from error

    def targets(self, chunk: Chunk) -> np.ndarray | None:
        """Return what models are fitted to in the place of y."""
        if self.transformer is None or chunk.y is None:
            return chunk.y
        y = as_target(chunk.y, chunk.where)
        return np.asarray(self.transformer.transform(y.reshape(len(y), -1))).reshape(y.shape)

    def share(self, rank: int, size: int) -> Self:
        """Return the share of the source."""
        part = self.source.share(rank, size)
        return type(self)(part, self.encoder, self.by_fold, self.transformer)
