"""Where fits with warm_start=True begin."""

import copy

import numpy as np
import pytest
from families import slow_cases
from numpy.testing import assert_array_equal
from sklearn.base import clone

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    DLMClassifier,
    DLMRegressor,
    FITCRegressor,
    MinimaxGaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
    load,
)
from skgpstoch.estimators.warm_starts import going_on

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SPARSE = (
    DLMClassifier,
    DLMRegressor,
    FITCRegressor,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
OTHERS = BSGDGaussianProcessRegressor, NNGPClassifier, NNGPRegressor


def made(Model, **params):
    few = {"n_inducing": 20} if Model in SPARSE else {}
    return Model(random_state=0, warm_start=True, **few, **params)


def question(n=120):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=n)


def another(X):
    """Length-scales of the first question suit neither input, though X[:, 0] explains a part."""
    rng = np.random.default_rng(4)
    return 1.5 * np.cos(3 * X[:, 1]) - 0.6 * X[:, 0] + 0.2 * rng.normal(size=len(X))


def given(model, y):
    return y > 0.0 if hasattr(model, "predict_proba") else y


def data_of(model, X, y):
    return model._validate(X, given(model, y), True)


@pytest.mark.parametrize("Model", [*SPARSE, *OTHERS])
@pytest.mark.slow
def test_a_question_that_the_fit_before_does_not_explain_begins_anew(Model):
    X, y = question()
    model = made(Model).fit(X[:100], given(made(Model), y[:100]))
    assert going_on(model, data_of(model, X, y)) is not None
    model.fit(X, given(model, another(X)))
    anew = made(Model).fit(X, given(model, another(X)))
    assert_array_equal(model.predict(X), anew.predict(X))


def test_rates_of_another_question_do_not_explain_counts_by_their_exposures():
    rng = np.random.default_rng(0)
    X, exposure = rng.uniform(size=(200, 1)), 20.0 * np.exp(rng.normal(size=200))
    f = 0.5 * np.sin(6.0 * X[:, 0])
    model = made(SVGPRegressor, likelihood="poisson").fit(
        X, rng.poisson(exposure * np.exp(f)), exposure=exposure
    )
    for sign in (1.0, -1.0):
        y = rng.poisson(exposure * np.exp(sign * f))
        data = model._validate(X, y, True, exposure=exposure)
        assert (going_on(model, data) is not None) == (sign > 0.0)


@pytest.mark.slow
def test_a_fit_that_was_cut_short_goes_on():
    """Many short fits in turn must get somewhere; but none goes on to what it gets wrong."""
    X, y = question()
    model = made(SVGPRegressor, max_iter=1, solver="adam").fit(X, y)
    assert going_on(model, data_of(model, X, another(X))) is not None
    model.set_params(max_iter=40).fit(X, y)
    assert not model._is_trained
    assert going_on(model, data_of(model, X, y)) is not None
    assert going_on(model, data_of(model, X, -y)) is None


@pytest.fixture(scope="module")
def fitted():
    return made(NNGPRegressor, n_neighbors=8).fit(*question())


def test_the_answer_is_the_same_after_loading(fitted, tmp_path):
    X, y = question()
    fitted.save(tmp_path / "model.gp")
    loaded = load(tmp_path / "model.gp")
    assert going_on(loaded, data_of(loaded, X, another(X))) is None
    assert going_on(loaded, data_of(loaded, X, y)) is not None


@pytest.mark.slow
def test_what_was_noise_begins_anew():
    X, y = question()
    noise = np.random.default_rng(5).normal(size=len(X))
    model = made(NNGPRegressor).fit(X, noise)
    assert going_on(model, data_of(model, X, y)) is None


def test_a_weight_counts_as_so_many_rows(fitted):
    X, y = question()
    model = copy.copy(fitted)
    assert going_on(model, data_of(model, X, np.ones(len(X)))) is None
    mixed = np.where(np.arange(len(X)) < 60, y, another(X))
    for weight in (1e-3, 1e3):
        w = np.where(np.arange(len(X)) < 60, 1.0, weight)
        start = going_on(model, model._validate(X, mixed, True, w))
        assert (start is None) == (weight > 1.0)


@pytest.mark.parametrize(
    "n_classes",
    [(2, 3), (4, 3), *(pytest.param(n, marks=pytest.mark.slow) for n in [(3, 4), (3, 2)])],
)
@slow_cases("^n_classes1$")
def test_other_numbers_of_classes_are_refused(n_classes):
    """A fit to three classes was asked for the probability of the fourth."""
    X, y = question()
    before, after = (np.digitize(y, np.quantile(y, np.arange(1, C) / C)) for C in n_classes)
    model = made(SVGPClassifier, max_iter=2).fit(X, before)
    with pytest.raises(ValueError, match="the number of outputs or classes in y changes it"):
        model.fit(X, after)
    assert model.predict_proba(X).shape[1] == n_classes[0]


@pytest.mark.parametrize(
    "model",
    [
        SCGDGaussianProcessRegressor(noise="learned"),
        SCGDGaussianProcessRegressor(noise="learned", weights="learned"),
        MinimaxGaussianProcessRegressor(noise="learned"),
        SVGPRegressor(loss="log", n_inducing=8, solver="natural"),
        SVGPClassifier(n_inducing=8, solver="adam"),
    ],
    ids=["noise", "weights", "minimax", "log", "adam"],
)
@slow_cases("noise", "minimax", "adam")
def test_warm_fits_begin_with_all_that_was_learned(model):
    """Noise, w and the covariance of q(w) began anew."""
    X, y = question(60)
    y = given(model, y)
    params = {"hidden_layer_sizes": (8,)} if hasattr(model, "hidden_layer_sizes") else {}
    shared = {"random_state": 0, "max_iter": 20, "warm_start": True, "learning_rate": "constant"}
    model = clone(model).set_params(**shared, **params).fit(X, y)
    noise, value = getattr(model, "noise_variance_", None), model.log_marginal_likelihood_value_
    model.set_params(max_iter=1, learning_rate_init=1e-12).fit(X, y)
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, rel=1e-6)
    if noise is not None:
        assert model.noise_variance_ == pytest.approx(noise, rel=1e-9)
    if model.loss_curve_ is not None:  # w is closed after training, and so is the mean of q(w)
        assert model.loss_curve_[0] < value / -60 + 0.5


@pytest.mark.parametrize(
    ("n_inducing", "n_first", "expected"), [("auto", 10, 90), ("auto", 50, 50), (9, 10, 9)]
)
def test_few_points_of_few_rows_do_not_stay(n_inducing, n_first, expected):
    """Their number does: RMSE .2 to .5 where a fit to all rows had .03."""
    X = np.random.default_rng(0).uniform(-3.0, 3.0, (90, 1))
    y = np.sin(2.0 * X[:, 0])
    model = SVGPRegressor(n_inducing=n_inducing, warm_start=True, random_state=0)
    model.fit(X[:n_first], y[:n_first]).fit(X, y)
    assert len(model.inducing_points_) == expected


@pytest.mark.parametrize("n_first", [10, 40])
def test_a_fit_to_few_rows_does_not_go_on_with_many(n_first):
    """Neighbours that began from ten rows took noise for f: NLPD -.10 for .55."""
    X, y = question()
    one, other = (NNGPRegressor(max_iter=1, random_state=0) for _ in range(2))
    one.set_params(warm_start=True).fit(X[:n_first], y[:n_first]).fit(X[:60], y[:60])
    other.fit(X[:60], y[:60])
    assert (one.kernel_ == other.kernel_) == (n_first == 10)


def test_points_of_a_constant_column_do_not_stay():
    """They never left it: the RMSE was .70 where a new fit has .11."""
    X, y = question()
    model = made(SVGPRegressor, max_iter=20)
    model.fit(np.column_stack([X[:, 0], np.ones(len(X))]), y).fit(X, y)
    assert_array_equal(model.predict(X), made(SVGPRegressor, max_iter=20).fit(X, y).predict(X))
