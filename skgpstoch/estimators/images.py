"""Images that rows of X are, and their patches, as parameters say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ..features.patches import Geometry
from .orthogonal import COVARIANCES
from .parameters import AUTO, POSITIVE_INTEGER, positive_integers

SOME_IMAGES = 64  # that kernels are started from
SMALL_IMAGE = 12  # pixels, up to which patches have 3 from side to side, beyond 5
MOST_PATCHES = 200  # for which "auto" is the least stride
MOST_PAIRED = 10_000  # patches of an image, whose weights are multiplied in pairs
LENGTHS = 100.0  # bounds of length-scales that are started from data, times and divided by


@dataclass(eq=False, repr=False, kw_only=True)
class ImageParameters:
    """Images, and their patches.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel of the responses, on patches in the units of X. None: a constant times an RBF kernel,
        started from the data. A top-level WhiteKernel is the noise.
    image_shape : tuple of int or "auto", default="auto"
        (height, width) or (height, width, channels) of the images that rows of X are, in C order;
        "auto" is a square in grey, or a single line where there is no such square.
    patch_shape : tuple of int, int or "auto", default="auto"
        (height, width) of patches; "auto" is 3 by 3 for images up to 12 pixels wide and high, else
        5 by 5, as far as images reach.
    stride : int or "auto", default="auto"
        Pixels from a patch to the next; "auto" is the least for which there are 200 patches or
        fewer, and leaves no gaps. What no patch reaches, at the lower and right edge as well, only
        the function of the whole image sees.
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
        1,000 patches in all images half of that, as far as there are different ones.
    inducing_points : {"kmeans", "random"} or array-like, default="kmeans"
        Where inducing patches start: centres of clusters of different patches, some of these, or
        given ones, a patch a row, in the units of X, with two more columns, row and column of the
        centre, where there is a location kernel: `inducing_points_` with `inducing_places_` beside
        it. Images of the global function start alike.
    n_orthogonal : int or "auto", default="auto"
        Number M₂ of orthogonal inducing patches; "auto" is `n_inducing`.
    orthogonal_points : array-like or None, default=None
        Where these start, with the columns of `inducing_points`; None: as these.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel on patches.
    location_kernel_, global_kernel_ : sklearn kernel
        The fitted ones, where there are any.
    patch_weights_ : ndarray of shape (n_down, n_across) or (n_down, n_across, n_channels)
        Weights of places, from top to bottom and left to right; 1/J, of J patches, if uniform.
    inducing_points_ : ndarray of shape (n_inducing, n_pixels)
        Inducing patches, in the units of X.
    inducing_places_, orthogonal_places_ : ndarray of shape (n_inducing or n_orthogonal, 2)
        Row and column of their centres, with a location kernel; (h − 1)/2 for the first patch of
        height h.
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

    def _last_images(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        """Shape of what the last layer is given: images, if there are no others."""
        return image

    def _geometry(self, n_features: int) -> Geometry:
        """What "auto" comes to for rows of this width.

        Raises
        ------
        ValueError
            If shapes do not agree.
        """
        image = self._last_images(as_image(self.image_shape, n_features))
        patch = image_patches("patch_shape", self.patch_shape, image[:2])
        separate = self.channels == "separate"
        stride = 1 if self.stride == "auto" else int(self.stride)
        geometry = Geometry(image, patch, stride, separate)
        most = max(patch) if self.stride == "auto" else stride  # beyond, there are gaps
        while geometry.n_patches > MOST_PATCHES and geometry.stride < most:
            geometry = geometry._replace(stride=geometry.stride + 1)
        if geometry.n_patches > MOST_PAIRED:
            raise ValueError(
                f"image_shape={image} has {geometry.n_patches} patches, of {MOST_PAIRED} at most: "
                f"take a larger stride than {geometry.stride}, or larger patches with it."
            )
        return geometry


def image_patches(name: str, given: Any, sides: tuple[int, int]) -> tuple[int, int]:
    """(h, w) of patches of images with these sides, as a parameter says."""
    if isinstance(given, str):
        side = 3 if max(sides) <= SMALL_IMAGE else 5
        return min(side, sides[0]), min(side, sides[1])
    patch = positive_integers(name, (given,) * 2 if isinstance(given, Integral) else given)
    if len(patch) != 2 or patch[0] > sides[0] or patch[1] > sides[1]:
        raise ValueError(
            f"{name} must be two numbers of pixels, at most those of images, {sides}, got "
            f"{given!r}."
        )
    return patch[0], patch[1]


def as_image(shape: Any, n_features: int) -> tuple[int, int, int]:
    """(H, W, C) of rows of this width."""
    if shape == "auto":
        side = math.isqrt(n_features)
        return (side, side, 1) if side * side == n_features else (1, n_features, 1)
    given = positive_integers("image_shape", shape)
    H, W, C = given if len(given) == 3 else (*given, 1) if len(given) == 2 else (0, 0, 0)
    if n_features != H * W * C:
        raise ValueError(
            "image_shape must be (height, width) or (height, width, channels) of images of "
            f"{n_features} numbers, as rows of X are, got {shape!r}."
        )
    return H, W, C


def median_distance(rows: Tensor) -> float:
    """Of some rows that differ from one another; 1 if none do."""
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), 500)).long().to(rows.device)]
    distances = torch.pdist(some)
    distances = distances[distances > 0.0]
    return float(distances.median()) if len(distances) else 1.0
