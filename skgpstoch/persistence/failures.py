"""Say which part of a model is wrong if it predicts NaN, or fails after it was loaded.

Whether the parts of a file belong together shows when they are used. So nothing is compared at
load; the first method that fails tells where it did.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import re
import traceback
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .forms import DAMAGE
from .registry import PACKAGE
from .state import Names, Packer

LOADED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Files of the estimators that were loaded, until they are fitted."""

RAISE = dis.opmap["RAISE_VARARGS"]
OF_MODULES = re.compile(r"\._(?:buffers|modules|parameters)\['(\w+)'\]")
OF_TENSORS = re.compile(r"(\[0\]){1,2}$")


def with_failures_told(method: Callable) -> Callable:
    """Let a method of an estimator say which part is wrong if it fails or predicts NaN."""

    @functools.wraps(method)
    def told(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = method(estimator, *args, **kwargs)
        except DAMAGE as error:
            if estimator in LOADED and not is_on_purpose(error):
                error.add_note(
                    f"This happened in {place_of(error, estimator)}{file_of(estimator)}. If your "
                    "arguments are right, the parts of the file do not belong together. Get it "
                    "again from somebody you trust, or fit and save the model with this version"
                )
            raise
        if method.__name__ == "fit":
            LOADED.pop(estimator, None)
        check_known(estimator, found, method.__name__ == "predict")
        return found

    return told


def mark_loaded(estimator: Any, path: str | os.PathLike) -> None:
    """Remember the file of an estimator."""
    LOADED[estimator] = os.fspath(path)


def file_of(model: Any) -> str:
    """Say which file a model is from, if it was loaded."""
    return f", loaded from {LOADED[model]!r}" if model in LOADED else ""


def check_known(model: Any, found: Any, is_mean: bool = False) -> None:
    """Raise a ValueError if predictions are NaN, or a mean, which comes first, is infinite."""
    for i, a in enumerate(found if isinstance(found, tuple) else (found,)):
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
            continue
        unknown = ~np.isfinite(a) if is_mean and i == 0 else np.isnan(a)
        if unknown.any():
            raise ValueError(
                f"{type(model).__name__}{file_of(model)} predicts {a[unknown][0]} for "
                f"{unknown.sum()} of {a.size} values: some numbers are too large or too small to "
                f"compute with.{Parts(model).most_extreme()} Check X, and fit the model again."
            )


def is_on_purpose(error: BaseException) -> bool:
    """Tell whether an error is a message to users, of this package or of scikit-learn's checks."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not isinstance(error, ValueError | TypeError):
        return False
    package = at.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    is_raised = at.tb_frame.f_code.co_code[at.tb_lasti] == RAISE
    return package == "sklearn" or (package == PACKAGE and is_raised)


def place_of(error: BaseException, estimator: Any) -> str:
    """Name the innermost part of an estimator whose method failed."""
    places = Parts(estimator).places
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [id(found["self"]) for found in reversed(frames) if "self" in found]
    return next((places[i] for i in owners if i in places), type(estimator).__name__)


class Parts(Packer):
    """The parts of an object: where they are, and which are numbers.

    Parameters
    ----------
    whole : object
    """

    def __init__(self, whole: Any) -> None:
        super().__init__(Names())
        self.places = {id(whole): type(whole).__name__}
        self.numbers: list[tuple[str, np.ndarray]] = []
        with contextlib.suppress(*DAMAGE):  # a part that cannot be taken apart
            self.state(whole)

    def part(self, value: Any, path: str) -> Any:
        path = OF_MODULES.sub(r".\1", path)
        self.places.setdefault(id(value), path)
        if isinstance(value, float | np.ndarray | np.floating):
            self.numbers.append((OF_TENSORS.sub("", path), np.asarray(value)))
        return super().part(value, path)

    def most_extreme(self) -> str:
        """Say which number is farthest from 1, by its logarithm."""
        found = [(*farthest(a), path) for path, a in self.numbers if a.dtype.kind == "f"]
        size, number, path = max(found, default=(0.0, 0.0, ""))
        return f" The most extreme number of the model is {number:.3g}, in {path}." if size else ""


def farthest(a: np.ndarray) -> tuple[float, float]:
    """Return |log10| of the number that is farthest from 1, and the number; of 0 if none is."""
    numbers = np.append(a[np.isfinite(a) & (a != 0.0)], 1.0)
    sizes = np.abs(np.log10(np.abs(numbers)))
    return float(sizes.max()), float(numbers[sizes.argmax()])
