"""partial_fit: more of the data, a chunk at a time."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ..data.arrays import resolve_device, resolve_seed
from ..objectives.base import Objective
from ..training.loop import train
from .base import BaseGP, fitting

STREAM_RATE = 0.1  # most of learning_rate_init that a stream's steps have


class StreamsMixin(BaseGP):
    """An objective that is kept between calls, and goes on with the rows of each."""

    _stream: tuple[Any, dict[str, Any]]

    def _check_streams(self) -> None:
        """Raise a ValueError where partial_fit is impossible."""

    def _stream_objective(
        self, X: Tensor, targets: Tensor, generator: torch.Generator
    ) -> Objective:
        """Where the last call left off; else from the fitted model; else a new one."""
        raise NotImplementedError

    @fitting
    def _partial_fit(self, X: Any, y: Any) -> Any:
        self._check_streams()
        first = not hasattr(self, "posterior_")
        X, y = self._validate(X, y, reset=first)
        self._resolve(math.inf)
        device, seed = resolve_device(self.device), resolve_seed(self.random_state)
        generator = torch.Generator(device).manual_seed(seed)
        if first:
            self._set_scalings(X, y)
        rows, y_rows = self._tensors(X, y, device)
        targets = torch.cat([y_rows, torch.full_like(y_rows[:, :1], -1.0)], 1)
        if hasattr(self, "_stream"):
            objective = copy.deepcopy(self._stream[0]).to(device)
            objective.attach(rows, targets)
        else:
            objective = self._stream_objective(rows, targets, generator).to(device)
        optimizer = self._optimizer(objective)
        if optimizer is not None and hasattr(self, "_stream"):
            optimizer.load_state_dict(copy.deepcopy(self._stream[1]))
        batch_size = self._budget(len(rows))[1]
        history = train(
            objective,
            rows,
            targets,
            optimizer=optimizer,
            max_iter=1,
            batch_size=batch_size,
            # Features must not change faster than the averages of them follow.
            schedule=lambda *_: min(STREAM_RATE, objective.stream_rate(batch_size)),
            generator=generator,
        )
        history.loss_curve = [*getattr(self, "loss_curve_", []), *history.loss_curve]
        self._finish(objective.running_solution(), history)
        objective.detach_rows()
        self._stream = (objective.cpu(), _on_cpu(optimizer))
        return self


def _on_cpu(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """An optimiser's state, loadable without a GPU."""
    state = {} if optimizer is None else copy.deepcopy(optimizer.state_dict())
    for values in state.get("state", {}).values():
        values.update({k: v.cpu() for k, v in values.items() if isinstance(v, Tensor)})
    return state
