"""Find inputs along which f varies faster than a search of the evidence has found.

A search starts where all length-scales are long. Far from there the evidence is flat, so if f
varies fast along an input, the search may end where that input does not matter, or where all is
noise. This module tries shorter length-scales one by one, and takes the best while there is one.

A trial is judged by the evidence of few rows under y ~ N(0, c(ρR + (1 − ρ)D)), with R the
correlations of f and D the relative noise: the likeliest of few ρ and c = yᵀM⁻¹y/N count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...kernels import Kernel
from ...kernels.distances import Profile
from ...kernels.isotropic import as_isotropic
from ..interrupts import was_interrupted

TRIED = (1.0, 0.25, 0.06, 0.015)  # length-scales that are tried, in deviations of the column
MOST_COLUMNS, MOST_OUTPUTS = 64, 8  # that are looked at
SPACING = 4.0  # in deviations, over the number of rows: what is closer is not tried
FAR_SHORTER = 0.5  # of the present one, at most
RHOS = (0.1, 0.6, 0.95)  # ρ: what f may have of the variance of y; the last one or more
LEAST_NATS = 5.0  # by which rows must be likelier: chance gives the best of 60 up to 4
SPREAD, CENTRES, NEAR, AT_ONCE = 120, 4, 20, 16  # rows that judge; trials at once
MOST_SEARCHES = 4  # from shorter length-scales, one after another
LEAST_SQUARE, LEAST_DEVIATION = 1e-12, 1e-30  # of a target, of a column


class Shorter(NamedTuple):
    """Length-scales, (d,) or (1,), with the variances of f and of noise, (P,) each."""

    scales: Tensor
    signal: Tensor
    noise: Tensor


def free_scales(kernel: Kernel) -> nn.Parameter | None:
    """Return log ℓ of c κ(r²/ℓ²), (d,) or (), if it is free; else None."""
    free = dict(kernel.named_parameters())
    names = [n for n, p in free.items() if n.endswith("log_length_scale") and p.requires_grad]
    found = free[names[0]] if names else None
    return None if as_isotropic(kernel) is None else found


def bounds_of(kernel: Kernel, log_scale: Tensor) -> Tensor:
    """Return the bounds of log ℓ, (d, 2) or (1, 2)."""
    names = [name for name, p in kernel.named_parameters() if p is log_scale]
    return kernel.get_buffer(f"{names[0]}_bounds").to(log_scale)


@torch.no_grad()
def set_scales(kernel: Kernel, new: Shorter) -> None:
    """Move such a kernel to new length-scales, and to the variance that goes with them."""
    for name, p in kernel.named_parameters():
        if name.endswith("log_length_scale"):
            p.copy_(new.scales.log().view_as(p))
        if name.endswith("log_constant_value"):
            p.copy_(new.signal.mean().log())
    kernel.clamp_()


class Trials(NamedTuple):
    """The evidence of trials, in nats, and their ρ, (S,) each, with c, (S, P)."""

    evidence: Tensor
    rho: Tensor
    c: Tensor


class Judge:
    """The few rows that judge: distances along each column, targets and noise.

    Parameters
    ----------
    least : Tensor of shape (d,) or (1,)
        Lower bounds of the length-scales, which may be one for all columns.
    X, R, precision
        As for :func:`shorter`.
    profile : callable
        Maps r² to correlations, and their slope.
    share : float
        What f has of the variance of y where the search has ended.
    """

    def __init__(
        self,
        least: Tensor,
        X: Tensor,
        R: Tensor,
        precision: Tensor,
        profile: Profile,
        share: float,
    ) -> None:
        some, n = judges(X), len(X)
        X, self.R, precision = (a[some].double() for a in (X, R, precision))
        self.D, self.profile = precision.mean() / precision, profile
        self.shares = (*RHOS[:-1], max(RHOS[-1], share))
        self.few_R = self.R[:, :: -(-self.R.shape[1] // MOST_OUTPUTS)]
        self.X, spread = X, X.std(0, correction=0)
        if len(least) == 1:
            self.columns, spread = torch.zeros_like(some[:1]), spread.square().sum()[None].sqrt()
            self.along = distances(X)[None]  # (1, N, N)
        else:
            self.columns = promising(X, self.few_R)
            Z, spread = X[:, self.columns].T, spread[self.columns]
            self.along = (Z[:, :, None] - Z[:, None, :]).square_()  # (m, N, N)
        short = [scale for scale in TRIED if scale >= min(TRIED[1], SPACING / n)]
        tried = torch.outer(spread, X.new_tensor(short))  # (m, ·)
        self.tried = tried.where(tried >= least[self.columns][:, None], 0.0)

    def trials(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Return which columns, and the shorter length-scales that are tried there, (S,) each."""
        present = scales[self.columns][:, None]
        j, k = ((self.tried > 0.0) & (self.tried < FAR_SHORTER * present)).nonzero(as_tuple=True)
        return j, self.tried[j, k]

    def judged(self, r2: Tensor, R: Tensor | None = None) -> Trials:
        """Judge trials with distances (S, N, N), by few outputs or by R (N, P)."""
        R = self.few_R if R is None else R
        K, (n, P), found = self.profile(r2)[0], R.shape, []
        for rho in self.shares:
            M = rho * K
            M.diagonal(dim1=-2, dim2=-1).add_((1.0 - rho) * self.D)
            L, info = torch.linalg.cholesky_ex(M)
            A = torch.linalg.solve_triangular(L, R.expand(len(L), n, P), upper=False)
            c = A.square().mean(1).clamp_min(LEAST_SQUARE)  # (S, P)
            log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            value = -0.5 * n * c.log().sum(1) - P * log_det
            value = value.where(info == 0, -math.inf).nan_to_num(-math.inf)
            found.append(Trials(value, c.new_full((len(c),), rho), c))
        evidence, rhos, cs = (torch.stack(a, 1) for a in zip(*found, strict=True))
        best = torch.arange(len(K), device=K.device), evidence.argmax(1)
        return Trials(evidence[best], rhos[best], cs[best])

    def moved(self, r2: Tensor, j: Tensor, gain: Tensor) -> Tensor:
        """Return distances (S, N, N) where 1/ℓ² of a column has grown, for S trials."""
        return torch.addcmul(r2, self.along[j], gain[:, None, None])


def distances(X: Tensor) -> Tensor:
    """Return squared distances, (N, N), accurate for rows that are close."""
    return torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist").square_()


def promising(X: Tensor, R: Tensor) -> Tensor:
    """Return the numbers of all columns, or of those along which neighbours are most alike."""
    if X.shape[1] <= MOST_COLUMNS:
        return torch.arange(X.shape[1], device=X.device)
    steps = R[X.argsort(0)].diff(dim=0)  # (N − 1, d, P)
    alike = steps.square().sum((0, 2)).topk(MOST_COLUMNS, largest=False)
    return alike.indices.sort().values


def judges(X: Tensor) -> Tensor:
    """Return the numbers of rows that judge: some that are spread, and the nearest to a few.

    Where f varies as fast as rows are dense, only rows near each other tell of it.
    """
    spread = torch.linspace(0, len(X) - 1, min(SPREAD, len(X)), device=X.device).long()
    G = X / X.std(0, correction=0).clamp_min(LEAST_DEVIATION)
    centres = G[spread[:: max(1, len(spread) // CENTRES)][:CENTRES]]
    near = torch.cdist(centres, G).topk(min(NEAR, len(X)), largest=False).indices
    return torch.cat([spread, near.flatten()]).unique()


@torch.no_grad()
def shorter(kernel: Kernel, X: Tensor, R: Tensor, precision: Tensor) -> Shorter | None:
    """Return length-scales of which some are shorter, if these make rows likelier; else None.

    It is None, too, if the kernel is not c κ(r²/ℓ²), or if ℓ is fixed.

    Parameters
    ----------
    kernel : Kernel
        The kernel where a search has ended, with the bounds of its length-scales.
    X, R, precision : Tensor of shape (N, d), (N, P) and (N,)
        Rows, targets less their mean, and precisions of their noise, in any unit.
    """
    usual, log_scale = as_isotropic(kernel), free_scales(kernel)
    if usual is None or log_scale is None:
        return None
    share = usual.variance / (usual.variance + 1.0 / precision.mean())
    least = bounds_of(kernel, log_scale)[:, 0].exp()
    judge = Judge(least, X, R, precision, usual.profile, float(share))
    return shortened(judge, usual.length_scale.reshape(-1))


def shortened(judge: Judge, scales: Tensor) -> Shorter | None:
    """Return length-scales of which some are shorter than these, (d,) or (1,), or None."""
    scales, is_found = scales.double().clone(), False
    r2 = distances(judge.X / scales)
    reached = float(judge.judged(r2[None]).evidence)
    while True:
        j, tried = judge.trials(scales)
        if not len(j):
            break
        gain = tried**-2 - scales[judge.columns[j]] ** -2
        parts = zip(j.split(AT_ONCE), gain.split(AT_ONCE), strict=True)
        value = torch.cat([judge.judged(judge.moved(r2, *part)).evidence for part in parts])
        b = int(value.argmax())
        least = max(LEAST_NATS, 1.0 + math.log(len(j)))
        if was_interrupted() or not float(value[b]) > reached + least:
            break
        reached, r2, is_found = float(value[b]), judge.moved(r2, j[[b]], gain[[b]])[0], True
        scales[judge.columns[j[b]]] = tried[b]
    if not is_found:
        return None
    _, rho, c = judge.judged(r2[None], judge.R)
    return Shorter(scales, rho[0] * c[0], (1.0 - rho[0]) * c[0])
