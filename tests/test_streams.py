"""Streams may begin with a single row, and go on as if their first rows had come together."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import skgpstoch
from skgpstoch import (
    BSGDGaussianProcessRegressor,
    DeepGPRegressor,
    FITCRegressor,
    MinimaxGaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.estimators import streams
from skgpstoch.estimators.streams import BEGINNING
from skgpstoch.metrics import interval_coverage
from skgpstoch.training.loop import Trainer

FEW = {"n_inducing": 8, "random_state": 0}
MODELS = [
    SVGPRegressor(**FEW),
    SVGPRegressor(**FEW, target_transform="yeo-johnson"),
    SVGPRegressor(**FEW, likelihood="poisson"),
    SVGPClassifier(**FEW),
    FITCRegressor(**FEW),
    DeepGPRegressor(**FEW),
    SCGDGaussianProcessRegressor(hidden_layer_sizes=(4,), random_state=0),
    NNGPRegressor(1.0 * RBF(), max_iter=1, random_state=0),
    NNGPClassifier(1.0 * RBF(), max_iter=1, random_state=0),
]

NOISY = [
    {"solver": "collapsed"},
    {"solver": "natural"},
    {"likelihood": "student_t"},
    {"likelihood": "laplace"},
    {"noise": "input"},
]


BASIS = [
    SCGDGaussianProcessRegressor(max_iter=5, random_state=0),
    MinimaxGaussianProcessRegressor(max_iter=5, random_state=0),
    BSGDGaussianProcessRegressor(max_iter=5, random_state=0),
]


def is_classifier(model):
    return hasattr(model, "predict_proba")


@pytest.fixture(scope="module")
def rows(sine, counts):
    def of(model):
        X, y = sine
        if getattr(model, "likelihood", None) == "poisson":
            X, y, _ = counts
        return X, (y > 0.0 if is_classifier(model) else y)

    return of


def learn(model, X, y):
    options = {"classes": [False, True]} if is_classifier(model) else {}
    return model.partial_fit(X, y, **options)


def said(model, X):
    return model.predict_proba(X) if is_classifier(model) else model.predict(X, return_std=True)


@pytest.mark.parametrize("began", [False, True])
def test_rows_of_a_call_that_count_little_are_told_of(sine, began):
    """Light rows spoiled streams in silence; `fit` warns of them."""
    X, y = sine
    model = SVGPRegressor(n_inducing=5, random_state=0)
    if began:
        model.partial_fit(X[:100], y[:100])
    with pytest.warns(UserWarning, match="sums to 1 over the 40 rows of this call. A weight is"):
        model.partial_fit(X[:40], y[:40], sample_weight=np.full(40, 1 / 40))
    with warnings.catch_warnings(record=True, action="always") as told:
        model.partial_fit(X[:40], y[:40], sample_weight=np.full(40, 0.1))
    assert not any("of this call" in str(one.message) for one in told)


@pytest.mark.parametrize(
    "estimator",
    [
        SCGDGaussianProcessRegressor,
        BSGDGaussianProcessRegressor,
        MinimaxGaussianProcessRegressor,
    ],
)
def test_light_rows_do_not_replace_heavy_ones(estimator):
    """One call of 30 rows that count for one together erased all before (R² of .96 became 0)."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-2.0, 2.0, (480, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * generator.normal(size=480)
    model = estimator(random_state=0)
    for k in range(0, 150, 30):
        model.partial_fit(X[k : k + 30], y[k : k + 30])
    before = model.score(X[180:], y[180:])
    with pytest.warns(UserWarning, match="of this call"):
        model.partial_fit(X[150:180], y[150:180], np.full(30, 1 / 30))
    assert model.score(X[180:], y[180:]) > before - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("model", BASIS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("began", [False, True])
def test_an_interrupt_before_the_first_step_leaves_the_model(sine, monkeypatch, model, began):
    """It is not said to be kept; what a step had begun would spoil later pieces."""
    X, y = sine
    model = clone(model)
    model = model.fit(X, y) if began else model
    before = pickle.dumps(model.__dict__) if not began else model.predict(X)

    def interrupted(trainer, *batch):
        trainer.objective(*batch, trainer.generator)  # which changes averages
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch,
        skgpstoch.on_interrupt("keep"),
        warnings.catch_warnings(),
    ):
        patch.setattr(Trainer, "train_step", interrupted)
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[:40], y[:40])
    if began:
        assert_array_equal(model.predict(X), before)
    else:
        assert pickle.dumps(model.__dict__) == before
    assert np.isfinite(model.partial_fit(X[:40], y[:40]).predict(X)).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", BASIS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("order", ["fpcp", "fcpcp", "pcpcp"])
def test_streams_and_conditioning_take_turns(sine, model, order):
    """Fit, partial_fit and condition_on, in these orders."""
    (X, y), model = sine, clone(model)
    for step in order:
        learn_rows = {"f": model.fit, "p": model.partial_fit}.get(step)
        model = model.condition_on(X[:5], y[:5]) if step == "c" else learn_rows(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.abs(mean - y).mean() < 0.5
    assert np.isfinite(std).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}-{m.kernel}")
@slow_cases("DeepGP", "FITC", "NNGPClassifier", "SVGPRegressor-None1")
def test_single_rows_are_a_chunk(model, rows):
    X, y = rows(model)
    single, together = copy.deepcopy(model), copy.deepcopy(model)
    for i in range(BEGINNING + 1):
        learn(single, X[i : i + 1], y[i : i + 1])
        assert np.isfinite(said(single, X[:30])).all()
    learn(learn(together, X[:BEGINNING], y[:BEGINNING]), X[i:][:1], y[i:][:1])
    assert_array_equal(said(single, X), said(together, X))
    is_over = not isinstance(model, NNGPRegressor | NNGPClassifier)  # those wait for 160 rows
    assert hasattr(single, "_beginning") != is_over


def test_after_one_row_it_is_uncertain(rows):
    """Of what it has not seen: y has no scale yet."""
    for model in (SVGPRegressor(**FEW), NNGPRegressor(random_state=0)):
        mean, std = model.partial_fit([[0.0, 0.0]], [7.0]).predict([[30.0, 0.0]], return_std=True)
        assert mean == pytest.approx(7.0, abs=1e-6)
        assert std > 0.5


def test_weights_and_errors_of_some_chunks(rows):
    """Rows without a weight count once, and rows without an error have none."""
    X, y = rows(MODELS[0])
    weight, error = np.arange(1.0, 7.0), np.full(6, 0.3)
    model = SVGPRegressor(**FEW).partial_fit(X[:5], y[:5])
    model.partial_fit(X[5:11], y[5:11], weight, y_std=error)
    model.partial_fit(X[11:BEGINNING], y[11:BEGINNING])
    n_rest = BEGINNING - 11
    weight, error = (
        np.concatenate([np.full(5, usual), given, np.full(n_rest, usual)])
        for given, usual in ((weight, 1.0), (error, 0.0))
    )
    whole = SVGPRegressor(**FEW)
    whole.partial_fit(X[:BEGINNING], y[:BEGINNING], weight, y_std=error)
    assert_array_equal(said(model, X), said(whole, X))


def test_a_beginning_of_counts_with_exposures_is_saved(rows, tmp_path):
    X, y = rows(MODELS[0])[0], np.arange(len(rows(MODELS[0])[0])) % 4
    exposure = np.linspace(0.5, 2.0, len(X))
    model = SVGPRegressor(**FEW, likelihood="poisson")
    model.partial_fit(X[:3], y[:3], exposure=exposure[:3]).save(tmp_path / "model")
    loaded = skgpstoch.load(tmp_path / "model")
    for each in (model, loaded):
        each.partial_fit(X[3:30], y[3:30], exposure=exposure[3:30])
    assert_array_equal(loaded.predict(X[:5]), model.predict(X[:5]))


@pytest.mark.slow
def test_a_beginning_is_saved_and_ends_with_a_fit(rows, tmp_path):
    X, y = rows(MODELS[0])
    model = SVGPRegressor(**FEW).partial_fit(X[:3], y[:3])
    model.save(tmp_path / "model.safetensors")
    expected = said(copy.deepcopy(model).partial_fit(X[3:30], y[3:30]), X)
    for other in (
        pickle.loads(pickle.dumps(model)),
        skgpstoch.load(tmp_path / "model.safetensors"),
    ):
        assert_array_equal(said(other.partial_fit(X[3:30], y[3:30]), X), expected)
    before = said(model.fit(X, y), X)
    assert_array_equal(said(SVGPRegressor(**FEW).fit(X, y), X), before)
    assert not hasattr(model, "_beginning")


def test_a_first_row_of_one_class_needs_the_others(rows):
    X, y = rows(SVGPClassifier())
    with pytest.raises(ValueError, match=r"one class.* in its first partial_fit, with classes="):
        SVGPClassifier(**FEW).partial_fit(X[:1], y[:1])


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.1, 1.0])
@pytest.mark.parametrize("params", NOISY, ids=str)
def test_a_stream_learns_its_noise(params, noise):
    """Gradients alone are at a noise of .4 and .2 after as many rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (4000, 1))
    y = np.sin(2 * X[:, 0]) + noise * rng.standard_normal(len(X))
    model = SVGPRegressor(n_inducing=20, random_state=0, **params)
    for piece in np.split(np.arange(2000), 10):
        model.partial_fit(X[piece], y[piece])
    share = interval_coverage(y[2000:], model.predict_interval(X[2000:], 0.9))
    if params.keys() == {"solver"}:
        assert math.sqrt(model.noise_variance_) == pytest.approx(noise, rel=0.3)
        assert 0.86 < share < 0.96
    else:  # heavier tails than the noise has, or a function of its own
        assert 0.86 < share < 0.99


@pytest.mark.parametrize(
    "model",
    [
        skgpstoch.DLMRegressor(n_inducing=10),
        pytest.param(SVGPRegressor(n_inducing=10, solver="adam"), marks=pytest.mark.slow),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.slow
def test_first_rows_are_learned_where_gradients_learn_q(model):
    """After one pass deviations were four times too large, and after 60 pieces twice."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (300, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(300)
    single = clone(model).set_params(random_state=0)
    model = clone(single).partial_fit(X[:200], y[:200])
    for _ in range(3):
        model.partial_fit(X[:20], y[:20])
    assert 0.2 < model.predict_std(X[200:]).mean() < 0.5
    for i in range(BEGINNING):  # only the last one of these learns for long
        single.partial_fit(X[i : i + 1], y[i : i + 1])
    assert BEGINNING < len(single.loss_curve_) <= BEGINNING - 1 + streams.FIRST_STEPS


def test_outputs_have_noises_of_their_own():
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(-3, 3, (1000, 1)), np.array([0.1, 1.0])
    y = np.sin(2 * X) + noise * rng.standard_normal((len(X), 2))
    model = SVGPRegressor(n_inducing=20, random_state=0)
    for piece in np.split(np.arange(1000), 10):
        model.partial_fit(X[piece], y[piece])
    assert_allclose(np.sqrt(model.noise_variance_), noise, rtol=0.3)


def test_a_large_piece_tells_all_and_a_row_nearly_nothing():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (3000, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(len(X))
    model = SVGPRegressor(n_inducing=20, random_state=0).partial_fit(X[:1000], y[:1000])
    before = model.noise_variance_
    row = copy.deepcopy(model).partial_fit(X[1000:1001], y[1000:1001] + 3.0)
    assert row.noise_variance_ == pytest.approx(before, rel=0.3)
    assert row.noise_variance_ > before
    many = model.partial_fit(X[1000:], y[1000:] + rng.standard_normal(2000))
    assert many.noise_variance_ == pytest.approx(1.09, rel=0.1)


def test_a_stream_of_weighted_rows_learns_the_noise_of_repeated_ones():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    y = np.sin(2 * X[:, 0]) + rng.standard_normal(len(X))
    twice, weighted = (SVGPRegressor(n_inducing=20, random_state=0) for _ in range(2))
    for piece in (slice(0, 100), slice(100, 200)):
        twice.partial_fit(np.repeat(X[piece], 2, 0), np.repeat(y[piece], 2))
        weighted.partial_fit(X[piece], y[piece], np.full(100, 2.0))
    assert_allclose(weighted.noise_variance_, twice.noise_variance_, rtol=1e-2)


def test_fixed_noise_stays_as_it_is():
    X, y = np.linspace(-3, 3, 60)[:, None], np.random.default_rng(0).standard_normal(60)
    kernel = ConstantKernel() * RBF() + WhiteKernel(0.04, "fixed")
    model = SVGPRegressor(kernel, n_inducing=10, normalize_y=False, random_state=0)
    for piece in (slice(0, None, 2), slice(1, None, 2)):
        model.partial_fit(X[piece], y[piece])
    assert_allclose(model.noise_variance_, 0.04)


def test_a_stream_keeps_its_latest_losses(sine, monkeypatch):
    monkeypatch.setattr(streams, "LONGEST_CURVE", 3)
    X, y = sine
    model = SVGPRegressor(**FEW)
    for start in range(5):
        model.partial_fit(X[20 * start : 20 * start + 20], y[20 * start : 20 * start + 20])
        assert len(model.loss_curve_) == min(start + 1, 3)


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        (SVGPRegressor(**FEW), {"noise": "input"}),
        (NNGPRegressor(1.0 * RBF(), max_iter=1, random_state=0), {"mean": "zero"}),
        (NNGPRegressor(1.0 * RBF(), max_iter=1, random_state=0), {"activation": "tanh"}),
    ],
    ids=["noise", "mean", "activation"],
)
def test_another_model_is_refused(model, changed):
    X = np.linspace(-3, 3, 30)[:, None]
    y = X[:, 0] + np.random.default_rng(0).standard_normal(30)
    model = copy.deepcopy(model).partial_fit(X, y)
    with pytest.raises(ValueError, match=f"{next(iter(changed))}=.* needs a different one"):
        model.set_params(**changed).partial_fit(X, y)


@pytest.mark.slow
def test_steps_of_a_stream_weigh_its_light_rows():
    """Features, averages and F̃⁻¹ move by one share, also where a fit came before."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-2.0, 2.0, (60, 2))
    model = SCGDGaussianProcessRegressor(hidden_layer_sizes=(200,), max_iter=2, random_state=0)
    model.fit(X, X[:, 0])
    rates = []
    for weight in (1.0, 0.1):
        again = copy.deepcopy(model).partial_fit(X[:20], X[:20, 0], np.full(20, weight))
        objective = again._stream.objective
        rates.append(objective.rate)
        assert objective.stream_rate(20) == pytest.approx(objective.running.rate(20, weight))
        assert objective.running.rows_per_weight == pytest.approx(
            1.0 - rates[-1] + rates[-1] / weight
        )
    assert rates[1] == pytest.approx(0.1 * rates[0] / (1.0 - 0.9 * rates[0]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 20, 50])
def test_neighbours_learn_their_noise_from_160_rows(size):
    """That of the first 20 stayed: 90 % intervals of five streams held .06 to .93, in silence."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (200, 2))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(200)
    model = NNGPRegressor(random_state=0)
    for i in range(0, 200, size):
        model.partial_fit(X[i : i + size], y[i : i + size])
    assert model.noise_variance_ == pytest.approx(0.04, rel=0.5)  # it was .0002
    assert not hasattr(model, "_beginning")
    assert len(model.X_train_) == 200


@pytest.mark.slow
def test_so_they_learn_networks():
    """Those of the first 20 stayed: 90 % intervals of five streams held .01 to .93, in silence."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (161, 2))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(161)
    model = NNGPRegressor(hidden_layer_sizes=(4,), max_iter=1, random_state=0)
    of_all = clone(model).fit(X[:160], y[:160]).condition_on(X[160:], y[160:])
    for piece in (slice(0, 30), slice(30, 70), slice(70, 160), slice(160, 161)):
        model.partial_fit(X[piece], y[piece])
    assert_array_equal(said(model, X), said(of_all, X))
