"""Base class of feature maps that combine several maps with inducing points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from ..kernels import Kernel
from .base import FeatureMap
from .inducing import InducingFeatures


class CompositeFeatures(FeatureMap):
    """Operations that apply to every part alike, however the parts' features are combined."""

    @property
    def each(self) -> list[InducingFeatures]:
        """The parts."""
        raise NotImplementedError(f"{type(self).__name__} must define each")

    @property
    def shown(self) -> InducingFeatures:
        """The part whose kernel, network and points represent the whole map."""
        return self.each[0]

    @property
    def kernel(self) -> Kernel:
        """Kernel of the part that is shown."""
        return self.shown.kernel

    @property
    def network(self) -> nn.Module:
        """That of the part that is shown."""
        return self.shown.network

    @property
    def points(self) -> Tensor:
        """Those of the part that is shown."""
        return self.shown.points

    @property
    def others(self) -> Tensor | None:
        """Orthogonal points of that part, if it has any."""
        return getattr(self.shown, "others", None)

    def all_points(self) -> list[Tensor]:
        """Of every part."""
        return [points for part in self.each for points in part.all_points()]

    def learn_points(self, learn: bool) -> None:
        """Whether the points are trained."""
        for part in self.each:
            part.learn_points(learn)

    def members(self, X: Tensor) -> Tensor:
        return self.basis(X).phi[None]

    def clamp_(self) -> None:
        for part in self.each:
            part.clamp_()

    def failures(self) -> list[Tensor]:
        return [failed for part in self.each for failed in part.failures()]

    def forgive(self) -> None:
        for part in self.each:
            part.forgive()

    def close(self) -> None:
        for part in self.each:
            part.close()

    def freeze(self) -> None:
        for part in self.each:
            part.freeze()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.each:
                stack.enter_context(part.frozen())
            yield

    def reopen(self, keep_variance: bool = False) -> None:
        for part in self.each:
            part.reopen(keep_variance)
