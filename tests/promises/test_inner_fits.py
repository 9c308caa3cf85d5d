"""Tools that watch the fits of scikit-learn's estimators see none inside a fit of ours."""

import functools

import numpy as np
import pytest
from families import slow_cases
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.multiclass import OneVsRestClassifier

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    GaussianProcessClassifier,
    SVGPRegressor,
)

pytestmark = pytest.mark.usefixtures("one_kernel")

MODELS = {
    "clusters": SVGPRegressor(inducing_points="kmeans", n_inducing=5, max_iter=2, random_state=0),
    "linear": AutoGaussianProcessRegressor(max_time=3, random_state=0),
    "logistic": AutoGaussianProcessClassifier(max_time=3, random_state=0),
    "one against the rest": GaussianProcessClassifier(optimizer=None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
@slow_cases("clusters")
@slow_cases("^linear$")
def test_no_fit_of_scikit_learn_is_seen(name, monkeypatch):
    """As MLflow's autolog does, wrap `fit` of its classes with functools.wraps."""
    rng, seen = np.random.default_rng(0), []
    X = rng.standard_normal((60, 2))
    y = np.round(X[:, 0]).clip(-1.0, 1.0) if "Classifier" in str(MODELS[name]) else X[:, 0]

    def watched(fit):
        @functools.wraps(fit)
        def watching(self, *args, **options):
            seen.append(type(self).__name__)
            return fit(self, *args, **options)

        return watching

    for cls in (MiniBatchKMeans, RidgeCV, LogisticRegression, OneVsRestClassifier):
        monkeypatch.setattr(cls, "fit", watched(cls.fit))
    MODELS[name].fit(X, y)
    assert seen == []
