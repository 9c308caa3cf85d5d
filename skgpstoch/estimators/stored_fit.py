"""Fits to rows that are read in chunks, as they need not fit into memory.

A first pass finds how many rows there are, the classes, and a sample, which decides what rows
decide beforehand. Minibatches come from a shuffle buffer, and passes in order close the fit. In a
group each rank reads units of its own.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import is_classifier
from torch import Tensor

from ..data.chunk import Chunk
from ..data.reduce import ALONE, Group, agreed, current, doing
from ..data.row_hash import row_hashes
from ..data.row_source import RowSource
from ..data.rows import Data, Rows, Whole
from ..data.scan import Scan, scan
from ..recipes.plan import Sizes
from ..recipes.recipe import Recipe
from ..training.stored_rows import EPOCH_ROWS, StoredTable
from .checkpoint_key import sampling_seed
from .first_rank import fit_on_first
from .group_fit import (
    ClockOfGroup,
    begin_from_sample,
    classes_of,
    fit_warned,
    in_time,
    most_sampled,
    training_together,
)
from .targets import learn_targets, with_transformed_targets

KNOWN_BESIDE = ("y", "sample_weight", "exposure", "y_std")


def fit_stored_rows(estimator: Any, source: RowSource, y: Any, *of_rows: Any) -> None:
    """Fit to the rows of a source, which has all that is known of them."""
    refuse_given(y, *of_rows)
    group = current()
    clock = time.monotonic if group is ALONE else ClockOfGroup(group)
    began = clock()
    seed = int(group.first(sampling_seed(estimator)))
    with doing(f"{type(estimator).__name__}.fit, reading rows"):
        with agreed(group):
            part = source if group is ALONE else source.share(group.rank, group.size)
            n_sample = most_sampled(source.n_features)
            found = scan(part, n_sample, seed, classes=is_classifier(estimator))
        sample, whole, is_own = merged(group, found, n_sample, seed)
        if whole.n_rows == len(sample):  # in their order, and no other than arrays'
            sample = sample[np.argsort(sample.rows)]
        classes = None
        if is_classifier(estimator):
            classes = classes_of(group, [] if found.classes is None else found.classes)
        with agreed(group):
            given = validated(estimator, sample, True, classes)
        learn_targets(estimator, given, group)
        with agreed(group):
            data = with_transformed_targets(estimator, given, reset=False)
            recipe = estimator._recipe()
            recipe.check(data)
    start, n = estimator._start(), min(whole.n_rows, EPOCH_ROWS)
    sizes = Sizes(n, max(n, math.floor(n * whole.weight / whole.n_rows)), data.X.shape[1])
    sizes = sizes._replace(has_known_noise=data.y_std is not None)
    if whole.n_rows == len(sample):  # as arrays are
        recipe = in_time(estimator, recipe, time.monotonic)
        fit_on_first(estimator, group, lambda: fit_warned(estimator, recipe, data))
    else:
        data = data if sample.weight is None else data.weighed()
        refuse_whole(estimator, recipe.sums_rows(recipe.plan(sizes, start)), whole.n_rows)
        recipe = in_time(estimator, recipe, clock, began)

        def table(dtype: str, device: torch.device, rows: Rows) -> StoredTable:
            X, of_sample = estimator._tensors(data, dtype, device)
            none = X[:0], of_sample[:0]
            tensors = ToTensors(estimator, recipe, dtype, device, none)
            known = replace(whole, sample=of_sample)
            numbers = sample.rows, is_own
            return StoredTable(part, found.n_rows, tensors, none, known, *numbers, seed)

        with training_together(estimator, group):
            run = begin_from_sample(estimator, recipe, data, sizes, whole, start, seed, table)
            run = run._replace(numbers=sample.rows)
            try:
                estimator._fit_run(recipe, run, data, data)
            finally:
                cast(StoredTable, run.shared).reader.close()
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)


def refuse_given(y: Any, *of_rows: Any) -> None:
    """Raise a ValueError if anything is given beside rows, which have it all."""
    for name, value in zip(KNOWN_BESIDE, (y, *of_rows), strict=False):
        if value is not None:
            raise ValueError(
                f"{name} must be None where X is a source of rows, which has it: name it there."
            )


def refuse_whole(estimator: Any, sums_rows: bool, n_rows: int) -> None:
    """Raise a ValueError if an estimator needs all rows at once."""
    if not sums_rows:
        raise ValueError(
            f"{type(estimator).__name__} with these parameters needs all {n_rows:,} rows in "
            "memory at once: give arrays, or an estimator that is trained by minibatches, as "
            "SVGPRegressor or AutoGaussianProcessRegressor is."
        )


# ---- the sample ----------------------------------------------------------------------------------


def merged(group: Group, found: Scan, n_sample: int, seed: int) -> tuple[Chunk, Whole, np.ndarray]:
    """Return the sample and the whole of all ranks, and which of the sample are of this one."""
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
    """Return rows as an estimator's own check leaves them; the sample's targets as they are."""
    check = estimator._given if reset else estimator._validate
    known = (classes,) if is_classifier(estimator) else (rows.exposure, rows.y_std)
    data: Data = check(rows.X, rows.y, reset, rows.weight, *known)
    return data


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToTensors:
    """What chunks become, where training happens."""

    estimator: Any
    recipe: Recipe
    dtype: str
    device: torch.device
    none: tuple[Tensor, Rows]

    def __call__(self, chunk: Chunk) -> tuple[Tensor, Rows]:
        """Return X and what is known of rows, scaled."""
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
