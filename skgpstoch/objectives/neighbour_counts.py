"""Learn a kernel, the mean of log-rates and the dispersion of counts.

At a fixed point of expectation propagation the gradient of the evidence by the dispersion α is that
of Σ_i log Z_i, as if cavities did not depend on it. So it goes to where that gradient is 0, or a
limited way towards it, whenever pseudo-targets have followed the kernel.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.negative_binomial import MOST_SHAPE, NegativeBinomial
from ..maths.gaussian import Marginals
from ..models.posteriors.neighbour_counts import NeighbourCountPosterior
from ..models.posteriors.pseudo_targets import PseudoTargetPosterior
from .neighbours import Pair
from .pseudo_targets import PseudoTargetObjective

DISPERSION_ROWS = 1000  # whose cavities say how much counts vary
DISPERSION_STEP, DISPERSION_HALVINGS = 2.0, 6  # of log α, at most, and of the interval about it
DISPERSION_ROUNDS, SETTLED = 20, 0.01  # most of these, and change of log α that ends them


class NeighbourCountObjective(PseudoTargetObjective):
    """−log p of the pseudo-targets of counts given those of neighbours, per row."""

    posterior_type = NeighbourCountPosterior

    def follow(self) -> None:
        super().follow()
        if self.likelihood.learns_dispersion:
            self.disperse()

    def disperse(self) -> None:
        """Let the dispersion follow the pseudo-targets, unless no count tells it."""
        if not bool(cast(Rows, self.rows).y.any()):
            return
        posterior = self.present()
        i = self.spread(min(DISPERSION_ROWS, len(cast(Pair, self.data)[0])))
        q = posterior.cavities(i, posterior.rows_alone.others(i, posterior.n_joint))
        found = likelier(self.likelihood, posterior.rows_at(i), q)
        self.likelihood.log_dispersion.data.copy_(found)

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> PseudoTargetPosterior:
        """Return the posterior; the dispersion is learned here if nothing else was."""
        if not any(p.requires_grad for p in self.parameters()):
            for _ in range(DISPERSION_ROUNDS if self.likelihood.learns_dispersion else 0):
                before = self.likelihood.log_dispersion.clone()
                self.follow()
                if (self.likelihood.log_dispersion - before).abs().max() < SETTLED:
                    break
        return super().solution(X, rows)


def likelier(likelihood: NegativeBinomial, rows: Rows, q: Marginals) -> Tensor:
    """Return log α, (P,), near that of the likelihood, with which rows of f ~ q are likeliest."""
    tried = copy.deepcopy(likelihood).requires_grad_()
    log_alpha = tried.log_dispersion

    def rises(at: Tensor) -> Tensor:
        log_alpha.data.copy_(at)
        with torch.enable_grad():
            value, _, _ = tried.of(rows).predictive_gradients(rows.y, q)
            (slope,) = torch.autograd.grad(rows.weighted(value).sum(), [log_alpha])
        return slope > 0.0

    start = likelihood.log_dispersion.detach()
    low = (start - DISPERSION_STEP).clamp_min(-math.log(MOST_SHAPE))
    high = torch.maximum(low, start + DISPERSION_STEP)
    for _ in range(DISPERSION_HALVINGS):
        middle = 0.5 * (low + high)
        is_below = rises(middle)
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return 0.5 * (low + high)
