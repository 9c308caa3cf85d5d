"""Regressors and classifiers with very many basis functions, whatever these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..likelihoods.classes import Bernoulli
from ..likelihoods.one_vs_rest import OneVsRest
from ..likelihoods.real import AdditiveNoise
from .basis import BasisGP
from .classifier import GPClassifier
from .plan import Plan
from .regressor import GPRegressor


@dataclass(eq=False, repr=False, kw_only=True)
class BasisGPRegressor(BasisGP, GPRegressor):
    """Regression.

    Parameters
    ----------
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.

    Attributes
    ----------
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    kernel_ : sklearn kernel
        The kernel, and the noise as a WhiteKernel where `kernel` has one; variances refer to the
        scaled y.
    """

    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, list]] = {"normalize_y": ["boolean"]}

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

    def _set_fitted(self, plan: Plan) -> None:
        super()._set_fitted(plan)
        likelihood = self.likelihood_
        assert isinstance(likelihood, AdditiveNoise)
        self.likelihood_ = likelihood.in_units(torch.from_numpy(self._y_scaling.scale))
        noise = self.likelihood_.noise_variance.detach().numpy()
        self.noise_variance_ = float(noise[0]) if self._y_shape == () else noise


@dataclass(eq=False, repr=False, kw_only=True)
class BasisGPClassifier(BasisGP, GPClassifier):
    """Two classes by the logistic likelihood, more by one of these for each class."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,)
            Labels, of two classes or more.
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

    def _make_likelihood(self) -> Likelihood:
        n_classes = len(self.classes_)
        return Bernoulli("logit") if n_classes == 2 else OneVsRest(n_classes)

    def _codes(self, rows: Rows, shift: Tensor) -> Tensor:
        likelihood = self._make_likelihood()
        one_hot = likelihood.indicators(rows.y) if isinstance(likelihood, OneVsRest) else rows.y
        return 2.0 * (one_hot - rows.mean(one_hot))
