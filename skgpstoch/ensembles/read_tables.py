"""Read the table of a recommended default, wherever it is, and fit to it.

Rank 0 fits several models if rows are few. If there are many, a sample says how columns become
numbers and what y is like; it does not depend on which rank has which rows. The levels of
categories, and where values are missing, come from all rows. So does the target at each level,
which for training rows is that of the rows of other folds. All ranks then train the networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
from sklearn.base import is_classifier

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk, checked, concatenated
from ..data.deadline import Deadline
from ..data.kinds import real_target
from ..data.level_sums import FoldMeans, Told
from ..data.messages import muted, warn
from ..data.reduce import ALONE, ClockOfGroup, Group, agreed, current, doing
from ..data.row_sample import are_few, chosen_rows, most_sampled, offsets
from ..data.row_source import RowSource, is_source, refuse_other_columns
from ..data.rows import Data
from ..data.scan import Scan, Tally
from ..data.sorted_rows import warn_if_sorted
from ..data.stored import is_frame
from ..data.table_parts import Held, held_by, merged, read_alike, read_as
from ..data.tables import TableEncoder, read_table
from ..estimators.alike import check_alike
from ..estimators.callbacks import Fits
from ..estimators.first_rank import adopt, fit_on_first
from ..estimators.opening import alike, classes_of, counts, first_pass, refuse_given
from ..estimators.validation import as_floats, check_numbers, check_weight
from .race import race

LONGEST_PASS = 1 / 3
"""Share of `max_time`: after a longer pass there is no second one, to leave time for training."""

NOTED = ("n_features_in_", "feature_names_in_")
"""Attributes that the validation of rows sets on an estimator."""


def read(automatic: Any, X: Any, y: Any, sample_weight: Any) -> Read:
    """Validate parameters and rows; read rows once if they come in chunks."""
    clock, name = ClockOfGroup(current()), type(automatic).__name__
    with doing(f"{name}.fit, reading rows"):
        check_alike(automatic, clock.group, X)
        if is_source(X):
            return read_source(automatic, clock, X, y, sample_weight)
        if clock.group is not ALONE:
            return read_ranks(automatic, clock, X, y, sample_weight)
        return read_here(automatic, clock, X, y, sample_weight)


@dataclass(frozen=True, kw_only=True)
class Read(ABC):
    """Base class of a table.

    Parameters
    ----------
    rows : Chunk
        All rows, or a sample that all ranks share; X is read, or as the user gave it.
    clock : ClockOfGroup
        Counts the seconds of the fit, and knows the ranks that fit together.
    task : callable
        Tells callbacks that a fit begins, of so many models.
    """

    rows: Chunk
    clock: ClockOfGroup
    task: Callable[[int], Fits]

    @property
    def y(self) -> np.ndarray:
        """Their targets."""
        return cast(np.ndarray, self.rows.y)

    @abstractmethod
    def fit(self, automatic: Any) -> None:
        """Fit models, and weigh them."""


class AllRead(Read):
    """All rows, in this process; rank 0 fits for all."""

    def fit(self, automatic: Any) -> None:
        fit_on_first(automatic, self.clock.group, lambda: self.fit_here(automatic))

    def fit_here(self, automatic: Any) -> None:
        """Fit several models."""
        rows, y, seconds = self.rows, self.y, automatic.max_time
        counts = slice(None) if rows.weight is None else rows.weight > 0.0
        automatic._note_classes(np.unique(y[counts]))
        data = automatic._learned(rows.X, y, rows.weight)
        deadline = None if seconds is None else Deadline(self.clock.began + seconds)
        entrants = automatic._entrants(data)
        fits = self.task(2 * len(entrants))
        found, given_up = race(entrants, fits, data, deadline)
        automatic._keep(found, given_up, data, data.size, rows.rows[counts], deadline)
        fits.tell_end()


@dataclass(frozen=True, kw_only=True)
class SampleRead(Read):
    """Base class of tables of which only a sample is known to all ranks.

    Parameters
    ----------
    known : ndarray of shape (m,)
        The numbers by which networks know the sample's rows.
    n_rows : int
        How many rows there are in all.
    seed : int
        Seed of the networks, whose own sample has the same rows.
    classes : ndarray or None
        The labels of all rows, if targets are labels.
    """

    known: np.ndarray
    n_rows: int
    seed: int
    classes: np.ndarray | None

    @abstractmethod
    def parts(self, automatic: Any) -> Iterable[Chunk]:
        """Yield this rank's rows, for the target at levels."""

    @abstractmethod
    def encoded(self, automatic: Any, by_fold: Mapping[int, FoldMeans]) -> Data:
        """Return this rank's rows as networks take them."""

    def learn(self, automatic: Any) -> tuple[Data, dict[int, FoldMeans]]:
        """Learn how to encode rows; return the encoded sample, and the target at levels."""
        if self.classes is not None:
            automatic._note_classes(self.classes)
        rows = self.rows
        data = automatic._learned(rows.X, self.y, rows.weight)
        encoder: TableEncoder = automatic._encoder
        told = Told.of(self.y, rows.weight, self.classes)
        by_fold = encoder.learn_levels(self.clock.group, self.parts(automatic), told)
        X = encoder.transform_training(rows.X, rows.rows, by_fold)
        return replace(data, X=X), by_fold

    def fit(self, automatic: Any) -> None:
        """Learn how to encode rows, and train networks on all of them."""
        group, name, seconds = self.clock.group, type(automatic).__name__, automatic.max_time
        with doing(f"{name}.fit, encoding rows"), muted(group.rank > 0):
            data, by_fold = self.learn(automatic)
            given = self.encoded(automatic, by_fold)
        deadline = None if seconds is None else Deadline(seconds, self.clock)
        with doing(f"{name}.fit"), muted(group.rank > 0):
            fits, networks = self.task(1), automatic._networks(data)
            seeded = networks._replace(
                make=lambda left: networks.make(left).set_params(random_state=self.seed)
            )
            found, _ = race([seeded], fits, given, deadline)
            for each in found:
                held_out = each.model.held_out_
                common = np.intersect1d(held_out.rows, self.known)
                each.model.held_out_ = held_out.of(common).among(self.known)
            automatic._keep(found, [], data, self.n_rows, self.rows.rows, deadline)
            fits.tell_end()
        adopt(automatic, group)


def transformed(automatic: Any, y: np.ndarray) -> np.ndarray:
    """Return the targets that models are fitted to, for these targets.

    Raises
    ------
    ValueError
        If they are not finite.
    """
    if len(y) == 0:
        return y
    with np.errstate(all="ignore"):
        z = np.asarray(automatic._targets(y))
    if z is not y and not np.isfinite(z).all():
        raise ValueError(
            "target_transform must give a finite value for each target, but "
            f"{automatic.target_transform!r} does not."
        )
    return z


# ---- rows in this process ------------------------------------------------------------------------


def read_here(automatic: Any, clock: ClockOfGroup, X: Any, y: Any, sample_weight: Any) -> AllRead:
    """Validate rows that are all here."""
    check_numbers(automatic)
    if sample_weight is not None:
        as_floats(sample_weight, "sample_weight")  # or an error that names it
    table, targets, weight = automatic._checked(X, y, sample_weight, least=2)
    rows = Chunk(table, np.arange(len(targets)), "X", targets, weight)
    return AllRead(rows=rows, clock=clock, task=lambda n_parts: Fits(automatic, X, y, n_parts))


# ---- rows of several ranks -----------------------------------------------------------------------


def read_ranks(automatic: Any, clock: ClockOfGroup, X: Any, y: Any, sample_weight: Any) -> Read:
    """Validate this rank's rows, and sample or gather those of all ranks."""
    group = clock.group
    given = own_rows(automatic, group, X, y, sample_weight)
    first, n = offsets(group, 0 if given is None else len(given))
    if n < 2:
        raise ValueError(f"X must have at least 2 rows on all ranks together, got {n}.")

    def task(n_parts: int) -> Fits:
        return Fits(automatic, X, y, n_parts)

    if are_few(n, automatic._most_raced):
        rows = rows_of_ranks(group, given)
        with muted(group.rank > 0):
            check_weight(Data(rows.rows, rows.rows), rows.weight, least=2, keeps=True)
        return AllRead(rows=rows, clock=clock, task=task)
    seed = int(group.first(resolve_seed(automatic.random_state)))
    n_own = 0 if given is None else len(given)
    most = most_sampled(max(group.every(0 if given is None else len(given.X.columns))))
    chosen, places = (
        part.numpy() for part in chosen_rows(group, resolve_seed(seed), first, n_own, most)
    )
    order = np.argsort(group.gather(places))
    sample = rows_of_ranks(group, None if given is None else given[chosen])[order]
    own = sample[:0] if given is None else given
    return RanksRead(
        rows=sample,
        clock=clock,
        task=task,
        known=group.gather(first + chosen)[order],
        n_rows=n,
        seed=seed,
        classes=classes_of(group, own.y) if is_classifier(automatic) else None,
        own=own,
    )


@dataclass(frozen=True, kw_only=True)
class RanksRead(SampleRead):
    """Rows of several ranks, in memory; `own` are this rank's."""

    own: Chunk

    def parts(self, automatic: Any) -> Iterable[Chunk]:
        return [self.own]

    def encoded(self, automatic: Any, by_fold: Mapping[int, FoldMeans]) -> Data:
        own = self.own
        X = automatic._encoder.transform_training(own.X, own.rows, by_fold)
        with agreed(self.clock.group):
            return Data(X, transformed(automatic, cast(np.ndarray, own.y)), own.weight)


def own_rows(automatic: Any, group: Group, X: Any, y: Any, weight: Any) -> Chunk | None:
    """Validate this rank's rows (None if it has none), and check that all ranks have one table."""
    given, (first, _) = None, offsets(group, len(X))
    with agreed(group):
        check_numbers(automatic)
        if counts(X, weight):
            X, y, weight = automatic._checked(X, y, weight, least=1)
            table = read_table(X, automatic.categorical_features)
            given = Chunk(table, first + np.arange(len(y)), "rows of this rank", y, weight)
            if weight is not None:
                given = given[weight > 0.0]
    alike(automatic, group, NOTED, given and ())
    beside = None if given is None else [y.shape[1:], y.dtype.kind in "OUS"]
    read = read_alike(group, None if given is None else given.X, beside)
    has_weights = group.flag(given is not None and given.weight is not None)
    if given is None:
        return None
    weight = np.ones(len(given)) if has_weights and given.weight is None else given.weight
    return replace(given, X=read, weight=weight)


def rows_of_ranks(group: Group, own: Chunk | None) -> Chunk:
    """Return the rows of all ranks, in the order of ranks."""
    return concatenated([part for part in group.every(own) if part is not None])


# ---- rows that are read in chunks ----------------------------------------------------------------


def read_source(
    automatic: Any, clock: ClockOfGroup, source: RowSource, y: Any, sample_weight: Any
) -> Read:
    """Read all rows once, each rank its own, and draw a sample."""
    group = clock.group
    with agreed(group):
        check_numbers(automatic)
        source.check_has_target()
        refuse_given(y, sample_weight)
    seed, held = int(group.first(resolve_seed(automatic.random_state))), None

    def look(part: RowSource) -> tuple[int, Scan]:
        nonlocal held
        n_sample = most_sampled(source.example.X.shape[1])
        own, held = read_through(automatic, part, n_sample, resolve_seed(seed))
        return n_sample, own

    first = first_pass(group, source, resolve_seed(seed), look)
    sample = first.sample
    refuse_columns(type(automatic).__name__, source, sample)
    with agreed(group):
        sample = replace(sample, X=as_given(source, sample.X))
    X, targets, weight = automatic._checked(sample.X, sample.y, sample.weight, least=2)
    source.is_learned = True
    if not is_frame(sample.X) and source.feature_names is not None:
        automatic.feature_names_in_ = np.array(source.feature_names, dtype=object)

    def task(n_parts: int) -> Fits:
        return Fits(automatic, sample.X, sample.y, n_parts)

    rows = replace(sample, X=X, y=targets, weight=weight)
    if first.is_whole:
        return AllRead(rows=rows, clock=clock, task=task)
    of_all = merged([each for each in group.every(held) if each is not None])
    seconds = automatic.max_time
    is_late = seconds is not None and clock() > LONGEST_PASS * seconds
    return ChunksRead(
        rows=replace(rows, X=read_as(X, automatic.categorical_features, of_all)),
        clock=clock,
        task=task,
        known=rows.rows,
        n_rows=first.n_rows,
        seed=seed,
        classes=first.classes,
        source=source,
        part=first.part,
        found=first.own,
        is_late=is_late,
    )


@dataclass(frozen=True, kw_only=True)
class ChunksRead(SampleRead):
    """Rows that are read in chunks; in a group each rank reads units of its own.

    Parameters
    ----------
    source, part : RowSource
        The table, and what this rank reads of it.
    found : Scan
        What the first pass found there.
    is_late : bool
        Whether there is no time to read all rows once more.
    """

    source: RowSource
    part: RowSource
    found: Scan
    is_late: bool

    def parts(self, automatic: Any) -> Generator[Chunk, None, None]:
        """Yield all rows or, if it is too late for that, the sample, on one rank."""
        rows = self.rows
        if not self.is_late:
            yield from self.every_part()
            return
        warn(
            f"max_time={automatic.max_time} leaves no time to read all rows once more, so "
            f"categories are encoded from {len(rows):,} random rows only. Raise max_time to use "
            "all rows."
        )
        if self.clock.group.rank == 0:
            yield rows

    def every_part(self) -> Generator[Chunk, None, None]:
        """Yield this rank's rows that count, as the user's transformer leaves them."""
        for chunk in self.part.read(None):
            counted = with_checked_targets(chunk).counted()
            if len(counted):
                yield replace(counted, X=as_given(self.source, counted.X))

    def encoded(self, automatic: Any, by_fold: Mapping[int, FoldMeans]) -> Data:
        """Return the source, encoded chunk by chunk, in place of X and y."""
        rows = EncodedRows(self.source, automatic, by_fold, self.found)
        return Data(cast(Any, rows), cast(Any, None))


def read_through(
    automatic: Any, source: RowSource, n_sample: int, seed: int
) -> tuple[Scan, list[Held] | None]:
    """Read all rows of a source once; return facts about them, and what their columns hold."""
    labelled, held = is_classifier(automatic), None
    tally = Tally(n_sample, seed, labelled)
    for chunk in source.read(None):
        refuse_other_columns(chunk, source.example)
        counted = with_checked_targets(chunk).counted()
        if len(counted):
            if not labelled:
                real_target(counted.y)  # or an error that says what is wrong
            tally.add(counted)
            X = as_given(source, counted.X)
            found = held_by(X, automatic.categorical_features, chunk.where)
            held = found if held is None else merged([held, found])
    if tally.blocks is not None:
        warn_if_sorted(source, tally.blocks)
    return tally.scan(), held


def with_checked_targets(chunk: Chunk) -> Chunk:
    """Return a chunk as it is stored, with y and weights that are valid."""
    none = np.empty((len(chunk), 0))
    return replace(checked(replace(chunk, X=none), (), none.dtype), X=chunk.X)


def as_given(source: RowSource, X: Any) -> Any:
    """Return what is stored as the user's transformer leaves it, if there is one."""
    return X if source.transform is None else source.inputs.transform.transform(X)


def refuse_columns(name: str, source: RowSource, sample: Chunk) -> None:
    """Raise a ValueError if rows have columns that the defaults do not support."""
    for column in ("exposure", "y_std"):
        if getattr(sample, column) is not None:
            raise ValueError(
                f"{source!r} has {column}, which {name} does not support. Leave it out."
            )


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
    found : Scan
        What is known of this rank's rows, as they are stored.
    """

    def __init__(
        self, source: RowSource, automatic: Any, by_fold: Mapping[int, FoldMeans], found: Scan
    ) -> None:
        super().__init__(None, source.buffer_rows)
        self.source, self.automatic, self.by_fold = source, automatic, by_fold
        self.found = found

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

    def known(self, n_sample: int) -> Scan | None:
        """Return what the first pass over the stored rows has found.

        If a target cannot be transformed, another pass over all rows has to say which one.
        """
        found = self.found
        if found.sample is None:
            return found
        sample = found.sample[:n_sample]
        try:
            if found.extremes is not None:  # of all targets, whose transformation is monotone
                transformed(self.automatic, found.extremes)
            (encoded,) = self.checked(iter([replace(sample, X=self.encoded(sample))]))
        except ValueError:
            return None
        return replace(found, sample=encoded)
