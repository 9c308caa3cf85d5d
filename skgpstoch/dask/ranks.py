"""Run a rank on its Dask worker."""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from distributed import Variable, Worker, get_client, get_worker
from distributed.comm import get_address_host
from distributed.protocol import pickle

from ..distributed import WorkerLostError, process_group
from ..training.checkpoint import SUFFIX
from .rows import joined

LISTEN = 0.5  # seconds between two checks for a new checkpoint, and whether the rank is needed

RANK_OF_PROCESS = threading.Lock()
"""Lock of the process's only torch group; a rank of an abandoned fit may still be in it."""


class Job(NamedTuple):
    """A fit: the pickled estimator, parameters to set on its copies, and the exchange timeout."""

    estimator: bytes
    params: dict[str, Any]
    timeout: float


class Seat(NamedTuple):
    """A rank, the number of ranks, and the Dask variables for rank 0's address and checkpoints."""

    rank: int
    size: int
    place: str
    checkpoint: str


def fit_rank(
    job: Job, columns: dict[str, list[Any]], which: Seat, saved: dict[str, bytes]
) -> bytes:
    """Fit together with the other ranks; return rank 0's model, pickled, and its warnings."""
    worker = get_worker()
    key = worker.get_current_task()
    if not RANK_OF_PROCESS.acquire(timeout=job.timeout):
        raise WorkerLostError(
            f"Worker {worker.address} is still busy with an earlier fit that was "
            f"abandoned; this fit waited {job.timeout:g} s for it. Restart the worker, "
            "or fit again later."
        )
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(worker.state.nthreads)
        with ended_if_unwanted(worker, key):
            model, told = fitted(job, columns, which, saved)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # frames hold connections to waiting ranks
        if which.rank == 0 and not is_wanted(worker, key):  # the client is gone: clean up here
            for name in (which.place, which.checkpoint):
                Variable(name, get_client()).delete()
        raise
    finally:
        torch.set_num_threads(n_threads)
        RANK_OF_PROCESS.release()
    if which.rank:
        return b""
    return pickle.dumps((model, [(str(each.message), each.category) for each in told]))


def fitted(
    job: Job, columns: dict[str, list[Any]], which: Seat, saved: dict[str, bytes]
) -> tuple[Any, list[warnings.WarningMessage]]:
    """Fit the model on this rank; return it and its warnings."""
    model = pickle.loads(job.estimator).set_params(**job.params)
    rows = {name: joined(parts) for name, parts in columns.items()}
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=get_worker().local_directory))
        )
        if "checkpoint_dir" in job.params:
            model.set_params(checkpoint_dir=folder)
        told = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        if which.rank == 0:
            stack.enter_context(streamed(folder, which.checkpoint, saved))
        store = met(which, job.timeout)
        with process_group("auto", store, which.rank, which.size, job.timeout):
            model.fit(**rows)
    return model, told


class UnwantedError(BaseException):
    """Raised to end a rank whose result nobody waits for; fits do not catch this error."""


@contextlib.contextmanager
def ended_if_unwanted(worker: Worker, key: Any) -> Iterator[None]:
    """End the block soon after its task is cancelled (by Ctrl-C, a lost rank, or a dead client).

    Dask itself does not stop a task that has begun.

    Raises
    ------
    UnwantedError
        Anywhere in the block.
    """
    caller = threading.get_ident()
    is_over, ending = threading.Event(), threading.Lock()

    def watch() -> None:
        while not is_over.wait(LISTEN):
            if is_wanted(worker, key):
                continue
            with ending:
                if not is_over.is_set():
                    raised = ctypes.py_object(UnwantedError)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller), raised)
            return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with ending:
            is_over.set()


def is_wanted(worker: Worker, key: Any) -> bool:
    """Tell whether anybody still waits for a task of this worker."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state == "executing"


def met(which: Seat, timeout: float) -> dist.Store:
    """Return the store that connects the ranks, at a free port of rank 0's machine."""
    place, limit = Variable(which.place, get_client()), timedelta(seconds=timeout)
    try:
        if which.rank == 0:
            host = get_address_host(get_worker().address)
            store = dist.TCPStore(host, 0, None, True, limit, wait_for_workers=False)
            place.set([host, store.port])
            return store
        host, port = place.get(timeout=timeout)
        return dist.TCPStore(host, port, None, False, limit)
    except (TimeoutError, RuntimeError) as error:
        raise WorkerLostError(
            f"Rank {which.rank} of {which.size} did not connect to rank 0 within "
            f"{timeout:g} s: its worker was lost, or is busy with other tasks."
        ) from error


@contextlib.contextmanager
def streamed(folder: Path, name: str, saved: dict[str, bytes]) -> Iterator[None]:
    """Put a checkpoint into a folder, and send new checkpoints from there to the scheduler."""
    for file, content in saved.items():
        (folder / file).write_bytes(content)
    variable, is_over = Variable(name, get_client()), threading.Event()

    def send() -> None:
        sent = saved
        while not is_over.wait(LISTEN):
            with contextlib.suppress(FileNotFoundError):  # the fit has ended and removed it
                found = {path.name: path.read_bytes() for path in folder.glob(f"*{SUFFIX}")}
                if found and found != sent:
                    variable.set(found)
                    sent = found

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
