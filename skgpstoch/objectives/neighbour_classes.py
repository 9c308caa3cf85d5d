"""Classes as regressions on pseudo-targets, each with a known noise variance.

A row of class k is a draw of class probabilities π ~ Dir(α), where α is 1 + α_ε for class k and α_ε
for the others. So π_c ∝ Gamma(α_c, 1), which is close to a log-normal variable of the same moments:

    log Gamma(α, 1) ≈ N(ỹ, s²),   s² = log(1 + 1/α),   ỹ = log α − s²/2,   p(c) = softmax(f)_c

(Milios, Camoriano, Michiardi, Rosasco & Filippone, "Dirichlet-based Gaussian processes for
large-scale calibrated classification", NeurIPS 2018). Two classes need the difference of their
latents alone. The process is then that of :mod:`skgpstoch.objectives.neighbours`, and leaves rows
out for nothing: their log loss chooses how confident the probabilities are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..calibration.confidence import AS_FOUND, Confidence, best_confidence
from ..data.rows import Rows
from ..likelihoods.probabilities import ClassLikelihood
from ..maths.gaussian import Marginals
from ..posteriors.neighbours import NeighbourPosterior
from .neighbours import NeighbourObjective

JUDGED_OF_CLASSES = 2000  # left out to judge probabilities
CENTRE_STEPS = 30


class ClassNeighbourObjective(NeighbourObjective):
    """−log p(ỹ_i | ỹ_N(i)) of the pseudo-targets of a minibatch, per row.

    Parameters
    ----------
    *parts
        Those of :class:`~skgpstoch.objectives.neighbours.NeighbourObjective`, for pseudo-targets.
    classes : ClassLikelihood
        p(y | f) of new rows.
    alpha : float
        α_ε.
    **settings
        Further ones of the same class.
    """

    def __init__(
        self, *parts: Any, classes: ClassLikelihood, alpha: float, **settings: Any
    ) -> None:
        super().__init__(*parts, **settings)
        self.classes = classes
        self.alpha = alpha

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return super().minibatch_source(X, pseudo_targets(rows, len(self.mean), self.alpha))

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> NeighbourPosterior:
        """Return the posterior given all rows, as confident as suits rows left out."""
        return self.calibrated(X, rows)[0]

    @torch.no_grad()
    def calibrated(
        self, X: Tensor, rows: Rows, centres: bool = True
    ) -> tuple[NeighbourPosterior, float]:
        """Return the same, and the log loss of rows left out, in nats per row."""
        posterior = self.posterior(X, pseudo_targets(rows, len(self.mean), self.alpha))
        posterior.likelihood = self.classes
        if centres:
            centre_(posterior, shares(rows, max(2, len(self.mean))))
        return posterior, calibrate_(posterior, rows, self.tails is not None and self.tails.scales)


def pseudo_targets(rows: Rows, n_latents: int, alpha: float) -> Rows:
    """Return rows with ỹ and s² for class codes y: (N, C), or (N, 1) for two classes."""
    n_classes = max(2, n_latents)
    of_class = F.one_hot(rows.y[:, 0].long(), n_classes).to(rows.y)
    s2 = (1.0 / (alpha + of_class)).log1p()
    y = (alpha + of_class).log() - 0.5 * s2
    if n_latents == 1:
        y, s2 = y[:, 1:] - y[:, :1], s2.sum(1, keepdim=True)
    return Rows(y, weight=rows.weight, noise=s2, whole=rows.whole)


def calibrate_(posterior: NeighbourPosterior, rows: Rows, may_change: bool) -> float:
    """Set how confident predictions are by the classes of rows left out, (N, 1).

    Return their log loss, in nats per row.
    """
    i = torch.arange(0, len(rows), math.ceil(len(rows) / JUDGED_OF_CLASSES), device=rows.y.device)
    judged, (mean, var) = rows[i].to(torch.float64), posterior.left_out(i)
    weight = judged.own_weight / len(i)

    def loss(choice: Confidence) -> float:
        q = Marginals(choice.slope * mean[None], choice.spread * var[None])
        log_p = posterior.likelihood.log_predictive(judged.y, q)
        return -float(judged.weighted(log_p).sum()) / weight

    found = best_confidence(loss) if may_change else AS_FOUND
    posterior.scale_(found.spread)
    for part in (posterior.residual, posterior.constant):
        part.mul_(found.slope)
    return loss(found) / len(i)


def shares(rows: Rows, n_classes: int) -> Tensor:
    """Return the share of each class, (C,)."""
    return rows.mean(F.one_hot(rows.y[:, 0].long(), n_classes).double())


def centre_(posterior: NeighbourPosterior, share: Tensor) -> None:
    """Set the constants so that far from all rows the classes have these shares, (C,)."""
    constant, of_two = posterior.constant, len(posterior.constant) == 1
    variance = posterior.kernel.diag(posterior.features[:1]).expand_as(constant)
    target = (share[1:] if of_two else share).log()
    rate = (1.0 + math.pi / 8.0 * variance).sqrt()
    c = torch.logit(share[1:]) if of_two else target - target.mean()
    c = c * rate
    for _ in range(CENTRE_STEPS):
        q = Marginals(c[None, None], variance[None, None])
        log_p = posterior.likelihood.moments(q).mean[0, 0].log()
        c = c + rate * (target - log_p)
    posterior.residual += constant - c
    posterior.constant = c
