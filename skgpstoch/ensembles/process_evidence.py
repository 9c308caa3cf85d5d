"""Learn the hyper-parameters θ of an exact process from few rows, for one output.

The covariance is that of a smooth function, a line and a constant, on inputs a = x/ℓ that each
have a length-scale. The levels of a category have one together (:class:`ProcessInputs`), so that
each of them has a random effect on the line, of a learned variance. Row i counts wᵢ times and has
noise vᵢ/τᵢ. If an input is missing (mᵢⱼ = 1), its unknown effect on f is additional noise.

    k(x, x') = c·κ(‖a − a'‖) + b·aᵀa' + m,   C = K + diag(v/(wτ)),
    vᵢ = σ² + Σⱼ sⱼmᵢⱼ,   θ = log(c, b, σ², ℓ, s)

Few rows say little about θ, so predictions from its best value alone are too certain. θ has a
normal prior, where length-scales grow as √d (Hvarfner, Hellsten & Nardi, "Vanilla Bayesian
optimization performs great in high dimensions", ICML 2024). Predictions are averaged over draws
from Laplace's approximation of p(θ | y) (Rasmussen & Williams, section 3.4), whose Hessian comes
from differences of gradients. Everything below is in terms of z = (θ − prior mean)/prior deviation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.distances import Profile, matern_3, rbf, squared_distance
from ..maths.exact_solver import ExactSolver
from ..maths.linalg import cholesky, mirror_
from ..recipes.kernel_choice import MOST_RELEVANT_INPUTS
from ..training.exact_search import Limits, Search

# Prior medians and deviations of logarithms, for X and y of variance 1. Chosen on ten tables of 50,
# 100 and 200 rows, where most choices came within .01 nats.
SIGNAL_PRIOR = (0.0, 1.0)
SLOPE_PRIOR = (-3.0, 1.5)
NOISE_PRIOR = (-4.0, 2.0)
LENGTH_SCALE_PRIOR = (math.log(3.0), 2.0)  # of ℓ/√d

CONSTANT_VARIANCE = 1.0  # m: of the mean, which is known to be about 0
FARTHEST_DEVIATIONS = 6.0  # of the prior: bounds of a search
SEARCH_LIMITS = Limits(max_iter=40, tol=1e-4, gtol=1e-2)  # draws differ by more than what is left
DIFFERENCE = 1e-3  # of z, for second derivatives
MOST_ROWS = 20_000  # of a file, to factorise again: ten times what processes are recommended for


class ProcessInputs(NamedTuple):
    """Which columns of X share a length-scale, and the unit of each in it.

    The levels of a category are one input. With their common unit, the root of their summed
    variances, it has variance 1, as other inputs have, and rare levels do not count for more. With
    more than `MOST_RELEVANT_INPUTS` inputs there is a single length-scale.

    Parameters
    ----------
    place : Tensor of shape (d,)
        Which length-scale a column has.
    unit : Tensor of shape (d,)
        The column's unit, for X of variance 1.
    n_inputs, n_missing : int
        Number of inputs, and q of columns that say what is missing.
    """

    place: Tensor
    unit: Tensor
    n_inputs: int
    n_missing: int

    @classmethod
    def of(cls, groups: np.ndarray, std: np.ndarray, n_missing: int) -> ProcessInputs:
        """Return the inputs of columns with these groups and standard deviations, each (d,)."""
        _, place = np.unique(groups, return_inverse=True)
        total = np.sqrt(np.bincount(place, std**2))
        unit = np.where(np.bincount(place)[place] > 1, total[place] / std, 1.0)
        n_inputs = len(total)
        if n_inputs > MOST_RELEVANT_INPUTS:
            place = np.zeros_like(place)
        return cls(torch.from_numpy(place), torch.from_numpy(unit), n_inputs, n_missing)

    @property
    def n_scales(self) -> int:
        """Number of length-scales."""
        return self.n_inputs if self.n_inputs <= MOST_RELEVANT_INPUTS else 1

    def prior(self) -> Tensor:
        """Return prior means and deviations of θ, (2, D)."""
        log_scale, std = LENGTH_SCALE_PRIOR
        of_scale = (log_scale + 0.5 * math.log(max(self.n_inputs, 1)), std)
        pairs = [SIGNAL_PRIOR, SLOPE_PRIOR, NOISE_PRIOR, *[of_scale] * self.n_scales]
        pairs += [NOISE_PRIOR] * self.n_missing  # of (−4, 2) to (−1.5, 1.5) all within .01 nats
        return torch.tensor(pairs, dtype=torch.float64, device="cpu").T

    def to(self, device: torch.device) -> ProcessInputs:
        """Move to a device."""
        return self._replace(place=self.place.to(device), unit=self.unit.to(device))


NONE = ProcessInputs.of(np.empty(0, dtype=np.intp), np.empty(0), 0)


class Shape(NamedTuple):
    """A kernel without its hyper-parameters: which κ, if any, and whether there is a line."""

    profile: Profile | None
    is_linear: bool = True

    def inputs(self, X: Tensor) -> Tensor:
        """Return the columns that matter, (N, d): none for a constant."""
        return X if self.is_linear else X[:, :0]

    def known(self, rows: ProcessRows) -> ProcessInputs:
        """Return the inputs that matter: none for a constant."""
        return rows.inputs if self.is_linear else NONE.to(rows.X.device)

    def start(self, rows: ProcessRows) -> np.ndarray:
        """Return z where the prior is highest, (D,)."""
        return np.zeros(self.known(rows).prior().shape[1])


KERNEL_SHAPES = {
    "rbf": Shape(rbf),
    "matern": Shape(matern_3),
    "linear": Shape(None),
    "constant": Shape(None, is_linear=False),
}


class ProcessRows(NamedTuple):
    """Scaled rows of one output: X (N, d), and y, weights w and precisions τ, each (N,).

    `missing` (N, q) is 1 where an input is missing; `inputs` says what columns X has.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    precision: Tensor
    missing: Tensor
    inputs: ProcessInputs

    @property
    def relative_noise(self) -> Tensor:
        """1/(wτ), the noise variance of the mean of a row's copies in units of v, (N,)."""
        return 1.0 / (self.weight * self.precision)

    def some(self, index: Tensor) -> ProcessRows:
        """Return rows by their numbers."""
        return ProcessRows(*(column[index] for column in self[:-1]), self.inputs)


class Theta(NamedTuple):
    """Hyper-parameters: c, b and σ², each (), ℓ of the columns of X (d,), and s (q,)."""

    signal: Tensor
    slope: Tensor
    noise: Tensor
    length_scale: Tensor
    missing: Tensor

    @classmethod
    def of(cls, z: Tensor, inputs: ProcessInputs) -> Theta:
        """Return what z stands for."""
        mean, std = inputs.prior().to(z)
        c, b, noise = (values := (mean + std * z).exp())[:3]
        first = len(values) - inputs.n_missing
        return cls(c, b, noise, values[3:first][inputs.place] * inputs.unit, values[first:])

    def noise_where(self, missing: Tensor) -> Tensor:
        """Return v (N,) of rows with missing inputs (N, q); for a constant none matters."""
        return self.noise + missing[:, : len(self.missing)] @ self.missing

    def parts_of_noise(self, missing: Tensor, first: int) -> list[tuple[int, Tensor]]:
        """Return the summands of v, each with the place of its logarithm in θ; `first` is s's."""
        parts = self.missing[:, None] * missing.mT  # (q, N)
        return [(2, self.noise), *enumerate(parts, first)]


def covariance(shape: Shape, theta: Theta, X: Tensor, Z: Tensor) -> Tensor:
    """Return k(X, Z), (N, M)."""
    return made(shape, theta, *(shape.inputs(rows) / theta.length_scale for rows in (X, Z)))[0]


def made(shape: Shape, theta: Theta, A: Tensor, B: Tensor | None) -> tuple[Tensor, Any]:
    """Return k of inputs in length-scales, and κ with its slope, each (N, M); no B is A."""
    other = A if B is None else B
    K = A.new_full((len(A), len(other)), CONSTANT_VARIANCE)
    radial = None if shape.profile is None else shape.profile(squared_distance(A, B))
    if radial is not None:
        K.add_(radial[0], alpha=float(theta.signal))
    return K.addmm_(A, other.mT, alpha=float(theta.slope)) if shape.is_linear else K, radial


def variance(shape: Shape, theta: Theta, X: Tensor) -> Tensor:
    """Return k(x, x), (N,)."""
    k = X.new_full((len(X),), CONSTANT_VARIANCE)
    if shape.profile is not None:
        k += theta.signal
    return k + theta.slope * (X / theta.length_scale).square().sum(1) if shape.is_linear else k


def factor(shape: Shape, theta: Theta, X: Tensor, noise: Tensor) -> Tensor:
    """Return L (N, N) of C = K + diag(noise)."""
    C = covariance(shape, theta, X, X)
    C.diagonal().add_(noise)
    return cholesky(C, "covariance of the rows")


# ---- θ given rows --------------------------------------------------------------------------------


class LogPosterior:
    """log p(y | θ) + log p(θ) as a function of z, (D,), with its gradient."""

    def __init__(self, shape: Shape, rows: ProcessRows) -> None:
        self.shape = shape
        self.inputs = shape.known(rows)
        self.rows = rows._replace(X=shape.inputs(rows.X), missing=shape.inputs(rows.missing))
        self.std = self.inputs.prior()[1].numpy()

    def __call__(self, z: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats, up to a constant; −inf where the covariance is not positive definite."""
        value, gradient = self.evidence(torch.from_numpy(z).to(self.rows.X))
        return value - 0.5 * float(z @ z), gradient.cpu().numpy() * self.std - z

    def evidence(self, z: Tensor) -> tuple[float, Tensor]:
        """Return log p(y | θ) and its gradient by θ: ∂ = tr(G ∂C/∂θ), G the slope by C."""
        X, y, relative = self.rows.X, self.rows.y, self.rows.relative_noise
        theta, gradient = Theta.of(z, self.inputs), torch.zeros_like(z)
        c, b = theta[:2]
        v = theta.noise_where(self.rows.missing)  # (N,)
        A = X / theta.length_scale  # (N, d)
        C, radial = made(self.shape, theta, A, None)
        C.diagonal().add_(v * relative)
        solver = ExactSolver.of_(C, y[:, None])
        if solver is None:
            return -math.inf, gradient
        # A mean of w copies is known with noise v/w; the copies are at their mean.
        others = self.rows.weight - 1.0
        value = solver.log_density(y[:, None]) - 0.5 * others @ v.log()
        G = mirror_(solver.slope_())
        after = 3 + self.inputs.n_scales
        for j, part in theta.parts_of_noise(self.rows.missing, after):
            gradient[j] = G.diagonal() @ (part * relative) - 0.5 * others @ (part / v)
        by_scale = torch.zeros_like(A[0])  # ∂/∂log ℓ of each column, (d,)
        if self.shape.is_linear:
            along = b * (A * (G @ A)).sum(0)
            gradient[1] = along.sum()
            by_scale -= 2.0 * along
        if radial is not None:
            kappa, slope = radial
            gradient[0] = c * torch.dot(G.view(-1), kappa.view(-1))
            W = G.mul_(slope).mul_(c)
            by_scale -= 4.0 * (W.sum(1) @ A.square() - (A * (W @ A)).sum(0))
        gradient[3:after].index_add_(0, self.inputs.place, by_scale)
        return float(value), gradient


def search(objective: LogPosterior, start: np.ndarray) -> np.ndarray:
    """Return the z of largest posterior density, (D,)."""
    bounds = np.tile([-FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS], (len(start), 1))
    return Search(objective, SEARCH_LIMITS).run("fmin_l_bfgs_b", start, bounds).theta


def laplace_draws(objective: LogPosterior, z: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Return z + H^−½ε, (S, D), for ε (S, D): H is minus the curvature, and at least the prior's.

    With ε and −ε in pairs, the mean of the draws is z. One ε of 0 needs no curvature.
    """
    if not normals.any():
        return z + normals
    at_z = objective(z)[1]
    rows = [at_z - objective(z + step)[1] for step in DIFFERENCE * np.eye(len(z))]
    H = np.array(rows) / DIFFERENCE
    curvature, V = np.linalg.eigh(0.5 * (H + H.T))
    return z + normals / np.sqrt(np.maximum(curvature, 1.0)) @ V.T


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
        theta = Theta.of(torch.from_numpy(z).to(rows.X), shape.known(rows))
        noise = theta.noise_where(rows.missing) * rows.relative_noise
        L, A = ExactSolver.given(factor(shape, theta, rows.X, noise), rows.y[:, None])
        return cls(shape, theta, rows.X, noise, A[:, 0], [L])

    @property
    def L(self) -> Tensor:
        """The factor of C, (N, N)."""
        if not self.held:
            self.held.append(factor(self.shape, self.theta, self.X, self.noise))
        return self.held[0]

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
        """Return the process with these parts, whose covariance is factorised when it is needed.

        Raises
        ------
        ValueError
            If a file has more rows than a process should have, and asks for too much memory.
        """
        if len(X) > MOST_ROWS:
            raise ValueError(f"a process has at most {MOST_ROWS} rows, got {len(X)}")
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
        return covariance(self.shape, self.theta, X, self.X) @ self.alpha

    def moments(self, X: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y, its noise included, each (N*,)."""
        K_star = covariance(self.shape, self.theta, X, self.X)  # (N*, N)
        var = self.solver.variance(variance(self.shape, self.theta, X), K_star)
        return K_star @ self.alpha, var.clamp_min(0.0) + self.theta.noise_where(missing)

    def joint(self, X: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (N*,) and covariance (N*, N*) of y, its noise included."""
        K_star = covariance(self.shape, self.theta, X, self.X)
        cov = self.solver.covariance(covariance(self.shape, self.theta, X, X), K_star)
        cov.diagonal().add_(self.theta.noise_where(missing))
        return K_star @ self.alpha, cov

    def left_out(self, rows: ProcessRows) -> tuple[Tensor, Tensor, Tensor]:
        """Predict each row from the others: y minus its mean, the variance of y, and log p(y).

        Each is (N,). The variance is that of a new y, with noise v. The density, up to constants,
        is that of the row with its weight, as in p(y | θ).
        """
        (A, var), v = self.solver.left_out(), self.theta.noise_where(rows.missing)
        residual, others = A[:, 0], rows.weight - 1.0  # as in `LogPosterior.evidence`
        log_p = -0.5 * (var.log() + residual.square() / var + others * v.log())
        return residual, (var - v * rows.relative_noise).clamp_min(0.0) + v, log_p
