"""scikit-learn's own checks, on every public estimator as its default constructor makes it."""

from conftest import ESTIMATORS
from sklearn.utils.estimator_checks import parametrize_with_checks


@parametrize_with_checks([cls() for cls in ESTIMATORS])
def test_sklearn_check(estimator, check):
    check(estimator)
