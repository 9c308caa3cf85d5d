"""
=======================================================
Carbon dioxide: length-scales chosen by forecast errors
=======================================================

The carbon dioxide at Mauna Loa has a trend and a season. We use one kernel for each, and neither is
quite right. :class:`~skgpstoch.ADMMGaussianProcessRegressor` chooses length-scales by the error of
held-out years. Which years are held out makes all the difference. See :ref:`cross_validation`.
"""

# %%
# Forty-three years
# -----------------
# Weekly averages come with statsmodels; the value of a month is the mean of its weeks. We test on
# the last seven years.

from __future__ import annotations

import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, WhiteKernel
from statsmodels.datasets import co2

from skgpstoch import ADMMGaussianProcessRegressor, GaussianProcessRegressor
from skgpstoch.display import ADMMConvergenceDisplay

monthly = co2.load_pandas().data["co2"].resample("MS").mean().dropna()
X = (monthly.index.year + (monthly.index.month - 0.5) / 12).to_numpy().reshape(-1, 1)
y = monthly.to_numpy()
is_test = X[:, 0] >= 1995
X_train, X_test, y_train, y_test = X[~is_test], X[is_test], y[~is_test], y[is_test]

kernel = (
    1.0 * RBF(50.0, (1.0, 1e4))
    + 1.0 * ExpSineSquared(1.0, 1.0, periodicity_bounds=(0.5, 2.0)) * RBF(50.0, (1.0, 1e4))
    + WhiteKernel(1e-3, (1e-8, 1.0))
)

# %%
# Three ways to choose
# --------------------
# We choose length-scales by the marginal likelihood, by the error of random months, or by the error
# of the seven years before the test, given all earlier years. The first two judge how well a model
# fills gaps; only the last judges a forecast.

years = X_train[:, 0]
before, after = np.flatnonzero(years < 1988), np.flatnonzero(years >= 1988)
models = {
    "marginal likelihood": GaussianProcessRegressor(kernel, normalize_y=True),
    "rows at random": ADMMGaussianProcessRegressor(kernel, cv=2, random_state=0),
    "the last years": ADMMGaussianProcessRegressor(
        kernel, cv=[(before, after)], scheme="holdout", random_state=0
    ),
}
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.plot(X, y, color="black", linewidth=0.8, label="measured")
ax.axvline(1995.0, color="0.7")
for name, model in models.items():
    start = time.perf_counter()
    with warnings.catch_warnings():
        # A length-scale may be at its bound, and for forecasts short waves may be noise.
        warnings.simplefilter("ignore")
        model.fit(X_train, y_train)
    seconds = time.perf_counter() - start
    mean = model.predict(X_test)
    error = np.sqrt(np.mean((mean - y_test) ** 2))
    print(f"{name:<20} RMSE {error:6.2f} ppm  {seconds:5.1f} s  {model.kernel_}")
    ax.plot(X_test, mean, label=f"{name}: RMSE {error:.1f} ppm")
ax.set(xlim=(1980, 2002), ylim=(330, 380), xlabel="year", ylabel="CO₂ (ppm)")
ax.legend(loc="upper left")

# %%
# Convergence
# -----------
# The figure shows a length-scale, the weights, the violation of the constraint and the augmented
# Lagrangian after each iteration.

ADMMConvergenceDisplay.from_estimator(models["the last years"], parameter=1)
plt.show()
