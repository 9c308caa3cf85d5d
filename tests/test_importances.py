"""feature_importances_: derivatives of f, on every estimator, and what selects inputs by them."""

import functools
import time

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import (
    ESTIMATORS,
    constructor,
    fitted_once,
)
from families import by_default, by_family, slow_cases
from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.gaussian_process.kernels import Kernel as TheirKernel
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPRegressor,
    QSRVMRegressor,
    SCGDGaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.display import FeatureImportancesDisplay
from skgpstoch.estimators.importances import difference_importances, spread_of
from skgpstoch.methods.automatic import automatic_regressor, stacking
from skgpstoch.methods.automatic.process import ExactProcessRegressor

rng = np.random.default_rng(0)
SCALE = np.array([1.0, 100.0, 0.01, 1.0])
X = rng.standard_normal((80, 4)) * SCALE
y = np.sin(2.0 * X[:, 0]) + X[:, 1] / 100.0 + 0.1 * rng.standard_normal(80)
LABELS = np.where(y > 0.0, "b", "a")


def target(model):
    return LABELS if is_classifier(model) else y


def fits(cls):
    model = constructor(cls)()
    if "max_iter" in model.get_params():
        model.set_params(max_iter=5)
    return fitted_once(model, X / SCALE, target(model))


# ---- what they are -------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", by_family("importances", ESTIMATORS))
@slow_cases("ADMM")
def test_every_estimator_has_them_when_it_is_fitted(cls):
    assert not hasattr(constructor(cls)(), "feature_importances_")
    model = fits(cls)
    before = {name: id(value) for name, value in vars(model).items()}
    found = model.feature_importances_
    assert found.shape == (4,)
    assert found.min() >= 0.0
    assert found.sum() == pytest.approx(1.0)
    assert found[:2].sum() > found[2:].sum()
    with torch.no_grad():
        np.testing.assert_array_equal(model.feature_importances_, found)
    with torch.inference_mode():
        np.testing.assert_array_equal(model.feature_importances_, found)
    assert {name: id(value) for name, value in vars(model).items()} == before


@pytest.mark.parametrize("cls", by_family("importances", ESTIMATORS))
def test_they_are_derivatives_of_f(cls):
    """Differences of what the estimator itself predicts give the same."""
    model = fits(cls)
    scale = model._y_scaling.scale if hasattr(model, "_y_scaling") else 1.0

    def f(X):
        if is_classifier(model):
            return model.latent_mean_and_variance(X)[0].reshape(len(X), -1)
        latent = {"latent": True} if hasattr(model, "posterior_") else {}
        return model.predict(X, **latent).reshape(len(X), -1) / scale

    expected = difference_importances(f, spread_of(X / SCALE))
    np.testing.assert_allclose(model.feature_importances_, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("several", [False, True])
def test_of_lines_they_are_coefficients_in_units_of_the_inputs(several):
    slopes = np.array([[3.0, -0.02, 0.0, 1.0], [0.0, 0.05, 100.0, 2.0]])
    Y = X @ slopes.T
    Y = Y if several else Y[:, 0]
    model = GaussianProcessRegressor(DotProduct(), alpha=1e-8, optimizer=None).fit(X, Y)
    unit = np.atleast_1d(Y.std(0))[:, None]
    sizes = np.sqrt(np.square(slopes[: len(unit)] * X.std(0) / unit).sum(0))
    np.testing.assert_allclose(model.feature_importances_, sizes / sizes.sum(), atol=1e-4)


def test_units_do_not_matter():
    """Nor does the order of rows."""
    params = {"n_inducing": 10, "solver": "natural", "max_iter": 2, "random_state": 0}
    model = SVGPRegressor(**params, dtype="float64")
    expected = clone(model).fit(X, y).feature_importances_
    order = rng.permutation(80)
    others = [(X * [1e3, 1e-3, 1.0, 7.0] + 5.0, y), (X, 1e4 * y - 3.0), (X[order], y[order])]
    for given in others:
        found = clone(model).fit(*given).feature_importances_
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_weights_are_rows_that_come_twice():
    weight = rng.integers(0, 3, 80)
    model = GaussianProcessClassifier(RBF(2.0), optimizer=None)
    twice = np.repeat(np.arange(80), weight)
    expected = clone(model).fit(X[twice] / SCALE, LABELS[twice]).feature_importances_
    found = clone(model).fit(X / SCALE, LABELS, sample_weight=weight).feature_importances_
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(RBF(1.0), n_inducing=10, max_iter=5, random_state=0),
        SCGDGaussianProcessRegressor(
            hidden_layer_sizes=(8,), n_estimators=1, max_iter=5, random_state=0
        ),
        GaussianProcessRegressor(RBF(1.0) + WhiteKernel(0.1), optimizer=None),
        SVGPClassifier(n_inducing=10, max_iter=5, random_state=0),
    ],
    ids=["sparse", "network", "exact", "classes"],
)
@slow_cases("classes")
def test_constant_columns_have_none(model):
    constant = np.column_stack([X / SCALE, np.full(80, 1e6)])
    assert model.fit(constant, target(model)).feature_importances_[-1] == 0.0


def test_of_a_constant_all_are_zero():
    model = GaussianProcessRegressor(ConstantKernel() + WhiteKernel(), optimizer=None).fit(X, y)
    np.testing.assert_array_equal(model.feature_importances_, np.zeros(4))


@pytest.mark.parametrize("multi_class", ["one_vs_rest", "one_vs_one"])
def test_of_several_classes(multi_class):
    labels = np.digitize(X[:, 1], [-50.0, 50.0])
    model = GaussianProcessClassifier(RBF(2.0), optimizer=None, multi_class=multi_class)
    assert model.fit(X / SCALE, labels).feature_importances_.argmax() == 1


@pytest.mark.parametrize("cls", [GaussianProcessRegressor, GaussianProcessClassifier])
def test_of_whole_numbers(cls):
    """Listing a model's attributes, which scikit-learn does by asking for each, raises nothing."""
    numbers = np.arange(40).reshape(20, 2) % 7
    noise = {"alpha": 0.1} if cls is GaussianProcessRegressor else {}
    model = cls(WhiteKernel() + ConstantKernel() * RBF(2.0), optimizer=None, **noise)
    model.fit(numbers, numbers[:, 0] % 2)
    assert "feature_importances_" in dir(model)
    same = clone(model).fit(numbers.astype(float), numbers[:, 0] % 2)
    np.testing.assert_array_equal(model.feature_importances_, same.feature_importances_)
    assert "feature_importances_" not in dir(clone(model))


def test_of_many_rows_they_are_those_of_the_sparse_model():
    model = GaussianProcessRegressor(
        RBF(np.ones(4)) + WhiteKernel(), method="sgpr", random_state=0
    ).fit(X / SCALE, y)
    expected = model.estimator_.feature_importances_
    np.testing.assert_array_equal(model.feature_importances_, expected)


SLOW_BEFORE = {
    "many outputs of neighbours": (NNGPRegressor(n_neighbors=6, max_iter=1, random_state=0), 2, 20),
    "many outputs of a basis": (QSRVMRegressor(max_iter=1, random_state=0), 2, 200),
    "many columns": (ExactProcessRegressor(kernels=["rbf", "linear"], random_state=0), 300, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_BEFORE)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_they_take_little_time(case):
    """They took up to half a minute: each output differentiated what all have, or each column."""
    model, n_columns, n_outputs = SLOW_BEFORE[case]
    rng = np.random.default_rng(9)
    rows = rng.standard_normal((90, n_columns))
    model.fit(rows, np.sin(rows @ rng.standard_normal((n_columns, n_outputs))).squeeze())
    start = time.process_time()
    found = model.feature_importances_
    assert time.process_time() - start < 3.0
    assert found.sum() == pytest.approx(1.0)


# ---- where there are none ------------------------------------------------------------------------


class OfWords(TheirKernel):
    """1 where words are equal, of objects that are no vectors."""

    requires_vector_input = False

    def __init__(self):
        pass

    def __call__(self, X, Y=None, eval_gradient=False):
        Y = X if Y is None else Y
        K = np.array([[float(a == b) for b in Y] for a in X])
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X):
        return np.ones(len(X))

    def is_stationary(self):
        return False


def test_objects_have_no_columns():
    model = GaussianProcessRegressor(OfWords(), alpha=0.1, optimizer=None)
    model.fit(["a", "b", "a", "c"], [1.0, 2.0, 1.0, 3.0])
    assert not hasattr(model, "feature_importances_")


@pytest.mark.slow
def test_mixtures_need_those_of_all_their_models(monkeypatch):
    monkeypatch.setattr(stacking, "PRIOR_OF_EACH", 50.0)  # so that both have a weight
    forest = ConstantVarianceRegressor(RandomForestRegressor(5, random_state=0), cv=2)
    process = SVGPRegressor(n_inducing=10, solver="natural", max_iter=3, random_state=0)
    models = [("process", process), ("forest", forest)]
    stack = StackedDensityRegressor(models, cv=2)
    with pytest.raises(NotFittedError):
        stack.feature_importances_  # noqa: B018
    stack.fit(X, y)
    parts = [model.feature_importances_ for model in stack.estimators_]
    np.testing.assert_allclose(stack.feature_importances_, stack.weights_ @ parts)
    np.testing.assert_array_equal(parts[1], stack.estimators_[1].estimator_.feature_importances_)
    line = ConstantVarianceRegressor(Ridge(), cv=2).fit(X, y)
    assert not hasattr(line, "feature_importances_")


# ---- the recommended defaults --------------------------------------------------------------------


@pytest.mark.parametrize("cls", [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier])
@by_default("Regressor")
def test_of_frames_they_are_of_the_columns(cls, monkeypatch):
    """Levels of a category, and where values are missing, count for their column."""
    of_one = functools.partial(automatic_regressor.ExactProcessRegressor, kernels=["rbf"])
    monkeypatch.setattr(automatic_regressor, "ExactProcessRegressor", of_one)
    frame = pd.DataFrame({"a": X[:, 0], "noise": X[:, 3], "same": 1.0})
    kind = np.array(list("pqrs"))[rng.integers(0, 4, 80)]
    frame.insert(1, "kind", pd.Categorical(kind))
    frame.loc[::9, "noise"] = np.nan
    levels = pd.Series({"p": -1.0, "q": -0.5, "r": 0.5, "s": 1.0})
    f = 2.0 * levels[kind].to_numpy() + frame["a"].to_numpy()
    model = cls(random_state=0).fit(frame, f > 0.0 if is_classifier(cls()) else f)
    found = dict(zip(frame.columns, model.feature_importances_, strict=True))
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["same"] == 0.0
    assert min(found["a"], found["kind"]) > 3.0 * found["noise"]
    encoded = sum(
        w * m.feature_importances_
        for w, m in zip(model.weights_, model.estimators_.values(), strict=True)
    )
    assert len(encoded) > len(found)
    assert encoded.sum() == pytest.approx(1.0)


# ---- selection -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relevant():
    """The first three of eight inputs matter: by a sine, a line, and a parabola."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.0, 1.0, (150, 8)) * [1, 10, 0.1, 1, 1, 1, 100, 1]
    f = np.sin(3.0 * X[:, 0]) + 0.1 * X[:, 1] + 250.0 * X[:, 2] ** 2
    return X, f + 0.1 * rng.standard_normal(150)


CHOICE = [True] * 3 + [False] * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(n_inducing=20, max_iter=10, random_state=0),
        make_pipeline(StandardScaler(), GaussianProcessRegressor(1.0 * RBF(2.0) + WhiteKernel())),
        make_pipeline(StandardScaler(), GaussianProcessClassifier(1.0 * RBF(2.0))),
    ],
    ids=["sparse", "pipeline", "classes"],
)
@slow_cases("sparse")
@by_default("pipeline")
def test_inputs_are_selected(model, relevant):
    X, y = relevant
    y = y > np.median(y) if is_classifier(model) else y
    getter = "auto"
    if hasattr(model, "steps"):
        getter = lambda fitted: fitted[-1].feature_importances_  # noqa: E731
    chosen = SelectFromModel(model, importance_getter=getter).fit(X, y)
    assert chosen.get_support().tolist() == CHOICE
    by_turns = RFE(clone(model), n_features_to_select=3, step=3, importance_getter=getter).fit(X, y)
    assert by_turns.support_.tolist() == CHOICE
    assert by_turns.score(X, y) > 0.85


@pytest.mark.slow
def test_the_number_of_inputs_is_found(relevant):
    X, y = relevant
    model = GaussianProcessRegressor(1.0 * RBF(2.0) + WhiteKernel(0.1, "fixed"), random_state=0)
    found = RFECV(model, cv=2).fit(X[:100] / X.std(0), y[:100])
    assert found.support_.tolist() == CHOICE


# ---- the picture ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_picture_has_a_bar_for_each_of_the_most_important():
    model = fitted_once(SVGPRegressor(n_inducing=10, max_iter=5, random_state=0), X / SCALE, y)
    display = FeatureImportancesDisplay.from_estimator(model, max_features=3, color="gray")
    order = np.argsort(-model.feature_importances_)[:3]
    labels = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert labels == [f"x{j}" for j in order[::-1]]
    widths = [bar.get_width() for bar in display.bars_]
    np.testing.assert_allclose(widths, model.feature_importances_[order[::-1]])


@pytest.mark.slow
def test_the_picture_knows_names():
    frame = pd.DataFrame(X / SCALE, columns=list("abcd"))
    model = SVGPRegressor(n_inducing=10, solver="natural", max_iter=1, random_state=0)
    named = clone(model).fit(frame, y)
    assert FeatureImportancesDisplay.from_estimator(named).names == list("abcd")
    piped = GridSearchCV(make_pipeline(StandardScaler(), model), {}, cv=2).fit(frame, y)
    assert FeatureImportancesDisplay.from_estimator(piped).names == list("abcd")
    names = pd.Index(list("efgh"))
    given = FeatureImportancesDisplay.from_estimator(named, feature_names=names)
    assert given.names == list("efgh")
    with pytest.raises(ValueError, match=r"feature_names must hold 4 names, .* got 1"):
        FeatureImportancesDisplay.from_estimator(named, feature_names=["a"])
    for wrong in (3, "abcd"):
        with pytest.raises(TypeError, match=r"feature_names must be a list of 4 names, .* got "):
            FeatureImportancesDisplay.from_estimator(named, feature_names=wrong)
    with pytest.raises(TypeError, match="needs an estimator with a feature_importances_"):
        FeatureImportancesDisplay.from_estimator(Ridge().fit(X, y))
