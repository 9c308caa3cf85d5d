"""
=============================================
Variances far from the data: ``augment=True``
=============================================

This is figure 2 of Evans and Nair, "Quadruply stochastic Gaussian processes" (2020). If basis
functions are centred on the rows, a Gaussian process has no variance far from the rows.
``augment=True`` adds a function centred on the point to predict, with its variance.
"""

# %%
# Data, and the exact process
# ---------------------------
# The data are a hundred noisy values of sin(x)/x. The exact process learns kernel and noise, and
# the others use them. Targets are centred, because the exact process has a prior mean of zero.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import QSGPRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-10, 10, (100, 1))
y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(100)
y -= y.mean()
exact = GaussianProcessRegressor(ConstantKernel(1.0) * RBF(2.0) + WhiteKernel(0.1)).fit(X, y)
signal, noise = exact.kernel_.k1, exact.kernel_.k2
print(exact.kernel_)

# %%
# Four approximations
# -------------------
# The basis functions are k(·, z) at all rows z. With ``n_dense=0`` the covariance of the weights is
# diagonal. With ``n_dense=100`` all of its columns are dense, and it is exact. ``n_subset=0`` and
# ``"fixed"`` keep kernel and noise as they are.

kernel = ConstantKernel(signal.k1.constant_value) * RBF(signal.k2.length_scale)
kernel += WhiteKernel(noise.noise_level, "fixed")
common = {"basis": "inducing", "n_subset": 0, "normalize_y": False, "dtype": "float64"}
models = {
    "diagonal": QSGPRegressor(kernel, n_dense=0, **common, random_state=0),
    "diagonal, augmented": QSGPRegressor(kernel, n_dense=0, augment=True, **common, random_state=0),
    "full": QSGPRegressor(kernel, n_dense=100, **common, random_state=0),
    "full, augmented": QSGPRegressor(kernel, n_dense=100, augment=True, **common, random_state=0),
}
for model in models.values():
    model.fit(X, y)

# %%
# Means and standard deviations
# -----------------------------
# All have the mean of the exact process. With the diagonal covariance, the standard deviation of y
# is a third too large among the rows, and falls to that of the noise beyond them. With the full
# covariance, it is exact among the rows and a little beyond, but then falls to that of the noise,
# too. With one more function at each point, both return to the prior. At x = 15, the full one
# exceeds the prior, because the correlations of the new function with the others are left out.

x = np.linspace(-20, 20, 401)[:, None]
exact_mean, exact_std = exact.predict(x, return_std=True)  # of y: the kernel has the noise
at = [[0.0], [9.0], [12.0], [15.0], [20.0]]
print(f"{'std of y at x =':<22}" + "".join(f"{a[0]:7.0f}" for a in at) + f"{'mean off by':>14}")
for name, model in models.items():
    off = np.abs(model.predict(x) - exact_mean).max()
    stds = model.predict_std(at)
    print(f"{name:<22}" + "".join(f"{std:7.3f}" for std in stds) + f"{off:14.1e}")
print(f"{'exact':<22}" + "".join(f"{s:7.3f}" for s in exact.predict(at, return_std=True)[1]))

figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
    mean, std = model.predict(x, return_std=True)
    ax.plot(X, y, ".", color="0.6", markersize=3)
    ax.plot(x, mean, color="C0", label="mean ± 2 std")
    ax.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, color="C0", alpha=0.2)
    for sign in (-2, 0, 2):
        label = "exact" if sign == 0 else None
        band = exact_mean + sign * exact_std
        ax.plot(x, band, color="0.3", linestyle="--", linewidth=0.7, label=label)
    ax.set_title(name)
axes[0, 0].legend()
for ax in axes[1]:
    ax.set_xlabel("x")
for ax in axes[:, 0]:
    ax.set_ylabel("y")
plt.show()
