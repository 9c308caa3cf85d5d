"""
================================================
Nearest neighbours: a map, and one of its places
================================================

:class:`~skgpstoch.NNGPRegressor` predicts each place from the measurements nearest to it, as the
exact Gaussian process would given these. Here, 1,500 places of a plane were measured. We fit a
map, and look at how one prediction is made.
"""

# %%
# Measurements
# ------------
# The truth changes faster from south to north than from west to east, as many maps do. There are
# no measurements in the lower right corner.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from skgpstoch import NNGPRegressor


def truth(X: np.ndarray) -> np.ndarray:
    """The function without errors, at east and north in kilometres."""
    east, north = X.T
    return np.sin(0.6 * east) + np.sin(2.0 * north + 0.3 * east) + 0.1 * north


rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (1_700, 2))
X = X[(X[:, 0] < 7) | (X[:, 1] > 3)][:1_500]
y = truth(X) + 0.3 * rng.standard_normal(len(X))

# %%
# The fit
# -------
# One length-scale for each axis is the default. The kernel is in the units of X, here kilometres,
# and refers to the standardised y. The map is rougher to the north, so that length-scale is
# shorter.

model = NNGPRegressor(random_state=0).fit(X, y)
print(model.kernel_)
print(f"standard deviation of the errors: {model.noise_variance_**0.5:.2f}")

# %%
# One prediction
# --------------
# The mean at a place :math:`x` is :math:`\mu + \sum_i \beta_i (y_i - \mu)` with
# :math:`\beta = (K_{NN} + \sigma^2 I)^{-1} k_N(x)` over its neighbours N. Neighbours are the rows
# that are nearest in length-scales, so they lie in an ellipse. Weights fall with distance, and are
# small where other measurements are in front.

place = np.array([[5.0, 5.0]])
scales = model.kernel_.k2.length_scale
distance = np.linalg.norm((X - place) / scales, axis=1)
near = np.argsort(distance)[:32]
noise = model.noise_variance_ / y.var()  # the kernel refers to standardised y
K = model.kernel_(X[near]) + noise * np.eye(len(near))
weights = np.linalg.solve(K, model.kernel_(X[near], place)[:, 0])
print(f"the sum of 32 weights is {weights.sum():.2f}, the largest is {weights.max():.2f}")
mean = y.mean() + weights @ (y[near] - y.mean())
print(f"from 32 neighbours {mean:.2f}, by predict, from 128, {model.predict(place)[0]:.2f}")

# %%
# The map, and how sure it is
# ---------------------------
# The standard deviation is that of the function (``latent=True``). It is small between
# measurements, and grows to that of the prior in the corner without any.

side = np.linspace(0, 10, 60)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
mean, std = model.predict(grid, return_std=True, latent=True)

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
axes[0].plot(*X.T, ".", color="0.8", markersize=3)
shown = axes[0].scatter(*X[near].T, c=weights, s=40, cmap="viridis", edgecolor="0.3")
axes[0].plot(*place.T, "r+", markersize=14)
axes[0].set(title="neighbours and weights of one place", xlim=(3, 7), ylim=(3, 7))
figure.colorbar(shown, ax=axes[0])
for ax, values, title in ((axes[1], mean, "mean"), (axes[2], std, "standard deviation")):
    shown = ax.pcolormesh(side, side, values.reshape(60, 60), shading="nearest")
    ax.set(title=title)
    figure.colorbar(shown, ax=ax)
for ax in axes:
    ax.set(xlabel="east, km", ylabel="north, km", aspect="equal")
plt.show()
