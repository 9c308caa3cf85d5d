"""Fit an estimator to rows that are on Dask workers."""

from __future__ import annotations

import contextlib
import inspect
import time
import uuid
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import torch
from distributed import Client, Future, Semaphore, Variable, get_client
from distributed.protocol import pickle

from ..data.arrays import resolve_seed
from ..data.messages import warn
from ..distributed import WorkerLostError, check_parameters
from ..estimators.runs import averages_rows
from .ranks import Job, Seat, fit_rank
from .rows import LOOK, Partitions, check_columns, dealt, partitioned


def fit(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    client: Client | None = None,
    timeout: float = 120.0,
    max_restarts: int = 2,
    **of_rows: Any,
) -> Any:
    """Fit an estimator to a Dask array or frame, on the workers that hold its rows.

    Parameters
    ----------
    estimator : estimator of skgpstoch
        The estimator to fit; it is not changed.
    X : dask Array of shape (n_samples, n_features), or dask DataFrame
        Inputs, in chunks of rows.
    y : dask Array or Series of shape (n_samples,), or of shape (n_samples, n_outputs)
        Targets. Arrays are rechunked as X is; frames must have X's partitions.
    sample_weight : dask Array or Series of shape (n_samples,) or None, default=None
        How many rows each row counts for.
    client : distributed.Client or None, default=None
        Client of the cluster; None is the current client.
    timeout : float, default=120.0
        Seconds that workers wait for one another, when they connect and at each exchange.
    max_restarts : int, default=2
        How often to resume from the last checkpoint after a worker was lost.
    **of_rows : dask Arrays or Series of shape (n_samples,)
        Other values of rows that the estimator's `fit` takes, such as `y_std` or `exposure`.

    Returns
    -------
    model : estimator
        A fitted copy on this machine, which does not need the cluster.

    Raises
    ------
    TypeError
        If the estimator is not from skgpstoch, or X, y or another value of rows is not a Dask
        collection.
    ValueError
        If there is no client; if chunks split the columns or have unknown sizes; or if the
        estimator cannot be fitted on Dask (batch normalisation, `checkpoint_dir`).
    WorkerLostError
        If a worker is lost more often than `max_restarts`.

    Notes
    -----
    Dask computes the rows on the workers that it chooses. Each worker that then holds rows gets
    consecutive partitions, with about the same number of rows as the other workers; partitions that
    are elsewhere are sent there. So neither the sample of rows that starts the fit nor the model
    depends on which worker held which rows. Fits that share workers wait for each other. Ctrl-C, or
    the end of this process, ends the fit on the workers.

    The first rank sends its checkpoint to the scheduler at the end of an epoch, at most every two
    seconds. When a worker is lost, Dask computes its partitions again, and the fit resumes on the
    workers that are left. Up to 10,000 rows are fitted by one worker. On several machines, set
    `GLOO_SOCKET_IFNAME` to the network interface if host names do not resolve to their addresses.

    `partial_fit` is not distributed, because it adds rows to one model chunk by chunk.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from skgpstoch import SVGPRegressor
    >>> from skgpstoch.dask import fit, predict
    >>> X = da.random.uniform(-3, 3, (1_000_000, 4), chunks=(100_000, 4))
    >>> y = da.sin(X[:, 0]) + X[:, 1]
    >>> with Client("scheduler:8786"):  # doctest: +SKIP
    ...     model = fit(SVGPRegressor(n_inducing=512), X, y)
    ...     mean = predict(model, X).mean().compute()
    """
    check_parameters("auto", None, None, None, timeout)
    check_restarts(max_restarts)
    client = present(client)
    columns = {"X": X, "y": y, "sample_weight": sample_weight, **of_rows}
    columns = {
        name: column for name, column in columns.items() if column is not None or name == "y"
    }
    check_estimator(estimator, columns)
    check_columns(columns)
    parts = partitioned(client, columns)
    params = {"random_state": seed_of(estimator), "checkpoint_dir": None}
    known = estimator.get_params(deep=False)
    job = Job(pickle.dumps(estimator), {k: v for k, v in params.items() if k in known}, timeout)
    content = with_restarts(client, job, parts, int(max_restarts))
    model, told = pickle.loads(content)
    for message, category in told:
        warn(message, category)
    return model.set_params(**{name: known[name] for name in job.params})


def present(client: Client | None) -> Client:
    """Return the client, or the current one.

    Raises
    ------
    ValueError
        If there is none.
    """
    if client is not None:
        return client
    try:
        return get_client()
    except ValueError as error:
        raise ValueError(
            "There is no Dask client. Create one, for example `client = "
            "distributed.Client()`, or pass it as client=."
        ) from error


def check_restarts(max_restarts: Any) -> None:
    """Check that `max_restarts` is a valid number of restarts."""
    if not (isinstance(max_restarts, Integral) and int(max_restarts) >= 0):
        raise ValueError(f"max_restarts must be an integer of at least 0, got {max_restarts!r}.")


def check_estimator(estimator: Any, columns: dict[str, Any]) -> None:
    """Check that an estimator can be fitted on Dask to rows with these columns."""
    if isinstance(estimator, type):
        raise TypeError(f"estimator must be an instance, got the class {estimator.__name__}.")
    name = type(estimator).__name__
    if not any(cls.__module__.startswith("skgpstoch.") for cls in type(estimator).__mro__):
        raise TypeError(
            f"estimator must be an estimator of skgpstoch, got {name}, which would be "
            "fitted to the rows of one worker only. Transform X with Dask first; run "
            "searches on a sample of the rows."
        )
    asked = inspect.signature(estimator.fit).parameters.values()
    taken = [p.name for p in asked if p.kind is not p.VAR_KEYWORD]
    for column in columns:
        if column not in taken:
            raise TypeError(f"{name}.fit does not take {column}; it takes {', '.join(taken)}.")
    params = estimator.get_params()
    if params.get("checkpoint_dir") is not None:
        raise ValueError(
            f"checkpoint_dir must be None, got {params['checkpoint_dir']!r}: workers may "
            "not share a folder, so fits on Dask keep their checkpoints on the scheduler."
        )
    for parameter, value in params.items():
        if isinstance(value, torch.nn.Module) and any(
            averages_rows(module) for module in value.modules()
        ):
            raise ValueError(
                f"{parameter} must not use batch normalisation on Dask, because each worker "
                "would average over its own rows only. Use LayerNorm or GroupNorm, or fit "
                "on one machine."
            )


def seed_of(estimator: Any) -> int:
    """Return the estimator's seed, which every restart uses."""
    state = getattr(estimator, "random_state", None)
    return int(state) if isinstance(state, Integral) else resolve_seed(state)


# ---- restarts ------------------------------------------------------------------------------------


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
