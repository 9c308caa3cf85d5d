"""Covariances of convolutional Gaussian processes, which sum the responses of patches.

van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017. An image x has
patches x^[p], p = 1 … J, and f is a weighted sum of the responses of one function to them,

    f(x) = Σ_p w_p g(x^[p]),   g ~ GP(0, k_g)
    k(x, x') = Σ_p Σ_q w_p w_q k_g(x^[p], x'^[q]),   k(x, z) = Σ_p w_p k_g(x^[p], z),           (F9)

with values g(z) of patches z as inducing variables. If g also depends on the place t of a patch
(Blomqvist et al., 2018; Dutordoir et al., 2019), there is k_g · k_loc for k_g, and z has a place.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ...data.devices import is_host
from ...kernels import Constant, Kernel, Product
from ...kernels.isotropic import Isotropic, as_isotropic, left, right, weighted_pairs, weighted_sums
from .inducing import Covariances

PLACES = 3.0  # pixels: the unit of places, and the start of their length-scale
MOST_PATCHES = 10_000  # of an image, because their weights are multiplied in pairs
FARTHEST_PATCH = 1e15  # length-scales; float32 still has the square


class Geometry(NamedTuple):
    """Patches of images that are rows of X, in the order (row, column, channel)."""

    image_shape: tuple[int, int, int]  # H, W, C
    patch_shape: tuple[int, int]  # h, w
    stride: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        """Patches from top to bottom and from left to right."""
        (H, W, _), (h, w) = self.image_shape, self.patch_shape
        return (H - h) // self.stride + 1, (W - w) // self.stride + 1

    @property
    def n_patches(self) -> int:
        """J."""
        return self.grid[0] * self.grid[1]

    @property
    def size(self) -> int:
        """Numbers of a patch, L."""
        return self.patch_shape[0] * self.patch_shape[1] * self.image_shape[2]

    def corners(self) -> Tensor:
        """Row and column of the first pixel of every place, (rows · columns, 2)."""
        rows, columns = (self.stride * torch.arange(n, device="cpu") for n in self.grid)
        return torch.cartesian_prod(rows, columns)

    def check(self, columns: Tensor) -> None:
        """Raise a ValueError unless these are its :meth:`columns`, as in files from strangers."""
        numbers = (*self.image_shape, *self.patch_shape, self.stride)
        is_image = all(type(n) is int and n > 0 for n in numbers)
        sizes = (self.n_patches, self.size) if is_image else None
        if columns.shape != sizes or not torch.equal(columns, self.columns()):
            raise ValueError(f"patches of the shape {tuple(columns.shape)} are not those of images")
        if self.n_patches > MOST_PATCHES:
            raise ValueError(f"images have {self.n_patches} patches, more than {MOST_PATCHES}")

    def columns(self) -> Tensor:
        """Columns of X that make up each patch, (J, L)."""
        _, W, C = self.image_shape
        height, width, channels = (
            torch.arange(n, device="cpu") for n in (*self.patch_shape, self.image_shape[2])
        )
        rows, columns = self.corners().T
        within = C * (W * height[:, None] + width)[..., None] + channels  # (h, w, C)
        return C * (W * rows + columns)[:, None] + within.flatten()

    def places(self) -> Tensor:
        """Row and column of the centre of every patch, (J, 2)."""
        middle = (torch.tensor(self.patch_shape, device="cpu").double() - 1.0) / 2.0
        return self.corners() + middle


def gather(X: Tensor, columns: Tensor) -> Tensor:
    """X[:, columns], (N, J, L)."""
    if not is_host(X.device):  # where index_select's backward pass adds in any order
        return X[:, columns]
    return X.index_select(1, columns.flatten()).unflatten(1, columns.shape)


class PatchCovariances(Covariances):
    """Covariances of inducing patches, and of images with the responses to them.

    Parameters
    ----------
    kernel : Kernel
        k_g, on patches.
    geometry : Geometry
        Where patches are.
    location : Kernel or None, default=None
        k_loc, on rows and columns of pixels.
    learn_weights : bool, default=True
        Whether w is learned; else w_p = 1/J.
    """

    has_inputs = False
    columns: Tensor
    places: Tensor

    def __init__(
        self,
        kernel: Kernel,
        geometry: Geometry,
        location: Kernel | None = None,
        learn_weights: bool = True,
    ) -> None:
        super().__init__(kernel)
        self.geometry = geometry
        self.location = location
        one = torch.ones(geometry.n_patches, dtype=torch.float64, device="cpu")
        self.relative_weights = nn.Parameter(one, requires_grad=learn_weights)
        self.register_buffer("columns", geometry.columns(), persistent=False)
        self.register_buffer("places", geometry.places(), persistent=False)

    def check_parts(self) -> None:
        """Raise a ValueError if patches are not where they are in images."""
        self.geometry.check(self.columns)

    @property
    def weights(self) -> Tensor:
        """w, (J,)."""
        return self.relative_weights / len(self.relative_weights)

    @property
    def constant(self) -> Constant | None:
        """The constant factor of the responses' kernel, if it has one."""
        first = self.kernel.k1 if isinstance(self.kernel, Product) else None
        return first if isinstance(first, Constant) else None

    def patches(self, X: Tensor) -> Tensor:
        """x^[p], (N, J, L)."""
        return gather(X, self.columns)

    def within_reach(self, X: Tensor, kernel: Isotropic) -> Tensor:
        """Patches, (N, J, L), moved to where squared distances are finite."""
        farthest = FARTHEST_PATCH * kernel.length_scale.detach().to(X)
        return self.patches(X).clamp(-farthest, farthest)

    def split(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Patches (M, L) and places (M, 2) of points."""
        return Z[:, : self.geometry.size], Z[:, self.geometry.size :]

    def unit(self, Z: Tensor) -> Tensor:
        """Scale of each column of points."""
        z = self.split(Z)[0]
        spread = z.std(correction=0)
        spread = torch.where(spread > 1e-12, spread, 1.0).expand(z.shape[1])
        if self.location is None:
            return spread.clone()
        return torch.cat([spread, spread.new_full((2,), PLACES)])

    def isotropic(self) -> Isotropic | None:
        """k_g as a function of distances, if it is one, with one length-scale."""
        form = as_isotropic(self.kernel)
        if form is None or form.length_scale.numel() > 1:
            return None
        return form._replace(length_scale=form.length_scale.reshape(()))

    # ---- covariances ---------------------------------------------------------------------------

    def among(self, Z: Tensor, Z2: Tensor | None = None) -> Tensor:
        z, t = self.split(Z)
        z2, t2 = (None, None) if Z2 is None else self.split(Z2)
        K = self.kernel(z, z2)
        return K if self.location is None else K * self.location(t, t2)

    def cross(self, G: Tensor, Z: Tensor) -> Tensor:
        z, t = self.split(Z)
        mixing = self.weights[:, None].expand(-1, len(z))  # w_p k_loc(t_p, t), (J, M)
        if self.location is not None:
            mixing = mixing * self.location(self.places.to(t), t)
        mixing = mixing.to(G)
        if (kernel := self.isotropic()) is not None:
            patches = self.within_reach(G, kernel)
            centre = z.detach().mean(0)  # products of numbers far from 0 lose digits
            points = right(z - centre, kernel.length_scale).to(G)
            weights = (kernel.variance * mixing).to(G)
            return weighted_sums(left(patches - centre), points, weights, kernel.profile)
        by_rows = [(mixing * self.kernel(image, z)).sum(0) for image in self.patches(G)]
        return torch.stack(by_rows) if by_rows else G.new_zeros(0, len(z))

    def prior(self, G: Tensor) -> Tensor:
        mixing = self.pair_weights().to(G)
        if (kernel := self.isotropic()) is not None:
            patches, weights = self.within_reach(G, kernel), (kernel.variance * mixing).to(G)
            return weighted_pairs(patches, weights, kernel.length_scale, kernel.profile)
        by_rows = [(mixing * self.kernel(image)).sum() for image in self.patches(G)]
        return torch.stack(by_rows) if by_rows else G.new_zeros(0)

    def pair_weights(self) -> Tensor:
        """w_p w_q k_loc(t_p, t_q), (J, J)."""
        outer = torch.outer(self.weights, self.weights)
        return outer if self.location is None else outer * self.location(self.places)

    def gram(self, G: Tensor) -> Tensor:
        mixing = self.pair_weights().to(G)
        if (kernel := self.isotropic()) is not None:
            patches, weights = self.within_reach(G, kernel), (kernel.variance * mixing).to(G)
            patches = patches - patches.mean((0, 1))
            rows, points = left(patches), right(patches, kernel.length_scale).to(G)
            sums = [weighted_sums(rows, one, weights, kernel.profile).sum(1) for one in points]
            return torch.stack(sums)
        patches, sums = self.patches(G), []
        for one in patches:
            by_rows = [(mixing * self.kernel(other, one)).sum() for other in patches]
            sums.append(torch.stack(by_rows))
        return torch.stack(sums)

    # ---- for training --------------------------------------------------------------------------

    @torch.no_grad()
    def clamp_(self) -> None:
        if self.constant is not None:
            self.normalise_(self.constant)
        super().clamp_()
        if self.location is not None:
            self.location.clamp_()

    def normalise_(self, constant: Constant) -> None:
        """w to a mean square of 1/J², and its scale to the constant, which has bounds."""
        if not self.relative_weights.requires_grad:
            return
        square = self.relative_weights.square().mean()
        square = torch.where(square > 0.0, square, 1.0)
        self.relative_weights.div_(square.sqrt())
        log_constant = cast(Tensor, constant.log_constant_value)
        if log_constant.requires_grad:
            log_constant.add_(square.log())


class SinglePatches(Covariances):
    """Covariances of single patches: a row is a patch, with its place and its weight."""

    has_inputs = False

    def __init__(self, covariances: PatchCovariances) -> None:
        super().__init__(covariances.kernel)
        self.whole = covariances

    def rows_of(self, X: Tensor) -> Tensor:
        """Patches of images, one after another, (N·J, L + 3)."""
        whole = self.whole
        beside = torch.cat([whole.places, whole.weights[:, None]], 1).to(X)  # (J, 3)
        beside = beside.expand(len(X), -1, -1)
        return torch.cat([whole.patches(X), beside], 2).flatten(0, 1)

    def cross(self, G: Tensor, Z: Tensor) -> Tensor:
        width = Z.shape[1]  # points may have places or not
        return G[:, -1:] * self.whole.among(G[:, :width], Z)

    def among(self, Z: Tensor, Z2: Tensor | None = None) -> Tensor:
        return self.whole.among(Z, Z2)

    def prior(self, G: Tensor) -> Tensor:
        size, location = self.whole.geometry.size, self.whole.location
        responses = self.kernel.diag(G[:, :size])
        if location is not None:
            responses = responses * location.diag(G[:, size:-1])
        return G[:, -1].square() * responses
