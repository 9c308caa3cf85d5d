"""
===================================================
A scikit-learn kernel on ten thousand rows and more
===================================================

``hidden_layer_sizes=()`` puts the kernel on the inputs themselves. You pass a scikit-learn kernel
and get it back fitted. Random Fourier features approximate it, so the time of a step does not
depend on the number of rows.
"""

# %%
# Five relevant inputs and five that are noise
# --------------------------------------------

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
# The kernel has one length-scale per input; the top-level ``WhiteKernel`` is the noise of the
# observations.

kernel = ConstantKernel() * RBF(length_scale=np.ones(10)) + WhiteKernel()
model = SCGDGaussianProcessRegressor(
    kernel=kernel, hidden_layer_sizes=(), n_components=200, max_iter=20, random_state=0
)
model.fit(X_train, y_train)
print(model.kernel_)
print(f"R² {model.score(X_test, y_test):.3f}, at best {1 - 1 / y.var():.3f} under this noise")
print(f"noise variance {model.noise_variance_:.2f} (1.00 was drawn)")

# %%
# Relevance
# ---------
# A long length-scale means that the input does not matter.

parameters = model.kernel_.get_params()
length_scale = next(parameters[name] for name in parameters if name.endswith("__length_scale"))
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.bar(np.arange(10), 1 / length_scale)
ax.set(xlabel="input", ylabel="1 / length-scale", xticks=np.arange(10))
plt.show()
