"""The recipe for sparse variational models: q(w) on the features that a builder makes.

A likelihood, a loss, a feature builder and a solver make a variational model and its objective;
:mod:`skgpstoch.training.recipes.variational_plan` says how they are chosen. The builders are in
:mod:`skgpstoch.training.recipes.inducing`, :mod:`skgpstoch.training.recipes.layers` and
:mod:`skgpstoch.training.recipes.patches`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...data.devices import HOST
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...kernels import join_white_noise
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...losses import ExpectedLogLikelihood
from ...models.deep import DeepModel
from ...models.features.inducing import InducingFeatures
from ...models.features.orthogonal import OrthogonalFeatures
from ...models.hyper_prior import HyperPrior
from ...models.layers import DeepFeatures
from ...models.sparse import ConstantMean, RowScale, SparseModel, SparsePosterior
from ...objectives.adam import GradientObjective
from ...objectives.all_rows import AllRowsObjective, ExactObjective
from ...objectives.lbfgs import CollapsedObjective, DualObjective, FullBatchObjective
from ...objectives.natural import ProfiledObjective, RunningObjective
from ...objectives.optimal_q import optimal_q
from ...objectives.variational import VariationalObjective
from .exact_start import exact_start
from .findings import of_number, of_residual
from .fitted import Fitted
from .fitted_errors import error_findings, unit_of
from .plan import Start, load_fitted
from .recipe import Problem, started
from .row_findings import of_constant_outputs
from .variational_plan import VariationalChoices

SOME_ROWS = 200  # rows whose residual variance is checked
ENOUGH_POINTS = 0.05
"""Of the residual variance that is too much: more points change nothing, unless they are so few
that training left f for a smooth one, which users who chose their number are told."""
OTHER_SCALES = "Start from a kernel with shorter length-scales, or use NNGPRegressor."
SOME_PRIORS = 100  # rows whose prior variances tell the factor of a kernel
NEGLIGIBLE_RESIDUAL = 1e-3  # residual variance that is always allowed, over the variance of y


@torch.no_grad()
def as_trained(posterior: SparsePosterior, X: Tensor) -> SparsePosterior:
    """Return a posterior with the mean of w before calibration made its features larger."""
    if posterior.model.trained_noise is None:
        return posterior
    found, rows = copy.deepcopy(posterior), X[:SOME_PRIORS].to(posterior.weights.mean)
    larger = found.model.features.basis(rows).prior.sum()
    factor = (larger / found.model.for_training().features.basis(rows).prior.sum()).sqrt()
    if bool(factor.isfinite()):  # else f is 0 at these rows
        found.weights.mean.mul_(factor)
    return found


@dataclass(frozen=True, kw_only=True)
class VariationalRecipe(VariationalChoices):
    """A variational model on features, trained with a loss."""

    # ---- model and objective -----------------------------------------------------------------

    def start(self, problem: Problem) -> Start | None:
        if not problem.plan.start_rows:
            return problem.start
        return exact_start(self.model(problem), problem, self.features)

    def objective(self, problem: Problem) -> VariationalObjective:
        if problem.plan.folds.size:
            problem = problem.trained()
        objective, start = self.solve(self.model(problem), problem), problem.start
        if start is None or start.is_new or objective.is_closed():
            return objective
        if start.keeps_q and (start.is_fixed or objective.learns_q):
            objective.start_from(as_trained(start.posterior, problem.X))
        return objective

    def model(self, problem: Problem) -> SparseModel:
        """Make features, likelihood and mean where the fit starts: from rows, or from a model."""
        start, fitted = problem.start, None
        if start is not None and start.is_new:
            return start.posterior.model
        if start is not None:
            fitted = start.posterior.model.for_training()
        made = self.new_model(problem, fitted)
        self.set_trainable(made, problem.rows.n_all)
        if start is not None and fitted is not None:
            load_fitted(made, fitted, start)
            if self.mean == "zero":  # the previous fit may have learned a constant
                made.mean.value.data.zero_()
            if start.is_fixed:
                made.requires_grad_(False)
                made.hyper_prior = None
        return made.to(problem.X.device)

    def new_model(self, problem: Problem, fitted: SparseModel | None) -> SparseModel:
        """Make features, likelihood and mean, started from rows."""
        rows, kernel = problem.rows, self.features.kernel
        noise = None if kernel.white is None else kernel.start_noise
        likelihood, level = started(self.likelihood, rows, noise)
        mean = ConstantMean(level if self.mean == "constant" else torch.zeros_like(level))
        features = self.features.build(problem, self.likelihood, len(level), fitted)
        blocks = prior_blocks(self.features.posterior, features.blocks)
        scale = None
        if self.scales_noise:
            scale = RowScale(rows.y.new_zeros(sum(features.blocks), rows.y.shape[1]))
        kind = DeepModel if isinstance(features, DeepFeatures) else SparseModel
        made = kind(features, likelihood, mean, blocks, self.loss, problem.plan.beta, scale)
        if self.has_default_kernel(features) and self.has_gaussian_noise:
            made.hyper_prior = HyperPrior.of(rows)
        return made

    def set_trainable(self, model: SparseModel, n_rows: int) -> None:
        """Mark parameters as trainable, except fixed ones, and points if all rows are points."""
        learns_variance = self.covariance != "prior"  # else only the ratio of noise to beta counts
        if not (self.features.kernel.learns_noise and learns_variance):
            model.likelihood.requires_grad_(False)
        model.mean.requires_grad_(self.mean == "constant")
        self.features.set_trainable(model.features, n_rows, learns_variance)

    def solve(
        self, model: SparseModel, problem: Problem, n_before: float = 0.0
    ) -> VariationalObjective:
        """Make the solver's objective for these rows and `n_before` earlier ones."""
        network, n_rows = self.features.network, problem.rows.n_effective + n_before
        objective = self.way(model, problem)(
            model,
            n_rows,
            mean_weight=problem.rows.mean_weight,
            weight_decay=0.0 if network is None else network.decay(n_rows),
            noise_bounds=self.features.kernel.noise_bounds,
        )
        objective.has_user_module = network is not None and network.module is not None
        return objective

    def way(self, model: SparseModel, problem: Problem) -> Callable[..., VariationalObjective]:
        """Return how q(w) is found: the objective's class, and what is its own."""
        plan, chosen = problem.plan, self.solver == "auto"
        if plan.all_rows:
            of_sites = partial(AllRowsObjective, X=problem.X, rows=problem.rows)
            return ExactObjective if plan.all_rows == "exact" else of_sites
        if plan.solver == "lbfgs":
            if chosen and self.is_collapsed(model, problem.rows):
                return CollapsedObjective
            return DualObjective if chosen and not model.is_conjugate else FullBatchObjective
        if plan.solver == "adam":
            return partial(GradientObjective, whiten=self.whiten)
        averages = partial(RunningObjective, conjugate=plan.solver == "collapsed")
        found = ProfiledObjective if self.covariance == "gradient" else averages
        return partial(found, averaging=self.averaging)

    def is_of_inputs(self, features: Any) -> bool:
        """Whether the features are those of a kernel on the inputs, without network or layers."""
        return self.features.network is None and type(features) in (
            InducingFeatures,
            OrthogonalFeatures,
        )

    @property
    def has_prior(self) -> bool:
        return self.features.kernel.expression is None and self.has_gaussian_noise

    def has_default_kernel(self, features: Any) -> bool:
        """Whether the kernel, or the last layer's, is on columns, and the user gave none."""
        last = features.last if isinstance(features, DeepFeatures) else features
        return self.features.kernel.expression is None and self.is_of_inputs(last)

    def is_collapsed(self, model: SparseModel, rows: Rows) -> bool:
        """Whether the bound is Titsias' or SOLVE-GP's, with the same noise for all rows."""
        is_plain = self.is_of_inputs(model.features)
        is_usual = type(self.loss) is ExpectedLogLikelihood and self.bounds_gaussian_evidence
        has_q = not any(model.has_prior_covariance)
        return is_usual and is_plain and has_q and rows.noise is None

    # ---- streams -----------------------------------------------------------------------------

    def check_streams(self) -> None:
        if self.solver == "lbfgs":
            raise ValueError(
                "partial_fit needs minibatches, which solver='lbfgs' does not use. Choose "
                "another solver."
            )

    def stream(self, problem: Problem, posterior: Any) -> VariationalObjective:
        if self.covariance == "prior":
            raise ValueError(
                f"partial_fit needs a loss that depends on variances, which {self.loss!r} "
                "does not: the variances need a pass over all rows. Choose another loss, "
                "or call fit."
            )
        if posterior is None:
            objective = self.objective(problem)
            objective.model.hyper_prior = None  # it depends on all rows, which are not known yet
        else:
            model = posterior.model.for_training(problem.X)
            model.loss, model.beta = self.loss, problem.plan.beta
            self.set_trainable(model, math.ceil(problem.rows.n_effective + posterior.n_rows))
            objective = self.solve(model, problem, posterior.n_rows)
            objective.start_from(posterior)
        objective.streams = True
        return objective

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        likelihood = fitted.posterior.model.likelihood
        found: dict[str, Any] = self.features.attributes(fitted)
        found |= {
            "solver_": fitted.plan.solver,
            "likelihood_": likelihood,
            "kernel_": self.fitted_kernel(fitted),
            "log_marginal_likelihood_value_": bound_of(fitted),
        }
        if isinstance(likelihood, AdditiveNoise):
            likelihood = likelihood.in_units(torch.from_numpy(fitted.y_scaling.scale))
            found["likelihood_"] = likelihood
            found["noise_variance_"] = fitted.per_output(likelihood.noise_variance)
        return found

    def fitted_kernel(self, fitted: Fitted) -> sk.Kernel:
        """Return the kernel for the user's X, and the noise if `kernel` has one."""
        model = fitted.posterior.model
        expression = self.features.fitted_kernel(model.features, fitted.x_scaling)
        if not isinstance(model.likelihood, Gaussian):
            return expression
        noise = float(model.likelihood.noise_variance.mean())
        return join_white_noise(expression, noise, self.features.kernel.white)

    # ---- findings ----------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        kernel = self.features.kernel
        if not any(parameter.requires_grad for parameter in self.likelihood.parameters()):
            kernel = kernel._replace(learns_noise=False)  # the likelihood has no noise to learn
        return self.features.network is not None or not kernel.is_fixed

    @property
    def chooses_inputs(self) -> bool:
        return self.features.chooses_inputs

    def is_trained(self, fitted: Fitted) -> bool:
        return self.training.is_enough(fitted.history)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        solver, features = fitted.plan.solver, self.features
        if self.n_restarts and solver != "lbfgs":
            yield Finding(
                "idle restarts",
                "n_restarts",
                self.n_restarts,
                0,
                "problem",
                f"n_restarts={self.n_restarts} was ignored, because solver='auto' chose "
                f"{solver!r} for these rows, which does not train to an optimum.",
                "Set solver='lbfgs' to train from several starts.",
            )
        kernel = self.fitted_kernel(fitted)
        yield from self.kernel_findings(fitted, kernel, features.kernel, features.sees_inputs)
        if (data := fitted.whole) is not None:
            if isinstance(self.likelihood, AdditiveNoise) and self.learns:
                yield from of_constant_outputs(data.y)
            yield from self.point_findings(fitted, data, kernel if features.sees_inputs else None)

    def point_findings(
        self, fitted: Fitted, data: Data, kernel: sk.Kernel | None
    ) -> Iterator[Finding]:
        """Yield whether there are as many points as asked for, and enough for the function."""
        features, plan = self.features, fitted.plan
        most = features.n_choices(data.size - plan.folds.n_untrained, data.X.shape[1])
        yield from of_number("n_inducing", features.n_inducing, plan.n_inducing, most)
        if plan.n_orthogonal:
            yield from of_number("n_orthogonal", features.n_orthogonal, plan.n_orthogonal, most)
        advice = f"Raise n_inducing, now {plan.n_inducing}."
        is_trained = self.is_trained(fitted)
        if isinstance(self.loss, ExpectedLogLikelihood):  # other losses may use residuals as noise
            some = data[:: math.ceil(len(data) / SOME_ROWS)]
            X = fitted.x_scaling.tensor(some.X, torch.float64, HOST)
            with torch.no_grad():
                basis = fitted.posterior.model.features.basis(X)
            noise = self.noise(fitted, data)
            is_complete = self.training.is_complete(fitted.history)
            for found in of_residual(basis, some.weight, noise, advice, is_complete):
                yield found
                if features.n_inducing == "auto" and found.value < ENOUGH_POINTS * found.limit:
                    advice = OTHER_SCALES
        yield from error_findings(fitted, kernel, advice, is_trained)

    def noise(self, fitted: Fitted, data: Data) -> float | None:
        """Return the mean noise variance of a row, y_std included; None without additive noise."""
        likelihood = fitted.posterior.likelihood
        if not isinstance(likelihood, AdditiveNoise):
            return None
        learned, known = float(likelihood.noise_variance.mean()), 0.0
        if data.y_std is not None:
            squares = np.square(data.y_std / fitted.y_scaling.scale)  # (n, P)
            known = float(np.average(squares.mean(1), weights=data.weight))
        return learned + known + NEGLIGIBLE_RESIDUAL * unit_of(self, data) ** 2

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        model = posterior.model.for_evidence()
        if not model.likelihood.has_bound:
            raise ValueError(
                "The marginal likelihood has no lower bound with the likelihood "
                f"{model.likelihood!r}."
            )
        return float(optimal_q(model, X, rows).value)


def bound_of(fitted: Fitted) -> float:
    """Return a fit's bound on log p(y | X), for y in the user's units."""
    value = float(fitted.posterior.log_evidence().sum())
    return fitted.in_units(value, fitted.posterior.n_rows)


def prior_blocks(posterior: str, blocks: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell for each block of features whether q keeps the prior's covariance."""
    return tuple(posterior == "odvgp" and b > 0 for b in range(len(blocks)))
