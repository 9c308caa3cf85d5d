"""Values of rows besides X (y, weights, exposures, known errors): as given, and as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .arrays import row_blocks
from .reduce import ALONE, Group

MERGED_ROWS = 10_000
"""Rows up to which those that are the same are found and merged."""

UNSEEN = -2  # fold of rows that no member of an ensemble is trained on

LEADING_COLUMNS = 16  # of X, that the order of merged rows follows


class _Columns:
    """Arrays that share their rows, or None: ``columns[index]`` is these rows of each."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that there are, by their names."""
        named = (f.name for f in fields(self) if f.metadata.get("is_column", True))  # type: ignore[arg-type]
        return {name: column for name in named if (column := getattr(self, name)) is not None}

    def map(self, function: Callable[[Any], Any]) -> Self:
        """The same function of every column."""
        return type(self)(**{name: function(column) for name, column in self.columns.items()})


@dataclass(frozen=True)
class Whole:
    """All the rows that some are a part of.

    Parameters
    ----------
    n_rows : int
        How many there are.
    weight : float
        How many they count for.
    group : Group, default=ALONE
        Who holds the other parts, so that sums are sums over the group; alone, the part is a sample
        that stands for all.
    sample : Rows or None, default=None
        Some of them, where not even the part is in memory.
    """

    n_rows: int
    weight: float
    group: Group = ALONE
    sample: Rows | None = None


@dataclass(frozen=True)
class Rows(_Columns):
    """Columns of the data, all with N rows, or None where there is nothing to say.

    ``rows[index]``, with a slice, a mask or row numbers, is the Rows of these; ``len(rows)`` is N.
    Where the rows are a part of others, `whole` says of what; a part of them stands for itself.

    Parameters
    ----------
    y : Tensor of shape (N, P)
        Scaled targets, or codes of classes.
    weight : Tensor of shape (N,) or None, default=None
        How many rows each counts for (`sample_weight`); None is 1.
    exposure : Tensor of shape (N, 1) or None, default=None
        What rates of counts are multiplied by.
    noise : Tensor of shape (N, P) or None, default=None
        Variance of the known measurement error of y.
    fold : Tensor of shape (N,) or None, default=None
        The fold that a row is held out with; −1, or None, is trained on by all, −2 by none.
    whole : Whole or None, default=None
        What they are a part of; None: of nothing else.
    """

    y: Tensor
    weight: Tensor | None = None
    exposure: Tensor | None = None
    noise: Tensor | None = None
    fold: Tensor | None = None
    whole: Whole | None = field(default=None, metadata={"is_column": False})

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: slice | Tensor) -> Rows:
        if isinstance(index, Tensor) and index.dtype == torch.long:
            return self.map(lambda column: column.index_select(0, index))
        return self.map(lambda column: column[index])

    def repeated(self, n_times: int) -> Rows:
        """All rows this many times, each of which counts for that much less."""
        if n_times == 1:
            return self
        weight = torch.ones_like(self.y[:, 0]) if self.weight is None else self.weight
        rows = replace(self, weight=weight / n_times)
        rows = rows.map(lambda column: column.repeat(n_times, *[1] * (column.ndim - 1)))
        if self.whole is None:
            return rows
        return replace(rows, whole=replace(self.whole, n_rows=n_times * self.whole.n_rows))

    def to(self, dtype: torch.dtype) -> Rows:
        """In another floating type; folds stay integers."""
        rows = self.map(lambda column: column.to(dtype) if column.is_floating_point() else column)
        return rows if self.whole is None else replace(rows, whole=self.whole)

    def after(self, n_first: int) -> Rows:
        """The rows after the first ones, of all but these."""
        if self.whole is None:
            return self[n_first:]
        n, weight = self.whole.n_rows - n_first, self.whole.weight - self[:n_first].n_effective
        return replace(self[n_first:], whole=replace(self.whole, n_rows=n, weight=weight))

    # ---- a part of others --------------------------------------------------------------------

    @property
    def group(self) -> Group:
        """Who holds the other parts."""
        return ALONE if self.whole is None else self.whole.group

    @property
    def n_all(self) -> int:
        """How many rows there are, with all other parts."""
        return len(self) if self.whole is None else self.whole.n_rows

    @property
    def representative(self) -> Rows:
        """Rows in memory that tell about all of them."""
        return self if self.whole is None or self.whole.sample is None else self.whole.sample

    @property
    def beyond(self) -> float:
        """How many rows the other parts count for."""
        return self.n_effective - self.own_weight

    def own_generator(self, generator: torch.Generator) -> torch.Generator:
        """One for draws of these rows, made by one that all parts have in common."""
        if self.group is ALONE:
            return generator
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        return torch.Generator(generator.device).manual_seed(int(seed) + self.group.rank)

    def total(self, *sums: Tensor) -> list[Tensor]:
        """Sums over these rows, with those over the other parts; none has a graph."""
        self.group.sum_(*sums)
        return list(sums)

    def as_mean(self, total: Tensor) -> Tensor:
        """A sum over these rows, such that its mean over the parts is the sum over all rows."""
        return total if self.group.size == 1 else self.group.size * total

    # ---- how many rows these count for ---------------------------------------------------------

    @property
    def n_held_out(self) -> int:
        """How many are held out by a fold; these come first, or after those that nobody sees."""
        return 0 if self.fold is None else int((self.fold >= 0).sum())

    @property
    def n_unseen(self) -> int:
        """How many no member of an ensemble sees; these come first."""
        return 0 if self.fold is None else int((self.fold == UNSEEN).sum())

    @property
    def own_weight(self) -> float:
        """How many rows these count for, Σ weight, without other parts."""
        return float(len(self)) if self.weight is None else float(self.weight.double().sum())

    @property
    def n_effective(self) -> float:
        """How many rows these count for, Σ weight, with all other parts."""
        return self.own_weight if self.whole is None else self.whole.weight

    def counted_for(self) -> float:
        """How many rows these, and all other parts if they are summed over, count for."""
        if self.group.size == 1:
            return self.own_weight
        (weight,) = self.total(torch.tensor([self.own_weight], dtype=torch.float64))
        return float(weight)

    @property
    def mean_weight(self) -> float:
        """How many rows one of these counts for in the mean."""
        is_counted = self.weight is None and self.whole is None
        return 1.0 if is_counted else self.n_effective / max(self.n_all, 1)

    def mean(self, values: Tensor) -> Tensor:
        """Of values (N, P), each row as often as it counts: (P,)."""
        if self.group.size > 1:
            (total,) = self.total(self.weighted(values).sum(0))
            return total / self.counted_for()
        if self.weight is None:
            return values.mean(0)
        return self.weighted(values).sum(0) / self.own_weight

    def median(self, values: Tensor) -> Tensor:
        """Of values (N, P), each row as often as it counts, the lower of two: (P,)."""
        if self.group.size > 1:
            weight = None if self.weight is None else self.group.gather_tensor(self.weight)
            values = self.group.gather_tensor(values)
            return Rows(values, weight).median(values)
        if self.weight is None:
            return values.sort(0).values[(len(values) - 1) // 2]
        ordered, order = values.sort(0)
        # Where accelerators sum, they do so in any order.
        below = self.weight.double()[order].cpu().cumsum(0).to(values.device)
        middle = (below < 0.5 * below[-1] * (1.0 - 1e-12)).sum(0, keepdim=True)
        return ordered.gather(0, middle)[0]

    def weighted(self, values: Tensor) -> Tensor:
        """Values of each row, (N, ...), times the number of rows that it counts for."""
        if self.weight is None:
            return values
        return values * self.weight.to(values.dtype).view(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True)
class Data(_Columns):
    """What the user gave, checked: arrays of n rows, or None."""

    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n, P)
    weight: np.ndarray | None = None  # (n,), positive
    exposure: np.ndarray | None = None  # (n, 1)
    y_std: np.ndarray | None = None  # (n, P)

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: Any) -> Data:
        return self.map(lambda column: column[index])

    @property
    def n_effective(self) -> float:
        """How many rows these count for, Σ weight."""
        return float(len(self) if self.weight is None else self.weight.sum())

    @property
    def size(self) -> int:
        """How many rows there are to learn from: a row of weight 2 is two, but one of ½ is one."""
        return max(len(self), math.floor(self.n_effective))

    def counted(self) -> Data:
        """Return the rows that have a weight; without weights if these are all 1."""
        if self.weight is None:
            return self
        counts = self.weight > 0.0
        weight = None if (self.weight[counts] == 1.0).all() else self.weight
        data = replace(self, weight=weight)
        return data if counts.all() else data[counts]

    def weighed(self) -> Data:
        """Return the rows with weights, though these may all be 1."""
        return self if self.weight is not None else replace(self, weight=np.ones(len(self)))

    def merged(self) -> Data:
        """Return :meth:`merging`, without the places."""
        return self.merging()[0]

    def merging(self) -> tuple[Data, np.ndarray]:
        """Rows that are the same in every column as one that counts for all, and where each went.

        A weight is a number of repetitions, so that few rows give the same model either way, to the
        last bit: they come in an order that depends on nothing but what they hold, and not on its
        units or origin. Of more than `MERGED_ROWS` none are merged.
        """
        if not 1 < len(self) <= MERGED_ROWS:
            return self, np.arange(len(self))
        known = [c for c in (self.X, self.y, self.exposure, self.y_std) if c is not None]
        keys = np.array(
            [key for block in row_blocks(len(self), 512) for key in digests(known, block)]
        )
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) == 1:  # nothing can be learned from it, but two rows can be fitted
            return self, np.arange(len(self))
        counts = np.bincount(group.ravel(), self.weight, len(first))
        distinct = in_order(self[first], keys[first])
        first, counts = first[distinct], counts[distinct]
        merged = replace(self[first], weight=None if (counts == 1.0).all() else counts)
        return merged, inverse_order(distinct)[group.ravel()]


def inverse_order(order: np.ndarray) -> np.ndarray:
    """Where each row is after rows were put in this order."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def digests(columns: list[np.ndarray], rows: slice) -> list[bytes]:
    """What tells rows apart: 16 bytes each, without zeros at the end, which NumPy would drop."""
    table = np.hstack([c[rows].astype(np.float64) + 0.0 for c in columns])  # −0 becomes 0
    return [blake2b(row, digest_size=15).digest() + b"." for row in table]


def in_order(data: Data, keys: np.ndarray) -> np.ndarray:
    """Positions of rows in the order of their numbers, which units and origins do not change.

    By the first columns of X, then by y; what these leave open, digests decide.
    """
    columns = [*data.X.T[:LEADING_COLUMNS], *data.y.T]
    return np.lexsort((keys, *reversed(columns)))
