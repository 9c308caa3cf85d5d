"""Known errors of targets in the recommended default."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
from conftest import let_defaults_be_of_many
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import Matern
from sklearn.preprocessing import StandardScaler
from test_process import EACH_SHAPE, some_rows, some_z
from thread_group import on_ranks

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessRegressor,
    SolveGPRegressor,
    SVGPRegressor,
    predict_distribution,
    predict_interval,
    predict_std,
    sample_y,
)
from skgpstoch.data import SequenceRows
from skgpstoch.methods.automatic import automatic_regressor
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.methods.automatic.process_evidence import KERNEL_SHAPES, LogPosterior, Process
from skgpstoch.metrics import neg_log_predictive_density_scorer

pytestmark = pytest.mark.usefixtures("one_kernel")

N = 150


def two_instruments(n=N, seed=1):
    """X, the mean of y, y, and its errors: half of the targets are nearly exact."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    f, error = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1], rng.choice([0.05, 1.5], n)
    return X, f, f + np.hypot(0.1, error) * rng.standard_normal(n), error


def known(rows):
    variances = np.random.default_rng(2).choice([0.0, 0.1, 5.0], len(rows.y))
    return rows._replace(known=rows.y.new_tensor(variances))


@EACH_SHAPE
def test_gradients_of_the_evidence(name):
    objective = LogPosterior(KERNEL_SHAPES[name], known(some_rows()))
    z = some_z(name, objective.rows)
    slope = approx_fprime(z, lambda z: objective(z)[0], 1e-6)
    assert_allclose(objective(z)[1], slope, rtol=1e-4, atol=1e-4)


@EACH_SHAPE
def test_rows_left_out_are_predicted_with_their_own_error(name):
    rows, shape = known(some_rows()), KERNEL_SHAPES[name]
    z = some_z(name, rows)
    residual, var, _ = Process.given(shape, z, rows).left_out(rows)
    for i in range(len(rows.y)):
        others = np.delete(np.arange(len(rows.y)), i)
        refit = Process.given(shape, z, rows.some(rows.y.new_tensor(others).long()))
        mean, of_y = refit.moments(rows.X[[i]], rows.missing[[i]])
        assert_allclose(residual[i], rows.y[i] - mean[0], atol=1e-8)
        assert_allclose(var[i], of_y[0] + rows.known[i], atol=1e-8)


@pytest.mark.slow
def test_precise_targets_tell_the_function(monkeypatch):
    monkeypatch.setattr(automatic_regressor, "ExactProcessRegressor", ExactProcessRegressor)
    X, _, y, error = two_instruments()
    new, f, _, _ = two_instruments(500, seed=9)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=error)
    without = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    off, off_without = (np.abs(m.predict(new) - f).mean() for m in (model, without))
    assert off < 0.4 * off_without
    low, high = model.predict_interval(new).T  # of targets without such errors
    exact = f + 0.1 * np.random.default_rng(0).standard_normal(500)
    assert 0.92 < np.mean((low < exact) & (exact < high)) < 0.98


@pytest.mark.slow
def test_rows_are_judged_with_their_own_error():
    """The score is that of new rows with such errors; of ten seeds it is .0004 off on average."""
    new, _, y_new, error_new = two_instruments(600, seed=99)
    off = []
    for seed in range(3):
        X, _, y, error = two_instruments(seed=seed)
        model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=error)
        low, high = model.predict_interval(new).T
        std = np.hypot((high - low) / (2.0 * norm.ppf(0.975)), error_new)
        density = norm.logpdf(y_new, model.predict(new), std).mean()
        off.append(model.scores_["score"][0] - density)
    assert_allclose(np.mean(off), 0.0, atol=0.15)
    held_out = model.estimators_["process"].held_out_
    assert (held_out.std[error == 1.5] > 1.4).all()
    assert (held_out.std[error == 0.05] < 0.8).all()


def test_errors_that_differ_much_leave_certain_predictions_certain():
    """Kernels far off had weights, as large errors hid that: `std` was 7 to 13 times the error."""
    rng = np.random.default_rng(0)
    X, error = rng.uniform(-3.0, 3.0, (650, 2)), 10.0 ** rng.uniform(-3.0, 1.0, 150)
    f = np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1]
    y = f[:150] + error * rng.standard_normal(150)
    model = ExactProcessRegressor(random_state=0).fit(X[:150], y, y_std=error)
    mean, std = model.predict(X[150:], return_std=True)
    assert np.sqrt(np.mean(std**2) / np.mean((mean - f[150:]) ** 2)) < 4.0


@pytest.mark.slow
def test_no_errors_are_errors_of_0():
    X, _, y, _ = two_instruments(80)
    models = [AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=e) for e in (None, 0)]
    assert_array_equal(models[0].predict(X), models[1].predict(X))
    (of_linear,) = [f for f in models[1].diagnose() if f.name == "linear model"]
    assert of_linear.severity == "note"
    assert "cannot take known errors" in of_linear.text
    assert "linear" not in models[1].scores_["model"]


@pytest.mark.parametrize(("share", "unit"), [(0.0, 1.0), (0.1, 1e-200), (0.1, 1.0), (0.1, 1e200)])
def test_targets_that_agree_have_errors_in_any_unit(share, unit):
    """The range of the bulk of y is 0; squares of errors underflow or overflow."""
    X = two_instruments(60)[0]
    y = (X[:, 0] > 3.0 - 6.0 * share).astype(float)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, unit * y, y_std=0.1 * unit)
    assert_allclose(model.predict(X[y == 0.0]) / unit, 0.0, atol=0.2)
    with pytest.raises(ValueError, match="y_std must be at most"):
        model.fit(X, y, y_std=1e200)


@pytest.mark.slow
def test_targets_without_meaning_do_not_set_the_unit():
    rng = np.random.default_rng(0)
    X, f, y, _ = two_instruments()
    error = np.where(rng.uniform(size=N) < 0.1, 1e6, 0.1)
    y = f + error * rng.standard_normal(N)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=error)
    assert np.abs(model.predict(X) - f).mean() < 0.1


@pytest.mark.slow
def test_networks_take_errors_too(monkeypatch):
    few = functools.partial(automatic_regressor.of_networks, n_estimators=2, max_iter=2)
    monkeypatch.setattr(automatic_regressor, "of_networks", few)
    X, _, y, error = two_instruments(300)
    model = AutoGaussianProcessRegressor(random_state=0, max_time=60).fit(X, y, y_std=error)
    assert any("networks" in name for name in model.scores_["model"])
    y2 = np.column_stack([y, -y])
    of_two = ExactProcessRegressor(kernels=["rbf"], random_state=0)
    of_two.fit(X[:60], y2[:60], y_std=np.column_stack([error] * 2)[:60])
    assert of_two.predict(X).shape == (300, 2)


@pytest.mark.parametrize(
    ("params", "y_std", "message"),
    [
        ({"target": "count"}, 0.1, "y_std must be None with target='count'"),
        ({"target_transform": "log"}, 0.1, "y_std must be None with target_transform"),
        ({}, -1.0, "y_std must be finite and not negative"),
        ({}, [0.1, 0.2], "y_std must have the shape of y"),
    ],
)
def test_errors_that_mean_nothing(params, y_std, message):
    X, _, y, _ = two_instruments(40)
    with pytest.raises(ValueError, match=message):
        AutoGaussianProcessRegressor(**params).fit(X, np.abs(y).round() + 1.0, y_std=y_std)


def test_classes_have_none():
    X, _, y, error = two_instruments(40)
    with pytest.raises(ValueError, match="has y_std, which AutoGaussianProcessClassifier"):
        AutoGaussianProcessClassifier().fit(SequenceRows(X, y > 0.0, y_std=error))


def of_parts(X, y, error, cuts):
    """Fit on ranks that have the rows between the cuts; return the model of the last."""

    def fit(group):
        mine = slice(cuts[group.rank], cuts[group.rank + 1])
        model = AutoGaussianProcessRegressor(random_state=0)
        return model.fit(X[mine], y[mine], y_std=error[mine])

    return on_ranks(fit, len(cuts) - 1)[-1]


@pytest.mark.slow
def test_few_rows_in_chunks_and_on_ranks_are_those_in_memory():
    X, _, y, error = two_instruments(80)
    whole = AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=error)
    of_chunks = AutoGaussianProcessRegressor(random_state=0).fit(SequenceRows(X, y, y_std=error))
    assert_array_equal(of_chunks.predict(X), whole.predict(X))
    assert_array_equal(of_parts(X, y, error, [0, 0, 30, 80]).predict(X), whole.predict(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A linear model predicts rows")
def test_many_rows_in_chunks_and_on_ranks(monkeypatch):
    """Networks learn from errors, wherever rows are; exact targets count for more."""
    let_defaults_be_of_many(monkeypatch, 100)
    X, _, y, error = two_instruments(160)
    means = [of_parts(X, y, error, cuts).predict(X) for cuts in ([0, 160], [0, 70, 160])]
    assert_allclose(means[1], means[0], atol=1e-8)
    source = SequenceRows(X, y, y_std=error)
    model = AutoGaussianProcessRegressor(random_state=0).fit(source)
    held_out = model.estimators_["networks"].held_out_
    assert type(model.estimators_["networks"].likelihood_).__name__ == "Gaussian"
    assert (held_out.std[error[held_out.rows] == 1.5] > 1.4).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", [SVGPRegressor, SolveGPRegressor, FITCRegressor, DLMRegressor])
def test_rows_with_large_errors_change_nothing(model):
    """Their y was in the mean and variance from which training starts, and of the noise's prior.

    Both fits start with the same inducing points, which k-means would choose among the rows.
    """
    rng = np.random.default_rng(0)
    X, error = rng.uniform(-3.0, 3.0, (60, 1)), np.where(np.arange(60) < 45, 0.1, 1e6)
    y = 5.0 + np.sin(2.0 * X[:, 0]) + error * rng.standard_normal(60)
    new, told = np.linspace(-2.5, 2.5, 20)[:, None], error < 1.0
    model = model(inducing_points=np.linspace(-3.0, 3.0, 20)[:, None], random_state=0)
    found, expected = (
        clone(model).fit(X[some], y[some], y_std=error[some]).predict(new, return_std=True)
        for some in (slice(None), told)
    )
    assert_allclose(found[0], expected[0], atol=0.1)
    assert_allclose(found[1], expected[1], rtol=0.3)


def test_findings_know_errors():
    """Rows with errors of 100 made f "almost constant", and y "mostly noise"."""
    rng = np.random.default_rng(0)
    X, error = rng.uniform(-3.0, 3.0, (80, 1)), np.where(np.arange(80) < 60, 0.1, 1000.0)
    y = np.sin(2.0 * X[:, 0]) + error * rng.standard_normal(80)
    kernel = 1.0 * Matern(1.0, nu=1.5)
    exact = GaussianProcessRegressor(kernel, alpha=error**2, random_state=0).fit(X, y)
    assert [f.severity for f in exact.diagnose() if f.name == "variation of f"] == ["fine"]
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=error)
    (explained,) = (f.value for f in model.diagnose() if f.name == "explained variance")
    assert explained > 0.5


def test_scores_without_errors_name_a_cure_that_the_model_takes():
    X, y = np.arange(30.0)[:, None], np.sin(np.arange(30.0))
    model = AutoGaussianProcessRegressor(max_time=1, random_state=0).fit(X, y, y_std=0.1)
    with pytest.warns(UserWarning, match="takes y_std in fit only: judge rows without errors"):
        neg_log_predictive_density_scorer(model, X, y)
    with pytest.warns(UserWarning, match="Pass y_std"):
        neg_log_predictive_density_scorer(SVGPRegressor(max_iter=2).fit(X, y, y_std=0.1), X, y)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [predict_distribution, predict_std, predict_interval, sample_y])
def test_errors_are_not_those_of_transformed_targets(ask):
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = 100.0 * np.sin(X[:, 0])
    plain = SVGPRegressor(n_inducing=8, max_iter=2, random_state=0).fit(X, y)
    identity = TransformedTargetRegressor(plain).fit(X, y)
    scaled = TransformedTargetRegressor(plain, transformer=StandardScaler()).fit(X, y)
    with pytest.raises(ValueError, match=r"y_std must be None inside a TransformedTargetRegressor"):
        ask(scaled, X, y_std=5.0)
    if ask is predict_std:
        assert_allclose(ask(identity, X, y_std=5.0), ask(plain, X, y_std=5.0))


def test_the_default_warns_of_errors_in_another_unit():
    """It was silent, and sure of a constant."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    with pytest.warns(UserWarning, match="y_std is at least 50 at all rows"):
        AutoGaussianProcessRegressor(random_state=0).fit(X, y, y_std=50.0)


@pytest.mark.slow
def test_errors_in_another_unit_are_warned_of():
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    model = SVGPRegressor(n_inducing=8, max_iter=2, random_state=0)
    with pytest.warns(UserWarning, match=r"y_std is at least 50 at all rows, but the .* is 0\.7"):
        model.fit(X, np.sin(X[:, 0]), y_std=50.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "y_std is at least")
        model.fit(X, np.sin(X[:, 0]), y_std=0.7)
        model.fit(X, np.ones(30), y_std=0.7)
