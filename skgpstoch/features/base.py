"""Feature maps φ(x), and the features of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.devices import all_hold
from ..maths.modules import Module


class Basis(NamedTuple):
    """What a feature map says of rows."""

    phi: Tensor  # P, (N, D)
    prior: Tensor  # k(x, x), (N,); ‖φ‖² for a finite map, so that the residual is 0
    shift: Tensor | None = None  # a mean that does not depend on w, (N, P)
    factors: tuple[tuple[Tensor, Tensor], ...] = ()  # K and L⁻¹ of every block
    n_samples: int = 1  # S: of a deep model all rows S times, each time drawn anew

    def residual(self) -> Tensor:
        """ρ(x) = diag(K − PPᵀ), what the features leave unexplained, (N,)."""
        return (self.prior - self.phi.square().sum(1)).clamp_min(0.0)

    def detach(self) -> Basis:
        """Without a graph, and without factors."""
        shift = None if self.shift is None else self.shift.detach()
        return Basis(self.phi.detach(), self.prior.detach(), shift, (), self.n_samples)


class FeatureMap(Module):
    """φ: rows of X to features, with the variance ρ(x) that the features leave unexplained.

    A map may be an ensemble of K members with D features each. Training sees them apart; φ joins
    them, so that the kernel φ(x)ᵀφ(x') is the mean of the members' kernels. A finite map defines
    :meth:`members`; one with a residual overrides :meth:`basis` as well.
    """

    n_features: int  # D
    n_members: int = 1  # K
    blocks: tuple[int, ...]  # D_b: the features that share a covariance of q(w)
    amplitude: float = 1.0

    def members(self, X: Tensor) -> Tensor:
        """Each member's features, (K, N, D), of X (N, d), or of rows of its own (K, N, d)."""
        raise NotImplementedError

    def member(self, k: int) -> FeatureMap:
        """The k-th member alone, a copy."""
        other = copy.deepcopy(self)
        if self.n_members > 1:
            for part in other.modules():
                if hasattr(part, "keep_"):
                    cast(Any, part).keep_(k)
            other.n_members = 1
        return other

    def forward(self, X: Tensor, columns: Tensor | None = None) -> Tensor:
        """φ(X) (N, K·D), or its given columns (N, len(columns))."""
        Z = self.members(X)
        phi = Z[0] if len(Z) == 1 else Z.permute(1, 0, 2).flatten(1) / math.sqrt(len(Z))
        return phi if columns is None else phi[:, columns]

    def basis(self, X: Tensor) -> Basis:
        """φ(X), k(x, x) and the shift of the mean."""
        phi = self(X) if self.amplitude == 1.0 else self.amplitude * self(X)
        return Basis(phi, phi.square().sum(1))

    def network_parameters(self) -> list[nn.Parameter]:
        """Those that weight decay applies to."""
        named = self.named_parameters()
        return [p for name, p in named if "network." in name and p.requires_grad]

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor | None:
        """Joint covariance of r at rows, (N, N); None where there is none."""
        return None

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """K and L⁻¹ of every block of points; none of finite features, whose weights are white."""
        return ()

    def penalty(self, generator: torch.Generator | None = None) -> Tensor | None:
        """What the shift costs, in nats: a KL divergence; an estimate of it, given a generator."""
        return None

    # ---- for training and after it -----------------------------------------------------------

    def clamp_(self) -> None:
        """Bring hyper-parameters of kernels back within their bounds."""
        for part in self.children():
            if hasattr(part, "clamp_"):
                cast(Any, part).clamp_()

    def failures(self) -> list[Tensor]:
        """Of one element each, whether a factorisation has failed since :meth:`forgive`."""
        return []

    def is_sound(self) -> bool:
        """Whether none has."""
        return all_hold([~failed for failed in self.failures()])

    def forgive(self) -> None:
        """Forget failures of the past."""

    def close(self) -> None:
        """No more training: from now on an error at once, and the least jitter, if any."""

    def freeze(self) -> None:
        """Keep what rows are conditioned on, for predictions with parameters that stay."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """As :meth:`freeze` leaves it, for a while; never in training or with gradients."""
        yield

    def reopen(self, keep_variance: bool = False) -> None:
        """Undo :meth:`close`, :meth:`freeze` and, unless it is kept, :meth:`scale_variance`."""
        self.amplitude = self.amplitude if keep_variance else 1.0

    def scale_variance(self, factor: float) -> None:
        """Multiply k by a factor, for predictions."""
        self.amplitude *= math.sqrt(factor)


class JoinedFeatures(FeatureMap):
    """An ensemble as the single map that φ makes of it."""

    features: FeatureMap

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features
        self.n_features = features.n_members * features.n_features
        self.blocks = (self.n_features,)

    def members(self, X: Tensor) -> Tensor:
        return self.features(X)[None]
