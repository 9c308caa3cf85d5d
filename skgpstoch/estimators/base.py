"""What every estimator shares: validation, tensors, fit, and marginals of predictions."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import sys
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..data.arrays import Scaling, fingerprint, resolve_device, resolve_seed
from ..maths.linalg import map_blocks
from ..objectives.base import Objective
from ..posteriors.base import Posterior
from ..training.checkpoint import Checkpoint
from ..training.loop import History, train
from ..training.optimizers import SCHEDULES, Schedule, make_optimizer

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


HOPELESS = 10.0
"""Nats per row and output of a scaled target, for which a constant has about 1.42."""


N_EVALUATIONS = 25
"""Evaluations of the objective during a fit, for the choice of the best iterate."""


@contextlib.contextmanager
def given_precision() -> Iterator[None]:
    """Types are arguments here: an autocast around a call is not for what happens inside."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """What predictions are made in."""
    with torch.no_grad(), given_precision():
        yield


def fitting(method: Callable) -> Callable:
    """Leave the estimator as it was if its method raises; enable gradients for it."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = dict(vars(self))
        try:
            with torch.inference_mode(False), torch.enable_grad(), given_precision():
                return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(state)
            raise

    return wrapped


class BaseGP(CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """validate → tensors → objective → train → closing pass → NumPy.

    A subclass has the training parameters below among its constructor parameters and implements
    :meth:`_objective` and :meth:`_budget`; the other hooks have defaults.
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "solver": [StrOptions({"adam", "adadelta"})],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "learning_rate": [StrOptions(set(SCHEDULES))],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "normalize_y": ["boolean"],
        "warm_start": ["boolean"],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
        "checkpoint_dir": [str, os.PathLike, None],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    validation_scores_: Any

    # ---- hooks -------------------------------------------------------------------------------

    @abstractmethod
    def _objective(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Objective:
        """The objective for scaled rows X (N, d) and targets (N, P + 1): y and the row's fold."""

    @abstractmethod
    def _budget(self, n_rows: int) -> tuple[int, int]:
        """(max_iter, batch_size), with "auto" resolved for this many training rows."""

    def _input_scaling(self, X: np.ndarray) -> Scaling:
        """Scaling between the user's X and what the objective sees."""
        return Scaling.identity(X.shape[1])

    def _resolve(self, n_rows: float) -> None:
        """Decide what is left to "auto", before anything else."""

    def _target_scaling(self, y: np.ndarray) -> Scaling:
        """Scaling between the user's y and the targets."""
        return Scaling.identity(y.shape[1])

    def _target_is_scaled(self) -> bool:
        """Whether targets have variance 1."""
        return False

    def _n_folds(self, n_rows: int) -> int:
        """Number of disjoint sets of validation rows."""
        return 1

    def _holds_out(self) -> bool:
        """Whether some rows are held out to choose the iterate by."""
        return bool(self.early_stopping)

    def _evaluates(self) -> bool:
        """Whether iterates are scored at all; without scores the last one is kept."""
        return True

    def _schedule(self) -> Schedule:
        """Of the learning rate."""
        return SCHEDULES[self.learning_rate]

    def _patience(self) -> tuple[float, float]:
        """Epochs without an improvement after which to stop, and what counts as one."""
        return self.n_iter_no_change or math.inf, self.tol

    def _set_fitted(self) -> None:
        """Fitted attributes of the method's own; the common ones are set already."""

    # ---- fit ---------------------------------------------------------------------------------

    @fitting
    @with_callbacks
    def fit(self, X: Any, y: Any) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X or y is invalid, or training diverges; the estimator is then as it was
            before.
        """
        X, y = self._validate(X, y, reset=True)
        self.__dict__.pop("_stream", None)
        device, seed = resolve_device(self.device), resolve_seed(self.random_state)
        checkpoint = self._checkpoint(X, y, seed)
        if checkpoint is not None and self.random_state is None:
            seed = int(checkpoint.identity[-8:], 16)  # the same when it resumes
        generator = torch.Generator(device).manual_seed(seed)
        self._resolve(len(X))
        self._set_scalings(X, y)
        order = torch.randperm(len(X), generator=generator, device=device).cpu().numpy()
        rows, y_rows = self._tensors(X, y, device, order)
        targets = self._with_folds(y_rows)
        trained = slice(self._n_held_out(len(X)), None)
        objective = self._objective(rows, targets, generator).to(device)
        max_iter, batch_size = self._budget(len(X) - trained.start)
        if objective.is_closed():
            max_iter = 1
        solution = functools.partial(objective.solution, rows, targets)
        on_epoch, on_end = self._callbacks(X, y, max_iter, solution)
        evaluate = functools.partial(objective.evaluate, rows, targets)
        patience, tol = self._patience()
        history = train(
            objective,
            rows[trained],
            targets[trained],
            optimizer=self._optimizer(objective),
            checkpoint=checkpoint,
            max_iter=max_iter,
            batch_size=batch_size,
            schedule=self._schedule(),
            generator=generator,
            evaluate=evaluate if self._evaluates() else None,
            evaluate_every=math.ceil(max_iter / N_EVALUATIONS),
            n_iter_no_change=patience,
            tol=tol,
            on_epoch=on_epoch,
            verbose=bool(self.verbose),
        )
        hopeless = history.best_score > HOPELESS * self._y_scaling.scale.size
        if hopeless and math.isfinite(history.best_score) and self._target_is_scaled():
            warnings.warn(
                f"The best iterate scores {history.best_score:.3g} nats per row, worse than "
                "a constant prediction: scale the inputs, or lower learning_rate_init.",
                ConvergenceWarning,
                stacklevel=4,
            )
        objective.refine(rows, targets)
        self._finish(solution(), history)
        on_end()
        return self

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Parameters, X (n, d) and y (n, P), checked."""
        self._validate_params()
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2 if reset else 1,
        )
        if y.dtype.kind not in "fiub":
            raise ValueError(f"y must be numeric, got an array of dtype {y.dtype}.")
        shape = y.shape[1:]
        if reset:
            self._y_shape = shape
        elif shape != self._y_shape:
            raise ValueError(
                f"y must have shape {('n_samples', *self._y_shape)}, as at the first call, "
                f"got {('n_samples', *shape)}."
            )
        return X, np.asarray(y, dtype=np.float64).reshape(len(y), -1)

    def _starts_warm(self) -> bool:
        return self.warm_start and hasattr(self, "posterior_")

    def _start_module(self) -> torch.nn.Module:
        """What a fit starts from, where it starts from something."""
        return self.posterior_

    def _set_scalings(self, X: np.ndarray, y: np.ndarray) -> None:
        if not self._starts_warm():
            self._x_scaling = self._input_scaling(X)
        elif len(self._x_scaling.offset) != X.shape[1]:
            raise ValueError(
                f"X has {X.shape[1]} features, but warm_start=True goes on from a fit with "
                f"{len(self._x_scaling.offset)}."
            )
        self._y_scaling = self._target_scaling(y)

    def _tensors(
        self, X: np.ndarray, y: np.ndarray, device: torch.device, order: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scaled rows and targets, in this order: permuting them later would take another copy."""
        dtype = getattr(torch, self._training_dtype())
        rows = self._x_scaling.tensor(X, dtype, device, order)
        return rows, self._y_scaling.tensor(y, dtype, device, order)

    def _training_dtype(self) -> str:
        """Of the data."""
        return self.dtype

    def _fold_size(self, n_rows: int) -> int:
        """Validation rows of each fold."""
        if not self._holds_out():
            return 0
        most = n_rows // max(2, self._n_folds(n_rows))
        return min(max(1, round(self.validation_fraction * n_rows)), most)

    def _n_held_out(self, n_rows: int) -> int:
        """Rows that are not trained on at all: one fold. Of several, other members see each."""
        return self._fold_size(n_rows) if self._n_folds(n_rows) == 1 else 0

    def _with_folds(self, y: Tensor) -> Tensor:
        """Targets: the row's fold, or −1, beside y; folds come first."""
        n = len(y)
        fold = torch.full((n, 1), -1.0, dtype=y.dtype, device=y.device)
        size = self._fold_size(n)
        for k in range(self._n_folds(n)):
            fold[k * size : (k + 1) * size] = k
        return torch.cat([y, fold], 1)

    def _optimizer(self, objective: Objective) -> torch.optim.Optimizer | None:
        return make_optimizer(self.solver, objective.param_groups(), self.learning_rate_init)

    def _checkpoint(self, X: np.ndarray, y: np.ndarray, seed: int) -> Checkpoint | None:
        """Where this very fit (same parameters, data and seed) saves, and resumes from."""
        if self.checkpoint_dir is None:
            return None
        silent = {"checkpoint_dir", "verbose", "device", "random_state"}
        params = {k: v for k, v in sorted(self.get_params().items()) if k not in silent}
        modules = [p for p in params.values() if isinstance(p, torch.nn.Module)]
        arrays = {k: np.asarray(v) for k, v in params.items() if hasattr(v, "__array__")}
        params = {k: v for k, v in params.items() if k not in arrays}  # whose repr is abbreviated
        if self._starts_warm():
            modules.append(self._start_module())
        tensors = [t.cpu().numpy() for m in modules for t in m.state_dict().values()]
        named_seed = None if self.random_state is None else seed
        versions = sys.modules["skgpstoch"].__version__, torch.__version__
        arrays_of = [*arrays, *arrays.values(), *tensors]
        identity = fingerprint(versions, params, named_seed, X.shape, X, y.shape, y, *arrays_of)
        return Checkpoint(Path(self.checkpoint_dir), f"{type(self).__name__}-{identity}")

    def _callbacks(
        self, X: np.ndarray, y: np.ndarray, max_iter: int, solution: Callable[[], Posterior]
    ) -> tuple[Callable[[History], bool] | None, Callable[[], None]]:
        """What tells scikit-learn's callbacks (≥ 1.9) of every epoch, and of the end."""
        if not hasattr(self, "_init_callback_context"):
            return None, lambda: None
        context = self._init_callback_context(max_subtasks=max_iter)
        y = y.reshape(len(y), *self._y_shape)
        context.call_on_fit_task_begin(estimator=self, X=X, y=y)

        announced = 0

        def on_epoch(history: History) -> bool:
            nonlocal announced
            if history.n_iter <= announced:  # done before a roll-back
                return False
            announced = history.n_iter
            epoch = context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(estimator=self, X=X, y=y)
            self._set_history(history)
            return bool(
                epoch.call_on_fit_task_end(
                    estimator=self,
                    X=X,
                    y=y,
                    reconstruction_attributes=lambda: {"posterior_": solution().cpu()},
                )
            )

        def on_end() -> None:
            context.call_on_fit_task_end(estimator=self, X=X, y=y)

        return on_epoch, on_end

    def _finish(self, posterior: Posterior, history: History) -> None:
        """Fitted attributes, on the CPU."""
        self.posterior_ = posterior.cpu().requires_grad_(False)
        self._set_history(history)
        self._set_fitted()

    def _set_history(self, history: History) -> None:
        """What training has done so far; callbacks find it on the estimator after every epoch."""
        self.loss_curve_ = list(history.loss_curve)
        self.n_iter_ = history.n_iter
        self._was_interrupted = history.status == "interrupted"
        self.best_iter_ = history.best_iter if history.scores else history.n_iter
        self.validation_scores_ = list(history.scores) if self._holds_out() else None

    # ---- predictions -------------------------------------------------------------------------

    def _query(self, X: Any) -> tuple[Tensor, Posterior]:
        """X, validated, as a float64 tensor, and the posterior, where predictions are made."""
        check_is_fitted(self)
        return self._located(validate_data(self, X, reset=False, dtype=(np.float64, np.float32)))

    def _located(self, X: np.ndarray) -> tuple[Tensor, Posterior]:
        """The same of an array that is valid."""
        try:
            device = resolve_device(self.device)
        except ValueError:
            warnings.warn(
                f"device={self.device!r} is not on this machine; predicting on the CPU.",
                stacklevel=4,
            )
            device = torch.device("cpu")
        posterior = self.posterior_
        if device.type != "cpu":
            posterior = copy.deepcopy(posterior).to(device)
        return self._x_scaling.tensor(X, torch.float64, device), posterior

    def _collect(
        self, n_rows: int, compute: Callable[[slice], tuple[Tensor, ...]]
    ) -> list[np.ndarray]:
        """What `compute` makes of blocks of rows, put together.

        Blocks are copied into arrays that are made before them: small arrays kept from each block
        would keep the allocator from using the memory between them again.
        """
        whole: list[np.ndarray] = []

        @predicting()
        def add(block: slice) -> None:
            parts = [part.cpu().numpy() for part in compute(block)]
            if not whole:
                whole.extend(np.empty((n_rows, *part.shape[1:]), part.dtype) for part in parts)
            for array, part in zip(whole, parts, strict=True):
                array[block] = part

        map_blocks(add, n_rows)
        return whole
