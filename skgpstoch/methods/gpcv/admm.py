"""GPCV-ADMM: hyper-parameters by cross-validation, in O(n²), by products with covariances.

Xu, Yin, Zhang, Luo & Cui, "A general O(n²) hyper-parameter optimization for Gaussian process
regression with cross-validation and non-linearly constrained ADMM", 2019. Of each fold the loss of
the rows held out is minimised subject to Cz = y_T (:mod:`skgpstoch.methods.gpcv.fold_loss`), by the
alternating direction method of multipliers (11):

    θ ← argmin L_ρ(θ, z, λ)          solver="coordinate": one after another, by Armijo's rule (12)
    z ← argmin L_ρ(θ, z, λ)          conjugate gradients (13, 14)
    λ ← λ + ρ′(C(θ)z − y_T)

While z stays, θ can hardly move, as both sides of the constraint hold it: steps are short, and end
the earlier the larger ρ is. ``solver="joint"`` takes the first two as one problem, θ ← argmin
min_z L_ρ, by L-BFGS whose every evaluation finds the best z anew, from the last one. As ∂L_ρ/∂z is
0 there, the gradient by θ is the one at fixed z. That is the method of multipliers, to which
Theorem 1 applies; ρ grows tenfold where the gap does not shrink fourfold.

K folds are hold-outs of their own whose θ are averaged ("naive"), or have one θ, at which the sum
of their losses is least ("consensus", eq. 15). The paper's local copies of θ (eq. 16) are
eliminated: the minimum is the same, and nothing has to come to agree.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from ...data.rows import Data, Rows
from ...estimators.base import Run
from ...estimators.callbacks import FitCallbacks
from ...estimators.docs import public_estimator
from ...estimators.parameters import AUTO, POSITIVE
from ...estimators.plan import Plan
from ...kernels import to_sklearn
from ...likelihoods.real import Gaussian
from ...maths.linalg import NotPositiveDefiniteError
from ...objectives.base import Objective
from ...posteriors.exact import ExactPosterior
from ...training.loop import History
from ...training.optimizers import constant
from .cross_validated import CrossValidatedGPRegressor, scale_bounds
from .fold_loss import Fold, FoldLoss, at_theta
from .iterative import IterativePosterior
from .multipliers import RECORDED, STEPS, Failure, Options, Search, begin, iterate

MAX_ITER = 100
CALIBRATED = 512  # rows held out, of all folds, that the scale of variances is found from
FEW = 50  # numbers held out, for which those trained on have a say in that scale too
LEAST_SCALE = 1e-12
RHO = {"joint": 100.0, "coordinate": 5.0}  # the latter the paper's


class CrossValidationObjective(Objective):
    """Iterations of ADMM, of every restart and of folds that are together or each by itself.

    Parameters
    ----------
    folds : list of Fold
        Rows to train on and rows held out.
    starts : Tensor of shape (R, D)
        θ of each restart.
    bounds : Tensor of shape (D, 2)
        Of θ.
    rho : float
        ρ to begin with.
    options : Options
        What does not change.
    shares : bool
        Whether folds have a θ in common.
    noise_bounds : tuple of float or None
        Where the scale of kernel and noise is found at the end, which no loss here depends on, the
        interval that the noise is to be in; None: it is not.
    max_iter : int
        Iterations at most.
    """

    n_iter: Tensor  # ()

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
            nn.ModuleList(Search(group, theta, rho, max_iter) for group in groups)
            for theta in starts
        )
        self.bounds, self.options, self.noise_bounds = bounds, options, noise_bounds
        self.register_buffer("n_iter", torch.zeros((), dtype=torch.int64))

    def visits(self, X: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return X[:1], rows[:1]  # an epoch is an iteration, of rows that folds have

    def is_closed(self) -> bool:
        return False

    @property
    def open_searches(self) -> list[Any]:
        """Searches that go on."""
        restarts: list[Any] = list(self.restarts)
        searches = [search for restart in restarts for search in restart]
        return [search for search in searches if not bool(search.done) and search.alive]

    def has_converged(self) -> bool:
        return not self.open_searches

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        searches, options, n_iter = self.open_searches, self.options, int(self.n_iter)
        # Several searches at a time, or the folds of one.
        several = len(searches) > 1
        inner = options._replace(n_jobs=1) if several else options
        parallel = Parallel(n_jobs=options.n_jobs if several else 1)
        states = [search.state() for search in searches]
        if not n_iter:
            begun = parallel(delayed(begin)(state, inner) for state in states)
            self.leave_out(searches, [failures for _, failures in begun])
            states = [state for state, _ in begun]
        pairs = [(s, state) for s, state in zip(searches, states, strict=True) if s.alive]
        found = parallel(delayed(iterate)(state, self.bounds, inner) for _, state in pairs)
        for (search, _), state in zip(pairs, found, strict=True):
            search.take(state, n_iter, options.tol)
        if n_diverged := sum(state.diverged for state in found):
            warnings.warn(
                f"ADMM diverged in {n_diverged} of {len(found)} searches; rho is raised to "
                f"{max(state.rho for state in found):g} there. A larger rho, or a kernel that "
                "starts elsewhere, may help.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.n_iter += 1
        return torch.tensor(loss_of(self.best), dtype=torch.float64)

    def leave_out(self, searches: list[Any], failures: list[list[Failure]]) -> None:
        """Folds that failed at the start.

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
            warnings.warn(
                f"{len(messages)} of {n_folds} folds failed, and are left out: {messages[0]}",
                ConvergenceWarning,
                stacklevel=2,
            )

    @property
    def best(self) -> list[Any]:
        """The searches of the restart with the least loss; of these, those that have folds."""
        restarts: list[Any] = list(self.restarts)
        alive = [[search for search in restart if search.alive] for restart in restarts]
        return min((searches for searches in alive if searches), key=loss_of)

    def history(self, n_iter: int) -> dict[str, np.ndarray]:
        """What iterations of the best restart recorded, of every search."""
        table = torch.stack([search.records[:n_iter] for search in self.best], 1).numpy()
        recorded = {name: table[..., i] for i, name in enumerate(RECORDED)}
        return recorded | {"theta": table[..., len(RECORDED) :]}

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ExactPosterior | IterativePosterior:
        """The posterior of all rows at θ̄."""
        options = self.options
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
        """The c for which rows held out have the variances that c·k and c·σ² predict.

        Means do not depend on c, so that the loss says nothing of it. θ is what suits these rows,
        which therefore count for as many less.
        """
        total = count = 0.0
        folds = [search.folds[k] for search in self.best for k in search.alive]
        n = sum(fold.n_held_out * fold.y.shape[1] for fold in folds)
        for fold in folds:
            problem = FoldLoss(fold, theta, *self.options[:4])
            scores, weight = problem.squared_scores(math.ceil(CALIBRATED / len(folds)))
            total += float((weight * scores).sum())
            count += float(weight.sum()) * scores.shape[1]
            if n < FEW:
                total += float(problem.training_score().sum())
                count += float(fold.weight[: fold.n_trained].sum()) * fold.y.shape[1]
        n = max(n, count)
        return max(total / count * n / max(n - len(theta), 0.5 * n), LEAST_SCALE)


def loss_of(searches: list[Any]) -> float:
    """Squared error of all that is held out, a number."""
    sizes = [sum(search.folds[k].n_held_out for k in search.alive) for search in searches]
    total = sum(n * search.number("loss") for n, search in zip(sizes, searches, strict=True))
    return total / sum(sizes)


# ---- the estimator ---------------------------------------------------------------------------


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class ADMMGaussianProcessRegressor(CrossValidatedGPRegressor):
    """Gaussian-process regression with hyper-parameters by cross-validation, in O(n²).

    The squared error of rows held out is minimised, by the method of multipliers: products with
    covariances alone, without a factorisation of more than 500 rows. It asks less of a model than
    the marginal likelihood does, and is at home where the kernel has structure and is not quite
    right.

    Parameters
    ----------
    scheme : {"consensus", "naive", "holdout"}, default="consensus"
        "consensus": folds have hyper-parameters in common; "naive": the mean of the logarithms of
        those of each; "holdout": the first fold alone.
    solver : {"joint", "coordinate"}, default="joint"
        "joint": L-BFGS for all hyper-parameters, whose evaluations find the best weights anew;
        "coordinate": one after another at fixed weights, as in [1]_, which takes hundreds of
        iterations where the other takes a few.
    rho : float or "auto", default="auto"
        Penalty ρ to begin with. It grows where constraints are not met fast enough. "auto" is 100
        for "joint" and 5, as [1]_ has it, for "coordinate".
    dual_step : float or None, default=None
        Step ρ' of the multipliers; None: ρ.
    max_iter : int or "auto", default="auto"
        Iterations of ADMM; "auto" is 100.
    tol : float, default=0.01
        Iterations end where no log-hyper-parameter moves by more (and, with "coordinate", the loss
        has no slope), and the augmented Lagrangian is the loss up to this share of it, or the gap
        is 1e-5; or where the loss is 1e-6 of the mean square of y.

    Attributes
    ----------
    history_ : dict of ndarray
        After every iteration, of every search of the kept restart, (`n_iter_`, n_searches), a
        search being a fold, or all of them by "consensus": "objective", the augmented Lagrangian,
        and "loss", the squared error, a number held out; "gap", ‖Cz − y‖/‖y‖; "rho"; "z_norm"; and
        "theta", (`n_iter_`, n_searches, n_dims), the logarithms of the kernel's hyper-parameters,
        and of the noise where it is learned.
    n_iter_, best_iter_ : int
        Iterations.

    See Also
    --------
    GaussianProcessRegressor : By the marginal likelihood.

    References
    ----------
    .. [1] L. Xu, F. Yin, J. Zhang, Z.-Q. Luo, S. Cui, "A general O(n²) hyper-parameter optimization
       for Gaussian process regression with cross-validation and non-linearly constrained ADMM",
       2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF, ExpSineSquared
    >>> from skgpstoch import ADMMGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (200, 1))
    >>> y = np.sin(2 * np.pi * X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> kernel = 1.0 * ExpSineSquared(1.0, 1.1) * RBF(5.0)
    >>> model = ADMMGaussianProcessRegressor(kernel, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[5.25]], return_std=True)
    >>> bool(abs(mean[0] - 1.0) < 0.1 and std[0] < 0.2)
    True
    """

    scheme: str = "consensus"
    solver: str = "joint"
    rho: float | str = "auto"
    dual_step: float | None = None
    tol: float = 0.01

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "scheme": [StrOptions({"consensus", "naive", "holdout"})],
        "solver": [StrOptions(set(STEPS))],
        "rho": [POSITIVE, AUTO],
        "dual_step": [POSITIVE, None],
    }

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for: 2 is the same as the row twice, 0 as without it.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid, or every fold fails; the estimator is
            then as it was before.
        """
        return self._fit_to(X, y, sample_weight)

    # ---- what a fit does ---------------------------------------------------------------------

    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        return Plan(
            solver=self.solver,
            dtype=self.dtype,
            max_iter=MAX_ITER if self.max_iter == "auto" else int(self.max_iter),
            batch_size=1,
            schedule=constant,
            patience=math.inf,
            tol=self.tol,
            holds_out=False,
            evaluates=False,
            shuffles=False,  # splitters know rows by their numbers
        )

    def _objective(
        self, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> CrossValidationObjective:
        seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
        start = self._begin(X, rows, start)
        options = Options(
            start.kernel,
            start.noise,
            start.learns_noise,
            keeps=len(X) <= self.block_size,
            solver=plan.solver,
            dual_step=self.dual_step,
            tol=plan.tol,
            n_jobs=self.n_jobs,
        )
        return CrossValidationObjective(
            self._folds(X, rows, seed, 1 if self.scheme == "holdout" else None),
            self._starts(start, seed),
            torch.from_numpy(start.bounds),
            RHO[self.solver] if self.rho == "auto" else float(self.rho),
            options,
            shares=self.scheme == "consensus",
            noise_bounds=self._noise_bounds() if start.calibrates else None,
            max_iter=plan.max_iter,
        )

    def _train(self, run: Run, callbacks: FitCallbacks) -> History:
        history = super()._train(run, callbacks)
        objective = cast(CrossValidationObjective, run.objective)
        self.history_ = objective.history(history.n_iter)
        if not all(bool(search.ended) for search in objective.best):
            warnings.warn(
                "Conjugate gradients did not come to an end, so that steps are inexact: the noise "
                "is too small beside the kernel. Raise the lower bound of a WhiteKernel.",
                ConvergenceWarning,
                stacklevel=6,
            )
        if history.status == "max_iter":
            warnings.warn(
                f"ADMM did not converge in {run.plan.max_iter} iterations: raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=6,
            )
        return history
