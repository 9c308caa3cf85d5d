"""The public interface of the classifiers: labels, probabilities, and what they promise."""

import copy
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import ESTIMATORS, constructor, every_classifier, fitted_once
from families import by_family, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import expit
from scipy.stats import norm
from shared import Calls
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skgpstoch import SVGPClassifier
from skgpstoch.likelihoods import Bernoulli, Categorical, Gaussian

GRID = np.column_stack([np.linspace(-2.9, 2.9, 40), np.linspace(-1, 1, 40)])


@pytest.fixture(params=["two", "three"])
def labelled(request, two_classes, three_classes):
    """Rows of two classes, which are strings, or three, which are numbers."""
    return two_classes if request.param == "two" else three_classes


@pytest.fixture
def fitted(quick_classifier, labelled):
    return fitted_once(quick_classifier(), *labelled)


@pytest.mark.slow
# ------------------------------------------------------------------------------------- accuracy
@slow_cases("two")
def test_boundaries_are_learned(quick_classifier, labelled):
    X, y = labelled
    model = quick_classifier(max_iter=30, n_inducing=20).fit(X[:150], y[:150])
    assert model.score(X[150:], y[150:]) > 0.85
    share = np.unique(y, return_counts=True)[1] / len(y)
    entropy = -(share * np.log(share)).sum()
    assert log_loss(y[150:], model.predict_proba(X[150:])) < 0.5 * entropy
    assert len(model.loss_curve_) == model.n_iter_ == 30
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_two_moons_are_those_of_the_laplace_approximation():
    X, y = make_moons(150, noise=0.25, random_state=0)
    kernel = 4.0 * RBF(0.7)
    exact = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
    fixed = 4.0 * RBF(0.7, "fixed")
    fixed.k1.constant_value_bounds = "fixed"
    model = SVGPClassifier(
        fixed, n_inducing=150, mean="zero", solver="natural", max_iter=1, random_state=0
    ).fit(X, y)
    grid = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 9), np.linspace(-1, 1.5, 7)), -1)
    grid = grid.reshape(-1, 2)
    ours, theirs = (m.predict_proba(grid)[:, 1] for m in (model, exact))
    assert_allclose(ours, theirs, atol=0.06)  # Laplace shrinks towards ½
    assert np.abs(ours - theirs).mean() < 0.02


@pytest.mark.slow
def test_iris(quick_classifier):
    X, y = load_iris(return_X_y=True)
    names = load_iris().target_names[y]
    train, test, y_train, y_test = train_test_split(X, names, random_state=0, stratify=names)
    model = quick_classifier(max_iter=40).fit(train, y_train)
    assert model.score(test, y_test) > 0.9
    assert log_loss(y_test, model.predict_proba(test)) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["softmax", "robustmax"])
@slow_cases("robustmax")
def test_likelihoods_of_two_classes(quick_classifier, two_classes, likelihood):
    X, y = two_classes
    model = quick_classifier(likelihood=likelihood, max_iter=30).fit(X, y)
    assert model.score(X, y) > 0.85
    multi = isinstance(model.likelihood_, Categorical)
    mean, variance = model.latent_mean_and_variance(X)
    assert mean.shape == variance.shape == ((200, 2) if multi else (200,))


def test_bernoulli_and_softmax_of_two_classes_agree(quick_classifier, two_classes):
    """σ(f₁ − f₀), when both latent functions have half of the variance."""
    X, y = two_classes
    params = {
        "learn_inducing_points": False,
        "inducing_points": X[:20],
        "n_inducing": 20,
        "mean": "zero",
        "max_iter": 1,
    }
    one = quick_classifier(kernel=fixed_kernel(4.0), **params).fit(X, y)
    two = quick_classifier(kernel=fixed_kernel(2.0), likelihood="softmax", **params).fit(X, y)
    assert_allclose(two.predict_proba(X), one.predict_proba(X), atol=0.06)


def fixed_kernel(variance):
    kernel = variance * RBF([2.0, 1.0], "fixed")
    kernel.k1.constant_value_bounds = "fixed"
    return kernel


@pytest.mark.slow
# -------------------------------------------------------------------------------------- labels
@pytest.mark.parametrize(
    "names",
    [
        ["yes", "no"],
        [True, False],
        [-1, 1],
        [2.0, 1.0],
        ["z", "a", "m"],
        [10, -5, 3],
        [0, 1, 2, 3],
    ],
    ids=str,
)
@slow_cases(r"\[-1", "True", "0, 1", "'yes'", "2.0", "10")
def test_labels(quick_classifier, sine, names):
    X, y = sine
    codes = np.digitize(y, np.quantile(y, np.arange(1, len(names)) / len(names)))
    labels = np.array(names)[codes]
    model = quick_classifier(max_iter=10).fit(X, labels)
    assert_array_equal(model.classes_, np.unique(labels))
    assert model.classes_.dtype == labels.dtype
    predicted = model.predict(X)
    assert predicted.dtype == labels.dtype
    assert predicted.shape == (len(X),)
    assert accuracy_score(labels, predicted) == model.score(X, labels)
    assert model.score(X, labels) > 0.7
    # Other names in the same order make the same model.
    order = np.argsort(np.argsort(names))
    same = fitted_once(quick_classifier(max_iter=10), X, order[codes])
    assert_array_equal(same.predict_proba(X), model.predict_proba(X))
    assert_array_equal(model.classes_[same.predict(X)], predicted)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        lambda y: y.astype(object),
        lambda y: y[:, None].ravel(),
        pd.Series,
        lambda y: pd.Series(pd.Categorical(y)),
        pl.Series,
    ],
    ids=["list", "object", "array", "pandas", "categorical", "polars"],
)
def test_containers_of_labels(quick_classifier, two_classes, convert):
    X, y = two_classes
    reference = fitted_once(quick_classifier(max_iter=2), X, y)
    model = quick_classifier(max_iter=2).fit(X, convert(y))
    assert_array_equal(model.classes_, reference.classes_)
    assert_array_equal(model.predict_proba(X), reference.predict_proba(X))
    assert model.score(X, convert(y)) == reference.score(X, y)
    density = model.log_predictive_density(X, convert(y))
    assert_array_equal(density, reference.log_predictive_density(X, y))


def test_a_column_of_labels(quick_classifier, two_classes):
    X, y = two_classes
    with pytest.warns(match=r"column-vector|1d array was expected"):
        model = quick_classifier(max_iter=2).fit(X, y[:, None])
    reference = quick_classifier(max_iter=2).fit(X, y)
    assert_array_equal(model.predict(X), reference.predict(X))


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.full(200, "only"), "two classes.*'only'"),
        (np.zeros(200), "two classes"),
        (np.linspace(0, 1, 200), "Unknown label type"),
        (np.where(np.arange(200) % 2, np.nan, 1.0), "contains NaN"),
        (np.where(np.arange(200) % 2, np.inf, 1.0), "contains infinity"),
        (np.zeros((200, 2), int), "1d array|multilabel|label type"),
        (np.arange(199) % 2, "inconsistent numbers of samples"),
        (None, "requires y to be passed"),
        (np.array(["a", 1] * 100, dtype=object), "str|mix|label type|types"),
        (np.array([True, False] * 100, dtype=object), r"got bool\. .* y\.astype\(bool\)"),
        (np.array([Decimal(0), Decimal(1)] * 100), r"got Decimal\. .* y\.astype\(str\)"),
    ],
    ids=[
        *["one string", "one", "continuous", "nan", "inf", "columns", "rows", "none", "mixed"],
        *["objects", "decimals"],
    ],
)
def test_bad_labels_are_named(quick_classifier, two_classes, y, match):
    X, _ = two_classes
    for method in ("fit", "partial_fit"):
        model = quick_classifier()
        with pytest.raises((ValueError, TypeError), match=match):
            getattr(model, method)(X, y)
        assert not hasattr(model, "classes_")
        assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    ("likelihood", "n_classes", "match"),
    [
        ("bernoulli", 3, "is for two classes, but y has 3"),
        (Bernoulli("probit"), 3, "is for two classes, but y has 3"),
        ("gaussian", 2, "likelihood .*'softmax'.*got 'gaussian'"),
        ("poisson", 2, "likelihood .*'softmax'.*got 'poisson'"),
        (Gaussian(), 2, r"likelihood .*'softmax'.*got Gaussian\("),
        ("student_t", 3, "likelihood .*'softmax'.*got 'student_t'"),
        ("sigmoid", 2, "likelihood must be .* got 'sigmoid'"),
    ],
    ids=str,
)
def test_likelihoods_that_are_not_for_these_classes(
    quick_classifier, sine, likelihood, n_classes, match
):
    X, _ = sine
    model = quick_classifier(likelihood=likelihood)
    with pytest.raises(ValueError, match=match):
        model.fit(X, np.arange(len(X)) % n_classes)
    assert not hasattr(model, "classes_")


@pytest.mark.slow
def test_categorical_instances_are_told_their_classes(quick_classifier, three_classes):
    X, y = three_classes
    given = Categorical(link="robustmax", epsilon=0.02)
    model = quick_classifier(likelihood=given, max_iter=5).fit(X, y)
    assert given.n_classes is None
    assert model.likelihood_.n_classes == 3
    assert model.likelihood_.epsilon == 0.02
    assert model.likelihood is given
    assert model.predict_proba(X).min() > 0.009  # ε/2


def test_continuous_targets_are_for_regressors():
    X = np.random.default_rng(0).standard_normal((30, 2))
    with pytest.raises(ValueError, match=r"Unknown label type.*AutoGaussianProcessRegressor\.$"):
        SVGPClassifier().fit(X, X[:, 0])


@slow_cases("two")
def test_unknown_labels_after_the_fit_are_named(fitted, labelled):
    X, y = labelled
    strange = np.where(np.arange(len(y)) == 3, "sideways" if y.dtype.kind == "U" else 99, y)
    for method in (fitted.log_predictive_density, fitted.partial_fit):
        with pytest.raises(ValueError, match=r"y has the class .*(sideways|99).*the classes are"):
            method(X, strange)


# ------------------------------------------------------------------------------- probabilities
def test_shapes(fitted, labelled):
    n, n_classes = len(GRID), len(fitted.classes_)
    assert fitted.predict(GRID).shape == (n,)
    assert fitted.predict_proba(GRID).shape == (n, n_classes)
    assert fitted.predict_log_proba(GRID).shape == (n, n_classes)
    mean, variance = fitted.latent_mean_and_variance(GRID)
    assert mean.shape == variance.shape == ((n,) if n_classes == 2 else (n, n_classes))
    assert (variance > 0.0).all()
    assert fitted.log_predictive_density(*labelled).shape == (len(labelled[0]),)
    assert isinstance(fitted.log_marginal_likelihood_value_, float)
    assert fitted.predict_proba(GRID).dtype == np.float64


LIKELIHOODS = [
    ("two", "bernoulli"),
    ("two", Bernoulli("probit")),
    ("two", "softmax"),
    ("three", "softmax"),
    ("three", "robustmax"),
]


@pytest.fixture(params=LIKELIHOODS, ids=str)
def any_model(request, quick_classifier, two_classes, three_classes):
    """One of each kind of probabilities, with its data."""
    number, likelihood = request.param
    X, y = two_classes if number == "two" else three_classes
    return fitted_once(quick_classifier(likelihood=likelihood, max_iter=15), X, y), X, y


@slow_cases("Bernoulli", "two', 'softmax", "robustmax")
def test_the_forms_of_the_prediction_agree(any_model):
    model, X, y = any_model
    probability = model.predict_proba(X)
    assert ((probability > 0.0) & (probability < 1.0)).all()
    assert_allclose(probability.sum(1), 1.0, rtol=1e-14)
    assert_array_equal(model.predict(X), model.classes_[probability.argmax(1)])
    logarithm = model.predict_log_proba(X)
    assert_allclose(np.exp(logarithm), probability, rtol=1e-6, atol=1e-9)
    column = np.searchsorted(model.classes_, y)
    density = model.log_predictive_density(X, y)
    assert_array_equal(density, logarithm[np.arange(len(X)), column])
    assert -density.mean() == pytest.approx(log_loss(y, probability), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["softmax", "robustmax"])
def test_log_probabilities_of_all_classes_are_computed_once(three_classes, monkeypatch, link):
    """Those of each class began with those of all: 100 classes took 16 s for 7 rows."""
    X, y = three_classes
    params = {"n_inducing": 5, "max_iter": 1, "random_state": 0}
    model = SVGPClassifier(likelihood=link, **params).fit(X, y)
    log_means, calls = Categorical.log_means, []
    monkeypatch.setattr(Categorical, "log_means", lambda *a: (calls.append(a), log_means(*a))[1])
    model.predict_log_proba(X[:7])
    assert len(calls) == 1


def test_far_rows_have_logarithms(quick_classifier):
    """Probabilities that are 1 to rounding have finite logarithms on the other side."""
    X = np.linspace(-1, 1, 200)[:, None]
    kernel = 1e6 * RBF(1.0, "fixed")
    kernel.k1.constant_value_bounds = "fixed"
    model = quick_classifier(kernel=kernel, likelihood="bernoulli", max_iter=1).fit(X, X[:, 0] > 0)
    logarithm = model.predict_log_proba(X)
    assert np.isfinite(logarithm).all()
    assert logarithm.min() < -5.0
    assert (logarithm <= 0.0).all()


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_probabilities_are_averages_over_the_latent_function(quick_classifier, two_classes, link):
    X, y = two_classes
    model = quick_classifier(likelihood=Bernoulli(link), max_iter=10).fit(X, y)
    mean, variance = model.latent_mean_and_variance(GRID)
    z, w = np.polynomial.hermite_e.hermegauss(100)
    f = mean[:, None] + np.sqrt(variance)[:, None] * z
    expected = (expit(f) if link == "logit" else norm.cdf(f)) @ w / w.sum()
    assert_allclose(model.predict_proba(GRID)[:, 1], expected, rtol=1e-6)


@pytest.mark.slow
def test_softmax_probabilities_are_averages(quick_classifier, three_classes):
    X, y = three_classes
    model = quick_classifier(max_iter=10).fit(X, y)
    mean, variance = model.latent_mean_and_variance(GRID)
    rng = np.random.default_rng(0)
    f = mean + np.sqrt(variance) * rng.standard_normal((20_000, *mean.shape))
    p = np.exp(f - f.max(-1, keepdims=True))
    expected = (p / p.sum(-1, keepdims=True)).mean(0)
    assert_allclose(model.predict_proba(GRID), expected, atol=0.015)


@pytest.mark.slow
def test_robustmax_probabilities_are_those_of_winning(quick_classifier, three_classes):
    X, y = three_classes
    model = quick_classifier(likelihood="robustmax", max_iter=10).fit(X, y)
    mean, variance = model.latent_mean_and_variance(GRID)
    rng = np.random.default_rng(0)
    f = mean + np.sqrt(variance) * rng.standard_normal((20_000, *mean.shape))
    win = (f == f.max(-1, keepdims=True)).mean(0)
    expected = 0.999 * win + 0.0005 * (1.0 - win)
    assert_allclose(model.predict_proba(GRID), expected, atol=0.02)


@pytest.mark.slow
@slow_cases("two', 'softmax")
def test_probabilities_do_not_depend_on_batch_order_or_call(any_model):
    model, _, _ = any_model
    rng = np.random.default_rng(1)
    X = rng.uniform(-4, 4, (4500, 2))
    probability, logarithm = model.predict_proba(X), model.predict_log_proba(X[-500:])
    order = rng.permutation(300)
    assert_allclose(model.predict_proba(X[order]), probability[order], atol=1e-12)
    for rows in (slice(0, 1), slice(4090, 4100), slice(-3, None)):
        assert_allclose(model.predict_proba(X[rows]), probability[rows], atol=1e-12)
    assert_allclose(model.predict_log_proba(X[-3:]), logarithm[-3:], atol=1e-10)
    torch.rand(7)
    again, copied = (m.predict_proba(GRID) for m in (model, pickle.loads(pickle.dumps(model))))
    assert_array_equal(again, model.predict_proba(GRID))
    assert_array_equal(copied, again)


@pytest.mark.parametrize(
    "cls",
    by_family("certainty of probabilities", [cls for cls in ESTIMATORS if is_classifier(cls())]),
)
@pytest.mark.parametrize("n_classes", [2, 3])
@slow_cases("3-DeepGP", "3-[CDGN]")
def test_every_classifier_knows_how_certain_its_probabilities_are(cls, n_classes):
    """At most ½, the same for both of two classes, and whatever the batch."""
    X = np.random.default_rng(0).uniform(-2, 2, (60, 16))  # images, too, of 4 by 4
    y = np.digitize(X[:, :8].sum(1), [0.0] if n_classes == 2 else [-2.0, 2.0])
    short = {"max_iter": 3} if "max_iter" in cls().get_params() else {"kernel": RBF(4.0)}
    model = constructor(cls)(**short).fit(X, y)
    std = model.predict_std(X)
    assert std.shape == (60, n_classes)
    assert ((std >= 0.0) & (std <= 0.5)).all()
    assert std.max() > 1e-3
    if n_classes == 2:
        assert_array_equal(std[:, 0], std[:, 1])
    # No distribution on [0, 1] varies more.
    p = model.predict_proba(X)
    assert (std**2 <= p * (1.0 - p) + 0.02).all()  # one against the rest are several models
    assert_allclose(model.predict_std(X[::-1])[::-1], std, rtol=1e-9, atol=1e-12)
    assert_allclose(model.predict_std(X[7:8]), std[7:8], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_standard_deviations_are_over_the_latent_function(quick_classifier, two_classes, link):
    X, y = two_classes
    model = quick_classifier(likelihood=Bernoulli(link), max_iter=10).fit(X, y)
    mean, variance = model.latent_mean_and_variance(GRID)
    z, w = np.polynomial.hermite_e.hermegauss(100)
    f = mean[:, None] + np.sqrt(variance)[:, None] * z
    p = expit(f) if link == "logit" else norm.cdf(f)
    expected = np.sqrt((p - (p @ w / w.sum())[:, None]) ** 2 @ w / w.sum())
    assert_allclose(model.predict_std(GRID)[:, 0], expected, rtol=1e-6)
    far = model.predict_std(100.0 + GRID)
    assert far.mean() > 1.5 * model.predict_std(X).mean()


@pytest.mark.slow
def test_the_order_of_the_classes_does_not_matter(quick_classifier, three_classes):
    """Relabelling permutes the probabilities, up to the quasi-random points."""
    X, y = three_classes
    model, mirrored = (quick_classifier(max_iter=20).fit(X, s * y) for s in (1, -1))
    assert_allclose(mirrored.predict_proba(GRID)[:, ::-1], model.predict_proba(GRID), atol=0.03)


@pytest.mark.slow
def test_probabilities_are_calibrated(quick_classifier):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2000, 2))
    truth = expit(3.0 * np.sin(X[:, 0]))
    y = rng.uniform(size=len(X)) < truth
    model = quick_classifier(max_iter=15).fit(X[:1000], y[:1000])
    probability = model.predict_proba(X[1000:])[:, 1]
    assert np.abs(probability - truth[1000:]).mean() < 0.06
    for low in (0.0, 0.25, 0.5, 0.75):
        rows = (probability >= low) & (probability < low + 0.25)
        assert y[1000:][rows].mean() == pytest.approx(probability[rows].mean(), abs=0.12)


# ----------------------------------------------------------------------------- difficult data
@pytest.mark.parametrize(
    ("likelihood", "solver"),
    [
        ("bernoulli", "adam"),
        ("softmax", "natural"),
        ("robustmax", "natural"),
        (Bernoulli("probit"), "natural"),
    ],
)
@slow_cases("robustmax")
def test_separable_classes(quick_classifier, likelihood, solver):
    X = np.concatenate([np.full((50, 2), -1.0), np.full((50, 2), 1.0)])
    X += 0.01 * np.random.default_rng(0).standard_normal(X.shape)
    y = np.repeat(["left", "right"], 50)
    model = quick_classifier(likelihood=likelihood, solver=solver).fit(X, y)
    assert model.score(X, y) == 1.0
    probability = model.predict_proba(X)
    assert np.isfinite(probability).all()
    assert probability.max(1).min() > 0.8
    assert np.isfinite(model.predict_log_proba(np.array([[0.0, 0.0], [9.0, 9.0]]))).all()


@pytest.mark.slow
def test_a_rare_class(quick_classifier, sine):
    X, _ = sine
    y = np.zeros(len(X), int)
    y[:2] = 1
    for labels in (y, np.where(np.arange(len(X)) == 7, 2, y)):
        model = quick_classifier().fit(X, labels)
        assert_allclose(model.predict_proba(X).sum(1), 1.0)
        share = np.bincount(labels) / len(labels)
        assert_allclose(model.predict_proba(X).mean(0), share, atol=0.03)


@pytest.mark.slow
def test_contradictory_rows(quick_classifier):
    X = np.zeros((60, 1))
    y = np.repeat([0, 1, 1], 20)
    model = quick_classifier(max_iter=30).fit(X, y)
    assert model.predict_proba(X[:1])[0, 1] == pytest.approx(2 / 3, abs=0.05)


@pytest.mark.slow
def test_many_classes(quick_classifier, sine):
    X, y = sine
    labels = np.digitize(y, np.quantile(y, np.arange(1, 12) / 12))
    model = quick_classifier(max_iter=10).fit(X, labels)
    assert model.score(X, labels) > 0.3
    assert model.predict_proba(X).shape == (len(X), 12)


@pytest.mark.slow
# --------------------------------------------------------------------------------------- streams
def test_classes_missing_from_chunks(quick_classifier, three_classes):
    X, y = three_classes
    order = np.argsort(y, kind="stable")  # a class after the other
    model = quick_classifier(batch_size=20)
    for chunk in np.split(order, 10) * 2:
        model.partial_fit(X[chunk], y[chunk], classes=[5, -5, 15])
        assert_array_equal(model.classes_, [-5, 5, 15])
        assert_allclose(model.predict_proba(X).sum(1), 1.0)
    assert np.isfinite(model.predict_log_proba(X)).all()
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.5


def test_rows_of_a_single_class(quick_classifier, two_classes):
    X, y = two_classes
    up = X[y == "up"]
    model = quick_classifier(n_inducing="auto")
    model.partial_fit(up[:2], ["up", "up"], classes=["up", "down"])
    for row in range(3, 6):
        assert model.predict_proba(X).shape == (200, 2)
        assert np.isfinite(model.predict_proba(X)).all()
        model.partial_fit(up[row : row + 1], ["up"])
    assert (model.predict(up) == "up").all()


@pytest.mark.slow
def test_classes_of_a_stream(quick_classifier, two_classes):
    X, y = two_classes
    model = quick_classifier(max_iter=2)
    with pytest.raises(ValueError, match="two classes"):
        model.partial_fit(X[:20], np.full(20, "up"))
    assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match=r"y has the class .*'down'"):
        model.partial_fit(X, y, classes=["up", "left"])
    assert not hasattr(model, "classes_")
    for wrong in (["up"], {"up", "down"}, 2, "up"):
        with pytest.raises(ValueError, match="classes must list at least two labels"):
            model.partial_fit(X[:20], np.full(20, "up"), classes=wrong)
    with pytest.raises(ValueError, match="classes has no label"):
        model.partial_fit(X[:20], np.full(20, "up"), classes=["up", None])
    assert set(vars(model)) == set(vars(clone(model)))
    model.partial_fit(X, y)
    assert_array_equal(model.classes_, ["down", "up"])
    model.partial_fit(X[:5], y[:5], classes=["up", "down"])
    with pytest.raises(ValueError, match="classes must be the same as in the first call"):
        model.partial_fit(X, y, classes=["up", "down", "left"])
    model.fit(X, y)
    with pytest.raises(ValueError, match="classes must be the same as in the first call"):
        model.partial_fit(X, y, classes=["up", "left"])
    assert set(vars(model)) == set(vars(quick_classifier().fit(X, y)))  # they are not kept


@pytest.mark.slow
def test_a_class_that_never_comes(quick_classifier, two_classes):
    """Announced, but in no row: its probability is small."""
    X, y = two_classes
    model = quick_classifier(batch_size=50)
    for _ in range(8):
        model.partial_fit(X, y, classes=["up", "down", "sideways"])
    column = list(model.classes_).index("sideways")
    assert model.predict_proba(X)[:, column].mean() < 0.1
    assert model.score(X, y) > 0.7


@pytest.mark.slow
@slow_cases("two")
def test_streams_forget_nothing_that_fit_knew(quick_classifier, labelled):
    X, y = labelled
    model = quick_classifier(max_iter=30).fit(X, y)
    score = model.score(X, y)
    for solver in ("natural", "adam"):
        stream = copy.deepcopy(model).set_params(solver=solver)
        stream.partial_fit(X[:20], y[:20]).partial_fit(X[20:40], y[20:40])
        assert stream.score(X, y) > score - 0.03


# ------------------------------------------------------------------------------- warm starts
def test_warm_start_refuses_other_classes(quick_classifier, two_classes, three_classes):
    model = quick_classifier(warm_start=True, max_iter=2).fit(*two_classes)
    before = model.predict_proba(GRID)
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(*three_classes)
    assert_array_equal(model.predict_proba(GRID), before)
    assert_array_equal(model.classes_, ["down", "up"])


@pytest.mark.slow
@slow_cases("two")
def test_warm_start_goes_on(quick_classifier, labelled):
    X, y = labelled
    model = quick_classifier(warm_start=True, max_iter=5, learning_rate="constant").fit(X, y)
    bounds = [model.log_marginal_likelihood_value_]
    for _ in range(3):
        bounds.append(model.fit(X, y).log_marginal_likelihood_value_)
    assert bounds[-1] > bounds[0]
    assert np.isfinite(bounds).all()


# ----------------------------------------------------------------------- scikit-learn's machinery
@every_classifier
def test_is_a_classifier(classifier):
    model = classifier(n_inducing=7, kernel=Matern())
    assert is_classifier(model)
    params = model.get_params(deep=False)
    assert classifier(**params).get_params(deep=False) == params
    assert "n_inducing=7" in repr(model)
    tags = model.__sklearn_tags__()
    assert tags.classifier_tags.multi_class
    assert not hasattr(model, "predict_interval")
    assert "normalize_y" not in params


@pytest.mark.slow
def test_data_frames(quick_classifier, two_classes):
    X, y = two_classes
    reference = quick_classifier(max_iter=2).fit(X, y)
    for frame in (pd.DataFrame, pl.DataFrame):
        df = frame(dict(zip(["speed", "load"], X.T, strict=True)))
        model = quick_classifier(max_iter=2).fit(df, y)
        assert list(model.feature_names_in_) == ["speed", "load"]
        assert_allclose(model.predict_proba(df), reference.predict_proba(X), atol=1e-6)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(df[["load", "speed"]])
        with pytest.warns(UserWarning, match="feature names"):
            model.predict_proba(X)


def memory_map(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, _: np.asfortranarray(X),
        lambda X, _: X.tolist(),
        lambda X, _: X.astype(object),
        lambda X, _: X.astype(">f8"),
        lambda X, _: torch.from_numpy(X.copy()),
        memory_map,
    ],
    ids=["fortran", "list", "object", "big-endian", "torch", "memmap"],
)
def test_the_container_does_not_matter(quick_classifier, two_classes, tmp_path, convert):
    X, y = two_classes
    converted = convert(X, tmp_path)
    model = quick_classifier(max_iter=2).fit(converted, y)
    reference = fitted_once(quick_classifier(max_iter=2), X, y)
    assert_allclose(model.predict_proba(converted), reference.predict_proba(X), atol=1e-6)
    assert_array_equal(np.asarray(converted, dtype=float), X)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "bool"])
@slow_cases("float16", "int8")
def test_number_types(quick_classifier, dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if dtype == "bool" else 60, (80, 3)).astype(dtype)
    y = X[:, 0] > np.median(X[:, 0].astype(float)) - 0.5
    model, reference = (quick_classifier(max_iter=3).fit(A, y) for A in (X, X.astype(float)))
    assert_allclose(model.predict_proba(X), reference.predict_proba(X.astype(float)), atol=1e-5)
    assert model.predict_proba(X).dtype == np.float64


def test_fractions_and_other_objects_are_labels_or_refused(quick_classifier, two_classes):
    X, y = two_classes
    odd = [Fraction(1, 2) if label == "up" else Fraction(1, 3) for label in y]
    complaint = ""
    try:
        model = quick_classifier(max_iter=2).fit(X, odd)
    except (ValueError, TypeError) as error:
        complaint = str(error)
    assert "label" in complaint or set(model.predict(X)) <= set(odd)


@pytest.mark.parametrize("matrix", [sparse.csr_matrix, sparse.coo_array])
def test_sparse_inputs_are_refused_clearly(quick_classifier, two_classes, matrix):
    X, y = two_classes
    model = quick_classifier(max_iter=1)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
            method(matrix(X), y)
    model.fit(X, y)
    for method in (model.predict, model.predict_proba, model.predict_log_proba):
        with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
            method(matrix(X))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite_inputs_are_refused(quick_classifier, two_classes, value):
    X, y = two_classes
    bad = X.copy()
    bad[3, 1] = value
    model = quick_classifier(max_iter=1)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            method(bad, y)
    model.fit(X, y)
    for name in ("predict", "predict_proba", "predict_log_proba", "latent_mean_and_variance"):
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            getattr(model, name)(bad)
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        model.log_predictive_density(bad, y)


@pytest.mark.parametrize(
    "name", ["predict", "predict_proba", "predict_log_proba", "latent_mean_and_variance"]
)
def test_methods_need_a_fit_and_its_columns(quick_classifier, two_classes, name):
    X, y = two_classes
    model = quick_classifier(max_iter=1)
    with pytest.raises(NotFittedError):
        getattr(model, name)(X)
    with pytest.raises(NotFittedError):
        model.log_predictive_density(X, y)
    model.fit(X, y)
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
        getattr(model, name)(np.zeros((4, 3)))


@pytest.mark.slow
def test_pipelines_searches_and_wrappers(quick_classifier, two_classes):
    X, y = two_classes
    pipeline = make_pipeline(StandardScaler(), quick_classifier(max_iter=5))
    name = pipeline.steps[-1][0]
    grid = {f"{name}__likelihood": ["bernoulli", Bernoulli("probit")]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X, y) > -0.6
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.7
    calibrated = CalibratedClassifierCV(quick_classifier(max_iter=5), cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.8
    two = np.column_stack([y, X[:, 0] > 0.0])
    many = MultiOutputClassifier(quick_classifier(max_iter=2)).fit(X, two)
    assert many.predict(X).shape == (200, 2)


@pytest.mark.slow
def test_deep_kernels_learn_features(quick_classifier):
    """A function of a product, which a network finds in a few hundred rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    y = X[:, 0] * X[:, 1] > 0.0
    model = quick_classifier(hidden_layer_sizes=(32, 16), max_iter=25, batch_size=100)
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.validation_scores_ is not None
    assert 0 <= model.best_iter_ <= model.n_iter_
    module = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
    before = copy.deepcopy(module.state_dict())
    mine = quick_classifier(feature_map=module, max_iter=5).fit(X, y)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert mine.predict_proba(X).shape == (400, 2)


@pytest.mark.parametrize("early_stopping", [True, False])
@slow_cases("two")
def test_early_stopping(quick_classifier, labelled, early_stopping):
    model = quick_classifier(early_stopping=early_stopping, max_iter=10).fit(*labelled)
    if not early_stopping:
        assert model.validation_scores_ is None
        return
    assert len(model.validation_scores_) == 10
    assert 0 <= model.best_iter_ <= 10
    assert np.isfinite(model.validation_scores_).all()


# ----------------------------------------------------------------------- callbacks and Ctrl-C
@slow_cases("two")
def test_callbacks_are_told_of_every_epoch(quick_classifier, labelled):
    pytest.importorskip("sklearn.callback")
    calls = Calls()
    model = quick_classifier(max_iter=4).set_callbacks(calls).fit(*labelled)
    assert calls.seen == ["setup", 0, 1, 2, 3, "teardown"]
    plain = quick_classifier(max_iter=4).fit(*labelled)
    assert_array_equal(model.predict_proba(GRID), plain.predict_proba(GRID))


@slow_cases("two")
def test_ctrl_c_leaves_a_usable_model(quick_classifier, labelled):
    pytest.importorskip("sklearn.callback")
    X, y = labelled
    model = quick_classifier(max_iter=20).set_callbacks(Calls(KeyboardInterrupt(), 9))
    with pytest.warns(ConvergenceWarning, match="interrupted after 10 of 20 epochs"):
        model.fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 10
    assert model.score(X, y) > 0.7
    assert_allclose(model.predict_proba(X).sum(1), 1.0)


def test_a_failed_fit_leaves_the_classes(quick_classifier, two_classes, three_classes):
    pytest.importorskip("sklearn.callback")
    model = quick_classifier(max_iter=5).fit(*two_classes)
    before = model.predict_proba(GRID)
    model.set_callbacks(Calls(ZeroDivisionError(), 2))
    with pytest.raises(ZeroDivisionError):
        model.fit(*three_classes)
    assert_array_equal(model.classes_, ["down", "up"])
    assert_array_equal(model.predict_proba(GRID), before)


@pytest.mark.gpu
@every_classifier
@pytest.mark.parametrize("likelihood", ["bernoulli", Bernoulli("probit"), "softmax"], ids=str)
def test_cuda_probabilities(quick_classifier, likelihood, two_classes):
    X, y = two_classes
    model = quick_classifier(likelihood=likelihood, device="cuda").fit(X, y)
    there = model.predict_proba(GRID)
    assert_allclose(model.set_params(device="cpu").predict_proba(GRID), there, atol=1e-9)
    here = quick_classifier(likelihood=likelihood).fit(X, y)
    assert_allclose(here.predict_proba(GRID), there, atol=0.15)


def test_white_noise_is_not_for_classes(quick_classifier, two_classes):
    with pytest.raises(ValueError, match="WhiteKernel"):
        quick_classifier(kernel=RBF() + WhiteKernel()).fit(*two_classes)
