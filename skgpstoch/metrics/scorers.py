"""Scorers of predictive distributions for scikit-learn's model selection: greater is better.

Scorers support scikit-learn's metadata routing: call `set_score_request` to say whether a scorer
wants the weights, exposures and known errors of rows. With routing, scikit-learn raises an error if
weights are passed but neither requested nor declined. Without routing, scikit-learn passes the
weights of a search to the scorers itself, but nothing else.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRequest

from ..data.arguments import check_coverage, check_exposed, given_of_rows
from ..estimators.distributions.predictive import PredictiveDistribution, targets_of
from ..estimators.wrappers import innermost, predict_distribution
from .scores import check_weights, interval_coverage, unwrapped

ROUTED = ("sample_weight", "exposure", "y_std")


@dataclass(eq=False)
class PredictiveScorer(ABC):
    """Base class of scorers, called as ``scorer(estimator, X, y)``; greater scores are better.

    A scorer can be cloned and pickled.
    """

    _requests: dict[str, bool | str | None] = field(
        default_factory=lambda: dict.fromkeys(ROUTED), init=False, repr=False
    )

    def __call__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
    ) -> float:
        """Score a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted regressor that :func:`~skgpstoch.predict_distribution` takes: a regressor of
            skgpstoch; another one with `predict(X, return_std=True)`, whose predictions are taken
            as normal; or a pipeline, search or transformed target around one of these.
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            True targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; None weighs them equally.
        exposure : array-like of shape (n_samples,), default=None
            Exposures of counts, for a model that was fitted with exposures.
        y_std : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Known errors of `y`, for a model that was fitted with known errors.

        Returns
        -------
        score : float
            The score, a weighted mean over the rows.

        Raises
        ------
        TypeError
            If the estimator predicts no distributions, or takes no exposure or known errors.
        ValueError
            If weights are negative or all zero, or if the model was fitted with exposures and
            `exposure` is None.
        """
        if sample_weight is not None:
            sample_weight = check_weights(sample_weight, "sample_weight", len(y))
        of_rows = given_of_rows(innermost(estimator), exposure, y_std)
        return float(self._score(estimator, X, y, sample_weight, **of_rows))

    @abstractmethod
    def _score(self, estimator: Any, X: Any, y: Any, sample_weight: Any, **of_rows: Any) -> Any:
        """Score with valid weights."""

    # ---- scikit-learn's protocols ------------------------------------------------------------

    def set_score_request(self, **requests: bool | str | None) -> PredictiveScorer:
        """Return a copy of this scorer that requests weights, exposures or known errors of rows.

        This scorer itself does not change, because all code that imports it shares it.

        Parameters
        ----------
        **requests : {True, False, None} or str
            Requests for `sample_weight`, `exposure` and `y_std`. True: pass it to the scorer;
            False: do not pass it; None: raise an error if the user passes it; a str: pass the
            metadata of this name.

        Returns
        -------
        scorer : PredictiveScorer
            The copy with these requests.

        Raises
        ------
        RuntimeError
            If metadata routing is not enabled.
        TypeError
            If `requests` has another name than `sample_weight`, `exposure` and `y_std`.
        ValueError
            If a request is not True, False, None or a valid name.
        """
        if not get_config()["enable_metadata_routing"]:
            raise RuntimeError(
                "set_score_request has no effect without metadata routing. Enable it with "
                "sklearn.set_config(enable_metadata_routing=True)."
            )
        if unknown := sorted(requests.keys() - ROUTED):
            raise TypeError(f"set_score_request takes {list(ROUTED)}, got {unknown}.")
        scorer = copy.deepcopy(self)
        scorer._requests |= requests
        scorer.get_metadata_routing()  # checks the requests
        return scorer

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the metadata that the scorer requests.

        Returns
        -------
        routing : MetadataRequest
            The requests, for scikit-learn's metadata routing.
        """
        routing = MetadataRequest(owner=repr(self))
        for param, alias in self._requests.items():
            routing.score.add_request(param=param, alias=alias)
        return routing

    def _accept_sample_weight(self) -> bool:
        """Tell searches that, without metadata routing, they may pass weights."""
        return True

    def __sklearn_clone__(self) -> PredictiveScorer:
        return copy.deepcopy(self)


class NegLogPredictiveDensityScorer(PredictiveScorer):
    """Mean log predictive density, in nats per row: greater is better.

    Pass it as `scoring` to :class:`~sklearn.model_selection.GridSearchCV`,
    :func:`~sklearn.model_selection.cross_val_score` and the like. For counts and classes the score
    is the log probability. For several outputs, the joint log density is divided by their number.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> from skgpstoch.metrics import neg_log_predictive_density_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> scores = cross_val_score(BayesianRidge(), X, y, scoring=neg_log_predictive_density_scorer)
    >>> round(float(scores.mean()), 1)
    -5.4
    """

    def _score(self, estimator: Any, X: Any, y: Any, sample_weight: Any, **of_rows: Any) -> Any:
        predictor, X = unwrapped(estimator, X)
        if hasattr(predictor, "log_predictive_density"):  # classifiers have it, too
            density = predictor.log_predictive_density(X, y, **of_rows)
        else:
            distribution, y = judged(predictor, X, y, **of_rows)
            density = distribution.joint_logpdf(y)
        return np.average(density, weights=sample_weight) / np.asarray(y)[:1].size


class NegCRPSScorer(PredictiveScorer):
    """Minus the continuous ranked probability score, in the units of y: greater is better.

    Pass it as `scoring` to :class:`~sklearn.model_selection.GridSearchCV`,
    :func:`~sklearn.model_selection.cross_val_score` and the like.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skgpstoch.metrics import neg_crps_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(neg_crps_scorer(BayesianRidge().fit(X, y), X, y), 1)
    -30.5
    """

    def _score(self, estimator: Any, X: Any, y: Any, sample_weight: Any, **of_rows: Any) -> Any:
        distribution, y = judged(estimator, X, y, **of_rows)
        return -np.average(distribution.crps(y), axis=0, weights=sample_weight).mean()


@dataclass(eq=False)
class NegCoverageErrorScorer(PredictiveScorer):
    """Minus \\|observed − nominal\\| coverage, averaged over the outputs: 0 is best, −1 worst.

    Parameters
    ----------
    coverage : float, default=0.95
        Nominal coverage of the central intervals, in (0, 1).

    See Also
    --------
    make_coverage_scorer : The same scorer for another nominal coverage.

    Notes
    -----
    Coverage is blind to the width of the intervals. To choose between models, report it beside
    :func:`neg_log_predictive_density_scorer` and let the latter decide.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skgpstoch.metrics import neg_coverage_error_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> neg_coverage_error_scorer(BayesianRidge().fit(X, y), X, y) > -0.02
    True
    """

    coverage: float = 0.95

    def _score(self, estimator: Any, X: Any, y: Any, sample_weight: Any, **of_rows: Any) -> Any:
        distribution, y = judged(estimator, X, y, **of_rows)
        interval = np.stack(distribution.interval(self.coverage), 1)
        observed = interval_coverage(
            y, interval, sample_weight=sample_weight, multioutput="raw_values"
        )
        # Distances first, then the mean: outputs that err in opposite directions do not cancel.
        return -np.mean(np.abs(observed - self.coverage))


def judged(
    estimator: Any, X: Any, y: Any, **of_rows: Any
) -> tuple[PredictiveDistribution, np.ndarray]:
    """Return the distributions of y at the rows of X, and y in the distributions' shape."""
    check_exposed(unwrapped(estimator, X)[0], of_rows.get("exposure"))
    distribution = predict_distribution(estimator, X, **of_rows)
    return distribution, targets_of(distribution.shape, y)


neg_log_predictive_density_scorer = NegLogPredictiveDensityScorer()
neg_crps_scorer = NegCRPSScorer()
neg_coverage_error_scorer = NegCoverageErrorScorer()


def make_coverage_scorer(coverage: float = 0.95) -> PredictiveScorer:
    """Make :obj:`neg_coverage_error_scorer` for a nominal coverage.

    Its score is minus the distance between the share of rows inside the intervals and the nominal
    coverage: 0 is best. For the share itself, call :func:`~skgpstoch.metrics.interval_coverage`.

    Parameters
    ----------
    coverage : float, default=0.95
        Nominal coverage of the central intervals, in (0, 1).

    Returns
    -------
    scorer : PredictiveScorer
        `scorer(estimator, X, y, sample_weight=None, exposure=None, y_std=None)`; it can be pickled.

    Raises
    ------
    ValueError
        If `coverage` is not in (0, 1).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_validate
    >>> from skgpstoch.metrics import make_coverage_scorer, neg_crps_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> scoring = {"crps": neg_crps_scorer, "coverage": make_coverage_scorer(0.5)}
    >>> sorted(cross_validate(BayesianRidge(), X, y, scoring=scoring))
    ['fit_time', 'score_time', 'test_coverage', 'test_crps']
    """
    check_coverage(coverage)
    return NegCoverageErrorScorer(coverage=coverage)
