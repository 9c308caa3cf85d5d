"""Predictions for training rows by models that were not trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from scipy.special import logsumexp
from sklearn.model_selection import KFold, PredefinedSplit, check_cv
from sklearn.utils import _safe_indexing

from .arrays import Scaling, possibly_ragged, readable
from .equal_rows import units
from .frames import is_arrow, is_frame, stored
from .rows import Data


class HeldOutPredictions(NamedTuple):
    """Predictions for m of the training rows, each by a model that was not trained on it.

    For classes there is one output per class, whose y is 1 for rows of that class, and 0 otherwise.

    Parameters
    ----------
    rows : ndarray of shape (m,)
        Numbers of the rows among those that `fit` was given, in increasing order.
    log_density : ndarray of shape (m,)
        log p(y | x) in nats, for y in its own units.
    error : ndarray of shape (m, n_outputs)
        y minus its predicted mean.
    std : ndarray of shape (m, n_outputs)
        Predicted standard deviation of y.
    latent_std : ndarray of shape (m, n_outputs)
        Predicted standard deviation of E(y | f), of f itself unless y are counts, which more rows
        would reduce; the rest is noise. NaN for classes.
    mean : ndarray of shape (m, n_outputs)
        Predicted mean of y.
    cdf : ndarray of shape (m, n_outputs)
        P(Y ≤ y | x); NaN for counts and classes.
    is_whole : ndarray of shape (m,), of bool, or None, default=None
        Whether the whole model predicted the row; None: it has predicted all. The rows of a fold of
        an ensemble are predicted by one member alone, because the others were trained on them.
    """

    rows: np.ndarray
    log_density: np.ndarray
    error: np.ndarray
    std: np.ndarray
    latent_std: np.ndarray
    mean: np.ndarray
    cdf: np.ndarray
    is_whole: np.ndarray | None = None

    def numbered(self, rows: np.ndarray) -> HeldOutPredictions:
        """Return the predictions with new row numbers, sorted by these."""
        order = np.argsort(rows)
        return self._taken(order)._replace(rows=rows[order])

    def among(self, numbers: np.ndarray) -> HeldOutPredictions:
        """Return the predictions with each row numbered by the position of its number here."""
        order = np.argsort(numbers)
        return self.numbered(order[np.searchsorted(numbers, self.rows, sorter=order)])

    def known_by(self, numbers: np.ndarray) -> HeldOutPredictions:
        """Replace positions by the numbers at these positions; undoes :meth:`among`."""
        return self.numbered(numbers[self.rows])

    def of(self, rows: np.ndarray) -> HeldOutPredictions:
        """Return the predictions for some rows, which must all have predictions."""
        where = np.searchsorted(self.rows, rows)
        return self._taken(where)

    def _taken(self, where: np.ndarray) -> HeldOutPredictions:
        columns: Any = (None if column is None else column[where] for column in self)
        return HeldOutPredictions(*columns)

    def log_densities(self, n_rows: int) -> np.ndarray:
        """Return the log density of each row of the fit, (n_rows,); NaN if there is none."""
        densities = np.full(n_rows, np.nan)
        densities[self.rows] = self.log_density
        return densities

    def in_units(self, y_scaling: Scaling) -> HeldOutPredictions:
        """Return the same for y in its own units."""
        offset, scale = y_scaling
        return self._replace(
            log_density=self.log_density - np.log(scale).sum(),
            error=self.error * scale,
            std=self.std * scale,
            latent_std=self.latent_std * scale,
            mean=self.mean * scale + offset,
        )


def group_folds(cluster: np.ndarray, n_folds: int, rng: Any) -> np.ndarray:
    """Return folds of whole groups, (n,), of about equal size, with at least one group in each.

    Groups come in random order, the largest first, and each goes to the smallest fold so far. They
    are numbered as they come in the rows, so that it does not matter what they are called.
    """
    _, first, name = np.unique(cluster, return_index=True, return_inverse=True)
    code = np.argsort(np.argsort(first))[name.ravel()]
    sizes = np.bincount(code)
    fold, load = np.empty(len(sizes), dtype=np.int64), np.zeros(min(n_folds, len(sizes)))
    order = rng.permutation(len(sizes))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        fold[group] = load.argmin()
        load[fold[group]] += sizes[group]
    return fold[code]


def joint(outputs: Sequence[HeldOutPredictions]) -> HeldOutPredictions:
    """Return the predictions of several independent outputs of the same rows."""
    rows, log_density, *columns, _ = zip(*outputs, strict=True)
    joined: Any = (np.hstack(column) for column in columns)
    found = HeldOutPredictions(rows[0], np.sum(log_density, 0), *joined)
    return found._replace(is_whole=all_whole(outputs))


def all_whole(several: Sequence[HeldOutPredictions]) -> np.ndarray | None:
    """Return which of the same rows are predicted by whole models only, (m,); None if all are."""
    masks = [each.is_whole for each in several if each.is_whole is not None]
    return np.all(masks, axis=0) if masks else None


def common_rows(several: Sequence[HeldOutPredictions]) -> np.ndarray:
    """Return the numbers of the rows that occur in all of these."""
    rows = several[0].rows
    for other in several[1:]:
        rows = np.intersect1d(rows, other.rows, assume_unique=True)
    return rows


def mixture_of(
    several: Sequence[HeldOutPredictions],
    weights: np.ndarray,
    mean_weights: np.ndarray | None = None,
) -> HeldOutPredictions:
    """Return the predictions of a mixture, for the rows that all its parts have predicted.

    Weights are (K,) or, if they depend on the row, (K, m). The mean may have weights of its own;
    deviations are those from it.
    """
    rows = common_rows(several)
    parts = [part.of(rows) for part in several]
    y = parts[0].mean + parts[0].error
    shares = weights.reshape(len(weights), -1, 1)

    def average(columns: list[np.ndarray]) -> np.ndarray:
        return np.asarray((shares * columns).sum(0))

    of_means = weights if mean_weights is None else mean_weights
    mean = np.asarray(np.average([part.mean for part in parts], axis=0, weights=of_means))
    unit = np.max([part.std for part in parts], axis=0)  # avoids squares of very large numbers
    apart = average([((part.mean - mean) / unit) ** 2 for part in parts])
    return HeldOutPredictions(
        rows,
        np.asarray(logsumexp([part.log_density for part in parts], axis=0, b=shares[..., 0])),
        y - mean,
        unit * np.sqrt(average([(part.std / unit) ** 2 for part in parts]) + apart),
        unit * np.sqrt(average([(part.latent_std / unit) ** 2 for part in parts]) + apart),
        mean,
        average([part.cdf for part in parts]),
        all_whole(parts),
    )


def of_classes(
    rows: np.ndarray,
    log_density: np.ndarray,
    p: np.ndarray,
    codes: np.ndarray,
    is_whole: np.ndarray | None = None,
) -> HeldOutPredictions:
    """Return predictions for classes, from probabilities p (m, C) and true codes (m,)."""
    own, unknown = np.eye(p.shape[1])[codes], np.full_like(p, np.nan)
    std = np.sqrt(p * (1.0 - p))
    return HeldOutPredictions(rows, log_density, own - p, std, unknown, p, unknown, is_whole)


def mixture_of_classes(
    several: Sequence[HeldOutPredictions], weights: np.ndarray
) -> HeldOutPredictions:
    """Return the predictions of a mixture of classifiers, for rows that all have predicted."""
    rows = common_rows(several)
    parts = [part.of(rows) for part in several]
    p = np.asarray(np.average([part.mean for part in parts], axis=0, weights=weights))
    log_p = logsumexp([part.log_density for part in parts], axis=0, b=weights[:, None])
    codes = (parts[0].mean + parts[0].error).argmax(1)
    return of_classes(rows, np.asarray(log_p), p, codes, all_whole(parts))


# ---- folds ---------------------------------------------------------------------------------------


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


def folds_of_units(cv: Any, X: Any, y: np.ndarray) -> Any:
    """Return a splitter that shuffles rows and keeps copies of one in a fold, if `cv` is a number.

    Other splitters stay as they are. In sorted rows, folds in their order would ask models what
    they cannot know: *measured* on 500 sorted rows, errors were eight times too large. The shuffle
    is always the same; of sparse rows, copies are not found.
    """
    if not isinstance(cv, Integral) or cv < 2:
        return cv
    if issparse(X):
        return KFold(int(cv), shuffle=True, random_state=0)
    _, place = units(Data(told_apart(X), y.reshape(len(y), -1).astype(np.float64)))
    _, first, unit = np.unique(place, return_index=True, return_inverse=True)
    unit = np.argsort(np.argsort(first))[unit]  # in the order of the rows, whatever their type
    order = np.random.RandomState(0).permutation(len(first))
    return PredefinedSplit(order[unit] * int(cv) // max(len(first), int(cv)))


def told_apart(X: Any) -> np.ndarray:
    """Return numbers (n, d) that tell rows apart; texts and objects get one for each value."""
    X = stored(X) if is_arrow(X) or is_frame(X) else possibly_ragged(readable(X, "X", True))
    if is_frame(X):
        columns = [np.asarray(_safe_indexing(X, j, axis=1)) for j in range(len(X.columns))]
    else:
        columns = list(X.reshape(len(X), -1).T)
    found = np.empty((len(X), len(columns)))
    for j, column in enumerate(columns):
        found[:, j] = column if column.dtype.kind in "biuf" else coded_values(column)
    return found


def coded_values(column: np.ndarray) -> np.ndarray:
    """Return a number for each value, by its text: (n,)."""
    return np.unique([str(value) for value in column], return_inverse=True)[1]


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
