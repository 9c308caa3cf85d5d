"""Take apart and restore pandas' scalars among levels of categories: times, periods, intervals."""

from __future__ import annotations

from typing import Any

NAMES_OF_PANDAS = {"Timestamp": "timestamp", "Period": "period", "Interval": "interval"}


def form_of_level(value: Any) -> str | None:
    """Return the form of a pandas scalar, or None if the value is not one."""
    is_of_pandas = type(value).__module__.partition(".")[0] == "pandas"
    return NAMES_OF_PANDAS.get(type(value).__name__) if is_of_pandas else None


def timestamp(value: Any) -> list[Any]:
    """Take a time apart: the time in UTC, and the time zone."""
    return [value.to_datetime64(), None if value.tz is None else str(value.tz)]


def timestamp_of(parts: list[Any]) -> Any:
    """Return a time."""
    import pandas as pd  # not a requirement; whoever uses frames has it

    when, zone = parts
    time = pd.Timestamp(when)
    return time if zone is None else time.tz_localize("UTC").tz_convert(zone)


def period(value: Any) -> list[Any]:
    """Take a period apart: its ordinal number, and its frequency."""
    return [value.ordinal, value.freqstr]


def period_of(parts: list[Any]) -> Any:
    """Return a period."""
    import pandas as pd

    ordinal, freq = parts
    return pd.Period(ordinal=ordinal, freq=freq)


def interval(value: Any) -> list[Any]:
    """Take an interval apart: its ends, and which of them belong to it."""
    return [value.left, value.right, value.closed]


def interval_of(parts: list[Any]) -> Any:
    """Return an interval."""
    import pandas as pd

    return pd.Interval(*parts)
