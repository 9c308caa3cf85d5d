"""The recommended defaults on tables that are read in chunks, by one process or by several.

A first pass draws a sample, which decides how columns become numbers, and finds the levels that
rows have. If there are many, a second pass sums the target at each. The networks are fitted to all
rows, encoded chunk by chunk. In a group each rank reads units of its own, as with other estimators;
sample, levels and sums are those of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk, checked
from ..data.deadline import ClockOfGroup, Deadline, seconds_left
from ..data.level_sums import FoldMeans, Told
from ..data.messages import muted, warn
from ..data.reduce import ALONE, Group, agreed, current, doing
from ..data.row_sample import SmallestHashes, joint_sample, most_sampled
from ..data.row_source import RowSource, refuse_other_columns
from ..data.rows import Data
from ..data.stored import is_frame
from ..data.table_scan import Held, held_by, merged, read_as
from ..data.tables import TableEncoder
from ..estimators.alike import check_alike
from ..estimators.callbacks import Fits
from ..estimators.first_rank import adopt, fit_on_first
from ..estimators.opening import refuse_given
from ..estimators.validation import check_numbers
from .group_race import transformed
from .race import Entrant, Judged

LONGEST_PASS = 1 / 3
"""Share of `max_time`: after a longer pass there is no second one, to leave time for training."""


def fit_stored(automatic: Any, source: RowSource, y: Any, sample_weight: Any) -> None:
    """Fit to the rows of a source, which has their y and weights."""
    group, name = current(), type(automatic).__name__
    clock = ClockOfGroup(group)
    with doing(f"{name}.fit, reading rows"):
        check_alike(automatic, group, source)
        with agreed(group):
            check_numbers(automatic)
            source.check_has_target()
            refuse_given(y, sample_weight)
        stored = StoredSample.of(automatic, group, source)
    sample = stored.sample
    rows = automatic._checked(sample.X, sample.y, sample.weight, least=2)
    source.is_learned = True
    if not is_frame(sample.X) and source.feature_names is not None:
        automatic.feature_names_in_ = np.array(source.feature_names, dtype=object)

    def task(n_parts: int) -> Fits:
        return Fits(automatic, sample.X, sample.y, n_parts)

    if stored.n_rows == len(sample):
        fit_on_first(
            automatic, group, lambda: automatic._fit_rows(*rows, sample.rows, clock.began, task)
        )
        return
    seconds = automatic.max_time
    with doing(f"{name}.fit, encoding rows"), muted(group.rank > 0):
        data = stored.learned(automatic, *rows)
        is_late = seconds is not None and clock() > LONGEST_PASS * seconds
        by_fold = stored.levels_told(automatic, group, rows[1], rows[2], is_late)
        data = replace(data, X=automatic._encoder.transform_training(rows[0], sample.rows, by_fold))
    deadline = None if seconds is None else Deadline(seconds, clock)
    with doing(f"{name}.fit"), muted(group.rank > 0):
        fits = task(1)
        judged = stored.fitted(automatic, data, by_fold, fits, deadline)
        automatic._keep([judged], [], data, stored.n_rows, sample.rows, deadline)
        fits.on_end()
    adopt(automatic, group)


class Read(NamedTuple):
    """Results of a pass over the rows of one rank.

    Parameters
    ----------
    sample : Chunk or None
        Random rows, as they are stored; None if there are none.
    n_rows : int
        How many have a weight.
    held : list of Held or None
        What the columns hold; None if there are no rows.
    """

    sample: Chunk | None
    n_rows: int
    held: list[Held] | None


def read_through(source: RowSource, n_sample: int, seed: int, categorical_features: Any) -> Read:
    """Read all rows of a source once."""
    smallest, held, n_rows = SmallestHashes(n_sample, seed), None, 0
    for chunk in source.read(None):
        refuse_other_columns(chunk, source.example)
        counted = with_checked_targets(chunk).counted()
        if len(counted) == 0:
            continue
        smallest.add(counted)
        n_rows += len(counted)
        found = held_by(as_given(source, counted.X), categorical_features, chunk.where)
        held = found if held is None else merged([held, found])
    return Read(smallest.sample(), n_rows, held)


def with_checked_targets(chunk: Chunk) -> Chunk:
    """Return a chunk as it is stored, with y and weights that are valid."""
    none = np.empty((len(chunk), 0))
    return replace(checked(replace(chunk, X=none), (), none.dtype), X=chunk.X)


def as_given(source: RowSource, X: Any) -> Any:
    """Return what is stored as the user's transformer leaves it, if there is one."""
    return X if source.transform is None else source.inputs.transform.transform(X)


class StoredSample(NamedTuple):
    """A table that is read in chunks, and random rows of it.

    Parameters
    ----------
    source : RowSource
        The table.
    part : RowSource
        The share that this rank reads.
    sample : Chunk
        The rows, with X as the user's transformer leaves it.
    n_rows : int
        How many have a weight.
    held : list of Held
        What the columns of all of them hold.
    seed : int
        Seed of the networks, whose own sample has the same rows.
    """

    source: RowSource
    part: RowSource
    sample: Chunk
    n_rows: int
    held: list[Held]
    seed: int

    @classmethod
    def of(cls, automatic: Any, group: Group, source: RowSource) -> StoredSample:
        """Read the rows, each rank its own, and draw the sample.

        Raises
        ------
        ValueError
            On every rank, if there are no rows, or no y, or if some rows cannot be read.
        """
        seed = int(group.first(resolve_seed(automatic.random_state)))
        with agreed(group):
            part = source if group is ALONE else source.share(group.rank, group.size)
            n_sample, of_sample = most_sampled(source.example.X.shape[1]), resolve_seed(seed)
            own = read_through(part, n_sample, of_sample, automatic.categorical_features)
        sample = joint_sample(group, own.sample, n_sample, of_sample)
        if sample is None:
            raise ValueError(f"{source!r} has no rows of positive weight.")
        refuse_columns(type(automatic).__name__, source, sample)
        n_rows = int(group.gather(np.array([own.n_rows])).sum())
        held = merged([each for each in group.every(own.held) if each is not None])
        with agreed(group):
            sample = replace(sample, X=as_given(source, sample.X))
        if len(sample) == n_rows:  # put them in order, as arrays are
            sample = sample[np.argsort(sample.rows)]
        return cls(source, part, sample, n_rows, held, seed)

    def learned(self, automatic: Any, X: Any, y: np.ndarray, weight: np.ndarray | None) -> Data:
        """Learn from the validated sample how to encode rows; return it encoded."""
        automatic._note_classes(np.unique(y))
        table = read_as(X, automatic.categorical_features, self.held)
        data: Data = automatic._learned(table, y, weight)
        return data

    def levels_told(
        self, automatic: Any, group: Group, y: np.ndarray, weight: np.ndarray | None, is_late: bool
    ) -> dict[int, FoldMeans]:
        """Learn the target at levels, where a column has many; y and weights are the sample's.

        All rows are read once more; if it is too late for that, the sample must do.
        """
        told = Told.of(y, weight, getattr(automatic, "classes_", None))
        parts = self.told_late(group, automatic.max_time) if is_late else self.told_by_all()
        found: dict[int, FoldMeans] = automatic._encoder.learn_levels(group, parts, told)
        return found

    def told_by_all(self) -> Generator[Chunk, None, None]:
        """Yield this rank's rows that count, as the user's transformer leaves them."""
        for chunk in self.part.read(None):
            counted = with_checked_targets(chunk).counted()
            if len(counted):
                yield replace(counted, X=as_given(self.source, counted.X))

    def told_late(self, group: Group, seconds: float) -> Generator[Chunk, None, None]:
        """Yield the sample, on one rank, and warn."""
        warn(
            f"max_time={seconds} leaves no time to read all rows once more, so categories "
            f"are encoded from {len(self.sample):,} random rows only. Raise max_time to use "
            "all rows."
        )
        if group.rank == 0:
            yield self.sample

    def fitted(
        self,
        automatic: Any,
        data: Data,
        by_fold: Mapping[int, FoldMeans],
        fits: Fits,
        deadline: Deadline | None,
    ) -> Judged:
        """Fit networks to all encoded rows, which may have more classes than the sample."""
        began = time.perf_counter()
        networks: Entrant = automatic._networks(data)
        rows = EncodedRows(self.source, automatic, by_fold)
        model = networks.make(seconds_left(deadline)).set_params(random_state=self.seed)
        model = fits.next(networks.name)(model, rows, None)
        if hasattr(model, "classes_"):
            automatic._note_classes(model.classes_)
        common = np.intersect1d(model.held_out_.rows, self.sample.rows)
        model.held_out_ = model.held_out_.of(common).among(self.sample.rows)
        return Judged(networks.name, model, time.perf_counter() - began)


def refuse_columns(name: str, source: RowSource, sample: Chunk) -> None:
    """Raise a ValueError if rows have columns that the defaults do not support."""
    for column in ("exposure", "y_std"):
        if getattr(sample, column) is not None:
            raise ValueError(
                f"{source!r} has {column}, which {name} does not support. Leave it out."
            )


# ---- rows as models see them ---------------------------------------------------------------------


class EncodedRows(RowSource):
    """The rows of a source as models see them.

    Parameters
    ----------
    source : RowSource
        The rows as they are stored.
    automatic : estimator
        It has learned how to encode rows, and how to transform targets.
    by_fold : dict of int to FoldMeans
        Encodings of levels, see :meth:`TableEncoder.learn_levels`.
    """

    def __init__(self, source: RowSource, automatic: Any, by_fold: Mapping[int, FoldMeans]) -> None:
        super().__init__(None, source.buffer_rows)
        self.source, self.automatic, self.by_fold = source, automatic, by_fold

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
        """Yield chunks of numbers, with targets as they are stored."""
        for chunk in self.source.read(generator):
            yield replace(chunk, X=self.encoded(chunk)) if len(chunk) else chunk

    def encoded(self, chunk: Chunk) -> np.ndarray:
        """Return X as numbers."""
        encoder: TableEncoder = self.automatic._encoder
        try:
            with muted(True):  # only predictions warn of levels that the encoder does not know
                X = as_given(self.source, chunk.X)
                return encoder.transform_training(X, chunk.rows, self.by_fold)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{chunk.where}: {error}") from error

    def checked(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Yield chunks, checked, with transformed targets."""
        for chunk in super().checked(chunks):
            assert chunk.y is not None  # the first pass has seen it
            try:
                y = transformed(self.automatic, chunk.y)
            except ValueError as error:
                raise ValueError(f"{chunk.where}: {error}") from error
            yield replace(chunk, y=y)

    def share(self, rank: int, size: int) -> Self:
        """Return the share of the source, encoded in the same way."""
        return self._limited(source=self.source.share(rank, size))
