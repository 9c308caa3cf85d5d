"""scikit-activeml's query strategies with our estimators in its wrappers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import (
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

pytest.importorskip("skactiveml")

from skactiveml.classifier import SklearnClassifier
from skactiveml.pool import (
    ExpectedModelVarianceReduction,
    KLDivergenceMaximization,
    UncertaintySampling,
)
from skactiveml.regressor import SklearnNormalRegressor
from skactiveml.utils import MISSING_LABEL

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (40, 1))
y = np.sin(2.0 * X[:, 0])
KERNEL = 1.0 * RBF() + WhiteKernel(0.01)
REGRESSORS = [
    GaussianProcessRegressor(KERNEL, random_state=0),
    SVGPRegressor(KERNEL, max_iter=5, random_state=0),
]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=["drop-in", "sparse"])
@pytest.mark.parametrize("strategy", [ExpectedModelVarianceReduction, KLDivergenceMaximization])
def test_regressors_are_asked(estimator, strategy):
    model = SklearnNormalRegressor(estimator, random_state=0)
    labels = np.full(len(X), MISSING_LABEL)
    labels[:6] = y[:6]
    query = strategy(random_state=0)
    index = query.query(X, labels, reg=model, candidates=np.arange(6, 12))
    assert 6 <= index[0] < 12
    labels[index] = y[index]
    model.fit(X, labels)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (40,)
    assert np.isfinite(model.predict_target_distribution(X).logpdf(y)).all()


def test_partial_fits_condition():
    fitted = GaussianProcessRegressor(KERNEL).fit(X[:10], y[:10])
    model = SklearnNormalRegressor(fitted, random_state=0).partial_fit(X[10:], y[10:])
    assert model.estimator_.kernel_ == fitted.kernel_
    assert len(model.estimator_.X_train_) == 40
    assert model.score(X, y) > fitted.score(X, y)


@pytest.mark.parametrize(
    "estimator",
    [GaussianProcessClassifier(), SVGPClassifier(n_inducing=5, max_iter=3, random_state=0)],
    ids=["drop-in", "sparse"],
)
def test_classifiers_are_asked(estimator):
    classes = (X[:, 0] > 0.3).astype(int)
    model = SklearnClassifier(estimator, classes=[0, 1], random_state=0)
    labels = np.full(len(X), MISSING_LABEL)
    labels[:10] = classes[:10]
    for _ in range(5):
        index = UncertaintySampling(random_state=0).query(X, labels, clf=model)
        labels[index] = classes[index]
    assert model.fit(X, labels).score(X, classes) > 0.8
