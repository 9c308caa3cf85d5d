"""Take objects apart and put them together again: the table FORMS has one row for each form.

Parts are objects again, or numbers and strings. The functions that put parts together check them,
because anybody may have written the file. They call no constructor that does more than store its
arguments.
"""

from __future__ import annotations

import copy
import math
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import forms_of_pandas as of_pandas
from .arrays import FEWEST
from .registry import REQUESTS, UFUNCS

Function = types.FunctionType
Parts = Iterable[tuple[str, Any]]  # where each part is (for messages), and the part

DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that may be raised when parts do not belong together."""

FRESH = vars(nn.Module())
BYTES_OF_A_MODULE = 3000  # without parameters
MOST_BYTES_OF_A_TEXT = 256  # in an array, for each string and each of its letters
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
DTYPES = {str(t).partition(".")[2]: t for t in vars(torch).values() if isinstance(t, torch.dtype)}


class Form(NamedTuple):
    """The functions that take objects of a form apart, and put them together."""

    apart: Callable[[Any], Parts]
    together: Callable[[list[Any]], Any]


# ---- Python's own --------------------------------------------------------------------------------


def numbered(values: Iterable[Any]) -> Parts:
    """Label each item with its position."""
    return ((f"[{i}]", value) for i, value in enumerate(values))


def in_order(values: Iterable[Any]) -> Parts:
    """Sort the items of a set, so that equal ones have equal states."""
    return numbered(sorted(values, key=lambda value: (type(value).__name__, repr(value))))


def items(mapping: dict) -> Parts:
    """Return keys and values in turn."""
    for key, value in mapping.items():
        yield " (a key)", key
        yield f"[{key!r:.40}]", value


def pairs(parts: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the keys and values that `items` took apart."""
    return zip(parts[::2], parts[1::2], strict=True)


def word(value: Any) -> Parts:
    """Take apart a path, a device, or a number that JSON does not have."""
    return numbered([str(value)])


def is_long_list_of_floats(value: Any) -> bool:
    """Tell whether a value is a list of floats so long that an array takes less space."""
    return type(value) is list and len(value) >= FEWEST and all(type(v) is float for v in value)


# ---- NumPy's -------------------------------------------------------------------------------------


def scalar(value: np.generic) -> Parts:
    """Take a scalar apart: its type, and the number."""
    is_time = value.dtype.kind in "mM"
    return numbered([value.dtype.str, int(value.astype(np.int64)) if is_time else value.item()])


def scalar_of(parts: list[Any]) -> Any:
    """Return a scalar."""
    dtype, value = np.dtype(parts[0]), parts[1]
    if dtype.kind not in "biufUmM" or (dtype.kind == "U" and dtype.itemsize > most_bytes([value])):
        raise ValueError(f"a scalar cannot have the type {dtype}")
    array = np.array(value, np.int64).view(dtype) if dtype.kind in "mM" else np.array(value, dtype)
    return array[()]


def is_spacious(a: np.ndarray) -> bool:
    """Tell whether a few long strings make an array of strings take far too much memory."""
    return a.dtype.kind == "U" and a.nbytes > most_bytes(a.reshape(-1).tolist())


def most_bytes(values: list) -> int:
    """Return the bytes that an array of strings may take."""
    return MOST_BYTES_OF_A_TEXT * (len(values) + sum(len(v) for v in values if type(v) is str))


def cells(a: np.ndarray) -> Parts:
    """Take an array of strings or objects apart: its dtype, number of axes, shape, and cells."""
    return numbered([a.dtype.str, a.ndim, *a.shape, *a.reshape(-1).tolist()])


def array_of_cells(parts: list[Any]) -> np.ndarray:
    """Return an array of strings or objects."""
    dtype, ndim, *rest = parts
    dtype, shape, values = np.dtype(dtype), rest[:ndim], rest[ndim:]
    is_small = dtype.kind == "O" or dtype.itemsize * len(values) <= most_bytes(values)
    if dtype.kind not in "UO" or not is_small or min(shape, default=0) < 0:
        raise ValueError(
            f"an array of strings or objects cannot have the type {dtype}, or its shape"
        )
    flat = np.empty(len(values), dtype)
    for i, value in enumerate(values):
        flat[i] = value
    return flat.reshape(shape)


def times(a: np.ndarray) -> Parts:
    """Take an array of times apart."""
    return numbered([a.dtype.str, a.view(np.int64)])


def array_of_times(parts: list[Any]) -> np.ndarray:
    """Return an array of times."""
    dtype = np.dtype(parts[0])
    if dtype.kind not in "mM":
        raise ValueError(f"an array of times cannot have the type {dtype}")
    return parts[1].view(dtype)


def is_mersenne_twister(generator: np.random.RandomState) -> bool:
    """Tell whether a generator is of the usual kind."""
    state: Any = generator.get_state(legacy=False)
    return state["bit_generator"] == "MT19937"


def is_known(function: np.ufunc) -> bool:
    """Tell whether a ufunc is one of NumPy's that files may name; SciPy's may share a name."""
    return UFUNCS.get(function.__name__) is function


def random_state(generator: np.random.RandomState) -> Parts:
    """Take a generator apart."""
    state: Any = generator.get_state(legacy=False)
    inner = state["state"]
    return numbered([inner["key"], inner["pos"], state["has_gauss"], state["gauss"]])


def random_state_of(parts: list[Any]) -> np.random.RandomState:
    """Return a generator."""
    generator = np.random.RandomState(0)
    generator.set_state(("MT19937", *parts))
    return generator


# ---- torch's -------------------------------------------------------------------------------------


def tensor(value: Tensor) -> Parts:
    """Take a tensor apart: an array, and the type if NumPy lacks it. Gradients are not kept."""
    dense = value.detach().cpu()
    if dense.dtype == torch.bfloat16:
        return numbered([dense.view(torch.int16).numpy(), "bfloat16"])
    return numbered([dense.numpy(), None])


def tensor_of(parts: list[Any]) -> Tensor:
    """Return a tensor that shares the memory of the array, which nothing else uses."""
    array, dtype = parts
    values = torch.from_numpy(array)
    return values if dtype is None else values.view(DTYPES[dtype])


def torch_type(dtype: torch.dtype) -> Parts:
    """Take a tensor type apart: its name."""
    return numbered([str(dtype).partition(".")[2]])


def parameter(value: nn.Parameter) -> Parts:
    """Take a parameter apart."""
    return numbered([value.data, value.requires_grad])


def parameter_of(parts: list[Any]) -> nn.Parameter:
    """Return a parameter."""
    return nn.Parameter(*parts)


def module(value: nn.Module) -> Parts:
    """Take a module apart: its class, and the attributes that differ from a new nn.Module's."""
    yield "", type(value)
    own = {k: v for k, v in vars(value).items() if k not in FRESH or v != FRESH[k]}
    yield from items(own)


def module_of(parts: list[Any]) -> nn.Module:
    """Return a module, without calling its constructor."""
    cls, *rest = parts
    made = bare(cls, "module")
    nn.Module.__init__(made)
    vars(made).update(fields(rest))
    kinds = {"_parameters": nn.Parameter, "_buffers": Tensor, "_modules": nn.Module}
    for name, kind in kinds.items():
        if not all(v is None or isinstance(v, kind) for v in vars(made)[name].values()):
            raise ValueError(f"the entries of {name} must be of type {kind.__name__}")
    return made


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


def bare(cls: Any, form: str) -> Any:
    """Return an object of a class without calling its constructor."""
    if not isinstance(cls, type) or form_of_class(cls) != form:
        raise ValueError(f"{cls!r:.60} is not a class of the form {form!r}")
    made: Any = object.__new__ if form != "mapping" else dict.__new__
    return made(cls)


def object_(value: Any) -> Parts:
    """Take an object apart: its class and attributes."""
    yield "", type(value)
    for name, field in vars(value).items():
        yield "", name
        yield f".{name}", field


def object_of(parts: list[Any], form: str = "object") -> Any:
    """Return an object, without calling its constructor."""
    cls, *rest = parts
    made = bare(cls, form)
    vars(made).update(fields(rest))
    return made


def fields(parts: list[Any]) -> dict[str, Any]:
    """Return attributes by their names."""
    found = dict(pairs(parts))
    if not all(type(name) is str for name in found):
        raise ValueError("the names of attributes must be strings")
    return found


def request(value: Any) -> Parts:
    """Take a metadata request apart; keep only the name of its owner, which messages need."""
    owner = value.owner if isinstance(value.owner, str) else type(value.owner).__name__
    named = copy.copy(value)
    named.owner = owner
    return object_(named)


def record(value: Any) -> Parts:
    """Take a named tuple apart: its class and its fields, or only those that `kept()` returns."""
    kept = value.kept() if hasattr(value, "kept") else value._asdict()
    yield "", type(value)
    for name, field in kept.items():
        yield "", name
        yield f".{name}", field


def record_of(parts: list[Any]) -> Any:
    """Return a named tuple."""
    cls, *rest = parts
    if not isinstance(cls, type) or form_of_class(cls) != "record":
        raise ValueError(f"{cls!r:.60} is not a class of the form 'record'")
    make: Any = getattr(cls, "restored", cls)
    return make(**fields(rest))


def contents(value: Any) -> Parts:
    """Take a sequence apart: its class and items."""
    yield "", type(value)
    yield from numbered(value)


def sequence_of(parts: list[Any]) -> Any:
    """Return a sequence."""
    cls, *rest = parts
    if not isinstance(cls, type) or form_of_class(cls) != "sequence":
        raise ValueError(f"{cls!r:.60} is not a class of the form 'sequence'")
    return cls(rest)


def entries(value: dict) -> Parts:
    """Take a mapping apart: its class, keys and values."""
    yield "", type(value)
    yield from items(value)


def mapping_of(parts: list[Any]) -> Any:
    """Return a mapping."""
    cls, *rest = parts
    made = bare(cls, "mapping")
    made.update(pairs(rest))
    return made


FORMS: dict[str, Form] = {
    "list": Form(numbered, list),
    "tuple": Form(numbered, tuple),
    "set": Form(in_order, set),
    "frozenset": Form(in_order, frozenset),
    "dict": Form(items, lambda parts: dict(pairs(parts))),
    "ordered dict": Form(items, lambda parts: OrderedDict(pairs(parts))),
    "path": Form(word, lambda parts: Path(*parts)),
    "floats": Form(lambda value: numbered([np.array(value)]), lambda parts: parts[0].tolist()),
    "float": Form(word, lambda parts: WORDS[parts[0]]),
    "scalar": Form(scalar, scalar_of),
    "cells": Form(cells, array_of_cells),
    "times": Form(times, array_of_times),
    "ufunc": Form(lambda f: numbered([f.__name__]), lambda parts: UFUNCS[parts[0]]),
    "random state": Form(random_state, random_state_of),
    "tensor": Form(tensor, tensor_of),
    "parameter": Form(parameter, parameter_of),
    "torch type": Form(torch_type, lambda parts: DTYPES[parts[0]]),
    "torch device": Form(word, lambda parts: torch.device(parts[0])),
    "torch size": Form(numbered, torch.Size),
    "timestamp": Form(lambda t: numbered(of_pandas.timestamp(t)), of_pandas.timestamp_of),
    "period": Form(lambda t: numbered(of_pandas.period(t)), of_pandas.period_of),
    "interval": Form(lambda t: numbered(of_pandas.interval(t)), of_pandas.interval_of),
    "module": Form(module, module_of),
    "request": Form(request, lambda parts: object_of(parts, "request")),
    "record": Form(record, record_of),
    "sequence": Form(contents, sequence_of),
    "mapping": Form(entries, mapping_of),
    "object": Form(object_, object_of),
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


def size_of(value: Any) -> int:
    """Return about how many bytes an object takes, without parts that are counted elsewhere."""
    if isinstance(value, nn.Module):
        return BYTES_OF_A_MODULE
    if isinstance(value, np.ndarray):
        return value.nbytes
    if is_long_list_of_floats(value):
        return sys.getsizeof(value) + sys.getsizeof(0.0) * len(value)
    return sys.getsizeof(value) + sys.getsizeof(getattr(value, "__dict__", None))


def form_of(value: Any, name_of: Callable[[type], str | None]) -> str | None:
    """Return the form of an object, or None if it has none."""
    cls = type(value)
    if cls is np.random.RandomState and not is_mersenne_twister(value):
        return None
    if cls is np.ufunc:
        return "ufunc" if is_known(value) else None
    if cls in OF_TYPE:
        return "floats" if is_long_list_of_floats(value) else OF_TYPE[cls]
    if cls is np.ndarray:
        if is_spacious(value):
            return None
        return {"U": "cells", "O": "cells", "m": "times", "M": "times"}.get(value.dtype.kind)
    if isinstance(value, np.generic):
        return "scalar" if value.dtype.kind in "biufUmM" else None
    if name_of(cls) is not None:
        return form_of_class(cls)
    return of_pandas.form_of_level(value)
