"""Devices: the host or an accelerator, and everything that differs between them.

Everywhere else tensors stay where they are, and nobody asks what kind of device that is. An
accelerator works while the host goes on, until the host asks what a tensor holds: such waits, and
copies from the host, cost more than the arithmetic of a step. :func:`either` is for choices that
depend on data.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .messages import warn

ACCELERATORS = ("cuda",)
"""Kinds that estimators take; others lack float64."""

NO_MEMORY = ("_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "can't allocate memory")
"""What CUDA's libraries and the host's allocator say, which raise no torch.OutOfMemoryError."""

HOST = torch.device("cpu")

BLOCK_ROWS = 4096
"""Rows that are summed, or predicted, at a time."""

HOST_ELEMENTS = 1 << 19
"""Numbers of a block that stay in the cache of a core."""

MOST_ELEMENTS, LEAST_ELEMENTS = 1 << 25, 1 << 12
"""Numbers of a block that keep an accelerator busy, and that are not worth a call of their own."""

QUICKER = 1 << 22
"""Operations that an accelerator does in less time than it takes to ask it."""

PARTS = 32
"""A block has at most one part in so many of the memory that is free."""


class MissingDeviceError(ValueError):
    """A device that could be, but is not on this machine."""


# ---- what the user asks for ----------------------------------------------------------------------


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The torch device that a `device` parameter names; None is the CPU.

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
    """Where to predict: what was fitted on a GPU needs none.

    Raises
    ------
    ValueError
        If `device` is not the name of any.
    """
    try:
        return resolve_device(device)
    except MissingDeviceError:
        warn(f"device={device!r} is not on this machine; predicting on the CPU.")
        return HOST


def accelerator_of_process(number: int) -> tuple[torch.device, str] | None:
    """The accelerator of the process of this number on its machine, and a name of it; or None.

    The name is the same in all processes of a machine, where torch tells it, also if each is shown
    another of the accelerators.
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
    """Whether this is the CPU, which knows at once what a tensor holds."""
    return device.type == HOST.type


Pair = tuple[Tensor | None, Tensor | None]


def either(
    condition: Tensor, then: Callable[[], Pair], otherwise: Callable[[], Pair], size: int
) -> Pair:
    """One of two pairs of tensors, by a condition of one element.

    An accelerator computes both and chooses, so that it need not tell the host which it is, unless
    one takes so many operations, `size`, that to wait is quicker. What either does not make is
    None.
    """
    if is_host(condition.device) or size > QUICKER:
        return then() if bool(condition) else otherwise()

    def chosen(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.where(condition, a, b)

    (first, second), (other_first, other_second) = then(), otherwise()
    return chosen(first, other_first), chosen(second, other_second)


def constants(make: Callable[..., Any], *arguments: Any, like: Tensor) -> tuple[Tensor, ...]:
    """Return the arrays that a function makes, one or several, of the type and device of a tensor.

    They are made and copied once, and are not to be changed.
    """
    return _placed(make, arguments, like.dtype, like.device)


@functools.lru_cache(maxsize=256)
def _placed(
    make: Callable[..., Any], arguments: tuple, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    with torch.inference_mode(False):  # they are for all, whoever asks first
        made = make(*arguments)
        arrays = made if isinstance(made, tuple) else (made,)
        return tuple(torch.as_tensor(array, dtype=dtype, device=device) for array in arrays)


def all_hold(conditions: Sequence[Tensor]) -> bool:
    """Whether all conditions hold, each of one element; an accelerator is asked once."""
    kinds: dict[torch.device, list[Tensor]] = {}
    for condition in conditions:
        kinds.setdefault(condition.device, []).append(condition)
    return all(bool(torch.stack(found).all()) for found in kinds.values())


# ---- memory --------------------------------------------------------------------------------------


def block_elements(device: torch.device) -> int:
    """Return how many numbers a block of a matrix has that is made in parts.

    On an accelerator it is a power of two, 2²⁵ where gigabytes are free. Where memory is scarce,
    what others take of it may halve blocks, and then sums round otherwise.
    """
    if is_host(device):
        return HOST_ELEMENTS
    module = torch.get_device_module(device)
    free = module.mem_get_info(device)[0]
    free += module.memory_reserved(device) - module.memory_allocated(device)  # torch's own
    affordable = 1 << max(0, int(free // (8 * PARTS)).bit_length() - 1)
    return max(LEAST_ELEMENTS, min(MOST_ELEMENTS, affordable))


def block_rows(device: torch.device, width: int) -> int:
    """Return how many rows of so many numbers are a block: fewer where memory is scarce."""
    if is_host(device):
        return BLOCK_ROWS
    return max(1, min(BLOCK_ROWS, block_elements(device) // max(1, width)))


def map_blocks(fn: Callable[[slice], None], n_rows: int, size: int = BLOCK_ROWS) -> None:
    """Call fn on consecutive blocks of rows, of half the size where a device's memory runs out.

    Raises
    ------
    MemoryError
        If there is none for a single row.
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
    """Tell whether a device's memory ran out, as torch or CUDA's libraries say it.

    If so, the error's frames let go of what they hold. Who keeps the error, as notebooks do, would
    keep the memory full.
    """
    said = isinstance(error, RuntimeError) and any(sign in str(error) for sign in NO_MEMORY)
    found = said or isinstance(error, torch.OutOfMemoryError | MemoryError)
    if found:
        traceback.clear_frames(error.__traceback__)
    return found


# ---- global generators ---------------------------------------------------------------------------


def fork_rng(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Global generators, of the host and of this device, as they were when the context ends."""
    if is_host(device):
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def seed_rng(device: torch.device, seed: int) -> None:
    """As ``torch.manual_seed``, but for devices whose state was not saved."""
    torch.default_generator.manual_seed(seed)
    if not is_host(device):
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)
