"""The sparse variational family: any likelihood, on rows that may come as a stream."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np

from ..data.docstrings import documented
from ..likelihoods.base import class_likelihood, regression_likelihood
from ..models.sparse import SparsePosterior
from ..objectives.optimal_q import dependent_bound
from ..training.recipes.feature_builder import FeatureBuilder
from ..training.recipes.inducing import InducingPoints
from ..training.recipes.variational import VariationalRecipe
from .classifier import Classifier
from .context import predicting
from .regressor import GeneralRegressor
from .streams import StreamingRegressor, all_classes, stream


class VariationalRegressor(GeneralRegressor):
    """A regressor for any likelihood that learns from chunks, too."""

    _builder: ClassVar[type[FeatureBuilder]] = InducingPoints

    def _recipe(self) -> VariationalRecipe:
        parameters: Any = self
        likelihood = regression_likelihood(parameters.likelihood)
        return VariationalRecipe.chosen(self, likelihood, self._builder.of)

    @documented(StreamingRegressor.partial_fit)
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None, y_std: Any = None
    ) -> Any:
        """Make one pass over more rows, for streams.

        The scalings of X and y are those of the first call (or of `fit`). The posterior comes from
        running averages, and the learning rate is `learning_rate_init` times their averaging rate,
        a tenth at most. If gradients learn the posterior, the first 20 rows or more take about 100
        steps, as in `fit`. The scale of additive noise follows the errors at the last 500 rows,
        each predicted before it is learned, unless the kernel fixes it or the loss is
        :class:`~skgpstoch.LogLoss`. `log_marginal_likelihood_value_` becomes NaN.

        Parameters
        ----------
        exposure : float or array-like of shape (n_samples,), default=None
            As for `fit`.
        y_std : float or array-like of the shape of y, default=None
            As for `fit`.

        Raises
        ------
        ValueError
            If a parameter or an argument is invalid, if solver, loss or beta is not for streams, or
            if parameters that define the model have changed since the first call.
        """
        return stream(self, X, y, sample_weight, exposure, y_std)

    @documented(GeneralRegressor.log_marginal_likelihood)
    def dependent_bound(
        self, X: Any, y: Any, sample_weight: Any = None, *, y_std: Any = None
    ) -> float:
        """Compute another lower bound on log p(y | X), with the fitted hyper-parameters.

        It is the bound of Shi, Titsias and Mnih, appendix A (14), in which the values at the
        inducing points and the rest of f depend on each other. It is at least Titsias' bound for
        all inducing points, ordinary and orthogonal. If orthogonal points only have a mean
        (posterior="odvgp" with whiten=False), it is the bound for the ordinary ones about this
        mean. It goes through all pairs of rows: O(n²) time, but not memory.

        Returns
        -------
        bound : float
            In nats, summed over rows and outputs, for y in its own units.

        Raises
        ------
        ValueError
            If the likelihood is not Gaussian, or there are several layers.
        """
        X, rows, posterior = self._labelled(self._checked(X, y, sample_weight, None, y_std))
        with predicting():
            value = float(dependent_bound(cast(SparsePosterior, posterior).model, X, rows))
        return value - rows.n_effective * float(np.log(self._y_scaling.scale).sum())


class VariationalClassifier(Classifier):
    """A classifier that learns from chunks, too."""

    _builder: ClassVar[type[FeatureBuilder]] = InducingPoints

    def _recipe(self) -> VariationalRecipe:
        parameters: Any = self
        likelihood = class_likelihood(parameters.likelihood, len(self.classes_))
        return VariationalRecipe.chosen(self, likelihood, self._builder.of)

    @documented(VariationalRegressor.partial_fit)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Make one pass over more rows, for streams.

        The scaling of X is that of the first call (or of `fit`). The posterior comes from running
        averages, and the learning rate is `learning_rate_init` times their averaging rate, a tenth
        at most. `log_marginal_likelihood_value_` becomes NaN.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,) or None, default=None
            All labels that may occur, for the first call; None for those of `y`.
        """
        return stream(self, X, y, sample_weight, all_classes(self, classes))
