"""Limit the inverses of target transformers to the branch where they are monotone.

The inverse of √y is z², which rises for z > 0 and falls below. The inverse of 1/y is 1/z, which has
two branches. Both are used for positive targets, so predictions are limited to the branch that the
training targets are on.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

TURN_REACH = 4.0  # search turning points within so many ranges of z on both sides
BRANCH_PROBES = 4097  # number of points where a map is evaluated
FALL = 1e-9  # relative decrease of a target that may be rounding
TURN_STEP = 1e-3  # share of the bracket of a turning point over which a map must not fall
STEP_WIDTH = 1e-4  # share of the range of z over which a map without steps must change
LEAST_ROUNDINGS = 100.0  # such a width must be so many times the rounding error of z
BISECTIONS = 60


@dataclass(frozen=True)
class OnBranch:
    """A fitted transformer whose inverse is constant below `low` and above `high`, (P,) each."""

    transformer: Any
    low: np.ndarray
    high: np.ndarray

    def transform(self, y: np.ndarray) -> np.ndarray:
        """Return z of targets (n, P)."""
        return np.asarray(self.transformer.transform(y), dtype=np.float64)

    def inverse_transform(self, z: np.ndarray) -> np.ndarray:
        """Return targets of z (n, P), limited to the branch."""
        return inverse_of(self.transformer, np.clip(z, self.low, self.high))


def inverse_of(transformer: Any, z: np.ndarray) -> np.ndarray:
    """Return targets of z (n, P), without warnings where the inverse does not exist."""
    with quietly():
        y = transformer.inverse_transform(np.array(z, dtype=np.float64))
    return np.asarray(y, dtype=np.float64).reshape(z.shape)


def on_branch(transform: Any, fitted: Any, y: np.ndarray, z: np.ndarray) -> Any:
    """Return a fitted transformer of targets (n, P), limited to their branch if it has several.

    Raises
    ------
    ValueError
        If the inverse is not monotone, or has steps, between the targets.
    """
    check_steps(transform, fitted, y, z)
    ends = np.array([_ends(transform, fitted, z, p) for p in range(z.shape[1])])
    return OnBranch(fitted, *ends.T) if np.isfinite(ends).any() else fitted


def check_steps(transform: Any, fitted: Any, y: np.ndarray, z: np.ndarray) -> None:
    """Raise a ValueError if targets are constant on an interval inside the range of z (n, P)."""
    low, high = z.min(0), z.max(0)
    width = STEP_WIDTH * (high - low)
    below, at, above = (inverse_of(fitted, np.clip(z + k * width, low, high)) for k in (-1, 0, 1))
    is_inside = (z - width > low) & (z + width < high)
    is_inside &= width > LEAST_ROUNDINGS * np.finfo(float).eps * np.abs(z)
    is_step = is_inside & ((below == at) | (at == above))
    if not is_step.any():
        return
    row, p = np.argwhere(is_step)[0]
    n_tied = int((y[:, p] == y[row, p]).sum())
    raise ValueError(
        "target_transform must be continuous, because predictions are transformed "
        f"back, but {brief(transform)} jumps at y = {y[row, p]:g}, a value that "
        f"{n_tied} rows share. Such ties make QuantileTransformer jump: lower its "
        "n_quantiles, or use 'yeo-johnson'."
    )


def _ends(transform: Any, fitted: Any, z: np.ndarray, p: int) -> tuple[float, float]:
    """Return the ends of the branch of output p, in z; infinite where there is no end."""
    low, high, middle = z[:, p].min(), z[:, p].max(), np.median(z, axis=0)

    def g(at: np.ndarray) -> np.ndarray:
        rows = np.tile(middle, (len(at), 1))
        rows[:, p] = at
        return inverse_of(fitted, rows)[:, p]

    between = g(np.linspace(low, high, BRANCH_PROBES))
    sign = np.sign(between[-1] - between[0])
    if not (sign * np.diff(between) >= -FALL * np.abs(between[1:])).all():
        raise ValueError(
            "target_transform must have an inverse that is finite and monotone between "
            f"the targets, but the inverse of {brief(transform)} is not. Use "
            "'yeo-johnson' or PowerTransformer()."
        )
    reach = TURN_REACH * (high - low)
    below = _distance_of_turn(lambda t: -sign * g(low - t), reach)
    return low - below, high + _distance_of_turn(lambda t: sign * g(high + t), reach)


def _distance_of_turn(g: Callable[[np.ndarray], np.ndarray], reach: float) -> float:
    """Return how far from 0 a map rises before it falls; infinite if it does not fall."""
    t = np.linspace(0.0, reach, BRANCH_PROBES)
    y = g(t)
    t, y = t[np.isfinite(y)], y[np.isfinite(y)]
    falls = np.flatnonzero(np.diff(y) < -FALL * np.abs(y[1:]))
    if not len(falls):
        return np.inf
    inside, outside = t[max(falls[0] - 1, 0)], t[falls[0] + 1]
    for _ in range(BISECTIONS):
        middle = 0.5 * (inside + outside)
        before, at, after = g(np.array([inside, middle, middle + TURN_STEP * (outside - inside)]))
        goes_on = np.isfinite(after) and before <= at <= after
        inside, outside = (middle, outside) if goes_on else (inside, middle)
    return float(inside)


def brief(transform: Any) -> str:
    """Return the name of a transformer in one line."""
    return " ".join(repr(transform).split())


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings of numbers outside a map's domain, which the caller handles."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
