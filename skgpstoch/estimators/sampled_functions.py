"""Draw a regressor's f as callable functions, for example to minimise in Thompson sampling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Scaling
from ..data.devices import BLOCK_ROWS, map_blocks
from ..models.posteriors.functions import Functions
from ..persistence.failures import tell_failures
from .context import predicting


@tell_failures
class SampledFunctions:
    """Functions f that were drawn from a posterior or a prior, and can be evaluated anywhere.

    A regressor's method `sample_functions` returns them. Calls are not random: a row always has the
    same values, whichever other rows X holds. So the functions can be minimised.

    Parameters
    ----------
    functions : callable
        Maps a tensor of scaled rows (n, d) to values (S, n, P).
    validate : callable
        Maps the user's X to an array (n, d).
    x_scaling, y_scaling : Scaling
        Scalings of the inputs and the targets.
    y_shape : tuple of int
        () if the user's y has one dimension, else (P,).
    device : torch.device
        Device on which to compute.
    """

    def __init__(
        self,
        functions: Functions,
        validate: Callable[[Any], np.ndarray],
        x_scaling: Scaling,
        y_scaling: Scaling,
        y_shape: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._functions = functions
        self._validate = validate
        self._x_scaling = x_scaling
        self._y_scaling = y_scaling
        self._y_shape = y_shape
        self._device = device

    def rescaled(self, y_scaling: Scaling) -> SampledFunctions:
        """Return the same functions in the units that targets had before this scaling."""
        other = copy.copy(self)
        other._y_scaling = self._y_scaling.within(y_scaling)
        return other

    @predicting()
    def __call__(self, X: Any) -> np.ndarray:
        """Return the values of the functions at the rows of X, computed in blocks.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.

        Returns
        -------
        values : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Values, in the units of y.
        """
        X = torch.as_tensor(self._validate(X), dtype=torch.float64, device=self._device)
        parts: list[np.ndarray] = []

        def add(block: slice) -> None:
            parts.append(self.torch(X[block]).cpu().numpy())

        map_blocks(add, len(X), BLOCK_ROWS)
        return np.concatenate(parts)

    def torch(self, X: Tensor) -> Tensor:
        """Return the values at the rows of a tensor, differentiable with respect to it.

        Parameters
        ----------
        X : Tensor of shape (n_samples_X, n_features)
            Inputs; only their shape is validated.

        Returns
        -------
        values : Tensor of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Values, in the units of y, in float64 on the model's device.

        Raises
        ------
        ValueError
            If X is not a tensor of this shape.
        """
        if not isinstance(X, Tensor) or X.ndim != 2 or not len(X):
            got = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(
                "X must be a tensor of shape (n_samples_X, n_features) with at least one "
                f"row, got {got}. For arrays, call the drawn functions themselves."
            )
        width = np.size(self._x_scaling.offset)
        if width > 1 and X.shape[1] != width:  # one number suits any width
            raise ValueError(f"X has {X.shape[1]} features, but {width} are expected.")
        X = X.to(self._device, torch.float64)

        def tensor(a: np.ndarray) -> Tensor:
            return torch.as_tensor(a, dtype=torch.float64, device=self._device)

        scaled = (X - tensor(self._x_scaling.offset)) / tensor(self._x_scaling.scale)
        values = self._functions(scaled)  # (S, N, P)
        values = values * tensor(self._y_scaling.scale) + tensor(self._y_scaling.offset)
        values = values.permute(1, 2, 0)
        return values[:, 0] if self._y_shape == () else values
