"""Checkpoints, from which killed fits resume, and the names of their files."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.arrays import fingerprint, plain, readable, resolve_seed
from ..data.devices import HOST
from ..data.groups import Group
from ..data.messages import warn, without_addresses
from ..data.rows import Data
from ..data.whole_file import remove_leftovers
from ..persistence.file import opened, read_state, value_of, write_state
from ..persistence.forms_of_values import STATE_OF_TWISTER
from ..persistence.state import Names, PackedState, Packer
from .projected_lbfgs import ProjectedLBFGS

CHECKPOINT_SECONDS = 2.0
"""Least seconds between two checkpoints, so that writing them never dominates a fit."""
SUFFIX = ".safetensors"
IN_A_CHECKPOINT = {"format", "fit", "structure", "sha256"}


@dataclass
class Checkpoint:
    """A file from which a killed fit resumes; `identity` distinguishes different fits.

    Several threads or processes may run the same fit and share the file.
    """

    directory: Path
    identity: str
    written: float = -math.inf
    has_failed: bool = False
    is_resumed: bool = False  # whether the fit has begun with what was saved

    @property
    def path(self) -> Path:
        return self.directory / f"{self.identity}{SUFFIX}"

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.directory, os.W_OK)
        except (OSError, ValueError):  # of a null character
            writable = False
        if not writable:
            raise ValueError(
                "checkpoint_dir must be a folder that can be created and written to, got "
                f"{str(self.directory)!r}."
            )

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the saved state, or None if there is none.

        Raises
        ------
        Exception
            If the file is damaged, was altered or belongs to another fit; the type varies.
        """
        try:
            with opened(self.path) as file:
                return self.value(*self.packed(file), device)
        except FileNotFoundError:
            return None

    def packed(self, file: BinaryIO) -> tuple[PackedState, int]:
        """Return the state in an open file, as it is stored, and the number of bytes."""
        metadata, state = read_state(file, IN_A_CHECKPOINT)
        if metadata["fit"] != self.identity:
            raise ValueError("it belongs to another fit")
        return state, file.tell()

    def value(self, state: PackedState, n_bytes: int, device: torch.device) -> dict[str, Any]:
        """Return the state of a fit."""
        value = value_of(state, OnlyNumbers(), n_bytes)
        if not isinstance(value, dict):
            raise ValueError("it is not a checkpoint")
        return value if device == HOST else moved(value, device)

    def save(self, state: dict[str, Any]) -> None:
        """Write atomically, so that a kill while writing leaves the previous checkpoint intact.

        If the disk is full or gone, a warning ends the checkpoints, but not the fit.
        """
        if self.has_failed or time.monotonic() - self.written < CHECKPOINT_SECONDS:
            return
        try:
            packed = Packer(OnlyNumbers()).state(moved(state, HOST))
            write_state(self.path, {"fit": self.identity}, packed)
        except OSError as error:
            self.has_failed = True
            warn(
                f"The checkpoint {self.path} cannot be written ({summary(error)}); the fit "
                "continues without it."
            )
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a complete fit, and temporary files left by killed processes."""
        remove_leftovers(self.path)
        with contextlib.suppress(OSError):
            self.path.unlink()


class OnlyNumbers(Names):
    """Checkpoints hold tensors, numbers and Python's own collections, and name no class."""

    def name(self, value: Any) -> None:
        return None

    def value(self, name: str, is_type: bool) -> NoReturn:
        raise ValueError("it names a class or function, which no checkpoint does")

    def keep(self, value: Any, path: str) -> NoReturn:
        raise TypeError(f"{path} is a {type(value).__name__}, which no checkpoint can hold")


@dataclass
class CheckpointOfGroup:
    """A checkpoint that rank 0 keeps for a group; any number of ranks can resume from it."""

    of_first: Checkpoint
    group: Group
    is_resumed: bool = False

    @property
    def path(self) -> Path:
        """The file, which only rank 0 needs to access."""
        return self.of_first.path

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the state that rank 0 has saved, or None if there is none."""
        sent = self.of_first_rank()  # what was sent is given back before there is a copy of it
        return self.of_first.value(*sent, device) if sent else None

    def of_first_rank(self) -> tuple[PackedState, int] | None:
        """Return the state in rank 0's file, as it is stored, and the number of bytes."""
        content = self.group.first_bytes(self.sound_content())
        return self.of_first.packed(io.BytesIO(content)) if content else None

    def sound_content(self) -> bytes:
        """Return the bytes of rank 0's file, which it has checked; none on others, or without."""
        content, error = b"", None
        if self.group.rank == 0:
            try:
                with contextlib.suppress(FileNotFoundError), opened(self.path) as file:
                    self.of_first.value(*self.of_first.packed(file), HOST)
                    file.seek(0)
                    content = file.read()
            except Exception as raised:  # whatever is wrong with the file
                error = RuntimeError(summary(raised))
        self.group.agree(error)
        return content

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint, on rank 0 only."""
        if self.group.rank == 0:
            self.of_first.save(state)

    def remove(self) -> None:
        """Remove the file of a complete fit, on rank 0."""
        if self.group.rank == 0:
            self.of_first.remove()


AnyCheckpoint = Checkpoint | CheckpointOfGroup


def moved(value: Any, device: torch.device) -> Any:
    """Return a state with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)((name, moved(part, device)) for name, part in value.items())
    if type(value) in (list, tuple):
        return type(value)(moved(part, device) for part in value)
    return value


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


BYTES_OF_TWISTER = 5056  # of the state of torch's generator on the host


def generator_can_be_in(state: Tensor) -> bool:
    """Whether torch's generator comes to a state; on the host torch reads wherever it points to.

    A generator that has drawn has `left` − 1 of its 624 numbers left; the next is number `next`.
    """
    if len(state) != BYTES_OF_TWISTER:  # an accelerator's, which is a seed and a count
        return True
    left, first = int(state[8:12].view(torch.int32)), int(state[16:24].view(torch.int64))
    bits = state[24 : 24 + 8 * STATE_OF_TWISTER].view(torch.int64) << 32  # of these, torch has half
    is_fresh = (left, first) == (1, 0)
    has_drawn = left + first == 1 + STATE_OF_TWISTER and 0 < left <= STATE_OF_TWISTER
    is_table = bool((bits[0] < 0) | bits[1:].any())  # all other bits 0: draws 0 for ever
    return is_table and (is_fresh or has_drawn)


OF_ADAM = {"step", "exp_avg", "exp_avg_sq"}
MOST_ADAM, ADAM_EPS = 10.0, 1e-8  # C is 7.3 for β of 0.9 and 0.999
MOMENTS = {"Adadelta": {"step", "square_avg", "acc_delta"}, "SparseAdagrad": {"sum"}}
"""Names of the moments of each parameter, by optimiser."""


def optimizer_can_be_in(optimizer: Optimizer | None, state: dict[str, Any] | None) -> bool:
    """Whether a state can belong to an optimiser."""
    if optimizer is None or state is None:
        return optimizer is state
    return has_moments_of(optimizer, state)


def has_moments_of(optimizer: Optimizer, state: dict[str, Any]) -> bool:
    """Whether a state's moments have the shapes of parameters, which torch does not check.

    Fused steps write as many numbers as a parameter has, whatever the size of a moment.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers, given = (
        [i for group in groups for i in group["params"]]
        for groups in (optimizer.state_dict()["param_groups"], state["param_groups"])
    )
    if numbers != given or not set(numbers) >= state["state"].keys():
        return False
    of_number = dict(zip(numbers, params, strict=True))  # as torch finds whose a moment is
    n = sum(p.numel() for p in params)
    names = MOMENTS.get(type(optimizer).__name__, OF_ADAM)

    def fits(p: Tensor, values: dict[str, Any]) -> bool:
        if isinstance(optimizer, ProjectedLBFGS):  # it sees one long vector
            is_alone = values.keys() == {"pairs"}
            pairs = values.get("pairs", ())
            are_few = len(pairs) <= optimizer.memory
            return is_alone and are_few and all(a.shape == b.shape == (n,) for a, b in pairs)
        return not values or (
            values.keys() == names
            and all(v.shape == (p.shape if name != "step" else ()) for name, v in values.items())
            and (names is not OF_ADAM or are_averages(values["exp_avg"], values["exp_avg_sq"]))
        )

    return all(fits(of_number[i], values) for i, values in state["state"].items())


def are_averages(m: Tensor, v: Tensor) -> bool:
    """Tell whether moments can be averages of gradients and of their squares.

    Then |m| ≤ C√v by Cauchy and Schwarz, C² = (1 − β₁)²/((1 − β₂)(1 − β₁²/β₂)), and steps are as
    large, where gradients do not underflow.
    """
    return bool((m.abs() <= MOST_ADAM * (v.sqrt() + ADAM_EPS)).all())


def load_moments(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Continue from the moments in a state, with the optimiser's own settings."""
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": copy_of(state["state"]), "param_groups": groups})


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


# ---- the file of a fit ---------------------------------------------------------------------------


SILENT = {"checkpoint_dir", "verbose", "device", "random_state"}  # parameters that change no model
FIXED = (bool, int, float, complex, str, bytes, tuple, FunctionType)
NUMERIC = "biufc"  # kinds of arrays whose bytes are their values
OF_TORCH = vars(torch.nn.Module()).keys() - {"_buffers"}  # state_dict may leave out some buffers


def checkpoint_of(estimator: Any, data: Data, seed: int, start: Any, *more: Any) -> Checkpoint:
    """Return the checkpoint of exactly this fit: parameters, data, seed and start are the same."""
    names = estimator._parameter_constraints  # the constructor of a subclass may lack some
    params = {k: getattr(estimator, k) for k in names} | estimator.get_params()
    params = {k: plain(v) for k, v in sorted(params.items()) if k not in SILENT}
    modules = [p for p in params.values() if isinstance(p, torch.nn.Module)]
    of_modules = [part for m in modules for part in settings_of(m)]  # which no repr may show
    arrays = {k: np.asarray(readable(v, k)) for k, v in params.items() if hasattr(v, "__array__")}
    params = {k: v for k, v in params.items() if k not in arrays}  # whose repr is abbreviated
    if start is not None:
        modules.append(start.posterior)
    tensors = [t.cpu().numpy() for m in modules for t in m.state_dict().values()]
    named_seed = None if estimator.random_state is None else seed
    versions = sys.modules["skgpstoch"].__version__, torch.__version__
    columns = [(f.name, getattr(data, f.name)) for f in fields(data)]
    given = [part for n, c in columns if c is not None for part in (n, c.shape, str(c.dtype), c)]
    arrays_of = [*arrays, *arrays.values(), *tensors]
    own = *of_modules, named_seed, *given
    identity = fingerprint(versions, params, *own, *arrays_of, *more)
    folder = Path(os.path.expanduser(estimator.checkpoint_dir))
    return Checkpoint(folder, f"{type(estimator).__name__}-{identity}")


def settings_of(module: torch.nn.Module) -> Iterator[Any]:
    """Yield what a module, and those inside, have besides parameters, the same in any process."""
    for inside, each in module.named_modules():
        for name, value in sorted(vars(each).items()):
            if name not in OF_TORCH:
                yield from (inside, name, *parts_of(value))


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the arrays, numbers and words that a value is made of, which tell it from others."""
    left, seen = [value], {}  # `seen` keeps what is made here alive, so that no id comes twice
    while left:
        value = plain(left.pop())
        yield type(value).__qualname__
        if isinstance(value, Tensor):
            with contextlib.suppress(TypeError, RuntimeError):  # sparse ones, or without numbers
                value = readable(value.resolve_conj().resolve_neg(), "tensor")
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMERIC:
            yield from (value.shape, str(value.dtype), value)
        elif isinstance(value, bool | int | float | complex | str | bytes):
            yield value
        elif isinstance(value, set | frozenset):
            yield sorted(fingerprint(*parts_of(each)) for each in value)
        elif id(value) not in seen:
            seen[id(value)] = value
            inside = inside_of(value)
            yield len(inside)
            left.extend(reversed(inside))


def inside_of(value: Any) -> list[Any]:
    """Return what is inside a value: members, what a function does and knows, or as pickled."""
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, np.ndarray):
        return [value.shape, *value.ravel()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, type):
        return [value.__qualname__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        cells = [c.cell_contents for c in value.__closure__ or () if c != CellType()]
        known = [each for each in cells if isinstance(each, FIXED)]  # a fit may fill the others
        return [value.__code__, value.__defaults__, *known]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, torch.nn.Module):
        return list(value.state_dict().values())
    try:
        found = value.__reduce_ex__(2)
    except Exception:  # of locks and modules, for example, only the type is known
        return []
    return [found] if isinstance(found, str) else list(found[:3])


def seed_of(estimator: Any, checkpoint: Checkpoint, seed: int) -> int:
    """Return the seed of a fit: without a random_state, the same one whenever it resumes."""
    return int(checkpoint.identity[-8:], 16) if estimator.random_state is None else seed


def sampling_seed(estimator: Any) -> int:
    """Return the seed of a sample of rows; the sample identifies a fit that resumes.

    So without a random_state it is always the same, and :func:`seed_of` tells fits apart.
    """
    resumes = estimator.checkpoint_dir is not None and estimator.random_state is None
    return resolve_seed(0 if resumes else estimator.random_state)


def described(value: Any, name: str) -> str:
    """Return what is the same in another process: a repr, or an array's shape and digest."""
    value = plain(value)
    if not hasattr(value, "__array__"):
        return without_addresses(repr(value))
    a = np.asarray(readable(value, name), dtype=np.float64)
    return f"<array of shape {a.shape}, digest {fingerprint(a)[:8]}>"
