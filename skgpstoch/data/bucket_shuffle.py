"""Put rows of a table that does not fit into memory in random order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from .counter_hash import row_hashes
from .parquet_writer import parquet_file

HASHES = "skgpstoch.hash"  # a column of buckets


def shuffle_tables(
    tables: Iterable[tuple[np.ndarray, Any]], n_rows: int, path: Path, seed: int, n_buffer: int
) -> None:
    """Write rows to a Parquet file in the order of hashes of their numbers.

    Parameters
    ----------
    tables : iterable of (ndarray, Table)
        Row numbers and pyarrow tables of rows, all with the schema of the first.
    n_rows : int
        Total number of rows.
    path : Path
        The file to write.
    seed : int
        Seed of the order.
    n_buffer : int
        Most rows in memory; a bucket, and a row group of the file, has about half as many.
    """
    n_buckets = max(1, -(-2 * n_rows // n_buffer))
    with (
        TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
        parquet_file(path) as write,
    ):
        buckets = Buckets(Path(folder), n_buckets, n_buffer)
        for rows, table in tables:
            buckets.add(row_hashes(seed, rows), table)
        for table in buckets.tables():
            write(table)


class Buckets:
    """Files of rows whose hashes are in a range.

    Parameters
    ----------
    folder : Path
        Folder for the files.
    n_buckets : int
        Number of ranges, all of equal length.
    n_buffer : int
        Buffer size in rows. When half of it is full, all rows are written, so that a file is opened
        only once for many rows.
    """

    def __init__(self, folder: Path, n_buckets: int, n_buffer: int) -> None:
        self.folder = folder
        self.width = 2.0**64 / n_buckets
        self.paths = [folder / f"{k}.arrows" for k in range(n_buckets)]
        self.n_buffer = n_buffer
        self.held: list[Any] = []
        self.n_held = 0
        self.schema: Any = None

    def add(self, hashes: np.ndarray, table: Any) -> None:
        """Add rows with their hashes."""
        self.schema = table.schema if self.schema is None else self.schema
        table = table.cast(self.schema).append_column(HASHES, pa.array(hashes))
        self.held.append(table)
        self.n_held += len(table)
        if 2 * self.n_held >= self.n_buffer:  # sorting makes one copy
            self.flush()

    def flush(self) -> None:
        """Append the held rows to the files, to each file as a new stream."""
        if not self.held:
            return
        table = in_order(self.held)
        self.held, self.n_held = [], 0
        hashes = table[HASHES].to_numpy().astype(np.float64) + 2.0**63
        bucket = np.minimum(hashes / self.width, len(self.paths) - 1).astype(np.int64)
        starts = np.searchsorted(bucket, np.arange(len(self.paths) + 1)).tolist()
        for path, start, stop in zip(self.paths, starts, starts[1:], strict=False):
            if stop > start:
                with path.open("ab") as file, pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table.slice(start, stop - start))

    def tables(self) -> Iterator[Any]:
        """Yield the rows of each file in the order of hashes."""
        self.flush()
        for path in self.paths:
            if path.exists():
                yield in_order(streams(path)).drop_columns([HASHES])
                path.unlink()


def in_order(tables: list[Any]) -> Any:
    """Join tables into one, in the order of hashes."""
    table = pa.concat_tables(tables).unify_dictionaries()
    return table.take(np.argsort(table[HASHES].to_numpy()))


def streams(path: Path) -> list[Any]:
    """Return the tables in a file, one for each stream."""
    tables = []
    with path.open("rb") as file:
        size = path.stat().st_size
        while file.tell() < size:
            tables.append(pa.ipc.open_stream(file).read_all())
    return tables
