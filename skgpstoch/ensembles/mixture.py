"""Predictions of a mixture of fitted regressors, each with a predictive distribution."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from sklearn.base import RegressorMixin
from sklearn.utils import _safe_indexing, check_random_state

from ..data.arguments import FITS_AGAIN, NO_FUNCTION, MissingMethod, check_coverage, check_n_samples
from ..data.arrays import row_blocks
from ..data.devices import BLOCK_ROWS
from ..distributions.mixed import AskedLaw, MixedLaw
from ..distributions.normal import NormalLaw
from ..distributions.predictive import PredictiveDistribution, targets_of
from ..docstrings import documented
from ..estimators.regressor import Regressor
from ..persistence.estimator import SavedEstimator

ONE_MODEL = "SVGPRegressor and GaussianProcessRegressor have it."


class Parts(NamedTuple):
    """Weights, which sum to 1, and models."""

    weights: list[float]
    models: list[Any]


class MixtureRegressor(RegressorMixin, SavedEstimator):
    """Mean, deviation, intervals, draws, densities and distributions of a mixture."""

    condition_on = MissingMethod(FITS_AGAIN, ONE_MODEL)
    partial_fit = MissingMethod(FITS_AGAIN, ONE_MODEL)
    predict_gradient = MissingMethod(NO_FUNCTION, ONE_MODEL)
    sample_functions = MissingMethod(
        NO_FUNCTION, f"Use sample_y to draw at given rows. {ONE_MODEL}"
    )
    log_marginal_likelihood = MissingMethod(
        "it combines several models and has no single prior",
        f"Use log_predictive_density to score rows. {ONE_MODEL}",
    )

    @abstractmethod
    def _parts(self, X: Any) -> tuple[Parts, Any]:
        """Return the parts of the mixture, and X as they see it; raise if it is not fitted."""

    @documented(Regressor.predict)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of y, and if asked its standard deviation.

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
        unit = sizes.max(0)  # squares of very large or small numbers over- or underflow
        square = np.average((sizes / np.where(unit > 0.0, unit, 1.0)) ** 2, axis=0, weights=weights)
        return mean, unit * np.sqrt(square)

    @documented(Regressor.predict_std)
    def predict_std(self, X: Any) -> np.ndarray:
        """Predict the standard deviation of y at each row."""
        return np.asarray(self.predict(X, return_std=True)[1])

    @documented(Regressor.predict_distribution)
    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict the distribution of y at each row.

        Returns
        -------
        distribution : PredictiveDistribution
            The mixture, with `mean`, `std`, `pdf`, `cdf`, `ppf`, `interval`, `crps` and `sample`.
        """
        (weights, models), X = self._parts(X)
        parts = [distribution_of(model, X) for model in models]
        if len(parts) == 1:
            return parts[0]
        law = MixedLaw(np.array(weights), [part.law for part in parts])
        return PredictiveDistribution(law, parts[0].output_shape)

    @documented(Regressor.predictive_cdf)
    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """Return P(Y ≤ y | x, data) of each row."""
        (weights, models), X = self._parts(X)
        below = [model.predictive_cdf(X, y) for model in models]
        return np.asarray(np.average(below, axis=0, weights=weights))

    @documented(Regressor.log_predictive_density)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log density log p(y | x, data) of each row, summed over outputs.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
            Log densities in nats, for y in its own units.
        """
        (weights, models), X = self._parts(X)
        densities = np.stack([model.log_predictive_density(X, y) for model in models], 1)
        return np.asarray(logsumexp(densities, b=np.array(weights), axis=1))

    @documented(Regressor.predict_interval)
    def predict_interval(self, X: Any, coverage: Any = 0.95) -> np.ndarray:
        """Predict the central interval that contains y with probability `coverage`.

        Returns
        -------
        interval : ndarray of shape (n_samples, 2) or (n_samples, 2, n_outputs)
            Lower and upper end: quantiles of the mixture.
        """
        check_coverage(coverage)
        (weights, models), X = self._parts(X)
        if len(models) == 1:
            return np.asarray(models[0].predict_interval(X, coverage))
        mixture, ends = Mixture(weights, models), []
        for rows in row_blocks(len(X), BLOCK_ROWS):
            block = _safe_indexing(X, np.arange(len(X))[rows])
            ends.append(np.stack(mixture.predict_distribution(block).interval(coverage), 1))
        return np.concatenate(ends)

    @documented(Regressor.sample_y)
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y jointly at the rows of X, each time from a model drawn by the weights."""
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


def distribution_of(model: Any, X: Any) -> PredictiveDistribution:
    """Return the distributions of a part of a mixture, from its `predictive_cdf` if need be."""
    if hasattr(model, "predict_distribution"):
        return model.predict_distribution(X)
    output_shape = np.shape(model.predict(_safe_indexing(X, [0])))[1:]
    return PredictiveDistribution(AskedLaw(model, X, int(np.prod(output_shape))), output_shape)


class Mixture(MixtureRegressor):
    """A mixture of fitted models with these weights, which sum to 1."""

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

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """As the mixture's."""
        mean = self.predict(X)
        columns = mean.reshape(len(mean), -1)
        law = NormalLaw(columns, np.full(columns.shape, self.std))
        return PredictiveDistribution(law, mean.shape[1:])

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        distribution = self.predict_distribution(X)
        return distribution.joint_logpdf(targets_of(distribution, y))

    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        distribution = self.predict_distribution(X)
        return distribution.cdf(targets_of(distribution, y))

    def predict_interval(self, X: Any, coverage: float) -> np.ndarray:
        """As the mixture's."""
        return np.stack(self.predict_distribution(X).interval(coverage), 1)

    def sample_y(self, X: Any, n_samples: int, random_state: int) -> np.ndarray:
        """As the mixture's, but with errors that are independent between rows."""
        return self.predict_distribution(X).sample(n_samples, random_state)
