"""
========================================
Outliers: Student's t against a Gaussian
========================================

With a Gaussian likelihood, outliers raise the noise everywhere, or pull the function towards them.
Student's t distribution allows a few large errors, and learns how few and how large.
"""

# %%
# One row in ten is wrong
# -----------------------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import root_mean_squared_error

from skgpstoch import SVGPRegressor


def target(x: np.ndarray) -> np.ndarray:
    """The function without errors."""
    return np.sin(3 * x) + 0.5 * x


rng = np.random.default_rng(0)
x_train = np.sort(rng.uniform(-3, 3, 300))
is_outlier = rng.random(300) < 0.1
noise = np.where(is_outlier, rng.uniform(-2, 6, 300), 0.1 * rng.standard_normal(300))
y_train = target(x_train) + noise

# %%
# Two likelihoods
# ---------------

models = {
    "Gaussian": SVGPRegressor(n_inducing=30, random_state=0),
    "Student's t": SVGPRegressor(likelihood="student_t", n_inducing=30, random_state=0),
}
for model in models.values():
    model.fit(x_train[:, None], y_train)

# %%
# Against the truth
# -----------------
# The density is that of the rows that are not outliers: how well does a model predict correct
# measurements?

x = np.linspace(-3, 3, 301)
good = ~is_outlier
for name, model in models.items():
    rmse = root_mean_squared_error(target(x), model.predict(x[:, None], latent=True))
    density = model.log_predictive_density(x_train[good, None], y_train[good]).mean()
    print(f"{name:<12} RMSE to the truth {rmse:.3f}, log density of good rows {density:6.3f} nats")
print(models["Student's t"].likelihood_, "is fitted; without outliers, the scale is 0.1")

# %%
# Mean and interval
# -----------------
# Bands are the models' 90 % intervals for new measurements. Outliers are red, the truth is dashed.

figure, axes = plt.subplots(2, figsize=(8, 7), sharex=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    low, high = model.predict_interval(x[:, None], coverage=0.9).T
    ax.plot(x_train[good], y_train[good], ".", color="0.6", markersize=4)
    ax.plot(x_train[is_outlier], y_train[is_outlier], "x", color="C3", markersize=4)
    ax.plot(x, target(x), color="0.2", linestyle="--", linewidth=1)
    ax.plot(x, model.predict(x[:, None], latent=True), color="C0")
    ax.fill_between(x, low, high, color="C0", alpha=0.2)
    ax.set(title=name, ylabel="y")
axes[-1].set_xlabel("x")
plt.show()
