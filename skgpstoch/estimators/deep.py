"""Deep models: layers, their kernels, mean functions and points, as parameters say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils import Bunch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling
from ..data.rows import Data, Rows
from ..features.inducing import InducingFeatures
from ..features.points import choose_points
from ..models.deep import DeepPosterior
from ..models.layers import DeepFeatures, GPLayer
from .orthogonal import COVARIANCES, WithOrthogonalPoints
from .parameters import AUTO, POSITIVE_INTEGER, DrawParameters, positive_integers
from .plan import USUAL_BATCH, Plan, epochs
from .sparse import SparseGP
from .sparse_model import (
    both_kinds,
    input_unit,
    make_features,
    make_kernel,
    named_kernel,
)
from .warm_start import check_unchanged

MOST_POINTS = 128  # of a layer, of "auto"
MOST_HIDDEN = 30  # functions of an inner layer, of "auto"
HIDDEN_VARIANCE = 1e-2  # at most, of an inner layer's process, in units of the layer below
START_DIVERGENCE = 0.25  # nats per row that inner layers may start with, each
LEAST_ROOT = 1e-5  # of their S, which is that of a layer without uncertainty
START_NOISE = 1e-4  # variance that they may start with, in units of the layer below
NOISE = 1e-6  # of an inner layer, in these units
NARROWEST = 1e-2  # length-scale of an inner layer, in standard deviations of the layer below
OF_LAYERS = (  # parameters that a warm start cannot do with others of, nor another kernel
    "n_layers",
    "hidden_dims",
    "hidden_kernel",
    "mean_function",
    "posterior",
    "hidden_covariance",
)
STEPS = (2000, 60, 20_000)  # at least, times the rows over those of a minibatch, at most


@dataclass(eq=False, repr=False, kw_only=True)
class DeepParameters(DrawParameters):
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
        them, with a covariance of q's own there or the prior's.
    hidden_covariance : {"shared", "full"}, default="shared"
        Whether functions of an inner layer share the covariance of q, or each has its own.
    n_inducing : int or "auto", default="auto"
        Number M of inducing points of every layer; "auto" is 128, as far as there are rows.
    n_orthogonal : int or "auto", default="auto"
        Number M₂ of orthogonal ones, with posterior="solve" or "odvgp"; "auto" is `n_inducing`, as
        far as there are rows.
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where those of the first layer start: centres of clusters, rows of large variance, random
        rows, or given points in the units of X; those of others start where the mean functions take
        these.
    solver : {"auto", "collapsed", "natural", "adam"}, default="auto"
        Of the last layer: the best q in closed form for a Gaussian likelihood, natural gradients,
        or gradients as for inner layers, where they are all there is.

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
    posterior: str = "svgp"
    hidden_covariance: str = "shared"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_layers": [POSITIVE_INTEGER],
        "hidden_dims": ["array-like", POSITIVE_INTEGER, AUTO],
        "hidden_kernel": [sk.Kernel, None],
        "mean_function": [StrOptions({"linear", "zero"})],
        "posterior": [StrOptions(set(COVARIANCES))],
        "hidden_covariance": [StrOptions({"shared", "full"})],
        "solver": [StrOptions({"auto", "collapsed", "natural", "adam"})],
    }

    def _hidden_dims(self, n_features: int) -> tuple[int, ...]:
        """Functions of every inner layer.

        Raises
        ------
        ValueError
            If these are not as many positive integers as there are inner layers.
        """
        n_inner, given = self.n_layers - 1, self.hidden_dims
        if isinstance(given, str):
            return (min(n_features, MOST_HIDDEN),) * n_inner
        if isinstance(given, Integral):
            return (int(given),) * n_inner
        dims = positive_integers("hidden_dims", given)
        if len(dims) != n_inner:
            raise ValueError(
                f"hidden_dims must be a positive integer or {n_inner} of them, one for each of "
                f"n_layers - 1 inner layers, got {given!r}."
            )
        return dims


@dataclass(eq=False, repr=False, kw_only=True)
class DeepGP(DeepParameters, WithOrthogonalPoints):
    """What regressor and classifier share, before the family in the order of bases."""

    _shape_parameters: ClassVar[tuple[str, ...]] = (
        *SparseGP._shape_parameters,
        *OF_LAYERS,
        "n_orthogonal",
        "orthogonal_points",
        "whiten",
    )

    def _covariance_there(self) -> str | None:
        return COVARIANCES[self.posterior]

    def _batch_needed(self) -> int:
        return USUAL_BATCH

    def _input_scaling(self: Any, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.n_layers == 1:
            return super()._input_scaling(X, weight)  # type: ignore[misc]
        return Scaling.standard(X, weight)

    def _n_points(
        self: Any, n_rows: int, n_given: int, n_untrained: int, start: Any, shares: bool = False
    ) -> tuple[int, int]:
        sizes = super()._n_points(n_rows, n_given, n_untrained, start, shares)
        asked = (self.n_inducing, self.n_orthogonal)
        given = (self.inducing_points, self.orthogonal_points)
        M, M2 = (
            min(n, MOST_POINTS) if n_asked == "auto" and isinstance(points, str | None) else n
            for n, n_asked, points in zip(sizes, asked, given, strict=True)
        )
        return (M, M2) if start is None else sizes

    def _plan(self: Any, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        if getattr(self, "noise", "constant") != "constant":  # which classifiers do not have
            raise ValueError(f"noise must be 'constant' in deep models, got {self.noise!r}.")
        self._check_draws()
        self._hidden_dims(data.X.shape[1])
        plan = super()._plan(data, n_given, start, streams)  # type: ignore[misc]
        if self.max_iter != "auto":
            return plan
        n_trained = len(data) - plan.folds.n_untrained
        least, each, most = STEPS
        n_steps = int(np.clip(each * n_trained / plan.batch_size, least, most))
        return replace(plan, max_iter=epochs(n_steps, n_trained, plan.batch_size))

    # ---- features ----------------------------------------------------------------------------

    def _features(
        self: Any, X: Tensor, rows: Rows, n_latents: int, plan: Plan, fitted: Any, generator: Any
    ) -> Any:
        if fitted is not None:
            check_unchanged(self, ("kernel", *OF_LAYERS))
            features = fitted.features.to(X)
            features.reopen()  # once more: jitter is that of the type of X
            return features.with_draws(*self._draws(len(X)))
        method = self.inducing_points if isinstance(self.inducing_points, str) else "kmeans"
        most = self._make_likelihood().most_prior_variance

        def choose(n_points: int) -> Tensor:
            kernel = make_kernel(None, nn.Identity(), X, rows, most)
            return choose_points(method, X, n_points, kernel, nn.Identity(), generator, rows.weight)

        given = [
            self._start_points(name, X, None) for name in ("inducing_points", "orthogonal_points")
        ]
        shuffles = None if method == "conditional_variance" else generator
        sizes = (plan.n_inducing, plan.n_orthogonal)
        points = list(both_kinds(choose, sizes, given, len(X), shuffles))
        layers, H = [], X
        for n_functions in self._hidden_dims(X.shape[1]):
            W = mean_map(H, rows, n_functions)
            layers.append(self._inner_layer(H, rows, points, W))
            H, points = H @ W, [None if p is None else p @ W for p in points]
        expression = self._split_kernel()[0]
        if layers and expression is not None:
            kernel = named_kernel("kernel", expression, H.shape[1], "the last hidden layer")
            kernel = kernel.to(H.device)
        else:
            kernel = make_kernel(expression, nn.Identity(), H, rows, most)
        self._check_numbers("hidden_dims", layers)
        last = self._map(kernel, points, H, rows, n_latents)
        return DeepFeatures(layers, last, *self._draws(len(X)))

    def _inner_layer(
        self: Any, H: Tensor, rows: Rows, points: Sequence[Tensor | None], W: Tensor
    ) -> GPLayer:
        """One above H, the means of the layer below, that starts at HW."""
        n_functions = W.shape[1]
        variance = float(rows.mean((H - rows.mean(H)).square()).mean()) or 1.0
        n_weights = n_functions * sum(len(p) for p in points if p is not None)
        root, start = beginning(rows.n_effective, n_weights)
        if self.mean_function == "zero":
            start = 1.0  # there is nothing else
        expression = self.hidden_kernel
        if expression is None:
            default = make_kernel(None, nn.Identity(), H, rows, 1.0)
            expression = hidden_kernel(default, variance, start)
        kernel = named_kernel("hidden_kernel", expression, H.shape[1], "a layer's input")
        features = self._map(kernel.to(H.device), points, H, rows, n_functions, inner=True)
        mean = W if self.mean_function == "linear" else torch.zeros_like(W)
        shares = self.hidden_covariance == "shared"
        blocks = self._prior_blocks(features)
        layer = GPLayer(features, mean, NOISE * variance, blocks, shares, root)
        if self.mean_function == "zero":
            layer.start_at_(W)
        return layer

    def _map(
        self: Any,
        kernel: kernels.Kernel,
        points: Sequence[Tensor | None],
        H: Tensor,
        rows: Rows,
        n_outputs: int,
        inner: bool = False,
    ) -> InducingFeatures:
        """P of a layer above H."""
        unit = input_unit(H, rows)
        arguments = (kernel, nn.Identity(), cast(Tensor, points[0]), unit, H.shape[1])
        return make_features(arguments, points[1], n_outputs, self._is_decoupled() and not inner)

    # ---- fitted attributes -------------------------------------------------------------------

    def _set_points(self: Any) -> None:
        features = cast(DeepFeatures, self._model.features)
        self.layers_ = [layer_of(part) for part in features.each]
        for layer, fitted in zip(features.inner, self.layers_, strict=False):
            fitted.mean_map = layer.mean_map.double().numpy()
            fitted.mean = layer.means.detach().double().numpy()
        offset, scale = self._x_scaling
        first = self.layers_[0]
        for name in ("inducing_points", "orthogonal_points"):
            if first[name] is not None:
                first[name] = first[name] * scale + offset
        self.inducing_points_ = [layer.inducing_points for layer in self.layers_]
        self.__dict__.pop("orthogonal_points_", None)
        if first.orthogonal_points is not None:
            self.orthogonal_points_ = [layer.orthogonal_points for layer in self.layers_]

    def _set_fitted(self: Any, plan: Plan) -> None:
        super()._set_fitted(plan)  # type: ignore[misc]
        self.elbo_ = self.log_marginal_likelihood_value_
        self.elbo_std_ = float(cast(DeepPosterior, self.posterior_).error)

    def hidden(self: Any, X: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """What inner layers make of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        layers : list of (mean, std)
            Of every inner layer, arrays of shape (n_samples, n_functions), as the layer above is
            given them: with a linear mean in units of standard deviations of X.

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
        rows, posterior = self._query(X)

        def compute(block: slice) -> tuple[Tensor, ...]:
            moments = cast(DeepPosterior, posterior).hidden(rows[block])
            return tuple(part for mean, var in moments for part in (mean, var.sqrt()))

        found = self._collect(len(rows), compute) if self.n_layers > 1 else []
        return list(zip(found[::2], found[1::2], strict=True))


def beginning(n_rows: float, n_weights: int) -> tuple[float, float]:
    """Where the root of S and the variance of an inner layer start, the latter in units.

    With as little uncertainty as a quarter of a nat per row buys; where that is much, because rows
    are few, with so small a variance that it does no harm.
    """
    root = max(LEAST_ROOT, math.exp(-START_DIVERGENCE * n_rows / n_weights))
    return root, min(HIDDEN_VARIANCE, START_NOISE / root**2)


def hidden_kernel(default: kernels.Kernel, variance: float, start: float) -> sk.Kernel:
    """Of an inner layer: length-scales of the default, and a constant that starts small."""
    scale = kernels.to_sklearn(default).k2.length_scale
    least = NARROWEST * math.sqrt(variance)
    shape = sk.RBF(np.maximum(scale, 2.0 * least), (least, 1e5))
    bounds = (1e-6 * variance, 1e2 * variance)
    return sk.ConstantKernel(start * variance, bounds) * shape


def mean_map(H: Tensor, rows: Rows, n_functions: int) -> Tensor:
    """W of a linear mean function: the identity, principal components, or zeros behind."""
    n_inputs = H.shape[1]
    if n_functions >= n_inputs:
        return torch.eye(n_inputs, n_functions, dtype=H.dtype, device=H.device)
    centred = (H - rows.mean(H)).double()
    _, V = torch.linalg.eigh(centred.mT @ rows.weighted(centred))
    W = V.flip(1)[:, :n_functions]
    signs = W.gather(0, W.abs().argmax(0, keepdim=True)).sign()  # the same on every machine
    return (W * signs).to(H)


def layer_of(features: InducingFeatures) -> Bunch:
    """What a layer has, as NumPy and scikit-learn have it."""
    points = [p.detach().double().numpy() for p in features.all_points()]
    return Bunch(
        kernel=kernels.to_sklearn(features.kernel),
        inducing_points=points[0],
        orthogonal_points=points[1] if len(points) > 1 else None,
    )
