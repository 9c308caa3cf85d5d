"""The marginal likelihood of a finite-dimensional kernel as a training objective.

What SCGD, MINIMAX and BSGD share: ensembles and their folds, the noise, the choice of the best
iterate, and the closing exact pass.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..features.base import FeatureMap
from ..features.fourier import KernelFeatures
from ..features.network import NetworkFeatures
from ..maths.averages import RunningStatistics
from ..maths.linear_regression import (
    HeldOut,
    Statistics,
    calibrate,
    exact_statistics,
    most_likely,
    negative_log_evidence,
    predict_held_out,
    ridge_grid,
    spectrum,
)
from ..posteriors.conjugate import ConjugatePosterior, ConjugateWeights
from .base import Objective

JITTER = 1e-10  # of the mean diagonal of G, added to λ


WINDOW = 20  # rows averaged by the running statistics, in units of D


EVALUATION_ROWS = 100  # for the statistics that held-out rows are predicted from, in units of D


MIN_EVALUATION_ROWS = 10_000


NETWORK_SCALES = (1.0, 0.3, 0.1, 0.03, 0.0)


CHOSEN = 2  # degrees of freedom that held-out rows have lost: λ and the iterate are their choice


CALIBRATION_TOLERANCE = 2.5  # nats of all held-out rows, but at most 0.01 for each


class FiniteObjective(Objective):
    """NLML per row (A1) of y = φ(x)ᵀw + ε, each member of φ blind to the rows of its own fold.

    Targets carry the row's fold in their last column: member k is trained on the rows whose fold is
    not k, and judged by those whose fold it is. Without validation rows every fold is −1.

    Parameters
    ----------
    features : FeatureMap
        φ, K members of D features.
    targets : Tensor of shape (N, P + 1)
        y and the fold of every row.
    noise : {"learned", "profiled", "validation", "fixed"}
        How σ² follows the features. For "profiled" and "validation" λ does as well, otherwise it
        is σ².
    noise_variance : float
        Initial σ².
    noise_bounds : tuple of float
        The interval that σ² is kept in.
    weight_decay : float
        Decoupled decay of the network's parameters.
    averaging : float, "auto" or "theory", default="auto"
        Of the running statistics, see :class:`RunningStatistics`.
    window_rows : float, default=0
        Rows that they average over at least, where there are as many; 20 D else.
    """

    streams: bool = False  # whether there is no closing pass over all rows

    log_noise: Tensor
    log_ridge: Tensor
    closing_noise: Tensor
    closing_ridge: Tensor
    n_rows: Tensor
    folds: Tensor
    failed: Tensor
    share: Tensor

    def __init__(
        self,
        features: FeatureMap,
        targets: Tensor,
        *,
        noise: str,
        noise_variance: float,
        noise_bounds: tuple[float, float],
        weight_decay: float,
        averaging: float | str = "auto",
        window_rows: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = features
        self.noise = noise
        self.noise_bounds = noise_bounds
        self.log_noise_bounds = (math.log(noise_bounds[0]), math.log(noise_bounds[1]))
        self.weight_decay = weight_decay
        self.dtype = targets.dtype
        K, P = features.n_members, targets.shape[1] - 1
        log_noise = torch.full(
            (P,), math.log(noise_variance), dtype=torch.float64, device=targets.device
        )
        self.log_noise = nn.Parameter(log_noise, requires_grad=noise == "learned")
        for name in ("log_ridge", "closing_noise", "closing_ridge"):
            self.register_buffer(name, log_noise.clone())
        self.register_buffer("folds", torch.arange(K, device=targets.device)[:, None])
        self.register_buffer("n_rows", self._seen(targets).sum(1).double())  # (K,)
        share = self.n_rows / len(targets) if K > 1 else torch.ones_like(self.n_rows)
        self.register_buffer("share", share)  # of a minibatch that each member sees, (K,)
        self.register_buffer("failed", torch.zeros((), dtype=torch.bool, device=targets.device))
        window = min(max(WINDOW * features.n_features, window_rows), len(targets))
        self.running = RunningStatistics(K, features.n_features, P, averaging, window)

    @property
    def noise_variance(self) -> Tensor:
        """σ², (P,)."""
        return self.log_noise.detach().exp()

    @property
    def ridge(self) -> Tensor:
        """λ, (P,): σ² itself where that is learned by gradients, as in the paper."""
        return self.noise_variance if self.noise in ("learned", "fixed") else self.log_ridge.exp()

    def _seen(self, targets: Tensor) -> Tensor:
        """Whether a member is trained on a row: (K, N)."""
        return targets[:, -1] != self.folds

    def forward(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        Z = self.features.members(X)
        Y = targets[:, :-1].expand(len(Z), -1, -1)
        unseen = self.n_rows.new_zeros(len(Z), 1)
        if len(Z) > 1:  # the rows of a single member's fold do not come here at all
            seen = self._seen(targets)
            Z, Y = Z * seen[..., None], Y * seen[..., None]
            unseen = (~seen).sum(1, keepdim=True)
        b = self.share * len(X)
        with torch.no_grad():
            self.running.update(self._predicting(X, Z), Y, b)
        return self.loss(Z, Y, b[:, None], generator, unseen)

    def _predicting(self, X: Tensor, Z: Tensor) -> Tensor:
        """The features of a stream as it predicts with them, from these averages alone.

        They differ from those in training where a user's module has layers such as BatchNorm.
        """
        if not (self.streams and self.has_user_module):
            return Z
        self.features.eval()
        Z = self.features.members(X)
        self.features.train()
        return Z

    def attach(self, X: Tensor, targets: Tensor) -> None:
        """Go on with other rows, of a stream."""
        self.n_rows += len(X)

    def stream_rate(self, batch_size: int) -> float:
        return self.running.rate(batch_size)

    def loss(
        self, Z: Tensor, Y: Tensor, b: Tensor, generator: torch.Generator, unseen: Tensor | int = 0
    ) -> Tensor:
        """Loss per row of features (K, ·, D) and targets (K, ·, P), zero in `unseen` (K, 1) rows.

        Sums over rows count as those over b (K, 1) rows, the number that a member sees in the mean,
        so that they are unbiased. The gradient by the features is that of the sum over members.
        """
        raise NotImplementedError

    def factor(self, F: Tensor) -> Tensor:
        """Cholesky factors of positive definite F (..., D, D).

        Failures are only recorded, for the loop to find at the end of the epoch: asking after each
        step would wait for the GPU.
        """
        L, info = torch.linalg.cholesky_ex(F)
        self.failed |= info.any()
        return L

    def ridged(self, gram: Tensor, ridge: Tensor) -> Tensor:
        """G + λI and a little jitter, for G (K, D, D) and λ (K, P) or (P,): (K, P, D, D)."""
        jitter = JITTER * gram.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)  # (K, 1)
        P = ridge.shape[-1]
        F = gram[:, None].clone() if P == 1 else gram[:, None].repeat(1, P, 1, 1)
        F.diagonal(dim1=-2, dim2=-1).add_((jitter + ridge)[..., None])
        return F

    def is_finite(self) -> bool:
        return not bool(self.failed) and super().is_finite()

    def param_groups(self) -> list[dict[str, Any]]:
        network = list(self.features.network_parameters())
        in_network = {id(p) for p in network}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in in_network]
        return [{"params": network, "weight_decay": self.weight_decay}, {"params": rest}]

    def step_end(self) -> None:
        if self.noise == "learned":
            self.log_noise.data.clamp_(*self.log_noise_bounds)
        if isinstance(self.features, KernelFeatures):
            self.features.kernel.clamp_()

    def evaluate(self, X: Tensor, targets: Tensor) -> float:
        """Held-out NLPD if there are validation rows, exact NLML if not; nats per row.

        With noise="validation" or "profiled", σ² (and λ) are first set to what the rows say.
        """
        if validates := bool((targets[:, -1] >= 0).any()):  # these rows come first
            n_held_out = int((targets[:, -1] >= 0).sum())
            most = max(EVALUATION_ROWS * self.features.n_features, MIN_EVALUATION_ROWS)
            X, targets = X[: n_held_out + most], targets[: n_held_out + most]
        y, members, seen = targets[:, :-1], self.features.members, self._seen(targets)
        s = spectrum(exact_statistics(members, X, y, seen).scaled_to(self.n_rows))
        if self.noise == "profiled":
            self.set_noise(*most_likely(s, self.noise_bounds))
        if not validates:
            nlml = negative_log_evidence(s, self.noise_variance, self.ridge)  # (K, P)
            return float((nlml.sum(1) / s.n_rows).mean())
        predict = functools.partial(
            predict_held_out, s, members, X[:n_held_out], y[:n_held_out], ~seen[:, :n_held_out]
        )
        if self.noise == "validation":
            self._calibrate(predict, ridge_grid(s), n_held_out)
        held = predict(self.ridge)  # C = P: output p has ridge p
        return float(held.score(self.noise_variance).diagonal().sum())

    @torch.no_grad()
    def refine(self, X: Tensor, targets: Tensor) -> None:
        """Weigh the network against the linear part of the features, down to none of it.

        Early stopping alone cannot make an overfitted network as good as no network.
        """
        features = self.features
        if self.noise != "validation" or not isinstance(features, NetworkFeatures):
            return
        if features.skip:
            scores = {}
            for scale in NETWORK_SCALES:
                features.scale.fill_(scale)
                scores[scale] = self.evaluate(X, targets)
            features.scale.fill_(min(scores, key=scores.__getitem__))
            self.evaluate(X, targets)

    def _calibrate(
        self, predict: Callable[[Tensor], HeldOut], ridges: Tensor, n_held_out: int
    ) -> None:
        """σ² and λ by the held-out rows: the best ones train, the closing ones are cautious.

        Where the score is flat in λ, a smaller one only makes variances explode away from the data;
        but training follows the best itself, or the ridge would creep up.
        """
        tolerance = min(0.01, CALIBRATION_TOLERANCE / n_held_out)
        held = predict(ridges)
        cautious = held._replace(square=held.square * (1.0 + CHOSEN / n_held_out))
        noise, ridge = calibrate(cautious, ridges, tolerance, self.noise_bounds)
        self.closing_noise.copy_(noise.log())
        self.closing_ridge.copy_(ridge.log())
        self.set_noise(*calibrate(held, ridges, bounds=self.noise_bounds))

    @torch.no_grad()
    def set_noise(self, noise: Tensor, ridge: Tensor, damping: float = 1.0) -> None:
        """Move σ² and λ towards these (P,), all the way or by a fraction of their logarithms."""
        self.log_noise.lerp_(noise.log(), damping).clamp_(*self.log_noise_bounds)
        self.log_ridge.lerp_(ridge.log(), damping)

    def solution(self, X: Tensor, targets: Tensor) -> ConjugatePosterior:
        """Closing exact pass over all rows, those of the folds included, in float64."""
        features = copy.deepcopy(self.features).double().eval()
        y = targets[:, :-1]
        statistics = exact_statistics(lambda X: features(X.double())[None], X, y)
        return self._posterior(features, statistics)

    def _posterior(self, features: FeatureMap, statistics: Statistics) -> ConjugatePosterior:
        s = spectrum(statistics)
        noise, ridge = self.noise_variance, self.ridge
        if self.noise == "profiled":
            noise, ridge = most_likely(s, self.noise_bounds)
        if self.noise == "validation":
            noise, ridge = self.closing_noise.exp(), self.closing_ridge.exp()
        return ConjugatePosterior(features, ConjugateWeights(s, noise, ridge))

    def running_solution(self) -> ConjugatePosterior:
        """The posterior that the running statistics imply, for streams."""
        features = copy.deepcopy(self.features).double().eval()
        n_rows = self.n_rows.clamp_max(1.0 / self.running.inverse_rows)
        return self._posterior(features, self.running.total(n_rows))
