"""partial_fit: learn from more rows, chunk by chunk."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import resolve_seed
from ..data.devices import resolve_device
from ..data.docstrings import documented
from ..data.rows import Data
from ..likelihoods.base import class_likelihood, regression_likelihood
from ..models.sparse import SparsePosterior
from ..objectives.base import Objective
from ..objectives.optimal_q import dependent_bound
from ..training.checkpoint import SILENT, has_moments_of
from ..training.loop import train
from ..training.optimizers import make_optimizer
from ..training.recipes.feature_builder import FeatureBuilder
from ..training.recipes.inducing import InducingPoints
from ..training.recipes.plan import Sizes, Start
from ..training.recipes.recipe import Problem, Recipe
from ..training.recipes.variational import VariationalRecipe
from ..training.tables import InMemory
from .base import BaseGP, Run, changed_parameters, representations
from .classifier import Classifier
from .context import fitting, predicting
from .first_rank import refuse_group
from .regressor import GeneralRegressor, Regressor
from .runs import set_scalings

STREAM_RATE = 0.1  # of learning_rate_init: the largest learning rate of a stream


class Stream(NamedTuple):
    """State that one call leaves to the next."""

    objective: Objective
    optimizer: dict[str, Any]  # its state
    parameters: dict[str, str]  # those of the estimator
    solver: str


@fitting
def stream(estimator: BaseGP, X: Any, y: Any, *of_rows: Any) -> Any:
    """Train on more rows, from the fitted model if there is one."""
    refuse_group("partial_fit")
    estimator._validate_params()
    first = not hasattr(estimator, "posterior_")
    if not first:
        check_unchanged(estimator)
    elif np.shape(X)[:1] == (1,):
        raise ValueError(
            "The first call of partial_fit got a single row, but the scalings of X and y and the "
            "inducing points come from its rows. Collect some hundred rows, at least two, for the "
            "first call; later calls take single rows."
        )
    data = estimator._validate(X, y, first, *of_rows)
    recipe = estimator._recipe()
    recipe.check_streams()
    recipe.check(data)
    if not first:
        check_chunk(estimator, data)
    data = data.counted()
    run = prepare(estimator, recipe, data, first)
    history = train(
        run.objective,
        run.table,
        optimizer=run.optimizer,
        max_iter=1,
        batch_size=run.plan.batch_size,
        # Features must not change faster than the averages of them follow.
        schedule=lambda *_: min(STREAM_RATE, run.objective.stream_rate(run.plan.batch_size)),
        generator=run.problem.generator,
    )
    history.loss_curve = [*getattr(estimator, "loss_curve_", []), *history.loss_curve]
    estimator._finish(recipe, run, run.objective.running_solution(), history, data)
    estimator._diagnosis.warn()
    run.objective.detach_rows()
    parameters = described_parameters(estimator)
    estimator._stream = Stream(
        run.objective.cpu(), on_cpu(run.optimizer), parameters, run.plan.solver
    )
    return estimator


def prepare(estimator: BaseGP, recipe: Recipe, data: Data, first: bool) -> Run:
    """Plan for a chunk, and make its objective or continue the last one."""
    device = resolve_device(estimator.device)
    generator = torch.Generator(device).manual_seed(resolve_seed(estimator.random_state))
    posterior = None if first else estimator.posterior_
    sizes = Sizes(len(data), len(data), data.X.shape[1], data.y_std is not None, streams=True)
    start = None if posterior is None else Start(posterior)
    plan = recipe.plan(sizes, start)
    if first:
        set_scalings(estimator, recipe, data, None)
    X, rows = estimator._tensors(data, plan.dtype, device)
    problem = Problem.of(InMemory(X, rows), estimator._x_scaling, plan, generator)
    kept = kept_stream(estimator, plan.solver)
    if kept is None:
        objective = recipe.stream(problem, posterior).to(X.device)
    else:
        objective = copy.deepcopy(kept.objective).to(X.device)
        objective.attach(X, rows)
    optimizer = resumed_optimizer(estimator, objective, plan.solver, kept)
    return Run(problem, objective, optimizer)


def kept_stream(estimator: BaseGP, solver: str) -> Stream | None:
    """Return the state of the last call, unless parameters that it depends on have changed."""
    kept = getattr(estimator, "_stream", None)
    now = (described_parameters(estimator), solver)  # y_std may change which solver is "auto"
    return kept if kept is not None and (kept.parameters, kept.solver) == now else None


def resumed_optimizer(
    estimator: Any, objective: Objective, solver: str, kept: Stream | None
) -> torch.optim.Optimizer | None:
    """Make the optimiser, in the state in which the last call left it."""
    optimizer = make_optimizer(solver, objective.param_groups(), estimator.learning_rate_init)
    if optimizer is not None and kept is not None:
        if not has_moments_of(optimizer, kept.optimizer):
            raise ValueError(
                "partial_fit cannot go on, because the optimiser's state does not belong to this "
                "model. Call fit to start again."
            )
        optimizer.load_state_dict(copy.deepcopy(kept.optimizer))
    return optimizer


def described_parameters(estimator: BaseGP) -> dict[str, str]:
    """Describe all parameters that a stream depends on."""
    names = set(estimator.get_params(deep=False)) - SILENT - {"warm_start"}
    return representations(estimator, sorted(names))


def check_unchanged(estimator: BaseGP) -> None:
    """Raise a ValueError if parameters ask for a different model from the fitted one."""
    if changed := changed_parameters(estimator):
        raise ValueError(
            "partial_fit continues the model that was fitted before, but "
            f"{', '.join(changed.values())} needs a different one. Set these parameters "
            "back, or call fit to start again."
        )


def check_chunk(estimator: Any, data: Data) -> None:
    """Raise a ValueError if only some chunks have exposures."""
    given = data.exposure is not None
    before = getattr(estimator, "_fitted_with_exposure", False)
    if given != before:
        raise ValueError(
            "exposure must be given for all chunks or for none, but earlier chunks had "
            f"{'an' if before else 'no'} exposure. Use ones for rows without a known "
            "exposure."
        )


def on_cpu(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return an optimiser's state, loadable without a GPU."""
    state = {} if optimizer is None else copy.deepcopy(optimizer.state_dict())
    for values in state.get("state", {}).values():
        values.update({k: v.cpu() for k, v in values.items() if isinstance(v, Tensor)})
    return state


# ---- estimators that learn from streams ----------------------------------------------------------


class StreamingRegressor(Regressor):
    """A regressor that learns from chunks, too."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Make one pass over more rows, for streams.

        The scalings of X and y are those of the first call (or of `fit`). The posterior comes from
        running statistics, of about the last 20 rows for each feature. The learning rate is
        `learning_rate_init` times their averaging rate, a tenth at most. With noise="validation"
        the noise is profiled, because no rows are held out.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.

        Returns
        -------
        self : object
            The updated estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid, if the kernel has neither finite nor
            random features, or if parameters that define the model have changed since the first
            call.
        """
        return stream(self, X, y, sample_weight)


class VariationalRegressor(GeneralRegressor):
    """A regressor for any likelihood that learns from chunks, too."""

    _builder: ClassVar[type[FeatureBuilder]] = InducingPoints

    def _recipe(self) -> VariationalRecipe:
        parameters: Any = self
        likelihood = regression_likelihood(parameters.likelihood)
        return VariationalRecipe.chosen(self, likelihood, self._builder.of)

    @documented(StreamingRegressor.partial_fit)
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, exposure: Any = None, y_std: Any = None
    ) -> Any:
        """Make one pass over more rows, for streams.

        The scalings of X and y are those of the first call (or of `fit`). The posterior comes from
        running averages, and the learning rate is `learning_rate_init` times their averaging rate,
        a tenth at most. `log_marginal_likelihood_value_` becomes NaN.

        Parameters
        ----------
        exposure : float or array-like of shape (n_samples,), default=None
            As for `fit`.
        y_std : float or array-like of the shape of y, default=None
            As for `fit`.

        Raises
        ------
        ValueError
            If a parameter or an argument is invalid, if solver, loss or beta is not for streams, or
            if parameters that define the model have changed since the first call.
        """
        return stream(self, X, y, sample_weight, exposure, y_std)

    @documented(GeneralRegressor.log_marginal_likelihood)
    def dependent_bound(
        self, X: Any, y: Any, sample_weight: Any = None, *, y_std: Any = None
    ) -> float:
        """Compute another lower bound on log p(y | X), with the fitted hyper-parameters.

        It is the bound of Shi, Titsias and Mnih, appendix A (14), in which the values at the
        inducing points and the rest of f depend on each other. It is at least Titsias' bound for
        all inducing points, ordinary and orthogonal. If orthogonal points only have a mean
        (posterior="odvgp" with whiten=False), it is the bound for the ordinary ones about this
        mean. It goes through all pairs of rows: O(n²) time, but not memory.

        Returns
        -------
        bound : float
            In nats, summed over rows and outputs, for y in its own units.

        Raises
        ------
        ValueError
            If the likelihood is not Gaussian, or there are several layers.
        """
        X, rows, posterior = self._labelled(self._checked(X, y, sample_weight, None, y_std))
        with predicting():
            value = float(dependent_bound(cast(SparsePosterior, posterior).model, X, rows))
        return value - rows.n_effective * float(np.log(self._y_scaling.scale).sum())


class VariationalClassifier(Classifier):
    """A classifier that learns from chunks, too."""

    _builder: ClassVar[type[FeatureBuilder]] = InducingPoints

    def _recipe(self) -> VariationalRecipe:
        parameters: Any = self
        likelihood = class_likelihood(parameters.likelihood, len(self.classes_))
        return VariationalRecipe.chosen(self, likelihood, self._builder.of)

    @documented(VariationalRegressor.partial_fit)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Make one pass over more rows, for streams.

        The scaling of X is that of the first call (or of `fit`). The posterior comes from running
        averages, and the learning rate is `learning_rate_init` times their averaging rate, a tenth
        at most. `log_marginal_likelihood_value_` becomes NaN.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,) or None, default=None
            All labels that may occur, for the first call; None for those of `y`.
        """
        return stream(self, X, y, sample_weight, all_classes(self, classes))


def all_classes(estimator: Classifier, classes: Any) -> np.ndarray | None:
    """Return the sorted labels that may occur, of which a later call can only repeat the first's.

    Raises
    ------
    ValueError
        If there are fewer than two, or if they are not those of the fitted model.
    """
    if classes is None:
        return None
    classes = np.unique(classes)
    if len(classes) < 2:
        raise ValueError(f"classes must list at least two labels, got {classes.tolist()}.")
    if hasattr(estimator, "posterior_") and not np.array_equal(classes, estimator.classes_):
        raise ValueError(
            "classes must be the same as in the first call, "
            f"{estimator.classes_.tolist()}, got {classes.tolist()}."
        )
    return np.asarray(classes)
