"""Base class of row sources, which read rows that need not fit into memory."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from .array_inputs import of_long_integers
from .chunk import (
    BESIDES_X,
    SAID,
    Chunk,
    Inputs,
    as_target,
    checked,
    fitted_transform,
    inputs_of,
    is_fitted,
    refuse_dimensions,
)
from .frames import names_of
from .read_ahead import mixed, read_ahead
from .row_sample import SmallestHashes
from .whole_file import checked_path

CHUNK_ROWS = 65_536
"""Number of rows that are read at a time."""

TRANSFORM_ROWS = 10_000
"""Number of random rows to which a transformer is fitted if it is not fitted yet."""

MOST_BUFFERS = 512
"""Rows of more buffers are counted before they are shuffled: a file that says 2⁶² rows would have
a temporary file for each of its rows."""


class RowSource(ABC):
    """A table that is read in chunks, as often as needed.

    A source consists of units (row groups, slices or chunks), which are read one by one.

    Parameters
    ----------
    transform : transformer or None
        Transformer that is applied to each chunk of X. If it is not fitted, a clone is fitted to
        random rows first.
    buffer_rows : int
        Size of the shuffle buffer, in rows.
    """

    def __init__(self, transform: Any, buffer_rows: int) -> None:
        self.transform = transform
        self.buffer_rows = positive(buffer_rows, "buffer_rows")
        self.is_learned = False  # whether a model was fitted to these rows

    @property
    @abstractmethod
    def n_rows(self) -> int | None:
        """Number of rows; None until they have been counted."""

    @property
    @abstractmethod
    def n_units(self) -> int | None:
        """Number of units that can be read in any order; None if there is only one order."""

    @abstractmethod
    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield chunks as they are stored: X is an array or a frame, not yet transformed.

        Parameters
        ----------
        generator : Generator or None
            Random generator for the order of units; None: stored order.
        """

    @abstractmethod
    def share(self, rank: int, size: int) -> Self:
        """Return a source of only units rank, rank + size, ...; rows keep their numbers."""

    @property
    def stored_names(self) -> list[str] | None:
        """Names of the columns of X before the transformation; None if they have no names."""
        return None

    @property
    def files(self) -> list[str]:
        """Files that are read, if they are known."""
        return []

    # ---- what X is -----------------------------------------------------------------------------

    @cached_property
    def example(self) -> Chunk:
        """The first rows as they are stored; at least one row."""
        chunks = self.read(None)
        try:
            first = next((chunk for chunk in chunks if len(chunk)), None)
        finally:
            chunks.close()
        if first is None:
            raise ValueError(f"{self!r} has 0 rows, but at least 1 is required.")
        if np.shape(first.X)[1:] == (0,):
            raise ValueError(
                f"Found array with 0 feature(s) (shape={np.shape(first.X)}) while a minimum of 1 "
                f"is required, in {first.where}."
            )
        return first[:CHUNK_ROWS]

    @cached_property
    def inputs(self) -> Inputs:
        """The function from stored rows to X; it fits the transformer if it is not fitted."""
        self.check_inputs()
        transform = fitted_transform(self.transform, self.sample_stored)
        return inputs_of(transform, self.example.X, self.stored_names, self.example.where)

    @property
    def transform_(self) -> Any:
        """The fitted transformer, for other rows: `ParquetRows(new, transform=rows.transform_)`."""
        return self.inputs.transform

    @property
    def has_new_transform(self) -> bool:
        """Whether the transformer is fitted to these rows, and no model was fitted to them yet."""
        return not (self.is_learned or is_fitted(self.transform))

    def check_inputs(self) -> None:
        """Raise a ValueError if stored rows need a transformation but there is no `transform`."""
        return  # most sources can only check the chunks

    @property
    def n_features(self) -> int:
        """Number of columns of X."""
        return len(self.inputs.names)

    @property
    def feature_names(self) -> list[str] | None:
        """The names of X's columns; None if they have none."""
        return self.inputs.names if self.inputs.named else None

    @property
    def dtype(self) -> np.dtype:
        """Type of X: float32 if all stored columns are float32, otherwise float64."""
        return self.inputs.dtype

    @property
    def are_integers(self) -> np.ndarray:
        """Whether columns of X, (d,), are stored as 64-bit integers, and become floats."""
        if self.transform is not None:
            return np.zeros(self.n_features, dtype=bool)
        return of_long_integers(self.example.X)

    def sample_stored(self) -> tuple[Any, np.ndarray | None]:
        """Return random rows as they are stored: X, and y if there are targets."""
        smallest = SmallestHashes(TRANSFORM_ROWS, seed=0)
        for chunk in self.read(None):
            refuse_other_columns(chunk, self.example)
            smallest.add(chunk.counted())
        sample = smallest.sample()
        if sample is None:
            raise ValueError(f"{self!r} has no rows of positive weight to fit `transform` on.")
        return sample.X, sample.y

    def check_has_target(self) -> None:
        """Raise a ValueError if the rows have no targets."""
        if self.example.y is None:
            raise ValueError(
                f"{self!r} must have a y to fit to. Name its column with ParquetRows(..., "
                "target=...), or pass y to SequenceRows, or put y into each chunk of "
                "ChunkRows."
            )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Raise a TypeError, because a row source cannot be used as an array."""
        self.refuse_as_array()

    def refuse_as_array(self) -> NoReturn:
        """Raise a TypeError that says what to do instead, without reading rows."""
        raise TypeError(
            f"{self!r} is read in chunks and cannot be used as an array. Pass it to fit of "
            "an estimator that trains on minibatches, and predict with "
            "skgpstoch.predict_to(model, rows, path). Pipelines and searches cannot take "
            "it; use its parameter `transform` for preprocessing."
        )

    # ---- passes --------------------------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in order, checked, including those of weight 0.

        The next chunk is read while the current one is used.

        Raises
        ------
        ValueError
            If X is not finite, has another number of columns or is not numeric, or if y, weights,
            exposures or errors of y are invalid. The message names the file and row group, or the
            chunk's number, and the column.
        """
        return read_ahead(self.checked(self.read(None)))

    def known(self, n_sample: int) -> Any:
        """Return what an earlier pass has found (:func:`~.scan.scan`); None if there was none."""
        return None

    def shuffled(self, seed: int, epoch: int, buffer_rows: int | None = None) -> Iterator[Chunk]:
        """Yield the rows of positive weight in random order, each once, from a shuffle buffer.

        Parameters
        ----------
        seed, epoch : int
            Seed and number of the epoch; together with the buffer size they determine the order.
        buffer_rows : int or None, default=None
            Size of the buffer, in rows; None: the source's `buffer_rows`. Chunks have a sixteenth
            of it.
        """
        n_buffer = self.buffer_rows if buffer_rows is None else positive(buffer_rows, "buffer_rows")
        if self.n_rows is not None:
            n_buffer = max(1, min(n_buffer, self.n_rows))
        order, draws = (np.random.default_rng([seed, epoch, stream]) for stream in range(2))
        counted = map(Chunk.counted, self.checked(self.read(order)))
        return read_ahead(mixed(counted, n_buffer, draws))

    def checked(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Yield chunks with X transformed and everything checked.

        No chunk is kept while the next one is made, so that memory holds only one.
        """
        inputs, known = self.inputs, self.example
        y = None if known.y is None else as_target(known.y, known.where)

        def check(chunk: Chunk) -> Chunk:
            refuse_other_columns(chunk, known)
            if len(chunk) == 0:
                return chunk
            return with_target_of(checked(inputs(chunk), inputs.names, inputs.dtype), y)

        yield from filter(len, map(check, chunks))

    def shuffle_to(self, path: str | Path, seed: Any = 0) -> None:
        """Write all rows in random order to a Parquet file, in bounded memory.

        Rows are distributed over buckets on disk by hashes of their numbers, and each bucket is
        sorted by the same hashes. So the order depends only on the seed. Columns are written as
        they are stored, before any transformation. Columns of X without a name are called x0, x1,
        ...; the others y, sample_weight, exposure and y_std. While it runs, temporary files of the
        same total size are beside the new file.

        Parameters
        ----------
        path : str or Path
            The file to write; an existing file is replaced.
        seed : int, default=0
            Seed of the random order.

        Raises
        ------
        ValueError
            If the rows are read from this file.
        """
        from .parquet_writer import shuffle_tables  # needs pyarrow

        self.check_path(path)
        if not isinstance(seed, Integral):
            raise TypeError(f"seed must be an integer, got {seed!r:.80}.")
        shuffle_tables(self.tables(), self.count(), Path(path), int(seed), self.buffer_rows)

    def check_path(self, path: str | Path) -> None:
        """Raise an error if a file cannot be written there, or these rows are read from it."""
        target = checked_path(path)
        if any(target.resolve() == Path(name).resolve() for name in self.files):
            raise ValueError(
                f"path must not be one of the files that are read, got {str(target)!r}, "
                "which would be overwritten."
            )
        if target.is_dir():
            raise IsADirectoryError(f"path must be a file, got the folder {str(target)!r}.")
        if not target.parent.is_dir():
            raise FileNotFoundError(
                f"path must be in an existing folder, got {str(target)!r}. Create "
                f"{str(target.parent)!r} first."
            )

    def tables(self) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield row numbers and pyarrow tables of all that is stored, in order."""
        from .parquet_writer import table_of  # needs pyarrow

        for chunk in self.read(None):
            if len(chunk):
                yield chunk.rows, table_of(chunk, self.stored_names)

    def count(self) -> int:
        """Return the number of rows; read them all unless there are few by what files say."""
        told = self.n_rows
        if told is None or told > MOST_BUFFERS * self.buffer_rows:
            return sum(len(chunk) for chunk in self.read(None))
        return told

    def _limited(self, **attributes: Any) -> Self:
        """Return a copy with other attributes; it shares the source's example and transformer."""
        part = copy.copy(self)
        vars(part).update(example=self.example, **attributes)
        if self.transform is not None:  # else the first rows determine them
            vars(part).update(inputs=self.inputs)
        return part


def is_source(X: Any) -> bool:
    """Tell whether X is a row source; raise a TypeError if X is the name of a file."""
    names = X if isinstance(X, list | tuple) else [X]
    if names and all(isinstance(name, str | Path) for name in names):
        raise TypeError(
            f"X must be an array, a frame or a source of rows, got {X!r:.200}. Read files "
            "with skgpstoch.data.ParquetRows(paths, target=...)."
        )
    return isinstance(X, RowSource)


def check_no_source(X: Any) -> None:
    """Raise a TypeError if X is a row source, for methods that need an array."""
    if isinstance(X, RowSource):
        np.asarray(X)


def positive(value: Any, name: str) -> int:
    """Return a positive integer; raise a ValueError or a TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
    return int(value)


def refuse_rank(rank: int, size: int) -> None:
    """Raise a ValueError if there is no such rank."""
    if not 0 <= rank < positive(size, "size"):
        raise ValueError(f"rank must be between 0 and {size - 1}, got {rank}.")


def share_of(units: Any, rank: int, size: int) -> Any:
    """Return units rank, rank + size, ..."""
    refuse_rank(rank, size)
    return units[rank::size]


def in_turn(n: int, generator: np.random.Generator | None) -> np.ndarray:
    """Return positions of n units in random order, or in order without a generator."""
    return np.arange(n) if generator is None else generator.permutation(n)


def refuse_other_columns(chunk: Chunk, known: Chunk) -> None:
    """Raise a ValueError if a chunk has other columns than the first chunk."""
    for name in BESIDES_X:
        has, had = getattr(chunk, name) is not None, getattr(known, name) is not None
        if has is not had:
            words = "has no" if had else "has"
            raise ValueError(
                f"{chunk.where} {words} {SAID.get(name, name)}, unlike {known.where}. All "
                "chunks must have the same parts."
            )
    names, first = names_of(chunk.X) or [], names_of(known.X) or []
    n, n_known = np.shape(chunk.X)[1:], np.shape(known.X)[1:]
    if len(n_known) == 1:
        refuse_dimensions(chunk.X, chunk.where)
    if len(n) == len(n_known) == 1 and n != n_known:
        differ = {"lacks": set(first) - set(names), "adds": set(names) - set(first)}
        said = [f" It {verb} {sorted(some)}." for verb, some in differ.items() if some]
        raise ValueError(
            f"{chunk.where}: X has {n[0]} columns, but the first rows have {n_known[0]}."
            f"{''.join(said) if names and first else ''}"
        )
    for name, expected in zip(names, first, strict=False):
        if name != expected:
            raise ValueError(
                f"{chunk.where}: X has the column {name!r} where {known.where} has {expected!r}. "
                "All chunks must have the same columns in the same order."
            )


def refuse_other_outputs(chunk: Chunk, y: np.ndarray) -> None:
    """Raise a ValueError if y of a chunk has another number of outputs than the first y."""
    if chunk.y is not None and chunk.y.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"{chunk.where}: y has shape {chunk.y.shape}, but the first y has {y.shape}."
        )


def with_target_of(chunk: Chunk, y: np.ndarray | None) -> Chunk:
    """Return a chunk with y in the dtype of the first chunk's y.

    Raises
    ------
    ValueError
        If y has another number of outputs, or cannot be converted.
    """
    if chunk.y is None or y is None:
        return chunk
    refuse_other_outputs(chunk, y)
    if not np.can_cast(chunk.y.dtype, y.dtype, "same_kind"):
        raise ValueError(
            f"{chunk.where}: y has dtype {chunk.y.dtype}, but the first y has {y.dtype}: convert "
            "all to one type."
        )
    return replace(chunk, y=chunk.y.astype(y.dtype, copy=False))
