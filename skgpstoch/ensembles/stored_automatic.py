"""The recommended defaults on tables that are read in chunks.

A first pass draws a sample, which decides how columns become numbers. The networks are fitted to
all rows, encoded chunk by chunk.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk, as_target
from ..data.deadline import Deadline, seconds_left
from ..data.messages import muted
from ..data.reduce import ALONE, current
from ..data.row_sample import SmallestHashes
from ..data.row_source import RowSource
from ..data.tables import TableEncoder
from ..estimators.group_fit import most_sampled
from ..estimators.stored_fit import refuse_given
from .race import Entrant, Judged


class Stored(NamedTuple):
    """A table that is read in chunks, and random rows of it.

    Parameters
    ----------
    source : RowSource
        The table.
    sample : Chunk
        The rows, with X as the user's transformer leaves it.
    is_all : bool
        Whether these are all rows.
    seed : int
        Of the networks, whose own sample is of the same rows.
    """

    source: RowSource
    sample: Chunk
    is_all: bool
    seed: int

    @classmethod
    def of(cls, automatic: Any, source: RowSource, y: Any, sample_weight: Any) -> Stored:
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
        X = sample.X if source.transform is None else source.inputs.transform.transform(sample.X)
        sample = replace(sample, X=X, y=as_target(sample.y, sample.where))
        return cls(source, sample, n_rows == len(sample), seed)

    def fitted(self, automatic: Any, networks: Entrant, deadline: Deadline | None) -> Judged:
        """Fit networks to all rows, as they are encoded; these may have classes of their own."""
        began = time.perf_counter()
        transformer = getattr(automatic, "target_transformer_", None)
        rows = EncodedRows(self.source, automatic._encoder, transformer)
        model = networks.make(seconds_left(deadline)).set_params(random_state=self.seed).fit(rows)
        if hasattr(model, "classes_"):
            automatic.classes_ = model.classes_
        model.held_out_ = model.held_out_.numbered(self.places(model.held_out_.rows))
        return Judged(networks.name, model, time.perf_counter() - began)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return where rows are in the sample."""
        order = np.argsort(self.sample.rows)
        return np.asarray(order[np.searchsorted(self.sample.rows, numbers, sorter=order)])


class Encoding:
    """What makes numbers of stored rows: the user's transformer, if any, then the encoder."""

    def __init__(self, encoder: TableEncoder, before: Any) -> None:
        self.encoder, self.before = encoder, before

    def transform(self, X: Any) -> np.ndarray:
        """Return numbers; levels that the sample did not have are none of those that it had."""
        with muted(True):  # whoever predicts is told of new levels
            X = X if self.before is None else self.before.transform(X)
            return np.asarray(self.encoder.transform(X))


class EncodedRows(RowSource):
    """The rows of a source as models see them.

    Parameters
    ----------
    source : RowSource
        As they are stored.
    encoder : TableEncoder
        Makes numbers of columns.
    transformer : transformer or None
        Of targets.
    """

    def __init__(self, source: RowSource, encoder: TableEncoder, transformer: Any) -> None:
        before = None if source.transform is None else source.inputs.transform
        super().__init__(Encoding(encoder, before), source.buffer_rows)
        self.source, self.encoder, self.transformer = source, encoder, transformer

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
        """Yield chunks, with transformed targets."""
        for chunk in self.source.read(generator):
            if self.transformer is None or chunk.y is None:
                yield chunk
                continue
            y = as_target(chunk.y, chunk.where)
            z = np.asarray(self.transformer.transform(y.reshape(len(y), -1)))
            yield replace(chunk, y=z.reshape(y.shape))

    def share(self, rank: int, size: int) -> Self:
        """Return the share of the source."""
        return type(self)(self.source.share(rank, size), self.encoder, self.transformer)
