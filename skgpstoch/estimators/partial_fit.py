"""partial_fit: more of the data, a chunk at a time."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..data.arrays import resolve_device, resolve_seed
from ..data.rows import Data, Rows
from ..objectives.base import Objective
from ..training.loop import train
from ..training.optimizers import make_optimizer
from .base import fitting
from .checkpoint_key import changed_shape, representations
from .plan import Plan

STREAM_RATE = 0.1  # most of learning_rate_init that a stream's steps have


class Stream(NamedTuple):
    """What one call leaves to the next."""

    objective: Objective
    optimizer: dict[str, Any]  # its state
    parameters: dict[str, str]  # those of the estimator
    solver: str


class StreamsMixin:
    """An objective that is kept between calls, and goes on with the rows of each."""

    _shape_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that say what the model is made of, and cannot change from call to call."""

    _stream: Stream
    _fitted_parameters: dict[str, str]

    def _check_streams(self) -> None:
        """Raise a ValueError where partial_fit is impossible."""

    def _check_chunk(self, data: Data) -> None:
        """Raise a ValueError where rows of a later chunk are not like those before."""

    def _stream_objective(
        self, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> Objective:
        """From the fitted model, if there is one, or a new one."""
        raise NotImplementedError

    @fitting
    def _partial_fit(self: Any, X: Any, y: Any, *of_rows: Any) -> Any:
        self._validate_params()  # before they are asked what they are for
        self._check_streams()
        first = not hasattr(self, "posterior_")
        if not first:
            self._check_shape()
        data = self._validate(X, y, first, *of_rows)
        if not first:
            self._check_chunk(data)
        device, seed = resolve_device(self.device), resolve_seed(self.random_state)
        generator = torch.Generator(device).manual_seed(seed)
        plan = self._plan(data, len(data), None, streams=True)
        if first:
            self._set_scalings(data, None)
        X, rows = self._tensors(data, plan, device)
        objective, optimizer = self._streaming(X, rows, plan, generator)
        history = train(
            objective,
            X,
            rows,
            optimizer=optimizer,
            max_iter=1,
            batch_size=plan.batch_size,
            # Features must not change faster than the averages of them follow.
            schedule=lambda *_: min(STREAM_RATE, objective.stream_rate(plan.batch_size)),
            generator=generator,
        )
        history.loss_curve = [*getattr(self, "loss_curve_", []), *history.loss_curve]
        self._finish(objective.running_solution(), history, plan)
        objective.detach_rows()
        parameters = representations(self)
        self._stream = Stream(objective.cpu(), _on_cpu(optimizer), parameters, plan.solver)
        return self

    def _streaming(
        self: Any, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> tuple[Objective, torch.optim.Optimizer | None]:
        """Where the last call left off; else, as after other parameters, the fitted model."""
        kept = getattr(self, "_stream", None)
        if kept is not None and (kept.parameters, kept.solver) != (
            representations(self),
            plan.solver,  # "auto" is another one with y_std
        ):
            kept = None  # its steps and averages are not those that are asked for now
        if kept is None:
            objective = self._stream_objective(X, rows, plan, generator).to(X.device)
        else:
            objective = copy.deepcopy(kept.objective).to(X.device)
            objective.attach(X, rows)
        groups = objective.param_groups()
        optimizer = make_optimizer(plan.solver, groups, self.learning_rate_init)
        if optimizer is not None and kept is not None:
            optimizer.load_state_dict(copy.deepcopy(kept.optimizer))
        return objective, optimizer

    def _check_shape(self: Any) -> None:
        """Raise a ValueError if the model that was fitted is not the one that is asked for now."""
        if changed := changed_shape(self):
            raise ValueError(
                "partial_fit goes on with the model that was fitted before, but "
                f"{changed} asks for another one; fit anew, or set it back."
            )


def _on_cpu(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """An optimiser's state, loadable without a GPU."""
    state = {} if optimizer is None else copy.deepcopy(optimizer.state_dict())
    for values in state.get("state", {}).values():
        values.update({k: v.cpu() for k, v in values.items() if isinstance(v, Tensor)})
    return state
