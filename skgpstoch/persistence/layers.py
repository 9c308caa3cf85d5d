"""Refuse layers of torch that their own constructors would not make.

A file names a layer's class and its fields. If the constructor, called with the arguments among
these fields, makes a layer with the same fields and tensors of the same shapes, then what the layer
computes, and how much, is what torch's own documentation says of these arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from .forms_of_values import LETTERS_SHOWN
from .registry import TENSORS, parameters_of

PLAIN_VALUES = (bool, int, float, str, type(None), np.number)
MADE_OF_LAYERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Sequential: lambda layer: nn.Sequential(OrderedDict(layer._modules)),
    nn.ModuleList: lambda layer: nn.ModuleList(layer._modules.values()),
    nn.ModuleDict: lambda layer: nn.ModuleDict(layer._modules),
    nn.ParameterList: lambda layer: nn.ParameterList(layer._parameters.values()),
    nn.ParameterDict: lambda layer: nn.ParameterDict(layer._parameters),
}
"""How to make layers whose constructors take other layers, or parameters."""


def check_layer(layer: nn.Module) -> None:
    """Raise a ValueError unless a layer of torch is as its constructor makes it.

    Fields that later versions of torch have are added.
    """
    fields, made, name = vars(layer), vars(remade(layer)), type(layer).__name__
    if extra := [field for field in fields if field not in made]:
        raise ValueError(f"{name} cannot have an attribute {extra[0][:LETTERS_SHOWN]!r}")
    for field, value in made.items():
        if field in TENSORS:
            is_same = kinds(fields[field]) == kinds(value)
        else:
            is_same = field == "training" or is_equal(fields.setdefault(field, value), value)
        if not is_same:
            raise ValueError(
                f"{name}.{field} is not as torch makes it for the other attributes of this layer"
            )


def remade(layer: nn.Module) -> nn.Module:
    """Return what a layer's constructor makes of its fields, without numbers."""
    cls: Any = type(layer)
    if cls in MADE_OF_LAYERS:
        return MADE_OF_LAYERS[cls](layer)
    names, fields = parameters_of(cls), vars(layer)
    given = {name: fields[name] for name in names if name in fields}
    if "bias" in names and "bias" not in given:  # which no layer keeps
        given["bias"] = layer._parameters.get("bias") is not None
    if not all(map(is_plain, given.values())):
        raise ValueError(f"{cls.__name__} has attributes that are neither numbers nor texts")
    if "device" in names:
        given["device"] = "meta"
    try:
        return cls(**given)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{cls.__name__} has attributes of no such layer: {error}") from error


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a text, or some of them."""
    inner = value if isinstance(value, tuple | list) else (value,)
    return all(isinstance(v, PLAIN_VALUES) for v in inner)


def is_equal(value: Any, other: Any) -> bool:
    """Tell whether values are the same, of the same types; the second one is flat."""
    if isinstance(other, tuple | list) and type(value) is type(other):
        return len(value) == len(other) and all(map(is_equal, value, other))
    if isinstance(other, dict):  # an earlier torch has ordered ones
        return isinstance(value, dict) and value == other
    return value is other or (type(value) is type(other) and value == other)


def kinds(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the shapes of tensors, and whether they have fractions."""
    return {k: t if t is None else (t.shape, t.is_floating_point()) for k, t in tensors.items()}
