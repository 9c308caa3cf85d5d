"""The history of a training run, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MAX_ROLLBACKS = 10  # halvings of the learning rate after which training counts as diverged


@dataclass
class History:
    """The record of a training run, epoch by epoch."""

    loss_curve: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    scored_epochs: list[int] = field(default_factory=list)
    start_score: float = math.inf
    best_score: float = math.inf
    best_iter: int = 0
    improved_iter: int = 0
    n_rollbacks: int = 0
    n_steps: int = 0  # steps taken, set at the end
    status: str = "running"
    core_share: float = 1.0  # share of the time with a CPU core, in a run with a deadline

    @property
    def n_iter(self) -> int:
        """Number of epochs; a deadline may have cut the last one short."""
        return len(self.loss_curve)

    @property
    def kept_start(self) -> bool:
        """Whether the start was better than every epoch's iterate, so that it was kept."""
        return self.best_iter == 0 < self.n_iter and math.isfinite(self.best_score)

    def is_sound(self) -> bool:
        """Whether a resumed run can have this history; a file may hold anything."""
        numbers = [*self.loss_curve, *self.scores, self.start_score, self.best_score]
        epochs = [*self.scored_epochs, self.best_iter, self.improved_iter]
        return (
            all(isinstance(x, float) for x in numbers)
            and all(isinstance(i, int) and 0 <= i <= self.n_iter for i in epochs)
            and len(self.scores) == len(self.scored_epochs)
            and self.n_rollbacks in range(MAX_ROLLBACKS + 1)
            and self.status == "running"
        )
