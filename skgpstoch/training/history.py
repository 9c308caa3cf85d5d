"""How far a training run is: its epochs and scores, and the share of its time that it used."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..data.deadline import Allowance
from ..data.groups import ALONE, Group

MAX_ROLLBACKS = 10  # halvings of the learning rate after which training counts as diverged
LEAST_COMPARED = 2  # epochs, where there are as many
SETTLED_EPOCHS, SETTLED_GAIN = 50, 0.01
"""Least number of epochs, and most gain per row of the last ones, of training that has settled."""


@dataclass
class History:
    """The record of a training run, epoch by epoch."""

    loss_curve: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    scored_epochs: list[int] = field(default_factory=list)
    start_score: float = math.inf
    best_score: float = math.inf
    best_iter: int = 0
    improved_iter: int = 0
    n_rollbacks: int = 0
    n_steps: int = 0  # steps taken, set at the end
    status: str = "running"
    core_share: float = 1.0  # share of the time with a CPU core, in a run with a deadline

    @property
    def n_iter(self) -> int:
        """Number of epochs; a deadline may have cut the last one short."""
        return len(self.loss_curve)

    @property
    def kept_start(self) -> bool:
        """Whether the start was better than every epoch's iterate, so that it was kept."""
        return self.best_iter == 0 < self.n_iter and math.isfinite(self.best_score)

    @property
    def late_gain(self) -> float:
        """How much the last tenth of training gained per row, NaN if it is too early to tell.

        At least two epochs are compared with as many before them; with fewer than four, one with
        one.
        """
        curve = self.scores or self.loss_curve
        compared = self.n_compared
        if not compared:
            return math.nan
        before, last = curve[-2 * compared : -compared], curve[-compared:]
        return sum(before) / compared - sum(last) / compared

    @property
    def n_compared(self) -> int:
        """How many of the last epochs that is about."""
        n = len(self.scores or self.loss_curve)
        return max(n // 10, min(LEAST_COMPARED, n // 2))

    def has_settled(self, most: float = SETTLED_GAIN) -> bool:
        """Tell whether max_iter ended many epochs, whose last ones gained at most this per row."""
        is_long = self.status == "max_iter" and self.n_iter >= SETTLED_EPOCHS
        return is_long and self.late_gain <= most

    def record(self, score: float, tol: float) -> bool:
        """Take the score of the present iterate, and tell whether it is the best one."""
        self.scores.append(score)
        self.scored_epochs.append(self.n_iter)
        if score < self.best_score - tol:
            self.improved_iter = self.n_iter
        if is_best := score < self.best_score:
            self.best_score, self.best_iter = score, self.n_iter
        return is_best

    def stands_still(self, n_epochs: float, tol: float, is_scored: bool) -> bool:
        """Tell whether the score, or the loss without scores, has not improved for so long."""
        if math.isinf(n_epochs):
            return False
        if is_scored:
            # Count epochs up to the last score only: later ones had no chance to improve it.
            return bool(self.scores) and self.scored_epochs[-1] - self.improved_iter >= n_epochs
        recent = int(n_epochs)
        past = self.loss_curve[:-recent]
        return bool(past) and min(self.loss_curve[-recent:]) > min(past) - tol

    def overfits(self, n_epochs: float) -> bool:
        """Tell whether, since the best score, the fit improved only on training rows, for so long.

        If both losses get worse, as with a high learning rate and little noise, better scores may
        follow.
        """
        waited = self.n_iter - self.best_iter
        if not self.scores or waited < n_epochs:
            return False
        recent = self.loss_curve[-(1 + waited // 2) :]
        return sum(recent) / len(recent) < self.loss_curve[self.best_iter - 1]

    def is_sound(self) -> bool:
        """Whether a resumed run can have this history; a file may hold anything."""
        lists = self.loss_curve, self.scores, self.scored_epochs
        if not all(type(each) is list for each in lists):
            return False
        numbers = [*self.loss_curve, *self.scores, self.start_score, self.best_score]
        epochs = [*self.scored_epochs, self.best_iter, self.improved_iter]
        return (
            all(isinstance(x, float) for x in numbers)
            and all(isinstance(i, int) and 0 <= i <= self.n_iter for i in epochs)
            and len(self.scores) == len(self.scored_epochs)
            and self.n_rollbacks in range(MAX_ROLLBACKS + 1)
            and self.status == "running"
        )


HURRIED_STEPS = 20  # least number of steps, even if time is short; fewer are worse than none

LOOKS = 0.05
"""Share of the remaining time after which a group checks the clock again."""


@dataclass
class Pace:
    """How much of the time has passed at a step; a group extrapolates it between exchanges.

    Parameters
    ----------
    allowance : Allowance or None, default=None
        The time; None: it is not limited.
    group : Group, default=ALONE
        The processes that take the same steps.
    """

    allowance: Allowance | None = None
    group: Group = ALONE
    share: float = 0.0  # of the time that had passed when the group last checked the clock
    per_step: float = 0.0  # share of the time that a step takes
    asked_at: int = -1  # step at which the group last checked the clock; −1: unknown
    ask_at: int = 0  # step at which to check it again

    def used(self, step: int) -> float:
        """Return the share of the time that is used; 0 if there is no limit."""
        if self.allowance is None:
            return 0.0
        if self.group.size == 1:
            return self.allowance.share()
        if not self.asked_at <= step < self.ask_at:
            self.look_at_clock(self.allowance.share(), step)
        return self.share + self.per_step * (step - self.asked_at)

    def position(self, step: int, n_steps: int) -> float:
        """Return the position in a schedule, in steps: by steps made, or by time if later."""
        share = min(self.used(step), step / HURRIED_STEPS)
        return max(step, share * n_steps)

    def is_late(self, step: int) -> bool:
        """Tell whether the deadline has passed."""
        return step >= HURRIED_STEPS and self.used(step) >= 1.0

    def look_at_clock(self, share: float, step: int) -> None:
        """Exchange the time in the group, and decide when to do so again."""
        n_steps = step - self.asked_at
        if self.asked_at >= 0 and n_steps > 0:
            self.per_step = (share - self.share) / n_steps
        wait = LOOKS * (1.0 - share) / self.per_step if self.per_step > 0.0 else 0.0
        self.asked_at, self.share, self.ask_at = step, share, step + max(1, int(wait))

    def forget(self) -> None:
        """Check the clock again at the next step."""
        self.asked_at, self.ask_at = -1, 0

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve as much time before the deadline as the block takes, to run it again at the end.

        The deadline becomes earlier by the time that the block takes.
        """
        if self.allowance is None:
            yield
            return
        left = self.allowance.deadline.left()
        yield
        seconds = left - self.allowance.deadline.left()
        self.allowance.deadline = self.allowance.deadline.earlier(seconds)

    def elapsed(self) -> float:
        """Return the seconds that have passed, those of resumed runs included."""
        return 0.0 if self.allowance is None else self.allowance.used()

    def resume(self, seconds: float) -> None:
        """Count these seconds of an earlier run, too."""
        if self.allowance is not None:
            self.allowance.spent = seconds

    def core_share(self) -> float:
        """Return the share of the time in which this thread had a core; 1 without a limit."""
        return 1.0 if self.allowance is None else self.allowance.core_share()
