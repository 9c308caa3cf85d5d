"""Share parts of docstrings between functions, so that each part is written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

FUNCTION_SECTIONS = ("Parameters", "Returns", "Raises")  # as numpydoc orders them
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)

Function = TypeVar("Function", bound=Callable)


def documented(*sources: Callable | str) -> Callable[[Function], Function]:
    """Complete a function's docstring from other functions' docstrings, or from texts.

    The decorator adds the entries of the parameters in the signature, the errors raised, and, if
    the docstring lacks it, the section Returns. The function's own entries win, then those of
    earlier sources. In a text, Self stands for the class of a method.
    """

    def complete(function: Function) -> Function:
        if function.__doc__:  # there are no docstrings under python -OO
            docs = [source if isinstance(source, str) else source.__doc__ for source in sources]
            owner = function.__qualname__.partition(".")[0]
            texts = [re.sub(r"\bSelf\b", owner, doc or "") for doc in docs]
            names = list(inspect.signature(function).parameters)
            function.__doc__ = completed(function.__doc__, texts, names)
        return function

    return complete


def completed(doc: str, texts: list[str], names: list[str]) -> str:
    """Return the docstring with the texts' sections and, of their parameters, those in `names`."""
    parts: dict[str, str] = {}
    parameters: dict[str, str] = {}
    errors: dict[str, str] = {}
    for text in (*reversed(texts), doc):
        found = sections(text)
        parts |= found
        errors |= entries(found.get("Raises", ""))
        for group, entry in entries(found.get("Parameters", "")).items():
            parameters |= dict.fromkeys((name.strip("* ") for name in group.split(",")), entry)
    wanted = dict.fromkeys(parameters[name] for name in names if name in parameters)
    parts |= {"Parameters": "\n".join(wanted), "Raises": "\n".join(errors.values())}
    ordered = dict.fromkeys((*FUNCTION_SECTIONS, *sections(doc)))
    return joined(summary(doc), {name: parts[name] for name in ordered if parts.get(name)})


def joined(head: str, parts: dict[str, str]) -> str:
    """Return a docstring made of the first part and of sections."""
    body = [f"{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in parts.items()]
    return "\n\n".join([head, *body]) + "\n"


def summary(doc: str) -> str:
    """Return the part of a docstring before its sections."""
    return _HEADING.split(inspect.cleandoc(doc))[0].strip()


def sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring: heading → text."""
    _, *parts = _HEADING.split(inspect.cleandoc(doc))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries(text: str) -> dict[str, str]:
    """Return the entries of a section: name → its line and its description."""
    found = (entry.rstrip() for entry in _ENTRY.split(text) if entry.strip())
    return {entry.splitlines()[0].split(" : ")[0]: entry for entry in found}
