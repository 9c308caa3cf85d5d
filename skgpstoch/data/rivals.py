"""Warn if other programs took the cores on which a fit ran.

Each step waits for the slowest of torch's threads. If another program holds the core of one of
them, all others wait until the system hands it back, some milliseconds later, many times a step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from .messages import warn

MOST_PREEMPTIONS = 50.0
"""Times a second that the system takes a core from a thread. *Measured* on four cores, in ten
seconds. One thread: 1010 steps alone, 873 beside two other jobs, 762 beside four. Two threads: 2
and 1053 steps alone, 21 and 949 beside two jobs, 107 and 58 beside four. Four threads: 28 to 36 and
1025 to 1271 steps alone, 98 and 39 beside two jobs, 83 and 20 beside four."""

LEAST_WATCHED = 5.0  # seconds of a fit, before its speed is worth a warning

IS_WATCHED: ContextVar[bool] = ContextVar("is_watched", default=False)


@contextlib.contextmanager
def watched_for_rivals() -> Iterator[None]:
    """Warn at the end of the outermost such block if other programs slowed it down."""
    if IS_WATCHED.get():
        yield
        return
    token, began, taken = IS_WATCHED.set(True), time.monotonic(), preemptions()
    try:
        yield
    finally:
        IS_WATCHED.reset(token)
    seconds, n_threads = time.monotonic() - began, torch.get_num_threads()
    if seconds < LEAST_WATCHED or n_threads == 1:
        return
    if (rate := (preemptions() - taken) / seconds) > MOST_PREEMPTIONS * n_threads:
        warn(
            f"Other programs took a core from the fit {rate:.0f} times a second, so it was slow "
            f"({seconds:.0f} s): torch used {n_threads} threads, which then wait for each other. "
            "Call torch.set_num_threads(1) before the fit, or set OMP_NUM_THREADS=1.",
            about="rivals",
        )


def preemptions() -> int:
    """Return how often the system has taken a core from this process; 0 if it does not say."""
    try:
        import resource  # Unix has it
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
