"""solver="lbfgs": find the optimal q(w) of all rows at every evaluation of the bound."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..maths.linalg import NotPositiveDefiniteError
from ..models.sparse import Solution, SparseModel
from ..posteriors.blocks import WeightMoments
from ..posteriors.sites import Sites
from .base import surrogate
from .elbo import expected_score
from .optimal_q import optimal_q
from .variational import VariationalObjective


class Inner(NamedTuple):
    """When the search for the optimal q(w) ends, in every evaluation."""

    tol: float = 1e-10  # nats per row; L-BFGS needs this precision
    max_iter: int = 100


INNER = Inner()
REJECTED = 1e10  # a loss that a line search steps back from


class FullBatchObjective(VariationalObjective):
    """The bound at the optimal q(w) of all rows, for L-BFGS, in float64 and by blocks of rows."""

    is_still = True
    inner = INNER
    precision: Tensor
    cross: Tensor
    value: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zero = self.model.zero_sites()
        self.keep(zero, zero.cross.new_tensor(-math.inf))

    def keep(self, sites: Sites, value: Tensor) -> None:
        """Keep sites, from which the next search starts, and the value of the bound there."""
        self.register_buffer("precision", sites.precision)
        self.register_buffer("cross", sites.cross)
        self.register_buffer("value", value)

    def q(self) -> WeightMoments:
        return self.model.moments(self.present_sites())

    def present_sites(self) -> Sites:
        """Return the sites of the best q(w) so far, not those of a rejected step."""
        return Sites(self.precision, self.cross)

    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss of held-out rows; without these, minus the bound per row."""
        n_held_out = rows.n_held_out
        found = self.best(X[n_held_out:], rows[n_held_out:])
        self.keep(found.sites, found.value)
        if not n_held_out:
            return -float(found.value) / rows.n_effective
        return super().evaluate(X, rows)

    def best(self, X: Tensor, rows: Rows) -> Solution:
        """Return the optimal q(w); raise an error if K_uu is not positive definite."""
        found = optimal_q(self.model, X, rows, self.present_sites(), None, *self.inner)
        self.check_sound()
        return found

    def check_sound(self) -> None:
        """Raise an error if K_uu is not positive definite."""
        if not self.model.features.is_sound():
            self.model.features.forgive()
            raise NotPositiveDefiniteError("The covariance of the inducing points is not finite.")

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        params = [p for p in self.parameters() if p.requires_grad]
        try:
            found = self.best(X, rows)
        except NotPositiveDefiniteError:
            if not bool(self.value.isfinite()):
                raise
            return rejected(params)
        if found.value >= self.value:
            self.keep(found.sites, found.value)
        gradients = gradients_at(self.model, X, rows, found, params)
        loss = -found.value / rows.n_effective
        return surrogate(loss, *zip(params, gradients, strict=True))


def rejected(params: list[nn.Parameter]) -> Tensor:
    """Return a loss that a line search steps back from."""
    loss = torch.tensor(REJECTED, dtype=torch.float64, device=params[0].device)
    return surrogate(loss, *((p, 0.0 * p) for p in params))


def gradients_at(
    model: SparseModel, X: Tensor, rows: Rows, found: Solution, params: list[nn.Parameter]
) -> list[Tensor]:
    """Return the gradients per row at the optimal q(w).

    By the envelope theorem, they are the gradients at a fixed q.
    """
    gradients, n = [torch.zeros_like(p) for p in params], rows.n_effective
    for basis, block in model.bases(X, rows) if params else ():
        total, _, _ = expected_score(model, basis, block, found.q)
        parts = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
        for sum_, part in zip(gradients, parts, strict=True):
            sum_ -= part / n
    of_prior = model.neg_log_prior()
    if of_prior is not None and of_prior.requires_grad:
        parts = torch.autograd.grad(of_prior / n, params, allow_unused=True, materialize_grads=True)
        gradients = [a + b for a, b in zip(gradients, parts, strict=True)]
    return gradients
