"""Gradients of predictions by the inputs, against finite differences."""

import numpy as np
import pytest
import sklearn.gaussian_process
import torch
from conftest import CLASSIFIERS, ESTIMATORS, IMAGES, fitted_once, quick_parameters
from families import by_family, slow_cases
from numpy.testing import assert_allclose
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from skgpstoch import GaussianProcessRegressor, SVGPRegressor

STEP = 1e-5
POINTS = np.array([[-2.1, 0.4], [0.3, -1.2], [1.7, 2.4]])
KERNELS = [
    1.3 * RBF([0.9, 1.4]) + WhiteKernel(0.05),
    2.0 * Matern([0.9, 2.0], nu=0.5),
    Matern(1.1, nu=1.5) + ConstantKernel(0.5),
    0.7 * Matern([1.1, 0.6], nu=2.5),
    RationalQuadratic(1.2, 0.7),
    ExpSineSquared(1.2, 5.0) * RBF(2.0),
    DotProduct(0.8) ** 2 + WhiteKernel(0.1),
    Matern(1.0, nu=np.inf) * DotProduct(1.0),
]
REGRESSORS = [
    cls for cls in ESTIMATORS if not is_classifier(cls()) and cls not in [*IMAGES, *CLASSIFIERS]
]


def finite_differences(model, X, **options):
    """Central ones of the mean and the standard deviation, (n, ..., d)."""
    both = []
    for step in STEP * np.eye(X.shape[1]):
        above, below = (
            np.stack(model.predict(rows, return_std=True, **options))
            for rows in (X + step, X - step)
        )
        both.append((above - below) / (2 * STEP))
    return np.stack(both, -1)


@pytest.fixture(scope="module")
def rows(sine):
    X, y = sine
    return X[:40], y[:40]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("normalize_y", [False, True])
def test_gradients_of_the_drop_in(kernel, normalize_y, rows):
    model = GaussianProcessRegressor(kernel, alpha=0.01, optimizer=None, normalize_y=normalize_y)
    model.fit(rows[0], 7.0 + 3.0 * rows[1])
    expected = finite_differences(model, POINTS)
    assert_allclose(np.stack(model.predict_gradient(POINTS)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradients_of_the_prior(kernel):
    model = GaussianProcessRegressor(kernel)
    expected = finite_differences(model, POINTS)
    assert_allclose(np.stack(model.predict_gradient(POINTS)), expected, rtol=1e-6, atol=1e-9)


def test_gradients_of_several_targets(rows):
    X, y = rows
    model = GaussianProcessRegressor(1.0 * RBF(), alpha=0.01, optimizer=None, normalize_y=True)
    model.fit(X, np.column_stack([y, 10.0 * y**2]))
    found = np.stack(model.predict_gradient(POINTS))
    assert found.shape == (2, 3, 2, 2)
    assert_allclose(found, finite_differences(model, POINTS), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["sgpr", "svgp", "scgd", "nngp"])
@slow_cases("scgd")
def test_gradients_for_many_rows(method, sine):
    model = GaussianProcessRegressor(
        1.0 * RBF() + WhiteKernel(0.1), method=method, optimizer=None, random_state=0
    )
    model = fitted_once(model, *sine)
    expected = finite_differences(model, POINTS)
    assert_allclose(np.stack(model.predict_gradient(POINTS)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", by_family("gradients of predictions", REGRESSORS))
def test_gradients_of_every_regressor(cls, sine):
    model = fitted_once(cls(**quick_parameters(cls)), *sine)
    for options in ({}, {"latent": True}) if hasattr(model, "posterior_") else ({},):
        found = np.stack(model.predict_gradient(POINTS, **options))
        expected = finite_differences(model, POINTS, **options)
        assert np.abs(expected).max() > 1e-3
        assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_row_as_scikit_optimize_has_it(rows):
    X, y = rows
    model = GaussianProcessRegressor(1.0 * RBF(), alpha=0.01).fit(X, y)
    one = POINTS[:1]
    mean, std, of_mean, of_std = model.predict(
        one, return_std=True, return_mean_grad=True, return_std_grad=True
    )
    assert mean.shape == std.shape == (1,)
    assert of_mean.shape == of_std.shape == (2,)
    assert_allclose([mean, std], model.predict(one, return_std=True), rtol=1e-12)
    assert_allclose([of_mean, of_std], np.stack(model.predict_gradient(one))[:, 0])
    assert len(model.predict(one, return_mean_grad=True)) == 2
    assert len(model.predict(one, return_std=True, return_mean_grad=True)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_mean_grad": True}, "need one row.*got 3"),
        ({"return_std_grad": True}, "needs return_std=True"),
        ({"return_cov": True, "return_mean_grad": True}, "not available with return_cov=True"),
    ],
)
def test_gradients_that_cannot_be(options, message, rows):
    model = GaussianProcessRegressor(1.0 * RBF(), alpha=0.01).fit(*rows)
    with pytest.raises(ValueError, match=message):
        model.predict(POINTS, **options)


def test_kernels_that_do_not_run_in_torch_have_no_gradients(rows):
    model = GaussianProcessRegressor(PairwiseKernel(), alpha=0.1, optimizer=None).fit(*rows)
    with pytest.raises(TypeError, match="must be an expression of"):
        model.predict_gradient(POINTS)


def test_no_slope_where_there_is_no_deviation(rows):
    X, y = rows
    model = GaussianProcessRegressor(1.0 * Matern(nu=0.5), alpha=0.0, optimizer=None).fit(X, y)
    *_, of_mean, of_std = model.predict(
        X[:1], return_std=True, return_mean_grad=True, return_std_grad=True
    )
    assert np.isfinite(of_mean).all()
    assert np.isfinite(of_std).all()


@pytest.mark.slow
def test_gradients_need_no_gradients_of_the_caller(rows):
    with torch.inference_mode():
        model = SVGPRegressor(n_inducing=5, max_iter=3, random_state=0).fit(*rows)
        inside = model.predict_gradient(POINTS)
    assert_allclose(inside, model.predict_gradient(POINTS), rtol=1e-12)


@pytest.mark.slow
def test_gradients_of_transformed_targets_are_those_of_f(rows):
    X, y = rows
    model = SVGPRegressor(n_inducing=5, max_iter=3, random_state=0, target_transform="log")
    model.fit(X, np.exp(y))
    with pytest.raises(ValueError, match="latent=True"):
        model.predict_gradient(POINTS)
    found = np.stack(model.predict_gradient(POINTS, latent=True))
    assert_allclose(found, finite_differences(model, POINTS, latent=True), rtol=1e-4, atol=1e-5)


def test_predictions_are_scikit_learns_as_before(rows):
    ours = GaussianProcessRegressor(1.0 * RBF(), alpha=0.01, optimizer=None).fit(*rows)
    theirs = sklearn.gaussian_process.GaussianProcessRegressor(
        1.0 * RBF(), alpha=0.01, optimizer=None
    ).fit(*rows)
    assert_allclose(ours.predict(POINTS), theirs.predict(POINTS), rtol=1e-8)
