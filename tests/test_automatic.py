"""The recommended defaults: what they try, what they keep, and what they say of it."""

import copy
import functools
import pickle
import re
import time
import warnings
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import few_rows, sklearn_checks
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from shared import Names
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import KFold

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    NNGPClassifier,
    NNGPRegressor,
    QSGPRegressor,
    on_interrupt,
)
from skgpstoch.data.deadline import Deadline
from skgpstoch.data.equal_rows import twins
from skgpstoch.data.held_out import HeldOutPredictions
from skgpstoch.data.rows import Data
from skgpstoch.methods.automatic import (
    automatic,
    automatic_classifier,
    automatic_regressor,
    neighbours,
    process_fit,
    race,
)
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.held_out_errors import of_sizes
from skgpstoch.methods.automatic.neighbours import (
    NEIGHBOURS,
    input_units,
    of_latent_neighbours,
)
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.methods.automatic.race import Floor, Judged, of_floor, of_numbers
from skgpstoch.training.loop import Trainer
from skgpstoch.training.recipes.error_findings import nearest_rows
from skgpstoch.training.recipes.held_out import of_held_out_counts

pytestmark = pytest.mark.usefixtures("one_kernel")

BOTH = [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier]
SMALL = {"hidden_layer_sizes": (16,), "n_estimators": 2, "max_iter": 5, "calibrate": False}
SMALL_OF_CLASSES = {
    "hidden_layer_sizes": (8,),
    "n_estimators": 1,
    "max_iter": 20,
    "learning_rate_init": 0.03,  # in as few steps
}


def small_networks(**params):
    return DeepKernelEnsembleRegressor(**{**params, **SMALL})


def small_networks_of_classes(**params):
    return DeepKernelEnsembleClassifier(**{**SMALL_OF_CLASSES, **params})


@pytest.fixture
def small(monkeypatch):
    """Networks of few units and steps, and neighbours of few steps."""
    of_few = functools.partial(NNGPRegressor, n_neighbors=8, max_iter=2)
    monkeypatch.setattr(automatic_regressor, "NNGPRegressor", of_few)
    monkeypatch.setattr(neighbours, "CHOOSES_ITSELF", {"neighbours": 1.0 * sk.Matern(nu=1.5)})
    monkeypatch.setattr(automatic_regressor, "DeepKernelEnsembleRegressor", small_networks)
    monkeypatch.setattr(
        automatic_classifier, "DeepKernelEnsembleClassifier", small_networks_of_classes
    )


@pytest.fixture(scope="module")
def step():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    return X, np.sign(X[:, 0]) + 0.5 * X[:, 0] + 0.2 * rng.standard_normal(200)


@pytest.fixture(scope="module")
def few(step):
    """A fit of a process alone."""
    X, y = (a[:60] for a in step)
    return AutoGaussianProcessRegressor(random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def mixed(step):
    """A fit of a process and networks, both of which count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic_regressor, "DeepKernelEnsembleRegressor", small_networks)
        patch.setattr(race, "LEAST_GAIN", -np.inf)
        patch.setattr(race, "LEAST_WEIGHT", 0.0)
        return AutoGaussianProcessRegressor(random_state=0).fit(*step)


@pytest.mark.slow
def test_means_of_skewed_targets_are_warned_of(small, monkeypatch):
    monkeypatch.setitem(SMALL, "calibrate", True)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 1))
    y = np.exp(3.0 * X[:, 0] + 1.2 * rng.standard_normal(400))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic_regressor, "point_weights", lambda errors, weights, *_: weights)
        with pytest.warns(UserWarning, match=r"too low on average.* Set target_transform='log'"):
            low = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)  # whose means are weighed
    assert low.predict(X).mean() < model.predict(X).mean() < 1.1 * y.mean()
    model = AutoGaussianProcessRegressor(target_transform="log", random_state=0)
    model.fit(X[:200], y[:200])
    (found,) = [finding for finding in model.diagnose() if finding.name == "mean error"]
    assert found.severity == "fine"


@pytest.mark.parametrize("name", ["y_std", "exposure"])
def test_what_an_estimator_does_not_take_is_taken_by_those_named(name):
    with pytest.raises(TypeError, match=f"'{name}': its parameters are") as told:
        QSGPRegressor().fit(np.eye(3), np.arange(3), **{name: 1.0})
    named = re.findall(r"\w+Regressor\b", str(told.value))
    assert {"DeepKernelEnsembleRegressor", "DLMRegressor", "SVGPRegressor"} <= set(named)
    for each in set(named) - {"QSGPRegressor", "GaussianProcessRegressor"}:
        assert name in signature(getattr(skgpstoch, each).fit).parameters


@pytest.mark.slow
def test_a_model_of_counts_is_saved(small, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = rng.poisson(np.exp(X[:, 0] / 2))
    model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(X, y)
    model.save(tmp_path / "counts.safetensors")
    loaded = skgpstoch.load(tmp_path / "counts.safetensors")
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert "NaN" not in str(loaded.report())


@pytest.mark.parametrize("c", [1e200, 1e300])
@by_default("300")
def test_large_constants_have_small_deviations(c):
    """Their mean over draws is rounded by 1e184 or more, whose square is infinite."""
    X = np.linspace(0.0, 1.0, 60)[:, None]
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, np.full(60, c))
    mean, std = model.predict(X, return_std=True)
    assert_array_equal(mean, c)
    assert_array_equal(model.predict(X), c)
    assert (std < 1.0).all()
    assert np.isfinite(model.predict_distribution(X).crps(c)).all()


def test_counts_that_networks_predict_too_vaguely():
    mean, std = np.full((60, 1), 1e9), np.full((60, 1), 1e7)
    of_rows = (np.arange(60), np.zeros(60), np.full((60, 1), 1e4), std, std, mean, np.nan * mean)
    for scale, severity in ((1.0, "problem"), (1e-3, "fine")):
        held_out = HeldOutPredictions(*of_rows)._replace(std=scale * std)
        (found,) = of_held_out_counts(held_out, np.ones(60))
        assert found.severity == severity
        assert ("intervals are too wide" in found.text) == (severity == "problem")


# ---- scikit-learn ------------------------------------------------------------------------------


@few_rows
@pytest.mark.filterwarnings("ignore:A linear model predicts rows")  # than such short training
@pytest.mark.filterwarnings("ignore:y has two values")
@sklearn_checks([AutoGaussianProcessRegressor(), AutoGaussianProcessClassifier()])
def test_checks_of_automatic_estimators(estimator, check, monkeypatch, small, request):
    scored = check.func.__name__ in ("check_classifiers_train", "check_regressors_train")
    if not scored:
        request.getfixturevalue("few_iterations")
        monkeypatch.setitem(SMALL, "max_iter", 1)
        monkeypatch.setitem(SMALL_OF_CLASSES, "max_iter", 1)
        of_one = functools.partial(ExactProcessRegressor, kernels=["linear", "constant"])
        monkeypatch.setattr(automatic_regressor, "ExactProcessRegressor", of_one)
        of_line = functools.partial(ExactProcessClassifier, kernels=["linear"])
        monkeypatch.setattr(automatic_classifier, "ExactProcessClassifier", of_line)
    check(estimator)


@pytest.mark.slow
def test_callbacks_of_the_automatic_choice(step, monkeypatch, small):
    pytest.importorskip("sklearn.callback")
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    names = Names()
    model = AutoGaussianProcessRegressor(random_state=0).set_callbacks(names).fit(*step)
    assert names.begun[0] == names.ended[-1] == ("AutoGaussianProcessRegressor", "fit")
    assert sorted(names.begun) == sorted(names.ended)
    assert names.begun.count(("DeepKernelEnsembleRegressor", "fit")) == 2  # scouts, and all
    plain = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert_array_equal(model.predict(step[0]), plain.predict(step[0]))


# ---- models and their weights ------------------------------------------------------------------


def test_few_rows_have_a_process_alone(few):
    assert list(few.estimators_) == ["process"]
    assert few.scores_["model"] == ["process", "linear"]
    assert few.scores_["weight"] == [1.0, 0.0]
    assert_array_equal(few.weights_, [1.0])
    process = few.estimators_["process"]
    assert_allclose(few.scores_["score"][0], process.held_out_.log_density.mean())
    assert few.budget_ is None


def noisy_by_half(noise, n=180):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    return X, np.sin(X[:, 0]) + np.where(X[:, 1] > 0.0, noise, 0.1) * rng.standard_normal(n)


@pytest.mark.parametrize("noise", [1.0, 0.1])
def test_few_rows_have_networks_where_sizes_of_errors_vary(noise, small):
    """A process has one noise for all: 90 % intervals of the noisy half held 74 %, in silence."""
    X, y = noisy_by_half(noise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    tried = [name for name in model.scores_["model"] if name != "linear"]
    assert tried == (["process", "networks"] if noise == 1.0 else ["process"])
    is_told = any("Errors are larger in some regions of X" in str(w.message) for w in caught)
    assert is_told == (noise == 1.0 and list(model.estimators_) == ["process"])


@pytest.mark.slow
def test_networks_learn_where_errors_are_large():
    X, y = noisy_by_half(1.0)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    (found,) = (f for f in model.diagnose() if f.name == "sizes of errors")
    assert model.weights_[1] > 0.5
    assert found.severity == "fine"
    std = model.predict_std([[0.0, 1.0], [0.0, -1.0]])
    assert std[0] > 2.0 * std[1]


@pytest.mark.parametrize("automatic", BOTH)
@pytest.mark.parametrize("kind", ["numbered", "timed", "rounded"])
@slow_cases("^timed-AutoGaussianProcessRegressor$")
def test_rows_that_come_twice_are_told(automatic, kind, small):
    """They predicted each other: 90 % intervals held .48 to .67, in silence."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(60)
    twice = np.r_[np.arange(60), np.arange(30)]
    frame, y = pd.DataFrame(X[twice], columns=["a", "b"]), y[twice]
    numbers = np.arange(90)
    if kind == "numbered":
        frame["row"] = numbers
    elif kind == "timed":
        frame["row"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(numbers, unit="min")
    else:
        frame = pd.concat([frame[:60], frame[60:].round(9)])
        y = np.r_[y[:60], y[60:].round(9)]
    if automatic is AutoGaussianProcessClassifier:
        y = np.where(y > 0.0, "up", "down")
    model = automatic(random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(frame, y)
    (text,) = [str(each.message) for each in said if "have a twin" in str(each.message)]
    assert text.startswith("67% of the rows have a twin")
    assert ("but 'row'" in text) == (kind != "rounded")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(frame, y, groups=twice)
        model.fit(frame[:60], y[:60])
    assert not any("twin" in str(each.message) for each in said)


def test_rows_of_a_grid_are_no_twins():
    """Few values agree by chance, and those of y, too."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (200, 4)).astype(float)
    each = [slice(j, j + 1) for j in range(4)]
    for y in (rng.standard_normal((200, 1)), rng.integers(0, 2, (200, 1))):
        assert twins(Data(X, y), each) == (0.0, None)
    X = rng.standard_normal((200, 4))
    assert twins(Data(X, rng.integers(0, 2, (200, 1))), each) == (0.0, None)
    assert twins(Data(np.r_[X, X], np.zeros((400, 1))), each) == (0.0, None)  # exact copies


def test_twins_are_more_than_chance_would_make():
    """Visits of one patient with a rare outcome are no twins, nor are a few rows."""
    rng = np.random.default_rng(0)
    patients, y = rng.standard_normal((100, 3)), rng.standard_normal((100, 1))
    X = np.column_stack([np.repeat(patients, 2, 0), rng.standard_normal(200)])
    each = [slice(j, j + 1) for j in range(4)]
    assert twins(Data(X, np.repeat(y, 2, 0)), each) == (1.0, 3)
    rare = (rng.random((200, 1)) < 0.06).astype(float)
    assert twins(Data(X, rare), each) == (0.0, None)
    once = np.r_[X[::2], X[1:9:2]], np.r_[y, y[:4]]
    assert twins(Data(*once), each) == (0.0, None)
    once = np.r_[X[::2], X[1:13:2]], np.r_[y, y[:6]]
    assert twins(Data(*once), each)[0] == pytest.approx(12 / 106)
    other = np.r_[np.ones(100), np.full(6, 2.0)][:, None]
    assert twins(Data(*once, exposure=other), each) == (0.0, None)


@pytest.mark.parametrize(("spread", "severity"), [(1.0, "problem"), (30.0, "note"), (0.0, "fine")])
def test_sizes_of_errors_at_near_rows(spread, severity):
    """They are logarithms, of errors in predicted deviations."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-1.0, 1.0, (100, 1)), axis=0)
    size = np.where(X > 0.0, 1.0, 0.1) if spread else np.ones((100, 1))
    error = size * rng.standard_normal((100, 1))
    one = np.ones((100, 1))
    mean = spread * rng.standard_normal((100, 1))
    held_out = HeldOutPredictions(np.arange(100), one[:, 0], error, 0.7 * one, one, mean, one)
    found = of_sizes(held_out, X, np.ones(100))
    assert found.severity == severity
    assert of_sizes(held_out, X, (X[:, 0] > 0.0).astype(float)).severity == "fine"  # of one size
    known = held_out._replace(std=size)
    assert of_sizes(known, X, np.ones(100)).severity == "fine"
    first, second = nearest_rows(X)
    z = np.log(np.maximum(np.abs(error / 0.7), 0.05))
    z -= z.mean()
    a, b = z[first, 0], z[second, 0]
    assert found.value == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.slow
def test_networks_and_process_are_mixed(mixed, step):
    X, y = step
    assert mixed.scores_["model"] == ["process", "networks", "linear"]
    assert list(mixed.estimators_) == ["process", "networks"]
    assert_allclose(mixed.weights_.sum(), 1.0)
    assert_array_equal(mixed.scores_["weight"], [*mixed.weights_, 0.0])
    parts = [model.log_predictive_density(X, y) for model in mixed.estimators_.values()]
    expected = np.log(mixed.weights_ @ np.exp(parts))
    plain = copy.copy(mixed)
    plain.row_weights_ = None
    assert_allclose(plain.log_predictive_density(X, y), expected)
    assert np.average(mixed.log_predictive_density(X, y) - expected) > -0.05
    interval = mixed.predict_interval(X, 0.9)
    assert_allclose(mixed.predictive_cdf(X, interval[:, 1]), 0.95, atol=1e-6)
    assert mixed.sample_y(X[:3], 4).shape == (3, 4)


@pytest.mark.slow
def test_scouts_that_add_nothing_are_not_followed(step, monkeypatch, small):
    fits = []
    original = DeepKernelEnsembleRegressor.fit
    spy = lambda self, *args, **kw: fits.append(self.get_params()) or original(self, *args, **kw)  # noqa: E731
    monkeypatch.setattr(DeepKernelEnsembleRegressor, "fit", spy)
    monkeypatch.setattr(race, "LEAST_GAIN", np.inf)
    model = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert model.scores_["model"] == ["process", "networks", "linear"]
    assert model.scores_["weight"] == [1.0, 0.0, 0.0]
    assert list(model.estimators_) == ["process"]
    (scout,) = fits
    assert scout["n_estimators"] == automatic.SCOUTS
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert len(fits) == 3
    assert fits[1] == scout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Predictions are too")  # of networks of a few steps
def test_scouts_tell_how_long_networks_are_trained(step, monkeypatch, small):
    """If there is time, whether there is a process or not; for longer where noise is small."""
    fits = []
    original = DeepKernelEnsembleRegressor.fit
    spy = lambda self, *args, **kw: fits.append(self.get_params()) or original(self, *args, **kw)  # noqa: E731
    monkeypatch.setattr(DeepKernelEnsembleRegressor, "fit", spy)
    monkeypatch.setattr(automatic_regressor, "FEWEST_FOR_LONGER", 200)
    monkeypatch.setattr(automatic_regressor, "MOST_FOR_PROCESS", 100)
    monkeypatch.setattr(automatic_regressor, "MOST_ALONE", 100)
    monkeypatch.setattr(automatic_regressor, "of_neighbours", lambda *_: [])
    X, y = step
    usual, longer = SMALL["max_iter"], automatic_regressor.LONGER * SMALL["max_iter"]
    shorter = round(automatic_regressor.SHORTER * usual)
    never, always = -np.inf, np.inf
    monkeypatch.setattr(automatic_regressor, "NOISY", always)
    cases = [(never, always, longer), (always, never, usual), (always, always, shorter)]
    for clear, late_gain, max_iter in cases:
        monkeypatch.setattr(automatic_regressor, "CLEAR", clear)
        monkeypatch.setattr(automatic_regressor, "LATE_GAIN", late_gain)
        AutoGaussianProcessRegressor(random_state=0).fit(X, y)
        assert fits.pop()["max_iter"] == max_iter
        assert fits.pop()["n_estimators"] == automatic.SCOUTS
    AutoGaussianProcessRegressor(max_time=15, random_state=0).fit(X, y)
    assert len(fits) == 1
    monkeypatch.setattr(automatic_regressor, "FEWEST_FOR_LONGER", 201)
    monkeypatch.setattr(automatic_regressor, "CLEAR", never)
    AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    assert fits.pop()["max_iter"] == shorter
    monkeypatch.setattr(automatic_regressor, "MOST_FOR_SCOUTS", 199)
    fits.clear()
    AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    assert len(fits) == 1


@pytest.mark.parametrize(("spread", "is_longer"), [(0.1, True), (0.25, False)])
@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_noise_is_small_beside_the_target(spread, is_longer, unit):
    """Whatever the units: normal errors of a tenth have .9 nats, of a quarter 0."""
    rng = np.random.default_rng(0)
    y = unit * rng.standard_normal((400, 2))
    error = spread * unit
    densities = np.full(400, -2.0 * np.log(error) - np.log(2.0 * np.pi) - 1.0)
    held_out = HeldOutPredictions(np.arange(400), densities, *[y] * 5)
    fit = SimpleNamespace(held_out_=held_out, validation_scores_=[9.0, 8.0, 1.0])
    scout = race.Judged("networks", fit, 1.0)
    model = DeepKernelEnsembleRegressor(max_iter=7)
    found = automatic_regressor.as_scouted(model, scout, Data(y, y))
    assert found.max_iter == (14 if is_longer else 7)


@pytest.mark.parametrize(
    ("scores", "max_iter"),
    [
        ([3.0, 2.0, 1.95, 1.9], 6),  # .05 for each of two outputs in the second half
        ([3.0, 2.0, 2.1, 2.2], 6),  # overfitted
        ([3.0, 2.0, 1.9, 1.7], 10),
        ([3.0], 6),
    ],
)
def test_networks_are_not_trained_long_if_a_scout_gained_little_at_last(scores, max_iter):
    y = np.random.default_rng(0).standard_normal((400, 2))
    held_out = HeldOutPredictions(np.arange(400), np.full(400, -9.0), *[y] * 5)
    fit = SimpleNamespace(held_out_=held_out, validation_scores_=scores)
    model = DeepKernelEnsembleRegressor(max_iter=10)
    scout = race.Judged("networks", fit, 1.0)
    assert automatic_regressor.as_scouted(model, scout, Data(y, y)).max_iter == max_iter


@pytest.mark.slow
def test_a_model_that_adds_nothing_has_no_gain(step):
    X, y = (a[:50] for a in step)
    process = ExactProcessRegressor(random_state=0).fit(X, y)
    data = Data(X, y)
    one = race.Judged("one", process, 0.0)
    assert_allclose(race.gain_of(one, [one], data), 0.0, atol=1e-9)
    line = ExactProcessRegressor(kernels=["constant"], random_state=0).fit(X, y)
    assert race.gain_of(one, [race.Judged("line", line, 0.0)], data) > 0.5


class Held:
    """Log densities of some rows, as a fitted model has them."""

    def __init__(self, **densities):
        self.densities = densities

    def log_densities(self, n_rows):
        found = np.full(n_rows, np.nan)
        found[self.densities["rows"]] = self.densities["values"]
        return found


def judged(values, rows=(0, 1, 2), **budget):
    held_out = Held(rows=list(rows), values=values)
    return race.Judged("networks", SimpleNamespace(held_out_=held_out, budget_=budget), 1.0)


def test_scouts_stay_where_time_left_their_successors_worse():
    scout = judged([-1.0, -1.0, -1.0], n_steps=160, all_steps=160, all_estimators=2, is_enough=True)
    cut = {"n_steps": 27, "all_steps": 650, "all_estimators": 8, "is_enough": False}
    y = np.zeros(4)
    data = Data(y[:, None], y)
    better, worse = judged([-0.9, -1.2, -0.8], **cut), judged([-0.9, -1.3, -0.9], **cut)
    assert race.better_of(None, worse, data) is worse
    whole = judged([-0.9, -1.3, -0.9], **(cut | {"is_enough": True}))
    assert race.better_of(scout, whole, data) is whole  # as it is without a limit
    assert race.better_of(scout, better, data) is better
    kept = race.better_of(scout, worse, data)
    assert kept.model is scout.model
    assert kept.seconds == 2.0
    expected = {"n_steps": 160, "all_steps": 650, "all_estimators": 8, "is_enough": False}
    assert kept.model.budget_ == expected
    others = judged([9.0, -0.9, -1.3], rows=(3, 0, 1), **cut)  # row 3 was not judged by scouts
    assert race.better_of(scout, others, data).model is scout.model
    unjudged = judged([], rows=(), **cut)
    assert race.better_of(scout, unjudged, data) is unjudged
    weighted = Data(y[:, None], y, np.array([9.0, 1.0, 1.0, 1.0]))
    assert race.better_of(scout, worse, weighted) is worse


@pytest.mark.slow
def test_more_rows_have_neighbours_and_networks(step, monkeypatch, small):
    monkeypatch.setattr(automatic_regressor, "MOST_FOR_PROCESS", 100)
    monkeypatch.setattr(automatic_regressor, "MOST_ALONE", 100)
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    monkeypatch.setattr(race, "LEAST_WEIGHT", 0.0)
    model = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert list(model.estimators_) == ["neighbours", "neighbours (rough)", "networks"]
    for found in (model.estimators_[name].held_out_ for name in NEIGHBOURS.values()):
        assert_array_equal(found.rows, np.arange(200))  # each predicted from the others
    again = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert_array_equal(model.predict(step[0]), again.predict(step[0]))


def test_levels_of_a_category_have_one_unit():
    """That of all of them, so that rare levels are no farther from others."""
    X = np.column_stack([np.eye(3)[[0, 0, 0, 0, 0, 0, 0, 1, 1, 2]], np.arange(10.0)])
    units = input_units(Data(X, X[:, 0]), np.array([0, 0, 0, 1]))
    assert_allclose(units[:3], np.sqrt((X[:, :3].std(0) ** 2).sum()))
    assert_allclose(units[3], X[:, 3].std())


def test_rows_of_no_weight_decide_nothing(few, step):
    """Sixty rows have a process alone, and with 140 of weight 0 they have the same."""
    X, y = step
    weight = (np.arange(200) < 60).astype(float)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, sample_weight=weight)
    assert list(model.estimators_) == ["process"]
    assert_array_equal(model.predict_std(X), few.predict_std(X))


@pytest.mark.slow
def test_a_row_of_weight_two_is_the_row_twice(step):
    X, y = (a[:50] for a in step)
    twice = AutoGaussianProcessRegressor(random_state=0).fit(np.r_[X, X], np.r_[y, y])
    weighted = AutoGaussianProcessRegressor(random_state=0).fit(X, y, sample_weight=np.full(50, 2))
    assert_array_equal(weighted.predict_std(X), twice.predict_std(X))


def test_units_and_order_change_nothing(few, step):
    X, y = (a[:60] for a in step)
    order = np.random.default_rng(1).permutation(60)
    other = clone(few).fit(1000.0 * X[order] - 5.0, 4.0 - 0.01 * y[order])
    mean, std = few.predict(X, return_std=True)
    found, found_std = other.predict(1000.0 * X - 5.0, return_std=True)
    assert_allclose((4.0 - found) / 0.01, mean, atol=1e-3)
    assert_allclose(found_std / 0.01, std, rtol=1e-3)


def test_one_gross_target_ruins_nothing(few, step):
    X, y = (a[:60] for a in step)
    spoilt = clone(few).fit(X, np.where(np.arange(60) == 7, 1e6, y))
    others = np.arange(60) != 7
    assert np.abs(spoilt.predict(X) - few.predict(X))[others].max() < 0.5
    assert np.median(spoilt.predict_std(X)) < 3.0 * np.median(few.predict_std(X))


@pytest.mark.parametrize("cls", BOTH)
@by_default("Regressor")
def test_of_very_few_rows_there_is_a_warning(cls):
    X = np.arange(20.0)[:, None]
    y = np.arange(20) % (2 if cls is AutoGaussianProcessClassifier else 3) + 1
    cls(random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="19 rows are too few to learn a kernel"):
        cls(random_state=0).fit(X[:19], y[:19])


@pytest.mark.slow
def test_two_outputs(step):
    X, y = (a[:60] for a in step)
    both = np.stack([y, -y], 1)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, both)
    assert model.predict_interval(X).shape == (60, 2, 2)
    assert model.predictive_cdf(X, both).shape == (60, 2)
    assert set(model.report().calibration["output"]) == {0, 1}


# ---- time --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cls", BOTH)
@by_default("Regressor")
def test_networks_have_what_is_left_of_the_time(cls, step, monkeypatch, small):
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    monkeypatch.setattr(race, "LEAST_WEIGHT", 0.0)
    monkeypatch.setattr(automatic_classifier, "FEWEST_OF_CLASSES", 200)
    monkeypatch.setattr(automatic_classifier, "LEAST_GAIN_OF_CLASSES", -np.inf)
    X, y = step
    y = y if cls is AutoGaussianProcessRegressor else y > 0
    model = cls(max_time=600, random_state=0).fit(X, y)
    networks = model.estimators_["networks"]
    assert 500 < networks.max_time < 600
    assert model.budget_ == networks.budget_
    assert model.budget_["is_enough"]


@pytest.mark.slow
def test_an_interrupt_keeps_the_models_before(step, monkeypatch, few):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(DeepKernelEnsembleRegressor, "fit", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted; the model does without networks"):
        model = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert list(model.estimators_) == ["process"]
    monkeypatch.setattr(ExactProcessRegressor, "fit", interrupted)
    other = clone(few)
    with pytest.raises(KeyboardInterrupt):
        other.fit(*step)
    assert not hasattr(other, "estimators_")


def test_an_interrupt_within_processes_is_told_once(step, monkeypatch):
    original, seen = process_fit.search, []

    def interrupted(objective, start):
        seen.append(objective)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return original(objective, start)

    monkeypatch.setattr(process_fit, "search", interrupted)
    of_two = functools.partial(ExactProcessRegressor, kernels=["rbf", "linear"])
    monkeypatch.setattr(automatic_regressor, "ExactProcessRegressor", of_two)
    with on_interrupt("keep"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert list(model.estimators_) == ["process"]
    assert ["interrupted" in str(each.message) for each in said] == [True]


@pytest.mark.slow
def test_an_interrupted_scout_is_what_there_is(step, monkeypatch, small):
    """Ctrl-C in the first epochs does not start more of them."""
    epochs = []
    original = Trainer.run_epoch

    def interrupted(self):
        epochs.append(self)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Trainer, "run_epoch", interrupted)
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    monkeypatch.setattr(race, "LEAST_WEIGHT", 0.0)
    monkeypatch.setattr(automatic, "SCOUTED", 1.0)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="interrupted"):
        model = AutoGaussianProcessRegressor(random_state=0).fit(*step)
    assert len(epochs) == 2
    assert list(model.estimators_) == ["process", "networks"]


# ---- what is said ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_report_has_models_calibration_and_limits(mixed):
    report = mixed.report()
    assert list(report.leaderboard["model"]) == list(mixed.leaderboard_["model"])
    assert (report.leaderboard["fit_time"] > 0.0).all()
    assert set(report.calibration["by"]) == {"std", "mean"}
    n_judged = len(mixed.estimators_["networks"].held_out_.rows)
    assert report.calibration["n_rows"].sum() == 2 * n_judged
    assert report.calibration["coverage_95"].between(0.6, 1.0).all()
    shares = dict(zip(report.limits["limit"], report.limits["share"], strict=True))
    assert_allclose(shares["noise"] + shares["rows"], 1.0)
    assert shares["budget"] == 0.0
    assert "coverage_95" in str(report)
    assert report._repr_html_().count("<table") == 4


@pytest.mark.filterwarnings("ignore:Errors are larger in some regions")
@pytest.mark.slow
def test_a_group_with_more_noise_is_reported(small):
    rng = np.random.default_rng(0)
    kind = rng.choice(["bike", "van"], 400, p=[0.85, 0.15])
    X = pd.DataFrame({"kind": kind, "x": rng.uniform(-2, 2, 400)})
    y = X["x"] + np.where(kind == "van", 1.5, 0.3) * rng.standard_normal(400)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    table = model.report().coverage.set_index(["by", "group"])
    covered = table["coverage_90"].loc["column 'kind'"]
    assert covered["van"] < 0.9 < covered["bike"]
    assert "column 'kind'" in str(model.report())
    assert "coverage of groups" in [finding.name for finding in model.diagnose()]


def test_a_fit_that_cannot_keep_its_time_says_how_long_it_took(step):
    X, y = (a[:60] for a in step)
    with pytest.warns(UserWarning, match=r"max_time=1e-06 could not be kept: the fit took .* s, "):
        model = AutoGaussianProcessRegressor(max_time=1e-6, random_state=0).fit(X, y)
    finding = model.diagnose()[0]
    assert (finding.name, finding.severity) == ("time", "problem")
    assert "Set max_time to" in finding.advice


def test_findings_of_time():
    clock = SimpleNamespace(now=0.0)
    deadline = Deadline(10.0, lambda: clock.now)
    assert list(automatic.of_time(None, None, 1.0)) == []
    for now, severity in ((9.0, "fine"), (11.9, "fine"), (12.1, "problem")):
        clock.now = now
        (finding,) = automatic.of_time(10.0, deadline, 1.0)
        assert finding.severity == severity
        assert_allclose(finding.value, now)
    assert finding.text == "The fit took 12 s, longer than max_time=10."
    (finding,) = automatic.of_time(10.0, deadline, 11.0)
    assert "because one model is always fitted, and it took 11 s" in finding.text


def test_the_leaderboard_begins_with_the_best(mixed):
    scores = list(mixed.leaderboard_["common_score"])
    assert scores == sorted(scores, reverse=True)


def test_common_scores_are_of_the_rows_that_all_models_have_predicted():
    """A model judged on easy rows has the better score, and is the worse one."""
    data, judged = Data(np.zeros((40, 1)), np.zeros((40, 1))), []
    for name, rows, level in (("a", np.arange(40), 0.0), ("b", np.arange(20, 40), -0.5)):
        nothing = np.zeros((len(rows), 1))
        density = level + 2.0 * (rows >= 20)
        held_out = HeldOutPredictions(rows, density, *[nothing] * 5)
        judged.append(race.Judged(name, SimpleNamespace(held_out_=held_out), 1.0))
    assert [each.score(data) for each in judged] == [1.0, 1.5]
    assert automatic.common_scores(judged, data) == [2.0, 1.5]


def test_fits_are_pickled(mixed, step):
    again = pickle.loads(pickle.dumps(mixed))
    assert_array_equal(again.predict_std(step[0]), mixed.predict_std(step[0]))
    assert str(again.report()) == str(mixed.report())


# ---- counts and lattices -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 1))
    return X, rng.poisson(np.exp(1.0 + X[:, 0])).astype(float)


@pytest.mark.slow
def test_counts_are_offered_a_distribution_of_their_own(counts, small):
    X, y = counts
    with pytest.warns(UserWarning, match="y looks like counts.*target='count'"):
        AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(X, y)
    assert model.atoms_ is None
    kinds = {each.likelihood for each in model.estimators_.values()}
    assert kinds == {"negative_binomial"}
    total = sum(np.exp(model.log_predictive_density(X[:3], np.full(3, k))) for k in range(60))
    assert_allclose(total, 1.0, atol=1e-6)
    with pytest.raises(ValueError, match="count"):
        model.fit(X, y + 0.5)


@pytest.mark.slow
def test_counts_of_several_outputs_have_weights(counts, small):
    X, y = counts
    Y, weight = np.c_[y, y[::-1]], np.full(len(y), 2.0)
    model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(X, Y, weight)
    assert model.predict(X).shape == (300, 2)


@pytest.fixture
def quick_networks(monkeypatch):
    usual = {"hidden_layer_sizes": (32, 32), "n_estimators": 2, "max_iter": 40}
    monkeypatch.setattr(
        automatic_regressor,
        "DeepKernelEnsembleRegressor",
        lambda **params: DeepKernelEnsembleRegressor(**{**params, **usual}),
    )
    monkeypatch.setattr(automatic_regressor, "of_latent_neighbours", lambda *given, **named: [])


@pytest.mark.slow  # by default, tests of networks have large counts
def test_large_counts_vary_no_more_than_they_do(quick_networks):
    """The least dispersion made intervals of counts of 10⁹ thirty times as wide."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (200, 1))
    y = rng.poisson(1e9 * np.exp(X[:, 0])).astype(float)
    model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert 0.9 < np.median(std / np.sqrt(mean)) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "n_trained"), [pytest.param(2.0, 300, marks=pytest.mark.slow), (1e8, 60)]
)
def test_means_of_overdispersed_counts_are_those_of_counts(quick_networks, size, n_trained):
    """Not half as large again, as if the log-rate had all of the scatter; or 10¹³ times."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (900, 2))
    mean = size * np.exp(np.sin(2 * X[:, 0]) + 0.5 * X[:, 1])
    y = rng.poisson(mean * rng.gamma(0.4, 1 / 0.4, 900)).astype(float)
    model = AutoGaussianProcessRegressor(target="count", random_state=0)
    found = model.fit(X[:n_trained], y[:n_trained]).predict(X[300:])
    few = n_trained < 300  # rows tell no more than what they sum to
    due = y[:n_trained].sum() / mean[:n_trained].sum() if few else 1.0
    assert 0.8 < found.sum() / mean[300:].sum() / due < 1.25
    assert (found < (10.0 if few else 5.0) * mean[300:]).all()


@pytest.fixture(scope="module")
def grades():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (150, 1))
    return X, np.clip(np.rint(5.0 + 2.0 * X[:, 0] + 0.5 * rng.standard_normal(150)), 2, 8)


@pytest.mark.slow
def test_rounded_targets_have_probabilities(grades, small):
    X, y = grades
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    assert_array_equal(model.atoms_, np.arange(2.0, 9.0))
    assert 0.9 < model.atom_weight_ < 1.0
    probability = model.predict_atoms(X)
    assert_allclose(probability.sum(1), model.atom_weight_)
    assert (model.atoms_[probability.argmax(1)] == y).mean() > 0.5
    of_y = probability[np.arange(150), (y - 2).astype(int)]
    assert_allclose(np.exp(model.log_predictive_probability(X, y)), of_y, rtol=1e-6)
    assert np.isin(model.sample_y(X, 5, random_state=0), model.atoms_).mean() > 0.9
    continuous = AutoGaussianProcessRegressor(discrete=False, random_state=0).fit(X, y)
    assert continuous.atoms_ is None
    density = continuous.log_predictive_density(X, y)
    assert_allclose(model.log_predictive_density(X, y), density)


@pytest.mark.parametrize("automatic", BOTH)
def test_methods_of_single_models_are_refused_with_what_there_is(automatic):
    names = {"condition_on", "log_marginal_likelihood", "predict_gradient", "sample_functions"}
    if automatic is AutoGaussianProcessClassifier:
        names = {"latent_mean_and_variance"}
    for name in names | {"partial_fit"}:
        assert not hasattr(automatic(), name)
        with pytest.raises(AttributeError, match=rf"^{automatic.__name__} has no {name}: .*\.$"):
            getattr(automatic(), name)


def test_continuous_targets_have_no_atoms(few, step):
    assert few.atoms_ is None
    assert few.atom_weight_ == 0.0
    assert not hasattr(few, "predict_atoms")
    with pytest.raises(AttributeError, match="predict_atoms"):
        few.predict_atoms(step[0])
    with pytest.raises(ValueError, match="discrete must be 'auto' or False, got True"):
        clone(few).set_params(discrete=True).fit(*step)


# ---- classes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_classes():
    """A fit of processes and networks, both of which count, and its rows."""
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            automatic_classifier, "DeepKernelEnsembleClassifier", small_networks_of_classes
        )
        patch.setattr(automatic_classifier, "FEWEST_OF_CLASSES", 100)
        patch.setattr(automatic_classifier, "LEAST_GAIN_OF_CLASSES", -np.inf)
        patch.setattr(race, "LEAST_GAIN", -np.inf)
        patch.setattr(race, "LEAST_WEIGHT", 0.0)
        return AutoGaussianProcessClassifier(random_state=0).fit(X, names), X, names


def test_few_rows_of_classes_have_a_process(step):
    X, y = (a[:40] for a in step)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y > 0)
    assert isinstance(model.estimators_["process"], ExactProcessClassifier)
    assert model.weights_.tolist() == [1.0]
    assert model.score(X, y > 0) > 0.9
    alone = model.estimators_["process"]
    assert_allclose(model.predict_log_proba(X), alone.predict_log_proba(X))
    assert_allclose(model.predict_std(X), alone.predict_std(X))


@pytest.mark.slow
def test_classes_have_names(mixed_classes):
    model, X, names = mixed_classes
    assert model.score(X, names) > 0.9
    held_out = [each.held_out_.log_density.mean() for each in model.estimators_.values()]
    assert_allclose(model.scores_["score"][:-1], held_out)
    assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-12)
    codes = np.searchsorted(model.classes_, names)
    of_labels = model.predict_log_proba(X)[np.arange(150), codes]
    assert_array_equal(model.log_predictive_density(X, y=names), of_labels)
    with pytest.raises(ValueError, match="y has the class 'rosa'"):
        model.log_predictive_density(X, np.full(150, "rosa"))
    with pytest.raises(
        ValueError, match=r"y must have the shape \(150,\), one label for each row, got \(3,\)"
    ):
        model.log_predictive_density(X, names[:3])


@pytest.mark.slow
def test_probabilities_are_those_of_the_mixture(mixed_classes):
    model, X, _ = mixed_classes
    parts = list(model.estimators_.values())
    assert list(model.estimators_) == ["process", "networks"]
    p = np.stack([part.predict_proba(X) for part in parts])
    mean = np.einsum("k,knc->nc", model.weights_, p)
    assert_allclose(model.predict_proba(X), mean, rtol=1e-10)
    second = np.einsum("k,knc->nc", model.weights_, p**2) - mean**2
    own = np.einsum("k,knc->nc", model.weights_, [part.predict_std(X) ** 2 for part in parts])
    assert_allclose(model.predict_std(X), np.sqrt(own + second), atol=1e-7)


@pytest.mark.slow
def test_classes_have_a_report(mixed_classes):
    model, _, names = mixed_classes
    report = model.report()
    table = report.calibration
    assert list(report.leaderboard["model"]) == list(model.leaderboard_["model"])
    by_class = table[table["by"] == "class"].set_index("group")
    assert list(by_class.index) == sorted(set(names))
    judged = model.estimators_["networks"].held_out_.rows
    shares = [np.mean(names[judged] == name) for name in by_class.index]
    assert_allclose(by_class["share"], shares)
    assert_allclose(by_class["mean_prediction"], shares, atol=0.1)
    confident = table[table["by"] == "confidence"]
    assert confident["n_rows"].sum() == len(judged)
    assert confident["mean_prediction"].is_monotonic_increasing
    assert set(report.limits["limit"]) == {"doubt", "rare classes", "budget"}
    assert pickle.loads(pickle.dumps(model)).report()._repr_html_().count("<table") == 3


@pytest.mark.parametrize("unit", ["M8[D]", "M8[ns]", "m8[s]"])
def test_classes_that_are_times_are_saved(unit, step, tmp_path):
    X, y = (a[:40] for a in step)
    times = np.array([1, 2], unit)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, times[(y > 0).astype(int)])
    model.save(tmp_path / "model")
    loaded = skgpstoch.load(tmp_path / "model")
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert list(loaded.report().calibration["group"][-2:]) == list(times)


@pytest.mark.slow
def test_scouts_of_classes_have_to_add_more(step, monkeypatch, small):
    X, y = step
    monkeypatch.setattr(automatic_classifier, "FEWEST_OF_CLASSES", 200)
    monkeypatch.setattr(race, "gain_of", lambda *_: 0.005)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y > 0)
    assert model.scores_["model"] == ["process", "networks", "linear"]
    assert list(model.estimators_) == ["process"]
    monkeypatch.setattr(automatic_classifier, "LEAST_GAIN_OF_CLASSES", 0.004)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y > 0)
    assert model.estimators_.keys() <= {"process", "networks"}
    assert model.scores_["fit_time"][1] > 0.0
    assert sum(model.scores_["weight"]) == pytest.approx(1.0)


def test_classes_without_weight_are_none_of_the_models(step, small):
    X, y = step
    labels = np.where(y > 1.0, "c", np.where(y > 0.0, "b", "a"))
    model = AutoGaussianProcessClassifier(random_state=0)
    model.fit(X, labels, sample_weight=(labels != "a").astype(float))
    assert model.classes_.tolist() == ["b", "c"]
    assert model.predict_proba(X).shape == (200, 2)
    assert np.mean(model.predict(X)[labels != "a"] == labels[labels != "a"]) > 0.8
    with pytest.raises(ValueError, match="needs at least two classes, got only"):
        model.fit(X, labels, sample_weight=(labels == "a").astype(float))


# ---- bad and odd input -------------------------------------------------------------------------


def test_failed_fits_leave_things_as_they_were(few, step):
    model = clone(few).fit(step[0][:60], step[1][:60])
    before = model.predict(step[0])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(step[0], np.full(200, np.nan))
    assert_array_equal(model.predict(step[0]), before)
    with pytest.raises(ValueError, match="max_time"):
        AutoGaussianProcessRegressor(max_time=-1).fit(*step)


def test_rows_that_are_all_the_same(small):
    X, labels = np.ones((60, 2)), np.arange(60) % 2
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, labels)
    assert_allclose(model.predict_proba(X), 0.5, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("cls", BOTH)
@by_default("Regressor")
def test_inputs_very_far_away(cls, step, small):
    X, y = step
    is_classifier = cls is AutoGaussianProcessClassifier
    model = cls(random_state=0).fit(X, y > 0.0 if is_classifier else y)
    for name in ["predict_proba"] if is_classifier else ["predict", "predict_std"]:
        assert np.isfinite(getattr(model, name)(X * 1e160)).all()


@pytest.mark.slow
def test_a_smooth_function_is_left_to_the_process():
    X, y = make_friedman1(250, noise=0.5, random_state=0)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X[:200], y[:200])
    assert model.scores_["weight"] == [1.0, 0.0, 0.0]
    assert model.score(X[200:], y[200:]) > 0.9


@pytest.mark.slow
def test_networks_are_not_tried_if_hardly_any_time_is_left(monkeypatch):
    fit = ExactProcessRegressor.fit

    def slow(self, *args, **kwargs):
        time.sleep(1.0)
        return fit(self.set_params(kernels=["linear"]), *args, **kwargs)

    monkeypatch.setattr(ExactProcessRegressor, "fit", slow)
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (300, 2))
    with pytest.warns(ConvergenceWarning, match="max_time was too short to try networks: process"):
        model = AutoGaussianProcessRegressor(max_time=1.0, random_state=0).fit(X, X[:, 0])
    assert "networks" not in model.leaderboard_["model"].tolist()


@pytest.mark.parametrize(("max_time", "n_tried"), [(None, 1), (43.0, 0), (45.0, 1)])
def test_neighbours_of_classes_are_tried_if_there_is_time_for_most_steps(max_time, n_tried):
    """With less, they took the time of networks, which were better."""
    data = Data(np.zeros((18_000, 1)), np.zeros((18_000, 1)))
    p = AutoGaussianProcessClassifier(max_time=max_time)
    assert len(of_latent_neighbours(NNGPClassifier, p, data, 1)) == n_tried


# ---- rows of any weight, targets of any layout ---------------------------------------------------


@pytest.mark.slow
def test_large_weights_are_those_of_as_many_rows_as_there_are(small):
    """80 rows of weight 10,000 are fitted, and judged, as 80 rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=80)
    models = [
        AutoGaussianProcessRegressor(random_state=0).fit(X, y, sample_weight=weight)
        for weight in (None, np.full(80, 1e4))
    ]
    assert_allclose(models[1].predict(X), models[0].predict(X), atol=1e-6)
    assert models[1].scores_["model"] == ["process", "linear"]
    assert all(finding.severity == "fine" for finding in models[1].diagnose())
    labels = y > 0.0
    model = AutoGaussianProcessClassifier(random_state=0, max_time=1)
    assert "process" in model.fit(X, labels, sample_weight=np.full(80, 1e4)).scores_["model"]


@pytest.mark.parametrize(("n", "severity"), [(40, "fine"), (100, "problem")])
def test_the_limit_of_a_linear_model_agrees_with_the_finding(n, severity):
    held_out = HeldOutPredictions(np.arange(n), np.full(n, -16.0), *[np.zeros((n, 1))] * 5)
    linear = Judged("linear", Floor(held_out._replace(log_density=np.full(n, -1.0))), 0.0)
    (found,) = of_floor([linear], held_out)
    assert (found.severity, found.value < found.limit) == (severity, severity == "problem")


def test_a_constant_among_targets_has_no_linear_model():
    X = np.random.default_rng(0).normal(size=(60, 2))
    folds = list(KFold(2).split(X))
    for second, has in ((X[:, 1], True), (np.full(60, 2.5), False)):
        found = of_numbers(X, np.column_stack([X[:, 0], second]), np.ones(60), folds)
        assert (found is not None) == has


@pytest.mark.slow
@pytest.mark.parametrize("layout", [pd.DataFrame, np.asfortranarray, lambda Y: Y.T.copy().T])
@by_default("DataFrame")
def test_targets_of_any_layout(layout, small):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0], -X[:, 1]]).astype("f4") + np.float32(0.125)
    models = [AutoGaussianProcessRegressor(random_state=0).fit(X, y) for y in (Y, layout(Y))]
    assert_allclose(models[1].predict(X), models[0].predict(X), atol=1e-6)


@pytest.mark.slow
def test_many_classes_are_told_once():
    """Exact processes looked at the labels again."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.warns(UserWarning, match="unique classes") as said:
        AutoGaussianProcessClassifier(max_time=1.0, random_state=0).fit(X, np.arange(40))
    assert sum("unique classes" in str(each.message) for each in said) == 1


@pytest.mark.parametrize("n_values", [2, 3])
def test_two_values_are_told_to_be_classes(n_values):
    """Their probabilities were too certain: a log loss of .30 to .41, that of classes .25."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.digitize(X[:, 0], [-0.3, 0.6][: n_values - 1]).astype(float)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        AutoGaussianProcessRegressor(random_state=0, max_time=0.1).fit(X, y)
    told = any("y has two values, 0 and 1." in str(w.message) for w in found)
    assert told == (n_values == 2)
