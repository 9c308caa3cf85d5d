"""The rows of a fit, wherever they are: in memory, on several ranks, or in chunks.

Training takes minibatches of a :class:`Table`; the closing pass reads all of it. What rows decide
before training (scalings, inducing points, starts, held-out rows) they decide by rows in memory:
all of them, or a sample that all ranks share and that does not depend on which rank has which rows.
Rows that are read in chunks are in :mod:`skgpstoch.training.stored_rows`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..data.counter_rng import sequence_start, splitmix64, uniform
from ..data.deadline import Deadline
from ..data.equal_rows import inverse_order
from ..data.groups import ALONE, ClockOfGroup, Group
from ..data.row_sample import chosen_rows, most_sampled
from ..data.rows import Data, Rows, Whole

Pair = tuple[Tensor, Rows]
"""X (N, d), and what else is known of these rows."""

Scaled = Callable[..., Pair]
"""Scales data to tensors of a dtype on a device, in an order, with folds (`BaseGP._tensors`)."""

UNKNOWN: Any = None  # what a table has not yet


class Sizes(NamedTuple):
    """All that a plan may know of the data."""

    n_rows: int  # distinct rows
    n_given: int  # rows before equal rows were merged, or their total weight if that is more
    n_features: int = 1
    has_known_noise: bool = False  # y_std is given
    streams: bool = False  # the rows are one chunk of a stream


@dataclass(frozen=True)
class Table(ABC):
    """Base class of the rows of a fit.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        Rows in memory, as :meth:`scaled` makes them of `data`.
    data : Data
        The same as they were validated: all rows, or a sample that represents them.
    numbers : ndarray of shape (n,) or None, default=None
        Their places among all rows that were given; None: they are in order.
    places : ndarray of shape (n,)
        Which row of X each given row became, when equal ones were merged and shuffled.
    clock : ClockOfGroup
        Counts the seconds of the fit, and knows the ranks that fit together.
    weight_unit : float, default=1.0
        By which given weights were divided.
    """

    X: Tensor = UNKNOWN
    rows: Rows = UNKNOWN
    _: KW_ONLY
    data: Data = UNKNOWN
    numbers: np.ndarray | None = None
    places: np.ndarray = UNKNOWN
    clock: ClockOfGroup = field(default_factory=lambda: ClockOfGroup(ALONE))
    weight_unit: float = 1.0

    @property
    def device(self) -> torch.device:
        """Where training happens."""
        return self.X.device

    @property
    def group(self) -> Group:
        """The processes that fit together."""
        return self.clock.group

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows in an epoch, in the whole group."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """What a plan may know of all rows."""

    def deadline(self, seconds: float) -> Deadline:
        """Return the time so many seconds after the fit began."""
        return Deadline.after(seconds, self.clock.began)

    @abstractmethod
    def scaled(self, tensors: Scaled, plan: Any, generator: torch.Generator) -> Self:
        """Return the table with `X` and `rows`, of the plan's dtype and folds."""

    @abstractmethod
    def trained(self, n_untrained: int, source: Callable[[Tensor, Rows], Pair]) -> Table:
        """Return what minibatches are taken of: the table without its first rows in memory.

        `source` is the objective's, which may make something else of rows that are all in memory.
        """

    @abstractmethod
    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield X (b, d) and the rows of each minibatch; `number` counts epochs from 0."""

    @abstractmethod
    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows, for a step that is only timed."""

    @abstractmethod
    def every_row(self) -> tuple[Any, Rows]:
        """Return all rows of this process, of which slices can be taken in order."""

    def folded(self, fold: Tensor | None) -> Self:
        """Return the table with these folds of the rows in memory."""
        return replace(self, rows=replace(self.rows, fold=fold))

    def close(self) -> None:
        """Stop reading."""
        return  # only chunks are read


@dataclass(frozen=True)
class InMemory(Table):
    """Rows of a single process, permuted by the generator in each epoch.

    Parameters
    ----------
    n_given : int, default=0
        Number of rows before equal ones were merged, or their total weight if that is more.
    n_distinct : int or None, default=None
        Number of rows before those that are copies of them; None: all.
    """

    _: KW_ONLY
    n_given: int = 0
    n_distinct: int | None = None

    @property
    def n_rows(self) -> int:
        return len(self.X)

    @property
    def sizes(self) -> Sizes:
        data = self.data
        return Sizes(len(data), self.n_given, data.X.shape[1], data.y_std is not None)

    def scaled(self, tensors: Scaled, plan: Any, generator: torch.Generator) -> Self:
        """Put the rows in random order, if the plan shuffles; the first ones validate.

        Rows may come sorted by their values, so any other rule than chance would hold out rows by
        their columns. Rows of a group stay together, so that few groups are partly held out.
        """
        order, places, device = None, self.places, generator.device
        if plan.shuffles:
            n = len(self.data) if self.n_distinct is None else self.n_distinct
            order = torch.randperm(n, generator=generator, device=device).cpu().numpy()
            copies = torch.empty(len(self.data) - n, dtype=torch.float32, device=device)
            order = with_copies(order, copies.uniform_(generator=generator).cpu().numpy())
            if self.data.cluster is not None:
                order = together(order, self.data.cluster)
            places = inverse_order(order)[places]
        X, rows = tensors(self.data, plan.dtype, device, order, plan.folds)
        return replace(self, X=X, rows=rows, places=places)

    def trained(self, n_untrained: int, source: Callable[[Tensor, Rows], Pair]) -> InMemory:
        return InMemory(*source(self.X[n_untrained:], self.rows[n_untrained:]))

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches whose sizes differ by at most one row."""
        permutation = torch.randperm(self.n_rows, generator=generator, device=self.device)
        for batch in permutation.tensor_split(n_batches):
            yield self.X.index_select(0, batch), self.rows[batch]

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        some = torch.randint(self.n_rows, (n_rows,), generator=generator, device=self.device)
        return self.X.index_select(0, some), self.rows[some]

    def every_row(self) -> tuple[Tensor, Rows]:
        return self.X, self.rows


def with_copies(order: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return rows in random order with copies among them, at places from 0 to 1.

    The first rows are the same as without copies, but for copies.
    """
    n = len(order)
    among = np.concatenate([(np.arange(n) + 0.5) / n, places])
    return np.concatenate([order, n + np.arange(len(places))])[np.argsort(among, kind="stable")]


def together(order: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Return rows in random order with each group's rows together, groups in random order.

    Whatever its size, the first row of a group stands for it.
    """
    _, first, code = np.unique(cluster, return_index=True, return_inverse=True)
    return order[np.argsort(inverse_order(order)[first][code.ravel()][order], kind="stable")]


def of_all_ranks(data: Data, numbers: np.ndarray, clock: ClockOfGroup) -> InMemory:
    """Return the rows of all ranks, of which each gives its own."""
    gather = clock.group.gather
    return InMemory(data=data.map(gather), numbers=gather(numbers), clock=clock)


@dataclass(frozen=True, kw_only=True)
class Sampled(Table):
    """Base class of rows of which only a sample is in memory, or of which ranks have parts.

    Parameters
    ----------
    whole : Whole
        Size, weight and processes of all rows of all ranks.
    seed : int
        Seed of the sample, and of the minibatches.
    n_untrained : int, default=0
        How many of the sample's first rows are not trained on.
    """

    whole: Whole
    seed: int
    n_untrained: int = 0

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

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, clock=self.clock)  # which counts from the beginning

    def scaled(self, tensors: Scaled, plan: Any, generator: torch.Generator) -> Self:
        X, rows = tensors(self.data, plan.dtype, generator.device, None, plan.folds)
        rows, places = replace(rows, whole=replace(self.whole, group=ALONE)), np.arange(len(X))
        return replace(self, X=X, rows=rows, places=places)

    def gathered(self) -> InMemory | None:
        """Return all rows; None if they may not fit into memory."""
        return None


@dataclass(frozen=True, kw_only=True)
class OnRanks(Sampled):
    """Rows of a group, of which this process has some; minibatches do not depend on which.

    A hash of the seed, the epoch and the row's number in the group assigns each row to a minibatch
    of the epoch. So every process makes the same number of steps, some perhaps without a row of its
    own, and minibatches have about equal sizes.

    Parameters
    ----------
    own_data, own_numbers : Data and ndarray
        The rows of this process, a part of the whole, and their places among all that were given.
    first : int
        Number of the first of them in the group.
    sampled : tuple of ndarray
        Indices of those that are in the group's shared sample, and their places there.
    own : tuple of Tensor and Rows
        The same rows, scaled.
    """

    own_data: Data
    own_numbers: np.ndarray
    first: int
    sampled: tuple[np.ndarray, np.ndarray]
    own: Pair = UNKNOWN

    @classmethod
    def sampled_of(
        cls,
        data: Data,
        numbers: np.ndarray,
        clock: ClockOfGroup,
        whole: Whole,
        seed: int,
        first: int,
    ) -> Self:
        """Sample the rows of all ranks, of which this process has these."""
        group, most = clock.group, most_sampled(data.X.shape[1])
        chosen, places = (part.numpy() for part in chosen_rows(group, seed, first, len(data), most))
        order = np.argsort(group.gather(places))

        def sampled(column: np.ndarray) -> np.ndarray:
            return group.gather(column[chosen])[order]

        known: dict[str, Any] = {"clock": clock, "whole": whole, "seed": seed, "first": first}
        known |= {"own_data": data, "own_numbers": numbers, "sampled": (chosen, places)}
        return cls(data=data.map(sampled), numbers=sampled(numbers), **known)

    @property
    def n_rows(self) -> int:
        return self.whole.n_rows - self.n_untrained

    def gathered(self) -> InMemory:
        return of_all_ranks(self.own_data, self.own_numbers, self.clock)

    def scaled(self, tensors: Scaled, plan: Any, generator: torch.Generator) -> Self:
        X, rows = tensors(self.own_data, plan.dtype, generator.device)
        own = X, replace(rows, whole=self.whole)
        return replace(super().scaled(tensors, plan, generator), own=own)

    def trained(self, n_untrained: int, source: Callable[[Tensor, Rows], Pair]) -> OnRanks:
        return replace(self, n_untrained=n_untrained)

    @cached_property
    def trained_rows(self) -> np.ndarray:
        """Indices of this process's rows that are trained on, (m,)."""
        is_trained = np.ones(len(self.own[1]), dtype=bool)
        own, places = self.sampled
        is_trained[own[places < self.n_untrained]] = False
        return np.flatnonzero(is_trained)

    @cached_property
    def own_rows(self) -> Rows:
        """The rows of this process, with the folds of those that are in the sample."""
        rows, fold = self.own[1], self.rows.fold
        if fold is None:
            return rows
        own, places = (torch.from_numpy(part) for part in self.sampled)
        of_rows = torch.full((len(rows),), -1, dtype=fold.dtype)
        of_rows[own] = fold.cpu()[places]
        return replace(rows, fold=of_rows.to(self.device))

    def every_row(self) -> tuple[Tensor, Rows]:
        return self.own[0], self.own_rows

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches; some may have no row in the whole group."""
        batch, places = self.batch_of_rows(number, n_batches), torch.from_numpy(self.trained_rows)
        sizes = torch.bincount(batch, minlength=n_batches)
        weight = self.own_rows.weight
        weight = None if weight is None else weight.double().cpu()[places]
        all_sizes, weights = sizes.clone(), torch.bincount(batch, weight, n_batches).double()
        self.group.sum_(all_sizes, weights)
        places = places[batch.argsort(stable=True)].to(self.device)
        wholes = zip(all_sizes.tolist(), weights.tolist(), strict=True)
        for own, (n, w) in zip(places.split(sizes.tolist()), wholes, strict=True):
            yield self.part(own, Whole(n, w, self.group))

    def batch_of_rows(self, epoch: int, n_batches: int) -> Tensor:
        """Return the minibatch of each trained row in an epoch, (m,), on the CPU."""
        start = sequence_start(self.seed, 1 + epoch)  # the sample uses sequence 0
        u = uniform(splitmix64(torch.from_numpy(self.first + self.trained_rows) + start))
        return (u * n_batches).long()

    def part(self, own: Tensor, whole: Whole) -> tuple[Tensor, Rows]:
        """Return rows of this process as its part of a minibatch."""
        return self.own[0].index_select(0, own), replace(self.own_rows[own], whole=whole)

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows of the whole group, the same number from each process."""
        n, m = max(1, n_rows // self.group.size), len(self.trained_rows)
        own = torch.from_numpy(self.trained_rows[np.arange(n if m else 0) % max(m, 1)])
        X, rows = self.part(own.to(self.device), Whole(0, 0.0, self.group))
        counts = torch.tensor([float(len(rows)), rows.own_weight], dtype=torch.float64)
        self.group.sum_(counts)
        size, weight = counts.tolist()
        return X, replace(rows, whole=Whole(int(size), weight, self.group))
