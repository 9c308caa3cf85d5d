"""
=======================================
Odd or even, by 10,000 Fourier features
=======================================

We repeat the classification of Evans and Nair, "Quadruply stochastic Gaussian processes" (2020), on
scikit-learn's small digits. A growing number of random features approximates one and the same
kernel.
"""

# %%
# Data and kernel
# ---------------
# Images have 8 × 8 pixels, between 0 and 1. The first model learns the kernel by an exact process
# on a thousand rows, with targets of −1 and 1. The others use this kernel.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

from skgpstoch import QSGPClassifier, SVGPClassifier

X, digit = load_digits(return_X_y=True)
X = X / 16.0
X_train, X_test, y_train, y_test = train_test_split(X, digit % 2, stratify=digit, random_state=0)
kernel = ConstantKernel(10.0) * RBF(2.0)
common = {"n_dense": 100, "basis_batch_size": 256, "max_iter": 10, "random_state": 0}
numbers = [300, 1000, 3000, 10_000]
models = {numbers[0]: QSGPClassifier(kernel, n_components=numbers[0], **common)}
found = models[numbers[0]].fit(X_train, y_train).kernel_
for m in numbers[1:]:
    models[m] = QSGPClassifier(found, n_components=m, n_subset=0, **common).fit(X_train, y_train)
print(found)

# %%
# Held-out digits
# ---------------
# For comparison, a sparse process learns its kernel and a hundred inducing images. The last column
# is the root mean square of the latent standard deviation, relative to the prior's.

sparse = SVGPClassifier(kernel, n_inducing=100, learning_rate_init=0.2, max_iter=60, random_state=0)
sparse.fit(X_train, y_train)
table = {f"{m:,} features": model for m, model in models.items()} | {"SVGP, 100": sparse}
scores = {}
print(f"{'':<16}{'accuracy':>10}{'NLPD':>9}{'std/prior':>12}")
for name, model in table.items():
    probability = model.predict_proba(X_test)
    accuracy = accuracy_score(y_test, probability[:, 1] > 0.5)
    _, var = model.latent_mean_and_variance(X_test)
    share = np.sqrt(var.mean() / model.kernel_.diag(X_test)[0])
    scores[name] = log_loss(y_test, probability), share
    print(f"{name:<16}{accuracy:10.3f}{scores[name][0]:9.4f}{share:12.2f}")

# %%
# What more features do
# ---------------------
# Three hundred features approximate the kernel poorly; more features give a better density. With
# 10,000 features, the latent variance is nearly the prior's. There are two reasons: the kernel is
# narrow, so an image says little about another, and the covariance is diagonal except for a hundred
# columns.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for ax, which in ((left, 0), (right, 1)):
    values = [score[which] for score in scores.values()]
    ax.semilogx(numbers, values[:-1], "o-", label="QSGPClassifier")
    ax.axhline(values[-1], color="0.2", linestyle="--", linewidth=1, label="SVGPClassifier")
    ax.set_xlabel("Fourier features")
left.set_ylabel("NLPD (nats per row)")
right.set(ylabel="latent std / prior's", ylim=(0, 1.05))
left.legend()
plt.show()
