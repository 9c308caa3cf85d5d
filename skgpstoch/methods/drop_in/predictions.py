"""Gaussian predictions with scikit-learn's methods and shapes, and further methods."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any, Protocol

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from ...data.arguments import check_n_samples
from ...data.arrays import Scaling, random_numbers, resolve_seed
from ...data.docstrings import documented
from ...estimators.context import predicting
from ...estimators.distributions.normal import NormalLaw
from ...estimators.predictions import PredictedRows, PredictiveRegressor
from ...estimators.regressor import Regressor
from ...estimators.sampled_functions import SampledFunctions
from ...models.posteriors.gradients import MomentGradients
from .base import DropIn

INPUTS = """Parameters
----------
X : array-like of shape (n_samples, n_features) or list of object
    Inputs.
"""


class Predictive(Protocol):
    """A model that knows the moments of the (normalised) y, row by row and jointly."""

    def moments(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance, each (n, P); ignore the variance unless `with_variance`."""

    def joint(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (n, P) and covariance (n, n, P)."""

    def gradients(self, X: Any) -> MomentGradients:
        """Return mean and standard deviation, and their gradients with respect to the inputs."""


class PredictedByModel(PredictedRows):
    """What a drop-in's model predicts at valid rows, in the units of y."""

    def __init__(self, estimator: GaussianPredictor, X: Any) -> None:
        (self.model, scaling), self.X = estimator._model(), X
        self.scaling, self.known_noise = scaling, estimator._known_noise
        self.n_rows = len(X)
        self.output_shape = () if len(scaling.scale) == 1 else (len(scaling.scale),)

    @predicting()
    def mean_and_variance(self, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the variance without known noise, each (n, P)."""
        mean, var = self.model.moments(self.X, with_variance)
        return mean * self.scaling.scale + self.scaling.offset, var * np.square(self.scaling.scale)

    @predicting()
    def joint(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (n, P) and the covariance (n, n, P)."""
        mean, cov = self.model.joint(self.X)
        return mean * self.scaling.scale + self.scaling.offset, cov * np.square(self.scaling.scale)

    @predicting()
    def gradients(self) -> MomentGradients:
        """Return mean and standard deviation, and their gradients."""
        return self.model.gradients(self.X).scaled(*self.scaling)

    @functools.cached_property
    def whole(self) -> NormalLaw:
        """The law of all rows."""
        mean, var = self.mean_and_variance(with_variance=True)
        return NormalLaw(mean, np.sqrt(var + self.known_noise()))

    def law(self, rows: slice) -> NormalLaw:
        return self.whole.of(rows)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        return self.drawn(n_samples, random_state, self.known_noise())

    def drawn(self, n_samples: int, random_state: Any, noise: np.ndarray) -> np.ndarray:
        """Draw y, (n, P, n_samples), with further noise of this variance (P,)."""
        rng, (mean, cov) = random_numbers(random_state), self.joint()
        if noise.any():
            cov = cov + np.eye(len(cov))[..., None] * noise
        draws = [
            rng.multivariate_normal(mean[:, p], cov[..., p], n_samples).T
            for p in range(mean.shape[1])
        ]
        return np.stack(draws, 1)


class GaussianPredictor(MultiOutputMixin, RegressorMixin, DropIn):
    """Predictions from the moments of y, which the model of a subclass computes."""

    @abstractmethod
    def _model(self) -> tuple[Predictive, Scaling]:
        """Return the model that predicts, and the units of y."""

    @abstractmethod
    def _known_noise(self) -> np.ndarray:
        """Return the variance of new rows' noise that `predict` leaves out, (P,)."""

    def _predicted(self, X: Any) -> PredictedByModel:
        return PredictedByModel(self, self._validated(X, reset=False))

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_mean_grad: bool = False,
        return_std_grad: bool = False,
    ) -> Any:
        """Predict the mean of y, and if asked its standard deviation or joint covariance.

        Both include the noise of a WhiteKernel, but not alpha. A model that is not fitted predicts
        from the prior. The last two parameters are those of scikit-optimize's regressor, for its
        acquisition functions; `predict_gradient` takes many rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviation at each row.
        return_cov : bool, default=False
            Whether to return the covariance between rows, which takes O(n_samples²) memory.
        return_mean_grad : bool, default=False
            Whether to return the gradient of the mean with respect to the inputs, for a single row.
        return_std_grad : bool, default=False
            Whether to return the gradient of the standard deviation, for a single row and with
            `return_std`.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Mean.
        y_std : ndarray of the shape of y_mean
            Only if `return_std`.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_targets)
            Only if `return_cov`.
        y_mean_grad : ndarray of shape (n_features,) or (n_targets, n_features)
            Only if `return_mean_grad`.
        y_std_grad : ndarray of the shape of y_mean_grad
            Only if `return_std_grad`.

        Raises
        ------
        RuntimeError
            If both `return_std` and `return_cov` are True.
        ValueError
            If a gradient is requested for more than one row or with `return_cov`, or
            `return_std_grad` without `return_std`.
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        if return_mean_grad or return_std_grad:
            return self._predict_with_gradients(
                X, return_std, return_cov, return_mean_grad, return_std_grad
            )
        if return_cov:
            mean, cov = self._predicted(X).joint()
            return shaped(mean), shaped(cov)
        mean, var = self._predicted(X).mean_and_variance(with_variance=return_std)
        if return_std:
            return shaped(mean), shaped(np.sqrt(var))
        return shaped(mean)

    def _predict_with_gradients(
        self,
        X: Any,
        return_std: bool,
        return_cov: bool,
        return_mean_grad: bool,
        return_std_grad: bool,
    ) -> tuple[np.ndarray, ...]:
        if return_cov:
            raise ValueError(
                "Gradients need return_std=True; they are not available with return_cov=True."
            )
        if return_std_grad and not return_std:
            raise ValueError("return_std_grad=True needs return_std=True.")
        found = self._predicted(X).gradients()
        if len(found.mean) != 1:
            raise ValueError(
                "return_mean_grad and return_std_grad need one row, as in scikit-optimize, "
                f"got {len(found.mean)}. Use predict_gradient(X) for several."
            )
        of_mean, of_std = shaped_gradients(found)
        asked = [shaped(found.mean)]
        asked += [shaped(found.std)] if return_std else []
        asked += [of_mean[0]] if return_mean_grad else []
        return (*asked, of_std[0]) if return_std_grad else tuple(asked)

    @documented(INPUTS)
    def predict_gradient(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of y's mean and standard deviation with respect to the inputs.

        They are exact, in the units of y and X.

        Returns
        -------
        mean_gradient : ndarray of shape (n_samples, n_features) or \
                (n_samples, n_targets, n_features)
            Gradient of the mean.
        std_gradient : ndarray of the same shape
            Gradient of the standard deviation; 0 where that is 0 and has no gradient.

        Raises
        ------
        TypeError
            If the kernel does not run in torch.
        """
        return shaped_gradients(self._predicted(X).gradients())

    @documented(INPUTS)
    def predict_std(self, X: Any) -> np.ndarray:
        """Predict the standard deviation of y at each row.

        Returns
        -------
        y_std : ndarray of shape (n_samples,) or (n_samples, n_targets)
            The same as from `predict` with `return_std`.
        """
        return shaped(np.sqrt(self._predicted(X).mean_and_variance(with_variance=True)[1]))

    predict_distribution = PredictiveRegressor.predict_distribution
    predict_interval = PredictiveRegressor.predict_interval
    log_predictive_density = PredictiveRegressor.log_predictive_density
    predictive_cdf = PredictiveRegressor.predictive_cdf
    score = PredictiveRegressor.score

    @documented(PredictiveRegressor.sample_y)
    def sample_y(self, X: Any, n_samples: Any = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y jointly at the rows of X, with the noise of a WhiteKernel, but not alpha."""
        found = self._predicted(X)
        noise = np.zeros(len(found.scaling.scale))
        n_samples = check_n_samples(n_samples, found.n_rows * len(noise))
        return found.shaped(found.drawn(n_samples, random_state, noise))

    @documented(Regressor.sample_functions)
    def sample_functions(self, n_samples: Any = 1, random_state: Any = 0) -> SampledFunctions:
        """Draw functions from the posterior or the prior of f, which can be called at any rows.

        `sample_y` draws y at given rows, with the noise of a WhiteKernel. These functions have no
        noise, are the same at every call, and need no covariance matrix of the rows. They are drawn
        by Matheron's rule with 1,024 random Fourier features each (Wilson et al., "Efficiently
        sampling functions from Gaussian process posteriors", ICML 2020): their means and
        covariances are exact; where noise is small, single values may be far off (heavy tails).

        Raises
        ------
        TypeError
            If the kernel has no random Fourier features. Sums of products of RBF, Matern and
            ConstantKernel have them, and so has DotProduct.
        ValueError
            If a parameter is invalid.
        """
        n_samples = check_n_samples(n_samples)
        seed = resolve_seed(random_state)
        with predicting():
            return self._functions(n_samples, seed)

    @abstractmethod
    def _functions(self, n_samples: int, seed: int) -> SampledFunctions:
        """Return functions that are drawn from the model."""


def shaped_gradients(found: MomentGradients) -> tuple[np.ndarray, np.ndarray]:
    """Drop the axis of targets from gradients (n, P, d), if there is one target."""
    of_mean, of_std = found.mean_gradient, found.std_gradient
    return (of_mean[:, 0], of_std[:, 0]) if of_mean.shape[1] == 1 else (of_mean, of_std)


def shaped(a: np.ndarray) -> np.ndarray:
    """Drop the last axis, that of targets, if there is one target, as scikit-learn does."""
    return a[..., 0] if a.shape[-1] == 1 else a
