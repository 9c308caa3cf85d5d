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
    n_given: int  # rows before equal ones were merged, or what they count for if that is more
    n_features: int = 1
    has_known_noise: bool = False  # y_std is given
    streams: bool = False  # the rows are a chunk of more


@dataclass(frozen=True)
class Folds:
    """Rows that are held out: the first ones, in random order.

    Parameters
    ----------
    n_folds : int, default=1
        K disjoint sets, one for each member of an ensemble.
    size : int, default=0
        Rows in each.
    n_unseen : int, default=0
        Rows before them that are in none, and not trained on at all.
    """

    n_folds: int = 1
    size: int = 0
    n_unseen: int = 0

    @property
    def n_untrained(self) -> int:
        """Rows that are not trained on at all; of several folds, other members see each."""
        return self.n_unseen + (self.size if self.n_folds == 1 else 0)

    @classmethod
    def of(cls, n_rows: int, fraction: float, n_folds: int = 1) -> Folds:
        """Return folds of a fraction of the rows each."""
        most = n_rows // max(2, n_folds)
        return cls(n_folds, min(max(1, round(fraction * n_rows)), most))

    def numbers(self, n_rows: int, device: torch.device) -> Tensor | None:
        """Return the fold of each row, (N,): −2 for those unseen, then folds, then −1; or None."""
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
    """What a fit does: "auto" is decided, once."""

    solver: str
    dtype: str  # of the data
    max_iter: int  # epochs
    batch_size: int
    schedule: Schedule = constant
    patience: float = math.inf  # epochs without an improvement after which to stop
    tol: float = 0.0  # what counts as one, nats per row
    stops_when_level: bool = False  # or when losses of `patience` epochs differ by `tol` at most
    holds_out: bool = False
    evaluates: bool = False  # whether iterates are scored; without scores the last one is kept
    folds: Folds = field(default=Folds())
    n_inducing: int = 0  # M, or the number of basis functions
    n_orthogonal: int = 0  # M₂
    n_components: int = 0  # random Fourier features
    beta: float = 1.0
    rate: float = 1.0  # of learning
    shuffles: bool = True  # whether rows come in random order, or as they are
    n_restarts: int = 0  # trainings from other hyper-parameters, of which the best is kept
    window_rows: float = 0.0  # that running statistics look back on at least
    is_exact: bool = False  # whether the bound is the exact evidence: all rows are points
    has_all_rows: bool = False  # whether all rows are points, of another likelihood
    start_rows: int = 0  # training starts at the optimum of their exact evidence; 0: of none


def within_sample(plan: Plan, n_sample: int) -> Plan:
    """Return a plan that holds out at most half of so many rows, which are all that may be."""
    folds = plan.folds
    if 2 * (folds.n_unseen + folds.n_folds * folds.size) <= n_sample:
        return plan
    n_unseen = min(folds.n_unseen, n_sample // 20)
    size = min(folds.size, (n_sample // 2 - n_unseen) // folds.n_folds)
    return replace(plan, folds=replace(folds, size=size, n_unseen=n_unseen))


def epochs(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return as many epochs as make this number of steps."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))
