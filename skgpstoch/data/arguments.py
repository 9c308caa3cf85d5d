"""What users ask of estimators: names and values of arguments, and methods that are missing."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from .array_inputs import checked_weight, given_labels
from .devices import host_memory
from .messages import warn
from .row_source import check_no_source

FITS = ("fit", "partial_fit")
BY_POSITION = Parameter.POSITIONAL_OR_KEYWORD
ADVICE = {
    "exposure": "Exposures of counts are taken by AutoGaussianProcessRegressor "
    "with target='count', and with likelihood='poisson' or 'negative_binomial' by "
    "DeepKernelEnsembleRegressor, DLMRegressor and SVGPRegressor.",
    "y_std": "Known errors of rows are taken by AutoGaussianProcessRegressor, "
    "ConvolutionalGPRegressor, DeepGPRegressor, DeepKernelEnsembleRegressor, DLMRegressor, "
    "FITCRegressor, NNGPRegressor, SolveGPRegressor and SVGPRegressor, and as alpha=y_std**2 by "
    "GaussianProcessRegressor.",
    "n_jobs": "Its threads are torch's: call torch.set_num_threads(n).",
}
ONLY_FITTED = (
    "Only `fit` takes y_std: predictions are of targets without known errors. Judge them by rows "
    "that have small ones."
)
ROUTE_EXPOSURE = (
    "In a pipeline or search, first call sklearn.set_config(enable_metadata_routing=True) and "
    "model.set_fit_request(exposure=True).set_predict_request(exposure=True)"
    ".set_score_request(exposure=True), also for a model that is fitted. Then pass exposure=... to "
    "fit, predict and score of a pipeline, or to fit and score of a search (whose best_estimator_ "
    "predicts), and params={'exposure': ...} to cross_val_score. Scorers of skgpstoch.metrics need "
    "their own set_score_request(exposure=True); those of scikit-learn take no exposure. Without "
    "routing, only fit takes one: "
    "pipe.fit(X, y, model__exposure=...), where 'model' is the name of the step."
)


def check_names(estimator: Any, method: Callable, names: Iterable[str]) -> None:
    """Check the names of arguments before a method is called with them.

    Raises
    ------
    TypeError
        If the method has no parameters of these names.
    """
    known = signature(method).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in known.values()):
        return
    if unknown := sorted(set(names) - known.keys()):
        cures = ADVICE | ({"y_std": ONLY_FITTED} if only_fits_errors(estimator) else {})
        advice = "".join(f" {cures[name]}" for name in unknown if name in cures)
        taken = ", ".join(name for name in known if name != "self")
        close = [repr(each) for name in unknown for each in get_close_matches(name, known, 1)]
        meant = f" Did you mean {', '.join(close)}?" if close else ""
        raise TypeError(
            f"{type(estimator).__name__}.{method.__name__}() got an unexpected keyword "
            f"argument {', '.join(map(repr, unknown))}: its parameters are {taken}.{meant}{advice}"
        )


def only_fits_errors(estimator: Any) -> bool:
    """Tell whether an estimator takes known errors in `fit`, but not in `predict`."""
    methods = (getattr(type(estimator), name, None) for name in ("fit", "predict"))
    takes = ["y_std" in signature(each).parameters for each in methods if each is not None]
    return takes == [True, False]


def check_given(estimator: Any, method: Callable, place: int, names: Iterable[str]) -> None:
    """Check that the argument at a place, such as X, is among those given by name.

    Raises
    ------
    TypeError
        If it is not.
    """
    asked = list(signature(method).parameters.values())[place]
    if asked.default is asked.empty and asked.name not in names:
        raise TypeError(
            f"{type(estimator).__name__}.{method.__name__}() missing 1 required positional "
            f"argument: {asked.name!r}"
        )


def check_flags(flags: dict[str, int], args: tuple, kwargs: dict[str, Any]) -> None:
    """Check that what is given for parameters that are True or False is so.

    Raises
    ------
    TypeError
        If it is not: values of rows that are given by position end as `return_std`.
    """
    for name, place in flags.items():
        value = kwargs.get(name, args[place] if place < len(args) else False)
        if isinstance(value, bool | np.bool_) or (isinstance(value, Integral) and value in (0, 1)):
            continue
        of_rows = hasattr(value, "__len__") and not isinstance(value, str)
        by_name = " Give values of rows by name, such as y_std=..." if of_rows else ""
        raise TypeError(f"{name} must be True or False, got {reprlib.repr(value)}.{by_name}")


def with_names_checked(method: Callable) -> Callable:
    """Let a method's errors name the class that users know, not the one that defines it.

    If a fit needs targets and gets none, it raises the same error as scikit-learn for y=None.
    """
    target = signature(method).parameters.get("y")
    needs_target = target is not None and target.default is target.empty
    takes_rows = [*signature(method).parameters][1:3] == ["X", "y"]
    kinds = [p.kind for p in signature(method).parameters.values()]
    most = math.inf if Parameter.VAR_POSITIONAL in kinds else kinds.count(BY_POSITION) - 1
    parameters = enumerate(signature(method).parameters.values(), start=-1)
    flags = {p.name: place for place, p in parameters if isinstance(p.default, bool)}

    @functools.wraps(method)
    def checked(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            check_names(estimator, method, kwargs)
        if len(args) > most:
            raise TypeError(
                f"{type(estimator).__name__}.{method.__name__}() takes {most} positional "
                f"arguments, got {len(args)}."
            )
        check_flags(flags, args, kwargs)
        if len(kinds) > 1 and not args:
            check_given(estimator, method, 1, kwargs)
        if needs_target and takes_rows and len(args) < 2 and kwargs.get("y") is None:
            check_no_source(args[0] if args else kwargs.get("X"))
            if method.__name__ in FITS:
                kwargs["y"] = None
            check_given(estimator, method, 2, kwargs)
        return method(estimator, *args, **kwargs)

    return checked


def with_rows_checked(score: Callable) -> Callable:
    """Let scikit-learn's own `score` check labels and weights as a fit does."""

    @functools.wraps(score)
    def checked(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
        y = given_labels(y)
        weight = None if sample_weight is None else checked_weight(sample_weight, y)
        return score(estimator, X, y, weight)

    return checked


def check_coverage(coverage: Any, name: str = "coverage") -> float:
    """Return the probability of an interval as a float.

    Raises
    ------
    ValueError
        If it is not between 0 and 1, or so close to 1 that floats cannot tell the upper end.
    """
    if not isinstance(coverage, Real) or not 0.0 < float(coverage) < 1.0:
        raise ValueError(f"{name} must be a number between 0 and 1, got {coverage!r}.")
    if 0.5 + 0.5 * float(coverage) == 1.0:
        raise ValueError(f"{name} must be at most 1 - 1e-15, got {coverage!r}, whose end is 1.")
    return float(coverage)


def check_n_samples(n_samples: Any, n_values: int = 0) -> int:
    """Return the number of draws as an int, given how many values each has.

    Raises
    ------
    ValueError
        If it is not an integer of at least 1, or if all draws take more than half of the machine's
        memory: to compute them takes as much again.
    """
    if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
        raise ValueError(f"n_samples must be an integer of at least 1, got {n_samples!r}.")
    n_bytes = np.dtype(np.float64).itemsize * int(n_samples) * n_values
    if n_bytes > host_memory() / 2:
        raise ValueError(
            f"n_samples must be such that all draws fit into memory, got {n_samples}: {n_values} "
            f"values of each would take {n_bytes / 1e9:.3g} GB, more than half of the "
            f"{host_memory() / 1e9:.3g} GB of this machine. Draw fewer, or for fewer rows at a "
            "time; predict_distribution has moments and quantiles without draws."
        )
    return int(n_samples)


def check_exposed(model: Any, exposure: Any) -> None:
    """Raise a ValueError if targets cannot be scored without the exposures of their rows."""
    if exposure is None and getattr(model, "_fitted_with_exposure", False):
        raise ValueError(
            "exposure must be given with y, because the model was fitted with one, and counts say "
            f"nothing without theirs. {ROUTE_EXPOSURE}"
        )


def given_of_rows(model: Any, exposure: Any, y_std: Any) -> dict[str, Any]:
    """Return what is known of rows whose targets are judged, and warn if their errors are not."""
    if y_std is None and getattr(model, "_fitted_with_y_std", False):
        takes = "y_std" in inspect.signature(model.predict).parameters
        cure = "Pass y_std, if y has errors here, too."
        if not takes:
            cure = f"{type(model).__name__} takes y_std in fit only: judge rows without errors."
        warn(
            "y is judged as if it had no known errors, although the model was fitted with y_std. "
            f"{cure}",
            about="errors of y",
        )
    known = {"exposure": exposure, "y_std": y_std}
    return {name: column for name, column in known.items() if column is not None}


FITS_AGAIN = "its weights or errors come from held-out rows, so more rows need a new fit"
NO_FUNCTION = "it is not a single Gaussian process and has no single function f"


class MissingMethod:
    """Stands for a missing method: `hasattr` is False, and the error says what to use instead.

    Parameters
    ----------
    why : str
        Why there is no such method.
    instead : str
        What to call, or which class has it.
    """

    def __init__(self, why: str, instead: str) -> None:
        self.why, self.instead = why, instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} has no {self.name}: {self.why}. {self.instead}",
            name=self.name,
            obj=owner if model is None else model,
        )
