"""Layers of a deep Gaussian process, and the features of its last one.

Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes",
NeurIPS 2017; Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes",
2020, section 4. With h⁰ = x and the whitened features P of inducing points in the space of the
layer below,

    h_p = a_p(h') + P(h') w_p + r_p,   w_p ~ q = N(m_p, S_p),   var r_p = k(h', h') − ‖P(h')‖² + s²,

so that given h', with ρ = k(h', h') − ‖P(h')‖², a layer's marginals are

    μ = a + Pm,   v = diag(P S Pᵀ) + ρ + s²,                                                    (F1)

and, as q(f|u) = p(f|u), those of a row depend on that row of the layer below alone:

    h = μ(h') + √v(h') ⊙ ε,   ε ~ N(0, I).                                                      (F2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..data.devices import block_rows, constants
from ..features.base import Basis, FeatureMap
from ..features.composite import CompositeFeatures
from ..features.inducing import InducingFeatures
from ..maths.gaussian import normal_nodes, standard_normal
from ..maths.linalg import cholesky
from ..maths.modules import Module
from ..posteriors.blocks import VariationalWeights, free_roots, identities, make_roots


class GPLayer(Module):
    """An inner layer: functions that share a kernel and inducing points.

    Parameters
    ----------
    features : InducingFeatures
        P, of inducing points in the space of the layer below.
    mean_map : Tensor of shape (D_in, D_out)
        W of the mean function a(h) = hW, which is fixed.
    noise : float
        s².
    prior_blocks : tuple of bool
        Whether S_b stays the prior's.
    shares_covariance : bool
        Whether all functions have the same S.
    root : float, default=1.0
        Where roots of S start, times I.
    """

    mean_map: Tensor
    noise: Tensor

    def __init__(
        self,
        features: InducingFeatures,
        mean_map: Tensor,
        noise: float,
        prior_blocks: tuple[bool, ...],
        shares_covariance: bool = True,
        root: float = 1.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("mean_map", mean_map)
        self.register_buffer("noise", torch.full_like(mean_map[0, 0], noise))
        self.prior_blocks = prior_blocks
        n_outputs = mean_map.shape[1]
        self.means = nn.Parameter(mean_map.new_zeros(sum(features.blocks), n_outputs))
        starts = [root * identity for identity in identities(features.blocks, mean_map)]
        self.roots = make_roots(starts, 1 if shares_covariance else n_outputs, prior_blocks)

    def weights(self) -> VariationalWeights:
        """q(w)."""
        roots = free_roots(self.roots, self.prior_blocks)
        return VariationalWeights(self.means, roots, self.features.blocks)

    @torch.no_grad()
    def start_at_(self, W: Tensor) -> None:
        """The mean of the functions to hW at the inducing points, for a layer without that mean."""
        (Z, *others) = self.features.embedded_points()
        inverse = self.features.condition(Z, *others)[1]
        self.means[: len(Z)] = (inverse @ (Z @ W).double()).to(self.means)

    def kl(self) -> Tensor:
        """KL[q(w) ‖ N(0, I)], summed over functions, ()."""
        return self.weights().kl().sum()

    def moments(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """μ and v (F1) at rows H of the layer below, each (N, D_out)."""
        basis = self.features.basis(H)
        q = self.weights().marginals(basis.phi, basis.residual())
        return q.mean[0] + H @ self.mean_map, q.var[0] + self.noise

    @property
    def n_normals(self) -> int:
        """Numbers that a draw of a row takes."""
        return self.mean_map.shape[1]

    @property
    def n_patches(self) -> int:
        """Rows that it makes of a row for its own features."""
        return 1

    def draws(self, H: Tensor, n_rows: int, noise: Tensor) -> Tensor:
        """Every row by itself (F2), h (S·N, D_out), given standard normal ε (S, N or 1, n_normals).

        H are rows of the layer below, (N, D_in) or (S·N, D_in), N = `n_rows`.
        """
        S = len(H) // n_rows if n_rows else 1
        mean, var = (part.unflatten(0, (S, n_rows)) for part in self.moments(H))
        return (mean + var.sqrt() * noise).flatten(0, 1)

    def draw(self, H: Tensor, generator: torch.Generator) -> Tensor:
        """A joint draw at rows H, (N, D_out): O(N²) memory and O(N³) time."""
        basis = self.features.basis(H)
        R = self.features.residual_covariance(H, basis.phi)
        L = cholesky(R, "covariance of the residual process", basis.prior.mean())
        shape = (len(H), self.mean_map.shape[1])
        z, noise = (standard_normal(shape, H, generator) for _ in range(2))
        drawn = basis.phi @ self.weights().sample(1, generator)[0] + L @ z
        return H @ self.mean_map + drawn + self.noise.sqrt() * noise


class DeepFeatures(CompositeFeatures):
    """The features of a last layer, at what inner layers make of rows.

    Rows go through the layers; inducing points of the last layer are in its own space.

    Parameters
    ----------
    layers : sequence of GPLayer
        Inner ones, from the inputs on.
    last : InducingFeatures
        P of the last.
    n_samples : int, default=1
        Draws of a row in training, S.
    n_nodes : int, default=64
        Draws of a row in predictions, which are the same for every row: a Sobol sequence.
    """

    def __init__(
        self, layers: Sequence[GPLayer], last: FeatureMap, n_samples: int = 1, n_nodes: int = 64
    ) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last
        self.with_draws(n_samples, n_nodes)
        self.n_features, self.blocks = last.n_features, last.blocks

    def with_draws(self, n_samples: int, n_nodes: int) -> DeepFeatures:
        """The same, with other numbers of draws."""
        self.n_samples, self.n_nodes = (n_samples, n_nodes) if len(self.layers) else (1, 1)
        return self

    def block_rows(self, n_draws: int) -> int:
        """Rows at a time, drawn as often as this."""
        most = max((layer.n_patches for layer in self.inner), default=1)
        n_rows = block_rows(next(self.parameters()).device, self.n_features)
        return max(1, n_rows // (n_draws * most))

    @property
    def inner(self) -> list[GPLayer]:
        """The layers below the last one."""
        return cast(list[GPLayer], list(self.layers))

    @property
    def each(self) -> list[InducingFeatures]:
        """Features of every layer."""
        return [*(layer.features for layer in self.inner), cast(InducingFeatures, self.last)]

    # ---- rows through layers -----------------------------------------------------------------

    def normals(self, X: Tensor, S: int, generator: torch.Generator | None) -> list[Tensor]:
        """ε of every layer, (S, N, D), or the fixed ones, (S, 1, D)."""
        sizes = [layer.n_normals for layer in self.inner]
        if not sizes:
            return []
        if generator is not None:
            return [standard_normal((S, len(X), size), X, generator) for size in sizes]
        (nodes,) = constants(normal_nodes, sum(sizes), S, like=X)
        return list(nodes.mT[:, None].split(sizes, -1))

    def propagate(
        self, X: Tensor, S: int, generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """What every layer is given: X (N, D), and draws of the layer below, (S·N, D)."""
        given = [X]
        for layer, noise in zip(self.inner, self.normals(X, S, generator), strict=True):
            given.append(layer.draws(given[-1], len(X), noise))
        return given

    def basis(
        self, X: Tensor, generator: torch.Generator | None = None, n_samples: int | None = None
    ) -> Basis:
        """The last layer's at draws of all rows, S·N rows; without a generator at the nodes."""
        S = n_samples or (self.n_nodes if generator is None else self.n_samples)
        H = self.propagate(X, S, generator)[-1]
        return self.last.basis(H)._replace(n_samples=S)

    def draw(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """A joint draw, at all rows, of what the last layer is given, (N, D)."""
        for layer in self.inner:
            X = layer.draw(X, generator)
        return X

    # ---- the last layer's --------------------------------------------------------------------

    @property
    def shown(self) -> InducingFeatures:
        return self.each[-1]

    @property
    def network(self) -> nn.Module:
        """What the last layer's kernel is on: the inner layers, if there are any."""
        return self.layers if len(self.layers) else self.shown.network

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return self.last.factors()

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor | None:
        """At what the last layer is given."""
        return self.last.residual_covariance(X, phi)

    def scale_variance(self, factor: float) -> None:
        self.last.scale_variance(factor)

    # ---- every layer's -----------------------------------------------------------------------

    def penalty(self, generator: torch.Generator | None = None) -> Tensor | None:
        """Σ KL[q(w) ‖ p(w)] of inner layers, and what the last one's shift costs."""
        of_shift = self.last.penalty(generator)
        costs = [layer.kl() for layer in self.inner]
        costs += [] if of_shift is None else [of_shift]
        return torch.stack(costs).sum() if costs else None

    def close(self) -> None:
        """Of the last layer alone: q(w) of the others is for features with their jitter."""
        self.last.close()
