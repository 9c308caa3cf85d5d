"""Counts by nearest neighbours: log-rates of a learned mean, and exposures of rows."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...data.rows import Rows
from .pseudo_targets import PseudoTargetPosterior


class NeighbourCountPosterior(PseudoTargetPosterior):
    """p(f | ỹ_N) at each row, where f is the log-rate of counts, whose mean is `level`."""

    limits = (1e-12, 1e12)
    exposure: Tensor

    @classmethod
    def told_by(cls, rows: Rows) -> dict[str, Tensor]:
        exposure = rows.y.new_ones(len(rows), 1) if rows.exposure is None else rows.exposure
        return {**super().told_by(rows), "exposure": exposure}

    def rows_at(self, i: Tensor) -> Rows:
        return replace(super().rows_at(i), exposure=self.exposure[i])
