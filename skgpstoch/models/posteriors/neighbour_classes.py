"""Classes by nearest neighbours: a Gaussian observation stands for the class of each row.

Given the pseudo-targets of its neighbours, f at a row is N(μ_i, v_i), its cavity. With

    Z_i = ∫ p(y_i | f) N(f | μ_i, v_i) df,   g = ∂ log Z_i/∂μ_i,   s = g² − 2 ∂ log Z_i/∂v_i,

the pseudo-target ỹ_i of variance D_i that matches mean and variance of p(y_i | f) N(f | μ_i, v_i)
is

    D_i = 1/s − v_i,   ỹ_i = μ_i + g/s,                                                         (E1)

and the evidence is

    log p(y) ≈ log N(ỹ | c, K + D) + Σ_i [log Z_i − log N(ỹ_i | μ_i, v_i + D_i)]                (E2)

Minka, "Expectation propagation for approximate Bayesian inference", UAI 2001; Rasmussen & Williams,
sec. 3.6. Everything else is regression. With more than two classes, each has a function of its own,
and moments are matched function by function.

The mean c is such that far from all rows the classes have their shares.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...kernels import Kernel, scaled
from ...likelihoods.probabilities import ClassLikelihood
from ...maths.gaussian import Marginals, log_density
from ...maths.nearest import Nearest
from .neighbours import NeighbourPosterior, forget_targets
from .places import Places

TARGET_VARIANCES = (1e-2, 1e6)  # of pseudo-targets
NEW_SHARE = 0.7  # of a new pseudo-target, beside the one before: sweeps change all rows at once
SETTLING_SWEEPS = 6
MOST_SHARE_STEPS, SHARE_TOL = 500, 1e-9  # of c

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


def matched(likelihood: ClassLikelihood, y: Tensor, cavity: Marginals) -> PseudoTargets:
    """Return the pseudo-targets (E1) of codes y (N, 1), for a cavity (1, N, P)."""
    mean, var = cavity.mean[0], cavity.var[0]
    _, g, h = likelihood.predictive_gradients(y, cavity)
    # Averages over nodes and rounding may leave no curvature, or more than any Gaussian has.
    s = (g.square() - 2.0 * h).clamp_min(torch.finfo(g.dtype).tiny)
    D = (1.0 / s - var).clamp(*TARGET_VARIANCES)
    return PseudoTargets(mean + g * (D + var), D)


def copies_beside(cavity: Marginals, targets: PseudoTargets, weight: Tensor) -> Marginals:
    """Return the cavity of one of w copies of each row, given w − 1 others as well."""
    others = (weight - 1.0).clamp_min(0.0)[:, None]
    mean, var = cavity
    ratio = others * var / targets.var
    return Marginals((mean + ratio * targets.mean) / (1.0 + ratio), var / (1.0 + ratio))


@torch.no_grad()
def mean_of_shares(likelihood: ClassLikelihood, level: Tensor, var: Tensor) -> Tensor:
    """Return the mean c (P,) with which f ~ N(c, var) has the classes' shares.

    `level` (P,) is the mean that has them if the variance is 0.
    """

    def level_of(c: Tensor) -> Tensor:
        log_p = likelihood.log_means(Marginals(c[None, None], var.expand_as(c)[None, None]))[0, 0]
        if len(c) > 1:
            return log_p - log_p.mean()
        return log_p - torch.log(-torch.expm1(log_p))

    c, step, before = level, torch.sqrt(1.0 + math.pi / 8.0 * var), math.inf
    for _ in range(MOST_SHARE_STEPS):
        short = level - level_of(c)
        size = float(short.abs().max())
        if size < SHARE_TOL:
            break
        if size > before:
            step = (0.5 * step).clamp_min(1.0)
        c, before = c + step * short, size
    return c


def prior_variance(kernel: Kernel, G: Tensor) -> Tensor:
    """Return the mean variance of f at rows with features G, ()."""
    return kernel.diag(G).mean()


def first_targets(
    likelihood: ClassLikelihood, codes: Tensor, mean: Tensor, var: Tensor
) -> PseudoTargets:
    """Return the pseudo-targets of codes (N, 1) of rows that have no neighbours."""
    shape = (1, len(codes), len(mean))
    return matched(likelihood, codes, Marginals(mean.expand(shape), var.expand(shape)))


class NeighbourClassPosterior(NeighbourPosterior):
    """p(f | ỹ_N) at each row, with a pseudo-target for the class of each training row.

    Parameters
    ----------
    kernel, network, X, n_neighbors, n_joint
        Those of :class:`~skgpstoch.models.posteriors.neighbours.NeighbourPosterior`.
    likelihood : ClassLikelihood
        p(y | f) of a class.
    level : Tensor of shape (P,)
        The mean with which the classes have their shares, if f does not vary.
    rows : Rows
        Codes of the classes, and weights.
    targets : PseudoTargets
        Where sweeps begin.
    """

    likelihood: ClassLikelihood
    noise_counts = False  # pseudo-targets move
    codes: Tensor
    level: Tensor
    stretch: Tensor
    link_mean: Tensor

    def __init__(
        self,
        kernel: Kernel,
        network: nn.Module,
        likelihood: ClassLikelihood,
        level: Tensor,
        X: Tensor,
        rows: Rows,
        targets: PseudoTargets,
        n_neighbors: int,
        n_joint: int,
    ) -> None:
        mean = mean_of_shares(likelihood, level, prior_variance(kernel, network(X)))
        parts = kernel, network, cast(Any, likelihood), mean, X, targets.rows(rows.weight)
        super().__init__(*parts, torch.zeros_like(mean), n_neighbors, n_joint)
        one = torch.ones((), dtype=mean.dtype, device=mean.device)
        given = {"codes": rows.y, "level": level, "stretch": one, "link_mean": mean}
        for name, value in given.items():
            self.register_buffer(name, value.detach().clone())

    @property
    def rows_alone(self) -> Nearest:
        """Finds neighbours among rows, whose pseudo-targets follow each other also at one place."""
        found = _rows_alone.get(self)
        if found is None or found.rows.device != self.residual.device:
            found = _rows_alone[self] = Nearest(self.located(self.features))
        return found

    @property
    def y(self) -> Tensor:
        """The codes of the training rows' classes, (N, 1)."""
        return self.codes

    def targets_of(self, i: Tensor) -> PseudoTargets:
        """Return the pseudo-targets of rows i, for f as the likelihood sees it."""
        mean = self.residual[i] / self.stretch + self.link_mean
        return PseudoTargets(mean, self.noise[i] * self.weight[i, None] / self.stretch.square())

    def cavities(self, i: Tensor, N: Tensor) -> Marginals:
        """Return f at rows i given rows N, as the likelihood sees it: (1, b, P)."""
        alone = Places.of_rows(self.features, self.noise, self.residual, self.weight)
        mean, var = self.given(self.features[i], N, places=alone)[:2]
        mean = (mean - self.constant) / self.stretch + self.link_mean
        cavity = Marginals(mean[None], var[None] / self.stretch.square())
        return copies_beside(cavity, self.targets_of(i), self.weight[i])

    @torch.no_grad()
    def settle_(
        self, i: Tensor | None = None, n_sweeps: int = SETTLING_SWEEPS
    ) -> NeighbourClassPosterior:
        """Match the pseudo-targets of rows i, or of all, to those of their neighbours."""
        forget_targets(self)
        i = self.row_numbers if i is None else i
        N = self.rows_alone.others(i, self.n_joint)
        for _ in range(n_sweeps):
            found = [
                self.matched_at(i[block], N[block]) for block in row_blocks(len(i), BLOCK_ROWS)
            ]
            new = PseudoTargets(*(torch.cat(part) for part in zip(*found, strict=True)))
            self.residual[i] = (new.mean - self.link_mean) * self.stretch
            self.noise[i] = new.var * self.stretch.square() / self.weight[i, None]
        return self

    def matched_at(self, i: Tensor, N: Tensor) -> PseudoTargets:
        """Return the next pseudo-targets of rows i."""
        found = matched(self.likelihood, self.codes[i], self.cavities(i, N))
        return self.targets_of(i).towards(found, NEW_SHARE)

    @property
    def row_numbers(self) -> Tensor:
        """0, …, N − 1."""
        return torch.arange(len(self.residual), device=self.residual.device)

    @torch.no_grad()
    def stretch_(self, factor: float) -> NeighbourClassPosterior:
        """Multiply f − c, in place; c changes so that the classes keep their shares."""
        forget_targets(self)
        self.kernel = scaled(self.kernel, factor**2)
        self.stretch, self.residual = factor * self.stretch, factor * self.residual
        self.noise = factor**2 * self.noise
        var = prior_variance(self.kernel, self.features)
        self.constant = mean_of_shares(self.likelihood, self.level, var)
        return self

    def extended(self, X: Tensor, rows: Rows) -> NeighbourClassPosterior:
        mean, var = self.marginals(X)
        cavity = Marginals((mean - self.constant) / self.stretch, var / self.stretch.square())
        found = matched(self.likelihood, rows.y, cavity._replace(mean=cavity.mean + self.link_mean))
        y = self.constant + (found.mean - self.link_mean) * self.stretch
        new = PseudoTargets(y, found.var * self.stretch.square()).rows(rows.weight)
        other = super().extended(X, new)
        other.codes = torch.cat([self.codes, rows.y])
        added = other.row_numbers[len(self.codes) :]
        beside = other.rows_alone.others(added, self.n_joint)
        return other.settle_(torch.cat([added, beside.flatten()]).unique())

    def without(self, i: Tensor) -> NeighbourClassPosterior:
        """Return the posterior given all rows but some, of which pseudo-targets know nothing."""
        other = copy.copy(self)
        stays = torch.ones_like(self.weight, dtype=torch.bool)
        stays[i] = False
        of_rows = ("inputs", "features", "residual", "noise", "weight", "codes")
        other._buffers = self._buffers | {name: getattr(self, name)[stays] for name in of_rows}
        other._n_rows = self.n_rows - float(self.weight[i].sum())
        near = other.rows_alone.of(self.located(self.features[i]), self.n_joint)
        return other.settle_(near.flatten().unique())

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
        q, targets = self.cavities(i, N), self.targets_of(i)
        log_z = self.likelihood.log_predictive(self.codes[i], q)
        beside = log_density(targets.mean, q.mean[0], q.var[0] + targets.var).sum(1)
        return self.weight[i] * (log_z - beside)
