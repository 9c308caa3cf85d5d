"""Five ways to train a sparse model: they differ in where q(w) comes from.

======================== ===========================================================================
"collapsed", "natural"   the sites are averages over recent minibatches (:mod:`skgpstoch.running`);
                         with "collapsed" without the noise, which then acts at once
"natural", other losses  where S has no closed form: m as above, by Newton's steps, and the roots of
                         S as parameters
"lbfgs"                  the best q of all rows, at every evaluation of the bound
"adam"                   m and the roots of S are parameters like the others
======================== ===========================================================================

Everything else, points, kernel, network, noise, follows gradients: Adam's steps on minibatches, or
L-BFGS on all rows. The closing pass finds the best q of all rows, or the best m where S has no
closed form, whatever the solver was.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor

from ..likelihoods.real import Gaussian
from ..posteriors.blocks import Moments
from ..posteriors.sites import Sites
from .base import Objective
from .sparse import Solution, SparseModel, SparsePosterior

NETWORK_RATE = 0.1  # of the learning rate of kernels and points, for weights of networks


CLOSING: dict[str, Any] = {"tol": 1e-5, "max_iter": 20}  # nats per row; passes over all rows


class VariationalObjective(Objective):
    """Σ loss + β KL of a sparse model, per row: −ELBO (B2), or another.

    Parameters
    ----------
    model : SparseModel
        Features, likelihood, mean and bound.
    n_rows : int
        n.
    weight_decay : float, default=0.0
        Decoupled decay of the network's parameters.
    noise_bounds : tuple of float, default=(1e-8, 1e2)
        The interval that σ² of a Gaussian likelihood is kept in.
    """

    streams: bool = False
    rest_rate: float = 1.0
    n_rows: Tensor

    def __init__(
        self,
        model: SparseModel,
        n_rows: int,
        *,
        weight_decay: float = 0.0,
        noise_bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        super().__init__()
        self.model = model.eval()  # until training begins: layers such as Dropout draw
        self.weight_decay = weight_decay
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        self.register_buffer(
            "n_rows", torch.tensor(float(n_rows), dtype=torch.float64, device="cpu")
        )

    def q(self) -> Moments:
        """The present q(w)."""
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        network = list(self.model.features.network_parameters())
        in_network = {id(p) for p in network}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in in_network]
        of_network = {"params": network, "weight_decay": self.weight_decay, "rate": NETWORK_RATE}
        return [of_network, {"params": rest, "rate": self.rest_rate}]

    def per_row(self, total: Tensor, n_batch: int, kl: Tensor, generator: Any) -> Tensor:
        """The objective over n, from the data term of n_batch rows."""
        penalty = self.model.features.penalty(generator)
        cost = kl if penalty is None else kl + penalty
        return self.model.beta / float(self.n_rows) * cost - total / n_batch

    def step_end(self) -> None:
        self.model.features.kernel.clamp_()
        likelihood = self.model.likelihood
        if isinstance(likelihood, Gaussian):
            likelihood.log_noise.data.clamp_(*self.log_noise_bounds)

    def is_finite(self) -> bool:
        return not bool(self.model.features.failed) and super().is_finite()

    @torch.no_grad()
    def evaluate(self, X: Tensor, targets: Tensor) -> float:
        """Loss of predictions for the held-out rows, which come first; per row."""
        n_held_out = int((targets[:, -1] >= 0).sum())
        q = self.q().to(X.dtype)
        total = 0.0
        for basis, rows in self.model.bases(X[:n_held_out], targets[:n_held_out], X.dtype):
            marginals, _ = self.model.marginals(basis, q, q.products(basis.phi))
            total += float(self.model.loss.of_predictions(rows, marginals).sum())
        return total / n_held_out

    def present_sites(self) -> Sites | None:
        """Where the closing pass starts, for a likelihood that is not Gaussian; None: the prior."""
        return None

    def solution(self, X: Tensor, targets: Tensor) -> SparsePosterior:
        """The best q(w) of all rows, in float64."""
        model = self.closing_model()
        found = model.best(X, targets, self.present_sites(), self.kept(), **CLOSING)
        if model.loss.covariance(model.likelihood) == "prior":
            model, found = model.calibrated(X, targets, found)
        is_bound = model.loss.bounds_evidence and model.beta == 1.0
        elbo = found.value if is_bound else model.evidence_bound(X, targets, found.q)
        return SparsePosterior(model, found, elbo, len(X))

    def kept(self) -> Moments | None:
        """The q(w) whose covariances are learned by gradients, if they are, in float64."""
        how = self.model.loss.covariance(self.model.likelihood)
        return self.q().to(torch.float64) if how == "gradient" else None

    def closing_model(self) -> SparseModel:
        """The model as predictions have it."""
        model = copy.deepcopy(self.model).double().eval()
        model.features.jitter = None
        return model

    def running_solution(self) -> SparsePosterior:
        """The present q(w), for streams."""
        unknown = torch.full((), torch.nan, dtype=torch.float64, device="cpu")
        sites = cast(Sites, self.present_sites())
        found = Solution(self.model.moments(sites, self.kept()), sites, unknown)
        return SparsePosterior(self.closing_model(), found, unknown, int(self.n_rows))

    def start_from(self, posterior: SparsePosterior) -> None:
        """Go on from a fitted q(w)."""
        raise NotImplementedError

    def attach(self, X: Tensor, targets: Tensor) -> None:
        """Go on with other rows, of a stream."""
        self.n_rows += len(X)
