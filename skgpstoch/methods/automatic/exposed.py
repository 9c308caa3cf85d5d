"""Predictions of a mixture at rows that may have exposures, which multiply the rates of counts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ...data.arguments import check_coverage, check_exposed
from ...data.docstrings import documented
from ...estimators.distributions.predictive import PredictiveDistribution
from ...estimators.predictions import PredictedRows, PredictiveRegressor
from ...estimators.regressor import Regressor
from ...estimators.validation import check_not_judged
from .mixture import MixtureRegressor


class ExposedMixture(MixtureRegressor):
    """Mean, deviation, intervals, draws, densities and distributions, given exposures."""

    @abstractmethod
    def _predicted(self, X: Any, exposure: Any = None) -> PredictedRows: ...

    @documented(PredictiveRegressor.predict)
    def predict(self, X: Any, return_std: bool = False, *, exposure: Any = None) -> Any:
        """Predict the mean of y, and if asked its standard deviation.

        Parameters
        ----------
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts, for target="count"; None is 1.
        """
        check_not_judged(self, exposure)
        found = self._predicted(X, exposure)
        if return_std:
            return tuple(map(found.shaped, found.moments()))
        return found.shaped(found.mean())

    @documented(PredictiveRegressor.predict_std, predict)
    def predict_std(self, X: Any, *, exposure: Any = None) -> np.ndarray:
        """Predict the standard deviation of y at each row."""
        found = self._predicted(X, exposure)
        return found.shaped(found.moments()[1])

    @documented(PredictiveRegressor.predict_interval, predict)
    def predict_interval(self, X: Any, coverage: Any = 0.95, *, exposure: Any = None) -> np.ndarray:
        """Predict the central interval that contains y with probability `coverage`."""
        coverage = check_coverage(coverage)
        return self._predicted(X, exposure).interval(coverage)

    @documented(PredictiveRegressor.predict_distribution, predict)
    def predict_distribution(self, X: Any, *, exposure: Any = None) -> PredictiveDistribution:
        """Predict the distribution of y at each row."""
        return self._predicted(X, exposure).distribution()

    @documented(PredictiveRegressor.predictive_cdf, predict)
    def predictive_cdf(self, X: Any, y: Any, *, exposure: Any = None) -> np.ndarray:
        """Return P(Y ≤ y | x, data) of each row."""
        check_exposed(self, exposure)
        found = self._predicted(X, exposure)
        return found.shaped(found.cdf(y))

    @documented(PredictiveRegressor.log_predictive_density, predict)
    def log_predictive_density(self, X: Any, y: Any, *, exposure: Any = None) -> np.ndarray:
        """Return the log density log p(y | x, data) of each row, summed over outputs."""
        check_exposed(self, exposure)
        return self._predicted(X, exposure).log_density(y)

    @documented(PredictiveRegressor.sample_y, predict)
    def sample_y(
        self, X: Any, n_samples: Any = 1, random_state: Any = 0, *, exposure: Any = None
    ) -> np.ndarray:
        """Draw y jointly at the rows of X, from the posterior."""
        return self._predicted(X, exposure).sample(n_samples, random_state)

    score = Regressor.score
