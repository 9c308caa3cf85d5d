"""Means and deviations of columns, of parts that are merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Scaling


@dataclass(frozen=True)
class Moments:
    """What is known of the columns of some rows.

    Parameters
    ----------
    weight : float
        Σw.
    mean : ndarray of shape (d,)
        Σwx / Σw.
    rest : ndarray of shape (d,)
        What the mean lacks by rounding, which counts where columns are far from 0.
    norm : ndarray of shape (d,)
        √Σw(x − mean)², whose square might overflow.
    low, high : ndarray of shape (d,)
        The smallest and the largest; ∞ and −∞ of no rows.
    """

    weight: float
    mean: np.ndarray
    rest: np.ndarray
    norm: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def none(cls, n_columns: int) -> Moments:
        """Of no rows."""
        zeros, infinite = np.zeros(n_columns), np.full(n_columns, np.inf)
        return cls(0.0, zeros, zeros, zeros, infinite, -infinite)

    @classmethod
    def of(cls, A: np.ndarray, weight: np.ndarray | None = None) -> Moments:
        """Of rows (m, d) that have a weight (m,); None is 1."""
        if len(A) == 0:
            return cls.none(A.shape[1])
        A = A.astype(np.float64, copy=False)
        low, high = A.min(0), A.max(0)
        top = np.maximum(np.abs(low), np.abs(high))
        unit = np.ldexp(1.0, np.frexp(top)[1] - 1)  # squares must not overflow; divides exactly
        w = np.ones(len(A)) if weight is None else weight
        total = float(w.sum())
        mean = w @ (A / unit) / total
        away = A / unit - mean
        rest = w @ away / total
        norm = np.sqrt(np.maximum(w @ np.square(away) - total * np.square(rest), 0.0))
        return cls(total, mean * unit, rest * unit, norm * unit, low, high)

    def merge(self, other: Moments) -> Moments:
        """Of the rows of both (Chan, Golub & LeVeque, 1983)."""
        if self.weight == 0.0 or other.weight == 0.0:
            return self if other.weight == 0.0 else other
        total = self.weight + other.weight
        share = other.weight / total
        apart = (other.mean - self.mean) + (other.rest - self.rest)
        mean = self.mean + share * apart
        between = np.sqrt(self.weight * share) * np.abs(apart)
        return Moments(
            total,
            mean,
            self.rest + (share * apart - (mean - self.mean)),
            np.hypot(np.hypot(self.norm, other.norm), between),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def squares(self) -> np.ndarray:
        """Σw(x − mean)², (d,)."""
        return np.square(self.norm)

    @property
    def variance(self) -> np.ndarray:
        """Σw(x − mean)² / Σw, (d,)."""
        return np.square(self.norm / np.sqrt(self.weight))

    def scaling(self, dtype: np.dtype) -> Scaling:
        """Return the scaling to mean 0 and variance 1 of numbers that had this type.

        Columns that are constant to rounding are only centred, as by :meth:`Scaling.standard`.
        """
        std = self.norm / np.sqrt(self.weight)
        constant = std <= 10 * np.finfo(dtype).eps * np.abs(self.mean)
        return Scaling(self.mean, np.where(constant, 1.0, std))
