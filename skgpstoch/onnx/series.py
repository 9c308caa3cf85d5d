"""Functions of one number that ONNX Runtime does not have in float64, as series."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev, polynomial
from scipy.special import erfcx, gammaln, roots_jacobi

from .graph import Value
from .refusals import CannotExport

DEGREES = (16, 18, 20, 22, 24, 28, 32, 40, 48, 64)  # that are tried
SERIES_ERROR = 1e-13  # relative error of a series that is good enough
PROBES = 2001
MILLS_SCALE = 3.75  # Φ(−z) = φ(z)·M(z), M smooth in 1/(1 + z/3.75)
FARTHEST_DEVIATE = 1e150  # whose square is finite
INTEGRAL_NODES = 120
MOST_DF = 1000.0  # of which the integral is right to 4e-11, of 400 to 1e-12


def series_of(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return coefficients of powers of 2x − 1, the shortest good series of a function on [0, 1].

    Chebyshev's coefficients fall so fast that powers lose no digits, and take two operations each.
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
    """Return the series that agrees with a function at Chebyshev's points, (degree + 1,)."""
    t = chebyshev.chebpts1(degree + 1)
    T = chebyshev.chebvander(t, degree)
    found = np.asarray(T.T @ function(0.5 * (t + 1.0))) / (0.5 * (degree + 1))
    found[0] *= 0.5
    return found


def evaluated(powers: np.ndarray, x: Value) -> Value:
    """The series at x in [0, 1], elementwise, by Horner's rule."""
    t = 2.0 * x - 1.0
    value = t * float(powers[-1])
    for c in powers[-2:0:-1]:
        value = (value + float(c)) * t
    return value + float(powers[0])


def log1p(x: Value) -> Value:
    """log(1 + x), to the last digits for small x: rounding of 1 + x cancels in the quotient."""
    u = 1.0 + x
    is_one = x.graph.call("Equal", u, 1.0)
    return x.graph.where(is_one, x, u.log() * x / x.graph.where(is_one, 1.0, u - 1.0))


# ---- normal --------------------------------------------------------------------------------------


def mills(t: np.ndarray) -> np.ndarray:
    """Φ(−z)exp(z²/2)/t where t = 1/(1 + z/3.75), from z = ∞ at 0 to z = 0 at 1."""
    t = np.maximum(t, 1e-15)  # nearer to 0 it is the same
    return 0.5 * erfcx(MILLS_SCALE * (1.0 / t - 1.0) / math.sqrt(2.0)) / t


def normal_cdf(z: Value) -> Value:
    """Φ(z), to the last digits also where it is small."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    t = 1.0 / (1.0 + z.abs() / MILLS_SCALE)
    tail = (-0.5 * z.square()).exp() * t * evaluated(series_of(mills), t)
    return z.graph.where(z < 0.0, tail, 1.0 - tail)


def normal_density(z: Value) -> Value:
    """φ(z)."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    return (-0.5 * z.square()).exp() / math.sqrt(2.0 * math.pi)


# ---- Student-t -----------------------------------------------------------------------------------


def tail_factor(df: float, w: np.ndarray) -> np.ndarray:
    """H(w), by Gauss and Jacobi: P(T > z) = (w(2 − w))^(ν/2)·H(w) for w = 1 − z/√(ν + z²), z ≥ 0.

    H(w) = c ∫ v^(ν/2−1)·(1 + w(1 − v)/(2 − w))^(ν/2−1) dv/(2 − w) from 0 to 1 is smooth.
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
    """P(T ≤ z), T Student-t with ν > 2 degrees of freedom."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    square = z.square() + df
    root = square.sqrt()
    w = df / (root * (root + z.abs()))
    power = (0.5 * df * (df / square).log()).exp()
    tail = power * evaluated(series_of(lambda w: tail_factor(df, w)), w)
    return z.graph.where(z < 0.0, tail, 1.0 - tail)


def student_density(df: float, z: Value) -> Value:
    """Density of Student-t with ν degrees of freedom."""
    z = z.at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    log_c = gammaln(0.5 * df + 0.5) - gammaln(0.5 * df) - 0.5 * math.log(df * math.pi)
    return (float(log_c) - 0.5 * (df + 1.0) * (1.0 + z.square() / df).log()).exp()
