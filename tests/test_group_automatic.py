"""The recommended defaults in a group: the same model, however rows are split over ranks."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
from conftest import let_defaults_be_of_many
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from thread_group import on_ranks
from three_tables import same_on_all

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    NNGPRegressor,
    SVGPClassifier,
)
from skgpstoch.data.tables import TableEncoder
from skgpstoch.distributed import process_group
from skgpstoch.methods.automatic import automatic_regressor, race
from skgpstoch.methods.automatic.neighbours import NEIGHBOURS
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.methods.automatic.read_tables import read

# Networks of few epochs, which a linear model is ahead of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A linear model predicts rows"),
    pytest.mark.usefixtures("one_kernel"),
]

pd = pytest.importorskip("pandas")

N = 160
CUTS = [[0, N], [0, 70, N], [0, 0, 120, N]]
"""Where rows are cut into those of one, two and three ranks; the first of three has none."""

BY_DIFFERENCES = 1e-8
"""Calibration has slopes by differences of 1e-6, so that rounding is 1e-10 in what it finds."""

REGRESSOR = AutoGaussianProcessRegressor(random_state=0)
CLASSIFIER = AutoGaussianProcessClassifier(random_state=0)


def flights(n=N, seed=0):
    """Numbers, a date, few and many levels; missing values and a rare level in the end alone."""
    rng = np.random.default_rng(seed)
    town, line, x = rng.integers(15, size=n), rng.integers(3, size=n), rng.normal(size=n)
    is_last = np.arange(n) >= n - 2
    X = pd.DataFrame(
        {
            "x": x,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(60, size=n), "D"),
            "town": np.where(is_last, "far away", np.char.add("town ", town.astype(str))),
            "line": pd.Categorical(np.array(["a", "b", "c"])[line]),
            "late": np.where(is_last, np.nan, rng.normal(size=n)),
        }
    )
    return X, np.sin(2.0 * x) + 0.3 * (town % 4) + 0.2 * rng.normal(size=n)


@pytest.fixture
def many(monkeypatch):
    """Rows are many, a sample has 100 of them, and networks are small, in float64."""
    let_defaults_be_of_many(monkeypatch, 100)


def on_parts(model, X, y, cuts, weights=None, expect=None):
    """Fit on ranks that have the rows between the cuts; return each rank's model, or error."""

    def fit(group):
        mine = slice(cuts[group.rank], cuts[group.rank + 1])
        weight = None if weights is None else weights[group.rank]
        of_rows = {} if weight is None else {"sample_weight": weight}
        return clone(model).fit(X[mine], y[mine], **of_rows)

    return on_ranks(fit, len(cuts) - 1, expect)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X has")
def test_many_rows_of_a_frame(many):
    X, y = flights()
    X_new, _ = flights(30, seed=1)
    every = [on_parts(REGRESSOR, X, y, cuts) for cuts in (CUTS[0], CUTS[2])]
    with process_group(init="tcp://localhost:1", rank=0, size=1):
        alone = clone(REGRESSOR).fit(X, y)
    assert_array_equal(alone.predict(X_new), every[0][0].predict(X_new))
    means = [same_on_all(models, X_new) for models in every]
    assert_allclose(means[1], means[0], rtol=0, atol=1e-8)
    first, other = every[0][0], every[1][0]
    assert first._encoder.levels[2] == {*X["town"]}  # the rare one is known, in the sample or not
    assert list(other.feature_names_in_) == list(X.columns)
    assert_allclose(other.scores_["score"], first.scores_["score"], atol=1e-8)
    assert set(other.leaderboard_["model"]) == {"networks", "linear"}
    assert other.report().calibration["n_rows"].sum() > 0
    assert_allclose(other.feature_importances_.sum(), 1.0)
    assert other.diagnose().problems == first.diagnose().problems


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X has")
@pytest.mark.filterwarnings("ignore:max_iter")
def test_rank_0_fits_neighbours_to_the_sample(many, monkeypatch):
    """All ranks have them; weights come from rows of the sample that networks have left out."""
    monkeypatch.setattr(automatic_regressor, "MOST_FOR_PROCESS", 20)
    monkeypatch.setattr(automatic_regressor, "MOST_ALONE", 20)
    few = functools.partial(NNGPRegressor, n_neighbors=8, max_iter=1)
    monkeypatch.setattr(automatic_regressor, "NNGPRegressor", few)
    monkeypatch.setattr(race, "LEAST_WEIGHT", 0.0)
    X, y = flights()
    X_new, _ = flights(30, seed=1)
    models = on_parts(REGRESSOR, X, y, CUTS[1])
    same_on_all(models, X_new)
    first = models[0]
    assert list(first.estimators_) == [*NEIGHBOURS.values(), "networks"]
    near, networks = (first.estimators_[name].held_out_ for name in ("neighbours", "networks"))
    assert len(near.rows) == len(first.estimators_["neighbours"].X_train_)
    assert {*networks.rows} <= {*near.rows}  # numbers of the whole table
    assert_allclose(near.mean + near.error, y[near.rows, None])
    alone = on_parts(REGRESSOR, X, y, CUTS[0])[0]
    assert_allclose(alone.predict(X_new), first.predict(X_new), atol=1e-6)
    in_no_time = clone(REGRESSOR).set_params(max_time=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = on_parts(in_no_time, X, y, CUTS[1])
    assert list(models[1].estimators_) == ["networks"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X has", "ignore:Column 1 of X has missing values")
def test_many_rows_of_classes_and_weights(many):
    """One class is on one rank alone, and one rank has weights, some or all of them 0."""
    X, y = flights()
    X = X[["x", "late"]].to_numpy()
    labels = np.where(y > 0.5, "late", "early").astype(object)
    labels[-4:] = "never"
    weight = np.where(np.arange(N) < 10, 0.0, 1.0)
    splits = [[weight], [weight[:70], None], [weight[:10], None, weight[120:]]]
    pairs = zip([*CUTS[:2], [0, 10, 120, N]], splits, strict=True)
    every = [on_parts(CLASSIFIER, X, labels, cuts, weights) for cuts, weights in pairs]
    proba = [same_on_all(models, X, "predict_proba") for models in every]
    assert every[0][0].classes_.tolist() == ["early", "late", "never"]
    for models in every:
        held_out = models[0].estimators_["networks"].held_out_
        codes = (held_out.mean + held_out.error).argmax(1)
        assert_array_equal(models[0].classes_[codes], labels[held_out.rows])
    assert_allclose(proba[1:], [proba[0]] * 2, rtol=0, atol=BY_DIFFERENCES)


def test_a_target_is_not_told_of_its_own_row(many):
    """Rows have a level each, or a random one: what they are told says nothing of their target."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"level": rng.integers(80, size=N).astype(str)})
    y = rng.normal(size=N)

    def told(group):
        mine = slice(None) if group.size == 1 else slice(80 * group.rank, 80 * (group.rank + 1))
        model = clone(REGRESSOR)
        table = read(model, X[mine], y[mine], None)
        _, by_fold = table.learn(model)
        return table.encoded(by_fold).X

    whole, halves = on_ranks(told, 1)[0], np.vstack(on_ranks(told, 2))
    assert_allclose(halves, whole, atol=1e-14)
    assert np.corrcoef(whole[:, 0], y)[0, 1] < 0.3  # with its own target it is .7


def test_levels_are_told_by_the_rows_of_all_ranks(many):
    """As by those of one process, however few of them are in the sample."""
    rng = np.random.default_rng(0)
    level = rng.integers(60, size=N)
    X, y = pd.DataFrame({"level": level.astype(str)}), level + rng.normal(size=N)

    def encoder(group):
        mine = slice(None) if group.size == 1 else slice(80 * group.rank, 80 * (group.rank + 1))
        model = clone(REGRESSOR)
        read(model, X[mine], y[mine], None).learn(model)
        return model._encoder

    alone = TableEncoder()
    alone.fit_transform(X, y)
    for found in on_ranks(encoder, 2):
        assert found.levels == alone.levels
        told, expected = found.transform(X)[:, 0], alone.transform(X)[:, 0]
        line = np.polyval(np.polyfit(expected, told, 1), expected)  # units are the sample's
        assert_allclose(told, line, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
@slow_cases("polars")
@by_default("pandas")
def test_few_rows_are_those_of_one_process(kind, monkeypatch):
    monkeypatch.setattr(automatic_regressor, "FEWEST_FOR_NETWORKS", 10**6)
    of_one = functools.partial(ExactProcessRegressor, kernels=["rbf"])
    monkeypatch.setattr(automatic_regressor, "ExactProcessRegressor", of_one)
    X, y = flights(60)
    X.loc[:39, "late"] = np.nan  # so that all are missing on one rank
    if kind == "polars":
        pl = pytest.importorskip("polars")
        X = pl.from_pandas(X)
    elif kind == "array":
        X = X[["x", "late"]].to_numpy()
    alone = clone(REGRESSOR).fit(X, y)
    models = on_parts(REGRESSOR, X, y, [0, 0, 40, 60])
    assert_array_equal(same_on_all(models, X), alone.predict(X))
    assert models[0].n_features_in_ == X.shape[1]


def test_labels_are_texts_on_all_ranks_or_on_none():
    """They were said to be classes that the model was not fitted to."""
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2

    def fit(group):
        SVGPClassifier(n_inducing=3).fit(X, y if group.rank else y.astype(str))

    for error in on_ranks(fit, 2, expect=ValueError):
        assert "kind of labels in y must be the same on all ranks, got texts on" in str(error)


@pytest.mark.parametrize("wrong", [5, None])
def test_labels_of_several_kinds_on_one_rank_are_told_on_all(wrong):
    """The other ranks waited for it until their timeout."""
    X, y = np.arange(20.0)[:, None], np.array(["a", "b"] * 10, dtype=object)
    mixed = y.copy()
    mixed[1] = wrong

    def fit(group):
        SVGPClassifier(n_inducing=3).fit(X, mixed if group.rank else y)

    for error in on_ranks(fit, 2, expect=(ValueError, RuntimeError)):
        assert "y must hold labels of one type, got " in str(error)


def test_what_is_wrong_on_one_rank_is_told_on_all(many):
    X, y = flights()
    wrong = [
        (X.rename(columns={"x": "z"}), y, None, "same on all ranks, got X of columns 'x', 'day'"),
        (X.assign(x=X["x"].astype(str)), y, None, "rank 1: column 'x' of X holds categories, but"),
        (X.assign(x=np.inf), y, None, "Column 'x' of X contains infinity"),
        (X, y, -np.ones(N), "egative values in data passed to `sample_weight`"),
        (X, np.column_stack([y, y]), None, "and y of numbers in 2 columns on ranks [1]"),
    ]
    for X_1, y_1, weight, message in wrong:
        rows = [(X, y, None), (X_1, y_1, weight)]
        models = [clone(REGRESSOR), clone(REGRESSOR)]

        def fit(group, rows=rows, models=models):
            models[group.rank].fit(*rows[group.rank])

        for error in on_ranks(fit, 2, expect=ValueError):
            assert message in str(error)
        assert vars(models[0]) == vars(models[1]) == vars(REGRESSOR)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The standard deviation of y does not exist")
@pytest.mark.parametrize("params", [{"target_transform": "log"}, {"target": "count"}])
@slow_cases("params1")
def test_targets_of_other_kinds(params, many, monkeypatch):
    let_defaults_be_of_many(monkeypatch, 100, calibrate=True)
    X, y = flights()
    X, y = X[["x"]].to_numpy(), np.floor(np.exp(y)) + ("target_transform" in params)
    model = clone(REGRESSOR).set_params(**params)
    means = [same_on_all(on_parts(model, X, y, cuts), X) for cuts in CUTS[:2]]
    assert_allclose(means[1], means[0], rtol=BY_DIFFERENCES)
    y[-1] = -1.0  # which one rank has
    for error in on_parts(model, X, y, CUTS[1], expect=ValueError):
        assert "target" in str(error) or "y " in str(error)


@pytest.mark.slow
def test_seeds_and_warnings_are_those_of_rank_0(many):
    X, y = flights()
    counts = np.round(np.exp(y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        models = on_parts(AutoGaussianProcessRegressor(max_time=2.0), X, counts, CUTS[1])
    same_on_all(models, X)
    messages = [str(each.message) for each in caught]
    assert sum("looks like counts" in message for message in messages) == 1
    assert len(messages) == len(set(messages))
    assert models[1].budget_ == models[0].budget_ is not None
