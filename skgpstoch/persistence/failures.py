"""Say which part of a model is wrong if it predicts NaN, or fails after it was loaded.

Whether the parts of a file belong together shows when they are used. So nothing is compared at
load; the first method that fails tells where it did.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .forms import DAMAGE
from .registry import PACKAGE
from .state import Names, Packer

LOADED: dict[int, str] = {}
"""Files of the estimators that were loaded, by their id, until they are fitted."""

OF_MODULES = re.compile(r"\._(?:buffers|modules|parameters)\['(\w+)'\]")
OF_TENSORS = re.compile(r"(\[0\]){1,2}$")


def with_failures_told(method: Callable) -> Callable:
    """Let a method of an estimator say which part is wrong if it fails or predicts NaN."""

    @functools.wraps(method)
    def told(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = method(estimator, *args, **kwargs)
        except DAMAGE as error:
            if id(estimator) in LOADED and not is_for_users(error):
                error.add_note(
                    f"This happened in {place_of(error, estimator)}{file_of(estimator)}. If your "
                    "arguments are right, the parts of the file do not belong together. Get it "
                    "again from somebody you trust, or fit and save the model with this version"
                )
            raise
        if method.__name__ == "fit":
            LOADED.pop(id(estimator), None)
        check_known(estimator, found, method.__name__ == "predict")
        return found

    return told


def mark_loaded(estimator: Any, path: str | os.PathLike) -> None:
    """Remember the file of an estimator as long as that exists; it may have no hash."""
    LOADED[id(estimator)] = os.fspath(path)
    weakref.finalize(estimator, LOADED.pop, id(estimator), None)


def file_of(model: Any) -> str:
    """Say which file a model is from, if it was loaded."""
    return f", loaded from {LOADED[id(model)]!r}" if id(model) in LOADED else ""


def check_known(model: Any, found: Any, is_mean: bool = False) -> None:
    """Raise a ValueError if predictions are NaN, or a mean, which comes first, is infinite."""
    arrays = found if isinstance(found, tuple) else (found,)
    for a in (a for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"):
        unknown = ~np.isfinite(a) if is_mean and a is arrays[0] else np.isnan(a)
        if unknown.any():
            raise ValueError(
                f"{type(model).__name__}{file_of(model)} predicts {a[unknown][0]} for "
                f"{unknown.sum()} of {a.size} values: some numbers are too large or too small to "
                f"compute with.{Parts(model).most_extreme()} Check X, and fit the model again."
            )


def is_for_users(error: Exception) -> bool:
    """Tell whether an error is a message of this package, or of scikit-learn's checks."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    folders, is_raised = Path(at.filename).parts, (at.line or "").startswith("raise ")
    is_ours = "sklearn" in folders or (is_raised and PACKAGE in folders)
    return is_ours and isinstance(error, ValueError | TypeError)


def place_of(error: Exception, estimator: Any) -> str:
    """Name the innermost part of an estimator whose method failed."""
    places, place = Parts(estimator).places, ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = places.get(id(frame.f_locals.get("self", places)), place)
    return place


class Parts(Packer):
    """The parts of a model: where they are, and which are numbers."""

    def __init__(self, model: Any) -> None:
        super().__init__(Names())
        self.places = {id(model): type(model).__name__}
        self.extremes = [(0.0, 1.0, "")]  # |log10| of the number in an array farthest from 1
        with contextlib.suppress(*DAMAGE):  # a part that cannot be taken apart
            self.state(model)

    def part(self, value: Any, path: str) -> Any:
        path = OF_MODULES.sub(r".\1", path)
        self.places.setdefault(id(value), path)
        if isinstance(value, float | np.ndarray) and np.asarray(value).dtype.kind == "f":
            a = np.append(np.asarray(value)[np.isfinite(value) & (value != 0.0)], 1.0)
            far = np.abs(np.log10(np.abs(a)))
            place = OF_TENSORS.sub("", path)
            self.extremes.append((float(far.max()), float(a[far.argmax()]), place))
        return super().part(value, path)

    def most_extreme(self) -> str:
        """Say which number is farthest from 1, by its logarithm."""
        _, number, place = max(self.extremes)
        return f" The most extreme number of the model is {number:.3g}, in {place}." * bool(place)
