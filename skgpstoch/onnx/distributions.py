"""Mixtures of normal and Student-t distributions at rows of a graph: moments and quantiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from ..likelihoods.shared_precision import t_nodes
from .graph import Value
from .refusals import CannotExport
from .series import normal_cdf, normal_density, student_cdf, student_density

QUANTILE_STEPS = 80  # that a quantile may take; six or seven are usual
CLOSE = 1e-9  # of the nearer tail: the step from there is exact to rounding


class Component(NamedTuple):
    """A location-scale distribution of each row and output.

    Parameters
    ----------
    weight : float
        Its share.
    mean, scale : Value
        (N, P).
    df : ndarray of shape (P,) or None
        Degrees of freedom of Student-t; None is a normal distribution.
    name : str or None
        Of another distribution, whose standard deviation is `scale`: it has moments alone.
    """

    weight: float
    mean: Value
    scale: Value
    df: np.ndarray | None = None
    name: str | None = None

    def variance(self) -> Value:
        """Variance of each row, (N, P)."""
        var = self.scale.square()
        return var if self.df is None else var * (self.df / (self.df - 2.0))

    def quantile(self, probability: float) -> Value:
        """Where the component alone has this probability."""
        z = ndtri(probability) if self.df is None else stdtrit(self.df, probability)
        return self.mean + self.scale * np.asarray(z, dtype=np.float64)

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """P(Y ≤ y) and p(y), each (N, P)."""
        if self.name is not None:
            raise CannotExport(f"quantiles of {self.name}")
        z = (y - self.mean) / self.scale
        if self.df is None:
            return normal_cdf(z), normal_density(z) / self.scale
        if len(set(self.df.tolist())) == 1:
            found = [(student_cdf(df, z), student_density(df, z)) for df in self.df[:1].tolist()]
        else:
            each = [(df, z.columns([p])) for p, df in enumerate(self.df.tolist())]
            found = [(student_cdf(df, z), student_density(df, z)) for df, z in each]
        cdf, density = (z.graph.concat(parts, 1) for parts in zip(*found, strict=True))
        return cdf, density / self.scale

    def in_units(self, offset: np.ndarray, scale: np.ndarray) -> Component:
        """Of y·scale + offset."""
        return self._replace(mean=self.mean * scale + offset, scale=self.scale * scale)


class Skew(NamedTuple):
    """y → m + s·T((y − m)/s), an increasing function: see :mod:`skgpstoch.likelihoods.skewed`."""

    mean: Value
    std: Value
    C: np.ndarray
    S: np.ndarray
    shift: Value
    scale: Value

    def __call__(self, y: Value) -> Value:
        u = (y - self.mean) / self.std
        w = u * self.C + (u.square() + 1.0).sqrt() * self.S
        return self.mean + self.std * (w - self.shift) / self.scale

    def inverse_and_slope(self, y: Value) -> tuple[Value, Value]:
        """T⁻¹ of y, and the slope of T there."""
        w = self.shift + self.scale * (y - self.mean) / self.std
        u = w * self.C - (w.square() + 1.0).sqrt() * self.S
        slope = (u / (u.square() + 1.0).sqrt() * self.S + self.C) / self.scale
        return self.mean + self.std * u, slope

    def in_units(self, offset: np.ndarray, scale: np.ndarray) -> Skew:
        """Of y·scale + offset."""
        return self._replace(mean=self.mean * scale + offset, std=self.std * scale)


class Mixture(NamedTuple):
    """A mixture of components, of weights with the sum 1, which may be made skew."""

    components: tuple[Component, ...]
    skew: Skew | None = None

    def moments(self) -> tuple[Value, Value]:
        """Mean and variance of each row, (N, P); those of a skew one are the same."""
        mean = total([c.mean * c.weight for c in self.components])
        parts = [(c.variance() + (c.mean - mean).square()) * c.weight for c in self.components]
        if len(parts) == 1:
            return self.components[0].mean, self.components[0].variance()
        return mean, total(parts)

    def ends(self, probability: float) -> list[Value]:
        """The components' own quantiles, between which that of the mixture is."""
        found = [component.quantile(probability) for component in self.components]
        return found if self.skew is None else [self.skew(end) for end in found]

    def cdf_and_density(self, y: Value) -> tuple[Value, Value]:
        """P(Y ≤ y) and p(y), each (N, P)."""
        slope = None
        if self.skew is not None:
            y, slope = self.skew.inverse_and_slope(y)
        each = [component.cdf_and_density(y) for component in self.components]
        weights = [component.weight for component in self.components]
        cdf, density = (
            total([part * w for part, w in zip(parts, weights, strict=True)])
            for parts in zip(*each, strict=True)
        )
        return cdf, density if slope is None else density / slope

    def in_units(self, offset: np.ndarray, scale: np.ndarray) -> Mixture:
        """Of y·scale + offset."""
        skew = None if self.skew is None else self.skew.in_units(offset, scale)
        return Mixture(tuple(c.in_units(offset, scale) for c in self.components), skew)


class Weighted(NamedTuple):
    """A mixture of mixtures."""

    weights: tuple[float, ...]
    parts: tuple[Mixture, ...]

    def moments(self) -> tuple[Value, Value]:
        """Mean and variance of each row, (N, P)."""
        pairs = [part.moments() for part in self.parts]
        if len(pairs) == 1:
            return pairs[0]
        mean = self._averaged([m for m, _ in pairs])
        return mean, self._averaged([var + (m - mean).square() for m, var in pairs])

    def _averaged(self, values: Sequence[Value]) -> Value:
        return total([value * w for value, w in zip(values, self.weights, strict=True)])

    def quantile(self, probability: float) -> Value:
        """Where P(Y ≤ y) is this, (N, P): by Newton's steps between bounds, halved where need be."""
        ends = [end for part in self.parts for end in part.ends(probability)]
        if len(ends) == 1:
            return ends[0]
        graph, tail = ends[0].graph, min(probability, 1.0 - probability)
        low, high = (functools.reduce(f, ends) for f in (Value.at_most, Value.at_least))
        start = total([end * (1.0 / len(ends)) for end in ends]).at_least(low).at_most(high)

        def step(y: Value, low: Value, high: Value) -> tuple[Value, list[Value]]:
            pairs = [part.cdf_and_density(y) for part in self.parts]
            error = self._averaged([cdf for cdf, _ in pairs]) - probability
            density = self._averaged([density for _, density in pairs])
            is_below = error < 0.0
            low, high = graph.where(is_below, y, low), graph.where(is_below, high, y)
            newton = y - error / density.at_least(1e-300)
            outside = ((newton - low).at_most(high - newton)) < 0.0
            found = graph.where(outside, 0.5 * (low + high), newton)
            is_far = -error.abs().max(0).max(1) < -CLOSE * tail
            return is_far, [found, low, high]

        return graph.repeat(QUANTILE_STEPS, [start, low, high], step)[0]


def total(values: Sequence[Value]) -> Value:
    """Return the sum."""
    return functools.reduce(Value.__add__, values)


def skewed(components: tuple[Component, ...], epsilon: np.ndarray) -> Mixture:
    """Return a mixture of Student-t distributions that is made skew, by ε (P,)."""
    symmetric = Mixture(components)
    mean, var = symmetric.moments()
    std, C, S = var.sqrt(), np.cosh(epsilon), np.sinh(epsilon)

    def expected(function: Callable[[Value], Value]) -> Value:
        parts = []
        for c in components:
            t, weight = t_nodes(tuple(c.df.tolist()))
            parts += [
                function(((c.mean + c.scale * node) - mean) / std) * float(c.weight * w)
                for node, w in zip(t, weight, strict=True)
            ]
        return total(parts)

    h = expected(lambda u: (u.square() + 1.0).sqrt())
    k = expected(lambda u: u * (u.square() + 1.0).sqrt())
    b = (np.square(C) + np.square(S) * (2.0 - h.square()) + k * (2.0 * C * S)).sqrt()
    return Mixture(components, Skew(mean, std, C, S, h * S, b))
