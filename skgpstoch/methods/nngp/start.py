"""Where NNGP starts: which smoothness suits the rows, and about which hyper-parameters.

Kernels of different smoothness ν are each trained for a few steps, with few neighbours. Their
log densities of the same rows, each given earlier rows, are comparable, because their sums are
densities of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller

import torch
from torch import Tensor

from ...data.rows import Rows
from ...objectives.neighbours import NeighbourObjective
from ...training.loop import train
from ...training.optimizers import SCHEDULES, make_optimizer
from ...training.recipes.plan import epochs
from ...training.tables import InMemory

SMOOTHNESS = (0.5, 1.5, 2.5)
"""*Measured* (NLPD with ν = 1/2, 3/2, 5/2): protein .338, .471, .511; bike −7.86, −8.17, −7.86;
kin40k −.51, −.95, −1.05."""

ROUNDS = ((3, 40), (2, 80))
"""How many kernels are trained for how many steps. *Measured*: after 60 steps ν = 5/2 leads on
bike, because the noise has far to fall; after 120 it is ν = 3/2, as at the end."""


def likeliest(
    makers: Sequence[Callable[[], NeighbourObjective]],
    X: Tensor,
    rows: Rows,
    rate: float,
    batch_size: int,
    generator: torch.Generator,
) -> NeighbourObjective:
    """Train an objective of each maker for a few steps, and return the one that fits best."""
    left = [make() for make in makers]
    for n_kept, n_steps in ROUNDS:
        left = left[:n_kept]
        for objective in left:
            train_briefly(objective, X, rows, rate, batch_size, generator, n_steps)
        left.sort(key=methodcaller("trial_loss"))
    for objective in left:
        objective.detach_rows()
    return left[0]


def train_briefly(
    objective: NeighbourObjective,
    X: Tensor,
    rows: Rows,
    rate: float,
    batch_size: int,
    generator: torch.Generator,
    n_steps: int,
) -> None:
    """Train an objective for so many steps."""
    table = InMemory(X, rows).trained(0, objective.minibatch_source)
    train(
        objective,
        table,
        optimizer=make_optimizer("adam", objective.param_groups(), rate, objective.step_end),
        max_iter=epochs(n_steps, table.n_rows, batch_size),
        batch_size=batch_size,
        schedule=SCHEDULES["one-cycle"],
        generator=generator,
    )
