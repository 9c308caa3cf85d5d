"""Tell of numbers that stand for missing ones, such as -999."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .columns import DATE, DAY, EPOCH, NUMBER, Column
from .messages import warn

FEWEST_ALIKE, SHARE_ALIKE = 5, 0.02  # rows that share a code, and of all rows, any code
MOST_CODES, MOST_OF_ROWS = 3, 0.5  # more are another group of rows
FEWEST_OTHERS, MORE_ALIKE = 20, 2.0  # other numbers; codes are times as often as any of these
BELOW_ZERO = 0.1  # of the range of others, from them to a negative number


class MissingCodes(NamedTuple):
    """Numbers that seem to stand for missing ones, and the range of the others."""

    values: tuple[float, ...]
    low: float
    high: float

    def share(self, column: np.ndarray) -> float:
        """Return the share of rows with a code."""
        return float(np.isin(column, self.values).mean())

    def told(self, what: str, share: float, are_days: bool = False) -> str:
        """Say in which rows a column has codes, up to a comma."""
        code, end = (day_of, day_of) if are_days else (exact, "{:g}".format)
        *first, last = map(code, self.values)
        which = f"{', '.join(first)} or {last}" if first else last
        return (
            f"{what} is {which} in {share:.1%} of the rows, apart from all its others, "
            f"{end(self.low)} to {end(self.high)}. If that stands for a missing value"
        )


def exact(number: float) -> str:
    """Write a number for code."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def day_of(number: float) -> str:
    """Write the date of a number of days."""
    return str(EPOCH + int(number) * DAY)


def warn_of_missing_codes(column: Column) -> None:
    """Warn of numbers or dates that seem to stand for missing ones, such as -999."""
    if column.kind not in (NUMBER, DATE) or (found := missing_codes(column.values)) is None:
        return
    are_days = column.kind == DATE
    codes = [repr(day_of(day)) if are_days else exact(day) for day in found.values]
    test = f" == {codes[0]}" if len(codes) == 1 else f".isin([{', '.join(codes)}])"
    warn(
        f"{found.told(f'Column {column.name} of X', found.share(column.values), are_days)}, "
        "intervals of these rows are too narrow: leave it out, as "
        f"column.mask(column{test}) of pandas does."
    )


def missing_codes(values: np.ndarray) -> MissingCodes | None:
    """Return numbers that many rows share, far from all others; and their range, if there are any.

    They are farther from these than these are from each other, or negative whole numbers, as no
    other is. A column has several, near each other, if it tells why a number is missing.

    *Measured* on a smooth function of two columns, 300 rows, of which a tenth or 40 % lack one. Of
    such rows, 90 % intervals held .90 to .96 for NaN, .46 to .88 for -999 and .65 to .84 for -1.
    """
    values = values[np.isfinite(values)].astype(np.float64)
    for end in (np.min, np.max):
        others, codes, most = values, np.empty(0), 0
        while len(codes) < MOST_CODES and len(others):
            is_code = others == end(others)
            n_alike, codes = int(is_code.sum()), np.append(codes, others[is_code][0])
            others, most = others[~is_code], max(most, n_alike)
            if n_alike < FEWEST_ALIKE:
                break
            share = 1.0 - len(others) / len(values)
            is_share = SHARE_ALIKE <= share <= MOST_OF_ROWS
            if is_share and are_apart(codes, others) and are_rarer(others, most):
                low, high = float(others.min()), float(others.max())
                return MissingCodes(tuple(np.sort(codes).tolist()), low, high)
    return None


def are_apart(codes: np.ndarray, others: np.ndarray) -> bool:
    """Tell whether codes are far from all other numbers."""
    low, high = others.min(initial=np.inf), others.max(initial=-np.inf)
    halves = 0.5 * codes  # which cannot overflow
    gap = max(0.5 * low - halves.max(), halves.min() - 0.5 * high)
    width = 0.5 * high - 0.5 * low
    are_below = (codes < 0.0).all() and low >= 0.0 and (codes % 1.0 == 0.0).all()
    is_far = gap > width and (codes != 0.0).all()  # 0 is a dose, for example
    is_alone = is_far or (are_below and gap > BELOW_ZERO * width)
    return bool(is_alone and gap > np.ptp(halves))


def are_rarer(others: np.ndarray, n_alike: int) -> bool:
    """Tell whether others are many numbers, each of them in fewer rows than a code."""
    _, counts = np.unique(others, return_counts=True)
    return len(counts) >= FEWEST_OTHERS and n_alike >= MORE_ALIKE * counts.max()
