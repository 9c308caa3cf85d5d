"""MAPIE's conformal intervals around our estimators, scaled by our deviations too."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SVGPRegressor,
    predict_std,
)

regression = pytest.importorskip("mapie.regression")
scores = pytest.importorskip("mapie.conformity_scores")
classification = pytest.importorskip("mapie.classification")

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

COVERAGE = 0.8
MODELS = [
    SVGPRegressor(n_inducing=20, max_iter=10, random_state=0),
    make_pipeline(StandardScaler(), SVGPRegressor(n_inducing=20, max_iter=10, random_state=0)),
    AutoGaussianProcessRegressor(random_state=0),
    DeepKernelEnsembleRegressor(n_estimators=2, max_iter=10, random_state=0),
    GaussianProcessRegressor(random_state=0, alpha=0.05),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@pytest.fixture(scope="module")
def parts():
    """Rows for the fit, for the scores, and new ones; noise grows with the first input."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (1400, 2))
    y = 5.0 + np.sin(2.0 * X[:, 0]) + np.exp(0.7 * X[:, 0] - 1.5) * rng.standard_normal(1400)
    return [(X[rows], y[rows]) for rows in (slice(150), slice(150, 400), slice(400, None))]


def covered(interval, y):
    return float(np.mean((interval[:, 0, 0] <= y) & (y <= interval[:, 1, 0])))


class Deviation(RegressorMixin, BaseEstimator):
    """A fitted regressor's deviations, as MAPIE's model of residuals."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        return self

    def predict(self, X):
        return predict_std(self.model, X)

    def __sklearn_is_fitted__(self):
        return True


@every_model
@pytest.mark.parametrize("score", ["absolute", "gamma"])
def test_split_conformal_intervals_cover(model, score, parts):
    train, rest, new = parts
    conformal = regression.SplitConformalRegressor(
        model, COVERAGE, conformity_score=score, prefit=False
    )
    conformal.fit(*train).conformalize(*rest)
    mean, interval = conformal.predict_interval(new[0])
    np.testing.assert_array_equal(mean, conformal.predict(new[0]))
    assert covered(interval, new[1]) == pytest.approx(COVERAGE, abs=0.06)


@every_model
def test_residuals_in_our_deviations(model, parts):
    """Widths are then in proportion to our deviations, and coverage is right in both halves."""
    train, rest, new = parts
    fitted = model.fit(*train)
    score = scores.ResidualNormalisedScore(Deviation(fitted), prefit=True)
    conformal = regression.SplitConformalRegressor(fitted, COVERAGE, conformity_score=score)
    _, interval = conformal.conformalize(*rest).predict_interval(new[0])
    width = interval[:, 1, 0] - interval[:, 0, 0]
    ratio = width / predict_std(fitted, new[0])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert covered(interval, new[1]) == pytest.approx(COVERAGE, abs=0.06)


def test_deviations_that_follow_the_noise_make_intervals_that_do(parts):
    train, rest, new = parts
    model = AutoGaussianProcessRegressor(random_state=0).fit(
        *(np.concatenate(both) for both in zip(train, rest, strict=True))
    )
    by_deviation = scores.ResidualNormalisedScore(Deviation(model), prefit=True)
    rows = [part[:400] for part in new]
    few, many = new[0][400:, 0] < -0.5, new[0][400:, 0] > 0.5
    y = new[1][400:]
    gaps = []
    for score in ("absolute", by_deviation):
        conformal = regression.SplitConformalRegressor(model, COVERAGE, conformity_score=score)
        _, interval = conformal.conformalize(*rows).predict_interval(new[0][400:])
        gaps.append(abs(covered(interval[few], y[few]) - covered(interval[many], y[many])))
    assert gaps[1] < gaps[0]


def test_cross_conformal_intervals_cover(parts):
    train, _, new = parts
    conformal = regression.CrossConformalRegressor(MODELS[0], COVERAGE, cv=4)
    conformal.fit_conformalize(*train)
    _, interval = conformal.predict_interval(new[0])
    assert covered(interval, new[1]) >= COVERAGE - 0.06


@pytest.mark.parametrize(
    "model",
    [GaussianProcessClassifier(), AutoGaussianProcessClassifier(random_state=0)],
    ids=lambda m: type(m).__name__,
)
def test_sets_of_classes_cover(model, parts):
    train, rest, new = ((X, np.digitize(X[:, 0] + 0.2 * y, [0.4, 1.8])) for X, y in parts)
    conformal = classification.SplitConformalClassifier(model, COVERAGE, prefit=False)
    conformal.fit(*train).conformalize(*rest)
    _, sets = conformal.predict_set(new[0])
    assert np.mean(sets[np.arange(len(new[1])), new[1], 0]) >= COVERAGE - 0.06
