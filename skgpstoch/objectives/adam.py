"""solver="adam": learn m and the roots of S by gradients, as other parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..models.posteriors.blocks import (
    VariationalWeights,
    WeightMoments,
    identities,
    make_roots,
    moments_of,
    whitened_moments,
)
from ..models.posteriors.sites import Sites
from ..models.sparse import SparsePosterior
from .elbo import expected_score_at
from .variational import VariationalObjective

Factors = tuple[tuple[Tensor, Tensor], ...]


class GradientObjective(VariationalObjective):
    """An objective whose parameters include m and the roots R_b of S_b = R_b R_bᵀ.

    m and R_b are in the coordinates of w or, with whiten=False, of u = L w. u has the mean Lm and
    the root LR, and L⁻¹ turns these into those of w, as it turns covariances into features.
    """

    learns_q = True

    def __init__(self, *args: Any, whiten: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.whiten = whiten
        model, P = self.model, len(self.model.mean.value)
        like = model.mean.value.detach()
        self.means = nn.ParameterList(like.new_zeros(size, P) for size in model.features.blocks)
        factors = [root.to(like) for root in self.factors()]
        self.roots = make_roots(factors, P, model.has_prior_covariance)

    def check_parts(self) -> None:
        """Raise a ValueError if there are other numbers of weights, as in files from strangers."""
        n_features, n_weights = self.model.features.width, sum(map(len, self.means))
        if n_features != n_weights:
            raise ValueError(f"{n_features} features have {n_weights} weights")

    def factors(self) -> list[Tensor]:
        """Return L of every block; I in the coordinates of w."""
        if self.whiten or not (factors := self.model.features.factors()):
            return identities(self.model.features.blocks, self.model.mean.value)
        return [torch.linalg.inv(inverse).tril() for _, inverse in factors]

    @torch.no_grad()
    def start_from(self, posterior: SparsePosterior) -> None:
        posterior = copy.deepcopy(posterior).to(self.model.device)
        means = posterior.weights.mean.split(posterior.weights.sizes)
        for b, L in enumerate(self.factors()):
            self.means[b].copy_(L.double() @ means[b])
            root = posterior.weights.roots[b]
            if root is not None:
                self.roots[b].copy_(L.double() @ root)

    def present_sites(self) -> Sites:
        """Return the sites of the present q(w), without those between different blocks."""
        q = self.q().to(torch.float64)
        P = q.mean.shape[1]
        if self.model.covariance != "sites":  # only m matters
            return self.model.zero_sites()._replace(cross=q.mean)
        blocks = []
        for size, S in zip(q.sizes, q.covariances, strict=True):
            identity = torch.eye(size, dtype=torch.float64, device=q.mean.device).repeat(P, 1, 1)
            blocks.append(0.0 * identity if S is None else torch.linalg.inv(S) - identity)
        precision = torch.stack([torch.block_diag(*parts) for parts in zip(*blocks, strict=True)])
        return Sites(precision, q.mean + torch.einsum("bij,jb->ib", precision, q.mean))

    def weights(self, factors: Factors) -> VariationalWeights:
        """Return q(w), in the coordinates of w."""
        means, roots = list(self.means), [root.tril() for root in self.roots]
        if not self.whiten:
            for b, (K, inverse) in enumerate(factors):
                means[b], roots[b] = whitened_moments(means[b], roots[b], K, inverse)
        pairs = zip(roots, self.model.has_prior_covariance, strict=True)
        free = [None if is_prior else root for root, is_prior in pairs]
        return VariationalWeights(torch.cat(means), free, self.model.features.blocks)

    def terms(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        basis, seen = self.model.basis(X, rows, generator)
        weights, residual = self.weights(basis.factors), basis.residual()
        q = weights.marginals(basis.phi, residual)
        q = q._replace(mean=q.mean + self.model.offset(basis))
        total, _ = expected_score_at(self.model, basis, seen, q, residual, generator)
        return total, weights.kl().sum()

    @torch.no_grad()
    def q(self) -> WeightMoments:
        return moments_of(self.weights(self.model.features.factors()))
