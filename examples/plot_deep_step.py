"""
=================================
A deep Gaussian process at a step
=================================

A stationary kernel has one length-scale. A step needs two: a long one on either side, and a very
short one at the step. In a deep Gaussian process, other Gaussian processes learn the inputs of the
last kernel, and can stretch them where necessary.
"""

# %%
# A step at 0
# -----------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import root_mean_squared_error

from skgpstoch import DeepGPRegressor, SVGPRegressor

rng = np.random.default_rng(0)


def measure(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows at random places, with noise of standard deviation 0.05."""
    x = rng.uniform(-1, 1, n_rows)
    return x[:, None], (x > 0) + 0.05 * rng.standard_normal(n_rows)


X_train, y_train = measure(150)
X_test, y_test = measure(1000)

# %%
# One layer, two and three
# ------------------------
# All layers have RBF kernels. For one layer we also try a rougher kernel, the default Matérn. With
# few rows, twenty draws of the hidden layers in each step cost little more than one, and training
# finds a good optimum more reliably.

kernel = ConstantKernel(1.0) * RBF(0.5)
deep = {"n_inducing": 20, "n_samples": 20, "max_iter": 500, "random_state": 0}
models = {
    "one layer": SVGPRegressor(kernel, n_inducing=50, random_state=0),
    "one layer, Matérn": SVGPRegressor(n_inducing=50, random_state=0),
    "two layers": DeepGPRegressor(kernel, n_layers=2, **deep),
    "three layers": DeepGPRegressor(kernel, n_layers=3, **deep),
}
for model in models.values():
    model.fit(X_train, y_train)

# %%
# Bound and density
# -----------------
# The table has the bound on the log marginal likelihood, in nats, and the learned standard
# deviation of the noise. Then follows the negative log predictive density (NLPD, nats per row) of a
# thousand held-out rows: of all, of those within 0.1 of the step, and of the others. The last
# column is the error of the mean on the others.
#
# Two layers gain fifty to sixty nats, and three layers a few more. They find the true noise. One
# layer overestimates the noise by half, because it treats what it cannot fit as noise. Near the
# step all losses are large; that of three layers is the smallest.
#
# The kernels below show why. One layer has a single length-scale, 0.09, although the function is
# flat on either side of the step.

is_near = np.abs(X_test[:, 0]) < 0.1
X_far = X_test[~is_near]
print(f"{'':<19}{'bound':>7}{'noise':>8}{'NLPD':>8}{'near':>8}{'far':>8}{'RMSE far':>10}")
for name, model in models.items():
    bound, noise = model.log_marginal_likelihood_value_, np.sqrt(model.noise_variance_)
    nlpd = -model.log_predictive_density(X_test, y_test)
    error = root_mean_squared_error(X_far[:, 0] > 0, model.predict(X_far, latent=True))
    print(f"{name:<19}{bound:7.1f}{noise:8.3f}{nlpd.mean():8.3f}", end="")
    print(f"{nlpd[is_near].mean():8.3f}{nlpd[~is_near].mean():8.3f}{error:10.4f}")
for name, model in models.items():
    layers = getattr(model, "layers_", [{"kernel": model.kernel_}])
    print(f"{name}: " + "; ".join(str(layer["kernel"]) for layer in layers))

# %%
# Means, intervals and draws
# --------------------------
# Top: the mean and the 95 % interval for new measurements. Bottom: ten joint draws of the function,
# close to the step.
#
# One layer needs more than a tenth of a unit to rise. It overshoots and ripples on both sides,
# because its length-scale is short everywhere. Two layers rise within 0.04 and are flat far from
# the step. Just left of the step they follow a few rows that happen to be high and then low. With
# three layers, the rise fills only the gap between the last row on the left and the first on the
# right.
#
# The step could be anywhere in this gap. Yet all draws have it in nearly the same place, and none
# is as steep as the truth. Variational posteriors settle on one explanation. So the model is too
# certain about the place of the step, as the NLPD near it shows.

x = np.linspace(-1, 1, 401)[:, None]
close = np.linspace(-0.1, 0.15, 251)[:, None]
figure, axes = plt.subplots(2, 4, figsize=(12, 6), sharex="row", sharey=True, layout="constrained")
for (top, bottom), (name, model) in zip(axes.T, models.items(), strict=True):
    low, high = model.predict_interval(x, coverage=0.95).T
    top.plot(x, model.predict(x), color="C0", linewidth=1)
    top.fill_between(x[:, 0], low, high, color="C0", alpha=0.2)
    bottom.plot(close, model.sample_y(close, 10, latent=True), color="C0", linewidth=0.6)
    for ax in (top, bottom):
        ax.plot(X_train, y_train, ".", color="0.4", markersize=3)
    top.set(title=name, xlim=(-1, 1))
    bottom.set(xlabel="x", xlim=(-0.1, 0.15))
plt.show()

# %%
# What the layers do
# ------------------
# Green: the mean of every hidden layer, with two standard deviations. Layers start from the
# standardised x (dashed). Blue: the mean of the function against the mean of the layer below it,
# with a dot for every 0.005 of x.
#
# The layer below the last has become a soft step itself. It stretches the neighbourhood of 0, so
# the last layer need not be steep: its length-scale is 0.4 or 0.7 on inputs from -1.5 to 1.2. It
# also maps each side to nearly one place. Its uncertainty there does not matter, because the last
# layer is flat. With three layers, the first does little: it stretches the neighbourhood of 0, so
# that the second can be sharper.

figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
for row, name in zip(axes, ("two layers", "three layers"), strict=True):
    hidden = models[name].hidden(x)
    before = (x - X_train.mean()) / X_train.std()
    for i, (ax, (mean, std)) in enumerate(zip(row, hidden, strict=False), 1):
        ax.plot(x, before, color="0.5", linestyle="--", linewidth=0.8)
        ax.plot(x, mean, color="C2")
        ax.fill_between(x[:, 0], *(mean + [-2, 2] * std).T, color="C2", alpha=0.2)
        ax.set(title=f"{name}: layer {i}", xlabel="x")
    row[-1].plot(hidden[-1][0], models[name].predict(x, latent=True), ".-", color="C0", ms=3, lw=1)
    row[-1].set(title=f"{name}: the last", xlabel="mean of the layer below")
axes[0, 1].set_axis_off()
plt.show()
