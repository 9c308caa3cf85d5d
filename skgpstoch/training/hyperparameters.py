"""The hyper-parameters of a kernel, where θ is short and its objective exact: several searches.

The contract for optimisers is scikit-learn's. Its "fmin_l_bfgs_b" is
:class:`~skgpstoch.training.projected_lbfgs.BoundedLBFGS` here: SciPy's takes the −∞ of a
covariance that has no factor for a slope, and ends at a bound or nowhere; and its BLAS keeps
threads of its own spinning, for which torch's wait (n = 30: ten times the time of a fit).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from .projected_lbfgs import BoundedLBFGS

MAX_ITER = 1000
MEMORY = 10
TOL = 2.2e-9
"""Share of the log marginal likelihood that an iteration gains, below which a search ends: SciPy's.
"""

GTOL = 1e-5
"""Slope, in nats per unit of θ, below which it ends: SciPy's."""

Objective = Callable[..., tuple[float, np.ndarray]]
"""(θ, eval_gradient) → log marginal likelihood, and its gradient."""


class Optimum(NamedTuple):
    """The best of a search, and how that ended."""

    theta: np.ndarray
    value: float
    status: str = "converged"


class Search:
    """What an optimiser is given to minimise, and the best that it has seen."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.best = Optimum(np.empty(0), -math.inf)

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> Any:
        """Minus the log marginal likelihood, and if asked its gradient."""
        theta = np.array(theta, dtype=np.float64)
        value, gradient = self.objective(theta, eval_gradient)
        if value > self.best.value or not len(self.best.theta):
            self.best = Optimum(theta, value)
        return (-value, -gradient) if eval_gradient else -value

    def run(self, optimizer: str | Callable, start: np.ndarray, bounds: np.ndarray) -> Optimum:
        """The best θ from this start; Ctrl-C ends the search there."""
        try:
            if callable(optimizer):
                return _checked(optimizer(self, start, bounds=bounds), start)
            status = self.lbfgs(start, bounds)
        except KeyboardInterrupt:
            if not math.isfinite(self.best.value):
                raise
            status = "interrupted"
        return self.best._replace(status=status)

    def lbfgs(self, start: np.ndarray, bounds: np.ndarray) -> str:
        """Search from here; how that ended."""
        theta = nn.Parameter(torch.tensor(start, dtype=torch.float64, device="cpu"))
        low, high = torch.tensor(bounds.T.copy(), dtype=torch.float64, device="cpu")

        def closure() -> Tensor:
            value, gradient = self(theta.detach().numpy())
            theta.grad = torch.from_numpy(gradient)
            return torch.tensor(value, dtype=torch.float64, device="cpu")

        def project() -> None:
            theta.data.clamp_(low, high)

        optimizer = BoundedLBFGS([theta], project, MAX_ITER, MEMORY, TOL, GTOL)
        optimizer.minimise(closure)
        self.best = Optimum(theta.detach().numpy().copy(), -optimizer.loss)
        return "converged" if optimizer.converged else "unconverged"


def maximise(
    make_objective: Callable[[], Objective],
    start: np.ndarray,
    bounds: np.ndarray,
    optimizer: str | Callable,
    n_restarts: int,
    random_state: np.random.RandomState,
    then: str = "",
) -> Optimum:
    """θ of the largest log marginal likelihood, from `start` and from random θ within the bounds.

    Searches run one after another, or at once in a :func:`joblib.parallel_config` of the caller's.

    Parameters
    ----------
    make_objective : callable
        () → the objective, made anew in each search.
    start : ndarray of shape (n_dims,)
        θ of the first search.
    bounds : ndarray of shape (n_dims, 2)
        Of θ.
    optimizer : "fmin_l_bfgs_b" or callable
        As scikit-learn's: optimizer(obj_func, initial_theta, bounds) → theta, minimum.
    n_restarts : int
        Number of searches from random θ, log-uniform between the bounds.
    random_state : RandomState
        Their seed.
    then : str, default=""
        What is to be said of an interrupted search besides.

    Raises
    ------
    ValueError
        If there are restarts and a bound is not finite.
    """
    if n_restarts > 0 and not np.isfinite(bounds).all():
        raise ValueError(
            "Multiple optimizer restarts (n_restarts_optimizer>0) requires that all bounds are "
            "finite."
        )
    low, high = bounds.T
    starts = [start, *(random_state.uniform(low, high) for _ in range(n_restarts))]
    searches = (delayed(_search)(make_objective, optimizer, theta, bounds) for theta in starts)
    optima: list[Optimum] = []
    for optimum in Parallel(return_as="generator")(searches):
        optima.append(optimum)
        if optimum.status != "converged":
            _warn(optimum.status, then)
        if optimum.status == "interrupted":
            break
    return max(optima, key=lambda optimum: optimum.value)


def _checked(found: Any, start: np.ndarray) -> Optimum:
    """What an optimiser of the user's returned."""
    try:
        theta, loss = found
        optimum = Optimum(np.array(theta, dtype=np.float64), -float(loss))
    except (TypeError, ValueError):
        optimum = Optimum(np.empty(0), -math.inf)
    if optimum.theta.shape != start.shape or not np.isfinite(optimum.theta).all():
        raise ValueError(
            f"optimizer must return theta, {len(start)} finite numbers, and the minimum, got "
            f"{found!r}."
        )
    return optimum


def _search(
    make_objective: Callable[[], Objective],
    optimizer: str | Callable,
    start: np.ndarray,
    bounds: np.ndarray,
) -> Optimum:
    return Search(make_objective()).run(optimizer, start, bounds)


def _warn(status: str, then: str) -> None:
    words = {
        "interrupted": f"was interrupted; the best so far are kept.{then}",
        "unconverged": "did not converge; scaling the data may help.",
    }
    warnings.warn(
        f"The search for hyper-parameters {words[status]}", ConvergenceWarning, stacklevel=5
    )
