"""Lists of what a file may name: classes of skgpstoch, and some of scikit-learn and torch.

Nothing is imported by name. Classes of skgpstoch are looked up only in modules that are already
loaded, and whose objects fitted models may contain.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import special
from sklearn import exceptions
from sklearn import multiclass as sk_multiclass
from sklearn.base import BaseEstimator
from sklearn.gaussian_process import kernels as sk
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    LabelBinarizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.utils import Bunch, _metadata_requests
from torch import nn

PACKAGE = __name__.partition(".")[0]
ROOMS = (
    "data",
    "estimators",
    "kernels",
    "likelihoods",
    "losses",
    "maths",
    "methods",
    "models",
    "objectives",
)
NEVER_SAVED = "estimators.distributions"  # laws are made anew for the rows asked
FUNCTIONS_OF = "kernels.distances"
FUNCTIONS = ("rbf", "matern_1", "matern_3", "matern_5")  # functions that kernels of models hold

SKLEARN_KERNELS: tuple[type, ...] = (
    sk.ConstantKernel,
    sk.DotProduct,
    sk.ExpSineSquared,
    sk.Exponentiation,
    sk.Matern,
    sk.PairwiseKernel,
    sk.Product,
    sk.RBF,
    sk.RationalQuadratic,
    sk.Sum,
    sk.WhiteKernel,
)
REQUESTS = (_metadata_requests.MetadataRequest, _metadata_requests.MethodMetadataRequest)
TRANSFORMERS: tuple[type, ...] = (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Pipeline,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
OF_SKLEARN: tuple[type, ...] = (
    *SKLEARN_KERNELS,
    *TRANSFORMERS,
    Bunch,
    LabelBinarizer,
    LabelEncoder,
    sk_multiclass.OneVsOneClassifier,
    sk_multiclass.OneVsRestClassifier,
    sk_multiclass._ConstantPredictor,
    *REQUESTS,
)
ELEMENTWISE = """
    CELU Dropout ELU GELU Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid Mish PReLU
    ReLU ReLU6 SELU Sequential SiLU Sigmoid Softplus Softsign Tanh Tanhshrink Threshold
"""
"""Layers of torch that make one number of each, or have others in them."""
KEEPING_SIZES = f"""
    {ELEMENTWISE} BatchNorm1d BatchNorm2d Dropout1d Dropout2d Flatten GLU GroupNorm InstanceNorm1d
    InstanceNorm2d LayerNorm LogSoftmax RMSNorm Softmax
"""
"""Layers of torch that return at most as many numbers as they are given."""
OTHER_LAYERS = """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool1d AdaptiveMaxPool2d AvgPool1d AvgPool2d
    Bilinear Conv1d Conv2d Embedding Linear MaxPool1d MaxPool2d ModuleDict ModuleList ParameterDict
    ParameterList Unflatten Upsample
"""
TORCH_LAYERS = frozenset(getattr(nn, name) for name in (KEEPING_SIZES + OTHER_LAYERS).split())
OF_NUMPY = """
    absolute arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh deg2rad degrees exp
    exp2 expm1 fabs floor log log10 log1p log2 negative positive rad2deg radians reciprocal rint
    sign sin sinh sqrt square tan tanh trunc
"""
UFUNCS: dict[str, np.ufunc] = {name: getattr(np, name) for name in OF_NUMPY.split()}
UFUNCS |= {"expit": special.expit, "logit": special.logit}
"""Elementwise functions of NumPy and SciPy that transformers may hold."""
TENSORS = "_parameters", "_buffers"  # of a module
PREFIXES = {"torch": "nn", "sklearn": "sklearn"}
NUMPY_TYPES = (np.bool_, np.float32, np.float64, np.int32, np.int64)  # dtype= of encoders
WARNINGS = (UserWarning, RuntimeWarning, FutureWarning, exceptions.ConvergenceWarning)

RETIRED = ("Mixture", "OnLattice", "TransformedModel")
"""Classes of which earlier versions saved objects that are not needed any more."""


class Retired:
    """Stands for an object of such a class, until the object that refers to it is restored."""


@functools.cache
def known_classes() -> dict[str, type]:
    """Return all classes that a file may name: name → class."""
    of_torch = {f"nn.{cls.__name__}": cls for cls in TORCH_LAYERS}
    of_sklearn = {f"sklearn.{cls.__name__}": cls for cls in OF_SKLEARN}
    return {**of_torch, **of_sklearn, **{cls.__name__: cls for cls in _found()}}


@functools.cache
def known_functions() -> dict[str, Callable]:
    """Return all functions that a file may name: name → function."""
    found = vars(sys.modules[f"{PACKAGE}.{FUNCTIONS_OF}"])
    room = FUNCTIONS_OF.rpartition(".")[2]
    return {f"{room}.{name}": found[name] for name in FUNCTIONS}


@functools.cache
def known_types() -> dict[str, type]:
    """Return the types that a file may hold as values, instead of their instances."""
    plain = (bool, int, float, str, *NUMPY_TYPES, *WARNINGS)
    gone = dict.fromkeys(RETIRED, Retired)
    return {cls.__name__: cls for cls in plain} | gone | known_classes()


def _found() -> Iterator[type]:
    """Yield the classes that our modules define."""
    for name, module in sorted(sys.modules.items()):
        if is_room(name):
            for value in vars(module).values():
                if inspect.isclass(value) and (
                    is_room(value.__module__) or value.__module__ == PACKAGE
                ):
                    yield value


def is_room(module: str) -> bool:
    """Tell whether fitted models may hold objects of a module's classes."""
    inside = f"{module}.".removeprefix(f"{PACKAGE}.")
    return inside.startswith(tuple(f"{room}." for room in ROOMS)) and not inside.startswith(
        f"{NEVER_SAVED}."
    )


def name_of(value: type | Callable, known: dict) -> str | None:
    """Return the name that a class or function has in files; None if it is not known."""
    package, short = package_of(value), value.__name__
    room = value.__module__.rpartition(".")[2]
    names = (short, f"{room}.{short}", f"{PREFIXES.get(package)}.{short}")
    return next((name for name in names if known.get(name) is value), None)


@functools.cache
def parameters_of(cls: Any) -> tuple[str, ...]:
    """Return the names of a constructor's parameters."""
    return tuple(list(inspect.signature(cls).parameters))


def package_of(value: type | Callable) -> str:
    """Return the name of the package that defines a class or function."""
    return value.__module__.partition(".")[0]


def is_parameter(value: Any, name: str) -> bool:
    """Tell whether a field is a parameter of an estimator."""
    cls: Any = type(value)
    return isinstance(value, BaseEstimator) and name in names_of_parameters(cls)


@functools.cache
def names_of_parameters(cls: Any) -> frozenset[str]:
    """Return the names of an estimator's parameters, for which scikit-learn reads its code."""
    return frozenset(cls._get_param_names())


def is_estimator(cls: type) -> bool:
    """Tell whether a class has scikit-learn's parameters."""
    return issubclass(cls, BaseEstimator)


DATA_ONLY = (
    "numpy.dtype",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
)


def trusted_types(*others: type) -> list[str]:
    """Return the names of the types that skops may trust in files with our estimators.

    These are estimators and losses, whose state consists of arrays and Python's own types, and
    scikit-learn kernels, which occur in the parameter grids of searches. `others` are further types
    in searches. Types of fitted imputers and of searches, which hold only data, are included.
    """
    found = [cls for cls in known_classes().values() if is_estimator(cls) and cls not in OF_SKLEARN]
    names = (f"{cls.__module__}.{cls.__name__}" for cls in (*found, *SKLEARN_KERNELS, *others))
    return sorted([*names, *DATA_ONLY])
