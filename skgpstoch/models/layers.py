"""Inner layers of a deep Gaussian process, and the features of its last layer.

Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes",
NeurIPS 2017; Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes",
2020, section 4. With h⁰ = x and the whitened features P of inducing points in the space of the
layer below,

    h_p = a_p(h') + P(h') w_p + r_p,   w_p ~ q = N(m_p, S_p),   var r_p = k(h', h') − ‖P(h')‖² + s²,

so given h', with ρ = k(h', h') − ‖P(h')‖², a layer's marginals are

    μ = a + Pm,   v = diag(P S Pᵀ) + ρ + s²,                                                    (F1)

and, because q(f|u) = p(f|u), those of a row depend only on the same row of the layer below:

    h = μ(h') + √v(h') ⊙ ε,   ε ~ N(0, I).                                                      (F2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..data.devices import block_rows, constants
from ..maths.gaussian import normal_nodes, standard_normal
from ..maths.linalg import cholesky
from ..maths.modules import Module
from .features.base import Basis, FeatureMap
from .features.inducing import InducingFeatures
from .features.sums import CompositeFeatures
from .posteriors.blocks import VariationalWeights, free_roots, identities, make_roots

MOST_NORMALS = 21_201  # most dimensions of a Sobol sequence in torch
MOST_OF_LAYER = 2**21  # numbers that a layer makes of a block of rows, of which several are alive
NO_NETWORK = (type(None), nn.Identity)


class GPLayer(Module):
    """An inner layer: functions that share a kernel and inducing points.

    Parameters
    ----------
    features : InducingFeatures
        Features P of inducing points in the space of the layer below.
    mean_map : Tensor of shape (D_in, D_out)
        Fixed matrix W of the mean function a(h) = hW.
    noise : float
        Noise variance s².
    prior_blocks : tuple of bool
        For each block, whether S_b stays the prior's.
    root : float, default=1.0
        Roots of S start at this number times I.
    """

    mean_map: Tensor
    noise: Tensor

    def __init__(
        self,
        features: InducingFeatures,
        mean_map: Tensor,
        noise: float,
        prior_blocks: tuple[bool, ...],
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
        self.roots = make_roots(starts, 1, prior_blocks)  # all functions share S

    def weights(self) -> VariationalWeights:
        """Return q(w)."""
        roots = free_roots(self.roots, self.prior_blocks)
        return VariationalWeights(self.means, roots, self.features.blocks)

    def kl(self) -> Tensor:
        """Return KL[q(w) ‖ N(0, I)], summed over functions, ()."""
        return self.weights().kl().sum()

    def moments(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and v (F1) at rows H of the layer below, each (N, D_out)."""
        basis = self.features.basis(H)
        q = self.weights().marginals(basis.phi, basis.residual())
        return q.mean[0] + H @ self.mean_map, q.var[0] + self.noise

    @property
    def n_normals(self) -> int:
        """Number of normal numbers that a draw of one row needs."""
        return self.mean_map.shape[1]

    @property
    def n_patches(self) -> int:
        """Number of rows for the features that the layer makes from each given row."""
        return 1

    def draws(self, H: Tensor, n_rows: int, noise: Tensor) -> Tensor:
        """Draw every row independently (F2), and return h (S·N, D_out).

        `noise` is standard normal ε, (S, N or 1, n_normals). H are rows of the layer below,
        (N, D_in) or (S·N, D_in), with N = `n_rows`.
        """
        S = len(H) // n_rows if n_rows else 1
        mean, var = (part.unflatten(0, (S, n_rows)) for part in self.moments(H))
        return (mean + var.sqrt() * noise).flatten(0, 1)

    def draw(self, H: Tensor, generator: torch.Generator) -> Tensor:
        """Return a joint draw at rows H, (N, D_out), in O(N²) memory and O(N³) time."""
        basis = self.features.basis(H)
        R = self.features.residual_covariance(H, basis.phi)
        L = cholesky(R, "covariance of the residual process", basis.prior.mean())
        shape = (len(H), self.mean_map.shape[1])
        z, noise = (standard_normal(shape, H, generator) for _ in range(2))
        drawn = basis.phi @ self.weights().sample(1, generator)[0] + L @ z
        return H @ self.mean_map + drawn + self.noise.sqrt() * noise


class DeepFeatures(CompositeFeatures):
    """The features of the last layer, at rows that have gone through the inner layers.

    Inducing points of the last layer are in the space of its inputs.

    Parameters
    ----------
    layers : sequence of GPLayer
        The inner layers, from the inputs on.
    last : InducingFeatures
        Features P of the last layer.
    n_samples : int, default=1
        Number S of draws per row in training.
    n_nodes : int, default=64
        Number of draws per row in predictions; a Sobol sequence, the same for every row.
    """

    def __init__(
        self, layers: Sequence[GPLayer], last: FeatureMap, n_samples: int = 1, n_nodes: int = 64
    ) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last
        self.with_draws(n_samples, n_nodes)
        self.n_features, self.blocks = last.n_features, last.blocks

    def with_draws(self, n_samples: int, n_nodes: int) -> DeepFeatures:
        """Set the numbers of draws, in place, and return the features."""
        self.n_samples, self.n_nodes = (n_samples, n_nodes) if len(self.layers) else (1, 1)
        return self

    def block_rows(self, n_draws: int, n_kept: int = 1) -> int:
        """Return the number of rows to process at a time, with `n_draws` draws each.

        Gradients keep `n_kept` arrays of each layer.
        """
        most = max((layer.n_patches for layer in self.inner), default=1)
        widths = (layer.n_patches * max(layer.mean_map.shape) for layer in self.inner)
        widest = max(widths, default=1)
        n_rows = block_rows(next(self.parameters()).device, self.n_features)
        return max(1, min(n_rows // most, MOST_OF_LAYER // (n_kept * widest)) // n_draws)

    def check_parts(self) -> None:
        """Raise a ValueError if a row would become more numbers than in any model.

        In a file from a stranger, draws of layers could have draws of their own, or networks could
        make much of each draw.
        """
        n_normals = sum(layer.n_normals for layer in self.inner)
        if n_normals > MOST_NORMALS:
            raise ValueError(f"draws of {n_normals} numbers are more than {MOST_NORMALS}")
        of_layers = (*(layer.features for layer in self.inner), self.last)
        for part in (part for features in of_layers for part in features.modules()):
            network = part._modules.get("network")
            if isinstance(part, DeepFeatures | GPLayer) or type(network) not in NO_NETWORK:
                kind = type(part).__name__
                raise ValueError(f"a layer of a deep process has a {kind} with layers of its own")

    @property
    def inner(self) -> list[GPLayer]:
        """The layers below the last one."""
        return cast(list[GPLayer], list(self.layers))

    @property
    def each(self) -> list[InducingFeatures]:
        """The features of every layer."""
        return [*(layer.features for layer in self.inner), cast(InducingFeatures, self.last)]

    # ---- rows through layers -----------------------------------------------------------------

    def normals(self, X: Tensor, S: int, generator: torch.Generator | None) -> list[Tensor]:
        """Return random ε of every layer, (S, N, D); without a generator fixed ones, (S, 1, D)."""
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
        """Return the inputs of every layer: X (N, D), then draws of the layer below, (S·N, D)."""
        given = [X]
        for layer, noise in zip(self.inner, self.normals(X, S, generator), strict=True):
            given.append(layer.draws(given[-1], len(X), noise))
        return given

    def basis(
        self, X: Tensor, generator: torch.Generator | None = None, n_samples: int | None = None
    ) -> Basis:
        """Return the last layer's basis at S draws of all rows; without a generator, at nodes."""
        S = n_samples or (self.n_nodes if generator is None else self.n_samples)
        H = self.propagate(X, S, generator)[-1]
        return self.last.basis(H)._replace(n_samples=S)

    def draw(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Return a joint draw of the last layer's inputs at all rows, (N, D)."""
        for layer in self.inner:
            X = layer.draw(X, generator)
        return X

    # ---- the last layer's --------------------------------------------------------------------

    @property
    def shown(self) -> InducingFeatures:
        return self.each[-1]

    @property
    def network(self) -> nn.Module:
        """The module below the last layer's kernel: the inner layers, if there are any."""
        return self.layers if len(self.layers) else self.shown.network

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return self.last.factors()

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor | None:
        """Return the residual covariance of the last layer, at its inputs X."""
        return self.last.residual_covariance(X, phi)

    def scale_variance(self, factor: float) -> None:
        self.last.scale_variance(factor)

    # ---- every layer's -----------------------------------------------------------------------

    def penalty(self, generator: torch.Generator | None = None) -> Tensor | None:
        """Return Σ KL[q(w) ‖ p(w)] of inner layers, plus the penalty of the last layer's shift."""
        of_shift = self.last.penalty(generator)
        costs = [layer.kl() for layer in self.inner]
        costs += [] if of_shift is None else [of_shift]
        return torch.stack(costs).sum() if costs else None

    def close(self) -> None:
        """Close only the last layer: q(w) of the others belongs to features with their jitter."""
        self.last.close()
