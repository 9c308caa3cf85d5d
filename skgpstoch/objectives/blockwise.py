"""Find q(w) of very many basis functions by exact steps for one block of them at a time.

A step sees a minibatch of p rows and a block I of basis functions. The contribution of all
functions at these rows, h = Φ_P[μ, c_1, …, c_c] and v = Σ c_ii²φ_i², is not estimated but *kept*:
if only the block changes, h ← h + Φ_PI(new − old). This is the running vector of the control
variate of Evans & Nair (Proposition 3), but its rows are the minibatch itself, so only the choice
of rows is random. The sites g_l and λ_l of a row are the derivative of E_q[log p(y_l | f_l)] by the
mean and minus twice that by the variance, each times n/p, the number of rows that it stands for.
With

    ∂/∂μ_I   = −Φ_PIᵀ g + (Sμ)_I
    ∂/∂c_r,I =  Φ_PIᵀ(λ ∘ h_r) + (Sc_r)_I − e_r/c_rr                                 (r < c)
    H_II     =  Φ_PIᵀ diag(λ) Φ_PI + S_II

the objective is minimised over the block: μ_I and c_r,I by a Newton step, which is exact for a
Gaussian likelihood, c_rr by the positive root of its quadratic equation, and c_ii = H_ii^(−1/2)
(Proposition 1). For other likelihoods a step is halved until the bound rises. If S is diagonal, a
step costs O(p|I|(|I| + c) + |I|³), whatever n and m are. A sweep visits all blocks with the same
rows; the next sweep has other rows. If p = n, a sweep is deterministic coordinate descent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..data.devices import is_host, map_blocks
from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..maths.linalg import cholesky
from ..maths.pull_back import pulled_back
from ..models.posteriors.chevron import ChevronModel, ChevronPosterior, scales
from .base import Objective, surrogate

TINY = 1e-30
MOST_ROUNDING = 1e-3  # of second derivatives, of which those of the prior are about 1
STEP_ROUNDING = 1e-10  # relative change of the bound that may be rounding
KERNEL_RATE = 0.1  # Adam's learning rate, relative to learning_rate_init
HALVINGS = 8  # most trials of a step, halved as long as it does not raise the bound


@dataclass
class Sweep:
    """The rows of a sweep, and the sums that are kept for them."""

    X: Tensor  # (p, d)
    rows: Rows
    share: float  # n/p
    h: Tensor  # (P, p, 1 + c), float64
    v: Tensor  # (P, p), float64
    at_points: Tensor | None  # SW, (m, P, 1 + c), if S is dense
    kl: Tensor  # KL of q(w), without log|S| if S is dense
    dtype: torch.dtype = torch.float64  # of Φ in steps


class Block(NamedTuple):
    """The basis functions of a step, and the step itself."""

    groups: Tensor
    members: Tensor  # I, (|I|,)
    phi: Tensor  # Φ_PI
    W: Tensor  # before the step, (P, |I|, 1 + c)
    std: Tensor  # before the step, (|I|, P)
    step: Tensor  # the full step of W, to the block's optimum
    S: Tensor  # S_II, (P or 1, |I|, |I|)
    SW: Tensor  # (SW)_I
    H: Tensor  # (P, |I|, |I|)


class BasisObjective(Objective):
    """−ELBO per row of a model with very many basis functions.

    The "rows" of the training loop are groups of basis functions here: an epoch is a sweep over
    these.

    Parameters
    ----------
    model : ChevronModel
        Basis, likelihood and q(w).
    X, rows : Tensor of shape (n, d) and Rows
        All rows to train on, in random order.
    learns_kernel, learns_noise : bool
        Whether to learn these hyper-parameters, after the warm-up.
    warm_up : int, default=0
        Number of sweeps before hyper-parameters are learned.
    counts_variance : bool, default=True
        Whether the learned noise is the mean of (y − f)², with the variance of f, or of (y − E f)².
    noise_bounds : tuple of float
        Interval of σ².
    """

    def __init__(
        self,
        model: ChevronModel,
        X: Tensor,
        rows: Rows,
        *,
        learns_kernel: bool = False,
        learns_noise: bool = True,
        warm_up: int = 0,
        counts_variance: bool = True,
        noise_bounds: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        super().__init__()
        self.model = model
        self.X, self.rows = X, rows
        self.learns_kernel = learns_kernel
        self.learns_noise = learns_noise
        self.warm_up = warm_up
        self.counts_variance = counts_variance
        self.noise_bounds = noise_bounds
        self.n_sweeps = 0

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        groups = torch.arange(self.model.basis.n_groups, device=X.device)
        return groups, Rows(groups[:, None])

    def is_closed(self) -> bool:
        return False

    def get_extra_state(self) -> int:
        return self.n_sweeps

    def set_extra_state(self, state: int) -> None:
        self.n_sweeps = state

    def epoch_end(self) -> None:
        self.n_sweeps += 1

    def some_rows(self, n_rows: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Draw rows with replacement, or return all rows if that many are asked for."""
        if n_rows >= len(self.X):
            return self.X, self.rows
        size, device = (n_rows,), self.X.device
        some = torch.randint(len(self.X), size, generator=generator, device=device)
        return self.X[some], self.rows[some]

    @torch.no_grad()
    def project(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Do what :meth:`ChevronModel.project` does, by blocks of rows."""
        P, C = self.model.columns.shape[1:]
        h = torch.empty(P, len(X), C, dtype=torch.float64, device=X.device)
        v = torch.empty(P, len(X), dtype=torch.float64, device=X.device)

        is_prior = self.model.is_prior()

        def compute(block: slice) -> None:
            h[:, block], v[:, block] = self.model.project(X[block], is_prior)

        map_blocks(compute, len(X))
        return h, v

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the negative log predictive density per held-out row."""
        held_out = rows[: rows.n_held_out]
        q = self.model.moments(*self.project(X[: rows.n_held_out]))
        losses = -self.model.likelihood.log_predictive(held_out.y.double(), q)
        return float(held_out.weighted(losses).sum()) / held_out.n_effective

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ChevronPosterior:
        """Return the posterior of the present q(w)."""
        model = copy.deepcopy(self.model)
        if model.augments:
            model.row_precision.copy_(self.precision_of_points())
        return ChevronPosterior(model, self.rows.n_effective)

    def precision_of_points(self) -> Tensor:
        """Return λ (m, P) of the rows that are points, scaled up to stand for all rows.

        If the points come from a fit to other rows, all points get the mean.
        """
        points = self.model.basis.points
        m, n = len(points), self.rows.n_effective
        q = self.model.moments(*self.project(self.X[:m]))
        some = self.rows[:m]
        _, _, d_var = self.model.likelihood.expected_gradients(some.y.double(), q)
        precision = -2.0 * some.weighted(d_var) * (n / some.n_effective)
        if len(precision) == m and torch.equal(points.to(self.X), self.X[:m]):
            return precision
        return (precision.sum(0) / m).expand(m, -1)


class BlockwiseObjective(BasisObjective):
    """−ELBO per row, lowered block by block.

    Hyper-parameters are learned after a sweep: the kernel makes a step of the optimiser, and the
    noise moves to its optimum.

    Parameters
    ----------
    n_swept : int
        Number p of rows in a sweep.
    rate : callable
        Number of sweeps done → how far to go towards the block's optimum, in (0, 1].
    model, X, rows, **learning
        See :class:`BasisObjective`.
    """

    def __init__(
        self,
        model: ChevronModel,
        X: Tensor,
        rows: Rows,
        *,
        n_swept: int,
        rate: Callable[[int], float],
        **learning: Any,
    ) -> None:
        super().__init__(model, X, rows, **learning)
        self.n_swept = min(n_swept, len(X))
        self.rate = rate
        self.sweep: Sweep | None = None
        model.basis.kernel.requires_grad_(self.learns_kernel)
        self.gradients = [torch.zeros_like(p) for p in self._hyperparameters()]

    # ---- what the training loop asks ---------------------------------------------------------

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": self._hyperparameters(), "rate": KERNEL_RATE}]

    def _hyperparameters(self) -> list[Any]:
        return [p for p in self.model.basis.parameters() if p.requires_grad]

    def set_extra_state(self, state: int) -> None:
        super().set_extra_state(state)
        self.sweep = None

    def step_end(self) -> None:
        self.model.basis.kernel.clamp_()

    def epoch_end(self) -> None:
        if self.sweep is not None and self.learns_noise and self.n_sweeps >= self.warm_up:
            self.set_noise(self.sweep)
        super().epoch_end()
        self.sweep = None

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        groups = X.sort().values
        if self.sweep is None:
            self.sweep = self.begin(generator)
            self.n_left = self.model.basis.n_groups
        members = self.model.basis.members(groups)
        with torch.no_grad():
            value = self.visit(self.sweep, groups, members, generator)
        self.n_left -= len(groups)
        if not self._hyperparameters():
            return value
        self.add_gradients(self.sweep, groups, members)
        if self.n_left or self.n_sweeps < self.warm_up:
            return value.requires_grad_()  # without gradients, the optimiser makes no step yet
        return surrogate(value, *zip(self._hyperparameters(), self.gradients, strict=True))

    # ---- a sweep -----------------------------------------------------------------------------

    def rows_of_sweep(self, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Return the rows at which h and v are kept."""
        return self.some_rows(self.n_swept, generator)

    @torch.no_grad()
    def begin(self, generator: torch.Generator) -> Sweep:
        """Choose the rows of a sweep, and project q onto them."""
        model, (X, rows) = self.model, self.rows_of_sweep(generator)
        for gradient in self.gradients:
            gradient.zero_()
        h, v = self.project(X)
        if model.basis.is_diagonal:
            at_points, kl = None, model.kl()
        else:
            at_points, _ = self.project(model.basis.points.to(X))
            kl = self.dense_kl(at_points)
        sweep = Sweep(X, rows, len(self.X) / len(X), h, v, at_points, kl)
        return replace(sweep, dtype=exact_enough(X.dtype, self.sites(sweep)[2], len(X)))

    def visit(
        self, sweep: Sweep, groups: Tensor, members: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Take a step, and return −ELBO per row at the q before it, ()."""
        return self.step(sweep, groups, members)

    def step(self, sweep: Sweep, groups: Tensor, members: Tensor) -> Tensor:
        """Minimise over a block, and return −ELBO per row at the q before it, ()."""
        model = self.model
        rho = self.rate(self.n_sweeps)
        phi = model.basis.columns(sweep.X, groups, members).to(sweep.dtype)
        W = model.columns[members].double().permute(1, 0, 2)  # (P, |I|, 1 + c)
        value, g, lam = self.sites(sweep)
        S = model.precision(groups, members)
        H = weighted_gram(phi, lam) + S
        SW = S @ W if sweep.at_points is None else sweep.at_points[:, members]
        of_rows = torch.cat([-g[..., None], lam[..., None] * sweep.h[..., 1:]], 2)
        step = block_newton(W, SW + (phi.mT @ of_rows.to(phi)).double(), H, members)
        block = Block(groups, members, phi, W, model.std[members].double(), step, S, SW, H)
        most = value + STEP_ROUNDING * value.abs()
        for _ in range(HALVINGS):
            h, v, kl, std = self.candidate(sweep, block, rho)
            after = replace(sweep, h=h, v=v, kl=kl)
            if isinstance(model.likelihood, Gaussian) or bool(self.sites(after)[0] <= most):
                self.move(sweep, after, block, rho, std)
                break
            rho = 0.5 * rho
        else:
            self.stay(sweep, block)
        return value

    def candidate(
        self, sweep: Sweep, block: Block, rho: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return h, v, KL and the block's diagonal scales (|I|, P) after a share ρ of the step."""
        members, phi, W, step, S = block.members, block.phi, block.W, block.step, block.S
        optimum = block.H.diagonal(dim1=1, dim2=2).mT  # Proposition 1
        std = torch.lerp(block.std.clamp_min(TINY) ** -2, optimum, rho).rsqrt()
        std = std.masked_fill(members[:, None] < self.model.n_dense, 0.0)
        change = std.square() - block.std.square()
        linear, square = (step * block.SW).sum(), (step * (S @ step)).sum()
        variances = (S.diagonal(dim1=1, dim2=2).mT * change).sum()
        was = scales(W.permute(1, 0, 2), block.std, members)
        becomes = scales((W + rho * step).permute(1, 0, 2), std, members)
        kl = rho * linear + 0.5 * (rho**2 * square + variances) - (becomes / was).log().sum()
        h = sweep.h + rho * (phi @ step.to(phi)).double()
        v = sweep.v + (phi.square() @ change.to(phi)).mT.double()
        return h, v.clamp_min(0.0), sweep.kl + kl, std

    def stay(self, sweep: Sweep, block: Block) -> None:
        """Do nothing, where no share of a step gains."""

    def move(self, sweep: Sweep, after: Sweep, block: Block, rho: float, std: Tensor) -> None:
        """Apply a step to the model and to the sums that are kept."""
        model, members = self.model, block.members
        sweep.h, sweep.v, sweep.kl = after.h, after.v, after.kl
        if sweep.at_points is not None:
            points = model.basis.points.to(block.phi)
            phi = model.basis.columns(points, block.groups, members)
            change = phi @ block.step.to(block.phi)
            sweep.at_points += rho * change.double()
        W = (block.W + rho * block.step).permute(1, 0, 2)
        model.columns[members], model.std[members] = W.to(model.columns), std.to(model.std)

    def dense_kl(self, at_points: Tensor) -> Tensor:
        """Return KL[q(w) ‖ p(w)] without terms in S alone, from SW (P, m, 1 + c): ()."""
        model, groups = self.model, torch.arange(self.model.basis.n_groups, device=self.X.device)
        W, std = model.columns.double(), model.std.double()
        second = (W.permute(1, 0, 2) * at_points).sum()
        second = second + (model.basis.diagonal(groups)[:, None] * std.square()).sum()
        return 0.5 * (second - std.numel()) - scales(W, std, groups).log().sum()

    def sites(self, sweep: Sweep) -> tuple[Tensor, Tensor, Tensor]:
        """Return −ELBO per row, (), and g and λ (P, p), times n/p; λ (P, 1) if rows agree."""
        likelihood, rows = self.model.likelihood, sweep.rows
        q = self.model.moments(sweep.h, sweep.v)
        of_rows, g, d_var = likelihood.expected_gradients(rows.y.double(), q)
        n = self.rows.n_effective
        value = (sweep.kl - sweep.share * rows.weighted(of_rows).sum()) / n
        g, lam = (sweep.share * rows.weighted(a).mT for a in (g, -2.0 * d_var))
        alike = isinstance(likelihood, Gaussian) and rows.weight is None
        return value, g, lam[:, :1] if alike else lam

    # ---- hyper-parameters --------------------------------------------------------------------

    def add_gradients(self, sweep: Sweep, groups: Tensor, members: Tensor) -> None:
        """Add one block's share of the gradient of −ELBO per row by the kernel's hyper-parameters.

        Over a sweep the shares add up to the gradient of the whole bound, once q no longer changes.
        S = I does not depend on the hyper-parameters.
        """
        basis = self.model.basis
        with torch.no_grad():
            W = self.model.columns[members].to(sweep.X).permute(1, 0, 2)  # (P, |I|, 1 + c)
            std = self.model.std[members].to(sweep.X)
            _, g, lam = self.sites(sweep)
            of_rows = torch.cat([-g[..., None], lam[..., None] * sweep.h[..., 1:]], 2).to(W)
            upstream = (of_rows @ W.mT).sum(0)  # (p, |I|)
        phi = basis.columns(sweep.X, groups, members)
        with torch.no_grad():
            upstream += phi * (lam.mT.to(phi).expand(len(phi), -1) @ std.square().mT)
            upstream /= self.rows.n_effective
        parts = pulled_back([phi], [upstream], self._hyperparameters())
        for total, part in zip(self.gradients, parts, strict=True):
            total += part

    @torch.no_grad()
    def set_noise(self, sweep: Sweep) -> None:
        """Set the noise that maximises the bound, given q."""
        q = self.model.moments(sweep.h, sweep.v)
        if not self.counts_variance:
            q = q._replace(var=torch.full_like(q.var, TINY))
        likelihood = cast(AdditiveNoise, self.model.likelihood)
        likelihood.maximise_(sweep.rows.to(torch.float64), q, self.noise_bounds)


def exact_enough(dtype: torch.dtype, lam: Tensor, n_rows: int) -> torch.dtype:
    """Return float64 if rounding of Φᵀdiag(λ)Φ is not small beside S, else this type.

    *Measured* on 100 rows of kin40k, with a noise of 3·10⁻⁶: sweeps in float32 went away from the
    optimum, to a bound of −200,000 nats per row and R² = −5 million; in float64 it is .40.
    """
    rounding = float(lam.max()) * math.sqrt(n_rows) * torch.finfo(dtype).eps
    return torch.float64 if rounding > MOST_ROUNDING else dtype


def weighted_gram(phi: Tensor, lam: Tensor) -> Tensor:
    """Return Φᵀdiag(λ)Φ (P, |I|, |I|), float64, for λ (P, p), or (P, 1) if rows agree."""
    if lam.shape[1] == 1:
        return lam[..., None] * (phi.mT @ phi).double()
    return torch.stack([(phi.mT @ (row.to(phi)[:, None] * phi)).double() for row in lam])


def unit_diagonal(H: Tensor) -> tuple[Tensor, Tensor]:
    """Return DHD with a unit diagonal, and D (P, |I|, 1): the sizes of weights may differ much."""
    d = H.diagonal(dim1=1, dim2=2).rsqrt()[..., None]
    return d * H * d.mT, d


def tail_solver(
    H: Tensor, members: Tensor, c: int
) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """Return a solver of Hx = b for columns with only the rows of a mask, and the mask.

    The mask is (|I|, 1 + c). With H = RRᵀ and R upper triangular, the submatrix of H from row k on
    is R_{k:}R_{k:}ᵀ. So one factor solves for all columns, if the rows above r are set to 0 between
    the two triangular solves.
    """
    H, d = unit_diagonal(H)
    R = cholesky(H.flip(1, 2), "posterior precision of a block of weights").flip(1, 2)
    first = torch.arange(-1, c, device=H.device)  # μ has all rows
    below = (members[:, None] >= first).to(H)

    def solve(B: Tensor, mask: Tensor) -> Tensor:
        u = torch.linalg.solve_triangular(R, d * B * mask, upper=True) * mask
        return d * torch.linalg.solve_triangular(R.mT, u, upper=False)

    return solve, below


def block_newton(W: Tensor, G: Tensor, H: Tensor, members: Tensor) -> Tensor:
    """Return the step to the minimum over a block, (P, |I|, 1 + c).

    Column r of C has only rows ≥ r.

    Parameters
    ----------
    W : Tensor of shape (P, |I|, 1 + c)
        μ_I and the dense columns of C.
    G : Tensor of shape (P, |I|, 1 + c)
        The gradient, without −e_r/c_rr.
    H : Tensor of shape (P, |I|, |I|)
        Second derivatives.
    members : Tensor of shape (|I|,)
        I, ascending.
    """
    c = W.shape[2] - 1
    solve, below = tail_solver(H, members, c)
    step = -solve(G, below)
    n_columns = count_dense(members, c)
    if n_columns:
        r = members[:n_columns].clamp_max(c - 1)
        j = torch.arange(n_columns, device=W.device)
        unit = torch.zeros(len(H), len(members), n_columns, dtype=H.dtype, device=H.device)
        unit[:, j, j] = 1.0
        q = solve(unit, below[:, 1 + r])  # H⁻¹e_r
        beta, alpha = W[:, j, 1 + r] + step[:, j, 1 + r], q[:, j, j]
        c_rr = 0.5 * (beta + (beta.square() + 4.0 * alpha).sqrt())  # c_rr = β + α/c_rr
        is_dense = members[:n_columns] < c
        step.index_add_(2, 1 + r, torch.where(is_dense, q / c_rr[:, None], 0.0))
    return step


def count_dense(members: Tensor, c: int) -> int:
    """Return how many of these functions, in ascending order, have dense columns.

    On a GPU return an upper bound instead.
    """
    if is_host(members.device):
        return int((members < c).sum())
    return min(len(members), c)  # needs no synchronisation
