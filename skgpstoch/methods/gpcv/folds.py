"""Folds of rows, in tensors."""

from __future__ import annotations

from itertools import islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, ShuffleSplit
from torch import Tensor

from ...data.held_out import checked_folds
from ...data.rows import Rows
from .fold_loss import Fold

DEFAULT_FOLDS = 5  # of cv=None, as in scikit-learn


def make_folds(cv: Any, X: Tensor, rows: Rows, seed: int, n_folds: int | None = None) -> list[Fold]:
    """Return the folds that `cv` asks for, or the first ones.

    Parameters
    ----------
    cv : int, float, splitter, iterable or None
        The parameter.
    X, rows : Tensor of shape (N, d) and Rows
        The data, in the order that row numbers refer to.
    seed : int
        Of shuffles.
    n_folds : int or None, default=None
        How many folds to return; None: all.

    Raises
    ------
    ValueError
        If there are no such folds of these rows.
    """
    splitter = cv
    if cv is None or isinstance(cv, Integral):
        n_splits = DEFAULT_FOLDS if cv is None else int(cv)
        if n_splits > len(X):
            raise ValueError(
                f"cv={cv} must be at most the number of rows, {len(X)}, of which copies count once."
            )
        splitter = KFold(n_splits, shuffle=True, random_state=seed)
    elif isinstance(cv, Real):
        splitter = ShuffleSplit(1, test_size=float(cv), random_state=seed)
    weight = None if rows.weight is None else rows.weight.cpu().numpy()
    pairs = checked_folds(cv, splitter, X.cpu().numpy(), rows.y[:, 0].cpu().numpy(), weight)
    return [fold_of(X, rows, *pair) for pair in islice(pairs, n_folds)]


def numbers_rows(cv: Any) -> bool:
    """Tell whether `cv` makes folds from the user's row numbers, and not at random."""
    return not (cv is None or isinstance(cv, Real))


def fold_of(X: Tensor, rows: Rows, trained: np.ndarray, held_out: np.ndarray) -> Fold:
    """Return the fold of these rows."""
    index = torch.from_numpy(np.r_[trained, held_out].astype(np.int64)).to(X.device)
    some = rows[index]
    one = torch.ones(len(index), dtype=torch.float64, device=X.device)
    weight = one if some.weight is None else some.weight.double()
    return Fold(X.index_select(0, index), some.y.double(), weight[:, None], len(trained))
