"""The recommended defaults: what is known to predict well on tables, chosen by their size."""

from __future__ import annotations

import functools
import time
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, clone
from sklearn.model_selection import ShuffleSplit
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from ..data.arrays import resolve_seed
from ..data.deadline import Deadline, seconds_left
from ..data.messages import warn
from ..docstrings import documented
from ..estimators.base import fitting, refuse_booleans, validate_inputs
from ..estimators.callbacks import CallbackSupportMixin, Fit, Fits, with_callbacks
from ..estimators.classifier import Classifier
from ..estimators.docs import public_estimator
from ..estimators.parameters import AUTO, N_JOBS
from ..estimators.regressor import Regressor
from ..estimators.validation import as_floats
from ..methods.deep_kernel_ensemble import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    ensemble_plan,
)
from ..methods.dlm import DLMRegressor
from ..methods.svgp import SVGPClassifier, SVGPRegressor
from ..recipes.recipe import Training
from .mixture import MixtureRegressor, Parts
from .stacking import StackedDensityRegressor

TOO_FEW_ROWS = 10  # to learn a kernel from
VERY_FEW_ROWS = 50  # that are not enough to hold some out
STACKED_ROWS = 2000  # up to which there are several models, and time to judge them
FEW_STEPS = 100  # for very few rows of classes
PROCESS_POINTS = 64  # of the process
HELD_OUT = 0.2  # of the rows, to judge models by
JUDGES = 3  # networks that the others' weight is found with, in half of their steps
LEAST_WEIGHT = 0.1  # below which a model is not worth the time


@dataclass(eq=False, repr=False, kw_only=True)
class AutomaticParameters:
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    max_time : float or None, default=None
        Seconds that `fit` may take, from its call to its return. The regressor then has no second
        model, and where there is little time there are fewer steps of fewer networks, so that
        results depend on the speed of the machine; a warning and `budget_` say what was cut. None:
        about a minute of one core for 12,000 rows, and 15 to 20 s for 1,000.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    verbose : int or "auto", default="auto"
        "auto" shows progress on a line of its own, on a terminal or in a notebook, when a fit has
        taken ten seconds; 0 shows nothing, and 1 prints each epoch.
    random_state : int, RandomState instance or None, default=None
        Seed; an int makes fits reproducible.

    Attributes
    ----------
    scores_ : dict of lists
        "model", "score" (in nats per row, for y in its own units) and "weight". Scores are mean log
        densities, or log probabilities, of rows held out; of networks alone, the mean of theirs
        before they are mixed; of fewer than 50 rows, the bound on the evidence.
    leaderboard_ : DataFrame
        The same, the best first; needs pandas.
    budget_ : dict or None
        What there was time for, with `max_time`; see :class:`DeepKernelEnsembleRegressor`.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.
    """

    max_time: float | None = None
    device: Any = None
    verbose: int | str = "auto"
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "device": [str, torch.device, None],
        "verbose": ["verbose", AUTO],
        "random_state": ["random_state"],
    }


def alone(name: str, score: float) -> dict[str, list]:
    """Return the scores of a single model."""
    return {"model": [name], "score": [score], "weight": [1.0]}


def warn_of_few_rows(n_rows: int) -> None:
    """Warn if there are too few rows to learn a kernel from."""
    if n_rows < TOO_FEW_ROWS:
        warn(
            f"{n_rows} rows are too few to learn a kernel from: expect predictions that are too "
            "certain. Give more rows, or give what you know as the kernel of another estimator."
        )


def common(p: AutomaticParameters) -> dict[str, Any]:
    """Return the parameters that every model inside is given."""
    seed = resolve_seed(p.random_state)
    return {"device": p.device, "verbose": p.verbose, "random_state": seed}


def stacked(
    networks: DeepKernelEnsembleRegressor, n_rows: int, shared: dict[str, Any], n_jobs: int | None
) -> StackedDensityRegressor:
    """Return networks and a process, whose weights fewer networks in half of the steps find."""
    n_inducing = min(PROCESS_POINTS, n_rows // 4)
    process = DLMRegressor(likelihood="shared_student_t", n_inducing=n_inducing, **shared)
    judge = clone(networks).set_params(n_estimators=JUDGES)
    n_judged = round((1.0 - HELD_OUT) * n_rows)
    n_epochs = ensemble_plan(Training.of(judge), n_judged, JUDGES).max_iter
    return StackedDensityRegressor(
        [("networks", networks), ("process", process)],
        cv=ShuffleSplit(1, test_size=HELD_OUT, random_state=shared["random_state"]),
        judged_by={"networks": judge.set_params(max_iter=-(-n_epochs // 2))},
        least_weight=LEAST_WEIGHT,
        n_jobs=n_jobs,
    )


def of_model(method: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a method, with the signature and the docstring of this one, that asks `model_`."""

    @functools.wraps(method)
    def asked(self: Automatic, X: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        X = self._query(X)
        return np.asarray(getattr(self.model_, method.__name__)(X, *args, **kwargs))

    return asked


# ---- estimators ----------------------------------------------------------------------------------


class Automatic(AutomaticParameters, CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """A fit of the model that suits the rows."""

    @abstractmethod
    def _validate(self, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return X and y, checked."""

    @abstractmethod
    def _chosen(
        self, fit: Fit, X: Any, y: Any, sample_weight: Any, deadline: Deadline | None
    ) -> tuple[Any, dict[str, list]]:
        """Fit what suits these rows by the deadline, if there is one, and score it."""

    @fitting
    @with_callbacks
    def _fit_to(self, X: Any, y: Any, sample_weight: Any) -> Any:
        began = time.monotonic()
        self._validate_params()
        refuse_booleans(self)
        if sample_weight is not None:
            as_floats(sample_weight, "sample_weight")  # or an error that names it
        X, y = self._validate(X, y, sample_weight)
        fits = Fits(self, X, y, 1)
        deadline = None if self.max_time is None else Deadline(began + self.max_time)
        fit = fits.next("model")
        self.model_, self.scores_ = self._chosen(fit, X, y, sample_weight, deadline)
        fits.on_end()
        return self

    def _query(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_inputs(self, X, reset=False)

    @property
    def budget_(self) -> dict[str, Any] | None:
        """What there was time for, with `max_time`: as the networks say."""
        check_is_fitted(self)
        return getattr(self.model_, "budget_", None)

    @property
    def leaderboard_(self) -> Any:
        """Models, their scores on held-out rows (nats per row) and weights, as a pandas frame.

        The best comes first.
        """
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        table = pd.DataFrame(self.scores_)
        return table.sort_values("score", ascending=False, ignore_index=True)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessRegressor(MultiOutputMixin, Automatic, MixtureRegressor):
    """The recommended default: calibrated predictive distributions on tables of any size.

    An ensemble of networks with Gaussian-process last layers, whose noise depends on the inputs and
    has the tails of the data, trained for the density of its predictions and calibrated by rows
    that it has not seen. Up to 2,000 rows it is stacked with a sparse process, unless `max_time`
    leaves no time for it or there are several outputs; of fewer than 50 rows there is a process
    alone, which is not calibrated.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Processes that fit the models of a stack, as joblib counts them.

    Attributes
    ----------
    model_ : DeepKernelEnsembleRegressor, SVGPRegressor or StackedDensityRegressor
        What was fitted.

    See Also
    --------
    DeepKernelEnsembleRegressor : The networks, with their parameters.
    StackedDensityRegressor : Mixtures of any models.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import AutoGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> model = AutoGaussianProcessRegressor(max_time=1, random_state=0).fit(X, y)
    >>> low, high = model.predict_interval([[0.0]], coverage=0.95)[0]
    >>> bool(low < 0.0 < high)
    True
    """

    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {"n_jobs": N_JOBS}

    @documented(Regressor.fit)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessRegressor:
        """Fit the model.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        options = {"multi_output": True, "y_numeric": True, "ensure_min_samples": 2}
        return validate_inputs(self, X, y, reset=True, **options)

    def _chosen(
        self, fit: Fit, X: Any, y: Any, sample_weight: Any, deadline: Deadline | None
    ) -> tuple[Any, dict[str, list]]:
        shared, n = common(self), len(X)
        if n < VERY_FEW_ROWS:
            warn_of_few_rows(n)
            process = fit(SVGPRegressor(**shared), X, y, sample_weight=sample_weight)
            return process, alone("process", process.log_marginal_likelihood_value_ / n)
        networks = DeepKernelEnsembleRegressor(max_time=seconds_left(deadline), **shared)
        if n > STACKED_ROWS or y.ndim > 1 or deadline is not None:
            fit(networks, X, y, sample_weight=sample_weight)
            score = -min(networks.validation_scores_ or [np.nan])
            score = score - float(np.log(networks._y_scaling.scale).sum())
            return networks, alone("networks", score)
        stack = stacked(networks, n, shared, self.n_jobs)
        fit(stack, X, y, sample_weight=sample_weight)
        names = [name for name, _ in stack.estimators]
        scores, weights = stack.scores_.tolist(), stack.weights_.tolist()
        return stack, {"model": names, "score": scores, "weight": weights}

    def _parts(self, X: Any) -> tuple[Parts, Any]:
        X = self._query(X)
        return Parts([1.0], [self.model_]), X


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(ClassifierMixin, Automatic):
    """The recommended default: calibrated probabilities on tables of any size.

    An ensemble of networks with Gaussian-process last layers, trained for the bound on the evidence
    and calibrated by rows that it has not seen; of fewer than 50 rows a process alone.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of rows that have a weight.
    model_ : DeepKernelEnsembleClassifier or SVGPClassifier
        What was fitted.

    See Also
    --------
    DeepKernelEnsembleClassifier : The networks, with their parameters.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpstoch import AutoGaussianProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AutoGaussianProcessClassifier(max_time=1, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    @documented(Classifier.fit)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessClassifier:
        """Fit the model.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = validate_inputs(self, X, y, reset=True, ensure_min_samples=2)
        check_classification_targets(y)
        counted = y if sample_weight is None else y[_check_sample_weight(sample_weight, X) > 0]
        self.classes_ = np.unique(counted)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes at least, but y, where sample_weight is "
                f"not 0, has one class: {self.classes_.tolist()}."
            )
        return X, y

    def _chosen(
        self, fit: Fit, X: Any, y: Any, sample_weight: Any, deadline: Deadline | None
    ) -> tuple[Any, dict[str, list]]:
        shared, n = common(self), len(X)
        if n < VERY_FEW_ROWS:
            warn_of_few_rows(n)
            process = SVGPClassifier(max_iter=FEW_STEPS, **shared)
            fit(process, X, y, sample_weight=sample_weight)
            return process, alone("process", process.log_marginal_likelihood_value_ / n)
        networks = DeepKernelEnsembleClassifier(max_time=seconds_left(deadline), **shared)
        fit(networks, X, y, sample_weight=sample_weight)
        return networks, alone("networks", -min(networks.validation_scores_ or [np.nan]))

    predict = of_model(Classifier.predict)
    predict_proba = of_model(Classifier.predict_proba)
    predict_log_proba = of_model(Classifier.predict_log_proba)
    predict_std = of_model(Classifier.predict_std)
    log_predictive_density = of_model(Classifier.log_predictive_density)
