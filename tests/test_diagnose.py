"""What a fit says of itself: findings, the warnings that come of them, and the table."""

import itertools
import pickle
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ESTIMATORS, IMAGES, INDUCING, OF_OTHERS, constructor, fitted_once, named
from families import by_default, by_family, cases_by_family, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from pages import DOC, run_page
from scipy import special
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning, NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, learning_curve

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    DeepKernelEnsembleClassifier,
    DLMRegressor,
    FITCRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    NNGPClassifier,
    NNGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    SolveGPRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.data.findings import Diagnosis, Finding, cells
from skgpstoch.data.rows import Data
from skgpstoch.estimators.context import judged
from skgpstoch.maths.exact_solver import ExactSolver
from skgpstoch.methods.automatic.automatic import diagnosis_of
from skgpstoch.training.history import History
from skgpstoch.training.recipes import error_findings, findings, fitted_errors, row_findings
from skgpstoch.training.recipes.plan import Training
from skgpstoch.training.recipes.row_findings import of_far_count


def only(found):
    (finding,) = found
    return finding


def named_finding(model, name):
    return only(finding for finding in model.diagnose() if finding.name == name)


def said_by(fit):
    """Messages of all warnings, each as often as it came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(warning.message) for warning in caught]


@pytest.fixture(scope="module")
def waves():
    """500 rows of a sine of five periods."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 1))
    return X, np.sin(30 * X[:, 0]) + 0.1 * rng.standard_normal(500)


def noisy(n, noise):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(X[:, 0]) + X[:, 1] + noise * rng.standard_normal(n)


# ---- the table ---------------------------------------------------------------------------------


def some_findings():
    fine = Finding("few rows", "X", 50.0, 20.0)
    note = Finding("noise", "y", 1e-8, 1e-8, "note", "Noise is low.", "Look.")
    problem = Finding("points", "n_inducing", 9.0, 4.0, "problem", "Too <few>.", "Raise it.")
    return fine, note, problem


def test_a_diagnosis_is_a_tuple_the_worst_first():
    fine, note, problem = some_findings()
    diagnosis = Diagnosis([fine, problem, note])
    assert diagnosis == (problem, note, fine)
    assert diagnosis.problems == [problem]
    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis
    assert type(pickle.loads(pickle.dumps(diagnosis))) is Diagnosis
    assert [f.where for f in diagnosis.within("gp")] == ["gp: n_inducing", "gp: y", "gp: X"]


def test_a_diagnosis_prints_as_a_table():
    text = str(Diagnosis(some_findings()))
    assert text == repr(Diagnosis(some_findings()))
    lines = text.splitlines()
    assert lines[0].split() == ["finding", "where", "value", "problem", "if", "severity"]
    assert lines[1].split() == ["points", "n_inducing", "9", ">4", "problem"]
    assert lines[5:] == [
        "points (n_inducing): Too <few>. Raise it.",
        "noise (y): Noise is low. Look.",
    ]
    html = Diagnosis(some_findings())._repr_html_()
    assert "Too &lt;few&gt;. Raise it." in html
    assert html.count("<tr>") == 4


def test_a_diagnosis_is_a_frame():
    frame = Diagnosis(some_findings()).to_frame()
    assert list(frame["severity"]) == ["problem", "note", "fine"]
    assert frame["value"].tolist() == [9.0, 1e-8, 50.0]
    assert list(Diagnosis().to_frame().columns) == list(frame.columns)


def test_each_problem_is_warned_of_once():
    _, note, problem = some_findings()
    said = said_by(Diagnosis([problem, note, problem]).warn)
    assert said == ["Too <few>. Raise it."]


# ---- each finding, where it is true and where it is not ----------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "learns", "severity"),
    [
        (9, True, "problem"),
        (19, True, "problem"),
        (20, True, "fine"),
        (2, False, "fine"),
    ],
)
def test_few_rows(n_rows, learns, severity):
    assert only(row_findings.of_rows(n_rows, learns)).severity == severity


@pytest.mark.parametrize(("d", "severity"), [(20, "fine"), (21, "note"), (41, "problem")])
def test_many_features(d, severity):
    assert only(row_findings.of_features(20, d)).severity == severity


@pytest.mark.parametrize(
    "kernel",
    [
        ConstantKernel(1e-2, (1e-2, 1.0)) * RBF([1.0, 5.0], [(1e-1, 1e1), (5e-1, 5.0)]),
        RBF(2.0, "fixed") + WhiteKernel(1.0, (1e-5, 1.0)),
        RBF(2.0) + WhiteKernel(1.0),
    ],
)
def test_bounds_are_told_in_the_words_of_scikit_learn(kernel):
    theirs = said_by(kernel._check_bounds_params)
    ours = [f for f in findings.of_bounds(kernel, True) if f.severity == "problem"]
    assert [f.message for f in ours] == theirs
    assert all(f.category is ConvergenceWarning for f in ours)


def test_of_a_default_kernel_an_input_that_does_not_matter_is_noted():
    kernel = 1.0 * RBF([1.0, 1e5, 1e-5])
    ignored, short = findings.of_bounds(kernel, False)
    assert (ignored.severity, ignored.where) == ("note", "k2__length_scale[1]")
    assert "column 1 of X" in ignored.message
    assert short.severity == "problem"


def test_noise_that_is_taken_for_f_is_told():
    """With ten length-scales, pure noise has a likely f without noise: R² was −1,100 in silence."""
    rng = np.random.default_rng(70)
    X, y = rng.normal(size=(60, 10)), rng.normal(size=60)
    with pytest.warns(ConvergenceWarning, match="rows tell little of each other: .* y is noisy"):
        QSGPRegressor(max_iter=1, random_state=0).fit(X, y)


@pytest.mark.parametrize("is_weighted", [True, False])
def test_errors_that_average_0_by_weight_are_not_alike(is_weighted):
    """Weights of 1 and 5 for rows above and below f: each error was like its neighbour's."""
    rng = np.random.default_rng(0)
    X, is_above = rng.normal(size=(400, 1)), rng.random(400) < 5 / 6
    error = np.where(is_above, 1.0, -1.0)[:, None] * rng.uniform(0.5, 1.5, (400, 1))
    weight = np.where(is_above, 1.0, 5.0) if is_weighted else np.ones(400)
    pairs = error_findings.pairs_of(X, weight, lambda rows: error[rows])
    found = only(error_findings.of_errors(*pairs, np.ones(1), "advice", True))
    assert (found.severity == "fine") == is_weighted


def test_noise_at_its_bound_is_a_problem_of_a_kernel_that_is_given():
    level = torch.tensor([0.1, 1e-8], dtype=torch.float64)
    found = only(findings.of_noise(level, (1e-8, 1e2), True))
    assert found.severity == "problem"
    assert "intervals are far too narrow" in found.text
    assert "AutoGaussianProcessRegressor" in found.advice
    assert only(findings.of_noise(level, (1e-8, 1e2), False)).severity == "note"
    assert only(findings.of_noise(level, (1e-8, 1e2), False, 0.61)).severity == "note"
    apart = only(findings.of_noise(level, (1e-8, 1e2), False, 0.59))
    assert apart.severity == "problem"
    assert "f has a correlation of 0.59 with f at the nearest row" in apart.text
    assert only(findings.of_noise(level[:1], (1e-8, 1e2), False, 0.1)).severity == "fine"
    assert only(findings.of_noise(level[:1], (1e-8, 1e2), True)).severity == "fine"
    assert not list(findings.of_noise(level, (1e-8, 1e-8), True))  # is not learned
    most = only(findings.of_noise(torch.tensor([0.1, 1e2]), (1e-8, 1e2), False))
    assert most.severity == "note"
    assert "is at its upper bound" in most.text
    assert "normalize_y=True" in most.advice


@pytest.mark.parametrize(("scale", "severity"), [(1e-6, "fine"), (0.1, "problem")])
def test_errors_that_are_negligible_beside_y_have_no_heavy_tails(scale, severity):
    """ADMM on a sine without noise was said to follow outliers."""
    r = np.random.default_rng(0)
    X, error = r.normal(size=(60, 2)), scale * r.normal(size=(60, 1))
    error[:3] *= 50.0
    Y = X[:, :1] + error
    rows = error_findings.JudgedRows.of(np.arange(60), error, X, Y)
    assert only(error_findings.of_tails(error, rows, True)).severity == severity


@pytest.mark.parametrize("constant", [ConstantKernel(), ConstantKernel(1.0, "fixed")])
def test_a_variance_far_below_that_of_y_is_told_as_such(constant):
    """The warning blamed the length-scales, and to standardise X changed nothing."""
    r = np.random.default_rng(0)
    X = r.uniform(-2.0, 2.0, (60, 2))
    y = 1e6 * (np.sin(X[:, 0]) + X[:, 1] + 0.2 * r.normal(size=60))
    kernel = constant * RBF() + WhiteKernel()
    with pytest.warns(UserWarning, match="its variance is far smaller than that of y") as told:
        GaussianProcessRegressor(kernel).fit(X, y)
    assert "normalize_y=True" in str(told[0].message)
    GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)  # as told


def test_a_search_that_began_too_far_away_is_told_beside_its_bound():
    """Only the bound was told, and larger bounds changed nothing."""
    r = np.random.default_rng(1)
    X = r.uniform(0.0, 60.0, (300, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.2 * r.normal(size=300)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        GaussianProcessRegressor(1.0 * RBF(30.0) + WhiteKernel()).fit(X, y)
    texts = [str(each.message) for each in told]
    for part in ("Increasing the bound", "Start from another length_scale"):
        assert any(part in text for text in texts)


@pytest.mark.slow
def test_a_fit_without_noise_is_warned_of():
    """Of twenty rows and twelve scales, where a fifth of the variance is noise."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20, 12))
    y = X[:, 0] + 0.5 * rng.normal(size=20)
    scales = np.full(12, 3.0)
    said = said_by(lambda: SVGPRegressor(1.0 * Matern(scales, nu=1.5), random_state=0).fit(X, y))
    assert any("is at its lower bound, 1e-08, or next to it" in each for each in said)
    noisy = 1.0 * Matern(scales, nu=1.5) + WhiteKernel(0.1, (1e-2, 10.0))
    said = said_by(lambda: SVGPRegressor(noisy, random_state=0).fit(X, y))
    assert not any("noise variance" in each for each in said)


@pytest.mark.parametrize(
    ("curve", "status", "severity"),
    [
        (np.linspace(5.0, 0.0, 20), "max_iter", "problem"),
        (np.linspace(5.0, 0.0, 20), "converged", "fine"),
        (np.linspace(5.0, 0.0, 5), "max_iter", "problem"),
        ([5.0, 0.0], "max_iter", "problem"),
        ([5.0], "max_iter", "note"),  # nobody can tell
        (np.full(3, 5.0), "max_iter", "fine"),
        (np.exp(-np.arange(40.0)), "max_iter", "fine"),
        (np.linspace(5.0, 0.0, 20), "interrupted", "note"),
    ],
)
def test_training_that_still_improves(curve, status, severity):
    history = History(loss_curve=list(curve), status=status)
    found = only(findings.of_training(history, 20))
    assert found.severity == severity
    assert ("max_iter=20" in found.message) == (severity == "problem" or len(curve) == 1)


def test_scores_of_other_rows_say_more_than_losses():
    history = History(list(np.linspace(5.0, 0.0, 20)), [1.0] * 20, status="max_iter")
    assert only(findings.of_training(history, 20)).severity == "fine"


def test_points_that_are_cut():
    assert not list(findings.of_number("n_inducing", "auto", 50, 50))
    assert not list(findings.of_number("n_inducing", 50, 50, 50))
    cut = only(findings.of_number("n_inducing", 51, 50, 50))
    assert (cut.severity, cut.value, cut.limit) == ("problem", 51, 50)
    merged = only(findings.of_number("n_inducing", 51, 50, 60))  # some rows are equal
    assert merged.severity == "note"


SIGHTS = {  # scale of X, the fitted kernel, the kernel at the start: severities
    "healthy": (1.0, RBF(1.0), RBF(0.5), "fine", "fine"),
    "stuck far above": (1e-6, RBF(1.0), RBF(1.0), "problem", "fine"),
    "stuck far below": (1e6, RBF(1.0), RBF(1.0), "fine", "problem"),
    "nothing found": (1.0, 1e-8 * RBF(1.0), RBF(1.0), "note", "fine"),
    "shrunk": (1.0, RBF(1e-5), None, "fine", "note"),
    "linear": (1e-6, 1e12 * RBF(1.0), 1.0 * RBF(1.0), "fine", "fine"),
    "linear exactly": (1.0, DotProduct(), DotProduct(), "fine", "fine"),
    "with noise": (1e-6, RBF(1.0) + WhiteKernel(), RBF(1.0) + WhiteKernel(), "problem", "fine"),
}


@pytest.mark.parametrize("case", SIGHTS)
def test_what_the_kernel_sees(case):
    scale, fitted, given, of_variation, of_nearest = SIGHTS[case]
    X = scale * np.random.default_rng(0).uniform(-3, 3, (60, 2))
    variation, nearest = findings.of_sight(fitted, given, X, 1.0)
    assert (variation.severity, nearest.severity) == (of_variation, of_nearest)
    assert ("StandardScaler" in variation.advice) == (of_variation == "problem")


def test_rows_that_are_all_the_same_are_noted():
    found = only(findings.of_sight(RBF(1.0), RBF(1.0), np.ones((20, 2)), 1.0))
    assert (found.severity, found.where) == ("note", "X")


def test_of_many_rows_only_some_are_compared(monkeypatch):
    """Of which the nearest is no neighbour."""
    X = np.arange(1000.0)[:, None]
    monkeypatch.setattr(findings, "COMPARED_NUMBERS", 100)
    variation = only(findings.of_sight(RBF(1.0), RBF(1.0), X, 1.0))
    assert variation.name == findings.VARIATION


def test_inputs_of_other_units():
    X = np.random.default_rng(0).uniform(-3, 3, (60, 3)) * [1.0, 1e-4, 1.0]
    found = only(findings.of_inputs(2.0 * Matern(1.0, nu=1.5), X))
    assert (found.severity, found.where) == ("problem", "X[:, 1]")
    assert "columns 1 of X" in found.message
    assert only(findings.of_inputs(RBF([1.0, 1e-4, 1.0]), X)).severity == "fine"
    assert only(findings.of_inputs(RBF(1.0), X[:, [0, 2]])).severity == "fine"
    constant = np.column_stack([X[:, 0], np.ones(60)])  # which nobody can see
    assert only(findings.of_inputs(RBF(1.0), constant)).severity == "fine"
    assert not list(findings.of_inputs(RBF(1.0) + DotProduct(), X))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 0.02])
@by_default("0.5")
def test_models_that_rows_near_each_other_predict_better_than(scale):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (800, 1))
    y = np.sin(100 * X[:, 0]) + 0.3 * rng.standard_normal(800)
    gp = GaussianProcessRegressor(RBF(scale, "fixed") + WhiteKernel(0.1))
    sparse = SVGPRegressor(RBF(scale, "fixed"), n_inducing=80, random_state=0)
    for model in (gp, sparse):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = named_finding(model.fit(X, y), findings.NEARBY)
        assert (found.severity == "fine") == (scale < 0.1) == (found.value > found.limit)
        assert found.severity == "fine" or "Rows near each other predict better" in found.text
        assert found.severity == "fine" or "finds length-scales about 0.031 times" in found.text


def test_noise_is_not_predicted_by_rows_near_each_other():
    X, y = np.random.default_rng(0).standard_normal((2, 300, 1))
    rows = np.arange(0, 300, 2)
    follows = 0.9 * y[rows]  # errors of a fit that is not constant
    assert only(error_findings.of_local(rows, follows, X, y)).value > 1.0
    copies = np.tile(X, (2, 1)), np.tile(y, (2, 1))  # copies of a row do not predict it
    assert only(error_findings.of_local(rows, follows, *copies)).value > 1.0
    assert only(error_findings.of_local(rows, y[rows], X, y)).severity == "fine"


def test_means_of_near_rows_are_weighted():
    r = np.random.default_rng(0)
    X, Y, w = r.normal(size=(200, 2)), r.normal(size=(200, 2)), r.uniform(0.0, 2.0, 200)
    Z = (X - X.mean(0)) / X.std(0)
    distance = np.linalg.norm(Z[3] - Z, axis=1)
    near = np.argsort(distance)[1:11]
    expected = np.average(Y[near], axis=0, weights=w[near])
    rows = np.array([3, 5])
    assert_allclose(error_findings.means_nearby(rows, X, Y, w)[0], expected, rtol=1e-6)
    error = r.normal(size=(200, 2))
    found, same = (
        only(error_findings.of_local(np.arange(200), error, X, Y, weight=weight))
        for weight in (w, 7.0 * w)
    )
    local = Y - error_findings.means_nearby(np.arange(200), X, Y, w)
    unit = np.abs(error).max(0)
    ratio = (w @ np.square(local / unit)).sum() / (w @ np.square(error / unit)).sum()
    assert found.value == pytest.approx(ratio, rel=1e-6)
    assert found.limit == pytest.approx(same.limit)
    assert found.value == pytest.approx(same.value)


@pytest.mark.parametrize("kind", ["survey", pytest.param("balanced", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_weighted_classes_are_judged_by_near_rows_too(kind):
    """No finding of classes was made of weighted rows."""
    r = np.random.default_rng(0)
    X = r.uniform(0, 1, (400, 1))
    y = np.sin(30 * X[:, 0]) + 0.2 * r.normal(size=400) > 0.6
    w = r.uniform(0.5, 1.5, 400) if kind == "survey" else np.where(y, 0.5 / y.mean(), 0.7)
    for n_inducing in (3, 60):
        model = SVGPClassifier(n_inducing=n_inducing, random_state=0)
        said = said_by(lambda m=model: m.fit(X, y, sample_weight=w))
        assert any("ows near each other" in text for text in said) == (n_inducing == 3)
        assert "shares of classes" in {finding.name for finding in model.diagnose()}
        Y = np.eye(2)[y.astype(int)]
        error = Y - model.predict_proba(X)
        local = Y - error_findings.means_nearby(np.arange(400), X, Y, w)
        ratio = (w @ np.square(local)).sum() / (w @ np.square(error)).sum()
        assert named_finding(model, findings.NEARBY).value == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_certainty_of_classes_by_enumeration(factor):
    """Labels drawn as the probabilities say are as likely as they expect; others are less."""
    r = np.random.default_rng(0)
    P = r.dirichlet(np.ones(3), 4000)
    codes, w = (P.cumsum(1) < r.random((4000, 1))).sum(1), r.dirichlet(np.ones(4000))
    p = P**factor / (P**factor).sum(1, keepdims=True)
    found = fitted_errors.of_certainty(p, codes, w, True)
    surprise = [[-np.log(each) for each in row] for row in p]
    expected = sum(w * [row @ s for row, s in zip(p, surprise, strict=True)])
    each = [w[i] * surprise[i][codes[i]] for i in range(4000)]
    own = [w[i] * (P_i @ s) for i, (P_i, s) in enumerate(zip(p, surprise, strict=True))]
    most = max(e - o for e, o in zip(each, own, strict=True))
    assert found.value == pytest.approx(sum(each) - expected - most, abs=1e-12)
    variance = [row @ np.square(s) - (row @ s) ** 2 for row, s in zip(p, surprise, strict=True)]
    assert found.limit == pytest.approx(max(0.03, 4.0 * np.sqrt(np.square(w) @ variance)))
    assert (found.severity == "problem") == (factor == 2.0)


@pytest.mark.parametrize("is_told_by_x", [False, True])
@slow_cases("^False$")
def test_classes_that_x_does_not_tell_are_too_certain(is_told_by_x):
    """Log losses of .47 to .66 nats above that of shares, in silence, as classes were balanced."""
    r = np.random.default_rng(10)
    X = r.uniform(-3, 3, (400, 4))
    y = r.random(400) < (special.expit(3.0 * X[:, 0]) if is_told_by_x else 0.5)
    model = QSGPClassifier(n_components=200, random_state=0)
    said = said_by(lambda: model.fit(X, y))
    assert any("probabilities of new rows are too certain" in t for t in said) != is_told_by_x


def test_counts_of_labels_are_not_called_too_certain():
    """A row of many labels that is left out takes them all along, at 20 places of a sine."""
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    k = np.random.default_rng(0).binomial(100, 0.5 + 0.45 * np.sin(3.0 * X[:, 0]))
    labels, counts = np.repeat([1, 0], 20), np.r_[k, 100 - k]
    model = SVGPClassifier(random_state=0)
    assert said_by(lambda: model.fit(np.r_[X, X], labels, sample_weight=counts)) == []


@pytest.mark.slow
def test_huge_weights_of_classes_are_judged_as_they_count():
    """Training divides them; as they were given, f seemed to follow single labels."""
    r = np.random.default_rng(0)
    X = r.uniform(0, 1, (150, 1))
    y = np.sin(9 * X[:, 0]) + 0.5 * r.normal(size=150) > 0.6
    w, values = r.uniform(0.5, 1.5, 150), []
    for unit in (w @ w / w.sum(), 1.0 / 2e5):
        model = SVGPClassifier(n_inducing=10, random_state=0)
        said = said_by(lambda m=model, unit=unit: m.fit(X, y, sample_weight=w / unit))
        assert sum("divided by" in text for text in said) == len(said) == (unit < 0.1)
        values.append(named_finding(model, "shares of classes").value)
    assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-4)


def test_gain_of_a_shift_is_that_of_its_best_factor():
    r = np.random.default_rng(0)
    error, shift, w = r.normal(size=(30, 2)), r.normal(size=(30, 2)), r.dirichlet(np.ones(30))
    shift += error
    factors = np.linspace(0.0, 2.0, 2001)
    gains = [w @ (np.square(error) - np.square(error - c * shift)).sum(1) for c in factors]
    found = w @ error_findings.best_gain(error, shift, w)
    assert found == pytest.approx(max(gains), rel=1e-5)
    assert (error_findings.best_gain(error, -shift, w) == 0.0).all()


@pytest.mark.parametrize("solver", ["lbfgs", "auto"])
@slow_cases("lbfgs")
@pytest.mark.slow
def test_a_constant_where_near_rows_are_of_like_classes_is_told(solver):
    """With few points in 64 columns the bound is best at no f at all, and nothing said so."""
    rng = np.random.default_rng(10)
    y = rng.integers(0, 3, 200)
    X = 0.3 * rng.standard_normal((200, 8, 8))
    for image, kind in zip(X, y, strict=True):
        i, j = rng.integers(0, 6, 2)
        image[i : i + (1, 3, 2)[kind], j : j + (3, 1, 2)[kind]] += 2.0
    model = SVGPClassifier(n_inducing=32, solver=solver, random_state=0)
    said = said_by(lambda: model.fit(X.reshape(200, -1), y))
    is_constant = np.ptp(model.predict_proba(X.reshape(200, -1)), axis=0).max() < 0.01
    assert any("predicts almost the same at all rows" in text for text in said) == is_constant
    assert is_constant == (solver == "lbfgs")  # "auto" starts where some rows are most likely


@pytest.mark.parametrize("cls", [SVGPRegressor, SolveGPRegressor, FITCRegressor])
@slow_cases("Solve")
def test_rows_drawn_with_replacement_are_told(cls):
    """As BaggingRegressor draws them; copies say that y has no noise, and few fits told."""
    r = np.random.default_rng(3)
    X = r.normal(size=(150, 3))
    y = 2.0 * np.sin(X[:, 0]) + X[:, 1] + 0.2 * r.normal(size=150)
    rows, times = np.unique(r.integers(0, 150, 150), return_counts=True)
    model, again = cls(random_state=0), np.repeat(rows, times)
    tables = [(X[again], y[again])]
    tables += [(X[rows], y[rows], times.astype(float))] * (cls is not FITCRegressor)
    for table in tables:
        (text,) = said_by(lambda table=table: model.fit(*table))
        assert f"A distinct row counts {times.mean():.3g} times on average" in text
    weight = [times / times.mean()] * (cls is not FITCRegressor)
    assert said_by(lambda: model.fit(X[rows], y[rows], *weight)) == []
    assert model.noise_variance_ == pytest.approx(0.04, rel=0.6)


@pytest.mark.slow
def test_networks_at_few_places_are_told():
    """Between 12 places with 20 rows each 90 % intervals held .49 to .72, in silence."""
    r = np.random.default_rng(0)
    X = np.repeat(np.linspace(-2.0, 2.0, 24), 10)[:, None]
    y = np.sin(2.0 * X[:, 0]) + 0.2 * r.standard_normal(240)
    model = SCGDGaussianProcessRegressor(random_state=0)
    assert not any("distinct inputs" in text for text in said_by(lambda: model.fit(X, y)))
    few = np.round(X * 2.5)  # eleven
    assert any(
        "11 distinct inputs are too few" in text for text in said_by(lambda: model.fit(few, y))
    )
    assert not any("distinct" in text for text in said_by(lambda: model.fit(X[::20], y[::20])))


@pytest.mark.parametrize("cls", [NNGPRegressor, QSGPRegressor, SVGPClassifier])
@slow_cases("QSGP")
@pytest.mark.slow
def test_rows_that_come_twice_with_another_number_are_told(cls):
    """They confirmed each other: of NNGPRegressor 90 % intervals held .67, in silence."""
    r = np.random.default_rng(0)
    X, twice = r.standard_normal((75, 3)), np.r_[:75, :75]
    y = np.sin(2.0 * X[:, 0]) + 0.3 * r.standard_normal(75)
    y = y > 0.0 if cls is SVGPClassifier else y
    numbered = np.column_stack([X[twice], r.permutation(150)])
    said = said_by(lambda: cls(random_state=0).fit(numbered, y[twice]))
    told = [text for text in said if "have a twin" in text]
    assert [text[:4] for text in told] == ["100%"]
    assert "but X[:, 3]" in told[0]
    assert not any("have a twin" in text for text in said_by(lambda: cls().fit(X, y)))


def test_the_share_of_the_noise_that_copies_leave():
    """SVGPRegressor with all rows as points is the exact process, whose leverage is known."""
    r = np.random.default_rng(2)
    X = np.sort(r.uniform(0.0, 6.0, (60, 1)), axis=0)
    y = np.sin(X[:, 0]) + 0.5 * r.normal(size=60)
    w = r.integers(1, 3, 60).astype(float)
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed") + WhiteKernel(0.1, (1e-3, 1e3))
    model = SVGPRegressor(kernel, n_inducing=60, mean="zero", normalize_y=False, random_state=0)
    found = named_finding(model.fit(X, y, w), "copies")
    K = kernel.k1(X)
    h = np.diagonal(K @ np.linalg.inv(K + np.diag(model.noise_variance_ / w))).mean()
    assert found.value == pytest.approx(w.mean() * (1 - h) / (w.mean() - h), rel=1e-3)
    error = y - model.predict(X)
    rss = w @ np.square(error) / w.mean()
    assert model.noise_variance_ == pytest.approx(found.value * rss / (60 * (1 - h)), rel=1e-2)
    assert "copies" not in {each.name for each in model.fit(X, y, w / w.mean()).diagnose()}


def test_rows_that_agree_by_chance_are_no_copies():
    """On a grid, y without noise is the same wherever x is."""
    r = np.random.default_rng(0)
    X = r.integers(0, 6, (300, 2)).astype(float)
    model = SVGPRegressor(random_state=0)
    assert said_by(lambda: model.fit(X, X[:, 0] + np.square(X[:, 1]))) == []
    assert "copies" not in {each.name for each in model.diagnose()}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_of_near_rows_are_told_of_by_laplace_and_networks(n_classes):
    """scikit-learn's default kernel is fixed: log loss .46, beside .13 of 25 neighbours."""
    r = np.random.default_rng(0)
    X = r.uniform(0, 1, (300, 2))
    y = ((X[:, 0] > 0.5) ^ (X[:, 1] > 0.3)).astype(int)
    y += (n_classes == 3) & (X[:, 0] > 0.8)
    model = GaussianProcessClassifier()
    (text,) = said_by(lambda: model.fit(X, y))
    assert text.startswith("Rows near each other predict better than this model")
    Y = np.eye(n_classes)[y]
    error = Y - model.predict_proba(X)
    local = Y - error_findings.means_nearby(np.arange(300), X, Y, np.ones(300))
    ratio = np.square(local).sum() / np.square(error).sum()
    assert named_finding(model, findings.NEARBY).value == pytest.approx(ratio, rel=0.02)
    model = GaussianProcessClassifier(9.0 * RBF(0.1), optimizer=None)
    assert said_by(lambda: model.fit(X, y)) == []


@pytest.mark.parametrize("waves", [8.0, 1.0])
@slow_cases(r"^1\.0$")
def test_networks_that_miss_classes_of_near_rows_tell(waves):
    """Twenty waves of one input looked like noise to the networks, and nothing said so."""
    r = np.random.default_rng(0)
    X = r.uniform(0, 2.5 * waves, (500, 1))
    y = np.sin(2.0 * np.pi * X[:, 0]) + 0.3 * r.normal(size=500) > 0.0
    model = DeepKernelEnsembleClassifier(n_estimators=2, random_state=0)
    said = said_by(lambda: model.fit(X, y))
    is_missed = named_finding(model, findings.NEARBY).severity == "problem"
    assert is_missed == (waves == 8.0) == bool(said)


@pytest.mark.filterwarnings("ignore:Output 1 of y is 7 in all rows")
@pytest.mark.filterwarnings("ignore:Errors at neighbouring rows")
@pytest.mark.parametrize(("value", "kernel"), [(7.0, None), ([7.0, 8.0], None), (7.0, "fixed")])
def test_a_constant_output_beside_others_is_told(value, kernel):
    """It has the largest evidence without f, so R² of the other output was 0 in silence."""
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = np.column_stack([np.sin(2.0 * X[:, 0]), np.resize(value, 30)])
    kernel = RBF(1.0, kernel) + WhiteKernel(0.1, kernel) if kernel else None
    model = SVGPRegressor(kernel, n_inducing=10, max_iter=2, random_state=0).fit(X, y)
    found = [f.message for f in model.diagnose() if f.name == "constant outputs"]
    told = "Output 1 of y is 7 in all rows"
    assert [message.startswith(told) for message in found] == [True] * (value == 7.0 and not kernel)


def test_few_errors_are_alike_by_chance():
    error = np.random.default_rng(0).standard_normal((16, 1))
    nearest = 0.7 * error + np.sqrt(0.51) * error[::-1]
    noise = np.ones(1)
    few = only(error_findings.of_errors(error, nearest, noise, "Raise.", True))
    assert few.value > 0.4
    assert few.severity == "fine"
    many = (np.tile(a, (20, 1)) for a in (error, nearest))
    found = only(error_findings.of_errors(*many, noise, "Raise.", True))
    assert found.limit == pytest.approx(few.limit / np.sqrt(20))
    assert found.severity == "problem"


@pytest.mark.parametrize("spread", [0.0, 1.0])  # of the logarithm of the noise along X
def test_limit_of_errors_alike_is_that_of_chance(spread):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (400, 2))
    size = np.exp(spread * np.sin(9.0 * X[:, 0]))[:, None]
    i, j = error_findings.nearest_rows(X)
    assert len(np.unique(np.sort([i, j], axis=0), axis=1).T) == len(i)
    z = []
    for _ in range(400):
        noise = size * rng.standard_normal((400, 1))
        (found,) = error_findings.of_errors(noise[i], noise[j], np.ones(1), "Raise.", True)
        z.append(error_findings.SURE_PAIRS * found.value / found.limit)
    assert abs(np.mean(z)) < 0.2
    assert np.std(z) == pytest.approx(1.0, abs=0.12)


def test_errors_of_neighbours():
    rng = np.random.default_rng(0)
    noise, other = rng.standard_normal((2, 200, 2))
    level = np.array([1.0, np.inf])
    fine = only(error_findings.of_errors(noise, other, level, "Raise.", True))
    assert fine.severity == "fine"
    agree = only(error_findings.of_errors(noise, noise + 0.5 * other, level, "Raise.", True))
    assert (agree.severity, agree.advice) == ("problem", f"{error_findings.SHARED}Raise.")
    alone = only(error_findings.of_errors(noise[:, :1], noise[:, :1], level[:1], "Raise.", True))
    assert (alone.severity, alone.advice) == ("problem", "Raise.")
    third = only(error_findings.of_errors(noise, 0.25 * noise + other, level, "Raise.", True))
    assert (third.severity, round(third.value, 2)) == ("problem", 0.38)  # .30 may be chance
    one = noise.copy(), other.copy()
    one[0][3] = one[1][3] = 1e9  # two gross errors beside each other do not decide
    assert only(error_findings.of_errors(*one, level, "Raise.", True)).severity == "fine"
    cut = only(error_findings.of_errors(noise, noise, level, "Raise.", False))
    assert cut.severity == "note"
    assert "max_iter" in cut.advice
    small = 0.1 * noise  # beside a noise that is fixed
    assert (
        only(error_findings.of_errors(small, small, np.ones(2), "Raise.", True)).severity == "fine"
    )
    zero = np.zeros((200, 2))
    assert only(error_findings.of_errors(zero, zero, level, "Raise.", True)).value == 0.0


def test_the_nearest_row_is_another_one_in_units_of_the_columns():
    X = np.array([[0.0, 0.0], [0.0, 900.0], [1.0, 0.0], [1.0, 1000.0], [0.0, 0.0], [5.0, 3e3]])
    asked, nearest = error_findings.nearest_rows(X)
    assert_array_equal(asked, [0, 1, 3])  # the copy of the first is left out
    assert_array_equal(nearest, [2, 3, 5])
    in_other_units = error_findings.nearest_rows(X * [1e3, 1e-3])
    assert_array_equal(in_other_units, (asked, nearest))
    order = np.random.default_rng(0).permutation(500)
    rows = np.random.default_rng(1).standard_normal((500, 2))
    whole, shuffled = (Z[np.stack(error_findings.nearest_rows(Z))] for Z in (rows, rows[order]))
    assert_array_equal(whole, shuffled)


def test_what_follows_from_another_problem_is_noted():
    bound, errors = (
        Finding(name, "kernel", 1.0, 0.5, "problem", "So.", "Do.")
        for name in (findings.BOUND, findings.ERRORS)
    )
    assert findings.causes([errors]) == [errors]
    first, second = findings.causes([bound, errors])
    assert first == bound
    assert (second.severity, second.advice) == ("note", "This follows from 'at its bound'.")
    fine = Finding(findings.ERRORS, "kernel", 0.1, 0.5)
    assert findings.causes([bound, fine]) == [bound, fine]


# ---- fits --------------------------------------------------------------------------------------


def data_of(cls, sine, two_classes):
    if cls in IMAGES:
        X = np.random.default_rng(0).normal(size=(40, 16))
        return X, X[:, 0] > 0.0 if is_classifier(cls()) else X[:, 0]
    return two_classes if is_classifier(cls()) else sine


@pytest.mark.parametrize("cls", by_family("a diagnosis", ESTIMATORS))
@pytest.mark.filterwarnings("ignore:y looks noisy")
@slow_cases("NNGP", "Deep")
def test_every_estimator_has_a_diagnosis(cls, sine, two_classes):
    with pytest.raises(NotFittedError):
        cls().diagnose()
    model = fitted_once(constructor(cls)(), *data_of(cls, sine, two_classes))
    diagnosis = model.diagnose()
    assert isinstance(diagnosis, Diagnosis)
    assert {"few rows", "training", "sweeps", "iterations", "at its bound"} & {
        finding.name for finding in diagnosis
    }
    told = {"training", "missing noise"}  # of few epochs, and of kernels without noise
    assert {finding.name for finding in diagnosis.problems} <= told
    assert pickle.loads(pickle.dumps(model)).diagnose() == diagnosis


def test_a_default_warns_of_the_models_that_it_keeps():
    """Models warned while they raced, also those that were given up."""
    found = Finding("errors alike", "y", 1.0, 0.4, "problem", "Errors are alike.", "Look.")
    models = {"networks": SimpleNamespace(diagnose=lambda: Diagnosis([found]))}
    said = said_by(lambda: diagnosis_of(3, 2, models))
    assert said[0].startswith("3 rows are too few")
    assert said[1:] == ["Errors are alike. Look."]
    with judged():
        assert said_by(lambda: SVGPRegressor().fit(np.eye(3), [0.0, 1.0, 2.0])) == []
    assert said_by(lambda: SVGPRegressor().fit(np.eye(3), [0.0, 1.0, 2.0]))


@pytest.mark.parametrize(("n_rows", "severity"), [(59, "problem"), (60, "fine"), (400, "fine")])
def test_rows_for_each_length_scale(n_rows, severity):
    (found,) = findings.of_scales(RBF(np.ones(12)), n_rows, 12, is_sure=False)
    assert found.severity == severity
    assert ("59 rows are few to learn 12" in found.text) == (severity == "problem")
    assert next(findings.of_scales(RBF(np.ones(12)), 59, 12, is_sure=True)).severity == "note"
    (found,) = findings.of_scales(RBF(np.ones(12)), 59, 11, is_sure=False)
    assert found.severity == "fine", "one column is constant"
    for kernel in (RBF(), RBF(np.ones(12), "fixed")):
        assert list(findings.of_scales(kernel, 59, 12, is_sure=False)) == []


@pytest.mark.parametrize(
    ("cls", "severity"),
    [
        (NNGPRegressor, "problem"),
        (QSGPRegressor, "problem"),
        (ADMMGaussianProcessRegressor, "problem"),
        (SVGPRegressor, "note"),
        (NNGPClassifier, "note"),
    ],
)
@slow_cases("QSGP|ADMM|Classifier")
def test_few_rows_for_each_length_scale_are_warned_of(cls, severity):
    """90 % intervals of NNGPRegressor held .73, in silence."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 20))
    y = X.sum(1) + 0.3 * rng.standard_normal(60)
    model = cls(random_state=0)
    y = np.where(y > 0.0, "up", "down") if is_classifier(model) else y
    few = {"max_iter": 5} if cls is not ADMMGaussianProcessRegressor else {}
    said = said_by(lambda: model.set_params(**few).fit(X, y))
    assert named_finding(model, findings.SCALES).severity == severity
    assert any("60 rows are few to learn 20" in m for m in said) == (severity == "problem")


def test_a_few_heavy_rows_are_told(sine):
    """Five of 200 rows weighed 500, and intervals held a third of new rows, in silence."""
    data, w = Data(*sine), np.ones(len(sine[0]))
    assert next(row_findings.of_weights(replace(data, weight=w))).severity == "fine"
    w[:5] = 500.0
    (found,) = row_findings.of_weights(replace(data, weight=w))
    assert found.severity == "problem"
    assert found.text.startswith(f"About 6 of the {len(w)} rows have most of the weight (up to 500")
    cells = Data(np.zeros((len(w), 1)), data.y, w)
    assert next(row_findings.of_weights(cells)).severity == "fine", "a table of counts"
    assert list(row_findings.of_weights(data)) == []


@pytest.mark.slow
def test_a_row_that_carries_all_the_weight(sine, two_classes, one_kernel):
    X, y = (a[:40] for a in sine)
    cases = (AutoGaussianProcessRegressor, y), (AutoGaussianProcessClassifier, two_classes[1][:40])
    for cls, target in cases:
        weight = np.ones(40)
        weight[7] = 1e12
        with pytest.warns(UserWarning, match="One row has most of the weight .up to 1e.12, the m"):
            model = cls(random_state=0).fit(X, target, weight)
        assert named_finding(model, "few weights").severity == "problem"
    of_importance = np.exp(2.0 * np.random.default_rng(0).standard_normal(40))
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, of_importance)  # no warning
    assert named_finding(model, "few weights").severity == "fine"


@pytest.mark.slow
def test_estimators_around_others_tell_of_each(sine, two_classes, one_kernel):
    X, y = (a[:60] for a in sine)
    for cls in OF_OTHERS[2:]:
        with pytest.raises(NotFittedError):
            cls([("a", Ridge())]).diagnose()
    automatic = AutoGaussianProcessRegressor(random_state=0).fit(X, y)
    names = [f.name for f in automatic.diagnose()]
    assert names == [
        "few rows",
        "many features",
        "twins",
        "linear model",
        "coverage of groups",
        "mean error",
        "explained variance",
        "sizes of errors",
    ]
    classes = AutoGaussianProcessClassifier(random_state=0).fit(X, two_classes[1][:60])
    assert [f.where for f in classes.diagnose() if f.name == "few rows"] == ["X"]
    gp = GaussianProcessRegressor(RBF() + WhiteKernel(0.1))
    pairs = [("gp", gp), ("ridge", ConstantVarianceRegressor(Ridge()))]
    stacked = StackedDensityRegressor(pairs, cv=2).fit(X, y)
    assert {f.where for f in stacked.diagnose()} == {"gp: X", "gp: kernel", "gp: y"}
    around = ConstantVarianceRegressor(GaussianProcessRegressor(RBF() + WhiteKernel(0.1)), cv=2)
    assert around.fit(X, y).diagnose()[0].where.startswith("estimator_: ")


CONSTANT = {"max_iter": 50, "learning_rate_init": 0.5, "learning_rate": "constant"}
TIGHT = [
    (SVGPRegressor, {"n_inducing": 10}),
    (SolveGPRegressor, {"n_inducing": 10}),
    (FITCRegressor, {"n_inducing": 10}),
    (DLMRegressor, {"n_inducing": 10, "max_iter": 25}),
    (SCGDGaussianProcessRegressor, {"hidden_layer_sizes": (), "n_components": 200, **CONSTANT}),
    (BSGDGaussianProcessRegressor, {"hidden_layer_sizes": (), "n_components": None}),
    (QSGPRegressor, {"n_components": 50}),
    (ADMMGaussianProcessRegressor, {"n_restarts": 0}),
    (GaussianProcessRegressor, {}),
    (GaussianProcessRegressor, {"method": "svgp"}),
]


@pytest.mark.parametrize(("cls", "params"), cases_by_family("bounds are told of once", TIGHT))
@slow_cases("BSGD", "params2")
def test_all_that_learn_a_kernel_tell_of_bounds_once(cls, params, sine):
    X, y = (a[:80] for a in sine)
    kernel = RBF(0.3, (0.2, 0.4)) + WhiteKernel(0.1)
    model = cls(kernel, random_state=0, **params)
    said = said_by(lambda: model.fit(X, y))
    bound = "parameter (k1__)?(k2__)?length_scale is close to the specified upper bound 0.4"
    assert len([m for m in said if re.search(bound, m)]) == 1, said
    assert said == [f.message for f in model.diagnose().problems]
    fixed = cls(RBF(0.3, "fixed") + WhiteKernel(0.1), random_state=0, **params)
    assert not [m for m in said_by(lambda: fixed.fit(X, y)) if "length_scale" in m]


@pytest.mark.slow
@pytest.mark.parametrize("cls", [SVGPRegressor, SolveGPRegressor], ids=named)
@by_default("Solve")
def test_too_few_points_for_the_function(cls, waves):
    few = cls(n_inducing=3, random_state=0)
    assert said_by(lambda: few.fit(*waves)) == [few.diagnose()[0].message]
    assert "Raise n_inducing, now 3" in few.diagnose()[0].message
    enough = cls(n_inducing=40, random_state=0)
    assert not said_by(lambda: enough.fit(*waves))
    assert named_finding(enough, findings.ERRORS).value < 0.2


@pytest.mark.slow
def test_too_few_points_for_a_kernel_that_is_fixed(waves):
    kernel = RBF(0.02, "fixed") + WhiteKernel(0.1, "fixed")
    few = SVGPRegressor(kernel, n_inducing=10, learn_inducing_points=False, random_state=0)
    said = only(said_by(lambda: few.fit(*waves)))
    assert re.search("leave .* times the noise variance unexplained.* Raise n_inducing", said)
    assert "'residual variance'" in named_finding(few, findings.ERRORS).advice  # follows from it
    enough = SVGPRegressor(kernel, n_inducing=100, random_state=0).fit(*waves)
    assert named_finding(enough, "residual variance").severity == "fine"


@pytest.mark.slow
def test_findings_of_a_row_of_weight_2_are_those_of_two(sine):
    X, y = sine
    weight, y_std = np.arange(len(X)) % 3, np.linspace(0.0, 0.3, len(X))
    fit = SVGPRegressor(n_inducing=4, max_iter=5, normalize_y=False, random_state=0).fit
    weighted = fit(X, y, weight, y_std=y_std).diagnose()
    X, y, y_std = (column.repeat(weight, axis=0) for column in (X, y, y_std))
    repeated = fit(X, y, y_std=y_std).diagnose()
    for one, other in zip(weighted, repeated, strict=True):
        assert one.name == other.name
        assert one.value == pytest.approx(other.value, rel=1e-6)


def test_tails_of_errors_where_few_rows_have_weight():
    """Some of the rows that have weight are checked, however they lie among the others."""
    X, y = noisy(2_000, 0.3)
    weight = np.full(2_000, 1e-6)
    weight[1::20] = 40.0
    weight[error_findings.judged_rows(X)] = 1e-6
    params = {"n_inducing": 4, "solver": "natural", "max_iter": 2, "normalize_y": False}
    fit = SVGPRegressor(**params, random_state=0).fit
    assert named_finding(fit(X, y, weight), "tails of errors").severity == "fine"


def test_copies_of_rows_are_no_neighbours():
    X = np.random.default_rng(0).uniform(-3, 3, (60, 2))
    once, twice = (list(findings.of_sight(RBF(0.1), None, A, 1.0)) for A in (X, X.repeat(2, 0)))
    assert [found.value for found in once] == [found.value for found in twice]


def test_training_that_is_cut_short_is_warned_of(sine):
    X, y = sine
    params = {"solver": "adam", "n_inducing": 10, "learning_rate_init": 0.02, "random_state": 0}
    cut = SVGPRegressor(**params, learning_rate="constant", max_iter=20)
    with pytest.warns(ConvergenceWarning, match=r"max_iter=20 epochs while .* Raise max_iter"):
        cut.fit(X, y)
    assert named_finding(cut, findings.ERRORS).severity != "problem"  # follows from it


@pytest.mark.slow
def test_a_kernel_of_other_units_is_warned_of(waves):
    X, y = waves
    for scale, name in ((1e-6, findings.VARIATION), (1e6, findings.NEAREST)):
        kernel = RBF(1.0, "fixed")
        model = SVGPRegressor(kernel, n_inducing=20, random_state=0)
        said = said_by(lambda model=model, scale=scale: model.fit(scale * X, y))
        assert said == [model.diagnose()[0].message]
        assert model.diagnose()[0].name == name
        assert "StandardScaler" in said[0]
    both = np.column_stack([X, 1e-6 * np.random.default_rng(0).normal(size=(len(X), 1))])
    model = GaussianProcessRegressor(RBF(0.1) + WhiteKernel(0.1))
    with pytest.warns(UserWarning, match="almost ignores columns 1 of X.*length_scale for each"):
        model.fit(both, y)
    assert not said_by(lambda: SVGPRegressor(n_inducing=40, random_state=0).fit(1e-6 * both, y))


@pytest.mark.slow
def test_few_rows_and_many_features_are_warned_of_once(sine):
    X, y = (a[:9] for a in sine)
    model = SVGPRegressor(max_iter=2, random_state=0)
    assert said_by(lambda: model.fit(X, y)) == [model.diagnose()[0].message]
    assert "9 rows are too few" in model.diagnose()[0].message
    thrice = np.full(9, 3)
    assert not said_by(lambda: model.fit(X, y, sample_weight=thrice))  # are 27 rows
    none = np.r_[np.ones(9), 0.0]
    X_10, y_10 = (a[:10] for a in sine)
    assert "9 rows" in only(said_by(lambda: model.fit(X_10, y_10, sample_weight=none)))
    fixed = SVGPRegressor(RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed"), random_state=0)
    assert not said_by(lambda: fixed.fit(X, y))  # there is nothing to learn
    assert not said_by(lambda: GaussianProcessRegressor(RBF() + WhiteKernel(0.1)).fit(X, y))
    wide = np.random.default_rng(0).normal(size=(30, 61))
    assert "(61) than rows (30)" in only(said_by(lambda: model.fit(wide, wide[:, 0])))


@pytest.mark.parametrize("cls", [cls for cls in INDUCING if cls not in IMAGES], ids=named)
@slow_cases("Deep", "Classifier")
def test_more_points_than_rows_are_cut(cls, sine, two_classes):
    X, y = (a[:40] for a in data_of(cls, sine, two_classes))
    make = constructor(cls)
    small = {"max_iter": 2}
    model = make(n_inducing=1000, **small)
    if "posterior" in model.get_params():
        model.set_params(posterior="solve", n_orthogonal=41)
    said = said_by(lambda: model.fit(X, y))
    said = [message for message in said if not message.startswith("Training ended")]
    assert "n_inducing=1000 is more than" in said[0]
    assert "40 are used" in said[0]
    assert len(said) == 2 if hasattr(model, "n_orthogonal") else 1
    asked = {"n_inducing": 40}
    if hasattr(model, "n_orthogonal"):
        asked |= {"posterior": model.posterior, "n_orthogonal": 40}
    same = make(**asked, **small).fit(X, y)
    assert_array_equal(model.predict(X), same.predict(X))
    points = model.inducing_points_
    assert len(points[-1] if isinstance(points, list) else points) == 40


def test_basis_functions_at_more_rows_than_there_are_are_cut(sine):
    X, y = (a[:40] for a in sine)
    model = QSGPRegressor(basis="inducing", n_components=50, max_iter=3, random_state=0)
    assert any("n_components=50" in message for message in said_by(lambda: model.fit(X, y)))
    assert model.n_components_ == 40


@pytest.mark.slow
def test_searches_go_on_where_there_are_few_rows(sine):
    model = SVGPRegressor(n_inducing=60, max_iter=2, random_state=0)
    with pytest.warns(UserWarning, match="n_inducing=60 is more than"):
        sizes, _, scores = learning_curve(model, *sine, cv=2, train_sizes=[30, 90])
    assert sizes.tolist() == [30, 90]
    assert np.isfinite(scores).all()


@pytest.mark.slow
def test_a_search_warns_once_of_all_folds_and_once_of_the_last_fit(sine):
    X, y = (a[:28] for a in sine)
    model = SVGPRegressor(n_inducing=60, max_iter=2, random_state=0)
    search = GridSearchCV(model, {"learning_rate_init": [0.01, 0.02]}, cv=3)
    of_points = ["n_inducing=60 .* 18 are used", "n_inducing=60 .* 28 are used"]
    for _ in range(2):  # another call tells again
        said = said_by(lambda: search.fit(X, y))
        assert len(said) == 3, said
        for told in ("18 rows are too few", *of_points):
            assert only([m for m in said if re.search(told, m)])
    said = said_by(lambda: cross_val_score(model, X, y, cv=2))
    assert len(said) == 2, said


def test_warnings_as_errors_end_each_fit_of_a_search(sine):
    X, y = (a[:15] for a in sine)
    model = SVGPRegressor(max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="All the 3 fits failed"):
            cross_val_score(model, X, y, cv=3)


def test_a_search_tells_of_its_first_failure_when_it_fails(sine):
    kernels, before = [RBF([1.0] * 3), RBF()], []

    def score(model, X, y):
        before.append(len(warned))
        return 0.0

    search = GridSearchCV(SVGPRegressor(max_iter=2), {"kernel": kernels}, cv=2, scoring=score)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        search.fit(*sine)
    early, late = [str(w.message) for w in warned if w.category is FitFailedWarning]
    assert before[0] == 1, "told once, and before the third fit"
    assert "kernel has 3 length-scales, but X has 2" in early
    assert "error_score='raise'" in early
    assert warned[0].filename == __file__
    assert "2 fits failed out of a total of 4" in late


def test_no_search_is_told_that_stops_at_its_first_failure(sine):
    estimator = SVGPRegressor(kernel=RBF([1.0] * 3))
    with pytest.raises(ValueError, match="3 length-scales"):
        cross_val_score(estimator, *sine, cv=2, error_score="raise")  # warnings are errors here
    with pytest.raises(ValueError, match=r"(?s)All the 2 fits failed.*3 length-scales"):
        cross_val_score(estimator, *sine, cv=2)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"beta": [0.1, 1.0]}, {"hyperparameters": "fixed"}])
@slow_cases("params1")
def test_a_choice_between_fits_warns_once(params, sine):
    model = DLMRegressor(n_inducing=300, max_iter=2, random_state=0, **params)
    said = said_by(lambda: model.fit(*sine))
    assert len(said) == 1
    assert "200 are used" in said[0]
    calibrated = model.set_params(calibrate=True, beta=[0.1, 1.0])
    assert len(said_by(lambda: calibrated.fit(*sine))) == 1


@pytest.mark.slow
def test_several_classifiers_in_one_warn_once(three_classes):
    kernel = 1.0 * RBF(1.0, (0.9, 1.1))
    model = GaussianProcessClassifier(kernel)
    said = said_by(lambda: model.fit(*three_classes))
    assert 0 < len(said) == len(set(said))
    where = [f.where for f in model.diagnose().problems]
    assert len(where) >= len(said)
    assert all(re.match(r"(-5|5|15): k", text) for text in where)


def test_a_chunk_of_a_stream_is_not_all_there_is(sine):
    X, y = sine
    model = SVGPRegressor(n_inducing=5, random_state=0)
    assert not said_by(lambda: model.partial_fit(X[:6], y[:6]).partial_fit(X[6:9], y[6:9]))
    assert {f.name for f in model.diagnose()} == {"at its bound", "noise at its bound"}


@pytest.mark.slow
def test_a_refused_fit_leaves_the_last_diagnosis(sine):
    model = SVGPRegressor(n_inducing=5, max_iter=1, random_state=0).fit(*sine)
    before = model.diagnose()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="201 is more"):
            model.set_params(n_inducing=201).fit(*sine)
    assert model.diagnose() == before


@pytest.mark.slow
def test_healthy_defaults_say_nothing(sine, two_classes):
    X, y = sine
    for model in (SVGPRegressor(random_state=0), GaussianProcessRegressor(RBF() + WhiteKernel())):
        assert not said_by(lambda model=model: model.fit(X, y))
    for model in (SVGPClassifier(max_iter=10, random_state=0), GaussianProcessClassifier()):
        assert not said_by(lambda model=model: model.fit(*two_classes))


@pytest.mark.pages
def test_the_page_does_what_it_says():
    said = said_by(lambda: run_page(DOC / "user_guide" / "why_is_my_fit_bad.rst"))
    words = ["Raise n_inducing, now 5", "f is almost constant over the rows"]
    words += ["Errors have heavy tails", "n_inducing=100 is more than"]
    assert len(said) == len(words)
    assert all(word in message for word, message in zip(words, said, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("size", [30.0, 1e4])
@slow_cases("^30")
def test_outliers_are_told_and_no_reason_for_more_points(size):
    """They made all errors alike, and the advice was to raise n_inducing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(400)
    y[::80] += size
    with pytest.warns(UserWarning, match="Errors have heavy tails: .*student_t") as said:
        model = SVGPRegressor(n_inducing=30, random_state=0).fit(X, y)
    assert len(said) == 1
    (worst, *_) = model.diagnose()
    assert (worst.name, worst.value, worst.severity) == ("outliers", 0.0125, "problem")


@pytest.mark.slow
def test_tails_are_noted_and_normal_errors_are_fine():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (400, 1))
    for noise, severity in ((rng.standard_t(3, 400), "note"), (rng.standard_normal(400), "fine")):
        model = SVGPRegressor(n_inducing=30, random_state=0)
        found = {f.name: f for f in model.fit(X, np.sin(2 * X[:, 0]) + 0.1 * noise).diagnose()}
        assert found["tails of errors"].severity == severity


def with_outliers(n, size, seed=0):
    """A smooth function of two inputs, and 2 % of the rows far above it."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)
    y[rng.random(n) < 0.02] += size
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize(("n", "size"), [(250, 50), (1000, 10)])
@slow_cases("1000", "input")
def test_outliers_are_the_cause_of_what_they_bring_about(noise, n, size):
    model = SVGPRegressor(noise=noise, random_state=0)
    with pytest.warns(UserWarning, match="Errors have heavy tails.*student_t"):
        model.fit(*with_outliers(n, size))
    problems = [f.name for f in model.diagnose() if f.severity == "problem"]
    assert problems == ["outliers"]


@pytest.mark.parametrize(
    ("n", "seed", "make", "y_std"),
    [
        (60, 3, SVGPRegressor, None),  # f goes through it
        (200, 7, SVGPRegressor, None),
        (60, 1, SVGPRegressor, 0.05),
        (60, 1, NNGPRegressor, 0.05),
    ],
)
@slow_cases(r"^60-1-NNGPRegressor-0\.05$")
def test_one_wrong_target_is_told(n, seed, make, y_std):
    """Of 16 tables half were silent, and nearly all with known errors."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 4.0, (n, 2))
    y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(n)
    y[7] = 50.0
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        make(random_state=0).fit(X, y, y_std=y_std)


@pytest.mark.filterwarnings("error:Errors have heavy tails")
@pytest.mark.parametrize("make", [SVGPRegressor, FITCRegressor])
@pytest.mark.parametrize("n_inducing", ["auto", 20])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.filterwarnings("ignore:.*points for this kernel", "ignore:Errors at neighbouring")
@slow_cases(r"^0\.0-20-FITCRegressor$", r"^0\.0-20-SVGPRegressor$")
def test_other_rows_have_no_heavy_tails(make, n_inducing, noise):
    """Left-out errors of FITC, or of f without noise, were far beyond their usual size."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (90, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + noise * rng.standard_normal(90)
    model = make(n_inducing=n_inducing, random_state=0).fit(X, y)
    (found,) = [f for f in model.diagnose() if f.name in ("outliers", "tails of errors")]
    assert found.severity != "problem"


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("make", [SVGPRegressor, NNGPRegressor, SVGPClassifier])
def test_a_number_that_stands_for_missing_ones_is_told(make, method):
    """From a tenth of the rows on, it ruled the scale of its column, which was lost, in silence."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X[:, 0] + X[:, 1] > 0.0 if make is SVGPClassifier else X[:, 0] + X[:, 1]
    X[::5, 0] = -999.0
    model = make(max_iter=1, random_state=0)
    with pytest.warns(UserWarning, match=r"Column 0 of X is -999 in 20\.0% .*Put NaN in its place"):
        getattr(model, method)(X, y)
    (found,) = (each for each in model.diagnose() if each.name == "missing codes in X")
    assert (found.where, found.value, found.severity) == ("X[:, 0]", 0.2, "problem")


@pytest.mark.slow
def test_neighbours_tell_of_outliers():
    """Although their tails are heavy, their means follow these rows."""
    X, y = with_outliers(250, 10)
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        NNGPRegressor(random_state=0).fit(X, y)


@pytest.mark.slow
def test_an_exact_fit_looks_at_rows_without_themselves():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 5, 300), rng.uniform(0, 3e4, 300)])  # of unlike units
    y = np.sin(X[:, 0]) + X[:, 1] / 1e4 + 0.1 * rng.standard_normal(300)
    kernel = RBF(1.0) + WhiteKernel(0.1)
    with pytest.warns(UserWarning, match="f is almost independent between rows"):
        blind = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    found = {f.name: f for f in blind.diagnose()}["left-out rows"]
    assert found.value < found.limit
    assert "explain only" in found.text

    solver = ExactSolver(torch.from_numpy(blind.L_), torch.from_numpy(blind.alpha_[:, None]))
    error, variance = (a.numpy()[7] for a in solver.left_out())
    others = np.arange(300) != 7
    fixed = GaussianProcessRegressor(blind.kernel_, optimizer=None).fit(
        X[others], blind.y_train_[others]
    )
    mean, std = fixed.predict(X[[7]], return_std=True)
    assert_allclose(blind.y_train_[7] - mean, error[0], rtol=1e-8)
    assert_allclose(np.square(std), variance, rtol=1e-8)  # a WhiteKernel is included


def test_an_exact_fit_warns_of_outliers(sine):
    X, y = sine[0], sine[1].copy()
    y[::60] += 30.0
    kernel = RBF() + WhiteKernel(0.1)
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        model = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    assert "outliers" in {f.name for f in model.diagnose().problems}
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        GaussianProcessRegressor(kernel, alpha=np.full(len(X), 0.01), normalize_y=True).fit(X, y)


@pytest.mark.parametrize(
    ("estimator", "seed"),
    [
        (NNGPRegressor, 2),
        pytest.param(GaussianProcessRegressor, 2, marks=pytest.mark.slow),
        pytest.param(ADMMGaussianProcessRegressor, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_outliers_that_f_follows_are_told(estimator, seed):
    """Rows beside them, left out, had errors as large, so they did not stand alone."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (200, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    y[:4] += 30.0
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        estimator(random_state=0).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "seed"), [(NNGPRegressor, 7), (ADMMGaussianProcessRegressor, 9)]
)
def test_one_outlier_that_f_follows_is_told(estimator, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    y[5] += 40.0
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        estimator(random_state=0).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [NNGPRegressor, ADMMGaussianProcessRegressor])
@pytest.mark.filterwarnings("error:Errors have heavy tails")
def test_steps_and_bumps_are_no_outliers(estimator):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (200, 1))
    noise = 0.1 * rng.standard_normal(200)
    for f in (np.sign(X[:, 0]), 10 * np.exp(-0.5 * np.square(X[:, 0] / 0.05))):
        estimator(random_state=0).fit(X, f + noise)


@pytest.mark.slow
def test_a_few_rows_far_off_in_x_are_told():
    """They left the others almost one point, and every check was fine."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(300)
    X[:3, 1] = 99999.0
    with pytest.warns(UserWarning, match="Outliers in X: 3 of 300 rows .* in columns 1 that"):
        model = SVGPRegressor(n_inducing=30, random_state=0).fit(X, y)
    found = {f.name: f for f in model.diagnose()}
    assert (found["outliers in X"].severity, found["outliers in X"].where) == ("problem", "X[:, 1]")


@pytest.mark.slow
@pytest.mark.parametrize("n_far", [1, 5])
def test_far_values_of_a_column_do_not_hide_the_others(n_far):
    """Once the column was standardised, the others were almost one point."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (280, 2))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    y, A = f + 0.1 * rng.standard_normal(280), X[:80].copy()
    A[:n_far, 0] += 1000.0
    for estimator in (SVGPRegressor, DLMRegressor):
        model = estimator(random_state=0, max_iter=100).fit(A, y[:80])
        assert np.sqrt(np.mean(np.square(model.predict(X[80:]) - f[80:]))) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [SVGPRegressor, NNGPRegressor])
def test_one_target_far_off_is_told(estimator):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (80, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(80)
    y[7] += 10.0
    with pytest.warns(UserWarning, match="Errors have heavy tails"):
        estimator(random_state=0).fit(X, y)


@pytest.mark.parametrize("n_rows", [100, 1_200, 10_000])
def test_log_normal_and_rare_columns_have_no_outliers(n_rows):
    rng = np.random.default_rng(0)
    heavy = np.exp(rng.standard_normal((n_rows, 20)))
    rare = np.arange(n_rows)[:, None] % 50 == 0
    (found,) = row_findings.of_far_rows(
        np.hstack([heavy, rare.astype(float), np.ones((n_rows, 1))])
    )
    assert found.severity == "fine"


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "severity"), [(0.0, "fine"), (0.5, "problem")])
@slow_cases("0.0")
def test_overdispersed_counts_are_told(spread, severity):
    rng = np.random.default_rng(0)
    X, exposure = rng.uniform(-2, 2, (300, 1)), rng.uniform(0.5, 8, 300)
    varied = rng.gamma(1 / spread, spread, 300) if spread else 1.0
    y = rng.poisson(exposure * varied * np.exp(0.5 + np.sin(2 * X[:, 0])))
    model = SVGPRegressor(likelihood="poisson", n_inducing=20, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, exposure=exposure)
    found = {f.name: f for f in model.diagnose()}["dispersion"]
    assert found.severity == severity
    assert any("times as much as predicted" in str(w.message) for w in caught) == bool(spread)
    q = model.predict_distribution(X, exposure=exposure)
    mean, posterior = q.mean(), model.posterior_
    features = posterior.basis(torch.from_numpy((X - X.mean()) / X.std())).phi.numpy()
    precision = np.eye(features.shape[1]) + posterior.precision[0].numpy()
    told = np.sum(features * np.linalg.solve(precision, features.T).T, 1)
    leverage = mean * told  # E[rate] times what rows have told of f's variance
    expected = np.sum((y - mean) ** 2 / mean) / np.sum(1.0 - leverage)
    assert found.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("Model", [SVGPRegressor, SolveGPRegressor])
@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_counts_whose_scatter_f_follows_are_told(Model, likelihood):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    y = rng.poisson(np.exp(np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 1.0)) * (rng.random(400) > 0.5)
    model = Model(likelihood=likelihood, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    said = [str(w.message) for w in caught if "times as much as predicted" in str(w.message)]
    assert bool(said) == (likelihood == "poisson")
    assert all("f follows their scatter" in text and "negative_binomial" in text for text in said)


def counts_of(y, mean, variance, *of_rate, leverage=0.0):
    one = np.ones((len(y), 1))
    columns = (y, mean, variance, *(of_rate or (mean, 1.0 / mean)), leverage)
    return error_findings.Counts(*(np.asarray(each).reshape(-1, 1) * one for each in columns))


def test_the_dispersion_of_counts_leaves_out_what_f_follows():
    rng = np.random.default_rng(0)
    y, mean = rng.poisson(20.0, (200, 1)), np.full((200, 1), 20.0)
    followed = mean + 0.4 * (y - mean)
    plain, _ = counts_of(y, mean, mean).dispersion
    assert plain == pytest.approx(np.mean((y - 20.0) ** 2) / 20.0)
    of_rate = (mean, 1.0 / mean)
    found, error = counts_of(y, followed, mean, *of_rate, leverage=0.4).dispersion
    assert found == pytest.approx(0.6 * plain)
    assert error == pytest.approx(np.sqrt(2.05 / 120.0))
    told = {False: "negative_binomial", True: "add inputs"}
    for learns_it, words in told.items():
        (each,) = error_findings.of_dispersion(counts_of(9.0 * y, mean, mean), learns_it, True)
        assert words in each.advice
        assert ("negative_binomial" in each.advice) != learns_it
    for is_told, severity in {True: "note", False: "problem"}.items():
        counts = counts_of(9.0 * y, mean, mean)
        (each,) = error_findings.of_dispersion(counts, False, False, is_told)
        assert (each.severity, each.advice) == (severity, findings.UNTRAINED)


def test_training_settles_after_many_epochs_whose_last_ones_gain_little():
    history = History(loss_curve=[1.0 + 0.005 * (100 - i) for i in range(100)], status="max_iter")
    assert not history.has_settled()  # by .05 in ten epochs
    assert history.has_settled(0.1)
    assert not replace(history, status="interrupted").has_settled(0.1)
    few = replace(history, loss_curve=history.loss_curve[-49:])
    assert not few.has_settled(0.1)


@pytest.mark.slow
def test_counts_that_are_predicted_too_vaguely_are_told():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 1))
    y = rng.poisson(1e9 * np.exp(0.5 * np.sin(2 * X[:, 0])))
    model = DLMRegressor(likelihood="poisson", n_inducing=20, max_iter=50, random_state=0)
    with pytest.warns(
        UserWarning, match=r"Counts vary .* so intervals are too wide.*SVGPRegressor"
    ):
        model.fit(X, y)
    large = np.full(100, 1e9)
    (found,) = error_findings.of_dispersion(counts_of(large, large, 1e12), False, True)
    assert found.severity == "problem"
    certain = counts_of(large[:9], large[:9], 2e9)
    (found,) = error_findings.of_dispersion(certain, False, True)  # of a rough function, whose rows
    assert found.severity == "fine"  # are fitted one by one


# ---- noise that there is, and that is not as it is taken for ------------------------------------


@pytest.mark.parametrize(
    ("kernel", "alpha", "noise", "severity"),
    [
        (1.0 * RBF(), 1e-10, 0.3, "problem"),
        (1.0 * RBF(), 1e-10, 0.0, "fine"),
        (1.0 * RBF(1.0, "fixed") + ConstantKernel(), 1e-10, 0.3, "problem"),
        (ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed"), 1e-10, 0.3, "note"),  # as asked for
        (1.0 * RBF() + WhiteKernel(), 1e-10, 0.3, None),
        (1.0 * RBF(), 0.09, 0.3, None),
    ],
)
@pytest.mark.filterwarnings("ignore:The optimal value found", "ignore:y looks noisy")
def test_noise_that_the_kernel_lacks(kernel, alpha, noise, severity):
    model = GaussianProcessRegressor(kernel, alpha=alpha).fit(*noisy(120, noise))
    found = [each for each in model.diagnose() if each.name == "missing noise"]
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert all("WhiteKernel" in each.message for each in found if severity != "fine")


@pytest.mark.filterwarnings("ignore:The optimal value found", "ignore:y looks noisy")
@pytest.mark.parametrize("normalize_y", [False, True])
def test_noise_beside_a_constant_target(normalize_y):
    X, y = noisy(60, 0.3)
    fit = GaussianProcessRegressor(1.0 * RBF(), normalize_y=normalize_y).fit
    alone, beside = (
        named_finding(fit(X, Y), "missing noise") for Y in (y, np.column_stack([y, np.ones(60)]))
    )
    assert alone.severity == beside.severity == "problem"


@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_targets_that_are_mostly_noise_to_a_kernel_without_noise():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    y = 0.1 * np.sin(X[:, 0]) + rng.standard_normal(60)
    with pytest.warns(UserWarning, match=r"other rows explain only .* has no WhiteKernel, add one"):
        GaussianProcessRegressor().fit(X, y)
    model = GaussianProcessRegressor(1.0 * RBF() + WhiteKernel()).fit(X, y)
    assert "left-out rows" not in {finding.name for finding in model.diagnose().problems}


@pytest.mark.slow
@pytest.mark.parametrize("normal", [False, True])
@slow_cases("False")
def test_skewed_targets(normal):
    X, g = noisy(500, 0.3)
    kernel = 1.0 * RBF([1.0, 1.0]) + WhiteKernel()
    y = g if normal else np.exp(2.0 * g)
    for model in (
        SVGPRegressor(random_state=0),
        GaussianProcessRegressor(kernel, normalize_y=True, random_state=0),
    ):
        said = said_by(lambda model=model, y=y: model.fit(X, y))
        assert any("target_transform='log'" in each for each in said) != normal
        problems = {finding.name for finding in model.diagnose().problems}
        assert bool(problems & {"tails of errors", "outliers"}) != normal


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_finding_is_fine_beyond_its_limit():
    """Where a check does not apply, there is no limit."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (80, 2))
    y = np.exp(2 + 1.2 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(80))
    wide = X * [1.0, 1e3]
    models = [
        GaussianProcessRegressor(kernel, random_state=0).fit(rows, targets)
        for kernel in (RBF(), RBF([1.0, 1.0]), RBF() + WhiteKernel(), 0.1 * RBF() + WhiteKernel(9))
        for rows in (X, wide)
        for targets in (y, rng.standard_normal(80))
    ]
    sides = {}
    for finding in itertools.chain.from_iterable(model.diagnose() for model in models):
        *_, limit, severity = cells(finding)
        is_above = (finding.value > finding.limit) == (severity != "fine")
        if limit != "none" and finding.name != "at its bound":  # bounds are on either side
            sides.setdefault(finding.name, set()).add(is_above)
    assert {name: found for name, found in sides.items() if len(found) > 1} == {}


@pytest.mark.filterwarnings("ignore:With the kernel")
@pytest.mark.parametrize(("unit", "slope"), [(1e-5, 0.0), (1e200, 1.0)])
def test_neighbours_of_constant_targets_and_of_huge_inputs_are_compared(unit, slope, recwarn):
    """Constant targets are no reason to shorten length-scales; distances do not overflow."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (120, 2))
    model = GaussianProcessRegressor(9.0 * RBF(), alpha=0.01, optimizer=None)
    model.fit(unit * X, 3.0 + slope * X[:, 0])
    assert not [each for each in recwarn if each.category is RuntimeWarning]
    if not slope:
        assert "Rows near each other" not in str(model.diagnose())


@pytest.mark.slow
def test_one_count_that_is_far_beyond_all_others():
    rng = np.random.default_rng(0)
    y, exposure = rng.poisson(3.0, 60), np.ones(60)

    def found(y, exposure=None):
        (each,) = of_far_count(y, exposure)
        return each.severity

    fill = np.where(np.arange(60) == 7, 10**4, y)
    assert (found(y), found(fill)) == ("fine", "problem")
    assert found(np.column_stack([y, fill])) == "problem"
    assert found(fill[:9]) == "fine"  # too few to tell
    exposure[7] = 3000.0
    assert found(fill, exposure) == "fine"
    assert found(np.eye(60, dtype=int)[0]) == "fine"  # a single event
    X = rng.normal(size=(60, 1))
    model = SVGPRegressor(likelihood="negative_binomial", n_inducing=9, max_iter=5, random_state=0)
    with pytest.warns(UserWarning, match="The largest count, 10000, is more than all others"):
        model.fit(X, fill)


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [True, False])
def test_counts_that_the_other_outputs_kernel_loses_are_told(is_lost):
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (200, 2))
    rates = [0.5 + np.sin(2 * X[:, 0]), 6 + 0.5 * X[:, 1]]
    Y = rng.poisson(np.exp(np.stack(rates, 1)))
    Y = Y if is_lost else Y[:, :1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SVGPRegressor(likelihood="negative_binomial", random_state=0).fit(X, Y)
    assert any("MultiOutputRegressor" in str(w.message) for w in caught) == is_lost


@pytest.mark.parametrize(("n_epochs", "gain", "is_enough"), [(60, 0, 1), (20, 0, 0), (60, 1, 0)])
def test_long_training_that_gains_nothing_is_enough(n_epochs, gain, is_enough):
    """Counts of a deep process were judged as if max_iter=200 had cut it short."""
    curve = [-gain * epoch / n_epochs for epoch in range(n_epochs)]
    history = History(loss_curve=curve, status="max_iter")
    assert Training(max_iter=n_epochs).is_enough(history) == bool(is_enough)
    assert not Training(max_iter=n_epochs).is_complete(history)
    assert Training(max_iter="auto").is_complete(history)
