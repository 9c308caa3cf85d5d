"""SCGD: the exact marginal likelihood of a finite-dimensional kernel, by minibatches of any size.

Shoham & Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional
RKHS", sec. 3.2. With features Z (n, D), F = ZᵀZ + λI, w = F⁻¹Zᵀy, noise σ² and ridge λ (the paper
has λ = σ²),

    2·NLML = ‖Zw − y‖²/σ² + (λ/σ²)‖w‖² + log|F| + (n−D)·log σ² + D·log(σ²/λ) + n·log 2π

is a sum over rows except for log|F|. SCGD replaces log|F| with ⟨F̃⁻¹, F⟩, where F̃ is a running
estimate of F that is held constant in the gradient. If F̃ equals F, the two gradients are equal.
Sums over the b rows of a minibatch are scaled by n/b, and every loss is per row: divided by 2n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from ..data.rows import Rows
from ..estimators.docs import public_estimator
from ..estimators.parameters import SHARE, FiniteParameters
from ..estimators.streams import StreamingRegressor
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import log_det, update_inverse_
from ..maths.linear_regression import most_likely, spectrum
from ..objectives.base import surrogate
from ..objectives.evidence import AsMean, FiniteObjective, ridged
from ..training.recipes.evidence import EvidenceRecipe

STEPS_OF_FEW = (100, 350, 8000)
"""Of "auto", as :class:`EvidenceRecipe` has them. *Measured* on eight tables of 400 rows: 2.5 times
as many predict better by .004 nats per row."""

STALE = 0.1  # by how much averages change before λ follows, if minibatches are small
PROFILE_EVERY = 25  # steps between updates of a profiled noise, each an O(D³) eigendecomposition
PROFILE_STALE = 0.2  # by how much averages change at least between them
PROFILE_WARM_UP = 200  # steps before the first, when the features still say little about the noise
PROFILE_DAMPING = 0.25


class Averages(NamedTuple):
    """The parts of F̃ = G̃ + λ̃I and c̃; the first two are per row."""

    gram: Tensor  # G̃/n, (K, D, D)
    cross: Tensor  # c̃/n, (K, D, P)
    ridge: Tensor  # λ̃, (P,)


class Factorised(NamedTuple):
    """F̃ = LLᵀ, (K, P, D, D), and w = F̃⁻¹c̃, (K, D, P), with a ridge (P,)."""

    ridge: Tensor
    L: Tensor
    w: Tensor


class SCGDObjective(FiniteObjective):
    """SCGD: the gradient of log|F| is that of ⟨F̃⁻¹, F⟩ with F̃ the running estimate of F.

    Averages are kept of G = ZᵀZ and c = Zᵀy, and the present λI is added exactly. By default they
    include the present minibatch: with few rows or b_t near 1, as in the paper's experiments, F̃
    would otherwise miss most directions of the present features. With the paper's own order, step t
    uses F̃_t of the minibatches before it, and afterwards

        F̃_{t+1} = (1 − b_t) F̃_t + b_t (n/|S| Σ_S φφᵀ + λ_t I),   F̃_1 from the first minibatch.

    A step of b rows changes G̃ by a matrix of rank b. If b is far below D, F̃⁻¹ is updated in
    O(bD²) by Woodbury's identity. In such updates λ decays as G̃ does, but by 10 % at most: when Σ
    b_t reaches 0.1, or λ changes, F̃ is factored anew, in O(D³). Processes of a group, each of
    which sees only its own rows, factor the same F̃ at each step.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`FiniteObjective`.
    weights : {"profiled", "learned"}
        w = F̃⁻¹c̃, or a parameter that is trained like the others.
    order : {"average-first", "step-first"}, default="average-first"
        Whether averages include a minibatch before its step, or, as in the paper, after it.
    """

    ridge_average: Tensor

    def __init__(
        self, *args: Any, weights: str, order: str = "average-first", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.steps_first = order == "step-first"
        self.register_buffer("ridge_average", self.ridge.clone())
        K, D, P = self.running.cross.shape
        learned = weights == "learned"
        w = torch.zeros(K, D, P, dtype=self.dtype, device=self.log_noise.device)
        self.w = nn.Parameter(w) if learned else None
        self.earlier: Averages | None = None  # before the last one, if steps are first
        self.solved: Factorised | None = None  # by the last step, for the loss of the epoch
        self.F_inv: Tensor | None = None  # F̃⁻¹, (K, P, D, D), if steps update it
        self.rate = 1.0  # b_t of the last step
        self.moved = math.inf  # Σ b_t since λ was followed
        self.kept = 1.0  # Π (1 − b_t) since then
        self.updates = False  # whether steps see all the rows that change F̃

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        self.rate = self.running.rate(rows.n_all, self.mean_weight)
        self.let_ridge_lag(rows)
        if self.steps_first:
            ridge, running = self.ridge, self.running
            earlier = running.gram.clone(), running.cross.clone(), self.ridge_average.clone()
            self.earlier = Averages(*earlier) if running.n_steps else None
            self.ridge_average.lerp_(ridge, self.rate)
        return super().forward(X, rows, generator)

    def let_ridge_lag(self, rows: Rows) -> None:
        """Decide whether this step updates F̃⁻¹, so that λ decays with the averages."""
        is_small = 4 * rows.n_all < self.running.gram.shape[-1]
        may_lag = is_small and self.noise != "learned" and not self.steps_first
        self.moved, self.kept = self.moved + self.rate, self.kept * (1.0 - self.rate)
        if not may_lag or self.moved >= STALE:
            self.moved, self.kept, self.F_inv = 0.0, 1.0, None
        self.updates = may_lag and rows.group.size == 1 and not self.predicts_otherwise

    def present(self) -> Averages:
        """Averages that include the last minibatch, with the present λ."""
        return Averages(self.running.gram, self.running.cross, self.ridge)

    def solve(self, averages: Averages) -> Factorised:
        """F̃ of these averages, and w = F̃⁻¹c̃."""
        n = self.n_rows[:, None, None]
        L = self.factor(ridged(n * averages.gram, averages.ridge))
        w = torch.cholesky_solve((n * averages.cross).mT[..., None], L)[..., 0].mT
        return Factorised(averages.ridge, L, w)

    def factor_and_solve(self, Z: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """ZF̃⁻¹ (K, b, D), summed over outputs, w, and F̃⁻¹ where it is worth having."""
        averages, self.earlier = self.earlier or self.present(), None
        averages = averages._replace(ridge=self.kept * averages.ridge)
        self.solved = self.solve(averages)
        _, L, w = self.solved
        wants_all = self.updates or self.noise == "learned" or 2 * Z.shape[1] >= Z.shape[2]
        F_inv = torch.cholesky_inverse(L) if wants_all else None
        return times_inverses(Z, L, F_inv), w, F_inv

    def update_and_solve(self, F_inv: Tensor, Z: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """ZF̃⁻¹ and w after F̃ ← (1 − b_t) F̃ + b_t n/|S| ZᵀZ."""
        n = self.n_rows[:, None, None]
        share = (self.rate * n / b[..., None])[:, None]  # (K, 1, 1, 1)
        ZF_inv = update_inverse_(F_inv, Z.double()[:, None], share, kept=1.0 - self.rate)
        self.solved = None
        w = (F_inv @ (n * self.running.cross).mT[..., None])[..., 0].mT
        return ZF_inv.sum(1).to(Z), w

    @torch.no_grad()
    def gradients(
        self, Z: Tensor, Y: Tensor, b: Tensor, as_mean: AsMean
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the NLML's gradients per row in Z and in w, log σ² if learned; F̃ is constant."""
        noise, ridge, n = self.noise_variance, self.ridge, self.n_rows[:, None]  # n (K, 1)
        if self.F_inv is None:
            ZF_inv, w, F_inv = self.factor_and_solve(Z)
            self.F_inv = F_inv if self.updates else None
        else:
            ZF_inv, w = self.update_and_solve(self.F_inv, Z, b)
        w = w if self.w is None else self.w
        r = Z @ w.to(Z) - Y  # (K, b, P)
        dZ = (ZF_inv + r @ (w / noise).mT.to(Z)) / b[..., None]
        gradients = [(Z, as_mean(dZ))]
        if self.w is not None:
            dw = (as_mean(Z.mT @ r) / b[..., None] + w * (ridge / n)[:, None]) / noise
            gradients.append((self.w, dw.to(w)))
        if self.noise == "learned":  # λ = σ²
            diagonals = cast(Tensor, F_inv).diagonal(dim1=-2, dim2=-1)
            trace = diagonals.sum(-1) * ridge  # σ²·tr F̃⁻¹, (K, P)
            fit = as_mean((r * r).sum(1)) / (b * noise)
            d_log_noise = 0.5 * ((trace + n - Z.shape[2]) / n - fit)
            gradients.append((self.log_noise, d_log_noise.mean(0)))
        return gradients

    def loss(self, Z: Tensor, Y: Tensor, b: Tensor, as_mean: AsMean, unseen: Tensor) -> Tensor:
        # Only the gradient is wanted of a step: the value is that of the epoch, from F̃ and c̃.
        return surrogate(Z.new_zeros(()), *self.gradients(Z, Y, b, as_mean))

    def epoch_loss(self, mean: float) -> float:
        """NLML per row that the running statistics imply, at w = F̃⁻¹c̃."""
        noise, ridge, n = self.noise_variance, self.ridge, self.n_rows[:, None]
        last, self.solved, self.moved = self.solved, None, math.inf
        if last is None or self.steps_first or not torch.equal(last.ridge, ridge):
            last = self.solve(self.present())
        _, L, w = last
        q = n * (self.running.square - (self.running.cross * w).sum(1))  # (K, P)
        log_scales = n * noise.log() - len(L[0, 0]) * ridge.log()
        nlml = 0.5 * (q / noise + log_det(L) + log_scales + n * LOG_2PI)
        return float((nlml / n).sum(1).mean())

    def step_end(self) -> None:
        steps, every = self.running.n_steps, max(PROFILE_EVERY, round(PROFILE_STALE / self.rate))
        if self.noise == "profiled" and steps >= PROFILE_WARM_UP and steps % every == 0:
            self.moved = math.inf
            s = spectrum(self.running.total(self.n_rows))
            self.set_noise(*most_likely(s, self.noise_bounds), damping=PROFILE_DAMPING)
        super().step_end()


def times_inverses(Z: Tensor, L: Tensor, F_inv: Tensor | None = None) -> Tensor:
    """Return Z Σ_p F_p⁻¹ (K, b, D), where F_p = L_p L_pᵀ (K, P, D, D); use known inverses.

    *Measured*: at D = 1,000 solving with the factor takes 14 ms for 64 rows, with an inverse 34.
    """
    if F_inv is not None:
        return Z @ F_inv.sum(1).to(Z)
    columns = Z.mT.to(L)[:, None].expand(-1, L.shape[1], -1, -1)
    return torch.cholesky_solve(columns, L).sum(1).mT.to(Z)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class SCGDGaussianProcessRegressor(FiniteParameters, StreamingRegressor):
    """Gaussian-process regression on a deep, linear or random-feature kernel, by SCGD.

    The kernel is the inner product of features: the outputs of a neural network, the inputs, a
    torch module of yours, or random Fourier features of an sklearn kernel on any of these.
    Minibatches of any size follow the exact marginal likelihood, at a cost per step that does not
    depend on the number of rows. A closing exact pass over all rows gives the posterior.

    Parameters
    ----------
    averaging : float, "auto" or "theory", default="auto"
        Weight b_t of the present minibatch in the running estimate of F = ZᵀZ + λI. "auto"
        averages over at least 39 minibatches (b_t ≤ 0.05) and 20 rows for each feature, but not
        over more rows than there are; "theory" is t^(−1/2). The paper's experiments use 0.9.
    max_iter : int or "auto", default="auto"
        Number of epochs; "auto" makes n_samples steps, but at least 350 (100 for very few rows) and
        at most 8,000.
    weights : {"profiled", "learned"}, default="profiled"
        How to find the weights w of the features: "profiled", as F̃⁻¹c̃ from the running averages;
        "learned", as parameters that are trained like the others, as in the paper.
    order : {"average-first", "step-first"}, default="average-first"
        Whether the running estimate of F includes a minibatch before its step ("average-first") or,
        as in the paper, only after it ("step-first"). *Measured* on elevators with the paper's
        settings, 40 epochs: NLML is -1.149 per row with the former, -1.127 with the latter.

    See Also
    --------
    MinimaxGaussianProcessRegressor : The same objective as a minimax problem.
    BSGDGaussianProcessRegressor : The biased baseline, and kernels without finite features.

    Notes
    -----
    The paper's own algorithm is ``SCGDGaussianProcessRegressor(kernel=DotProduct(0, "fixed"),
    solver="adadelta", learning_rate="constant", learning_rate_init=1.0, averaging=0.9,
    weights="learned", order="step-first", noise="learned", early_stopping=False, max_iter=100,
    weight_decay=0)`` with ``batch_size`` 32 to 512 and ``learning_rate_init`` chosen by the
    marginal likelihood. The defaults differ where that predicts held-out rows better: profiled
    weights, Adam with one cycle, the inputs and a constant beside the network's outputs, and
    several networks if rows are few. The noise and the signal variance are chosen on rows that the
    networks have not seen, because the marginal likelihood of a deep kernel overfits. Rows with
    equal inputs are held out together, unless there are fewer than ten inputs, or few in a table of
    levels; intervals are then those of new rows with the same inputs.

    References
    ----------
    .. [1] N. Shoham, H. Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite
       Dimensional RKHS", sec. 3.2.
    .. [2] M. Wang, E. X. Fang, H. Liu, "Stochastic compositional gradient descent", Mathematical
       Programming 161, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import SCGDGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> model = SCGDGaussianProcessRegressor(
    ...     hidden_layer_sizes=(32,), max_iter=50, random_state=0
    ... ).fit(X, y)
    >>> mean, std = model.predict([[0.0], [1.5]], return_std=True)
    >>> np.round(mean, 1) + 0.0
    array([0., 1.])
    >>> bool((std < 0.15).all())
    True
    """

    averaging: float | str = "auto"
    weights: str = "profiled"
    order: str = "average-first"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "averaging": [SHARE, StrOptions({"auto", "theory"})],
        "weights": [StrOptions({"profiled", "learned"})],
        "order": [StrOptions({"average-first", "step-first"})],
    }

    def _recipe(self) -> EvidenceRecipe:
        chosen: dict[str, Any] = {"averaging": self.averaging, "order": self.order}
        method = partial(SCGDObjective, weights=self.weights, **chosen)
        return EvidenceRecipe.of(self, method=method, steps=STEPS_OF_FEW)
