"""Read JSON from untrusted files: strictly, and without taking far more memory than the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

BYTES_OF_A_VALUE = 64  # most memory that a value takes
MOST_TIMES = 4  # values may take at most so many times the file's size in memory
FREE_VALUES = 200_000  # so many values are always allowed
MOST_VALUES = 1_000_000  # more are never
TEXTS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # one without an end, too
MOST_DIGITS = 308  # of an integer, with its sign; one of more may be too large for a float


def parsed(text: str, n_bytes: int) -> Any:
    """Return the value that a JSON text in a file of `n_bytes` bytes describes.

    Raises
    ------
    ValueError
        If it is not JSON, has a key twice, or would take far more memory than the file.
    """
    n_values = values_of(text)
    most = min(FREE_VALUES + MOST_TIMES * n_bytes // BYTES_OF_A_VALUE, MOST_VALUES)
    if n_values > most:  # a text may describe many values, but is one
        n_values = values_of(TEXTS.sub("", text))
    if n_values > most:
        raise ValueError(
            f"its lists or dicts have {n_values} values, too many for a file of {n_bytes} bytes; "
            "numbers belong in arrays"
        )
    try:
        return json.loads(
            text,
            object_pairs_hook=without_copies,
            parse_int=integer,
            parse_constant=refused,
        )
    except RecursionError as error:
        raise ValueError("its structure is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON at letter {error.pos} of its structure") from error


def values_of(text: str) -> int:
    """Return at most how many values JSON has, from its marks."""
    return sum(map(text.count, ",[{"))


def without_copies(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary; raise a ValueError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"its structure has the key {key!r:.40} twice")
        found[key] = value
    return found


def integer(text: str) -> int:
    """Return an integer; raise a ValueError if it has so many digits that it takes long to read."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"its structure has an integer of {len(text)} digits")
    return int(text)


def refused(name: str) -> NoReturn:
    """Raise a ValueError for constants such as NaN, which Python accepts but JSON does not."""
    raise ValueError(f"its structure contains {name}, which JSON does not allow")
