"""Refuse keys that take long to hash or to tell from each other, and integers that no array has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..data.arrays import MOST_INTEGER, row_blocks
from .forms_of_values import form_of_level

QUICK_KEYS = 2**20  # integers below this have hashes that hardly collide
BLOCK_OF_KEYS = 64  # after which the time is looked at
MOST_SECONDS = 1.0  # of the CPU for all keys of a file; half a million honest ones take a tenth
MOST_IN_A_KEY = 16
OF_KEYS = (bool, int, float, str, type(None), torch.dtype)


def check_integers(parts: Iterable[Any]) -> None:
    """Raise a ValueError if NumPy would make objects of an integer, whose powers take for ever."""
    for part in parts:
        if type(part) is int and not -MOST_INTEGER - 1 <= part <= 2 * MOST_INTEGER + 1:
            raise ValueError(
                "an integer is more than 64 bits hold, and no key of a set or dict. Write large "
                "numbers as floats (1e20)"
            )


def slow_keys(keys: list[Any]) -> list[Any]:
    """Return keys that may take long to tell apart, or raise a ValueError if one is nested."""
    slow = [k for k in keys if type(k) is not str and not (type(k) is int and 0 <= k < QUICK_KEYS)]
    if not all(map(is_flat, slow)):
        raise ValueError("a set or dict must have texts, numbers, or flat tuples of them as keys")
    return slow


def seconds_of(keys: Sequence[Any], most: float) -> float:
    """Return the CPU's seconds to make a dict and a set of keys, or raise a ValueError.

    Whoever wrote the file may have made numbers collide, because their hashes are the numbers;
    those of texts differ in each process.
    """
    if all(type(key) is str for key in keys):
        return 0.0
    begun = spent = time.thread_time()
    for make in (dict.fromkeys, set):
        found: Any = make(())
        for some in row_blocks(len(keys), BLOCK_OF_KEYS):
            found.update(make(keys[some]))
            if (spent := time.thread_time()) - begun > most:
                raise ValueError(
                    "a set or dict has keys that take very long to tell from each other"
                )
    return spent - begun


def is_flat(key: Any) -> bool:
    """Tell whether a key is a number, a text, or a short tuple of them."""
    inner = key if type(key) in (tuple, frozenset) else (key,)
    return len(inner) <= MOST_IN_A_KEY and all(
        type(v) in OF_KEYS or isinstance(v, np.generic) or form_of_level(v) for v in inner
    )
