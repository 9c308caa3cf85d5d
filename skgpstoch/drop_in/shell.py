"""What both drop-ins do with what users give them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.gaussian_process import kernels as sk
from sklearn.utils.validation import validate_data

from ..data.arrays import readable, resolve_device
from ..estimators.base import validate_inputs


class Shell(BaseEstimator):
    """Validation, and where to compute."""

    kernel: sk.Kernel | None
    device: str | torch.device | None
    copy_X_train: bool

    @abstractmethod
    def _default_kernel(self) -> sk.Kernel:
        """What kernel=None stands for."""

    def _kernel(self) -> sk.Kernel:
        """The kernel before the fit."""
        return self._default_kernel() if self.kernel is None else self.kernel

    def _check_parameters(self) -> None:
        self._validate_params()
        resolve_device(self.device)
        if isinstance(self.kernel, sk.CompoundKernel):
            raise ValueError("kernel cannot be a CompoundKernel")

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """X, or X and y, as the kernel takes them."""
        if self._kernel().requires_vector_input:
            return validate_inputs(self, X, *y, **options)
        given = map(readable, (X, *y))
        return validate_data(self, *given, ensure_2d=False, dtype=None, **options)

    def _keep(self, X: Any, y: np.ndarray) -> None:
        """The rows, for predictions and for users."""
        self.X_train_ = np.copy(X) if self.copy_X_train else X
        self.y_train_ = np.copy(y) if self.copy_X_train else y

    def _placed(self, estimator: Any) -> Any:
        """An estimator inside this one, and those inside it, that predict where this one does."""
        for inner in (estimator, *getattr(estimator, "estimators_", ())):
            if hasattr(inner, "device"):
                inner.device = self.device
        return estimator

    @staticmethod
    def _checked_theta(theta: Any, kernel: sk.Kernel) -> np.ndarray:
        """θ for a kernel, as an array.

        Raises
        ------
        ValueError
            If it has not as many numbers as the kernel has free hyper-parameters.
        """
        theta = np.asarray(theta, dtype=np.float64)
        if theta.shape != (kernel.n_dims,):
            raise ValueError(
                f"theta must have the shape ({kernel.n_dims},), one log-hyper-parameter for each "
                f"that is free in {kernel}, got {theta.shape}."
            )
        return theta
