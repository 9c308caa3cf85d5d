"""solver="lbfgs": the bound at the best q(w) of all rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..maths.linalg import NotPositiveDefiniteError
from ..posteriors.blocks import Moments
from ..posteriors.sites import Sites
from .base import surrogate
from .sparse import Solution
from .variational import VariationalObjective

INNER: dict[str, Any] = {"tol": 1e-10, "max_iter": 100}  # as close as L-BFGS needs it


REJECTED = 1e10  # a loss that a line search steps back from


class FullBatchObjective(VariationalObjective):
    """The bound at the best q(w) of all rows, for L-BFGS; in float64, and by blocks of rows."""

    precision: Tensor
    cross: Tensor
    value: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zero = self.model.zero_sites(self.model.features.points.device)
        self.register_buffer("precision", zero.precision)
        self.register_buffer("cross", zero.cross)
        self.register_buffer("value", zero.cross.new_tensor(-math.inf))

    def q(self) -> Moments:
        return self.model.moments(self.present_sites())

    def present_sites(self) -> Sites:
        """Of the best q(w) so far, not of a step that was rejected."""
        return Sites(self.precision, self.cross)

    def keep(self, found: Solution) -> None:
        """Go on from here."""
        self.register_buffer("precision", found.sites.precision)
        self.register_buffer("cross", found.sites.cross)
        self.register_buffer("value", found.value)

    def evaluate(self, X: Tensor, targets: Tensor) -> float:
        """The bound itself, where no rows are held out."""
        trained = targets[:, -1] < 0
        found = self.best(X[trained], targets[trained])
        self.keep(found)
        if bool(trained.all()):
            return -float(found.value) / len(X)
        return super().evaluate(X, targets)

    def best(self, X: Tensor, targets: Tensor) -> Solution:
        """The best q(w), or an error where K_uu is of no use."""
        found = self.model.best(X, targets, self.present_sites(), **INNER)
        failed = self.model.features.failed
        if bool(failed):
            failed.fill_(False)
            raise NotPositiveDefiniteError("The covariance of the inducing points is not finite.")
        return found

    def forward(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        params = [p for p in self.parameters() if p.requires_grad]
        asked = [p.detach().clone() for p in params]
        self.step_end()  # what L-BFGS sees is the bound at the nearest point within bounds
        inside = [p.detach() == before for p, before in zip(params, asked, strict=True)]
        try:
            value, gradients = self.value_and_gradients(X, targets, params)
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            value, gradients = (
                self.value.new_tensor(REJECTED),
                [torch.zeros_like(p) for p in params],
            )
        for p, before in zip(params, asked, strict=True):
            p.data.copy_(before)
        pairs = zip(params, gradients, inside, strict=True)
        return surrogate(value, *((p, gradient * free) for p, gradient, free in pairs))

    def value_and_gradients(
        self, X: Tensor, targets: Tensor, params: list[nn.Parameter]
    ) -> tuple[Tensor, list[Tensor]]:
        """The objective per row at the best q(w), and its gradient by each parameter."""
        found = self.best(X, targets)
        gradients = [torch.zeros_like(p) for p in params]
        for basis, rows in self.model.bases(X, targets) if params else ():
            total, _, _ = self.model.data_term(basis, rows, found.q)
            parts = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
            for sum_, part in zip(gradients, parts, strict=True):
                sum_ -= part / len(X)
        if found.value >= self.value:
            self.keep(found)
        return -found.value / len(X), gradients
