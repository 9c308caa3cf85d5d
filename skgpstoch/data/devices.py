"""Everything that differs between the host (the CPU) and an accelerator.

All other modules leave tensors where they are, and do not ask for the kind of device. An
accelerator works asynchronously until the host reads a tensor. Such a wait, or a copy from the
host, costs more than the arithmetic of a step. Use :func:`either` for choices that depend on data.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .messages import warn

ACCELERATORS = ("cuda",)
"""Kinds of accelerators that estimators accept; others lack float64."""

NO_MEMORY = ("_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "can't allocate memory")
"""Messages of CUDA's libraries and the host's allocator, which raise no torch.OutOfMemoryError."""

HOST = torch.device("cpu")

MOST_JOBS = 1024
"""Threads or processes that a user may ask for; joblib would start any number."""

BLOCK_ROWS = 4096
"""Number of rows that are summed, or predicted, at a time."""

HOST_ELEMENTS = 1 << 19
"""Numbers in a block that fits into the cache of a core."""

MOST_ELEMENTS, LEAST_ELEMENTS = 1 << 25, 1 << 12
"""Numbers in a block that keep an accelerator busy; smallest block that is worth a call."""

QUICKER = 1 << 22
"""Operations that an accelerator does in less time than a synchronisation takes."""

PARTS = 32
"""A block takes at most this fraction (one in 32) of the free memory."""


class MissingDeviceError(ValueError):
    """Raised for a valid device that this machine does not have."""


# ---- what the user asks for ----------------------------------------------------------------------


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the torch device that a `device` parameter names; None is the CPU.

    Raises
    ------
    ValueError
        If it is not "cpu", "cuda", "cuda:N", "auto" or None, or is not on this machine.
    """
    expected = 'device must be None, "cpu", "cuda", "cuda:N" or "auto"'
    if device is None:
        return HOST
    if device == "auto":
        there = (kind for kind in ACCELERATORS if torch.get_device_module(kind).is_available())
        return torch.device(next(there, "cpu"))
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"{expected}, got {device!r}.") from None
    if is_host(resolved):
        return resolved
    if resolved.type not in ACCELERATORS:
        raise ValueError(f"{expected} (others may lack float64), got {device!r}.")
    n_devices = torch.get_device_module(resolved).device_count()
    if (resolved.index or 0) >= n_devices:
        raise MissingDeviceError(
            f"device={device!r} is not available: this machine has {n_devices} "
            f'{resolved.type.upper()} devices. Use device="auto" to take a GPU only if '
            "there is one."
        )
    return resolved


def prediction_device(device: str | torch.device | None) -> torch.device:
    """Return the device to predict on; without a GPU, models fitted on one predict on the CPU.

    Raises
    ------
    ValueError
        If `device` is not the name of a device.
    """
    try:
        return resolve_device(device)
    except MissingDeviceError:
        warn(f"device={device!r} is not on this machine; predicting on the CPU.")
        return HOST


def accelerator_of_process(number: int) -> tuple[torch.device, str] | None:
    """Return the accelerator for process `number` of this machine, and its name; or None.

    If torch reports a UUID, the name identifies the accelerator in all processes of the machine,
    even if each process sees different ones.
    """
    for kind in ACCELERATORS:
        module = torch.get_device_module(kind)
        if module.is_available():
            index = number % module.device_count()
            name = getattr(module.get_device_properties(index), "uuid", index)
            return torch.device(kind, index), str(name)
    return None


# ---- what is different ---------------------------------------------------------------------------


def is_host(device: torch.device) -> bool:
    """Whether this is the CPU, where reading a tensor needs no wait."""
    return device.type == HOST.type


Pair = tuple[Tensor | None, Tensor | None]


def either(
    condition: Tensor, then: Callable[[], Pair], otherwise: Callable[[], Pair], size: int
) -> Pair:
    """Return one of two pairs of tensors, by a condition of one element.

    An accelerator computes both and chooses, so that the host need not wait for the condition,
    unless one takes so many operations, `size`, that waiting is quicker. A tensor that either pair
    lacks is None.
    """
    if is_host(condition.device) or size > QUICKER:
        return then() if bool(condition) else otherwise()

    def chosen(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.where(condition, a, b)

    (first, second), (other_first, other_second) = then(), otherwise()
    return chosen(first, other_first), chosen(second, other_second)


def constants(make: Callable[..., Any], *arguments: Any, like: Tensor) -> tuple[Tensor, ...]:
    """Return the arrays that a function makes, with the dtype and device of a tensor.

    They are made and copied only once, so they must not be changed.
    """
    return _placed(make, arguments, like.dtype, like.device)


@functools.lru_cache(maxsize=256)
def _placed(
    make: Callable[..., Any], arguments: tuple, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):  # later callers may need gradients
        made = make(*arguments)
        arrays = made if isinstance(made, tuple) else (made,)
        return tuple(torch.as_tensor(array, dtype=dtype, device=device) for array in arrays)


def all_hold(conditions: Sequence[Tensor]) -> bool:
    """Whether all conditions, each of one element, hold; wait for an accelerator only once."""
    kinds: dict[torch.device, list[Tensor]] = {}
    for condition in conditions:
        kinds.setdefault(condition.device, []).append(condition)
    return all(bool(torch.stack(found).all()) for found in kinds.values())


# ---- memory --------------------------------------------------------------------------------------


def host_memory() -> float:
    """Return the bytes of the machine's memory; infinite where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def block_elements(device: torch.device) -> int:
    """Return how many numbers a block has, if a matrix is computed in blocks.

    On an accelerator it is a power of two, 2²⁵ if gigabytes are free. If memory is scarce, other
    programs' use of it may halve blocks, and sums are then rounded differently.
    """
    if is_host(device):
        return HOST_ELEMENTS
    module = torch.get_device_module(device)
    free = module.mem_get_info(device)[0]
    free += module.memory_reserved(device) - module.memory_allocated(device)  # torch's cache
    affordable = 1 << max(0, int(free // (8 * PARTS)).bit_length() - 1)
    return max(LEAST_ELEMENTS, min(MOST_ELEMENTS, affordable))


def block_rows(device: torch.device, width: int) -> int:
    """Return the number of rows in a block, given numbers per row; fewer if memory is scarce."""
    if is_host(device):
        return BLOCK_ROWS
    return max(1, min(BLOCK_ROWS, block_elements(device) // max(1, width)))


def map_blocks(fn: Callable[[slice], None], n_rows: int, size: int = BLOCK_ROWS) -> None:
    """Call fn on consecutive blocks of rows; halve the blocks if a device's memory runs out.

    Raises
    ------
    MemoryError
        If the memory does not suffice for a single row.
    """
    start = 0
    while start < n_rows:
        block = slice(start, min(start + size, n_rows))
        try:
            fn(block)
            start = block.stop
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            size = (block.stop - block.start) // 2
            if not size:
                raise MemoryError(
                    "The device does not have enough free memory for a single row. "
                    "Free some memory, or set device='cpu'."
                ) from error


def ran_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch or CUDA's libraries says that memory ran out.

    If so, clear the error's frames, because whoever keeps the error, as notebooks do, would keep
    the memory full.
    """
    said = isinstance(error, RuntimeError) and any(sign in str(error) for sign in NO_MEMORY)
    found = said or isinstance(error, torch.OutOfMemoryError | MemoryError)
    if found:
        traceback.clear_frames(error.__traceback__)
    return found


# ---- global generators ---------------------------------------------------------------------------


def fork_rng(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context that restores the host's and this device's global generators afterwards."""
    if is_host(device):
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def seed_rng(device: torch.device, seed: int) -> None:
    """Seed like ``torch.manual_seed``, but only the host and this device (states are saved)."""
    torch.default_generator.manual_seed(seed)
    if not is_host(device):
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)
