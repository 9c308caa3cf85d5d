"""modAL's learners query and teach our estimators."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.utils import validation

from skgpstoch import GaussianProcessClassifier, GaussianProcessRegressor, SVGPRegressor

pytest.importorskip("modAL")

from modAL.acquisition import max_EI, max_UCB
from modAL.models import ActiveLearner, BayesianOptimizer, base, learners
from modAL.uncertainty import entropy_sampling, uncertainty_sampling

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """modAL 0.4.2 calls scikit-learn's checks by a name that scikit-learn 1.8 took away."""

    def renamed(check):
        def checked(*args, force_all_finite=True, **options):
            return check(*args, ensure_all_finite=force_all_finite, **options)

        return checked

    for name in ("check_X_y", "check_array"):
        for module in (learners, base):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, renamed(getattr(validation, name)))


rng = np.random.default_rng(0)
X = np.linspace(0.0, 20.0, 200)[:, None]
y = np.sin(X[:, 0]) / 2.0 - np.square((10.0 - X[:, 0]) / 10.0)


@pytest.mark.parametrize("query", [max_EI, max_UCB])
@pytest.mark.parametrize(
    "estimator",
    [
        GaussianProcessRegressor(1.0 * RBF(), alpha=1e-6, normalize_y=True),
        SVGPRegressor(1.0 * RBF() + WhiteKernel(0.01), random_state=0),
    ],
    ids=["drop-in", "sparse"],
)
def test_optimisers(estimator, query):
    some = [20, 100, 180]
    optimizer = BayesianOptimizer(
        estimator=estimator, X_training=X[some], y_training=y[some], query_strategy=query
    )
    for _ in range(8):
        index, instance = optimizer.query(X)
        optimizer.teach(instance, y[index])
    _, best = optimizer.get_max()
    assert best > np.max(y) - 0.05


@pytest.mark.parametrize("query", [uncertainty_sampling, entropy_sampling])
def test_learners(query):
    points = rng.uniform(-1.0, 1.0, (100, 2))
    labels = np.where(points[:, 0] > points[:, 1], "a", "b")
    learner = ActiveLearner(
        GaussianProcessClassifier(),
        X_training=points[:6],
        y_training=labels[:6],
        query_strategy=query,
    )
    before = learner.score(points, labels)
    for _ in range(8):
        index, instance = learner.query(points)
        learner.teach(instance, labels[index])
    assert learner.score(points, labels) >= max(before, 0.8)


def test_regressors_are_asked_where_they_know_least():
    learner = ActiveLearner(
        GaussianProcessRegressor(1.0 * RBF(2.0), alpha=1e-4, optimizer=None),
        X_training=X[:3],
        y_training=y[:3],
        query_strategy=lambda model, X: np.argmax(model.predict(X, return_std=True)[1])[None],
    )
    error = np.abs(learner.predict(X) - y).max()
    for _ in range(10):
        index, instance = learner.query(X)
        learner.teach(instance, y[index])
    assert np.abs(learner.predict(X) - y).max() < 0.2 * error
