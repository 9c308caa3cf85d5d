"""Covariances of rows with points that are known, k(X, Z)."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..kernels import expressions as k
from .graph import Value
from .refusals import CannotExport
from .series import log1p

DIRECT_COLUMNS = 32  # up to which differences are taken one by one, as in predictions


def number(parameter: Any) -> np.ndarray:
    """Return a parameter as an array."""
    return parameter.detach().cpu().double().numpy()


def squared_distance(X: Value, Z: np.ndarray, length_scale: Any) -> Value:
    """‖(x − z)/ℓ‖², (N, M), of rows X (N, d) and points Z (M, d)."""
    centre, scale = Z.mean(0), np.broadcast_to(number(length_scale), Z.shape[1])
    A, B = (X - centre) / scale, (Z - centre) / scale
    if Z.shape[1] <= DIRECT_COLUMNS:
        parts = [(A.columns([j]) - B[:, j]).square() for j in range(Z.shape[1])]
        return functools.reduce(Value.__add__, parts)
    norms = A.square().sum(1) + np.square(B).sum(1)
    return (norms - 2.0 * (A @ B.T)).at_least(0.0)


def radial(r2: Value, nu: float) -> Value:
    """Matérn's function of r², or RBF's for ν = ∞."""
    if nu == math.inf:
        return (-0.5 * r2).exp()
    a = (2.0 * nu * r2).sqrt()
    polynomial = {0.5: lambda: None, 1.5: lambda: 1.0 + a, 2.5: lambda: 1.0 + a + a.square() / 3.0}
    factor = polynomial[nu]()
    return (-a).exp() if factor is None else factor * (-a).exp()


@functools.singledispatch
def covariance(kernel: Any, X: Value, Z: np.ndarray) -> Value:
    """k(X, Z), (N, M), or what has this shape by broadcasting."""
    raise CannotExport(kernel)


@functools.singledispatch
def variance(kernel: Any, X: Value) -> Value:
    """k(x, x), (N, 1), or what has this shape by broadcasting; white noise included."""
    raise CannotExport(kernel)


@covariance.register
def _(kernel: k.Radial, X: Value, Z: np.ndarray) -> Value:
    if kernel.nu is None:
        raise CannotExport(kernel)
    return radial(squared_distance(X, Z, kernel.length_scale), kernel.nu)


@covariance.register
def _(kernel: k.RationalQuadratic, X: Value, Z: np.ndarray) -> Value:
    alpha, r2 = float(number(kernel.alpha)), squared_distance(X, Z, kernel.length_scale)
    return (-alpha * log1p(r2 / (2.0 * alpha))).exp()


@covariance.register
def _(kernel: k.ExpSineSquared, X: Value, Z: np.ndarray) -> Value:
    r = squared_distance(X, Z, kernel.periodicity).sqrt()
    wave = (math.pi * r).map("Sin") / float(number(kernel.length_scale))
    return (-2.0 * wave.square()).exp()


@variance.register(k.Radial)
@variance.register(k.RationalQuadratic)
@variance.register(k.ExpSineSquared)
def _(kernel: Any, X: Value) -> Value:
    return X.graph.constant(np.ones((1, 1)))


@covariance.register
def _(kernel: k.DotProduct, X: Value, Z: np.ndarray) -> Value:
    return X @ Z.T + float(number(kernel.sigma_0)) ** 2


@variance.register
def _(kernel: k.DotProduct, X: Value) -> Value:
    return X.square().sum(1) + float(number(kernel.sigma_0)) ** 2


@covariance.register
def _(kernel: k.Constant, X: Value, Z: np.ndarray) -> Value:
    return X.columns([0]) * np.zeros((1, len(Z))) + float(number(kernel.constant_value))


@variance.register
def _(kernel: k.Constant, X: Value) -> Value:
    return X.graph.constant(np.full((1, 1), float(number(kernel.constant_value))))


@covariance.register
def _(kernel: k.WhiteNoise, X: Value, Z: np.ndarray) -> Value:
    return X.columns([0]) * np.zeros((1, len(Z)))


@variance.register
def _(kernel: k.WhiteNoise, X: Value) -> Value:
    return X.graph.constant(np.full((1, 1), float(number(kernel.noise_level))))


@covariance.register
def _(kernel: k.Sum, X: Value, Z: np.ndarray) -> Value:
    return covariance(kernel.k1, X, Z) + covariance(kernel.k2, X, Z)


@variance.register
def _(kernel: k.Sum, X: Value) -> Value:
    return variance(kernel.k1, X) + variance(kernel.k2, X)


@covariance.register
def _(kernel: k.Product, X: Value, Z: np.ndarray) -> Value:
    return covariance(kernel.k1, X, Z) * covariance(kernel.k2, X, Z)


@variance.register
def _(kernel: k.Product, X: Value) -> Value:
    return variance(kernel.k1, X) * variance(kernel.k2, X)


@covariance.register
def _(kernel: k.Exponentiation, X: Value, Z: np.ndarray) -> Value:
    return covariance(kernel.kernel, X, Z) ** kernel.exponent


@variance.register
def _(kernel: k.Exponentiation, X: Value) -> Value:
    return variance(kernel.kernel, X) ** kernel.exponent
