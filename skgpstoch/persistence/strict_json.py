"""Read JSON from untrusted files: strictly, and without taking far more memory than the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

BYTES_OF_A_VALUE = 64  # most memory that a value takes
MOST_TIMES = 4  # contents may take at most so many times the file's size in memory
FREE_VALUES = 10_000  # so many values are always allowed


def parsed(text: str) -> Any:
    """Return the value that a JSON text describes.

    Raises
    ------
    ValueError
        If it is not JSON, or has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=without_copies, parse_constant=refused)
    except RecursionError as error:
        raise ValueError("its structure is nested too deeply") from error


def check_size(text: str, n_bytes: int) -> None:
    """Raise a ValueError if a text would take far more memory than the file that it is in."""
    n_values = sum(map(text.count, ",[{"))
    if BYTES_OF_A_VALUE * max(n_values - FREE_VALUES, 0) > MOST_TIMES * n_bytes:
        raise ValueError(f"it has {n_values} values, too many for a file of {n_bytes} bytes")


def without_copies(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary; raise a ValueError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"its structure has the key {key!r:.40} twice")
        found[key] = value
    return found


def refused(name: str) -> NoReturn:
    """Raise a ValueError for constants such as NaN, which Python accepts but JSON does not."""
    raise ValueError(f"its structure contains {name}, which JSON does not allow")
