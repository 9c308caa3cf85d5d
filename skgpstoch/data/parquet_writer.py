"""Write Parquet files by row group, whole or not at all; put rows in random order on the way."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .chunk import SAID, Chunk
from .counter_rng import row_hashes
from .frames import is_frame
from .whole_file import folder_beside, whole_file

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(
        "Parquet files need pyarrow. Install it with `pip install pyarrow`."
    ) from error

from .parquet_columns import with_columns  # needs pyarrow


def write_parquet(path: str | Path, column_names: Sequence[str], arrays: Iterable[Any]) -> None:
    """Write arrays as the row groups of a Parquet file.

    The file has a temporary name until it is complete. If making the arrays fails, there is no new
    file, and an existing one is unchanged.

    Parameters
    ----------
    path : str or Path
        The file to write.
    column_names : list of str
        Names of its columns.
    arrays : iterable
        For each row group an array (m, k), or a tuple of k arrays (m,): numbers, booleans or
        strings. The first decides the types.
    """
    schema = None
    with whole_file(path) as unfinished, row_groups_of(unfinished) as write:
        for group in arrays:
            columns = list(group.T) if isinstance(group, np.ndarray) and group.ndim == 2 else group
            table = table_from(columns, column_names)
            schema = table.schema if schema is None else schema
            write(table.cast(schema))
        if schema is None:
            write(table_from([np.empty(0)] * len(column_names), column_names))


def table_from(columns: Sequence[Any], names: Sequence[str]) -> Any:
    """Return a pyarrow table of arrays (m,)."""
    if len(columns) != len(names):
        raise ValueError(
            f"There must be {len(names)} columns ({', '.join(names)}), got {len(columns)}."
        )
    pairs = zip(columns, names, strict=True)
    arrays = [arrow_array(np.asarray(column), name, "predictions") for column, name in pairs]
    return pa.table(arrays, names=list(names))


def table_of(chunk: Chunk, names: Sequence[str] | None) -> Any:
    """Return a pyarrow table of a chunk; columns of X without a name are x0, x1, ...

    Raises
    ------
    ValueError
        If Parquet has no type for a column, or two columns would have one name.
    """
    X = chunk.X
    if is_frame(X):
        known = [str(name) for name in X.columns]
        of_X = (X[name] for name in X.columns)
    else:
        known = [f"x{j}" for j in range(X.shape[1])] if names is None else list(names)
        of_X = iter(X.T)
    others: dict[str, np.ndarray] = {}
    for name, array in chunk.arrays().items():
        if name in ("X", "rows"):
            continue
        parts = array.reshape(len(chunk), -1).T
        for j, part in enumerate(parts):
            others[SAID.get(name, name) + (f"{j}" if len(parts) > 1 else "")] = part
    refuse_same_names(chunk.where, [*known, *others])
    columns = zip([*known, *others], itertools.chain(of_X, others.values()), strict=True)
    return pa.table({name: arrow_array(values, name, chunk.where) for name, values in columns})


def refuse_same_names(where: str, names: list[str]) -> None:
    """Raise a ValueError if two columns of a file would have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(
                f"{where} cannot be written to a Parquet file, whose columns have different names, "
                f"because {count} are called {name!r}. Rename columns of X: targets, weights, "
                "exposures and known errors are called y, sample_weight, exposure and y_std."
            )


def arrow_array(values: Any, name: str, where: str) -> Any:
    """Return a column of a chunk as pyarrow has it."""
    kind = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind == "f" and kind.itemsize > 8:
        values = values.astype(np.float64)
    elif isinstance(kind, np.dtype) and not kind.isnative:
        values = values.astype(kind.newbyteorder("="))
    elif kind == np.dtype("m8[D]"):  # which pyarrow lacks
        values = values.astype("m8[s]")
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values)
    try:
        column = pa.array(values)
        if pa.types.is_dictionary(column.type):
            levels = column.type.value_type
            if isinstance(levels, pa.BaseExtensionType):  # such as intervals
                raise TypeError(f"its levels are {levels}")
        return column
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{where}: column {name!r} ({kind}) cannot be written to a Parquet file: {error}. "
            "Convert it to numbers, texts or dates."
        ) from error


@contextmanager
def row_groups_of(unfinished: Path) -> Generator[Any, None, None]:
    """Yield a function that appends a pyarrow table to a file as a row group.

    All tables must have the types of the first one.
    """
    writers: list[Any] = []

    def write(table: Any) -> None:
        if not writers:
            writers.append(pq.ParquetWriter(unfinished, table.schema))
        writers[0].write_table(table, row_group_size=max(len(table), 1))

    try:
        yield write
    except BaseException:
        for writer in writers:
            with suppress(Exception):  # the file is removed anyway
                writer.close()
        raise
    for writer in writers:
        writer.close()


# ---- rows in random order ------------------------------------------------------------------------


HASHES = "skgpstoch.hash"  # a column of buckets, or a longer name if there is one


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
        whole_file(path) as unfinished,
        folder_beside(unfinished) as folder,
        row_groups_of(unfinished) as write,
    ):
        buckets = Buckets(folder, n_buckets, n_buffer)
        for rows, table in tables:
            buckets.add(row_hashes(seed, rows), table)
        if buckets.schema is None:
            raise ValueError(f"There are 0 rows to write to {path}, but at least 1 is required.")
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
        self.n_buckets, self.width = n_buckets, 2.0**64 / n_buckets
        self.used: set[int] = set()  # those with rows, of as many as a file says that there are
        self.n_buffer = n_buffer
        self.held: list[Any] = []
        self.n_held = 0
        self.schema: Any = None
        self.hashes = HASHES

    def add(self, hashes: np.ndarray, table: Any) -> None:
        """Add rows with their hashes.

        Raises
        ------
        ValueError
            If there is no type for a column of these rows and of those before.
        """
        table = widened(table)
        with types_named():
            known = [table.schema] if self.schema is None else [self.schema, table.schema]
            self.schema = pa.unify_schemas(known, promote_options="permissive")
        while self.hashes in table.schema.names:
            self.hashes += "_"
        self.held.append(table.append_column(self.hashes, pa.array(hashes)))
        self.n_held += len(table)
        if 2 * self.n_held >= self.n_buffer:  # sorting makes one copy
            self.flush()

    def flush(self) -> None:
        """Append the held rows to the files, to each file as a new stream."""
        if not self.held:
            return
        table = self.in_order(self.held)
        self.held, self.n_held = [], 0
        hashes = table[self.hashes].to_numpy().astype(np.float64) + 2.0**63
        bucket = np.minimum(hashes / self.width, self.n_buckets - 1).astype(np.int64)
        used, starts, sizes = np.unique(bucket, return_index=True, return_counts=True)
        for k, start, size in zip(used.tolist(), starts, sizes, strict=True):
            self.used.add(k)
            with (
                self.path(k).open("ab") as file,
                pa.ipc.new_stream(file, table.schema) as stream,
            ):
                stream.write_table(table.slice(start, size))

    def path(self, k: int) -> Path:
        """Return the file of a bucket."""
        return self.folder / f"{k}.arrows"

    def tables(self) -> Iterator[Any]:
        """Yield the rows of each file in the order of hashes."""
        self.flush()
        for k in sorted(self.used):
            table = self.in_order(streams(self.path(k))).drop_columns([self.hashes])
            with types_named():
                table = table.cast(self.schema)
            yield table
            self.path(k).unlink()

    def in_order(self, tables: list[Any]) -> Any:
        """Join tables into one, in the order of hashes."""
        with types_named():
            table = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
        return table.take(np.argsort(table[self.hashes].to_numpy()))


def widened(table: Any) -> Any:
    """Return a table whose levels have numbers of 32 bits, because other chunks may have others."""
    changed = {}
    for j, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32:
            kind = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
            changed[j] = field.with_type(kind), table.column(j).cast(kind)
    return with_columns(table, changed)


@contextmanager
def types_named() -> Generator[None, None, None]:
    """Let errors of pyarrow say that types of columns do not go together."""
    try:
        yield
    except pa.ArrowException as error:
        raise ValueError(
            f"Chunks of rows have columns of types that do not go together: {error}. Give each "
            "column one type in all chunks."
        ) from error


def streams(path: Path) -> list[Any]:
    """Return the tables in a file, one for each stream."""
    tables = []
    with path.open("rb") as file:
        size = path.stat().st_size
        while file.tell() < size:
            tables.append(pa.ipc.open_stream(file).read_all())
    return tables
