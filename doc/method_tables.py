"""A Sphinx extension: end the docstring of each class with a table of its own public methods."""

from __future__ import annotations

import re

PACKAGE = "skgpstoch"
NOT_LISTED = ("Module",)  # nor does the class template list its methods


def methods_of(cls: type) -> list[str]:
    """Return the names of public methods that classes of the package define, in order."""
    bases = [base for base in cls.__mro__ if base.__name__ not in NOT_LISTED]
    own = [base for base in bases if base.__module__.partition(".")[0] == PACKAGE]
    names = sorted({name for base in own for name in vars(base) if not name.startswith("_")})
    is_request = re.compile(r"set_\w+_request").fullmatch
    return [n for n in names if callable(getattr(cls, n, None)) and not is_request(n)]


def add_table(app, what, name, obj, options, lines):
    names = methods_of(obj) if what == "class" else []
    if len(names) > 1:
        lines += ["", ".. rubric:: Methods", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   ~{obj.__name__}.{method}" for method in names]
        lines.append("")


def setup(app):
    app.connect("autodoc-process-docstring", add_table, priority=800)  # after numpydoc
    return {"parallel_read_safe": True}
