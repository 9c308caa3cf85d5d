"""The recipe for very many basis functions, trained by exact steps on one block at a time.

A builder of basis functions, a likelihood and a kernel make a
:class:`~skgpstoch.models.posteriors.chevron.ChevronModel`. The kernel starts at the optimum of an
exact Gaussian process on some rows. :mod:`skgpstoch.objectives.blockwise` trains the model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ... import kernels
from ...data.arrays import Scaling
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...likelihoods.base import Likelihood
from ...likelihoods.logistic import OneVsRest
from ...likelihoods.real import AdditiveNoise
from ...models.features.basis_functions import BasisFunctions, FourierBasis, KernelBasis
from ...models.posteriors.chevron import ChevronModel
from ...objectives.blockwise import BasisObjective, BlockwiseObjective
from ..exact_search import best_on
from ..optimizers import SCHEDULES, constant, one_cycle
from .findings import of_number
from .fitted import Fitted
from .fitted_errors import error_findings
from .kernel_choice import START_NOISE, KernelChoice, default_kernel
from .plan import Folds, Plan, Sizes, Start, Training, load_fitted
from .points import first_of_each
from .recipe import Problem, Recipe, started

MOST_AUTO = 10_000  # most basis functions for "auto"
LEAST_AUTO = 1_000
MOST_SWEPT = 16_384  # most rows in a sweep for "auto"
BLOCK = 2048  # basis functions in a step for "auto"
LEAST_STEPS = 2_000  # "auto" makes so many steps, in at most SWEEPS sweeps
SWEEPS = 20
LEARNING = 3  # times as many sweeps if the kernel is learned
DIAGONAL_ROWS = 4  # rows needed per diagonal column of C for the bound to determine the noise
PATIENCE = 2  # sweeps without an improvement by `tol`, if sweeps are deterministic
DENSE = 100  # dense columns of C for "auto", unless all can be dense
MOST_DENSE = 1_024
DENSE_NUMBERS = 20_000_000  # most numbers in h and C together, for "auto"
LOGIT_SLOPE = 1.7  # Φ(x) is about logistic(1.7 x)
MOST_LATENT_VARIANCE = 100.0


# ---- builders of basis functions -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FourierFunctions:
    """Random Fourier features, which a seed determines.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number m of features; "auto" is a quarter of the rows, between 1,000 and 10,000.
    """

    n_components: int | str = "auto"

    group_size = FourierBasis.group_size

    def dtype(self, asked: str) -> str:
        """Return the floating-point type for training."""
        return asked

    def check(
        self, kernel: kernels.Kernel | None, n_features: int, augments: bool, learns_kernel: bool
    ) -> None:
        """Raise an error if there are no such functions for the kernel or for these settings."""
        if augments:
            raise ValueError("augment=True needs basis='inducing', got basis='fourier'.")
        if kernel is not None:
            FourierBasis(kernel, n_features, MOST_AUTO, 0)

    def count(self, n_rows: int) -> int:
        """Return the number m of basis functions for so many training rows."""
        if self.n_components != "auto":
            return int(self.n_components)
        return int(np.clip(n_rows // DIAGONAL_ROWS, LEAST_AUTO, MOST_AUTO))

    def build(
        self, kernel: kernels.Kernel, X: Tensor, m: int, generator: torch.Generator
    ) -> BasisFunctions:
        """Make the basis functions φ and the prior precision S of their weights."""
        seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
        return FourierBasis(kernel, X.shape[1], m, seed)


@dataclass(frozen=True, kw_only=True)
class KernelFunctions:
    """k(·, z) at the first distinct rows z, which are in random order.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number m of functions, at most that of distinct rows; "auto" is one for each, at most
        `most`.
    most : float, default=10000
        Largest number of functions for "auto".
    is_diagonal : bool, default=False
        Whether the prior precision S of the weights is diagonal; else it is k(Z, Z).
    """

    n_components: int | str = "auto"
    most: float = MOST_AUTO
    is_diagonal: bool = False

    group_size = KernelBasis.group_size

    def dtype(self, asked: str) -> str:
        return "float64"  # k(Z, Z) is nearly singular

    def check(
        self, kernel: kernels.Kernel | None, n_features: int, augments: bool, learns_kernel: bool
    ) -> None:
        if learns_kernel:
            raise ValueError(
                "learn_kernel=True needs basis='fourier', whose prior precision is diagonal, got "
                "basis='inducing'."
            )
        if kernel is not None:
            kernels.check_length_scales(kernel, n_features)

    def count(self, n_rows: int) -> int:
        asked = self.n_components
        return int(min(n_rows, self.most if asked == "auto" else asked))

    def build(
        self, kernel: kernels.Kernel, X: Tensor, m: int, generator: torch.Generator
    ) -> BasisFunctions:
        first = first_of_each(X)[:m]  # a function twice is no second function
        return KernelBasis(kernel, X[first], self.is_diagonal)


BasisBuilder = FourierFunctions | KernelFunctions
"""Makes basis functions of a kernel, and describes them before they are made."""


# ---- the recipe ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BasisRecipe(Recipe):
    """Very many basis functions, and a q(w) whose factor is a chevron matrix.

    Parameters
    ----------
    kernel : KernelChoice
        The kernel to start from, and the noise.
    basis : BasisBuilder
        Makes the basis functions φ.
    training, basis_batch_size, n_dense, n_subset, learns_kernel
        See :class:`QSGPRegressor`.
    augments, learns_precision : bool, default=False
        As for :class:`~skgpstoch.models.posteriors.chevron.ChevronModel`.
    block : int, default=2048
        Number of basis functions in a step, if `basis_batch_size` is "auto".
    sweeps : int, default=20
        Largest number of sweeps, if `max_iter` is "auto" and the kernel is not learned.
    patience : float, default=2
        Number of sweeps without improvement after which to stop, if sweeps are deterministic.
    """

    kernel: KernelChoice
    basis: BasisBuilder
    training: Training
    basis_batch_size: int | str = "auto"
    n_dense: int | str = "auto"
    n_subset: int = 1000
    augments: bool = False
    learns_precision: bool = False
    learns_kernel: bool = False
    block: int = BLOCK
    sweeps: int = SWEEPS
    patience: float = PATIENCE

    blockwise: ClassVar[type[BlockwiseObjective]] = BlockwiseObjective

    def check(self, data: Data) -> None:
        self.check_rows(data)
        expression = self.kernel.expression
        kernel = None if expression is None else kernels.from_sklearn(expression)
        self.basis.check(kernel, data.X.shape[1], self.augments, self.learns_kernel)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.kernel.input_scaling(X, weight, standardizes=True)

    # ---- plan --------------------------------------------------------------------------------

    def keeps_apart(self, plan: Plan) -> bool:
        return True

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n, folds = self.training, sizes.n_rows, Folds()
        if t.early_stopping:
            folds = Folds.of(n, t.validation_fraction)
            n -= folds.size
        m = self.basis.count(n) if start is None else start.posterior.model.basis.n_components
        block = self.block if self.basis_batch_size == "auto" else int(self.basis_batch_size)
        most = self.sweeps * (LEARNING if self.learns_kernel else 1)
        sweeps = min(most, max(1, math.ceil(LEAST_STEPS * block / m)))
        stops = self.n_swept(n) == n and not t.early_stopping and not self.learns_kernel
        return Plan(
            solver="newton",
            dtype=self.basis.dtype(t.dtype),
            max_iter=sweeps if t.max_iter == "auto" else int(t.max_iter),
            batch_size=max(1, block // self.basis.group_size),
            schedule=one_cycle,  # of the kernel
            rate=t.learning_rate_init,
            patience=t.n_iter_no_change or (self.patience if stops else math.inf),
            tol=t.tol,
            holds_out=bool(t.early_stopping),
            evaluates=bool(t.early_stopping),
            folds=folds,
            n_inducing=m,
        )

    def n_swept(self, n_rows: int) -> int:
        """Return p, the number of rows in a sweep."""
        asked = self.training.batch_size
        return min(MOST_SWEPT if asked == "auto" else int(asked), n_rows)

    # ---- model and objective -----------------------------------------------------------------

    def objective(self, problem: Problem) -> BasisObjective:
        problem = problem.trained()
        model = self.model(problem)
        return self.solve(model.to(problem.X.device), problem)

    def model(self, problem: Problem) -> ChevronModel:
        """Make the basis and the likelihood, started from the rows or from the last fit."""
        X, rows, start = problem.X, problem.rows, problem.start
        likelihood, level = started(self.likelihood, rows)
        shift = torch.zeros_like(level) if self.normalize_y else level
        if start is None:
            kernel = self.start_kernel(problem, shift, likelihood)
            basis = self.basis.build(kernel, X, problem.plan.n_inducing, problem.generator)
        else:
            start.check_unchanged()
            basis = copy.deepcopy(start.posterior.model.basis).to(X.device)
        c = dense_columns(self.n_dense, basis.n_components, self.n_swept(len(X)), len(shift))
        model = ChevronModel(
            basis, likelihood, shift, c, X.dtype, self.augments, self.learns_precision
        )
        if start is not None:
            load_fitted(model, start.posterior.model, start)
        return model

    def start_kernel(
        self, problem: Problem, shift: Tensor, likelihood: Likelihood
    ) -> kernels.Kernel:
        """Return k fitted to some rows by an exact GP; set the likelihood's noise likewise."""
        X, rows, expression = problem.X, problem.rows, self.kernel.expression
        if expression is None:
            expression = default_kernel(X)
        found, some = expression + (self.kernel.white or START_NOISE), X[:0]
        if self.n_subset:
            index = rows.in_proportion(self.n_subset)
            some = X[index]
            found = best_on(found, some, real_targets(likelihood, rows, shift)[index])
        level = float(np.clip(found.k2.noise_level, *self.kernel.noise_bounds))
        expression = found.k1
        if isinstance(likelihood, AdditiveNoise):
            likelihood.set_noise_(level)
        elif len(some):
            variance = float(expression.diag(some.cpu().double().numpy()).mean())
            expression = as_latent(expression, level, variance)
        kernel = kernels.from_sklearn(expression)
        kernel.clamp_()
        return kernel.to(X.device)

    def solve(self, model: ChevronModel, problem: Problem) -> BasisObjective:
        """Make the solver's objective."""
        t, n_iter, n = self.training, problem.plan.max_iter, len(problem.X)
        name = "theory" if t.learning_rate == "auto" else t.learning_rate
        schedule = constant if self.n_swept(n) == n else SCHEDULES[name]
        return self.blockwise(
            model,
            problem.X,
            problem.rows,
            n_swept=self.n_swept(n),
            rate=lambda sweep: t.learning_rate_init * schedule(sweep, n_iter),
            **self.learning(model, problem),
        )

    def learning(self, model: ChevronModel, problem: Problem) -> dict[str, Any]:
        """Return which hyper-parameters are learned, and when.

        A diagonal column of C treats its weight as independent of the others. So m such columns on
        n rows of noise σ² add a variance of σ²m/n, however many weights the data determine, and the
        bound is largest at a noise of r²/(1 − m/n), where r² is the mean squared residual. If m is
        large, use the noise of the start, or r² if that is more.
        """
        likelihood, (low, high) = model.likelihood, self.kernel.noise_bounds
        learns_noise = isinstance(likelihood, AdditiveNoise) and low < high
        n_diagonal = model.basis.n_components - model.n_dense
        is_safe = self.learns_precision or n_diagonal <= problem.rows.n_effective / DIAGONAL_ROWS
        if isinstance(likelihood, AdditiveNoise) and learns_noise and not is_safe:
            low = float(likelihood.noise_variance.detach().min())
        return {
            "learns_kernel": self.learns_kernel,
            "learns_noise": learns_noise,
            "counts_variance": is_safe,
            "warm_up": problem.plan.max_iter // 4 if self.learns_kernel else 0,
            "noise_bounds": (low, high),
        }

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        likelihood = fitted.posterior.likelihood
        found: dict[str, Any] = {
            "kernel_": self.fitted_kernel(fitted),
            "likelihood_": likelihood,
            "n_components_": fitted.posterior.model.basis.n_components,
        }
        is_noise = isinstance(likelihood, AdditiveNoise)
        return found | (fitted.of_noise(likelihood) if is_noise else {})

    def fitted_kernel(self, fitted: Fitted) -> sk.Kernel:
        """Return the kernel for the user's X, and the noise if `kernel` has one."""
        model = fitted.posterior.model
        found = self.kernel.in_units(kernels.to_sklearn(model.basis.kernel), fitted.x_scaling)
        if not isinstance(model.likelihood, AdditiveNoise):
            return found
        noise = float(model.likelihood.noise_variance.mean())
        return kernels.join_white_noise(found, noise, self.kernel.white)

    # ---- findings ----------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return bool(self.n_subset or self.learns_kernel) and not self.kernel.is_fixed

    def is_trained(self, fitted: Fitted) -> bool:
        return self.training.is_enough(fitted.history)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        kernel = self.fitted_kernel(fitted)
        yield from self.kernel_findings(fitted, kernel, self.kernel, True)
        m = fitted.posterior.model.basis.n_components
        if (data := fitted.whole) is not None:
            n_rows = data.size - fitted.plan.folds.n_untrained
            yield from of_number("n_components", self.basis.n_components, m, n_rows)
        yield from error_findings(fitted, kernel, self.remedy(m), self.is_trained(fitted))

    def remedy(self, n_functions: int) -> str:
        """Return the advice for a fit that misses a part of the function."""
        return f"Raise n_components, now {n_functions}."

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        return float(posterior.bound_of(X, rows))


# ---- parts ---------------------------------------------------------------------------------------


def dense_columns(asked: int | str, m: int, n_swept: int, n_outputs: int) -> int:
    """Return the number c of dense columns of C; all m if m is small enough.

    *Measured* on two noisy sines of 300 rows, with 1,000 features: f has a standard deviation of
    .43 with 100 dense columns, and of .05 with all, in .5 and 2.2 s.
    """
    if asked != "auto":
        return min(int(asked), m)
    most = DENSE_NUMBERS // ((m + n_swept) * n_outputs)  # each output has a matrix of its own
    return m if m <= min(MOST_DENSE, most) else min(DENSE, most, m)


def real_targets(likelihood: Likelihood, rows: Rows, shift: Tensor) -> Tensor:
    """Return centred real targets, (N, P), for the exact GP that finds the starting kernel.

    Classes become targets −1 and 1, one column for each class.
    """
    if isinstance(likelihood, AdditiveNoise):
        return rows.y - shift
    one_hot = likelihood.indicators(rows.y) if isinstance(likelihood, OneVsRest) else rows.y
    return 2.0 * (one_hot - rows.mean(one_hot))


def as_latent(kernel: sk.Kernel, noise: float, variance: float) -> sk.Kernel:
    """Convert the kernel of a regression on labels −1 and 1 to that of a logistic model's f.

    A regression g with this noise variance σ² has P(y > 0) = Φ(g/σ), about logistic(1.7 g/σ).
    """
    factor = min(LOGIT_SLOPE**2 / noise, MOST_LATENT_VARIANCE / variance)
    scale = getattr(kernel, "k1", None) if isinstance(kernel, sk.Product) else None
    if isinstance(scale, sk.ConstantKernel) and not scale.hyperparameter_constant_value.fixed:
        low, high = scale.constant_value_bounds
        if low <= factor * scale.constant_value <= high:
            scale.constant_value *= factor
            return kernel
    return sk.ConstantKernel(factor, "fixed") * kernel
