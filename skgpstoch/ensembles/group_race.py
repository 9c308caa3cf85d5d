"""The recommended defaults in a group of processes, each with its own rows.

Few rows are gathered, as they are, and rank 0 fits for all. If there are many, a sample says how
tables are encoded and what y is like; it does not depend on which rank has which rows. The levels
of categories, the target at these, and where values are missing come from all rows. A row's level
is encoded by sums over the rows of other folds. Then all ranks train the networks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from ..data.arrays import resolve_seed
from ..data.chunk import Chunk
from ..data.columns import ReadTable
from ..data.deadline import ClockOfGroup, Deadline
from ..data.level_sums import Told
from ..data.messages import muted
from ..data.reduce import Group, agreed, doing
from ..data.row_sample import are_few, chosen_rows, most_sampled, offsets, sample_of
from ..data.rows import Data
from ..data.table_shares import joined_tables, read_alike
from ..data.tables import read_table
from ..estimators.alike import NO_ROWS, check_alike
from ..estimators.callbacks import Fits
from ..estimators.first_rank import adopt, fit_on_first
from ..estimators.opening import classes_of, counts
from ..estimators.validation import check_numbers, check_weight
from .race import race

NOTED = ("n_features_in_", "feature_names_in_")
"""Attributes that the validation of rows sets on an estimator."""


@dataclass(frozen=True)
class Given:
    """Rows (n,) that count, as the user gave them; ``given[rows]`` selects some.

    `numbers` (n,) are their places among all that ranks were given.
    """

    table: ReadTable
    y: np.ndarray
    weight: np.ndarray | None
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Any) -> Given:
        weight = None if self.weight is None else self.weight[rows]
        return Given(self.table[rows], self.y[rows], weight, self.numbers[rows])


def race_in_group(estimator: Any, group: Group, X: Any, y: Any, sample_weight: Any) -> None:
    """Fit to the rows of all ranks, of which these are this rank's."""
    clock, name = ClockOfGroup(group), type(estimator).__name__
    with doing(f"{name}.fit, reading rows"):
        check_alike(estimator, group, X)
        given = read_rows(estimator, group, X, y, sample_weight)
        first, n = offsets(group, 0 if given is None else len(given))
        if n < 2:
            raise ValueError(f"X must have at least 2 rows on all ranks together, got {n}.")
        is_few = are_few(n, estimator._most_raced)
        all_rows = rows_of_ranks(group.every(given)) if is_few else None

    def task(n_parts: int) -> Fits:
        return Fits(estimator, X, y, n_parts)

    if all_rows is not None:
        fit_on_first(estimator, group, lambda: fit_all(estimator, all_rows, clock.began, task))
        return
    deadline = None if estimator.max_time is None else Deadline(estimator.max_time, clock)
    with doing(f"{name}.fit, encoding rows"), muted(group.rank > 0):
        seed = int(group.first(resolve_seed(estimator.random_state)))
        data = encoded(estimator, group, given, first, resolve_seed(seed))
    with doing(f"{name}.fit"), muted(group.rank > 0):
        networks = estimator._networks(data)
        alike = networks._replace(
            make=lambda left: networks.make(left).set_params(random_state=seed)
        )
        fits = task(1)
        found, _ = race([alike], fits, data, deadline)
        places = first + np.arange(len(data))  # by which the networks know rows
        judges = sample_of(group, data, first, places, resolve_seed(seed))  # some are held out
        for each in found:
            each.model.held_out_ = each.model.held_out_.among(judges.numbers)
        own = np.empty(0, dtype=np.int64) if given is None else given.numbers
        numbers = group.gather(own[judges.own])[np.argsort(group.gather(judges.places))]
        estimator._keep(found, [], judges.data, n, numbers, deadline)
        fits.on_end()
    adopt(estimator, group)


def fit_all(estimator: Any, rows: Given, began: float, task: Callable[[int], Fits]) -> None:
    """Fit to rows that are all here."""
    check_weight(Data(rows.y, rows.y), rows.weight, least=2, keeps=True)
    estimator._fit_rows(rows.table, rows.y, rows.weight, rows.numbers, began, task)


# ---- rows as they are ----------------------------------------------------------------------------


def read_rows(estimator: Any, group: Group, X: Any, y: Any, sample_weight: Any) -> Given | None:
    """Validate this rank's rows (None if it has none), and check that all ranks have one table."""
    given, (first, _) = None, offsets(group, len(X))
    with agreed(group):
        check_numbers(estimator)
        if counts(X, sample_weight):
            X, y, weight = estimator._checked(X, y, sample_weight, least=1)
            read = read_table(X, estimator.categorical_features)
            given = Given(read, y, weight, first + np.arange(len(y)))
            if weight is not None:
                given = given[weight > 0.0]
    if not group.flag(given is not None):
        raise ValueError(NO_ROWS)
    found = None if given is None else {n: getattr(estimator, n, None) for n in NOTED}
    told = next(each for each in group.every(found) if each is not None)
    for name, value in told.items():
        vars(estimator).pop(name, None)
        if value is not None:
            setattr(estimator, name, value)
    beside = None if given is None else [given.y.shape[1:], given.y.dtype.kind in "OUS"]
    table = read_alike(group, None if given is None else given.table, beside)
    has_weights = group.flag(given is not None and given.weight is not None)
    if given is None or table is None:
        return None
    weight = np.ones(len(given)) if has_weights and given.weight is None else given.weight
    return replace(given, table=table, weight=weight)


def rows_of_ranks(parts: Sequence[Given | None]) -> Given:
    """Return the rows of all ranks, in the order of ranks."""
    some = [part for part in parts if part is not None]
    weights = [part.weight for part in some if part.weight is not None]  # all have some, or none
    return Given(
        joined_tables([part.table for part in some]),
        np.concatenate([part.y for part in some]),
        np.concatenate(weights) if weights else None,
        np.concatenate([part.numbers for part in some]),
    )


# ---- rows as models see them ---------------------------------------------------------------------


def encoded(estimator: Any, group: Group, given: Given | None, first: int, seed: int) -> Data:
    """Learn from a sample of all rows how they are encoded, and encode this rank's."""
    n_columns = max(group.every(0 if given is None else len(given.table.columns)))
    n_own = 0 if given is None else len(given)
    own, places = chosen_rows(group, seed, first, n_own, most_sampled(n_columns))
    parts = group.every(None if given is None else given[own.numpy()])
    sample = rows_of_ranks(parts)[np.argsort(group.gather(places.numpy()))]
    given = sample[:0] if given is None else given
    if is_classifier(estimator):
        estimator._note_classes(classes_of(group, given.y))
    estimator._learned(sample.table, sample.y, sample.weight)
    encoder = estimator._encoder
    told = Told.of(sample.y, sample.weight, getattr(estimator, "classes_", None))
    own_rows = Chunk(given.table, given.numbers, "rows of this rank", given.y, given.weight)
    by_fold = encoder.learn_levels(group, [own_rows], told)
    X = encoder.transform_training(given.table, given.numbers, by_fold)
    with agreed(group):
        y = transformed(estimator, given.y)
    return Data(X, y, given.weight)


def transformed(estimator: Any, y: np.ndarray) -> np.ndarray:
    """Return the targets that models are fitted to, for these targets.

    Raises
    ------
    ValueError
        If they are not finite.
    """
    if len(y) == 0:
        return y
    with np.errstate(all="ignore"):
        z = np.asarray(estimator._targets(y))
    if z is not y and not np.isfinite(z).all():
        raise ValueError(
            "target_transform must give a finite value for each target, but "
            f"{estimator.target_transform!r} does not."
        )
    return z
