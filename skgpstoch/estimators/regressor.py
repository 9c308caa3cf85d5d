"""Base of regressors: predict means, standard deviations, intervals, draws and densities."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..data.arguments import check_coverage, check_exposed, check_n_samples
from ..data.arrays import Scaling, resolve_seed
from ..data.docstrings import documented
from ..data.rows import Data
from ..likelihoods.base import check_rows
from ..models.posteriors.exact import ExactPosterior
from ..models.posteriors.neighbours import NeighbourPosterior
from .base import BaseGP, predictor
from .context import predicting
from .distributions.predictive import PredictiveDistribution
from .posterior_law import PredictedByPosterior, gradients_of
from .predictions import PredictiveRegressor, r_squared
from .sampled_functions import SampledFunctions
from .stream_warnings import append
from .validation import (
    check_not_judged,
    check_shape,
    fewest_rows,
    known_columns,
    validate_inputs,
    with_transformed_targets,
)
from .weights import check_weight


class Regressor(MultiOutputMixin, RegressorMixin, BaseGP):
    """Fit, and predictions: mean, standard deviation, intervals, draws and densities.

    Attributes
    ----------
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y.
    """

    @property
    def X_train_(self) -> np.ndarray:
        """Training rows, (n_samples, n_features), if the posterior keeps them."""
        check_is_fitted(self)
        return self._kept_rows("X", self._x_scaling)

    @property
    def y_train_(self) -> np.ndarray:
        """Targets of `X_train_` as the process sees them, after any `target_transform`."""
        check_is_fitted(self)
        return self._kept_rows("y", self._y_scaling).reshape(-1, *self._y_shape)

    def _kept_rows(self, name: str, scaling: Scaling) -> np.ndarray:
        """Return the rows that a posterior keeps, in the user's units."""
        if not isinstance(self.posterior_, ExactPosterior | NeighbourPosterior):
            raise AttributeError(f"This {type(self).__name__} does not keep all training rows.")
        return getattr(self.posterior_, name).numpy() * scaling.scale + scaling.offset

    def _validate(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        given = self._given(X, y, reset, *of_rows, **options)
        return with_transformed_targets(self, given, reset)

    def _given(
        self,
        X: Any,
        y: Any,
        reset: bool,
        sample_weight: Any = None,
        exposure: Any = None,
        y_std: Any = None,
        *,
        least: int | None = None,
    ) -> Data:
        options = {"multi_output": True, "y_numeric": True}
        least = fewest_rows(reset) if least is None else least
        X, y = validate_inputs(self, X, y, reset=reset, ensure_min_samples=least, **options)
        if reset:
            self._y_shape = y.shape[1:]
        check_shape(self, y.shape[1:])
        y = np.ascontiguousarray(y, dtype=np.float64).reshape(len(y), -1)
        data = Data(X, y, **known_columns(y.shape, exposure, y_std))
        if reset:
            self._fitted_with_exposure = exposure is not None
            self._fitted_with_y_std = y_std is not None
        if sample_weight is not None:
            data = check_weight(data, sample_weight, least, keeps=reset)
        return data

    # ---- predictions -------------------------------------------------------------------------

    def _predicted(
        self, X: Any, latent: bool = False, exposure: Any = None, y_std: Any = None
    ) -> PredictedByPosterior:
        return PredictedByPosterior(self, X, latent, exposure, y_std)

    @documented(PredictiveRegressor.predict)
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        latent: bool = False,
        exposure: Any = None,
        y_std: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean of y, and if asked its standard deviation or joint covariance.

        Parameters
        ----------
        return_cov : bool, default=False
            Whether to return the covariance between rows, which takes O(n_samples²) memory.
        latent : bool, default=False
            Whether to predict the latent f, without the noise.
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts, for a Poisson likelihood; None is 1.
        y_std : float or array-like of the shape of y, default=None
            Standard error of y besides the learned noise, for a Gaussian likelihood; None is 0.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Mean.
        y_std : ndarray of the shape of y_mean
            Only if `return_std`.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            Only if `return_cov`.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True; ask for one of them.")
        check_not_judged(self, exposure)
        found = self._predicted(X, latent, exposure, y_std)
        if return_cov:
            mean, cov = found.joint_moments()
            return found.shaped(mean), cov[..., 0] if self._y_shape == () else cov
        if return_std:
            mean, std = found.moments()
            return found.shaped(mean), found.shaped(std)
        return found.shaped(found.mean())

    @documented(PredictiveRegressor.predict_std, predict)
    def predict_std(
        self, X: Any, *, latent: bool = False, exposure: Any = None, y_std: Any = None
    ) -> np.ndarray:
        """Predict the standard deviation of y at each row."""
        found = self._predicted(X, latent, exposure, y_std)
        return found.shaped(found.moments()[1])

    @documented(predict)
    def predict_gradient(self, X: Any, *, latent: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of y's mean and standard deviation with respect to the inputs.

        They are exact, in the units of y and X. With a `target_transform`, there are only gradients
        of f, the transformed target: set latent=True.

        Returns
        -------
        mean_gradient : ndarray of shape (n_samples, n_features) or \
                (n_samples, n_outputs, n_features)
            Gradient of the mean.
        std_gradient : ndarray of the same shape
            Gradient of the standard deviation; 0 where that is 0 and has no gradient.
        """
        found = gradients_of(self, X, latent)
        both = found.mean_gradient, found.std_gradient
        return (both[0][:, 0], both[1][:, 0]) if self._y_shape == () else both

    @documented(PredictiveRegressor.predict_interval, predict)
    def predict_interval(
        self,
        X: Any,
        coverage: Any = 0.95,
        *,
        latent: bool = False,
        exposure: Any = None,
        y_std: Any = None,
    ) -> np.ndarray:
        """Predict the central interval that contains y with probability `coverage`."""
        coverage = check_coverage(coverage)
        return self._predicted(X, latent, exposure, y_std).interval(coverage)

    @documented(PredictiveRegressor.predict_distribution, predict)
    def predict_distribution(
        self, X: Any, *, latent: bool = False, exposure: Any = None, y_std: Any = None
    ) -> PredictiveDistribution:
        """Predict the distribution of y at each row."""
        return self._predicted(X, latent, exposure, y_std).distribution()

    @documented(PredictiveRegressor.sample_y, predict)
    def sample_y(
        self,
        X: Any,
        n_samples: Any = 1,
        random_state: Any = 0,
        *,
        latent: bool = False,
        exposure: Any = None,
        y_std: Any = None,
    ) -> np.ndarray:
        """Draw y jointly at the rows of X, from the posterior.

        Parameters
        ----------
        latent : bool, default=False
            Whether to draw the latent f, without the noise.
        exposure : float or array-like of shape (n_samples_X,), default=None
            Factor of the rates of counts, for a Poisson likelihood; None is 1.
        """
        return self._predicted(X, latent, exposure, y_std).sample(n_samples, random_state)

    @documented(sample_y)
    def sample_functions(self, n_samples: Any = 1, random_state: Any = 0) -> SampledFunctions:
        """Draw functions from the posterior of f, which can be called at any rows.

        `sample_y` with `latent=True` draws f at given rows. These functions are the same at every
        call, and need no covariance matrix of the rows. Draws from finite features are exact. Draws
        from kernels (sums of products of RBF, Matern and ConstantKernel, and DotProduct) follow
        Matheron's rule with 1,024 random Fourier features each [1]_: their means and covariances
        are exact; where noise is small, single values may be far off (heavy tails).

        Returns
        -------
        functions : SampledFunctions
            `functions(X)` returns the values at the rows of X, of shape (n_samples_X, n_samples) or
            (n_samples_X, n_outputs, n_samples), in the units of the (transformed) y.
            `functions.torch(X)` takes a tensor, and is differentiable with respect to it.

        Raises
        ------
        TypeError
            If the kernel has no random Fourier features.
        ValueError
            If a parameter is invalid, or the posterior has no functions, as in deep models and
            QSGP.

        References
        ----------
        .. [1] J. T. Wilson et al., "Efficiently sampling functions from Gaussian process
           posteriors", ICML 2020.
        """
        check_is_fitted(self)
        n_samples = check_n_samples(n_samples)
        device, posterior = predictor(self)
        generator = torch.Generator(device).manual_seed(resolve_seed(random_state))
        with predicting():
            drawn = copy.deepcopy(posterior).functions(n_samples, generator)
        validate = functools.partial(validate_inputs, copy.copy(self), reset=False)
        scalings = (self._x_scaling, self._y_scaling)
        return SampledFunctions(drawn, validate, *scalings, self._y_shape, device)

    # ---- more rows ---------------------------------------------------------------------------

    def condition_on(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        exposure: Any = None,
        y_std: Any = None,
    ) -> Any:
        """Condition the posterior on more rows, and keep the hyper-parameters of the fit.

        Nothing is forgotten: predictions are those given the rows of the fit and the new ones. This
        is exact for exact and finite-dimensional posteriors, and for sparse ones with a Gaussian
        likelihood, given their inducing points. With other likelihoods, earlier rows keep the
        Gaussian approximation of their likelihood as it was; nearest neighbours find it anew near
        the new rows. It takes a pass over the new rows and one factorisation. `partial_fit`, where
        there is one, also trains hyper-parameters, and forgets (but for nearest neighbours).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the new rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets; scalings stay those of the fit.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts, for a Poisson likelihood; needed if the model was fitted
            with one.
        y_std : float or array-like of the shape of y, default=None
            Standard error of y besides the learned noise, for a Gaussian likelihood on inducing
            points, or nearest neighbours (NNGPRegressor); None is 0.

        Returns
        -------
        self : object
            The updated estimator. Its `diagnose()` still describes the fit.

        Raises
        ------
        ValueError
            If an argument is invalid, or rows cannot be added to this kind of posterior; the
            estimator is then as it was before.
        """
        return append(self, X, y, sample_weight, exposure, y_std)

    # ---- scores ------------------------------------------------------------------------------

    @documented(predict)
    def score(self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None) -> float:
        """Return the coefficient of determination R² of the predicted mean.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts, for a Poisson likelihood; needed if the model was fitted
            with one.

        Returns
        -------
        score : float
            R², at most 1.
        """
        check_exposed(self, exposure)
        # `predict` may be a subclass's own, without exposures.
        given = {} if exposure is None else {"exposure": exposure}
        return r_squared(y, self.predict(X, **given), sample_weight)

    @documented(PredictiveRegressor.log_predictive_density, predict)
    def log_predictive_density(
        self, X: Any, y: Any, *, exposure: Any = None, y_std: Any = None
    ) -> np.ndarray:
        """Return the log density log p(y | x, data) of each row, summed over outputs."""
        return self._predicted(X, False, exposure, y_std).log_density(y)

    @documented(PredictiveRegressor.predictive_cdf, predict)
    def predictive_cdf(
        self, X: Any, y: Any, *, exposure: Any = None, y_std: Any = None
    ) -> np.ndarray:
        """Return P(Y ≤ y | x, data) of each row."""
        found = self._predicted(X, False, exposure, y_std)
        return found.shaped(found.cdf(y))

    def _checked(self, X: Any, y: Any, *of_rows: Any) -> Data:
        """Return validated rows to score; `of_rows` are in the order of `_validate`."""
        check_is_fitted(self)
        check_exposed(self, of_rows[1])
        data = self._validate(X, y, False, *of_rows)
        check_rows(self.posterior_.likelihood, data)  # not a parameter that was set after the fit
        return data

    @documented(log_predictive_density)
    def log_marginal_likelihood(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        exposure: Any = None,
        y_std: Any = None,
    ) -> float:
        """Return log p(y | X) of these rows, or the bound on it, with fitted hyper-parameters.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        y_std : float or array-like of the shape of y, default=None
            Standard error of y besides the learned noise, for a Gaussian likelihood on inducing
            points, or nearest neighbours (NNGPRegressor); None is 0.

        Returns
        -------
        log_likelihood : float
            In nats, summed over rows and outputs, for y in its own units.
        """
        self._validate_params()
        X, rows, posterior = self._labelled(self._checked(X, y, sample_weight, exposure, y_std))
        with predicting():
            value = self._recipe().evidence(posterior, X, rows)
        return value - rows.n_effective * float(np.log(self._y_scaling.scale).sum())


class GeneralRegressor(Regressor):
    """A regressor for any likelihood, whose rows may have exposures and known errors."""

    @documented(Regressor.fit)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        exposure: Any = None,
        y_std: Any = None,
    ) -> Any:
        """Fit the model.

        Parameters
        ----------
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts; None is 1. Estimators or likelihoods that are not for
            counts have none.
        y_std : float or array-like of the shape of y, default=None
            Known standard error of each target, in the units of y, besides the learned noise; for a
            Gaussian likelihood. None is 0.
        """
        return self._fit_to(X, y, sample_weight, exposure, y_std)
