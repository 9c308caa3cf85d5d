"""Condition each of many rows on a few others: one small Cholesky factor a row.

With the covariance of f at row i and at its neighbours N, the noise variances D of y, and

    C = K_NN + D_N,   β = C⁻¹k_Ni,   α = C⁻¹y_N,

the conditional of y_i given y_N is N(μ, v) with

    μ = k_iN α,   v = k_ii + D_i − k_iN β.

With e = (1, −β), a = (0, α), r = y_i − μ = eᵀy, and C of the row and its neighbours together, small
changes are

    dv = eᵀ dC e,   dr = −eᵀ dC a + eᵀ dy,

so the gradient of log N(y_i | μ, v) needs no further factor. What each neighbour j's y is off by,
given all other neighbours', is α_j/π_j with variance 1/π_j, π = diag C⁻¹ (Rasmussen & Williams, eq.
5.12). Row i has no part in that.

Shapes: b rows, each the first of a set of q = m + 1; P outputs, each with noise of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .gaussian import LOG_2PI
from .linalg import cholesky, tri_solve


class Conditional(NamedTuple):
    """The conditional of f_i given y_N, from K (b, q, q), D and y (P, b, q), in float64."""

    beta: Tensor  # β, (P, b, m)
    alpha: Tensor  # α, (P, b, m)
    mean: Tensor  # μ, (P, b)
    var: Tensor  # of f_i, (P, b); rounding may make it negative
    by_noise: Tensor  # βᵀD_N β, the part of it that is due to the neighbours' noise
    precision: Tensor  # π of the first neighbours, (P, b, n_precisions)

    @classmethod
    def of(cls, K: Tensor, D: Tensor, y: Tensor, n_precisions: int = 0) -> Conditional:
        """Factorise the neighbours' covariances.

        The first neighbours are eliminated last: the end of L, which is then small, has their π.
        Gradients are those by the row alone, of which its neighbours' C and α know nothing.
        """
        k = K[:, 1:, 0]  # (b, m)
        C = K[:, 1:, 1:].detach().flip(-2, -1).expand(*D.shape[:2], -1, -1).clone()
        C.diagonal(dim1=-2, dim2=-1).add_(D[..., 1:].flip(-1))
        L = factors(C)
        both = torch.stack([k.expand_as(y[..., 1:]), y[..., 1:]], -1)  # (P, b, m, 2)
        solved = tri_solve(L, tri_solve(L, both.flip(-2)), transpose=True)
        beta, alpha = solved.flip(-2).unbind(-1)
        alpha = alpha.detach()
        mean, var = (k * alpha).sum(-1), K[:, 0, 0] - (k * beta).sum(-1)
        by_noise = (beta.square() * D[..., 1:]).sum(-1)
        return cls(beta, alpha, mean, var, by_noise, last_precisions(L, n_precisions).flip(-1))

    @property
    def e(self) -> Tensor:
        """(1, −β), (P, b, q)."""
        return torch.cat([torch.ones_like(self.mean)[..., None], -self.beta], -1)

    def slopes(self, by_mean: Tensor, by_var: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives by K (b, q, q) and D (P, b, q), given those by μ and v (P, b).

        That by K may lack symmetry, which K has.
        """
        e = self.e
        a = torch.cat([torch.zeros_like(by_var)[..., None], self.alpha], -1)
        # by_var·eeᵀ + by_mean·½(eaᵀ + aeᵀ) = ½(ehᵀ + heᵀ)
        h = by_var[..., None] * e + by_mean[..., None] * a
        return torch.einsum("pbi,pbj->bij", e, h), e * h


class LogDensity(NamedTuple):
    """log N(y_i | μ, v) of each row and output, and the derivatives of their sum."""

    value: Tensor  # (P, b)
    by_K: Tensor  # (b, q, q); may lack symmetry, which K has
    by_D: Tensor  # (P, b, q)
    by_y: Tensor  # (P, b, q)


@torch.no_grad()
def log_density(K: Tensor, D: Tensor, y: Tensor) -> LogDensity:
    """Return the log density of each set's first row given the others; shapes as above."""
    c = Conditional.of(K, D, y)
    v = (c.var + D[..., 0]).clamp_min(torch.finfo(K.dtype).tiny)
    r = y[..., 0] - c.mean
    value = -0.5 * (LOG_2PI + v.log() + r.square() / v)
    by_v, by_mean = 0.5 * (r.square() / v - 1.0) / v, r / v
    by_K, by_D = c.slopes(by_mean, by_v)
    return LogDensity(value, by_K, by_D, -by_mean[..., None] * c.e)


def last_precisions(L: Tensor, k: int) -> Tensor:
    """Return the last k diagonal elements of (LLᵀ)⁻¹, (..., k)."""
    end = L[..., L.shape[-1] - k :, L.shape[-1] - k :]
    return (
        tri_solve(end, torch.eye(k, dtype=L.dtype, device=L.device).expand_as(end)).square().sum(-2)
    )


def factors(C: Tensor) -> Tensor:
    """Return a Cholesky factor of each matrix, (..., m, m); jitter goes where it is needed alone.

    A row's prediction then does not depend on the other rows that are asked for with it.
    """
    L, info = torch.linalg.cholesky_ex(C)
    failed = info > 0
    if bool(failed.any()):
        each = [cholesky(one, "covariance matrix of a row's neighbours") for one in C[failed]]
        L[failed] = torch.stack(each)
    elif not bool(torch.isfinite(L.diagonal(dim1=-2, dim2=-1)).all()):
        cholesky(C, "covariance matrix of a row's neighbours")  # which says why
    return L
