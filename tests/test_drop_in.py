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
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgError
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

import skgpstoch.posteriors.covariance
from skgpstoch import GaussianProcessClassifier, GaussianProcessRegressor, metrics

TheirRegressor = sklearn.gaussian_process.GaussianProcessRegressor
TheirClassifier = sklearn.gaussian_process.GaussianProcessClassifier
BOTH = [
    (GaussianProcessRegressor, TheirRegressor),
    (GaussianProcessClassifier, TheirClassifier),
]
both = pytest.mark.parametrize(("ours", "theirs"), BOTH, ids=["regressor", "classifier"])

SPARSE = ["sgpr", "svgp", "solve"]
MANY = [*SPARSE, "scgd"]
KERNEL = 1.3 * RBF(0.9) + WhiteKernel(0.05)
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


at_random = settings(derandomize=True, database=None, deadline=None, max_examples=40)


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


@settings(at_random, max_examples=25)
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
    if alpha != 0.1:
        alpha = np.linspace(0.01, 0.3, len(X))
    theirs = TheirRegressor(2.0 * RBF(0.5), alpha=alpha, normalize_y=normalize_y).fit(X, y)
    given_alpha = alpha.tolist() if np.ndim(alpha) else alpha
    ours = GaussianProcessRegressor(2.0 * RBF(0.5), alpha=given_alpha, normalize_y=normalize_y)
    ours.fit(X, y)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=1e-3)
    assert ours.alpha is given_alpha
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
        with pytest.raises(ValueError, match="one_vs_one"):
            ours.predict_proba(QUERY_2)
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
def test_warm_start_ends_where_a_cold_one_does(method, labels):
    """On other rows too, and on rows of another number."""
    X, y, _ = labels
    warm = GaussianProcessClassifier(
        SMOOTH, optimizer=None, warm_start=True, method=method, dtype="float64", random_state=0
    )
    for some in (slice(None), slice(None), slice(30), slice(10, 40)):
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
@pytest.mark.parametrize("kernel", [RBF(1.1) * 0.7 + WhiteKernel(0.3), WhiteKernel(0.3) + RBF(1.1)])
def test_without_an_optimizer_the_kernel_stays_for_many_rows(method, kernel, rows):
    model = GaussianProcessRegressor(kernel, optimizer=None, method=method, random_state=0)
    model.fit(*rows)
    assert_allclose(model.kernel_.theta, kernel.theta, rtol=1e-6, atol=1e-6)
    assert model.kernel_.bounds.shape == kernel.bounds.shape
    assert model.kernel == kernel


@pytest.mark.parametrize("method", ["svgp", "solve"])
def test_without_an_optimizer_the_classifiers_kernel_stays(method, labels):
    X, y, _ = labels
    parameters = {"method": method, "optimizer": None, "random_state": 0}
    model = GaussianProcessClassifier(SMOOTH, **parameters).fit(X[:20], y[:20])
    assert_allclose(model.kernel_.theta, SMOOTH.theta, rtol=1e-6, atol=1e-6)
    assert_array_equal(model.kernel_.bounds, SMOOTH.bounds)


def test_fixed_hyper_parameters_stay(rows):
    kernel = ConstantKernel(1.5, "fixed") * RBF(0.6) + WhiteKernel(0.07, "fixed")
    for method in ("exact", *SPARSE):
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


@both
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
    covariance = skgpstoch.posteriors.covariance
    monkeypatch.setattr(covariance, "BLOCK_ELEMENTS", {"cpu": 64, "cuda": 64})
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
def test_predictions_do_not_depend_on_batches(ours, theirs, rows, labels, monkeypatch):
    """One by one, in blocks, or all at once, to rounding."""
    X, y, query, kernel = data_of(ours, rows, labels)
    methods = ["exact", "sgpr"] if ours is GaussianProcessRegressor else ["laplace", "svgp"]
    for method in methods:
        # Without optimizer=None, as that has a test of its own.
        kernel = ConstantKernel(1.3, "fixed") * RBF(0.9, "fixed")
        model = ours(kernel, method=method, random_state=0)
        if ours is GaussianProcessRegressor:
            model.set_params(kernel=kernel + WhiteKernel(0.05, "fixed"))
        model.fit(X, y)

        def moments(rows, model=model):
            if ours is GaussianProcessClassifier:
                return model.predict_proba(rows)
            return np.column_stack(model.predict(rows, return_std=True))

        whole = moments(query)
        assert_allclose(np.vstack([moments(row[None]) for row in query]), whole, rtol=1e-8)
        assert_allclose(moments(query[::-1])[::-1], whole, rtol=1e-8)
        with monkeypatch.context() as patch:
            patch.setattr(skgpstoch.posteriors.covariance, "BLOCK_ELEMENTS", {"cpu": 64})
            patch.setattr(skgpstoch.posteriors.covariance, "LEAST_ROWS", 4)
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
