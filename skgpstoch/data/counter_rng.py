"""SplitMix64 (Steele, Lea & Flood, 2014): random bits that are functions of a counter."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor


@functools.lru_cache(maxsize=256)
def sequence_start(seed: int, stream: int = 0) -> int:
    """Return the start of a sequence, as an int: a tensor would have to be copied to the device."""
    return int(splitmix64(torch.tensor(_int64(seed * 2654435761 + stream), device="cpu")))


def splitmix64(x: Tensor) -> Tensor:
    """Apply SplitMix64's output function; int64 arithmetic wraps, masks make shifts logical."""
    x = x + _int64(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _int64(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _int64(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))


def uniform(bits: Tensor) -> Tensor:
    """Convert random bits to numbers strictly between 0 and 1."""
    return (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def row_hashes(seed: int, rows: np.ndarray) -> np.ndarray:
    """Return SplitMix64 of row numbers (n,) in the sequence of a seed: (n,), int64.

    Different rows have different hashes, and the order of hashes is a random order of rows. The
    rows with the k smallest hashes are a random sample, which does not depend on which rows a
    process holds, or on the order in which it reads them.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.data.counter_rng import row_hashes
    >>> hashes = row_hashes(0, np.arange(1000))
    >>> bool((row_hashes(0, np.array([7, 3])) == hashes[[7, 3]]).all())
    True
    """
    numbers = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    hashes: np.ndarray = splitmix64(numbers + sequence_start(seed)).numpy()
    return hashes


def _int64(value: int) -> int:
    """Return value modulo 2⁶⁴, as the signed integer that torch stores."""
    return (value + 2**63) % 2**64 - 2**63


def counter_normal(seed: int, index: Tensor, n_columns: int, stream: int = 0) -> Tensor:
    """Return standard normal numbers that depend only on (seed, stream, index, column).

    The result z (m, n_columns) is float64. `index` (m,) are integer positions in the sequence that
    `seed` and `stream` determine. A row does not depend on which other rows are requested, so
    features need not be stored. The numbers are Φ⁻¹ of SplitMix64 of a counter.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.data.counter_rng import counter_normal
    >>> z = counter_normal(0, torch.arange(1000), 3)
    >>> bool((counter_normal(0, torch.tensor([7, 3]), 3) == z[[7, 3]]).all())
    True
    """
    column = torch.arange(n_columns, device=index.device)
    bits = splitmix64(splitmix64(index + sequence_start(seed, stream))[:, None] + column)
    return torch.special.ndtri(uniform(bits))
