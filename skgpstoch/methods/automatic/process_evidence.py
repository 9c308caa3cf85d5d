"""Learn the hyper-parameters θ of an exact process from few rows, for one output.

The covariance is that of a smooth function, a line and a constant, on inputs a = x/ℓ that each
have a length-scale. Row i counts wᵢ times and has noise vᵢ/τᵢ. If an input is missing (mᵢⱼ = 1),
its unknown effect on f is additional noise, as is a known error eᵢ of the target.

    k(x, x') = c·κ(‖a − a'‖) + b·aᵀa' + m,   C = K + diag(v/(wτ)),
    vᵢ = σ² + Σⱼ sⱼmᵢⱼ + eᵢ²,   θ = log(c, b, σ², ℓ, s)

Few rows say little about θ, so predictions from its best value alone are too certain. θ has a
normal prior, where length-scales grow as √d (Hvarfner, Hellsten & Nardi, "Vanilla Bayesian
optimization performs great in high dimensions", ICML 2024). Predictions are averaged over draws
from Laplace's approximation of p(θ | y) (Rasmussen & Williams, section 3.4), whose Hessian comes
from differences of gradients. Everything below is in terms of z = (θ − prior mean)/prior deviation.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.distances import (
    FARTHEST,
    Profile,
    matern_1,
    matern_3,
    rbf,
    scaled_rows,
    squared,
)
from ...kernels.matrices import TermsCovariance
from ...kernels.traces import Factor, KernelTerm, SumOfProducts, line, line_diagonal, one, radial
from ...maths.exact_solver import ExactSolver
from ...maths.linalg import cholesky, mirror_
from ...training.exact_search import LBFGS, Evidence, Limits, Search
from ...training.interrupts import was_interrupted
from ...training.recipes.kernel_choice import MOST_RELEVANT_INPUTS, MOST_SCALES

# Prior medians and deviations of logarithms, for X and y of variance 1. Chosen on ten tables of 50,
# 100 and 200 rows, where most choices came within .01 nats.
SIGNAL_PRIOR = (0.0, 1.0)
SLOPE_PRIOR = (-3.0, 1.5)
NOISE_PRIOR = (-4.0, 2.0)
LENGTH_SCALE_PRIOR = (math.log(3.0), 2.0)  # of ℓ/√d
MANY_SCALES_PRIOR = (math.log(3.0), 1.0)  # of ℓ/√d, where more than 64 inputs have one each

CONSTANT_VARIANCE = 1.0  # m: of the mean, which is known to be about 0
LEVEL_PRIOR = (0.0, 1.0)  # of a level's own factor of its category's length-scale
FEW_INPUTS, ROWS_PER_INPUT = 12, 5.0
"""More inputs than these, and than one for so many rows, are many.

Left-out rows overrate their length-scales (:func:`~.process_fit.optimism`), and one more kernel has
one for all. *Measured* on 13 samples of tables, four seeds each (made-up ones of 50 to 200 rows and
30 to 60 inputs, of which three to all, or none, matter; pol, bike, elevators, housing): NLPD .30 in
place of .33, 90 % intervals hold .89 of new rows (they held .85), left-out rows say .22 (they said
.04). Without length-scales for each in other kernels, they hold .91, but smooth functions of three
of 13 inputs with little noise lose 1.5 nats.
"""
ROWS_FOR_OWN = 8.0  # rows for each level, for levels to have one: fewer cost .02 to .1 nats

FARTHEST_DEVIATIONS = 6.0  # of the prior: bounds of a search
SEARCH_LIMITS = Limits(max_iter=40, tol=1e-4, gtol=1e-2)  # draws differ by more than what is left
DIFFERENCE = 1e-3  # of z, for second derivatives
LOST_NATS = 5.0  # by which a draw may be less likely than Laplace's approximation says
DRAW_HALVINGS = 6  # of the step to a draw that is less likely still


class ProcessInputs(NamedTuple):
    """Which columns of X share a length-scale, and the unit of each in it.

    The levels of a category are one input. With their common unit, the root of their summed
    variances, it has variance 1, as other inputs have, and rare levels do not count for more. With
    more than `MOST_SCALES` inputs there is a single length-scale. Levels of enough rows may have a
    factor of their own.

    Parameters
    ----------
    place : ndarray of shape (d,)
        Which length-scale a column has.
    unit : ndarray of shape (d,)
        The column's unit, for X of variance 1.
    n_inputs, n_missing : int
        Number of inputs, and q of columns that say what is missing.
    levels : ndarray of shape (n_levels,)
        Columns with a factor of their own.
    n_scales : int
        Number of length-scales.
    are_many : bool
        Whether inputs are many for the rows.
    """

    place: np.ndarray
    unit: np.ndarray
    n_inputs: int
    n_missing: int
    levels: np.ndarray
    n_scales: int
    are_many: bool

    @classmethod
    def of(cls, groups: np.ndarray, std: np.ndarray, n_missing: int, n_rows: int) -> ProcessInputs:
        """Return the inputs of columns with these groups and standard deviations, each (d,)."""
        _, place = np.unique(groups, return_inverse=True)
        top = np.zeros(place.max(initial=-1) + 1)
        np.maximum.at(top, place, std)
        total = top * np.sqrt(np.bincount(place, (std / top[place]) ** 2))  # std² may overflow
        size = np.bincount(place)[place]
        unit = np.where(size > 1, total[place] / std, 1.0)
        levels = np.flatnonzero((size > 1) & (n_rows >= ROWS_FOR_OWN * size))
        n_inputs = len(total)
        few = min(max(FEW_INPUTS, n_rows / ROWS_PER_INPUT), MOST_RELEVANT_INPUTS)
        inputs = cls(place, unit, n_inputs, n_missing, levels, n_inputs, n_inputs > few)
        return inputs if n_inputs <= MOST_SCALES else inputs.alike()

    def alike(self) -> ProcessInputs:
        """Return the same with a single length-scale."""
        return self._replace(place=np.zeros_like(self.place), levels=self.levels[:0], n_scales=1)

    def shared(self) -> ProcessInputs:
        """Return the same where no level has a factor of its own."""
        return self._replace(levels=self.levels[:0])

    @property
    def first_missing(self) -> int:
        """Place of the first of s in θ."""
        return self.first_level + len(self.levels)

    @property
    def first_level(self) -> int:
        """Place of the first factor of a level in θ."""
        return 3 + self.n_scales

    @property
    def are_wide(self) -> bool:
        """Whether they are more than most kernels have length-scales for."""
        return self.n_inputs > MOST_RELEVANT_INPUTS

    @property
    def has_many_scales(self) -> bool:
        """Whether each of many inputs has a length-scale."""
        return self.are_many and self.n_scales > 1

    def prior(self) -> np.ndarray:
        """Return prior means and deviations of θ, (2, D)."""
        is_wide = self.n_scales > MOST_RELEVANT_INPUTS
        log_scale, std = MANY_SCALES_PRIOR if is_wide else LENGTH_SCALE_PRIOR
        of_scale = (log_scale + 0.5 * math.log(max(self.n_inputs, 1)), std)
        pairs = [SIGNAL_PRIOR, SLOPE_PRIOR, NOISE_PRIOR, *[of_scale] * self.n_scales]
        pairs += [LEVEL_PRIOR] * len(self.levels)
        pairs += [NOISE_PRIOR] * self.n_missing  # of (−4, 2) to (−1.5, 1.5) all within .01 nats
        return np.array(pairs).T

    def of_columns(self, log_theta: np.ndarray) -> np.ndarray:
        """Return log(c, b) and log ℓ of each column, (2 + d,), of all log θ (D,)."""
        log_scale = log_theta[3 : self.first_level][self.place] + np.log(self.unit)
        log_scale[self.levels] += log_theta[self.first_level : self.first_missing]
        return np.concatenate([log_theta[:2], log_scale])

    def summed(self, slopes: np.ndarray) -> np.ndarray:
        """Return slopes by log θ, (D,), of those by what :meth:`of_columns` returns."""
        found = np.zeros(self.first_missing + self.n_missing)
        found[:2] = slopes[:2]
        np.add.at(found[3:], self.place, slopes[2:])
        found[self.first_level : self.first_missing] = slopes[2 + self.levels]
        return found


NO_INPUTS = ProcessInputs.of(np.empty(0, dtype=np.intp), np.empty(0), 0, 0)


class Shape(NamedTuple):
    """A kernel without its hyper-parameters: which κ, if any, and whether there is a line.

    `scales` says what has a length-scale: "usual", each of up to 64 inputs, and others together;
    "by level", the same, and levels of a category have factors of its own; "by input", each input;
    "one", all inputs together.
    """

    profile: Profile | None
    is_linear: bool = True
    scales: str = "usual"

    def inputs(self, X: Tensor) -> Tensor:
        """Return the columns that matter, (N, d): none for a constant."""
        return X if self.is_linear else X[:, :0]

    def known(self, rows: ProcessRows) -> ProcessInputs:
        """Return the inputs that matter: none for a constant."""
        known = rows.inputs if self.is_linear else NO_INPUTS
        if self.scales == "one" or (known.are_wide and self.scales != "by input"):
            known = known.alike()
        return known if self.scales == "by level" else known.shared()

    def start(self, rows: ProcessRows) -> np.ndarray:
        """Return z where the prior is highest, (D,)."""
        return np.zeros(self.known(rows).prior().shape[1])

    def covariance(self, theta: Theta, X: Tensor) -> TermsCovariance:
        """Return the covariance of rows, whose own θ is log(c, b, ℓ)."""
        variances = torch.stack([theta.signal, theta.slope])
        values = np.concatenate([a.cpu().numpy() for a in (variances, theta.length_scale)])
        n = len(values)
        terms, scales = [KernelTerm((n,))], slice(2, n)
        if self.profile is not None:
            smooth = functools.partial(radial, self.profile)
            terms.append(KernelTerm((0,), (Factor(smooth, scales, one),)))
        if self.is_linear:
            terms.append(KernelTerm((1,), (Factor(line, scales, line_diagonal),)))
        kernel = SumOfProducts(terms, np.append(values, CONSTANT_VARIANCE), np.arange(n + 1) < n)
        return TermsCovariance(kernel, self.inputs(X), X.device)


BY_LEVEL, BY_INPUT, ONE_SCALE = "matern by level", "matern by input", "matern of one scale"
KERNEL_SHAPES = {
    "rbf": Shape(rbf),
    "matern": Shape(matern_3),
    "rough": Shape(matern_1),
    "linear": Shape(None),
    "constant": Shape(None, is_linear=False),
    BY_LEVEL: Shape(matern_3, scales="by level"),
    BY_INPUT: Shape(matern_3, scales="by input"),
    ONE_SCALE: Shape(matern_3, scales="one"),
}


class ProcessRows(NamedTuple):
    """Scaled rows of one output: X (N, d), and y, weights w and precisions τ, each (N,).

    `missing` (N, q) is 1 where an input is missing; `inputs` says what columns X has; `known` (N,)
    has the variances e² of known errors, if there are any; `cluster` (N,) the codes of the groups
    that are left out together.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    precision: Tensor
    missing: Tensor
    inputs: ProcessInputs
    known: Tensor | None = None
    cluster: Tensor | None = None

    @property
    def relative_noise(self) -> Tensor:
        """1/(wτ), the noise variance of the mean of a row's copies in units of v, (N,)."""
        return 1.0 / (self.weight * self.precision)

    def some(self, index: Tensor) -> ProcessRows:
        """Return rows by their numbers."""
        X, y, weight, precision, missing = (column[index] for column in self[:5])
        known, cluster = (None if c is None else c[index] for c in (self.known, self.cluster))
        return ProcessRows(X, y, weight, precision, missing, self.inputs, known, cluster)

    def noise(self, theta: Theta) -> Tensor:
        """Return v (N,)."""
        noise = theta.noise_where(self.missing)
        return noise if self.known is None else noise + self.known


class Theta(NamedTuple):
    """Hyper-parameters: c, b and σ², each (), ℓ of the columns of X (d,), and s (q,)."""

    signal: Tensor
    slope: Tensor
    noise: Tensor
    length_scale: Tensor
    missing: Tensor

    @classmethod
    def of(cls, log_theta: np.ndarray, inputs: ProcessInputs, device: torch.device) -> Theta:
        """Return what logarithms (D,) stand for."""
        columns = torch.from_numpy(np.exp(inputs.of_columns(log_theta))).to(device)
        values = torch.from_numpy(np.exp(log_theta)).to(device)
        c, b, noise = values[:3]
        return cls(c, b, noise, columns[2:], values[inputs.first_missing :])

    def noise_where(self, missing: Tensor) -> Tensor:
        """Return v (N,) for targets without known errors; for a constant no input matters."""
        return self.noise + missing[:, : len(self.missing)] @ self.missing

    def parts_of_noise(self, missing: Tensor, first: int) -> list[tuple[int, Tensor]]:
        """Return the learned parts of v, each with its place in θ, where s starts at `first`."""
        parts = self.missing[:, None] * missing.mT  # (q, N)
        return [(2, self.noise), *enumerate(parts, first)]


# ---- θ given rows --------------------------------------------------------------------------------


class LogPosterior(Evidence):
    """log p(y | θ) + log p(θ) as a function of z, (D,), with its gradient."""

    def __init__(self, shape: Shape, rows: ProcessRows) -> None:
        self.rows = rows._replace(missing=shape.inputs(rows.missing))
        self.inputs = shape.known(rows)
        self.mean, self.std = self.inputs.prior()
        covariance = shape.covariance(self.theta(self.mean), rows.X)
        super().__init__(covariance, rows.y[:, None], rows.relative_noise)

    def theta(self, log_theta: np.ndarray) -> Theta:
        """Return what logarithms stand for."""
        return Theta.of(log_theta, self.inputs, self.rows.y.device)

    def __call__(self, z: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats, up to a constant; −inf where the covariance is not positive definite.

        A mean of w copies is known with noise v/w; the copies are at their mean.
        """
        theta = self.theta(log_theta := self.mean + self.std * z)
        relative, others = self.rows.relative_noise, self.rows.weight - 1.0
        v = self.rows.noise(theta)  # (N,)
        self.noise = v * relative
        solver, pull = self.solved(self.inputs.of_columns(log_theta), eval_gradient)
        if solver is None:
            return -math.inf, -z
        value = float(solver.log_density(self.Y) - 0.5 * others @ v.log()) - 0.5 * float(z @ z)
        if pull is None:
            return value, -z
        G = solver.slope_()
        diagonal = G.diagonal() * relative - 0.5 * others / v  # before `pull` overwrites G
        gradient = self.inputs.summed(pull(G))
        for j, part in theta.parts_of_noise(self.rows.missing, self.inputs.first_missing):
            gradient[j] = float((diagonal * part).sum())
        return value, self.std * gradient - z


def search(objective: LogPosterior, start: np.ndarray) -> np.ndarray:
    """Return the z of largest posterior density, (D,)."""
    bounds = np.tile([-FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS], (len(start), 1))
    return Search(objective, SEARCH_LIMITS).run(LBFGS, start, bounds).theta


def curvature(objective: LogPosterior, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return H = V diag(h) Vᵀ, minus the curvature at z and at least the prior's: h (D,), V (D, D).

    After an interrupt it is the prior's, which takes no time.
    """
    _, at_z = objective(z)
    H = np.eye(len(z))
    for j in range(len(z)):
        if was_interrupted():
            return np.ones(len(z)), np.eye(len(z))
        H[j] = (at_z - objective(z + DIFFERENCE * np.eye(1, len(z), j)[0])[1]) / DIFFERENCE
    h, V = np.linalg.eigh(0.5 * (H + H.T))
    return np.maximum(h, 1.0), V


def laplace_draws(
    objective: LogPosterior,
    z: np.ndarray,
    normals: np.ndarray,
    curved: tuple[np.ndarray, np.ndarray] | None,
) -> np.ndarray:
    """Return z + H^−½ε, (S, D), for ε (S, D) and the :func:`curvature` H.

    With ε and −ε in pairs, the mean of the draws is z, unless some are nearer than they should be:
    see :func:`likely_draw`. One ε of 0 needs no curvature, which may be None.
    """
    if curved is None or not normals.any():
        return z + normals
    h, V = curved
    root = V / np.sqrt(h) @ V.T  # symmetric: the signs in V do not count
    least = objective(z, False)[0] - 0.5 * np.square(normals).sum(1) - LOST_NATS
    steps = zip(normals @ root, least, strict=True)
    return np.array([likely_draw(objective, z, step, of_step) for step, of_step in steps])


def likely_draw(
    objective: LogPosterior, z: np.ndarray, step: np.ndarray, least: float
) -> np.ndarray:
    """Return z plus the step, within the bounds; half of it while less likely than `least`, (D,).

    Where y has no noise, gradients are inexact, and a bound is where the search ends: there, H may
    be far from the curvature. *Measured* on 260 rows of exp(sin 2a + b): draws were up to 4·10⁵
    nats less likely than z, and the error of their mean was .13 to 1.0 with the unit of y.
    """
    for _ in range(DRAW_HALVINGS):
        draw = np.clip(z + step, -FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS)
        if objective(draw, False)[0] >= least:
            return draw
        step = 0.5 * step
    return z


# ---- f given θ and rows --------------------------------------------------------------------------


class Process(NamedTuple):
    """p(f | y, θ): the rows' X (N, d), v/(wτ) (N,), α = C⁻¹y (N,), and the factor L of C (N, N).

    `held` has L. It is empty in a loaded process until L is needed, because a small file could ask
    for much memory.
    """

    shape: Shape
    theta: Theta
    X: Tensor
    noise: Tensor
    alpha: Tensor
    held: list[Tensor]

    @classmethod
    def given(cls, shape: Shape, z: np.ndarray, rows: ProcessRows) -> Process:
        """Condition on rows."""
        inputs = shape.known(rows)
        mean, std = inputs.prior()
        theta = Theta.of(mean + std * z, inputs, rows.y.device)
        noise = rows.noise(theta) * rows.relative_noise
        process = cls(shape, theta, rows.X, noise, rows.y, [])
        return process._replace(alpha=ExactSolver.given(process.L, rows.y[:, None]).A[:, 0])

    @property
    def L(self) -> Tensor:
        """The factor of C, (N, N)."""
        if not self.held:
            k = self.covariance
            C = k.empty()
            k.gram_(C)
            C.diagonal().add_(self.noise)
            self.held.append(cholesky(mirror_(C), "covariance of the rows"))
        return self.held[0]

    @property
    def covariance(self) -> TermsCovariance:
        """The covariance of the rows."""
        return self.shape.covariance(self.theta, self.X)

    @property
    def solver(self) -> ExactSolver:
        """What solves for C."""
        return ExactSolver(self.L, self.alpha[:, None])

    def kept(self) -> dict[str, Any]:
        """Return what pickles and files keep: all but the factor, which is most of the memory."""
        return {name: value for name, value in self._asdict().items() if name != "held"}

    @classmethod
    def restored(
        cls, shape: Shape, theta: Theta, X: Tensor, noise: Tensor, alpha: Tensor
    ) -> Process:
        """Return the process with these parts, whose covariance is factorised when it is needed."""
        return cls(shape, theta, X, noise, alpha, [])

    def __reduce__(self) -> Any:
        return self.restored, tuple(self.kept().values())

    def to(self, device: torch.device) -> Process:
        """Move to a device."""
        theta = Theta(*(value.to(device) for value in self.theta))
        X, noise, alpha = (column.to(device) for column in (self.X, self.noise, self.alpha))
        return Process(self.shape, theta, X, noise, alpha, [L.to(device) for L in self.held])

    def mean(self, X: Tensor) -> Tensor:
        """Return the mean of y, (N*,)."""
        return self.covariance.cross(self.shape.inputs(X)) @ self.alpha

    def slopes(self, X: Tensor) -> Tensor:
        """Return the derivatives of that mean by the inputs, (N*, d); 0 of a constant."""
        if not self.shape.is_linear:
            return torch.zeros_like(X)
        scale = self.theta.length_scale
        found = self.theta.slope * (self.alpha @ (self.X / scale))  # of the line, (d,)
        if self.shape.profile is not None:
            A, B = scaled_rows(X, self.X, scale)
            _, by_r2 = self.shape.profile(squared(A, B).clamp_(max=FARTHEST))
            W = self.theta.signal * self.alpha * by_r2  # (N*, N)
            found = found + 2.0 * (W.sum(1, keepdim=True) * A - W @ B)
        return (found / scale).expand_as(X)

    def moments(self, X: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y, its noise included, each (N*,)."""
        k, X = self.covariance, self.shape.inputs(X)
        K_star = k.cross(X)  # (N*, N)
        var = self.solver.variance(k.diag(X), K_star)
        return K_star @ self.alpha, var.clamp_min(0.0) + self.theta.noise_where(missing)

    def joint(self, X: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (N*,) and covariance (N*, N*) of y, its noise included."""
        k, X = self.covariance, self.shape.inputs(X)
        K_star = k.cross(X)
        cov = self.solver.covariance(k.among(X), K_star)
        cov.diagonal().add_(self.theta.noise_where(missing))
        return K_star @ self.alpha, cov

    def left_out(self, rows: ProcessRows) -> tuple[Tensor, Tensor, Tensor]:
        """Predict each row from the others: y minus its mean, the variance of y, and log p(y).

        Each is (N,). If there are groups, the others are those of other groups. The variance is
        that of a new y, with noise v. The density, up to constants, is that of the row with its
        weight, as in p(y | θ).
        """
        solver, groups, v = self.solver, rows.cluster, rows.noise(self.theta)
        A, var = solver.left_out() if groups is None else solver.groups_left_out(groups)
        residual, others = A[:, 0], rows.weight - 1.0  # as in `LogPosterior`
        log_p = -0.5 * (var.log() + residual.square() / var + others * v.log())
        return residual, (var - v * rows.relative_noise).clamp_min(0.0) + v, log_p
