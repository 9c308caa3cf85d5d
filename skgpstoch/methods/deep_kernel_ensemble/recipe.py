"""Deep kernel ensembles: networks with Bayesian last layers, trained for their predictions.

K networks φ_k map inputs to features, and each has Bayesian linear regression as its last layer,

    f_k(x) = φ_k(x)ᵀw_k + mean,   w_k ~ N(0, I),   q_k(w) = N(m_k, S_k),

a Gaussian process whose kernel φ_k(x)ᵀφ_k(x') is learned. Each member is trained by Adam, without
one fold of the rows, for the log-loss (C1) of :mod:`skgpstoch.methods.dlm`, or for the negative
bound (B2) if y holds classes. With up to 100,000 rows, it finally gets the m_k that is best for all
rows (:mod:`skgpstoch.objectives.ensemble`). The prediction is the mixture of the members,
recalibrated on rows that none of them has seen (:mod:`skgpstoch.models.calibration.held_out`). The
scale of the noise is a second function of the features. Waves beside the inputs let a network bend
sharply along an input (:class:`~skgpstoch.models.features.network.PeriodicInputs`), and scales of
the inputs let it ignore others (:class:`~skgpstoch.models.features.network.InputScales`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.arrays import Scaling
from ...data.equal_rows import Merging
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...estimators.context import IS_JUDGED
from ...likelihoods.counts import Poisson
from ...likelihoods.probabilities import ClassLikelihood
from ...likelihoods.real import AdditiveNoise
from ...losses import Loss
from ...models.features.base import FeatureMap
from ...models.features.network import (
    InputLimits,
    InputScales,
    ignore_constants_,
    multilayer_perceptron,
)
from ...models.sparse import ConstantMean, RowScale, SparseModel
from ...objectives.ensemble import EnsembleObjective
from ...objectives.optimal_q import optimal_q
from ...training.recipes.evidence import feature_kernel
from ...training.recipes.fitted import Fitted
from ...training.recipes.fitted_errors import error_findings, of_nearest_classes
from ...training.recipes.held_out import held_out_predictions, of_fitted_counts
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.mean_findings import of_fitted_means
from ...training.recipes.networks import Network, build_network, finite_features
from ...training.recipes.plan import Plan, Sizes, Start, Training, overfit_patience
from ...training.recipes.recipe import Problem, Recipe, started
from ...training.recipes.variational import bound_of
from ...training.recipes.variational_plan import check_choices, check_input_noise
from .plan import FEW_DIRECT, ensemble_plan, scale_rate

N_WAVES = 8
WAVE_ROWS = 1000  # that tell how many values an input takes
FEW_VALUES = 8  # of an input, with which it has no waves
SAME = 1e-3  # standard deviations by which equal values may differ
LEAST_OF_CLASSES = 2  # networks, for lack of time: the confidence of one is not calibrated


@dataclass(frozen=True, kw_only=True)
class EnsembleRecipe(Recipe):
    """Networks with Bayesian last layers, each trained for a loss.

    Parameters
    ----------
    loss : Loss
        The loss of a row.
    kernel : KernelChoice
        The kernel of the features, or on them, and the noise.
    network : Network or None
        The network whose outputs are the features.
    training, n_components, n_estimators, n_waves, mean, beta, calibrates, scales_noise
        See :class:`DeepKernelEnsembleRegressor`.
    """

    loss: Loss
    kernel: KernelChoice
    network: Network | None
    training: Training
    n_components: int = 1000
    n_estimators: int | str = "auto"
    n_waves: int | str = "auto"
    mean: str = "constant"
    beta: float = 1.0
    calibrates: bool = True
    scales_noise: bool = False
    equal_rows: Merging = "copies last"  # so that neighbours leave out the same rows

    @property
    def scales_target(self) -> bool:
        return self.normalize_y and isinstance(self.likelihood, AdditiveNoise)

    @property
    def has_networks(self) -> bool:
        """Whether the features are our own networks."""
        return self.network is not None and self.network.module is None

    def check(self, data: Data) -> None:
        self.check_rows(data)
        check_choices(self.likelihood, self.loss, self.kernel.white)
        if data.y_std is not None and self.loss.covariance(self.likelihood) == "prior":
            raise ValueError(
                "y_std must be None with the square loss, which has no noise variance."
            )
        if self.scales_noise:
            check_input_noise(self.likelihood, self.loss)

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        of_classes = self.likelihood.for_classes_only
        plan = ensemble_plan(
            self.training, sizes.n_rows, self.n_estimators, self.has_networks, of_classes
        )
        return replace(plan, beta=self.beta)

    def plan_of(self, sizes: Sizes, n_members: int) -> Plan:
        if self.n_estimators != "auto":
            return self.plan(sizes)
        least = LEAST_OF_CLASSES if self.likelihood.for_classes_only else 1
        return replace(self, n_estimators=max(n_members, least)).plan(sizes)

    def sums_rows(self, plan: Plan) -> bool:
        return True

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.network is not None:
            scaling = self.network.input_scaling(X, weight)
            are_classes = self.has_networks and isinstance(self.likelihood, ClassLikelihood)
            return scaling.with_near_levels(X) if are_classes else scaling
        return self.kernel.input_scaling(X, weight, standardizes=True)

    def objective(self, problem: Problem) -> EnsembleObjective:
        plan, rows = problem.plan, problem.rows
        some = rows[plan.folds.n_untrained :]
        noise = None if self.kernel.white is None else self.kernel.start_noise
        likelihood, level = started(self.likelihood, some, noise)
        mean = ConstantMean(level if self.mean == "constant" else torch.zeros_like(level))
        features: Any = self.features(problem)
        scale = None
        if self.scales_noise:
            shape = features.n_members, features.n_features, rows.y.shape[1]
            scale = RowScale(rows.y.new_zeros(shape))
        model = SparseModel(features, likelihood, mean, None, self.loss, plan.beta, scale)
        if not self.kernel.learns_noise:
            likelihood.requires_grad_(False)
        mean.requires_grad_(self.mean == "constant")
        decay = 0.0
        if self.network is not None:
            self.network.freeze(features.network)
            decay = self.network.decay(rows.n_effective)
        objective = EnsembleObjective(
            model.to(problem.X.device),
            rows,
            weight_decay=decay,
            scale_rate=scale_rate(plan, problem.table.n_rows),
            noise_bounds=self.kernel.noise_bounds,
            calibrates=self.calibrates,
        )
        if self.training.n_iter_no_change is None:
            objective.overfit_patience = overfit_patience(plan.max_iter)
        objective.has_user_module = self.network is not None and not self.has_networks
        if self.has_networks and objective.has_all_rows:
            ignore_constants_(features.network, problem.X, objective.seen(rows))
        return objective

    def features(self, problem: Problem) -> FeatureMap:
        """Return φ_k before training."""
        X, K, generator = problem.X, problem.plan.folds.n_folds, problem.generator
        if self.network is not None and self.has_networks:
            network, width = self.waved(problem, K), self.network.layers[-1]
        else:
            network, width = build_network(self.network, X, generator)
        needs_limits = self.has_networks and isinstance(self.likelihood, Poisson | ClassLikelihood)
        limits = InputLimits(X) if needs_limits else None
        return finite_features(
            self.kernel, network, width, X.shape[1], self.n_components, K, generator, limits
        )

    def waved(self, problem: Problem, n_members: int) -> nn.Module:
        """Return networks that see waves of the inputs beside the inputs."""
        X, generator = problem.X, problem.generator
        network, columns = self.network, many_valued(X)
        assert network is not None
        n_waves = N_WAVES if self.n_waves == "auto" else int(self.n_waves)
        # Few rows of classes need less detail: every other network has no waves.
        some_plain = self.likelihood.for_classes_only and problem.rows.n_all <= FEW_DIRECT
        every = 2 if self.n_waves == "auto" and some_plain else 1
        layers = multilayer_perceptron(
            X.shape[1],
            network.layers,
            network.activation,
            generator,
            n_members,
            n_waves=n_waves if len(columns) else 0,
            columns=columns,
            every=every,
        )
        return nn.Sequential(InputScales(n_members, X.shape[1], generator), *layers).to(X)

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        model = fitted.posterior.model
        found = {
            "likelihood_": model.likelihood,
            "kernel_": feature_kernel(model.features),
            "log_marginal_likelihood_value_": bound_of(fitted),
            "held_out_": held_out_predictions(fitted),
        }
        is_noise = isinstance(model.likelihood, AdditiveNoise)
        of_noise = fitted.of_noise(model.likelihood) if is_noise else {}
        return {**found, **fitted.of_budget(), **of_noise}

    @property
    def learns(self) -> bool:
        return self.network is not None or not self.kernel.is_fixed

    def is_trained(self, fitted: Fitted) -> bool:
        return self.training.is_enough(fitted.history)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        data, is_trained = fitted.judged, self.is_trained(fitted)
        if data is None or IS_JUDGED.get():
            return
        if isinstance(self.likelihood, AdditiveNoise):
            advice = "Use NNGPRegressor or AutoGaussianProcessRegressor, or raise max_iter."
            yield from error_findings(fitted, None, advice, is_trained)
            yield from of_fitted_means(fitted)
        elif self.likelihood.for_classes_only:
            yield from of_nearest_classes(fitted, data, None, is_trained)
        elif isinstance(self.likelihood, Poisson):
            yield from of_fitted_counts(fitted)

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        for finding in super().training_findings(
            fitted
        ):  # of the last layers before they are closed
            yield finding.noted()

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        model = posterior.model.for_evidence()
        if not model.likelihood.has_bound:
            raise ValueError(
                "The marginal likelihood has no lower bound with the likelihood "
                f"{model.likelihood!r}."
            )
        return float(optimal_q(model, X, rows).value)


def many_valued(X: Tensor) -> Tensor:
    """Return the positions of the columns of scaled X that take more than a few values."""
    values = X[:WAVE_ROWS].div(SAME).round()  # in random order
    counts = [len(torch.unique(column)) for column in values.mT]
    columns = [j for j, count in enumerate(counts) if count > FEW_VALUES]
    return torch.tensor(columns, dtype=torch.long, device=X.device)
