"""Equal rows: copies of one observation, or observations that agree by chance."""

import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import DEEP, DROP_IN, ESTIMATORS, HELD_OUT, IMAGES, NETWORKS, constructor, named
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    FITCRegressor,
    QSRVMClassifier,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
)
from skgpstoch.data.equal_rows import (
    digests,
    lexicographic,
    merged,
    n_distinct,
    n_observations,
    observations,
    observed_targets,
    with_places,
)
from skgpstoch.data.rows import Data

pytestmark = pytest.mark.usefixtures("one_kernel")


def cells(n=300, seed=0):
    """Rows of eight cells and two classes."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, 4, n), rng.integers(0, 2, n)]).astype(float)
    y = (rng.random(n) < np.array([0.1, 0.9, 0.2, 0.8])[X[:, 0].astype(int)]).astype(float)
    return X, y[:, None]


def smooth(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)), rng.standard_normal((n, 1))


def test_bits_tell_rows_apart():
    rng = np.random.default_rng(0)
    cells = rng.permutation(np.array(np.unravel_index(range(2**16), (2,) * 16)).T)  # all of 0/1
    X = np.hstack([cells * rng.choice([1.0, 1e-3, 7e200], 16), rng.integers(0, 2, (2**16, 1))])
    keys = digests([X[:, :9], X[:, 9:]])
    assert len(np.unique(keys)) == len(X)
    assert abs(np.unpackbits(keys.view(np.uint8)).mean() - 0.5) < 0.01
    assert_array_equal(digests([np.asfortranarray(-X[::-1] * -1.0)])[::-1], keys)
    assert_array_equal(digests([np.array([[0.0], [0]])]), digests([np.array([[-0.0], [0]])]))
    assert len(np.unique(digests([np.array([[1.0, 2.0], [2.0, 1.0]])]))) == 2


@pytest.mark.parametrize("n_values", [1, 3, 10**6])
@pytest.mark.parametrize("n", [1, 2, 400])
def test_the_order_is_that_of_all_columns(n, n_values):
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, n_values, n).astype(float) for _ in range(3)]
    assert_array_equal(lexicographic(columns), np.lexsort(columns[::-1]))
    assert n_distinct(np.column_stack(columns)) == len(set(zip(*columns, strict=True)))
    assert n_distinct(np.empty((0, 2))) == 0


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("n_values", [3, 10**6])
def test_targets_are_those_of_observations(times, n_values):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, (60, 2)), rng.integers(0, n_values, (60, 1))
    table = Data(np.repeat(X, times, 0).astype(float), np.repeat(y, times, 0).astype(float))
    expected = observations(table, len(table))[0].y
    assert_array_equal(np.sort(observed_targets(table), 0), np.sort(expected, 0))


def test_rows_of_few_cells_are_observations():
    found, places = observations(Data(*cells()))
    assert len(found) == 300
    assert found.weight is None
    assert_array_equal(found.X[places], cells()[0])
    assert_array_equal(found.y[places], cells()[1])
    assert len(merged(Data(*cells()))[0]) == 16


def test_targets_that_cells_determine_are_observed_in_each_row():
    X = np.tile(np.arange(4.0), 150)[:, None]
    assert len(observations(Data(X, np.array([1.0, 3.0, 2.0, 6.0])[X.astype(int)]))[0]) == 600


@pytest.mark.parametrize("labels", [False, True])
def test_copies_leave_together(labels):
    X, y = smooth()
    y = (y > 0.0).astype(float) if labels else y
    copies = np.r_[np.arange(40), np.arange(8)]
    found, places = observations(Data(X[copies], y[copies]))
    assert len(found) == 40
    assert_array_equal(found.X[places], X[copies])
    assert found.weight.sum() == 48


@pytest.mark.parametrize("labels", [False, True])
def test_a_table_that_is_given_several_times_counts_once(labels):
    X, y = smooth()
    y = (y > 0.0).astype(float) if labels else y
    assert len(observations(Data(np.tile(X, (10, 1)), np.tile(y, (10, 1))))[0]) == 40


def test_a_table_of_categories_that_is_given_several_times_is_read_once():
    X, y = (np.repeat(column, 3, 0) for column in cells())
    rows = observations(Data(*cells()))[0]
    found, places = observations(Data(X, y))
    assert_array_equal(found.X, rows.X)
    assert_array_equal(found.y, rows.y)
    assert_array_equal(found.X[places], X)
    assert_array_equal(np.bincount(places), 3)


@pytest.mark.parametrize("make", [cells, smooth])
def test_the_order_depends_on_contents_alone(make):
    X, y = make()
    found = observations(Data(X, y))[0]
    order = np.random.default_rng(1).permutation(len(X))
    again = observations(Data(3.0 * X[order] - 1.0, 2.0 * y[order]))[0]
    assert_allclose(again.X, 3.0 * found.X - 1.0)
    assert_allclose(again.y, 2.0 * found.y)


def test_small_differences_of_inputs_leave_the_order_as_it_is():
    X, y = cells()
    found = observations(Data(X, y))[0]
    shaken = X + 1e-5 * np.random.default_rng(1).standard_normal(X.shape)
    again = observations(Data(shaken, y))[0]
    assert_array_equal(np.rint(again.X), found.X)
    assert_array_equal(again.y, found.y)


def test_counts_of_a_table_of_categories_are_rows():
    X, y = cells()
    table, counts = np.unique(np.hstack([X, y]), axis=0, return_counts=True)
    given = Data(table[:, :2], table[:, 2:], counts.astype(float))
    found, places = observations(given)
    assert found.weight is None
    rows = observations(Data(X, y))[0]
    assert_array_equal(found.X, rows.X)
    assert_array_equal(found.y, rows.y)
    assert_array_equal(found.X[places], table[:, :2])
    assert_array_equal(n_observations(given), counts)


@pytest.mark.parametrize("weight", [np.full(40, 3.0), np.arange(40) % 3 + 1.0, np.full(40, 0.7)])
def test_weights_of_other_tables_are_no_counts(weight):
    found, places = observations(Data(*smooth(), weight))
    assert_array_equal(found.weight[places], weight)
    assert (n_observations(Data(*smooth(), weight)) == 1).all()


def test_weights_of_rows_that_occur_several_times_are_no_counts():
    given = Data(*cells(), np.arange(300) % 4 + 1.0)
    found, places = observations(given)
    assert_array_equal(found.weight[places], given.weight)


@pytest.mark.slow
@pytest.mark.parametrize("n_levels", [20, 120])
@by_default("120")
def test_a_category_of_many_levels_that_tells_nothing_of_y_is_not_believed(n_levels):
    """Neither by predictions nor by the score; a mean at a level could tell the row's own y."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.integers(n_levels, size=600).astype(str)})
    y = (rng.random(600) < 0.3).astype(int)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y)
    entropy = -np.log([0.7, 0.3]) @ [0.7, 0.3]
    p = model.predict_proba(X)
    assert -(np.log(p) @ [0.7, 0.3]).mean() < entropy + 0.05
    assert max(model.scores_["score"]) < -entropy + 0.05


def test_the_choice_of_held_out_rows_does_not_depend_on_y():
    """In each cell, about as large a share of the ones is held out as of the zeros."""
    X, y = cells(2000)
    shares = []
    for seed in range(10):
        found, _ = observations(Data(X, y))
        held_out = np.random.default_rng(seed).permutation(2000)[:200]
        shares.append([(found.y[held_out] == k).mean() / (found.y == k).mean() for k in (0, 1)])
    assert_allclose(np.mean(shares, 0), 1.0, atol=0.03)


@pytest.mark.parametrize("n", [150, 500])
@slow_cases("500")
def test_probabilities_of_cells_are_their_shares(n):
    X, y = cells(n)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X[:, :1], y[:, 0])
    found = model.predict_proba(np.arange(4.0)[:, None])[:, 1]
    observed = [y[X[:, 0] == k].mean() for k in range(4)]
    assert_allclose(found, observed, atol=0.08)
    assert "linear" in model.scores_["model"]


def test_means_of_cells_are_found_where_y_has_no_noise():
    X = np.random.default_rng(0).integers(0, 4, (150, 1)).astype(float)
    y = np.array([1.0, 3.0, 2.0, 6.0])[X[:, 0].astype(int)]
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    assert_allclose(model.predict(np.arange(4.0)[:, None]), [1.0, 3.0, 2.0, 6.0], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.3, 2.0])
@slow_cases(r"1\.3")
def test_equal_weights_change_no_prediction(weight):
    X, y = smooth(60)
    y = np.sin(2.0 * X[:, 0]) + 0.3 * y[:, 0]
    model = AutoGaussianProcessRegressor(random_state=0)
    std = model.fit(X, y).predict_std(X)
    assert_allclose(model.fit(X, y, np.full(60, weight)).predict_std(X), std, rtol=1e-6)


@pytest.mark.slow
def test_rows_at_one_place_are_held_out_together():
    """Networks had seen the places of the rows that chose the noise: .66 to .84 were held."""
    held = []
    for seed in (0, 4):
        r = np.random.default_rng(seed)
        places, X_new = r.uniform(-2.0, 2.0, (20, 2)), r.uniform(-2.0, 2.0, (500, 2))
        X = np.concatenate([np.repeat(places, 3, 0), X_new])
        y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * r.standard_normal(560)
        model = SCGDGaussianProcessRegressor(random_state=0).fit(X[:60], y[:60])
        low, high = model.predict_interval(X_new, coverage=0.9).T
        held.append(np.mean((low <= y[60:]) & (y[60:] <= high)))
    assert min(held) > 0.8


def test_places_are_groups_unless_they_are_few():
    X, y = np.repeat(np.arange(12.0), 20)[:, None], np.arange(240.0)[:, None]
    place = with_places(Data(X, y)).cluster
    assert_array_equal(place[:, None] == place, X == X.T)
    grouped = Data(X, y, cluster=np.arange(240))
    levels = np.hstack([X // 4.0, X % 4.0])  # 3 × 4 of them
    for data in (Data(y, y), Data(X % 9.0, y), Data(levels, y), grouped):
        assert with_places(data) is data
    assert with_places(Data(X % 10.0, y)).cluster is not None
    assert with_places(Data(levels[::7], y[::7])).cluster is not None  # about three rows a place


def moved(model, seeds=(None, 1)):
    """How far predictions move, in standard deviations of y, if inputs are shaken by 1e-5."""
    X, y = cells(200)
    if type(model).__name__ == "GaussianProcessRegressor":  # which has no noise by default
        model.set_params(kernel=RBF() + WhiteKernel())
    target = y[:, 0] if is_classifier(model) else 3.0 * y[:, 0] + X[:, 0]
    found, query = [], np.unique(X, axis=0)
    for seed in seeds:
        noise = 0.0 if seed is None else np.random.default_rng(seed).standard_normal(X.shape)
        model.fit(X + 1e-5 * noise, target)
        found.append(model.predict_proba(query) if is_classifier(model) else model.predict(query))
    return np.abs(found[0] - found[1]).max() / (1.0 if is_classifier(model) else target.std())


@pytest.mark.parametrize("cls", [*DROP_IN, *HELD_OUT, *NETWORKS, SCGDGaussianProcessRegressor])
@pytest.mark.filterwarnings("ignore")  # what fits of few steps say is not asked here
@slow_cases("EnsembleRegressor", "DeepKernel", "ADMM")
def test_inputs_that_are_shaken_change_no_prediction(cls):
    """Merged or not, equal rows count as often as rows that are almost equal."""
    assert moved(constructor(cls)()) < 1e-3


# Deep processes take minutes. SOLVE-GP's q(w) has no correlations between its two sets of points,
# which are others where rows are merged: its predictions move by up to .006. QSRVM has a function
# for each distinct row, and rows that are shaken are distinct: its probabilities move by .006.
MOVING = [SolveGPRegressor, QSRVMClassifier]
SETTLED = [c for c in ESTIMATORS if c not in [*IMAGES, *DEEP, *MOVING]]


@pytest.mark.slow
@pytest.mark.parametrize("cls", SETTLED, ids=named)
@pytest.mark.filterwarnings("ignore")  # of few rows
def test_inputs_that_are_shaken_move_predictions_no_farther_than_if_shaken_otherwise(cls):
    """Training in many small steps lets differences of rounding grow, merged or not."""
    model = cls(random_state=0)
    assert moved(model) < 3.0 * max(1e-3, moved(model, (1, 2)))


@pytest.mark.slow
def test_a_cell_that_tells_nothing_of_y_gets_the_score_of_the_null():
    """With y permuted among the rows of each of two alike cells, 200 times."""
    gains = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        X, y = rng.integers(0, 2, (60, 1)).astype(float), rng.permutation(np.arange(60) % 2)
        model = AutoGaussianProcessClassifier(random_state=seed).fit(X, y)
        gains.append(model.scores_["score"][0] + np.log(2.0))
    error = np.std(gains) / np.sqrt(len(gains))
    assert -0.03 < np.mean(gains) < 3.0 * error


def test_rows_that_are_not_merged_have_an_order_too():
    """Those of FITC, which predicts the same whatever the order; errors tell rows apart."""
    rng = np.random.default_rng(0)
    X, order = rng.normal(size=(150, 3)).repeat(2, 0), rng.permutation(300)
    y, error = np.sin(X[:, 0]) + X[:, 1], rng.uniform(0.1, 0.5, 300)

    def means(order):
        model = FITCRegressor(n_inducing=10, solver="natural", max_iter=5, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(X[order], y[order], y_std=error[order]).predict(X)

    assert_array_equal(means(order), means(np.arange(300)))
