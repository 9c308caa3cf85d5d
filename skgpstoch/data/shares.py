"""Shares of the rows on ranks: their numbers in the whole table, and choices among all rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .reduce import Group
from .row_hash import row_hashes

HASHED_ROWS = 1 << 20
"""Rows whose hashes are in memory at a time."""


def offsets(group: Group, n_local: int) -> tuple[int, int]:
    """Return the number of this rank's first row among all, and of all rows.

    Rows are numbered rank after rank, as :meth:`~Group.gather` orders them.
    """
    if group.size == 1:
        return 0, n_local
    counts = torch.zeros(group.size, dtype=torch.int64)
    counts[group.rank] = n_local
    group.sum_(counts)
    return int(counts[: group.rank].sum()), int(counts.sum())


def chosen_rows(group: Group, seed: int, first: int, n_local: int, k: int) -> tuple[Tensor, Tensor]:
    """Choose k rows at random, the same ones however rows are dealt to ranks.

    They are those with the smallest hashes of their numbers.

    Parameters
    ----------
    group : Group
        All ranks.
    seed : int
        Another one chooses other rows.
    first, n_local : int
        The number of this rank's first row (:func:`offsets`), and how many it has.
    k : int
        How many to choose; all if there are fewer.

    Returns
    -------
    positions : Tensor of shape (k_local,)
        Which of this rank's rows are chosen, by increasing hashes.
    places : Tensor of shape (k_local,)
        The places of these rows, from 0, in the order of the hashes of all that are chosen.
    """
    hashes, positions = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    for start in range(0, n_local, HASHED_ROWS):
        n_rows = min(HASHED_ROWS, n_local - start)
        numbers = np.arange(first + start, first + start + n_rows)
        hashes = torch.cat([hashes, torch.from_numpy(row_hashes(seed, numbers))])
        positions = torch.cat([positions, torch.arange(start, start + n_rows)])
        hashes, smallest = hashes.topk(min(k, len(hashes)), largest=False)
        positions = positions[smallest]
    chosen = group.gather_tensor(hashes).sort().values[:k]
    places = torch.searchsorted(chosen, hashes)
    return positions[places < len(chosen)], places[places < len(chosen)]
