"""Classes and counts by nearest neighbours: a Gaussian observation stands for the y of each row.

Given the pseudo-targets of its neighbours, f at a row is N(μ_i, v_i), its cavity. With

    Z_i = ∫ p(y_i | f) N(f | μ_i, v_i) df,   g = ∂ log Z_i/∂μ_i,   s = g² − 2 ∂ log Z_i/∂v_i,

the pseudo-target ỹ_i of variance D_i that matches mean and variance of p(y_i | f) N(f | μ_i, v_i)
is

    D_i = 1/s − v_i,   ỹ_i = μ_i + g/s,                                                         (E1)

or, by the mean m = μ_i + v_i g and the variance V = v_i − v_i² s that it matches,

    1/D_i = 1/V − 1/v_i,   ỹ_i = m + (m − μ_i) D_i/v_i,

and the evidence is

    log p(y) ≈ log N(ỹ | c, K + D) + Σ_i [log Z_i − log N(ỹ_i | μ_i, v_i + D_i)]                (E2)

Minka, "Expectation propagation for approximate Bayesian inference", UAI 2001; Rasmussen & Williams,
sec. 3.6. Everything else is regression. With several functions, moments are matched function by
function.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple, Self, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...kernels import Kernel, scaled
from ...likelihoods.base import Likelihood
from ...likelihoods.products import product_moments
from ...maths.gaussian import Marginals, log_density
from ...maths.nearest import Nearest
from .base import Posterior
from .mean_error import with_mean_error_again
from .neighbours import TINIEST, NeighbourPosterior, appended, forget_targets
from .places import Places

NEW_SHARE = 0.7  # of a new pseudo-target, beside the one before: sweeps change all rows at once
SETTLING_SWEEPS = 6

_rows_alone: WeakKeyDictionary[nn.Module, Nearest] = WeakKeyDictionary()  # by posterior


class PseudoTargets(NamedTuple):
    """ỹ and D, each (N, P)."""

    mean: Tensor
    var: Tensor

    def towards(self, other: PseudoTargets, share: float) -> PseudoTargets:
        """Return the Gaussian whose natural parameters are a mean of these and others."""
        precision = share / other.var + (1.0 - share) / self.var
        cross = share * other.mean / other.var + (1.0 - share) * self.mean / self.var
        return PseudoTargets(cross / precision, 1.0 / precision)

    def rows(self, weight: Tensor | None) -> Rows:
        """Return them as observations whose errors are known."""
        return Rows(self.mean, weight, noise=self.var)


@torch.no_grad()
def matched(
    likelihood: Likelihood, rows: Rows, cavity: Marginals, limits: tuple[float, float]
) -> PseudoTargets:
    """Return the pseudo-targets (E1) of rows, for a cavity (1, N, P), and D within limits."""
    mean, var = cavity.mean[0], cavity.var[0]
    m, V = product_moments(likelihood.of(rows), rows.y, cavity)
    # Averages over nodes and rounding may leave a variance V that no Gaussian matches.
    precision = (1.0 / V.clamp_min(TINIEST) - 1.0 / var).clamp_min(TINIEST)
    D = (1.0 / precision).clamp(*limits)
    return PseudoTargets(m + (m - mean) * D / var, D)


def copies_beside(cavity: Marginals, targets: PseudoTargets, weight: Tensor) -> Marginals:
    """Return the cavity of one of w copies of each row, given w − 1 others as well."""
    others = (weight - 1.0).clamp_min(0.0)[:, None]
    mean, var = cavity
    ratio = others * var / targets.var
    return Marginals((mean + ratio * targets.mean) / (1.0 + ratio), var / (1.0 + ratio))


def prior_variance(kernel: Kernel, G: Tensor) -> Tensor:
    """Return the mean variance of f at rows with features G, ()."""
    return kernel.diag(G).mean()


class PseudoTargetPosterior(NeighbourPosterior):
    """p(f | ỹ_N) at each row, with a pseudo-target for the y of each training row.

    Parameters
    ----------
    kernel, network, X, n_neighbors, n_joint, is_approximate
        Those of :class:`~skgpstoch.models.posteriors.neighbours.NeighbourPosterior`.
    likelihood : Likelihood
        p(y | f).
    level : Tensor of shape (P,)
        What the mean c depends on, besides the variance of f; c itself by default.
    rows : Rows
        y, weights and exposures.
    targets : PseudoTargets
        Where sweeps begin.
    """

    noise_counts = False  # pseudo-targets move
    limits: ClassVar[tuple[float, float]]  # of variances of pseudo-targets
    outcome: Tensor
    level: Tensor
    stretch: Tensor
    link_mean: Tensor

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: Likelihood,
        level: Tensor,
        X: Tensor,
        rows: Rows,
        targets: PseudoTargets,
        n_neighbors: int,
        n_joint: int,
        is_approximate: bool = False,
    ) -> None:
        mean = self.mean_of(likelihood, level, prior_variance(kernel, network(X)))
        parts = kernel, network, cast(Any, likelihood), mean, X, targets.rows(rows.weight)
        super().__init__(*parts, torch.zeros_like(mean), n_neighbors, n_joint, is_approximate)
        one = torch.ones((), dtype=mean.dtype, device=mean.device)
        given = {
            "level": level,
            "stretch": one,
            "link_mean": mean,
            **self.told_by(likelihood, rows),
        }
        for name, value in given.items():
            self.register_buffer(name, value.detach().clone())

    @classmethod
    def mean_of(cls, likelihood: Any, level: Tensor, var: Tensor) -> Tensor:
        """Return the mean c, (P,), if the variance of f is `var`, ()."""
        return level

    @classmethod
    def told_by(cls, likelihood: Any, rows: Rows) -> dict[str, Tensor]:
        """Return what is kept of rows besides weights, by the names of buffers."""
        return {"outcome": rows.y}

    @classmethod
    def first_targets(
        cls, likelihood: Likelihood, rows: Rows, mean: Tensor, var: Tensor
    ) -> PseudoTargets:
        """Return the pseudo-targets of rows that have no neighbours, with f ~ N(mean, var)."""
        shape = (1, len(rows), len(mean))
        prior = Marginals(mean.expand(shape), var.expand(shape))
        return matched(likelihood, rows, prior, cls.limits)

    @property
    def rows_alone(self) -> Nearest:
        """Finds neighbours among rows, whose pseudo-targets follow each other also at one place."""
        found = _rows_alone.get(self)
        if found is None or found.rows.device != self.residual.device:
            rows = self.located(self.features), None
            found = _rows_alone[self] = Nearest(*rows, self.is_approximate)
        return found

    @property
    def y(self) -> Tensor:
        """Counts, or codes of classes, of the training rows, (N, ·)."""
        return self.outcome

    def rows_at(self, i: Tensor) -> Rows:
        """Return the training rows i."""
        return Rows(self.outcome[i], self.weight[i])

    def targets_of(self, i: Tensor) -> PseudoTargets:
        """Return the pseudo-targets of rows i, for f as the likelihood sees it."""
        mean = self.residual[i] / self.stretch + self.link_mean
        return PseudoTargets(mean, self.noise[i] * self.weight[i, None] / self.stretch.square())

    def cavities(self, i: Tensor, N: Tensor) -> Marginals:
        """Return f at rows i given rows N, as the likelihood sees it: (1, b, P)."""
        alone = Places.of_rows(self.features, self.noise, self.residual, self.weight)
        found = self.unstretched(self.given(self.features[i], N, places=alone))
        return copies_beside(found, self.targets_of(i), self.weight[i])

    def unstretched(self, given: Any) -> Marginals:
        """Return f as the likelihood sees it: (1, b, P)."""
        mean = (given.mean - self.constant) / self.stretch + self.link_mean
        return Marginals(mean[None], given.var[None] / self.stretch.square())

    @torch.no_grad()
    def settle_(self, i: Tensor | None = None, n_sweeps: int = SETTLING_SWEEPS) -> Self:
        """Match the pseudo-targets of rows i, or of all, to those of their neighbours."""
        forget_targets(self)
        i = self.row_numbers if i is None else i
        N = self.rows_alone.others(i, self.n_joint)
        for _ in range(n_sweeps):
            found = [
                self.matched_at(i[block], N[block]) for block in row_blocks(len(i), BLOCK_ROWS)
            ]
            new = PseudoTargets(*(torch.cat(part) for part in zip(*found, strict=True)))
            self.residual[i], noise = self.as_residuals(new)
            self.noise[i] = noise / self.weight[i, None]
        return self

    def as_residuals(self, targets: PseudoTargets) -> tuple[Tensor, Tensor]:
        """Return ỹ − c and D of f as predictions see it."""
        return (targets.mean - self.link_mean) * self.stretch, targets.var * self.stretch.square()

    def matched_at(self, i: Tensor, N: Tensor) -> PseudoTargets:
        """Return the next pseudo-targets of rows i."""
        found = matched(self.likelihood, self.rows_at(i), self.cavities(i, N), self.limits)
        return self.targets_of(i).towards(found, NEW_SHARE)

    @property
    def row_numbers(self) -> Tensor:
        """0, …, N − 1."""
        return torch.arange(len(self.residual), device=self.residual.device)

    @torch.no_grad()
    def stretch_(self, factor: float) -> Self:
        """Multiply f − c, in place, and choose c anew."""
        forget_targets(self)
        self.kernel = scaled(self.kernel, factor**2)
        self.stretch, self.residual = factor * self.stretch, factor * self.residual
        self.noise = factor**2 * self.noise
        var = prior_variance(self.kernel, self.features)
        self.constant = self.mean_of(self.likelihood, self.level, var)
        self.mean_variance = factor**2 * self.mean_variance
        return self

    @torch.no_grad()
    def refit(self, X: Tensor, rows: Rows) -> PseudoTargetPosterior:
        kernel = scaled(self.kernel, float(self.stretch) ** -2)
        var = prior_variance(kernel, self.network(X))
        mean = self.mean_of(self.likelihood, self.level, var)
        targets = self.first_targets(self.likelihood, rows, mean, var)
        parts = kernel, self.network, self.likelihood, self.level, X, rows, targets
        search = self.n_neighbors, self.n_joint, self.is_approximate
        other = type(self)(*parts, *search).settle_()
        return with_mean_error_again(other, self)

    def extended(self, X: Tensor, rows: Rows) -> Self:
        cavity = self.unstretched(self.given_nearest(self.network(X)))
        found = matched(self.likelihood, rows, cavity, self.limits)
        residual, noise = self.as_residuals(found)
        new = PseudoTargets(self.constant + residual, noise).rows(rows.weight)
        other = appended(self, X, new)
        for name, value in self.told_by(self.likelihood, rows).items():
            setattr(other, name, torch.cat([getattr(self, name), value]))
        added = other.row_numbers[len(self.outcome) :]
        beside = other.rows_alone.others(added, self.n_joint)
        other.settle_(torch.cat([added, beside.flatten()]).unique())
        return with_mean_error_again(other, self)

    def without(self, i: Tensor) -> Self:
        """Return the posterior given all rows but some, of which pseudo-targets know nothing."""
        other = copy.copy(self)
        stays = torch.ones_like(self.weight, dtype=torch.bool)
        stays[i] = False
        of_rows = ["inputs", "features", "residual", "noise", "weight"]
        of_rows += self.told_by(self.likelihood, self.rows_at(i))
        other._buffers = self._buffers | {name: getattr(self, name)[stays] for name in of_rows}
        other._n_rows = self.n_rows - float(self.weight[i].sum())
        near = other.rows_alone.of(self.located(self.features[i]), self.n_joint)
        return other.settle_(near.flatten().unique())

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        return Posterior.sample_y(self, X, rows, n_samples, generator)

    # ---- the evidence ------------------------------------------------------------------------

    def joint(self) -> Tensor:
        """Compute (E2), (1,)."""
        i = self.row_numbers
        gain = self.gain(i, self.rows_alone.others(i, self.n_joint)).sum()
        # Pseudo-targets are densities of f in its own units, which are stretched.
        unit = self.weight.sum() * len(self.level) * self.stretch.log()
        return (super().joint().sum() + gain + unit)[None]

    def gain(self, i: Tensor, N: Tensor) -> Tensor:
        """Return log Z_i − log N(ỹ_i | μ_i, v_i + D_i), times weights, of rows i given rows N."""
        q, targets, rows = self.cavities(i, N), self.targets_of(i), self.rows_at(i)
        log_z = self.likelihood.of(rows).log_predictive(rows.y, q)
        beside = log_density(targets.mean, q.mean[0], q.var[0] + targets.var).sum(1)
        return self.weight[i] * (log_z - beside)
