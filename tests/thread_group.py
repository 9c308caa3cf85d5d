"""Ranks that are threads of one process, for tests of what is exchanged."""

from __future__ import annotations

import threading
from typing import Any

import torch

from skgpstoch.data.groups import Group, WorkerLostError, using

SECONDS = 20.0
"""A rank that waits longer for the others hangs."""


class Board:
    """Where ranks leave what others read, between two waits."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.n_exchanges = 0


class ThreadGroup(Group):
    """One of `size` threads; that all do the same at the same time is checked."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, len(board.slots)

    def _exchanged(self, kind: str, flat: torch.Tensor) -> list[torch.Tensor]:
        board = self.board
        board.slots[self.rank] = (kind, flat.dtype, flat.shape), flat.clone()
        try:
            if board.barrier.wait() == 0:
                board.n_exchanges += 1
            slots = list(board.slots)
            board.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise WorkerLostError("another thread has ended, or hangs", self.rank) from error
        kinds = [kind for kind, _ in slots]
        assert all(kind == kinds[0] for kind in kinds), f"ranks do not do the same: {kinds}"
        return [flat for _, flat in slots]

    def _combine(self, flat, operation):
        every = torch.stack(self._exchanged(operation, flat))
        flat.copy_(every.sum(0) if operation == "sum" else every.amax(0))

    def _spread(self, flat):
        flat.copy_(self._exchanged("broadcast", flat)[0])

    def _collect(self, flat):
        return self._exchanged("gather", flat)


def on_ranks(function, size=3, expect=None):
    """Call function(group) in `size` threads at once; return what each returns.

    `expect`: an exception that each must raise; returns these. Otherwise the first that is no
    consequence of another is raised.
    """
    board = Board(size)
    returned, raised = [None] * size, [None] * size

    def run(rank):
        group = ThreadGroup(board, rank)
        try:
            with using(group):
                returned[rank] = function(group)
        except BaseException as error:
            raised[rank] = error
            if expect is None or not isinstance(error, expect):
                board.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    others = [error for error in raised if error and not isinstance(error, expect or ())]
    if others:
        raise next((e for e in others if not isinstance(e, WorkerLostError)), others[0])
    assert expect is None or all(raised), f"not every rank raised: {raised}"
    return returned if expect is None else raised
