"""Limits of what a file may hold, so that reading it, and whatever walks it later, stays quick.

Nodes refer to nodes before them, so no node is ever walked to be checked: what a node is follows
from what its parts are. A limit is checked before the object is made, because hashing or comparing
a part may already be what takes for ever.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.gaussian_process import kernels as sk
from torch import nn

from ..data.findings import Finding
from .fields import check_fields, refuse_names
from .finite import Unknown, check_ranges, may_be_unknown, n_in_ranges, unknown_in
from .forms import LONGEST_FIELD, OBJECTS
from .forms_of_values import LETTERS_SHOWN, is_long_list_of_floats
from .kernels import check_size
from .keys import MOST_SECONDS, check_integers, is_flat, seconds_of, slow_keys
from .levels import MOST_IN_TUPLES, bytes_of_texts
from .registry import TRANSFORMERS, is_parameter, known_classes, package_of
from .shapes import PACKAGES, check_shapes
from .within import Within

MOST_DEPTH = 200  # nodes within each other; those of deep networks have some 25
MOST_REPEATS = 5  # times that parts may count on average if each is walked wherever it is shared
FREE_PARTS = 100_000  # so many are always allowed
MOST_UNKNOWN = 200  # arrays and numbers within an object that are not finite
BYTES_OF_UNKNOWN = 1000  # that one counts for wherever its object is referred to
BYTES_OF_ENTRY = 100  # that one counts for in each module that has its dict
MOST_LOOKS = 10  # times that parts may count on average in all objects whose checks look at parts
MOST_WRITTEN = 2  # of all that objects may take, in a list whose parts are written out
BYTES_OF_NUMBER = 8
BYTES_OF_INTEGER = 32  # as an object
FREE_LEVELS = 96 * 2**20  # bytes of dicts and sets of levels that are always allowed
MOST_SHOWN = 2**20  # letters of texts in all parameters, which HTML shows many times as long
LETTERS_OF_NUMBER = 20
KINDS_SHOWN = (bool, int, float, str)
MOST_CELLS_SHOWN = 1000  # of an array of texts
FREE_EVALUATIONS = 500  # kernels, networks and estimators within one that are always allowed
FREE_BYTES_SHARED = 2**23  # within one, likewise
TIMES_A_TRANSFORMER = 20  # that a transformer of y counts, which each quantile takes many times
LONGEST_NAME = 120  # of an attribute, in messages
ROWS = ("X_train_",)  # of any kind, where a kernel is the user's own
ARRAYS = (np.ndarray, torch.Tensor)
WITH_NAMES = ("list", "tuple", "dict", "ordered dict")  # forms of estimators with names
WITH_PARTS = {"list", "tuple", "sequence", "dict", "ordered dict"}
EVALUATED = (sk.Kernel, nn.Module, BaseEstimator)
WHERE_KEYS_ARE = {"set": (0, 1), "frozenset": (0, 1), "dict": (0, 2), "ordered dict": (0, 2)}
"""Which parts are keys: the first one, and how many parts further the next one is."""
AS_ARRAYS = {"floats", "long tuple"}  # lists and tuples that are an array in a file
OWN_CHECKS = ("check_parts", "_check_parts")  # methods of modules and of estimators
WITH_LEVELS = {"numbering", "level set", "frozen level set"}  # whose first part has the keys
OPEN_ENDED = {"cells", "interval"}  # of which some are missing, or infinite at an open end

OWNERS = {"FittedProcess": "coefficients", "Process": "alpha", "Theta": "length_scale"}
"""Classes of objects that make a matrix of their rows when they predict, and an array of their own.

So there are as many matrices as such arrays. A process has a θ of its own, too.
"""

OF_ALL = {"Process": "X"}
"""Rows that all processes of a fit share: some eighty for each output, where rows are few.

They count once, because a process has a number of its own for each row, and for each column.
"""

MOST_PLACES = 2  # of an estimator with such objects: by name, and in a list

BYTES = {
    **{nn.Module: 12_000, torch.Tensor: 800, np.random.RandomState: 100_000},
    BaseEstimator: 4_000,
}
"""What objects take at least, without parts that are counted elsewhere.

Modules, estimators and random states take more time than memory, so they count for more.
"""


class StateLimits:
    """Check nodes one after the other: limits of all states, which skops may have from a stranger.

    Without them, keys could take for ever or all of the stack to hash, and pickling what was
    restored could import a module that the state names.
    """

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.walks: list[int] = []  # parts of each node, those of shared nodes counted each time

    def check_parts(self, form: str, parts: list[Any], values: list[Any]) -> None:
        """Raise a ValueError if an object must not be made of these parts."""
        inner = [part[0] for part in parts if isinstance(part, list)]
        self.depths.append(1 + max(map(self.depths.__getitem__, inner), default=0))
        self.walks.append(1 + len(parts) + sum(map(self.walks.__getitem__, inner)))
        first, step = WHERE_KEYS_ARE.get(form, (len(parts), 1))
        keys = [part[0] for part in parts[first::step] if isinstance(part, list)]
        if any(self.depths[k] > MOST_DEPTH or self.walks[k] > FREE_PARTS for k in keys):
            raise ValueError("a key of a set or dict has too many parts")

    def check_object(self, form: str, parts: list[Any], value: Any) -> None:
        """Raise a ValueError if a field has a name that Python itself looks for."""
        if form in OBJECTS:
            refuse_names(type(value), parts[1::2])


class FileLimits(StateLimits):
    """Check nodes one after the other, and what is made of them.

    Parameters
    ----------
    most_bytes : int
        Most memory that the objects may take; a short structure can ask for much more.
    n_bytes : int
        Size of the file.
    """

    def __init__(self, most_bytes: int, n_bytes: int) -> None:
        super().__init__()
        self.n_bytes = n_bytes
        self.most_bytes = self.bytes_left = most_bytes
        self.n_parts = self.n_looks = self.n_in_tuples = 0
        self.seconds_left = MOST_SECONDS
        self.sizes: list[int] = []  # bytes of each node, likewise
        self.read: list[int] = []  # the same, where rows that processes share count once
        self.plain: list[int] = []  # as sizes, without those of objects, and with letters of texts
        self.levels_left = FREE_LEVELS
        self.lengths: list[int] = []  # of nodes that are such lists or tuples
        self.texts: list[int] = []  # letters that the representation of each shows, likewise
        self.n_evaluated = 0
        self.evaluations: list[int] = []  # objects that compute something in each node, likewise
        self.unknown: dict[int, list[Unknown]] = {}
        self.within = Within(n_bytes)
        self.of_tensors: set[int] = set()  # arrays whose memory a tensor has
        self.owners: set[int] = set()  # objects that make matrices, and what they are in
        self.places: Counter[int] = Counter()  # that refer to one of them
        self.of_arrays: set[int] = set()  # arrays, and lists and dicts with some
        self.of_classes: set[int] = set()  # names of classes, whose objects a file may hold
        self.of_objects: tuple[str, ...] = ()  # fields that need not be numbers

    def check_parts(self, form: str, parts: list[Any], values: list[Any]) -> None:
        """Raise a ValueError if an object must not be made of these parts."""
        super().check_parts(form, parts, values)
        inner = [part[0] for part in parts if isinstance(part, list)]
        self.n_parts += 1 + len(parts)
        self.check_long(form, inner, values)
        check_name_of_member(form, values)
        self.take(letters := sum(sys.getsizeof(v) for v in values if type(v) is str))
        self.sizes.append(letters + sum(map(self.sizes.__getitem__, inner)))
        self.read.append(letters + sum(map(self.read.__getitem__, inner)))
        self.plain.append(letters + sum(map(self.plain.__getitem__, inner)))
        self.evaluations.append(sum(map(self.evaluations.__getitem__, inner)))
        shown = letters_shown(form, values)
        self.texts.append(shown + sum(map(self.texts.__getitem__, inner)))
        if self.depths[-1] > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
        if self.walks[-1] > MOST_REPEATS * self.n_parts + FREE_PARTS:
            raise ValueError("its parts refer to each other too often")
        first, step = WHERE_KEYS_ARE.get(form, (len(parts), 1))
        keys = range(first, len(parts), step)
        self.tell_apart(slow_keys([values[i] for i in keys]))
        check_integers(part for i, part in enumerate(parts) if i not in keys)
        if not self.owners.isdisjoint(inner):
            self.owners.add(len(self.depths) - 1)
            for part, value in zip(parts, values, strict=True):
                if isinstance(part, list) and part[0] in self.owners:
                    self.own(part[0], MOST_PLACES if isinstance(value, BaseEstimator) else 1)
        if form == "long tuple":
            self.take_texts(values)
        if form == "floats" and isinstance(values[0], np.ndarray):
            self.texts[-1] = LETTERS_OF_NUMBER * values[0].size
        if form in WITH_LEVELS and isinstance(values[0], tuple):
            self.tell_apart(values[0])
            self.take_levels(BYTES_OF_INTEGER * len(values[0]))
        if form == "module":  # whose making goes through its dicts, which others may share
            inside = (v for v in values if isinstance(v, dict | list | tuple))
            self.take(sum(BYTES_OF_ENTRY * len(v) for v in inside))
        if form == "tensor":
            if self.of_tensors.intersection(inner):
                raise ValueError("two tensors have the memory of one array")
            self.of_tensors.update(inner)
        fields = inner[1:] if form in OBJECTS or form == "sequence" else inner
        if not self.of_classes.isdisjoint(fields):
            raise ValueError("a class of objects cannot be a value")

    def check_long(self, form: str, inner: list[int], values: list[Any]) -> None:
        """Count what is walked of parts that an array tells: lists, texts, and keys of dicts."""
        if form not in WITH_LEVELS:
            self.walks[-1] += sum(map(self.lengths.__getitem__, inner))
        is_long = (form in WITH_LEVELS and isinstance(values[0], tuple)) or (
            form in AS_ARRAYS and isinstance(values[0], np.ndarray)
        )
        self.lengths.append(np.size(values[0]) if is_long else 0)
        self.n_parts += self.lengths[-1]

    def tell_apart(self, keys: Sequence[Any]) -> None:
        """Raise a ValueError if all keys up to here take very long to tell from each other."""
        self.seconds_left -= seconds_of(keys, self.seconds_left)

    def take_texts(self, parts: list[Any]) -> None:
        """Raise a ValueError if long tuples have too many values, or letters that take too much."""
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        self.n_in_tuples += arrays[-1].size if arrays else 0  # numbers, or lengths of texts
        if self.n_in_tuples > MOST_IN_TUPLES:
            raise ValueError(f"its long tuples have more than {MOST_IN_TUPLES} values")
        if len(arrays) == 2:
            self.take(bytes_of_texts(arrays))
        n_letters = 1 if len(arrays) == 2 else LETTERS_OF_NUMBER
        self.texts[-1] = n_letters * sum(a.size for a in arrays[:1])

    def check_object(self, form: str, parts: list[Any], value: Any) -> None:
        """Raise a ValueError if an object takes too much memory or has numbers that are unknown."""
        n_bytes = bytes_of(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
            self.lengths[-1] = value.nbytes // BYTES_OF_NUMBER
            self.n_parts += self.lengths[-1]
        (self.take_levels if form in WITH_LEVELS else self.take)(n_bytes)
        n_plain = self.plain[-1]
        self.sizes[-1] += n_bytes
        self.read[-1] += n_bytes
        is_written = form not in {*OBJECTS, *WITH_LEVELS} or isinstance(value, Finding)
        self.plain[-1] = self.plain[-1] + n_bytes if is_written else 0
        if self.plain[-1] > MOST_WRITTEN * self.most_bytes:
            raise ValueError("its lists repeat arrays or texts too often")
        lengths: dict[str, int] = {}
        if form in ("type", "function"):
            self.check_name(value)
        elif form == "cells" and not (value.dtype.kind == "U" or all(map(is_flat, value.flat))):
            raise ValueError("an array of objects must hold numbers, texts, times or flat tuples")
        elif form in OBJECTS:
            self.check_looks(value, n_plain)
            lengths = check_shapes(value, self.with_arrays(parts), self.of_objects)
            check_fields(value, form, parts[1::2], self.n_bytes)
            self.check_kernel(value)
            if self.sizes[-1] > self.most_bytes or self.texts[-1]:
                self.check_parameters(value, parts)
            self.check_evaluations(value)
            self.check_rows(type(value).__name__, dict(zip(parts[1::2], parts[2::2], strict=True)))
        if isinstance(value, ARRAYS) or (form in WITH_PARTS and self.with_arrays(parts)):
            self.of_arrays.add(len(self.depths) - 1)
        looked_at = parts if self.unknown and form not in OPEN_ENDED else ()
        for place, part in enumerate(looked_at):
            if isinstance(part, list):
                for found in self.unknown.get(part[0], ()):
                    self.keep(form, value, label(form, parts, place), found)
        if form in OBJECTS:
            check_ranges(value)
        n_kept = self.within.check(len(self.depths) - 1, value, parts, lengths)
        self.take(BYTES_OF_ENTRY * n_kept)
        # The tensor of a parameter has told it before, and may be shared.
        if form != "parameter" and (found_here := unknown_in(value)) is not None:
            self.unknown[len(self.depths) - 1] = [found_here]

    def check_rows(self, kind: str, fields: dict[Any, Any]) -> None:
        """Raise a ValueError if objects that make matrices have the same array; count rows once."""
        if isinstance(own := fields.get(OWNERS.get(kind)), list):
            self.owners.add(len(self.depths) - 1)
            self.own(own[0])
        if isinstance(rows := fields.get(OF_ALL.get(kind)), list):
            self.read[-1] -= self.read[rows[0]]

    def own(self, node: int, most: int = 1) -> None:
        """Raise a ValueError if what makes a matrix, or its own array, is in more places."""
        self.places[node] += 1
        if self.places[node] > most:
            raise ValueError("two objects have the same part, of which they make matrices")

    def with_arrays(self, parts: list[Any]) -> list[Any]:
        """Return the names of fields that have arrays, also in lists; of a list something."""
        known = self.of_arrays
        return [parts[i - 1] for i, p in enumerate(parts) if type(p) is list and p[0] in known]

    def check_name(self, value: Any) -> None:
        """Remember which classes have objects, and whether rows may be objects.

        As the user's own kernels and metrics take them.
        """
        if value in classes():
            self.of_classes.add(len(self.depths) - 1)
        elif package_of(value) not in PACKAGES and (
            not isinstance(value, type) or issubclass(value, sk.Kernel)
        ):
            self.of_objects = ROWS

    def check_looks(self, value: Any, n_plain: int) -> None:
        """Raise a ValueError if checks would look at shared parts far too often.

        `n_plain` are the bytes of its arrays, which those of kernels, and checks of classes of
        their own, look at.
        """
        self.n_looks += self.walks[-1]
        if isinstance(value, sk.Kernel) or any(hasattr(value, name) for name in OWN_CHECKS):
            self.n_looks += n_plain // BYTES_OF_NUMBER
        self.n_looks += n_in_ranges(value)
        n_known = self.n_parts + self.n_bytes // BYTES_OF_NUMBER
        if self.n_looks > MOST_LOOKS * n_known + FREE_PARTS:
            raise ValueError("its estimators and kernels share too much")

    def check_kernel(self, value: Any) -> None:
        """Raise a ValueError if the text that shows a kernel, with all its numbers, is long."""
        if isinstance(value, sk.Kernel):
            arrays = (a for a in vars(value).values() if isinstance(a, np.ndarray))
            self.texts[-1] += LETTERS_OF_NUMBER * sum(a.size for a in arrays)
            if self.texts[-1] > MOST_SHOWN:
                raise ValueError(f"the numbers of a kernel have more than {MOST_SHOWN} letters")

    def check_evaluations(self, value: Any) -> None:
        """Raise a ValueError if to compute with an object takes far longer than its parts tell."""
        if isinstance(value, EVALUATED):
            times = TIMES_A_TRANSFORMER if isinstance(value, TRANSFORMERS) else 1
            self.n_evaluated += times
            self.evaluations[-1] += times
            n_known = self.most_bytes - self.bytes_left + FREE_LEVELS - self.levels_left
            if (
                self.evaluations[-1] > MOST_REPEATS * self.n_evaluated + FREE_EVALUATIONS
                or self.read[-1] > MOST_REPEATS * n_known + FREE_BYTES_SHARED
            ):
                raise ValueError("its kernels, networks or estimators repeat too often")
            check_size(value, self.evaluations[-1])

    def check_parameters(self, value: Any, parts: list[Any]) -> None:
        """Raise a ValueError if a parameter takes much memory once it is copied, or shown."""
        n_letters = 0
        for name, part in zip(parts[1::2], parts[2::2], strict=True):
            if not (isinstance(part, list | str) and is_parameter(value, name)):
                continue
            if isinstance(part, list) and self.sizes[part[0]] > self.most_bytes:
                raise ValueError(f"the parts of {name!r} repeat too often")
            n_letters += len(part) if isinstance(part, str) else self.texts[part[0]]
        if n_letters > MOST_SHOWN:
            raise ValueError(f"the texts of its parameters have more than {MOST_SHOWN} letters")
        if isinstance(value, BaseEstimator):
            self.texts[-1] = n_letters  # what is learned has no limit but the description's

    def take(self, n_bytes: int) -> None:
        """Raise a ValueError if the objects up to here take too much memory, or too much time."""
        self.bytes_left -= n_bytes
        if self.bytes_left < 0:
            raise ValueError("the objects up to here take far more memory than the file")

    def take_levels(self, n_bytes: int) -> None:
        """Do the same for levels, of which some are free, because their arrays are short."""
        free = min(n_bytes, self.levels_left)
        self.levels_left -= free
        self.take(n_bytes - free)

    def keep(self, form: str, value: Any, where: str, found: Unknown) -> None:
        """Remember a number that is not finite, or raise a ValueError if it decides predictions."""
        self.take(BYTES_OF_UNKNOWN)
        where = (where + found.where)[:LONGEST_NAME]
        if form not in OBJECTS:
            known = self.unknown.setdefault(len(self.depths) - 1, [])
            if len(known) >= MOST_UNKNOWN:
                raise ValueError(f"more than {MOST_UNKNOWN} of its parts are not finite")
            known.append(Unknown(where, found.is_nan))
        elif not may_be_unknown(value, where, found.is_nan):
            name = re.sub(r"^\._(parameters|buffers)\['(.*)'\]$", r".\2", where)
            number = "NaN" if found.is_nan else "infinite"
            raise ValueError(f"{type(value).__name__}{name} is not finite: it is {number}")


def check_name_of_member(form: str, values: list[Any]) -> None:
    """Raise a ValueError if an estimator's name, which comes before each parameter, is long."""
    is_member = form in WITH_NAMES and any(isinstance(v, BaseEstimator) for v in values)
    if is_member and any(type(v) is str and len(v) > LONGEST_FIELD for v in values):
        raise ValueError(f"the name of an estimator has more than {LONGEST_FIELD} letters")


def label(form: str, parts: list[Any], place: int) -> str:
    """Return what a part of an object is called."""
    if form in ("floats", "parameter", "scalar", "tensor"):
        return ""
    if form in OBJECTS and form != "mapping":
        return f".{parts[place - 1]}"
    is_named = form in ("mapping", "dict", "ordered dict") and place
    key = parts[place - 1] if is_named else None
    return f"[{key[:LETTERS_SHOWN]!r}]" if isinstance(key, str) else f"[{place}]"


def letters_shown(form: str, values: list[Any]) -> int:
    """Return at most how many letters a node's own texts and numbers have."""
    values = values[2::2] if form in OBJECTS else values
    texts = [
        len(v) if type(v) is str else LETTERS_OF_NUMBER for v in values if type(v) in KINDS_SHOWN
    ]
    most = MOST_CELLS_SHOWN * max(texts, default=0)  # NumPy leaves others out
    return min(sum(texts), most) if form == "cells" else sum(texts)


def bytes_of(value: Any) -> int:
    """Return about how many bytes an object takes, without parts that are counted elsewhere."""
    if isinstance(value, np.ndarray):
        return value.nbytes + sys.getsizeof(None)
    if is_long_list_of_floats(value):
        return sys.getsizeof(value) + sys.getsizeof(0.0) * len(value)
    cls: Any = type(value)
    fields = getattr(value, "__dict__", None)
    return bytes_of_class(cls) or sys.getsizeof(value) + sys.getsizeof(fields)


@functools.cache
def bytes_of_class(cls: type) -> int:
    """Return how many bytes all objects of a class take; 0 if that depends on the object."""
    return next((n_bytes for base, n_bytes in BYTES.items() if issubclass(cls, base)), 0)


@functools.cache
def classes() -> frozenset[type]:
    """Return the classes whose objects a file may hold."""
    return frozenset(known_classes().values())
