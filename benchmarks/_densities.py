"""Predictive densities of rows, from whatever a method says of them, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from _common import Array, Row
from scipy.special import logsumexp, ndtr
from scipy.stats import norm
from sklearn.metrics import root_mean_squared_error

from skgpstoch.metrics import continuous_ranked_probability_score, interval_coverage
from skgpstoch.metrics.scores import central_interval

COVERAGES = (0.95, 0.8)
N_DRAWS = 500  # of a density of any shape, for its CRPS
N_GROUPS = 5  # of rows, by predicted std and by predicted mean
GROUP_ROWS = 500  # that a group needs before its coverage says something


class Density(Protocol):
    """The predictive density of each of n rows."""

    mean: Array  # (n,)
    std: Array  # (n,)

    def log_density(self, y: Array) -> Array: ...  # (n,)
    def crps(self, y: Array) -> float: ...  # their mean
    def interval(self, coverage: float) -> Array: ...  # (n, 2)


class Gaussian:
    """N(mean, std²) in each row."""

    def __init__(self, mean: Array, std: Array | float) -> None:
        self.mean = np.asarray(mean, np.float64)
        self.std = np.broadcast_to(np.asarray(std, np.float64), self.mean.shape)

    def log_density(self, y: Array) -> Array:
        return norm.logpdf(y, self.mean, self.std)

    def crps(self, y: Array) -> float:
        return continuous_ranked_probability_score(y, self.mean, self.std)

    def interval(self, coverage: float) -> Array:
        return central_interval(self.mean, self.std, coverage)


class Mixture:
    """K Gaussians of equal weight and one width in each row, around quantiles.

    A smooth density for methods that predict quantiles of equally spaced levels. The point
    prediction may be another than the mixture's own mean.
    """

    def __init__(self, centres: Array, width: float, mean: Array | None = None) -> None:
        self.centres = np.asarray(centres, np.float64)  # (n, K)
        self.width = width
        self.mean = self.centres.mean(1) if mean is None else mean
        self.std = np.hypot(self.centres.std(1), width)

    def log_density(self, y: Array) -> Array:
        parts = norm.logpdf(y[:, None], self.centres, self.width)  # (n, K)
        return logsumexp(parts, axis=1) - np.log(parts.shape[1])

    def crps(self, y: Array) -> float:
        """E|Y − y| − ½ E|Y − Y′|, in closed form: both are means of folded normals."""
        c = self.centres
        apart = np.mean(
            [
                _mean_distance(c - c[:, [k]], np.sqrt(2.0) * self.width).mean()
                for k in range(c.shape[1])
            ]
        )
        return float(_mean_distance(c - y[:, None], self.width).mean() - 0.5 * apart)

    def interval(self, coverage: float) -> Array:
        tail = 0.5 - 0.5 * coverage
        return np.column_stack([self._quantile(tail), self._quantile(1.0 - tail)])

    def _quantile(self, level: float) -> Array:
        """By bisection, between ends that hold all but 1e-12 of the mass."""
        low = self.centres.min(1) - 7.0 * self.width
        high = self.centres.max(1) + 7.0 * self.width
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = ndtr((middle[:, None] - self.centres) / self.width).mean(1) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


def _mean_distance(m: Array, s: float) -> Array:
    """E|N(m, s²)|."""
    return m * (2.0 * ndtr(m / s) - 1.0) + 2.0 * s * norm.pdf(m / s)


class Ours:
    """A density of any shape, from what our estimators say of it."""

    def __init__(self, model: Any, X: Any) -> None:
        self.model = model
        self.X = X
        self.mean, self.std = model.predict(X, return_std=True)

    def log_density(self, y: Array) -> Array:
        return self.model.log_predictive_density(self.X, y)

    def crps(self, y: Array) -> float:
        """E|Y − y| − ½ E|Y − Y′|, without bias, from draws: to .1 per cent or so of 1,000 rows."""
        law = self.model.predict_distribution(self.X)  # joint draws would take much longer
        draws = np.sort(law.sample(N_DRAWS, random_state=0), axis=1)  # (n, S)
        ranks = (2.0 * np.arange(N_DRAWS) - N_DRAWS + 1.0) / (N_DRAWS * (N_DRAWS - 1.0))
        return float(np.mean(np.abs(draws - y[:, None]).mean(1) - draws @ ranks))

    def interval(self, coverage: float) -> Array:
        return self.model.predict_interval(self.X, coverage)


def density_of(model: Any, X: Any) -> Density:
    """The density that a fitted model predicts, whoever wrote it."""
    if hasattr(model, "density"):
        return model.density(X)
    if hasattr(model, "log_predictive_density"):
        return Ours(model, X)
    return Gaussian(*model.predict(X, return_std=True))


# --- scores ---------------------------------------------------------------------------------------
def density_scores(density: Density, y: Array, unit: float = 1.0) -> Row:
    """Scores of a target that was divided by ``unit``, as of the target itself."""
    inside = {c: density.interval(c) for c in COVERAGES}
    names = {c: f"coverage_{100 * c:.0f}" for c in COVERAGES}
    return {
        "nlpd": float(np.log(unit) - np.mean(density.log_density(y))),
        "crps": unit * density.crps(y),
        "rmse": unit * root_mean_squared_error(y, density.mean),
        **{names[c]: 100 * interval_coverage(y, inside[c]) for c in COVERAGES},
        **grouped_coverage(density, y, inside[COVERAGES[0]]),
    }


def grouped_coverage(density: Density, y: Array, interval: Array) -> Row:
    """Per cent inside the interval, the least and the most of the groups; empty for few rows."""
    covered = (interval[:, 0] <= y) & (y <= interval[:, 1])
    row: Row = {}
    for name, key in (("std", density.std), ("mean", density.mean)):
        groups: Sequence[Array] = np.array_split(covered[np.argsort(key, kind="stable")], N_GROUPS)
        shares = [100.0 * float(group.mean()) for group in groups]
        enough = len(y) >= N_GROUPS * GROUP_ROWS
        row[f"least_by_{name}"] = min(shares) if enough else ""
        row[f"most_by_{name}"] = max(shares) if enough else ""
    return row
