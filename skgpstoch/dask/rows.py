"""Compute partitions of rows on Dask workers, and assign them to workers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask.dataframe.dispatch import concat
from distributed import Client, Future

from ..distributed import WorkerLostError

LOOK = 1.0  # seconds between two requests to the scheduler


class Partitions(NamedTuple):
    """Rows on workers.

    Attributes
    ----------
    columns : dict of lists of Futures
        The partitions of X, y, and other values of rows.
    n_rows : list of int
        Number of rows in each partition.
    """

    columns: dict[str, list[Future]]
    n_rows: list[int]

    def futures(self) -> list[Future]:
        """Return the futures of all columns."""
        return [future for column in self.columns.values() for future in column]


def check_columns(columns: dict[str, Any]) -> None:
    """Check that all columns are Dask collections, in chunks of rows with known sizes.

    Raises
    ------
    TypeError
        If a column is something else.
    ValueError
        If an array has chunks of unknown sizes, or chunks split its columns.
    """
    for name, column in columns.items():
        if isinstance(column, da.Array):
            if hasattr(column._meta, "tocsr"):
                raise TypeError(
                    f"{name} must be dense, but its chunks are sparse. Convert them with "
                    f"{name}.map_blocks(lambda a: a.toarray(), dtype={name}.dtype)."
                )
            check_chunks(name, column, needs_sizes=True)
        elif not isinstance(column, dd.DataFrame | dd.Series):
            raise TypeError(
                f"{name} must be a dask array or frame, got {type(column).__name__}. If the "
                "rows are on this machine, call the estimator's own fit, or convert them, "
                "for example with dask.array.from_array."
            )


def check_chunks(name: str, array: da.Array, needs_sizes: bool) -> None:
    """Check that an array's chunks split its rows only.

    Raises
    ------
    ValueError
        If they split its columns, or if their sizes are unknown and needed.
    """
    if needs_sizes and np.isnan(array.chunks[0]).any():
        raise ValueError(
            f"{name} has chunks of unknown sizes, so its rows cannot be matched with "
            f"others. Call {name}.compute_chunk_sizes() first."
        )
    if any(n > 1 for n in array.numblocks[1:]):
        raise ValueError(
            f"{name} must be split along its rows only, got {array.numblocks[1]} chunks "
            f"along its columns. Call {name}.rechunk({{1: -1}}) first."
        )


def partitioned(client: Client, columns: dict[str, Any]) -> Partitions:
    """Compute all columns on the workers, in the same partitions.

    Raises
    ------
    ValueError
        If columns differ in their numbers of rows, or have none.
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
                f"X and {name} must have the same number of rows in each partition, got "
                f"{sum(n_rows)} rows in {len(n_rows)} partitions and {sum(own)} in "
                f"{len(own)}."
            )
    if sum(n_rows) == 0:
        raise ValueError("X has no rows.")
    return Partitions(parts, n_rows)


def persisted(client: Client, column: Any) -> list[Future]:
    """Return futures of the partitions, which workers compute and keep."""
    parts = np.ravel(column.to_delayed())
    if isinstance(column, dd.DataFrame | dd.Series) and len(parts) != column.npartitions:
        parts = np.ravel(column.to_delayed(optimize_graph=False))  # do not merge partitions
    return list(client.compute(parts.tolist()))


def lengths(client: Client, parts: list[Future]) -> list[int]:
    """Return the number of rows of each partition."""
    return list(client.gather(client.map(len, parts, pure=False)))


def joined(parts: Sequence[Any]) -> Any:
    """Join the rows of partitions."""
    if len(parts) == 1:
        return parts[0]
    return concat(parts) if hasattr(parts[0], "iloc") else np.concatenate(parts)


# ---- placement -----------------------------------------------------------------------------------


def dealt(client: Client, parts: Partitions, timeout: float) -> dict[str, list[int]]:
    """Return the workers that become ranks, in order, and the partitions of each.

    These are the workers that hold rows, one for each process, in the order of their rows.
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
    if not workers:  # all were lost meanwhile
        raise WorkerLostError("No worker is left that holds rows.")
    return runs(workers, parts.n_rows)


def computed(client: Client, futures: list[Future], timeout: float) -> None:
    """Wait until workers hold the futures' results; they may have to compute them again.

    Raises
    ------
    WorkerLostError
        If they cannot compute them, or if no worker has done anything for `timeout` seconds.
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
                "Rows were lost with a worker, and Dask cannot compute them again. Load "
                "them with a task that any worker can repeat, such as dd.read_parquet, "
                "instead of scatter."
            )
        time.sleep(LOOK)


def process() -> tuple[str, int]:
    """Return the host name and the id of this process."""
    return socket.gethostname(), os.getpid()


def runs(workers: list[str], n_rows: list[int]) -> dict[str, list[int]]:
    """Assign consecutive partitions to workers, with about the same number of rows each.

    Leave out partitions without rows, and workers without partitions.
    """
    sizes = np.array(n_rows)
    middles = np.cumsum(sizes) - 0.5 * sizes
    numbers = np.minimum(middles * len(workers) // sizes.sum(), len(workers) - 1).astype(int)
    own = ((sizes > 0) & (numbers == k) for k in range(len(workers)))
    shares = {w: np.flatnonzero(mine).tolist() for w, mine in zip(workers, own, strict=True)}
    return {worker: share for worker, share in shares.items() if share}
