"""The recipes of NNGP for classes and counts, whose pseudo-targets are the y of a regression."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...estimators.context import IS_JUDGED
from ...likelihoods.counts import prior_variance_limit
from ...objectives.neighbour_classes import NeighbourClassObjective
from ...objectives.neighbour_counts import NeighbourCountObjective
from ...objectives.neighbours import NeighbourObjective
from ...objectives.pseudo_targets import PseudoTargetObjective
from ...training.recipes.fitted import Fitted
from ...training.recipes.held_out import held_out_predictions
from ...training.recipes.kernel_choice import check_no_noise
from ...training.recipes.recipe import Problem
from .deep import DeepNeighbourClassObjective, MeanLoss, log_losses
from .findings import of_trials, sees_inputs
from .recipe import NeighbourRecipe, check_outputs, default_kernel
from .start import SMOOTHNESS

LITTLE_DISPERSION = 1e-4


@dataclass(frozen=True, kw_only=True)
class PseudoTargetRecipe(NeighbourRecipe):
    """A kernel, learned from pseudo-targets that stand for y.

    Parameters
    ----------
    calibrate : bool, default=True
        Whether rows left out choose how certain f is.
    """

    calibrate: bool = True
    objective_type: ClassVar[type[PseudoTargetObjective]]
    start_time = 0.5
    """Climbs take more than half of a fit without a limit. *Measured* with .6 of its time (NLPD):
    800 counts 2.886 with 0.25, 2.872 with 0.5; 1,500 rows of two classes .3120, .3101."""

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        return super().of(parameters, tails=None, **decided)

    @property
    def weighs_relatively(self) -> bool:
        return False

    @property
    def scales_target(self) -> bool:
        return False

    def objective(self, problem: Problem) -> NeighbourObjective:
        if self.network is not None:
            return self.deep(problem)
        problem, given = problem.trained(), self.kernel.expression
        if (start := problem.start) is None:
            return self.likeliest(problem, given)
        start.check_unchanged()
        return self.going_on(start.posterior, problem)

    def going_on(self, fitted: Any, problem: Problem) -> PseudoTargetObjective:
        """Return the objective that starts from a fitted posterior."""
        return self.made(trained_kernel(fitted), problem)

    def made(
        self,
        expression: sk.Kernel,
        problem: Problem,
        noise: Tensor | None = None,
        mean: Tensor | None = None,
        n_neighbors: int | None = None,
        features: nn.Module | None = None,
        make: Any = None,
    ) -> PseudoTargetObjective:
        X, rows = problem.X, problem.rows
        likelihood = self.likelihood.for_outputs(rows.y.shape[1]).to(X.device)
        level = likelihood.initial_mean(rows.to(torch.float64)) if mean is None else mean
        make = self.objective_type if make is None else make
        return make(
            self.torch_kernel(expression, X, features),
            nn.Sequential() if features is None else features,
            likelihood,
            level.to(X.device),
            X,
            rows,
            calibrates=self.calibrate,
            **self.sizes(problem, n_neighbors, features is not None),
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
        kernel = kernels.to_sklearn(posterior.kernel)
        return self.kernel.in_units(kernel, x_scaling) if sees_inputs(posterior) else kernel


@dataclass(frozen=True, kw_only=True)
class NeighbourClassRecipe(PseudoTargetRecipe):
    """A kernel, and pseudo-targets that stand for classes."""

    objective_type = NeighbourClassObjective
    deep_type = DeepNeighbourClassObjective

    def mean_loss(self, rows: Rows) -> MeanLoss:
        n_classes = max(2, self.likelihood.n_latents(1))
        return log_losses(rows[rows.n_held_out :], n_classes)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        if not IS_JUDGED.get():
            yield from of_trials(fitted)


@dataclass(frozen=True, kw_only=True)
class NeighbourCountRecipe(PseudoTargetRecipe):
    """A kernel, and pseudo-targets that stand for counts."""

    objective_type = NeighbourCountObjective

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        if parameters.hidden_layer_sizes or parameters.feature_map is not None:
            raise ValueError(
                "hidden_layer_sizes must be () and feature_map None with "
                f"likelihood={parameters.likelihood!r}: neighbours of counts are near in X. Use "
                "DeepKernelEnsembleRegressor or SVGPRegressor, which learn networks for counts."
            )
        return super().of(parameters, **decided)

    def check(self, data: Data) -> None:
        super().check(data)
        check_no_noise(self.kernel.white, self.likelihood)

    def going_on(self, fitted: Any, problem: Problem) -> PseudoTargetObjective:
        check_outputs(fitted, problem.rows)
        same = replace(self, likelihood=fitted.likelihood)
        return same.made(trained_kernel(fitted), problem, mean=fitted.level)

    def made(self, expression: sk.Kernel, problem: Problem, *given: Any, **by_name: Any) -> Any:
        objective = super().made(expression, problem, *given, **by_name)
        if self.mean == "zero":
            objective.mean.data.zero_()
            objective.mean.requires_grad_(False)
        return objective

    @property
    def starts(self) -> Sequence[NeighbourRecipe]:
        """Counts that vary little more than Poisson counts are tried, too.

        A kernel that is chosen with a large dispersion stays, though this falls. *Measured* on a
        rate with a rough part: evidence −8,405 with ν = 1/2, −7,705 with both starts and ν = 5/2.
        """
        if not self.likelihood.learns_dispersion:
            return (self,)
        likelihood: Any = copy.deepcopy(self.likelihood)
        likelihood.log_dispersion.data.fill_(math.log(LITTLE_DISPERSION))
        return self, replace(self, likelihood=likelihood)

    def usual_kernels(self, X: Tensor, rows: Rows) -> list[sk.Kernel]:
        most = prior_variance_limit(self.likelihood, rows)
        return [default_kernel(X, nu, most) for nu in SMOOTHNESS]


def trained_kernel(fitted: Any) -> sk.Kernel:
    """Return the kernel of a posterior as training left it, before rows left out changed f − c."""
    return kernels.to_sklearn(kernels.scaled(fitted.kernel, float(fitted.stretch) ** -2))
