"""Models of images: patches, kernels on them, and fitted attributes, as parameters say."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling, readable
from ..data.rows import Rows
from ..features.covariances import Covariances
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
from ..posteriors.sparse import SparseModel, SparsePosterior
from .orthogonal import COVARIANCES, WithOrthogonalPoints
from .parameters import AUTO, POSITIVE_INTEGER
from .plan import Plan
from .sparse import SparseGP
from .sparse_model import both_kinds, input_unit, orthogonal_features

SMALL_IMAGE = 12  # pixels, up to which patches have 3 from side to side, beyond 5
MOST_PATCHES = 200  # for which "auto" is the least stride
SOME_IMAGES = 64  # that the variance of the default kernel is started from
OPTIONAL = (
    "orthogonal_points_",
    "inducing_places_",
    "location_kernel_",
    "global_points_",
    "global_kernel_",
)
LENGTHS = 100.0  # bounds of length-scales that are started from data, times and divided by


@dataclass(eq=False, repr=False, kw_only=True)
class ImageParameters:
    """Images, and their patches.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel of the responses, on patches. None: a constant times an RBF kernel, started from the
        data. A top-level WhiteKernel is the noise.
    image_shape : tuple of int or "auto", default="auto"
        (height, width) or (height, width, channels) of the images that rows of X are, in C order;
        "auto" is a square in grey, or a single line where there is no such square.
    patch_shape : tuple of int, int or "auto", default="auto"
        (height, width) of patches; "auto" is 3 by 3 for images up to 12 pixels wide and high, else
        5 by 5, as far as images reach.
    stride : int or "auto", default="auto"
        Pixels from a patch to the next; "auto" is the least for which there are 200 patches or
        fewer.
    channels : {"joint", "separate"}, default="joint"
        Whether a patch has all channels, or each channel has patches of its own.
    patch_weights : {"learned", "uniform"}, default="learned"
        Weights of responses in their sum: one for each place, or the same for all.
    location_kernel : sklearn kernel, "auto" or None, default="auto"
        Kernel on the place (row, column), in pixels, that a response depends on besides the patch;
        "auto" is a Matérn kernel (nu=1.5) that starts with a length-scale of 3 pixels; None: a
        patch has the same response everywhere.
    global_kernel : sklearn kernel, "auto" or None, default="auto"
        Kernel of a function of the whole image that is added to the sum; "auto" is a constant times
        an RBF kernel with one length-scale; None: there is no such function.
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q: with inducing patches of one kind, or orthogonal ones beside them, with a
        covariance of q's own there or the prior's. `n_orthogonal` and `orthogonal_points` are for
        the latter two.
    n_inducing : int or "auto", default="auto"
        Number M of inducing patches, and of inducing images of the global function, of which there
        are no more than rows. "auto" is 512 for a Gaussian likelihood and 256 for others, up to
        1,000 rows half of that, as far as there are different patches.
    inducing_points : {"kmeans", "random"} or array-like, default="kmeans"
        Where inducing patches start: centres of clusters of different patches, some of these, or
        given ones, a patch a row, in the units of X, with two more columns, row and column of the
        centre, where there is a location kernel. Images of the global function start alike.
    n_orthogonal : int or "auto", default="auto"
        Number M₂ of orthogonal inducing patches; "auto" is `n_inducing`.
    orthogonal_points : array-like or None, default=None
        Where these start; None: as `inducing_points`.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel on patches.
    location_kernel_, global_kernel_ : sklearn kernel
        The fitted ones, where there are any.
    patch_weights_ : ndarray of shape (n_rows, n_columns) or (n_rows, n_columns, n_channels)
        Weights of places, from top to bottom and left to right.
    inducing_points_ : ndarray of shape (n_inducing, n_pixels)
        Inducing patches, in the units of X.
    inducing_places_ : ndarray of shape (n_inducing, 2)
        Row and column of their centres, with a location kernel.
    global_points_ : ndarray of shape (n_inducing, n_features)
        Inducing images of the global function, in the units of X.
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_pixels)
        In the units of X; with posterior="solve" or "odvgp".
    image_shape_, patch_shape_, stride_ : tuple of int, tuple of int, int
        What was used.
    """

    image_shape: Any = "auto"
    patch_shape: Any = "auto"
    stride: int | str = "auto"
    channels: str = "joint"
    patch_weights: str = "learned"
    location_kernel: sk.Kernel | str | None = "auto"
    global_kernel: sk.Kernel | str | None = "auto"
    posterior: str = "svgp"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "image_shape": [tuple, list, AUTO],
        "patch_shape": [tuple, list, POSITIVE_INTEGER, AUTO],
        "stride": [POSITIVE_INTEGER, AUTO],
        "channels": [StrOptions({"joint", "separate"})],
        "patch_weights": [StrOptions({"learned", "uniform"})],
        "location_kernel": [sk.Kernel, AUTO, None],
        "global_kernel": [sk.Kernel, AUTO, None],
        "posterior": [StrOptions(set(COVARIANCES))],
        "inducing_points": [StrOptions({"kmeans", "random"}), "array-like"],
    }

    def _geometry(self, n_features: int) -> Geometry:
        """What "auto" comes to for rows of this width.

        Raises
        ------
        ValueError
            If shapes do not agree.
        """
        image = as_image(self.image_shape, n_features)
        sides = image[:2]
        if self.patch_shape == "auto":
            side = 3 if max(sides) <= SMALL_IMAGE else 5
            patch: tuple[int, ...] = (min(side, sides[0]), min(side, sides[1]))
        else:
            given = self.patch_shape
            patch = shape_of("patch_shape", (given,) * 2 if isinstance(given, Integral) else given)
        if len(patch) != 2 or patch[0] > sides[0] or patch[1] > sides[1]:
            raise ValueError(
                f"patch_shape must be two numbers of pixels, at most those of images, {sides}, got "
                f"{self.patch_shape!r}."
            )
        separate = self.channels == "separate"
        stride = 1 if self.stride == "auto" else int(self.stride)
        geometry = Geometry(image, cast(Any, patch), stride, separate)
        while self.stride == "auto" and geometry.n_patches > MOST_PATCHES:
            geometry = geometry._replace(stride=geometry.stride + 1)
        return geometry


@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGP(ImageParameters, WithOrthogonalPoints):
    """What regressor and classifier share, before the family in the order of bases."""

    _shape_parameters: ClassVar[tuple[str, ...]] = (
        *SparseGP._shape_parameters,
        "image_shape",
        "patch_shape",
        "stride",
        "channels",
        "location_kernel",
        "global_kernel",
        "posterior",
        "n_orthogonal",
        "orthogonal_points",
        "whiten",
    )

    def _covariance_there(self) -> str | None:
        return COVARIANCES[self.posterior]

    def _input_scaling(self: Any, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """The same for all pixels."""
        n_pixels = X.shape[1]
        counts = None if weight is None else np.repeat(weight, n_pixels)
        offset, scale = super()._input_scaling(X.reshape(-1, 1), counts)  # type: ignore[misc]
        return Scaling(offset.repeat(n_pixels), scale.repeat(n_pixels))

    def _n_points(
        self: Any, n_rows: int, n_given: int, n_untrained: int, start: Any, shares: bool = False
    ) -> tuple[int, int]:
        if start is None and isinstance(self.inducing_points, str):
            J = self._geometry(self.n_features_in_).n_patches
            n_rows, n_given, n_untrained = J * n_rows, J * n_given, J * n_untrained
        return super()._n_points(n_rows, n_given, n_untrained, start, shares)

    # ---- features ----------------------------------------------------------------------------

    def _features(
        self: Any, X: Tensor, rows: Rows, n_latents: int, plan: Plan, fitted: Any, generator: Any
    ) -> Any:
        geometry = self._geometry(X.shape[1])
        most = self._make_likelihood().most_prior_variance
        responses = self._responses(X, geometry, most)
        parts = parts_of(fitted)
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
        unit = responses.unit(points)
        local = self._map(responses, points, others, unit, geometry.size, n_latents)
        if self.global_kernel is None:
            return local
        return SumFeatures(
            [local, self._global(X, rows, n_latents, plan, parts[1:], method, generator)]
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

    def _map(
        self: Any,
        covariances: Covariances | kernels.Kernel,
        points: Tensor,
        others: Tensor | None,
        unit: Tensor,
        width: int,
        n_latents: int,
    ) -> InducingFeatures:
        arguments = (covariances, nn.Identity(), points, unit, width)
        if others is None:
            return InducingFeatures(*arguments)
        return orthogonal_features(arguments, others, n_latents, self._is_decoupled())

    def _responses(self: Any, X: Tensor, geometry: Geometry, most: float) -> PatchCovariances:
        """k of images, before training."""
        location = self.location_kernel
        if isinstance(location, str):
            location = sk.Matern(PLACES, (0.3, 300.0), nu=1.5)
        place = None if location is None else kernels.from_sklearn(location)
        learned, expression = self.patch_weights == "learned", self._split_kernel()[0]
        if expression is not None:
            kernel = kernels.from_sklearn(expression)
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
        X: Tensor,
        rows: Rows,
        n_latents: int,
        plan: Plan,
        parts: list[InducingFeatures],
        method: str,
        generator: torch.Generator,
    ) -> InducingFeatures:
        """Of the function of whole images."""
        expression = self.global_kernel
        if isinstance(expression, str):
            scale = median_distance(X[:SOME_IMAGES].double())
            most = self._make_likelihood().most_prior_variance
            shape = sk.RBF(scale, (scale / LENGTHS, scale * LENGTHS))
            expression = sk.ConstantKernel(1.0, (1e-5, most)) * shape
        kernel = kernels.from_sklearn(expression).to(X.device)

        def choose(n_points: int) -> Tensor:
            return choose_points(method, X, n_points, kernel, nn.Identity(), generator, rows.weight)

        sizes = min(plan.n_inducing, len(X)), min(plan.n_orthogonal, len(X))
        given: list[Tensor | None] = [None, None]
        if parts:
            given = [points.detach().to(X) for points in parts[0].all_points()]
        points, others = both_kinds(choose, sizes, given, len(X), generator)
        unit = input_unit(X, rows)
        unit = torch.full_like(unit, float(unit.square().mean().sqrt()))
        return self._map(kernel, points, others, unit, X.shape[1], n_latents)

    # ---- fitted attributes -------------------------------------------------------------------

    def _set_points(self: Any) -> None:
        for name in OPTIONAL:
            self.__dict__.pop(name, None)
        local, *others = parts_of(self._model)
        responses = cast(PatchCovariances, local.covariances)
        geometry, (offset, scale) = responses.geometry, self._x_scaling
        points = [p.detach().double().cpu().numpy() for p in local.all_points()]
        patches = [p[:, : geometry.size] * scale[0] + offset[0] for p in points]
        self.inducing_points_ = patches[0]
        if len(patches) > 1:
            self.orthogonal_points_ = patches[1]
        if responses.location is not None:
            self.inducing_places_ = points[0][:, geometry.size :]
            self.location_kernel_ = kernels.to_sklearn(responses.location)
        if others:
            self.global_points_ = others[0].inducing_points.detach().double().numpy()
            self.global_points_ = self.global_points_ * scale + offset
            self.global_kernel_ = kernels.to_sklearn(others[0].kernel)
            if isinstance(self.global_kernel, str):
                self.global_kernel_.k2.length_scale *= scale[0]
        of_channels = (-1,) if geometry.by_channel else ()
        self.patch_weights_ = (
            responses.weights.detach().numpy().reshape(*geometry.grid, *of_channels)
        )
        self.image_shape_, self.patch_shape_ = geometry.image_shape, geometry.patch_shape
        self.stride_ = geometry.stride

    def patch_responses(self: Any, X: Any) -> np.ndarray:
        """Which part of an image speaks for which latent function.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Images.

        Returns
        -------
        responses : ndarray of shape (n_samples, n_rows, n_columns[, n_channels], n_latents)
            Mean of w_p g(x^[p]) of every patch, in the units of the latent functions, of which it
            is all but the prior mean and what the function of whole images says.

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
        return found.reshape(len(rows), *self.patch_weights_.shape, -1)


def parts_of(model: SparseModel | None) -> list[InducingFeatures]:
    """Of responses, and of the function of whole images if there is one; none of no model."""
    if model is None:
        return []
    if isinstance(features := model.features, SumFeatures):
        return features.each
    return [cast(InducingFeatures, features)]


def median_distance(rows: Tensor) -> float:
    """Of some rows that differ from one another; 1 if none do."""
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), 500)).long().to(rows.device)]
    distances = torch.pdist(some)
    distances = distances[distances > 0.0]
    return float(distances.median()) if len(distances) else 1.0


def as_image(shape: Any, n_features: int) -> tuple[int, int, int]:
    """(H, W, C) of rows of this width."""
    if shape == "auto":
        side = math.isqrt(n_features)
        return (side, side, 1) if side * side == n_features else (1, n_features, 1)
    given = shape_of("image_shape", shape)
    H, W, C = given if len(given) == 3 else (*given, 1) if len(given) == 2 else (0, 0, 0)
    if n_features != H * W * C:
        raise ValueError(
            "image_shape must be (height, width) or (height, width, channels) of images of "
            f"{n_features} numbers, as rows of X are, got {shape!r}."
        )
    return H, W, C


def shape_of(name: str, given: Any) -> tuple[int, ...]:
    """As a tuple of positive integers."""
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in given):
        raise ValueError(f"{name} must be positive integers, got {given!r}.")
    return tuple(int(n) for n in given)


def responses_of(posterior: SparsePosterior, X: Tensor) -> Tensor:
    """E w_p g(x^[p]) of every patch, (N, J, P)."""
    parts = parts_of(posterior.model)
    blocks = posterior.weights.mean.split(posterior.model.features.blocks)
    m = torch.cat([block[:n] for block, n in zip(blocks, parts[0].blocks, strict=True)])
    features = copy.deepcopy(parts[0])
    features.covariances = single = SinglePatches(cast(PatchCovariances, features.covariances))
    basis = features.basis(single.rows_of(X))
    mean = basis.phi @ m
    mean = mean if basis.shift is None else mean + basis.shift
    return mean.view(len(X), -1, mean.shape[1])
