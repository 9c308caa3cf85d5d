"""The drop-in classes: scikit-learn's behaviour, and what they promise beyond it."""

import inspect
import pickle
import re
import threading
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.gaussian_process
import torch
from families import by_default, slow_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgError
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process.kernels import (
    RBF,
    CompoundKernel,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)
from sklearn.gaussian_process.tests._mini_sequence_kernel import MiniSeqKernel
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch.data.devices
import skgpstoch.kernels.matrices
import skgpstoch.methods.drop_in.many_rows
from skgpstoch import (
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SVGPRegressor,
    metrics,
)
from skgpstoch.training.starts import likely_bounds, log_bounds

TheirRegressor = sklearn.gaussian_process.GaussianProcessRegressor
TheirClassifier = sklearn.gaussian_process.GaussianProcessClassifier
BOTH = [
    (GaussianProcessRegressor, TheirRegressor),
    (GaussianProcessClassifier, TheirClassifier),
]
both = pytest.mark.parametrize(("ours", "theirs"), BOTH, ids=["regressor", "classifier"])

SPARSE = ["sgpr", "svgp"]
BY_KERNEL = [*SPARSE, "nngp"]
MANY = [*BY_KERNEL, "scgd"]
KERNEL = 1.3 * RBF(0.9) + WhiteKernel(0.05)
ROUGH = ConstantKernel(0.1, "fixed") * Matern(1.0, "fixed", nu=1.5)
SMOOTH = 2.0 * RBF([1.0, 1.5])  # of classifiers
EXTRA = {"method", "max_exact", "device", "dtype"}


class MyRBF(RBF):
    """A kernel of a user's: twice its parent's."""

    def __call__(self, X, Y=None, eval_gradient=False):
        found = super().__call__(X, Y, eval_gradient)
        return tuple(2.0 * part for part in found) if eval_gradient else 2.0 * found

    def diag(self, X):
        return 2.0 * super().diag(X)


@pytest.fixture(scope="module")
def rows():
    """60 rows of one input, with noise of standard deviation 0.2."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (60, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(60)
    X.flags.writeable = y.flags.writeable = False
    return X, y


@pytest.fixture(scope="module")
def labels():
    """40 rows of two inputs, of two classes and of three."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (40, 2))
    f = X[:, 0] + np.sin(X[:, 1]) + 0.3 * rng.standard_normal(40)
    return X, np.where(f > 0, "up", "down"), np.digitize(f, [-0.7, 0.7]) * 10


QUERY = np.linspace(-3.5, 3.5, 23)[:, None]
QUERY_2 = np.random.default_rng(5).uniform(-2, 2, (17, 2))


def data_of(ours, rows, labels):
    """X, y, rows to predict, and a kernel for a class."""
    if ours is GaussianProcessRegressor:
        return *rows, QUERY, KERNEL
    return *labels[:2], QUERY_2, SMOOTH


def predictions(model, X):
    """All that a model says of some rows."""
    if isinstance(model, (GaussianProcessRegressor, TheirRegressor)):
        mean, cov = model.predict(X, return_cov=True)
        return mean, model.predict(X, return_std=True)[1], cov
    return (model.predict_proba(X), *model.latent_mean_and_variance(X))


def assert_equal_predictions(one, other, X, **tolerance):
    """Same shapes; same numbers to the last bit, unless a tolerance is given."""
    for a, b in zip(predictions(one, X), predictions(other, X), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype == np.float64
        if tolerance:
            assert_allclose(a, b, **tolerance)
        else:
            assert_array_equal(a, b)


def state(model):
    """What a failed fit must not change, in a form that can be compared."""
    return joblib.hash({name: repr(value) for name, value in vars(model).items()})


# ----------------------------------------------------------- the same as scikit-learn, at random
positive = st.floats(0.4, 2.5)
bounds = st.sampled_from([(1e-5, 1e5), (1e-2, 1e2), (1e-5, 1e5), "fixed"])


def leaves(n_features):
    """Kernels that are no expressions."""
    scale = positive | st.lists(positive, min_size=n_features, max_size=n_features)
    # Not a covariance of more than one input.
    periodic = st.builds(ExpSineSquared, positive, positive, bounds, bounds)
    return st.one_of(
        *([periodic] if n_features == 1 else []),
        st.builds(RBF, scale, bounds),
        st.builds(Matern, scale, bounds, nu=st.sampled_from([0.5, 1.5, 2.5, np.inf])),
        st.builds(RationalQuadratic, positive, positive, bounds, bounds),
        st.builds(DotProduct, positive, bounds),
        st.builds(ConstantKernel, positive, bounds),
        st.builds(WhiteKernel, positive, bounds),
    )


def expressions(n_features):
    """Sums, products and powers of kernels."""
    return st.recursive(
        leaves(n_features),
        lambda inner: st.one_of(
            st.builds(Sum, inner, inner),
            st.builds(Product, inner, inner),
            st.builds(Exponentiation, inner, st.sampled_from([1.0, 2.0, 3.0])),
        ),
        max_leaves=4,
    )


@st.composite
def problems(draw, least=2, most=15):
    """A kernel, rows that it takes, of which some may be twice, other rows, and a seed's Generator.

    The other rows have some of the first among them.
    """
    n_features = draw(st.integers(1, 3))
    kernel = draw(expressions(n_features))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    X = rng.normal(draw(st.sampled_from([0.0, 0.0, 1.0])), 1.0, (draw(st.integers(least, most)), 3))
    X = X[:, :n_features]
    if draw(st.booleans()):
        X[len(X) // 2 :] = X[: len(X) - len(X) // 2]
    return kernel, X, np.vstack([rng.normal(size=(4, n_features)), X[:2]]), rng


at_random = settings(derandomize=True, database=None, deadline=None, max_examples=30)


@pytest.mark.slow
@at_random
@given(
    problem=problems(),
    n_outputs=st.sampled_from([None, None, 1, 2]),
    normalize_y=st.booleans(),
    noise=st.sampled_from([1e-2, 1e-1]),
    per_row=st.booleans(),
)
def test_regression_is_scikit_learns(problem, n_outputs, normalize_y, noise, per_row):
    """For any kernel and rows; alpha is relative to k(x, x), so that both are well conditioned."""
    kernel, X, other, rng = problem
    scale = kernel.diag(X).max()
    alpha = scale * noise * (rng.uniform(1.0, 2.0, len(X)) if per_row else 1.0)
    y = rng.normal(3.0, 2.0, (len(X), *(() if n_outputs is None else (n_outputs,))))
    parameters = {"alpha": alpha, "optimizer": None, "normalize_y": normalize_y}
    ours = GaussianProcessRegressor(kernel, **parameters).fit(X, y)
    theirs = TheirRegressor(kernel, **parameters).fit(X, y)
    unit = np.std(y, axis=0).max() if normalize_y and len(X) > 1 else 1.0
    deviation = unit * np.sqrt(max(scale, kernel.diag(other).max()))

    (mean, std, cov), wanted = predictions(ours, other), predictions(theirs, other)
    assert [a.shape for a in (mean, std, cov)] == [a.shape for a in wanted]
    assert_allclose(mean, wanted[0], rtol=1e-6, atol=1e-8)
    assert_allclose(std, wanted[1], rtol=1e-6, atol=1e-7 * deviation)
    assert_allclose(cov, wanted[2], rtol=1e-6, atol=1e-9 * deviation**2)
    assert_array_equal(ours.predict(other), mean)
    assert_array_equal(ours.predict_std(other), std)

    assert ours.kernel_ == kernel  # to the last bit, which theirs is not
    assert ours.log_marginal_likelihood() == ours.log_marginal_likelihood_value_
    assert_allclose(
        ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_, rtol=1e-6
    )
    for name in ("L_", "alpha_", "y_train_", "X_train_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.shape == b.shape
        assert_allclose(a, b, rtol=1e-6, atol=1e-8 * np.abs(b).max())
    for theta in (kernel.theta, kernel.theta + rng.uniform(-0.5, 0.5, kernel.n_dims)):
        value, gradient = ours.log_marginal_likelihood(theta, eval_gradient=True)
        their_value, their_gradient = theirs.log_marginal_likelihood(theta, eval_gradient=True)
        assert gradient.shape == their_gradient.shape
        assert_allclose(value, their_value, rtol=1e-6)
        assert_allclose(gradient, their_gradient, rtol=1e-6, atol=1e-7)
        assert_allclose(ours.log_marginal_likelihood(theta), value, rtol=1e-12)


@pytest.mark.slow
@settings(at_random, max_examples=20)
@given(problem=problems(least=4))
def test_classification_is_scikit_learns(problem):
    """The same mode, as closely as Newton's iterations find it."""
    kernel, X, other, rng = problem
    y = np.where(np.arange(len(X)) < 2, np.arange(len(X)), rng.random(len(X)) < 0.5).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
        theirs = TheirClassifier(kernel, optimizer=None).fit(X, y)
        assert_allclose(
            ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_, rtol=1e-6
        )
        assert_array_equal(ours.classes_, theirs.classes_)
        scale = max(1.0, kernel.diag(other).max())
        for a, b, unit in zip(
            predictions(ours, other), predictions(theirs, other), (1, scale, scale), strict=True
        ):
            assert a.shape == b.shape
            assert_allclose(a, b, rtol=1e-6, atol=1e-7 * unit)
        for theta in (kernel.theta, kernel.theta + rng.uniform(-0.3, 0.3, kernel.n_dims)):
            value, gradient = ours.log_marginal_likelihood(theta, eval_gradient=True)
            their_value, their_gradient = theirs.log_marginal_likelihood(theta, eval_gradient=True)
            assert gradient.shape == their_gradient.shape
            assert_allclose(value, their_value, rtol=1e-6)
            assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------ as scikit-learn has it
@both
def test_constructors_are_scikit_learns(ours, theirs):
    """The same parameters with the same defaults, and four of ours."""
    wanted = theirs().get_params()
    assert {name: ours().get_params()[name] for name in wanted} == wanted
    assert set(ours().get_params()) - set(wanted) == EXTRA
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    kinds = inspect.signature(ours).parameters
    assert [name for name in kinds if kinds[name].kind is positional] == ["kernel"]
    assert ours().max_exact == 5000


@both
def test_public_names_are_scikit_learns(ours, theirs, rows, labels):
    """Every public attribute and method, also of fitted estimators."""
    X, y, _, kernel = data_of(ours, rows, labels)
    assert {name for name in dir(theirs) if name[0] != "_"} <= set(dir(ours))
    fitted = ours(kernel, optimizer=None).fit(X, y)
    for name in vars(theirs(kernel, optimizer=None).fit(X, y)):
        assert name[0] == "_" or hasattr(fitted, name), name


@pytest.mark.parametrize("kernel", [None, KERNEL, MyRBF(0.7), Matern(nu=2) + WhiteKernel(0.3)])
@pytest.mark.parametrize("n_targets", [None, 1, 2])
def test_prior_predictions(kernel, n_targets):
    """A regressor predicts before fit, and refuses what is of rows of a fit."""
    ours = GaussianProcessRegressor(kernel, n_targets=n_targets)
    theirs = TheirRegressor(kernel, n_targets=n_targets)
    assert_equal_predictions(ours, theirs, QUERY, rtol=1e-12, atol=1e-12)
    draws = ours.sample_y(QUERY, 3, random_state=1)
    assert draws.shape == theirs.sample_y(QUERY, 3, random_state=1).shape
    assert ours.predict_interval(QUERY).shape[:2] == (len(QUERY), 2)
    assert ours.log_predictive_density(QUERY, ours.predict(QUERY)).shape == (len(QUERY),)
    assert not any(name.endswith("_") for name in vars(ours))
    with pytest.raises(NotFittedError):
        ours.log_marginal_likelihood()


@pytest.mark.parametrize("n", [2, 3, 9])
def test_very_few_rows_of_classes(n):
    """scikit-learn fits two rows."""
    X, y = np.arange(float(n))[:, None], np.arange(n) % 2
    theirs = TheirClassifier().fit(X, y).predict_proba(X)
    assert_allclose(GaussianProcessClassifier().fit(X, y).predict_proba(X), theirs, rtol=1e-6)


@pytest.mark.parametrize("model", [GaussianProcessRegressor(), GaussianProcessClassifier()])
def test_a_refused_kernel_leaves_the_fitted_model_predicting(model):
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = X[:, 0] > 0.0
    model = clone(model).set_params(optimizer=None).fit(X, y)
    before = model.predict(X)
    model.set_params(kernel="rbf")
    with pytest.raises(ValueError, match="'kernel' parameter"):
        model.fit(X, y)
    assert_array_equal(model.predict(X), before)
    if hasattr(model, "condition_on"):
        assert model.condition_on(X[:3], y[:3]).X_train_.shape == (33, 2)


def test_predictions_of_a_prior_refuse_a_kernel_by_its_name():
    for method in ("predict", "sample_y", "predict_interval"):
        with pytest.raises(ValueError, match="'kernel' parameter of GaussianProcessRegressor"):
            getattr(GaussianProcessRegressor(kernel="rbf"), method)(QUERY)


def test_classifiers_have_no_prior_predictions():
    model = GaussianProcessClassifier()
    for method in (model.predict, model.predict_proba, model.latent_mean_and_variance):
        with pytest.raises(NotFittedError):
            method(QUERY_2)
    with pytest.raises(NotFittedError):
        model.log_marginal_likelihood()


@both
def test_optimum_is_no_worse_than_scikit_learns(ours, theirs, rows, labels):
    """The same optimum is found; its value is the log marginal likelihood there."""
    X, y, query, kernel = data_of(ours, rows, labels)
    model, reference = ours(kernel).fit(X, y), theirs(kernel).fit(X, y)
    value = model.log_marginal_likelihood_value_
    assert value >= reference.log_marginal_likelihood_value_ - 1e-5
    assert_allclose(value, model.log_marginal_likelihood(model.kernel_.theta), rtol=1e-9)
    assert_allclose(value, reference.log_marginal_likelihood(model.kernel_.theta), rtol=1e-6)
    assert_equal_predictions(model, reference, query, rtol=5e-3, atol=5e-3)
    assert model.kernel == kernel  # the parameter is never changed


def test_default_kernels(rows, labels):
    X, y = rows
    model = GaussianProcessRegressor(alpha=0.1).fit(X, y)
    reference = TheirRegressor(alpha=0.1).fit(X, y)
    assert_allclose(model.kernel_.theta, reference.kernel_.theta, rtol=1e-3)
    X, y, _ = labels
    assert GaussianProcessClassifier().fit(X, y).kernel_ == TheirClassifier().fit(X, y).kernel_


@pytest.mark.parametrize("alpha", [0.1, "rows", "list"])
@pytest.mark.parametrize("normalize_y", [False, True])
def test_noise_of_rows_is_searched_with(alpha, normalize_y, rows):
    """The search's objective has alpha in it, of each row where it is given so."""
    X, y = rows
    kind, alpha = alpha, 0.1 if alpha == 0.1 else np.linspace(0.01, 0.3, len(X))
    theirs = TheirRegressor(2.0 * RBF(0.5), alpha=alpha, normalize_y=normalize_y).fit(X, y)
    alpha = alpha.tolist() if kind == "list" else alpha
    ours = GaussianProcessRegressor(2.0 * RBF(0.5), alpha=alpha, normalize_y=normalize_y)
    ours.fit(X, y)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=1e-3)
    assert ours.alpha is alpha
    assert_equal_predictions(ours, theirs, QUERY, rtol=1e-3, atol=1e-3)


def test_alpha_of_one_number_is_for_all_rows(rows):
    """scikit-learn then changes its parameter; ours are never changed."""
    alpha = np.array([0.2])
    model = GaussianProcessRegressor(KERNEL, alpha=alpha, optimizer=None).fit(*rows)
    assert model.alpha is alpha
    other = GaussianProcessRegressor(KERNEL, alpha=0.2, optimizer=None).fit(*rows)
    assert_equal_predictions(model, other, QUERY)


def test_log_marginal_likelihood_arguments(rows):
    """theta=None is what was found; clone_kernel=False sets kernel_, and True does not."""
    model = GaussianProcessRegressor(KERNEL).fit(*rows)
    before, theta = clone(model.kernel_), np.log([2.0, 0.5, 0.2])
    value = model.log_marginal_likelihood(theta)
    assert isinstance(value, float)
    assert model.kernel_ == before
    assert model.log_marginal_likelihood(list(theta)) == value
    with pytest.raises(ValueError, match="theta"):
        model.log_marginal_likelihood(eval_gradient=True)
    for wrong in (theta[:2], np.append(theta, 0.0)):
        with pytest.raises(ValueError, match="theta"):
            model.log_marginal_likelihood(wrong)
    assert model.log_marginal_likelihood(theta, clone_kernel=False) == value
    assert_allclose(model.kernel_.theta, theta)


def test_log_marginal_likelihood_where_there_is_no_factor():
    """Minus infinity, and a gradient of zeros, as scikit-learn has them."""
    X, y = np.zeros((4, 1)), np.arange(4.0)
    kernel = RBF() + WhiteKernel(1.0, (1e-30, 1e5))
    theirs = TheirRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)
    ours = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)
    theta = np.log([1.0, 1e-30])
    assert ours.log_marginal_likelihood(theta) == theirs.log_marginal_likelihood(theta) == -np.inf
    value, gradient = ours.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == -np.inf
    assert_array_equal(gradient, np.zeros(2))


def test_draws_have_the_predicted_moments(rows):
    """Means over 4,000 draws, within five standard errors."""
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    some = QUERY[::6]
    mean, cov = model.predict(some, return_cov=True)
    draws = model.sample_y(some, 4000, random_state=1)
    assert draws.shape == (len(some), 4000)
    assert_allclose(draws.mean(1), mean, atol=5 * np.sqrt(cov.max() / 4000))
    assert_allclose(np.cov(draws), cov, atol=5 * np.sqrt(2 / 4000) * cov.max())
    assert_array_equal(draws, model.sample_y(some, 4000, random_state=1))
    assert_array_equal(model.sample_y(some), model.sample_y(some, random_state=0))
    generator = np.random.RandomState(0)
    first = model.sample_y(some, random_state=generator)
    assert_array_equal(first, model.sample_y(some))
    assert np.any(first != model.sample_y(some, random_state=generator))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_several_outputs(n_outputs, rows):
    """They share the kernel; each has its own mean and unit, and its column is as by itself."""
    X, y = rows
    Y = np.column_stack([y * 10**i + i for i in range(n_outputs)])
    ours = GaussianProcessRegressor(KERNEL, normalize_y=True).fit(X, Y)
    theirs = TheirRegressor(KERNEL, normalize_y=True).fit(X, Y)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=2e-3)
    theirs = TheirRegressor(ours.kernel_, normalize_y=True, optimizer=None).fit(X, Y)
    assert_equal_predictions(ours, theirs, QUERY, rtol=1e-6, atol=1e-8 * 10 ** (2 * n_outputs))
    shape = (len(QUERY), n_outputs, 4) if n_outputs > 1 else (len(QUERY), 4)
    assert ours.sample_y(QUERY, 4).shape == theirs.sample_y(QUERY, 4).shape == shape
    assert_allclose(ours.score(X, Y), theirs.score(X, Y), rtol=1e-6)
    interval = ours.predict_interval(QUERY)
    assert interval.shape == ((len(QUERY), 2, n_outputs) if n_outputs > 1 else (len(QUERY), 2))


def test_n_targets_of_another_number_is_refused(rows):
    X, y = rows
    with pytest.raises(ValueError, match="n_targets"):
        GaussianProcessRegressor(n_targets=2).fit(X, y)
    with pytest.raises(ValueError, match="n_targets"):
        GaussianProcessRegressor(n_targets=1).fit(X, np.column_stack([y, y]))


def test_both_std_and_covariance_are_refused(rows):
    for model in (GaussianProcessRegressor(), GaussianProcessRegressor(alpha=0.1).fit(*rows)):
        with pytest.raises(RuntimeError, match="return_std or return_cov"):
            model.predict(QUERY, return_std=True, return_cov=True)


@pytest.mark.parametrize("multi_class", ["one_vs_rest", "one_vs_one"])
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_several_classes(multi_class, n_jobs, labels):
    X, _, y = labels
    parameters = {"multi_class": multi_class, "n_jobs": n_jobs, "optimizer": None}
    with joblib.parallel_config("threading"):
        ours = GaussianProcessClassifier(SMOOTH, **parameters).fit(X, y)
    theirs = TheirClassifier(SMOOTH, **{**parameters, "n_jobs": None}).fit(X, y)
    assert_array_equal(ours.classes_, [0, 10, 20])
    assert ours.n_classes_ == 3
    kinds = {"one_vs_rest": OneVsRestClassifier, "one_vs_one": OneVsOneClassifier}
    assert isinstance(ours.base_estimator_, kinds[multi_class])
    assert isinstance(ours.kernel_, CompoundKernel)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta)
    assert_array_equal(ours.predict(QUERY_2), theirs.predict(QUERY_2))
    for theta in (None, SMOOTH.theta + 0.2, np.tile(SMOOTH.theta, 3) + 0.1 * np.arange(9)):
        assert_allclose(
            ours.log_marginal_likelihood(theta), theirs.log_marginal_likelihood(theta), rtol=1e-6
        )
    if multi_class == "one_vs_rest":
        proba = ours.predict_proba(QUERY_2)
        assert_allclose(proba, theirs.predict_proba(QUERY_2), rtol=1e-6)
        assert_allclose(proba.sum(1), 1.0)
    else:
        for method in (ours.predict_proba, ours.predict_std):
            with pytest.raises(ValueError, match="one_vs_one"):
                method(QUERY_2)
    with pytest.raises(NotImplementedError):
        ours.log_marginal_likelihood(SMOOTH.theta, eval_gradient=True)
    with pytest.raises(ValueError, match="theta"):
        ours.log_marginal_likelihood(np.zeros(4))
    with pytest.raises(ValueError, match="binary"):
        ours.latent_mean_and_variance(QUERY_2)


def test_pairs_have_probabilities_of_two_classes(labels):
    """multi_class has no meaning where there are two."""
    X, y, _ = labels
    one = GaussianProcessClassifier(SMOOTH, multi_class="one_vs_one", optimizer=None).fit(X, y)
    other = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, y)
    assert_equal_predictions(one, other, QUERY_2)


def test_probabilities_are_of_the_second_class(labels):
    """Which is the sign of the latent mean; the labels keep their type."""
    X, y, _ = labels
    model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, y)
    proba, (mean, var) = model.predict_proba(QUERY_2), model.latent_mean_and_variance(QUERY_2)
    assert_array_equal(model.predict(QUERY_2), model.classes_[(mean > 0).astype(int)])
    assert_array_equal(proba[:, 1] > 0.5, mean > 0)
    assert np.all(var > 0)
    assert_allclose(model.predict_log_proba(QUERY_2), np.log(proba))
    assert model.predict(QUERY_2).dtype == y.dtype
    assert 0.8 < model.score(X, y) <= 1


@pytest.mark.slow
def test_standard_deviations_of_probabilities(labels):
    """Of the sigmoid of draws from the latent posterior, or of its share of all classes'."""
    X, two, three = labels
    rng = np.random.default_rng(0)
    model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, two)
    mean, var = model.latent_mean_and_variance(QUERY_2)
    f = mean + np.sqrt(var) * rng.standard_normal((50_000, len(mean)))
    std = model.predict_std(QUERY_2)
    assert_allclose(std, np.repeat(expit(f).std(0)[:, None], 2, 1), rtol=0.02)
    model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, three)
    moments = [b.latent_mean_and_variance(QUERY_2) for b in model.base_estimator_.estimators_]
    mean, var = (np.stack(columns, 1) for columns in zip(*moments, strict=True))
    f = mean + np.sqrt(var) * rng.standard_normal((40_000, *mean.shape))
    p = expit(f) / expit(f).sum(-1, keepdims=True)
    assert_allclose(model.predict_std(QUERY_2), p.std(0), rtol=0.03)


def test_max_iter_predict_is_newtons(labels):
    """One iteration is not enough, and many are as many."""
    X, y, _ = labels
    few, theirs = (
        cls(5.0 * RBF(1.0), optimizer=None, max_iter_predict=1).fit(X, y)
        for cls in (GaussianProcessClassifier, TheirClassifier)
    )
    many = GaussianProcessClassifier(5.0 * RBF(1.0), optimizer=None).fit(X, y)
    more = clone(many).set_params(max_iter_predict=1000).fit(X, y)
    assert_allclose(
        few.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_, rtol=1e-6
    )
    assert abs(few.log_marginal_likelihood_value_ - many.log_marginal_likelihood_value_) > 1e-3
    assert_equal_predictions(many, more, QUERY_2)


@pytest.mark.parametrize("method", ["laplace", "svgp"])
@slow_cases("svgp")
def test_warm_start_ends_where_a_cold_one_does(method, labels):
    """On other rows too, on rows of another number, and where labels are other rows'."""
    X, y, _ = labels
    mixed = np.random.default_rng(0).permutation(len(X))
    warm = GaussianProcessClassifier(
        SMOOTH, optimizer=None, warm_start=True, method=method, dtype="float64", random_state=0
    )
    for some in (slice(None), slice(None), slice(30), slice(10, 40), slice(None), mixed):
        warm.fit(X[some], y[some])
        cold = clone(warm).fit(X[some], y[some])
        assert_allclose(
            warm.predict_proba(QUERY_2), cold.predict_proba(QUERY_2), rtol=1e-2, atol=1e-3
        )


# --------------------------------------------------------------------------- the optimiser
def test_without_an_optimizer_the_kernel_stays(rows, labels):
    """With every method; kernel_ is a copy."""
    X, y = rows
    kernel = RBF(1.1) * 0.7 + WhiteKernel(0.3)
    model = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    assert model.kernel_ == kernel
    assert model.kernel_ is not kernel
    X, y, _ = labels
    model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, y)
    assert model.kernel_ == SMOOTH
    assert model.kernel_ is not SMOOTH


@pytest.mark.parametrize("method", MANY)
@pytest.mark.parametrize("kernel", [WhiteKernel(0.3, "fixed") + RBF(1.1) * 0.7])
def test_without_an_optimizer_the_kernel_stays_for_many_rows(method, kernel, rows):
    model = GaussianProcessRegressor(kernel, optimizer=None, method=method, random_state=0)
    model.fit(*(a[:20] for a in rows))
    assert_allclose(model.kernel_.theta, kernel.theta, rtol=1e-6, atol=1e-6)
    assert model.kernel_.bounds.shape == kernel.bounds.shape
    assert model.kernel == kernel


def test_without_an_optimizer_the_classifiers_kernel_stays_for_many_rows(labels):
    X, y, _ = labels
    parameters = {"method": "svgp", "optimizer": None, "random_state": 0}
    model = GaussianProcessClassifier(SMOOTH, **parameters).fit(X[:20], y[:20])
    assert_allclose(model.kernel_.theta, SMOOTH.theta, rtol=1e-6, atol=1e-6)
    assert_array_equal(model.kernel_.bounds, SMOOTH.bounds)


def test_fixed_hyper_parameters_stay(rows):
    kernel = ConstantKernel(1.5, "fixed") * RBF(0.6) + WhiteKernel(0.07, "fixed")
    for method in ("exact", *BY_KERNEL):
        model = GaussianProcessRegressor(kernel, method=method, random_state=0).fit(*rows)
        assert model.kernel_.n_dims == 1, method
        assert model.kernel_.k1.k1.constant_value == pytest.approx(1.5)
        assert model.kernel_.k2.noise_level == pytest.approx(0.07)
        assert model.kernel_.k1.k2.length_scale != 0.6


@both
def test_custom_optimizers(ours, theirs, rows, labels):
    """They get minus the log marginal likelihood, where scikit-learn's do, and the last word."""
    X, y, query, kernel = data_of(ours, rows, labels)
    calls = []

    def optimizer(obj_func, initial_theta, bounds):
        assert_array_equal(initial_theta, kernel.theta)
        assert_array_equal(bounds, kernel.bounds)
        value, gradient = obj_func(initial_theta)
        pair = obj_func(initial_theta, eval_gradient=True)
        assert pair[0] == value
        assert_array_equal(pair[1], gradient)
        alone = obj_func(initial_theta + 0.1, eval_gradient=False)
        calls.append((value, gradient, alone))
        return initial_theta + 0.1, alone

    model = ours(kernel, optimizer=optimizer).fit(X, y)
    ((value, gradient, alone),) = calls
    reference = theirs(kernel, optimizer=None).fit(X, y)
    their_value, their_gradient = reference.log_marginal_likelihood(kernel.theta, True)
    assert_allclose(value, -their_value, rtol=1e-6)
    assert_allclose(gradient, -their_gradient, rtol=1e-5, atol=1e-6)
    assert np.ndim(alone) == 0
    assert_allclose(model.kernel_.theta, kernel.theta + 0.1)
    assert_allclose(model.log_marginal_likelihood_value_, -alone, rtol=1e-9)
    predictions(model, query)


@pytest.mark.slow
@both
@by_default("regressor")
def test_restarts_find_the_best_and_run_at_once(ours, theirs, rows, labels):
    """From a start that has a poor optimum; the same in two threads, to the last bit."""
    X, y, query, _ = data_of(ours, rows, labels)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(20.0, (1e-2, 1e2))
    if ours is GaussianProcessRegressor:
        kernel = kernel + WhiteKernel(10.0, (1e-3, 1e2))
    one, model = (ours(kernel, n_restarts_optimizer=n, random_state=0) for n in (0, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one.fit(X, y)
        model.fit(X, y)
        assert model.log_marginal_likelihood_value_ >= one.log_marginal_likelihood_value_ - 1e-9
        with joblib.parallel_config("threading", n_jobs=2):
            together = clone(model).fit(X, y)
    assert_equal_predictions(model, together, query)
    assert model.kernel_ == together.kernel_
    assert model.log_marginal_likelihood_value_ == together.log_marginal_likelihood_value_


def test_restarts_start_within_bounds_as_scikit_learns(rows):
    """log-uniform; the first from the kernel's own."""
    starts = {}
    for cls in (GaussianProcessRegressor, TheirRegressor):
        seen = starts[cls] = []

        def optimizer(obj_func, initial_theta, bounds, seen=seen):
            seen.append(np.array(initial_theta))
            return initial_theta, obj_func(initial_theta, eval_gradient=False)

        cls(KERNEL, optimizer=optimizer, n_restarts_optimizer=3, random_state=7).fit(*rows)
    ours, theirs = starts.values()
    assert len(ours) == len(theirs) == 4
    assert_array_equal(ours[0], KERNEL.theta)
    assert_allclose(np.sort(np.array(ours), 0), np.sort(np.array(theirs), 0))


@both
def test_restarts_need_finite_bounds(ours, theirs, rows, labels):
    X, y, _, _ = data_of(ours, rows, labels)
    kernel = RBF(1.0, (1e-5, np.inf))
    with pytest.raises(ValueError, match="bounds"):
        ours(kernel, n_restarts_optimizer=1).fit(X, y)


def test_an_optimum_at_a_bound_warns(rows):
    with pytest.warns(ConvergenceWarning, match="close to the specified"):
        GaussianProcessRegressor(RBF(1.0, (1e-2, 1e2)) * 1.0 + WhiteKernel(1, (0.5, 2))).fit(*rows)


# ---- weights -----------------------------------------------------------------------------------
COUNTS = np.random.default_rng(6).integers(0, 4, 40)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("multi_class", ["one_vs_rest", "one_vs_one"])
@slow_cases("one_vs_rest-3", "one_vs_one-2")
def test_a_weight_is_a_number_of_rows(n_classes, multi_class, labels):
    X, *of_classes = labels
    y = of_classes[n_classes - 2]
    parameters = {"kernel": SMOOTH, "multi_class": multi_class, "random_state": 0}
    repeated = GaussianProcessClassifier(**parameters)
    repeated.fit(np.repeat(X, COUNTS, axis=0), np.repeat(y, COUNTS))
    weighted = GaussianProcessClassifier(**parameters).fit(X, y, sample_weight=COUNTS)
    assert len(weighted.X_train_) == (COUNTS > 0).sum()
    assert_allclose(
        weighted.log_marginal_likelihood_value_, repeated.log_marginal_likelihood_value_, rtol=1e-7
    )
    assert_allclose(weighted.kernel_.theta, repeated.kernel_.theta, atol=1e-4)
    assert_array_equal(weighted.predict(QUERY_2), repeated.predict(QUERY_2))
    if multi_class == "one_vs_rest":
        p = repeated.predict_proba(QUERY_2)
        assert_allclose(weighted.predict_proba(QUERY_2), p, atol=1e-5)
        assert_allclose(weighted.predict_std(QUERY_2), repeated.predict_std(QUERY_2), atol=1e-4)


def test_the_weighted_evidence_has_its_gradient(labels):
    X, y, _ = labels
    weight = np.random.default_rng(7).uniform(0.1, 5.0, len(y))
    kernel = 1.5 * RBF([0.8, 1.7])
    model = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y, weight)
    theta = kernel.theta + 0.1
    _, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    for j, step in enumerate(1e-5 * np.eye(len(theta))):
        up, down = (model.log_marginal_likelihood(theta + s) for s in (step, -step))
        assert_allclose(gradient[j], (up - down) / 2e-5, rtol=1e-6)


def test_weights_of_many_rows_reach_the_posterior(labels):
    X, y, _ = labels
    many = {"method": "svgp", "optimizer": None, "random_state": 0}
    weighted = GaussianProcessClassifier(RBF(), **many).fit(X, y, COUNTS)
    repeated = GaussianProcessClassifier(RBF(), **many)
    repeated.fit(np.repeat(X, COUNTS, axis=0), np.repeat(y, COUNTS))
    p = repeated.predict_proba(QUERY_2)
    assert_allclose(weighted.predict_proba(QUERY_2), p, rtol=1e-12)


def test_copies_count_once_where_rows_are_many(labels):
    """Rows that come several times went to inducing points, and the same weights did not."""
    X, y, _ = labels
    times = np.full(len(X), 4)
    few = {"kernel": RBF(), "max_exact": 2 * len(X), "optimizer": None}
    repeated = GaussianProcessClassifier(**few).fit(np.repeat(X, times, 0), np.repeat(y, times))
    weighted = GaussianProcessClassifier(**few).fit(X, y, sample_weight=times)
    assert repeated.method_ == weighted.method_ == "laplace"
    assert f"for {len(X)} rows, not more than" in repeated.method_reason_
    assert_allclose(repeated.predict_proba(QUERY_2), weighted.predict_proba(QUERY_2), rtol=1e-9)


@pytest.mark.parametrize("heavy", [[1e6], [1e6, 3e6]], ids=["alike", "different"])
def test_huge_weights_are_relative(labels, heavy):
    """They were so many equal labels, and probabilities nearly 0 and 1."""
    X, y, _ = labels
    weight = np.resize(heavy, len(y))
    model = GaussianProcessClassifier(SMOOTH)
    of_mean = weight / np.average(weight, weights=weight)
    expected = model.fit(X, y, of_mean).predict_proba(X)
    with pytest.warns(UserWarning, match="A weight is a number of rows"):
        found = model.fit(X, y, weight).predict_proba(X)
    assert_allclose(found, expected, atol=1e-6)


def test_huge_weights_of_copies_are_relative(labels):
    """Copies are no cells, in which equal inputs have different labels."""
    X, y, _ = labels
    model = GaussianProcessClassifier(SMOOTH)
    expected = model.fit(X, y).predict_proba(X)
    with pytest.warns(UserWarning, match="A weight is a number of rows"):
        model.fit(np.r_[X, X], np.r_[y, y], np.full(2 * len(y), 1e6))
    assert_allclose(model.predict_proba(X), expected, atol=1e-6)


def test_weights_that_leave_one_class_are_refused(labels):
    X, y, _ = labels
    with pytest.raises(ValueError, match="requires 2 or more distinct classes; got 1 class"):
        GaussianProcessClassifier().fit(X, y, y == "up")


class Interrupted:
    """An optimizer that evaluates a few theta, the second of them the best, and is interrupted."""

    def __init__(self, steps, error=KeyboardInterrupt):
        self.steps, self.error, self.n_calls = steps, error, 0

    def __call__(self, obj_func, initial_theta, bounds):
        self.n_calls += 1
        for step in self.steps:
            obj_func(initial_theta + step, eval_gradient=True)
        raise self.error


@both
def test_an_interrupt_keeps_the_best_so_far(ours, theirs, rows, labels):
    """Not the last that was evaluated; a warning says so, and the model predicts."""
    X, y, query, kernel = data_of(ours, rows, labels)
    best = ours(kernel).fit(X, y).kernel_.theta - kernel.theta
    model = ours(kernel, optimizer=Interrupted([0.0, best, 2.0 + best]))
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert_allclose(model.kernel_.theta, kernel.theta + best)
    at_best = ours(model.kernel_, optimizer=None).fit(X, y)
    assert_allclose(
        model.log_marginal_likelihood_value_, at_best.log_marginal_likelihood_value_, rtol=1e-9
    )
    assert_equal_predictions(model, at_best, query, rtol=1e-9, atol=1e-12)


@both
def test_an_interrupt_ends_restarts_too(ours, theirs, rows, labels):
    """Ctrl-C is not just for the search that runs."""
    X, y, _, kernel = data_of(ours, rows, labels)
    optimizer = Interrupted([0.0])
    model = ours(kernel, optimizer=optimizer, n_restarts_optimizer=5, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert optimizer.n_calls == 1
    assert_allclose(model.kernel_.theta, kernel.theta)


def test_an_interrupt_of_a_search_for_many_rows(rows):
    """Of the exact optimum of some rows, which training starts from."""
    model = GaussianProcessRegressor(KERNEL, optimizer=Interrupted([0.0]), method="sgpr")
    with pytest.warns(ConvergenceWarning):
        model.fit(*rows)
    assert model.method_ == "sgpr"
    predictions(model, QUERY)


@pytest.mark.parametrize("multi_class", ["one_vs_rest", "one_vs_one"])
def test_an_interrupt_of_several_classes(multi_class, labels):
    """What was found for each so far, or its start; Ctrl-C is not for one of them alone."""
    X, _, y = labels
    stopped = Interrupted([0.0, 0.1])

    def optimizer(obj_func, initial_theta, bounds):  # which clones share
        return stopped(obj_func, initial_theta, bounds)

    model = GaussianProcessClassifier(SMOOTH, optimizer=optimizer, multi_class=multi_class)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert stopped.n_calls == 1
    assert model.score(X, y) > 0.7


class StoppingKernel(RBF):
    """Raises KeyboardInterrupt at one of its evaluations, counted for all its copies."""

    left = 0

    def __call__(self, X, Y=None, eval_gradient=False):
        cls = type(self)
        cls.left -= 1
        if cls.left == 0:
            raise KeyboardInterrupt
        return super().__call__(X, Y, eval_gradient)


@both
def test_an_interrupt_in_the_middle_of_an_evaluation(ours, theirs, rows, labels):
    """Of our own optimiser, and better than where it started."""
    X, y, query, _ = data_of(ours, rows, labels)
    kernel = StoppingKernel(10.0)
    parameters = {"alpha": 0.1} if ours is GaussianProcessRegressor else {}
    StoppingKernel.left = 0
    start = ours(kernel, optimizer=None, **parameters).fit(X, y)
    StoppingKernel.left = 4
    model = ours(kernel, **parameters)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert model.log_marginal_likelihood_value_ > start.log_marginal_likelihood_value_
    assert "kernel object" in model.method_reason_
    predictions(model, query)


# ------------------------------------------------------------------- in blocks, and in any order
@pytest.fixture
def small_blocks(monkeypatch):
    """Predictions of a few rows are made in many blocks."""
    covariance = skgpstoch.kernels.matrices
    monkeypatch.setattr(skgpstoch.data.devices, "HOST_ELEMENTS", 64)
    monkeypatch.setattr(covariance, "LEAST_ROWS", 4)


@both
@pytest.mark.parametrize("own", [False, True])
def test_blocks(ours, theirs, own, rows, labels, small_blocks):
    """What is predicted in blocks is scikit-learn's, of kernels in torch and of objects."""
    X, y, query, kernel = data_of(ours, rows, labels)
    kernel = kernel + 0.1 * DotProduct() ** 2 + (MyRBF(2.0) if own else Matern(2.0, nu=1.5))
    model, reference = (cls(kernel, optimizer=None).fit(X, y) for cls in (ours, theirs))
    assert_equal_predictions(model, reference, query, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
def test_blocks_of_the_prior_and_of_outputs(own, rows, small_blocks):
    X, y = rows
    kernel = KERNEL + MyRBF(2.0) if own else KERNEL
    for Y in (None, np.column_stack([y, y**2])):
        models = [cls(kernel, n_targets=2) for cls in (GaussianProcessRegressor, TheirRegressor)]
        if Y is not None:
            models = [model.set_params(optimizer=None).fit(X, Y) for model in models]
        assert_equal_predictions(*models, QUERY, rtol=1e-6, atol=1e-9)


@both
@by_default("regressor")
def test_predictions_do_not_depend_on_batches(ours, theirs, rows, labels, monkeypatch):
    """One by one, in blocks, or all at once, to rounding."""
    X, y, query, kernel = data_of(ours, rows, labels)
    methods = ["exact", "sgpr", "nngp"] if ours is GaussianProcessRegressor else ["laplace", "svgp"]
    for method in methods:
        # Without optimizer=None, as that has a test of its own.
        kernel = ConstantKernel(1.3, "fixed") * RBF(0.9, "fixed")
        model = ours(kernel, method=method, random_state=0)
        if ours is GaussianProcessRegressor:
            model.set_params(kernel=kernel + WhiteKernel(0.05, "fixed"))
        model.fit(X, y)

        def moments(rows, model=model):
            if ours is GaussianProcessClassifier:
                return np.hstack([model.predict_proba(rows), model.predict_std(rows)])
            return np.column_stack(model.predict(rows, return_std=True))

        whole = moments(query)
        assert_allclose(np.vstack([moments(row[None]) for row in query]), whole, rtol=1e-8)
        assert_allclose(moments(query[::-1])[::-1], whole, rtol=1e-8)
        with monkeypatch.context() as patch:
            patch.setattr(skgpstoch.data.devices, "HOST_ELEMENTS", 64)
            patch.setattr(skgpstoch.kernels.matrices, "LEAST_ROWS", 4)
            assert_allclose(moments(query), whole, rtol=1e-8)


@both
def test_two_threads_predict(ours, theirs, rows, labels):
    """The same as one, to the last bit, whatever the other does."""
    X, y, query, kernel = data_of(ours, rows, labels)
    model = ours(kernel, optimizer=None).fit(X, y)
    wanted = predictions(model, query)
    wrong, errors = [], []

    def predict():
        try:
            for _ in range(15):
                found = predictions(model, query)
                wrong.extend(
                    a for a, b in zip(found, wanted, strict=True) if not np.array_equal(a, b)
                )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=predict) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not wrong


@both
def test_two_threads_fit(ours, theirs, rows, labels):
    """Each its own estimator; as one after the other."""
    X, y, query, kernel = data_of(ours, rows, labels)
    kernels = [kernel, clone(kernel).set_params(**{next(iter(kernel.get_params())): RBF(0.5)})]
    alone = [ours(k, random_state=0).fit(X, y) for k in kernels]
    fits = [ours(k, random_state=0) for k in kernels]
    threads = [threading.Thread(target=model.fit, args=(X, y)) for model in fits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, fits, strict=True):
        assert_equal_predictions(a, b, query)


@pytest.mark.slow
# ------------------------------------------------------------------------------------ many rows
def test_auto_takes_a_method_for_many_rows(rows, labels):
    """Beyond max_exact; the reason has the numbers."""
    X, y = rows
    for max_exact, method in ((60, "exact"), (59, "nngp")):
        model = GaussianProcessRegressor(KERNEL, max_exact=max_exact, random_state=0).fit(X, y)
        assert model.method_ == method
        assert model.method == "auto"
        assert "60" in model.method_reason_
        assert str(max_exact) in model.method_reason_
    X, y, three = labels
    for max_exact, method in ((20, "laplace"), (19, "svgp")):
        for y_ in (y[:20], three[:20]):
            model = GaussianProcessClassifier(RBF(1.0, "fixed"), max_exact=max_exact).fit(
                X[:20], y_
            )
            assert model.method_ == method
            assert str(max_exact) in model.method_reason_


FAR = [
    1.0 * ExpSineSquared(1.0, 2.0),
    1.0 * DotProduct(),
    RBF(50.0) * ExpSineSquared(0.3, 2.0),  # whose nearest rows are in other periods, too
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", FAR, ids=["periodic", "linear", "locally periodic"])
@by_default("^linear")
def test_auto_looks_at_how_far_rows_matter(kernel):
    """Neighbours are taken unless far rows say more of a row than its nearest ones."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-20.0, 20.0, (1000, 1))
    f = X[:, 0] if kernel.is_stationary() is False else np.sin(np.pi * X[:, 0])
    y = f + 0.5 * rng.standard_normal(1000)
    parameters = {"optimizer": None, "max_exact": 100, "random_state": 0}
    model = GaussianProcessRegressor(kernel + WhiteKernel(0.25), **parameters).fit(X, y)
    assert model.method_ == "sgpr"
    assert re.search("no rows are neighbours|far rows matter", model.method_reason_)
    model.set_params(kernel=RBF(0.3) + WhiteKernel(0.25)).fit(X, np.sin(np.pi * X[:, 0]))
    assert model.method_ == "nngp"
    assert "nearest neighbours" in model.method_reason_


@pytest.mark.slow
def test_training_by_neighbours_goes_on_from_the_search(rows, monkeypatch):
    """If the search takes only some of the rows; it ends near the exact optimum."""
    monkeypatch.setattr(skgpstoch.methods.drop_in.many_rows, "EXACT_START_ROWS", 50)
    rng = np.random.default_rng(1)
    X = rng.uniform(-4.0, 4.0, (120, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(120)
    exact = GaussianProcessRegressor(KERNEL).fit(X, y)
    model = clone(exact).set_params(max_exact=100, random_state=0).fit(X, y)
    assert model.method_ == "nngp"
    assert model.estimator_.n_iter_ > 1
    value = model.log_marginal_likelihood_value_
    assert_allclose(value, exact.log_marginal_likelihood_value_, atol=6.0)  # by 32 neighbours
    assert_allclose(model.log_marginal_likelihood(model.kernel_.theta), value, rtol=1e-8)
    assert_equal_predictions(model, exact, QUERY, atol=0.05)
    assert clone(model).set_params(optimizer=None).fit(X, y).kernel_ == KERNEL


def test_a_method_that_is_asked_for_is_taken(rows):
    """Whatever max_exact says."""
    model = GaussianProcessRegressor(KERNEL, method="exact", max_exact=10).fit(*rows)
    assert model.method_ == "exact"
    assert "exact" in model.method_reason_
    assert model.estimator_ is None


def compare_to_exact(model, rows, atol=1e-3, query=QUERY):
    """Predictions, value and hyper-parameters of a sparse fit of all rows, and the exact ones."""
    exact = clone(model).set_params(method="exact").fit(*rows)
    model.fit(*rows)
    for a, b in zip(predictions(model, query), predictions(exact, query), strict=True):
        assert a.shape == b.shape
        assert_allclose(a, b, atol=atol * max(1.0, np.abs(b).max()))
    assert_allclose(model.predict_interval(query), exact.predict_interval(query), atol=5 * atol)
    return exact


@pytest.mark.parametrize(
    ("kernel", "alpha"),
    [
        (KERNEL, 1e-10),
        (WhiteKernel(0.05) + 1.3 * RBF(0.9), 1e-10),  # its theta comes first
        (1.3 * RBF(0.9) + WhiteKernel(0.05, "fixed"), 1e-10),
        (1.3 * RBF(0.9), 0.04),  # the noise of no prediction
        (1.3 * RBF(0.9) + WhiteKernel(0.03), 0.02),  # of which one part is predicted
        (1.3 * RBF(0.9) + WhiteKernel(0.03, "fixed"), 0.02),
        (1.3 * RBF(0.9) + WhiteKernel(0.05) + ROUGH, 1e-10),  # in the middle
    ],
    ids=["free", "first", "fixed", "alpha", "both", "alpha+fixed", "middle"],
)
@slow_cases("middle", "both")
def test_noise_of_many_rows(kernel, alpha, rows):
    check_noise_of_many_rows("svgp", kernel, alpha, rows)


@pytest.mark.parametrize("method", [name for name in BY_KERNEL if name != "svgp"])
def test_noise_of_many_rows_by_other_methods(method, rows):
    check_noise_of_many_rows(method, 1.3 * RBF(0.9) + WhiteKernel(0.03), 0.02, rows)


def check_noise_of_many_rows(method, kernel, alpha, rows):
    """All rows are inducing points, so that it is the model of an exact fit, at its optimum."""
    model = GaussianProcessRegressor(
        kernel, alpha=alpha, method=method, dtype="float64", random_state=0
    )
    exact = compare_to_exact(model, rows, atol=1e-3)
    assert model.method_ == method
    assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=0.02)
    assert_allclose(model.kernel_.bounds, exact.kernel_.bounds)
    assert set(model.kernel_.get_params()) == set(exact.kernel_.get_params())
    value = exact.log_marginal_likelihood_value_
    assert_allclose(model.log_marginal_likelihood_value_, value, atol=0.05)
    assert model.log_marginal_likelihood() == model.log_marginal_likelihood_value_


@pytest.mark.parametrize("method", BY_KERNEL)
@pytest.mark.parametrize("normalize_y", [False, True])
def test_noise_of_each_row_of_many(method, normalize_y, rows):
    """alpha of rows is known, and no part of predictions; at fixed hyper-parameters the same."""
    X, y = rows
    model = GaussianProcessRegressor(
        ConstantKernel(1.3, "fixed") * RBF(0.9, "fixed") + WhiteKernel(0.05, "fixed"),
        alpha=np.linspace(0.001, 0.5, len(X)),
        normalize_y=normalize_y,
        method=method,
        dtype="float64",
        random_state=0,
    )
    compare_to_exact(model, (X, 3.0 + 2.0 * y))
    assert "alpha" not in model.method_reason_


@pytest.mark.parametrize("method", BY_KERNEL)
def test_many_rows_of_normalised_targets(method, rows):
    """kernel_ is for targets of unit variance, as where a fit is exact."""
    X, y = rows
    model = GaussianProcessRegressor(
        KERNEL, normalize_y=True, method=method, dtype="float64", random_state=0
    )
    exact = compare_to_exact(model, (X, 50.0 + 30.0 * y))
    assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=0.02)
    assert_allclose(model.y_train_, exact.y_train_)
    assert_allclose(
        model.log_marginal_likelihood_value_, exact.log_marginal_likelihood_value_, atol=0.05
    )


@pytest.mark.parametrize("method", BY_KERNEL)
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_many_rows_of_several_outputs(method, n_outputs, rows):
    X, y = rows
    Y = np.column_stack([y, 2.0 + np.cos(2 * X[:, 0]) + 0.2 * y])[:, :n_outputs]
    kernel = ConstantKernel(1.3, "fixed") * RBF(0.9, "fixed") + WhiteKernel(0.05, "fixed")
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, method=method, dtype="float64", random_state=0
    )
    exact = compare_to_exact(model, (X, Y))
    assert model.sample_y(QUERY, 3).shape == exact.sample_y(QUERY, 3).shape
    assert_allclose(
        model.log_predictive_density(X, Y), exact.log_predictive_density(X, Y), atol=1e-2
    )


def test_features_are_close_to_the_exact_model(rows):
    """1,000 random ones: the kernel to some percent."""
    kernel = 1.3 * RBF(0.9) + WhiteKernel(0.05)
    model = GaussianProcessRegressor(kernel, method="scgd", optimizer=None, random_state=0)
    exact = clone(model).set_params(method="exact").fit(*rows)
    model.fit(*rows)
    assert model.method_ == "scgd"
    inside = QUERY[4:-4]
    for a, b in zip(predictions(model, inside), predictions(exact, inside), strict=True):
        assert_allclose(a, b, atol=0.15)


@pytest.mark.slow
def test_features_are_fitted(rows):
    """Whose kernel_ has the hyper-parameters of the kernel, in their order."""
    model = GaussianProcessRegressor(KERNEL, method="scgd", random_state=0)
    exact = clone(model).set_params(method="exact").fit(*rows)
    model.fit(*rows)
    assert_allclose(model.predict(QUERY[4:-4]), exact.predict(QUERY[4:-4]), atol=0.15)
    assert set(model.kernel_.get_params()) == set(KERNEL.get_params())
    assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=0.5)


def test_a_white_kernel_is_added_where_there_is_no_noise(rows):
    """And the reason says so; not where alpha is one."""
    for alpha, added in ((1e-10, True), (0.1, False)):
        model = GaussianProcessRegressor(
            1.0 * RBF(), alpha=alpha, method="sgpr", random_state=0
        ).fit(*rows)
        assert ("WhiteKernel" in model.method_reason_) == added
        assert ("WhiteKernel" in repr(model.kernel_)) == added
        assert model.kernel == 1.0 * RBF()


@pytest.mark.filterwarnings("ignore:The optimal value found")
@pytest.mark.parametrize(
    ("method", "noise", "optimizer"),
    [
        *(("svgp", noise, "fmin_l_bfgs_b") for noise in ("first", "fixed", "none", "rows")),
        *((method, "rows", "fmin_l_bfgs_b") for method in BY_KERNEL if method != "svgp"),
        *((method, "first", None) for method in BY_KERNEL),
        *(("svgp", noise, None) for noise in ("fixed", "none")),
    ],
)
@slow_cases("svgp-(fixed|none)-fmin", "svgp-first-None", "svgp-rows", "sgpr-rows", "nngp-rows")
def test_the_bound_at_any_theta(method, noise, optimizer, rows):
    """With all rows as inducing points it is the marginal likelihood, alpha and noise included."""
    X, y = rows
    kernel, alpha = 1.3 * RBF(0.9), np.asarray(0.05)
    if noise == "first":
        kernel = WhiteKernel(0.2) + kernel
    elif noise == "fixed":
        kernel = kernel + WhiteKernel(0.2, "fixed")
    elif noise == "rows":
        kernel, alpha = kernel + WhiteKernel(0.2), np.linspace(0.05, 0.3, len(y))
    model = GaussianProcessRegressor(
        kernel, alpha=alpha, optimizer=optimizer, method=method, random_state=0
    ).fit(X, y)
    theta = model.kernel_.theta + 0.1
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    exact = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, y)
    # Half of the rows are inducing points of "auto": a bound, and all but tight.
    # Neighbours, 32 of 60 rows, give a value that is close and no bound.
    highest = 0.1 if method == "nngp" else 1e-6
    assert -0.5 < value - exact.log_marginal_likelihood(theta) < highest
    assert value == model.log_marginal_likelihood(theta)
    step = 1e-4 * np.eye(len(theta))
    at = model.log_marginal_likelihood
    slopes = [(at(theta + h) - at(theta - h)) / 2e-4 for h in step]
    assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-4)
    assert_allclose(model.kernel_.theta + 0.1, theta)  # which stayed
    assert model.log_marginal_likelihood(theta, clone_kernel=False) == value
    assert_allclose(model.kernel_.theta, theta)


@pytest.mark.parametrize("method", ["exact", "sgpr", "nngp"])
@pytest.mark.parametrize("theta", [[np.nan] * 3, [1e3, 0.0, 0.0], [0.0, 0.0, 1e3]])
def test_there_is_no_likelihood_where_there_is_no_factor(method, theta, rows):
    kernel = 1.0 * RBF() + WhiteKernel()
    model = GaussianProcessRegressor(kernel, method=method, random_state=0).fit(*rows)
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == -np.inf
    assert_array_equal(gradient, np.zeros(3))
    with pytest.raises(ValueError, match="theta must be numbers, got 'abc'"):
        model.log_marginal_likelihood("abc")


@pytest.mark.parametrize("method", MANY)
def test_what_means_nothing_for_many_rows(method, rows):
    """It says why; an attribute that there is not is as in any class."""
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed")
    exact = GaussianProcessRegressor(kernel, random_state=0).fit(*rows)
    model = exact.set_params(method=method).fit(*rows)  # which had them
    fits = [model] if method == "scgd" else [model, clone(model).fit(*rows)]
    for fitted in fits:
        for name in ("L_", "alpha_"):
            assert not hasattr(fitted, name)
            with pytest.raises(AttributeError, match=f"{name}.*{method}"):
                getattr(fitted, name)
        if method == "scgd":
            with pytest.raises(AttributeError, match=method):
                fitted.log_marginal_likelihood(kernel.theta)
        with pytest.raises(AttributeError, match="nothing_"):
            fitted.nothing_  # noqa: B018
        assert type(fitted.estimator_).__name__.endswith("Regressor")
        for name in ("X_train_", "y_train_", "kernel_", "n_features_in_"):
            assert hasattr(fitted, name)
    model.set_params(method="exact").fit(*rows)
    assert model.L_.shape == (60, 60)
    assert model.estimator_ is None
    assert np.isfinite(model.log_marginal_likelihood(np.zeros(0)))


def test_unfitted_attributes_are_missing_as_in_any_class():
    for cls in (GaussianProcessRegressor, GaussianProcessClassifier):
        for name in ("L_", "kernel_", "method_", "estimator_"):
            assert not hasattr(cls(), name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "classes"),
    [("svgp", (2, 3)), pytest.param("solve", (2, 3), marks=pytest.mark.slow)],
    ids=["svgp", "solve"],
)
def test_classifiers_of_many_rows(method, classes, labels):
    """Close to Laplace's at the same hyper-parameters, and of any number of classes."""
    X, two, three = labels
    kernel = ConstantKernel(2.0, "fixed") * RBF([1.0, 1.5], "fixed")
    for n_classes in classes:
        y = two if n_classes == 2 else three
        model = GaussianProcessClassifier(kernel, method=method, random_state=0)
        laplace = clone(model).set_params(method="laplace").fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        assert model.method_ == method
        assert_array_equal(model.classes_, laplace.classes_)
        proba = model.predict_proba(QUERY_2)
        assert_allclose(proba.sum(1), 1.0)
        assert_allclose(proba, laplace.predict_proba(QUERY_2), atol=0.25)
        assert model.score(X, y) > 0.8
        assert np.isfinite(model.log_marginal_likelihood())
        with pytest.raises(AttributeError, match=method):
            model.log_marginal_likelihood(kernel.theta)
        assert isinstance(pickle.loads(pickle.dumps(model)), GaussianProcessClassifier)
        if y is two:
            mean, var = model.latent_mean_and_variance(QUERY_2)
            assert_array_equal(mean > 0, proba[:, 1] > 0.5)
            assert np.all(var > 0)
        else:
            with pytest.raises(ValueError, match="binary"):
                model.latent_mean_and_variance(QUERY_2)


def test_classifiers_of_many_rows_leave_out_a_white_kernel(labels):
    X, y, _ = labels
    kernel = RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed")
    model = GaussianProcessClassifier(kernel, method="svgp", random_state=0).fit(X, y)
    assert "WhiteKernel" in model.method_reason_
    assert model.kernel == kernel


# ------------------------------------------------------------------------ kernels of any object
@pytest.mark.parametrize(
    "kernel",
    [
        MyRBF(0.8),
        1.5 * MyRBF(0.8) + Matern(1.0, nu=0.5),
        Matern(0.9, nu=2.0),
        PairwiseKernel(gamma=0.6, metric="rbf"),
        PairwiseKernel(gamma=0.6, gamma_bounds="fixed", metric="laplacian") + WhiteKernel(0.1),
    ],
)
def test_kernels_that_compute_themselves(kernel, rows, labels):
    """A subclass, a Matern that torch has not, and pairwise metrics: as scikit-learn, and said."""
    for ours, theirs in BOTH:
        X, y, query, _ = data_of(ours, rows, labels)
        parameters = {"alpha": 0.1} if ours is GaussianProcessRegressor else {}
        model, reference = (cls(kernel, optimizer=None, **parameters) for cls in (ours, theirs))
        model.fit(X, y)
        assert re.search("kernel object.*NumPy", model.method_reason_)
        assert_equal_predictions(model, reference.fit(X, y), query, rtol=1e-6, atol=1e-9)
        if theirs is TheirClassifier and kernel.n_dims == 0:
            continue  # scikit-learn has no gradient of no hyper-parameters
        value, gradient = model.log_marginal_likelihood(kernel.theta + 0.1, True)
        their_value, their_gradient = reference.log_marginal_likelihood(kernel.theta + 0.1, True)
        assert_allclose(value, their_value, rtol=1e-6)
        assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-6)


def test_kernels_in_torch_have_no_such_reason(rows):
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    assert "object" not in model.method_reason_


@both
def test_kernels_that_compute_themselves_are_searched(ours, theirs, rows, labels):
    X, y, _, _ = data_of(ours, rows, labels)
    parameters = {"alpha": 0.1} if ours is GaussianProcessRegressor else {}
    model, reference = (cls(1.0 * MyRBF(2.0), **parameters).fit(X, y) for cls in (ours, theirs))
    value = model.log_marginal_likelihood_value_
    assert value >= reference.log_marginal_likelihood_value_ - 1e-5


def test_kernels_that_compute_themselves_are_exact(rows, labels):
    """Also beyond max_exact, as the reason says; methods for many rows refuse them."""
    X, y = rows
    model = GaussianProcessRegressor(MyRBF(0.8), alpha=0.1, max_exact=10, optimizer=None)
    with pytest.warns(UserWarning, match="all rows form one matrix") as found:
        model.fit(X, y)
    assert found[0].filename == __file__
    assert model.method_ == "exact"
    assert "object" in model.method_reason_
    for method in MANY:
        with pytest.raises(ValueError, match="kernel"):
            GaussianProcessRegressor(MyRBF(0.8), method=method).fit(X, y)
    X, y, _ = labels
    for method in ("svgp", "solve"):
        with pytest.raises(ValueError, match="kernel"):
            GaussianProcessClassifier(MyRBF(0.8), method=method).fit(X, y)


@pytest.mark.parametrize("container", [list, np.array])
def test_strings(container):
    """Lists, or arrays of objects, with a kernel that takes them."""
    words = ["AGCT", "AGC", "AACT", "TAA", "AAA", "GAACA", "T", "CC"]
    X, query = container(words), container(["AG", "TTT", "GACT"])
    y, kernel = np.array([1.0, 2.0, 1.5, -1.0, 0.0, 0.5, -2.0, 3.0]), MiniSeqKernel(0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours, theirs = (
            cls(kernel, alpha=0.1).fit(X, y) for cls in (GaussianProcessRegressor, TheirRegressor)
        )
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=1e-3)
    assert_equal_predictions(ours, theirs, query, rtol=1e-3, atol=1e-3)
    assert "object" in ours.method_reason_
    assert ours.sample_y(query, 2).shape == (3, 2)
    ours, theirs = (
        cls(kernel, optimizer=None).fit(X, y > 0.4)
        for cls in (GaussianProcessClassifier, TheirClassifier)
    )
    assert_equal_predictions(ours, theirs, query, rtol=1e-6)
    prior = GaussianProcessRegressor(kernel)
    assert_equal_predictions(prior, TheirRegressor(kernel), query, rtol=1e-12)


# ---------------------------------------------------------------------------------- other inputs
def as_frame(X):
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])


def as_polars(X):
    return pl.DataFrame(X, schema=[f"x{i}" for i in range(X.shape[1])])


@both
@pytest.mark.parametrize(
    "convert",
    [as_frame, as_polars, torch.tensor, np.asfortranarray, list, lambda X: np.repeat(X, 2, 0)[::2]],
    ids=["pandas", "polars", "torch", "fortran", "list", "strided"],
)
def test_containers(ours, theirs, convert, rows, labels):
    """The same predictions as from an array; names are kept where there are some."""
    X, y, query, kernel = data_of(ours, rows, labels)
    array = ours(kernel, optimizer=None).fit(X, y)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        model = ours(kernel, optimizer=None).fit(convert(X), y)
        converted = convert(query)
    for a, b in zip(predictions(model, converted), predictions(array, query), strict=True):
        assert_array_equal(a, b)
    if convert in (as_frame, as_polars):
        assert list(model.feature_names_in_) == [f"x{i}" for i in range(X.shape[1])]
    else:
        assert not hasattr(model, "feature_names_in_")


@both
def test_feature_names_are_checked(ours, theirs, rows, labels):
    X, y, query, kernel = data_of(ours, rows, labels)
    model = ours(kernel, optimizer=None).fit(as_frame(X), y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(as_frame(query).rename(columns={"x0": "other"}))
    with pytest.warns(UserWarning, match="feature names"):
        model.predict(query)


def test_targets_of_torch_and_pandas(rows):
    X, y = rows
    wanted = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y).predict(QUERY)
    for target in (torch.tensor(y.copy()), pd.Series(y), pl.Series(y), list(y)):
        model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, target)
        assert_array_equal(model.predict(QUERY), wanted)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8, bool])
def test_numbers_of_other_types(ours, theirs, dtype, rows, labels):
    """Computed in float64: as the same numbers in float64 are."""
    X, y, query, kernel = data_of(ours, rows, labels)
    X, query = X.astype(dtype), query.astype(dtype)
    model = ours(kernel, optimizer=None).fit(X, y)
    wanted = ours(kernel, optimizer=None).fit(X.astype(float), y)
    got, same = predictions(model, query), predictions(wanted, query.astype(float))
    for a, b in zip(got, same, strict=True):
        assert a.dtype == np.float64
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [[1, [2]], "much", [None]])
def test_alpha_is_named_if_it_holds_no_numbers(rows, alpha):
    with pytest.raises((TypeError, ValueError), match="alpha"):
        GaussianProcessRegressor(alpha=alpha).fit(*rows)


@both
def test_read_only_arrays_and_inputs_stay(ours, theirs, rows, labels):
    """Neither the data nor alpha, theta or the kernel change; what is returned can be written."""
    X, y, query, kernel = data_of(ours, rows, labels)
    arrays = [np.array(a) for a in (X, y, query, np.full(len(X), 0.1), kernel.theta)]
    copies = [a.copy() for a in arrays]
    for array in arrays:
        array.flags.writeable = False
    X, y, query, alpha, theta = arrays
    for copy_X_train in (True, False):
        model = ours(kernel, optimizer=None, copy_X_train=copy_X_train)
        if ours is GaussianProcessRegressor:
            model.set_params(alpha=alpha)
        model.fit(X, y)
        for found in predictions(model, query):
            found += 1.0
        model.log_marginal_likelihood(theta, True, clone_kernel=False)
        assert model.kernel is kernel
        for array, copy in zip(arrays, copies, strict=True):
            assert_array_equal(array, copy)


@both
def test_copy_x_train(ours, theirs, rows, labels):
    """Copies do not follow the caller's array."""
    X, y, query, kernel = data_of(ours, rows, labels)
    X = np.array(X)
    model = ours(kernel, optimizer=None).fit(X, y)
    assert not np.shares_memory(model.X_train_, X)
    before = predictions(model, query)
    X += 1.0
    for a, b in zip(before, predictions(model, query), strict=True):
        assert_array_equal(a, b)


def test_a_row_and_no_row(rows):
    """One row is enough for a regressor; none is a ValueError."""
    X, y = rows
    ours, theirs = (
        cls(KERNEL, optimizer=None).fit(X[:1], y[:1])
        for cls in (GaussianProcessRegressor, TheirRegressor)
    )
    assert_equal_predictions(ours, theirs, QUERY, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="0 sample"):
        GaussianProcessRegressor(KERNEL).fit(X[:0], y[:0])
    with pytest.raises(ValueError, match="0 sample"):
        ours.predict(X[:0])


# ------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel", "RBF"),
        ("optimizer", "adam"),
        ("n_restarts_optimizer", -1),
        ("n_restarts_optimizer", 1.5),
        ("n_restarts_optimizer", True),
        ("max_exact", True),
        ("n_targets", True),
        ("max_iter_predict", True),
        ("max_exact", 0),
        ("max_exact", "many"),
        ("method", "nystroem"),
        ("dtype", "float16"),
        ("device", 3),
        ("device", "tpu-of-mine"),
        ("device", "cuda:99"),
        ("copy_X_train", "yes"),
        ("random_state", "seed"),
        ("alpha", -1.0),
        ("alpha", "noise"),
        ("alpha", [0.1, 0.2]),
        ("alpha", np.full(60, np.nan)),
        ("alpha", np.inf),
        ("alpha", np.full((60, 1), 0.1)),
        ("alpha", np.linspace(-0.1, 1, 60)),
        ("normalize_y", "yes"),
        ("n_targets", 0),
        ("multi_class", "one_vs_two"),
        ("max_iter_predict", 0),
        ("n_jobs", "all"),
        ("warm_start", "yes"),
    ],
)
def test_bad_parameters_are_named(name, value, rows, labels):
    """In a ValueError or TypeError that leaves the estimator as it was."""
    for ours, _ in BOTH:
        if name not in ours().get_params():
            continue
        X, y, query, kernel = data_of(ours, rows, labels)
        model = ours(kernel, optimizer=None).fit(X, y)
        wanted, good = predictions(model, query), model.get_params()[name]
        before = state(model.set_params(**{name: value}))
        with pytest.raises((ValueError, TypeError), match=name):
            model.fit(X, y)
        assert state(model) == before
        assert model.get_params()[name] is value
        model.set_params(**{name: good})
        for a, b in zip(predictions(model, query), wanted, strict=True):
            assert_array_equal(a, b)


def test_methods_of_the_other_class_are_refused(rows, labels):
    with pytest.raises(ValueError, match="method"):
        GaussianProcessRegressor(method="laplace").fit(*rows)
    for method in ("exact", "sgpr", "scgd"):
        with pytest.raises(ValueError, match="method"):
            GaussianProcessClassifier(method=method).fit(*labels[:2])


@both
def test_bad_data(ours, theirs, rows, labels):
    """NaN, infinity, other numbers of rows or columns; the model stays."""
    X, y, query, kernel = data_of(ours, rows, labels)
    model = ours(kernel, optimizer=None).fit(X, y)
    before, wanted = state(model), predictions(model, query)
    for bad in (np.nan, np.inf):
        wrong = np.array(X)
        wrong[3, 0] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.fit(wrong, y)
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            model.predict(wrong)
    with pytest.raises(ValueError, match="inconsistent"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="2D array"):
        model.fit(X[:, 0], y)
    with pytest.raises(ValueError, match="features"):
        model.predict(np.ones((3, 5)))
    with pytest.raises(ValueError, match="y"):
        model.fit(X, None)
    with pytest.raises(ValueError, match="omplex"):
        model.fit(X + 1j, y)
    assert state(model) == before
    for a, b in zip(predictions(model, query), wanted, strict=True):
        assert_array_equal(a, b)


def test_bad_labels(labels):
    X, y, _ = labels
    model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, y)
    before = state(model)
    with pytest.raises(ValueError, match="class"):
        model.fit(X, ["same"] * len(X))
    with pytest.raises(ValueError, match=r"continuous|label type"):
        model.fit(X, np.linspace(0, 1, len(X)))
    with pytest.raises(ValueError, match="CompoundKernel"):
        GaussianProcessClassifier(CompoundKernel([RBF()])).fit(X, y)
    assert state(model) == before
    assert_array_equal(model.classes_, ["down", "up"])


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 2, "most", np.nan, None])
def test_bad_coverage(coverage, rows):
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    with pytest.raises((ValueError, TypeError), match="coverage"):
        model.predict_interval(QUERY, coverage)


@pytest.mark.parametrize("n_samples", [-1, 0.5, "many", True])
def test_bad_numbers_of_draws(n_samples, rows):
    with pytest.raises((ValueError, TypeError), match="n_samples"):
        GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows).sample_y(QUERY, n_samples)


@pytest.mark.parametrize("kernel", [KERNEL, None])
def test_a_singular_covariance_leaves_the_model(kernel, rows):
    """An error of linear algebra that is a ValueError, and says what helps."""
    X, y = rows
    model = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.1).fit(X, y)
    wanted = predictions(model, QUERY)
    model.set_params(kernel=DotProduct(), alpha=0.0)
    before = state(model)
    with pytest.raises(LinAlgError, match="alpha") as caught:
        model.fit(X, y)
    assert isinstance(caught.value, ValueError)
    assert state(model) == before
    model.set_params(kernel=kernel)
    for a, b in zip(predictions(model, QUERY), wanted, strict=True):
        assert_array_equal(a, b)


class BrokenError(Exception):
    """Of a test's optimizer."""


@both
@pytest.mark.parametrize("method", ["exact", "many"])
def test_an_optimizers_error_leaves_the_model(ours, theirs, method, rows, labels):
    """Also where the last fit was by another method, with other classes and features."""
    X, y, query, kernel = data_of(ours, rows, labels)
    model = ours(kernel, optimizer=None).fit(X, y)
    wanted = predictions(model, query)
    method = "auto" if method == "exact" else "svgp"
    model.set_params(optimizer=Interrupted([0.0], BrokenError), method=method)
    before = state(model)
    other = labels[2][:20] if ours is GaussianProcessClassifier else y[:20]
    if method == "auto" or ours is GaussianProcessRegressor:
        with pytest.raises(BrokenError):
            model.fit(X[:20], other)
    assert state(model) == before
    for a, b in zip(predictions(model, query), wanted, strict=True):
        assert_array_equal(a, b)


@both
def test_a_failed_first_fit_leaves_nothing(ours, theirs, rows, labels):
    X, y, _, kernel = data_of(ours, rows, labels)
    model = ours(kernel, optimizer=Interrupted([0.0], BrokenError))
    with pytest.raises(BrokenError):
        model.fit(X, y)
    assert not any(name.endswith("_") and name[0] != "_" for name in vars(model))
    if ours is GaussianProcessClassifier:
        with pytest.raises(NotFittedError):
            model.predict(X)
    else:
        assert_array_equal(model.predict(X), np.zeros(len(X)))  # of the prior


# ------------------------------------------------------------------- numeric_context and repetition
def numeric_context():
    """Settings and states that are not ours to change."""
    return (
        repr(np.random.get_state()),  # noqa: NPY002
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        list(warnings.filters),
        np.geterr(),
    )


@both
def test_numeric_context_stays(ours, theirs, rows, labels):
    """After fits that end well, badly, or by an interrupt; by any kind of method."""
    X, y, query, kernel = data_of(ours, rows, labels)
    before = numeric_context()
    for method in ("auto", "svgp"):
        small = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
        for seed in (0, None):
            model = ours(small, method=method, random_state=seed).fit(X, y)
        model.predict(query)
        if ours is GaussianProcessRegressor:
            predictions(model, query)
            model.sample_y(query)
    optimizer = Interrupted([0.0], BrokenError)
    model = ours(kernel, optimizer=optimizer, n_restarts_optimizer=1, random_state=0)
    with pytest.raises(BrokenError):
        model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(optimizer=Interrupted([0.0])).fit(X, y)
    assert numeric_context() == before


@both
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_default_dtype_and_grad_mode_have_no_part(ours, theirs, default, rows, labels):
    X, y, query, kernel = data_of(ours, rows, labels)
    wanted = ours(kernel).fit(X, y)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.no_grad():
            model = ours(kernel).fit(X, y)
        with torch.inference_mode():
            other = ours(kernel).fit(X, y)
            predictions(other, query)
        assert_equal_predictions(model, wanted, query)
        assert_equal_predictions(other, wanted, query)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.slow
@both
@pytest.mark.parametrize("method", ["auto", "svgp"])
@slow_cases("auto-classifier")
def test_the_same_seed_gives_the_same_fit(ours, theirs, method, rows, labels):
    """Bitwise, whatever the global generators' states; also of a clone, or of a second fit."""
    X, y, query, kernel = data_of(ours, rows, labels)
    if ours is GaussianProcessClassifier and method != "auto":
        kernel = clone(kernel).set_params(
            k1__constant_value_bounds="fixed", k2__length_scale_bounds="fixed"
        )
        X, y = X[:20], y[:20]
    restarts = 2 if method == "auto" else 0
    model = ours(kernel, method=method, random_state=3, n_restarts_optimizer=restarts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
        np.random.random(3)  # noqa: NPY002
        torch.rand(3)
        other = clone(model).fit(X, y)
    assert_array_equal(model.log_marginal_likelihood_value_, other.log_marginal_likelihood_value_)
    if ours is GaussianProcessRegressor:
        assert_equal_predictions(model, other, query)
    else:
        assert_array_equal(model.predict_proba(query), other.predict_proba(query))


@both
@pytest.mark.parametrize("method", ["auto", "svgp"])
def test_pickles_and_clones(ours, theirs, method, rows, labels):
    """A pickle predicts the same; a clone has the parameters and no fit."""
    X, y, query, kernel = data_of(ours, rows, labels)
    small = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
    model = ours(small, method=method, random_state=0).fit(X, y)
    loaded = pickle.loads(pickle.dumps(model))
    if ours is GaussianProcessRegressor:
        assert_equal_predictions(model, loaded, query)
    else:
        assert_array_equal(model.predict_proba(query), loaded.predict_proba(query))
    assert loaded.method_reason_ == model.method_reason_
    if method == "auto":
        theta = model.kernel_.theta
        assert_array_equal(
            loaded.log_marginal_likelihood(theta), model.log_marginal_likelihood(theta)
        )
    copied = clone(model)
    assert not hasattr(copied, "kernel_")
    assert repr(copied.get_params()) == repr(model.get_params())
    assert pickle.loads(pickle.dumps(ours(kernel))).kernel == kernel


# ------------------------------------------------------------------------ predictive distributions
def test_intervals_and_densities(rows):
    """Of the Gaussian that predict has, for a row and for several outputs."""
    X, y = rows
    for Y in (y, np.column_stack([y, y**2])):
        model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, Y)
        mean, std = model.predict(X, return_std=True)
        assert_array_equal(model.predict_std(X), std)
        density = norm.logpdf(Y, mean, std).reshape(len(X), -1).sum(1)
        assert_allclose(model.log_predictive_density(X, Y), density)
        assert_allclose(model.predictive_cdf(X, Y), norm.cdf(Y, mean, std))
        for coverage in (0.5, 0.95):
            z = norm.ppf(0.5 + coverage / 2)
            wanted = np.stack([mean - z * std, mean + z * std], axis=1)
            assert_allclose(model.predict_interval(X, coverage), wanted)
        assert_array_equal(model.predict_interval(X), model.predict_interval(X, coverage=0.95))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "svgp"])
@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_intervals_are_about_y_and_its_noise(method):
    """They have alpha, which `predict` leaves out as scikit-learn does; not a jitter, not rows'."""
    rng = np.random.default_rng(0)
    X, X_new = rng.uniform(-3, 3, (200, 1)), rng.uniform(-3, 3, (1000, 1))
    y, y_new = (np.sin(2 * x[:, 0]) + 0.3 * rng.standard_normal(len(x)) for x in (X, X_new))
    same = {"method": method, "normalize_y": True, "random_state": 0}
    alpha = 0.09 / y.var()
    model = GaussianProcessRegressor(RBF(), alpha=alpha, **same).fit(X, y)
    low, high = model.predict_interval(X_new, 0.9).T
    assert 0.86 < np.mean((low <= y_new) & (y_new <= high)) < 0.94
    var = model.predict_distribution(X_new).std() ** 2
    assert_allclose(var, model.predict_std(X_new) ** 2 + 0.09)
    assert model.log_predictive_density(X_new, y_new).mean() > -0.4
    of_rows = GaussianProcessRegressor(RBF(), alpha=np.full(200, alpha), **same).fit(X, y)
    for each in (of_rows, GaussianProcessRegressor(RBF(), alpha=1e-8, **same).fit(X, np.sin(X))):
        assert_allclose(each.predict_distribution(X_new).std(), each.predict_std(X_new))


def test_alpha_is_noise_whatever_the_mean_and_the_other_targets():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (100, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(100)
    Y = np.column_stack([300.0 + y, 1e3 * np.cos(X[:, 0]), np.full(100, 2.0)])
    model = GaussianProcessRegressor(1e5 * RBF(), alpha=0.01, optimizer=None).fit(X, Y)
    added = model.predict_distribution(QUERY).var() - model.predict_std(QUERY) ** 2
    assert_allclose(added, np.broadcast_to([0.01, 0.0, 0.01], added.shape), atol=1e-9)


@pytest.mark.parametrize("optimizer", [None, "fmin_l_bfgs_b"])
def test_several_white_kernels(optimizer, rows):
    """They are scikit-learn's; their sum is one of the sum of their variances."""
    X, y = rows
    kernel = WhiteKernel(0.1) + RBF() + WhiteKernel(0.2)
    models = [
        cls(each, optimizer=optimizer).fit(X, y)
        for cls, each in ((GaussianProcessRegressor, kernel), (TheirRegressor, kernel))
    ]
    ours, theirs = (model.predict(QUERY, return_std=True) for model in models)
    assert_allclose(ours, theirs, rtol=1e-3)
    one = GaussianProcessRegressor(RBF() + WhiteKernel(0.3), optimizer=optimizer).fit(X, y)
    assert_allclose(models[0].predict(QUERY), one.predict(QUERY), rtol=1e-3)
    drawn, drawn_of_one = (m.sample_functions(3, 0)(QUERY) for m in (models[0], one))
    assert_allclose(drawn, drawn_of_one, atol=1e-2)


def test_probabilities_where_there_is_no_variance():
    """They are those of a step, at the mean."""
    model = GaussianProcessRegressor(ConstantKernel(4.0, "fixed"), alpha=0.0)
    X = np.zeros((3, 1))
    model.fit(X[:1], [0.0])
    assert_array_equal(model.predict_std(X), 0.0)
    assert_array_equal(model.predictive_cdf(X, [-1.0, 0.0, 1.0]), [0.0, 1.0, 1.0])
    density = model.log_predictive_density(X, [-1.0, 0.0, 1.0])
    assert_array_equal(density, [-np.inf, np.inf, -np.inf])


def test_densities_of_targets_where_there_is_no_variance():
    """They are 0 where any target is off its mean."""
    model = GaussianProcessRegressor(ConstantKernel(4.0, "fixed"), alpha=0.0)
    model.fit([[0.0]], [[0.0, 1.0]])
    Y = [[0.0, 1.0], [0.0, 2.0], [1.0, 2.0]]
    density = model.log_predictive_density(np.zeros((3, 1)), Y)
    assert_array_equal(density, [np.inf, -np.inf, -np.inf])


@pytest.mark.parametrize("method", ["predictive_cdf", "log_predictive_density"])
def test_targets_of_another_shape_are_refused(method):
    X, y = QUERY, np.zeros(len(QUERY))
    one = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    two = clone(one).fit(X, np.column_stack([y, y]))
    assert_array_equal(getattr(one, method)(X, y), getattr(one, method)(X, y[:, None]).ravel())
    getattr(two, method)(X, np.column_stack([y, y]))
    for model, wrong in (
        (one, y[:1]),
        (one, y[None]),
        (two, np.stack([y, y])),
        (two, np.concatenate([y, y])),
        (two, y),
    ):
        with pytest.raises(ValueError, match="y must have the shape"):
            getattr(model, method)(X, wrong)


@pytest.mark.slow
def test_model_selection(rows, labels):
    """Searches, cross-validation and pipelines of scikit-learn."""
    X, y = rows
    for ours, query in ((GaussianProcessRegressor, QUERY), (GaussianProcessClassifier, QUERY_2)):
        X, y, _, kernel = data_of(ours, rows, labels)
        pipeline = make_pipeline(StandardScaler(), ours(kernel, optimizer=None))
        assert pipeline.fit(X, y).predict(query).shape == (len(query),)
        assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.6
        name = ours.__name__.lower()
        grid = {f"{name}__kernel": [kernel, RBF(100.0) + WhiteKernel(1.0)]}
        search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
        assert search.best_params_[f"{name}__kernel"] == kernel
    proba = cross_val_predict(pipeline, X, y, cv=3, method="predict_proba")
    assert_allclose(proba.sum(1), 1.0)


def test_hyper_parameters_of_kernels_can_be_searched(rows):
    """By their names in the kernel."""
    model = GaussianProcessRegressor(KERNEL, optimizer=None)
    grid = {"kernel__k2__noise_level": [0.05, 50.0], "alpha": [1e-10]}
    search = GridSearchCV(model, grid, cv=3).fit(*rows)
    assert search.best_params_["kernel__k2__noise_level"] == 0.05


@pytest.mark.parametrize("name", [name for name in metrics.__all__ if name.endswith("_scorer")])
def test_scorers(name, rows):
    """Those of skgpstoch.metrics score the drop-in, and scikit-learn's class the same."""
    X, y = rows
    scorer = getattr(metrics, name)
    scorer = scorer(0.8) if name.startswith("make") else scorer
    scores = [
        cross_val_score(cls(KERNEL, optimizer=None), X, y, cv=3, scoring=scorer)
        for cls in (GaussianProcessRegressor, TheirRegressor)
    ]
    assert np.all(np.isfinite(scores))
    assert_allclose(*scores, rtol=1e-6, atol=1e-9)


def test_density_scorer_is_the_mean_density(rows):
    model = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    assert_allclose(
        metrics.neg_log_predictive_density_scorer(model, *rows),
        model.log_predictive_density(*rows).mean(),
    )


# ------------------------------------------------------------------------------------------ devices
def test_devices_of_the_cpu(rows):
    """None, a name, torch's object, and what there is."""
    wanted = GaussianProcessRegressor(KERNEL, optimizer=None).fit(*rows)
    for device in ("cpu", torch.device("cpu")):
        model = GaussianProcessRegressor(KERNEL, optimizer=None, device=device).fit(*rows)
        assert_equal_predictions(model, wanted, QUERY)
        assert model.device is device
    model = GaussianProcessRegressor(KERNEL, optimizer=None, device="auto").fit(*rows)
    assert_equal_predictions(model, wanted, QUERY, rtol=1e-6, atol=1e-9)


@both
@pytest.mark.parametrize("method", ["auto", "svgp"])
def test_a_model_of_a_device_that_is_not_there_predicts(ours, theirs, method, rows, labels):
    """On the CPU, with a warning: what was fitted on a GPU is for any machine.

    And `device` is looked at where predictions are made: "cpu" on such a machine needs no warning.
    """
    X, y, query, _ = data_of(ours, rows, labels)
    small = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed")
    model = ours(small, method=method, random_state=0).fit(X, y)
    wanted = model.predict(query)
    model.set_params(device="cuda:99")
    with pytest.warns(UserWarning, match="device"):
        found = model.predict(query)
    assert_array_equal(found, wanted)
    assert_array_equal(model.set_params(device="cpu").predict(query), wanted)


def test_a_classifier_of_a_gpu_predicts_without_one(labels):
    """Its pickle, where device="cpu" is set; here with what a fit on a GPU leaves."""
    X, two, three = labels
    for y in (two, three):
        model = GaussianProcessClassifier(SMOOTH, optimizer=None).fit(X, y)
        wanted = model.predict_proba(QUERY_2)
        value = model.log_marginal_likelihood(SMOOTH.theta)
        for base in getattr(model.base_estimator_, "estimators_", [model.base_estimator_]):
            base.device = "cuda:99"
        loaded = pickle.loads(pickle.dumps(model)).set_params(device="cpu")
        assert_array_equal(loaded.predict_proba(QUERY_2), wanted)
        assert loaded.log_marginal_likelihood(SMOOTH.theta) == value


@pytest.mark.gpu
@both
def test_the_gpu_agrees(ours, theirs, rows, labels):
    """In all that is float64; its pickle needs no GPU."""
    X, y, query, kernel = data_of(ours, rows, labels)
    cpu = ours(kernel, optimizer=None).fit(X, y)
    gpu = ours(kernel, optimizer=None, device="cuda").fit(X, y)
    assert_equal_predictions(gpu, cpu, query, rtol=1e-8, atol=1e-10)
    for theta in (kernel.theta, kernel.theta + 0.3):
        for a, b in zip(
            gpu.log_marginal_likelihood(theta, True),
            cpu.log_marginal_likelihood(theta, True),
            strict=True,
        ):
            assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    loaded = pickle.loads(pickle.dumps(gpu)).set_params(device="cpu")
    assert_equal_predictions(loaded, cpu, query, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
@both
def test_a_search_on_the_gpu_ends_where_the_cpus_does(ours, theirs, rows, labels):
    X, y, query, kernel = data_of(ours, rows, labels)
    cpu, gpu = (ours(kernel, device=device).fit(X, y) for device in ("cpu", "cuda"))
    assert_allclose(gpu.kernel_.theta, cpu.kernel_.theta, atol=1e-4)
    assert_allclose(
        gpu.log_marginal_likelihood_value_, cpu.log_marginal_likelihood_value_, rtol=1e-8
    )
    assert_equal_predictions(gpu, cpu, query, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", MANY)
def test_many_rows_on_the_gpu(method, rows):
    """A sparse fit there is the same model, or as good a one of features that are drawn there."""
    kernel = ConstantKernel(1.3, "fixed") * RBF(0.9, "fixed") + WhiteKernel(0.05, "fixed")
    cpu, gpu = (
        GaussianProcessRegressor(
            kernel, method=method, device=device, dtype="float64", random_state=0
        ).fit(*rows)
        for device in ("cpu", "cuda")
    )
    loaded = pickle.loads(pickle.dumps(gpu)).set_params(device="cpu")
    assert_equal_predictions(loaded, gpu, QUERY, rtol=1e-7, atol=1e-9)
    if method == "scgd":
        assert gpu.score(*rows) == pytest.approx(cpu.score(*rows), abs=0.01)
    else:
        assert_equal_predictions(gpu, cpu, QUERY, atol=1e-4)


@pytest.mark.parametrize("found", [None, 1.0, (np.zeros(1), 0.0), (np.full(3, np.nan), 0.0)])
def test_what_an_optimizer_returns_is_checked(found, rows):
    model = GaussianProcessRegressor(KERNEL, optimizer=lambda f, theta, bounds: found)
    with pytest.raises(ValueError, match=r"optimizer must return \(theta, minimum\)"):
        model.fit(*rows)


def test_an_interrupted_start_cuts_training_short(rows, monkeypatch):
    """Of many rows, the search among some of them comes first."""
    kernel, calls = 1.0 * RBF() + WhiteKernel(), []

    def interrupted(obj_func, theta, bounds):
        obj_func(theta)
        calls.append(theta)
        raise KeyboardInterrupt

    model = GaussianProcessRegressor(kernel, optimizer=interrupted, method="sgpr", random_state=0)
    cut = pytest.warns(ConvergenceWarning, match="interrupted after 1 of")
    with cut, pytest.warns(ConvergenceWarning, match="Training on all rows is cut short"):
        model.fit(*rows)
    assert len(calls) == model.estimator_.n_iter_ == 1
    assert model.score(*rows) > 0.5


# ---- what searches find ----
SINE = 1.0 * ExpSineSquared(1.0, 5.0, periodicity_bounds=(1e-2, 1e1))


def sine_of_the_gallery(seed):
    """Rows of scikit-learn's comparison of kernel ridge regression and processes."""
    rng = np.random.RandomState(seed)
    X = np.linspace(0, 30, 1000)[rng.choice(np.arange(400), 40, replace=False)][:, None]
    return X, np.sin(X[:, 0]) + 0.5 * rng.randn(40)


@pytest.mark.slow
def test_searches_of_a_period_end_where_scikit_learns_do():
    """From a start that is four fifths of the period, with a bound beyond it."""
    gains = []
    for seed in range(10):
        X, y = sine_of_the_gallery(seed)
        models = [
            cls(SINE + WhiteKernel(0.1)) for cls in (GaussianProcessRegressor, TheirRegressor)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            ours, theirs = (m.fit(X, y).log_marginal_likelihood_value_ for m in models)
        gains.append(ours - theirs)
    assert sum(gain < -0.01 for gain in gains) <= 1


@pytest.mark.slow
def test_a_sparse_process_finds_the_period_too():
    for seed in range(5):
        model = SVGPRegressor(SINE, random_state=0).fit(*sine_of_the_gallery(seed))
        period = model.kernel_.get_params()["k2__periodicity"]
        assert period == pytest.approx(2 * np.pi, rel=0.1)


@pytest.mark.slow
# ---- where searches start ----
def test_restarts_find_the_period_that_scikit_learn_finds():
    """As in its gallery's comparison with kernel ridge regression: most of θ's space is noise."""
    rng = np.random.RandomState(8)
    X = rng.choice(np.linspace(0, 30, 1000), 40, replace=False)[:, None]
    y = np.sin(X[:, 0]) + 0.5 * rng.standard_normal(40)
    kernel = 1.0 * ExpSineSquared(1.0, 0.5, periodicity_bounds=(1e-2, 1e1)) + WhiteKernel(1e-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=5, random_state=0).fit(X, y)
        theirs = TheirRegressor(kernel, n_restarts_optimizer=5, random_state=0).fit(X, y)
    value = model.log_marginal_likelihood_value_
    assert value >= theirs.log_marginal_likelihood_value_ - 0.01
    assert model.kernel_.get_params()["k1__k2__periodicity"] == pytest.approx(2 * np.pi, rel=0.1)


def test_bounds_of_long_sums_take_one_step_for_each_term():
    """Of 25 terms, those of scikit-learn took ten minutes."""
    terms = [RBF(1.0, "fixed"), WhiteKernel(), ConstantKernel(2.0, (1e-3, 1e3))]
    kernel = RBF([1.0, 2.0]) + terms[0] * terms[2] + terms[0] + terms[1] ** 2
    assert_array_equal(log_bounds(kernel), kernel.bounds)
    assert log_bounds(terms[0] + terms[0]).shape == (0, 2)
    assert log_bounds(sum([RBF()] * 99, RBF())).shape == (100, 2)


def test_likely_starts_have_the_units_of_rows():
    kernel = 1.0 * RBF([1.0, 1.0]) + WhiteKernel() + DotProduct(1.0, "fixed")
    X = np.random.default_rng(0).uniform(size=(100, 2))
    here, there = likely_bounds(kernel, X, 1.0), likely_bounds(kernel, X * [1.0, 50.0], 9.0)
    assert_allclose(there - here, np.log([[9.0] * 2, [1.0] * 2, [50.0] * 2, [9.0] * 2]), atol=1e-12)
    assert_allclose(here[3], np.log([1e-3, 1.0]), atol=1e-12)
    narrow = RBF(1e-4, (1e-5, 1e-3))  # where no length-scale is likely
    assert_array_equal(likely_bounds(narrow, X, 1.0), narrow.bounds)
    assert_array_equal(likely_bounds(kernel, ["a", "b"], 1.0), kernel.bounds)


@pytest.mark.slow
@pytest.mark.parametrize("white", [None, 1e-4])
@pytest.mark.parametrize("P", [1, 2])
def test_neighbours_keep_the_noise_of_a_kernel_that_is_kept(P, white):
    """It was raised to a tenth of the variance of y: deviations were 20 times as large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (1100 if P == 1 else 200, 1))
    noise = 0.0 if white is None else white**0.5
    Y = np.sin(2.0 * X + np.arange(P)) + noise * rng.standard_normal((len(X), P))
    kernel = 0.5 * Matern(1.0, nu=1.5)
    kernel = kernel if white is None else kernel + WhiteKernel(white)
    y = Y if P > 1 else Y[:, 0]
    ours = GaussianProcessRegressor(kernel, optimizer=None, max_exact=50, random_state=0).fit(X, y)
    assert ours.method_ == "nngp"
    theirs = TheirRegressor(kernel, optimizer=None).fit(X, y)
    found, expected = (m.predict(X[:20] + 0.01, return_std=True) for m in (ours, theirs))
    assert_allclose(found[0], expected[0], atol=1e-2 * expected[1].max() + 5e-4)
    assert_allclose(found[1], expected[1], rtol=1e-2, atol=5e-4)  # the noise that is added
    value = ours.log_marginal_likelihood(ours.kernel_.theta)
    assert_allclose(ours.log_marginal_likelihood_value_, value, rtol=1e-9)


@pytest.mark.slow
def test_copies_are_rows_of_the_model_given_neighbours():
    """As in scikit-learn's; they counted relative to the mean count, so f was less certain."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 20.0, (100, 1))
    Y = np.sin(X + np.arange(2)) + 0.3 * rng.standard_normal((100, 2))
    X, Y = np.concatenate([X] + [X[:40]] * 3), np.concatenate([Y] + [Y[:40]] * 3)
    kernel = 0.5 * RBF(1.0) + WhiteKernel(0.1)
    ours = GaussianProcessRegressor(kernel, max_exact=50, method="nngp", random_state=0).fit(X, Y)
    again = clone(ours).set_params(kernel=ours.kernel_, optimizer=None).fit(X, Y)
    found, expected = (m.predict(X[:20] + 0.01, return_std=True)[1] for m in (ours, again))
    assert_allclose(found, expected, rtol=0.1)  # each target has its own noise, or one for both


@pytest.mark.parametrize("away", [0.0, 100.0, 1000.0])
@pytest.mark.parametrize(
    "cls", [GaussianProcessRegressor, GaussianProcessClassifier, SVGPRegressor]
)
def test_a_line_through_0_that_is_far_away_is_told(cls, away):
    """Deviations were 0 at some rows, and means were 40 times as far off, in silence."""
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (30, 2)) + np.array([0.0, away])
    y = X[:, 0] > 0.0 if cls is GaussianProcessClassifier else X[:, 0]
    kernel, message = 1.0 * DotProduct() + RBF(), r"Column 1 of X has a mean of 1e\+03 .*Subtract"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        cls(kernel + WhiteKernel(), random_state=0).fit(X, y)
    assert sum(bool(re.search(message, str(w.message))) for w in found) == (away == 1000.0)


def test_a_far_line_is_told_once():
    """The estimator that many rows are fitted with tells it."""
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (30, 2)) + np.array([0.0, 1000.0])
    model = GaussianProcessRegressor(1.0 * DotProduct() + RBF() + WhiteKernel(), method="svgp")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(X, X[:, 0])
    assert sum("DotProduct measures from 0" in str(w.message) for w in found) == 1
