"""Streams whose first call was of another kind than those that follow."""

import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import few_rows
from families import slow_cases
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skgpstoch
from skgpstoch import (
    ADMMGaussianProcessRegressor,
    DLMRegressor,
    GaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
    SVGPRegressor,
)
from skgpstoch.data.rows import LONG_BEGINNING
from skgpstoch.estimators import stream_warnings


def rows(rng, width=2.0, n=100):
    X = width * rng.uniform(-1, 1, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)


def told(model, first, others):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(*first)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in others:
            model.partial_fit(*each)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("is_constant", [False, True])
@slow_cases("True")
@pytest.mark.slow
def test_deviations_that_a_constant_has_left_behind_are_told(is_constant):
    """They were 1e-8, for good, and no call said so."""
    rng = np.random.default_rng(1)
    X, y = rows(rng, n=LONG_BEGINNING)  # with fewer, it would learn again
    first = X, np.ones(len(y)) if is_constant else y
    said = told(NNGPRegressor(random_state=0), first, [rows(rng) for _ in range(2)])
    assert any("standard deviations away" in text for text in said) == is_constant


@pytest.mark.parametrize("Model", [SVGPRegressor, DLMRegressor])
@pytest.mark.parametrize("width", [0.2, 2.0])
def test_rows_beyond_all_inducing_points_are_told(Model, width):
    """2,000 rows taught nothing outside of the first hundred."""
    rng = np.random.default_rng(1)
    model = Model(n_inducing=20, random_state=0)
    said = told(model, rows(rng, width), [rows(rng) for _ in range(2)])
    assert any("are beyond all inducing points" in text for text in said) == (width < 1.0)


@pytest.mark.parametrize("is_narrow", [False, True])
@slow_cases("False")
@pytest.mark.slow
def test_one_class_or_no_event_that_came_first_is_told(is_narrow):
    """Log losses stayed at 1.9 nats, and rates at a thousandth."""
    rng = np.random.default_rng(1)
    X, y = rows(rng, n=LONG_BEGINNING)
    labels, counts = np.where(y > 0.0, "b", "a"), rng.poisson(np.exp(y))
    classifier, regressor = NNGPClassifier(random_state=0), NNGPRegressor(likelihood="poisson")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier.partial_fit(X, np.full(len(y), "a") if is_narrow else labels, classes=["a", "b"])
        regressor.partial_fit(X, 0 * counts if is_narrow else counts)
    for model, target in ((classifier, labels), (regressor, counts)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.partial_fit(X, target)
        said = [str(w.message) for w in caught]
        assert any("before they are learned" in text for text in said) == is_narrow


def test_rows_a_little_beyond_the_points_are_not_told(monkeypatch):
    """Points are means of rows, so that usual rows are beyond them."""
    monkeypatch.setattr(stream_warnings, "EDGE", 100.0)
    rng = np.random.default_rng(1)
    said = told(SVGPRegressor(n_inducing=20, random_state=0), rows(rng, 0.2), [rows(rng)])
    assert not any("are beyond all inducing points" in text for text in said)


@pytest.mark.parametrize("width", [0.1, 2.0])
@slow_cases("2.0")
@pytest.mark.slow
def test_length_scales_of_a_small_range_are_told(width):
    """90 % intervals held a third of all later rows."""
    rng = np.random.default_rng(104)

    def piece(width, n=60):
        X = width * rng.uniform(-1, 1, (n, 2))
        return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n)

    first = piece(width, LONG_BEGINNING)
    said = told(NNGPRegressor(random_state=0), first, [piece(2.0) for _ in range(4)])
    assert any("standard deviations away" in text for text in said) == (width < 1.0)


def few_then_many(seed):
    """With seed 3, 20 rows by which y has no noise, and 380 more."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 4.0, (400, 2))
    y = np.sin(2.0 * X[:, 0]) + np.cos(1.5 * X[:, 1]) + 0.1 * rng.standard_normal(400)
    return X, y


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (NNGPRegressor, 5),
        (NNGPRegressor, 180),
        (ADMMGaussianProcessRegressor, 60),
    ],
)
@slow_cases("^NNGPRegressor-5$")
def test_rows_appended_to_a_fit_of_few_are_judged(make, size):
    """Intervals of 90 % held .02, and the log density was −7,000, in silence."""
    X, y = few_then_many(seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(random_state=0).fit(X[:20], y[:20])

    def append():
        for i in range(20, 200, size):
            model.condition_on(X[i : i + size], y[i : i + size])

    with pytest.warns(UserWarning, match=r"Of the last \d+ appended rows, .* Call fit with all"):
        append()


@pytest.mark.slow
def test_rows_as_predicted_are_no_surprise(tmp_path):
    X, y = few_then_many(seed=0)
    model = NNGPRegressor(random_state=0).fit(X[:200], y[:200])
    for i in range(200, 305, 15):
        model.condition_on(X[i : i + 15], y[i : i + 15])
        model.save(tmp_path / "model")
        model = skgpstoch.load(tmp_path / "model")


def test_the_drop_in_judges_them_too():
    X, y = few_then_many(seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = 1.0 * RBF([1.0, 1.0]) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True).fit(X[:20], y[:20])
    with pytest.warns(UserWarning, match="more than 2 standard deviations away"):
        model.condition_on(X[20:], y[20:])


@pytest.mark.filterwarnings("ignore:The optimal value found")
@few_rows
@pytest.mark.slow
def test_a_stream_of_the_drop_in_may_begin_with_one_row():
    """It was fitted to that row for good: 90 % intervals of six streams held .03 to .05."""
    X, y = few_then_many(seed=0)
    model = GaussianProcessRegressor(1.0 * RBF([1.0, 1.0]) + WhiteKernel(0.1), normalize_y=True)
    of_all = clone(model).fit(X[:160], y[:160])
    frame = pd.DataFrame(X, columns=["a", "b"])
    for i in range(160):
        model.partial_fit(frame[i : i + 1], y[i : i + 1])
    assert_allclose(model.kernel_.theta, of_all.kernel_.theta, atol=1e-3)
    assert_allclose(model.predict_std(frame), of_all.predict_std(X), rtol=1e-3)
    model.partial_fit(frame[160:], y[160:])
    assert len(model.y_train_) == 400
