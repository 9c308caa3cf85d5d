"""Regressors with finite features: feature map, streams and fitted attributes."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from .. import kernels
from ..data.rows import Data, Rows
from ..features.base import FeatureMap, JoinedFeatures
from ..features.fourier import KernelFeatures
from ..likelihoods.real import Gaussian
from ..objectives.base import Objective
from ..objectives.evidence import STATISTICS_WINDOW, FiniteObjective
from ..posteriors.base import Posterior
from ..posteriors.conjugate import ConjugatePosterior
from ..posteriors.exact import ExactPosterior
from .checkpoint_key import changed_shape
from .network_kernel import NetworkKernel, freeze_as
from .parameters import FiniteParameters, TrainingParameters
from .partial_fit import StreamsMixin
from .plan import Plan, finite_plan, n_members
from .regressor import GPRegressor, check_shared_noise
from .warm_start import load_fitted

MAX_FEATURES = 20_000  # a closing pass of O(n D² + D³) time and D² numbers


@dataclass(eq=False, repr=False, kw_only=True)
class FiniteGPRegressor(
    FiniteParameters, TrainingParameters, NetworkKernel, StreamsMixin, GPRegressor
):
    """Feature map, streams and attributes of regressors with finite features.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Features and weights' posterior, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, its scale included.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    """

    _max_members: ClassVar[int] = 5
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "kernel",
        "hidden_layer_sizes",
        "activation",
        "feature_map",
        "n_components",
        "n_estimators",
        "normalize_y",
    )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for: 2 is the same as the row twice, 0 as without it.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid, or training diverges; the estimator is
            then as it was before.
        """
        return self._fit_to(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """One pass over more rows, for streams.

        The scalings of X and y are those of the first call (or of `fit`). The posterior is that of
        the running statistics, about the last 20 rows for each feature, and the learning rate is
        `learning_rate_init` times their averaging rate, a tenth at most. noise="validation" has no
        rows to validate by, so the noise is profiled.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid, the kernel has no features, finite or
            random, or what the model is made of has changed since the first call.
        """
        return self._partial_fit(X, y, sample_weight)

    # ---- hooks -------------------------------------------------------------------------------

    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        if streams:
            return finite_plan(self, len(data), streams=True)
        return finite_plan(self, len(data), self._n_members(len(data), start))

    def _n_members(self, n_rows: int, start: Any) -> int:
        if start is not None and self.n_estimators == "auto":
            return unjoined(start).n_members
        return n_members(self, n_rows, bool(self._layers()), self._max_members)

    def _noise(self, validates: bool, trains_network: bool) -> str:
        """How the objective is to treat σ²."""
        low, high = self._noise_bounds()
        if low == high:
            return "fixed"
        if self.noise in ("auto", "validation"):  # few hyper-parameters do not overfit
            asked = trains_network or self.noise == "validation"
            return "validation" if validates and asked else "profiled"
        return self.noise

    def _objective(
        self, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> Objective:
        features = self._finite_map(X, generator, plan.folds.n_folds)
        if start is not None:
            load_fitted(features, unjoined(start), changed_shape(self))
        return self._build(features, X, rows, plan)

    def _build(self, features: FeatureMap, X: Tensor, rows: Rows, plan: Plan) -> FiniteObjective:
        total = features.n_members * features.n_features
        if total > MAX_FEATURES:
            raise ValueError(
                f"The feature map has {total} features in all, more than the {MAX_FEATURES} for "
                "which a dense matrix is reasonable: lower n_estimators, n_components or the last "
                "of hidden_layer_sizes."
            )
        objective = self._method(
            features.to(X.device),
            X,
            rows,
            noise=self._noise(
                validates=plan.folds.size > 0,
                trains_network=bool(features.network_parameters()),
            ),
            noise_variance=self._initial_noise(),
            noise_bounds=self._noise_bounds(),
            weight_decay=self._weight_decay(rows.n_effective),
            window_rows=plan.window_rows,
        )
        objective.has_user_module = self.feature_map is not None
        return objective

    @abstractmethod
    def _method(
        self, features: FeatureMap, X: Tensor, rows: Rows, **options: Any
    ) -> FiniteObjective:
        """The method's own objective."""

    # ---- fitted attributes -------------------------------------------------------------------

    def _set_fitted(self, plan: Plan) -> None:
        likelihood = cast(Gaussian, self.posterior_.likelihood)
        with np.errstate(over="ignore"):  # a target of order 1e200 has a variance beyond float64
            noise = likelihood.noise_variance.detach().numpy() * self._y_scaling.scale**2
        self.noise_variance_ = float(noise[0]) if self._y_shape == () else noise
        evidence = float(self.posterior_.log_evidence().sum())
        value = self._in_units(evidence, self.posterior_.n_rows)
        self.log_marginal_likelihood_value_ = value
        self.kernel_ = self._fitted_kernel()

    def _fitted_kernel(self) -> sk.Kernel:
        """The kernel on the features, in units of the scaled y, with its constant and its noise."""
        _, white = self._split_kernel()
        posterior = cast(ConjugatePosterior, self.posterior_)
        features, weights = posterior.features, posterior.weights
        fitted = (
            kernels.to_sklearn(features.kernel)
            if isinstance(features, KernelFeatures)
            else sk.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
        )
        signal_variance = float((weights.noise_variance / weights.ridge).log().mean().exp())
        if not math.isclose(signal_variance, 1.0):
            fitted = sk.ConstantKernel(signal_variance) * fitted
        return kernels.join_white_noise(fitted, float(weights.noise_variance.mean()), white)

    def _evidence_of(self, posterior: Posterior, X: Tensor, rows: Rows) -> float:
        check_shared_noise(posterior, rows)
        refit = cast(ConjugatePosterior | ExactPosterior, posterior).refit(X, rows)
        return float(refit.log_evidence().sum())

    # ---- streams -----------------------------------------------------------------------------

    def _stream_objective(
        self, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> FiniteObjective:
        if not hasattr(self, "posterior_"):
            features = self._finite_map(X, generator, n_members=1)
            objective = self._build(features, X, rows, plan)
        else:
            posterior = cast(ConjugatePosterior, self.posterior_)
            fitted = copy.deepcopy(posterior.features).to(X).requires_grad_(True)
            freeze_as(fitted.network_parameters(), self.feature_map)
            features = JoinedFeatures(fitted) if fitted.n_members > 1 else fitted
            objective = self._build(features, X, rows, plan)
            weights = posterior.weights
            objective.set_noise(weights.noise_variance, weights.ridge)
            objective.running.start_from(weights.spectrum.statistics())
            objective.n_rows += weights.spectrum.n_rows
        objective.running.window = STATISTICS_WINDOW * features.n_features
        objective.streams = True
        return objective


def unjoined(posterior: nn.Module) -> FeatureMap:
    """The fitted map of a posterior, an ensemble if it is one; an exact one has none."""
    features = getattr(posterior, "features", FeatureMap())
    return features.features if isinstance(features, JoinedFeatures) else features
