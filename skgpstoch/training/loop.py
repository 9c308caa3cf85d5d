"""The only training loop of the package."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.deadline import Allowance, Deadline
from ..data.devices import HOST, seed_rng
from ..data.groups import ALONE, Group, agreed, average_gradients
from ..data.rows import Rows
from ..maths.linalg import NO_COVARIANCE, NotPositiveDefiniteError
from ..objectives.base import Objective
from .checkpoint import copy_of, load_moments
from .history import MAX_ROLLBACKS, History, Pace
from .interrupts import (
    interruptible,
    is_marked,
    keeps_best,
    share_interrupt,
    tell,
    was_interrupted,
)
from .optimizers import Schedule
from .tables import Table

APART = 1e-4
"""Difference between ranks' sums of parameters, absolute and relative, that is not rounding."""

HARM = 0.5
"""Nats per row by which the start must be better than every iterate to be preferred."""


class Observer:
    """Watches a training run; hooks that a subclass does not define do nothing."""

    def on_start(self, trainer: Trainer) -> None:
        """See a run before its first epoch; its state may be set."""

    def on_step(self, trainer: Trainer) -> None:
        """See a run after a step."""

    def on_epoch(self, trainer: Trainer) -> bool:
        """See a run after a sound epoch; return whether it ends."""
        return False

    def on_failure(self, trainer: Trainer, error: Exception) -> bool:
        """See a run that diverged; return whether it runs again, from the state that is set."""
        return False

    def on_end(self, trainer: Trainer) -> None:
        """See a run when it has ended, be it by an error."""


@dataclass
class Trainer:
    """The state of a training run; only :func:`train` uses it."""

    objective: Objective
    optimizer: Optimizer | None
    source: Table
    max_iter: int
    batch_size: int
    schedule: Schedule
    generator: torch.Generator
    evaluate: Callable[[], float] | None = None
    evaluate_every: int = 1
    n_iter_no_change: float = math.inf
    tol: float = 0.0
    pace: Pace = field(default_factory=Pace)
    observers: Sequence[Observer] = ()
    history: History = field(default_factory=History)
    start_state: dict[str, Tensor] | None = None
    best_state: dict[str, Tensor] | None = None
    safe: dict[str, Any] = field(default_factory=dict)  # where a diverging epoch returns to
    failure: Exception | None = None  # the last error that ended an epoch
    step: int = 0
    scored_position: float = 0.0
    is_evaluated: bool = False  # whether the last epoch was
    is_complete: bool = False  # whether training has ended without an error
    rate: float = 1.0  # halved by every rollback
    is_cut: bool = False  # whether any rank was interrupted; the ranks exchange this in each step

    @property
    def n_batches(self) -> int:
        return math.ceil(self.source.n_rows / self.batch_size)

    @property
    def n_steps(self) -> int:
        """Number of steps, unless a deadline or a stopping rule ends training earlier."""
        return self.max_iter * self.n_batches

    def position(self) -> float:
        """Return the position in the schedule, in steps."""
        return self.pace.position(self.step, self.n_steps)

    @property
    def group(self) -> Group:
        """The processes that take the same steps, each on its own rows."""
        return self.source.group

    def fit_loop(self) -> None:
        """Run epochs until the budget, a stopping rule, a callback or Ctrl-C ends them."""
        if self.history.n_iter == 0:
            self.score_start()
        self.safe = self.state_dict()
        while self.history.status == "running":
            if self.step >= self.n_steps:
                self.history.status = "max_iter"
            elif self.has_converged():
                is_stuck = getattr(self.optimizer, "is_stuck", False)
                self.history.status = "stuck" if is_stuck else "converged"
            elif self.pace.is_late(self.step):
                self.history.status = "deadline"
            elif not self.run_sound_epoch():
                self.roll_back()
            elif self.is_stopped():
                self.history.status = "callback"
            elif self.group.flag(was_interrupted()):  # before this run, which then has one epoch
                share_interrupt()
                self.interrupt()
        self.score_last()

    def is_stopped(self) -> bool:
        """Whether an observer on any rank stops training; its error is raised on all ranks."""
        stops: list[bool] = []
        with agreed(self.group):
            stops += [observer.on_epoch(self) for observer in self.observers]
        return self.group.flag(any(stops))

    def is_due(self) -> bool:
        """Whether to evaluate and save after this epoch."""
        n_iter = self.history.n_iter
        if n_iter % self.evaluate_every == 0 or n_iter == self.max_iter:
            return True
        if self.pace.is_late(self.step):
            return True
        return self.position() - self.scored_position >= self.evaluate_every * self.n_batches

    def run_sound_epoch(self) -> bool:
        """Run an epoch and its evaluation; return whether everything is finite afterwards."""
        self.failure = None
        try:
            with self.objective.undisturbed(self.source.device):
                loss, n = self.run_epoch(), self.history.n_iter + 1
                loss = told_loss(self.objective, loss, self.group, n)
                if not math.isfinite(loss):
                    return False
                self.history.loss_curve.append(loss)
                self.is_evaluated = self.is_due()
                if self.is_evaluated and not self.score():
                    return False
        except NotPositiveDefiniteError as error:
            self.failure = error
            return False
        except torch.linalg.LinAlgError:  # which names no causes
            return False
        if self.is_evaluated:
            self.safe = self.state_dict()
        return True

    def roll_back(self) -> None:
        """Return to the last sound state, with half the learning rate."""
        rate, n_rollbacks = 0.5 * self.rate, self.history.n_rollbacks + 1
        if n_rollbacks > MAX_ROLLBACKS:
            causes = (
                "Likely causes: inputs or a target on an extreme scale (use StandardScaler), a "
                f"learning_rate_init that is far too large, or {NO_COVARIANCE}."
            )
            raise NotPositiveDefiniteError(
                f"Training diverged {n_rollbacks} times, the last at {2 * rate:.1e} times "
                f"learning_rate_init. {self.failure or causes}"
            ) from self.failure
        state = self.generator.get_state()  # keep it: other minibatches may succeed
        self.load_state_dict(self.safe)
        self.generator.set_state(state)
        self.rate, self.history.n_rollbacks = rate, n_rollbacks

    def run_epoch(self) -> float:
        """Pass over a permutation of the rows, as time allows; return the mean loss per row."""
        self.objective.train()
        if self.objective.has_user_module:
            # for the epoch's stochastic layers
            seed_rng(self.source.device, drawn_seed(self.generator))
        n_seen, total = 0, torch.zeros((), dtype=torch.float64, device=self.source.device)
        h = self.history
        number = h.n_iter + self.max_iter * h.n_rollbacks  # a roll-back changes the minibatches
        for X, rows in self.source.epoch(number, self.n_batches, self.generator):
            if not rows.n_all:  # by chance, no rank has a row
                self.step += 1
                continue
            total += self.train_step(X, rows) * rows.n_all
            n_seen += rows.n_all
            for observer in self.observers:
                observer.on_step(self)
            if self.pace.is_late(self.step) or self.is_cut:
                break
        self.objective.epoch_end()
        return self.objective.epoch_loss(float(total) / n_seen)

    def train_step(self, X: Tensor, rows: Rows) -> Tensor:
        if self.optimizer is None:
            loss = self.objective(X, rows, step_generator(self.group, self.generator)).detach()
            mark = own_mark(self.group, loss)
            self.group.average_(loss, *mark)
            self.is_cut |= any(mark)
        else:
            factor = self.rate * self.schedule(self.position(), self.n_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = factor * group["initial_lr"]
            step = cast(Callable[..., Tensor], self.optimizer.step)  # torch's type says float
            loss = step(lambda: self.loss_with_gradient(X, rows))
        self.objective.step_end()
        self.step += 1
        return loss.detach()

    def loss_with_gradient(self, X: Tensor, rows: Rows) -> Tensor:
        """Compute the loss and its gradient; an optimiser may call this several times a step."""
        self.objective.zero_grad()
        loss = self.objective(X, rows, step_generator(self.group, self.generator))
        loss.backward()
        loss = loss.detach()
        mark = own_mark(self.group, loss)
        average_gradients(self.group, self.objective.parameters(), loss, *mark)
        self.is_cut |= any(mark)
        return loss

    def score(self) -> bool:
        """Score the current iterate (lower is better), keep the best, and tell if it is finite."""
        self.scored_position = self.position()
        if self.evaluate is None:
            return True
        self.objective.eval()
        score = self.group.first(self.evaluate())
        self.pace.forget()  # this took time
        if not math.isfinite(score):
            return False
        if self.history.record(score, self.tol):
            self.best_state = copy_of(self.objective.state_dict())
        return True

    def score_last(self) -> None:
        """Score the current iterate if it is sound and has no score yet."""
        is_lost = self.group.flag(not self.objective.is_finite())
        if is_lost or self.history.n_iter in self.history.scored_epochs:
            return
        undisturbed = self.objective.undisturbed(self.source.device)
        with undisturbed, contextlib.suppress(NotPositiveDefiniteError):
            self.score()

    def score_start(self) -> None:
        """Score the start, so that :meth:`choose` can return to it if training only does harm."""
        if self.evaluate is None:
            return
        start = copy_of(self.objective.state_dict())
        self.objective.eval()
        with self.objective.undisturbed(self.source.device), self.pace.reserved():
            self.history.start_score = self.group.first(self.evaluate())
        self.start_state = copy_of(self.objective.state_dict())
        self.objective.load_state_dict(start)

    def choose(self) -> None:
        """Set the objective to its best iterate, or to the start if that is far better."""
        h = self.history
        if self.start_state is not None and h.start_score < h.best_score - HARM:
            h.best_score, h.best_iter, self.best_state = h.start_score, 0, self.start_state
        if self.best_state is not None:
            self.objective.load_state_dict(self.best_state)
        self.objective.eval()

    def has_converged(self) -> bool:
        """Whether scores, the objective or the optimiser report that training should end."""
        h, objective = self.history, self.objective
        is_scored = self.evaluate is not None
        if h.stands_still(self.n_iter_no_change, self.tol, is_scored):
            return True
        if h.overfits(objective.overfit_patience):
            return True
        found = objective.is_still and getattr(self.optimizer, "converged", False)
        return found or objective.has_converged()

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs to continue to the bitwise same result."""
        state = {
            "objective": self.objective.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "history": vars(self.history),
        }
        return {
            **copy_of(state),
            "start_state": self.start_state,
            "best_state": self.best_state,
            "step": self.step,
            "rate": self.rate,
            "elapsed": self.pace.elapsed(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        if self.optimizer is not None:
            load_moments(self.optimizer, state["optimizer"])
        self.history = History(**copy_of(state["history"]))
        self.start_state = state["start_state"]
        self.best_state = state["best_state"]
        self.step = state["step"]
        self.scored_position = self.position()
        self.rate = state["rate"]
        self.generator.set_state(state["generator"].cpu())

    def interrupt(self) -> None:
        """After Ctrl-C, continue with the better of the best and the current iterate."""
        tell(
            f"Training was interrupted after {self.history.n_iter} of {self.max_iter} epochs; "
            "the best iterate so far is kept."
        )
        if self.group.flag(not self.objective.is_finite()):
            self.load_state_dict(self.safe)
        self.score_last()
        self.history.status = "interrupted"


def train(
    objective: Objective,
    source: Table,
    *,
    optimizer: Optimizer | None,
    deadline: Deadline | None = None,
    **options: Any,
) -> History:
    """Minimise an objective over minibatches, in place.

    Parameters
    ----------
    objective : Objective
        The objective. Afterwards it is at the best iterate if `evaluate` is given, or else at the
        last one.
    source : Table
        Makes the minibatches of each epoch, on the device of training.
    optimizer : Optimizer or None
        From :func:`make_optimizer`, over the objective's parameter groups; None if it has none.
    deadline : Deadline or None, default=None
        Time at which training ends. If time is short, the schedule goes faster, so that it ends by
        then. A resumed run has the seconds that were left. At least twenty steps are made.
    **options
        The remaining fields of :class:`Trainer`: `max_iter`, `batch_size`, `schedule`,
        `generator`, and optionally `evaluate`, `evaluate_every`, `n_iter_no_change`, `tol`,
        `observers`.

    Returns
    -------
    history : History
        Loss per epoch, scores, the best iteration and why training ended.

    Raises
    ------
    NotPositiveDefiniteError
        If training keeps diverging after ten halvings of the learning rate.
    """
    pace = Pace(None if deadline is None else Allowance(deadline), source.group)
    trainer = Trainer(objective, optimizer, source, pace=pace, **options)
    try:
        for observer in trainer.observers:
            observer.on_start(trainer)
        try:
            with interruptible():
                try:
                    trainer.fit_loop()
                except NotPositiveDefiniteError as error:
                    if not any([o.on_failure(trainer, error) for o in trainer.observers]):
                        raise
                    trainer.fit_loop()
        except KeyboardInterrupt:
            if objective.streams and not trainer.step:
                raise  # there is nothing new to keep
            if source.group.size > 1 or not keeps_best():  # other ranks would not know of it
                raise
            trainer.interrupt()
        trainer.history.n_steps = trainer.step
        trainer.history.core_share = pace.core_share()
        trainer.choose()
        trainer.is_complete = True
    finally:
        for observer in trainer.observers:
            observer.on_end(trainer)
    return trainer.history


# ---- what ranks exchange -------------------------------------------------------------------------


def told_loss(objective: Objective, loss: float, group: Group, n_epochs: int) -> float:
    """Return the loss that all ranks use; NaN if any rank's parameters are not finite.

    Raises
    ------
    RuntimeError
        On every rank, if their parameters differ by more than rounding.
    """
    is_sound = math.isfinite(loss) and objective.is_finite()
    if group.size == 1:
        return loss if is_sound else math.nan
    sizes = [each.detach().double().abs().sum().cpu() for each in objective.parameters()]
    size = torch.stack([torch.tensor(loss, dtype=torch.float64, device=HOST), *sizes])
    is_lost = torch.tensor([not is_sound], dtype=torch.float64, device=HOST)
    group.max_(is_lost, most := size.clone(), least := -size)
    if is_lost:
        return math.nan
    if (most + least > APART * (1.0 + most))[1:].any():
        raise RuntimeError(
            f"Parameters differ between ranks after {n_epochs} epochs, so the ranks did not "
            "compute the same. Start all with the same versions of Python, torch and skgpstoch, "
            "and let your own modules draw random numbers from torch's global generator only."
        )
    return float(most[0])


def own_mark(group: Group, loss: Tensor) -> list[Tensor]:
    """Return the mark that tells other ranks of an interrupt; empty without other ranks."""
    return [] if group.size == 1 else [torch.full_like(loss, is_marked())]


def step_generator(group: Group, generator: torch.Generator) -> torch.Generator:
    """Return a generator for the step that starts in the same state on all ranks."""
    if group is ALONE:
        return generator
    return torch.Generator(generator.device).manual_seed(drawn_seed(generator))


def drawn_seed(generator: torch.Generator) -> int:
    """Return a seed for another generator."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
