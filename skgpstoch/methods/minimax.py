"""MINIMAX: the exact marginal likelihood of a finite-dimensional kernel as a minimax problem.

Shoham & Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional
RKHS", sec. 3.1. In the terms of :mod:`skgpstoch.methods.scgd`, log|F| becomes log|A| under the
constraint A = F, the constraint becomes a penalty μ‖A − F‖/‖A‖, and the norm becomes a maximum over
‖B‖ ≤ 1. The result is linear in F, so its minibatch gradients are unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.devices import HOST
from ..data.rows import Rows
from ..estimators.docs import public_estimator
from ..estimators.parameters import POSITIVE, FiniteParameters
from ..estimators.streams import StreamingRegressor
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import add_diagonal, eigh, log_det
from ..maths.linear_regression import Statistics, batch_statistics, exact_statistics
from ..models.features.base import FeatureMap
from ..objectives.evidence import RIDGE_JITTER, AsMean, FiniteObjective, ridged
from ..training.recipes.evidence import EvidenceRecipe
from ..training.recipes.kernel_choice import KernelChoice

PENALTY = 1.0  # μ in the paper's experiments; in its theory it grows
LEAST_NOISE = 1e-6  # σ_min², relative to the scaled target
PROJECTION_TOL = 1e-6
"""Of σ², by which A may be below it."""
MOST_MEMBERS = 2  # of "auto": each step costs an eigendecomposition for each


class MinimaxObjective(FiniteObjective):
    """MINIMAX: min over φ, w, σ² and A ⪰ λI, max over ‖B‖_F ≤ 1, of (3.2)

        Ψ = ‖Zw − y‖²/σ² + (λ/σ²)‖w‖² + (n−D)·log σ² + D·log(σ²/λ) + log|A| + μ⟨B, A − F⟩/‖A‖_F.

    The loss also includes n·log 2π. A descent step on one minibatch alternates with a projected
    ascent step in B on an independent one. A and F are kept per row, divided by n, which does not
    change the last ratio.

    Of the constraints in the paper's Ω₁, A ⪰ σ²I, σ ≥ σ_min and an upper bound of σ² are kept. The
    upper bounds of all other parameters, ζ ⪯ ζ_max, are not: nothing drives the parameters there,
    and an epoch that ends in numbers that are not finite is undone. *Measured* on elevators, 20
    epochs: with Adam at 0.01 no entry of w, of the network or of log σ² was ever beyond 2.3, of A
    (per row) 54; with AdaDelta at 1.0, 2.3 and 640. A is projected at nearly every step (2,337 of
    2,340).

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`FiniteObjective`.
    X : Tensor of shape (N, d)
        Inputs of the rows, for the independent minibatches.
    dual_step : float
        Length of the ascent steps.
    penalty : float, default=1.0
        μ.
    """

    w: nn.Parameter
    A: Tensor
    B: Tensor

    def __init__(
        self,
        features: FeatureMap,
        rows: Rows,
        *,
        X: Tensor,
        dual_step: float,
        penalty: float = PENALTY,
        **kwargs: Any,
    ) -> None:
        super().__init__(features, rows, **kwargs)
        first = rows.n_held_out if features.n_members == 1 else 0
        some = X[first:], rows[first:]
        self.data: tuple[Tensor, Rows] = some  # a sample of those trained on by some member
        self.seen_share = self.trained(some[1]).double().mean(1)  # of these, a row, (K,)
        self.dual_step, self.penalty = dual_step, penalty
        self.eval()  # the first look at the features is not a step of training
        S = exact_statistics(features.members, X, rows.y, self.trained(rows))
        A = self.per_row(S)  # F itself
        K, D, P = S.cross.shape
        self.A = nn.Parameter(A)
        self.w = nn.Parameter(torch.zeros(K, D, P, dtype=self.dtype, device=A.device))
        self.register_buffer("B", torch.zeros_like(A))

    def start_weights(self, S: Statistics) -> None:
        super().start_weights(S)
        self.A.copy_(self.per_row(S))

    def attach(self, X: Tensor, rows: Rows) -> None:
        super().attach(X, rows)
        self.data = (X, rows)
        self.seen_share = self.trained(rows).double().mean(1)

    def detach_rows(self) -> None:
        empty = self.w.detach()[:0].to(HOST)  # a tuple does not follow the module
        self.data = (empty, Rows(empty))
        self.seen_share = self.seen_share.to(HOST)

    def per_row(self, S: Statistics) -> Tensor:
        """F/n of the statistics of rows that count as S.n_rows, (K, P, D, D)."""
        G = S.gram / S.n_rows[:, None, None]
        return ridged(G, self.ridge / self.n_rows[:, None])

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        self.ascend(rows.n_all, generator)
        return super().forward(X, rows, generator)

    @torch.no_grad()
    def ascend(self, batch_size: int, generator: torch.Generator) -> None:
        """Step 2 of sec. 3.1: B ← proj(B + step·μ(A − F)/‖A‖) with F of independent rows."""
        X, rows = self.data
        drawn = torch.randint(len(X), (batch_size,), generator=generator, device=X.device)
        X, rows = X[drawn], rows[drawn]
        S = batch_statistics(self.features.members(X), rows.y, self.trained(rows))
        S = S._replace(n_rows=self.seen_share * batch_size)
        self.B += self.dual_step * self.penalty * (self.A - self.per_row(S)) / _norm(self.A)
        self.B /= _norm(self.B).clamp_min(1.0)

    def loss(self, Z: Tensor, Y: Tensor, b: Tensor, as_mean: AsMean, unseen: Tensor) -> Tensor:
        n, D, A, B = self.n_rows[:, None], Z.shape[2], self.A, self.B
        noise = self.log_noise.exp()  # with a gradient where it is learned
        ridge = noise if self.noise == "learned" else self.ridge
        r = Z @ self.w - Y  # (K, b, P)
        g = as_mean(r.square().sum(1)) / (b * noise) + self.w.square().sum(1) * ridge / (noise * n)
        g = g + ((n - D) * noise.log() + D * (noise / ridge).log()) / n  # (K, P)

        with torch.no_grad():
            L = self.factor(A)
            A_inv = torch.cholesky_inverse(L)
        linear = (A * A_inv).sum((-2, -1))  # has the gradient A⁻¹ of log|A|
        log_det_A = log_det(L) + D * n.log() + linear - linear.detach()
        Zd = Z.double()
        gap = A - (as_mean(Zd.mT @ Zd) / b[..., None])[:, None]
        trace = B.diagonal(dim1=-2, dim2=-1).sum(-1) * ridge / n  # ⟨B, λI/n⟩
        ratio = ((B * gap).sum((-2, -1)) - trace) / _norm(A)[..., 0, 0]
        psi = g + (log_det_A + self.penalty * ratio) / n + LOG_2PI
        total = 0.5 * psi.sum()
        return total - total.detach() * (1.0 - 1.0 / len(Z))

    def step_end(self) -> None:
        super().step_end()
        with torch.no_grad():
            scale = self.A.diagonal(dim1=-2, dim2=-1).mean(-1).abs()  # (K, P)
            floor = torch.maximum(self.ridge / self.n_rows[:, None], RIDGE_JITTER * scale)  # λ/n
            self.A.copy_(project_above(self.A, floor))


def _norm(A: Tensor) -> Tensor:
    """Frobenius norms of (..., D, D), as (..., 1, 1)."""
    return torch.linalg.matrix_norm(A, keepdim=True)


def project_above(A: Tensor, floor: Tensor) -> Tensor:
    """Return the nearest symmetric A ⪰ floor·I, in the Frobenius norm: A (..., D, D), floor (...).

    A is left as it is if a Cholesky factorisation shows that it satisfies this already, to 1e-6 of
    the floor. That takes a tenth of the time of an eigendecomposition.
    """
    A = 0.5 * (A + A.mT)
    _, info = torch.linalg.cholesky_ex(add_diagonal(A, -(1.0 - PROJECTION_TOL) * floor))
    if not bool(info.any()):
        return A
    values, U = eigh(A)
    return U * torch.maximum(values, floor[..., None])[..., None, :] @ U.mT


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class MinimaxGaussianProcessRegressor(FiniteParameters, StreamingRegressor):
    """Gaussian-process regression on a deep, linear or random-feature kernel, by MINIMAX.

    The model is that of :class:`SCGDGaussianProcessRegressor`. Its log-determinant is learned as
    the saddle point of an unbiased minibatch objective, instead of by a running average. SCGD is
    simpler and faster; use this estimator for comparison, and for minibatches of very few rows.

    Parameters
    ----------
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined. Each is validated on a fold of its own. "auto"
        is 5 below 200 rows and 2 below 10,000 if `kernel` and `feature_map` are None and
        `early_stopping` is True, else 1.
    dual_step : float, default=0.1
        Step size of the gradient ascent on B, the multipliers of the constraint A = F.

    See Also
    --------
    SCGDGaussianProcessRegressor : The same model by running averages.

    Notes
    -----
    The paper's own algorithm is ``MinimaxGaussianProcessRegressor(kernel=DotProduct(0, "fixed"),
    solver="adadelta", learning_rate="constant", learning_rate_init=1.0, noise="learned",
    early_stopping=False, max_iter=100, weight_decay=0)`` with ``batch_size`` 32 to 512.

    References
    ----------
    .. [1] N. Shoham, H. Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite
       Dimensional RKHS", sec. 3.1.
    .. [2] R. I. Bot, A. Bohm, "Alternating proximal-gradient steps for (stochastic)
       nonconvex-concave minimax problems", 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import MinimaxGaussianProcessRegressor
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = MinimaxGaussianProcessRegressor(max_iter=10, random_state=0)
    >>> model = model.fit(X, np.sin(X[:, 0]))
    >>> model.predict([[1.5]]).shape
    (1,)
    """

    dual_step: float = 0.1

    _parameter_constraints: ClassVar[dict[str, list]] = {"dual_step": [POSITIVE]}

    def _recipe(self) -> EvidenceRecipe:
        method = partial(MinimaxObjective, dual_step=self.dual_step)
        kernel = KernelChoice.of(self.kernel, self.noise_variance, LEAST_NOISE)
        return EvidenceRecipe.of(self, method=method, kernel=kernel, most_members=MOST_MEMBERS)
