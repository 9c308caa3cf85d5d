"""Contexts of fits and predictions: gradients, autocast, the state after errors, a busy machine."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from sklearn.base import BaseEstimator

from ..data.devices import ACCELERATORS, HOST, ran_out_of_memory
from ..data.messages import tell_search, warn
from ..training.interrupts import one_fit

TAKE_MEMORY = (
    "batch_size",
    "n_inducing",
    "n_components",
    "basis_batch_size",
    "max_exact",
    "hidden_layer_sizes",
    "n_estimators",
    "n_waves",
    "n_layers",
    "hidden_dims",
    "n_samples",
)
RAN_OUT = "ran out of memory"
UNKNOWN_Y = "Input y contains"  # NaN or infinity, as scikit-learn says
WITHOUT = (
    "Drop these rows, for example by keep = np.isfinite(y) (of several outputs, "
    "np.isfinite(y).all(axis=1)) and fit(X[keep], y[keep])."
)

IS_JUDGED: ContextVar[bool] = ContextVar("is_judged", default=False)
"""Whether the caller judges the fit by rows held out: copies do not mislead it, and it warns."""


@contextlib.contextmanager
def judged() -> Iterator[None]:
    """Fit models in the block that the caller judges by rows held out."""
    token = IS_JUDGED.set(True)
    try:
        yield
    finally:
        IS_JUDGED.reset(token)


def warn_of(estimator: Any) -> None:
    """Warn of what is wrong with a fit; the caller does so of the fits that it judges and keeps."""
    if not IS_JUDGED.get():
        estimator._diagnosis.warn()


@contextlib.contextmanager
def numeric_context() -> Iterator[None]:
    """Disable an autocast around the call, because types are arguments here."""
    with contextlib.ExitStack() as stack:
        for kind in (HOST.type, *ACCELERATORS):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """Disable gradients and autocast while predicting."""
    with torch.no_grad(), numeric_context():
        yield


def fitting(method: Callable) -> Callable:
    """Enable gradients, and restore the estimator's state if the wrapped method raises.

    A MemoryError then says what to lower, and an error about unknown targets to leave them out.
    A warning tells of programs that slowed the fit down.
    """

    @functools.wraps(method)
    def wrapped(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        with (
            one_fit(),
            watched_from_outside(),
            restoring(estimator),
            torch.inference_mode(False),
            torch.enable_grad(),
            numeric_context(),
        ):
            return method(estimator, *args, **kwargs)

    return wrapped


@contextlib.contextmanager
def restoring(estimator: Any) -> Iterator[None]:
    """Restore the estimator's state if the block raises, and say what to do about the error."""
    state = dict(vars(estimator))
    try:
        yield
    except BaseException as error:
        vars(estimator).clear()
        vars(estimator).update(state)
        if RAN_OUT not in str(error) and ran_out_of_memory(error):
            raise MemoryError(what_to_lower(estimator)) from error
        told = str(error)
        if isinstance(error, ValueError) and told.startswith(UNKNOWN_Y) and WITHOUT not in told:
            raise ValueError(f"{error} {WITHOUT}") from None
        raise


def what_to_lower(estimator: BaseEstimator) -> str:
    """Say what makes a fit take less memory."""
    params = estimator.get_params(deep=False)
    given = [f"{name} (now {params[name]!r})" for name in TAKE_MEMORY if name in params]
    lower = f"lower {', '.join(given)}, or " if given else ""
    return (
        f"{type(estimator).__name__} {RAN_OUT} on device={params.get('device')!r}: {lower}"
        "free memory there, or set device='cpu'."
    )


# ---- other programs ------------------------------------------------------------------------------


MOST_PREEMPTIONS = 50.0
"""Times a second that the system takes a core from a thread. *Measured* on four cores, in ten
seconds. One thread: 1010 steps alone, 873 beside two other jobs, 762 beside four. Two threads: 2
and 1053 steps alone, 21 and 949 beside two jobs, 107 and 58 beside four. Four threads: 28 to 36 and
1025 to 1271 steps alone, 98 and 39 beside two jobs, 83 and 20 beside four."""

LEAST_WATCHED = 5.0  # seconds of a fit, before its speed is worth a warning

IS_WATCHED: ContextVar[bool] = ContextVar("is_watched", default=False)


@contextlib.contextmanager
def watched_from_outside() -> Iterator[None]:
    """Tell a search if the outermost such block fails; warn if other programs slowed it down.

    Each step waits for the slowest of torch's threads. If another program holds the core of one of
    them, all others wait until the system hands it back, some milliseconds later, many times a
    step.
    """
    if IS_WATCHED.get():
        yield
        return
    token, began, taken = IS_WATCHED.set(True), time.monotonic(), preemptions()
    try:
        yield
    except Exception as error:
        tell_search(error)
        raise
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
