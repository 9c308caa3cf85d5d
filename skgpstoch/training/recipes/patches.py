"""Build features of image patches: f sums responses to patches, and may see whole images too.

The builder is for :class:`~skgpstoch.training.recipes.variational.VariationalRecipe`. The
covariances come from :mod:`skgpstoch.models.features.patches`, and the hidden images below from
:mod:`skgpstoch.training.recipes.images`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling, named_array
from ...likelihoods.base import Likelihood
from ...likelihoods.counts import prior_variance_limit
from ...models.features.inducing import InducingFeatures
from ...models.features.patches import MOST_PATCHES, PLACES, Geometry, PatchCovariances
from ...models.features.sums import SumFeatures
from ...models.layers import DeepFeatures
from ...models.patch_responses import parts_of
from ...models.sparse import SparseModel
from .feature_builder import FeatureSizes
from .fitted import Fitted
from .images import (
    SOME_IMAGES,
    HiddenImages,
    Images,
    as_image,
    default_shape,
    hidden_attributes,
    image_patches,
    patches_of_some,
    start_patches,
)
from .inducing import InducingBuilder, make_features
from .kernel_choice import in_units, input_unit, named_kernel
from .layers import drawn, fitted_layers
from .plan import Sizes, Start
from .points import arrays_of_points, fitted_points
from .recipe import Problem
from .variational_plan import VariationalChoices

FEW_PATCHES = 200  # stride="auto" is the least stride with at most so many patches

OF_PATCHES = (
    "image_shape",
    "patch_shape",
    "stride",
    "patch_weights",
    "location_kernel",
    "global_kernel",
    "hidden_channels",
    "patch_correlation",
)
"""Parameters that must not change before a warm start."""


@dataclass(frozen=True, kw_only=True)
class Patches(InducingBuilder):
    """Inducing patches and, for a function of whole images, inducing images.

    The fields not listed here are parameters of :class:`skgpstoch.ConvolutionalGPRegressor`.

    Parameters
    ----------
    hidden : HiddenImages or None, default=None
        Inner layers, which make the images that the patches are cut from.
    learns_weights : bool, default=True
        Whether to train the weights of the patch responses.
    """

    hidden: HiddenImages | None = None
    image_shape: Any = "auto"
    patch_shape: Any = "auto"
    stride: int | str = "auto"
    learns_weights: bool = True
    location_kernel: sk.Kernel | str | None = "auto"
    global_kernel: sk.Kernel | str | None = "auto"

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        made = {
            "hidden": HiddenImages.of(parameters),
            "learns_weights": parameters.patch_weights == "learned",
        }
        return super().of(parameters, **made | decided)

    # ---- what is known before ----------------------------------------------------------------

    def geometry(self, n_features: int) -> Geometry:
        """Return the patch geometry of the last layer's input images, for rows of this width.

        Raises
        ------
        ValueError
            If shapes do not agree.
        """
        image = as_image(self.image_shape, n_features)
        if self.hidden is not None:
            image = self.hidden.last_images(image)
        patch = image_patches(self.patch_shape, image[:2])
        stride = 1 if self.stride == "auto" else int(self.stride)
        geometry = Geometry(image, patch, stride)
        most = max(patch) if self.stride == "auto" else stride  # a larger stride leaves gaps
        while geometry.n_patches > FEW_PATCHES and geometry.stride < most:
            geometry = geometry._replace(stride=geometry.stride + 1)
        if geometry.n_patches > MOST_PATCHES:
            raise ValueError(
                f"image_shape={image} has {geometry.n_patches} patches, but at most "
                f"{MOST_PATCHES} are allowed. Use a stride larger than {geometry.stride}, or "
                "larger patches too."
            )
        return geometry

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalChoices, start: Start | None
    ) -> FeatureSizes:
        if start is None:  # points are chosen from patches, not from images
            J = self.geometry(sizes.n_features).n_patches
            n_untrained *= J
            sizes = sizes._replace(n_rows=J * sizes.n_rows, n_given=J * sizes.n_given)
        found = super().sizes(sizes, n_untrained, recipe, start)
        if self.hidden is None:
            return found
        self.hidden.check(self)
        image = as_image(self.image_shape, sizes.n_features)
        return found._replace(batch_needed=self.hidden.batch_needed(image))

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return one offset and scale for all pixels; a user's kernel sees unscaled pixels."""
        n_pixels, pixels = X.shape[1], X.reshape(-1, 1)
        counts = None if weight is None else np.repeat(weight, n_pixels)
        expressions = (self.kernel.expression, self.global_kernel)
        given = [kernel for kernel in expressions if isinstance(kernel, sk.Kernel)]
        if any(kernels.contains(kernel, sk.DotProduct) for kernel in given):
            return Scaling.identity(n_pixels)
        find = Scaling.centered if given else Scaling.standard
        offset, scale = find(pixels, counts)
        return Scaling(offset.repeat(n_pixels), scale.repeat(n_pixels))

    @property
    def sees_inputs(self) -> bool:
        return False

    @property
    def chooses_inputs(self) -> bool:
        return False

    def n_choices(self, n_rows: int, n_features: int) -> int:
        return n_rows * self.geometry(n_features).n_patches

    # ---- features ----------------------------------------------------------------------------

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> Any:
        X, rows, start = problem.X, problem.rows, problem.start
        if start is not None:
            start.check_unchanged(OF_PATCHES)
        most, parts = prior_variance_limit(likelihood, rows), []
        if self.hidden is None:
            if fitted is not None:
                parts = parts_of(fitted.features)
            return self.last_layer(Images(X, X, rows), problem, n_latents, most, parts)
        if fitted is not None:
            features = fitted_layers(fitted, problem, ("kernel", "posterior"))
            return drawn(features, "auto", rows.n_all * features.inner[0].n_patches)
        layers, images = self.hidden.build(problem, as_image(self.image_shape, X.shape[1]), self)
        last = self.last_layer(images, problem, n_latents, most, parts)
        return drawn(DeepFeatures(layers, last), "auto", rows.n_all * layers[0].n_patches)

    def last_layer(
        self,
        images: Images,
        problem: Problem,
        n_latents: int,
        most: float,
        parts: list[InducingFeatures],
    ) -> InducingFeatures | SumFeatures:
        """Make the features of f as a function of images.

        `parts` holds the parts that an earlier fit trained; it is empty if there is none.
        """
        local = self.responses(images, problem, n_latents, most, parts[:1])
        if self.global_kernel is None:
            return local
        whole = self.whole_images(images, problem, n_latents, most, local, parts[1:])
        return SumFeatures([local, whole])

    def responses(
        self,
        images: Images,
        problem: Problem,
        n_latents: int,
        most: float,
        parts: list[InducingFeatures],
    ) -> InducingFeatures:
        """Make the features of the sum of patch responses."""
        X, geometry = images.varied, self.geometry(problem.X.shape[1])
        covariances = self.covariances(X, geometry, most)
        given = fitted_points(parts[0], X) if parts else [self.given_patches(problem)]
        both, unit = start_patches(self, covariances, X, given, problem)
        kind = self.is_decoupled, None, self.sets
        return make_features(covariances, both, unit, geometry.size, n_latents, *kind)

    def covariances(self, X: Tensor, geometry: Geometry, most: float) -> PatchCovariances:
        """Make the kernel between images, before training."""
        place, learns = self.place_kernel(), self.learns_weights
        if self.kernel.expression is not None:
            kernel = named_kernel("kernel", self.kernel.expression, geometry.size, "a patch")
            return PatchCovariances(kernel, geometry, place, learns).to(X.device)
        shape = default_shape(patches_of_some(X, geometry))
        unscaled = PatchCovariances(kernels.from_sklearn(shape), geometry, place, learns)
        with torch.no_grad():
            prior = unscaled.to(X.device).prior(X[:SOME_IMAGES].double())
            variance = 1.0 / float(prior.mean().clamp_min(1e-6))
        constant = sk.ConstantKernel(variance, (1e-5 * variance, most * variance))
        kernel = kernels.from_sklearn(constant * shape)
        return PatchCovariances(kernel, geometry, place, learns).to(X.device)

    def place_kernel(self) -> kernels.Kernel | None:
        """Make the kernel on the patches' locations; None if there is none."""
        expression = self.location_kernel
        if expression is None:
            return None
        if isinstance(expression, str):
            expression = sk.Matern(PLACES, (0.3, 300.0), nu=1.5)
        return named_kernel("location_kernel", expression, 2, "a place")

    def given_patches(self, problem: Problem) -> Tensor | None:
        """Return the user's patches, scaled, with their locations; None if none are given."""
        if isinstance(self.points, str):
            return None
        X, x_scaling = problem.X, problem.x_scaling
        points = named_array(self.points, "inducing_points", copy=True)
        size = self.geometry(X.shape[1]).size
        width = size + (0 if self.location_kernel is None else 2)
        if points.shape[1] != width:
            raise ValueError(
                f"inducing_points must have {width} columns ({size} numbers of a patch and, with a "
                f"location kernel, the row and column of its centre), got {points.shape[1]}."
            )
        offset, scale = (values[0] for values in x_scaling)
        points[:, :size] = (points[:, :size] - offset) / scale
        return torch.from_numpy(points).to(X)

    def whole_images(
        self,
        images: Images,
        problem: Problem,
        n_latents: int,
        most: float,
        local: InducingFeatures,
        parts: list[InducingFeatures],
    ) -> InducingFeatures:
        """Make the features of the function of whole images, in the same blocks as `local`."""
        X, rows = images.mean, images.rows
        expression = self.global_kernel
        if isinstance(expression, str):
            shape = default_shape(X[:SOME_IMAGES].double())
            expression = sk.ConstantKernel(1.0, (1e-5, most)) * shape
        kernel = named_kernel("global_kernel", expression, X.shape[1], "an image").to(X.device)
        M, M2, n = problem.plan.n_inducing, len(getattr(local, "others", ())), len(X)
        most_points = max(1, n * M // (M + M2)) if M2 else n
        plan = replace(problem.plan, n_inducing=min(M, most_points), n_orthogonal=min(M2, n // 2))
        given = fitted_points(parts[0], X) if parts else [None, None]
        problem = problem._replace(X=X, rows=rows, plan=plan)
        both = self.chosen_rows(problem, kernel, nn.Identity(), given)
        unit = input_unit(X, rows)
        unit = torch.full_like(unit, float(unit.square().mean().sqrt()))
        kind = self.is_decoupled, None, self.sets
        return make_features(kernel, both, unit, X.shape[1], n_latents, *kind)

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        super().set_trainable(features, n_rows, learns_variance)
        if isinstance(features, DeepFeatures):
            for layer in features.inner:
                layer.features.learn_points(self.learned)
        local, *others = parts_of(features)
        responses = cast(PatchCovariances, local.covariances)
        responses.relative_weights.requires_grad_(self.learns_weights)
        n_patches = responses.geometry.n_patches * n_rows
        local.learn_points(self.learned and len(local.points) < n_patches)
        if not learns_variance:  # then the scale of f cannot be learned, whatever the kernel
            if responses.constant is None:
                responses.relative_weights.requires_grad_(False)
            if isinstance(self.global_kernel, str):
                for part in others:
                    cast(Any, part.kernel).k1.requires_grad_(False)

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        features, (offset, scale) = fitted.posterior.model.features, fitted.x_scaling
        local, *others = parts_of(features)
        responses = cast(PatchCovariances, local.covariances)
        geometry = responses.geometry
        found = {
            **hidden_attributes(fitted),
            "image_shape_": as_image(self.image_shape, len(offset)),
            "patch_shape_": geometry.patch_shape,
            "stride_": geometry.stride,
            "patch_weights_": patch_weights(responses),
        }
        if isinstance(features, DeepFeatures):  # hidden images are not in units of the user's X
            offset, scale = np.zeros(1), np.ones(1)
        for name, p in zip(("inducing", "orthogonal"), arrays_of_points(local), strict=False):
            found[f"{name}_points_"] = p[:, : geometry.size] * scale[0] + offset[0]
            if responses.location is not None:
                found[f"{name}_places_"] = p[:, geometry.size :]
        if responses.location is not None:
            found["location_kernel_"] = kernels.to_sklearn(responses.location)
        if others:
            found["global_points_"] = arrays_of_points(others[0])[0] * scale + offset
            found["global_kernel_"] = kernel = kernels.to_sklearn(others[0].kernel)
            if isinstance(self.global_kernel, str):
                in_units(kernel.k2, scale[0])
        return found


def patch_weights(responses: PatchCovariances) -> np.ndarray:
    """Return the weight of each location."""
    return responses.weights.detach().numpy().reshape(responses.geometry.grid)
