"""
===============================================
Carbon dioxide at Mauna Loa: change one import
===============================================

scikit-learn forecasts the concentration of CO₂ by a Gaussian process with a kernel of four terms: a
long trend, a season that changes slowly, medium irregularities, and noise. Here is the same with
:class:`~skgpstoch.GaussianProcessRegressor`, and then with more rows than one matrix takes.
"""

# %%
# Monthly means
# -------------
# The data come with the package statsmodels. The last month is December 2001.

from __future__ import annotations

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, RationalQuadratic, WhiteKernel
from statsmodels.datasets import co2

from skgpstoch import GaussianProcessRegressor  # sklearn.gaussian_process, before

monthly = co2.load_pandas().data["co2"].resample("MS").mean().dropna()
X = (monthly.index.year + (monthly.index.month - 0.5) / 12).to_numpy()[:, None]
y = monthly.to_numpy()
print(f"{len(y)} months, {X.min():.1f} to {X.max():.1f}")

# %%
# The kernel, as scikit-learn's example has it
# --------------------------------------------
long_term = 50.0**2 * RBF(50.0)
seasonal = (
    2.0**2
    * RBF(100.0)
    * ExpSineSquared(length_scale=1.0, periodicity=1.0, periodicity_bounds="fixed")
)
irregularities = 0.5**2 * RationalQuadratic(length_scale=1.0, alpha=1.0)
noise = 0.1**2 * RBF(0.1) + WhiteKernel(noise_level=0.1**2, noise_level_bounds=(1e-5, 1e5))
kernel = long_term + seasonal + irregularities + noise

start = time.perf_counter()
gpr = GaussianProcessRegressor(kernel).fit(X, y - y.mean())
print(f"fitted in {time.perf_counter() - start:.1f} s")
print(gpr.kernel_)
print(f"log marginal likelihood {gpr.log_marginal_likelihood_value_:.2f}")

# %%
# Extrapolation
# -------------
# Seasons go on as they were, the trend for as long as its length-scale says; the interval widens.
months = np.linspace(1958, 2026, 1000)[:, None]
mean, std = gpr.predict(months, return_std=True)

fig, ax = plt.subplots(figsize=(8, 4))
ax.plot(X, y, "k--", linewidth=0.8, label="monthly means")
ax.plot(months, mean + y.mean(), label="predicted mean")
low, high = (gpr.predict_interval(months) + y.mean()).T
ax.fill_between(months[:, 0], low, high, alpha=0.2, label="95 % interval")
ax.set(xlabel="year", ylabel="CO₂ (parts per million)", title="CO₂ at Mauna Loa")
ax.legend()
fig.tight_layout()

# %%
# More rows than a matrix takes
# -----------------------------
# The same goes on where one matrix does not fit: beyond ``max_exact`` rows the posterior is a sparse
# one of the same kernel, and says so. Of these 30,000 rows one matrix would take 7 GB. By default
# that is "solve"; "svgp" takes half as long.
rng = np.random.default_rng(0)
X_large = rng.uniform(-2, 2, (30_000, 2))
y_large = np.sin(3 * X_large[:, 0]) * X_large[:, 1] + 0.1 * rng.standard_normal(30_000)

start = time.perf_counter()
large = GaussianProcessRegressor(1.0 * RBF([1.0, 1.0]) + WhiteKernel(), method="svgp")
large.set_params(random_state=0).fit(X_large, y_large)
print(f"{large.method_} in {time.perf_counter() - start:.0f} s: {large.method_reason_}")
print(large.kernel_)
try:
    large.L_  # noqa: B018
except AttributeError as error:
    print(error)

plt.show()
