"""The evidence lower bound of very many basis functions, from sampled rows and functions.

Evans & Nair, "Quadruply stochastic Gaussian processes", 2020. f = Φw for m basis functions,
w ~ N(0, S⁻¹), q(w) = N(μ, CCᵀ), C a chevron (:mod:`skgpstoch.models.posteriors.chevron`):

    2·(−ELBO) = n·log 2πσ² + yᵀy/σ² + L_μ + L_C + L_S − m
    L_μ = (‖Φμ‖² − 2yᵀΦμ)/σ² + μᵀSμ
    L_C = tr(CᵀΦᵀΦC)/σ² + tr(CᵀSC) − 2Σᵢ log c_ii      L_S = −log|S|                          (D1)

With independent index sets I and J of basis functions, and K of rows,

    Φ_K μ ≈ (m/|I|) Φ_KI μ_I =: f_I                                               (:func:`seen`)
    ‖Φμ‖² ≈ (n/|K|) f_Iᵀf_J                            (D2; :func:`squares`, :func:`prior_squares`)

and likewise for every dense column of C. Diagonal columns are sampled with I (D3), and so is L_S
(D4; :meth:`StochasticObjective.neg_log_prior`).
The control variate (:func:`controlled`) has fixed rows P with their y; h = Φ_P[μ, c_1, …] is kept
for them as the weights change (Proposition 3). That of a dense S is its Nyström approximation
(F.2). The coefficient is the best one that earlier steps determine (:class:`BestCoefficient`).
Other log-concave likelihoods have a lower bound (Theorem 3; :func:`site_marginals`).

The variance of f_I is about k(x, x)‖μ‖²/|I|; :mod:`skgpstoch.objectives.blockwise` has no such
noise.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..maths.gaussian import LOG_2PI, Marginals
from ..maths.linalg import cholesky, tri_solve
from ..maths.modules import Module
from ..models.posteriors.chevron import ChevronModel, scales
from .blockwise import TINY, BasisObjective

LEAST_VARIANCE = 1e-12
LEAST_DIAGONAL = 1e-6  # lower bound of c_rr for AdaGrad's steps
ADAGRAD_RATE = 0.1
KEPT_MOMENTS = 0.99  # share of a control variate's moments that is kept from step to step
MOST_SUPPORT = 256  # most points of the Nyström approximation
HYPER_RATE = 0.1  # rate of kernel and noise, relative to ADAGRAD_RATE


def seen(phi: Tensor, W: Tensor, m: float) -> Tensor:
    """Return (m/|I|) Φ_KI W_I, an unbiased estimate of Φ_K W, (P, ñ, C).

    phi is Φ_KI (ñ, |I|), and W is W_I (P, |I|, C).
    """
    return (m / phi.shape[1]) * (phi @ W)


def squares(f_I: Tensor, f_J: Tensor) -> Tensor:
    """Return f_Iᵀf_J of every column, (P, C): an unbiased ‖Φ_K W‖² if I, J are independent."""
    return (f_I * f_J).sum(1)


def of_fit(f_I: Tensor, f_J: Tensor, y: Tensor) -> Tensor:
    """Estimate ‖ΦW‖² of every column, minus 2yᵀΦμ for the mean's column, (P, C); y is (P, ñ)."""
    found = squares(f_I, f_J)
    found[:, 0] -= 2.0 * (y * f_I[..., 0]).sum(1)
    return found


def controlled(
    estimate: Tensor, control: Tensor, mean: Tensor, coefficient: Tensor | float = 1.0
) -> Tensor:
    """Return a − β(c − E c), for a control variate c whose mean is known (eq. 3)."""
    return estimate - coefficient * (control - mean)


class BestCoefficient(Module):
    """The coefficient β of a control variate, learned from earlier steps to avoid bias.

    The variance of a − β(c − E c) is least at β = cov(a, c)/var c. Estimate the moments about E c,
    which is known and not far from E a, with exponential forgetting, because the weights change. β
    is 0 until the first step has been seen, and at most 1: with few rows, a control variate may be
    worse than none.
    """

    products: Tensor  # averages of (a − E c)(c − E c) and of (c − E c)², (2, P, C)

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("products", like.new_zeros(2, *like.shape, dtype=torch.float64))

    def value(self) -> Tensor:
        """Return β of every column, (P, C)."""
        both, control = self.products
        return (both / control.clamp_min(TINY)).clamp(0.0, 1.0)

    @torch.no_grad()
    def see(self, estimate: Tensor, control: Tensor, mean: Tensor) -> None:
        """Update the moments with a step's estimate and control variate, whose mean is known."""
        deviation = (control - mean).double()
        seen_now = torch.stack([(estimate - mean) * deviation, deviation.square()])
        self.products.mul_(KEPT_MOMENTS).add_(seen_now)


def sloped(h: Tensor, f_I: Tensor) -> Tensor:
    """Return h with the gradient of f_I, which is unbiased for sampled weights (F.1)."""
    return h + f_I - f_I.detach()


def prior_squares(S: Tensor, W_I: Tensor, W_J: Tensor, m: float) -> Tensor:
    """Return an unbiased estimate of WᵀSW of every column, (P, C).

    It is (m/|I|) Σ s_ii w_i² for the diagonal (|I|,) of S_II, and (m²/(|I||J|)) W_Iᵀ S_IJ W_J for a
    dense S_IJ.
    """
    if S.ndim == 1:
        return (m / len(S)) * (S[:, None] * W_I.square()).sum(1)
    return (m / S.shape[0]) * (m / S.shape[1]) * (W_I * (S @ W_J)).sum(1)


def site_marginals(f_I: Tensor, f_J: Tensor, of_diagonal: Tensor, shift: Tensor) -> Marginals:
    """Return N(a, s²), whose E[log p(y | f)] is on average no more than that of q(f) (Theorem 3).

    a is f_I's mean column, and s² = Σ_{r<c} (f_J,r)² + Σ_{r∈J} ((m/|J|) c_rr φ_r)², whose second
    sum is `of_diagonal` (P, ñ). The terms are squares of unbiased estimates of (Cᵀφ)_r, r ≤ m. The
    expectation is concave in (a, Cᵀφ), so noise in these can only lower it on average.
    """
    mean, var = f_I[..., 0].mT + shift, (f_J[..., 1:].square().sum(2) + of_diagonal).mT
    return Marginals(mean[None], var.clamp_min(LEAST_VARIANCE)[None])


class StochasticObjective(BasisObjective):
    """Estimates of −ELBO per row from sampled rows and sampled basis functions, for AdaGrad.

    Parameters
    ----------
    batch_size : int
        Number ñ of rows in a step.
    n_control : int
        Number p of rows of the control variate; 0 for none. If S is dense, its Nyström
        approximation has at most p points (F.2).
    generator : torch.Generator
        Draws the rows of the control variate, once.
    model, X, rows, **learning
        See :class:`~skgpstoch.objectives.blockwise.BasisObjective`. With counts_variance=False the
        noise is not learned, because the bound's optimum always counts the variance of f.
    """

    h: Tensor  # Φ_P W, (P, p, C)
    support: Tensor  # U
    root: Tensor  # L of k(U, U) = LLᵀ
    u: Tensor  # L⁻¹ k(U, Z) W, (P, |U|, C)

    def __init__(
        self,
        model: ChevronModel,
        X: Tensor,
        rows: Rows,
        *,
        batch_size: int,
        n_control: int,
        generator: torch.Generator,
        **learning: Any,
    ) -> None:
        super().__init__(model, X, rows, **learning)
        self.batch_size = batch_size
        self.learns = {
            model.basis.kernel: self.learns_kernel,
            model.likelihood: self.learns_noise and self.counts_variance,
        }
        self.controls = isinstance(model.likelihood, Gaussian) and n_control > 0
        self.control_X, self.control_rows = self.some_rows(max(n_control, 1), generator)
        # The control variate keeps the basis functions of the start (appendix F.3).
        self.control_basis = copy.deepcopy(model.basis).requires_grad_(False)
        self.register_buffer("h", self.project(self.control_X)[0])
        model.flat.requires_grad_(True)
        self.coefficient = BestCoefficient(self.h[:, 0])
        if len(self.control_X) == len(self.X):
            self.coefficient.products.fill_(1.0)  # β = 1 is best if batches have all rows too
        self.touched: tuple[Tensor, Tensor] | None = None  # a step's groups, and their old weights
        # What coefficients will learn from the present step: a, c and E c.
        self.seen_now: list[tuple[BestCoefficient, tuple[Tensor, ...]]] = []
        self.approximates = not model.basis.is_diagonal and n_control > 0
        if self.approximates:
            self.start_nystrom(min(n_control, MOST_SUPPORT), generator)

    def param_groups(self) -> list[dict[str, Any]]:
        hyper = [p for module, learns in self.learns.items() if learns for p in module.parameters()]
        return [
            {"params": [self.model.flat], "rate": ADAGRAD_RATE},
            {"params": hyper, "rate": ADAGRAD_RATE * HYPER_RATE},
        ]

    def step_end(self) -> None:
        """Bring parameters within bounds, and update h and u for the new weights."""
        model, c = self.model, self.model.n_dense
        low, high = self.noise_bounds
        model.basis.kernel.clamp_()
        if isinstance(model.likelihood, AdditiveNoise):
            model.likelihood.set_noise_(model.likelihood.noise_variance.clamp(low, high))
        for coefficient, seen_now in self.seen_now:
            coefficient.see(*seen_now)
        self.seen_now = []
        if self.touched is None:
            return
        groups, before = self.touched
        members = model.basis.members(groups)
        with torch.no_grad():
            corner = members[members < c]
            own = model.columns[corner, :, 1 + corner]
            model.columns[corner, :, 1 + corner] = own.clamp_min(LEAST_DIAGONAL)
            change = (model.columns[members] - before).permute(1, 0, 2)
            self.h += (self.control_basis.columns(self.control_X, groups) @ change).double()
            if self.approximates:
                self.u += self.nystrom(groups) @ change.double()
        self.touched = None

    def start_nystrom(self, size: int, generator: torch.Generator) -> None:
        """Choose points U of the basis, such that k(Z, U)k(U, U)⁻¹k(U, Z) approximates S."""
        model, basis = self.model, self.control_basis
        device = self.X.device
        some = torch.randperm(basis.n_groups, generator=generator, device=device)[:size]
        S = basis.precision(some).detach()
        self.register_buffer("support", some)
        self.register_buffer("root", cholesky(S, "covariance of the points"))
        W = model.columns.double().permute(1, 0, 2)
        u = W.new_zeros(W.shape[0], len(some), W.shape[2])
        with torch.no_grad():
            for groups, members in model.blocks():
                u += self.nystrom(groups) @ W[:, members]
        self.register_buffer("u", u)
        self.prior_coefficient = BestCoefficient(u[:, 0])

    def nystrom(self, groups: Tensor) -> Tensor:
        """Return L⁻¹ k(U, Z_I), (|U|, |I|)."""
        return tri_solve(self.root, self.control_basis.cross(self.support, groups).double())

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        model, basis = self.model, self.model.basis
        groups_i = X.sort().values
        groups_j = groups_i
        if len(groups_i) < basis.n_groups:
            # Each group once, so that the bound of other likelihoods holds; the number is random.
            groups_j = torch.randint(
                basis.n_groups, groups_i.shape, generator=generator, device=groups_i.device
            ).unique()
        batch = self.some_rows(self.batch_size, generator)
        for module, learns in self.learns.items():
            module.requires_grad_(learns and self.n_sweeps >= self.warm_up)
        union = torch.cat([groups_i, groups_j]).unique()
        self.touched = union, model.columns[basis.members(union)]
        is_gaussian = isinstance(model.likelihood, Gaussian)
        estimate = self.gaussian if is_gaussian else self.other
        return estimate(groups_i, groups_j, *batch) / self.rows.n_effective

    def gaussian(self, groups_i: Tensor, groups_j: Tensor, X: Tensor, rows: Rows) -> Tensor:
        """Return −ELBO by (D2)-(D4), ()."""
        model, n = self.model, self.rows.n_effective
        noise = cast(Gaussian, model.likelihood).noise_variance.to(X)  # (P,)
        W_I, W_J = self.weights(groups_i), self.weights(groups_j)
        share = len(self.X) / len(X)
        phi_I, phi_J = (self.rooted(model.basis.columns(X, g), rows) for g in (groups_i, groups_j))
        y = self.rooted(rows.y - model.shift, rows).mT  # (P, ñ)
        f_I = seen(phi_I, W_I, self.count(groups_i, phi_I))
        f_J = seen(phi_J, W_J, self.count(groups_j, phi_J))
        fit = share * of_fit(f_I, f_J, y)
        if self.controls:
            fit = self.controlled_fit(fit, groups_i, groups_j, W_I, W_J)
        data = (fit.sum(1) + share * y.square().sum(1)) / noise + n * (LOG_2PI + noise.log())
        curvature = share * phi_I.square().sum(0)[:, None] / noise  # ‖φ_i‖²/σ², (|I|, P)
        return 0.5 * data.sum() + self.neg_log_prior(
            groups_i, groups_j, W_I, W_J, curvature, curvature
        )

    def controlled_fit(
        self, estimate: Tensor, groups_i: Tensor, groups_j: Tensor, W_I: Tensor, W_J: Tensor
    ) -> Tensor:
        """Return :func:`of_fit` of all rows, with that of rows P as control variate, (P, C)."""
        rows, share = self.control_rows, len(self.X) / len(self.control_X)
        phi_I, phi_J = (
            self.rooted(self.control_basis.columns(self.control_X, g), rows)
            for g in (groups_i, groups_j)
        )
        y = self.rooted(rows.y - self.model.shift, rows).mT
        f_I = seen(phi_I, W_I, self.count(groups_i, phi_I))
        f_J = seen(phi_J, W_J, self.count(groups_j, phi_J))
        h = self.rooted(self.h, rows, 1).to(phi_I)
        control, h = share * of_fit(f_I, f_J, y), sloped(h, f_I)
        mean = share * of_fit(h, h, y)
        return self.with_control(estimate, control, mean, self.coefficient)

    def controlled_prior(
        self, estimate: Tensor, groups_i: Tensor, groups_j: Tensor, W_I: Tensor, W_J: Tensor
    ) -> Tensor:
        """Return WᵀSW, with the Nyström approximation of S as control variate, (P, C) (F.2)."""
        A_I, A_J = (self.nystrom(g).to(W_I) for g in (groups_i, groups_j))
        f_I = seen(A_I, W_I, self.count(groups_i, A_I))
        f_J = seen(A_J, W_J, self.count(groups_j, A_J))
        control, u = squares(f_I, f_J), sloped(self.u.to(W_I), f_I)
        return self.with_control(estimate, control, squares(u, u), self.prior_coefficient)

    def with_control(
        self, estimate: Tensor, control: Tensor, mean: Tensor, coefficient: BestCoefficient
    ) -> Tensor:
        """Return a − β(c − E c), (P, C), and keep the terms to update β after the step."""
        self.seen_now.append((coefficient, (estimate.detach(), control.detach(), mean.detach())))
        return controlled(estimate, control, mean, coefficient.value().to(mean))

    def other(self, groups_i: Tensor, groups_j: Tensor, X: Tensor, rows: Rows) -> Tensor:
        """Return an estimate that is, on average, an upper bound of −ELBO, ()."""
        model = self.model
        W_I, W_J = self.weights(groups_i), self.weights(groups_j)
        phi_I, phi_J = model.basis.columns(X, groups_i), model.basis.columns(X, groups_j)
        m_I, m_J = self.count(groups_i, phi_I), self.count(groups_j, phi_J)
        f_I, f_J = seen(phi_I, W_I, m_I), seen(phi_J, W_J, m_J)
        c_J = model.std[model.basis.members(groups_j)].to(X)
        of_diagonal = (m_J / len(c_J)) ** 2 * (phi_J.square() @ c_J.square()).mT
        q = site_marginals(f_I, f_J, of_diagonal, model.shift.to(X))
        share = len(self.X) / len(X)
        of_rows = model.likelihood.expected_log_prob(rows.y, q)
        with torch.no_grad():
            _, _, d_var = model.likelihood.expected_gradients(rows.y, q)
            lam = share * rows.weighted(-2.0 * d_var)
            curvature = phi_I.square().mT @ lam  # (|I|, P)
        neg_log_prior = self.neg_log_prior(
            groups_i, groups_j, W_I, W_J, curvature, torch.zeros_like(curvature)
        )
        return neg_log_prior - share * rows.weighted(of_rows).sum()

    def neg_log_prior(
        self,
        groups_i: Tensor,
        groups_j: Tensor,
        W_I: Tensor,
        W_J: Tensor,
        curvature: Tensor,
        data: Tensor,
    ) -> Tensor:
        """Return KL[q(w) ‖ p(w)] plus the data term `data` (|I|, P) of diagonal columns, ().

        Afterwards set diagonal columns to their optimum for `curvature`, ‖φ_i‖²/σ² (|I|, P).
        """
        model, basis, members = self.model, self.model.basis, self.model.basis.members(groups_i)
        share, own = basis.n_groups / len(groups_i), members >= model.n_dense
        s = basis.diagonal(groups_i).to(W_I)[:, None]
        S = s[:, 0] if basis.is_diagonal else basis.cross(groups_i, groups_j).to(W_I)
        std = model.std[members].to(W_I)
        c_ii = scales(W_I.permute(1, 0, 2), std, members)
        log_s = s.log() if basis.is_diagonal else torch.zeros_like(s)
        of_members = std.square() * (data + s) - 2.0 * c_ii.log() - log_s - 1.0
        model.std[members[own]] = (curvature + s)[own].detach().rsqrt().to(model.std)
        m = share * len(members)  # number of functions that the sample stands for
        of_columns = prior_squares(S, W_I, W_J, m)
        if self.approximates:
            of_columns = self.controlled_prior(of_columns, groups_i, groups_j, W_I, W_J)
        return 0.5 * (of_columns.sum() + share * of_members.sum())

    def count(self, groups: Tensor, phi: Tensor) -> float:
        """Return m such that m/|I| is one over the share of groups that are sampled."""
        return self.model.basis.n_groups / len(groups) * phi.shape[1]

    def weights(self, groups: Tensor) -> Tensor:
        """Return μ and the dense columns of C for the functions in groups, (P, |I|, 1 + c)."""
        model, members = self.model, self.model.basis.members(groups)
        _, P, C = model.columns.shape
        W = F.embedding(members, model.flat, sparse=True).view(-1, P, C)
        below = members[:, None] >= torch.arange(-1, C - 1, device=W.device)
        return (W * below[:, None]).permute(1, 0, 2)

    @staticmethod
    def rooted(values: Tensor, rows: Rows, axis: int = 0) -> Tensor:
        """Return values of rows times the square roots of their weights."""
        if rows.weight is None:
            return values
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        return values * rows.weight.sqrt().to(values).view(shape)
