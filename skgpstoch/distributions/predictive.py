"""Distributions of y at the rows of X, as `predict_distribution` returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.metaestimators import available_if

from ..data.arrays import random_numbers, readable, row_blocks
from ..data.asked import check_coverage, check_n_samples
from ..data.devices import BLOCK_ROWS
from .law import Law

CRPS_ROWS = 512  # whose integrals are computed at a time
FAR_AWAY = 1e6  # standard deviations, beyond which scores are distances to 1e-6 of a deviation
ROUNDED = 1e-14  # of probabilities of counts


def has_density(distribution: PredictiveDistribution) -> bool:
    """Tell whether there is a density, or raise an AttributeError that says what there is."""
    if distribution.law.is_discrete:
        raise AttributeError("y is a count, which has no density. Use pmf or logpmf.")
    return True


def has_probabilities(distribution: PredictiveDistribution) -> bool:
    """Tell whether numbers have probabilities, or raise an AttributeError that says why not."""
    if not (distribution.law.is_discrete or distribution.law.has_atoms):
        raise AttributeError("y is continuous, which has no probability mass. Use pdf or logpdf.")
    return True


class PredictiveDistribution:
    """Distributions of y at n rows, with the names of ``scipy.stats``.

    Each row, and each output of a row, has a distribution of its own. Numbers y, and probabilities
    q, are one for all; one for each row, (n,), or (n, n_outputs) of several outputs; or several for
    each row, (n, m) or (n, m, n_outputs), where a first axis of length 1 serves all rows. What is
    returned has their shape.

    NaN among y or q is an error, where ``scipy.stats`` returns NaN.

    ``distribution[rows]`` with a slice, a mask or positions is that of some rows, and
    ``len(distribution)`` is n.

    Parameters
    ----------
    law : Law
        The distributions, as arrays (n, P).
    output_shape : tuple of int, default=()
        () of one output, (P,) of several.

    Notes
    -----
    Of counts there are `pmf` and `logpmf` instead of `pdf` and `logpdf`. Of targets on a lattice
    (:class:`~skgpstoch.AutoGaussianProcessRegressor`) there are both: `pmf` of the atoms, and the
    density, with `cdf`, `ppf`, `interval`, `median` and `crps`, of y before it was rounded; mean,
    deviation and draws are of the rounded y.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> X = np.linspace(-3, 3, 50)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = SVGPRegressor(n_inducing=10, max_iter=2, random_state=0).fit(X, y)
    >>> distribution = model.predict_distribution(X)
    >>> distribution
    PredictiveDistribution(n_samples=50)
    >>> low, high = distribution.interval(0.9)
    >>> bool((low < distribution.mean()).all() and (distribution.crps(y) < 1.0).all())
    True
    >>> distribution[:3].pdf(np.linspace(-1, 1, 5)[None, :]).shape
    (3, 5)
    """

    def __init__(self, law: Law, output_shape: tuple[int, ...] = ()) -> None:
        self.law = law
        self.output_shape = output_shape

    def __len__(self) -> int:
        return self.law.shape[0]

    def __repr__(self) -> str:
        outputs = f", n_outputs={self.output_shape[0]}" if self.output_shape else ""
        return f"{type(self).__name__}(n_samples={len(self)}{outputs})"

    def __getitem__(self, rows: Any) -> PredictiveDistribution:
        numbers = np.atleast_1d(np.arange(len(self))[rows])
        return PredictiveDistribution(self.law.of(numbers), self.output_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) of one output, (n, n_outputs) of several."""
        return (len(self), *self.output_shape)

    # ---- moments -----------------------------------------------------------------------------

    def mean(self) -> np.ndarray:
        """Mean of y, of the shape of the distribution."""
        return self._of_rows(lambda law: law.mean())

    def std(self) -> np.ndarray:
        """Standard deviation of y."""
        return self._of_rows(lambda law: law.moments()[1])

    def var(self) -> np.ndarray:
        """Variance of y."""
        return np.square(self.std())

    def median(self) -> np.ndarray:
        """Median of y."""
        return self._of_rows(lambda law: law.quantile(0.5))

    # ---- densities and probabilities ---------------------------------------------------------

    @available_if(has_density)
    def logpdf(self, y: Any) -> np.ndarray:
        """Log density at y in nats, of each output by itself."""
        return self._at(y, lambda law, y: law.log_density(y))

    @available_if(has_density)
    def pdf(self, y: Any) -> np.ndarray:
        """Density at y, of each output by itself."""
        return np.exp(self.logpdf(y))

    @available_if(has_probabilities)
    def logpmf(self, y: Any) -> np.ndarray:
        """Log probability of y in nats; −∞ where there is none."""
        if self.law.is_discrete:
            return self._at(y, log_mass)
        return self._at(y, lambda law, y: law.log_probability(y))

    @available_if(has_probabilities)
    def pmf(self, y: Any) -> np.ndarray:
        """Probability of y."""
        return np.exp(self.logpmf(y))

    def joint_logpdf(self, y: Any) -> np.ndarray:
        """Log density of all outputs of each row, (n,) nats; of counts, the log probability.

        Outputs are not independent in mixtures, whose parts they share.
        """
        y = self._broadcast(y, "y")
        if y.ndim != len(self.shape):
            raise ValueError(f"y must have the shape {self.shape}, got {y.shape}.")
        y = y.reshape(self.law.shape)
        return np.concatenate([law.joint_log_density(y[rows]) for law, rows in self._blocks()])

    def cdf(self, y: Any) -> np.ndarray:
        """P(Y ≤ y)."""
        return self._at(y, below)

    def sf(self, y: Any) -> np.ndarray:
        """P(Y > y), of which a small one has all its digits."""
        return self._at(y, above)

    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles: where the distribution function is q; of counts, the least with q or more."""
        given = self._broadcast(q, "q")
        if not ((given >= 0.0) & (given <= 1.0)).all():
            raise ValueError(f"q must be probabilities from 0 to 1, got {q!r}.")
        if np.ndim(q) == 0 and 0.0 < q < 1.0:
            return self._of_rows(lambda law: least_counts(law, law.quantile(float(q)), float(q)))
        return self._at(q, quantiles)

    def interval(self, coverage: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of the central interval that y is in with this probability."""
        tail = 0.5 - 0.5 * check_coverage(coverage)
        return self.ppf(tail), self.ppf(1.0 - tail)

    # ---- scores and draws --------------------------------------------------------------------

    def crps(self, y: Any) -> np.ndarray:
        """Continuous ranked probability score ∫ (P(Y ≤ t) − 1[t ≥ y])² dt, in the units of y.

        In closed form for normal distributions, their mixtures, and a Student-t distribution;
        otherwise by quadrature, to about 10⁻⁵ of a standard deviation.
        """
        return self._at(y, far_scores, CRPS_ROWS)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw each row by itself; draws of an estimator's `sample_y` are joint.

        Returns
        -------
        draws : ndarray of shape (n, n_samples) or (n, n_outputs, n_samples)
        """
        n_samples, rng = check_n_samples(n_samples), random_numbers(random_state)
        draws = np.concatenate([law.sample(n_samples, rng) for law, _ in self._blocks()], 1)
        return np.moveaxis(draws, 0, -1).reshape(*self.shape, n_samples)

    def rvs(self, size: int = 1, random_state: Any = None) -> np.ndarray:
        """As :meth:`sample`."""
        return self.sample(size, random_state)

    # ---- blocks and shapes -------------------------------------------------------------------

    def _blocks(self, size: int = BLOCK_ROWS) -> list[tuple[Law, slice]]:
        """Return parts of the rows, and which these are."""
        return [(self.law.of(rows), rows) for rows in row_blocks(max(len(self), 1), size)]

    def _of_rows(self, function: Callable[[Law], np.ndarray]) -> np.ndarray:
        """Return what is computed (N, P) of blocks, in the shape of the distribution."""
        return np.concatenate([function(law) for law, _ in self._blocks()]).reshape(self.shape)

    def _at(
        self, y: Any, function: Callable[[Law, np.ndarray], np.ndarray], size: int = BLOCK_ROWS
    ) -> np.ndarray:
        """Return what is computed of blocks and numbers (N, P), in the shape of these."""
        y = self._broadcast(y, "y")
        n, P = self.law.shape
        m = y.shape[1] if y.ndim > len(self.shape) else 1
        grid, found = y.reshape(n, m, P), np.empty((n, m, P))
        for rows in row_blocks(n, max(size // max(m, 1), 1)):
            numbers = np.repeat(np.arange(n)[rows], m)
            for some in row_blocks(len(numbers), size):
                of_block = function(self.law.of(numbers[some]), grid[rows].reshape(-1, P)[some])
                found[rows].reshape(-1, P)[some] = of_block
        return found.reshape(y.shape)

    def _broadcast(self, y: Any, name: str) -> np.ndarray:
        """Return numbers for each row, (n, ·) or (n, m, ·).

        Raises
        ------
        ValueError
            If they are none, are NaN, or have another shape.
        """
        try:
            given = np.asarray(readable(y), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be numbers, got {y!r:.80}.") from error
        if np.isnan(given).any():
            raise ValueError(f"{name} must not contain NaN.")
        axes = len(self.shape)
        shape = self.shape
        if given.ndim == axes + 1:
            shape = (len(self), given.shape[1], *self.output_shape)
        try:
            return np.broadcast_to(given, shape)
        except ValueError as error:
            n, outputs = len(self), "".join(f", {P}" for P in self.output_shape)
            raise ValueError(
                f"{name} must have the shape {self.shape} (one value for each row), ({n}, "
                f"m{outputs}) (m values for each row) or (1, m{outputs}) (the same m values "
                f"for all rows); got {given.shape}."
            ) from error


def targets_of(distribution: PredictiveDistribution, y: Any) -> np.ndarray:
    """Return y, of the shape of the distribution.

    Raises
    ------
    ValueError
        If it has another shape, or is not finite.
    """
    y = check_array(readable(y), dtype=np.float64, ensure_2d=False, input_name="y")
    if y.shape != distribution.shape:
        raise ValueError(
            f"y must have the shape {distribution.shape} of predictions, got {y.shape}."
        )
    return y


def log_mass(law: Law, y: np.ndarray) -> np.ndarray:
    """Log probability of counts, −∞ of what is none."""
    is_count = (y >= 0.0) & (y == np.floor(y)) & np.isfinite(y)
    return np.where(is_count, law.log_density(np.where(is_count, y, 0.0)), -np.inf)


def below(law: Law, y: np.ndarray) -> np.ndarray:
    """P(Y ≤ y), 0 and 1 at infinities."""
    finite = np.isfinite(y)
    return np.where(finite, law.cdf(np.where(finite, y, 0.0)).clip(0.0, 1.0), y > 0.0)


def above(law: Law, y: np.ndarray) -> np.ndarray:
    """P(Y > y), 1 and 0 at infinities."""
    finite = np.isfinite(y)
    return np.where(finite, law.sf(np.where(finite, y, 0.0)).clip(0.0, 1.0), y < 0.0)


def quantiles(law: Law, q: np.ndarray) -> np.ndarray:
    """Quantiles; the ends of where y can be, of 0 and 1."""
    is_inside = (q > 0.0) & (q < 1.0)
    found = law.quantiles(np.where(is_inside, q, 0.5))
    low, high = law.support()
    return np.where(is_inside, least_counts(law, found, q), np.where(q == 0.0, low, high))


def least_counts(law: Law, found: np.ndarray, q: Any) -> np.ndarray:
    """Quantiles; of counts the one below, where it has q but for rounding."""
    if not law.is_discrete:
        return found
    enough = law.cdf(found - 1.0) >= q - ROUNDED
    return np.where(enough & (found > 0.0), found - 1.0, found)


def far_scores(law: Law, y: np.ndarray) -> np.ndarray:
    """CRPS, which is a straight line where y is far from all probability."""
    mean, std = law.moments()
    with np.errstate(over="ignore", invalid="ignore"):
        reach = np.where(np.isfinite(mean), FAR_AWAY * std, np.inf)
        mean = np.where(np.isfinite(mean), mean, 0.0)
        nearest = np.clip(y, mean - reach, mean + reach)
        nearest = np.rint(nearest) if law.is_discrete else nearest
        is_far = np.abs(y - nearest) >= 1.0 if law.is_discrete else y != nearest
        beyond = np.where(is_far, np.abs(y - nearest), 0.0)
    return law.crps(np.where(is_far, nearest, y)) + beyond
