"""L-BFGS within bounds, for objectives on all rows.

Bertsekas, "Projected Newton methods for optimization problems with simple constraints", SIAM J.
Control Optim. 20, 1982: parameters that are at a bound, and would cross it, stay there. All others
take a quasi-Newton step; each trial point of the line search is projected into the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..maths.linalg import NO_COVARIANCE


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of torch's optimisers without its wrappers for torch.compile."""
    return getattr(method, "__wrapped__", method)


class LightOptimizer(Optimizer):
    """An optimiser that does not import torch._dynamo.

    That import takes 1.4 to 3 s, and adds a warning filter.
    """

    add_param_group = unwrapped(Optimizer.add_param_group)
    state_dict = unwrapped(Optimizer.state_dict)
    load_state_dict = unwrapped(Optimizer.load_state_dict)


ARMIJO = 1e-4  # share of the decrease predicted by the slope that a step must achieve
WOLFE = 0.9  # share of the starting slope below which the slope must fall
GROWTH = 4.0  # factor of a step if the slope is still steep
FIRST = 0.25  # sum of the moves of a first step; a longer one may leap over the nearest minimum
LONGEST_FIRST = 4.0  # sum of moves to which a first step may grow
NARROW_BOUNDS = 1e-3  # width of a bracket, relative to the step, that is narrow enough
SHORTEST, LONGEST = 0.1, 0.9  # a bracket is divided between these shares of its width
TRIALS = 25
STUCK = "ended near its start, where the loss is steep but no step lowers it."
WHY_STUCK = f"Likely causes: inputs or a target on an extreme scale, or {NO_COVARIANCE}."
LOSS_ROUNDING = 1e-12  # relative difference of losses that may be rounding
CLIFF = 1e-2  # decrease, relative to the loss, that a slope promises in vain only at a cliff
PROGRESS = 0.1  # the same, of all steps; where there is no noise, the loss ends in rounding
CURVATURE = 1e-10  # least sᵀy of a useful pair, in units of ‖s‖‖y‖, so that units cancel


class Trial(NamedTuple):
    """A point of a line search: how far, its value, and the slope along the direction."""

    length: float
    value: float
    slope: float


class BoundedLBFGS:
    """L-BFGS that evaluates only points within bounds.

    Parameters
    ----------
    params : list of nn.Parameter
        Parameters, all of one dtype and on one device.
    project : callable
        Brings the parameters, in place, to the nearest point within bounds.
    max_iter : int, default=10
        Most iterations in a call of :meth:`minimise`.
    memory : int, default=20
        Number of pairs (step, change of the gradient) from which the curvature is estimated.
    tol : float, default=1e-9
        Stop when an iteration gains less than this, relative to the value.
    gtol : float, default=0.0
        Stop when no free parameter has a larger slope.
    flat : float, default=0.0
        Sum of slopes below which the first step is shorter; 0 if the loss has no known units.
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
        self.converged = False  # whether the last call ended before `max_iter`
        self.is_stuck = False  # whether it did so near the start, though the slope promises more
        self.start = float("nan")  # loss before the first call
        self.loss = float("inf")  # final loss of the last call
        self.pairs: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def minimise(self, closure: Callable[[], Tensor]) -> Tensor:
        """Make up to `max_iter` iterations; return the loss before them."""
        evaluate = torch.enable_grad()(closure)
        self.project()
        x, pairs = self.position(), self.pairs
        first = value = evaluate()
        self.start = float(first) if math.isnan(self.start) else self.start
        slope = self.gradient()
        self.converged = self.is_stuck = False
        for _ in range(self.max_iter):
            free = self.free(x, slope)
            steepest = float((slope * free).abs().max())
            if steepest <= self.gtol or not math.isfinite(steepest):
                self.converged = math.isfinite(steepest)
                break
            direction = -quasi_newton(slope, pairs, free)
            longest = float("inf")
            if not pairs:  # scales are unknown, and the loss's units tell nothing
                steepness = float(direction.abs().sum())
                direction *= FIRST / max(steepness, self.flat)
                longest = (LONGEST_FIRST if steepness > self.flat else 1.0) / FIRST
            found = self.search(evaluate, x, value, slope, direction, longest)
            if found is None and pairs:
                pairs.clear()  # with the same curvature it would fail again
                continue
            at, reached, next_slope = (x, value, slope) if found is None else found
            remember(pairs, at - x, next_slope - slope, self.memory)
            size = max(1.0, abs(float(reached)))
            if float(value - reached) <= self.tol * size:  # at a minimum, or a cliff
                promised = float(slope @ (x - self.move_to(x + direction)))
                is_near = self.start - float(reached) < PROGRESS * size
                self.converged, self.is_stuck = True, is_near and promised > CLIFF * size
                x, value = at, reached
                break
            x, value, slope = at, reached, next_slope
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
        """Return a point along the projected direction that fulfils Wolfe's conditions.

        Return its value and gradient too; return None if there is no such point. The step grows
        while the slope along the direction remains steep. Once a step was too long, the bracket
        shrinks by cubic interpolation.
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
        """Return 1 for parameters that a step down the slope moves, 0 for those held by bounds."""
        moved = self.move_to(x - slope) != x
        return (moved | (slope == 0.0)).to(x)

    def position(self) -> Tensor:
        """Return all parameters as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def move_to(self, x: Tensor) -> Tensor:
        """Set the parameters to the nearest point within bounds, and return that point."""
        stop = 0
        for p in self.params:
            start, stop = stop, stop + p.numel()
            p.copy_(x[start:stop].view_as(p))
        self.project()
        return self.position()

    def gradient(self) -> Tensor:
        """Return the gradient by all parameters as one vector."""
        zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)
        return torch.cat([g.reshape(-1) for g in zeros])


class ProjectedLBFGS(BoundedLBFGS, LightOptimizer):
    """:class:`BoundedLBFGS` as a torch optimiser, with the pairs in its state."""

    def __init__(
        self, params: list[nn.Parameter], project: Callable[[], None], **options: Any
    ) -> None:
        LightOptimizer.__init__(self, [{"params": params, "initial_lr": 1.0, "lr": 1.0}], {})
        BoundedLBFGS.__init__(self, params, project, **options)
        self.state[params[0]]["pairs"] = self.pairs

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Make up to `max_iter` iterations; return the loss before them."""
        return self.minimise(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state as torch does, and turn the pairs into tuples again."""
        super().load_state_dict(state_dict)
        state = self.state[self.params[0]]
        self.pairs = state["pairs"] = [tuple(pair) for pair in state.get("pairs", [])]


def quasi_newton(
    slope: Tensor, pairs: list[tuple[Tensor, Tensor]], free: Tensor | float = 1.0
) -> Tensor:
    """Return H g by the two-loop recursion (Nocedal & Wright, algorithm 7.4), H from pairs (s, y).

    Only the entries of g, s and y where `free` is 1 count.
    H g is a linear combination of the vectors s, y and g. Its coefficients follow from their inner
    products, so the device is synchronised only once (Chen, Wang & Zhou, "Large-scale L-BFGS using
    MapReduce", NIPS 2014).
    """
    m = len(pairs)
    columns = [*(s for s, _ in pairs), *(y for _, y in pairs), slope]
    basis = torch.stack(columns).mul_(free)  # (2m + 1, D)
    G = (basis.double() @ basis.double().mT).cpu().numpy()
    useful = [i for i in range(m) if is_of_use(G[i, m + i], G[i, i], G[m + i, m + i])]
    share, weights = np.zeros(2 * m + 1), np.zeros(m)  # share: coefficients of H g in the basis
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
    """Minimise the cubic with both ends' values and slopes (Nocedal & Wright, eq. 3.59)."""
    width = high.length - low.length
    share = SHORTEST
    if math.isfinite(high.value) and math.isfinite(high.slope):
        d_1 = low.slope + high.slope - 3.0 * (high.value - low.value) / width
        d_2 = math.sqrt(max(d_1 * d_1 - low.slope * high.slope, 0.0))
        bottom = high.slope - low.slope + 2.0 * d_2
        share = 1.0 - (high.slope + d_2 - d_1) / bottom if bottom > 0.0 else 0.5
    return low.length + width * min(max(share, SHORTEST), LONGEST)


def is_of_use(sy: float, ss: float, yy: float) -> bool:
    """Tell from inner products whether a pair has positive curvature beyond rounding."""
    return sy > CURVATURE * math.sqrt(ss) * math.sqrt(yy)


def remember(pairs: list[tuple[Tensor, Tensor]], s: Tensor, y: Tensor, memory: int) -> None:
    """Add a pair if it is of use; forget the oldest if there are more than `memory`."""
    if is_of_use(*torch.stack([s @ y, s @ s, y @ y]).tolist()):
        pairs.append((s, y))
        del pairs[:-memory]
