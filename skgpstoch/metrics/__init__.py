"""Scores of predictive distributions, and scorers for scikit-learn's model selection.

Pass a scorer itself as `scoring`. It has no name there, because scikit-learn's list is closed.
"""

from .scorers import (
    NegCoverageErrorScorer,
    NegCRPSScorer,
    NegLogPredictiveDensityScorer,
    PredictiveScorer,
    make_coverage_scorer,
    neg_coverage_error_scorer,
    neg_crps_scorer,
    neg_log_predictive_density_scorer,
)
from .scores import (
    continuous_ranked_probability_score,
    interval_coverage,
    negative_log_predictive_density,
)

__all__ = [
    "continuous_ranked_probability_score",
    "interval_coverage",
    "make_coverage_scorer",
    "neg_coverage_error_scorer",
    "neg_crps_scorer",
    "neg_log_predictive_density_scorer",
    "negative_log_predictive_density",
]

CLASSES = (
    NegCoverageErrorScorer,
    NegCRPSScorer,
    NegLogPredictiveDensityScorer,
    PredictiveScorer,
)
"""Those of the scorers."""

for _public in (*CLASSES, *(globals()[_name] for _name in __all__)):
    if hasattr(_public, "__name__"):  # pickles name the public path, wherever a function lives
        _public.__module__ = __name__
