"""Fit on workers that may be lost, and restart from the last checkpoint."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

from distributed import Client, Future, Semaphore, Variable

from ..distributed import WorkerLostError
from .ranks import Job, Seat, fit_rank
from .rows import LOOK, Partitions, dealt

POLL = 0.05  # seconds between two checks of the ranks
NOTICE = 10.0  # seconds beyond the timeout that the other ranks may take to raise an error


def with_restarts(client: Client, job: Job, parts: Partitions, max_restarts: int) -> bytes:
    """Fit; if a worker is lost, resume from the last checkpoint. Return what rank 0 returns.

    Raises
    ------
    WorkerLostError
        If workers are lost too often.
    """
    saved: dict[str, bytes] = {}
    for _ in range(max_restarts + 1):
        try:
            with reserved(client, parts, job.timeout) as ranks:
                return fit_once(client, job, parts, ranks, saved)
        except WorkerLostError as error:
            lost = error
    raise WorkerLostError(
        f"The fit lost a worker {max_restarts + 1} times, more than "
        f"max_restarts={max_restarts} allows. {lost} Look at the workers' logs (did they "
        "run out of memory?), or raise max_restarts."
    ) from lost


def fit_once(
    client: Client,
    job: Job,
    parts: Partitions,
    ranks: dict[str, list[int]],
    saved: dict[str, bytes],
) -> bytes:
    """Fit on these workers from a saved checkpoint; update `saved` if a worker is lost."""
    place, checkpoint = (Variable(f"skgpstoch-{uuid.uuid4().hex}", client) for _ in range(2))
    futures: list[Future] = []
    try:
        for rank, (worker, share) in enumerate(ranks.items()):
            own = {name: [column[k] for k in share] for name, column in parts.columns.items()}
            which = Seat(rank, len(ranks), place.name, checkpoint.name)
            args = job, own, which, dict(saved) if rank == 0 else {}
            pinned = {"workers": [worker], "allow_other_workers": False}
            futures.append(
                client.submit(fit_rank, *args, **pinned, pure=False, retries=0, priority=1)
            )
        ended(client, futures, list(ranks), job.timeout)
        return outcome(futures, list(ranks))
    except WorkerLostError:
        with contextlib.suppress(TimeoutError):  # there is no checkpoint yet
            saved.update(checkpoint.get(timeout=1.0))
        raise
    finally:
        client.cancel(futures)  # first, because a running rank deletes variables when it notices
        place.delete()
        checkpoint.delete()


# ---- workers of one fit at a time ----------------------------------------------------------------


@contextlib.contextmanager
def reserved(client: Client, parts: Partitions, timeout: float) -> Iterator[dict[str, list[int]]]:
    """Lock the workers that hold rows against other fits; yield them with their partitions.

    All fits take locks in the same order, so no deadlock can occur.
    """
    while True:
        asked = dealt(client, parts, timeout)
        with contextlib.ExitStack() as stack:
            for worker in sorted(asked):
                stack.enter_context(locked(client, worker))
            ranks = dealt(client, parts, timeout)
            if asked.keys() >= ranks.keys():  # otherwise workers were lost during the wait
                yield ranks
                return


@contextlib.contextmanager
def locked(client: Client, worker: str) -> Iterator[None]:
    """Lock a worker for the block; if this process dies, Dask releases the lock.

    Queue for a second at a time, so that after Ctrl-C no abandoned request stays in the queue.
    """
    lock = Semaphore(1, f"skgpstoch-{worker}", client.scheduler, client.loop)
    while not lock.acquire(timeout=LOOK):
        pass
    try:
        yield
    finally:
        lock.release()


# ---- ends ----------------------------------------------------------------------------------------


def ended(client: Client, futures: list[Future], workers: list[str], timeout: float) -> None:
    """Wait until all ranks have ended; after a failure, only until the others must have noticed."""
    end, look = float("inf"), 0.0
    living = set(workers)
    while True:
        pending = [w for w, future in zip(workers, futures, strict=True) if not future.done()]
        if not living.intersection(pending) or time.monotonic() > end:
            return
        has_failed = any(future.done() and future.status != "finished" for future in futures)
        if (has_failed or not living.issuperset(pending)) and end == float("inf"):
            end = time.monotonic() + timeout + NOTICE
        if time.monotonic() > look:
            living, look = set(client.nthreads()), time.monotonic() + LOOK
        time.sleep(POLL)


def outcome(futures: list[Future], workers: list[str]) -> bytes:
    """Return what rank 0 returned.

    Raises
    ------
    WorkerLostError
        If a worker was lost.
    Exception
        If a rank raised any other error.
    """
    if all(future.status == "finished" for future in futures):
        content: bytes = futures[0].result()
        return content
    raised = [future.exception() for future in futures if future.status == "error"]
    lost = [
        e for e in raised if isinstance(e, WorkerLostError) or type(e).__name__ == "KilledWorker"
    ]
    for future in futures:
        if future.status == "error" and future.exception() not in lost:
            future.result()
    gone = [w for w, future in zip(workers, futures, strict=True) if future.status != "error"]
    why = f" Another one reported: {lost[0]}" if lost else ""
    raise WorkerLostError(
        f"These of {len(workers)} workers were lost: {', '.join(gone) or 'none'}.{why}"
    )
