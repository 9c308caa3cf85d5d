"""Inducing points: the whitened features of rows that they define.

With K = LLᵀ the covariance at the points and B that of rows with the points, the features are
P = B L⁻ᵀ, so that PPᵀ = B K⁻¹ Bᵀ. The backward pass is written out: with H = P̄ᵀP and Φ(·) the lower
triangle with half the diagonal (Murray, 2016, arXiv:1602.07527),

    B̄ = P̄ L⁻¹,      K̄ = −½ L⁻ᵀ (Φ(H) + Φ(H)ᵀ) L⁻¹,

which are three matrix products; differentiating the Cholesky factorisation takes many more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels import Kernel, check_length_scales, scaled
from ...maths.linalg import (
    add_diagonal,
    cholesky,
    inverse_cholesky,
    symmetric_product,
    symmetric_product_of_lower,
    times_lower,
    times_lower_transposed,
    tri_solve,
)
from ...maths.modules import Module
from .base import Basis, FeatureMap

TRAINING_JITTER = {torch.float32: 1e-5, torch.float64: 1e-8}
"""Of the mean prior variance, by the type of the data, while training."""


def by_gram(H: Tensor, R: Tensor) -> Tensor:
    """K̄ = −½ RᵀHR, (M, M), from R = L⁻¹ and H = Φ(P̄ᵀP) + Φ(P̄ᵀP)ᵀ."""
    return -0.5 * symmetric_product_of_lower(R, times_lower(H, R))


class _Whiten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, B: Tensor, K: Tensor, inverse: Tensor) -> Tensor:
        P = times_lower_transposed(B, inverse.to(B.dtype))
        ctx.save_for_backward(P, inverse)
        ctx.dtype = K.dtype
        return P

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        P, inverse = ctx.saved_tensors
        (P_bar,) = grads
        R = inverse.to(P.dtype)
        B_bar = times_lower(P_bar, R) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return B_bar, None, None
        K_bar = by_gram(symmetric_product(P_bar, P), R)
        return B_bar, K_bar.to(ctx.dtype), None


def whiten(B: Tensor, K: Tensor, inverse: Tensor) -> Tensor:
    """P = B L⁻ᵀ, (N, M), of the type of B, the covariances of rows and points.

    K (M, M) is that of the points, for the gradient, and `inverse` L⁻¹ for LLᵀ = K, without one, as
    :meth:`InducingFeatures.inverse_factor` finds it.
    """
    return _Whiten.apply(B, K, inverse)


class Covariances(Module):
    """Covariances between f at rows and the values of f at inducing points, for a kernel k."""

    has_inputs: bool = True
    """Whether points are inputs, to a network as well."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.trained_kernel: Kernel | None = None

    def cross(self, G: Tensor, Z: Tensor) -> Tensor:
        """Return covariances of f at rows with the values at points, (N, M)."""
        return self.kernel(G, Z)

    def among(self, Z: Tensor, Z2: Tensor | None = None) -> Tensor:
        """Return covariances between the values at points, (M, M₂)."""
        return self.kernel(Z, Z2)

    def prior(self, G: Tensor) -> Tensor:
        """Return the prior variances of f at rows, (N,)."""
        return self.kernel.diag(G)

    def gram(self, G: Tensor) -> Tensor:
        """Return the prior covariances of f at rows, (N, N)."""
        return self.kernel(G)

    def clamp_(self) -> None:
        """Bring hyper-parameters back within their bounds."""
        self.kernel.clamp_()

    def scale_variance(self, factor: float) -> None:
        """Multiply all covariances by `factor`, for predictions."""
        self.trained_kernel, self.kernel = self.kernel, scaled(self.kernel, factor)

    def unscale(self) -> None:
        """Undo :meth:`scale_variance`."""
        if self.trained_kernel is not None:
            self.kernel = self.trained_kernel
        self.trained_kernel = None


class ConditionedFeatures(FeatureMap):
    """Features of rows conditioned on a state, which may be cached while parameters are fixed."""

    n_frozen = 0
    """Number of cached tensors of the state; 0: the state is computed each time."""

    def state(self) -> list[Tensor]:
        """Return the state on which rows are conditioned."""
        raise NotImplementedError(f"{type(self).__name__} must define state")

    def kept(self) -> list[Tensor]:
        """The state that :meth:`freeze` has cached."""
        return [getattr(self, f"frozen_{i}") for i in range(self.n_frozen)]

    @torch.no_grad()
    def freeze(self) -> None:
        state = self.state()
        for i, value in enumerate(state):
            self.register_buffer(f"frozen_{i}", value)
        self.n_frozen = len(state)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        self.n_frozen = 0
        for name in [name for name in self._buffers if name.startswith("frozen_")]:
            delattr(self, name)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        if self.n_frozen or self.training or torch.is_grad_enabled():
            yield  # in training a network may normalise rows and points together
            return
        try:
            self.freeze()
            yield
        finally:
            self.thaw()


class InducingFeatures(ConditionedFeatures):
    """The whitened features P of inducing points in the space of the inputs.

    Parameters
    ----------
    kernel : Kernel or Covariances
        Kernel k on the outputs of the network, or the covariances of points that are not inputs.
    network : nn.Module
        g: (N, d) → (N, n_inputs), applied to rows and to inducing points.
    points : Tensor of shape (M, d)
        Initial inducing points Z.
    unit : Tensor of shape (d,)
        Scale of each input; Z is learned in these units.
    width : int
        Width of the network's output.
    """

    unit: Tensor
    failed: Tensor
    jitter: float | None
    """Multiple of the prior variance that is added to K_uu; None: as little as is needed."""

    def __init__(
        self,
        kernel: Kernel | Covariances,
        network: nn.Module,
        points: Tensor,
        unit: Tensor,
        width: int,
    ) -> None:
        super().__init__()
        self.covariances = Covariances(kernel) if isinstance(kernel, Kernel) else kernel
        check_length_scales(self.kernel, width, network)
        self.network = network
        self.points = nn.Parameter(points / unit)
        self.register_buffer("unit", unit)
        self.register_buffer("failed", torch.zeros((), dtype=torch.bool, device=points.device))
        self.jitter = TRAINING_JITTER[points.dtype]
        self.n_features = len(points)
        self.blocks = (len(points),)

    @property
    def kernel(self) -> Kernel:
        """k."""
        return self.covariances.kernel

    @property
    def inducing_points(self) -> Tensor:
        """Z, (M, d)."""
        return self.points * self.unit

    def all_points(self) -> list[Tensor]:
        """Every set of points."""
        return [points * self.unit for points in self.coordinates()]

    def coordinates(self) -> list[nn.Parameter]:
        """Every set of points in its unit."""
        return [self.points]

    def learn_points(self, learn: bool) -> None:
        """Whether the points are trained."""
        for points in self.coordinates():
            points.requires_grad_(learn)

    def embed(self, *rows: Tensor) -> list[Tensor]:
        """Return g of each set of rows, from a single pass of the network."""
        G = self.network(torch.cat(rows)) if len(rows) > 1 else self.network(rows[0])
        return list(G.reshape(-1, G.shape[-1]).split([len(r) for r in rows]))

    def embedded_points(self) -> list[Tensor]:
        """Return every set of points as the kernel sees it, after the network."""
        points = self.all_points()
        return self.embed(*points) if self.covariances.has_inputs else points

    def embedded(self, X: Tensor) -> list[Tensor]:
        """Return g of rows, and every set of points as the kernel sees it."""
        points = self.all_points()
        if self.covariances.has_inputs:
            return self.embed(X, *points)
        return [*self.embed(X), *points]

    def basis(self, X: Tensor) -> Basis:
        if self.n_frozen:
            return self.project(*self.embed(X), *self.kept())
        G, *points = self.embedded(X)
        return self.project(G, *points, *self.condition(*points))

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        K, inverse, *_ = self.condition(*self.embedded_points())
        return ((K, inverse),)

    def state(self) -> list[Tensor]:
        points = self.embedded_points()
        return [*points, *self.condition(*points)]

    def reopen(self, keep_variance: bool = False) -> None:
        self.thaw()
        self.jitter = TRAINING_JITTER[self.points.dtype]
        if not keep_variance:
            self.covariances.unscale()

    def close(self) -> None:
        self.jitter = None

    def failures(self) -> list[Tensor]:
        return [self.failed]

    def forgive(self) -> None:
        self.failed.fill_(False)

    def scale_variance(self, factor: float) -> None:
        self.covariances.scale_variance(factor)

    def condition(self, *points: Tensor) -> list[Tensor]:
        """Return K_uu and L⁻¹, in float64."""
        (Z,) = points
        K = self.jittered(self.covariances.among(Z.double()))  # (M, M)
        return [K, self.inverse_factor(K)]

    def jittered(self, K: Tensor) -> Tensor:
        """Return K (M, M), with a share of the prior variance on its diagonal while training.

        The jitter has a gradient, because with a large variance it is a noticeable noise.
        """
        return K if self.jitter is None else add_diagonal(K, self.jitter * K.diagonal().mean())

    @torch.no_grad()
    def inverse_factor(self, K: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return L⁻¹ for LLᵀ = K (M, M); after training, with as little jitter as is needed.

        While training, a failure is only recorded; the training loop checks after the epoch. The
        jitter is relative to the mean of the diagonal, or to `scale`.
        """
        if self.jitter is None:
            L = cholesky(K, "covariance of the inducing points", scale)
            return tri_solve(L, torch.eye(len(K), dtype=K.dtype, device=K.device))
        R, failed = inverse_cholesky(K)
        self.failed |= failed
        return R

    def project(self, G: Tensor, *state: Tensor) -> Basis:
        """Return the basis at rows g(X), given the state from :meth:`condition`."""
        Z, K, inverse = state
        P = whiten(self.covariances.cross(G, Z), K, inverse)
        return Basis(P, self.covariances.prior(G), factors=((K, inverse),))

    def coordinates_of(self, values: Tensor, *state: Tensor) -> Tensor:
        """Return u (..., D, P), so that φ(x)ᵀu is E f(x) given values at all points (..., M, P)."""
        inverse = state[-1]
        return inverse @ values

    def members(self, X: Tensor) -> Tensor:
        return self.basis(X).phi[None]

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor:
        (G,) = self.embed(X)
        return self.covariances.gram(G) - phi @ phi.mT
