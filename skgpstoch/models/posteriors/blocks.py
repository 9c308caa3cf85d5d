"""q(w) = N(m, S) with a block-diagonal S."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...maths.gaussian import Marginals
from ...maths.linalg import cholesky
from ..features.inducing import whiten
from .base import Weights


class VariationalWeights(Weights):
    """q(w) = N(m, S) with S block-diagonal, and N(0, I) as the prior.

    SVGP has one block, a full covariance, and SOLVE-GP has two. A block without a root keeps the
    prior's covariance, as in ODVGP.

    Parameters
    ----------
    mean : Tensor of shape (D, P)
        The mean m.
    roots : sequence of (Tensor of shape (P, D_b, D_b) or None)
        Triangular roots R_b of the blocks, with S_b = R_b R_bᵀ; None if S_b = I.
    sizes : sequence of int
        Sizes D_b of the blocks.
    """

    mean: Tensor

    def __init__(self, mean: Tensor, roots: Sequence[Tensor | None], sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.register_buffer("mean", mean)
        for b, root in enumerate(roots):
            self.register_buffer(f"root_{b}", root)

    @property
    def roots(self) -> list[Tensor | None]:
        """The roots R_b of the blocks."""
        return [getattr(self, f"root_{b}") for b in range(len(self.sizes))]

    def rooted(self, phi: Tensor) -> list[Tensor]:
        """Return φ_b R_b of every block: (P, N, D_b), or (1, N, D_b) if S_b = I."""
        parts = zip(phi.split(self.sizes, -1), self.roots, strict=True)
        return [part[None] if root is None else part @ root for part, root in parts]

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        mean = phi @ self.mean  # (N, P)
        var = residual + sum(half.square().sum(-1) for half in self.rooted(phi))  # (P, N)
        return Marginals(mean[None], var.mT.expand_as(mean)[None])

    def covariance(self, phi: Tensor) -> Tensor:
        half = torch.cat([h.expand(self.mean.shape[1], -1, -1) for h in self.rooted(phi)], 2)
        return half @ half.mT  # (P, N, N)

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        D, P = self.mean.shape
        z = self.mean.new_empty(P, D, n_samples).normal_(generator=generator)
        return self.at(z.permute(2, 0, 1))

    def at(self, z: Tensor) -> Tensor:
        """Return w = m + Rz, (S, D, P), given standard normal numbers z (S, P, D)."""
        blocks = zip(z.permute(1, 2, 0).split(self.sizes, 1), self.roots, strict=True)
        w = torch.cat([part if root is None else root @ part for part, root in blocks], 1)
        return self.mean + w.permute(2, 1, 0)

    def kl(self) -> Tensor:
        """Return KL[q(w) ‖ N(0, I)] = ½ Σ_b (tr S_b − D_b − log|S_b|) + ½‖m‖² per output, (P,)."""
        kl = 0.5 * self.mean.square().sum(0)
        for size, root in zip(self.sizes, self.roots, strict=True):
            if root is not None:
                log_det = 2.0 * root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
                kl = kl + 0.5 * (root.square().sum((-2, -1)) - size - log_det)
        return kl


class WeightMoments(NamedTuple):
    """q(w) = N(m, S)."""

    mean: Tensor  # m, (D, P)
    covariances: tuple[Tensor | None, ...]  # S_b, (P, D_b, D_b); None is I
    sizes: tuple[int, ...]  # D_b
    kl: Tensor  # KL[q(w) ‖ N(0, I)], summed over outputs, ()

    def to(self, dtype: torch.dtype) -> WeightMoments:
        """Convert the moments to another dtype."""
        covariances = tuple(None if S is None else S.to(dtype) for S in self.covariances)
        return self._replace(mean=self.mean.to(dtype), covariances=covariances)

    def scaled(self, factor: float) -> WeightMoments:
        """Return the moments of w times a factor; `kl` remains that of w."""
        covariances = (None if S is None else factor**2 * S for S in self.covariances)
        return self._replace(mean=factor * self.mean, covariances=tuple(covariances))

    def products(self, phi: Tensor) -> Tensor:
        """Return PS, (B, N, D)."""
        pairs = zip(phi.split(self.sizes, 1), self.covariances, strict=True)
        products = [part[None] if S is None else part @ S for part, S in pairs]
        if len(products) == 1:
            return products[0]
        most = max(len(product) for product in products)
        return torch.cat([product.expand(most, -1, -1) for product in products], 2)

    def roots(self) -> list[Tensor | None]:
        """Return the roots R_b, with S_b = R_b R_bᵀ."""
        name = "covariance of the inducing variables"
        return [None if S is None else cholesky(S, name) for S in self.covariances]

    def weights(self) -> VariationalWeights:
        """Return the same q(w) as :class:`VariationalWeights`, for predictions."""
        return VariationalWeights(self.mean, self.roots(), self.sizes)


def whitened_moments(
    mean: Tensor, roots: Tensor, K: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Return L⁻¹m (D, P) and L⁻¹R (P, D, D), given m and R of u = Lw, K = LLᵀ and L⁻¹."""
    n_means = mean.shape[1]
    white = whiten(torch.cat([mean.mT, roots.mT.flatten(0, 1)]), K, inverse)
    return white[:n_means].mT, white[n_means:].unflatten(0, roots.shape[:2]).mT


def make_roots(factors: list[Tensor], n_outputs: int, fixed: tuple[bool, ...]) -> nn.ParameterList:
    """Return R_b as parameters, one for each output, which start at the given factors."""
    roots = [root.detach().expand(n_outputs, -1, -1).clone() for root in factors]
    return nn.ParameterList(
        nn.Parameter(root, requires_grad=not is_fixed)
        for root, is_fixed in zip(roots, fixed, strict=True)
    )


def identities(sizes: Sequence[int], like: Tensor) -> list[Tensor]:
    """Return I for every block, the roots of the prior."""
    return [torch.eye(n, dtype=like.dtype, device=like.device) for n in sizes]


def free_roots(roots: nn.ParameterList, fixed: tuple[bool, ...]) -> list[Tensor | None]:
    """Return triangular R_b; None for blocks that keep the prior's covariance."""
    return [None if f else root.tril() for root, f in zip(roots, fixed, strict=True)]


@torch.no_grad()
def moments_of(weights: VariationalWeights) -> WeightMoments:
    """Return the same q(w) as :class:`WeightMoments`."""
    covariances = tuple(None if R is None else R @ R.mT for R in weights.roots)
    return WeightMoments(weights.mean, covariances, weights.sizes, weights.kl().sum())
