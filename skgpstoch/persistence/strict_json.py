"""Read JSON from untrusted files: strictly, and without taking far more memory than the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

BYTES_OF_A_VALUE = 64  # that a value takes in memory, at most
MOST_TIMES = 4  # the size of a file, that what is in it may take in memory
FREE_VALUES = 10_000  # whose memory is not counted


def parsed(text: str) -> Any:
    """Return what JSON says.

    Raises
    ------
    ValueError
        If it is no JSON, or has an entry twice.
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
    """Return a dictionary, or raise a ValueError where an entry is there twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"its structure has the key {key!r:.40} twice")
        found[key] = value
    return found


def refused(name: str) -> NoReturn:
    """Raise a ValueError for what Python's JSON has besides JSON's own."""
    raise ValueError(f"its structure contains {name}, which JSON does not allow")
