"""Predictive distributions through scikit-learn's wrappers."""

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest, lognorm, norm
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor as SklearnProcess
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

import skgpstoch as gp
from skgpstoch import (
    ADMMGaussianProcessRegressor,
    ConstantVarianceRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data.held_out import folds_of_units
from skgpstoch.metrics import neg_log_predictive_density_scorer

DOC = Path(__file__).parents[1] / "doc"


def sparse(**params):
    return SVGPRegressor(n_inducing=10, max_iter=2, random_state=0, **params)


def logged(regressor):
    return TransformedTargetRegressor(regressor, func=np.log, inverse_func=np.exp)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (60, 2))
    return X, np.exp(np.sin(X[:, 0]) + 0.2 * rng.standard_normal(60))


@pytest.fixture(scope="module")
def alone(rows):
    """The regressor inside, fitted to what it sees."""
    X, y = rows
    return sparse().fit(StandardScaler().fit_transform(X), np.log(y))


WRAPPED = {
    "target of a pipeline": lambda: logged(make_pipeline(StandardScaler(), sparse())),
    "pipeline of a target": lambda: make_pipeline(StandardScaler(), logged(sparse())),
    "search": lambda: GridSearchCV(
        make_pipeline(StandardScaler(), logged(sparse())),
        {"transformedtargetregressor__regressor__max_iter": [2]},
        cv=2,
    ),
    "target of a search": lambda: logged(
        GridSearchCV(
            make_pipeline(StandardScaler(), sparse()), {"svgpregressor__max_iter": [2]}, cv=2
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
@slow_cases("target of a search")
def test_what_is_inside_predicts_the_original_target(name, rows, alone):
    X, y = rows
    model = FrozenEstimator(WRAPPED[name]().fit(X, y))
    mean, std = alone.predict(StandardScaler().fit_transform(X), return_std=True)
    expected = lognorm(std, scale=np.exp(mean))
    found = gp.predict_distribution(model, X)
    assert_allclose(found.mean(), expected.mean(), rtol=1e-7)
    assert_allclose(gp.predict_std(model, X), expected.std(), rtol=1e-6)
    assert_allclose(found.pdf(y), expected.pdf(y), rtol=1e-8)
    assert_allclose(gp.log_predictive_density(model, X, y), expected.logpdf(y), rtol=1e-8)
    interval = np.stack(expected.interval(0.9), 1)
    assert_allclose(gp.predict_interval(model, X, 0.9), interval, rtol=1e-8)
    assert_allclose(found.cdf(y[:, None] * [0.5, 1.0]), expected.cdf(np.stack([0.5 * y, y])).T)
    draws = gp.sample_y(model, X, 3, random_state=1)
    inner = alone.sample_y(StandardScaler().fit_transform(X), 3, random_state=1)
    assert_allclose(draws, np.exp(inner))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
@slow_cases("target of a search")
def test_what_is_inside_is_diagnosed(name, rows, alone):
    X, y = rows
    found = gp.diagnose(WRAPPED[name]().fit(X, y))
    assert [finding.name for finding in found] == [finding.name for finding in alone.diagnose()]
    assert gp.diagnose(FrozenEstimator(alone)) == alone.diagnose()


def test_what_has_no_diagnosis_is_named(rows):
    for other in (Ridge(), make_pipeline(StandardScaler(), Ridge()), SVGPRegressor, 3):
        with pytest.raises(TypeError, match="estimator must be a fitted estimator of skgpstoch"):
            gp.diagnose(other)
    for wrapped in (WRAPPED["search"](), WRAPPED["target of a search"](), sparse()):
        with pytest.raises(NotFittedError):
            gp.diagnose(wrapped)


@pytest.mark.slow
def test_targets_below_all_that_can_be(rows):
    X, y = rows
    model = logged(sparse()).fit(X, y)
    found = gp.predict_distribution(model, X[:3])
    assert_array_equal(found.cdf([-1.0, 0.0, np.inf]), [0.0, 0.0, 1.0])
    assert_array_equal(found.logpdf([-1.0, 0.0, -5.0]), -np.inf)
    score = found.crps(1e-12)
    assert_allclose(found.crps([-1.0, -2.0, -3.0]), np.add(score, [1.0, 2.0, 3.0]), rtol=1e-6)


@pytest.mark.slow
def test_several_targets_and_decreasing_maps(rows):
    X, y = rows
    Y = np.column_stack([y, 1.0 + y**2])
    down = TransformedTargetRegressor(
        sparse(), func=lambda y: -np.log(y), inverse_func=lambda z: np.exp(-z)
    )
    down, up = down.fit(X, Y), logged(sparse()).fit(X, Y)
    one, other = (gp.predict_distribution(model, X) for model in (down, up))
    assert one.shape == one.mean().shape == (60, 2)
    assert_allclose(one.mean(), other.mean(), rtol=1e-6)
    assert_allclose(one.cdf(Y), other.cdf(Y), rtol=1e-6)
    assert_allclose(gp.predict_interval(down, X), gp.predict_interval(up, X), rtol=1e-6)
    assert gp.predict_interval(up, X).shape == (60, 2, 2)
    assert gp.sample_y(up, X, 4).shape == (60, 2, 4)


@pytest.mark.slow
def test_every_output_has_a_map_of_its_own(rows):
    X, y = rows
    mixing = FunctionTransformer(lambda Y: Y[:, ::-1], lambda Z: Z[:, ::-1], check_inverse=False)
    model = TransformedTargetRegressor(sparse(), transformer=mixing)
    model.fit(X, np.column_stack([y, X[:, 0]]))
    with pytest.raises(ValueError, match="each output separately"):
        gp.predict_distribution(model, X)


@pytest.mark.slow
def test_a_map_may_turn_where_no_target_is(rows):
    X, y = rows
    model = TransformedTargetRegressor(sparse(), func=np.sqrt, inverse_func=np.square)
    found = gp.predict_distribution(model.fit(X, (5.0 + np.log(y)) ** 2), X)
    inner = model.regressor_.predict_distribution(X)
    assert_allclose(found.mean(), inner.mean() ** 2 + inner.var(), rtol=1e-6)
    assert_allclose(found.ppf(0.3), inner.ppf(0.3) ** 2)


@pytest.mark.slow
def test_maps_must_be_monotone_and_targets_no_counts(rows):
    X, y = rows
    model = TransformedTargetRegressor(sparse(), func=np.sqrt, inverse_func=np.square)
    model.fit(X, 0.1 * y - 0.1 * y.min())
    with pytest.raises(ValueError, match="must be monotone"):
        gp.predict_distribution(model, X)
    halves = {"func": lambda y: y - 1.0, "inverse_func": lambda z: z + 1.0, "check_inverse": False}
    counts = TransformedTargetRegressor(sparse(likelihood="poisson"), **halves)
    counts.fit(X, 1.0 + np.floor(y))
    with pytest.raises(ValueError, match="Counts cannot be transformed"):
        gp.predict_distribution(counts, X)


@pytest.mark.slow
def test_counts_and_exposures_through_a_pipeline(rows):
    X, y = rows
    model = make_pipeline(StandardScaler(), sparse(likelihood="poisson"))
    model.fit(X, np.floor(5.0 * y))
    found = gp.predict_distribution(model, X, exposure=2.0)
    assert_allclose(found.mean(), 2.0 * gp.predict_distribution(model, X).mean())
    assert_allclose(found.pmf(np.arange(400.0)[None]).sum(1), 1.0, atol=1e-6)


@pytest.mark.slow
def test_counts_are_judged_by_their_exposures(rows):
    X, y = rows[0], np.floor(5.0 * rows[1])
    model = make_pipeline(StandardScaler(), sparse(likelihood="negative_binomial"))
    model.fit(X, y, svgpregressor__exposure=2.0 * np.ones(len(y)))
    with pytest.raises(ValueError, match="exposure must be given with y"):
        gp.log_predictive_density(model, X, y)
    known, found = model[-1], gp.predict_distribution(model, X, exposure=2.0)
    assert_allclose(known.predictive_cdf(model[:-1].transform(X), y, exposure=2.0), found.cdf(y))
    with pytest.raises(ValueError, match=r"for the likelihood NegativeBinomial, got"):
        known.fit(X, y + 0.5)


def test_what_lacks_distributions_is_named(rows):
    X, y = rows
    for model in (Ridge(), make_pipeline(StandardScaler(), Ridge()), logged(Ridge())):
        with pytest.raises(TypeError, match=r"predict\(X, return_std=True\), got Ridge\(\)"):
            gp.predict_interval(model.fit(X, y), X)
    with pytest.raises(TypeError, match=r"sample_y, got Ridge\(\)"):
        gp.sample_y(Ridge().fit(X, y), X)
    with pytest.raises(NotFittedError, match="Fit the search first, with refit=True"):
        gp.predict_std(GridSearchCV(sparse(), {"max_iter": [1]}), X)
    with pytest.raises(TypeError, match="got the class SVGPRegressor"):
        gp.predict_distribution(SVGPRegressor, X)
    with pytest.raises(TypeError, match=r"got ndarray\. The estimator is the first argument"):
        gp.predict_distribution(X, sparse())
    with pytest.raises(TypeError, match="predict_proba"):
        gp.predict_distribution(gp.SVGPClassifier(), X)
    with pytest.raises(ValueError, match="coverage"):
        gp.predict_interval(sparse().fit(X, y), X, coverage=2.0)


@pytest.mark.parametrize("name", ["predict_distribution", "predict_interval", "sample_y"])
@pytest.mark.parametrize("cls", [gp.GaussianProcessRegressor, gp.StackedDensityRegressor])
def test_what_a_regressor_does_not_take_is_named(cls, name, rows):
    """As a method and as a function: the class that users know, and what to do."""
    model, said = cls.__new__(cls), rf"{cls.__name__}\.predict.*|{cls.__name__}\.sample_y"
    advice = r"\(\) got an unexpected.*'exposure': its parameters are X.*likelihood='poisson'"
    for call in (getattr(model, name), partial(getattr(gp, name), model)):
        with pytest.raises(TypeError, match=f"^({said}){advice}"):
            call(rows[0], exposure=2.0)
    for call in (SklearnProcess().predict, partial(gp.predict_std, SklearnProcess())):
        with pytest.raises(TypeError, match="exposure"):
            call(rows[0], exposure=2.0)


@pytest.mark.parametrize("name", ["fit", "predict", "predict_interval"])
@pytest.mark.parametrize("cls", [gp.AutoGaussianProcessRegressor, gp.SVGPRegressor])
def test_x_that_is_missing_is_named(cls, name):
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\.{name}\(\) missing 1 .*: 'X'$"):
        getattr(cls(), name)()


def test_scikit_learns_own_process_is_normal(rows):
    X, y = rows
    model = make_pipeline(StandardScaler(), SklearnProcess(RBF() + WhiteKernel()))
    mean, std = model.fit(X, y).predict(X, return_std=True)
    assert_allclose(gp.predict_std(model, X), std)
    assert_allclose(gp.predict_distribution(model, X).mean(), mean)


@pytest.mark.slow
def test_a_transformer_with_an_end(rows):
    """Powers below 0 come to infinity at a number; predictions stay below it."""
    X, y = rows
    model = TransformedTargetRegressor(sparse(), transformer=PowerTransformer())
    model.fit(X, y**3)
    found = gp.predict_distribution(model, X)
    assert_allclose(found.cdf(found.ppf(0.99)), 0.99)
    assert np.isfinite(found.mean()).all()
    assert_allclose(found.logpdf(y**3), gp.log_predictive_density(model, X, y**3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "transformer", [QuantileTransformer(n_quantiles=20), MinMaxScaler(clip=True)], ids=str
)
@slow_cases("MinMax")
def test_targets_are_within_what_a_transformer_clips(transformer, rows):
    X, y = rows
    model = TransformedTargetRegressor(sparse(), transformer=transformer).fit(X, y)
    found = gp.predict_distribution(model, X[[y.argmax()]])
    outside = np.array([[y.min() - 1.0, y.max() + 1e-3, 1e6]])
    assert_allclose(found.cdf(outside), [[0.0, 1.0, 1.0]])
    assert_allclose(found.sf(outside), [[1.0, 0.0, 0.0]])
    assert_array_equal(found.pdf(outside), 0.0)
    assert np.isfinite(found.logpdf(y.max()))
    numbers = np.linspace(y.min(), y.max(), 5001)
    density = found.pdf(numbers[None])[0]
    assert_allclose(np.trapezoid(density, numbers), 1.0, atol=1e-3)
    assert_allclose(found.mean(), np.trapezoid(numbers * density, numbers), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_the_density_at_ends_is_that_beside_them(distribution, rows):
    X, y = rows
    knots = QuantileTransformer(n_quantiles=20, output_distribution=distribution)
    model = TransformedTargetRegressor(sparse(), transformer=knots).fit(X, y)
    inner, ends = model.regressor_.predict_distribution(X), np.array([[y.min(), y.max()]])
    z = model.transformer_.transform(ends.T).T
    slope = np.diff(model.transformer_.quantiles_[:, 0])[[0, -1]] * 19.0
    slope = slope * norm.pdf(z) if distribution == "normal" else slope
    inside = inner.cdf(z)[:, [1]] - inner.cdf(z)[:, [0]]
    expected = inner.logpdf(z) - np.log(slope) - np.log(inside)
    assert_allclose(gp.predict_distribution(model, X).logpdf(ends), expected, atol=1e-3)


@pytest.mark.parametrize("forward", [np.floor, np.abs, np.square])
def test_targets_return_from_their_map(forward, rows):
    X, y = rows
    maps = {"func": forward, "inverse_func": lambda z: z, "check_inverse": False}
    model = TransformedTargetRegressor(sparse(), **maps).fit(X, np.log(y))
    for some in (slice(0, 1), slice(None)):
        with pytest.raises(ValueError, match=r"inverse_transform\(transform\(y\)\) == y"):
            gp.predict_distribution(model, X[some])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "transformer",
    [
        FunctionTransformer(np.log),
        FunctionTransformer(np.square),
        KBinsDiscretizer(5, encode="ordinal"),
    ],
    ids=str,
)
def test_a_target_transform_must_give_targets_back(transformer, rows):
    X, y = rows
    with pytest.raises(ValueError, match="target_transform must be invertible"):
        sparse(target_transform=transformer).fit(X, y)


def test_a_target_transform_must_be_monotone(rows):
    X, y = rows
    turned = FunctionTransformer(lambda y: 1.0 / y, lambda z: 1.0 / z)
    with pytest.raises(ValueError, match="target_transform must be monotone"):
        sparse(target_transform=turned).fit(X, np.log(y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The mean of y does not exist")  # of 1/z, with z near 0
@pytest.mark.parametrize("pair", [(np.reciprocal, np.reciprocal), (np.sqrt, np.square)])
@slow_cases("pair1")
def test_predictions_keep_to_the_branch_of_the_targets(pair, rows, tmp_path):
    """Both inverses turn at z = 0, which is within the reach of predictions."""
    X, y = rows
    forward, back = pair
    y = y - 0.9 * y.min() if back is np.square else y
    model = sparse(target_transform=FunctionTransformer(forward, back)).fit(X, y)
    inner = sparse().fit(X, forward(y)).predict_distribution(X)
    found = model.predict_distribution(X)
    below = inner.cdf(0.0)
    assert below.max() > 1e-3
    share = (0.4 if back is np.square else 0.6) * (1.0 - below)
    assert_allclose(found.median(), back(inner.ppf(below + 0.5 * (1.0 - below))), rtol=1e-6)
    assert_allclose(found.ppf(0.4), back(inner.ppf(below + share)), rtol=1e-6)
    place = X[[below.argmax()]]
    ranks = model.predict_distribution(place).cdf(model.sample_y(place, 4000))[0]
    assert kstest(ranks, "uniform").pvalue > 1e-3  # draws off the branch are no values at its end
    assert_allclose(model.predict(X[:1]), found.mean()[:1], rtol=1e-6)
    model.save(tmp_path / "model")
    assert_array_equal(gp.load(tmp_path / "model").predict(X), model.predict(X))


def test_a_target_transform_must_rise_between_targets(rows):
    X, y = rows
    bend = FunctionTransformer(lambda y: y, lambda z: np.where(np.abs(z - 1.0) < 0.05, 2.0, z))
    apart = y[np.abs(y - 1.0) > 0.1]
    with pytest.raises(ValueError, match="finite and monotone between the targets"):
        sparse(target_transform=bend).fit(X[: len(apart)], apart)


@pytest.mark.slow
def test_ties_that_make_steps_are_named(rows):
    X, y = rows
    knots = QuantileTransformer(n_quantiles=60)
    with pytest.raises(
        ValueError, match=r"a value that \d+ rows share. Such ties make QuantileTransformer jump"
    ):
        sparse(target_transform=knots).fit(X, np.ceil(5.0 * y))
    rounded = np.round(y, 1)  # of which few quantiles are different numbers
    few = sparse(target_transform=QuantileTransformer(n_quantiles=5)).fit(X, rounded)
    assert np.isfinite(few.log_predictive_density(X, rounded)).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_steps_are_no_map_of_distributions(rows):
    X, y = rows
    bins = KBinsDiscretizer(5, encode="ordinal")
    model = TransformedTargetRegressor(sparse(), transformer=bins, check_inverse=False)
    with pytest.raises(ValueError, match="must be monotone"):
        gp.predict_interval(model.fit(X, y), X)


@pytest.mark.slow
def test_what_a_chain_of_transformers_refuses_has_no_density(rows):
    X, y = rows
    chain = make_pipeline(FunctionTransformer(np.log, np.exp), StandardScaler())
    model = TransformedTargetRegressor(sparse(), transformer=chain).fit(X, y)
    found = gp.log_predictive_density(model, X[:3], [0.0, y[1], 0.0])
    assert_array_equal(np.isfinite(found), [False, True, False])


# ---- target_transform of estimators ------------------------------------------------------------

FINITE = SCGDGaussianProcessRegressor(hidden_layer_sizes=(), max_iter=2, random_state=0)
OURS = {
    "sparse": sparse(),
    "finite": FINITE,
    "robust": sparse(likelihood="student_t"),
    "cross-validated": ADMMGaussianProcessRegressor(max_iter=2, random_state=0),
    "basis": QSGPRegressor(n_components=30, n_subset=30, max_iter=2, random_state=0),
    "basis, Laplace": QSGPRegressor(
        n_components=30, n_subset=0, max_iter=2, likelihood="laplace", random_state=0
    ),
    "relevant": QSRVMRegressor(n_subset=30, max_iter=5, random_state=0),
    "one variance": ConstantVarianceRegressor(Ridge(), cv=3),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", OURS)
@slow_cases("robust", "Laplace", "cross-validated", "relevant")
def test_a_transformed_target_is_that_of_scikit_learn(name, rows, tmp_path):
    X, y = rows
    inner = OURS[name]
    model = clone(inner).set_params(target_transform="log").fit(X, y)
    around = logged(clone(inner)).fit(X, y)
    assert_array_equal(model.predict(X), gp.predict_distribution(around, X).mean())
    assert_array_equal(model.predict_std(X), gp.predict_std(around, X))
    assert_array_equal(model.predict_interval(X), gp.predict_interval(around, X))
    density = model.log_predictive_density(X, y)
    assert_allclose(density, gp.log_predictive_density(around, X, y))
    assert_allclose(density, model.predict_distribution(X).logpdf(y))
    assert_allclose(model.predictive_cdf(X, y), model.predict_distribution(X).cdf(y))
    assert_array_equal(model.sample_y(X, 2), gp.sample_y(around, X, 2))
    if name != "one variance":
        assert_array_equal(model.predict(X, latent=True), around.regressor_.predict(X, latent=True))
    model.save(tmp_path / "model")
    again = gp.load(tmp_path / "model", objects={"Ridge": Ridge})
    assert_array_equal(again.predict_interval(X), model.predict_interval(X))
    once_more = clone(model).fit(X, y)
    assert_array_equal(once_more.log_predictive_density(X, y), density)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["cross-validated", "basis", "relevant", "one variance"])
@slow_cases("cross-validated", "relevant")
@by_default("one variance")
def test_a_search_finds_the_transformation(name, rows):
    X, y = rows
    options = {"target_transform": [None, "log", PowerTransformer()]}
    scoring = neg_log_predictive_density_scorer
    search = GridSearchCV(OURS[name], options, cv=2, scoring=scoring).fit(X, y)
    assert search.best_params_["target_transform"] is not None
    assert search.best_score_ > search.cv_results_["mean_test_score"][0] + 0.1
    assert gp.predict_interval(search, X).min() > 0.0


@pytest.mark.slow
def test_several_transformed_targets_and_weights(rows):
    X, y = rows
    Y, weight = np.column_stack([y, y**2]), np.arange(60.0) % 3
    model = sparse(target_transform="yeo-johnson").fit(X, Y, sample_weight=weight)
    kept = weight > 0.0
    twice = np.repeat(np.flatnonzero(kept), weight[kept].astype(int))
    again = sparse(target_transform="yeo-johnson").fit(X[twice], Y[twice])
    assert_allclose(model.predict(X), again.predict(X), rtol=1e-5)
    assert model.predict_interval(X).shape == (60, 2, 2)
    assert model.sample_y(X, 3).shape == (60, 2, 3)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    assert np.isfinite(model.score(X, Y))


@pytest.mark.slow
def test_what_cannot_be_transformed_is_named(rows):
    X, y = rows
    model = sparse(target_transform="log")
    with pytest.raises(ValueError, match="y must be positive for target_transform='log', got"):
        model.fit(X, y - 1.0)
    with pytest.raises(ValueError, match="y_std must be None with target_transform"):
        model.fit(X, y, y_std=0.1)
    with pytest.raises(ValueError, match="target_transform must be None if y holds counts"):
        clone(model).set_params(likelihood="poisson").fit(X, np.ceil(y))
    model.fit(X, y)
    with pytest.raises(ValueError, match="y_std must be None with target_transform"):
        model.predict(X, y_std=0.1)
    with pytest.raises(ValueError, match="return_cov=True needs latent=True"):
        model.predict(X, return_cov=True)
    with pytest.raises(
        ValueError, match=r"y must be in the domain where target_transform='log' is finite"
    ):
        model.log_predictive_density(X, -y)
    assert model.partial_fit(X, y).target_transformer_ is not None
    with pytest.raises(ValueError, match="target_transform"):
        model.set_params(target_transform=None).partial_fit(X, y)


@pytest.mark.slow
def test_a_transformer_of_scikit_learn_is_left_alone(rows):
    X, y = rows
    transformer = PowerTransformer()
    model = sparse(target_transform=transformer).fit(X, y)
    assert not hasattr(transformer, "lambdas_")
    around = TransformedTargetRegressor(sparse(), transformer=PowerTransformer()).fit(X, y)
    assert_allclose(model.predict_interval(X), gp.predict_interval(around, X), rtol=1e-6)


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_copies_of_a_row_are_in_one_fold(kind):
    """A copy that stays would predict its twin without an error."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (60, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(60)
    twice = np.repeat(np.arange(60), 2)[rng.permutation(120)]
    if kind == "texts":
        X = X.astype(str).astype(object)
    once, copied = (
        ConstantVarianceRegressor(NearestText()).fit(X[rows], y[rows]).std_
        for rows in (np.arange(60), twice)
    )
    assert_allclose(copied, once, rtol=0.15)
    splits = folds_of_units(5, X[twice], y[twice]).split(X[twice])
    for trained, held_out in splits:
        assert not set(twice[trained]) & set(twice[held_out])
        assert len(held_out) == 24
    assert [len(held_out) for _, held_out in folds_of_units(5, X, y).split(X)] == [12] * 5


class NearestText(RegressorMixin, BaseEstimator):
    """The target of the nearest row, whose inputs may be texts."""

    def fit(self, X, y):
        self.model_ = KNeighborsRegressor(1).fit(np.asarray(X, dtype=float), y)
        return self

    def predict(self, X):
        return self.model_.predict(np.asarray(X, dtype=float))


def test_regressors_of_single_outputs_are_asked_one_by_one():
    X = np.linspace(0.0, 1.0, 20)[:, None]
    model = MultiOutputRegressor(gp.GaussianProcessRegressor(optimizer=None))
    model.fit(X, np.hstack([X, X]))
    with pytest.raises(TypeError, match="Ask each of its `estimators_`"):
        gp.predict_interval(model, X)
    assert gp.predict_interval(model.estimators_[0], X).shape == (20, 2)
