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
        """How many rows an epoch goes through, in the whole group."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    @property
    def group(self) -> Group:
        """Who has a part of every minibatch."""

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield X (b, d) and what is known of these rows; the number counts epochs from 0."""

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows at random, for a step that is only timed."""


class Table(Protocol):
    """Rows of which a sample is in memory everywhere, as a fit trains on and closes over them."""

    @property
    def X(self) -> Any:
        """Those of this process, slices of which can be taken in order."""

    @property
    def n_epoch(self) -> int:
        """How many rows of all an epoch goes through, held-out ones included."""

    def with_folds(self, fold: Tensor | None) -> Rows:
        """Return what is known of them, with the folds of the sample's rows."""

    def minibatches(self, fold: Tensor | None, n_untrained: int) -> Minibatches:
        """Return minibatches of all but the sample's first rows, which are not trained on."""


class Permuted(NamedTuple):
    """Rows of a process of its own, in an order that the generator makes."""

    X: Tensor
    rows: Rows
    group: Group = ALONE

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.X)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.X.device

    def epoch(
        self, number: int, n_batches: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield minibatches that differ by a row at most."""
        permutation = torch.randperm(self.n_rows, generator=generator, device=self.device)
        for batch in permutation.tensor_split(n_batches):
            yield self.X.index_select(0, batch), self.rows[batch]

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows at random."""
        some = torch.randint(self.n_rows, (n_rows,), generator=generator, device=self.device)
        return self.X.index_select(0, some), self.rows[some]


@dataclass(frozen=True)
class Dealt:
    """Rows of a group, of which this process has some: the same minibatches, whoever has which.

    In which minibatch of an epoch a row is follows from its number in the group, the seed and the
    epoch alone, as if by chance. So every process has as many steps, some perhaps with no row of
    its own, and minibatches have about as many rows.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        Those of this process.
    places : Tensor of shape (m,)
        Which of them are trained on.
    numbers : ndarray of shape (m,)
        Their numbers in the group.
    n_rows : int
        How many are trained on in the whole group.
    seed : int
        Of the minibatches.
    group : Group
        Who has the others.
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
        """Yield minibatches, of which some may have no row in the whole group."""
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
        """In which minibatch of an epoch each row is, (m,), on the CPU."""
        start = sequence_start(self.seed, 1 + epoch)  # 0 is that of the sample
        u = uniform(splitmix64(torch.from_numpy(self.numbers) + start))
        return (u * n_batches).long()

    def part(self, own: Tensor, whole: Whole) -> tuple[Tensor, Rows]:
        """Return some of these rows, as a part of a minibatch."""
        return self.X.index_select(0, own), replace(self.rows[own], whole=whole)

    def drawn(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return so many rows at random in the whole group, as many of each."""
        n, m = max(1, n_rows // self.group.size), len(self.places)
        own = torch.arange(n if m else 0, device=self.device) % max(m, 1)
        X, rows = self.part(self.places[own], Whole(0, 0.0, self.group))
        counts = torch.tensor([float(len(rows)), rows.own_weight], dtype=torch.float64)
        self.group.sum_(counts)
        size, weight = counts.tolist()
        return X, replace(rows, whole=Whole(int(size), weight, self.group))


@dataclass(frozen=True)
class Shared:
    """The rows of this process, where a group fits to the rows of all of them.

    Parameters
    ----------
    X, rows : Tensor of shape (N, d) and Rows
        Theirs is a part of the whole.
    first : int
        The number of the first of them in the group.
    sampled : tuple of ndarray
        Which of them are in the sample that the group shares, and their places there.
    seed : int
        Of the minibatches.
    """

    X: Tensor
    rows: Rows
    first: int
    sampled: tuple[np.ndarray, np.ndarray]
    seed: int

    @property
    def n_epoch(self) -> int:
        """How many rows there are in all."""
        return self.rows.n_all

    def with_folds(self, fold: Tensor | None) -> Rows:
        """Return what is known of rows, with the folds of the sample's rows."""
        if fold is None:
            return self.rows
        own, places = (torch.from_numpy(part) for part in self.sampled)
        of_rows = torch.full((len(self.rows),), -1, dtype=fold.dtype)
        of_rows[own] = fold.cpu()[places]
        return replace(self.rows, fold=of_rows.to(self.X.device))

    def minibatches(self, fold: Tensor | None, n_untrained: int) -> Dealt:
        """Return minibatches of all but the sample's first rows, which are not trained on."""
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
