"""A random order of rows that depends on their numbers alone, however rows are split."""

from __future__ import annotations

import numpy as np
import torch

from .counter_hash import sequence_start, splitmix64


def row_hashes(seed: int, rows: np.ndarray) -> np.ndarray:
    """Return SplitMix64 of row numbers (n,) in the sequence of a seed: (n,), int64.

    Rows have different hashes, and the order of hashes is a random order of rows: the k smallest
    are a random sample, the same whichever rows a process holds, in whatever order it reads them.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.data.row_hash import row_hashes
    >>> hashes = row_hashes(0, np.arange(1000))
    >>> bool((row_hashes(0, np.array([7, 3])) == hashes[[7, 3]]).all())
    True
    """
    numbers = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    hashes: np.ndarray = splitmix64(numbers + sequence_start(seed)).numpy()
    return hashes
