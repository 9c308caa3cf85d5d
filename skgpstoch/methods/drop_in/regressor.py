"""GaussianProcessRegressor: scikit-learn's, exact up to a few thousand rows, scalable beyond."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions

from ...data.array_inputs import one_output
from ...data.arrays import Scaling, named_array, possibly_ragged, random_numbers, readable
from ...data.devices import prediction_device, resolve_device
from ...data.docstrings import documented
from ...data.findings import Diagnosis, Finding
from ...data.known_errors import scaling_of_known
from ...data.rows import LONG_BEGINNING
from ...estimators.conditioning import check_near
from ...estimators.context import fitting, predicting
from ...estimators.docs import public_estimator
from ...estimators.first_rank import fits_on_first, refuse_group
from ...estimators.importances import difference_importances, spread_of
from ...estimators.parameters import NOT_NEGATIVE, POSITIVE_INTEGER
from ...estimators.regressor import Regressor
from ...estimators.sampled_functions import SampledFunctions
from ...estimators.stream_warnings import Surprise, outnumber
from ...estimators.streams import is_learned_again
from ...models.posteriors.functions import Functions
from ...training.exact_search import TrainingSet
from ...training.recipes.findings import causes
from ...training.recipes.kernel_choice import tell_far_origin
from ...training.recipes.row_findings import of_missing_targets
from . import exact
from .base import checked_theta
from .exact_findings import of_left_out, of_missing_noise
from .many_rows import (
    ManyRowsModel,
    choose,
    evidence_at,
    make_regressor,
    searched_all,
    settle,
    start_kernel,
)
from .noise import (
    LEAST_START_NOISE,
    exceeds_jitter,
    fitted_kernel,
    noise_of,
    trained_kernel,
    with_noise,
    without_alpha,
)
from .predictions import GaussianPredictor, Predictive

SEVERAL = "; each target has a noise variance of its own, and kernel_ holds their mean"
MOST_TARGET = 1e150  # in size: squares of larger targets overflow
EXACT_ONLY = ("L_", "alpha_")
MOST_IN_JOINT = 100_000  # rows up to which a fit finds the joint density by nearest neighbours
MATRIX = (
    "{} needs the covariance matrix of all rows, which method_={!r} does not compute. Fit with "
    "method='exact'."
)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class GaussianProcessRegressor(GaussianPredictor):
    """The Gaussian-process regression of scikit-learn, for any number of rows.

    It has the constructor, the attributes and the methods of
    :class:`sklearn.gaussian_process.GaussianProcessRegressor`, with the same defaults and the same
    meaning, so it is enough to change the import. Up to `max_exact` rows it computes the same
    posterior, in torch; for more rows, that given the nearest neighbours of each row. `method_` and
    `method_reason_` say which was used, and why.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The covariance function. None: a constant times RBF, both learned. Kernels made of RBF,
        Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared, DotProduct,
        ConstantKernel and WhiteKernel run in torch. Any other kernel object, on vectors or not,
        computes covariances in NumPy; `method_reason_` then says so.
    alpha : float or array-like of shape (n_samples,), default=1e-10
        Value added to the diagonal of the covariance: the noise variance of the rows, in squared
        units of the (normalised) y. As in scikit-learn, the standard deviations and covariances
        of `predict` do not include it; they do include the noise of a WhiteKernel.
        `predict_interval` and `predict_distribution`, which are about y, include both, unless
        alpha has a value for each row or is at most 10⁻⁶ of the mean square of y, a mere jitter.
    normalize_y : bool, default=False
        Whether to standardise the target internally; predictions are in its own units.
    n_targets : int or None, default=None
        Number of targets, for predictions from the prior; None is 1.
    method : {"auto", "exact", "nngp", "sgpr", "svgp", "scgd"}, default="auto"
        "exact" puts all rows into one matrix. The others are for many rows, with noise. "nngp"
        predicts each row from its nearest neighbours (NNGPRegressor). "sgpr" and
        "svgp" use 512 inducing points, trained on all rows at each step or on minibatches; "scgd"
        uses 1,000 random Fourier features, for sums and products of RBF and Matern. "auto" is
        "exact" up to `max_exact` rows, then "nngp", or "sgpr" if far rows matter too, as with
        linear and periodic kernels.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The kernel with the fitted hyper-parameters, for the (normalised) y.
    y_train_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        The (normalised) training targets.
    L_ : ndarray of shape (n_samples, n_samples)
        Lower Cholesky factor of the training rows' covariance; only if `method_` is "exact".
    alpha_ : ndarray of the shape of y
        Inverse of that covariance times y; only if `method_` is "exact".
    estimator_ : estimator or None
        The estimator fitted to many rows: an NNGPRegressor, an SVGPRegressor or an
        SCGDGaussianProcessRegressor; None if `method_` is "exact".

    See Also
    --------
    SVGPRegressor : Sparse posteriors with all their options.
    SCGDGaussianProcessRegressor : Networks with an exact marginal likelihood.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
       2006, Algorithm 2.1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> from skgpstoch import GaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (150, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(150)
    >>> gpr = GaussianProcessRegressor(1.0 * RBF() + WhiteKernel(), random_state=0).fit(X, y)
    >>> gpr.kernel_
    1.07**2 * RBF(length_scale=1.95) + WhiteKernel(noise_level=0.0117)
    >>> mean, std = gpr.predict([[0.0], [1.5]], return_std=True)
    >>> mean.round(1) + 0.0, std.round(1)
    (array([0., 1.]), array([0.1, 0.1]))
    >>> gpr.method_
    'exact'
    """

    alpha: Any = 1e-10
    normalize_y: bool = False
    n_targets: int | None = None
    method: str = "auto"

    _default_kernel: ClassVar[sk.Kernel] = sk.ConstantKernel() * sk.RBF()

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "alpha": [NOT_NEGATIVE, "array-like"],
        "normalize_y": ["boolean"],
        "n_targets": [POSITIVE_INTEGER, None],
        "method": [StrOptions({"auto", "exact", "nngp", "sgpr", "svgp", "scgd"})],
    }

    # ---- fit ---------------------------------------------------------------------------------

    @documented(Regressor.fit)
    @fitting
    @fits_on_first
    def fit(self, X: Any, y: Any) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs; objects of any kind for a kernel that takes them.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, which share the kernel. One column, (n_samples, 1), is taken as (n_samples,).

        Raises
        ------
        LinAlgError
            If the covariance of the rows is not positive definite; this is also a ValueError.
        ValueError
            If a parameter, X or y is invalid; the estimator is then as it was before.
        """
        return self._learn(*self._validated(X, y, multi_output=True, y_numeric=True))

    def _learn(self, X: Any, y: np.ndarray) -> Any:
        """Fit the model to valid rows."""
        for name in ("_begins", "_appended"):
            self.__dict__.pop(name, None)
        kernel = clone(self._kernel())
        device = resolve_device(self.device)
        Y = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self._check_targets(Y)
        alpha = noise_variance(self.alpha, len(Y))
        scaling = Scaling.standard(Y) if self.normalize_y else Scaling.identity(Y.shape[1])
        self._y_train_mean, self._y_train_std = scaling
        y = ((Y - scaling.offset) / scaling.scale).reshape(np.shape(y))
        self._keep(X, y)
        self._alpha_train = alpha
        self.method_, self.method_reason_ = choose(
            self.method, ("exact", "nngp"), len(Y), self.max_exact, kernel
        )
        random_state = random_numbers(self.random_state)
        search = (self.optimizer, self.n_restarts_optimizer, random_state)
        if self.method_ == "scgd" and alpha.ndim:
            raise ValueError("alpha must be one number for method='scgd', got one for each row.")
        if self.method_ == "exact":
            tell_far_origin(kernel, X, getattr(self, "feature_names_in_", None))
            rows = TrainingSet(X, y.reshape(Y.shape), alpha, device)
            self._fit_exact(kernel, rows, search, of_missing_targets(Y))
        else:
            self._fit_many(kernel, X, y, alpha, search, device)
        return self

    def _check_targets(self, Y: np.ndarray) -> None:
        if self.n_targets is not None and Y.shape[1] != self.n_targets:
            raise ValueError(
                "The number of targets seen in `y` is different from the parameter `n_targets`. "
                f"Got {Y.shape[1]} != {self.n_targets}."
            )
        sizes = Scaling.standard(Y).scale if self.normalize_y else np.abs(Y)
        size = sizes.max()
        if self.normalize_y and sizes.min() < 1.0 / MOST_TARGET:
            raise ValueError(
                f"y is on an extreme scale, {sizes.min():.1g}, so that variances underflow. "
                "Measure y in a smaller unit."
            )
        if size > MOST_TARGET:
            raise ValueError(
                f"y is on an extreme scale, {size:.1g}, so that variances overflow. Measure y in a "
                "larger unit" + ("." if self.normalize_y else ", or set normalize_y=True.")
            )

    def _fit_exact(
        self,
        kernel: sk.Kernel,
        rows: TrainingSet,
        search: tuple,
        of_targets: Iterable[Finding],
    ) -> None:
        model = exact.ExactModel.fitted(kernel, rows, search)
        self.kernel_, self.L_ = model.kernel, model.L
        self.alpha_ = model.alpha.reshape(self.y_train_.shape)
        self.log_marginal_likelihood_value_ = model.log_evidence()
        self.estimator_: Any = None
        known = np.sqrt(np.broadcast_to(rows.noise.reshape(-1, 1), rows.Y.shape))
        unit = float(scaling_of_known(rows.Y, known, None).scale.max())
        found = [*self._findings({"": self.kernel_}, unit), *self._of_rows(model, self._kernel())]
        self._diagnosis = Diagnosis(causes([*found, *of_targets]))
        self._diagnosis.warn()

    def _of_rows(self, model: exact.ExactModel, given: sk.Kernel) -> Iterator[Finding]:
        """Yield findings from leave-one-out predictions and from noise, if rows are numeric.

        `given` is the kernel where the search began.
        """
        if not self.kernel_.requires_vector_input:
            return
        found = [
            *of_left_out(model, given),
            *of_missing_noise(model.kernel, model.rows),
        ]
        learns = self.optimizer is not None and self.kernel_.n_dims
        yield from found if learns else (each.noted() for each in found)

    def _fit_many(
        self,
        kernel: sk.Kernel,
        X: np.ndarray,
        y: np.ndarray,
        alpha: np.ndarray,
        search: tuple,
        device: torch.device,
    ) -> None:
        Y = y.reshape(len(y), -1)
        keeps = self.optimizer is None  # the kernel
        noise = noise_of(kernel, alpha, Y, keeps)
        rows = TrainingSet(X, Y, alpha, device)
        start = start_kernel(noise, rows, search)
        if self.method == "auto":
            self.method_, why = settle(noise, start, rows, search[2])
            self.method_reason_ += why
        is_found = self.method_ == "nngp" and searched_all(rows)
        needs_more = not is_found
        if keeps:  # inducing points, unlike neighbours, need noise
            needs_more = bool(noise.note) and self.method_ != "nngp"
        if needs_more:
            start = with_noise(start, LEAST_START_NOISE * float(np.mean(np.square(Y))))
        if is_found or keeps:
            noise = noise._replace(kernel=start)
        trained = trained_kernel(noise, start, is_fixed=is_found or keeps)
        of_rows = {} if noise.alpha_of_rows is None else {"y_std": np.sqrt(noise.alpha_of_rows)}
        estimator = make_regressor(
            self.method_,
            trained,
            len(X),
            normalize_y=False,
            device=self.device,
            dtype=self.dtype,
            random_state=search[2].randint(np.iinfo(np.int32).max),
        )
        self.estimator_ = estimator.fit(X, one_output(y), **of_rows)
        self._diagnosis = estimator.diagnose()  # it has warned already
        self.method_reason_ += noise.note + (SEVERAL if Y.shape[1] > 1 else "")
        self._noise = noise
        of_model = without_alpha if self.method_ == "scgd" else fitted_kernel
        self.kernel_ = of_model(noise, estimator.kernel_)
        is_long = self.method_ == "nngp" and len(X) > MOST_IN_JOINT
        value = np.nan if is_long else estimator.log_marginal_likelihood_value_
        self.log_marginal_likelihood_value_ = value
        for name in EXACT_ONLY:
            self.__dict__.pop(name, None)

    # ---- more rows ---------------------------------------------------------------------------

    @documented(Regressor.condition_on)
    @fitting
    def condition_on(self, X: Any, y: Any, *, alpha: Any = None) -> Any:
        """Condition the posterior on more rows, and keep the hyper-parameters of the fit.

        Nothing is forgotten: predictions are those of a fit to all rows with `kernel_` and
        `optimizer=None`. If `normalize_y`, the mean and scale of y stay those of the first rows. An
        exact posterior of n rows takes O(n²) time for each new row; methods for many rows keep
        their inducing points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs of the new rows.
        alpha : float, array-like of shape (n_samples,) or None, default=None
            Noise variance of the new rows, as in the constructor. None: that of the constructor,
            which must then be a number.

        Returns
        -------
        self : object
            The updated estimator, with the new rows in `X_train_` and `y_train_`. `diagnose()`
            describes the fit. With exact posteriors, it describes all rows whenever their number
            has doubled, and what is wrong is a warning.
        """
        refuse_group("condition_on")
        if not self._is_fitted():
            raise NotFittedError("condition_on adds rows to a fitted model. Call fit first.")
        X, y = self._validated(X, y, reset=False, multi_output=True, y_numeric=True)
        if one_output(y).shape[1:] != one_output(self.y_train_).shape[1:]:
            raise ValueError(
                f"y must have the shape {('n_samples', *self.y_train_.shape[1:])}, as in "
                f"fit, got {('n_samples', *y.shape[1:])}."
            )
        if alpha is None and np.ndim(self.alpha):
            raise ValueError(
                "alpha must be given for the new rows, because fit had one for each row."
            )
        noise = noise_variance(self.alpha if alpha is None else alpha, len(y))
        Y = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            Y = (Y - self._y_train_mean) / self._y_train_std
        check_near(Y, self._y_train_std)
        if self.estimator_ is None:
            found = self._surprise(X, Y, noise)
            self._extend_exact(X, Y, noise)
            found.tell(self, self.__dict__.pop("_appended", None))
        else:
            self._extend_many(X, Y, None if alpha is None else noise)
        self._alpha_train = joined(self._alpha_train, len(self.y_train_), noise, len(Y))
        self.X_train_ = np.concatenate([self.X_train_, X])
        own_shape = (-1, *self.y_train_.shape[1:])
        self.y_train_ = np.concatenate([self.y_train_, Y.reshape(own_shape)])
        return self

    def _surprise(self, X: Any, Y: np.ndarray, noise: np.ndarray) -> Surprise:
        """Judge rows that are not learned yet, as `stream_warnings.surprise` does."""
        model, alpha = self._exact_model(), np.broadcast_to(noise, len(Y))
        if outnumber(len(Y), len(self.y_train_)):
            model = model.extended(TrainingSet(X[::2], Y[::2], alpha[::2], model.rows.device))
            X, Y, alpha = X[1::2], Y[1::2], alpha[1::2]
        mean, variance = model.moments(X, True)
        return Surprise.of_real(Y - mean, variance + alpha[:, None])

    def _extend_exact(self, X: Any, Y: np.ndarray, noise: np.ndarray) -> None:
        model = self._exact_model()
        more = TrainingSet(X, Y, noise, model.rows.device)
        fitted = model.extended(more)
        self.L_, self.log_marginal_likelihood_value_ = fitted.L, fitted.log_evidence()
        self.alpha_ = fitted.alpha.reshape(-1, *self.y_train_.shape[1:])
        n_before, n_after = len(self.y_train_), len(fitted.rows.X)
        if n_after.bit_length() > n_before.bit_length():  # looked at whenever rows have doubled
            self._diagnosis = Diagnosis(causes(self._of_rows(fitted, self.kernel_)))
            self._diagnosis.warn()

    def _extend_many(self, X: np.ndarray, Y: np.ndarray, alpha: np.ndarray | None) -> None:
        """Add rows whose alpha is that of all rows (None), or larger."""
        estimator, noise, of_rows = self._placed(copy.deepcopy(self.estimator_)), self._noise, {}
        before = noise.alpha_of_rows
        if alpha is not None or before is not None:
            least = noise.alpha
            more = np.broadcast_to(np.array(least) if alpha is None else alpha, len(Y)) - least
            if self.method_ == "scgd" or more.min() < 0.0:
                raise ValueError(
                    f"alpha of new rows must be {least:g}, as in fit (or larger, with "
                    f"method='svgp' or 'sgpr'); got alpha={alpha} with "
                    f"method_={self.method_!r}."
                )
            of_rows = {"y_std": np.sqrt(more)[:, None] * np.ones(Y.shape[1])}
            first = np.zeros(len(self.y_train_)) if before is None else before
            self._noise = noise._replace(alpha_of_rows=np.concatenate([first, more]))
        y = Y.reshape(-1, *self.y_train_.shape[1:])
        of_rows = {name: values.reshape(y.shape) for name, values in of_rows.items()}
        self.estimator_ = estimator.condition_on(X, y, **of_rows)
        self.log_marginal_likelihood_value_ = self.estimator_.log_marginal_likelihood_value_

    @documented(condition_on)
    @fitting
    def partial_fit(self, X: Any, y: Any) -> Any:
        """Fit the model at the first call, and condition it on more rows at later ones.

        Until 160 rows have come, the model is fitted again whenever rows have doubled, if `alpha`
        is a number. Later calls do the same as :meth:`condition_on`, so hyper-parameters stay.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs.
        """
        refuse_group("partial_fit")
        if not self._is_fitted():
            self.fit(X, y)
            self._begins = len(self.y_train_) < LONG_BEGINNING and np.ndim(self.alpha) == 0
            return self
        if not getattr(self, "_begins", False):
            return self.condition_on(X, y)
        more, y = self._validated(X, y, reset=False, multi_output=True, y_numeric=True)
        before = self.y_train_ * self._y_train_std + self._y_train_mean
        n = len(before) + len(y)
        if not is_learned_again(len(before), n) or y.shape[1:] != before.shape[1:]:
            return self.condition_on(X, y)
        self._learn(np.concatenate([self.X_train_, more]), np.concatenate([before, y]))
        self._begins = n < LONG_BEGINNING
        return self

    def __getattr__(self, name: str) -> Any:
        if name in EXACT_ONLY and self.__dict__.get("estimator_") is not None:
            raise AttributeError(MATRIX.format(name, self.method_))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- predictions -------------------------------------------------------------------------

    def _is_fitted(self) -> bool:
        return "X_train_" in vars(self)

    def _check_parts(self) -> None:
        """Raise a ValueError if a fit has lost its rows, so that it would predict its prior."""
        if "kernel_" in vars(self) and not self._is_fitted():
            raise ValueError(f"{type(self).__name__} has a kernel_, but no X_train_")

    def _model(self) -> tuple[Predictive, Scaling]:
        if not self._is_fitted():
            n_targets = self.n_targets or 1
            device = prediction_device(self.device)
            prior = exact.PriorModel(self._kernel(), n_targets, device)
            return prior, Scaling.identity(n_targets)
        scaling = Scaling(self._y_train_mean, self._y_train_std)
        if self.estimator_ is None:
            return self._exact_model(), scaling
        noise = np.atleast_1d(self.estimator_.noise_variance_)
        white = np.maximum(noise - self._noise.alpha, 0.0)  # σ² less alpha
        return ManyRowsModel(self._placed(self.estimator_), white), scaling

    def _known_noise(self) -> np.ndarray:
        if not self._is_fitted() or np.ndim(self._alpha_train):
            return np.zeros(1)
        if self.estimator_ is not None:
            return np.asarray(self._noise.alpha * np.square(self._y_train_std))
        Y = self.y_train_.reshape(len(self.y_train_), -1)
        alpha = self._alpha_train * exceeds_jitter(self._alpha_train, Y)
        return np.asarray(alpha * np.square(self._y_train_std))

    def _functions(self, n_samples: int, seed: int) -> SampledFunctions:
        fixed = copy.copy(self)  # whatever the estimator is fitted to later
        validate = functools.partial(fixed._validated, reset=False)
        if self._is_fitted() and self.estimator_ is not None:
            inner = copy.deepcopy(self._placed(self.estimator_)).sample_functions(n_samples, seed)
            return inner.rescaled(Scaling(self._y_train_mean, self._y_train_std))
        (model, scaling), device = self._model(), prediction_device(self.device)

        @functools.cache  # before a fit only rows tell how many inputs there are
        def of_width(n_inputs: int) -> Functions:
            generator = torch.Generator(device).manual_seed(seed)
            return cast(Any, model).functions(n_inputs, n_samples, generator)

        width = 1
        if self._is_fitted():
            width = self.n_features_in_
            of_width(width)  # conditions it on the rows, or raises an error
        shape = () if len(scaling.scale) == 1 else (len(scaling.scale),)  # as in predictions
        unscaled = Scaling.identity(width)
        return SampledFunctions(
            lambda X: of_width(X.shape[1])(X), validate, unscaled, scaling, shape, device
        )

    def _exact_model(self) -> exact.ExactModel:
        """Return the model of an exact fit, without the noise of its rows."""
        Y = self.y_train_.reshape(len(self.y_train_), -1)
        rows = TrainingSet(self.X_train_, Y, np.zeros(()), prediction_device(self.device))
        return exact.ExactModel(self.kernel_, rows, self.L_, self.alpha_.reshape(Y.shape))

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, in units of its standard deviation."""
        X = self._columns()
        if self.estimator_ is not None:
            return self.estimator_.feature_importances_
        model = self._exact_model()
        unit = Scaling.standard(model.rows.Y).scale

        @predicting()
        def mean(X: np.ndarray) -> np.ndarray:
            return model.moments(X, with_variance=False)[0] / unit

        return difference_importances(mean, spread_of(X))

    # ---- the marginal likelihood -------------------------------------------------------------

    @documented(GaussianPredictor.log_marginal_likelihood)
    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Return the log marginal likelihood of the (normalised) y of the fit, or a bound on it."""
        return super().log_marginal_likelihood(theta, eval_gradient, clone_kernel)

    def _check_is_fitted(self) -> None:
        if not self._is_fitted():
            raise NotFittedError("This GaussianProcessRegressor is not fitted yet. Call fit first.")

    def _likelihood_at(self, theta: Any, eval_gradient: bool, clone_kernel: bool) -> Any:
        theta = checked_theta(theta, self.kernel_)
        value, gradient = self._evidence(theta, bool(eval_gradient))
        if not clone_kernel:
            self.kernel_.theta = theta
        return (value, gradient) if eval_gradient else value

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _evidence(self, theta: np.ndarray, eval_gradient: bool) -> tuple[float, np.ndarray]:
        """Return the log marginal likelihood at θ, or the bound on it, and its gradient."""
        if self.estimator_ is None:
            rows = self._exact_model().rows
            rows = rows._replace(noise=self._alpha_train)
            return rows.evidence(self.kernel_)(theta, eval_gradient)
        if self.method_ == "scgd":
            raise AttributeError(MATRIX.format("log_marginal_likelihood(theta)", self.method_))
        return evidence_at(self.estimator_, self._noise, theta, self.X_train_, self.y_train_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def joined(a: np.ndarray, n_a: int, b: np.ndarray, n_b: int) -> np.ndarray:
    """Return alpha of two sets of rows together, () if it is the same for all."""
    if not a.ndim and not b.ndim and a == b:
        return a
    return np.concatenate([np.broadcast_to(a, n_a), np.broadcast_to(b, n_b)])


def noise_variance(alpha: Any, n_rows: int) -> np.ndarray:
    """Return alpha, () or (n,).

    Raises
    ------
    ValueError
        If it is neither one number nor one for each row, or is negative.
    """
    alpha = np.atleast_1d(possibly_ragged(readable(alpha, "alpha")))
    alpha = named_array(alpha, "alpha", ensure_2d=False)
    if alpha.shape == (1,):
        alpha = alpha[0]
    elif alpha.shape != (n_rows,):
        raise ValueError(
            "alpha must be a scalar or an array with same number of entries as y, of shape "
            f"({n_rows},), got {alpha.shape}."
        )
    if not np.min(alpha) >= 0.0:
        raise ValueError(f"alpha must be 0 or positive, got {np.min(alpha)}.")
    return np.asarray(alpha)
