"""The one door for predictions: whatever is predicted of y derives from its law, here and once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from ..data.arguments import check_coverage, check_n_samples
from ..data.array_inputs import checked_weight
from ..data.devices import BLOCK_ROWS, map_blocks
from ..data.docstrings import documented
from ..data.messages import warn
from ..persistence.estimator import SavedEstimator
from .context import predicting
from .distributions.law import Law
from .distributions.predictive import (
    PredictiveDistribution,
    at_any_distance,
    least_counts,
    targets_of,
)
from .validation import warn_of_overflow

LARGEST_NUMBER = np.finfo(np.float64).max

Block = Callable[[slice], Sequence[np.ndarray]]
"""Computes arrays of some rows, each (·, ...)."""


class PredictedRows(ABC):
    """What a model predicts of y at rows of X: their law, block by block, and joint draws.

    A wrapper of models (a mixture, a transformed target, ...) is a function of laws and of draws,
    so it makes one of these from others.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    output_shape : tuple of int
        () if the user's y has one dimension, else (P,).
    block_rows : int
        Number of rows that are predicted at a time.
    unit : float or ndarray of shape (P,)
        Units of y in which moments may overflow; infinite if they cannot.
    is_transformed : bool
        Whether y is a function of what the model predicts, so that its mean may be infinite.
    """

    n_rows: int
    output_shape: tuple[int, ...]
    block_rows: int = BLOCK_ROWS
    unit: Any = np.inf
    is_transformed: bool = False

    @abstractmethod
    def law(self, rows: slice) -> Law:
        """Return the distributions of y at some rows."""

    @abstractmethod
    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly at all rows: (n_rows, P, n_samples)."""

    def targets(self, y: Any) -> Any:
        """Return valid values of y as the laws take them, (n_rows, P), or raise a ValueError."""
        return targets_of((self.n_rows, *self.output_shape), y).reshape(self.n_rows, -1)

    # ---- what derives from them ------------------------------------------------------------------

    def mean(self) -> np.ndarray:
        """Return the mean of y, (n_rows, P), which may be cheaper than the law."""
        mean = self.by_blocks(lambda rows: (self.law(rows).mean(),))[0]
        return finite_means(mean) if self.is_transformed else mean

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of y, each (n_rows, P)."""
        mean, std = self.by_blocks(lambda rows: self.law(rows).moments())
        with np.errstate(invalid="ignore"):
            warn_of_overflow(std / self.unit)
        return finite_means(mean) if self.is_transformed else mean, std

    def interval(self, coverage: float) -> np.ndarray:
        """Return the ends of central intervals, (n_rows, 2) or (n_rows, 2, P) as the user's y."""
        tail = 0.5 - 0.5 * coverage

        def ends(rows: slice) -> tuple[np.ndarray, ...]:
            law = self.law(rows)
            return tuple(least_counts(law, law.quantile(q), q) for q in (tail, 1.0 - tail))

        both = np.stack(self.by_blocks(ends), 1)
        return both[..., 0] if self.output_shape == () else both

    @at_any_distance
    def cdf(self, y: Any) -> np.ndarray:
        """Return P(Y ≤ y), (n_rows, P)."""
        y = self.targets(y)
        return self.by_blocks(lambda rows: (self.law(rows).cdf(y[rows]).clip(0.0, 1.0),))[0]

    @at_any_distance
    def log_density(self, y: Any) -> np.ndarray:
        """Return the joint log density of the outputs, (n_rows,) nats."""
        y = self.targets(y)
        return self.by_blocks(lambda rows: (self.law(rows).joint_log_density(y[rows]),))[0]

    def sample(self, n_samples: Any, random_state: Any) -> np.ndarray:
        """Return joint draws in the shape of the user's y, with a last axis of `n_samples`."""
        n_samples = check_n_samples(n_samples, self.n_rows * math.prod(self.output_shape))
        return self.shaped(self.draws(n_samples, random_state))

    @predicting()
    def distribution(self) -> PredictiveDistribution:
        """Return the distributions of y at all rows."""
        return PredictiveDistribution(self.law(slice(0, self.n_rows)), self.output_shape)

    def by_blocks(self, compute: Block) -> list[np.ndarray]:
        """Compute arrays of all rows from those of blocks."""
        return collected(compute, self.n_rows, self.block_rows)

    def shaped(self, a: np.ndarray) -> np.ndarray:
        """(n_rows, P, ...) → the shape of the user's y."""
        return a[:, 0] if self.output_shape == () else a


@at_any_distance
def r_squared(y: Any, predicted: Any, sample_weight: Any = None) -> float:
    """Return R² of predictions, in units of y whose squares do not over- or underflow.

    They are powers of 2, so that the result is scikit-learn's to the last bit.
    """
    y = np.ascontiguousarray(targets_of(predicted.shape, y))
    unit = np.ldexp(1.0, np.frexp(np.abs(y).max(0, initial=0.0))[1] - 1)
    weight = None if sample_weight is None else checked_weight(sample_weight, y)
    return float(r2_score(y / unit, predicted / unit, sample_weight=weight))


def finite_means(mean: np.ndarray) -> np.ndarray:
    """Replace infinite means of a transformed target by the largest number, and warn of them."""
    if n := int(np.isinf(mean).any(1).sum()):
        warn(
            f"The mean of y overflows float64 at {n} rows, because the transformation back is "
            "steep and the transformed target large or uncertain there. The largest finite number "
            "is returned instead. Use predict_interval for quantiles, and look at these rows.",
            RuntimeWarning,
        )
        mean = np.clip(mean, -LARGEST_NUMBER, LARGEST_NUMBER)
    return mean


def collected(compute: Block, n_rows: int, size: int) -> list[np.ndarray]:
    """Compute blocks of rows, and put them together.

    Results are copied into arrays that are allocated first: small arrays kept from each block would
    fragment the memory.
    """
    whole: list[np.ndarray] = []

    @predicting()
    def add(block: slice) -> None:
        parts = compute(block)
        if not whole:
            whole.extend(np.empty((n_rows, *part.shape[1:]), part.dtype) for part in parts)
        for array, part in zip(whole, parts, strict=True):
            array[block] = part

    map_blocks(add, n_rows, size)
    return whole


class PredictiveRegressor(SavedEstimator):
    """Mean, deviation, intervals, draws, densities and distributions of y."""

    @abstractmethod
    def _predicted(self, X: Any) -> PredictedRows:
        """Return what the model predicts at valid rows; raise an error if it is not fitted."""

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of y, and if asked its standard deviation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviation at each row.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Mean.
        y_std : ndarray of the shape of y_mean
            Only if `return_std`.
        """
        found = self._predicted(X)
        if return_std:
            return tuple(map(found.shaped, found.moments()))
        return found.shaped(found.mean())

    @documented(predict)
    def predict_std(self, X: Any) -> np.ndarray:
        """Predict the standard deviation of y at each row.

        Returns
        -------
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the units of y.
        """
        found = self._predicted(X)
        return found.shaped(found.moments()[1])

    @documented(predict)
    def predict_interval(self, X: Any, coverage: Any = 0.95) -> np.ndarray:
        """Predict the central interval that contains y with probability `coverage`.

        Parameters
        ----------
        coverage : float, default=0.95
            Probability, between 0 and 1.

        Returns
        -------
        interval : ndarray of shape (n_samples, 2) or (n_samples, 2, n_outputs)
            Lower and upper end, in the units of y.
        """
        coverage = check_coverage(coverage)
        return self._predicted(X).interval(coverage)

    @documented(predict)
    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict the distribution of y at each row.

        Returns
        -------
        distribution : PredictiveDistribution
            Distributions with the methods `mean`, `std`, `pdf`, `cdf`, `ppf`, `interval`, `crps`,
            `sample` and others, in O(n_samples) memory.
        """
        return self._predicted(X).distribution()

    @documented(predict)
    def predictive_cdf(self, X: Any, y: Any) -> np.ndarray:
        """Return P(Y ≤ y | x, data) of each row.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Values at which to evaluate it.

        Returns
        -------
        probability : ndarray of the shape of y
            Probabilities. They are uniform over new rows if predictions are calibrated.
        """
        found = self._predicted(X)
        return found.shaped(found.cdf(y))

    @documented(predict)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log density log p(y | x, data) of each row, summed over outputs.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
            Log densities in nats, for y in its own units; for counts, log probabilities.
        """
        return self._predicted(X).log_density(y)

    def sample_y(self, X: Any, n_samples: Any = 1, random_state: Any = 0) -> np.ndarray:
        """Draw y jointly at the rows of X, from the posterior.

        Joint draws of many processes take the square of `n_samples_X` numbers; those of
        `predict_distribution(X).sample`, each row on its own, do not.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed; None draws differently at each call.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Draws, in the units of y.
        """
        return self._predicted(X).sample(n_samples, random_state)

    @documented(RegressorMixin.score)
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R² of the predicted mean."""
        return r_squared(y, self.predict(X), sample_weight)
