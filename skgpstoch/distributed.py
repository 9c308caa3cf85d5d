"""Fit one model with several processes, on one machine or many, each with its own rows.

Any launcher may start the processes (torchrun, srun, Ray Train, Spark's TorchDistributor). All of
them run the same program and call `fit` inside :func:`process_group`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from numbers import Integral, Real
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

from .data.devices import accelerator_of_process
from .data.groups import ONE, Group, TorchGroup, WorkerLostError, doing, reason_of, using

__all__ = ["WorkerLostError", "process_group"]

WorkerLostError.__module__ = __name__  # pickles name the public path

BACKENDS = ("auto", "gloo", "nccl")
SCHEMES = ("env://", "file://", "tcp://")
VARIABLES = {"MASTER_ADDR": None, "MASTER_PORT": None, "RANK": "rank", "WORLD_SIZE": "size"}
"""Environment variables that launchers set for env://, and the parameters that replace them."""

TIMES_ENTERED = itertools.count()
"""Numbers for new groups, because a store such as torchrun's keeps earlier groups' addresses."""

CONNECTING = 5
"""Multiple of its timeout that gloo waits for a connection to a rank that has ended."""

COMES_AGAIN = 0.05
"""Seconds after which a rank comes again, if the store has gone away."""

INSIDE: ContextVar[bool] = ContextVar("inside", default=False)


@contextlib.contextmanager
def process_group(
    backend: str = "auto",
    init: str | dist.Store | None = None,
    rank: int | None = None,
    size: int | None = None,
    timeout: float = 120.0,
) -> Iterator[Group]:
    """Fit together with the other processes that enter this block.

    Each process, called a rank, has a share of the rows, possibly none, and gets the same model.
    Outside of such a block fits exchange nothing, even if the program uses torch.distributed for
    something else.

    Parameters
    ----------
    backend : {"auto", "gloo", "nccl"}, default="auto"
        How tensors are exchanged. "gloo": through the memory of the host. "nccl": tensors on GPUs
        directly, others by gloo; each rank needs a GPU of its own, which is the current device in
        the block. "auto": "nccl" if each rank has one, otherwise "gloo".
    init : str, Store or None, default=None
        How the ranks find each other. "env://": by the variables that launchers set.
        "file:///path": by a file that does not exist yet and that all can write; later groups of
        the same processes add a number to its name. "tcp://host:port": by a free port of rank 0's
        machine. A store of torch.distributed that all ranks share and no earlier group used; with
        it one process can be a group too, and resume a fit that several began. None:
        torch.distributed as it is if it is initialised, otherwise "env://".
    rank : int or None, default=None
        The number of this process, from 0. None: as set by the launcher.
    size : int or None, default=None
        The number of ranks. None: as set by the launcher.
    timeout : float, default=120.0
        Seconds that a rank waits for the others, at the start and at each exchange.

    Yields
    ------
    group : object
        Has `rank` and `size`, which choose a share of the rows:
        ``np.array_split(X, group.size)[group.rank]``.

    Raises
    ------
    ValueError
        If the address of rank 0, `rank` or `size` is unknown, or if a rank has no GPU of its own
        although `backend` is "nccl".
    RuntimeError
        If the block is inside another process group's block.
    WorkerLostError
        If a rank does not start, ends early, or takes longer than `timeout`. The error may also be
        raised by a fit inside the block.

    Notes
    -----
    All ranks must do the same in the block: fit an estimator with the same parameters. The block
    belongs to the thread that enters it; threads and joblib processes that are started inside it
    fit on their own. The group is destroyed at the end of the block, also after errors; a group
    that existed before is left unchanged.

    The model is bitwise the same on all ranks, and, up to rounding, the same for any split of the
    rows between ranks (deep processes draw other numbers). For up to 10,000 rows, and for
    estimators whose training is not a sum over rows (L-BFGS, drop-ins, stacks), rank 0 gathers all
    rows and fits while the others wait. Only rank 0 warns, prints, calls callbacks and writes
    checkpoints, and its `random_state` is used.
    Transformers in a pipeline before the estimator do not use the group: fit them beforehand, to
    the same rows on all ranks. Searches and cross-validation raise an error, because scikit-learn
    would decide from the rows of each rank alone; `partial_fit` and `condition_on` raise one, too.

    Ctrl-C (SIGINT) on any rank stops the training of all ranks at the same step. The best model so
    far is kept in the cases that :func:`skgpstoch.on_interrupt` describes. A second Ctrl-C raises
    KeyboardInterrupt on that rank, which the others then lose. After an error on one rank, leave
    the block there, so that the others notice it.

    Examples
    --------
    Two processes of ``torchrun --standalone --nproc-per-node 2 script.py`` need no arguments; here
    there is only one process:

    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> from skgpstoch.distributed import process_group
    >>> X = np.linspace(0.0, 6.0, 100)[:, None]
    >>> with process_group(init="tcp://localhost:29500", rank=0, size=1) as group:
    ...     mine = np.array_split(X, group.size)[group.rank]
    ...     model = SVGPRegressor(n_inducing=10).fit(mine, np.sin(mine[:, 0]))
    """
    check_parameters(backend, init, rank, size, timeout)
    if INSIDE.get():
        raise RuntimeError(
            "process_group is already in use. A block inside another one would wait "
            "forever for other ranks; remove the inner one."
        )
    with contextlib.ExitStack() as undo:
        undo.callback(INSIDE.reset, INSIDE.set(True))
        with doing("meeting the other ranks"):
            if dist.is_available() and dist.is_initialized():
                refuse_said(init, rank, size)
                group = join(backend, timeout, undo)
            else:
                group = start(backend, init, rank, size, timeout, undo)
        undo.enter_context(using(group))
        yield group


def start(
    backend: str,
    init: str | dist.Store | None,
    rank: int | None,
    size: int | None,
    timeout: float,
    undo: contextlib.ExitStack,
) -> Group:
    """Initialise torch.distributed, until the end of the block."""
    init = "env://" if init is None else init
    if size != 1:
        check_said(init, rank, size)
    rank = int(os.environ.get("RANK", 0)) if rank is None else int(rank)
    size = int(os.environ["WORLD_SIZE"]) if size is None else int(size)
    if size == 1:
        return ONE
    if not dist.is_available():
        raise RuntimeError(
            "This build of torch has no torch.distributed, which process_group needs. "
            "Install another build of torch."
        )
    limit = timedelta(seconds=timeout)
    number = next(TIMES_ENTERED)
    if isinstance(init, str):
        init = place_of_entry(init, number)
        undo.callback(remove_place, init)
    undo.callback(setattr, sys, "excepthook", sys.excepthook)  # torch replaces it

    def arrive(left: timedelta) -> tuple[dist.Store, timedelta]:
        if isinstance(init, dist.Store):
            store = init
        else:
            store, _, _ = next(dist.rendezvous(init, rank, size, timeout=left))
            store.set_timeout(limit)
            store = dist.PrefixStore(name_of_entry(number), store)
        return store, when_all_are_here(store, rank, size, left)

    def initialise() -> None:
        store, soon = arrived(arrive, limit, rank > 0 and isinstance(init, str))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=soon)
        _set_pg_timeout(limit, dist.group.WORLD)

    undo.callback(leave)
    met(initialise, f"rank {rank} of {size}, at {init}", timeout)
    world = dist.group.WORLD
    assert world is not None
    return with_devices(backend, world, timeout, undo)


def arrived(arrive: Callable[[timedelta], Any], limit: timedelta, again: bool) -> Any:
    """Return what `arrive` returns in the time that is left; if `again`, come again after errors.

    The store may be that of an earlier group, which rank 0, in whose process it is, has not quite
    left.
    """
    end = time.monotonic() + limit.total_seconds()
    while True:
        try:
            return arrive(timedelta(seconds=end - time.monotonic()))
        except dist.DistNetworkError:
            if not again or time.monotonic() + 2.0 * COMES_AGAIN >= end:
                raise
            time.sleep(COMES_AGAIN)


def refuse_said(init: str | dist.Store | None, rank: int | None, size: int | None) -> None:
    """Raise a ValueError if `init`, `rank` or `size` is given for an initialised group."""
    if (init, rank, size) != (None, None, None):
        raise ValueError(
            "torch.distributed is initialised already, so init, rank and size must be "
            f"None, got init={init!r}, rank={rank!r}, size={size!r}."
        )


def join(backend: str, timeout: float, undo: contextlib.ExitStack) -> Group:
    """Make a group of all ranks of torch.distributed, which is initialised, with our timeout."""
    if dist.get_world_size() == 1:
        return ONE
    limit, n_ranks = timedelta(seconds=timeout), dist.get_world_size()
    store = dist.PrefixStore(name_of_entry(next(TIMES_ENTERED)), _get_default_store())

    def make() -> dist.ProcessGroup:
        soon = when_all_are_here(store, dist.get_rank(), n_ranks, limit)
        return dist.new_group(backend="gloo", timeout=soon)

    group = met(make, f"rank {dist.get_rank()} of {n_ranks}", timeout)
    undo.callback(dist.destroy_process_group, group)
    _set_pg_timeout(limit, group)
    return with_devices(backend, group, timeout, undo)


def name_of_entry(number: int) -> str:
    """Return a name that no earlier group had, in these processes or in those they replace."""
    n_restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"skgpstoch/{n_restarts}/{number}"


def place_of_entry(init: str, number: int) -> str:
    """Return where the ranks meet: at a file of its own for each group of these processes.

    The last rank that leaves a group removes its file, which another may have opened for the next.
    """
    parts = urlsplit(init)
    is_later_file = parts.scheme == "file" and number > 0
    return parts._replace(path=f"{parts.path}.{number}").geturl() if is_later_file else init


def remove_place(init: str) -> None:
    """Remove the file at which ranks met, which torch sometimes leaves: the next run would fail."""
    if init.startswith("file://"):
        with contextlib.suppress(OSError):
            os.remove(urlsplit(init).path)


def leave() -> None:
    """Destroy torch.distributed's group, if it is initialised."""
    if dist.is_initialized():
        dist.destroy_process_group()


def when_all_are_here(store: dist.Store, rank: int, size: int, limit: timedelta) -> timedelta:
    """Wait for all ranks; return the timeout for gloo that keeps its connecting within `limit`."""
    store.set(f"here/{rank}", "yes")
    store.wait([f"here/{k}" for k in range(size)], limit)
    return limit / CONNECTING + timedelta(seconds=1.0)


def met(meet: Callable[[], Any], who: str, timeout: float) -> Any:
    """Return the result of `meet`; raise a WorkerLostError if not all ranks arrive."""
    try:
        return meet()
    except RuntimeError as error:
        raise WorkerLostError(
            f"The ranks did not meet within {timeout:g} s ({who}): {reason_of(error)}. "
            "Start all of them with the same `size` and `init`. If `init` is a file, "
            "remove the file of an earlier run first; if it is a port, choose a free "
            "one."
        ) from error


def with_devices(
    backend: str, on_host: dist.ProcessGroup, timeout: float, undo: contextlib.ExitStack
) -> Group:
    """Return the group; it exchanges tensors between GPUs if each rank has its own GPU."""
    group = TorchGroup(on_host, timeout)
    undo.callback(group.leave)
    machine = socket.gethostname()
    machines = group.gather(np.array([machine]))
    number = os.environ.get("LOCAL_RANK", np.sum(machines[: group.rank] == machine))
    mine = None if backend == "gloo" else accelerator_of_process(int(number))
    can = mine is not None and dist.is_nccl_available()
    names = group.gather(np.array([f"{machine} {mine[1]}" if can and mine is not None else ""]))
    if "" in names or len(set(names)) < group.size:
        if backend == "nccl":
            raise ValueError(
                'backend="nccl" needs one GPU for each rank, and torch with NCCL; got the '
                f"GPUs {names.tolist()} on ranks 0 to {group.size - 1} (an empty string "
                'means no GPU). Start fewer ranks on each machine, or use backend="auto".'
            )
        return group
    assert mine is not None
    # NCCL ends the process at its own timeout; ours comes first and raises an error.
    limit = timedelta(seconds=2.0 * timeout)
    on_device = dist.new_group(backend="nccl", timeout=limit)
    undo.callback(dist.destroy_process_group, on_device)
    undo.enter_context(torch.get_device_module(mine[0]).device(mine[0]))
    with_gpus = TorchGroup(on_host, timeout, on_device)
    undo.callback(with_gpus.leave)
    return with_gpus


# ---- parameters ----------------------------------------------------------------------------------


def check_parameters(backend: Any, init: Any, rank: Any, size: Any, timeout: Any) -> None:
    """Check each parameter by itself.

    Raises
    ------
    ValueError
        If a parameter has an invalid value.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {backend!r}.")
    is_place = init is None or (dist.is_available() and isinstance(init, dist.Store))
    if not is_place and not (isinstance(init, str) and init.startswith(SCHEMES)):
        raise ValueError(
            f"init must be None, a Store, or start with one of {SCHEMES}, got {init!r}."
        )
    if size is not None and not (isinstance(size, Integral) and int(size) >= 1):
        raise ValueError(f"size must be an integer of at least 1 or None, got {size!r}.")
    n_ranks = float("inf") if size is None else int(size)
    if rank is not None and not (isinstance(rank, Integral) and 0 <= int(rank) < n_ranks):
        raise ValueError(f"rank must be an integer from 0 to size - 1 or None, got {rank!r}.")
    if not isinstance(timeout, Real) or not 0.0 < float(timeout) < float("inf"):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")


def check_said(init: str | dist.Store, rank: int | None, size: int | None) -> None:
    """Check that the meeting address, this process's rank and the number of ranks are known.

    Raises
    ------
    ValueError
        If one of them is unknown; the message lists the ways to set it.
    """
    said = {"rank": rank is not None, "size": size is not None}
    is_env = isinstance(init, str) and init.startswith("env://")
    needed = VARIABLES if is_env else {"RANK": "rank", "WORLD_SIZE": "size"}
    missing = [
        name
        for name, parameter in needed.items()
        if name not in os.environ and not said.get(parameter or "", False)
    ]
    if missing:
        raise ValueError(
            "process_group does not know the address of rank 0, this process's rank or the "
            f"number of ranks: no launcher has set {', '.join(missing)}. Start the program "
            "with `torchrun --standalone --nproc-per-node 2 script.py`, or pass init=, "
            "rank= and size=."
        )
