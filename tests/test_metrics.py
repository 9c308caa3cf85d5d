"""The scores against their definitions; the scorers inside scikit-learn's model selection."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn import config_context
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_regression
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.metrics import check_scoring, mean_absolute_error
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch.metrics import (
    continuous_ranked_probability_score,
    interval_coverage,
    make_coverage_scorer,
    neg_coverage_error_scorer,
    neg_crps_scorer,
    neg_log_predictive_density_scorer,
    negative_log_predictive_density,
)
from skgpstoch.metrics.scores import central_interval, predict_mean_std

GAUSSIAN_SCORES = [negative_log_predictive_density, continuous_ranked_probability_score]
SCORERS = [
    neg_log_predictive_density_scorer,
    neg_crps_scorer,
    neg_coverage_error_scorer,
    make_coverage_scorer(0.5),
]


@pytest.fixture
def predictions():
    """Three outputs of different scale, well calibrated."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(40, 3)) * [1.0, 10.0, 0.1]
    std = rng.uniform(0.5, 2.0, size=(40, 3)) * [1.0, 10.0, 0.1]
    return mean + std * rng.normal(size=(40, 3)), mean, std


@pytest.fixture(scope="module")
def data():
    return make_regression(60, 4, noise=10.0, random_state=0)


# ---------------------------------------------------------------------------------------- metrics
def test_nlpd_is_the_mean_of_minus_scipys_logpdf(predictions):
    y, mean, std = predictions
    expected = -norm.logpdf(y, mean, std)
    raw = negative_log_predictive_density(y, mean, std, multioutput="raw_values")
    np.testing.assert_allclose(raw, expected.mean(axis=0), rtol=1e-13)
    one = negative_log_predictive_density(y[:, 0], mean[:, 0], std[:, 0])
    assert isinstance(one, float)
    assert one == pytest.approx(expected[:, 0].mean(), rel=1e-13)


@pytest.mark.parametrize("y", [-7.0, 0.3, 1.0, 1.01, 6.0])
@pytest.mark.parametrize("std", [0.2, 3.0])
def test_crps_is_the_integral_that_defines_it(y, std):
    def squared_distance(t):
        return (norm.cdf(t, 1.0, std) - (t >= y)) ** 2

    tail, options = 40 * std, {"epsabs": 1e-12, "epsrel": 1e-12, "limit": 500}
    ends = sorted([min(y, 1.0) - tail, y, 1.0, max(y, 1.0) + tail])
    integral = sum(quad(squared_distance, low, high, **options)[0] for low, high in pairwise(ends))
    assert continuous_ranked_probability_score([y], [1.0], [std]) == pytest.approx(
        integral, abs=1e-9
    )


@pytest.mark.parametrize("z", [1e3, 1e6, -1e6])
def test_scores_are_exact_in_the_tails(z):
    std = 1e-3
    nlpd = negative_log_predictive_density([z * std], [0.0], [std])
    assert nlpd == pytest.approx(-norm.logpdf(z) + np.log(std), rel=1e-12)
    crps = continuous_ranked_probability_score([z * std], [0.0], [std])
    assert crps == pytest.approx(std * (abs(z) - 1 / np.sqrt(np.pi)), rel=1e-14)


def test_crps_tends_to_the_absolute_error():
    assert continuous_ranked_probability_score([3.0], [1.0], [1e-300]) == pytest.approx(2.0)
    assert continuous_ranked_probability_score([1.0], [1.0], [1e-300]) < 1e-299


def test_float32_input_is_scored_in_float64():
    y, mean, std = (np.array([v], dtype=np.float32) for v in (1e30, 0.0, 1.0))
    assert negative_log_predictive_density(y, mean, std) == pytest.approx(5e59, rel=1e-6)


@pytest.mark.parametrize("score", GAUSSIAN_SCORES)
def test_scores_are_proper(score):
    """In expectation over y ~ N(1, 2²), nothing beats the truth."""
    y = norm.ppf((np.arange(2000) + 0.5) / 2000, 1.0, 2.0)

    def expected(mean, std):
        return score(y, np.full_like(y, mean), np.full_like(y, std))

    best = expected(1.0, 2.0)
    assert all(expected(*other) > best for other in [(1.2, 2.0), (0.8, 2.0), (1, 1.8), (1, 2.2)])


def test_units(predictions):
    y, mean, std = predictions
    c = 1000.0
    nlpd = negative_log_predictive_density(y, mean, std)
    crps = continuous_ranked_probability_score(y, mean, std)
    rescaled = negative_log_predictive_density(c * y, c * mean, c * std)
    assert rescaled == pytest.approx(nlpd + np.log(c), rel=1e-12)
    rescaled = continuous_ranked_probability_score(c * y, c * mean, c * std)
    assert rescaled == pytest.approx(c * crps, rel=1e-12)


def test_interval_coverage_counts_rows_with_the_ends_inside():
    y = [0.0, 1.0, 2.0, 3.0]
    interval = [[0.0, 1.0], [0.0, 1.0], [2.5, 3.0], [0.0, 9.0]]
    assert interval_coverage(y, interval) == 0.75
    assert interval_coverage(y, interval, sample_weight=[0, 0, 3, 1]) == 0.25


def test_interval_coverage_of_several_outputs():
    y = np.array([[0.0, 5.0], [1.0, 5.0]])
    interval = np.array([[[-1, 0], [1, 1]], [[-1, 4], [1, 6]]], dtype=float)  # (N, 2, P)
    np.testing.assert_array_equal(
        interval_coverage(y, interval, multioutput="raw_values"), [1.0, 0.5]
    )
    assert interval_coverage(y, interval) == 0.75
    assert interval_coverage(y, interval, multioutput=[3, 1]) == 0.875


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.95, 0.999])
def test_central_interval_has_its_probability(coverage):
    mean, std = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    interval = central_interval(mean, std, coverage)
    assert interval.shape == (2, 2)
    inside = np.diff(norm.cdf(interval, mean[:, None], std[:, None]))
    np.testing.assert_allclose(inside, coverage, rtol=1e-12)
    np.testing.assert_allclose(interval.mean(axis=1), mean, rtol=1e-12)


def row_scores(score, y, mean, std):
    """(N, P): the score of each row and output alone."""
    return np.array(
        [score([a], [b], [c]) for a, b, c in zip(y.flat, mean.flat, std.flat, strict=True)]
    ).reshape(y.shape)


@pytest.mark.parametrize("score", GAUSSIAN_SCORES)
@pytest.mark.parametrize("multioutput", ["uniform_average", "raw_values", [0.2, 0.0, 0.8]])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_and_outputs_are_averaged_as_in_sklearn(score, multioutput, weighted, predictions):
    rows = row_scores(score, *predictions)
    weights = np.random.default_rng(1).uniform(size=len(rows)) if weighted else None
    options = {"sample_weight": weights, "multioutput": multioutput}
    offset = rows.min() - 1  # the mean of non-negative losses is a mean absolute error
    expected = mean_absolute_error(rows - offset, np.zeros_like(rows), **options) + offset
    np.testing.assert_allclose(score(*predictions, **options), expected, rtol=1e-12)


@pytest.mark.parametrize("score", GAUSSIAN_SCORES)
def test_integer_weights_repeat_rows_and_zero_drops_them(score, predictions):
    repeats = np.random.default_rng(2).integers(0, 4, size=40)
    repeated = [np.repeat(values, repeats, axis=0) for values in predictions]
    assert score(*predictions, sample_weight=repeats) == pytest.approx(score(*repeated), rel=1e-12)


@pytest.mark.parametrize("score", GAUSSIAN_SCORES)
def test_a_column_is_one_output(score):
    y, mean, std = [1.0, 2.0], [1.5, 1.5], [1.0, 2.0]
    assert score(np.c_[y], mean, std) == score(y, mean, np.c_[std])


@pytest.mark.parametrize("score", GAUSSIAN_SCORES)
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1.0, 2.0], [1.0], [1.0, 1.0]), {}, "y_mean must have the shape of y_true"),
        (([1.0, 2.0], [1.0, 2.0], [[1.0, 1.0]] * 2), {}, "y_std must have the shape of y_true"),
        (([1.0, np.nan], [1.0, 2.0], [1.0, 1.0]), {}, "Input y_true contains NaN"),
        (([1.0, 2.0], [np.inf, 2.0], [1.0, 1.0]), {}, "Input y_mean contains infinity"),
        (([1.0, 2.0], [1.0, 2.0], [1.0, 0.0]), {}, r"y_std must be positive; .* 0\.0"),
        (([1.0, 2.0], [1.0, 2.0], [1.0, -1.0]), {}, r"y_std must be positive; .* -1\.0"),
        (([1.0], [1.0], [1.0]), {"sample_weight": [1, 2]}, r"sample_weight must have shape \(1,\)"),
        (([1.0], [1.0], [1.0]), {"sample_weight": [-1]}, "sample_weight must hold non-negative"),
        (([1.0], [1.0], [1.0]), {"sample_weight": [0]}, "sample_weight must hold non-negative"),
        (([1.0], [1.0], [1.0]), {"multioutput": "median"}, "multioutput must be .* got 'median'"),
        (([1.0], [1.0], [1.0]), {"multioutput": [1, 1]}, r"multioutput must have shape \(1,\)"),
    ],
)
def test_bad_predictions_are_named(score, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        score(*arguments, **options)


@pytest.mark.parametrize(
    ("y_true", "y_interval", "message"),
    [
        ([1.0, 2.0], [[0.0, 1.0]], r"for the 2 rows and 1 output\(s\) .* got \(1, 2\)"),
        ([1.0, 2.0], [0.0, 1.0], r"y_interval must have shape .* got \(2,\)"),
        ([[1.0, 2.0]], [[0.0, 1.0]], r"1 rows and 2 output\(s\)"),
        ([1.0], [[2.0, 1.0]], "lower > upper"),
        ([1.0], [[np.nan, 1.0]], "Input y_interval contains NaN"),
    ],
)
def test_bad_intervals_are_named(y_true, y_interval, message):
    with pytest.raises(ValueError, match=message):
        interval_coverage(y_true, y_interval)


# ---------------------------------------------------------------------------------------- scorers
@pytest.mark.parametrize(
    "estimator",
    [
        BayesianRidge(),
        make_pipeline(StandardScaler(), BayesianRidge()),
        GridSearchCV(make_pipeline(StandardScaler(), BayesianRidge()), {}, cv=2),
        GaussianProcessRegressor(RBF(10.0) + WhiteKernel(), normalize_y=True, optimizer=None),
    ],
    ids=["regressor", "pipeline", "search", "gp"],
)
def test_scorers_are_the_metrics_of_the_predictions(estimator, data):
    X, y = data
    estimator.fit(X, y)
    mean, std = getattr(estimator, "best_estimator_", estimator).predict(X, return_std=True)
    w = np.linspace(0, 1, len(y))
    nlpd = negative_log_predictive_density(y, mean, std)
    assert neg_log_predictive_density_scorer(estimator, X, y) == pytest.approx(-nlpd, rel=1e-12)
    crps = continuous_ranked_probability_score(y, mean, std, sample_weight=w)
    assert neg_crps_scorer(estimator, X, y, sample_weight=w) == pytest.approx(-crps, rel=1e-12)
    inside = np.average(np.abs(y - mean) <= norm.ppf(0.75) * std, weights=w)
    assert make_coverage_scorer(0.5)(estimator, X, y, sample_weight=w) == -abs(inside - 0.5)


class _Constant:
    """Predicts the mean 0 and the standard deviations it is given."""

    def __init__(self, std):
        self.std = np.asarray(std)

    def predict(self, X, return_std=False):
        std = np.broadcast_to(self.std, (len(X), *self.std.shape))
        return np.zeros_like(std), std


def test_coverage_errors_of_several_outputs_do_not_cancel():
    y = np.random.default_rng(0).normal(size=(500, 2))
    narrow_and_wide = _Constant([1e-6, 1e6])  # coverages 0 and 1
    assert make_coverage_scorer(0.5)(narrow_and_wide, y, y) == -0.5
    assert make_coverage_scorer(0.5)(_Constant([1.0, 1.0]), y, y) > -0.05


def test_scorers_work_in_nested_cross_validation_and_weighted_search(data):
    X, y = data
    search = GridSearchCV(
        BayesianRidge(), {"max_iter": [1, 300]}, scoring=neg_crps_scorer, cv=2, error_score="raise"
    )
    assert np.all(cross_val_score(search, X, y, scoring=neg_crps_scorer, error_score="raise") < 0)
    search.fit(X, y, sample_weight=np.ones(len(y)))
    assert search.best_score_ < 0


@pytest.mark.parametrize("scorer", SCORERS)
def test_scorers_are_scorers_to_sklearn_and_pickle(scorer, data):
    model = BayesianRidge().fit(*data)
    loaded = pickle.loads(pickle.dumps(scorer))
    expected = scorer(model, *data)
    assert isinstance(expected, float)
    assert loaded(model, *data) == expected
    assert check_scoring(model, scoring=scorer)(model, *data) == expected
    result = cross_validate(model, *data, scoring=scorer, cv=2, error_score="raise")
    assert np.all(result["test_score"] <= 0) == (scorer(model, *data) <= 0)


def test_scorers_work_under_metadata_routing(data):
    with config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), BayesianRidge())
        scores = cross_val_score(pipeline, *data, scoring=neg_crps_scorer, error_score="raise")
    np.testing.assert_array_equal(scores, cross_val_score(pipeline, *data, scoring=neg_crps_scorer))


class _SwallowsKeywords(Ridge):
    def predict(self, X, **keywords):
        return super().predict(X)


@pytest.mark.parametrize(
    "estimator",
    [
        Ridge(),
        make_pipeline(StandardScaler(), Ridge()),
        TransformedTargetRegressor(Ridge()),
        _SwallowsKeywords(),
    ],
    ids=["regressor", "pipeline", "transformed target", "swallows keywords"],
)
@pytest.mark.parametrize("scorer", SCORERS[:3])
def test_estimators_without_std_are_told_so(scorer, estimator, data):
    estimator.fit(*data)
    with pytest.raises(TypeError, match=r"predict\(X, return_std=True\).*got "):
        scorer(estimator, *data)


class _Broken:
    def predict(self, X, return_std=False):
        raise TypeError("something else")


def test_other_errors_pass_through(data):
    with pytest.raises(NotFittedError):
        predict_mean_std(BayesianRidge(), data[0])
    with pytest.raises(TypeError, match="something else"):
        predict_mean_std(_Broken(), data[0])


@pytest.mark.parametrize("coverage", [0, 1, 90, "a", np.nan])
def test_bad_coverage_is_named(coverage):
    with pytest.raises(ValueError, match="coverage must be a number between 0 and 1, got"):
        make_coverage_scorer(coverage)


@pytest.mark.parametrize(
    "wrong",
    [1.0, ["a"] * 4, [10**400] * 4, [1j] * 4, [[1], [1, 2], [1], [2]], [], np.zeros((4, 2, 2))],
    ids=["number", "texts", "huge", "complex", "ragged", "none", "3-D"],
)
@pytest.mark.parametrize("name", ["y_true", "y_mean", "y_std", "sample_weight", "y_interval"])
def test_wrong_numbers_are_named(wrong, name):
    y, s = np.arange(4.0), np.ones(4)
    given = {"y_true": y, "y_mean": y, "y_std": s, "sample_weight": s}
    score = continuous_ranked_probability_score
    if name == "y_interval":
        score = interval_coverage
        given = {"y_true": y, "y_interval": np.column_stack([y, y])}
    with pytest.raises(ValueError, match=f"^{name} (must|has)"):
        score(**{**given, name: wrong})


def test_times_are_no_numbers():
    y, times = np.arange(4.0), np.arange(4).astype("M8[D]")
    for given in ((times, y, y + 1.0), (y, y, y + 1.0, times)):
        with pytest.raises(ValueError, match="must be numeric, got"):
            continuous_ranked_probability_score(*given[:3], sample_weight=(*given, None)[3])
