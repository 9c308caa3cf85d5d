"""Find which encoded rows have which level of a category, for reports by group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .categories import Joined, OneHot, placed
from .numeric import Numbers, Ordered
from .tables import TableEncoder

Rows = tuple[Any, np.ndarray]  # a level, None if it is missing, and which rows have it, (n,)


def rows_by_level(encoder: TableEncoder, Z: np.ndarray) -> Iterator[tuple[str, Any, np.ndarray]]:
    """Yield a column's name, a level, and a mask (n,) of the encoded rows Z (n, d) that have it.

    The columns are one-hot or ordered categories, and numbers with at most two values.
    """
    for name, (first, each) in zip(encoder.names, placed(encoder.encoders), strict=True):
        for level, rows in rows_of(each, Z[:, first : first + each.width]):
            yield name, level, rows


def rows_of(encoder: Any, part: np.ndarray) -> Iterator[Rows]:
    """Yield the levels of one column and their rows, from its encoded columns (n, width)."""
    if isinstance(encoder, Joined):
        for first, each in placed(encoder.parts):
            yield from rows_of(each, part[:, first : first + each.width])
    elif isinstance(encoder, OneHot) and encoder.width:
        is_one_column = encoder.width == 1
        for level, code in encoder.levels.items():
            yield level, part[:, 0] == code if is_one_column else part[:, code] == 1.0
    elif isinstance(encoder, Ordered):
        yield from rows_of_numbers(encoder.numbers, part, encoder.places)
    elif isinstance(encoder, Numbers) and encoder.varies and encoder.scaling is None:
        found = part[:, 0] if not encoder.flags else part[part[:, -1] == 0.0, 0]
        values = np.unique(found).tolist()
        yield from rows_of_numbers(encoder, part, dict(zip(values, values, strict=True)), most=2)


def rows_of_numbers(
    numbers: Numbers, part: np.ndarray, levels: Mapping[Any, float], most: int | None = None
) -> Iterator[Rows]:
    """Yield levels that are numbers, unless there are more than `most`, and missing values."""
    missing = part[:, -1] == 1.0 if numbers.flags else np.zeros(len(part), dtype=bool)
    if numbers.varies and (most is None or len(levels) <= most):
        for level, value in levels.items():
            yield level, (part[:, 0] == numbers.scaled(np.array(float(value)))) & ~missing
    if missing.any():
        yield None, missing
