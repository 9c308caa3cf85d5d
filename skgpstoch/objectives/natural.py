"""Find q(w) from running averages over minibatches: natural-gradient and Newton steps.

With step size γ and n rows, a minibatch of b rows with features P moves the averages of the sites
(:mod:`skgpstoch.models.posteriors.sites`) by

    G ← (1 − γ)G + γ(n/b) Pᵀdiag(κ)P,      c ← (1 − γ)c + γ(n/b) Pᵀ(κ(μ − mean) + α),

and q(w) follows from them. Features change meanwhile, and the averages contain features from up to
a window ago. Therefore the gradient of all other parameters is taken at the mean m after the
update with the present minibatch.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from ..data.rows import Rows
from ..maths.averages import SEASONED, window_rate
from ..maths.gaussian import Marginals
from ..maths.linalg import inverse_cholesky, mirror_, to_diagonal
from ..models.features.base import Basis
from ..models.features.inducing import InducingFeatures
from ..models.posteriors.blocks import (
    VariationalWeights,
    WeightMoments,
    free_roots,
    identities,
    make_roots,
    moments_of,
)
from ..models.posteriors.sites import Sites, conjugate_sites, optimal_mean
from ..models.sparse import SparsePosterior
from .base import evaluating
from .elbo import expected_score, expected_score_at, score_at, sites_of, weighted_score
from .gaussian_rows import RowSums, has_row_sums, row_sums, term_of_features, term_of_points
from .variational import VariationalObjective

SITES_WINDOW = 5  # rows that averages of sites go back over, in units of D
LEAST_WINDOW = 2500
PROFILE_RATE = 0.3  # factor of the learning rate if S is learned by gradients; not for networks
MOST_STEP = 0.2  # largest natural-gradient step with which hyper-parameters can keep pace


class RunningObjective(VariationalObjective):
    """q(w) from running averages of the sites of minibatches.

    Parameters
    ----------
    *args, **kwargs
        See :class:`VariationalObjective`.
    conjugate : bool
        Whether to average PᵀP and Pᵀy, without the noise (solver="collapsed").
    averaging : float or "auto", default="auto"
        Weight of the present minibatch; "auto" averages over about 5 D rows, at least 2,500.
    """

    gram: Tensor
    cross: Tensor
    mean: Tensor
    kl: Tensor
    failed: Tensor

    def __init__(
        self, *args: Any, conjugate: bool, averaging: float | str = "auto", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.conjugate = conjugate
        self.averaging = averaging
        self.n_steps = 0
        zero, prior = self.model.prior()
        self.register_buffer("gram", zero.precision[:1] if conjugate else zero.precision)  # per row
        self.register_buffer("cross", zero.cross)
        self.register_buffer("failed", torch.zeros_like(zero.cross[0, 0], dtype=torch.bool))
        self.keep(prior)

    def get_extra_state(self) -> dict[str, float]:
        return {**super().get_extra_state(), "n_steps": self.n_steps}

    def set_extra_state(self, state: dict[str, float]) -> None:
        super().set_extra_state(state)
        self.n_steps = int(state["n_steps"])
        if self.n_steps < 0:  # in an edited checkpoint
            raise ValueError(f"n_steps is {self.n_steps}")

    def rate(self, n_batch: int) -> float:
        """Return γ of the next step, with so many rows or draws; first steps average all so far."""
        if self.averaging != "auto":
            return float(self.averaging)
        n = self.n_rows / self.mean_weight  # number of rows, whatever their weights
        n = math.inf if self.model.has_draws else n  # there are always new draws
        window = min(max(SITES_WINDOW * self.model.features.n_features, LEAST_WINDOW), n)
        first = 1.0 if self.conjugate else 2.0
        rate = max(window_rate(n_batch, window), 1.0 / (self.n_steps + first))
        return rate if self.conjugate else min(rate, MOST_STEP)

    def stream_rate(self, batch_size: int) -> float:
        return self.rate(batch_size)

    def keep(self, q: WeightMoments) -> None:
        """Make q the present q(w)."""
        self.register_buffer("mean", q.mean.contiguous())  # as in a checkpoint
        self.register_buffer("kl", q.kl)
        for b, S in enumerate(q.covariances):
            self.register_buffer(f"covariance_{b}", S)

    def q(self) -> WeightMoments:
        sizes = self.model.features.blocks
        covariances = tuple(getattr(self, f"covariance_{b}") for b in range(len(sizes)))
        return WeightMoments(self.mean, covariances, sizes, self.kl)

    def terms(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.has_row_sums and not self.predicts_otherwise:
            return self.after_averaging(X, rows), self.kl
        basis, seen = self.model.basis(X, rows, generator)
        if self.conjugate:
            self.average_conjugate(self.predicting(X, basis), seen)
            total, _, _ = expected_score(self.model, basis, seen, self.q(), generator)
        else:
            total = self.after_natural_step(self.predicting(X, basis), basis, seen, generator)
        return total, self.kl

    @property
    def has_row_sums(self) -> bool:
        """Whether the data term follows from the sums over rows that the averages need anyway."""
        return self.conjugate and has_row_sums(self.model)

    def after_averaging(self, X: Tensor, rows: Rows) -> Tensor:
        """Return the data term at the q(w) updated by these rows."""
        model = self.model

        def averaged(phi: Tensor, offset: Tensor) -> tuple[RowSums, WeightMoments]:
            sums = row_sums(phi, rows, offset)
            self.average(Sites(sums.gram[None], sums.cross), rows)
            return sums, self.q()

        is_of_points = type(model.drawless_features) is InducingFeatures
        of = term_of_points if is_of_points else term_of_features
        return of(model, X, rows, averaged)

    def after_natural_step(
        self, seen: Basis, basis: Basis, rows: Rows, generator: torch.Generator
    ) -> Tensor:
        """Make a step, and return the data term at the new mean and the old covariances.

        The old mean belongs to features that have changed since. With it, hyper-parameters would
        learn not to use the features. The first step starts from a constant f, because with a log
        link a wide prior would give rates that are far off.
        """
        q, model = self.q(), self.model
        with torch.no_grad():
            products = q.products(seen.phi)
            if self.n_steps:
                _, term, marginals = expected_score(model, seen, rows, q, generator, products)
            else:
                level = model.likelihood.initial_mean(rows)
                term, marginals = score_at(model, seen, rows, level, generator)
            self.average(sites_of(self.model, seen, term, marginals), rows, seen.n_samples)
        q = q._replace(mean=self.mean)
        known = products if seen is basis else None
        return expected_score(self.model, basis, rows, q, generator, known)[0]

    def predicting(self, X: Tensor, basis: Basis) -> Basis:
        """Return the basis that a stream predicts with.

        It differs from the basis in training if a user's module has layers such as BatchNorm.
        """
        if not self.predicts_otherwise:
            return basis
        with torch.no_grad(), evaluating(self.model):
            return self.model.features.basis(X)

    def present_sites(self) -> Sites:
        n = self.n_rows
        if self.conjugate:
            return conjugate_sites(self.gram[0], self.cross, self.model.site_noise / n)
        return Sites(n * self.gram, n * self.cross)

    @torch.no_grad()
    def start_from(self, posterior: SparsePosterior) -> None:
        posterior, n = copy.deepcopy(posterior).to(self.gram.device), posterior.n_rows
        sites = posterior.sites
        noise = self.model.site_noise if self.conjugate else torch.ones_like(sites.cross[0])
        self.gram.copy_((sites.precision * noise[:, None, None] / n)[: len(self.gram)])
        self.cross.copy_(sites.cross * noise / n)
        self.solve()
        self.n_steps = SEASONED

    def follow_noise(self, factor: Tensor) -> None:
        if not self.conjugate:  # the averages contain 1/σ²
            self.gram.div_(factor[:, None, None])
            self.cross.div_(factor)

    @torch.no_grad()
    def average_conjugate(self, basis: Basis, rows: Rows) -> None:
        """Update the averages of PᵀP and Pᵀ(y − mean) with the present minibatch."""
        phi = basis.phi.detach()
        left = rows.weighted(phi).mT
        cross = left @ (rows.y - self.model.offset(basis)).to(phi)
        self.average(Sites((left @ phi)[None], cross), rows, basis.n_samples)

    @torch.no_grad()
    def average(self, sites: Sites, rows: Rows, n_samples: int = 1) -> None:
        """Make a natural-gradient step, from rows that each occur `n_samples` times."""
        rate, b = self.rate(rows.n_all), self.counts_for(rows.n_all // n_samples)
        gram, cross = of_all(sites, rows)
        self.gram.mul_(1.0 - rate).add_(gram, alpha=rate / b)
        self.cross.mul_(1.0 - rate).add_(cross, alpha=rate / b)
        self.solve()

    def solve(self) -> None:
        """Find the q(w) of the present averages."""
        sites, dtype = self.present_sites(), self.model.dtype
        self.keep(self.model.moments(sites, inverse_factor=self.inverse_factor, dtype=dtype))
        self.n_steps += 1

    def inverse_factor(self, A: Tensor) -> Tensor:
        """Return L⁻¹ for A = LLᵀ; only record a failure, which the loop checks after the epoch."""
        R, failed = inverse_cholesky(A)
        self.failed |= failed.any()
        return R

    def failures(self) -> list[Tensor]:
        return [*super().failures(), self.failed]


def of_all(sites: Sites, rows: Rows) -> Sites:
    """Return the sum of the sites of all ranks; only lower triangles are exchanged."""
    if rows.group.size == 1:
        return sites
    gram, cross = (each.clone() for each in sites)
    rows.total(*to_diagonal(gram), cross)
    return Sites(mirror_(gram), cross)


class ProfiledObjective(RunningObjective):
    """Learn m from running averages and R_b by gradients, for losses without a closed form of S."""

    learns_q = True
    rest_rate = PROFILE_RATE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, conjugate=False, **kwargs)
        model, P = self.model, len(self.model.mean.value)
        self.roots = make_roots(
            identities(model.features.blocks, model.mean.value), P, model.has_prior_covariance
        )

    def weights(self) -> VariationalWeights:
        """Return q(w)."""
        roots = free_roots(self.roots, self.model.has_prior_covariance)
        return VariationalWeights(self.mean, roots, self.model.features.blocks)

    def q(self) -> WeightMoments:
        return moments_of(self.weights())

    def terms(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        basis, seen = self.model.basis(X, rows, generator)
        weights, residual = self.weights(), basis.residual()
        q = weights.marginals(basis.phi, residual)
        self.newton_step(self.predicting(X, basis), basis, seen, q, generator)
        q = q._replace(mean=(basis.phi @ self.mean + self.model.offset(basis))[None])
        total, _ = expected_score_at(self.model, basis, seen, q, residual, generator)
        return total, self.weights().kl().sum()

    @torch.no_grad()
    def newton_step(
        self, seen: Basis, basis: Basis, rows: Rows, q: Marginals, generator: torch.Generator
    ) -> None:
        """Update the averages with these rows and solve for m; q(f) comes without mean offset."""
        residual = seen.residual()
        q = q if seen is basis else self.weights().marginals(seen.phi, residual)
        q = q._replace(mean=q.mean + self.model.offset(seen))
        term = weighted_score(self.model, seen, rows, q, residual, generator)
        self.average(sites_of(self.model, seen, term, q), rows, seen.n_samples)

    def keep(self, q: WeightMoments) -> None:
        self.register_buffer("mean", q.mean)

    def solve(self) -> None:
        sizes, dtype = self.model.features.blocks, self.model.dtype
        mean, _ = optimal_mean(self.present_sites(), sizes, self.inverse_factor)
        self.register_buffer("mean", mean.to(dtype).contiguous())
        self.n_steps += 1

    @torch.no_grad()
    def start_from(self, posterior: SparsePosterior) -> None:
        super().start_from(posterior)
        for ours, fitted in zip(self.roots, posterior.weights.roots, strict=True):
            if fitted is not None:
                ours.copy_(fitted)
