"""Σ loss + β KL of a variational model: the base class of the solvers' objectives.

The solvers differ in how they find q(w):

======================== ===========================================================================
"collapsed", "natural"   :mod:`.natural`: from averages of the sites of recent minibatches; with
                         "collapsed" without the noise, so a change of it takes effect at once
"natural", other losses  if S has no closed form: m as above, by Newton steps; the roots of S are
                         parameters
"lbfgs"                  :mod:`.lbfgs`: the optimal q of all rows, at every evaluation of the bound
"adam"                   :mod:`.adam`: m and the roots of S are parameters
======================== ===========================================================================

Everything else (points, kernel, network, noise) is trained by gradients: by Adam's steps on
minibatches, or by L-BFGS on all rows. After any solver, the closing pass finds the optimal q for
all rows, or the optimal m if S has no closed form. The features may be those of inducing points, or
the finite features of a network or a kernel.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..losses import LogLoss
from ..models.calibration.square_loss import calibrated
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import Sites
from ..models.sparse import Solution, SparseModel, SparsePosterior
from .base import Objective
from .optimal_q import evidence_bound, evidence_error, optimal_q

NETWORK_RATE = 0.1  # learning rate of networks' weights, over that of kernels and points
NOISE_ROWS = 500  # of a stream, whose errors tell the noise
LEAST_KEPT = 0.25  # of the noise before, however small errors are
CLOSING: dict[str, Any] = {"tol": 1e-5, "max_iter": 20}  # nats per row; passes over all rows


class VariationalObjective(Objective):
    """Σ loss + β KL of a variational model, per row: −ELBO (B2) for the usual loss.

    Parameters
    ----------
    model : SparseModel
        Features, likelihood, mean and loss.
    n_rows : float
        Total weight n of all rows.
    mean_weight : float, default=1.0
        Mean weight of a row.
    weight_decay : float, default=0.0
        Decoupled weight decay of the network's parameters.
    noise_bounds : tuple of float, default=(1e-8, 1e2)
        Interval in which σ² of a Gaussian likelihood is kept.
    """

    network_rate = NETWORK_RATE

    def __init__(
        self,
        model: SparseModel,
        n_rows: float,
        *,
        mean_weight: float = 1.0,
        weight_decay: float = 0.0,
        noise_bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        super().__init__()
        self.model = model.eval()  # until training begins, so that layers such as Dropout are off
        self.mean_weight = mean_weight
        self.weight_decay = weight_decay
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        self.n_rows = float(n_rows)

    def get_extra_state(self) -> dict[str, float]:
        return {"n_rows": self.n_rows}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.n_rows = state["n_rows"]

    def q(self) -> WeightMoments:
        """Return the present q(w)."""
        raise NotImplementedError

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        generator = rows.own_generator(generator)
        data_term, kl = self.terms(X, rows, generator)
        return self.neg_elbo(data_term, kl, rows, generator)

    def terms(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return Σᵢ E_q[log p(yᵢ | fᵢ)] of a minibatch and KL[q(w) ‖ p(w)], each (), in nats.

        A solver is how q(w) is found. Another loss has minus its sum in the first place.
        """
        raise NotImplementedError

    def neg_elbo(self, data_term: Tensor, kl: Tensor, rows: Rows, generator: Any) -> Tensor:
        """Return −ELBO per row: β KL/n minus the data term's mean; penalties count like the KL."""
        penalty = self.model.features.penalty(generator)
        cost = self.model.beta * (kl if penalty is None else kl + penalty)
        if (of_prior := self.model.neg_log_prior()) is not None:
            cost = cost + of_prior
        return cost / self.n_rows - rows.as_mean(data_term) / self.counts_for(rows.n_all)

    def counts_for(self, n_batch: int) -> float:
        """Return the mean total weight of a minibatch of this size."""
        return n_batch * self.mean_weight

    def step_end(self) -> None:
        self.model.clamp_(self.log_noise_bounds)

    def failures(self) -> list[Tensor]:
        return self.model.features.failures()

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Return the loss per row of predictions for the held-out rows, which come first."""
        held_out = rows[: rows.n_held_out]
        q, total = self.q().to(X.dtype), 0.0
        for marginals, block, likelihood in self.model.predictions(X[: len(held_out)], held_out, q):
            losses = self.model.loss.of_predictions(block.y, likelihood, marginals)
            total += float(block.weighted(losses).sum())
        return total / held_out.n_effective

    def present_sites(self) -> Sites | None:
        """Return where the closing pass starts, if it iterates; None is the prior."""
        return None

    def solution(self, X: Tensor, rows: Rows) -> SparsePosterior:
        """Return the posterior with the optimal q(w) of all rows, in float64."""
        model = self.model.for_predictions()
        found = optimal_q(model, X, rows, self.present_sites(), self.kept(), **CLOSING)
        if model.covariance == "prior":
            model, found = calibrated(model, X, rows, found)
        elbo = found.value if model.is_bound else evidence_bound(model, X, rows, found.q)
        error = evidence_error(model, X, rows, found.q)
        return model.posterior(found, elbo, rows.n_effective, error)

    def kept(self) -> WeightMoments | None:
        """Return the present q(w), in float64, if its covariances are learned by gradients."""
        return self.q().to(torch.float64) if self.model.covariance == "gradient" else None

    # ---- streams -----------------------------------------------------------------------------

    def running_solution(self) -> SparsePosterior:
        """Return the posterior of the present q(w), for streams."""
        unknown = torch.full((), torch.nan, dtype=torch.float64, device="cpu")
        sites = cast(Sites, self.present_sites())
        found = Solution(self.model.moments(sites, self.kept()), sites, unknown)
        return self.model.for_predictions().posterior(found, unknown, self.n_rows)

    def start_from(self, posterior: SparsePosterior) -> None:
        """Continue from a fitted q(w)."""
        raise NotImplementedError

    def attach(self, X: Tensor, rows: Rows) -> None:
        """Continue with the next rows of a stream, whose errors tell the noise."""
        self.learn_noise(X, rows, self.n_rows)
        self.n_rows += rows.n_effective
        self.mean_weight = rows.mean_weight

    def end_beginning(self, X: Tensor, rows: Rows) -> None:
        self.learn_noise(X, rows, 0.0)

    @torch.no_grad()
    def learn_noise(self, X: Tensor, rows: Rows, n_before: float) -> None:
        """Move σ² to that of the last `NOISE_ROWS` rows of a stream, with these as the last.

        Gradients would take thousands of rows. Before it has learned the rows, errors of q(f) have
        E(y − μ)² = v + σ², and drift, which intervals must hold as well: a step of Fisher scoring.
        For the first rows, which it has learned, this is EM's step σ² = E(y − f)².
        """
        model, noise = self.model, self.model.likelihood
        if not isinstance(noise, Gaussian) or not noise.log_noise.requires_grad:
            return
        if isinstance(model.loss, LogLoss) or model.scale is not None or rows.noise is not None:
            return  # v is what the loss makes of it, or noise depends on the row
        var_of_noise = noise.noise_variance.detach()
        total, weights = torch.zeros_like(var_of_noise), torch.zeros_like(var_of_noise)
        for q, block, _ in model.predictions(X, rows, self.q().to(X.dtype)):
            mean, var = q.mixture_moments()
            if n_before:
                shown, weight = (block.y - mean).square() - var, (var + var_of_noise) ** -2
            else:
                shown, weight = (block.y - mean).square() + var, torch.ones_like(var)
            total += block.weighted(weight * shown).sum(0)
            weights += block.weighted(weight).sum(0)
        n = rows.n_effective
        share = n / max(n, min(n_before + n, NOISE_ROWS * rows.mean_weight))
        found = var_of_noise.lerp(total / weights, share).maximum(LEAST_KEPT * var_of_noise)
        noise.log_noise.copy_(found.log().clamp(*self.log_noise_bounds))
        self.follow_noise(noise.noise_variance / var_of_noise)

    def follow_noise(self, factor: Tensor) -> None:
        """Adapt what else depends on σ², (P,), which has become so many times as large."""
