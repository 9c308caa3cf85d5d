"""Base of the recommended defaults: encode tables, then fit and weigh several models."""

from __future__ import annotations

import datetime
import math
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from ...data.arrays import resolve_seed
from ...data.chunk import Chunk
from ...data.deadline import Deadline
from ...data.docstrings import documented
from ...data.equal_rows import observations
from ...data.findings import Diagnosis, Finding
from ...data.read_table import validate_table
from ...data.rows import Data
from ...data.tables import TableEncoder
from ...estimators.base import BaseGP
from ...estimators.callbacks import CallbackSupportMixin, with_callbacks
from ...estimators.context import fitting
from ...estimators.importances import averaged_importances
from ...estimators.parameters import AUTO
from ...persistence.estimator import SavedEstimator
from ...persistence.keys import is_flat
from ...training.recipes.plan import Training
from ...training.recipes.row_findings import of_features, of_rows, of_twins, of_weights
from ..deep_kernel_ensemble.plan import ensemble_plan
from .race import FEWEST_ROWS, Entrant, Judged, Shares, floor_of, weights_of
from .read_tables import read
from .report import Report
from .table_fit import in_numbers

PROCESS_SECONDS = 4.0  # least max_time for processes of the most rows
PROCESS_SHARE = 0.4  # of the time, for processes if networks may follow
LATE = 1.2  # times max_time, beyond which a fit has not kept to it
SCOUTS = 2  # networks of a short trial, which tells whether networks are worth their time
SCOUTED = 0.25  # of the epochs, in this trial

MOST_OF_TABLES = 64  # columns of all tables of a report
MOST_IN_TABLES = 2**20  # cells of all of them, with those that lines lack
MOST_MODELS = 64  # of a leaderboard, whose picture has a bar for each
DATES = (datetime.date, datetime.timedelta)


@dataclass(eq=False, repr=False, kw_only=True)
class AutomaticParameters:
    """Parameters that the regressor and the classifier share.

    Parameters
    ----------
    max_time : float or None, default=None
        Seconds that `fit` may take, from its call to its return. If time is short there are fewer
        models, fewer networks and fewer steps, so that results depend on the speed of the machine;
        a warning and `budget_` say what was cut. None: no limit.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which columns of X are categories: a mask, positions, or names. "from_dtype": the columns of
        a data frame that have a categorical type, or strings. None: no columns.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    verbose : int or "auto", default="auto"
        What to print. "auto" shows a progress line, on a terminal or in a notebook, once the fit
        has taken ten seconds; 0 shows nothing, and 1 prints each epoch.
    random_state : int, RandomState instance or None, default=None
        Seed. An int makes fits reproducible.

    Attributes
    ----------
    estimators_ : dict of str to estimator
        The fitted models by name, without those of weight 0.
    scores_ : dict of lists
        Lists "model", "score" and "common_score" (in nats per row, for y in its own units),
        "weight" and "fit_time" (in seconds); and "mean_weight", if means have weights of their own.
        A score is the mean log density, or log probability,
        of held-out rows; a common one, of those that all models have predicted. The model "linear"
        is no part of the mixture: it is what linear or logistic regression on the encoded columns
        would score, with which to compare the others.
    leaderboard_ : DataFrame
        The same as a table, the best model first; needs pandas.
    budget_ : dict or None
        With `max_time`, what there was time for; see :class:`DeepKernelEnsembleRegressor`.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        How much predictions depend on each column of X: the weighted mean of the models'
        importances. They are added up over the levels of a category, and over a column's values and
        whether they are missing. Importances sum to 1, and are computed on access.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if X had any.
    """

    max_time: float | None = None
    categorical_features: Any = "from_dtype"
    device: Any = None
    verbose: int | str = "auto"
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "categorical_features": ["array-like", str, None],
        "device": [str, torch.device, None],
        "verbose": ["verbose", AUTO],
        "random_state": ["random_state"],
    }


def of_networks(estimator: Any, p: AutomaticParameters, data: Data, **params: Any) -> Entrant:
    """Return an ensemble of networks, to be trained in the time that is left."""
    seed = resolve_seed(p.random_state)
    model = estimator(device=p.device, verbose=p.verbose, random_state=seed, **params)

    def make(left: float | None) -> Any:
        return clone(model).set_params(max_time=left)

    def scout(left: float | None) -> Any:
        n_epochs = max(1, round(SCOUTED * usual_epochs(model, data)))
        return make(left).set_params(n_estimators=SCOUTS, max_iter=n_epochs)

    return Entrant("networks", make, scout)


def of_processes(
    estimator: Any, p: AutomaticParameters, n: int, most: int, fewest: int, **params: Any
) -> list[Entrant]:
    """Return exact processes, if the n rows are few enough and there is enough time.

    From `fewest` rows on there are networks, too; processes are then for up to `most` rows, in a
    share of the time.
    """
    are_alone = n < fewest
    has_time = p.max_time is None or p.max_time >= PROCESS_SECONDS * n / most
    if not (are_alone or (n <= most and has_time)):
        return []
    share = 1.0 if are_alone else PROCESS_SHARE
    seed = resolve_seed(p.random_state)

    def make(left: float | None) -> Any:
        max_time = None if left is None else share * left
        return estimator(max_time=max_time, device=p.device, random_state=seed, **params)

    return [Entrant("process", make)]


def n_observed(data: Data) -> int:
    """Return the number of rows to learn from, among which large weights say nothing new."""
    return len(observations(in_numbers(data))[0])


def usual_epochs(model: Any, data: Data) -> int:
    """Return how many epochs networks make at most by default."""
    n_rows = n_observed(data)
    return ensemble_plan(Training.of(model), n_rows, of_classes=is_classifier(model)).max_iter


# ---- estimators ----------------------------------------------------------------------------------


class Automatic(AutomaticParameters, CallbackSupportMixin, SavedEstimator, metaclass=ABCMeta):
    """A fit of several models, and the mixture that predicts best."""

    weights_: np.ndarray
    _tables: tuple[list[dict[str, Any]], ...]
    """Calibration by group, limits and, in regression, coverage by group, for held-out rows."""

    _most_raced: ClassVar[int]
    """Number of rows up to which there are other models than networks, or scouts."""

    def _check_parts(self) -> None:
        """Raise a ValueError if models hold others, or leaderboard and report are none of ours."""
        models = getattr(self, "estimators_", None)
        for name, model in models.items() if isinstance(models, dict) else ():
            if hasattr(model, "estimators_") or hasattr(model, "estimator_"):
                raise ValueError(f"estimators_[{name!r}], a {type(model).__name__}, holds others")
        scores = getattr(self, "scores_", {})
        columns = scores.values() if isinstance(scores, dict) else [None]
        if not all(isinstance(c, list) and len(c) <= MOST_MODELS for c in columns):
            raise ValueError("scores_ are not those of a few models")
        tables = [table or () for table in getattr(self, "_tables", None) or ()]
        names = [{*chain(*table)} for table in tables]
        n_cells = sum(
            len(table) * (1 + len(known)) for table, known in zip(tables, names, strict=True)
        )
        cells = chain(*(row.values() for table in tables for row in table))
        is_plain = all(is_flat(cell) or isinstance(cell, DATES) for cell in cells)  # as levels are
        if len({*chain(*names)}) > MOST_OF_TABLES or n_cells > MOST_IN_TABLES or not is_plain:
            raise ValueError("the tables of a report have other columns, or cells, than any model")

    @abstractmethod
    def _checked(
        self, X: Any, y: Any, sample_weight: Any, least: int
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """Return valid X, y and weights, of at least this many rows."""

    @abstractmethod
    def _note_classes(self, classes: np.ndarray) -> None:
        """Store the distinct targets of the rows that count, if they are labels."""

    @abstractmethod
    def _learned(self, rows: Chunk) -> Data:
        """Learn how to encode rows, and return those that count as models see them."""

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Return the targets that models are fitted to."""
        return y

    @abstractmethod
    def _networks(self, data: Data) -> Entrant:
        """Return the networks, which are tried unless rows are few."""

    def _neighbours(self, data: Data) -> list[Entrant]:
        """Return nearest neighbours to try, which need all rows, or a sample, in memory."""
        return []

    @abstractmethod
    def _entrants(self, data: Data) -> list[Entrant]:
        """Return the models to try for these rows."""

    @abstractmethod
    def _combine(
        self, found: list[Judged], shares: Shares, data: Data, floor: list[Judged]
    ) -> list[Finding]:
        """Store the mixture and the tables of the report; return findings on held-out rows."""

    def _mean_weights(self, found: list[Judged], weights: np.ndarray, data: Data) -> np.ndarray:
        """Return the weights of models in the mean, if those in the density are these."""
        return weights

    def _floor(self, data: Data, deadline: Deadline | None) -> list[Judged]:
        """Return a linear model's predictions of the rows, if there is time for them."""
        return floor_of(data, is_classifier(self), resolve_seed(self.random_state), deadline)

    @fitting
    @with_callbacks
    def _fit_to(self, X: Any, y: Any, sample_weight: Any, **of_rows: Any) -> Any:
        read(self, X, y, sample_weight, **of_rows).fit(self)
        return self

    def _keep(
        self,
        found: list[Judged],
        given_up: list[Judged],
        data: Data,
        n_rows: int,
        numbers: np.ndarray,
        deadline: Deadline | None,
    ) -> None:
        """Weigh models by their predictions for held-out rows, and set the fitted attributes.

        `numbers` identify these rows among all that were given.
        """
        floor = self._floor(data, deadline)
        weights, others = weights_of(found, data), given_up + floor
        shares = Shares(weights, self._mean_weights(found, weights, data))
        judged = found + others
        self.scores_: dict[str, list[Any]] = {
            "model": [each.name for each in judged],
            "score": [each.score(data) for each in judged],
            "common_score": common_scores(judged, data),
            **shares.columns(len(others)),
            "fit_time": [each.seconds for each in judged],
        }
        used = shares.are_used
        kept = [each for each, is_used in zip(found, used, strict=True) if is_used]
        self.estimators_ = {each.name: each.model for each in kept}
        self.budget_ = getattr(kept[-1].model, "budget_", None)
        of_held_out = self._combine(kept, shares.of(used), data, floor)
        for each in kept:
            each.model.held_out_ = each.model.held_out_.known_by(numbers)
        of_fit = [
            *of_weights(data),
            of_twins(in_numbers(data), self._encoder.places(), self._encoder.names),
            *of_held_out,
            *of_time(self.max_time, deadline, judged[0].seconds),
        ]
        self._diagnosis = diagnosis_of(n_rows, data.X.shape[1], self.estimators_, of_fit)

    def _encoded(self, rows: Chunk, classes: Any = None) -> Data:
        """Learn how to encode X, and return the rows that count as the models see them."""
        self._encoder, y = TableEncoder(self.categorical_features), cast(np.ndarray, rows.y)
        X = self._encoder.fit_transform(rows.X, y, rows.weight, classes, rows.cluster)
        return Data(X, y, rows.weight, rows.exposure, rows.y_std, rows.cluster).counted()

    def _query(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._encoder.transform(validate_table(self, X, reset=False))

    @documented(BaseGP.diagnose)
    def diagnose(self, X: Any = None) -> Diagnosis:
        """Tell what may be wrong with the rows, with the fit, and with each of the models.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features) or None, default=None
            Rows that you want to predict. If given, *rows asked* is the share of them that is far
            from the training rows: with a level that these did not have, or a number outside their
            range by more than a tenth of it. Columns are compared one by one, so rows between
            groups of training rows are not found.
        """
        check_is_fitted(self)
        if X is None:
            return self._diagnosis
        of_rows = self._encoder.rows_asked(validate_table(self, X, reset=False))
        return Diagnosis([*self._diagnosis, *of_rows])

    @documented(SavedEstimator.set_params)
    def set_params(self, **params: Any) -> Any:
        """Set parameters; a `device` is also where the fitted models predict from then on."""
        super().set_params(**params)
        if "device" in params:
            for model in getattr(self, "estimators_", {}).values():
                model.set_params(device=self.device)
        return self

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much predictions depend on each column of X."""
        check_is_fitted(self)
        encoded = averaged_importances(self.weights_, self.estimators_.values())
        return self._encoder.of_columns(encoded)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def leaderboard_(self) -> Any:
        """Models, their scores on held-out rows (nats per row) and weights, as a pandas frame.

        The best comes first, but a model with a better score than another may have no weight: see
        :meth:`report`.
        """
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        table = pd.DataFrame(self.scores_)
        by = [name for name in ("common_score", "score") if name in table]  # absent in older files
        return table.sort_values(by, ascending=False, ignore_index=True)

    def report(self) -> Report:
        """Tell what was fitted, how well it is calibrated, and what limits it; needs pandas.

        Returns
        -------
        report : Report
            Frames `leaderboard`, `calibration` and `limits` and, for real targets, `coverage` by
            group. Print it, or draw it with :class:`~skgpstoch.display.ReportDisplay`.

        Notes
        -----
        A score is that of one model alone, on rows that it has not seen. A weight says what the
        model adds to the mixture, on rows that none of the models has seen, given a prior of one
        row in favour of each model. So a model with a better score may have weight 0, for three
        reasons. It may be a short trial of networks that added less than 0.003 nats per row (0.01
        for classes) to the mixture of the others. Its weight may have been below 0.1, which is not
        worth the time of its predictions. Or its score is for other rows, fewer or easier ones:
        "common_score", which orders the table, is that for the rows that all have predicted.

        Scores of few rows are mostly chance, and slightly too good, because kernels and their
        weights are chosen by the same rows. *Measured* against 2,000 new rows of 20 made-up tables
        of 20 rows: off by .16 nats per row (standard deviation), and .04 ± .04 too good on average.
        """
        import pandas as pd  # not needed otherwise

        check_is_fitted(self)
        return Report(self.leaderboard_, *(pd.DataFrame(table) for table in self._tables if table))


def common_scores(judged: list[Judged], data: Data) -> list[float]:
    """Return mean log densities of the rows that all models have predicted.

    If there are none, or too few to compare, they are the scores of each model's own rows.
    """
    densities = np.array([each.held_out(len(data)) for each in judged])  # (K, n)
    rows = np.flatnonzero(~np.isnan(densities).any(0))
    if len(rows) < FEWEST_ROWS:
        return [each.score(data) for each in judged]
    weight = None if data.weight is None else data.weight[rows]
    return [float(np.average(of_rows[rows], weights=weight)) for of_rows in densities]


def of_time(max_time: float | None, deadline: Deadline | None, first: float) -> Iterator[Finding]:
    """Yield whether a fit has kept to its time; its first model took `first` seconds."""
    if max_time is None or deadline is None:
        return
    seconds = max_time - deadline.left()
    found = Finding("time", "max_time", seconds, max_time)
    if seconds > LATE * max_time:
        found = found._replace(
            severity="problem",
            text=f"The fit took {seconds:.2g} s, longer than max_time={max_time:g}.",
            advice="To read the table and to fit the quickest models may take as long, or other "
            "programs slowed them. If the time is a hard limit, lower max_time, or give fewer "
            "columns, outputs or classes.",
        )
        if first > max_time:
            found = found._replace(
                text=f"max_time={max_time:g} could not be kept: the fit took {seconds:.2g} s, "
                f"because one model is always fitted, and it took {first:.2g} s.",
                advice=f"Set max_time to {math.ceil(LATE * seconds)} or more.",
            )
    yield found


def diagnosis_of(
    n_rows: int, n_features: int, models: dict[str, Any], of_fit: Iterable[Finding] = ()
) -> Diagnosis:
    """Return findings on rows, fit and models, and warn of them."""
    found = [*of_rows(n_rows, learns=True), *of_features(n_rows, n_features), *of_fit]
    of_rows_alone = {finding.name for finding in found}
    of_models = Diagnosis.of_parts(models)
    diagnosis = Diagnosis([*found, *(f for f in of_models if f.name not in of_rows_alone)])
    diagnosis.warn()
    return diagnosis
