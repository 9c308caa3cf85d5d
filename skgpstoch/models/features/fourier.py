"""Finite features of kernels: exact for DotProduct, random Fourier features for the others."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from ... import kernels
from ...data.counter_rng import counter_normal
from ...kernels import check_length_scales
from ...maths.modules import Module
from .base import FeatureMap

LARGEST_ORDER = 100.0  # ν of a kernel whose frequencies take 2ν numbers each


class Term(Module):
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
        Seed of the frequencies.
    n_members : int, default=1
        Number K of ensemble members.

    Raises
    ------
    TypeError
        If a term has no finite or random Fourier features.
    ValueError
        If the number of length-scales is not the network's width, or `n_components` is less than
        the number of terms.
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
        check_length_scales(kernel, n_inputs, network)
        self.kernel = kernel
        self.network = network
        self.n_members = n_members
        self.n_components = n_components
        products = [factors_of(term) for term in summands(kernel)]
        fourier = [not any(isinstance(f, kernels.DotProduct) for f in p) for p in products]
        widths = iter(shares(n_components, sum(fourier)))
        terms: list[Term] = [
            FourierTerm(product, n_inputs, next(widths), seed + i)
            if is_fourier
            else LinearTerm(product, n_inputs)
            for i, (product, is_fourier) in enumerate(zip(products, fourier, strict=True))
        ]
        self.terms = nn.ModuleList(terms)
        self.n_features = sum(term.n_features for term in terms)
        self.blocks = (self.n_features,)

    def members(self, X: Tensor) -> Tensor:
        G = self.network(X)
        phi = torch.cat([term(G) for term in self.terms], -1)
        phi = phi.reshape(math.prod(phi.shape[:-2]), *phi.shape[-2:])  # valid for no rows, too
        return self.sized(phi)


class LinearTerm(Term):
    """c·(σ₀² + x·x'): the exact features √c·[σ₀, x], or √c·x where σ₀ is fixed at 0."""

    def __init__(self, factors: list[kernels.Kernel], n_inputs: int) -> None:
        super().__init__()
        self.constants, dots, radials = split_product(factors)
        if len(dots + radials) != 1:
            raise TypeError(
                f"kernel: DotProduct cannot be multiplied by another non-constant kernel here, got "
                f"a product of {len(dots + radials)}. {_SUPPORTED}"
            )
        self.dot = dots[0]
        fixed = not any(True for _ in self.dot.parameters())
        self.homogeneous = fixed and not bool(self.dot.sigma_0.any())
        self.n_features = n_inputs + (not self.homogeneous)

    def forward(self, G: Tensor) -> Tensor:
        if self.homogeneous:
            return amplitude(self.constants, G) * G
        sigma_0 = self.dot.sigma_0.to(G).reshape(1).expand(*G.shape[:-1], 1)
        return amplitude(self.constants, G) * torch.cat([sigma_0, G], -1)


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
        self.constants, _, radials = split_product(factors)
        self.factors = nn.ModuleList(radials)
        self.n_features = n_features
        index = torch.arange((n_features + 1) // 2, device="cpu")
        for j, factor in enumerate(radials):
            z = base_frequencies(factor, index, n_inputs, seed, stream=j)
            self.register_buffer(f"z_{j}", z)
        # A cosine without its sine needs a random phase for its expectation to be stationary.
        phase = torch.zeros((n_features + 1) // 2, dtype=torch.float64, device="cpu")
        if n_features % 2:
            first = torch.zeros(1, dtype=torch.long, device="cpu")
            u = torch.special.ndtr(counter_normal(seed, first, 1, stream=len(radials)))
            phase[-1] = 2.0 * math.pi * u
        self.register_buffer("phase", phase)

    def check_parts(self) -> None:
        """Raise a ValueError if frequencies do not make up the features, as in edited files."""
        n_frequencies = len(self.phase)
        if (self.n_features + 1) // 2 != n_frequencies:
            raise ValueError(f"{n_frequencies} frequencies do not make {self.n_features} features")

    def forward(self, G: Tensor) -> Tensor:
        pairs = ((getattr(self, f"z_{j}"), factor) for j, factor in enumerate(self.factors))
        omega = sum(z / factor.length_scale for z, factor in pairs)  # (m/2, n_inputs)
        angle = G @ omega.to(G).mT + self.phase.to(G)
        phi = torch.cat([angle.cos(), angle.sin()], -1)[..., : self.n_features]
        return amplitude(self.constants, G) * math.sqrt(2.0 / self.n_features) * phi


_SUPPORTED = (
    "Kernels with finite features are sums of products of ConstantKernel with one DotProduct, or "
    "with any number of RBF and Matern (nu = 0.5, 1.5, 2.5, inf)."
)


def has_features(kernel: kernels.Kernel) -> bool:
    """Whether :class:`KernelFeatures` can make features of an expression."""
    try:
        for term in summands(kernel):
            _, dots, radials = split_product(factors_of(term))
            if dots and len(dots + radials) > 1:
                return False
    except TypeError:
        return False
    return True


def has_fourier_features(kernel: kernels.Kernel) -> bool:
    """Whether all terms of an expression can have random Fourier features."""
    inner = kernel.modules()
    return has_features(kernel) and not any(isinstance(f, kernels.DotProduct) for f in inner)


def summands(kernel: kernels.Kernel) -> list[kernels.Kernel]:
    """Return the additive terms of an expression."""
    if isinstance(kernel, kernels.Sum):
        return summands(kernel.k1) + summands(kernel.k2)
    return [kernel]


def factors_of(kernel: kernels.Kernel) -> list[kernels.Kernel]:
    """Return the factors of a product."""
    if isinstance(kernel, kernels.Product):
        return factors_of(kernel.k1) + factors_of(kernel.k2)
    return [kernel]


def split_product(
    factors: list[kernels.Kernel],
) -> tuple[nn.ModuleList, list[kernels.DotProduct], list[kernels.Radial]]:
    """Split factors into constants and kernels; raise a TypeError for a kernel without features."""
    for factor in factors:
        if isinstance(factor, kernels.Radial):
            spectral_order(factor)
        elif not isinstance(factor, kernels.Constant | kernels.DotProduct):
            raise without_features(factor)
    constants = nn.ModuleList(f for f in factors if isinstance(f, kernels.Constant))
    if len(constants) == len(factors):
        raise TypeError(f"kernel: a constant alone cannot be a term. {_SUPPORTED}")
    dots = [f for f in factors if isinstance(f, kernels.DotProduct)]
    return constants, dots, [f for f in factors if isinstance(f, kernels.Radial)]


def spectral_order(factor: kernels.Radial) -> float:
    """Return ν of the spectral density, or raise a TypeError if it is unknown."""
    if factor.nu is None or LARGEST_ORDER < factor.nu < math.inf:
        raise without_features(factor)
    return factor.nu


def without_features(factor: kernels.Kernel) -> TypeError:
    """Return the error for a factor that has no finite features."""
    return TypeError(f"kernel: {type(factor).__name__} has no finite features. {_SUPPORTED}")


def amplitude(constants: nn.ModuleList, like: Tensor) -> Tensor:
    """Return √c, a scalar of the dtype of `like`."""
    c = like.new_ones(())
    for constant in constants:
        c = c * cast(kernels.Constant, constant).constant_value.to(like).reshape(())
    return c.sqrt()


def shares(total: int, parts: int) -> list[int]:
    """Share `total` features among `parts` terms as equally as integers allow."""
    if parts and total < parts:
        raise ValueError(f"n_components must be at least {parts} for this kernel, got {total}.")
    return [total // parts + (i < total % parts) for i in range(parts)]


def base_frequencies(
    factor: kernels.Radial, index: Tensor, n_inputs: int, seed: int, stream: int = 0
) -> Tensor:
    """Return frequencies z (m, n_inputs), float64, of a kernel with unit length-scale.

    They are normal for RBF, and Student-t with 2ν degrees of freedom for Matérn, so that ω = z/ℓ
    has the kernel's spectral density. `index` (m,) selects positions in the sequence that `seed`
    and `stream` determine.
    """
    nu = spectral_order(factor)
    dof = 0 if math.isinf(nu) else round(2 * nu)
    z = counter_normal(seed, index, n_inputs + dof, stream)
    if not dof:
        return z
    chi2 = z[:, n_inputs:].square().sum(1, keepdim=True)
    return z[:, :n_inputs] * (dof / chi2).sqrt()
