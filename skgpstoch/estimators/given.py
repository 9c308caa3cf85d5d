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
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import resolve_seed
from ..data.deadline import Deadline
from ..data.devices import resolve_device
from ..data.equal_rows import inverse_order, merged, observations
from ..data.reduce import ALONE, ClockOfGroup, Group
from ..data.rows import Data, Rows, Whole
from ..recipes.plan import Plan, Sizes, Start, within_sample
from ..recipes.recipe import Problem, Recipe
from ..training.checkpoint import (
    AnyCheckpoint,
    Checkpoint,
    CheckpointOfGroup,
    checkpoint_of,
    seed_of,
)
from ..training.tables import InMemory, Pair, Table
from .first_rank import fit_on_first, training_together
from .runs import Run, begin, begin_in_time

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

    def prepared(self, estimator: Any, recipe: Recipe, start: Start | None) -> Run:
        """Plan, scale the rows, and make the objective."""
        plan = self.within(recipe.plan(self.sizes, start))
        checkpoint, seed = self.kept(estimator, self.seed_of(estimator), start, plan.beta)
        generator = torch.Generator(resolve_device(estimator.device)).manual_seed(seed)
        estimator._set_scalings(recipe, self.data, start)
        table, places = self.scaled(estimator._tensors, plan, generator)
        problem = Problem.of(table, estimator._x_scaling, plan, generator, start)
        if recipe.deadline is None:
            run = begin(recipe, problem, checkpoint)
        else:
            run = begin_in_time(recipe, problem, self.sizes, checkpoint, recipe.deadline)
        return run._replace(places=places, numbers=self.numbers)

    def within(self, plan: Plan) -> Plan:
        """Return a plan that holds out only rows in memory."""
        return plan

    def seed_of(self, estimator: Any) -> int:
        """Return the seed of the fit."""
        return resolve_seed(estimator.random_state)

    def kept(self, estimator: Any, seed: int, *more: Any) -> tuple[AnyCheckpoint | None, int]:
        """Return the checkpoint of exactly this fit, if there shall be one, and the fit's seed."""
        if estimator.checkpoint_dir is None:
            return None, seed
        file = checkpoint_of(estimator, self.data, seed, *more)
        return file, seed_of(estimator, file, seed)

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
    def of(cls, recipe: Recipe, data: Data, start: Start | None) -> Self:
        """Merge rows as the recipe allows."""
        sizes = Sizes(len(data), data.size, data.X.shape[1], data.y_std is not None)
        units, places = as_units(recipe, data, recipe.plan(sizes, start))
        return cls(data=units, places=places, n_given=sizes.n_given)

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


def as_units(recipe: Recipe, data: Data, plan: Plan) -> tuple[Data, np.ndarray]:
    """Merge rows as the recipe allows; return them and where each given row went."""
    if not recipe.merges_rows:
        return data, np.arange(len(data))
    if recipe.keeps_apart(plan):
        return observations(data, len(data) if recipe.merges_many else None)
    return merged(data)


def order_of_rows(data: Data, generator: torch.Generator) -> np.ndarray:
    """Return a random order of rows, (N,).

    Rows may come sorted by their values, so any other rule than chance would hold out rows by
    their columns.
    """
    return torch.randperm(len(data), generator=generator, device=generator.device).cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Sampled(Given):
    """Rows of which all ranks know only a sample; they train together.

    Parameters
    ----------
    whole : Whole
        Size, weight and processes of all rows of all ranks.
    n_epoch : int
        Number of rows in an epoch, held-out ones included.
    seed : int
        Seed of the sample, and of the minibatches.
    table : callable
        Makes the table from the sample's X and rows, :data:`Scaled` and the dtype.
    all_here : callable or None, default=None
        Gathers all rows; None: they may not fit into memory.
    """

    whole: Whole
    n_epoch: int
    seed: int
    table: Callable[[Tensor, Rows, Scaled, str], Table]
    all_here: Callable[[], AllHere] | None = None

    @property
    def sizes(self) -> Sizes:
        n, N = self.n_epoch, self.whole.n_rows
        weight = self.whole.weight if n == N else n * self.whole.weight / N
        data = self.data
        return Sizes(n, max(n, math.floor(weight)), data.X.shape[1], data.y_std is not None)

    def fit(self, estimator: Any, recipe: Recipe) -> None:
        """Train in step with the other ranks."""
        with training_together(estimator, self.group):
            run = self.prepared(estimator, recipe, estimator._start())
            try:
                estimator._fit_run(recipe, run, self.data, self.data)
            finally:
                run.table.close()

    def gathered(self, estimator: Any, recipe: Recipe) -> Given:
        if recipe.sums_rows(recipe.plan(self.sizes, estimator._start())):
            return self
        if self.all_here is None:
            raise ValueError(
                f"{type(estimator).__name__} with these parameters needs all "
                f"{self.whole.n_rows:,} rows in memory at once. Pass arrays, or use an estimator "
                "that trains on minibatches, such as SVGPRegressor or "
                "AutoGaussianProcessRegressor."
            )
        return self.all_here()

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds, self.clock)  # which counts from the beginning

    def within(self, plan: Plan) -> Plan:
        return within_sample(plan, len(self.data))

    def seed_of(self, estimator: Any) -> int:
        return self.seed

    def kept(self, estimator: Any, seed: int, *more: Any) -> tuple[AnyCheckpoint | None, int]:
        shape = self.whole.n_rows, self.whole.weight  # the sample may be that of other rows
        file, seed = super().kept(estimator, seed, *more, shape)
        return None if file is None else CheckpointOfGroup(cast(Checkpoint, file), self.group), seed

    def scaled(
        self, tensors: Scaled, plan: Plan, generator: torch.Generator
    ) -> tuple[Table, np.ndarray]:
        X, rows = tensors(self.data, plan.dtype, generator.device, None, plan.folds)
        rows = replace(rows, whole=replace(self.whole, group=ALONE))
        return self.table(X, rows, tensors, plan.dtype), np.arange(len(self.data))
