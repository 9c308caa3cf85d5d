"""Take objects apart and put them together again: the table FORMS has one row for each form.

Each row says of which types the parts must be; :mod:`.forms_of_values` checks the rest. No
constructor is called that does more than store its arguments. Forms of any number of parts of any
type are checked by :mod:`.limits` before.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import forms_of_values as of
from . import levels
from .arrays import ITEM_SIZES
from .forms_of_values import (
    DTYPES,
    WORDS,
    Parts,
    Types,
    all_are,
    numbered,
    one_of,
    pairs,
    word,
)
from .registry import REQUESTS, UFUNCS, Retired

Function = types.FunctionType
Fields = dict[str, Any]

DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that may be raised when parts do not belong together."""

FRESH = vars(nn.Module())
OF_CALLBACKS = {
    *("_callback_fit_ctx", "_parent_callback_ctx"),
    *("_skl_callbacks", "_skl_callbacks_to_teardown"),
}
"""Attributes that scikit-learn gives an estimator with callbacks, some only during a fit."""
LONGEST_FIELD = 200  # letters of an attribute's name
LONGEST_PATH = 4096  # letters


class Form(NamedTuple):
    """How to take objects of a form apart and put them together, and the types of their parts.

    Without types, an object has any number of parts of any type.
    """

    apart: Callable[[Any], Parts]
    together: Callable[[list[Any]], Any]
    types: tuple[Types, ...] | None = None


# ---- objects -------------------------------------------------------------------------------------


def form_of_class(cls: type) -> str:
    """Return the form of objects of a known class."""
    if issubclass(cls, nn.Module):
        return "module"
    if issubclass(cls, tuple):
        return "record" if hasattr(cls, "_fields") else "sequence"
    if issubclass(cls, REQUESTS):
        return "request"
    return "mapping" if issubclass(cls, dict) else "object"


def instance(fields_of: Callable[[Any], Fields]) -> Callable[[Any], Parts]:
    """Return how to take an object apart: its class, and the names and values of its fields."""

    def apart(value: Any) -> Parts:
        yield "", type(value)
        for name, field in fields_of(value).items():
            yield "", name
            yield f".{name}", field

    return apart


def instance_of(form: str, make: Callable[[Any, Fields], Any]) -> Callable[[list[Any]], Any]:
    """Return how to put an object of a form together from its class and fields."""

    def together(parts: list[Any]) -> Any:
        cls, *rest = parts
        if not all_are(str, rest[::2]) or any(len(name) > LONGEST_FIELD for name in rest[::2]):
            raise ValueError(
                f"the names of attributes must be strings of at most {LONGEST_FIELD} letters"
            )
        if form != "mapping" and not all(map(str.isidentifier, rest[::2])):  # messages show them
            raise ValueError("the names of attributes must be such as Python's")
        return make(checked(cls, form), dict(pairs(rest)))

    return together


def path_of(parts: list[Any]) -> Path:
    """Return a path; raise a ValueError if no system has such a long one."""
    if len(parts[0]) > LONGEST_PATH:
        raise ValueError(f"a path has more than {LONGEST_PATH} letters")
    return Path(*parts)


def checked(cls: Any, form: str) -> Any:
    """Return a class; raise a ValueError if it is not one of this form."""
    if not isinstance(cls, type) or form_of_class(cls) != form:
        name = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise ValueError(f"{name} is not a class of the form {form!r}")
    return cls


def own_fields(module: nn.Module) -> Fields:
    """Return the attributes that differ from a new nn.Module's."""
    return {k: v for k, v in vars(module).copy().items() if k not in FRESH or v != FRESH[k]}


def module_of(cls: Any, fields: Fields) -> nn.Module:
    """Return a module, without calling its constructor."""
    made: nn.Module = cls.__new__(cls)
    nn.Module.__init__(made)
    vars(made).update(fields)
    kinds = {"_parameters": nn.Parameter, "_buffers": Tensor, "_modules": nn.Module}
    for name, kind in kinds.items():
        entries = vars(made)[name]
        if not isinstance(entries, dict) or not all(
            v is None or isinstance(v, kind) for v in entries.values()
        ):
            raise ValueError(f"the entries of {name} must be of type {kind.__name__}")
    return made


def lasting(value: Any) -> Fields:
    """Return the attributes of an object but callbacks, which belong to a program and its fits."""
    return {k: v for k, v in vars(value).copy().items() if k not in OF_CALLBACKS}


def object_of(cls: type, fields: Fields) -> Any:
    """Return an object, without calling its constructor and without what is not needed any more."""
    made: Any = object.__new__(cls)
    vars(made).update((k, v) for k, v in fields.items() if not isinstance(v, Retired))
    return made


def named_by_owner(request: Any) -> Fields:
    """Return the fields of a metadata request; of its owner only the name, for messages."""
    owner = request.owner if isinstance(request.owner, str) else type(request.owner).__name__
    return {**vars(request), "owner": owner}


def record(value: Any) -> Fields:
    """Return the fields of a named tuple, or only those that `kept()` returns."""
    return value.kept() if hasattr(value, "kept") else value._asdict()


def record_of(cls: type, fields: Fields) -> Any:
    """Return a named tuple."""
    return getattr(cls, "restored", cls)(**fields)


def mapping_of(cls: Any, fields: Fields) -> Any:
    """Return a mapping, whose keys are strings."""
    made: Any = dict.__new__(cls)
    made.update(fields)
    return made


def contents(value: Any) -> Parts:
    """Take a sequence apart: its class and items."""
    yield "", type(value)
    yield from numbered(value)


OBJECTS: dict[str, tuple[Callable[[Any], Fields], Callable[[type, Fields], Any]]] = {
    "module": (own_fields, module_of),
    "request": (named_by_owner, object_of),
    "record": (record, record_of),
    "mapping": (dict, mapping_of),
    "object": (lasting, object_of),
}


TEXT: tuple[Types, ...] = ((str,),)
TEXT_OR_NONE: Types = (str, type(None))
ANY: Types = (object,)
KEYS_AND_NONE: tuple[Types, ...] = ((tuple,), (bool,))

FORMS: dict[str, Form] = {
    **{
        form: Form(instance(fields_of), instance_of(form, make))
        for form, (fields_of, make) in OBJECTS.items()
    },
    "list": Form(numbered, list),
    "tuple": Form(numbered, tuple),
    "set": Form(of.in_order, set),
    "frozenset": Form(of.in_order, frozenset),
    "dict": Form(of.items, lambda parts: dict(pairs(parts))),
    "ordered dict": Form(of.items, lambda parts: OrderedDict(pairs(parts))),
    "long tuple": Form(
        levels.long_tuple, levels.long_tuple_of, ((np.ndarray,), (np.ndarray, type(None)))
    ),
    "numbering": Form(levels.numbering, levels.numbering_of, KEYS_AND_NONE),
    "level set": Form(levels.level_set, lambda parts: set(levels.keys_of(parts)), KEYS_AND_NONE),
    "frozen level set": Form(
        levels.level_set, lambda parts: frozenset(levels.keys_of(parts)), KEYS_AND_NONE
    ),
    "cells": Form(of.cells, of.array_of_cells),
    "sequence": Form(contents, lambda parts: checked(parts[0], "sequence")(parts[1:])),
    "path": Form(word, path_of, TEXT),
    "floats": Form(lambda value: numbered([np.array(value)]), of.floats_of, ((np.ndarray,),)),
    "float": Form(word, lambda parts: one_of(WORDS, parts[0]), TEXT),
    "scalar": Form(of.scalar, of.scalar_of, ((str,), (bool, int, float, str))),
    "times": Form(of.times, of.array_of_times, ((str,), (np.ndarray,))),
    "ufunc": Form(lambda f: numbered([f.__name__]), lambda parts: one_of(UFUNCS, parts[0]), TEXT),
    "random state": Form(
        of.random_state, of.random_state_of, ((np.ndarray,), (int,), (int,), (float, int))
    ),
    "tensor": Form(of.tensor, of.tensor_of, ((np.ndarray,), TEXT_OR_NONE)),
    "parameter": Form(of.parameter, lambda parts: nn.Parameter(*parts), ((Tensor,), (bool,))),
    "torch type": Form(of.torch_type, lambda parts: one_of(DTYPES, parts[0]), TEXT),
    "torch device": Form(word, of.torch_device_of, TEXT),
    "torch size": Form(numbered, torch.Size),
    "timestamp": Form(of.timestamp, of.timestamp_of, ((np.datetime64,), TEXT_OR_NONE)),
    "timedelta": Form(
        lambda t: numbered([t.to_timedelta64()]), of.timedelta_of, ((np.timedelta64,),)
    ),
    "period": Form(lambda t: numbered([t.ordinal, t.freqstr]), of.period_of, ((int,), (str,))),
    "interval": Form(
        lambda t: numbered([t.left, t.right, t.closed]), of.interval_of, (ANY, ANY, (str,))
    ),
}

OF_TYPE: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    dict: "dict",
    OrderedDict: "ordered dict",
    float: "float",
    type(Path()): "path",
    np.random.RandomState: "random state",
    Tensor: "tensor",
    nn.Parameter: "parameter",
    torch.dtype: "torch type",
    torch.device: "torch device",
    torch.Size: "torch size",
}
OF_LEVELS: dict[type, str] = {
    dict: "numbering",
    set: "level set",
    frozenset: "frozen level set",
}


def form_of(value: Any, name_of: Callable[[type], str | None]) -> str | None:
    """Return the form of an object, or None if it has none."""
    cls = type(value)
    if cls is np.random.RandomState and not of.is_mersenne_twister(value):
        return None
    if cls is np.ufunc:
        return "ufunc" if of.is_known(value) else None
    if cls in OF_LEVELS and levels.has_levels(value):
        return OF_LEVELS[cls]
    if cls in OF_TYPE:
        if levels.is_long_tuple(value):
            return "long tuple"
        return "floats" if of.is_long_list_of_floats(value) else OF_TYPE[cls]
    if cls is np.ndarray:
        if of.is_spacious(value):
            return None
        return {"U": "cells", "O": "cells", "m": "times", "M": "times"}.get(value.dtype.kind)
    if isinstance(value, np.generic):
        is_odd = value.dtype.kind == "f" and value.dtype.itemsize not in ITEM_SIZES
        return "scalar" if value.dtype.kind in "biufUmM" and not is_odd else None
    if name_of(cls) is not None:
        return form_of_class(cls)
    return of.form_of_level(value)
