"""The square loss of held-out rows, with the weights of the other rows as unknowns.

Xu, Yin, Zhang, Luo & Cui, "A general O(n²) hyper-parameter optimization for Gaussian process
regression with cross-validation and non-linearly constrained ADMM", sec. 3.1. Rows are split into T
and V. With C(θ) = K_TT + σ²I the mean of V is K_VT z at z = C⁻¹y_T, and this becomes a constraint:

    min ‖y_V − K_VT z‖²   subject to   Cz = y_T
    L_ρ = ‖y_V − K_VT z‖² + λᵀ(Cz − y_T) + (ρ/2)‖Cz − y_T‖²                        (sec. 3.1)

For given θ and λ the best z solves (2K_VTᵀK_VT + ρC²) z = 2K_VTᵀy_V + C(ρy_T − λ) (eq. 13).
Conjugate gradients find it from products with K alone, in O(n²). If the square of C is too
ill-conditioned, the errors e = y_V − K_VT z are found instead. With G = C⁻¹K_TV, where each product
with C⁻¹ is a linear system of its own,

    (I + (2/ρ)GᵀG)e = y_V − Gᵀ(y_T − λ/ρ),      Cz = y_T + (2Ge − λ)/ρ.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...kernels import Kernel, from_sklearn
from ...kernels.matrices import set_theta
from ...kernels.products import KernelRows, low_rank
from ...maths.conjugate_gradients import COLUMNS, Product, conjugate_gradients
from ...maths.linalg import cholesky
from ...maths.pivoted_cholesky import LowRankInverse

FOLD_RANK = {True: 200, False: 600}  # of preconditioners at most; covariances kept, or not
DENSE_ROWS = 500  # rows up to which that is C⁻¹ itself
SQUARED = {True: 60, False: 10}  # iterations with C², before those without
LEAST_VAR = 1e-300
TOL_SYSTEMS = 1e-8  # of conjugate gradients, relative


class Fold(NamedTuple):
    """Rows to train on, which come first, and held-out rows."""

    X: Tensor  # (T + V, d)
    y: Tensor  # (T + V, P), float64
    weight: Tensor  # (T + V, 1), float64: how many rows each counts for
    n_trained: int

    @property
    def n_held_out(self) -> float:
        """Number of held-out rows, by their weights."""
        return float(self.weight[self.n_trained :].sum())


class Gap(NamedTuple):
    """L_ρ at some (θ, z, λ), and its parts."""

    value: Tensor  # L_ρ, ()
    loss: Tensor  # ‖y_V − K_VT z‖², ()
    residual: Tensor  # Cz − y_T, (T, P)
    slope: Tensor  # of L_ρ by Az for the covariances A of all rows with T, (T + V, P)


def at_theta(
    kernel: sk.Kernel, noise_variance: float, learns_noise: bool, theta: Tensor
) -> tuple[Kernel, float]:
    """Return k and σ² at θ, (D,), which ends in log σ² if that is learned."""
    module, theta = from_sklearn(kernel), theta.cpu()
    set_theta(module.parameters(), theta[: len(theta) - learns_noise])
    return module, math.exp(float(theta[-1])) if learns_noise else noise_variance


class FoldLoss:
    """L_ρ of one fold, at hyper-parameters θ of a kernel and of the noise.

    Parameters
    ----------
    fold : Fold
        The rows.
    theta : Tensor of shape (D,)
        θ: the free hyper-parameters of the kernel, and log σ² if the noise is learned.
    kernel : sklearn kernel
        The kernel k.
    noise_variance : float
        σ², if it is not learned.
    learns_noise : bool
        Whether σ² is learned.
    keeps : bool
        Whether covariances, T(T + V) numbers, are kept, or computed again for every product.
    """

    def __init__(
        self,
        fold: Fold,
        theta: Tensor,
        kernel: sk.Kernel,
        noise_variance: float,
        learns_noise: bool,
        keeps: bool,
    ) -> None:
        T = fold.n_trained
        self.fold, self.learns_noise = fold, learns_noise
        self.rank, self.most_squared = FOLD_RANK[keeps], SQUARED[keeps]
        self.kernel, self.noise = at_theta(kernel, noise_variance, learns_noise, theta)
        self.kernel.to(fold.y.device)
        self.ended = True  # whether all conjugate gradients did
        self.y_T, self.y_V = fold.y[:T], fold.y[T:]
        self.noise_T = self.noise / fold.weight[:T]  # (T, 1)
        self.weight_V = fold.weight[T:]
        self.covariances = KernelRows(self.kernel, fold.X, fold.X[:T], keeps)

    @functools.cached_property
    @torch.no_grad()
    def inverse(self) -> Product:
        """Return V ↦ C⁻¹V, or an approximation."""
        X = self.fold.X[: len(self.y_T)].double()
        if len(X) > DENSE_ROWS:
            return LowRankInverse(low_rank(self.kernel, X, self.noise_T, self.rank), self.noise_T)
        C = self.kernel(X, X) + self.noise_T[:, 0].diag()
        L = cholesky(C, "covariance of the rows trained on")
        return lambda V: torch.cholesky_solve(V, L)

    # ---- products ----------------------------------------------------------------------------

    def training_product(self, V: Tensor) -> Tensor:
        """Return C @ V, (T, R)."""
        return self.covariances.product(V, len(V)) + self.noise_T * V

    def weighted_square(self, V: Tensor, rho: float) -> Tensor:
        """Return (2K_VTᵀK_VT + ρC²)V, in one pass over the covariances: (T, R)."""
        T, back = len(V), torch.zeros_like(V)

        def between(rows: slice, AV: Tensor) -> Tensor:
            inner = slice(rows.start, min(rows.stop, T))
            n_inner = max(inner.stop - inner.start, 0)
            CV = AV[:n_inner] + self.noise_T[inner] * V[inner]
            back[inner] = rho * self.noise_T[inner] * CV
            outer = slice(max(rows.start - T, 0), max(rows.stop - T, 0))
            return torch.cat([rho * CV, 2.0 * self.weight_V[outer] * AV[n_inner:]])

        return self.covariances.there_and_back(V, between) + back

    # ---- steps -------------------------------------------------------------------------------

    def solve(self, B: Tensor) -> Tensor:
        """Return C⁻¹B."""
        found = conjugate_gradients(self.training_product, B, None, self.inverse, TOL_SYSTEMS)
        self.ended &= found.converged
        return found.solution

    def best_weights(self, dual: Tensor, rho: float, start: Tensor) -> Tensor:
        """Return the best z for given θ and λ (eq. 13, 14)."""
        T = len(dual)
        target = torch.cat([rho * self.y_T - dual, 2.0 * self.weight_V * self.y_V])
        b = self.covariances.transposed(target) + self.noise_T * target[:T]
        found = conjugate_gradients(
            lambda V: self.weighted_square(V, rho),
            b,
            start,
            lambda V: self.inverse(self.inverse(V)) / rho,
            TOL_SYSTEMS,
            self.most_squared,
        )
        return found.solution if found.converged else self.best_weights_by_errors(dual, rho)

    def best_weights_by_errors(self, dual: Tensor, rho: float) -> Tensor:
        """Return the same by e, in units of 1/√w, without a square of C."""
        T, root = len(dual), self.weight_V.sqrt()

        def explained(U: Tensor) -> Tensor:  # G√w U
            held_out = torch.cat([U.new_zeros(T, U.shape[1]), root * U])
            return self.solve(self.covariances.transposed(held_out))

        def predicted(B: Tensor) -> Tensor:  # √w GᵀB
            return root * self.covariances.product(self.solve(B))[T:]

        found = conjugate_gradients(
            lambda U: U + 2.0 / rho * predicted(explained(U)),
            root * self.y_V - predicted(self.y_T - dual / rho),
            tol=TOL_SYSTEMS,
        )
        self.ended &= found.converged
        return self.solve(self.y_T + (2.0 * explained(found.solution) - dual) / rho)

    def consistent(self) -> tuple[Tensor, Tensor]:
        """Return z = C⁻¹y_T, and the λ that suits it: Cλ = 2K_VTᵀ(y_V − K_VT z)."""
        z = self.solve(self.y_T)
        fitted = self.covariances.product(z)
        errors = 2.0 * self.weight_V * (self.y_V - fitted[len(z) :])
        slope = torch.cat([torch.zeros_like(z), errors])
        return z, self.solve(self.covariances.transposed(slope))

    @torch.no_grad()
    def lagrangian(self, z: Tensor, dual: Tensor, rho: float) -> Gap:
        """Return L_ρ and its parts."""
        fitted, T = self.covariances.product(z), len(z)
        residual, errors = fitted[:T] + self.noise_T * z - self.y_T, self.y_V - fitted[T:]
        loss = (self.weight_V * errors.square()).sum()
        value = loss + (dual * residual).sum() + 0.5 * rho * residual.square().sum()
        slope = torch.cat([dual + rho * residual, -2.0 * self.weight_V * errors])
        return Gap(value, loss, residual, slope)

    def gradient(self, z: Tensor, slope: Tensor) -> Tensor:
        """Return ∂L_ρ/∂θ at fixed z, (D,)."""
        found = self.covariances.gradients(z, slope, list(self.kernel.parameters()))
        of_noise = (slope[: len(z)] * self.noise_T * z).sum()
        parts = [*found, *[of_noise] * self.learns_noise]
        return torch.cat([z.new_empty(0), *(part.reshape(-1).to(z) for part in parts)])

    @torch.no_grad()
    def squared_scores(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return (y − E y)²/var y of some held-out rows, (M, P), and their weights, (M, 1).

        A row of weight w is w observations, each with noise of its own.
        """
        T, z = self.fold.n_trained, self.solve(self.y_T)
        V, X = len(self.y_V), self.fold.X.double()
        some = torch.linspace(0, V - 1, min(n_rows, V), dtype=torch.float32, device=X.device)
        some = some.round().long()
        scores = []
        for part in some.split(COLUMNS):
            rows = X[T + part]
            K = self.kernel(rows, X[:T])  # (b, T)
            explained = (K.mT * self.solve(K.mT)).sum(0)
            var = self.kernel.diag(rows) - explained + self.noise
            scores.append((self.y_V[part] - K @ z).square() / var.clamp_min(LEAST_VAR)[:, None])
        return torch.cat(scores), self.weight_V[some]

    def training_score(self) -> Tensor:
        """Return y_TᵀC⁻¹y_T of each output, (P,); its mean is T if variances are right."""
        return (self.y_T * self.solve(self.y_T)).sum(0)
