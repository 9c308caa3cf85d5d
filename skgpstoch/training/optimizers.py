"""Optimisers and schedules of their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, Adadelta, AdamW, Optimizer

Schedule = Callable[[int, int], float]
"""(step, number of steps) → factor of the initial learning rate."""


LBFGS_ITERATIONS = 10
"""L-BFGS's iterations in what is called an epoch."""


def one_cycle(step: int, n_steps: int) -> float:
    """Cosine warm-up over 30 % of the steps, then annealing to zero (Smith & Topin, 2019)."""
    warm = 0.3 * n_steps
    if step < warm:
        return 0.04 + 0.96 * 0.5 * (1.0 - math.cos(math.pi * step / warm))
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(n_steps - warm, 1.0)))


def constant(step: int, n_steps: int) -> float:
    """No schedule."""
    return 1.0


def theory(step: int, n_steps: int) -> float:
    """a_t ∝ t^(−3/4), for which SCGD's convergence is proved (Wang et al., 2017, Theorem 8)."""
    return (step + 1.0) ** -0.75


SCHEDULES: dict[str, Schedule] = {"one-cycle": one_cycle, "constant": constant, "theory": theory}


def forget_when_stuck(optimizer: Optimizer, *_: Any) -> None:
    """After a step of L-BFGS that ended before its iterations were done, start it anew.

    It is at a minimum, or a line search failed: with the same curvature it would fail again.
    """
    (group,) = optimizer.param_groups
    n_iter = optimizer.state[group["params"][0]].get("n_iter", 0)
    if n_iter - group["n_done"] < LBFGS_ITERATIONS:
        optimizer.state.clear()
        n_iter = 0
    group["n_done"] = n_iter


def make_optimizer(
    solver: str, groups: list[dict[str, Any]], learning_rate: float
) -> Optimizer | None:
    """Adam, with decoupled weight decay where a group asks for it, or others; None for none."""
    groups = [
        {"lr": learning_rate * group.get("rate", 1.0), **group}
        for group in groups
        if group["params"]
    ]
    if not groups:
        return None
    if solver == "lbfgs":
        params = [p for group in groups for p in group["params"]]
        lbfgs = LBFGS(
            [{"params": params, "initial_lr": 1.0, "n_done": 0}],
            max_iter=LBFGS_ITERATIONS,
            max_eval=5 * LBFGS_ITERATIONS,
            history_size=20,
            tolerance_grad=1e-7,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )
        lbfgs.register_step_post_hook(forget_when_stuck)
        return lbfgs
    for group in groups:
        group["initial_lr"] = group["lr"]
    if solver == "adadelta":
        return Adadelta(groups)
    return AdamW(groups, weight_decay=0.0, fused=True)
