"""Encode columns of numbers, dates and ordered categories."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from .arrays import Scaling, all_finite, ruled_by_few
from .columns import Column
from .messages import warn

PERIODS = (1.0, 7.0, 365.2425)  # days
LEAST_PERIODS = 1.5  # dates must span so many periods for sine and cosine to add information
STEPS_OF_PERIOD = 2.0  # a period must be so many times the smallest difference of dates


@dataclass(frozen=True)
class Numbers:
    """Encoder of numbers: missing ones become the median, and a further column flags them.

    Parameters
    ----------
    name : str
        Name of the column.
    fill : float
        The median.
    varies : bool
        Whether there are two different numbers.
    flags : bool
        Whether any were missing.
    scaling : Scaling or None
        Median and width if a few rows rule the column's moments; the code is then
        asinh((x − median)/width).
    """

    name: str
    fill: float
    varies: bool
    flags: bool
    scaling: Scaling | None

    @classmethod
    def fit(
        cls, name: str, values: np.ndarray, weight: np.ndarray | None, flags: bool = False
    ) -> Numbers:
        """Return the encoder of a column (n,), whose rows have positive weights.

        `flags` says whether values are missing in other rows, which are not here.
        """
        missing = np.isnan(values)
        flags = flags or bool(missing.any())
        if missing.any():
            values, weight = values[~missing], None if weight is None else weight[~missing]
        if len(values) == 0 or values.min() == values.max():
            fill = float(values[0]) if len(values) else 0.0
            return cls(name, fill, False, flags and len(values) > 0, None)
        A = values[:, None]
        quantile = Scaling.quantile(A, weight)
        ruled = ruled_by_few(Scaling.standard(A, weight), quantile)[0]
        return cls(name, float(quantile.offset[0]), True, flags, quantile if ruled else None)

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return int(self.varies) + int(self.flags)

    @property
    def missing_columns(self) -> list[int]:
        """Positions of columns that flag missing values."""
        return [self.width - 1] if self.flags else []

    def keeps(self, values: np.ndarray) -> bool:
        """Tell whether the encoder leaves a column unchanged."""
        return self.varies and not self.flags and self.scaling is None and all_finite(values)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Encode a column (n,): (n, width)."""
        if not self.flags and self.varies and np.isnan(values).any():
            warn(
                f"Column {self.name} of X has missing values, but it had none in the "
                "training rows. They are filled with the training median, and intervals do "
                "not widen. If values will be missing at prediction time, train with some "
                "missing too."
            )
        return self.filled(values)

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Encode a column (n,) without a warning of missing values: (n, width)."""
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        parts = [self.scaled(filled)] * self.varies + [missing] * self.flags
        return np.stack(parts, axis=1) if parts else np.empty((len(values), 0))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Return numbers; with heavy tails, their inverse hyperbolic sine."""
        if self.scaling is None:
            return values
        return np.arcsinh((values - self.scaling.offset) / self.scaling.scale)


@dataclass(frozen=True)
class Dates:
    """Encoder of dates: days, and sine and cosine of the periods (day, week, year) that fit."""

    days: Numbers
    periods: tuple[float, ...]

    @classmethod
    def fit(cls, column: Column, weight: np.ndarray | None) -> Dates:
        """Return the encoder of a column (n,), whose rows have positive weights."""
        values = column.values
        found = np.unique(values[~np.isnan(values)])
        steps = np.diff(found)
        held = [
            P
            for P in PERIODS
            if len(steps)
            and found[-1] - found[0] >= LEAST_PERIODS * P
            and STEPS_OF_PERIOD * steps.min() <= P
        ]
        return cls(numbers_of(column, values, weight), tuple(held))

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return self.days.width + 2 * len(self.periods)

    @property
    def missing_columns(self) -> list[int]:
        """Positions of columns that flag missing values."""
        return self.days.missing_columns

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Encode a column (n,): (n, width)."""
        waves = []
        for period in self.periods:
            angle = 2.0 * np.pi * (values / period)
            waves += [np.nan_to_num(np.sin(angle)), np.nan_to_num(np.cos(angle))]
        return np.hstack([self.days(values), *(wave[:, None] for wave in waves)])


@dataclass(frozen=True)
class Ordered:
    """Encoder of ordered categories: the position of each level."""

    places: dict[Hashable, int]
    numbers: Numbers

    @classmethod
    def fit(cls, column: Column, weight: np.ndarray | None) -> Ordered:
        """Return the encoder of a column (n,), whose rows have positive weights."""
        places = {level: place for place, level in enumerate(column.order)}
        values = places_of(column.values, places)
        return cls(places, numbers_of(column, values, weight))

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return self.numbers.width

    @property
    def missing_columns(self) -> list[int]:
        """Positions of columns that flag missing values."""
        return self.numbers.missing_columns

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels (n,), unknown ones as missing: (n, width)."""
        return self.numbers.filled(places_of(labels, self.places))  # callers warn of new levels


def numbers_of(column: Column, values: np.ndarray, weight: np.ndarray | None) -> Numbers:
    """Return the encoder of a column as these numbers (n,), whose rows have positive weights."""
    return Numbers.fit(column.name, values, weight, flags=None in column.elsewhere)


def places_of(labels: np.ndarray, places: dict[Hashable, int]) -> np.ndarray:
    """Return the position of each row's level, (n,), NaN if it has none."""
    return np.array([places.get(label, np.nan) for label in labels.tolist()], dtype=np.float64)
