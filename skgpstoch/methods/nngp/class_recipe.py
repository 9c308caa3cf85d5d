"""The recipe of NNGP for classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...objectives.neighbour_classes import NeighbourClassObjective
from ...objectives.neighbours import NeighbourObjective
from ...training.recipes.held_out import held_out_predictions
from ...training.recipes.recipe import Fitted, Problem
from .recipe import NeighbourRecipe


@dataclass(frozen=True, kw_only=True)
class NeighbourClassRecipe(NeighbourRecipe):
    """A kernel, learned from pseudo-targets that stand for classes.

    Parameters
    ----------
    calibrate : bool, default=True
        Whether rows left out choose how certain the classes are.
    """

    calibrate: bool = True

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        return super().of(parameters, network=None, tails=None, **decided)

    @property
    def weighs_relatively(self) -> bool:
        return False

    def objective(self, problem: Problem) -> NeighbourObjective:
        problem, given = problem.trained(), self.kernel.expression
        if (start := problem.start) is not None:
            start.check_unchanged()
            fitted = start.posterior
            kernel = kernels.scaled(fitted.kernel, float(fitted.stretch) ** -2)
            return self.made(kernels.to_sklearn(kernel), problem)
        return self.likeliest(problem, given)

    def made(
        self,
        expression: sk.Kernel,
        problem: Problem,
        noise: Tensor | None = None,
        mean: Tensor | None = None,
        n_neighbors: int | None = None,
        features: nn.Module | None = None,
        make: Any = NeighbourClassObjective,
    ) -> NeighbourClassObjective:
        X, rows = problem.X, problem.rows
        likelihood = self.likelihood.to(X.device)
        return make(
            self.torch_kernel(expression, X, features),
            nn.Sequential(),
            likelihood,
            likelihood.initial_mean(rows.to(torch.float64)),
            X,
            rows,
            calibrates=self.calibrate,
            **self.sizes(problem, n_neighbors, False),
        )

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior = fitted.posterior
        return {
            "kernel_": self.fitted_kernel(posterior, fitted.x_scaling),
            "likelihood_": posterior.likelihood,
            "held_out_": held_out_predictions(fitted),
            **fitted.of_budget(),
        }

    def fitted_kernel(self, posterior: Any, x_scaling: Scaling) -> sk.Kernel:
        return self.kernel.in_units(kernels.to_sklearn(posterior.kernel), x_scaling)
