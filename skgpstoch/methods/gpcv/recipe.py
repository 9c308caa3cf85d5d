"""Learn a kernel by cross-validation: start of the search, folds and fitted kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ...data.arrays import Scaling
from ...data.equal_rows import Merging
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...kernels import contains, join_white_noise, to_sklearn
from ...models.posteriors.exact import ExactPosterior
from ...models.posteriors.iterative import IterativePosterior
from ...training.exact_search import best_on
from ...training.recipes.fitted import Fitted
from ...training.recipes.fitted_errors import error_findings
from ...training.recipes.kernel_choice import (
    START_NOISE,
    KernelChoice,
    default_kernel,
    has_free_scale,
)
from ...training.recipes.plan import Plan, Sizes, Start
from ...training.recipes.recipe import Problem, Recipe, check_shared_noise
from ...training.starts import log_bounds
from .folds import make_folds
from .multipliers import Options
from .objective import CrossValidationObjective

EVIDENCE_ROWS = 500  # whose marginal likelihood finds where the default kernel starts
ADMM_ITERATIONS = 100  # of "auto"
FEW_ITERATIONS = 10  # of which the first may be worse than the start
START_RHO = 100.0  # one step of λ leaves a fiftieth of its error; at the paper's 5 steps oscillate

OfAllRows = ExactPosterior | IterativePosterior


class SearchStart(NamedTuple):
    """The start of a search, and what it learns."""

    kernel: sk.Kernel
    noise: float
    noise_bounds: tuple[float, float]  # equal if the noise stays
    calibrates: bool  # whether the scale of kernel and noise is found at the end

    @property
    def theta(self) -> np.ndarray:
        """Log-hyper-parameters, the noise last, (D,)."""
        return np.append(self.kernel.theta, [math.log(self.noise)] * self.learns_noise)

    @property
    def bounds(self) -> np.ndarray:
        """Of the same, (D, 2)."""
        of_noise = [np.log(self.noise_bounds)] * self.learns_noise
        return np.vstack([log_bounds(self.kernel), *of_noise])

    @property
    def learns_noise(self) -> bool:
        """Whether θ includes σ²."""
        return self.noise_bounds[0] < self.noise_bounds[1]


@dataclass(frozen=True, kw_only=True)
class CrossValidationRecipe(Recipe):
    """A kernel by cross-validation, and the posterior of all rows.

    Parameters
    ----------
    kernel : KernelChoice
        The kernel and the noise to start from.
    learn_noise, cv, scheme, solver, n_restarts, block_size, n_jobs, max_iter, tol,
    dtype
        See :class:`ADMMGaussianProcessRegressor`.
    """

    kernel: KernelChoice
    learn_noise: bool
    cv: Any
    scheme: str
    solver: str
    n_restarts: int
    block_size: int
    n_jobs: int | None
    max_iter: int | str
    tol: float
    dtype: str
    equal_rows: Merging = "merge many"

    def check(self, data: Data) -> None:
        self.check_rows(data)
        kernel = self.kernel.expression
        if kernel is not None and contains(kernel, sk.WhiteKernel):
            raise ValueError(
                f"kernel must have its WhiteKernel as a term of a sum, got {kernel!s}."
            )

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        return Plan(
            solver=self.solver,
            dtype=self.dtype,
            max_iter=ADMM_ITERATIONS if self.max_iter == "auto" else int(self.max_iter),
            batch_size=1,
            tol=self.tol,
            shuffles=False,  # splitters know rows by their numbers
        )

    def keeps_apart(self, plan: Plan) -> bool:
        return True

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.kernel.input_scaling(X, weight, standardizes=True)

    # ---- objective ---------------------------------------------------------------------------

    def objective(self, problem: Problem) -> CrossValidationObjective:
        X, rows, plan = problem.X, problem.rows, problem.plan
        seed = int(torch.randint(2**31, (), generator=problem.generator, device=X.device))
        start = self.search_start(X, rows, problem.start)
        options = Options(
            start.kernel,
            start.noise,
            start.learns_noise,
            keeps=len(X) <= self.block_size,
            solver=plan.solver,
            tol=plan.tol,
            n_jobs=self.n_jobs,
        )
        return CrossValidationObjective(
            make_folds(self.cv, X, rows, seed, 1 if self.scheme == "holdout" else None),
            self.thetas(start, seed),
            torch.from_numpy(start.bounds),
            START_RHO,
            options,
            shares=self.scheme == "consensus",
            noise_bounds=self.kernel.noise_bounds if start.calibrates else None,
            max_iter=plan.max_iter,
        )

    @property
    def keeps_noise(self) -> bool:
        """Whether the noise stays because a constant is fixed, though it was to be learned.

        The loss alone would choose .003 instead of .2 in one of six draws of 300 rows.
        """
        kernel, (low, high) = self.kernel.expression, self.kernel.noise_bounds
        asked = self.learn_noise and low < high and kernel is not None
        return asked and has_fixed_scale(kernel) and not has_free_scale(kernel)

    def search_start(self, X: Tensor, rows: Rows, start: Start | None) -> SearchStart:
        """Return where the search begins: from the parameters, or from a fitted posterior."""
        expression, _, noise, (low, high), _ = self.kernel
        kernel = default_kernel(X) if expression is None else expression
        calibrates = self.learn_noise and low < high and not self.keeps_noise
        if start is not None:
            start.check_unchanged()
            kernel, noise = fitted_before(start.posterior, kernel, X)
        elif expression is None:
            found = best_on_some(kernel, X, rows)
            kernel, noise = found.k1, float(found.k2.noise_level) if calibrates else noise
        # If the kernel may have any scale, the loss knows only its ratio to the noise, which stays.
        learns_noise = calibrates and not has_free_scale(kernel)
        bounds = (low, high) if learns_noise else (noise, noise)
        return SearchStart(kernel, noise, bounds, calibrates)

    def thetas(self, start: SearchStart, seed: int) -> Tensor:
        """Return θ of every restart, (R, D)."""
        low, high = start.bounds.T
        if self.n_restarts and not np.isfinite(start.bounds).all():
            raise ValueError(
                f"n_restarts={self.n_restarts} needs hyper-parameters with finite bounds, got "
                f"kernel={start.kernel} with the bounds {np.exp(start.bounds)}."
            )
        random = np.random.RandomState(seed)
        others = [random.uniform(low, high) for _ in range(self.n_restarts)]
        return torch.from_numpy(np.clip([start.theta, *others], low, high))

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior: OfAllRows = fitted.posterior
        objective = cast(CrossValidationObjective, fitted.objective)
        return {
            "history_": objective.history(fitted.history.n_iter),
            "best_iter_": objective.best_iter,
            "kernel_": self.fitted_kernel(posterior, fitted.x_scaling),
            **fitted.of_noise(posterior.likelihood),
        }

    def fitted_kernel(self, posterior: OfAllRows, x_scaling: Scaling) -> sk.Kernel:
        """Return the kernel for the user's X, with a WhiteKernel if there was one."""
        kernel = self.kernel.in_units(to_sklearn(posterior.kernel), x_scaling)
        noise = float(posterior.likelihood.noise_variance.mean())
        return join_white_noise(kernel, noise, self.kernel.white)

    @property
    def learns(self) -> bool:
        return not self.kernel.is_fixed

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        kernel = self.fitted_kernel(fitted.posterior, fitted.x_scaling)
        yield from self.kernel_findings(fitted, kernel, self.kernel, True)
        advice = "Start from a shorter length_scale, or set n_restarts."
        yield from error_findings(fitted, kernel, advice, self.is_trained(fitted))

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        is_exact = cast(CrossValidationObjective, fitted.objective).is_exact
        steps = Finding("inexact steps", "noise", int(not is_exact), 1, category=ConvergenceWarning)
        if not is_exact:
            steps = steps._replace(
                severity="problem",
                text="Conjugate gradients did not converge, so steps are inexact. The noise "
                "variance is too small relative to the kernel's.",
                advice="Raise the lower bound of a WhiteKernel.",
            )
        noise = Finding("noise that stays", "learn_noise", int(self.keeps_noise), 1)
        if self.keeps_noise:
            noise = noise._replace(
                severity="problem",
                text="The noise variance was not learned, because the ConstantKernel is "
                "fixed and the squared error of held-out rows then hardly depends on "
                "the noise.",
                advice="Free the ConstantKernel, or set learn_noise=False if the noise is known.",
            )
        n_iter, most = fitted.history.n_iter, fitted.plan.max_iter
        ended = Finding("iterations", "max_iter", n_iter, most, category=ConvergenceWarning)
        if fitted.history.status == "max_iter":
            ended = ended._replace(
                severity="problem",
                text=f"ADMM did not converge in {most} iterations.",
                advice="Raise max_iter or tol.",
            )
        yield from (steps, noise, ended, self.first_is_best(fitted))

    def first_is_best(self, fitted: Fitted) -> Finding:
        """Return whether no iteration of many improved on the start of the search."""
        objective = cast(CrossValidationObjective, fitted.objective)
        is_first = objective.best_iter == 0 and fitted.history.n_iter >= FEW_ITERATIONS
        found = Finding("start kept", "kernel", int(is_first), 1, category=ConvergenceWarning)
        if not is_first:
            return found
        return found._replace(
            severity="problem",
            text="No iteration predicts held-out rows better than the hyper-parameters that the "
            "search started from, which are kept.",
            advice="Start from another kernel, set n_restarts, or set solver='joint'.",
        )

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        check_shared_noise(posterior, rows)
        if len(X) > self.block_size:
            raise ValueError(
                f"The marginal likelihood of {len(X)} rows needs a factor of their "
                "covariance, which is computed for at most "
                f"block_size={self.block_size} rows. Fit with a larger block_size."
            )
        exact = ExactPosterior(posterior.kernel, nn.Identity(), posterior.likelihood, X, rows)
        return float(exact.log_evidence().sum())


# ---- where a search starts -----------------------------------------------------------------------


def best_on_some(kernel: sk.Kernel, X: Tensor, rows: Rows) -> sk.Kernel:
    """Return the kernel plus noise at the optimum of the marginal likelihood of some rows."""
    some = rows.in_proportion(EVIDENCE_ROWS)
    y = rows.y.double()
    return best_on(kernel + START_NOISE, X[some].double(), (y - rows.mean(y))[some])


def fitted_before(posterior: OfAllRows, kernel: sk.Kernel, X: Tensor) -> tuple[sk.Kernel, float]:
    """Return a kernel with the hyper-parameters of a fitted one, and the noise that suits it."""
    fitted, one = to_sklearn(posterior.kernel), X[:1].cpu().double().numpy()
    kernel = kernel.clone_with_theta(fitted.theta)
    factor = float((fitted.diag(one) / kernel.diag(one))[0])  # which has no place in θ
    return kernel, float(posterior.likelihood.noise_variance.mean()) / factor


def has_fixed_scale(kernel: sk.Kernel) -> bool:
    """Tell whether there is a constant that must stay as it is."""
    if isinstance(kernel, sk.ConstantKernel):
        return bool(kernel.hyperparameter_constant_value.fixed)
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return any(has_fixed_scale(part) for part in parts if isinstance(part, sk.Kernel))
