"""
==============================================
Handwritten digits, and which of them to check
==============================================

This Gaussian process classifies ten digits. Its probabilities average over the uncertainty of the
latent functions, so they tell which digits a person should check.
"""

# %%
# Fit
# ---
# Images have 8 × 8 pixels, between 0 and 1. All pixels have one length-scale, and the ten latent
# functions share a hundred inducing images.

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

from skgpstoch import SVGPClassifier

X, y = load_digits(return_X_y=True)
X = X / 16.0
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
kernel = ConstantKernel(10.0) * RBF(2.0)
model = SVGPClassifier(kernel, n_inducing=100, learning_rate_init=0.2, max_iter=60, random_state=0)
model.fit(X_train, y_train)
print(model.kernel_)

# %%
# Scores
# ------

linear = LogisticRegression(max_iter=1000).fit(X_train, y_train)
probability = model.predict_proba(X_test)  # (450, 10)
scored = {"SVGPClassifier": probability, "LogisticRegression": linear.predict_proba(X_test)}
print(f"{'':<22}{'accuracy':>10}{'log-loss (nats)':>17}")
for name, p in scored.items():
    accuracy = accuracy_score(y_test, model.classes_[p.argmax(1)])
    print(f"{name:<22}{accuracy:10.3f}{log_loss(y_test, p):17.3f}")

# %%
# Uncertain digits
# ----------------
# If we sort the held-out digits by their largest probability, the errors are among the first. The
# mean of the largest probability is below the accuracy, so the model is too cautious.

confidence = probability.max(1)
doubtful = np.argsort(confidence)
wrong = model.classes_[probability.argmax(1)] != y_test
print(f"mean of the largest probability: {confidence.mean():.3f}")
print(f"{wrong.sum()} errors in {len(y_test)} digits,", end=" ")
print(f"{wrong[doubtful[:22]].sum()} of them among the 22 (5 %) least certain")

figure, axes = plt.subplots(2, 6, figsize=(9, 3.6), layout="constrained")
for ax, i in zip(axes.flat, doubtful, strict=False):
    ax.imshow(X_test[i].reshape(8, 8), cmap="gray_r")
    best, second = np.argsort(probability[i])[:-3:-1]
    ax.set_title(
        f"{best}: {probability[i, best]:.0%}, {second}: {probability[i, second]:.0%}\n"
        f"is {y_test[i]}",
        fontsize=8,
        color="C3" if wrong[i] else "0.2",
    )
    ax.set_axis_off()
plt.show()
