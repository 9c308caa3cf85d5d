"""Values of rows besides X (y, weights, exposures, known errors): as given, and as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .groups import ALONE, Group

UNSEEN = -2  # fold of rows on which no member of an ensemble is trained

BEGINNING = 20
"""Rows for which scalings and inducing points of a stream are chosen; until they have come, each
call begins again with all rows so far.

*Measured* with 500 rows of two inputs, one row a call: after a start from 2 rows, R² of SVGP is
−.1, of DLM −.3 and of a deep process −.2; from 20 rows, .92, .89 and .92.
"""

LONG_BEGINNING = 160
"""The same of nearest neighbours, which learn no kernel, noise or network afterwards.

They begin again whenever rows have doubled. *Measured* on two inputs with noise, rows 200 to 400 of
five streams, each predicted before it is learned: with the kernel of 20 rows 90 % intervals hold
.06 to .93, with that of 160 rows .82 to .92; new rows after 400 in tens, with networks of 20 rows
.01 to .93, with those of 160 rows .90 to .93 (three streams).
"""


class _Columns:
    """Arrays with common rows, or None; ``columns[index]`` selects rows of each."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that are not None, by name."""
        named = (f.name for f in fields(self) if f.metadata.get("is_column", True))  # type: ignore[arg-type]
        return {name: column for name in named if (column := getattr(self, name)) is not None}

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Apply a function to every column."""
        return type(self)(**{name: function(column) for name, column in self.columns.items()})


@dataclass(frozen=True)
class Whole:
    """The whole set of rows of which some rows are a part.

    Parameters
    ----------
    n_rows : int
        Number of all rows.
    weight : float
        Sum of the weights of all rows.
    group : Group, default=ALONE
        The processes that hold the other parts; sums are then sums over the group. ALONE: the part
        is a sample that represents all rows.
    sample : Rows or None, default=None
        A sample of the rows, if not even the part is in memory.
    """

    n_rows: int
    weight: float
    group: Group = ALONE
    sample: Rows | None = None


@dataclass(frozen=True)
class Rows(_Columns):
    """Columns of the data, all with N rows; None for columns that are not given.

    ``rows[index]``, with a slice, a mask or row numbers, selects rows; ``len(rows)`` is N. If the
    rows are a part of a larger set, `whole` describes that set; selected rows have no `whole`.

    Parameters
    ----------
    y : Tensor of shape (N, P)
        Scaled targets, or class codes.
    weight : Tensor of shape (N,) or None, default=None
        Number of rows that each row counts for (`sample_weight`); None is 1.
    exposure : Tensor of shape (N, 1) or None, default=None
        Exposures, which multiply the rates of counts.
    noise : Tensor of shape (N, P) or None, default=None
        Variance of the known measurement error of y.
    fold : Tensor of shape (N,) or None, default=None
        Fold of each row, which is held out from the member of the same number. With −1 (or None)
        all members are trained on the row, with −2 none is.
    cluster : Tensor of shape (N,) or None, default=None
        Code of each row's group. No member sees rows of a group of which some are held out from it.
    within : Tensor of shape (N, P) or None, default=None
        Σ w (y − ȳ)² of the observations whose mean ȳ each row is; None: rows are observations.
    whole : Whole or None, default=None
        The larger set of which the rows are a part; None: there is none.
    """

    y: Tensor
    weight: Tensor | None = None
    exposure: Tensor | None = None
    noise: Tensor | None = None
    fold: Tensor | None = None
    cluster: Tensor | None = None
    within: Tensor | None = None
    whole: Whole | None = field(default=None, metadata={"is_column": False})

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: slice | Tensor) -> Rows:
        if isinstance(index, Tensor) and index.dtype == torch.long:
            return self.map(lambda column: column.index_select(0, index))
        return self.map(lambda column: column[index])

    def repeated(self, n_times: int) -> Rows:
        """Repeat all rows this many times, and divide their weights by the same number."""
        if n_times == 1:
            return self
        weight = torch.ones_like(self.y[:, 0]) if self.weight is None else self.weight
        rows = replace(self, weight=weight / n_times)
        rows = rows.map(lambda column: column.repeat(n_times, *[1] * (column.ndim - 1)))
        if self.whole is None:
            return rows
        return replace(rows, whole=replace(self.whole, n_rows=n_times * self.whole.n_rows))

    def to(self, dtype: torch.dtype) -> Rows:
        """Convert to another floating type; folds stay integers."""
        rows = self.map(lambda column: column.to(dtype) if column.is_floating_point() else column)
        return rows if self.whole is None else replace(rows, whole=self.whole)

    def after(self, n_first: int) -> Rows:
        """Return the rows after the first ones, as a part of all rows without these."""
        if self.whole is None:
            return self[n_first:]
        n, weight = self.whole.n_rows - n_first, self.whole.weight - self[:n_first].n_effective
        return replace(self[n_first:], whole=replace(self.whole, n_rows=n, weight=weight))

    # ---- a part of others --------------------------------------------------------------------

    @property
    def group(self) -> Group:
        """The processes that hold the other parts."""
        return ALONE if self.whole is None else self.whole.group

    @property
    def n_all(self) -> int:
        """Number of rows in all parts."""
        return len(self) if self.whole is None else self.whole.n_rows

    @property
    def representative(self) -> Rows:
        """Rows in memory that represent all rows."""
        return self if self.whole is None or self.whole.sample is None else self.whole.sample

    @property
    def beyond(self) -> float:
        """Sum of the weights of the other parts."""
        return self.n_effective - self.own_weight

    def own_generator(self, generator: torch.Generator) -> torch.Generator:
        """Return a generator of this part's own, seeded by one that is common to all parts."""
        if self.group is ALONE:
            return generator
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        return torch.Generator(generator.device).manual_seed(int(seed) + self.group.rank)

    def total(self, *sums: Tensor) -> list[Tensor]:
        """Add the other parts' sums to sums over these rows; the results have no graph."""
        self.group.sum_(*sums)
        return list(sums)

    def as_mean(self, total: Tensor) -> Tensor:
        """Rescale a sum over these rows, so that its mean over parts is the sum over all rows."""
        return total if self.group.size == 1 else self.group.size * total

    # ---- how many rows these count for ---------------------------------------------------------

    @property
    def n_held_out(self) -> int:
        """Number of rows held out by a fold; they come first, or directly after unseen rows."""
        return 0 if self.fold is None else int((self.fold >= 0).sum())

    @property
    def n_unseen(self) -> int:
        """Number of rows that no member of an ensemble sees; they come first."""
        return 0 if self.fold is None else int((self.fold == UNSEEN).sum())

    @property
    def own_weight(self) -> float:
        """Sum of the weights of these rows, without other parts."""
        return float(len(self)) if self.weight is None else float(self.weight.double().sum())

    @property
    def n_effective(self) -> float:
        """Sum of the weights of these rows and of all other parts."""
        return self.own_weight if self.whole is None else self.whole.weight

    def in_proportion(self, most: int) -> Tensor:
        """Return at most so many row numbers, evenly spread among what rows count for: (k,).

        Each comes once: copies of a row agree, and a kernel that is learned from them has no noise.
        """
        weight = torch.ones(len(self), dtype=torch.float64, device="cpu")
        if self.weight is not None and bool((self.weight != self.weight[0]).any()):
            weight = self.weight.double().cpu()
        until = weight.cumsum(0)
        total = float(until[-1])
        k = min(most, max(len(self), math.floor(total)))
        at = (torch.arange(k, dtype=torch.float64, device="cpu") + 0.5) * (total / k)
        return torch.searchsorted(until, at).unique().to(self.y.device)

    def counted_for(self) -> float:
        """Sum of the weights of these rows and, if sums go over a group, of all other parts."""
        if self.group.size == 1:
            return self.own_weight
        (weight,) = self.total(torch.tensor([self.own_weight], dtype=torch.float64))
        return float(weight)

    @property
    def mean_weight(self) -> float:
        """Mean weight of a row."""
        is_counted = self.weight is None and self.whole is None
        return 1.0 if is_counted else self.n_effective / max(self.n_all, 1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the weighted mean of values (N, P): (P,)."""
        if self.group.size > 1:
            (total,) = self.total(self.weighted(values).sum(0))
            return total / self.counted_for()
        if self.weight is None:
            return values.mean(0)
        return self.weighted(values).sum(0) / self.own_weight

    def mean_told(self, values: Tensor) -> Tensor:
        """Return the same, where a row whose y has a noise variance s² counts as 1/(1 + s²)."""
        if self.noise is None:
            return self.mean(values)
        told = 1.0 / (1.0 + self.noise.to(values))
        return self.mean(told * values) / self.mean(told)

    def median(self, values: Tensor) -> Tensor:
        """Return the weighted (lower) median of values (N, P): (P,)."""
        if self.group.size > 1:
            weight = None if self.weight is None else self.group.gather_tensor(self.weight)
            values = self.group.gather_tensor(values)
            return Rows(values, weight).median(values)
        if self.weight is None:
            return values.sort(0).values[(len(values) - 1) // 2]
        ordered, order = values.sort(0)
        # On the CPU, because accelerators may sum in any order.
        below = self.weight.double()[order].cpu().cumsum(0).to(values.device)
        middle = (below < 0.5 * below[-1] * (1.0 - 1e-12)).sum(0, keepdim=True)
        return ordered.gather(0, middle)[0]

    def weighted(self, values: Tensor) -> Tensor:
        """Multiply values of rows, (N, ...), by the rows' weights."""
        if self.weight is None:
            return values
        return values * self.weight.to(values.dtype).view(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True)
class Data(_Columns):
    """The user's data after checks: arrays of n rows, or None."""

    X: np.ndarray  # (n, d)
    y: np.ndarray  # (n, P)
    weight: np.ndarray | None = None  # (n,), positive
    exposure: np.ndarray | None = None  # (n, 1)
    y_std: np.ndarray | None = None  # (n, P)
    cluster: np.ndarray | None = None  # (n,), codes of the groups that are held out together

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: Any) -> Data:
        return self.map(lambda column: column[index])

    def known(self) -> list[np.ndarray]:
        """Return the columns that tell rows apart: all but weights."""
        codes = None if self.cluster is None else self.cluster[:, None]
        columns = (self.X, self.y, self.exposure, self.y_std, codes)
        return [column for column in columns if column is not None]

    @property
    def row_counts(self) -> np.ndarray:
        """How many rows each row counts for, (n,): its weight, or 1."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def n_effective(self) -> float:
        """Sum of the weights of the rows."""
        return float(len(self) if self.weight is None else self.weight.sum())

    @property
    def size(self) -> int:
        """Number of rows to learn from: a row of weight 2 counts as two, but one of ½ as one."""
        return max(len(self), math.floor(self.n_effective))

    def counted(self) -> Data:
        """Return the rows of positive weight; without weights if they are all 1."""
        if self.weight is None:
            return self
        counts = self.weight > 0.0
        weight = None if (self.weight[counts] == 1.0).all() else self.weight
        data = replace(self, weight=weight)
        return data if counts.all() else data[counts]

    def weighed(self) -> Data:
        """Return the rows with explicit weights, even if they are all 1."""
        return replace(self, weight=self.row_counts)

    def joined(self, other: Data) -> Data:
        """Return these rows and others below; without a weight it is 1, without an error 0."""
        both = [self, other]
        if self.weight is not None or other.weight is not None:
            both = [each.weighed() for each in both]
        if self.y_std is not None or other.y_std is not None:
            both = [
                each if each.y_std is not None else replace(each, y_std=np.zeros_like(each.y))
                for each in both
            ]
        first, second = (each.columns for each in both)
        return Data(**{name: np.concatenate([a, second[name]]) for name, a in first.items()})

    def inputs(self) -> np.ndarray:
        """Return all that the mean of y depends on: X and, if there are any, exposures."""
        return self.X if self.exposure is None else np.hstack([self.X, self.exposure])

    def in_unit(self, unit: float) -> Data:
        """Return the rows with weights divided by a unit; without weights if all are then 1."""
        if unit == 1.0 and self.weight is None:
            return self
        weight = np.full(len(self), 1.0 / unit) if self.weight is None else self.weight / unit
        return replace(self, weight=None if (weight == 1.0).all() else weight)

    def repeated(self, counts: np.ndarray) -> Data:
        """Repeat each row as often as its count, and divide its weight by the count."""
        if (counts == 1).all():
            return self
        rows = self[np.repeat(np.arange(len(self)), counts)]
        if self.weight is None:
            return rows
        weight = np.repeat(self.weight / counts, counts)
        return replace(rows, weight=None if (weight == 1.0).all() else weight)
