"""Orthogonal inducing points beside the ordinary ones: whitened features of both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import Basis
from .inducing import InducingFeatures, whiten


class _WithOrthogonalPoints(InducingFeatures):
    """Points of a second kind, O.

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
    """The whitened features [P_u P_v] of inducing points Z and orthogonal inducing points O."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = (len(self.points), len(self.others))
        self.n_features = sum(self.blocks)

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        K, inverse, *_, C, inverse_v = self.condition(*self.embedded_points())
        return (K, inverse), (C, inverse_v)

    def condition(self, *points: Tensor) -> list[Tensor]:
        """K_uu, L_u⁻¹, K_oo, K_ou; and P_u(O), C_vv, L_v⁻¹ without gradient; all in float64."""
        M = len(points[0])
        whole = self.covariances.among(torch.cat([p.double() for p in points]))
        K_ou, prior_variance = whole[M:, :M], whole[M:, M:].diagonal().mean().detach()
        K, K_oo = self.jittered(whole[:M, :M]), self.jittered(whole[M:, M:])
        inverse = self.inverse_factor(K)
        with torch.no_grad():
            P_o = K_ou @ inverse.mT  # (M₂, M)
            C = K_oo - P_o @ P_o.mT
            inverse_v = self.inverse_factor(C, prior_variance)
        return [K, inverse, K_oo, K_ou, P_o, C, inverse_v]

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        Z, Z_v, K, inverse, K_oo, K_ou, P_o, C, inverse_v = state
        points = torch.cat([Z, Z_v])
        K_fu, K_fv = self.covariances.cross(G, points).split([len(Z), len(Z_v)], 1)
        if torch.is_grad_enabled():  # O as more rows: the gradient in their type, in one go
            rows = torch.cat([K_fu, K_ou.to(K_fu)])
            P_u, P_o = whiten(rows, K, inverse).split([len(G), len(Z_v)])
            C = _Residual.apply(K_oo, P_o, C)
        else:
            P_u = whiten(K_fu, K, inverse)
        C_fv = K_fv - P_u @ P_o.to(P_u).mT  # (N, M₂)
        phi = torch.cat([P_u, whiten(C_fv, C, inverse_v)], 1)
        return Basis(phi, self.covariances.prior(G), factors=((K, inverse), (C, inverse_v)))

    def coordinates_of(self, values: Tensor, *state: Tensor) -> Tensor:
        Z, _, _, inverse, _, _, P_o, _, inverse_v = state
        u = inverse @ values[..., : len(Z), :]
        v = inverse_v @ (values[..., len(Z) :, :] - P_o @ u)
        return torch.cat([u, v], -2)


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
    """ODVGP with its mean in the coordinates a = C_vv⁻¹ m_v, for M₂ far above M.

    The mean's part c(x, O)a needs no factor of C_vv, and its price ½ aᵀC_vv a is estimated from
    some of the columns of K_oo at each step.

    Parameters
    ----------
    *args, orthogonal_points : object
        Those of :class:`OrthogonalFeatures`.
    n_outputs : int
        P.
    n_columns : int
        Columns of K_oo that a step looks at.
    """

    def __init__(self, *args: Any, n_outputs: int, n_columns: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coefficients = nn.Parameter(self.others.new_zeros(len(self.others), n_outputs))
        self.n_columns = min(n_columns, len(self.others))
        self.scale = 1.0  # of k now, in units of that in training

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        K, inverse, _ = self.condition(*self.embedded_points())
        return ((K, inverse),)

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
