"""Inner layers from images to images, as parameters say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import row_blocks
from ..data.rows import Rows
from ..features.patches import Geometry, PatchCovariances, choose_patches
from ..maths.linalg import BLOCK_ROWS
from ..models.layers import DeepFeatures
from ..models.patch_layers import PatchLayer, centre_map
from .deep import NARROWEST, NOISE, beginning, layer_of
from .images import LENGTHS, SOME_IMAGES, as_image, image_patches, median_distance
from .parameters import AUTO, POSITIVE_INTEGER, DrawParameters, positive_integers
from .plan import USUAL_BATCH, Plan
from .sparse_model import both_kinds, make_features

STEP_PATCHES = 2**16  # of an inner layer, at a step of fewer images than usual
START_IMAGES = 2000  # that layers are started from, at least: no more hidden ones are made
VARIETY = 0.1  # of random filters in channels without a mean, where inducing patches start


class Images(NamedTuple):
    """What a layer is given."""

    mean: Tensor  # of the layers below, (N, H·W·C)
    varied: Tensor  # with something in channels without a mean, where inducing patches are chosen
    rows: Rows  # targets and weights of these


@dataclass(eq=False, repr=False, kw_only=True)
class HiddenImages(DrawParameters):
    """Hidden images.

    Parameters
    ----------
    hidden_channels : int or array-like of int, default=()
        Channels of the images that every inner layer makes of the images below; () has none, and
        the model is shallow. What is fitted of the last layer (`inducing_points_`, `patch_weights_`
        and the others) is then of hidden images, in their units; and batch_size="auto" is as many
        images as have 65,536 patches in an inner layer, up to 512. Not for solver="lbfgs", nor for
        points of one's own.
    hidden_patch_shape : tuple of int, int or "auto", default="auto"
        (height, width) of the patches that inner layers look at; "auto" as `patch_shape`.
    hidden_stride : int, default=1
        Pixels from one of these to the next. What they do not reach, at the lower and right edge,
        is lost: with hidden images the function of whole images is of these.
    patch_correlation : {"weights", "none"}, default="weights"
        How hidden images are drawn: with functions that an image's patches share, of which only
        the residuals are independent; or every pixel from its own marginal, as published, which is
        not a bound on the evidence.

    Attributes
    ----------
    hidden_layers_ : list of Bunch
        Of every inner layer: `kernel` (sklearn kernel, of the first on scaled pixels),
        `inducing_points` and `orthogonal_points` (patches, those of the first layer in the units of
        X; or None), `patch_shape`, `stride`, and `image_shape` (of what it makes); with
        `hidden_channels`.
    elbo_std_ : float
        Standard error of `log_marginal_likelihood_value_` by the draws of hidden layers, in nats;
        with `hidden_channels`.
    """

    hidden_channels: Any = ()
    hidden_patch_shape: Any = "auto"
    hidden_stride: int = 1
    patch_correlation: str = "weights"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_channels": ["array-like", POSITIVE_INTEGER],
        "hidden_patch_shape": [tuple, list, POSITIVE_INTEGER, AUTO],
        "hidden_stride": [POSITIVE_INTEGER],
        "patch_correlation": [StrOptions({"weights", "none"})],
    }

    def _channels(self) -> tuple[int, ...]:
        """Of every inner layer."""
        return positive_integers("hidden_channels", self.hidden_channels)

    def _check_hidden(self: Any) -> None:
        """Raise a ValueError where parameters are not for hidden images."""
        if not self._channels():
            return
        self._check_draws()
        if self.solver == "lbfgs":
            raise ValueError("solver='lbfgs' is not for hidden_channels, as draws are never all.")
        for name, methods in (
            ("inducing_points", "'kmeans' or 'random'"),
            ("orthogonal_points", None),
        ):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(
                    f"{name} must be {methods} with hidden_channels, as every layer has points of "
                    "its own."
                )

    def _last_images(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        geometries, channels = self._hidden_geometries(image), self._channels()
        return (*geometries[-1].grid, channels[-1]) if channels else image

    def _hidden_geometries(self, image: tuple[int, int, int]) -> list[Geometry]:
        """Patches that inner layers look at."""
        found = []
        for n_channels in self._channels():
            name, given = "hidden_patch_shape", self.hidden_patch_shape
            patch = image_patches(name, given, image[:2])
            found.append(Geometry(image, patch, int(self.hidden_stride)))
            image = (*found[-1].grid, n_channels)
        return found

    def _batch_needed(self: Any) -> int | None:
        """As many images as have no more patches in an inner layer than they should."""
        image = as_image(self.image_shape, self.n_features_in_)
        if not (geometries := self._hidden_geometries(image)):
            return super()._batch_needed()  # type: ignore[misc]
        most = max(geometry.n_patches for geometry in geometries)
        return min(USUAL_BATCH, max(1, STEP_PATCHES // most))

    def _hidden_layers(
        self: Any, X: Tensor, rows: Rows, plan: Plan, image: Any, generator: torch.Generator
    ) -> tuple[list[PatchLayer], Images]:
        """Before training; and what the last layer is given."""
        layers, geometries = [], self._hidden_geometries(image)
        most = max(START_IMAGES, 20 * (plan.n_inducing + plan.n_orthogonal))
        some = slice(None, most if geometries else None)  # rows are in random order
        images, n_rows = Images(X[some], X[some], rows[some]), rows.n_effective
        for geometry, n_channels in zip(geometries, self._channels(), strict=True):
            layers.append(self._hidden_layer(images, n_rows, plan, geometry, n_channels, generator))
            images = after(images, layers[-1], generator)
        self._check_numbers("hidden_channels", layers)
        return layers, images

    def _set_hidden(self: Any, offset: float, scale: float) -> None:
        """Fitted attributes of inner layers, given how pixels were scaled."""
        for name in ("hidden_layers_", "elbo_std_"):
            self.__dict__.pop(name, None)
        features = self._model.features
        if not isinstance(features, DeepFeatures):
            return
        self.hidden_layers_ = [layer_of(layer.features) for layer in features.inner]
        for layer, fitted in zip(features.inner, self.hidden_layers_, strict=True):
            made = cast(PatchLayer, layer)
            fitted.image_shape = made.image_shape
            fitted.patch_shape, fitted.stride = made.geometry.patch_shape, made.geometry.stride
        first = self.hidden_layers_[0]
        for name in ("inducing_points", "orthogonal_points"):
            if first[name] is not None:
                first[name] = first[name] * scale + offset
        self.elbo_std_ = float(self.posterior_.error)

    def _hidden_layer(
        self: Any,
        images: Images,
        n_rows: float,
        plan: Plan,
        geometry: Geometry,
        n_channels: int,
        generator: torch.Generator,
    ) -> PatchLayer:
        X = images.varied
        some = X[:SOME_IMAGES].double()[:, geometry.columns().to(X.device)].flatten(0, 1)
        variance = float(some.var(0, correction=0).mean().clamp_min(1e-12))
        scale, least = median_distance(some), NARROWEST * variance**0.5
        shape = sk.RBF(max(scale, 2.0 * least), (least, scale * LENGTHS))
        method = self.inducing_points
        unscaled = PatchCovariances(kernels.from_sklearn(shape), geometry)

        def choose(n_points: int) -> Tensor:
            return choose_patches(method, unscaled.to(X.device), X, n_points, generator)

        sizes, n = (plan.n_inducing, plan.n_orthogonal), len(X) * geometry.n_patches
        points, others = both_kinds(choose, sizes, (None, None), n, generator)
        n_points = len(points) + (0 if others is None else len(others))
        root, start = beginning(n_rows, n_channels * n_points)
        constant = sk.ConstantKernel(start * variance, (1e-6 * variance, 1e2 * variance))
        kernel = kernels.from_sklearn(constant * shape).to(X.device)
        arguments = (kernel, nn.Identity(), points, unscaled.unit(points), geometry.size)
        features = make_features(arguments, others, n_channels)
        return PatchLayer(
            features,
            centre_map(geometry, n_channels).to(X),
            NOISE * variance,
            self._prior_blocks(features),
            root=root,
            geometry=geometry,
            shares_weights=self.patch_correlation == "weights",
        )


def after(images: Images, layer: PatchLayer, generator: torch.Generator) -> Images:
    """What the next layer is given."""
    L, C = layer.mean_map.shape
    bound = (6.0 / (L + C)) ** 0.5  # Glorot & Bengio's
    filters = torch.empty(L, C, dtype=torch.float64, device=generator.device)
    filters.uniform_(-bound, bound, generator=generator)
    is_empty = (layer.mean_map == 0.0).all(0)  # channels without a mean, (C,)
    varied_map = layer.mean_map + VARIETY * is_empty * filters.to(images.mean)
    pairs = (images.mean, layer.mean_map), (images.varied, varied_map)
    mean, varied = (
        torch.cat(
            [
                (layer.patches(X[block]) @ W).reshape(-1, layer.n_pixels)
                for block in row_blocks(len(X), max(1, BLOCK_ROWS // layer.n_patches))
            ]
        )
        for X, W in pairs
    )
    return Images(mean, varied, images.rows)
