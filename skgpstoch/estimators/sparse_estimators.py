"""Regressors and classifiers of the sparse variational family, whatever their features are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions

from ..data.rows import Data
from ..likelihoods import make_likelihood
from ..likelihoods.base import Likelihood
from ..likelihoods.classes import Bernoulli, Categorical
from ..likelihoods.real import AdditiveNoise
from .classifier import GPClassifier
from .plan import Plan
from .regressor import GPRegressor
from .sparse import SparseGP

NAMES = ("gaussian", "student_t", "shared_student_t", "laplace", "poisson")
"""Likelihoods of regressors."""


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGPRegressor(SparseGP, GPRegressor):
    """Regression and counts.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        An expression of RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared,
        DotProduct and ConstantKernel by sums, products and powers. None: a constant times a Matérn
        kernel (nu=1.5) with a length-scale for each input, started from the data. A top-level
        WhiteKernel is the noise of the Gaussian likelihood. Variances refer to the scaled y.
    normalize_y : bool, default=True
        Whether the target is standardised inside, where noise is additive; results are in its own
        units.
    likelihood : str or Likelihood, default="auto"
        "gaussian", "student_t", "shared_student_t", "laplace", or "poisson" for counts; or an
        instance of a class of :mod:`skgpstoch.likelihoods`. "auto" is "gaussian";
        "shared_student_t" needs loss="log".
    noise : {"constant", "input"}, default="constant"
        Whether the scale of additive noise is the same everywhere, or a function of X: softplus of
        a second function of the features, of which there is a point estimate. Of such noise,
        `likelihood_` and `noise_variance_` are those where that function is 0.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs; variances refer to the scaled y.
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y, without known errors; of Gaussian, Student-t and
        Laplace noise.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows, for y in its own units; NaN after
        `partial_fit`.
    """

    normalize_y: bool = True
    noise: str = "constant"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "normalize_y": ["boolean"],
        "noise": [StrOptions({"constant", "input"})],
    }

    def _noise_of_inputs(self) -> bool:
        if self.noise == "constant":
            return False
        likelihood, loss = self._make_likelihood(), self._make_loss()
        if not isinstance(likelihood, AdditiveNoise) or loss.covariance(likelihood) == "prior":
            raise ValueError(
                "noise='input' needs additive noise, and a loss that tells of it, got "
                f"{likelihood!r} and {loss!r}."
            )
        if loss.is_noisy() and loss.get_params().get("gradient") == "product":
            raise ValueError("noise='input' needs another gradient than 'product'.")
        return True

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None, y_std: Any = None
    ) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets; counts for likelihood="poisson".
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for: 2 is the same as the row twice, 0 as without it.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.
        y_std : float or array-like of the shape of y, default=None
            Known standard error of each target, in the units of y, besides the noise that is
            learned; for a Gaussian likelihood. None is 0.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter or what is given of rows is invalid, or training diverges; the estimator
            is then as it was before.
        """
        return self._fit_to(X, y, sample_weight, exposure, y_std)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None, y_std: Any = None
    ) -> Any:
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
        sample_weight : array-like of shape (n_samples,) or None, default=None
            As for `fit`.
        exposure : float or array-like of shape (n_samples,), default=None
            As for `fit`.
        y_std : float or array-like of the shape of y, default=None
            As for `fit`.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter or what is given of rows is invalid, solver, loss or beta not for
            streams, or what the model is made of has changed since the first call.
        """
        return self._partial_fit(X, y, sample_weight, exposure, y_std)

    def _check_chunk(self, data: Data) -> None:
        given, before = data.exposure is not None, self._fitted_with_exposure
        if given != before:
            raise ValueError(
                "exposure must be given for all chunks or for none, but the rows before had "
                f"{'some' if before else 'none'}: give ones where it is not known otherwise."
            )

    def _validate(
        self,
        X: Any,
        y: Any,
        reset: bool,
        sample_weight: Any = None,
        exposure: Any = None,
        y_std: Any = None,
    ) -> Any:
        data = super()._validate(X, y, reset, sample_weight, exposure, y_std)
        likelihood = self._make_likelihood()
        likelihood.check_targets(data.y)
        one = torch.ones(1, 1, dtype=torch.float64)
        likelihood.given(None if exposure is None else one, None if y_std is None else one)
        if reset:
            self._fitted_with_exposure = exposure is not None
        return data

    def _make_likelihood(self) -> Likelihood:
        name = "gaussian" if self.likelihood == "auto" else self.likelihood
        likelihood = make_likelihood(name, NAMES)
        if isinstance(likelihood, Bernoulli | Categorical):
            raise ValueError(
                f"likelihood={self.likelihood!r} is for classes: use the classifier instead of "
                f"{type(self).__name__}."
            )
        return likelihood

    def _target_is_scaled(self) -> bool:
        return bool(self.normalize_y) and isinstance(self._make_likelihood(), AdditiveNoise)

    def _set_fitted(self, plan: Plan) -> None:
        super()._set_fitted(plan)
        value = self.log_marginal_likelihood_value_
        self.log_marginal_likelihood_value_ = self._in_units(value, self.posterior_.n_rows)
        self.__dict__.pop("noise_variance_", None)
        if isinstance(self.likelihood_, AdditiveNoise):
            self.likelihood_ = self.likelihood_.in_units(torch.from_numpy(self._y_scaling.scale))
            noise = self.likelihood_.noise_variance.detach().numpy()
            self.noise_variance_ = float(noise[0]) if self._y_shape == () else noise


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGPClassifier(SparseGP, GPClassifier):
    """Two classes or more.

    Parameters
    ----------
    likelihood : str or Likelihood, default="auto"
        "bernoulli" (logistic), "softmax" or "robustmax"; or an instance of a class of
        :mod:`skgpstoch.likelihoods`. "auto" is "bernoulli" for two classes, else "softmax".
    """

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

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
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
        sample_weight : array-like of shape (n_samples,) or None, default=None
            As for `fit`.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y, classes or sample_weight is invalid, solver, loss or beta not for
            streams, or what the model is made of has changed since the first call.
        """
        if classes is not None:
            classes = np.unique(classes)
            if len(classes) < 2:
                raise ValueError(f"classes must list two labels at least, got {classes.tolist()}.")
            if hasattr(self, "posterior_") and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    f"classes must be those of the first call, {self.classes_.tolist()}, got "
                    f"{classes.tolist()}."
                )
        return self._partial_fit(X, y, sample_weight, classes)

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
