"""Predictions at rows of a table whose categories have levels that training rows did not have.

Nothing distinguishes a new level from the known ones. So its row is predicted with each of some
known levels in its place, and

    p(y | x, new) = (1/K) Σ_k p(y | x, level_k),

which is as wide as levels are far apart, and no wider if they do not matter. *Measured* with 6, 12
and 30 levels whose effects are normal, ten times the noise, and 150 rows, three draws each:
intervals of 95 % hold 91, 91 and 93 % of new levels; those of an average level held 18, 33 and 63.
A few known levels may be close to one another by chance: in one draw of twelve they held 73 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...data.categories import NewRows
from ...estimators.distributions.law import Law
from ...estimators.distributions.mixed import JoinedLaw, MixedBlocks, in_place
from ...estimators.predictions import PredictedRows
from .mixture import mixed_draws


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
            parts.append(MixedBlocks(all_of(self.ask(among)), len(among) // len(place)))
            places.append(place)
        return JoinedLaw.of_parts(parts, places)

    def mean(self) -> np.ndarray:
        parts, places = [], []
        known, new = self._parts(slice(None))
        if len(known):
            parts.append(self.ask(self.table[known]).mean())
            places.append(known)
        for place, among in new:
            K = len(among) // len(place)
            of_levels = self.ask(among).mean().reshape(K, len(place), -1)
            parts.append(np.average(of_levels, axis=0, weights=np.full(K, 1.0 / K)))
            places.append(place)
        return in_place(parts, places)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly; in each draw, levels of the same number stand in for all rows' levels."""
        K = max(len(new.stand_ins) for new in self.every)

        def of_level(k: int) -> Callable[[int, int], np.ndarray]:
            def draw(n: int, seed: int) -> np.ndarray:
                rows = self.table.copy()
                for new in self.every:
                    rows[new.rows] = new.stand_ins[k % len(new.stand_ins)]
                return self.ask(rows).draws(n, seed)

            return draw

        return mixed_draws([1.0 / K] * K, [of_level(k) for k in range(K)], n_samples, random_state)

    def targets(self, y: Any) -> Any:
        return self.whole.targets(y)

    def _parts(self, rows: slice) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Return places of known rows among some; and of new ones, each with K encodings."""
        numbers, found = np.arange(self.n_rows)[rows], []
        is_known = np.ones(len(numbers), dtype=bool)
        for new in self.every:
            place = np.flatnonzero(np.isin(numbers, new.rows))
            is_known[place] = False
            among = new.stand_ins[:, np.isin(new.rows, numbers)]
            if len(place):
                found.append((place, among.reshape(-1, self.table.shape[1])))
        return np.flatnonzero(is_known), found


def all_of(found: PredictedRows) -> Law:
    """Return the law of all rows."""
    return found.law(slice(0, found.n_rows))
