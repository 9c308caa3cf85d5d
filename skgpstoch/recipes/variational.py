"""The recipe of the sparse variational family: q(w) on the features of any builder.

A likelihood, a loss, a builder of features and a solver make a variational model and its objective.
The builders are :mod:`skgpstoch.recipes.inducing`, :mod:`skgpstoch.recipes.layers` and
:mod:`skgpstoch.recipes.patches`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ..data.arrays import Scaling
from ..data.rows import Data, Rows
from ..kernels import join_white_noise
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..losses import Loss
from ..models.deep import DeepModel
from ..models.layers import DeepFeatures
from ..models.sparse import ConstantMean, RowScale, SparseModel
from ..objectives.adam import GradientObjective
from ..objectives.lbfgs import FullBatchObjective
from ..objectives.natural import ProfiledObjective, RunningObjective
from ..objectives.optimal_q import optimal_q
from ..objectives.variational import VariationalObjective
from ..training.optimizers import SCHEDULES, constant
from .recipe import (
    Fitted,
    Folds,
    KernelChoice,
    Network,
    Plan,
    Problem,
    Recipe,
    Sizes,
    Start,
    Training,
    epochs,
    load_fitted,
    started,
)

USUAL_BATCH = 512  # rows of a minibatch
FULL_BATCH_ROWS = 1000  # up to which "auto" maximises the bound of all rows at each step
LBFGS_TOL = 1e-6  # nats per row, gained by ten iterations, that are worth ten more
LBFGS_EPOCHS = 20
STEPS = (500, 30, 3000)  # at least; times the rows over those of a minibatch; at most


class FeatureSizes(NamedTuple):
    """What a builder decides for so many rows."""

    n_inducing: int  # M
    n_orthogonal: int  # M₂
    batch_needed: int | None  # usual rows of a minibatch if the bound is only estimated


class FeatureBuilder(Protocol):
    """What makes the features of a variational model, and what is known of them before."""

    @property
    def kernel(self) -> KernelChoice:
        """The kernel of f, and the noise."""

    @property
    def network(self) -> Network | None:
        """The network below the kernel."""

    @property
    def posterior(self) -> str:
        """The family of q: "svgp", "solve" or "odvgp"."""

    @property
    def steps(self) -> tuple[int, int, int]:
        """Steps of "auto": at least; times rows over those of a minibatch; at most."""

    def sizes(
        self, sizes: Sizes, n_untrained: int, recipe: VariationalRecipe, start: Start | None
    ) -> FeatureSizes:
        """How many points there are; a ValueError where parameters do not agree."""

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """The scaling between the user's X and the features'."""

    def build(
        self, problem: Problem, likelihood: Likelihood, n_latents: int, fitted: SparseModel | None
    ) -> Any:
        """P, before training, or where a fitted model left it."""

    def set_trainable(self, features: Any, n_rows: int, learns_variance: bool) -> None:
        """Train what is to be trained of the features."""

    def fitted_kernel(self, features: Any, x_scaling: Scaling) -> sk.Kernel:
        """The kernel, for the user's X."""

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Points and all else that is the builder's own, in the user's units."""


@dataclass(frozen=True, kw_only=True)
class VariationalRecipe(Recipe):
    """A variational model of features, trained for a loss.

    Parameters
    ----------
    loss : Loss
        Of a row.
    features : FeatureBuilder
        Makes P.
    training : Training
        Parameters of training.
    solver : str, default="auto"
        Where q(w) comes from.
    averaging : float or "auto", default="auto"
        Weight of a minibatch in running averages.
    whiten : bool, default=True
        Whether solver="adam" learns q in whitened coordinates.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence.
    scales_noise : bool, default=False
        Whether the noise of a row is a function of its inputs.
    n_restarts : int, default=0
        Trainings by L-BFGS from random hyper-parameters, besides the first.
    """

    loss: Loss
    features: FeatureBuilder
    training: Training
    solver: str = "auto"
    averaging: float | str = "auto"
    whiten: bool = True
    mean: str = "constant"
    beta: float = 1.0
    scales_noise: bool = False
    n_restarts: int = 0

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Take what is not decided here from an estimator's parameters, the noise if it has any."""
        varies = getattr(parameters, "noise", "constant") == "input"
        made = {"training": Training.of(parameters), "scales_noise": varies}
        return super().of(parameters, **made | decided)

    # ---- parameters that must agree ----------------------------------------------------------

    @property
    def scales_target(self) -> bool:
        return self.normalize_y and isinstance(self.likelihood, AdditiveNoise)

    @property
    def covariance(self) -> str:
        """Where S comes from: "sites", "gradient" or "prior"."""
        return self.loss.covariance(self.likelihood)

    def check(self, data: Data) -> None:
        self.check_rows(data)
        check_choices(self.likelihood, self.loss, self.features.kernel.white)
        if data.y_std is not None and self.covariance == "prior":
            raise ValueError(
                "y_std must be None with the square loss, which knows no noise variance."
            )
        if self.scales_noise:
            check_input_noise(self.likelihood, self.loss)
        if self.n_restarts and self.solver not in ("auto", "lbfgs"):
            raise ValueError(
                f"n_restarts={self.n_restarts} needs solver='lbfgs', which trains on all rows to "
                f"an optimum, got solver={self.solver!r}."
            )

    # ---- plan --------------------------------------------------------------------------------

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n_trained, folds = self.training, sizes.n_rows, Folds()
        has_network = self.features.network is not None
        holds_out = has_network if t.early_stopping == "auto" else bool(t.early_stopping)
        if holds_out and not sizes.streams:
            folds = Folds.of(sizes.n_rows, t.validation_fraction)
            n_trained -= folds.n_untrained
        M, M2, needed = self.features.sizes(sizes, sizes.n_rows - n_trained, self, start)
        shares_noise = not (sizes.has_known_noise or self.scales_noise)
        n = math.inf if sizes.streams else sizes.n_rows
        solver = choose_solver(
            self.solver, n, self.likelihood, self.loss, shares_noise, needed is not None
        )
        is_lbfgs = solver == "lbfgs"
        asked = (needed or USUAL_BATCH) if t.batch_size == "auto" else int(t.batch_size)
        b = min(asked, n_trained)
        least, each, most = self.features.steps
        n_steps = int(np.clip(each * n_trained / b, least, most))
        auto = LBFGS_EPOCHS if is_lbfgs else epochs(n_steps, n_trained, b)
        stops_itself = is_lbfgs and t.n_iter_no_change is None
        return Plan(
            solver=solver,
            dtype="float64" if is_lbfgs else t.dtype,
            max_iter=auto if t.max_iter == "auto" else int(t.max_iter),
            batch_size=n_trained if is_lbfgs else b,
            schedule=constant if is_lbfgs else SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init,
            patience=2 if stops_itself else t.n_iter_no_change or math.inf,
            tol=max(t.tol, LBFGS_TOL) if stops_itself else t.tol,
            holds_out=holds_out,
            evaluates=holds_out or is_lbfgs,
            folds=folds,
            n_inducing=M,
            n_orthogonal=M2,
            beta=self.beta,
            n_restarts=self.n_restarts if is_lbfgs else 0,
        )

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.features.input_scaling(X, weight)

    # ---- model and objective -----------------------------------------------------------------

    def objective(self, problem: Problem) -> VariationalObjective:
        if problem.plan.folds.size:
            problem = problem.trained()
        X, start = problem.X, problem.start
        fitted = None if start is None else start.posterior.model.for_training()
        model = self.model(problem, fitted)
        self.set_trainable(model, len(X))
        if start is not None and fitted is not None:
            load_fitted(model, fitted, start)
            if self.mean == "zero":  # a constant may have been learned before
                model.mean.value.data.zero_()
            if start.is_fixed:
                model.requires_grad_(False)
        objective = self.solve(model.to(X.device), problem)
        if start is not None and start.is_fixed and not objective.is_closed():
            objective.start_from(start.posterior)
        return objective

    def model(self, problem: Problem, fitted: SparseModel | None) -> SparseModel:
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
        return kind(features, likelihood, mean, blocks, self.loss, problem.plan.beta, scale)

    def set_trainable(self, model: SparseModel, n_rows: int) -> None:
        """Train all but what is fixed, and points that are as many as the rows."""
        learns_variance = self.covariance != "prior"  # else only its ratio to beta counts
        if not (self.features.kernel.learns_noise and learns_variance):
            model.likelihood.requires_grad_(False)
        model.mean.requires_grad_(self.mean == "constant")
        self.features.set_trainable(model.features, n_rows, learns_variance)

    def solve(
        self, model: SparseModel, problem: Problem, n_before: float = 0.0
    ) -> VariationalObjective:
        """Make the solver's objective, of these rows and those before."""
        network, n = self.features.network, problem.rows.n_effective
        n_rows = n + n_before
        options: dict[str, Any] = {
            "mean_weight": n / len(problem.X),
            "weight_decay": 0.0 if network is None else network.decay(n_rows),
            "noise_bounds": self.features.kernel.noise_bounds,
        }
        solver = problem.plan.solver
        objective: VariationalObjective
        if solver == "lbfgs":
            objective = FullBatchObjective(model, n_rows, **options)
        elif solver == "adam":
            objective = GradientObjective(model, n_rows, whiten=self.whiten, **options)
        elif self.covariance == "gradient":
            objective = ProfiledObjective(model, n_rows, averaging=self.averaging, **options)
        else:
            conjugate = solver == "collapsed"
            objective = RunningObjective(
                model, n_rows, conjugate=conjugate, averaging=self.averaging, **options
            )
        objective.has_user_module = network is not None and network.module is not None
        return objective

    # ---- streams -----------------------------------------------------------------------------

    def check_streams(self) -> None:
        if self.solver == "lbfgs":
            raise ValueError("partial_fit needs minibatches, but solver='lbfgs' has none.")

    def stream(self, problem: Problem, posterior: Any) -> VariationalObjective:
        if self.covariance == "prior":
            raise ValueError(
                f"partial_fit needs a loss that depends on variances, which {self.loss!r} does "
                "not: they are found by a pass over all rows."
            )
        if posterior is None:
            objective = self.objective(problem)
        else:
            model = posterior.model.for_training(problem.X)
            model.loss, model.beta = self.loss, problem.plan.beta
            self.set_trainable(model, math.ceil(problem.rows.n_effective + posterior.n_rows))
            objective = self.solve(model, problem, posterior.n_rows)
            objective.start_from(posterior)
        objective.streams = True
        return objective

    # ---- fitted ------------------------------------------------------------------------------

    def warnings(self, fitted: Fitted) -> Iterator[str]:
        yield from super().warnings(fitted)
        if self.n_restarts and fitted.plan.solver != "lbfgs":
            yield (
                f"n_restarts={self.n_restarts} played no part, as solver='auto' is "
                f"{fitted.plan.solver!r} for these rows, which has no optimum to choose from. Set "
                "solver='lbfgs' to train from several starts."
            )

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        model, kernel = fitted.posterior.model, self.features.kernel
        features, likelihood = model.features, model.likelihood
        expression = self.features.fitted_kernel(features, fitted.x_scaling)
        if isinstance(likelihood, Gaussian):
            noise = float(likelihood.noise_variance.mean())
            expression = join_white_noise(expression, noise, kernel.white)
        found: dict[str, Any] = self.features.attributes(fitted)
        found |= {
            "solver_": fitted.plan.solver,
            "likelihood_": likelihood,
            "kernel_": expression,
            "log_marginal_likelihood_value_": bound_of(fitted),
        }
        if isinstance(likelihood, AdditiveNoise):
            likelihood = likelihood.in_units(torch.from_numpy(fitted.y_scaling.scale))
            found["likelihood_"] = likelihood
            found["noise_variance_"] = fitted.per_output(likelihood.noise_variance)
        return found

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        model = posterior.model.for_evidence()
        if not model.likelihood.has_bound:
            raise ValueError(f"The evidence has no bound with the likelihood {model.likelihood!r}.")
        return float(optimal_q(model, X, rows).value)


def bound_of(fitted: Fitted) -> float:
    """Return the bound on log p(y | X) that a fit came to, for y in the user's units."""
    value = float(fitted.posterior.log_evidence().sum())
    return fitted.in_units(value, fitted.posterior.n_rows)


def prior_blocks(posterior: str, blocks: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell of every block of features whether q's covariance there stays the prior's."""
    return tuple(posterior == "odvgp" and b > 0 for b in range(len(blocks)))


# ---- what agrees, and which solver ---------------------------------------------------------------


def check_choices(likelihood: Likelihood, loss: Loss, white: sk.WhiteKernel | None) -> None:
    """Raise a ValueError where likelihood, loss and noise do not agree."""
    loss.check(likelihood)
    if loss.bounds_evidence and not likelihood.has_bound:
        raise ValueError(f"likelihood={likelihood!r} has no bound on the evidence; use loss='log'.")
    if white is not None and not isinstance(likelihood, Gaussian):
        raise ValueError(
            f"kernel has a WhiteKernel, the noise of likelihood='gaussian', but the likelihood "
            f"is {likelihood!r}."
        )
    follows = loss.covariance(likelihood) == "prior"
    if white is not None and follows and white.hyperparameter_noise_level.fixed:
        raise ValueError(
            "kernel has a fixed WhiteKernel, but the noise variance of the square loss follows "
            "from beta."
        )


def check_input_noise(likelihood: Likelihood, loss: Loss) -> None:
    """Raise a ValueError where noise cannot depend on the inputs."""
    if not isinstance(likelihood, AdditiveNoise) or loss.covariance(likelihood) == "prior":
        raise ValueError(
            "noise='input' needs additive noise, and a loss that depends on it, got "
            f"{likelihood!r} and {loss!r}."
        )
    if not likelihood.scales_by_row:
        raise ValueError(
            f"noise='input' needs noise whose scale differs between rows, but {likelihood!r} does "
            "not multiply its own by `times_ratio`."
        )
    if loss.is_noisy() and loss.get_params().get("gradient") == "product":
        raise ValueError("noise='input' needs another gradient than 'product'.")


def choose_solver(
    asked: str,
    n_rows: float,
    likelihood: Likelihood,
    loss: Loss,
    shares_noise: bool,
    needs_minibatches: bool,
) -> str:
    """Return the solver, chosen if it is "auto".

    Raises
    ------
    ValueError
        If the one that is asked for has no use for the loss.
    """
    collapses = asked in ("auto", "collapsed") and loss.site_noise(likelihood) is not None
    if asked == "collapsed" and not collapses:
        raise ValueError(
            "solver='collapsed' needs likelihood='gaussian' and the loss 'elbo', or additive "
            f"noise and the loss 'square', got {likelihood!r} and {loss!r}; solver='natural' "
            "is its counterpart."
        )
    if asked == "collapsed" and not shares_noise:
        raise ValueError(
            "solver='collapsed' needs rows that have the same noise, but y_std is given, or "
            "noise='input'; solver='natural' is its counterpart."
        )
    if asked == "lbfgs" and loss.covariance(likelihood) == "gradient":
        raise ValueError(
            f"solver='lbfgs' needs a loss with a closed form for the best covariance, which "
            f"{loss!r} has not with {likelihood!r}; use 'natural' or 'adam'."
        )
    if asked == "lbfgs" and needs_minibatches:
        raise ValueError(
            "solver='lbfgs' is not for hidden_channels, nor for posterior='odvgp' with "
            "whiten=False: their bounds are known from random draws alone."
        )
    if asked != "auto":
        return asked
    if loss.is_noisy():
        return "adam"  # Newton's steps need curvatures
    if loss.is_conjugate(likelihood) and n_rows <= FULL_BATCH_ROWS and not needs_minibatches:
        return "lbfgs"
    return "collapsed" if collapses and shares_noise else "natural"
