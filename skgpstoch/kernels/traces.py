"""Sums of products of kernels, and traces of their gradients, without an autograd graph.

A marginal likelihood needs the gradient of K only in traces with one symmetric matrix G,

    tr(G ∂K/∂θ_j),   k(x, x') = Σ_t c_t Π_f κ_tf(x, x') + v δ(x, x'),

where θ are logarithms. A term's variance c has the trace c Σᵢⱼ Gᵢⱼ Π_f κ_f, and the
hyper-parameters of a factor κ_f have that of ∂κ_f against c G ∘ Π_{g≠f} κ_g. All length-scales of a
radial kernel κ(r²) come from one pass over its distances: with a = x/ℓ and W = G ∘ dκ/dr²,

    Σᵢⱼ Wᵢⱼ ∂r²ᵢⱼ/∂log ℓ_d = −2 Σᵢⱼ Wᵢⱼ (a_id − b_jd)²,   by one product of W and [b, b², 1].

For few rows, all of this takes less time than building an autograd graph.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from .distances import FARTHEST, MATERN, STEEP, Profile, rbf, squared, wrong_scales

Back = Callable[[Tensor], Tensor]
"""Maps W (N, M), unchanged, to Σᵢⱼ Wᵢⱼ ∂κᵢⱼ/∂θ of a factor's parameters, (n,); call it once."""

Made = list[list[tuple[Tensor, Back]]]
"""For every factor of every term, κ (N, M) and its function :data:`Back`."""


class Points(NamedTuple):
    """Rows X (N, D), the same rows less a centre, and their largest distance from it, (D,)."""

    X: Tensor
    centred: Tensor
    reach: np.ndarray

    @classmethod
    def about(cls, X: Tensor, centre: Tensor) -> Points:
        """Return all rows with their differences from a centre."""
        centred = X - centre
        return cls(X, centred, centred.abs().amax(0).cpu().numpy())

    def some(self, rows: slice) -> Points:
        """Return consecutive rows."""
        return self._replace(X=self.X[rows], centred=self.centred[rows])


class Factor(NamedTuple):
    """A kernel in a product.

    Parameters
    ----------
    make : callable
        Maps (values of hyper-parameters, a, b) to κ(a, b) and its function :data:`Back`.
    at : slice
        Positions of its hyper-parameters among all hyper-parameters.
    diagonal : callable
        Maps (values, a) to κ(a, a), (N,), or 1 for a stationary kernel.
    """

    make: Callable[[np.ndarray, Points, Points], tuple[Tensor, Back]]
    at: slice
    diagonal: Callable[[np.ndarray, Points], Tensor | float]


class KernelTerm(NamedTuple):
    """A product of constants, given by their positions, with factors, or with white noise δ."""

    constants: tuple[int, ...] = ()
    factors: tuple[Factor, ...] = ()
    is_white: bool = False


class SumOfProducts:
    """A kernel that is a sum of products: covariances and traces at the current hyper-parameters.

    Parameters
    ----------
    terms : list of KernelTerm
        Terms of the sum.
    values : ndarray of shape (n,)
        Values of the hyper-parameters, including the fixed ones.
    is_free : ndarray of shape (n,)
        Which hyper-parameters are in θ.
    """

    def __init__(self, terms: list[KernelTerm], values: np.ndarray, is_free: np.ndarray) -> None:
        self.white = [term for term in terms if term.is_white]
        self.terms = [term for term in terms if not term.is_white]
        self.values = values
        self.is_free = is_free

    def set_theta(self, theta: np.ndarray) -> None:
        """Set the free log-hyper-parameters, (n_dims,)."""
        with np.errstate(over="ignore"):
            self.values[self.is_free] = np.exp(theta)

    def variance(self, term: KernelTerm) -> float:
        """Return the product of a term's constants."""
        return math.prod(float(self.values[i]) for i in term.constants)

    @property
    def white_variance(self) -> float:
        """Variance of the white noise."""
        return sum(map(self.variance, self.white))

    def made(self, a: Points, b: Points) -> Made:
        """Compute every factor between rows a and b."""
        return [
            [factor.make(self.values[factor.at], a, b) for factor in term.factors]
            for term in self.terms
        ]

    def fill_(self, K: Tensor, made: Made) -> Tensor:
        """Overwrite K (N, M) with the covariances, without white noise."""
        K.fill_(sum(self.variance(term) for term in self.terms if not term.factors))
        for term, factors in zip(self.terms, made, strict=True):
            if factors:
                K.add_(product(factors), alpha=self.variance(term))
        return K

    def diagonal(self, a: Points) -> Tensor:
        """Return k(a, a), (N,), white noise included."""
        total = a.X.new_full((len(a.X),), self.white_variance)
        for term in self.terms:
            factors = [factor.diagonal(self.values[factor.at], a) for factor in term.factors]
            total += math.prod(factors, start=self.variance(term))
        return total

    def traces(self, W: Tensor, made: Made) -> np.ndarray:
        """Return Σᵢⱼ Wᵢⱼ ∂Kᵢⱼ/∂θ for all hyper-parameters, also fixed ones, without white noise."""
        total = np.zeros(len(self.values))
        for term, factors in zip(self.terms, made, strict=True):
            c = self.variance(term)
            for k, (factor, (_, back)) in enumerate(zip(term.factors, factors, strict=True)):
                others = factors[:k] + factors[k + 1 :]
                total[factor.at] += c * back(W * product(others) if others else W).cpu().numpy()
            if any(self.is_free[i] for i in term.constants):
                whole = c * float(inner(W, product(factors)) if factors else W.sum())
                for i in term.constants:
                    total[i] += whole
        return total

    def white_traces(self, trace: float) -> np.ndarray:
        """Return tr(G ∂K/∂θ) of the white noise, given the trace of G."""
        total = np.zeros(len(self.values))
        for term in self.white:
            for i in term.constants:
                total[i] += self.variance(term) * trace
        return total


def inner(W: Tensor, K: Tensor) -> Tensor:
    """Return Σᵢⱼ Wᵢⱼ Kᵢⱼ, ()."""
    return torch.dot(W.reshape(-1), K.reshape(-1))


def product(factors: list[tuple[Tensor, Back]]) -> Tensor:
    """Return the product of factors."""
    return functools.reduce(operator.mul, (kappa for kappa, _ in factors))


# ---- which expressions ---------------------------------------------------------------------------


def sum_of_products(kernel: sk.Kernel) -> SumOfProducts | None:
    """Return an expression as a sum of products; None if it is not one, or has another kernel."""
    values: list[float] = []
    is_free: list[bool] = []
    terms = terms_of(kernel, values, is_free)
    return None if terms is None else SumOfProducts(terms, np.array(values), np.array(is_free))


def terms_of(
    kernel: sk.Kernel, values: list[float], is_free: list[bool]
) -> list[KernelTerm] | None:
    """Return the terms of an expression, or None; append its hyper-parameters, in θ's order."""
    if type(kernel) in (sk.Sum, sk.Product):
        first, second = (terms_of(part, values, is_free) for part in (kernel.k1, kernel.k2))
        if first is None or second is None:
            return None
        return first + second if type(kernel) is sk.Sum else multiplied(first, second)
    if type(kernel) not in HYPERPARAMETERS:
        return None
    start = len(values)
    for name in HYPERPARAMETERS[type(kernel)]:
        value = np.atleast_1d(np.asarray(getattr(kernel, name), dtype=np.float64))
        values += value.tolist()
        is_free += [not isinstance(getattr(kernel, f"{name}_bounds"), str)] * len(value)
    n_more = len(values) - start - len(HYPERPARAMETERS[type(kernel)])
    if n_more and type(kernel) not in (sk.RBF, sk.Matern):  # only these may be anisotropic
        return None
    if type(kernel) in (sk.ConstantKernel, sk.WhiteKernel):
        return [KernelTerm((start,), is_white=type(kernel) is sk.WhiteKernel)]
    factor = factor_of(kernel, slice(start, len(values)))
    return None if factor is None else [KernelTerm((), (factor,))]


def multiplied(first: list[KernelTerm], second: list[KernelTerm]) -> list[KernelTerm] | None:
    """Return the products of terms; None if factors would have to be computed several times."""
    if min(len(first), len(second)) > 1:
        return None
    products = [
        KernelTerm(a.constants + b.constants, a.factors + b.factors, a.is_white or b.is_white)
        for a in first
        for b in second
    ]
    # White noise times a factor depends on the factor's diagonal.
    return None if any(term.is_white and term.factors for term in products) else products


def factor_of(kernel: sk.Kernel, at: slice) -> Factor | None:
    """Return a kernel as a factor; None for a Matérn kernel of an unsupported order."""
    if type(kernel) is sk.DotProduct:
        return Factor(dot_product, at, dot_product_diagonal)
    if type(kernel) in MAKERS:
        return Factor(MAKERS[type(kernel)], at, one)
    profile = rbf if type(kernel) is sk.RBF else MATERN.get(kernel.nu)
    return None if profile is None else Factor(functools.partial(radial, profile), at, one)


# ---- factors -------------------------------------------------------------------------------------


def one(values: np.ndarray, a: Points) -> float:
    """Return κ(x, x) = 1 of a stationary kernel."""
    return 1.0


def radial(profile: Profile, values: np.ndarray, a: Points, b: Points) -> tuple[Tensor, Back]:
    """Compute κ(r²), with one length-scale or one for each column."""
    A, B = scaled(a, b, values)
    r2 = distances(A, B)
    kappa, slope = profile(r2)

    def back(W: Tensor) -> Tensor:
        if len(values) == 1:
            return -2.0 * (slope * r2).mul_(W).sum()[None]
        farthest = float(np.max(np.maximum(a.reach, b.reach) / values))
        is_lost = farthest**2 * max(float(s.abs()) for s in slope.aminmax()) > STEEP
        return (by_differences if is_lost else by_products)(A, B, slope * W)

    return kappa, back


def by_products(A: Tensor, B: Tensor, W: Tensor) -> Tensor:
    """Return −2 Σᵢⱼ Wᵢⱼ (a_id − b_jd)² of every column, (D,), by matrix products."""
    D = A.shape[1]
    WB = W @ torch.cat([B, B.square(), B.new_ones(len(B), 1)], 1)  # (N, 2D + 1)
    crossed, squares, ones = WB[:, :D], WB[:, D:-1], WB[:, -1:]
    return (A * ones).sub_(crossed, alpha=2.0).mul_(A).add_(squares).sum(0).mul_(-2.0)


def by_differences(A: Tensor, B: Tensor, W: Tensor) -> Tensor:
    """Return the same from differences, because products would lose digits (far rows, cusps)."""
    columns = zip(A.unbind(1), B.unbind(1), strict=True)
    sums = [(a[:, None] - b).square_().mul_(W).sum() for a, b in columns]
    return -2.0 * torch.stack(sums)


def rational_quadratic(values: np.ndarray, a: Points, b: Points) -> tuple[Tensor, Back]:
    """κ = (1 + u)^−α, u = r²/(2α)."""
    alpha, length_scale = values.tolist()
    u = distances(*scaled(a, b, length_scale)).div_(2.0 * alpha)
    log = torch.log1p(u)
    kappa = torch.exp(-alpha * log)

    def back(W: Tensor) -> Tensor:
        W = W * kappa
        by_scale = (u / (1.0 + u)).mul_(W).sum()
        return alpha * torch.stack([by_scale - (W * log).sum(), 2.0 * by_scale])

    return kappa, back


def exp_sine_squared(values: np.ndarray, a: Points, b: Points) -> tuple[Tensor, Back]:
    """κ = exp(−2 sin²φ/ℓ²), φ = π‖x − y‖/p."""
    length_scale, period = values.tolist()
    phi = distances(*scaled(a, b, period)).sqrt_().mul_(math.pi)
    steepness = 2.0 / length_scale**2
    sine2 = torch.sin(phi).square_()
    kappa = torch.exp(-steepness * sine2)

    def back(W: Tensor) -> Tensor:
        W = W * kappa
        by_period = torch.sin(2.0 * phi).mul_(phi).mul_(W).sum()
        return steepness * torch.stack([2.0 * (W * sine2).sum(), by_period])

    return kappa, back


def dot_product(values: np.ndarray, a: Points, b: Points) -> tuple[Tensor, Back]:
    """κ = σ₀² + xᵀy."""
    variance = float(values[0]) ** 2
    return (a.X @ b.X.mT).add_(variance), lambda W: 2.0 * variance * W.sum()[None]


def dot_product_diagonal(values: np.ndarray, a: Points) -> Tensor:
    """κ(x, x), (N,)."""
    return a.X.square().sum(1).add_(float(values[0]) ** 2)


def line(values: np.ndarray, a: Points, b: Points) -> tuple[Tensor, Back]:
    """κ = Σ_d x_d y_d/ℓ_d², with one length-scale or one for each column."""
    scales = torch.from_numpy(values).to(a.X)
    A, B = a.X / scales, b.X / scales

    def back(W: Tensor) -> Tensor:
        along = (A * (W @ B)).sum(0).mul_(-2.0)
        return along.sum()[None] if len(values) == 1 else along

    return A @ B.mT, back


def line_diagonal(values: np.ndarray, a: Points) -> Tensor:
    """κ(x, x), (N,)."""
    return (a.X / torch.from_numpy(values).to(a.X)).square().sum(1)


def scaled(a: Points, b: Points, length_scale: np.ndarray | float) -> tuple[Tensor, Tensor]:
    """Return rows in units of a length-scale."""
    unit: Tensor | float = length_scale if isinstance(length_scale, float) else 1.0
    if isinstance(length_scale, np.ndarray):
        if len(length_scale) not in (1, D := a.X.shape[1]):
            raise ValueError(wrong_scales(len(length_scale), f"X has {D} columns"))
        unit = torch.from_numpy(length_scale).to(a.X.device)
    A = (a.centred / unit).clamp_(-FARTHEST, FARTHEST)
    return A, A if a is b else (b.centred / unit).clamp_(-FARTHEST, FARTHEST)


def distances(A: Tensor, B: Tensor) -> Tensor:
    """Return r², (N, M)."""
    return squared(A, B).clamp_(max=FARTHEST)


MAKERS: dict[type[sk.Kernel], Callable] = {
    sk.RationalQuadratic: rational_quadratic,
    sk.ExpSineSquared: exp_sine_squared,
}

HYPERPARAMETERS: dict[type[sk.Kernel], tuple[str, ...]] = {
    sk.RBF: ("length_scale",),
    sk.Matern: ("length_scale",),
    sk.RationalQuadratic: ("alpha", "length_scale"),
    sk.ExpSineSquared: ("length_scale", "periodicity"),
    sk.DotProduct: ("sigma_0",),
    sk.ConstantKernel: ("constant_value",),
    sk.WhiteKernel: ("noise_level",),
}
"""Names of each kernel's hyper-parameters, in the order of θ."""
