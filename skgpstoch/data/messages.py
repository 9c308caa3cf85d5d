"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

import sklearn
import torch

LIBRARIES = tuple(
    str(path)
    for path in (
        Path(__file__).parents[1],
        Path(sklearn.__file__).parent,
        Path(torch.__file__).parent,
    )
)
WRAPPERS = ("functools.py", "contextlib.py")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line that is neither ours nor scikit-learn's nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # of the frame that called us
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def is_internal(filename: str) -> bool:
    """Tell whether a file belongs to a library through which the user called us."""
    return filename.startswith(LIBRARIES) or filename.endswith(WRAPPERS)
