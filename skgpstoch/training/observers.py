"""What watches every run: epochs that are printed, a line of progress, and checkpoints."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
from torch import Tensor

from ..data.deadline import Clock
from ..data.groups import current
from ..data.messages import warn
from .checkpoint import AnyCheckpoint, generator_can_be_in, optimizer_can_be_in, same_form, summary
from .history import History
from .loop import Observer, Trainer

COUNTED = {"folds", "n_rows", "share"}  # tensors of objectives that follow from the rows


class Printed(Observer):
    """Prints the loss and the score of each epoch, on rank 0."""

    def on_epoch(self, trainer: Trainer) -> bool:
        h = trainer.history
        if trainer.group.rank == 0:
            score = f", score {h.scores[-1]:.4f}" if h.scored_epochs[-1:] == [h.n_iter] else ""
            print(f"Epoch {h.n_iter}: loss {h.loss_curve[-1]:.4f}{score} (nats per row)")
        return False


@dataclass
class Saved(Observer):
    """Saves a run to a checkpoint wherever it is evaluated, and resumes it from there."""

    checkpoint: AnyCheckpoint
    start: dict[str, Any] | None = None  # where a resumed run would have started

    def on_start(self, trainer: Trainer) -> None:
        """Continue from the checkpoint if it is usable; otherwise change nothing."""
        start = trainer.state_dict()
        try:
            state = self.checkpoint.load(trainer.source.device)
            if state is None:
                return
            if not can_be_in(trainer, state):
                raise ValueError("it belongs to another fit")
            trainer.pace.resume(state["elapsed"])
            trainer.load_state_dict(state)
            is_sound = are_finite(start["objective"], state["objective"])
            if not (is_sound and trainer.objective.is_finite()):
                raise ValueError("its parameters are not finite")
            self.start, self.checkpoint.is_resumed = start, True
        except Exception as error:  # damaged files make torch raise many kinds of errors
            self.start_again(trainer, start, f"cannot be read ({summary(error)})")

    def on_failure(self, trainer: Trainer, error: Exception) -> bool:
        """Start a run again that has resumed, because its checkpoint may hold any numbers."""
        start, self.start = self.start, None
        if start is not None:
            self.start_again(trainer, start, f"led to a failure ({summary(error)})")
        return start is not None

    def start_again(self, trainer: Trainer, start: dict[str, Any], why: str) -> None:
        """Set a run to its start, and warn."""
        trainer.pace.resume(0.0)
        trainer.load_state_dict(start)
        self.checkpoint.is_resumed = False
        warn_of_start(self.checkpoint, why)

    def on_epoch(self, trainer: Trainer) -> bool:
        if trainer.is_evaluated and trainer.step == trainer.history.n_iter * trainer.n_batches:
            self.checkpoint.save(trainer.safe)
        return False

    def on_end(self, trainer: Trainer) -> None:
        """Remove the file of a complete run."""
        if trainer.is_complete and trainer.history.status != "interrupted":
            self.checkpoint.remove()


def warn_of_start(checkpoint: AnyCheckpoint, why: str) -> None:
    """Warn that a checkpoint is of no use."""
    warn(f"The checkpoint {checkpoint.path} {why}; the fit starts from the beginning.")


def can_be_in(trainer: Trainer, state: dict[str, Any]) -> bool:
    """Tell whether a state can belong to this run."""
    own, history = trainer.state_dict(), History(**state["history"])
    kept = [state[name] for name in ("start_state", "best_state")]
    fixed = ("objective", "step", "rate", "elapsed", "generator")
    return (
        all(same_form(own[name], state[name]) for name in fixed)
        and all(same_form(own["objective"], s) for s in kept if s is not None)
        and all(are_finite(own["objective"], s) for s in kept if s is not None)
        and (trainer.evaluate is not None or kept == [None, None])
        and all(same_counts(own["objective"], s) for s in (state["objective"], *kept) if s)
        and generator_can_be_in(state["generator"])
        and optimizer_can_be_in(trainer.optimizer, state["optimizer"])
        and history.is_sound()
        and state["step"] == history.n_iter * trainer.n_batches
        and state["rate"] == 0.5**history.n_rollbacks
        and 0.0 <= state["elapsed"] < math.inf
    )


def same_counts(own: dict[str, Any], state: dict[str, Any]) -> bool:
    """Tell whether an objective's state has what a fit counts before its first step."""
    return all(torch.allclose(own[name], state[name]) for name in COUNTED & own.keys())


def are_finite(own: dict[str, Any], state: dict[str, Any]) -> bool:
    """Tell whether numbers of an objective's state are finite, or infinite in a new fit as well.

    As the logarithm of a hyper-parameter that is fixed at 0 is.
    """
    pairs = ((own[name], v) for name, v in state.items() if isinstance(v, Tensor))
    return all(bool((v.isfinite() | (v == a)).all()) for a, v in pairs)


# ---- a line of progress --------------------------------------------------------------------------


SILENT_SECONDS = 10.0  # seconds before the line appears
PAUSE = 0.3  # seconds between two of its states


@dataclass
class ProgressLine(Observer):
    """Progress of a fit on one line, which is updated in place.

    Parameters
    ----------
    stream : file
        Where it is written.
    name : str
        Name of the estimator.
    clock : callable, default=time.monotonic
        Returns the time in seconds.
    """

    stream: TextIO
    name: str
    clock: Clock = time.monotonic
    began: float = field(init=False)
    due: float = field(init=False)
    width: int = 0  # of the text that is shown

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.due = self.began + SILENT_SECONDS

    def on_step(self, trainer: Trainer) -> None:
        """Show how far training is, unless the line is fresh."""
        now = self.clock()
        if now < self.due:
            return
        self.due = now + PAUSE
        self.write(f"{self.name}: {described(trainer, now - self.began)}")

    def write(self, text: str) -> None:
        """Show a text in place of the last one."""
        self.stream.write("\r" + text.ljust(self.width))
        self.stream.flush()
        self.width = len(text)

    def on_end(self, trainer: Trainer) -> None:
        """Erase the line."""
        if self.width:
            self.write("")
            self.stream.write("\r")
            self.stream.flush()


def shown(name: str, verbose: int | str) -> list[Observer]:
    """Return what shows a fit of this name: each epoch, a line if somebody reads it, or nothing."""
    if verbose != "auto":
        return [Printed()] if verbose else []
    is_read = current().size == 1 and (is_terminal(sys.stderr) or is_notebook())
    if not is_read or multiprocessing.parent_process() is not None:
        return []
    return [ProgressLine(sys.stderr, name)]


def described(trainer: Trainer, seconds: float) -> str:
    """Return epoch, steps, score and the seconds that are left."""
    h, n_steps = trainer.history, trainer.n_steps
    parts = [f"epoch {h.n_iter + 1}", f"step {trainer.step} of {n_steps}"]
    if h.scores:
        parts.append(f"score {h.scores[-1]:.4f} (nats per row)")
    left = seconds * (n_steps - trainer.step) / trainer.step
    if (allowance := trainer.pace.allowance) is not None:
        left = min(left, allowance.deadline.left())
    return ", ".join([*parts, f"{max(left, 0.0):.0f} s left"])


def is_terminal(stream: Any) -> bool:
    """Tell whether somebody may read a stream while it is written; there may be none."""
    return stream is not None and stream.isatty()


def is_notebook() -> bool:
    """Tell whether this is an IPython kernel, whose streams are no terminals."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return hasattr(shell, "kernel")
