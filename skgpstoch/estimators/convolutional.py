"""Models of images: patches, kernels on them, and fitted attributes, as parameters say."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils.validation import check_array
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling, readable, row_blocks
from ..data.rows import Data, Rows
from ..features.inducing import InducingFeatures
from ..features.patches import (
    PLACES,
    Geometry,
    PatchCovariances,
    SinglePatches,
    choose_patches,
)
from ..features.points import choose_points
from ..features.sums import SumFeatures
from ..maths.linalg import BLOCK_ROWS
from ..models.layers import DeepFeatures
from ..models.sparse import SparseModel, SparsePosterior
from .deep_images import HiddenImages, Images
from .images import LENGTHS, SOME_IMAGES, ImageParameters, as_image, median_distance
from .orthogonal import COVARIANCES, WithOrthogonalPoints
from .plan import Plan
from .sparse import SparseGP
from .sparse_model import both_kinds, in_units, input_unit, make_features, named_kernel
from .warm_start import check_unchanged

OPTIONAL = (
    "orthogonal_points_",
    "inducing_places_",
    "orthogonal_places_",
    "location_kernel_",
    "global_points_",
    "global_kernel_",
)
OF_PATCHES = (  # parameters that a warm start cannot do with others of
    "image_shape",
    "patch_shape",
    "stride",
    "channels",
    "patch_weights",
    "location_kernel",
    "global_kernel",
    "hidden_channels",
    "hidden_patch_shape",
    "hidden_stride",
    "patch_correlation",
)


@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGP(HiddenImages, ImageParameters, WithOrthogonalPoints):
    """What regressor and classifier share, before the family in the order of bases."""

    _shape_parameters: ClassVar[tuple[str, ...]] = (
        *SparseGP._shape_parameters,
        *OF_PATCHES,
        "posterior",
        "n_orthogonal",
        "orthogonal_points",
        "whiten",
    )

    def _plan(self: Any, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        self._check_hidden()
        return super()._plan(data, n_given, start, streams)  # type: ignore[misc]

    def _covariance_there(self) -> str | None:
        return COVARIANCES[self.posterior]

    def _input_scaling(self: Any, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """The same for all pixels; kernels of the user's are on pixels as they are."""
        n_pixels, pixels = X.shape[1], X.reshape(-1, 1)
        counts = None if weight is None else np.repeat(weight, n_pixels)
        given = [k for k in (self.kernel, self.global_kernel) if isinstance(k, sk.Kernel)]
        if any("DotProduct" in repr(kernel) for kernel in given):
            return Scaling.identity(n_pixels)
        find = Scaling.centered if given else Scaling.standard
        offset, scale = find(pixels, counts)
        return Scaling(offset.repeat(n_pixels), scale.repeat(n_pixels))

    def _n_points(
        self: Any, n_rows: int, n_given: int, n_untrained: int, start: Any, shares: bool = False
    ) -> tuple[int, int]:
        if start is None:
            J = self._geometry(self.n_features_in_).n_patches
            n_rows, n_given, n_untrained = J * n_rows, J * n_given, J * n_untrained
            for name in ("n_inducing", "n_orthogonal"):
                asked = getattr(self, name)
                if asked != "auto" and asked > max(n_rows - n_untrained, n_given - n_untrained):
                    raise ValueError(
                        f"{name}={asked} must be at most the number of patches in all images to "
                        f"train on, {n_rows - n_untrained}."
                    )
        return super()._n_points(n_rows, n_given, n_untrained, start, shares)

    # ---- features ----------------------------------------------------------------------------

    def _features(
        self: Any, X: Tensor, rows: Rows, n_latents: int, plan: Plan, fitted: Any, generator: Any
    ) -> Any:
        image = as_image(self.image_shape, X.shape[1])
        if fitted is not None:
            check_unchanged(self, OF_PATCHES)
        if fitted is not None and isinstance(fitted.features, DeepFeatures):
            features = fitted.features.to(X)
            features.reopen()  # once more: jitter is that of the type of X
            n_draws = len(X) * features.inner[0].n_patches
            return features.with_draws(*self._draws(n_draws))
        layers, images = self._hidden_layers(X, rows, plan, image, generator)
        last = self._last_features(images, n_latents, plan, parts_of(fitted), generator)
        if not layers:
            return last
        return DeepFeatures(layers, last, *self._draws(len(X) * layers[0].n_patches))

    def _last_features(
        self: Any,
        images: Images,
        n_latents: int,
        plan: Plan,
        parts: list[InducingFeatures],
        generator: torch.Generator,
    ) -> Any:
        """Of f, as a function of images."""
        X, geometry = images.varied, self._geometry(self.n_features_in_)
        responses = self._responses(X, geometry, self._make_likelihood().most_prior_variance)
        method = self.inducing_points if isinstance(self.inducing_points, str) else "kmeans"
        if parts:
            given = [points.detach().to(X) for points in parts[0].all_points()]
        else:
            names = ("inducing_points", "orthogonal_points")
            given = [self._given_patches(name, X) for name in names]

        def choose(n_points: int) -> Tensor:
            return choose_patches(method, responses, X, n_points, generator)

        sizes = (plan.n_inducing, plan.n_orthogonal)
        points, others = both_kinds(choose, sizes, given, len(X) * geometry.n_patches, generator)
        plan = replace(plan, n_orthogonal=0 if others is None else len(others))
        unit = responses.unit(points)
        arguments = (responses, nn.Identity(), points, unit, geometry.size)
        local = make_features(arguments, others, n_latents, self._is_decoupled())
        if self.global_kernel is None:
            return local
        return SumFeatures(
            [local, self._global(images, n_latents, plan, parts[1:], method, generator)]
        )

    def _given_patches(self: Any, name: str, X: Tensor) -> Tensor | None:
        """Those of a parameter, scaled, if it has any."""
        given = getattr(self, name)
        if given is None or isinstance(given, str):
            return None
        points = check_array(readable(given), dtype=np.float64, input_name=name, copy=True)
        size = self._geometry(X.shape[1]).size
        width = size + (0 if self.location_kernel is None else 2)
        if points.shape[1] != width:
            raise ValueError(
                f"{name} must have {width} columns, {size} numbers of a patch and the row "
                f"and column of its centre where there is a location kernel, got {points.shape[1]}."
            )
        offset, scale = (values[0] for values in self._x_scaling)
        points[:, :size] = (points[:, :size] - offset) / scale
        return torch.from_numpy(points).to(X)

    def _responses(self: Any, X: Tensor, geometry: Geometry, most: float) -> PatchCovariances:
        """k of images, before training."""
        location = self.location_kernel
        if isinstance(location, str):
            location = sk.Matern(PLACES, (0.3, 300.0), nu=1.5)
        place = None
        if location is not None:
            place = named_kernel("location_kernel", location, 2, "a place")
        learned, expression = self.patch_weights == "learned", self._split_kernel()[0]
        if expression is not None:
            kernel = named_kernel("kernel", expression, geometry.size, "a patch")
            return PatchCovariances(kernel, geometry, place, learned).to(X.device)
        some = X[:SOME_IMAGES].double()
        patches = some[:, geometry.columns().to(X.device)].flatten(0, 1)
        scale = median_distance(patches)
        shape = sk.RBF(scale, (scale / LENGTHS, scale * LENGTHS))
        unscaled = PatchCovariances(kernels.from_sklearn(shape), geometry, place, learned)
        with torch.no_grad():
            variance = 1.0 / float(unscaled.to(X.device).prior(some).mean().clamp_min(1e-6))
        constant = sk.ConstantKernel(variance, (1e-5 * variance, most * variance))
        kernel = kernels.from_sklearn(constant * shape)
        return PatchCovariances(kernel, geometry, place, learned).to(X.device)

    def _global(
        self: Any,
        images: Images,
        n_latents: int,
        plan: Plan,
        parts: list[InducingFeatures],
        method: str,
        generator: torch.Generator,
    ) -> InducingFeatures:
        """Of the function of whole images."""
        X, rows = images.mean, images.rows
        expression = self.global_kernel
        if isinstance(expression, str):
            scale = median_distance(X[:SOME_IMAGES].double())
            most = self._make_likelihood().most_prior_variance
            shape = sk.RBF(scale, (scale / LENGTHS, scale * LENGTHS))
            expression = sk.ConstantKernel(1.0, (1e-5, most)) * shape
        kernel = named_kernel("global_kernel", expression, X.shape[1], "an image").to(X.device)

        def choose(n_points: int) -> Tensor:
            return choose_points(method, X, n_points, kernel, nn.Identity(), generator, rows.weight)

        M, M2, n = plan.n_inducing, plan.n_orthogonal, len(X)
        sizes = (min(M, n), 0) if not M2 else (min(M, max(1, n * M // (M + M2))), min(M2, n // 2))
        given: list[Tensor | None] = [None, None]
        if parts:
            given = [points.detach().to(X) for points in parts[0].all_points()]
        points, others = both_kinds(choose, sizes, given, len(X), generator)
        unit = input_unit(X, rows)
        unit = torch.full_like(unit, float(unit.square().mean().sqrt()))
        arguments = (kernel, nn.Identity(), points, unit, X.shape[1])
        return make_features(arguments, others, n_latents, self._is_decoupled())

    def _set_trainable(self: Any, model: SparseModel, n_rows: int) -> None:
        super()._set_trainable(model, n_rows)  # type: ignore[misc]
        if isinstance(model.features, DeepFeatures):
            for layer in model.features.inner:
                layer.features.learn_points(self.learn_inducing_points)
        local, *others = parts_of(model)
        responses = cast(PatchCovariances, local.covariances)
        responses.relative_weights.requires_grad_(self.patch_weights == "learned")
        n_patches = responses.geometry.n_patches * n_rows
        local.learn_points(self.learn_inducing_points and len(local.points) < n_patches)
        if model.covariance == "prior":  # no scale of f can be learned, as for other kernels
            if responses.constant is None:
                responses.relative_weights.requires_grad_(False)
            if isinstance(self.global_kernel, str):
                for part in others:
                    cast(Any, part.kernel).k1.requires_grad_(False)

    # ---- fitted attributes -------------------------------------------------------------------

    def _set_points(self: Any) -> None:
        for name in OPTIONAL:
            self.__dict__.pop(name, None)
        local, *others = parts_of(self._model)
        responses = cast(PatchCovariances, local.covariances)
        geometry, (offset, scale) = responses.geometry, self._x_scaling
        self._set_hidden(offset[0], scale[0])
        if self._channels():  # the last layer looks at images in units of their own
            offset, scale = np.zeros(1), np.ones(1)
        points = [p.detach().double().cpu().numpy() for p in local.all_points()]
        patches = [p[:, : geometry.size] * scale[0] + offset[0] for p in points]
        self.inducing_points_ = patches[0]
        if len(patches) > 1:
            self.orthogonal_points_ = patches[1]
        if responses.location is not None:
            self.inducing_places_, *more = (p[:, geometry.size :] for p in points)
            if more:
                self.orthogonal_places_ = more[0]
            self.location_kernel_ = kernels.to_sklearn(responses.location)
        if others:
            self.global_points_ = others[0].inducing_points.detach().double().numpy()
            self.global_points_ = self.global_points_ * scale + offset
            self.global_kernel_ = kernels.to_sklearn(others[0].kernel)
            if isinstance(self.global_kernel, str):
                in_units(self.global_kernel_.k2, scale[0])
        of_channels = (-1,) if geometry.by_channel else ()
        self.patch_weights_ = (
            responses.weights.detach().numpy().reshape(*geometry.grid, *of_channels)
        )
        self.image_shape_ = as_image(self.image_shape, self.n_features_in_)
        self.patch_shape_ = geometry.patch_shape
        self.stride_ = geometry.stride

    def patch_responses(self: Any, X: Any) -> np.ndarray:
        """Which part of an image speaks for which latent function.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Images.

        Returns
        -------
        responses : ndarray of shape (n_samples, n_down, n_across[, n_channels], n_latents)
            Mean of w_p g(x^[p]) of every patch, in the units of the latent functions (of a
            regressor those of y), of which it is all but the prior mean and what the function of
            whole images says.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        ValueError
            If X has not as many features as in `fit`.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from skgpstoch import ConvolutionalGPClassifier
        >>> X, y = load_digits(n_class=3, return_X_y=True)
        >>> model = ConvolutionalGPClassifier(n_inducing=10, max_iter=2, random_state=0)
        >>> model.fit(X[:100], y[:100]).patch_responses(X[:2]).shape
        (2, 6, 6, 3)
        """
        rows, posterior = self._query(X)
        found = self._collect(len(rows), lambda block: (responses_of(posterior, rows[block]),))[0]
        found *= self._y_scaling.scale
        return found.reshape(len(rows), *self.patch_weights_.shape, -1)


def parts_of(model: SparseModel | None) -> list[InducingFeatures]:
    """Of responses, and of the function of whole images if there is one; none of no model."""
    if model is None:
        return []
    features = model.features
    features = features.last if isinstance(features, DeepFeatures) else features
    if isinstance(features, SumFeatures):
        return features.each
    return [cast(InducingFeatures, features)]


def responses_of(posterior: SparsePosterior, X: Tensor) -> Tensor:
    """E w_p g(x^[p]) of every patch, (N, J, P)."""
    parts, deep, S = parts_of(posterior.model), posterior.model.features, 1
    blocks = posterior.weights.mean.split(posterior.model.features.blocks)
    m = torch.cat([block[:n] for block, n in zip(blocks, parts[0].blocks, strict=True)])
    features = copy.deepcopy(parts[0])
    features.covariances = single = SinglePatches(cast(PatchCovariances, features.covariances))
    J, found = single.whole.geometry.n_patches, []
    for block in row_blocks(len(X), max(1, BLOCK_ROWS // J)):
        H = X[block]
        if isinstance(deep, DeepFeatures):
            S = deep.n_nodes
            H = deep.propagate(H, S)[-1]
        basis = features.basis(single.rows_of(H))
        mean = basis.phi @ m
        mean = mean if basis.shift is None else mean + basis.shift
        found.append(mean.view(S, -1, J, mean.shape[1]).mean(0))
    return torch.cat(found)
