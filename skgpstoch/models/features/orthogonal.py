"""Whitened features of ordinary and orthogonal inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...maths.linalg import NotPositiveDefiniteError, add_diagonal
from .base import Basis
from .inducing import InducingFeatures, whiten

NEARLY = 1e-8  # jitter of K_uu, over its mean diagonal, that keeps P exact to four digits


class _WithOrthogonalPoints(InducingFeatures):
    """Base class of features with orthogonal inducing points O.

    Parameters
    ----------
    *args : object
        Those of :class:`InducingFeatures`.
    orthogonal_points : Tensor of shape (M₂, d)
        O.
    """

    def __init__(self, *args: Any, orthogonal_points: Tensor) -> None:
        super().__init__(*args)
        self.others = nn.Parameter(orthogonal_points / self.unit)

    @property
    def orthogonal_points(self) -> Tensor:
        """O, (M₂, d)."""
        return self.others * self.unit

    def coordinates(self) -> list[nn.Parameter]:
        return [self.points, self.others]


class OrthogonalFeatures(_WithOrthogonalPoints):
    """The whitened features [P_u P_v] of inducing points Z and orthogonal inducing points O.

    Points O of several sets O₁, O₂, … are orthogonal to one another as well: the residual process
    of Z and O₁ has the points O₂, and so on (section 4 of the paper), P = [P_u P₁ P₂ …] with

        P_b(X) = c_b(X, O_b) L_b⁻ᵀ,   c_b(X, O) = k(X, O) − Σ_{a<b} P_a(X) P_a(O)ᵀ.

    Parameters
    ----------
    *args, orthogonal_points : object
        Those of :class:`InducingFeatures`, and O.
    sizes : sequence of int or None, default=None
        Points of every set, which follow one another in O; None: there is one set.
    """

    def __init__(self, *args: Any, sizes: Sequence[int] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = (len(self.points), *((len(self.others),) if sizes is None else sizes))
        self.n_features = sum(self.blocks)

    def check_parts(self) -> None:
        """Raise a ValueError if blocks do not make up the points, as in files from strangers."""
        n_points = len(self.points) + len(self.others)
        if (sum(self.blocks), self.n_features) != (n_points,) * 2:
            raise ValueError(f"blocks of {sum(self.blocks)} features have {n_points} points")

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        K, inverse, *state = self.condition(*self.embedded_points())
        return (K, inverse), *((C, R) for *_, C, R in sets_of(state))

    def condition(self, *points: Tensor) -> list[Tensor]:
        """K_uu and L_u⁻¹, and a :class:`PointSet` of each set O_b; all in float64.

        If K_uu is so nearly singular that rounding leaves no residual process, it gets a jitter.
        """
        M = len(points[0])
        whole = self.covariances.among(torch.cat([p.double() for p in points]))
        K = self.jittered(whole[:M, :M])
        try:
            return self.conditioned(whole, K)
        except NotPositiveDefiniteError:
            return self.conditioned(whole, add_diagonal(K, NEARLY * K.diagonal().mean()))

    def conditioned(self, whole: Tensor, K: Tensor) -> list[Tensor]:
        """The same for K_uu, and the covariance of all points."""
        M, inverse = len(K), self.inverse_factor(K)
        prior_variance = whole[M:, M:].diagonal().mean().detach()
        sets: list[PointSet] = []
        for size in self.blocks[1:]:
            K_o, K_oo = whole[M : M + size, :M], self.jittered(whole[M : M + size, M : M + size])
            with torch.no_grad():
                P = block_features(K_o, inverse, sets)
                C = K_oo - P @ P.mT
                sets.append(PointSet(K_oo, K_o, P, C, self.inverse_factor(C, prior_variance)))
            M += size
        return [K, inverse, *(part for found in sets for part in found)]

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        Z, Z_v, K, inverse, *others = state
        sets, lower = sets_of(others), []
        B = self.covariances.cross(G, torch.cat([Z, Z_v])).split(self.blocks, 1)
        if torch.is_grad_enabled():  # points of sets as more rows: the gradient in their type
            lower = [found.K_o.to(G).split(self.blocks[:b], 1) for b, found in enumerate(sets, 1)]
        phi = whiten(torch.cat([*(part[0] for part in lower), B[0]]), K, inverse)
        factors = [(K, inverse)]
        for b, (K_oo, _, P_o, C, R) in enumerate(sets, 1):
            if lower:  # the first rows have served their purpose
                P_o, phi = phi.split([len(C), len(phi) - len(C)])
                C = _Residual.apply(K_oo, P_o, C)
            cross = torch.cat([*(part[b] for part in lower[b:]), B[b]])
            c = cross - phi @ P_o.to(phi).mT  # (N, M_b)
            phi = torch.cat([phi, whiten(c, C, R)], 1)
            factors.append((C, R))
        return Basis(phi, self.covariances.prior(G), factors=tuple(factors))

    def coordinates_of(self, values: Tensor, *state: Tensor) -> Tensor:
        _, _, _, inverse, *others = state
        first, *values_of_sets = values.split(self.blocks, -2)
        u = inverse @ first
        for at, found in zip(values_of_sets, sets_of(others), strict=True):
            u = torch.cat([u, found.inverse @ (at - found.P @ u)], -2)
        return u


class PointSet(NamedTuple):
    """What rows are conditioned on of one set O_b of orthogonal points."""

    K_oo: Tensor  # k(O_b, O_b)
    K_o: Tensor  # with the points of sets before, (M_b, M + M₁ + …)
    P: Tensor  # features of these at O_b, without gradient
    C: Tensor  # c_b(O_b, O_b) = L_b L_bᵀ, without gradient
    inverse: Tensor  # L_b⁻¹


def sets_of(state: Sequence[Any]) -> list[PointSet]:
    """Return the sets of points in a flat state, of tensors or arrays."""
    n = len(PointSet._fields)
    return [PointSet(*state[i : i + n]) for i in range(0, len(state), n)]


def block_features(B: Tensor, inverse: Tensor, sets: Sequence[PointSet]) -> Tensor:
    """P (N, D) of rows with the covariances B (N, D) with the points of Z and of sets."""
    sizes = [len(inverse), *(len(found.inverse) for found in sets)]
    first, *others = B.split(sizes, 1)
    P = first @ inverse.mT
    for part, found in zip(others, sets, strict=True):
        P = torch.cat([P, (part - P @ found.P.mT) @ found.inverse.mT], 1)
    return P


class _Residual(torch.autograd.Function):
    """C_vv = K_oo − P_o P_oᵀ, the value given, whose gradient is symmetric."""

    @staticmethod
    def forward(ctx: Any, K_oo: Tensor, P_o: Tensor, C: Tensor) -> Tensor:
        ctx.save_for_backward(P_o)
        return C.view_as(C)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (P_o,) = ctx.saved_tensors
        return grads[0], -2.0 * grads[0].to(P_o.dtype) @ P_o, None


class DecoupledFeatures(_WithOrthogonalPoints):
    """Features of ODVGP with the mean in the coordinates a = C_vv⁻¹ m_v, for M₂ much larger than M.

    The part c(x, O)a of the mean needs no factor of C_vv. Its penalty ½ aᵀC_vv a is estimated from
    some of the columns of K_oo at each step.

    Parameters
    ----------
    *args, orthogonal_points : object
        Those of :class:`OrthogonalFeatures`.
    n_outputs : int
        P.
    n_columns : int
        Number of columns of K_oo that a step uses.
    """

    def __init__(self, *args: Any, n_outputs: int, n_columns: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coefficients = nn.Parameter(self.others.new_zeros(len(self.others), n_outputs))
        self.n_columns = min(n_columns, len(self.others))
        self.scale = 1.0  # of k now, in units of that in training

    def condition(self, *points: Tensor) -> list[Tensor]:
        """K_uu, L_u⁻¹ in float64, and aᵀP_u(O), (P, M)."""
        Z, Z_v = points
        K, inverse = super().condition(Z)
        weighted = self.coefficients.mT @ self.covariances.among(Z_v, Z)  # aᵀK_ou, (P, M)
        return [K, inverse, whiten(weighted, K, inverse)]

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        Z, Z_v, K, inverse, weighted = state
        P_u = whiten(self.covariances.cross(G, Z), K, inverse)
        # c(x, O)a, (N, P)
        shift = self.covariances.cross(G, Z_v) @ self.coefficients - P_u @ weighted.mT
        return Basis(P_u, self.covariances.prior(G), shift, ((K, inverse),))

    def coordinates_of(self, values: Tensor, *state: Tensor) -> Tensor:
        Z, _, _, inverse, _ = state
        return inverse @ values[..., : len(Z), :]

    def scale_variance(self, factor: float) -> None:
        super().scale_variance(factor)
        self.coefficients.data /= factor  # C_vv a stays as it is
        self.scale *= factor

    def reopen(self, keep_variance: bool = False) -> None:
        super().reopen(keep_variance)
        if not keep_variance:
            self.coefficients.data *= self.scale
            self.scale = 1.0

    def penalty(self, generator: torch.Generator | None = None) -> Tensor:
        """½ aᵀC_vv a = ½ (aᵀK_oo a − ‖P_u(O)ᵀa‖²); unbiased from a random set of columns."""
        n, a = len(self.others), self.coefficients
        Z, Z_v = self.embedded_points()
        weighted = self.condition(Z, Z_v)[-1]
        if generator is None:
            columns = torch.arange(n, device=a.device)
        else:
            order = torch.randperm(n, generator=generator, device=generator.device)
            columns = order[: self.n_columns]
        parts = columns.split(self.n_columns)
        square = sum(
            (a[part] * (self.covariances.among(Z_v[part], Z_v) @ a)).sum() for part in parts
        )
        return 0.5 * (n / len(columns) * square - weighted.square().sum())
