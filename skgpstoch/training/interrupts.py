"""Ctrl-C: the first one keeps the best model so far, the second ends everything.

Somebody who watches a fit and interrupts it wants what it has found. In a loop of a hundred fits
the same press must end the loop, and a job without a keyboard is interrupted to be ended. So:

* Fits that follow one another within ten seconds are a series. The first interrupt in a series ends
  the fit that runs, with its best so far and a warning. The second raises KeyboardInterrupt.
* If nobody is at the keyboard, the first raises it.
* :func:`on_interrupt` makes a block the series, or says that nothing is kept.

Whatever can be ended early asks :func:`keeps_best` when KeyboardInterrupt reaches it; what would
follow in the same fit asks :func:`was_interrupted`, and is left out or cut short.

In a group of processes KeyboardInterrupt would come in the middle of an exchange, after which that
rank is one behind the others. There the first interrupt leaves a mark (:func:`marking`), which
ranks tell one another with the next sums, and the second raises.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

SERIES_PAUSE = 10.0
"""Seconds between two fits after which they are no series: longer than it takes to press again."""

ACTIONS = ("keep", "raise")
AGAIN = "Interrupt again to stop the fits that follow too."


class Record(threading.local):
    """What a thread has seen: signals come to the main one, but tests and callbacks raise anywhere.

    Attributes
    ----------
    action : str
        "keep" or "raise" in a block, or "auto".
    depth, fit : int
        How many fits are within one another, and the number of the outermost.
    ended : float
        When that last ended.
    kept_in : int or None
        The fit that an interrupt has ended in this series.
    is_marked : bool
        Whether an interrupt has come in a block of :func:`marking`.
    """

    def __init__(self) -> None:
        self.action = "auto"
        self.depth = self.fit = 0
        self.ended = -SERIES_PAUSE
        self.kept_in: int | None = None
        self.is_marked = False


RECORD = Record()


@contextlib.contextmanager
def on_interrupt(action: str = "keep") -> Iterator[None]:
    """Choose what Ctrl-C, or SIGINT, does to the fits in a block.

    Parameters
    ----------
    action : {"keep", "raise"}, default="keep"
        "keep": the first interrupt stops the running fit, keeps the best model so far and warns;
        any later one in the block raises KeyboardInterrupt. "raise": every interrupt raises.

    Yields
    ------
    None
        The context manager has no value.

    Raises
    ------
    ValueError
        If `action` is neither of these.

    Notes
    -----
    Outside of such a block the first interrupt keeps the best model so far if somebody is at the
    keyboard: in an interactive session, in a notebook, or in the foreground of a terminal. The
    second one, in the same fit or in a fit that follows within ten seconds, raises
    KeyboardInterrupt.

    Examples
    --------
    A batch job that keeps the best model so far when its scheduler sends SIGINT before time is up:

    >>> import skgpstoch
    >>> model = skgpstoch.GaussianProcessRegressor()
    >>> with skgpstoch.on_interrupt("keep"):
    ...     model = model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
    """
    if action not in ACTIONS:
        raise ValueError(f"action must be one of {ACTIONS}, got {action!r}.")
    before = RECORD.action, RECORD.kept_in
    RECORD.action, RECORD.kept_in = action, None
    try:
        yield
    finally:
        RECORD.action, RECORD.kept_in = before


@contextlib.contextmanager
def one_fit() -> Iterator[None]:
    """Count the block as one fit, with all the fits in it."""
    if RECORD.depth == 0:
        RECORD.fit += 1
        if RECORD.action == "auto" and time.monotonic() - RECORD.ended > SERIES_PAUSE:
            RECORD.kept_in = None
    RECORD.depth += 1
    try:
        yield
    finally:
        RECORD.depth -= 1
        RECORD.ended = time.monotonic()


def keeps_best() -> bool:
    """Tell, of an interrupt that has just come, whether to keep the best so far, or to raise it."""
    is_auto = RECORD.action == "auto"
    keeps = is_attended() if is_auto else RECORD.action == "keep"
    if keeps and RECORD.kept_in is None:
        RECORD.kept_in = RECORD.fit
        return True
    if is_auto:  # what comes after the one that is raised is another matter
        RECORD.kept_in = None
    return False


def was_interrupted() -> bool:
    """Tell whether an interrupt has ended a part of the present fit."""
    return RECORD.depth > 0 and RECORD.kept_in == RECORD.fit


def share_interrupt() -> None:
    """Know of an interrupt of any rank that has ended a part of the present fit on all."""
    RECORD.kept_in, RECORD.is_marked = RECORD.fit, False


def is_attended() -> bool:
    """Tell whether somebody is at the keyboard who may have pressed Ctrl-C."""
    if hasattr(sys, "ps1") or sys.flags.interactive:  # Python's prompt, IPython, notebooks
        return True
    try:
        keyboard = sys.stdin.fileno()
        if not os.isatty(keyboard):
            return False
        return not hasattr(os, "tcgetpgrp") or os.tcgetpgrp(keyboard) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return False


# ---- marks -------------------------------------------------------------------------------------


@contextlib.contextmanager
def handled_by(handler: Callable[[], None]) -> Iterator[bool]:
    """Let a function, which may raise, take SIGINT in the block, in place of Python's own handler.

    Yields
    ------
    is_handled : bool
        False where nothing changes: signals come to the main thread alone, and a handler that
        somebody else has set stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield False
        return
    signal.signal(signal.SIGINT, lambda *_: handler())
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Let an interrupt that keeps the best so far leave a mark, and raise nothing, in the block."""
    RECORD.is_marked = False
    try:
        with handled_by(mark):
            yield
    finally:
        RECORD.is_marked = False


def mark() -> None:
    """Take an interrupt in a block of :func:`marking`.

    Raises
    ------
    KeyboardInterrupt
        If it is not the first, or nothing is to be kept.
    """
    if not keeps_best():
        raise KeyboardInterrupt
    RECORD.is_marked = True


def is_marked() -> bool:
    """Tell whether an interrupt has come in a block of :func:`marking`."""
    return RECORD.is_marked
