"""Deadlines, and the share of the time that has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Clock = Callable[[], float]
"""Seconds since any fixed time; they never go back."""


LEAST_SECONDS = 1e-3


class Deadline(NamedTuple):
    """A time that something has to end at.

    Parameters
    ----------
    end : float
        When, by the clock.
    clock : callable, default=time.monotonic
        What tells the time, in seconds.
    core_clock : callable, default=time.thread_time
        The same, but it stands still while this thread has no core, or waits.
    """

    end: float
    clock: Clock = time.monotonic
    core_clock: Clock = time.thread_time

    def left(self) -> float:
        """Return the seconds that are left; less than 0 if it has passed."""
        return self.end - self.clock()

    def earlier(self, seconds: float) -> Deadline:
        """Return a deadline this much earlier, to leave time for what comes after it."""
        return self._replace(end=self.end - seconds)


def seconds_left(deadline: Deadline | None) -> float | None:
    """Return what is left as the `max_time` of another fit, which is positive; None for none."""
    return None if deadline is None else max(deadline.left(), LEAST_SECONDS)


@dataclass
class Allowance:
    """The seconds between the first look at a deadline and its end, and what of them has passed.

    Parameters
    ----------
    deadline : Deadline
        When they end.
    spent : float, default=0.0
        What has passed in runs that this one resumes.
    """

    deadline: Deadline
    spent: float = 0.0
    granted: float | None = None  # seconds, from the first look on
    core_start: float = 0.0  # the core clock at the first look

    def used(self) -> float:
        """Return the seconds that have passed; none at the first look."""
        left = self.deadline.left()
        if self.granted is None:
            self.granted, self.core_start = left, self.deadline.core_clock()
        return self.spent + self.granted - left

    def share(self) -> float:
        """Return the share of them that has passed; at least 1 if there were none."""
        used = self.used()
        assert self.granted is not None
        return used / self.granted if self.granted > 0.0 else 1.0

    def core_share(self) -> float:
        """Return the share of the seconds since the first look that this thread had a core for."""
        seconds = self.used() - self.spent
        return (self.deadline.core_clock() - self.core_start) / seconds if seconds > 0.0 else 1.0
