"""Minibatches of rows for training, in one process or in a group of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.counter_hash import sequence_start, splitmix64, uniform
from ..data.reduce import ALONE, Group
from ..data.rows import Rows, Whole


class Minibatches(Protocol):
    """Base class of rows to train on, in minibatches that differ between epochs."""

    @property
    def n_rows(self) -> int:
        """Number of rows in an epoch, in the whole group."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    @property
    def group(self) -> Group:
        """The processes that each have a part of every minibatch."""

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield X (b, d) and the rows of each minibatch; `number` counts epochs from 0."""

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows, for a step that is only timed."""


class Table(Protocol):
    """All rows of a fit that shares or stores them: every rank has only a sample in memory.

    Training takes minibatches of the table; the closing pass reads all of it.
    """

    @property
    def X(self) -> Any:
        """The inputs of this process's rows, of which slices can be taken in order."""

    @property
    def n_epoch(self) -> int:
        """Number of rows in an epoch, held-out ones included."""

    def with_folds(self, fold: Tensor | None) -> Rows:
        """Return targets, weights and so on of the rows, with the folds of the sample's rows."""

    def minibatches(self, fold: Tensor | None, n_untrained: int) -> Minibatches:
        """Return minibatches of all rows but the first `n_untrained` ones of the sample."""


class Permuted(NamedTuple):
    """Rows of a single process, permuted by the generator in each epoch."""

    X: Tensor
    rows: Rows
    group: Group = ALONE

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.X.device

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches whose sizes differ by at most one row."""
        permutation = torch.randperm(self.n_rows, generator=generator, device=self.device)
        for batch in permutation.tensor_split(n_batches):
            yield self.X.index_select(0, batch), self.rows[batch]

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows at random."""
        some = torch.randint(self.n_rows, (n_rows,), generator=generator, device=self.device)
        return self.X.index_select(0, some), self.rows[some]


@dataclass(frozen=True)
class Dealt:
    """Rows of a group, of which this process has some; minibatches do not depend on which.

    A hash of the seed, the epoch and the row's number in the group assigns each row to a minibatch
    of the epoch. So every process makes the same number of steps, some perhaps without a row of its
    own, and minibatches have about equal sizes.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        The rows of this process.
    places : Tensor of shape (m,)
        Indices of those rows that are trained on.
    numbers : ndarray of shape (m,)
        Their numbers in the group.
    n_rows : int
        Number of rows that are trained on in the whole group.
    seed : int
        Seed of the minibatches.
    group : Group
        The processes, which have the other rows.
    """

    X: Tensor
    rows: Rows
    places: Tensor
    numbers: np.ndarray
    n_rows: int
    seed: int
    group: Group

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.X.device

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches; some may have no row in the whole group."""
        batch = self.batch_of_rows(number, n_batches)
        sizes = torch.bincount(batch, minlength=n_batches)
        weight = None if self.rows.weight is None else self.rows.weight[self.places].double().cpu()
        all_sizes, weights = sizes.clone(), torch.bincount(batch, weight, n_batches).double()
        self.group.sum_(all_sizes, weights)
        places = self.places[batch.argsort(stable=True).to(self.device)]
        wholes = zip(all_sizes.tolist(), weights.tolist(), strict=True)
        for own, (n, w) in zip(places.split(sizes.tolist()), wholes, strict=True):
            yield self.part(own, Whole(n, w, self.group))

    def batch_of_rows(self, epoch: int, n_batches: int) -> Tensor:
        """Return the minibatch of each row in an epoch, (m,), on the CPU."""
        start = sequence_start(self.seed, 1 + epoch)  # the sample uses sequence 0
        u = uniform(splitmix64(torch.from_numpy(self.numbers) + start))
        return (u * n_batches).long()

    def part(self, own: Tensor, whole: Whole) -> tuple[Tensor, Rows]:
        """Return rows of this process as its part of a minibatch."""
        return self.X.index_select(0, own), replace(self.rows[own], whole=whole)

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows of the whole group, the same number from each process."""
        n, m = max(1, n_rows // self.group.size), len(self.places)
        own = torch.arange(n if m else 0, device=self.device) % max(m, 1)
        X, rows = self.part(self.places[own], Whole(0, 0.0, self.group))
        counts = torch.tensor([float(len(rows)), rows.own_weight], dtype=torch.float64)
        self.group.sum_(counts)
        size, weight = counts.tolist()
        return X, replace(rows, whole=Whole(int(size), weight, self.group))


@dataclass(frozen=True)
class Shared:
    """The rows of this process, when a group of processes fits to all their rows.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        The rows of this process, a part of the whole.
    first : int
        Number of the first of them in the group.
    sampled : tuple of ndarray
        Indices of those that are in the group's shared sample, and their places there.
    seed : int
        Seed of the minibatches.
    """

    X: Tensor
    rows: Rows
    first: int
    sampled: tuple[np.ndarray, np.ndarray]
    seed: int

    @property
    def n_epoch(self) -> int:
        """Number of rows in the whole group."""
        return self.rows.n_all

    def with_folds(self, fold: Tensor | None) -> Rows:
        """Return the rows, with the folds of those that are in the sample."""
        if fold is None:
            return self.rows
        own, places = (torch.from_numpy(part) for part in self.sampled)
        of_rows = torch.full((len(self.rows),), -1, dtype=fold.dtype)
        of_rows[own] = fold.cpu()[places]
        return replace(self.rows, fold=of_rows.to(self.X.device))

    def minibatches(self, fold: Tensor | None, n_untrained: int) -> Dealt:
        """Return minibatches of all rows but the first `n_untrained` ones of the sample."""
        is_trained = np.ones(len(self.rows), dtype=bool)
        own, places = self.sampled
        is_trained[own[places < n_untrained]] = False
        trained = np.flatnonzero(is_trained)
        whole = self.rows.whole
        assert whole is not None
        return Dealt(
            self.X,
            self.with_folds(fold),
            torch.from_numpy(trained).to(self.X.device),
            self.first + trained,
            whole.n_rows - n_untrained,
            self.seed,
            whole.group,
        )
