"""Folds of rows, as scikit-learn's splitters give them, or pairs of row numbers or masks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, ShuffleSplit, check_cv
from torch import Tensor

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


def checked_folds(
    cv: Any, splitter: Any, X: Any, y: np.ndarray, weight: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield numbers of rows to train on and of rows held out, without rows of weight 0.

    Parameters
    ----------
    cv : object
        The parameter, for messages.
    splitter : int, splitter or iterable
        What makes the folds that `cv` asks for.
    X, y : array-like of shape (n_samples, ...) and ndarray of shape (n_samples,)
        The rows.
    weight : ndarray of shape (n_samples,) or None
        How many rows each row counts for.

    Raises
    ------
    ValueError
        If there are no such folds of these rows.
    """
    try:
        given = [(trained, held_out) for trained, held_out in check_cv(splitter).split(X, y)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cv={cv!r} gives no folds of {len(y)} rows: {error} If the splitter needs more "
            "than X and y, pass its pairs, list(cv.split(X, y, groups))."
        ) from error
    if not given:
        raise ValueError(f"cv={cv!r} must give at least one fold.")
    for pair in given:
        parts = row_numbers(pair, len(y))
        if weight is not None:
            parts = [part[weight[part] > 0.0] for part in parts]
        trained, held_out = parts
        if not len(trained) or not len(held_out):
            raise ValueError(
                "cv must give folds with rows of positive sample_weight both to train on and "
                f"held out, got {len(trained)} rows to train on and {len(held_out)} held out."
            )
        yield trained, held_out


def numbers_rows(cv: Any) -> bool:
    """Tell whether `cv` makes folds from the user's row numbers, and not at random."""
    return not (cv is None or isinstance(cv, Real))


def row_numbers(pair: tuple[Any, Any], n_rows: int) -> list[np.ndarray]:
    """Return the numbers of rows to train on, and of rows held out, from numbers or masks."""
    found = []
    for part in pair:
        part = np.asarray(part)
        if part.dtype == bool and part.shape == (n_rows,):
            part = np.flatnonzero(part)
        is_number = part.ndim == 1 and (part.dtype.kind in "iu" or not len(part))
        if not is_number or (len(part) and not 0 <= part.min() <= part.max() < n_rows):
            raise ValueError(
                f"cv must give pairs of row indices from 0 to {n_rows - 1}, or of masks of "
                f"{n_rows} rows, got {part!r}."
            )
        found.append(part.astype(np.int64))
    if len(both := np.intersect1d(*found)):
        raise ValueError(
            f"cv must not train on the rows that it holds out, got {len(both)} rows on both "
            f"sides; the first is row {both[0]}."
        )
    return found


def fold_of(X: Tensor, rows: Rows, trained: np.ndarray, held_out: np.ndarray) -> Fold:
    """Return the fold of these rows."""
    index = torch.from_numpy(np.r_[trained, held_out].astype(np.int64)).to(X.device)
    some = rows[index]
    one = torch.ones(len(index), dtype=torch.float64, device=X.device)
    weight = one if some.weight is None else some.weight.double()
    return Fold(X.index_select(0, index), some.y.double(), weight[:, None], len(trained))
