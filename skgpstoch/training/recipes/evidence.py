"""Recipes for the exact marginal likelihood: a Gaussian likelihood and a closed-form posterior.

:class:`EvidenceRecipe` is for finite features, with the objective of any method. Its base class
:class:`ExactRecipe` also serves kernels without finite features (:mod:`skgpstoch.methods.bsgd`).
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ... import kernels
from ...data.arrays import Scaling
from ...data.findings import Finding
from ...data.rows import Data, Rows
from ...likelihoods.base import Likelihood
from ...likelihoods.real import Gaussian
from ...models.features.base import FeatureMap, JoinedFeatures
from ...models.features.fourier import KernelFeatures
from ...models.posteriors.base import Posterior
from ...models.posteriors.conjugate import ConjugatePosterior
from ...objectives.evidence import STATISTICS_WINDOW, FiniteObjective
from ..optimizers import SCHEDULES
from .fitted import Fitted
from .fitted_errors import error_findings
from .kernel_choice import KernelChoice
from .networks import Network, network_features
from .plan import Folds, Plan, Sizes, Start, Training, epochs, load_fitted
from .recipe import Problem, Recipe, check_shared_noise
from .row_findings import of_places

GAUSSIAN = Gaussian()
MAX_FEATURES = 20_000  # the closing pass takes O(n D² + D³) time and D² numbers
MEMBER_ROWS = 10_000  # "auto" trains several networks for fewer rows than this
SMALL_TABLE, MEMBERS_OF_SMALL = 200, 5  # with fewer rows a step is cheap: so many networks at most
LEAST_JUDGED = 50
"""All networks' validation folds together have at least so many rows, or all rows if these are
fewer. *Measured* on eight tables of 50 rows: with 25 such rows, SCGD's log density is .1 nats
lower; with 10, MINIMAX's is .6 nats lower."""
WINDOW_STEPS = 39  # least number of minibatches averaged: a rate b_t of 0.05
ROWS_OF_BATCH = (64, 128, 512)  # "auto": a minibatch is n/64 rows, at least 128 and at most 512
RANDOM_FEATURES = (5, 100, 1000)  # "auto": five for each row, at least 100 and at most 1000
EVIDENCE_STEPS = (200, 1000, 8000)


@dataclass(frozen=True, kw_only=True)
class ExactRecipe(Recipe):
    """A Gaussian process whose posterior is exact, trained by minibatches.

    Parameters
    ----------
    kernel : KernelChoice
        The kernel, on the inputs or the network's outputs, and the noise.
    network : Network or None
        The network below the kernel.
    training, solver, n_estimators
        See :class:`SCGDGaussianProcessRegressor`.
    steps : tuple of int, default=(200, 1000, 8000)
        Numbers of training steps for "auto". There are three for each row, but at most the second
        number; at least the first, and one for each row; and never more than the third.
    """

    likelihood: Likelihood = GAUSSIAN
    kernel: KernelChoice
    network: Network | None
    training: Training
    solver: str = "adam"
    n_estimators: int | str = "auto"
    steps: tuple[int, int, int] = EVIDENCE_STEPS

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Make kernel and network from an estimator's parameters, and copy the other fields."""
        p = parameters
        network = p.hidden_layer_sizes, p.feature_map, p.weight_decay, p.activation
        made = {
            "kernel": KernelChoice.of(p.kernel, p.noise_variance),
            "network": Network.of(*network, replaces=True),
            "training": Training.of(p),
        }
        return super().of(p, **made | decided)

    @abstractmethod
    def n_members(self, n_rows: int, start: Start | None) -> int:
        """Return the number K of ensemble members for this many rows."""

    def n_random(self, sizes: Sizes, start: Start | None) -> int:
        """Return the number of random Fourier features, if there are any."""
        return 0

    @abstractmethod
    def fitted_kernel(self, posterior: Any) -> sk.Kernel:
        """Return the kernel in units of the scaled y, with its noise."""

    def check_rows(self, data: Data) -> None:
        """Accept all rows: these estimators take nothing that a Gaussian likelihood rejects."""

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n, folds = self.training, sizes.n_rows, Folds()
        if not sizes.streams:
            K = self.n_members(n, start)
            share = t.validation_fraction
            if K > 1:  # folds may be larger, because the other members train on them
                share = max(share, min(1.0, LEAST_JUDGED / n) / K)
            folds = Folds.of(n, share, K) if t.early_stopping else Folds(K)
        n_trained = n - folds.n_untrained
        b = batch_rows(t.batch_size, n_trained)
        few, usual, most = self.steps
        n_steps = min(max(n_trained, min(max(3 * n_trained, few), usual)), most)
        return Plan(
            solver=self.solver,
            dtype=t.dtype,
            max_iter=epochs(n_steps, n_trained, b) if t.max_iter == "auto" else int(t.max_iter),
            batch_size=b,
            schedule=SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init,
            patience=t.n_iter_no_change or math.inf,
            tol=t.tol,
            holds_out=bool(t.early_stopping),
            evaluates=True,
            folds=folds,
            n_components=self.n_random(sizes, start),
            window_rows=WINDOW_STEPS * batch_rows(t.batch_size, n),
        )

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.network is not None:
            return self.network.input_scaling(X, weight)
        return self.kernel.input_scaling(X, weight, standardizes=False)

    def weight_decay(self, rows: Rows) -> float:
        """Return the decoupled decay of the network's parameters."""
        return 0.0 if self.network is None else self.network.decay(rows.n_effective)

    @property
    def has_user_module(self) -> bool:
        """Whether the network is the user's."""
        return self.network is not None and self.network.module is not None

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior, scale = fitted.posterior, torch.from_numpy(fitted.y_scaling.scale)
        value = float(posterior.log_evidence().sum())
        noise_variance = posterior.likelihood.noise_variance * scale.square()
        return {
            "noise_variance_": fitted.per_output(noise_variance),
            "log_marginal_likelihood_value_": fitted.in_units(value, posterior.n_rows),
            "kernel_": self.fitted_kernel(posterior),
        }

    @property
    def learns(self) -> bool:
        return self.network is not None or not self.kernel.is_fixed

    def is_trained(self, fitted: Fitted) -> bool:
        return self.training.is_enough(fitted.history)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        kernel, sees_inputs = self.fitted_kernel(fitted.posterior), self.network is None
        yield from self.kernel_findings(fitted, kernel, self.kernel, sees_inputs)

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        check_shared_noise(posterior, rows)
        return float(posterior.refit(X, rows).log_evidence().sum())


@dataclass(frozen=True, kw_only=True)
class EvidenceRecipe(ExactRecipe):
    """Finite features of networks or kernels, trained to maximise the marginal likelihood.

    Parameters
    ----------
    method : callable
        Makes the objective from the features φ, the rows, their inputs as X=, and the other
        arguments of :class:`FiniteObjective`.
    most_members : int, default=5
        Largest number K of ensemble members if n_estimators="auto".
    n_components, noise
        See :class:`SCGDGaussianProcessRegressor`.
    """

    method: Callable[..., FiniteObjective]
    n_components: int | str | None = "auto"
    most_members: int = 5
    noise: str = "auto"

    @property
    def holds_out_places(self) -> bool:
        """Networks have seen a row's place if another row there trains them.

        *Measured* on 60 rows at 20 places (four samples): 90 % intervals at new places hold .78 if
        rows are held out one by one, and .92 if places are; the NLPD is .56 and .12.
        """
        return True

    def sums_rows(self, plan: Plan) -> bool:
        method: Any = getattr(self.method, "func", self.method)
        return bool(method.sums_rows)

    def n_members(self, n_rows: int, start: Start | None) -> int:
        if start is not None and self.n_estimators == "auto":
            return unjoined(start.posterior).n_members
        has_networks = self.network is not None and self.network.module is None
        if self.n_estimators != "auto":
            K = int(self.n_estimators)
            if K > 1 and not has_networks:
                raise ValueError(
                    f"n_estimators={K} needs networks: set hidden_layer_sizes, and "
                    "feature_map=None."
                )
            return K
        has_kernel = self.kernel.expression is not None
        if has_kernel or not (has_networks and self.training.early_stopping):
            return 1
        # Few rows leave time for several networks, each validated on a fold of its own.
        most = self.most_members if n_rows >= SMALL_TABLE else MEMBERS_OF_SMALL
        return max(1, min(most, math.ceil(MEMBER_ROWS / n_rows), n_rows // 2))

    def n_random(self, sizes: Sizes, start: Start | None) -> int:
        each, least, most = RANDOM_FEATURES
        if self.n_components != "auto":
            return int(self.n_components or 0)
        if start is not None:
            return getattr(unjoined(start.posterior), "n_components", most)
        return most if sizes.streams else min(max(each * sizes.n_rows, least), most)

    def noise_for(self, trains_network: bool, validates: bool) -> str:
        """Return how the objective treats σ²: "fixed", "learned", "profiled" or "validation"."""
        low, high = self.kernel.noise_bounds
        if low == high:
            return "fixed"
        if self.noise == "learned":
            return "learned"
        # Few hyper-parameters do not overfit, so "auto" validates the noise only for networks.
        asked = self.noise == "validation" or (self.noise == "auto" and trains_network)
        return "validation" if validates and asked else "profiled"

    # ---- objective ---------------------------------------------------------------------------

    def objective(self, problem: Problem) -> FiniteObjective:
        K, generator = problem.plan.folds.n_folds, problem.generator
        features: Any = network_features(
            self.kernel, self.network, problem.X, problem.plan.n_components, K, generator
        )
        if (start := problem.start) is not None:
            load_fitted(features, unjoined(start.posterior), start)
        trains_network = any(p.requires_grad for p in features.network.parameters())
        noise = self.noise_for(trains_network, validates=problem.plan.folds.size > 0)
        objective = self.trained_by_method(features, problem, noise)
        if start is not None and isinstance(start.posterior, ConjugatePosterior):
            objective.start_from(start.posterior.weights, problem.X, problem.rows)
        return objective

    def trained_by_method(
        self, features: FeatureMap, problem: Problem, noise: str
    ) -> FiniteObjective:
        """Return the method's objective for features; `noise` says how it treats σ².

        Raises
        ------
        ValueError
            If there are too many features.
        """
        total = features.n_members * features.n_features
        if total > MAX_FEATURES:
            raise ValueError(
                f"The feature map has {total} features in all, more than {MAX_FEATURES}, "
                "the most that a dense matrix can reasonably have. Lower n_estimators, "
                "n_components or the last of hidden_layer_sizes."
            )
        objective = self.method(
            features.to(problem.X.device),
            problem.rows,
            X=problem.X,
            noise=noise,
            noise_variance=self.kernel.start_noise,
            noise_bounds=self.kernel.noise_bounds,
            weight_decay=self.weight_decay(problem.rows),
            window_rows=problem.plan.window_rows,
        )
        objective.has_user_module = self.has_user_module
        return objective

    def stream(self, problem: Problem, posterior: Any) -> FiniteObjective:
        if posterior is None:
            objective = self.objective(problem)
        else:
            posterior = copy.deepcopy(posterior).to(problem.X.device)
            fitted: Any = posterior.features.to(problem.X).requires_grad_(True)
            if isinstance(fitted, JoinedFeatures):  # the stream has gone on before
                fitted = fitted.features
            if self.network is not None:
                self.network.freeze(fitted.network)
            features = JoinedFeatures(fitted) if fitted.n_members > 1 else fitted
            noise = self.noise_for(trains_network=False, validates=False)
            objective = self.trained_by_method(features, problem, noise)
            weights = posterior.weights
            objective.set_noise(weights.noise_variance, weights.ridge)
            # How much rows of a fit counted is forgotten: light ones must not replace them.
            of_fit = max(1.0, objective.mean_weight)
            objective.running.start_from(weights.spectrum.statistics(), of_fit)
            objective.n_rows += weights.spectrum.n_rows
        objective.running.window = STATISTICS_WINDOW * objective.features.n_features
        objective.streams = True
        return objective

    # ---- fitted ------------------------------------------------------------------------------

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        of_network = "Give more or wider hidden_layer_sizes."
        of_kernel = f"Raise n_components, now {self.n_components}."
        advice = of_network if self.kernel.expression is None else of_kernel
        if self.network is not None and fitted.whole is not None:
            yield from of_places(fitted.whole)
        kernel = None if self.network else self.fitted_kernel(fitted.posterior)
        yield from error_findings(fitted, kernel, advice, self.is_trained(fitted))

    def fitted_kernel(self, posterior: ConjugatePosterior) -> sk.Kernel:
        fitted, weights = feature_kernel(posterior.features), posterior.weights
        signal_variance = float((weights.noise_variance / weights.ridge).log().mean().exp())
        if not math.isclose(signal_variance, 1.0):
            fitted = sk.ConstantKernel(signal_variance) * fitted
        noise = float(weights.noise_variance.mean())
        return kernels.join_white_noise(fitted, noise, self.kernel.white)


def feature_kernel(features: FeatureMap) -> sk.Kernel:
    """Return the kernel that features approximate; for plain networks, their inner product."""
    if isinstance(features, KernelFeatures):
        return kernels.to_sklearn(features.kernel)
    return sk.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")


def batch_rows(asked: int | str, n_rows: int) -> int:
    """Return the number of rows in a minibatch."""
    each, least, most = ROWS_OF_BATCH
    auto = min(max(n_rows // each, least), most)
    return min(auto if asked == "auto" else int(asked), n_rows)


def unjoined(posterior: Posterior) -> FeatureMap:
    """Return a posterior's feature map, with its members unjoined; an empty map if it has none."""
    features = getattr(posterior, "features", FeatureMap())
    return features.features if isinstance(features, JoinedFeatures) else features
