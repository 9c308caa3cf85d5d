"""Predictions at rows of a table whose categories have levels that training rows did not have.

Nothing distinguishes a new level from the known ones. So its row is predicted with each of some
known levels in its place, and

    p(y | x, new) = (1/K) Σ_k p_k(y | x),   p_k(y | x) = p(m_k + (y − m_k)/c_k | x, level_k)/c_k.

New levels are not at known ones. So each part is widened about its mean m_k, to the variance
c_k² σ_k² = σ_k² + h_k², with h_k half the distance from m_k to the mean that is √K-th nearest to
it: the variable kernels of Breiman, Meisel & Purcell (1977). If levels do not matter, c_k is 1.

*Measured* on twelve kinds of made-up tables of 15 to 120 levels, one to three columns of these with
normal, lognormal and two-valued effects, three draws each, 8 levels in place of new ones: NLPD of
new levels with half, and the whole distance 1.091 and 1.117; 90 % intervals hold .92 and .94, and
in a draw they are off by .035 and .050. Two and four levels, which take a quarter and half of the
time, have 1.137 and 1.122, off by .053 and .050, and at worst hold .72 and .69 (eight .84).

Half as many neighbours for levels in place of new ones would take a quarter of the time, too, that
is twice that of other rows; NLPD of 6,000 rows of songs by artist −.952 → −.948 (RMSE + .4 %),
fine fields with groups 1.491 → 1.496, firms the same. Most rows have known levels, so accuracy is
kept, and rows with new ones take eight times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...data.categories import NewRows
from ...estimators.distributions.law import Law
from ...estimators.distributions.mixed import JoinedLaw, MixedBlocks, in_place
from ...estimators.distributions.widened import WidenedLaw
from ...estimators.predictions import PredictedRows
from .mixture import mixed_draws

SHARE_OF_GAP = 0.5  # h_k, of a distance between means


class RowsWithNewLevels(PredictedRows):
    """Predictions of rows of which some have new levels: mixtures over K known levels.

    Parameters
    ----------
    ask : callable
        Returns what a model predicts at rows as it sees them.
    table : ndarray of shape (n, d)
        Rows as the model sees them.
    every : list of NewRows
        Which of them have new levels, and the levels that stand in for these.
    """

    def __init__(
        self, ask: Callable[[np.ndarray], PredictedRows], table: np.ndarray, every: list[NewRows]
    ) -> None:
        self.ask, self.table, self.every = ask, table, every
        self.whole = ask(table)
        self.n_rows, self.output_shape = self.whole.n_rows, self.whole.output_shape
        self.unit = self.whole.unit

    def law(self, rows: slice) -> Law:
        parts, places = [], []
        known, new = self._parts(rows)
        if len(known):
            parts.append(all_of(self.ask(self.table[rows][known])))
            places.append(known)
        for place, among in new:
            parts.append(self._over_levels(among))
            places.append(place)
        return JoinedLaw.of_parts(parts, places)

    def mean(self) -> np.ndarray:
        parts, places = [], []
        known, new = self._parts(slice(None))
        if len(known):
            parts.append(self.ask(self.table[known]).mean())
            places.append(known)
        for place, among in new:
            of_levels = self.ask(stacked(among)).mean().reshape(len(among), len(place), -1)
            parts.append(np.average(of_levels, axis=0, weights=np.full(len(among), 1 / len(among))))
            places.append(place)
        return in_place(parts, places)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly; in each draw, levels of the same number stand in for all rows' levels."""
        K = math.lcm(*(len(new.stand_ins) for new in self.every))  # each level equally often
        laws = [self._over_levels(new.stand_ins).law for new in self.every]

        def of_level(k: int) -> Callable[[int, int], np.ndarray]:
            def draw(n: int, seed: int) -> np.ndarray:
                rows = self.table.copy()
                for new in self.every:
                    rows[new.rows] = new.stand_ins[k % len(new.stand_ins)]
                drawn = self.ask(rows).draws(n, seed)
                for new, law in zip(self.every, laws, strict=True):
                    drawn[new.rows] = moved(drawn[new.rows], law, k % len(new.stand_ins))
                return drawn

            return draw

        return mixed_draws([1.0 / K] * K, [of_level(k) for k in range(K)], n_samples, random_state)

    def targets(self, y: Any) -> Any:
        return self.whole.targets(y)

    def _parts(self, rows: slice) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Return places of known rows among some; and of new ones, with encodings (K, m, d)."""
        numbers, found = np.arange(self.n_rows)[rows], []
        is_known = np.ones(len(numbers), dtype=bool)
        for new in self.every:
            place = np.flatnonzero(np.isin(numbers, new.rows))
            is_known[place] = False
            among = new.stand_ins[:, np.isin(new.rows, numbers)]
            if len(place):
                found.append((place, among))
        return np.flatnonzero(is_known), found

    def _over_levels(self, among: np.ndarray) -> MixedBlocks:
        """Return the mixture of what is predicted with each of K encodings (K, m, d) of rows."""
        law = all_of(self.ask(stacked(among)))
        return MixedBlocks(widened(law, len(among)), len(among))


def stacked(among: np.ndarray) -> np.ndarray:
    """Return encodings (K, m, d) one below another."""
    return among.reshape(-1, among.shape[2])


def widened(law: Law, K: int) -> Law:
    """Widen the parts of mixtures, K blocks of rows, so that no gaps are between them.

    Counts have no deviations that could be scaled; a part without a deviation stays a point.
    """
    if law.is_discrete or K == 1:
        return law
    mean, std = law.extent()
    m = mean.reshape(K, -1, mean.shape[1])
    apart = SHARE_OF_GAP * np.sort(np.abs(m[:, None] - m), axis=1)[:, round(math.sqrt(K))]
    ratio = apart.reshape(mean.shape) / np.where(std > 0.0, std, np.inf)
    return WidenedLaw(law, mean, np.hypot(1.0, ratio))


def moved(draws: np.ndarray, law: Law, k: int) -> np.ndarray:
    """Widen draws (m, P, n) of part k of a mixture as its law, of K blocks of m rows, is."""
    if not isinstance(law, WidenedLaw):
        return draws
    of_part = law.of(slice(k * len(draws), (k + 1) * len(draws)))
    return np.moveaxis(of_part.y(np.moveaxis(draws, -1, 0)), 0, -1)


def all_of(found: PredictedRows) -> Law:
    """Return the law of all rows."""
    return found.law(slice(0, found.n_rows))
