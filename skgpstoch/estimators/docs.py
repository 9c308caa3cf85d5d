"""Docstrings and constraints of estimators, put together from those of their groups of parameters.

A group, or a family, documents what is its own in the "Parameters" and "Attributes" sections of its
docstring; an estimator has all of them, and what its own docstring says of one wins.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from ..docstrings import entries, joined, sections, summary
from .parameters import RunParameters, TrainingParameters, WarmStartParameters

SECTIONS = ("Parameters", "Attributes")


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
        for section, text in sections(vars(base).get("__doc__") or "").items():
            if section in SECTIONS:
                for name, entry in entries(text).items():
                    found[section][name] = found[section].pop(name, entry)
    written = found["Parameters"]
    parameters = {name: written[name] for name in names if name in written}
    texts = {"Parameters": parameters.values(), "Attributes": found["Attributes"].values()}
    parts = {name: "\n".join(found) for name, found in texts.items() if found}
    parts |= {k: v for k, v in sections(doc).items() if k not in SECTIONS}
    return joined(summary(doc), parts)
