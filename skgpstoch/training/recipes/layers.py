"""Build the layers of a deep model: the inner layers, and the features of the last layer.

An inner layer has kernels, a mean function, inducing points and draws. The builder is for
:class:`~skgpstoch.training.recipes.variational.VariationalRecipe`; the layers are those of
:mod:`skgpstoch.models.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils import Bunch
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...data.rows import Rows
from ...likelihoods.base import Likelihood
from ...likelihoods.counts import prior_variance_limit
from ...models.features.inducing import InducingFeatures
from ...models.layers import MOST_NORMALS, DeepFeatures, GPLayer
from ...models.sparse import SparseModel
from .feature_builder import USUAL_BATCH, FeatureSizes
from .fitted import Fitted
from .inducing import InducingBuilder, make_features
from .kernel_choice import input_unit, make_kernel, named_kernel
from .plan import Sizes, Start, positive_integers
from .points import arrays_of_points
from .recipe import Problem
from .variational import bound_of, prior_blocks
from .variational_plan import VariationalChoices

LAYER_POINTS = 128  # most points per layer for "auto"
MOST_HIDDEN = 100
"""Most functions of an inner layer for "auto"; from more columns a layer reads as many components.

Components hide which columns matter. *Measured* on 300 rows of 60 columns (NLPD with 30 and with 60
functions, two seeds each): two columns that matter .23, .16 and −.06, −.09; two directions 1.17,
1.02 and 1.13, .87; four factors .08, .01 and .06, .06. A fit takes no longer, and from 300 columns
one with 100 functions 7 % longer than one with 30, the usual number (Salimbeni & Deisenroth, 2017).
"""
HIDDEN_VARIANCE = 1e-2  # most prior variance of an inner layer, in units of the layer below
START_DIVERGENCE = 0.25  # nats per row: starting divergence that each inner layer may have
LEAST_ROOT = 1e-5  # least starting root of S in inner layers, practically no uncertainty
START_VARIANCE = 1e-4  # most posterior variance at the start, in units of the layer below
NOISE = 1e-6  # noise variance of an inner layer, in units of the layer below
NARROWEST = 1e-2  # least length-scale of an inner layer, in standard deviations of the layer below
DRAWN_ROWS = 1500  # with fewer rows, a step draws each row more than once
MOST_DRAWS = 10
PREDICTIVE_DRAWS = 64  # draws in predictions, an even number

OF_LAYERS = (
    "kernel",
    "n_layers",
    "hidden_dims",
    "hidden_kernel",
    "posterior",
)
"""Parameters that must not change before a warm start, because it continues the fitted layers."""


def drawn(features: DeepFeatures, n_samples: int | str, n_rows: int) -> DeepFeatures:
    """Set how often the hidden layers are drawn for so many rows, in place."""
    auto = max(1, min(MOST_DRAWS, math.ceil(DRAWN_ROWS / n_rows)))
    return features.with_draws(auto if n_samples == "auto" else int(n_samples), PREDICTIVE_DRAWS)


@dataclass(frozen=True, kw_only=True)
class Layers(InducingBuilder):
    """Inducing points in every layer; `kernel` is the kernel of the last layer.

    The fields are parameters of :class:`skgpstoch.DeepGPRegressor`.
    """

    n_layers: int = 2
    n_samples: int | str = "auto"
    hidden_dims: Any = "auto"
    hidden_kernel: sk.Kernel | None = None

    steps = (2000, 60, 20_000)

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        return super().of(parameters, **{"n_layers": int(parameters.n_layers)} | decided)

    # ---- what is known before ----------------------------------------------------------------

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalChoices, start: Start | None
    ) -> FeatureSizes:
        self.widths(sizes.n_features)
        M, M2, *_ = super().sizes(sizes, n_untrained, recipe, start)
        if start is None and self.n_inducing == "auto" and isinstance(self.points, str):
            M = min(M, LAYER_POINTS)
        if start is None and self.n_orthogonal == "auto":
            M2 = min(M2, LAYER_POINTS)
        return FeatureSizes(M, M2, USUAL_BATCH)

    def widths(self, n_features: int) -> tuple[int, ...]:
        """Return the number of functions of every inner layer.

        Raises
        ------
        ValueError
            If the parameter is not as many positive integers as there are inner layers.
        """
        n_inner, given = self.n_layers - 1, self.hidden_dims
        if isinstance(given, str):
            return (min(n_features, MOST_HIDDEN),) * n_inner
        if isinstance(given, Integral):
            return (int(given),) * n_inner
        dims = positive_integers("hidden_dims", given)
        if len(dims) != n_inner:
            raise ValueError(
                f"hidden_dims must be a positive integer or a list of {n_inner}, one for "
                f"each of the n_layers - 1 inner layers, got {given!r}."
            )
        return dims

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.n_layers == 1:
            return self.kernel.input_scaling(X, weight, standardizes=True)
        return Scaling.robust(X, weight)

    @property
    def sees_inputs(self) -> bool:
        return self.n_layers == 1

    # ---- features ----------------------------------------------------------------------------

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> DeepFeatures:
        X, rows = problem.X, problem.rows
        if fitted is not None:
            return drawn(fitted_layers(fitted, problem, OF_LAYERS), self.n_samples, rows.n_all)
        most, identity = prior_variance_limit(likelihood, rows), nn.Identity()
        kernel = make_kernel(None, identity, X, rows, most)
        points, others = self.points_of_rows(problem, kernel, identity)
        layers, H = [], X
        for n_functions in self.widths(X.shape[1]):
            W = mean_map(H, rows, n_functions)
            layers.append(self.inner_layer(H, rows, (points, others), W))
            H, points, others = H @ W, points @ W, None if others is None else others @ W
        expression = self.kernel.expression
        if layers and expression is not None:
            kernel = named_kernel("kernel", expression, H.shape[1], "the last hidden layer")
            kernel = kernel.to(H.device)
        else:
            kernel = make_kernel(expression, identity, H, rows, most)
        check_draws_of_layers("hidden_dims", self.hidden_dims, layers)
        both, unit, width = (points, others), input_unit(H, rows), H.shape[1]
        kind = self.is_decoupled, None, self.sets
        last = make_features(kernel, both, unit, width, n_latents, *kind)
        return drawn(DeepFeatures(layers, last), self.n_samples, rows.n_all)

    def inner_layer(
        self, H: Tensor, rows: Rows, both: tuple[Tensor, Tensor | None], W: Tensor
    ) -> GPLayer:
        """Make a layer above H, the means of the layer below; its own mean starts at HW."""
        n_functions = W.shape[1]
        variance = float(rows.mean((H - rows.mean(H)).square()).mean()) or 1.0
        n_weights = n_functions * sum(len(p) for p in both if p is not None)
        root, start = beginning(rows.n_effective, n_weights)
        expression = self.hidden_kernel
        if expression is None:
            default = make_kernel(None, nn.Identity(), H, rows, 1.0)
            expression = hidden_kernel(default, variance, start)
        kernel = named_kernel(
            "hidden_kernel", expression, H.shape[1], "an input of the hidden layer"
        ).to(H.device)
        unit, sets = input_unit(H, rows), self.sets
        features = make_features(kernel, both, unit, H.shape[1], n_functions, sets=sets)
        blocks = prior_blocks(self.posterior, features.blocks)
        return GPLayer(features, W, NOISE * variance, blocks, root)

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        features: DeepFeatures = fitted.posterior.model.features
        layers = described_layers(features.each, *fitted.x_scaling)
        for layer, found in zip(features.inner, layers, strict=False):
            found.mean_map = layer.mean_map.double().numpy()
            found.mean = layer.means.detach().double().numpy()
        attributes = {
            "layers_": layers,
            "inducing_points_": [layer.inducing_points for layer in layers],
            "elbo_": bound_of(fitted),
            "elbo_std_": float(fitted.posterior.error),
        }
        if layers[0].orthogonal_points is not None:
            attributes["orthogonal_points_"] = [layer.orthogonal_points for layer in layers]
        return attributes


# ---- pieces of layers ----------------------------------------------------------------------------


def fitted_layers(fitted: SparseModel, problem: Problem, names: tuple[str, ...]) -> DeepFeatures:
    """Return the layers of a fitted model, to be trained again.

    Raises
    ------
    ValueError
        If one of these parameters has changed since.
    """
    cast(Start, problem.start).check_unchanged(names)
    features = cast(DeepFeatures, fitted.features.to(problem.X))
    features.reopen()  # again, because the jitter depends on the dtype of X
    return features


def check_draws_of_layers(name: str, given: Any, layers: Sequence[GPLayer]) -> None:
    """Raise a ValueError if a draw for one row needs more numbers than a Sobol point has."""
    n_normals = sum(layer.n_normals for layer in layers)
    if n_normals > MOST_NORMALS:
        raise ValueError(
            f"{name}={given!r} is too large: a draw for one row needs {n_normals:,} "
            f"numbers in all hidden layers, but at most {MOST_NORMALS:,} are allowed."
        )


def beginning(n_rows: float, n_weights: int) -> tuple[float, float]:
    """Return the starting root of S and the starting prior variance of an inner layer.

    The variance is in units of the layer below. S starts as small as it can be with a divergence
    of a quarter of a nat per row. If few rows leave S large, the prior variance starts so small
    that the uncertainty does no harm.
    """
    root = max(LEAST_ROOT, math.exp(-START_DIVERGENCE * n_rows / n_weights))
    return root, min(HIDDEN_VARIANCE, START_VARIANCE / root**2)


def hidden_kernel(default: kernels.Kernel, variance: float, start: float) -> sk.Kernel:
    """Return an inner layer's kernel: the default's length-scales and a small constant."""
    scale = kernels.to_sklearn(default).k2.length_scale
    least = NARROWEST * math.sqrt(variance)
    shape = sk.RBF(np.maximum(scale, 2.0 * least), (least, 1e5))
    bounds = (1e-6 * variance, 1e2 * variance)
    return sk.ConstantKernel(start * variance, bounds) * shape


def mean_map(H: Tensor, rows: Rows, n_functions: int) -> Tensor:
    """Return W of a linear mean function H @ W.

    W is the identity, padded with zero columns if there are more functions than inputs. If there
    are fewer, W holds the leading principal components.
    """
    n_inputs = H.shape[1]
    if n_functions >= n_inputs:
        return torch.eye(n_inputs, n_functions, dtype=H.dtype, device=H.device)
    centred = (H - rows.mean(H)).double()
    _, V = torch.linalg.eigh(centred.mT @ rows.weighted(centred))
    W = V.flip(1)[:, :n_functions]
    signs = W.gather(0, W.abs().argmax(0, keepdim=True)).sign()  # the same on every machine
    return (W * signs).to(H)


def described_layers(
    each: Sequence[InducingFeatures], offset: np.ndarray | float, scale: np.ndarray | float
) -> list[Bunch]:
    """Describe layers with NumPy arrays and scikit-learn kernels.

    `offset` and `scale` are the scaling of X, in which the first layer's points are.
    """
    layers = [layer_of(features) for features in each]
    first = layers[0]
    for name in ("inducing_points", "orthogonal_points"):
        if first[name] is not None:
            first[name] = first[name] * scale + offset
    return layers


def layer_of(features: InducingFeatures) -> Bunch:
    """Describe a layer with NumPy arrays and a scikit-learn kernel."""
    points = arrays_of_points(features)
    return Bunch(
        kernel=kernels.to_sklearn(features.kernel),
        inducing_points=points[0],
        orthogonal_points=points[1] if len(points) > 1 else None,
    )
