"""Peers: others' regressors, each with a Gaussian at every test row; and sampled classes."""

from __future__ import annotations

import copy
import math
from typing import Any, Protocol, Self

import numpy as np
import torch
from _common import Array
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.special import expit
from sklearn.base import RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import Pipeline


class GaussianRegressor(Protocol):
    """What the benchmarks ask of a method."""

    n_iter_: int

    def fit(self, X: Array, y: Array) -> Self: ...
    def predict(self, X: Array, return_std: bool = False) -> tuple[Array, Array | float]: ...


class ConstantVariance:
    """A point regressor and a constant standard deviation.

    The regressor learns from 90 % of the training rows; the root mean square of its residuals on
    the other 10 % is the standard deviation of every prediction. With ``refit`` it then learns from
    all of them.
    """

    def __init__(self, regressor: RegressorMixin, seed: int, refit: bool = False) -> None:
        self.regressor = regressor
        self.seed = seed
        self.refit = refit

    def fit(self, X: Array, y: Array) -> Self:
        X_fit, X_held, y_fit, y_held = train_test_split(X, y, test_size=0.1, random_state=self.seed)
        self.regressor_ = copy.deepcopy(self.regressor).fit(X_fit, y_fit)
        self.std_ = float(np.sqrt(np.mean((self.regressor_.predict(X_held) - y_held) ** 2)))
        if self.refit:
            self.regressor_ = copy.deepcopy(self.regressor).fit(X, y)
        return self

    @property
    def n_iter_(self) -> int:
        """Epochs, or trees; a pipeline's are those of its last step."""
        last = self.regressor_[-1] if isinstance(self.regressor_, Pipeline) else self.regressor_
        return last.n_iter_

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


class NaturalGradientBoosting:
    """NGBoost: trees for the mean and for the logarithm of the standard deviation."""

    def __init__(self, seed: int) -> None:
        from ngboost import NGBRegressor  # an extra; here, as its import takes seconds

        self.model = NGBRegressor(verbose=False, random_state=seed)

    def fit(self, X: Array, y: Array) -> Self:
        self.n_iter_ = self.model.fit(X, y).n_estimators
        return self

    def predict(self, X: Array, return_std: bool = True) -> tuple[Array, Array]:
        density = self.model.pred_dist(X)
        return density.loc, density.scale


class CatBoostDensity:
    """CatBoost's trees for the mean and the variance."""

    LOSS = "RMSEWithUncertainty"

    def __init__(self, seed: int) -> None:
        from catboost import CatBoostRegressor  # an extra

        self.model = CatBoostRegressor(loss_function=self.LOSS, **catboost_settings(seed))

    def fit(self, X: Array, y: Array) -> Self:
        self.n_iter_ = self.model.fit(X, y).tree_count_
        return self

    def predict(self, X: Array, return_std: bool = True) -> tuple[Array, Array]:
        mean, variance = self.model.predict(X, prediction_type=self.LOSS).T
        return mean, np.sqrt(variance)


def catboost_settings(seed: int) -> dict[str, Any]:
    """As many threads as torch has, and nothing printed or written."""
    return {
        "thread_count": torch.get_num_threads(),
        "verbose": 0,
        "random_seed": seed,
        "allow_writing_files": False,
    }


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


class SampledClassifier:
    """P(y = 1) of a GP with a logistic link and a given kernel, by elliptical slice sampling.

    Murray, Adams and MacKay, "Elliptical slice sampling", 2010. Nothing is approximated but the
    mean over draws of f at the training rows, so it tells how good an approximation is; for a few
    hundred rows.
    """

    BURN_IN, THINNING = 2000, 10  # draws

    def __init__(self, kernel: Kernel, n_draws: int, seed: int) -> None:
        self.kernel = kernel
        self.n_draws = n_draws
        self.seed = seed

    def fit(self, X: Array, y: NDArray[np.int64]) -> Self:
        rng = np.random.default_rng(self.seed)
        self.X = X
        self.L = np.linalg.cholesky(self.kernel(X) + 1e-8 * np.eye(len(X)))
        sign = 2.0 * y - 1.0
        f, draws = np.zeros(len(X)), []
        for k in range(self.n_draws):
            f = self._draw(f, sign, rng)
            if k >= self.BURN_IN and k % self.THINNING == 0:
                draws.append(f)
        self.draws = np.stack(draws)  # (S, n)
        return self

    def _draw(self, f: Array, sign: Array, rng: np.random.Generator) -> Array:
        """The next draw of f, on an ellipse through the last and a draw of the prior."""
        other = self.L @ rng.standard_normal(len(f))
        threshold = self._log_likelihood(f, sign) + np.log(rng.random())
        angle = rng.uniform(0.0, 2.0 * np.pi)
        low, high = angle - 2.0 * np.pi, angle
        while True:
            proposal = f * np.cos(angle) + other * np.sin(angle)
            if self._log_likelihood(proposal, sign) > threshold:
                return proposal
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)

    @staticmethod
    def _log_likelihood(f: Array, sign: Array) -> float:
        return -float(np.logaddexp(0.0, -sign * f).sum())

    def predict_proba(self, X: Array) -> Array:
        """P(y = 1) at the rows of X, (N,)."""
        K = self.kernel(self.X, X)  # (n, N)
        A = cho_solve((self.L, True), K)
        residual = np.maximum(self.kernel.diag(X) - (K * A).sum(0), 0.0)  # var f(x) given f, (N,)
        nodes, weights = np.polynomial.hermite_e.hermegauss(20)
        total = np.zeros(len(X))
        for f in self.draws:
            mean = f @ A
            total += expit(mean[:, None] + np.sqrt(residual)[:, None] * nodes) @ weights
        return total / (len(self.draws) * weights.sum())
