"""Fits to Dask's arrays and frames, on the workers that hold them; needs dask and distributed.

Each worker that has rows is a rank of a :func:`~skgpstoch.distributed.process_group`, made for one
fit and destroyed at its end. Rows go from worker to worker, never to the caller, who gets an
ordinary estimator.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

try:
    import dask
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from dask.dataframe.dispatch import concat
    from distributed import Client, Future, MultiLock, Variable, get_client, get_worker
    from distributed.comm import get_address_host
    from distributed.protocol import pickle
except ImportError as error:
    raise ImportError(
        "skgpstoch.dask needs Dask: install it, for example by `pip install 'skgpstoch[dask]'`."
    ) from error

from .data.arrays import resolve_seed
from .data.messages import muted, warn
from .distributed import WorkerLostError, check_parameters, process_group

__all__ = ["fit", "predict"]

POLL = 0.05  # seconds between two looks at the ranks
LOOK = 1.0  # and between two at the workers, which the scheduler is asked for
GRACE = 10.0  # seconds that survivors may take beyond their timeout, to raise

RANK_OF_PROCESS = threading.Lock()
"""Torch has one group in a process: a rank that is not wanted any more may still be in it."""

BY_ROWS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "predict_std",
    "predict_interval",
    "predict_atoms",
)
"""What is predicted of a row by itself, as an array."""


# ---- fit -----------------------------------------------------------------------------------------


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
        What to fit. It is left as it is.
    X : dask Array of shape (n_samples, n_features), or dask DataFrame
        Inputs, in chunks of rows.
    y : dask Array or Series of shape (n_samples,), or of shape (n_samples, n_outputs)
        Targets. Arrays are rechunked as X is; frames must have X's partitions.
    sample_weight : dask Array or Series of shape (n_samples,) or None, default=None
        How many rows each counts for.
    client : distributed.Client or None, default=None
        The cluster. None: the current client.
    timeout : float, default=120.0
        Seconds that workers wait for one another, when they meet and at each exchange.
    max_restarts : int, default=2
        How often to go on, from the last checkpoint, after a worker was lost.
    **of_rows : dask Arrays or Series of shape (n_samples,)
        What else `fit` of the estimator takes of rows, such as `y_std` or `exposure`.

    Returns
    -------
    model : estimator
        A fitted copy, on this machine: it needs no cluster any more.

    Raises
    ------
    TypeError
        If the estimator is none of skgpstoch, or anything of rows is not Dask's.
    ValueError
        If there is no client, chunks are not of rows alone or have unknown sizes, or the estimator
        cannot be fitted so (batch normalisation, a folder for checkpoints).
    WorkerLostError
        If a worker is lost more often than `max_restarts`.

    Notes
    -----
    Rows are computed where Dask puts them. The workers that then hold some are dealt consecutive
    partitions of about as many rows each; what is elsewhere is sent there. So neither the sample of
    rows that starts the fit nor the model depends on which worker had what. Fits whose workers
    overlap wait for each other.

    The first rank sends its checkpoint to the scheduler at the end of an epoch, at most every two
    seconds. When a worker is lost, Dask computes its partitions again, and the fit resumes on the
    workers that are left. Rows up to 10,000 are fitted by one worker. On several machines gloo
    needs the network's name in `GLOO_SOCKET_IFNAME` if the name of a host is not its address.

    `partial_fit` is not distributed: it adds rows to one model, one chunk after another.

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
            "There is no Dask client: make one, such as `client = distributed.Client()`, or give "
            "client=."
        ) from error


def check_restarts(max_restarts: Any) -> None:
    """Check that it is a number of restarts."""
    if not (isinstance(max_restarts, Integral) and int(max_restarts) >= 0):
        raise ValueError(f"max_restarts must be an integer of at least 0, got {max_restarts!r}.")


def check_estimator(estimator: Any, columns: dict[str, Any]) -> None:
    """Check that an estimator can be fitted so, to rows of which these are known."""
    name = type(estimator).__name__
    if not any(cls.__module__.startswith("skgpstoch.") for cls in type(estimator).__mro__):
        raise TypeError(
            f"estimator must be one of skgpstoch, got {name}: others would fit to the rows of one "
            "worker. Transform X with dask before, and search by a part of the rows."
        )
    taken = inspect.signature(estimator.fit).parameters
    for column in columns:
        if column not in taken:
            raise TypeError(f"{name}.fit does not take {column}; it takes {', '.join(taken)}.")
    params = estimator.get_params()
    if params.get("checkpoint_dir") is not None:
        raise ValueError(
            f"checkpoint_dir must be None, got {params['checkpoint_dir']!r}: workers may have no "
            "folder in common, and fits on Dask keep their checkpoints with the scheduler."
        )
    for parameter, value in params.items():
        if isinstance(value, torch.nn.Module) and any(
            isinstance(module, _BatchNorm) for module in value.modules()
        ):
            raise ValueError(
                f"{parameter} has batch normalisation, whose averages would be of each worker's "
                "rows alone. Use LayerNorm or GroupNorm, or fit on one machine."
            )


def seed_of(estimator: Any) -> int:
    """Return a seed that is the same in each restart."""
    state = getattr(estimator, "random_state", None)
    return int(state) if isinstance(state, Integral) else resolve_seed(state)


# ---- rows ----------------------------------------------------------------------------------------


class Partitions(NamedTuple):
    """Rows on workers.

    Attributes
    ----------
    columns : dict of lists of Futures
        The partitions of X, y and what else is known of rows.
    n_rows : list of int
        How many rows each partition has.
    """

    columns: dict[str, list[Future]]
    n_rows: list[int]

    def futures(self) -> list[Future]:
        """Return all of them."""
        return [future for column in self.columns.values() for future in column]


def check_columns(columns: dict[str, Any]) -> None:
    """Check that all are Dask's, in chunks of rows of known sizes.

    Raises
    ------
    TypeError
        If one is something else.
    """
    for name, column in columns.items():
        if isinstance(column, da.Array):
            check_chunks(name, column, needs_sizes=True)
        elif not isinstance(column, dd.DataFrame | dd.Series):
            raise TypeError(
                f"{name} must be a dask array or frame, got {type(column).__name__}. Fit rows that "
                "are on this machine with the estimator's own fit, or make it one, such as by "
                "dask.array.from_array."
            )


def check_chunks(name: str, array: da.Array, needs_sizes: bool) -> None:
    """Check that an array is in chunks of rows.

    Raises
    ------
    ValueError
        If it is not, or their sizes are unknown and needed.
    """
    if needs_sizes and np.isnan(array.chunks[0]).any():
        raise ValueError(
            f"{name} has chunks of unknown sizes, so nobody knows which rows belong together. "
            f"Call {name}.compute_chunk_sizes() before."
        )
    if any(n > 1 for n in array.numblocks[1:]):
        raise ValueError(
            f"{name} must be in chunks of rows, got {array.numblocks[1]} chunks along its "
            f"columns. Call {name}.rechunk({{1: -1}}) before."
        )


def partitioned(client: Client, columns: dict[str, Any]) -> Partitions:
    """Compute rows, on the workers, in the same partitions.

    Raises
    ------
    ValueError
        If columns have different rows, or none.
    """
    X = persisted(client, columns["X"])
    n_rows = lengths(client, X)
    parts = {"X": X}
    for name, column in columns.items():
        if name == "X":
            continue
        if isinstance(column, da.Array) and len(column) == sum(n_rows):
            column = column.rechunk({0: tuple(n_rows)})
        parts[name] = persisted(client, column)
        own = lengths(client, parts[name])
        if own != n_rows:
            raise ValueError(
                f"X and {name} must have the same rows in each partition, got {sum(n_rows)} rows "
                f"in {len(n_rows)} partitions and {sum(own)} in {len(own)}."
            )
    if sum(n_rows) == 0:
        raise ValueError("X has no rows.")
    return Partitions(parts, n_rows)


def persisted(client: Client, column: Any) -> list[Future]:
    """Return the partitions, which workers compute and keep."""
    return list(client.compute(np.ravel(column.to_delayed()).tolist()))


def lengths(client: Client, parts: list[Future]) -> list[int]:
    """Return how many rows partitions have."""
    return list(client.gather(client.map(len, parts, pure=False)))


def joined(parts: Sequence[Any]) -> Any:
    """Return the rows of partitions."""
    if len(parts) == 1:
        return parts[0]
    return concat(parts) if hasattr(parts[0], "iloc") else np.concatenate(parts)


# ---- placement -----------------------------------------------------------------------------------


def dealt(client: Client, parts: Partitions, timeout: float) -> dict[str, list[int]]:
    """Return the workers that are ranks, in order, and the partitions of each.

    They are those that hold rows, one of each process, in the order of the rows that they hold.
    """
    computed(client, parts.columns["X"], timeout)
    holders: dict[str, list[int]] = {}
    held = client.who_has(parts.columns["X"])
    for k, (future, n) in enumerate(zip(parts.columns["X"], parts.n_rows, strict=True)):
        for worker in sorted(held.get(future.key, ()))[: n > 0]:
            holders.setdefault(worker, []).append(k)
    processes = client.run(process, workers=list(holders), on_error="ignore")
    one_of_each = {processes[worker]: worker for worker in sorted(processes, reverse=True)}
    workers = sorted(one_of_each.values(), key=lambda worker: (np.mean(holders[worker]), worker))
    if not workers:  # all were lost since
        raise WorkerLostError("No worker is left that holds rows.")
    return runs(workers, parts.n_rows)


def computed(client: Client, futures: list[Future], timeout: float) -> None:
    """Wait until workers have them, which they may have to compute again.

    Raises
    ------
    WorkerLostError
        If they cannot, or no worker has anything to do for as long as the timeout.
    """
    busy = time.monotonic()
    while not all(future.status == "finished" for future in futures):
        for future in futures:
            if future.status == "error":
                future.result()
        if any(client.processing().values()):
            busy = time.monotonic()
        is_idle = time.monotonic() - busy > timeout
        if is_idle or any(future.status == "cancelled" for future in futures):
            raise WorkerLostError(
                "Rows were lost with a worker, and Dask does not compute them again. Load them by "
                "tasks that any worker can do, such as dd.read_parquet, rather than by scatter."
            )
        time.sleep(LOOK)


def process() -> tuple[str, int]:
    """Return the process that this is."""
    return socket.gethostname(), os.getpid()


def runs(workers: list[str], n_rows: list[int]) -> dict[str, list[int]]:
    """Deal consecutive partitions to workers, of about as many rows each.

    Those without rows, workers and partitions, are left out.
    """
    sizes = np.array(n_rows)
    middles = np.cumsum(sizes) - 0.5 * sizes
    numbers = np.minimum(middles * len(workers) // sizes.sum(), len(workers) - 1).astype(int)
    own = ((sizes > 0) & (numbers == k) for k in range(len(workers)))
    shares = {w: np.flatnonzero(mine).tolist() for w, mine in zip(workers, own, strict=True)}
    return {worker: share for worker, share in shares.items() if share}


# ---- restarts ------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A fit: the estimator, pickled, parameters of its copies, and the timeout of exchanges."""

    estimator: bytes
    params: dict[str, Any]
    timeout: float


def with_restarts(client: Client, job: Job, parts: Partitions, max_restarts: int) -> bytes:
    """Fit, and again from the last checkpoint if a worker is lost; return what rank 0 returns.

    Raises
    ------
    WorkerLostError
        If that happens too often.
    """
    saved: dict[str, bytes] = {}
    checkpoint = Variable(f"skgpstoch-{uuid.uuid4().hex}", client)
    try:
        for _ in range(max_restarts + 1):
            try:
                return fit_once(client, job, parts, checkpoint, saved)
            except WorkerLostError as error:
                lost = error
            with contextlib.suppress(TimeoutError):  # there is none yet
                saved = checkpoint.get(timeout=1.0)
    finally:
        checkpoint.delete()
    raise WorkerLostError(
        f"The fit has lost a worker {max_restarts + 1} times, and max_restarts={max_restarts}: "
        f"{lost} Look at the workers' logs (memory?), or raise max_restarts."
    ) from lost


def fit_once(
    client: Client, job: Job, parts: Partitions, checkpoint: Variable, saved: dict[str, bytes]
) -> bytes:
    """Fit on the workers that now hold rows; others' fits on these are waited for."""
    ranks = dealt(client, parts, job.timeout)
    place = Variable(f"skgpstoch-{uuid.uuid4().hex}", client)
    futures: list[Future] = []
    with MultiLock(list(ranks), client):
        try:
            for rank, (worker, share) in enumerate(ranks.items()):
                own = {name: [column[k] for k in share] for name, column in parts.columns.items()}
                which = Rank(rank, len(ranks), place.name, checkpoint.name)
                args = job, own, which, saved if rank == 0 else {}
                pinned = {"workers": [worker], "allow_other_workers": False}
                futures.append(
                    client.submit(fit_rank, *args, **pinned, pure=False, retries=0, priority=1)
                )
            ended(client, futures, list(ranks), job.timeout)
            return outcome(futures, list(ranks))
        finally:
            client.cancel(futures)
            place.delete()


def ended(client: Client, futures: list[Future], workers: list[str], timeout: float) -> None:
    """Wait until all ranks have ended; when one has failed, no longer than others can notice."""
    end, look = float("inf"), 0.0
    living = set(workers)
    while True:
        pending = [w for w, future in zip(workers, futures, strict=True) if not future.done()]
        if not living.intersection(pending) or time.monotonic() > end:
            return
        has_failed = any(future.done() and future.status != "finished" for future in futures)
        if (has_failed or not living.issuperset(pending)) and end == float("inf"):
            end = time.monotonic() + timeout + GRACE
        if time.monotonic() > look:
            living, look = set(client.nthreads()), time.monotonic() + LOOK
        time.sleep(POLL)


def outcome(futures: list[Future], workers: list[str]) -> bytes:
    """Return what rank 0 has returned.

    Raises
    ------
    WorkerLostError
        If a worker was lost.
    Exception
        Of any rank, if it is another one.
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
    why = f" Another said: {lost[0]}" if lost else ""
    raise WorkerLostError(f"Lost of {len(workers)} workers: {', '.join(gone) or 'none'}.{why}")


# ---- on a worker ---------------------------------------------------------------------------------


class Rank(NamedTuple):
    """Which rank this is, of how many; and the variables for the place to meet and checkpoints."""

    rank: int
    size: int
    place: str
    checkpoint: str


def fit_rank(
    job: Job, columns: dict[str, list[Any]], which: Rank, saved: dict[str, bytes]
) -> bytes:
    """Fit together with the other ranks; return rank 0's model, pickled, and its warnings."""
    worker = get_worker()
    if not RANK_OF_PROCESS.acquire(timeout=job.timeout):
        raise WorkerLostError(
            f"{worker.address} is still in a fit that was given up, after {job.timeout:g} s."
        )
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(worker.state.nthreads)
        model = pickle.loads(job.estimator).set_params(**job.params)
        rows = {name: joined(parts) for name, parts in columns.items()}
        with tempfile.TemporaryDirectory(dir=worker.local_directory) as folder:
            if "checkpoint_dir" in job.params:
                model.set_params(checkpoint_dir=folder)
            with contextlib.ExitStack() as stack:
                told = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")
                if which.rank == 0:
                    stack.enter_context(streamed(Path(folder), which.checkpoint, saved))
                store = met(which, job.timeout)
                with process_group("auto", store, which.rank, which.size, job.timeout):
                    model.fit(**rows)
        if which.rank:
            return b""
        return pickle.dumps((model, [(str(each.message), each.category) for each in told]))
    finally:
        torch.set_num_threads(n_threads)
        RANK_OF_PROCESS.release()


def met(which: Rank, timeout: float) -> dist.Store:
    """Return the store where ranks meet, at a port that was free on rank 0's machine."""
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
            f"Rank {which.rank} of {which.size} did not meet rank 0 within {timeout:g} s: its "
            "worker was lost, or is busy with other tasks."
        ) from error


@contextlib.contextmanager
def streamed(folder: Path, name: str, saved: dict[str, bytes]) -> Iterator[None]:
    """Put a checkpoint into a folder, and send what is written there to the scheduler."""
    for file, content in saved.items():
        (folder / file).write_bytes(content)
    variable, is_over = Variable(name, get_client()), threading.Event()

    def send() -> None:
        sent = saved
        while not is_over.wait(10.0 * POLL):
            with contextlib.suppress(FileNotFoundError):  # the fit has come to its end
                found = {path.name: path.read_bytes() for path in folder.glob("*.pt")}
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


# ---- predict -------------------------------------------------------------------------------------


def predict(model: Any, X: Any, method: str = "predict", **kwargs: Any) -> Any:
    """Predict for a Dask array or frame, partition by partition, when the result is computed.

    Parameters
    ----------
    model : fitted estimator
        It is sent once to each worker that needs it.
    X : dask Array of shape (n_samples, n_features), or dask DataFrame
        Inputs, in chunks of rows.
    method : str, default="predict"
        What to call: "predict", "predict_proba", "predict_log_proba", "decision_function",
        "predict_std", "predict_interval" or "predict_atoms".
    **kwargs : dict
        Its other parameters, such as `return_std` or `coverage`; not those of rows.

    Returns
    -------
    predicted : dask Array, Series or DataFrame, or tuple of these
        In X's chunks, with X's index if it is a frame; a tuple where the method returns one.

    Raises
    ------
    TypeError
        If X is no Dask array or frame.
    ValueError
        If the method does not predict rows one by one, or chunks are not of rows alone.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> from skgpstoch.dask import predict
    >>> x = np.linspace(0.0, 6.0, 100)[:, None]
    >>> model = SVGPRegressor(n_inducing=10, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> mean, std = predict(model, da.from_array(x, chunks=(25, 1)), return_std=True)
    >>> mean
    dask.array<getitem, shape=(100,), dtype=float64, chunksize=(25,), chunktype=numpy.ndarray>
    """
    if method not in BY_ROWS:
        raise ValueError(
            f"method must be one of {BY_ROWS}, got {method!r}: rows are predicted one by one."
        )
    if kwargs.get("return_cov"):
        raise ValueError("return_cov must be False: covariances are between rows of all chunks.")
    if not isinstance(X, da.Array | dd.DataFrame):
        raise TypeError(f"X must be a dask array or frame, got {type(X).__name__}.")
    few = X._meta_nonempty if isinstance(X, dd.DataFrame) else np.ones((2, *X.shape[1:]), X.dtype)
    with muted(True):
        outputs = outputs_of(model, method, kwargs, few)
    call = Call(method, kwargs, sum(map(width, outputs)), np.result_type(*outputs))
    held = dask.delayed(model, pure=False, traverse=False)
    if isinstance(X, dd.DataFrame):
        of_frame = X.map_partitions(call.on_frame, held, meta=call.on_frame(few[:0], model))
        predicted = [frame_of(of_frame, *each) for each in placed(outputs)]
        if method.endswith("proba"):
            predicted = [each.rename(columns=dict(enumerate(model.classes_))) for each in predicted]
    else:
        check_chunks("X", X, needs_sizes=False)
        chunks, meta = (X.chunks[0], (call.width,)), np.empty((0, 0), call.dtype)
        of_array = X.map_blocks(cast(Any, call.on_array), held, chunks=chunks, meta=meta)
        predicted = [array_of(of_array, *each) for each in placed(outputs)]
    return predicted[0] if len(predicted) == 1 else tuple(predicted)


class Call(NamedTuple):
    """What is called of a model, and the columns that its outputs have side by side."""

    method: str
    kwargs: dict[str, Any]
    width: int
    dtype: np.dtype

    def on_array(self, X: Any, model: Any) -> np.ndarray:
        """Return the outputs of a partition, (n, width)."""
        if len(X) == 0:
            return np.empty((0, self.width), self.dtype)
        outputs = outputs_of(model, self.method, self.kwargs, X)
        return np.concatenate([each.reshape(len(X), -1) for each in outputs], axis=1)

    def on_frame(self, X: Any, model: Any) -> Any:
        """Return them as a frame with the index of X."""
        return pd.DataFrame(self.on_array(X, model), index=X.index)


def outputs_of(model: Any, method: str, kwargs: dict[str, Any], X: Any) -> tuple[np.ndarray, ...]:
    """Return the arrays that a method returns."""
    found = getattr(model, method)(X, **kwargs)
    return found if isinstance(found, tuple) else (found,)


def width(output: np.ndarray) -> int:
    """Return how many numbers an output has for a row."""
    return int(np.prod(output.shape[1:], dtype=int))


def placed(outputs: Sequence[np.ndarray]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield the columns of each output, and the shape that they have in a row."""
    first = 0
    for output in outputs:
        yield slice(first, first + width(output)), output.shape[1:]
        first += width(output)


def array_of(of_array: da.Array, columns: slice, shape: tuple[int, ...]) -> da.Array:
    """Return one output."""
    if len(shape) < 2:
        return of_array[:, columns if shape else columns.start]
    chunks = (of_array.chunks[0], *((size,) for size in shape))
    return of_array[:, columns].map_blocks(
        lambda block: block.reshape(-1, *shape),
        drop_axis=1,
        new_axis=list(range(1, 1 + len(shape))),
        chunks=chunks,
        dtype=of_array.dtype,
    )


def frame_of(of_frame: Any, columns: slice, shape: tuple[int, ...]) -> Any:
    """Return one output: a series, or a frame if there are several numbers in a row."""
    if not shape:
        return of_frame[columns.start].rename(None)
    own = of_frame[list(range(columns.start, columns.stop))]
    return own.rename(columns={k: k - columns.start for k in own.columns})
