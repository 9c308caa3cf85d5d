"""Images in the rows of X, and the hidden images that inner layers make from them.

The inner layers come from :mod:`skgpstoch.models.patch_layers`. The builder of the last layer is
:class:`skgpstoch.training.recipes.patches.Patches`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ... import kernels
from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...models.features.patches import Geometry, PatchCovariances
from ...models.layers import DeepFeatures
from ...models.patch_layers import PatchLayer, centre_map
from .feature_builder import USUAL_BATCH
from .fitted import Fitted
from .inducing import InducingBuilder, make_features
from .layers import NARROWEST, NOISE, beginning, check_draws_of_layers, described_layers
from .plan import positive_integers
from .points import centres_of_clusters, first_of_each
from .recipe import Problem
from .variational import prior_blocks

SEARCHED_IMAGES = 1000  # inducing patches are chosen from so many images
SEARCHED_PATCHES = 200_000  # and from so many of their patches
SEARCHED = 100  # candidate patches for each inducing patch
SOME_IMAGES = 64  # images that kernels' starting values are computed from
SMALL_IMAGE = 12  # pixels: patches are 3 pixels wide up to this image width, 5 beyond
LENGTHS = 100.0  # length-scales may change by this factor from where the data start them
STEP_PATCHES = 2**16  # most patches of an inner layer in a step; else there are fewer images
START_IMAGES = 2000  # least number of images that layers are started from
VARIETY = 0.1  # factor of random filters in channels without a mean, to choose inducing patches


class Images(NamedTuple):
    """The input images of a layer."""

    mean: Tensor  # mean outputs of the layers below, (N, H·W·C)
    varied: Tensor  # the same with random filters in channels without a mean; patches come from it
    rows: Rows  # targets and weights of the images


@dataclass(frozen=True, kw_only=True)
class HiddenImages:
    """Inner layers from images to images.

    Parameters
    ----------
    channels : tuple of int
        Number of channels of each inner layer's output images.
    shares_weights : bool
        Whether all patches of an image share one draw of the weights.
    """

    channels: tuple[int, ...]
    shares_weights: bool

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> HiddenImages | None:
        """Make the layers that parameters and `decided` specify; None if there are no channels."""
        p = parameters
        made = {
            "channels": positive_integers("hidden_channels", p.hidden_channels),
            "shares_weights": p.patch_correlation == "weights",
        }
        fields: dict[str, Any] = made | decided
        return cls(**fields) if fields["channels"] else None

    def check(self, last: InducingBuilder) -> None:
        """Raise a ValueError if parameters cannot be used with hidden images."""
        if not isinstance(last.points, str):
            raise ValueError(
                "inducing_points must be 'kmeans' or 'random' with hidden_channels, because "
                "every layer has its own points."
            )

    def geometries(self, image: tuple[int, int, int]) -> list[Geometry]:
        """Return the patch geometry of each inner layer; the first layer sees this image shape."""
        found = []
        for n_channels in self.channels:
            found.append(Geometry(image, image_patches("auto", image[:2])))
            image = (*found[-1].grid, n_channels)
        return found

    def last_images(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of the last layer's input images."""
        return *self.geometries(image)[-1].grid, self.channels[-1]

    def batch_needed(self, image: tuple[int, int, int]) -> int:
        """Return how many images a step may have, so that no inner layer gets too many patches."""
        most = max(geometry.n_patches for geometry in self.geometries(image))
        return min(USUAL_BATCH, max(1, STEP_PATCHES // most))

    # ---- layers ------------------------------------------------------------------------------

    def build(
        self, problem: Problem, image: tuple[int, int, int], last: InducingBuilder
    ) -> tuple[list[PatchLayer], Images]:
        """Make the inner layers, before training, and the input images of the last layer."""
        X, rows, plan = problem.X, problem.rows, problem.plan
        most = max(START_IMAGES, 20 * (plan.n_inducing + plan.n_orthogonal))
        images = Images(X[:most], X[:most], rows[:most])  # rows are in random order
        layers: list[PatchLayer] = []
        for geometry, n_channels in zip(self.geometries(image), self.channels, strict=True):
            layers.append(self.layer(images, problem, geometry, n_channels, last))
            images = self.after(images, layers[-1], problem.generator)
        check_draws_of_layers("hidden_channels", self.channels, layers)
        return layers, images

    def after(self, images: Images, layer: PatchLayer, generator: torch.Generator) -> Images:
        """Return the input images of the next layer."""
        W = layer.mean_map
        varied = mapped(images.varied, layer, self.filters(W, generator))
        return Images(mapped(images.mean, layer, W), varied, images.rows)

    def filters(self, mean_map: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean map with random filters in channels whose mean is 0.

        It makes the images from which the next layer's inducing patches are chosen.
        """
        is_empty = (mean_map == 0.0).all(0)  # channels without a mean, (C,)
        return mean_map + VARIETY * is_empty * glorot_filters(mean_map, generator)

    def layer(
        self,
        images: Images,
        problem: Problem,
        geometry: Geometry,
        n_channels: int,
        last: InducingBuilder,
    ) -> PatchLayer:
        """Make a layer above images, with inducing patches chosen as in the last layer."""
        X = images.varied
        some = patches_of_some(X, geometry)
        variance = float(some.var(0, correction=0).mean().clamp_min(1e-12))
        scale, least = median_distance(some), NARROWEST * variance**0.5
        shape = sk.RBF(max(scale, 2.0 * least), (least, scale * LENGTHS))
        unscaled = PatchCovariances(kernels.from_sklearn(shape), geometry)
        both, unit = start_patches(last, unscaled.to(X.device), X, (None, None), problem)
        n_points = sum(len(p) for p in both if p is not None)
        root, start = beginning(problem.rows.n_effective, n_channels * n_points)
        constant = sk.ConstantKernel(start * variance, (1e-6 * variance, 1e2 * variance))
        kernel = kernels.from_sklearn(constant * shape).to(X.device)
        features = make_features(kernel, both, unit, geometry.size, n_channels, sets=last.sets)
        return PatchLayer(
            features,
            centre_map(geometry, n_channels).to(X),
            NOISE * variance,
            prior_blocks(last.posterior, features.blocks),
            root=root,
            geometry=geometry,
            shares_weights=self.shares_weights,
        )


def glorot_filters(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random filters of the same shape (L, C), drawn by Glorot & Bengio's rule."""
    bound = (6.0 / sum(like.shape)) ** 0.5
    filters = torch.empty(like.shape, dtype=torch.float64, device=generator.device)
    return filters.uniform_(-bound, bound, generator=generator).to(like)


def mapped(X: Tensor, layer: PatchLayer, W: Tensor) -> Tensor:
    """Return the images (N, J·C) that W (L, C) makes from the patches of a layer."""
    blocks = row_blocks(len(X), max(1, BLOCK_ROWS // layer.n_patches))
    parts = [(layer.patches(X[block]) @ W).reshape(-1, layer.n_pixels) for block in blocks]
    return torch.cat(parts)


def hidden_attributes(fitted: Fitted) -> dict[str, Any]:
    """Return the fitted attributes of inner layers, none if there are no such layers."""
    features = fitted.posterior.model.features
    if not isinstance(features, DeepFeatures):
        return {}
    inner = cast(Sequence[PatchLayer], features.inner)
    offset, scale = (values[0] for values in fitted.x_scaling)
    layers = described_layers([layer.features for layer in inner], offset, scale)
    for layer, found in zip(inner, layers, strict=True):
        found.image_shape = layer.image_shape
        found.patch_shape, found.stride = layer.geometry.patch_shape, layer.geometry.stride
    return {"hidden_layers_": layers, "elbo_std_": float(fitted.posterior.error)}


# ---- shapes and scales of images -----------------------------------------------------------------


def image_patches(given: Any, sides: tuple[int, int]) -> tuple[int, int]:
    """Return the patch shape (h, w) that patch_shape specifies, for images with these sides.

    Raises
    ------
    ValueError
        If it is not a patch shape, or if the images are smaller.
    """
    if isinstance(given, str):
        side = 3 if max(sides) <= SMALL_IMAGE else 5
        return min(side, sides[0]), min(side, sides[1])
    patch = positive_integers("patch_shape", (given,) * 2 if isinstance(given, Integral) else given)
    if len(patch) != 2 or patch[0] > sides[0] or patch[1] > sides[1]:
        raise ValueError(
            "patch_shape must be two numbers of pixels, at most the size of the images, "
            f"{sides}, got {given!r}."
        )
    return patch[0], patch[1]


def as_image(shape: Any, n_features: int) -> tuple[int, int, int]:
    """Return the image shape (H, W, C) that image_shape specifies, for rows of this width.

    Raises
    ------
    ValueError
        If H·W·C is not the number of columns.
    """
    if isinstance(shape, str):
        side = math.isqrt(n_features)
        return (side, side, 1) if side * side == n_features else (1, n_features, 1)
    given = positive_integers("image_shape", shape)
    H, W, C = given if len(given) == 3 else (*given, 1) if len(given) == 2 else (0, 0, 0)
    if n_features != H * W * C:
        raise ValueError(
            "image_shape must be (height, width) or (height, width, channels), with a "
            f"product of {n_features}, the number of columns of X, got {shape!r}."
        )
    return H, W, C


def patches_of_some(X: Tensor, geometry: Geometry) -> Tensor:
    """Return the patches of some images, one after another, in float64."""
    some = X[:SOME_IMAGES].double()
    return some[:, geometry.columns().to(X.device)].flatten(0, 1)


def median_distance(rows: Tensor) -> float:
    """Return the median distance between distinct rows, of at most 500; 1 if all are equal."""
    picked = np.linspace(0, len(rows) - 1, min(len(rows), 500), dtype=np.int64)
    some = rows[torch.from_numpy(picked).to(rows.device)]
    distances = torch.pdist(some)
    distances = distances[distances > 0.0]
    return float(distances.median()) if len(distances) else 1.0


def default_shape(rows: Tensor) -> sk.RBF:
    """Return an RBF kernel whose length-scale starts at the median distance between rows."""
    scale = median_distance(rows)
    return sk.RBF(scale, (scale / LENGTHS, scale * LENGTHS))


def start_patches(
    builder: InducingBuilder,
    covariances: PatchCovariances,
    X: Tensor,
    given: Sequence[Tensor | None],
    problem: Problem,
) -> tuple[tuple[Tensor, Tensor | None], Tensor]:
    """Return Z and O, given or chosen from the patches of images, and their unit."""

    def choose(n_points: int) -> Tensor:
        return choose_patches(builder.method, covariances, X, n_points, problem.generator)

    n = len(X) * covariances.geometry.n_patches
    both = builder.start_points(choose, given, n, problem)
    return both, covariances.unit(both[0])


@torch.no_grad()
def choose_patches(
    method: str,
    covariances: PatchCovariances,
    X: Tensor,
    n_points: int,
    generator: torch.Generator,
) -> Tensor:
    """Choose inducing patches, (M, L), or (M, L + 2) with locations if the kernel has these.

    They are distinct patches of some images or, for "kmeans", centres of clusters of these.
    Distances are in units of the pixels' standard deviation and of three pixels between locations.
    If there are too few distinct patches, patches that differ only in location are added, if
    locations matter; otherwise there are fewer than n_points.
    """
    images = X[:SEARCHED_IMAGES]
    patches = covariances.patches(images).flatten(0, 1)
    order = torch.randperm(len(patches), generator=generator, device=X.device)
    patches = patches[order]
    place = covariances.places.to(X).repeat(len(images), 1)[order]
    some = slice(None, SEARCHED_PATCHES)
    first = first_of_each(patches[some])[: SEARCHED * n_points]
    rows = patches[first]
    if covariances.location is not None:
        rows = torch.cat([rows, place[first]], 1)
        if len(rows) < n_points:
            everywhere = torch.cat([patches[some], place[some]], 1)
            rows = torch.cat([rows, everywhere[first_of_each(everywhere)[: SEARCHED * n_points]]])
            rows = rows[first_of_each(rows)]
    if method == "random" or len(rows) <= n_points:
        return rows[:n_points].clone()
    unit = covariances.unit(rows)
    centres = centres_of_clusters((rows / unit).cpu().double().numpy(), n_points, generator)
    return torch.from_numpy(centres).to(X) * unit
