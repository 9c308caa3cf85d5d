"""Compute covariances k(X, Z) of rows with given points in an ONNX graph."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk

from ..kernels import Tied, contains, from_sklearn
from ..kernels import expressions as k
from ..kernels.distances import DIRECT_COLUMNS, FARTHEST
from .graph import CannotExport, Value
from .series import log1p


def number(parameter: Any) -> np.ndarray:
    """Return a parameter as an array."""
    return parameter.detach().cpu().double().numpy()


def squared_distance(X: Value, Z: np.ndarray, length_scale: Any) -> Value:
    """Return ‖(x − z)/ℓ‖², (N, M), for rows X (N, d) and points Z (M, d)."""
    centre = torch.tensor(Z).mean(0).numpy()  # rounded as in predictions
    scale = np.broadcast_to(number(length_scale), Z.shape[1])
    A, B = (X - centre) / scale, np.clip((Z - centre) / scale, -FARTHEST, FARTHEST)
    A = A.at_least(-FARTHEST).at_most(FARTHEST)
    if Z.shape[1] <= DIRECT_COLUMNS:
        parts = [(A.columns([j]) - B[:, j]).square() for j in range(Z.shape[1])]
        return functools.reduce(Value.__add__, parts).at_most(FARTHEST)
    norms = A.square().sum(1) + np.square(B).sum(1)
    return (norms - 2.0 * (A @ B.T)).at_least(0.0).at_most(FARTHEST)


def radial(r2: Value, nu: float) -> Value:
    """Return the Matérn function of r², or that of RBF if ν = ∞."""
    if nu == math.inf:
        return (-0.5 * r2).exp()
    a = (2.0 * nu * r2).sqrt()
    polynomial = {0.5: lambda: None, 1.5: lambda: 1.0 + a, 2.5: lambda: 1.0 + a + a.square() / 3.0}
    factor = polynomial[nu]()
    return (-a).exp() if factor is None else factor * (-a).exp()


def known(kernel: sk.Kernel) -> Any:
    """Convert a scikit-learn kernel for `covariance`.

    Convert it to our torch kernel, except a PairwiseKernel, which predictions leave to
    scikit-learn.

    Raises
    ------
    CannotExport
        If it is a PairwiseKernel with a metric that has no graph.
    TypeError
        If it is another kernel that does not run in torch.
    """
    if not contains(kernel, sk.PairwiseKernel):
        return from_sklearn(kernel)
    if type(kernel) in (sk.Sum, sk.Product):
        return type(kernel)(known(kernel.k1), known(kernel.k2))
    if type(kernel) is sk.Exponentiation:
        return sk.Exponentiation(known(kernel.kernel), kernel.exponent)
    if type(kernel) is sk.PairwiseKernel and kernel.metric in {*OF_PRODUCTS, *OF_DISTANCES}:
        return kernel
    raise CannotExport(repr(kernel))


@functools.singledispatch
def covariance(kernel: Any, X: Value, Z: np.ndarray | None = None) -> Value:
    """Return k(X, Z), (N, M), or without Z k(x, x), (N, 1), with white noise.

    The shape may be one that broadcasts to these.
    """
    raise CannotExport(kernel)


@covariance.register
def _(kernel: k.Radial, X: Value, Z: np.ndarray | None = None) -> Value:
    if Z is None:
        return everywhere(1.0, X)
    if kernel.nu is None:
        raise CannotExport(kernel)
    return radial(squared_distance(X, Z, kernel.length_scale), kernel.nu)


@covariance.register
def _(kernel: k.RationalQuadratic, X: Value, Z: np.ndarray | None = None) -> Value:
    if Z is None:
        return everywhere(1.0, X)
    alpha, r2 = float(number(kernel.alpha)), squared_distance(X, Z, kernel.length_scale)
    return (-alpha * log1p(r2 / (2.0 * alpha))).exp()


@covariance.register
def _(kernel: k.ExpSineSquared, X: Value, Z: np.ndarray | None = None) -> Value:
    if Z is None:
        return everywhere(1.0, X)
    r = squared_distance(X, Z, kernel.periodicity).sqrt()
    wave = (math.pi * r).map("Sin") / float(number(kernel.length_scale))
    return (-2.0 * wave.square()).exp()


@covariance.register
def _(kernel: k.DotProduct, X: Value, Z: np.ndarray | None = None) -> Value:
    return products(X, Z) + float(number(kernel.sigma_0)) ** 2


@covariance.register
def _(kernel: k.Constant, X: Value, Z: np.ndarray | None = None) -> Value:
    return everywhere(float(number(kernel.constant_value)), X, Z)


@covariance.register
def _(kernel: k.WhiteNoise, X: Value, Z: np.ndarray | None = None) -> Value:
    return everywhere(0.0 if Z is not None else float(number(kernel.noise_level)), X, Z)


@covariance.register
def _(kernel: Tied, X: Value, Z: np.ndarray | None = None) -> Value:
    return covariance(kernel.kernel, X, Z)


@covariance.register(sk.Sum)
@covariance.register(k.Sum)
def _(kernel: Any, X: Value, Z: np.ndarray | None = None) -> Value:
    return covariance(kernel.k1, X, Z) + covariance(kernel.k2, X, Z)


@covariance.register(sk.Product)
@covariance.register(k.Product)
def _(kernel: Any, X: Value, Z: np.ndarray | None = None) -> Value:
    return covariance(kernel.k1, X, Z) * covariance(kernel.k2, X, Z)


@covariance.register(sk.Exponentiation)
@covariance.register(k.Exponentiation)
def _(kernel: Any, X: Value, Z: np.ndarray | None = None) -> Value:
    return covariance(kernel.kernel, X, Z) ** kernel.exponent


def everywhere(value: float, X: Value, Z: np.ndarray | None = None) -> Value:
    """Return one value for all pairs of rows, or without Z for all rows."""
    if Z is None:
        return X.graph.constant(np.full((1, 1), value))
    return X.columns([0]) * np.zeros((1, len(Z))) + value


def products(X: Value, Z: np.ndarray | None) -> Value:
    """Return the inner products of rows X and Z, (N, M), or without Z ‖x‖², (N, 1)."""
    return X.square().sum(1) if Z is None else X @ Z.T


# ---- PairwiseKernel ------------------------------------------------------------------------------

OF_PRODUCTS = {"linear", "cosine", "polynomial", "poly"}
OF_DISTANCES = {"rbf", "laplacian"}
DEGREE, COEF0 = 3.0, 1.0  # scikit-learn's defaults
SMALLEST = np.finfo(np.float64).tiny  # a smaller norm counts as 0; the cosines are then 0


@covariance.register
def _(kernel: sk.PairwiseKernel, X: Value, Z: np.ndarray | None = None) -> Value:
    if kernel.metric in OF_PRODUCTS:
        if kernel.metric == "cosine":
            X = X / X.square().sum(1).sqrt().at_least(SMALLEST)
            if Z is not None:
                Z = Z / np.maximum(np.linalg.norm(Z, axis=1), SMALLEST)[:, None]
        return of_product(kernel, products(X, Z))
    if Z is None:
        return everywhere(1.0, X)
    parts = [X.columns([j]) - Z[:, j] for j in range(Z.shape[1])]
    sizes = (part.square() if kernel.metric == "rbf" else part.abs() for part in parts)
    return (-float(kernel.gamma) * functools.reduce(Value.__add__, sizes)).exp()


def of_product(kernel: sk.PairwiseKernel, product: Value) -> Value:
    """Return the kernel, given inner products of rows (of normalised rows for cosines)."""
    if kernel.metric in ("linear", "cosine"):
        return product
    given = kernel.pairwise_kernels_kwargs or {}
    inner = float(kernel.gamma) * product + float(given.get("coef0", COEF0))
    return inner ** float(given.get("degree", DEGREE))
