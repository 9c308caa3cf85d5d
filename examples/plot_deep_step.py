"""
==================================
A step, and a process of a process
==================================

A stationary kernel has one length-scale. A step wants two: a long one on either side of it, and a
very short one at it. A deep Gaussian process learns the inputs of its last kernel, by Gaussian
processes, and can stretch them where it has to.
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
# All layers have RBF kernels; for one layer a rougher one is tried too, the Matérn kernel that is
# the default. With few rows, twenty draws of the hidden layers in each step cost little more than
# one, and training finds good optima more reliably.

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
# The bound on the log marginal likelihood, in nats; the learned standard deviation of the noise;
# the negative log predictive density (NLPD, nats per row) of a thousand rows held out: of all, of
# those within 0.1 of the step, and of the others; and the error of the mean there.
#
# Two layers gain fifty to sixty nats, and three a few more. They find the noise, where one layer
# has it half as large again: what it cannot fit is noise to it. Near the step all of them pay,
# three layers least.
#
# The kernels below tell why: the only length-scale of one layer is 0.09, though on either side of
# the step the function is flat.

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
# Above, the mean and the interval of 95 % for new measurements; below, ten joint draws of the
# function, close to the step.
#
# One layer needs more than a tenth of a unit for its rise, overshoots, and ripples on both sides
# because its length-scale is short everywhere. Two layers rise within 0.04 and are flat far from
# the step, but swing on its left, after a few rows that happen to be high and then low. With three
# layers the rise fills the gap between the last row of the left and the first of the right, and no
# more.
#
# Anywhere in that gap the step could be; yet all draws have it in nearly the same place, and none
# is as steep as the truth. Variational posteriors settle for one explanation: of where the step
# is, this one is too sure, and the NLPD close to it shows it.

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
# Green: the mean of every hidden layer and two standard deviations; dashed is the standardised x,
# which is what they start from. Blue: the mean of the function against
# that of the layer below it, with a dot for every 0.005 of x.
#
# The layer below the last has become a step itself, a soft one. It takes the neighbourhood of 0
# apart, so that the last layer, with a length-scale of 0.4 or 0.7 on inputs that go from -1.5 to
# 1.2, needs not be steep; and it folds each side onto nearly one place. How uncertain it is there
# does not matter, since the last layer is flat. Of three layers the first does little: it widens
# the neighbourhood of 0 already, and the second can be the sharper.

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
