"""Read rows ahead in the background, and in random order from a buffer of bounded size."""

from __future__ import annotations

import contextvars
import math
import mmap
import queue
import threading
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeVar, cast

import numpy as np

from .chunk import Chunk

T = TypeVar("T")

LONGEST_WAIT = 10.0
"""Longest wait, in seconds, for a read that is under way when its rows are no longer needed."""


class Made(NamedTuple):
    """An item, or the error raised in its place: StopIteration at the end."""

    item: object
    error: BaseException | None = None


def read_ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield items, while a background thread makes the next item, and only that one.

    The thread starts when the first item is requested. It ends with this iterator: at the last
    item, when the iterator is closed or collected, after Ctrl-C and after errors, which are raised
    here. It is a daemon, so a read that hangs does not keep the process alive.

    Examples
    --------
    >>> from skgpstoch.data.read_ahead import read_ahead
    >>> list(read_ahead(i**2 for i in range(4)))
    [0, 1, 4, 9]
    """
    made: queue.SimpleQueue[Made] = queue.SimpleQueue()
    wanted, stopped = threading.Semaphore(1), threading.Event()

    def produce() -> None:
        try:
            while wanted.acquire() and not stopped.is_set():
                made.put(Made(next(items)))
        except BaseException as error:  # Ctrl-C too: all errors are raised in the reader's thread
            made.put(Made(None, error))
        finally:
            items.close()

    context = contextvars.copy_context()  # NumPy's errstate
    thread = threading.Thread(target=context.run, args=(produce,), daemon=True, name="read_ahead")
    thread.start()
    try:
        while True:
            got = made.get()
            wanted.release()
            if isinstance(got.error, StopIteration):
                return
            if got.error is not None:
                raise got.error
            yield cast(T, got.item)
            del got  # else three items would be in memory
    finally:
        stopped.set()
        wanted.release()
        thread.join(LONGEST_WAIT)


# ---- random order --------------------------------------------------------------------------------


BUFFER_PARTS = 16
"""A buffer returns a sixteenth of its rows at a time. So it stays nearly full, which mixes best,
and rows in transit need little memory: three such parts, and a chunk that is being read."""


def mixed(
    chunks: Iterable[Chunk], n_buffer: int, generator: np.random.Generator
) -> Generator[Chunk, None, None]:
    """Yield the rows of chunks in random order, each once, n_buffer/16 of them at a time.

    Rows are drawn from a buffer of n_buffer rows, which is then filled again. A row comes out at
    most n_buffer places earlier than it went in.
    """
    buffer: ShuffleBuffer | None = None
    for chunk in chunks:
        if buffer is None:
            buffer = ShuffleBuffer(chunk, n_buffer)
        start = 0
        while start < len(chunk):
            start += buffer.put(chunk[start:])
            if buffer.is_full:
                yield buffer.take(generator)
        del chunk  # else it would be in memory together with the next one
    while buffer is not None and buffer.n_filled:
        yield buffer.take(generator)


class ShuffleBuffer:
    """A buffer for a fixed number of rows.

    Parameters
    ----------
    example : Chunk
        A chunk with the columns, and their types, that the buffer must hold.
    size : int
        Largest number of rows in the buffer.
    """

    def __init__(self, example: Chunk, size: int) -> None:
        self.size = size
        self.n_filled = 0
        self.arrays = {
            name: returned_empty((size, *array.shape[1:]), array.dtype)
            for name, array in example.arrays().items()
        }

    @property
    def is_full(self) -> bool:
        """Whether the buffer has no more room."""
        return self.n_filled == self.size

    def put(self, chunk: Chunk) -> int:
        """Add as many first rows of a chunk as there is room for, and return their number."""
        n = min(len(chunk), self.size - self.n_filled)
        for name, array in chunk.arrays().items():
            self.arrays[name][self.n_filled : self.n_filled + n] = array[:n]
        self.n_filled += n
        return n

    def take(self, generator: np.random.Generator) -> Chunk:
        """Remove random rows, and return them."""
        n = min(self.n_filled, -(-self.size // BUFFER_PARTS))
        chosen = generator.choice(self.n_filled, n, replace=False)
        taken = {name: array[chosen] for name, array in self.arrays.items()}
        self.n_filled -= n
        stays = np.ones(n, dtype=bool)
        stays[chosen[chosen >= self.n_filled] - self.n_filled] = False
        last = self.n_filled + np.flatnonzero(stays)
        holes = chosen[chosen < self.n_filled]
        for array in self.arrays.values():
            array[holes] = array[last]
        return Chunk(where="shuffle buffer", **taken)


def returned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a new array, like `numpy.empty`, whose memory returns to the system when it is freed.

    C's allocator may keep the memory of a large array, and be unable to use it for the next one.
    """
    if dtype.hasobject:
        return np.empty(shape, dtype)
    memory = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    return np.ndarray(shape, dtype, memory)
