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

SHORT = (1.0, 0.3)  # length-scales that are tried, in deviations of the column
SHORTER = 0.5  # of the present one, at most
SHARES = (0.1, 0.6, 0.95)  # ρ: what f may have of the variance of y; the last one or more
LEAST_GAIN = 5.0  # nats, by which rows must be likelier: chance gives the best of 60 up to 4
FEW_ROWS, AT_A_TIME = 200, 16  # that judge; trials at once
MOST_SEARCHES = 4  # from shorter length-scales, one after another
LEAST_VARIANCE = 1e-12  # of a target that is constant


class Shorter(NamedTuple):
    """Length-scales (d,), and the variances of f and of noise that go with them, (P,) each."""

    scales: Tensor
    signal: Tensor
    noise: Tensor


def free_scales(kernel: Kernel) -> nn.Parameter | None:
    """Return log ℓ of c κ(r²/ℓ²), (d,), if each column has one and they are free; else None."""
    free = dict(kernel.named_parameters())
    found = next((p for name, p in free.items() if name.endswith("log_length_scale")), None)
    is_usual = as_isotropic(kernel) is not None
    return found if is_usual and found is not None and found.ndim else None


@torch.no_grad()
def set_scales(kernel: Kernel, new: Shorter) -> None:
    """Move such a kernel to new length-scales, and to the variance that goes with them."""
    for name, p in kernel.named_parameters():
        if name.endswith("log_length_scale"):
            p.copy_(new.scales.log())
        if name.endswith("log_constant_value"):
            p.copy_(new.signal.mean().log())
    kernel.clamp_()


class Judged(NamedTuple):
    """The evidence of trials, in nats, and their ρ, (S,) each, with c, (S, P)."""

    evidence: Tensor
    rho: Tensor
    c: Tensor


class Judge:
    """The few rows that judge: distances along each column, targets and noise.

    Arguments are those of :func:`shorter`.
    """

    def __init__(
        self, X: Tensor, R: Tensor, precision: Tensor, profile: Profile, share: float
    ) -> None:
        some = torch.linspace(0, len(X) - 1, min(FEW_ROWS, len(X)), device=X.device).long()
        X, self.R, precision = (a[some].double() for a in (X, R, precision))
        self.D, self.profile = precision.mean() / precision, profile
        self.shares = (*SHARES[:-1], max(SHARES[-1], share))
        self.along = (X.T[:, :, None] - X.T[:, None, :]).square_()  # (d, N, N)
        self.tried = torch.outer(X.std(0, correction=0), X.new_tensor(SHORT))  # (d, 2)

    def distances(self, scales: Tensor) -> Tensor:
        """Return r², (N, N)."""
        return torch.einsum("dnm,d->nm", self.along, scales**-2)

    def trials(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Return columns and the shorter length-scales that are tried there, (S,) each."""
        is_new = (self.tried > 0.0) & (self.tried < SHORTER * scales[:, None])
        j, k = is_new.nonzero(as_tuple=True)
        return j, self.tried[j, k]

    def judged(self, r2: Tensor) -> Judged:
        """Judge trials with distances (S, N, N)."""
        K, (n, P), found = self.profile(r2)[0], self.R.shape, []
        for rho in self.shares:
            M = rho * K
            M.diagonal(dim1=-2, dim2=-1).add_((1.0 - rho) * self.D)
            L, info = torch.linalg.cholesky_ex(M)
            A = torch.linalg.solve_triangular(L, self.R.expand(len(L), n, P), upper=False)
            c = A.square().mean(1).clamp_min(LEAST_VARIANCE)  # (S, P)
            log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            value = -0.5 * n * c.log().sum(1) - P * log_det
            found.append(Judged(value.where(info == 0, -math.inf), c.new_full((len(c),), rho), c))
        evidence, rhos, cs = (torch.stack(a, 1) for a in zip(*found, strict=True))
        best = torch.arange(len(K), device=K.device), evidence.argmax(1)
        return Judged(evidence[best], rhos[best], cs[best])

    def moved(self, r2: Tensor, j: Tensor, gain: Tensor) -> Tensor:
        """Return distances (S, N, N) where 1/ℓ² of a column has grown, for S trials."""
        return torch.addcmul(r2, self.along[j], gain[:, None, None])


@torch.no_grad()
def shorter(
    scales: Tensor, X: Tensor, R: Tensor, precision: Tensor, profile: Profile, share: float
) -> Shorter | None:
    """Return length-scales of which some are shorter, if these make rows likelier; else None.

    Parameters
    ----------
    scales : Tensor of shape (d,)
        Where a search has ended.
    X, R, precision : Tensor of shape (N, d), (N, P) and (N,)
        Rows, targets less their mean, and precisions of their noise, in any unit.
    profile : callable
        Maps r² to correlations, and their slope.
    share : float
        What f has of the variance of y where the search has ended.
    """
    judge, scales, found = Judge(X, R, precision, profile, share), scales.double().clone(), None
    r2 = judge.distances(scales)
    reached = float(judge.judged(r2[None]).evidence)
    while True:
        j, tried = judge.trials(scales)
        gain = tried**-2 - scales[j] ** -2
        parts = zip(j.split(AT_A_TIME), gain.split(AT_A_TIME), strict=True)
        judged = [judge.judged(judge.moved(r2, *part)) for part in parts]
        if not judged:
            break
        value, rho, c = (torch.cat(a) for a in zip(*judged, strict=True))
        b = int(value.argmax())
        if float(value[b]) < reached + LEAST_GAIN:
            break
        reached, r2 = float(value[b]), judge.moved(r2, j[[b]], gain[[b]])[0]
        scales[j[b]] = tried[b]
        found = Shorter(scales.clone(), rho[b] * c[b], (1.0 - rho[b]) * c[b])
    return found
