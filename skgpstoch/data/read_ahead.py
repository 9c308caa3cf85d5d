"""Read the next item in the background while the current one is used."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Generator
from typing import NamedTuple, TypeVar, cast

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
