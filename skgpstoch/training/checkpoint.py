"""Files that killed fits resume from."""

from __future__ import annotations

import math
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

CHECKPOINT_SECONDS = 2.0
"""A checkpoint is at least this old before the next is written, so that it never dominates."""


@dataclass
class Checkpoint:
    """A file that a killed fit resumes from; `identity` tells one fit from another."""

    directory: Path
    identity: str
    written: float = -math.inf

    @property
    def path(self) -> Path:
        return self.directory / f"{self.identity}.pt"

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The saved state, or None where there is none, or none that can be read."""
        if not self.path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location=device, weights_only=True)
        except (EOFError, OSError, RuntimeError, UnpicklingError) as error:
            warnings.warn(
                f"The checkpoint {self.path} cannot be read ({error}); the fit starts anew.",
                stacklevel=2,
            )
            return None
        return state

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.directory, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise ValueError(
                f"checkpoint_dir must be a folder that can be made and written to, got "
                f"{str(self.directory)!r}."
            )

    def save(self, state: dict[str, Any]) -> None:
        """Write atomically: a kill while writing leaves the previous checkpoint whole."""
        if time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        partial = self.path.with_suffix(f".{os.getpid()}.tmp")
        torch.save(state, partial)
        os.replace(partial, self.path)
        self.written = time.monotonic()

    def remove(self) -> None:
        """Called when the fit is complete."""
        self.path.unlink(missing_ok=True)
