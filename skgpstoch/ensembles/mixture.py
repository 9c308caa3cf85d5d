"""Predictions of a mixture of fitted regressors, each with a predictive distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, ndtr, ndtri
from sklearn.base import RegressorMixin
from sklearn.utils import _safe_indexing, check_array, check_random_state

from ..data.arrays import row_blocks
from ..data.devices import BLOCK_ROWS
from ..docstrings import documented
from ..estimators.regressor import Regressor, predictive_of
from ..estimators.validation import check_coverage, check_n_samples
from ..maths.gaussian import inverse
from ..persistence.estimator import SavedEstimator


class Parts(NamedTuple):
    """Weights, of sum 1, and models."""

    weights: list[float]
    models: list[Any]


class MixtureRegressor(RegressorMixin, SavedEstimator):
    """Mean, deviation, intervals, draws, densities and distribution of a mixture."""

    @abstractmethod
    def _parts(self, X: Any) -> tuple[Parts, Any]:
        """Return what it is a mixture of, and X as these see it; raise if it is not fitted."""

    @documented(Regressor.predict)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of y, and if asked its standard deviation.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Mean.
        y_std : ndarray of the shape of y_mean
            Only if `return_std`.
        """
        (weights, models), X = self._parts(X)
        if len(models) == 1:
            return models[0].predict(X, return_std=True) if return_std else models[0].predict(X)
        if not return_std:
            return sum(w * model.predict(X) for w, model in zip(weights, models, strict=True))
        means, stds = zip(*(model.predict(X, return_std=True) for model in models), strict=True)
        mean = np.average(means, axis=0, weights=weights)
        sizes = np.stack([np.hypot(std, own - mean) for own, std in zip(means, stds, strict=True)])
        unit = sizes.max(0)  # squares of very large or small numbers are none
        square = np.average((sizes / np.where(unit > 0.0, unit, 1.0)) ** 2, axis=0, weights=weights)
        return mean, unit * np.sqrt(square)

    @documented(Regressor.predict_std)
    def predict_std(self, X: Any) -> np.ndarray:
        """Standard deviation of y at each row."""
        return np.asarray(self.predict(X, return_std=True)[1])

    @documented(Regressor.predictive_cdf)
    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """P(Y ≤ y | x, data) of each row."""
        (weights, models), X = self._parts(X)
        below = [model.predictive_cdf(X, y) for model in models]
        return np.asarray(np.average(below, axis=0, weights=weights))

    @documented(Regressor.log_predictive_density)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density log p(y | x, data) of each row, summed over outputs.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
            Nats, for y in the units of the user.
        """
        (weights, models), X = self._parts(X)
        densities = np.stack([model.log_predictive_density(X, y) for model in models], 1)
        return np.asarray(logsumexp(densities, b=np.array(weights), axis=1))

    @documented(Regressor.predict_interval)
    def predict_interval(self, X: Any, coverage: Any = 0.95) -> np.ndarray:
        """Central interval that y is in with the given probability.

        Returns
        -------
        interval : ndarray of shape (n_samples, 2) or (n_samples, 2, n_outputs)
            Lower and upper end: quantiles of the mixture.
        """
        check_coverage(coverage)
        parts, X = self._parts(X)
        if len(parts.models) == 1:
            return np.asarray(parts.models[0].predict_interval(X, coverage))
        blocks = [
            interval_of(parts, _safe_indexing(X, np.arange(len(X))[rows]), coverage)
            for rows in row_blocks(len(X), BLOCK_ROWS)
        ]
        return np.concatenate(blocks)

    @documented(Regressor.sample_y)
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of y at the rows of X, each of a model that is drawn before."""
        (weights, models), X = self._parts(X)
        rng = check_random_state(random_state)
        counts = rng.multinomial(check_n_samples(n_samples), weights)
        seeds = rng.randint(2**31 - 1, size=len(counts))
        draws = [
            model.sample_y(X, int(n), random_state=int(seed))
            for model, n, seed in zip(models, counts, seeds, strict=True)
            if n
        ]
        return np.concatenate(draws, -1)[..., rng.permutation(int(counts.sum()))]


def interval_of(parts: Parts, X: Any, coverage: float) -> np.ndarray:
    """Return the central interval of a mixture at some rows, between those of its parts."""
    ends = np.stack([model.predict_interval(X, coverage) for model in parts.models])
    asked = [asked_often(model, X) for model in parts.models]
    interval, tail = np.empty(ends.shape[1:]), 0.5 - 0.5 * coverage

    def cdf(y: torch.Tensor) -> torch.Tensor:
        below = [part(y.numpy()) for part in asked]
        return torch.from_numpy(np.average(below, axis=0, weights=parts.weights))

    for side, probability in enumerate((tail, 1.0 - tail)):
        low, high = (torch.from_numpy(f(ends[:, :, side], 0)) for f in (np.min, np.max))
        interval[:, side] = inverse(cdf, low, high, probability).numpy()
    return interval


def asked_often(model: Any, X: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return P(Y ≤ y) at some rows as a function of y; ours predict only once for it."""
    if isinstance(model, Regressor):
        distribution = predictive_of(model, X)
    elif hasattr(model, "distribution"):
        distribution = model.distribution(X)
    else:
        return lambda y: np.asarray(model.predictive_cdf(X, y))
    return lambda y: np.asarray(distribution.cdf(y.reshape(len(y), -1)).reshape(y.shape))


class Mixture(MixtureRegressor):
    """A mixture of fitted models with these weights, of sum 1."""

    def __init__(self, weights: list[float], models: list[Any]) -> None:
        self.weights = weights
        self.models = models

    def _parts(self, X: Any) -> tuple[Parts, Any]:
        return Parts(self.weights, self.models), X


class Normals:
    """A regressor's mean, with one standard deviation: a part of mixtures."""

    def __init__(self, regressor: Any, std: float) -> None:
        self.regressor = regressor
        self.std = std

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """As the mixture's."""
        mean = np.asarray(self.regressor.predict(X), dtype=np.float64)
        return (mean, np.full(mean.shape, self.std)) if return_std else mean

    def _deviation(self, X: Any, y: Any) -> np.ndarray:
        mean = self.predict(X)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if y.shape != mean.shape:
            raise ValueError(f"y must have the shape {mean.shape}, got {y.shape}.")
        return np.asarray((y - mean) / self.std)

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        z = self._deviation(X, y)
        return np.asarray(-0.5 * (z**2 + np.log(2.0 * np.pi)) - np.log(self.std))

    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        return np.asarray(ndtr(self._deviation(X, y)))

    def predict_interval(self, X: Any, coverage: float) -> np.ndarray:
        """As the mixture's."""
        z = ndtri(0.5 + 0.5 * coverage)
        return np.asarray(self.predict(X)[:, None] + self.std * np.array([-z, z]))

    def sample_y(self, X: Any, n_samples: int, random_state: int) -> np.ndarray:
        """As the mixture's."""
        mean, rng = self.predict(X), check_random_state(random_state)
        return np.asarray(mean[:, None] + self.std * rng.standard_normal((len(mean), n_samples)))
