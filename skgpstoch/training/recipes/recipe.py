"""Base class of recipes, their input (:class:`Problem`), and a finished fit (:class:`Fitted`).

An estimator makes a :class:`Recipe` from its parameters, once per fit. A recipe knows nothing of
estimators. It decides what "auto" means with a pure function of sizes (:meth:`Recipe.plan`), makes
the objective that is trained (:meth:`Recipe.objective`), and afterwards says what the estimator's
fitted attributes are (:meth:`Recipe.attributes`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...data.arrays import Scaling
from ...data.deadline import Deadline
from ...data.devices import HOST
from ...data.equal_rows import Merging
from ...data.findings import Finding
from ...data.held_out import HeldOutPredictions
from ...data.known_errors import scaling_of_known, warn_of_units
from ...data.rows import Data, Rows
from ...likelihoods.base import Likelihood, check_rows
from ...likelihoods.counts import Poisson
from ...likelihoods.heavy_tailed import Laplace, StudentT
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...maths.gaussian import Marginals
from ...models.posteriors.base import Posterior
from ...models.posteriors.exact import ExactPosterior
from ...objectives.base import Objective
from ...objectives.closing import Budget
from ..history import History
from ..tables import Table
from .error_findings import (
    BESIDE_NOISE,
    LEAST_WEIGHT,
    Counts,
    JudgedRows,
    judged_rows,
    nearest_rows,
    of_dispersion,
    of_errors,
    of_local,
    of_tails,
)
from .findings import (
    of_bounds,
    of_far_count,
    of_far_rows,
    of_features,
    of_inputs,
    of_noise,
    of_rows,
    of_sight,
    of_training,
    of_weights,
)
from .kernel_choice import KernelChoice
from .plan import OfParameters, Plan, Sizes, Start

MOST_LEFT_OUT = 2000  # rows whose inverse covariances are computed to judge the fit


class Problem(NamedTuple):
    """Scaled rows, and the plan to fit them."""

    X: Tensor  # (N, d); all rows or, as `rows`, a sample of them
    rows: Rows
    table: Table  # all rows
    x_scaling: Scaling
    plan: Plan
    generator: torch.Generator
    start: Start | None = None

    @classmethod
    def of(cls, table: Table, *what: Any) -> Problem:
        """Return the problem of a table; the other arguments are scaling, plan and so on."""
        return cls(table.X, table.rows, table, *what)

    def trained(self) -> Problem:
        """Return the problem without held-out rows, which come first."""
        if self.rows.fold is None:
            return self
        n = self.rows.n_held_out
        return self._replace(X=self.X[n:], rows=self.rows.after(n))


class Fitted(NamedTuple):
    """A finished fit, from which the estimator's fitted attributes are made."""

    posterior: Any
    x_scaling: Scaling
    y_scaling: Scaling
    y_shape: tuple[int, ...]  # shape of one row of the user's y
    plan: Plan
    history: History
    objective: Objective | None = None
    data: Data | None = None  # the data as given, rows of weight 0 included
    places: np.ndarray | None = None  # index of the training row that each weighted row became
    budget: Budget | None = None  # work done within max_time, if that was set
    numbers: np.ndarray | None = None  # row numbers of `data` among all rows, if it is a sample

    @property
    def whole(self) -> Data | None:
        """The rows of positive weight; None for a stream, whose earlier chunks are gone."""
        if self.data is None or (self.objective is not None and self.objective.streams):
            return None
        return self.data.counted()

    def among_first(self, n_first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the given rows that became one of the first training rows, and which one each."""
        data, places = cast(Data, self.data), cast(np.ndarray, self.places)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        is_first = places < n_first
        return given[is_first], places[is_first]

    def numbered(self, found: HeldOutPredictions) -> HeldOutPredictions:
        """Return predictions for rows of `data`, with the rows numbered as in the whole table."""
        return found if self.numbers is None else found.numbered(self.numbers[found.rows])

    def scaled_targets(self, data: Data) -> np.ndarray:
        """Return y of some rows, scaled, (n, P)."""
        offset, scale = self.y_scaling
        return np.asarray((data.y.reshape(len(data), -1) - offset) / scale)

    def in_units(self, log_density: Any, n_rows: float) -> Any:
        """Convert a log density of n_rows rows from the scaled y to y in the user's units."""
        return log_density - n_rows * float(np.log(self.y_scaling.scale).sum())

    def per_output(self, values: Tensor) -> float | np.ndarray:
        """Return values (P,), one per output, as a number if the user's y has one dimension."""
        array = values.detach().numpy()
        return float(array[0]) if self.y_shape == () else array

    def of_budget(self) -> dict[str, Any]:
        """Return the attribute that describes the work that was done within `max_time`."""
        return {"budget_": None if self.budget is None else self.budget._asdict()}

    def of_noise(self, likelihood: AdditiveNoise) -> dict[str, Any]:
        """Return the attributes that describe additive noise."""
        likelihood = likelihood.in_units(torch.from_numpy(self.y_scaling.scale))
        variance = self.per_output(likelihood.noise_variance)
        return {"likelihood_": likelihood, "noise_variance_": variance}


def started(
    likelihood: Likelihood, rows: Rows, noise: float | None = None
) -> tuple[Likelihood, Tensor]:
    """Return a likelihood for all outputs of y, and the constant means of f, (P,).

    Both start from the rows. A Gaussian likelihood starts with this noise variance, if it is given.
    """
    likelihood, of_rows = likelihood.for_outputs(rows.y.shape[1]), rows.to(torch.float64)
    if isinstance(likelihood, Gaussian) and noise is not None:
        likelihood.log_noise.data.fill_(math.log(noise))
    likelihood = likelihood.to(rows.y.device)
    likelihood.initialise(of_rows)
    return likelihood, likelihood.initial_mean(of_rows).to(rows.y)


def check_shared_noise(posterior: Posterior, rows: Rows) -> None:
    """Raise a ValueError if rows have exposures or known noise, which the evidence would ignore."""
    posterior.likelihood.given(rows.exposure)  # raises if there is one
    if rows.noise is not None:
        raise ValueError(
            "y_std must be None for the marginal likelihood of this model, because all its "
            "rows have the same noise."
        )


@dataclass(frozen=True, kw_only=True)
class Recipe(OfParameters, ABC):
    """Base class of recipes. Each fit makes one recipe and checks it.

    Parameters
    ----------
    likelihood : Likelihood
        p(y | f) for one output, before it has seen data.
    normalize_y : bool, default=False
        Whether to standardise the target, if the noise is additive.
    equal_rows : Merging, default="merge"
        What becomes of equal rows.
    deadline : Deadline or None, default=None
        When the fit must end; None if its time is not limited.
    """

    likelihood: Likelihood
    normalize_y: bool = False
    equal_rows: Merging = "merge"
    deadline: Deadline | None = None

    @property
    def numbers_rows(self) -> bool:
        """Whether parameters refer to rows by number."""
        return self.equal_rows == "as given"

    @property
    def weighs_relatively(self) -> bool:
        """Whether weights count relative to the usual one.

        Copies of all rows then tell as much as the rows, and the likelihood of equal observations
        cannot take the noise for 0.
        """
        return False

    @abstractmethod
    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        """Decide what "auto" means; a pure function."""

    def plan_of(self, sizes: Sizes, n_members: int) -> Plan:
        """Decide the same if the time allows only so many ensemble members."""
        return self.plan(sizes)

    def keeps_apart(self, plan: Plan) -> bool:
        """Tell whether equal rows must stay rows of their own, unless they are copies.

        They must where rows are left out to judge the model, or where each row has a function.
        """
        return plan.folds.size > 0

    def start(self, problem: Problem) -> Start | None:
        """Return where training starts: at the last fit, if it goes on from one."""
        return problem.start

    def sums_rows(self, plan: Plan) -> bool:
        """Tell whether training needs only sums over minibatches, so rows may stay on disk."""
        return False

    @abstractmethod
    def objective(self, problem: Problem) -> Objective:
        """Make what training minimises; its parameters start from `problem.start`, if any."""

    @abstractmethod
    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        """Return the fitted attributes that are specific to the method, in the user's units."""

    @property
    def scales_target(self) -> bool:
        """Whether targets are scaled to variance 1."""
        return self.normalize_y

    def check(self, data: Data) -> None:
        """Raise a ValueError if parameters do not agree with each other, or with the data."""
        self.check_rows(data)

    def check_rows(self, data: Data) -> None:
        """Raise a ValueError if the likelihood cannot use the targets, exposures or y_std."""
        check_rows(self.likelihood, data)

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        """Return the scaling between the user's X and what the objective sees."""
        return Scaling.identity(X.shape[1])

    def target_scaling(self, data: Data) -> Scaling:
        """Return the scaling of y (n, P): a robust one if the noise has heavy tails."""
        y, weight = data.y, data.weight
        if not self.scales_target:
            return Scaling.identity(y.shape[1])
        if data.y_std is not None:
            warn_of_units(y, data.y_std)
            return scaling_of_known(y, data.y_std, weight)
        find = (
            Scaling.robust if isinstance(self.likelihood, StudentT | Laplace) else Scaling.standard
        )
        return find(y, weight)

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        """Return log p(y | X) of other rows, or the bound on it, for the scaled y."""
        raise NotImplementedError

    # ---- findings ----------------------------------------------------------------------------

    def findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield the findings that `diagnose` tabulates; `fit` warns of those that are problems."""
        if (data := fitted.whole) is not None:
            yield from of_rows(data.size, self.learns)
            yield from (found for found in of_weights(data.weight) if found.value > found.limit)
            if isinstance(self.likelihood, Poisson):
                yield from of_far_count(data.y, data.exposure)
            if self.chooses_inputs:
                yield from of_features(data.size, data.X.shape[1])
                yield from of_far_rows(data.X, data.weight)
            yield from self.training_findings(fitted)
            if fitted.budget is not None:
                yield fitted.budget.finding

    @property
    def learns(self) -> bool:
        """Whether there are hyper-parameters to learn."""
        return True

    @property
    def chooses_inputs(self) -> bool:
        """Whether the fit must learn which columns of X matter; False for pixels."""
        return True

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        """Yield how training ended."""
        yield from of_training(fitted.history, fitted.plan.max_iter)

    def kernel_findings(
        self, fitted: Fitted, kernel: sk.Kernel, given: KernelChoice, sees_inputs: bool
    ) -> Iterator[Finding]:
        """Yield findings about a fitted kernel; those about X only if it sees the inputs."""
        is_given = given.expression is not None
        yield from of_bounds(kernel, is_given)
        likelihood = fitted.posterior.likelihood
        if isinstance(likelihood, Gaussian) and given.white is None:
            yield from of_noise(likelihood.noise_variance.detach(), given.noise_bounds, is_given)
        data = fitted.whole
        if not (sees_inputs and data is not None):
            return
        yield from of_sight(kernel, given.expression, data.X, unit_of(self, data))
        if is_given:
            yield from of_inputs(kernel, data.X)

    # ---- streams -----------------------------------------------------------------------------

    def check_streams(self) -> None:
        """Raise a ValueError where `partial_fit` is impossible."""

    def stream(self, problem: Problem, posterior: Any) -> Objective:
        """Make the objective of a stream, from a fitted posterior or None."""
        raise NotImplementedError


# ---- findings about errors ----------------------------------------------------------------------


def error_findings(
    fitted: Fitted, kernel: sk.Kernel | None, advice: str, is_trained: bool
) -> Iterator[Finding]:
    """Yield whether errors at training rows are more than noise.

    `kernel` is the fitted one; None if it does not see the inputs.
    """
    likelihood, data = fitted.posterior.likelihood, fitted.whole
    if data is not None and isinstance(likelihood, Poisson):
        counts = counts_at(fitted, data, judged_rows(data.X))
        learns_it = likelihood.learns_dispersion
        yield from of_dispersion(counts, learns_it, is_trained)
    if data is None or not isinstance(likelihood, AdditiveNoise):
        return
    noise = likelihood.noise_variance.detach().numpy()
    at_rows, at_nearest = (errors_at(fitted, data, rows) for rows in nearest_rows(data.X))
    yield from of_errors(at_rows, at_nearest, noise, advice, is_trained)
    if type(likelihood) is Gaussian and data.y_std is None:
        rows = np.arange(len(data.X))
        if (weight := data.weight) is not None:  # rows of little weight hardly affect the fit
            rows = np.flatnonzero(weight > LEAST_WEIGHT * weight.mean())
        rows = rows[judged_rows(rows)]
        error = errors_at(fitted, data, rows)
        Y = fitted.scaled_targets(data)
        yield from of_local(rows, error, data.X, Y, kernel, is_trained)
        are_noise = bool(np.any(np.square(error).mean(0) > BESIDE_NOISE * noise))
        without = errors_without(fitted, rows, error)
        yield from of_tails(without, JudgedRows.of(rows, without, data.X, Y), are_noise)


def errors_at(fitted: Fitted, data: Data, rows: np.ndarray) -> np.ndarray:
    """Return the errors (m, P) at the training rows with these numbers, for the scaled y."""
    X = fitted.x_scaling.tensor(data.X[rows], torch.float64, HOST)
    y = (data.y[rows] - fitted.y_scaling.offset) / fitted.y_scaling.scale
    with torch.no_grad():
        mean, _ = fitted.posterior.marginals(X).mixture_moments()
    return y - mean.numpy().reshape(y.shape)


def errors_without(fitted: Fitted, rows: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return errors (m, P) at these rows without themselves, if a factor of all rows is known.

    Rows that were merged are left out together.
    """
    posterior, places, data = fitted.posterior, fitted.places, cast(Data, fitted.whole)
    is_known = isinstance(posterior, ExactPosterior) and len(posterior.X) <= MOST_LEFT_OUT
    if not is_known or places is None or len(places) != len(data):
        return error
    exact = cast(ExactPosterior, posterior)
    mean = exact.y - exact.solver.left_out()[0][..., 0].mT  # in the order of training
    return np.asarray((fitted.scaled_targets(data) - mean.numpy()[places])[rows])


def counts_at(fitted: Fitted, data: Data, rows: np.ndarray) -> Counts:
    """Return the counts at numbered training rows, and what q(f) = N(m, s²) says of them.

    A row's count has the curvature λ = −E_q[∂² log p(y | f)] in q(f), so h = λs².
    """
    X = fitted.x_scaling.tensor(data.X[rows], torch.float64, HOST)
    exposure = None if data.exposure is None else torch.from_numpy(data.exposure[rows])
    with torch.no_grad():
        likelihood = fitted.posterior.likelihood.given(exposure)
        m, s2 = fitted.posterior.marginals(X).mixture_moments()
        q = Marginals(m[None], s2[None])
        y = torch.from_numpy(data.y[rows]).reshape(m.shape)
        mean, variance = likelihood.moments(q).mixture_moments()
        _, _, by_s2 = likelihood.expected_gradients(y, q)  # −½λ
        leverage = (-2.0 * by_s2 * s2).clamp(0.0, 1.0)
        of_rate = likelihood.variance_and_kurtosis(mean)
    return Counts(*(each.numpy() for each in (y, mean, variance, *of_rate, leverage)))


def unit_of(recipe: Recipe, data: Data) -> float:
    """Return the standard deviation of y in units of f; 1 if f has not the units of y."""
    if recipe.scales_target or not isinstance(recipe.likelihood, AdditiveNoise):
        return 1.0
    return float(Scaling.standard(data.y, data.weight).scale.max())
