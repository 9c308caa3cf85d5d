"""The evidence lower bound of very many basis functions, from sampled rows and functions.

Evans & Nair, "Quadruply stochastic Gaussian processes", 2020. f = Φw for m basis functions,
w ~ N(0, S⁻¹), q(w) = N(μ, CCᵀ), C a chevron (:mod:`skgpstoch.posteriors.chevron`):

    2·(−ELBO) = n·log 2πσ² + yᵀy/σ² + L_μ + L_C + L_S − m
    L_μ = (‖Φμ‖² − 2yᵀΦμ)/σ² + μᵀSμ
    L_C = tr(CᵀΦᵀΦC)/σ² + tr(CᵀSC) − 2Σᵢ log c_ii      L_S = −log|S|                          (D1)

From index sets I, J of basis functions, independent of one another, and K of rows,

    Φ_K μ ≈ (m/|I|) Φ_KI μ_I =: f_I                                               (:func:`seen`)
    ‖Φμ‖² ≈ (n/|K|) f_Iᵀf_J                            (D2; :func:`squares`, :func:`prior_squares`)

and the same of every dense column of C. Diagonal columns are sampled with I (D3), and so is L_S
(D4; :meth:`StochasticObjective.neg_log_prior`). The control variate (:func:`controlled_squares`)
has rows P that stay, on which h = Φ_P[μ, c_1, …] is kept as the weights change (Proposition 3); its
coefficient is the best that the steps before know (:class:`BestCoefficient`).
Other log-concave likelihoods have a lower bound of their sites (Theorem 3; :func:`site_marginals`).

The noise of f_I is as large as k(x, x)‖μ‖²/|I|; :mod:`skgpstoch.objectives.blockwise` has none.
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
from ..maths.modules import Module
from ..posteriors.chevron import ChevronModel, scales
from .blockwise import TINY, BasisObjective

LEAST_VARIANCE = 1e-12
LEAST_DIAGONAL = 1e-6  # of c_rr, which AdaGrad's steps may not bring below
ADAGRAD_RATE = 0.1
MEMORY = 0.99  # of moments of a control variate, from step to step
HYPER_RATE = 0.1  # of kernels and noise, relative to that


def seen(phi: Tensor, W: Tensor, m: float) -> Tensor:
    """(m/|I|) Φ_KI W_I, without bias ΦW of rows K: phi (ñ, |I|), W (P, |I|, C) → (P, ñ, C)."""
    return (m / phi.shape[1]) * (phi @ W)


def squares(f_I: Tensor, f_J: Tensor) -> Tensor:
    """f_Iᵀf_J of every column, without bias ‖Φ_K W‖² if I and J are independent: (P, C)."""
    return (f_I * f_J).sum(1)


def controlled_squares(
    of_batch: Tensor,
    of_control: Tensor,
    h: Tensor,
    share: float,
    control_share: float,
    coefficient: Tensor | float = 1.0,
) -> Tensor:
    """‖ΦW‖² of all n rows, (P, C), from :func:`squares` of rows K and P and from h = Φ_P W.

    (n/|K|) f_Iᵀf_J |_K − β[(n/p) f_Iᵀf_J |_P − (n/p) ‖Φ_P W‖²], the bracket of mean zero (eq. 3).
    """
    control = control_share * (of_control - h.square().sum(1))
    return share * of_batch - coefficient * control


class BestCoefficient(Module):
    """β of a control variate, from the steps before, so that the estimate has no bias.

    The variance of a − β(c − E c) is least at β = cov(a, c)/var c. Moments are those about E c,
    which is known and not far from E a, and forget the weights of old as these change. β is 0 until
    a step was seen, and at most 1: control variates of few rows are worse than none.
    """

    products: Tensor  # of a − E c by c − E c, and the squares of c − E c: (2, P, C)

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("products", like.new_zeros(2, *like.shape, dtype=torch.float64))

    def value(self) -> Tensor:
        """β of every column, (P, C)."""
        both, control = self.products
        return (both / control.clamp_min(TINY)).clamp(0.0, 1.0)

    @torch.no_grad()
    def see(self, estimate: Tensor, control: Tensor, mean: Tensor) -> None:
        """Learn from what a step estimated, and its control variate, whose mean is known."""
        deviation = (control - mean).double()
        seen_now = torch.stack([(estimate - mean) * deviation, deviation.square()])
        self.products.mul_(MEMORY).add_(seen_now)


def prior_squares(S: Tensor, W_I: Tensor, W_J: Tensor, m: float) -> Tensor:
    """WᵀSW of every column, without bias: (P, C).

    S_II's diagonal (|I|,) gives (m/|I|) Σ s_ii w_i², a dense S_IJ (m²/(|I||J|)) W_Iᵀ S_IJ W_J.
    """
    if S.ndim == 1:
        return (m / len(S)) * (S[:, None] * W_I.square()).sum(1)
    return (m / S.shape[0]) * (m / S.shape[1]) * (W_I * (S @ W_J)).sum(1)


def site_marginals(f_I: Tensor, f_J: Tensor, of_diagonal: Tensor, shift: Tensor) -> Marginals:
    """N(a, s²), under which E[log p(y | f)] is on average no more than under q(f) (Theorem 3).

    a = f_I's mean column and s² = Σ_{r<c} (f_J,r)² + Σ_{r∈J} ((m/|J|) c_rr φ_r)², the second of
    which is `of_diagonal` (P, ñ): squares of estimates without bias of (Cᵀφ)_r, r ≤ m. What is
    concave in (a, Cᵀφ) only loses by their noise.
    """
    mean, var = f_I[..., 0].mT + shift, (f_J[..., 1:].square().sum(2) + of_diagonal).mT
    return Marginals(mean[None], var.clamp_min(LEAST_VARIANCE)[None])


class StochasticObjective(BasisObjective):
    """Estimates of −ELBO per row from sampled rows and sampled basis functions, for AdaGrad.

    Parameters
    ----------
    batch_size : int
        ñ.
    n_control : int
        p; 0: no control variate.
    generator : torch.Generator
        Draws the rows of the control variate, once.
    model, X, rows, **learning
        Those of :class:`~skgpstoch.objectives.blockwise.BasisObjective`; noise that does not count
        the variance of f is none that the bound knows, and stays.
    """

    h: Tensor

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
        self.touched: tuple[Tensor, Tensor] | None = None  # groups, and their weights before
        self.seen_now: tuple[Tensor, ...] | None = None  # a, c and E c of the present step

    def param_groups(self) -> list[dict[str, Any]]:
        hyper = [p for module, learns in self.learns.items() if learns for p in module.parameters()]
        return [
            {"params": [self.model.flat], "rate": ADAGRAD_RATE},
            {"params": hyper, "rate": ADAGRAD_RATE * HYPER_RATE},
        ]

    def step_end(self) -> None:
        """Bring parameters within bounds, and h to the new weights."""
        model, c = self.model, self.model.n_dense
        low, high = self.noise_bounds
        model.basis.kernel.clamp_()
        if isinstance(model.likelihood, AdditiveNoise):
            model.likelihood.set_noise_(model.likelihood.noise_variance.clamp(low, high))
        if self.seen_now is not None:
            self.coefficient.see(*self.seen_now)
            self.seen_now = None
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
        self.touched = None

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        model, basis = self.model, self.model.basis
        groups_i = X.sort().values
        groups_j = groups_i
        if len(groups_i) < basis.n_groups:
            # Each once, so that the bound of other likelihoods holds; then how many is random.
            groups_j = torch.randint(
                basis.n_groups, groups_i.shape, generator=generator, device=groups_i.device
            ).unique()
        batch = self.some_rows(self.batch_size, generator)
        for module, learns in self.learns.items():
            module.requires_grad_(learns and self.n_sweeps >= self.warm_up)
        union = torch.cat([groups_i, groups_j]).unique()
        self.touched = union, model.columns[basis.members(union)]
        bound = self.gaussian if isinstance(model.likelihood, Gaussian) else self.other
        return bound(groups_i, groups_j, *batch) / self.rows.n_effective

    def gaussian(self, groups_i: Tensor, groups_j: Tensor, X: Tensor, rows: Rows) -> Tensor:
        """−ELBO by (D2)-(D4), ()."""
        model, n = self.model, self.rows.n_effective
        noise = cast(Gaussian, model.likelihood).noise_variance.to(X)  # (P,)
        W_I, W_J = self.weights(groups_i), self.weights(groups_j)
        share, control_share = len(self.X) / len(X), len(self.X) / len(self.control_X)
        phi_I, phi_J = (self.rooted(model.basis.columns(X, g), rows) for g in (groups_i, groups_j))
        y = self.rooted(rows.y - model.shift, rows).mT  # (P, ñ)
        m_I, m_J = self.count(groups_i, phi_I), self.count(groups_j, phi_J)
        f_I, f_J = seen(phi_I, W_I, m_I), seen(phi_J, W_J, m_J)
        square = share * squares(f_I, f_J)
        if self.controls:
            on_P = [
                self.rooted(self.control_basis.columns(self.control_X, g), self.control_rows)
                for g in (groups_i, groups_j)
            ]
            h = self.rooted(self.h, self.control_rows, 1).to(X)
            # In value h, in slope m/|I| times that by the sampled weights (F.1).
            h = h + seen(on_P[0], W_I - W_I.detach(), m_I)
            of_control = squares(seen(on_P[0], W_I, m_I), seen(on_P[1], W_J, m_J))
            known = control_share * h.square().sum(1)
            self.seen_now = square.detach(), control_share * of_control.detach(), known.detach()
            square = controlled_squares(
                squares(f_I, f_J), of_control, h, share, control_share, self.coefficient.value()
            )
        mean = square[:, 0] - 2.0 * share * (y * f_I[..., 0]).sum(1) + share * y.square().sum(1)
        data = (mean + square[:, 1:].sum(1)) / noise + n * (LOG_2PI + noise.log())
        curvature = share * phi_I.square().sum(0)[:, None] / noise  # ‖φ_i‖²/σ², (|I|, P)
        return 0.5 * data.sum() + self.neg_log_prior(
            groups_i, groups_j, W_I, W_J, curvature, curvature
        )

    def other(self, groups_i: Tensor, groups_j: Tensor, X: Tensor, rows: Rows) -> Tensor:
        """An upper bound of −ELBO on average, ()."""
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
            curvature = share * phi_I.square().mT @ rows.weighted(-2.0 * d_var)  # (|I|, P)
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
        """KL[q(w) ‖ p(w)], and what the data, (|I|, P), say of diagonal columns: ().

        Diagonal columns become what `curvature`, ‖φ_i‖²/σ² (|I|, P), makes of them, after it.
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
        m = share * len(members)  # that the sample is of, where not all groups are of one size
        squares_of_all = prior_squares(S, W_I, W_J, m).sum()
        return 0.5 * (squares_of_all + share * of_members.sum())

    def count(self, groups: Tensor, phi: Tensor) -> float:
        """m, for which m/|I| is the inverse of the share of the groups that are sampled."""
        return self.model.basis.n_groups / len(groups) * phi.shape[1]

    def weights(self, groups: Tensor) -> Tensor:
        """μ and the dense columns of C of the functions in groups, (P, |I|, 1 + c)."""
        model, members = self.model, self.model.basis.members(groups)
        _, P, C = model.columns.shape
        W = F.embedding(members, model.flat, sparse=True).view(-1, P, C)
        below = members[:, None] >= torch.arange(-1, C - 1, device=W.device)
        return (W * below[:, None]).permute(1, 0, 2)

    @staticmethod
    def rooted(values: Tensor, rows: Rows, axis: int = 0) -> Tensor:
        """Values of rows times the root of what each counts for."""
        if rows.weight is None:
            return values
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        return values * rows.weight.sqrt().to(values).view(shape)
