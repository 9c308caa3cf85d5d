"""
===================================================
A scikit-learn kernel on ten thousand rows and more
===================================================

``hidden_layer_sizes=()`` puts the kernel on the inputs themselves. You pass a scikit-learn kernel,
and ``kernel_`` is the fitted one. Random Fourier features approximate it, so the time of a step
does not depend on the number of rows.
"""

# %%
# Five relevant inputs and five irrelevant ones
# ---------------------------------------------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split

from skgpstoch import SCGDGaussianProcessRegressor

X, y = make_friedman1(15_000, n_features=10, noise=1.0, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)

# %%
# Fit
# ---
# The kernel has one length-scale per input. The top-level ``WhiteKernel`` is the noise.

kernel = ConstantKernel() * RBF(length_scale=np.ones(10)) + WhiteKernel()
model = SCGDGaussianProcessRegressor(
    kernel=kernel, hidden_layer_sizes=(), n_components=200, max_iter=20, random_state=0
)
model.fit(X_train, y_train)
print(model.kernel_)
print(f"R² {model.score(X_test, y_test):.3f}; with this noise, at best {1 - 1 / y.var():.3f}")
print(f"noise variance {model.noise_variance_:.2f}; the true one is 1.00")

# %%
# Relevance
# ---------
# An input with a long length-scale has little effect.

parameters = model.kernel_.get_params()
length_scale = next(parameters[name] for name in parameters if name.endswith("__length_scale"))
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.bar(np.arange(10), 1 / length_scale)
ax.set(xlabel="input", ylabel="1 / length-scale", xticks=np.arange(10))
plt.show()
