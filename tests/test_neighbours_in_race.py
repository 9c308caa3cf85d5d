"""Nearest neighbours in the recommended default: when they are tried, and what they weigh."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
)
from skgpstoch.data.deadline import Deadline
from skgpstoch.data.held_out import HeldOutPredictions
from skgpstoch.data.rows import Data
from skgpstoch.estimators.runs import usual_weight
from skgpstoch.methods.automatic import automatic_classifier, automatic_regressor, neighbours, race
from skgpstoch.methods.automatic.race import Entrant, Judged
from skgpstoch.methods.nngp import deep

pytestmark = pytest.mark.usefixtures("one_kernel")

N = 60
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(N, 2)), rng.normal(size=N)
ROWS = Data(X, Y)


def judged(name, densities, rows=None):
    """A model with these log densities of held-out rows."""
    rows = np.arange(len(densities)) if rows is None else rows
    column = np.zeros((len(rows), 1))
    given = HeldOutPredictions(rows, np.asarray(densities, float), *[column] * 5)
    return Judged(name, SimpleNamespace(held_out_=given), 1.0)


def test_weights_are_of_rows_that_all_have_left_out():
    """The last is worse than the first on the rows of both, though its own score is better."""
    first = judged("neighbours", np.r_[np.full(30, -1.0), np.full(30, -9.0)])
    last = judged("networks", np.full(30, -3.0), np.arange(30))
    some = judged("others", np.full(40, -3.0), np.arange(20, 60))
    densities, _ = race.held_out_densities([first, some, last], ROWS)
    assert densities.shape == (10, 3)
    for found in ([first, last], [last, first]):
        densities, _ = race.held_out_densities(found, ROWS)
        assert densities.shape == (30, 2)
        assert race.weights_of(found, ROWS)[found.index(first)] == 1.0


def test_without_common_rows_the_best_score_has_all_the_weight():
    found = [judged("a", [-2.0] * 30, np.arange(30)), judged("b", [-1.0] * 30, np.arange(30, 60))]
    assert_array_equal(race.weights_of(found, ROWS), [0.0, 1.0])


def test_depth_is_promised_by_neighbours_or_by_little_noise():
    near, far = judged("neighbours", np.full(N, -1.4)), judged("networks", np.full(N, -1.5))
    other = judged("networks", np.full(N, -0.5))
    sharp = judged("networks", np.full(N, 0.4))
    assert neighbours.promises_depth([near, far], ROWS, None)
    assert not neighbours.promises_depth([near, other], ROWS, None)
    assert neighbours.promises_depth([near, sharp], ROWS, None)
    assert neighbours.promises_depth([near, far], ROWS, Deadline(1e3, lambda: 0.0))
    assert not neighbours.promises_depth([near, far], ROWS, Deadline(5.0, lambda: 0.0))


def test_deep_neighbours_come_first_where_time_is_short_and_noise_small():
    """Networks, which follow, take all time that is left; they were first everywhere."""
    sharp, noisy = judged("neighbours", np.full(N, 0.4)), judged("neighbours", np.full(N, -0.5))
    enough, short = (Deadline(seconds, lambda: 0.0) for seconds in (60.0, 5.0))
    assert neighbours.must_be_deep([sharp], ROWS, enough)
    assert not neighbours.must_be_deep([noisy], ROWS, enough)
    assert not neighbours.must_be_deep([sharp], ROWS, short)
    assert not neighbours.must_be_deep([sharp], ROWS, None)
    once = judged(neighbours.DEEP, np.full(N, 0.5))
    assert not neighbours.promises_depth([sharp, once], ROWS, enough)


def test_promises_do_not_depend_on_units():
    scaled = Data(X, 1e-6 * Y)
    sharp = judged("networks", np.full(N, 0.4 + np.log(1e6)))
    assert neighbours.promises_depth([sharp], scaled, None)
    noisy = [judged("neighbours", np.full(N, -1.0)), judged("networks", np.full(N, 0.2))]
    assert not neighbours.promises_depth(noisy, ROWS, None)


def test_neighbours_have_a_share_of_the_time(monkeypatch):
    """So that networks have some, too; and none if there is little."""

    def tried(max_time, data=ROWS):
        p = SimpleNamespace(max_time=max_time, device=None, random_state=0)
        return neighbours.of_neighbours(NNGPRegressor, p, data, [*range(data.X.shape[1])])

    assert [each.name for each in tried(None)] == [*neighbours.NEIGHBOURS.values()]
    assert tried(None)[0].make(None).max_time is None
    assert_allclose(tried(30.0)[0].make(20.0).max_time, 6.0)
    assert tried(2.0) == []
    wide = Data(np.ones((N, 1_500)), Y)  # twenty steps took 35 s
    assert [len(tried(limit, wide)) for limit in (8.0, 80.0, 120.0, None)] == [0, 0, 1, 1]
    monkeypatch.setattr(neighbours, "MOST_SEARCHED", X.size - 1)
    assert tried(None) == []
    assert not neighbours.promises_depth([judged("neighbours", np.ones(N))], ROWS, None)


def test_kernels_start_in_the_units_of_columns():
    scaled = Data(X * [1e-6, 1e6], Y)
    p = SimpleNamespace(max_time=None, device=None, random_state=0)
    models = [
        entrant.make(None) for entrant in neighbours.of_neighbours(NNGPRegressor, p, scaled, [0, 1])
    ]
    shapes = [model.kernel.k1.k2 for model in models]  # beside the noise
    assert [shape.nu for shape in shapes] == [1.5, 0.5]
    for shape in shapes:
        assert_allclose(shape.length_scale / scaled.X.std(0), np.sqrt(2.0))
    wide = Data(np.ones((N, 65)), Y)
    (model,) = neighbours.of_neighbours(NNGPRegressor, p, wide, range(65))
    assert model.make(None).kernel is None  # which has one length-scale for all columns


@pytest.mark.slow
def test_a_rough_kernel_starts_where_the_smooth_one_ended():
    p = SimpleNamespace(max_time=None, device=None, random_state=0)
    data = Data(X, Y)
    smooth, rough = neighbours.of_neighbours(NNGPRegressor, p, data, [0, 1])
    first = Judged(smooth.name, smooth.make(None).set_params(max_iter=7).fit(X, Y.ravel()), 1.0)
    started = rough.follow(rough.make(None), [first])
    assert started.kernel.k1.k2.nu == 0.5
    assert_array_equal(started.kernel.theta, first.model.kernel_.theta)
    assert started.max_iter == 3
    alone = rough.follow(rough.make(None), [])
    assert_array_equal(alone.kernel.theta, rough.make(None).kernel.theta)
    assert smooth.follow(smooth.make(None), []).max_iter == "auto"


def test_what_does_not_promise_anything_is_not_tried():
    class Fits:
        def next(self, name):
            return lambda model, *_: model

    kept = judged("a", np.full(N, -1.0)).model
    asked = []

    def never(*given):
        asked.append(given)
        return False

    entrants = [
        Entrant("a", lambda left: kept),
        Entrant("b", lambda left: pytest.fail("is not promising"), is_promising=never),
    ]
    found, given_up = race.race(entrants, Fits(), ROWS, None)
    assert [each.name for each in found] == ["a"]
    assert given_up == []
    assert [each.name for each in asked[0][0]] == ["a"]


def test_scouts_of_many_rows_go_first_only_if_others_are_far_ahead():
    made = []

    class Fits:
        def next(self, name):
            return lambda model, *_: made.append(name) or model

    def run(level):
        made.clear()
        near = judged("neighbours", np.full(N, level)).model
        networks = judged("networks", np.full(N, -2.0)).model
        entrants = [
            Entrant("neighbours", lambda left: near),
            Entrant("networks", *[lambda left: networks] * 2, neighbours.are_followed),
        ]
        found, given_up = race.race(entrants, Fits(), ROWS, None)
        return [each.name for each in found], [each.name for each in given_up]

    far = neighbours.FOLLOWED - np.log(Y.std())
    assert run(far - 0.1) == (["neighbours", "networks"], [])
    assert made == ["neighbours", "networks"]
    assert run(far + 0.1) == (["neighbours"], ["networks"])
    assert made == ["neighbours", "networks, a few"]


@pytest.fixture(scope="module")
def fitted():
    """A fit of four models of few steps, all of which count, to a category and a missing value."""
    with pytest.MonkeyPatch.context() as patch:
        few = {"n_neighbors": 8, "max_iter": 1, "calibrate": False}  # no better than networks
        small = {"hidden_layer_sizes": (8,), "n_estimators": 2, "max_iter": 2}
        nngp, networks = NNGPRegressor, skgpstoch.DeepKernelEnsembleRegressor
        of_few = lambda kernel, **given: nngp(kernel, **{**given, **few})  # noqa: E731
        patch.setattr(automatic_regressor, "NNGPRegressor", of_few)
        patch.setattr(
            automatic_regressor,
            "DeepKernelEnsembleRegressor",
            lambda **given: networks(**{**given, **small}),
        )
        for name in ("MOST_ALONE", "MOST_FOR_PROCESS", "FEWEST_FOR_DEPTH", "MOST_FOR_SCOUTS"):
            patch.setattr(automatic_regressor, name, 100)
        patch.setattr(neighbours, "DEEP_LAYERS", (8,))
        patch.setattr(neighbours, "LEAST_PROMISE", 0.0)
        patch.setattr(deep, "MEAN_STEPS", 30)
        patch.setattr(race, "LEAST_WEIGHT", 0.0)
        rng = np.random.default_rng(0)
        X = np.column_stack([rng.uniform(-3, 3, 200), rng.integers(0, 4, 200)])
        y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(200)
        X[::9, 0] = np.nan
        model = AutoGaussianProcessRegressor(categorical_features=[1], random_state=0)
        return model.fit(X, y), X, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_models_are_weighed(fitted):
    model, X, y = fitted
    names = ["neighbours", "neighbours (rough)", "networks", "neighbours (deep)"]
    assert list(model.estimators_) == names
    assert_allclose(model.weights_.sum(), 1.0)
    of_deep = model.estimators_["neighbours (deep)"].held_out_
    assert len(of_deep.rows) == 20  # that its network has not seen
    for each in model.estimators_.values():
        found = each.held_out_
        assert_allclose(found.mean + found.error, y[found.rows, None])
        assert np.isin(of_deep.rows, found.rows).all()
    assert np.isfinite(model.predict_interval(X)).all()
    assert {"neighbours (deep)", "linear"} < set(model.report().leaderboard["model"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_neighbours_are_saved_with_the_mixture(fitted, tmp_path):
    model, X, y = fitted
    model.save(tmp_path / "model.safetensors")
    loaded = skgpstoch.load(tmp_path / "model.safetensors")
    assert_array_equal(loaded.predict(X), model.predict(X))
    expected = model.log_predictive_density(X, y)
    assert_array_equal(loaded.log_predictive_density(X, y), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", ["weights", "y_std", "outputs"])
def test_rows_of_all_kinds(given, monkeypatch):
    """Weights, known errors and several targets reach the neighbours."""
    few = lambda kernel, **given: NNGPRegressor(  # noqa: E731
        kernel, **{**given, "n_neighbors": 8, "max_iter": 1}
    )
    monkeypatch.setattr(automatic_regressor, "NNGPRegressor", few)
    monkeypatch.setattr(automatic_regressor, "MOST_FOR_PROCESS", 50)
    monkeypatch.setattr(automatic_regressor, "MOST_ALONE", 50)
    monkeypatch.setattr(automatic_regressor, "FEWEST_FOR_NETWORKS", 10**6)
    monkeypatch.setattr(automatic_regressor, "of_processes", lambda *_, **__: [])
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (100, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(100)
    model = AutoGaussianProcessRegressor(random_state=0)
    if given == "outputs":
        both = clone(model).fit(X, np.column_stack([y, -2.0 * y]))
        assert_allclose(both.predict(X)[:, 1], -2.0 * both.predict(X)[:, 0], atol=0.3)
        return
    wrong = np.arange(100) % 5 == 0
    spoilt = np.where(wrong, 5.0, y)
    value = np.where(wrong, 0.0, 1.0) if given == "weights" else np.where(wrong, 50.0, 0.1)
    name = {"weights": "sample_weight", "y_std": "y_std"}[given]
    found = clone(model).fit(X, spoilt, **{name: value})
    assert set(found.estimators_) <= set(neighbours.NEIGHBOURS.values())
    assert np.abs(found.predict(X) - y).mean() < 0.3


# ---- classes -------------------------------------------------------------------------------------


@pytest.fixture
def few_of_classes(monkeypatch):
    """Let 100 rows be more than processes take, and networks be small."""
    networks = skgpstoch.DeepKernelEnsembleClassifier
    nngp = lambda _, **given: NNGPClassifier(  # noqa: E731
        sk.Matern(nu=0.5), n_neighbors_predict=20, max_iter=1, **given
    )
    monkeypatch.setattr(automatic_classifier, "NNGPClassifier", nngp)
    monkeypatch.setattr(automatic_classifier, "MOST_OF_CLASSES", 100)
    monkeypatch.setattr(automatic_classifier, "FEWEST_OF_CLASSES", 110)
    monkeypatch.setattr(automatic_classifier, "LEAST_GAIN_OF_CLASSES", -np.inf)
    monkeypatch.setattr(race, "LEAST_GAIN", -np.inf)
    monkeypatch.setattr(race, "LEAST_WEIGHT", 0.0)
    few = {"hidden_layer_sizes": (8,), "n_estimators": 2, "max_iter": 2}
    monkeypatch.setattr(
        automatic_classifier,
        "DeepKernelEnsembleClassifier",
        lambda **given: networks(**{**given, **few}),
    )


def board(n_classes, n=200):
    X = np.random.default_rng(0).uniform(0.0, 3.0, (n, 2))
    names = np.array(["black", "white", "red"])[:n_classes]
    return X, names[X.astype(int).sum(1) % n_classes]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_of_many_rows_have_neighbours(n_classes, few_of_classes, tmp_path):
    X, y = board(n_classes)
    X[::9, 0] = np.nan
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y)
    assert list(model.estimators_) == ["neighbours", "networks"]
    assert model.weights_[0] > 0.5
    for each in model.estimators_.values():
        found = each.held_out_
        codes = np.searchsorted(model.classes_, y[found.rows])
        assert_array_equal((found.mean + found.error).argmax(1), codes)
    model.save(tmp_path / "model.safetensors")
    loaded = skgpstoch.load(tmp_path / "model.safetensors")
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert np.isfinite(model.predict_std(X)).all()


def test_neighbours_of_classes_are_for_tables_that_they_can_settle(monkeypatch):
    X, y = board(3)
    data = Data(X, y)
    p = SimpleNamespace(device="cpu", random_state=0, max_time=None)

    def tried(max_time=None, n_functions=3):
        p.max_time = max_time
        found = neighbours.of_latent_neighbours(NNGPClassifier, p, data, n_functions)
        return [each.name for each in found]

    assert tried() == ["neighbours"]
    assert tried(1.0) == []
    assert tried(n_functions=1 + neighbours.MOST_SETTLED // len(X)) == []
    p.max_time = 30.0  # as there is one model, it may take half of the time
    (entrant,) = neighbours.of_latent_neighbours(NNGPClassifier, p, data, 3)
    assert_allclose(entrant.make(20.0).max_time, 10.0)


@pytest.mark.filterwarnings("ignore")
def test_groups_that_are_held_out_have_no_neighbours(few_of_classes):
    X, y = board(2)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y, groups=np.arange(200) // 10)
    assert "neighbours" not in model.scores_["model"]


def test_classes_are_weighed_by_rows_of_whole_models():
    """A member alone predicts rows of its fold worse, and so neighbours better than all members."""
    n = 2 * race.FEWEST_PREFERRED
    near, networks = judged("neighbours", np.full(n, -1.0)), judged("networks", np.full(n, -0.5))
    is_whole = np.arange(n) < n // 2
    held_out = networks.model.held_out_._replace(
        is_whole=is_whole, log_density=np.where(is_whole, -0.5, -3.0)
    )
    data = Data(np.zeros((n, 1)), np.zeros(n))

    def weights(**classes):
        networks.model.__dict__.update(held_out_=held_out, **classes)
        near.model.__dict__.update(classes)
        return race.raw_weights([near, networks], data)

    assert weights()[0] > 0.5
    assert weights(classes_=[0, 1])[0] < 0.01
    held_out = held_out._replace(is_whole=is_whole & (np.arange(n) > 0))  # too few
    assert weights()[0] > 0.5


def test_which_counts_have_neighbours():
    model = AutoGaussianProcessRegressor(target="count", random_state=3)
    few = Data(X, Y, exposure=np.ones(N))
    (entrant,) = model._neighbours(few)
    made = entrant.make(10.0)
    assert (made.likelihood, made.max_time) == ("negative_binomial", 5.0)
    many = np.zeros((neighbours.MOST_SETTLED + 1, 1))
    assert not model._neighbours(Data(many, many[:, 0]))
    model.set_params(max_time=1.0)
    assert not model._neighbours(few)


@pytest.mark.slow
def test_neighbours_race_for_counts():
    """They are ahead where rates vary finely."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    y = rng.poisson(20 * np.exp(1.5 * np.sin(30 * X[:, 0]) * np.cos(30 * X[:, 1])))
    exposure = rng.uniform(0.5, 2.0, 400)
    given = {"exposure": exposure[:300]}
    model = AutoGaussianProcessRegressor(target="count", random_state=0).fit(
        X[:300], y[:300], **given
    )
    assert model.scores_["model"] == ["neighbours", "networks"]
    assert model.weights_[0] > 0.5
    mean = model.predict(X[300:], exposure=exposure[300:])
    assert_allclose(mean, exposure[300:] * model.predict(X[300:]))


def test_few_weights_do_not_make_new_rows_certain():
    weight = np.r_[np.ones(79), 1e4]
    assert usual_weight(weight) == 1.0
    assert usual_weight(np.r_[1.0, 2.0, 3.0]) == 2.0
    assert usual_weight(np.full(3, 0.1)) == 0.1
    assert usual_weight(np.r_[1.0, 1.0, 2.5]) == 1.5
