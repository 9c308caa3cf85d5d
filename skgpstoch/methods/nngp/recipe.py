"""The recipe of NNGP: the kernel and the network, and which rows an epoch takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...calibration.tails import TailChoice
from ...data.arrays import Scaling
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...kernels import check_length_scales
from ...kernels.sets import nearness
from ...likelihoods.real import Gaussian
from ...objectives.neighbours import NeighbourObjective
from ...recipes.kernel_choice import MOST_RELEVANT_INPUTS, KernelChoice, has_free_scale
from ...recipes.plan import Plan, Sizes, Start, Training, epochs
from ...recipes.recipe import Fitted, Problem, Recipe
from ...training.optimizers import SCHEDULES
from .start import SMOOTHNESS, likeliest

BATCH_ROWS = 256  # "auto"
EPOCH_STEPS = 30  # between searches for neighbours
STEPS = (90, 10, 300)  # "auto": so many, and more for each hyper-parameter; at most
FEW = 16  # neighbours while smoothness is chosen
PREDICTING = 128  # neighbours of predictions, "auto"
START_NOISE = 0.1


@dataclass(frozen=True, kw_only=True)
class NeighbourRecipe(Recipe):
    """A kernel, learned from the densities of rows given their neighbours.

    Parameters
    ----------
    kernel : KernelChoice
        The kernel and the noise to start from.
    training, n_neighbors, n_neighbors_predict, loss
        See :class:`~skgpstoch.NNGPRegressor`.
    """

    kernel: KernelChoice
    training: Training
    n_neighbors: int
    n_neighbors_predict: int | None
    loss: str
    tails: TailChoice
    merges_many: bool = True

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        made = {
            "kernel": KernelChoice.of(parameters.kernel, START_NOISE),
            "training": Training.of(parameters),
        }
        return super().of(parameters, **made | decided)

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n = self.training, sizes.n_rows
        b = min(n, BATCH_ROWS if t.batch_size == "auto" else int(t.batch_size))
        n_epoch = min(n, EPOCH_STEPS * b)
        return Plan(
            solver="adam",
            dtype=t.dtype,
            max_iter=epochs(self.n_steps(sizes.n_features), n_epoch, b)
            if t.max_iter == "auto"
            else int(t.max_iter),
            batch_size=b,
            schedule=SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init,
            patience=t.n_iter_no_change or math.inf,
            tol=t.tol,
        )

    def n_steps(self, n_features: int) -> int:
        """Return the number of training steps for "auto"."""
        given = self.kernel.expression
        n_learned = n_features if given is None else given.n_dims
        least, each, most = STEPS
        return min(least + each * (n_learned + 3), most)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.kernel.input_scaling(X, weight, standardizes=True)

    # ---- objective ---------------------------------------------------------------------------

    def objective(self, problem: Problem) -> NeighbourObjective:
        X, rows, generator = problem.X, problem.rows, problem.generator
        given = self.kernel.expression
        if (start := problem.start) is not None:
            start.check_unchanged()
            fitted = start.posterior
            kernel = kernels.to_sklearn(fitted.kernel)
            return self.made(kernel, problem, fitted.variance, fitted.constant)
        if given is not None:
            return self.made(given, problem)
        t, d = self.training, X.shape[1]
        makers = [
            functools.partial(self.made, default_kernel(d, nu), problem, n_neighbors=FEW)
            for nu in SMOOTHNESS
        ]
        best = likeliest(makers, X, rows, t.learning_rate_init, problem.plan.batch_size, generator)
        noise, mean = best.likelihood.noise_variance.detach(), best.mean.detach()
        return self.made(kernels.to_sklearn(best.kernel), problem, noise, mean)

    def made(
        self,
        expression: sk.Kernel,
        problem: Problem,
        noise: Tensor | None = None,
        mean: Tensor | None = None,
        n_neighbors: int | None = None,
    ) -> NeighbourObjective:
        """Return the objective that starts from a kernel, a noise and a mean."""
        X, rows = problem.X, problem.rows
        n, d = X.shape
        kernel = kernels.from_sklearn(expression).to(X.device)
        check_length_scales(kernel, d)
        check_nearness(kernel, d)
        level = rows.y.new_full(rows.y.shape[1:], self.kernel.start_noise).double()
        asked = self.n_neighbors if n_neighbors is None else min(n_neighbors, self.n_neighbors)
        predicting = PREDICTING if self.n_neighbors_predict is None else self.n_neighbors_predict
        return NeighbourObjective(
            kernel,
            nn.Identity(),
            Gaussian((level if noise is None else noise).to(X.device)),
            (rows.mean(rows.y.double()) if mean is None else mean).to(X.device),
            noise_bounds=self.kernel.noise_bounds,
            n_neighbors=min(asked, n - 1),
            n_neighbors_predict=min(predicting, n),
            is_ordered=self.loss != "leave_one_out",
            n_epoch=EPOCH_STEPS * problem.plan.batch_size,
            tails=self.tail_choice,
        )

    @property
    def tail_choice(self) -> TailChoice:
        """What rows left out may choose."""
        given = self.kernel.expression
        is_free = given is None or has_free_scale(given)
        return self.tails._replace(scales=is_free and self.kernel.learns_noise)

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior = fitted.posterior
        value = float(posterior.log_evidence().sum())
        return {
            "kernel_": self.fitted_kernel(posterior, fitted.x_scaling),
            "log_marginal_likelihood_value_": fitted.in_units(value, posterior.n_rows),
            **fitted.of_noise(posterior.likelihood),
        }

    def fitted_kernel(self, posterior: Any, x_scaling: Scaling) -> sk.Kernel:
        """Return the kernel for the user's X, with a WhiteKernel if there was one."""
        kernel = self.kernel.in_units(kernels.to_sklearn(posterior.kernel), x_scaling)
        noise = float(posterior.variance.mean())
        return kernels.join_white_noise(kernel, noise, self.kernel.white)

    @property
    def learns(self) -> bool:
        return not self.kernel.is_fixed

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        kernel = self.fitted_kernel(fitted.posterior, fitted.x_scaling)
        yield from self.kernel_findings(fitted, kernel, self.kernel, True)

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        return float(posterior.refit(X, rows).log_evidence().sum())


def default_kernel(n_features: int, nu: float) -> sk.Kernel:
    """Return a kernel for standardised inputs and targets."""
    n_scales = n_features if n_features <= MOST_RELEVANT_INPUTS else 1
    shape = sk.Matern(np.full(n_scales, math.sqrt(n_features)), (1e-5, 1e5), nu=nu)
    return sk.ConstantKernel(1.0, (1e-5, 1e5)) * shape


def check_nearness(kernel: kernels.Kernel, n_inputs: int) -> None:
    """Raise a ValueError if no row is nearer than another under a kernel."""
    if not bool(nearness(kernel, n_inputs).any()):
        raise ValueError(
            f"kernel must fall with distance, got {kernels.to_sklearn(kernel)}, under which no "
            "rows are neighbours. Use SVGPRegressor or SCGDGaussianProcessRegressor for linear and "
            "periodic kernels, or add a term such as Matern."
        )
