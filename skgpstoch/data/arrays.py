"""Between the user's arrays and tensors: scaling, seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

HOST_BLOCK_ROWS = 65536
"""Rows of the user's arrays that are converted at a time, so that no second copy of X is made."""


def row_blocks(n_rows: int, size: int = HOST_BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


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


def readable(values: Any) -> Any:
    """What NumPy can read: of a tensor its numbers, without a graph, and without bfloat16."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return values.float() if values.dtype == torch.bfloat16 else values


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
