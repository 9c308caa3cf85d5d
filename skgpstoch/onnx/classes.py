"""Compute probabilities of classes in an ONNX graph."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..likelihoods import Bernoulli, Categorical, OneVsRest
from ..likelihoods.probabilities import PREDICTIVE_POINTS
from ..maths.gaussian import _sobol_normals
from .distributions import total
from .graph import Value
from .posteriors import LatentValues
from .refusals import CannotExport
from .series import normal_cdf

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
    z = _sobol_normals(C, PREDICTIVE_POINTS).T  # (points, C)
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
