"""Refuse what is no array of numbers where models compute with one, and shapes that no model has.

An array of shape (3000, 1, 1) beside one of (3000,) makes a matrix, and with a few more of these a
prediction takes gigabytes. So each array has as many axes as in any model, and lengths that are
the same number in an object of a model are the same number in one of a file. An array of objects
may hold an array in each cell, or objects that return anything from a sum. Objects of ours that are
no estimators have no other arrays, not even in lists.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from .arrays import KINDS, are_numbers, told
from .forms_of_values import LETTERS_SHOWN
from .registry import PACKAGE, TENSORS, package_of

PACKAGES = PACKAGE, "sklearn"
FLOATS = "f"
NOT_FLOATS = {
    *("cluster", "codes", "columns", "failed", "fold", "folds", "is_whole", "points", "rows"),
    "y_train_",
}
"""Arrays that may be of integers or bool; those of others would make a file of few bytes."""
NUMBER = re.compile(r"\d+$")  # of one of several arrays
WITH_ANY = {"categorical_features", "data", "knots", "optimizer"}
"""Fields with any arrays: a parameter that each fit checks, no rows until there are others, what is
compared with parameters, and what only a fit that reads chunks uses.
"""
SHAPES = {
    "AutoGaussianProcessClassifier": "weights_:k estimators_:=k",
    "AutoGaussianProcessRegressor": (
        "weights_:k mean_weights_:k estimators_:=k atoms_:a atom_weight_:-"
    ),
    "Averages": "gram:kmm cross:kmp ridge:p",
    "BaseGP": ("_x_scaling.offset:d posterior_.model.basis.n_inputs:=d posterior_.inputs:nd|n0"),
    "BinaryLaplaceClassifier": (
        "L_:nn W_sr_:n f_cached:n pi_:n y_train_:n weight_:n X_train_:n|nd|nde|ndef"
    ),
    "ChevronModel": "flat:mc std:mp s:sp row_precision:rp shift:p basis.n_components:=m",
    "ClassRows": "X:nd codes:n fold:n weight:n offset:p points:m",
    "ConjugatePosterior": "weights.mean:mp features.width:=m",
    "ConjugateWeights": (
        "values:km vectors:kmm cross:kmp square:kp n_rows:k noise_variance:p ridge:p mean:mp"
    ),
    "Constant": "log_constant_value:- log_constant_value_bounds:12",
    "ConstantMean": "value:p",
    "ConstantVarianceRegressor": "std_:-",
    "Data": "X:nd y:np weight:n exposure:n1 y_std:np cluster:n",
    "DecoupledFeatures": (
        "others:od coefficients:op frozen_1:oe frozen_2:mm frozen_3:mm frozen_4:pm"
    ),
    "DeepPosterior": "precision:pmm elbo:- error:-",
    "DotProduct": "log_sigma_0:- log_sigma_0_bounds:12",
    "ErrorScale": "factor:p most_odds:p",
    "ErrorsNearby": "usual:p",
    "ExactPosterior": "X:nd y:np factor:pnn alpha:np constant:p",
    "ExactProcessClassifier": "weights_:k _processes:=k _rows.offset:p classes_:=p _confidence:-",
    "ExactProcessRegressor": "weights_:k _processes:=k _tails:=k",
    "ExpSineSquared": (
        "log_length_scale:- log_length_scale_bounds:12 log_periodicity:- log_periodicity_bounds:12"
    ),
    "Factorised": "ridge:p L:kpmm w:kmp",
    "FiniteObjective": (
        "log_noise:p log_ridge:p closing_noise:p closing_ridge:p folds:k1 n_rows:k share:k "
        "failed:- running.gram:kmm features.n_members:=k features.n_features:=m"
    ),
    "FittedProcess": "coefficients:mp log_p:np points:m theta:k",
    "FourierTerm": "z_*:md phase:m",
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
    "HyperPrior": "log_noise:-|p",
    "InducingFeatures": (
        "points:md unit:d failed:- frozen_0:me frozen_1:mm frozen_2:mm n_features:=m"
    ),
    "InputLimits": "low:d high:d",
    "InputScales": "input_scale:k1d",
    "InputSpread": "offset:d scale:d",
    "IterativePosterior": "X:nd noise:n1 alpha:np",
    "KernelBasis": "points:md n_components:=m",
    "Lattice": "atoms:a",
    "Laplace": "log_scale:-|p",
    "Line": "curves.scaling.offset:d slopes:dw",
    "MaxAbsScaler": "max_abs_:d scale_:d",
    "MemberLinear": "weight:kio bias:k1o",
    "MinimaxObjective": "A:kpmm B:kpmm w:kmp seen_share:k",
    "MinMaxScaler": "data_max_:d data_min_:d data_range_:d min_:d scale_:d",
    "MixturePosterior": "factor:-|p skew:p",
    "NearFeatures": "gate:d log_scale:d",
    "NegativeBinomial": "log_dispersion:-|p",
    "NeighbourClassPosterior": (
        "features:nd inputs:ni residual:np noise:np weight:n outcome:nq constant:p variance:p "
        "mean_variance:p level:p link_mean:p stretch:-"
    ),
    "NeighbourCountPosterior": (
        "features:nd inputs:ni residual:np noise:np weight:n outcome:np exposure:n1 constant:p "
        "variance:p mean_variance:p level:p link_mean:p stretch:-"
    ),
    "NeighbourPosterior": (
        "features:nd inputs:ni residual:np noise:np weight:n constant:p variance:p mean_variance:p"
    ),
    "NetworkFeatures": "scale:-",
    "Noise": "alpha_of_rows:-|n",
    "Numbers": "stand_ins:8 gaps:g3",
    "OnBranch": "low:p high:p",
    "OneHot": "means:l levels:=l",
    "OrthogonalFeatures": (
        "others:od n_features:=f frozen_1:oe frozen_2:mm frozen_3:mm frozen_4:ss frozen_5:sm "
        "frozen_6:sm frozen_7:ss frozen_8:ss frozen_9:tt frozen_10:tc frozen_11:tc frozen_12:tt "
        "frozen_13:tt frozen_*:.."
    ),
    "PatchCovariances": "relative_weights:m columns:mi places:m2",
    "PatchLayer": "columns:ji",
    "PeriodicInputs": "frequency:kdc phase:kdc share:k11 weight:kdch columns:d",
    "PowerTransformer": "lambdas_:d",
    "Process": "X:nd alpha:n noise:n theta.length_scale:d|0",
    "ProfiledObjective": "gram:kmm cross:mp mean:mp failed:-",
    "QuantileTransformer": "quantiles_:qd references_:q",
    "Radial": "log_length_scale:-|d log_length_scale_bounds:b2",
    "RationalQuadratic": (
        "log_length_scale:- log_length_scale_bounds:12 log_alpha:- log_alpha_bounds:12"
    ),
    "Regressor": "noise_variance_:-|q",
    "RobustScaler": "center_:d scale_:d",
    "Rows": "y:np|kmp weight:n exposure:n noise:np fold:n cluster:n",
    "RowScale": "weights:mp",
    "RowWeights": "weight:k",
    "RunningObjective": "gram:kmm cross:mp mean:mp kl:- failed:- covariance_*:p.= "
    "model.features.n_features:=m",
    "RunningStatistics": "gram:kmm cross:kmp square:kp",
    "Scaling": "offset:d scale:d",
    "SCGDObjective": "ridge_average:p w:kmp F_inv:kpmm",
    "SparsePosterior": "precision:kmm elbo:- limits:3p",
    "StackedDensityRegressor": "weights_:k estimators_:=k scores_:k",
    "StandardScaler": "mean_:d scale_:d var_:d",
    "StudentT": "log_scale:-|p log_df_minus_2:-|p",
    "TableEncoder": "ranges:d2",
    "TargetMeans": "means:lw",
    "Theta": "length_scale:d missing:c noise:- signal:- slope:-",
    "VariationalWeights": "mean:mp root_*:p.=",
    "WhiteNoise": "log_noise_level:- log_noise_level_bounds:12",
    "YeoJohnsonTarget": "powers_:p scaling_.offset:p",
}
"""Of each class, its arrays and their axes: equal letters are equal lengths, digits are lengths.

A dot is any length, = the length before it, and =k an integer, or a list or dict of this length; *
are the numbers of all others.
"""

MOST_LENGTHS = {
    "ClassRows": {"n": 20_000, "m": 2500},
    "FittedProcess": {"m": 2500},
    "Process": {"n": 20_000},
    "TargetMeans": {"w": 4096},
}
"""Of rows of which predictions make matrices that a file does not have; fits have at most a tenth
as many, or as many points (m).
"""


def check_shapes(
    value: Any, names: Iterable[str] = (), of_objects: Collection[str] = ()
) -> dict[str, int]:
    """Return the lengths of axes of arrays among an object's fields.

    The fields with these names have arrays, also in lists. Fields named in `of_objects` may be
    anything else than numbers.

    Raises
    ------
    ValueError
        If the arrays have shapes as in no model, or are not of numbers.
    """
    cls: Any = type(value)
    lengths: dict[str, int] = {}
    known = shapes_of(cls)
    if names and package_of(cls) == PACKAGE and not issubclass(cls, BaseEstimator):
        known = dict(known)
        for name in {*entries(value, names)}.difference(known, WITH_ANY):
            if (choice := known.get(NUMBER.sub("*", name))) is None:
                raise ValueError(
                    f"{cls.__name__}.{name[:LETTERS_SHOWN]} has arrays, as in no model"
                )
            known[name] = choice
    shape: tuple[int, ...] | None
    for path, choice in known.items():
        name, field = path, getattr(value, path, None)
        if "." in path:
            field = value
            for name in path.split("."):
                field = getattr(field, name, None)
        if field is None:
            continue
        kinds = KINDS if name in NOT_FLOATS else FLOATS
        if choice[0][:1] == "=":
            length = len(field) if isinstance(field, list | dict | np.ndarray) else field
            shape, choice = (length,) if type(length) is int else (), [choice[0][1:]]
        elif (shape := shape_of(field, kinds)) is None:
            if name in of_objects:
                continue
            kind = "floats" if kinds == FLOATS else "numbers"
            raise ValueError(f"{cls.__name__}.{path} must be {kind}, got {told(field)}")
        if not any(fits(shape, axes, lengths) for axes in choice):
            possible = " or ".join(f"({', '.join(axes)})" for axes in choice)
            where = "".join(f", {axis}={length}" for axis, length in lengths.items())
            raise ValueError(f"{cls.__name__}.{path} has the shape {shape}, not {possible}{where}")
    for axis, most in MOST_LENGTHS.get(cls.__name__, {}).items():
        if lengths.get(axis, 0) > most:
            raise ValueError(
                f"{cls.__name__} has at most {most} rows or columns, got {lengths[axis]}"
            )
    return lengths


def entries(value: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield names of fields, and of a module's tensors instead of those of its dicts of them."""
    for name in names:
        tensors = getattr(value, name) if isinstance(value, nn.Module) and name in TENSORS else None
        yield from [name] if tensors is None else [k for k, v in tensors.items() if v is not None]


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
    found, fit = dict(lengths), len(shape) == len(axes)
    for n, before, axis in zip(shape, (0, *shape), axes, strict=False):
        if axis == "=":
            fit &= n == before
        elif axis != ".":
            fit &= n == (int(axis) if axis.isdigit() else found.setdefault(axis, n))
    if fit:
        lengths.update(found)
    return fit
