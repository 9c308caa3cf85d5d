"""
=========================================================
A deep kernel finds the plane in which the classes differ
=========================================================

Two spirals lie in a plane of a ten-dimensional space, oblique to all ten inputs. The directions
orthogonal to the plane are noise. Length-scales can stretch the inputs, but cannot rotate them. A
network in front of the kernel can.
"""

# %%
# Spirals in an unknown plane
# ---------------------------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import accuracy_score, log_loss

from skgpstoch import SVGPClassifier

rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))


def spirals(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n_rows, 10), the arm of each row, and its place in the plane (n_rows, 2)."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(2, size=n_rows)
    radius = np.sqrt(rng.uniform(0.03, 1, n_rows))
    angle = 2 * np.pi * radius + np.pi * arm
    plane = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    plane += 0.04 * rng.standard_normal((n_rows, 2))
    noise = 0.5 * rng.standard_normal((n_rows, 8))
    return np.hstack([plane, noise]) @ rotation, arm, plane


X_train, y_train, _ = spirals(2000, seed=1)
X_test, y_test, plane_test = spirals(1000, seed=2)

# %%
# Fit
# ---
# Both models have a Matérn-3/2 kernel. It has a length-scale for each of the ten inputs, or for
# each of the network's 64 outputs. With a network, held-out rows decide which iterate to keep.

models = {
    "kernel on the inputs": SVGPClassifier(n_inducing=100, random_state=0),
    "kernel on a network": SVGPClassifier(
        n_inducing=100, hidden_layer_sizes=(64, 64), random_state=0
    ),
}
for name, model in models.items():
    model.fit(X_train, y_train)
    accuracy = accuracy_score(y_test, model.predict(X_test))
    loss = log_loss(y_test, model.predict_proba(X_test))
    print(f"{name:<22} accuracy {accuracy:.3f}, log-loss {loss:.3f} nats")

# %%
# Probabilities in the plane
# --------------------------
# The map shows probabilities where the eight other coordinates are zero. Points are held-out rows,
# projected onto the plane, in the colours of their probabilities. On the left, many points differ
# in colour from the map, because the kernel on the inputs also depends on the other coordinates.

side = np.linspace(-1.3, 1.3, 131)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    probability = model.predict_proba(grid @ rotation[:2])[:, 1].reshape(len(side), -1)
    image = ax.pcolormesh(side, side, probability, cmap="coolwarm", vmin=0, vmax=1, alpha=0.6)
    shown = {"cmap": "coolwarm", "vmin": 0, "vmax": 1, "s": 8, "edgecolors": "k", "linewidths": 0.3}
    ax.scatter(*plane_test.T, c=model.predict_proba(X_test)[:, 1], **shown)
    ax.set(title=name, aspect="equal", xlabel="first direction of the plane", ylabel="second")
figure.colorbar(image, ax=axes, label="probability of the second arm")
plt.show()
