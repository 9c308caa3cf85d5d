"""Shoham and Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional
RKHS", tables 2 and 4 (linear kernel), 3 and 5 (Gaussian kernel).

Two ReLU layers of 128 before the kernel, AdaDelta, 100 epochs, b_t = 0.9, μ = 1, the learning rate
of least NLML, the iterate of least NLML. NLML in nats per row, in the units of the file. SVGP has
as many inducing points as rows in a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    MinimaxGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
)

from .._common import Split, gaussian_scores, load_split
from .tables import Cell, Figures, Table

EPOCHS = 100
LEARNING_RATES = (0.3, 1.0, 3.0)
TRAINING = {"solver": "adadelta", "learning_rate": "constant", "noise": "learned"}
ESTIMATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MINIMAX": (MinimaxGaussianProcessRegressor, {"penalty": 1.0}),
    "SCGD": (SCGDGaussianProcessRegressor, {"averaging": 0.9, "weights": "learned"}),
    "BSGD": (BSGDGaussianProcessRegressor, {}),
}
KERNELS = {
    "2": DotProduct(sigma_0=0, sigma_0_bounds="fixed"),
    "3": ConstantKernel() * RBF(),
}


def run(table: str, cell: Cell, data: Path, seed: int) -> Figures:
    """The fit of least NLML over the learning rates."""
    split = load_split(data, cell["set"], 0, standardize_y=False)
    estimator, own = ESTIMATORS[cell["method"]]
    fits = [
        fit(
            estimator(
                kernel=KERNELS[table],
                batch_size=int(cell["batch_size"]),
                max_iter=EPOCHS,
                learning_rate_init=rate,
                early_stopping=False,
                weight_decay=0,
                random_state=seed,
                **TRAINING,
                **own,
            ),
            split,
        )
        for rate in LEARNING_RATES
    ]
    return min(fits, key=lambda figures: figures["nlml"])


def fit(model: Any, split: Split) -> Figures:
    """Exact NLML on the training rows and RMSE on the test rows after one fit."""
    model.fit(split.X_train, split.y_train)
    mean, std = model.predict(split.X_test, return_std=True)
    return {
        "nlml": -model.log_marginal_likelihood_value_ / len(split.y_train),
        **gaussian_scores(split.y_test, mean, std)._asdict(),
        "learning_rate": model.learning_rate_init,
        "epochs": EPOCHS,
    }


def _table(name: str, title: str) -> Table:
    return Table(
        "scgd",
        name,
        title,
        {"nlml": "low", "rmse": "low"},
        lambda cell, data, seed: run(name, cell, data, seed),
        settings=f"AdaDelta with the best of the learning rates {LEARNING_RATES}, {EPOCHS} epochs, "
        "split 0.",
        lacking={"slice": "its data cannot be had here", "SVGP": "needs AdaDelta for SVGP"},
    )


TABLES = {
    "2": _table("2", "tables 2 and 4 (linear kernel)"),
    "3": _table("3", "tables 3 and 5 (Gaussian kernel)"),
}
