"""Compute q(f) given the training rows nearest to each row in an ONNX graph.

ONNX has no Cholesky factor. Elimination of the m neighbours, one after another, from

        ⎡ C    k    y ⎤
    A = ⎢ kᵀ   k**  0 ⎥      leaves    ⎡ k** − kᵀC⁻¹k    −kᵀC⁻¹y ⎤  =  ⎡  v   −μ ⎤
        ⎣ yᵀ   0    0 ⎦                ⎣    −yᵀC⁻¹k      −yᵀC⁻¹y ⎦     ⎣ −μ    · ⎦
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ..kernels import Tied
from ..kernels import expressions as k
from ..models.calibration.nearby import ErrorScale, ErrorsNearby
from ..models.features.near import NearFeatures
from ..models.features.network import FARTHEST_INPUT
from ..models.posteriors.neighbours import NeighbourPosterior
from .features import layer
from .graph import CannotExport, Value
from .kernels import number, radial
from .posteriors import LatentValues, latents
from .series import FARTHEST_DEVIATE, log1p

MOST_IN_GRAPH = 50_000_000  # of the training rows that a graph contains, 400 MB
LEAST_PIVOT = 1e-12  # relative to k(x, x), where predictions add a jitter
TOO_MANY = (
    "A graph contains the training rows. Save the model with its method save or with joblib.dump, "
    "or fit it to fewer rows."
)


@latents.register
@torch.no_grad()
def _(posterior: NeighbourPosterior, X: Value) -> list[LatentValues]:
    F = number(posterior.features)
    if F.size > MOST_IN_GRAPH:
        raise CannotExport(f"nearest neighbours among {len(F):,} rows", TOO_MANY)
    G = layer(posterior.network, X).at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    unit = number(posterior.located(posterior.features.new_ones(1, F.shape[1])))
    m = min(posterior.n_neighbors, len(F))
    N = nearest(G * unit, F * unit, m)
    S = X.graph.call("Gather", F, N, axis=0) - G.unsqueeze(1)  # (N, m, e)
    S = X.graph.concat([S, G.unsqueeze(1) * 0.0], 1)
    K = within(posterior.kernel, SetValues(S, G, m + 1)) + np.zeros((1, m + 1, m + 1))
    D, y = number(posterior.noise), number(posterior.residual)
    each = [given(K, gathered(D[:, p], N), gathered(y[:, p], N), m) for p in range(y.shape[1])]
    mean, var = (X.graph.concat(part, 1) for part in zip(*each, strict=True))
    mean = mean + number(posterior.constant)
    if posterior.spread is None:
        return [LatentValues(mean, var)]
    prior = K.columns([m], axis=1).columns([m], axis=2).squeeze(2)  # (N, 1)
    wider = spread_at(posterior.spread, G * unit, (var / prior).at_most(1.0))
    return [LatentValues(mean, var * wider.square(), wider)]


def nearest(Q: Value, Z: np.ndarray, m: int) -> Value:
    """Return the numbers of the m rows of Z that are nearest to each row of Q, (N, m)."""
    centre = Z.mean(0)
    B = Z - centre
    r2 = np.square(B).sum(1) - 2.0 * ((Q - centre) @ B.T)
    return r2.graph.smallest(r2, m)


def gathered(column: np.ndarray, N: Value) -> Value:
    """Return the values (n,) of rows N (N, m)."""
    return N.graph.call("Gather", column, N, axis=0)


def given(K: Value, D: Value, y: Value, m: int) -> tuple[Value, Value]:
    """Return mean and variance, (N, 1), from K (N, m + 1, m + 1), and D and y of m neighbours."""
    zero = D.columns([0]) * 0.0
    K = K + np.eye(m + 1) * K.graph.concat([D, zero], 1).unsqueeze(2)
    y = K.graph.concat([y, zero], 1)
    last = K.graph.concat([y, zero], 1).unsqueeze(1)
    A = K.graph.concat([K.graph.concat([K, y.unsqueeze(2)], 2), last], 1)

    floor = K.columns([m], axis=1).columns([m], axis=2) * LEAST_PIVOT

    def eliminate(A: Value) -> tuple[Value, list[Value]]:
        pivot = A.columns([0], axis=1).columns([0], axis=2).at_least(floor)
        row, rest = A.columns([0], axis=1).after(1, axis=2), A.after(1, axis=1).after(1, axis=2)
        return A.graph.constant(np.array([True])), [rest - turned(row) * (row / pivot)]

    (A,) = A.graph.repeat(m, [A], eliminate)
    row = A.columns([0], axis=1).squeeze(1)
    return -row.columns([1]), row.columns([0]).at_least(0.0)


def spread_at(spread: Any, place: Value, share: Value) -> Value:
    """Return F(x) at places, (N, P)."""
    assert isinstance(spread, ErrorScale)
    of_errors = ratio_at(spread.nearby, place) * float(spread.scale)
    return (share.square() + (1.0 - share.square()) * (of_errors * of_errors)).sqrt()


def ratio_at(nearby: ErrorsNearby | None, place: Value) -> Value:
    """Return r(x) at places, (N, P) or what broadcasts to it."""
    if nearby is None:
        return place.graph.constant(np.ones((1, 1)))
    N = nearest(place, number(nearby.places), nearby.k)
    w = gathered(number(nearby.weight), N)
    sizes = place.graph.call("Gather", number(nearby.sizes), N, axis=0)  # (N, k, P)
    total = (w.unsqueeze(2) * sizes).sum(1).squeeze(1)
    return (total + nearby.prior) / (w.sum(1) + nearby.prior)


# ---- covariances within sets ---------------------------------------------------------------------


class SetValues(NamedTuple):
    """SetValues of q rows: S (N, q, e), minus G (N, e), which is the last row of its set."""

    S: Value
    G: Value
    q: int


@functools.singledispatch
def within(kernel: Any, sets: SetValues) -> Value:
    """Return the covariances within sets of rows, (N, q, q), or what broadcasts to it."""
    raise CannotExport(kernel)


@within.register
def _(kernel: k.Radial, sets: SetValues) -> Value:
    if kernel.nu is None:
        raise CannotExport(kernel)
    return radial(squares(sets, kernel.length_scale), kernel.nu)


@within.register
def _(kernel: k.RationalQuadratic, sets: SetValues) -> Value:
    alpha, r2 = float(number(kernel.alpha)), squares(sets, kernel.length_scale)
    return (-alpha * log1p(r2 / (2.0 * alpha))).exp()


@within.register
def _(kernel: k.ExpSineSquared, sets: SetValues) -> Value:
    wave = (math.pi * squares(sets, kernel.periodicity).sqrt()).map("Sin")
    return (-2.0 * (wave / float(number(kernel.length_scale))).square()).exp()


@within.register
def _(kernel: k.DotProduct, sets: SetValues) -> Value:
    A = sets.S + sets.G.unsqueeze(1)
    return A @ turned(A) + float(number(kernel.sigma_0)) ** 2


@within.register
def _(kernel: k.Constant, sets: SetValues) -> Value:
    return sets.S.graph.constant(np.full((1, 1, 1), float(number(kernel.constant_value))))


@within.register
def _(kernel: k.WhiteNoise, sets: SetValues) -> Value:
    return sets.S.graph.constant(np.eye(sets.q)[None] * float(number(kernel.noise_level)))


@within.register
def _(kernel: Tied, sets: SetValues) -> Value:
    return within(kernel.kernel, sets)


@within.register
def _(kernel: k.Sum, sets: SetValues) -> Value:
    return within(kernel.k1, sets) + within(kernel.k2, sets)


@within.register
def _(kernel: k.Product, sets: SetValues) -> Value:
    return within(kernel.k1, sets) * within(kernel.k2, sets)


@within.register
def _(kernel: k.Exponentiation, sets: SetValues) -> Value:
    return within(kernel.kernel, sets) ** kernel.exponent


def squares(sets: SetValues, length_scale: Any) -> Value:
    """Return ‖(s_i − s_j)/ℓ‖² within sets, (N, q, q)."""
    A = sets.S / number(length_scale)
    norms = A.square().sum(2)  # (N, q, 1)
    r2 = norms + turned(norms) - 2.0 * (A @ turned(A))
    return r2.at_least(0.0) * (1.0 - np.eye(sets.q))


def turned(A: Value) -> Value:
    """Return Aᵀ of each set."""
    return A.map("Transpose", perm=[0, 2, 1])


@layer.register
def _(module: NearFeatures, X: Value) -> Value:
    X = X.at_least(-FARTHEST_INPUT).at_most(FARTHEST_INPUT)
    limited = X.at_least(number(module.limits.low)).at_most(number(module.limits.high))
    H = layer(module.network, (limited * number(module.gate)).unsqueeze(0))
    h = layer(module.network_head, H).squeeze(0)
    return X.graph.concat([limited * number(module.log_scale.exp()), h], 1)
