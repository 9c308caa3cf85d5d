"""Laplace's approximation of a binary classifier's posterior, with the logistic likelihood.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, MIT Press, 2006, sections 3.4 and
5.5.1. With labels y in {0, 1} of rows that count wᵢ times, π = σ(f), r = w ∘ (y − π),
W = diag(w ∘ π(1 − π)) and B = I + W^½ K W^½ = LLᵀ, Newton's iterations for the mode f̂ of p(f | y)
are

    b = W f + r,   a = b − W^½ B⁻¹ W^½ K b,   f ← K a                             (Algorithm 3.1)
    log q(y | θ) = −½ aᵀf̂ + Σᵢ wᵢ log σ((2yᵢ − 1) f̂ᵢ) − Σᵢ log Lᵢᵢ                (3.32)

Its gradient (Algorithm 5.1) is a trace against one matrix, as the exact evidence's is: with
R = W^½ B⁻¹ W^½, s₂ = −½ (1 − 2π) ∘ (1 − diag B⁻¹), which is ½ diag(K − CᵀC) ∇³log p(y | f̂), and
u = (I − R K) s₂,

    ∂/∂θ_j = tr(G ∂K/∂θ_j),   G = ½ aaᵀ − ½ R + ½ (u rᵀ + r uᵀ)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..kernels.matrices import Covariance
from ..maths.exact_solver import ExactSolver
from ..maths.linalg import cholesky_, inverse_, mirror_

GAIN = 1e-10
"""Nats of log p(y, f): a Newton iteration that gains less is flat."""

LOSS = 1e-3
"""Nats that a step may lose, because of rounding where variances are large."""

MOST_FLAT = 4
"""Flat iterations in a row, after which the search ends."""

MODE_HALVINGS = 20
"""Most halvings of a Newton step."""

LAMBDAS = (0.41, 0.4, 0.37, 0.44, 0.39)
COEFFICIENTS = (-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654)
"""σ(x) ≈ Σ cⱼ (1 + erf(λⱼ x))/2 (Williams & Barber, 1998, appendix A), scikit-learn's numbers."""


class Mode(NamedTuple):
    """Where Newton's iterations ended.

    Parameters
    ----------
    f, pi, W_sr, a : Tensor of shape (N,)
        f̂; and π, W^½ and a of the last iteration.
    L : Tensor of shape (N, N)
        Cholesky factor of B in the last iteration.
    value : float
        log q(y | θ), nats.
    """

    f: Tensor
    pi: Tensor
    W_sr: Tensor
    a: Tensor
    L: Tensor
    value: float


def find_mode(
    K: Tensor, y: Tensor, weight: Tensor, f: Tensor, max_iter: int, B: Tensor
) -> Mode | None:
    """Return the mode for K (N, N), y (N,) in {0, 1}, from f; None if B has no Cholesky factor.

    L takes the memory of B. log p(y | f) − ½ aᵀf is concave, so steps that lower it are halved.
    Iterations end when it gains nothing and the evidence, with the W of the iteration before, does
    not move either.
    """
    sign = 2.0 * y - 1.0

    def log_joint(a: Tensor, f: Tensor) -> Tensor:
        return -0.5 * a @ f - weight @ softplus(-sign * f)

    at_zero = -float(weight.sum()) * math.log(2.0)
    a, height = torch.zeros_like(f), -math.inf if bool(f.any()) else at_zero
    value, n_flat = -math.inf, 0
    for _ in range(max_iter):
        pi = torch.sigmoid(f)
        W = weight * pi * (1.0 - pi)
        W_sr = W.sqrt()
        torch.mul(K, W_sr, out=B).mul_(W_sr[:, None]).diagonal().add_(1.0)
        if not cholesky_(B):
            return None
        b = W * f + weight * (y - pi)
        WKb = W_sr * (K @ b)
        next_a = b - W_sr * torch.cholesky_solve(WKb[:, None], B)[:, 0]
        next_f = K @ next_a
        half = B.diagonal().log().sum()  # of log|B|
        reached, half_log_det = torch.stack([log_joint(next_a, next_f), half]).tolist()
        if height == -math.inf and not reached >= at_zero:  # the start was worse than none
            return find_mode(K, y, weight, torch.zeros_like(f), max_iter, B)
        for _ in range(MODE_HALVINGS):
            if not reached < height - LOSS:
                break
            next_a, next_f = 0.5 * (a + next_a), 0.5 * (f + next_f)
            reached = float(log_joint(next_a, next_f))
        last, value = value, np.float64(reached - half_log_det)
        n_flat = 0 if reached - height >= GAIN else n_flat + 1
        a, f, height = next_a, next_f, reached
        if n_flat == MOST_FLAT or (n_flat and abs(value - last) < GAIN):
            break
    return Mode(f, pi, W_sr, a, B, value)


class LaplaceEvidence:
    """log q(y | θ) as a function of θ, (n_dims,), with its gradient; it needs two (N, N) matrices.

    Parameters
    ----------
    covariance : Covariance
        k of the rows; every call sets its θ.
    y : Tensor of shape (N,)
        Labels, 0 or 1.
    weight : Tensor of shape (N,)
        How many rows each row counts for, positive.
    max_iter : int
        Maximum number of Newton iterations.
    f : Tensor of shape (N,)
        Their start.
    follows : bool
        Whether each search but the first starts from the last mode.
    """

    def __init__(
        self,
        covariance: Covariance,
        y: Tensor,
        weight: Tensor,
        max_iter: int,
        f: Tensor,
        follows: bool,
    ) -> None:
        self.covariance = covariance
        self.y = y
        self.weight = weight
        self.max_iter = max_iter
        self.f = f
        self.follows = follows
        self.K = covariance.empty()
        self.B = covariance.empty()

    def mode(self, theta: np.ndarray) -> Mode | None:
        """Return the mode at θ."""
        self.covariance.set_theta(theta)
        self.covariance.gram_(self.K)
        return self._mode()

    def _mode(self) -> Mode | None:
        mirror_(self.K)
        mode = find_mode(self.K, self.y, self.weight, self.f, self.max_iter, self.B)
        if mode is not None and self.follows and bool(mode.f.isfinite().all()):
            self.f = mode.f
        return mode

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats and the gradient; −inf and 0 where there is no mode."""
        self.covariance.set_theta(theta)
        pull = self.covariance.gram_(self.K, eval_gradient)
        mode, zero = self._mode(), np.zeros_like(theta, dtype=np.float64)
        if mode is None or not math.isfinite(mode.value):
            return -math.inf, zero
        if pull is None:
            return mode.value, zero
        return mode.value, pull(self._trace_matrix(mode))

    def _trace_matrix(self, mode: Mode) -> Tensor:
        """Return G (N, N), in the memory of B."""
        R = mode.L
        inverse_(R)  # B⁻¹, in the lower triangle
        mirror_(R)
        s_2 = -0.5 * (1.0 - 2.0 * mode.pi) * (1.0 - R.diagonal())
        R.mul_(mode.W_sr).mul_(mode.W_sr[:, None])
        u = s_2 - R @ (self.K @ s_2)
        residual = self.weight * (self.y - mode.pi)
        G = R.mul_(-0.5).addr_(mode.a, mode.a, alpha=0.5)
        return G.addr_(u, residual, alpha=0.5).addr_(residual, u, alpha=0.5)


def latent(
    K_star: Tensor, prior: Tensor, L: Tensor, W_sr: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of f*, each (N*,), by Algorithm 3.2.

    They come from K* (N*, N), prior variances (N*,), and L (N, N), W^½ (N,) and r (N,) at the mode.
    """
    solver = ExactSolver(L, residual[:, None])
    return K_star @ residual, solver.variance(prior, K_star * W_sr).clamp_min_(0.0)


def probability(mean: Tensor, var: Tensor) -> Tensor:
    """Return E σ(f) for f ~ N(mean, var), (N*,), as scikit-learn approximates it."""
    total = torch.full_like(mean, 0.5 * sum(COEFFICIENTS))
    for slope, c in zip(LAMBDAS, COEFFICIENTS, strict=True):
        total += 0.5 * c * torch.erf(slope * mean * (1.0 + 2.0 * slope**2 * var).rsqrt())
    return total.clamp_(0.0, 1.0)
