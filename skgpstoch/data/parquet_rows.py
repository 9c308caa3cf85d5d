"""A row source that reads Parquet files by row group."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from .array_inputs import LONG_INTEGERS
from .chunk import Chunk, out_of_memory
from .frames import is_frame
from .read_ahead import BUFFER_PARTS
from .row_source import CHUNK_ROWS, RowSource, in_turn, share_of
from .whole_file import open_file

with suppress(ImportError):  # `facts_of` says what is missing
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .parquet_columns import checked, refuse_type, roles_of

READ_BYTES = 2**18
"""Bytes of a column that are read at a time, if a file is large; else all of a row group's."""

LARGE_FILE = 2**26
"""Bytes above which a file is large. pyarrow then takes the memory that a page says it needs."""

LEAST_PIECE = 1024
"""Fewest rows that are read at a time, however small the buffer, because each read costs time."""

FOOTER_END = 8
"""Bytes after a footer: its size, and the letters that mark the format."""

UNREADABLE_TYPE = (
    LookupError,
    TypeError,
    ValueError,
    AssertionError,
    AttributeError,
    RecursionError,
)


class RowGroup(NamedTuple):
    """A row group of a Parquet file."""

    path: str
    number: int
    first: int  # the number of its first row, counted over all files
    n_rows: int

    @property
    def where(self) -> str:
        """The file and the row group."""
        return f"{self.path}, row group {self.number}"


class Footer(NamedTuple):
    """What a file says of its row groups, and its stat when that was read."""

    stat: FileStat
    metadata: Any


class FileStat(NamedTuple):
    """What the system says of a file; it changes if the file does."""

    place: int
    size: int
    time: int  # of the last write, in nanoseconds


class FileIdentity(NamedTuple):
    """What tells whether a file is still the same: its stat, or else a digest of its footer."""

    stat: FileStat
    footer: bytes


def stat_of(file: BinaryIO) -> FileStat:
    """Return what the system says of an open file."""
    found = os.fstat(file.fileno())
    return FileStat(found.st_ino, found.st_size, found.st_mtime_ns)


class ParquetRows(RowSource):
    """Rows of Parquet files, to pass to `fit` in place of X; they need not fit into memory.

    Parameters
    ----------
    paths : str, Path or list of these
        A file, a directory of *.parquet files, a pattern such as "flights/*.parquet", or a list of
        these. The files of a directory or a pattern are sorted by name. `**` stands for folders of
        any depth, but for those behind symbolic links.
    target : str or list of str or None, default=None
        Column or columns of y. None: the rows have no targets and are only for predictions.
    features : list of str or None, default=None
        Columns of X. None: all columns of the first file that have no other role and are not the
        index of a pandas frame.
    sample_weight, exposure : str or None, default=None
        Column of the row weights, and column of the exposures of counts.
    y_std : str or list of str or None, default=None
        Columns of the known measurement errors of y, as standard deviations.
    transform : transformer or None, default=None
        Turns features that are not numbers into numbers, for example a `ColumnTransformer`. It is
        applied to each chunk, as a pandas frame. If it is not fitted, a clone is fitted to 10,000
        random rows, which takes one pass over the files. None: features must be numbers or
        booleans; nulls become NaN.
    buffer_rows : int, default=262_144
        Size of the shuffle buffer, in rows.

    Notes
    -----
    This needs pyarrow (`pip install pyarrow`). Files are read by row group, in pieces of a
    sixteenth of the buffer, at most 65,536 rows. Row groups of at most 100,000 rows shuffle best;
    each takes some milliseconds, so `shuffle_to` or another writer should join groups of few rows.
    """

    def __init__(
        self,
        paths: Any,
        target: str | Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        sample_weight: str | None = None,
        exposure: str | None = None,
        y_std: str | Sequence[str] | None = None,
        *,
        transform: Any = None,
        buffer_rows: int = 4 * CHUNK_ROWS,
    ) -> None:
        super().__init__(transform, buffer_rows)
        columns = {"y": target, "weight": sample_weight, "exposure": exposure, "y_std": y_std}
        given = {name: column for name, column in columns.items() if column is not None}
        found = {path: facts_of(path) for path in files_of(paths)}
        schemas = {path: schema for path, (schema, *_) in found.items()}
        self.roles = roles_of(schemas, features, given, transforms=transform is not None)
        self.types = {path: types_of(schema, self.roles.used) for path, schema in schemas.items()}
        self.identities = {path: identity for path, (*_, identity) in found.items()}
        sizes = {path: sizes for path, (_, sizes, _) in found.items()}
        self.units, self.lengths = row_groups(sizes), {path: sum(n) for path, n in sizes.items()}

    def __repr__(self) -> str:
        n_files = len({unit.path for unit in self.units})
        return (
            f"ParquetRows({n_files} files, {self.n_units} row groups, {self.n_rows:,} rows, "
            f"features={self.roles.features})"
        )

    @property
    def n_rows(self) -> int:
        """Number of rows, from the files' metadata."""
        return sum(unit.n_rows for unit in self.units)

    @property
    def files(self) -> list[str]:
        """The files that are read."""
        return list(dict.fromkeys(unit.path for unit in self.units))

    @property
    def n_units(self) -> int:
        """Number of row groups."""
        return len(self.units)

    def check_inputs(self) -> None:
        """Raise a ValueError if X needs a transformation but there is no `transform`."""
        if self.transform is None:
            for name in self.roles.features:
                refuse_type(name, self.roles.schema.field(name).type)

    @property
    def stored_names(self) -> list[str]:
        """Names of the columns of X before the transformation."""
        return self.roles.features

    @property
    def are_integers(self) -> np.ndarray:
        """Whether columns of X, (d,), are stored as 64-bit integers, and become floats."""
        if self.transform is not None:
            return super().are_integers
        kinds = [self.roles.schema.field(name).type for name in self.roles.features]
        return np.array([str(kind) in LONG_INTEGERS for kind in kinds])

    def share(self, rank: int, size: int) -> Self:
        """Return a source of only row groups rank, rank + size, ...; rows keep their numbers."""
        return self._limited(units=share_of(self.units, rank, size))

    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield row groups in pieces, in order, or in random order with a generator."""
        footers: dict[str, Footer] = {}
        for position in in_turn(self.n_units, generator):
            unit = self.units[position]
            to_chunk = partial(self.roles.chunk, unit.where)
            yield from starmap(to_chunk, self.pieces(unit, footers))  # keeps no piece alive

    def tables(self) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield row numbers and pyarrow tables of the columns that are used, in order."""
        footers: dict[str, Footer] = {}
        for unit in self.units:
            for rows, table in self.pieces(unit, footers):
                table = self.roles.as_common(table, self.roles.used, unit.where)
                yield rows, table.cast(self.roles.schema)

    def pieces(
        self, unit: RowGroup, footers: dict[str, Footer]
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield row numbers and tables of a row group, and keep none while the next is read.

        Footers that were read stay there, as they are as long as all row groups together.

        Raises
        ------
        ValueError
            If the row group cannot be read, or its columns or rows have changed since the file was
            opened.
        """
        done = 0

        def piece(batch: Any) -> tuple[np.ndarray, Any]:
            nonlocal done
            first, done = unit.first + done, done + len(batch)
            table = pa.Table.from_batches([batch]).select(self.roles.used)
            return np.arange(first, first + len(batch)), checked(table, unit.where)

        n_rows = min(CHUNK_ROWS, max(LEAST_PIECE, self.buffer_rows // BUFFER_PARTS))
        try:
            with open_file(unit.path) as stream:
                stat, footer = stat_of(stream), footers.get(unit.path)
                known = footer.metadata if footer is not None and footer.stat == stat else None
                at_once = READ_BYTES if stat.size > LARGE_FILE else 0
                file = pq.ParquetFile(stream, metadata=known, buffer_size=at_once, pre_buffer=False)
                if known is None:
                    refuse_changed(unit, self.types[unit.path], file.schema_arrow)
                    refuse_length(unit.path, self.lengths[unit.path], file.metadata.num_rows)
                    refuse_replaced(unit, self.identities[unit.path], stream)
                    footers[unit.path] = Footer(stat, file.metadata)
                yield from map(
                    piece,
                    file.iter_batches(n_rows, [unit.number], self.roles.used, use_threads=False),
                )
        except MemoryError as error:
            raise MemoryError(
                f"{out_of_memory(f'{n_rows:,} rows of {unit.where}', error)} Lower buffer_rows, of "
                "which a sixteenth is read at a time, or leave out columns of long texts. A file "
                "that is damaged may ask for as much."
            ) from error
        except FileNotFoundError as error:
            raise ValueError(
                f"{unit.where} cannot be read: there is no file {os.path.abspath(unit.path)!r} any "
                "more. Open the files again, by absolute paths if the working folder changes."
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            why = cause_of(error, "The file is damaged, or was changed while it was read.")
            raise ValueError(f"{unit.where} cannot be read: {error}. {why}") from error
        refuse_length(unit.where, unit.n_rows, done)


def types_of(schema: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the types of these columns of a file; columns that it lacks are left out."""
    wanted = set(names)
    return {field.name: field.type for field in schema if field.name in wanted}


def refuse_changed(unit: RowGroup, types: dict[str, Any], schema: Any) -> None:
    """Raise a ValueError if the columns of a file have changed."""
    found = types_of(schema, list(types))
    for name, kind in types.items():
        if found.get(name) != kind:
            raise ValueError(
                f"{unit.where}: column {name!r} is {found.get(name, 'missing')}, but was "
                f"{kind} when the file was opened. The file was changed; open it again."
            )


def refuse_replaced(unit: RowGroup, before: FileIdentity, file: BinaryIO) -> None:
    """Raise a ValueError if a file was written since it was opened, with other contents.

    A footer has the extremes and the sizes of columns, and so nearly always differs where rows do.
    """
    if stat_of(file) != before.stat and digest_of_footer(file) != before.footer:
        raise ValueError(
            f"{unit.where}: the file was written again after it was opened, with other rows or in "
            "another way. Open it again."
        )


def digest_of_footer(file: BinaryIO) -> bytes:
    """Return a digest of what a file says of its row groups, which is at its end."""
    file.seek(-FOOTER_END, os.SEEK_END)
    size = int.from_bytes(file.read(4), "little")
    file.seek(-FOOTER_END - size, os.SEEK_END)
    return hashlib.blake2b(file.read(size), digest_size=16).digest()


def refuse_length(where: str, before: int, now: int) -> None:
    """Raise a ValueError if the number of rows has changed."""
    if now != before:
        raise ValueError(
            f"{where} has {now} rows, but had {before} when it was opened. The file was changed; "
            "open it again."
        )


def row_groups(sizes: dict[str, list[int]]) -> list[RowGroup]:
    """Return the row groups of files, given their numbers of rows."""
    units, first = [], 0
    for path, counts in sizes.items():
        for number, n_rows in enumerate(counts):
            units.append(RowGroup(path, number, first, n_rows))
            first += n_rows
    return units


def files_of(paths: Any) -> list[str]:
    """Return the files of a path, a directory, a pattern or a list of these.

    Raises
    ------
    TypeError, ValueError
        If `paths` is none of these; if there is no such file.
    """
    if type(paths).__name__ == "LazyFrame" or is_frame(paths):
        raise TypeError(
            "paths must name Parquet files, got a frame. Write it to a file first (a "
            'polars LazyFrame with frame.sink_parquet("rows.parquet")) and pass the path, '
            "or use SequenceRows for a frame in memory."
        )
    is_list = isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike)
    given = list(paths) if is_list else [paths]
    if not all(isinstance(path, str | os.PathLike) for path in given):
        raise TypeError(f"paths must be a path, a pattern or a list of these, got {paths!r}.")
    files = [file for path in given for file in matches(os.fspath(path))]
    if not files:
        raise ValueError("paths must name at least one Parquet file, got an empty list.")
    return files


def matches(path: str) -> list[str]:
    """Return the files of one path, directory or pattern."""
    if os.path.isdir(path):
        found = sorted(glob.glob(os.path.join(glob.escape(path), "*.parquet")))
    else:
        found = [path] if os.path.exists(path) else sorted(found_by(path))
    if not found:
        raise ValueError(
            f"paths must name Parquet files, but there is none at {path!r}. A folder stands for "
            "the files in it that end in .parquet; give a pattern with ** for those further down. "
            "URLs and ~ are not followed."
        )
    return found


def found_by(pattern: str) -> set[str]:
    """Return what matches a pattern; `**` follows no links, which may lead back to themselves."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return set(glob.glob(pattern))
    k = parts.index("**")
    below, found = parts[k + 1 :] or ("*",), set()
    for root in glob.glob(os.path.join(*parts[:k])) if k else [os.curdir]:
        for folder, folders, _ in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found |= found_by(os.path.join(glob.escape(folder), *below))
    return found if k else {os.path.normpath(path) for path in found}


def cause_of(error: Exception, otherwise: str) -> str:
    """Say why a file cannot be read."""
    is_of_system = getattr(error, "errno", None) is not None  # and names the path
    is_encrypted = not is_of_system and "decrypt" in str(error).lower()
    return "It is encrypted; write it without encryption." if is_encrypted else otherwise


def facts_of(path: str) -> tuple[Any, list[int], FileIdentity]:
    """Return the schema of a file, the numbers of rows of its row groups, and its identity.

    Raises
    ------
    ImportError, ValueError
        If pyarrow is not installed; if the file is not a Parquet file, or is damaged.
    """
    if find_spec("pyarrow") is None:
        raise ImportError("ParquetRows needs pyarrow. Install it with `pip install pyarrow`.")
    try:
        with open_file(path) as stream:
            file = opened(stream, path)
            n_rows, found = file.metadata.num_rows, file.schema_arrow
            sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            identity = FileIdentity(stat_of(stream), digest_of_footer(stream))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of columns' names
        why = cause_of(error, "It is not a Parquet file, or writing it was cut short.")
        raise ValueError(f"{path} cannot be read as Parquet: {error}. {why}") from error
    if n_rows != sum(sizes):
        raise ValueError(
            f"{path} has {n_rows} rows, but its row groups have {sum(sizes)}. The file is damaged; "
            "write it again."
        )
    return found, sizes, identity


def opened(stream: BinaryIO, path: str) -> Any:
    """Return an open Parquet file; libraries that have types of their own read these.

    Raises
    ------
    ValueError
        If they cannot, as pandas if the frequency of a period is none.
    """
    try:
        return pq.ParquetFile(stream)
    except (pa.ArrowException, UnicodeDecodeError):
        raise
    except UNREADABLE_TYPE as error:
        raise ValueError(
            f"{path} cannot be read: the type of a column is damaged ({type(error).__name__}: "
            f"{error!s:.200}). Write the file again, with such columns as numbers or texts."
        ) from error
