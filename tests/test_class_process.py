"""Processes of classes for small tables: evidence of labels, modes, folds, invariances."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from skgpstoch import GaussianProcessClassifier
from skgpstoch.data.arrays import Scaling
from skgpstoch.kernels.matrices import covariance_of
from skgpstoch.methods.automatic import class_fit, class_process
from skgpstoch.methods.automatic.class_fit import (
    ClassRows,
    FittedProcess,
    best_scale,
    best_scales,
    blind_functions,
    evidence_of,
    fit_process,
    folds_of,
    left_out_log_p,
    log_probabilities,
    modes,
    problems_of,
    unit_kernel,
)
from skgpstoch.methods.automatic.class_mixture import (
    Contrasts,
    deviation_about,
    probability_moments,
)
from skgpstoch.methods.automatic.class_modes import (
    BestTheta,
    LabelEvidence,
    PointFeatures,
    PriorKernel,
    Problems,
    best_theta,
    contrasts,
    find_modes,
    one_hot,
)
from skgpstoch.methods.automatic.class_process import AtMode, ExactProcessClassifier
from skgpstoch.methods.automatic.process_evidence import ProcessInputs

EACH_KERNEL = pytest.mark.parametrize("name", class_process.KERNELS)
HOST = torch.device("cpu")
KERNELS = ["rbf-ard", "linear"]  # of all, which take several times as long


@pytest.fixture(scope="module")
def table():
    return make_classification(
        90, 5, n_informative=3, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
    )


@pytest.fixture(scope="module")
def fitted(table):
    return ExactProcessClassifier(kernels=KERNELS, random_state=0).fit(*table)


def inputs(d, groups=None):
    """Inputs of variance 1, whose columns are in groups."""
    return ProcessInputs.of(np.arange(d) if groups is None else groups, np.ones(d), 0, 100)


def some_rows(n=15, d=3, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X, codes = rng.standard_normal((n, d)), torch.from_numpy(rng.integers(0, n_classes, n))
    return X, codes, torch.from_numpy(rng.choice([0.5, 1.0, 3.0], n))


def tight(monkeypatch):
    """Leave out no direction of functions, and search until no step promises anything."""
    for name in ("NEWTON_TOL", "NEWTON_TOL_OF_ROW", "NEGLIGIBLE_VARIANCE"):
        monkeypatch.setattr(f"skgpstoch.methods.automatic.class_modes.{name}", 1e-12)


# ---- kernels given labels ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rbf", "rbf-ard", "rough-ard"])
@pytest.mark.parametrize("groups", [None, np.array([0, 5, 5])])
def test_the_gradient_of_the_evidence_of_labels(name, groups):
    X, codes, weight = some_rows()
    prior = PriorKernel.of(name, inputs(3, groups))
    Y = contrasts(codes, weight, 3)
    evidence = LabelEvidence(prior, covariance_of(prior.kernel, X, HOST), Y, weight)
    z = np.random.default_rng(1).standard_normal(len(prior.mean))
    expected = approx_fprime(z, lambda z: evidence(z, False)[0], 1e-6)
    assert_allclose(evidence(z)[1], expected, rtol=1e-4, atol=1e-4)


def test_levels_of_a_category_have_one_length_scale():
    prior = PriorKernel.of("rbf-ard", inputs(4, np.array([0, 1, 1, 2])))
    z = np.arange(5.0)
    theta = prior.theta(z)
    assert theta.shape == prior.kernel.theta.shape == (6,)
    assert theta[2] == theta[3]
    assert len(set(theta)) == 5
    assert_allclose(prior.z(theta), z)
    assert_allclose(prior.pulled(np.ones(6)), prior.std * [1.0, 1.0, 2.0, 1.0, 1.0])


@pytest.mark.slow
def test_levels_do_not_drown_a_number():
    """A category of many levels that says nothing weighs as much as one number."""
    rng = np.random.default_rng(0)
    z, level = rng.standard_normal(420), rng.integers(0, 40, 420)
    X, y = np.column_stack([z, np.eye(40)[level]]), z > 0.3
    groups = np.array([0, *[1] * 40])
    losses = []
    for given in (None, groups):
        model = ExactProcessClassifier(kernels=["rbf"], groups=given, random_state=0)
        model.fit(X[:120], y[:120])
        losses.append(log_loss(y[120:], model.predict_proba(X[120:])))
    assert losses[1] < 0.4 * losses[0]


def test_contrasts_are_distances_of_classes():
    codes, weight = torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 1.0, 1.0]).double()
    Y = contrasts(codes, weight, 3)
    assert Y.shape == (4, 2)
    assert_allclose(Y.sum(0), 0.0, atol=1e-12)
    assert_allclose(torch.cdist(Y, Y)[0], np.sqrt([0.0, 2.0, 2.0, 2.0]), atol=1e-12)


# ---- modes -------------------------------------------------------------------------------------


@EACH_KERNEL
def test_modes_are_where_the_posterior_has_no_slope(name, monkeypatch):
    tight(monkeypatch)
    X, codes, weight = some_rows()
    features = PointFeatures(PriorKernel.of(name, inputs(3)).kernel, torch.from_numpy(X))
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
    tight(monkeypatch)
    monkeypatch.setattr(class_fit, "VARIANCES", (6.0,))
    monkeypatch.setattr(class_fit, "LOG_CONFIDENCES", np.zeros(1))
    X, y = table
    X = (X - X.mean(0)) / X.std(0)
    model = ExactProcessClassifier(kernels=["linear"], random_state=0).fit(X, y)
    ones = np.column_stack([X, np.ones(90)])  # a row's variance is 6, of which each has 1
    ridge = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=1000).fit(ones, y)
    shares = np.log(np.bincount(y) + 0.5)
    assert np.ptp(shares) < 0.1  # so that the offsets matter little
    assert_allclose(model.predict_proba(X), ridge.predict_proba(ones), atol=0.01)


@pytest.mark.slow
def test_few_points_make_about_the_same_functions(table, fitted, monkeypatch):
    monkeypatch.setattr(class_process, "MOST_POINTS", 60)
    monkeypatch.setattr(class_fit, "BLIND_ROWS", 50)
    monkeypatch.setattr(class_process, "FINE_POINTS", 60)
    few = ExactProcessClassifier(kernels=KERNELS, random_state=0).fit(*table)
    assert few._rows.Z.shape == (45, 5)
    assert np.abs(few.predict_proba(table[0]) - fitted.predict_proba(table[0])).mean() < 0.05


# ---- rows held out -----------------------------------------------------------------------------


@pytest.fixture
def rows(table):
    """Scaled rows whose functions are made of all; ten folds, with other shares of the classes."""
    X, codes = torch.from_numpy(table[0]), torch.from_numpy(table[1])
    fold = torch.from_numpy(np.random.default_rng(0).permutation(90) % 10)
    return ClassRows.of(X, codes, torch.ones(90).double(), fold, torch.arange(90), 3)


def test_rows_are_predicted_without_their_fold(rows, monkeypatch):
    """As by a model of the other folds, with the same kernel."""
    tight(monkeypatch)
    kernel, own = ConstantKernel(4.0) * RBF(2.0), rows.fold == 1
    f = modes(PointFeatures(kernel, rows.Z), rows, (1.0, 5.0))[1]
    others = rows.without(1)
    features = PointFeatures(kernel, others.Z)
    problems = problems_of(features, others, (1.0, 5.0))
    U, _ = find_modes(problems)
    assert_allclose(f[own], problems._replace(F=features(rows.X[own])).f(U), atol=2e-3)
    assert_array_equal(rows.blind_offset[own], others.offset.expand(9, 3))


def some_best(rows, z, pairs=()):
    """θ of the rows, given how far from the prior mean that is."""
    return BestTheta(evidence_of(PriorKernel.of("rbf-ard", inputs(5)), rows), z, list(pairs))


def some_pairs(D, rng):
    """Steps and changes of the slope of a curvature between 2 and 3."""
    steps = torch.from_numpy(rng.standard_normal((3, D)))
    return [(s, s * torch.linspace(2.0, 3.0, D).double()) for s in steps]


@pytest.mark.slow
def test_labels_of_a_fold_do_not_change_what_is_predicted_for_it(rows):
    own, rng = rows.fold == 2, np.random.default_rng(0)
    z, pairs = 0.3 * rng.standard_normal(7), some_pairs(7, rng)
    codes = torch.where(own, 0, rows.codes)
    moved = ClassRows.of(rows.X, codes, rows.weight, rows.fold, rows.points, 3)
    thetas = [some_best(r, z, pairs).without(r.fold, 10) for r in (rows, moved)]
    assert_allclose(thetas[1][2], thetas[0][2], rtol=1e-12)
    assert (np.abs(thetas[1] - thetas[0]).max(1) > 1e-3).sum() == 9  # of the others
    assert len(np.unique(thetas[0], axis=0)) == 10
    kernel = unit_kernel(PriorKernel.of("rbf-ard", inputs(5)), thetas[0][0], rows.X)
    f, after = (blind_functions(some_best(r, z, pairs), kernel, r, r) for r in (rows, moved))
    assert_allclose(after[own], f[own], atol=1e-8)
    assert not torch.equal(after[~own], f[~own])
    log_p, after = (left_out_log_p(r, f, class_fit.VARIANCES) for r in (rows, moved))
    assert_array_equal(after[own], log_p[own])


def test_a_label_does_not_change_how_it_is_predicted(monkeypatch):
    """But for how large functions are, and how certain, which the other rows say."""
    tight(monkeypatch)
    monkeypatch.setattr(class_fit, "VARIANCES", (10.0,))
    monkeypatch.setattr(class_fit, "LOG_CONFIDENCES", np.zeros(1))
    X, y = np.random.default_rng(0).standard_normal((10, 2)), np.arange(10) // 3
    model = ExactProcessClassifier(kernels=["linear"], random_state=0)
    p, after = (clone(model).fit(X, labels).held_out_.mean for labels in (y, np.r_[1, y[1:]]))
    assert_allclose(after[0], p[0], atol=1e-6)
    assert np.abs(after[1:] - p[1:]).max() > 0.01


def test_functions_are_scaled_about_the_shares_of_the_other_folds():
    codes, each = torch.tensor([0] * 6 + [1] * 2), torch.arange(8)
    noise = np.random.default_rng(4).standard_normal((8, 2))
    X = codes[:, None] + 0.5 * torch.from_numpy(noise)
    rows = ClassRows.of(X, codes, torch.ones(8).double(), each, each, 2)
    offset = torch.stack([rows.without(k).offset for k in rows.folds])
    fitted = fit_process("linear", inputs(2), rows, rows)
    kernel = unit_kernel(PriorKernel.of("linear", inputs(2)), np.empty(0), X)
    f = modes(PointFeatures(kernel, X), rows, class_fit.VARIANCES)[1]
    assert fitted.confidence == best_scale(rows, offset, f, class_fit.VARIANCES)[1]
    scales = best_scales(rows, offset, f, class_fit.VARIANCES, 1.0 - torch.eye(8).double())
    for k, (v, t) in enumerate(scales):
        expected = log_probabilities(rows.without(k), t * f[[k], v])
        assert_allclose(fitted.log_p[[k]], expected, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_without_a_fold_are_those_of_the_other_rows(rows, weighted):
    if weighted:
        some = np.random.default_rng(1).choice([0.5, 1.0, 3.0], 90)
        rows = rows._replace(weight=torch.from_numpy(some))
    z = 0.5 * np.random.default_rng(2).standard_normal(7)
    slopes = evidence_of(PriorKernel.of("rbf-ard", inputs(5)), rows).slopes_without(
        z, rows.fold, 10
    )
    for fold in rows.folds:
        others = evidence_of(PriorKernel.of("rbf-ard", inputs(5)), rows.without(fold))
        assert_allclose(slopes[fold], others(z)[1], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_a_step_finds_about_the_kernel_of_the_other_rows(rows):
    prior = PriorKernel.of("rbf-ard", inputs(5))
    best = best_theta(evidence_of(prior, rows))
    for fold, theta in enumerate(best.without(rows.fold, 10)):
        evidence = evidence_of(prior, rows.without(fold))
        top = evidence(best_theta(evidence).z)[0]
        lost = [top - evidence((t - prior.mean) / prior.std)[0] for t in (theta, best.theta)]
        assert lost[0] < 0.3 * lost[1]


def test_a_search_that_did_not_move_leaves_folds_their_kernel(rows):
    z = np.zeros(7)
    assert_array_equal(
        some_best(rows, z).without(rows.fold, 10), np.tile(some_best(rows, z).theta, (10, 1))
    )


@pytest.mark.slow
def test_few_rows_of_noise_are_not_predicted():
    """Kernels that had seen the rows of a fold predicted these better than chance, by .1 nats."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4, 40, 8)), np.arange(40) % 2
    model = ExactProcessClassifier(kernels=["rbf-ard", "rough-ard"], random_state=0)
    models = [clone(model).fit(table, y) for table in X]
    assert np.mean([model.held_out_.log_density for model in models]) < np.log(0.5)


def test_points_do_not_say_how_certain_functions_are(rows):
    f = torch.where(rows.codes[:, None] == torch.arange(3), 3.0, 0.0)[:, None].double()
    f[:45] *= -1.0  # wrong, where there are points
    every = rows._replace(weight=rows.weight.index_fill(0, torch.arange(45), 0.0))
    few, none = rows._replace(points=torch.arange(45)), torch.zeros(90, 3).double()
    assert best_scale(few, none, f, (1.0,)) == best_scale(every, none, f, (1.0,))
    assert best_scale(rows, none, f, (1.0,))[1] < 0.5 < best_scale(every, none, f, (1.0,))[1]


def test_points_have_the_features_of_rows(rows):
    features = PointFeatures(RBF(1.0), rows.X)
    assert_allclose(features.at_points(), features(rows.X), atol=1e-8)


@pytest.mark.slow
def test_kernels_that_matter_are_learned_again_from_more_rows(table, monkeypatch):
    monkeypatch.setattr(class_process, "BLIND_ROWS", 50)
    monkeypatch.setattr(class_process, "SEARCH_ROWS", 40)
    monkeypatch.setattr(class_process, "MOST_POINTS", 40)
    monkeypatch.setattr(ClassRows, "score", lambda rows, fitted: len(fitted.points))
    names = ["rough-ard", "linear"]
    rough, linear = ExactProcessClassifier(kernels=names, random_state=0).fit(*table)._processes
    assert (len(rough.points), len(linear.points)) == (90, 40)
    monkeypatch.setattr(ClassRows, "score", lambda rows, fitted: -len(fitted.points))
    worse, _ = ExactProcessClassifier(kernels=names, random_state=0).fit(*table)._processes
    assert len(worse.points) == 40
    monkeypatch.setattr(class_process, "LEAST_REFINED", 2.0)
    first, _ = ExactProcessClassifier(kernels=names, random_state=0).fit(*table)._processes
    assert len(first.points) == 40
    assert np.abs(first.theta - rough.theta).max() > 0.01


def test_two_rows_are_enough():
    p = ExactProcessClassifier(random_state=0).fit([[0.0], [1.0]], [0, 1]).predict_proba([[1.0]])
    assert 0.5 < p[0, 1] < 1.0


def test_few_rows_that_agree_leave_some_doubt():
    """A row speaks for the shares of the classes, whatever the inputs."""
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    p = ExactProcessClassifier(random_state=0).fit(X, y).predict_proba([[-50.0], [50.0]])
    assert 0.07 < p.min() < p.max() < 0.93


@pytest.mark.slow
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


@pytest.mark.parametrize("n", [60, 67, 413])
def test_folds_do_not_depend_on_the_names_of_classes(n):
    codes = np.random.default_rng(1).integers(0, 3, n) ** 2
    fold = folds_of(codes, np.random.default_rng(0))
    for names in itertools.permutations(range(5)):
        assert_array_equal(folds_of(np.array(names)[codes], np.random.default_rng(0)), fold)


# ---- what changes nothing ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_weight_is_a_number_of_repetitions(table):
    X, y = (a[:50] for a in table)
    weight = np.arange(50) % 3
    weighted = ExactProcessClassifier(kernels=KERNELS, random_state=0)
    weighted.fit(X, y, sample_weight=weight)
    order = np.random.default_rng(0).permutation(np.arange(50).repeat(weight))
    repeated = clone(weighted).fit(X[order], y[order])
    assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))
    assert_array_equal(weighted.predict_std(X), repeated.predict_std(X))
    held_out = weighted.held_out_.log_densities(len(X))
    assert_array_equal(np.isnan(held_out), weight == 0)
    assert_array_equal(held_out[order], repeated.held_out_.log_density)


@pytest.mark.slow
def test_units_and_names_change_little(fitted, table):
    X, y = table
    scale = np.geomspace(1e-3, 1e3, 5)
    other = clone(fitted).fit(X * scale + 5.0, np.array(["c", "a", "b"])[y])
    query = X[:20] + 0.1
    expected = fitted.predict_proba(query)[:, [1, 2, 0]]
    assert_allclose(other.predict_proba(query * scale + 5.0), expected, atol=0.02)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(fitted, table):
    again = clone(fitted).fit(*table)
    assert_array_equal(again.predict_proba(table[0]), fitted.predict_proba(table[0]))
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict_std(table[0]), fitted.predict_std(table[0]))


@pytest.mark.slow
def test_an_accelerator_gives_the_same_classes(table, pretend):
    X, y = (a[:40] for a in table)
    model, other = (
        ExactProcessClassifier(kernels=["rough-ard"], device=device, random_state=0).fit(X, y)
        for device in (None, "pretend")
    )
    assert_allclose(other.predict_proba(X), model.predict_proba(X), rtol=1e-4)
    assert_allclose(other.predict_std(X), model.predict_std(X), rtol=1e-3)


# ---- predictions -------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_far_away_is_less_certain(table):
    X, y = table
    model = ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, y)
    near, far = model.predict_std(X), model.predict_std(X + 3.0)
    assert far.mean() > 2.0 * near.mean()
    assert np.isfinite(model.predict_proba(X * 1e160)).all()


def fixed_process(n_classes, n=25, seed=0):
    """Return predictions of a fixed kernel for rows with weights, rows to predict, and both."""
    X, codes, weight = some_rows(n, 2, n_classes, seed)
    X, fold = torch.from_numpy(X), torch.zeros(n, dtype=torch.int64)
    offset = torch.linspace(-0.3, 0.3, n_classes).double()
    points = torch.arange(n)
    rows = ClassRows(X, codes, weight, fold, points, offset)
    kernel = ConstantKernel(4.0, "fixed") * RBF(1.2)
    features = PointFeatures(kernel, X)
    one = torch.ones(1).double()
    problems = Problems(features(X), rows.labels, weight[:, None], one, offset)
    U, _ = find_modes(problems)
    v, unknown = features.coefficients(U[:, 0]), np.zeros((n, n_classes))
    fitted = FittedProcess("rbf", np.empty(0), kernel, points, v, 1.3, unknown)
    new = np.random.default_rng(9).standard_normal((12, 2))
    return AtMode(rows, fitted), torch.from_numpy(new)


def dense_laplace(model, new):
    """Mode (N*, C) of f, and covariance (N*, C, C), by K and W of all classes at once."""
    rows, kernel = model.rows, model.fitted.kernel
    X, C, n = rows.X.numpy(), len(rows.offset), len(rows.X)
    f = kernel(X) @ model.fitted.coefficients.numpy()
    p = softmax(rows.offset.numpy() + f, 1)
    K = np.kron(np.eye(C), kernel(X))  # classes outside
    W = np.einsum("nc,ce->nce", p, np.eye(C)) - np.einsum("nc,ne->nce", p, p)
    W *= rows.weight.numpy()[:, None, None]
    W = np.einsum("nce,nm->cnem", W, np.eye(n)).reshape(C * n, C * n)
    shrunk = W @ np.linalg.inv(np.eye(C * n) + K @ W)  # (K + W⁻¹)⁻¹, where W is singular
    star = np.stack([np.kron(np.eye(C), k) for k in kernel(new, X)])  # (N*, C, Cn)
    prior = kernel.diag(new)[:, None, None] * np.eye(C)
    return kernel(
        new, X
    ) @ model.fitted.coefficients.numpy(), prior - star @ shrunk @ star.swapaxes(1, 2)


def recentred(logits, p):
    """Return deviations of softmax of draws (S, N, C), which move until their mean is p."""
    shift, step = np.zeros_like(p), np.inf
    while np.abs(step).max() > 1e-7:  # Berry, Levinsohn & Pakes, 1995
        step = np.log(p) - np.log(softmax(logits + shift, 2).mean(0))
        shift += step
    return softmax(logits + shift, 2).std(0)


@pytest.fixture
def all_features(monkeypatch):
    tight(monkeypatch)
    monkeypatch.setattr("skgpstoch.methods.automatic.class_modes.NEGLIGIBLE_VARIANCE", 1e-13)


def factors(model, new):
    rows, features = model.rows, model.features
    pi = torch.softmax(rows.offset + features.f(rows.X, model.coefficients), 1)
    phi = features(new)
    contrasts = Contrasts(features(rows.X), pi, rows.weight)
    return contrasts.factor(phi, features.residual_variance(new, phi))


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_contrasts_vary_as_in_laplaces_approximation(n_classes, all_features):
    model, new = fixed_process(n_classes)
    _, cov = dense_laplace(model, new.numpy())
    A = factors(model, new).numpy()
    centre = np.eye(n_classes) - 1.0 / n_classes
    assert_allclose(A @ A.swapaxes(1, 2), centre @ cov @ centre, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_many_classes_make_no_matrices_of_classes(monkeypatch):
    """For each row: gigabytes for 1,000 classes."""
    generator = torch.Generator().manual_seed(0)
    F = torch.randn(200, 3, generator=generator).double()
    pi = torch.full((200, 300), 1.0 / 300.0).double()
    given = F, pi, torch.ones(200).double()
    A = Contrasts(*given).factor(F[:5], torch.ones(5).double())
    assert A.shape == (5, 300)
    moments = (probability_moments(A.flip(1).log(), each) for each in (A, torch.diag_embed(A)))
    for few, many in zip(*moments, strict=True):
        assert_allclose(few, many, rtol=1e-10)
    monkeypatch.setattr("skgpstoch.methods.automatic.class_mixture.MOST_KEPT", 0)
    assert torch.equal(A, Contrasts(*given).factor(F[:5], torch.ones(5).double()))


def test_two_classes_are_one_function(all_features):
    """As the drop-in has it, of a kernel that is twice as large."""
    model, new = fixed_process(2)
    model.rows = model.rows._replace(offset=torch.zeros(2).double())
    rows, one = model.rows, torch.ones(1).double()
    features = model.features
    U, _ = find_modes(
        Problems(features(rows.X), rows.labels, rows.weight[:, None], one, rows.offset)
    )
    model.coefficients = features.coefficients(U[:, 0])
    kernel = ConstantKernel(8.0, "fixed") * RBF(1.2, "fixed")
    of_one = GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=500)
    of_one.fit(rows.X.numpy(), rows.codes.numpy(), sample_weight=rows.weight.numpy())
    mean, var = of_one.latent_mean_and_variance(new.numpy())
    A = factors(model, new)
    assert_allclose((A[:, 1] - A[:, 0]).square().sum(1), var, rtol=1e-3)
    f = model.features.f(new, model.coefficients)
    assert_allclose(f[:, 1] - f[:, 0], mean, atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_deviations_are_those_of_draws_about_the_mode(n_classes, all_features):
    """Of Laplace's posterior, where log odds move until the mean is what is reported."""
    model, new = fixed_process(n_classes)
    mode, cov = dense_laplace(model, new.numpy())
    z = np.random.default_rng(0).standard_normal((4000, 12, n_classes))
    root = np.linalg.cholesky(cov + 1e-10 * np.eye(n_classes))
    f = mode + (root @ z[..., None])[..., 0]
    std, t, offset = model.predict_std(new), model.fitted.confidence, model.rows.offset.numpy()
    expected = recentred(t * f + offset, softmax(t * mode + offset, 1))
    expected *= 1.0 - model.rows.share  # which the shares of the classes have, whatever f
    assert_allclose(np.median(std / expected), 1.0, atol=0.08)
    assert_allclose(std, expected, rtol=0.35)


def test_more_unknowns_are_independent_functions(monkeypatch):
    model, new = fixed_process(3)
    joint = model.predict_std(new)
    monkeypatch.setattr("skgpstoch.methods.automatic.class_mixture.MOST_UNKNOWNS", 3)
    ratio = model.predict_std(new) / joint
    assert 1.0 < np.median(ratio) < 1.4


@pytest.mark.slow
def test_no_deviation_is_more_than_a_mean_allows(fitted, table):
    X, y = table
    query = np.concatenate([X, 10.0 * X, 1e6 * X])
    two = ExactProcessClassifier(kernels=KERNELS, random_state=0).fit(X[y < 2], y[y < 2])
    for model in (fitted, two):
        p, std = model.predict_proba(query), model.predict_std(query)
        assert (std[:90] > 0.0).all()
        assert (std <= np.sqrt(p * (1.0 - p)) * (1.0 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_deviations_move_with_log_odds(factor):
    rng = np.random.default_rng(0)
    f = rng.standard_normal((4000, 20)) * np.geomspace(0.01, 1.0, 20) + rng.standard_normal(20)
    before, p = expit(f), expit(factor * f.mean(0))
    expected = recentred(factor * np.stack([0.0 * f, f], -1), np.stack([1.0 - p, p], -1))
    mean, std = before.mean(0), before.std(0)
    moments = (np.stack([1.0 - a, a], -1) for a in (p, mean))
    found = deviation_about(*moments, np.stack([std, std], -1), factor)
    assert_allclose(found, expected, rtol=0.25)
    assert_allclose(found[:8], expected[:8], rtol=0.01)


@pytest.mark.slow
def test_a_more_confident_mixture_has_other_deviations(fitted, table):
    """The factor of the mixture's log odds counts, as in its probabilities."""
    X, _ = table
    less, more = clone(fitted).fit(*table), fitted
    less._confidence, ratio = 1e-3 * fitted._confidence, 1e-3
    std = less.predict_std(X)
    assert std.max() < 2.0 * ratio < more.predict_std(X).mean()


def test_little_time_has_one_kernel(table):
    model = ExactProcessClassifier(max_time=1e-6, random_state=0).fit(*table)
    assert len(model.kernels_) == 1
    assert_array_equal(model.weights_, [1.0])


def test_what_cannot_be_fitted(table):
    X, y = table
    with pytest.raises(ValueError, match=r"kernels must be 'auto' or some of \['rough-ard'"):
        ExactProcessClassifier(kernels=["cubic"]).fit(X, y)
    with pytest.raises(ValueError, match="needs at least two classes, but y has one class"):
        ExactProcessClassifier().fit(X, np.zeros(90))
    with pytest.raises(ValueError, match="needs at least two classes, but y has one class"):
        ExactProcessClassifier().fit(X, y, sample_weight=(y == 1).astype(float))


def test_points_are_rows():
    """Importances of an edited file, with more points, took gigabytes."""
    rows = ClassRows(*(torch.zeros(3, dtype=torch.long),) * 4, torch.zeros(9), torch.zeros(2))
    with pytest.raises(ValueError, match="3 rows have 9 points"):
        rows.Z  # noqa: B018


def test_one_row_of_a_level_teaches_little():
    """A level of one row was √n deviations from the others, and had the class of that row."""
    rng = np.random.default_rng(1)
    rows = np.c_[rng.normal(size=300), np.arange(300) == 7]
    share = 1.0 / (1.0 + np.exp(0.8 - np.sin(2.0 * rows[:, 0])))
    model = ExactProcessClassifier(random_state=0).fit(rows, rng.random(300) < share)
    chances = [
        model.predict_proba(np.c_[rows[:, 0], np.full(300, level)])[:, 1] for level in (0, 1)
    ]
    usual, rare = (np.log(p / (1.0 - p)).mean() for p in chances)
    assert abs(rare - usual) < 1.3


def test_levels_are_two_deviations_apart():
    A = np.c_[np.arange(100.0) == 3, np.arange(100.0) % 2, np.arange(100.0), np.full(100, 7.0)]
    plain = Scaling.standard(A)
    offset, scale = plain.with_near_levels(A)
    assert_array_equal(offset, plain.offset)
    assert_array_equal(scale, [0.5, 0.5, plain.scale[2], 1.0])


def test_inputs_that_matter_are_found_among_many():
    """With one length-scale for all, the log loss was .39 (now .18)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 80))
    c = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(500) > 0.0
    model = ExactProcessClassifier(random_state=0).fit(X[:150], c[:150])
    assert log_loss(c[150:], model.predict_proba(X[150:])) < 0.25
