"""Scalar functions that ONNX Runtime lacks in float64, computed as series."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev, polynomial
from scipy.special import erfcx, gammaln, roots_jacobi

from .graph import CannotExport, Value

DEGREES = (16, 18, 20, 22, 24, 28, 32, 40, 48, 64)  # degrees to try
SERIES_ERROR = 1e-13  # largest relative error of a good series
PROBES = 2001
MILLS_SCALE = 3.75  # Φ(−z) = φ(z)·M(z), M smooth in 1/(1 + z/3.75)
FARTHEST_DEVIATE = 1e150  # its square is still finite
INTEGRAL_NODES = 120
MOST_DF = 1000.0  # the integral is accurate to 4e-11 for 1000 degrees of freedom, 1e-12 for 400


def series_of(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the shortest good series of a function on [0, 1], in powers of 2x − 1.

    The Chebyshev coefficients fall so fast that the conversion to powers loses no digits, and a
    power takes only two operations.
    """
    x = np.linspace(0.0, 1.0, PROBES)
    exact, errors = function(x), {}
    for degree in DEGREES:
        powers = chebyshev.cheb2poly(interpolated(function, degree))
        error = float(np.abs(polynomial.polyval(2.0 * x - 1.0, powers) / exact - 1.0).max())
        errors[error] = powers
        if error < SERIES_ERROR:
            break
    return errors[min(errors)]


def interpolated(function: Callable[[np.ndarray], np.ndarray], degree: int) -> np.ndarray:
    """Return the Chebyshev series (degree + 1,) that agrees with a function at Chebyshev points."""
    t = chebyshev.chebpts1(degree + 1)
    T = chebyshev.chebvander(t, degree)
    found = np.asarray(T.T @ function(0.5 * (t + 1.0))) / (0.5 * (degree + 1))
    found[0] *= 0.5
    return found


def evaluated(powers: np.ndarray, x: Value) -> Value:
    """Evaluate a series at x in [0, 1], elementwise, by Horner's rule."""
    t = 2.0 * x - 1.0
    value = t * float(powers[-1])
    for c in powers[-2:0:-1]:
        value = (value + float(c)) * t
    return value + float(powers[0])


def log1p(x: Value) -> Value:
    """Return log(1 + x), accurate for small x: the rounding of 1 + x cancels in the quotient."""
    u = 1.0 + x
    is_one = x.graph.call("Equal", u, 1.0)
    return x.graph.where(is_one, x, u.log() * x / x.graph.where(is_one, 1.0, u - 1.0))


def softplus(x: Value) -> Value:
    """Return log(1 + eˣ), also where eˣ overflows, which ONNX Runtime's own operator does not."""
    return x.at_least(0.0) + log1p((-x.abs()).exp())


# ---- normal --------------------------------------------------------------------------------------


def mills(t: np.ndarray) -> np.ndarray:
    """Return Φ(−z)exp(z²/2)/t for t = 1/(1 + z/3.75), from z = ∞ at t = 0 to z = 0 at t = 1."""
    t = np.maximum(t, 1e-15)  # closer to 0 the value does not change
    return 0.5 * erfcx(MILLS_SCALE * (1.0 / t - 1.0) / math.sqrt(2.0)) / t


def normal_cdf(z: Value) -> Value:
    """Return Φ(z), to the last digits even where it is small."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    t = 1.0 / (1.0 + z.abs() / MILLS_SCALE)
    tail = (-0.5 * z.square()).exp() * t * evaluated(series_of(mills), t)
    return z.graph.where(z < 0.0, tail, 1.0 - tail)


def normal_density(z: Value) -> Value:
    """Return φ(z)."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    return (-0.5 * z.square()).exp() / math.sqrt(2.0 * math.pi)


# ---- Student-t -----------------------------------------------------------------------------------


def tail_factor(df: float, w: np.ndarray) -> np.ndarray:
    """Return H(w) by Gauss-Jacobi quadrature.

    P(T > z) = (w(2 − w))^(ν/2)·H(w) for w = 1 − z/√(ν + z²) and z ≥ 0. The function
    H(w) = c ∫ v^(ν/2−1)·(1 + w(1 − v)/(2 − w))^(ν/2−1) dv/(2 − w), from 0 to 1, is smooth.
    """
    if df > MOST_DF:
        raise CannotExport(f"a Student-t distribution with df={df:.3g}, above {MOST_DF:g}")
    x, weight = roots_jacobi(INTEGRAL_NODES, 0.0, 0.5 * df - 1.0)
    log_c = gammaln(0.5 * df + 0.5) - gammaln(0.5 * df) - 0.5 * math.log(math.pi)
    log_weight = np.log(weight) - 0.5 * df * math.log(2.0) + log_c
    w = w[:, None]
    inner = (0.5 * df - 1.0) * np.log1p(w * 0.5 * (1.0 - x) / (2.0 - w))
    return np.exp(log_weight + inner).sum(1) / (2.0 - w[:, 0])


def student_cdf(df: float, z: Value) -> Value:
    """Return P(T ≤ z) for T Student-t with df > 2 degrees of freedom."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    square = z.square() + df
    root = square.sqrt()
    w = df / (root * (root + z.abs()))
    power = (0.5 * df * (df / square).log()).exp()
    tail = power * evaluated(series_of(lambda w: tail_factor(df, w)), w)
    return z.graph.where(z < 0.0, tail, 1.0 - tail)


def student_density(df: float, z: Value) -> Value:
    """Return the density of Student-t with df degrees of freedom."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    log_c = gammaln(0.5 * df + 0.5) - gammaln(0.5 * df) - 0.5 * math.log(df * math.pi)
    return (float(log_c) - 0.5 * (df + 1.0) * (1.0 + z.square() / df).log()).exp()
