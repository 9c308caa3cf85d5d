"""Run searches as joblib jobs, with the same result in any process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads_as(n_threads: int) -> Iterator[None]:
    """Let torch have as many threads as it has where a job comes from.

    Sums round otherwise with another number, which a search may follow to another optimum; and
    joblib's worker processes have one of their own. There alone it differs, and is set back.
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
