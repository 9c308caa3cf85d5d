"""A random order of rows that depends on their numbers alone, however rows are split."""

from __future__ import annotations

import numpy as np
import torch

from .counter_hash import sequence_start, splitmix64


def row_hashes(seed: int, rows: np.ndarray) -> np.ndarray:
    """Return SplitMix64 of row numbers (n,) in the sequence of a seed: (n,), int64.

    Different rows have different hashes, and the order of hashes is a random order of rows. The
    rows with the k smallest hashes are a random sample, which does not depend on which rows a
    process holds, or on the order in which it reads them.

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
