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
