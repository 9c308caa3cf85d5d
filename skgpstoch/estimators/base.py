"""What every estimator shares: validation, tensors, fit, and marginals of predictions."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..data.arrays import Scaling, prediction_device, readable, resolve_device
from ..data.rows import UNSEEN, Data, Rows
from ..maths.allocator import keep_freed_memory
from ..maths.linalg import map_blocks
from ..objectives.base import Objective
from ..posteriors.base import Posterior
from ..training.checkpoint import Checkpoint
from ..training.loop import History, train
from ..training.optimizers import make_optimizer
from .callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from .checkpoint_key import representations, seed_and_checkpoint
from .parameters import RunParameters
from .plan import EXACTLY, Folds, Plan

MOST_ERROR = 1e15  # whose square float32 has, with room for products
HOPELESS = 10.0
"""Nats per row and output of a scaled target, for which a constant has about 1.42."""


@contextlib.contextmanager
def numeric_context() -> Iterator[None]:
    """What fits and predictions run in: not an autocast around the call, as types are arguments."""
    keep_freed_memory()
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """What predictions are made in."""
    with torch.no_grad(), numeric_context():
        yield


def fitting(method: Callable) -> Callable:
    """Leave the estimator as it was if its method raises; enable gradients for it."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = dict(vars(self))
        try:
            with torch.inference_mode(False), torch.enable_grad(), numeric_context():
                return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(state)
            raise

    return wrapped


class Run(NamedTuple):
    """What a fit trains, on what, and how."""

    X: Tensor
    rows: Rows
    plan: Plan
    objective: Objective
    generator: torch.Generator
    checkpoint: Checkpoint | None

    def evaluate(self) -> float:
        """The score of the present iterate."""
        return self.objective.evaluate(self.X, self.rows)

    def solution(self) -> Posterior:
        """The posterior at the present iterate."""
        return self.objective.solution(self.X, self.rows)


class BaseGP(RunParameters, CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """validate → rows → plan → objective → train → closing pass → NumPy.

    A family implements :meth:`_plan` and :meth:`_objective`; the other hooks have defaults.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Model and q(w), in float64 on the CPU.
    """

    posterior_: Posterior
    validation_scores_: Any

    # ---- hooks -------------------------------------------------------------------------------

    @abstractmethod
    def _validate(self, X: Any, y: Any, reset: bool, *of_rows: Any) -> Data:
        """Parameters, and what is known of rows, checked."""

    @abstractmethod
    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        """What "auto" comes to, for these distinct rows that count for n_given ones."""

    @abstractmethod
    def _objective(
        self, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> Objective:
        """The objective for scaled rows; its parameters are those of `start`, unless it is None."""

    def _input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Scaling between the user's X and what the objective sees."""
        return Scaling.identity(X.shape[1])

    def _target_is_scaled(self) -> bool:
        """Whether targets have variance 1."""
        return False

    def _distinct(self, data: Data) -> Data:
        """Rows that are the same as one that counts for all of them, where that changes nothing."""
        return data.merged()

    def _start(self) -> Any:
        """What a warm start begins from, or None."""
        return self.posterior_ if self.warm_start and hasattr(self, "posterior_") else None

    def _set_fitted(self, plan: Plan) -> None:
        """Fitted attributes of the method's own; the common ones are set already."""

    # ---- fit ---------------------------------------------------------------------------------

    @fitting
    @with_callbacks
    def _fit_to(self, X: Any, y: Any, *of_rows: Any) -> Any:
        """Fit to what the user gave; what is known of rows is in the order of `_validate`."""
        self._fit(self._validate(X, y, True, *of_rows))
        return self

    def _fit(self, data: Data, start: Any = None, **planned: Any) -> History:
        """Fit to data that are valid, from a start of the caller's or a warm one.

        `planned` are fields of the plan that the caller has decided.
        """
        run = self._prepare(data, self._start() if start is None else start, planned)
        callbacks = FitCallbacks(self, data.X, data.y.reshape(-1, *self._y_shape), run)
        history = self._train(run, callbacks)
        self._finish(run.solution(), history, run.plan)
        callbacks.on_end()
        return history

    def _prepare(self, data: Data, start: Any, planned: dict[str, Any]) -> Run:
        """Rows in random order, the plan, and the objective."""
        seed, checkpoint = seed_and_checkpoint(self, data, start, planned)
        generator = torch.Generator(resolve_device(self.device)).manual_seed(seed)
        n_given, data = len(data), self._distinct(data)
        n_given = max(n_given, math.floor(data.n_effective))
        plan = replace(self._plan(data, n_given, start), **planned)
        self._set_scalings(data, start)
        device, order = generator.device, None
        if plan.shuffles:
            order = torch.randperm(len(data), generator=generator, device=device).cpu().numpy()
        X, rows = self._tensors(data, plan, device, order)
        objective = self._objective(X, rows, plan, start, generator).to(X.device)
        plan = plan.closed() if objective.is_closed() else plan
        return Run(X, rows, plan, objective, generator, checkpoint)

    def _train(self, run: Run, callbacks: FitCallbacks) -> History:
        objective, plan = run.objective, run.plan
        trained, groups = slice(plan.folds.n_untrained, None), objective.param_groups()
        visited, rows = objective.minibatch_source(run.X[trained], run.rows[trained])
        history = train(
            objective,
            visited,
            rows,
            optimizer=make_optimizer(plan.solver, groups, plan.rate, objective.step_end),
            checkpoint=run.checkpoint,
            max_iter=plan.max_iter,
            batch_size=plan.batch_size,
            schedule=plan.schedule,
            generator=run.generator,
            evaluate=run.evaluate if plan.evaluates else None,
            evaluate_every=plan.evaluate_every,
            n_iter_no_change=plan.patience,
            tol=plan.tol,
            on_epoch=callbacks.on_epoch,
            verbose=bool(self.verbose),
        )
        if self._target_is_scaled():
            warn_if_hopeless(history, self._y_scaling.scale.size)
        objective.calibrate(run.X, run.rows)
        return history

    def _set_scalings(self, data: Data, start: Any) -> None:
        if start is None:
            self._x_scaling = self._input_scaling(data.X, data.weight)
        elif len(self._x_scaling.offset) != data.X.shape[1]:
            raise ValueError(
                f"X has {data.X.shape[1]} features, but warm_start=True goes on from a fit with "
                f"{len(self._x_scaling.offset)}."
            )
        scaled = self._target_is_scaled()
        self._y_scaling = (
            Scaling.standard(data.y, data.weight) if scaled else Scaling.identity(data.y.shape[1])
        )

    def _tensors(
        self, data: Data, plan: Plan, device: torch.device, order: np.ndarray | None = None
    ) -> tuple[Tensor, Rows]:
        """Scaled rows, in this order: permuting them later would take another copy."""
        dtype = getattr(torch, plan.dtype)

        def column(a: np.ndarray | None) -> Tensor | None:
            return None if a is None else torch.from_numpy(a if order is None else a[order]).to(X)

        X = self._x_scaling.tensor(data.X, dtype, device, order)
        y = self._y_scaling.tensor(data.y, dtype, device, order)
        noise = None if data.y_std is None else known_noise(data.y_std, self._y_scaling.scale)
        fold = fold_numbers(len(data), plan.folds, device)
        return X, Rows(y, column(data.weight), column(data.exposure), column(noise), fold)

    def _finish(self, posterior: Posterior, history: History, plan: Plan) -> None:
        """Fitted attributes, on the CPU."""
        self.posterior_ = posterior.cpu().requires_grad_(False)
        self.__dict__.pop("_stream", None)
        self._set_history(history, plan)
        self._fitted_parameters = representations(self)
        self._set_fitted(plan)

    def _set_history(self, history: History, plan: Plan) -> None:
        """What training has done so far; callbacks find it on the estimator after every epoch."""
        self.loss_curve_ = list(history.loss_curve)
        self.n_iter_ = history.n_iter
        self.best_iter_ = history.best_iter if history.scores else history.n_iter
        self.validation_scores_ = list(history.scores) if plan.holds_out else None

    # ---- predictions -------------------------------------------------------------------------

    def _query(self, X: Any) -> tuple[Tensor, Posterior]:
        """X, validated, as a float64 tensor, and the posterior, where predictions are made."""
        check_is_fitted(self)
        return self._located(validate_inputs(self, X, reset=False))

    def _located(self, X: np.ndarray) -> tuple[Tensor, Posterior]:
        """The same of an array that is valid."""
        device, posterior = predictor(self)
        return self._x_scaling.tensor(X, torch.float64, device), posterior

    def _labelled(self, data: Data) -> tuple[Tensor, Rows, Posterior]:
        """The same of data, with what is known of rows."""
        device, posterior = predictor(self)
        return *self._tensors(data, EXACTLY, device), posterior

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

        map_blocks(add, n_rows, self.posterior_.block_rows)
        return whole


def validate_inputs(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """X, or X and y, checked by scikit-learn; the same numbers give the same array."""
    given = map(readable, (X, *y))
    return validate_data(estimator, *given, dtype=(np.float64, np.float32), order="C", **options)


def known_noise(y_std: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Variance of a known error, (n, P), for targets in units of `scale` (P,)."""
    with np.errstate(over="ignore"):
        relative = y_std / scale
    if relative.max(initial=0.0) > MOST_ERROR:
        raise ValueError(
            f"y_std must be at most {MOST_ERROR:g} times the standard deviation of y (1 where that "
            f"is not scaled), got {relative.max():.1g} times: leave such rows out."
        )
    return np.square(relative)


def fold_numbers(n_rows: int, folds: Folds, device: torch.device) -> Tensor | None:
    """The fold of each row, (N,): first −2 of those unseen, then folds, then −1; or None."""
    if not folds.size:
        return None
    fold = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
    fold[: folds.n_unseen] = UNSEEN
    for k in range(folds.n_folds):
        start = folds.n_unseen + k * folds.size
        fold[start : start + folds.size] = k
    return fold


def warn_if_hopeless(history: History, n_outputs: int) -> None:
    """Of a fit that is worse than none."""
    if math.isfinite(history.best_score) and history.best_score > HOPELESS * n_outputs:
        warnings.warn(
            f"The best iterate scores {history.best_score:.3g} nats per row, worse than "
            "a constant prediction: scale the inputs, or lower learning_rate_init.",
            ConvergenceWarning,
            stacklevel=6,
        )


def predictor(estimator: BaseGP) -> tuple[torch.device, Posterior]:
    """Where predictions are made, and what makes them."""
    posterior, device = estimator.posterior_, prediction_device(estimator.device)
    return device, posterior if device.type == "cpu" else copy.deepcopy(posterior).to(device)
