"""A row of weight w is that row w times; a known error of a target adds to the learned noise.

Up to `MERGED_ROWS` rows those that are the same are merged before a fit, and what is asked for here
is equality to the last bit. Beyond (`unmerged`) every sum over all rows is asked to be that of the
repeated rows, and minibatches are asked to be unbiased.
"""

import copy
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import (
    CLASSIFIERS,
    COVERING,
    DIRECT,
    FINITE,
    FINITE_ONE,
    SPARSE_REGRESSORS,
    TRAINED,
    constructor,
    fitted_once,
    named,
)
from families import slow_cases
from scipy.stats import norm
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import AdaBoostRegressor, BaggingClassifier, BaggingRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    WhiteKernel,
)
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.testing import assert_close

from skgpstoch import (
    BSGDGaussianProcessRegressor,
    DLMClassifier,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessClassifier,
    MinimaxGaussianProcessRegressor,
    NNGPRegressor,
    QSGPClassifier,
    SCGDGaussianProcessRegressor,
    SolveGPClassifier,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data import equal_rows
from skgpstoch.data.arrays import Scaling
from skgpstoch.data.rows import Data, Rows
from skgpstoch.estimators.context import judged
from skgpstoch.estimators.weights import check_weight
from skgpstoch.kernels import from_sklearn
from skgpstoch.likelihoods import make_likelihood
from skgpstoch.losses import FullyIndependent, Log1pBound, make_loss
from skgpstoch.maths.linear_regression import (
    batch_statistics,
    exact_statistics,
    predict_held_out,
    spectrum,
)
from skgpstoch.methods.bsgd import BSGDObjective, KernelBSGDObjective
from skgpstoch.methods.dlm.fits import mean_loss
from skgpstoch.methods.minimax import MinimaxObjective
from skgpstoch.methods.scgd import SCGDObjective
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.network import NetworkFeatures, multilayer_perceptron
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.sparse import ConstantMean, SparseModel
from skgpstoch.objectives.adam import GradientObjective
from skgpstoch.objectives.lbfgs import FullBatchObjective
from skgpstoch.objectives.natural import ProfiledObjective, RunningObjective
from skgpstoch.objectives.optimal_q import evidence_bound, optimal_q
from skgpstoch.training.recipes.points import choose_points

F64 = torch.float64
ROWS = 40
WEIGHTS = np.random.default_rng(5).permutation(np.arange(ROWS) % 5)  # 0, …, 4
WEIGHTED = [cls for cls in TRAINED if cls is not FITCRegressor]
COVERING_WEIGHTED = [*FINITE, *COVERING]  # as FITS has all
OF_EACH_FAMILY = [FINITE_ONE, *COVERING]  # for what no objective sees
BOUNDED = [cls for cls in SPARSE_REGRESSORS if cls is not FITCRegressor]
FIXED = ConstantKernel(1.3, "fixed") * Matern([0.8, 1.2], "fixed", nu=1.5)
PERIODIC = {"kernel": ExpSineSquared(1.0, 2.0) + WhiteKernel(0.1), "hidden_layer_sizes": ()}


@pytest.fixture
def unmerged(monkeypatch):
    """No rows are merged, as where they are many."""
    monkeypatch.setattr(equal_rows, "MERGED_ROWS", 0)


@pytest.fixture(scope="module")
def problem(sine, counts, two_classes, three_classes):
    """problem(kind): X, y and what else is known of some rows."""

    def make(kind, n=ROWS):
        X, y = sine
        known = {}
        if kind == "outputs":
            y = np.column_stack([y, 1e3 * np.cos(X[:, 1])])
        elif kind == "line":  # periodic kernels are positive definite on one input alone
            X, y = X[:, :1], np.column_stack([y, np.cos(X[:, 1])])
        elif kind == "errors":
            known["y_std"] = 0.05 + 0.1 * np.abs(X[:, 1])
        elif kind == "counts":
            X, y, known["exposure"] = counts
        elif kind == "two":
            X, y = two_classes
        elif kind == "three":
            X, y = three_classes
        return X[:n], y[:n], {name: column[:n] for name, column in known.items()}

    return make


def kind_of(cls):
    return "three" if is_classifier(cls()) else "real"


def repeated(weights, X, y, known=None, seed=0):
    """The same with each row as often as it counts, in random order."""
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(X)), weights))
    return X[order], y[order], {name: column[order] for name, column in (known or {}).items()}


def outcome(model, X):
    """Arrays that say what a fitted model is."""
    if is_classifier(model):
        found = [model.predict_proba(X), *model.latent_mean_and_variance(X)]
    else:
        found = [*model.predict(X, return_std=True)]
    if not is_classifier(model) and getattr(model, "likelihood", None) != "poisson":
        found.append(np.asarray(model.noise_variance_))
    return [*found, np.asarray(model.log_marginal_likelihood_value_)]


def assert_same(a, b, X, rtol=0.0, atol=0.0):
    for one, other in zip(outcome(a, X), outcome(b, X), strict=True):
        if rtol or atol:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(one, other)


# ---- fits of few rows: equal to the last bit ----------------------------------------------------
FITS = {
    **{named(cls): (cls, {}, kind_of(cls)) for cls in WEIGHTED},
    "outputs-finite": (SCGDGaussianProcessRegressor, {"n_estimators": 2}, "outputs"),
    "outputs": (SVGPRegressor, {}, "outputs"),
    "learned-noise": (SCGDGaussianProcessRegressor, {"noise": "learned"}, "real"),
    "fourier": (BSGDGaussianProcessRegressor, {"kernel": RBF(), "n_components": 10}, "real"),
    "periodic": (BSGDGaussianProcessRegressor, PERIODIC, "line"),
    "no-hold-out": (MinimaxGaussianProcessRegressor, {"early_stopping": False}, "real"),
    "kmeans": (SVGPRegressor, {"inducing_points": "kmeans"}, "real"),
    "variance": (SVGPRegressor, {"inducing_points": "conditional_variance"}, "real"),
    "hold-out": (SVGPRegressor, {"early_stopping": True}, "real"),
    "network": (SVGPRegressor, {"hidden_layer_sizes": (5,)}, "real"),
    "lbfgs": (SVGPRegressor, {"solver": "lbfgs", "max_iter": 2}, "real"),
    "natural": (SVGPRegressor, {"solver": "natural"}, "real"),
    "adam": (SVGPRegressor, {"solver": "adam"}, "real"),
    "log": (SVGPRegressor, {"loss": "log", "solver": "natural"}, "real"),
    "errors": (SVGPRegressor, {"solver": "natural"}, "errors"),
    "student-t": (SVGPRegressor, {"likelihood": "student_t", "solver": "natural"}, "real"),
    "poisson": (SVGPRegressor, {"likelihood": "poisson", "solver": "natural"}, "counts"),
    "odvgp": (SolveGPRegressor, {"posterior": "odvgp"}, "real"),
    "betas": (DLMRegressor, {"beta": [0.1, 1.0], "max_iter": 5}, "real"),
    "fixed": (DLMRegressor, {"hyperparameters": "fixed"}, "real"),
    "two": (SVGPClassifier, {}, "two"),
    "robustmax": (SVGPClassifier, {"likelihood": "robustmax"}, "three"),
    "brier": (DLMClassifier, {"loss": "square"}, "two"),
}


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("case", FITS)
@slow_cases(
    "^outputs$",
    "periodic",
    "no-hold-out",
    "^natural$",
    "^adam$",
    "Minimax",
    "^robustmax",
    "fixed",
    "variance",
    "^(BSGD|SolveGPC)",
    "brier",
    "log$",
    "student-t",
    "kmeans",
    "learned-noise",
)
@slow_cases("betas", "network", "hold-out", "errors")
def test_integer_weights_are_repeated_rows(case, problem):
    cls, params, kind = FITS[case]
    X, y, known = problem(kind)
    model = constructor(cls)(**{"max_iter": 5, **params})
    weighted = clone(model).fit(X, y, sample_weight=WEIGHTS, **known)
    X2, y2, known2 = repeated(WEIGHTS, X, y, known)
    other = clone(model).fit(X2, y2, **known2)
    assert_same(weighted, other, X)
    assert weighted.loss_curve_ == other.loss_curve_
    np.testing.assert_array_equal(weighted.validation_scores_, other.validation_scores_)
    assert weighted.posterior_.n_rows == WEIGHTS.sum() == other.posterior_.n_rows


@pytest.mark.parametrize("cls", COVERING_WEIGHTED, ids=named)
@slow_cases("DLMClassifier")
def test_weights_make_a_difference(cls, problem):
    X, y, _ = problem(kind_of(cls))
    model = constructor(cls)(max_iter=5)
    a, b = fitted_once(model, X, y), fitted_once(model, X, y, WEIGHTS)
    assert np.abs(outcome(a, X)[0] - outcome(b, X)[0]).max() > 1e-3


@pytest.mark.parametrize("cls", OF_EACH_FAMILY, ids=named)
def test_score_counts_rows_as_often_as_they_weigh(cls, problem):
    X, y, _ = problem(kind_of(cls))
    model = fitted_once(constructor(cls)(max_iter=5), X, y, WEIGHTS)
    X2, y2, _ = repeated(WEIGHTS, X, y)
    assert model.score(X, y, WEIGHTS) == pytest.approx(model.score(X2, y2), rel=1e-12)
    score = accuracy_score if is_classifier(model) else r2_score
    assert model.score(X, y, WEIGHTS) == score(y, model.predict(X), sample_weight=WEIGHTS)


def test_candidates_for_beta_and_their_loss_are_of_rows_as_often_as_they_count(
    problem, monkeypatch
):
    monkeypatch.setattr("skgpstoch.methods.dlm.fits.LEAST_BETA", 10.0)
    X, y, _ = problem("real")
    model = constructor(DLMRegressor)(loss="square", beta="auto", validation_fraction=0.25)
    model.set_params(solver="collapsed", max_iter=1).fit(X, y, np.full(ROWS, 3.0))
    assert model.beta_path_[0] == 0.5 * 3 * 30
    loss = mean_loss(model, Data(X, y[:, None], WEIGHTS.astype(float)))
    error = (y - model.predict(X)) / model._y_scaling.scale
    assert loss == pytest.approx(np.average(error**2, weights=WEIGHTS), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (SCGDGaussianProcessRegressor, {}),
        (SVGPRegressor, {"hidden_layer_sizes": (5,), "early_stopping": False}),
    ],
)
def test_decay_of_networks_is_by_the_number_of_rows_that_count(cls, params, problem):
    """2000/n of n = 40,000."""
    X, y, _ = problem("real")
    model, w = constructor(cls)(max_iter=20, **params), np.full(ROWS, 1000)
    auto = clone(model).fit(X, y, w)
    assert_same(auto, clone(model).set_params(weight_decay=0.05).fit(X, y, w), X)
    other = clone(model).set_params(weight_decay=0.3).fit(X, y, w)
    assert np.abs(auto.predict(X) - other.predict(X)).max() > 1e-8


def test_centres_of_clusters_are_drawn_to_rows_that_count_often():
    X, _, _, _ = make_rows()
    heavy = torch.where(torch.arange(len(X)) == 5, 1e6, 1.0).to(F64)

    def distance(weight):
        g = torch.Generator().manual_seed(0)
        points = choose_points("kmeans", X, 3, from_sklearn(RBF()), nn.Identity(), g, weight)
        return float((points - X[5]).norm(dim=1).min())

    assert distance(heavy) < 1e-3 < 0.05 < distance(None)


@pytest.mark.parametrize("cls", [SVGPRegressor, SolveGPClassifier, DLMRegressor], ids=named)
@slow_cases("SolveGPClassifier")
@pytest.mark.filterwarnings("ignore:A distinct row counts")
def test_more_points_than_rows_if_these_count_for_enough(cls, problem):
    """As many as there are distinct rows are made either way."""
    X, y, _ = problem(kind_of(cls))
    model = constructor(cls)(n_inducing=ROWS + 5, max_iter=2)
    X2, y2, _ = repeated(2 + WEIGHTS, X, y)
    assert_same(clone(model).fit(X, y, 2 + WEIGHTS), clone(model).fit(X2, y2), X)
    with pytest.warns(UserWarning, match=f"n_inducing={ROWS + 5} is more than .* {ROWS} are used"):
        clone(model).fit(X, y)


# ---- weights that are no numbers of rows --------------------------------------------------------
HUGE = pytest.warns(UserWarning, match="no two of these 60 rows have the same inputs")


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(n_inducing=10, max_iter=2, random_state=0),
        SVGPClassifier(n_inducing=10, solver="natural", max_iter=2, random_state=0),
        DLMRegressor(n_inducing=10, max_iter=5, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@slow_cases("DLM")
def test_huge_weights_of_distinct_rows_are_relative(model, problem):
    X, y, _ = problem(kind_of(type(model)), n=60)
    expected = outcome(clone(model).fit(X, y), X)
    with HUGE:
        found = outcome(clone(model).fit(X, y, np.full(60, 1e9)), X)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    weight = np.where(np.arange(60) < 45, 1e9, 1.0)  # 45 rows that are far more important
    with HUGE:
        found = outcome(clone(model).fit(X, y, weight), X)[0]
    alone = outcome(clone(model).fit(X, y, np.where(weight > 1.0, 1.0, 1e-9)), X)[0]
    np.testing.assert_allclose(found, alone, atol=1e-6)


@pytest.mark.slow
def test_huge_counts_of_cells_are_counts(problem):
    x = np.linspace(-3, 3, 15)
    p = 0.5 + 0.4 * np.sin(x)
    counts = 1e9 * np.stack([1.0 - p, p], 1).ravel()
    X, y = np.repeat(x, 2)[:, None], np.tile([0, 1], 15)
    proba = SVGPClassifier(random_state=0).fit(X, y, counts).predict_proba(x[:, None])
    np.testing.assert_allclose(proba[:, 1], p, atol=1e-5)
    model = SVGPRegressor(random_state=0).fit(X, y, counts)
    np.testing.assert_allclose(model.predict(x[:, None]), p, atol=1e-5)
    assert model.posterior_.n_rows == pytest.approx(15e9)


# ---- fits of many rows: equal where they are deterministic --------------------------------------
POINTS = {"inducing_points": np.random.default_rng(1).uniform(-3, 3, (8, 2)), "n_inducing": "auto"}
LBFGS = {**POINTS, "solver": "lbfgs", "max_iter": 1, "learn_inducing_points": False}
CLOSED = {
    **POINTS,
    "kernel": ConstantKernel(1.3, "fixed") * Matern([3.0, 3.0], "fixed", nu=1.5),
    "mean": "zero",
    "learn_inducing_points": False,
    "dtype": "float64",
}
CLOSED_GAUSSIAN = {
    **CLOSED,
    "kernel": CLOSED["kernel"] + WhiteKernel(0.3, "fixed"),
    "solver": "auto",
}
LINEAR = {"hidden_layer_sizes": (), "kernel": DotProduct(0.5, "fixed"), "dtype": "float64"}
ORTHOGONAL = {"orthogonal_points": np.random.default_rng(2).uniform(-3, 3, (6, 2))}
DETERMINISTIC = {
    "linear": (SCGDGaussianProcessRegressor, {**LINEAR, "early_stopping": False}, "outputs"),
    "linear-minimax": (
        MinimaxGaussianProcessRegressor,
        {**LINEAR, "early_stopping": False, "noise": "profiled", "max_iter": 1},
        "real",
    ),
    "linear-bsgd": (BSGDGaussianProcessRegressor, {**LINEAR, "early_stopping": False}, "real"),
    "kernel-bsgd": (
        BSGDGaussianProcessRegressor,
        {
            "kernel": ExpSineSquared(1.0, 2.0, "fixed", "fixed") + WhiteKernel(0.1, "fixed"),
            "hidden_layer_sizes": (),
            "early_stopping": False,
            "dtype": "float64",
        },
        "line",
    ),
    "closed": (SVGPRegressor, CLOSED_GAUSSIAN, "outputs"),
    "closed-solve": (SolveGPRegressor, {**CLOSED_GAUSSIAN, **ORTHOGONAL}, "real"),
    "closed-errors": (SVGPRegressor, CLOSED_GAUSSIAN, "errors"),
    "closed-poisson": (
        SVGPRegressor,
        {**CLOSED, "likelihood": "poisson", "solver": "natural"},
        "counts",
    ),
    "lbfgs": (SVGPRegressor, LBFGS, "real"),
    "lbfgs-solve": (SolveGPRegressor, {**LBFGS, **ORTHOGONAL}, "real"),
    "lbfgs-square": (DLMRegressor, {**LBFGS, "loss": "square"}, "outputs"),
    "lbfgs-student-t": (SVGPRegressor, {**LBFGS, "likelihood": "student_t"}, "real"),
    # With length-scales that are free L-BFGS lets rounding grow here, of X's last bit to 1.5e-4.
    "lbfgs-laplace": (
        SVGPRegressor,
        {**LBFGS, "likelihood": "laplace", "kernel": 1.0 * Matern([3.0, 3.0], "fixed", nu=1.5)},
        "real",
    ),
    "lbfgs-poisson": (SVGPRegressor, {**LBFGS, "likelihood": "poisson"}, "counts"),
    "closed-bernoulli": (SVGPClassifier, {**CLOSED, "solver": "natural"}, "two"),
    "closed-softmax": (SolveGPClassifier, {**CLOSED, **ORTHOGONAL, "solver": "natural"}, "three"),
}


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("case", DETERMINISTIC)
@slow_cases("^lbfgs-(student|laplace)")
def test_weights_without_merging(case, problem, unmerged):
    """Scalings, initial values, training and the closing pass, all by weights."""
    cls, params, kind = DETERMINISTIC[case]
    X, y, known = problem(kind, n=24)
    model, w = constructor(cls)(**params), 1 + WEIGHTS[:24]
    weighted = clone(model).fit(X, y, sample_weight=w, **known)
    X2, y2, known2 = repeated(w, X, y, known)
    other = clone(model).fit(X2, y2, **known2)
    assert weighted.posterior_.n_rows == w.sum() == other.posterior_.n_rows
    assert_same(weighted, other, X, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:Counts vary")  # y is the same for each exposure
@pytest.mark.parametrize("case", ["closed-errors", "closed-poisson"])
def test_rows_that_differ_in_errors_or_exposures_are_kept_apart(case, problem, monkeypatch):
    cls, params, kind = DETERMINISTIC[case]
    X, y, known = problem(kind, n=20)
    known = {name: np.r_[column, 4.0 * column] for name, column in known.items()}
    model = constructor(cls)(**params)
    merged = clone(model).fit(np.r_[X, X], np.r_[y, y], **known)
    monkeypatch.setattr(equal_rows, "MERGED_ROWS", 0)
    unmerged = clone(model).fit(np.r_[X, X], np.r_[y, y], **known)
    assert_same(merged, unmerged, X, rtol=1e-8)


STREAMS = [cls for cls in WEIGHTED if cls is not MinimaxGaussianProcessRegressor]


@pytest.mark.parametrize("cls", STREAMS, ids=named)
@slow_cases("DLMClassifier", "SVGPRegressor", "SolveGPClassifier")
def test_streams_of_whole_chunks(cls, problem):
    """A minibatch that is a chunk is the same rows either way."""
    X, y, _ = problem(kind_of(cls))
    model = constructor(cls)(dtype="float64", batch_size=200)
    if cls not in FINITE:
        model.set_params(**POINTS, solver="natural")
    if "orthogonal_points" in model.get_params() and cls not in DIRECT:
        model.set_params(**ORTHOGONAL)
    parts = [slice(0, 24), slice(24, ROWS)]
    if "averaging" in model.get_params():
        model.set_params(averaging=0.5)  # else it depends on how many rows are there
    elif cls in FINITE:
        parts = parts[:1]
    a, b = clone(model), clone(model)
    for part in parts:
        w = 1 + WEIGHTS[part]
        X2, y2, _ = repeated(w, X[part], y[part])
        a.partial_fit(X[part], y[part], sample_weight=w)
        b.partial_fit(X2, y2)
    np.testing.assert_allclose(outcome(a, X)[0], outcome(b, X)[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(outcome(a, X)[1], outcome(b, X)[1], rtol=1e-6, atol=1e-8)
    c = clone(model)
    for part in parts:
        c.partial_fit(X[part], y[part])
    assert np.abs(outcome(a, X)[0] - outcome(c, X)[0]).max() > 1e-4


@pytest.mark.parametrize("cls", [SCGDGaussianProcessRegressor, SVGPRegressor], ids=named)
def test_streams_through_a_module_of_the_users(cls, problem):
    """Whose features are looked at twice: as in training, and as in predictions."""
    X, y, _ = problem("real")
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    model = constructor(cls)(dtype="float64", batch_size=200, feature_map=module)
    model.set_params(hidden_layer_sizes=())
    if cls is SVGPRegressor:
        model.set_params(**POINTS)
    w = 1 + WEIGHTS
    X2, y2, _ = repeated(w, X, y)
    a, b = clone(model).partial_fit(X, y, sample_weight=w), clone(model).partial_fit(X2, y2)
    np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(a.predict_std(X), b.predict_std(X), rtol=1e-6)


def test_streams_of_classes_with_weights(problem):
    X, y, _ = problem("three")
    quick = constructor(SVGPClassifier)
    one = y == y[0]
    model = quick().partial_fit(X[one], y[one], np.unique(y), np.full(one.sum(), 2.0))
    again = quick().partial_fit(X[one], y[one], classes=np.unique(y), sample_weight=[2] * one.sum())
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.posterior_.n_rows == 2.0 * one.sum()


# ---- evidence -----------------------------------------------------------------------------------
EVIDENCE = {
    **{named(cls): (cls, {}, "outputs") for cls in FINITE},
    "periodic": (BSGDGaussianProcessRegressor, PERIODIC, "line"),
    **{named(cls): (cls, {}, "outputs") for cls in BOUNDED},
    "square": (SVGPRegressor, {"loss": "square"}, "real"),
    "log1p": (SVGPRegressor, {"loss": "log1p"}, "real"),
    "errors": (SVGPRegressor, {"solver": "natural"}, "errors"),
    "student-t": (SVGPRegressor, {"likelihood": "student_t", "solver": "natural"}, "real"),
    "laplace": (SVGPRegressor, {"likelihood": "laplace", "solver": "natural"}, "real"),
    "poisson": (SVGPRegressor, {"likelihood": "poisson", "solver": "natural"}, "counts"),
}


@pytest.mark.parametrize("case", EVIDENCE)
@slow_cases("Minimax", "periodic", "student", "poisson")
def test_evidence_is_that_of_repeated_rows(case, problem):
    cls, params, kind = EVIDENCE[case]
    X, y, known = problem(kind)
    model = constructor(cls)(max_iter=5, **params).fit(X, y, **known)
    X2, y2, known2 = repeated(WEIGHTS, X, y, known)
    value = model.log_marginal_likelihood(X, y, WEIGHTS, **known)
    assert value == pytest.approx(model.log_marginal_likelihood(X2, y2, **known2), rel=1e-8)
    twice = model.log_marginal_likelihood(X, y, 2 * WEIGHTS, **known)
    assert abs(twice - value) > 1e-3 * abs(value)


@pytest.mark.parametrize("case", EVIDENCE)
@slow_cases("BSGD", "errors", "laplace", "square")
def test_evidence_of_the_fit_is_that_of_its_rows(case, problem):
    """In the units of y, of a weighted fit."""
    cls, params, kind = EVIDENCE[case]
    X, y, known = problem(kind)
    model = constructor(cls)(max_iter=5, **params).fit(X, y, WEIGHTS, **known)
    value = model.log_marginal_likelihood(X, y, WEIGHTS, **known)
    if cls is DLMRegressor:  # whose q is not that of the best bound
        assert value > model.log_marginal_likelihood_value_
    else:
        assert value == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-5)


@pytest.mark.parametrize("cls", FINITE, ids=named)
def test_evidence_of_finite_models_knows_no_errors_and_no_exposure(cls, problem):
    X, y, _ = problem("real")
    model = constructor(cls)(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="exposure must be None"):
        model.log_marginal_likelihood(X, y, exposure=2.0)
    with pytest.raises(ValueError, match="y_std must be None"):
        model.log_marginal_likelihood(X, y, y_std=0.1)


# ---- FITC refuses -------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fit", "partial_fit", "log_marginal_likelihood"])
def test_fitc_says_why_it_has_no_weights(method, problem):
    X, y, _ = problem("real")
    model = constructor(FITCRegressor)(max_iter=2)
    if method == "log_marginal_likelihood":
        model.fit(X, y)
    with pytest.raises(
        ValueError, match=r"sample_weight must be None .* residuals .* SVGPRegressor"
    ):
        getattr(model, method)(X, y, sample_weight=WEIGHTS)
    getattr(model, method)(X, y, sample_weight=None)
    assert 0.0 < model.score(X, y, WEIGHTS) < 1.0


# ---- objectives: weights against repetition, on the very same model -----------------------------
def make_rows(seed=0, n=24, kind="gaussian", P=1, n_held_out=0, noise=False):
    """Inputs and rows, and the same with each row repeated; those of folds come first."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=g, dtype=F64)
    y = torch.sin(2.0 * X[:, :1]) + 0.3 * torch.randn(n, P, generator=g, dtype=F64)
    exposure = None
    if kind in ("student_t", "laplace"):
        y[::6] += 3.0
    elif kind == "bernoulli":
        y = (y > 0.0).to(F64)
    elif kind in ("softmax", "robustmax"):
        y = (y[:, :1] * 2.0).round().clamp(-1, 1) + 1.0
    elif kind == "poisson":
        exposure = 0.5 + torch.rand(n, 1, generator=g, dtype=F64)
        y = torch.poisson(exposure * y.exp(), generator=g)
    s2 = 0.2 * torch.rand(n, P, generator=g, dtype=F64) if noise else None
    w = torch.randint(1, 5, (n,), generator=g)
    index = torch.repeat_interleave(torch.arange(n), w)
    index = index[torch.randperm(len(index), generator=g)]
    fold = None
    if n_held_out:
        fold = torch.full((n,), -1, dtype=torch.int32)
        fold[:n_held_out] = torch.arange(n_held_out, dtype=torch.int32) % 2
        index = index[torch.argsort(index >= n_held_out, stable=True)]
    rows = Rows(y, w.to(F64), exposure, s2, fold)
    return X, rows, X[index], Rows(y, None, exposure, s2, fold)[index]


def make_model(rows, X, kind="gaussian", loss=None, M=5, M2=0, prior=False, beta=1.0, layers=()):
    g = torch.Generator().manual_seed(7)
    points = X[: M + M2] + 0.05
    network = multilayer_perceptron(2, layers, "tanh", g).to(F64)
    lengths = np.linspace(0.8, 1.5, layers[-1] if layers else 2)
    kernel = from_sklearn(ConstantKernel(1.3) * Matern(lengths, nu=1.5))
    args = (kernel, network, points[:M], torch.tensor([0.5, 2.0], dtype=F64), len(lengths))
    if M2:
        features = OrthogonalFeatures(*args, orthogonal_points=points[M:])
    else:
        features = InducingFeatures(*args)
    features.jitter = None
    likelihood = make_likelihood(kind)
    if kind in ("softmax", "robustmax"):
        likelihood = likelihood.for_classes(3)
    likelihood = likelihood.for_outputs(rows.y.shape[1])
    level = 0.2 * torch.randn(likelihood.n_latents(rows.y.shape[1]), generator=g, dtype=F64)
    blocks = (False, prior) if M2 else (False,)
    return SparseModel(features, likelihood, ConstantMean(level), blocks, loss, beta)


SOLVERS = {
    "collapsed": lambda *a, **k: RunningObjective(*a, conjugate=True, averaging=0.3, **k),
    "natural": lambda *a, **k: RunningObjective(*a, conjugate=False, averaging=0.3, **k),
    "profiled": lambda *a, **k: ProfiledObjective(*a, averaging=0.3, **k),
    "lbfgs": FullBatchObjective,
    "adam": GradientObjective,
    "unwhitened": lambda *a, **k: GradientObjective(*a, whiten=False, **k),
}


def solve_with(solver, model, rows):
    """An objective on a copy of the model, with free parameters somewhere."""
    objective = SOLVERS[solver](
        copy.deepcopy(model), rows.n_effective, mean_weight=rows.mean_weight
    )
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in objective.parameters():
            p += 0.05 * torch.randn(p.shape, generator=g, dtype=F64).to(p)
    return objective


def gradients(objective, X, rows, seed=0):
    """Loss of a step, and its gradient by every parameter that it reaches, in one vector."""
    loss = objective(X, rows, torch.Generator().manual_seed(seed))
    free = [p for p in objective.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True)
    return torch.cat([loss.detach().double().reshape(1), *(g.double().flatten() for g in parts)])


def assert_same_state(a, b, rtol=1e-8, atol=1e-9):
    """Of buffers, but for the number of rows that one of them counts for."""
    for (name, one), other in zip(a.named_buffers(), dict(b.named_buffers()).values(), strict=True):
        if name == "share":
            continue
        assert_close(one, other, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


ADDITIVE = ("gaussian", "student_t")
OTHERS = ("poisson", "softmax", "robustmax")
TERMS = [
    ("gaussian", "elbo", "collapsed natural lbfgs adam unwhitened"),
    ("gaussian", "log1p", "natural lbfgs adam"),
    ("gaussian", "log", "profiled adam"),
    ("gaussian", "fitc", "natural lbfgs adam"),
    *((kind, "elbo", "natural lbfgs adam") for kind in (*ADDITIVE[1:], *OTHERS[:-1])),
    ("robustmax", "elbo", "natural adam"),
    *((kind, "log", "profiled adam") for kind in (*ADDITIVE[1:], *OTHERS)),
    *((kind, "square", "collapsed natural lbfgs adam") for kind in ADDITIVE),
    *((kind, "square", "profiled adam") for kind in OTHERS),
]
OBJECTIVES = [(kind, loss, solver) for kind, loss, all_ in TERMS for solver in all_.split()]
LOSSES = {"log1p": Log1pBound, "fitc": FullyIndependent}


def loss_called(name):
    return LOSSES[name]() if name in LOSSES else make_loss(name)


@pytest.mark.parametrize(("kind", "loss", "solver"), OBJECTIVES)
@slow_cases("softmax-elbo-lbfgs")
def test_steps_with_all_rows(kind, loss, solver):
    """Loss, gradient and running averages of two steps, then q."""
    X, rows, X2, rows2 = make_rows(kind=kind)
    model = make_model(rows, X, kind, loss_called(loss), beta=0.7)
    a, b = solve_with(solver, model, rows), solve_with(solver, model, rows2)
    assert float(a.n_rows) == len(rows2) == float(b.n_rows)
    for _ in range(2):
        assert_close(gradients(a, X, rows), gradients(b, X2, rows2), rtol=1e-8, atol=1e-8)
        assert_same_state(a, b)
    assert_close(a.q().mean, b.q().mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", ["collapsed", "natural", "lbfgs", "adam"])
@pytest.mark.parametrize("shape", [{"M2": 4}, {"M2": 4, "prior": True}, {"layers": (3,)}], ids=str)
def test_steps_with_other_features(shape, solver):
    noise = solver != "collapsed"
    X, rows, X2, rows2 = make_rows(P=2, noise=noise)
    model = make_model(rows, X, **shape)
    a, b = solve_with(solver, model, rows), solve_with(solver, model, rows2)
    for _ in range(2):
        assert_close(gradients(a, X, rows), gradients(b, X2, rows2), rtol=1e-8, atol=1e-8)
        assert_same_state(a, b)


@pytest.mark.parametrize(("kind", "loss"), sorted({case[:2] for case in OBJECTIVES}))
@slow_cases("robustmax-(elbo|square)")
def test_closing_pass_and_held_out_score(kind, loss):
    X, rows, X2, rows2 = make_rows(kind=kind, P=1 if kind in OTHERS else 2, n_held_out=6)
    model = make_model(rows, X, kind, loss_called(loss))
    solver = "adam" if model.covariance == "gradient" else "natural"
    a, b = solve_with(solver, model, rows), solve_with(solver, model, rows2)
    assert a.evaluate(X, rows) == pytest.approx(b.evaluate(X2, rows2), rel=1e-10)
    unweighted = Rows(rows.y, None, rows.exposure, rows.noise, rows.fold)
    assert abs(a.evaluate(X, rows) - a.evaluate(X, unweighted)) > 1e-5
    one, other = a.solution(X, rows), b.solution(X2, rows2)
    assert one.n_rows == other.n_rows == len(rows2)
    assert_close(one.elbo, other.elbo, rtol=1e-8, atol=0.0)
    for ours, theirs in zip(one.marginals(X), other.marginals(X), strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("kind", "loss"), sorted({case[:2] for case in OBJECTIVES}))
@slow_cases("robustmax-elbo")
def test_bounds_of_all_rows(kind, loss):
    """The best value where there is one, and the evidence lower bound, at any q."""
    X, rows, X2, rows2 = make_rows(kind=kind)
    model = make_model(rows, X, kind, loss_called(loss))
    if model.covariance != "gradient":
        found, other = optimal_q(model, X, rows), optimal_q(model, X2, rows2)
        assert_close(found.value, other.value, rtol=1e-8, atol=0.0)
        assert_close(found.sites.precision, other.sites.precision, rtol=1e-6, atol=1e-6)
    q = solve_with("adam", model, rows).q()
    bound = evidence_bound(model, X, rows, q)
    assert_close(bound, evidence_bound(model, X2, rows2, q), rtol=1e-10, atol=0.0)


# ---- objectives of finite features --------------------------------------------------------------
FINITE_OBJECTIVES = {
    "scgd": (SCGDObjective, {"weights": "profiled", "averaging": 0.3}),
    "scgd-learned": (SCGDObjective, {"weights": "learned", "averaging": 0.3}),
    "minimax": (MinimaxObjective, {"penalty": 30.0, "dual_step": 0.0}),
    "bsgd": (BSGDObjective, {}),
}


def make_finite(case, X, rows, noise, n_members=1, **others):
    cls, options = FINITE_OBJECTIVES[case]
    g = torch.Generator().manual_seed(11)
    network = multilayer_perceptron(2, (4,), "tanh", g, n_members).double()
    options = {
        "noise": noise,
        "noise_variance": 0.4,
        "noise_bounds": (1e-8, 1e2),
        "weight_decay": 0.0,
        **options,
        **others,
    }
    if cls is MinimaxObjective:
        options["X"] = X
    features = NetworkFeatures(network, 4, n_members, skip=2)
    objective = cls(features, rows, **options).double()
    with torch.no_grad():
        objective.log_ridge += 0.3
        if cls is MinimaxObjective:
            root = torch.randn(objective.A.shape, generator=g, dtype=F64)
            objective.A += 0.1 * root @ root.mT
            objective.B.normal_(generator=g)
            objective.B /= 2.0 * objective.B.norm(dim=(-2, -1), keepdim=True)
        if getattr(objective, "w", None) is not None:
            objective.w.normal_(generator=g)
    return objective


def trained(objective, X, rows):
    """What a minibatch may consist of: not the held-out rows of a single member."""
    first = rows.n_held_out if len(objective.folds) == 1 else 0
    return X[first:], rows[first:]


@pytest.mark.parametrize(("n_members", "n_held_out"), [(1, 0), (1, 8), (2, 8)])
@pytest.mark.parametrize("noise", ["learned", "profiled"])
@pytest.mark.parametrize("case", FINITE_OBJECTIVES)
def test_finite_steps_with_all_rows(case, noise, n_held_out, n_members):
    X, rows, X2, rows2 = make_rows(P=2, n_held_out=n_held_out)
    if n_members == 1 and n_held_out:
        rows, rows2 = (Rows(r.y, r.weight, fold=r.fold.clamp_max(0)) for r in (rows, rows2))
    a = make_finite(case, X, rows, noise, n_members)
    b = make_finite(case, X2, rows2, noise, n_members)
    for _ in range(2):
        one, other = gradients(a, *trained(a, X, rows)), gradients(b, *trained(b, X2, rows2))
        assert_close(one, other, rtol=1e-8, atol=1e-9)
        for buffer in ("gram", "cross", "square"):
            ours, theirs = (getattr(o.running, buffer) for o in (a, b))
            assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert a.epoch_loss(0.0) == pytest.approx(b.epoch_loss(0.0), rel=1e-8)


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize("noise", ["learned", "profiled", "validation"])
def test_finite_scores_and_closing_pass(noise, n_members):
    """Held-out score, its choice of noise and of the network's share, and the posterior."""
    n_held_out = 8 if noise == "validation" or n_members == 2 else 0
    X, rows, X2, rows2 = make_rows(P=2, n_held_out=n_held_out)
    if n_members == 1 and n_held_out:
        rows, rows2 = (Rows(r.y, r.weight, fold=r.fold.clamp_max(0)) for r in (rows, rows2))
    a = make_finite("scgd", X, rows, noise, n_members)
    b = make_finite("scgd", X2, rows2, noise, n_members)
    assert a.evaluate(X, rows) == pytest.approx(b.evaluate(X2, rows2), rel=1e-9)
    a.calibrate(X, rows)
    b.calibrate(X2, rows2)
    assert_same_state(a, b, rtol=1e-8, atol=1e-10)
    one, other = a.solution(X, rows), b.solution(X2, rows2)
    assert one.n_rows == other.n_rows == len(rows2)
    assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-8, atol=0.0)
    for ours, theirs in zip(one.marginals(X), other.marginals(X), strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("P", [1, 2])
def test_kernel_bsgd(P):
    X, rows, X2, rows2 = make_rows(P=P, n_held_out=6)
    kernel = from_sklearn(ExpSineSquared(1.0, 2.0))
    g = torch.Generator().manual_seed(2)
    network = multilayer_perceptron(2, (3,), "tanh", g).to(F64)
    options = {"noise_variance": 0.3, "noise_bounds": (1e-8, 1e2), "weight_decay": 0.0}
    network = nn.Sequential(network, nn.Flatten(0, -2))
    objective = KernelBSGDObjective(kernel, network, P, **options)
    weighted = KernelBSGDObjective(kernel, network, P, **options, mean_weight=rows.mean_weight)
    assert_close(
        gradients(weighted, X, rows), gradients(objective, X2, rows2), rtol=1e-8, atol=1e-8
    )
    assert objective.evaluate(X, rows) == pytest.approx(objective.evaluate(X2, rows2), rel=1e-8)
    one, other = objective.solution(X, rows), objective.solution(X2, rows2)
    assert one.n_rows == other.n_rows == len(rows2)
    assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-8, atol=1e-8)
    assert_close(one.marginals(X).mean, other.marginals(X).mean, rtol=1e-8, atol=1e-8)
    assert_close(one.marginals(X).var, other.marginals(X).var, rtol=1e-8, atol=1e-8)


# ---- minibatches --------------------------------------------------------------------------------
def partition(n, size, seed=4):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).split(size)


@pytest.mark.parametrize(
    ("kind", "loss", "solver"), [case for case in OBJECTIVES if case[2] != "lbfgs"]
)
def test_minibatches_average_to_all_rows(kind, loss, solver):
    """At fixed averages the gradient of all rows is the mean of those of any partition."""
    X, rows, X2, rows2 = make_rows(kind=kind)
    objective = solve_with(solver, make_model(rows, X, kind, loss_called(loss)), rows)
    if isinstance(objective, RunningObjective):
        gradients(objective, X2, rows2)
        objective.averaging = 1e-14
    parts = partition(len(X), 6)
    assert len({float(rows.weight[part].sum()) for part in parts}) > 1
    mean = torch.stack([gradients(objective, X[part], rows[part]) for part in parts]).mean(0)
    assert_close(mean, gradients(objective, X, rows), rtol=1e-7, atol=1e-8)
    other = copy.deepcopy(objective)
    other.mean_weight = 1.0
    assert_close(mean, gradients(other, X2, rows2), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("n_held_out", [0, 4])
@pytest.mark.parametrize("case", ["scgd", "scgd-learned", "minimax"])
def test_finite_minibatches_average_to_all_rows(case, n_held_out):
    """With F̃ = F; the biased BSGD is left out. A single member is blind to the rows held out."""
    X, rows, X2, rows2 = make_rows(P=2, n_held_out=n_held_out)
    if n_held_out:
        rows, rows2 = (Rows(r.y, r.weight, fold=r.fold.clamp_max(0)) for r in (rows, rows2))
    objective = make_finite(case, X, rows, "learned")
    X_in, rows_in = trained(objective, X, rows)
    statistics = exact_statistics(objective.features.members, X2, rows2.y, objective.trained(rows2))
    objective.running.start_from(statistics)
    objective.running.averaging, objective.running.n_steps = 1e-14, 10**14
    parts = partition(len(X_in), 4)  # of the same size
    steps = [gradients(objective, X_in[part], rows_in[part]) for part in parts]
    other = make_finite(case, X2, rows2, "learned")
    state = {k: v for k, v in objective.state_dict().items() if k != "share"}
    other.load_state_dict(state, strict=False)
    other.running.averaging, other.running.n_steps = 1e-14, 10**14
    exact = gradients(other, *trained(other, X2, rows2))
    assert_close(torch.stack(steps).mean(0), exact, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["scgd", "minimax", "natural", "adam"])
@slow_cases("minimax", "adam")
def test_random_minibatches_are_unbiased(case):
    """z-scores of the mean gradient of many draws, against that of the repeated rows."""
    X, rows, X2, rows2 = make_rows(seed=3)
    if case in SOLVERS:
        make = lambda X, rows: solve_with(case, make_model(rows2, X2), rows)  # noqa: E731
    else:
        make = lambda X, rows: make_finite(case, X, rows, "learned")  # noqa: E731
    objective, other = make(X, rows), make(X2, rows2)
    if case in SOLVERS:
        other.mean_weight = 1.0
    if case == "natural":
        for o in (objective, other):
            gradients(o, X2, rows2) if o is other else gradients(o, X, rows)
            o.averaging = 1e-14
    elif case != "adam":
        statistics = exact_statistics(other.features.members, X2, rows2.y)
        for o in (objective, other):
            o.running.start_from(statistics)
            o.running.averaging, o.running.n_steps = 1e-14, 10**14
    g = torch.Generator().manual_seed(5)
    draws = [torch.randperm(len(X), generator=g)[:6] for _ in range(200)]
    samples = torch.stack([gradients(objective, X[i], rows[i]) for i in draws])
    error = samples.std(0) / math.sqrt(len(samples))
    z = (samples.mean(0) - gradients(other, X2, rows2)) / error.clamp_min(1e-9)
    assert z.abs().max() < 4.0


def test_minimax_ascends_on_rows_as_often_as_they_count():
    """The steps on each of the rows are in the mean that on the repeated ones."""
    X, rows, X2, rows2 = make_rows()
    objective = make_finite("minimax", X, rows, "learned", dual_step=1e-3)
    exact = exact_statistics(objective.features.members, X2, rows2.y)
    scale = objective.A.norm(dim=(-2, -1), keepdim=True)
    expected = 1e-3 * objective.penalty * (objective.A - objective.per_row(exact)) / scale
    g, start, steps = torch.Generator().manual_seed(0), objective.B.clone(), []
    for i in range(len(X)):
        objective.B.copy_(start)
        objective.data = (X[i : i + 1], rows[i : i + 1])
        objective.ascend(1, g)
        steps.append(objective.B - start)
    assert_close(torch.stack(steps).mean(0), expected.detach(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("conjugate", [True, False])
def test_averages_of_a_partition_are_the_sums_of_all_rows(conjugate):
    X, rows, X2, rows2 = make_rows(P=2)
    model = make_model(rows, X)
    solver = "collapsed" if conjugate else "natural"
    a, b = solve_with(solver, model, rows), solve_with(solver, model, rows2)
    for t, part in enumerate(partition(len(X), 6)):
        a.averaging = 1.0 / (t + 1)
        gradients(a, X[part], rows[part])
    b.averaging = 1.0
    gradients(b, X2, rows2)
    assert_close(a.gram, b.gram, rtol=1e-10, atol=1e-12)
    assert_close(a.cross, b.cross, rtol=1e-10, atol=1e-12)
    assert_close(a.q().mean, b.q().mean, rtol=1e-8, atol=1e-10)


def test_running_statistics_of_a_partition_are_the_sums_of_all_rows():
    X, rows, X2, rows2 = make_rows(P=2)
    a = make_finite("scgd", X, rows, "learned", averaging=1e-9)  # at first 1/t
    for part in partition(len(X), 6):
        gradients(a, X[part], rows[part])
    exact = exact_statistics(a.features.members, X2, rows2.y)
    total = a.running.total(a.n_rows)
    for ours, theirs in zip(total, exact, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_windows_are_of_rows_however_much_they_count():
    """A minibatch of rows that count for three is not as many as three minibatches."""
    X, rows, X2, rows2 = make_rows()
    model = make_model(rows, X)
    a = RunningObjective(copy.deepcopy(model), 3e6, conjugate=True, mean_weight=3.0)
    b = RunningObjective(copy.deepcopy(model), 1e6, conjugate=True)
    a.n_steps = b.n_steps = 10**6
    assert a.rate(100) == b.rate(100) != b.rate(300)
    one, other = (make_finite("scgd", x, r, "learned") for x, r in ((X, rows), (X2, rows2)))
    assert one.stream_rate(7) == pytest.approx(other.stream_rate(7 * rows.mean_weight))


@pytest.mark.parametrize("general", [False, True], ids=["features", "kernel"])
def test_weights_stay_between_minibatches_of_bsgd(general):
    """Where rows have nothing to do with one another it is not biased: batches of one show that."""
    n = 12
    weight = torch.where(torch.arange(n) < 3, 50.0, 1.0).to(F64)
    X, y = torch.zeros(n, 1, dtype=F64), torch.where(weight > 1.0, 5.0, 1.0)[:, None]
    rows = Rows(y.to(F64), weight=weight)
    options = {"noise_variance": 2.0, "noise_bounds": (1e-6, 1e6), "weight_decay": 0.0}
    if general:
        kernel = from_sklearn(ConstantKernel(1e-14, "fixed") * RBF(1.0, "fixed"))
        options["mean_weight"] = rows.mean_weight
        objective = KernelBSGDObjective(kernel, nn.Identity(), 1, **options)
        parameter = objective.likelihood.log_noise
    else:
        objective = BSGDObjective(
            NetworkFeatures(nn.Identity(), 1), rows, noise="learned", **options
        )
        parameter = objective.log_noise
    generator = torch.Generator()

    def gradient(index):
        loss = objective(X[index], rows[index], generator)
        return torch.autograd.grad(loss, parameter)[0]

    whole = gradient(torch.arange(n))
    single = sum(gradient(torch.tensor([i])) for i in range(n)) / n
    assert_close(single, whole, rtol=1e-8, atol=1e-10)


# ---- statistics ---------------------------------------------------------------------------------
def test_statistics_of_linear_regression():
    g = torch.Generator().manual_seed(0)
    n, K = 30, 2
    Z, y = torch.randn(K, n, 4, generator=g, dtype=F64), torch.randn(n, 3, generator=g, dtype=F64)
    w = torch.randint(0, 5, (n,), generator=g)
    index = torch.repeat_interleave(torch.arange(n), w)
    weight = w.to(F64).expand(K, -1)
    expected = batch_statistics(Z[:, index], y[index])
    by_row = torch.arange(n)
    X = by_row[:, None].to(F64)
    members = lambda X: Z[:, X[:, 0].long()]  # noqa: E731
    for found in (batch_statistics(Z, y, weight), exact_statistics(members, X, y, weight)):
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ridges = torch.tensor([0.1, 1.0], dtype=F64)
    unseen = torch.stack([weight[0] * (by_row < 8), weight[0] * (by_row >= 20)])
    s = spectrum(expected)
    found = predict_held_out(s, members, X, y, unseen, ridges)
    other = predict_held_out(
        s, members, X[index], y[index], torch.stack([index < 8, index >= 20]).to(F64), ridges
    )
    for ours, theirs in zip(found, other, strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scaling_with_weights(dtype):
    rng = np.random.default_rng(0)
    A = rng.normal([0.0, 1e3, 7.0], [1.0, 5.0, 0.0], (ROWS, 3)).astype(dtype)
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    for make in (Scaling.standard, Scaling.centered):
        found = make(A, WEIGHTS.astype(float))
        expected = make(np.repeat(A, WEIGHTS, 0))
        np.testing.assert_allclose(found.offset, expected.offset, rtol=rtol)
        np.testing.assert_allclose(found.scale, expected.scale, rtol=rtol)


@pytest.mark.parametrize("n", [7, 8, 30])
def test_means_and_medians_with_weights(n):
    g = torch.Generator().manual_seed(n)
    y = torch.randn(n, 3, generator=g, dtype=F64)
    y[:, 2] = y[:, 2].round()  # with ties
    w = torch.randint(1, 5, (n,), generator=g)
    rows, other = Rows(y, w.to(F64)), Rows(y.repeat_interleave(w, 0))
    assert rows.n_effective == len(other) == other.n_effective
    assert rows.mean_weight * n == pytest.approx(len(other))
    assert_close(rows.mean(y), other.mean(other.y), rtol=1e-12, atol=1e-12)
    assert_close(rows.median(y), other.median(other.y), rtol=0.0, atol=0.0)
    parts = rows[torch.arange(n) % 2 == 0]
    assert_close(parts.weight, w.to(F64)[::2])


@pytest.mark.parametrize("kind", [*ADDITIVE, *OTHERS])
def test_initial_values_of_likelihoods(kind):
    _, rows, _, rows2 = make_rows(kind=kind, P=1 if kind in OTHERS else 2)
    likelihood = make_likelihood(kind)
    if kind in ("softmax", "robustmax"):
        likelihood = likelihood.for_classes(3)
    one, other = (likelihood.for_outputs(rows.y.shape[1]) for _ in range(2))
    one.initialise(rows)
    other.initialise(rows2)
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    mean = one.initial_mean(rows)
    assert_close(mean, other.initial_mean(rows2), rtol=1e-10, atol=1e-10)
    unweighted = Rows(rows.y, None, rows.exposure)
    assert not torch.allclose(mean, one.initial_mean(unweighted))
    if kind in ADDITIVE[1:]:
        third = likelihood.for_outputs(2)
        third.initialise(unweighted)
        assert not torch.allclose(one.log_scale, third.log_scale)


@pytest.mark.slow
# ---- what weights may be ------------------------------------------------------------------------
@pytest.mark.parametrize("cls", COVERING_WEIGHTED, ids=named)
@slow_cases("BSGD", "Minimax")
def test_weight_zero_is_absence(cls, problem):
    X, y, _ = problem(kind_of(cls))
    w, there = WEIGHTS.astype(float), WEIGHTS > 0
    absurd = X.copy()
    absurd[~there] = 1e6  # whatever it is that is not there
    model = constructor(cls)(max_iter=3)
    a, b = clone(model).fit(absurd, y, w), clone(model).fit(X[there], y[there], w[there])
    assert_same(a, b, X)
    a = clone(model).partial_fit(absurd, y, sample_weight=w)
    b = clone(model).partial_fit(X[there], y[there], sample_weight=w[there])
    np.testing.assert_array_equal(outcome(a, X)[0], outcome(b, X)[0])


@pytest.mark.slow
@pytest.mark.parametrize("cls", COVERING_WEIGHTED, ids=named)
@slow_cases("Minimax", "BSGD", "DLM", "SCGD")
def test_ones_are_none(cls, problem, monkeypatch):
    """With zeros beside them as well; in fits, streams and evidence, of many rows or few."""
    X, y, _ = problem(kind_of(cls))
    w = (WEIGHTS > 0).astype(float)
    there, model = w > 0, constructor(cls)(max_iter=2)
    for rows in (equal_rows.MERGED_ROWS, 0):
        monkeypatch.setattr(equal_rows, "MERGED_ROWS", rows)
        a, b = clone(model).fit(X, y, w), clone(model).fit(X[there], y[there])
        assert_same(a, b, X)
        assert_same(clone(model).fit(X, y, np.ones(ROWS)), clone(model).fit(X, y), X)
    if not is_classifier(model):
        value = a.log_marginal_likelihood(X, y, w)
        assert value == a.log_marginal_likelihood(X[there], y[there])
    a = clone(model).partial_fit(X, y, sample_weight=w)
    b = clone(model).partial_fit(X[there], y[there])
    np.testing.assert_array_equal(outcome(a, X)[0], outcome(b, X)[0])


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSIFIERS, ids=named)
def test_classes_of_weight_zero_are_not_there(cls, problem):
    X, y, _ = problem("three")
    w = np.where(y == y.max(), 0.0, 1.0 + WEIGHTS)
    model = constructor(cls)(max_iter=5)
    a, b = clone(model).fit(X, y, w), clone(model).fit(X[w > 0], y[w > 0], w[w > 0])
    np.testing.assert_array_equal(a.classes_, np.unique(y)[:2])
    assert a.predict_proba(X).shape == (ROWS, 2)
    assert_same(a, b, X)
    with pytest.raises(ValueError, match="at least two classes"):
        clone(model).fit(X, y, np.where(y == y.min(), 1.0, 0.0))
    stream = clone(model).partial_fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(stream.classes_, np.unique(y)[:2])


WRONG = {
    "zeros": (np.zeros(ROWS), "all .*zero|non-zero"),
    "negative": (np.where(np.arange(ROWS) == 3, -1.0, 1.0), "[Nn]egative"),
    "nan": (np.where(np.arange(ROWS) == 3, np.nan, 1.0), "NaN"),
    "infinite": (np.where(np.arange(ROWS) == 3, np.inf, 1.0), "infinity"),
    "short": (np.ones(ROWS - 1), "sample_weight"),
    "column": (np.ones((ROWS, 1)), "1D array"),
    "single": (np.arange(ROWS) == 3, "positive for at least 2 rows, got 1"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("cls", OF_EACH_FAMILY, ids=named)
def test_wrong_weights_are_refused(cls, wrong, problem):
    X, y, _ = problem(kind_of(cls))
    w, message = WRONG[wrong]
    model = constructor(cls)()
    before = dict(vars(model))
    # A stream may begin with one row.
    methods = [model.fit] if wrong == "single" else [model.fit, model.partial_fit]
    for method in methods:
        with pytest.raises(ValueError, match=message):
            method(X, y, sample_weight=w)
        assert vars(model) == before
    if wrong != "single" and cls in (SCGDGaussianProcessRegressor, SVGPRegressor):
        model.set_params(max_iter=1).fit(X, y)
        with pytest.raises(ValueError, match=message):
            model.log_marginal_likelihood(X, y, w)


@pytest.mark.slow
@pytest.mark.parametrize("cls", OF_EACH_FAMILY, ids=named)
@slow_cases("DLM")
def test_weights_of_any_kind_and_unchanged(cls, problem):
    X, y, _ = problem(kind_of(cls))
    model = constructor(cls)(max_iter=2)
    given = WEIGHTS.astype(float)
    given.flags.writeable = False
    expected = clone(model).fit(X, y, given)
    writeable = WEIGHTS.astype(float)
    assert_same(clone(model).fit(X, y, sample_weight=writeable), expected, X)
    kinds = [WEIGHTS.tolist(), pd.Series(WEIGHTS, index=np.arange(ROWS)[::-1])]
    if cls in (SVGPRegressor, SVGPClassifier, SCGDGaussianProcessRegressor):
        kinds += [WEIGHTS.astype(np.int8), WEIGHTS.astype(np.float32)]
    for kind in kinds:
        assert_same(clone(model).fit(X, y, sample_weight=kind), expected, X)
    np.testing.assert_array_equal(writeable, WEIGHTS)


@pytest.mark.parametrize("cls", [*FINITE, *BOUNDED], ids=named)
@slow_cases("BSGD", "Minimax", "DLM")
def test_twice_the_weights_are_twice_the_rows(cls, problem):
    """Not the same model: weights are no mere proportions."""
    X, y, _ = problem("real")
    model = constructor(cls)(max_iter=3)
    one, two = clone(model).fit(X, y, np.ones(ROWS)), clone(model).fit(X, y, np.full(ROWS, 2))
    assert_same(two, clone(model).fit(np.repeat(X, 2, 0), np.repeat(y, 2)), X)
    assert two.posterior_.n_rows == 2 * ROWS
    a, b = one.log_marginal_likelihood_value_, two.log_marginal_likelihood_value_
    assert abs(a - b) > 1e-2 * abs(a)


@pytest.mark.parametrize("cls", [SVGPRegressor, SCGDGaussianProcessRegressor], ids=named)
def test_parts_of_rows_add_up(cls, problem):
    """A row of weight w is two of ¼w and ¾w; one of weight 1½ is between once and twice."""
    X, y, _ = problem("real")
    w = 0.5 + WEIGHTS
    X2, y2, w2 = np.r_[X, X], np.r_[y, y], np.r_[0.25 * w, 0.75 * w]
    model = constructor(cls)(max_iter=3)
    a, b = clone(model).fit(X, y, w), clone(model).fit(X2, y2, w2)
    assert_same(a, b, X)
    one, other = a.log_marginal_likelihood(X, y, w), a.log_marginal_likelihood(X2, y2, w2)
    assert one == pytest.approx(other, rel=1e-8)
    whole = [a.log_marginal_likelihood(X, y, np.full(ROWS, c)) for c in (1.0, 1.5, 2.0)]
    assert min(whole[0], whole[2]) < whole[1] < max(whole[0], whole[2])


def test_parts_of_rows_add_up_in_an_exact_gp():
    """Where rows that count often have less noise, and a constant."""
    X, rows, _, _ = make_rows(P=2)
    w = rows.weight + 0.5
    X2, y2 = torch.cat([X, X]), torch.cat([rows.y, rows.y])
    options = {"noise_variance": 0.3, "noise_bounds": (1e-8, 1e2), "weight_decay": 0.0}
    kernel = from_sklearn(Matern(0.7))
    one, other = Rows(rows.y, w), Rows(y2, torch.cat([0.25 * w, 0.75 * w]))
    found = []
    for x, r in ((X, one), (X2, other)):
        options["mean_weight"] = r.mean_weight
        found.append(gradients(KernelBSGDObjective(kernel, nn.Identity(), 2, **options), x, r))
    assert_close(*found, rtol=1e-8, atol=1e-8)


# ---- known errors -------------------------------------------------------------------------------
NOISE = 0.05


def exact_gp(X, y, s, X_new, kernel=FIXED, noise=NOISE):
    """Mean and standard deviation of f + ε, and log p(y), of a GP with errors besides ε."""
    C = kernel(X) + np.diag(noise + np.broadcast_to(s, len(X)) ** 2)
    K = kernel(X_new, X)
    inverse = np.linalg.inv(C)
    var = kernel.diag(X_new) - np.einsum("ij,jk,ik->i", K, inverse, K) + noise
    fit = y @ inverse @ y + np.linalg.slogdet(C)[1] + len(X) * math.log(2.0 * math.pi)
    return K @ inverse @ y, np.sqrt(var), -0.5 * fit


def at_the_rows(cls=SVGPRegressor, X=None, **params):
    """A model with a point at each row, of which nothing is learned."""
    options = {
        "kernel": FIXED + WhiteKernel(NOISE, "fixed"),
        "inducing_points": X,
        "learn_inducing_points": False,
        "mean": "zero",
        "normalize_y": False,
        "dtype": "float64",
        "random_state": 0,
    }
    return cls(**{**options, **params})


@pytest.mark.parametrize("solver", ["auto", "lbfgs", "natural"])
@pytest.mark.parametrize("cls", [SVGPRegressor, FITCRegressor], ids=named)
def test_known_errors_are_those_of_an_exact_gp(cls, solver, problem):
    X, y, known = problem("errors")
    X_new = np.random.default_rng(0).uniform(-3, 3, (15, 2))
    model = at_the_rows(cls, X, solver=solver).fit(X, y, **known)
    mean, std, evidence = exact_gp(X, y, known["y_std"], X_new)
    found = model.predict(X_new, return_std=True)
    np.testing.assert_allclose(found[0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], std, rtol=1e-6)
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-6)
    assert model.log_marginal_likelihood(X, y, **known) == pytest.approx(evidence, rel=1e-6)
    without = exact_gp(X, y, 0.0, X_new)[2]
    assert model.log_marginal_likelihood(X, y) == pytest.approx(without, rel=1e-6)
    assert abs(without - evidence) > 1.0


@pytest.mark.slow
def test_known_errors_of_one_output_are_not_those_of_another(problem):
    X, y, known = problem("errors")
    Y = np.column_stack([y, np.cos(X[:, 1])])
    S = np.column_stack([known["y_std"], 0.3 + 0.0 * y])
    X_new = np.random.default_rng(0).uniform(-3, 3, (15, 2))
    model = at_the_rows(X=X).fit(X, Y, y_std=S)
    mean, std = model.predict(X_new, return_std=True)
    evidence = 0.0
    for p in range(2):
        expected = exact_gp(X, Y[:, p], S[:, p], X_new)
        np.testing.assert_allclose(mean[:, p], expected[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(std[:, p], expected[1], rtol=1e-6)
        evidence += expected[2]
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-6)
    column = at_the_rows(X=X).fit(X, Y, y_std=S[:, 1])
    both = at_the_rows(X=X).fit(X, Y, y_std=S[:, [1, 1]])
    number = at_the_rows(X=X).fit(X, Y, y_std=0.3)
    assert_same(column, both, X_new)
    assert_same(column, number, X_new)


def test_known_errors_and_weights(problem):
    """κ = w/(σ² + s²), and normalisers that count w times."""
    X, y, known = problem("errors")
    w = 1 + WEIGHTS
    X2, y2, known2 = repeated(w, X, y, known)
    model = at_the_rows(X=X).fit(X, y, w, **known)
    mean, std, evidence = exact_gp(X2, y2, known2["y_std"], X + 0.1)
    found = model.predict(X + 0.1, return_std=True)
    np.testing.assert_allclose(found[0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], std, rtol=1e-6)
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "solver"),
    [(loss, solver) for _, loss, all_ in TERMS[:4] for solver in all_.split()[-2:]],
)
def test_equal_errors_are_more_noise(loss, solver):
    """In every loss, its derivatives, sites and held-out score, and in the closing pass."""
    X, rows, _, _ = make_rows(P=2, n_held_out=6)
    model = make_model(rows, X, "gaussian", loss_called(loss))
    noisier = copy.deepcopy(model)
    noisier.likelihood.log_noise.data.fill_(math.log(0.1 + 0.3))
    s2 = torch.full_like(rows.y, 0.3)
    a, b = SOLVERS[solver](model, 50.0), SOLVERS[solver](noisier, 50.0)
    known = Rows(rows.y, rows.weight, None, s2, rows.fold)
    noise = [name for name, p in a.named_parameters() if p.requires_grad].index
    for _ in range(2):
        one, other = gradients(a, X, known), gradients(b, X, rows)
        sizes = [p.numel() for p in a.parameters() if p.requires_grad]
        at = 1 + sum(sizes[: noise("model.likelihood.log_noise")])
        ratio = 0.1 / (0.1 + 0.3)  # of derivatives by log σ²
        assert_close(one[at : at + 2], ratio * other[at : at + 2], rtol=1e-8, atol=1e-10)
        one[at : at + 2] = other[at : at + 2] = 0.0
        assert_close(one, other, rtol=1e-8, atol=1e-9)
    assert a.evaluate(X, known) == pytest.approx(b.evaluate(X, rows), rel=1e-8)
    assert_close(a.solution(X, known).elbo, b.solution(X, rows).elbo, rtol=1e-8, atol=0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("cls", SPARSE_REGRESSORS, ids=named)
@slow_cases("SVGP", "FITC")
def test_no_error_is_no_error(cls, problem):
    X, y, _ = problem("real")
    solver = "natural" if cls is DLMRegressor else "lbfgs"
    model = constructor(cls)(**POINTS, solver=solver, max_iter=1, dtype="float64")
    a, b = clone(model).fit(X, y), clone(model).fit(X, y, y_std=0.0)
    assert_same(a, b, X, rtol=1e-6, atol=1e-8)
    assert_same(clone(model).fit(X, y, y_std=None), a, X)
    c = clone(model).fit(X, y, y_std=0.5)
    assert np.abs(c.predict(X) - a.predict(X)).max() > 1e-3


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("cls", SPARSE_REGRESSORS, ids=named)
def test_errors_are_in_the_units_of_y(cls, problem):
    X, y, known = problem("errors")
    model = constructor(cls)(max_iter=5)
    if cls is not DLMRegressor:
        model.set_params(solver="lbfgs", max_iter=1)
    s = known["y_std"]
    a, b = clone(model).fit(X, y, y_std=s), clone(model).fit(X, 1024.0 * y, y_std=1024.0 * s)
    mean, std = a.predict(X, return_std=True)
    np.testing.assert_allclose(b.predict(X), 1024.0 * mean, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(b.predict_std(X), 1024.0 * std, rtol=1e-4)
    value = a.log_marginal_likelihood_value_ - len(X) * math.log(1024.0)
    assert b.log_marginal_likelihood_value_ == pytest.approx(value, rel=1e-4)
    total = a.predict_std(X, y_std=s)
    np.testing.assert_allclose(total, np.hypot(std, s), rtol=1e-10)
    np.testing.assert_allclose(b.predict_std(X, y_std=1024.0 * s), 1024.0 * total, rtol=1e-4)


@pytest.mark.parametrize("kind", ["errors", "outputs"])
def test_queries_add_the_errors_that_they_are_given(kind, problem):
    X, y, known = problem(kind)
    s = known.get("y_std", np.column_stack([np.linspace(0.1, 1.0, ROWS), np.full(ROWS, 300.0)]))
    model = constructor(SVGPRegressor)(solver="natural", max_iter=5).fit(X, y, y_std=s)
    mean, std = model.predict(X, return_std=True)
    total = np.hypot(std, s)
    found = model.predict(X, return_std=True, y_std=s)
    np.testing.assert_array_equal(found[0], mean)
    np.testing.assert_allclose(found[1], total, rtol=1e-10)
    np.testing.assert_allclose(model.predict_std(X, y_std=s), total, rtol=1e-10)
    interval = model.predict_interval(X, 0.9, y_std=s)
    np.testing.assert_allclose(interval[:, 1], mean + norm.ppf(0.95) * total, rtol=1e-8)
    np.testing.assert_allclose(interval[:, 0], mean - norm.ppf(0.95) * total, rtol=1e-8)
    density = model.log_predictive_density(X, y, y_std=s)
    expected = norm.logpdf(y, mean, total).reshape(ROWS, -1).sum(1)
    np.testing.assert_allclose(density, expected, rtol=1e-8)
    plain = norm.logpdf(y, mean, std).reshape(ROWS, -1).sum(1)
    np.testing.assert_allclose(model.log_predictive_density(X, y), plain, rtol=1e-8)
    _, cov = model.predict(X, return_cov=True, y_std=s)
    _, alone = model.predict(X, return_cov=True)
    added = np.diagonal(cov - alone, axis1=0, axis2=1)
    np.testing.assert_allclose(added.T.reshape(s.shape), s**2, rtol=1e-6)
    draws = model.sample_y(X, 4000, y_std=s)
    ratio = draws.std(-1) / total
    assert np.abs(ratio - 1.0).max() < 0.06
    assert model.log_marginal_likelihood(X, y, y_std=s) == pytest.approx(
        model.log_marginal_likelihood_value_, rel=1e-6
    )


def test_latent_quantities_know_no_errors(problem):
    X, y, known = problem("errors")
    model = constructor(SVGPRegressor)(solver="natural", max_iter=3).fit(X, y, **known)
    std = model.predict_std(X, latent=True)
    np.testing.assert_array_equal(model.predict_std(X, latent=True, **known), std)


REFUSED = {
    "student-t": (SVGPRegressor, {"likelihood": "student_t"}, "y_std must be None .*StudentT"),
    "laplace": (DLMRegressor, {"likelihood": "laplace"}, "y_std must be None .*Laplace"),
    "poisson": (SVGPRegressor, {"likelihood": "poisson"}, "y_std must be None .*Poisson"),
    "square": (SVGPRegressor, {"loss": "square"}, "y_std must be None with the square loss"),
    "square-dlm": (DLMRegressor, {"loss": "square"}, "y_std must be None with the square loss"),
    "collapsed": (SVGPRegressor, {"solver": "collapsed"}, "solver='collapsed' needs .* y_std"),
    "solve": (SolveGPRegressor, {"solver": "collapsed"}, "solver='collapsed' needs .* y_std"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_errors_are_refused_where_they_have_no_meaning(case, method, problem):
    cls, params, message = REFUSED[case]
    X, y, _ = problem("counts")
    params = {"solver": "auto", **params}
    with pytest.raises(ValueError, match=message) as caught:
        getattr(constructor(cls)(**params), method)(X, y, y_std=0.1)
    if method == "partial_fit" and "square" in case:
        assert "square" in str(caught.value)


@pytest.mark.parametrize("kind", ["student_t", "laplace", "poisson"])
def test_queries_refuse_errors_too(kind, problem):
    X, y, _ = problem("counts")
    model = constructor(SVGPRegressor)(likelihood=kind, solver="natural", max_iter=1).fit(X, y)
    for query in (model.predict, model.predict_std, model.predict_interval, model.sample_y):
        with pytest.raises(ValueError, match="y_std must be None"):
            query(X, y_std=0.1)
    for judge in (model.log_predictive_density, model.log_marginal_likelihood):
        with pytest.raises(ValueError, match="y_std must be None"):
            judge(X, y, y_std=0.1)


@pytest.mark.parametrize(
    ("y_std", "message"),
    [
        (-0.1, "finite and not negative"),
        (np.nan, "finite and not negative"),
        (np.inf, "finite and not negative"),
        (np.ones(ROWS - 1), "must have the shape of y"),
        (np.ones((ROWS, 2)), "must have the shape of y"),
        ("much", "must be numeric"),
    ],
)
def test_errors_that_are_none(y_std, message, problem):
    X, y, _ = problem("real")
    quick = constructor(SVGPRegressor)
    with pytest.raises(ValueError, match=f"y_std .*{message}"):
        quick(solver="natural").fit(X, y, y_std=y_std)
    model = quick(solver="natural", max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match=f"y_std .*{message}"):
        model.predict(X, y_std=y_std)


@pytest.mark.slow
def test_auto_solver_with_errors_is_one_for_them(problem, sine):
    X, y = sine
    model = constructor(SVGPRegressor)(solver="auto", max_iter=1)
    X2, y2 = np.tile(X, (11, 1)) + 1e-3 * np.arange(2200)[:, None], np.tile(y, 11)
    assert clone(model).fit(X2, y2).solver_ == "collapsed"
    assert clone(model).fit(X2, y2, y_std=0.1).solver_ == "natural"


@pytest.mark.parametrize("first", [None, 0.1])
def test_streams_with_errors(first, problem):
    """A chunk of large errors hardly counts, also after one without."""
    X, y, _ = problem("real")
    options = {"kernel": FIXED + WhiteKernel(0.01, "fixed"), "learn_inducing_points": False}
    model = constructor(SVGPRegressor)(solver="auto", dtype="float64", **POINTS, **options)
    a = clone(model).partial_fit(X, y, y_std=first)
    b = clone(a).partial_fit(X, y, y_std=first)
    before = a.predict(X)
    a.partial_fit(X, y + 100.0, y_std=1e4)
    b.partial_fit(X, y + 100.0, y_std=first)
    assert np.abs(a.predict(X) - before).max() < 2.0
    assert np.abs(b.predict(X) - before).max() > 10.0


# ---- scikit-learn's meta-estimators -------------------------------------------------------------
def test_adaboost(problem):
    X, y, _ = problem("real")
    base = constructor(SVGPRegressor)(max_iter=3, n_inducing=5)
    boosted = AdaBoostRegressor(base, n_estimators=2, random_state=0)
    a, b = clone(boosted).fit(X, y), clone(boosted).fit(X, y, sample_weight=1.0 * (y > 0.0))
    assert len(a.estimators_) == 2
    assert np.abs(a.predict(X) - b.predict(X)).max() > 0.1
    assert b.predict(X).min() > -0.5  # it has seen what is positive


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A distinct row counts")
@pytest.mark.parametrize("cls", [SVGPRegressor, SCGDGaussianProcessRegressor, SVGPClassifier])
@slow_cases("SVGPRegressor", "SVGPClassifier")
def test_bagging_is_fits_to_repeated_rows(cls, problem):
    X, y, _ = problem(kind_of(cls))
    base = constructor(cls)(max_iter=3)
    if cls is SVGPClassifier:
        ensemble, y = BaggingClassifier(base, n_estimators=2, random_state=0), y // 10
    else:
        ensemble = BaggingRegressor(base, n_estimators=2, random_state=0)
    a, b = clone(ensemble).fit(X, y), clone(ensemble).fit(X, y, sample_weight=WEIGHTS)
    assert np.abs(outcome(a[0], X)[0] - outcome(b[0], X)[0]).max() > 1e-3
    for fitted in (a, b):
        for model, drawn in zip(fitted.estimators_, fitted.estimators_samples_, strict=True):
            assert model.posterior_.n_rows == len(drawn) > len(np.unique(drawn))
            assert_same(model, clone(model).fit(X[drawn], y[drawn]), X)
    drawn = np.concatenate(b.estimators_samples_)
    assert (WEIGHTS[drawn] > 0).all()


@pytest.mark.slow
def test_calibration(problem):
    X, y, _ = problem("two", n=60)
    w = 1.0 + np.arange(60) % 3
    model = CalibratedClassifierCV(constructor(SVGPClassifier)(max_iter=3), cv=2)
    a, b = clone(model).fit(X, y), clone(model).fit(X, y, sample_weight=w)
    n_rows = [c.estimator.posterior_.n_rows for c in b.calibrated_classifiers_]
    assert sum(n_rows) == w.sum()
    assert sum(c.estimator.posterior_.n_rows for c in a.calibrated_classifiers_) == len(X)
    assert np.abs(a.predict_proba(X) - b.predict_proba(X)).max() > 1e-3


@pytest.mark.parametrize("cls", OF_EACH_FAMILY, ids=named)
def test_pipelines(cls, problem):
    """By the name of the step, and by routing."""
    X, y, _ = problem(kind_of(cls))
    model = constructor(cls)(max_iter=2)
    name = cls.__name__.lower()
    pipeline = make_pipeline(StandardScaler(), clone(model))
    by_name = clone(pipeline).fit(X, y, **{f"{name}__sample_weight": WEIGHTS})
    expected = clone(model).fit(StandardScaler().fit_transform(X), y, WEIGHTS)
    assert_same(by_name[-1], expected, X)
    with config_context(enable_metadata_routing=True):
        pipeline[0].set_fit_request(sample_weight=False)
        pipeline[1].set_fit_request(sample_weight=True)
        routed = pipeline.fit(X, y, sample_weight=WEIGHTS)
    assert_same(routed[-1], expected, X)


def test_routing_of_errors_and_weights_to_fits_and_scores(problem):
    X, y, known = problem("errors")
    s = known["y_std"]
    with config_context(enable_metadata_routing=True):
        model = constructor(SVGPRegressor)(solver="natural", max_iter=2)
        model.set_fit_request(sample_weight=True, y_std=True)
        model.set_score_request(sample_weight=True)
        params = {"sample_weight": WEIGHTS, "y_std": s}
        found = cross_validate(
            model, X, y, cv=2, params=params, return_estimator=True, return_indices=True
        )
        for k, fitted in enumerate(found["estimator"]):
            train, test = (found["indices"][part][k] for part in ("train", "test"))
            again = clone(model).fit(X[train], y[train], WEIGHTS[train], y_std=s[train])
            assert_same(fitted, again, X)
            assert found["test_score"][k] == again.score(X[test], y[test], WEIGHTS[test])


# ---- sums over blocks of rows -------------------------------------------------------------------
BLOCK = 4096


def block_problem(n, M=20):
    """Rows in the unit of the kernel, and the Woodbury formula for A = PPᵀ + diag(Λ)."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (n, 2))
    y = np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.standard_normal(n)
    Z, X_new = X[rng.choice(n, M, replace=False)], rng.uniform(-3, 3, (30, 2))
    L = np.linalg.cholesky(FIXED(Z))
    P, P_new = (np.linalg.solve(L, FIXED(Z, A)).T for A in (X, X_new))
    residual = FIXED.diag(X) - (P**2).sum(1)

    def mean(lam, weight=1.0):
        kappa = (weight / lam) * np.ones(n)
        A = np.eye(M) + P.T @ (kappa[:, None] * P)
        return P_new @ np.linalg.solve(A, P.T @ (kappa * y))

    return SimpleNamespace(X=X, y=y, Z=Z, X_new=X_new, residual=residual, mean=mean, rng=rng)


def fitted_with_few_points(model, X, y, **of_rows):
    with pytest.warns(UserWarning, match="Raise n_inducing, now"):
        return model.fit(X, y, **of_rows)


@pytest.mark.parametrize("n", [BLOCK, BLOCK + 1, BLOCK + 2])
def test_fitc_with_a_last_block_of_few_rows(n):
    p = block_problem(n)
    model = fitted_with_few_points(at_the_rows(FITCRegressor, p.Z), p.X, p.y)
    expected = p.mean(NOISE + p.residual)
    np.testing.assert_allclose(model.predict(p.X_new), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.filterwarnings("ignore:About 4 of the")  # which are known exactly
@pytest.mark.parametrize("n", [BLOCK + 1, BLOCK + 2])
@pytest.mark.parametrize("solver", ["collapsed", "natural"])
def test_weights_and_errors_with_a_last_block_of_few_rows(solver, n):
    p = block_problem(n)
    w, known, s = p.rng.uniform(0.5, 3.0, n), {}, 0.0
    w[-2:] = 1e4  # in the order of training they are anywhere
    if solver == "natural":
        s = p.rng.uniform(0.0, 0.5, n)
        known["y_std"] = s
    model = at_the_rows(SVGPRegressor, p.Z, solver=solver)
    fitted_with_few_points(model, p.X, p.y, sample_weight=w, **known)
    expected = p.mean(NOISE + s**2, w)
    np.testing.assert_allclose(model.predict(p.X_new), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("loss", ["elbo", "log1p", "fitc", "square"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_last_block_of_one_row(loss, weighted, monkeypatch):
    """Blocks of one row, and with one at the end, have the sums of all rows at once."""
    X, rows, _, _ = make_rows(n=25, P=2, noise=loss != "square")
    if not weighted:
        rows = Rows(rows.y, None, None, rows.noise)
    model = make_model(rows, X, "gaussian", loss_called(loss))
    whole = optimal_q(model, X, rows)
    for size in (1, 12, 24):
        monkeypatch.setattr("skgpstoch.data.devices.BLOCK_ROWS", size)
        parts = optimal_q(model, X, rows)
        assert_close(parts.value, whole.value, rtol=1e-10, atol=0.0)
        assert_close(parts.q.mean, whole.q.mean, rtol=1e-8, atol=1e-9)
        assert_close(parts.sites.precision, whole.sites.precision, rtol=1e-10, atol=1e-10)


# ---- queries ------------------------------------------------------------------------------------
QUERIED = [
    (SolveGPRegressor, {"loss": "square"}),
    (SVGPRegressor, {"loss": "log", "solver": "natural", "beta": 0.5}),
    (SCGDGaussianProcessRegressor, {}),
    (BSGDGaussianProcessRegressor, PERIODIC),
]


@pytest.mark.parametrize(("cls", "params"), QUERIED)
def test_queries_do_not_change_a_model_for_a_moment(cls, params, problem, monkeypatch):
    X, y, _ = problem("line" if params is PERIODIC else "real")
    model = constructor(cls)(max_iter=3, **params).fit(X, y, WEIGHTS)
    ours, setattr_ = {id(m) for m in model.posterior_.modules()}, nn.Module.__setattr__

    def watched(self, name, value):
        assert id(self) not in ours, f"{type(self).__name__}.{name} is set"
        setattr_(self, name, value)

    monkeypatch.setattr(nn.Module, "__setattr__", watched)
    model.log_marginal_likelihood(X, y, WEIGHTS)
    model.log_predictive_density(X, y, y_std=0.1)
    model.predict(X, return_std=True, y_std=0.1)
    model.predict_interval(X, y_std=0.1)
    model.sample_y(X, 2, y_std=0.1)


@pytest.mark.parametrize(("cls", "params"), QUERIED)
def test_queries_from_many_threads_change_nothing(cls, params, problem):
    X, y, _ = problem("line" if params is PERIODIC else "real")
    model = constructor(cls)(max_iter=3, **params).fit(X, y, WEIGHTS)
    before = copy.deepcopy(model)
    state = {k: v.clone() for k, v in model.posterior_.state_dict().items()}
    held = {k: id(v) for k, v in vars(model.posterior_).items()}
    inner = getattr(model.posterior_, "model", None)
    chosen = (inner.loss, inner.beta, set(vars(inner))) if inner is not None else None
    weights = [np.roll(WEIGHTS, k) for k in range(8)]
    alone = [model.log_marginal_likelihood(X, y, w) for w in weights]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            found = threads.map(lambda w: model.log_marginal_likelihood(X, y, w), weights)
            assert list(found) == alone
    assert len(set(alone)) == len(alone)
    after = model.posterior_.state_dict()
    assert after.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(after[name], value), name
    assert {k: id(v) for k, v in vars(model.posterior_).items()} == held
    if inner is not None:
        assert (inner.loss, inner.beta, set(vars(inner))) == chosen
        assert type(inner.loss) is type(make_loss(params["loss"]))
        assert inner.beta == params.get("beta", 1.0)
    assert_same(model, before, X)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            SVGPClassifier(n_inducing=5, max_iter=1, random_state=0), marks=pytest.mark.slow
        ),
        GaussianProcessClassifier(optimizer=None),
        GaussianProcessClassifier(optimizer=None, method="svgp", random_state=0),
    ],
    ids=["sparse", "Laplace", "drop-in"],
)
def test_weights_of_classes_are_warned_of(model):
    """Copies of a few rows agree, so probabilities are too certain."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), np.repeat(["rare", "usual"], [6, 54])
    few, many = np.where(y == "rare", 5.0, 5.0 / 9.0), np.where(y == "rare", 9.0, 1.0)
    with pytest.warns(UserWarning, match="each row of class 'rare' counts as 9 that agree"):
        model.fit(X, y, sample_weight=many)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "sample_weight differs by class alone")
        model.fit(X, y, sample_weight=few)
        model.fit(X, y, sample_weight=rng.integers(1, 9, 60))
        model.fit(X, y, sample_weight=np.full(60, 9.0))
        model.fit(X, y)
        with judged():  # as the members of the default, whose probabilities it judges
            model.fit(X, y, sample_weight=many)


@pytest.mark.parametrize(
    "model",
    [SVGPClassifier(n_inducing=5, max_iter=1, random_state=0), GaussianProcessClassifier()],
    ids=lambda model: type(model).__name__,
)
@slow_cases("^SVGPClassifier$")
def test_copies_of_a_class_are_warned_of(model):
    """As they make classes even; weights that do the same were told."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), np.repeat(["rare", "usual"], [6, 54])
    rows = np.r_[np.arange(6), rng.integers(0, 6, 48), np.arange(6, 60)]
    with pytest.warns(UserWarning, match="Each row of class 'rare' comes as 9 that agree"):
        model.fit(X[rows], y[rows])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* that agree, so its probabilities")
        drawn = rng.integers(0, 60, 60)
        model.fit(X[drawn], y[drawn])
        model.fit(np.round(X), y)  # which agree by chance
        model.fit(np.tile(X, (9, 1)), np.tile(y, 9))
        X[7] = X[8]  # a copy says nothing of weights
        model.fit(X, y, sample_weight=np.where(y == "rare", rng.uniform(1.0, 20.0, 60), 1.0))
    with pytest.warns(UserWarning, match="sample_weight differs by class alone"):
        model.fit(X, y, sample_weight=np.where(y == "rare", 9.0, 1.0))


@pytest.mark.slow
def test_copies_of_a_row_do_not_hide_the_noise():
    """Kernels were learned from rows that come as often as they count, which agree."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 3))
    y = rng.random(900) < 1.0 / (1.0 + np.exp(X[:, 1] - 1.5 * X[:, 0]))
    model = QSGPClassifier(n_components=100, max_iter=20, random_state=0)
    losses = []
    for weight in (None, rng.integers(1, 6, 300)):
        model.fit(X[:300], y[:300], sample_weight=weight)
        losses.append(log_loss(y[300:], model.predict_proba(X[300:])))
    assert losses[1] < losses[0] + 0.05


@pytest.mark.parametrize(
    "model", [SVGPRegressor(n_inducing=5), SolveGPClassifier(), GaussianProcessClassifier()]
)
@slow_cases("^model0$", "^model1$")
def test_weights_of_a_survey_are_told(model):
    """Rows that stood for 50.3 households were taken for as many that agree, in silence."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(40, 2)), 50.0 * rng.lognormal(sigma=0.6, size=40)
    y = X[:, 0] + 0.5 * rng.normal(size=40)
    y = y > 0.0 if is_classifier(model) else y
    steps = {"max_iter": 1} if "max_iter" in model.get_params() else {"optimizer": None}
    model = clone(model).set_params(random_state=0, **steps)
    with pytest.warns(UserWarning, match="most weights are not whole.* divide them by their mean"):
        model.fit(X, y, sample_weight=w)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, sample_weight=w / w.mean()).fit(X, y, sample_weight=w.round())
        if not is_classifier(model):  # weights that count relative to their mean
            NNGPRegressor(max_iter=1, random_state=0).fit(X, y, sample_weight=w)
    assert not [each for each in caught if "not whole" in str(each.message)]


def test_weights_of_a_part_of_the_rows_are_not_shares(recwarn):
    """Those of a sample, to which the default fits neighbours, may sum to 1."""
    X, weight = np.arange(60.0)[:, None], np.full(60, 1 / 60)
    with judged():
        part = check_weight(Data(X, X), weight, least=2)
    np.testing.assert_array_equal(part.weight, weight)
    assert not len(recwarn)
    with pytest.warns(UserWarning, match="taken as shares of 60 rows"):
        assert check_weight(Data(X, X), weight, least=2).weight is None  # all are 1
