"""Networks below kernels, and the finite features that they make."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...models.features.base import FeatureMap
from ...models.features.fourier import KernelFeatures
from ...models.features.network import (
    InputLimits,
    NetworkFeatures,
    multilayer_perceptron,
    output_width,
)
from .kernel_choice import KernelChoice
from .plan import positive_integers

DECAY_ROWS, MOST_DECAY = 2000, 0.3  # weight_decay="auto" is 2000/n, at most 0.3

MOST_SKIPPED = 2000
"""Most inputs that are features beside those of a network; q(w) of D features takes D³.

*Measured* on 200 rows of 5,000 columns, DeepKernelEnsembleRegressor(max_time=5): 39 s of a core
with them, 5.5 without. On 150 rows of 1,010 columns that tell linearly, the log loss is .06 to .1
lower with them.
"""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that we build, or a copy of the user's module.

    Parameters
    ----------
    layers : tuple of int, default=()
        Widths of the hidden layers.
    activation : str, default="relu"
        Activation after every layer.
    module : nn.Module or None, default=None
        The user's module, (n, d) → (n, D).
    weight_decay : float or "auto", default="auto"
        Decoupled weight decay of the network's parameters.
    """

    layers: tuple[int, ...] = ()
    activation: str = "relu"
    module: nn.Module | None = None
    weight_decay: float | str = "auto"

    @classmethod
    def of(
        cls,
        hidden_layer_sizes: Any,
        feature_map: nn.Module | None,
        weight_decay: float | str,
        activation: str = "relu",
        *,
        replaces: bool = False,
    ) -> Network | None:
        """Return the network that the parameters specify; None if they specify none.

        Parameters
        ----------
        hidden_layer_sizes, feature_map, weight_decay, activation
            The estimator's parameters.
        replaces : bool, default=False
            Whether `feature_map` overrides `hidden_layer_sizes`, whose default has layers.

        Raises
        ------
        ValueError
            If they specify two networks.
        """
        layers = positive_integers("hidden_layer_sizes", hidden_layer_sizes)
        if feature_map is not None and replaces:
            layers = ()
        if feature_map is not None and layers:
            raise ValueError(
                f"hidden_layer_sizes={hidden_layer_sizes!r} and feature_map cannot both be "
                "given, because each defines a network."
            )
        if feature_map is None and not layers:
            return None
        return cls(
            layers=layers, activation=activation, module=feature_map, weight_decay=weight_decay
        )

    def freeze(self, network: nn.Module) -> None:
        """Freeze the parameters of a copy that are frozen in the user's module."""
        if self.module is not None:
            pairs = zip(self.module.parameters(), network.parameters(), strict=True)
            for user, ours in pairs:
                ours.requires_grad_(user.requires_grad)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling of X: robust for our networks, none for the user's module."""
        if self.module is not None:
            return Scaling.identity(X.shape[1])
        return Scaling.robust(X, weight)

    def decay(self, n_rows: float) -> float:
        """Return the weight decay for this many rows."""
        if self.weight_decay != "auto":
            return float(self.weight_decay)
        return min(MOST_DECAY, DECAY_ROWS / n_rows)


def build_network(
    network: Network | None, X: Tensor, generator: torch.Generator, n_members: int = 1
) -> tuple[nn.Module, int]:
    """Return the module g (the identity if there is no network), and its output width."""
    if network is None:
        return nn.Sequential(), X.shape[1]
    if network.module is not None:
        module = copy.deepcopy(network.module).to(X)
        return module, output_width(module, X[:2])
    shape = X.shape[1], network.layers, network.activation
    return multilayer_perceptron(*shape, generator, n_members).to(X), network.layers[-1]


def network_features(
    kernel: KernelChoice,
    network: Network | None,
    X: Tensor,
    n_components: int,
    n_members: int,
    generator: torch.Generator,
) -> FeatureMap:
    """Make networks, and features φ: the networks' outputs, or features of a kernel on them."""
    module, width = build_network(network, X, generator, n_members)
    return finite_features(kernel, module, width, X.shape[1], n_components, n_members, generator)


def finite_features(
    kernel: KernelChoice,
    network: nn.Module,
    width: int,
    n_inputs: int,
    n_components: int,
    n_members: int,
    generator: torch.Generator,
    limits: InputLimits | None = None,
) -> FeatureMap:
    """Make features φ, before training: a network's outputs, or features of a kernel on them."""
    if kernel.expression is None:
        has_layers = any(True for _ in network.parameters())
        skip = 0 if has_layers and n_inputs > MOST_SKIPPED else n_inputs
        return NetworkFeatures(network, width, n_members, skip, limits)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    expression = kernels.from_sklearn(kernel.expression)
    return KernelFeatures(expression, network, width, n_components, seed, n_members)
