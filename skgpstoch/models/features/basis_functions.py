"""Millions of basis functions, of which any subset can be evaluated at a time.

This module defines Φ and S of f = Φw, w ~ N(0, S⁻¹). The functions themselves are not stored:
Fourier features are functions of a seed and of their number, and φ_i = k(·, z_i) is a function of a
kernel and of a point.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ... import kernels
from ...data.counter_rng import counter_normal
from ...data.devices import is_host
from ...kernels import check_length_scales
from ...maths.modules import Module
from .fourier import (
    amplitude,
    base_frequencies,
    factors_of,
    has_fourier_features,
    split_product,
    summands,
)


class BasisFunctions(Module):
    """Base class of basis functions φ_1, …, φ_m of a kernel k, and the precision S of the weights.

    The number m is `n_components`. The functions are in groups that are evaluated together.
    """

    n_groups: int
    points: Tensor  # Z, (m, d), of functions that are centred
    group_size: int = 1
    is_diagonal: bool = True  # whether S is
    sums_to_kernel: bool = False  # whether Σφ_i(x)² is k(x, x), exactly

    def __init__(self, kernel: kernels.Kernel, n_components: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.n_components = n_components

    def check_parts(self) -> None:
        """Raise a ValueError if groups do not make up the functions, as in edited files."""
        if self.n_groups != math.ceil(self.n_components / self.group_size):
            raise ValueError(f"{self.n_components} functions are not in {self.n_groups} groups")

    def members(self, groups: Tensor) -> Tensor:
        """Return the functions in ascending groups, in ascending order: (|I|,)."""
        return groups

    def span(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return groups start, …, stop − 1 and their functions, without evaluating any."""
        groups = torch.arange(start, stop, device=device)
        return groups, groups

    def columns(self, X: Tensor, groups: Tensor, members: Tensor | None = None) -> Tensor:
        """Return Φ_{·I} for the functions I in ascending groups: (N, |I|), in the dtype of X.

        `members` are these functions, if they are known already.
        """
        raise NotImplementedError

    def precision(self, groups: Tensor, members: Tensor | None = None) -> Tensor:
        """Return S_II in float64: its diagonal (|I|,) if S is diagonal, else (|I|, |I|)."""
        members = self.members(groups) if members is None else members
        return torch.ones_like(members, dtype=torch.float64)

    def diagonal(self, groups: Tensor, members: Tensor | None = None) -> Tensor:
        """Return s_ii of the functions in groups, (|I|,), in float64."""
        return self.precision(groups, members)

    def cross(self, groups: Tensor, others: Tensor) -> Tensor:
        """Return S_IJ, (|I|, |J|), for a dense S."""
        raise NotImplementedError(f"{type(self).__name__} has a diagonal S")

    def missing_variance(self, X: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return k(x, x), (N, 1), and Σᵢ wᵢ k(x, zᵢ)², (N, P), for functions centred on rows of X.

        `weight` is of shape (m, P).
        """
        raise NotImplementedError(f"{type(self).__name__} has no points to add one to")


class FourierBasis(BasisFunctions):
    """Random Fourier features of sums of products of RBF and Matérn kernels; S = I.

    φ_j(x) = √(2c/m)·cos(ω_j·x) and φ_{j+⌈m/2⌉}(x) = √(2c/m)·sin(ω_j·x), ω_j a function of the seed
    and of j (:func:`~skgpstoch.data.counter_rng.counter_normal`), x of d = `n_inputs` numbers.
    Frequencies are dealt to the terms of the sum in turn.
    """

    group_size = 2

    def __init__(self, kernel: kernels.Kernel, n_inputs: int, n_components: int, seed: int) -> None:
        super().__init__(kernel, n_components)
        check_length_scales(kernel, n_inputs)
        self.n_inputs = n_inputs
        self.n_groups = (n_components + 1) // 2
        self.sums_to_kernel = n_components % 2 == 0
        self.seed = seed
        self.check_parts()

    def check_parts(self) -> None:
        """Raise an error if the kernel has no Fourier features, or more terms than there are."""
        super().check_parts()
        if not has_fourier_features(self.kernel):
            raise TypeError(
                "kernel must have random Fourier features for basis='fourier': a sum of "
                "products of RBF, Matern (nu = 0.5, 1.5, 2.5, inf) and ConstantKernel, "
                f"with no term that is a constant alone; got {kernels.to_sklearn(self.kernel)}. "
                "Use basis='inducing', which supports all kernels available in torch."
            )
        least = 2 * len(self._products()) - 1  # a frequency for each term
        if self.n_components < least:
            raise ValueError(
                f"n_components must be at least {least} for this kernel, got {self.n_components}."
            )

    def _products(self) -> list[list[kernels.Kernel]]:
        return [factors_of(term) for term in summands(self.kernel)]

    def members(self, groups: Tensor) -> Tensor:
        sines = groups + self.n_groups
        if self.n_components % 2:
            sines = sines[sines < self.n_components]
        return torch.cat([groups, sines])

    def span(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        groups, sines = (
            torch.arange(start + first, min(stop + first, self.n_components), device=device)
            for first in (0, self.n_groups)
        )
        return groups, torch.cat([groups, sines])

    def columns(self, X: Tensor, groups: Tensor, members: Tensor | None = None) -> Tensor:
        members = self.members(groups) if members is None else members
        omega, height = self._frequencies(X, groups)
        angle, n_sines = X @ omega.mT, len(members) - len(groups)
        if n_sines < len(groups):
            # A cosine without its sine needs a random phase for its mean to be stationary.
            u = torch.special.ndtr(counter_normal(self.seed, groups[-1:], 1, stream=-1))
            last = groups == self.n_groups - 1
            angle = angle + last.to(X) * (2.0 * math.pi * u[0]).to(X)
        return torch.cat([angle.cos() * height, angle[:, :n_sines].sin() * height[:n_sines]], 1)

    def _frequencies(self, X: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """ω, (|groups|, d), and √(2c/m), (|groups|,)."""
        n_terms = len(self._products())
        if n_terms == 1:
            return self._of_term(0, X, groups)
        omega = torch.zeros(len(groups), X.shape[1], dtype=X.dtype, device=X.device)
        height = torch.empty(len(groups), dtype=X.dtype, device=X.device)
        for t in range(n_terms):
            mine = groups % n_terms == t
            if is_host(X.device):
                omega[mine], height[mine] = self._of_term(t, X, groups[mine])
            else:  # without a mask, whose size the host would wait for
                of_term = self._of_term(t, X, groups)
                omega = torch.where(mine[:, None], of_term[0], omega)
                height = torch.where(mine, of_term[1], height)
        return omega, height

    def _of_term(self, t: int, X: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for groups that all belong to term t of the sum."""
        products = self._products()
        constants, _, radials = split_product(products[t])
        each = []
        for j, factor in enumerate(radials):
            z = base_frequencies(factor, groups, X.shape[1], self.seed + t, stream=j)
            each.append((z / factor.length_scale).to(X))
        height = amplitude(constants, X) * math.sqrt(2.0 / self._share(t, len(products)))
        return functools.reduce(torch.add, each), height.expand(len(groups))

    def _share(self, term: int, n_terms: int) -> int:
        """How many functions a term has."""
        own = len(range(term, self.n_groups, n_terms))
        lacks = self.n_components % 2 and (self.n_groups - 1) % n_terms == term
        return 2 * own - int(lacks)


class KernelBasis(BasisFunctions):
    """φ_i = k(·, z_i), Z (m, d), whose weights have the precision S = k(Z, Z).

    Where `is_diagonal`, S is the identity instead.
    """

    def __init__(self, kernel: kernels.Kernel, points: Tensor, is_diagonal: bool = False) -> None:
        super().__init__(kernel, len(points))
        check_length_scales(kernel, points.shape[1])
        self.is_diagonal = is_diagonal
        self.n_groups = len(points)
        self.register_buffer("points", points, persistent=False)  # no checkpoint needs it

    def columns(self, X: Tensor, groups: Tensor, members: Tensor | None = None) -> Tensor:
        return self.kernel(X, self.points[groups].to(X)).to(X)

    def precision(self, groups: Tensor, members: Tensor | None = None) -> Tensor:
        if self.is_diagonal:
            return super().precision(groups)
        Z = self.points[groups].double()
        return self.kernel(Z, Z).double()

    def cross(self, groups: Tensor, others: Tensor) -> Tensor:
        return self.columns(self.points[groups], others)

    def diagonal(self, groups: Tensor, members: Tensor | None = None) -> Tensor:
        if self.is_diagonal:
            return super().diagonal(groups)
        return self.kernel.diag(self.points[groups].double()).double()

    def missing_variance(self, X: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        squares = X.new_zeros(len(X), weight.shape[1])
        for groups in torch.arange(self.n_groups, device=X.device).split(1024):
            squares += self.columns(X, groups).square() @ weight[groups].to(X)
        return self.kernel.diag(X)[:, None], squares
