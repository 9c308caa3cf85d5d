"""
=======================================
Carbon dioxide, with one import changed
=======================================

scikit-learn's gallery forecasts the carbon dioxide at Mauna Loa with a Gaussian process. Its kernel
has a term for the trend, one for the season, one for irregularities of a few years, and one for
noise. This is the same example with our :class:`~skgpstoch.GaussianProcessRegressor`. See
:ref:`coming_from_sklearn`.
"""

# %%
# Monthly means
# -------------
# The weekly averages from 1958 to 2001 come with statsmodels. As in the original, the value of a
# month is the mean of its weeks, and months without data are left out.

from __future__ import annotations

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, RationalQuadratic, WhiteKernel
from statsmodels.datasets import co2

from skgpstoch import GaussianProcessRegressor  # was: from sklearn.gaussian_process

weekly = co2.load_pandas().data["co2"]
monthly = weekly.resample("MS").mean().dropna()
X = (monthly.index.year + monthly.index.month / 12).to_numpy().reshape(-1, 1)
y = monthly.to_numpy()
y_mean = y.mean()
print(f"{weekly.isna().sum()} of {len(weekly)} weeks are missing; {len(y)} months remain")

# %%
# The kernel
# ----------
# scikit-learn's kernels describe a smooth trend, a season of one year that may change slowly,
# irregularities, and noise that is partly correlated.

trend = 50.0**2 * RBF(length_scale=50.0)
season = (
    2.0**2
    * RBF(length_scale=100.0)
    * ExpSineSquared(length_scale=1.0, periodicity=1.0, periodicity_bounds="fixed")
)
irregular = 0.5**2 * RationalQuadratic(length_scale=1.0, alpha=1.0)
noise = 0.1**2 * RBF(length_scale=0.1) + WhiteKernel(
    noise_level=0.1**2, noise_level_bounds=(1e-5, 1e5)
)
kernel = trend + season + irregular + noise

# %%
# Fit
# ---
# The model and the maximised likelihood are the same as scikit-learn's, and so is ``kernel_``. The
# standard deviation of predictions includes the ``WhiteKernel``.

start = time.perf_counter()
model = GaussianProcessRegressor(kernel=kernel, normalize_y=False)
model.fit(X, y - y_mean)
print(f"fitted in {time.perf_counter() - start:.1f} s: {model.method_} ({model.method_reason_})")
print(model.kernel_)
print(f"log marginal likelihood {model.log_marginal_likelihood_value_:.2f} nats")

# %%
# Forecast to 2026
# ----------------

X_test = np.linspace(start=1958, stop=2026, num=1_000).reshape(-1, 1)
start = time.perf_counter()
mean, std = model.predict(X_test, return_std=True)
mean = mean + y_mean
print(f"predicted {len(X_test)} times in {1e3 * (time.perf_counter() - start):.0f} ms")
print(f"in 2026: {mean[-1]:.0f} ± {std[-1]:.0f} ppm")

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.plot(X, y, color="black", linestyle="dashed", label="measured")
ax.plot(X_test, mean, color="C0", alpha=0.6, label="predicted")
ax.fill_between(X_test[:, 0], mean - std, mean + std, color="C0", alpha=0.2)
ax.set(xlabel="year", ylabel="monthly mean of CO₂ (ppm)", title="Mauna Loa; the band is one std")
ax.legend()

# %%
# More rows than one matrix should hold
# -------------------------------------
# Above ``max_exact`` rows (5,000 by default), the same call predicts each row from its nearest
# rows or, if far rows matter, as under this kernel, from inducing points. To see this with the
# months of twenty years, we lower ``max_exact``. Then ``log_marginal_likelihood_value_`` is a
# lower bound; the forecast differs little. Here the correlated noise explains everything, so
# the level of ``WhiteKernel`` ends at its lower bound. scikit-learn would warn of this, too.

recent = slice(-240, None)
for max_exact in (5000, 200):
    model = GaussianProcessRegressor(kernel=kernel, max_exact=max_exact, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* k2__k2__noise_level is close to", ConvergenceWarning)
        model.fit(X[recent], y[recent] - y_mean)
    seconds = time.perf_counter() - start
    mean, std = model.predict([[2004.0]], return_std=True)
    evidence = model.log_marginal_likelihood_value_
    forecast = f"2004: {mean[0] + y_mean:.2f} ± {std[0]:.2f} ppm"
    print(f"{model.method_:<6}{seconds:5.1f} s {evidence:8.2f} nats   {forecast}")
print(model.method_reason_)
plt.show()

# %%
# Twenty thousand rows need no parameter; ``method_`` is then "nngp":
#
# .. code-block:: python
#
#     rng = np.random.default_rng(0)
#     X_many = rng.uniform(0, 40, (20_000, 1))
#     y_many = np.sin(X_many[:, 0]) + 0.1 * rng.standard_normal(20_000)
#     many = GaussianProcessRegressor(RBF() + WhiteKernel()).fit(X_many, y_many)
