"""Docstrings and constraints of estimators, put together from those of their groups of parameters.

A group, or a family, documents what is its own in the "Parameters" and "Attributes" sections of its
docstring; an estimator has all of them, and what its own docstring says of one wins.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

SECTIONS = ("Parameters", "Attributes")
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def public_estimator(cls: type) -> type:
    """Complete the docstring and the parameter constraints of an estimator's dataclass.

    Its signature is in the order of the documentation: all parameters but `kernel` are keywords.
    """
    lineage = [base for base in cls.__mro__ if base is not object]
    names = list(inspect.signature(cls).parameters)
    constraints: dict[str, list] = {}
    for base in reversed(lineage):
        constraints |= vars(base).get("_parameter_constraints", {})
    cls._parameter_constraints = {name: constraints[name] for name in names}  # type: ignore[attr-defined]
    if cls.__doc__:  # none under python -OO
        cls.__doc__, order = _completed(cls.__doc__, lineage, names)
        init: Any = vars(cls)["__init__"]
        signature = inspect.signature(init)
        ordered = [signature.parameters[name] for name in dict.fromkeys(["self", *order, *names])]
        init.__signature__ = signature.replace(parameters=ordered)
    return cls


def _completed(doc: str, lineage: list[type], names: list[str]) -> tuple[str, list[str]]:
    """The docstring with both sections, parameters in the order of the lineage, `kernel` first.

    And the names of these parameters.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for base in lineage:
        for section, text in _sections(vars(base).get("__doc__") or "").items():
            if section in SECTIONS:
                for name, entry in _entries(text).items():
                    found[section].setdefault(name, entry)
    parameters = {k: v for k, v in found["Parameters"].items() if k in names}
    if "kernel" in parameters:
        parameters = {"kernel": parameters.pop("kernel"), **parameters}
    summary = _HEADING.split(inspect.cleandoc(doc))[0].rstrip()
    texts = {"Parameters": parameters.values(), "Attributes": found["Attributes"].values()}
    parts = {name: "\n".join(entries) for name, entries in texts.items() if entries}
    parts |= {k: v for k, v in _sections(doc).items() if k not in SECTIONS}
    body = [f"{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in parts.items()]
    return "\n\n".join([summary, *body]) + "\n", list(parameters)


def _sections(doc: str) -> dict[str, str]:
    """Heading → text."""
    _, *parts = _HEADING.split(inspect.cleandoc(doc))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _entries(text: str) -> dict[str, str]:
    """Name → its line and its description."""
    entries = (entry.rstrip() for entry in _ENTRY.split(text) if entry.strip())
    return {entry.split(" : ")[0].strip(): entry for entry in entries}
