"""scikit-learn's regressors as peers: each gives a Gaussian at every test row."""

from __future__ import annotations

import math
from typing import Protocol, Self

import numpy as np
from _common import Array
from sklearn.base import RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor


class GaussianRegressor(Protocol):
    """What the benchmarks ask of a method."""

    n_iter_: int

    def fit(self, X: Array, y: Array) -> Self: ...
    def predict(self, X: Array, return_std: bool = False) -> tuple[Array, Array | float]: ...


class ConstantVariance:
    """A point regressor and a constant standard deviation.

    The regressor learns from 90 % of the training rows; the root mean square of its residuals on
    the other 10 % is the standard deviation of every prediction.
    """

    def __init__(self, regressor: RegressorMixin, seed: int) -> None:
        self.regressor = regressor
        self.seed = seed

    def fit(self, X: Array, y: Array) -> Self:
        X_fit, X_held, y_fit, y_held = train_test_split(X, y, test_size=0.1, random_state=self.seed)
        self.regressor_ = clone(self.regressor).fit(X_fit, y_fit)
        self.n_iter_ = self.regressor_.n_iter_
        self.std_ = float(np.sqrt(np.mean((self.regressor_.predict(X_held) - y_held) ** 2)))
        return self

    def predict(self, X: Array, return_std: bool = True) -> tuple[Array, float]:
        return self.regressor_.predict(X), self.std_


def boosted_trees(seed: int, max_iter: int = 100) -> ConstantVariance:
    """scikit-learn's histogram gradient boosting with a constant variance."""
    return ConstantVariance(
        HistGradientBoostingRegressor(max_iter=max_iter, random_state=seed), seed
    )


def multilayer_perceptron(seed: int, max_iter: int = 500) -> ConstantVariance:
    """scikit-learn's network, as wide as our default feature map, with a constant variance."""
    network = MLPRegressor(hidden_layer_sizes=(128, 128), max_iter=max_iter, random_state=seed)
    return ConstantVariance(network, seed)


class ExactOnSubset:
    """scikit-learn's exact GP (Matérn-3/2, ARD, learned noise) on ``n_rows`` random rows."""

    n_iter_ = 1

    def __init__(self, n_rows: int, seed: int) -> None:
        self.n_rows = n_rows
        self.seed = seed

    def fit(self, X: Array, y: Array) -> Self:
        rows = np.random.default_rng(self.seed).permutation(len(y))[: self.n_rows]
        scales = np.full(X.shape[1], math.sqrt(X.shape[1]) / 2)
        kernel = ConstantKernel() * Matern(scales, nu=1.5) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=self.seed)
        self.model_ = model.fit(X[rows], y[rows])
        return self

    def predict(self, X: Array, return_std: bool = True) -> tuple[Array, Array]:
        return self.model_.predict(X, return_std=True)
