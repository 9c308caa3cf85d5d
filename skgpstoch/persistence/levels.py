"""Take apart dicts and sets whose keys are many texts or numbers, such as levels of categories.

Their keys are arrays in a file: in its structure each would be a value of its own, and a letter
that is not ASCII would take seven bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.arrays import MOST_INTEGER
from .arrays import FEWEST
from .forms_of_values import Parts, numbered

MOST_IN_TUPLES = 2**19  # of long tuples of a file; each takes up to 60 bytes, beside its letters
LONGEST_TEXT = 2**24  # bytes; decoding one takes five times as much for a moment
OF_2_BYTES, OF_4_BYTES = 0xC4, 0xF0  # first bytes from U+0100 and from U+10000 on
AS_UTF8 = {"encoding": "utf-8", "errors": "surrogatepass"}  # Python's texts may have such halves


def is_long_tuple(value: tuple) -> bool:
    """Tell whether a tuple has many texts, many floats, or many integers of 64 bits."""
    if type(value) is not tuple or len(value) < FEWEST:
        return False
    kind = type(value[0])
    if kind not in (str, int, float) or any(type(v) is not kind for v in value):
        return False
    return kind is not int or (min(value) >= -MOST_INTEGER - 1 and max(value) <= MOST_INTEGER)


def long_tuple(value: tuple) -> Parts:
    """Take a long tuple apart: its numbers; or all letters, and how many bytes each text has."""
    if type(value[0]) is not str:
        return numbered([np.array(value), None])
    texts = [text.encode(**AS_UTF8) for text in value]
    letters = np.frombuffer(b"".join(texts), np.uint8)
    return numbered([letters, np.array([len(text) for text in texts], np.uint32)])


def long_tuple_of(parts: list[Any]) -> tuple:
    """Return a long tuple."""
    values, lengths = parts
    if lengths is not None:
        letters = memoryview(values)
        return tuple(str(letters[a:b], **AS_UTF8) for a, b in zip(*places_of(parts), strict=True))
    if values.dtype not in (np.int64, np.float64) or values.ndim != 1:
        raise ValueError(f"an array {values.shape} of {values.dtype} is not a long tuple")
    return tuple(values.tolist())


def places_of(parts: list[Any]) -> tuple[list[int], list[int]]:
    """Return where each text of a long tuple starts and ends among the letters."""
    letters, lengths = parts
    if letters.dtype != np.uint8 or not letters.ndim == lengths.ndim == 1:
        raise ValueError(f"an array {letters.shape} of {letters.dtype} is not a long tuple")
    if lengths.dtype != np.uint32 or int(lengths.sum(dtype=np.uint64)) != len(letters):
        raise ValueError("the texts of a long tuple do not have as many letters as its array")
    if lengths.max(initial=0) > LONGEST_TEXT:
        raise ValueError(f"a text of a long tuple has more than {LONGEST_TEXT} bytes")
    ends = np.cumsum(lengths, dtype=np.int64)
    return (ends - lengths).tolist(), ends.tolist()


def bytes_of_texts(parts: list[Any]) -> int:
    """Return how many bytes texts take at most: 1, 2 or 4 for each letter, as the largest one."""
    letters, lengths = parts
    starts = np.array(places_of(parts)[0], dtype=np.int64)
    if not len(letters):
        return 0
    n = lengths[lengths > 0].astype(np.int64)  # at least as many bytes as letters
    top = np.maximum.reduceat(letters, starts[lengths > 0])
    return int((np.select([top >= OF_4_BYTES, top >= OF_2_BYTES], [4, 2], 1) * n).sum())


# ---- dicts and sets with such keys, and None for missing values ----------------------------------


def has_levels(value: Any) -> bool:
    """Tell whether a dict numbers many alike keys from 0 on, or a set has many; None may be one."""
    if len(value) <= FEWEST or not is_long_tuple(without_none(value)):
        return False
    return not isinstance(value, dict) or numbers_its_keys(value)


def numbers_its_keys(value: dict) -> bool:
    """Tell whether the values of a dict are 0, 1, …, and None is no key but the last."""
    numbers = list(value.values())
    are_whole = all(type(n) is int for n in numbers)
    return are_whole and numbers == list(range(len(numbers))) and None not in list(value)[:-1]


def without_none(keys: Any) -> tuple:
    """Return keys other than None, in their order."""
    return tuple(key for key in keys if key is not None)


def numbering(value: dict) -> Parts:
    """Take a dict apart that numbers its keys: keys, and whether None is the last."""
    return numbered([without_none(value), None in value])


def numbering_of(parts: list[Any]) -> dict:
    """Return a dict that numbers its keys."""
    return {key: number for number, key in enumerate(keys_of(parts))}


def level_set(value: set | frozenset) -> Parts:
    """Take a set apart: its keys in order, as for all equal sets, and whether None is one."""
    return numbered([tuple(sorted(without_none(value))), None in value])


def keys_of(parts: list[Any]) -> Sequence[Any]:
    """Return valid keys, each of which is there once, so that the dict is as large as they are."""
    keys, has_none = parts
    if not is_long_tuple(keys):
        raise ValueError("many keys of a dict or set must be a tuple of texts or numbers")
    if len(set(keys)) != len(keys):
        raise ValueError("a dict or set has the same key twice")
    return (*keys, None) if has_none else keys
