"""Time budgets: how much of its full work a fit with `max_time` did."""

from __future__ import annotations

from typing import NamedTuple

LEAST_SHARE = 1 / 3  # of the steps that each network makes, or there are fewer networks

BUSY = 0.7
"""Share of its time with a core, below which training competes with other programs. *Measured* on
four cores: .13 with four threads, and .33 with one, beside eight jobs."""


def members_in_time(n_members: int, n_wanted: float, n_affordable: float) -> int:
    """Return how many members predict best if there is time for so many steps of all of them.

    Fewer are trained for longer, as a step takes in proportion to them: each for a third of the
    steps at least. *Measured* in the same time, nats per row: on four tables of 8,000 rows one
    network of an eighth of the steps is better than three of a sixteenth by .17, one of a quarter
    better than three of an eighth by .14, and three of a half than one of all by .02; on six tables
    of 1,000 rows two of a quarter are better than eight of a sixteenth by .40, and four of a half
    better than eight of a quarter by .09.
    """
    affordable = int(n_members * n_affordable / (LEAST_SHARE * n_wanted))
    return min(n_members, max(affordable, 1))


class Budget(NamedTuple):
    """The work that a fit did within its time.

    Parameters
    ----------
    n_steps, n_estimators : int
        Training steps and ensemble members that the fit did.
    all_steps, all_estimators : int
        Training steps and ensemble members without a time limit.
    closing_pass : {"full", "short", "none"}
        How thorough the closing pass was; "none": last layers are as training left them.
    is_enough : bool
        Whether the fit did everything.
    core_share : float, default=1.0
        Share of the training time in which the thread had a CPU core.
    n_threads : int, default=1
        Number of torch's threads in the fit.
    """

    n_steps: int
    all_steps: int
    n_estimators: int
    all_estimators: int
    closing_pass: str
    is_enough: bool
    core_share: float = 1.0
    n_threads: int = 1

    @property
    def shortage(self) -> str:
        """What a user should know of a budget that was not enough."""
        cut = []
        if self.n_steps < self.all_steps:
            cut.append(f"{self.n_steps} of {self.all_steps} steps")
        if self.n_estimators < self.all_estimators:
            cut.append(f"{self.n_estimators} of {self.all_estimators} networks")
        if self.closing_pass != "full":
            some = {"short": "part", "none": "none"}[self.closing_pass]
            cut.append(f"{some} of the closing pass over all rows")
        *others, last = cut
        all_cut = f"{', '.join(others)} and {last}" if others else last
        allowed = (
            f"max_time was too short: it allowed {all_cut}. More time gives better predictions."
        )
        return f"{allowed} {self.rivalry}" if self.core_share < BUSY else allowed

    @property
    def rivalry(self) -> str:
        """What a user should know of other programs on the same cores."""
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
