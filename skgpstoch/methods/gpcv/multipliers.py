"""One iteration of ADMM for the held-out loss: hyper-parameters, weights, multipliers.

Xu, Yin, Zhang, Luo & Cui, 2019, eq. 11 and 15, as :mod:`skgpstoch.methods.gpcv.admm` describes,
for folds that share hyper-parameters θ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from joblib import Parallel, delayed
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ...data.devices import HOST
from ...maths.linalg import NotPositiveDefiniteError
from ...maths.modules import Module
from ...training.projected_lbfgs import BoundedLBFGS
from .coordinates import coordinate_step, first_pace, next_pace, relaxed
from .fold_loss import Fold, FoldLoss

ITERATIONS = 50  # of L-BFGS in an iteration of ADMM
SLOPE = 1e-3  # of the loss by log θ, relative to the loss, at which θ's step ends
SEARCH_GAIN = 1e-8  # of the loss, relative, by an iteration of L-BFGS, below which it ends
NEGLIGIBLE = 1e-6  # of the mean square of y, a loss that is as good as none
GAP_ROUNDING = 1e-5  # of the gap
SHRINKS = 0.25  # of the gap in an iteration, or ρ grows
RHO_GROWTH = 10.0  # of ρ
MOST_RHO = 1e6
LOCAL = ("z", "dual", "pending")  # of a fold, besides its rows
RECORDED = ("objective", "loss", "gap", "rho", "z_norm")  # after every iteration
SMALLEST_NORMAL = torch.finfo(torch.float64).tiny
FAILURES = (
    NotPositiveDefiniteError,
    torch.linalg.LinAlgError,
    MemoryError,
    torch.OutOfMemoryError,
)
NOTHING = torch.empty(0, device=HOST)
FLAT = 1.0  # slope by θ at the best z, in units of SLOPE, at which coordinate steps have ended


class Options(NamedTuple):
    """Settings that do not change during a fit."""

    kernel: sk.Kernel
    noise_variance: float  # where it is not learned
    learns_noise: bool
    keeps: bool  # covariances
    solver: str
    tol: float
    n_jobs: int | None  # of folds


class Local(NamedTuple):
    """The state of one fold."""

    fold: Fold
    z: Tensor  # (T, P)
    dual: Tensor  # λ, (T, P)
    pending: Tensor  # ρ(Cz − y_T) of this z, by which λ is yet to be raised, (T, P)


class Found(NamedTuple):
    """A fold's share of L_ρ at some θ, or why there is none."""

    value: float = math.inf  # L_ρ
    loss: float = math.inf  # squared error
    gap: float = math.inf  # ‖Cz − y_T‖/‖y_T‖
    residual: Tensor = NOTHING  # Cz − y_T
    slope: Tensor = NOTHING  # ∂L_ρ/∂θ, (D,)
    local: Local | None = None
    ended: bool = True  # whether conjugate gradients did
    failure: str = ""


class State(NamedTuple):
    """The state that folds with a common θ have reached."""

    theta: Tensor  # (D,)
    locals: list[Local]
    rho: float
    gap: float  # the largest of the folds
    value: float = math.nan  # ΣL_ρ, a number held out
    loss: float = math.nan  # squared error, a number held out
    moved: float = math.inf  # the most of θ in the last iteration
    diverged: bool = False
    ended: bool = True  # whether conjugate gradients did
    descends: bool = False  # whether θ still had far to go when its step ended
    pace: Tensor = NOTHING  # of coordinate steps, (2, D)

    @property
    def scale(self) -> float:
        """The unit of losses: this one, but at least a share of the mean square of y."""
        return max(self.loss, NEGLIGIBLE * mean_square(self.locals))

    def has_settled(self, tol: float) -> bool:
        """Whether another iteration would change little."""
        is_still = self.moved <= tol and not self.descends
        # A loss below the scale is as good as none.
        return (is_still or self.loss < self.scale) and self.is_met(tol)

    def is_met(self, tol: float) -> bool:
        """Whether constraints are met, as far as the loss or conjugate gradients can tell."""
        return abs(self.value - self.loss) <= tol * self.scale or self.gap <= GAP_ROUNDING


class Asked(NamedTuple):
    """What a job is to compute for a fold besides L_ρ."""

    consistent: bool = False  # z = C⁻¹y_T and its λ, first of all
    weights: bool = False  # the best z
    slope: bool = False


def visit(local: Local, theta: Tensor, rho: float, asked: Asked, options: Options) -> Found:
    """Compute L_ρ of a fold, as one job of joblib."""
    try:
        problem = FoldLoss(local.fold, theta, *options[:4])
        if asked.consistent:
            z, dual = problem.consistent()
            local = local._replace(z=z, dual=dual, pending=torch.zeros_like(dual))
        if asked.weights:
            local = local._replace(z=problem.best_weights(local.dual, rho, local.z))
        at = problem.lagrangian(local.z, local.dual, rho)
        slope = problem.gradient(local.z, at.slope).cpu() if asked.slope else NOTHING
    except FAILURES as error:
        return Found(failure=str(error))
    if not bool(torch.isfinite(at.value)):
        return Found(failure="The Lagrangian is not finite.")
    gap = float(at.residual.norm() / problem.y_T.norm().clamp_min(SMALLEST_NORMAL))
    return Found(
        float(at.value), float(at.loss), gap, at.residual, slope, local, ended=problem.ended
    )


class Together:
    """Σ L_ρ of folds as a function of θ, in units in which a slope of 1 counts as 0.

    In these units the first step of L-BFGS, which follows the slope, has a length of about 1.
    """

    def __init__(self, state: State, options: Options) -> None:
        self.rho, self.options = state.rho, options
        self.locals = state.locals
        self.unit = 1.0

    def __call__(self, theta: Tensor, asked: Asked) -> list[Found]:
        """Compute L_ρ of each fold, and keep its weights as the start of the next search."""
        found = Parallel(n_jobs=self.options.n_jobs)(
            delayed(visit)(local, theta, self.rho, asked, self.options) for local in self.locals
        )
        if asked.weights and not any(one.failure for one in found):
            self.locals = [one.local for one in found]
        return found

    def value(self, theta: Tensor, asked: Asked) -> tuple[Tensor, Tensor]:
        """Return the sum, and its gradient if asked; infinite if a fold fails."""
        found = self(theta, asked)
        total = sum(one.value for one in found) / self.unit
        value = torch.tensor(total, dtype=torch.float64, device=theta.device)
        if not bool(value.isfinite()) or not asked.slope:
            return value, torch.zeros_like(theta)
        return value, torch.stack([one.slope for one in found]).sum(0) / self.unit


class Failure(NamedTuple):
    """Why a fold failed."""

    number: int
    message: str


def begin(state: State, options: Options) -> tuple[State, list[Failure]]:
    """Find z = C⁻¹y_T and the multipliers of every fold at θ, and say which folds fail."""
    found = Together(state, options)(state.theta, Asked(consistent=True))
    locals_ = [one.local for one in found if one.local is not None]
    failures = [Failure(k, one.failure) for k, one in enumerate(found) if one.failure]
    total = sum(one.loss for one in found if not one.failure)
    loss = total / max(n_numbers(locals_), SMALLEST_NORMAL)
    return state._replace(locals=locals_, loss=loss, value=loss), failures


def iterate(state: State, bounds: Tensor, options: Options) -> State:
    """Make one iteration of (11) for θ, within bounds (D, 2), z and λ; raise ρ if necessary."""
    together = Together(state, options)
    n = n_numbers(state.locals)
    together.unit = SLOPE * n * state.scale
    theta, pace = STEP_OF_SOLVER[options.solver](together, state, bounds)
    # Short steps at fixed z do not show convergence; the slope at the best z does.
    found = together(theta, Asked(weights=True, slope=options.solver == "coordinate"))
    gap = max(one.gap for one in found)
    value, loss = (sum(part) / n for part in zip(*(f[:2] for f in found), strict=True))
    if any(one.failure for one in found) or gap > max(1.0, 2.0 * state.gap):
        # Go back to the last θ, with the z and λ that it implies.
        raised = state._replace(rho=min(RHO_GROWTH * state.rho, MOST_RHO), diverged=True)
        return begin(raised, options)[0]._replace(gap=1.0, moved=math.inf)
    locals_ = [
        one.local._replace(pending=state.rho * one.residual)
        for one in found
        if one.local is not None
    ]
    moved = float((theta - state.theta).abs().max()) if len(theta) else 0.0
    after = State(theta, locals_, state.rho, gap, value, loss, moved, pace=pace)
    after = after._replace(ended=all(one.ended for one in found))
    if options.solver == "coordinate" and len(theta):
        slope = torch.stack([one.slope for one in found]).sum(0) / together.unit
        stays = (theta - slope).clamp(*bounds.T) == theta  # at a bound
        after = after._replace(descends=bool((slope.abs() > FLAT)[~stays].any()))
    is_slow = gap > SHRINKS * state.gap and not after.is_met(options.tol)
    if options.solver == "joint" and is_slow:
        after = after._replace(rho=min(RHO_GROWTH * state.rho, MOST_RHO))
    return after


def mean_square(locals_: list[Local]) -> float:
    """Return the mean square of the held-out targets; 1 if they are 0."""
    folds = [local.fold for local in locals_]
    total = sum(float((f.weight * f.y.square())[f.n_trained :].sum()) for f in folds)
    return total / n_numbers(locals_) or 1.0


def n_numbers(locals_: list[Local]) -> float:
    """Return the number of held-out targets."""
    return sum(local.fold.n_held_out * local.fold.y.shape[1] for local in locals_)


# ---- a search ---------------------------------------------------------------------------------


class MultiplierSearch(Module):
    """Folds that share θ, and a record of every iteration."""

    theta: Tensor  # (D,)
    numbers: Tensor  # RECORDED, at present
    records: Tensor  # the same and θ after each iteration, (max_iter, len(RECORDED) + D)
    done: Tensor  # ()
    ended: Tensor  # whether all conjugate gradients did, ()
    failed: Tensor  # (K,)
    pace: Tensor  # of coordinate steps, (2, D)
    least: Tensor  # the least loss of an iteration that met its constraints, ()
    best_theta: Tensor  # its θ, (D,)
    best_iter: Tensor  # and its number, 0 for the start, ()

    def __init__(self, folds: list[Fold], theta: Tensor, rho: float, max_iter: int) -> None:
        super().__init__()
        self.folds = folds
        start = [0.0, 0.0, 1.0, rho, 0.0]
        numbers = torch.tensor(start, dtype=torch.float64, device=theta.device)
        no = numbers.new_zeros((), dtype=torch.bool)
        self.register_buffer("theta", theta.clone())
        self.register_buffer("numbers", numbers)
        self.register_buffer("records", numbers.new_zeros(max_iter, len(numbers) + len(theta)))
        self.register_buffer("pace", first_pace(len(theta), rho).to(theta.device))
        self.register_buffer("least", numbers.new_full((), math.inf))
        self.register_buffer("best_theta", theta.clone())
        self.register_buffer("best_iter", torch.zeros_like(no, dtype=torch.int64))
        self.register_buffer("done", no)
        self.register_buffer("ended", ~no)
        self.register_buffer("failed", no.repeat(len(folds)))
        for k, fold in enumerate(folds):
            for name in LOCAL:
                self.register_buffer(f"{name}_{k}", torch.zeros_like(fold.y[: fold.n_trained]))

    @property
    def alive(self) -> list[int]:
        """Numbers of the folds that have not failed."""
        return (~self.failed).nonzero()[:, 0].tolist()

    def number(self, name: str) -> float:
        """Return one of RECORDED."""
        return float(self.numbers[RECORDED.index(name)])

    def state(self) -> State:
        """Return the state that an iteration starts from."""
        locals_ = [
            Local(self.folds[k], *(getattr(self, f"{name}_{k}") for name in LOCAL))
            for k in self.alive
        ]
        value, loss, gap, rho, _ = self.numbers.tolist()
        theta, pace = self.theta.cpu(), self.pace.cpu()  # where bounds and slopes are
        return State(theta, locals_, rho, gap, value, loss, pace=pace)

    def take(self, state: State, n_iter: int, tol: float) -> None:
        """Store the state at the end of an iteration."""
        for k, local in zip(self.alive, state.locals, strict=True):
            for name in LOCAL:
                getattr(self, f"{name}_{k}").copy_(getattr(local, name))
        norm = math.sqrt(sum(float(local.z.square().sum()) for local in state.locals))
        found = (state.value, state.loss, state.gap, state.rho, norm)
        self.numbers.copy_(torch.tensor(found, dtype=torch.float64, device=HOST))
        self.theta.copy_(state.theta)
        self.pace.copy_(state.pace)
        self.records[n_iter:] = torch.cat([self.numbers, self.theta])  # where it stays if it ends
        self.done.fill_(state.has_settled(tol))
        self.ended &= state.ended
        if state.is_met(tol) and not state.diverged:
            self.remember(state, n_iter + 1)

    def remember(self, state: State, n_iter: int) -> None:
        """Keep this θ if its loss is less than that of all before."""
        if state.loss < float(self.least):
            self.least.fill_(state.loss)
            self.best_theta.copy_(state.theta)
            self.best_iter.fill_(n_iter)

    def choose(self, n_iter: int, options: Options) -> None:
        """Go back to the best θ, if the search ended elsewhere.

        Coordinate steps can cycle. Where they have not settled, the constraint may not hold, so the
        loss says little: it is computed anew.
        """
        if bool(self.done) and self.number("loss") <= float(self.least):
            self.best_iter.fill_(n_iter)
            return
        at_end, failures = begin(self.state(), options)
        if not failures:
            self.remember(at_end, n_iter)
        self.theta.copy_(self.best_theta)
        self.numbers[RECORDED.index("loss")] = self.least


# ---- (11a) and (11b) ---------------------------------------------------------------------------


def raise_duals(together: Together) -> None:
    """λ ← λ + ρ′(Cz − y_T) of every fold (11c)."""
    together.locals = [local._replace(dual=local.dual + local.pending) for local in together.locals]


def joint_step(together: Together, state: State, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Update λ, then θ ← argmin min_z L_ρ."""
    raise_duals(together)
    if not len(state.theta):
        return state.theta, state.pace
    parameter = nn.Parameter(state.theta.clone())

    def closure() -> Tensor:
        value, parameter.grad = together.value(parameter.detach(), Asked(weights=True, slope=True))
        return value

    def project() -> None:
        parameter.data.clamp_(*bounds.T)

    BoundedLBFGS([parameter], project, ITERATIONS, tol=SEARCH_GAIN, gtol=1.0).minimise(closure)
    return parameter.detach(), state.pace


def relaxed_step(together: Together, state: State, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Update θ, one coordinate at a time at the present z, then λ.

    With the λ for which z is the best, ∂L_ρ/∂θ is the slope of min_z L_ρ. The next λ would count
    the constraint's error twice, and relaxed steps would oscillate.
    """

    def evaluate(theta: Tensor, slope: bool) -> tuple[Tensor, Tensor]:
        return together.value(theta, Asked(slope=slope))

    theta, pace = state.theta, state.pace
    if len(theta):
        pace = next_pace(pace, evaluate(theta, True)[1])
        theta = relaxed(theta, coordinate_step(evaluate, theta, bounds), pace, bounds)
    raise_duals(together)
    return theta, pace


STEP_OF_SOLVER = {"joint": joint_step, "coordinate": relaxed_step}
