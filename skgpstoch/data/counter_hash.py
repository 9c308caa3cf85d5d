"""SplitMix64 (Steele, Lea & Flood, 2014): random bits that are functions of a counter."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=256)
def sequence_start(seed: int, stream: int = 0) -> int:
    """Where a sequence starts, a number of the host: a tensor would be a copy to the device."""
    return int(splitmix64(torch.tensor(_int64(seed * 2654435761 + stream), device="cpu")))


def splitmix64(x: Tensor) -> Tensor:
    """SplitMix64's output function; int64 arithmetic wraps, shifts are made logical by a mask."""
    x = x + _int64(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _int64(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _int64(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))


def uniform(bits: Tensor) -> Tensor:
    """Numbers between 0 and 1, and never these, of random bits."""
    return (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def _int64(value: int) -> int:
    """value modulo 2⁶⁴, as the signed integer torch stores."""
    return (value + 2**63) % 2**64 - 2**63
