"""Convolutional Gaussian processes: sums of responses to the patches of an image.

van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017; Blomqvist,
Kaski & Heinonen, "Deep convolutional Gaussian processes", 2018; Dutordoir, van der Wilk, Artemev &
Hensman, "Bayesian image classification with deep convolutional Gaussian processes", AISTATS 2020;
Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020, 6.2.

    f(x) = Σ_p w_p g(x^[p], t_p) + g₀(x),   g ~ GP(0, k_g · k_loc),   g₀ ~ GP(0, k₀)       (F9, F10)

with x^[p] the patches of an image, and t_p their places. Inducing variables are values of g at
inducing patches and places, and of g₀ at inducing images. Only covariances are new
(:mod:`skgpstoch.features.patches`, :mod:`skgpstoch.features.sums`): posteriors, losses and solvers
are those of :mod:`skgpstoch.methods.svgp` and :mod:`skgpstoch.methods.solvegp`. Hidden images are
made by the layers of :mod:`skgpstoch.models.patch_layers` (F11). The builder of the features is
:mod:`skgpstoch.recipes.patches`.
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
from ..estimators.streams import VariationalClassifier, VariationalRegressor
from ..likelihoods.base import class_likelihood, regression_likelihood
from ..models.patch_responses import responses_of
from ..models.sparse import SparsePosterior
from ..recipes.patches import OF_PATCHES, Patches
from ..recipes.variational import VariationalRecipe


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
    n_orthogonal : int, sequence of int or "auto", default="auto"
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

    _first_parameters: ClassVar[tuple[str, ...]] = ("patch_shape",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "image_shape": [tuple, list, groups.AUTO],
        "patch_shape": [tuple, list, groups.POSITIVE_INTEGER, groups.AUTO],
        "stride": [groups.POSITIVE_INTEGER, groups.AUTO],
        "channels": [StrOptions({"joint", "separate"})],
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
        "hidden_channels": ["array-like", groups.POSITIVE_INTEGER],
        "hidden_patch_shape": [tuple, list, groups.POSITIVE_INTEGER, groups.AUTO],
        "hidden_stride": [groups.POSITIVE_INTEGER],
        "patch_correlation": [StrOptions({"weights", "none"})],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPParameters(
    groups.KernelParameters,
    variational.LossParameters,
    HiddenImageParameters,
    variational.DrawParameters,
    ImageParameters,
    variational.OrthogonalParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share."""


def mean_responses(self: BaseGP, X: Any) -> np.ndarray:
    """Return which part of an image speaks for which latent function.

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

    Images are rows of X, flattened, as scikit-learn has them.

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

    def _recipe(self) -> VariationalRecipe:
        likelihood = class_likelihood(self.likelihood, len(self.classes_))
        return VariationalRecipe.chosen(self, likelihood, Patches.of)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ConvolutionalGPRegressor(
    ConvolutionalGPParameters, variational.RegressionParameters, VariationalRegressor
):
    """Regression on images by the responses of a Gaussian process to their patches.

    Images are rows of X, flattened, as scikit-learn has them.

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
    ...     global_kernel=None, n_inducing=10, max_iter=5, random_state=0
    ... )
    >>> bool(model.fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.9)
    True
    """

    patch_responses = mean_responses

    def _recipe(self) -> VariationalRecipe:
        if self.noise == "input" and np.size(self.hidden_channels):
            raise ValueError("noise must be 'constant' with hidden_channels, got 'input'.")
        likelihood = regression_likelihood(self.likelihood)
        return VariationalRecipe.chosen(self, likelihood, Patches.of)
