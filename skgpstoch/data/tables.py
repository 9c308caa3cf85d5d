"""Encode the user's tables as numbers for the models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .categories import (
    DAY_STAND_INS,
    MOST_ONE_HOT,
    STAND_INS,
    NewRows,
    Omitted,
    OneHot,
    few_missing,
    levels_of,
    missing_columns_of,
    new_levels,
    placed,
    stand_ins,
    with_levels,
    with_numbers,
    within_groups,
)
from .chunk import Chunk
from .columns import (
    COLUMN_KINDS,
    DATE,
    EMPTY,
    LEVEL,
    Column,
    ReadTable,
    columns_of,
    days_of,
)
from .findings import Finding
from .groups import Group, agreed
from .level_encoders import level_encoders
from .messages import muted
from .misread import cure_of, warn_of_texts
from .missing_codes import warn_of_missing_codes
from .numeric import Dates, Numbers, Ordered, numbers_of
from .ranges import of_rows_asked, ranges_of
from .read_table import array_of, read_table
from .target_means import FoldMeans, LevelSums, LevelTargets, TargetMeans, means_at

FEW_LEVELS = 10  # which have one column each
ROWS_PER_LEVEL = 4.0
"""*Measured* against 8, three splits each: real tables gain .08 and .02 nats (mpg, Journals), lose
.01 (Penicillin), and eight others stay. Made-up ones gain .05 (nested effects), lose .03 (none),
and with one category of 25 to 90 levels, five or six rows each, lose .03 to .07 if effects are
three times the noise. With 2.5 to 3.7 rows, columns cost .12 (msleep)."""
FEWEST_DAYS = 10  # of a column of dates, for effects of days: a curve follows fewer
ROWS_PER_DAY = 4.0
"""Least mean number of rows that share a day, for the same. *Measured* (NLPD without, with) with
2,500 flights: 4.220, 4.180, and on the next month's flights 4.113, 4.110; with 294,611: 3.970,
3.942. An effect given only the date beside it: 4.179, 4.157 and 3.915."""


class TableEncoder:
    """Encode a table of numbers, categories and dates, with missing values, as numbers.

    - Numbers stay as they are; booleans become 0 and 1. A missing number becomes the median, and a
      further column flags it. If a few rows dominate the variance of a column, it becomes
      asinh((x − median)/width), with the width from quantiles; if it reaches far to one side, with
      the other end in the median's place. If there are gaps between groups of numbers that are more
      than three times as wide as all groups together, a further column has gaps as wide as these.
    - Dates become days, with sine and cosine of the periods (day, week, year) that they cover. If
      rows share days, at least four rows each day on average and ten days, a further column has the
      effect of the day given the other columns, as of a level below.
    - Ordered categories become the positions of their levels.
    - Other categories become one column for each level (one-hot), if there are at most ten levels,
      or at most 100 with four rows for each. With more, one column has the mean target at the
      level, and another one the effect of the level given the other columns; training rows get
      those of other rows. What does not go with their targets is 0.
    - A missing category is a level of its own. A level that training rows did not have is 0 in all
      one-hot columns (0.5 in a single one), and has the overall mean and no effect.
    - Constant columns are left out.

    An array of finite numbers that needs none of this is returned unchanged.

    Parameters
    ----------
    categorical_features : "from_dtype", array-like of bool, int or str, or None
        Which columns are categories. "from_dtype": columns of a categorical dtype, or of strings.
        Otherwise a mask, positions or names; None for no columns.
    """

    def __init__(self, categorical_features: Any = "from_dtype") -> None:
        self.categorical_features = categorical_features

    def fit_transform(
        self,
        X: Any,
        y: np.ndarray,
        weight: np.ndarray | None = None,
        classes: Any = None,
        cluster: np.ndarray | None = None,
    ) -> np.ndarray:
        """Learn how to encode, and encode training rows.

        Parameters
        ----------
        X : array, frame or ReadTable of shape (n_samples, n_features)
            The table, as :func:`validate_table` or :func:`read_table` returns it.
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Targets, or labels.
        weight : ndarray of shape (n_samples,) or None, default=None
            How many rows each row counts for; nothing is learned from rows of weight 0.
        classes : ndarray of shape (n_classes,) or None, default=None
            All labels, if y holds labels.
        cluster : ndarray of shape (n_samples,) or None, default=None
            Codes of groups, if the question is about new groups: what other rows say of a level is
            then said by other groups, and categories whose levels each belong to one group are
            left out.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_encoded)
            The encoded rows in float64, or X itself if it needs no encoding.
        """
        table = read_table(X, self.categorical_features)
        columns = table.columns
        if isinstance(self.categorical_features, str):  # "from_dtype"
            for column in columns:
                warn_of_texts(column)
        for column in columns:
            warn_of_missing_codes(column)
        self.kinds = [column.kind for column in columns]
        self.names = [column.name for column in columns]
        self.time_zones = [column.time_zone for column in columns]
        counts = slice(None) if weight is None or weight.all() else weight > 0.0
        self.has_days = [shares_days(column) for column in table[counts].columns]
        table = self._with_days(table)
        kept = table[counts].columns
        self.ranges = ranges_of(kept[: len(columns)])
        w = None if weight is None else weight[counts]
        self.encoders: list[Any] = [simple_encoder(column, w) for column in kept[: len(columns)]]
        self.encoders += [None] * sum(self.has_days)
        self.levels = [c.levels if c.kind == LEVEL else None for c in kept]
        groups = None if cluster is None else cluster[counts]
        for j in within_groups(kept, groups):
            levels, self.levels[j] = levels_of(kept[j].levels), set()  # of which none is new
            self.encoders[j] = Omitted(levels)
        many = [j for j, encoder in enumerate(self.encoders) if encoder is None]
        sampled = [j for j, e in enumerate(self.encoders) if type(e) is OneHot and e.has_many]
        own, self.line = {}, None
        if many or sampled:
            targets = LevelTargets.of(y[counts], w, classes)(y[counts])
        for j in sampled:
            means = means_at(kept[j].values, self.encoders[j].levels, targets[:, 0], w)
            self.encoders[j] = replace(self.encoders[j], means=means)
        if many:
            others = self._others(kept)
            found = level_encoders(kept, many, others, targets, w, groups, len(columns))
            self.line = found.line
            for j, encoder, means in zip(many, found.encoders, found.encoded, strict=True):
                self.encoders[j], own[j] = encoder, means
                if j >= len(columns) and not encoder.means.any():
                    self.levels[j] = set()  # days do not matter: none is new
        return self._encoded(table, own, counts)

    def learn_levels(
        self, group: Group, parts: Iterable[Chunk], told: LevelTargets
    ) -> dict[int, FoldMeans]:
        """Learn the target means at levels from all rows of a table, not only from a sample.

        Parameters
        ----------
        group : Group
            The ranks; all know the same levels.
        parts : iterable of Chunk
            This rank's rows of positive weight; read only if there are columns of many levels.
        told : LevelTargets
            The values whose means encode levels.

        Returns
        -------
        by_fold : dict of int to FoldMeans
            Encoders of training rows, for :meth:`transform_training`.
        """
        every = {
            j: LevelSums(encoder.levels, encoder.width)
            for j, encoder in enumerate(self.encoders)
            if isinstance(encoder, TargetMeans)
        }
        if not every:
            return {}
        with agreed(group):
            for part in parts:
                assert part.y is not None
                columns, y = self._table(part.X).columns, told(part.y)
                if self.line is not None:
                    y = np.hstack([y, y - self.line(self._others(columns))])
                for j, of_column in every.items():
                    of_column.add(columns[j].values, part.rows, y, part.weight)
        arrays = [a for sums in every.values() for a in (sums.n, sums.total, sums.squares)]
        group.sum_(*map(torch.from_numpy, arrays))
        by_fold = {}
        for j, of_column in every.items():
            used = self.encoders[j].means.any(0) | (j < len(self.names))  # days have no means
            means, folds = of_column.means()
            self.encoders[j], by_fold[j] = means.only(used), folds.only(used)
        return by_fold

    def transform_training(
        self, X: Any, numbers: np.ndarray, by_fold: Mapping[int, FoldMeans]
    ) -> np.ndarray:
        """Encode training rows, after the encoder learned from a sample and :meth:`learn_levels`.

        Parameters
        ----------
        X : frame or ReadTable of shape (n_samples, n_features)
            The rows; a frame may be one of several chunks with the same columns.
        numbers : ndarray of shape (n_samples,)
            Numbers of the rows in the whole table.
        by_fold : dict of int to FoldMeans
            The result of :meth:`learn_levels`.
        """
        table = self._table(X)
        own = {j: means(table.columns[j].values, numbers) for j, means in by_fold.items()}
        return self._encoded(table, own)

    def transform(self, X: Any) -> np.ndarray:
        """Encode new rows.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            The table, as :func:`validate_table` returns it.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_encoded)
            The encoded rows in float64, or X itself if it needs no encoding.
        """
        table = self._table(X)
        at_levels = "those for an average level, so their uncertainty is too small"
        self._new(table, at_levels, "as these few suggest, so their uncertainty may be too small")
        return self._encoded(table)

    def _new(self, table: ReadTable, at_levels: str, at_numbers: str | None = None) -> np.ndarray:
        """Return the mask (d, n) of levels that training rows did not have, and warn of these.

        So for numbers that few of them lacked. The texts say what is predicted there.
        """
        is_new = np.zeros((len(table.columns), len(table)), dtype=bool)
        of_columns = zip(is_new, table.columns, self.levels, self.encoders, strict=True)
        for of_column, column, known, encoder in of_columns:
            if known is not None:
                of_column[:] = new_levels(column, known, at_levels, self)
            elif type(encoder) is Numbers and encoder.stand_ins is not None:
                of_column[:] = few_missing(column, encoder, at_numbers, self)
        return is_new

    def transform_with_new(self, X: Any) -> tuple[np.ndarray, list[NewRows]]:
        """Encode new rows; also encode rows with new levels with known levels in their place.

        X is as for :meth:`transform`.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_encoded)
            The same as :meth:`transform` returns.
        new : list of NewRows
            Rows with new levels, by the number of those in their place; empty if all are known.
        """
        table = self._table(X)
        is_new = self._new(table, "mixtures of the predictions for the known levels")
        number = np.max(is_new * self.n_stand_ins[:, None], axis=0, initial=0)  # (n,)
        number[is_new.sum(0) > 1] = STAND_INS  # combinations of levels
        Z, kinds = self._encoded(table), np.unique(number[number > 0])
        levels = self.stand_ins() if len(kinds) else []
        with muted(True):  # we have warned of missing values
            found = [
                self._replaced(table, is_new, np.flatnonzero(number == K), [c[:K] for c in levels])
                for K in kinds
            ]
        return Z, found

    def _replaced(
        self, table: ReadTable, is_new: np.ndarray, rows: np.ndarray, levels: list[np.ndarray]
    ) -> NewRows:
        """Encode some rows with K known levels of each column in place of new ones (d, n)."""
        few = table[rows].columns
        filled = [with_levels(few, is_new[:, rows], each) for each in zip(*levels, strict=True)]
        return NewRows(rows, np.stack([self._encoded(ReadTable(each)) for each in filled]))

    @property
    def n_stand_ins(self) -> np.ndarray:
        """Numbers of known levels in place of a new one, for each column and for days, (d,)."""
        n = len(self.names)
        most = [STAND_INS] * n + [DAY_STAND_INS] * (len(self.encoders) - n)
        known = [len((levels or set()) - {None}) or STAND_INS for levels in self.levels]
        return np.minimum(most, known)

    def stand_ins(self) -> list[np.ndarray]:
        """Return, for each column and for days, known levels or numbers to replace new ones."""
        of_levels = [each.effects for each in self.encoders]
        return with_numbers(stand_ins(self.levels, of_levels, self.n_stand_ins), self.encoders)

    def check_parts(self) -> None:
        """Raise a ValueError if columns have no kind, or other levels: as in edited files."""
        if not set(self.kinds) <= COLUMN_KINDS:
            raise ValueError("a column is of no kind that columns have")
        if not all(zone is None or isinstance(zone, str) for zone in self.time_zones):
            raise ValueError("a time zone is no text")
        if len(self.names) != len(self.kinds):
            raise ValueError(f"{len(self.kinds)} columns have {len(self.names)} names")
        for known, encoder in zip(self.levels, self.encoders, strict=True):
            codes = getattr(encoder, "codes", None)
            if (known is None) != (codes is None):
                raise ValueError("a column has levels, but its encoder has none, or only that has")
            if known is not None and codes is not None and not known - {None} <= set(codes):
                raise ValueError("a column has levels that its encoder does not know")

    def _table(self, X: Any) -> ReadTable:
        """Return the columns of rows; check that their kinds are those of training rows."""
        if isinstance(X, ReadTable):
            return self._with_days(X)
        read = columns_of(X, [kind == LEVEL for kind in self.kinds])
        columns = [column.of_kind(kind) for column, kind in zip(read, self.kinds, strict=True)]
        for column, kind, zone in zip(columns, self.kinds, self.time_zones, strict=True):
            if column.kind not in (kind, EMPTY):
                raise TypeError(
                    f"Column {column.name} of X holds {column.kind}, but held {kind} in "
                    f"the training rows. Convert it{cure_of(column, kind)}."
                )
            if column.time_zone != zone and column.kind != EMPTY:
                raise ValueError(
                    f"Column {column.name} of X is in {in_zone(column.time_zone)}, but "
                    f"the training rows were in {in_zone(zone)}. Convert it, for example "
                    "with pandas' dt.tz_convert or dt.tz_localize."
                )
        return self._with_days(ReadTable(columns, array_of(X)))

    def _with_days(self, table: ReadTable) -> ReadTable:
        """Add the days of dates as levels."""
        pairs = zip(table.columns, self.has_days, strict=True)
        days = [days_of(column) for column, has_days in pairs if has_days]
        return ReadTable(table.columns + days, table.array)

    def _others(self, columns: list[Column]) -> np.ndarray:
        """Encode the columns that need no targets, (n, d)."""
        pairs = zip(self.encoders, columns, strict=True)
        simple = [(e, c) for e, c in pairs if not isinstance(e, TargetMeans | None)]
        none = np.empty((len(columns[0].values), 0))
        return np.hstack([none, *(encoder(column.values) for encoder, column in simple)])

    def rows_asked(self, X: Any) -> Iterator[Finding]:
        """Yield how many rows of X, as :meth:`transform` takes it, are far from training rows."""
        columns = self._table(X).columns[: len(self.names)]
        gaps = [getattr(encoder, "gaps", None) for encoder in self.encoders]
        n = len(self.names)
        yield from of_rows_asked(columns, self.ranges, self.levels[:n], gaps[:n])

    @property
    def missing_columns(self) -> list[int]:
        """Positions of the encoded columns that are 1 where a value is missing, and 0 elsewhere."""
        return missing_columns_of(self.encoders)

    @property
    def groups(self) -> list[int]:
        """For each encoded column a number, which the one-hot levels of a column share."""
        widths = [w for each in self.encoders for w in each.widths] or [1]
        return np.repeat(np.arange(len(widths)), widths).tolist()

    def places(self) -> list[slice]:
        """Return the encoded columns of each column of the table."""
        found = placed(self.encoders[: len(self.names)])
        return [slice(first, first + each.width) for first, each in found]

    def rows_by_level(self, Z: np.ndarray) -> Iterator[tuple[str, Any, np.ndarray]]:
        """Yield a column's name, a level, and a mask (n,) of the encoded rows Z that have it.

        The columns are one-hot or ordered categories, and numbers with at most two values.
        """
        for name, (first, each) in zip(self.names, placed(self.encoders), strict=False):
            for level, rows in each.rows_by_level(Z[:, first : first + each.width]):
                yield name, level, rows

    def of_columns(self, of_encoded: np.ndarray) -> np.ndarray:
        """Sum values of encoded columns, (n_encoded,), for each column of X: (n_features,)."""
        found = np.zeros(len(self.names))
        widths = [encoder.width for encoder in self.encoders]
        sources = [*range(len(found)), *np.flatnonzero(self.has_days)]
        np.add.at(found, np.repeat(sources, widths), of_encoded[: sum(widths)])
        return found

    def _encoded(
        self, table: ReadTable, own: Mapping[int, np.ndarray] | None = None, rows: Any = slice(None)
    ) -> np.ndarray:
        """Encode columns; `own` are the target means that these rows get in place of all rows'."""
        pairs = list(zip(self.encoders, table.columns, strict=True))
        if table.array is not None and all(
            isinstance(encoder, Numbers) and encoder.keeps(column.values)
            for encoder, column in pairs
        ):
            return table.array
        width = sum(encoder.width for encoder in self.encoders)
        Z = np.zeros((len(table), max(width, 1)))  # at least a constant column
        for j, (first, encoder) in enumerate(placed(self.encoders)):
            part = Z[:, first : first + encoder.width]
            part[:] = encoder(table.columns[j].values)
            if own and j in own:
                part[rows, : own[j].shape[1]] = own[j]
        return Z


def in_zone(time_zone: str | None) -> str:
    """Name a time zone in a message."""
    return f"the time zone {time_zone}" if time_zone else "no time zone"


def shares_days(column: Column) -> bool:
    """Tell whether a column holds dates, and so many rows share days that days may have effects."""
    if column.kind != DATE:
        return False
    known = np.floor(column.values[~column.missing])
    return FEWEST_DAYS <= len(np.unique(known)) <= len(known) / ROWS_PER_DAY


def simple_encoder(column: Column, weight: np.ndarray | None) -> Any:
    """Return the encoder of a column; None if the encoder needs targets."""
    if column.kind == DATE:
        return Dates.fit(column, weight)
    if column.kind != LEVEL:
        return numbers_of(column, column.values, weight)
    if column.order:  # .07 to .15 nats better than one-hot (diamonds, n = 1,000 and 3,000)
        return Ordered.fit(column, weight)
    levels = levels_of(column.levels)
    n_rows = len(column.values) if weight is None else np.count_nonzero(weight)
    most = min(MOST_ONE_HOT, n_rows / ROWS_PER_LEVEL)
    return OneHot(levels) if len(levels) <= max(FEW_LEVELS, most) else None
