"""Inner layers that map images to images.

Blomqvist, Kaski & Heinonen, "Deep convolutional Gaussian processes", 2018; Dutordoir et al., 2019;
Shi, Titsias & Mnih, 2020, 6.2. From every patch x^[p] of an image the layer makes C numbers. They
are the channels of an output image that has a pixel for each patch,

    h_pc = a_pc + g_c(x^[p]),   g_c ~ GP(0, k_g),

which is a sparse layer whose rows are patches. The papers draw every h_pc from its own marginal, as
if the patches of an image were independent. They are not, and the next layer mixes them, so the
papers' objective is not a bound. Here the weights of features are drawn once for an image, and all
its patches share them,

    h_p = a_p + P_p w + √(ρ_p + s²) ε_p,   w = m + Rξ,   S = RRᵀ,                              (F11)

which has the same marginals: an exact bound for the model whose residuals are independent between
patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .features.patches import Geometry, gather
from .layers import GPLayer


class PatchLayer(GPLayer):
    """An inner layer from images to images.

    Parameters
    ----------
    *args, **kwargs : object
        Arguments of :class:`GPLayer`, for features on patches.
    geometry : Geometry
        Geometry of the patches of the input images.
    shares_weights : bool, default=True
        Whether the patches of an image share a draw of the weights (F11), or are drawn
        independently, as published.
    """

    columns: Tensor

    def __init__(
        self, *args: Any, geometry: Geometry, shares_weights: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.geometry = geometry
        self.shares_weights = shares_weights
        self.register_buffer("columns", geometry.columns(), persistent=False)

    def check_parts(self) -> None:
        """Raise a ValueError if patches are not where they are in images."""
        self.geometry.check(self.columns)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of the output images."""
        return *self.geometry.grid, self.mean_map.shape[1]

    @property
    def n_patches(self) -> int:
        return len(self.columns)

    @property
    def n_pixels(self) -> int:
        """Number of numbers in an output image, over all channels."""
        return len(self.columns) * self.mean_map.shape[1]

    @property
    def n_normals(self) -> int:
        n_weights = self.means.numel() if self.shares_weights else 0
        return self.n_pixels + n_weights

    def patches(self, H: Tensor) -> Tensor:
        """Return the patches of images (N, ...), one image after another, (N·J, L)."""
        return gather(H, self.columns).flatten(0, 1)

    def moments(self, H: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = super().moments(self.patches(H))
        return mean.reshape(len(H), -1), var.reshape(len(H), -1)

    def draws(self, H: Tensor, n_rows: int, noise: Tensor) -> Tensor:
        if not self.shares_weights:
            return super().draws(H, n_rows, noise)
        (M, C), J = self.means.shape, len(self.columns)
        eps, xi = noise.split([J * C, C * M], -1)
        eps = eps.unflatten(-1, (J, C))  # (S, N or 1, J, C)
        w = self.weights().at(xi.reshape(-1, C, M)).unflatten(0, xi.shape[:2])  # (S, N or 1, M, C)
        rows = self.patches(H)
        basis = self.features.basis(rows)
        a, P, r = (
            part.unflatten(0, (-1, n_rows, J))  # (S or 1, N, J, ...)
            for part in (rows @ self.mean_map, basis.phi, basis.residual() + self.noise)
        )
        drawn = a + torch.einsum("snjm,snmc->snjc", P, w) + r.sqrt()[..., None] * eps  # (F11)
        return drawn.flatten(0, 1).flatten(1)

    def draw(self, H: Tensor, generator: torch.Generator) -> Tensor:
        """Return a joint draw of all images: the same weights, and independent residuals."""
        rows = self.patches(H)
        basis = self.features.basis(rows)
        w = self.weights().sample(1, generator)[0]  # (M, C)
        mean = rows @ self.mean_map + basis.phi @ w
        noise = torch.empty_like(mean).normal_(generator=generator)
        drawn = mean + (basis.residual() + self.noise).sqrt()[:, None] * noise
        return drawn.reshape(len(H), -1)


def centre_map(geometry: Geometry, n_channels: int) -> Tensor:
    """Return W (L, C) of a mean function that takes a patch's central pixel; 0 in more channels."""
    (h, w), depth = geometry.patch_shape, geometry.image_shape[2]
    W = torch.zeros(geometry.size, n_channels, device="cpu")
    channels = torch.arange(min(depth, n_channels), device="cpu")
    W[depth * ((h // 2) * w + w // 2) + channels, channels] = 1.0
    return W
