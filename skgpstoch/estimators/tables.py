"""Fit to validated rows, wherever they are: all here, on several ranks, or read in chunks.

If rows are many, a sample decides scalings, inducing points, starts and the choice of held-out
rows; it does not depend on which rank has which rows. Training and the closing pass use sums over
all rows. Rank 0 fits for all if rows are few, or if training is not such a sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk
from ..data.deadline import Deadline
from ..data.reduce import ALONE, ClockOfGroup, Group
from ..data.row_source import RowSource
from ..data.rows import Data, Rows, Whole, inverse_order
from ..recipes.plan import Plan, Sizes, within_sample
from ..recipes.recipe import Recipe
from ..training.checkpoint import AnyCheckpoint, Checkpoint, CheckpointOfGroup
from ..training.stored_rows import EPOCH_ROWS, InChunks
from ..training.tables import InMemory, OnRanks, Pair, Table
from .first_rank import fit_on_first, training_together

Scaled = Callable[..., Pair]
"""Scales data to tensors of a dtype on a device, in an order, with folds (`BaseGP._tensors`)."""


@dataclass(frozen=True, kw_only=True)
class Given(ABC):
    """Base class of the validated rows of a fit.

    Parameters
    ----------
    data : Data
        Rows in memory: all of them, or a sample that all ranks share.
    numbers : ndarray of shape (n,) or None, default=None
        Their places among all rows that were given; None: they are in order.
    clock : ClockOfGroup
        Counts the seconds of the fit, and knows the ranks that fit together.
    """

    data: Data
    numbers: np.ndarray | None = None
    clock: ClockOfGroup = field(default_factory=lambda: ClockOfGroup(ALONE))

    @property
    def group(self) -> Group:
        """The ranks that fit together."""
        return self.clock.group

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """What a plan may know of all rows."""

    @abstractmethod
    def fit(self, estimator: Any, recipe: Recipe) -> None:
        """Fit to the rows."""

    def gathered(self, estimator: Any, recipe: Recipe) -> Given:
        """Return rows that are all here, if training is not a sum over minibatches."""
        return self

    def in_time(self, estimator: Any, recipe: Recipe) -> Recipe:
        """Return a recipe that ends `max_time`, if set, after the fit began."""
        if (seconds := getattr(estimator, "max_time", None)) is None:
            return recipe
        return replace(recipe, deadline=self.deadline(seconds))

    def deadline(self, seconds: float) -> Deadline:
        """Return the time so many seconds after the fit began."""
        return Deadline(self.clock.began + seconds)

    # ---- preparing ---------------------------------------------------------------------------

    def within(self, plan: Plan) -> Plan:
        """Return a plan that holds out only rows in memory."""
        return plan

    def seed_of(self, estimator: Any) -> int:
        """Return the seed of the fit."""
        return resolve_seed(estimator.random_state)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What distinguishes all rows from others with the same rows in memory."""
        return ()

    def kept_in(self, file: Checkpoint) -> AnyCheckpoint:
        """Return the checkpoint of all ranks."""
        return file

    @abstractmethod
    def scaled(
        self, tensors: Scaled, plan: Plan, generator: torch.Generator
    ) -> tuple[Table, np.ndarray]:
        """Return the scaled table, and the place there of each row that was in memory."""


@dataclass(frozen=True, kw_only=True)
class AllHere(Given):
    """All rows, in this process; rank 0 fits for all.

    Parameters
    ----------
    places : ndarray of shape (n,) or None, default=None
        Which of the rows each row became when equal ones were merged.
    n_given : int, default=0
        Number of rows before, or their total weight if that is more.
    """

    places: np.ndarray | None = None
    n_given: int = 0

    @classmethod
    def of(cls, recipe: Recipe, data: Data) -> Self:
        """Merge equal rows, if the recipe allows it."""
        n_given = len(data) if data.weight is None else data.size
        merged, places = data.merging() if recipe.merges_rows else (data, np.arange(len(data)))
        return cls(data=merged, places=places, n_given=n_given)

    @property
    def sizes(self) -> Sizes:
        data = self.data
        return Sizes(len(data), self.n_given, data.X.shape[1], data.y_std is not None)

    def fit(self, estimator: Any, recipe: Recipe) -> None:
        fit_on_first(estimator, self.group, partial(self.fit_here, estimator, recipe))

    def fit_here(self, estimator: Any, recipe: Recipe) -> None:
        """Fit, and warn of what is wrong with the fit."""
        estimator._fit(recipe, self.data)
        estimator._diagnosis.warn()
        held_out = getattr(estimator, "held_out_", None)
        if held_out is not None and self.numbers is not None:
            estimator.held_out_ = held_out.known_by(self.numbers)

    def scaled(
        self, tensors: Scaled, plan: Plan, generator: torch.Generator
    ) -> tuple[Table, np.ndarray]:
        """Put the rows in random order; the first ones validate."""
        assert self.places is not None
        order = order_of_rows(self.data, generator) if plan.shuffles else None
        table = InMemory(*tensors(self.data, plan.dtype, generator.device, order, plan.folds))
        return table, self.places if order is None else inverse_order(order)[self.places]


def order_of_rows(data: Data, generator: torch.Generator) -> np.ndarray:
    """Return a random order of rows, (N,).

    Up to 10,000 rows come sorted by their values (:meth:`Data.merged`), so any other rule than
    chance would hold out rows by their columns.
    """
    return torch.randperm(len(data), generator=generator, device=generator.device).cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Sampled(Given):
    """Base class of rows of which only a sample is known to all ranks; they train together.

    Parameters
    ----------
    whole : Whole
        Size, weight and processes of all rows of all ranks.
    seed : int
        Seed of the sample, and of the minibatches.
    """

    whole: Whole
    seed: int

    @property
    def n_epoch(self) -> int:
        """Number of rows in an epoch, held-out ones included."""
        return self.whole.n_rows

    @property
    def sizes(self) -> Sizes:
        n, N = self.n_epoch, self.whole.n_rows
        weight = self.whole.weight if n == N else n * self.whole.weight / N
        data = self.data
        return Sizes(n, max(n, math.floor(weight)), data.X.shape[1], data.y_std is not None)

    def fit(self, estimator: Any, recipe: Recipe) -> None:
        """Train in step with the other ranks."""
        with training_together(estimator, self.group):
            run = estimator._prepare(recipe, self, estimator._start())
            try:
                estimator._fit_run(recipe, run, self.data, self.data)
            finally:
                run.table.close()

    def gathered(self, estimator: Any, recipe: Recipe) -> Given:
        plan = recipe.plan(self.sizes, estimator._start())
        return self if recipe.sums_rows(plan) else self.all_here(estimator)

    @abstractmethod
    def all_here(self, estimator: Any) -> AllHere:
        """Return all rows, in this process."""

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds, self.clock)  # which counts from the beginning

    def within(self, plan: Plan) -> Plan:
        return within_sample(plan, len(self.data))

    def seed_of(self, estimator: Any) -> int:
        return self.seed

    @property
    def shape(self) -> tuple[Any, ...]:
        return ((self.whole.n_rows, self.whole.weight),)

    def kept_in(self, file: Checkpoint) -> AnyCheckpoint:
        return CheckpointOfGroup(file, self.group)

    def scaled(
        self, tensors: Scaled, plan: Plan, generator: torch.Generator
    ) -> tuple[Table, np.ndarray]:
        X, rows = tensors(self.data, plan.dtype, generator.device, None, plan.folds)
        rows = replace(rows, whole=replace(self.whole, group=ALONE))
        return self.table(X, rows, tensors, plan), np.arange(len(self.data))

    @abstractmethod
    def table(self, X: Tensor, rows: Rows, tensors: Scaled, plan: Plan) -> Table:
        """Return the table whose sample is scaled."""


@dataclass(frozen=True, kw_only=True)
class OfRanks(Sampled):
    """Rows of several ranks, in memory.

    Parameters
    ----------
    own : Data
        The rows of this rank that count.
    own_numbers : ndarray of shape (n,)
        Their places among all that ranks were given.
    first : int
        Place of the first of them among all that count.
    sampled : tuple of ndarray
        Which of them are in the sample, and where.
    """

    own: Data
    own_numbers: np.ndarray
    first: int
    sampled: tuple[np.ndarray, np.ndarray]

    def all_here(self, estimator: Any) -> AllHere:
        return all_of_ranks(self.own, self.own_numbers, self.clock)

    def table(self, X: Tensor, rows: Rows, tensors: Scaled, plan: Plan) -> Table:
        own_X, own_rows = tensors(self.own, plan.dtype, X.device)
        own = own_X, replace(own_rows, whole=self.whole)
        return OnRanks(X, rows, own, self.first, self.sampled, self.seed)


def all_of_ranks(own: Data, numbers: np.ndarray, clock: ClockOfGroup) -> AllHere:
    """Return the rows of all ranks, of which these, with these numbers, are this rank's."""
    gather = clock.group.gather
    return AllHere(data=own.map(gather), numbers=gather(numbers), clock=clock)


@dataclass(frozen=True, kw_only=True)
class OfChunks(Sampled):
    """Rows that are read in chunks; in a group each rank reads units of its own.

    Parameters
    ----------
    is_own : ndarray of shape (m,)
        Whether each row of the sample is of this process.
    source : RowSource
        The rows of this process.
    n_own : int
        How many of these have a weight.
    checked : callable
        Validates a chunk.
    """

    is_own: np.ndarray
    source: RowSource
    n_own: int
    checked: Callable[[Chunk], Data]

    @property
    def n_epoch(self) -> int:
        return min(self.whole.n_rows, EPOCH_ROWS)

    def all_here(self, estimator: Any) -> AllHere:
        """Raise a ValueError, because the rows may not fit into memory."""
        raise ValueError(
            f"{type(estimator).__name__} with these parameters needs all "
            f"{self.whole.n_rows:,} rows in memory at once. Pass arrays, or use an estimator that "
            "trains on minibatches, such as SVGPRegressor or AutoGaussianProcessRegressor."
        )

    def table(self, X: Tensor, rows: Rows, tensors: Scaled, plan: Plan) -> Table:
        none = X[:0], replace(rows[:0], fold=None)

        def of_chunk(chunk: Chunk) -> Pair:
            return tensors(self.checked(chunk), plan.dtype, X.device) if len(chunk) else none

        assert self.numbers is not None
        of_sample = self.numbers, self.is_own, self.seed
        return InChunks(X, rows, self.source, self.n_own, of_chunk, self.whole, *of_sample)
