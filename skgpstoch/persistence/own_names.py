"""Names of classes and functions in files: those of skgpstoch, and those that the user passes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator
from torch import nn

from ..data.messages import warn
from .forms import Function
from .forms_of_values import one_of
from .limits import LONGEST_NAME
from .registry import PACKAGE
from .state import Names

MOST_NAMES = 50  # in a message
OWN = "own."  # prefix of the names of the user's classes and functions
INSTEAD = {
    False: "use joblib.dump, or skops.io.dump",
    True: "use a named function (`def`), which you pass to skgpstoch.load as `objects`, or a "
    "NumPy function of numbers (np.log, np.exp and the like), or use joblib.dump",
}


class FileNames(Names):
    """Names of the classes and functions of skgpstoch, and of those that the user passes.

    Parameters
    ----------
    objects : mapping of str to type or function, or None, default=None
        The user's classes and functions.
    """

    def __init__(self, objects: Mapping[str, Any] | None = None) -> None:
        self.objects = checked_objects(objects)
        self.asked: dict[str, Any] = {}

    def name(self, value: type | Function) -> str | None:
        known = super().name(value)
        if known is not None or not can_be_asked_for(value):
            return known
        name = value.__name__
        if self.asked.setdefault(name, value) is not value:
            raise ValueError(
                f"{value!r} and {self.asked[name]!r} cannot be in one file, because both "
                f"are called {name!r}. Rename one of them."
            )
        return OWN + name

    def value(self, name: str, is_type: bool) -> Any:
        if not name.startswith(OWN):
            return super().value(name, is_type)
        short = name.removeprefix(OWN)
        given = one_of(self.objects, short)
        if not isinstance(given, type if is_type else Function):
            raise ValueError(
                f"objects[{short!r}] must be a {'class' if is_type else 'function'}, got "
                f"{given!r:.80}"
            )
        if given.__name__ != short:
            warn(
                f"objects[{short!r}] is called {given.__name__!r}, but the model was saved with "
                f"{short!r}. It is used all the same; check that it is the same code."
            )
        return given

    def keep(self, value: Any, path: str) -> None:
        raise ValueError(
            f"{path} is {value!r:.60}, of {type(value).__module__}.{type(value).__qualname__}, "
            f"which a file without pickle cannot hold: {INSTEAD[callable(value)]}."
        )


def checked_objects(objects: Any) -> dict[str, Any]:
    """Return classes and functions by their names.

    Raises
    ------
    TypeError
        If `objects` is not a mapping of names to classes and functions.
    """
    if objects is None:
        return {}
    if not isinstance(objects, Mapping):
        raise TypeError(
            f"objects must be a mapping of names to classes and functions, got {objects!r:.80}."
        )
    return dict(objects)


def check_is_given(structure: str, objects: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the classes and functions that `objects` lacks."""
    asked_for = re.finditer(rf'"{re.escape(OWN)}(\w{{1,{LONGEST_NAME}}})"', structure)
    lacking = (match[1] for match in asked_for if match[1] not in objects)
    if missing := sorted(set(itertools.islice(lacking, MOST_NAMES))):
        asked = ", ".join(f"{name!r}: {name}" for name in missing)
        raise ValueError(
            f"the model uses {', '.join(missing)}, which a file cannot contain. Pass "
            f"the classes or functions as objects={{{asked}}}"
        )


def can_be_asked_for(value: type | Function) -> bool:
    """Tell whether the user can pass a class or function to `load`.

    It needs a name, and the objects of a class must be described by their attributes.
    """
    if isinstance(value, Function):
        return value.__name__.isidentifier()
    has_attributes = value.__dictoffset__ != 0
    pickled_by = {definer(value, m) for m in ("__getstate__", "__reduce__", "__reduce_ex__")}
    return has_attributes and all(is_usual(cls) for cls in pickled_by)


def definer(cls: type, method: str) -> type:
    """Return the class that defines a method of a class."""
    return next(base for base in cls.__mro__ if method in vars(base))


def is_usual(cls: type) -> bool:
    """Tell whether a class pickles objects by their attributes only."""
    return cls in (object, nn.Module, BaseEstimator) or cls.__module__.startswith(f"{PACKAGE}.")
