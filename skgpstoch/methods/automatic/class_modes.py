"""Softmax of Gaussian processes: find the mode of f given θ, and θ by regression on labels.

For C classes, f_c ~ GP(0, s²k) and p(y = c | f) = softmax(offset + f)_c. With M points Z among the
rows, k(Z, Z) = QΛQᵀ and φ(x) = Λ^−½Qᵀk(Z, x), f = s·φ(x)ᵀu, which is exact if Z are all rows. The
mode of p(f | y) (Rasmussen & Williams, section 3.5) is where, with Fᵢ = φ(xᵢ)ᵀ,

    ψ(u) = ½‖u‖² − Σᵢ wᵢ log softmax(offset + s·(Fu)ᵢ)[yᵢ]

is least, a convex function. Newton steps use conjugate gradients, which only multiply by F. Its
columns are nearly orthogonal, so the diagonal of the curvature is a good preconditioner. Rows of
weight 0 are like new rows, so all folds are solved at once.

Length-scales are those with which a process best explains the labels as numbers, with the noise
variance σ² at its best value (Rasmussen & Williams, section 6.5): one evidence for all classes.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...kernels import from_sklearn
from ...kernels.matrices import Covariance
from ...maths.linalg import eigh, log_det
from ...training.exact_search import LBFGS, Evidence, Search
from ...training.projected_lbfgs import quasi_newton
from .process_evidence import FARTHEST_DEVIATIONS, SEARCH_LIMITS, ProcessInputs

LABEL_SIGNAL_PRIOR = (math.log(3.0), 1.5)  # of log c, in units of the labels' noise
LABEL_SLOPE_PRIOR = (math.log(0.3), 1.5)  # of log b·d
LABEL_SCALE_PRIOR = (math.log(3.0), 0.5)  # of log ℓ/√d: labels say little of each
LONGEST_STEP = 1.0  # by which a fold moves θ, in deviations of the prior
MOST_NEWTON_STEPS = 30
NEWTON_TOL = 0.01  # nats that a step promises, below which it is the last
NEWTON_TOL_OF_ROW = 3e-4  # nats for each row, if that is more
CG_STEPS = 12
CG_TOL = 0.3  # share of the gradient that may be left
STEP_HALVINGS = 12  # of a step
PRECISE_POINTS = 200  # with more, the spectrum is found in float32, in half the time
NEGLIGIBLE_VARIANCE = 1e-3  # share of the variance of f that is left out


# ---- θ given labels ------------------------------------------------------------------------------


class PriorKernel(NamedTuple):
    """A kernel of scaled inputs with a normal prior of its θ: means and deviations, each (D,).

    Some of the kernel's own hyper-parameters (E,) are equal: each is that of θ at its `place`.
    """

    kernel: sk.Kernel
    mean: np.ndarray
    std: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, name: str, inputs: ProcessInputs) -> PriorKernel:
        """Return a kernel of inputs of variance 1, by its name.

        "linear" is 1 + xᵀx'; "rbf" and "rough" (Matérn-1/2) are smooth or rough functions, and
        b·(1 + xᵀx') besides, with one length-scale, or with "ard" one for every input.
        """
        line, d = sk.DotProduct(1.0, "fixed"), max(inputs.n_inputs, 1)
        if name == "linear":
            return cls(line, np.empty(0), np.empty(0), np.empty(0, np.intp))
        is_ard = name.endswith("ard") and inputs.n_scales > 1
        place = inputs.place if is_ard else np.zeros(1, np.intp)
        n_scales = inputs.n_scales if is_ard else 1
        (log_scale, std), (c, c_std), (b, b_std) = (
            LABEL_SCALE_PRIOR,
            LABEL_SIGNAL_PRIOR,
            LABEL_SLOPE_PRIOR,
        )
        log_scale, b = log_scale + 0.5 * math.log(d), b - math.log(d)
        scales = np.full(len(place), math.exp(log_scale)) if is_ard else math.exp(log_scale)
        shape = sk.Matern(scales, nu=0.5) if name.startswith("rough") else sk.RBF(scales)
        kernel = sk.ConstantKernel(math.exp(c)) * shape + sk.ConstantKernel(math.exp(b)) * line
        mean, deviation = [c, *[log_scale] * n_scales, b], [c_std, *[std] * n_scales, b_std]
        of_kernel = np.concatenate([[0], 1 + place, [1 + n_scales]])
        return cls(kernel, np.array(mean), np.array(deviation), of_kernel)

    def theta(self, z: np.ndarray) -> np.ndarray:
        """Return the kernel's hyper-parameters where θ is z (..., D) deviations off the mean."""
        return (self.mean + self.std * z)[..., self.place]

    def z(self, of_kernel: np.ndarray) -> np.ndarray:
        """Return z (D,) of the kernel's hyper-parameters (E,)."""
        first = np.unique(self.place, return_index=True)[1]
        return (of_kernel[first] - self.mean) / self.std

    def pulled(self, slopes: np.ndarray) -> np.ndarray:
        """Return slopes by z, (D,), of those by the kernel's hyper-parameters (E,)."""
        return self.std * np.bincount(self.place, slopes, len(self.mean))


class LabelEvidence(Evidence):
    """log p(Y | θ) + log p(θ) as a function of z = (θ − prior mean)/prior deviation, (D,).

    Parameters
    ----------
    prior : PriorKernel
        The prior of θ.
    covariance : Covariance
        k of the N rows; its θ moves.
    Y : Tensor of shape (N, P)
        Labels as numbers.
    weight : Tensor of shape (N,)
        How many rows each row counts for.
    """

    def __init__(
        self, prior: PriorKernel, covariance: Covariance, Y: Tensor, weight: Tensor
    ) -> None:
        super().__init__(covariance, Y, 1.0 / weight)
        self.prior = prior
        self.weight = weight

    def __call__(self, z: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats, up to a constant, and their gradient; C = K + diag(1/w), in units of σ².

        With σ² = tr(YᵀC⁻¹Y)/(nP) the evidence is −½P(n log σ² + log|C|).
        """
        solver, pull = self.solved(self.prior.theta(z), eval_gradient)
        if solver is None:
            return -math.inf, np.zeros_like(z)
        n, P = float(self.weight.sum()), self.Y.shape[1]
        variance = float(solver.square(self.Y)) / (n * P)
        value = -0.5 * P * (n * math.log(variance) + float(log_det(solver.L))) - 0.5 * float(z @ z)
        if pull is None:
            return value, np.zeros_like(z)
        return value, self.prior.pulled(pull(solver.slope_(variance))) - z

    def slopes_without(self, z: np.ndarray, fold: Tensor, n_folds: int) -> np.ndarray:
        """Return the gradients, (F, D), of the evidence of the rows without each fold (N,).

        They are 0 if the labels of the others are all the same. With C⁻¹ of all rows, that of the
        others is C⁻¹ − C⁻¹[:, f] C⁻¹[f, f]⁻¹ C⁻¹[f, :].
        """
        solver, pull = self.solved(self.prior.theta(z), True)
        slopes = np.zeros((n_folds, len(z)))
        if pull is None or solver is None:
            return slopes
        C = torch.cholesky_inverse(solver.L)
        for k in range(n_folds):
            own, weight = fold == k, self.weight.masked_fill(fold == k, 0.0)
            if bool((self.Y[~own] == self.Y[~own][:1]).all()):
                continue
            inverse = C - C[:, own] @ torch.linalg.solve(C[own][:, own], C[own])
            Y, n, P = self.Y - weight @ self.Y / weight.sum(), float(weight.sum()), self.Y.shape[1]
            A = inverse @ Y
            variance = float((Y * A).sum()) / (n * P)
            G = inverse.mul_(-0.5 * P).addmm_(A, A.mT, alpha=0.5 / variance)
            slopes[k] = self.prior.pulled(pull(G)) - z
        return slopes


class BestTheta(NamedTuple):
    """Where a posterior density of θ is largest, and its curvature there.

    Parameters
    ----------
    evidence : LabelEvidence
        The density.
    z : ndarray of shape (D,)
        Its maximum.
    pairs : list of pairs of Tensor
        Steps and changes of the slope, from which the curvature is estimated.
    """

    evidence: LabelEvidence
    z: np.ndarray
    pairs: list[tuple[Tensor, Tensor]]

    @property
    def theta(self) -> np.ndarray:
        """θ, (D,)."""
        return self.evidence.prior.theta(self.z)

    def without(self, fold: Tensor, n_folds: int) -> np.ndarray:
        """Return θ of the rows without each fold (N,), by one quasi-Newton step, (F, D).

        A fold moves θ little, so the curvature of all rows will do. If the search did not move, no
        curvature is known, and θ stays.
        """
        if not self.pairs:
            return np.tile(self.theta, (n_folds, 1))
        slopes = torch.from_numpy(self.evidence.slopes_without(self.z, fold, n_folds))
        steps = np.stack([quasi_newton(slope, self.pairs).numpy() for slope in slopes])
        z = self.z + steps.clip(-LONGEST_STEP, LONGEST_STEP)
        return self.evidence.prior.theta(z.clip(-FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS))


def best_theta(evidence: LabelEvidence, start: np.ndarray | None = None) -> BestTheta:
    """Search for θ from a start, by default the prior mean.

    There is no search if all labels are the same, because they say nothing of θ.
    """
    prior, pairs = evidence.prior, []
    z = np.zeros(len(prior.mean)) if start is None else prior.z(start)
    if len(z) and bool(evidence.Y.any()):
        bounds = np.tile([-FARTHEST_DEVIATIONS, FARTHEST_DEVIATIONS], (len(z), 1))
        search = Search(evidence, SEARCH_LIMITS)
        z, pairs = search.run(LBFGS, z, bounds).theta, search.pairs
    return BestTheta(evidence, z, pairs)


def contrasts(codes: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Return labels as numbers, (N, C − 1): contrasts of classes, of mean 0.

    Any orthonormal basis of vectors that sum to 0 gives the same evidence.
    """
    H = one_hot(codes, n_classes)
    centre = (weight @ H) / weight.sum()
    return (H - centre) @ contrast_basis(n_classes, H)


def contrast_basis(n_classes: int, like: Tensor) -> Tensor:
    """Return orthonormal columns that sum to 0, (C, C − 1)."""
    return torch.linalg.qr(like.new_ones(n_classes).diag()[:, :-1] - 1.0 / n_classes).Q


def one_hot(codes: Tensor, n_classes: int) -> Tensor:
    """Return 1 at the class of each row, else 0, (N, C), in float64."""
    return torch.nn.functional.one_hot(codes, n_classes).double()


# ---- f given θ and labels ------------------------------------------------------------------------


class PointFeatures:
    """φ(x) = Λ^−½Qᵀk(Z, x), (R,), of points Z (M, d), which are scaled rows; R ≤ M are kept.

    Parameters
    ----------
    kernel : sklearn kernel
        k.
    Z : Tensor of shape (M, d)
        The points.
    """

    def __init__(self, kernel: sk.Kernel, Z: Tensor) -> None:
        self.kernel = from_sklearn(kernel).to(Z.device).requires_grad_(False)
        self.Z = Z

    @functools.cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Q (M, R) and the largest Λ (R,); the rest have little of the variance."""
        K = self.kernel(self.Z)
        values, Q = (a.to(K) for a in eigh(K.float() if len(K) > PRECISE_POINTS else K))
        kept = values.clamp_min(0.0).cumsum(0) > NEGLIGIBLE_VARIANCE * values.sum()
        return Q[:, kept], values[kept]

    @functools.cached_property
    def basis(self) -> Tensor:
        """QΛ^−½, (M, R)."""
        Q, values = self.spectrum
        return Q * values.rsqrt()

    def at_points(self) -> Tensor:
        """Return φ of the points, QΛ^½, (M, R)."""
        Q, values = self.spectrum
        return Q * values.sqrt()

    def __call__(self, X: Tensor) -> Tensor:
        """Return φ, (N, R)."""
        return self.kernel(X, self.Z) @ self.basis

    def coefficients(self, U: Tensor) -> Tensor:
        """Return v (M, C), with f(x) = k(x, Z) v, from u (R, C)."""
        return self.basis @ U

    def f(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """Return f of rows, (N, C)."""
        return self.kernel(X, self.Z) @ coefficients

    def residual_variance(self, X: Tensor, phi: Tensor) -> Tensor:
        """Return k(x, x) − ‖φ‖², (N,): the variance that the points do not explain."""
        return (self.kernel.diag(X) - phi.square().sum(1)).clamp_min(0.0)


class Problems(NamedTuple):
    """B problems of finding a mode, for the same N rows.

    Parameters
    ----------
    F : Tensor of shape (N, R)
        φ of the rows.
    labels : Tensor of shape (N, C)
        1 at the class of each row.
    weight : Tensor of shape (N, B)
        How many rows each row counts for.
    scale : Tensor of shape (B,)
        s.
    offset : Tensor of shape (C,) or (B, C)
        Offset of f.
    """

    F: Tensor
    labels: Tensor
    weight: Tensor
    scale: Tensor
    offset: Tensor

    def to(self, dtype: torch.dtype) -> Problems:
        """Return them in another floating type."""
        return Problems(*(column.to(dtype) for column in self))

    def f(self, U: Tensor) -> Tensor:
        """Return s·Fu, (N, B, C), for u (R, B, C)."""
        return (self.F @ U.flatten(1)).view(len(self.F), *U.shape[1:]) * self.scale[:, None]

    def pulled(self, R: Tensor) -> Tensor:
        """Return s·Fᵀr, (R, B, C), for r (N, B, C)."""
        R = R * self.scale[:, None]
        return (self.F.mT @ R.flatten(1)).view(self.F.shape[1], *R.shape[1:])

    def residual(self, f: Tensor) -> Tensor:
        """Return r = w(1(c = y) − π), (N, B, C)."""
        pi = torch.softmax(self.offset + f, -1)
        return self.weight[..., None] * (self.labels[:, None] - pi)

    def psi(self, U: Tensor, f: Tensor) -> Tensor:
        """Return ψ(u), (B,)."""
        log_p = (torch.log_softmax(self.offset + f, -1) * self.labels[:, None]).sum(-1)
        return 0.5 * U.square().sum((0, 2)) - (self.weight * log_p).sum(0)

    def newton_step(self, f: Tensor, gradient: Tensor) -> Tensor:
        """Solve (I + s²FᵀWF) D = −∇ψ, by preconditioned conjugate gradients, (R, B, C)."""
        pi = torch.softmax(self.offset + f, -1)
        w_pi = self.weight[..., None] * pi
        squares = (self.F.square().mT @ (w_pi * (1.0 - pi)).flatten(1)).view_as(gradient)
        inverse = 1.0 / (1.0 + self.scale.square()[:, None] * squares)

        def curvature(V: Tensor) -> Tensor:
            v = self.f(V)
            return V + self.pulled(w_pi * (v - (pi * v).sum(-1, keepdim=True)))

        D, R = torch.zeros_like(gradient), -gradient
        V = Z = inverse * R
        square = inner(R, Z)
        least, tiny = CG_TOL**2 * square, torch.finfo(gradient.dtype).tiny
        for _ in range(CG_STEPS):
            if bool((square <= least).all()):
                break
            HV = curvature(V)
            step = (square / inner(V, HV).clamp_min(tiny))[:, None]
            D, R = D + step * V, R - step * HV
            Z = inverse * R
            last, square = square, inner(R, Z)
            V = Z + (square / last.clamp_min(tiny))[:, None] * V
        return D


def inner(A: Tensor, B: Tensor) -> Tensor:
    """Return inner products of B pairs, (B,), from (R, B, C)."""
    return (A * B).sum((0, 2))


def find_modes(problems: Problems, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return u (R, B, C) and f (N, B, C) at the modes, by Newton's steps, halved where ψ rises.

    Steps need not be exact: their equations are solved in float32.
    """
    p, rough = problems, problems.to(torch.float32)
    n_problems, n_classes = p.weight.shape[1], p.labels.shape[1]
    U = p.F.new_zeros(p.F.shape[1], n_problems, n_classes) if start is None else start
    f = p.f(U)
    psi = p.psi(U, f)
    tol = max(NEWTON_TOL, NEWTON_TOL_OF_ROW * len(f))
    for _ in range(MOST_NEWTON_STEPS):
        gradient = U - p.pulled(p.residual(f))
        D = rough.newton_step(f.float(), gradient.float()).to(U)
        promised = -0.5 * inner(gradient, D)
        along = p.f(D)
        t = torch.ones_like(psi)
        for _ in range(STEP_HALVINGS):
            found = p.psi(U + t[:, None] * D, f + t[:, None] * along)
            if not bool((found > psi).any()):
                break
            t = torch.where(found > psi, 0.5 * t, t)
        t = torch.where(found > psi, 0.0, t)[:, None]
        U, f = U + t * D, f + t * along
        psi = torch.minimum(psi, found)
        if float(promised.max()) < tol:
            break
    return U, f
