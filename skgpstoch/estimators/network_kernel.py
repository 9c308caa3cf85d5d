"""Kernels and the networks below them, as constructor parameters say."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling
from ..features.base import FeatureMap
from ..features.fourier import KernelFeatures
from ..features.network import (
    ACTIVATIONS,
    NetworkFeatures,
    multilayer_perceptron,
    output_width,
)
from .parameters import AUTO, NOT_NEGATIVE, POSITIVE_INTEGER, positive_integers

NOISE_BOUNDS = (1e-8, 1e2)  # of the scaled target's variance
MOST_RELEVANT_INPUTS = 64  # up to which each has a length-scale of its own, by default
START_NOISE = sk.WhiteKernel(0.1, NOISE_BOUNDS)
MIN_NOISE = 1e-12  # that stands for a WhiteKernel of 0


@dataclass(eq=False, repr=False, kw_only=True)
class KernelChoice:
    """A kernel, whose top-level WhiteKernel is the noise."""

    kernel: sk.Kernel | None = field(default=None, kw_only=False)

    _standardises: ClassVar[bool] = False  # whether the default kernel has standardised inputs

    _parameter_constraints: ClassVar[dict[str, list]] = {"kernel": [sk.Kernel, None]}

    def _input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Centred, where a kernel of the user's does not change by it."""
        if self.kernel is None and self._standardises:
            return Scaling.standard(X, weight)
        if self.kernel is not None and "DotProduct" in repr(self.kernel):
            return Scaling.identity(X.shape[1])
        return Scaling.centered(X, weight)

    def _network(
        self, X: Tensor, generator: torch.Generator, n_members: int = 1
    ) -> tuple[nn.Module, int]:
        """g, and the width of its output."""
        return nn.Identity(), X.shape[1]

    def _has_network(self) -> bool:
        return False

    def _has_user_module(self) -> bool:
        return False

    def _check_network(self) -> None:
        """Raise a ValueError where parameters do not agree."""

    def _freeze_network(self, network: nn.Module) -> None:
        """Train what is to be trained of it."""

    def _weight_decay(self, n_rows: float) -> float:
        return 0.0

    def _split_kernel(self) -> tuple[sk.Kernel | None, sk.WhiteKernel | None]:
        """The kernel without its top-level WhiteKernel, which is the noise."""
        if self.kernel is None:
            return None, None
        return kernels.split_white_noise(self.kernel)

    def _initial_noise(self) -> float:
        """σ² to start from, that of a top-level WhiteKernel if there is one."""
        _, white = self._split_kernel()
        level = getattr(self, "noise_variance", NOISE_BOUNDS[0])
        level = level if white is None else white.noise_level
        return float(np.clip(level, *self._noise_bounds()))

    def _learns_noise(self) -> bool:
        """Whether there is no WhiteKernel with a fixed level."""
        _, white = self._split_kernel()
        return white is None or not white.hyperparameter_noise_level.fixed

    def _noise_of_inputs(self) -> bool:
        """Whether the scale of the noise is a function of X."""
        return False

    def _noise_bounds(self) -> tuple[float, float]:
        """Interval of σ²: equal ends where a WhiteKernel is fixed."""
        _, white = self._split_kernel()
        if white is None:
            return NOISE_BOUNDS
        free = self._learns_noise()
        low, high = white.noise_level_bounds if free else (white.noise_level,) * 2
        return max(low, MIN_NOISE), max(high, MIN_NOISE)


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkKernel(KernelChoice):
    """A kernel, and a network below it.

    Parameters
    ----------
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, the last included.
    feature_map : torch.nn.Module or None, default=None
        Network of your own, (n, d) → (n, D), instead of `hidden_layer_sizes`. It is copied, and
        sees the inputs as they are.
    weight_decay : float or "auto", default="auto"
        Decoupled decay of the network's parameters (Adam); "auto" is 2000/n_samples, at most 0.3.
    """

    hidden_layer_sizes: Any = ()
    activation: str = "relu"
    feature_map: nn.Module | None = None
    weight_decay: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "feature_map": [nn.Module, None],
        "weight_decay": [NOT_NEGATIVE, AUTO],
    }

    def _layers(self) -> tuple[int, ...]:
        return positive_integers("hidden_layer_sizes", self.hidden_layer_sizes)

    def _network(
        self, X: Tensor, generator: torch.Generator, n_members: int = 1
    ) -> tuple[nn.Module, int]:
        """g, and the width of its output."""
        if self.feature_map is not None:
            network = copy.deepcopy(self.feature_map).to(X)
            return network, output_width(network, X[:2])
        layers = self._layers()
        network = multilayer_perceptron(X.shape[1], layers, self.activation, generator, n_members)
        return network.to(X), layers[-1] if layers else X.shape[1]

    def _finite_map(self: Any, X: Tensor, generator: torch.Generator, n_members: int) -> FeatureMap:
        """φ, finite, before training: of the network's outputs, or of a kernel on them."""
        network, width = self._network(X, generator, n_members)
        expression, _ = self._split_kernel()
        if expression is None:
            return NetworkFeatures(network, width, n_members, skip=X.shape[1])
        seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
        kernel = kernels.from_sklearn(expression)
        return KernelFeatures(kernel, network, width, self.n_components, seed, n_members)

    def _has_network(self) -> bool:
        return self.feature_map is not None or bool(self._layers())

    def _has_user_module(self) -> bool:
        return self.feature_map is not None

    def _check_network(self) -> None:
        if self.feature_map is not None and self._layers():
            raise ValueError(
                f"hidden_layer_sizes={self.hidden_layer_sizes!r} and feature_map are two networks; "
                "give one of them."
            )

    def _freeze_network(self, network: nn.Module) -> None:
        freeze_as(list(network.parameters()), self.feature_map)

    def _input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Standard for networks of ours."""
        if self.feature_map is not None:
            return Scaling.identity(X.shape[1])
        return Scaling.standard(X, weight) if self._layers() else super()._input_scaling(X, weight)

    def _weight_decay(self, n_rows: float) -> float:
        if self.weight_decay != "auto":
            return float(self.weight_decay)
        return min(0.3, 2000 / n_rows)


def default_kernel(n_features: int) -> sk.Kernel:
    """For standardised inputs and targets."""
    n_scales = n_features if n_features <= MOST_RELEVANT_INPUTS else 1
    shape = sk.RBF(np.full(n_scales, math.sqrt(n_features)), (1e-3, 1e4))
    return sk.ConstantKernel(1.0, (1e-3, 1e3)) * shape


def freeze_as(parameters: list[nn.Parameter], module: nn.Module | None) -> None:
    """Train those of a copy of the user's module that the user left free."""
    if module is not None:
        for user, ours in zip(module.parameters(), parameters, strict=True):
            ours.requires_grad_(user.requires_grad)
