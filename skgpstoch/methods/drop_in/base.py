"""Base of both drop-ins: parameters, validation, training rows and device."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from ...data.array_inputs import given_labels, real_target
from ...data.arrays import readable
from ...data.docstrings import documented
from ...data.findings import Diagnosis, Finding
from ...estimators.base import BaseGP
from ...estimators.parameters import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER
from ...estimators.validation import check_numbers, validate_inputs
from ...persistence.estimator import SavedEstimator
from ...training.recipes.findings import causes, of_bounds, of_inputs, of_sight
from ...training.recipes.row_findings import of_far_rows, of_features, of_rows


@dataclass(eq=False, repr=False, kw_only=True)
class DropInParameters:
    """What scikit-learn's two classes share, and where and how to compute.

    Parameters
    ----------
    optimizer : "fmin_l_bfgs_b", callable or None, default="fmin_l_bfgs_b"
        How to find the kernel's hyper-parameters. "fmin_l_bfgs_b": L-BFGS within their bounds (our
        own, because SciPy's stops where a covariance matrix cannot be factorised). A callable is
        called as optimizer(obj_func, initial_theta, bounds=bounds), and returns the best theta and
        its value; obj_func(theta, eval_gradient=True) is the negative log marginal likelihood, with
        its gradient if that is asked for. None: keep the kernel as it is.
    n_restarts_optimizer : int, default=0
        Number of additional searches. They start from random hyper-parameters that suit the scale
        of X and y, log-uniform within their bounds; with a callable they start anywhere within the
        bounds. They run in parallel inside a :func:`joblib.parallel_config`.
    copy_X_train : bool, default=True
        Whether to store copies of the training data in `X_train_` and `y_train_`.
    random_state : int, RandomState instance or None, default=None
        Seed of the restarts, and of methods that draw minibatches.
    max_exact : int, default=5000
        Largest number of rows for which method="auto" puts all of them into one matrix, in O(n³)
        time and O(n²) memory.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the data during training, if `method_` is one for many rows. Everything else,
        and every other method, is in float64.

    Attributes
    ----------
    method_ : str
        The method that was used.
    method_reason_ : str
        Why this method was used, and remarks on it.
    X_train_ : array-like of shape (n_samples, n_features) or list of object
        The training rows.
    log_marginal_likelihood_value_ : float
        Log marginal likelihood with `kernel_`, in nats, or the approximation or bound that
        `method_` computes; NaN by nearest neighbours for more than 100,000 rows.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        How much f depends on each input: the root mean square derivative of its mean per standard
        deviation of the input. Importances sum to 1, and are computed on access.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the inputs, if X had any.
    """

    kernel: sk.Kernel | None = field(default=None, kw_only=False)
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    copy_X_train: bool = True
    random_state: Any = None
    max_exact: int = 5000
    device: str | torch.device | None = None
    dtype: str = "float32"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [sk.Kernel, None],
        "optimizer": [StrOptions({"fmin_l_bfgs_b"}), callable, None],
        "n_restarts_optimizer": [NOT_NEGATIVE_INTEGER],
        "copy_X_train": ["boolean"],
        "random_state": ["random_state"],
        "max_exact": [POSITIVE_INTEGER],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
    }


class DropIn(DropInParameters, SavedEstimator, metaclass=ABCMeta):
    """A kernel, the training rows, and the device."""

    log_marginal_likelihood_value_: float
    _diagnosis: Diagnosis
    _default_kernel: ClassVar[sk.Kernel]  # what kernel=None stands for

    def _kernel(self) -> sk.Kernel:
        """Return the kernel before the fit, after checks of all parameters but the device."""
        self._validate_params()
        check_numbers(self)
        if isinstance(self.kernel, sk.CompoundKernel):
            raise ValueError("kernel cannot be a CompoundKernel.")
        return clone(self._default_kernel) if self.kernel is None else self.kernel

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """Return X, or X and y, as the kernel takes them; a column of y stays one."""
        is_new = options.get("reset", True) or not hasattr(self, "kernel_")
        if (self._kernel() if is_new else self.kernel_).requires_vector_input:
            return validate_inputs(self, X, *y, keeps_column=True, **options)
        y = tuple(real_target(a) if options.get("y_numeric") else given_labels(a) for a in y)
        return validate_data(self, readable(X, "X"), *y, ensure_2d=False, dtype=None, **options)

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Return the log marginal likelihood of the training rows.

        Parameters
        ----------
        theta : array-like of shape (n_kernel_params,) or None, default=None
            Log-hyper-parameters. None: those of `kernel_`, whose value is stored.
        eval_gradient : bool, default=False
            Whether to return the gradient too.
        clone_kernel : bool, default=True
            Whether `kernel_` stays as it is; False sets its theta.

        Returns
        -------
        log_likelihood : float
            In nats; −inf if the covariance is not positive definite.
        log_likelihood_gradient : ndarray of shape (n_kernel_params,)
            Only if `eval_gradient`.
        """
        self._check_is_fitted()
        if theta is not None:
            return self._likelihood_at(theta, eval_gradient, clone_kernel)
        if eval_gradient:
            raise ValueError("Gradient can only be evaluated for theta!=None")
        return self.log_marginal_likelihood_value_

    @documented(BaseGP.diagnose)
    def diagnose(self) -> Diagnosis:
        """Tell what may be wrong with the fit: the table behind its warnings."""
        self._check_is_fitted()
        return self._diagnosis

    def _columns(self) -> np.ndarray:
        """Return the training rows; raise an AttributeError if there are none or only objects."""
        self._check_is_fitted()
        X = self.X_train_
        if not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "fiub"):
            raise AttributeError(
                "feature_importances_ needs a kernel on columns of X, but X has no columns."
            )
        return X.astype(np.float64, copy=False)

    def _findings(self, kernels: dict[str, sk.Kernel], unit: float) -> Iterator[Finding]:
        """Yield findings on the rows of one matrix, and on fitted kernels by their names.

        Few rows or many features are only noted, because they can be fine with a kernel that the
        user has chosen. Without an optimizer, what that kernel sees is only noted, too.
        """
        X, learns, given = self.X_train_, self.optimizer is not None, self._kernel()
        has_columns, names = given.requires_vector_input, getattr(self, "feature_names_in_", None)
        noted = list(of_rows(len(X), learns))
        if has_columns:
            noted += [*of_features(len(X), X.shape[1]), *of_far_rows(X, names=names)]
        yield from (finding.noted() for finding in noted)
        for name, kernel in kernels.items():
            found = list(of_bounds(kernel, True)) if learns else []
            if has_columns:
                seen = [*of_sight(kernel, given, X, unit), *of_inputs(kernel, X, names)]
                found += seen if learns else [finding.noted() for finding in seen]
            yield from Diagnosis(causes(found)).within(name)

    def _check_is_fitted(self) -> None:
        check_is_fitted(self)

    @abstractmethod
    def _likelihood_at(self, theta: Any, eval_gradient: bool, clone_kernel: bool) -> Any:
        """Return the log marginal likelihood at θ, and its gradient if `eval_gradient`."""

    def _keep(self, X: Any, y: np.ndarray) -> None:
        """Keep the rows, for predictions and for users."""
        self.X_train_ = np.copy(X) if self.copy_X_train else X
        self.y_train_ = np.copy(y) if self.copy_X_train else y

    def _placed(self, estimator: Any) -> Any:
        """Make an estimator inside this one, and those inside it, predict on the same device."""
        for inner in (estimator, *getattr(estimator, "estimators_", ())):
            if hasattr(inner, "device"):
                inner.device = self.device
        return estimator


def checked_theta(theta: Any, kernel: sk.Kernel) -> np.ndarray:
    """Return θ for a kernel, as an array.

    Raises
    ------
    ValueError
        If it does not hold one number for each free hyper-parameter of the kernel.
    """
    theta = readable(theta, "theta")
    try:
        theta = np.asarray(theta, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"theta must be numbers, got {theta!r:.80}.") from error
    if theta.shape != (kernel.n_dims,):
        raise ValueError(
            f"theta must have the shape ({kernel.n_dims},), one log-hyper-parameter for each "
            f"that is free in {kernel}, got {theta.shape}."
        )
    return theta
