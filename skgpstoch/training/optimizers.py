"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Adadelta as TorchAdadelta
from torch.optim import AdamW, Optimizer

from .projected_lbfgs import LightOptimizer, ProjectedLBFGS, unwrapped

Schedule = Callable[[float, int], float]
"""(step, number of steps) → factor of the initial learning rate; with a deadline, steps may jump.
"""


LBFGS_ITERATIONS = 10
"""Iterations of L-BFGS that count as one epoch."""


def one_cycle(step: float, n_steps: int) -> float:
    """Warm up over 30 % of the steps, then anneal to zero, by cosines (Smith & Topin, 2019)."""
    warm = 0.3 * n_steps
    if step < warm:
        return 0.04 + 0.96 * 0.5 * (1.0 - math.cos(math.pi * step / warm))
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(n_steps - warm, 1.0)))


def constant(step: float, n_steps: int) -> float:
    """Keep the learning rate constant."""
    return 1.0


def theory(step: float, n_steps: int) -> float:
    """Return t^(−3/4), the rate of SCGD's convergence proof (Wang et al., 2017, Theorem 8)."""
    return (step + 1.0) ** -0.75


SCHEDULES: dict[str, Schedule] = {"one-cycle": one_cycle, "constant": constant, "theory": theory}


class SparseAdagrad(LightOptimizer):
    """AdaGrad (Duchi et al., 2011) that changes only those rows of a parameter with a gradient.

    torch's own sparse AdaGrad does the same, but warns at the first step.
    """

    def __init__(self, params: Any, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": 0.1, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters that have gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                total = self.state[p].setdefault("sum", torch.zeros_like(p))
                rows: Any = ...
                gradient = p.grad
                if gradient.is_sparse:
                    gradient = gradient.coalesce()
                    rows, gradient = gradient.indices()[0], gradient.values()
                total[rows] += gradient.square()
                p[rows] -= group["lr"] * gradient / (total[rows].sqrt() + group["eps"])
        return loss


class Adam(LightOptimizer, AdamW):
    """torch's AdamW, without the imports for torch.compile."""

    step: Any = torch.no_grad()(unwrapped(AdamW.step))


class Adadelta(LightOptimizer, TorchAdadelta):
    """torch's Adadelta, without the imports for torch.compile."""

    step: Any = torch.no_grad()(unwrapped(TorchAdadelta.step))


def check_decay(groups: list[dict[str, Any]]) -> None:
    """Raise a ValueError if weight decay reverses signs: steps multiply weights by 1 − rate·decay.

    Ignore rates above 1, because training itself reports those.
    """
    for group in groups:
        decay = group.get("weight_decay", 0.0)
        if group["lr"] <= 1.0 <= decay * group["lr"]:
            raise ValueError(
                f"weight_decay must be below 1/learning_rate_init, {1.0 / group['lr']:.3g}, as a "
                f"step multiplies weights by 1 - learning_rate_init * weight_decay, got {decay!r}."
            )


def make_optimizer(
    solver: str,
    groups: list[dict[str, Any]],
    learning_rate: float,
    project: Callable[[], None] = lambda: None,
) -> Optimizer | None:
    """Make the optimiser of a solver; None if there are no parameters.

    The default is Adam, with decoupled weight decay for groups that set it. AdaDelta adds the decay
    to the gradient, as in torch. `project` brings parameters back within bounds; "lbfgs" needs it,
    because all its iterates are within bounds.
    """
    groups = [
        {"lr": learning_rate * group.get("rate", 1.0), **group}
        for group in groups
        if group["params"]
    ]
    if not groups:
        return None
    if solver == "lbfgs":
        params = [p for group in groups for p in group["params"]]
        return ProjectedLBFGS(params, project, max_iter=LBFGS_ITERATIONS)
    for group in groups:
        group["initial_lr"] = group["lr"]
    if solver == "adagrad":
        return SparseAdagrad(groups)
    if solver == "adadelta":
        return Adadelta(groups)
    check_decay(groups)
    return Adam(groups, weight_decay=0.0, fused=True)
