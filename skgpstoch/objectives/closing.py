"""Spend the time of a fit: how thorough its closing pass is, and how many members it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sklearn.exceptions import ConvergenceWarning

from ..data.deadline import Clock
from ..data.findings import Finding

BLOCKS = (128, 1024)  # rows for which a pass is timed
DEAR = 0.01  # share of the time that the fewer rows take, from which the more are not timed
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


FULL, SHORT = Closing("full"), Closing("short")


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


def extrapolated(seconds: Callable[[int], float], n_rows: int) -> float:
    """Extrapolate the seconds for so many rows from those for two smaller numbers of rows.

    Measure each twice, because the first run compiles kernels, and other work may interfere.
    """
    few, many = (min(n, n_rows) for n in BLOCKS)
    at_few, at_many = (min(seconds(n), seconds(n)) for n in (few, many))
    if few == many:
        return at_few
    per_row = max(at_many - at_few, 0.0) / (many - few)
    return at_many + (n_rows - many) * per_row


# ---- the time of a fit ---------------------------------------------------------------------------


LEAST_SHARE = 1 / 3  # train fewer networks if each would make less than this share of its steps

SEARCH = "part of the search for a start"
BUSY = 0.7
"""If training had a CPU core for a smaller share of its time, other programs compete with it.
*Measured* on four cores with eight other jobs: .13 with four threads, .33 with one."""


EARLY = 0.3
"""If a larger share of max_time is left, the time was not too short: when it was planned, other
programs slowed the machine down."""

OVERRUN = -0.5
"""If fits take so much more of max_time, a message says so."""


def members_in_time(n_members: int, n_wanted: float, n_affordable: float) -> int:
    """Return how many members predict best if there is time for `n_affordable` steps of all.

    The time of a step is proportional to the number of members, so fewer members make more steps
    each. Each should make at least a third of the `n_wanted` steps. *Measured* in the same time,
    nats per row: on four tables of 8,000 rows, one network with an eighth of the steps is better
    than three with a sixteenth by .17, one with a quarter is better than three with an eighth by
    .14, and three with half are better than one with all by .02. On six tables of 1,000 rows, two
    with a quarter are better than eight with a sixteenth by .40, and four with half are better
    than eight with a quarter by .09.
    """
    affordable = n_members * n_affordable / (LEAST_SHARE * n_wanted)
    return int(min(n_members, max(affordable, 1.0)))


class Budget(NamedTuple):
    """The work that a fit did within its time.

    Parameters
    ----------
    n_steps, n_estimators : int
        Training steps and ensemble members that the fit did.
    all_steps, all_estimators : int
        Training steps and ensemble members without a time limit.
    closing_pass : {"full", "short", "none"}
        How thorough the closing pass was; "none" leaves last layers as training left them.
    is_enough : bool
        Whether the fit did everything.
    core_share : float, default=1.0
        Share of the training time during which the thread had a CPU core.
    n_threads : int, default=1
        Number of torch threads in the fit.
    unused : float, default=0.0
        Share of the time that was left at the end.
    start_is_cut : bool, default=False
        Whether the search of where training starts was cut short.
    """

    n_steps: int
    all_steps: int
    n_estimators: int
    all_estimators: int
    closing_pass: str
    is_enough: bool
    core_share: float = 1.0
    n_threads: int = 1
    unused: float = 0.0
    start_is_cut: bool = False

    @property
    def finding(self) -> Finding:
        """The share of the work that was done, and what was cut."""
        done = self.n_steps * self.n_estimators / (self.all_steps * self.all_estimators)
        found = Finding("budget", "max_time", done, 1.0, category=ConvergenceWarning)
        if self.is_enough:
            return found
        return found._replace(severity="problem", text=self.shortage)

    @property
    def shortage(self) -> str:
        """A message that says what the time budget cut short."""
        cut = []
        if self.start_is_cut:
            cut.append(SEARCH)
        if self.n_steps < self.all_steps:
            cut.append(f"{self.n_steps} of {self.all_steps} steps")
        if self.n_estimators < self.all_estimators:
            cut.append(f"{self.n_estimators} of {self.all_estimators} networks")
        if self.closing_pass != "full":
            some = {"short": "part", "none": "none"}[self.closing_pass]
            cut.append(f"{some} of the closing pass over all rows")
        *others, last = cut
        all_cut = f"{', '.join(others)} and {last}" if others else last
        if self.unused > EARLY and cut == [SEARCH]:
            return (
                f"max_time was too short: it allowed {SEARCH}, which may take only a share of it, "
                f"and {self.unused:.0%} was left at the end. More time gives better predictions."
            )
        if self.unused > EARLY:
            return (
                f"The fit planned {all_cut}, because the machine was slow when it began, and then "
                f"left {self.unused:.0%} of max_time unused. Fitting again may predict better."
            )
        allowed = (
            f"max_time was too short: it allowed {all_cut}. More time gives better predictions."
        )
        if self.unused < OVERRUN:
            times = f"{1.0 - self.unused:.2g} times"
            allowed += f" The fit took {times} as long, because a few steps are made in any case."
        return f"{allowed} {self.rivalry}" if self.core_share < BUSY else allowed

    @property
    def rivalry(self) -> str:
        """A message that says how other programs slowed training down."""
        said = (
            "Other programs kept the machine busy: training had a core for only "
            f"{self.core_share:.0%} of its time."
        )
        if self.n_threads == 1:
            return said
        fewer = max(1, int(self.core_share * self.n_threads))
        return (
            f"{said} torch used {self.n_threads} threads, which then wait for each other. "
            f"Call torch.set_num_threads({fewer}) before the fit, or set "
            f"OMP_NUM_THREADS={fewer}."
        )
