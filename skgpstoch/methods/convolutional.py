"""Convolutional Gaussian processes: sums of responses to the patches of an image.

van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017; Blomqvist,
Kaski & Heinonen, "Deep convolutional Gaussian processes", 2018; Dutordoir, van der Wilk, Artemev &
Hensman, "Bayesian image classification with deep convolutional Gaussian processes", AISTATS 2020;
Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020, 6.2.

    f(x) = Σ_p w_p g(x^[p], t_p) + g₀(x),   g ~ GP(0, k_g · k_loc),   g₀ ~ GP(0, k₀)       (F9, F10)

with x^[p] the patches of an image, and t_p their places. Inducing variables are values of g at
inducing patches and places, and of g₀ at inducing images. Only covariances are new
(:mod:`skgpstoch.models.features.patches`, :mod:`skgpstoch.models.features.sums`): posteriors,
losses and solvers are those of :mod:`skgpstoch.methods.svgp` and :mod:`skgpstoch.methods.solvegp`.
Hidden images are made by the layers of :mod:`skgpstoch.models.patch_layers` (F11). The builder of
the features is :mod:`skgpstoch.training.recipes.patches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions

from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.base import BaseGP
from ..estimators.docs import public_estimator
from ..estimators.variational import VariationalClassifier, VariationalRegressor
from ..models.patch_responses import responses_of
from ..models.sparse import SparsePosterior
from ..training.recipes.patches import OF_PATCHES, Patches


@dataclass(eq=False, repr=False, kw_only=True)
class ImageParameters:
    """Images, and their patches.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel of the responses, on patches in the units of X. None: a constant times an RBF kernel,
        whose hyper-parameters start from the data. A top-level WhiteKernel is the noise.
    image_shape : tuple of int or "auto", default="auto"
        (height, width) or (height, width, channels) of the images that the rows of X are, in C
        order. "auto" is a square image in grey, or a single line if the number of columns is not a
        square.
    patch_shape : tuple of int, int or "auto", default="auto"
        (height, width) of patches. "auto" is 3 by 3 for images up to 12 pixels wide and high, else
        5 by 5, cut to the size of the images.
    stride : int or "auto", default="auto"
        Pixels from one patch to the next. "auto" is the smallest stride that gives at most 200
        patches, but leaves no gaps. Only the function of the whole image sees pixels that no patch
        reaches, which may be at the lower and right edges too.
    patch_weights : {"learned", "uniform"}, default="learned"
        Weights of the responses in their sum: one for each place ("learned"), or the same for all
        ("uniform").
    location_kernel : sklearn kernel, "auto" or None, default="auto"
        Kernel on the place (row, column) of a patch, in pixels, so that a response depends on it as
        well as on the patch. "auto" is a Matérn kernel (nu=1.5) that starts with a length-scale of
        3 pixels. None: a patch has the same response everywhere.
    global_kernel : sklearn kernel, "auto" or None, default="auto"
        Kernel of a function of the whole image that is added to the sum. "auto" is a constant times
        an RBF kernel with one length-scale. None: there is no such function.
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q. "svgp": inducing patches alone. "solve": inducing patches and orthogonal
        ones, with a covariance of q's own at both. "odvgp": the same patches, but q keeps the
        prior's covariance at the orthogonal ones. `n_orthogonal` is for "solve" and "odvgp".
    n_inducing : int or "auto", default="auto"
        Number M of inducing patches. The global function has as many inducing images, but at most
        one for each row. "auto" is 512 for a Gaussian likelihood and 256 for others, half of that
        if all images together have up to 1,000 patches, and at most the number of different
        patches.
    inducing_points : {"kmeans", "random"} or array-like, default="kmeans"
        Where inducing patches start: "kmeans", centres of clusters of different patches; "random",
        some of these patches; or an array with a patch in each row, in the units of X. With a
        location kernel such an array has two more columns, the row and the column of the patch's
        centre: `inducing_points_` with `inducing_places_` beside it. Images of the global function
        start likewise.
    n_orthogonal : int, sequence of int or "auto", default="auto"
        Number M₂ of orthogonal inducing patches; "auto" is `n_inducing`.

    Attributes
    ----------
    kernel_ : sklearn kernel
        The fitted kernel on patches.
    location_kernel_, global_kernel_ : sklearn kernel
        The fitted kernels, if there are any.
    patch_weights_ : ndarray of shape (n_down, n_across)
        Weights of the places, from top to bottom and left to right; 1/J each, of J patches, if
        uniform.
    inducing_points_ : ndarray of shape (n_inducing, n_pixels)
        The fitted inducing patches, in the units of X.
    inducing_places_, orthogonal_places_ : ndarray of shape (n_inducing or n_orthogonal, 2)
        Row and column of the patches' centres, with a location kernel; (h − 1)/2 for the first
        patch of height h.
    global_points_ : ndarray of shape (n_inducing, n_features)
        Inducing images of the global function, in the units of X.
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_pixels)
        The fitted orthogonal patches, in the units of X; only with posterior="solve" or "odvgp".
    image_shape_, patch_shape_, stride_ : tuple of int, tuple of int, int
        The values that were used.
    """

    image_shape: Any = "auto"
    patch_shape: Any = "auto"
    stride: int | str = "auto"
    patch_weights: str = "learned"
    location_kernel: sk.Kernel | str | None = "auto"
    global_kernel: sk.Kernel | str | None = "auto"

    _first_parameters: ClassVar[tuple[str, ...]] = ("patch_shape",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "image_shape": [tuple, list, groups.AUTO],
        "patch_shape": [tuple, list, groups.POSITIVE_INTEGER, groups.AUTO],
        "stride": [groups.POSITIVE_INTEGER, groups.AUTO],
        "patch_weights": [StrOptions({"learned", "uniform"})],
        "location_kernel": [sk.Kernel, groups.AUTO, None],
        "global_kernel": [sk.Kernel, groups.AUTO, None],
        "inducing_points": [StrOptions({"kmeans", "random"}), "array-like"],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = OF_PATCHES


@dataclass(eq=False, repr=False, kw_only=True)
class HiddenImageParameters:
    """Hidden images.

    Parameters
    ----------
    hidden_channels : int or array-like of int, default=()
        Number of channels of the images that every inner layer makes of the images below; () is a
        shallow model without inner layers. What is fitted of the last layer (`inducing_points_`,
        `patch_weights_` and the others) is then of hidden images, in their units. batch_size="auto"
        is the number of images that have 65,536 patches in an inner layer, at most 512. Inner
        layers are not possible with solver="lbfgs", or with points of your own. They see patches
        as large as patch_shape="auto", one pixel apart. A step draws each image's hidden images
        once, or up to 10 times if all images together have fewer than 1,500 patches.
    patch_correlation : {"weights", "none"}, default="weights"
        How to draw hidden images. "weights": with functions that the patches of an image share, so
        that only their residuals are independent. "none": every pixel from its own marginal, as
        published, which gives no bound on the evidence.

    Attributes
    ----------
    hidden_layers_ : list of Bunch
        Fitted parts of every inner layer: `kernel` (sklearn kernel; that of the first layer is on
        scaled pixels), `inducing_points` and `orthogonal_points` (patches, those of the first layer
        in the units of X; or None), `patch_shape`, `stride`, and `image_shape` (of the images that
        it makes). Only with `hidden_channels`.
    elbo_std_ : float
        Standard error of `log_marginal_likelihood_value_`, due to the draws of hidden layers, in
        nats. Only with `hidden_channels`.
    """

    hidden_channels: Any = ()
    patch_correlation: str = "weights"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_channels": ["array-like", groups.POSITIVE_INTEGER],
        "patch_correlation": [StrOptions({"weights", "none"})],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPParameters(
    variational.LossParameters,
    HiddenImageParameters,
    ImageParameters,
    variational.OrthogonalParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share."""


def mean_responses(self: BaseGP, X: Any) -> np.ndarray:
    """Return how much each patch of an image contributes to each latent function.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Images.

    Returns
    -------
    responses : ndarray of shape (n_samples, n_down, n_across, n_latents)
        Mean of w_p g(x^[p]) for every patch, in the units of the latent functions (for a
        regressor, those of y). The latent mean is their sum over the patches, plus the prior
        mean and the mean of the function of the whole image. With `hidden_channels`, patches are
        those of the last hidden images.

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
    >>> model = ConvolutionalGPClassifier(n_inducing=10, max_iter=20, random_state=0)
    >>> model.fit(X[:100], y[:100]).patch_responses(X[:2]).shape
    (2, 6, 6, 3)
    """
    rows, queried = self._query(X)
    posterior = cast(SparsePosterior, queried)
    (found,) = self._collect(len(rows), lambda block: (responses_of(posterior, rows[block]),))
    found *= self._y_scaling.scale
    return found.reshape(len(rows), *vars(self)["patch_weights_"].shape, -1)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPClassifier(
    ConvolutionalGPParameters, variational.ClassificationParameters, VariationalClassifier
):
    """Classification of images by the responses of a Gaussian process to their patches.

    Each row of X is a flattened image, as in scikit-learn's datasets.

    See Also
    --------
    SVGPClassifier : Kernels on whole images, or anything else.

    References
    ----------
    .. [1] M. van der Wilk, C. E. Rasmussen, J. Hensman, "Convolutional Gaussian processes", NeurIPS
       2017.
    .. [2] V. Dutordoir, M. van der Wilk, A. Artemev, J. Hensman, "Bayesian image classification
       with deep convolutional Gaussian processes", AISTATS 2020.
    .. [3] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skgpstoch import ConvolutionalGPClassifier
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = ConvolutionalGPClassifier(n_inducing=20, max_iter=20, random_state=0)
    >>> bool(model.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.95)
    True
    """

    patch_responses = mean_responses

    _builder = Patches


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPRegressor(
    ConvolutionalGPParameters, variational.RegressionParameters, VariationalRegressor
):
    """Regression on images by the responses of a Gaussian process to their patches.

    Each row of X is a flattened image, as in scikit-learn's datasets.

    See Also
    --------
    SVGPRegressor : Kernels on whole images, or anything else.

    References
    ----------
    .. [1] M. van der Wilk, C. E. Rasmussen, J. Hensman, "Convolutional Gaussian processes", NeurIPS
       2017.
    .. [2] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import ConvolutionalGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = (rng.random((200, 64)) < 0.1).astype(float)  # 8 by 8, some pixels of which are on
    >>> y = X.sum(1) + 0.1 * rng.standard_normal(200)
    >>> model = ConvolutionalGPRegressor(
    ...     global_kernel=None, n_inducing=10, max_iter=10, random_state=0
    ... )
    >>> bool(model.fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.9)
    True
    """

    patch_responses = mean_responses

    _builder = Patches
