"""scikit-learn's own checks, on every public estimator as its default constructor makes it."""

from conftest import DIRECT, ESTIMATORS
from sklearn.utils.estimator_checks import parametrize_with_checks

# Their default is as many steps as of the other estimators, and every check takes several fits.
FEWER_STEPS = {cls: {"max_iter": 50} for cls in DIRECT}


@parametrize_with_checks([cls(**FEWER_STEPS.get(cls, {})) for cls in ESTIMATORS])
def test_sklearn_check(estimator, check):
    check(estimator)
