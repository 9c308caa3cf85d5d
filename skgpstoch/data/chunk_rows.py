"""A row source for iterators; each pass over the rows makes a new iterator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from .arrays import row_blocks
from .chunk import BESIDES_X, SAID, Chunk, out_of_memory, stored_arrays
from .frames import copied, is_frame, names_of, refuse_unstored, take
from .row_source import CHUNK_ROWS, RowSource, positive, refuse_rank

TUPLE = ("X", "y", "weight")  # meaning of a tuple's entries
GIVEN = {SAID.get(name, name): name for name in ("X", "y", "weight", "exposure", "y_std")}

ANEW = (
    "factory must return a new iterator each time it is called, over the same rows in the "
    "same order; it must not return an iterator that was used before."
)


class ChunkRows(RowSource):
    """Rows from an iterator of chunks, for example from a database, a CSV reader or a generator.

    Pass it to `fit` in place of X; the rows need not fit into memory.

    Parameters
    ----------
    factory : callable
        Function without arguments that returns a new iterator of chunks. It is called once for each
        pass over the rows. A chunk is X, a tuple (X, y) or (X, y, sample_weight), or a mapping with
        the keys X, y, sample_weight, exposure and y_std. Each pass must give the same rows in the
        same order. Chunks may have any size, also 0; at most 65,536 rows are used at a time. The
        function may fill one array again for each chunk.
    n_rows : int or None, default=None
        Total number of rows, if it is known. None: the first complete pass counts them.
    transform : transformer or None, default=None
        Transformer that is applied to each X, array or frame. If it is not fitted, a clone is
        fitted to 10,000 random rows, which takes one pass.
    buffer_rows : int, default=262_144
        Size of the shuffle buffer, in rows. Chunks cannot be read in another order, so rows are
        shuffled only within this buffer.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.data import ChunkRows
    >>> def chunks():
    ...     for day in range(3):
    ...         rng = np.random.default_rng(day)
    ...         yield rng.normal(size=(5, 2)), rng.normal(size=5)
    >>> [chunk.first for chunk in ChunkRows(chunks).chunks()]
    [0, 5, 10]
    """

    def __init__(
        self,
        factory: Callable[[], Iterable[Any]],
        n_rows: int | None = None,
        *,
        transform: Any = None,
        buffer_rows: int = 4 * CHUNK_ROWS,
    ) -> None:
        super().__init__(transform, buffer_rows)
        if not callable(factory):
            raise TypeError(
                "factory must be a function that returns a new iterator of chunks each "
                "time it is called, because the rows are read several times, got "
                f"{type(factory).__name__}. Write ChunkRows(lambda: make_chunks())."
            )
        self.factory = factory
        # Numbers of rows of whole passes and of the longest pass; shares of the rows add to it.
        self.seen = (
            {"most": 0} if n_rows is None else {"most": 0, "whole": positive(n_rows, "n_rows")}
        )
        self.n_shared = n_rows
        self.rank, self.size = 0, 1

    def __repr__(self) -> str:
        n_rows = self.seen.get("whole")
        known = "" if n_rows is None else f", {n_rows:,} rows"
        return f"ChunkRows({getattr(self.factory, '__name__', 'factory')}{known})"

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None before the first complete pass if `n_rows` was not given."""
        return self.n_shared

    @property
    def n_units(self) -> None:
        """None, because chunks can only be read in one order."""
        return None

    def share(self, rank: int, size: int) -> Self:
        """Return a source of only chunks rank, rank + size, ...; it skips the others."""
        refuse_rank(rank, size)
        part = {"rank": self.rank + self.size * rank, "size": self.size * size}
        return self._limited(n_shared=self.n_shared if size == 1 else None, **part)

    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield chunks in the iterator's order, whatever the generator."""
        first = n_shared = 0
        known = vars(self).get("example")  # the first rows, if they were read before
        columns: dict[str, list[str]] = {}
        for number, given in enumerate(made(self.pass_())):
            where = f"chunk {number}"
            parts = named_parts(given, where)
            n = length_of(parts["X"], where)
            if n:
                refuse_other_names(parts, columns, where)
            self.counted(first + n)
            if known is not None and n and not first:
                self.refuse_other_rows(known, next(pieces(parts, 0, n, where)))
            if number % self.size == self.rank:
                n_shared += n
                yield from pieces(parts, first, n, where)
            first += n
        self.counted(first, is_whole=True)
        self.n_shared = n_shared

    def pass_(self) -> Iterator[Any]:
        """Return a new iterator of chunks."""
        made = self.factory()
        is_table = is_frame(made) or isinstance(made, np.ndarray | Mapping)
        if is_table or not hasattr(made, "__iter__"):
            raise TypeError(
                f"factory must return an iterator of chunks, got {type(made).__name__}. Use "
                "SequenceRows for arrays."
            )
        return iter(made)

    def refuse_other_rows(self, known: Chunk, found: Chunk) -> None:
        """Raise a ValueError if a pass does not begin with the same rows as the first pass."""
        n = min(len(known), len(found))
        if not same_rows(known[:n], found[:n]):
            raise ValueError(
                f"{self!r}: {found.where} begins with other rows than in the first pass. {ANEW}"
            )

    def counted(self, n_rows: int, is_whole: bool = False) -> None:
        """Keep the number of rows that a pass has given so far, or in all if it `is_whole`.

        Raises
        ------
        ValueError
            If earlier passes, or the given `n_rows`, tell of fewer rows, or of more than a whole
            pass has.
        """
        expected = self.seen.get("whole", max(n_rows, self.seen["most"]))
        if n_rows > expected or (is_whole and n_rows < expected):
            raise ValueError(
                f"{self!r} gave {n_rows:,} rows in this pass, but {expected:,} were "
                f"expected from an earlier pass or from n_rows. {ANEW}"
            )
        self.seen["most"] = max(self.seen["most"], n_rows)
        if is_whole:
            self.seen["whole"] = n_rows


def same_rows(first: Chunk, second: Chunk) -> bool:
    """Tell whether two stored chunks hold the same values, including missing ones."""
    A, B = first.X, second.X
    same_X = (type(A) is type(B) and bool(A.equals(B))) if is_frame(A) else same_values(A, B)
    pairs = ((getattr(first, name), getattr(second, name)) for name in BESIDES_X)
    return same_X and all(a is b or same_values(a, b) for a, b in pairs)


def same_values(a: Any, b: Any) -> bool:
    """Tell whether two arrays are equal, including missing values."""
    return np.shape(a) == np.shape(b) and bool(np.all((a == b) | ((a != a) & (b != b))))


def named_parts(given: Any, where: str) -> dict[str, Any]:
    """Return a chunk's arrays by name (X, y, weight, exposure, y_std).

    Raises
    ------
    ValueError
        If the chunk is not an array, a tuple of two or three, or a mapping with the known keys.
    """
    if is_frame(given) or not isinstance(given, tuple | list | Mapping):
        return {"X": given}
    if isinstance(given, Mapping):
        if not {"X"} <= given.keys() <= GIVEN.keys():
            raise ValueError(
                f"{where}: keys must be X and some of {', '.join(list(GIVEN)[1:])}, got "
                f"{', '.join(map(str, given))}."
            )
        named = {GIVEN[name]: values for name, values in given.items()}
    else:
        if not 1 <= len(given) <= len(TUPLE):
            raise ValueError(
                f"{where} must be X, (X, y) or (X, y, sample_weight), got {len(given)} parts."
            )
        named = dict(zip(TUPLE, given, strict=False))
    return {name: values for name, values in named.items() if name == "X" or values is not None}


def made(chunks: Iterator[Any]) -> Iterator[Any]:
    """Yield chunks; a MemoryError says which one did not fit."""
    for number in itertools.count():
        try:
            given = next(chunks)
        except StopIteration:
            return
        except MemoryError as error:
            words = out_of_memory(f"chunk {number}", error)
            raise MemoryError(f"{words} Make smaller chunks.") from error
        yield given


def refuse_other_names(parts: dict[str, Any], known: dict[str, list[str]], where: str) -> None:
    """Raise a ValueError if a frame of targets has other columns than the first one, in `known`."""
    for part in ("y", "y_std"):
        names = names_of(parts.get(part))
        if names is not None and len(names) > 1 and names != known.setdefault(part, names):
            raise ValueError(
                f"{where}: {part} has the columns {names}, but in the first rows {known[part]}. "
                "All chunks must have the same columns in the same order."
            )


def length_of(X: Any, where: str) -> int:
    """Return the number of rows of a chunk."""
    refuse_unstored(X, f"{where}: X")
    if not hasattr(X, "__len__"):
        raise TypeError(f"{where}: X must be an array or a frame, got {type(X).__name__}.")
    return len(X)


def pieces(parts: dict[str, Any], first: int, n: int, where: str) -> Iterator[Chunk]:
    """Yield a chunk in pieces of bounded size; arrays are copied, as they may be filled again."""
    arrays = stored_arrays(parts, where)
    for name, array in arrays.items():
        if len(array) != n:
            raise ValueError(
                f"{where}: {SAID.get(name, name)} has shape {np.shape(array)}, but X has {n} rows."
            )
    for rows in row_blocks(n, CHUNK_ROWS):
        cut = {name: copied(take(array, rows)) for name, array in arrays.items()}
        yield Chunk(rows=np.arange(first + rows.start, first + rows.stop), where=where, **cut)
