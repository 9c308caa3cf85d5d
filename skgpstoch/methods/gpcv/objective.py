"""Training by cross-validation: iterations of ADMM, then the posterior of all rows."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ...data.devices import HOST
from ...data.messages import warn
from ...data.rows import Rows
from ...kernels import to_sklearn
from ...likelihoods.real import Gaussian
from ...maths.linalg import NotPositiveDefiniteError
from ...models.posteriors.exact import ExactPosterior
from ...models.posteriors.iterative import IterativePosterior
from ...objectives.base import Objective
from .fold_loss import Fold, FoldLoss, at_theta
from .multipliers import RECORDED, Failure, MultiplierSearch, Options, begin, iterate

CALIBRATION_ROWS = 512  # held out, of all folds, from which the scale of variances is found
FEW_HELD_OUT = 50  # numbers, below which those trained on have a say in that scale too
LEAST_VARIANCE_SCALE = 1e-12


class CrossValidationObjective(Objective):
    """Iterations of ADMM, for every restart, with folds together or separately.

    Parameters
    ----------
    folds : list of Fold
        Rows to train on and rows held out.
    starts : Tensor of shape (R, D)
        θ of each restart.
    bounds : Tensor of shape (D, 2)
        Bounds of θ.
    rho : float
        The initial ρ.
    options : Options
        Settings that do not change.
    shares : bool
        Whether folds share θ.
    noise_bounds : tuple of float or None
        If the scale of kernel and noise is found at the end, because no loss here depends on it:
        the interval that the noise must stay in. None: the scale is not found.
    max_iter : int
        Largest number of iterations.
    """

    n_iter: Tensor  # ()
    has_told = False  # that a search diverged

    def __init__(
        self,
        folds: list[Fold],
        starts: Tensor,
        bounds: Tensor,
        rho: float,
        options: Options,
        *,
        shares: bool,
        noise_bounds: tuple[float, float] | None,
        max_iter: int,
    ) -> None:
        super().__init__()
        groups = [folds] if shares else [[fold] for fold in folds]
        self.restarts = nn.ModuleList(
            nn.ModuleList(MultiplierSearch(group, theta, rho, max_iter) for group in groups)
            for theta in starts
        )
        self.bounds, self.options, self.noise_bounds = bounds, options, noise_bounds
        self.register_buffer("n_iter", torch.zeros((), dtype=torch.int64, device=HOST))

    def minibatch_source(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return X[:1], rows[:1]  # an epoch is one iteration; the folds have the rows

    def is_closed(self) -> bool:
        return False

    @property
    def open_searches(self) -> list[Any]:
        """The searches that have not ended."""
        restarts: list[Any] = list(self.restarts)
        searches = [search for restart in restarts for search in restart]
        return [search for search in searches if not bool(search.done) and search.alive]

    def has_converged(self) -> bool:
        return not self.open_searches

    def failures(self) -> list[Tensor]:
        searches = [m for m in self.modules() if isinstance(m, MultiplierSearch)]
        return [torch.cat([s.failed for s in searches]).all()]  # as an edited checkpoint may say

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        searches, options, n_iter = self.open_searches, self.options, int(self.n_iter)
        # Either several searches run at a time, or the folds of one.
        several = len(searches) > 1
        inner = options._replace(n_jobs=1) if several else options
        parallel = Parallel(n_jobs=options.n_jobs if several else 1)
        states = [search.state() for search in searches]
        if not n_iter:
            begun = parallel(delayed(begin)(state, inner) for state in states)
            self.leave_out(searches, [failures for _, failures in begun])
            states = [state for state, _ in begun]
            for search, state in zip(searches, states, strict=True):
                search.remember(state, 0)
        pairs = [(s, state) for s, state in zip(searches, states, strict=True) if s.alive]
        found = parallel(delayed(iterate)(state, self.bounds, inner) for _, state in pairs)
        for (search, _), state in zip(pairs, found, strict=True):
            search.take(state, n_iter, options.tol)
        n_diverged = sum(state.diverged for state in found)
        if n_diverged and not self.has_told:
            self.has_told = True
            warn(
                f"ADMM diverged in {n_diverged} of {len(found)} searches, so rho was raised "
                f"to {max(state.rho for state in found):g} there. Start from another kernel, or "
                "set dtype to 'float64' if it is 'float32'.",
                ConvergenceWarning,
            )
        self.n_iter += 1
        return torch.tensor(loss_of(self.best), dtype=torch.float64, device=HOST)

    def leave_out(self, searches: list[Any], failures: list[list[Failure]]) -> None:
        """Drop the folds that failed at the start.

        Raises
        ------
        NotPositiveDefiniteError
            If there is no fold left.
        """
        for search, of_search in zip(searches, failures, strict=True):
            for failure in of_search:
                search.failed[failure.number] = True
        messages = [failure.message for of_search in failures for failure in of_search]
        n_folds = sum(len(search.folds) for search in searches)
        if len(messages) == n_folds:
            raise NotPositiveDefiniteError(f"Every fold failed. {messages[0]}")
        if messages:
            warn(
                f"{len(messages)} of {n_folds} folds failed and are ignored: {messages[0]}",
                ConvergenceWarning,
            )

    @property
    def best(self) -> list[Any]:
        """The searches of the restart with the least loss, without those whose folds all failed."""
        restarts: list[Any] = list(self.restarts)
        alive = [[search for search in restart if search.alive] for restart in restarts]
        return min((searches for searches in alive if searches), key=loss_of)

    @property
    def best_iter(self) -> int:
        """The iteration whose θ is kept, the latest of all searches; 0 is the start."""
        return max(int(search.best_iter) for search in self.best)

    @property
    def is_exact(self) -> bool:
        """Whether all conjugate gradients of the best restart converged."""
        return all(bool(search.ended) for search in self.best)

    def history(self, n_iter: int) -> dict[str, np.ndarray]:
        """Return the record of every iteration of the best restart, for every search."""
        table = torch.stack([search.records[:n_iter] for search in self.best], 1).cpu().numpy()
        recorded = {name: table[..., i] for i, name in enumerate(RECORDED)}
        return recorded | {"theta": table[..., len(RECORDED) :]}

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ExactPosterior | IterativePosterior:
        """Return the posterior of all rows at the mean θ."""
        options = self.options
        for restart in cast(Any, self.restarts):
            for search in restart:
                if search.alive:
                    search.choose(int(self.n_iter), options)
        theta = torch.stack([search.theta for search in self.best]).mean(0)
        kernel, noise = at_theta(*options[:3], theta)
        kernel, rows = kernel.to(X.device), rows.to(torch.float64)
        if rows.weight is not None:
            X, rows = X[rows.weight > 0], rows[rows.weight > 0]
        likelihood = Gaussian(torch.full_like(rows.y[0], noise))
        posterior: ExactPosterior | IterativePosterior
        if options.keeps:
            posterior = ExactPosterior(kernel, nn.Identity(), likelihood, X.double(), rows)
        else:
            posterior = IterativePosterior(kernel, likelihood, X, rows)
        if self.noise_bounds is None:
            return posterior
        low, high = scale_bounds(to_sklearn(kernel), noise, self.noise_bounds)
        return posterior.scale_(min(max(self.variance_scale(theta), low), high))

    def variance_scale(self, theta: Tensor) -> float:
        """Return the c for which c·k and c·σ² predict the squared errors of rows held out.

        Means do not depend on c, so the loss does not determine it. As θ, with D entries, was
        chosen for these rows, their number counts as D less.
        """
        total = count = 0.0
        folds = [search.folds[k] for search in self.best for k in search.alive]
        n = sum(fold.n_held_out * fold.y.shape[1] for fold in folds)
        for fold in folds:
            problem = FoldLoss(fold, theta, *self.options[:4])
            scores, weight = problem.squared_scores(math.ceil(CALIBRATION_ROWS / len(folds)))
            total += float((weight * scores).sum())
            count += float(weight.sum()) * scores.shape[1]
            if n < FEW_HELD_OUT:
                total += float(problem.training_score().sum())
                count += float(fold.weight[: fold.n_trained].sum()) * fold.y.shape[1]
        n = max(n, count)
        return max(total / count * n / max(n - len(theta), 0.5 * n), LEAST_VARIANCE_SCALE)


def loss_of(searches: list[Any]) -> float:
    """Return the squared error per held-out target."""
    sizes = [sum(search.folds[k].n_held_out for k in search.alive) for search in searches]
    total = sum(n * search.number("loss") for n, search in zip(sizes, searches, strict=True))
    return total / sum(sizes)


def scale_bounds(
    kernel: sk.Kernel, noise: float, noise_bounds: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of c that keeps c·σ², and the constant in front of c·k, in bounds."""
    low, high = (bound / noise for bound in noise_bounds)
    constant = kernel.k1 if isinstance(kernel, sk.Product) else None
    if isinstance(constant, sk.ConstantKernel):
        least, most = (bound / constant.constant_value for bound in constant.constant_value_bounds)
        low, high = max(low, least), min(high, most)
    return (low, high) if low <= high else (1.0, 1.0)
