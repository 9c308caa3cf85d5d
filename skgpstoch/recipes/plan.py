"""Plans: what "auto" means for a given number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.rows import UNSEEN
from ..training.optimizers import Schedule, constant


class Sizes(NamedTuple):
    """All that a plan may know of the data."""

    n_rows: int  # distinct rows
    n_given: int  # rows before equal rows were merged, or their total weight if that is more
    n_features: int = 1
    has_known_noise: bool = False  # y_std is given
    streams: bool = False  # the rows are one chunk of a stream


@dataclass(frozen=True)
class Folds:
    """Rows that are held out: the first ones, in random order.

    Parameters
    ----------
    n_folds : int, default=1
        Number K of disjoint folds, one for each member of an ensemble.
    size : int, default=0
        Number of rows in each fold.
    n_unseen : int, default=0
        Number of rows before the folds. They are in no fold, and no member is trained on them.
    """

    n_folds: int = 1
    size: int = 0
    n_unseen: int = 0

    @property
    def n_untrained(self) -> int:
        """Number of rows that no member is trained on; with K > 1, others train on each fold."""
        return self.n_unseen + (self.size if self.n_folds == 1 else 0)

    @classmethod
    def of(cls, n_rows: int, fraction: float, n_folds: int = 1) -> Folds:
        """Return folds that each have this fraction of the rows."""
        most = n_rows // max(2, n_folds)
        return cls(n_folds, min(max(1, round(fraction * n_rows)), most))

    def numbers(self, n_rows: int, device: torch.device) -> Tensor | None:
        """Return the fold of each row, (N,), −2 for unseen rows, −1 for the rest; None if none."""
        if not self.size:
            return None
        fold = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
        fold[: self.n_unseen] = UNSEEN
        for k in range(self.n_folds):
            start = self.n_unseen + k * self.size
            fold[start : start + self.size] = k
        return fold


@dataclass(frozen=True)
class Plan:
    """The settings of a fit, after every "auto" has been decided."""

    solver: str
    dtype: str  # floating-point type of the tensors
    max_iter: int  # epochs
    batch_size: int
    schedule: Schedule = constant
    patience: float = math.inf  # epochs without an improvement after which to stop
    tol: float = 0.0  # least improvement that counts, nats per row
    holds_out: bool = False
    evaluates: bool = False  # whether epochs are scored to keep the best; else the last is kept
    folds: Folds = field(default=Folds())
    n_inducing: int = 0  # M, or the number of basis functions
    n_orthogonal: int = 0  # M₂
    n_components: int = 0  # random Fourier features
    beta: float = 1.0
    rate: float = 1.0  # learning rate
    shuffles: bool = True  # whether rows are shuffled
    n_restarts: int = 0  # additional runs from other hyper-parameters; the best run is kept
    window_rows: float = 0.0  # least number of rows that running statistics average over
    all_rows: str = ""  # if all rows are points: "exact" evidence, or "sites" of each row
    start_rows: int = 0  # rows whose exact evidence is maximised first; 0 for none


def within_sample(plan: Plan, n_sample: int) -> Plan:
    """Return a plan that holds out at most half of the `n_sample` rows in memory."""
    folds = plan.folds
    if 2 * (folds.n_unseen + folds.n_folds * folds.size) <= n_sample:
        return plan
    n_unseen = min(folds.n_unseen, n_sample // 20)
    size = min(folds.size, (n_sample // 2 - n_unseen) // folds.n_folds)
    return replace(plan, folds=replace(folds, size=size, n_unseen=n_unseen))


def epochs(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return the number of epochs that make at least this number of steps."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))
