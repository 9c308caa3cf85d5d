"""The recommended default for regression, of real numbers and of counts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.base import MultiOutputMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ...data.arrays import Scaling
from ...data.categories import NewRows
from ...data.chunk import Chunk
from ...data.deadline import Deadline
from ...data.docstrings import documented
from ...data.equal_rows import n_distinct
from ...data.findings import Finding
from ...data.groups import current
from ...data.held_out import HeldOutPredictions, common_rows, mixture_of
from ...data.known_errors import warn_of_units
from ...data.messages import warn
from ...data.read_table import validate_table
from ...data.rows import Data
from ...estimators.distributions.normal import NormalLaw
from ...estimators.distributions.transformed import transformed
from ...estimators.docs import public_estimator
from ...estimators.parameters import AUTO, TRANSFORM
from ...estimators.predictions import PredictedRows
from ...estimators.regressor import Regressor
from ...estimators.validation import KNOWN_AND_TRANSFORMED, check_column, fitted_alike
from ...estimators.weights import check_weight
from ...training.recipes.held_out import of_held_out_counts
from ...training.recipes.row_findings import of_far_count, of_missing_targets
from ..deep_kernel_ensemble.estimators import DeepKernelEnsembleRegressor
from ..nngp.estimators import NNGPRegressor
from .automatic import Automatic, n_observed, of_networks, of_processes, usual_epochs
from .exposed import ExposedMixture
from .held_out_errors import (
    may_vary_in_size,
    of_held_out_errors,
    of_sizes,
)
from .mixture import MixedRows, TransformedRows, predicted_by
from .neighbours import are_followed, of_deep_neighbours, of_latent_neighbours, of_neighbours
from .new_levels import RowsWithNewLevels
from .point_weights import point_weights
from .process import ExactProcessRegressor
from .process_fit import relative_precisions
from .race import BEHIND, LEAST_WEIGHT, Entrant, Judged, Shares, of_floor, standard_score
from .report import calibration_by_group, coverage_by_group, limits, of_coverage, share_done
from .rounded_targets import RoundedRows, common_value, lattice_of
from .row_weights import row_weights
from .strange_targets import looks_like_counts, warn_of_atom, warn_of_fill
from .table_fit import in_numbers

FEWEST_FOR_NETWORKS = 200
"""Rows; with fewer, a process predicts better, and sooner, unless noise depends on the inputs.
*Measured* on 180 rows with networks beside it, log density: noise of 1.0 and .1 by half −.98 →
−.78, an exponential of a noisy function −.68 → −.49, one column −.95 → −.38; of 22 real tables of
70 and 150 rows four tried them: +.39, +.12, −.002 and −.012, in 3 to 6 s more."""
MOST_FOR_PROCESS = 2000  # rows whose matrix is factorised in a second
MOST_ALONE = 500
"""Rows up to which that process is the only one, because it learns its kernel from 400 of them.
*Measured* with neighbours beside it, 1,000 rows (NLPD, RMSE): seals −4.78 → −6.18, .020 → .007;
inventories of houses −1.00 → −1.53, .158 → .135; temperature by hour −2.17 → −2.64, .047 → .043;
the worst of 18 tables and splits +.008, in twice the time."""
FEWEST_FOR_LONGER = 1000  # rows; with fewer, networks gain nothing by more steps
FEWEST_FOR_DEPTH = 2000  # rows; with fewer, its held-out rows are few
MOST_FOR_SCOUTS = 4000  # rows that eight networks are trained on
PATIENT_SECONDS = 20.0  # least max_time for scouts to decide the number of epochs
LONGER = 2  # times the usual epochs
CLEAR = 0.3  # score of scouts above which noise is small: nats per row of a standardised target
NOISY = -0.2  # the same, below which noise is large
SHORTER = 0.6  # times the usual epochs
LATE_GAIN = 0.08  # nats per row; if a scout's second half gains less, fewer epochs are enough
COUNTED_WITH_ERRORS = (
    "y_std must be None with target='count', because counts have no errors besides their "
    "distribution. Set target='auto' to model y as real numbers."
)
NO_FLOOR = Finding(
    "linear model",
    "X",
    math.nan,
    -BEHIND,
    severity="note",
    text="No linear model was compared, because it cannot take known errors (y_std).",
)


def has_lattice(model: AutoGaussianProcessRegressor) -> bool:
    """Tell whether there are atoms, or raise an AttributeError that says why not."""
    check_is_fitted(model)
    if model.atoms_ is None:
        why = "y has no atoms" if model.discrete == "auto" else "discrete=False"
        raise AttributeError(
            f"{type(model).__name__} has no probabilities of single values, because "
            f"{why}. Use log_predictive_density for the density of y."
        )
    return True


def as_scouted(model: Any, scout: Judged, data: Data, may_take_longer: bool = True) -> Any:
    """Return networks with as many epochs as are of use, by what a scout found.

    They train longer if there is little noise. Errors are then those of the function, which more
    steps make smaller: *measured* at 2,500 rows, by .03 to .7 nats on the four such tables of
    twelve, but harmful as often as useful on others. They train less if there is much noise and the
    scout gained little at the end: seven such fits of 600 and 2,000 rows were better by .008 nats
    on average, none worse by more than .001; if the scout gained more, .02 to .04 nats worse.
    """
    n_outputs, usual = data.y.size // len(data), usual_epochs(model, data)
    level = standard_score(scout, data)
    if may_take_longer and level >= CLEAR:
        longer = LONGER * usual  # to the end, as scores that get worse at a high rate recover
        return model.set_params(max_iter=longer, n_iter_no_change=longer)
    if level < NOISY and late_gain(scout.model.validation_scores_) < LATE_GAIN * n_outputs:
        return model.set_params(max_iter=max(1, round(SHORTER * usual)))
    return model


def late_gain(scores: list[float]) -> float:
    """Return how far the lowest of all scores is below the lowest of their first half."""
    return min(scores[: (len(scores) + 1) // 2]) - min(scores)


def sure_rows(data: Data) -> np.ndarray:
    """Return how many rows each row counts for, (n,), in all as many as say something."""
    weight = data.row_counts
    return weight * min(1.0, n_observed(data) / weight.sum())


def certain_rows(data: Data) -> np.ndarray:
    """Return the same of targets, of which those with large known errors say less."""
    return np.asarray(sure_rows(data) * relative_precisions(data).mean(1))


def mean_log_slope(transformer: Any, data: Data) -> float:
    """Return the mean over rows of log |dz/dy|, summed over outputs, at the z of these rows."""
    z = data.y.reshape(len(data.y), -1)
    points = NormalLaw(z, np.broadcast_to(Scaling.standard(z, data.weight).scale, z.shape))
    slopes = transformed(points, transformer).map.log_slope(z, points.std)
    return float(-np.average(slopes.sum(1), weights=data.weight))


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessRegressor(MultiOutputMixin, Automatic, ExposedMixture):
    """The recommended default: calibrated predictive distributions on tables of any size.

    It takes tables as they are: frames with categories, dates and missing values, columns and
    targets with outliers. Up to 2,000 rows it fits exact Gaussian processes with several kernels;
    with more than 500, processes that predict each row from the training rows nearest to it. From
    200 rows on, or with fewer where sizes of errors depend on the inputs, it fits an ensemble of
    networks with Gaussian-process last layers. Their noise depends on the inputs and has the tails
    of the data. They are trained for the density of their
    predictions, and calibrated on held-out rows. The weights of the mixture of all models come from
    their predictions for held-out rows.

    Parameters
    ----------
    target : {"auto", "count"}, default="auto"
        "auto" takes y as numbers. "count" takes y as counts, which have a negative binomial
        distribution with an uncertain mean; only networks and neighbours are fitted, and an input
        beyond the interval of the training rows by more than half its length is taken as at that
        distance.
    discrete : "auto" or False, default="auto"
        Whether y may be on a lattice: few distinct values, or rounded readings. If "auto" finds
        that it is, draws, means and deviations are those of the rounded y, and `predict_atoms`
        returns the probability of each value. Densities, distribution functions and intervals are
        always those of a continuous y, so that models can be compared. If a fifth of the rows has
        one value and y is continuous otherwise, as rainfall is, a warning says so: intervals may
        then leave that value out.
    target_transform : {"log", "yeo-johnson"}, transformer or None, default=None
        Transformation of y that models are fitted to instead of y: "log", its logarithm;
        "yeo-johnson", a power that makes it normal; or a monotone transformer with scikit-learn's
        interface. All predictions, and the scores of models, are of y itself; `report` is of the
        transformed y. "log" is for positive y with relative errors. With heavy tails, moments of
        exp(z) may not exist; where that matters, a warning says so, the mean is the median, and the
        deviation is that of y between its quantiles 0.001 and 0.999, as the CRPS always is then.

    Attributes
    ----------
    target_transformer_ : transformer or None
        The transformer that was fitted to y, with `transform` and `inverse_transform`.
    weights_ : ndarray of shape (n_models,)
        Weights of the models in `estimators_` by stacking, which sum to 1. Those of the density are
        in `row_weights_`, unless it is None.
    row_weights_ : RowWeights or None
        How weights depend on the row: if a model predicts the standard deviation σ there, its
        weight in the density is proportional to σ**(-certainty). The last of the weights is that of
        a Student-t distribution about the prediction, where models agree. None if stacking gives
        one model all weight, there are fewer than 30 held-out rows or the fit was interrupted, and
        for counts or with `y_std`.
    mean_weights_ : ndarray of shape (n_models,)
        Weights of the models' means in what `predict` returns, which sum to 1. They differ from
        `weights_` only if squared errors of held-out rows clearly ask for it. Deviations are those
        of y from the prediction; quantiles and densities are those of the mixture. With a
        `target_transform` that is no line, `predict` returns the mean of the mixture's density.
    atoms_ : ndarray of shape (n_atoms,) or None
        The values of y, in increasing order, if it is on a lattice.
    atom_weight_ : float
        Expected share of new rows whose y is among `atoms_`; 0 if there are none.

    See Also
    --------
    DeepKernelEnsembleRegressor : The ensemble of networks, with all its parameters.
    NNGPRegressor : Nearest neighbours, with a kernel of your own.
    GaussianProcessRegressor : One exact process with a kernel of your own.
    StackedDensityRegressor : A mixture of models of your own.

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
    target_transform: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "target": [StrOptions({"auto", "count"})],
        "discrete": [AUTO, "boolean"],
        "target_transform": TRANSFORM,
    }

    @documented(Regressor.fit)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        exposure: Any = None,
        y_std: Any = None,
        groups: Any = None,
    ) -> AutoGaussianProcessRegressor:
        """Fit the models, and choose their weights.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features), or rows of :mod:`skgpstoch.data`
            Inputs: numbers, categories, dates; NaN, None and the like where a value is missing.
            Rows that are read in chunks include y, weights, exposures and known errors.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        exposure : float or array-like of shape (n_samples,), default=None
            Factor of the rates of counts, for target="count": years, area, length of road. None is
            1.
        y_std : float or array-like of the shape of y, default=None
            Known standard error of each target, in the units of y, besides the learned noise. None
            is 0. Scores, calibration and weights use each row's own error; predictions are of
            targets without one. The networks then have Gaussian noise.
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups of rows, such as persons or places, if new rows will be of new groups.
            Whole groups are then held out for scores, calibration and weights. A category whose
            levels each belong to one group is left out, because it says nothing of a new group.
            Rows must be in memory, in one process.
        """
        of_rows = {"exposure": exposure, "y_std": y_std, "groups": groups}
        return self._fit_to(X, y, sample_weight, **of_rows)

    _most_raced: ClassVar[int] = max(MOST_FOR_PROCESS, MOST_FOR_SCOUTS)

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, least: int
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        if self.discrete is True:
            raise ValueError("discrete must be 'auto' or False, got True.")
        options = {"multi_output": True, "y_numeric": True, "ensure_min_samples": least}
        X, y = validate_table(self, X, y, reset=True, **options)
        return X, y, check_weight(Data(y, y), sample_weight, least=least, keeps=True).weight

    def _note_classes(self, classes: np.ndarray) -> None:
        """Do nothing: a regressor has no classes."""

    def _learned(self, rows: Chunk) -> Data:
        if rows.y_std is not None and self.target == "count":
            raise ValueError(COUNTED_WITH_ERRORS)
        if rows.y_std is not None and self.target_transform is not None:
            raise ValueError(KNOWN_AND_TRANSFORMED)
        check_counted(self, rows.exposure)
        self._fitted_with_exposure = rows.exposure is not None
        self._fitted_with_y_std = rows.y_std is not None
        data = self._encoded(rows)
        if data.y_std is not None:
            warn_of_units(*(a.reshape(len(a), -1) for a in (data.y, data.y_std)))
        self._lattice = None
        if self.discrete == "auto" and self.target == "auto":
            self._lattice = lattice_of(data.X, data.y, data.weight)
        if self.target == "auto" and (data.y == 0).any() and looks_like_counts(data.y):
            warn(
                "y looks like counts but is modelled as real numbers. Set target='count' "
                "if they are counts."
            )
        elif found := list(of_missing_targets(data.y)):
            for each in found:
                warn(each.message)
        elif self.discrete == "auto" and self.target == "auto" and rows.y_std is None:
            atoms = None if self._lattice is None else self._lattice.atoms
            warn_of_atom(*common_value(data.X, data.y), atoms)
        self._learn_transform(data)
        warn_of_fill(data.y)
        return replace(data, y=self._targets(data.y))

    def _learn_transform(self, data: Data) -> None:
        """Fit the transformation of targets, if there is one."""
        self.target_transformer_ = None
        if self.target_transform is None:
            return
        if self.target == "count":
            raise ValueError(
                "target_transform must be None where target='count', got "
                f"{self.target_transform!r}, because counts have a distribution of their "
                "own. Set target_transform=None, or target='auto' to model y as real "
                "numbers."
            )
        y = data.y.reshape(len(data.y), -1).astype(np.float64)
        given = self.target_transform, y, data.weight
        self.target_transformer_ = fitted_alike(current(), *given)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        if self.target_transformer_ is None:
            return y
        columns = y.reshape(len(y), -1).astype(np.float64)
        return np.asarray(self.target_transformer_.transform(columns)).reshape(y.shape)

    def _networks(self, data: Data) -> Entrant:
        likelihood = {}
        if data.y_std is not None:
            likelihood = {"likelihood": "gaussian"}  # the only one that knows errors
        elif self.target == "count":
            likelihood = {"likelihood": "negative_binomial"}
        return of_networks(DeepKernelEnsembleRegressor, self, data, **likelihood)

    def _neighbours(self, data: Data) -> list[Entrant]:
        leaves_groups_out = data.cluster is not None  # neighbours of a row are of its own group
        if leaves_groups_out:
            return []
        if self.target == "count":
            return of_latent_neighbours(
                NNGPRegressor, self, data, data.y[0].size, likelihood="negative_binomial"
            )
        if n_observed(data) <= MOST_ALONE:
            return []
        return of_neighbours(NNGPRegressor, self, data, self._encoder.groups)

    def _entrants(self, data: Data) -> list[Entrant]:
        n = n_observed(data)
        if self.target == "count":
            return [*self._neighbours(data), self._networks(data)]
        limits, encoder = (MOST_FOR_PROCESS, FEWEST_FOR_NETWORKS), self._encoder
        known: dict[str, Any] = {
            "missing_columns": encoder.missing_columns,
            "groups": encoder.groups,
        }
        found = of_processes(ExactProcessRegressor, self, n, *limits, **known)
        found += self._neighbours(data)
        may_be_deep = n >= FEWEST_FOR_DEPTH and data.cluster is None
        if may_be_deep and self.max_time is not None:
            found.append(of_deep_neighbours(NNGPRegressor, self, data, is_first=True))
        if n >= FEWEST_FOR_NETWORKS:
            networks = self._networks(data)
            is_patient = self.max_time is None or self.max_time >= PATIENT_SECONDS
            if n <= MOST_FOR_SCOUTS and is_patient:
                may_take_longer = n >= FEWEST_FOR_LONGER
                adapt = functools.partial(as_scouted, may_take_longer=may_take_longer)
                networks = networks._replace(adapt=adapt)
            if n > MOST_FOR_SCOUTS:
                networks = networks._replace(is_doubtful=are_followed)
            found.append(networks)
        elif data.y_std is None and data.cluster is None:
            found.append(self._networks(data)._replace(is_promising=may_vary_in_size))
        if may_be_deep:
            found.append(of_deep_neighbours(NNGPRegressor, self, data))
        return found

    def _floor(self, data: Data, deadline: Deadline | None) -> list[Judged]:
        takes_rows = self.target != "count" and data.y_std is None
        return super()._floor(data, deadline) if takes_rows else []

    def _mean_weights(self, found: list[Judged], weights: np.ndarray, data: Data) -> np.ndarray:
        """Return other weights where they clearly predict y itself better.

        The mean of counts, and of a function of y, is not that of models' means.
        """
        if self.target == "count" or self.target_transformer_ or len(found) == 1:
            return weights
        Y = data.y.reshape(len(data), -1)
        errors = np.full((len(data), len(found), Y.shape[1]), np.nan)
        for k, each in enumerate(found):
            if each.model.held_out_ is not None:
                errors[each.model.held_out_.rows, k] = each.model.held_out_.error
        unit = Scaling.standard(Y, data.weight).scale
        return point_weights(errors, weights, certain_rows(data), unit, LEAST_WEIGHT)

    def _combine(
        self, found: list[Judged], shares: Shares, data: Data, floor: list[Judged]
    ) -> list[Finding]:
        self.weights_, self.mean_weights_ = shares
        if self.target_transformer_ is not None:
            gain = mean_log_slope(self.target_transformer_, data)
            for key in ("score", "common_score"):
                self.scores_[key] = [score + gain for score in self.scores_[key]]
        lattice = self._lattice
        self.atoms_ = None if lattice is None else lattice.atoms
        self.atom_weight_ = 0.0 if lattice is None else lattice.weight
        weight = data.row_counts
        held_out = self._mix([each.model.held_out_ for each in found], shares, data)
        judged = held_out, weight[held_out.rows]
        done = share_done(self.budget_)
        by_level = self._encoder.rows_by_level(data.X[held_out.rows])
        sure = sure_rows(data)
        coverage = coverage_by_group(held_out, sure[held_out.rows], by_level)
        self._tables = calibration_by_group(*judged), limits(*judged, done), coverage
        if self.target == "count":
            of_errors = [*of_far_count(data.y, data.exposure), *of_held_out_counts(*judged)]
        else:
            errors = held_out, certain_rows(data)[held_out.rows], self.target_transformer_
            of_errors = [*of_held_out_errors(*errors, lambda rows: means_at(self, data.X[rows]))]
            if data.y_std is None and data.cluster is None:
                sizes = of_sizes(held_out, data.X[held_out.rows], errors[1])
                is_alone = {each.name for each in found} == {"process"}
                has_one_noise = is_alone and n_observed(data) < FEWEST_FOR_NETWORKS
                # Errors of rounded targets agree, too.
                is_rounded = 2 * n_distinct(in_numbers(data).y) <= len(data)
                told = has_one_noise and not is_rounded
                of_errors.append(sizes if told else sizes.noted())
        of_linear = of_floor(floor, held_out) if data.y_std is None else [NO_FLOOR]
        return [*of_linear, *of_coverage(coverage), *of_errors]

    def _mix(
        self, parts: list[HeldOutPredictions], shares: Shares, data: Data
    ) -> HeldOutPredictions:
        """Choose weights that depend on the row; return the mixture's predictions of held-out rows.

        Known errors belong to rows, and are not in the deviations that new rows will have.
        """
        rows, self.row_weights_ = common_rows(parts), None
        parts = [part.of(rows) for part in parts]
        if self.target == "auto" and data.y_std is None:
            self.row_weights_ = row_weights(parts, *shares, sure_rows(data)[rows])
        if self.row_weights_ is None:
            return mixture_of(parts, *shares)
        return self.row_weights_.held_out(parts, shares.mean)

    def _predicted(self, X: Any, exposure: Any = None) -> PredictedRows:
        return MixedRows([1.0], [self._of_y(X, exposure)])

    def _of_y(self, X: Any, exposure: Any = None) -> PredictedRows:
        """Return predictions of the targets, from a mixture for the transformed ones."""
        check_is_fitted(self)
        check_counted(self, exposure)
        X, new = self._encoder.transform_with_new(validate_table(self, X, reset=False))
        ask: Callable[[np.ndarray], PredictedRows] = self._mixed
        if exposure is not None:
            X, new = with_exposure(X, new, check_column(exposure, len(X), "exposure"))
            ask = self._mixed_with_exposure
        found = untransformed(self, RowsWithNewLevels(ask, X, new) if new else ask(X))
        return found if self._lattice is None else RoundedRows(found, self._lattice)

    def _mixed(self, X: np.ndarray, **of_rows: Any) -> PredictedRows:
        """Return the mixture of what the models predict at encoded rows."""
        parts = [predicted_by(model, X, **of_rows) for model in self.estimators_.values()]
        means = getattr(self, "mean_weights_", self.weights_)  # absent in older files
        by_row = getattr(self, "row_weights_", None)
        return MixedRows(self.weights_.tolist(), parts, means.tolist(), by_row)

    def _mixed_with_exposure(self, X: np.ndarray) -> PredictedRows:
        """Return the same, where exposures are the last column."""
        return self._mixed(X[:, :-1], exposure=X[:, -1])

    @available_if(has_lattice)
    def predict_atoms(self, X: Any) -> np.ndarray:
        """Return the probability of each value of y, if y is on a lattice.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_atoms)
            Probabilities of `atoms_`; each row sums to `atom_weight_`.
        """
        return cast(RoundedRows, self._of_y(X)).atom_probabilities()

    @available_if(has_lattice)
    def log_predictive_probability(self, X: Any, y: Any) -> np.ndarray:
        """Return the log probability of y at each row, if y is on a lattice.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Targets.

        Returns
        -------
        log_probability : ndarray of shape (n_samples,)
            In nats; −∞ for a number that is not in `atoms_`.
        """
        return cast(RoundedRows, self._of_y(X)).log_probability(y)


def untransformed(model: AutoGaussianProcessRegressor, found: PredictedRows) -> PredictedRows:
    """Return predictions of y, from those of the transformed y if there is a transformer."""
    transformer = model.target_transformer_
    return found if transformer is None else TransformedRows(found, transformer)


def means_at(model: AutoGaussianProcessRegressor, X: np.ndarray) -> np.ndarray:
    """Return predicted means of y at encoded rows, (m, P)."""
    return untransformed(model, model._mixed(X)).mean().reshape(len(X), -1)


def check_counted(model: AutoGaussianProcessRegressor, exposure: Any) -> None:
    """Raise a ValueError if there are exposures, but targets are not counts."""
    if exposure is not None and model.target != "count":
        raise ValueError(
            "exposure must be None with target='auto', because it multiplies the rates of counts. "
            "Set target='count' if y holds counts; otherwise make it a column of X."
        )


def with_exposure(
    X: np.ndarray, every: list[NewRows], exposure: np.ndarray
) -> tuple[np.ndarray, list[NewRows]]:
    """Append exposures (n, 1) to encoded rows, and to those that stand in for new levels."""
    found = []
    for rows, stand_ins in every:
        of_new = np.broadcast_to(exposure[rows], (len(stand_ins), len(rows), 1))
        found.append(NewRows(rows, np.concatenate([stand_ins, of_new], 2)))
    return np.hstack([X, exposure]), found
