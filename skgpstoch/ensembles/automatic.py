"""The ones to start with: what is known to predict well on tables, chosen by their size."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
    clone,
    is_classifier,
)
from sklearn.model_selection import ShuffleSplit
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from ..data.arrays import resolve_seed
from ..estimators.base import fitting, validate_inputs
from ..estimators.callbacks import CallbackSupportMixin, Fit, Fits, with_callbacks
from ..estimators.docs import public_estimator
from ..estimators.parameters import N_JOBS
from ..estimators.plan import direct_plan
from ..methods.dlm import DLMClassifier, DLMRegressor
from ..methods.svgp import SVGPClassifier, SVGPRegressor
from .mixture import Parts, PredictiveMixture
from .stacking import StackedDensityRegressor

TOO_FEW_ROWS = 10  # to learn a kernel from
VERY_FEW_ROWS = 50  # that are not enough to hold some out
FEW_ROWS = 2000  # up to which there are several models, and time to judge them
TRIAL_ROWS = 1000  # that the time of a step is measured with
TRIAL_STEPS = 10
LEAST_STEPS = 30
FEWEST = 2  # networks
AMPLE = 3.0  # times the time of the networks, in which there is a second model, too
USED = 0.4  # of the time by steps, as one network alone is quicker than its share of several
FEW_STEPS = 100  # for very few rows of classes
MOST_POINTS = 64  # of the process
HELD_OUT = 0.2  # of the rows, to judge models by
JUDGES = 3  # networks that the others' weight is found with, in half of their steps
LEAST_WEIGHT = 0.1  # below which a model is not worth the time


@dataclass(eq=False, repr=False, kw_only=True)
class Automatic(CallbackSupportMixin, BaseEstimator):
    """What regressor and classifier share.

    Parameters
    ----------
    max_time : float or None, default=None
        Seconds that training may take, about. With ample time the model is that without a limit;
        with less the regressor has no second model, and with still less there are fewer steps of
        fewer networks, so that results depend on the speed of the machine. Thirty steps and one
        pass over the rows are the least, some seconds for 10,000 rows. None: about a minute of one
        core for 12,000 rows, and 15 to 20 s for 1,000.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    verbose : int, default=0
        Whether to print each epoch.
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
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.
    """

    max_time: float | None = None
    device: Any = None
    verbose: int = 0
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "device": [str, None],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    @abstractmethod
    def _networks(self, **params: Any) -> Any:
        """The ensemble of networks."""

    @abstractmethod
    def _choose(self, fit: Fit, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit what suits these rows."""

    def _fit_model(self, X: Any, y: Any, sample_weight: Any) -> None:
        fits = Fits(self, X, y, 1)
        self._choose(fits.next("model"), X, y, sample_weight)
        fits.on_end()

    def _fit_process(self, fit: Fit, process: Any, X: Any, y: Any, sample_weight: Any) -> None:
        """Consist of a process alone, whose evidence is its score."""
        if len(X) < TOO_FEW_ROWS:
            warnings.warn(
                f"{len(X)} rows are too few to learn a kernel from: expect predictions that are "
                "too sure. Give more rows, or what you know as the kernel of another estimator.",
                UserWarning,
                stacklevel=7,
            )
        fit(process, X, y, sample_weight=sample_weight)
        self._keep("process", process, process.log_marginal_likelihood_value_ / len(X))

    def _keep(self, name: str, model: Any, score: float) -> None:
        """Consist of one fitted model."""
        self.model_ = model
        self.scores_ = {"model": [name], "score": [score], "weight": [1.0]}

    def _common(self, seed: int) -> dict[str, Any]:
        return {"device": self.device, "verbose": self.verbose, "random_state": seed}

    def _n_steps(self, X: Any, y: Any, networks: Any) -> dict[str, Any]:
        """Epochs and networks, unless there is ample time for as many as there should be."""
        if self.max_time is None:
            return {}
        plan = direct_plan(networks, len(X), True)
        per_epoch, K = -(-len(X) // plan.batch_size), plan.folds.n_folds
        K = max(1, min(K, len(np.unique(X[:TRIAL_ROWS], axis=0)) // 2))  # rows may be repeated
        fixed, per_step = self._times(X, y, networks, plan.batch_size)
        left = max(USED * self.max_time - 3.0 * fixed, 0.0)
        steps = left / per_step / K
        if steps > AMPLE * plan.max_iter * per_epoch:
            return {}
        if 4.0 * steps < plan.max_iter * per_epoch:  # of fewer networks there are more
            steps, K = steps * K / min(K, FEWEST), min(K, FEWEST)
        n_epochs = int(max(LEAST_STEPS, steps) // per_epoch)
        return {"max_iter": min(plan.max_iter, max(1, n_epochs)), "n_estimators": K}

    @staticmethod
    def _times(X: Any, y: Any, networks: Any, batch_size: int) -> tuple[float, float]:
        """Seconds that a fit of one network to some rows takes without its steps, and a step."""
        order = np.random.default_rng(0).permutation(len(X))
        if is_classifier(networks):  # one of each class
            order = np.concatenate([np.unique(y, return_index=True)[1], order])
        some, seconds = order[: max(TRIAL_ROWS, len(order) - len(X))], []
        n_batches = -(-len(some) // min(batch_size, len(some)))
        for n_epochs in (1, 1 + -(-TRIAL_STEPS // n_batches)):  # the first also warms up
            trial = clone(networks).set_params(verbose=0, n_estimators=1, calibrate=False)
            trial.set_params(batch_size=min(batch_size, len(some)), max_iter=n_epochs)
            start = time.perf_counter()
            trial.fit(X[some], y[some])
            seconds.append(time.perf_counter() - start)
        n_more = (n_epochs - 1) * n_batches
        per_step = max(seconds[1] - seconds[0], 0.1 * seconds[1]) / n_more
        return max(seconds[1] - n_epochs * n_batches * per_step, 0.0), per_step

    @property
    def leaderboard_(self) -> Any:
        """Models, their scores on rows held out (nats per row) and weights, as a pandas frame."""
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        return pd.DataFrame(self.scores_).sort_values("score", ascending=False, ignore_index=True)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessRegressor(PredictiveMixture, MultiOutputMixin, RegressorMixin, Automatic):
    """The regressor to start with: calibrated predictive distributions on tables of any size.

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
    model_ : DLMRegressor, SVGPRegressor or StackedDensityRegressor
        What was fitted.

    See Also
    --------
    DLMRegressor : The models, with their parameters.
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

    def _networks(self, **params: Any) -> DLMRegressor:
        return DLMRegressor(
            posterior="finite", likelihood="shared_student_t", noise="input", **params
        )

    def _process(self, n_rows: int, **params: Any) -> DLMRegressor:
        n_inducing = min(MOST_POINTS, n_rows // 4)
        return DLMRegressor(likelihood="shared_student_t", n_inducing=n_inducing, **params)

    @fitting
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid; the estimator is then as it was.
        """
        self._validate_params()
        options = {"multi_output": True, "y_numeric": True, "ensure_min_samples": 2}
        X, y = validate_inputs(self, X, y, reset=True, **options)
        self._fit_model(X, y, sample_weight)
        return self

    def _choose(self, fit: Fit, X: Any, y: Any, sample_weight: Any) -> None:
        seed = resolve_seed(self.random_state)
        common = self._common(seed)
        networks = self._networks(**common)
        if len(X) < VERY_FEW_ROWS:
            self._fit_process(fit, SVGPRegressor(**common), X, y, sample_weight)
            return
        hurried = self._n_steps(X, y, networks)
        networks.set_params(**hurried)
        if len(X) > FEW_ROWS or y.ndim > 1 or hurried:
            fit(networks, X, y, sample_weight=sample_weight)
            score = -min(networks.validation_scores_ or [np.nan])
            score = score - float(np.log(networks._y_scaling.scale).sum())
            self._keep("networks", networks, score)
            return
        models = [("networks", networks), ("process", self._process(len(X), **common))]
        judge = clone(networks).set_params(n_estimators=JUDGES)
        n_epochs = direct_plan(judge, round((1.0 - HELD_OUT) * len(X)), True).max_iter
        stack = StackedDensityRegressor(
            models,
            cv=ShuffleSplit(1, test_size=HELD_OUT, random_state=seed),
            judged_by={"networks": judge.set_params(max_iter=-(-n_epochs // 2))},
            least_weight=LEAST_WEIGHT,
            n_jobs=self.n_jobs,
        )
        self.model_ = fit(stack, X, y, sample_weight=sample_weight)
        names = [name for name, _ in models]
        scores, weights = stack.scores_.tolist(), stack.weights_.tolist()
        self.scores_ = {"model": names, "score": scores, "weight": weights}

    def _parts(self, X: Any) -> tuple[Parts, Any]:
        check_is_fitted(self)
        return Parts([1.0], [self.model_]), validate_inputs(self, X, reset=False)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(ClassifierMixin, Automatic):
    """The classifier to start with: calibrated probabilities on tables of any size.

    An ensemble of networks with Gaussian-process last layers, trained for the bound on the evidence
    and calibrated by rows that it has not seen; of fewer than 50 rows a process alone.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of rows that have a weight.
    model_ : DLMClassifier or SVGPClassifier
        What was fitted.

    See Also
    --------
    DLMClassifier : The model, with its parameters.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpstoch import AutoGaussianProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AutoGaussianProcessClassifier(max_time=1, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def _networks(self, **params: Any) -> DLMClassifier:
        return DLMClassifier(posterior="finite", loss="elbo", **params)

    @fitting
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Dense inputs.
        y : array-like of shape (n_samples,)
            Labels, of two classes or more.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter, X, y or sample_weight is invalid; the estimator is then as it was.
        """
        self._validate_params()
        X, y = validate_inputs(self, X, y, reset=True, ensure_min_samples=2)
        check_classification_targets(y)
        counted = y if sample_weight is None else y[_check_sample_weight(sample_weight, X) > 0]
        self.classes_ = np.unique(counted)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes at least, but y, where sample_weight is "
                f"not 0, has one class: {self.classes_.tolist()}."
            )
        self._fit_model(X, y, sample_weight)
        return self

    def _choose(self, fit: Fit, X: Any, y: Any, sample_weight: Any) -> None:
        common = self._common(resolve_seed(self.random_state))
        if len(X) < VERY_FEW_ROWS:
            process = SVGPClassifier(max_iter=FEW_STEPS, **common)
            self._fit_process(fit, process, X, y, sample_weight)
            return
        networks = self._networks(**common)
        networks.set_params(**self._n_steps(X, y, networks))
        fit(networks, X, y, sample_weight=sample_weight)
        self._keep("networks", networks, -min(networks.validation_scores_ or [np.nan]))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_classes)
            Of sum 1.
        """
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        return np.asarray(self.model_.predict_proba(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_classes)
            Nats.
        """
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        return np.asarray(self.model_.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            As in y.
        """
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]
