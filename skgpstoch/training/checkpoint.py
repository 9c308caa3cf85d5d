"""Checkpoints, from which killed fits resume."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.arrays import fingerprint
from ..data.messages import warn
from ..data.reduce import Group

CHECKPOINT_SECONDS = 2.0
"""Least seconds between two checkpoints, so that writing them never dominates a fit."""


@dataclass
class Checkpoint:
    """A file from which a killed fit resumes; `identity` distinguishes different fits.

    Several threads or processes may run the same fit and share the file.
    """

    directory: Path
    identity: str
    written: float = -math.inf
    has_failed: bool = False

    @property
    def path(self) -> Path:
        return self.directory / f"{self.identity}.pt"

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.directory, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise ValueError(
                "checkpoint_dir must be a folder that can be created and written to, got "
                f"{str(self.directory)!r}."
            )

    def digest(self, state: dict[str, Any]) -> str:
        """Return a digest of this fit's identity and of everything in a state."""
        return fingerprint(self.identity, *_flat(state))

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the saved state, or None if there is none.

        Raises
        ------
        Exception
            If the file is damaged, was altered or belongs to another fit; the type varies.
        """
        try:
            saved = torch.load(self.path, map_location=device, weights_only=True)
        except FileNotFoundError:
            return None
        if not isinstance(saved, dict):
            raise ValueError("it is not a checkpoint")
        state: dict[str, Any] = saved["state"]
        if saved["digest"] != self.digest(state):
            raise ValueError("it was altered, or belongs to another fit")
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write atomically, so that a kill while writing leaves the previous checkpoint intact.

        If the disk is full or gone, a warning ends the checkpoints, but not the fit.
        """
        if self.has_failed or time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        partial = self.path.with_suffix(f".{uuid4().hex}.tmp")
        try:
            torch.save({"digest": self.digest(state), "state": state}, partial)
            with contextlib.suppress(FileNotFoundError):  # another thread's fit has removed it
                os.replace(partial, self.path)
        except (OSError, RuntimeError) as error:  # torch may turn an OSError into a RuntimeError
            self.has_failed = True
            warn(
                f"The checkpoint {self.path} cannot be written ({summary(error)}); the fit "
                "continues without it."
            )
        finally:
            _discard(partial)
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a complete fit, and temporary files left by killed processes."""
        with contextlib.suppress(OSError):
            for path in self.directory.glob(f"{self.identity}.*"):
                _discard(path)


@dataclass
class CheckpointOfGroup:
    """A checkpoint that rank 0 keeps for a group; any number of ranks can resume from it."""

    of_first: Checkpoint
    group: Group

    @property
    def path(self) -> Path:
        """The file, which only rank 0 needs to access."""
        return self.of_first.path

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the state that rank 0 has saved, or None if there is none."""
        content, error = io.BytesIO(), None
        if self.group.rank == 0:
            try:
                torch.save(self.of_first.load(device), content)
            except Exception as raised:  # damaged files make torch raise many kinds of errors
                error = RuntimeError(summary(raised))
        self.group.agree(error)
        sent = io.BytesIO(self.group.first_bytes(content.getvalue()))
        state: dict[str, Any] | None = torch.load(sent, map_location=device, weights_only=True)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint, on rank 0 only."""
        if self.group.rank == 0:
            self.of_first.save(state)

    def remove(self) -> None:
        """Remove the file of a complete fit, on rank 0."""
        if self.group.rank == 0:
            self.of_first.remove()


AnyCheckpoint = Checkpoint | CheckpointOfGroup


def _discard(path: Path) -> None:
    """Remove a file if possible; ignore errors."""
    with contextlib.suppress(OSError):
        path.unlink()


def _flat(value: Any) -> Iterator[Any]:
    """Yield names, types, shapes and contents of a nested state, for a digest."""
    if isinstance(value, Tensor):
        yield value.dtype
        yield tuple(value.shape)
        dense = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        yield dense.reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, dict):
        yield list(value)
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, list | tuple):
        yield len(value)
        for item in value:
            yield from _flat(item)
    else:
        yield value


def same_form(a: Any, b: Any) -> bool:
    """Whether states agree in names and types, and their tensors in shapes as well."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
    if isinstance(a, dict):
        same_names = isinstance(b, dict) and a.keys() == b.keys()
        return same_names and all(same_form(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        same_length = type(a) is type(b) and len(a) == len(b)
        return same_length and all(map(same_form, a, b))
    if isinstance(a, int | float):
        return isinstance(b, int | float)
    return type(a) is type(b)


def summary(error: Exception) -> str:
    """Return the kind and the first line of an error, because torch's messages are long."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def optimizer_can_be_in(optimizer: Optimizer | None, state: dict[str, Any] | None) -> bool:
    """Whether a state can belong to an optimiser; torch itself accepts moments of any shape."""
    if optimizer is None or state is None:
        return optimizer is state
    groups = optimizer.state_dict()["param_groups"]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    n = sum(p.numel() for p in params)  # L-BFGS sees one long vector
    return same_form(groups, state["param_groups"]) and all(
        value.numel() in (1, params[i].numel(), n)
        for i, values in state["state"].items()
        for value in values.values()
        if isinstance(value, Tensor)
    )


def copy_of(state: Any) -> Any:
    """Copy a state; ``copy.deepcopy`` would take as long as a training step on few rows."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        copied = copy.copy(state)  # keeps the attributes that torch sets on state dicts
        copied.update((name, copy_of(value)) for name, value in state.items())
        return copied
    if isinstance(state, list):  # some have one number for each epoch: do not deep-copy these
        return [x if isinstance(x, float) else copy_of(x) for x in state]
    return copy.deepcopy(state)
