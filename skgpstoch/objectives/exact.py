"""The exact evidence, which equals the bound if the inducing points are the rows themselves.

Let D be the diagonal matrix of noise variances, C = K + D = LLᵀ, and α = C⁻¹(y − m). Every output
has

    log p(y | X) = −½ (y − m)ᵀα − Σᵢ log Lᵢᵢ − n/2·log 2π,
    ∂/∂K = ½(ααᵀ − C⁻¹),   ∂/∂D = diag ∂/∂K,   ∂/∂m = Σᵢ αᵢ.

If Z = X, Titsias' bound equals this evidence, and an evaluation of it takes a third of the time of
(B3). If there are fewer points, training starts at the evidence's optimum for some of the rows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..features.inducing import InducingFeatures
from ..likelihoods.real import Gaussian
from ..maths.exact_solver import ExactSolver
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import NotPositiveDefiniteError, mirror_
from ..models.sparse import SparseModel
from .base import surrogate
from .lbfgs import rejected
from .variational import VariationalObjective


class ExactObjective(VariationalObjective):
    """−log p(y | X) per row, with the kernel, the mean and the noise of a sparse model.

    A row of weight w and noise variance s counts as w rows with the same y. Their likelihood is
    that of their mean, with noise variance s/w, times a constant for the other w − 1 rows.
    """

    is_still = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found = False  # whether any covariance so far was positive definite

    def param_groups(self) -> list[dict[str, Any]]:
        """Return the kernel, mean and noise parameters; the exact evidence has no points."""
        features = cast(InducingFeatures, self.model.features)
        parts = features.covariances, self.model.mean, self.model.likelihood
        return [{"params": [p for part in parts for p in part.parameters() if p.requires_grad]}]

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator | None = None) -> Tensor:
        try:
            loss = -log_posterior(self.model, X, rows) / rows.n_effective
        except NotPositiveDefiniteError:
            if not self.found:
                raise
            return rejected(self.param_groups()[0]["params"])
        self.found = True
        return loss

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss of all rows."""
        return -float(log_posterior(self.model, X, rows)) / rows.n_effective


def log_posterior(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return log p(y | X, θ) + log p(θ), (); without log p(θ) if there is no prior."""
    value, of_prior = log_evidence(model, X, rows), model.neg_log_prior()
    return value if of_prior is None else value - of_prior


def log_evidence(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return log p(y | X), () nats, of rows (N, d) in float64, with a graph unless disabled.

    Raises
    ------
    NotPositiveDefiniteError
        If the covariance of y is not positive definite.
    """
    K = gram_of(model, X)
    likelihood = cast(Gaussian, model.likelihood.of(rows))
    s = likelihood.noise_variance.expand_as(rows.y)  # of one observation, (N, P)
    D = s if rows.weight is None else s / rows.weight[:, None]
    r = rows.y - model.mean.value  # (N, P)
    value, (dK, dD, dr) = gaussian_evidence(K.detach(), D.detach(), r.detach())
    pairs = [(x, dx) for x, dx in ((K, dK), (D, dD), (r, dr)) if x.requires_grad]
    total = surrogate(value, *pairs)
    if rows.weight is None:
        return total
    others = (rows.weight[:, None] - 1.0) * (s.log() + LOG_2PI) + rows.weight.log()[:, None]
    return total - 0.5 * others.sum()


def gram_of(model: SparseModel, X: Tensor) -> Tensor:
    """Return K of all rows, (N, N)."""
    features = cast(InducingFeatures, model.features)
    return features.covariances.gram(*features.embed(X))


@torch.no_grad()
def gaussian_evidence(K: Tensor, D: Tensor, r: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return Σ_p log N(r_p | 0, K + diag(D_p)), () and its derivatives by K, D and r.

    K and its derivative are (N, N); D, r and their derivatives are (N, P).
    """
    value, dK, dD, dr = r.new_zeros(()), torch.zeros_like(K), D.clone(), r.clone()
    for p in range(r.shape[1]):
        C = K.clone()
        C.diagonal().add_(D[:, p])
        solver = ExactSolver.of_(C, r[:, [p]])
        if solver is None:
            raise NotPositiveDefiniteError("The covariance of all rows is not positive definite.")
        value = value + solver.log_density(r[:, [p]])
        G = mirror_(solver.slope_())
        dK += G
        dD[:, p], dr[:, p] = G.diagonal(), -solver.A[:, 0]
    return value, (dK, dD, dr)
