"""The recipe of NNGP: the kernel and the network, and which rows an epoch takes."""

from __future__ import annotations

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

BATCH_ROWS = 256  # "auto"
EPOCH_STEPS = 30  # between searches for neighbours
STEPS = 300  # "auto"
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
            max_iter=epochs(STEPS, n_epoch, b) if t.max_iter == "auto" else int(t.max_iter),
            batch_size=b,
            schedule=SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init,
            patience=t.n_iter_no_change or math.inf,
            tol=t.tol,
        )

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.kernel.input_scaling(X, weight, standardizes=True)

    # ---- objective ---------------------------------------------------------------------------

    def objective(self, problem: Problem) -> NeighbourObjective:
        X, rows, plan = problem.X, problem.rows, problem.plan
        n, d = X.shape
        expression = self.kernel.expression
        if expression is None:
            expression = default_kernel(d, 1.5)
        kernel = kernels.from_sklearn(expression).to(X.device)
        check_length_scales(kernel, d)
        check_nearness(kernel, d)
        noise = torch.full((rows.y.shape[1],), self.kernel.start_noise, dtype=torch.float64)
        mean = rows.mean(rows.y.double())
        if (start := problem.start) is not None:
            start.check_unchanged(("kernel",))
            kernel = kernels.from_sklearn(kernels.to_sklearn(start.posterior.kernel)).to(X.device)
            noise, mean = start.posterior.variance, start.posterior.constant
        predicting = PREDICTING if self.n_neighbors_predict is None else self.n_neighbors_predict
        return NeighbourObjective(
            kernel,
            nn.Identity(),
            Gaussian(noise.to(X.device)),
            mean.to(X.device),
            noise_bounds=self.kernel.noise_bounds,
            n_neighbors=min(self.n_neighbors, n - 1),
            n_neighbors_predict=min(predicting, n),
            is_ordered=self.loss != "leave_one_out",
            n_epoch=EPOCH_STEPS * plan.batch_size,
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
