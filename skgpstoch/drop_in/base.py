"""Base of both drop-ins: validation, training rows and device."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from sklearn.utils.validation import check_is_fitted, validate_data

from ..data.array_inputs import real_target
from ..data.arrays import readable
from ..data.devices import resolve_device
from ..data.findings import Diagnosis, Finding
from ..docstrings import documented
from ..estimators.base import BaseGP
from ..estimators.validation import check_numbers, validate_inputs
from ..persistence.estimator import SavedEstimator
from ..recipes.findings import (
    causes,
    of_bounds,
    of_far_rows,
    of_features,
    of_inputs,
    of_rows,
    of_sight,
)
from .parameters import DropInParameters


class DropIn(DropInParameters, SavedEstimator, metaclass=ABCMeta):
    """A kernel, the training rows, and the device."""

    log_marginal_likelihood_value_: float
    _diagnosis: Diagnosis
    _default_kernel: ClassVar[sk.Kernel]  # what kernel=None stands for

    def _kernel(self) -> sk.Kernel:
        """Return the kernel before the fit."""
        return clone(self._default_kernel) if self.kernel is None else self.kernel

    def _check_parameters(self) -> None:
        self._validate_params()
        check_numbers(self)
        resolve_device(self.device)
        if isinstance(self.kernel, sk.CompoundKernel):
            raise ValueError("kernel cannot be a CompoundKernel.")

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """Return X, or X and y, as the kernel takes them; a column of y stays one."""
        if self._kernel().requires_vector_input:
            return validate_inputs(self, X, *y, keeps_column=True, **options)
        y = tuple(real_target(a) if options.get("y_numeric") else readable(a) for a in y)
        return validate_data(self, readable(X), *y, ensure_2d=False, dtype=None, **options)

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
        has_columns = given.requires_vector_input
        noted = list(of_rows(len(X), learns))
        if has_columns:
            noted += [*of_features(len(X), X.shape[1]), *of_far_rows(X)]
        yield from (finding.noted() for finding in noted)
        for name, kernel in kernels.items():
            found = list(of_bounds(kernel, True)) if learns else []
            if has_columns:
                seen = [*of_sight(kernel, given, X, unit), *of_inputs(kernel, X)]
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
    try:
        theta = np.asarray(readable(theta), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"theta must be numbers, got {theta!r:.80}.") from error
    if theta.shape != (kernel.n_dims,):
        raise ValueError(
            f"theta must have the shape ({kernel.n_dims},), one log-hyper-parameter for each "
            f"that is free in {kernel}, got {theta.shape}."
        )
    return theta
