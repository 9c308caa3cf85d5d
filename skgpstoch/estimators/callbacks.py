"""Call scikit-learn's callbacks (≥ 1.9) at every epoch of a fit and at its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from ..data.rows import Data
from ..training.loop import Observer, Trainer
from .validation import transformer_of

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
    of_rows : dict or None, default=None
        Weights and exposures of rows, as `score` takes them.
    """

    def __init__(
        self, estimator: Any, X: Any, y: Any, n_parts: int, of_rows: dict | None = None
    ) -> None:
        self.known = {"estimator": estimator, "X": X, "y": y, "metadata": of_rows}
        self.context = None
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context(max_subtasks=n_parts)
            self.context.call_on_fit_task_begin(**self.known)

    def tell_end(self) -> None:
        """Tell callbacks that the estimator is fitted."""
        if self.context is not None:
            self.context.call_on_fit_task_end(**self.known)


def targets_given(estimator: Any, data: Data) -> np.ndarray:
    """Return y as the user gave it: labels, and targets that are not transformed."""
    if is_classifier(estimator):
        return estimator.classes_[data.y[:, 0].astype(np.intp)]
    transformer = transformer_of(estimator)
    y = data.y if transformer is None else transformer.inverse_transform(data.y)
    return y.reshape(-1, *estimator._y_shape)


def of_rows_given(data: Data) -> dict[str, np.ndarray] | None:
    """Return what `score` takes beside X and y, or None if nothing was given."""
    parts = {"sample_weight": data.weight, "exposure": data.exposure}
    return {name: a.reshape(-1) for name, a in parts.items() if a is not None} or None


class FitCallbacks(FitTask, Observer):
    """A fit in epochs; its run has the plan, and the posterior at the present iterate."""

    def __init__(self, estimator: Any, data: Data, run: Any) -> None:
        y, of_rows = targets_given(estimator, data), of_rows_given(data)
        super().__init__(estimator, data.X, y, run.plan.max_iter, of_rows)
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
