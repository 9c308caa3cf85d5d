"""Monotone transformations of targets; models are fitted to the transformed targets.

The inverse of √y is z², which rises for z > 0 and falls below. The inverse of 1/y is 1/z, which has
two branches. Both are used for positive targets, so predictions are limited to the branch that the
training targets are on.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import boxcox1p, inv_boxcox1p
from sklearn.base import clone

from .arrays import Scaling

POWERS = (0.0, 2.0)  # with these powers, Yeo and Johnson's map covers the whole real line
POWER_PRECISION = 1e-8
MOST_TRANSFORMED = 100_000  # targets that a transformer of others is fitted to
LEAST_SPREAD = 1e-9  # of targets of size 1, which rounding then changes by 1e-7 of their spread
GIVEN_BACK = 1e-6  # relative error, to a target plus the range, of the inverse of a transformation


class LogTarget:
    """log y, of positive targets."""

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> LogTarget:
        """Check that targets (n, P) are positive.

        Raises
        ------
        ValueError
            If a target is not positive.
        """
        check_positive(y)
        return self

    def transform(self, y: np.ndarray) -> np.ndarray:
        """Return log y; NaN or −∞ if y is not positive."""
        return np.log(y)

    def inverse_transform(self, z: np.ndarray) -> np.ndarray:
        """Return exp z."""
        return np.exp(z)


class YeoJohnsonTarget:
    """Yeo and Johnson's power transformation of standardised targets, by maximum likelihood.

    Targets are first centred at their median and divided by their standard deviation, so their
    units do not matter. Rows count by their weights. Powers are from 0 to 2; with other powers the
    range of the transformation is bounded, and its inverse is not defined beyond.

    Yeo & Johnson, "A new family of power transformations to improve normality or symmetry",
    Biometrika 87, 2000.
    """

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> YeoJohnsonTarget:
        """Find the power of each output of targets (n, P).

        Raises
        ------
        ValueError
            If rounding of targets is not small beside their spread.
        """
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        self.scaling_ = Scaling.quantile(y, weight)
        spread = Scaling.standard(y, weight).scale
        self.scaling_ = self.scaling_._replace(scale=spread)
        check_digits(spread, np.abs(y).max(0))
        u = (y - self.scaling_.offset) / spread
        self.powers_ = np.array([best_power(column, weight) for column in u.T])
        return self

    def transform(self, y: np.ndarray) -> np.ndarray:
        """Return z of targets (n, P)."""
        u = (y - self.scaling_.offset) / self.scaling_.scale
        return yeo_johnson(u, self.powers_)

    def inverse_transform(self, z: np.ndarray) -> np.ndarray:
        """Return targets of z (n, P)."""
        up, down = inv_boxcox1p(np.maximum(z, 0.0), self.powers_), np.maximum(-z, 0.0)
        u = np.where(z >= 0.0, up, -inv_boxcox1p(down, 2.0 - self.powers_))
        return u * self.scaling_.scale + self.scaling_.offset


def check_digits(spread: np.ndarray, size: np.ndarray) -> None:
    """Raise a ValueError if the digits of an output hardly tell its values apart."""
    for p in np.flatnonzero(spread < LEAST_SPREAD * size):
        raise ValueError(
            f"y must have a spread of at least {LEAST_SPREAD:g} times its size for "
            f"target_transform='yeo-johnson', got a standard deviation of {spread[p]:.3g} for "
            f"values up to {size[p]:.3g}, whose differences rounding blurs. Subtract an offset "
            "from y."
        )


def yeo_johnson(u: np.ndarray, power: Any) -> np.ndarray:
    """Return ((1 + u)^λ − 1)/λ for u ≥ 0, and −((1 − u)^(2 − λ) − 1)/(2 − λ) for u < 0."""
    up, down = boxcox1p(np.maximum(u, 0.0), power), boxcox1p(np.maximum(-u, 0.0), 2.0 - power)
    return np.where(u >= 0.0, up, -down)


def best_power(u: np.ndarray, weight: np.ndarray) -> float:
    """Return the λ of largest likelihood, for normal z of u (n,)."""
    # The mean of log dz/du is (λ − 1) times this.
    log_slope = weight @ (np.sign(u) * np.log1p(np.abs(u))) / weight.sum()

    def loss(power: float) -> float:
        z = yeo_johnson(u, power)
        var = np.average(np.square(z - np.average(z, weights=weight)), weights=weight)
        return float(
            0.5 * np.log(np.maximum(var, np.finfo(float).tiny)) - (power - 1.0) * log_slope
        )

    found = minimize_scalar(
        loss, bounds=POWERS, method="bounded", options={"xatol": POWER_PRECISION}
    )
    return float(found.x)


TRANSFORMS: dict[str, Any] = {"log": LogTarget, "yeo-johnson": YeoJohnsonTarget}
"""Transformations by their names."""


def fitted_transform(transform: Any, y: np.ndarray, weight: np.ndarray | None) -> Any:
    """Fit the transformation that a parameter names to targets (n, P), and return it.

    Raises
    ------
    ValueError
        If targets are outside the transformation's domain, or if its inverse does not return them,
        is not monotone between them, or has steps.
    """
    if isinstance(transform, str):
        return TRANSFORMS[transform]().fit(*counted(y, weight))
    kept = slice(None) if weight is None else weight > 0.0
    fitted = clone(transform).fit(repeated(y, weight))
    z = np.asarray(fitted.transform(y), dtype=np.float64).reshape(y.shape)
    if not np.isfinite(z).all():
        raise ValueError(
            "target_transform must give a finite value for each target, but "
            f"{brief(transform)} does not."
        )
    check_returns(transform, fitted, y[kept], z[kept])
    return on_branch(transform, fitted, y[kept], z[kept])


def counted(y: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct targets, in order, and the sums of their weights.

    So neither the order of rows nor copies in place of weights change what is fitted.
    """
    values, of_row = np.unique(y, axis=0, return_inverse=True)
    return values, np.bincount(of_row.ravel(), weight, minlength=len(values)).astype(np.float64)


def repeated(y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Return targets in order, as often as weights say that are whole numbers and not very large.

    Otherwise each row with a positive weight counts once: transformers of others know no weights.
    """
    if weight is not None:
        is_whole = (weight == np.rint(weight)).all() and weight.sum() <= MOST_TRANSFORMED
        y = np.repeat(y, weight.astype(np.intp), axis=0) if is_whole else y[weight > 0.0]
    return y[np.lexsort(y.T[::-1])]


def check_returns(transform: Any, fitted: Any, y: np.ndarray, z: np.ndarray) -> None:
    """Raise a ValueError unless the inverse of z gives targets (n, P), and z is monotone in y."""
    back = inverse_of(fitted, z)
    if not (np.abs(back - y) <= GIVEN_BACK * (np.abs(y) + np.ptp(y, axis=0))).all():
        raise ValueError(
            "target_transform must be invertible, inverse_transform(transform(y)) == "
            f"y, but {brief(transform)} is not. FunctionTransformer needs inverse_func; "
            "transformers that round or bin the target cannot be used. Use "
            "'yeo-johnson' or PowerTransformer()."
        )
    steps = np.diff(np.take_along_axis(z, np.argsort(y, axis=0, kind="stable"), 0), axis=0)
    if not ((steps >= 0.0).all(0) | (steps <= 0.0).all(0)).all():
        raise ValueError(
            f"target_transform must be monotone in each output of y, but {brief(transform)} is not."
        )


def check_positive(y: np.ndarray) -> None:
    """Raise a ValueError unless targets are positive."""
    if not (y > 0.0).all():
        wrong = y[~(y > 0.0)]
        raise ValueError(
            f"y must be positive for target_transform='log', got {wrong.size} values that "
            f"are not (the smallest is {wrong.min():g}). Use 'yeo-johnson', which accepts "
            "all numbers."
        )


# ---- the branch of an inverse --------------------------------------------------------------------


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


OF_LIBRARIES = re.compile(r"(numpy|scipy|sklearn)\.")
IGNORED: list[Any] = [
    ("ignore", None, kind, OF_LIBRARIES, 0) for kind in (UserWarning, RuntimeWarning)
]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress libraries' warnings of numbers outside a map's domain, which the caller handles.

    `warnings.catch_warnings` would not do. It restores the whole list of filters, so of two threads
    the second one would restore what the first one had added, for ever.
    """
    filters = cast(list, warnings.filters)
    filters[:0] = IGNORED
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for each in IGNORED:  # from the list to which they were added, whichever is used by now
            with contextlib.suppress(ValueError):  # warnings.resetwarnings() was called
                filters.remove(each)
