"""Finite feature maps φ(x): k(x, x') = φ(x)ᵀφ(x') (+ a residual variance for the sparse methods).

A map is built on a *network* g (the identity, a multilayer perceptron, or any torch module): linear
features are g(x) itself, random Fourier features approximate an sklearn kernel expression on g(x).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from . import kernels

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class FeatureMap(nn.Module):
    """φ: rows of X to features, with the variance ρ(x) that the features leave unexplained.

    A map may be an ensemble of K members with D features each. Training sees them apart; φ joins
    them, so that the kernel φ(x)ᵀφ(x') is the mean of the members' kernels.
    """

    n_features: int  # D
    n_members: int = 1  # K

    def members(self, X: Tensor) -> Tensor:
        """Each member's features: (K, N, D)."""
        raise NotImplementedError

    def forward(self, X: Tensor, columns: Tensor | None = None) -> Tensor:
        """φ(X) (N, K·D), or its given columns (N, len(columns))."""
        Z = self.members(X)
        phi = Z[0] if len(Z) == 1 else Z.permute(1, 0, 2).flatten(1) / math.sqrt(len(Z))
        return phi if columns is None else phi[:, columns]

    def network_parameters(self) -> list[nn.Parameter]:
        """Those that weight decay applies to."""
        named = self.named_parameters()
        return [p for name, p in named if "network." in name and p.requires_grad]

    def residual(self, X: Tensor, phi: Tensor) -> Tensor:
        """ρ(x), (N,): zero for a finite-dimensional kernel."""
        return phi.new_zeros(len(phi))


class JoinedFeatures(FeatureMap):
    """An ensemble as the single map that φ makes of it."""

    features: FeatureMap

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features
        self.n_features = features.n_members * features.n_features

    def members(self, X: Tensor) -> Tensor:
        return self.features(X)[None]


class NetworkFeatures(FeatureMap):
    """φ(x) = g(x): the linear kernel on the outputs of a network, or of an ensemble of networks.

    Parameters
    ----------
    network : nn.Module
        g: (N, d) → (N, D), or (K, N, D) for an ensemble.
    n_features : int
        Width of the network's output.
    n_members : int, default=1
        K.
    skip : int, default=0
        Number of inputs d if φ(x) = [s·g(x), x/√d, 1] instead, which spares the network the linear
        part of the function and its mean. The scale s is 1 until it is set.
    """

    network: nn.Module
    scale: Tensor

    def __init__(
        self, network: nn.Module, n_features: int, n_members: int = 1, skip: int = 0
    ) -> None:
        super().__init__()
        self.network = network
        self.skip = skip
        self.register_buffer("scale", torch.ones(()))
        self.n_features = n_features + (skip + 1 if skip else 0)
        self.n_members = n_members

    def members(self, X: Tensor) -> Tensor:
        Z = self.network(X)
        if Z.ndim == 2:
            Z = Z[None]
        if not self.skip:
            return Z
        linear = torch.cat([X / math.sqrt(self.skip), X.new_ones(len(X), 1)], 1)
        return torch.cat([self.scale * Z, linear.expand(len(Z), -1, -1)], 2)


class Term(nn.Module):
    """Features of one additive term of a kernel: (..., n_inputs) → (..., n_features)."""

    n_features: int


class KernelFeatures(FeatureMap):
    """Features of an sklearn kernel expression on a network: its additive terms, concatenated.

    A term is a product of constants with either one DotProduct (exact features) or any number of
    RBF and Matérn kernels (random Fourier features).

    Parameters
    ----------
    kernel : skgpstoch.kernels.Kernel
        The expression, on the outputs of the network.
    network : nn.Module
        g: (N, d) → (N, n_inputs).
    n_inputs : int
        Width of the network's output.
    n_components : int
        Random Fourier features in all, shared equally among the stationary terms.
    seed : int
        Names the draw of the frequencies.
    n_members : int, default=1
        K.

    Raises
    ------
    TypeError
        If a term has no finite or random Fourier features.
    ValueError
        If a length-scale is not of the network's width, or `n_components` is less than the terms.
    """

    def __init__(
        self,
        kernel: kernels.Kernel,
        network: nn.Module,
        n_inputs: int,
        n_components: int,
        seed: int,
        n_members: int = 1,
    ) -> None:
        super().__init__()
        check_length_scales(kernel, n_inputs)
        self.kernel = kernel
        self.network = network
        self.n_members = n_members
        products = [_factors(term) for term in _summands(kernel)]
        fourier = [not any(isinstance(f, kernels.DotProduct) for f in p) for p in products]
        widths = iter(_shares(n_components, sum(fourier)))
        terms: list[Term] = [
            FourierTerm(product, n_inputs, next(widths), seed + i)
            if is_fourier
            else LinearTerm(product, n_inputs)
            for i, (product, is_fourier) in enumerate(zip(products, fourier, strict=True))
        ]
        self.terms = nn.ModuleList(terms)
        self.n_features = sum(term.n_features for term in terms)

    def members(self, X: Tensor) -> Tensor:
        G = self.network(X)
        return torch.cat([term(G) for term in self.terms], -1).reshape(-1, len(X), self.n_features)


class LinearTerm(Term):
    """c·(σ₀² + x·x'): the exact features √c·[σ₀, x], or √c·x where σ₀ is fixed at 0."""

    dot: kernels.DotProduct

    def __init__(self, factors: list[kernels.Kernel], n_inputs: int) -> None:
        super().__init__()
        self.constants, rest = _split_constants(factors)
        if len(rest) != 1:
            raise TypeError(
                f"kernel: DotProduct cannot be multiplied by another non-constant kernel here, got "
                f"a product of {len(rest)}. {_SUPPORTED}"
            )
        self.dot = cast(kernels.DotProduct, rest[0])
        fixed = not any(True for _ in self.dot.parameters())
        self.homogeneous = fixed and not bool(self.dot.sigma_0.any())
        self.n_features = n_inputs + (not self.homogeneous)

    def forward(self, G: Tensor) -> Tensor:
        if self.homogeneous:
            return _amplitude(self.constants, G) * G
        value: Tensor = self.dot.sigma_0
        sigma_0 = value.to(G).reshape(1).expand(*G.shape[:-1], 1)
        return _amplitude(self.constants, G) * torch.cat([sigma_0, G], -1)


class FourierTerm(Term):
    """c·Πⱼkⱼ of RBF and Matérn kernels, by random Fourier features (Rahimi & Recht, 2007).

    φ(x) = √(2c/m)·[cos(ω₁·x), …, sin(ω₁·x), …] has E[φ(x)ᵀφ(x')] = k(x, x') for frequencies drawn
    from the spectral density; those of a product are the sums of its factors'. With ω = z/ℓ the
    gradients reach the length-scales ℓ, while z is a function of the seed and of the frequency's
    index alone (:func:`counter_normal`).
    """

    phase: Tensor

    def __init__(
        self, factors: list[kernels.Kernel], n_inputs: int, n_features: int, seed: int
    ) -> None:
        super().__init__()
        self.constants, rest = _split_constants(factors)
        self.factors = nn.ModuleList(rest)
        self.n_features = n_features
        for j, factor in enumerate(rest):
            z = base_frequencies(factor, (n_features + 1) // 2, n_inputs, seed, stream=j)
            self.register_buffer(f"z_{j}", z)
        # A cosine without its sine needs a random phase for its expectation to be stationary.
        phase = torch.zeros((n_features + 1) // 2, dtype=torch.float64)
        if n_features % 2:
            u = torch.special.ndtr(counter_normal(seed, torch.zeros(1).long(), 1, stream=len(rest)))
            phase[-1] = 2.0 * math.pi * u
        self.register_buffer("phase", phase)

    def forward(self, G: Tensor) -> Tensor:
        omega = sum(
            getattr(self, f"z_{j}") / factor.length_scale for j, factor in enumerate(self.factors)
        )  # (m/2, n_inputs)
        angle = G @ omega.to(G).mT + self.phase.to(G)
        phi = torch.cat([angle.cos(), angle.sin()], -1)[..., : self.n_features]
        return _amplitude(self.constants, G) * math.sqrt(2.0 / self.n_features) * phi


_SUPPORTED = (
    "Kernels with finite features are sums of products of ConstantKernel with one DotProduct, or "
    "with any number of RBF and Matern (nu = 0.5, 1.5, 2.5, inf)."
)


def has_features(kernel: kernels.Kernel) -> bool:
    """Whether :class:`KernelFeatures` can make features of an expression."""
    try:
        for term in _summands(kernel):
            _, rest = _split_constants(_factors(term))
            if len(rest) > 1 and any(isinstance(f, kernels.DotProduct) for f in rest):
                return False
    except TypeError:
        return False
    return True


def check_length_scales(kernel: kernels.Kernel, n_inputs: int) -> None:
    """Raise a ValueError if an anisotropic kernel is not of the width of its inputs."""
    for part in kernel.modules():
        length_scale = getattr(part, "length_scale", None)
        if length_scale is not None and length_scale.numel() not in (1, n_inputs):
            raise ValueError(
                f"kernel: a length_scale has {length_scale.numel()} entries, but there are "
                f"{n_inputs} features for {kernels.to_sklearn(kernel)}."
            )


def _summands(kernel: kernels.Kernel) -> list[kernels.Kernel]:
    if isinstance(kernel, kernels.Sum):
        return _summands(kernel.k1) + _summands(kernel.k2)
    return [kernel]


def _factors(kernel: kernels.Kernel) -> list[kernels.Kernel]:
    if isinstance(kernel, kernels.Product):
        return _factors(kernel.k1) + _factors(kernel.k2)
    return [kernel]


def _split_constants(
    factors: list[kernels.Kernel],
) -> tuple[nn.ModuleList, list[kernels.Kernel]]:
    constants = nn.ModuleList(f for f in factors if isinstance(f, kernels.Constant))
    rest = [f for f in factors if not isinstance(f, kernels.Constant)]
    known = (kernels.DotProduct, kernels.RBF, kernels.Matern)
    for factor in rest:
        if not isinstance(factor, known):
            raise TypeError(f"kernel: {type(factor).__name__} has no finite features. {_SUPPORTED}")
    if not rest:
        raise TypeError(f"kernel: a constant alone cannot be a term. {_SUPPORTED}")
    return constants, rest


def _amplitude(constants: nn.ModuleList, like: Tensor) -> Tensor:
    """√c, a scalar of the type of `like`."""
    c = like.new_ones(())
    for constant in constants:
        c = c * cast(kernels.Constant, constant).constant_value.to(like).reshape(())
    return c.sqrt()


def _shares(total: int, parts: int) -> list[int]:
    """`total` features shared among `parts` terms as equally as integers allow."""
    if parts and total < parts:
        raise ValueError(f"n_components must be at least {parts} for this kernel, got {total}.")
    return [total // parts + (i < total % parts) for i in range(parts)]


def base_frequencies(
    factor: kernels.Kernel, n_frequencies: int, n_inputs: int, seed: int, stream: int = 0
) -> Tensor:
    """Frequencies of a unit length-scale: normal for RBF, Student-t with 2ν degrees for Matérn.

    Returns
    -------
    z : Tensor of shape (n_frequencies, n_inputs)
        float64; ω = z/ℓ has the kernel's spectral density.
    """
    nu = getattr(factor, "nu", math.inf)
    dof = 0 if math.isinf(nu) else round(2 * nu)
    index = torch.arange(n_frequencies)
    z = counter_normal(seed, index, n_inputs + dof, stream)
    if not dof:
        return z
    chi2 = z[:, n_inputs:].square().sum(1, keepdim=True)
    return z[:, :n_inputs] * (dof / chi2).sqrt()


def counter_normal(seed: int, index: Tensor, n_columns: int, stream: int = 0) -> Tensor:
    """Standard normals that are a function of (seed, stream, index, column) alone.

    Row i is the same whichever other rows are asked for, in whatever order, so features need not be
    stored to be used again. SplitMix64 (Steele, Lea & Flood, 2014) of a counter, through Φ⁻¹.

    Parameters
    ----------
    seed, stream : int
        Name the sequence.
    index : Tensor of shape (m,)
        Integers.
    n_columns : int
        Numbers for each index.

    Returns
    -------
    z : Tensor of shape (m, n_columns)
        float64.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.features import counter_normal
    >>> z = counter_normal(0, torch.arange(1000), 3)
    >>> bool((counter_normal(0, torch.tensor([7, 3]), 3) == z[[7, 3]]).all())
    True
    """
    column = torch.arange(n_columns, device=index.device)
    key = _splitmix64(torch.tensor(_int64(seed * 2654435761 + stream), device=index.device))
    bits = _splitmix64(_splitmix64(key + index)[:, None] + column)
    uniform = (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52  # never 0 or 1
    return torch.special.ndtri(uniform)


def _int64(value: int) -> int:
    """value modulo 2⁶⁴, as the signed integer torch stores."""
    return (value + 2**63) % 2**64 - 2**63


def _splitmix64(x: Tensor) -> Tensor:
    """SplitMix64's output function; int64 arithmetic wraps, shifts are made logical by a mask."""
    x = x + _int64(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _int64(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _int64(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (2**33 - 1))


class MemberLinear(nn.Module):
    """K affine maps side by side: (N, fan_in) or (K, N, fan_in) → (K, N, fan_out).

    Starts as torch's own Linear (He-uniform with a = √5), drawn from `generator`.
    """

    def __init__(
        self, n_members: int, fan_in: int, fan_out: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_members, fan_in, fan_out, device=generator.device))
        self.bias = nn.Parameter(torch.empty(n_members, 1, fan_out, device=generator.device))
        bound = 1.0 / math.sqrt(fan_in)
        for p in (self.weight, self.bias):
            nn.init.uniform_(p, -bound, bound, generator=generator)

    def forward(self, X: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, X.expand(len(self.weight), -1, -1), self.weight)


def multilayer_perceptron(
    n_inputs: int,
    hidden_layer_sizes: Sequence[int],
    activation: str,
    generator: torch.Generator,
    n_members: int = 1,
) -> nn.Module:
    """Affine layers, each followed by the activation; the identity for no layers."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip((n_inputs, *hidden_layer_sizes), hidden_layer_sizes, strict=False):
        layers += [MemberLinear(n_members, fan_in, fan_out, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def output_width(network: nn.Module, X: Tensor) -> int:
    """Number of features that a user's network makes of the rows of X.

    Raises
    ------
    ValueError
        If it does not make a floating (n, D) tensor of them, D ≥ 1, or one without a gradient
        although it has parameters to train.
    """
    expected = (
        f"feature_map must map a tensor of shape {tuple(X.shape)} to one of shape ({len(X)}, D)"
    )
    try:
        Z = copy.deepcopy(network).eval()(X)
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
        raise ValueError(f"{expected} with a gradient by its parameters, got a detached one.")
    return Z.shape[1]
