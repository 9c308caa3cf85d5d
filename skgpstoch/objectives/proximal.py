"""Find q(w) of very many basis functions by proximal steps on sampled rows and functions.

A step sees rows K and functions I and J, as the estimators of Evans & Nair do
(:mod:`skgpstoch.objectives.quadruply`): f_J = (m/|J|)Φ_KJ W_J is an unbiased estimate of Φ_K W.
Three ideas make steps effective in spite of its noise.

*The control variate is kriged.* The error of f_J is a random function with covariance ∝ k and
variance about k(x, x)‖μ‖²/|J|. It is known on the p rows P, because h = Φ_P W is kept
(Proposition 3). Its best linear prediction at other rows is that of a noise-free Gaussian process,

    f̂ = f_J − k(K, P) k(P, P)⁻¹ (f_J(P) − h)                                   (:class:`Kriging`)

which is the Nyström approximation of F.2, for rows. f_J − B(f_J(P) − h) has no bias, whatever B
is, because E f_J(P) = h. In the error's variance, k's predictive variance given P replaces k(x, x).

*Steps are proximal.* g and λ are derivatives of the rows' terms, times n/p or n/|K|, as in
:mod:`skgpstoch.objectives.blockwise`: (y − f̂)/σ² and 1/σ² for a Gaussian likelihood. The rows P
define a metric, H_P = Φ_PIᵀ diag(λ)Φ_PI + S_II. In it, the loss of K plus ½(1/ρ − 1)‖w − w_t‖² has
its minimum at

    w ← w − ρ((1 − ρ)H_P + ρH_K)⁻¹((Sw)_I − Φ_KIᵀ g),    0 < ρ ≤ 1,

with H_K likewise for K. Apart from the noise of f̂, such steps never increase the distance between
two iterates, however ill-conditioned the problem and however few the rows. A gradient times the
inverse curvature of other rows has no such guarantee.

*Steps are shorter if their estimates are uncertain.* The two halves of J give an estimate v of the
variance of f̂. It is treated as further variance of y beside 1/λ, so a step is multiplied by
1/(1 + λv). The noise of a step then stays bounded, however large v is (:func:`trust`).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..data.rows import Rows
from ..maths.linalg import cholesky
from ..maths.modules import Module
from ..models.posteriors.chevron import ChevronModel
from .blockwise import Block, BlockwiseObjective, Sweep, block_newton, weighted_gram
from .quadruply import seen

KRIGING_JITTER = 1e-6  # share of k(x, x); any value is unbiased, smaller ones vanish in rounding


class Kriging(Module):
    """Best linear prediction of a function from its noise-free values at points P.

    Parameters
    ----------
    kernel : Kernel
        The covariance k of the function.
    points : Tensor of shape (p, d)
        P.
    """

    points: Tensor
    root: Tensor  # L of k(P, P) = LLᵀ

    def __init__(self, kernel: kernels.Kernel, points: Tensor) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        points = points.double()
        K = self.kernel(points, points).double()
        K.diagonal().add_(KRIGING_JITTER * K.diagonal().mean())
        self.register_buffer("points", points)
        self.register_buffer("root", cholesky(K, "covariance of the control variate's rows"))

    def __call__(self, X: Tensor, values: Tensor) -> Tensor:
        """Return k(X, P) k(P, P)⁻¹ values: (P, p, C) → (P, ñ, C)."""
        K = self.kernel(X.double(), self.points).double()
        return K @ torch.cholesky_solve(values, self.root)


def trust(variance: Tensor, lam: Tensor) -> Tensor:
    """Return 1/(1 + λv), (P, C), with λv averaged over rows.

    λ (P, ñ or 1) are the precisions of rows, and v (P, ñ, C) the variances of estimates of f.
    """
    return 1.0 / (1.0 + (lam[..., None] * variance).mean(1))


class ProximalObjective(BlockwiseObjective):
    """−ELBO per row, lowered by proximal steps from sampled rows and sampled functions.

    The loss is that of the rows P. If S is dense, SW is kept, as for the exact steps.

    Parameters
    ----------
    batch_size : int
        Number |K| of rows, drawn with replacement; all rows, if that many are asked for.
    n_control : int
        Number p of rows P; they are the first ones, as rows are in random order.
    rate : callable
        Number of sweeps done → ρ.
    model, X, rows, **learning
        Those of :class:`~skgpstoch.objectives.blockwise.BasisObjective`.
    """

    def __init__(
        self,
        model: ChevronModel,
        X: Tensor,
        rows: Rows,
        *,
        batch_size: int,
        n_control: int,
        **options: Any,
    ) -> None:
        super().__init__(model, X, rows, n_swept=n_control, **options)
        self.batch_size = batch_size
        # The control variate keeps the starting kernel (appendix F.3).
        self.kriging = Kriging(model.basis.kernel, X[: self.n_swept])

    def rows_of_sweep(self, generator: torch.Generator) -> tuple[Tensor, Rows]:
        return self.X[: self.n_swept], self.rows[: self.n_swept]

    def visit(
        self, sweep: Sweep, groups: Tensor, members: Tensor, generator: torch.Generator
    ) -> Tensor:
        others = self.some_groups(len(groups), generator)
        seen_now, variance = self.estimate(
            sweep, others, *self.some_rows(self.batch_size, generator)
        )
        return self.proximal_step(sweep, seen_now, variance, groups, members)

    def some_groups(self, size: int, generator: torch.Generator) -> Tensor:
        """Return groups J, as many as I but at least two: consecutive ones from a random start."""
        n, device = self.model.basis.n_groups, self.X.device
        size = min(max(size, 2), n)
        if size == n:
            return torch.arange(n, device=device)
        first = torch.randint(n, (), generator=generator, device=device)
        return ((first + torch.arange(size, device=device)) % n).sort().values

    def estimate(self, sweep: Sweep, groups: Tensor, X: Tensor, rows: Rows) -> tuple[Sweep, Tensor]:
        """Estimate h and v at rows K from the functions J, and the variance of f̂ (P, ñ, C)."""
        n_groups, share = self.model.basis.n_groups, len(self.X) / len(X)
        if len(groups) == n_groups:
            f, v = self.say(X, groups)
            return replace(sweep, X=X, rows=rows, share=share, h=f, v=v), torch.zeros_like(f)
        (f, v), (f_2, v_2) = (self.kriged(sweep, X, half) for half in (groups[::2], groups[1::2]))
        variance = 0.25 * (1.0 - len(groups) / n_groups) * (f - f_2).square()
        second = len(groups[1::2]) / len(groups)
        h, v = torch.lerp(f, f_2, second), torch.lerp(v, v_2, second)
        return replace(sweep, X=X, rows=rows, share=share, h=h, v=v), variance

    def say(self, X: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Return f_J of every column, (P, ñ, C), and likewise Σ c_ii² φ_i², (P, ñ)."""
        model, members = self.model, self.model.basis.members(groups)
        phi = model.basis.columns(X, groups, members)
        W, std = model.columns[members].to(X).permute(1, 0, 2), model.std[members].to(X)
        times = model.basis.n_groups / len(groups)
        f, v = seen(phi, W, times * len(members)), times * (phi.square() @ std.square()).mT
        return f.double(), v.double()

    def kriged(self, sweep: Sweep, X: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as :meth:`say`, with f̂ in place of f_J."""
        error = self.say(sweep.X, groups)[0] - sweep.h
        f, v = self.say(X, groups)
        return f - self.kriging(X, error), v

    def proximal_step(
        self, sweep: Sweep, seen_now: Sweep, variance: Tensor, groups: Tensor, members: Tensor
    ) -> Tensor:
        """Make a proximal step, and return −ELBO per row at the q before it, ()."""
        model, rho = self.model, self.rate(self.n_sweeps)
        both = (model.basis.columns(X, groups, members) for X in (sweep.X, seen_now.X))
        phi, phi_K = (columns.to(sweep.dtype) for columns in both)
        W = model.columns[members].double().permute(1, 0, 2)  # (P, |I|, 1 + c)
        value, _, lam = self.sites(sweep)
        _, g, lam_K = self.sites(seen_now)
        S = model.precision(groups, members)
        H = (1.0 - rho) * weighted_gram(phi, lam) + rho * weighted_gram(phi_K, lam_K) + S
        SW = S @ W if sweep.at_points is None else sweep.at_points[:, members]
        of_rows = torch.cat([-g[..., None], lam_K[..., None] * seen_now.h[..., 1:]], 2)
        step = block_newton(W, SW + (phi_K.mT @ of_rows.to(phi_K)).double(), H, members)
        step *= trust(variance, lam_K / seen_now.share)[:, None]
        block = Block(groups, members, phi, W, model.std[members].double(), step, S, SW, H)
        h, v, kl, std = self.candidate(sweep, block, rho)
        self.move(sweep, replace(sweep, h=h, v=v, kl=kl), block, rho, std)
        return value
