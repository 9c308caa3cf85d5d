"""Plots of what convolutional Gaussian processes have learned from images.

The plots use only fitted attributes and the method `patch_responses`, so they work for any
estimator that has these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_scalar

from ..data.docstrings import documented
from ..metrics.scores import unwrapped
from .base import FITTED, PLOTTED, Display, draw_outline, draw_place, drawn, fitted_with, show

if TYPE_CHECKING:
    import matplotlib.axes

SHOWN_IMAGES = 20  # most images drawn; with more, X probably is a test set passed by mistake
ASPECT = 1.6  # of a grid of patches, columns to rows


@dataclass(kw_only=True, eq=False, repr=False)
class InducingPatchesDisplay(Display):
    """Inducing patches of a convolutional Gaussian process, the strongest first.

    The title of a patch names the class (or output) with the strongest response, for or against it,
    and that response. The frame on the right is the outline of the image, with the patch at its
    place.

    Parameters
    ----------
    patches : ndarray of shape (n_inducing, height, width, n_channels)
        Inducing patches, in the units of X.
    responses : ndarray of shape (n_inducing, n_latents)
        Response to each patch at its own place, in the units of the latent functions.
    places : ndarray of shape (n_inducing, 2), default=None
        Row and column of each patch's centre, in pixels; None draws no places.
    image_shape : tuple of int, default=None
        Height and width of the images; None draws no places.
    names : sequence of length n_latents, default=None
        Names of the classes or outputs; None writes none.

    Attributes
    ----------
    strengths : ndarray of shape (n_inducing,)
        Largest absolute response of each patch, by which patches are sorted.
    indices_ : ndarray of shape (n_drawn,)
        Patches drawn, in the order of their pictures.
    images_ : list of matplotlib AxesImage
        Images of these patches.
    axes_ : ndarray of shape (n_drawn,)
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    PatchResponsesDisplay : The responses to one image, patch by patch.

    Notes
    -----
    All patches are drawn on one scale, from their smallest to their largest number. Three channels
    are drawn as red, green and blue; any other number of channels side by side.

    As in the model's sum over places, a response is multiplied by the weight of its place. It is
    taken at the grid place nearest to the patch's own, or, if patches have no places, at the grid
    place with the largest weight. Orthogonal inducing patches are not drawn, but the responses
    include their contribution.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skgpstoch import ConvolutionalGPClassifier
    >>> from skgpstoch.display import InducingPatchesDisplay
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = ConvolutionalGPClassifier(n_inducing=10, max_iter=20, random_state=0)
    >>> display = InducingPatchesDisplay.from_estimator(model.fit(X[:100], y[:100]), n_patches=6)
    >>> display.axes_.shape
    (6,)
    """

    patches: NDArray
    responses: NDArray
    places: NDArray | None = None
    image_shape: tuple[int, int] | None = None
    names: Sequence[Any] | NDArray | None = None

    @property
    def strengths(self) -> NDArray:
        """Largest absolute response of each patch."""
        return np.abs(self.responses).max(1)

    @documented(PLOTTED)
    def plot(
        self,
        axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None,
        *,
        n_patches: int = 40,
        **kwargs: Any,
    ) -> InducingPatchesDisplay:
        """Draw the patches.

        Parameters
        ----------
        axes : array of matplotlib Axes, default=None
            Axes to draw on, at least as many as patches; None opens a new figure.
        n_patches : int, default=40
            Number of patches drawn, if there are as many.
        **kwargs : dict
            Keywords for matplotlib's `imshow`.
        """
        check_scalar(n_patches, "n_patches", Integral, min_val=1)
        self.indices_ = np.argsort(-self.strengths, kind="stable")[:n_patches]
        n = len(self.indices_)
        columns = math.ceil(math.sqrt(ASPECT * n))
        grid = self._open_grid(axes, n, (math.ceil(n / columns), columns), (1.0, 0.9))
        low, high = self.patches.min(), self.patches.max()
        self.images_ = []
        for ax, i in zip(grid, self.indices_, strict=True):
            self.images_.append(show(ax, self.patches[i], low, high, **kwargs))
            most = np.abs(self.responses[i]).argmax()
            name = "" if self.names is None else f"{drawn(self.names[most])}: "
            ax.set_title(f"{name}{self.responses[i, most]:+.2g}", fontsize=8, loc="left")
            if self.places is not None and self.image_shape is not None:
                draw_place(ax, self.places[i], self.image_shape, self.patches.shape[1:3])
        return self

    @classmethod
    @documented(FITTED, plot)
    def from_estimator(
        cls,
        estimator: Any,
        *,
        n_patches: int = 40,
        relative: bool = True,
        axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None,
        **kwargs: Any,
    ) -> InducingPatchesDisplay:
        """Draw the patches of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.ConvolutionalGPClassifier` or
            :class:`~skgpstoch.ConvolutionalGPRegressor`; a pipeline that ends in one, or a
            hyperparameter search over either.
        relative : bool, default=True
            Whether to subtract the mean over all classes from the responses of several classes,
            which changes no probability of a softmax.

        Raises
        ------
        TypeError
            If the estimator has no `patch_shape_`, or `n_patches` is not an integer.
        ValueError
            If `n_patches` is not positive, there are too few axes, or the model has hidden images.
        """
        fitted = _shallow_with("patch_shape_", estimator, cls)
        responses = _responses_to_inducing_patches(fitted)
        if relative:
            responses = _relative(fitted, responses)
        display = cls(
            patches=fitted.inducing_points_.reshape(len(responses), *fitted.patch_shape_, -1),
            responses=responses,
            places=getattr(fitted, "inducing_places_", None),
            image_shape=fitted.image_shape_[:2],
            names=_names(fitted, responses.shape[1]),
        )
        return display.plot(axes, n_patches=n_patches, **kwargs)


@dataclass(kw_only=True, eq=False, repr=False)
class PatchResponsesDisplay(Display):
    """Maps that show which parts of an image speak for a class, and which against it.

    Each row shows an image, and a map of its responses for every class (or output). Red speaks for
    the class, blue against it. A map's title gives the probability of the class, or the predicted
    value. Below the map are the sum of its responses and the mean of the latent function, to which
    that sum contributes. The line on a map is the outline of the image.

    Parameters
    ----------
    images : ndarray of shape (n_images, height, width, n_channels)
        Images to draw.
    responses : ndarray of shape (n_images, n_rows, n_columns, n_maps)
        Mean response w_p g(x^[p]) of every patch, with the weight w_p of its place, in the units of
        the latent functions.
    predictions : ndarray of shape (n_images, n_maps)
        Probabilities of the classes, or predicted values.
    patch_shape : tuple of int
        Height and width of patches.
    stride : int, default=1
        Pixels from one patch to the next.
    latent_means : ndarray of shape (n_images, n_maps), default=None
        Posterior means of the latent functions; None writes none.
    classes : sequence of length n_maps, default=None
        Classes of the maps; None: the predictions are values, not probabilities.

    Attributes
    ----------
    images_ : list of matplotlib AxesImage
        Pictures of the images.
    maps_ : ndarray of shape (n_images, n_maps)
        matplotlib AxesImage of the maps.
    colorbar_ : matplotlib Colorbar
        Scale of all maps.
    axes_ : ndarray of shape (n_images, 1 + n_maps)
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    InducingPatchesDisplay : The patches behind the responses.

    Notes
    -----
    A latent function is the sum of its map, the prior mean and, if there is a `global_kernel`, a
    function of the whole image. Compare the sum of the map with the latent mean before you call the
    map an explanation. Latent means are written for classifiers only; those of a regressor are its
    predictions.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skgpstoch import ConvolutionalGPClassifier
    >>> from skgpstoch.display import PatchResponsesDisplay
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = ConvolutionalGPClassifier(n_inducing=10, max_iter=20, random_state=0)
    >>> model.fit(X[:100], y[:100])
    ConvolutionalGPClassifier(max_iter=20, n_inducing=10, random_state=0)
    >>> display = PatchResponsesDisplay.from_estimator(model, X[100:102])
    >>> display.axes_.shape
    (2, 4)
    """

    images: NDArray
    responses: NDArray
    predictions: NDArray
    patch_shape: tuple[int, int]
    stride: int = 1
    latent_means: NDArray | None = None
    classes: Sequence[Any] | NDArray | None = None

    @documented(PLOTTED)
    def plot(
        self,
        axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None,
        *,
        image_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> PatchResponsesDisplay:
        """Draw images and maps.

        Parameters
        ----------
        axes : array of matplotlib Axes, default=None
            Axes to draw on, n_images · (1 + n_maps) of them; None opens a new figure.
        image_kwargs : dict, default=None
            Keywords for matplotlib's `imshow` of the images.
        **kwargs : dict
            Keywords for matplotlib's `imshow` of the maps.
        """
        n, n_maps = self.predictions.shape
        grid = self._open_grid(axes, n * (1 + n_maps), (n, 1 + n_maps), (1.2, 1.5))
        self.axes_ = grid = grid.reshape(n, -1)
        low, high = self.images.min(), self.images.max()
        most = np.abs(self.responses).max() or 1.0
        style = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "extent": self._extent(), **kwargs}
        self.images_ = []
        self.maps_ = np.empty((n, n_maps), dtype=object)
        for i, image in enumerate(self.images):
            self.images_.append(show(grid[i, 0], image, low, high, **(image_kwargs or {})))
            for j, ax in enumerate(grid[i, 1:]):
                self.maps_[i, j] = ax.imshow(self.responses[i, ..., j], **style)
                draw_outline(ax, image)
                ax.set(xticks=[], yticks=[])
                ax.set_title(self._title(i, j), fontsize=8)
                ax.set_xlabel(self._label(i, j), fontsize=8)
        self.colorbar_ = self.figure_.colorbar(
            self.maps_[0, 0], ax=list(grid.flat), label="response", aspect=40, pad=0.02
        )
        return self

    def _extent(self) -> tuple[float, float, float, float]:
        """Return left, right, bottom and top of maps, with responses at their patches' centres."""
        (height, width), (rows, columns) = self.patch_shape, self.responses.shape[1:3]
        left, top = (width - self.stride) / 2, (height - self.stride) / 2
        return left, left + self.stride * columns, top + self.stride * rows, top

    def _title(self, i: int, j: int) -> str:
        value = self.predictions[i, j]
        return f"{value:.3g}" if self.classes is None else f"{drawn(self.classes[j])}: {value:.0%}"

    def _label(self, i: int, j: int) -> str:
        part = f"{self.responses[i, ..., j].sum():+.2g}"
        return part if self.latent_means is None else f"{part} of {self.latent_means[i, j]:+.2g}"

    @classmethod
    @documented(FITTED, plot)
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        relative: bool = True,
        axes: Sequence[matplotlib.axes.Axes] | NDArray | None = None,
        **kwargs: Any,
    ) -> PatchResponsesDisplay:
        """Predict and draw the maps.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.ConvolutionalGPClassifier` or
            :class:`~skgpstoch.ConvolutionalGPRegressor`; a pipeline that ends in one, or a
            hyperparameter search over either. The steps before are applied to X; images are drawn
            as they are in X, unless their number of columns is changed by these.
        X : array-like of shape (n_images, n_features)
            A few images, at most 20.
        classes : array-like of shape (n_maps,), default=None
            Classes whose maps are drawn, in this order; None: all, or, of two classes with one
            latent function, the second.
        relative : bool, default=True
            Whether to subtract the mean over all classes from the maps of several classes, which
            changes no probability of a softmax.

        Raises
        ------
        TypeError
            If the estimator has no `patch_responses`.
        ValueError
            If there are too many images or too few axes, `classes` has one that has no map, or the
            model has hidden images.
        """
        _shallow_with("patch_responses", estimator, cls)
        if np.ndim(X) == 2 and np.shape(X)[0] > SHOWN_IMAGES:
            raise ValueError(f"X must hold at most {SHOWN_IMAGES} images, got {np.shape(X)[0]}.")
        fitted, inputs = unwrapped(estimator, X)
        responses = fitted.patch_responses(inputs)
        means = None
        if is_classifier := hasattr(fitted, "classes_"):
            means = fitted.latent_mean_and_variance(inputs)[0].reshape(len(responses), -1)
        if relative and means is not None:
            responses, means = _relative(fitted, responses), _relative(fitted, means)
        known = _names(fitted, responses.shape[-1]) if is_classifier else None
        drawn = _positions(known, classes)
        predictions = fitted.predict_proba(inputs) if is_classifier else fitted.predict(inputs)
        n, n_latents = len(responses), responses.shape[-1]
        shown = X if np.shape(X) == np.shape(inputs) else inputs
        display = cls(
            images=np.asarray(shown, dtype=float).reshape(n, *fitted.image_shape_),
            responses=responses[..., drawn],
            # The last columns, because one latent function of two classes has the second one's map.
            predictions=predictions.reshape(n, -1)[:, -n_latents:][:, drawn],
            patch_shape=fitted.patch_shape_,
            stride=fitted.stride_,
            latent_means=None if means is None else means[:, drawn],
            classes=None if known is None else known[drawn],
        )
        return display.plot(axes, **kwargs)


def _shallow_with(attribute: str, estimator: Any, display: type) -> Any:
    """Return :func:`fitted_with`; raise a ValueError if the last layer sees hidden images."""
    fitted = fitted_with(attribute, estimator, display)
    if hasattr(fitted, "hidden_layers_"):
        raise ValueError(
            f"{display.__name__} needs a model whose patches are parts of the image, got "
            f"hidden_channels={fitted.hidden_channels!r}, whose last layer looks at hidden "
            "images."
        )
    return fitted


def _names(fitted: Any, n_latents: int) -> NDArray | None:
    """Return each latent function's class or output; a single one has the second of two classes."""
    if hasattr(fitted, "classes_"):
        return fitted.classes_[-n_latents:]
    return None if n_latents == 1 else np.array([f"output {i}" for i in range(n_latents)])


def _relative(fitted: Any, values: NDArray) -> NDArray:
    """Return values (..., P) less their mean over classes, if several classes have functions."""
    if not hasattr(fitted, "classes_") or values.shape[-1] == 1:
        return values
    return values - values.mean(-1, keepdims=True)


def _positions(known: NDArray | None, classes: ArrayLike | None) -> NDArray | slice:
    """Return the positions of `classes` among the classes that have maps."""
    if classes is None:
        return slice(None)
    if known is None:
        raise ValueError(f"classes must be None for a regressor, got {classes!r}.")
    wanted, have = np.atleast_1d(np.asarray(classes)).tolist(), known.tolist()
    if not wanted or any(name not in have for name in wanted):
        raise ValueError(
            f"classes must be some of the classes that have maps, {have}, got {classes!r}."
        )
    return np.array([have.index(name) for name in wanted])


def _responses_to_inducing_patches(fitted: Any) -> NDArray:
    """Return the response to each patch at its place, or where the weight is largest, (M, P).

    For each patch an image is made that has the patch at the nearest grid place.
    """
    patches, weights = fitted.inducing_points_, np.abs(fitted.patch_weights_)
    (H, W, C), (h, w) = fitted.image_shape_, fitted.patch_shape_
    M, grid = len(patches), np.array(weights.shape[:2])
    best = weights if weights.ndim == 2 else weights.max(2)
    if hasattr(fitted, "inducing_places_"):
        corners = (fitted.inducing_places_ - (np.array([h, w]) - 1) / 2) / fitted.stride_
        rows, columns = np.clip(np.rint(corners).astype(int), 0, grid - 1).T  # (M,) each
    else:
        rows, columns = np.tile(np.unravel_index(best.argmax(), best.shape), (M, 1)).T
    images = np.zeros((M, H, W, C))
    for image, patch, row, column in zip(images, patches, rows, columns, strict=True):
        top, left = fitted.stride_ * row, fitted.stride_ * column
        image[top : top + h, left : left + w] = patch.reshape(h, w, -1)  # one channel fills all
    nameless = copy.copy(fitted)  # arrays have no column names
    vars(nameless).pop("feature_names_in_", None)
    found = nameless.patch_responses(images.reshape(M, -1))[np.arange(M), rows, columns]
    if weights.ndim == 2:
        return found
    return found[np.arange(M), weights[rows, columns].argmax(1)]
