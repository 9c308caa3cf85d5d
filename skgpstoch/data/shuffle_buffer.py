"""Random rows of a stream, from a buffer of bounded size."""

from __future__ import annotations

import math
import mmap
from collections.abc import Generator, Iterable

import numpy as np

from .chunk import Chunk

BUFFER_PARTS = 16
"""A buffer gives a sixteenth of its rows at a time: it is nearly full then, and mixes best, and
what is on its way takes little memory beside it: three such parts, and one that is read."""


def mixed(
    chunks: Iterable[Chunk], n_buffer: int, generator: np.random.Generator
) -> Generator[Chunk, None, None]:
    """Yield the rows of chunks in random order, each once, n_buffer/16 of them at a time.

    They are drawn from a buffer of n_buffer rows that is filled up in turn: a row comes out at most
    that many places earlier than it went in.
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
        del chunk  # or it would be there beside the next one
    while buffer is not None and buffer.n_filled:
        yield buffer.take(generator)


class ShuffleBuffer:
    """Room for so many rows.

    Parameters
    ----------
    example : Chunk
        Which columns there are, and of which types.
    size : int
        How many rows it has room for.
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
        """Whether there is no more room."""
        return self.n_filled == self.size

    def put(self, chunk: Chunk) -> int:
        """Take in the first rows of a chunk, and return how many there was room for."""
        n = min(len(chunk), self.size - self.n_filled)
        for name, array in chunk.arrays().items():
            self.arrays[name][self.n_filled : self.n_filled + n] = array[:n]
        self.n_filled += n
        return n

    def take(self, generator: np.random.Generator) -> Chunk:
        """Remove random rows, and return these."""
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
    """Return a new array, like `numpy.empty`, whose memory the system gets back at its end.

    C's allocator may keep what a large array leaves, and be unable to use it for the next one.
    """
    if dtype.hasobject:
        return np.empty(shape, dtype)
    memory = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    return np.ndarray(shape, dtype, memory)
