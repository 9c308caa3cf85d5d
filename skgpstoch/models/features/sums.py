"""Sums of independent functions, each with its own inducing points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...kernels import Kernel
from .base import Basis, FeatureMap
from .inducing import InducingFeatures


class CompositeFeatures(FeatureMap):
    """Base class of maps that combine several maps with inducing points."""

    @property
    def each(self) -> list[InducingFeatures]:
        """The parts."""
        raise NotImplementedError(f"{type(self).__name__} must define each")

    @property
    def shown(self) -> InducingFeatures:
        """The part whose kernel, network and points represent the whole map."""
        return self.each[0]

    @property
    def kernel(self) -> Kernel:
        """Kernel of the part that is shown."""
        return self.shown.kernel

    @property
    def network(self) -> nn.Module:
        """That of the part that is shown."""
        return self.shown.network

    @property
    def points(self) -> Tensor:
        """Those of the part that is shown."""
        return self.shown.points

    @property
    def others(self) -> Tensor | None:
        """Orthogonal points of that part, if it has any."""
        return getattr(self.shown, "others", None)

    def all_points(self) -> list[Tensor]:
        """Of every part."""
        return [points for part in self.each for points in part.all_points()]

    def learn_points(self, learn: bool) -> None:
        """Whether the points are trained."""
        for part in self.each:
            part.learn_points(learn)

    def members(self, X: Tensor) -> Tensor:
        return self.basis(X).phi[None]


class SumFeatures(CompositeFeatures):
    """The features of f = Σ_i f_i: the features of all f_i side by side.

    K_uu is block-diagonal and ρ = Σ_i k_i − ‖P‖². Blocks of q(w) of the same kind of points are
    joined; a part may lack the last ones, as there are no orthogonal points for a single image.
    """

    def __init__(self, parts: Sequence[InducingFeatures]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.blocks = tuple(map(sum, zip_longest(*(p.blocks for p in parts), fillvalue=0)))
        self.n_features = sum(self.blocks)

    @property
    def each(self) -> list[InducingFeatures]:
        """The parts."""
        return cast(list[InducingFeatures], list(self.parts))

    def basis(self, X: Tensor) -> Basis:
        found = [part.basis(X) for part in self.each]
        shifts = [basis.shift for basis in found if basis.shift is not None]
        pieces = [b.phi.split(p.blocks, 1) for b, p in zip(found, self.each, strict=True)]
        phi = torch.cat([piece for each in by_block(pieces) for piece in each], 1)
        prior = torch.stack([basis.prior for basis in found]).sum(0)
        return Basis(
            phi,
            prior,
            torch.stack(shifts).sum(0) if shifts else None,
            joined([basis.factors for basis in found]),
        )

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return joined([part.factors() for part in self.each])

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor:
        grams = [part.covariances.gram(part.embed(X)[0]) for part in self.each]
        return torch.stack(grams).sum(0) - phi @ phi.mT

    def penalty(self, generator: torch.Generator | None = None) -> Tensor | None:
        found = [part.penalty(generator) for part in self.each]
        costs = [cost for cost in found if cost is not None]
        return torch.stack(costs).sum(0) if costs else None

    def scale_variance(self, factor: float) -> None:
        for part in self.each:
            part.scale_variance(factor)


def joined(
    factors: Sequence[tuple[tuple[Tensor, Tensor], ...]],
) -> tuple[tuple[Tensor, Tensor], ...]:
    """K and L⁻¹ of every block, from those of parts that are independent."""
    return tuple(
        (torch.block_diag(*(K for K, _ in pairs)), torch.block_diag(*(R for _, R in pairs)))
        for pairs in by_block(factors)
    )


def by_block(parts: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """Yield what parts have of each block, without parts that lack it."""
    for of_parts in zip_longest(*parts):
        yield [each for each in of_parts if each is not None]
