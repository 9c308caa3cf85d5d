"""Draw a regressor's f as functions to call, for example to minimise in Thompson sampling."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Scaling
from ..data.devices import BLOCK_ROWS, map_blocks
from ..posteriors.functions import Functions
from .context import predicting


class SampledFunctions:
    """Functions drawn from a posterior or a prior: the same ones wherever they are asked.

    `sample_functions` of a regressor makes them. Calls have no randomness, so that rows have the
    same values in whatever company they come, and functions can be minimised.

    Parameters
    ----------
    functions : callable
        Scaled rows (n, d) → values (S, n, P), tensors.
    validate : callable
        The user's X → array (n, d).
    x_scaling, y_scaling : Scaling
        Of inputs and targets.
    y_shape : tuple of int
        () if the user's y has one dimension, else (P,).
    device : torch.device
        Where to compute.
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
        """Return the same for targets that have been scaled before."""
        other = copy.copy(self)
        other._y_scaling = self._y_scaling.within(y_scaling)
        return other

    @predicting()
    def __call__(self, X: Any) -> np.ndarray:
        """Return the values at rows, a block at a time.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.

        Returns
        -------
        values : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            In the units of y.
        """
        X = torch.as_tensor(self._validate(X), dtype=torch.float64, device=self._device)
        parts: list[np.ndarray] = []

        def add(block: slice) -> None:
            parts.append(self.torch(X[block]).cpu().numpy())

        map_blocks(add, len(X), BLOCK_ROWS)
        return np.concatenate(parts)

    def torch(self, X: Tensor) -> Tensor:
        """Return the same of a tensor, differentiable by it.

        Parameters
        ----------
        X : Tensor of shape (n_samples_X, n_features)
            Inputs, of which only the shape is validated.

        Raises
        ------
        ValueError
            If X is no tensor of this shape.

        Returns
        -------
        values : Tensor of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            In float64, on the device of the model.
        """
        if not isinstance(X, Tensor) or X.ndim != 2 or not len(X):
            got = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(
                "X must be a tensor of shape (n_samples_X, n_features) with at least one "
                f"row, got {got}. For arrays, call the drawn functions themselves."
            )
        width = np.size(self._x_scaling.offset)
        if width > 1 and X.shape[1] != width:  # one number is for any width
            raise ValueError(f"X has {X.shape[1]} features, but {width} are expected.")
        X = X.to(self._device, torch.float64)

        def tensor(a: np.ndarray) -> Tensor:
            return torch.as_tensor(a, dtype=torch.float64, device=self._device)

        scaled = (X - tensor(self._x_scaling.offset)) / tensor(self._x_scaling.scale)
        values = self._functions(scaled)  # (S, N, P)
        values = values * tensor(self._y_scaling.scale) + tensor(self._y_scaling.offset)
        values = values.permute(1, 2, 0)
        return values[:, 0] if self._y_shape == () else values
