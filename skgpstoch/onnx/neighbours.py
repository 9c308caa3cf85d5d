"""Compute q(f) given the training rows nearest to each row in an ONNX graph.

ONNX has no Cholesky factor. Sweeps with the m neighbours, one after another, take

        ⎡ C    k    y ⎤       ⎡ −C⁻¹   β    α ⎤
    A = ⎢ kᵀ   k**  0 ⎥   to   ⎢  βᵀ    v   −μ ⎥
        ⎣ yᵀ   0    0 ⎦       ⎣  αᵀ   −μ    · ⎦
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ..kernels import Tied
from ..kernels import expressions as k
from ..models.features.near import NearFeatures
from ..models.features.network import FARTHEST_INPUT
from ..models.posteriors.nearby import LEAST_KNOWN, TINIEST, ErrorsNearby
from ..models.posteriors.neighbours import NeighbourPosterior, lag_of
from .features import layer
from .graph import MOST_IN_GRAPH, CannotExport, Value
from .kernels import number, radial
from .posteriors import LatentValues, latents
from .series import FARTHEST_DEVIATE, log1p

LEAST_PIVOT = 1e-12  # relative to the variance of neighbours, where predictions add a jitter
TOO_MANY = (
    "A graph contains the training rows. Save the model with its method save or with joblib.dump, "
    "or fit it to fewer rows."
)


@latents.register
@torch.no_grad()
def _(posterior: NeighbourPosterior, X: Value) -> list[LatentValues]:
    places = posterior.places
    F = number(places.G)
    if F.size > MOST_IN_GRAPH:
        raise CannotExport(f"nearest neighbours among {len(F):,} rows", TOO_MANY)
    G = layer(posterior.network, X).at_least(-FARTHEST_DEVIATE).at_most(FARTHEST_DEVIATE)
    unit = number(posterior.located(places.G.new_ones(1, F.shape[1])))
    m = min(posterior.n_neighbors, len(F))
    lag = lag_of(posterior)
    N = nearest(G * unit, F * unit, m, 0.0 if lag is None else number(lag))
    F_N = X.graph.call("Gather", F, N, axis=0)  # (N, m, e)
    centre = F_N.columns([0], axis=1)  # from a far row, rounding would hide what is between others
    S = X.graph.concat([F_N, G.unsqueeze(1)], 1) - centre
    K = within(posterior.kernel, SetValues(S, centre, m + 1)) + np.zeros((1, m + 1, m + 1))
    prior, w = last(K), gathered(number(places.weight), N)
    D, y, more = number(places.D), number(places.y), number(places.variance - places.D)
    found = []
    of_mean = posterior.mean_variance.tolist()
    for p, c in enumerate(posterior.constant.tolist()):
        D_N = gathered(D[:, p], N)
        each = given(K, D_N, gathered(y[:, p], N), m, of_mean[p])
        of_f, of_noise = widths(posterior, p, each, D_N, (gathered(more[:, p], N), w), prior)
        less = posterior.share_of_variance * of_mean[p] * (1.0 - each.beta.sum(1))
        found.append(LatentValues(each.mean + c - less, each.var * of_f, of_noise))
    mean, var, ratio = zip(*found, strict=True)
    joined = X.graph.concat(mean, 1), X.graph.concat(var, 1)
    return [LatentValues(*joined, None if ratio[0] is None else X.graph.concat(ratio, 1))]


def nearest(Q: Value, Z: np.ndarray, m: int, lag: Any) -> Value:
    """Return the numbers of the m rows of Z that are nearest to each row of Q, (N, m).

    Squared distances are larger by each row's lag.
    """
    centre = np.median(Z, axis=0)  # of the bulk, whose distances a far row would round away
    B = Z - centre
    r2 = np.square(B).sum(1) + lag - 2.0 * ((Q - centre) @ B.T)
    return r2.graph.smallest(r2, m)


def gathered(column: np.ndarray, N: Value) -> Value:
    """Return the values (n,) of rows N (N, m)."""
    return N.graph.call("Gather", column, N, axis=0)


class GivenValues(NamedTuple):
    """f of one output, (N, 1), and β, α and diag C⁻¹ of neighbours, (N, m)."""

    mean: Value
    var: Value
    without: Value  # v if the mean were known
    beta: Value
    alpha: Value
    precision: Value


def given(K: Value, D: Value, y: Value, m: int, of_mean: float) -> GivenValues:
    """Return f from K (N, m + 1, m + 1), D and y of m neighbours, and var c."""
    graph, zero = K.graph, D.columns([0]) * 0.0
    sizes = (K * np.eye(m + 1)).sum(2).squeeze(2).columns(range(m))  # of neighbours: x may be far
    floor = sizes.max(1).unsqueeze(2) * LEAST_PIVOT
    K = K + np.eye(m + 1) * graph.concat([D, zero], 1).unsqueeze(2)
    y = graph.concat([y, zero], 1)
    below = graph.concat([y, zero], 1).unsqueeze(1)
    A = graph.concat([graph.concat([K, y.unsqueeze(2)], 2), below], 1)

    def sweep(A: Value) -> tuple[Value, list[Value]]:
        """Sweep with the first row, which becomes the last one."""
        pivot = A.columns([0], axis=1).columns([0], axis=2).at_least(floor)
        row, rest = A.columns([0], axis=1).after(1, axis=2), A.after(1, axis=1).after(1, axis=2)
        swept = row / pivot
        rest = graph.concat([rest - turned(row) * swept, turned(swept)], 2)
        rest = graph.concat([rest, graph.concat([swept, -1.0 / pivot], 2)], 1)
        return graph.constant(np.array([True])), [rest]

    (A,) = graph.repeat(m, [A], sweep)
    of_x, of_y = (A.columns([at], axis=1).squeeze(1) for at in (0, 1))
    precision = (A.after(2, axis=1).after(2, axis=2) * -np.eye(m)).sum(2).squeeze(2)
    v, beta = of_x.columns([0]).at_least(0.0), of_x.after(2, 1)
    var = v + of_mean * (1.0 - beta.sum(1)).square()
    return GivenValues(-of_x.columns([1]), var, v, beta, of_y.after(2, 1), precision)


def last(K: Value) -> Value:
    """Return the variance of each set's last row, (N, 1), from K (N, q, q)."""
    return K.after(-1, axis=1).after(-1, axis=2).squeeze(2)


def widths(
    posterior: NeighbourPosterior, p: int, given: GivenValues, D: Value, of_N: Any, prior: Value
) -> tuple[Any, Value | None]:
    """Return the factor of the variance of f, and that of the noise's deviation, (N, 1)."""
    if posterior.spread is None:
        return 1.0, None
    scale, noise = posterior.spread, float(posterior.variance[p])
    odds = given.without / (prior - given.without).at_least(prior * LEAST_KNOWN)
    most_odds = max(float(scale.most_odds[p]), TINIEST)
    known = (most_odds / odds.at_least(TINIEST)).at_most(1.0)
    m = min(posterior.n_neighbors, len(posterior.places.G))
    more, w = of_N
    v = given.var.at_least(TINIEST)
    within = ((1.0 / odds.at_least(TINIEST) + 1.0) * (most_odds / (1.0 + most_odds))).at_most(1.0)
    std = (within * v + noise).at_least(TINIEST).sqrt()
    r = ratio_at(scale.nearby, p, given, more, w, m)
    of_errors = std ** (scale.exponent - 1.0) * float(scale.factor[p]) * r
    F2 = ((1.0 - known) + known * of_errors.square()).at_least(TINIEST)
    n = (given.beta.square() * D).sum(1).at_most(v)
    s = (v - n) / (v + noise)
    T = 1.0 + known * (scale.tails - 1.0)
    f = ((2.0 * s - 1.0) * (T * F2).log()).exp() * (v - n) + n
    unit = F2 * (v + noise) / (f + noise / T)
    return unit * f / v, (unit / T).sqrt()


def ratio_at(
    nearby: ErrorsNearby | None, p: int, given: GivenValues, more: Value, w: Value, m: int
) -> Value:
    """Return r(x), (N, 1), from what neighbours' noise is more than D, and weights, (N, m)."""
    if nearby is None:
        return given.var * 0.0 + 1.0
    variance = 1.0 / given.precision + more
    sizes = (given.alpha / given.precision).abs() / variance.at_least(TINIEST).sqrt()
    some = range(min(nearby.k, m))  # as in a prediction
    sizes, w = (part.columns(some) for part in (sizes / float(nearby.usual[p]), w))
    return ((w * sizes).sum(1) + nearby.prior) / (w.sum(1) + nearby.prior)


# ---- covariances within sets ---------------------------------------------------------------------


class SetValues(NamedTuple):
    """Sets of q rows: S (N, q, e), minus the row nearest to the last one, centre (N, 1, e)."""

    S: Value
    centre: Value
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
    A = sets.S + sets.centre
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
