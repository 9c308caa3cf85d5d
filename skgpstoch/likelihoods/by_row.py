"""Likelihoods with a scale that can differ between rows."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from ..maths.gaussian import Marginals
from .base import Likelihood


class ScaledByRow(Likelihood):
    """Base class of likelihoods whose noise has a factor of each row."""

    row_attributes: ClassVar[tuple[str, ...]] = ("ratio",)

    ratio: Tensor | None = None
    """Factor of the scale of the noise for each row, (N, P) or (S, N, P); None: no rows are set."""

    def scaled(self, ratio: Tensor | None) -> Self:
        """Return a likelihood whose noise is `ratio` times as large; it shares its parameters."""
        return self._knowing(ratio=ratio)

    def times_ratio(self, scale: Tensor, power: int = 1) -> Tensor:
        """Return a scale (P,), or a power of it, multiplied by each row's ratio."""
        return scale if self.ratio is None else scale * self.ratio.to(scale) ** power

    @property
    def scales_by_row(self) -> bool:
        """Whether the noise scale can differ between rows (it then uses `times_ratio`)."""
        return True

    def of_components(self, which: Tensor) -> Self:
        if self.ratio is None or self.ratio.ndim < 3:
            return self
        return self._knowing(ratio=self.ratio[which, torch.arange(which.shape[1])])

    def sample_around(self, f: Tensor, q: Marginals, generator: torch.Generator) -> Tensor:
        """Draw y for draws f ~ q (S, N, P), where q has the shape (N, P), or that of the draws."""
        return self.sample(f, generator)
