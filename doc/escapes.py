"""Escape what Sphinx would misread: initials of references, and labels of scikit-learn's guide."""

from __future__ import annotations

import re

FIRST_INITIAL = re.compile(r"^([ \t]*(?:\.\. \[[^\]]+\] )?)(?=[A-ZÀ-Þ]\. [A-ZÀ-Þ])", re.MULTILINE)
LABEL = re.compile(r":ref:`([^`<]+) <[^>]+>`")


def escape_initials(text: str) -> str:
    """Escape the first initial of each reference, with a label ("[1]") or without one.

    Otherwise docutils makes it the number of a list.
    """
    return FIRST_INITIAL.sub(r"\1\\", text)


def without_labels(text: str) -> str:
    """Keep the words of references to labels, such as those in docstrings from scikit-learn."""
    return LABEL.sub(r"\1", text)
