"""Find most of the rows nearest to others, in a small part of all rows.

Rows are in cells, each around a centre, and queries are compared with the rows of the cells nearest
to their own (an inverted file; Jégou, Douze & Schmid, "Product quantization for nearest neighbor
search", PAMI 33, 2011). Training may miss some neighbours; predictions must not. Distances are in
float32: of a column that is a million times as long as all others, only that is seen.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..data.devices import BLOCK_ROWS
from .nearest import Nearest

ROWS_OF_CELL = 128
N_PROBED = 32  # cells that are searched
FEWEST_IN_CELLS = 2 * ROWS_OF_CELL * N_PROBED
"""Rows from which on it takes less time than comparing all. *Measured* with 36,000 rows in 24
dimensions, which 8 numbers determine: 40 µs for 165, and nine of ten neighbours are found."""
FARTHEST_IN_CELLS = 1e15  # units, whose squares float32 can add up
MOST_COMPARED = 1 << 22  # distances at a time
MOST_ASKED = 0.25  # of the rows of these cells, that may be asked for at most


class NearlyNearest(Nearest):
    """Finds most of the neighbours among rows, (n, e), where finding all takes long."""

    def __init__(self, rows: Tensor, lag: Tensor | None = None) -> None:
        super().__init__(rows, lag)
        self.cells: dict[int, Cells] = {}  # of the first so many rows

    def _among(self, size: int, Q: Tensor, k: int) -> Tensor:
        if size < FEWEST_IN_CELLS or k > MOST_ASKED * ROWS_OF_CELL * N_PROBED:
            return super()._among(size, Q, k)
        if size not in self.cells:
            self.cells[size] = Cells.of(self.rows[:size])
        return self.cells[size].nearest(Q, k)


class Cells(NamedTuple):
    """Rows in the order of their cells, less a shift and in units, in float32."""

    shift: Tensor  # (e,)
    unit: Tensor  # the largest number, ()
    centres: Tensor  # (c, e)
    rows: Tensor  # (n, e)
    numbers: Tensor  # (n,)
    ends: Tensor  # (c + 1,): cell j has the rows ends[j] to ends[j + 1]

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Put rows (n, e) into the cells of rows that are evenly spread among them."""
        shift = rows.mean(0)
        unit = (rows - shift).abs().max().clamp_min(torch.finfo(rows.dtype).tiny)
        at = ((rows - shift) / unit).float()
        centres = at[:: min(ROWS_OF_CELL, len(at))]
        cell = nearest_centre(centres, at)
        numbers = cell.argsort(stable=True)
        ends = torch.bincount(cell, minlength=len(centres)).cumsum(0)
        return cls(
            shift, unit, centres, at[numbers], numbers, torch.nn.functional.pad(ends, (1, 0))
        )

    def nearest(self, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of k rows near each row of Q (q, e), nearest first, (q, k)."""
        Q = ((Q - self.shift) / self.unit).clamp(-FARTHEST_IN_CELLS, FARTHEST_IN_CELLS).float()
        cell = nearest_centre(self.centres, Q)
        found = torch.empty(len(Q), k, dtype=torch.long, device=Q.device)
        asked, sizes = cell.unique(return_counts=True)
        of_cells = cell.argsort(stable=True).split(sizes.tolist())
        for own, i in zip(asked.tolist(), of_cells, strict=True):
            some = self.around(own, k)
            candidates = self.rows[some]
            norms = candidates.square().sum(1)
            for j in i.split(max(1, MOST_COMPARED // len(some))):
                r2 = torch.addmm(norms, Q[j], candidates.T, alpha=-2.0)
                found[j] = self.numbers[some[r2.topk(k, largest=False).indices]]
        return found

    def around(self, cell: int, k: int) -> Tensor:
        """Return the places of the rows of the cells around one, at least k."""
        r2 = (self.centres - self.centres[cell]).square().sum(1)
        cells = r2.argsort(stable=True)
        size = (self.ends[1:] - self.ends[:-1])[cells]
        enough = int(torch.searchsorted(size.cumsum(0), k)) + 1
        ends, some = self.ends.tolist(), cells[: max(N_PROBED, enough)].tolist()
        return torch.cat([torch.arange(ends[c], ends[c + 1], device=r2.device) for c in some])


def nearest_centre(centres: Tensor, rows: Tensor) -> Tensor:
    """Return the number of the centre nearest to each row, (n,)."""
    norms = centres.square().sum(1)
    parts = [
        torch.addmm(norms, block, centres.T, alpha=-2.0).argmin(1)
        for block in rows.split(BLOCK_ROWS)
    ]
    return torch.cat(parts)
