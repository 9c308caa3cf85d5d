"""Feature maps φ(x), and what they say of rows."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn

from .. import kernels


class FeatureMap(nn.Module):
    """φ: rows of X to features, with the variance ρ(x) that the features leave unexplained.

    A map may be an ensemble of K members with D features each. Training sees them apart; φ joins
    them, so that the kernel φ(x)ᵀφ(x') is the mean of the members' kernels.
    """

    n_features: int  # D
    n_members: int = 1  # K

    def members(self, X: Tensor) -> Tensor:
        """Each member's features: (K, N, D)."""
        raise NotImplementedError

    def forward(self, X: Tensor, columns: Tensor | None = None) -> Tensor:
        """φ(X) (N, K·D), or its given columns (N, len(columns))."""
        Z = self.members(X)
        phi = Z[0] if len(Z) == 1 else Z.permute(1, 0, 2).flatten(1) / math.sqrt(len(Z))
        return phi if columns is None else phi[:, columns]

    def network_parameters(self) -> list[nn.Parameter]:
        """Those that weight decay applies to."""
        named = self.named_parameters()
        return [p for name, p in named if "network." in name and p.requires_grad]

    def residual(self, X: Tensor, phi: Tensor) -> Tensor:
        """ρ(x), (N,): zero for a finite-dimensional kernel."""
        return phi.new_zeros(len(phi))


class JoinedFeatures(FeatureMap):
    """An ensemble as the single map that φ makes of it."""

    features: FeatureMap

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features
        self.n_features = features.n_members * features.n_features

    def members(self, X: Tensor) -> Tensor:
        return self.features(X)[None]


def check_length_scales(kernel: kernels.Kernel, n_inputs: int) -> None:
    """Raise a ValueError if an anisotropic kernel is not of the width of its inputs."""
    for part in kernel.modules():
        length_scale = getattr(part, "length_scale", None)
        if length_scale is not None and length_scale.numel() not in (1, n_inputs):
            raise ValueError(
                f"kernel: a length_scale has {length_scale.numel()} entries, but there are "
                f"{n_inputs} features for {kernels.to_sklearn(kernel)}."
            )


class Basis(NamedTuple):
    """What a sparse model knows of rows."""

    phi: Tensor  # P, (N, D)
    prior: Tensor  # k(x, x), (N,)
    shift: Tensor | None = None  # a mean that does not depend on w, (N, P)
    factors: tuple[tuple[Tensor, Tensor], ...] = ()  # K and L⁻¹ of every block

    def residual(self) -> Tensor:
        """diag(K − PPᵀ), what the features leave unexplained, (N,)."""
        return (self.prior - self.phi.square().sum(1)).clamp_min(0.0)
