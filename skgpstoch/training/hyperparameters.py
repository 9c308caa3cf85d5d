"""The hyper-parameters of a kernel by SciPy, or by an optimiser of the user's, from several starts.

Where the objective is exact and θ is short there is nothing to learn from minibatches: this is what
scikit-learn does, with the same contract for optimisers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import OptimizeResult, minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.optimize import _check_optimize_result

Objective = Callable[..., tuple[float, np.ndarray]]
"""(θ, eval_gradient) → log marginal likelihood, and its gradient."""


class Optimum(NamedTuple):
    """Where a search ended, and what is to be said of it."""

    theta: np.ndarray
    value: float
    result: OptimizeResult | None = None
    was_interrupted: bool = False


class Search:
    """What an optimiser is given to minimise, and the best that it has seen."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.best = Optimum(np.empty(0), -math.inf)

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> Any:
        """Minus the log marginal likelihood, and if asked its gradient."""
        value, gradient = self.objective(np.asarray(theta, dtype=np.float64), eval_gradient)
        if value > self.best.value:
            self.best = Optimum(np.array(theta, dtype=np.float64), value)
        return (-value, -gradient) if eval_gradient else -value

    def run(self, optimizer: str | Callable, start: np.ndarray, bounds: np.ndarray) -> Optimum:
        """The best θ from this start; Ctrl-C ends the search there."""
        try:
            if callable(optimizer):
                theta, loss = optimizer(self, start, bounds=bounds)
                return Optimum(np.asarray(theta, dtype=np.float64), -float(loss))
            result = minimize(self, start, method="L-BFGS-B", jac=True, bounds=bounds)
        except KeyboardInterrupt:
            if not math.isfinite(self.best.value):
                raise
            return self.best._replace(was_interrupted=True)
        found = Optimum(result.x, -float(result.fun), result)
        return found if found.value >= self.best.value else self.best._replace(result=result)


def maximise(
    make_objective: Callable[[], Objective],
    start: np.ndarray,
    bounds: np.ndarray,
    optimizer: str | Callable,
    n_restarts: int,
    random_state: np.random.RandomState,
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
        if optimum.result is not None:
            _check_optimize_result("lbfgs", optimum.result)
        if optimum.was_interrupted:
            warnings.warn(
                "The search for hyper-parameters was interrupted; the best so far are kept.",
                ConvergenceWarning,
                stacklevel=4,
            )
            break
    return max(optima, key=lambda optimum: optimum.value)


def _search(
    make_objective: Callable[[], Objective],
    optimizer: str | Callable,
    start: np.ndarray,
    bounds: np.ndarray,
) -> Optimum:
    return Search(make_objective()).run(optimizer, start, bounds)
