"""Rows of categories whose levels training rows did not have."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.special import ndtri

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor, load
from skgpstoch.data.categories import STAND_INS, stand_ins
from skgpstoch.data.numeric import Numbers
from skgpstoch.data.tables import TableEncoder
from skgpstoch.estimators.distributions.mixed import JoinedLaw
from skgpstoch.estimators.distributions.normal import NormalLaw
from skgpstoch.methods.automatic import automatic_regressor
from skgpstoch.methods.automatic.process import ExactProcessRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore:Column 'g' of X has levels"),
    pytest.mark.usefixtures("one_kernel"),
]


def table(n_levels, n_rows=120, effect=1.0, n_new=75, seed=0):
    """Rows of an input and a category of normal effects, and new rows of a new level each."""
    rng = np.random.default_rng(seed)
    level = np.r_[rng.integers(n_levels, size=n_rows), n_levels + np.arange(n_new)]
    x = rng.uniform(-2, 2, len(level))
    known = rng.permutation(ndtri((np.arange(n_levels) + 0.5) / n_levels))
    effects = effect * np.r_[known, rng.normal(size=n_new)]
    y = np.sin(x) + effects[level] + 0.1 * rng.normal(size=len(level))
    X = pd.DataFrame({"x": x, "g": [f"level {i}" for i in level]})
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


@pytest.fixture(scope="module", autouse=True)
def one_kernel():
    """What is told of new levels does not depend on the kernel of a process."""
    with pytest.MonkeyPatch.context() as patch:
        of_one = functools.partial(ExactProcessRegressor, kernels=["matern"])
        patch.setattr(automatic_regressor, "ExactProcessRegressor", of_one)
        yield


@pytest.fixture(scope="module")
def fitted():
    X, y, *new = table(12)
    return AutoGaussianProcessRegressor(random_state=0).fit(X, y), X, *new


def held(model, X, y):
    low, high = model.predict_interval(X).T
    return np.mean((low <= y) & (y <= high))


@pytest.mark.slow
def test_intervals_hold_new_levels(fitted):
    """Those of an average level held .47."""
    model, _, *new = fitted
    assert held(model, *new) > 0.88


@pytest.mark.slow
@pytest.mark.parametrize("n_levels", [8, pytest.param(25, marks=pytest.mark.slow)])
def test_intervals_hold_new_levels_of_fewer_and_more(n_levels):
    """Those of an average level held .24 and .62."""
    X, y, *new = table(n_levels)
    assert held(AutoGaussianProcessRegressor(random_state=0).fit(X, y), *new) > 0.88


def test_new_levels_may_be_between_known_ones(fitted):
    """Without widening, the density has gaps there: 2.13 nats."""
    model, _, X_new, y_new = fitted
    assert -model.log_predictive_density(X_new, y_new).mean() < 1.7
    ranks = model.predictive_cdf(X_new[:5], 0.7 * np.arange(-2, 3))
    draws = model.sample_y(X_new[:5], 4000, random_state=0)
    below = (draws <= 0.7 * np.arange(-2, 3)[:, None]).mean(1)
    assert_allclose(below, ranks, atol=0.03)


@pytest.mark.slow
def test_intervals_are_as_before_where_levels_do_not_matter():
    X, y, X_new, y_new = table(12, effect=0.0)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    std = model.predict_std(X_new)
    known = model.predict_std(X_new.assign(g=X["g"].iloc[0]))
    assert_allclose(std.mean(), known.mean(), rtol=0.1)
    assert held(model, X_new, y_new) > 0.9


def test_known_levels_are_predicted_as_if_alone(fitted):
    model, X, X_new, _ = fitted
    both = pd.concat([X_new[:3], X[:20], X_new[3:5]])
    mean, std = model.predict(both, return_std=True)
    for found, alone in zip((mean, std), model.predict(X[:20], return_std=True), strict=True):
        assert_array_equal(found[3:23], alone)
    assert std[:3].min() > 2.0 * std[3:23].max()
    assert_allclose(mean[-2:], model.predict(X_new[3:5]))  # and new ones, too


@pytest.mark.slow
def test_predictions_are_of_one_distribution(fitted):
    model, X, X_new, y_new = fitted
    rows, y = pd.concat([X[:4], X_new[:4]]), np.r_[X["x"][:4], y_new[:4]]
    found = model.predict_distribution(rows)
    mean, std = model.predict(rows, return_std=True)
    assert_allclose(found.mean(), mean)
    assert_allclose(found.std(), std)
    assert_allclose(found.logpdf(y), model.log_predictive_density(rows, y))
    assert_allclose(found.cdf(y), model.predictive_cdf(rows, y))
    assert_allclose(np.stack(found.interval(0.9), 1), model.predict_interval(rows, 0.9))
    grid = np.linspace(-15.0, 15.0, 2001)
    p = found.pdf(grid[None])
    assert_allclose(trapezoid(p, grid), 1.0, atol=1e-3)
    assert_allclose(trapezoid(p * grid, grid), mean, atol=1e-2)
    assert_allclose(found.sf(y), 1.0 - found.cdf(y))
    draws = model.sample_y(rows, 4000, random_state=0)
    assert_allclose(draws.std(1), std, rtol=0.15)
    assert_allclose(found.sample(4000, 0).std(1), std, rtol=0.15)


@pytest.mark.slow
def test_rounded_and_transformed_targets_have_new_levels():
    X, y, X_new, _ = table(6, effect=2.0)
    known, new = X.iloc[[0]], X_new.iloc[[0]]
    grades = AutoGaussianProcessRegressor(random_state=0).fit(X, np.round(y))
    atoms = grades.predict_atoms(pd.concat([known, new]))
    assert_allclose(atoms.sum(1), grades.atom_weight_, rtol=1e-6)
    assert (atoms[1] > 0.02).sum() > (atoms[0] > 0.02).sum()
    value = [grades.atoms_[3]]
    assert_allclose(np.exp(grades.log_predictive_probability(new, value)), atoms[1, 3])
    positive = AutoGaussianProcessRegressor(target_transform="log", random_state=0)
    positive.fit(X, np.exp(y))
    (low, high), (low_new, high_new) = positive.predict_interval(pd.concat([known, new]))
    assert 0.0 < low_new < low < high < high_new


def test_stand_ins_are_known_levels():
    X, y, X_new, _ = table(5)
    encoder = TableEncoder()
    encoder.fit_transform(X, y)
    assert not encoder.transform_with_new(X)[1]
    both = pd.concat([X[:2], X_new[:3]])
    Z, (new,) = encoder.transform_with_new(both)
    assert_array_equal(Z, encoder.transform(both))
    assert_array_equal(new.rows, [2, 3, 4])
    assert new.stand_ins.shape == (5, 3, Z.shape[1])
    with pytest.warns(UserWarning, match="'x' of X has missing values") as said:
        encoder.transform_with_new(both.assign(x=np.nan))
    assert len([each for each in said if "missing" in str(each.message)]) == 1
    assert_array_equal(new.stand_ins[:, :, 1:].sum(0), 1.0)  # of each of five levels
    assert_array_equal(new.stand_ins[:, :, 0], np.tile(Z[2:5, 0], (5, 1)))


def test_several_new_levels_of_a_row_are_combined():
    X, y, X_new, _ = table(5)
    encoder = TableEncoder()
    encoder.fit_transform(X.assign(h=[f"{i % 3}" for i in range(len(X))]), y)
    some = X_new[:3].assign(h=["0", "new", "new"]).assign(g=[*X_new.g[:2], X.g[0]])
    with pytest.warns(UserWarning, match="has levels that the training rows did not have"):
        _, every = encoder.transform_with_new(some)
    both = every[2]
    assert [found.rows.tolist() for found in every] == [[2], [0], [1]]
    assert [len(found.stand_ins) for found in every] == [3, 5, STAND_INS]
    assert_array_equal(np.sort(both.stand_ins[:, 0, 1:6].sum(0)), [1, 1, 2, 2, 2])
    assert_array_equal(np.sort(both.stand_ins[:, 0, 6:].sum(0)), [2, 3, 3])
    assert len(np.unique(both.stand_ins[:, 0], axis=0)) == STAND_INS


@pytest.mark.parametrize("numbers", [(2, 2), (2, 2, 2), (3, 3), (4, 2), (3, 5), (12, 2)])
def test_levels_of_several_columns_make_as_many_pairs_as_they_can(numbers):
    """Two columns of two levels made two of four pairs: the std was a third of that of one."""
    levels = [{f"{j} {k}" for k in range(K)} for j, K in enumerate(numbers)]
    own = [min(K, STAND_INS) for K in numbers]
    found = stand_ins(levels, [None] * len(numbers), own)
    assert len(set(zip(*found, strict=True))) == min(STAND_INS, math.prod(own))
    for each, K in zip(found, own, strict=True):
        assert len(set(each[:K])) == K


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Column 'h' of X has levels")
def test_draws_take_levels_equally_often():
    """With rows of another number of levels beside it, shares were 3/8, 3/8 and 2/8 of three."""
    X, y, X_new, _ = table(10, effect=0.2)
    h = np.arange(len(X)) % 3
    X, y = X.assign(h=h.astype(str)), y + np.array([-1.0, 0.0, 4.0])[h]
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    of_h = X[:1].assign(h="new")
    both = pd.concat([of_h, X_new[:1].assign(h="0")])
    draws = model.sample_y(both, 6000, random_state=0)[0]
    assert_allclose(draws.mean(), model.predict(of_h)[0], atol=0.12)


def test_levels_with_effects_are_at_quantiles_of_these():
    X, y, *_ = table(60, n_rows=600)
    encoder = TableEncoder()
    encoder.fit_transform(X.assign(h=[f"{i % 130}" for i in range(600)]), y)
    many = encoder.encoders[2]
    found = [many.levels[level] for level in encoder.stand_ins()[2]]
    used = many.means[:-1, many.means.any(0).argmax()]
    ranks = np.sort(np.argsort(np.argsort(used))[found])
    assert 0 < ranks[0] < 130 / STAND_INS < 130 * (1 - 1 / STAND_INS) < ranks[-1] < 130
    assert (np.abs(np.diff(ranks) - 130 / (STAND_INS - 0.3)) < 1.0).all()


def test_columns_for_each_level_have_levels_at_quantiles_of_the_target():
    X, y, *_ = table(STAND_INS * 4, n_rows=STAND_INS * 40)
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    assert Z.shape[1] == 1 + STAND_INS * 4
    means = pd.Series(y).groupby(X["g"].to_numpy()).mean()
    ranks = np.sort(means.rank()[encoder.stand_ins()[1]])
    assert (np.abs(np.diff(ranks) - STAND_INS * 4 / (STAND_INS - 0.3)) < 1.0).all()
    classes = np.array(["a", "b"])
    encoder.fit_transform(X, classes[(y > 0).astype(int)], classes=classes)
    shares = pd.Series(y > 0).groupby(X["g"].to_numpy()).mean()[encoder.stand_ins()[1]]
    assert shares.min() < 0.1
    assert shares.max() > 0.9


def test_what_is_missing_for_the_first_time_is_a_new_level():
    """Predictions were as certain as those of known levels, and far off."""
    X, y, *_ = table(5)
    gap = X[:1].assign(g=None)
    for ordered in (False, True):
        kind = pd.CategoricalDtype(sorted(X["g"].unique()), ordered=ordered)
        encoder = TableEncoder()
        encoder.fit_transform(X.astype({"g": kind}), y)
        with pytest.warns(UserWarning, match="'g' of X has missing values") as said:
            _, (new,) = encoder.transform_with_new(gap.astype({"g": kind}))
        assert len(said) == 1
        assert_array_equal(new.rows, [0])
        encoder.fit_transform(pd.concat([X, gap]).astype({"g": kind}), np.r_[y, 0.0])
        assert not encoder.transform_with_new(gap.astype({"g": kind}))[1]


def test_laws_of_some_rows_each():
    rng = np.random.default_rng(0)
    mean, std, y = rng.normal(size=(6, 2)), rng.uniform(0.5, 1.0, (6, 2)), rng.normal(size=(6, 2))
    whole, places = NormalLaw(mean, std), [np.array([4, 0, 2]), np.array([1, 3, 5])]
    joined = JoinedLaw.of_parts([whole.of(place) for place in places], places)
    for rows in (slice(None), slice(1, 4), np.array([5, 5, 0, 2]), np.array([1, 3])):
        some, expected, at = joined.of(rows), whole.of(rows), y[rows]
        assert some.shape == expected.shape
        for name in ("log_density", "joint_log_density", "cdf", "sf", "crps"):
            assert_array_equal(getattr(some, name)(at), getattr(expected, name)(at))
        assert_array_equal(some.moments(), expected.moments())
        assert_array_equal(some.mean(), expected.mean())
        assert_array_equal(some.quantile(0.2), expected.quantile(0.2))
        assert_array_equal(some.quantiles(np.full(at.shape, 0.3)), expected.quantile(0.3))
        assert some.sample(3, np.random.RandomState(0)).shape == (3, *at.shape)
    assert joined.of(slice(0, 0)).shape == (0, 2)


# ---- numbers that few rows lacked ----------------------------------------------------------------


def lacking(n_missing, n_rows=200, n_new=100, seed=0):
    """Rows of which some lack an input that matters, and new ones that all lack it."""
    rng = np.random.default_rng(seed)
    x, z = rng.uniform(-2, 2, (2, n_rows + n_new))
    y = np.sin(2 * x) + 0.5 * z + 0.1 * rng.normal(size=len(x))
    x[:n_missing] = x[n_rows:] = np.nan
    X = pd.DataFrame({"x": x, "z": z})
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


@pytest.mark.slow
@pytest.mark.parametrize("n_missing", [1, 4])
def test_intervals_hold_where_numbers_are_missing_that_few_rows_lacked(n_missing, tmp_path):
    """They held .2 to .8."""
    X, y, *new = lacking(n_missing)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    assert held(model, *new) > 0.88
    assert 0.5 < np.median(model.predict_std(new[0])) < 1.5
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert_array_equal(again.predict_interval(new[0]), model.predict_interval(new[0]))


def test_what_few_rows_lack():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    weight = np.ones(400)
    for n_missing, is_few in ((0, False), (1, True), (19, True), (20, False), (300, False)):
        x[:n_missing] = np.nan
        found = Numbers.fit("x", x, None)
        assert (found.stand_ins is not None) == is_few
        weight[:n_missing] = 40.0
        if is_few:
            assert Numbers.fit("x", x, weight).stand_ins is None
            assert set(found.stand_ins) <= set(x)
            assert_allclose(np.mean(found.stand_ins), np.nanmean(x), atol=0.1)
    few = np.r_[np.full(100, np.nan), rng.normal(size=9900)]
    assert Numbers.fit("x", few, None).stand_ins is None
    assert Numbers.fit("x", x[300:], None, flags=True).stand_ins is not None  # others lack it


def test_weights_are_copies_where_few_rows_lack_a_number():
    x = np.r_[np.nan, np.arange(30.0)]
    weight = np.arange(31) % 4 + 1.0
    found = Numbers.fit("x", x, weight)
    copies = Numbers.fit("x", np.repeat(x, weight.astype(int)), None)
    assert_array_equal(found.stand_ins, copies.stand_ins)


@pytest.mark.slow
def test_classes_are_warned_of():
    X, y, new, _ = lacking(3)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, y > 0)
    with pytest.warns(UserWarning, match=r"Column 'x' of X has missing values, but it had few in"):
        model.predict_proba(new)
