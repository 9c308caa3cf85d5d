"""L-BFGS within bounds, for objectives on all rows.

Bertsekas, "Projected Newton methods for optimization problems with simple constraints", SIAM J.
Control Optim. 20, 1982: parameters that are at a bound, and would leave it, stay; all others take a
quasi-Newton step, whose points are projected on the bounds along the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .light_optimizer import LightOptimizer

ARMIJO = 1e-4  # of the decrease that the slope promises, which a step has to keep
WOLFE = 0.9  # of the slope at the start, than which it has to be less steep at the end
GROWTH = 4.0  # of a step that is still steep
NARROW_BOUNDS = 1e-3  # of a step, which is not looked at any closer
SHORTEST, LONGEST = 0.1, 0.9  # of a bracket, where it is divided
TRIALS = 25
LOSS_ROUNDING = 1e-12  # of a loss, relative, which says nothing of which of two points is lower
CURVATURE = 1e-10  # sᵀy of a pair that is of use, in units of ‖s‖‖y‖, whatever those of the loss


class Trial(NamedTuple):
    """A point of a line search: how far, its value, and the slope along the direction."""

    length: float
    value: float
    slope: float


class BoundedLBFGS:
    """L-BFGS whose every point is within bounds.

    Parameters
    ----------
    params : list of nn.Parameter
        All of one type, on one device.
    project : callable
        Brings the parameters, in place, to the nearest point within bounds.
    max_iter : int, default=10
        Iterations of a step.
    memory : int, default=20
        Pairs of steps and changes of the gradient that curvature is known from.
    tol : float, default=1e-9
        Iterations end where they gain less, relative to the value.
    gtol : float, default=0.0
        Iterations end where no parameter that is free has a larger slope.
    flat : float, default=0.0
        Sum of slopes below which the first step is shorter, if the units of the loss are known.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        project: Callable[[], None],
        max_iter: int = 10,
        memory: int = 20,
        tol: float = 1e-9,
        gtol: float = 0.0,
        flat: float = 0.0,
    ) -> None:
        self.params = params
        self.project = project
        self.max_iter = max_iter
        self.memory = memory
        self.tol = tol
        self.gtol = gtol
        self.flat = flat
        self.converged = False  # the last step, before `max_iter`
        self.loss = float("inf")  # where it ended
        self.pairs: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def minimise(self, closure: Callable[[], Tensor]) -> Tensor:
        """Up to `max_iter` iterations; the loss before them."""
        evaluate = torch.enable_grad()(closure)
        self.project()
        x, pairs = self.position(), self.pairs
        first = value = evaluate()
        slope = self.gradient()
        self.converged = False
        for _ in range(self.max_iter):
            free = self.free(x, slope)
            steepest = float((slope * free).abs().max())
            if steepest <= self.gtol or not math.isfinite(steepest):
                self.converged = math.isfinite(steepest)
                break
            direction = -quasi_newton(slope, pairs, free)
            longest = float("inf")
            if not pairs:  # nothing is known of scales: steps of 1 to 4, whatever the loss's units
                steepness = float(direction.abs().sum())
                direction /= max(steepness, self.flat)
                longest = GROWTH if steepness > self.flat else 1.0
            found = self.search(evaluate, x, value, slope, direction, longest)
            if found is None and pairs:
                pairs.clear()  # with the same curvature it would fail again
                continue
            if found is None:  # at a minimum
                self.converged = True
                break
            at, reached, next_slope = found
            remember(pairs, at - x, next_slope - slope, self.memory)
            gain = float(value - reached)
            x, value, slope = at, reached, next_slope
            if gain <= self.tol * max(1.0, abs(float(value))):
                self.converged = True
                break
        self.move_to(x)
        self.loss = float(value)
        return first

    def search(
        self,
        evaluate: Callable[[], Tensor],
        x: Tensor,
        value: Tensor,
        slope: Tensor,
        direction: Tensor,
        longest: float,
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """A point along the projected direction that is lower by enough, and not steep any more.

        Its value and gradient too; or None. These are Wolfe's conditions: lengths grow while the
        slope along the direction stays what it was, and shrink by parabolas once one was too long.
        """
        found, length = None, 1.0
        first, start = float(slope @ direction), float(value)
        slack = LOSS_ROUNDING * max(1.0, abs(start))
        low, high = Trial(0.0, start, first), None  # the bracket
        for _ in range(TRIALS):
            target = x + length * direction
            at = self.move_to(target)
            promised = float(slope @ (at - x))
            if promised >= 0.0:
                break
            reached, gradient = evaluate(), self.gradient()
            along = float(torch.where(at == target, gradient * direction, 0.0).sum())
            trial = Trial(length, float(reached), along)
            enough = start + ARMIJO * promised + slack
            if trial.value <= min(enough, low.value + slack):
                found, low = (at, reached, gradient), trial
                if along >= WOLFE * first:
                    break
            else:
                high = trial
            if high is not None:
                if found is not None and high.length - low.length < NARROW_BOUNDS * low.length:
                    break
                length = between(low, high)
            elif length == longest:
                break
            else:
                length = min(GROWTH * length, longest)
        return found

    def free(self, x: Tensor, slope: Tensor) -> Tensor:
        """1 for parameters that a step down the slope moves, 0 for those that bounds hold."""
        moved = self.move_to(x - slope) != x
        return (moved | (slope == 0.0)).to(x)

    def position(self) -> Tensor:
        """All parameters, as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def move_to(self, x: Tensor) -> Tensor:
        """Set the parameters to the nearest point within bounds, which is returned."""
        stop = 0
        for p in self.params:
            start, stop = stop, stop + p.numel()
            p.copy_(x[start:stop].view_as(p))
        self.project()
        return self.position()

    def gradient(self) -> Tensor:
        """By all parameters, as one vector."""
        zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)
        return torch.cat([g.reshape(-1) for g in zeros])


class ProjectedLBFGS(BoundedLBFGS, LightOptimizer):
    """The same as an optimiser of torch, whose pairs are its state: as :class:`BoundedLBFGS`."""

    def __init__(
        self, params: list[nn.Parameter], project: Callable[[], None], **options: Any
    ) -> None:
        LightOptimizer.__init__(self, [{"params": params, "initial_lr": 1.0, "lr": 1.0}], {})
        BoundedLBFGS.__init__(self, params, project, **options)
        self.state[params[0]]["pairs"] = self.pairs

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Up to `max_iter` iterations; the loss before them."""
        return self.minimise(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, with pairs as tuples again."""
        super().load_state_dict(state_dict)
        state = self.state[self.params[0]]
        self.pairs = state["pairs"] = [tuple(pair) for pair in state.get("pairs", [])]


def quasi_newton(
    slope: Tensor, pairs: list[tuple[Tensor, Tensor]], free: Tensor | float = 1.0
) -> Tensor:
    """H g by the two-loop recursion (Nocedal & Wright, algorithm 7.4), H from pairs (s, y).

    Of g, s and y what is `free` counts, 1 or 0 for each parameter.
    All that it makes is in the span of s, y and g, so that their inner products say how much of
    each H g has, and the device is asked once (Chen, Wang & Zhou, "Large-scale L-BFGS using
    MapReduce", NIPS 2014).
    """
    m = len(pairs)
    columns = [*(s for s, _ in pairs), *(y for _, y in pairs), slope]
    basis = torch.stack(columns).mul_(free)  # (2m + 1, D)
    G = (basis.double() @ basis.double().mT).cpu().numpy()
    useful = [i for i in range(m) if is_of_use(G[i, m + i], G[i, i], G[m + i, m + i])]
    share, weights = np.zeros(2 * m + 1), np.zeros(m)  # of the basis in what becomes H g
    share[-1] = 1.0
    for i in reversed(useful):
        weights[i] = G[i] @ share / G[i, m + i]
        share[m + i] -= weights[i]
    for i in useful[-1:]:
        share *= G[i, m + i] / G[m + i, m + i]
    for i in useful:
        share[i] += weights[i] - G[m + i] @ share / G[i, m + i]
    return torch.from_numpy(share).to(basis) @ basis


def between(low: Trial, high: Trial) -> float:
    """Where a cubic with both ends' values and slopes is lowest (Nocedal & Wright, eq. 3.59)."""
    width = high.length - low.length
    share = SHORTEST
    if math.isfinite(high.value) and math.isfinite(high.slope):
        d_1 = low.slope + high.slope - 3.0 * (high.value - low.value) / width
        d_2 = math.sqrt(max(d_1 * d_1 - low.slope * high.slope, 0.0))
        bottom = high.slope - low.slope + 2.0 * d_2
        share = 1.0 - (high.slope + d_2 - d_1) / bottom if bottom > 0.0 else 0.5
    return low.length + width * min(max(share, SHORTEST), LONGEST)


def is_of_use(sy: float, ss: float, yy: float) -> bool:
    """Tell whether a pair says something of curvature, from inner products."""
    return sy > CURVATURE * math.sqrt(ss) * math.sqrt(yy)


def remember(pairs: list[tuple[Tensor, Tensor]], s: Tensor, y: Tensor, memory: int) -> None:
    """Add a pair that says something of curvature; forget the oldest of too many."""
    if is_of_use(*torch.stack([s @ y, s @ s, y @ y]).tolist()):
        pairs.append((s, y))
        del pairs[:-memory]
