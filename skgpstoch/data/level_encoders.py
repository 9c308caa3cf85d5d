"""Encode categories of many levels by what training rows say of the target at each level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .categories import codes_of, levels_of
from .columns import LEVEL, Column
from .equal_rows import LEADING_COLUMNS
from .level_effects import Design, LevelEffects, Line, telling
from .messages import warn
from .misread import told_of_texts
from .target_means import TargetMeans, Targets

LEAST_BY_DAYS = 0.01
"""Least share of what other columns leave of y that the effects of days must explain, as rows of
other folds tell them. *Measured*: house sales by month have .002 and .007, and lost .02 nats by
effects on both splits; flights have .04 (2,500 rows) to .08 (294,611), and gain."""


class LevelEncoders(NamedTuple):
    """Encoders of columns, the training rows that they encode, and what other columns say of y."""

    encoders: list[TargetMeans]
    encoded: list[np.ndarray]  # (n, width) of each column
    line: Line | None = None  # of which the effects of levels are what is left


def level_encoders(
    columns: list[Column],
    many: list[int],
    others: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    cluster: np.ndarray | None,
    n_given: int,
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
    n_given : int
        Number of columns of the table. Further ones are days, and have only effects: the means of
        days would tell the season, which new days have, too.
    """
    levels = [levels_of(columns[j].levels) for j in many]
    leading = [columns[j] for j in many] + [c for j, c in enumerate(columns) if j not in many]
    known = [ranks(column) for column in leading[:LEADING_COLUMNS]]
    targets = Targets.of(known, y, weight, cluster)
    for j, found in zip(many, levels, strict=True):
        if len(found) == len(targets.row) and told_of_texts(columns[j]) is None:
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
    has_mean = np.array(many) < n_given
    return with_effects(means, np.array(codes), others[targets.row], targets, has_mean)


def with_effects(
    means: LevelEncoders,
    codes: np.ndarray,
    others: np.ndarray,
    targets: Targets,
    has_mean: np.ndarray,
) -> LevelEncoders:
    """Add the effects of levels, of rows with these codes (C, m) and other columns (m, d).

    `has_mean` (C,) tells which keep the mean target.
    """
    n_levels = [len(each.levels) for each in means.encoders]
    design = Design(np.empty((len(others), 0)), codes, n_levels, targets.weight)
    effects = LevelEffects.of(others, design, targets.y, targets.fold)
    rest = np.hstack([targets.y, targets.y - effects.line(others)])
    found = LevelEncoders([], [], effects.line)
    for c, code in enumerate(codes):
        effect = effects.without[c][targets.fold, code]
        own = np.hstack([means.encoded[c][targets.row], effect])
        says = telling(own, rest, targets.weight)
        if not has_mean[c]:
            explained = share_explained(rest[:, -effect.shape[1] :], effect, targets.weight)
            says &= np.append(np.zeros_like(explained, dtype=bool), explained >= LEAST_BY_DAYS)
        found.encoders.append(means.encoders[c].beside(effects.whole[c]).only(says))
        found.encoded.append(np.where(says, own, 0.0)[targets.place])
    return found


def share_explained(rest: np.ndarray, effect: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the share of the squares of what is left (m, P) that effects (m, P) explain, (P,)."""
    left = weight @ np.square(rest - effect)
    return np.asarray(1.0 - left / np.maximum(weight @ np.square(rest), np.finfo(float).tiny))


def ranks(column: Column) -> np.ndarray:
    """Return the ranks of a column's values, (n,); a missing value is the last."""
    if column.kind == LEVEL:
        return codes_of(column.values, levels_of(column.levels)).astype(np.float64)
    return np.unique(column.values, return_inverse=True)[1].astype(np.float64)
