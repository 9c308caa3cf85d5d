"""What every estimator shares: validation, tensors, fit, and marginals of predictions."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..data.arrays import Scaling, resolve_device, resolve_seed
from ..data.rows import Data, Rows
from ..maths.linalg import map_blocks
from ..objectives.base import Objective
from ..posteriors.base import Posterior
from ..training.loop import History, train
from ..training.optimizers import make_optimizer
from .callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from .parameters import TrainingParameters
from .persistence import checkpoint_of, representations
from .plan import EXACTLY, Folds, Plan

HOPELESS = 10.0
"""Nats per row and output of a scaled target, for which a constant has about 1.42."""


def fitting(method: Callable) -> Callable:
    """Leave the estimator as it was if its method raises; enable gradients for it."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = dict(vars(self))
        try:
            with torch.inference_mode(False), torch.enable_grad():
                return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(state)
            raise

    return wrapped


class BaseGP(TrainingParameters, CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
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
        # rows → plan → objective → train → closing pass
        start = self._start() if start is None else start
        seed, checkpoint = self._seed_and_checkpoint(data, start, planned)
        generator = torch.Generator(resolve_device(self.device)).manual_seed(seed)
        rows_given, data_given = len(data), data
        data = self._distinct(data)
        n_given = max(rows_given, math.floor(data.n_effective))
        plan = replace(self._plan(data, n_given, start), **planned)
        self._set_scalings(data, start)
        order = torch.randperm(len(data), generator=generator, device=generator.device)
        X, rows = self._tensors(data, plan, generator.device, order.cpu().numpy())
        objective = self._objective(X, rows, plan, start, generator).to(X.device)
        plan = plan.closed() if objective.is_closed() else plan
        solution = functools.partial(objective.solution, X, rows)
        y = data_given.y.reshape(rows_given, *self._y_shape)
        callbacks = FitCallbacks(self, data_given.X, y, plan.max_iter, solution)
        history = self._train(objective, X, rows, plan, generator, checkpoint, callbacks)
        objective.refine(X, rows)
        self._finish(solution(), history, plan)
        self.__dict__.pop("_stream", None)
        callbacks.on_end()
        return history

    def _train(
        self,
        objective: Objective,
        X: Tensor,
        rows: Rows,
        plan: Plan,
        generator: torch.Generator,
        checkpoint: Any,
        callbacks: FitCallbacks,
    ) -> History:
        trained = slice(plan.folds.n_untrained, None)
        evaluate = functools.partial(objective.evaluate, X, rows)
        history = train(
            objective,
            X[trained],
            rows[trained],
            optimizer=make_optimizer(
                plan.solver, objective.param_groups(), self.learning_rate_init
            ),
            checkpoint=checkpoint,
            max_iter=plan.max_iter,
            batch_size=plan.batch_size,
            schedule=plan.schedule,
            generator=generator,
            evaluate=evaluate if plan.evaluates else None,
            evaluate_every=plan.evaluate_every,
            n_iter_no_change=plan.patience,
            tol=plan.tol,
            on_epoch=callbacks.on_epoch,
            verbose=bool(self.verbose),
        )
        self._warn_if_hopeless(history)
        return history

    def _warn_if_hopeless(self, history: History) -> None:
        hopeless = history.best_score > HOPELESS * self._y_scaling.scale.size
        if hopeless and math.isfinite(history.best_score) and self._target_is_scaled():
            warnings.warn(
                f"The best iterate scores {history.best_score:.3g} nats per row, worse than "
                "a constant prediction: scale the inputs, or lower learning_rate_init.",
                ConvergenceWarning,
                stacklevel=6,
            )

    def _seed_and_checkpoint(
        self, data: Data, start: Any, planned: dict[str, Any]
    ) -> tuple[int, Any]:
        seed = resolve_seed(self.random_state)
        checkpoint = checkpoint_of(self, data, seed, start, planned)
        if checkpoint is not None and self.random_state is None:
            seed = int(checkpoint.identity[-8:], 16)  # the same when it resumes
        return seed, checkpoint

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
            return None if a is None else torch.tensor(a if order is None else a[order]).to(X)

        X = self._x_scaling.tensor(data.X, dtype, device, order)
        y = self._y_scaling.tensor(data.y, dtype, device, order)
        noise = None if data.y_std is None else np.square(data.y_std / self._y_scaling.scale)
        fold = fold_numbers(len(data), plan.folds, device)
        return X, Rows(y, column(data.weight), column(data.exposure), column(noise), fold)

    def _finish(self, posterior: Posterior, history: History, plan: Plan) -> None:
        """Fitted attributes, on the CPU."""
        self.posterior_ = posterior.cpu().requires_grad_(False)
        self._set_history(history)
        self._fitted_parameters = representations(self)
        self.validation_scores_ = list(history.scores) if plan.holds_out else None
        self._set_fitted(plan)

    def _set_history(self, history: History) -> None:
        """What training has done so far; callbacks find it on the estimator after every epoch."""
        self.loss_curve_ = list(history.loss_curve)
        self.n_iter_ = history.n_iter
        self.best_iter_ = history.best_iter if history.scores else history.n_iter

    # ---- predictions -------------------------------------------------------------------------

    def _query(self, X: Any) -> tuple[Tensor, Posterior]:
        """X, validated, as a float64 tensor, and the posterior, where predictions are made."""
        check_is_fitted(self)
        return self._located(validate_inputs(self, X, reset=False))

    def _located(self, X: np.ndarray) -> tuple[Tensor, Posterior]:
        """The same of an array that is valid."""
        device, posterior = self._predictor()
        return self._x_scaling.tensor(X, torch.float64, device), posterior

    def _labelled(self, data: Data) -> tuple[Tensor, Rows, Posterior]:
        """The same of data, with what is known of rows."""
        device, posterior = self._predictor()
        return *self._tensors(data, EXACTLY, device), posterior

    def _predictor(self) -> tuple[torch.device, Posterior]:
        """Where predictions are made, and what makes them."""
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
        return device, posterior

    def _collect(
        self, n_rows: int, compute: Callable[[slice], tuple[Tensor, ...]]
    ) -> list[np.ndarray]:
        """What `compute` makes of blocks of rows, put together.

        Blocks are copied into arrays that are made before them: small arrays kept from each block
        would keep the allocator from using the memory between them again.
        """
        whole: list[np.ndarray] = []

        @torch.no_grad()
        def add(block: slice) -> None:
            parts = [part.cpu().numpy() for part in compute(block)]
            if not whole:
                whole.extend(np.empty((n_rows, *part.shape[1:]), part.dtype) for part in parts)
            for array, part in zip(whole, parts, strict=True):
                array[block] = part

        map_blocks(add, n_rows)
        return whole


def validate_inputs(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """X, or X and y, checked by scikit-learn; the same numbers give the same array."""
    data = (X,) if y is None else (X, y)
    return validate_data(estimator, *data, dtype=(np.float64, np.float32), order="C", **options)


def fold_numbers(n_rows: int, folds: Folds, device: torch.device) -> Tensor | None:
    """The fold of each row, or −1, (N,); folds come first. None where there are no folds."""
    if not folds.size:
        return None
    fold = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
    for k in range(folds.n_folds):
        fold[k * folds.size : (k + 1) * folds.size] = k
    return fold
