"""Climb on the log densities of fixed rows, by L-BFGS: hyper-parameters are few."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...data.arrays import row_blocks
from ...data.deadline import Deadline, has_passed
from ...maths.linalg import NotPositiveDefiniteError
from ...models.posteriors.places import Observed
from ...objectives.neighbours import NOISE_RATE, NeighbourObjective
from ...training.exact_search import LBFGS, Limits, Search

BOX = 2.0  # how far a logarithm of a hyper-parameter, or the mean, may move in a climb
CLIMB_TOL, CLIMB_GTOL = 1e-5, 0.05  # relative gain of a step, and slope in nats, that end it
AT_A_TIME = 256  # rows at a time
LEAST_EVALUATIONS = 5


class NoTimeError(Exception):
    """There is no time for another step."""


class Climb:
    """The log density of fixed rows given neighbours, as a function of θ; blocks bound memory.

    Steps stay in a box about the start, because optima of few rows may be far away on a ridge.

    Parameters
    ----------
    objective : NeighbourObjective
        The objective, which the climb moves.
    X, seen : Tensor of shape (q, d) and Observed
        All places, and what was observed there.
    n_rows : int
        How many of them, evenly spread, count.
    deadline : Deadline or None
        When the climb ends.
    found : pair of Tensor or None, default=None
        The rows and their neighbours; None: found with the length-scales at the start.

    Attributes
    ----------
    gained : float
        By how many nats the last climb has raised their log density.
    """

    def __init__(
        self,
        objective: NeighbourObjective,
        X: Tensor,
        seen: Observed,
        n_rows: int,
        deadline: Deadline | None,
        found: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.objective, self.deadline = objective, deadline
        self.n_evaluated, self.first, self.gained = 0, 0.0, 0.0
        objective.use(X, seen)
        self.params = [p for p in objective.parameters() if p.requires_grad]
        self.i, self.N = objective.find(n_rows) if found is None else found

    def run(self, n_steps: int) -> float:
        """Make at most so many steps, and return the log evidence of the rows, per usual weight."""
        objective = self.objective.train()
        if not self.params:
            return 0.0
        search, start = Search(self, Limits(n_steps, CLIMB_TOL, CLIMB_GTOL)), self.theta
        try:
            search.run(LBFGS, start, self.box(start))
        except NoTimeError:
            objective.start_is_cut = True
        self.move_to(search.best.theta)
        self.gained = search.best.value - self.first
        value = search.best.value + objective.gain(self.i)
        objective.climb_end()
        return value

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient; −∞ and 0 if a covariance has no factor."""
        if self.n_evaluated >= LEAST_EVALUATIONS and has_passed(self.deadline):
            raise NoTimeError
        self.n_evaluated += 1
        self.move_to(theta)
        self.objective.zero_grad()
        value = 0.0
        try:
            for some in row_blocks(len(self.i), AT_A_TIME):
                i, N = self.i[some], self.N[some]
                loss = len(i) * self.objective.loss_at(i, N)
                loss.backward()
                value -= float(loss.detach())
        except NotPositiveDefiniteError:
            value = -math.inf
        if self.n_evaluated == 1:
            self.first = value
        if not math.isfinite(value):
            return -math.inf, np.zeros(len(theta))
        slopes = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self.params]
        return value, -flat(slopes)

    def settle_noise(self, others: Sequence[float]) -> float:
        """Move to another noise if the rows are likelier with it, and return their log density."""
        own = self.objective.likelihood.log_noise.detach().clone()
        tried = [own, *(torch.full_like(own, math.log(noise)) for noise in others)]
        values = []
        for log_noise in tried:
            self.set_noise(log_noise)
            values.append(self.value())
        self.set_noise(tried[int(np.argmax(values))])
        return max(values)

    def set_noise(self, log_noise: Tensor) -> None:
        """Set log σ², (P,), within its bounds."""
        self.objective.likelihood.log_noise.data.copy_(log_noise)
        self.objective.step_end()

    @torch.no_grad()
    def value(self) -> float:
        """Return the log density where the objective is; −∞ if a covariance has no factor."""
        parts = row_blocks(len(self.i), AT_A_TIME)
        try:
            return -sum(
                len(self.i[b]) * float(self.objective.loss_at(self.i[b], self.N[b])) for b in parts
            )
        except NotPositiveDefiniteError:
            return -math.inf

    @property
    def theta(self) -> np.ndarray:
        return flat(self.params)

    def move_to(self, theta: np.ndarray) -> None:
        """Set θ, within its bounds."""
        stop = 0
        for p in self.params:
            start, stop = stop, stop + p.numel()
            p.data.copy_(torch.from_numpy(theta[start:stop]).view_as(p))
        self.objective.step_end()

    def box(self, start: np.ndarray) -> np.ndarray:
        """Return the least and the largest θ, (D, 2), and stay at the start."""
        noise = {id(p) for p in self.objective.likelihood.parameters()}
        rates = [p.new_full(p.shape, NOISE_RATE if id(p) in noise else 1.0) for p in self.params]
        width, ends = BOX * flat(rates), []
        for end in (start - width, start + width):
            self.move_to(end)
            ends.append(self.theta)
        self.move_to(start)
        return np.stack(ends, 1)


def flat(tensors: Sequence[Tensor]) -> np.ndarray:
    """Return all numbers of tensors as one vector in float64."""
    parts = [t.detach().double().cpu().reshape(-1) for t in tensors]
    return torch.cat(parts).numpy() if parts else np.empty(0)
