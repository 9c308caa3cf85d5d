"""Between the user's arrays and tensors: scaling, seeds."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_array, check_random_state
from torch import Tensor

HOST_BLOCK_ROWS = 65536
"""Rows of the user's arrays that are converted at a time, so that no second copy of X is made."""

MOST_INTEGER = 2**63 - 1
"""What torch and NumPy can count to."""

OUTER = 0.1  # of the rows, at either end: few, where they decide what the moments are
OUTER_NORMAL = 1.2815515655446004  # the quantile of a standard normal distribution there
RULED = 4.0  # standard deviations of a column per one that its quantiles tell; log-normal: σ = 1.6


def row_blocks(n_rows: int, size: int = HOST_BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def blocks_of(n_rows: int, size: int) -> Iterator[slice]:
    """The same, of a part of others' rows: of none an empty one, as others may have some."""
    return row_blocks(n_rows, size) if n_rows else iter([slice(0)])


def plain(value: Any) -> Any:
    """Return a NumPy scalar, as searches take them from arrays, as Python's; others as they are."""
    return value.item() if isinstance(value, np.generic) else value


class Scaling(NamedTuple):
    """(A − offset)/scale, columnwise, both (d,) in float64."""

    offset: np.ndarray
    scale: np.ndarray

    @classmethod
    def identity(cls, n_columns: int) -> Scaling:
        """No scaling."""
        return cls(np.zeros(n_columns), np.ones(n_columns))

    @classmethod
    def centered(cls, A: np.ndarray, weight: np.ndarray | None = None) -> Scaling:
        """To mean 0."""
        return cls(cls.standard(A, weight).offset, np.ones(A.shape[1]))

    @classmethod
    def standard(cls, A: np.ndarray, weight: np.ndarray | None = None) -> Scaling:
        """To mean 0 and variance 1; columns that are constant to rounding are only centred."""
        blocks = list(row_blocks(len(A)))
        top = np.max([np.abs(A[rows]).max(0) for rows in blocks], axis=0)
        top = np.where(top > 0, top, 1.0).astype(np.float64)  # squares must not overflow

        def mean_of(values: Callable[[slice], np.ndarray]) -> np.ndarray:
            if weight is None:
                return sum(values(rows).sum(0) for rows in blocks) / len(A)
            return sum(weight[rows] @ values(rows) for rows in blocks) / weight.sum()

        mean = mean_of(lambda rows: A[rows] / top)
        std = np.sqrt(mean_of(lambda rows: np.square(A[rows] / top - mean)))
        constant = std <= 10 * np.finfo(A.dtype).eps * np.abs(mean)
        return cls(mean * top, np.where(constant, 1.0, std * top))

    @classmethod
    def quantile(cls, A: np.ndarray, weight: np.ndarray | None = None) -> Scaling:
        """To median 0, and the 10 and 90 % quantiles as far apart as a normal distribution's."""
        levels = (OUTER, 0.5, 1.0 - OUTER)
        found = np.array([quantiles(column, levels, weight) for column in A.T])  # (d, 3)
        low, middle, high = found.T.astype(np.float64)
        width = 2.0 * OUTER_NORMAL
        return cls(middle, high / width - low / width)  # which does not overflow

    @classmethod
    def robust(cls, A: np.ndarray, weight: np.ndarray | None = None) -> Scaling:
        """Return :meth:`standard`, or :meth:`quantile` of columns whose moments a few rows rule.

        Where nine in ten rows agree and the rest are far away, as one of 1e6 among 60, mean and
        variance are those of the few, and the many would differ by nothing after scaling.
        """
        standard, quantile = cls.standard(A, weight), cls.quantile(A, weight)
        ruled = ruled_by_few(standard, quantile)
        return cls(*(np.where(ruled, b, a) for a, b in zip(standard, quantile, strict=True)))

    def within(self, outer: Scaling) -> Scaling:
        """Of values that an outer scaling has scaled before: both in one."""
        return Scaling(self.offset * outer.scale + outer.offset, self.scale * outer.scale)

    def tensor(
        self,
        A: np.ndarray,
        dtype: torch.dtype,
        device: torch.device,
        order: np.ndarray | None = None,
    ) -> Tensor:
        """A (n, d), its rows in this order, scaled in float64 by blocks, of `dtype` on `device`."""
        out = torch.empty(A.shape, dtype=dtype, device=device)
        for rows in row_blocks(len(A)):
            block = A[rows] if order is None else A[order[rows]]
            out[rows] = torch.from_numpy((block - self.offset) / self.scale)
        return out


def ruled_by_few(standard: Scaling, quantile: Scaling) -> np.ndarray:
    """Tell of which columns a few rows make the moments, by both scalings: (d,)."""
    differs = quantile.scale > 10 * np.finfo(np.float64).eps * np.abs(quantile.offset)
    return differs & (standard.scale / RULED > quantile.scale)


def quantiles(
    a: np.ndarray, levels: Sequence[float], weight: np.ndarray | None = None
) -> np.ndarray:
    """Quantiles of a (n,) at these levels, each row as often as it counts.

    Where a level falls between two rows it is the middle of both, so that −a has the negative.
    """
    rounding = 1e-12  # of sums of weights, which are often whole numbers
    if weight is None:
        at = np.multiply(levels, len(a))
        low, high = np.ceil(at * (1 - rounding)) - 1, np.floor(at * (1 + rounding))
        low, high = (i.astype(int).clip(0, len(a) - 1) for i in (low, high))
        ordered = np.partition(a, np.unique([low, high]))
    else:
        order = np.argsort(a, kind="stable")
        ordered, below = a[order], np.cumsum(weight[order])
        at = np.multiply(levels, below[-1])
        low = np.searchsorted(below, at * (1 - rounding), "left")
        high = np.searchsorted(below, at * (1 + rounding), "right").clip(0, len(a) - 1)
    return 0.5 * ordered[low] + 0.5 * ordered[high]


def all_finite(a: np.ndarray) -> bool:
    """Tell whether all numbers are finite, in one pass; False too if their sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(a.sum(dtype=np.float64)))


def readable(values: Any) -> Any:
    """What NumPy can read: of a tensor on any device its numbers, bfloat16 as float32.

    They become an array here, as scikit-learn would take a tensor for the namespace to compute in
    if its `array_api_dispatch` is on.
    """
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def named_array(values: Any, name: str, **options: Any) -> np.ndarray:
    """Return float64 numbers as scikit-learn checks them, or a ValueError that names them."""
    try:
        return check_array(readable(values), dtype=np.float64, input_name=name, **options)
    except (TypeError, ValueError) as error:
        if name in str(error):
            raise
        given = reprlib.repr(values)
        raise ValueError(f"{name} must be an array of numbers, got {given}: {error}") from error


def borrowed(a: np.ndarray) -> Tensor:
    """A tensor on the memory of an array, which is only read; torch warns where it is read-only."""
    return torch.from_numpy(a if a.flags.writeable else a.copy())


def random_numbers(random_state: Any) -> np.random.RandomState:
    """NumPy's generator of an int or a RandomState; for None one of its own, not the global one."""
    if random_state is None:
        return np.random.RandomState(resolve_seed(None))
    return check_random_state(random_state)


def resolve_seed(random_state: Any) -> int:
    """A seed from an int, a RandomState, or, for None, fresh entropy (not NumPy's global state)."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def fingerprint(*parts: Any) -> str:
    """A digest of arrays and of the representations of everything else."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            part = np.atleast_1d(part)
            for rows in row_blocks(len(part)):
                digest.update(np.ascontiguousarray(part[rows]).data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()
