"""A random order of rows that depends on their numbers alone, however rows are split."""

from __future__ import annotations

import numpy as np

WEYL = np.uint64(2654435761)  # between the sequences of seeds; maths/counter_rng.py has the same
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def row_hashes(seed: int, rows: np.ndarray) -> np.ndarray:
    """Return SplitMix64 of row numbers (n,) in the sequence of a seed: (n,), int64.

    Rows have different hashes, and the order of hashes is a random order of rows: the k smallest
    are a random sample, the same whichever rows a process holds and in whatever order it reads
    them.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch.data.row_hash import row_hashes
    >>> hashes = row_hashes(0, np.arange(1000))
    >>> bool((row_hashes(0, np.array([7, 3])) == hashes[[7, 3]]).all())
    True
    """
    with np.errstate(over="ignore"):  # integers are meant modulo 2⁶⁴
        key = splitmix64(np.array([seed % 2**64], dtype=np.uint64) * WEYL)
        return splitmix64(rows.astype(np.uint64) + key).view(np.int64)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Return the output function of SplitMix64 (Steele, Lea & Flood, 2014) of counters, uint64."""
    x = x + GOLDEN
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))
