"""Regressors and classifiers of the sparse variational family, whatever their features are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.metrics import r2_score
from torch import Tensor

from ..likelihoods import make_likelihood
from ..likelihoods.base import Likelihood
from ..likelihoods.classes import Bernoulli, Categorical
from ..likelihoods.real import AdditiveNoise
from ..training.checkpoint import Checkpoint
from .classifier import GPClassifier
from .regressor import GPRegressor, check_exposure
from .sparse import SparseGP


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGPRegressor(SparseGP, GPRegressor):
    """Regression and counts."""

    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, list]] = SparseGP._parameter_constraints

    def fit(self, X: Any, y: Any, exposure: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets; counts for likelihood="poisson".
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or exposure is invalid, or training diverges; the estimator is then
            as it was before.
        """
        return self._with_exposure(super().fit, X, y, exposure)

    def partial_fit(self, X: Any, y: Any, exposure: Any = None) -> Any:
        """One pass over more rows, for streams.

        The scalings of X and y are those of the first call (or of `fit`). The posterior is that of
        the running averages, and the learning rate is `learning_rate_init` times their averaging
        rate, a tenth at most; `log_marginal_likelihood_value_` is not known of a stream, and NaN.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        exposure : float or array-like of shape (n_samples,), default=None
            As for `fit`.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or exposure is invalid, or solver, loss or beta not for streams.
        """
        return self._with_exposure(self._partial_fit, X, y, exposure)

    def score(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> float:
        """Coefficient of determination R² of the predicted mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.
        exposure : float or array-like of shape (n_samples,), default=None
            As for `fit`; needed if the model was fitted with one.

        Returns
        -------
        score : float
            At most 1.
        """
        self._check_exposed(exposure)
        return float(r2_score(y, self.predict(X, exposure=exposure), sample_weight=sample_weight))

    def _check_exposed(self, exposure: Any) -> None:
        if exposure is None and getattr(self, "_fitted_with_exposure", False):
            raise ValueError(
                "exposure must be given, as the model was fitted with one: without it y cannot be "
                "judged."
            )

    def _with_exposure(self, method: Any, X: Any, y: Any, exposure: Any) -> Any:
        if exposure is not None:
            self._make_likelihood().given(torch.ones(1, 1, dtype=torch.float64, device="cpu"))
            self._exposure = exposure
        try:
            method(X, y)
        finally:
            self.__dict__.pop("_exposure", None)
        self._fitted_with_exposure = exposure is not None
        return self

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        X, y = super()._validate(X, y, reset)
        self._make_likelihood().check_targets(y)
        return X, y

    def _make_likelihood(self) -> Likelihood:
        name = "gaussian" if self.likelihood == "auto" else self.likelihood
        likelihood = make_likelihood(name, ("gaussian", "student_t", "laplace", "poisson"))
        if isinstance(likelihood, Bernoulli | Categorical):
            raise ValueError(
                f"likelihood={self.likelihood!r} is for classes: use the classifier instead of "
                f"{type(self).__name__}."
            )
        return likelihood

    def _target_is_scaled(self) -> bool:
        return bool(self.normalize_y) and isinstance(self._make_likelihood(), AdditiveNoise)

    def _tensors(
        self, X: np.ndarray, y: np.ndarray, device: torch.device, order: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        rows, targets = super()._tensors(X, y, device, order)
        exposure = self._checked_exposure(len(X))
        exposure = exposure if order is None else exposure[order]
        return rows, torch.cat([targets, torch.from_numpy(exposure).to(targets)], 1)

    def _checked_exposure(self, n_rows: int) -> np.ndarray:
        """Of the rows that are being fitted, (n, 1); (n, 0) where there is none."""
        if not hasattr(self, "_exposure"):
            return np.empty((n_rows, 0))
        return check_exposure(self._exposure, n_rows)

    def _checkpoint(self, X: np.ndarray, y: np.ndarray, seed: int) -> Checkpoint | None:
        return super()._checkpoint(X, np.hstack([y, self._checked_exposure(len(X))]), seed)

    def _set_fitted(self) -> None:
        super()._set_fitted()
        self.log_marginal_likelihood_value_ = self._log_evidence(self.posterior_)
        if isinstance(self.likelihood_, AdditiveNoise):
            self.likelihood_ = self.likelihood_.in_units(torch.from_numpy(self._y_scaling.scale))
            noise = self.likelihood_.noise_variance.detach().numpy()
            self.noise_variance_ = float(noise[0]) if self._y_shape == () else noise


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGPClassifier(GPClassifier, SparseGP):
    """Two classes or more."""

    _parameter_constraints: ClassVar[dict[str, list]] = SparseGP._parameter_constraints

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Any:
        """One pass over more rows, for streams.

        The scaling of X is that of the first call (or of `fit`). The posterior is that of the
        running averages, and the learning rate is `learning_rate_init` times their averaging rate,
        a tenth at most; `log_marginal_likelihood_value_` is not known of a stream, and NaN.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,) or None, default=None
            All the labels that may come, at the first call; None for those of `y`.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or classes is invalid, or solver, loss or beta not for streams.
        """
        if classes is None:
            return self._partial_fit(X, y)
        classes = np.unique(classes)
        if len(classes) < 2:
            raise ValueError(f"classes must list two labels at least, got {classes.tolist()}.")
        if hasattr(self, "posterior_") and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"classes must be those of the first call, {self.classes_.tolist()}, got "
                f"{classes.tolist()}."
            )
        self._announced = classes
        try:
            return self._partial_fit(X, y)
        finally:
            self.__dict__.pop("_announced", None)

    def _make_likelihood(self) -> Likelihood:
        n_classes = len(self.classes_)
        name = self.likelihood
        if self.likelihood == "auto":
            name = "bernoulli" if n_classes == 2 else "softmax"
        likelihood = make_likelihood(name, ("bernoulli", "softmax", "robustmax"))
        if isinstance(likelihood, Categorical):
            return likelihood.for_classes(n_classes)
        if not isinstance(likelihood, Bernoulli):
            raise ValueError(
                f"likelihood of {type(self).__name__} must be 'bernoulli', 'softmax' or "
                f"'robustmax', got {self.likelihood!r}."
            )
        if n_classes > 2:
            raise ValueError(
                f"likelihood={self.likelihood!r} is for two classes, but y has {n_classes}; use "
                "'softmax' or 'robustmax'."
            )
        return likelihood
