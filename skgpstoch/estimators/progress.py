"""Show a line of progress once a fit takes a while."""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from ..data.deadline import Clock
from ..data.groups import current
from ..training.loop import Observer, Trainer

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


def progress_of(estimator: Any) -> ProgressLine | None:
    """Return the line of an estimator's fit, or None if nobody wants it or could read it."""
    is_read = current().size == 1 and (is_terminal(sys.stderr) or is_notebook())
    if estimator.verbose != "auto" or not is_read or multiprocessing.parent_process() is not None:
        return None
    return ProgressLine(sys.stderr, type(estimator).__name__)


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


def is_verbose(verbose: int | str) -> bool:
    """Tell whether each epoch is printed."""
    return verbose != "auto" and bool(verbose)


def is_terminal(stream: Any) -> bool:
    """Tell whether somebody may read a stream while it is written; there may be none."""
    return stream is not None and stream.isatty()


def is_notebook() -> bool:
    """Tell whether this is an IPython kernel, whose streams are no terminals."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return hasattr(shell, "kernel")
