"""Recalibration of any model's predictive distributions on held-out rows: scale and exponent.

See :mod:`skgpstoch.calibration.spread`. Ensembles of networks do so themselves; this is for models
and stacks that do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calibration.held_out import PRIOR
from ..calibration.spread import best_spread
from ..models.mixture import Spread


class Recalibrated:
    """A model whose Y is m + r(s)(Y − m), with its mean m and deviation s: a part of mixtures.

    Parameters
    ----------
    model : object
        With the predictions of :class:`~skgpstoch.ensembles.mixture.MixtureRegressor`.
    spread : Spread
        r(s) = a·s^(γ − 1), a and s in the units of y.
    """

    def __init__(self, model: Any, spread: Spread) -> None:
        self.model = model
        self.spread = spread

    def _moments(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """m, s and r of each row."""
        mean, std = self.model.predict(X, return_std=True)
        ratio = self.spread.ratio(std.reshape(len(std), -1)).reshape(std.shape)
        return mean, std, ratio

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """m and, if asked, r·s."""
        if not return_std:
            return self.model.predict(X)
        mean, std, ratio = self._moments(X)
        return mean, ratio * std

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """log p(m + (y − m)/r) − Σ log r of each row, summed over outputs."""
        mean, _, ratio = self._moments(X)
        before = self.model.log_predictive_density(X, mean + (np.asarray(y) - mean) / ratio)
        return np.asarray(before - np.log(ratio).reshape(len(ratio), -1).sum(1))

    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """F(m + (y − m)/r)."""
        mean, _, ratio = self._moments(X)
        return np.asarray(self.model.predictive_cdf(X, mean + (np.asarray(y) - mean) / ratio))

    def predict_interval(self, X: Any, coverage: float) -> np.ndarray:
        """Ends of the model's interval, r times as far from m."""
        mean, _, ratio = self._moments(X)
        ends = self.model.predict_interval(X, coverage)
        return np.asarray(mean[:, None] + ratio[:, None] * (ends - mean[:, None]))

    def sample_y(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """Draws of the model, r times as far from m."""
        mean, _, ratio = self._moments(X)
        draws = self.model.sample_y(X, n_samples, random_state=random_state)
        return np.asarray(mean[..., None] + ratio[..., None] * (draws - mean[..., None]))


def recalibrated(model: Any, X: Any, y: np.ndarray, sample_weight: Any = None) -> Recalibrated:
    """Return the model with the scale and the exponent that suit rows best that it has not seen.

    Priors let few rows change little: a log scale of 0 ± .3, and an exponent of 1 ± .1.

    Parameters
    ----------
    model : object
        Fitted, with the predictions of :class:`~skgpstoch.ensembles.mixture.MixtureRegressor`.
    X : array-like of shape (n_samples, n_features)
        Rows that it was not fitted to.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Their targets.
    sample_weight : ndarray of shape (n_samples,) or None, default=None
        How many rows each counts for.

    Returns
    -------
    recalibrated : Recalibrated
        The model, which is not copied.
    """
    predicted = model.predict(X, return_std=True)
    columns, m, s = (part.reshape(len(y), -1).astype(np.float64) for part in (y, *predicted))

    def log_density(other: np.ndarray) -> np.ndarray:
        return np.asarray(model.log_predictive_density(X, other.reshape(y.shape)))

    spread = best_spread(log_density, columns, m, s, sample_weight, PRIOR.log_scale)
    return Recalibrated(model, spread)
