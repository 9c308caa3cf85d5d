"""Fit to rows that are read in chunks, so that they need not fit into memory.

A first pass counts the rows, finds the classes, and draws a sample. From the sample come scalings,
inducing points and whatever else rows decide before training. Minibatches come from a shuffle
buffer, and passes in order close the fit. In a group each rank reads units of its own.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ..data.chunk import Chunk
from ..data.messages import muted, warn
from ..data.reduce import ALONE, Group, agreed, current, doing
from ..data.row_hash import row_hashes
from ..data.row_source import RowSource
from ..data.rows import Data, Rows, Whole
from ..data.scan import Scan, scan
from ..recipes.plan import Sizes
from ..recipes.recipe import Recipe
from ..training.stored_rows import EPOCH_ROWS, InChunks
from .checkpoint_key import sampling_seed
from .first_rank import fit_on_first
from .group_fit import (
    ClockOfGroup,
    begin_from_sample,
    classes_of,
    fit_numbered,
    in_time,
    most_sampled,
    training_together,
)
from .targets import learn_targets, with_transformed_targets

KNOWN_BESIDE = ("y", "sample_weight", "exposure", "y_std")


def fit_stored_rows(estimator: Any, source: RowSource, y: Any, *of_rows: Any) -> None:
    """Fit to the rows of a source, which has y and all other values of rows."""
    refuse_given(y, *of_rows)
    group = current()
    clock = ClockOfGroup(group)
    with doing(f"{type(estimator).__name__}.fit, reading rows"):
        first = first_pass(estimator, group, source)
        with muted(group.rank > 0):
            warn_if_over(estimator, clock())
        with agreed(group):
            given = validated(estimator, first.sample, True, first.classes)
        learn_targets(estimator, given, group)
        with agreed(group):
            data = with_transformed_targets(estimator, given, reset=False)
            recipe = estimator._recipe()
            recipe.check(data)
    if first.whole.n_rows == len(first.sample):  # the sample is all rows: fit as to arrays
        recipe, numbers = in_time(estimator, recipe, time.monotonic, clock.began), first.sample.rows
        fit_on_first(estimator, group, lambda: fit_numbered(estimator, recipe, data, numbers))
    else:
        recipe = in_time(estimator, recipe, clock, 0.0)  # the clock counts from the beginning
        fit_in_chunks(estimator, recipe, data, first)
    source.is_learned = True
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)


def fit_in_chunks(estimator: Any, recipe: Recipe, sample: Data, first: FirstPass) -> None:
    """Fit to rows of which only a sample is in memory."""
    whole = first.whole
    sample = sample if first.sample.weight is None else sample.weighed()
    start, n = estimator._start(), min(whole.n_rows, EPOCH_ROWS)
    n_given = max(n, math.floor(n * whole.weight / whole.n_rows))
    sizes = Sizes(n, n_given, sample.X.shape[1], sample.y_std is not None)
    refuse_whole(estimator, recipe.sums_rows(recipe.plan(sizes, start)), whole.n_rows)

    def table(dtype: str, X: Tensor, rows: Rows) -> InChunks:
        none = X[:0], replace(rows[:0], fold=None)
        tensors = ToTensors(estimator, recipe, dtype, X.device, none)
        numbers = first.sample.rows, first.is_own
        return InChunks(X, rows, first.source, first.n_rows, tensors, whole, *numbers, first.seed)

    with training_together(estimator, whole.group):
        run = begin_from_sample(estimator, recipe, sample, sizes, whole, start, first.seed, table)
        run = run._replace(numbers=first.sample.rows)
        try:
            estimator._fit_run(recipe, run, sample, sample)
        finally:
            run.table.close()


def warn_if_over(estimator: Any, seconds: float) -> None:
    """Warn if the first pass, which took so many seconds, used up the time."""
    if seconds >= (getattr(estimator, "max_time", None) or math.inf):
        warn(
            "max_time was used up by the first pass over the rows, which took "
            f"{seconds:.2g} s. The fit takes longer, because it also needs some steps and a "
            "short closing pass. Raise max_time, or fit to fewer rows.",
            ConvergenceWarning,
        )


def refuse_given(y: Any, *of_rows: Any) -> None:
    """Raise a ValueError if anything is given besides a source, which has it all."""
    for name, value in zip(KNOWN_BESIDE, (y, *of_rows), strict=False):
        if value is not None:
            raise ValueError(
                f"{name} must be None if X is a source of rows, which holds it itself. Pass "
                "it to the source."
            )


def refuse_whole(estimator: Any, sums_rows: bool, n_rows: int) -> None:
    """Raise a ValueError if an estimator needs all rows at once."""
    if not sums_rows:
        raise ValueError(
            f"{type(estimator).__name__} with these parameters needs all {n_rows:,} rows in "
            "memory at once. Pass arrays, or use an estimator that trains on minibatches, "
            "such as SVGPRegressor or AutoGaussianProcessRegressor."
        )


# ---- the first pass ------------------------------------------------------------------------------


class FirstPass(NamedTuple):
    """What the first pass over the rows finds.

    Parameters
    ----------
    source : RowSource
        The rows of this process.
    n_rows : int
        How many of these have a weight.
    sample : Chunk
        Random rows of all ranks.
    is_own : ndarray of shape (m,)
        Whether each of them is of this process.
    whole : Whole
        All rows, of all ranks.
    classes : ndarray or None
        The labels of all rows; None for regression.
    seed : int
        Seed of the sample, and of the order of minibatches.
    """

    source: RowSource
    n_rows: int
    sample: Chunk
    is_own: np.ndarray
    whole: Whole
    classes: np.ndarray | None
    seed: int


def first_pass(estimator: Any, group: Group, source: RowSource) -> FirstPass:
    """Read the rows once, each rank its own."""
    seed = int(group.first(sampling_seed(estimator)))
    with agreed(group):
        source.check_has_target()
        part = source if group is ALONE else source.share(group.rank, group.size)
        n_sample = most_sampled(source.n_features)
        found = scan(part, n_sample, seed, classes=is_classifier(estimator))
    sample, whole, is_own = merged(group, found, n_sample, seed)
    if whole.n_rows == len(sample):  # put them in order, as arrays are
        order = np.argsort(sample.rows)
        sample, is_own = sample[order], is_own[order]
    classes = None
    if is_classifier(estimator):
        classes = classes_of(group, [] if found.classes is None else found.classes)
    return FirstPass(part, found.n_rows, sample, is_own, whole, classes, seed)


def merged(group: Group, found: Scan, n_sample: int, seed: int) -> tuple[Chunk, Whole, np.ndarray]:
    """Return the sample and the whole of all ranks, and which sampled rows are this rank's."""
    counts = torch.tensor([found.n_rows, found.n_effective], dtype=torch.float64)
    group.sum_(counts)
    n_rows, weight = counts.tolist()
    if not n_rows:
        raise ValueError("X has no rows of positive weight.")
    whole, own = Whole(int(n_rows), weight, group), found.sample
    if group is ALONE:
        assert own is not None
        return own, whole, np.ones(len(own), dtype=bool)
    names = group.gather(np.array([] if own is None else [json.dumps(list(own.arrays()))]))
    none = np.empty((0, 1))
    arrays = {
        name: group.gather(none if own is None else own.arrays()[name])
        for name in json.loads(names[0])
    }
    order = np.argsort(row_hashes(seed, arrays["rows"]))[:n_sample]
    sample = Chunk(where="the sample", **arrays)[order]
    return sample, whole, np.isin(sample.rows, none if own is None else own.rows)


def validated(estimator: Any, rows: Chunk, reset: bool, classes: Any = None) -> Data:
    """Return rows as the estimator validates them; leave targets untransformed if `reset`."""
    check = estimator._given if reset else estimator._validate
    known = (classes,) if is_classifier(estimator) else (rows.exposure, rows.y_std)
    data: Data = check(rows.X, rows.y, reset, rows.weight, *known)
    return data


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToTensors:
    """Converts chunks to tensors on the device of training."""

    estimator: Any
    recipe: Recipe
    dtype: str
    device: torch.device
    none: tuple[Tensor, Rows]

    def __call__(self, chunk: Chunk) -> tuple[Tensor, Rows]:
        """Return X and other values of rows, scaled."""
        if not len(chunk):
            return self.none
        try:
            data = validated(self.estimator, chunk, False)
            data = data if chunk.weight is None else data.weighed()
            self.recipe.check_rows(data)
        except ValueError as error:
            raise ValueError(f"{chunk.where}: {error}") from error
        found: tuple[Tensor, Rows] = self.estimator._tensors(data, self.dtype, self.device)
        return found
