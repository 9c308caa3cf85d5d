"""Warn of targets that hold something else than they seem to: counts, a peak, or fill values."""

from __future__ import annotations

import numpy as np

from ...data.arrays import MOST_INTEGER, Scaling
from ...data.messages import warn

MOST_OF_ONE = 0.75  # *measured* with two values: if one has more, the other gets hardly anything


def warn_of_atom(value: float, share: float, atoms: np.ndarray | None) -> None:
    """Warn if a share of the rows has one value of an otherwise continuous y, or most rows do.

    Or if there are two values. `atoms` are the values, if they are few.

    *Measured* on 400 rows of 0 and 1, five samples: the log loss is .30 to .41, that of the classes
    .25; rms deviations are .17 to .26 where .27 is right. With three values: .46 beside .44.
    """
    is_discrete = atoms is not None
    if atoms is not None and len(atoms) == 2 and share <= MOST_OF_ONE:
        warn(
            f"y has two values, {atoms[0]:g} and {atoms[1]:g}. Models are compared by densities, "
            "so probabilities are too certain, and deviations too small. Use "
            "AutoGaussianProcessClassifier, whose predict_proba is calibrated."
        )
    elif is_discrete and share > MOST_OF_ONE:
        warn(
            f"y is {value:g} in {share:.0%} of the rows. Models are compared by densities, which "
            "this value decides alone: probabilities of others, and deviations, may be far too "
            f"small. Predict whether y is {value:g} with AutoGaussianProcessClassifier, and y of "
            "the other rows with this estimator."
        )
    elif share > 0.0 and not is_discrete:
        warn(
            f"y is {value:g} in {share:.0%} of the rows, and continuous otherwise. Predictions are "
            "of a density without such a peak: intervals are too wide, or leave that value out. "
            f"Predict whether y is {value:g} with AutoGaussianProcessClassifier, and y of the "
            "other rows with this estimator. Set discrete=False if a density is what you want."
        )


FILL = 1e12
"""How many times as far from the median as most rows a fill value is; netCDF's is 9.97e36.

The least digits of other rows are lost beside it, from 1e16 on.
"""


def warn_of_fill(y: np.ndarray) -> None:
    """Warn of targets (n,) or (n, P) that are so far off that they must be fill values."""
    Y = y.reshape(len(y), -1).astype(np.float64)
    middle, width = Scaling.quantile(Y)
    with np.errstate(over="ignore"):
        far = Y[(np.abs(Y - middle) > FILL * width) & (width > 0.0)]
    if len(far):
        warn(
            f"y is {far[np.abs(far).argmax()]:g} in {len(far)} of {Y.size} values, more than "
            f"{FILL:g} times as far from the median as most others are. Predictions may be far "
            "off. If it is a fill value, leave these rows out."
        )


FEWEST_COUNTS = 5  # least number of different values; fewer may be grades
REPEATED = 0.5  # least share of rows whose value occurs more than once


def looks_like_counts(y: np.ndarray) -> bool:
    """Tell whether y (n,) or (n, 1) may be counts: whole numbers, not negative, many repeated.

    There must be at least five different values, without a common divisor, which rounded amounts
    would have.
    """
    if y.dtype.kind not in "fiu" or y.size != len(y):
        return False
    if not ((y >= 0) & (y < MOST_INTEGER) & (y % 1 == 0)).all():  # larger ones fit no int64
        return False
    values, times = np.unique(y, return_counts=True)
    has_unit = np.gcd.reduce(values.astype(np.int64)) > 1
    is_repeated = times[times > 1].sum() > REPEATED * len(y)
    return bool(len(values) >= FEWEST_COUNTS and is_repeated and not has_unit)
