"""A row source for anything that can be sliced: memory maps, HDF5, zarr, arrays."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self

import numpy as np

from .chunk import SAID, Chunk, out_of_memory, stored_arrays
from .frames import copied, names_of, refuse_unstored
from .row_source import CHUNK_ROWS, RowSource, in_turn, positive, share_of


class SequenceRows(RowSource):
    """Rows of sliceable arrays, to pass to `fit` in place of X; they need not fit into memory.

    Parameters
    ----------
    X : sequence of shape (n, d)
        Inputs: any object that has a length or a shape, and whose slices are arrays or frames of
        rows. Examples are `numpy.memmap`, h5py and zarr datasets, arrays, frames, and your own
        objects with `__len__` and `__getitem__`.
    y : sequence of shape (n,) or (n, P), or None, default=None
        Targets, of the same kinds. None: the rows are only for predictions.
    sample_weight, exposure : sequence of shape (n,) or None, default=None
        Row weights (how many rows each counts for), and the exposures that multiply the rates of
        counts.
    y_std : sequence of the shape of y or None, default=None
        Known measurement errors of y, as standard deviations.
    transform : transformer or None, default=None
        Transformer that is applied to each slice of X. If it is not fitted, a clone is fitted to
        10,000 random rows.
    chunk_rows : int, default=65_536
        Number of rows in a slice.
    buffer_rows : int, default=262_144
        Size of the shuffle buffer, in rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.data import SequenceRows
    >>> rows = SequenceRows(np.eye(10), np.arange(10.0), chunk_rows=4)
    >>> [len(chunk) for chunk in rows.chunks()]
    [4, 4, 2]
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        exposure: Any = None,
        y_std: Any = None,
        *,
        transform: Any = None,
        chunk_rows: int = CHUNK_ROWS,
        buffer_rows: int = 4 * CHUNK_ROWS,
    ) -> None:
        super().__init__(transform, buffer_rows)
        refuse_unstored(X, "X")
        self.X = X
        columns = {"y": y, "weight": sample_weight, "exposure": exposure, "y_std": y_std}
        self.columns = {name: column for name, column in columns.items() if column is not None}
        self.n_total = length(X, "X")
        for name, column in self.columns.items():
            said = SAID.get(name, name)
            if length(column, said) != self.n_total:
                raise ValueError(
                    f"{said} must have one value for each row of X, {self.n_total}, got "
                    f"{length(column, said)}."
                )
        self.chunk_rows = positive(chunk_rows, "chunk_rows")
        self.starts = np.arange(0, self.n_total, self.chunk_rows)

    def __repr__(self) -> str:
        return f"SequenceRows({type(self.X).__name__} of {self.n_total:,} rows)"

    @property
    def files(self) -> list[str]:
        """Files behind memory maps, and behind datasets that know their file."""
        found = []
        for column in (self.X, *self.columns.values()):
            while isinstance(column, np.ndarray) and not isinstance(column, np.memmap):
                column = column.base  # the array that a view belongs to
            owner = getattr(column, "file", column)  # h5py datasets have it
            found.append(getattr(owner, "filename", None))
        return [str(name) for name in found if name is not None]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(np.minimum(self.chunk_rows, self.n_total - self.starts).sum())

    @property
    def n_units(self) -> int:
        """Number of slices."""
        return len(self.starts)

    @property
    def stored_names(self) -> list[str] | None:
        """Column names, if X is a frame."""
        return names_of(self.X)

    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield slices in order, or in random order with a generator.

        Raises
        ------
        ValueError
            If rows cannot be read, or X is longer or shorter than when the source was made.
        """
        if (n_now := length(self.X, "X")) != self.n_total:
            raise ValueError(
                f"X has {n_now} rows, but had {self.n_total} when SequenceRows was made. Make it "
                "again."
            )
        for start in self.starts[in_turn(len(self.starts), generator)].tolist():
            yield self.slice(start, min(start + self.chunk_rows, self.n_total))

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows start, …, stop − 1 as they are stored.

        They are copies, as a transformer may write into them, and a store fill its buffer again.
        """
        where = f"rows {start} to {stop - 1}"
        try:
            parts = {"X": self.X, **self.columns}
            parts = {name: array[start:stop] for name, array in parts.items()}
            arrays = {k: copied(array) for k, array in stored_arrays(parts, where).items()}
        except MemoryError as error:
            raise MemoryError(f"{out_of_memory(where, error)} Lower chunk_rows.") from error
        except (OSError, EOFError, LookupError, StopIteration) as error:
            raise ValueError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
        refuse_unstored(arrays["X"], f"{where}: X")
        return Chunk(rows=np.arange(start, stop), where=where, **arrays)

    def share(self, rank: int, size: int) -> Self:
        """Return a source of only slices rank, rank + size, ...; rows keep their numbers."""
        return self._limited(starts=share_of(self.starts, rank, size))


def length(values: Any, name: str) -> int:
    """Return the number of rows of a sequence; raise a TypeError without a shape and a length."""
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) > 0:
        return int(shape[0])
    if hasattr(values, "__len__") and hasattr(values, "__getitem__"):
        return len(values)
    raise TypeError(
        f"{name} must have a shape or a length, and slices, got {type(values).__name__}. "
        "Use ChunkRows(factory) for iterators."
    )
