"""A model of transformed targets, and its predictions for the targets themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from ..data.arguments import check_coverage
from ..data.arrays import row_blocks
from ..data.devices import BLOCK_ROWS
from ..distributions.predictive import PredictiveDistribution, targets_of
from ..distributions.transformed import transformed, transformed_draws
from .mixture import distribution_of


class TransformedModel:
    """A fitted model of z = T(y), and its predictions of y: a part of mixtures.

    Parameters
    ----------
    model : object
        With the predictions of :class:`~skgpstoch.ensembles.mixture.MixtureRegressor`.
    transformer : object
        A fitted, monotone transformer, with `transform` and `inverse_transform`.
    """

    def __init__(self, model: Any, transformer: Any) -> None:
        self.model = model
        self.transformer = transformer

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """As the mixture's."""
        given = distribution_of(self.model, X)
        return PredictiveDistribution(transformed(given.law, self.transformer), given.output_shape)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """As the mixture's."""
        found = [
            [part.reshape(given.shape) for part in given.law.moments()] for given in self._blocks(X)
        ]
        mean, std = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return (mean, std) if return_std else mean

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        distribution = self.predict_distribution(X)
        return distribution.joint_logpdf(targets_of(distribution, y))

    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """As the mixture's."""
        distribution = self.predict_distribution(X)
        return distribution.cdf(targets_of(distribution, y))

    def predict_interval(self, X: Any, coverage: Any) -> np.ndarray:
        """As the mixture's."""
        coverage = check_coverage(coverage)
        return np.concatenate([np.stack(g.interval(coverage), 1) for g in self._blocks(X)])

    def sample_y(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """As the mixture's."""
        draws = self.model.sample_y(X, n_samples, random_state=random_state)
        return transformed_draws(draws, self.transformer)

    def _blocks(self, X: Any) -> Iterator[PredictiveDistribution]:
        """Yield the distributions of blocks of rows."""
        for rows in row_blocks(len(X), BLOCK_ROWS):
            yield self.predict_distribution(_safe_indexing(X, np.arange(len(X))[rows]))
