"""
========================================================
A deep kernel follows a jump that a stationary one blurs
========================================================

A stationary kernel has the same length-scale everywhere, so near a jump the fit either ripples or
blurs. The kernel of :class:`~skgpstoch.SCGDGaussianProcessRegressor` is linear in the last layer of
a network. The marginal likelihood trains this network, so the kernel adapts to the data.
"""

# %%
# A wave, a jump, a plateau
# -------------------------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import SCGDGaussianProcessRegressor
from skgpstoch.metrics import negative_log_predictive_density


def target(x: np.ndarray) -> np.ndarray:
    """A fast wave to the left of zero, almost a constant to the right of it."""
    return np.where(x < 0, np.sin(5 * x), 2 + 0.2 * x)


rng = np.random.default_rng(0)
x_train = rng.uniform(-3, 3, 800)
y_train = target(x_train) + 0.1 * rng.standard_normal(800)
x_test = np.linspace(-3, 3, 601)
y_test = target(x_test) + 0.1 * rng.standard_normal(601)

# %%
# Two kernels
# -----------

models = {
    "stationary: RBF": GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True),
    "deep: network of 128, 128": SCGDGaussianProcessRegressor(random_state=0),
}
for model in models.values():
    model.fit(x_train[:, None], y_train)

# %%
# Mean, interval and draws
# ------------------------
# The band should contain 95 % of new observations. Thin lines are three draws from ``sample_y``.

figure, axes = plt.subplots(2, figsize=(8, 7), sharex=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    mean, std = model.predict(x_test[:, None], return_std=True)
    draws = model.sample_y(x_test[:, None], n_samples=3, random_state=0)  # (N, 3)
    nlpd = negative_log_predictive_density(y_test, mean, std)
    ax.plot(x_train, y_train, ".", color="0.7", markersize=3)
    ax.plot(x_test, draws, color="C1", linewidth=0.4)
    ax.plot(x_test, mean, color="C0")
    ax.fill_between(x_test, mean - 1.96 * std, mean + 1.96 * std, color="C0", alpha=0.2)
    ax.set(title=f"{name}; NLPD {nlpd:.2f} nats", ylabel="y")
axes[-1].set_xlabel("x")
plt.show()
