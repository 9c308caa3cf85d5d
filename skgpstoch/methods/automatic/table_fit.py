"""Fit a recommended default to a table that was read, wherever it is.

Rank 0 fits several models if rows are few. If there are many, a sample says how columns become
numbers and what y is like; it does not depend on which rank has which rows. The levels of
categories, and where values are missing, come from all rows. So does the target at each level,
which for training rows is that of the rows of other folds. All ranks then train the networks, and
rank 0 fits nearest neighbours to the sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from ...data.chunk import Chunk, checked, named_by
from ...data.deadline import Deadline
from ...data.equal_rows import n_observations
from ...data.groups import ClockOfGroup, doing
from ...data.messages import muted
from ...data.row_source import RowSource
from ...data.rows import Data
from ...data.scan import Scan
from ...data.tables import TableEncoder
from ...data.target_means import FoldMeans, LevelTargets
from ...estimators.callbacks import Fits
from ...estimators.first_rank import adopt, fit_on_first, on_first
from ...training.interrupts import was_interrupted
from .race import Entrant, Judged, race

LEAST_FOR_NEIGHBOURS = 0.1  # of max_time, for neighbours after networks


@dataclass(frozen=True, kw_only=True)
class Read:
    """A table of which all rows are in this process; rank 0 fits for all.

    Parameters
    ----------
    rows : Chunk
        All rows, or a sample that all ranks share; X is read, or as the user gave it.
    clock : ClockOfGroup
        Counts the seconds of the fit, and knows the ranks that fit together.
    given : tuple of object
        X and y, for callbacks.
    """

    rows: Chunk
    clock: ClockOfGroup
    given: tuple[Any, Any]

    @property
    def y(self) -> np.ndarray:
        """Their targets."""
        return cast(np.ndarray, self.rows.y)

    def fit(self, automatic: Any) -> None:
        """Fit models, and weigh them."""
        fit_on_first(automatic, self.clock.group, lambda: self.fit_here(automatic))

    def fit_here(self, automatic: Any) -> None:
        """Fit several models."""
        rows, y, seconds = self.rows, self.y, automatic.max_time
        counts = slice(None) if rows.weight is None else rows.weight > 0.0
        automatic._note_classes(np.unique(y[counts]))
        data = automatic._learned(rows)
        times = n_observations(in_numbers(data))
        data, numbers = data.repeated(times), np.repeat(rows.rows[counts], times)
        deadline = None if seconds is None else Deadline.after(seconds, self.clock.began)
        entrants = automatic._entrants(data)
        fits = Fits(automatic, *self.given, 2 * len(entrants))
        found, given_up = race(entrants, fits, data, deadline)
        automatic._keep(found, given_up, data, data.size, numbers, deadline)
        fits.tell_end()


def race_here(
    found: list[Judged], entrants: list[Entrant], fits: Fits, data: Data, left: float | None
) -> None:
    """Fit models on this rank alone, in the seconds that are left; put them before the others."""
    deadline = None if left is None else Deadline.after(left, time.monotonic())
    found[:0] = race(entrants, fits, data, deadline)[0]


def in_numbers(data: Data) -> Data:
    """Return the same rows with numbers (n, P) for targets, which may be labels."""
    y = data.y
    if y.dtype.kind not in "biuf":
        y = np.unique(y, return_inverse=True)[1]
    return replace(data, y=y.reshape(len(data), -1))


@dataclass(frozen=True, kw_only=True)
class SampleRead(Read):
    """A table of which only a sample is known to all ranks.

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
    parts : callable
        Yields this rank's rows, for the target at levels.
    encoded : callable
        Given encodings of levels, returns this rank's rows as networks take them.
    """

    known: np.ndarray
    n_rows: int
    seed: int
    classes: np.ndarray | None
    parts: Callable[[], Iterable[Chunk]]
    encoded: Callable[[Mapping[int, FoldMeans]], Data]

    def learn(self, automatic: Any) -> tuple[Data, dict[int, FoldMeans]]:
        """Learn how to encode rows; return the encoded sample, and the target at levels."""
        if self.classes is not None:
            automatic._note_classes(self.classes)
        rows = self.rows
        data = automatic._learned(rows)
        encoder: TableEncoder = automatic._encoder
        told = LevelTargets.of(self.y, rows.weight, self.classes)
        by_fold = encoder.learn_levels(self.clock.group, self.parts(), told)
        X = encoder.transform_training(rows.X, rows.rows, by_fold)
        return replace(data, X=X), by_fold

    def fit(self, automatic: Any) -> None:
        """Learn how to encode rows; train networks on all of them, neighbours on the sample."""
        group, name, seconds = self.clock.group, type(automatic).__name__, automatic.max_time
        with doing(f"{name}.fit, encoding rows"), muted(group.rank > 0):
            data, by_fold = self.learn(automatic)
            given = self.encoded(by_fold)
        deadline = None if seconds is None else Deadline.after(seconds, clock=self.clock)
        with doing(f"{name}.fit"), muted(group.rank > 0):
            nearby, networks = automatic._neighbours(data), automatic._networks(data)
            fits = Fits(automatic, *self.given, 1 + len(nearby))
            seeded = networks._replace(
                make=lambda left: networks.make(left).set_params(random_state=self.seed)
            )
            found, _ = race([seeded], fits, given, deadline)
            for each in found:
                held_out = each.model.held_out_
                common = np.intersect1d(held_out.rows, self.known)
                each.model.held_out_ = held_out.of(common).among(self.known)
            left = None if deadline is None else deadline.left()  # every rank asks
            if (
                nearby
                and not was_interrupted()
                and (left is None or left > LEAST_FOR_NEIGHBOURS * seconds)
            ):
                on_first(group, lambda: race_here(found, nearby, fits, data, left))
            automatic._keep(found, [], data, self.n_rows, self.rows.rows, deadline)
            fits.tell_end()
        adopt(automatic, group)


# ---- rows in chunks, as networks see them --------------------------------------------------------


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
        X = as_given(self.source, chunk)
        # Only predictions warn of levels that the encoder does not know.
        with named_by(chunk.where, (TypeError, ValueError)), muted(True):
            return encoder.transform_training(X, chunk.rows, self.by_fold)

    def checked(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Yield chunks, checked, with transformed targets."""
        for chunk in super().checked(chunks):
            assert chunk.y is not None  # the first pass has seen it
            with named_by(chunk.where):
                y = transformed(self.automatic, chunk.y)
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


def with_checked_targets(chunk: Chunk) -> Chunk:
    """Return a chunk as it is stored, with y and weights that are valid."""
    none = np.empty((len(chunk), 0))
    return replace(checked(replace(chunk, X=none), (), none.dtype), X=chunk.X)


def as_given(source: RowSource, chunk: Chunk) -> Any:
    """Return X of a chunk as the user's transformer leaves it, if there is one."""
    return chunk.X if source.transform is None else source.inputs.given(chunk)
