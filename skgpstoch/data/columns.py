"""Columns of the user's table, from any kind of frame or array: numbers, categories, dates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from .array_inputs import TO_DATES, refuse_large
from .arrays import all_finite, is_missing

NUMBER, LEVEL, DATE, EMPTY = "numbers", "categories", "dates", "nothing"
DURATION = "durations"
COLUMN_KINDS = {NUMBER, LEVEL, DATE, EMPTY, DURATION}
DAY = np.timedelta64(1, "D")
EPOCH = np.datetime64("1970-01-01")


class Column(NamedTuple):
    """One column of a table.

    Parameters
    ----------
    name : str
        Name for messages: 'age', or 3.
    kind : {"numbers", "categories", "dates", "durations", "nothing"}
        Kind of the values.
    values : ndarray of shape (n_samples,)
        Numbers, days, or days since 1970 in local time, in float64 with NaN for missing values; for
        categories objects, with None for missing values.
    time_zone : str or None, default=None
        Time zone of dates.
    order : tuple
        Levels of an ordered category.
    elsewhere : frozenset
        Levels in other rows of the table, which are not here; None is a missing value.
    """

    name: str
    kind: str
    values: np.ndarray
    time_zone: str | None = None
    order: tuple = ()
    elsewhere: frozenset = frozenset()

    @property
    def levels(self) -> set:
        """Levels of a category, here and elsewhere."""
        return set(self.values.tolist()) | self.elsewhere

    @property
    def missing(self) -> np.ndarray:
        """Mask of missing values, (n_samples,)."""
        if self.kind == LEVEL:
            return np.array([value is None for value in self.values.tolist()], dtype=bool)
        return np.isnan(self.values)

    def of_kind(self, kind: str) -> Column:
        """Return the column, or one of nothing if all is missing, or was in the training rows.

        Libraries take objects that are all missing for strings, whatever they were in other rows.
        """
        if kind == LEVEL or not (kind == EMPTY or self.missing.all()):
            return self
        return Column(self.name, EMPTY, np.full(len(self.values), np.nan))


@dataclass(frozen=True)
class ReadTable:
    """A table whose columns have been read; ``table[rows]`` selects rows.

    Parameters
    ----------
    columns : list of Column
        All columns.
    array : ndarray of shape (n_samples, n_features) or None, default=None
        The table itself, if it is an array of floats.
    """

    columns: list[Column]
    array: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def __getitem__(self, rows: Any) -> ReadTable:
        columns = [column._replace(values=column.values[rows]) for column in self.columns]
        return ReadTable(columns, None if self.array is None else self.array[rows])

    def joined(self, others: Sequence[ReadTable]) -> ReadTable:
        """Return a table with the rows of others, which have the same columns, below its own."""
        parts = [self, *others]
        every = zip(*(part.columns for part in parts), strict=True)
        arrays = [part.array for part in parts if part.array is not None]
        array = np.concatenate(arrays) if arrays else None
        return ReadTable([joined(columns) for columns in every], array)


def joined(columns: Sequence[Column]) -> Column:
    """Join the rows of several columns; take order and time zone from any that has them."""
    values = np.concatenate([column.values for column in columns])
    order = max((column.order for column in columns), key=len)
    zones = [column.time_zone for column in columns if column.time_zone is not None]
    return columns[0]._replace(values=values, order=order, time_zone=zones[0] if zones else None)


def narwhals() -> Any:
    """Return the module narwhals, which reads frames of any library; scikit-learn 1.9 needs it too.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        import narwhals.stable.v2 as nw
    except ImportError as error:
        raise ImportError(
            "Data frames need narwhals, which comes with scikit-learn 1.9 or later. "
            "Install it with `pip install narwhals`, or pass an array of numbers."
        ) from error
    return nw


def is_frame(X: Any) -> bool:
    """Tell whether X is a data frame, of pandas, polars or another library that narwhals knows."""
    may_be = hasattr(X, "columns") or hasattr(X, "column_names")  # pyarrow has the latter
    return may_be and bool(narwhals().dependencies.is_into_dataframe(X))


def names_of(X: Any) -> list | None:
    """Return the names of columns; None for an array."""
    return list(narwhals().from_native(X, eager_only=True).columns) if is_frame(X) else None


def is_table(X: Any) -> bool:
    """Tell whether X may hold more than numbers: a frame, or an array of objects or dates."""
    return is_frame(X) or (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OMm")


def columns_of(
    X: Any, is_category: Iterable[bool] | None = None, names: Sequence[str] | None = None
) -> list[Column]:
    """Return the columns of a frame or an array; those in `is_category` as categories.

    An array may come from a file, with these names.
    """
    if is_frame(X):
        frame = narwhals().from_native(X, eager_only=True)
        known, columns = [repr(name) for name in frame.columns], list(frame.iter_columns())
    else:
        known = [str(j) for j in range(X.shape[1])] if names is None else list(map(repr, names))
        columns = list(X.T)
    chosen = [False] * len(known) if is_category is None else is_category
    return [asked_column(*each) for each in zip(known, columns, chosen, strict=True)]


def asked_column(name: str, column: Any, is_category: bool) -> Column:
    """Return a column: as categories if so, otherwise of the kind that its dtype implies."""
    return of_categories(name, listed(column)) if is_category else column_of(name, column)


def column_of(name: str, column: Any) -> Column:
    """Return a column of the kind that its dtype implies.

    Raises
    ------
    TypeError
        If it holds neither numbers, strings, dates nor levels.
    """
    if isinstance(column, np.ndarray):
        return of_array(name, column)
    dtype, nw = column.dtype, narwhals()
    if dtype.is_integer() and not column.implementation.is_polars():
        return of_array(name, column.to_numpy())  # Arrow would not cast those above 2⁵³
    if dtype.is_numeric() or dtype == nw.Boolean:
        return of_numbers(name, column.cast(nw.Float64).to_numpy())
    if dtype in (nw.String, nw.Categorical):
        return of_categories(name, listed(column), order_in_arrow(column.to_native()))
    if isinstance(dtype, nw.Enum):  # a polars Enum is a fixed set of names without an order
        order = () if column.implementation.is_polars() else tuple(dtype.categories)
        return of_categories(name, listed(column), order)
    zone = zone_of(column)
    if zone is not None or dtype == nw.Datetime:
        clock = column.dt.replace_time_zone(None).to_numpy()
        return of_array(name, clock)._replace(time_zone=zone)
    a = column.to_numpy()
    if a.ndim > 1:
        raise TypeError(unreadable(name, str(dtype)))
    return of_array(name, a)


def order_in_arrow(column: Any) -> tuple:
    """Return the levels of a column of Arrow in their order; nothing if they have none."""
    if not getattr(getattr(column, "type", None), "ordered", False):
        return ()
    return tuple(column.unify_dictionaries().chunk(0).dictionary.to_pylist())


def zone_of(column: Any) -> str | None:
    """Return the name of the time zone of a column of a frame; None if it has none.

    narwhals does not recognise pandas' dtype if the zone's name has more than letters and slashes,
    as America/New_York. So ask pandas' own dtype first.
    """
    own = getattr(getattr(column.to_native(), "dtype", None), "tz", None)
    zone = own or getattr(column.dtype, "time_zone", None)
    return None if zone is None else zone_name(zone)


def zone_name(zone: tzinfo | str) -> str:
    """Return the name of a time zone; for a fixed offset UTC+05:30, however a library spells it.

    pandas says UTC+05:30 or what the user has called it, Arrow +05:30, polars Etc/GMT-5.
    """
    known = named_zone(zone) if isinstance(zone, str) else zone
    offset = None if known is None else known.utcoffset(None)
    return str(zone) if offset is None else str(timezone(offset))


def named_zone(name: str) -> tzinfo | None:
    """Return the time zone of a name or an offset; None if this machine does not know it."""
    try:
        return datetime.strptime(name, "%z").tzinfo if name[:1] in "+-" else ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None


def listed(column: Any) -> list:
    """Return the values of a column of a frame or an array."""
    return column.tolist() if isinstance(column, np.ndarray) else column.to_list()


def of_array(name: str, a: np.ndarray) -> Column:
    """Return an array (n,) as a column: numbers, dates, durations in days, or objects."""
    if a.dtype.kind in "fiub":
        return of_numbers(name, a if a.dtype.kind == "f" else a.astype(np.float64))
    if a.dtype.kind == "m":
        return of_durations(name, a)
    if a.dtype.kind == "M":
        return Column(name, DATE, (a - EPOCH) / DAY)
    return of_objects(name, a)


def of_numbers(name: str, a: np.ndarray) -> Column:
    """Return a column of numbers; refuse infinite ones."""
    refuse_infinite(name, a)
    return Column(name, NUMBER, a)


def refuse_infinite(name: str, a: np.ndarray) -> None:
    """Raise a ValueError if a column (n,) has infinite numbers."""
    if not all_finite(a) and np.isinf(a).any():
        raise ValueError(
            f"Column {name} of X contains infinity. Replace it, for example by NaN, which "
            "means a missing value."
        )


def of_objects(name: str, a: np.ndarray) -> Column:
    """Return a column of Python objects, which must be of one kind, or missing."""
    missing = np.array([is_missing(value) for value in a.tolist()], dtype=bool)
    kinds = set(map(type, a[~missing].tolist()))

    def are(*classes: type) -> bool:
        return all(issubclass(kind, classes) for kind in kinds)

    if not kinds:
        return Column(name, EMPTY, np.full(len(a), np.nan))
    if are(str):
        return of_categories(name, a.tolist())
    a = a.copy()
    a[missing] = None
    if are(np.datetime64):
        return of_array(name, a.astype("datetime64[us]"))
    if are(timedelta, np.timedelta64):  # numpy's durations are integers of any unit, too
        return of_durations(name, a)
    if are(Real, Decimal, np.bool_) and np.timedelta64 not in kinds:
        numbers = np.full(len(a), np.nan)
        try:
            numbers[~missing] = [float(value) for value in a[~missing].tolist()]
        except OverflowError as error:
            refuse_large(f"Column {name} of X", error)
        return of_numbers(name, numbers)
    if are(date):
        return of_dates(name, a, missing)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(unreadable(name, found))


def of_durations(name: str, a: np.ndarray) -> Column:
    """Return a column of durations, in days, from an array (n,) of numpy's or of objects."""
    try:
        lengths = a.astype("timedelta64[us]") if a.dtype.kind == "O" else a
        return Column(name, DURATION, lengths / DAY)
    except TypeError as error:
        raise TypeError(unreadable(name, "durations in months or years")) from error


def of_dates(name: str, a: np.ndarray, missing: np.ndarray) -> Column:
    """Return a column of Python dates, or times of one time zone."""
    zones = {d.tzinfo if isinstance(d, datetime) else None for d in a[~missing].tolist()}
    names = {None if zone is None else zone_name(zone) for zone in zones}
    if len(names) > 1:
        raise TypeError(unreadable(name, "times of several time zones"))
    (zone,) = names
    if zone is not None:
        a[~missing] = [d.replace(tzinfo=None) for d in a[~missing].tolist()]
    return of_array(name, a.astype("datetime64[us]"))._replace(time_zone=zone)


def days_of(column: Column) -> Column:
    """Return the days of a column of dates as levels, such as '2013-01-31'."""
    values = np.full(len(column.values), None, dtype=object)
    known = ~np.isnan(column.values)
    days, place = np.unique(np.floor(column.values[known]).astype(np.int64), return_inverse=True)
    values[known] = np.datetime_as_string(EPOCH + days * DAY, unit="D").astype(object)[place]
    return Column(f"day of {column.name}", LEVEL, values)


def unreadable(name: str, found: str) -> str:
    """Return the message for a column that no model can read; scikit-learn asks for *argument*."""
    cure = TO_DATES if "Period" in found else ""
    return (
        f"Column {name} of X holds {found}, but every argument must be a string, a number "
        "or a date, and all of one kind. Convert the column to numbers, to a date type or "
        f"to strings (which are taken for categories), or split it into several columns.{cure}"
    )


def of_categories(name: str, values: list, order: tuple = ()) -> Column:
    """Return a column of levels.

    Raises
    ------
    TypeError
        If the levels cannot be sorted or are not hashable, such as lists.
    """
    try:
        found = set(values)
        if missing := {value for value in found if is_missing(value)}:
            values = [None if value in missing else value for value in values]
        sorted(found - missing)
    except TypeError:
        kinds = ", ".join(sorted({type(v).__name__ for v in values if not is_missing(v)}))
        raise TypeError(
            f"Column {name} of X is categorical, so its categories must be all strings or "
            f"all numbers, got {kinds}. Convert it, for example with astype(str), or drop "
            "it."
        ) from None
    levels = np.fromiter(values, dtype=object, count=len(values))
    return Column(name, LEVEL, levels, order=order)
