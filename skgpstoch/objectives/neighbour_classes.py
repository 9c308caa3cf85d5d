"""Learn a kernel for classes; the mean c follows it, so that far from rows classes have shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..kernels import Kernel
from ..likelihoods.probabilities import ClassLikelihood
from ..maths.gaussian import Marginals
from ..models.calibration.held_out import Predicted
from ..models.posteriors.neighbour_classes import NeighbourClassPosterior, mean_of_shares
from ..models.posteriors.pseudo_targets import prior_variance
from .pseudo_targets import PseudoTargetObjective


class NeighbourClassObjective(PseudoTargetObjective):
    """−log p of the pseudo-targets of classes given those of neighbours, per row.

    Parameters are those of :class:`~skgpstoch.objectives.pseudo_targets.PseudoTargetObjective`, but
    in place of the mean `level` (P,) is the mean with which the classes have their shares, if f
    does not vary.
    """

    of_shares: Tensor
    posterior_type = NeighbourClassPosterior

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: ClassLikelihood,
        level: Tensor,
        X: Tensor,
        rows: Rows,
        **options: Any,
    ) -> None:
        with torch.no_grad():
            var = prior_variance(kernel, network(X).double())
        mean = mean_of_shares(likelihood, level, var)
        super().__init__(kernel, network, likelihood, mean, X, rows, **options)
        self.mean.requires_grad_(False)
        self.register_buffer("of_shares", level)

    @property
    def level(self) -> Tensor:
        return self.of_shares

    def predicted(self, rows: Rows, q: Marginals, likelihood: Any) -> Predicted:
        return Predicted.of_classes(rows.y, q, likelihood)
