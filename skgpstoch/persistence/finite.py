"""Tell whether numbers are finite, which ones need not be, and which ones have a range."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .registry import is_parameter, package_of
from .shapes import PACKAGES

WITH_NUMBERS = (np.ndarray, np.floating, float)

MAY_BE_UNKNOWN = re.compile(
    r"bound|curve|densit|elbo|evidence|likelihood|loss|patience|score|\W(error|moved)\b"
)
"""Fields for people to read or for fits, which may be NaN or infinite and change no prediction."""

IN_RECORDS = re.compile(r"\W(cdf|gain|gap|latent_std|limit|log_p|value)\b")
"""The same, but not of modules, whose parameters may have these names."""

MAY_BE_INFINITE = re.compile(
    r"\.(high|low|noise_variance_|nu)\b|\._buffers\['log_(constant_value|noise_level|sigma_0)'\]"
)
"""Fields of laws and kernels that are infinite where nothing bounds them, and a square to read.

And logarithms of what kernels may have fixed at 0.
"""

MAY_BE_NAN = "encoded_missing_value", "fill_value", "missing_values", "unknown_value"
"""Parameters of scikit-learn's transformers, which may be NaN to say what is missing."""

RANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "positive": lambda a: a > 0.0,
    "at least 0": lambda a: a >= 0.0,
    "more than 2": lambda a: a > 2.0,
    "inside (0, 1)": lambda a: (a > 0.0) & (a < 1.0),
    "from 0 to 1": lambda a: (a >= 0.0) & (a <= 1.0),
    "from -1 to 1": lambda a: (a >= -1.0) & (a <= 1.0),
    "at least 0, and sum to 1": lambda a: (a >= 0.0) & (np.abs(a.sum() - 1.0) < MOST_OFF),
    "different, and in ascending order": lambda a: a[1:] > a[:-1],
}
ABOVE_0, FROM_0, ABOVE_2, INSIDE, SHARE, SIGNED, SHARES, UNIQUE = RANGES
MOST_OFF = 1e-6  # of sums of shares
RANGE_OF = {
    "AutoGaussianProcessClassifier": {"weights_": SHARES},
    "AutoGaussianProcessRegressor": {
        "weights_": SHARES,
        "mean_weights_": SHARES,
        "atom_weight_": SHARE,
    },
    "BinaryLaplaceClassifier": {
        "classes_": UNIQUE,
        "pi_": SHARE,
        "weight_": FROM_0,
        "y_train_": SHARE,
    },
    "Categorical": {"epsilon": INSIDE},
    "ClassifierMixin": {"classes_": UNIQUE},
    "ConjugateWeights": {"ridge": ABOVE_0, "noise_variance": FROM_0},
    "ConstantVarianceRegressor": {"std_": ABOVE_0},
    "ErrorScale": {"factor": ABOVE_0, "exponent": ABOVE_0, "most_odds": FROM_0},
    "ErrorsNearby": {"usual": ABOVE_0, "prior": ABOVE_0},
    "ExactProcessClassifier": {"weights_": SHARES, "_confidence": ABOVE_0},
    "ExactProcessRegressor": {"weights_": SHARES},
    "FeatureMap": {"amplitude": ABOVE_0},
    "FittedProcess": {"confidence": ABOVE_0},
    "GaussianProcessRegressor": {"_y_train_std": ABOVE_0},
    "GPLayer": {"noise": FROM_0},
    "InputSpread": {"scale": FROM_0},
    "IterativePosterior": {"noise": FROM_0},
    "Lattice": {"atoms": UNIQUE, "weight": SHARE},
    "MaxAbsScaler": {"scale_": ABOVE_0},
    "MinMaxScaler": {"scale_": ABOVE_0},
    "MixturePosterior": {
        "skew": SIGNED,
        "mean_shrinkage": SHARE,
        "disagreement_scale": FROM_0,
        "factor": ABOVE_0,
        "exponent": ABOVE_0,
    },
    "NetworkFeatures": {"scale": FROM_0},
    "NeighbourCountPosterior": {"outcome": FROM_0, "exposure": ABOVE_0, "stretch": ABOVE_0},
    "NeighbourPosterior": dict.fromkeys(("noise", "variance", "weight", "mean_variance"), FROM_0),
    "PeriodicInputs": {"share": SHARE},
    "Process": {"noise": FROM_0},
    "QuantileTransformer": {"references_": UNIQUE},
    "RobustScaler": {"scale_": ABOVE_0},
    "RowWeights": {"weight": SHARES, "df": ABOVE_2},
    "Scaling": {"scale": ABOVE_0},
    "StackedDensityRegressor": {"weights_": SHARES},
    "StandardScaler": {"scale_": ABOVE_0},
    "Tails": {"df": ABOVE_2},
    "Theta": dict.fromkeys(("signal", "slope", "noise", "length_scale", "missing"), FROM_0),
    "_ConstantPredictor": {"y_": SHARE},
}
"""Of each class, fields that have a range in all models.

Otherwise deviations would be negative, intervals turned, and probabilities none.
"""


class Unknown(NamedTuple):
    """Where in an object a number is not finite, and whether one is NaN."""

    where: str
    is_nan: bool


def unknown_in(value: Any) -> Unknown | None:
    """Return whether an array or a number itself is not finite; a tensor's array tells it first."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return unknown_halves(value.view(torch.int16).numpy())
    if not isinstance(value, WITH_NUMBERS) or np.asarray(value).dtype.kind != "f":
        return None
    return None if np.isfinite(value).all() else Unknown("", bool(np.isnan(value).any()))


def unknown_halves(bits: np.ndarray) -> Unknown | None:
    """Return the same of bfloat16 numbers, by their bits: all ones in the exponent."""
    blocks = np.array_split(bits.ravel(), 64)
    largest = max((int((b.astype(np.int32) & 0x7FFF).max()) for b in blocks if b.size), default=0)
    return None if largest < 0x7F80 else Unknown("", largest > 0x7F80)


def may_be_unknown(value: Any, where: str, is_nan: bool) -> bool:
    """Tell whether a field need not be finite; parameters of estimators may be infinite."""
    name = re.split(r"\W", where)[1]
    if name in MAY_BE_NAN and is_parameter(value, name):
        return True
    if is_nan or not (is_parameter(value, name) or MAY_BE_INFINITE.match(where)):
        is_told = MAY_BE_UNKNOWN.search(where) or (
            not isinstance(value, nn.Module) and IN_RECORDS.search(where)
        )
        return name != "_parameters" and bool(is_told)
    return True


def check_ranges(value: Any) -> None:
    """Raise a ValueError if a field of an object is not in the range that it has in all models."""
    for name, choice in ranges_within(value).items():
        given = getattr(value, name, None)
        if isinstance(given, list | tuple | dict | set):  # NumPy makes an array of any size
            raise ValueError(f"{type(value).__name__}.{name} must be an array, or a number")
        if given is not None and not RANGES[choice](np.asarray(given)).all():
            raise ValueError(f"{type(value).__name__}.{name} must be {choice}")


def n_in_ranges(value: Any) -> int:
    """Return how many numbers of an object's arrays are held against a range."""
    fields = (getattr(value, name, None) for name in ranges_within(value))
    return sum(math.prod(a.shape) for a in fields if isinstance(a, np.ndarray | torch.Tensor))


def ranges_within(value: Any) -> dict[str, str]:
    """Return which range fields of an object have."""
    cls: Any = type(value)
    return ranges_of_class(cls)


@functools.cache
def ranges_of_class(cls: Any) -> dict[str, str]:
    """Return which range fields of a class's objects have; those of the user's have none."""
    names = [base.__name__ for base in cls.__mro__ if package_of(cls) in PACKAGES]
    return {k: v for name in names for k, v in RANGE_OF.get(name, {}).items()}
