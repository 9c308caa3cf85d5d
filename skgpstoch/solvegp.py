"""SOLVE-GP and ODVGP: orthogonal inducing points beside the ordinary ones.

Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", 2020. The
residual process f⊥ of SVGP, of covariance c(a, b) = k(a, b) − k(a, Z) K_uu⁻¹ k(Z, b), gets inducing
points O of its own. With C_vv = c(O, O) = L_v L_vᵀ their whitened features are those that a block
Cholesky decomposition makes of Z ∪ O,

    P = [P_u P_v],   P_v(X) = c(X, O) L_v⁻ᵀ,   c(X, O) = k(X, O) − P_u(X) P_u(O)ᵀ,

two decompositions of M points instead of one of 2M. The model is that of :mod:`skgpstoch.svgp`,
with S block-diagonal, q(w) = N(m_u, S_u) N(m_v, S_v); S_v = I makes it ODVGP.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ._sparse_docs import documented
from ._sparse_estimators import SparseGPClassifier, SparseGPRegressor
from ._sparse_gp import VariationalGP, input_unit
from .inducing import Basis, InducingFeatures, choose_points, whiten


class _WithOrthogonalPoints(InducingFeatures):
    """Points of a second kind, O."""

    def __init__(self, *args: Any, orthogonal_points: Tensor) -> None:
        super().__init__(*args)
        self.others = nn.Parameter(orthogonal_points / self.unit)

    @property
    def orthogonal_points(self) -> Tensor:
        """O, (M₂, d)."""
        return self.others * self.unit

    def all_points(self) -> list[Tensor]:
        return [self.inducing_points, self.orthogonal_points]

    def learn_points(self, learn: bool) -> None:
        super().learn_points(learn)
        self.others.requires_grad_(learn)


class OrthogonalFeatures(_WithOrthogonalPoints):
    """The whitened features [P_u P_v] of inducing points Z and orthogonal inducing points O.

    Parameters
    ----------
    *args : object
        Those of :class:`InducingFeatures`.
    orthogonal_points : Tensor of shape (M₂, d)
        O.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = (len(self.points), len(self.others))
        self.n_features = sum(self.blocks)

    def condition(self, *points: Tensor) -> list[Tensor]:
        """K_uu, L_u⁻¹, K_oo; and P_u(O), C_vv, L_v⁻¹ without gradient; all in float64."""
        Z, Z_v = (p.double() for p in points)
        K, inverse = super().condition(Z)
        K_oo = self.kernel(Z_v)  # (M₂, M₂)
        with torch.no_grad():
            P_o = self.kernel(Z_v, Z) @ inverse.mT  # (M₂, M)
            C = K_oo - P_o @ P_o.mT
            inverse_v = self.inverse_factor(C, self.kernel.diag(Z_v).mean())
        return [K, inverse, K_oo, P_o, C, inverse_v]

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        Z, Z_v, K, inverse, K_oo, P_o, C, inverse_v = state
        K_fu = self.kernel(G, Z)  # (N, M)
        if torch.is_grad_enabled():  # O as more rows: the gradient in their type, in one go
            rows = torch.cat([K_fu, self.kernel(Z_v, Z)])
            P_u, P_o = whiten(rows, K, inverse).split([len(G), len(Z_v)])
            C = _Residual.apply(K_oo, P_o, C)
        else:
            P_u = whiten(K_fu, K, inverse)
        C_fv = self.kernel(G, Z_v) - P_u @ P_o.to(P_u).mT  # (N, M₂)
        phi = torch.cat([P_u, whiten(C_fv, C, inverse_v)], 1)
        return Basis(phi, self.kernel.diag(G), factors=((K, inverse), (C, inverse_v)))


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
    *args : object
        Those of :class:`InducingFeatures`.
    orthogonal_points : Tensor of shape (M₂, d)
        O.
    n_outputs : int
        P.
    n_columns : int
        Columns of K_oo that a step looks at.
    """

    def __init__(self, *args: Any, n_outputs: int, n_columns: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coefficients = nn.Parameter(self.others.new_zeros(len(self.others), n_outputs))
        self.n_columns = min(n_columns, len(self.others))

    def condition(self, *points: Tensor) -> list[Tensor]:
        """K_uu, L_u⁻¹ in float64, and aᵀP_u(O), (P, M)."""
        Z, Z_v = points
        K, inverse = super().condition(Z)
        weighted = self.coefficients.mT @ self.kernel(Z_v, Z)  # aᵀK_ou, (P, M)
        return [K, inverse, whiten(weighted, K, inverse)]

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        Z, Z_v, K, inverse, weighted = state
        P_u = whiten(self.kernel(G, Z), K, inverse)
        shift = self.kernel(G, Z_v) @ self.coefficients - P_u @ weighted.mT  # c(x, O)a, (N, P)
        return Basis(P_u, self.kernel.diag(G), shift, ((K, inverse),))

    def scale_variance(self, factor: float) -> None:
        super().scale_variance(factor)
        self.coefficients.data /= factor  # C_vv a stays as it is

    def unscale(self) -> None:
        if self.trained_kernel is not None:
            x = self.inducing_points[:1]
            (G,) = self.embed(x)
            self.coefficients.data *= self.kernel.diag(G) / self.trained_kernel.diag(G)
        super().unscale()

    def penalty(self, generator: torch.Generator | None = None) -> Tensor:
        """½ aᵀC_vv a = ½ (aᵀK_oo a − ‖P_u(O)ᵀa‖²); unbiased from a random set of columns."""
        n, a = len(self.others), self.coefficients
        Z, Z_v = self.embed(*self.all_points())
        weighted = self.condition(Z, Z_v)[-1]
        if generator is None:
            columns = torch.arange(n, device=a.device)
        else:
            order = torch.randperm(n, generator=generator, device=generator.device)
            columns = order[: self.n_columns]
        parts = columns.split(self.n_columns)
        square = sum((a[part] * (self.kernel(Z_v[part], Z_v) @ a)).sum() for part in parts)
        return 0.5 * (n / len(columns) * square - weighted.square().sum())


@dataclass(eq=False, repr=False, kw_only=True)
class WithOrthogonalGP(VariationalGP):
    """Models that may have orthogonal points."""

    n_orthogonal: int | str = "auto"
    orthogonal_points: Any = None

    @abstractmethod
    def _covariance_there(self) -> str | None:
        """Of q at the orthogonal points: "free" or "prior"; None: there are no such points."""

    def _resolve(self, n_rows: float) -> None:
        super()._resolve(n_rows)
        if self._is_decoupled() and self.solver == "auto" and self.solver_ == "lbfgs":
            self.solver_ = "collapsed"
        if self._is_decoupled() and self.solver_ == "lbfgs":
            raise ValueError(
                "solver='lbfgs' needs whiten=True with the prior's covariance at orthogonal "
                "points: without, the price of the mean is a random estimate."
            )

    def _is_decoupled(self) -> bool:
        return self._covariance_there() == "prior" and not self.whiten

    def _prior_blocks(self, features: InducingFeatures) -> tuple[bool, ...]:
        return tuple(
            b > 0 and self._covariance_there() == "prior" for b in range(len(features.blocks))
        )

    def _n_points(self, n_rows: int) -> int:
        M, chosen = super()._n_points(n_rows), isinstance(self.inducing_points, str)
        if self.n_inducing == "auto" and chosen and self._covariance_there() is not None:
            return min(M, max(1, n_rows // 2))
        return M

    def _n_others(self, n_rows: int, M: int) -> int:
        """M₂."""
        if self._starts_warm():
            return self._same_number(
                "n_orthogonal", len(cast(OrthogonalFeatures, self._start_model().features).others)
            )
        if self.orthogonal_points is not None:
            return self._same_number("n_orthogonal", len(np.asarray(self.orthogonal_points)))
        M2 = min(M, max(1, n_rows - M)) if self.n_orthogonal == "auto" else int(self.n_orthogonal)
        if n_rows < M2:
            raise ValueError(
                f"n_orthogonal={self.n_orthogonal} must be at most the number of rows to train on, "
                f"{n_rows}."
            )
        return M2

    def _features(self, X: Tensor, n_latents: int, generator: torch.Generator) -> InducingFeatures:
        if self._covariance_there() is None:
            return super()._features(X, n_latents, generator)
        network, width = self._network(X, generator)
        kernel = self._kernel_module(self._embedded(network.eval(), X)).to(X.device)
        M = self._n_points(len(X))
        M2 = self._n_others(len(X), M)
        inducing, others = self._both_kinds(X, M, M2, kernel, network, generator)
        args = (kernel, network, inducing, input_unit(X), width)
        if self._is_decoupled():
            return DecoupledFeatures(
                *args, orthogonal_points=others, n_outputs=n_latents, n_columns=max(M, 256)
            )
        return OrthogonalFeatures(*args, orthogonal_points=others)

    def _both_kinds(
        self,
        X: Tensor,
        M: int,
        M2: int,
        kernel: Any,
        network: nn.Module,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Z and O: where neither is given, two parts of one set if there are rows for it."""
        inducing = self._start_points("inducing_points", X)
        others = self._start_points("orthogonal_points", X)
        if inducing is None and others is None and len(X) >= M + M2:
            method = self.inducing_points
            points = choose_points(method, X, M + M2, kernel, network, generator)
            if method != "conditional_variance":  # of which the first are the best
                points = points[torch.randperm(M + M2, generator=generator, device=X.device)]
            return points[:M], points[M:]
        if inducing is None:
            inducing = choose_points(self.inducing_points, X, M, kernel, network, generator)
        if others is None:
            method = self.inducing_points if isinstance(self.inducing_points, str) else "kmeans"
            others = choose_points(method, X, M2, kernel, network, generator)
        return inducing, others


@dataclass(eq=False, repr=False, kw_only=True)
class SolveGP(WithOrthogonalGP):
    """What regressor and classifier share."""

    orthogonal_covariance: str = "free"

    def _covariance_there(self) -> str:
        return self.orthogonal_covariance


@documented
@dataclass(eq=False, repr=False)
class SolveGPRegressor(SolveGP, SparseGPRegressor):
    """Regression with orthogonal inducing points (SOLVE-GP, ODVGP).

    M + M₂ points for the price of two matrices of those sizes instead of one of their sum.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    See Also
    --------
    SVGPRegressor : With inducing points of one kind.

    References
    ----------
    .. [1] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.
    .. [2] H. Salimbeni, C.-A. Cheng, B. Boots, M. Deisenroth, "Orthogonally decoupled variational
       Gaussian processes", NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SolveGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = SolveGPRegressor(n_inducing=10, n_orthogonal=10, random_state=0).fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    >>> model.orthogonal_points_.shape
    (10, 1)
    """


@documented
@dataclass(eq=False, repr=False)
class SolveGPClassifier(SolveGP, SparseGPClassifier):
    """Classification with orthogonal inducing points (SOLVE-GP, ODVGP).

    M + M₂ points for the price of two matrices of those sizes instead of one of their sum.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    See Also
    --------
    SVGPClassifier : With inducing points of one kind.

    References
    ----------
    .. [1] J. Shi, M. Titsias, A. Mnih, "Sparse orthogonal variational inference for Gaussian
       processes", AISTATS 2020.
    .. [2] H. Salimbeni, C.-A. Cheng, B. Boots, M. Deisenroth, "Orthogonally decoupled variational
       Gaussian processes", NeurIPS 2018.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import SolveGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SolveGPClassifier(n_inducing=10, n_orthogonal=10, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    """
