"""Write Parquet files by row group: whole, or not at all."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .chunk import SAID, Chunk
from .stored import is_frame
from .whole_file import whole_file


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
    with parquet_file(path) as write:
        for group in arrays:
            columns = list(group.T) if isinstance(group, np.ndarray) and group.ndim == 2 else group
            table = table_from(columns, column_names)
            schema = table.schema if schema is None else schema
            write(table.cast(schema))
        if schema is None:
            write(table_from([np.empty(0)] * len(column_names), column_names))


def table_from(columns: Sequence[Any], names: Sequence[str]) -> Any:
    """Return a pyarrow table of arrays (m,)."""
    import pyarrow as pa

    if len(columns) != len(names):
        raise ValueError(
            f"There must be {len(names)} columns ({', '.join(names)}), got {len(columns)}."
        )
    return pa.table([pa.array(np.ascontiguousarray(c)) for c in columns], names=list(names))


def table_of(chunk: Chunk, names: Sequence[str] | None) -> Any:
    """Return a pyarrow table of a chunk; columns of X without a name are x0, x1, ..."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if is_frame(chunk.X):
        for name in chunk.X.columns:
            columns[str(name)] = pa.array(chunk.X[name])
    else:
        known = [f"x{j}" for j in range(chunk.X.shape[1])] if names is None else names
        columns |= dict(zip(known, np.ascontiguousarray(chunk.X.T), strict=True))
    for name, array in chunk.arrays().items():
        if name in ("X", "rows"):
            continue
        parts = array.reshape(len(chunk), -1).T
        for j, part in enumerate(parts):
            key = SAID.get(name, name) + (f"{j}" if len(parts) > 1 else "")
            columns[key] = np.ascontiguousarray(part)
    return pa.table(columns)


@contextmanager
def parquet_file(path: str | Path) -> Generator[Any, None, None]:
    """Yield a function that appends a pyarrow table as a row group.

    The file gets its name at the end of the block, and is removed after an error. All tables must
    have the types of the first one.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow. Install it with `pip install pyarrow`."
        ) from error
    writers: list[Any] = []
    with whole_file(path) as unfinished:

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
