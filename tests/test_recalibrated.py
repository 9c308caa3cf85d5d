"""Models whose deviations are recalibrated on rows that they have not seen."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import cumulative_trapezoid, trapezoid
from scipy.stats import norm

from skgpstoch import SVGPRegressor
from skgpstoch.ensembles.recalibrated import Recalibrated, recalibrated
from skgpstoch.models.mixture import Spread


class Funnel:
    """N(x, exp(x)²): of one output, or two of which the second is in other units."""

    def __init__(self, units=1.0):
        self.units = np.asarray(units)

    def predict(self, X, return_std=False):
        mean = X[:, 0] if self.units.ndim == 0 else X[:, [0]] * np.ones(len(self.units))
        return (self.units * mean, self.units * np.exp(mean)) if return_std else self.units * mean

    def log_predictive_density(self, X, y):
        log_p = norm.logpdf(y, *self.predict(X, True))
        return log_p.reshape(len(X), -1).sum(1)


RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((4000, 1))
NOISE = RNG.standard_normal(4000)


def targets(scale, exponent):
    return INPUTS[:, 0] + scale * np.exp(exponent * INPUTS[:, 0]) * NOISE


@pytest.mark.parametrize(("scale", "exponent"), [(1.0, 1.0), (1.5, 1.0), (0.7, 1.3), (1.0, 0.8)])
def test_scale_and_exponent_are_found(scale, exponent):
    found = recalibrated(Funnel(), INPUTS, targets(scale, exponent))
    assert_allclose(found.spread.exponent, exponent, atol=0.04)
    expected = scale * np.exp(exponent * INPUTS[:, 0])
    assert_allclose(found.predict(INPUTS, True)[1], expected, rtol=0.15)


def test_few_rows_change_little():
    found = recalibrated(Funnel(), INPUTS[:5], targets(2.0, 1.5)[:5])
    assert abs(found.spread.exponent - 1.0) < 0.15
    y = INPUTS[:1, 0] + 0.5
    alone = recalibrated(Funnel(), INPUTS[:1], y)
    assert abs(alone.spread.exponent - 1.0) < 1e-3
    assert_array_equal(alone.predict(INPUTS), Funnel().predict(INPUTS))


def test_rows_that_are_known_exactly_change_nothing():
    class Sure(Funnel):
        def predict(self, X, return_std=False):
            mean = X[:, 0]
            return (mean, np.zeros(len(X))) if return_std else mean

        def log_predictive_density(self, X, y):
            return np.full(len(X), np.inf)

    found = recalibrated(Sure(), INPUTS, INPUTS[:, 0]).spread
    assert found == Spread(1.0, 1.0)


def test_a_row_of_weight_two_is_two_rows():
    y, twice = targets(1.3, 1.2), np.repeat(np.arange(100), 2)
    weight = np.full(100, 2.0)
    a = recalibrated(Funnel(), INPUTS[twice], y[twice]).spread
    b = recalibrated(Funnel(), INPUTS[:100], y[:100], weight).spread
    c = recalibrated(Funnel(), INPUTS[:200], y[:200], np.arange(200) < 100).spread
    d = recalibrated(Funnel(), INPUTS[:100], y[:100]).spread
    for one, same in ((a, b), (c, d)):
        assert_allclose(one.factor, same.factor, rtol=1e-4)
        assert_allclose(one.exponent, same.exponent, rtol=1e-4)


def test_units_change_nothing():
    y = np.stack([targets(1.3, 1.2), targets(1.3, 1.2)[::-1]], 1)
    y[:, 1] += INPUTS[:, 0] - INPUTS[::-1, 0]
    plain, other = np.ones(2), np.array([1e-3, 1e6])
    a, b = (recalibrated(Funnel(units), INPUTS, units * y) for units in (plain, other))
    assert_allclose(a.spread.exponent, b.spread.exponent, rtol=1e-4)
    (_, std), (_, same) = (found.predict(INPUTS, True) for found in (a, b))
    assert_allclose(std * other, same, rtol=1e-4)


@pytest.fixture(scope="module", params=[(), (2,)], ids=["one", "two"])
def fitted(request):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (60, 1))
    y = np.sin(X) + 0.3 * rng.standard_normal((60, 2))
    y = y * [1.0, 20.0] if request.param else y[:, 0]
    model = SVGPRegressor(n_inducing=8, max_iter=3, random_state=0).fit(X, y)
    factor = np.array([1.4, 0.9]) if request.param else np.array([1.4])
    return model, Recalibrated(model, Spread(factor, 1.5))


def test_predictions_are_of_one_distribution(fitted):
    model, found = fitted
    X = np.linspace(-5.0, 5.0, 4)[:, None]
    (mean, std), (same, other) = (m.predict(X, return_std=True) for m in (model, found))
    assert_array_equal(mean, same)
    assert_allclose(other, found.spread.factor * std**1.5 if std.ndim > 1 else 1.4 * std**1.5)
    ends = found.predict_interval(X, 0.8)
    assert_allclose(ends[:, 1] - ends[:, 0], 2.0 * norm.ppf(0.9) * other, rtol=1e-6)
    assert_allclose(found.predictive_cdf(X, ends[:, 1]), 0.9, atol=1e-6)
    draws = found.sample_y(X, 20_000, 0)
    assert_allclose(draws.mean(-1), mean, atol=0.03 * std.max())
    assert_allclose(draws.std(-1), other, rtol=0.03)
    alone = np.concatenate([found.predict_interval(row[None], 0.8) for row in X])
    assert_allclose(alone, ends, rtol=1e-9)
    assert_array_equal(pickle.loads(pickle.dumps(found)).predict_interval(X, 0.8), ends)
    log_p = norm.logpdf(mean + 0.3 * other, mean, other).reshape(4, -1).sum(1)
    assert_allclose(found.log_predictive_density(X, mean + 0.3 * other), log_p, rtol=1e-6)


def test_densities_are_proper(fitted):
    model, found = fitted
    if model._y_shape:
        return
    (mean,), (std,) = found.predict([[1.0]], return_std=True)
    y, rows = mean + std * np.linspace(-8.0, 8.0, 801), np.ones((801, 1))
    p = np.exp(found.log_predictive_density(rows, y))
    assert_allclose(trapezoid(p, y), 1.0, rtol=1e-6)
    cdf = cumulative_trapezoid(p, y, initial=0.0)
    assert_allclose(cdf, found.predictive_cdf(rows, y), atol=1e-5)
