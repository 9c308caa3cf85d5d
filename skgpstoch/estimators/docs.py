"""Assemble docstrings and constraints of estimators from those of their groups of parameters.

A group, or a family, documents its own parameters and attributes in its docstring. An estimator has
all of them; an entry in its own docstring wins. If there are many parameters, the most important
ones (`_first_parameters` of the groups) stay in "Parameters", and come first in the signature; the
rest are "Other Parameters".
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from ..data.docstrings import entries, joined, sections, summary
from .parameters import RunParameters, TrainingParameters

SECTIONS = ("Parameters", "Attributes")
OTHERS = "Other Parameters"
LONGEST = 13  # parameters in one list, as many as the drop-ins have


def public_estimator(cls: Any) -> Any:
    """Complete an estimator's docstring, constraints and shape parameters from those of its groups.

    Parameters of training, which all estimators have, come last, also in the signature.
    """
    lineage = [base for base in cls.__mro__ if base is not object]
    first = {name for base in lineage for name in vars(base).get("_first_parameters", ())}
    names = _ordered(cls, first)
    constraints: dict[str, list] = {}
    for base in reversed(lineage):
        constraints |= vars(base).get("_parameter_constraints", {})
    cls._parameter_constraints = {name: constraints[name] for name in names}
    shape = [name for base in lineage for name in vars(base).get("_shape_parameters", ())]
    cls._shape_parameters = tuple(dict.fromkeys(shape))
    if cls.__doc__:  # none under python -OO
        cls.__doc__ = _completed(cls.__doc__, lineage, names, first)
    return cls


def _ordered(cls: Any, first: set[str]) -> list[str]:
    """Order the parameters of the signature, and return their names.

    In a long list the most important ones come first. Those of training come last.
    """
    init: Any = cls.__init__
    signature = inspect.signature(init)
    groups = (TrainingParameters, RunParameters)
    last = [f.name for group in groups for f in fields(group)]
    ranks = {name: rank for rank, name in enumerate(last)}
    is_long = len(signature.parameters) - 1 > LONGEST

    def place(parameter: inspect.Parameter) -> tuple[bool, bool, int]:
        is_named = parameter.kind is parameter.KEYWORD_ONLY
        is_later = is_named and is_long and parameter.name not in first
        return is_named, is_later, ranks.get(parameter.name, -1)

    ordered = sorted(signature.parameters.values(), key=place)
    init.__signature__ = signature.replace(parameters=ordered)
    return list(inspect.signature(cls).parameters)


def _completed(doc: str, lineage: list[type], names: list[str], first: set[str]) -> str:
    """Return the docstring with all sections.

    Parameters are in the order of the names, and attributes in that of the lineage. An attribute
    that is documented twice stands where the more general class has it.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for base in lineage:
        for section, text in sections(vars(base).get("__doc__") or "").items():
            if (section := "Parameters" if section == OTHERS else section) in SECTIONS:
                for name, entry in entries(text).items():
                    found[section][name] = found[section].pop(name, entry)
    written = found["Parameters"]
    of_list = first if len(names) > LONGEST else set(names)
    texts = {
        "Parameters": [written[name] for name in names if name in written and name in of_list],
        "Attributes": [*found["Attributes"].values()],
        OTHERS: [written[name] for name in names if name in written and name not in of_list],
    }
    parts = {name: "\n".join(found) for name, found in texts.items() if found}
    parts |= {k: v for k, v in sections(doc).items() if k not in (*SECTIONS, OTHERS)}
    return joined(summary(doc), parts)
