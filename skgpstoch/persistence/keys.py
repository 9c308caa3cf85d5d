"""Refuse keys that take long to hash or to tell from each other, and integers that no array has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ..data.arrays import MOST_INTEGER
from .forms_of_values import form_of_level

MOST_KEYS = 256  # of a set or dict; more of them may be made to have equal hashes
QUICK_KEYS = 2**20  # integers below this have hashes that hardly collide
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


def check_keys(keys: list[Any]) -> None:
    """Raise a ValueError if keys may take long to hash, or to tell from each other."""
    slow = [k for k in keys if type(k) is not str and not (type(k) is int and 0 <= k < QUICK_KEYS)]
    if len(slow) > MOST_KEYS or not all(map(is_flat, slow)):
        raise ValueError(
            f"a set or dict must have texts as keys, integers from 0 to {QUICK_KEYS}, or at most "
            f"{MOST_KEYS} other numbers and flat tuples"
        )


def is_flat(key: Any) -> bool:
    """Tell whether a key is a number, a text, or a short tuple of them."""
    inner = key if type(key) in (tuple, frozenset) else (key,)
    return len(inner) <= MOST_IN_A_KEY and all(
        type(v) in OF_KEYS or isinstance(v, np.generic) or form_of_level(v) for v in inner
    )
