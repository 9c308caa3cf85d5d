"""
============================================
Relevance vectors: a few rows instead of all
============================================

This is figure 3 of Evans and Nair, "Quadruply stochastic Gaussian processes" (2020), on Tipping's
example. A basis function is centred on every row, and then all but a few functions are pruned.
"""

# %%
# Fit
# ---
# The data are two hundred noisy values of sin(x)/x. Rows that are close to one another have almost
# the same function, so pruning takes many sweeps. Here a sweep is one step.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import GaussianProcessRegressor, QSRVMRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-10, 10, (200, 1))
y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(200)
sparse = QSRVMRegressor(max_iter=2000, random_state=0).fit(X, y)
kernel = ConstantKernel(1.0) * RBF(2.0) + WhiteKernel(0.1)
exact = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(X, y)
print(f"{sparse.n_iter_} sweeps; {len(sparse.relevance_)} relevance vectors of {len(X)} rows:")
print(np.sort(sparse.relevance_vectors_[:, 0]).round(1))

# %%
# Errors
# ------
# The table has the error on 1,001 values without noise, and the density of 1,000 values with noise.

x = np.linspace(-10, 10, 1001)[:, None]
truth = np.sinc(x[:, 0] / np.pi)
X_test = rng.uniform(-10, 10, (1000, 1))
y_test = np.sinc(X_test[:, 0] / np.pi) + 0.1 * rng.standard_normal(1000)
models = {"QSRVMRegressor": sparse, "exact": exact}
print(f"{'':<16}{'functions':>10}{'RMSE':>8}{'NLPD':>8}")
for name, model in models.items():
    m = len(sparse.relevance_) if model is sparse else len(X)
    rmse = np.sqrt(np.mean((model.predict(x) - truth) ** 2))
    nlpd = -model.log_predictive_density(X_test, y_test).mean()
    print(f"{name:<16}{m:10d}{rmse:8.4f}{nlpd:8.3f}")

# %%
# The mean as a short sum
# -----------------------
# The mean is a sum over the relevance vectors. Here we compute it without ``predict``.

mean = sparse.kernel_(x, sparse.relevance_vectors_) @ sparse.dual_coef_ + sparse.intercept_
print(f"largest difference from predict: {np.abs(mean - sparse.predict(x)).max():.1e}")

# %%
# What is left
# ------------
# Circles are the relevance vectors. Beyond the rows their functions vanish, and the variance falls
# to that of the noise. The variance of the exact process grows (dashed: ±2 standard deviations of
# y).

x = np.linspace(-20, 20, 801)[:, None]
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
mean, std = sparse.predict(x, return_std=True)
ax.plot(X, y, ".", color="0.6", markersize=4)
ax.plot(x, mean, color="C0", label="relevance vector machine")
ax.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, color="C0", alpha=0.2)
ax.plot(
    sparse.relevance_vectors_,
    y[sparse.relevance_],
    "o",
    color="C3",
    fillstyle="none",
    markersize=8,
    label=f"{len(sparse.relevance_)} relevance vectors",
)
exact_mean, exact_std = exact.predict(x, return_std=True)
for sign in (-2, 0, 2):
    label = "exact process" if sign == 0 else None
    band = exact_mean + sign * exact_std
    ax.plot(x, band, color="0.3", linestyle="--", linewidth=0.7, label=label)
ax.set(xlabel="x", ylabel="y", ylim=(-1.2, 1.6))
ax.legend(loc="upper left")
plt.show()
