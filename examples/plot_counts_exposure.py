"""
============================
Accident counts and exposure
============================

How many accidents will a driver have in a year? Insurers observe groups of drivers, each for some
number of driver-years: the *exposure*. A count of 2 says much about a group of 200 driver-years,
and little about one of 3. With ``likelihood="poisson"``, pass the exposure to
:meth:`~skgpstoch.SVGPRegressor.fit` and ``predict``.
"""

# %%
# Simulated drivers
# -----------------
# The accident rate falls with age and rises again for old drivers. For young drivers it also rises
# with the power of the engine.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from skgpstoch import SVGPRegressor
from skgpstoch.metrics import interval_coverage


def accident_rate(age: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Accidents per driver-year; power in kW."""
    young, old = np.exp(-(age - 18) / 5), np.exp((age - 90) / 8)
    return 0.04 + 0.002 * power * young + 0.15 * old


rng = np.random.default_rng(0)
n_groups = 2000
X = np.stack([rng.uniform(18, 90, n_groups), rng.uniform(40, 160, n_groups)], 1)
driver_years = rng.lognormal(np.log(20), 1.2, n_groups)
counts = rng.poisson(driver_years * accident_rate(*X.T))
print(f"driver-years from {driver_years.min():.1f} to {driver_years.max():.0f},", end=" ")
print(f"{counts.sum()} accidents, none in {np.mean(counts == 0):.0%} of the groups")
X_train, X_test, t_train, t_test, y_train, y_test = train_test_split(
    X, driver_years, counts, random_state=0
)

# %%
# Fit
# ---
# We compare with a generalised linear model on polynomials of the inputs up to degree 3.

model = SVGPRegressor(likelihood="poisson", n_inducing=50, random_state=0)
model.fit(X_train, y_train, exposure=t_train)
linear = make_pipeline(StandardScaler(), PolynomialFeatures(3), PoissonRegressor(alpha=1e-4))
linear.fit(X_train, y_train / t_train, poissonregressor__sample_weight=t_train)

# %%
# Held-out groups
# ---------------
# Even the true rates have a deviance, because counts are random; errors in the rates add to it. The
# ends of intervals are whole numbers, so intervals contain more than 90 %.

expected = {
    "SVGP, Poisson": model.predict(X_test, exposure=t_test),
    "cubic PoissonRegressor": t_test * linear.predict(X_test),
    "the true rates": t_test * accident_rate(*X_test.T),
}
for name, mean in expected.items():
    print(f"{name:<24} mean Poisson deviance {mean_poisson_deviance(y_test, mean):.4f}")
interval = model.predict_interval(X_test, coverage=0.9, exposure=t_test)
print(f"{interval_coverage(y_test, interval):.1%} of the counts are in their 90 % intervals")

# %%
# Rates and intervals
# -------------------
# Left: the predicted rate, which is the expected count for one driver-year, and the true rate
# (dashed). Bands are 95 % intervals for the rate. Right: expected counts and 90 % intervals for
# groups with 20 and 200 driver-years, at 80 kW.

age = np.linspace(18, 90, 145)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for color, power in zip(("C0", "C1", "C2"), (50.0, 100.0, 150.0), strict=True):
    grid = np.stack([age, np.full_like(age, power)], 1)
    low, high = model.predict_interval(grid, coverage=0.95, latent=True).T  # of log rate
    left.plot(age, model.predict(grid), color=color, label=f"{power:.0f} kW")
    left.fill_between(age, np.exp(low), np.exp(high), color=color, alpha=0.2)
    left.plot(age, accident_rate(*grid.T), color=color, linestyle="--", linewidth=1)
left.set(xlabel="age", ylabel="accidents per driver-year", ylim=(0, 0.4))
left.legend()

grid = np.stack([age, np.full_like(age, 80.0)], 1)
for color, years in zip(("C3", "C4"), (20.0, 200.0), strict=True):
    low, high = model.predict_interval(grid, coverage=0.9, exposure=years).T
    right.plot(age, model.predict(grid, exposure=years), color=color)
    right.fill_between(
        age, low, high, step="mid", color=color, alpha=0.2, label=f"{years:.0f} driver-years"
    )
right.set(xlabel="age", ylabel="accidents")
right.legend()
plt.show()
