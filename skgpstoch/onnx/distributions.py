"""Moments and quantiles of mixtures of normal and Student-t distributions, in an ONNX graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from onnx import TensorProto
from scipy.special import ndtri, stdtrit

from ..likelihoods.shared_precision import t_nodes
from ..likelihoods.skewed import SkewMap
from ..methods.automatic.new_levels import SHARE_OF_GAP
from ..methods.automatic.rounded_targets import (
    FEW_ATOMS,
    LEAST_BEYOND,
    MOST_CELLS,
    WINDOW,
    Lattice,
)
from .graph import CannotExport, Value
from .series import normal_cdf, normal_density, student_cdf, student_density

QUANTILE_STEPS = 80  # most steps for a quantile; six or seven are usual
NEAR_QUANTILE = 1e-9  # error, relative to the nearer tail, from which one step is exact to rounding


class Component(NamedTuple):
    """A location-scale distribution for each row and output, with mean and scale (N, P)."""

    mean: Value
    scale: Value
    weight: float = 1.0


class Family(NamedTuple):
    """The family of components; normal by default.

    Parameters
    ----------
    df : tuple of float or None, default=None
        Degrees of freedom for each output, if the family is Student-t.
    name : str or None, default=None
        Name of any other family. Its scale is the standard deviation, and only its moments are
        known.
    """

    df: tuple[float, ...] | None = None
    name: str | None = None

    def check_has_quantiles(self) -> None:
        """Raise an error if the family has no distribution function."""
        if self.name is not None:
            raise CannotExport(f"quantiles of {self.name}")

    def variance(self, scale: Value) -> Value:
        """Return the variance of components with this scale (N, P, K)."""
        if self.df is None:
            return scale.square()
        df = np.array(self.df)
        return scale.square() * (df / (df - 2.0))[:, None]

    def quantile(self, probability: float) -> np.ndarray:
        """Return the quantile for scale 1, (1, 1) or (P, 1)."""
        self.check_has_quantiles()
        z = ndtri(probability) if self.df is None else stdtrit(self.df, probability)
        return np.asarray(z, dtype=np.float64).reshape(-1, 1)

    def cdf_and_density(self, z: Value) -> tuple[Value, Value]:
        """Return the distribution function and the density for scale 1 at z (N, P, K)."""
        self.check_has_quantiles()
        if self.df is None:
            return normal_cdf(z), normal_density(z)
        if len(set(self.df)) == 1:
            return student_cdf(self.df[0], z), student_density(self.df[0], z)
        each = [(df, z.columns([p])) for p, df in enumerate(self.df)]
        pairs = [(student_cdf(df, z), student_density(df, z)) for df, z in each]
        cdf, density = (z.graph.concat(parts, 1) for parts in zip(*pairs, strict=True))
        return cdf, density


class MixtureValues(NamedTuple):
    """A mixture of K components of a family, possibly skewed.

    Parameters
    ----------
    family : Family
        Family of the components.
    mean, scale : Value
        Means and scales of the components, (N, P, K).
    weight : ndarray of shape (K,)
        Weights of the components, with sum 1.
    skew : SkewMap or None, default=None
        Map, of values, that is applied to draws of the mixture; None for no map.
    """

    family: Family
    mean: Value
    scale: Value
    weight: np.ndarray
    skew: Any = None

    @classmethod
    def of(cls, components: Sequence[Component], family: Family) -> MixtureValues:
        """Make a mixture of components; their weights may have any sum."""
        graph, weight = components[0].mean.graph, np.array([c.weight for c in components])
        mean, scale = (
            graph.concat([value.unsqueeze(2) for value in values], 2)
            for values in ([c.mean for c in components], [c.scale for c in components])
        )
        return cls(family, mean, scale, weight / weight.sum())

    def averaged(self, values: Value) -> Value:
        """Return the weighted average (N, P) of the components' values (N, P, K)."""
        return (values * self.weight).sum(2).squeeze(2)

    def moments(self) -> tuple[Value, Value]:
        """Return mean and variance of each row, (N, P); skewing does not change them."""
        mean = self.averaged(self.mean)
        square = (self.mean - mean.unsqueeze(2)).square()
        return mean, self.averaged(self.family.variance(self.scale) + square)

    def ends(self, probability: float) -> list[Value]:
        """Return bounds of the quantile: the components' least and greatest quantiles."""
        each = self.mean + self.scale * self.family.quantile(probability)
        if len(self.weight) == 1:
            found = [each.squeeze(2)]
        else:
            found = [each.min(2).squeeze(2), each.max(2).squeeze(2)]
        return found if self.skew is None else [self.skew(end) for end in found]

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """Return P(Y ≤ y) and p(y), each (N, P)."""
        skew, slope = self.skew, None
        if skew is not None:
            u = skew.deviation(y)
            y = skew.mean + skew.std * u
            slope = (u / (u.square() + 1.0).sqrt() * skew.S + skew.C) / skew.scale
        cdf, density = self.family.cdf_and_density((y.unsqueeze(2) - self.mean) / self.scale)
        density = self.averaged(density / self.scale)
        return self.averaged(cdf), density if slope is None else density / slope

    def in_units(self, offset: np.ndarray, scale: np.ndarray) -> MixtureValues:
        """Return the mixture of y·scale + offset, with scale and offset (P,)."""
        skew, mean = self.skew, self.mean * scale[:, None] + offset[:, None]
        if skew is not None:
            skew = skew._replace(mean=skew.mean * scale + offset, std=skew.std * scale)
        return self._replace(mean=mean, scale=self.scale * scale[:, None], skew=skew)


class Weighted(NamedTuple):
    """A mixture of mixtures, whose mean may have weights of its own.

    Weights are numbers or, if they depend on the row, values (N, 1).
    """

    weights: tuple[Any, ...]
    parts: tuple[MixtureValues, ...]
    mean_weights: tuple[float, ...] | None = None

    def moments(self) -> tuple[Value, Value]:
        """Return mean and variance of each row, (N, P)."""
        pairs = [part.moments() for part in self.parts]
        if len(pairs) == 1:
            return pairs[0]
        shares = self.weights if self.mean_weights is None else self.mean_weights
        mean = total([m * w for (m, _), w in zip(pairs, shares, strict=True)])
        return mean, self._averaged([var + (m - mean).square() for m, var in pairs])

    def density_mean(self) -> Value:
        """Return the mean of the density, (N, P)."""
        return self._averaged([part.moments()[0] for part in self.parts])

    def _averaged(self, values: Sequence[Value]) -> Value:
        return total([value * w for value, w in zip(values, self.weights, strict=True)])

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """Return P(Y ≤ y) and p(y), each (N, P)."""
        pairs = [part.cdf_and_density(y) for part in self.parts]
        cdf, density = (self._averaged(values) for values in zip(*pairs, strict=True))
        return cdf, density

    def ends(self, probability: float) -> list[Value]:
        """Return bounds of the quantile."""
        return [end for part in self.parts for end in part.ends(probability)]


class Copies(NamedTuple):
    """Which of N rows each of M is a copy of, (M,), and which one of at most S copies, (M,).

    Also each one's share of that row, (M, 1), N, (1,), and S.
    """

    row: Value
    place: Value
    share: Value
    n_rows: Value
    most: int

    def averaged(self, values: Value) -> Value:
        """Return the averages (N, P) of the values (M, P) at the copies of each row."""
        return self.reduced(values * self.share, "add", 0.0)

    def reduced(self, values: Value, reduction: str, start: float) -> Value:
        """Reduce values (M, P) at copies to values of rows, (N, P)."""
        graph = values.graph
        shape = graph.concat([self.n_rows, values.shape(1)], 0)
        empty = graph.call("Expand", start, shape)
        return graph.call("ScatterND", empty, self.row.unsqueeze(1), values, reduction=reduction)

    def gaps(self, values: Value) -> Value:
        """Return how far the value (M, P) at each copy is from the √K-th nearest of K at its row.

        It is 0 where K is 1.
        """
        graph, n_outputs = values.graph, values.shape(1)
        shape = graph.concat([self.n_rows, np.array([self.most]), n_outputs], 0)
        places = graph.concat([self.row.unsqueeze(1), self.place.unsqueeze(1)], 1)
        absent = graph.call("Expand", math.inf, shape)
        among = graph.call("ScatterND", absent, places, values).columns(self.row, axis=0)
        apart = graph.ascending((among - values.unsqueeze(1)).abs(), self.most)  # (M, S, P)
        n_copies = 1.0 / self.share
        rank = n_copies.sqrt().map("Round").map("Cast", to=TensorProto.INT64).unsqueeze(2)
        rank = graph.call("Expand", rank, graph.concat([np.array([1, 1]), n_outputs], 0))
        found = graph.call("GatherElements", apart, rank, axis=1).squeeze(1)
        return graph.where(n_copies > 1.5, found, 0.0)


class Widened(NamedTuple):
    """The distributions of m + c (z − m), with centre m and factor c (M, P)."""

    of_z: Weighted
    centre: Value
    factor: Value

    def moments(self) -> tuple[Value, Value]:
        """Return mean and variance of each row, (M, P)."""
        mean, var = self.of_z.moments()
        return mean, var * self.factor.square()

    def density_mean(self) -> Value:
        """Return the mean of the density, (M, P)."""
        return self._y(self.of_z.density_mean())

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """Return P(Y ≤ y) and p(y), each (M, P)."""
        z = self.centre + (y - self.centre) / self.factor
        cdf, density = self.of_z.cdf_and_density(z)
        return cdf, density / self.factor

    def ends(self, probability: float) -> list[Value]:
        """Return bounds of the quantile."""
        return [self._y(end) for end in self.of_z.ends(probability)]

    def _y(self, z: Value) -> Value:
        return self.centre + self.factor * (z - self.centre)


class OverLevels(NamedTuple):
    """Mixtures, for each row, of the distributions of its copies, each with another level."""

    given: Widened  # of M copies
    copies: Copies

    @classmethod
    def of(cls, given: Weighted, copies: Copies, are_counts: bool) -> OverLevels:
        """Widen the distributions of copies, as :mod:`skgpstoch.methods.automatic.new_levels`."""
        mean, var = given.moments()
        if are_counts:
            return cls(Widened(given, mean, 0.0 * var + 1.0), copies)
        std = mean.graph.where(var > 0.0, var.sqrt(), math.inf)
        factor = ((SHARE_OF_GAP * copies.gaps(mean) / std).square() + 1.0).sqrt()
        return cls(Widened(given, mean, factor), copies)

    def moments(self) -> tuple[Value, Value]:
        """Return mean and variance of each row, (N, P)."""
        (m, var), centre = self.given.moments(), self.given.density_mean()
        mean = self.copies.averaged(m)
        apart = m - self._copied(mean)  # var is about m, which need not be the density's mean
        each = var + apart * (2.0 * centre - m - self._copied(mean))
        return mean, self.copies.averaged(each).at_least(0.0)

    def density_mean(self) -> Value:
        """Return the mean of the density, (N, P)."""
        return self.copies.averaged(self.given.density_mean())

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """Return P(Y ≤ y) and p(y), each (N, P)."""
        cdf, density = self.given.cdf_and_density(self._copied(y))
        return self.copies.averaged(cdf), self.copies.averaged(density)

    def ends(self, probability: float) -> list[Value]:
        """Return bounds of the quantile."""
        return [
            self.copies.reduced(end, reduction, start)
            for end in self.given.ends(probability)
            for reduction, start in (("min", math.inf), ("max", -math.inf))
        ]

    def _copied(self, values: Value) -> Value:
        """Return values (N, P) at copies, (M, P)."""
        return values.columns(self.copies.row, axis=0)


def quantile(given: Weighted | OverLevels, probability: float) -> Value:
    """Return the y with P(Y ≤ y) = p, (N, P), by Newton steps between bounds."""
    ends = given.ends(probability)
    if len(ends) == 1:
        return ends[0]
    graph, tail = ends[0].graph, min(probability, 1.0 - probability)
    low, high = (functools.reduce(f, ends) for f in (Value.at_most, Value.at_least))
    start = total([end * (1.0 / len(ends)) for end in ends]).at_least(low).at_most(high)

    def step(y: Value, low: Value, high: Value) -> tuple[Value, list[Value]]:
        cdf, density = given.cdf_and_density(y)
        error = cdf - probability
        is_below = error < 0.0
        low, high = graph.where(is_below, y, low), graph.where(is_below, high, y)
        newton = y - error / density.at_least(1e-300)
        outside = ((newton - low).at_most(high - newton)) < 0.0
        found = graph.where(outside, 0.5 * (low + high), newton)
        is_far = -error.abs().max(0).max(1) < -NEAR_QUANTILE * tail
        return is_far, [found, low, high]

    return graph.repeat(QUANTILE_STEPS, [start, low, high], step)[0]


def total(values: Sequence[Value]) -> Value:
    """Return the sum."""
    return functools.reduce(Value.__add__, values)


def skewed(symmetric: MixtureValues, epsilon: np.ndarray) -> MixtureValues:
    """Skew a mixture of Student-t distributions by ε (P,)."""
    mean, var = symmetric.moments()
    std, C, S = var.sqrt(), np.cosh(epsilon), np.sinh(epsilon)
    t, weight = t_nodes(symmetric.family.df or ())

    def expected(function: Callable[[Value], Value]) -> Value:
        parts = []
        for node, w in zip(t, weight, strict=True):
            y = symmetric.mean + symmetric.scale * node[:, None]
            u = (y - mean.unsqueeze(2)) / std.unsqueeze(2)
            parts.append(symmetric.averaged(function(u)) * float(w))
        return total(parts)

    h = expected(lambda u: (u.square() + 1.0).sqrt())
    k = expected(lambda u: u * (u.square() + 1.0).sqrt())
    b = (np.square(C) + np.square(S) * (2.0 - h.square()) + k * (2.0 * C * S)).sqrt()
    return symmetric._replace(skew=SkewMap(*cast(Any, (mean, std, C, S, h * S, b))))


# ---- targets on a lattice ------------------------------------------------------------------------


def rounded_moments(given: Weighted | OverLevels, lattice: Lattice) -> tuple[Value, Value]:
    """Return mean and variance of y, (N, 1), if a share of y is rounded to the nearest atom.

    If many atoms are within six standard deviations, they are those of the density, unless the
    first or the last is among them, and takes much of what is beyond.
    """
    mean, var = given.moments()
    centre = given.density_mean()
    graph, std, edges, share = mean.graph, var.sqrt(), lattice.edges[None], lattice.weight
    low, high = (below(mean + std * z, edges) for z in (-WINDOW, WINDOW))
    end = mean * 0.0
    cdf, _ = given.cdf_and_density(end + edges)  # (N, J − 1)
    P = graph.concat([cdf, end + 1.0], 1) - graph.concat([end, cdf], 1)
    shift = (P * (lattice.atoms - centre)).sum(1) * share
    square = (P * (lattice.atoms - mean).square()).sum(1) * share + var * (1.0 - share)
    is_coarse = high - low < MOST_CELLS
    is_at_end = graph.call("Or", low < 1.0, high > len(lattice.atoms) - 2.0)
    if len(lattice.atoms) > FEW_ATOMS:
        beyond = P.columns([0, len(lattice.atoms) - 1]).sum(1)
        is_at_end = graph.call("And", is_at_end, beyond > LEAST_BEYOND)
    is_coarse = graph.call("Or", is_coarse, is_at_end)
    rounded = (square - shift * (shift + 2.0 * (centre - mean))).at_least(0.0)
    return graph.where(is_coarse, mean + shift, mean), graph.where(is_coarse, rounded, var)


def below(y: Value, edges: np.ndarray) -> Value:
    """Return how many edges (1, J − 1) are below y (N, 1), as (N, 1)."""
    return (y - edges > 0.0).map("Cast", to=TensorProto.DOUBLE).sum(1)
