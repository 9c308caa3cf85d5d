"""What watches every run: epochs that are printed, and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.messages import warn
from .checkpoint import AnyCheckpoint, summary
from .loop import Observer, Trainer


class Printed(Observer):
    """Prints the loss and the score of each epoch, on rank 0."""

    def on_epoch(self, trainer: Trainer) -> bool:
        h = trainer.history
        if trainer.group.rank == 0:
            score = f", score {h.scores[-1]:.4f}" if h.scored_epochs[-1:] == [h.n_iter] else ""
            print(f"Epoch {h.n_iter}: loss {h.loss_curve[-1]:.4f}{score} (nats per row)")
        return False


@dataclass(frozen=True)
class Saved(Observer):
    """Saves a run to a checkpoint wherever it is evaluated, and resumes it from there."""

    checkpoint: AnyCheckpoint

    def on_start(self, trainer: Trainer) -> None:
        """Continue from the checkpoint if it is usable; otherwise change nothing."""
        start = trainer.state_dict()
        try:
            state = self.checkpoint.load(trainer.source.device)
            if state is None:
                return
            if not trainer.can_be_in(state):
                raise ValueError("it belongs to another fit")
            trainer.pace.resume(state["elapsed"])
            trainer.load_state_dict(state)
            if not trainer.objective.is_finite():
                raise ValueError("its parameters are not finite")
        except Exception as error:  # damaged files make torch raise many kinds of errors
            trainer.pace.resume(0.0)
            trainer.load_state_dict(start)
            warn(
                f"The checkpoint {self.checkpoint.path} cannot be read ({summary(error)}); the "
                "fit starts from the beginning."
            )

    def on_epoch(self, trainer: Trainer) -> bool:
        if trainer.is_evaluated and trainer.step == trainer.history.n_iter * trainer.n_batches:
            self.checkpoint.save(trainer.safe)
        return False

    def on_end(self, trainer: Trainer) -> None:
        """Remove the file of a complete run."""
        if trainer.is_complete and trainer.history.status != "interrupted":
            self.checkpoint.remove()
