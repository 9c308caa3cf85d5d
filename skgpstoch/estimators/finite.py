"""Constructor, feature map, streams and closing attributes of the finite-kernel regressors."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from numbers import Integral
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling
from ..features.base import FeatureMap, JoinedFeatures
from ..features.fourier import KernelFeatures
from ..features.network import NetworkFeatures
from ..likelihoods.real import Gaussian
from ..objectives.base import Objective
from ..objectives.evidence import WINDOW, FiniteObjective
from ..posteriors.conjugate import ConjugatePosterior
from .network_kernel import DeepKernelMixin
from .partial_fit import StreamsMixin
from .regressor import GPRegressor

MAX_FEATURES = 20_000  # a closing pass of O(n D² + D³) time and D² numbers


MEMBER_ROWS = 10_000


WINDOW_STEPS = 39  # minibatches averaged at least: a rate b_t of 0.05


class FiniteGPRegressor(DeepKernelMixin, StreamsMixin, GPRegressor):
    """Constructor parameters, feature map, streams and attributes of finite-kernel regressors."""

    _max_members = 5

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **GPRegressor._parameter_constraints,
        **DeepKernelMixin._parameter_constraints,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_estimators": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "noise": [StrOptions({"auto", "validation", "profiled", "learned"})],
    }

    def __init__(
        self,
        kernel: sk.Kernel | None = None,
        *,
        hidden_layer_sizes: Any = (128, 128),
        activation: str = "relu",
        feature_map: nn.Module | None = None,
        n_components: int = 1000,
        n_estimators: int | str = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        solver: str = "adam",
        learning_rate_init: float = 0.01,
        learning_rate: str = "one-cycle",
        weight_decay: float | str = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | None = None,
        tol: float = 0.0,
        normalize_y: bool = True,
        noise: str = "auto",
        noise_variance: float = 0.1,
        warm_start: bool = False,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        checkpoint_dir: Any = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.feature_map = feature_map
        self.n_components = n_components
        self.n_estimators = n_estimators
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.solver = solver
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.normalize_y = normalize_y
        self.noise = noise
        self.noise_variance = noise_variance
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.checkpoint_dir = checkpoint_dir
        self.verbose = verbose
        self.random_state = random_state

    # ---- what "auto" means -------------------------------------------------------------------

    def _n_folds(self, n_rows: int) -> int:
        """K: few rows leave time for several networks, each validated on a fold of its own."""
        networks = self.feature_map is None and bool(self._layers())
        if self.n_estimators != "auto":
            if not networks and int(self.n_estimators) > 1:
                raise ValueError(
                    f"n_estimators={self.n_estimators} needs networks to be joined: "
                    "hidden_layer_sizes, and feature_map=None."
                )
            return int(self.n_estimators)
        if self._starts_warm():
            return self._fitted_features().n_members
        if not networks or self.kernel is not None or not self.early_stopping:
            return 1
        return max(1, min(self._max_members, math.ceil(MEMBER_ROWS / n_rows), n_rows // 2))

    def _budget(self, n_rows: int) -> tuple[int, int]:
        auto = int(np.clip(n_rows // 64, 128, 512))
        b = min(auto if self.batch_size == "auto" else int(self.batch_size), n_rows)
        if self.max_iter != "auto":
            return int(self.max_iter), b
        fewest = np.clip(3 * n_rows, 200, 1000)
        n_steps = int(np.clip(n_rows, fewest, 8000))
        return math.ceil(n_steps / math.ceil(n_rows / b)), b

    # ---- hooks -------------------------------------------------------------------------------

    def _input_scaling(self, X: np.ndarray) -> Scaling:
        """Standard for our networks; centred where the kernel does not change by it."""
        expression, _ = self._split_kernel()
        if self.feature_map is not None:
            return Scaling.identity(X.shape[1])
        if self._layers():
            return Scaling.standard(X)
        if expression is not None and "DotProduct" in repr(expression):
            return Scaling.identity(X.shape[1])
        return Scaling.centered(X)

    def _features(self, X: Tensor, generator: torch.Generator, n_members: int) -> FeatureMap:
        """φ, before training."""
        network, width = self._network(X, generator, n_members)
        expression, _ = self._split_kernel()
        if expression is None:
            return NetworkFeatures(network, width, n_members, skip=X.shape[1])
        seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
        kernel = kernels.from_sklearn(expression)
        return KernelFeatures(kernel, network, width, self.n_components, seed, n_members)

    def _noise(self, validates: bool, trains_network: bool) -> str:
        """How the objective is to treat σ²."""
        low, high = self._noise_bounds()
        if low == high:
            return "fixed"
        if self.noise in ("auto", "validation"):  # few hyper-parameters do not overfit
            asked = trains_network or self.noise == "validation"
            return "validation" if validates and asked else "profiled"
        return self.noise

    def _objective(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Objective:
        features = self._features(X, generator, self._n_folds(len(X)))
        if self._starts_warm():
            load_fitted(features, self._fitted_features())
        return self._build(features, X, targets)

    def _build(self, features: FeatureMap, X: Tensor, targets: Tensor) -> FiniteObjective:
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
            targets,
            noise=self._noise(
                validates=bool((targets[:, -1] >= 0).any()),
                trains_network=bool(features.network_parameters()),
            ),
            noise_variance=self._initial_noise(),
            noise_bounds=self._noise_bounds(),
            weight_decay=self._weight_decay(len(X)),
            window_rows=WINDOW_STEPS * self._budget(len(X))[1],
        )
        objective.has_user_module = self.feature_map is not None
        return objective

    @abstractmethod
    def _method(
        self, features: FeatureMap, X: Tensor, targets: Tensor, **options: Any
    ) -> FiniteObjective:
        """The method's own objective."""

    def _fitted_features(self) -> FeatureMap:
        """The fitted map, not joined."""
        features = self._conjugate.features
        return features.features if isinstance(features, JoinedFeatures) else features

    def _set_fitted(self) -> None:
        likelihood = cast(Gaussian, self.posterior_.likelihood)
        with np.errstate(over="ignore"):  # a target of order 1e200 has a variance beyond float64
            noise = likelihood.noise_variance.detach().numpy() * self._y_scaling.scale**2
        self.noise_variance_ = float(noise[0]) if self._y_shape == () else noise
        self.log_marginal_likelihood_value_ = self._log_evidence(self.posterior_)
        self.kernel_ = self._fitted_kernel()

    @property
    def _conjugate(self) -> ConjugatePosterior:
        """The posterior of a kernel with features."""
        return cast(ConjugatePosterior, self.posterior_)

    def _fitted_kernel(self) -> sk.Kernel:
        """The kernel on the features, in units of the scaled y, with its constant and its noise."""
        _, white = self._split_kernel()
        features, weights = self._conjugate.features, self._conjugate.weights
        fitted = (
            kernels.to_sklearn(features.kernel)
            if isinstance(features, KernelFeatures)
            else sk.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
        )
        signal_variance = float((weights.noise_variance / weights.ridge).log().mean().exp())
        if not math.isclose(signal_variance, 1.0):
            fitted = sk.ConstantKernel(signal_variance) * fitted
        return kernels.join_white_noise(fitted, float(weights.noise_variance.mean()), white)

    # ---- more of the data --------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any) -> Any:
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

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X or y is invalid, or the kernel has no features, finite or random.
        """
        return self._partial_fit(X, y)

    def _stream_objective(
        self, X: Tensor, targets: Tensor, generator: torch.Generator
    ) -> FiniteObjective:
        """From the fitted model, or a new one."""
        if not hasattr(self, "posterior_"):
            features = self._features(X, generator, n_members=1)
            objective = self._build(features, X, targets)
        else:
            fitted = copy.deepcopy(self._conjugate.features).to(X)
            for p in fitted.parameters():
                p.requires_grad_(True)
            if self.feature_map is not None:  # its frozen parameters stay so
                user, ours = self.feature_map.parameters(), fitted.network_parameters()
                for p, q in zip(user, ours, strict=True):
                    q.requires_grad_(p.requires_grad)
            features = JoinedFeatures(fitted) if fitted.n_members > 1 else fitted
            objective = self._build(features, X, targets)
            weights = self._conjugate.weights
            objective.set_noise(weights.noise_variance, weights.ridge)
            objective.running.start_from(weights.spectrum.statistics())
            objective.n_rows += weights.spectrum.n_rows
        objective.running.window = WINDOW * features.n_features
        objective.streams = True
        return objective


def load_fitted(module: nn.Module, fitted: nn.Module) -> None:
    """Start from the parameters of a fitted module (warm_start).

    Raises
    ------
    ValueError
        If it has another shape.
    """
    try:
        module.load_state_dict(fitted.state_dict())
    except RuntimeError as error:
        raise ValueError(
            "warm_start=True needs a feature map of the shape that was fitted before, but "
            "hidden_layer_sizes, feature_map, kernel, n_components or n_estimators have changed."
        ) from error
