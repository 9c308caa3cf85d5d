"""Compute the predictive distribution of y from a posterior in an ONNX graph."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ..likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    NegativeBinomial,
    OneVsRest,
    Poisson,
    SharedStudentT,
    StudentT,
)
from ..likelihoods.probabilities import predictive_nodes
from ..models.mixture import MixturePosterior
from ..models.posteriors.chevron import ChevronPosterior
from ..models.posteriors.conjugate import ConjugatePosterior
from ..models.posteriors.exact import ExactPosterior
from ..models.sparse import LEAST_RATIO, UNIT, UNLIMITED, SparsePosterior
from .distributions import Component, Family, MixtureValues, skewed, total
from .features import FeatureValues, basis, columns, layer
from .graph import CannotExport, Value
from .kernels import covariance, number
from .series import normal_cdf, softplus


class LatentValues(NamedTuple):
    """N(mean, var) of f at rows, (N, P), and the factor of the noise's scale there."""

    mean: Value
    var: Value
    ratio: Value | None = None


# ---- q(f) ----------------------------------------------------------------------------------------


@functools.singledispatch
def latents(posterior: Any, X: Value) -> list[LatentValues]:
    """Return the components of q(f), which are equally likely."""
    raise CannotExport(posterior)


@latents.register
@torch.no_grad()
def _(posterior: ExactPosterior, X: Value) -> list[LatentValues]:
    G = layer(posterior.network, X)
    Z = number(posterior.network(posterior.X))
    K_star = covariance(posterior.kernel, G, Z)  # (N*, N)
    prior = covariance(posterior.kernel, G)
    var = [given_rows(prior, K_star, L) for L in number(posterior.factor)]
    alpha = number(posterior.alpha)
    var = var if len(var) == alpha.shape[1] else var * alpha.shape[1]
    return [LatentValues(K_star @ alpha, X.graph.concat(var, 1))]


def given_rows(prior: Value, K_star: Value, L: np.ndarray) -> Value:
    """Return k(x, x) − ‖L⁻¹k(Z, x)‖², (N, 1), of which L is the lower half, as in predictions."""
    inverse = np.linalg.solve(np.tril(L), np.eye(len(L)))
    return (prior - (K_star @ inverse.T).square().sum(1)).at_least(0.0)


@latents.register
def _(posterior: ConjugatePosterior, X: Value) -> list[LatentValues]:
    given, weights = basis(posterior.features, X), posterior.weights
    rotated = given.phi @ number(weights.spectrum.vectors[0])
    var = rotated.square() @ number(weights.variances) + given.residual()
    return [LatentValues(given.phi @ number(weights.mean), var)]


@latents.register
def _(posterior: SparsePosterior, X: Value) -> list[LatentValues]:
    model, weights = posterior.model, posterior.weights
    given = basis(model.features, X)
    mean = given.phi @ number(weights.mean) + number(model.mean.value)
    mean = mean if given.shift is None else mean + given.shift
    var = sparse_variance(given, weights)
    if getattr(posterior, "limits", None) is not None:  # absent in older files
        centre, most_std, highest = number(posterior.limits)
        above = (highest - centre) / (mean - centre).at_least(UNLIMITED)
        r = (most_std / var.at_least(UNLIMITED).sqrt()).at_most(above).at_most(1.0).min(1)
        given = given._replace(phi=r * given.phi)
        mean, var = centre + r * (mean - centre), r.square() * var
    ratio = None
    if model.scale is not None:
        latent = given.phi @ number(model.scale.weights) + UNIT
        ratio = LEAST_RATIO + softplus(latent)
    return [LatentValues(mean, var + np.zeros((1, weights.mean.shape[1])), ratio)]


def sparse_variance(given: FeatureValues, weights: Any) -> Value:
    """Return ρ + Σ_b ‖φ_b R_b‖², (N, P) or (N, 1)."""
    ends = np.cumsum([0, *weights.sizes])
    parts = []
    for root, start, stop in zip(weights.roots, ends[:-1], ends[1:], strict=True):
        phi = given.phi if len(ends) == 2 else given.phi.columns(range(start, stop))
        if root is None:
            parts.append(phi.square().sum(1))
        else:
            of_outputs = [(phi @ R).square().sum(1) for R in number(root)]
            parts.append(phi.graph.concat(of_outputs, 1))
    return given.residual() + total(parts)


@latents.register
def _(posterior: ChevronPosterior, X: Value) -> list[LatentValues]:
    model = posterior.model
    phi = columns(model.basis, X)
    W, std = number(model.columns), number(model.std)  # (m, P, 1 + c), (m, P)
    if W.shape[2] > len(W) + 1:  # in an edited file, whose c may be a million
        raise ValueError(f"{len(W)} components have {W.shape[2] - 1} columns.")
    mean = phi @ W[..., 0] + number(model.shift)
    var = phi.square() @ np.square(std)
    for r in range(1, W.shape[2]):
        var = var + (phi @ W[..., r]).square()
    if model.augments:
        prior = covariance(model.basis.kernel, X)
        squares = phi.square() @ number(model.row_precision)
        var = var + prior.square() / (squares + prior)
    return [LatentValues(mean, var)]


@latents.register
def _(posterior: MixturePosterior, X: Value) -> list[LatentValues]:
    parts = [latent for member in posterior.parts for latent in latents(member, X)]
    K, shrinkage, scale = len(parts), posterior.mean_shrinkage, posterior.disagreement_scale
    centre = total([part.mean for part in parts]) / K
    apart = [part.mean - centre for part in parts]
    between = total([a.square() for a in apart]) * (scale**2 / K)
    parts = [
        LatentValues(centre + a * shrinkage, part.var + between, part.ratio)
        for part, a in zip(parts, apart, strict=True)
    ]
    if posterior.spread is None:
        return parts
    std = mixture_of(posterior.likelihood, parts).moments()[1].sqrt()
    log_r = std.log() * (posterior.exponent - 1.0)
    r = log_r.exp() * number(posterior.factor)
    mean = total([part.mean for part in parts]) / K
    return [
        LatentValues(
            mean + r * (part.mean - mean),
            r.square() * part.var,
            r if part.ratio is None else r * part.ratio,
        )
        for part in parts
    ]


# ---- p(y) ----------------------------------------------------------------------------------------


def predictive(posterior: Any, X: Value) -> MixtureValues:
    """Return the distribution of y at each row, in the units of the posterior."""
    found = mixture_of(posterior.likelihood, latents(posterior, X))
    skew = getattr(posterior, "skew", None)
    return found if skew is None else skewed(found, number(skew))


def mixture_of(likelihood: Any, parts: list[LatentValues]) -> MixtureValues:
    """Return the mixture for y, given the components of q(f)."""
    each = [components(likelihood, part) for part in parts]
    return MixtureValues.of([component for found, _ in each for component in found], each[0][1])


@functools.singledispatch
def components(likelihood: Any, f: LatentValues) -> tuple[list[Component], Family]:
    """Return the components of y for one component of f, and their family."""
    raise CannotExport(likelihood)


def of_rows(scale: np.ndarray, f: LatentValues) -> Any:
    """Return the noise scale of rows: (P,), or (N, P) if it differs between rows."""
    return scale if f.ratio is None else f.ratio * scale


@components.register
def _(likelihood: Gaussian, f: LatentValues) -> tuple[list[Component], Family]:
    noise = of_rows(np.sqrt(number(likelihood.log_noise.exp())), f)
    return [Component(f.mean, (f.var + noise * noise).sqrt())], Family()


@components.register
def _(likelihood: SharedStudentT, f: LatentValues) -> tuple[list[Component], Family]:
    scale = of_rows(number(likelihood.log_scale.exp()), f)
    size, df = (f.var + scale * scale).sqrt(), number(likelihood.df)
    family = Family(tuple(np.broadcast_to(df, likelihood.log_scale.shape).tolist()))
    share, width = likelihood.outliers
    usual = Component(f.mean, size, 1.0 - share)
    far = size * width
    if likelihood.reach is not None:
        far = far.at_most(np.array(likelihood.reach)).at_least(size)
    return ([usual, Component(f.mean, far, share)] if share else [usual]), family


@components.register(Laplace)
@components.register(StudentT)
def _(likelihood: Any, f: LatentValues) -> tuple[list[Component], Family]:
    scale = of_rows(np.sqrt(number(likelihood.noise_variance)), f)
    return [Component(f.mean, (f.var + scale * scale).sqrt())], Family(name=repr(likelihood))


@components.register
def _(likelihood: Poisson, f: LatentValues) -> tuple[list[Component], Family]:
    if likelihood.link != "exp" or likelihood.exposure is not None:
        raise CannotExport(repr(likelihood))
    mean = (f.mean + f.var * 0.5).exp()
    var = mean + mean.square() * (f.var.exp() - 1.0)
    return [Component(mean, var.sqrt())], Family(name=repr(likelihood))


@components.register
def _(likelihood: NegativeBinomial, f: LatentValues) -> tuple[list[Component], Family]:
    if likelihood.exposure is not None:
        raise CannotExport(repr(likelihood))
    mean = (f.mean + f.var * 0.5).exp()
    root = of_rows(np.sqrt(number(likelihood.dispersion)), f)
    square = mean.square() * f.var.exp()  # E[rate²]
    var = mean + square - mean.square() + square * (root * root)
    return [Component(mean, var.sqrt())], Family(name=repr(likelihood))


# ---- probabilities of classes --------------------------------------------------------------------


NARROW = 1.0  # up to this variance of f, nodes are those of f; beyond, of the logistic distribution
NORMAL_NODES = np.arange(-9.0, 9.01, 0.25)  # of a standard normal: trapezoids are exact to rounding
LOGISTIC_NODES = np.arange(-40.0, 40.01, 0.5)  # of the logistic distribution
POINTS_AT_A_TIME = 64


@functools.singledispatch
def probabilities(likelihood: Any, f: LatentValues) -> Value:
    """Return E p(y = c | f), (N, C), for f ~ N(mean, var)."""
    raise CannotExport(likelihood)


def of_two(p: Value) -> Value:
    """Return 1 − p and p, (N, 2), from the second class's probability p (N, 1)."""
    return p.graph.concat([1.0 - p, p], 1)


@probabilities.register
def _(likelihood: Bernoulli, f: LatentValues) -> Value:
    if likelihood.link == "probit":
        return of_two(normal_cdf(f.mean / (f.var + 1.0).sqrt()))
    return of_two(mean_logistic(f))


@probabilities.register
def _(likelihood: OneVsRest, f: LatentValues) -> Value:
    p = mean_logistic(f)
    return p / p.sum(1)


@probabilities.register
def _(likelihood: Categorical, f: LatentValues) -> Value:
    """Average over the same quasi-random points as in predictions, in blocks."""
    if likelihood.link != "softmax":
        raise CannotExport(repr(likelihood))
    C = likelihood.n_latents(1)
    z = predictive_nodes(C).T  # (points, C)
    mean, std = f.mean.unsqueeze(1), f.var.at_least(1e-30).sqrt().unsqueeze(1)
    parts = []
    for start in range(0, len(z), POINTS_AT_A_TIME):
        at = mean + std * z[start : start + POINTS_AT_A_TIME]  # (N, points, C)
        parts.append(at.map("Softmax", axis=2).sum(1).squeeze(1))
    return total(parts) / len(z)


def mean_logistic(f: LatentValues) -> Value:
    """Return E g(f), (N, P), for the logistic function g, exact to rounding for any variance.

    The trapezoidal rule converges exponentially for functions that are analytic in a strip. For
    narrow f, apply it to g at nodes of f. For wide f, apply it to P(f > t) at nodes t of the
    logistic distribution, whose distribution function is g.
    """
    mean, var = f.mean.unsqueeze(2), f.var.at_least(1e-30).unsqueeze(2)  # (N, P, 1)
    weight = np.exp(-0.5 * NORMAL_NODES**2)
    narrow = (mean + var.at_most(NARROW).sqrt() * NORMAL_NODES).map("Sigmoid") * (
        weight / weight.sum()
    )
    share = 0.25 / np.cosh(0.5 * LOGISTIC_NODES) ** 2
    wide = normal_cdf((mean - LOGISTIC_NODES) / var.at_least(NARROW).sqrt()) * (share / share.sum())
    found = mean.graph.where(var < NARROW, narrow.sum(2), wide.sum(2))
    return found.squeeze(2)


def laplace_probability(f: LatentValues, slopes: Any, coefficients: Any) -> Value:
    """Return E g(f), (N, 1), by a sum of error functions, as scikit-learn approximates it."""
    parts = []
    for slope, c in zip(slopes, coefficients, strict=True):
        a = f.mean * slope / (f.var * (2.0 * slope**2) + 1.0).sqrt()
        parts.append((normal_cdf(a * math.sqrt(2.0)) * 2.0 - 1.0) * (0.5 * c))
    return (total(parts) + 0.5 * sum(coefficients)).at_least(0.0).at_most(1.0)
