"""Feature maps φ(x), and the features of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...data.devices import all_hold
from ...maths.modules import Module


class Basis(NamedTuple):
    """Features of rows, and the prior variances that go with them."""

    phi: Tensor  # P, (N, D)
    prior: Tensor  # k(x, x), (N,); ‖φ‖² for a finite map, so that the residual is 0
    shift: Tensor | None = None  # a part of the mean that does not depend on w, (N, P)
    factors: tuple[tuple[Tensor, Tensor], ...] = ()  # K and L⁻¹ of every block
    n_samples: int = 1  # S: a deep model has all rows S times, each with new draws

    def residual(self) -> Tensor:
        """Return ρ(x) = diag(K − PPᵀ), the variance that the features leave unexplained, (N,)."""
        return (self.prior - self.phi.square().sum(1)).clamp_min(0.0)

    def detach(self) -> Basis:
        """Return the basis without an autograd graph and without factors."""
        shift = None if self.shift is None else self.shift.detach()
        return Basis(self.phi.detach(), self.prior.detach(), shift, (), self.n_samples)


class FeatureMap(Module):
    """Base class of maps φ from rows of X to features.

    The features leave the variance ρ(x) unexplained, which is 0 for finite maps. A map may be an
    ensemble of K members with D features each. Training uses the members separately; φ joins them,
    so that the kernel φ(x)ᵀφ(x') is the mean of the members' kernels. A subclass for a finite map
    defines :meth:`members`; one with a residual overrides :meth:`basis`, too.
    """

    n_features: int  # D
    n_members: int = 1  # K
    blocks: tuple[int, ...]  # D_b: the features that share a covariance of q(w)
    amplitude: float = 1.0

    def members(self, X: Tensor) -> Tensor:
        """Return each member's features, (K, N, D), for common rows (N, d) or its own (K, N, d)."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of all features, K·D."""
        return self.n_members * self.n_features

    def member(self, k: int) -> FeatureMap:
        """Return a copy that has only the k-th member."""
        other = copy.deepcopy(self)
        if self.n_members > 1:
            for part in other.modules():
                if hasattr(part, "keep_"):
                    cast(Any, part).keep_(k)
            other.n_members = 1
        return other

    def forward(self, X: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return φ(X), (N, K·D), or only the given columns, (N, len(columns))."""
        Z = self.members(X)
        phi = Z[0] if len(Z) == 1 else Z.permute(1, 0, 2).flatten(1) / math.sqrt(len(Z))
        return phi if columns is None else phi[:, columns]

    def basis(self, X: Tensor) -> Basis:
        """Return φ(X), k(x, x) and the shift of the mean."""
        phi = self(X) if self.amplitude == 1.0 else self.amplitude * self(X)
        return Basis(phi, phi.square().sum(1))

    def sized(self, Z: Tensor) -> Tensor:
        """Return features of members, (K, N, D).

        Raises
        ------
        ValueError
            If there are others than the weights are for: those of a file from a stranger, whose
            products would be larger than the file.
        """
        if (len(Z), Z.shape[2]) != (self.n_members, self.n_features):
            raise ValueError(
                f"{len(Z)} members make {Z.shape[2]} features, not {self.n_members} make "
                f"{self.n_features}"
            )
        return Z

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters to which weight decay applies."""
        named = self.named_parameters()
        return [p for name, p in named if "network." in name and p.requires_grad]

    def residual_covariance(self, X: Tensor, phi: Tensor) -> Tensor | None:
        """Return the joint covariance of the residual at rows, (N, N); None if there is none."""
        return None

    def factors(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return K and L⁻¹ of every block of inducing points; () for finite features."""
        return ()

    def penalty(self, generator: torch.Generator | None = None) -> Tensor | None:
        """Return the KL divergence due to the shift, in nats; with a generator, an estimate."""
        return None

    # ---- for training and after it -----------------------------------------------------------

    @property
    def each(self) -> Sequence[FeatureMap]:
        """The maps that this map combines, all of which the methods below apply to."""
        return ()

    def clamp_(self) -> None:
        """Bring hyper-parameters of kernels back within their bounds."""
        for part in self.each or self.children():
            if hasattr(part, "clamp_"):
                cast(Any, part).clamp_()

    def failures(self) -> list[Tensor]:
        """One-element flags: whether a factorisation has failed since :meth:`forgive`."""
        return [failed for part in self.each for failed in part.failures()]

    def is_sound(self) -> bool:
        """Whether no factorisation has failed since :meth:`forgive`."""
        return all_hold([~failed for failed in self.failures()])

    def forgive(self) -> None:
        """Clear the record of failed factorisations."""
        for part in self.each:
            part.forgive()

    def close(self) -> None:
        """End training: from now on use the least jitter, and raise errors at once."""
        for part in self.each:
            part.close()

    def freeze(self) -> None:
        """Cache the state on which rows are conditioned, for predictions with fixed parameters."""
        for part in self.each:
            part.freeze()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the map within a block, but not in training or with gradients."""
        with ExitStack() as stack:
            for part in self.each:
                stack.enter_context(part.frozen())
            yield

    def reopen(self, keep_variance: bool = False) -> None:
        """Undo :meth:`close`, :meth:`freeze` and, unless it is kept, :meth:`scale_variance`."""
        self.amplitude = self.amplitude if keep_variance else 1.0
        for part in self.each:
            part.reopen(keep_variance)

    def scale_variance(self, factor: float) -> None:
        """Multiply k by a factor, for predictions."""
        self.amplitude *= math.sqrt(factor)


class JoinedFeatures(FeatureMap):
    """An ensemble of maps, joined into the single map φ."""

    features: FeatureMap

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features
        self.n_features = features.n_members * features.n_features
        self.blocks = (self.n_features,)

    def members(self, X: Tensor) -> Tensor:
        return self.features(X)[None]
