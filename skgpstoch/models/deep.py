"""Deep models: a sparse model above hidden layers, and the posterior of a fitted one.

The bound is that of Salimbeni & Deisenroth (2017), with the last layer integrated out,

    Σᵢ E_q(hᵢ) E_N(f|μ(hᵢ),v(hᵢ))[log p(yᵢ|f)] − Σ_ℓ KL[q(w^ℓ) ‖ N(0, I)],                      (F3)

There are only two differences from a shallow model: a row becomes S rows of weight 1/S, each at a
draw of h, and predictions are mixtures. At the optimal q(w) for a Gaussian likelihood, the bound is

    −½[n log 2πσ² + Σ E(y−a)²/σ² − cᵀ(I+G)⁻¹c + log|I+G| + (Σ E k(h,h) − σ² tr G)/σ²] − KL,     (F6)

with G = Σ E PᵀP/σ² and c = Σ E Pᵀ(y−a)/σ²; E is over draws of h; KL is that of the inner layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from ..data.arrays import blocks_of, row_blocks
from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..maths.gaussian import Marginals
from ..maths.linalg import cholesky
from .features.base import Basis, FeatureMap
from .layers import DeepFeatures
from .posteriors.base import Posterior
from .posteriors.blocks import WeightMoments
from .posteriors.functions import Functions
from .sparse import Solution, SparseModel, SparsePosterior

PASS_ROWS = 200_000  # fewest draws of rows in the closing pass
EACH_PASS_ROWS = 5_000  # the same if there is no closed form, and so several passes
LEAST_DRAWS = 4  # fewest draws per row in a closing pass, needed to estimate its error
KEPT_BY_GRADIENTS = 16  # arrays of a layer's draws, about
COVARIANCE_DRAWS = 64  # draws of hidden layers over which a covariance of rows is averaged


class DeepModel(SparseModel):
    """A sparse model whose features are those of a last layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.has_draws = bool(self.deep.inner)

    @property
    def deep(self) -> DeepFeatures:
        """The features."""
        return cast(DeepFeatures, self.features)

    @property
    def drawless_features(self) -> FeatureMap:
        return self.features if self.has_draws else self.deep.last

    def basis(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Basis, Rows]:
        basis = self.deep.basis(X, generator)
        return basis, rows.repeated(basis.n_samples)

    def bases(
        self, X: Tensor, rows: Rows, dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[Basis, Rows]]:
        """Yield the features of all rows, block by block, at the nodes of predictions.

        If rows are many, use fewer random draws instead, which differ between rows, but are the
        same in every pass.
        """
        S, generator = self.deep.n_nodes, None
        wanted = PASS_ROWS if self.is_conjugate else EACH_PASS_ROWS
        enough = max(math.ceil(wanted / max(rows.n_all, 1)), LEAST_DRAWS)
        if enough < S:
            S, generator = enough, torch.Generator(X.device).manual_seed(rows.group.rank)
        with self.features.frozen():
            for block in blocks_of(len(X), self.deep.block_rows(S)):
                basis = self.deep.basis(X[block].to(dtype), generator, S)
                yield basis, rows[block].to(dtype).repeated(S)

    def predictions(
        self, X: Tensor, rows: Rows, q: WeightMoments
    ) -> Iterator[tuple[Marginals, Rows, Likelihood]]:
        with self.features.frozen():
            for block in row_blocks(len(X), self.deep.block_rows(self.deep.n_nodes)):
                basis = self.features.basis(X[block])
                of_f = mixture(self.marginals(basis, q, q.products(basis.phi)), basis)
                yield of_f, rows[block], self.likelihood.of(rows[block])

    def posterior(
        self, found: Solution, elbo: Tensor, n_rows: float, error: Tensor | None = None
    ) -> DeepPosterior:
        posterior = DeepPosterior(self, found, elbo, n_rows)
        posterior.register_buffer("error", elbo * torch.nan if error is None else error)
        return posterior


class DeepPosterior(SparsePosterior):
    """q(f) of a deep model: a mixture over nodes at each row; all rows have the same nodes.

    Attributes
    ----------
    error : Tensor of shape ()
        Standard error of the bound due to the draws of hidden layers; NaN if unknown.
    """

    error: Tensor

    @property
    def features(self) -> DeepFeatures:
        """The layers."""
        return cast(DeepFeatures, self.model.features)

    @property
    def block_rows(self) -> int:
        return self.features.block_rows(self.features.n_nodes)

    @property
    def gradient_rows(self) -> int:
        return self.features.block_rows(self.features.n_nodes, KEPT_BY_GRADIENTS)

    def marginals(self, X: Tensor) -> Marginals:
        basis = self.features.basis(X)
        return mixture(self._marginals(basis), basis)

    def told(self, X: Tensor, curvature: Tensor | None) -> Tensor | None:
        """Return None: rows tell hidden layers, too."""
        return None

    def hidden(self, X: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the mean and variance (N, D) of every inner layer."""
        given = self.features.propagate(X, self.features.n_nodes)
        found = []
        for layer, H in zip(self.features.inner, given[:-1], strict=True):
            parts = (part.unflatten(0, (-1, len(X))) for part in layer.moments(H))
            found.append(Marginals(*parts).mixture_moments())
        return found

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of f; its correlations are estimated from draws of h."""
        generator = torch.Generator(X.device).manual_seed(0)
        total, means = None, []
        for _ in range(COVARIANCE_DRAWS):
            H = self.features.draw(X, generator)
            basis = self.features.last.basis(H)
            given = self.weights.covariance(basis.phi) + self.residual(H, basis)
            total = given if total is None else total + given
            means.append(basis.phi @ self.weights.mean + self.model.offset(basis))
        spread = torch.stack(means, 2).permute(1, 0, 2)  # (P, N, S)
        spread = spread - spread.mean(-1, keepdim=True)
        cov = (cast(Tensor, total) + spread @ spread.mT) / COVARIANCE_DRAWS
        var = self.marginals(X).mixture_moments()[1].mT  # (P, N), that of predictions
        scale = (var / cov.diagonal(dim1=-2, dim2=-1)).sqrt()
        return scale[:, :, None] * cov * scale[:, None]

    def residual(self, H: Tensor, basis: Basis) -> Tensor:
        """Return the covariance of the last layer's residual process, (N, N)."""
        return cast(Tensor, self.features.residual_covariance(H, basis.phi))

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        return Posterior.functions(self, n_samples, generator)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw f jointly; each draw takes O(N³) time, for the residual processes of all layers."""
        return torch.stack([self.draw(X, generator) for _ in range(n_samples)])

    def draw(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Return one joint draw of f, (N, P)."""
        H = self.features.draw(X, generator)
        basis = self.features.last.basis(H)
        f = basis.phi @ self.weights.sample(1, generator)[0] + self.model.offset(basis)
        R = self.residual(H, basis)
        z = torch.empty_like(f).normal_(generator=generator)
        return f + cholesky(R, "covariance of the residual process", basis.prior.mean()) @ z


def mixture(q: Marginals, basis: Basis) -> Marginals:
    """Turn q(f) at S draws of N rows, (1, S·N, P), into a mixture, (S, N, P)."""
    return Marginals(*(part[0].unflatten(0, (basis.n_samples, -1)) for part in q))
