"""Kernels and the networks below them, as constructor parameters say."""

from __future__ import annotations

import copy
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from .. import kernels
from ..features.network import ACTIVATIONS, multilayer_perceptron, output_width

NOISE_BOUNDS = (1e-8, 1e2)  # of the scaled target's variance


MIN_NOISE = 1e-12  # that stands for a WhiteKernel of 0


class DeepKernelMixin:
    """`kernel` on `hidden_layer_sizes` and `activation`, or on `feature_map`; and its noise."""

    kernel: sk.Kernel | None
    hidden_layer_sizes: Any
    activation: str
    feature_map: nn.Module | None
    noise_variance: float
    weight_decay: float | str

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [sk.Kernel, None],
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "feature_map": [nn.Module, None],
        "noise_variance": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def _layers(self) -> tuple[int, ...]:
        layers = tuple(np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)))
        if any(isinstance(width, bool) or not isinstance(width, Integral) for width in layers) or (
            any(int(width) < 1 for width in layers)
        ):
            raise ValueError(
                f"hidden_layer_sizes must be positive integers, got {self.hidden_layer_sizes!r}."
            )
        return tuple(int(width) for width in layers)

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

    def _split_kernel(self) -> tuple[sk.Kernel | None, sk.WhiteKernel | None]:
        """The kernel without its top-level WhiteKernel, which is the noise."""
        if self.kernel is None:
            return None, None
        return kernels.split_white_noise(self.kernel)

    def _initial_noise(self) -> float:
        """σ² to start from, that of a top-level WhiteKernel if there is one."""
        _, white = self._split_kernel()
        level = self.noise_variance if white is None else white.noise_level
        return float(np.clip(level, *self._noise_bounds()))

    def _noise_bounds(self) -> tuple[float, float]:
        """Interval of σ²: equal ends where a WhiteKernel is fixed."""
        _, white = self._split_kernel()
        if white is None:
            return NOISE_BOUNDS
        fixed = white.hyperparameter_noise_level.fixed
        low, high = (white.noise_level,) * 2 if fixed else white.noise_level_bounds
        return max(low, MIN_NOISE), max(high, MIN_NOISE)

    def _weight_decay(self, n_rows: int) -> float:
        if self.weight_decay != "auto":
            return float(self.weight_decay)
        return min(0.3, 2000 / n_rows)
