"""Find most of the rows nearest to others by an index of faiss, where products take long.

Rows are in cells, and only those of the cells nearest to a query are compared with it (an inverted
file; Jégou, Douze & Schmid, "Product quantization for nearest neighbor search", PAMI 33, 2011).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

FEWEST_INDEXED = 100_000  # rows; below, products take less than half a millisecond a query
CELLS_OF_ROOT = 2.0  # cells for the root of the number of rows
CELLS_SEARCHED = 64  # cells that are searched
"""*Measured* (``benchmarks/bench_neighbour_search.py``)."""
SAMPLES_OF_CELL = 40  # rows that place a cell
N_ROUNDS = 10  # of k-means
FARTHEST_INDEXED = 1e15  # units, whose squares float32 can add up


class Index(NamedTuple):
    """Rows in cells, less their centre and in units of the greatest, in float32."""

    shift: Tensor  # (e,)
    unit: float
    centres: Tensor  # (c, e)
    of_faiss: Any

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Put rows (n, e) into cells."""
        faiss = library()
        shift = rows.mean(0)
        unit = float((rows - shift).abs().max().clamp_min(torch.finfo(rows.dtype).tiny))
        at = ((rows - shift) / unit).float().numpy()
        n_cells = int(CELLS_OF_ROOT * math.sqrt(len(at)))
        coarse = faiss.IndexFlatL2(at.shape[1])
        index = faiss.IndexIVFFlat(coarse, at.shape[1], n_cells)
        index.cp.niter, index.cp.max_points_per_centroid = N_ROUNDS, SAMPLES_OF_CELL
        index.cp.min_points_per_centroid = 1  # or it prints that there are few, of many cells
        index.train(at)
        index.add(at)
        index.nprobe = min(CELLS_SEARCHED, n_cells)
        return cls(shift, unit, torch.from_numpy(coarse.reconstruct_n(0, n_cells)), index)

    def nearest(self, Q: Tensor, k: int) -> Tensor:
        """Return the numbers of k rows near each row of Q (q, e), by distances in float32; or −1.

        Cells are chosen by differences and not by products, which round as the batch has it.
        """
        Q = ((Q - self.shift) / self.unit).clamp(-FARTHEST_INDEXED, FARTHEST_INDEXED).float()
        r = torch.cdist(Q, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        r, cells = r.topk(self.of_faiss.nprobe, largest=False)
        found = self.of_faiss.search_preassigned(
            np.ascontiguousarray(Q.numpy()), k, cells.numpy(), r.square().numpy()
        )
        return torch.from_numpy(found[1])


def library() -> Any:
    """Return faiss, or raise an ImportError that says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "search='approximate' needs faiss. Install it with `pip install faiss-cpu`, or set "
            "search='exact'."
        ) from error
    return faiss
