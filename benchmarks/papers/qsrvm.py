"""Evans and Nair, "Quadruply Stochastic Gaussian Processes", figure 3: relevance vectors of sinc.

The figure has sin(x)/x with noise, and 13 relevance vectors that are left after training. How many
rows there were cannot be read in our copy, nor how they were drawn; here it is Tipping's example.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from skgpstoch import QSRVMRegressor

from .tables import Cell, Figures, Table

NOISE = 0.1


def relevance(cell: Cell, data: Path, seed: int) -> Figures:
    """A cell of figure 3: vectors left, and errors beside those of the exact process."""
    n = int(cell["rows"])
    rng = np.random.default_rng(seed)
    X, X_test = rng.uniform(-10, 10, (n, 1)), rng.uniform(-10, 10, (1000, 1))
    truth = np.sinc(X_test[:, 0] / np.pi)
    y = np.sinc(X[:, 0] / np.pi) + NOISE * rng.standard_normal(n)
    y_test = truth + NOISE * rng.standard_normal(len(truth))
    expression = sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel()
    exact = GaussianProcessRegressor(expression, normalize_y=True).fit(X, y)
    model = QSRVMRegressor(solver=cell["solver"], random_state=seed).fit(X, y)
    errors = [np.sqrt(np.mean((m.predict(X_test) - truth) ** 2)) for m in (model, exact)]
    return {
        "relevant": len(model.relevance_),
        "relative_rmse": errors[0] / errors[1],
        "nlpd": -model.log_predictive_density(X_test, y_test).mean(),
        "noise": float(np.mean(model.noise_variance_)),
        "n_iter": model.n_iter_,
    }


TABLES = {
    "figure3": Table(
        "qsgp",
        "figure3",
        "figure 3 (relevance vectors of sinc)",
        {"relevant": "low"},
        relevance,
        settings="relative_rmse is the RMSE to f without noise, relative to the exact process. Our "
        "copy of the paper does not show the number of rows: 100 and 200 are ours.",
        needs_data=False,
    ),
}
