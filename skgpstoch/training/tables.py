"""The rows of a fit as tensors, wherever they are: in memory, on several ranks, or in chunks.

Training takes minibatches of a :class:`Table`; the closing pass reads all of it. What rows decide
before training (inducing points, starts, held-out rows) they decide by `X` and `rows`, which are in
memory: all rows, or a sample of them that all ranks share. Rows that are read in chunks are in
:mod:`skgpstoch.training.stored_rows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..data.counter_rng import sequence_start, splitmix64, uniform
from ..data.groups import ALONE, Group
from ..data.rows import Rows, Whole

Pair = tuple[Tensor, Rows]
"""X (N, d), and what else is known of these rows."""


@dataclass(frozen=True)
class Table(ABC):
    """Base class of the rows of a fit.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        Rows in memory: all of them, or a sample that represents them.
    """

    X: Tensor
    rows: Rows

    @property
    def device(self) -> torch.device:
        """Where training happens."""
        return self.X.device

    @property
    def group(self) -> Group:
        """The processes that each have a part of every minibatch."""
        return ALONE

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows in an epoch, in the whole group."""

    @property
    def is_sampled(self) -> bool:
        """Whether `X` and `rows` are only a sample."""
        return True

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
    """Rows of a single process, permuted by the generator in each epoch."""

    @property
    def n_rows(self) -> int:
        return len(self.X)

    @property
    def is_sampled(self) -> bool:
        return False

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


@dataclass(frozen=True)
class OnRanks(Table):
    """Rows of a group, of which this process has some; minibatches do not depend on which.

    A hash of the seed, the epoch and the row's number in the group assigns each row to a minibatch
    of the epoch. So every process makes the same number of steps, some perhaps without a row of its
    own, and minibatches have about equal sizes.

    Parameters
    ----------
    own : tuple of Tensor and Rows
        The rows of this process, a part of the whole.
    first : int
        Number of the first of them in the group.
    sampled : tuple of ndarray
        Indices of those that are in the group's shared sample, and their places there.
    seed : int
        Seed of the minibatches.
    n_untrained : int, default=0
        How many of the sample's first rows are not trained on.
    """

    own: Pair
    first: int
    sampled: tuple[np.ndarray, np.ndarray]
    seed: int
    n_untrained: int = 0

    @property
    def whole(self) -> Whole:
        """All rows of the group."""
        whole = self.own[1].whole
        assert whole is not None
        return whole

    @property
    def group(self) -> Group:
        return self.whole.group

    @property
    def n_rows(self) -> int:
        return self.whole.n_rows - self.n_untrained

    def trained(self, n_untrained: int, source: Callable[[Tensor, Rows], Pair]) -> OnRanks:
        return replace(self, n_untrained=n_untrained)

    @cached_property
    def places(self) -> np.ndarray:
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
        batch, places = self.batch_of_rows(number, n_batches), torch.from_numpy(self.places)
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
        u = uniform(splitmix64(torch.from_numpy(self.first + self.places) + start))
        return (u * n_batches).long()

    def part(self, own: Tensor, whole: Whole) -> tuple[Tensor, Rows]:
        """Return rows of this process as its part of a minibatch."""
        return self.own[0].index_select(0, own), replace(self.own_rows[own], whole=whole)

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows of the whole group, the same number from each process."""
        n, m = max(1, n_rows // self.group.size), len(self.places)
        own = torch.from_numpy(self.places[np.arange(n if m else 0) % max(m, 1)])
        X, rows = self.part(own.to(self.device), Whole(0, 0.0, self.group))
        counts = torch.tensor([float(len(rows)), rows.own_weight], dtype=torch.float64)
        self.group.sum_(counts)
        size, weight = counts.tolist()
        return X, replace(rows, whole=Whole(int(size), weight, self.group))
