"""Running averages over minibatches, and the rates at which they forget."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.groups import ALONE, Group
from .linear_regression import Statistics
from .modules import Module

SEASONED = 1_000_000
"""Steps that running averages count as when they start from what is known of all rows."""


def window_rate(batch_size: float, window: float) -> float:
    """b_t of averages over `window` rows: b(2 − b_t)/b_t = window, and no less than a batch."""
    return 2.0 * batch_size / (max(window, batch_size) + batch_size)


class RunningStatistics(Module):
    """Running averages of the statistics of minibatches, per row, in float64.

    Parameters
    ----------
    n_members, n_features, n_outputs : int
        K, D and P.
    averaging : float, "auto" or "theory"
        b_t: "auto" averages over `window` rows, b(2 − b_t)/b_t = window, if weights do not change,
        and else gives a minibatch a share by its weights; "theory" is t^(−1/2), for which SCGD's
        convergence is proved; a float is constant. The first steps average over all that has been
        seen.
    window : float
        Rows.
    """

    gram: Tensor  # G̃/n, (K, D, D)
    cross: Tensor  # c̃/n, (K, D, P)
    square: Tensor  # (K, P)
    rows_per_weight = 1.0  # of those averaged so far; absent in older files

    def __init__(
        self, n_members: int, n_features: int, n_outputs: int, averaging: float | str, window: float
    ) -> None:
        super().__init__()
        self.averaging = averaging
        self.window = window
        self.n_steps = 0
        self.inverse_rows = 0.0  # Σ (weight of a row)², the inverse of their effective number
        shapes = {
            "gram": (n_members, n_features, n_features),
            "cross": (n_members, n_features, n_outputs),
            "square": (n_members, n_outputs),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64, device="cpu"))

    def get_extra_state(self) -> tuple[int, float, float]:
        return self.n_steps, self.inverse_rows, self.rows_per_weight

    def set_extra_state(self, state: tuple[int, float, float]) -> None:
        self.n_steps, self.inverse_rows, self.rows_per_weight = (*state, 1.0)[:3]

    def start_from(self, statistics: Statistics, mean_weight: float = 1.0) -> None:
        """Go on as if these had been averaged so far, of rows of this weight."""
        n = statistics.n_rows[:, None]
        self.gram.copy_(statistics.gram / n[..., None])
        self.cross.copy_(statistics.cross / n[..., None])
        self.square.copy_(statistics.square / n)
        self.n_steps = SEASONED
        self.inverse_rows = 1.0 / float(statistics.n_rows.mean())
        self.rows_per_weight = 1.0 / mean_weight

    def rate(self, batch_size: float, mean_weight: float = 1.0) -> float:
        """b_t of the next step; of a window, rows have shares by their weights."""
        if self.averaging == "theory":
            return (self.n_steps + 1.0) ** -0.5
        if self.averaging != "auto":
            return max(float(self.averaging), 1.0 / (self.n_steps + 1.0))
        rate = max(window_rate(batch_size, self.window), 1.0 / (self.n_steps + 1.0))
        weighted = rate * mean_weight * self.rows_per_weight
        return weighted / (1.0 - rate + weighted)

    def update(
        self,
        Z: Tensor,
        Y: Tensor,
        n_seen: Tensor,
        n_batch: int,
        mean_weight: float = 1.0,
        group: Group = ALONE,
    ) -> None:
        """One step: features Z (K, ·, D) and targets Y (K, ·, P) of a minibatch.

        Rows that do not count are zero; the others count for n_seen (K,). The rate depends on
        the n_batch rows of the whole group, each of which counts for `mean_weight`: a row that
        counts twice says no more of other rows.
        """
        rate = self.rate(n_batch, mean_weight)
        kept = (1.0 - rate) / group.size  # all of it, summed over the group
        share = (rate / n_seen)[:, None, None]
        Z, Y = Z.double(), Y.double()
        weighted = (Z * share).mT
        self.gram.baddbmm_(weighted, Z, beta=kept)
        self.cross.baddbmm_(weighted, Y, beta=kept)
        self.square.mul_(kept).add_((Y * Y).sum(1) * share[..., 0])
        group.sum_(self.gram, self.cross, self.square)
        self.inverse_rows = (1.0 - rate) ** 2 * self.inverse_rows + rate**2 / (
            n_batch * mean_weight
        )
        self.rows_per_weight = (1.0 - rate) * self.rows_per_weight + rate / mean_weight
        self.n_steps += 1

    def total(self, n_rows: Tensor) -> Statistics:
        """Estimates of the sums over n_rows (K,) rows."""
        averages = Statistics(self.gram, self.cross, self.square, torch.ones_like(n_rows))
        return averages.scaled_to(n_rows)
