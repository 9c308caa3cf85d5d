"""Ranks: processes that fit one model together, each to its own rows.

Everything that a fit learns from rows is a sum over rows. So each rank adds up its own rows, and
the :class:`Group` adds up the ranks' sums. Decisions are based on such sums, never on the rows of
one rank alone. Every rank calls the same methods of the group (collectives) in the same order,
whether it has rows or not. :data:`ALONE`, a single process, is a group too; its methods do nothing.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from .devices import HOST, is_host

PLAIN = (str, bool, int, float, type(None), np.generic)
"""Types that arrays of objects may hold to be gathered."""

Operation = Callable[..., "dist.Work"]


class WorkerLostError(RuntimeError):
    """Raised when another rank has ended, hangs or is unreachable, so that a fit cannot go on.

    Parameters
    ----------
    message : str
        What happened, and what to do.
    rank : int or None, default=None
        The rank that raises the error, not the one that is lost.
    step : int, default=0
        Number of that rank's exchanges with the others so far.

    Attributes
    ----------
    rank, step
        The parameters.
    """

    def __init__(self, message: str, rank: int | None = None, step: int = 0) -> None:
        super().__init__(message)
        self.rank, self.step = rank, step


# ---- groups --------------------------------------------------------------------------------------


class Group:
    """Ranks that call the same methods in the same order.

    A subclass for several ranks defines three operations on a flat tensor, `_combine`, `_spread`
    and `_collect`. All other methods use these; those of a single rank return their arguments.

    Attributes
    ----------
    rank : int
        This process's number, from 0.
    size : int
        The number of ranks.
    """

    rank: int
    size: int

    def _combine(self, flat: Tensor, operation: str) -> None:
        """Replace `flat` (n,) by its "sum" or "max" over ranks, in place."""
        raise NotImplementedError(f"{type(self).__name__} must define _combine")

    def _spread(self, flat: Tensor) -> None:
        """Replace `flat` (n,) by that of rank 0, in place."""
        raise NotImplementedError(f"{type(self).__name__} must define _spread")

    def _collect(self, flat: Tensor) -> list[Tensor]:
        """Return each rank's `flat` (n,), which has the same size on all ranks."""
        raise NotImplementedError(f"{type(self).__name__} must define _collect")

    def _place(self, tensor: Tensor) -> torch.device:
        """Return the device on which a tensor is exchanged."""
        return HOST

    def sum_(self, *tensors: Tensor) -> None:
        """Sum tensors over ranks, in place; for booleans, this is "any".

        This takes one collective for all floats (in float64, unless all are float32), and another
        one for integers and booleans.
        """
        self._reduce(tensors, "sum")

    def max_(self, *tensors: Tensor) -> None:
        """Take the maximum over ranks, in place, packed as in :meth:`sum_`; NaN is not allowed."""
        self._reduce(tensors, "max")

    def _reduce(self, tensors: Sequence[Tensor], operation: str) -> None:
        if self.size == 1:
            return
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        is_short = all(tensor.dtype == torch.float32 for tensor in floats)
        integers = [tensor for tensor in tensors if not tensor.is_floating_point()]
        packs = (floats, torch.float32 if is_short else torch.float64), (integers, torch.int64)
        for pack, dtype in packs:
            if pack:
                flat = packed(pack, dtype, self._place(pack[0]))
                self._combine(flat, operation)
                unpack_(pack, flat)

    def broadcast_(self, *tensors: Tensor) -> None:
        """Copy rank 0's tensors to all ranks, bit for bit, in place and by one collective."""
        if self.size == 1 or not tensors:
            return
        flat = packed([as_bytes(each) for each in tensors], torch.uint8, self._place(tensors[0]))
        self._spread(flat)
        pieces = flat.split([each.numel() * each.element_size() for each in tensors])
        with torch.no_grad():
            for each, piece in zip(tensors, pieces, strict=True):
                each.copy_(piece.clone().view(each.dtype).view(each.shape))

    def shares(self, tensor: Tensor) -> list[Tensor]:
        """Return each rank's tensor; numbers of rows may differ, and be 0."""
        if self.size == 1:
            return [tensor]
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(tensor)
        self.sum_(counts)
        n_rows = counts.tolist()
        padded = tensor.new_zeros(max(n_rows), *tensor.shape[1:])
        padded[: len(tensor)] = tensor.detach()
        if padded.numel() == 0:
            return [padded[:n] for n in n_rows]
        collected = self._collect(as_bytes(padded).to(self._place(padded)))
        every = [flat.to(tensor.device).view(tensor.dtype).view(padded.shape) for flat in collected]
        return [each[:n] for each, n in zip(every, n_rows, strict=True)]

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """Return all rows, in the order of ranks; shapes (n_rank, ·) may differ only in n_rank."""
        return tensor if self.size == 1 else torch.cat(self.shares(tensor))

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return all rows of an array (n_rank, ...), in the order of ranks: (n, ...).

        Dtypes are promoted to a common one; those of shares without rows are ignored.

        Raises
        ------
        TypeError
            On every rank, if a share has objects that are not strings, numbers or None.
        """
        if self.size == 1:
            return array
        objects = array.ravel().tolist() if array.dtype.hasobject else []
        others = sorted({type(x).__name__ for x in objects if not isinstance(x, PLAIN)})
        every = self.every(others or array)  # a list in place of the share
        for rank, share in enumerate(every):
            if isinstance(share, list):
                raise TypeError(
                    f"rank {rank}: objects must be strings, numbers or None to be sent to other "
                    f"ranks, got {', '.join(share)}."
                )
        shares = [share for share in every if len(share)] or every[:1]
        return np.concatenate(shares)

    def every(self, own: Any) -> list[Any]:
        """Return each rank's object; pickle is safe, as all ranks run the same program."""
        if self.size == 1:
            return [own]
        sent = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        return [pickle.loads(share.numpy().tobytes()) for share in self.shares(sent)]

    def average_(self, *tensors: Tensor) -> None:
        """Take the mean over ranks, in place, packed as in :meth:`sum_`."""
        self.sum_(*tensors)
        for tensor in tensors:
            tensor.div_(self.size)

    def first(self, value: float) -> float:
        """Return rank 0's number."""
        if self.size == 1:
            return value
        number = torch.tensor(value, dtype=torch.float64)
        self.broadcast_(number)
        return float(number)

    def first_bytes(self, content: bytes) -> bytes:
        """Return rank 0's bytes."""
        if self.size == 1:
            return content
        size = torch.tensor(len(content))
        self.broadcast_(size)
        if not size:
            return b""  # no message may be empty
        written = bytearray(content) if self.rank == 0 else bytearray(int(size))
        self._spread(torch.frombuffer(written, dtype=torch.uint8))  # which shares its memory
        return content if self.rank == 0 else bytes(written)

    def flag(self, value: bool) -> bool:
        """Tell whether `value` is true on any rank."""
        if self.size == 1:
            return bool(value)
        flag = torch.tensor(bool(value))
        self.max_(flag)
        return bool(flag)

    def agree(self, error: Exception | None) -> None:
        """Raise on every rank if there is an error on any.

        Raises
        ------
        Exception
            This rank's own error, if it has one. Otherwise a ValueError, TypeError or RuntimeError,
            like that of the first rank with an error, which the message names.
        """
        if isinstance(error, WorkerLostError):  # the others cannot be reached
            raise error
        if not self.flag(error is not None):
            return
        kind = next((k for k in (ValueError, TypeError) if isinstance(error, k)), RuntimeError)
        every = self.every(None if error is None else (kind, str(error)))
        if error is not None:
            raise error
        rank, (kind, message) = next((k, told) for k, told in enumerate(every) if told)
        raise kind(f"rank {rank}: {message}")

    def check_same(self, name: str, value: str) -> None:
        """Check that a string, such as a digest, is the same on all ranks.

        Raises
        ------
        ValueError
            On every rank, if it is not. The message names the values and their ranks.
        """
        values = self.every(value)
        if len(set(values)) > 1:
            places = {each: [k for k, v in enumerate(values) if v == each] for each in values}
            said = "; ".join(f"{each} on ranks {ranks}" for each, ranks in places.items())
            raise ValueError(
                f"{name} must be the same on all ranks, got {said}. Fit estimators with equal "
                "parameters to shares of the same table."
            )


class Alone(Group):
    """A single process, which has all rows."""

    rank, size = 0, 1

    def __reduce__(self) -> str:
        return "ALONE"


ALONE = Alone()
"""The only instance of Alone; copies and pickles give the same object."""


class One(Alone):
    """A group of one rank, whose fits follow the code of groups, to the same model."""

    def __reduce__(self) -> str:
        return "ONE"


ONE = One()
"""The only instance of One, like ALONE."""


class TorchGroup(Group):
    """A process group of torch.distributed, whose failures raise :class:`WorkerLostError`.

    Parameters
    ----------
    on_host : ProcessGroup
        Process group for tensors on the CPU (gloo).
    timeout : float
        Seconds that an operation may take; the timeout of `on_host` must be the same.
    on_device : ProcessGroup or None, default=None
        Process group for tensors on accelerators (nccl); None sends these through the host.
    """

    def __init__(
        self,
        on_host: dist.ProcessGroup,
        timeout: float,
        on_device: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size = on_host.rank(), on_host.size()
        self.timeout, self.n_collectives = timeout, 0
        self._on_host: dist.ProcessGroup | None = on_host
        self._on_device = on_device
        self._lost: WorkerLostError | None = None

    def leave(self) -> None:
        """Leave the group, even if objects still refer to it; ranks that wait will notice."""
        self._on_host = self._on_device = None
        self._lost = WorkerLostError(
            "This process group cannot be used any more, because its `with` block has ended.",
            self.rank,
        )

    def __reduce__(self) -> str:
        raise TypeError("A group of ranks belongs to its process and cannot be copied or pickled.")

    def _place(self, tensor: Tensor) -> torch.device:
        return HOST if self._on_device is None else tensor.device

    def _combine(self, flat: Tensor, operation: str) -> None:
        kind = dist.ReduceOp.SUM if operation == "sum" else dist.ReduceOp.MAX
        self._exchange(dist.all_reduce, flat, flat, op=kind)

    def _spread(self, flat: Tensor) -> None:
        self._exchange(dist.broadcast, flat, flat, src=0)  # a global rank: groups have all ranks

    def _collect(self, flat: Tensor) -> list[Tensor]:
        every = [torch.empty_like(flat) for _ in range(self.size)]
        self._exchange(dist.all_gather, flat, every, flat)
        return every

    def _exchange(self, operation: Operation, flat: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._lost is not None:  # the remaining ranks might wait once more
            raise self._lost
        is_on_host = is_host(flat.device) or self._on_device is None
        group = self._on_host if is_on_host else self._on_device
        self.n_collectives += 1
        start = time.monotonic()
        try:
            work = operation(*args, **kwargs, group=group, async_op=True)
            if is_on_host:
                work.wait()
            else:
                wait_for(work, start + self.timeout)
        except RuntimeError as error:
            self._lost = self._named(error, time.monotonic() - start)
            raise self._lost from error

    def _named(self, error: RuntimeError, seconds: float) -> WorkerLostError:
        return WorkerLostError(
            f"Rank {self.rank} of {self.size} lost another rank at exchange "
            f"{self.n_collectives} ({_PHASE.get()}), after it had waited {seconds:.1f} s of "
            f"{self.timeout:g} s: {reason_of(error)}. A process has ended, hangs, or is too "
            "slow; look at what the other ranks printed. Start all ranks again (fits with "
            "`checkpoint_dir` resume), or raise `timeout` if they were only slow.",
            rank=self.rank,
            step=self.n_collectives,
        )


def reason_of(error: Exception) -> str:
    """Return the first sentence of torch's message, without the position in its source."""
    first = re.sub(r"^\[[^]]*\] *", "", str(error)).split("\n")[0].split(". ")[0]
    return first.rstrip(".") or type(error).__name__


def wait_for(work: dist.Work, end: float) -> None:
    """Wait for an operation on accelerators, with a timeout; NCCL's own would end the process."""
    pause = 1e-5
    while not work.is_completed():
        if time.monotonic() > end:
            raise TimeoutOfDeviceError("the operation did not complete")
        time.sleep(pause)
        pause = min(2.0 * pause, 1e-3)
    work.wait()


class TimeoutOfDeviceError(RuntimeError):
    """Raised when an operation between accelerators takes too long."""


# ---- the present one -----------------------------------------------------------------------------

_CURRENT: ContextVar[Group] = ContextVar("group", default=ALONE)
_PHASE: ContextVar[str] = ContextVar("phase", default="outside of fits")


def current() -> Group:
    """Return the present group of fits; in new threads it is ALONE."""
    return _CURRENT.get()


@contextlib.contextmanager
def using(group: Group) -> Iterator[Group]:
    """Make `group` the group of the fits in a block."""
    token = _CURRENT.set(group)
    try:
        yield group
    finally:
        _CURRENT.reset(token)


@contextlib.contextmanager
def doing(phase: str) -> Iterator[None]:
    """Name what a block does, for the message if a rank is lost in it."""
    token = _PHASE.set(phase)
    try:
        yield
    finally:
        _PHASE.reset(token)


@contextlib.contextmanager
def agreed(group: Group) -> Iterator[None]:
    """Raise an error of the block on every rank; the block must not exchange anything."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    group.agree(error)


def of_first(group: Group, make: Callable[[], Any], name: str) -> Any:
    """Return what rank 0 makes; all ranks make it, and raise an error together."""
    content = b""
    with agreed(group):
        made = make()
        if group.size > 1 and group.rank == 0:
            try:
                content = pickle.dumps(made)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"{name} must be picklable, because all processes of a group use the one that "
                    f"rank 0 fits: {error}. Fit it beforehand, or take functions from a module."
                ) from error
    if group.size == 1:
        return made
    return pickle.loads(group.first_bytes(content))  # from a process of the same program


class ClockOfGroup:
    """Seconds since it was made, on the rank where most have passed, so that ranks agree."""

    def __init__(self, group: Group) -> None:
        self.group, self.began = group, time.monotonic()

    def __call__(self) -> float:
        """Return the seconds; every rank has to call it."""
        passed = torch.tensor([time.monotonic() - self.began], dtype=torch.float64)
        self.group.max_(passed)
        return float(passed)


# ---- gradients -----------------------------------------------------------------------------------


def average_gradients(group: Group, parameters: Iterable[nn.Parameter], *values: Tensor) -> None:
    """Average gradients over ranks, by one collective; None counts as 0 if another rank has one.

    Average further values, such as the loss, as well, in place.
    """
    if group.size == 1:
        return
    of_group = list(parameters)
    present = torch.tensor([each.grad is not None for each in of_group], dtype=torch.float32)
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in of_group]
    group.sum_(*gradients, present, *values)
    for value in values:
        value.div_(group.size)
    for parameter, gradient, n_present in zip(of_group, gradients, present.tolist(), strict=True):
        parameter.grad = gradient.div_(group.size) if n_present else None


# ---- bytes ---------------------------------------------------------------------------------------


def packed(tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the elements of all tensors in one tensor, (n,)."""
    flat = [tensor.detach().reshape(-1).to(device, dtype) for tensor in tensors]
    return torch.cat(flat)


def unpack_(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Write the elements of one tensor back into all tensors."""
    with torch.no_grad():
        pieces = flat.split([tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, (n,)."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
