"""Docstrings of functions that have parts in common, which are written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

SHARED_SECTIONS = ("Parameters", "Returns", "Raises")
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)

F = TypeVar("F", bound=Callable)


def documented(*sources: str | None) -> Callable[[F], F]:
    """Complete a function's docstring from texts with sections of the same names.

    It takes the parameters that it has, in the order of its signature, and all that the texts say
    of what is returned and raised. Of two entries of a name that of the later text wins, and the
    function's own of all. In a text, Self is the class of a method.
    """

    def complete(function: F) -> F:
        doc = function.__doc__
        if doc:  # none under python -OO
            owner = function.__qualname__.partition(".")[0]
            texts = [re.sub(r"\bSelf\b", owner, text) for text in sources if text]
            names = list(inspect.signature(function).parameters)
            function.__doc__ = completed(doc, texts, names)
        return function

    return complete


def completed(doc: str, texts: list[str], names: list[str]) -> str:
    """The docstring with entries of the texts, of parameters only those with these names."""
    summary = HEADING.split(inspect.cleandoc(doc))[0].strip()
    own, parts = sections(doc), {}
    for heading in SHARED_SECTIONS:
        found: dict[str, str] = {}
        for text in (*texts, doc):
            found |= entries(sections(text).get(heading, ""))
        if heading == "Parameters":
            found = {name: found[name] for name in names if name in found}
        if found:
            parts[heading] = "\n".join(dict.fromkeys(found.values()))
    parts |= {heading: text for heading, text in own.items() if heading not in SHARED_SECTIONS}
    return joined(summary, parts)


def joined(summary: str, parts: dict[str, str]) -> str:
    """A docstring of a summary and sections."""
    body = [f"{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in parts.items()]
    return "\n\n".join([summary, *body]) + "\n"


def sections(doc: str) -> dict[str, str]:
    """Heading → text."""
    _, *parts = HEADING.split(inspect.cleandoc(doc))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries(text: str) -> dict[str, str]:
    """Name → its line and its description, which several names may share."""
    found = (entry.rstrip() for entry in ENTRY.split(text) if entry.strip())
    return {
        name.strip(" *\n"): entry
        for entry in found
        for name in entry.partition("\n")[0].partition(" : ")[0].split(",")
    }
