"""Targets that are counts."""

from __future__ import annotations

import numpy as np

FEWEST_COUNTS = 5  # different ones: fewer may be grades
REPEATED = 0.5  # of rows have a count that other rows have, where counts are small


def looks_like_counts(y: np.ndarray) -> bool:
    """Tell whether y (n,) or (n, 1) may be counts: whole numbers, not negative, many repeated.

    They have no common unit, as rounded amounts do, and there are five at least.
    """
    if y.dtype.kind not in "fiu" or y.size != len(y) or not (y >= 0).all() or (y % 1 != 0).any():
        return False
    values, times = np.unique(y, return_counts=True)
    has_unit = np.gcd.reduce(values.astype(np.int64)) > 1
    is_repeated = times[times > 1].sum() > REPEATED * len(y)
    return bool(len(values) >= FEWEST_COUNTS and is_repeated and not has_unit)
