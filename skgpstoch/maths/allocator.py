"""Tell the C library to keep freed memory."""

from __future__ import annotations

import contextlib

import numpy as np

LEARNED = 2**25 - 2**16
"""Size in bytes of the largest freed block from which glibc adapts its threshold."""


def keep_freed_memory() -> None:
    """Make glibc keep up to 64 MB of freed memory per thread, for this process.

    By default glibc returns freed memory to the system above twice the size of the largest block
    freed so far. If blocks have about a megabyte, all temporaries of a training step are returned
    and come back as page faults, which takes up to half of the time. This function allocates and
    frees one large block that is never written to, so it takes no memory and only microseconds.
    """
    with contextlib.suppress(MemoryError):
        np.empty(LEARNED, dtype=np.uint8)
