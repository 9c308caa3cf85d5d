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
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise
from ..losses import LogLoss
from ..maths.gaussian import Marginals
from ..models.calibration.square_loss import calibrated
from ..models.posteriors.blocks import WeightMoments
from ..models.posteriors.sites import Sites
from ..models.sparse import Solution, SparseModel, SparsePosterior
from .base import Objective
from .closing import FULL
from .optimal_q import evidence_bound, evidence_error, optimal_q

NETWORK_RATE = 0.1  # learning rate of networks' weights, over that of kernels and points
NOISE_ROWS = 500  # of a stream, whose errors tell the noise
TINY = 1e-30  # variance of what is known
LOG_FACTORS = [0.5 * k for k in range(-4, 5)]  # by which the scale of the noise may change
FINE_STEPS = (-0.1, 0.0, 0.1)
TELLING = 0.1  # rows for each earlier one, up to which they change the noise little
CLOSING_TOLERANCE = 1e-5  # nats per row
MOST_PASSES, FEW_PASSES = 20, 3  # over all rows; after an interrupt


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
        is_full = self.closing == FULL
        found = optimal_q(
            *(model, X, rows, self.present_sites(), self.kept(), CLOSING_TOLERANCE),
            max_iter=MOST_PASSES if is_full else FEW_PASSES,
            tries_again=is_full,
        )
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
        """Scale the noise to the errors at these rows of a stream, after `n_before` others.

        Gradients would take thousands of rows. Before it has learned the rows, the density of
        their y says how large the noise is, and drift, which intervals must hold as well. For the
        first rows, which it has learned, use E(y − f)², EM's step. Earlier rows, of which the last
        `NOISE_ROWS` count, each add the information 2 on log t that a normal error has.
        """
        model, noise = self.model, self.model.likelihood
        if not isinstance(noise, AdditiveNoise) or isinstance(model.loss, LogLoss):
            return  # v is what that loss makes of it
        if not all(getattr(noise, name).requires_grad for name in noise.scale_names):
            return
        q, zero, n = self.q().to(X.dtype), torch.zeros_like(noise.noise_variance), rows.n_effective
        earlier = max(min(n_before + n, NOISE_ROWS * rows.mean_weight) - n, 0.0)

        def totals(log_t: list[Tensor]) -> Tensor:  # of (P,) each: (T, P)
            found = torch.stack([-earlier * x.square() for x in log_t])
            for q_of_f, block, likelihood in model.predictions(X, rows, q):
                seen = (block.y, q_of_f) if n_before else errors_of_f(block.y, q_of_f)
                for k, x in enumerate(log_t):
                    log_p = cast(AdditiveNoise, likelihood).in_units(x.exp()).log_components(*seen)
                    log_p = torch.logsumexp(log_p, 0) - math.log(len(log_p))
                    found[k] += block.weighted(log_p).sum(0)
            return found

        start = zero
        if n > TELLING * earlier:
            start = peak(coarse := [zero + x for x in LOG_FACTORS], totals(coarse))
        log_t = peak(fine := [start + x for x in FINE_STEPS], totals(fine)).nan_to_num(0.0)
        noise.load_state_dict(noise.in_units(log_t.exp()).state_dict())
        model.clamp_(self.log_noise_bounds)
        self.follow_noise((2.0 * log_t).exp())

    def follow_noise(self, factor: Tensor) -> None:
        """Adapt what else depends on σ², (P,), which has become so many times as large."""


def errors_of_f(y: Tensor, q: Marginals) -> tuple[Tensor, Marginals]:
    """Return y at the distance √E(y − f)² from the mean of q(f), and that mean without variance."""
    mean, var = q.mixture_moments()
    error = y - mean
    moved = mean + torch.copysign((error.square() + var).sqrt(), error)
    return moved, Marginals(mean[None], torch.full_like(var, TINY)[None])


def peak(x: Sequence[Tensor], f: Tensor) -> Tensor:
    """Return where columns of f (T, P) at evenly spaced x are largest, by a parabola at the top."""
    k = f.argmax(0).clamp(1, len(x) - 2)
    left, top, right = (f.gather(0, (k + step)[None])[0] for step in (-1, 0, 1))
    shift = 0.5 * (left - right) / (left - 2.0 * top + right).clamp_max(-TINY)
    return x[0] + (k + shift.clamp(-1.0, 1.0)) * (x[1] - x[0])
