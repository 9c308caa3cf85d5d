"""The error of a learned mean, which simple kriging leaves out and ordinary kriging does not.

The constant c is that of generalised least squares, by the ordered density of all rows. So, with
β_i of a row's neighbours before it (Cressie, "Statistics for spatial data", 1993, sec. 3.2),

    var c = 1/Σ_i (1 − Σβ_i)²/(v_i + D_i),

and a prediction, with the β of its own neighbours, is off by (1 − Σβ)(ĉ − c) besides. Where c is
the logarithm of a rate, of which events tell by a gamma distribution, its expectation is
ĉ − var c/2.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from ...maths.conditionals import Conditional
from .base import Posterior
from .sets import set_blocks

P = TypeVar("P", bound=Posterior)  # by neighbours
MEAN_ROWS = 1000  # places of either kind that tell how well the mean is known
TINIEST = torch.finfo(torch.float64).tiny


def apart(c: Conditional) -> Tensor:
    """Return 1 − Σβ, (P, b)."""
    return 1.0 - c.beta.sum(-1)


@torch.no_grad()
def with_mean_error(posterior: P) -> P:
    """Tell a posterior how well its rows say what the mean is, in place.

    The first places, which have few before them, tell most; of the others, some stand for all.
    """
    of_rows: Any = posterior
    places, n = of_rows.places, len(of_rows.places.G)
    every = torch.arange(n, device=places.G.device)
    rest = every[MEAN_ROWS :: 1 + (n - 1) // MEAN_ROWS]
    parts = [(every[:MEAN_ROWS], 1.0), (rest, (n - MEAN_ROWS) / max(1, len(rest)))]
    told = torch.zeros_like(of_rows.mean_variance)
    for i, share in parts:
        N = of_rows.nearest.earlier(i, min(of_rows.n_joint, n - 1))
        for b in set_blocks(len(i), N.shape[1] + 1, i.device):
            c = of_rows.conditional(places.G[i[b]], N[b], 0, places)
            v = (c.var.clamp_min(0.0) + places.D[i[b]].mT).clamp_min(TINIEST)
            told += share * (apart(c).square() / v).sum(1)
    most = of_rows.kernel.diag(places.G[:1]) + of_rows.most_mean_variance
    of_rows.mean_variance = torch.minimum(1.0 / told.clamp_min(TINIEST), most)
    return posterior


def with_mean_error_again(posterior: P, before: Any) -> P:
    """Do the same after a change, if the mean was learned."""
    return with_mean_error(posterior) if bool(before.mean_variance.any()) else posterior
