"""Search for the hyper-parameters θ of a kernel that maximise the exact marginal likelihood.

The mathematics is in :mod:`skgpstoch.maths.exact_solver`; with G = ∂ log p(Y | X)/∂C, the gradient
is ∂/∂θ_j = tr(G ∂K/∂θ_j).

Optimisers have the same interface as in scikit-learn. Here, "fmin_l_bfgs_b" names our own
:class:`~skgpstoch.training.projected_lbfgs.BoundedLBFGS`, for two reasons. SciPy's L-BFGS-B cannot
handle the value −∞ of a covariance that has no Cholesky factor: it ends at a bound or does not
move. And the threads of SciPy's BLAS go on spinning, so torch's threads wait for them (at n = 30, a
fit takes ten times as long).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..data.equal_rows import observations
from ..data.messages import warn
from ..data.rows import Data
from ..kernels.matrices import Covariance, Pull, covariance_of
from ..maths.exact_solver import ExactSolver
from .interrupts import interruptible, keeps_best, tell, was_interrupted
from .projected_lbfgs import BoundedLBFGS
from .starts import draw_starts, likely_bounds, log_bounds, smoother, threads_as

MIN_ALPHA = 1e-10
CUT_SHORT = " Training on all rows is cut short."
MAX_ITER = 1000
LBFGS = "fmin_l_bfgs_b"
SHORTENINGS = 1.0, 0.5, 0.25, 0.125  # factors of length-scales where a search may begin
ROWS_OF_STARTS = 250  # that tell where
MEMORY = 10
TOL = 2.2e-9
"""Relative gain of an iteration below which a search ends; SciPy's default."""

GTOL = 1e-5
"""Slope, in nats per unit of θ, below which a search ends; SciPy's default."""

FLAT = 1.0
"""Sum of slopes, in nats, below which the first step is shorter: it stays near on a plateau."""

Objective = Callable[..., tuple[float, np.ndarray]]
"""(θ, eval_gradient) → log marginal likelihood, and its gradient."""


# ---- the evidence of rows ------------------------------------------------------------------------


class Evidence:
    """log p(Y | X) as a function of θ, (n_dims,), with its gradient.

    All evaluations use the memory of one N×N matrix.

    Parameters
    ----------
    covariance : Covariance
        Covariance of the rows; a call changes its θ.
    Y : Tensor of shape (N, P)
        Targets.
    noise : Tensor of shape () or (N,)
        Added to the diagonal.
    """

    def __init__(self, covariance: Covariance, Y: Tensor, noise: Tensor) -> None:
        self.covariance = covariance
        self.Y = Y
        self.noise = noise
        self.C = covariance.empty()

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return the value and its gradient; −inf and 0 if C is not positive definite."""
        solver, pull = self.solved(theta, eval_gradient)
        value = -math.inf if solver is None else np.float64(solver.log_density(self.Y))
        if solver is None or not math.isfinite(value):
            return -math.inf, np.zeros(len(theta))
        return value, np.zeros(len(theta)) if pull is None else pull(solver.slope_())

    def solved(self, theta: np.ndarray, pulls: bool) -> tuple[ExactSolver | None, Pull | None]:
        """Return what solves for C at θ, if it has a factor, and the gradient of K if `pulls`."""
        self.covariance.set_theta(theta)
        pull = self.covariance.gram_(self.C, pulls)
        self.C.diagonal().add_(self.noise)
        return ExactSolver.of_(self.C, self.Y), pull


class TrainingSet(NamedTuple):
    """Rows X, targets Y (N, P), noise () or (N,), and the device to compute on."""

    X: Any
    Y: np.ndarray
    noise: np.ndarray
    device: torch.device

    def covariance(self, kernel: sk.Kernel) -> Covariance:
        """Return the kernel's covariance of the rows."""
        return covariance_of(kernel, self.X, self.device)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return Y and the noise as tensors."""
        Y, noise = (
            torch.tensor(a, dtype=torch.float64, device=self.device) for a in (self.Y, self.noise)
        )
        return Y, noise

    def evidence(self, kernel: sk.Kernel) -> Evidence:
        """Return log p(Y | X) as a function of θ."""
        return Evidence(self.covariance(kernel), *self.tensors())

    def best(self, kernel: sk.Kernel, search: tuple, then: str = "") -> sk.Kernel:
        """Return the kernel at the best θ; arguments are as for :func:`best_kernel`."""
        variance = float(np.mean(np.square(self.Y)))
        return best_kernel(kernel, self.evidence, self.X, variance, search, then)


def best_on(kernel: sk.Kernel, X: Tensor, Y: Tensor) -> sk.Kernel:
    """Return the kernel that maximises the marginal likelihood of these few rows, Y (N, P).

    A few steps from the length-scales, and from shorter ones, tell where the search begins. From
    long ones alone it may end where an input matters not at all, and from short ones where f is
    noise, which may be likeliest before any step.
    """
    if not kernel.n_dims:
        return kernel
    rows, _ = observations(Data(*(a.cpu().double().numpy() for a in (X, Y))), len(X))
    some = TrainingSet(rows.X, rows.y, np.array(MIN_ALPHA), X.device)
    few = slice(None, None, math.ceil(len(rows) / ROWS_OF_STARTS))
    brief = some._replace(X=rows.X[few], Y=rows.y[few])
    starts = [within_bounds(smoother(kernel, factor)) for factor in SHORTENINGS]
    tried = [
        Search(brief.evidence(k), FEW_STEPS).run(LBFGS, k.theta, log_bounds(k)) for k in starts
    ]
    start = kernel.clone_with_theta(max(tried, key=lambda optimum: optimum.value).theta)
    random_state = np.random.RandomState(0)  # not used, as there are no restarts
    return some.best(start, (LBFGS, 0, random_state), CUT_SHORT)


def within_bounds(kernel: sk.Kernel) -> sk.Kernel:
    """Return the kernel at the θ within its bounds that is nearest to its own."""
    return kernel.clone_with_theta(np.clip(kernel.theta, *log_bounds(kernel).T))


def best_kernel(
    kernel: sk.Kernel,
    make: Callable[[sk.Kernel], Objective],
    X: Any,
    variance: float,
    search: tuple,
    then: str = "",
) -> sk.Kernel:
    """Return the kernel at the best θ of the objective that `make` makes of it.

    Parameters
    ----------
    kernel : sklearn kernel
        The kernel at the start of the search.
    make : callable
        Maps a kernel to the function of its θ.
    X, variance
        Rows, and the variance of functions of them, which suit random starts.
    search : tuple
        The optimiser or None, the number of restarts and the random state.
    then : str, default=""
        As for :func:`maximise`.
    """
    kernel, (optimizer, n_restarts, random_state) = clone(kernel), search
    if optimizer is None or kernel.n_dims == 0:
        with interruptible():  # nothing to search for, so what is left of the fit is owed
            return kernel
    start, bounds = kernel.theta, log_bounds(kernel)
    likely = likely_bounds(kernel, X, variance) if n_restarts else bounds
    of_kernel = functools.partial(make, kernel)
    optimum = maximise(of_kernel, start, bounds, likely, optimizer, n_restarts, random_state, then)
    kernel.theta = optimum.theta
    return kernel


# ---- searches ------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """When a search ends: most iterations, least relative gain of one, and least slope."""

    max_iter: int = MAX_ITER
    tol: float = TOL
    gtol: float = GTOL


USUAL_LIMITS = Limits()
FEW_STEPS = Limits(max_iter=10)


class Optimum(NamedTuple):
    """The best θ of a search, its value, and how the search ended."""

    theta: np.ndarray
    value: float
    status: str = "converged"


class Search:
    """The function that an optimiser minimises; it remembers the best θ that it has seen."""

    def __init__(self, objective: Objective, limits: Limits = USUAL_LIMITS) -> None:
        self.objective = objective
        self.limits = limits
        self.best = Optimum(np.empty(0), -math.inf)
        self.pairs: list[tuple[Tensor, Tensor]] = []  # L-BFGS: steps and gradient changes (n_dims,)

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> Any:
        """Return minus the log marginal likelihood, with its gradient if asked for."""
        theta = np.array(theta, dtype=np.float64)
        value, gradient = self.objective(theta, eval_gradient)
        if value > self.best.value or not len(self.best.theta):
            self.best = Optimum(theta, value)
        return (-value, -gradient) if eval_gradient else -value

    def run(self, optimizer: str | Callable, start: np.ndarray, bounds: np.ndarray) -> Optimum:
        """Search from this start and return the best θ; after Ctrl-C, the best so far."""
        if was_interrupted():  # an earlier part of the same fit was interrupted
            self(start, False)
            return self.best._replace(status="interrupted")
        try:
            with interruptible():
                if callable(optimizer):
                    return checked(optimizer(self, start, bounds=bounds), start)
                status = self.lbfgs(start, bounds)
        except KeyboardInterrupt:
            if not keeps_best():
                raise
            status = "interrupted"
            if not len(self.best.theta):
                self(start, False)
        return self.best._replace(status=status)

    def lbfgs(self, start: np.ndarray, bounds: np.ndarray) -> str:
        """Search from this start, and return how the search ended."""
        theta = nn.Parameter(torch.tensor(start, dtype=torch.float64, device="cpu"))
        low, high = torch.tensor(bounds.T.copy(), dtype=torch.float64, device="cpu")

        def closure() -> Tensor:
            value, gradient = self(theta.detach().numpy())
            theta.grad = torch.from_numpy(gradient)
            return torch.tensor(value, dtype=torch.float64, device="cpu")

        def project() -> None:
            theta.data.clamp_(low, high)

        max_iter, tol, gtol = self.limits
        optimizer = BoundedLBFGS([theta], project, max_iter, MEMORY, tol, gtol, FLAT)
        optimizer.minimise(closure)
        self.pairs = optimizer.pairs
        self.best = Optimum(theta.detach().numpy().copy(), -optimizer.loss)
        return "converged" if optimizer.converged else "unconverged"


def maximise(
    make_objective: Callable[[], Objective],
    start: np.ndarray,
    bounds: np.ndarray,
    likely: np.ndarray,
    optimizer: str | Callable,
    n_restarts: int,
    random_state: np.random.RandomState,
    then: str = "",
) -> Optimum:
    """Search from `start` and from random θ, and return the best optimum.

    Searches run one after another, or in parallel if the caller is in a
    :func:`joblib.parallel_config`.

    Parameters
    ----------
    make_objective : callable
        () → the objective. Each search makes its own.
    start : ndarray of shape (n_dims,)
        θ where the first search starts.
    bounds : ndarray of shape (n_dims, 2)
        Bounds of θ.
    likely : ndarray of shape (n_dims, 2)
        Ranges from which the other starts are drawn. If `optimizer` is a callable, they are drawn
        from `bounds`.
    optimizer : "fmin_l_bfgs_b" or callable
        As in scikit-learn: optimizer(obj_func, initial_theta, bounds) → theta, minimum.
    n_restarts : int
        Number of searches from random θ.
    random_state : RandomState
        Draws the starts.
    then : str, default=""
        Text that is added to the warning of an interrupted search.

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
    if callable(optimizer):  # draw starts as scikit-learn does
        others = [random_state.uniform(*bounds.T)[None] for _ in range(n_restarts)]
    else:
        others = draw_starts(likely, n_restarts, random_state)
    starts = [start[None], *others]
    job, n_threads = delayed(search), torch.get_num_threads()
    searches = (job(make_objective, optimizer, thetas, bounds, n_threads) for thetas in starts)
    optima: list[Optimum] = []
    try:
        for optimum in Parallel(return_as="generator")(searches):
            optima.append(optimum)
            if optimum.status != "converged":
                warn_of(optimum.status, then)
            if optimum.status == "interrupted":
                break
    except KeyboardInterrupt:  # while workers search
        if not (optima and keeps_best()):
            raise
        warn_of("interrupted", then)
    return max(optima, key=lambda optimum: optimum.value)


def search(
    make_objective: Callable[[], Objective],
    optimizer: str | Callable,
    starts: np.ndarray,
    bounds: np.ndarray,
    n_threads: int,
) -> Optimum:
    """Make one search from the best of `starts` (S, n_dims), perhaps in a joblib worker."""
    with threads_as(n_threads):
        objective = make_objective()
        values = [objective(theta, False)[0] for theta in starts] if len(starts) > 1 else [0.0]
        return Search(objective).run(optimizer, starts[np.argmax(values)], bounds)


def checked(found: Any, start: np.ndarray) -> Optimum:
    """Return the result of a user's optimiser.

    Raises
    ------
    ValueError
        If the result is not θ and a number.
    """
    try:
        theta, loss = found
        optimum = Optimum(np.array(theta, dtype=np.float64), -float(loss))
    except (TypeError, ValueError):
        optimum = Optimum(np.empty(0), -math.inf)
    if optimum.theta.shape != start.shape or not np.isfinite(optimum.theta).all():
        raise ValueError(
            f"optimizer must return (theta, minimum), with theta an array of {len(start)} "
            f"finite numbers, got {found!r}."
        )
    return optimum


def warn_of(status: str, then: str) -> None:
    """Warn that a search was interrupted or did not converge."""
    search = "The search for hyper-parameters"
    if status == "interrupted":
        tell(f"{search} was interrupted; the best ones so far are kept.{then}")
    else:
        warn(f"{search} did not converge. Scale the data.", ConvergenceWarning)
