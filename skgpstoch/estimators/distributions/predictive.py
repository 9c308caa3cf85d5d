"""Distributions of y at the rows of X, as `predict_distribution` returns them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.metaestimators import available_if

from ...data.arguments import check_coverage, check_n_samples
from ...data.array_inputs import in_float64, one_output, real_target, refuse_large
from ...data.arrays import random_numbers, readable, row_blocks
from ...data.devices import BLOCK_ROWS
from ...persistence.failures import tell_failures
from .law import Law

CRPS_ROWS = 512  # rows whose integrals are computed at a time
FAR_AWAY = 1e6  # standard deviations; farther away the CRPS is a straight line, to 1e-6 of one
ROUNDED = 1e-14  # rounding error of probabilities of counts

at_any_distance = np.errstate(over="ignore", invalid="ignore")
"""Decorator of functions of y, which may be so far away that its square is infinite."""


def has_density(distribution: PredictiveDistribution) -> bool:
    """Tell whether there is a density; else raise an AttributeError that names the alternative."""
    if distribution.law.is_discrete:
        raise AttributeError("y is a count, which has no density. Use pmf or logpmf.")
    return True


def has_probabilities(distribution: PredictiveDistribution) -> bool:
    """Tell whether single values have probabilities; else raise an AttributeError."""
    if not (distribution.law.is_discrete or distribution.law.has_atoms):
        raise AttributeError("y is continuous, which has no probability mass. Use pdf or logpdf.")
    return True


@tell_failures
class PredictiveDistribution:
    """Predictive distributions of y at n rows; methods are named as in ``scipy.stats``.

    Each row, and each output of a row, has its own distribution. The arguments y (values) and q
    (probabilities) of the methods may have these shapes:

    - a number, for all rows;
    - (n,), or (n, n_outputs) for several outputs: one value for each row;
    - (n, m), or (n, m, n_outputs): m values for each row; a first axis of length 1 instead of n
      means the same m values for all rows.

    For one number the result has the shape of the distribution, otherwise it has n rows and the
    shape of the argument. NaN in y or q raises a ValueError, whereas ``scipy.stats`` would return
    NaN.

    ``distribution[rows]``, with a slice, a mask or positions, selects rows, and
    ``len(distribution)`` is n.

    Parameters
    ----------
    law : Law
        The distributions of n rows and P outputs.
    output_shape : tuple of int, default=()
        () for one output, (P,) for several.

    Notes
    -----
    Counts have `pmf` and `logpmf` instead of `pdf` and `logpdf`. Rounded targets on a lattice
    (:class:`~skgpstoch.AutoGaussianProcessRegressor`) have both. For these, `pmf`, `mean`, `std`,
    `var` and draws refer to the rounded y. The density, `cdf`, `ppf`, `interval`, `median` and
    `crps` refer to y before rounding.

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
        """Shape: (n,) for one output, (n, n_outputs) for several."""
        return (len(self), *self.output_shape)

    # ---- moments -----------------------------------------------------------------------------

    def mean(self) -> np.ndarray:
        """Mean of y, of shape (n,) or (n, n_outputs)."""
        return self._of_rows(lambda law: law.mean())

    def std(self) -> np.ndarray:
        """Standard deviation of y, of shape (n,) or (n, n_outputs), in the units of y."""
        return self._of_rows(lambda law: law.moments()[1])

    def var(self) -> np.ndarray:
        """Variance of y, of shape (n,) or (n, n_outputs), in squared units of y."""
        return np.square(self.std())

    def median(self) -> np.ndarray:
        """Median of y, of shape (n,) or (n, n_outputs), in the units of y."""
        return self._of_rows(lambda law: law.quantile(0.5))

    # ---- densities and probabilities ---------------------------------------------------------

    @available_if(has_density)
    def logpdf(self, y: Any) -> np.ndarray:
        """Return the log density at y, in nats, for each output separately."""
        return self._at(y, log_densities)

    @available_if(has_density)
    def pdf(self, y: Any) -> np.ndarray:
        """Return the density at y, for each output separately."""
        return np.exp(self.logpdf(y))

    @available_if(has_probabilities)
    def logpmf(self, y: Any) -> np.ndarray:
        """Return the log probability of y, in nats; −∞ for impossible values."""
        if self.law.is_discrete:
            return self._at(y, log_mass)
        return self._at(y, lambda law, y: law.log_probability(y))

    @available_if(has_probabilities)
    def pmf(self, y: Any) -> np.ndarray:
        """Return the probability of y."""
        return np.exp(self.logpmf(y))

    @at_any_distance
    def joint_logpdf(self, y: Any) -> np.ndarray:
        """Return the joint log density of all outputs of each row, (n,) nats.

        For counts it is the log probability. In a mixture the outputs are not independent, because
        they share the component, so this is not the sum of :meth:`logpdf` over outputs.
        """
        y = self._broadcast(y, "y")
        if y.ndim != len(self.shape):
            raise ValueError(f"y must have the shape {self.shape}, got {y.shape}.")
        y = y.reshape(self.law.shape)
        return np.concatenate([law.joint_log_density(y[rows]) for law, rows in self._blocks()])

    def cdf(self, y: Any) -> np.ndarray:
        """Return P(Y ≤ y)."""
        return self._at(y, below)

    def sf(self, y: Any) -> np.ndarray:
        """Return P(Y > y), which stays accurate when it is small."""
        return self._at(y, above)

    def ppf(self, q: Any) -> np.ndarray:
        """Return the quantile for q; for counts, the least y with P(Y ≤ y) ≥ q."""
        given = self._broadcast(q, "q")
        if not ((given >= 0.0) & (given <= 1.0)).all():
            raise ValueError(f"q must be probabilities from 0 to 1, got {q!r}.")
        if np.ndim(q) == 0 and 0.0 < q < 1.0:
            return self._of_rows(lambda law: least_counts(law, law.quantile(float(q)), float(q)))
        return self._at(q, quantiles)

    def interval(self, coverage: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of the central interval that contains y with probability `coverage`."""
        tail = 0.5 - 0.5 * check_coverage(coverage)
        return self.ppf(tail), self.ppf(1.0 - tail)

    # ---- scores and draws --------------------------------------------------------------------

    def crps(self, y: Any) -> np.ndarray:
        """Return the continuous ranked probability score ∫ (P(Y ≤ t) − 1[t ≥ y])² dt.

        It is in the units of y; smaller is better. Normal distributions, their mixtures, and single
        Student-t distributions have a closed form. Others use quadrature, with an error of about
        10⁻⁵ of a standard deviation.
        """
        return self._at(y, far_scores, CRPS_ROWS)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw y independently for each row; use the estimator's `sample_y` for joint draws.

        Returns
        -------
        draws : ndarray of shape (n, n_samples) or (n, n_outputs, n_samples)
        """
        n_samples = check_n_samples(n_samples, math.prod(self.shape))
        rng = random_numbers(random_state)
        draws = np.concatenate([law.sample(n_samples, rng) for law, _ in self._blocks()], 1)
        return np.moveaxis(draws, 0, -1).reshape(*self.shape, n_samples)

    def rvs(self, size: int = 1, random_state: Any = None) -> np.ndarray:
        """Call :meth:`sample` with `size` as `n_samples`."""
        return self.sample(size, random_state)

    # ---- blocks and shapes -------------------------------------------------------------------

    def _blocks(self, size: int = BLOCK_ROWS) -> list[tuple[Law, slice]]:
        """Yield the distributions of blocks of rows, and the blocks."""
        return [(self.law.of(rows), rows) for rows in row_blocks(max(len(self), 1), size)]

    def _of_rows(self, function: Callable[[Law], np.ndarray]) -> np.ndarray:
        """Compute a function (N, P) block by block; return it in the shape of the distribution."""
        found = np.concatenate([function(law) for law, _ in self._blocks()])
        return found.reshape(self.shape)

    @at_any_distance
    def _at(
        self, y: Any, function: Callable[[Law, np.ndarray], np.ndarray], size: int = BLOCK_ROWS
    ) -> np.ndarray:
        """Compute a function of values y block by block; return it in the shape of y."""
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
        """Broadcast values to the rows: (n, ·) or (n, m, ·).

        Raises
        ------
        ValueError
            If they are not numbers, are NaN, or have a shape that does not fit the rows.
        """
        y = readable(y, name)
        try:
            given = in_float64(y)
        except OverflowError as error:
            refuse_large(name, error)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be numbers, got {y!r:.80}.") from error
        if np.isnan(given).any():
            raise ValueError(f"{name} must not contain NaN.")
        shape = self.shape
        if given.ndim == len(shape) + 1:
            shape = (len(self), given.shape[1], *self.output_shape)
        # Of several outputs, a row of values might be meant for outputs, or for each of them.
        is_clear = len(given.shape) > 2 or given.size == 1 or given.shape == shape
        if is_clear or not self.output_shape:
            with suppress(ValueError):
                return np.broadcast_to(given, shape)
        n, outputs = len(self), "".join(f", {P}" for P in self.output_shape)
        raise ValueError(
            f"{name} must have the shape {self.shape} (one value for each row), ({n}, "
            f"m{outputs}) (m values for each row) or (1, m{outputs}) (the same m values "
            f"for all rows); got {given.shape}."
        )


def targets_of(shape: tuple[int, ...], y: Any) -> np.ndarray:
    """Return y as an array of the shape of predictions; of one output it may be a column.

    Raises
    ------
    ValueError
        If y has another shape, or is not finite.
    """
    if y is None:
        raise ValueError("y must hold the targets of these rows, got None.")
    given = real_target(y, of_fit=False)
    y = check_array(given, dtype=np.float64, ensure_2d=False, input_name="y")
    y = one_output(y) if len(shape) == 1 else y
    if y.shape != shape:
        raise ValueError(f"y must have the shape {shape} of predictions, got {y.shape}.")
    return y


def log_mass(law: Law, y: np.ndarray) -> np.ndarray:
    """Return the log probability of counts; −∞ for values that are not counts."""
    is_count = (y >= 0.0) & (y == np.floor(y)) & np.isfinite(y)
    return np.where(is_count, law.log_density(np.where(is_count, y, 0.0)), -np.inf)


def log_densities(law: Law, y: np.ndarray) -> np.ndarray:
    """Return log p(y); −∞ where y is infinite, which formulas may make NaN."""
    is_finite = np.isfinite(y)
    return np.where(is_finite, law.log_density(np.where(is_finite, y, 0.0)), -np.inf)


def below(law: Law, y: np.ndarray) -> np.ndarray:
    """Return P(Y ≤ y); 0 and 1 at −∞ and ∞."""
    finite = np.isfinite(y)
    return np.where(finite, law.cdf(np.where(finite, y, 0.0)).clip(0.0, 1.0), y > 0.0)


def above(law: Law, y: np.ndarray) -> np.ndarray:
    """Return P(Y > y); 1 and 0 at −∞ and ∞."""
    finite = np.isfinite(y)
    return np.where(finite, law.sf(np.where(finite, y, 0.0)).clip(0.0, 1.0), y < 0.0)


def quantiles(law: Law, q: np.ndarray) -> np.ndarray:
    """Return quantiles; for the probabilities 0 and 1, the ends of the support."""
    is_inside = (q > 0.0) & (q < 1.0)
    found = law.quantiles(np.where(is_inside, q, 0.5))
    low, high = law.support()
    return np.where(is_inside, least_counts(law, found, q), np.where(q == 0.0, low, high))


def least_counts(law: Law, found: np.ndarray, q: Any) -> np.ndarray:
    """Return quantiles; for counts, the count below if it reaches q up to rounding."""
    if not law.is_discrete:
        return found
    enough = law.cdf(found - 1.0) >= q - ROUNDED
    return np.where(enough & (found > 0.0), found - 1.0, found)


def far_scores(law: Law, y: np.ndarray) -> np.ndarray:
    """Return the CRPS, as a straight line in y where y is far from all probability."""
    mean, std = law.extent()
    with np.errstate(over="ignore", invalid="ignore"):
        reach = np.where(np.isfinite(mean), FAR_AWAY * std, np.inf)
        mean = np.where(np.isfinite(mean), mean, 0.0)
        nearest = np.clip(y, mean - reach, mean + reach)
        nearest = np.rint(nearest) if law.is_discrete else nearest
        is_far = np.abs(y - nearest) >= 1.0 if law.is_discrete else y != nearest
        beyond = np.where(is_far, np.abs(y - nearest), 0.0)
    return law.crps(np.where(is_far, nearest, y)) + beyond
