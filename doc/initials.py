"""Keep the first initial of a reference: docutils would make it the number of a list."""

from __future__ import annotations

import re

FIRST_INITIAL = re.compile(r"^([ \t]*(?:\.\. \[[^\]]+\] )?)(?=[A-ZÀ-Þ]\. [A-ZÀ-Þ])", re.MULTILINE)


def escape_initials(text: str) -> str:
    """Escape the first initial of each reference, with a label ("[1]") or without one."""
    return FIRST_INITIAL.sub(r"\1\\", text)
