"""Warnings that point at the user's own line, who raised an error, and reprs."""

from __future__ import annotations

import contextlib
import dis
import re
import sys
import traceback
import warnings
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import joblib
import sklearn
import torch
from sklearn.exceptions import FitFailedWarning

JOBLIB, *OTHERS = (module.__path__[0] for module in (joblib, sklearn, torch))
LIBRARIES = (str(Path(__file__).parents[1]), JOBLIB, *OTHERS)
WRAPPERS = ("functools.py", "contextlib.py")
FITS_AND_SCORES = "_fit_and_score"  # scikit-learn's function, which keeps errors for the end

ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)  # in default reprs

MUTED: ContextVar[bool] = ContextVar("muted", default=False)

TOLD: WeakKeyDictionary[joblib.Parallel, set[Hashable]] = WeakKeyDictionary()
"""Subjects of the warnings so far, for each loop of scikit-learn (search or cross-validation)."""

FAILED_FITS: set[str] = set()
"""What has been told of failed fits in this process; for workers of joblib."""

TOLD_BY: WeakKeyDictionary[Any, set[Hashable]] = WeakKeyDictionary()
"""Subjects of the warnings so far, for each owner of :func:`warn_once`; in no file or copy."""


def warn(
    message: str, category: type[Warning] = UserWarning, about: Hashable | None = None
) -> None:
    """Warn, at the innermost line that is neither ours nor in a library that calls us.

    Parameters
    ----------
    message : str
        What happened, why, and what to do.
    category : type of Warning, default=UserWarning
        Category of the warning.
    about : hashable or None, default=None
        Subject of the warning. A search whose fits are in this thread warns only once of each
        subject, even if the numbers in the message differ. With None, every warning is given.
    """
    if MUTED.get():
        return
    frames = list(internal_frames(sys._getframe(1)))
    loops = [loop for loop in map(loop_of, frames) if loop is not None]
    told = TOLD.setdefault(loops[-1], set()) if loops else set()  # of the outermost loop
    if about is not None and about in told:
        return
    warnings.warn(message, category, stacklevel=len(frames) + 2)
    told.add(about)  # not reached if a filter turns the warning into an error


def warn_once(message: str, owner: Any, about: Hashable) -> None:
    """Warn, unless the same owner, such as what a fit has learned, has warned of this subject."""
    told = TOLD_BY.setdefault(owner, set())
    if about not in told and not MUTED.get():
        warn(message)
        told.add(about)


def without_addresses(text: str) -> str:
    """Return a repr without addresses, which differ between processes."""
    return ADDRESS.sub("", text)


@contextlib.contextmanager
def muted(is_muted: bool) -> Iterator[None]:
    """Suppress our warnings in the block if `is_muted`, because the caller gives the same ones."""
    token = MUTED.set(is_muted or MUTED.get())
    try:
        yield
    finally:
        MUTED.reset(token)


def internal_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield this frame and those around it, up to the user's own line."""
    while frame is not None and is_internal(frame.f_code.co_filename):
        yield frame
        frame = frame.f_back


def loop_of(frame: FrameType) -> joblib.Parallel | None:
    """Return the joblib loop that a frame belongs to; scikit-learn makes one for a whole search."""
    if not frame.f_code.co_filename.startswith(JOBLIB):
        return None
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, joblib.Parallel) else None


def tell_search(error: Exception) -> None:
    """Warn of the first failure of a search or cross-validation that goes on without this fit.

    scikit-learn tells at its end, which may be hours later.
    """
    frames = list(internal_frames(sys._getframe(1)))
    calls = [frame.f_locals for frame in frames if frame.f_code.co_name == FITS_AND_SCORES]
    if all(call.get("error_score") == "raise" for call in calls):
        return
    text = (
        f"A fit of this search failed, and scikit-learn goes on: {type(error).__name__}: {error} "
        "To stop at the first failure, set error_score='raise'."
    )
    is_worker = not any(map(loop_of, frames))  # of joblib, which does not see the loop
    if is_worker and text in FAILED_FITS:
        return
    FAILED_FITS.add(text)
    with contextlib.suppress(FitFailedWarning):  # if filters make it an error: the fit's own counts
        warn(text, FitFailedWarning, about=FITS_AND_SCORES)


def is_internal(filename: str) -> bool:
    """Tell whether a file belongs to a library through which the user called us."""
    return filename.startswith(LIBRARIES) or filename.endswith(WRAPPERS)


# ---- who raised an error -------------------------------------------------------------------------


RAISE = dis.opmap["RAISE_VARARGS"]
PACKAGE = __name__.partition(".")[0]
QUIET = {PACKAGE, "joblib", "numpy", "onnx", "pandas", "scipy", "sklearn", "torch"}
"""Packages whose errors about parts of a model are not the user's own."""


def is_raised_by_us(error: BaseException) -> bool:
    """Tell whether a ``raise`` of this package raised an error, not a library or an operation."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return (
        last is not None
        and package_of(last.tb_frame) == PACKAGE
        and last.tb_frame.f_code.co_code[last.tb_lasti] == RAISE
    )


def is_raised_by_users(error: BaseException) -> bool:
    """Tell whether code that is neither ours nor a library's took part in raising an error."""
    packages = {package_of(frame) for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not packages <= QUIET | sys.stdlib_module_names


def package_of(frame: FrameType) -> str:
    """Return the name of the package whose code a frame runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
