"""Networks below kernels, and the finite features that they make."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from .. import kernels
from ..features.base import FeatureMap
from ..features.fourier import KernelFeatures
from ..features.network import NetworkFeatures, multilayer_perceptron, output_width
from .recipe import KernelChoice, Network


def build_network(
    network: Network | None, X: Tensor, generator: torch.Generator, n_members: int = 1
) -> tuple[nn.Module, int]:
    """Make g, and return the width of its output as well; of no network, the identity."""
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
    """Make networks, and finite φ of their outputs, or of a kernel on them."""
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
) -> FeatureMap:
    """Make finite φ, before training: of a network's outputs, or of a kernel on them."""
    if kernel.expression is None:
        return NetworkFeatures(network, width, n_members, skip=n_inputs)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    expression = kernels.from_sklearn(kernel.expression)
    return KernelFeatures(expression, network, width, n_components, seed, n_members)
