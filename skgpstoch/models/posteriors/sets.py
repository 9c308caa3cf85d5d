"""Rows with their neighbours, whose covariances are one small matrix a row."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...data.arrays import row_blocks
from ...data.devices import block_elements
from ...kernels import Kernel
from ...kernels.sets import nearness, within

LEAST_LAG = math.log(2.0)  # of the noisiest row, for which errors count in the choice


def located(kernel: Kernel, G: Tensor) -> Tensor:
    """Return features in the units in which the kernel falls, (N, e)."""
    return G * nearness(kernel, G.shape[1]).sqrt().to(G)


@torch.no_grad()
def lag(kernel: Kernel, G: Tensor, D: Tensor, w: Tensor) -> Tensor | None:
    """Return log(1 + v/k) of rows less the least, (n,); None if no total variance is twice another.

    What y at x' of noise variance v tells of f at x falls like −log(1 − ρ²/(1 + v/k)), ρ the
    correlation. With ρ² ≈ exp(−r²) it is the same for all rows with equal r² + log(1 + v/k).

    Of rows with weights w (n,) and noise D (n, P), v = wD is that of a single one: heavy rows are
    not preferred, as weights may depend on y. *Measured* where three rows in four are of one kind,
    by weights of 3 and 1: all neighbours were of that kind, and the mean half a deviation off.
    """
    k = kernel.diag(G).clamp_min(torch.finfo(G.dtype).tiny)
    found = torch.log1p(w * D.mean(1) / k)
    found = found - found.min()
    return found if float(found.max()) > LEAST_LAG else None


def set_blocks(n_rows: int, n_of_set: int, device: torch.device) -> Any:
    """Return blocks of rows whose matrices fit into a core's cache."""
    return row_blocks(n_rows, max(1, block_elements(device) // (2 * n_of_set**2)))


class Sets(NamedTuple):
    """Rows with their neighbours: features S (b, q, e), noise D and y (P, b, q).

    A neighbour that is not there has covariance 0 with the others, and y = 0.
    """

    S: Tensor
    D: Tensor
    y: Tensor
    is_there: Tensor | None  # (b, q); None if all are

    @classmethod
    def of(cls, G: Tensor, own: tuple[Tensor, Tensor], all_rows: Any, N: Tensor) -> Sets:
        """Put rows G (b, e), with own D and y (b, P), before their neighbours N (b, m).

        `all_rows` has the features (n, e), D and y (n, P) of the rows that are numbered.
        """
        absent = N < 0
        N = N.clamp_min(0)
        of_neighbours = all_rows[0].index_select(0, N.flatten()).unflatten(0, N.shape)
        S = torch.cat([G[:, None], of_neighbours], 1)
        D, y = (
            torch.cat([of_row[:, None], of_all[N]], 1).permute(2, 0, 1)
            for of_row, of_all in zip(own, all_rows[1:], strict=True)
        )
        if not bool(absent.any()):
            return cls(S, D, y, None)
        is_there = torch.nn.functional.pad(~absent, (1, 0), value=True)
        return cls(S, torch.where(is_there, D, 1.0), torch.where(is_there, y, 0.0), is_there)

    def covariances(self, kernel: Kernel) -> Tensor:
        """Return K of each set, (b, q, q)."""
        K = within(kernel, self.S).expand(-1, self.S.shape[1], self.S.shape[1])
        if self.is_there is None:
            return K
        here = self.is_there.to(K)
        return K * (here[:, :, None] * here[:, None])
