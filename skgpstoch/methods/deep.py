"""Deep Gaussian processes: Gaussian processes of Gaussian processes.

Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes",
NeurIPS 2017; with orthogonal inducing points in every layer: Shi, Titsias & Mnih, "Sparse
orthogonal variational inference for Gaussian processes", AISTATS 2020, section 4;

    h⁰ = x,   h^ℓ = a^ℓ(h^{ℓ−1}) + g^ℓ(h^{ℓ−1}) + ε,   g^ℓ ~ GP(0, k_ℓ),   f = g^L(h^{L−1}).

Layers are :mod:`skgpstoch.models.layers` (F1, F2), the bound and its closed form for the last
layer :mod:`skgpstoch.models.deep` (F3, F6): given draws of h, the last layer is a sparse model
like any other, with the same losses, solvers and likelihoods. The builder of the features is
:mod:`skgpstoch.training.recipes.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.base import BaseGP
from ..estimators.docs import public_estimator
from ..estimators.variational import VariationalClassifier, VariationalRegressor
from ..models.deep import DeepPosterior
from ..training.recipes.layers import OF_LAYERS, Layers


@dataclass(eq=False, repr=False, kw_only=True)
class LayerParameters:
    """Layers.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel of the last layer. Its inputs are what the layers below make of standardised X, or X
        itself with n_layers=1. None: a constant times a Matérn kernel (nu=1.5) with a length-scale
        for each function of the layer below; with Gaussian noise, they and the noise have a weak
        prior (:mod:`skgpstoch.models.hyper_prior`), as in SVGPRegressor.
    n_layers : int, default=2
        Number of layers, including the last; 1 is a shallow model.
    hidden_dims : int, array-like of int or "auto", default="auto"
        Number of functions in every inner layer; "auto" is the number of features, at most 100.
    hidden_kernel : sklearn kernel or None, default=None
        Kernel of every inner layer, on the outputs of the layer below; the first layer's is on
        standardised X. None: a constant, which starts small, times an RBF kernel with a
        length-scale for each input of the layer.
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q in every layer. "svgp": inducing points alone. "solve": inducing points and
        orthogonal ones, with a covariance of q's own at both. "odvgp": the same points, but q keeps
        the prior's covariance at the orthogonal ones. `n_orthogonal` is for "solve" and "odvgp".
    n_samples : int or "auto", default="auto"
        Number S of draws of the hidden layers for each row and step. "auto" is 1, but up to 10 if
        there are fewer than 1,500 rows, because draws stand in for rows. With loss="log", several
        draws form one mixture.
    n_inducing : int or "auto", default="auto"
        Number M of inducing points in every layer; "auto" is 128, or fewer if rows are few.
    n_orthogonal : int, sequence of int or "auto", default="auto"
        Number M₂ of orthogonal inducing points, with posterior="solve" or "odvgp"; "auto" is
        `n_inducing`, or fewer if rows are few.
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where the inducing points of the first layer start: "kmeans", centres of clusters;
        "conditional_variance", rows of large conditional variance; "random", random rows; or an
        array of points, in the units of X. Those of other layers start where the mean functions
        take these points.
    solver : {"auto", "collapsed", "natural", "adam"}, default="auto"
        Solver of the last layer. "collapsed": the best q in closed form, for a Gaussian likelihood.
        "natural": natural gradients. "adam": gradient steps, as inner layers always have. "auto" is
        "collapsed" where that is possible, "adam" if gradients are sampled, else "natural";
        `solver_` says which.
    batch_size : int or "auto", default="auto"
        Number of rows per minibatch; "auto" is 512.
    max_iter : int or "auto", default="auto"
        Number of epochs; "auto" makes 2,000 to 20,000 steps.
    learning_rate_init : float, default=0.1
        Learning rate of Adam, or its maximum with learning_rate="one-cycle". Where q's covariance
        has no closed form, three tenths of it are used.
    early_stopping : bool or "auto", default="auto"
        Whether to keep the iterate that predicts held-out rows best; the closing pass then uses
        these rows too. "auto" is False: keep the last iterate.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the data during training; factorisations and predictions are always in float64.

    Attributes
    ----------
    layers_ : list of Bunch
        Fitted parts of every layer: `kernel` (sklearn kernel), `inducing_points` (ndarray of shape
        (n_inducing, n_inputs)), `orthogonal_points` (or None). Inner layers also have `mean_map`
        (ndarray of shape (n_inputs, n_functions)) and `mean`, the mean of q(w) (ndarray of shape
        (n_points, n_functions)). In the first layer, kernel and mean map are for standardised X,
        and points are in the units of X. In other layers, all are for what `hidden` returns.
    kernel_ : sklearn kernel
        The kernel of the last layer; variances refer to the scaled y of a regressor.
    inducing_points_ : list of ndarray
        The fitted inducing points of every layer.
    orthogonal_points_ : list of ndarray
        The fitted orthogonal points of every layer; only with posterior="solve" or "odvgp".
    elbo_ : float
        Estimate of the bound on log p(y | X), in nats, summed over all rows; NaN after
        `partial_fit`.
    elbo_std_ : float
        Standard error of `elbo_`, due to the draws of hidden layers in the closing pass. For few
        rows the draws are points of a Sobol sequence, and the error is smaller: a third of this or
        less. NaN after `partial_fit`.
    """

    n_layers: int = 2
    hidden_dims: Any = "auto"
    hidden_kernel: sk.Kernel | None = None
    n_samples: int | str = "auto"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_layers",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_layers": [groups.POSITIVE_INTEGER],
        "hidden_dims": ["array-like", groups.POSITIVE_INTEGER, groups.AUTO],
        "hidden_kernel": [sk.Kernel, None],
        "n_samples": [groups.POSITIVE_INTEGER, groups.AUTO],
        "solver": [StrOptions({"auto", "collapsed", "natural", "adam"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = OF_LAYERS


@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPParameters(
    variational.LossParameters,
    LayerParameters,
    variational.OrthogonalParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share."""


def hidden_layers(self: BaseGP, X: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the outputs of the inner layers at X.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Inputs.

    Returns
    -------
    layers : list of (mean, std)
        For each inner layer, arrays of shape (n_samples, n_functions): the inputs of the layer
        above, including the linear mean, in units of the standard deviations of X.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.
    ValueError
        If X has not as many features as in `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import DeepGPRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = DeepGPRegressor(n_inducing=10, max_iter=20, random_state=0).fit(X, X[:, 0] > 0)
    >>> [(mean.shape, std.shape) for mean, std in model.hidden(X)]
    [((50, 1), (50, 1))]
    """
    rows, queried = self._query(X)
    posterior = cast(DeepPosterior, queried)
    if not posterior.features.inner:
        return []

    def compute(block: slice) -> tuple[Tensor, ...]:
        moments = posterior.hidden(rows[block])
        return tuple(part for mean, var in moments for part in (mean, var.sqrt()))

    parts = self._collect(len(rows), compute)
    return list(zip(parts[::2], parts[1::2], strict=True))


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPRegressor(DeepGPParameters, variational.RegressionParameters, VariationalRegressor):
    """Deep Gaussian-process regression by doubly stochastic variational inference.

    It suits functions whose scale changes with the input. On tables with many rows it is slower
    than shallow processes with a network, and seldom better.

    See Also
    --------
    SVGPRegressor : One layer.
    SCGDGaussianProcessRegressor : Networks with an exact marginal likelihood.

    References
    ----------
    .. [1] H. Salimbeni, M. Deisenroth, "Doubly stochastic variational inference for deep Gaussian
       processes", NeurIPS 2017.
    .. [2] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import DeepGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (100, 1))
    >>> y = np.sign(X[:, 0]) + 0.05 * rng.standard_normal(100)
    >>> model = DeepGPRegressor(n_inducing=10, max_iter=100, random_state=0).fit(X, y)
    >>> np.round(model.predict([[-0.5], [0.5]]), 1)
    array([-1.,  1.])
    """

    hidden = hidden_layers

    _builder = Layers


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPClassifier(
    DeepGPParameters, variational.ClassificationParameters, VariationalClassifier
):
    """Deep Gaussian-process classification by doubly stochastic variational inference.

    See Also
    --------
    SVGPClassifier : One layer.
    ConvolutionalGPClassifier : For images.

    References
    ----------
    .. [1] H. Salimbeni, M. Deisenroth, "Doubly stochastic variational inference for deep Gaussian
       processes", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import DeepGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DeepGPClassifier(n_inducing=10, max_iter=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    """

    hidden = hidden_layers

    _builder = Layers
