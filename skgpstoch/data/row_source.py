"""Base class of sources of rows that need not fit into memory."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np

from .chunk import BESIDES_X, SAID, Chunk, as_target, checked
from .chunk_inputs import Inputs, fitted_transform, inputs_of, is_fitted
from .read_ahead import read_ahead
from .row_sample import SmallestHashes
from .shuffle_buffer import mixed

CHUNK_ROWS = 65_536
"""Rows that are read at a time."""

TRANSFORM_ROWS = 10_000
"""Random rows that a transformer is fitted on if it is not fitted yet."""


class RowSource(ABC):
    """A table that is read in chunks, as often as needed.

    A source consists of units, which can be read one by one: row groups, slices or chunks.

    Parameters
    ----------
    transform : transformer or None
        Applied to each chunk of X; if it is not fitted, a clone is fitted on random rows first.
    buffer_rows : int
        Room of the shuffle buffer.
    """

    def __init__(self, transform: Any, buffer_rows: int) -> None:
        self.transform = transform
        self.buffer_rows = positive(buffer_rows, "buffer_rows")
        self.is_learned = False  # whether a model was fitted to these rows

    @property
    @abstractmethod
    def n_rows(self) -> int | None:
        """How many rows there are; None as long as nobody has counted them."""

    @property
    @abstractmethod
    def n_units(self) -> int | None:
        """How many units can be read in any order; None if there is only one order."""

    @abstractmethod
    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield chunks as they are stored, with X before the transformation, array or frame.

        Parameters
        ----------
        generator : Generator or None
            Of the order of units; None: in order.
        """

    @abstractmethod
    def share(self, rank: int, size: int) -> Self:
        """Return the source of units rank, rank + size, ... alone; rows keep their numbers."""

    @property
    def stored_names(self) -> list[str] | None:
        """Names of the columns of X before the transformation, if there are any."""
        return None

    @property
    def files(self) -> list[str]:
        """The files that are read, as far as they are known."""
        return []

    # ---- what X is -----------------------------------------------------------------------------

    @cached_property
    def example(self) -> Chunk:
        """The first rows, as they are stored; at least one."""
        chunks = self.read(None)
        try:
            first = next((chunk for chunk in chunks if len(chunk)), None)
        finally:
            chunks.close()
        if first is None:
            raise ValueError(f"{self!r} has 0 rows, but at least 1 is required.")
        return first[:CHUNK_ROWS]

    @cached_property
    def inputs(self) -> Inputs:
        """How X is made of what is stored; fits the transformer if it is not fitted."""
        self.check_inputs()
        transform = fitted_transform(self.transform, self.sample_stored)
        return inputs_of(transform, self.example.X, self.stored_names, self.example.where)

    @property
    def transform_(self) -> Any:
        """The fitted transformer, for other rows: `ParquetRows(new, transform=rows.transform_)`."""
        return self.inputs.transform

    @property
    def has_new_transform(self) -> bool:
        """Whether the transformer is one of these rows, to which no model was fitted."""
        return not (self.is_learned or is_fitted(self.transform))

    def check_inputs(self) -> None:
        """Raise a ValueError if what is stored cannot be X as it is, and is not transformed."""
        return  # of most sources chunks tell

    @property
    def n_features(self) -> int:
        """How many columns X has."""
        return len(self.inputs.names)

    @property
    def feature_names(self) -> list[str] | None:
        """The names of X's columns; None if they have none."""
        return self.inputs.names if self.inputs.named else None

    @property
    def dtype(self) -> np.dtype:
        """The type of X: float32 if all that is stored is float32, else float64."""
        return self.inputs.dtype

    def sample_stored(self) -> tuple[Any, np.ndarray | None]:
        """Return random rows as they are stored: X, and y if there is one."""
        smallest = SmallestHashes(TRANSFORM_ROWS, seed=0)
        for chunk in self.read(None):
            smallest.add(chunk.counted())
        sample = smallest.sample()
        if sample is None:
            raise ValueError(f"{self!r} has no rows of positive weight to fit `transform` on.")
        return sample.X, sample.y

    def check_has_target(self) -> None:
        """Raise a ValueError if nothing is to be learned from these rows."""
        if self.example.y is None:
            raise ValueError(
                f"{self!r} must have a y to fit to. Name its column with ParquetRows(..., "
                "target=...), or pass y to SequenceRows, or put y into each chunk of "
                "ChunkRows."
            )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Raise a TypeError, where an array is asked for."""
        raise TypeError(
            f"{self!r} is read in chunks and cannot be used as an array. Pass it to fit of "
            "an estimator that trains on minibatches, and predict with "
            "skgpstoch.predict_to(model, rows, path). Pipelines and searches cannot take "
            "it; use its parameter `transform` for preprocessing."
        )

    # ---- passes --------------------------------------------------------------------------------

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in order, checked; the next chunk is read while one is used.

        Rows of weight 0 are among them.

        Raises
        ------
        ValueError
            If X is not finite, has another width or holds no numbers; or y, weights, exposures or
            errors of y are not what they should be. It names the file and row group, or the number
            of the chunk, and the column.
        """
        return read_ahead(self.checked(self.read(None)))

    def shuffled(self, seed: int, epoch: int, buffer_rows: int | None = None) -> Iterator[Chunk]:
        """Yield rows that have a weight in random order, each once, from a shuffle buffer.

        Parameters
        ----------
        seed, epoch : int
            The order is a function of these (and of the buffer).
        buffer_rows : int or None, default=None
            Room of the buffer; None is the source's own. Chunks have a sixteenth of it.
        """
        n_buffer = self.buffer_rows if buffer_rows is None else positive(buffer_rows, "buffer_rows")
        if self.n_rows is not None:
            n_buffer = max(1, min(n_buffer, self.n_rows))
        order, draws = (np.random.default_rng([seed, epoch, stream]) for stream in range(2))
        counted = map(Chunk.counted, self.checked(self.read(order)))
        return read_ahead(mixed(counted, n_buffer, draws))

    def checked(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Yield chunks with X as models see it, and all of it checked.

        None is kept while the next one is made: there would be two.
        """
        inputs, known = self.inputs, self.example
        y = None if known.y is None else as_target(known.y, known.where)

        def check(chunk: Chunk) -> Chunk:
            refuse_other_columns(chunk, known)
            if len(chunk) == 0:
                return chunk
            return with_target_of(checked(inputs(chunk), inputs.names, inputs.dtype), y)

        yield from filter(len, map(check, chunks))

    def shuffle_to(self, path: str | Path, seed: int = 0) -> None:
        """Write all rows in random order to a Parquet file, in bounded memory.

        Rows are sorted into buckets on the disk by hashes of their numbers, and each bucket by the
        same, so that the order depends on the seed alone. Columns are as they are stored, before
        any transformation; those without a name are called x0, x1, ..., and y, sample_weight,
        exposure and y_std. Beside the file there are temporary ones as large until it is written.

        Parameters
        ----------
        path : str or Path
            The file to write, which replaces one that is there.
        seed : int, default=0
            Of the order.

        Raises
        ------
        ValueError
            If these rows are read from that file.
        """
        from .bucket_shuffle import shuffle_tables  # needs pyarrow

        self.check_path(path)
        shuffle_tables(self.tables(), self.count(), Path(path), seed, self.buffer_rows)

    def check_path(self, path: str | Path) -> None:
        """Raise an error if a file cannot be written there, or these rows are read from it."""
        target = Path(path)
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
        """Return how many rows there are, by a pass over them if nobody has counted them."""
        if self.n_rows is None:
            return sum(len(chunk) for chunk in self.read(None))
        return self.n_rows

    def _limited(self, **attributes: Any) -> Self:
        """Return a copy with other attributes, which has the same inputs as all shares."""
        part = copy.copy(self)
        vars(part).update(example=self.example, **attributes)
        if self.transform is not None:  # else they follow from the first rows, where X is numbers
            vars(part).update(inputs=self.inputs)
        return part


def is_source(X: Any) -> bool:
    """Tell whether X is a source of rows; names of files are a TypeError."""
    names = X if isinstance(X, list | tuple) else [X]
    if names and all(isinstance(name, str | Path) for name in names):
        raise TypeError(
            f"X must be an array, a frame or a source of rows, got {X!r:.200}. Read files "
            "with skgpstoch.data.ParquetRows(paths, target=...)."
        )
    return isinstance(X, RowSource)


def check_no_source(X: Any) -> None:
    """Raise a TypeError if X is a source of rows, where an array is asked for."""
    if isinstance(X, RowSource):
        np.asarray(X)


def positive(value: Any, name: str) -> int:
    """Return a positive integer; anything else is a ValueError or a TypeError."""
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
    """Raise a ValueError if a chunk has a column that the first has not, or lacks one."""
    for name in BESIDES_X:
        has, had = getattr(chunk, name) is not None, getattr(known, name) is not None
        if has is not had:
            words = "has no" if had else "has"
            raise ValueError(
                f"{chunk.where} {words} {SAID.get(name, name)}, unlike {known.where}. All "
                "chunks must have the same parts."
            )


def with_target_of(chunk: Chunk, y: np.ndarray | None) -> Chunk:
    """Return a chunk with y in the type of the first y.

    Raises
    ------
    ValueError
        If y has another width, or cannot be converted.
    """
    if chunk.y is None or y is None:
        return chunk
    if chunk.y.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"{chunk.where}: y has shape {chunk.y.shape}, but the first y has {y.shape}."
        )
    if not np.can_cast(chunk.y.dtype, y.dtype, "same_kind"):
        raise ValueError(
            f"{chunk.where}: y has dtype {chunk.y.dtype}, but the first y has {y.dtype}: convert "
            "all to one type."
        )
    return replace(chunk, y=chunk.y.astype(y.dtype, copy=False))
