"""Choose how thorough a closing pass is, from its time measured on a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..data.deadline import Clock

BLOCKS = (128, 1024)  # rows for which a pass is timed
USUAL_STEPS = 4  # Newton steps; *measured*: 3 to 5, but more from where training starts
N_LOSSES = 6  # a calibration computes so many losses times the squared number of free numbers
MOST_CLOSING = 0.3  # share of the time for finding q(w), if training cannot be completed
MOST_CALIBRATION = 0.15  # share of the time for the calibration, likewise
N_EVALUATIONS = 25  # evaluations of the objective during a fit, to choose the best iterate
MOST_SCORING = 0.02  # share of the time for one evaluation, likewise
LEAST_JUDGES = 300  # least number of rows for a calibration, if there are as many
GRACE = 0.3  # seconds that each part may always take, because too few steps are worse than none
SURE = 1.2  # safety factor of the closing pass's expected time


class Closing(NamedTuple):
    """How thorough a closing pass is.

    Parameters
    ----------
    name : {"full", "short", "none"}
        Name of the level; with "none", q(w) stays as training leaves it.
    judging : float, default=1.0
        Share of the held-out rows that are used for calibration.
    scoring : float, default=1.0
        Share of the held-out rows that are used to score iterates during training.
    """

    name: str
    judging: float = 1.0
    scoring: float = 1.0

    @property
    def rounds(self) -> int:
        """Number of rounds in which q(w) and the calibration are found, each given the other.

        *Measured* on six tables: one round is as good as two (to .001 nats); none is worse by .05.
        """
        return {"full": 2, "short": 1, "none": 0}[self.name]

    @property
    def max_iter(self) -> int:
        """Most Newton steps for a q(w)."""
        return 12 if self.name == "full" else 6


FULL = Closing("full")


class ClosingCost(NamedTuple):
    """Measured seconds of the parts of a closing pass."""

    of_weights: float  # q(w) of all members for all rows; 0 if q(w) stays as trained
    of_calibration: float
    of_predictions: float = 0.0  # for all held-out rows
    of_scoring: float = 0.0  # of one iterate, in training

    def of(self, closing: Closing) -> float:
        """Return the seconds of a closing pass."""
        passes = closing.rounds + 1 if closing.rounds else 0
        n_calibrations = max(closing.rounds, 1) if self.of_weights else 1
        judged = n_calibrations * self.of_calibration + self.of_predictions
        return passes * self.of_weights + closing.judging * judged

    def choose(self, seconds: float, wanted: float) -> Closing:
        """Return the closing pass for which there is time.

        Parameters
        ----------
        seconds : float
            Time for training and the closing pass together.
        wanted : float
            Time that all training steps would take.
        """
        wanted += N_EVALUATIONS * self.of_scoring
        if wanted + SURE * self.of(FULL) <= seconds:
            return FULL
        affordable = max(MOST_CALIBRATION * seconds, GRACE)
        judged = self.of_calibration + self.of_predictions
        judging = min(1.0, affordable / max(SURE * judged, 1e-9))
        for_one = max(MOST_SCORING * seconds, GRACE / N_EVALUATIONS)
        scoring = min(1.0, for_one / max(self.of_scoring, 1e-9))
        solving = SURE * 2 * self.of_weights
        is_solved = solving <= max(MOST_CLOSING * seconds, GRACE, seconds - wanted)
        return Closing("short" if is_solved else "none", judging, scoring)


def seconds_of(action: Callable[[], object], clock: Clock) -> float:
    """Return the seconds that an action takes."""
    start = clock()
    action()
    return clock() - start


def extrapolated(seconds: Callable[[int], float], n_rows: int, most: float = math.inf) -> float:
    """Extrapolate the seconds for so many rows from those for two smaller numbers of rows.

    Measure each twice, because the first run compiles kernels, and other work may interfere; but
    only once if even the few rows take longer than `most` seconds.
    """
    few, many = (min(n, n_rows) for n in BLOCKS)
    if (once := seconds(few)) > most:
        return once
    at_few, at_many = min(once, seconds(few)), min(seconds(many), seconds(many))
    if few == many:
        return at_few
    per_row = max(at_many - at_few, 0.0) / (many - few)
    return at_many + (n_rows - many) * per_row
