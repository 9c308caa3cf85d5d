"""Shoham and Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional
RKHS", tables 2 and 4 (linear kernel), 3 and 5 (Gaussian kernel).

As in the paper: two ReLU layers of 128 before the kernel, the iterate of least exact NLML, μ = 1,
random Fourier features of dimension 1,000, as many inducing points as rows in a batch; NLML in nats
per row, in the units of the file. Of SVGP it is the bound, of the last iterate.

Not as in the paper: Adam with one cycle up to 0.01 for networks (SVGP: 0.003, and 0.03 for the
rest) in place of AdaDelta with the best learning rate of a grid, one fit a cell; noise and signal
variance of the three finite methods from the marginal likelihood, in place of gradient steps; SCGD
with running averages over 20 rows a feature, and with weights from these, in place of b_t = 0.9.
Chosen by NLML on bike and elevators at b = 128; for SVGP on bike and keggdirected. With the linear
kernel there are 100 epochs; with the Gaussian one, whose steps cost up to a hundred times as much,
the least number of epochs that makes 6,000 steps (of MINIMAX, whose steps take .25 s, 1,500). Where
SCGD then misses the published NLML, it has 20,000 and 60,000 steps at a learning rate of 0.003; the
best NLML counts, as in the paper, which has the best learning rate of a grid.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.models.posteriors.iterative import IterativePosterior

from .._common import Split, gaussian_scores, load_split
from .tables import WITHIN, Cell, Figures, Table, deviation

EPOCHS = 100
LEARNING_RATE = 0.01
GAUSSIAN_STEPS = 6000
GAUSSIAN_RATES = {  # learning rates and steps, until one gives the published NLML; the best counts
    "SCGD": [(LEARNING_RATE, 6000), (0.003, 20_000), (0.003, 60_000)],
    "MINIMAX": [(LEARNING_RATE, 1500)],
}
MOST_EXACT_ROWS = 20_000  # for which this machine has memory for a matrix and its factor
FINITE = {"learning_rate_init": LEARNING_RATE, "noise": "profiled"}
ESTIMATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MINIMAX": (MinimaxGaussianProcessRegressor, FINITE),
    "SCGD": (SCGDGaussianProcessRegressor, FINITE),
    "BSGD": (BSGDGaussianProcessRegressor, FINITE),
    "SVGP": (SVGPRegressor, {"mean": "zero", "learning_rate_init": 3 * LEARNING_RATE}),
}
KERNELS = {
    "2": DotProduct(sigma_0=0, sigma_0_bounds="fixed"),
    "3": ConstantKernel() * RBF(),
}
RANDOM_FEATURES = 1000
SETTINGS = (
    f"Adam with one cycle up to {LEARNING_RATE} for networks (SVGP: {0.3 * LEARNING_RATE:g}), "
    "{budget}, split 0, one fit per cell. Noise is profiled, and SCGD's weights come from running "
    "averages. The paper has AdaDelta with the best of a grid of learning rates, 100 epochs, "
    "gradient steps for both, and b_t = 0.9. We chose our settings on bike and elevators (SVGP: "
    "bike and keggdirected), b = 128."
)
BUDGETS = {
    "2": f"{EPOCHS} epochs",
    "3": f"the epochs that make {GAUSSIAN_STEPS:,} steps (MINIMAX: 1,500; SCGD: the best NLML of "
    "these and, where they miss, of 20,000 and 60,000 at 0.003)",
}


def run(table: str, cell: Cell, data: Path, seed: int) -> Figures:
    """One fit."""
    split = load_split(data, cell["set"], 0, standardize_y=False)
    b, method = int(cell["batch_size"]), cell["method"]
    if table == "2":
        return fit(make_model(table, method, b, EPOCHS, seed), split)
    fits: list[Figures] = []
    for rate, steps in GAUSSIAN_RATES.get(method, [(LEARNING_RATE, GAUSSIAN_STEPS)]):
        epochs = ceil(steps / ceil(len(split.y_train) / b))
        fits.append(fit(make_model(table, method, b, epochs, seed, rate), split))
        if is_reproduced(fits[-1]["nlml"], cell):
            break
    return min(fits, key=lambda figures: figures["nlml"] or 0.0)


def is_reproduced(nlml: float | str, cell: Cell) -> bool:
    """Tell whether an NLML is at most two published deviations above the published one."""
    most = float(cell["nlml"]) + WITHIN * deviation(cell, "nlml")
    return isinstance(nlml, float) and nlml <= most


def make_model(
    table: str, method: str, b: int, epochs: int, seed: int, rate: float = LEARNING_RATE
) -> Any:
    """Make the estimator of a cell; an own learning rate is of the finite methods."""
    estimator, own = ESTIMATORS[method]
    if own is FINITE:
        own = {**own, "learning_rate_init": rate}
    if method == "SVGP":
        own = {**own, "n_inducing": b}
    elif table == "3":
        own = {**own, "n_components": None if method == "BSGD" else RANDOM_FEATURES}
    return estimator(
        kernel=KERNELS[table],
        hidden_layer_sizes=(128, 128),
        solver="adam",
        batch_size=b,
        max_iter=epochs,
        early_stopping=False,
        weight_decay=0,
        random_state=seed,
        **own,
    )


def fit(model: Any, split: Split) -> Figures:
    """NLML on the training rows and RMSE on the test rows after one fit."""
    model.fit(split.X_train, split.y_train)
    if isinstance(model.posterior_, IterativePosterior):  # whose deviations take hours
        error = split.y_test - model.predict(split.X_test)
        scores = {"rmse": float((error**2).mean() ** 0.5), "nlpd": "", "coverage": ""}
    else:
        mean, std = model.predict(split.X_test, return_std=True)
        scores = gaussian_scores(split.y_test, mean, std)._asdict()
    nlml = negative_log_evidence(model, split)
    return {
        "nlml": nlml,
        **scores,
        "learning_rate": model.learning_rate_init,
        "epochs": model.max_iter,
    }


def negative_log_evidence(model: Any, split: Split) -> float | str:
    """NLML per row; empty where no factor of the covariance of all rows can be had."""
    n = len(split.y_train)
    if not isinstance(model.posterior_, IterativePosterior):
        return -model.log_marginal_likelihood_value_ / n
    if n > MOST_EXACT_ROWS:
        return ""
    return -model.log_marginal_likelihood(split.X_train, split.y_train) / n


def _table(name: str, title: str) -> Table:
    return Table(
        "scgd",
        name,
        title,
        {"nlml": "low", "rmse": "low"},
        lambda cell, data, seed: run(name, cell, data, seed),
        settings=SETTINGS.format(budget=BUDGETS[name]),
        lacking={"slice": "we do not have its data"},
    )


TABLES = {
    "2": _table("2", "tables 2 and 4 (linear kernel)"),
    "3": _table("3", "tables 3 and 5 (Gaussian kernel)"),
}
