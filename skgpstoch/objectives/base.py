"""Base class of training objectives."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..data.deadline import Deadline
from ..data.devices import all_hold
from ..data.rows import Rows
from ..maths.modules import Module
from ..posteriors.base import Posterior
from .closing import FULL, Closing


class Objective(Module):
    """A training loss per row; training changes only its state (parameters and buffers).

    A new method overrides :meth:`forward` and :meth:`solution`; the other hooks have defaults that
    do nothing. Whatever must survive a checkpoint, a rollback, or the choice of the best iterate
    has to be a parameter or a buffer.
    """

    has_user_module: bool = False
    """Whether a module of the user's is inside, whose layers may draw from the global generator."""

    streams: bool = False
    """Whether rows come in chunks, without a closing pass over all of them."""

    is_still: bool = False
    """Whether the loss of all rows stays the same function, of which an optimiser can tell that it
    has found the minimum."""

    weight_decay: float = 0.0
    """Decoupled decay of networks' parameters."""

    network_rate: float = 1.0
    """Of the learning rate, for networks' parameters."""

    rest_rate: float = 1.0
    """Of the learning rate, for all others."""

    closing: Closing = FULL
    """How thorough the closing pass is; :meth:`hurry` chooses."""

    overfit_patience: float = math.inf
    """Epochs after which training ends if losses were better and scores of other rows were not."""

    @property
    def predicts_otherwise(self) -> bool:
        """Whether running averages are of features that are not those of the training step.

        A stream predicts from its averages alone, with a user's layers, such as BatchNorm, as they
        are in predictions.
        """
        return self.streams and self.has_user_module

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        """Loss of a minibatch, in nats per row: X (b, d) and what is known of these rows."""
        raise NotImplementedError

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """What an epoch goes through in minibatches: rows, unless it is something else."""
        return X, rows

    def param_groups(self) -> list[dict[str, Any]]:
        """Return groups for the optimiser: networks' parameters, and all others."""
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        network = [p for name, p in named if "network." in name]
        rest = [p for name, p in named if "network." not in name]
        decay = {"weight_decay": self.weight_decay, "rate": self.network_rate}
        return [{"params": network, **decay}, {"params": rest, "rate": self.rest_rate}]

    def step_end(self) -> None:
        """Called after every optimiser step: projections, profiles, natural or dual steps."""

    def epoch_end(self) -> None:
        """Called after every epoch: penalties, schedules of the objective's own."""

    def epoch_loss(self, mean: float) -> float:
        """What the loss curve records for an epoch, given the mean of its minibatches' losses."""
        return mean

    def is_closed(self) -> bool:
        """Whether there is nothing to train, only to solve."""
        return not any(group["params"] for group in self.param_groups())

    def has_converged(self) -> bool:
        """Whether there is nothing left to train; asked after every epoch."""
        return False

    def is_finite(self) -> bool:
        """Whether parameters and buffers are sound; an epoch after which they are not is undone."""
        # −inf is sound in a buffer: it is the logarithm of a hyper-parameter that is fixed at 0.
        # |p| < ∞ is as false of NaN as torch.isfinite, in fewer operations.
        sound = [(p.detach().abs() < math.inf).all() for p in self.parameters()]
        sound += [(b < math.inf).all() for b in self.buffers()]
        return all_hold(sound + [~failed for failed in self.failures()])

    def failures(self) -> list[Tensor]:
        """What was not waited for, and says, of one element each, whether it has failed."""
        return []

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """What the best iterate is the best of, lower is better: nats per row, of all rows."""
        raise NotImplementedError

    def calibrate(self, X: Tensor, rows: Rows) -> None:
        """Choices that are left when the best iterate is, before the closing pass."""

    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        """Choose a closing pass that ends in time; the seconds that it will take.

        Before the deadline there is also training, which would take the seconds `wanted`.
        """
        return 0.0

    def solution(self, X: Tensor, rows: Rows) -> Posterior:
        """The closing exact pass over all rows."""
        raise NotImplementedError

    # ---- streams -----------------------------------------------------------------------------

    def attach(self, X: Tensor, rows: Rows) -> None:
        """Go on with other rows, of a stream."""

    def detach_rows(self) -> None:
        """Forget references to the rows, which must not be kept with the estimator."""

    def stream_rate(self, batch_size: int) -> float:
        """Most of the learning rate that the averages of a stream can follow."""
        return 1.0

    def running_solution(self) -> Posterior:
        """What is known without a pass over all rows."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from streams")


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Layers meanwhile as they are in predictions; for modules that are in training."""
    module.eval()
    try:
        yield
    finally:
        module.train()


class _Surrogate(torch.autograd.Function):
    """A third of the time of ``value + s − s.detach()``, s = Σ⟨x, dx⟩, at every step."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.gradients = tensors[len(tensors) // 2 :]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = outputs[0]
        given = [(scale * dx).to(dx) for dx in ctx.gradients]
        return None, *given, *(None for _ in given)


def surrogate(value: Tensor, *gradients: tuple[Tensor, Tensor]) -> Tensor:
    """A scalar equal to `value` whose gradient by each tensor is the one given with it.

    For losses whose gradient is known in closed form, or is not that of any loss.
    """
    if not gradients:
        return value
    tensors, given = zip(*gradients, strict=True)
    return _Surrogate.apply(value, *tensors, *given)
