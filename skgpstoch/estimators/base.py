"""Base of every estimator: the steps of a fit, and predictions in blocks of rows."""

from __future__ import annotations

import contextlib
import copy
import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..data.arrays import Scaling, row_blocks
from ..data.devices import (
    HOST,
    is_host,
    prediction_device,
    ran_out_of_memory,
)
from ..data.findings import Diagnosis, Finding
from ..data.groups import agreed
from ..data.messages import warn
from ..data.rows import Data, Rows
from ..maths.allocator import keep_freed_memory
from ..models.posteriors.base import Posterior
from ..persistence.estimator import SavedEstimator
from ..training.checkpoint import described, summary
from ..training.history import History
from ..training.observers import shown, warn_of_start
from ..training.recipes.findings import causes
from ..training.recipes.fitted import Fitted
from ..training.recipes.plan import Folds, Plan, Start
from ..training.recipes.recipe import Recipe
from ..training.recipes.row_findings import of_missing_codes, of_missing_targets, of_twins
from ..training.tables import Sampled, Table
from .callbacks import CallbackSupportMixin, FitCallbacks, with_callbacks
from .context import IS_JUDGED, fitting, numeric_context, warn_of
from .first_rank import fit_on_first, training_together
from .importances import InputSpread, posterior_importances, representative_rows
from .opening import note_read, opened
from .parameters import RunParameters
from .predictions import collected
from .runs import Run, best_of_restarts, budget_of, in_units, prepared, train_run
from .validation import check_numbers, known_noise, transformer_of, validate_inputs
from .warm_starts import going_on

keep_freed_memory()

CHECKED_ROWS = 20  # whose predictions are looked at after a fit that has resumed
HOPELESS = 10.0
"""Nats per row and output of a scaled target; a constant prediction has about 1.42."""


class BaseGP(RunParameters, CallbackSupportMixin, SavedEstimator, metaclass=ABCMeta):
    """validate → recipe → plan → objective → train → closing pass → fitted attributes.

    Each method implements :meth:`_recipe`.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Model and q(w), in float64 on the CPU.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        How much f depends on each input: the root mean square derivative of its mean per standard
        deviation of the input. Importances sum to 1, and are computed on access.
    """

    posterior_: Posterior
    validation_scores_: Any
    held_out_: Any
    _x_scaling: Scaling
    _x_spread: InputSpread
    _y_scaling: Scaling
    _weight_unit: float
    _y_shape: tuple[int, ...]
    _stream: Any
    _beginning: Data
    _appended: tuple[int, tuple[float, ...]]
    _diagnosis: Diagnosis

    @abstractmethod
    def _recipe(self) -> Recipe:
        """Return the parts of the model that the parameters ask for, validated."""

    @abstractmethod
    def _validate(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        """Validate X, y and other values of rows; rows of weight 0 stay if `reset`.

        There must be at least `least` rows, an option; None is two for a fit, else one.
        """

    def _given(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        """Do the same, but leave targets untransformed."""
        return self._validate(X, y, reset, *of_rows, **options)

    def _validate_params(self) -> None:
        super()._validate_params()
        check_numbers(self)

    # ---- fit ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or rows of :mod:`skgpstoch.data`
            Dense inputs; pandas and polars frames, real dtypes and memory maps are welcome. Rows
            that are read in chunks include y, weights and other values of rows.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or None, default=None
            Targets; None if X includes them. One column, (n_samples, 1), is taken as (n_samples,),
            with a DataConversionWarning.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for: 2 is the same as the row twice, 0 as without it.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter or an argument is invalid, or training diverges; the estimator is then as
            it was before.
        """
        return self._fit_to(X, y, sample_weight)

    @fitting
    @with_callbacks
    def _fit_to(self, X: Any, y: Any, *of_rows: Any) -> Any:
        """Fit to the user's data; `of_rows` are in the order of `_validate`."""
        recipe, table = opened(self, X, y, *of_rows)
        if isinstance(table, Sampled):
            with training_together(self, table.group):
                start = going_on(self, table.data, table.group)

                def fit_stored(run: Run) -> History:
                    with contextlib.closing(run.table):
                        return self._fit_run(recipe, run, table.data, table.data)

                fit_prepared(self, lambda: prepared(self, recipe, table, start), fit_stored)
        else:
            fit_on_first(self, table.group, lambda: fit_here(self, recipe, table))
        note_read(self, X)
        return self

    def _fit(self, recipe: Recipe, data: Data) -> History:
        """Fit to valid data."""
        return self._train_recipe(recipe, data, going_on(self, data))

    def _start(self) -> Start | None:
        """Return what a warm start begins from, or None."""
        if not (getattr(self, "warm_start", False) and hasattr(self, "posterior_")):
            return None
        return Start(self.posterior_, changed_parameters(self))

    def _train_recipe(self, recipe: Recipe, data: Data, start: Start | None) -> History:
        """Plan, train, and set the fitted attributes."""
        given = data if data.weight is None or recipe.numbers_rows else data.counted()
        return fit_prepared(
            self,
            lambda: prepared(self, recipe, in_units(recipe, given, start), start),
            lambda run: self._fit_run(recipe, run, data, given),
        )

    def _fit_run(self, recipe: Recipe, run: Run, data: Data, given: Data) -> History:
        """Train, make the closing pass, and set the fitted attributes."""
        group, callbacks = run.table.group, None
        with agreed(group):
            if group.rank == 0 and getattr(self, "_skl_callbacks", None):
                callbacks = FitCallbacks(self, given, run)
        watching = shown(type(self).__name__, self.verbose)
        if callbacks is not None:
            watching.append(callbacks)
        run, history = best_of_restarts(run, lambda run: train_run(run, *watching))
        run.objective.calibrate(run.problem.X, run.problem.rows)
        if recipe.scales_target:
            warn_if_hopeless(history, given.y.shape[1])
        self._finish(recipe, run, run.solution(), history, data)
        with agreed(group):
            if callbacks is not None:
                callbacks.tell_end()
        return history

    def _tensors(
        self,
        data: Data,
        dtype: str = "float64",
        device: torch.device | None = None,
        order: np.ndarray | None = None,
        folds: Folds | None = None,
    ) -> tuple[Tensor, Rows]:
        """Scale rows and put them in this order: permuting them later would take another copy."""
        device, kind = device or HOST, getattr(torch, dtype)

        def column(a: np.ndarray | None) -> Tensor | None:
            return None if a is None else torch.from_numpy(a if order is None else a[order]).to(X)

        X = self._x_scaling.tensor(data.X, kind, device, order)
        y = self._y_scaling.tensor(data.y, kind, device, order)
        noise = None if data.y_std is None else known_noise(data.y_std, self._y_scaling.scale)
        fold = None if folds is None else folds.numbers(len(data), device)
        cluster = None
        if data.cluster is not None:
            codes = data.cluster if order is None else data.cluster[order]
            cluster = torch.from_numpy(codes).to(device)
        return X, Rows(y, column(data.weight), column(data.exposure), column(noise), fold, cluster)

    def _finish(
        self, recipe: Recipe, run: Run, posterior: Posterior, history: History, data: Data
    ) -> None:
        """Set fitted attributes, on the CPU."""
        self._set_posterior(posterior)
        self._set_history(history, run.plan)
        self._fitted_parameters = representations(self, self._shape_parameters)
        fitted = self._fitted(run.plan, history)
        fitted = fitted._replace(
            objective=run.objective,
            data=data,
            places=run.table.places,
            budget=budget_of(run, history),
            numbers=run.table.numbers,
            transformer=transformer_of(self),
            names=getattr(self, "feature_names_in_", None),
        )
        self._is_trained = recipe.is_trained(fitted)
        self._set_attributes(recipe, fitted)
        found = list(recipe.findings(fitted))
        if (whole := fitted.whole) is not None and not IS_JUDGED.get():  # else a caller did
            found += [of_twins(whole)] if recipe.chooses_inputs else []
            found += of_codes(self, recipe, whole)
        self._diagnosis = Diagnosis(causes(found))

    def _set_posterior(self, posterior: Posterior) -> None:
        self.posterior_ = posterior.cpu().requires_grad_(False)
        for name in ("_stream", "_beginning", "_appended"):
            self.__dict__.pop(name, None)

    def _fitted(self, plan: Plan, history: History) -> Fitted:
        return Fitted(
            self.posterior_, self._x_scaling, self._y_scaling, self._y_shape, plan, history
        )

    def _set_attributes(self, recipe: Recipe, fitted: Fitted) -> None:
        """Set the recipe's own attributes, in place of those of the last fit."""
        for name in self.__dict__.pop("_own_attributes", ()):
            self.__dict__.pop(name, None)
        found = recipe.attributes(fitted)
        self.__dict__.update(found)
        self._own_attributes = tuple(found)

    def _set_history(self, history: History, plan: Plan) -> None:
        """Record what training has done so far; callbacks read it after every epoch."""
        self.loss_curve_ = list(history.loss_curve)
        self.n_iter_ = history.n_iter
        is_chosen = bool(history.scores) or history.kept_start
        self.best_iter_ = history.best_iter if is_chosen else history.n_iter
        self.validation_scores_ = list(history.scores) if plan.holds_out else None

    def diagnose(self) -> Diagnosis:
        """Tell what may be wrong with the fit: the table behind its warnings.

        Returns
        -------
        diagnosis : Diagnosis
            A tuple of findings, the worst first: name, where, value, limit, severity ("problem", if
            `fit` has warned, "note" or "fine"), and a message that says what to do. It prints as a
            table, also in a notebook, and `to_frame()` returns a pandas frame.
        """
        check_is_fitted(self)
        return self._diagnosis

    @property
    @torch.inference_mode(False)
    @torch.enable_grad()
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input."""
        check_is_fitted(self)
        spread = self._x_spread
        with numeric_context():
            rows, posterior = self._located(representative_rows(spread))
            posterior = posterior.summary
            blocks = row_blocks(len(rows), posterior.gradient_rows)
            scale = spread.scale / self._x_scaling.scale
            return posterior_importances(posterior, rows, scale, blocks)

    # ---- predictions -------------------------------------------------------------------------

    def _query(self, X: Any) -> tuple[Tensor, Posterior]:
        """Validate X; return it as a float64 tensor, and the posterior, where both predict."""
        check_is_fitted(self)
        return self._located(validate_inputs(self, X, reset=False))

    def _asked(self, posterior: Posterior) -> Posterior:
        """Return the posterior that predicts as the present parameters say."""
        return posterior

    def _located(self, X: np.ndarray) -> tuple[Tensor, Posterior]:
        """Do the same for a valid array."""
        try:
            device, posterior = predictor(self)
            return self._x_scaling.tensor(X, torch.float64, device), posterior
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            raise MemoryError(
                f"{len(X)} rows and the model do not fit into the memory of "
                f"device={self.device!r}. Predict fewer rows at a time, or set device='cpu'."
            ) from error

    def _labelled(self, data: Data) -> tuple[Tensor, Rows, Posterior]:
        """Do the same for valid data, with y and other values of rows, in the fit's units."""
        device, posterior = predictor(self)
        data = data.in_unit(getattr(self, "_weight_unit", 1.0))  # streams have none
        return *self._tensors(data, "float64", device), posterior

    def _collect(
        self, n_rows: int, compute: Callable[[slice], tuple[Tensor, ...]]
    ) -> list[np.ndarray]:
        """Compute tensors of blocks of rows, and put them together as arrays."""

        def arrays(block: slice) -> list[np.ndarray]:
            return [part.cpu().numpy() for part in compute(block)]

        return collected(arrays, n_rows, self._asked(self.posterior_).block_rows)


def of_codes(estimator: BaseGP, recipe: Recipe, data: Data) -> Iterator[Finding]:
    """Yield findings on numbers in X and y that seem to stand for missing ones."""
    if not is_classifier(estimator) and transformer_of(estimator) is None:  # else it was told
        yield from of_missing_targets(data.y)
    if recipe.chooses_inputs:
        yield from of_missing_codes(data.X, getattr(estimator, "feature_names_in_", None))


def fit_prepared(
    estimator: Any, prepare: Callable[[], Run], fit_run: Callable[[Run], History]
) -> History:
    """Prepare and fit a run; again without its checkpoint, which may hold any numbers."""
    run = prepare()
    try:
        history = fit_run(run)
        if run.checkpoint is not None and run.checkpoint.is_resumed:
            check_finite(estimator, run.problem.X, run.problem.rows)
        return history
    except Exception as error:
        if run.checkpoint is None or not run.checkpoint.is_resumed or run.table.group.size > 1:
            raise
        run.checkpoint.remove()
        warn_of_start(run.checkpoint, f"led to a failure ({summary(error)})")
        return fit_prepared(estimator, prepare, fit_run)


@torch.no_grad()
def check_finite(estimator: Any, X: Tensor, rows: Rows) -> None:
    """Raise a ValueError if what a model predicts at its first rows, or its kernel, is infinite."""
    some, kernel = slice(CHECKED_ROWS), getattr(estimator, "kernel_", None)
    posterior, rows = estimator.posterior_, rows[some].map(lambda a: a.cpu()).to(torch.float64)
    q, likelihood = posterior.predictive(X[some].double().cpu(), rows)
    numbers = [q.mean, q.var, *likelihood.moments(q).mixture_moments()]
    if not all(bool(torch.isfinite(each).all()) for each in numbers):
        raise ValueError("its predictions are not finite")
    if kernel is not None and not np.isfinite(kernel.theta).all():
        raise ValueError(f"its kernel is {kernel}")


def fit_here(estimator: BaseGP, recipe: Recipe, table: Table) -> None:
    """Fit to rows that are all here, and warn of what is wrong with the fit."""
    estimator._fit(recipe, table.data)
    warn_of(estimator)
    held_out: Any = getattr(estimator, "held_out_", None)
    if held_out is not None and table.numbers is not None:
        estimator.held_out_ = held_out.known_by(table.numbers)


def representations(estimator: Any, names: Iterable[str]) -> dict[str, str]:
    """Describe parameters, for comparisons; the constructor of a subclass may lack some."""
    return {name: described(getattr(estimator, name), name) for name in names}


def changed_parameters(estimator: Any) -> dict[str, str]:
    """Describe the parameters of the model's shape that have changed since the fit."""
    now = representations(estimator, estimator._shape_parameters)
    before = getattr(estimator, "_fitted_parameters", now)
    return {
        name: f"{name}={now[name]:.200} (before: {before[name]!s:.200})"
        for name in now
        if name in before and now[name] != before[name]  # older files know fewer
    }


def warn_if_hopeless(history: History, n_outputs: int) -> None:
    """Warn of a fit that is much worse than a constant prediction."""
    if math.isfinite(history.best_score) and history.best_score > HOPELESS * n_outputs:
        warn(
            f"Training failed: the best iterate scores {history.best_score:.3g} nats per "
            "row, worse than a constant prediction. Scale the inputs, or lower "
            "learning_rate_init.",
            ConvergenceWarning,
        )


def predictor(estimator: BaseGP) -> tuple[torch.device, Posterior]:
    """Return the device of predictions, and the posterior on it."""
    posterior = estimator._asked(estimator.posterior_)
    device = prediction_device(estimator.device)
    return device, posterior if is_host(device) else copy.deepcopy(posterior).to(device)
