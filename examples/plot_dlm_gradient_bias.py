"""
=================================================
How biased is a sampled gradient of the log-loss?
=================================================

The log-loss of a row, :math:`-\\log \\mathrm{E}_{q(f)}\\, p(y \\mid f)`, is the logarithm of an
expectation. The logarithm of an average over draws of f is too small on average, and its gradient
is biased. Figure 9 of Wei, Sheth and Khardon, "Direct loss minimization for sparse Gaussian
processes" (2021), compares three estimates with the exact gradient: plain Monte Carlo (bMC), the
same with a jitter in the logarithm (smooth-bMC), and unbiased product sampling (uPS).
"""

# %%
# Counts, and a process before training
# -------------------------------------
# As in the paper, we take the gradients of the first step, where :math:`q` is the prior and many
# counts are far from its expectation. The 200 counts are simulated.

from __future__ import annotations

import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.gaussian_process.kernels import RBF

from skgpstoch.likelihoods import Poisson
from skgpstoch.likelihoods.sampled import monte_carlo_gradients, product_gradients
from skgpstoch.maths.gaussian import Marginals

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, (200, 1))
counts = rng.poisson(np.exp(2.0 + 1.5 * np.sin(2 * x)))
print(f"counts from {counts.min()} to {counts.max()}, {counts.mean():.1f} on average")

kernel, Z = RBF(1.0), np.linspace(-3, 3, 15)[:, None]
L = np.linalg.cholesky(kernel(Z) + 1e-8 * np.eye(15))
P = np.linalg.solve(L, kernel(Z, x)).T  # (200, 15)

likelihood = Poisson()
y = torch.as_tensor(counts, dtype=torch.float64)
ones = torch.ones(1, 200, 1, dtype=torch.float64)
q = Marginals(np.log(counts.mean()) * ones, ones)

# %%
# Three estimates of a gradient
# -----------------------------
# The gradient with respect to the mean of :math:`q(w)` is :math:`g = P^\top \alpha`, where
# :math:`\alpha_i` is the derivative of row i with respect to the mean of :math:`q(f_i)`. Each
# function below returns the values of the rows, their :math:`\alpha`, and the derivatives with
# respect to the variances. Copies of the rows give several estimates in one call.

n_copies, n_calls = 20, 15
copies = y.repeat(n_copies, 1), likelihood
q_copies = Marginals(*(a.repeat(1, n_copies, 1) for a in q))

start = time.perf_counter()
_, alpha, _ = likelihood.predictive_gradients(copies[0], q_copies)
milliseconds = 1000 * (time.perf_counter() - start) / n_copies
gradient = P.T @ alpha[:200, 0].numpy()  # (15,)
print(f"exact: {milliseconds:.1f} ms")


def estimates(method: str, n_draws: int) -> np.ndarray:
    """300 estimates of the gradient, (300, 15)."""
    generator = torch.Generator().manual_seed(0)
    jitter = 1e-4 if method == "smooth-bMC" else 0.0
    found = []
    for _ in range(n_calls):
        if method == "uPS":
            _, alpha, _ = product_gradients(*copies, q_copies, n_draws, generator)
        else:
            _, alpha, _ = monte_carlo_gradients(*copies, q_copies, n_draws, jitter, generator)
        found.append(alpha.numpy().reshape(n_copies, 200) @ P)
    return np.concatenate(found)


# %%
# By number of draws
# ------------------
# All columns are relative to the exact gradient. The first is the bias, :math:`\|\mathrm{E}\hat g -
# g\| / \|g\|`. The second is the noise of an average of 300 estimates; a bias below it is not
# visible. The third is the part of the gradient that is found, :math:`g^\top \mathrm{E}\hat g /
# \|g\|^2`, and the fourth the length of an estimate, :math:`\sqrt{\mathrm{E}\|\hat g\|^2} / \|g\|`.
# The last two should be 1. The time is for one gradient of 200 rows.

numbers_of_draws = [1, 3, 10, 30, 100]
methods = ["bMC", "smooth-bMC", "uPS"]
table = np.empty((3, 5, 5))
size = np.linalg.norm(gradient)
for i, method in enumerate(methods):
    for j, n_draws in enumerate(numbers_of_draws):
        start = time.perf_counter()
        g = estimates(method, n_draws)
        seconds = (time.perf_counter() - start) / len(g)
        mean = g.mean(0)
        table[i, j] = (
            np.linalg.norm(mean - gradient) / size,
            np.sqrt(g.var(0).sum() / len(g)) / size,
            mean @ gradient / size**2,
            np.sqrt(np.square(g).sum(1).mean()) / size,
            1000 * seconds,
        )

print(f"{'':<12}{'draws':>6}{'bias':>9}{'noise':>9}{'found':>9}{'length':>9}{'ms':>9}")
for method, rows in zip(methods, table, strict=True):
    for n_draws, row in zip(numbers_of_draws, rows, strict=True):
        print(f"{method:<12}{n_draws:6d}" + "".join(f"{value:9.4f}" for value in row))
draws = likelihood.product_samples(y, q, 100, torch.Generator().manual_seed(0))
print(f"uPS accepts {draws.acceptance_rate:.0%} of its proposals")

# %%
# bMC points in the right direction and is far too long. With one draw its expectation is the
# gradient of :math:`\mathrm{E}_q \log p(y \mid f)`, which the ELBO has. It needs a hundred draws to
# come within a few per cent. The jitter shortens gradients that are far too long, and does little
# else. uPS has no visible bias even with a single draw, but a draw takes as long as dozens of
# bMC's.
#
# In practice you need none of them: ``gradient="exact"``, the default of
# :class:`~skgpstoch.LogLoss`, integrates over f numerically, without bias or noise, in the time of
# about one draw of uPS.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
titles = ["bias", "part that is found", "length"]
for ax, column, title in zip(axes, (0, 2, 3), titles, strict=True):
    for i, method in enumerate(methods):
        ax.plot(numbers_of_draws, table[i, :, column], "o-", color=f"C{i}", label=method)
        if column == 0:
            ax.plot(numbers_of_draws, table[i, :, 1], ":", color=f"C{i}")
    if column:
        ax.axhline(1, color="0.4", linestyle="--", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="draws", title=title)
axes[0].legend(title="dotted: noise")
plt.show()
