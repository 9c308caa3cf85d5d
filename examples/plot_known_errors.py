"""
=============================================
Known errors: ``y_std``, and why not a weight
=============================================

Often each measurement comes with a standard error. Pass it to :meth:`~skgpstoch.SVGPRegressor.fit`
as ``y_std``. The noise of a row is then this error plus an unknown part, whose variance is learned.
``sample_weight=1 / error**2`` is something else: a weight is a number of rows, and a precise
measurement is still a single row.
"""

# %%
# Two instruments
# ---------------
# A quarter of the measurements are precise; the others have errors of about the size of the signal.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import root_mean_squared_error

from skgpstoch import SVGPRegressor


def target(x: np.ndarray) -> np.ndarray:
    """The function without errors."""
    return np.sin(2 * x) + 0.4 * x


rng = np.random.default_rng(0)
x_train = np.sort(rng.uniform(-3, 3, 150))
is_precise = rng.random(150) < 0.25
error = np.where(is_precise, 0.05, rng.uniform(0.4, 1.2, 150))
y_train = target(x_train) + error * rng.standard_normal(150)
print(f"{is_precise.sum()} of 150 rows are precise")

# %%
# Three fits
# ----------

rows_are_told = {
    "all alike": {},
    "sample_weight": {"sample_weight": 1 / error**2},
    "y_std": {"y_std": error},
}
models = {
    name: SVGPRegressor(n_inducing=30, random_state=0).fit(x_train[:, None], y_train, **told)
    for name, told in rows_are_told.items()
}

# %%
# Against the truth
# -----------------
# The bands should contain the function in 90 % of the places. If all rows are treated alike, all
# have the errors of the rough instrument. With weights, the fit behaves as if it had seen thousands
# of rows, and its band is far too narrow. With ``y_std``, the error is by far the smallest, hardly
# any noise is left to learn, and the band contains the function.

x = np.linspace(-3, 3, 301)
print(f"{'':<14}{'RMSE to the truth':>18}{'in 90 % band':>14}{'learned noise':>15}")
bands = {}
for name, model in models.items():
    rmse = root_mean_squared_error(target(x), model.predict(x[:, None], latent=True))
    low, high = bands[name] = model.predict_interval(x[:, None], coverage=0.9, latent=True).T
    inside = np.mean((low < target(x)) & (target(x) < high))
    print(f"{name:<14}{rmse:18.3f}{inside:14.0%}{np.sqrt(model.noise_variance_):15.3f}")

# %%
# What ``predict`` adds
# ---------------------
# Without ``y_std``, the standard deviation is that of a y with only the learned noise. To predict a
# measurement by either instrument, pass its error to ``predict``, too. ``log_predictive_density``
# takes it in the same way.

model = models["y_std"]
for instrument, y_std in (("none", None), ("precise", 0.05), ("rough", 0.8)):
    std = model.predict_std([[0.0]], y_std=y_std)[0]
    print(f"standard deviation at 0, instrument: {instrument:<8} {std:.3f}")

# %%
# Mean and band
# -------------
# Bands are the models' 90 % intervals for the function. The truth is dashed.

figure, axes = plt.subplots(3, figsize=(8, 9), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    for rows, color in ((~is_precise, "0.75"), (is_precise, "C3")):
        points = x_train[rows], y_train[rows], error[rows]
        ax.errorbar(*points, fmt=".", color=color, markersize=4, elinewidth=0.7)
    ax.plot(x, target(x), color="0.2", linestyle="--", linewidth=1)
    ax.plot(x, model.predict(x[:, None], latent=True), color="C0")
    ax.fill_between(x, *bands[name], color="C0", alpha=0.3)
    ax.set(title=name, ylabel="y", ylim=(-3, 3))
axes[-1].set_xlabel("x")
plt.show()
