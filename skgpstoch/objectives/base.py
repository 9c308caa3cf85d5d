"""Base class of training objectives."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.deadline import Deadline
from ..data.devices import all_hold, fork_rng
from ..data.rows import Rows
from ..maths.modules import Module
from ..models.posteriors.base import Posterior
from .closing import FULL, Closing


class Objective(Module):
    """A training loss per row; training changes only its state (parameters and buffers).

    A new method overrides :meth:`forward` and :meth:`solution`; most other hooks have defaults that
    do nothing. Whatever must survive a checkpoint, a rollback, or the choice of the best iterate
    has to be a parameter or a buffer.
    """

    has_user_module: bool = False
    """Whether there is a module of the user, whose layers may draw from the global generator."""

    streams: bool = False
    """Whether rows come in chunks, without a closing pass over all of them."""

    is_still: bool = False
    """Whether the loss of all rows is a fixed function, so the optimiser can detect its minimum."""

    weight_decay: float = 0.0
    """Decoupled decay of networks' parameters."""

    network_rate: float = 1.0
    """Factor of the learning rate for networks' parameters."""

    rest_rate: float = 1.0
    """Factor of the learning rate for all other parameters."""

    closing: Closing = FULL
    """How thorough the closing pass is; :meth:`hurry` chooses."""

    start_is_cut: bool = False
    """Whether there was too little time for the search of where training starts."""

    overfit_patience: float = math.inf
    """Epochs after which training ends if the loss improves and the held-out score does not."""

    @property
    def predicts_otherwise(self) -> bool:
        """Whether running averages need features in evaluation mode, besides those of the step.

        A stream predicts from its averages alone, without a closing pass, and a user's layers, such
        as BatchNorm, behave differently in predictions.
        """
        return self.streams and self.has_user_module

    def undisturbed(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Return the context of steps and evaluations, with the global generator if needed."""
        return global_rng(device) if self.has_user_module else contextlib.nullcontext()

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        """Return the loss of a minibatch, X (b, d) and its rows, in nats per row."""
        raise NotImplementedError

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return what an epoch splits into minibatches: the rows, by default."""
        return X, rows

    def param_groups(self) -> list[dict[str, Any]]:
        """Return two groups for the optimiser: networks' parameters, and all others."""
        named = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        network = [p for name, p in named if "network." in name]
        rest = [p for name, p in named if "network." not in name]
        decay = {"weight_decay": self.weight_decay, "rate": self.network_rate}
        return [{"params": network, **decay}, {"params": rest, "rate": self.rest_rate}]

    def step_end(self) -> None:
        """Update after an optimiser step: project to bounds, or make natural or dual steps."""

    def epoch_end(self) -> None:
        """Update after an epoch, for example penalties or the objective's own schedules."""

    def epoch_loss(self, mean: float) -> float:
        """Return what the loss curve records for an epoch with this mean minibatch loss."""
        return mean

    def is_closed(self) -> bool:
        """Whether there is nothing to train, only to solve."""
        return not any(group["params"] for group in self.param_groups())

    def has_converged(self) -> bool:
        """Whether training has converged; asked after every epoch."""
        return False

    def is_finite(self) -> bool:
        """Whether parameters and buffers are finite; if not, the loop undoes the last epoch."""
        # −inf is sound in a buffer: it is the logarithm of a hyper-parameter that is fixed at 0.
        # |p| < ∞ is False for NaN, like torch.isfinite, but takes fewer operations.
        sound = [(p.detach().abs() < math.inf).all() for p in self.parameters()]
        sound += [(b < math.inf).all() for b in self.buffers()]
        return all_hold(sound + [~failed for failed in self.failures()])

    def failures(self) -> list[Tensor]:
        """Return one-element flags of steps that failed without an error, to be read later."""
        return []

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the score that selects the best iterate (lower is better), in nats per row."""
        raise NotImplementedError

    def calibrate(self, X: Tensor, rows: Rows) -> None:
        """Make the last choices for the best iterate, before the closing pass."""

    def hurry(self, X: Tensor, rows: Rows, deadline: Deadline, wanted: float) -> float:
        """Choose a closing pass that ends in time, and return the seconds that it will take.

        Training must also end before the deadline; it would take `wanted` seconds.
        """
        return 0.0

    def solution(self, X: Tensor, rows: Rows) -> Posterior:
        """Return the posterior, from a closing exact pass over all rows."""
        raise NotImplementedError

    # ---- streams -----------------------------------------------------------------------------

    learns_q: ClassVar[bool] = False
    """Whether gradients learn some of q(w), which then takes long from the prior."""

    def attach(self, X: Tensor, rows: Rows) -> None:
        """Continue with the next rows of a stream."""

    def end_beginning(self, X: Tensor, rows: Rows) -> None:
        """Make the last choices for the first rows of a stream, after training on them."""

    def detach_rows(self) -> None:
        """Forget references to the rows, which must not be kept with the estimator."""

    def stream_rate(self, batch_size: int) -> float:
        """Return the factor of the learning rate that a stream's averages can keep pace with."""
        return 1.0

    def running_solution(self) -> Posterior:
        """Return the posterior that is known without a pass over all rows."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from streams")


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module that is in training into evaluation mode for the block."""
    module.eval()
    try:
        yield
    finally:
        module.train()


GLOBAL_GENERATOR = threading.RLock()
"""Lock of the thread whose epoch uses torch's global generator exclusively."""


@contextlib.contextmanager
def global_rng(device: torch.device) -> Iterator[None]:
    """Reserve torch's global generator for this thread's fit; restore its state afterwards.

    Dropout of all kinds, RReLU, attention with dropout, and all code that calls ``torch.rand``
    without a generator can only draw from it. We cannot know what a user's module calls, so every
    user's module gets it. Our own networks draw nothing from it, so they can train in parallel.
    Fits in other threads wait, an epoch at a time; other code in the process does not wait.
    """
    with GLOBAL_GENERATOR, fork_rng(device):
        yield


class _Surrogate(torch.autograd.Function):
    """The same as ``value + s − s.detach()`` with s = Σ⟨x, dx⟩, in a third of the time."""

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
    """Return a scalar equal to `value` whose gradient by each tensor is the one given with it.

    Use it if the gradient is known in closed form, or is not the gradient of any loss.
    """
    if not gradients:
        return value
    tensors, given = zip(*gradients, strict=True)
    return _Surrogate.apply(value, *tensors, *given)
