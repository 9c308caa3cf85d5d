"""Stacking of densities, and the estimators that choose for the user."""

import pickle

import numpy as np
import pytest
import torch
from families import slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.stats import norm
from shared import Names
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import DataConversionWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, ShuffleSplit, TimeSeriesSplit
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DLMRegressor,
    GaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPRegressor,
)
from skgpstoch.data.held_out import folds_of_units
from skgpstoch.methods.automatic import stacking
from skgpstoch.methods.automatic.stacking import prior_rows, stacking_weights


def sparse(**params):
    return SVGPRegressor(n_inducing=10, solver="natural", max_iter=10, random_state=0, **params)


def stack(**params):
    models = [
        ("gp", sparse()),
        ("linear", ConstantVarianceRegressor(LinearRegression())),
        ("near", ConstantVarianceRegressor(KNeighborsRegressor())),
    ]
    return StackedDensityRegressor(models, cv=3, **params)


@pytest.fixture(scope="module")
def step():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    return X, np.sign(X[:, 0]) + 0.5 * X[:, 0] + 0.2 * rng.standard_normal(200)


@pytest.fixture(scope="module")
def stacked(step):
    return stack().fit(*step)


# ---- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_weights_meet_the_conditions_of_the_optimum(seed):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(300)
    models = [norm(-1, 1), norm(1, 1), norm(0, 3), norm(8, 1), norm(0, 0.5)]
    log_p, share = np.stack([model.logpdf(y) for model in models], 1), rng.uniform(0.5, 2, 300)
    weights = stacking_weights(log_p, share)
    p, share = np.exp(log_p), share / share.sum()
    slopes = share @ (p / (p @ weights)[:, None])
    assert_allclose(weights.sum(), 1.0)
    assert (slopes <= 1.0 + 2e-6).all()
    assert_allclose(weights * slopes, weights, atol=1e-3)

    def loss(raw):
        w = np.exp(raw - raw.max())
        return -share @ np.log(p @ (w / w.sum()))

    best = minimize(loss, np.zeros(5), tol=1e-12).fun
    assert -share @ np.log(p @ weights) <= best + 1e-6


def test_weights_survive_densities_beyond_floats():
    log_p = np.array([[-2000.0, -3000.0], [-1.0, -5000.0]])
    assert_allclose(stacking_weights(log_p), [1.0, 0.0], atol=1e-6)


def test_weights_of_a_stack_may_be_shares(step):
    """The rows counted as one beside the prior, so that a bad model had a share."""
    X, y = step
    models = [
        ("tree", ConstantVarianceRegressor(DecisionTreeRegressor(random_state=0))),
        ("line", ConstantVarianceRegressor(Ridge())),
    ]
    expected = StackedDensityRegressor(models, cv=3).fit(X, y, np.ones(len(X)))
    with pytest.warns(UserWarning, match="taken as shares of"):
        found = StackedDensityRegressor(models, cv=3).fit(X, y, np.full(len(X), 1 / len(X)))
    assert_allclose(found.weights_, expected.weights_, rtol=1e-6)


@pytest.mark.parametrize("inner", [KNeighborsRegressor(), make_pipeline(Ridge())], ids=str)
def test_models_whose_fit_takes_no_weights_are_named(step, inner):
    """The words were Python's, or scikit-learn's about an argument that our fit has not."""
    X, y = step
    message = rf"sample_weight must be None, because {type(inner).__name__}\.fit takes no weights"
    wrapped, weight = ConstantVarianceRegressor(inner), 1.0 + np.arange(len(X)) % 2
    models = [("tree", ConstantVarianceRegressor(DecisionTreeRegressor())), ("inner", wrapped)]
    for model in (wrapped, StackedDensityRegressor(models)):
        model.fit(X, y)
        with pytest.raises(TypeError, match=message):
            model.fit(X, y, weight)
    with pytest.raises(TypeError, match=r"because GaussianProcessRegressor\.fit takes no weights"):
        StackedDensityRegressor([("gp", GaussianProcessRegressor())]).fit(X, y, weight)


def test_models_that_pass_arguments_on_take_weights(step):
    X, y = step
    search = GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2)
    assert ConstantVarianceRegressor(search).fit(X, y, 1.0 + np.arange(len(X)) % 2).std_ > 0.0


@pytest.mark.parametrize("prior", [0.3, 2.0, 50.0])
def test_a_prior_is_rows_that_speak_for_each_model(prior):
    """The same weights as with rows that no other model explains."""
    rng = np.random.default_rng(0)
    log_p = rng.standard_normal((40, 3))
    own = np.log(np.eye(3) + 1e-300)
    of_rows = stacking_weights(np.vstack([log_p, own]), np.repeat([1.0, prior], [40, 3]))
    assert_allclose(stacking_weights(log_p, prior=prior), of_rows, atol=1e-4)


def test_priors_of_each_model():
    log_p = np.random.default_rng(0).normal(size=(40, 3))
    a = np.array([0.5, 2.0, 1e-9])
    own = np.log(np.eye(3) + 1e-300)
    of_rows = stacking_weights(np.vstack([log_p, own]), np.r_[np.ones(40), a])
    assert_allclose(stacking_weights(log_p, prior=a), of_rows, atol=1e-4)


def test_far_off_models_have_less_of_a_prior():
    found = prior_rows(0.5, np.array([1e-6, 2e-6, 1.0, 1e-2]), 100.0)
    assert_allclose(found, [0.5, 0.5, 1e-5, 1e-3])
    assert_allclose(prior_rows(0.5, np.array([0.5, 1.0]), 100.0), 0.5)
    assert (prior_rows(0.5, np.array([0.0, 1.0, 0.0]), 100.0) == [0.5, 0.5e-12, 0.5]).all()


def test_a_prior_fades_with_rows():
    log_p = np.log(np.random.default_rng(0).uniform(0.5, 1.5, (2000, 2)) * [1.0, 0.7])
    gaps = [
        np.abs(stacking_weights(log_p[:n], prior=0.5) - stacking_weights(log_p[:n])).max()
        for n in (20, 200, 2000)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 5.0 * gaps[-1]
    alone = stacking_weights(np.array([[0.0, -50.0]]), prior=0.5)
    assert_allclose(alone, [0.75, 0.25], atol=1e-5)


@pytest.mark.parametrize("densities", [np.full((2, 2), np.nan), [[0.0, np.nan], [0.0, 1.0]]])
def test_weights_of_densities_that_are_no_numbers_are_refused(densities):
    with pytest.raises(ValueError, match="a finite log density from at least one model"):
        stacking_weights(np.asarray(densities))


# ---- the mixture -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mixture_scores_better_than_its_parts(stacked, step):
    assert_allclose(stacked.weights_.sum(), 1.0)
    assert stacked.score_ >= stacked.scores_.max() - 1e-6
    assert stacked.weights_[1] < 0.5  # a line through a step


@pytest.mark.slow
def test_a_mixture_of_one_is_itself(step):
    one = StackedDensityRegressor([("gp", sparse())], cv=2).fit(*step)
    alone, query = sparse().fit(*step), step[0][:20]
    assert_allclose(one.weights_, [1.0])
    for name in ("predict", "predict_std", "predict_interval"):
        assert_allclose(getattr(one, name)(query), getattr(alone, name)(query), rtol=1e-12)
    found = one.log_predictive_density(query, step[1][:20])
    assert_allclose(found, alone.log_predictive_density(query, step[1][:20]), rtol=1e-12)


@pytest.mark.slow
def test_density_moments_quantiles_and_draws_agree(stacked):
    row, grid = np.array([[0.1]]), np.linspace(-12, 12, 20_001)
    many = np.repeat(row, len(grid), 0)
    density = np.exp(stacked.log_predictive_density(many, grid))
    assert_allclose(trapezoid(density, grid), 1.0, atol=1e-6)
    mean, std = stacked.predict(row, return_std=True)
    assert_allclose(trapezoid(grid * density, grid), mean[0], atol=1e-6)
    assert_allclose(trapezoid((grid - mean) ** 2 * density, grid), std[0] ** 2, rtol=1e-5)
    low, high = stacked.predict_interval(row, 0.8)[0]
    assert_allclose(stacked.predictive_cdf(row, [low]), 0.1, atol=1e-8)
    assert_allclose(stacked.predictive_cdf(row, [high]), 0.9, atol=1e-8)
    below = trapezoid(density[grid < high], grid[grid < high])
    assert_allclose(below, 0.9, atol=2e-3)
    draws = stacked.sample_y(row, 20_000, random_state=1)[0]
    assert_allclose(np.mean(draws < high), 0.9, atol=0.01)
    assert_allclose(draws.mean(), mean[0], atol=0.02)


@pytest.mark.slow
def test_stacks_are_estimators(stacked, step):
    other = clone(stacked).set_params(gp__n_inducing=5, near=ConstantVarianceRegressor(Ridge()))
    assert other.get_params()["gp__n_inducing"] == 5
    again = clone(stacked).fit(*step)
    assert_array_equal(again.predict(step[0]), stacked.predict(step[0]))
    assert_array_equal(pickle.loads(pickle.dumps(stacked)).weights_, stacked.weights_)


@pytest.mark.slow
def test_weights_of_rows_reach_all(step):
    weight = np.where(step[0][:, 0] > 0, 1.0, 1e-6)
    model = stack().set_params(near=ConstantVarianceRegressor(Ridge()))
    model.fit(*step, sample_weight=weight)
    right = step[0][:, 0] > 0.3
    error = model.predict(step[0][right]) - step[1][right]
    assert np.abs(error).mean() < 0.3


@pytest.mark.slow
def test_models_of_little_weight_are_left_out(stacked, step, monkeypatch):
    shares = stacked.weights_
    assert np.sort(shares)[1] > 0.01
    monkeypatch.setattr(stacking, "KEPT_WEIGHT", 1.0)
    alone = stack().fit(*step)
    assert_array_equal(alone.weights_, shares == shares.max())
    assert alone.estimators_[int(shares.argmin())] is None


@pytest.mark.slow
def test_targets_and_weights_of_stacks_are_checked(step):
    X, y = step
    with pytest.warns(DataConversionWarning):
        assert stack().fit(X, y[:, None]).predict(X).shape == y.shape
    weighable = stack().set_params(near=ConstantVarianceRegressor(Ridge()))
    for model in (weighable, ConstantVarianceRegressor(Ridge())):
        with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
            model.fit(X, y, sample_weight=-np.ones(len(y)))
        half = np.repeat([0.0, 1.0], 100)
        weighted = clone(model).fit(X, y, sample_weight=half)
        assert_array_equal(weighted.predict(X), clone(model).fit(X[100:], y[100:]).predict(X))
        for wrong in (y[:, None, None], np.column_stack([y, y]), y[:5]):
            with pytest.raises(ValueError, match=r"y must|array|inconsistent"):
                weighted.log_predictive_density(X, wrong)
        with pytest.raises((TypeError, ValueError), match=r"dimension|y must"):
            weighted.log_predictive_density(X, 0.0)
        with pytest.raises(ValueError, match="y contains NaN"):
            weighted.predictive_cdf(X, np.full(len(y), np.nan))
    with pytest.raises(ValueError, match="numeric"):
        stack().fit(X, y.astype(str))


@pytest.mark.parametrize(
    "model",
    [
        stack(),
        ConstantVarianceRegressor(Ridge()),
        AutoGaussianProcessRegressor(max_time=0.01),
        AutoGaussianProcessClassifier(max_time=0.01),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize(
    ("weight", "wanted"),
    [
        (True, "a number, or one for each row"),
        (np.True_, "a number, or one for each row"),
        (np.array(True), "a number, or one for each row"),
        (torch.tensor(True), "a number, or one for each row"),
        ("x", "numeric"),
    ],
    ids=["boolean", "numpy's", "array", "tensor", "text"],
)
def test_a_weight_is_no_boolean(model, weight, wanted, step):
    X, y = step
    with pytest.raises(ValueError, match=f"sample_weight must be {wanted}"):
        model.fit(X, np.sign(y), sample_weight=weight)


def test_drop_ins_can_be_stacked(step):
    """They have densities, a distribution and draws."""
    exact = GaussianProcessRegressor(RBF() + WhiteKernel(0.1), optimizer=None)
    models = [("exact", exact), ("linear", ConstantVarianceRegressor(LinearRegression()))]
    model = StackedDensityRegressor(models, cv=3).fit(*step)
    assert 0.1 < model.weights_[0] <= 1.0
    below = model.predictive_cdf(*step)
    assert 0.4 < below.mean() < 0.6
    interval = model.predict_interval(step[0], 0.8)
    assert_allclose(model.predictive_cdf(step[0], interval[:, 0]), 0.1, atol=1e-6)


@pytest.mark.slow
def test_units_of_mixtures(stacked, step):
    X, y = step
    for one in (stacked, ConstantVarianceRegressor(Ridge()).fit(X, y)):
        for unit in (1e-200, 1e150):
            scaled = clone(one).fit(X, unit * y).predict_std(X[:5])
            assert_allclose(scaled / unit, one.predict_std(X[:5]), rtol=1e-6)


@pytest.mark.slow
def test_callbacks_are_told_of_every_fit(step):
    pytest.importorskip("sklearn.callback")
    names = Names()
    models = [("gp", sparse()), ("other", sparse())]
    model = StackedDensityRegressor(models, cv=2).set_callbacks(names).fit(*step)
    assert names.begun[0] == names.ended[-1] == ("StackedDensityRegressor", "fit")
    assert sorted(names.begun) == sorted(names.ended)
    n_fits = 4 + sum(one is not None for one in model.estimators_)
    assert names.begun.count(("SVGPRegressor", "fit")) == n_fits
    assert names.begun.count(("SVGPRegressor", "epoch")) >= n_fits


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"beta": [0.1, 1.0]}, {"calibrate": True}], ids=repr)
@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
@slow_cases("fixed-.*beta", "fixed")
def test_callbacks_of_fits_within_a_fit_end(params, hyperparameters, step):
    """Threads of progress bars, say."""
    pytest.importorskip("sklearn.callback")
    names = Names()
    model = DLMRegressor(n_inducing=5, max_iter=3, hyperparameters=hyperparameters, **params)
    model.set_callbacks(names).fit(*step)
    n_fits = len(model.beta_path_) + 1 + (2 if hyperparameters == "fixed" else 0)
    assert names.set_up == names.torn_down == n_fits
    assert sorted(names.begun) == sorted(names.ended)


@pytest.mark.slow
def test_models_without_callbacks_are_fitted_without(step):
    pytest.importorskip("sklearn.callback")
    names = Names()
    models = [("exact", GaussianProcessRegressor(1.0 * RBF() + WhiteKernel(), random_state=0))]
    StackedDensityRegressor(models, cv=2).set_callbacks(names).fit(*step)
    assert ("StackedDensityRegressor", "exact") in names.ended


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "must be a list of"),
        ([Ridge()], "must be a list of"),
        ([("a", Ridge())], r"estimators: .a. has no log_predictive_density.*constant variance"),
        ([("a", 5)], r"has no log_predictive_density: it is 5\.$"),
        ([("a", sparse()), ("a", sparse())], "Names provided are not unique"),
    ],
)
def test_what_cannot_be_stacked(models, message, step):
    with pytest.raises(ValueError, match=message):
        StackedDensityRegressor(models).fit(*step)
    with pytest.raises(TypeError, match=r"'a' is a class; give an estimator, as SVGPRegressor\(\)"):
        StackedDensityRegressor([("a", SVGPRegressor)]).fit(*step)


def test_one_variance_is_that_of_rows_held_out(step):
    model = ConstantVarianceRegressor(LinearRegression(), cv=4).fit(*step)
    interval = model.predict_interval(step[0], 0.9)
    inside = (interval[:, 0] < step[1]) & (step[1] < interval[:, 1])
    assert 0.8 < inside.mean() <= 1.0
    expected = norm(model.predict(step[0]), model.std_).logpdf(step[1])
    assert_allclose(model.log_predictive_density(*step), expected)
    assert_allclose(
        model.predictive_cdf(*step), norm.cdf(step[1], model.predict(step[0]), model.std_)
    )


@pytest.mark.slow
def test_relative_errors_are_stacked_with_others():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 1))
    y = np.exp(X[:, 0] + 0.3 * rng.standard_normal(150))
    ridge = ConstantVarianceRegressor(Ridge(0.01))
    models = [("plain", ridge), ("log", clone(ridge).set_params(target_transform="log"))]
    model = StackedDensityRegressor(models, cv=4).fit(X, y)
    assert model.weights_[1] > 0.9
    assert abs(model.named_estimators_["log"].std_ - 0.3) < 0.06
    assert abs(model.estimators_[1].predict([[0.0]])[0] - np.exp(0.5 * 0.3**2)) < 0.1
    with pytest.raises(ValueError, match="y must be positive for target_transform='log', got"):
        models[1][1].fit(X, -y)


BAD_FOLDS = [
    ([(range(200), range(200))], "cv must not train on the rows that it holds out"),
    ([], "must give at least one fold"),
    ({}, "must give at least one fold"),
    (b"x", "gives no folds"),
    (GroupKFold(3), "cv.split.X, y, groups"),
    ([(range(50), range(50, 201))], "from 0 to 199"),
    ([(range(50), range(-50, 0))], "from 0 to 199"),
    ([([0.0, 1.0], [2.0])], "row indices"),
    ([(range(100), [])], "rows of positive sample_weight both to train on and held out"),
]


@pytest.mark.parametrize(("cv", "message"), BAD_FOLDS)
@pytest.mark.parametrize("is_stack", [False, True])
def test_folds_that_judge_nothing_are_refused(cv, message, is_stack, step):
    model = ConstantVarianceRegressor(Ridge())
    model = StackedDensityRegressor([("ridge", model)]) if is_stack else model
    with pytest.raises(ValueError, match=message):
        model.set_params(cv=cv).fit(*step)


@pytest.mark.parametrize("cv", [TimeSeriesSplit(3), ShuffleSplit(3, random_state=0)])
def test_one_variance_is_that_of_all_rows_that_folds_hold_out(cv, step):
    X, y = step
    weight = np.where(np.arange(len(y)) % 3, 1.0, 2.0)
    model = ConstantVarianceRegressor(Ridge(), cv=cv).fit(X, y, sample_weight=weight)
    total = n = 0.0
    for train, test in cv.split(X):
        error = y[test] - Ridge().fit(X[train], y[train], weight[train]).predict(X[test])
        total, n = total + weight[test] @ error**2, n + weight[test].sum()
    assert_allclose(model.std_, np.sqrt(total / n))


class Counting(Ridge):
    """Notes how many rows each fit has."""

    rows: list = []  # noqa: RUF012

    def fit(self, X, y):
        self.rows.append(len(X))
        return super().fit(X, y)


def test_the_model_is_fitted_before_what_judges_it(step):
    """Interrupted later, it had the deviation of complete folds: 90 % intervals held .34 to .5."""
    X, y = step
    Counting.rows.clear()
    ConstantVarianceRegressor(Counting(), cv=2).fit(X, y)
    assert Counting.rows == [len(X), len(X) // 2, len(X) // 2]


def test_sorted_rows_are_shuffled_into_folds():
    """Folds in the order of the rows asked trees for what they cannot know: .56 for .1."""
    r = np.random.default_rng(0)
    X = np.sort(r.uniform(0.0, 10.0, 300))[:, None]
    y = X[:, 0] + 0.1 * r.normal(size=300)
    model = ConstantVarianceRegressor(KNeighborsRegressor())
    assert 0.08 < model.fit(X, y).std_ < 0.14
    folds = [rows for _, rows in folds_of_units(5, csr_matrix(X), y).split(X)]
    assert all(0.3 < rows.mean() / 150.0 < 1.7 for rows in folds)


def test_folds_of_masks_leave_out_rows_that_do_not_count(step):
    """They are numbered as the user's rows are, those without weight among them."""
    X, y = step
    half, weight = np.arange(len(y)) % 2 == 0, np.where(np.arange(len(y)) < 10, 0.0, 1.0)
    masks = [(half, ~half), (~half, half)]
    ridge = ConstantVarianceRegressor(Ridge(), cv=masks)
    stack = StackedDensityRegressor([("ridge", ConstantVarianceRegressor(Ridge()))], cv=masks)
    found, fewer = ([clone(m) for m in (ridge, stack)] for _ in range(2))
    wrong = np.where(weight > 0.0, y, 1e6)
    some = [(a[10:], b[10:]) for a, b in masks]
    for model, other in zip(found, fewer, strict=True):
        model.fit(X, wrong, sample_weight=weight)
        other.set_params(cv=some).fit(X[10:], y[10:])
    assert_allclose(found[0].std_, fewer[0].std_)
    assert_allclose(found[1].score_, fewer[1].score_)


@pytest.mark.slow
def test_counts_are_not_stacked_with_real_numbers():
    """Probabilities and densities have other units, so that weights would say nothing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (40, 1))
    y = rng.poisson(np.exp(X[:, 0]))
    counts = (
        "counts",
        SVGPRegressor(likelihood="poisson", n_inducing=5, solver="natural", max_iter=1),
    )
    models = [counts, ("real", ConstantVarianceRegressor(Ridge()))]
    with pytest.raises(ValueError, match="'counts' predict counts, and 'real' real numbers"):
        StackedDensityRegressor(models, cv=2).fit(X, y)
    others = (
        "others",
        SVGPRegressor(likelihood="poisson", n_inducing=4, solver="natural", max_iter=1),
    )
    weights = StackedDensityRegressor([counts, others], cv=2).fit(X, y).weights_
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
def test_quantiles_of_a_stack_of_transformed_and_other_targets(transform):
    """Its members have supports of unlike shapes, which are ends of one axis."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    y = np.exp(X[:, 0] + 0.3 * rng.standard_normal(60))
    ridge = ConstantVarianceRegressor(Ridge())
    models = [("plain", ridge), ("changed", clone(ridge).set_params(target_transform=transform))]
    model = StackedDensityRegressor(models, cv=2).fit(X, y)
    model.weights_ = np.array([0.4, 0.6])
    model.estimators_ = [clone(each).fit(X, y) for _, each in models]
    law = model.predict_distribution(X[:5])
    probabilities = [0.1, 0.5]
    each = np.column_stack([law.ppf(p) for p in probabilities])
    assert_allclose(law.ppf([probabilities]), each, rtol=1e-6)
    assert_allclose(law.ppf(np.full(5, 0.1)), each[:, 0], rtol=1e-6)
    assert_allclose(law[1].ppf([probabilities]), each[1:2], rtol=1e-6)
    assert_array_equal(law.ppf([[0.0, 1.0]]), [[-np.inf, np.inf]] * 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("condition_on", "its weights or errors come from held-out rows"),
        ("partial_fit", "its weights or errors come from held-out rows"),
        ("predict_gradient", "it is not a single Gaussian process"),
        ("sample_functions", "it is not a single Gaussian process"),
        ("log_marginal_likelihood", "it is not a single Gaussian process"),
    ],
)
@pytest.mark.parametrize("cls", [ConstantVarianceRegressor, StackedDensityRegressor])
def test_reasons_for_missing_methods_hold_for_one_model_and_for_several(cls, name, message):
    with pytest.raises(AttributeError, match=f"{cls.__name__} has no {name}: {message}"):
        getattr(cls, name)


@parametrize_with_checks(
    [
        ConstantVarianceRegressor(Ridge(), cv=2),
        ConstantVarianceRegressor(Ridge(), cv=2, target_transform="yeo-johnson"),
    ]
)
@slow_cases("yeo-johnson.*check_(?!regressors|supervised|estimators_dtypes|sample_weight)")
def test_checks_of_one_variance(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "model", [StackedDensityRegressor([("a", sparse())], cv=2), ConstantVarianceRegressor(Ridge())]
)
def test_failed_fits_of_others_change_nothing(model, step):
    X, y = step
    model = clone(model).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.hstack([X, X]), np.where(np.arange(len(y)) == 1, np.nan, y))
    assert model.n_features_in_ == X.shape[1]
    assert_array_equal(model.predict(X), before)


def test_errors_of_stacked_models_say_whose_they_are(step):
    models = [("near", ConstantVarianceRegressor(KNeighborsRegressor(1000)))]
    with pytest.raises(ValueError, match="n_neighbors") as caught:
        StackedDensityRegressor(models, cv=3).fit(*step)
    assert any("'near'" in note for note in caught.value.__notes__)


def test_densities_that_are_no_numbers_are_refused(step):
    class Nowhere(ConstantVarianceRegressor):
        def log_predictive_density(self, X, y):
            return np.full(len(y), np.nan)

    with pytest.raises(ValueError, match="Nowhere predicts nan for 100 of 100 values"):
        StackedDensityRegressor([("a", Nowhere(Ridge())), ("b", sparse())], cv=2).fit(*step)


@pytest.mark.slow
def test_tables_go_to_the_regressor_as_they_are():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"town": pd.Categorical(rng.choice(["a", "b"], 60)), "x": rng.random(60)})
    frame.loc[3, "x"] = np.nan
    y = 3.0 * (frame["town"] == "a").to_numpy() + 0.1 * rng.random(60)
    trees = HistGradientBoostingRegressor(categorical_features="from_dtype", min_samples_leaf=5)
    model = ConstantVarianceRegressor(trees).fit(frame, y)
    assert_array_equal(model.predict(frame), clone(trees).fit(frame, y).predict(frame))
    assert model.feature_names_in_.tolist() == ["town", "x"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["x", "town"]])
    with pytest.raises(ValueError, match="Ridge does not accept missing values"):
        ConstantVarianceRegressor(Ridge()).fit(frame[["x"]].to_numpy(), y)


def test_draws_of_a_stack_have_the_noise_of_its_drop_in():
    """Its alpha, which is in the density and the deviation; draws of the drop-in leave it out."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=60)
    alone = GaussianProcessRegressor(alpha=0.1).fit(X, y)
    stack = StackedDensityRegressor([("exact", GaussianProcessRegressor(alpha=0.1))]).fit(X, y)
    std = stack.predict(X[:4], return_std=True)[1]
    assert_allclose(stack.sample_y(X[:4], 20_000).std(1), std, rtol=0.05)
    of_f = alone.predict(X[:4], return_std=True)[1]
    assert_allclose(alone.sample_y(X[:4], 20_000).std(1), of_f, rtol=0.05)


def test_swapped_rows_and_targets_are_named(step):
    """The message had the shape of a fold's rows."""
    X, y = step
    with pytest.raises(ValueError, match=rf"Expected 2D array, got .*{len(y)}"):
        stack().fit(y, X)
