"""Exact processes of small tables: their evidence, rows left out, invariances, predictions."""

import pickle

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, norm, t
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    GaussianProcessRegressor,
)
from skgpstoch.methods.automatic import process, process_fit
from skgpstoch.methods.automatic.process import (
    ExactProcessRegressor,
    fit_in_turn,
    usual_kernels,
)
from skgpstoch.methods.automatic.process_evidence import (
    BY_INPUT,
    BY_LEVEL,
    KERNEL_SHAPES,
    ONE_SCALE,
    LogPosterior,
    Process,
    ProcessInputs,
    ProcessRows,
    Theta,
    curvature,
    laplace_draws,
    search,
)
from skgpstoch.methods.automatic.student_mixture import LeftOut, StudentMixture, Tails, calibrated

EACH_SHAPE = pytest.mark.parametrize("name", KERNEL_SHAPES)


KERNELS = ["matern", "linear"]  # of five


@pytest.fixture(scope="module")
def table():
    return make_friedman1(80, n_features=6, noise=1.0, random_state=0)


@pytest.fixture(scope="module")
def fitted(table):
    return ExactProcessRegressor(kernels=KERNELS, random_state=0).fit(*table)


def some_rows(n=12, d=3, seed=0, weighted=True, groups=None):
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.5, 1.0, 2.0, 3.5], n) if weighted else np.ones(n)
    precision = rng.choice([1.0, 1.0, 0.1], n)
    columns = rng.standard_normal((n, d)), rng.standard_normal(n), weight, precision
    missing = np.arange(2 * n).reshape(n, 2) % [3, 4] == 0
    inputs = ProcessInputs.of(
        np.arange(d) if groups is None else groups, rng.uniform(0.2, 0.5, d), 2, 24
    )
    return ProcessRows(*map(torch.from_numpy, (*columns, missing.astype(float))), inputs)


def some_z(name, rows):
    n_params = len(KERNEL_SHAPES[name].start(rows))
    return np.random.default_rng(1).standard_normal(n_params)


# ---- hyper-parameters given rows ---------------------------------------------------------------


@EACH_SHAPE
def test_evidence_is_that_of_all_copies(name):
    """Of rows with whole weights, each as often as it counts."""
    rows = some_rows()._replace(weight=torch.arange(12.0, dtype=torch.float64) % 3 + 1)
    z, shape = torch.from_numpy(some_z(name, rows)), KERNEL_SHAPES[name]
    process = Process.given(shape, z.numpy(), rows)
    each = rows.weight.long()
    X, y, tau = (column.repeat_interleave(each, 0) for column in (rows.X, rows.y, rows.precision))
    noise = process.theta.noise_where(rows.missing).repeat_interleave(each, 0)
    C = process.covariance.among(shape.inputs(X)) + torch.diag(noise / tau)
    expected = multivariate_normal(np.zeros(len(y)), C.numpy()).logpdf(y.numpy())
    value = LogPosterior(shape, rows)(z.numpy())[0] + 0.5 * float(z @ z)
    of_copies = 0.5 * ((rows.weight - 1.0) * (rows.precision.log() - np.log(2.0 * np.pi))).sum()
    copies = 0.5 * rows.weight.log().sum()  # of the mean of copies, given which they are known
    assert_allclose(value + float(of_copies - copies), expected, rtol=1e-10)


@EACH_SHAPE
@pytest.mark.parametrize(
    ("n_scales", "n_levels", "groups"),
    [
        (3, 0, range(3)),
        (2, 3, [5, 0, 5, 5]),
        (2, 0, [5, 0, 5, 5, 5]),
        (1, 0, range(70)),
        (1, 0, [0, 0, *range(66)]),
    ],
)
def test_gradients_of_the_evidence(name, n_scales, n_levels, groups):
    """With a length-scale for each input, for levels together, or one for all of very many."""
    rows = some_rows(d=len(groups), groups=np.array(groups))
    objective = LogPosterior(KERNEL_SHAPES[name], rows)
    z = some_z(name, rows)
    n_scales += n_levels if name == BY_LEVEL else 0  # of eight rows or more
    n_scales = {BY_INPUT: len(set(groups)), ONE_SCALE: 1}.get(name, n_scales)
    assert len(z) == 3 + (n_scales + 2 if KERNEL_SHAPES[name].is_linear else 0)
    slope = approx_fprime(z, lambda z: objective(z)[0], 1e-6)
    assert_allclose(objective(z)[1], slope, rtol=1e-4, atol=1e-4)


def test_the_search_ends_where_the_gradient_does(table):
    X, y = ((a - a.mean(0)) / a.std(0) for a in table)
    ones = np.ones(len(y))
    columns = map(torch.from_numpy, (X, y, ones, ones, np.empty((len(y), 0))))
    rows = ProcessRows(*columns, ProcessInputs.of(np.arange(6), np.ones(6), 0, 30))
    objective = LogPosterior(KERNEL_SHAPES["rbf"], rows)
    z = search(objective, np.zeros(9))
    assert np.abs(objective(z)[1]).max() < 0.5
    assert objective(z)[0] > objective(np.zeros(9))[0] + 10.0
    curved = curvature(objective, z)
    draws = laplace_draws(objective, z, np.concatenate([np.eye(9), -np.eye(9)]), curved)
    assert 2.5 < process_fit.optimism(curved[0]) < 4.5  # half of five inputs of six, and others
    assert_allclose(draws.mean(0), z, atol=1e-12)
    found = np.array([objective(draw)[0] for draw in draws])
    assert (found < objective(z)[0]).all()
    assert (found > objective(z)[0] - 3.0).all()  # a normal density has fallen by ½


def skewed_without_noise(seed=0):
    X = np.random.default_rng(seed).normal(size=(660, 3))
    y = np.exp(np.sin(2.0 * X[:, 0]) + X[:, 1])
    return X[:260], y[:260], X[260:]


@pytest.mark.slow
def test_draws_are_likely_where_curvatures_are_not_exact(monkeypatch):
    """Without noise, at the bound of the noise; within the bounds, and as likely as ε says."""
    lost = []

    def checked(objective, z, normals, curved):
        draws = laplace_draws(objective, z, normals, curved)
        assert np.abs(draws).max() <= 6.0
        below = [objective(z)[0] - objective(draw)[0] for draw in draws]
        lost.extend(below - 0.5 * np.square(normals).sum(1))
        return draws

    monkeypatch.setattr(process_fit, "laplace_draws", checked)
    X, y, _ = skewed_without_noise()
    ExactProcessRegressor(kernels=["rbf"], random_state=0).fit(X, y)
    assert len(lost) == 8
    assert max(lost) < 5.0


@pytest.mark.slow
def test_the_unit_of_a_skewed_target_without_noise_matters_little():
    """Its rounding moves curvatures; predictions then moved by four deviations."""
    X, y, X_test = skewed_without_noise(seed=4)
    model = ExactProcessRegressor(kernels=["rbf"], random_state=0)
    mean, std = model.fit(X, y).predict(X_test, return_std=True)
    for unit in (1.1, 3.0, 7.0):
        moved = model.fit(X, unit * y).predict(X_test) / unit - mean
        assert np.abs(moved / std).max() < 1.0


def test_levels_of_a_category_have_effects_of_one_variance():
    """In the line's covariance: their indicators, centred, in one unit, whatever their shares."""
    codes = np.random.default_rng(0).choice(4, 50, p=[0.1, 0.2, 0.3, 0.4])
    onehot = (codes[:, None] == np.arange(4)).astype(float)
    std = onehot.std(0)
    X = torch.from_numpy((onehot - onehot.mean(0)) / std)
    inputs = ProcessInputs.of(np.zeros(4, int), std, 0, 0)
    A = X / Theta.of(np.zeros(4), inputs, torch.device("cpu")).length_scale
    indicators = torch.from_numpy(onehot - onehot.mean(0))
    assert_allclose(A / A[0, 0] * indicators[0, 0], indicators, atol=1e-12)
    one = ProcessInputs.of(np.zeros(1, int), np.ones(1), 0, 50)
    median = Theta.of(np.zeros(4), one, torch.device("cpu"))
    assert_allclose((A * median.length_scale).square().sum(1).mean(), 1.0)


def test_units_of_inputs_whose_squares_overflow():
    inputs = ProcessInputs.of(np.array([0, 0, 1]), np.array([3e300, 4e300, 1e-300]), 0, 9)
    assert_allclose(inputs.unit, [5.0 / 3.0, 5.0 / 4.0, 1.0])


@pytest.mark.slow
def test_a_level_may_be_unlike_the_others():
    """One has the opposite curve, and the others share theirs."""
    rng = np.random.default_rng(0)
    codes, x = rng.integers(6, size=500), rng.uniform(-2.0, 2.0, 500)
    y = np.sin(2.0 * x) * np.where(codes == 2, -1.0, 1.0) + 0.1 * rng.standard_normal(500)
    X = np.column_stack([codes[:, None] == np.arange(6), x])
    scores = []
    for name in ("matern", BY_LEVEL):
        model = ExactProcessRegressor(kernels=[name], groups=[0] * 6 + [1], random_state=0)
        model.fit(X[:90], y[:90])
        scores.append(model.log_predictive_density(X[90:], y[90:]).mean())
    assert scores[1] > scores[0] + 0.2


@pytest.mark.parametrize(("n", "has_own"), [(47, False), (48, True), (200, True), (201, False)])
def test_levels_are_told_apart_where_that_is_worth_its_time(n, has_own):
    """From eight rows for each level on, and where networks do not follow."""
    columns = torch.zeros(n, 7), *[torch.ones(n)] * 3, torch.zeros(n, 0)
    groups = np.array([0] * 6 + [1])
    rows = ProcessRows(*columns, ProcessInputs.of(groups, np.ones(7), 0, n))
    assert (BY_LEVEL in usual_kernels(rows)) == has_own


# ---- many inputs -------------------------------------------------------------------------------


def wide_table(n, d, seed=0):
    """Three of d inputs matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + 200, d))
    y = X[:, 0] - X[:, 1] + np.sin(2.0 * X[:, 2]) + 0.2 * rng.standard_normal(n + 200)
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.parametrize(
    ("n", "d", "own"),
    [
        (400, 64, ""),
        (400, 65, BY_INPUT),
        (400, 512, BY_INPUT),
        (400, 513, ""),
        (9, 12, ""),
        (9, 13, ONE_SCALE),
        (100, 20, ""),
        (100, 21, ONE_SCALE),
        (9, 64, ONE_SCALE),
        (9, 65, BY_INPUT),
    ],
)
def test_many_inputs_have_a_scale_each_in_a_kernel_of_its_own(n, d, own):
    columns = torch.zeros(n, d), *[torch.ones(n)] * 3, torch.zeros(n, 0)
    rows = ProcessRows(*columns, ProcessInputs.of(np.arange(d), np.ones(d), 0, n))
    assert set(usual_kernels(rows)) & {BY_INPUT, ONE_SCALE} == {own} - {""}
    names = "rbf", BY_INPUT, ONE_SCALE
    n_scales = [len(KERNEL_SHAPES[name].start(rows)) - 3 for name in names]
    assert n_scales == [d if d <= 64 else 1, d if d <= 512 else 1, 1]


@pytest.mark.slow
def test_inputs_that_matter_are_found_among_many():
    """With one length-scale for all, R² was .54."""
    X, y, X_test, y_test = wide_table(100, 90)
    model = ExactProcessRegressor(random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > 0.9
    assert set(np.argsort(model.feature_importances_)[-3:]) == {0, 1, 2}


@pytest.mark.parametrize("n", [100, 450])
@slow_cases("^450$")
def test_many_scales_have_no_weight_where_no_input_matters(n):
    """Rows that are left out have chosen the scales; by their densities the weight was .56."""
    X, _, _, _ = wide_table(n, 100, seed=1)
    y = np.random.default_rng(2).standard_normal(n)
    model = ExactProcessRegressor(random_state=0).fit(X, y)
    assert dict(zip(model.kernels_, model.weights_, strict=True))[BY_INPUT] < 0.3


@pytest.mark.slow
def test_left_out_densities_and_intervals_of_many_scales_are_those_of_new_rows():
    """90 % intervals held .78, and densities were .38 nats too high."""
    X, y, X_test, y_test = wide_table(420, 90)
    model = ExactProcessRegressor(random_state=0).fit(X, y)
    score = model.log_predictive_density(X_test, y_test).mean()
    assert model.held_out_.log_density.mean() == pytest.approx(score, abs=0.15)
    low, high = model.predict_interval(X_test, coverage=0.9).T
    assert 0.85 < np.mean((low < y_test) & (y_test < high)) < 0.95


@pytest.mark.slow
def test_left_out_densities_and_intervals_of_few_rows_with_a_scale_each():
    """90 % intervals held .80, and densities were .35 nats too high."""
    scores, is_inside = [], []
    for seed in range(3):
        X, y, X_test, y_test = wide_table(90, 60, seed)
        model = ExactProcessRegressor(random_state=0).fit(X, y)
        score = model.log_predictive_density(X_test, y_test).mean()
        scores.append(model.held_out_.log_density.mean() - score)
        low, high = model.predict_interval(X_test, coverage=0.9).T
        is_inside.append((low < y_test) & (y_test < high))
    assert np.mean(scores) == pytest.approx(0.0, abs=0.12)
    assert 0.87 < np.mean(is_inside) < 0.96


def test_a_kernel_that_takes_long_needs_its_time(monkeypatch):
    """One that costs three times as much is not tried if there is time for one of the usual."""
    times = iter([1.0, 2.0])  # after one kernel, and after two
    monkeypatch.setattr(process.time, "monotonic", lambda: next(times))
    names = ["rbf", "matern", BY_INPUT]
    assert fit_in_turn(names, lambda name, _: name, 0.0, 4.0, {BY_INPUT: 3.0}) == names[:2]
    times = iter([1.0, 2.0])
    assert fit_in_turn(names, lambda name, _: name, 0.0, 4.0) == names


# ---- rows that are left out --------------------------------------------------------------------


@EACH_SHAPE
def test_rows_left_out_are_predicted_as_by_refits(name):
    """Each with its whole weight."""
    rows, shape = some_rows(), KERNEL_SHAPES[name]
    z = some_z(name, rows)
    residual, var, _ = Process.given(shape, z, rows).left_out(rows)
    for i in range(len(rows.y)):
        refit = Process.given(shape, z, rows.some(torch.arange(len(rows.y)) != i))
        mean, expected = refit.moments(rows.X[[i]], rows.missing[[i]])
        assert_allclose(rows.y[i] - residual[i], mean[0], rtol=1e-8, atol=1e-8)
        assert_allclose(var[i], expected[0], rtol=1e-8)


def test_densities_of_rows_left_out_are_what_the_evidence_is_less_by():
    """Of rows that are imprecise, of a gross target, and of several copies, but for constants."""
    rows, shape = some_rows(), KERNEL_SHAPES["rbf"]
    rows.y[4], rows.precision[4] = 50.0, 1e-3
    zs = np.random.default_rng(2).standard_normal((6, len(some_z("rbf", rows))))
    log_p = torch.stack([Process.given(shape, z, rows).left_out(rows)[2] for z in zs])
    for i in range(len(rows.y)):
        others = rows.some(torch.arange(len(rows.y)) != i)
        both = [LogPosterior(shape, some) for some in (rows, others)]
        expected = np.array([np.subtract(*(of(z, False)[0] for of in both)) for z in zs])
        assert_allclose(log_p[:, i] - log_p[:, i].mean(), expected - expected.mean(), rtol=1e-7)


def left_out(residual, var):
    """Return what was left out of rows that are precise and have no copies."""
    log_p = norm.logpdf(residual, scale=np.sqrt(var))
    return LeftOut(residual, var, log_p)


def test_no_draw_has_more_than_its_share():
    log_p = np.random.default_rng(0).standard_normal((16, 200)) * np.geomspace(0.01, 1e3, 200)
    share = np.exp(LeftOut(log_p, log_p, log_p).log_share())
    assert_allclose(share.sum(0), 1.0)
    assert share.max() <= 0.25 + 1e-8
    free = np.where(share < 0.25 - 1e-8, np.log(np.maximum(share, 1e-300)) + log_p, np.nan)
    narrow = np.ptp(log_p, axis=0) < 500.0  # none underflows
    assert (np.nanmax(free, 0) - np.nanmin(free, 0))[narrow].max() < 1e-8  # in proportion to 1/p
    assert_array_equal(LeftOut(*np.ones((3, 1, 5))).log_share(), 0.0)


def test_draws_that_a_row_made_likely_count_less_without_it():
    rng = np.random.default_rng(0)
    residual = np.stack([0.1 * rng.standard_normal(50), rng.standard_normal(50)])
    each = left_out(residual, np.stack([np.full(50, 0.01), np.ones(50)]))
    share = np.exp(each.log_share())
    assert_allclose(share.sum(0), 1.0)
    assert (share[0] < share[1]).mean() > 0.9


@pytest.mark.parametrize(("factor", "df"), [(1.0, 200.0), (2.0, 200.0), (1.0, 4.0)])
def test_tails_are_those_of_many_rows(factor, df):
    residual = factor * t(df).rvs((1, 4000), random_state=0)
    found = calibrated(left_out(residual, np.ones((1, 4000))), np.ones(4000))
    assert_allclose(found.log_factor, np.log(factor), atol=0.06)
    assert_allclose(1.0 / found.df, 1.0 / df, atol=0.03)


def test_few_rows_say_little_of_tails():
    """Of errors that are all three deviations large, it takes some to believe in that."""
    factors = [
        calibrated(left_out(np.full((1, n), 3.0), np.ones((1, n))), np.ones(n)).log_factor
        for n in (2, 8, 32, 2000)
    ]
    assert factors == sorted(factors)
    assert factors[0] < 0.5 * np.log(3.0) < 0.9 * np.log(3.0) < factors[-1]


def test_tails_of_weighted_rows_are_those_of_repeated_ones():
    rng = np.random.default_rng(0)
    residual, var = rng.standard_normal((2, 2, 20))
    counts = np.arange(20) % 3
    repeated = left_out(residual.repeat(counts, 1), np.square(var).repeat(counts, 1))
    weighted = calibrated(left_out(residual, np.square(var)), counts.astype(float))
    assert_allclose(weighted, calibrated(repeated, np.ones(counts.sum())), rtol=1e-5)


@pytest.mark.slow
def test_held_out_densities_are_in_the_users_units(fitted, table):
    """About those of new rows, and exactly as much less as the unit is smaller."""
    X, y = table
    new = make_friedman1(1000, n_features=6, noise=1.0, random_state=1)
    assert fitted.held_out_.log_density.shape == y.shape
    expected = fitted.log_predictive_density(*new).mean()
    assert_allclose(fitted.held_out_.log_density.mean(), expected, atol=0.35)
    scaled = clone(fitted).fit(X, 4.0 * y - 1.0).held_out_.log_density
    assert_allclose(scaled, fitted.held_out_.log_density - np.log(4.0), atol=1e-6)


# ---- the estimator -----------------------------------------------------------------------------


@pytest.mark.slow
def test_outliers_among_many_rows_count_for_less():
    """Also those that hyper-parameters are not learned from."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (600, 1))
    f = np.sin(X[:, 0])
    y = f + 0.1 * rng.standard_normal(600)
    y[::40] += rng.choice([-4.0, 4.0], 15)
    model = ExactProcessRegressor(kernels=["rbf"], random_state=0).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.04


@pytest.mark.slow
def test_a_table_that_is_repeated_says_nothing_new(table, fitted):
    """Copies in most rows are not observations that happen to agree, and predict no new row."""
    X, y = table
    for repeated in (
        clone(fitted).fit(np.r_[X, X], np.r_[y, y]),
        clone(fitted).fit(X, y, sample_weight=np.full(len(y), 50.0)),
    ):
        assert_allclose(repeated.predict_std(X), fitted.predict_std(X), rtol=1e-6)
        found = repeated.held_out_.log_densities(len(repeated.held_out_.rows))[: len(y)]
        assert_allclose(found, fitted.held_out_.log_density, atol=1e-6)


@pytest.mark.slow
def test_a_row_of_weight_two_is_the_row_twice(table):
    X, y = (a[:40] for a in table)
    weight = np.arange(40) % 3
    weighted = ExactProcessRegressor(kernels=KERNELS, random_state=0)
    weighted.fit(X, y, sample_weight=weight)
    order = np.random.default_rng(0).permutation(np.arange(40).repeat(weight))
    repeated = clone(weighted).fit(X[order], y[order])
    assert_array_equal(weighted.predict(X, return_std=True), repeated.predict(X, return_std=True))
    held_out = weighted.held_out_.log_densities(len(X))
    assert_array_equal(np.isnan(held_out), weight == 0)
    assert_array_equal(held_out[order], repeated.held_out_.log_density)


@pytest.mark.slow
def test_units_change_nothing(fitted, table):
    X, y = table
    other = clone(fitted).fit(X * np.geomspace(1e-3, 1e3, 6) + 5.0, 1e-3 * y - 7.0)
    query = (X[:9] + 0.1) * np.geomspace(1e-3, 1e3, 6) + 5.0
    mean, std = fitted.predict(X[:9] + 0.1, return_std=True)
    scaled_mean, scaled_std = other.predict(query, return_std=True)
    assert_allclose((scaled_mean + 7.0) * 1e3, mean, rtol=1e-5)
    assert_allclose(scaled_std * 1e3, std, rtol=1e-5)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(fitted, table):
    again = clone(fitted).fit(*table)
    assert_array_equal(again.predict(table[0]), fitted.predict(table[0]))
    assert_array_equal(again.held_out_.log_density, fitted.held_out_.log_density)
    copy = pickle.loads(pickled := pickle.dumps(fitted))
    assert_array_equal(copy.sample_y(table[0], 3), fitted.sample_y(table[0], 3))
    assert len(pickled) < 0.1 * (4 * 16 * 80 * 80 * 8)  # of factors for all kernels and draws


@pytest.mark.slow
def test_one_gross_target_spoils_nothing(table):
    X, y = (a[:60] for a in table)
    wrong = y.copy()
    wrong[7] = 1e6
    new = make_friedman1(300, n_features=6, noise=0.0, random_state=1)
    error = {}
    for name, targets in (("right", y), ("wrong", wrong)):
        model = ExactProcessRegressor(kernels=KERNELS, random_state=0).fit(X, targets)
        error[name] = np.sqrt(np.mean((model.predict(new[0]) - new[1]) ** 2))
    assert error["wrong"] < 1.2 * error["right"]
    assert model.predict_std(X).max() < 10.0 * y.std()


@pytest.mark.slow
def test_density_distribution_quantiles_and_draws_agree(fitted, table):
    row, grid = table[0][:1], np.linspace(-60, 90, 5_001)
    many = np.repeat(row, len(grid), 0)
    density = np.exp(fitted.log_predictive_density(many, grid))
    mean, std = (a[0] for a in fitted.predict(row, return_std=True))
    assert_allclose(trapezoid(density, grid), 1.0, atol=1e-4)
    assert_allclose(trapezoid(grid * density, grid), mean, rtol=1e-3)
    assert_allclose(trapezoid((grid - mean) ** 2 * density, grid), std**2, rtol=0.02)
    low, high = fitted.predict_interval(row, 0.8)[0]
    assert_allclose(fitted.predictive_cdf(row, [low]), 0.1, atol=1e-10)
    assert_allclose(fitted.predictive_cdf(row, [high]), 0.9, atol=1e-10)
    draws = fitted.sample_y(row, 4000, random_state=1)[0]
    assert_allclose(np.mean(draws < high), 0.9, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_models_far_off_do_not_decide_moments_of_sure_ones(noise):
    """A constant with the prior's weight moved means and made deviations 25 times too large."""
    rng = np.random.default_rng(0)
    X, X_new = rng.uniform(-2, 2, (100, 2)), rng.uniform(-2, 2, (500, 2))
    y, f_new = (x[:, 0] + np.sin(x[:, 1]) for x in (X, X_new))
    model = ExactProcessRegressor(random_state=0).fit(X, y + noise * rng.standard_normal(100))
    mean, std = model.predict(X_new, return_std=True)
    median = model.predict_distribution(X_new).median()
    wrong, of_median = (np.sqrt(np.mean(np.square(m - f_new))) for m in (mean, median))
    assert wrong < 1.1 * of_median
    assert np.median(std) < 2.0 * np.hypot(wrong, noise)


def test_means_alone_are_the_same(fitted, table, monkeypatch):
    """And take no variances."""
    X = table[0]
    mean = fitted.predict(X, return_std=True)[0]
    monkeypatch.setattr(Process, "moments", None)
    assert_array_equal(fitted.predict(X), mean)


def test_draws_are_joint(fitted, table):
    """Rows that are the same differ by no more than their noise."""
    row = np.repeat(table[0][:1] + 3.0, 2, 0)  # far away, where f is not known
    first, second = fitted.sample_y(row, 2000)
    assert np.abs(np.corrcoef(first, second)[0, 1]) > 0.5


@pytest.mark.slow
def test_two_outputs_are_two_processes(fitted, table):
    X, y = table
    other = np.sin(X[:, 0])
    both = clone(fitted).fit(X, np.column_stack([y, other]))
    assert both.predict_interval(X).shape == (80, 2, 2)
    assert both.predictive_cdf(X, np.column_stack([y, other])).shape == (80, 2)
    assert both.sample_y(X, 3).shape == (80, 2, 3)
    assert both.held_out_.log_density.shape == (80,)
    assert_allclose(both.predict(X)[:, 0], fitted.predict(X), atol=0.5)


@pytest.mark.slow
def test_an_accelerator_gives_the_same_model(table, pretend):
    X, y = (a[:25] for a in table)
    model, other = (
        ExactProcessRegressor(kernels=["matern"], device=device, random_state=0).fit(X, y)
        for device in (None, "pretend")
    )
    assert_allclose(other.predict(X), model.predict(X), rtol=1e-6)
    assert_allclose(other.held_out_.log_density, model.held_out_.log_density, atol=1e-6)


@pytest.fixture(scope="module")
def gaps():
    """Two tables with a column that is what y mostly depends on, and often missing: 0 there."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    y = 2.0 * X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(400)
    X[:, 3] = rng.random(400) < 0.2
    X[:, 0] *= 1.0 - X[:, 3]
    return (X[:100], y[:100]), (X[100:], y[100:])


@pytest.mark.slow
def test_what_is_missing_is_noise(gaps):
    """Rows that miss a column that matters are covered; others are as certain as they may be."""
    train, (X, y) = gaps
    model = ExactProcessRegressor(kernels=KERNELS, missing_columns=[3], random_state=0)
    model.fit(*train)
    low, high = model.predict_interval(X).T
    inside, missing = (low < y) & (y < high), X[:, 3] == 1.0
    assert inside[missing].mean() > 0.88
    assert np.median(model.predict_std(X[missing])) == pytest.approx(2.0, rel=0.25)
    assert np.median(model.predict_std(X[~missing])) < 0.6
    draws = model.sample_y(X[missing][:1], 500)
    assert draws.std() == pytest.approx(model.predict_std(X[missing][:1])[0], rel=0.15)
    held_out = model.held_out_.std[:, 0]
    assert_allclose(held_out.mean(), model.predict_std(train[0]).mean(), rtol=0.2)


@pytest.mark.slow
def test_without_missing_values_nothing_changes(gaps):
    X, y = gaps[0]
    complete = X[:, 3] == 0.0
    X, y = X[complete], y[complete]
    plain = ExactProcessRegressor(kernels=KERNELS, random_state=0)
    other = clone(plain).set_params(missing_columns=[])
    for method in ("predict", "predict_std"):
        own, expected = (getattr(clone(m).fit(X, y), method)(X) for m in (other, plain))
        assert_array_equal(own, expected)


@pytest.mark.slow
def test_weights_and_units_with_missing_values(gaps):
    X, y = (a[:40] for a in gaps[0])
    weight = np.arange(40) % 3
    model = ExactProcessRegressor(kernels=KERNELS, missing_columns=[3], random_state=0)
    weighted = clone(model).fit(X, y, sample_weight=weight)
    order = np.random.default_rng(0).permutation(np.arange(40).repeat(weight))
    repeated = clone(model).fit(X[order], y[order])
    assert_array_equal(weighted.predict(X, return_std=True), repeated.predict(X, return_std=True))
    scaled = clone(model).fit(X * [9.0, 1.0, 0.1, 1.0], 5.0 * y, sample_weight=weight)
    std = scaled.predict_std(X * [9.0, 1.0, 0.1, 1.0])
    assert_allclose(std, 5.0 * weighted.predict_std(X), rtol=1e-5)


def test_very_many_columns_with_missing_values_have_one_variance(gaps):
    X, y = gaps[0]
    several = np.hstack([X, np.zeros((len(X), 70))])
    model = ExactProcessRegressor(
        kernels=["rbf"], missing_columns=np.arange(3, 74), random_state=0
    ).fit(several, y)
    missing = X[:, 3] == 1.0
    assert np.median(model.predict_std(several[missing])) > 1.5
    assert np.median(model.predict_std(several[~missing])) < 1.2


@pytest.mark.slow
def test_of_more_rows_some_say_what_the_hyper_parameters_are(monkeypatch, table):
    monkeypatch.setattr("skgpstoch.methods.automatic.process.SEARCH_ROWS", 40)
    X, y = table
    model = ExactProcessRegressor(random_state=0).fit(X, y)
    order = np.random.default_rng(0).permutation(80)
    again = clone(model).fit(X[order], y[order])
    assert_array_equal(model.predict(X), again.predict(X))
    assert_array_equal(model.held_out_.log_density[order], again.held_out_.log_density)


def test_many_rows_take_few_factorisations(monkeypatch, table):
    """A kernel of one draw is searched from the last one's best z; all rows are solved once."""
    starts, ends, sizes = [], [], []
    search, given = process_fit.search, Process.given

    def searched(objective, start):
        starts.append(start)
        ends.append(search(objective, start))
        return ends[-1]

    def counted(shape, z, rows):
        sizes.append(len(rows.y))
        return given(shape, z, rows)

    monkeypatch.setattr("skgpstoch.methods.automatic.process.SEARCH_ROWS", 40)
    monkeypatch.setattr("skgpstoch.methods.automatic.process.DRAWS_OF_ROWS", ())
    monkeypatch.setattr(process_fit, "search", searched)
    monkeypatch.setattr(Process, "given", counted)
    ExactProcessRegressor(kernels=["rbf", "matern", "constant"], random_state=0).fit(*table)
    assert [len(start) for start in starts] == [9, 9, 9, 9, 3]  # the rough one, "rbf" twice, ...
    assert not starts[0].any()
    assert not starts[1].any()
    assert_array_equal(starts[2], ends[0])
    assert any(np.array_equal(starts[3], end) for end in ends[1:3])
    assert not starts[4].any()
    assert sizes.count(80) == 3


def test_what_cannot_be_fitted(table):
    with pytest.raises(ValueError, match=r"kernels must be 'auto' or some of \['rbf'"):
        ExactProcessRegressor(kernels=["cubic"]).fit(*table)
    with pytest.raises(ValueError, match=r"kernels must be 'auto' or some of"):
        ExactProcessRegressor(kernels=[]).fit(*table)
    for columns in ([6], [0.0], [[1]], [-7]):
        with pytest.raises(ValueError, match=r"missing_columns must be None or .* from 0 to 5"):
            ExactProcessRegressor(missing_columns=columns).fit(*table)
    with pytest.raises(ValueError, match="X must hold numbers from 0 to 1 in missing_columns"):
        ExactProcessRegressor(missing_columns=[0]).fit(10.0 * table[0], table[1])
    with pytest.raises(ValueError, match="sample_weight must be positive for at least 2 rows"):
        ExactProcessRegressor().fit(*table, sample_weight=np.eye(80)[0])
    model = ExactProcessRegressor(kernels=["constant"]).fit(*table)
    with pytest.raises(ValueError, match=r"y must have the shape \(80,\)"):
        model.log_predictive_density(table[0], table[1][:5])


@pytest.mark.slow
def test_a_constant_target_is_predicted(table):
    model = ExactProcessRegressor(random_state=0).fit(table[0], np.full(80, 3.0))
    assert_allclose(model.predict(table[0]), 3.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The optimal value found for dimension")
def test_few_rows_are_predicted_better_than_by_the_best_hyper_parameters():
    """And as certain as is right, on average over tables."""
    new = make_friedman1(300, n_features=8, noise=2.0, random_state=100)
    kernel = ConstantKernel() * RBF(np.ones(8)) + WhiteKernel()
    gains, inside = [], []
    for seed in range(3):
        X, y = make_friedman1(50, n_features=8, noise=2.0, random_state=seed)
        model = ExactProcessRegressor(random_state=0).fit(X, y)
        best = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
        own, other = (m.log_predictive_density(*new).mean() for m in (model, best))
        gains.append(own - other)
        low, high = model.predict_interval(new[0]).T
        inside.append(np.mean((low < new[1]) & (new[1] < high)))
    assert np.mean(gains) > 0.1
    assert 0.91 < np.mean(inside) < 0.99
    assert min(inside) > 0.85


# ---- mixtures ----------------------------------------------------------------------------------


def test_a_mixture_of_one_is_student_t():
    mean, scale = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    parts = mean[None, None, :, None], scale[None, None, :, None], np.full((1, 1, 1, 1), 4.0)
    mixture, expected = StudentMixture(np.ones(1), *parts), t(4.0, mean, scale)
    y = np.array([[0.3], [4.0]])
    assert_allclose(mixture.log_density(y)[:, 0], expected.logpdf(y[:, 0]))
    assert_allclose(mixture.cdf(y)[:, 0], expected.cdf(y[:, 0]))
    assert_allclose(mixture.quantile(0.9)[:, 0], expected.ppf(0.9))
    assert_allclose(mixture.moments()[0][:, 0], mean)
    assert_allclose(mixture.moments()[1][:, 0], expected.std())


def some_mixture(n=40, n_draws=3, seed=0):
    """Of components that are far apart, or much wider than others, and of two outputs."""
    rng = np.random.default_rng(seed)
    shape = (2, n_draws, n, 2)
    scale = 10.0 ** rng.uniform(-3.0, 3.0, shape)
    df = rng.uniform(3.0, 300.0, (2, 1, 1, 2))
    return StudentMixture(np.array([0.3, 0.7]), 5.0 * rng.standard_normal(shape), scale, df)


@pytest.mark.parametrize("probability", [1e-9, 0.025, 0.5, 0.9, 1.0 - 1e-6])
def test_quantiles_of_mixtures(probability):
    mixture = some_mixture()
    found = mixture.cdf(mixture.quantile(probability))
    assert_allclose(found, probability, rtol=1e-9)
    ends = [np.full((40, 2), end) for end in (-1e9, 1e9)]
    expected = mixture.searched(probability, *ends)
    assert_allclose(mixture.quantile(probability), expected, rtol=1e-6, atol=1e-6)


def test_densities_of_mixtures_are_slopes():
    mixture = some_mixture(n=10)
    y = mixture.quantile(0.3)
    step = 1e-5 * np.abs(mixture.scale).min((0, 1))
    density, slope = mixture.density(y)
    assert_allclose((mixture.cdf(y + step) - mixture.cdf(y - step)) / (2.0 * step), density, 1e-4)
    of_both = mixture.density(y + step)[0] - mixture.density(y - step)[0]
    assert_allclose(of_both / (2.0 * step), slope, rtol=1e-3, atol=1e-5 * np.abs(slope).max())


def test_tails_that_are_light_are_normal():
    residual = np.linspace(-2.0, 2.0, 7)[None]
    found = left_out(residual, np.ones((1, 7))).log_density(Tails(0.0, 1e8))
    assert_allclose(found, norm.logpdf(residual[0]), rtol=1e-6)


@pytest.mark.slow
def test_many_large_errors_are_no_mistakes():
    """Half of the rows have no noise, by which the others' errors would be gross."""
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.integers(0, 2, 150), *(rng.integers(0, 3, 150) == np.c_[:3])])
    y = np.where(X[:, 0] == 1.0, 1.0, rng.standard_normal(150))
    model = ExactProcessRegressor(groups=[0, 1, 1, 1], random_state=0).fit(X, y)
    found = model.predict(np.unique(X[X[:, 0] == 0.0], axis=0))
    assert np.abs(found).max() < 0.4


@pytest.mark.slow
def test_one_draw_of_many_rows_finds_a_fast_function():
    """From 401 rows on every kernel started where that before ended: the RMSE was .75."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (950, 2))
    y = np.sin(20.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(950)
    model = ExactProcessRegressor(random_state=0).fit(X[:450], y[:450])
    assert np.sqrt(np.mean((model.predict(X[450:]) - y[450:]) ** 2)) < 0.25


@pytest.mark.slow
def test_so_do_draws_of_few_rows():
    """The smooth kernel took it for noise, and lost to rougher ones: the log density was .11."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (600, 5))
    f = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * X[:, 3]
    y = f + 0.1 * rng.standard_normal(600)
    model = ExactProcessRegressor(random_state=0).fit(X[:100], y[:100])
    assert model.log_predictive_density(X[100:], y[100:]).mean() > 0.3


@pytest.mark.parametrize("cls", [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier])
@slow_cases("Regressor")
@pytest.mark.slow
def test_rows_in_two_far_groups(cls):
    """In units of the deviation they were at two places: R² was .4, and shares of labels .7."""
    rng = np.random.default_rng(0)
    near = rng.uniform(-2.0, 2.0, (700, 2))
    X = near + 1e3 * (rng.random((700, 1)) < 0.5)
    y = np.sin(2.0 * near[:, 0]) + 0.5 * near[:, 1] + 0.2 * rng.standard_normal(700)
    y = y if cls is AutoGaussianProcessRegressor else y > 0.0
    found = [
        cls(random_state=0).fit(rows[:200], y[:200]).score(rows[200:], y[200:])
        for rows in (X, near)
    ]
    assert found[0] > found[1] - 0.1
