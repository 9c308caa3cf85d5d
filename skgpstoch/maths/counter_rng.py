"""Random numbers as functions of a counter, so that they need not be stored."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.counter_hash import sequence_start, splitmix64, uniform


def counter_normal(seed: int, index: Tensor, n_columns: int, stream: int = 0) -> Tensor:
    """Return standard normal numbers that depend only on (seed, stream, index, column).

    The result z (m, n_columns) is float64. `index` (m,) are integer positions in the sequence that
    `seed` and `stream` determine. A row does not depend on which other rows are requested, so
    features need not be stored. The numbers are Φ⁻¹ of SplitMix64 of a counter.

    Examples
    --------
    >>> import torch
    >>> from skgpstoch.maths.counter_rng import counter_normal
    >>> z = counter_normal(0, torch.arange(1000), 3)
    >>> bool((counter_normal(0, torch.tensor([7, 3]), 3) == z[[7, 3]]).all())
    True
    """
    column = torch.arange(n_columns, device=index.device)
    bits = splitmix64(splitmix64(index + sequence_start(seed, stream))[:, None] + column)
    return torch.special.ndtri(uniform(bits))
