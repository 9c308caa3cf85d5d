"""scikit-learn's own checks, on every public estimator as its default constructor makes it."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import skgpstoch


@parametrize_with_checks([getattr(skgpstoch, name)() for name in skgpstoch.__all__])
def test_sklearn_check(estimator, check):
    check(estimator)
