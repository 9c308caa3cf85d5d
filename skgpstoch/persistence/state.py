"""Convert an estimator to a state of NumPy's and Python's own types, and back.

The state is a list of nodes, written as JSON, and a list of arrays. A node is [form, *parts]; a
part is a number, a string, true, false, null, or [i], the i-th node. A node comes after the nodes
that it refers to. So shared objects stay shared, nothing can refer to itself, and one loop reads
all nodes.

Objects whose classes are not in :mod:`.registry` are kept unchanged, for pickle to handle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..data.messages import is_raised_by_us
from . import forms
from .arrays import MOST_AXES, Layout, is_plain, kept, restored
from .forms_of_values import LETTERS_SHOWN
from .levels import is_long_tuple
from .limits import StateLimits
from .registry import known_functions, known_types, name_of

ATOMS = (bool, int, str, type(None))
LONGEST_NUMBER = 20  # digits of a size


class PackedState(NamedTuple):
    """The parts of an object.

    Parameters
    ----------
    structure : str
        Nodes, as JSON; the last is the object itself.
    arrays : list of ndarray
        Contents of the arrays.
    objects : list
        Objects that are kept unchanged.
    file : str, default=""
        Where an estimator was loaded from, for messages.
    """

    structure: str
    arrays: list[np.ndarray]
    objects: list[Any]
    file: str = ""


class Names:
    """Names of classes and functions; objects of classes without a name are kept unchanged."""

    def name(self, value: type | forms.Function) -> str | None:
        """Return the name of a class or a function; None if it has none."""
        known = known_types() if isinstance(value, type) else known_functions()
        return name_of(value, known)

    def value(self, name: str, is_type: bool) -> Any:
        """Return the class or the function of this name, or raise a ValueError."""
        known = known_types() if is_type else known_functions()
        if name not in known:
            raise ValueError(
                f"{name[:LETTERS_SHOWN]!r} is not a class or function that is allowed in a file"
            )
        return known[name]

    def keep(self, value: Any, path: str) -> None:
        """Raise an error if objects of this kind cannot be kept unchanged."""


# ---- objects to nodes ----------------------------------------------------------------------------


class Packer:
    """Take objects apart into nodes and arrays.

    Parameters
    ----------
    names : Names
        Names of classes and functions.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[list] = []
        self.arrays: list[np.ndarray] = []
        self.objects: list[Any] = []
        self.found: dict[Any, tuple[int, Any]] = {}  # node and object; keeps objects alive

    def state(self, value: Any) -> PackedState:
        """Return the state of an object."""
        self.node(value, type(value).__name__)
        structure = json.dumps(self.nodes, separators=(",", ":"), allow_nan=False)
        return PackedState(structure, self.arrays, self.objects)

    def part(self, value: Any, path: str) -> Any:
        """Return a value as a part of a node."""
        if type(value) in ATOMS or (type(value) is float and math.isfinite(value)):
            return value
        return [self.node(value, path)]

    def node(self, value: Any, path: str) -> int:
        """Return the number of an object's node."""
        key = identity(value)
        if key in self.found:
            if self.found[key][0] < 0:
                raise ValueError(f"{path} refers to itself, which cannot be saved.")
            return self.found[key][0]
        self.found[key] = -1, value
        made = self.made(value, path)
        self.found[key] = len(self.nodes), value
        self.nodes.append(made)
        return len(self.nodes) - 1

    def made(self, value: Any, path: str) -> list:
        """Take an object apart."""
        if isinstance(value, np.ndarray) and is_plain(value):
            payload, layout = kept(value)
            self.arrays.append(payload)
            return ["array", len(self.arrays) - 1, *map(self.listed, layout)]
        if isinstance(value, type | forms.Function):
            name = self.names.name(value)
            if name is not None:
                return ["type" if isinstance(value, type) else "function", name]
        else:
            form = forms.form_of(value, self.names.name)
            if form is not None:
                parts = forms.FORMS[form].apart(value)
                return [form, *(self.part(p, f"{path}{at}") for at, p in parts)]
        self.names.keep(value, path)
        self.objects.append(value)
        return ["object as it is", len(self.objects) - 1]

    @staticmethod
    def listed(value: Any) -> Any:
        """Write a tuple as one string, because a list would be taken for a node."""
        return ",".join(map(str, value)) if isinstance(value, tuple) else value


def identity(value: Any) -> Any:
    """Return a key that is equal for the same object, and for tensors on one memory.

    Equal floats have the same, and so have long tuples of equal values, because a dict and a set of
    the same levels both make one.
    """
    if type(value) is float:
        return str(value)
    if is_long_tuple(value):
        kind = type(value[0])
        return kind, np.array(value).tobytes() if kind is float else value
    if type(value) is torch.Tensor and value.numel() and not value.requires_grad:
        return value.data_ptr(), value.dtype, value.shape, value.stride()
    return id(value)


# ---- nodes to objects ----------------------------------------------------------------------------


class Unpacker:
    """Put objects together from nodes and arrays.

    Parameters
    ----------
    names : Names
        Names of classes and functions.
    limits : StateLimits or None, default=None
        What a file from a stranger may hold. None: what any state may.
    """

    def __init__(self, names: Names, limits: StateLimits | None = None) -> None:
        self.names = names
        self.limits = limits or StateLimits()
        self.made: list[Any] = []

    def value(self, state: PackedState, read: Callable[[str], Any] = json.loads) -> Any:
        """Return the object with this state, whose structure `read` reads.

        Raises
        ------
        ValueError
            If the state is damaged, has names that `names` lacks, or exceeds the limits.
        """
        nodes = read(state.structure)
        if not isinstance(nodes, list) or not nodes:
            raise ValueError("its structure is not a list of nodes")
        self.payloads: list[np.ndarray | None] = list(state.arrays)
        self.kept = state.objects
        check_used(nodes)
        for i, node in enumerate(nodes):
            form = node[0] if isinstance(node, list) and node else None
            if not isinstance(form, str):
                raise ValueError(f"its node {i} has no form")
            try:
                self.made.append(self.checked(form, node[1:]))
            except forms.DAMAGE as error:
                why = error if is_raised_by_us(error) else "no such object has parts like its own"
                raise ValueError(f"its node {i} ({form!r:.40}) is not valid: {why}") from error
        return self.made[-1]

    def checked(self, form: str, parts: list[Any]) -> Any:
        """Return the object of a node, if it keeps the limits."""
        values = [self.of_part(part) for part in parts]
        self.limits.check_parts(form, parts, values)
        made = self.rebuilt(form, values)
        self.limits.check_object(form, parts, made)
        return made

    def rebuilt(self, form: str, values: list[Any]) -> Any:
        """Return the object of a form with these parts."""
        if form not in OF_NODES and form not in forms.FORMS:
            raise ValueError("this form is unknown")
        types = OF_NODES[form] if form in OF_NODES else forms.FORMS[form].types
        if types is not None:
            check_types(values, types)
        if form == "array":
            number, dtype, shape, axes, half = values
            layout = Layout(dtype, numbers(shape), numbers(axes), half)
            return restored(self.payload(number), layout)
        if form in ("type", "function"):
            return self.names.value(values[0], form == "type")
        if form == "object as it is":
            return entry(self.kept, values[0], "object")
        return forms.FORMS[form].together(values)

    def of_part(self, part: Any) -> Any:
        """Return what a part stands for."""
        if type(part) is list:
            (number,) = part
            return entry(self.made, number, "node")
        if type(part) in ATOMS or (type(part) is float and math.isfinite(part)):
            return part
        raise ValueError("a part must be a finite number, a text, true, false, null or a node")

    def payload(self, number: int) -> np.ndarray:
        """Return the stored numbers of an array, but only once, to limit the memory."""
        found, self.payloads[number] = entry(self.payloads, number, "tensor"), None
        if found is None:
            raise ValueError(f"two arrays use tensor {number}")
        return found


OF_NODES: dict[str, tuple[tuple[type, ...], ...]] = {
    "array": ((int,), (str,), (str,), (str,), (str,)),
    "type": ((str,),),
    "function": ((str,),),
    "object as it is": ((int,),),
}
"""Types of the parts of nodes that only a state can put together."""


def check_used(nodes: list[Any]) -> None:
    """Raise a ValueError unless each node but the last is a part of another.

    So whatever all of them cost, limits of the last one see it.
    """
    are_used = bytearray(len(nodes))
    for node in nodes:
        for part in node[1:] if isinstance(node, list) else ():
            if type(part) is list and part and type(part[0]) is int and 0 <= part[0] < len(nodes):
                are_used[part[0]] = True
    if (unused := are_used.find(0, 0, -1)) >= 0:
        raise ValueError(f"its node {unused} is no part of another")


def check_types(values: list[Any], types: tuple[tuple[type, ...], ...]) -> None:
    """Raise a ValueError unless there is one value of each of these types."""
    if len(values) != len(types) or not all(
        type(value) in allowed or object in allowed
        for value, allowed in zip(values, types, strict=True)
    ):
        raise ValueError("its parts are not of the types of this form")


def entry(values: list[Any], number: Any, kind: str) -> Any:
    """Return an entry of a list, or raise a ValueError if there is none of this number yet."""
    if type(number) is not int or not 0 <= number < len(values):
        raise ValueError(f"there is no {kind} {number!r:.40} before it")
    return values[number]


def numbers(text: str) -> tuple[int, ...]:
    """Return the tuple that `Packer.listed` wrote."""
    found = text.split(",", MOST_AXES) if text else []
    if len(found) > MOST_AXES:
        raise ValueError(f"an array has more than {MOST_AXES} axes")
    if any(len(number) > LONGEST_NUMBER for number in found):
        raise ValueError("an array has a size that no memory can have")
    return tuple(map(int, found))
