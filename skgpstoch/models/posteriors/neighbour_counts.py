"""Counts by nearest neighbours: log-rates of a learned mean, and exposures of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ...data.rows import Rows
from .pseudo_targets import PseudoTargetPosterior


class NeighbourCountPosterior(PseudoTargetPosterior):
    """p(f | ỹ_N) at each row, where f is the log-rate of counts, whose mean is `level`."""

    limits = (1e-12, 1e12)
    share_of_variance = 0.5  # E log λ of n events is ψ(n) ≈ log n − 1/(2n), which keeps E λ
    exposure: Tensor

    @classmethod
    def told_by(cls, likelihood: Any, rows: Rows) -> dict[str, Tensor]:
        exposure = likelihood.of(rows).exposure
        if not isinstance(exposure, Tensor):  # the same of all rows
            exposure = rows.y.new_full((len(rows), 1), exposure or 1.0)
        return {**super().told_by(likelihood, rows), "exposure": exposure.to(rows.y)}

    @property
    def most_mean_variance(self) -> Tensor:
        """The variance of the mean that one event leaves; no event would leave any."""
        return self.stretch.square()

    def rows_at(self, i: Tensor) -> Rows:
        return replace(super().rows_at(i), exposure=self.exposure[i])
