"""Tell which rows of a table are far from what training rows have covered, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .categories import is_unknown
from .columns import DATE, DAY, EPOCH, LEVEL, Column
from .findings import Finding

BEYOND = 0.1  # of the range of a column: a number that is farther outside is far
MOST_NAMED = 10  # that are named: those with most rows that are far
NO_RANGE = (1.0, 0.0)  # contains no number
ROWS_ASKED = "rows asked"


def ranges_of(columns: Sequence[Column]) -> np.ndarray:
    """Return the least and the largest number of each column, (d, 2)."""
    ranges = np.tile(NO_RANGE, (len(columns), 1))
    for ends, column in zip(ranges, columns, strict=True):
        if column.kind != LEVEL and not column.missing.all():
            ends[:] = np.nanmin(column.values), np.nanmax(column.values)
    return ranges


def of_rows_asked(
    columns: Sequence[Column],
    ranges: np.ndarray,
    levels: Sequence[set | None],
    gaps: Sequence[np.ndarray | None],
) -> Iterator[Finding]:
    """Yield how many rows are far from training rows in any column, then in which.

    Parameters
    ----------
    columns : sequence of Column
        The rows' columns, d of them.
    ranges : ndarray of shape (d, 2)
        Least and largest numbers of the training rows.
    levels : sequence of set or None
        Their levels; None for a column that is no category.
    gaps : sequence of ndarray of shape (n_gaps, 3) or None
        Wide gaps between groups of their numbers, and the width of all groups.
    """
    far = np.stack([*map(is_far, columns, ranges, levels, gaps)])  # (d, n)
    share = far.any(0).mean()
    n = int(far.any(0).sum())
    text = f"Of {far.shape[1]:,} rows, {n:,} {verb(n)} far from the training rows."
    advice = "Predictions extrapolate there. Compare them with what you know."
    whole = Finding(ROWS_ASKED, "X", float(share), np.inf)
    yield whole._replace(severity="note", text=text, advice=advice) if share else whole
    shares = far.mean(1)
    for j in np.argsort(-shares, kind="stable")[:MOST_NAMED]:
        if shares[j]:
            n = int(far[j].sum())
            beside = "" if gaps[j] is None else ", or in a gap between groups of them"
            text = f"Of these, {n:,} {verb(n)} {said_of(columns[j], ranges[j])}{beside}."
            where = f"column {columns[j].name}"
            yield Finding(ROWS_ASKED, where, float(shares[j]), np.inf, "note", text)


def is_far(
    column: Column, ends: np.ndarray, known: set | None, gaps: np.ndarray | None
) -> np.ndarray:
    """Return the mask (n,) of rows with a new level, or a number well outside range or groups."""
    if known is not None:
        return is_unknown(column, known)
    low, high = ends
    more = BEYOND * high - BEYOND * low
    x = column.values
    far = (x < low - more) | (x > high + more)  # not if missing
    for start, end, width in () if gaps is None else gaps:
        far |= (x > start + BEYOND * width) & (x < end - BEYOND * width)
    return far


def verb(n: int) -> str:
    """Return the verb of so many rows."""
    return "is" if n == 1 else "are"


def said_of(column: Column, ends: np.ndarray) -> str:
    """Say what is far in a column."""
    if column.kind == LEVEL:
        return "of levels that the training rows did not have"
    if ends[0] > ends[1]:
        return "numbers, but the training rows had none"
    is_date = column.kind == DATE
    low, high = (str(EPOCH + int(end) * DAY) if is_date else f"{end:.6g}" for end in ends)
    return f"more than {BEYOND:.0%} outside the range of the training rows, {low} to {high}"
