"""Contexts of fits and predictions: gradients, autocast, and restoring the state after errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sklearn.base import BaseEstimator

from ..data.devices import ACCELERATORS, HOST, ran_out_of_memory
from ..data.rivals import watched_for_rivals
from ..training.interrupts import one_fit

TAKE_MEMORY = (
    "batch_size",
    "n_inducing",
    "n_components",
    "basis_batch_size",
    "max_exact",
    "hidden_layer_sizes",
    "n_estimators",
    "n_waves",
    "n_layers",
    "hidden_dims",
    "n_samples",
)
RAN_OUT = "ran out of memory"
UNKNOWN_Y = "Input y contains"  # NaN or infinity, as scikit-learn says
WITHOUT = "Drop these rows, for example by keep = np.isfinite(y) and fit(X[keep], y[keep])."


@contextlib.contextmanager
def numeric_context() -> Iterator[None]:
    """Disable an autocast around the call, because types are arguments here."""
    with contextlib.ExitStack() as stack:
        for kind in (HOST.type, *ACCELERATORS):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """Disable gradients and autocast while predicting."""
    with torch.no_grad(), numeric_context():
        yield


def fitting(method: Callable) -> Callable:
    """Enable gradients, and restore the estimator's state if the wrapped method raises.

    A MemoryError then says what to lower, and an error about unknown targets to leave them out.
    A warning tells of programs that slowed the fit down.
    """

    @functools.wraps(method)
    def wrapped(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        state = dict(vars(estimator))
        try:
            with (
                watched_for_rivals(),
                one_fit(),
                torch.inference_mode(False),
                torch.enable_grad(),
                numeric_context(),
            ):
                return method(estimator, *args, **kwargs)
        except BaseException as error:
            vars(estimator).clear()
            vars(estimator).update(state)
            if RAN_OUT not in str(error) and ran_out_of_memory(error):
                raise MemoryError(what_to_lower(estimator)) from error
            if isinstance(error, ValueError) and str(error).startswith(UNKNOWN_Y):
                raise ValueError(f"{error} {WITHOUT}") from None
            raise

    return wrapped


def what_to_lower(estimator: BaseEstimator) -> str:
    """Say what makes a fit take less memory."""
    params = estimator.get_params(deep=False)
    given = [f"{name} (now {params[name]!r})" for name in TAKE_MEMORY if name in params]
    lower = f"lower {', '.join(given)}, or " if given else ""
    return (
        f"{type(estimator).__name__} {RAN_OUT} on device={params.get('device')!r}: {lower}"
        "free memory there, or set device='cpu'."
    )
