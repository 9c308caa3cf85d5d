"""partial_fit: learn from more rows, chunk by chunk."""

from __future__ import annotations

import bisect
import copy
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.array_inputs import given_labels
from ..data.arrays import resolve_seed
from ..data.devices import resolve_device
from ..data.findings import Diagnosis
from ..data.rows import BEGINNING, LONG_BEGINNING, Data
from ..objectives.base import Objective
from ..training.checkpoint import SILENT, has_moments_of, load_moments
from ..training.history import History
from ..training.loop import train
from ..training.optimizers import make_optimizer
from ..training.recipes.plan import Sizes, Start
from ..training.recipes.recipe import Problem, Recipe
from ..training.tables import InMemory
from .base import BaseGP, Run, changed_parameters, of_codes, representations
from .context import fitting
from .first_rank import refuse_group
from .regressor import Regressor
from .runs import set_scalings
from .stream_warnings import warn_of_beyond
from .validation import with_transformed_targets
from .weights import warn_of_light_rows

STREAM_RATE = 0.1  # of learning_rate_init: the largest learning rate of a stream
FIRST_STEPS = 100
"""Steps on the first rows of a stream, if gradients learn q, which they do slowly from the prior.

*Measured*: a DLMRegressor learns 500 rows, then 60 pieces of 200. The density of other rows after
the first piece and at the end is −.48 and −.23 with 500 steps, −.39 and −.24 with 200, −.32 and
−.23 with 100, and −1.18 and −.68 with one pass.
"""
LEARNED_AT = (1, 2, 4, 8, 16, BEGINNING, 2 * BEGINNING, 4 * BEGINNING, LONG_BEGINNING)
"""Numbers of rows at which the beginning of a stream that only appends is learned again."""
LONGEST_CURVE = 100_000  # calls whose losses are kept; a stream may never end


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
    first = begins(estimator)
    given = rows_so_far(estimator, X, y, *of_rows)
    data = with_transformed_targets(estimator, given, reset=first)
    recipe = estimator._recipe()
    recipe.check_streams()
    recipe.check(data)
    run = prepare(estimator, recipe, data, first)
    history = learn(run, learns_q=first and len(data) >= BEGINNING and run.objective.learns_q)
    if first:
        run.objective.end_beginning(*run.table.every_row())
    curve = [*getattr(estimator, "loss_curve_", []), *history.loss_curve]
    history.loss_curve = curve[-LONGEST_CURVE:]
    estimator._finish(recipe, run, run.objective.running_solution(), history, data)
    if first:
        found = [*estimator._diagnosis, *of_codes(estimator, recipe, given)]
        estimator._diagnosis = Diagnosis(found)
    estimator._diagnosis.warn()
    if not first:
        warn_of_beyond(estimator, data)
    run.objective.detach_rows()
    parameters = described_parameters(estimator)
    keep_beginning(estimator, first, given)
    estimator._stream = Stream(
        run.objective.cpu(), on_cpu(run.optimizer), parameters, run.plan.solver
    )
    return estimator


def learn(run: Run, learns_q: bool) -> History:
    """Pass over the rows of a call, once, or as often as gradients need to learn q."""
    return train(
        run.objective,
        run.table,
        optimizer=run.optimizer,
        max_iter=first_epochs(run) if learns_q else 1,
        batch_size=run.plan.batch_size,
        schedule=run.plan.schedule if learns_q else partial(stream_rate, run),
        generator=run.problem.generator,
    )


def first_epochs(run: Run) -> int:
    """Return how often to pass over the first rows of a stream, if gradients learn q."""
    n_batches = math.ceil(run.table.n_rows / run.plan.batch_size)
    return min(run.plan.max_iter, math.ceil(FIRST_STEPS / n_batches))


def stream_rate(run: Run, *_: float) -> float:
    """Return the factor of the learning rate; averages must follow features as they change."""
    return min(STREAM_RATE, run.objective.stream_rate(run.plan.batch_size))


def begins(estimator: BaseGP) -> bool:
    """Tell whether a call begins a stream, or begins it again with more rows."""
    return hasattr(estimator, "_beginning") or not hasattr(estimator, "posterior_")


def rows_so_far(estimator: BaseGP, X: Any, y: Any, *of_rows: Any) -> Data:
    """Return valid rows of a call, after those of earlier calls if the stream begins again."""
    is_new = not hasattr(estimator, "posterior_")
    if not is_new:
        check_unchanged(estimator)
    data = estimator._given(X, y, is_new, *of_rows, least=1).counted()
    warn_of_light_rows(data)
    if not is_new:
        check_same_exposure(estimator, data.exposure)
    before: Data | None = getattr(estimator, "_beginning", None)
    return data if before is None else before.joined(data)


def is_learned_again(n_before: int, n: int) -> bool:
    """Tell whether rows have doubled in a beginning, of `LONG_BEGINNING` rows."""
    return bisect.bisect(LEARNED_AT, n_before) != bisect.bisect(LEARNED_AT, n)


def keep_beginning(estimator: BaseGP, first: bool, data: Data, enough: int = BEGINNING) -> None:
    """Keep the rows of a stream while they are too few for its beginning."""
    if first and len(data) < enough:
        estimator._beginning = data


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
    kept = None if first else kept_stream(estimator, plan.solver)
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
        load_moments(optimizer, kept.optimizer)
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


def check_same_exposure(estimator: Any, exposure: Any) -> None:
    """Raise a ValueError if only some chunks have exposures."""
    given = exposure is not None
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


def all_classes(estimator: BaseGP, classes: Any) -> np.ndarray | None:
    """Return the sorted labels that may occur, of which a later call can only repeat the first's.

    Raises
    ------
    ValueError
        If there are fewer than two, or if they are not those of the fitted model.
    """
    if classes is None:
        return None
    if np.ndim(classes) == 0:  # a set, a number or a name
        raise ValueError(f"classes must list at least two labels, got {classes!r}.")
    classes = np.unique(given_labels(classes, "classes"))
    if len(classes) < 2:
        raise ValueError(f"classes must list at least two labels, got {classes.tolist()}.")
    if hasattr(estimator, "posterior_") and not np.array_equal(classes, estimator.classes_):
        raise ValueError(
            "classes must be the same as in the first call, "
            f"{estimator.classes_.tolist()}, got {classes.tolist()}."
        )
    return np.asarray(classes)


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
