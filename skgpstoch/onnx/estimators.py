"""Compute predictions of fitted estimators in an ONNX graph, in the user's units."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import numpy as np
import torch
from sklearn.multiclass import OneVsRestClassifier

from ..estimators.classifier import Classifier
from ..estimators.regressor import Regressor
from ..kernels.distances import Profile, matern_1, matern_3, rbf
from ..methods.automatic.automatic_classifier import AutoGaussianProcessClassifier
from ..methods.automatic.automatic_regressor import AutoGaussianProcessRegressor
from ..methods.automatic.class_process import ExactProcessClassifier
from ..methods.automatic.process import ExactProcessRegressor, checked_columns, n_flags
from ..methods.automatic.process_evidence import CONSTANT_VARIANCE, Process
from ..methods.automatic.row_weights import RowWeights
from ..methods.automatic.stacking import StackedDensityRegressor
from ..methods.drop_in.classifier import GaussianProcessClassifier
from ..methods.drop_in.laplace import COEFFICIENTS, LAMBDAS, BinaryLaplaceClassifier
from ..methods.drop_in.many_rows import ManyRowsModel
from ..methods.drop_in.regressor import GaussianProcessRegressor
from ..models.features.network import FARTHEST_INPUT
from . import neighbours as neighbours  # registers its posterior
from .distributions import (
    Component,
    Family,
    MixtureValues,
    OverLevels,
    Weighted,
    rounded_moments,
    total,
)
from .graph import CannotExport, Value
from .kernels import covariance, known, radial, squared_distance
from .posteriors import (
    LatentValues,
    given_rows,
    laplace_probability,
    latents,
    of_two,
    predictive,
    probabilities,
)
from .tables import Columns, encoded, encoded_with_new

PROFILES: dict[Profile, float] = {rbf: math.inf, matern_3: 1.5, matern_1: 0.5}
"""ν of the kernel profiles that exact processes use."""
NO_SHARE = 1e-300  # that a model without a weight has


def refuse_transformed(model: Any) -> None:
    """Raise an error if the target was transformed, because its predictions are integrals."""
    if getattr(model, "target_transformer_", None) is not None:
        raise CannotExport(f"target_transform={model.target_transform!r}")


def scaled(X: Value, scaling: Any) -> Value:
    """Return (X − offset)/scale."""
    return (X - scaling.offset) / scaling.scale


# ---- regressors ----------------------------------------------------------------------------------


@functools.singledispatch
def distribution(model: Any, X: Value | Columns) -> Weighted | OverLevels:
    """Return the distribution of y at each row of X (N, d)."""
    raise CannotExport(model)


@distribution.register
def _(model: Regressor, X: Value) -> Weighted:
    refuse_transformed(model)
    found = predictive(model._asked(model.posterior_), scaled(X, model._x_scaling))
    return Weighted((1.0,), (found.in_units(*model._y_scaling),))


@distribution.register
def _(model: GaussianProcessRegressor, X: Value) -> Weighted:
    predicting, scaling = cast(Any, model._model())
    noise = model._known_noise() / np.square(scaling.scale)
    if model.estimator_ is not None:
        return Weighted((1.0,), (of_many_rows(predicting, noise, X).in_units(*scaling),))
    kernel = known(predicting.kernel)
    K_star = covariance(kernel, X, np.asarray(model.X_train_, np.float64))
    var = given_rows(covariance(kernel, X), K_star, predicting.L)
    mean = K_star @ predicting.alpha
    std = (var + (noise + np.zeros((1, predicting.alpha.shape[1])))).sqrt()
    return Weighted(
        (1.0,), (MixtureValues.of([Component(mean, std)], Family()).in_units(*scaling),)
    )


def of_many_rows(model: ManyRowsModel, noise: np.ndarray, X: Value) -> MixtureValues:
    """Return the distribution of f plus white and further noise, by an estimator for many rows."""
    inner = model.estimator
    (f,) = latents(inner._asked(inner.posterior_), scaled(X, inner._x_scaling))
    offset, scale = inner._y_scaling
    std = (f.var * np.square(scale) + (model.white + noise)).sqrt()
    return MixtureValues.of([Component(f.mean * scale + offset, std)], Family())


@distribution.register
def _(model: ExactProcessRegressor, X: Value) -> Weighted:
    """Return a mixture of Student-t distributions, one for each kernel and hyper-parameter draw."""
    columns = checked_columns(model.missing_columns, model.n_features_in_)
    # A graph cannot refuse flags outside of 0 and 1, with which variances may be negative.
    missing = X.columns(columns).at_least(0.0).at_most(1.0) if len(columns) else None
    if missing is not None and n_flags(len(columns)) < len(columns):
        missing = missing.sum(1)
    A = scaled(X, model._x_scaling).at_least(-FARTHEST_INPUT).at_most(FARTHEST_INPUT)
    offset, unit = model._y_scaling
    parts, graph = [], X.graph
    for of_outputs, tails in zip(model._processes, model._tails, strict=True):
        pieces = []
        for s in range(len(of_outputs[0])):
            each = [of_process(of_draws[s], A, missing) for of_draws in of_outputs]
            mean, var = (graph.concat(values, 1) for values in zip(*each, strict=True))
            pieces.append(Component(mean, var.sqrt() * np.exp([t.log_factor for t in tails])))
        family = Family(tuple(t.df for t in tails))
        parts.append(MixtureValues.of(pieces, family).in_units(offset, unit))
    return Weighted(tuple(np.asarray(model.weights_).tolist()), tuple(parts))


def of_process(process: Process, X: Value, missing: Value | None) -> tuple[Value, Value]:
    """Return mean and variance of y, noise included, each (N, 1)."""
    theta, shape = process.theta, process.shape
    scale = theta.length_scale.numpy()
    Z = shape.inputs(process.X).numpy()
    ones = X.columns([0]) * 0.0
    K, prior = ones + np.full((1, len(Z)), CONSTANT_VARIANCE), ones + CONSTANT_VARIANCE
    if shape.profile is not None:
        nu = PROFILES[shape.profile]
        K = K + radial(squared_distance(X, Z, theta.length_scale), nu) * float(theta.signal)
        prior = prior + float(theta.signal)
    if shape.is_linear:
        A, B = X / scale, Z / scale
        K = K + (A @ B.T) * float(theta.slope)
        prior = prior + A.square().sum(1) * float(theta.slope)
    var = given_rows(prior, K, process.L.numpy()) + float(theta.noise)
    if missing is not None and theta.missing.numel():
        var = var + missing @ theta.missing.numpy()[:, None]
    return K @ process.alpha.numpy()[:, None], var


@distribution.register
def _(model: AutoGaussianProcessRegressor, X: Value | Columns) -> Weighted | OverLevels:
    refuse_transformed(model)
    Z, copies = encoded_with_new(model._encoder, X)
    means = getattr(model, "mean_weights_", model.weights_)  # absent in older files
    models, by_row = list(model.estimators_.values()), getattr(model, "row_weights_", None)
    if by_row is None:
        found = joined(model.weights_, models, Z, means)
    else:
        found = joined_by_row(by_row, models, Z, means)
    return found if copies is None else OverLevels.of(found, copies, model.target == "count")


@distribution.register
def _(model: StackedDensityRegressor, X: Value) -> Weighted:
    return joined(model.weights_, model.estimators_, X)


def moments(model: Any, given: Weighted | OverLevels) -> tuple[Value, Value]:
    """Return mean and variance of y, (N, P), as `predict` does.

    For targets on a lattice, they are the moments of the rounded y. The variance of the drop-in
    GaussianProcessRegressor does not include alpha.
    """
    if isinstance(model, GaussianProcessRegressor):
        mean, var = given.moments()
        return mean, var - model._known_noise()
    lattice = getattr(model, "_lattice", None)
    return given.moments() if lattice is None else rounded_moments(given, lattice)


def joined(weights: Any, models: list[Any], X: Value, mean_weights: Any = None) -> Weighted:
    """Return the mixture of the models' distributions."""
    found = [cast(Weighted, distribution(each, X)) for each in models]
    return weighted(found, weights, mean_weights)


def weighted(mixtures: list[Weighted], weights: Any, mean_weights: Any) -> Weighted:
    """Return the mixture of all parts of mixtures; None takes the same weights for the mean."""
    means = None if mean_weights is None else shares(mean_weights, mixtures)
    parts = tuple(part for each in mixtures for part in each.parts)
    return Weighted(shares(weights, mixtures), parts, means)


def shares(weights: Any, mixtures: list[Weighted]) -> tuple[Any, ...]:
    """Return the weights of all parts of mixtures that have these weights themselves."""
    pairs = zip(weights, mixtures, strict=True)
    return tuple(w * share for w, each in pairs for share in each.weights)


def joined_by_row(by_row: RowWeights, models: list[Any], X: Value, mean_weights: Any) -> Weighted:
    """Return the mixture of the models, and of where they agree, with weights of each row."""
    found = [cast(Weighted, distribution(each, X)) for each in models]
    w, v = by_row.weight / by_row.weight[:-1].sum(), mean_weights.tolist()
    means, variances = zip(*(each.moments() for each in found), strict=True)
    m = total([mean * share for mean, share in zip(means, v, strict=True)])
    apart = [(mean - m).square() * by_row.disagreement for mean in means]
    pairs = zip(w, variances, apart, strict=False)
    s2 = total([(var + d) * float(share * by_row.scale**2) for share, var, d in pairs])
    scale = (s2 * (1.0 - 2.0 / by_row.df)).sqrt()
    agreed = MixtureValues.of([Component(m, scale)], Family((by_row.df,)))
    found, every = [*found, Weighted((1.0,), (agreed,))], [*variances, s2]
    slope = -0.5 * by_row.certainty / len(models[0]._y_scaling.scale)
    log_w = np.log(np.maximum(w, NO_SHARE)).tolist()
    odds = [var.log().sum(1) * slope + each for each, var in zip(log_w, every, strict=True)]
    largest = functools.reduce(Value.at_least, odds)
    exps = [(value - largest).exp() for value in odds]
    norm = total(exps)
    return weighted(found, [value / norm for value in exps], [*v, 0.0])


# ---- classifiers ---------------------------------------------------------------------------------


@functools.singledispatch
def class_probabilities(model: Any, X: Value | Columns) -> Value:
    """Return the probabilities of the classes, (N, C), at each row of X (N, d)."""
    raise CannotExport(model)


@class_probabilities.register
def _(model: Classifier, X: Value) -> Value:
    posterior = model._asked(model.posterior_)
    parts = latents(posterior, scaled(X, model._x_scaling))
    p = total([probabilities(posterior.likelihood, part) for part in parts]) / len(parts)
    return p / p.sum(1)


@class_probabilities.register
def _(model: GaussianProcessClassifier, X: Value) -> Value:
    base = cast(Any, model.base_estimator_)
    if isinstance(base, OneVsRestClassifier):
        p = X.graph.concat([second_class(binary, X) for binary in base.estimators_], 1)
        return p / p.sum(1)
    if isinstance(base, BinaryLaplaceClassifier):
        return of_two(second_class(base, X))
    return class_probabilities(base, X)


def second_class(model: BinaryLaplaceClassifier, X: Value) -> Value:
    """Return the probability of the second of two classes, (N, 1)."""
    kernel = known(model.kernel_)
    K_star = covariance(kernel, X, np.asarray(model.X_train_, np.float64))
    residual = model.weight_ * (model.y_train_ - model.pi_)
    var = given_rows(covariance(kernel, X), K_star * model.W_sr_, model.L_)
    return laplace_probability(LatentValues(K_star @ residual[:, None], var), LAMBDAS, COEFFICIENTS)


@class_probabilities.register
def _(model: ExactProcessClassifier, X: Value) -> Value:
    A = scaled(X, model._x_scaling).at_least(-FARTHEST_INPUT).at_most(FARTHEST_INPUT)
    rows, share = model._rows, model._rows.share
    offset, Z = rows.offset.numpy(), rows.Z.numpy()
    shares = torch.softmax(rows.offset, 0).numpy() * share
    parts = []
    for fitted in model._processes:
        K = covariance(known(fitted.kernel), A, Z)
        f = (K @ fitted.coefficients.numpy()) * fitted.confidence
        parts.append((f + offset).map("Softmax", axis=1) * (1.0 - share) + shares)
    return mixed(parts, model.weights_, model._confidence)


@class_probabilities.register
def _(model: AutoGaussianProcessClassifier, X: Value | Columns) -> Value:
    Z = encoded(model._encoder, X)
    return mixed([class_probabilities(each, Z) for each in model._models], model.weights_, 1.0)


def mixed(parts: list[Value], weights: Any, confidence: float) -> Value:
    """Return probabilities in proportion to (Σ_k w_k p_k)^τ, for τ = `confidence`."""
    if len(parts) == 1:
        return parts[0] / parts[0].sum(1)
    p = total([part * float(w) for part, w in zip(parts, weights, strict=True)])
    if confidence != 1.0:
        p = (p.log() * confidence).map("Softmax", axis=1)
    return p / p.sum(1)
