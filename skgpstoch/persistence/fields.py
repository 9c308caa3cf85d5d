"""Refuse fields of objects that would be called, hide a method, start processes or make a hang."""

from __future__ import annotations

import functools
import math
import operator
import types
import typing
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.gaussian_process.kernels import Kernel, PairwiseKernel
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor, nn

from ..data.devices import MOST_JOBS
from ..data.docstrings import entries, sections
from ..data.messages import warn
from ..data.rows import BEGINNING, LONG_BEGINNING, Data
from .arrays import KINDS, told
from .forms_of_values import LETTERS_SHOWN
from .kernels import check_kernel
from .layers import check_layer
from .registry import PACKAGE, TORCH_LAYERS, package_of

FREE_SIZES = {PACKAGE: 2**17, "torch": 2**13}
"""Sizes that modules of ours, and layers of torch, may have in any file.

In larger files, sizes may be that of the file in bytes. They are those of arrays, or of nodes and
draws, or of what a layer makes of a row: MaxPool1d of 2^40 never ends, and AdaptiveAvgPool1d to
2^24 takes gigabytes.
"""
SIZES = {
    *("blocks", "n_classes", "n_components", "n_features", "n_frozen", "n_groups", "n_inputs"),
    *("n_joint", "n_members", "n_neighbors", "n_nodes", "n_outputs", "n_samples", "sizes", "skip"),
}
"""Fields of modules of ours that are sizes. Others count steps, or rows at most as many as all."""
OF_COLUMNS = (
    *(("_x_scaling", "offset"), ("_x_spread", "offset"), ("X_train_", "T")),
    ("_encoder", "ranges"),
)
SHAPE_OF_Y = {"_y_scaling": "_y_shape", "_y_train_mean": "y_train_"}
"""What says how many outputs y has, besides its scales."""
MOST_REPEATED = {"n_nodes": 2**6, "n_samples": 2**12}
"""Sizes that say how often each row asked is repeated, in any file."""
FREE_TARGETS = 2**6  # of an estimator before its fit
MOST_WARNINGS = 10  # of folders that are not used
MOST_JOBS_OF_KERNEL = 16  # which scikit-learn starts anew for each row of a diagonal
BATCH_NORM = nn.modules.batchnorm._BatchNorm
OF_BATCHES = nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd
"""Layers that draw at random, or look at other rows, while they train."""
ALONG_AXES = nn.Flatten, nn.GLU, nn.LogSoftmax, nn.Softmax, nn.Unflatten
LISTS = nn.ModuleList, nn.ModuleDict, nn.ParameterList
ONE_OF: dict[Any, Any] = {
    **{float: (float, Real), int: (int, Integral), bool: (bool, np.bool_)},
    np.ndarray: (np.ndarray, np.generic),
}
"""What stands for these types in files."""
DOCUMENTED: dict[str, Any] = {
    **{"int": (Integral,), "float": (Real,), "str": (str,), "None": (type(None),)},
    "sklearn kernel": (Kernel,),
    "list of float": (list, np.ndarray),  # of one number for each candidate
}
"""What stands for these words of docstrings in files."""
SIMPLE = (bool, float, int, str, type(None), np.ndarray, Tensor, Kernel)
CLASS_OF_PART = {
    **{"features": "FeatureMap", "likelihood": "Likelihood"},
    **dict.fromkeys(("kernel", "k1", "k2"), "Kernel"),
}
"""Of which class of ours modules of these names are, within others."""
WITH_DEFAULTS = {
    *("amplitude", "differentiable", "exposure", "has_draws", "hyper_prior", "is_diagonal"),
    *("known", "log_concave", "most_prior_variance", "n_frozen", "n_members", "nu", "outliers"),
    *("ratio", "reach", "rows_per_weight", "sums_to_kernel", "trained_noise"),
}
"""Attributes of our modules' classes that fits, or constructors, set on a module."""
OF_PREDICTIONS = tuple(f"{PACKAGE}.{name}." for name in ("kernels", "likelihoods", "models"))
MODULE_PARTS = "_parameters", "_buffers", "_modules"
WITH_PREDICT = {"base_estimator_", "estimator_", "estimators_"}
OF_FUNCTIONS = {"func": "kw_args", "inverse_func": "inv_kw_args"}


def check_fields(value: Any, form: str, names: list[str], n_bytes: int) -> None:
    """Raise a ValueError if fields would be called, hide a method, or make a layer hang.

    `n_bytes` is the size of the file.
    """
    cls: Any = type(value)
    fields = vars(value) if hasattr(value, "__dict__") else {}
    hidden = () if form in ("mapping", "record") else code_of(cls).intersection(names)
    refuse_names(cls, names, hidden)
    if form == "record":  # as most are, and none of what follows
        check_types_of(cls, {name: getattr(value, name) for name in names})
        return
    if "__dataclass_fields__" in vars(cls) and not isinstance(value, BaseEstimator):
        check_types_of(cls, fields)
    if isinstance(value, Kernel):
        check_kernel(value)
    if isinstance(value, nn.Module):
        check_module(cls, {name: fields[name] for name in names}, n_bytes)
        if cls in TORCH_LAYERS:
            check_layer(value)
        elif package_of(cls) == PACKAGE:
            links = getattr(cls, "links", ())
            if links and fields.get("link") not in links:
                raise ValueError(f"{cls.__name__}.link must be one of {links}")
        getattr(value, "check_parts", bool)()
    elif isinstance(value, BaseEstimator):
        check_estimator(value, fields)
        getattr(value, "_check_parts", bool)()
    elif isinstance(value, PairwiseKernel):
        check_jobs(cls, fields.get("pairwise_kernels_kwargs") or {}, MOST_JOBS_OF_KERNEL)
    elif package_of(cls) == PACKAGE:
        getattr(value, "check_parts", bool)()


def refuse_names(cls: type, names: Iterable[str], hidden: Collection[str] = ()) -> None:
    """Raise a ValueError if a field has a name that Python itself looks for, or a hidden one."""
    if found := [name for name in names if name[:2] == "__" or name in hidden]:
        raise ValueError(f"{cls.__name__} cannot have an attribute {found[0][:LETTERS_SHOWN]!r}")


def check_types_of(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if a field is not of the type that its class declares."""
    for name, choice in declared(cls).items():
        field: Any = fields.get(name)
        is_of_objects = isinstance(field, np.ndarray) and field.dtype.kind not in KINDS
        if name in fields and (is_of_objects or not isinstance(field, choice)):
            raise ValueError(f"{cls.__name__}.{name} is {told(field)}, which it cannot be")
    for name, choice in declared_members(cls).items():
        field = fields.get(name)
        members = field.values() if isinstance(field, dict) else field
        kinds = set(map(type, members)) if isinstance(field, dict | list | tuple) else set()
        if other := [kind for kind in kinds if not issubclass(kind, choice)]:
            raise ValueError(f"{cls.__name__}.{name} has a {other[0].__name__}, which it cannot")


def check_module(cls: type, fields: dict[str, Any], n_bytes: int) -> None:
    """Raise a ValueError if a module has hooks, huge sizes, or two parts of one name."""
    if type(fields.get("training", True)) is not bool:
        raise ValueError(f"{cls.__name__}.training must be true or false")
    parts = [name for kind in MODULE_PARTS for name in fields.get(kind) or ()]
    if len({*parts, *fields}) < len(parts) + len(fields):
        raise ValueError(f"{cls.__name__} has two parts, or a part and a field, of one name")
    package = package_of(cls)
    if package == PACKAGE:
        check_inner(cls, {k: v for k, v in (fields.get("_modules") or {}).items() if v is not None})
        check_row_values(cls, fields)
    limit = max(FREE_SIZES.get(package, math.inf), n_bytes)
    for name, field in fields.items():
        is_empty = type(field) in (bool, type(None)) or (isinstance(field, dict) and not field)
        if "hook" in name and not is_empty:
            raise ValueError(
                f"{cls.__name__} has {name}, which a file cannot contain. Remove the hooks before "
                "saving"
            )
        if isinstance(field, nn.Module | nn.Parameter) or (
            isinstance(field, Tensor) and package == "torch"
        ):
            raise ValueError(f"{cls.__name__}.{name} is not one of its modules or parameters")
        sizes = field if isinstance(field, tuple | list) else (field,)
        if package == PACKAGE and name in SIZES and not all(isinstance(n, Integral) for n in sizes):
            raise ValueError(f"{cls.__name__}.{name} must be integers")
        most = min(limit, MOST_REPEATED.get(name, limit))
        if size_of(field) > most and (package != PACKAGE or name in SIZES):
            raise ValueError(f"{cls.__name__}.{name} is larger than {most}")


def check_row_values(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if a likelihood knows values of rows, or no positive exposure of all."""
    for name in getattr(cls, "row_attributes", ()):
        given = fields.get(name)
        is_number = name == "exposure" and isinstance(given, float | int)
        if not (given is None or (is_number and 0.0 < given < math.inf)):
            raise ValueError(f"{cls.__name__}.{name} is set, as in no model")


def check_inner(cls: type, modules: dict[str, Any]) -> None:
    """Raise a ValueError if a module of ours has layers, or parts, where no model has them."""
    for name, inner in modules.items():
        layers = list(inner._modules.values()) if isinstance(inner, LISTS) else [inner]
        bases = [base.__name__ for base in type(inner).__mro__]
        has_layers = any(
            package_of(type(layer)) == "torch" and type(layer) is not nn.Identity
            for layer in layers
        )
        if (has_layers and name != "network") or CLASS_OF_PART.get(name, bases[0]) not in bases:
            raise ValueError(f"{cls.__name__}.{name} cannot be a {type(inner).__name__}")


def check_estimator(value: BaseEstimator, fields: dict[str, Any]) -> None:
    """Raise a ValueError if an estimator would read files, start processes or return no numbers."""
    if isinstance(value, Pipeline) and fields.get("memory") is not None:
        raise ValueError(
            "a Pipeline has memory, a folder whose files `fit` would run. Set memory=None before "
            "saving"
        )
    if isinstance(value, FunctionTransformer):
        for function, arguments in OF_FUNCTIONS.items():
            if isinstance(fields.get(function), np.ufunc) and fields.get(arguments):
                raise ValueError(
                    f"a FunctionTransformer has {arguments} of a NumPy function, which may make it "
                    f"write elsewhere or leave numbers out. Set {arguments}=None before saving"
                )
    if isinstance(value, OneVsOneClassifier) and fields.get("pairwise_indices_") is not None:
        raise ValueError("a OneVsOneClassifier has indices of pairs of rows, as no model has")
    check_documented(type(value), fields)
    check_columns(type(value), fields)
    check_inside(type(value), fields)
    check_outputs(type(value), fields)
    check_jobs(type(value), fields)
    check_beginning(fields.get("_beginning"))


def check_beginning(rows: Any) -> None:
    """Raise a ValueError where a stream would begin again with many rows."""
    if rows is not None and (not isinstance(rows, Data) or len(rows) >= LONG_BEGINNING):
        raise ValueError(f"_beginning must be rows, and fewer than {LONG_BEGINNING}")
    weight, error = getattr(rows, "weight", None), getattr(rows, "y_std", None)
    is_counted = weight is None or np.all(np.asarray(weight) > 0.0)
    if not (is_counted and (error is None or np.all(np.asarray(error) >= 0.0))):
        raise ValueError("_beginning has weights that are not positive, or negative errors")


def check_appended(value: Any, n_outputs: int) -> None:
    """Raise a ValueError unless few appended rows wait to be judged, with a sum of each output."""
    if value is None:
        return
    is_pair = type(value) is tuple and len(value) == 2 and type(value[0]) is int
    is_few = is_pair and 0 <= value[0] < BEGINNING and type(value[1]) is tuple
    is_of_y = is_few and len(value[1]) == n_outputs
    if not (is_of_y and all(type(each) is float for each in value[1])):
        raise ValueError("_appended must be a small number of rows, and a number for each output")


def check_documented(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if an attribute is not of the simple type that its documentation tells."""
    if not isinstance(fields.get("loss_curve_", []), list):  # a stream makes a list of it
        raise ValueError(f"{cls.__name__}.loss_curve_ is {told(fields['loss_curve_'])}, not a list")
    for name, (choice, of_members) in documented(cls).items():
        field = fields.get(name)
        members = field if isinstance(field, list) else ()
        is_one = isinstance(field, choice) and getattr(field, "ndim", 0) < 2
        if name in fields and not (
            is_one and all(isinstance(each, of_members) for each in members)
        ):
            raise ValueError(f"{cls.__name__}.{name} is {told(field)}, which it cannot be")


def check_inside(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if what an estimator leaves predictions to does not predict these."""
    of_ours = "predict_proba" if issubclass(cls, ClassifierMixin) else "predict"
    needed = {PACKAGE: of_ours, "sklearn": "predict"}
    for name in WITH_PREDICT.intersection(fields):
        field = fields[name]
        inside = field.values() if isinstance(field, dict) else field
        for kind in map(type, inside if isinstance(field, dict | list) else [field]):
            method = needed.get(package_of(kind), "__init__")
            if not hasattr(kind, method):
                raise ValueError(f"{cls.__name__}.{name} has a {kind.__name__}, without {method}")


def check_outputs(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if an estimator has scales of other outputs than those of y, or many."""
    n_known = 1
    for name, shape in SHAPE_OF_Y.items():
        scales: Any = getattr(fields.get(name), "offset", fields.get(name))
        if scales is not None:
            of_y, n_known = fields.get(shape, ()), scales.size if hasattr(scales, "size") else 1
            of_y = of_y.shape[1:] if isinstance(of_y, np.ndarray) else of_y
            if of_y not in [(n_known,), *([()] if n_known == 1 else [])]:
                raise ValueError(f"{name} has {n_known} columns, but not y")
    check_appended(fields.get("_appended"), n_known)
    most = max(FREE_TARGETS, n_known)
    if size_of(fields.get("n_targets")) > most:
        raise ValueError(f"{cls.__name__}.n_targets is larger than {most}")


def check_columns(cls: type, fields: dict[str, Any]) -> None:
    """Raise a ValueError if scikit-learn could not compare fields with the columns of any X."""
    n, names = fields.get("n_features_in_", 0), fields.get("feature_names_in_", np.empty(0))
    if not isinstance(n, Integral):
        raise ValueError(f"{cls.__name__}.n_features_in_ is a {type(n).__name__}, not an integer")
    is_list = isinstance(names, np.ndarray) and names.ndim == 1
    if not is_list or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{cls.__name__}.feature_names_in_ must be an array of texts")
    for name, part in OF_COLUMNS:
        known = getattr(fields.get(name), part, None)  # has a number or a row for each column
        if isinstance(known, np.ndarray) and "n_features_in_" in fields and len(known) != n:
            raise ValueError(
                f"{cls.__name__}.n_features_in_ is {n}, but its {name} has {len(known)} columns"
            )


def trains(value: Any) -> str:
    """Return what a layer is if it would predict at random, or by other rows; else nothing."""
    if isinstance(value, OF_BATCHES) and value.training:
        return f"{type(value).__name__} in training mode"
    if isinstance(value, BATCH_NORM) and value.running_mean is None:
        return f"{type(value).__name__} without running statistics"
    if isinstance(value, ALONG_AXES):
        axis = value.start_dim if isinstance(value, nn.Flatten) else value.dim
        if type(axis) is not int or not (axis > 0 or axis == -1):  # the first axis is that of rows
            return f"{type(value).__name__} along axis {axis!s:.20}, not 1, 2, … or -1"
    return ""


def check_jobs(cls: type, fields: dict[str, Any], most: int = MOST_JOBS) -> None:
    """Raise a ValueError if an object would start very many threads or processes."""
    n_jobs = fields.get("n_jobs")
    if n_jobs is not None and not isinstance(n_jobs, Integral):
        raise ValueError(f"{cls.__name__}.n_jobs is a {type(n_jobs).__name__}, not an integer")
    if n_jobs is not None and int(n_jobs) > most:
        raise ValueError(f"{cls.__name__} has n_jobs={n_jobs}, more than {most}")


def forget_folders(objects: Iterable[Any]) -> None:
    """Let no estimator read or write where a file says, and warn if one would."""
    given = [e for e in objects if isinstance(e, BaseEstimator) and vars(e).get("checkpoint_dir")]
    folders = {id(e.checkpoint_dir): e.checkpoint_dir for e in given}
    for folder in list(folders.values())[:MOST_WARNINGS]:
        is_path = isinstance(folder, str | Path)
        shown = str(folder)[:LETTERS_SHOWN] if is_path else type(folder).__name__
        warn(
            f"The file's checkpoint_dir={shown!r} is not used, because "
            "`fit` would read and write in a folder that whoever wrote the file chose. To keep "
            "checkpoints there, call set_params(checkpoint_dir=...)."
        )
    for estimator in given:
        estimator.checkpoint_dir = None


@functools.cache
def code_of(cls: type) -> frozenset[str]:
    """Return the names of the methods and properties of a class, which a field would hide.

    Also those by which an estimator's methods know what its parameters may be, and constants of our
    modules.
    """
    found = {k: v for base in reversed(cls.__mro__) for k, v in vars(base).items()}
    has_rules = issubclass(cls, BaseEstimator)
    is_ours = issubclass(cls, nn.Module) and f"{cls.__module__}.".startswith(OF_PREDICTIONS)
    of_torch = vars(nn.Module).keys() - vars(nn.Module()).keys()  # torch calls one of these
    hidden = frozenset(of_torch if issubclass(cls, nn.Module) else ())
    return hidden.union(
        name
        for name, value in found.items()
        if (
            callable(value)
            or hasattr(value, "__get__")
            or (has_rules and name[0] == "_")
            or (is_ours and name not in WITH_DEFAULTS)
        )
        and not isinstance(value, functools.cached_property)
    )


@functools.cache
def documented(cls: type) -> dict[str, tuple[tuple, tuple]]:
    """Return the simple types of a class's documented attributes, and those of lists' members."""
    found: dict[str, tuple[tuple, tuple]] = {}
    if package_of(cls) != PACKAGE:
        return found
    for names, entry in entries(sections(cls.__doc__ or "").get("Attributes", "")).items():
        words = entry.splitlines()[0].partition(" : ")[2].split(" or ")
        if all(word in DOCUMENTED for word in words):
            choice = tuple(kind for word in words for kind in DOCUMENTED[word])
            found |= dict.fromkeys(names.split(", "), (choice, DOCUMENTED["float"]))
    return found


@functools.cache
def declared(cls: type) -> dict[str, tuple[type, ...]]:
    """Return the types of a class's fields, if these are plain, records, or a choice of such."""
    hints = {
        name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for name, hint in hints_of(cls).items()
    }
    return {
        name: tuple(ONE_OF.get(t, t) for t in choice)
        for name, choice in hints.items()
        if all(t in SIMPLE or hasattr(t, "_fields") for t in choice)
    }


@functools.cache
def declared_members(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the types of what a class's dicts, lists and tuples hold, if these are plain."""
    found = {}
    for name, hint in hints_of(cls).items():
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        choice = [t for t in (inner[-1:] if origin is dict else inner) if t is not ...]
        is_plain = all(isinstance(t, type) and t is not Any for t in choice)
        if origin in (dict, list, tuple) and choice and is_plain:
            found[name] = tuple(ONE_OF.get(t, t) for t in choice)
    return found


def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; none if they name what is only there for type checkers."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {}


def size_of(value: Any) -> float:
    """Return the size of an integer, or the product of a tuple's; 1 of the rest."""
    inner = value if isinstance(value, tuple | list) else (value,)
    return math.prod(max(1.0, float(abs(n))) for n in map(whole, inner))


def whole(value: Any) -> int:
    """Return an integer of whatever type torch and NumPy take as a size; 1 of the rest."""
    try:
        return operator.index(value)
    except TypeError:
        return 1
