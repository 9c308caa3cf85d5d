"""Refuse what is no array of numbers where models compute with one, and shapes that no model has.

An array of shape (3000, 1, 1) beside one of (3000,) makes a matrix, and with a few more of these a
prediction takes gigabytes. So each array has as many axes as in any model, and lengths that are
the same number in an object of a model are the same number in one of a file. An array of objects
may hold an array in each cell, or objects that return anything from a sum.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from torch import Tensor

from .arrays import KINDS, are_numbers, told
from .registry import PACKAGE, package_of

PACKAGES = PACKAGE, "sklearn"
FLOATS = "f"
NOT_FLOATS = {"codes", "columns", "failed", "fold", "is_whole", "points", "rows", "y_train_"}
"""Arrays that may be of integers or bool; those of others would make a file of few bytes."""
SHAPES = {
    "AutoGaussianProcessClassifier": "weights_:k",
    "AutoGaussianProcessRegressor": "weights_:k mean_weights_:k atoms_:a atom_weight_:-",
    "BinaryLaplaceClassifier": (
        "L_:nn W_sr_:n f_cached:n pi_:n y_train_:n weight_:n X_train_:n|nd|nde|ndef"
    ),
    "ChevronModel": "flat:mc std:mp s:sp row_precision:rp shift:p",
    "ClassRows": "X:nd codes:n fold:n weight:n offset:p points:m",
    "ConjugateWeights": (
        "values:km vectors:kmm cross:kmp square:kp n_rows:k noise_variance:p ridge:p mean:mp"
    ),
    "Constant": "log_constant_value:- log_constant_value_bounds:12",
    "ConstantMean": "value:p",
    "ConstantVarianceRegressor": "std_:-",
    "DecoupledFeatures": (
        "others:od coefficients:op frozen_1:oe frozen_2:mm frozen_3:mm frozen_4:pm"
    ),
    "DeepPosterior": "precision:pmm elbo:- error:-",
    "DotProduct": "log_sigma_0:- log_sigma_0_bounds:12",
    "ErrorScale": "scale:- most_odds:p",
    "ErrorsNearby": "usual:p",
    "ExactPosterior": "X:nd y:np factor:pnn alpha:np constant:p",
    "ExactProcessClassifier": "weights_:k _confidence:-",
    "ExactProcessRegressor": "weights_:k",
    "ExpSineSquared": (
        "log_length_scale:- log_length_scale_bounds:12 log_periodicity:- log_periodicity_bounds:12"
    ),
    "FittedProcess": "coefficients:mp log_p:np points:m theta:k",
    "FourierTerm": "z_0:md phase:m",
    "Gaussian": "log_noise:-|p",
    "GaussianProcessClassifier": "X_train_:n|nd|nde|ndef",
    "GaussianProcessRegressor": (
        "L_:nn alpha_:n|np y_train_:n|np _y_train_mean:-|p _y_train_std:-|p _alpha_train:-|n "
        "X_train_:n|nd|nde|ndef"
    ),
    "GPLayer": "means:mp mean_map:dp noise:-",
    "HeldOutPredictions": (
        "cdf:np error:np latent_std:np mean:np std:np is_whole:n log_density:n rows:n"
    ),
    "InducingFeatures": "points:md unit:d failed:- frozen_0:me frozen_1:mm frozen_2:mm",
    "InputLimits": "low:d high:d",
    "InputScales": "input_scale:k1d",
    "IterativePosterior": "X:nd noise:n1 factor:nr alpha:np",
    "KernelBasis": "points:md",
    "Lattice": "atoms:a",
    "Laplace": "log_scale:-|p",
    "MaxAbsScaler": "max_abs_:d scale_:d",
    "MemberLinear": "weight:kio bias:k1o",
    "MinMaxScaler": "data_max_:d data_min_:d data_range_:d min_:d scale_:d",
    "MixturePosterior": "factor:-|p skew:p",
    "NearFeatures": "gate:d log_scale:d",
    "NegativeBinomial": "log_dispersion:-|p",
    "NeighbourClassPosterior": (
        "features:nd inputs:ni residual:np noise:np weight:n codes:nq constant:p variance:p "
        "level:p link_mean:p stretch:-"
    ),
    "NeighbourPosterior": (
        "features:nd inputs:ni residual:np noise:np weight:n constant:p variance:p"
    ),
    "NetworkFeatures": "scale:-",
    "OrthogonalFeatures": (
        "others:od frozen_1:oe frozen_2:mm frozen_3:mm frozen_4:ss frozen_5:sm frozen_6:sm "
        "frozen_7:ss frozen_8:ss frozen_9:tt frozen_10:tc frozen_11:tc frozen_12:tt frozen_13:tt"
    ),
    "PatchCovariances": "relative_weights:m columns:mi places:m2",
    "PeriodicInputs": "frequency:kdc phase:kdc share:k11 weight:kdch columns:d",
    "PowerTransformer": "lambdas_:d",
    "Process": "X:nd alpha:n noise:n",
    "ProfiledObjective": "gram:kmm cross:mp mean:mp failed:-",
    "QuantileTransformer": "quantiles_:qd references_:q",
    "Radial": "log_length_scale:-|d log_length_scale_bounds:b2",
    "RationalQuadratic": (
        "log_length_scale:- log_length_scale_bounds:12 log_alpha:- log_alpha_bounds:12"
    ),
    "Regressor": "noise_variance_:-|q",
    "RobustScaler": "center_:d scale_:d",
    "RowScale": "weights:mp",
    "RunningObjective": "gram:kmm cross:mp mean:mp kl:- failed:- covariance_0:paa covariance_1:pbb",
    "RunningStatistics": "gram:kmm cross:kmp square:kp",
    "Scaling": "offset:d scale:d",
    "SparsePosterior": "precision:kmm elbo:- limits:3p",
    "StackedDensityRegressor": "weights_:k",
    "StandardScaler": "mean_:d scale_:d var_:d",
    "StudentT": "log_scale:-|p log_df_minus_2:-|p",
    "TableEncoder": "ranges:d2",
    "Theta": "length_scale:d missing:c noise:- signal:- slope:-",
    "VariationalWeights": "mean:mp root_0:paa root_1:pbb",
    "WhiteNoise": "log_noise_level:- log_noise_level_bounds:12",
}
"""Of each class, its arrays and their axes: equal letters are equal lengths, digits are lengths."""


def check_shapes(value: Any, of_objects: Collection[str] = ()) -> dict[str, int]:
    """Return the lengths of axes of arrays among an object's fields.

    Fields named in `of_objects` may be anything else than numbers.

    Raises
    ------
    ValueError
        If the arrays have shapes as in no model, or are not of numbers.
    """
    cls: Any = type(value)
    lengths: dict[str, int] = {}
    for name, choice in shapes_of(cls).items():
        field = getattr(value, name, None)
        if field is None:
            continue
        kinds = KINDS if name in NOT_FLOATS else FLOATS
        if (shape := shape_of(field, kinds)) is None:
            if name in of_objects:
                continue
            kind = "floats" if kinds == FLOATS else "numbers"
            raise ValueError(f"{cls.__name__}.{name} must be {kind}, got {told(field)}")
        if not any(fits(shape, axes, lengths) for axes in choice):
            known = " or ".join(f"({', '.join(axes)})" for axes in choice)
            where = "".join(f", {axis}={length}" for axis, length in lengths.items())
            raise ValueError(f"{cls.__name__}.{name} has the shape {shape}, not {known}{where}")
    return lengths


@functools.cache
def shapes_of(cls: type) -> dict[str, list[str]]:
    """Return which axes arrays of a class's objects may have, by their names."""
    known = [base.__name__ for base in reversed(cls.__mro__) if package_of(base) in PACKAGES]
    rows = " ".join(SHAPES.get(name, "") for name in known if package_of(cls) in PACKAGES)
    given = (each.split(":") for each in rows.split())
    return {name: axes.replace("-", "").split("|") for name, axes in given}


def shape_of(field: Any, kinds: str) -> tuple[int, ...] | None:
    """Return the shape of a number, or of an array of these kinds of numbers; None of others."""
    if isinstance(field, Tensor):
        return tuple(field.shape) if kinds != FLOATS or field.is_floating_point() else None
    is_array = isinstance(field, np.ndarray) and field.dtype.kind in kinds
    return field.shape if is_array else () if are_numbers(field, 0) else None


def fits(shape: tuple[int, ...], axes: str, lengths: dict[str, int]) -> bool:
    """Tell whether a shape is one of these axes; keep their lengths if it is."""
    found = dict(lengths)
    fit = len(shape) == len(axes) and all(
        n == (int(axis) if axis.isdigit() else found.setdefault(axis, n))
        for n, axis in zip(shape, axes, strict=True)
    )
    if fit:
        lengths.update(found)
    return fit
