"""Equal rows: one row that counts several times, or several observations that agree by chance.

A row of weight 2 is the row twice, so where no row is held out, equal rows are merged
(:func:`merged`): sums over them are the same. Where rows are held out the question is which of
them leave together (:func:`observations`).

- Copies of one observation, from resampling or from joined tables, must: a copy that stays would
  predict its twin.
- In a table of categories, rows agree because few inputs and few targets exist. If such rows left
  together, the choice would depend on y: without all rows of an input that have y = 1, those with
  y = 0 are all that is known of it, and every model that uses this input looks bad.

Which of the two it is shows in the whole table (:func:`agree_by_chance`). Weights say how much a
row counts, and not that others agree with it, so a row always leaves with its whole weight. The
exception are counts beside distinct rows of categories, which stand for as many observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from .arrays import row_blocks
from .messages import warn
from .numeric import gaps_of, without_gaps
from .rows import Data

Merging = Literal["merge", "merge many", "copies last", "keep", "as given"]
"""What becomes of equal rows before training.

- "merge": they become one row with their total weight, or at least copies of one observation do,
  unless rows are too many.
- "merge many": the same among any number of rows.
- "copies last": too many rows keep their copies, but come in the order of "merge many", copies
  behind.
- "keep": no row is merged.
- "as given": nor put in order or dropped, because parameters refer to rows by number.
"""

MERGED_ROWS = 10_000
"""Largest number of rows among which equal rows are found."""

LEADING_COLUMNS = 16  # columns of X by which rows are sorted
N_BINS = 5040  # of a column, in whose middle up to ten values are that are evenly spaced
FEW_SHARED = 0.2  # distinct inputs or targets for each row, at or below which they are few
OFTEN_MIXED = 1.05  # distinct pairs (x, y) for each x, from which equal x often differ in y
GOLDEN, LAST_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(31)  # of splitmix64
MIXES = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
BLOCK_CELLS = 2**16  # of tables, whose bits are mixed at once in the processor's cache
MOST_COUNTED = 0.9  # distinct rows for each row, from which weights can be counts of equal rows
MOST_COPIES = 1e5  # mean weight beyond which weights of single observations are no counts
SAME_STEP = 1e-5  # of the spread of a column
MANY_VALUES = 0.25  # distinct ones for each row, which hardly agree by chance
MOST_UNEQUAL = 200  # columns among which twins are sought, which takes 8 ms for each
HARDLY_ANY, LEAST_DIFFERING = 0.1, 3.0  # of rows that agree in X, and would differ in y by chance
FEWEST_COPIED = 10  # distinct rows that a table has before it is given several times
FEWEST_PLACES = 10  # distinct inputs, of which rows are held out together
OWN_VALUES = 0.9  # of a column, for each distinct input, where it tells these apart
FEWEST_TWINS = 10  # rows with a twin, of which fewer may agree by chance


class EqualRows(NamedTuple):
    """Which rows are equal in every column.

    Parameters
    ----------
    first : ndarray of shape (m,)
        Number of the first row of each group of equal rows.
    group : ndarray of shape (n,)
        The group of each row.
    keys : ndarray of shape (n,)
        Bits that identify the rows.
    """

    first: np.ndarray
    group: np.ndarray
    keys: np.ndarray

    @classmethod
    def among(cls, data: Data, most: int | None = None) -> EqualRows | None:
        """Find them; None if all rows are equal, or there are more than `most` or too few."""
        if not 1 < len(data) <= (MERGED_ROWS if most is None else most):
            return None
        keys = digests(data.known())
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        if len(first) == 1:  # a single row cannot be fitted, but two rows can
            return None
        return cls(first, group.ravel(), keys)

    def merged(self, data: Data) -> tuple[Data, np.ndarray]:
        """Merge equal rows, in an order that depends only on their contents."""
        counts = np.bincount(self.group, data.weight, len(self.first))
        order = in_order(data[self.first], self.keys[self.first])
        counts = counts[order]
        weight = None if (counts == 1.0).all() else counts
        return replace(data[self.first[order]], weight=weight), inverse_order(order)[self.group]


def merged(data: Data) -> tuple[Data, np.ndarray]:
    """Merge rows that are equal in every column; return them and where each row went, (n,).

    A merged row has the sum of the weights. Merged rows come in an order that depends only on their
    contents, not on units or origin, so repeated and weighted rows give bitwise the same model.
    More than `MERGED_ROWS` rows are not merged.
    """
    equal = EqualRows.among(data)
    return (data, np.arange(len(data))) if equal is None else equal.merged(data)


def observations(data: Data, most: int | None = None) -> tuple[Data, np.ndarray]:
    """Return rows that may be held out one by one, and where each given row went, (n,).

    Copies are merged as by :func:`merged`, but rows that agree by chance stay as they are, in an
    order that depends only on contents. If the whole table is given several times, it counts once.
    Counts in a table of categories become as many rows; a given row went to the first of them. More
    than `most` rows stay as they are (None: `MERGED_ROWS`).
    """
    equal = EqualRows.among(data, most)
    if equal is None:
        return data, np.arange(len(data))
    if not agree_by_chance(data, equal):
        return equal.merged(data)
    if (times := times_given(equal)) > 1:
        return once(data, equal, times)
    counts, order = n_counted(data, equal), in_order(data, equal.keys)
    starts = np.concatenate([[0], np.cumsum(counts[order])[:-1]])
    return data[order].repeated(counts[order]), starts[inverse_order(order)]


def with_places(data: Data) -> Data:
    """Return rows whose groups are rows with equal inputs, unless they have groups.

    A row alone is held out where there are fewer than ten places, or few of them in a table of
    levels, in which no column has a value for each: new rows have the same inputs. So it is among
    more than `MERGED_ROWS` rows.
    """
    if data.cluster is not None or len(data) > MERGED_ROWS:
        return data
    inputs, place = np.unique(digests([data.X]), return_inverse=True)
    n = len(inputs)
    if not FEWEST_PLACES <= n < len(data):
        return data
    are_levels = n <= FEW_SHARED * len(data) and not has_own_values(data.X, n)
    return data if are_levels else replace(data, cluster=place.ravel())


def has_own_values(X: np.ndarray, n_inputs: int) -> bool:
    """Tell whether some column has a value for nearly every distinct input, unlike levels."""
    return any(n_distinct(column[:, None]) >= OWN_VALUES * n_inputs for column in X.T)


def observed_targets(data: Data) -> np.ndarray:
    """Return y of the :func:`observations` of rows without weights, in any order."""
    equal = EqualRows.among(data, len(data))
    if equal is None:
        return data.y
    if not agree_by_chance(data, equal):
        return data.y[equal.first]
    return np.repeat(data.y[equal.first], np.bincount(equal.group) // times_given(equal), axis=0)


def copies_last(data: Data) -> tuple[Data, np.ndarray, int]:
    """Return rows in the order of the :func:`observations` among any number, copies behind.

    Also return where each given row went, (n,), and how many rows are no copies.
    """
    equal = EqualRows.among(data, len(data))
    if equal is None or len(equal.first) == len(data) or agree_by_chance(data, equal):
        return *ordered(data), len(data)
    rest = np.delete(np.arange(len(data)), equal.first)
    of_first, of_rest = (in_order(data[rows], equal.keys[rows]) for rows in (equal.first, rest))
    order = np.concatenate([equal.first[of_first], rest[of_rest]])
    return data[order], inverse_order(order), len(equal.first)


def times_given(equal: EqualRows) -> int:
    """Return how many times the whole table occurs in itself."""
    counts = np.bincount(equal.group)
    return int(np.gcd.reduce(counts)) if len(counts) >= FEWEST_COPIED else 1


def once(data: Data, equal: EqualRows, times: int) -> tuple[Data, np.ndarray]:
    """Return a table that is given several times once, with the sums of weights."""
    order = in_order(data, equal.keys)  # equal rows are next to each other
    weight = None if data.weight is None else data.weight[order].reshape(-1, times).sum(1)
    return replace(data[order[::times]], weight=weight), inverse_order(order) // times


def units(data: Data) -> tuple[Data, np.ndarray]:
    """Return rows that may be in different folds, and where each given row went, (n,).

    Copies are merged, among any number of rows. Rows that agree by chance stay as they are, each
    with its weight.
    """
    equal = EqualRows.among(data, len(data))
    if equal is not None and not agree_by_chance(data, equal):
        return equal.merged(data)
    return ordered(data, None if equal is None else equal.keys)


def ordered(data: Data, keys: np.ndarray | None = None) -> tuple[Data, np.ndarray]:
    """Return rows in an order that depends on their contents, and where each row went, (n,)."""
    order = in_order(data, digests(data.known()) if keys is None else keys)
    return data[order], inverse_order(order)


def n_observations(data: Data) -> np.ndarray:
    """Return for how many of the :func:`observations` each row stands, (n,); 1 for copies."""
    equal = EqualRows.among(data)
    if equal is None or not agree_by_chance(data, equal):
        return np.ones(len(data), dtype=np.int64)
    return n_counted(data, equal)


def agree_by_chance(data: Data, equal: EqualRows) -> bool:
    """Tell whether equal rows are observations of their own.

    They are if few inputs and few targets exist, or if equal inputs often have different targets,
    of which there are few. A table that is given several times counts once.
    """
    n_pairs, n_targets = len(equal.first), n_distinct(data.y)
    n_inputs = n_distinct(data.inputs())
    few = FEW_SHARED * len(data) / times_given(equal)
    is_mixed = n_pairs >= OFTEN_MIXED * n_inputs and 2 * n_targets <= n_pairs
    return bool(is_mixed or (n_inputs <= few and n_targets <= few))


def copies_merged(data: Data) -> tuple[Data, bool]:
    """Return rows of which copies are merged, and whether others agree by chance.

    More than `MERGED_ROWS` rows are not merged.
    """
    equal = EqualRows.among(data)
    if equal is None:
        return data, False
    by_chance = agree_by_chance(data, equal)
    return (data if by_chance else equal.merged(data)[0]), by_chance


def counts_with_copies(data: Data) -> np.ndarray:
    """Return for how many rows each row and its copies count together, (n,)."""
    equal = EqualRows.among(data)
    if equal is None:
        return data.row_counts
    return np.bincount(equal.group, data.weight)[equal.group]


def twins(data: Data, columns: Sequence[slice]) -> tuple[float, int | None]:
    """Return the largest share of rows that agree with another in y and all columns but one.

    To 1e-5 of their spread, as numbers do that were rounded once more. Exact copies are one row.
    Rows that differ in exposure or y_std are no twins.

    Parameters
    ----------
    data : Data
        Rows, whose X is encoded.
    columns : sequence of slice
        The encoded columns of each column of the table.

    Returns
    -------
    share : float
        0 where rows may agree by chance: fewer than two of what agrees have many values, or fewer
        than ten rows have twins.
    column : int or None
        The column in which they differ, such as a running number; None if they agree in all.
    """
    distinct, by_chance = copies_merged(data)
    found: tuple[float, int | None] = (0.0, None)
    n = len(distinct)
    if by_chance or not FEWEST_COPIED < n <= MERGED_ROWS or len(columns) > MOST_UNEQUAL:
        return found
    told = [c for c in (distinct.y, distinct.exposure, distinct.y_std) if c is not None]
    of_y = np.hstack([c.reshape(n, -1) for c in told])
    targets = digests([binned(of_y)]) * np.uint64(2 * len(columns) + 1)
    if n - len(np.unique(targets)) < FEWEST_TWINS // 2:  # rows whose y another one has
        return found
    parts = [binned(distinct.X[:, own]) for own in columns]
    keys = [digests([part]) * np.uint64(2 * i + 1) for i, part in enumerate(parts)]
    are_many = [len(np.unique(key)) > MANY_VALUES * n for key in (*keys, targets)]
    inputs = np.sum(keys, axis=0, dtype=np.uint64)
    of_target = np.unique(targets, return_counts=True)[1] / n
    differing = 1.0 - float(of_target @ of_target)  # pairs of rows that differ in y, by chance
    for j in (None, *range(len(columns))):
        if sum(are_many) - (j is not None and are_many[j]) < 2:
            continue
        others = inputs if j is None else inputs - keys[j]
        counts = np.unique(others + targets, return_counts=True)[1]
        n_twins = int(counts[counts > 1].sum())
        if n_twins < FEWEST_TWINS or n_twins <= 1.1 * n * found[0]:
            continue
        # Where y depends on the column in which rows differ, few agree in y, by chance.
        n_inputs = len(np.unique(others))
        expected = differing * (n - n_inputs)
        if expected >= LEAST_DIFFERING and len(counts) - n_inputs < HARDLY_ANY * expected:
            found = n_twins / n, j
    return found


def binned(columns: np.ndarray) -> np.ndarray:
    """Return numbers (n, c) in steps of 1e-5 of the spread of the middle four fifths, but gaps."""
    known = np.nan_to_num(np.array(columns, dtype=np.float64).reshape(len(columns), -1))
    for column in known.T:
        column[:] = without_gaps(column, gaps_of(column))
    low, high = np.quantile(known, (0.1, 0.9), axis=0)
    widest = np.ptp(known, axis=0)
    spread = np.where(high > low, high - low, np.where(widest > 0.0, widest, 1.0))
    return np.rint((known - low) / (SAME_STEP * spread))


def n_counted(data: Data, equal: EqualRows) -> np.ndarray:
    """Return for how many observations each row stands, (n,): its weight, if that is a count.

    Only a table of distinct rows in which equal inputs have different targets has counts;
    `MERGED_ROWS` rows are enough for those of any size.
    """
    ones, weight = np.ones(len(data), dtype=np.int64), data.weight
    if len(equal.first) < MOST_COUNTED * len(data):
        return ones
    if weight is None or (weight != np.round(weight)).any() or (weight == weight[0]).all():
        return ones
    if len(equal.first) < OFTEN_MIXED * n_distinct(data.X):
        return ones
    share = min(1.0, MERGED_ROWS / float(weight.sum()))
    return np.maximum(np.round(share * weight), 1.0).astype(np.int64)


def with_possible_counts(data: Data) -> Data:
    """Return merged rows with weights as they are, or divided by Σw²/Σw if they are huge.

    A table of cells, where equal inputs have different targets, has counts of any size: they tell
    the noise. Elsewhere so many rows would agree exactly: the noise would be 0, and sums over rows
    would have no digits left. Scaled weights sum to (Σw)²/Σw², Kish's effective number of rows.
    """
    w = data.weight
    if w is None or w.mean() <= MOST_COPIES or has_cells(data):
        return data
    unit = float(w @ (w / w.sum()))
    warn(
        f"sample_weight averages {w.mean():.3g}. A weight is a number of rows, but no two of these "
        f"{len(data)} rows have the same inputs, so all {w.sum():.3g} would agree exactly and y "
        f"would have no noise. The weights are divided by {unit:.3g}: they count as "
        f"{w.sum() / unit:.3g} rows. If weights say which rows matter more, divide them by their "
        "mean before the fit. If they are 1 / error**2, pass y_std=error to an estimator that "
        "takes it.",
        UserWarning,
    )
    return replace(data, weight=None if np.ptp(w) == 0.0 else w / unit)


def has_cells(data: Data) -> bool:
    """Tell whether equal inputs often have different targets; copies must be merged."""
    return len(data) >= OFTEN_MIXED * n_distinct(data.inputs())


def n_distinct(columns: np.ndarray) -> int:
    """Return the number of distinct rows of an array."""
    keys = np.sort(digests([columns]))  # `np.unique` takes ten times as long
    return int(np.count_nonzero(keys[1:] != keys[:-1])) + min(len(keys), 1)


def digests(tables: list[np.ndarray]) -> np.ndarray:
    """Return 64 bits for each row of tables side by side, (n,).

    Equal rows have equal bits; others agree with probability 2⁻⁶⁴. They are sums over columns of
    what a bijection of bits (the finaliser of splitmix64) makes of each number and its column's.
    """
    h, width = np.zeros(len(tables[0]), dtype=np.uint64), sum(table.shape[1] for table in tables)
    columns = GOLDEN * np.arange(1, width + 1, dtype=np.uint64)
    for block in row_blocks(len(h), max(1, BLOCK_CELLS // max(width, 1))):
        numbers = np.concatenate([table[block] for table in tables], 1, dtype=np.float64)
        numbers += 0.0  # −0 is 0
        bits = numbers.view(np.uint64)
        bits ^= columns
        for shift, factor in MIXES:
            bits ^= bits >> shift
            bits *= factor
        bits ^= bits >> LAST_SHIFT
        h[block] = bits.sum(1)
    return h


def in_order(data: Data, keys: np.ndarray) -> np.ndarray:
    """Return row positions sorted by contents, in an order that units and origins do not change.

    Rows are sorted by the first columns of X, then by y; digests and weights decide ties. Small
    differences in X do not count before y in a table of few cells.
    """
    X = data.X[:, :LEADING_COLUMNS].astype(np.float64)
    low, high = X.min(0), X.max(0)
    bins = np.rint((X - low) / np.where(high > low, high - low, 1.0) * N_BINS)
    are_few = n_distinct(bins) <= FEW_SHARED * len(data)
    columns = [*bins.T, *data.y.T, *X.T] if are_few else [*X.T, *data.y.T]
    weight = data.row_counts
    return lexicographic([*columns, keys, weight])


def lexicographic(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return row positions sorted by the first column, and where that ties by the others.

    `np.lexsort` sorts by all of them: 300,000 rows of 10 columns take it ten times as long.
    """
    order = np.argsort(columns[0], kind="stable")
    first = columns[0][order]
    ties = first[1:] == first[:-1]
    is_tied = np.append(ties, False) | np.append(False, ties)
    some, run = order[is_tied], np.append(0, np.cumsum(~ties))[is_tied]
    order[is_tied] = some[np.lexsort((*(c[some] for c in reversed(columns[1:])), run))]
    return order


def inverse_order(order: np.ndarray) -> np.ndarray:
    """Return the position of each row after rows were put in this order."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places
