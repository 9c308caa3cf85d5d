"""Validate the rows of a fit, wherever they are, and read them once if they are in chunks."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning

from ..data.arguments import ADVICE
from ..data.array_inputs import one_output
from ..data.arrays import readable
from ..data.chunk import Chunk, named_by
from ..data.groups import ALONE, ClockOfGroup, Group, agreed, current, doing, of_first
from ..data.messages import muted, warn
from ..data.row_sample import are_few, chosen_rows, joint_sample, most_sampled, offsets
from ..data.row_source import RowSource, is_source
from ..data.rows import Data, Whole
from ..data.scan import Scan, scan
from ..training.checkpoint import sampling_seed
from ..training.recipes.recipe import Recipe
from ..training.stored_rows import InChunks
from ..training.tables import InMemory, OnRanks, Sampled, Table, of_all_ranks
from .first_rank import NO_ROWS, check_alike
from .validation import check_labels, learn_targets, validate_inputs, with_transformed_targets
from .weights import in_shares, unit_of_group, warn_of_class_weights, with_weights_of_group

OF_ROWS = {"sample_weight": "weight", "exposure": "exposure", "y_std": "y_std"}
"""Arguments of fits, and the columns of sources that stand for them."""
KNOWN_BESIDE = ("y", *OF_ROWS)
FOUND = (
    *("n_features_in_", "feature_names_in_", "_y_shape"),
    *("_fitted_with_exposure", "_fitted_with_y_std"),
)
"""Attributes that the validation of rows sets on an estimator, except classes."""


def opened(estimator: Any, X: Any, y: Any, *of_rows: Any) -> tuple[Recipe, Table]:
    """Validate parameters and rows; return the recipe, which is checked for the rows, and these.

    Rank 0 will have the rows if they are few, or if training is no sum over minibatches; otherwise
    all ranks know a sample.
    """
    clock = ClockOfGroup(current())
    with doing(f"{type(estimator).__name__}.fit, reading rows"):
        check_alike(estimator, clock.group, X)
        if is_source(X):
            refuse_given(y, *of_rows)
            recipe, table = of_source(estimator, clock, X)
        elif clock.group is not ALONE:
            recipe, table = of_ranks(estimator, clock, X, y, of_rows)
        else:
            table = InMemory(data=estimator._validate(X, y, True, *of_rows), clock=clock)
            recipe = estimator._recipe()
            recipe.check(table.data)
        if isinstance(table, Sampled):
            table = whole_if_needed(estimator, recipe, table)
    if (seconds := getattr(estimator, "max_time", None)) is not None:
        recipe = replace(recipe, deadline=table.deadline(seconds))
    return recipe, table


def whole_if_needed(estimator: Any, recipe: Recipe, table: Sampled) -> Table:
    """Return all rows, if training is not a sum over minibatches."""
    if recipe.sums_rows(recipe.plan(table.sizes, estimator._start())):
        return table
    if (whole := table.gathered()) is None:
        raise ValueError(
            f"{type(estimator).__name__} with these parameters needs all "
            f"{table.whole.n_rows:,} rows in memory at once. Pass arrays, or use an estimator "
            "that trains on minibatches, such as SVGPRegressor or "
            "AutoGaussianProcessRegressor."
        )
    return whole


# ---- rows of several ranks -----------------------------------------------------------------------


def of_ranks(
    estimator: Any, clock: ClockOfGroup, X: Any, y: Any, of_rows: tuple[Any, ...]
) -> tuple[Recipe, Table]:
    """Validate this rank's rows, and sample or gather those of all ranks."""
    group = clock.group
    given, recipe = shared_rows(estimator, group, X, y, of_rows), estimator._recipe()
    data = given if recipe.numbers_rows else given.counted()
    if group.flag(data.weight is not None):
        data = data.weighed()
    numbers = offsets(group, len(X))[0] + places_of(data, given)
    data = with_weights_of_group(data, group)
    if is_classifier(estimator):
        warn_of_class_weights(data, estimator.classes_, group)
    first, n = offsets(group, len(data))
    if n < 2:
        raise ValueError(
            f"X must have at least two rows of positive weight on all ranks together, got {n}."
        )
    data = with_targets_alike(estimator, group, data, first)
    with agreed(group):
        recipe.check(data)
    if are_few(n):
        return recipe, of_all_ranks(data, numbers, clock)
    whole = whole_of(group, n, data.n_effective)
    seed = int(group.first(sampling_seed(estimator)))
    return recipe, OnRanks.sampled_of(data, numbers, clock, whole, seed, first)


def whole_of(group: Group, n_rows: int, own_weight: float) -> Whole:
    """Describe the rows of all ranks, of which this one has some with this weight."""
    weight = torch.tensor([own_weight], dtype=torch.float64)
    group.sum_(weight)
    return Whole(n_rows, float(weight), group)


def shared_rows(estimator: Any, group: Group, X: Any, y: Any, of_rows: tuple[Any, ...]) -> Data:
    """Validate this rank's rows, if any, and check that all ranks have rows of one table."""
    has_rows, data = counts(X, *of_rows), None
    if is_classifier(estimator):
        classes = classes_of(group, y, *of_rows)
        of_rows, estimator.classes_ = (*of_rows, classes), classes
    with agreed(group):
        if has_rows:
            data = estimator._given(X, y, True, *of_rows)
    own = None if data is None else (in_words(estimator, data), replace(data[:0], weight=None))
    words, none = alike(estimator, group, FOUND, own)
    group.check_same("Columns of X and y", words if own is None else own[0])
    return none if data is None else data


def alike(estimator: Any, group: Group, names: tuple[str, ...], own: Any) -> Any:
    """Return what the first rank with rows has; `own` is None on ranks without rows.

    These take the attributes with these names, too, which the validation of rows sets.

    Raises
    ------
    ValueError
        On every rank, if none has rows.
    """
    known = vars(estimator)
    found = None if own is None else (own, {n: known[n] for n in names if n in known})
    told = next((each for each in group.every(found) if each is not None), None)
    if told is None:
        raise ValueError(NO_ROWS)
    if own is None:
        known.update(told[1])
    return told[0]


def places_of(data: Data, given: Data) -> np.ndarray:
    """Return which of the given rows these are: all, or those of positive weight."""
    if given.weight is None or len(data) == len(given):
        return np.arange(len(data))
    return np.flatnonzero(given.weight)


def counts(X: Any, sample_weight: Any = None, *of_rows: Any) -> bool:
    """Tell whether this rank has any row that counts; invalid weights are left to validation."""
    if not len(X) or sample_weight is None:
        return len(X) > 0
    with contextlib.suppress(TypeError, ValueError):
        return not np.all(np.asarray(readable(sample_weight, "sample_weight")) == 0)
    return True


def in_words(estimator: Any, data: Data) -> str:
    """Say which columns rows have, in the user's words."""
    names, shape = getattr(estimator, "feature_names_in_", None), estimator._y_shape
    of_X = f"X of shape (n, {data.X.shape[1]})" + ("" if names is None else f": {', '.join(names)}")
    of_y = f", y of shape {('n', *shape)}".replace("'", "")
    beside = [f.name for f in fields(data)[2:] if f.name != "weight"]
    others = [name for name in beside if getattr(data, name) is not None]
    return f"{of_X}{of_y}" + (f", with {', '.join(others)}" if others else "")


def with_targets_alike(estimator: Any, group: Group, data: Data, first: int) -> Data:
    """Return rows with transformed targets; the transformer is fitted to a sample of all rows."""
    sample = data
    if getattr(estimator, "target_transform", None) is not None:
        most = most_sampled(data.X.shape[1])
        own = np.sort(chosen_rows(group, 0, first, len(data), most)[0].numpy())
        sample = Data(data.y, data.y, data.weight)[own].map(group.gather)
    learn_targets(estimator, sample, group)
    with agreed(group):
        return with_transformed_targets(estimator, data, reset=False)


# ---- rows that are read in chunks ----------------------------------------------------------------


def of_source(estimator: Any, clock: ClockOfGroup, source: RowSource) -> tuple[Recipe, Table]:
    """Read the rows of a source once, and validate a sample."""
    group = clock.group
    with agreed(group):
        refuse_columns(estimator, source)
    seed = int(group.first(sampling_seed(estimator)))

    def look(part: RowSource) -> tuple[int, Scan]:
        n_sample, check = most_sampled(source.n_features), partial(check_early, estimator)
        return n_sample, scan(part, n_sample, seed, is_classifier(estimator), check)

    first = first_pass(group, source, seed, look)
    sample, own = first.sample, first.own
    with muted(group.rank > 0):
        warn_if_over(estimator, clock())
    unit = 1.0
    if sample.weight is not None:
        total = whole_of(group, first.n_rows, own.n_effective)
        unit = unit_of_group(group, total.weight, total.n_rows)
    with agreed(group):
        given = in_shares(validated(estimator, sample, True, first.classes, least=1), unit)
        if is_classifier(estimator) and (group.size > 1 or unit != 1.0):  # not asked yet
            with muted(group.rank > 0):
                warn_of_class_weights(given, estimator.classes_)
    learn_targets(estimator, given, group)
    with agreed(group):
        data = with_transformed_targets(estimator, given, reset=False)
        if own.extremes is not None:
            check_extremes(estimator, own.extremes, first.part)
        recipe = estimator._recipe()
        recipe.check(data)
    if first.is_whole:
        return recipe, InMemory(data=data, numbers=sample.rows, clock=clock)
    return recipe, InChunks(
        data=weighed(data, sample),
        numbers=sample.rows,
        clock=clock,
        whole=whole_of(group, first.n_rows, unit * own.n_effective),
        seed=seed,
        source=first.part,
        n_own=own.n_rows,
        checked=partial(checked, estimator, recipe, unit),
        is_own=np.isin(sample.rows, [] if own.sample is None else own.sample.rows),
    )


def refuse_columns(estimator: Any, source: RowSource) -> None:
    """Raise a ValueError if rows have columns that the estimator's fit does not take."""
    taken = signature(estimator.fit).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in taken.values()):  # which fit itself looks at
        return
    for name, column in OF_ROWS.items():
        if name not in taken and getattr(source.example, column) is not None:
            raise ValueError(
                f"{source!r} has {name}, which {type(estimator).__name__}.fit does not take. Leave "
                f"it out. {ADVICE.get(name, '')}".rstrip()
            )


def check_early(estimator: Any, chunk: Chunk) -> None:
    """Raise a ValueError in the first pass if a chunk is not what later passes need.

    It names the chunk, and later an error of one rank would leave the others waiting for it.
    """
    chunk = chunk.counted()
    if not len(chunk):
        return
    probe = copy.copy(estimator)
    recipe = None if is_classifier(probe) else probe._recipe()
    with named_by(chunk.where), muted(True):  # warnings are about all rows
        if recipe is None:
            validate_inputs(probe, chunk.X, reset=True)  # the scan checks labels
            return
        data = validated(probe, chunk, True, least=1)
        recipe.check_rows(data)
        if getattr(probe, "target_transform", None) == "log":  # others take all numbers, or learn
            learn_targets(probe, data, ALONE)


def check_extremes(estimator: Any, extremes: np.ndarray, part: RowSource) -> None:
    """Raise a ValueError that names the chunk if the extreme targets cannot be transformed."""
    far = extremes.reshape(2, -1)
    try:
        with_transformed_targets(estimator, Data(far, far), reset=False)
    except ValueError:
        for chunk in map(Chunk.counted, part.chunks()):
            y = np.asarray(chunk.y, dtype=np.float64).reshape(len(chunk), -1)
            with named_by(chunk.where):
                with_transformed_targets(estimator, Data(y, y), reset=False)
        raise


def checked(estimator: Any, recipe: Recipe, unit: float, chunk: Chunk) -> Data:
    """Return the rows of a chunk as the estimator and its recipe validate them."""
    with named_by(chunk.where):
        data = in_shares(weighed(validated(estimator, chunk, False), chunk), unit)
        recipe.check_rows(data)
    return data


def refuse_given(y: Any, *of_rows: Any) -> None:
    """Raise a ValueError if anything is given besides a source, which has it all."""
    for name, value in zip(KNOWN_BESIDE, (y, *of_rows), strict=False):
        if value is not None:
            raise ValueError(
                f"{name} must be None if X is a source of rows, which holds it itself. Pass "
                "it to the source."
            )


def warn_if_over(estimator: Any, seconds: float) -> None:
    """Warn if the first pass, which took so many seconds, used up the time."""
    if seconds >= (getattr(estimator, "max_time", None) or math.inf):
        warn(
            "max_time was used up by the first pass over the rows, which took "
            f"{seconds:.2g} s. The fit takes longer, because it also needs some steps and a "
            "short closing pass. Raise max_time, or fit to fewer rows.",
            ConvergenceWarning,
        )


def validated(
    estimator: Any, rows: Chunk, reset: bool, classes: Any = None, **options: Any
) -> Data:
    """Return rows as the estimator validates them; leave targets untransformed if `reset`."""
    check = estimator._given if reset else estimator._validate
    known = (classes,) if is_classifier(estimator) else (rows.exposure, rows.y_std)
    data: Data = check(rows.X, rows.y, reset, rows.weight, *known, **options)
    return data


def weighed(data: Data, rows: Chunk) -> Data:
    """Return validated rows with explicit weights if the source has weights."""
    return data if rows.weight is None else data.weighed()


def note_read(estimator: Any, X: Any) -> None:
    """After a fit, note that a source was learned from, and its columns' names."""
    if isinstance(X, RowSource):
        X.is_learned = True
        if X.feature_names is not None:
            estimator.feature_names_in_ = np.array(X.feature_names, dtype=object)


# ---- the first pass over a source ----------------------------------------------------------------


class FirstPass(NamedTuple):
    """What a pass over the rows of a source finds.

    Parameters
    ----------
    part : RowSource
        What this rank reads of it.
    own : Scan
        Facts about these rows.
    sample : Chunk
        Random rows of all ranks; all rows, in order, if they are few.
    n_rows : int
        How many rows of all ranks have a weight.
    classes : ndarray or None
        Their labels, if targets are labels.
    """

    part: RowSource
    own: Scan
    sample: Chunk
    n_rows: int
    classes: np.ndarray | None

    @property
    def is_whole(self) -> bool:
        """Whether the sample is all rows."""
        return self.n_rows == len(self.sample)


def first_pass(
    group: Group, source: RowSource, seed: int, look: Callable[[RowSource], tuple[int, Scan]]
) -> FirstPass:
    """Read the rows of a source once, each rank its own.

    `look` reads a part, and returns the size of the sample and the facts.

    Raises
    ------
    ValueError
        If fewer than two rows of all ranks have a positive weight.
    """
    with agreed(group):
        source.check_has_target()
    if group.flag(source.has_new_transform):  # whose fits may be random
        vars(source).update(inputs=of_first(group, lambda: source.inputs, "transform"))
    with agreed(group):
        part = source if group is ALONE else source.share(group.rank, group.size)
        n_sample, own = look(part)
    n_rows = int(group.gather(np.array([own.n_rows])).sum())
    sample = joint_sample(group, own.sample, n_sample, seed)
    if sample is None:
        raise ValueError(f"{source!r} has no rows of positive weight.")
    if n_rows < 2:
        raise ValueError(f"X must have at least two rows of positive weight, got {n_rows}.")
    if n_rows == len(sample):  # put them in order, as arrays are
        sample = sample[np.argsort(sample.rows)]
    classes = None
    if group.flag(own.classes is not None):
        classes = classes_of(group, [] if own.classes is None else own.classes)
    return FirstPass(part, own, sample, n_rows, classes)


def classes_of(group: Group, y: Any, sample_weight: Any = None) -> np.ndarray:
    """Return the labels of all ranks' rows that count.

    Raises
    ------
    ValueError
        On every rank, if one has no labels, or if some have texts and others numbers.
    """
    with agreed(group):
        labels = own_labels(y, sample_weight)
    kind = "texts" if any(isinstance(label, str) for label in labels.tolist()) else "numbers"
    kinds = [each for each in group.every(kind if len(labels) else "") if each] or [kind]
    group.check_same("The kind of labels in y", kind if len(labels) else kinds[0])
    return np.unique(group.gather(labels))


def own_labels(y: Any, sample_weight: Any) -> np.ndarray:
    """Return the labels of this rank's rows that count; none if the check of rows refuses y."""
    y = one_output(np.asarray(y))
    with contextlib.suppress(TypeError, IndexError):  # which the check of rows explains
        y = y if sample_weight is None else y[np.asarray(sample_weight) > 0]
    if y.ndim != 1 or not len(y):
        return y.ravel()[:0]
    check_labels(y)
    return np.unique(y)
