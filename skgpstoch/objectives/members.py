"""Networks with variational last layers, as they are trained: all members at the same time.

The members k = 1 … K have features of their own, q_k(w) = N(m_k, S_k) and, for noise that depends
on the inputs, a_k. Each minimises (B2), (C1) or (C2) over the rows outside its own fold,

    Σᵢ loss(yᵢ, N(φ_kᵢᵀm_k, φ_kᵢᵀS_kφ_kᵢ)) + β KL[N(m_k, S_k) ‖ N(0, I)],

by Adam, features included. Some further rows are held out from all members. How they are judged and
closed is in :mod:`skgpstoch.objectives.ensemble`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data.rows import UNSEEN, Rows
from ..likelihoods.by_row import ScaledByRow
from ..likelihoods.counts import Poisson
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..maths.gaussian import Marginals
from ..models.sparse import RowScale, SparseModel
from .base import Objective
from .elbo import traced
from .variational import NETWORK_RATE

START_ROOT = 0.03  # root of S at the start, for features of order 1
MOST_FULL = 512  # most features for a full S, with a single latent function
# Up to so many rows, S of learned features is diagonal, which saves a quarter of the time. Over 21
# fits the log density was the same, but on one table with outliers the mean had larger errors.
MOST_DIAGONAL = 4000
MANY_ROWS = 100_000  # from so many rows on, S is diagonal, and m stays as trained
# Networks follow the logarithm of a rate to some per cent in training. Counts that tell it to 1e-5
# made gradients explode, and a third of the networks predicted a constant.
LARGEST_COUNT = 1e4
LEAST_SEEN = 0.1  # share of the rows, outside held-out groups, that each member needs
TOO_FEW_GROUPS = (
    "groups must leave each network a tenth of the rows to be trained on when some groups are held "
    "out, but few groups have nearly all of the rows. Split these, or set groups=None."
)


class Members(Objective):
    """Σ loss + β KL of every member, per row; no member sees the rows of its own fold.

    Parameters
    ----------
    model : SparseModel
        Features of K members; the likelihood, mean and loss that they share; and their a_k
        (K, D, P), if the scale of the noise is a function of the features.
    rows : Rows
        All rows. Rows of fold −2, which no member sees, come first, then the folds.
    weight_decay : float, default=0.0
        Decoupled decay of the network's parameters.
    scale_rate : float, default=1.0
        Learning rate of the input scales, over that of the networks.
    noise_bounds : tuple of float, default=(1e-8, 1e2)
        Interval in which σ² of a Gaussian likelihood is kept.
    """

    network_rate = NETWORK_RATE
    rest_rate = NETWORK_RATE
    folds: Tensor
    barred: Tensor | None

    def __init__(
        self,
        model: SparseModel,
        rows: Rows,
        *,
        weight_decay: float = 0.0,
        scale_rate: float = 1.0,
        noise_bounds: tuple[float, float] = (1e-8, 1e2),
    ) -> None:
        super().__init__()
        self.model = model.eval()
        features = model.features
        K, D, P = features.n_members, features.n_features, len(model.mean.value)
        like = model.mean.value.detach()
        self.means = nn.Parameter(like.new_zeros(K, D, P))
        learns_features = any(p.requires_grad for p in features.network_parameters())
        affords_full = not learns_features or rows.n_all > MOST_DIAGONAL
        self.is_full = P == 1 and D <= MOST_FULL and rows.n_all < MANY_ROWS and affords_full
        root = like.new_full((D,), START_ROOT)
        root = root.diag() if self.is_full else root
        self.roots = nn.Parameter(root.repeat(K, P, *[1] * root.ndim), model.covariance != "prior")
        self.learns_noise = any(p.requires_grad for p in model.likelihood.parameters())
        self.has_all_rows = len(rows) == rows.n_all  # before training, and for the calibration
        self.weight_decay = weight_decay
        self.scale_rate = scale_rate
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        device = rows.y.device
        self.register_buffer("folds", torch.arange(K, device=device)[:, None])
        self.register_buffer("barred", barred_groups(rows, self.folds), persistent=False)
        self.count_unit = None
        if isinstance(model.likelihood, Poisson):
            unit = rows.mean(rows.y) / LARGEST_COUNT
            self.count_unit = unit.clamp_min(1.0) if bool((unit > 1.0).any()) else None
        self.n_rows = self.seen(rows).double().sum(1) + rows.beyond  # (K,)
        least = LEAST_SEEN * rows.n_effective
        if self.barred is not None and bool((self.n_rows < least).any()):
            raise ValueError(TOO_FEW_GROUPS)
        self.row_share = self.n_rows / max(rows.n_all - rows.n_unseen, 1)

    def seen(self, rows: Rows) -> Tensor:
        """Return the weight that each row has in the training of each member, (K, N)."""
        weight = rows.y.new_ones(len(self.folds), len(rows))
        if rows.fold is not None:
            weight = ((rows.fold != self.folds) & (rows.fold != UNSEEN)).to(weight)
        if self.barred is not None and rows.cluster is not None:
            weight = weight * ~self.barred[:, rows.cluster]
        return weight if rows.weight is None else weight * rows.weight

    @property
    def training_unit(self) -> Tensor | None:
        """The unit of counts in training; None if that is 1."""
        return None if self.model.likelihood.learns_dispersion else self.count_unit

    def coarse(self, rows: Rows) -> Rows:
        """Return counts as they are trained on: in a unit in which they tell the rate less well."""
        if self.training_unit is None:
            return rows
        unit = self.training_unit.to(rows.y)
        exposure = torch.ones_like(rows.y) if rows.exposure is None else rows.exposure
        return replace(rows, y=rows.y / unit, exposure=exposure / unit)

    def param_groups(self) -> list[dict[str, Any]]:
        """Return groups for the optimiser.

        They are scales of inputs, the dispersion of counts, networks' parameters, and all others.
        """
        network, rest = super().param_groups()
        is_scale = {id(p) for name, p in self.named_parameters() if name.endswith("input_scale")}
        scales = [p for p in network["params"] if id(p) in is_scale]
        network["params"] = [p for p in network["params"] if id(p) not in is_scale]
        first = [{"params": scales, "rate": self.scale_rate * self.network_rate}]
        if self.model.likelihood.learns_dispersion:
            own = {id(p) for p in self.model.likelihood.parameters()}
            first += [{"params": [p for p in rest["params"] if id(p) in own]}]
            rest["params"] = [p for p in rest["params"] if id(p) not in own]
        return [*first, network, rest]

    def present_roots(self) -> Tensor:
        """Return R_k, triangular (K, P, D, D) or diagonal (K, P, D)."""
        return self.roots.tril() if self.is_full else self.roots

    def functions(self, phi: Tensor, roots: Tensor) -> tuple[Marginals, Tensor | None]:
        """Return q(f), (K, N, P), for features (K, N, D), and the function of the noise or None."""
        scale, P = self.model.scale, self.means.shape[2]
        weights = self.means if scale is None else torch.cat([self.means, scale.weights], 2)
        mean, latent = (phi @ weights).tensor_split([P], 2)  # one product for both
        mean = mean + self.model.mean.value.to(phi)
        if self.model.covariance == "prior":
            var = phi.square().sum(-1, keepdim=True)
        elif self.is_full:
            var = (phi[:, None] @ roots).square().sum(-1).mT  # (K, N, P)
        else:  # sums of squares as a product, which passes over memory half as often
            var = phi.square() @ roots.square().mT
        return Marginals(mean, var.expand_as(mean)), None if scale is None else latent

    def kl(self, roots: Tensor) -> Tensor:
        """Return KL[q_k(w) ‖ N(0, I)] of every member, (K,), plus the penalty of noise weights."""
        kl = 0.5 * self.means.square().sum((1, 2))
        if self.model.covariance != "prior":
            diagonal = roots.diagonal(dim1=-2, dim2=-1) if self.is_full else roots
            log_det = 2.0 * diagonal.abs().log().sum((1, 2))
            kl = kl + 0.5 * (roots.square().flatten(1).sum(1) - diagonal[0].numel() - log_det)
        if (scale := self.model.scale) is not None:
            kl = kl + 0.5 * scale.weights.square().sum((1, 2))
        return kl

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        phi, roots, beta = self.model.features.members(X), self.present_roots(), self.model.beta
        q, latent = self.functions(phi, roots)
        q = Marginals(*(part.flatten(0, 1)[None] for part in q))  # members are rows of their own
        rows = self.coarse(rows)
        columns = Rows(rows.y, exposure=rows.exposure, noise=rows.noise)
        each = columns.map(lambda column: column.repeat(len(phi), 1))
        likelihood = self.model.likelihood.of(each)
        if latent is not None:
            scale = RowScale.of(latent).flatten(0, 1)
            likelihood = cast(ScaledByRow, likelihood).scaled(scale)
        seen = Marginals(q.mean.detach(), q.var.detach())
        none = q.mean.new_zeros(q.mean.shape[1])
        generator = rows.own_generator(generator)
        term = self.model.loss.expected_score(each.y, likelihood, seen, none, generator)
        weight = self.seen(rows) / self.row_share.to(phi)[:, None]  # (K, N)
        total = traced(term.weighted(Rows(each.y, weight.flatten())), q, none)
        data_term = rows.as_mean(total) / rows.n_all
        return beta * (self.kl(roots) / self.n_rows.to(phi)).sum() - data_term

    def step_end(self) -> None:
        self.model.features.clamp_()
        likelihood, (low, high) = self.model.likelihood, self.log_noise_bounds
        if isinstance(likelihood, Gaussian):
            likelihood.log_noise.data.clamp_(low, high)
        elif isinstance(likelihood, AdditiveNoise):
            scale = cast(nn.Parameter, likelihood.log_scale)
            if scale.requires_grad:
                scale.data.clamp_(0.5 * low, 0.5 * high)

    @torch.no_grad()
    def blind(self, X: Tensor, rows: Rows) -> tuple[Rows, Marginals, Tensor | None]:
        """Predict the rows of each fold by the member that has not seen them.

        Returns
        -------
        rows : Rows
            The rows of all folds, one fold after another.
        q : Marginals of shape (1, N, P)
            Predictions of f.
        latent : Tensor of shape (1, N, P) or None
            Function of the noise, if the noise depends on the inputs.
        """
        K = len(self.folds)
        held_out = slice(rows.n_unseen, rows.n_unseen + rows.n_held_out)
        own = X[held_out] if K == 1 else X[held_out].unflatten(0, (K, -1))  # (K, N/K, d)
        phi = self.model.features.members(own)
        each, latent = self.functions(phi, self.present_roots())
        q = Marginals(*(part.flatten(0, 1)[None] for part in each))
        return rows[held_out], q, None if latent is None else latent.flatten(0, 1)[None]

    def unseen(self, X: Tensor, rows: Rows) -> tuple[Rows, Marginals, Tensor | None]:
        """Predict rows by all members, (K, N, P); the result is as that of :meth:`blind`."""
        return rows, *self.functions(self.model.features.members(X), self.present_roots())


def barred_groups(rows: Rows, folds: Tensor) -> Tensor | None:
    """Return which groups each member may not see, (K, G): those with rows held out from it."""
    if rows.cluster is None or rows.fold is None:
        return None
    held_out = (rows.fold == folds) | (rows.fold == UNSEEN)  # (K, N)
    barred = torch.zeros(len(folds), int(rows.cluster.max()) + 1, device=folds.device)
    return barred.index_add_(1, rows.cluster, held_out.to(barred)) > 0.0
