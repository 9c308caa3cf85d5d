"""Processes of classes for small tables: evidence of labels, modes, folds, invariances."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks

from skgpstoch.ensembles import class_process
from skgpstoch.ensembles.class_modes import (
    LabelEvidence,
    PointFeatures,
    PriorKernel,
    Problems,
    contrasts,
    find_modes,
    one_hot,
)
from skgpstoch.ensembles.class_process import ExactProcessClassifier, folds_of
from skgpstoch.kernels.matrices import covariance_of

EACH_KERNEL = pytest.mark.parametrize("name", class_process.KERNELS)
HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def table():
    return make_classification(
        90, 5, n_informative=3, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
    )


@pytest.fixture(scope="module")
def fitted(table):
    return ExactProcessClassifier(random_state=0).fit(*table)


def some_rows(n=15, d=3, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X, codes = rng.standard_normal((n, d)), torch.from_numpy(rng.integers(0, n_classes, n))
    return X, codes, torch.from_numpy(rng.choice([0.5, 1.0, 3.0], n))


# ---- kernels given labels ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rbf", "rbf-ard", "rough-ard"])
def test_the_gradient_of_the_evidence_of_labels(name):
    X, codes, weight = some_rows()
    prior = PriorKernel.of(name, 3)
    Y = contrasts(codes, weight, 3)
    evidence = LabelEvidence(prior, covariance_of(prior.kernel, X, HOST), Y, weight)
    z = np.random.default_rng(1).standard_normal(len(prior.mean))
    expected = approx_fprime(z, lambda z: evidence(z, False)[0], 1e-6)
    assert_allclose(evidence(z)[1], expected, rtol=1e-4, atol=1e-4)


def test_contrasts_are_distances_of_classes():
    codes, weight = torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 1.0, 1.0]).double()
    Y = contrasts(codes, weight, 3)
    assert Y.shape == (4, 2)
    assert_allclose(Y.sum(0), 0.0, atol=1e-12)
    assert_allclose(torch.cdist(Y, Y)[0], np.sqrt([0.0, 2.0, 2.0, 2.0]), atol=1e-12)


# ---- modes -------------------------------------------------------------------------------------


@EACH_KERNEL
def test_modes_are_where_the_posterior_has_no_slope(name, monkeypatch):
    monkeypatch.setattr("skgpstoch.ensembles.class_modes.NEWTON_TOL", 1e-9)
    X, codes, weight = some_rows()
    features = PointFeatures(PriorKernel.of(name, 3).kernel, torch.from_numpy(X))
    F, H = features(features.Z), one_hot(codes, 3)
    scale, offset = torch.tensor([2.0, 10.0]).double(), torch.tensor([0.3, -0.2, -0.1]).double()
    without = weight * (torch.arange(15) % 3 != 0)
    weights = torch.stack([weight, without], 1)
    U, f = find_modes(Problems(F, H, weights, scale, offset))
    assert_allclose(F.mT @ F, torch.diag(torch.diag(F.mT @ F)), atol=1e-6)
    K = features.kernel(features.Z)
    for b in range(2):  # f = s²K·∂ log p(y | f)/∂f
        slope = weights[:, b, None] * (H - torch.softmax(offset + f[:, b], 1))
        assert_allclose(f[:, b], scale[b] ** 2 * K @ slope, atol=3e-3)
        own = scale[b] * features.f(features.Z, features.coefficients(U[:, b]))
        assert_allclose(own, f[:, b], atol=1e-8)


def test_a_line_is_a_penalised_logistic_regression(table, monkeypatch):
    """The mode of a linear kernel, its variance as it is tried, is the ridge's."""
    monkeypatch.setattr("skgpstoch.ensembles.class_modes.NEWTON_TOL", 1e-9)
    monkeypatch.setattr(class_process, "VARIANCES", (6.0,))
    monkeypatch.setattr(class_process, "LOG_CONFIDENCES", np.zeros(1))
    X, y = table
    X = (X - X.mean(0)) / X.std(0)
    model = ExactProcessClassifier(kernels=["linear"], random_state=0).fit(X, y)
    ones = np.column_stack([X, np.ones(90)])  # a row's variance is 6, of which each has 1
    ridge = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=1000).fit(ones, y)
    shares = np.log(np.bincount(y) + 0.5)
    assert np.ptp(shares) < 0.1  # so that the offsets matter little
    assert_allclose(model.predict_proba(X), ridge.predict_proba(ones), atol=0.01)


def test_few_points_make_about_the_same_functions(table, fitted, monkeypatch):
    monkeypatch.setattr(class_process, "MOST_POINTS", 60)
    few = ExactProcessClassifier(random_state=0).fit(*table)
    assert few._rows.Z.shape == (60, 5)
    assert np.abs(few.predict_proba(table[0]) - fitted.predict_proba(table[0])).mean() < 0.05


# ---- rows held out -----------------------------------------------------------------------------


def test_rows_are_predicted_without_their_fold(table, monkeypatch):
    """As by a model of the other folds, with the same kernel, offset and confidence."""
    monkeypatch.setattr("skgpstoch.ensembles.class_modes.NEWTON_TOL", 1e-9)
    monkeypatch.setattr("skgpstoch.ensembles.class_modes.NEGLIGIBLE_VARIANCE", 1e-12)
    X, y = table
    model = ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, y)
    rows, (process,) = model._rows, model._processes
    fold = rows.fold == 1
    features = PointFeatures(process.kernel, rows.X[~fold])
    one = torch.ones(1).double()
    of_others = Problems(
        features(features.Z), rows.labels[~fold], rows.weight[~fold, None], one, rows.offset
    )
    U, _ = find_modes(of_others)
    f = features.f(rows.X[fold], features.coefficients(U[:, 0]))
    p, share = softmax(rows.offset + process.confidence * f, 1), softmax(rows.offset, 0)
    n = len(rows.fold)
    assert_allclose(process.log_p[fold], np.log((n * p + share) / (n + 1)), atol=2e-3)


def test_few_rows_that_agree_leave_some_doubt():
    """A row speaks for the shares of the classes, whatever the inputs."""
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    p = ExactProcessClassifier(random_state=0).fit(X, y).predict_proba([[-50.0], [50.0]])
    assert 0.07 < p.min() < p.max() < 0.93


def test_held_out_predictions_are_probabilities(fitted, table):
    found, y = fitted.held_out_, table[1]
    assert_allclose(found.mean.sum(1), 1.0)
    assert_allclose(found.mean + found.error, np.eye(3)[y], atol=1e-12)
    assert_allclose(found.log_density, np.log(found.mean[np.arange(90), y]), rtol=1e-6)


def test_folds_have_some_of_every_class():
    codes = np.repeat([0, 1, 2], [100, 20, 5])
    fold = folds_of(codes, np.random.default_rng(0))
    counts = np.array([np.bincount(codes[fold == k], minlength=3) for k in range(5)])
    assert_array_equal(counts, np.tile([20, 4, 1], (5, 1)))


# ---- what changes nothing ----------------------------------------------------------------------


def test_a_weight_is_a_number_of_repetitions(table):
    X, y = (a[:50] for a in table)
    weight = np.arange(50) % 3
    weighted = ExactProcessClassifier(random_state=0).fit(X, y, sample_weight=weight)
    order = np.random.default_rng(0).permutation(np.arange(50).repeat(weight))
    repeated = ExactProcessClassifier(random_state=0).fit(X[order], y[order])
    assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))
    assert_array_equal(weighted.predict_std(X), repeated.predict_std(X))
    held_out = weighted.held_out_.log_densities(len(X))
    assert_array_equal(np.isnan(held_out), weight == 0)
    assert_array_equal(held_out[order], repeated.held_out_.log_density)


def test_units_and_names_change_little(fitted, table):
    X, y = table
    scale = np.geomspace(1e-3, 1e3, 5)
    other = clone(fitted).fit(X * scale + 5.0, np.array(["c", "a", "b"])[y])
    query = X[:20] + 0.1
    expected = fitted.predict_proba(query)[:, [1, 2, 0]]
    assert_allclose(other.predict_proba(query * scale + 5.0), expected, atol=0.02)


def test_the_same_seed_gives_the_same_model(fitted, table):
    again = clone(fitted).fit(*table)
    assert_array_equal(again.predict_proba(table[0]), fitted.predict_proba(table[0]))
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict_std(table[0]), fitted.predict_std(table[0]))


def test_an_accelerator_gives_the_same_classes(table, pretend):
    X, y = (a[:40] for a in table)
    model, other = (
        ExactProcessClassifier(kernels=["rough-ard"], device=device, random_state=0).fit(X, y)
        for device in (None, "pretend")
    )
    assert_allclose(other.predict_proba(X), model.predict_proba(X), rtol=1e-4)
    assert_allclose(other.predict_std(X), model.predict_std(X), rtol=1e-3)


# ---- predictions -------------------------------------------------------------------------------


def test_probabilities_are_about_as_good_as_they_say(fitted, table):
    new = load_iris(return_X_y=True)
    rows = np.random.default_rng(0).permutation(150)
    few, many = rows[:40], rows[40:]
    X, y = new
    model = ExactProcessClassifier(random_state=0).fit(X[few], y[few])
    loss = log_loss(y[many], model.predict_proba(X[many]))
    ridge = LogisticRegression(max_iter=1000).fit(X[few], y[few])
    assert loss < log_loss(y[many], ridge.predict_proba(X[many]))
    assert abs(loss + model.held_out_.log_density.mean()) < 0.2


def test_what_is_far_away_is_less_certain(table):
    X, y = table
    model = ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, y)
    near, far = model.predict_std(X[:5]), model.predict_std(X[:5] + 30.0)
    assert far.mean() > near.mean()
    assert np.isfinite(model.predict_proba(X * 1e160)).all()


def test_little_time_has_one_kernel(table):
    model = ExactProcessClassifier(max_time=1e-6, random_state=0).fit(*table)
    assert len(model.kernels_) == 1
    assert_array_equal(model.weights_, [1.0])


def test_what_cannot_be_fitted(table):
    X, y = table
    with pytest.raises(ValueError, match=r"kernels must be 'auto' or some of \['rough-ard'"):
        ExactProcessClassifier(kernels=["cubic"]).fit(X, y)
    with pytest.raises(ValueError, match="needs two classes at least, but y has one class"):
        ExactProcessClassifier().fit(X, np.zeros(90))
    with pytest.raises(ValueError, match="needs two classes at least, but y has one class"):
        ExactProcessClassifier().fit(X, y, sample_weight=(y == 1).astype(float))


@parametrize_with_checks([ExactProcessClassifier(kernels=["rbf"])])
def test_checks_of_processes_of_classes(estimator, check):
    check(estimator)
