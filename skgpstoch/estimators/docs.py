"""Docstrings and constraints of estimators, put together from those of their groups of parameters.

A group, or a family, documents what is its own in the "Parameters" and "Attributes" sections of its
docstring; an estimator has all of them, and what its own docstring says of one wins. A method that
is like another one documents what differs: :func:`documented_like`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from .parameters import RunParameters, TrainingParameters, WarmStartParameters

SECTIONS = ("Parameters", "Attributes")
OF_METHODS = ("Parameters", "Returns", "Raises")  # as numpydoc orders them
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)

Method = TypeVar("Method", bound=Callable)


def public_estimator(cls: Any) -> Any:
    """Complete an estimator's docstring, constraints and shape parameters from those of its groups.

    Parameters of training, which all estimators have, come last there and in the signature.
    """
    lineage = [base for base in cls.__mro__ if base is not object]
    names = _training_last(cls)
    constraints: dict[str, list] = {}
    for base in reversed(lineage):
        constraints |= vars(base).get("_parameter_constraints", {})
    cls._parameter_constraints = {name: constraints[name] for name in names}
    shape = [name for base in lineage for name in vars(base).get("_shape_parameters", ())]
    cls._shape_parameters = tuple(dict.fromkeys(shape))
    if cls.__doc__:  # none under python -OO
        cls.__doc__ = _completed(cls.__doc__, lineage, names)
    return cls


def _training_last(cls: Any) -> list[str]:
    """Names of parameters, in the order that the signature is given here."""
    init: Any = cls.__init__
    signature = inspect.signature(init)
    groups = (TrainingParameters, RunParameters, WarmStartParameters)
    last = [f.name for group in groups for f in fields(group)]
    ranks = {name: rank for rank, name in enumerate(last)}
    ordered = sorted(signature.parameters.values(), key=lambda p: ranks.get(p.name, -1))
    init.__signature__ = signature.replace(parameters=ordered)
    return list(inspect.signature(cls).parameters)


def _completed(doc: str, lineage: list[type], names: list[str]) -> str:
    """The docstring with both sections: parameters in the order of the names, attributes in that
    of the lineage, one that is documented twice where the more general class has it.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for base in lineage:
        for section, text in _sections(vars(base).get("__doc__") or "").items():
            if section in SECTIONS:
                for name, entry in _entries(text).items():
                    found[section][name] = found[section].pop(name, entry)
    written = found["Parameters"]
    parameters = {name: written[name] for name in names if name in written}
    summary = _HEADING.split(inspect.cleandoc(doc))[0].rstrip()
    texts = {"Parameters": parameters.values(), "Attributes": found["Attributes"].values()}
    parts = {name: "\n".join(entries) for name, entries in texts.items() if entries}
    parts |= {k: v for k, v in _sections(doc).items() if k not in SECTIONS}
    return _joined(summary, parts)


def documented_like(*originals: Callable) -> Callable[[Method], Method]:
    """Complete a method's docstring from those of others, the first of which knows best.

    Sections that it lacks are theirs, and so are entries of parameters that it does not document,
    of those in its signature. What it says itself wins.
    """

    def complete(method: Method) -> Method:
        docs = [str(other.__doc__ or "") for other in (*reversed(originals), method)]
        parts: dict[str, str] = {}
        entries: dict[str, str] = {}
        for doc in docs:
            parts |= _sections(doc)
            entries |= _entries(_sections(doc).get("Parameters", ""))
        names = inspect.signature(method).parameters
        parts["Parameters"] = "\n".join(entries[name] for name in names if name in entries)
        summary = _HEADING.split(inspect.cleandoc(docs[-1]))[0].rstrip()
        ordered = {name: parts[name] for name in OF_METHODS if parts.get(name)}
        if method.__doc__:  # none under python -OO
            method.__doc__ = _joined(summary, ordered)
        return method

    return complete


def _joined(summary: str, parts: dict[str, str]) -> str:
    """The docstring of a summary and sections."""
    body = [f"{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in parts.items()]
    return "\n\n".join([summary, *body]) + "\n"


def _sections(doc: str) -> dict[str, str]:
    """Heading → text."""
    _, *parts = _HEADING.split(inspect.cleandoc(doc))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _entries(text: str) -> dict[str, str]:
    """Name → its line and its description."""
    entries = (entry.rstrip() for entry in _ENTRY.split(text) if entry.strip())
    return {entry.split(" : ")[0].strip("* "): entry for entry in entries}
