"""Find what may be wrong with rows, before anything is known of a fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...data.arrays import OUTER, Scaling, quantiles
from ...data.equal_rows import FEW_SHARED, has_cells, has_own_values, n_distinct, twins
from ...data.findings import Finding
from ...data.missing_codes import MissingCodes, exact, missing_codes
from ...data.rows import Data
from .findings import FEW_ROWS, SHOWN_COLUMNS, WIDE, column_names, stride

FAR_ROWS_OF_X = "outliers in X"
MISSING_CODES, MISSING_TARGETS = "missing codes in X", "missing codes in y"
FEW_TO_LEARN = 20  # fewer rows are too few to learn hyper-parameters
FAR_COUNT = 100.0  # times what other rows tell
FEW_COUNTING = 10.0  # rows; twenty are few to learn, but balanced classes may have so many
COUNTING = 1.0 / 8.0  # share of rows; of fewer that count, a few decide
MOST_TWINS = 0.05  # share of rows
MANY_FEATURES, TOO_MANY_FEATURES = 1.0, 2.0  # per row
WIDTHS_OFF = 10.0  # a row is far if it is more than so many of these widths from the median
LEAST_BULK = 0.01
"""Least width of a column's middle four fifths, in standard deviations of the column.

*Measured*, the least width in each of 14 UCI tables: .9 to 2.8 in twelve, .15 in pol and .06 in
keggdirected. Log-normal columns of 100 to 10,000 rows (σ = 1, 2) have at least .035. A column of
standard normal numbers with three values of 99999 has .0001 to .0004.
"""


def of_rows(n_rows: int, learns: bool) -> Iterator[Finding]:
    """Yield how many rows there are to learn hyper-parameters from."""
    found = Finding(FEW_ROWS, "X", n_rows, FEW_TO_LEARN)
    if n_rows < FEW_TO_LEARN and learns:
        found = found._replace(
            severity="problem",
            text=f"{n_rows} rows are too few to learn a kernel. Expect intervals that are too "
            "narrow.",
            advice="Use more rows. If the estimator takes a kernel, you can pass one whose "
            "hyper-parameters you know, with tight or 'fixed' bounds.",
        )
    yield found


def of_weights(data: Data) -> Iterator[Finding]:
    """Yield how many rows of one weight a mean varies as much with, (Σw)²/Σw² (Kish)."""
    if (w := data.weight) is None:
        return
    n_counting = float(w.sum() * (w.sum() / (w @ w)))
    found = Finding(
        "few weights", "sample_weight", n_counting, min(FEW_COUNTING, len(w) * COUNTING)
    )
    if n_counting < found.limit and not has_cells(data):
        n_heavy = round(n_counting)
        heavy = f"About {n_heavy} of the {len(w)} rows have" if n_heavy > 1 else "One row has"
        found = found._replace(
            severity="problem",
            text=f"{heavy} most of the weight (up to {w.max():.3g}, the median is "
            f"{np.median(w):.3g}), so the others hardly count, and intervals may be too narrow.",
            advice="A weight is the number of rows that a row stands for. If weights say which "
            "rows matter more, clip them, for example with np.minimum(w, 10 * np.median(w)). If "
            "they are 1 / error**2, pass y_std=error to a regressor that takes it.",
        )
    yield found


def of_constant_outputs(y: np.ndarray) -> Iterator[Finding]:
    """Yield how many columns of y (n, P) are constant, beside others that share their kernel.

    Without noise, the evidence of a constant has no upper bound as f becomes flat. *Measured* on a
    sine with little noise beside a constant, R² is 0 in 7 of 12 fits.
    """
    constant = np.flatnonzero((y == y[0]).all(0))
    if 0 < len(constant) < y.shape[1]:
        yield Finding(
            "constant outputs",
            f"y[:, {constant[0]}]",
            len(constant),
            0,
            "problem",
            f"Output {constant[0]} of y is {y[0, constant[0]]:.6g} in all rows. Outputs share one "
            "kernel. A constant is most likely if f is flat, which can spoil the other outputs.",
            "Leave constant outputs out of y.",
        )


def of_events(y: np.ndarray, exposure: np.ndarray | None) -> Finding:
    """Return the least number of events of an output: without any, rates have no lower bound.

    If three are expected, none is seen with a probability of e⁻³ = .05.
    """
    found = Finding("events", "y", float(y.sum(0).min()), 1.0)
    if found.value > 0.0:
        return found
    total = float(len(y) if exposure is None else exposure.sum())
    return found._replace(
        severity="problem",
        text="No event was counted: y is 0 in all rows. Predicted rates are then nearly 0, and "
        f"their intervals too narrow: a rate of {3.0 / total:.2g} (3 events in the exposure of "
        f"{total:.3g}) shows none with a probability of 5 %.",
        advice="Add rows with events, or take this rate for an upper bound.",
    )


def of_far_count(y: np.ndarray, exposure: np.ndarray | None) -> Iterator[Finding]:
    """Yield the largest count of (n,) or (n, P), and the largest that would be usual.

    That is a hundred times what all other rows together tell of its exposure, and one more event;
    and so few other events there are that it rules the mean rate.
    """
    Y = y.reshape(len(y), -1).astype(np.float64)
    e = np.ones_like(Y) if exposure is None else exposure.reshape(len(y), -1) + 0.0 * Y
    i, p = np.arange(Y.shape[1]), Y.argmax(0)
    most, rest, exposed = Y[p, i], Y.sum(0) - Y[p, i], e.sum(0) - e[p, i]
    with np.errstate(divide="ignore", invalid="ignore"):
        told = np.nan_to_num(rest / exposed) * e[p, i]
    usual = np.maximum(rest, FAR_COUNT * (1.0 + told))
    worst = int((most / usual).argmax())
    found = Finding("one count", "y", float(most[worst]), float(usual[worst]))
    if len(y) > FEW_TO_LEARN and found.value > found.limit:
        found = found._replace(
            severity="problem",
            text=f"The largest count, {found.value:.6g}, is more than all others together, "
            f"and {FAR_COUNT:g} times what they tell of it, so means of rows near it are far off.",
            advice="Check this row. If it is a fill value, leave it out.",
        )
    yield found


def of_places(data: Data) -> Iterator[Finding]:
    """Yield how many distinct inputs there are to train networks, with five targets each or more.

    Between levels there are no inputs.

    *Measured* at 12 places with 20 rows each: 90 % intervals of SCGD and MINIMAX at other places
    hold .49 to .72.
    """
    n, n_pairs = n_distinct(data.X), n_distinct(np.hstack([data.X, data.y]))
    found = Finding("few places", "X", n, FEW_TO_LEARN)
    if 2 < n < FEW_TO_LEARN and n <= FEW_SHARED * n_pairs and has_own_values(data.X, n):
        found = found._replace(
            severity="problem",
            text=f"{n} distinct inputs are too few to train networks. At other inputs, intervals "
            "may be far too narrow.",
            advice="Use more inputs, SVGPRegressor or AutoGaussianProcessRegressor.",
        )
    yield found


def of_twins(
    data: Data, columns: Sequence[slice] | None = None, names: Sequence[Any] | None = None
) -> Finding:
    """Return the share of rows that agree with another one but for a column, or for rounding.

    *Measured* on 120 rows, of which half come twice with another row number, or rounded to float32:
    90 % intervals of the recommended default hold .48 to .67, and those of distinct rows .89 to
    .93, as those of the twins do with groups=. Of 75 rows that come twice with another row number,
    NNGPRegressor and SVGPRegressor hold .67 to .91 (four samples), of the rows once .87 to .93.
    """
    each = [slice(j, j + 1) for j in range(data.X.shape[1])] if columns is None else columns
    share, column = twins(data, each) if data.cluster is None else (0.0, None)
    found = Finding("twins", "X", share, MOST_TWINS)
    if share > MOST_TWINS:
        but, groups = "", ""
        if column is not None:
            but = f" but {f'X[:, {column}]' if names is None else names[column]}"
        if names is not None:
            groups = (
                "; or give fit groups=, a number for each row that twins share, so that they are "
                "held out together"
            )
        found = found._replace(
            severity="problem",
            text=f"{share:.0%} of the rows have a twin, which agrees with them in y and, up to "
            f"rounding, in every column{but}. Each seems to be predicted by its twin, so "
            "intervals are too narrow, and scores too good.",
            advice=f"Drop rows that come twice{groups}.",
        )
    return found


def of_features(n_rows: int, n_features: int) -> Iterator[Finding]:
    """Yield how many features there are for each row."""
    found = Finding(WIDE, "X", n_features / n_rows, MANY_FEATURES)
    if n_features > MANY_FEATURES * n_rows:
        found = found._replace(
            severity="problem" if n_features > TOO_MANY_FEATURES * n_rows else "note",
            text=f"X has more features ({n_features}) than rows ({n_rows}), too few rows to "
            "learn which features matter.",
            advice="Select features or reduce them (PCA). If you pass a kernel, use one "
            "length_scale for all features.",
        )
    yield found


def with_codes(columns: np.ndarray) -> dict[int, MissingCodes]:
    """Return numbers that seem to stand for missing ones in the first such columns, (n, d)."""
    found = {j: each for j, column in enumerate(columns.T) if (each := missing_codes(column))}
    return dict(list(found.items())[:SHOWN_COLUMNS])


def of_missing_targets(y: np.ndarray) -> Iterator[Finding]:
    """Yield the columns of y, (n,) or (n, P), with numbers that seem to stand for missing ones.

    Only whole numbers: others may be the logarithm of 0 and a small number, for example.
    """
    Y = y.reshape(len(y), -1)
    for p, each in with_codes(Y).items():
        if any(code % 1.0 for code in each.values):
            continue
        share, where = each.share(Y[:, p]), "y" if Y.shape[1] == 1 else f"y[:, {p}]"
        codes = ", ".join(map(exact, each.values))
        yield Finding(
            MISSING_TARGETS,
            where,
            share,
            0.0,
            severity="problem",
            text=f"{each.told(where, share)}, f learns that number, and deviations are far too "
            "large.",
            advice=f"Leave these rows out: keep = ~np.isin({where}, [{codes}]). If it is a value "
            "of y, predict with a classifier whether y is, and y of the other rows apart.",
        )


def of_missing_codes(X: np.ndarray, names: Sequence[Any] | None = None) -> Iterator[Finding]:
    """Yield the columns of X (n, d) with numbers that seem to stand for missing ones."""
    for j, each in with_codes(X[:: stride(X)]).items():
        share = each.share(X[:, j])
        what = f"Column {column_names([j], names)} of X"
        yield Finding(
            MISSING_CODES,
            f"X[:, {j}]",
            share,
            0.0,
            severity="problem",
            text=f"{each.told(what, share)}, it rules the column's scale, and intervals of its "
            "rows are too narrow.",
            advice="Put NaN in its place, and use AutoGaussianProcessRegressor or "
            "AutoGaussianProcessClassifier, or SimpleImputer(add_indicator=True).",
        )


def of_far_rows(
    X: np.ndarray, weight: np.ndarray | None = None, names: Sequence[Any] | None = None
) -> Iterator[Finding]:
    """Yield the columns of X (n, d) whose standard deviation is due to a few far-away rows."""
    counts = None if weight is None else np.ravel(weight)
    some, of_some = X[:: stride(X)], None if counts is None else counts[:: stride(X)]
    found = np.array([quantiles(column, (OUTER, 0.5, 1.0 - OUTER), of_some) for column in some.T])
    low, middle, high = found.reshape(-1, 3).T
    width, spread = high - low, Scaling.standard(X, counts).scale
    share = np.divide(width, spread, out=np.full(len(width), np.inf), where=width > 0.0)
    told = Finding(FAR_ROWS_OF_X, "X", float(share.min(initial=np.inf)), LEAST_BULK)
    columns = np.flatnonzero(share < LEAST_BULK)
    if len(columns):
        off = np.abs(X[:, columns] - middle[columns]) > WIDTHS_OFF * width[columns]
        told = told._replace(
            where=f"X[:, {columns[0]}]",
            severity="problem",
            text=f"Outliers in X: {off.any(axis=1).sum()} of {len(X)} rows are so far from the "
            f"others in columns {column_names(columns, names)} that a model "
            "may hardly tell the other rows apart.",
            advice="Look at these rows. Drop them or clip their values if they are wrong; "
            "otherwise use QuantileTransformer on these columns.",
        )
    yield told
