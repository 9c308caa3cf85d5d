"""The recipe of NNGP: the kernel and the network, and which rows an epoch takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling
from ...data.equal_rows import Merging
from ...data.findings import Finding
from ...data.rows import Rows
from ...kernels import check_length_scales
from ...kernels.sets import nearness
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...models.calibration.tails import TailChoice
from ...objectives.neighbours import BRIEFLY, NeighbourObjective
from ...training.optimizers import SCHEDULES
from ...training.recipes.findings import NO_NOISE
from ...training.recipes.fitted import Fitted
from ...training.recipes.held_out import held_out_predictions
from ...training.recipes.kernel_choice import (
    MOST_RELEVANT_INPUTS,
    MOST_SCALES,
    KernelChoice,
    has_free_scale,
    n_varying,
)
from ...training.recipes.networks import Network, build_network
from ...training.recipes.plan import (
    OTHER_SHAPE,
    Folds,
    Plan,
    Sizes,
    Start,
    Training,
    epochs,
    overfit_patience,
)
from ...training.recipes.recipe import Problem, Recipe
from ...training.recipes.short_scales import MOST_SEARCHES
from .deep import (
    DeepNeighbourObjective,
    Learned,
    MeanLoss,
    OfUser,
    Plain,
    feature_kernel,
    learned_mean,
    squared_errors,
)
from .findings import of_contradictions, of_left_out, of_neighbours, sees_inputs
from .parameters import approximates, predicting
from .start import (
    SMOOTHNESS,
    in_range,
    in_sight,
    is_over,
    likeliest,
    train_briefly,
    with_shorter_scales,
)

BATCH_ROWS = 256  # "auto"
EPOCH_STEPS = (30, 50)  # between searches for neighbours, without and with a network
DEEP_STEPS = 600
DEEP_RATE = 0.3  # factor of the learning rate
LAYER_RATE = 1.0 / 30.0  # factor of that, for networks
MOST_HELD_OUT = 2000  # rows
LEAST_HELD_OUT, MOST_OF_FEW = 20, 1.0 / 3.0
"""Least number of rows that judge a network, or this share of all if there are fewer than 60.

*Measured* on a smooth function of two columns, a step and a plane, four to six samples each, when a
tenth of the rows judged, and now (coverage of 90 % intervals; mean and worst log loss of other
rows): 40 rows .26 to .97, now .70 to .92; smooth .41, 8.9, now .24, .82; step 1.5, 3.1, now .56,
1.1; plane −.01, .65, now .02, .32. 80 rows .67 to .93, now .83 to .93, losses .1 to .2 lower.
"""
KERNEL_STEPS = (50, 8, 250)  # "auto": so many, and more for each hyper-parameter; at most
FEW = 16  # neighbours while a start is searched for
MOST_NEIGHBORS = 2**16  # a covariance of more takes 34 GB
NOISE_AT_START = 0.1
ROWS_PER_SCALE = 10  # from which on each of many inputs has a length-scale
UNTRAINED_RATE = 1e-12  # of a step that changes nothing


@dataclass(frozen=True, kw_only=True)
class NeighbourRecipe(Recipe):
    """A kernel, learned from the densities of rows given their neighbours.

    Parameters
    ----------
    kernel : KernelChoice
        The kernel and the noise to start from.
    training, n_neighbors, n_neighbors_predict, search, loss, mean
        See :class:`~skgpstoch.NNGPRegressor`.
    """

    kernel: KernelChoice
    network: Network | None
    training: Training
    n_neighbors: int
    n_neighbors_predict: int | str | None
    search: str
    loss: str
    tails: TailChoice | None
    mean: str = "constant"
    equal_rows: Merging = "merge many"
    start_time: ClassVar[float] = 0.25  # of the time that is left, for climbs
    deep_type: ClassVar[type[DeepNeighbourObjective]] = DeepNeighbourObjective

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        p = parameters
        made: dict[str, Any] = {"kernel": KernelChoice.of(p.kernel, NOISE_AT_START)}
        if "network" not in decided:
            of_network = p.hidden_layer_sizes, p.feature_map, p.weight_decay, p.activation
            made["network"] = Network.of(*of_network)
        if p.kernel is not None and kernels.contains(made["kernel"].expression, sk.WhiteKernel):
            made["equal_rows"] = "keep"  # f differs between them
        return super().of(parameters, training=Training.of(p), **made | decided)

    def of_few_rows(self, X: np.ndarray) -> Self:
        """Return a recipe without a network; one row teaches no hyper-parameters, either."""
        recipe, n_rows = self, len(X)
        if self.network is not None or (n_rows == 1 and self.kernel.expression is None):
            kernel = KernelChoice.of(default_kernel(X, SMOOTHNESS[0]), NOISE_AT_START)
            recipe = replace(self, kernel=kernel, network=None)
        if n_rows > 1:
            return recipe
        still = replace(self.training, max_iter=1, learning_rate_init=UNTRAINED_RATE)
        return replace(recipe, tails=None, training=replace(still, early_stopping=False))

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n, is_deep = self.training, sizes.n_rows, self.network is not None
        holds_out, folds = is_deep or bool(t.early_stopping), Folds()
        if holds_out:
            least = min(LEAST_HELD_OUT / n, MOST_OF_FEW) if is_deep else 0.0
            folds = Folds.of(n, max(least, min(t.validation_fraction, MOST_HELD_OUT / n)))
        n_trained = n - folds.n_untrained
        b = min(n_trained, BATCH_ROWS if t.batch_size == "auto" else int(t.batch_size))
        n_epoch = min(n_trained, EPOCH_STEPS[is_deep] * b)
        n_steps = DEEP_STEPS if is_deep else self.n_steps(sizes.n_features)
        return Plan(
            solver="adam",
            dtype=t.dtype,
            max_iter=epochs(n_steps, n_epoch, b) if t.max_iter == "auto" else int(t.max_iter),
            batch_size=b,
            schedule=SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init * (DEEP_RATE if is_deep else 1.0),
            patience=t.n_iter_no_change or math.inf,
            tol=t.tol,
            holds_out=holds_out,
            evaluates=holds_out,
            folds=folds,
        )

    def n_steps(self, n_features: int) -> int:
        """Return the number of training steps for "auto"."""
        given = self.kernel.expression
        n_learned = n_features if given is None else given.n_dims
        least, each, most = KERNEL_STEPS
        return min(least + each * (n_learned + 3), most)

    @property
    def weighs_relatively(self) -> bool:
        return self.kernel.learns_noise and self.tails is not None

    def keeps_apart(self, plan: Plan) -> bool:
        return True  # rows are left out to judge the tails

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        if self.network is not None:
            return self.network.input_scaling(X, weight)
        return self.kernel.input_scaling(X, weight, standardizes=True)

    # ---- objective ---------------------------------------------------------------------------

    def objective(self, problem: Problem) -> NeighbourObjective:
        given = self.kernel.expression
        if (start := problem.start) is not None:
            start.check_unchanged()
            fitted = start.posterior
            check_outputs(fitted, problem.rows)
            kernel = kernels.to_sklearn(fitted.kernel)
            return self.made(kernel, problem, fitted.variance, fitted.constant)
        if self.network is not None:
            return self.deep(problem)
        return self.likeliest(problem, given)

    def seeing(self, given: sk.Kernel, X: Tensor) -> sk.Kernel:
        """Return the user's kernel, with longer length-scales if rows do not see each other."""
        self.torch_kernel(given, X, None)  # which checks it
        return in_sight(given, X)

    def usual_kernels(self, X: Tensor, rows: Rows) -> list[sk.Kernel]:
        """Return the kernels of which one is chosen, if the user gives none."""
        return [default_kernel(X, nu) for nu in SMOOTHNESS]

    def likeliest(self, problem: Problem, given: sk.Kernel | None = None) -> NeighbourObjective:
        """Return the objective that starts where the densities of some rows are largest.

        Its kernel is the given one, or that of the smoothness that suits these rows best.
        """
        X, rows = problem.X, problem.rows
        tried = self.usual_kernels(X, rows) if given is None else [self.seeing(given, X)]
        if len(X) == 1:
            return self.made(tried[0], problem)  # which it teaches nothing
        X, seen = self.made(tried[0], problem, n_neighbors=FEW).observed(X, rows)
        made = []
        for recipe in self.starts:
            make = functools.partial(recipe.made, problem=problem, n_neighbors=FEW)
            made += in_range(make, tried, X, seen, self.deadline, given is not None)
        deadline = None if self.deadline is None else self.deadline.part(self.start_time)
        best = likeliest(made, X, seen, deadline)
        for _ in range(MOST_SEARCHES):
            if is_over(deadline) or (found := with_shorter_scales(best, X, seen)) is None:
                break
            expression, noise = found
            again = self.made(expression, problem, noise, best.mean.detach(), n_neighbors=FEW)
            best = likeliest([best, again], X, seen, deadline)
            if best is not again:
                break
        objective = self.made(kernels.to_sklearn(best.kernel), problem)
        objective.take_over(best)
        objective.start_is_cut = best.start_is_cut
        return objective

    @property
    def starts(self) -> Sequence[NeighbourRecipe]:
        """Recipes that differ in where the likelihood starts."""
        return (self,)

    def deep(self, problem: Problem) -> NeighbourObjective:
        """Return the objective whose network has learned the mean."""
        given, y = self.kernel.expression, problem.rows.y
        learned = self.learned(problem)
        level = y.new_full(y.shape[1:], self.kernel.start_noise).double()
        if not math.isnan(learned.error):
            level = level.new_full(level.shape, learned.error).clamp(*self.kernel.noise_bounds)
        plain = self.plain(problem) if given is None else None
        make = functools.partial(
            self.deep_type,
            decay=cast(Network, self.network).decay(problem.rows.n_effective),
            rate=LAYER_RATE,
            plain=plain,
        )
        expression = feature_kernel(1.5) if given is None else given
        features = learned.features
        objective = self.made(expression, problem.trained(), level, features=features, make=make)
        objective.start_is_cut = learned.is_cut or (plain is not None and plain.is_cut)
        if self.training.n_iter_no_change is None:
            objective.overfit_patience = overfit_patience(problem.plan.max_iter)
        return objective

    def learned(self, problem: Problem) -> Learned:
        """Return the features to start from: the user's network, or one that has learned y."""
        network = cast(Network, self.network)
        if network.module is None:
            of_network = network.layers, network.activation
            return learned_mean(problem, *of_network, self.mean_loss(problem.rows), self.deadline)
        module, _ = build_network(network, problem.X, problem.generator)
        network.freeze(module)
        return Learned(OfUser(module))

    def mean_loss(self, rows: Rows) -> MeanLoss:
        """Return what a network learns first."""
        return squared_errors(rows[rows.n_held_out :])

    def plain(self, problem: Problem) -> Plain:
        """Return the score of the process on the inputs alone, and how to train it."""
        started = self.likeliest(problem.trained())
        score = started.evaluate(problem.X, problem.rows, *BRIEFLY)

        def trained() -> NeighbourObjective:
            objective, n_steps = self.likeliest(problem), self.n_steps(problem.X.shape[1])
            rate, b = self.training.learning_rate_init, min(BATCH_ROWS, len(problem.X))
            given = problem.X, problem.rows, rate, b, problem.generator
            train_briefly(objective, *given, n_steps, self.deadline)
            return objective

        return Plain(score, started.start_is_cut, trained)

    def made(
        self,
        expression: sk.Kernel,
        problem: Problem,
        noise: Tensor | None = None,
        mean: Tensor | None = None,
        n_neighbors: int | None = None,
        features: nn.Module | None = None,
        make: Any = NeighbourObjective,
    ) -> NeighbourObjective:
        """Return the objective that starts from a kernel, a noise and a mean."""
        X, rows = problem.X, problem.rows
        level = rows.y.new_full(rows.y.shape[1:], self.kernel.start_noise).double()
        objective: NeighbourObjective = make(
            self.torch_kernel(expression, X, features),
            nn.Sequential() if features is None else features,
            Gaussian((level if noise is None else noise).to(X.device)),
            (self.start_mean(rows) if mean is None else mean).to(X.device),
            noise_bounds=self.kernel.noise_bounds,
            tails=self.tail_choice,
            **self.sizes(problem, n_neighbors, features is not None),
        )
        objective.mean.requires_grad_(self.mean == "constant")
        return objective

    def torch_kernel(
        self, expression: sk.Kernel, X: Tensor, features: nn.Module | None
    ) -> kernels.Kernel:
        """Return a kernel for these rows, by which some are nearer than others."""
        kernel = kernels.from_sklearn(expression).to(X.device)
        d = X.shape[1] if features is None else features(X[:1]).shape[1]
        check_length_scales(kernel, d, features)
        check_nearness(kernel, d)
        return kernel

    def sizes(self, problem: Problem, n_neighbors: int | None, is_deep: bool) -> dict[str, Any]:
        """Return how many neighbours, at most, among which rows, and the rows of an epoch."""
        most = self.n_neighbors if n_neighbors is None else n_neighbors
        return {
            "n_neighbors": min(most, self.n_neighbors, MOST_NEIGHBORS),
            "n_neighbors_predict": predicting(self.n_neighbors_predict),
            "seeks_fewer": self.n_neighbors_predict == "auto",
            "is_approximate": approximates(self.search),
            "is_ordered": self.is_ordered,
            "n_epoch": EPOCH_STEPS[is_deep] * problem.plan.batch_size,
        }

    def start_mean(self, rows: Rows) -> Tensor:
        """Return the constant to start from, or 0, (P,)."""
        mean = rows.mean_told(rows.y.double())
        return mean if self.mean == "constant" else torch.zeros_like(mean)

    @property
    def is_ordered(self) -> bool:
        """Whether neighbours of training are earlier rows."""
        return self.loss == "vecchia" or (self.loss == "auto" and self.network is None)

    @property
    def tail_choice(self) -> TailChoice | None:
        """What rows left out may choose."""
        if self.tails is None:
            return None
        given = self.kernel.expression
        is_free = given is None or has_free_scale(given)
        return self.tails._replace(scales=is_free and self.kernel.learns_noise)

    # ---- fitted ------------------------------------------------------------------------------

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        posterior = fitted.posterior
        of_kernel = fitted.of_noise(Gaussian(posterior.variance))  # heavy tails say how it varies
        return {
            "kernel_": self.fitted_kernel(posterior, fitted.x_scaling),
            "held_out_": held_out_predictions(fitted),
            **fitted.of_budget(),
            **of_kernel,
            "likelihood_": fitted.of_noise(posterior.likelihood)["likelihood_"],
        }

    def fitted_kernel(self, posterior: Any, x_scaling: Scaling) -> sk.Kernel:
        """Return the kernel for the user's X, with a WhiteKernel if there was one."""
        kernel = kernels.to_sklearn(posterior.kernel)
        if sees_inputs(posterior):
            kernel = self.kernel.in_units(kernel, x_scaling)
        noise = float(posterior.variance.mean())
        return kernels.join_white_noise(kernel, noise, self.kernel.white)

    @property
    def learns(self) -> bool:
        return self.network is not None or not self.kernel.is_fixed

    def is_trained(self, fitted: Fitted) -> bool:
        return self.training.is_enough(fitted.history)

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().findings(fitted)
        yield of_neighbours(fitted.posterior.n_neighbors, len(fitted.posterior.residual))
        if isinstance(fitted.posterior.likelihood, AdditiveNoise):
            yield from of_left_out(fitted, self.is_trained(fitted))
        if not self.kernel.learns_noise and self.kernel.start_noise <= NO_NOISE:
            yield from of_contradictions(fitted)
        kernel = self.fitted_kernel(fitted.posterior, fitted.x_scaling)
        yield from self.kernel_findings(fitted, kernel, self.kernel, sees_inputs(fitted.posterior))

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        return float(posterior.refit(X, rows).log_evidence().sum())


def deep_epochs(n_rows: int, n_steps: int) -> int:
    """Return the number of epochs that make so many steps on these rows, with a network."""
    return epochs(n_steps, min(n_rows, EPOCH_STEPS[True] * BATCH_ROWS), min(n_rows, BATCH_ROWS))


def check_outputs(fitted: Any, rows: Rows) -> None:
    """Raise a ValueError if rows have not as many outputs as a fitted posterior."""
    if fitted.constant.shape != rows.y.shape[1:]:
        raise ValueError(OTHER_SHAPE.format("the number of outputs or classes in y"))


def default_kernel(X: Tensor | np.ndarray, nu: float, most_variance: float = 1e5) -> sk.Kernel:
    """Return a kernel for standardised inputs and targets.

    Many inputs have a length-scale each if rows are many more. *Measured* with 100 inputs, of which
    five, one, 100 or none matter: with 1,000 rows NLPD 1.16 → −.07, 1.08 → −.10, .56 → .61 and
    −.18 → −.10; with 300 rows, intervals were too narrow in all four.
    """
    (n_rows, n_features), n_inputs = X.shape, n_varying(X)
    are_few = n_inputs <= MOST_RELEVANT_INPUTS
    is_known = n_inputs <= MOST_SCALES and n_rows >= ROWS_PER_SCALE * n_inputs
    n_scales = n_features if are_few or is_known else 1
    shape = sk.Matern(np.full(n_scales, math.sqrt(n_features)), (1e-5, 1e5), nu=nu)
    return sk.ConstantKernel(1.0, (1e-5, most_variance)) * shape


def check_nearness(kernel: kernels.Kernel, n_inputs: int) -> None:
    """Raise a ValueError if no row is nearer than another under a kernel."""
    if not bool(nearness(kernel, n_inputs).any()):
        raise ValueError(
            f"kernel must fall with distance, got {kernels.to_sklearn(kernel)}, under which no "
            "rows are neighbours. Use SVGPRegressor or SCGDGaussianProcessRegressor for linear and "
            "periodic kernels, or add a term such as Matern."
        )
