"""Call scikit-learn's callbacks (≥ 1.9) at every epoch of a fit and at its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..training.loop import Observer, Trainer

if TYPE_CHECKING:

    class CallbackSupportMixin:
        """sklearn.callback's, from scikit-learn 1.9 on."""

        def _init_callback_context(self, **kwargs: Any) -> Any: ...

    def with_callbacks(method: Callable) -> Callable: ...

else:
    try:
        from sklearn.callback import CallbackSupportMixin, with_callbacks
    except ImportError:  # scikit-learn < 1.9 has no callbacks

        class CallbackSupportMixin:
            """Stands in for scikit-learn 1.9's: no callbacks."""

        def with_callbacks(method):
            return method


class FitTask:
    """A fit of which an estimator's callbacks are told.

    Parameters
    ----------
    estimator : BaseEstimator
        The one that is fitted.
    X, y : ndarrays
        The data, as the user gave them.
    n_parts : int
        Maximum number of epochs, or of fits of other estimators.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, n_parts: int) -> None:
        self.known = {"estimator": estimator, "X": X, "y": y}
        self.context = None
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context(max_subtasks=n_parts)
            self.context.call_on_fit_task_begin(**self.known)

    def tell_end(self) -> None:
        """Tell callbacks that the estimator is fitted."""
        if self.context is not None:
            self.context.call_on_fit_task_end(**self.known)


class FitCallbacks(FitTask, Observer):
    """A fit in epochs; its run has the plan, and the posterior at the present iterate."""

    def __init__(self, estimator: Any, X: np.ndarray, y: np.ndarray, run: Any) -> None:
        super().__init__(estimator, X, y, run.plan.max_iter)
        self.run = run
        self.announced = 0

    def on_epoch(self, trainer: Trainer) -> bool:
        """Tell callbacks that an epoch has ended; return whether to stop."""
        history = trainer.history
        if self.context is None or history.n_iter <= self.announced:  # done before a roll-back
            return False
        self.announced = history.n_iter
        epoch = self.context.subcontext(task_name="epoch")
        epoch.call_on_fit_task_begin(**self.known)
        self.known["estimator"]._set_history(history, self.run.plan)
        attributes = {
            "reconstruction_attributes": lambda: {"posterior_": self.run.seen_solution().cpu()}
        }
        return bool(epoch.call_on_fit_task_end(**self.known, **attributes))


class Fits(FitTask):
    """A fit that consists of fits of other estimators."""

    def next(self, name: str) -> Fit:
        """Return the next fit, of an estimator with this name."""
        context = None if self.context is None else self.context.subcontext(task_name=name)
        return Fit(self.known["estimator"], context)


class Fit(NamedTuple):
    """A fit of another estimator, perhaps in another process."""

    caller: Any
    context: Any

    def __call__(self, model: Any, X: Any, y: Any, **of_rows: Any) -> Any:
        """Fit the model, and return it."""
        if self.context is None:
            return model.fit(X, y, **of_rows)
        known = {"estimator": self.caller, "X": X, "y": y}
        takes_any = hasattr(model, "set_callbacks")
        with self.context.propagate_callback_context(model) if takes_any else nullcontext():
            self.context.call_on_fit_task_begin(**known)
            model.fit(X, y, **of_rows)
        self.context.call_on_fit_task_end(**known)
        return model
