"""Networks as feature maps: multilayer perceptrons, their ensembles, and the user's modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...maths.modules import Module
from .base import FeatureMap

FREQUENCY = 0.3  # of waves at the start, in periods per standard deviation of an input
FARTHEST_INPUT = 1e8  # largest distance from the mean, in standard deviations

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


OF_EACH_ROW = "feature_map must find the features of each row from that row alone"
SAME_FEATURES = 1e-3  # share of the largest feature that is rounding


class InputLimits(Module):
    """Clamp each input to the interval of the training rows, made twice as wide: (N, d) → (N, d).

    Networks go on linearly where there were no rows, and exponentials of them without end.

    Parameters
    ----------
    X : Tensor of shape (N, d)
        Training rows.
    """

    low: Tensor
    high: Tensor

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        low, high = X.aminmax(dim=0)
        half = 0.5 * (high - low)
        self.register_buffer("low", low - half)
        self.register_buffer("high", high + half)

    def check_parts(self) -> None:
        """Raise a ValueError if limits are the wrong way round, as in edited files."""
        if bool((self.low > self.high).any()):
            raise ValueError("low must be at most high")

    def forward(self, X: Tensor) -> Tensor:
        return X.clamp(self.low, self.high)


class NetworkFeatures(FeatureMap):
    """φ(x) = g(x): the linear kernel on the outputs of a network, or of an ensemble of networks.

    Parameters
    ----------
    network : nn.Module
        g: (N, d) → (N, D), or (K, N, D) for an ensemble.
    n_features : int
        Width of the network's output.
    n_members : int, default=1
        Number K of ensemble members.
    skip : int, default=0
        Number of inputs d, for the features φ(x) = [s·g(x), x/√d, 1]; the network then need not
        learn the function's linear part and mean. The scale s is 1 until it is set. 0: φ(x) = g(x).
    limits : InputLimits or None, default=None
        What keeps inputs near those of training rows; None: nothing.
    """

    network: nn.Module
    scale: Tensor

    def __init__(
        self,
        network: nn.Module,
        n_features: int,
        n_members: int = 1,
        skip: int = 0,
        limits: InputLimits | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        if limits is not None:
            self.limits = limits
        self.skip = skip
        self.register_buffer("scale", torch.ones((), dtype=torch.float32, device="cpu"))
        self.n_features = n_features + (skip + 1 if skip else 0)
        self.n_members = n_members
        self.blocks = (self.n_features,)

    def members(self, X: Tensor) -> Tensor:
        X = X.clamp(-FARTHEST_INPUT, FARTHEST_INPUT)  # further away squares and waves would be NaN
        if (limits := getattr(self, "limits", None)) is not None:
            X = limits(X)
        Z = self.network(X)
        if Z.ndim == 2:
            Z = Z[None]
        if not self.skip:
            return self.sized(Z)
        linear = torch.cat([X / math.sqrt(X.shape[-1]), X.new_ones(*X.shape[:-1], 1)], -1)
        return self.sized(torch.cat([self.scale * Z, linear.expand(len(Z), -1, -1)], 2))


class OfMembers(Module):
    """A layer whose parameters have a leading axis of K members."""

    def keep_(self, k: int) -> None:
        """Let the k-th member be the only one."""
        for p in self.parameters(recurse=False):
            p.data = p.data[k : k + 1].clone()


class OneMember(Module):
    """Leave out the axis of members, of which there is one: (1, N, D) → (N, D)."""

    def forward(self, X: Tensor) -> Tensor:
        return X[0] if X.ndim == 3 else X


class MemberLinear(OfMembers):
    """K affine maps side by side: (N, fan_in) or (K, N, fan_in) → (K, N, fan_out).

    Weights start as in torch's Linear (He-uniform with a = √5). They are drawn from `generator` in
    float32, so they are the same for any training dtype and any default dtype.
    """

    def __init__(
        self, n_members: int, fan_in: int, fan_out: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"dtype": torch.float32, "device": generator.device}
        self.weight = nn.Parameter(torch.empty(n_members, fan_in, fan_out, **kind))
        self.bias = nn.Parameter(torch.empty(n_members, 1, fan_out, **kind))
        bound = 1.0 / math.sqrt(fan_in)
        for p in (self.weight, self.bias):
            nn.init.uniform_(p, -bound, bound, generator=generator)

    def forward(self, X: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, X.expand(len(self.weight), -1, -1), self.weight)


class InputScales(OfMembers):
    """Each input times a learned scale: (N, d) → (K, N, d).

    This is the counterpart of a kernel's automatic relevance determination: the scale of an
    irrelevant input shrinks much sooner than all of a layer's weights for that input would.
    Holzmüller, Grinsztajn & Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees
    on tabular data", NeurIPS 2024.
    """

    def __init__(self, n_members: int, n_inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        kind: dict[str, Any] = {"dtype": torch.float32, "device": generator.device}
        self.input_scale = nn.Parameter(torch.ones(n_members, 1, n_inputs, **kind))

    def forward(self, X: Tensor) -> Tensor:
        return self.input_scale * X.expand(*X.shape[:-1], self.input_scale.shape[-1])


def ignore_constants_(network: nn.Sequential, X: Tensor, seen: Tensor) -> None:
    """Let each member ignore the inputs that are constant in the rows that it is trained on.

    To it such an input is a bias. Weights for it that Adam makes as large as others' are multiplied
    by some fifty deviations where a row has the rare other value. A scale and weights that are both
    0 have no gradients, so they stay 0.

    Parameters
    ----------
    network : nn.Sequential
        What :func:`multilayer_perceptron` returns, after :class:`InputScales`.
    X : Tensor of shape (N, d)
        Rows.
    seen : Tensor of shape (K, N)
        Weight that each row has in the training of each member.
    """
    scales = next(m for m in network if isinstance(m, InputScales)).input_scale
    layer = next((m for m in network if isinstance(m, MemberLinear)), None)
    with torch.no_grad():
        for k, weight in enumerate(seen):
            low, high = X[weight > 0.0].aminmax(dim=0)
            constant = low == high
            scales[k, :, constant] = 0.0
            if layer is not None:  # which has the inputs after their waves
                layer.weight[k, -X.shape[1] :][constant] = 0.0


class PeriodicInputs(OfMembers):
    """Inputs, and linear functions of waves of inputs: (N, d) or (K, N, d) → (K, N, d'·D + d).

    Every input x becomes [x, Wᵀcos(2π f x + p)] with learned f, p and W. With them a network can
    change quickly along a single input. Gorishniy, Rubachev & Babenko, "On embeddings for numerical
    features in tabular deep learning", NeurIPS 2022.

    Parameters
    ----------
    n_members, n_inputs, n_waves : int
        K, d, and the number of waves of an input; half as many functions are made of them.
    columns : Tensor of shape (d',)
        The inputs that have waves.
    every : int
        One in `every` members has waves; the others have zeros in their place.
    generator : torch.Generator
        Draws the starting values; frequencies are normal with a standard deviation of 0.3.
    """

    columns: Tensor
    share: Tensor
    of_all: bool  # whether all inputs have waves
    is_mixed: bool  # whether only some members have them

    def __init__(
        self,
        n_members: int,
        n_inputs: int,
        n_waves: int,
        columns: Tensor,
        every: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        shape, D = (n_members, len(columns), n_waves), max(n_waves // 2, 1)
        self.n_outputs = n_inputs + len(columns) * D
        self.register_buffer("columns", columns)
        self.of_all, self.is_mixed = len(columns) == n_inputs, every > 1
        has_waves = torch.arange(n_members, device=generator.device) % every == 0
        self.register_buffer("share", has_waves.float()[:, None, None])  # (K, 1, 1)
        kind: dict[str, Any] = {"dtype": torch.float32, "device": generator.device}
        self.frequency = nn.Parameter(torch.empty(shape, **kind))
        self.phase = nn.Parameter(torch.empty(shape, **kind))
        self.weight = nn.Parameter(torch.empty(*shape, D, **kind))
        bound = 1.0 / math.sqrt(n_waves)
        nn.init.normal_(self.frequency, 0.0, FREQUENCY, generator=generator)
        nn.init.uniform_(self.phase, -math.pi, math.pi, generator=generator)
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def keep_(self, k: int) -> None:
        super().keep_(k)
        self.share = self.share[k : k + 1].clone()

    def forward(self, X: Tensor) -> Tensor:
        X = X.expand(len(self.frequency), -1, -1)
        waved = X if self.of_all else X.index_select(2, self.columns)
        waved = waved.expand(-1, -1, self.frequency.shape[1])
        angle = waved.mT[..., None] * (2.0 * math.pi * self.frequency[:, :, None])
        waves = torch.cos(angle + self.phase[:, :, None]) @ self.weight  # (K, d', N, D)
        waves = waves.transpose(1, 2).flatten(2)
        if self.is_mixed:
            waves = self.share.to(waves) * waves
        return torch.cat([waves, X], 2)


def multilayer_perceptron(
    n_inputs: int,
    hidden_layer_sizes: Sequence[int],
    activation: str,
    generator: torch.Generator,
    n_members: int = 1,
    n_waves: int = 0,
    columns: Tensor | None = None,
    every: int = 1,
) -> nn.Sequential:
    """Return affine layers, each followed by the activation, on the inputs and waves of some.

    Without layers it is the identity. One in `every` members has waves.
    """
    layers: list[nn.Module] = []
    if n_waves and hidden_layer_sizes:
        if columns is None:
            columns = torch.arange(n_inputs, device=generator.device)
        periodic = PeriodicInputs(n_members, n_inputs, n_waves, columns, every, generator)
        layers.append(periodic)
        n_inputs = periodic.n_outputs
    for fan_in, fan_out in zip((n_inputs, *hidden_layer_sizes), hidden_layer_sizes, strict=False):
        layers += [MemberLinear(n_members, fan_in, fan_out, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def output_width(network: nn.Module, X: Tensor) -> int:
    """Return the number of features that a user's network returns for the rows of X.

    Raises
    ------
    ValueError
        If the output is not a floating-point (n, D) tensor with D ≥ 1, has no gradient although the
        network has parameters to train, or depends on other rows.
    """
    expected = (
        f"feature_map must map a tensor of shape {tuple(X.shape)} to one of shape ({len(X)}, D)"
    )
    fitted = copy.deepcopy(network).eval()
    try:
        Z = fitted(X)
    except RuntimeError as error:
        raise ValueError(f"{expected}, but it fails: {error}") from error
    trains = any(p.requires_grad for p in network.parameters())
    if not isinstance(Z, Tensor):
        raise ValueError(f"{expected}, got {type(Z).__name__}.")
    if Z.ndim != 2 or len(Z) != len(X) or not Z.shape[1] or not Z.is_floating_point():
        raise ValueError(f"{expected}, got shape {tuple(Z.shape)} of {Z.dtype}.")
    if not bool(torch.isfinite(Z).all()):
        raise ValueError(f"{expected}, got NaN or infinite values.")
    if trains and not Z.requires_grad:
        raise ValueError(
            f"{expected} that is differentiable by its parameters, got a detached one."
        )
    for row, features in zip(X.split(1), Z.split(1), strict=True):
        check_alone(fitted, row, features)
    return Z.shape[1]


def check_alone(network: nn.Module, row: Tensor, beside_others: Tensor) -> None:
    """Raise a ValueError if a network finds other features of a row alone than beside others.

    Predictions would depend on which rows are asked together.
    """
    try:
        alone = network(row)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(f"{OF_EACH_ROW}, but of one row it fails: {error}") from error
    most = SAME_FEATURES * beside_others.abs().max()
    if alone.shape != beside_others.shape or not bool((alone - beside_others).abs().max() <= most):
        raise ValueError(
            f"{OF_EACH_ROW}, but a row alone has others than beside another row. Look for layers "
            "along the first axis, such as Softmax(dim=0) or an RNN of all rows, and for random "
            "numbers, and let batch norm track statistics."
        )
