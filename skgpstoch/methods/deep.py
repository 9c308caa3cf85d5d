"""Deep Gaussian processes: Gaussian processes of Gaussian processes.

Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes",
NeurIPS 2017; with orthogonal inducing points in every layer: Shi, Titsias & Mnih, "Sparse
orthogonal variational inference for Gaussian processes", AISTATS 2020, section 4;

    h⁰ = x,   h^ℓ = a^ℓ(h^{ℓ−1}) + g^ℓ(h^{ℓ−1}) + ε,   g^ℓ ~ GP(0, k_ℓ),   f = g^L(h^{L−1}).

Layers are :mod:`skgpstoch.models.layers` (F1, F2), the bound and its closed form for the last
layer :mod:`skgpstoch.models.deep` (F3, F6): given draws of h, the last layer is a sparse model
as any other, with its losses, solvers and likelihoods. The builder of the features is
:mod:`skgpstoch.recipes.layers`.
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
from ..estimators.streams import VariationalClassifier, VariationalRegressor
from ..likelihoods.base import class_likelihood, regression_likelihood
from ..models.deep import DeepPosterior
from ..recipes.layers import OF_LAYERS, Layers
from ..recipes.variational import VariationalRecipe


@dataclass(eq=False, repr=False, kw_only=True)
class LayerParameters:
    """Layers.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel of the last layer, on what the layer below makes of standardised X (on X itself with
        n_layers=1). None: a constant times a Matérn kernel (nu=1.5) with a length-scale for each
        function of the layer below.
    n_layers : int, default=2
        Number of layers, the last one included; of 1 it is a shallow model.
    hidden_dims : int, array-like of int or "auto", default="auto"
        Number of functions in every inner layer; "auto" is the number of features, at most 30.
    hidden_kernel : sklearn kernel or None, default=None
        Kernel of every inner layer, on the layer below, of the first on standardised X. None: a
        constant, which starts small, times an RBF kernel with a length-scale for each input of the
        layer.
    mean_function : {"linear", "zero"}, default="linear"
        Mean of inner layers, which is not trained: the layer below itself, its principal components
        where there are fewer functions, or with zeros behind where there are more. Without one,
        deep processes forget their inputs.
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q in every layer: with inducing points of one kind, or orthogonal ones beside
        them, with a covariance of q's own there or the prior's. `n_orthogonal` and
        `orthogonal_points` are for the latter two.
    hidden_covariance : {"shared", "full"}, default="shared"
        Whether functions of an inner layer share the covariance of q, or each has its own.
    n_inducing : int or "auto", default="auto"
        Number M of inducing points of every layer; "auto" is 128, as far as there are rows.
    n_orthogonal : int, sequence of int or "auto", default="auto"
        Number M₂ of orthogonal ones, with posterior="solve" or "odvgp"; "auto" is `n_inducing`, as
        far as there are rows.
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where those of the first layer start: centres of clusters, rows of large variance, random
        rows, or given points in the units of X; those of others start where the mean functions take
        these.
    solver : {"auto", "collapsed", "natural", "adam"}, default="auto"
        Of the last layer: the best q in closed form for a Gaussian likelihood, natural gradients,
        or gradients as for inner layers, where they are all there is. "auto" is "collapsed" where
        it can be, "adam" where gradients are sampled, else "natural"; `solver_` says which.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is 512.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes 2,000 to 20,000 steps.
    learning_rate_init : float, default=0.1
        Learning rate of Adam, or its maximum with "one-cycle"; three tenths of it are used where
        q's covariance has no closed form.
    early_stopping : bool or "auto", default="auto"
        Keep the iterate that predicts held-out rows best; they rejoin the closing pass. "auto" is
        False: the last iterate is kept.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end.
    dtype : {"float32", "float64"}, default="float32"
        Of the data during training; factorisations and predictions are always float64.

    Attributes
    ----------
    layers_ : list of Bunch
        Of every layer: `kernel` (sklearn kernel), `inducing_points` (ndarray of shape (n_inducing,
        n_inputs)), `orthogonal_points` (or None), and, of inner ones, `mean_map` (ndarray of shape
        (n_inputs, n_functions)) and `mean` (ndarray of shape (n_points, n_functions)), that of
        q(w). Kernels and mean maps of the first layer are for standardised X, its points in the
        units of X; those of others are for what `hidden` returns.
    kernel_ : sklearn kernel
        The last layer's; variances refer to the scaled y of a regressor.
    inducing_points_ : list of ndarray
        Of every layer.
    orthogonal_points_ : list of ndarray
        Of every layer; with posterior="solve" or "odvgp".
    elbo_ : float
        The bound on log p(y | X), in nats, summed over all rows, an estimate; NaN after
        `partial_fit`.
    elbo_std_ : float
        Its standard error, by the draws of hidden layers at the closing pass. Of few rows these are
        points of a Sobol sequence, and their error is less, some third of that. NaN after
        `partial_fit`.
    """

    n_layers: int = 2
    hidden_dims: Any = "auto"
    hidden_kernel: sk.Kernel | None = None
    mean_function: str = "linear"
    hidden_covariance: str = "shared"

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_layers",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_layers": [groups.POSITIVE_INTEGER],
        "hidden_dims": ["array-like", groups.POSITIVE_INTEGER, groups.AUTO],
        "hidden_kernel": [sk.Kernel, None],
        "mean_function": [StrOptions({"linear", "zero"})],
        "hidden_covariance": [StrOptions({"shared", "full"})],
        "solver": [StrOptions({"auto", "collapsed", "natural", "adam"})],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = OF_LAYERS


@dataclass(eq=False, repr=False, kw_only=True)
class DeepGPParameters(
    groups.KernelParameters,
    variational.LossParameters,
    LayerParameters,
    variational.DrawParameters,
    variational.OrthogonalParameters,
    variational.InducingParameters,
):
    """Parameters that regressor and classifier share."""


def hidden_layers(self: BaseGP, X: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what inner layers make of X.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Inputs.

    Returns
    -------
    layers : list of (mean, std)
        Of every inner layer, arrays of shape (n_samples, n_functions), as the layer above is given
        them: with a linear mean in units of standard deviations of X.

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
    >>> model = DeepGPRegressor(n_inducing=10, max_iter=5, random_state=0).fit(X, X[:, 0] > 0)
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
class DeepGPRegressor(DeepGPParameters, variational.TargetParameters, VariationalRegressor):
    """Deep Gaussian-process regression by doubly stochastic variational inference.

    For functions whose scale changes with the input. On tables of many rows it is slower than
    shallow processes with a network, and seldom better.

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

    def _recipe(self) -> VariationalRecipe:
        likelihood = regression_likelihood(self.likelihood)
        return VariationalRecipe.chosen(self, likelihood, Layers.of)


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

    def _recipe(self) -> VariationalRecipe:
        likelihood = class_likelihood(self.likelihood, len(self.classes_))
        return VariationalRecipe.chosen(self, likelihood, Layers.of)
