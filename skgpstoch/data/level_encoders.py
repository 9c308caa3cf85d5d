"""Encode categories of many levels by what training rows say of the target at each level."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .categories import codes_of, levels_of
from .columns import LEVEL, Column
from .equal_rows import LEADING_COLUMNS
from .level_effects import Design, LevelEffects, Line, telling
from .messages import warn
from .target_means import TargetMeans, Targets


class LevelEncoders(NamedTuple):
    """Encoders of columns, the training rows that they encode, and what other columns say of y."""

    encoders: list[TargetMeans]
    encoded: list[np.ndarray]  # (n, width) of each column
    line: Line | None = None  # of which the effects of levels are what is left
    line_of_dates: Line | None = None  # the same for days, given only the dates


def level_encoders(
    columns: list[Column],
    many: list[int],
    others: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    cluster: np.ndarray | None,
    dates: np.ndarray,
    n_days: int,
) -> LevelEncoders:
    """Return encoders of the columns of many levels: target means and effects.

    Parameters
    ----------
    columns : list of Column
        All columns of the training rows.
    many : list of int
        Positions of those to encode.
    others : ndarray of shape (n, d)
        The other columns, encoded.
    y : ndarray of shape (n, P)
        Values whose means and effects encode a level.
    weight, cluster : ndarray of shape (n,) or None
        Positive weights, and codes of groups whose rows are in one fold.
    dates : ndarray of shape (n, k)
        The dates, encoded, of which the last columns are the days.
    n_days : int
        Number of these. In place of means, days have effects given only the dates: means would
        tell the season, which new days have, too.
    """
    levels = [levels_of(columns[j].levels) for j in many]
    leading = [columns[j] for j in many] + [c for j, c in enumerate(columns) if j not in many]
    known = [ranks(column) for column in leading[:LEADING_COLUMNS]]
    targets = Targets.of(known, y, weight, cluster)
    for j, found in zip(many, levels, strict=True):
        if len(found) == len(targets.row):
            warn(
                f"Column {columns[j].name} of X has a different category in every row, so "
                "it cannot help to predict new rows. Drop it, or replace it by something "
                "that rows share."
            )
    values = [columns[j].values for j in many]
    fits = [TargetMeans.fit(v, found, targets) for v, found in zip(values, levels, strict=True)]
    means = LevelEncoders([fit[0] for fit in fits], [fit[1] for fit in fits])
    if len(many) == 1 and not others.shape[1]:  # the effects are the means
        return means
    codes = [codes_of(v[targets.row], found) for v, found in zip(values, levels, strict=True)]
    rows = targets.row
    return with_effects(means, np.array(codes), others[rows], dates[rows], targets, n_days)


def with_effects(
    means: LevelEncoders,
    codes: np.ndarray,
    others: np.ndarray,
    dates: np.ndarray,
    targets: Targets,
    n_days: int,
) -> LevelEncoders:
    """Add the effects of levels, of rows with these codes (C, m) and other columns (m, d).

    For the last `n_days` categories, replace means by effects given only the dates (m, k).
    """
    n_levels = [len(each.levels) for each in means.encoders]
    y, w, fold = targets.y, targets.weight, targets.fold

    def effects(X: np.ndarray, some: slice) -> LevelEffects:
        design = Design(np.empty((len(X), 0)), codes[some], n_levels[some], w)
        return LevelEffects.of(X, design, y, fold)

    first = len(codes) - n_days
    given_all = effects(others, slice(None))
    given_dates = effects(dates, slice(first, None)) if n_days else given_all
    found = LevelEncoders([], [], given_all.line, given_dates.line if n_days else None)
    for c, code in enumerate(codes):
        encoder, own, told = means.encoders[c], means.encoded[c][targets.row], y
        if c >= first:
            encoder = replace(encoder, means=given_dates.whole[c - first])
            own = given_dates.without[c - first][fold, code]
            told = y - given_dates.line(dates)
        own = np.hstack([own, given_all.without[c][fold, code]])
        says = telling(own, np.hstack([told, y - given_all.line(others)]), w)
        found.encoders.append(encoder.beside(given_all.whole[c]).only(says))
        found.encoded.append(np.where(says, own, 0.0)[targets.place])
    return found


def ranks(column: Column) -> np.ndarray:
    """Return the ranks of a column's values, (n,); a missing value is the last."""
    if column.kind == LEVEL:
        return codes_of(column.values, levels_of(column.levels)).astype(np.float64)
    return np.unique(column.values, return_inverse=True)[1].astype(np.float64)
