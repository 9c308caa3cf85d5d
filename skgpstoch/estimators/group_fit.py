"""Fit in a group: every rank gives its own rows, and all get the same model.

From a sample of the rows come scalings, inducing points, starts, and the choice of held-out rows.
It does not depend on which rank has which rows; up to `SAMPLE_ROWS` it is all of them. Training and
the closing pass use sums over the rows of all ranks. Rank 0 fits for all if rows are few, or if an
estimator is not trained by such sums.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ..data.arrays import readable
from ..data.deadline import Clock, Deadline
from ..data.devices import resolve_device
from ..data.messages import muted, warn
from ..data.reduce import ALONE, Group, agreed, doing
from ..data.rows import MERGED_ROWS, Data, Rows, Whole
from ..data.shares import chosen_rows, offsets
from ..recipes.plan import Sizes, within_sample
from ..recipes.recipe import Problem, Recipe
from ..recipes.warm_start import Start
from ..training.checkpoint import CheckpointOfGroup
from ..training.interrupts import AGAIN, is_marked, marking
from ..training.tables import OnRanks, Table
from .alike import NO_ROWS
from .checkpoint_key import checkpoint_of, sampling_seed, seed_of
from .first_rank import adopt, fit_on_first
from .runs import Run, begin, begin_in_time
from .targets import learn_targets, with_transformed_targets

GATHERED_ROWS = MERGED_ROWS  # up to which rank 0 fits for all
SAMPLE_ROWS = 100_000
SAMPLE_NUMBERS = 50_000_000  # of X in a sample, at most

BATCH_LAYERS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)
INSTANCE_LAYERS = (torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d)

FOUND = ("n_features_in_", "feature_names_in_", "_y_shape", "_fitted_with_exposure")
"""Attributes that the validation of rows sets on an estimator, except classes."""


def fit_in_group(estimator: Any, group: Group, X: Any, y: Any, *of_rows: Any) -> None:
    """Fit to the rows of all ranks, of which these are this rank's."""
    clock = ClockOfGroup(group)
    with doing(f"{type(estimator).__name__}.fit, reading rows"):
        given, recipe = shared_rows(estimator, group, X, y, of_rows), estimator._recipe()
        data = given if recipe.numbers_rows else given.counted()
        if group.flag(data.weight is not None):
            data = data.weighed()
        numbers = offsets(group, len(X))[0] + places_of(data, given)
        first, n = offsets(group, len(data))
        if n < 2:
            raise ValueError(
                f"X must have at least two rows of positive weight on all ranks together, got {n}."
            )
        data = with_targets_alike(estimator, group, data, first)
        with agreed(group):
            recipe.check(data)
        weight = torch.tensor([data.n_effective], dtype=torch.float64)
        group.sum_(weight)
        whole = Whole(n, float(weight), group)
    sizes = Sizes(n, max(n, math.floor(whole.weight)), data.X.shape[1], data.y_std is not None)
    start = estimator._start()
    if n <= GATHERED_ROWS or not recipe.sums_rows(recipe.plan(sizes, start)):
        data, numbers = data.map(group.gather), group.gather(numbers)
        recipe = in_time(estimator, recipe, time.monotonic, clock.began)
        fit_on_first(estimator, group, lambda: fit_numbered(estimator, recipe, data, numbers))
        return
    recipe = in_time(estimator, recipe, clock, 0.0)  # the clock counts from the beginning
    rank = Rank(first, numbers, whole)
    with training_together(estimator, group):
        run, sample = prepare(estimator, recipe, data, sizes, rank, start)
        estimator._fit_run(recipe, run, sample, sample)


@contextlib.contextmanager
def training_together(estimator: Any, group: Group) -> Iterator[None]:
    """Train in step in the block: interrupts leave marks, rank 0 warns, and all get its model."""
    with doing(f"{type(estimator).__name__}.fit, training"), muted(group.rank > 0):
        with marking() if group.size > 1 else contextlib.nullcontext():
            yield
            adopt(estimator, group)
            is_late = is_marked()
        estimator._diagnosis.warn()
    if is_late:
        warn(
            f"The fit was interrupted after training had ended; the model is complete. {AGAIN}",
            ConvergenceWarning,
        )


def fit_warned(estimator: Any, recipe: Recipe, data: Data) -> None:
    """Fit to rows that are all here, and warn of what is wrong with the fit."""
    estimator._fit(recipe, data)
    estimator._diagnosis.warn()


def fit_numbered(estimator: Any, recipe: Recipe, data: Data, numbers: np.ndarray) -> None:
    """Do the same, where rows have these numbers among those of all ranks."""
    fit_warned(estimator, recipe, data)
    if (found := getattr(estimator, "held_out_", None)) is not None:
        estimator.held_out_ = found.known_by(numbers)


def in_time(estimator: Any, recipe: Recipe, clock: Clock, began: float) -> Recipe:
    """Return a recipe that ends `max_time`, if set, after the fit began by the clock."""
    if (seconds := getattr(estimator, "max_time", None)) is None:
        return recipe
    return replace(recipe, deadline=Deadline(began + seconds, clock))


# ---- rows ----------------------------------------------------------------------------------------


def shared_rows(estimator: Any, group: Group, X: Any, y: Any, of_rows: tuple[Any, ...]) -> Data:
    """Validate this rank's rows, if any, and check that all ranks have rows of one table."""
    has_rows, data = counts(X, *of_rows), None
    if hasattr(type(estimator), "predict_proba"):
        classes = classes_of(group, y, *of_rows)
        of_rows, estimator.classes_ = (*of_rows, classes), classes
    with agreed(group):
        if has_rows:
            data = estimator._given(X, y, True, *of_rows)
    own = {name: plain_form(getattr(estimator, name, None)) for name in FOUND}
    own["columns"] = [] if data is None else described(data)
    told = group.gather(np.array([json.dumps(own)] if has_rows else [], dtype=object))
    if not len(told):
        raise ValueError(NO_ROWS)
    group.check_same("Columns of X and y", in_words(own if has_rows else json.loads(told[0])))
    return data if data is not None else no_rows(estimator, json.loads(told[0]))


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
        return not np.all(np.asarray(readable(sample_weight)) == 0)
    return True


def classes_of(group: Group, y: Any, sample_weight: Any = None) -> np.ndarray:
    """Return the labels of all ranks' rows that count."""
    y = np.asarray(y)
    counts = np.ones(len(y), dtype=bool) if sample_weight is None else np.asarray(sample_weight) > 0
    with contextlib.suppress(TypeError, IndexError):  # which the check of rows explains
        y = y[counts]
    return np.unique(group.gather(np.unique(y) if y.ndim == 1 and len(y) else y.ravel()[:0]))


def described(data: Data) -> list[Any]:
    """Return the names and shapes of the columns that there are, except weights."""
    columns = ((f.name, getattr(data, f.name)) for f in fields(data) if f.name != "weight")
    return [[name, list(c.shape[1:])] for name, c in columns if c is not None]


def plain_form(value: Any) -> Any:
    """Return a value as JSON can keep it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def in_words(found: dict[str, Any]) -> str:
    """Say which columns rows have, in the user's words."""
    names, shape = found["feature_names_in_"], found["_y_shape"]
    of_X = f"X of shape (n, {found['n_features_in_']})" + (f": {', '.join(names)}" if names else "")
    of_y = "" if shape is None else f", y of shape {('n', *shape)}".replace("'", "")
    others = [name for name, _ in found["columns"] if name not in ("X", "y")]
    return f"{of_X}{of_y}" + (f", with {', '.join(others)}" if others else "")


def no_rows(estimator: Any, told: dict[str, Any]) -> Data:
    """Return no rows of a table that other ranks have; set the attributes that validation sets."""
    columns = {name: np.empty((0, *shape)) for name, shape in told.pop("columns")}
    for name, value in told.items():
        if value is not None:
            value = tuple(value) if name == "_y_shape" else value
            value = np.array(value, dtype=object) if name == "feature_names_in_" else value
            setattr(estimator, name, value)
    return Data(**columns)


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


# ---- preparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """The place of a rank's first row among those that count, and the whole of all rows.

    `numbers` (n,) are the places of its rows among all that were given to ranks.
    """

    first: int
    numbers: np.ndarray
    whole: Whole


def prepare(
    estimator: Any, recipe: Recipe, data: Data, sizes: Sizes, rank: Rank, start: Start | None
) -> tuple[Run, Data]:
    """Make the objective from a sample of the rows, and the run that trains it on all of them."""
    group = rank.whole.group
    seed = int(group.first(sampling_seed(estimator)))
    sample = sample_of(group, data, rank.first, rank.numbers, seed)

    def table(dtype: str, X: Tensor, rows: Rows) -> OnRanks:
        own_X, own_rows = estimator._tensors(data, dtype, X.device)
        own = own_X, replace(own_rows, whole=rank.whole)
        return OnRanks(X, rows, own, rank.first, (sample.own, sample.places), seed)

    run = begin_from_sample(estimator, recipe, sample.data, sizes, rank.whole, start, seed, table)
    return run._replace(numbers=sample.numbers), sample.data


def begin_from_sample(
    estimator: Any,
    recipe: Recipe,
    sample: Data,
    sizes: Sizes,
    whole: Whole,
    start: Start | None,
    seed: int,
    table: Callable[[str, Tensor, Rows], Table],
) -> Run:
    """Make the objective from a sample, and the run that trains it on all rows of a table.

    `table` makes it from a dtype, and the sample's X and rows.
    """
    plan = within_sample(recipe.plan(sizes, start), len(sample))
    checkpoint = None
    if estimator.checkpoint_dir is not None:
        shape = whole.n_rows, whole.weight
        known = checkpoint_of(estimator, sample, seed, start, plan.beta, shape)
        seed, checkpoint = seed_of(estimator, known, seed), CheckpointOfGroup(known, whole.group)
    generator = torch.Generator(resolve_device(estimator.device)).manual_seed(seed)
    device = generator.device
    estimator._set_scalings(recipe, sample, start)
    X, rows = estimator._tensors(sample, plan.dtype, device, None, plan.folds)
    of_all = replace(rows, whole=replace(whole, group=ALONE))
    shared = table(plan.dtype, X, of_all)
    problem = Problem(shared, estimator._x_scaling, plan, generator, start)
    if recipe.deadline is None:
        run = begin(recipe, problem, checkpoint)
    else:
        run = begin_in_time(recipe, problem, sizes, checkpoint, recipe.deadline)
    if whole.group.size > 1:
        refuse_batch_statistics(run.objective)
    return run._replace(places=np.arange(len(sample)))


def refuse_batch_statistics(objective: torch.nn.Module) -> None:
    """Raise a ValueError if a layer of the user averages over the rows of a minibatch."""
    for layer in objective.modules():
        if averages_rows(layer):
            raise ValueError(
                f"feature_map must not contain {type(layer).__name__} in a group of "
                "processes, because each rank would average over its own rows only. Use "
                "LayerNorm or GroupNorm."
            )


def averages_rows(layer: torch.nn.Module) -> bool:
    """Tell whether a torch layer averages over the rows of a minibatch."""
    if isinstance(layer, INSTANCE_LAYERS):
        return layer.track_running_stats
    return isinstance(layer, BATCH_LAYERS)


def most_sampled(n_features: int) -> int:
    """Return how many rows the sample has at most."""
    return min(SAMPLE_ROWS, max(MERGED_ROWS, SAMPLE_NUMBERS // n_features))


class Sample(NamedTuple):
    """Some of the rows of all ranks, in an order that all ranks share.

    Parameters
    ----------
    data : Data
        These m rows.
    numbers : ndarray of shape (m,)
        Their places among the rows that all ranks were given.
    own, places : ndarray of shape (m_own,)
        Which of this rank's rows are among them, and where.
    """

    data: Data
    numbers: np.ndarray
    own: np.ndarray
    places: np.ndarray


def sample_of(group: Group, data: Data, first: int, numbers: np.ndarray, seed: int) -> Sample:
    """Return a sample of the rows of all ranks; this rank's are `data`, from place `first` on.

    `numbers` (n,) identify them in the sample.
    """
    most = most_sampled(data.X.shape[1])
    own, places = (part.numpy() for part in chosen_rows(group, seed, first, len(data), most))
    order = np.argsort(group.gather(places))
    rows = data[own].map(lambda column: group.gather(column)[order])
    return Sample(rows, group.gather(numbers[own])[order], own, places)


# ---- time ----------------------------------------------------------------------------------------


class ClockOfGroup:
    """Seconds since it was made, on the rank where most have passed, so that ranks agree."""

    def __init__(self, group: Group) -> None:
        self.group, self.began = group, time.monotonic()

    def __call__(self) -> float:
        """Return the seconds; every rank has to call it."""
        passed = torch.tensor([time.monotonic() - self.began], dtype=torch.float64)
        self.group.max_(passed)
        return float(passed)
