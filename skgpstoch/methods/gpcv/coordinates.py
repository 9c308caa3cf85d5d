"""Steps of θ, a coordinate at a time at fixed weights z (Xu et al. 2019, eq. 12), relaxed.

At fixed z both parts of L_ρ hold θ, with the curvature H ≈ (2 + ρ)‖∂K z‖². The loss at the z that
suits θ has a curvature h some hundred times smaller. So Armijo's steps go only h/H of the way. No ρ
helps, because the loss alone has the curvature 2‖∂K z‖². Each step is therefore relaxed: multiplied
by ω ≈ H/h of its coordinate. The share of the slope that the step before left, s⁺/s = 1 − ωh/H,
tells how far off ω was:

    ω ← ω / (1 − s⁺/s),      starting at (2 + ρ)/2, as if the constraint did not hold θ.

A slope s at the best z is that of the loss, up to terms of the order 1/ρ, only if λ suits θ too.
Hence ρ is large, and slopes are taken with the λ for which z is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Evaluate = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""θ, whether slopes are wanted → L_ρ and its slopes, of which 1 counts as 0."""

SEARCHES = 50  # by Armijo's rule, for a coordinate
ARMIJO, SHORTER, LEAST_SHORTER = 0.1, 0.5, 0.01
SHORTEST_STEP = 1e-9  # of log θ, where a search ends
FARTHEST_STEP = 0.5  # of log θ, after relaxation: slopes say nothing of what is farther
LEAST_CHANGE, MOST_CHANGE = 0.3, 2.0  # of ω
MOST_RELAXATION = 1e6


def coordinate_step(evaluate: Evaluate, theta: Tensor, bounds: Tensor) -> Tensor:
    """Return argmin L_ρ at the present z, one coordinate after another, (D,)."""
    for j in range(len(theta)):
        theta = descended(evaluate, theta, j, bounds)
    return theta


def descended(evaluate: Evaluate, theta: Tensor, j: int, bounds: Tensor) -> Tensor:
    """Return θ with coordinate j where L_ρ has no slope.

    The first step has length 1, others are secant steps, shortened if Armijo's rule requires it.
    """
    value, slopes = evaluate(theta, True)
    step = -float(slopes[j].sign())
    for _ in range(SEARCHES):
        if abs(float(slopes[j])) <= 1.0:
            break
        target = armijo(evaluate, theta, j, step, bounds, value, float(slopes[j]))
        moved = float(target[j] - theta[j])
        if moved == 0.0:
            break
        before, theta = float(slopes[j]), target
        value, slopes = evaluate(theta, True)
        slope = float(slopes[j])
        curvature = (slope - before) / moved
        is_convex = curvature > abs(slope)  # enough for a step below 1
        step = -slope / curvature if is_convex else -math.copysign(1.0, slope)
    return theta


def armijo(
    evaluate: Evaluate,
    theta: Tensor,
    j: int,
    step: float,
    bounds: Tensor,
    value: Tensor,
    slope: float,
) -> Tensor:
    """Shorten the step of coordinate j until L_ρ falls enough; return θ if it never does."""
    while abs(step) > SHORTEST_STEP:
        target = theta.clone()
        target[j] = (theta[j] + step).clamp(*bounds[j])
        promised = slope * float(target[j] - theta[j])
        gained = float(evaluate(target, False)[0] - value)
        if gained <= ARMIJO * promised:
            return target
        # A parabola through both values has its least there.
        shorter = -0.5 * promised / (gained - promised) if math.isfinite(gained) else SHORTER
        step *= min(max(shorter, LEAST_SHORTER), SHORTER)
    return theta


def first_pace(n_dims: int, rho: float) -> Tensor:
    """Return slopes, 0 for none, and relaxations to start from, (2, D)."""
    pace = torch.zeros(2, n_dims, dtype=torch.float64, device="cpu")
    pace[1] = 0.5 * (2.0 + rho)
    return pace


def next_pace(pace: Tensor, slope: Tensor) -> Tensor:
    """Return these slopes, and ω updated by what is left of the last slopes, (2, D)."""
    before, relaxation = pace
    share = torch.where(before == 0.0, 0.0, slope / before)
    factor = torch.where(share < 1.0, 1.0 / (1.0 - share), math.inf)
    factor = factor.clamp(LEAST_CHANGE, MOST_CHANGE)
    return torch.stack([slope, (relaxation * factor).clamp(1.0, MOST_RELAXATION)])


def relaxed(theta: Tensor, target: Tensor, pace: Tensor, bounds: Tensor) -> Tensor:
    """Return θ after a step towards a target that is ω times as long, (D,)."""
    step = (pace[1] * (target - theta)).clamp(-FARTHEST_STEP, FARTHEST_STEP)
    return (theta + step).clamp(*bounds.T)
