"""
=================================================
ADMM: the error of the length-scale, by iteration
=================================================

Xu, Yin, Zhang, Luo and Cui, "A general O(n²) hyper-parameter optimization for Gaussian process
regression with cross-validation and non-linearly constrained ADMM" (2019), choose hyper-parameters
by the error of held-out rows. The first figure compares three searches for a length-scale. The
second shows results of ``python -m benchmarks.papers gpcv``.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import ADMMGaussianProcessRegressor
from skgpstoch.methods.gpcv.coordinates import coordinate_step
from skgpstoch.methods.gpcv.fold_loss import Fold, FoldLoss

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()  # of a notebook
results = here.parent / "benchmarks" / "results" / "papers"

# %%
# A hold-out
# ----------
# We draw 300 rows from a process with length-scale 0.5 and known noise variance 0.1. Half of the
# rows are held out, and judge predictions from the other half. The length-scale with the smallest
# squared error is not the true one, because 300 rows leave it uncertain.

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (300, 1))
L = np.linalg.cholesky(RBF(0.5)(X) + 1e-8 * np.eye(300))
y = L @ rng.standard_normal(300) + np.sqrt(0.1) * rng.standard_normal(300)
fold = Fold(torch.from_numpy(X), torch.from_numpy(y)[:, None], torch.ones(300, 1).double(), 150)
STEPS = 25
FLAT = 0.01  # slope of the Lagrangian that counts as none; it is about 20


def problem_at(log_l: float) -> FoldLoss:
    """The squared error of held-out rows, at a length-scale."""
    return FoldLoss(fold, torch.tensor([log_l]).double(), RBF(), 0.1, False, True)


def squared_error(log_l: float) -> float:
    """The same, at the weights that satisfy the constraint."""
    problem = problem_at(log_l)
    return float(problem.lagrangian(*problem.consistent(), 0.0).loss)


best = float(np.exp(minimize_scalar(squared_error, bounds=np.log([0.2, 2.0])).x))
print(f"best length-scale: {best:.4f}")

# %%
# Algorithm 1 as published
# ------------------------
# The paper starts with multipliers of 1 and with the weights of another length-scale, here 1.5
# times the start, and has ρ = 5. Each iteration moves the length-scale until the Lagrangian has no
# slope, then finds the best weights, then updates the multipliers.


def published(length_scale: float, rho: float = 5.0) -> list[float]:
    """Length-scales by iteration."""
    theta, found = torch.tensor([np.log(length_scale)]).double(), [length_scale]
    z, _ = problem_at(np.log(1.5 * length_scale)).consistent()
    dual = torch.ones_like(z)
    bounds = torch.tensor([[1e-5, 1e5]]).double().log()
    for _ in range(STEPS):

        def evaluate(theta, with_slope, z=z, dual=dual):
            problem = problem_at(float(theta))
            at = problem.lagrangian(z, dual, rho)
            return at.value / FLAT, problem.gradient(z, at.slope) / FLAT

        theta = coordinate_step(evaluate, theta, bounds)
        problem = problem_at(float(theta))
        z = problem.best_weights(dual, rho, z)
        dual = dual + rho * problem.lagrangian(z, dual, rho).residual
        found.append(float(theta.exp()))
    return found


# %%
# Three searches
# --------------
# The published algorithm jumps to the length-scale of its first weights, and then moves slowly. Our
# ``solver="coordinate"`` is the same algorithm with a larger ρ, with consistent weights, and with
# longer steps, by secants. ``solver="joint"``, the default, moves the length-scale and the weights
# at once.


def ours(solver: str, length_scale: float) -> list[float]:
    """Length-scales by iteration."""
    model = ADMMGaussianProcessRegressor(
        RBF(length_scale) + WhiteKernel(0.1, "fixed"),
        cv=[(np.arange(150), np.arange(150, 300))],
        solver=solver,
        scheme="holdout",
        learn_noise=False,
        normalize_y=False,
        tol=1e-4,
        random_state=0,
    ).fit(X, y)
    return [length_scale, *np.exp(model.history_["theta"][:, 0, 0])]


searches = {
    "as published": (published, ":"),
    'solver="coordinate"': (lambda start: ours("coordinate", start), "o-"),
    'solver="joint"': (lambda start: ours("joint", start), "x--"),
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for color, start in zip(("C0", "C1", "C2"), (0.25, 1.0, 2.0), strict=True):
    for name, (search, style) in searches.items():
        found = np.array(search(start))
        label = f"{name}, from {start}"
        print(f"{label}: length-scale {found[-1]:.3f} after {len(found) - 1} iterations")
        axes[0].plot(found, style, color=color, markersize=4)
        axes[1].semilogy(abs(found / best - 1), style, color=color, markersize=4, label=label)
axes[0].axhline(best, color="0.6", linewidth=0.8)
axes[0].set(xlabel="iteration", ylabel="length-scale")
axes[1].set(xlabel="iteration", ylabel="relative error, best = 0", ylim=(1e-6, 10))
figure.legend(*axes[1].get_legend_handles_labels(), fontsize="small", loc="outside right upper")

# %%
# Table 1
# -------
# There are twenty draws from each of three processes. The error of test rows is divided by the
# printed one: by GPCV-ADMM's for the first three methods, and by GPML's for the likelihood. Seconds
# are the median over fits. The likelihood uses more information than a squared error, and is the
# fastest here. Cross-validation needs only matrix products, so it can take more rows than a
# factorisation.

with (results / "gpcv_1.csv").open(newline="") as file:
    cells = list(csv.DictReader(file))
methods = sorted({cell["method"] for cell in cells})
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for marker, method in zip("osx^", methods, strict=True):
    of_method = [cell for cell in cells if cell["method"] == method]
    names = [f"{cell['kernel']}, {cell['n']}" for cell in of_method]
    printed = [float(cell["published_test_mse"]) for cell in of_method]
    errors = np.array([float(cell["test_mse"]) for cell in of_method]) / printed
    axes[0].plot(errors, names, marker, fillstyle="none", label=method)
    axes[1].semilogx([float(cell["fit_cpu_s"]) for cell in of_method], names, marker, label=method)
axes[0].axvline(1.0, color="0.6", linewidth=0.8)
axes[0].set_xlabel("squared error of test rows, printed = 1")
axes[1].set_xlabel("CPU seconds of a fit")
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=4)

plt.show()
