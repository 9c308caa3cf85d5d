"""Compute feature maps in an ONNX graph: φ(x), k(x, x) and the shift of the mean."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from onnx import TensorProto
from torch import nn

from ..models.features import basis_functions, fourier, network, orthogonal, sums
from ..models.features.base import FeatureMap, JoinedFeatures
from ..models.features.inducing import Covariances, InducingFeatures
from .graph import MOST_IN_GRAPH, CannotExport, Value
from .kernels import covariance, number
from .series import normal_cdf

ACTIVATED = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid"}


class FeatureValues(NamedTuple):
    """The values of a feature map at rows; see :class:`skgpstoch.models.features.base.Basis`."""

    phi: Value  # (N, D)
    prior: Value  # (N, 1)
    shift: Value | None = None  # (N, P)

    def residual(self) -> Value:
        """Return ρ(x) = k(x, x) − ‖φ‖², (N, 1)."""
        return (self.prior - self.phi.square().sum(1)).at_least(0.0)


# ---- networks ------------------------------------------------------------------------------------


@functools.singledispatch
def layer(module: Any, X: Value) -> Value:
    """Return the output of a module, (N, D), or (K, N, D) for K members."""
    raise CannotExport(module)


@layer.register
def _(module: nn.Identity, X: Value) -> Value:
    return X


@layer.register
def _(module: nn.Sequential, X: Value) -> Value:
    for part in module:
        X = layer(part, X)
    return X


@layer.register
def _(module: nn.Linear, X: Value) -> Value:
    Y = X @ number(module.weight).T
    return Y if module.bias is None else Y + number(module.bias)


@layer.register
def _(module: network.MemberLinear, X: Value) -> Value:
    return X @ number(module.weight) + number(module.bias)


@layer.register
def _(module: network.OneMember, X: Value) -> Value:
    return X.squeeze(0)


@layer.register
def _(module: network.InputScales, X: Value) -> Value:
    return X * number(module.input_scale)


@layer.register
def _(module: network.PeriodicInputs, X: Value) -> Value:
    """Return waves and inputs side by side."""
    n = len(module.columns)
    columns = range(n) if module.of_all else module.columns.tolist()  # as in a prediction
    X = X + np.zeros((len(module.frequency), 1, 1))  # for every member
    frequency, phase = (2.0 * math.pi * number(module.frequency), number(module.phase))
    parts = []
    for j, column in enumerate(columns):
        angle = X.columns([column], axis=2) * frequency[:, None, j] + phase[:, None, j]
        parts.append(angle.map("Cos") @ number(module.weight)[:, j])
    waves = X.graph.concat(parts, 2)
    if module.is_mixed:
        waves = waves * number(module.share)
    return X.graph.concat([waves, X], 2)


@layer.register(nn.ReLU)
@layer.register(nn.Tanh)
@layer.register(nn.Sigmoid)
def _(module: nn.Module, X: Value) -> Value:
    return X.map(next(name for kind, name in ACTIVATED.items() if isinstance(module, kind)))


@layer.register
def _(module: nn.SiLU, X: Value) -> Value:
    return X * X.map("Sigmoid")


@layer.register
def _(module: nn.GELU, X: Value) -> Value:
    if module.approximate != "none":
        raise CannotExport(f"GELU(approximate={module.approximate!r})")
    return X * normal_cdf(X)


# ---- feature maps --------------------------------------------------------------------------------


@functools.singledispatch
def basis(features: Any, X: Value) -> FeatureValues:
    """Return the values of a feature map at rows (N, d)."""
    raise CannotExport(features)


def finite(features: FeatureMap, members: Value) -> FeatureValues:
    """Return the values of finite features, from members' features (K, N, D), which are joined."""
    K = features.n_members
    parts = [members.columns([k], axis=0).squeeze(0) for k in range(K)]
    phi = members.graph.concat(parts, 1) * (features.amplitude / math.sqrt(K))
    return FeatureValues(phi, phi.square().sum(1))


@basis.register
def _(features: JoinedFeatures, X: Value) -> FeatureValues:
    phi = basis(features.features, X).phi * features.amplitude
    return FeatureValues(phi, phi.square().sum(1))


@basis.register
def _(features: network.NetworkFeatures, X: Value) -> FeatureValues:
    far = network.FARTHEST_INPUT
    X = X.at_least(-far).at_most(far)
    if (limits := getattr(features, "limits", None)) is not None:
        X = X.at_least(number(limits.low)).at_most(number(limits.high))
    Z = stacked(layer(features.network, X), features)
    if not features.skip:
        return finite(features, Z)
    ones = X.columns([0]) * 0.0 + 1.0
    n_inputs = X.graph.call("Cast", X.shape(1), to=TensorProto.DOUBLE)
    linear = X.graph.concat([X / n_inputs.sqrt(), ones], 1).unsqueeze(0)
    linear = linear + np.zeros((features.n_members, 1, 1))
    return finite(features, X.graph.concat([Z * float(features.scale), linear], 2))


def stacked(Z: Value, features: nn.Module) -> Value:
    """Return the output of a network, (N, D) or (K, N, D), as (K, N, D)."""
    inner = cast(nn.Module, features.network).modules()
    has_members = any(isinstance(part, network.OfMembers) for part in inner)
    return Z if has_members else Z.unsqueeze(0)


@basis.register
def _(features: fourier.KernelFeatures, X: Value) -> FeatureValues:
    G = layer(features.network, X)
    Z = X.graph.concat([term(part, G) for part in features.terms], -1)
    return finite(features, stacked(Z, features))


@functools.singledispatch
def term(part: Any, G: Value) -> Value:
    """Return the features of one term of a kernel, (…, D)."""
    raise CannotExport(part)


@term.register
def _(part: fourier.LinearTerm, G: Value) -> Value:
    height = float(fourier.amplitude(part.constants, torch.zeros((), dtype=torch.float64)))
    if part.homogeneous:
        return G * height
    sigma = G.columns([0], axis=-1) * 0.0 + float(part.dot.sigma_0)
    return G.graph.concat([sigma, G], -1) * height


@term.register
def _(part: fourier.FourierTerm, G: Value) -> Value:
    pairs = ((getattr(part, f"z_{j}"), factor) for j, factor in enumerate(part.factors))
    omega = np.sum([number(z / factor.length_scale) for z, factor in pairs], axis=0)
    height = float(fourier.amplitude(part.constants, torch.zeros((), dtype=torch.float64)))
    angle = G @ omega.T + number(part.phase)
    waves = G.graph.concat([angle.map("Cos"), angle.map("Sin")], -1)
    kept = waves if part.n_features % 2 == 0 else waves.columns(range(part.n_features), axis=-1)
    return kept * (height * math.sqrt(2.0 / part.n_features))


@basis.register
def _(features: InducingFeatures, X: Value) -> FeatureValues:
    kernel, G, (Z, _, inverse) = conditioned(features, X)
    return FeatureValues(covariance(kernel, G, Z) @ inverse.T, covariance(kernel, G))


@basis.register
def _(features: orthogonal.OrthogonalFeatures, X: Value) -> FeatureValues:
    kernel, G, (Z, Z_v, _, inverse, *others) = conditioned(features, X)
    B = covariance(kernel, G, np.concatenate([Z, Z_v]))  # of all points at once, as in predictions
    ends = np.cumsum(features.blocks)
    phi = B.columns(range(ends[0])) @ inverse.T
    for within, found in zip(itertools.pairwise(ends), orthogonal.sets_of(others), strict=True):
        c = B.columns(range(*within)) - phi @ found.P.T
        phi = X.graph.concat([phi, c @ found.inverse.T], 1)
    return FeatureValues(phi, covariance(kernel, G))


@basis.register
def _(features: orthogonal.DecoupledFeatures, X: Value) -> FeatureValues:
    kernel, G, (Z, Z_v, _, inverse, weighted) = conditioned(features, X)
    P_u = covariance(kernel, G, Z) @ inverse.T
    shift = covariance(kernel, G, Z_v) @ number(features.coefficients) - P_u @ weighted.T
    return FeatureValues(P_u, covariance(kernel, G), shift)


@basis.register
def _(features: sums.SumFeatures, X: Value) -> FeatureValues:
    found = [basis(part, X) for part in features.each]
    if len({len(part.blocks) for part in features.each}) != 1:
        raise CannotExport(features)
    ends = [np.cumsum([0, *part.blocks]) for part in features.each]
    pieces = [
        b.phi.columns(range(end[i], end[i + 1]))
        for i in range(len(features.blocks))
        for b, end in zip(found, ends, strict=True)
    ]
    shifts = [b.shift for b in found if b.shift is not None]
    prior = functools.reduce(Value.__add__, [b.prior for b in found])
    shift = functools.reduce(Value.__add__, shifts) if shifts else None
    return FeatureValues(X.graph.concat(pieces, 1), prior, shift)


@torch.no_grad()
def conditioned(features: InducingFeatures, X: Value) -> tuple[Any, Value, list[np.ndarray]]:
    """Return the kernel, g of rows (N, D), and the points and factors that features need.

    A network below inducing points has a single member. The points and factors are those kept if
    the features are frozen.

    Raises
    ------
    CannotExport
        If inducing points are not plain inputs.
    """
    G = stacked(layer(features.network, X), features).squeeze(0)
    state = features.kept() if features.n_frozen else features.state()
    if type(features.covariances) is not Covariances:
        raise CannotExport(features.covariances)
    return features.kernel, G, [number(value) for value in state]


# ---- basis functions by the million --------------------------------------------------------------


@functools.singledispatch
def columns(functions: Any, X: Value) -> Value:
    """Return all basis functions at rows, (N, m)."""
    raise CannotExport(functions)


@columns.register
def _(functions: basis_functions.KernelBasis, X: Value) -> Value:
    return covariance(functions.kernel, X, number(functions.points))


@columns.register
@torch.no_grad()
def _(functions: basis_functions.FourierBasis, X: Value) -> Value:
    if functions.n_components % 2:
        raise CannotExport("an odd number of Fourier features (n_components)")
    if functions.n_groups * functions.n_inputs > MOST_IN_GRAPH:
        raise CannotExport("so many Fourier features (n_components)")
    groups = torch.arange(functions.n_groups)
    like = torch.zeros(1, functions.n_inputs, dtype=torch.float64)
    omega, height = (number(a) for a in functions._frequencies(like, groups))
    angle = X @ omega.T
    return X.graph.concat([angle.map("Cos") * height, angle.map("Sin") * height], 1)
