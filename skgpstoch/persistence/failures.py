"""Say which part of a model is wrong if it predicts NaN, or fails after it was loaded.

Whether the parts of a file belong together shows when they are used. So nothing is compared at
load; the first method that fails tells where it did, instead of what torch or NumPy say.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from ..data.devices import ran_out_of_memory
from ..data.messages import is_raised_by_us, is_raised_by_users
from .forms import DAMAGE
from .registry import PACKAGE, package_of
from .state import ATOMS, Names, Packer, identity

LOADED: dict[int, str] = {}
"""Files of the estimators that were loaded, also within others, and of what they returned, by id.

Until a fit.
"""

OF_MODULES = re.compile(r"\._(?:buffers|modules|parameters)\['(\w+)'\]")
OF_RECORDS = re.compile(r"\.(_diagnosis|report_)\b")  # numbers that predictions do not use
OF_TENSORS = re.compile(r"(\[0\]){1,2}$")
OF_PARAMETERS = re.compile(r"(?:The ')?(\w+)")
OF_CHECKS = re.compile(r"sklearn\.(utils\.(?!_pprint|_repr_html)|metrics\.)")
AFTER_CHECKS = re.compile(
    rf"{PACKAGE}\.((kernels|likelihoods|maths|models)\.|estimators\.distributions\.target_map)"
)
LONGEST_MESSAGE = 5000  # letters
NOT_FITTED = (
    "This %(name)s instance is not fitted yet. Call 'fit' with appropriate arguments before using "
    "this estimator; in a callback, wait for the end of the fit."
)
SPECIAL = {"__call__", "__getitem__", "__len__", "__repr__"}
N_FINITE: dict[str, float] = {
    **dict.fromkeys(("interval", "latent_mean_and_variance", "predict", "predict_gradient"), 2),
    **dict.fromkeys(("__call__", "mean", "median", "predict_interval", "predict_std"), 1),
    **dict.fromkeys(("sample", "sample_y", "std"), 1),
    "hidden": math.inf,
}
"""Of what methods of models, distributions and functions return, how many of the first are finite.

With a transform of the target only the mean that a model predicts.
"""

FITTING = {"condition_on", "fit", "partial_fit"}  # whose rows a part may be the first to refuse
LIKELIHOODS = {"log_marginal_likelihood"}  # other numbers, such as a score of one row, may be NaN
MOST_MISSING = 1e-6  # of a sum of probabilities, to 1
DATA = {"X_train_", "y_train_"}  # which may have missing values
WITHOUT_METHODS = (float, list, tuple, dict, set, frozenset, np.ndarray, Tensor)  # of ours
LONGEST_PLACE = 200  # letters
JOINT = {
    "sample_y": "Rows are drawn jointly, which takes n * n numbers for n rows. Give fewer rows at "
    "a time, or draw each row on its own: predict_distribution(X).sample(n_samples).",
    "return_cov=True": "A covariance of n rows has n * n numbers. Give fewer rows at a time, or "
    "return_std=True.",
}
"""What takes much memory, and what takes less, for methods and arguments."""
AT_ONCE = 2**16  # numbers that are looked at at once
MOST_LOOKED_AT = 20_000  # values and arrays that are searched for what is wrong
MARK = "_skgpstoch_told"  # attribute of errors


def with_failures_told(method: Any) -> Any:
    """Let a method of a model say which part is wrong if it fails or predicts NaN.

    Or what takes less memory, if that ran out.
    """

    @functools.wraps(method)
    def told(model: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = method(model, *args, **kwargs)
        except (*DAMAGE, MemoryError) as error:
            say_memory(error, method.__name__, kwargs)
            if is_unfitted(error, model, method.__name__):
                raise NotFittedError(NOT_FITTED % {"name": type(model).__name__}) from error
            if is_called_right(method, (model, *args), kwargs):
                say_where(error, model, method, f"{type(model).__name__}.{method.__name__}")
            raise
        if method.__name__ == "fit":
            LOADED.pop(id(model), None)
        elif method.__name__ not in DATA:
            check_found(model, method.__name__, found)
        if found is not model:
            mark_same(model, found)
        return found

    return told


def with_drawing_told(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let a display of a loaded model say which part is wrong if it cannot draw it."""

    @functools.wraps(make)
    def told(cls: type, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return make(cls, estimator, *args, **kwargs)
        except DAMAGE as error:
            if is_called_right(make, (cls, estimator, *args), kwargs):
                say_where(error, estimator, make, f"{cls.__name__}.{make.__name__}")
            raise

    return told


def say_memory(error: Exception, name: str, arguments: dict[str, Any]) -> None:
    """Raise a MemoryError that says what to do, if a library says that memory ran out."""
    if is_raised_by_us(error) or is_raised_by_users(error) or not ran_out_of_memory(error):
        return
    name = "return_cov=True" if arguments.get("return_cov") else name
    why = JOINT.get(name, "Give fewer rows at a time.")
    raise MemoryError(f"There is not enough free memory for {name}. {why}") from error


def say_where(error: Exception, model: Any, method: Any, called: str) -> None:
    """Raise an error that says which part of a loaded model is wrong, or add that as a note."""
    if hasattr(error, MARK) or id(model) not in LOADED:
        return
    shorten(error)
    is_lacking = is_absent(error, model, method.__name__)
    is_told = is_lacking or is_for_users(error)
    is_of_file = is_lacking or is_of_part(error, model)
    is_of_file |= method.__name__ not in FITTING and is_after_checks(error)
    if is_told and not (is_of_file or is_about_numbers(error, model, method)):
        return
    unless = "a model fitted here takes the same call" if is_told else "your arguments are right"
    why = (
        f"{called} failed in {place_of(error, model)}{file_of(model)}. If {unless}, the parts of "
        "the file do not belong together. Get it again from somebody you trust, or fit and save "
        "the model with this version."
    )
    if is_unable(error):
        raise told_once(ValueError(f"{str(error).rstrip(chr(46))}. {why}")) from error
    if not (is_told or is_raised_by_users(error)):
        raise told_once(ValueError(why)) from error
    told_once(error).add_note(why)


def told_once(error: Exception) -> Exception:
    """Let models around the one that tells which part failed not search for it again."""
    setattr(error, MARK, True)
    return error


def is_called_right(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a method takes these arguments."""
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def shorten(error: Exception) -> None:
    """Cut a message that shows a whole part of a file, which may be megabytes."""
    if len(str(error)) > LONGEST_MESSAGE:
        error.args = (f"{str(error)[:LONGEST_MESSAGE]}…", *error.args[1:])


def tell_failures(cls: type, tell: Callable[[Any], Any] = with_failures_told) -> type:
    """Let the public methods and properties that a class defines say which part is wrong."""
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and name not in SPECIAL:
            continue
        if inspect.isfunction(value):
            setattr(cls, name, tell(value))
        elif isinstance(value, property):
            setattr(cls, name, property(with_failures_told(value.fget), doc=value.__doc__))
        elif inspect.isfunction(getattr(value, "fn", None)):  # scikit-learn's available_if
            value.fn = tell(value.fn)
    return cls


def mark_loaded(objects: Iterable[Any], path: str | os.PathLike) -> None:
    """Remember the file of the estimators among objects."""
    for each in objects:
        if isinstance(each, BaseEstimator):
            mark(each, os.fspath(path))


def mark_same(model: Any, other: Any) -> None:
    """Remember that a copy, a distribution or functions are of the same file."""
    if id(model) in LOADED and package_of(type(other)) == PACKAGE:
        mark(other, LOADED[id(model)])


def mark(each: Any, path: str) -> None:
    """Remember the file of an object as long as that exists; it may have no hash."""
    if hasattr(each, "__weakref__"):
        LOADED[id(each)] = path
        weakref.finalize(each, LOADED.pop, id(each), None)


def file_of(model: Any) -> str:
    """Say which file a model is from, if it was loaded."""
    return f", loaded from {LOADED[id(model)]!r}" if id(model) in LOADED else ""


def check_found(model: Any, name: str, found: Any) -> None:
    """Raise a ValueError if a method returns NaN, infinite numbers, or what is no probability."""
    is_judged = isinstance(found, float) and name in LIKELIHOODS
    n_finite = N_FINITE.get(name, 0)
    has_map = hasattr(getattr(model, "law", None), "map")  # of a distribution
    if has_map or getattr(model, "target_transformer_", None) is not None:
        n_finite = int(name == "predict")
    check_known(model, np.array([found]) if is_judged else found, n_finite)
    if name == "predict_proba" and isinstance(found, np.ndarray):
        check_probabilities(model, found)


def check_known(model: Any, found: Any, n_finite: float) -> None:
    """Raise a ValueError if predictions are NaN, or the first, as means and stds, are infinite."""
    for i, a in enumerate(flat(found)):
        if not (isinstance(a, np.ndarray) and a.dtype.kind == "f"):
            continue
        unknown = ~np.isfinite(a) if i < n_finite else np.isnan(a)
        if unknown.any():
            unseen = " X was not checked for NaN, as scikit-learn's assume_finite=True asks."
            raise ValueError(
                f"{type(model).__name__}{file_of(model)} predicts {a[unknown][0]} for "
                f"{unknown.sum()} of {a.size} values, first at row {np.argwhere(unknown)[0][0]} of "
                "those asked: some numbers are too large or too small to "
                f"compute with.{Parts(model).most_extreme()}"
                f"{unseen * get_config()['assume_finite']} Check X, and fit the model again."
            )


def flat(found: Any) -> Iterator[Any]:
    """Yield what tuples and lists have, such as the means and deviations of several layers."""
    if isinstance(found, tuple | list):
        for each in found:
            yield from flat(each)
    else:
        yield found


def check_probabilities(model: Any, found: np.ndarray) -> None:
    """Raise a ValueError if rows of numbers are no probabilities of a model's classes."""
    n = np.size(model.classes_)
    is_one = (found >= 0.0).all(-1) & (np.abs(found.sum(-1) - 1.0) < MOST_MISSING)
    if found.shape[1:] != (n,) or not is_one.all():
        raise ValueError(
            f"{type(model).__name__}{file_of(model)} predicts numbers that are no probabilities of "
            f"its {n} classes, because its parts do not belong together. Fit the model again."
        )


def is_for_users(error: Exception) -> bool:
    """Tell whether an error says what to do: one of ours, of scikit-learn's checks, or of memory.

    ``__getattr__`` says only that a model lacks an attribute.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_name == "__getattr__":
        return False
    module, is_setting = frame.f_globals.get("__name__"), frame.f_code.co_name == "set_params"
    is_checked = is_setting or OF_CHECKS.match(str(module))
    is_told = is_raised_by_us(error) or (is_checked and isinstance(error, ValueError | TypeError))
    return (is_told and str(error) != "") or ran_out_of_memory(error)


def is_absent(error: Exception, model: Any, name: str) -> bool:
    """Tell whether a model lacks a property because the estimator within it has none."""
    if not isinstance(error, AttributeError) or error.name != name:
        return False
    is_property = isinstance(getattr(type(model), name, None), property)
    return is_property and isinstance(error.obj, BaseEstimator)


def is_unfitted(error: Exception, model: Any, name: str) -> bool:
    """Tell whether a method looks for what a fit has not found yet, as callbacks may ask it to."""
    if not isinstance(error, AttributeError) or error.obj is not model or id(model) in LOADED:
        return False
    return error.name != name and str(error.name).endswith("_")


def is_of_part(error: Exception, model: Any) -> bool:
    """Tell whether a module or a model within the model has raised an error or passed it.

    Or a function of a module, as in ONNX graphs, has raised it.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    passed = [frame.f_locals.get("self") for frame in frames]
    modules = (isinstance(x, nn.Module) for x in (*passed, *frames[-1].f_locals.values()))
    return any(modules) or any(id(x) in LOADED and x is not model for x in passed)


def is_after_checks(error: Exception) -> bool:
    """Tell whether an error was raised where the user's arguments have been checked already."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return AFTER_CHECKS.match(str(frame.f_globals.get("__name__"))) is not None


def is_about_numbers(error: Exception, model: Any, method: Any) -> bool:
    """Tell whether an error is about an estimator's parameter, or a matrix, as files have both."""
    if isinstance(error, np.linalg.LinAlgError):
        return True
    about = OF_PARAMETERS.match(str(error))
    if about is None or not isinstance(model, BaseEstimator):
        return False
    return about[1] in {*model._get_param_names()}.difference(inspect.signature(method).parameters)


def is_unable(error: Exception) -> bool:
    """Tell whether a module of ours, not the user's, lacks what the model asks of it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_locals.get("self")
    is_ours = isinstance(module, nn.Module) and type(module).__module__.startswith(f"{PACKAGE}.")
    return is_ours and type(error) is NotImplementedError


def place_of(error: Exception, estimator: Any) -> str:
    """Name the innermost part of an estimator whose method failed."""
    places, place = Parts(estimator).places, type(estimator).__name__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = places.get(id(frame.f_locals.get("self", places)), place)
    return place


class Parts(Packer):
    """The parts of a model: where they are, and which are numbers."""

    def __init__(self, model: Any) -> None:
        super().__init__(Names())
        self.places = {id(model): type(model).__name__}
        self.n_seen = 0
        self.extremes = [(0.0, 1.0, "")]  # |log10| of the number in an array farthest from 1
        with contextlib.suppress(*DAMAGE):  # a part that cannot be taken apart
            self.state(model)

    def part(self, value: Any, path: str) -> Any:
        if type(value) in ATOMS:
            return value
        self.n_seen += 1
        if self.n_seen > MOST_LOOKED_AT:
            raise ValueError("too many parts")
        path = OF_MODULES.sub(r".\1", path)[:LONGEST_PLACE]
        if not isinstance(value, WITHOUT_METHODS):
            self.places.setdefault(id(value), path)
        is_number = isinstance(value, float | np.ndarray) and np.asarray(value).dtype.kind == "f"
        is_used = is_number and not OF_RECORDS.search(path)
        if is_used and identity(value) not in self.found:  # once, wherever an array is shared
            self.extremes.append((*farthest(np.asarray(value)), OF_TENSORS.sub("", path)))
        return super().part(value, path)

    def made(self, value: Any, path: str) -> list:
        return [] if isinstance(value, np.ndarray) else super().made(value, path)  # no copy

    def most_extreme(self) -> str:
        """Say which number is farthest from 1, by its logarithm."""
        _, number, place = max(self.extremes)
        return f" The most extreme number of the model is {number:.3g}, in {place}." * bool(place)


def farthest(a: np.ndarray) -> tuple[float, float]:
    """Return |log10| of the number in an array that is farthest from 1, and the number."""
    numbers, found = a.ravel(order="K"), (0.0, 1.0)
    for start in range(0, len(numbers), AT_ONCE):
        b = numbers[start : start + AT_ONCE]
        b = b[np.isfinite(b) & (b != 0.0)]
        far = np.abs(np.log10(np.abs(b)))
        if len(b) and far.max() > found[0]:
            found = float(far.max()), float(b[far.argmax()])
    return found
