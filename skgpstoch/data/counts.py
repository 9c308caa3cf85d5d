"""Recognise targets that are counts."""

from __future__ import annotations

import numpy as np

FEWEST_COUNTS = 5  # least number of different values; fewer may be grades
REPEATED = 0.5  # least share of rows whose value occurs more than once


def looks_like_counts(y: np.ndarray) -> bool:
    """Tell whether y (n,) or (n, 1) may be counts: whole numbers, not negative, many repeated.

    There must be at least five different values, without a common divisor, which rounded amounts
    would have.
    """
    if y.dtype.kind not in "fiu" or y.size != len(y) or not (y >= 0).all() or (y % 1 != 0).any():
        return False
    values, times = np.unique(y, return_counts=True)
    has_unit = np.gcd.reduce(values.astype(np.int64)) > 1
    is_repeated = times[times > 1].sum() > REPEATED * len(y)
    return bool(len(values) >= FEWEST_COUNTS and is_repeated and not has_unit)
