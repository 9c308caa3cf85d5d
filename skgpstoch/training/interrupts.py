"""Handle Ctrl-C: the first one keeps the best model so far, the second one ends everything.

A user who watches a fit and interrupts it wants the model found so far. In a loop of a hundred
fits, Ctrl-C must be able to end the loop, and a job without a keyboard is interrupted in order to
end it. Therefore:

* Fits that follow one another within ten seconds are a series. The first interrupt in a series ends
  the running fit with its best model so far and a warning. The second raises KeyboardInterrupt.
* If nobody is at the keyboard, the first interrupt raises KeyboardInterrupt.
* :func:`on_interrupt` makes a block the series, or lets every interrupt raise.

Code that can end early runs in a block of :func:`interruptible`, and calls :func:`keeps_best` when
it catches KeyboardInterrupt. Once such a block has ended there is a model, whose closing steps are
owed: until the fit ends or another such block begins, the first interrupt is only remembered. Later
parts of the same fit call :func:`was_interrupted`, and are skipped or cut short.

In a group of processes, KeyboardInterrupt could come in the middle of an exchange, and that rank
would then be one exchange behind the others. Therefore the first interrupt in a group only leaves a
mark (:func:`marking`), which the ranks exchange with the next sums. The second interrupt raises.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from sklearn.exceptions import ConvergenceWarning

from ..data.messages import warn

SERIES_PAUSE = 10.0
"""Longest pause, in seconds, between two fits of a series; users press Ctrl-C again faster."""

ACTIONS = ("keep", "raise")
AGAIN = "Interrupt again to stop the fits that follow too."


class Record(threading.local):
    """The interrupts of one thread.

    Signals reach only the main thread, but a callback may raise KeyboardInterrupt in any thread.

    Attributes
    ----------
    action : str
        "keep" or "raise" in a block of :func:`on_interrupt`; otherwise "auto".
    depth, fit : int
        1 in a fit and else 0, and the number of the outermost fit.
    ended : float
        Time at which the last outermost fit ended.
    kept_in : int or None
        Number of the fit that an interrupt has ended in this series.
    ended_in : int or None
        Number of the fit that an interrupt has ended without a model.
    is_marked : bool
        Whether an interrupt has come in a block of :func:`marking`.
    is_owed : bool
        Whether there is a model to be completed, so that the first interrupt is only remembered.
    is_untold : bool
        Whether an interrupt has kept a model of the fit, which nothing has warned of yet.
    """

    def __init__(self) -> None:
        self.action = "auto"
        self.depth = self.fit = 0
        self.ended = -SERIES_PAUSE
        self.kept_in: int | None = None
        self.ended_in: int | None = None
        self.is_marked = self.is_owed = self.is_untold = False


RECORD = Record()


@contextlib.contextmanager
def on_interrupt(action: str = "keep") -> Iterator[None]:
    """Choose what Ctrl-C (SIGINT) does to the fits in a `with` block.

    Parameters
    ----------
    action : {"keep", "raise"}, default="keep"
        "keep": the first interrupt stops the running fit, keeps the best model so far and warns;
        any later one in the block raises KeyboardInterrupt. "raise": every interrupt raises
        KeyboardInterrupt.

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
    KeyboardInterrupt. A job that a shell script starts with `&` ignores SIGINT outside of a block.
    A handler of SIGINT that other code has set, as `asyncio.run` does, stays in force, also in a
    block.

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
        with hearing():
            yield
    finally:
        RECORD.action, RECORD.kept_in = before


@contextlib.contextmanager
def hearing() -> Iterator[None]:
    """In the block, hear SIGINT also in a process that was started to ignore it.

    Shells start the jobs that a script puts in the background so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def one_fit() -> Iterator[None]:
    """Count the block, with all the fits in it, as one fit."""
    if RECORD.depth > 0:
        yield
        return
    RECORD.fit += 1
    if RECORD.action == "auto" and time.monotonic() - RECORD.ended > SERIES_PAUSE:
        RECORD.kept_in = None
    RECORD.is_owed = RECORD.is_untold = False
    RECORD.depth = 1
    try:
        with handled_by(handle):
            yield
    finally:
        RECORD.depth = 0
        RECORD.ended = time.monotonic()
    if RECORD.is_untold:
        tell(
            "The fit was interrupted after a training had ended; the model consists of what was "
            "trained by then."
        )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise interrupts in the block, which can end early; afterwards there is a model."""
    before, RECORD.is_owed = RECORD.is_owed, False
    try:
        yield
    except BaseException:
        RECORD.is_owed = before
        raise
    RECORD.is_owed = True


def handle() -> None:
    """Handle an interrupt in a fit: raise it, unless it is the first and a model is owed.

    Raises
    ------
    KeyboardInterrupt
        If it is raised.
    """
    if not (RECORD.is_owed and keeps_best()):
        raise KeyboardInterrupt


def keeps_best() -> bool:
    """Tell whether an interrupt that has just come keeps the best model so far (else raise it)."""
    is_auto = RECORD.action == "auto"
    keeps = is_attended() if is_auto else RECORD.action == "keep"
    is_over = RECORD.depth > 0 and RECORD.ended_in == RECORD.fit  # whoever catches the second one
    if keeps and RECORD.kept_in is None and not is_over:
        RECORD.kept_in, RECORD.is_owed, RECORD.is_untold = RECORD.fit, True, True
        return True
    RECORD.ended_in = RECORD.fit
    if is_auto:  # a raised interrupt ends the series
        RECORD.kept_in = None
    return False


def tell(what: str) -> None:
    """Warn of what an interrupt has ended, once."""
    RECORD.is_untold = False
    warn(f"{what} {AGAIN}", ConvergenceWarning)


def was_interrupted() -> bool:
    """Tell whether an interrupt has ended a part of the current fit."""
    return RECORD.depth > 0 and RECORD.kept_in == RECORD.fit


def share_interrupt() -> None:
    """Share with all ranks that an interrupt on any of them ended a part of the current fit."""
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
    except (AttributeError, OSError, ValueError):  # there is no terminal, or it is closed
        return False


# ---- marks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Handler:
    """A handler of SIGINT that is ours."""

    handle: Callable[[], None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.handle()


@contextlib.contextmanager
def handled_by(handle: Callable[[], None]) -> Iterator[bool]:
    """Let a function, which may raise, handle SIGINT in the block instead of Python's handler.

    Yields
    ------
    is_handled : bool
        False if the handler was not set: signals reach only the main thread, and a handler that
        other code has set is kept.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not (is_main and (before is signal.default_int_handler or isinstance(before, Handler))):
        yield False
        return
    signal.signal(signal.SIGINT, Handler(handle))
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """In the block, let an interrupt that keeps the best model leave a mark instead of raising."""
    RECORD.is_marked = False
    try:
        with handled_by(mark):
            yield
    finally:
        RECORD.is_marked = False


def mark() -> None:
    """Handle an interrupt in a block of :func:`marking`.

    Raises
    ------
    KeyboardInterrupt
        If it is not the first interrupt, or no model is to be kept.
    """
    if not keeps_best():
        raise KeyboardInterrupt
    RECORD.is_marked = True


def is_marked() -> bool:
    """Tell whether an interrupt has come in a block of :func:`marking`."""
    return RECORD.is_marked
