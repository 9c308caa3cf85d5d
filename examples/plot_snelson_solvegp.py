"""
=================================================
Five inducing points, and five orthogonal to them
=================================================

This is figure 2 of Shi, Titsias and Mnih, "Sparse Orthogonal Variational Inference for Gaussian
Processes" (2020): four sparse approximations to a Gaussian process. The one-dimensional data are
from Snelson and Ghahramani ("Sparse Gaussian Processes using Pseudo-inputs", 2006).
"""

# %%
# A hundred of the two hundred rows
# ---------------------------------
# ``snelson.csv``, beside this script, is the training set of Snelson's SPGP code.

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import SolveGPRegressor, SVGPRegressor

here = Path(__file__).parent if "__file__" in globals() else Path()  # of a script, of a notebook
data = np.loadtxt(here / "snelson.csv", delimiter=",", skiprows=1)
x_train, y_train = data[np.random.default_rng(0).permutation(len(data))[:100]].T

# %%
# Four approximations
# -------------------
# As in the paper, the kernel starts from length-scale 1 and variance 1, and the noise from 0.1.
# L-BFGS maximises the bound over all hundred rows; the paper took 10,000 steps of 20 rows. ODVGP
# has a hundred more points for the mean, but none for the variance. With so few points, the bound
# has several maxima, so ``n_restarts=5`` makes six starts and keeps the best result.

kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
common = {"mean": "zero", "normalize_y": False, "n_restarts": 5, "random_state": 0}
models = {
    "SVGP, 5": SVGPRegressor(kernel, n_inducing=5, **common),
    "ODVGP, 5 + 100": SolveGPRegressor(
        kernel, n_inducing=5, n_orthogonal=100, posterior="odvgp", **common
    ),
    "SOLVE-GP, 5 + 5": SolveGPRegressor(kernel, n_inducing=5, n_orthogonal=5, **common),
    "SVGP, 10": SVGPRegressor(kernel, n_inducing=10, **common),
}
for model in models.values():
    model.fit(x_train[:, None], y_train)

# %%
# Bounds
# ------
# Each bound is a lower bound on the log marginal likelihood of the exact process. scikit-learn fits
# that process.

exact = GaussianProcessRegressor(kernel).fit(x_train[:, None], y_train)
x = np.linspace(-2, 8, 401)[:, None]
exact_mean, exact_std = exact.predict(x, return_std=True)  # of y: the kernel has the noise

print(f"{'':<16}{'bound (nats)':>13}{'noise variance':>16}{'std at x = 3':>14}")
for name, model in models.items():
    bound, std = model.log_marginal_likelihood_value_, model.predict_std([[3.0]])[0]
    print(f"{name:<16}{bound:13.2f}{model.noise_variance_:16.3f}{std:14.3f}")
value, noise = exact.log_marginal_likelihood_value_, exact.kernel_.k2.noise_level
print(f"{'exact':<16}{value:13.2f}{noise:16.3f}")

# %%
# Posterior processes
# -------------------
# Bands are ±3 standard deviations of y, dashed for the exact process. At the bottom are the learned
# inducing points: + for Z and triangles for O.

figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
    mean, std = model.predict(x, return_std=True)
    ax.plot(x_train, y_train, ".", color="0.6", markersize=3)
    ax.plot(x, mean, color="C0")
    ax.fill_between(x[:, 0], mean - 3 * std, mean + 3 * std, color="C0", alpha=0.2)
    for sign in (-3, 0, 3):
        ax.plot(x, exact_mean + sign * exact_std, color="0.3", linestyle="--", linewidth=0.7)
    ax.plot(model.inducing_points_, np.full(len(model.inducing_points_), -3.6), "k+")
    if isinstance(model, SolveGPRegressor):
        points = model.orthogonal_points_
        ax.plot(points, np.full(len(points), -3.9), "^", color="C0", markersize=4)
    ax.set(title=f"{name}: {model.log_marginal_likelihood_value_:.1f} nats", ylim=(-4.2, 3))
plt.show()
