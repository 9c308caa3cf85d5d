"""Deadlines, and the share of the time that has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Clock = Callable[[], float]
"""Returns seconds since some fixed time, and never goes back."""


LEAST_SECONDS = 1e-3


class Deadline(NamedTuple):
    """A time by which something must end.

    Parameters
    ----------
    end : float
        The time, by `clock`.
    clock : callable, default=time.monotonic
        Returns the time in seconds.
    core_clock : callable, default=time.thread_time
        The same, but stands still while this thread waits or has no CPU core.
    """

    end: float
    clock: Clock = time.monotonic
    core_clock: Clock = time.thread_time

    @classmethod
    def after(cls, seconds: float, began: float = 0.0, clock: Clock = time.monotonic) -> Deadline:
        """Return the time so many seconds, which may be of half precision, after another one."""
        return cls(began + float(seconds), clock)

    def left(self) -> float:
        """Return the seconds that are left; negative after the deadline."""
        return self.end - self.clock()

    def earlier(self, seconds: float) -> Deadline:
        """Return an earlier deadline, to leave so many seconds for later work."""
        return self._replace(end=self.end - seconds)

    def part(self, share: float) -> Deadline:
        """Return the deadline of work that may take so much of what is left."""
        return self.earlier((1.0 - share) * max(self.left(), 0.0))


def has_passed(deadline: Deadline | None) -> bool:
    """Tell whether there is no time left."""
    return deadline is not None and deadline.left() <= 0.0


def seconds_left(deadline: Deadline | None) -> float | None:
    """Return the time left as `max_time` of another fit, which is positive; None if unlimited."""
    return None if deadline is None else max(deadline.left(), LEAST_SECONDS)


@dataclass
class Allowance:
    """The seconds from the first check of a deadline to its end, and how many have passed.

    Parameters
    ----------
    deadline : Deadline
        When the time ends.
    spent : float, default=0.0
        Seconds that passed in earlier runs, which this run resumes.
    """

    deadline: Deadline
    spent: float = 0.0
    granted: float | None = None  # seconds from the first check to the end
    core_start: float = 0.0  # the core clock at the first check

    def used(self) -> float:
        """Return the seconds that have passed; 0 (plus `spent`) at the first check."""
        left = self.deadline.left()
        if self.granted is None:
            self.granted, self.core_start = left, self.deadline.core_clock()
        return self.spent + self.granted - left

    def share(self) -> float:
        """Return the share of the time that has passed; 1 if there was no time."""
        used = self.used()
        assert self.granted is not None
        return used / self.granted if self.granted > 0.0 else 1.0

    def core_share(self) -> float:
        """Return the share of the time since the first check in which this thread had a core."""
        seconds = self.used() - self.spent
        return (self.deadline.core_clock() - self.core_start) / seconds if seconds > 0.0 else 1.0
