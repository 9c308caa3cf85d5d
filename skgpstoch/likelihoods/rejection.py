"""Exact draws from q̃(f) ∝ q(f) p(y | f), for the unbiased gradients of log E_q[p(y | f)] (uPS).

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021,
propose from N(μ, k·v) with the largest k ≤ 10 whose bound holds. It accepts the share E_q[p]/max p
of the proposals: one in e¹⁰⁰⁰ where y is far from what q expects. Here the envelope follows q̃
instead. In f, log q̃ is concave for every log-concave likelihood, so that on a grid with values h_k,
steps Δ and slopes s_k = (h_{k+1} − h_k)/Δ

    h(f) ≤ min(h_k + max(0, s_{k−1})Δ, h_{k+1} + max(0, −s_{k+1})Δ)     in the cell (f_k, f_{k+1}),
    h(f) ≤ h_0 + s_0 (f − f_0),     h(f) ≤ h_K + s_{K−1} (f − f_K)      to its left and right.

These are constants and exponentials, which are easy to draw from. Most often four of five proposals
are accepted, and never fewer than one of five, however improbable y is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.devices import is_host
from ..maths.gaussian import trapezoid_nodes
from ..maths.linalg import NotPositiveDefiniteError

N_CELLS = 32

MAX_ROUNDS = 10_000

N_ZOOMS = 5  # each finds where the integrand counts a dozen times closer

NOT_CONCAVE = "the logarithm of the likelihood is probably not concave. Use gradient='exact'."

UNASKED = 8  # rounds of an accelerator before it is asked what is pending: mostly nothing then

Propose = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows (E,) → a proposal for each, (E, P), and log(target/envelope) there, (E, P or 1)."""


class Draws(NamedTuple):
    """Draws, and what they cost."""

    f: Tensor  # (n_samples, N, P)
    n_proposed: int | Tensor

    @property
    def acceptance_rate(self) -> float:
        """Draws for each proposal."""
        return self.f.numel() / max(int(self.n_proposed), 1)


def accept_reject(
    propose: Propose,
    n_samples: int,
    like: Tensor,
    generator: torch.Generator,
    cause: str = NOT_CONCAVE,
) -> Draws:
    """Propose until every draw is accepted; there is one for each element of `like` (N, P).

    `cause` says why proposals may never be accepted, and what to do then.
    """
    N, P = like.shape
    row = torch.arange(N, device=like.device).repeat(n_samples)  # (n_samples·N,)
    f = like.new_empty(n_samples * N, P)
    waits = torch.ones_like(f, dtype=torch.bool)
    pending = torch.arange(len(f), device=like.device)
    n_proposed = torch.zeros((), dtype=torch.int64, device=like.device)
    n_rounds = 1 if is_host(like.device) else UNASKED
    for _ in range(MAX_ROUNDS):
        if not len(pending):
            return Draws(f.view(n_samples, N, P), n_proposed)
        for _ in range(n_rounds):
            x, log_ratio = propose(row[pending])
            uniform = torch.rand(
                log_ratio.shape, generator=generator, dtype=x.dtype, device=x.device
            )
            still = waits[pending]
            n_proposed += still.sum()
            accepted = still & ~(uniform.log() > log_ratio)  # NaN, too: to be found by the caller
            f[pending] = torch.where(accepted, x, f[pending])
            waits[pending] = still & ~accepted
        pending = pending[waits[pending].any(1)]
    raise NotPositiveDefiniteError(
        f"Too few of {n_proposed} proposals were accepted as draws from q(f) p(y | f): {cause}"
    )


class Envelope:
    """An upper bound of exp(g(x) + d(x)) for g concave and d decreasing, d ≤ 0; elementwise.

    Parameters
    ----------
    g : callable
        (..., N, P) → (..., N, P).
    low, high : Tensors of shape (N, P)
        An interval outside which the target is negligible.
    d : callable or None, default=None
        As g; None is 0.
    """

    def __init__(
        self,
        g: Callable[[Tensor], Tensor],
        low: Tensor,
        high: Tensor,
        d: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        def log_target(x: Tensor) -> Tensor:
            return g(x) if d is None else g(x) + d(x)

        x, _ = trapezoid_nodes(log_target, low, high, N_CELLS + 1, N_ZOOMS)
        values = g(x).clamp_min(-1e300)  # (K + 1, N, P)
        fall = torch.zeros_like(values) if d is None else d(x)
        self.ends = x[[0, -1]]  # (2, N, P)
        self.step = (x[-1] - x[0]) / N_CELLS
        rise = values.diff(dim=0)  # s_k·Δ, (K, N, P)
        none = torch.full_like(rise[:1], torch.inf)
        from_left = values[:-1] + torch.cat([none, rise[:-1].clamp_min(0.0)])
        from_right = values[1:] + torch.cat([(-rise[1:]).clamp_min(0.0), none])
        cells = torch.minimum(from_left, from_right) + fall[:-1]
        tails = torch.stack([values[0], values[-1] + fall[-1]])
        self.slopes = rise[[0, -1]] / self.step  # (2, N, P): up on the left, down on the right
        self.bounds = torch.cat([cells, tails]).movedim(0, -1)  # (N, P, K + 2)
        log_widths = torch.cat([self.step.log().expand_as(cells), -self.slopes.abs().log()])
        log_mass = self.bounds + log_widths.movedim(0, -1)
        self.cumulative = log_mass.softmax(-1).cumsum(-1)

    def draw(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """x from the envelope for each of these rows, and the logarithm of its height: (E, P)."""
        cumulative = self.cumulative[rows]  # (E, P, K + 2)
        shape, like = cumulative.shape[:2], self.step
        u, r = torch.rand(2, *shape, generator=generator, dtype=like.dtype, device=like.device)
        u = (u * cumulative[..., -1])[..., None]
        piece = torch.searchsorted(cumulative, u).clamp_max(N_CELLS + 1)  # (E, P, 1)
        height = self.bounds[rows].gather(-1, piece)[..., 0]
        piece = piece[..., 0]
        low, high = self.ends[:, rows]
        in_cell = low + (piece + r) * self.step[rows]
        is_right = piece == N_CELLS + 1
        slope = torch.where(is_right, self.slopes[1, rows], self.slopes[0, rows])
        beyond = torch.log1p(-r) / slope  # negative on the left, positive on the right
        in_tail = torch.where(is_right, high, low) + beyond
        is_tail = piece >= N_CELLS
        return (
            torch.where(is_tail, in_tail, in_cell),
            torch.where(is_tail, height + slope * beyond, height),
        )

    def log_height(self, x: Tensor) -> Tensor:
        """Logarithm of the envelope at x (S, N, P)."""
        low, high = self.ends
        piece = ((x - low) / self.step).floor().long().clamp(0, N_CELLS - 1)
        height = self.bounds.expand(*x.shape, -1).gather(-1, piece[..., None])[..., 0]
        left = self.bounds[..., N_CELLS] + self.slopes[0] * (x - low)
        right = self.bounds[..., N_CELLS + 1] + self.slopes[1] * (x - high)
        return torch.where(x < low, left, torch.where(x > high, right, height))
