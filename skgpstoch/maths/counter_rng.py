"""Random numbers that are functions of a counter, so that they need not be stored."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def counter_normal(seed: int, index: Tensor, n_columns: int, stream: int = 0) -> Tensor:
    """Standard normals that are a function of (seed, stream, index, column) alone.

    z (m, n_columns), float64, for integers `index` (m,) of the sequence that seed and stream name.
    Row i is the same whichever other rows are asked for, in whatever order, so features need not be
    stored to be used again. SplitMix64 (Steele, Lea & Flood, 2014) of a counter, through Φ⁻¹.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.maths.counter_rng import counter_normal
    >>> z = counter_normal(0, torch.arange(1000), 3)
    >>> bool((counter_normal(0, torch.tensor([7, 3]), 3) == z[[7, 3]]).all())
    True
    """
    column = torch.arange(n_columns, device=index.device)
    bits = _splitmix64(_splitmix64(index + _key(seed, stream))[:, None] + column)
    return torch.special.ndtri(_uniform(bits))


def uniform_numbers(seed: int, index: Tensor, stream: int = 0) -> Tensor:
    """Numbers between 0 and 1, (m,), that are a function of (seed, stream, index) alone."""
    return _uniform(_splitmix64(index + _key(seed, stream)))


def _uniform(bits: Tensor) -> Tensor:
    """Numbers between 0 and 1, and never these, of random bits."""
    return (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


@functools.lru_cache(maxsize=256)
def _key(seed: int, stream: int) -> int:
    """Where a sequence starts, a number of the host: a tensor would be a copy to the device."""
    return int(_splitmix64(torch.tensor(_int64(seed * 2654435761 + stream), device="cpu")))


def _int64(value: int) -> int:
    """value modulo 2⁶⁴, as the signed integer torch stores."""
    return (value + 2**63) % 2**64 - 2**63


def _splitmix64(x: Tensor) -> Tensor:
    """SplitMix64's output function; int64 arithmetic wraps, shifts are made logical by a mask."""
    x = x + _int64(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _int64(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _int64(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))
