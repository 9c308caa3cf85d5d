"""Targets on a lattice: few distinct values, or readings that were rounded.

Models are compared by densities, but y is rounded: Y is the atom v_j whose (Voronoi) cell the
prediction y* ~ p(y* | x) falls into, for a share π of the rows, and y* itself for the others,

    P(y | x) = π·Σ_j P_j(x)·1[y = v_j] + (1 − π)·p(y | x),   P_j(x) = ∫ over v_j's cell of p(· | x).

Draws, their mean and deviation, and probabilities of atoms are those of Y. Densities,
`predictive_cdf` and intervals are those of y*, so the coverage of intervals is that of the density
(with ends on atoms, intervals of 95 % held 99.8 to 100 % of the rows of three of six tables).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...data.arrays import random_numbers, row_blocks
from ...data.equal_rows import observed_targets
from ...data.rows import Data
from ...estimators.distributions.law import Law
from ...estimators.predictions import PredictedRows

LEAST_SHARED = 0.9  # of the rows must have the y of another row
LEAST_ATOM = 0.2  # of the rows have one value, which intervals of a density may leave out
ROWS_AN_ATOM = 10  # on average, unless atoms are a grid
GRID_PARTS = (1, 2, 3)  # units that the smallest gap between values may be
GRID_SLACK = 0.02  # units by which floats may miss a grid
SAME = 1e-3  # of the distance to the next atom: a number so close is the atom
WINDOW = 6.0  # standard deviations on both sides
MOST_CELLS = 32  # in the window; among more atoms rounding does not change moments, but at ends
FEW_ATOMS, LEAST_BEYOND = 256, 0.01  # with more atoms, ends need so much mass to be worth the time
PAIRS_AT_A_TIME = 16_384  # of a row and an atom
LEAST_MASS = 1e-300  # of a cell: smaller numbers have few digits
DECAY_STEP = 1e-4  # of a cell, over which the decay of a density is a difference


class Lattice(NamedTuple):
    """Values that y has, and how often it has one of them."""

    atoms: np.ndarray
    """v_j, ascending: (J,)."""
    weight: float
    """π, the expected share of new rows with y among the atoms."""

    @property
    def edges(self) -> np.ndarray:
        """Ends of the cells but for −∞ and ∞: (J − 1,)."""
        return 0.5 * (self.atoms[1:] + self.atoms[:-1])

    def nearest(self, y: np.ndarray) -> np.ndarray:
        """Return the number of the atom whose cell y is in, elementwise."""
        return np.searchsorted(self.edges, y)

    def rounded(self, y: np.ndarray) -> np.ndarray:
        """Return the atom whose cell y is in, elementwise."""
        return np.asarray(self.atoms[self.nearest(y)])

    def drawn(self, draws: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Return draws of a density, a share π of them rounded."""
        is_rounded = rng.uniform(size=draws.shape) < self.weight
        return np.where(is_rounded, self.rounded(draws), draws)

    def contains(self, y: np.ndarray) -> np.ndarray:
        """Tell which numbers are atoms, up to rounding errors."""
        j, gaps = self.nearest(y), np.diff(self.atoms)
        near = np.minimum(np.append(gaps, gaps[-1])[j], np.insert(gaps, 0, gaps[0])[j])
        return np.abs(y - self.atoms[j]) <= SAME * near


def lattice_of(X: np.ndarray, y: np.ndarray, sample_weight: Any = None) -> Lattice | None:
    """Return the lattice that targets are on, if they are.

    There is one if nine of ten rows share their value of y with another row, and

    - all values are multiples of a unit, counted from the smallest, and up to the largest value
      there are no more multiples than rows: all multiples are atoms; or
    - there are ten rows for each value on average: the values are the atoms.

    π is the share of rows whose value would be an atom without them. Rows that are the same in X
    and y count once, whatever their weight, and rows of weight 0 do not count, so repeated rows do
    not put a continuous y on a lattice.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Inputs, by which rows are told apart.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Targets; several outputs have no lattice.
    sample_weight : ndarray of shape (n_samples,) or None, default=None
        How many rows each row counts for.

    Returns
    -------
    lattice : Lattice or None
        None if y is taken as continuous.
    """
    if y.size > len(y):
        return None
    y = y.astype(np.float64).ravel()
    if sample_weight is not None:
        has_weight = np.asarray(sample_weight) > 0.0
        X, y = X[has_weight], y[has_weight]
    if not is_shared(y) or not is_shared(y := observed_targets(Data(X, y[:, None])).ravel()):
        return None  # the second is expensive
    values, counts = np.unique(y, return_counts=True)
    n, is_alone = len(y), counts == 1
    if (grid := grid_of(values, n)) is not None:
        return Lattice(grid, share_of_atoms(n, is_alone[[0, -1]].sum()))
    if ROWS_AN_ATOM * len(values) <= n:
        return Lattice(values, share_of_atoms(n, is_alone.sum()))
    return None


def is_shared(y: np.ndarray) -> bool:
    """Tell whether most rows have the y of another row, but not all the same."""
    values, counts = np.unique(y, return_counts=True)
    if values[-1] - values[0] < np.finfo(float).tiny:  # no quotient of such gaps is exact
        return False
    return len(values) > 1 and (counts == 1).sum() <= (1.0 - LEAST_SHARED) * len(y)


def common_value(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return a target that many rows have, but not all, and their share; else NaN and 0.

    Rows that are the same in X and y count once. Several outputs have none.
    """
    if y.size > len(y) or not most_frequent(y)[1]:
        return np.nan, 0.0
    return most_frequent(observed_targets(Data(X, y.astype(np.float64)[:, None])))  # expensive


def most_frequent(y: np.ndarray) -> tuple[float, float]:
    """Return the most frequent of several values and its share, if that is large."""
    values, counts = np.unique(y, return_counts=True)
    most, n = int(counts.max()), int(counts.sum())
    if len(values) == 1 or most < max(ROWS_AN_ATOM, LEAST_ATOM * n):
        return np.nan, 0.0
    return float(values[counts.argmax()]) + 0.0, most / n  # not -0


def share_of_atoms(n_rows: int, n_new: int) -> float:
    """Return π if `n_new` rows have a value that the others do not show; it is never 1."""
    return float(1.0 - (n_new + 0.5) / (n_rows + 1.0))


def grid_of(values: np.ndarray, most: int) -> np.ndarray | None:
    """Return the grid of multiples of a unit that holds ascending values, if it is at most so long.

    The unit is the smallest gap, or a part of it if that gap may be several units.
    """
    gaps, span = np.diff(values), values[-1] - values[0]
    smallest = gaps[gaps < 1.5 * gaps.min()].mean()  # of floats, whose errors cancel
    for parts in GRID_PARTS:
        n_units = round(parts * span / smallest)
        if n_units >= most:
            return None
        grid = np.linspace(values[0], values[-1], n_units + 1)
        found = np.rint((values - values[0]) * (n_units / span)).astype(np.intp)
        if (np.abs(values - grid[found]) <= GRID_SLACK * span / n_units).all():
            grid[found] = values
            if (grid[1:] > grid[:-1]).all():  # or the unit is less than floats tell apart
                return np.asarray(grid)
    return None


@dataclass(frozen=True)
class LatticeLaw(Law):
    """Distributions of one y on a lattice; densities are those of y before it was rounded."""

    law: Law
    lattice: Lattice

    has_atoms = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.law.shape

    @property
    def has_light_tails(self) -> Any:
        return self.law.has_light_tails

    def of(self, rows: Any) -> LatticeLaw:
        return LatticeLaw(self.law.of(rows), self.lattice)

    # ---- of the density --------------------------------------------------------------------------

    @property
    def continuous(self) -> Law:
        return self.law

    def with_atoms(self, of_y: Law, inverse: Callable[[np.ndarray], np.ndarray]) -> Law:
        atoms = np.unique(inverse(self.lattice.atoms[:, None]))
        are_apart = len(atoms) == len(self.lattice.atoms)  # a transformer may clip
        return LatticeLaw(of_y, Lattice(atoms, self.lattice.weight)) if are_apart else of_y

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return self.law.log_density(y)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self.law.cdf(y)

    def sf(self, y: np.ndarray) -> np.ndarray:
        return self.law.sf(y)

    def quantile(self, probability: float) -> np.ndarray:
        return self.law.quantile(probability)

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        return self.law.quantiles(probability)

    def crps(self, y: np.ndarray) -> np.ndarray:
        return self.law.crps(y)

    # ---- of y on the lattice ---------------------------------------------------------------------

    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        return self.lattice.drawn(self.law.sample(n_samples, rng), rng)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation, as those of draws.

        If many atoms are within six standard deviations, they are those of the density, unless the
        first or the last is among them, and takes much of what is beyond. If what is predicted is
        not the density's mean, rounding shifts both alike, and deviations are those from what is
        predicted.
        """
        mean, std = (np.array(part[:, 0]) for part in self.law.moments())
        centre = self.law.density_mean()[:, 0]
        low, high = (self.lattice.nearest(mean + z * std) for z in (-WINDOW, WINDOW))
        J = len(self.lattice.atoms)
        is_rounded = high - low < MOST_CELLS
        ends = np.flatnonzero(((low == 0) | (high == J - 1)) & ~is_rounded)
        is_rounded[ends] = J <= FEW_ATOMS or self.of(ends)._beyond_ends() > LEAST_BEYOND
        coarse = np.flatnonzero(is_rounded)
        for rows in row_blocks(len(coarse), max(PAIRS_AT_A_TIME // len(self.lattice.atoms), 1)):
            i = coarse[rows]
            mean[i], std[i] = self.of(i)._rounded_moments(mean[i], std[i], centre[i])
        return mean[:, None], std[:, None]

    def _rounded_moments(
        self, mean: np.ndarray, std: np.ndarray, centre: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of Y, to which far atoms add much if tails are heavy."""
        share, unit = self.lattice.weight, np.where(std > 0.0, std, 1.0)
        P = self._cells()  # (n, J)
        # In units of the deviation, squares neither overflow nor underflow.
        from_mean = (self.lattice.atoms - mean[:, None]) / unit[:, None]
        apart = (centre - mean) / unit
        shift = share * (P * (from_mean - apart[:, None])).sum(1)
        square = share * (P * from_mean**2).sum(1) + (1.0 - share) * (std / unit) ** 2
        square -= shift * (shift + 2.0 * apart)
        return mean + unit * shift, unit * np.sqrt(np.maximum(square, 0.0))

    def _beyond_ends(self) -> np.ndarray:
        """Return the mass of the cells of the first and the last atom, (n,)."""
        first, last = (np.full((self.shape[0], 1), self.lattice.edges[i]) for i in (0, -1))
        return np.asarray((self._below(first) + self._above(last))[:, 0])

    def _below(self, y: np.ndarray) -> np.ndarray:
        """Return P(y* ≤ y) for several numbers of each row: (n, C)."""
        return self._where_finite(y, np.where(y > 0.0, 1.0, 0.0), lambda law, y: law.cdf(y))

    def _above(self, y: np.ndarray) -> np.ndarray:
        """Return P(y* > y); small ones have all their digits."""
        return self._where_finite(y, np.where(y > 0.0, 0.0, 1.0), lambda law, y: law.sf(y))

    def _where_finite(
        self, y: np.ndarray, found: np.ndarray, probability: Callable[[Law, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Fill in probabilities of finite numbers, (n, C)."""
        rows, columns = np.isfinite(y).nonzero()
        for pairs in row_blocks(len(rows), PAIRS_AT_A_TIME):  # a row may have more atoms
            i, j = rows[pairs], columns[pairs]
            found[i, j] = probability(self.law.of(i), y[i, j][:, None])[:, 0]
        return found

    def atom_probabilities(self) -> np.ndarray:
        """Return the probability π·P_j of each atom, (n, J); each row sums to π."""
        (n, _), J = self.shape, len(self.lattice.atoms)
        P = np.empty((n, J))
        for rows in row_blocks(n, max(PAIRS_AT_A_TIME // J, 1)):
            P[rows] = self.lattice.weight * self.of(rows)._cells()
        return P

    def _cells(self) -> np.ndarray:
        """Return P_j of all cells, (n, J)."""
        edges = np.append(self.lattice.edges, np.inf)
        below = self._below(np.broadcast_to(edges, (self.shape[0], len(edges))))
        return np.maximum(np.diff(below, prepend=0.0), 0.0)

    def log_probability(self, y: np.ndarray) -> np.ndarray:
        """Return the log probability of each y, (n, 1), in nats; −∞ for a number that is no atom.

        The probability of a cell is a difference of tails on its side of the median. If even these
        are 0, it comes from the density at the cell's nearer end.
        """
        y, lattice = y[:, 0], self.lattice
        j, edges = lattice.nearest(y), np.array([-np.inf, *lattice.edges, np.inf])
        ends = np.stack([edges[j], edges[j + 1]], 1)
        below, above = self._below(ends), self._above(ends)
        is_upper = below[:, 0] > 0.5
        mass = np.where(is_upper, above[:, 0] - above[:, 1], below[:, 1] - below[:, 0])
        gaps = np.diff(lattice.atoms)
        width = 0.5 * (np.append(gaps, gaps[-1]) + np.insert(gaps, 0, gaps[0]))[j]
        thin = self._log_thin(*np.where(is_upper, [ends[:, 0], width], [ends[:, 1], -width]))
        log_mass = np.log(np.maximum(mass, LEAST_MASS))
        log_p = np.log(lattice.weight) + np.where(mass > LEAST_MASS, log_mass, thin)
        return np.where(lattice.contains(y), log_p, -np.inf)[:, None]

    def _log_thin(self, end: np.ndarray, width: np.ndarray) -> np.ndarray:
        """Return log ∫ p(end)·exp(−λ|t|) dt from 0 to a signed width, (n,), λ = −d log p/d|t|."""
        step = DECAY_STEP * width
        at_end, before, after = (
            self.law.log_density((np.where(np.isfinite(end), end, 0.0) + shift)[:, None])[:, 0]
            for shift in (0.0, -step, step)
        )
        limits = np.finfo(float).tiny, np.finfo(float).max  # p may end between atoms
        decay = np.clip((before - after) / (2.0 * DECAY_STEP), *limits)  # λ·width
        return at_end + np.log(np.abs(width)) + np.log(-np.expm1(-decay) / decay)


class RoundedRows(PredictedRows):
    """Predictions of one y on a lattice, from those of y before it was rounded."""

    def __init__(self, of_density: PredictedRows, lattice: Lattice) -> None:
        self.of_density, self.lattice = of_density, lattice
        self.n_rows, self.output_shape = of_density.n_rows, of_density.output_shape
        self.unit = of_density.unit

    def law(self, rows: slice) -> LatticeLaw:
        return LatticeLaw(self.of_density.law(rows), self.lattice)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly at all rows; a share π of the draws is the nearest atom."""
        rng = random_numbers(random_state)
        draws = self.of_density.draws(n_samples, int(rng.randint(2**31 - 1)))
        return self.lattice.drawn(draws, rng)

    def targets(self, y: Any) -> Any:
        return self.of_density.targets(y)

    def atom_probabilities(self) -> np.ndarray:
        """Return the probability π·P_j(x) of each atom, (n, J); each row sums to π."""
        return self.by_blocks(lambda rows: (self.law(rows).atom_probabilities(),))[0]

    def log_probability(self, y: Any) -> np.ndarray:
        """Return the log probability of each y, (n,), in nats; −∞ for a number that is no atom."""
        y = super().targets(y)
        return self.by_blocks(lambda rows: (self.law(rows).log_probability(y[rows])[:, 0],))[0]
