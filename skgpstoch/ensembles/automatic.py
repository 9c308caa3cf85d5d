"""The recommended defaults: models of the rows as they are, weighted by what they predict."""

from __future__ import annotations

import functools
import time
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ..data.arrays import resolve_seed
from ..data.counts import looks_like_counts
from ..data.deadline import Deadline, seconds_left
from ..data.held_out import mixture_of
from ..data.messages import warn
from ..data.rows import Data
from ..data.tables import TableEncoder, validate_table
from ..docstrings import documented
from ..estimators.base import fitting, refuse_booleans
from ..estimators.callbacks import CallbackSupportMixin, Fit, Fits, with_callbacks
from ..estimators.classifier import Classifier
from ..estimators.docs import public_estimator
from ..estimators.parameters import AUTO
from ..estimators.regressor import Regressor
from ..estimators.validation import as_floats, check_weight
from ..methods.deep_kernel_ensemble import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    ensemble_plan,
)
from ..methods.svgp import SVGPClassifier
from ..recipes.recipe import Training
from .lattice import OnLattice, lattice_of
from .mixture import Mixture, MixtureRegressor, Parts
from .process import ExactProcessRegressor
from .report import Report, report_tables
from .stacking import kept_weights, stacking_weights

TOO_FEW_ROWS = 10  # to learn a kernel from
FEWEST_FOR_NETWORKS = 200  # rows, of fewer than which a process predicts better, and sooner
FEWEST_FOR_CLASSES = 50
PROCESS_SECONDS = 4.0  # of max_time at least, for processes of the most rows
PROCESS_SHARE = 0.4  # of the time, for processes where there may be networks
MOST_FOR_PROCESS = 2000  # rows whose matrix is factorised in a second
MOST_CLASSES = 1000  # whose probabilities are many numbers for each row
FEW_STEPS = 100  # of a process for few rows of classes
PRIOR_ROWS = 1.0  # that speak for each model, whatever the data
LEAST_WEIGHT = 0.1  # below which a model is not worth the time of its predictions
SCOUTS = 2  # networks that try for a part of the epochs whether networks are worth their time
SCOUTED = 0.25  # of the epochs
LEAST_GAIN = 0.003  # nats per row that scouts must add, or networks do not: *measured*, 32 tables


class Entrant(NamedTuple):
    """A model to be tried in the race.

    Parameters
    ----------
    name : str
        What it is called.
    make : callable
        Makes it, given the seconds that are left.
    scout : callable or None, default=None
        Makes a cheap one, which tells if there is any use in the model itself.
    """

    name: str
    make: Callable[[float | None], Any]
    scout: Callable[[float | None], Any] | None = None


class Judged(NamedTuple):
    """A fitted model, and the seconds that its fit took."""

    name: str
    model: Any
    seconds: float

    def held_out(self, n_rows: int) -> np.ndarray:
        """Return log densities of rows that it has not seen, (n,); NaN of others."""
        found = getattr(self.model, "held_out_", None)
        return np.full(n_rows, np.nan) if found is None else found.log_densities(n_rows)

    def score(self, data: Data) -> float:
        """Return the mean of these or, if there are none, the bound on the evidence per row."""
        densities = self.held_out(len(data))
        judged = ~np.isnan(densities)
        if not judged.any():
            return float(self.model.log_marginal_likelihood_value_ / data.n_effective)
        weight = None if data.weight is None else data.weight[judged]
        return float(np.average(densities[judged], weights=weight))


def fitted(fit: Fit, name: str, model: Any, data: Data) -> Judged:
    """Fit a model."""
    began = time.perf_counter()
    of_rows = {} if data.weight is None else {"sample_weight": data.weight}
    return Judged(name, fit(model, data.X, data.y, **of_rows), time.perf_counter() - began)


def race(
    entrants: list[Entrant], fits: Fits, data: Data, deadline: Deadline | None
) -> tuple[list[Judged], list[Judged]]:
    """Fit models in turn; return those to be mixed, and scouts that no model has followed."""
    found: list[Judged] = []
    given_up: list[Judged] = []
    for name, make, scout in entrants:
        try:
            if found and scout is not None:
                few = scout(seconds_left(deadline))
                tried = fitted(fits.next(f"{name}, a few"), name, few, data)
                if gain_of(tried, found, data) < LEAST_GAIN:
                    given_up.append(tried)
                    continue
            found.append(fitted(fits.next(name), name, make(seconds_left(deadline)), data))
        except KeyboardInterrupt:
            if not found:
                raise
            warn(f"The fit was interrupted; the model is without {name}.", ConvergenceWarning)
            break
    return found, given_up


def held_out_densities(found: list[Judged], data: Data) -> tuple[np.ndarray, np.ndarray | None]:
    """Return log densities (m, J) of rows that the last model has not seen, and their weights."""
    densities = np.stack([model.held_out(len(data)) for model in found], 1)
    rows = ~np.isnan(densities[:, -1])
    return densities[rows], None if data.weight is None else data.weight[rows]


def gain_of(tried: Judged, found: list[Judged], data: Data) -> float:
    """Return what a model adds to the score of the mixture of others, in nats per row."""
    densities, weight = held_out_densities([*found, tried], data)
    scores = [
        logsumexp(log_p, axis=1, b=stacking_weights(log_p, weight, PRIOR_ROWS))
        for log_p in (densities, densities[:, :-1])
    ]
    return float(np.average(scores[0] - scores[1], weights=weight))


def weights_of(found: list[Judged], data: Data) -> np.ndarray:
    """Return the weights of models in the mixture."""
    if len(found) == 1:
        return np.ones(1)
    return kept_weights(
        stacking_weights(*held_out_densities(found, data), PRIOR_ROWS), LEAST_WEIGHT
    )


@dataclass(eq=False, repr=False, kw_only=True)
class AutomaticParameters:
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    max_time : float or None, default=None
        Seconds that `fit` may take, from its call to its return. Where there is little time there
        are fewer models, and fewer steps of fewer networks, so that results depend on the speed of
        the machine; a warning and `budget_` say what was cut. None: as long as it takes.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which columns of X are categories: a mask, positions, or names. "from_dtype": those of a
        data frame with a categorical type, and strings. None: there are none.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    verbose : int or "auto", default="auto"
        "auto" shows progress on a line of its own, on a terminal or in a notebook, when a fit has
        taken ten seconds; 0 shows nothing, and 1 prints each epoch.
    random_state : int, RandomState instance or None, default=None
        Seed; an int makes fits reproducible.

    Attributes
    ----------
    estimators_ : dict of str to estimator
        The fitted models by name, without those that have no weight.
    scores_ : dict of lists
        "model", "score" (in nats per row, for y in its own units), "weight" and "fit_time" in
        seconds. Scores are mean log densities, or log probabilities, of rows held out; of classes
        of fewer than 50 rows, the bound on the evidence.
    leaderboard_ : DataFrame
        The same, the best first; needs pandas.
    budget_ : dict or None
        With `max_time`, what there was time for; see :class:`DeepKernelEnsembleRegressor`.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.
    """

    max_time: float | None = None
    categorical_features: Any = "from_dtype"
    device: Any = None
    verbose: int | str = "auto"
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "device": [str, torch.device, None],
        "verbose": ["verbose", AUTO],
        "random_state": ["random_state"],
    }


def of_networks(estimator: Any, p: AutomaticParameters, data: Data, **params: Any) -> Entrant:
    """Return an ensemble of networks, to be trained in the time that is left."""
    seed = resolve_seed(p.random_state)
    model = estimator(device=p.device, verbose=p.verbose, random_state=seed, **params)
    n_epochs = ensemble_plan(Training.of(model), len(data)).max_iter
    fewer = {"n_estimators": SCOUTS, "max_iter": max(1, round(SCOUTED * n_epochs))}

    def make(left: float | None) -> Any:
        return clone(model).set_params(max_time=left)

    return Entrant("networks", make, lambda left: make(left).set_params(**fewer))


def of_model(method: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a method, with the signature and the docstring of this one, that asks the model."""

    @functools.wraps(method)
    def asked(self: Automatic, X: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        X = self._query(X)
        return np.asarray(getattr(self._model, method.__name__)(X, *args, **kwargs))

    return asked


# ---- estimators ----------------------------------------------------------------------------------


class Automatic(AutomaticParameters, CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """A fit of several models, and the mixture that predicts best."""

    _model: Any
    """What predicts."""

    @abstractmethod
    def _validate(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Return the rows that count, checked and encoded."""

    @abstractmethod
    def _entrants(self, data: Data) -> list[Entrant]:
        """Return the models to try for these rows."""

    @abstractmethod
    def _combine(self, found: list[Judged], weights: np.ndarray, data: Data) -> None:
        """Keep what predicts, and what is known of it."""

    @fitting
    @with_callbacks
    def _fit_to(self, X: Any, y: Any, sample_weight: Any) -> Any:
        began = time.monotonic()
        self._validate_params()
        refuse_booleans(self)
        if sample_weight is not None:
            as_floats(sample_weight, "sample_weight")  # or an error that names it
        data = self._validate(X, y, sample_weight)
        warn_of_few_rows(data.n_effective)
        deadline = None if self.max_time is None else Deadline(began + self.max_time)
        entrants = self._entrants(data)
        fits = Fits(self, X, y, 2 * len(entrants))
        found, given_up = race(entrants, fits, data, deadline)
        weights, judged = weights_of(found, data), found + given_up
        self.scores_ = {
            "model": [each.name for each in judged],
            "score": [each.score(data) for each in judged],
            "weight": weights.tolist() + [0.0] * len(given_up),
            "fit_time": [each.seconds for each in judged],
        }
        kept = [each for each, w in zip(found, weights, strict=True) if w > 0.0]
        self.estimators_ = {each.name: each.model for each in kept}
        self.budget_ = getattr(kept[-1].model, "budget_", None)
        self._combine(kept, weights[weights > 0.0], data)
        fits.on_end()
        return self

    def _encoded(self, X: Any, y: Any, weight: Any, classes: Any = None) -> Data:
        """Learn how to encode X, and return the rows that count as the models see them."""
        self._encoder = TableEncoder(self.categorical_features)
        return Data(self._encoder.fit_transform(X, y, weight, classes), y, weight).counted()

    def _query(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._encoder.transform(validate_table(self, X, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def leaderboard_(self) -> Any:
        """Models, their scores on held-out rows (nats per row) and weights, as a pandas frame.

        The best comes first.
        """
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        table = pd.DataFrame(self.scores_)
        return table.sort_values("score", ascending=False, ignore_index=True)


def warn_of_few_rows(n_rows: float) -> None:
    """Warn if there are too few rows to learn a kernel from."""
    if n_rows < TOO_FEW_ROWS:
        warn(
            f"{n_rows:g} rows are too few to learn a kernel from: expect predictions that are too "
            "certain. Give more rows, or give what you know as the kernel of another estimator."
        )


def has_lattice(model: AutoGaussianProcessRegressor) -> bool:
    """Tell whether there are atoms, or raise an AttributeError that says why not."""
    check_is_fitted(model)
    if model.atoms_ is None:
        why = "y has no atoms" if model.discrete == "auto" else "discrete=False"
        raise AttributeError(f"{why}: log_predictive_density has the density of y.")
    return True


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessRegressor(MultiOutputMixin, Automatic, MixtureRegressor):
    """The recommended default: calibrated predictive distributions on tables of any size.

    Tables are taken as they are: frames with categories, dates and missing values, columns and
    targets with outliers. Up to 2,000 rows there are exact processes with several kernels; from 200
    rows on, an ensemble of networks with Gaussian-process last layers, whose noise depends on the
    inputs and has the tails of the data, trained for the density of its predictions and calibrated
    by rows that it has not seen. What each predicts for rows that it has not seen gives the weights
    of their mixture.

    Parameters
    ----------
    target : {"auto", "count"}, default="auto"
        "count": y are counts, with Poisson's distribution of an uncertain rate, by networks alone;
        "auto" takes y as numbers.
    discrete : "auto" or False, default="auto"
        Whether y may be on a lattice: few distinct values, or rounded readings. Draws, means and
        deviations are then those of the rounded y, and `predict_atoms` tells the probability of
        each value. Densities, distribution functions and intervals are always those of a continuous
        y, so that they can be compared.

    Attributes
    ----------
    weights_ : ndarray of shape (n_models,)
        Of the models in `estimators_`, of sum 1.
    atoms_ : ndarray of shape (n_atoms,) or None
        The values of y, in increasing order, if it is on a lattice.
    atom_weight_ : float
        The expected share of new rows whose y is among `atoms_`; 0 if there are none.

    See Also
    --------
    DeepKernelEnsembleRegressor : The networks, with their parameters.
    GaussianProcessRegressor : One exact process with a kernel of your own.
    StackedDensityRegressor : Mixtures of any models.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import AutoGaussianProcessRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (80, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(80)
    >>> model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    >>> low, high = model.predict_interval([[0.0]], coverage=0.95)[0]
    >>> bool(low < 0.0 < high)
    True
    """

    target: str = "auto"
    discrete: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "target": [StrOptions({"auto", "count"})],
        "discrete": [AUTO, "boolean"],
    }

    @documented(Regressor.fit)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessRegressor:
        """Fit the models, and weigh them.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            Inputs: numbers, categories, dates; NaN, None and the like where a value is missing.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> Data:
        if self.discrete is True:
            raise ValueError("discrete must be 'auto' or False, got True.")
        options = {"multi_output": True, "y_numeric": True, "ensure_min_samples": 2}
        X, y = validate_table(self, X, y, reset=True, **options)
        weight = check_weight(Data(y, y), sample_weight, least=2, keeps=True).weight
        data = self._encoded(X, y, weight)
        if self.target == "auto" and (data.y == 0).any() and looks_like_counts(data.y):
            warn(
                "y looks like counts, which are predicted as numbers here: set target='count' if "
                "they are."
            )
        return data

    def _entrants(self, data: Data) -> list[Entrant]:
        n = data.size
        if self.target == "count":
            return [of_networks(DeepKernelEnsembleRegressor, self, data, likelihood="poisson")]
        found = []
        has_time = self.max_time is None or self.max_time >= PROCESS_SECONDS * n / MOST_FOR_PROCESS
        if n < FEWEST_FOR_NETWORKS or (n <= MOST_FOR_PROCESS and has_time):
            share = PROCESS_SHARE if n >= FEWEST_FOR_NETWORKS else 1.0
            found.append(Entrant("process", functools.partial(self._process, share)))
        if n >= FEWEST_FOR_NETWORKS:
            found.append(of_networks(DeepKernelEnsembleRegressor, self, data))
        return found

    def _process(self, share: float, left: float | None) -> ExactProcessRegressor:
        """Return exact processes, to be fitted in a share of the time that is left."""
        max_time = None if left is None else share * left
        seed = resolve_seed(self.random_state)
        return ExactProcessRegressor(max_time=max_time, device=self.device, random_state=seed)

    def _combine(self, found: list[Judged], weights: np.ndarray, data: Data) -> None:
        self.weights_ = weights
        self._model = Mixture(weights.tolist(), [each.model for each in found])
        lattice = None
        if self.discrete == "auto" and self.target == "auto":
            lattice = lattice_of(data.X, data.y, data.weight)
        if lattice is not None:
            self._model = OnLattice(self._model, lattice)
        self.atoms_ = None if lattice is None else lattice.atoms
        self.atom_weight_ = 0.0 if lattice is None else lattice.weight
        held_out = mixture_of([each.model.held_out_ for each in found], weights)
        weight = np.ones(len(data)) if data.weight is None else data.weight
        self._tables = report_tables(held_out, weight[held_out.rows], self.budget_)

    def _parts(self, X: Any) -> tuple[Parts, Any]:
        X = self._query(X)
        return Parts([1.0], [self._model]), X

    @available_if(has_lattice)
    def predict_atoms(self, X: Any) -> np.ndarray:
        """Probability of each value of y, if y is on a lattice.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_atoms)
            Of `atoms_`; rows have the sum `atom_weight_`.
        """
        return np.asarray(self._model.predict_atoms(self._query(X)))

    @available_if(has_lattice)
    def log_predictive_probability(self, X: Any, y: Any) -> np.ndarray:
        """Log probability of y at each row, if y is on a lattice.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        log_probability : ndarray of shape (n_samples,)
            Nats; −∞ of a number that is not in `atoms_`.
        """
        return np.asarray(self._model.log_predictive_probability(self._query(X), y))

    def report(self) -> Report:
        """Tell what was fitted, how well it is calibrated, and what limits it; needs pandas.

        Returns
        -------
        report : Report
            Three frames, `leaderboard`, `calibration` and `limits`; print it, or draw it by
            :class:`~skgpstoch.display.ReportDisplay`.
        """
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        return Report(self.leaderboard_, *map(pd.DataFrame, self._tables))


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(ClassifierMixin, Automatic):
    """The recommended default: calibrated probabilities on tables of any size.

    Tables are taken as they are: frames with categories, dates and missing values. An ensemble of
    networks with Gaussian-process last layers, trained for the bound on the evidence and calibrated
    by rows that it has not seen; of fewer than 50 rows a process alone.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of rows that have a weight.

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
        X : array-like or frame of shape (n_samples, n_features)
            Inputs: numbers, categories, dates; NaN, None and the like where a value is missing.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> Data:
        X, y = validate_table(self, X, y, reset=True, ensure_min_samples=2)
        check_classification_targets(y)
        weight = check_weight(Data(y, y), sample_weight, keeps=True).weight
        self.classes_ = np.unique(y if weight is None else y[weight > 0.0])
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes at least, but y, where sample_weight is "
                f"not 0, has one class: {self.classes_.tolist()}."
            )
        if len(self.classes_) > MOST_CLASSES:
            raise ValueError(
                f"y has {len(self.classes_)} classes, but {type(self).__name__} takes "
                f"{MOST_CLASSES} at most: if they are numbers, use AutoGaussianProcessRegressor; "
                "if not, join rare ones, or predict what they have in common first."
            )
        return self._encoded(X, y, weight, self.classes_)

    def _entrants(self, data: Data) -> list[Entrant]:
        if data.size >= FEWEST_FOR_CLASSES:
            return [of_networks(DeepKernelEnsembleClassifier, self, data)]
        shared = {"device": self.device, "random_state": self.random_state}
        process = SVGPClassifier(max_iter=FEW_STEPS, **shared)
        return [Entrant("process", lambda left: process)]

    def _combine(self, found: list[Judged], weights: np.ndarray, data: Data) -> None:
        self._model = found[0].model

    predict = of_model(Classifier.predict)
    predict_proba = of_model(Classifier.predict_proba)
    predict_log_proba = of_model(Classifier.predict_log_proba)
    predict_std = of_model(Classifier.predict_std)
    log_predictive_density = of_model(Classifier.log_predictive_density)
