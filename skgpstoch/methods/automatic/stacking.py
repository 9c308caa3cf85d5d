"""Stacking of predictive distributions: the mixture with the best score on held-out rows.

Yao, Vehtari, Simpson & Gelman, "Using stacking to average Bayesian predictive distributions",
Bayesian Analysis 13, 2018: for models with densities p_j(y | x), each fitted without the rows that
judge it, the weights

    max_π Σᵢ log Σ_j π_j p_j(yᵢ | xᵢ)   subject to   π_j ≥ 0, Σ_j π_j = 1                       (4)

give the mixture that predicts best. The problem is concave, and at its solution
(1/n)Σᵢ p_j(yᵢ)/Σ_k π_k p_k(yᵢ) is 1 where π_j > 0, and at most 1 elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from joblib import Parallel, delayed
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from ...data.array_inputs import (
    one_output,
    real_target,
    with_two_dimensions,
)
from ...data.docstrings import documented
from ...data.findings import Diagnosis
from ...data.held_out import checked_folds, folds_of_units
from ...data.messages import warn
from ...estimators.base import BaseGP
from ...estimators.callbacks import CallbackSupportMixin, Fit, Fits, with_callbacks
from ...estimators.context import fitting
from ...estimators.first_rank import fits_on_first
from ...estimators.importances import averaged_importances
from ...estimators.parameters import N_JOBS
from ...estimators.predictions import PredictedRows
from ...estimators.regressor import Regressor
from ...estimators.validation import check_numbers
from ...estimators.weights import counted_rows, weight_unit
from .mixture import MixedRows, MixtureRegressor, predicted_by

PRIOR_OF_EACH = 0.5  # rows in favour of each estimator, so that few rows alone do not decide
KEPT_WEIGHT = 0.001  # estimators with a smaller weight are left out
LEAST_STD = 1e-9  # of errors, relative to the standard deviation of y
ADDED_SQUARE = 0.1  # of the best model's squared error, by each model that is far off
LEAST_PRIOR = 1e-12  # of the usual prior
GAP = 1e-6  # nats per row, by which the weights may be worse than the best ones
MOST_STEPS = 50_000


def stacking_weights(
    log_densities: np.ndarray, sample_weight: np.ndarray | None = None, prior: Any = 0.0
) -> np.ndarray:
    """Return the weights π of the best mixture (4), given a Dirichlet prior.

    They maximise Σᵢ wᵢ log Σ_j π_j p_j(yᵢ) + Σ_j a_j log π_j: the prior acts like a_j rows for each
    model that no other model explains. EM steps

        π_j ∝ a_j + Σᵢ wᵢ r_ij,   r_ij = π_j p_j(yᵢ)/Σ_k π_k p_k(yᵢ)

    never make it worse, and the largest slope bounds what is left to gain.

    Parameters
    ----------
    log_densities : ndarray of shape (n_samples, n_models)
        log p_j(yᵢ | xᵢ), of rows that the models were not fitted to.
    sample_weight : ndarray of shape (n_samples,) or None, default=None
        How many rows each row counts for.
    prior : float or ndarray of shape (n_models,), default=0.0
        a, the rows in favour of each model, whatever the data; 0 is no prior.

    Returns
    -------
    weights : ndarray of shape (n_models,)
        Weights, which sum to 1.

    Raises
    ------
    ValueError
        If there is no row, or one without a finite density, or a density is NaN.
    """
    counts = np.ones(len(log_densities)) if sample_weight is None else np.asarray(sample_weight)
    log_p, counts = log_densities[counts > 0], counts[counts > 0]
    best = log_p.max(1, initial=-np.inf, keepdims=True)  # NaN where any is
    if not len(log_p) or not np.isfinite(best).all():
        raise ValueError(
            "Stacking needs held-out rows, each with a finite log density from at least one model."
        )
    n, J = counts.sum(), log_p.shape[1]
    p, weights, a = np.exp(log_p - best), np.full(J, 1.0 / J), np.broadcast_to(prior, J)
    for _ in range(MOST_STEPS):
        slope = counts @ (p / (p @ weights)[:, None])  # by π_j, of the rows
        of_prior = np.divide(a, weights, out=np.zeros(J), where=a > 0.0)
        gap = ((slope + of_prior).max() - n - a.sum()) / n
        if gap <= GAP:
            break
        weights = (weights * slope + a) / (n + a.sum())
    else:
        warn(
            f"The search for stacking weights did not converge; they may be {gap:.1g} nats "
            "per row worse than the best ones.",
            ConvergenceWarning,
        )
    return weights / weights.sum()


def prior_rows(most: float, squares: np.ndarray, n_rows: float) -> np.ndarray:
    """Return rows in favour of each model, of which fewer are for models that are far off.

    A model that no row is in favour of, with weight a/n, adds at most `ADDED_SQUARE` to the
    expected squared error. *Measured* on functions without noise: with .5 rows for a constant,
    means were 10 to 40 times as far off as medians.

    Parameters
    ----------
    most : float
        Number of rows for a model that is not far off.
    squares : ndarray of shape (n_models,)
        Mean squared error of each model at rows left out.
    n_rows : float
        n.
    """
    least = squares.min()
    share = np.divide(least, squares, where=squares > least, out=np.full(len(squares), np.inf))
    return np.clip(ADDED_SQUARE * n_rows * share, LEAST_PRIOR * most, most)


def kept_weights(weights: np.ndarray, least: float) -> np.ndarray:
    """Return weights without those below `least`, but always with the largest."""
    kept = np.where((weights < least) & (weights < weights.max()), 0.0, weights)
    return np.asarray(kept / kept.sum())


def held_out_densities(
    fit: Fit, name: str, estimator: Any, X: Any, y: Any, split: Any, of_rows: dict[str, Any]
) -> tuple[np.ndarray, bool]:
    """Return log p(y | x) of some rows, by a model fitted to others; tell if y are its counts."""
    train, test = split
    of_train = {name: column[train] for name, column in of_rows.items()}
    (X_train, y_train), (X_test, y_test) = (
        (_safe_indexing(X, rows), _safe_indexing(y, rows)) for rows in (train, test)
    )
    try:
        model = fit(clone(estimator), X_train, y_train, **of_train)
        found = np.asarray(model.log_predictive_density(X_test, y_test))
        if np.isnan(found).any():
            raise ValueError(
                "log_predictive_density must not return NaN, got NaN for "
                f"{np.isnan(found).sum()} of {found.size} held-out rows."
            )
        law = predicted_by(model, _safe_indexing(X_test, [0])).law(slice(0, 1))
        return found, law.is_discrete
    except Exception as error:
        error.add_note(f"Raised while fitting estimators[{name!r}].")
        raise


def refuse_two_kinds(is_of_counts: Mapping[str, bool]) -> None:
    """Raise a ValueError if some models have probabilities of counts, and others densities."""
    counts, real = ([n for n, is_one in is_of_counts.items() if is_one is c] for c in (True, False))
    if counts and real:
        raise ValueError(
            "estimators must all predict counts, or all real numbers, because probabilities "
            f"cannot be compared with densities: {', '.join(map(repr, counts))} predict counts, "
            f"and {', '.join(map(repr, real))} real numbers."
        )


def check_predicts(model: Any, name: str) -> None:
    """Raise a ValueError unless a model has predictive distributions."""
    for method in ("log_predictive_density", "predictive_cdf", "sample_y"):
        if not hasattr(model, method):
            can_have = isinstance(model, BaseEstimator) and is_regressor(model)
            hint = (
                ". Wrap it in ConstantVarianceRegressor, which adds a constant variance"
                if can_have
                else ""
            )
            raise ValueError(f"{name} has no {method}: it is {model!r}{hint}.")
    if isinstance(model, type):
        raise TypeError(f"{name} is a class; give an estimator, as {model.__name__}() is.")


class StackedDensityRegressor(
    CallbackSupportMixin, MetaEstimatorMixin, MixtureRegressor, _BaseComposition
):
    """A mixture of regressors' predictive distributions, weighted to score best on held-out rows.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Names and regressors. A regressor needs `log_predictive_density`, `predictive_cdf` and
        `sample_y`, as ours have; :class:`ConstantVarianceRegressor` gives them to others.
    cv : int, splitter or iterable, default=5
        Folds on which models are judged. With a number, rows are shuffled into folds, always alike,
        with copies of a row in one; for rows in time, give a splitter.
    n_jobs : int or None, default=None
        Number of processes that fit, as joblib counts them.

    Attributes
    ----------
    weights_ : ndarray of shape (n_estimators,)
        Weights of the mixture. Weights below 0.001 are 0, but never the largest.
    estimators_ : list of estimators
        The estimators, fitted to all rows; None where the weight is 0.
    named_estimators_ : dict
        The same estimators by name.
    scores_ : ndarray of shape (n_estimators,)
        Mean log density of held-out rows by each estimator, in nats per row.
    score_ : float
        Mean log density of held-out rows by the mixture, in nats per row.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        Weighted mean of the estimators' importances, if all have them. They sum to 1.
    n_features_in_ : int
        Number of inputs.

    Raises
    ------
    ValueError
        If there are no estimators, a name occurs twice, or an estimator has no predictive density;
        or if a fold of `cv` has no rows, or rows both to train on and held out; or if some
        estimators predict counts and others real numbers.

    See Also
    --------
    AutoGaussianProcessRegressor : Chooses the models itself.

    References
    ----------
    .. [1] Y. Yao, A. Vehtari, D. Simpson, A. Gelman, "Using stacking to average Bayesian predictive
       distributions", Bayesian Analysis 13, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from skgpstoch import ConstantVarianceRegressor, SVGPRegressor, StackedDensityRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (200, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> models = [("gp", SVGPRegressor(n_inducing=10, max_iter=2, random_state=0))]
    >>> models += [("ridge", ConstantVarianceRegressor(Ridge()))]
    >>> model = StackedDensityRegressor(models, cv=3).fit(X, y)
    >>> bool(model.weights_[0] > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "estimators": [list, tuple],
        "cv": ["cv_object"],
        "n_jobs": N_JOBS,
    }
    _required_parameters: ClassVar[list[str]] = ["estimators"]

    def __init__(self, estimators: Any, *, cv: Any = 5, n_jobs: int | None = None) -> None:
        self.estimators = estimators
        self.cv = cv
        self.n_jobs = n_jobs

    @documented(BaseEstimator.get_params)
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, including those of estimators as ``name__parameter``."""
        return self._get_params("estimators", deep=deep)

    @documented(BaseEstimator.set_params)
    def set_params(self, **params: Any) -> StackedDensityRegressor:
        """Set parameters, or estimators by their names."""
        self._set_params("estimators", **params)
        return self

    @documented(Regressor.fit)
    @fitting
    @fits_on_first
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StackedDensityRegressor:
        """Fit all estimators to folds and to all rows, and choose the weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Targets. One column, (n_samples, 1), is taken as (n_samples,), with a
            DataConversionWarning.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        """
        self._validate_params()
        check_numbers(self)
        names, models = self._checked()
        if getattr(getattr(X, "dtype", None), "kind", "O") in "biuf":  # pipelines may take texts
            with_two_dimensions(X)
        validate_data(self, X, y, skip_check_array=True)
        y = check_array(real_target(y), ensure_2d=False, dtype="numeric", input_name="y")
        y = one_output(y, warns=True)
        check_consistent_length(X, y)
        X, y, of_rows = counted_rows(self.cv, X, y, sample_weight, models)
        if (weight := of_rows.get("sample_weight")) is not None:
            weight = weight * weight_unit(float(weight.sum()), int((weight > 0.0).sum()))
            of_rows = {"sample_weight": weight}
        splits = list(checked_folds(self.cv, folds_of_units(self.cv, X, y), X, y, weight))
        fits, parallel = Fits(self, X, y, len(names) * (len(splits) + 1)), Parallel(self.n_jobs)
        parts = parallel(
            delayed(held_out_densities)(fits.next(name), name, model, X, y, split, of_rows)
            for name, model in zip(names, models, strict=True)
            for split in splits
        )
        by_model = [parts[j : j + len(splits)] for j in range(0, len(parts), len(splits))]
        refuse_two_kinds({n: of_folds[0][1] for n, of_folds in zip(names, by_model, strict=True)})
        scores = np.stack([np.concatenate([p for p, _ in each]) for each in by_model], 1)
        order = np.concatenate([test for _, test in splits])
        of_held_out = None if weight is None else weight[order]
        best = stacking_weights(scores, of_held_out, PRIOR_OF_EACH)
        self.weights_ = kept_weights(best, KEPT_WEIGHT)
        self.scores_ = np.average(scores, axis=0, weights=of_held_out)
        mixed = logsumexp(scores, b=self.weights_, axis=1)
        self.score_ = float(np.average(mixed, weights=of_held_out))
        of_used = iter(
            parallel(
                delayed(fits.next(name))(clone(model), X, y, **of_rows)
                for name, model, w in zip(names, models, self.weights_, strict=True)
                if w > 0.0
            )
        )
        self.estimators_ = [next(of_used) if w > 0.0 else None for w in self.weights_]
        self.named_estimators_ = dict(zip(names, self.estimators_, strict=True))
        fits.tell_end()
        return self

    @documented(BaseGP.diagnose)
    def diagnose(self) -> Diagnosis:
        """Tell what may be wrong with the fits of the estimators that have `diagnose`."""
        check_is_fitted(self, "weights_")
        return Diagnosis.of_parts(self.named_estimators_)

    def _checked(self) -> tuple[Sequence[str], Sequence[Any]]:
        pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in self.estimators)
        if not (self.estimators and pairs and all(isinstance(p[0], str) for p in self.estimators)):
            raise ValueError(
                f"estimators must be a list of (name, estimator), got {self.estimators!r}."
            )
        names, models = zip(*self.estimators, strict=True)
        self._validate_names(names)
        for name, model in self.estimators:
            check_predicts(model, f"estimators: {name!r}")
        return names, models

    @property
    def feature_importances_(self) -> np.ndarray:
        """The weighted mean of the estimators' importances."""
        return averaged_importances(*self._used())

    def _used(self) -> tuple[list[float], list[Any]]:
        """Return weights and estimators, without those of weight 0."""
        check_is_fitted(self, "weights_")
        pairs = zip(self.weights_, self.estimators_, strict=True)
        weights, models = zip(*((float(w), m) for w, m in pairs if w > 0.0), strict=True)
        return list(weights), list(models)

    def _predicted(self, X: Any) -> PredictedRows:
        weights, models = self._used()
        return MixedRows(weights, [predicted_by(model, X) for model in models])
