"""GaussianProcessClassifier: scikit-learn's, by Laplace's approximation or a sparse posterior."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn import config_context
from sklearn.base import ClassifierMixin, clone
from sklearn.gaussian_process import kernels as sk
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from ...data.devices import resolve_device
from ...data.docstrings import documented
from ...data.equal_rows import copies_merged, merged, with_possible_counts
from ...data.findings import Diagnosis, Finding
from ...data.inner_fits import fitted_inside
from ...data.rows import Data
from ...estimators.classifier import Classifier
from ...estimators.context import fitting, predicting
from ...estimators.docs import public_estimator
from ...estimators.first_rank import fits_on_first
from ...estimators.importances import averaged_importances
from ...estimators.parameters import N_JOBS, POSITIVE_INTEGER
from ...estimators.validation import check_labels
from ...estimators.weights import check_weight, warn_of_class_weights, warn_of_fractions
from ...kernels import split_white_noise
from ...training.recipes.error_findings import judged_rows, means_nearby, of_local_classes
from ...training.recipes.kernel_choice import tell_far_origin
from .base import DropIn, checked_theta
from .laplace import BinaryLaplaceClassifier, predict_std_one_vs_rest
from .many_rows import CLASSIFIERS, choose
from .noise import fixed


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class GaussianProcessClassifier(ClassifierMixin, DropIn):
    """The Gaussian-process classification of scikit-learn, for any number of rows.

    It has the constructor, the attributes and the methods of
    :class:`sklearn.gaussian_process.GaussianProcessClassifier`, with the same defaults and the same
    meaning, so it is enough to change the import. Up to `max_exact` rows it computes the same
    Laplace approximation, in torch. For more rows it fits a sparse variational posterior with the
    same kernel and one latent function for each class. `method_` and `method_reason_` say which was
    used, and why.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The covariance function. None: RBF with length-scale 1 and variance 1, which are not
        learned. Kernels made of RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic,
        ExpSineSquared, DotProduct, ConstantKernel and WhiteKernel run in torch. Any other kernel
        object, on vectors or not, computes covariances in NumPy; `method_reason_` then says so.
    max_iter_predict : int, default=100
        Maximum number of Newton iterations that find the mode.
    warm_start : bool, default=False
        Whether Newton's iterations start from the previous mode; for a sparse posterior, whether
        `fit` starts from the previous fit.
    multi_class : {"one_vs_rest", "one_vs_one"}, default="one_vs_rest"
        How to make more than two classes from binary classifiers: one for each class, or one for
        each pair of classes, which gives no probabilities. A sparse posterior ignores it and has a
        latent function for each class.
    n_jobs : int or None, default=None
        Number of binary classifiers that joblib fits in parallel. None is 1, unless a
        :func:`joblib.parallel_config` sets it.
    method : {"auto", "laplace", "svgp", "solve"}, default="auto"
        "laplace" puts all rows into one matrix. For many rows, "svgp" uses inducing points, and
        "solve" adds as many orthogonal ones. "auto" is "laplace" up to `max_exact` distinct rows,
        then "svgp".

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_classes_ : int
        Number of classes.
    base_estimator_ : estimator
        The estimator that predicts: a binary classifier, a OneVsRestClassifier or
        OneVsOneClassifier of these, or the estimator fitted to many rows.
    y_train_ : ndarray of shape (n_samples,)
        The training labels; if rows are more than `max_exact`, but distinct rows are not, of these.
    kernel_ : sklearn kernel
        The fitted kernel; with several classifiers, a CompoundKernel of theirs.

    See Also
    --------
    SVGPClassifier : Sparse posteriors with all their options.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
       2006, Algorithms 3.1, 3.2 and 5.1.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skgpstoch import GaussianProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> gpc = GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0).fit(X, y)
    >>> round(gpc.score(X, y), 3)
    0.987
    >>> gpc.predict_proba(X[:2]).round(2)
    array([[0.84, 0.03, 0.13],
           [0.79, 0.07, 0.14]])
    """

    max_iter_predict: int = 100
    warm_start: bool = False
    multi_class: str = "one_vs_rest"
    n_jobs: int | None = None
    method: str = "auto"

    _default_kernel: ClassVar[sk.Kernel] = sk.ConstantKernel(1.0, "fixed") * sk.RBF(1.0, "fixed")

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_iter_predict": [POSITIVE_INTEGER],
        "warm_start": ["boolean"],
        "multi_class": [StrOptions({"one_vs_rest", "one_vs_one"})],
        "n_jobs": N_JOBS,
        "method": [StrOptions({"auto", "laplace", "svgp", "solve"})],
    }

    @documented(Classifier.fit)
    @fitting
    @fits_on_first
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs; objects of any kind for a kernel that takes them.
        y : array-like of shape (n_samples,)
            Labels, of two classes or more.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for: 2 is the same as the row twice, 0 as without it. Rows
            of weight 0 are dropped before method="auto" looks at the number of rows.

        Raises
        ------
        LinAlgError
            If the kernel gives no covariance matrix of the rows; this is also a ValueError.
        ValueError
            If a parameter, X or y is invalid; the estimator is then as it was before.
        """
        kernel = self._kernel()
        resolve_device(self.device)
        X, y = self._validated(X, y)
        check_labels(y)
        weight = check_weight(Data(y, y), sample_weight, least=2, keeps=True).weight
        if weight is not None:
            counts = weight > 0.0
            X, y, weight = X[counts], y[counts], weight[counts]
            warn_of_fractions(weight)
        self.classes_ = np.unique(y)
        self.n_classes_ = len(self.classes_)
        if self.n_classes_ == 1:
            raise ValueError(
                "GaussianProcessClassifier requires 2 or more distinct classes; got 1 class (only "
                f"class {self.classes_[0]} is present)"
            )
        if self.method == "auto" and len(X) > self.max_exact and kernel.requires_vector_input:
            codes = np.searchsorted(self.classes_, y)[:, None]
            units = merged(Data(X, codes, weight))[0]
            if len(units) <= self.max_exact:
                X, y, weight = units.X, self.classes_[units.y[:, 0]], units.weight
        self.method_, self.method_reason_ = choose(
            self.method, ("laplace", "svgp"), len(X), self.max_exact, kernel
        )
        self._keep(X, y)
        if self.method_ == "laplace":
            tell_far_origin(kernel, X, getattr(self, "feature_names_in_", None))
            codes = np.searchsorted(self.classes_, y)[:, None].astype(np.float64)
            inputs = X if kernel.requires_vector_input else np.arange(len(X))[:, None]
            data = Data(inputs, codes, weight)
            if kernel.requires_vector_input and weight is not None:
                units = copies_merged(data)[0]  # only among which equal inputs are cells
                taken = with_possible_counts(units)
                data = data.in_unit(units.row_counts.sum() / taken.row_counts.sum())
                weight = data.weight
            warn_of_class_weights(data, self.classes_)
            self._fit_laplace(kernel, y, weight)
        else:
            self._fit_many(kernel, X, y, weight)
        return self

    def _fit_laplace(self, kernel: sk.Kernel, y: np.ndarray, weight: np.ndarray | None) -> None:
        binary = BinaryLaplaceClassifier(
            kernel,
            optimizer=self.optimizer,
            n_restarts_optimizer=self.n_restarts_optimizer,
            max_iter_predict=self.max_iter_predict,
            warm_start=self.warm_start,
            random_state=self.random_state,
            device=self.device,
        )
        X = self.X_train_
        if self.n_classes_ == 2:
            last = getattr(self, "base_estimator_", None)
            if self.warm_start and isinstance(last, BinaryLaplaceClassifier):
                binary.f_cached = last.f_cached
            self.base_estimator_ = binary.fit(X, y, weight)
            fitted = {"": binary}
        else:
            is_rest = self.multi_class == "one_vs_rest"
            together = OneVsRestClassifier if is_rest else OneVsOneClassifier
            with config_context(enable_metadata_routing=True):  # which passes weights on
                binary.set_fit_request(sample_weight=True)
                self.base_estimator_ = together(binary, n_jobs=self.n_jobs)
                fitted_inside(self.base_estimator_, X, y, sample_weight=weight)
            pairs = itertools.combinations(self.classes_, 2)
            names = self.classes_ if is_rest else [f"{a} or {b}" for a, b in pairs]
            found = zip(map(str, names), self.base_estimator_.estimators_, strict=True)
            fitted = dict(found)
        values = [b.log_marginal_likelihood_value_ for b in fitted.values()]
        self.log_marginal_likelihood_value_ = float(np.mean(values))
        of_kernels = self._findings({k: b.kernel_ for k, b in fitted.items()}, 1.0)
        self._diagnosis = Diagnosis([*self._of_nearest(weight), *of_kernels])
        self._diagnosis.warn()

    def _of_nearest(self, weight: np.ndarray | None) -> Iterator[Finding]:
        """Yield whether the classes of the ten nearest rows predict better than the fit.

        It is a note if labels are predicted as well: Laplace's approximation draws probabilities
        to the middle, the more so with a kernel that is not learned.
        """
        X = self.X_train_
        has_columns = self._kernel().requires_vector_input
        if not has_columns or isinstance(self.base_estimator_, OneVsOneClassifier):
            return
        rows, codes = judged_rows(X), np.searchsorted(self.classes_, self.y_train_)
        p = self.base_estimator_.predict_proba(X[rows])
        w = np.ones(len(X)) if weight is None else weight
        kernel = getattr(self.base_estimator_, "kernel_", None)
        for found in of_local_classes(rows, p, X, codes, kernel, weight=weight):
            if found.severity == "problem":
                nearest = means_nearby(rows, X, np.eye(self.n_classes_)[codes], w)
                both = (each.argmax(1) != codes[rows] for each in (p, nearest))
                wrong, of_nearest = (w[rows] @ each for each in both)
                found = found if wrong > of_nearest else found.noted()
            yield found

    def _fit_many(
        self, kernel: sk.Kernel, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None
    ) -> None:
        expression, white = split_white_noise(kernel)
        if white is not None:
            self.method_reason_ += "; the WhiteKernel is ignored, because labels need no noise term"
        if self.n_classes_ > 2 and self.multi_class == "one_vs_one":
            self.method_reason_ += (
                "; multi_class is ignored, because each class has a latent function of its own"
            )
        trained = clone(expression) if self.optimizer is not None else fixed(expression)
        last: Any = getattr(self, "base_estimator_", None)
        parameters = {
            "device": self.device,
            "dtype": self.dtype,
            "random_state": self.random_state,
            "warm_start": self.warm_start,
        }
        estimator = CLASSIFIERS[self.method_](trained, mean="zero", **parameters)
        if self.warm_start and type(last) is type(estimator):
            estimator = last.set_params(kernel=trained, **parameters)
        self.base_estimator_ = estimator.fit(X, y, weight)
        self._diagnosis = estimator.diagnose()  # it has warned already
        if self.optimizer is None:
            estimator.kernel_ = clone(expression)  # with its bounds
        self.log_marginal_likelihood_value_ = estimator.log_marginal_likelihood_value_

    def _check_parts(self) -> None:
        """Raise a ValueError if the inner classifier is one for others, as in edited files."""
        base = vars(self).get("base_estimator_")
        if base is None:
            return
        n_classes = len(self.classes_)
        is_same = np.array_equal(getattr(base, "classes_", ()), self.classes_)
        is_same &= n_classes == self.n_classes_
        n_parts = {OneVsRestClassifier: n_classes, OneVsOneClassifier: math.comb(n_classes, 2)}
        if type(base) in n_parts:
            parts = base.estimators_ if isinstance(base.estimators_, list | tuple) else ()
            is_same &= n_classes > 2 and len(parts) == n_parts[type(base)]
            is_same &= {type(part) for part in parts} == {BinaryLaplaceClassifier}
            is_same &= all(np.array_equal(getattr(part, "classes_", ()), [0, 1]) for part in parts)
        if not is_same:
            raise ValueError(
                f"GaussianProcessClassifier.base_estimator_ is a {type(base).__name__} for other "
                f"classes than its {n_classes}, or has other parts"
            )

    @property
    def kernel_(self) -> sk.Kernel:
        """The fitted kernel; with several classifiers, a CompoundKernel of theirs."""
        check_is_fitted(self)
        if hasattr(self.base_estimator_, "estimators_"):
            return sk.CompoundKernel([b.kernel_ for b in self.base_estimator_.estimators_])
        return self.base_estimator_.kernel_

    # ---- predictions -------------------------------------------------------------------------

    def _query(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._validated(X, reset=False)

    @predicting()
    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or list of object
            Inputs.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Labels.
        """
        X = self._query(X)
        return self._placed(self.base_estimator_).predict(X)

    @documented(predict)
    @predicting()
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.

        Raises
        ------
        ValueError
            If multi_class="one_vs_one", which gives no probabilities.
        """
        X = self._query(X)
        self._check_probabilities()
        found = self._placed(self.base_estimator_).predict_proba(X)
        # Where every binary classifier says "rest", no class is more probable than another.
        return np.where(found.any(1, keepdims=True), found, 1.0 / self.n_classes_)

    def _check_probabilities(self) -> None:
        if isinstance(self.base_estimator_, OneVsOneClassifier):
            raise ValueError(
                "one_vs_one multi-class mode does not support predicting probability estimates. "
                "Use one_vs_rest mode instead."
            )

    @documented(predict_proba)
    @predicting()
    def predict_std(self, X: Any) -> np.ndarray:
        """Return the standard deviation of each class's probability under the posterior.

        The probability of a class is a function of f, which is uncertain. Its deviation is large
        far from the training rows if the kernel decays, and smaller near a boundary of classes,
        where `predict_proba` may be as even. With Laplace's approximation and more than two
        classes, the deviation is that of g(f_c)/Σ g(f_j), g the logistic function, over 512
        quasi-random points of f: good to a few per cent above 0.1, and rough below 0.03.
        `predict_proba` is the ratio of the means, which is not quite the mean of the ratio.

        Returns
        -------
        std : ndarray of shape (n_samples, n_classes)
            Deviations, at most 0.5, in the order of `classes_`. Those of two classes are the same.
        """
        X = self._query(X)
        self._check_probabilities()
        base = self._placed(self.base_estimator_)
        if isinstance(base, OneVsRestClassifier):
            return predict_std_one_vs_rest(base.estimators_, X)
        return base.predict_std(X)

    @documented(predict_proba)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class.

        Returns
        -------
        log_probability : ndarray of shape (n_samples, n_classes)
            In nats, in the order of `classes_`.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    @documented(predict)
    @predicting()
    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and variance of the latent function for two classes.

        Returns
        -------
        latent_mean, latent_var : ndarrays of shape (n_samples,)
            Mean and variance of f. The sigmoid of f is the probability of the second class.

        Raises
        ------
        ValueError
            If there are more than two classes.
        """
        X = self._query(X)
        if self.n_classes_ > 2:
            raise ValueError(
                "Returning the mean and variance of the latent function f is only supported for "
                f"binary classification, received {self.n_classes_} classes."
            )
        return self._placed(self.base_estimator_).latent_mean_and_variance(X)

    @property
    @predicting()
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, in units of its standard deviation."""
        self._columns()
        base = self._placed(self.base_estimator_)
        models = getattr(base, "estimators_", [base])
        return averaged_importances(np.ones(len(models)), models)

    # ---- the marginal likelihood -------------------------------------------------------------

    @documented(DropIn.log_marginal_likelihood)
    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Return Laplace's approximation of the log marginal likelihood of the training rows.

        For more than two classes it is the mean over the binary classifiers. If `method_` is not
        "laplace", it is a bound.

        Parameters
        ----------
        theta : array-like of shape (n_kernel_params,) or None, default=None
            Log-hyper-parameters; with several classifiers, those of all, or one set for all. None:
            those of `kernel_`, whose value is stored.
        eval_gradient : bool, default=False
            Whether to return the gradient too; only for two classes.
        """
        return super().log_marginal_likelihood(theta, eval_gradient, clone_kernel)

    def _likelihood_at(self, theta: Any, eval_gradient: bool, clone_kernel: bool) -> Any:
        if self.method_ != "laplace":
            raise AttributeError(
                "log_marginal_likelihood(theta) needs the covariance matrix of all rows, "
                f"which method_={self.method_!r} does not compute. Fit with "
                "method='laplace'."
            )
        base = self.base_estimator_
        if self.n_classes_ == 2:
            theta = checked_theta(theta, base.kernel_)
            return base.log_marginal_likelihood(theta, eval_gradient, clone_kernel)
        if eval_gradient:
            raise NotImplementedError(
                "Gradient of log-marginal-likelihood not implemented for multi-class GPC."
            )
        theta, one = np.asarray(theta, dtype=np.float64), base.estimators_[0].kernel_
        if theta.size == one.n_dims:
            theta = np.tile(theta, len(base.estimators_))
        parts = np.split(checked_theta(theta, self.kernel_), len(base.estimators_))
        pairs = zip(base.estimators_, parts, strict=True)
        values = [b.log_marginal_likelihood(part, False, clone_kernel) for b, part in pairs]
        return float(np.mean(values))
