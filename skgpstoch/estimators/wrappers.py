"""Functions that get predictive distributions and diagnoses through scikit-learn's wrappers.

Pipelines, searches, frozen estimators and transformed targets pass on `predict`, but not
`predict_distribution`. The functions here accept any of them, also nested, and use the regressor
inside:

- :class:`~sklearn.pipeline.Pipeline`: the last step, with X transformed by the steps before;
- searches (``GridSearchCV`` and the like): their ``best_estimator_``;
- ``FrozenEstimator``: the estimator in it;
- :class:`~sklearn.compose.TransformedTargetRegressor`: the regressor in it. Its distributions are
  transformed back to those of the original target, including the Jacobian in the density.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from ..data.arguments import check_coverage, check_exposed, check_n_samples, check_names
from ..data.arrays import random_numbers
from ..data.docstrings import documented
from ..data.findings import Diagnosis
from .distributions.normal import NormalLaw
from .distributions.predictive import PredictiveDistribution, targets_of
from .distributions.transformed import transformed, transformed_draws, transformed_with_atoms
from .predictions import PredictiveRegressor

__all__ = [
    "diagnose",
    "log_predictive_density",
    "predict_distribution",
    "predict_interval",
    "predict_std",
    "sample_y",
]


OUTERMOST = """Parameters
----------
X : array-like of shape (n_samples, n_features)
    Inputs, as the outermost wrapper takes them.
"""


def predict_distribution(estimator: Any, X: Any, **of_rows: Any) -> PredictiveDistribution:
    """Predict the distribution of y at each row.

    Parameters
    ----------
    estimator : object
        A fitted regressor with `predict_distribution`; one with ``predict(X, return_std=True)``,
        such as scikit-learn's own Gaussian process or ``BayesianRidge``, whose predictions are
        taken as normal; or a wrapper (pipeline, search, ...) of one of these.
    X : array-like of shape (n_samples, n_features)
        Inputs, as the outermost wrapper takes them.
    **of_rows : dict
        Values for each row that the regressor takes besides X: `exposure`, `y_std`.

    Returns
    -------
    distribution : PredictiveDistribution
        Distributions of y, in the units of the y to which the outermost wrapper was fitted.

    Raises
    ------
    TypeError
        If no regressor inside predicts distributions.
    NotFittedError
        If the estimator is not fitted, or is a search with ``refit=False``.
    ValueError
        If a TransformedTargetRegressor's transformer is not monotone, or its regressor predicts
        counts, or `y_std` is given for transformed targets.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skgpstoch import SVGPRegressor, predict_distribution
    >>> X = np.linspace(-3, 3, 50)[:, None]
    >>> model = make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=10, random_state=0))
    >>> predict_distribution(model.fit(X, np.sin(X[:, 0])), X)
    PredictiveDistribution(n_samples=50)
    """
    estimator, X, maps = unwrapped(estimator, X)
    check_units(maps, of_rows)
    found = distribution_of(estimator, X, of_rows)
    for transformer, has_columns in maps:
        law = transformed_with_atoms(found.law, transformer)
        found = PredictiveDistribution(law, (law.shape[1],) if has_columns else ())
    return found


@documented(OUTERMOST, PredictiveRegressor.predict_std, predict_distribution)
def predict_std(estimator: Any, X: Any, **of_rows: Any) -> np.ndarray:
    """Predict the standard deviation of y at each row."""
    return predict_distribution(estimator, X, **of_rows).std()


@documented(OUTERMOST, PredictiveRegressor.predict_interval, predict_distribution)
def predict_interval(estimator: Any, X: Any, coverage: float = 0.95, **of_rows: Any) -> np.ndarray:
    """Predict the central interval that contains y with probability `coverage`."""
    coverage = check_coverage(coverage)
    return np.stack(predict_distribution(estimator, X, **of_rows).interval(coverage), 1)


@documented(OUTERMOST, PredictiveRegressor.log_predictive_density, predict_distribution)
def log_predictive_density(estimator: Any, X: Any, y: Any, **of_rows: Any) -> np.ndarray:
    """Return the log density log p(y | x, data) of each row, summed over outputs."""
    distribution = predict_distribution(estimator, X, **of_rows)
    check_exposed(innermost(estimator), of_rows.get("exposure"))
    return distribution.joint_logpdf(targets_of(distribution.shape, y))


@documented(PredictiveRegressor.sample_y, predict_distribution)
def sample_y(
    estimator: Any, X: Any, n_samples: int = 1, random_state: Any = 0, **of_rows: Any
) -> np.ndarray:
    """Draw y jointly at the rows of X."""
    n_samples = check_n_samples(n_samples)
    estimator, X, maps = unwrapped(estimator, X)
    if not hasattr(estimator, "sample_y"):
        cure = " For draws that are independent between rows, call predict_distribution(estimator, "
        cure += "X).sample(n_samples)."
        has_law = hasattr(estimator, "predict_distribution") or has_std(estimator)
        raise TypeError(
            f"estimator must be a regressor with sample_y, got {estimator!r}.{cure * has_law}"
        )
    check_names(estimator, estimator.sample_y, of_rows)
    check_units(maps, of_rows)
    draws = np.asarray(estimator.sample_y(X, n_samples, random_state, **of_rows))
    if not maps:
        return draws
    law = distribution_of(estimator, X, of_rows).law
    for transformer, has_columns in maps:
        law = of_y = transformed(law, transformer)
        draws = draws if draws.ndim == 2 or has_columns else draws[:, 0]
        draws = transformed_draws(draws, of_y, random_numbers(random_state))
    return draws


def diagnose(estimator: Any) -> Diagnosis:
    """Tell what may be wrong with the fit inside a pipeline or a search.

    Parameters
    ----------
    estimator : object
        A fitted estimator of this package, or a wrapper of one.

    Returns
    -------
    diagnosis : Diagnosis
        What the `diagnose` of the estimator inside returns: the table behind its warnings.

    Raises
    ------
    TypeError
        If the estimator inside has no `diagnose`.
    NotFittedError
        If the estimator is not fitted, or is a search with ``refit=False``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skgpstoch import SVGPRegressor, diagnose
    >>> X = np.linspace(-3, 3, 50)[:, None]
    >>> model = make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=10, random_state=0))
    >>> diagnose(model.fit(X, np.sin(X[:, 0]))).problems
    []
    """
    estimator = innermost(estimator)
    if isinstance(estimator, type) or not hasattr(estimator, "diagnose"):
        raise TypeError(
            "estimator must be a fitted estimator of skgpstoch, or a pipeline or search with one "
            f"inside, got {estimator!r}."
        )
    return estimator.diagnose()


def check_regressor(estimator: Any) -> None:
    """Raise a TypeError if this is not an estimator, or is a classifier."""
    if isinstance(estimator, type):
        raise TypeError(
            f"estimator must be a fitted regressor, got the class {estimator.__name__}. Fit "
            f"{estimator.__name__}(...) first."
        )
    known = "fit", "predict", "predict_distribution", "sample_y"
    if not any(hasattr(estimator, name) for name in known):
        raise TypeError(
            f"estimator must be a fitted regressor, got {type(estimator).__name__}. The "
            "estimator is the first argument, X the second."
        )
    if hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"estimator must be a regressor, got the classifier {estimator!r}. Use its "
            "predict_proba."
        )


def inside(estimator: Any) -> Any:
    """Return what a fitted wrapper holds; None if the estimator is no wrapper."""
    if hasattr(estimator, "best_estimator_"):
        return estimator.best_estimator_
    if hasattr(estimator, "refit") and hasattr(estimator, "estimator"):  # DLMRegressor has refit
        raise NotFittedError(
            f"{estimator!r} has no best_estimator_. Fit the search first, with refit=True."
        )
    if isinstance(estimator, FrozenEstimator):
        return estimator.estimator
    if isinstance(estimator, Pipeline):
        return estimator[-1]
    if isinstance(estimator, TransformedTargetRegressor):
        check_is_fitted(estimator)
        return estimator.regressor_
    return None


def innermost(estimator: Any) -> Any:
    """Return the estimator in wrappers."""
    while (inner := inside(estimator)) is not None:
        estimator = inner
    return estimator


def unwrapped(estimator: Any, X: Any) -> tuple[Any, Any, list[tuple[Any, bool]]]:
    """Return the regressor in wrappers, X as it sees it, and what was done to its targets.

    The latter are transformers, the innermost first, and whether their targets had columns.
    """
    check_regressor(estimator)
    maps: list[tuple[Any, bool]] = []
    while (inner := inside(estimator)) is not None:
        if isinstance(estimator, Pipeline) and len(estimator) > 1:
            X = estimator[:-1].transform(X)
        if isinstance(estimator, TransformedTargetRegressor):
            maps.insert(0, (estimator.transformer_, estimator._training_dim > 1))
        estimator = inner
        check_regressor(estimator)
    return estimator, X, maps


def check_units(maps: list[tuple[Any, bool]], of_rows: dict[str, Any]) -> None:
    """Raise a ValueError if known errors are given for targets that are transformed."""
    for transformer, _ in maps:
        if of_rows.get("y_std") is not None and not is_identity(transformer):
            raise ValueError(
                f"y_std must be None inside a TransformedTargetRegressor ({transformer!r:.80}): "
                "known errors are errors of y, not of the transformed target. Fit the regressor "
                "without it, because models scale y themselves."
            )


def is_identity(transformer: Any) -> bool:
    """Tell whether a transformer leaves targets as they are."""
    return isinstance(transformer, FunctionTransformer) and transformer.func is None


def distribution_of(estimator: Any, X: Any, of_rows: dict[str, Any]) -> PredictiveDistribution:
    """Return the distributions that a regressor predicts; normal ones if it has deviations only."""
    if hasattr(estimator, "predict_distribution"):
        check_names(estimator, estimator.predict_distribution, of_rows)
        return estimator.predict_distribution(X, **of_rows)
    if not has_std(estimator):
        cure = "Wrap it in ConstantVarianceRegressor, which adds a constant variance."
        if isinstance(estimator, MultiOutputRegressor):
            cure = "Ask each of its `estimators_`, which predict one output each."
        raise TypeError(
            "estimator must be a regressor with predict_distribution, or with predict(X, "
            f"return_std=True), got {estimator!r}. {cure}"
        )
    check_names(estimator, estimator.predict, of_rows)
    mean, std = (np.asarray(part) for part in estimator.predict(X, return_std=True, **of_rows))
    columns = (part.reshape(len(part), -1) for part in (mean, std))
    return PredictiveDistribution(NormalLaw(*columns), mean.shape[1:])


def has_std(estimator: Any) -> bool:
    """Tell whether an estimator has predict(X, return_std=True)."""
    predict = getattr(estimator, "predict", None)
    return predict is not None and "return_std" in signature(predict).parameters
