"""Scorers as scikit-learn's objects: requests, routing, and all that takes `scoring`."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_regression
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import permutation_importance
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import r2_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.display import PredictionIntervalDisplay, RegressionCalibrationDisplay
from skgpstoch.metrics import (
    continuous_ranked_probability_score,
    make_coverage_scorer,
    neg_coverage_error_scorer,
    neg_crps_scorer,
    neg_log_predictive_density_scorer,
)

SCORERS = [
    neg_log_predictive_density_scorer,
    neg_crps_scorer,
    neg_coverage_error_scorer,
    make_coverage_scorer(0.5),
]
QUICK = {"n_inducing": 5, "solver": "natural", "max_iter": 2, "random_state": 0}
every_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=repr)


@pytest.fixture(scope="module")
def data():
    return make_regression(60, 3, noise=10.0, random_state=0)


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(0).integers(0, 4, 60).astype(float)


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def scored_by_hand(scorer, model, X, y, fit_weight, score_weight, cv=3):
    """The scores of folds, with or without weights of fits and of scores."""
    scores = []
    for train, test in KFold(cv).split(X):
        of_fit = {} if fit_weight is None else {"sample_weight": fit_weight[train]}
        fitted = clone(model).fit(X[train], y[train], **of_fit)
        of_score = None if score_weight is None else score_weight[test]
        scores.append(scorer(fitted, X[test], y[test], sample_weight=of_score))
    return np.array(scores)


# ---- objects -------------------------------------------------------------------------------------


@every_scorer
def test_scorers_are_cloned_pickled_and_shown(scorer, data, routing):
    model, asked = BayesianRidge().fit(*data), scorer.set_score_request(sample_weight=True)
    for each in (scorer, asked):
        for other in (clone(each), pickle.loads(pickle.dumps(each))):
            assert other is not each
            assert repr(other) == repr(each) == repr(scorer)
            assert other(model, *data) == scorer(model, *data)
            assert vars(other.get_metadata_routing().score) == vars(
                each.get_metadata_routing().score
            )
    assert repr(SCORERS[-1]) == "NegCoverageErrorScorer(coverage=0.5)"


@every_scorer
def test_requests_are_of_a_copy(scorer, routing):
    asked = scorer.set_score_request(sample_weight=True).set_score_request(exposure="miles")
    assert asked.get_metadata_routing().score.requests == {
        "sample_weight": True,
        "exposure": "miles",
        "y_std": None,
    }
    unset = dict.fromkeys(("sample_weight", "exposure", "y_std"))
    assert scorer.get_metadata_routing().score.requests == unset


def test_bad_requests_are_named():
    with pytest.raises(RuntimeError, match="enable_metadata_routing=True"):
        neg_crps_scorer.set_score_request(sample_weight=True)
    with config_context(enable_metadata_routing=True):
        with pytest.raises(TypeError, match=r"'y_std'\], got \['weight'\]"):
            neg_crps_scorer.set_score_request(weight=True)
        with pytest.raises(ValueError, match="sample_weight"):
            neg_crps_scorer.set_score_request(sample_weight="not a name")


@every_scorer
@pytest.mark.parametrize("bad", [np.zeros(60), -np.ones(60), np.ones(59)], ids=["0", "-", "short"])
def test_bad_weights_are_named(scorer, bad, data):
    with pytest.raises(ValueError, match="sample_weight must h"):
        scorer(BayesianRidge().fit(*data), *data, sample_weight=bad)


def test_weights_of_classes_are_those_of_rows_that_come_twice(weight):
    X = np.random.default_rng(1).normal(size=(60, 2))
    y = np.where(X[:, 0] + 0.5 * X[:, 1] > 0, "b", "a")
    model = SVGPClassifier(**QUICK).fit(X, y)
    twice = np.repeat(np.arange(60), weight.astype(int))
    expected = neg_log_predictive_density_scorer(model, X[twice], list(y[twice]))
    weighted = neg_log_predictive_density_scorer(model, X, list(y), sample_weight=list(weight))
    assert weighted == pytest.approx(expected, rel=1e-12)
    assert expected != neg_log_predictive_density_scorer(model, X, y)


# ---- what is scored ------------------------------------------------------------------------------


def test_scores_are_of_the_distribution_not_of_its_moments(data):
    """Student-t, where no normal distribution has the same scores."""
    X, y = data
    model = SVGPRegressor(likelihood="student_t", **QUICK)
    model.fit(X, y)
    distribution = model.predict_distribution(X)
    assert neg_crps_scorer(model, X, y) == -distribution.crps(y).mean()
    low, high = model.predict_interval(X, 0.5).T
    error = abs(np.mean((low <= y) & (y <= high)) - 0.5)
    assert make_coverage_scorer(0.5)(model, X, y[:, None]) == pytest.approx(-error)
    normal = continuous_ranked_probability_score(y, distribution.mean(), distribution.std())
    assert abs(neg_crps_scorer(model, X, y) + normal) > 1e-3 * normal


def test_scores_of_transformed_targets_are_in_their_units(data):
    """Of a logarithm: the density has 1/y, and quantiles are transformed."""
    X, y = data
    y = np.exp(y / 100.0)
    model = make_pipeline(StandardScaler(), BayesianRidge())
    model = TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)
    mean, std = model.fit(X, y).regressor_.predict(X, return_std=True)
    density = norm.logpdf(np.log(y), mean, std) - np.log(y)
    assert neg_log_predictive_density_scorer(model, X, y) == pytest.approx(density.mean())
    inside = np.mean(np.abs(np.log(y) - mean) <= norm.ppf(0.9) * std)
    assert make_coverage_scorer(0.8)(model, X, y) == pytest.approx(-abs(inside - 0.8))
    crps = neg_crps_scorer(model, X, y)
    assert crps == pytest.approx(-lognormal_crps(y, mean, std).mean(), rel=1e-5)


def lognormal_crps(y, mean, std):
    """Baran and Lerch (2015), eq. (B.1)."""
    z = (np.log(y) - mean) / std
    bump = norm.cdf(z - std) + norm.cdf(std / np.sqrt(2.0)) - 1.0
    return y * (2.0 * norm.cdf(z) - 1.0) - 2.0 * np.exp(mean + 0.5 * std**2) * bump


# ---- routing -------------------------------------------------------------------------------------


@every_scorer
def test_weights_that_nobody_asked_for_are_an_error(scorer, data, weight, routing):
    model = BayesianRidge().set_fit_request(sample_weight=True)
    options = {"params": {"sample_weight": weight}, "error_score": "raise"}
    for scoring in (scorer, {"score": scorer}):
        with pytest.raises(UnsetMetadataPassedError, match=r"\[sample_weight\] are passed but"):
            cross_validate(model, *data, scoring=scoring, **options)
        with pytest.raises(UnsetMetadataPassedError, match=r"\[sample_weight\] are passed but"):
            GridSearchCV(model, {}, scoring=scoring, refit="score").fit(*data, sample_weight=weight)


@every_scorer
@pytest.mark.parametrize("scores_by_weight", [True, False, "other"])
def test_weights_are_routed_as_asked(scorer, scores_by_weight, data, weight, routing):
    model = BayesianRidge().set_fit_request(sample_weight=True)
    asked = scorer.set_score_request(sample_weight=scores_by_weight)
    other = weight[::-1] + 1.0
    params = {"sample_weight": weight}
    if scores_by_weight == "other":
        params["other"] = other
    expected_weight = {True: weight, False: None, "other": other}[scores_by_weight]
    expected = scored_by_hand(scorer, BayesianRidge(), *data, weight, expected_weight)
    found = cross_val_score(model, *data, scoring=asked, cv=KFold(3), params=params)
    np.testing.assert_array_equal(found, expected)
    _, _, curve = learning_curve(
        model, *data, scoring=asked, cv=KFold(3), params=params, train_sizes=[1.0]
    )
    np.testing.assert_array_equal(curve[-1], expected)


def test_searches_route_to_each_of_several_scorers(data, weight, routing):
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    pipeline = make_pipeline(scaler, BayesianRidge().set_fit_request(sample_weight=True))
    scoring = {
        "weighted": neg_crps_scorer.set_score_request(sample_weight=True),
        "plain": neg_crps_scorer.set_score_request(sample_weight=False),
        "coverage": make_coverage_scorer(0.5).set_score_request(sample_weight=True),
    }
    grid = {"bayesianridge__lambda_init": [1e-3, 1e3], "bayesianridge__max_iter": [1]}
    options = {"scoring": scoring, "refit": "weighted", "cv": KFold(3)}
    search = GridSearchCV(pipeline, grid, **options).fit(*data, sample_weight=weight)
    results = search.cv_results_
    assert search.best_score_ == results["mean_test_weighted"].max()
    assert not np.array_equal(results["mean_test_weighted"], results["mean_test_plain"])
    best = search.best_estimator_
    scores = search.score(*data, sample_weight=weight)
    assert scores == neg_crps_scorer(best, *data, sample_weight=weight)
    assert scores != neg_crps_scorer(best, *data)


def test_halving_searches_route(data, weight, routing):
    model = BayesianRidge(max_iter=1).set_fit_request(sample_weight=True)
    scoring = neg_crps_scorer.set_score_request(sample_weight=True)
    grid = {"lambda_init": [1e-3, 1e3]}
    options = {"cv": KFold(2), "random_state": 0, "min_resources": 30}
    search = HalvingGridSearchCV(model, grid, scoring=scoring, **options)
    search.fit(*data, sample_weight=weight)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_ == {"lambda_init": 1e-3}


def test_exposures_are_routed_to_counts(routing):
    rng = np.random.default_rng(0)
    X, miles = rng.normal(size=(40, 1)), rng.uniform(1.0, 50.0, 40)
    y = rng.poisson(miles * np.exp(0.5 * X[:, 0]))
    model = SVGPRegressor(likelihood="poisson", **QUICK)
    asks = model.set_fit_request(exposure=True)
    scorer = neg_log_predictive_density_scorer.set_score_request(exposure=True)
    options = {"cv": KFold(2), "params": {"exposure": miles}, "error_score": "raise"}
    found = cross_val_score(make_pipeline(StandardScaler(), asks), X, y, scoring=scorer, **options)
    for (train, test), score in zip(KFold(2).split(X), found, strict=True):
        fitted = make_pipeline(StandardScaler(), clone(asks)).fit(
            X[train], y[train], exposure=miles[train]
        )
        density = fitted[-1].log_predictive_density(
            fitted[:-1].transform(X[test]), y[test], exposure=miles[test]
        )
        assert score == density.mean()
    for each in SCORERS:
        with pytest.raises(ValueError, match="exposure must be given"):
            each(fitted, X, y)


@pytest.fixture(scope="module")
def measured():
    """A model of a target with known errors, and rows to score."""
    rng = np.random.default_rng(0)
    X, e = rng.uniform(-2.0, 2.0, (120, 1)), rng.uniform(0.05, 1.0, 120)
    y = np.sin(2.0 * X[:, 0]) + e * rng.standard_normal(120)
    model = SVGPRegressor(n_inducing=10, max_iter=20, random_state=0)
    return model.fit(X, y, y_std=e), X, y, e


@pytest.mark.slow
@every_scorer
def test_known_errors_are_routed(scorer, measured, routing):
    model, X, y, e = measured
    found = scorer(model, X, y, y_std=e)
    with pytest.warns(UserWarning, match="as if it had no known errors"):
        assert scorer(model, X, y) < found
    asks = clone(model).set_fit_request(y_std=True)
    options = {"cv": KFold(2), "params": {"y_std": e}, "error_score": "raise"}
    scores = cross_val_score(asks, X, y, scoring=scorer.set_score_request(y_std=True), **options)
    for score, (train, test) in zip(scores, KFold(2).split(X), strict=True):
        fitted = clone(model).fit(X[train], y[train], y_std=e[train])
        assert score == scorer(fitted, X[test], y[test], y_std=e[test])


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_displays_take_known_errors(measured):
    pytest.importorskip("matplotlib").use("agg")
    model, X, y, e = measured
    curve = RegressionCalibrationDisplay.from_estimator(model, X, y, levels=[0.95], y_std=e)
    low, high = model.predict_interval(X, coverage=0.95, y_std=e).T
    assert curve.observed[0] == np.mean((low <= y) & (y <= high)) > 0.9
    drawn = PredictionIntervalDisplay.from_estimator(model, X, y, y_std=e)
    std = model.predict(X, return_std=True, y_std=e)[1]
    assert_allclose(np.diff(drawn.y_interval)[:, 0], 2.0 * 1.959964 * std, rtol=1e-6)


def test_a_fitted_model_is_not_judged_by_later_parameters(measured):
    model, X, y, _ = measured
    changed, known = pickle.loads(pickle.dumps(model)), model.log_predictive_density(X, y)
    changed.set_params(likelihood="poisson", loss="nonsense")
    assert_allclose(changed.log_predictive_density(X, y), known)
    assert_allclose(changed.predictive_cdf(X, y), model.predictive_cdf(X, y))


@pytest.mark.slow
def test_the_error_tells_how_exposures_reach_pipelines_and_searches():
    rng = np.random.default_rng(0)
    X, e = rng.normal(size=(40, 1)), rng.uniform(1.0, 50.0, 40)
    y = rng.poisson(e * np.exp(0.5 * X[:, 0]))
    model = SVGPRegressor(likelihood="poisson", **QUICK)
    pipe = Pipeline([("scale", StandardScaler()), ("model", model)]).fit(X, y, model__exposure=e)
    with pytest.raises(ValueError, match="exposure must be given") as said:
        pipe.score(X, y)
    calls = [
        "pipe.fit(X, y, model__exposure=...)",
        "sklearn.set_config(enable_metadata_routing=True)",
        "model.set_fit_request(exposure=True).set_predict_request(exposure=True)"
        ".set_score_request(exposure=True)",
    ]
    assert all(call in str(said.value) for call in calls)
    with config_context(enable_metadata_routing=True):
        eval(calls[2], {"model": model})  # pipe holds this very model, which is fitted
        mean = model.predict(pipe[:-1].transform(X), exposure=e)
        assert_allclose(pipe.predict(X, exposure=e), mean)
        assert pipe.score(X, y, exposure=e) == r2_score(y, mean)
        found = cross_val_score(pipe, X, y, params={"exposure": e}, cv=2, error_score="raise")
        search = GridSearchCV(pipe, {"model__n_inducing": [5]}, cv=2, error_score="raise")
        search.fit(X, y, exposure=e)
        assert search.best_score_ == found.mean()
        best = search.best_estimator_.predict(X, exposure=e)
        assert search.score(X, y, exposure=e) == r2_score(y, best)
        for cls in (AutoGaussianProcessRegressor, DLMRegressor, DeepKernelEnsembleRegressor):
            eval(calls[2], {"model": cls()})


def test_scikit_learn_does_not_compare_counts_with_predictions_for_exposure_1(routing):
    rng = np.random.default_rng(0)
    X, miles = rng.normal(size=(40, 1)), rng.uniform(1.0, 50.0, 40)
    y = rng.poisson(miles * np.exp(0.5 * X[:, 0]))
    model = SVGPRegressor(likelihood="poisson", **QUICK)
    asks = model.set_fit_request(exposure=True)
    options = {"cv": KFold(2), "params": {"exposure": miles}}
    how = "exposure must be given.*set_score_request"
    with pytest.raises(ValueError, match=how):
        cross_val_score(asks, X, y, scoring="r2", error_score="raise", **options)
    with pytest.raises(ValueError, match=how):
        cross_val_predict(asks, X, y, **options)
    fitted = make_pipeline(StandardScaler(), asks).fit(X, y, exposure=miles)
    assert fitted.predict(X).shape == (40,)  # of exposure 1
    for display in (RegressionCalibrationDisplay, PredictionIntervalDisplay):
        with pytest.raises(ValueError, match="exposure must be given"):
            display.from_estimator(fitted, X, y)
        mean, std = fitted[-1].predict(fitted[:-1].transform(X), return_std=True, exposure=miles)
        both = display.from_estimator(fitted, X, y, exposure=miles)
        expected = display.from_predictions(y, mean, std)
        name = "observed" if display is RegressionCalibrationDisplay else "y_interval"
        assert_allclose(getattr(both, name), getattr(expected, name))


# ---- without routing -----------------------------------------------------------------------------


@every_scorer
def test_searches_hand_on_weights_to_all_scorers_without_routing(scorer, data, weight):
    for scoring, name in ((scorer, "score"), ({"a": scorer, "b": "r2"}, "a")):
        search = GridSearchCV(BayesianRidge(), {}, scoring=scoring, cv=KFold(3), refit=False)
        search.fit(*data, sample_weight=weight)
        expected = scored_by_hand(scorer, BayesianRidge(), *data, weight, weight)
        found = [search.cv_results_[f"split{k}_test_{name}"][0] for k in range(3)]
        np.testing.assert_array_equal(found, expected)


@every_scorer
def test_permutation_importances_take_weights(scorer, data, weight):
    X, y = data
    model = BayesianRidge().fit(X, y)
    given = np.where(np.arange(60) < 30, weight, 0.0)
    X_ = np.where((given > 0.0)[:, None], X, 1e3)  # rows of no weight say nothing
    drops = [
        permutation_importance(model, X, y, scoring=scorer, sample_weight=w, random_state=0)
        for w in (given, None)
    ]
    assert not np.array_equal(drops[0].importances, drops[1].importances)
    assert scorer(model, X_, y, sample_weight=given) == scorer(model, X, y, sample_weight=given)
