"""Weights of rows: checks, shares of all rows, and words on those that say too much."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn import get_config
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from ..data.array_inputs import checked_weight
from ..data.chunk import Chunk
from ..data.equal_rows import MOST_COPIES, copies_merged
from ..data.groups import ALONE, Group, agreed
from ..data.messages import muted, warn
from ..data.rows import Data
from .context import IS_JUDGED
from .validation import check_range

Weighed = TypeVar("Weighed", Data, Chunk, "Chunk | None")

FEW_SHARED, MOST_SHARED = 10, 1.5
"""Weights of more rows that sum to no more are shares of all rows, as AdaBoost gives them."""
MOST_FRACTIONS = 3.0  # median weight beyond which weights that are not whole are warned of
MOST_ALIKE = 5.0  # of a row, from which weights or copies of a class are warned of
HARDLY_COPIED = 1.5  # counts of a row of some other class, at most, or all are copied alike

FEWEST_COUNTED = 0.05
"""If weights sum to a smaller share of the number of rows, warn that they may be proportions."""


def check_weight(data: Data, sample_weight: Any, least: int = 1, keeps: bool = False) -> Data:
    """Return the data with weights (None if all are 1), without rows of weight 0 unless `keeps`.

    In a fit, `least` is at least 2. Weights that sum to about 1 are then shares of all rows.

    Raises
    ------
    ValueError
        If weights are not finite numbers, one for each row, if any is negative or all are 0, or if
        fewer than `least` rows are left.
    """
    if sample_weight is None:
        return data
    weight = checked_weight(sample_weight, data.X)
    counts = weight > 0.0
    if counts.sum() < least:
        raise ValueError(
            f"sample_weight must be positive for at least {least} rows, got {counts.sum()}."
        )
    check_range(weight[counts], "sample_weight must be 0 or")
    if least > 1 and not IS_JUDGED.get():  # else the caller knows the weights of all rows
        weight = weight * weight_unit(float(weight.sum()), int(counts.sum()), least)
    are_ones = (weight == 1.0).all() or (not keeps and (weight[counts] == 1.0).all())
    data = replace(data, weight=None if are_ones else weight)
    return data if keeps or counts.all() else data[counts]


def counted_rows(
    cv: Any, X: Any, y: Any, sample_weight: Any, models: Sequence[Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the rows that count (all rows if folds are given row by row), and their weights.

    The weights are keyword arguments of `fit` of these models, if there are any.

    Raises
    ------
    TypeError
        If there are weights, but `fit` of a model takes none.
    """
    if sample_weight is None:
        return X, y, {}
    weight = checked_weight(sample_weight, X)
    if isinstance(cv, Integral) or hasattr(cv, "split"):
        X, y, weight = (_safe_indexing(a, np.flatnonzero(weight)) for a in (X, y, weight))
    for model in models:
        if not takes_weights(model):
            raise TypeError(
                f"sample_weight must be None, because {type(model).__name__}.fit takes no weights. "
                "Leave sample_weight out, or choose a model whose fit takes them."
            )
    return X, y, {"sample_weight": weight}


def takes_weights(model: Any) -> bool:
    """Tell whether `fit` of a model takes weights of rows."""
    if isinstance(model, Pipeline):
        return bool(get_config()["enable_metadata_routing"])
    known = inspect.signature(model.fit).parameters
    return "sample_weight" in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def weight_unit(total: float, n_rows: int, least: int = 2) -> float:
    """Return the factor of the weights of a fit, from their sum and the number of rows they have.

    It is 1 unless they are shares. Warn then, and of rows that count little.
    """
    said = f"sample_weight sums to {total:.3g} over {n_rows} rows. A weight is a number of rows,"
    if are_shares(total, n_rows):
        warn(
            f"{said} and these would count as one row together, so they are taken as shares of "
            f"{n_rows} rows. To say so yourself, divide them by their mean."
        )
        return n_rows / total
    if total < max(least, FEWEST_COUNTED * n_rows):
        warn(
            f"{said} so the data count for that few rows and the prior dominates. If the weights "
            "are proportions, divide them by their mean."
        )
    return 1.0


def are_shares(total: float, n_rows: int) -> bool:
    """Tell whether weights of this sum are shares of so many rows, and not numbers of rows."""
    return n_rows > FEW_SHARED and total <= MOST_SHARED


def warn_of_light_rows(data: Data) -> None:
    """Warn of rows of a stream that count little; earlier ones tell whether they are shares."""
    if data.weight is None or not len(data):
        return
    total, n_rows = float(data.weight.sum()), len(data)
    if total < FEWEST_COUNTED * n_rows or are_shares(total, n_rows):
        warn(
            f"sample_weight sums to {total:.3g} over the {n_rows} rows of this call. A weight is a "
            "number of rows, so they count for that few, and the model may get worse. If the "
            "weights are proportions, divide them by their mean."
        )


def with_weights_of_group(data: Weighed, group: Group) -> Weighed:
    """Return the rows of a rank, if any, whose weights may be shares of the rows of all ranks."""
    if not group.flag(data is not None and data.weight is not None):
        return data
    weight = np.empty(0) if data is None or data.weight is None else data.weight
    return in_shares(data, unit_of_group(group, *sums_of_group(group, weight)))


def sums_of_group(group: Group, weight: np.ndarray) -> tuple[float, int]:
    """Return the sum of the weights of all ranks, and how many are positive."""
    sums = torch.tensor([weight.sum(), (weight > 0.0).sum()], dtype=torch.float64)
    group.sum_(sums)
    return float(sums[0]), int(sums[1])


def unit_of_group(group: Group, total: float, n_rows: int) -> float:
    """Return the factor of the weights of all ranks, which have this sum; rank 0 warns."""
    with agreed(group), muted(group.rank > 0):
        return weight_unit(total, n_rows)


def in_shares(data: Weighed, unit: float) -> Weighed:
    """Return rows with weights times a factor, which is 1 unless these are shares."""
    if data is None or data.weight is None or unit == 1.0:
        return data
    return replace(data, weight=unit * data.weight)


def warn_of_fractions(weight: np.ndarray | None) -> None:
    """Warn of weights of many rows each that are no numbers of rows, as those of a survey.

    *Measured* on 500 rows with weights of 50 in the mean, then of 1: root mean squared errors of f
    by SVGPRegressor are .37 and .11, and log losses of SVGPClassifier 1.0 and .38.
    """
    if weight is None or IS_JUDGED.get() or len(weight) <= FEW_SHARED:
        return
    usual, are_whole = float(np.median(weight)), weight == np.round(weight)
    if usual <= MOST_FRACTIONS or weight.mean() > MOST_COPIES or are_whole.mean() >= 0.5:
        return  # or they are told of elsewhere
    warn(
        f"The median of sample_weight is {usual:.3g}, but most weights are not whole. A weight is "
        f"a number of rows, so a row is taken for {usual:.3g} that agree exactly, and f follows "
        "its noise. If weights say which rows matter more, as in a survey, divide them by their "
        "mean."
    )


def warn_of_class_weights(data: Data, classes: np.ndarray, group: Group = ALONE) -> None:
    """Warn of weights or copies that make few rows of a class many, because these all agree.

    All ranks of a group ask together, each with its rows.

    *Measured* on 1,500 rows with 12 of the rare class, weighted to half of them: the weighted log
    loss of new rows is 2.06, with the weights' shares put in afterwards .6. With 29 of 300 rows
    drawn until there were as many as others, SVGPClassifier's is .46 with the shares put in, and
    .25 without copies.
    """
    if IS_JUDGED.get():
        return
    (distinct, _), w, K = copies_merged(data), data.row_counts, len(classes)
    codes, of_distinct = (each.y[:, 0].astype(np.int64) for each in (data, distinct))
    counted = ((of_distinct, None), (codes, None), (codes, w))
    n_distinct, n, total = (np.bincount(i, v, K).astype(float) for i, v in counted)
    group.sum_(*map(torch.from_numpy, (n_distinct, n, total)))
    copies, each = n / np.maximum(n_distinct, 1.0), total / np.maximum(n, 1.0)
    are_copied = bool(copies.max() > MOST_ALIKE and copies[n > 0.0].min() <= HARDLY_COPIED)
    differs = group.flag(not np.allclose(w, each[codes], rtol=1e-6))
    if not are_copied and (each.max() <= MOST_ALIKE or np.ptp(each) == 0.0 or differs):
        return
    each = copies if are_copied else each
    c = int(np.argmax(each))
    name, without, by = classes.tolist()[c], "weights", "the weights of their classes"
    what = f"sample_weight differs by class alone: each row of class {name!r} counts as"
    if are_copied:
        what, without, by = f"Each row of class {name!r} comes as", "copies", "these counts"
    with agreed(group), muted(group.rank > 0):
        warn(
            f"{what} {each[c]:.3g} that agree, so its probabilities will be too certain. Fit "
            f"without {without}, and multiply the probabilities by {by}; or use "
            "AutoGaussianProcessClassifier, which calibrates them."
        )
