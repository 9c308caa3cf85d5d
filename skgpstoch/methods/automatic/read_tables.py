"""Read the table of a recommended default: here, on several ranks, or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from sklearn.base import is_classifier

from ...data.array_inputs import as_floats, real_target
from ...data.arrays import resolve_seed
from ...data.chunk import Chunk, concatenated, named_by, refuse_dimensions
from ...data.frames import is_frame
from ...data.groups import ALONE, ClockOfGroup, Group, agreed, current, doing
from ...data.messages import muted, warn
from ...data.read_table import read_table
from ...data.row_sample import are_few, chosen_rows, most_sampled, offsets
from ...data.row_source import (
    RowSource,
    is_source,
    refuse_other_columns,
    refuse_other_outputs,
)
from ...data.rows import Data
from ...data.scan import Scan, scanned
from ...data.table_parts import ColumnFacts, facts_of, merged, read_alike, read_as
from ...data.target_means import FoldMeans
from ...estimators.first_rank import check_alike
from ...estimators.opening import (
    FirstPass,
    alike,
    classes_of,
    counts,
    first_pass,
    refuse_columns,
    refuse_given,
    whole_of,
)
from ...estimators.validation import check_numbers, known_columns, refuse_groups_apart, with_groups
from ...estimators.weights import (
    check_weight,
    in_shares,
    unit_of_group,
    with_weights_of_group,
)
from .table_fit import (
    EncodedRows,
    Read,
    SampleRead,
    as_given,
    transformed,
    with_checked_targets,
)

LONGEST_PASS = 1 / 3
"""Share of `max_time`: after a longer pass there is no second one, to leave time for training."""

NOTED = ("n_features_in_", "feature_names_in_")
"""Attributes that the validation of rows sets on an estimator."""


def read(
    automatic: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    exposure: Any = None,
    y_std: Any = None,
    groups: Any = None,
) -> Read:
    """Validate parameters and rows; read rows once if they come in chunks."""
    clock, name = ClockOfGroup(current()), type(automatic).__name__
    with doing(f"{name}.fit, reading rows"):
        check_alike(automatic, clock.group, X)
        refuse_groups_apart(X, groups)
        if is_source(X):
            return read_source(automatic, clock, X, y, sample_weight, exposure, y_std)
        if clock.group is not ALONE:
            return read_ranks(automatic, clock, X, y, sample_weight, exposure, y_std)
        check_numbers(automatic)
        if sample_weight is not None:
            as_floats(sample_weight, "sample_weight")  # or an error that names it
        table, targets, weight = automatic._checked(X, y, sample_weight, least=2)
        known = known_of_targets(targets, exposure, y_std)
        cluster = with_groups(Data(targets, targets, weight), groups).cluster
        numbers = np.arange(len(targets))
        rows = Chunk(table, numbers, "X", targets, weight, **known, cluster=cluster)
        return Read(rows=rows, clock=clock, given=(X, y))


def known_of_targets(y: np.ndarray, exposure: Any, y_std: Any) -> dict[str, Any]:
    """Return what is known of targets (n,) or (n, P), after checks: exposures (n, 1), errors."""
    return known_columns((len(y), y.size // max(len(y), 1)), exposure, y_std)


# ---- rows of several ranks -----------------------------------------------------------------------


def read_ranks(
    automatic: Any,
    clock: ClockOfGroup,
    X: Any,
    y: Any,
    sample_weight: Any,
    *beside: Any,
) -> Read:
    """Validate this rank's rows, and sample or gather those of all ranks."""
    group = clock.group
    own = own_rows(automatic, group, X, y, sample_weight, *beside)
    n_own = 0 if own is None else len(own)
    first, n = offsets(group, n_own)
    if n < 2:
        raise ValueError(f"X must have at least 2 rows on all ranks together, got {n}.")

    if are_few(n, automatic._most_raced):
        rows = rows_of_ranks(group, own)
        with muted(group.rank > 0):
            checked = check_weight(Data(rows.rows, rows.rows), rows.weight, least=2, keeps=True)
            rows = replace(rows, weight=checked.weight)
        return Read(rows=rows, clock=clock, given=(X, y))
    with muted(True):  # models that are fitted to all rows warn
        shared = with_weights_of_group(own, group)
    seed = int(group.first(resolve_seed(automatic.random_state)))
    most = most_sampled(max(group.every(0 if own is None else len(own.X.columns))))
    chosen, places = (
        part.numpy() for part in chosen_rows(group, resolve_seed(seed), first, n_own, most)
    )
    order = np.argsort(group.gather(places))
    sample = rows_of_ranks(group, None if shared is None else shared[chosen])[order]
    rows = sample[:0] if own is None else own

    def encoded(by_fold: Mapping[int, FoldMeans]) -> Data:
        X = automatic._encoder.transform_training(rows.X, rows.rows, by_fold)
        with agreed(group):
            z = transformed(automatic, cast(np.ndarray, rows.y))
            return Data(X, z, rows.weight, rows.exposure, rows.y_std)

    return SampleRead(
        rows=sample,
        clock=clock,
        given=(X, y),
        known=group.gather(first + chosen)[order],
        n_rows=n,
        seed=seed,
        classes=classes_of(group, rows.y) if is_classifier(automatic) else None,
        parts=lambda: [rows if shared is None else shared],
        encoded=encoded,
    )


def in_words(y: Any, exposure: Any, y_std: Any) -> str:
    """Say of which kind y is, and what is known of it."""
    y = np.asarray(y)
    kind = "texts" if y.dtype.kind in "OUS" else "numbers"
    columns = "" if y.ndim < 2 else f" in {y.shape[1]} columns"
    known = ", exposure" * (exposure is not None) + ", y_std" * (y_std is not None)
    return f"y of {kind}{columns}{known}"


def own_rows(
    automatic: Any, group: Group, X: Any, y: Any, weight: Any, *beside: Any
) -> Chunk | None:
    """Validate this rank's rows (None if it has none), and check that all ranks have one table."""
    given, (first, _) = None, offsets(group, len(X))
    with agreed(group):
        check_numbers(automatic)
        if counts(X, weight):
            X, y, weight = automatic._checked(X, y, weight, least=1)
            table = read_table(X, automatic.categorical_features)
            numbers, known = first + np.arange(len(y)), known_of_targets(y, *beside)
            given = Chunk(table, numbers, "rows of this rank", y, weight, **known)
            if weight is not None:
                given = given[weight > 0.0]
    alike(automatic, group, NOTED, given and ())
    read = read_alike(group, None if given is None else given.X, in_words(y, *beside))
    has_weights = group.flag(given is not None and given.weight is not None)
    if given is None:
        return None
    weight = np.ones(len(given)) if has_weights and given.weight is None else given.weight
    return replace(given, X=read, weight=weight)


def rows_of_ranks(group: Group, own: Chunk | None) -> Chunk:
    """Return the rows of all ranks, in the order of ranks."""
    return concatenated([part for part in group.every(own) if part is not None])


# ---- rows that are read in chunks ----------------------------------------------------------------


def read_source(
    automatic: Any,
    clock: ClockOfGroup,
    source: RowSource,
    y: Any,
    sample_weight: Any,
    exposure: Any,
    y_std: Any,
) -> Read:
    """Read all rows once, each rank its own, and draw a sample."""
    group = clock.group
    with agreed(group):
        check_numbers(automatic)
        source.check_has_target()
        refuse_given(y, sample_weight, exposure, y_std)
        refuse_columns(automatic, source)
    seed = int(group.first(resolve_seed(automatic.random_state)))
    first, facts = first_look(automatic, group, source, seed)
    with agreed(group):
        sample = replace(first.sample, X=as_given(source, first.sample))
    rows = checked_sample(automatic, source, sample, least=2 if first.is_whole else 1)
    if first.is_whole:
        return Read(rows=rows, clock=clock, given=(sample.X, sample.y))
    unit = 1.0
    if rows.weight is not None:
        total = whole_of(group, first.n_rows, first.own.n_effective)
        with muted(True):  # models that are fitted to all rows warn
            unit = unit_of_group(group, total.weight, total.n_rows)
        rows = replace(rows, weight=unit * rows.weight)
    of_all = merged([each for each in group.every(facts) if each is not None])
    rows = replace(rows, X=read_as(rows.X, automatic.categorical_features, of_all))
    seconds = automatic.max_time
    is_late = seconds is not None and clock() > LONGEST_PASS * seconds

    def encoded(by_fold: Mapping[int, FoldMeans]) -> Data:
        """Return the source, encoded chunk by chunk, in place of X and y."""
        table = EncodedRows(source, automatic, by_fold, first.own)
        return Data(cast(Any, table), cast(Any, None))

    return SampleRead(
        rows=rows,
        clock=clock,
        given=(sample.X, sample.y),
        known=rows.rows,
        n_rows=first.n_rows,
        seed=seed,
        classes=first.classes,
        parts=lambda: (
            sampled_parts(rows, group, seconds)
            if is_late
            else counted_chunks(source, first.part, unit)
        ),
        encoded=encoded,
    )


def first_look(
    automatic: Any, group: Group, source: RowSource, seed: int
) -> tuple[FirstPass, list[ColumnFacts] | None]:
    """Read all rows of a source once, each rank its own; also return what its columns hold."""
    facts = None

    def look(part: RowSource) -> tuple[int, Scan]:
        nonlocal facts
        refuse_dimensions(source.example.X, source.example.where)
        n_sample = most_sampled(source.example.X.shape[1])
        own, facts = read_through(automatic, part, n_sample, resolve_seed(seed))
        return n_sample, own

    return first_pass(group, source, resolve_seed(seed), look), facts


def checked_sample(automatic: Any, source: RowSource, sample: Chunk, least: int) -> Chunk:
    """Return the sample of a source after checks; note the columns on the estimator."""
    X, y, weight = automatic._checked(sample.X, sample.y, sample.weight, least=least)
    source.is_learned = True
    if not is_frame(sample.X) and source.feature_names is not None:
        automatic.feature_names_in_ = np.array(source.feature_names, dtype=object)
    known = known_of_targets(y, sample.exposure, sample.y_std)
    return replace(sample, X=X, y=y, weight=weight, **known)


def sampled_parts(rows: Chunk, group: Group, seconds: float | None) -> list[Chunk]:
    """Return the sample, on one rank, and warn that it stands for all rows."""
    warn(
        f"max_time={seconds} leaves no time to read all rows once more, so categories are "
        f"encoded from {len(rows):,} random rows only. Raise max_time to use all rows."
    )
    return [rows] if group.rank == 0 else []


def counted_chunks(source: RowSource, part: RowSource, unit: float) -> Iterator[Chunk]:
    """Yield the rows of a part that count, as the user's transformer leaves them."""
    for chunk in part.read(None):
        counted = in_shares(with_checked_targets(chunk).counted(), unit)
        if len(counted):
            yield replace(counted, X=as_given(source, counted))


def read_through(
    automatic: Any, source: RowSource, n_sample: int, seed: int
) -> tuple[Scan, list[ColumnFacts] | None]:
    """Read all rows of a source once; return facts about them, and what their columns hold."""
    labelled, facts = is_classifier(automatic), None
    names = source.stored_names if source.transform is None else None

    def checked_chunks() -> Iterator[Chunk]:
        nonlocal facts
        for chunk in source.read(None):
            refuse_other_columns(chunk, source.example)
            refuse_other_kind(chunk, source.example)
            refuse_other_outputs(chunk, cast(np.ndarray, source.example.y))
            counted = with_checked_targets(chunk).counted()
            if len(counted):
                if not labelled:
                    check_target(counted)
                yield counted
                X = as_given(source, counted)
                found = facts_of(X, automatic.categorical_features, chunk.where, names)
                facts = found if facts is None else merged([facts, found])

    return scanned(source, checked_chunks(), n_sample, seed, labelled), facts


def refuse_other_kind(chunk: Chunk, known: Chunk) -> None:
    """Raise a ValueError if X of two chunks are frames of different libraries, or arrays."""
    kinds = {(isinstance(each.X, np.ndarray), hasattr(each.X, "iloc")) for each in (chunk, known)}
    if len(kinds) > 1:
        found, first = (f"{type(c.X).__module__}.{type(c.X).__name__}" for c in (chunk, known))
        raise ValueError(
            f"{chunk.where}: X is a {found}, but that of {known.where} is a {first}. Convert all "
            "chunks to one kind."
        )


def check_target(chunk: Chunk) -> None:
    """Raise a ValueError that names the chunk if y holds anything but numbers."""
    with named_by(chunk.where):
        real_target(chunk.y)
