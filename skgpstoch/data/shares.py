"""Number the rows of all ranks, and choose random rows among them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .reduce import Group
from .row_hash import row_hashes

HASHED_ROWS = 1 << 20
"""Number of rows whose hashes are in memory at a time."""


def offsets(group: Group, n_local: int) -> tuple[int, int]:
    """Return the number of this rank's first row, and how many rows there are in all.

    Rows are numbered rank after rank, as :meth:`~Group.gather` orders them.
    """
    if group.size == 1:
        return 0, n_local
    counts = torch.zeros(group.size, dtype=torch.int64)
    counts[group.rank] = n_local
    group.sum_(counts)
    return int(counts[: group.rank].sum()), int(counts.sum())


def chosen_rows(group: Group, seed: int, first: int, n_local: int, k: int) -> tuple[Tensor, Tensor]:
    """Choose k random rows; the choice does not depend on how rows are split over ranks.

    They are the rows with the smallest hashes of their numbers.

    Parameters
    ----------
    group : Group
        All ranks.
    seed : int
        Seed of the choice.
    first, n_local : int
        Number of this rank's first row (:func:`offsets`), and how many rows it has.
    k : int
        Number of rows to choose; all rows if there are fewer.

    Returns
    -------
    positions : Tensor of shape (k_local,)
        Positions of this rank's chosen rows, by increasing hashes.
    places : Tensor of shape (k_local,)
        Position of each of them among all chosen rows, in the order of hashes.
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
