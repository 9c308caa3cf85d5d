"""Run searches as joblib jobs, with the same result in any process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads_as(n_threads: int) -> Iterator[None]:
    """Let torch use `n_threads` threads in the block, as in the process that started the job.

    With another number of threads, sums are rounded differently, and a search may find another
    optimum. Only joblib's worker processes have another number; it is restored afterwards.
    """
    before = torch.get_num_threads()
    if before == n_threads:
        yield
        return
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
