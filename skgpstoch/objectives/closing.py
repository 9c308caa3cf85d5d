"""How thorough a closing pass is, and what it will take, as measured on few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..data.deadline import Clock

BLOCKS = (256, 1024)  # rows of which a pass is timed
N_LOSSES = 300  # that a calibration computes; *measured*: 150 to 300
MOST_CLOSING = 0.3  # of the time, for a closing pass that keeps training from its end
GRACE = 0.3  # seconds that it may always take, as a few steps alone are worse than no steps
SURE = 1.2  # times what the closing pass is expected to take is left for it


class Closing(NamedTuple):
    """How thorough a closing pass is.

    Parameters
    ----------
    rounds : int
        Of q(w) and the calibration, each given the other; 0: q(w) stays as training leaves it.
    max_iter : int
        Newton's steps of a q(w).
    """

    rounds: int
    max_iter: int


CLOSINGS = {"full": Closing(2, 12), "short": Closing(1, 6), "none": Closing(0, 0)}
"""*Measured* on six tables: one round is as good as two (to .001 nats), none is worse by .05."""


class ClosingCost(NamedTuple):
    """Seconds that parts of a closing pass take."""

    of_weights: float  # q(w) of all members for all rows; 0 if it is not found again
    of_calibration: float

    def of(self, closing: Closing) -> float:
        """Return the seconds of a closing pass."""
        passes = closing.rounds + 1 if closing.rounds else 0
        return passes * self.of_weights + max(closing.rounds, 1) * self.of_calibration

    def choose(self, seconds: float, wanted: float) -> str:
        """Return the name of the closing pass for which there is time.

        Parameters
        ----------
        seconds : float
            For training and for the closing pass.
        wanted : float
            What training would take.
        """
        if wanted + SURE * self.of(CLOSINGS["full"]) <= seconds or not self.of_weights:
            return "full"
        affordable = max(MOST_CLOSING * seconds, GRACE)
        return "short" if SURE * self.of(CLOSINGS["short"]) <= affordable else "none"


def seconds_of(action: Callable[[], object], clock: Clock) -> float:
    """Measure what something takes that has been done once."""
    action()
    start = clock()
    action()
    return clock() - start


def extrapolated(seconds: Callable[[int], float], n_rows: int) -> float:
    """Return the seconds for so many rows from those for the rows of two blocks."""
    few, many = (min(n, n_rows) for n in BLOCKS)
    at_many = seconds(many)
    if n_rows <= many:
        return at_many
    per_row = max(at_many - seconds(few), 0.0) / (many - few)
    return at_many + (n_rows - many) * per_row
