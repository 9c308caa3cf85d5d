"""Networks below kernels, and finite features that are made of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling
from ..features.base import FeatureMap
from ..features.fourier import KernelFeatures
from ..features.network import NetworkFeatures, multilayer_perceptron, output_width
from .recipe import KernelChoice

DECAY_ROWS, MOST_DECAY = 2000, 0.3  # weight_decay="auto" is 2000/n, at most 0.3


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of ours, or a copy of the user's module.

    Parameters
    ----------
    layers : tuple of int, default=()
        Widths.
    activation : str, default="relu"
        After every layer.
    module : nn.Module or None, default=None
        The user's, (n, d) → (n, D).
    weight_decay : float or "auto", default="auto"
        Decoupled decay of its parameters.
    """

    layers: tuple[int, ...] = ()
    activation: str = "relu"
    module: nn.Module | None = None
    weight_decay: float | str = "auto"

    @classmethod
    def of(
        cls,
        hidden_layer_sizes: Any,
        activation: str,
        feature_map: nn.Module | None,
        weight_decay: float | str,
    ) -> Network | None:
        """Return the network that parameters ask for, or None.

        Raises
        ------
        ValueError
            If they ask for two.
        """
        layers = positive_integers("hidden_layer_sizes", hidden_layer_sizes)
        if feature_map is not None and layers:
            raise ValueError(
                f"hidden_layer_sizes={hidden_layer_sizes!r} and feature_map are two networks; "
                "give one of them."
            )
        if feature_map is None and not layers:
            return None
        return cls(
            layers=layers, activation=activation, module=feature_map, weight_decay=weight_decay
        )

    def build(
        self, X: Tensor, generator: torch.Generator, n_members: int = 1
    ) -> tuple[nn.Module, int]:
        """Make g, and return the width of its output as well."""
        if self.module is not None:
            network = copy.deepcopy(self.module).to(X)
            return network, output_width(network, X[:2])
        shape = X.shape[1], self.layers, self.activation
        return multilayer_perceptron(*shape, generator, n_members).to(X), self.layers[-1]

    def freeze(self, network: nn.Module) -> None:
        """Train those parameters of a copy of the user's module that the user left free."""
        if self.module is not None:
            pairs = zip(self.module.parameters(), network.parameters(), strict=True)
            for user, ours in pairs:
                ours.requires_grad_(user.requires_grad)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return how X is scaled: standard for networks of ours, as it is for the user's."""
        if self.module is not None:
            return Scaling.identity(X.shape[1])
        return Scaling.standard(X, weight)

    def decay(self, n_rows: float) -> float:
        """Return the weight decay for so many rows."""
        if self.weight_decay != "auto":
            return float(self.weight_decay)
        return min(MOST_DECAY, DECAY_ROWS / n_rows)


def finite_features(
    kernel: KernelChoice,
    network: nn.Module,
    width: int,
    n_inputs: int,
    n_components: int,
    n_members: int,
    generator: torch.Generator,
) -> FeatureMap:
    """Make finite φ, before training: of a network's outputs, or of a kernel on them."""
    if kernel.expression is None:
        return NetworkFeatures(network, width, n_members, skip=n_inputs)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    expression = kernels.from_sklearn(kernel.expression)
    return KernelFeatures(expression, network, width, n_components, seed, n_members)


def positive_integers(name: str, given: Any) -> tuple[int, ...]:
    """Return a parameter that is one positive integer, several, or none.

    Raises
    ------
    ValueError
        If it is anything else, rows and columns included.
    """
    found: Sequence[Any] = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in found):
        raise ValueError(f"{name} must be positive integers, got {given!r}.")
    return tuple(int(n) for n in found)
