"""Gaussian marginals and the operations on them that every method shares."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.devices import constants, is_host

LOG_2PI = math.log(2.0 * math.pi)
SLACK = 8  # steps that an inverse may take more than bisection
ASKED = 6  # steps after which an accelerator is asked whether they are enough


CERTAIN_VARIANCE = 1e-30
"""Least variance of f: without a residual, f is certain far from the basis functions."""


class Marginals(NamedTuple):
    """q(f), or q(y), at each row: independent Gaussians, or a mixture of them.

    The leading axis S counts mixture components (1 unless the model is deep).
    """

    mean: Tensor  # (S, N, P)
    var: Tensor  # (S, N, P)

    def mixture_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the equally weighted mixture, each (N, P)."""
        S = len(self.mean)
        if S == 1:
            return self.mean[0], self.var[0]
        mean = (self.mean / S).sum(0)  # of which a sum may have no room
        var = (self.var / S).sum(0) + ((self.mean - mean).square() / S).sum(0)
        return mean, var

    def cdf(self, x: Tensor) -> Tensor:
        """P(f ≤ x) of the mixture, (N, P)."""
        mean, var = self.resolved()
        return ndtr((x - mean) / var.sqrt()).mean(0)

    def quantile(self, probability: float) -> Tensor:
        """Quantile of the mixture, (N, P)."""
        z = float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64, device="cpu")))
        ends = self.mean + self.var.sqrt() * z  # (S, N, P), those of the components
        if len(ends) == 1:
            return ends[0]
        return inverse(self.cdf, ends.amin(0), ends.amax(0), probability)

    def resolved(self, n_steps: float = 1.0) -> Marginals:
        """The same, with deviations of at least some roundings of the mean, to divide by."""
        rounding = n_steps * torch.finfo(self.mean.dtype).eps * self.mean.detach()
        least = rounding.square().clamp_min(CERTAIN_VARIANCE)
        return Marginals(self.mean, torch.maximum(self.var, least))

    def distinct(self) -> Marginals:
        """The same, with variances by which averages over nodes can be differentiated.

        The derivative of E[h(f)] by the variance is a difference quotient of h′ over a deviation.
        Errors of rounding and curvature are least if the deviation is the root of the rounding of
        f. Smaller variances, 0 among them, are raised to that, which gives ½h″(μ). Without a
        gradient by the variance, variances are those of :meth:`resolved`.
        """
        if not (torch.is_grad_enabled() and self.var.requires_grad):
            return self.resolved()
        rounding = torch.finfo(self.mean.dtype).eps
        least = rounding * self.mean.detach().abs().clamp_min(1.0)
        var = torch.maximum(self.var.detach(), least) + (self.var - self.var.detach())
        return Marginals(self.mean, var)

    def double(self) -> Marginals:
        """The same marginals in float64."""
        return Marginals(self.mean.double(), self.var.double())


def inverse(
    cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, probability: float | Tensor
) -> Tensor:
    """Find where a distribution function has given values, elementwise, between two numbers.

    The function is right to 1e-12 of the probability p or of 1 − p, whichever is less, as far as
    rounding allows. Where it is level, any point may be returned.

    Oliveira & Takahashi, "An enhancement of the bisection method average performance preserving
    minmax optimality", 2020: hardly ever more steps than bisection, and mostly a fifth.
    """
    f_low, f_high, span = cdf(low) - probability, cdf(high) - probability, high - low
    x, eps = high, torch.finfo(low.dtype).eps
    enough = _enough(probability, eps)
    is_open = span > 0.0
    every = 1 if is_host(span.device) else ASKED  # more steps than it takes change nothing
    for j in range(64 + SLACK):
        if j % every == 0 and not is_open.any():
            break
        width, middle, rise = high - low, 0.5 * (low + high), f_high - f_low
        secant = torch.where(rise > 0.0, low - f_low * width / rise, middle)
        shift = torch.minimum(0.2 * width.square() / span, (middle - secant).abs())
        truncated = secant + (middle - secant).sign() * shift
        most = span * 2.0 ** (SLACK - j) - 0.5 * width  # from the middle
        projected = torch.minimum(torch.maximum(truncated, middle - most), middle + most)
        is_inside = (projected > low) & (projected < high)
        x = torch.where(is_open, torch.where(is_inside, projected, middle), x)
        f = cdf(x) - probability
        low, f_low = torch.where(f < 0.0, x, low), torch.where(f < 0.0, f, f_low)
        high, f_high = torch.where(f < 0.0, high, x), torch.where(f < 0.0, f_high, f)
        is_open = is_open & (f.abs() > enough) & (high - low > eps * torch.maximum(high, -low))
    return x


def _enough(probability: float | Tensor, eps: float) -> float | Tensor:
    """How far from a probability a distribution function may be."""
    if isinstance(probability, Tensor):
        tail = torch.minimum(probability, 1.0 - probability)
        return torch.maximum(1e-12 * tail, 32.0 * eps * probability)
    return max(1e-12 * min(probability, 1.0 - probability), 32.0 * eps * probability)


def log_density(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """log N(y | mean, var), elementwise, in nats."""
    return -0.5 * (LOG_2PI + var.log() + (y - mean).square() / var)


def log_mills(t: Tensor) -> Tensor:
    """log(Φ(−t)·exp(t²/2)) for t ≥ 0, with derivatives as accurate as the value.

    The derivative of erfcx is a difference that cancels in the tail: hence the series there.
    """
    far = 100.0 if t.dtype == torch.float64 else 10.0
    near = torch.special.erfcx(t.clamp(0.0, far) / math.sqrt(2.0)).log() - math.log(2.0)
    r = t.clamp_min(far).square().reciprocal()
    series = 0.5 * (r.log() - LOG_2PI) + torch.log1p(-r * (1 - r * (3 - r * (15 - 105 * r))))
    return torch.where(t > far, series, near)


def ndtr(z: Tensor) -> Tensor:
    """Φ(z); torch's own is 0 below about −8.3."""
    return 0.5 * torch.special.erfc(-z / math.sqrt(2.0))


def log_ndtr(z: Tensor) -> Tensor:
    """log Φ(z); torch's own has wrong derivatives below about −10⁸."""
    left = log_mills(-z.clamp_max(0.0)) - 0.5 * z.clamp_max(0.0).square()
    right = torch.log1p(-0.5 * torch.special.erfc(z.clamp_min(0.0) / math.sqrt(2.0)))
    return torch.where(z < 0.0, left, right)


def log_half_moment(mean: Tensor, var: Tensor, k: Tensor | float = 1.0) -> Tensor:
    """log E[exp(−k·f)·1(f > 0)], f ~ N(mean, var), for k ≥ 0: Φ(z−k√v)·exp(k²v/2−k·mean)."""
    std = var.sqrt()
    z = mean / std
    t = k * std - z
    # Two ways of writing it, neither of which subtracts great numbers on its own side.
    tail = log_mills(t.clamp_min(0.0)) - 0.5 * z.square()
    body = -k * std * (z - 0.5 * k * std) + log_ndtr(-t.clamp_max(0.0))
    return torch.where(t > 0.0, tail, body)


def log_root(b: Tensor) -> Tensor:
    """x with x + exp(x) = b, the logarithm of Lambert's W(exp(b))."""
    x = torch.where(b > 1.0, b.clamp_min(1.0).log(), b)
    for _ in range(8):  # from above: Newton's steps converge monotonically
        x = x - (x + x.exp() - b) / (1.0 + x.exp())
    return x


def _hermite(n_nodes: int) -> tuple[np.ndarray, ...]:
    """Nodes and logarithms of weights, each (n_nodes, 1, 1, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return tuple(a.reshape(-1, 1, 1, 1) for a in (nodes, np.log(weights) - 0.5 * LOG_2PI))


def quadrature_nodes(q: Marginals, n_nodes: int = 20) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes of q and the logarithms of their weights.

    Returns
    -------
    f : Tensor of shape (n_nodes, S, N, P)
        μ + √v·z for the nodes z of the standard normal.
    log_weights : Tensor of shape (n_nodes, 1, 1, 1)
        E_q[h(f)] ≈ Σ exp(log_weights)·h(f).
    """
    nodes, log_weights = constants(_hermite, n_nodes, like=q.mean)
    mean, var = q.distinct()
    return mean + var.sqrt() * nodes, log_weights


@torch.no_grad()
def trapezoid_nodes(
    log_h: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, n_nodes: int, n_zooms: int = 2
) -> tuple[Tensor, Tensor]:
    """Nodes of ∫ exp(log_h(x)) dx, elementwise, where the integrand is not negligible.

    Trapezoids converge exponentially for a smooth integrand that vanishes at both ends. Some coarse
    grids find where log_h is within 30 nats of its maximum. Nodes carry no gradient: none is
    needed, since the sum does not depend on where they are.

    Returns
    -------
    x : Tensor of shape (n_nodes, ...)
        Equidistant between the ends, for each element of ``low`` and ``high``.
    log_step : Tensor of shape (...)
        ∫ exp(log_h(x)) dx ≈ Σ exp(log_step + log_h(x)).
    """

    def grid(n: int) -> tuple[Tensor, Tensor]:
        unit = torch.linspace(0.0, 1.0, n, dtype=low.dtype, device=low.device)
        return low + (high - low) * unit.view(-1, *[1] * low.ndim), (high - low) / (n - 1)

    for _ in range(n_zooms):
        x, step = grid(24)
        value = log_h(x)
        counts = value >= value.amax(0) - 30.0
        low = torch.maximum(low, torch.where(counts, x, torch.inf).amin(0) - step)
        high = torch.minimum(high, torch.where(counts, x, -torch.inf).amax(0) + step)
    x, step = grid(n_nodes)
    return x, step.log()


@functools.cache
def _sobol_normals(dim: int, n_points: int) -> np.ndarray:
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0)
    u = engine.draw(n_points // 2, dtype=torch.float64)
    # Torch makes the first point in the default type of the process; here it is always float32.
    u[0] = (engine.shift.double() / 2**engine.MAXBIT).float()
    z = torch.special.ndtri(u.clamp(1e-9, 1.0 - 1e-9))
    if dim < n_points // 4:  # else the sample has no full covariance to take out
        L = torch.linalg.cholesky(z.mT @ z / len(z))
        z = torch.linalg.solve_triangular(L, z.mT, upper=False).mT
    z = z / z.square().mean(0).sqrt()
    return torch.cat([z, -z]).T.contiguous().numpy()  # (dim, n_points)


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draws of N(0, 1), of the type and on the device of a tensor."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def normal_nodes(dim: int, n_points: int) -> Tensor:
    """Points of the standard normal in this many dimensions, (dim, n_points).

    A scrambled Sobol sequence with a fixed seed, antithetic and whitened: means, variances and,
    unless there are very many, correlations of the coordinates are exact. Their number is even.
    """
    return torch.as_tensor(_sobol_normals(dim, n_points), device="cpu")


def quasi_random_nodes(q: Marginals, n_points: int) -> Tensor:
    """Points μ + √v·z, z jointly normal over the P latents of a row: (S, N, P, n_points).

    Those of :func:`normal_nodes`, the same for every row. Points come last, so that sums over them
    round alike whatever the number of rows.
    """
    (z,) = constants(_sobol_normals, q.mean.shape[-1], n_points, like=q.mean)
    mean, var = q.distinct()
    return mean[..., None] + var.sqrt()[..., None] * z
